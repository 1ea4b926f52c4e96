(() => {
  'use strict';
  const root = document.currentScript.closest('.flame');
  const one = (query) => root.querySelector(query);
  const alone = root === document.documentElement;
  const [box, head, field, matched, details] =
    ['.frames', '.top', 'input', '.matched', '.details'].map(one);
  const number = (element, name) => Number(element.getAttribute(name));
  const [row, base] = [box.dataset.row, box.dataset.base].map(Number);
  const above = number(box, 'y');
  const margin = number(box, 'x');
  const hint = 'Point at a frame to see its value. Click: zoom. Ctrl-F or /: search. '
    + 'Arrow keys: move. Enter: zoom. Esc: go back. Click the legend to mark a kind.';

  // Parents stand before their children, and those from left to right.
  const frames = Array.from(box.children, (g) => {
    const [title, rect, text] = g.children;
    const full = title.textContent;
    return {
      g, rect, text, full, kind: g.getAttribute('class'),
      name: full.slice(0, full.lastIndexOf(' (')),
      start: number(rect, 'fg:x'), size: number(rect, 'fg:w'), depth: number(rect, 'y') / row,
    };
  });
  const holds = (a, b) => a.start <= b.start && b.start + b.size <= a.start + a.size;
  const kinds = new Map();
  for (const g of root.querySelectorAll('.legend g')) {
    const { kind } = g.dataset;
    kinds.set(kind, [...(kinds.get(kind) ?? []), g]);
  }
  const words = Array.from(root.querySelectorAll('.title, .line'), (at) => [at, at.textContent]);

  let zoomed = frames[0];
  let at = null;
  let pointed = null;
  let marked = '';
  let shown = [];
  let width = 1;

  // A text as long as there is room for.
  const fit = (element, text, room) => {
    element.textContent = text;
    const long = element.getComputedTextLength();
    if (room > 0 && long > room) {
      const part = Math.max(0, Math.floor((text.length * room) / long) - 3);
      element.textContent = `${text.slice(0, part)}..`;
    }
  };

  const say = (frame) => {
    const entries = (frame && kinds.get(frame.kind)) ?? [];
    const kind = entries.length === 1 ? entries[0].textContent : '';
    fit(details, frame ? frame.full + (kind ? `  [${kind}]` : '') : hint, width);
  };

  const label = (frame, room, character) => {
    const count = Math.floor((room - 6) / character);
    const { name } = frame;
    let text = '';
    if (count > 2) text = name.length > count ? `${Array.from(name).slice(0, count - 2).join('')}..` : name;
    if (text && !frame.text) {
      frame.text = document.createElementNS(root.namespaceURI, 'text');
      frame.text.setAttribute('y', frame.depth * row + base);
      frame.text.setAttribute('dx', 3);
      frame.g.append(frame.text);
    }
    if (frame.text) frame.text.textContent = text;
  };

  const draw = (again) => {
    width = Math.max(100, root.getBoundingClientRect().width - 2 * margin);
    box.setAttribute('width', width);
    const probe = box.querySelector('text');
    let character = 7.3;
    if (probe?.textContent) {
      character = Math.max(1, probe.getComputedTextLength() / probe.textContent.length);
    }
    shown = [];
    for (const frame of frames) {
      const up = frame.depth < zoomed.depth && holds(frame, zoomed);
      const part = up ? 1 : frame.size / zoomed.size;
      const here = (up || (frame.depth >= zoomed.depth && holds(zoomed, frame))) && part * width > 0.1;
      frame.g.style.display = here ? '' : 'none';
      if (!here) continue;
      shown.push(frame);
      const x = up ? 0 : (frame.start - zoomed.start) / zoomed.size;
      frame.g.classList.toggle('up', up);
      frame.rect.setAttribute('x', `${100 * x}%`);
      frame.rect.setAttribute('width', `${100 * part}%`);
      label(frame, part * width, character);
      frame.text?.setAttribute('x', `${100 * x}%`);
    }
    const deepest = shown.reduce((most, frame) => Math.max(most, frame.depth + 1), 1);
    const height = above + deepest * row + margin;
    root.setAttribute('height', alone ? Math.max(height, window.innerHeight) : height);
    // A scroll bar came or went.
    const now = root.getBoundingClientRect().width - 2 * margin;
    if (again !== true && Math.abs(now - width) > 1 && now > 100) return draw(true);
    for (const [element, text] of words) {
      fit(element, text, element.classList.contains('title') ? width - 490 : width);
    }
    say(pointed ?? at);
    find();
    return follow();
  };

  // The head stays at the top of what is seen of the picture.
  const follow = () => {
    const { top, height } = root.getBoundingClientRect();
    const y = Math.max(0, Math.min(-top, height - above - row));
    head.setAttribute('transform', `translate(0,${y})`);
  };

  const pattern = () => {
    const text = field.value;
    const flags = /[A-Z]/.test(text) ? '' : 'i';
    try {
      return new RegExp(text, flags);
    } catch {
      return new RegExp(text.replace(/[^\w\s]/g, '\\$&'), flags);
    }
  };

  // Marks what is searched for; its share is that of the columns that have it.
  const find = () => {
    const wanted = pattern();
    const is = (frame) => (marked ? frame.kind === marked : field.value !== '' && wanted.test(frame.name));
    let [sum, end, count] = [0, zoomed.start, 0];
    for (const frame of shown) {
      const match = is(frame);
      frame.g.classList.toggle('match', match);
      if (!match) continue;
      count += 1;
      const last = Math.min(frame.start + frame.size, zoomed.start + zoomed.size);
      if (last > end) {
        sum += last - Math.max(end, frame.start);
        end = last;
      }
    }
    for (const [kind, all] of kinds) {
      for (const g of all) g.classList.toggle('on', kind === marked);
    }
    const active = marked !== '' || field.value !== '';
    matched.textContent = active ? `${(100 * sum / zoomed.size).toFixed(2)}% in ${count} frames` : '';
  };

  // Brings a row into sight, below the head.
  const reveal = (frame) => {
    const { top } = root.getBoundingClientRect();
    const y = top + above + frame.depth * row;
    if (y < above + row || y > window.innerHeight - 2 * row) {
      window.scrollBy(0, top + (frame.depth - 4) * row);
    }
  };

  const zoom = (frame) => {
    zoomed = frame;
    draw();
    reveal(frame);
  };

  const choose = (frame) => {
    at?.g.classList.remove('at');
    at = frame;
    at?.g.classList.add('at');
    say(at);
    if (at) reveal(at);
  };

  const reset = () => {
    [field.value, marked] = ['', ''];
    choose(null);
    zoom(frames[0]);
  };

  const walk = (key) => {
    const from = at && shown.includes(at) ? at : zoomed;
    if (!at) return choose(from);
    const level = (depth) => shown.filter((frame) => frame.depth === depth);
    const side = level(from.depth);
    const next = {
      ArrowUp: () => level(from.depth - 1).find((frame) => holds(frame, from)),
      ArrowDown: () => level(from.depth + 1).filter((frame) => holds(from, frame))
        .reduce((most, frame) => (most && most.size >= frame.size ? most : frame), undefined),
      ArrowLeft: () => side[side.indexOf(from) - 1],
      ArrowRight: () => side[side.indexOf(from) + 1],
    }[key]();
    return next && choose(next);
  };

  const next = () => {
    const all = shown.filter((frame) => frame.g.classList.contains('match'));
    if (all.length) choose(all[(all.indexOf(at) + 1) % all.length]);
  };

  const back = () => {
    if (field.value || marked) {
      [field.value, marked] = ['', ''];
      find();
    } else if (at) choose(null);
    else zoom(frames[0]);
  };

  const keys = (event) => {
    const typing = document.activeElement === field;
    const { key } = event;
    if ((key === 'f' && (event.ctrlKey || event.metaKey)) || (key === '/' && !typing)) {
      // A second Ctrl-F is the browser's own.
      if (typing) return;
      field.focus();
      field.select();
    } else if (event.ctrlKey || event.metaKey || event.altKey) return;
    else if (key === 'Escape') {
      if (typing && !field.value) field.blur();
      else back();
    } else if (typing) {
      if (key !== 'Enter') return;
      next();
    } else if (key.startsWith('Arrow')) walk(key);
    else if (key === 'Enter' && at) zoom(at);
    else return;
    event.preventDefault();
  };

  const by_element = new Map(frames.map((frame) => [frame.g, frame]));
  const frame_of = (event) => by_element.get(event.target.parentNode);
  box.addEventListener('click', (event) => {
    const frame = frame_of(event);
    if (frame) zoom(frame);
  });
  const point = (frame) => {
    pointed = frame;
    say(frame ?? at);
  };
  box.addEventListener('mouseover', (event) => point(frame_of(event)));
  box.addEventListener('mouseleave', () => point(null));
  for (const g of Array.from(kinds.values()).flat()) {
    g.addEventListener('click', () => {
      [field.value, marked] = ['', marked === g.dataset.kind ? '' : g.dataset.kind];
      find();
    });
  }
  field.addEventListener('input', () => {
    marked = '';
    find();
  });
  one('button').addEventListener('click', reset);
  if (!alone) root.setAttribute('tabindex', 0);
  (alone ? window : root).addEventListener('keydown', keys);
  window.addEventListener('resize', draw);
  // In a page a scroll bar may come, or a column become narrower.
  new ResizeObserver(() => {
    if (Math.abs(root.getBoundingClientRect().width - 2 * margin - width) > 1) draw();
  }).observe(root);
  document.addEventListener('scroll', follow, { passive: true, capture: true });
  root.classList.add('live');
  root.setAttribute('width', '100%');
  root.removeAttribute('viewBox');
  draw();
})();
