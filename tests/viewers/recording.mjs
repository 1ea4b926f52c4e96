// What Perfetto's trace processor makes of a recording, as JSON:
//
//   recording.mjs TRACE VIEWERS
import fs from 'node:fs';
import path from 'node:path';
import { TraceProcessor } from './trace_processor.mjs';

const [trace, viewers] = process.argv.slice(2);
const perfetto = path.join(viewers, 'perfetto');
const engine = fs.readdirSync(perfetto).find((name) => /^v\d/.test(name));
const tp = await TraceProcessor.start(path.join(perfetto, engine));
tp.load(trace);
const frames = new Map(
  tp.query('select id, name from stack_profile_frame').map((row) => [row.id, row.name]),
);
const callsites = new Map(
  tp
    .query('select id, parent_id as parent, frame_id as frame from stack_profile_callsite')
    .map((row) => [row.id, row]),
);

/** The names of a stack's frames, root first. */
function stack(id) {
  const names = [];
  for (let site = callsites.get(id); site; site = callsites.get(site.parent)) {
    names.push(frames.get(site.frame));
  }
  return names.reverse().join(';');
}

const samples = tp.query(`
  select s.ts as ts, s.cpu as cpu, s.cpu_mode as mode, s.callsite_id as site, t.tid as tid,
    p.pid as pid
  from perf_sample s join thread t using (utid) join process p using (upid)`);
const answer = {
  slices: tp.query(`
    select s.name as name, s.category as cat, s.ts as ts, s.dur as dur, t.tid as tid,
      p.pid as pid, p.name as process
    from slice s join thread_track k on k.id = s.track_id join thread t using (utid)
    join process p using (upid)`),
  stacks: tp.query(`
    select s.name as name, s.ts as ts, a.string_value as stack
    from slice s join args a using (arg_set_id) where a.key = 'debug.stack'`),
  samples: samples.map(({ site, ...rest }) => ({ ...rest, stack: stack(site) })),
  flows: tp.query(`
    select a.name as begins, a.ts as begins_at, b.name as ends, b.ts as ends_at
    from flow join slice a on a.id = slice_out join slice b on b.id = slice_in`),
  counters: tp.query(`
    select t.name as name, p.name as process, c.ts as ts, c.value as value
    from counter c join process_counter_track t on t.id = c.track_id
    join process p using (upid)`),
  marks: tp.query(`
    select s.name as name from slice s join track t on t.id = s.track_id
    where t.name = 'aiprof'`),
  errors: tp.query(`
    select name, value from stats where severity in ('error', 'data_loss') and value > 0`),
};
process.stdout.write(`${JSON.stringify(answer)}\n`, () => process.exit(0));
