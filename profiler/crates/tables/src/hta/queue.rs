//! How much work stands in each stream's queue: launched, and not begun.
//!
//! As HTA has it the length grows by one when a call begins and shrinks when its work does,
//! and statistics are of the lengths after each change. HTA asks for a kernel a call and
//! seven calls by name; here the launch of a graph adds all its work, and any call counts.

use super::super::{Cell, Request, Table, TableEntry};
use super::describe::{Spread, quantile};
use crate::id_cell;
use aiprof_model::timeline::{Time, Timeline};
use aiprof_trace::analyze::identity::file_of;
use aiprof_trace::device_time::launch_of;
use aiprof_trace::work::{RankWork, RankedWork};
use std::collections::BTreeMap;

/// `--table queue-length`.
pub(crate) const ENTRY: TableEntry = TableEntry {
    name: "queue-length",
    about: "operations launched but not begun, by stream; time blocked on a full queue",
    title: "Queues of streams",
    columns: "rank device stream changes mean::2 deviation::2 min::2 p25::2 median::2 p75::2 \
              max::2 over_time::2 blocked:us blocked_share:percent",
    make,
};

/// At this length a launch waits for room: as HTA has it for CUDA, measured by users.
const FULL: i64 = 1024;

/// The queue of a stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct QueueLength {
    /// Lengths after each change, in order of their size.
    lengths: Vec<f64>,
    /// Time with a full queue, microseconds.
    pub blocked_us: f64,
    /// Mean over time, from the first change to the last in each file.
    pub over_time: f64,
}

/// The queues of a rank's streams.
pub(crate) fn of_rank(timeline: &Timeline, rank: &RankWork) -> Vec<QueueLength> {
    let streams = rank.by_stream().into_iter();
    streams.map(|work| of_stream(timeline, &work)).collect()
}

fn of_stream(timeline: &Timeline, work: &[&RankedWork]) -> QueueLength {
    let mut changes: Vec<(Time, i64)> = Vec::new();
    let mut files: BTreeMap<u16, (Time, Time)> = BTreeMap::new();
    for work in work {
        if let Some(call) = launch_of(timeline, work) {
            changes.extend([(call.start, 1), (work.start, -1)]);
            let (from, to) = (call.start.min(work.start), call.start.max(work.start));
            let file = files.entry(work.file).or_insert((from, to));
            *file = (file.0.min(from), file.1.max(to));
        }
    }
    changes.sort_by_key(|(time, by)| (*time, -by));
    let mut queue = QueueLength::default();
    let (mut length, mut area) = (0i64, 0.0);
    let mut last: Option<Time> = None;
    for (time, by) in &changes {
        let took = last.map_or(0.0, |last| (*time - last).micros());
        area += took * length as f64;
        if length >= FULL {
            queue.blocked_us += took;
        }
        last = Some(*time);
        length += by;
        queue.lengths.push(length as f64);
    }
    let files = files.into_values().map(|(from, to)| (to - from).micros());
    let all: f64 = files.sum();
    if all > 0.0 {
        queue.over_time = area / all;
    }
    queue.lengths.sort_by(f64::total_cmp);
    queue
}

/// The time that a rank's files cover, microseconds.
fn covered_us(timeline: &Timeline, rank: &RankWork) -> f64 {
    let mut files: BTreeMap<u32, (Time, Time)> = BTreeMap::new();
    let work = rank.work.iter().map(|work| &work.event);
    let all = rank.host.iter().chain(&rank.syncs).chain(work);
    for event in all.filter_map(|at| timeline.events.get(*at as usize)) {
        let (from, to) = (event.start, event.end());
        let file = files.entry(file_of(timeline, event)).or_insert((from, to));
        *file = (file.0.min(from), file.1.max(to));
    }
    let files = files.into_values().map(|(from, to)| (to - from).micros());
    files.sum()
}

fn make(request: &Request<'_>) -> Vec<Table> {
    let timeline = request.timeline;
    let mut rows = Vec::new();
    for rank in &request.index().ranks {
        let covered = covered_us(timeline, rank);
        for (queue, stream) in of_rank(timeline, rank).iter().zip(&rank.streams) {
            let mut spread = Spread::default();
            queue.lengths.iter().for_each(|length| spread.add(*length));
            if spread.count == 0 {
                continue;
            }
            let quantile = |part| quantile(&queue.lengths, part);
            rows.push(vec![
                rank.rank.into(),
                id_cell(timeline, stream.device.number),
                id_cell(timeline, stream.number),
                spread.count.into(),
                spread.mean().into(),
                spread.deviation().into(),
                spread.min.into(),
                quantile(0.25).into(),
                quantile(0.5).into(),
                quantile(0.75).into(),
                spread.max.into(),
                queue.over_time.into(),
                queue.blocked_us.into(),
                Cell::Number(100.0 * queue.blocked_us / covered.max(f64::MIN_POSITIVE)),
            ]);
        }
    }
    vec![ENTRY.noted(
        rows,
        vec![format!(
            "over_time is the mean over time; the others describe the length after each change; \
             blocked is the time with {FULL} or more operations"
        )],
    )]
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::timeline::Dialect;
    use aiprof_testkit::scene::{self, Slice};
    use aiprof_trace::work::WorkIndex;

    /// 1,500 launches within 1.5 us, each kernel a microsecond.
    #[test]
    fn a_full_queue_is_counted() {
        let mut timeline = scene::empty(Dialect::Torch);
        for at in 0..1500u32 {
            let correlation = u64::from(at) + 1;
            for (cat, ts, dur) in [
                ("cuda_runtime", 0.001 * f64::from(at), 0.0005),
                ("kernel", 10.0 + f64::from(at), 1.0),
            ] {
                let slice = Slice {
                    name: "k",
                    cat,
                    ts,
                    dur,
                    correlation,
                    ..Slice::default()
                };
                scene::add(&mut timeline, &slice);
            }
        }
        let index = WorkIndex::new(&timeline);
        let [queue] = &of_rank(&timeline, &index.ranks[0])[..] else {
            panic!()
        };
        assert_eq!((queue.lengths.len(), queue.lengths[2999]), (3000, 1500.0));
        // From the 1,024th call, at 1.023, to the begin of the 477th kernel, at 486.
        assert!(
            (queue.blocked_us - 484.977).abs() < 1e-6,
            "{}",
            queue.blocked_us
        );
    }
}
