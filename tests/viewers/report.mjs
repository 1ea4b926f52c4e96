// Opens the page of a report from the disk, uses it as a reader would, and prints, as
// JSON, what it did:
//
//   report.mjs PAGE OUT CHROMIUM
//
// PAGE is the page, OUT a folder for pictures.
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { Browser } from './browser.mjs';

const [page, out, chromium] = process.argv.slice(2);

/** The texts of a column of the table of kernels, of the rows that are shown. */
const column = (index) => `Array.from(document.querySelectorAll('#kernels tbody tr'))
  .filter((row) => !row.hidden).map((row) => row.cells[${index}].textContent)`;
const heads = `Array.from(document.querySelectorAll('#kernels th')).map((head) => head.textContent)`;
const click = (name) => `Array.from(document.querySelectorAll('#kernels th button'))
  .find((button) => button.textContent === '${name}').click()`;
const marks = `Array.from(document.querySelectorAll('#charts svg text')).map((text) => text.textContent).join()`;

async function drag(browser, from, to) {
  const box = await browser.value(`(() => {
    const plot = document.querySelector('#charts figure > svg');
    plot.scrollIntoView({ block: 'center' });
    const { x, y, width, height } = plot.getBoundingClientRect();
    return { x, y, width, height };
  })()`);
  const mouse = (type, part) => browser.send('Input.dispatchMouseEvent', {
    type, x: box.x + part * box.width, y: box.y + box.height / 2, button: 'left', clickCount: 1,
    buttons: type === 'mouseReleased' ? 0 : 1,
  });
  await mouse('mouseMoved', from);
  await mouse('mousePressed', from);
  await mouse('mouseMoved', (from + to) / 2);
  const tip = await browser.value(`document.querySelector('.tip:not([hidden])')?.textContent`);
  await mouse('mouseMoved', to);
  await mouse('mouseReleased', to);
  return tip;
}

/** Size of the page and its window, with what stands out of the page at the side. */
async function fits(browser, width) {
  await browser.send('Emulation.setDeviceMetricsOverride',
    { width, height: 900, deviceScaleFactor: 1, mobile: width < 600 });
  return browser.value(`document.documentElement.scrollWidth <= ${width}`);
}

const browser = await Browser.start(chromium, path.join(out, 'browser'));
try {
  const said = [];
  await browser.open(pathToFileURL(page).href, `document.readyState === 'complete'`, 60);
  const answer = { title: await browser.value('document.title'), heads: await browser.value(heads) };
  answer.wide = await fits(browser, 1400);
  await browser.picture(path.join(out, 'report.png'));
  answer.plots = await browser.value(`Array.from(document.querySelectorAll('#charts figure'), (figure) => ({
    name: figure.querySelector('figcaption bdi').textContent,
    lines: figure.querySelectorAll('path.mid').length,
    label: figure.querySelector('svg').getAttribute('aria-label'),
  }))`);
  answer.names = await browser.value(column(1));
  answer.as_written = await browser.value(column(3));
  await browser.value(click('Total ms'));
  answer.falling = await browser.value(column(3));
  await browser.value(click('Total ms'));
  answer.rising = await browser.value(column(3));
  await browser.value(click('Kernel'));
  answer.by_name = await browser.value(column(1));
  await browser.value(`{ const field = document.querySelector('.filter input'); field.value = 'RELU';
    field.dispatchEvent(new Event('input')); }`);
  answer.filtered = await browser.value(column(1));
  const before = await browser.value(marks);
  answer.tip = await drag(browser, 0.3, 0.6);
  const zoomed = await browser.value(marks);
  await browser.value(`document.getElementById('whole').click()`);
  answer.zoom = { changed: before !== zoomed, back: (await browser.value(marks)) === before };
  await browser.value(`document.getElementById('theme').click()`);
  answer.theme = await browser.value('document.documentElement.dataset.theme');
  answer.narrow = await fits(browser, 390);
  await browser.picture(path.join(out, 'report-narrow.png'));
  // What hostile names would have set, had they run.
  answer.hacked = await browser.value('String(globalThis.hacked)');
  answer.images = await browser.value(`document.querySelectorAll('img, iframe, object, script[src]').length`);
  said.push(...browser.messages);
  answer.messages = said.map(({ kind, text }) => ({ kind, text: text.slice(0, 400) }));
  // A script that is not the page's own is refused by its policy.
  await browser.value(`{ const script = document.createElement('script');
    script.textContent = 'globalThis.hacked = 1'; document.body.append(script); }`);
  answer.refused = await browser.value('String(globalThis.hacked)');
  process.stdout.write(`${JSON.stringify(answer)}\n`);
} finally {
  await browser.close();
}
