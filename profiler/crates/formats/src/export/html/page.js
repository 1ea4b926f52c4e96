'use strict';
(() => {
  const SVG = 'http://www.w3.org/2000/svg';
  const html = (name, props = {}, ...inner) => {
    const element = Object.assign(document.createElement(name), props);
    element.append(...inner);
    return element;
  };
  const svg = (name, attributes = {}, text = '') => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.textContent = text;
    return element;
  };

  // ---- light and dark ------------------------------------------------------------
  const theme = document.getElementById('theme');
  const prefersDark = matchMedia('(prefers-color-scheme: dark)');
  const isDark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === 'dark' : prefersDark.matches;
  };
  const nameTheme = () => { theme.textContent = isDark() ? 'Light' : 'Dark'; };
  theme.hidden = false;
  theme.addEventListener('click', () => {
    document.documentElement.dataset.theme = isDark() ? 'light' : 'dark';
    nameTheme();
  });
  prefersDark.addEventListener('change', nameTheme);
  nameTheme();

  // ---- tables --------------------------------------------------------------------
  /** What a cell is sorted by; what is not known comes last. */
  const keyOf = (row, column) => {
    const text = row.cells[column]?.textContent ?? '';
    if (!row.cells[column]?.classList.contains('n')) return text;
    const value = parseFloat(text.replace(/,/g, '').replace('\u2212', '-'));
    return Number.isNaN(value) ? null : value;
  };

  const sort = (table, column, head) => {
    const body = table.tBodies[0];
    const isNumber = head.classList.contains('n');
    const was = head.getAttribute('aria-sort');
    // Numbers begin with the largest, names with A.
    const first = isNumber ? 'descending' : 'ascending';
    const second = isNumber ? 'ascending' : 'descending';
    const order = was === first ? second : first;
    for (const other of table.tHead.rows[0].cells) other.removeAttribute('aria-sort');
    head.setAttribute('aria-sort', order);
    const sign = order === 'ascending' ? 1 : -1;
    const rows = Array.from(body.rows, (row) => ({ row, key: keyOf(row, column) }));
    const names = new Intl.Collator('en', { numeric: true });
    rows.sort((a, b) => {
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
      return sign * (isNumber ? a.key - b.key : names.compare(a.key, b.key));
    });
    body.append(...rows.map(({ row }) => row));
  };

  const addFilter = (table) => {
    const rows = Array.from(table.tBodies[0].rows);
    const entries = rows.map((row) => ({
      row, rank: row.cells[0].textContent, text: row.textContent.toLowerCase(),
    }));
    const field = html('input', { type: 'search', placeholder: 'Name contains\u2026' });
    field.setAttribute('aria-label', 'Show rows whose name contains');
    const choice = html('select', {}, html('option', { value: '' }, 'All ranks'));
    choice.setAttribute('aria-label', 'Show rows of a rank');
    const ranks = [...new Set(entries.map(({ rank }) => rank))];
    for (const rank of ranks) choice.append(html('option', { value: rank }, `Rank ${rank}`));
    choice.hidden = ranks.length < 2;
    const shown = html('output');
    const apply = () => {
      const wanted = field.value.trim().toLowerCase();
      let count = 0;
      for (const { row, rank, text } of entries) {
        const isShown = (!choice.value || rank === choice.value) && text.includes(wanted);
        row.hidden = !isShown;
        count += isShown;
      }
      shown.textContent = `${count.toLocaleString('en')} of ${rows.length.toLocaleString('en')}`;
    };
    field.addEventListener('input', apply);
    choice.addEventListener('change', apply);
    apply();
    table.closest('.scroll').before(html('div', { className: 'filter' }, field, choice, shown));
  };

  for (const table of document.querySelectorAll('table')) {
    if (table.tBodies[0].rows.length > 1) {
      Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
        const button = html('button', { type: 'button' }, ...head.childNodes);
        button.addEventListener('click', () => sort(table, column, head));
        head.append(button);
      });
    }
    if ('filter' in table.dataset) addFilter(table);
  }

  // ---- plots ---------------------------------------------------------------------
  const data = JSON.parse(document.getElementById('data').textContent);
  const charts = document.getElementById('charts');
  if (!charts) return;
  const [HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [190, 60, 14, 8, 34];
  const LISTED = 12;
  const DRAWN = 8;

  const times = data.plots.flatMap(({ lines }) => lines.flatMap(({ t }) => [t[0], t[t.length - 1]]))
    .filter((time) => time !== undefined);
  const whole = [Math.min(0, ...times), Math.max(data.elapsed, ...times)];
  if (whole[1] <= whole[0]) whole[1] = whole[0] + 1;
  let view = [...whole];
  const all = [];

  /** Numbers for an axis: round ones, about `count` of them. */
  const ticks = (from, to, count) => {
    const rough = (to - from) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) * power;
    const marks = [];
    for (let n = Math.ceil(from / step); n * step <= to + step * 1e-6 && marks.length < 50; n += 1) {
      marks.push(n * step);
    }
    return { step, marks };
  };

  /** A number with the digits that steps of this size need. */
  const written = (value, step) => {
    const size = Math.abs(value);
    if (size && (size >= 1e9 || size < 1e-6)) return value.toExponential(2);
    const digits = Math.min(9, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
    return value.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits })
      .replace(/^-/, '\u2212');
  };

  const timeUnit = (span) => {
    if (span >= 2e6) return [1e6, 's'];
    return span >= 2e3 ? [1e3, 'ms'] : [1, '\u00b5s'];
  };

  const value = (number) => {
    const size = Math.abs(number);
    if (size && (size >= 1e9 || size < 1e-4)) return number.toExponential(3);
    return number.toLocaleString('en', { maximumSignificantDigits: 5 });
  };

  /** The last point that is not after a time; -1: none. */
  const before = (t, time) => {
    let [low, high] = [0, t.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (t[middle] <= time) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  };

  const setView = (from, to) => {
    const least = Math.max((whole[1] - whole[0]) * 1e-9, 0.001);
    const span = Math.min(Math.max(to - from, least), whole[1] - whole[0]);
    const begin = Math.min(Math.max(from, whole[0]), whole[1] - span);
    view = [begin, begin + span];
    document.getElementById('whole').disabled = view[0] <= whole[0] && view[1] >= whole[1];
    for (const chart of all) chart.draw();
  };

  class Chart {
    constructor({ name, about, unit, lines }) {
      this.lines = lines.map((line, index) => ({
        ...line,
        low: line.low ?? line.mid,
        high: line.high ?? line.mid,
        isShown: index < DRAWN,
        class: `c${index % 8}`,
        dash: `d${Math.floor(index / 8) % 4}`,
      }));
      this.unit = unit;
      this.svg = svg('svg', { role: 'img', tabindex: 0, 'aria-label': this.words(name), preserveAspectRatio: 'none' });
      this.tip = html('div', { className: 'tip', hidden: true });
      const caption = html('figcaption', {}, html('bdi', {}, name));
      const small = [about, unit && `in ${unit}`].filter(Boolean).join(', ');
      if (small) caption.append(html('small', {}, small));
      this.figure = html('figure', {}, caption, this.legend(), this.svg, this.tip);
      charts.append(this.figure);
      this.listen();
      new ResizeObserver(() => this.draw()).observe(this.svg);
    }

    /** The plot for those who do not see it. */
    words(name) {
      const told = this.lines.slice(0, LISTED).map(({ label, low, high }) => {
        const least = low.reduce((a, b) => Math.min(a, b), Infinity);
        const most = high.reduce((a, b) => Math.max(a, b), -Infinity);
        return `${label}: ${value(least)} to ${value(most)} ${this.unit}`;
      });
      const more = this.lines.length - told.length;
      return `${name} over time. ${told.join('; ')}${more > 0 ? `; and ${more} more` : ''}`;
    }

    legend() {
      const legend = html('div', { className: 'legend' });
      for (const line of this.lines) {
        const swatch = html('span', { className: `swatch ${line.class}` });
        const button = html('button', { type: 'button' }, swatch, line.label);
        const show = () => button.setAttribute('aria-pressed', line.isShown);
        button.addEventListener('click', () => {
          line.isShown = !line.isShown;
          show();
          this.draw();
        });
        show();
        legend.append(button);
      }
      return legend;
    }

    x(time) {
      return LEFT + (time - view[0]) / (view[1] - view[0]) * (this.width - LEFT - RIGHT);
    }

    time(x) {
      return view[0] + (x - LEFT) / (this.width - LEFT - RIGHT) * (view[1] - view[0]);
    }

    y(number) {
      return HEIGHT - BOTTOM - (number - this.range[0]) / (this.range[1] - this.range[0]) * (HEIGHT - TOP - BOTTOM);
    }

    /** The points of a line that are seen, with one on either side. */
    seen({ t }) {
      return [Math.max(before(t, view[0]), 0), Math.min(before(t, view[1]) + 1, t.length - 1)];
    }

    measure() {
      let [least, most] = [Infinity, -Infinity];
      for (const line of this.lines.filter(({ isShown }) => isShown)) {
        const [from, to] = this.seen(line);
        for (let i = from; i <= to; i += 1) {
          least = Math.min(least, line.low[i]);
          most = Math.max(most, line.high[i]);
        }
      }
      if (least > most) [least, most] = [0, 1];
      const isPercent = this.unit === '%' && least >= 0 && most <= 100;
      this.range = isPercent ? [0, 100] : [Math.min(0, least), Math.max(0, most)];
      if (this.range[0] === this.range[1]) this.range[1] += 1;
      if (!isPercent) this.range = this.range.map((end) => end * 1.05);
    }

    axes() {
      const parts = [];
      const { step, marks } = ticks(this.range[0], this.range[1], 4);
      for (const mark of marks) {
        const y = this.y(mark);
        parts.push(svg('line', { class: 'grid', x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y }));
        parts.push(svg('text', { x: LEFT - 6, y: y + 4, 'text-anchor': 'end' }, written(mark, step)));
      }
      const [size, unit] = timeUnit(Math.max(view[1] - view[0], (view[1] - whole[0]) / 1e4));
      const count = Math.max(2, Math.floor(this.width / 130));
      const along = ticks(view[0] / size, view[1] / size, count);
      for (const mark of along.marks) {
        const x = this.x(mark * size);
        parts.push(svg('line', { class: 'grid', x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM + 4 }));
        parts.push(svg('text', { x, y: HEIGHT - BOTTOM + 16, 'text-anchor': 'middle' }, written(mark, along.step)));
      }
      const middle = (LEFT + this.width - RIGHT) / 2;
      parts.push(svg('text', { x: middle, y: HEIGHT - 4, 'text-anchor': 'middle' }, `${unit} since the first event`));
      parts.push(svg('text', { x: 2, y: TOP + 8 }, this.unit.slice(0, 8)));
      return parts;
    }

    /** A counter holds its value until the next point. */
    drawn(line) {
      const [from, to] = this.seen(line);
      if (to < 0) return [];
      const [mid, up, down] = [[], [], []];
      let hasBand = false;
      for (let i = from; i <= to; i += 1) {
        const x = this.x(line.t[i]).toFixed(1);
        const end = this.x(line.t[Math.min(i + 1, line.t.length - 1)]).toFixed(1);
        const at = (number) => this.y(number).toFixed(1);
        mid.push(`${mid.length ? 'L' : 'M'}${x} ${at(line.mid[i])}H${end}`);
        up.push(`${up.length ? 'L' : 'M'}${x} ${at(line.high[i])}H${end}`);
        down.push(`L${end} ${at(line.low[i])}H${x}`);
        hasBand = hasBand || line.high[i] > line.low[i];
      }
      const parts = [];
      if (hasBand) {
        parts.push(svg('path', { class: `band ${line.class}`, d: `${up.join('')}${down.reverse().join('')}Z` }));
      }
      parts.push(svg('path', { class: `mid ${line.class} ${line.dash}`, d: mid.join('') }));
      const last = line.t.length - 1;
      if (to === last && line.t[last] <= view[1]) {
        parts.push(svg('circle', { class: `dot ${line.class}`, cx: this.x(line.t[last]), cy: this.y(line.mid[last]), r: last ? 1.5 : 3 }));
      }
      return parts;
    }

    draw() {
      this.width = Math.max(this.svg.clientWidth, 200);
      this.measure();
      this.svg.setAttribute('viewBox', `0 0 ${this.width} ${HEIGHT}`);
      const inner = svg('svg', { x: LEFT, y: 0, width: this.width - LEFT - RIGHT, height: HEIGHT, viewBox: `${LEFT} 0 ${this.width - LEFT - RIGHT} ${HEIGHT}` });
      for (const line of this.lines) if (line.isShown && line.t.length) inner.append(...this.drawn(line));
      this.cross = svg('line', { class: 'cross', y1: TOP, y2: HEIGHT - BOTTOM, visibility: 'hidden' });
      this.chosen = svg('rect', { class: 'chosen', y: TOP, height: HEIGHT - TOP - BOTTOM, visibility: 'hidden' });
      this.svg.replaceChildren(...this.axes(), inner, this.chosen, this.cross);
      this.tip.hidden = true;
    }

    show(x) {
      const time = this.time(x);
      const [size, unit] = timeUnit(view[1]);
      const rows = [html('div', {}, `${written(time / size, (view[1] - view[0]) / size / 1000)} ${unit}`)];
      const lines = this.lines.filter(({ isShown, t }) => isShown && t.length && t[0] <= time);
      for (const line of lines.slice(0, LISTED)) {
        const i = before(line.t, time);
        const [low, high] = [line.low[i], line.high[i]];
        const range = high > low ? ` (${value(low)} to ${value(high)})` : '';
        const swatch = html('span', { className: `swatch ${line.class}` });
        rows.push(html('div', {}, swatch, `${line.label}: ${value(line.mid[i])} ${this.unit}${range}`));
      }
      if (lines.length > LISTED) rows.push(html('div', {}, `and ${lines.length - LISTED} more`));
      this.tip.replaceChildren(...rows);
      this.tip.hidden = false;
      const room = this.figure.clientWidth;
      const left = x + 14 + this.tip.offsetWidth > room ? x - 14 - this.tip.offsetWidth : x + 14;
      this.tip.style.left = `${Math.max(0, left)}px`;
      this.tip.style.top = `${this.svg.offsetTop + TOP}px`;
      for (const [key, at] of [['x1', x], ['x2', x], ['visibility', 'visible']]) this.cross.setAttribute(key, at);
    }

    hide() {
      this.tip.hidden = true;
      this.cross.setAttribute('visibility', 'hidden');
      this.chosen.setAttribute('visibility', 'hidden');
    }

    place(event) {
      const box = this.svg.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width * this.width;
      return Math.min(Math.max(x, LEFT), this.width - RIGHT);
    }

    listen() {
      let from = null;
      this.svg.addEventListener('pointerdown', (event) => {
        if (event.button !== 0) return;
        from = this.place(event);
        this.svg.setPointerCapture(event.pointerId);
      });
      this.svg.addEventListener('pointermove', (event) => {
        const x = this.place(event);
        this.show(x);
        if (from === null) return;
        this.chosen.setAttribute('x', Math.min(from, x));
        this.chosen.setAttribute('width', Math.abs(x - from));
        this.chosen.setAttribute('visibility', 'visible');
      });
      this.svg.addEventListener('pointerup', (event) => {
        const ends = from === null ? [0, 0] : [from, this.place(event)].sort((a, b) => a - b);
        from = null;
        this.hide();
        if (ends[1] - ends[0] > 4) setView(this.time(ends[0]), this.time(ends[1]));
      });
      this.svg.addEventListener('pointercancel', () => {
        from = null;
        this.hide();
      });
      this.svg.addEventListener('pointerleave', () => { if (from === null) this.hide(); });
      this.svg.addEventListener('dblclick', () => setView(...whole));
      this.svg.addEventListener('keydown', (event) => this.key(event));
    }

    key(event) {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const [from, to] = view;
      const step = (to - from) / 4;
      const views = {
        ArrowLeft: [from - step, to - step], ArrowRight: [from + step, to + step],
        '+': [from + step, to - step], '=': [from + step, to - step],
        '-': [from - 2 * step, to + 2 * step], 0: whole, Escape: whole,
      };
      const wanted = views[event.key];
      if (!wanted) return;
      event.preventDefault();
      setView(...wanted);
    }
  }

  for (const plot of data.plots) all.push(new Chart(plot));
  const button = document.getElementById('whole');
  button.hidden = false;
  document.getElementById('how').hidden = false;
  button.addEventListener('click', () => setView(...whole));
  addEventListener('beforeprint', () => {
    for (const details of document.querySelectorAll('details')) details.open = true;
  });
})();
