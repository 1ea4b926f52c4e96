// How much Perfetto's trace processor makes of traces, as JSON: one object for each.
//
//   counts.mjs VIEWERS TRACE...
import fs from 'node:fs';
import path from 'node:path';
import { TraceProcessor } from './trace_processor.mjs';

const [viewers, ...traces] = process.argv.slice(2);
const perfetto = path.join(viewers, 'perfetto');
const engine = fs.readdirSync(perfetto).find((name) => /^v\d/.test(name));

async function counts(trace) {
  const tp = await TraceProcessor.start(path.join(perfetto, engine));
  tp.load(trace);
  const one = (sql) => tp.query(sql)[0];
  return {
    slices: one(`
      select count(*) as n, sum(dur) as ns, count(distinct coalesce(name, '')) as names
      from slice where track_id in (select id from thread_track)`),
    others: one(`
      select count(*) as n, sum(dur) as ns, count(distinct coalesce(name, '')) as names
      from slice where track_id not in (select id from thread_track)`),
    threads: one(`
      select count(distinct track_id) as n
      from slice where track_id in (select id from thread_track)`),
    flows: one(`
      select count(*) as n, sum(b.ts - a.ts) as ns
      from flow join slice a on a.id = slice_out join slice b on b.id = slice_in`),
    counters: one('select count(*) as n, sum(value) as sum, count(distinct track_id) as tracks from counter'),
    // Perfetto names the arguments of both formats after where they stand: `args.` and `debug.`.
    args: one(`
      select count(*) as n, sum(coalesce(int_value, 0)) as sum
      from args where arg_set_id in (select arg_set_id from slice) and
        (key glob 'args.*' or key glob 'debug.*')`),
    errors: tp.query(`
      select name, value from stats where severity in ('error', 'data_loss') and value > 0`),
  };
}

const all = [];
for (const trace of traces) all.push(await counts(trace));
process.stdout.write(`${JSON.stringify(all)}\n`, () => process.exit(0));
