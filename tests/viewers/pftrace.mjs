// What Perfetto's trace processor makes of a trace, as JSON:
//
//   pftrace.mjs TRACE VIEWERS
import fs from 'node:fs';
import path from 'node:path';
import { TraceProcessor } from './trace_processor.mjs';

const [trace, viewers] = process.argv.slice(2);
const perfetto = path.join(viewers, 'perfetto');
const engine = fs.readdirSync(perfetto).find((name) => /^v\d/.test(name));
const tp = await TraceProcessor.start(path.join(perfetto, engine));
tp.load(trace);
const answer = {
  slices: tp.query(`
    select s.name as name, s.category as cat, s.ts as ts, s.dur as dur, s.depth as depth,
      t.tid as tid, t.name as thread, p.pid as pid, p.name as process
    from slice s join thread_track k on k.id = s.track_id join thread t using (utid)
    join process p using (upid) order by p.pid, t.tid, s.ts, s.depth`),
  args: tp.query(`
    select s.name as slice, a.key as key, a.int_value as number, a.real_value as real, a.string_value as text
    from slice s join args a using (arg_set_id) where a.key like 'debug.x%' order by a.key`),
  counters: tp.query(`
    select t.name as name, t.unit as unit, p.pid as pid, c.ts as ts, c.value as value
    from counter c join process_counter_track t on t.id = c.track_id join process p using (upid)
    order by t.name, c.ts`),
  flows: tp.query(`
    select a.name as begins, b.name as ends
    from flow join slice a on a.id = slice_out join slice b on b.id = slice_in order by a.name`),
  errors: tp.query(`
    select name, value from stats where severity in ('error', 'data_loss') and value > 0`),
};
process.stdout.write(`${JSON.stringify(answer)}\n`, () => process.exit(0));
