// Opens flame graphs from the disk in a window of 1400 x 900, as a reader would, uses
// them, and prints, as JSON, what was seen:
//
//   flame.mjs OUT CHROMIUM FILE WORD [FILE WORD]...
//
// OUT is a folder for pictures, taken if FLAME_PICTURES is set, WORD what is searched for in the FILE before it.
import fs from 'node:fs';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { Browser } from './browser.mjs';

const [out, chromium, ...words] = process.argv.slice(2);
const SCREEN = { width: 1400, height: 900, deviceScaleFactor: 1, mobile: false };

const READY = `document.readyState === 'complete'`;
/** Boxes of what has to be in sight; of frames, of those that are at least 10 % wide. */
const SEEN = `(() => {
  const box = (e) => {
    const { left, top, right, bottom } = e.getBoundingClientRect();
    const { display } = getComputedStyle(e);
    return { left, top, right, bottom, display, text: e.textContent };
  };
  const all = (query) => Array.from(document.querySelectorAll(query), box);
  const frames = Array.from(document.querySelectorAll('.frames g'))
    .filter((g) => g.style.display !== 'none');
  const rects = frames.map((g) => {
    const { left, top, right, bottom } = g.querySelector('rect').getBoundingClientRect();
    return { left, top, right, bottom, name: g.querySelector('title').textContent,
      label: g.querySelector('text')?.textContent ?? '', matched: g.classList.contains('match'),
      fill: getComputedStyle(g.querySelector('rect')).fill };
  });
  return {
    root: rects[0], frames: rects, title: all('.title')[0], subtitle: all('.line')[0],
    legend: all('.legend g'), search: all('input')[0], reset: all('button')[0],
    share: all('.matched')[0], details: all('.details')[0],
    focus: document.activeElement?.tagName.toLowerCase() ?? '',
    width: document.documentElement.scrollWidth, scroll: window.scrollY,
    back: getComputedStyle(document.querySelector('.back')).fill,
    ink: getComputedStyle(document.querySelector('.title')).fill,
    height: document.documentElement.getBoundingClientRect().height,
  };
})()`;

async function press(browser, key, modifiers = 0) {
  const text = key.length === 1 && !modifiers ? key : undefined;
  const event = { key, modifiers, text, windowsVirtualKeyCode: key === 'Enter' ? 13 : undefined };
  await browser.send('Input.dispatchKeyEvent', { type: 'keyDown', ...event });
  await browser.send('Input.dispatchKeyEvent', { type: 'keyUp', ...event });
}

async function mouse(browser, { left, top, right, bottom }, press) {
  const at = { x: (left + right) / 2, y: (top + bottom) / 2, button: 'left', clickCount: 1 };
  await browser.send('Input.dispatchMouseEvent', { ...at, type: 'mouseMoved', button: 'none' });
  if (!press) return;
  await browser.send('Input.dispatchMouseEvent', { ...at, type: 'mousePressed' });
  await browser.send('Input.dispatchMouseEvent', { ...at, type: 'mouseReleased' });
}

const dark = (browser, value) => browser.send('Emulation.setEmulatedMedia',
  { features: [{ name: 'prefers-color-scheme', value }] });

/** A picture takes its time: only for those who want to look. */
async function picture(browser, file) {
  if (process.env.FLAME_PICTURES) await browser.picture(file);
}

async function use(browser, file, word) {
  const seen = () => browser.value(SEEN);
  await browser.send('Emulation.setDeviceMetricsOverride', SCREEN);
  await dark(browser, 'light');
  const name = path.join(out, path.basename(file, '.svg'));
  await browser.open(pathToFileURL(file).href, READY, 60);
  const steps = { first: await seen() };
  await picture(browser, `${name}.png`);
  // A frame that is neither the root nor as wide as it is zoomed into.
  const { root, frames } = steps.first;
  const wide = (frame) => frame.right - frame.left;
  const part = frames.filter((f) => wide(f) < 0.9 * wide(root) && f.bottom < SCREEN.height)
    .reduce((most, f) => (wide(f) > wide(most) ? f : most), { left: 0, right: 0 });
  if (part.name) {
    await mouse(browser, part, false);
    steps.pointed = { name: part.name, details: (await seen()).details.text };
    await mouse(browser, part, true);
    steps.zoomed = { name: part.name, ...await seen() };
  }
  await press(browser, 'f', 2);
  for (const letter of word) await press(browser, letter);
  steps.searched_zoomed = await seen();
  await mouse(browser, steps.searched_zoomed.reset, true);
  steps.reset = await seen();
  await press(browser, '/');
  for (const letter of word) await press(browser, letter);
  steps.searched = await seen();
  await picture(browser, `${name}-search.png`);
  // Down to the end: what has to be in sight still is.
  await browser.value('window.scrollTo(0, 1e6)');
  await new Promise((resolve) => setTimeout(resolve, 100));
  steps.scrolled = await seen();
  await press(browser, 'Escape');
  await press(browser, 'Escape');
  await browser.value('window.scrollTo(0, 0)');
  await press(browser, 'ArrowDown');
  await press(browser, 'ArrowDown');
  steps.walked = (await seen()).details.text;
  await mouse(browser, steps.reset.legend[0], true);
  steps.kind = await seen();
  await mouse(browser, steps.reset.reset, true);
  await dark(browser, 'dark');
  steps.dark = await seen();
  await picture(browser, `${name}-dark.png`);
  for (const step of Object.values(steps)) {
    if (!step.frames) continue;
    step.matches = step.frames.filter((frame) => frame.matched);
    step.all = step.frames.length;
    step.frames = step.frames.filter((frame) => wide(frame) >= 0.1 * SCREEN.width);
  }
  steps.messages = browser.messages.map(({ kind, text }) => ({ kind, text: text.slice(0, 400) }));
  return steps;
}

/** In a page of its own, as text of that page. */
async function inline(browser, file) {
  const page = path.join(out, 'page.html');
  const svg = fs.readFileSync(file, 'utf8').replace(/^<\?xml.*\?>\n/, '');
  fs.writeFileSync(page, `<!DOCTYPE html><title>page</title><p>before</p>${svg}${svg}<p>after</p>`);
  await browser.send('Emulation.setDeviceMetricsOverride', SCREEN);
  await browser.open(pathToFileURL(page).href, READY, 60);
  const live = await browser.value(`document.querySelectorAll('svg.live').length`);
  const fields = await browser.value(`Array.from(document.querySelectorAll('svg input'), (field, i) => {
    field.value = i ? '' : '.';
    field.dispatchEvent(new Event('input'));
    return field.closest('.flame').querySelectorAll('.match').length > 0;
  })`);
  const wide = await browser.value('document.documentElement.scrollWidth');
  await picture(browser, path.join(out, 'page.png'));
  return { live, fields, wide, messages: browser.messages };
}

const browser = await Browser.start(chromium, path.join(out, 'browser'));
try {
  const answer = { files: {} };
  for (let i = 0; i + 1 < words.length; i += 2) {
    const [file, word] = words.slice(i, i + 2);
    answer.files[path.basename(file)] = await use(browser, file, word);
  }
  answer.inline = await inline(browser, words[0]);
  process.stdout.write(`${JSON.stringify(answer)}\n`);
} finally {
  await browser.close();
}
