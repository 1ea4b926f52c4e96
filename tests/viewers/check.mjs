// Opens a trace in viewers and prints, as JSON, what they made of it:
//
//   check.mjs TRACE VIEWERS OUT [CHROMIUM]
//
// TRACE is the trace, VIEWERS the folder that fetch.sh has filled, OUT a folder for
// pictures. Without CHROMIUM only Perfetto's trace processor is asked.
import fs from 'node:fs';
import path from 'node:path';
import { Browser, serve } from './browser.mjs';
import { TraceProcessor } from './trace_processor.mjs';

const [trace, viewers, out, chromium] = process.argv.slice(2);
const perfetto = path.join(viewers, 'perfetto');
const engine = fs.readdirSync(perfetto).find((name) => /^v\d/.test(name));

async function processor() {
  const tp = await TraceProcessor.start(path.join(perfetto, engine));
  tp.load(trace);
  return {
    slices: tp.query('select category, count(*) as n from slice group by category order by category'),
    flows: tp.query(`
      select a.name as launch, b.name as kernel, b.category as category,
        extract_arg(a.arg_set_id, 'args.correlation') as begins,
        extract_arg(b.arg_set_id, 'args.correlation') as ends, b.ts - a.ts as gap
      from flow join slice a on a.id = slice_out join slice b on b.id = slice_in`),
    counters: tp.query(`
      select t.name as name, p.name as process, count(*) as n, min(value) as least, max(value) as most
      from counter c join process_counter_track t on t.id = c.track_id join process p using (upid)
      group by t.id order by t.name`),
    devices: tp.query(`
      select p.name as process, t.name as thread, count(*) as n, sum(s.dur) as ns
      from slice s join thread_track k on k.id = s.track_id join thread t using (utid)
      join process p using (upid)
      where s.category in ('prepare', 'kernel', 'gpu_memcpy', 'estimated') and t.tid between 1200000000 and 1300000000
      group by p.name, t.name order by p.name, t.name`),
    // What it lost or did not understand.
    errors: tp.query(`
      select name, value from stats
      where severity in ('error', 'data_loss') and value > 0`),
  };
}

/** What a page says that is no mere information. */
const complaints = (messages) =>
  messages
    .filter(({ kind }) => ['warning', 'error', 'assert', 'exception', 'dialog'].includes(kind))
    // Of Perfetto's own: it looks for its development server on machines like this one.
    .filter(({ text }) => !text.startsWith('LiveReload'))
    .map(({ kind, text }) => ({ kind, text: text.slice(0, 400) }));

async function pages() {
  const name = path.basename(trace);
  const folders = new Map([
    ['trace', path.dirname(path.resolve(trace))],
    ['perfetto', perfetto],
    ['speedscope', path.join(viewers, 'speedscope')],
  ]);
  const server = await serve(folders);
  const browser = await Browser.start(chromium, path.join(out, 'browser'));
  const at = `http://127.0.0.1:${server.port}`;
  try {
    const url = encodeURIComponent(`${at}/trace/${name}`);
    const shown = `document.body?.innerText.includes('Nothing selected')`;
    const speedscope = await browser.open(`${at}/speedscope/index.html#profileURL=${url}`,
      `document.body?.innerText.includes('Left Heavy') && document.title !== 'speedscope'`, 60);
    await browser.picture(path.join(out, 'speedscope.png'));
    const said = { messages: complaints(speedscope), title: await browser.value('document.title') };
    const ui = await browser.open(`${at}/perfetto/index.html#!/?url=${url}`, shown, 90);
    await browser.picture(path.join(out, 'perfetto.png'));
    const text = await browser.value('document.body.innerText');
    return { speedscope: said, perfetto_ui: { messages: complaints(ui), text: text.slice(0, 4000) } };
  } finally {
    await browser.close();
    server.close();
  }
}

const answer = { processor: await processor() };
if (chromium) Object.assign(answer, await pages());
// The engine's code keeps the process alive otherwise.
process.stdout.write(`${JSON.stringify(answer)}\n`, () => process.exit(0));
