//! What the streams of devices wait for between two pieces of their work
//! ([`aiprof_trace::device_time::stream_idle`]), and why devices as a whole idle
//! ([`aiprof_trace::device_time::device_idle`]).

use super::super::{Cell, Request, Table, TableEntry};
use crate::id_cell;
use crate::report::ranks_cell;
use aiprof_model::timeline::Timeline;
use aiprof_trace::device_time::{IdleBlame, IdleCause, KERNEL_WAIT, device_idle, stream_idle};
use aiprof_trace::work::WorkIndex;

/// `--table idle`.
pub(crate) const ENTRY: TableEntry = TableEntry {
    name: "idle",
    about: "what each stream waits for: host, previous kernel, collective, other",
    title: "Idle time of streams by cause",
    columns: "rank device stream cause gaps idle:us longest:us share:percent",
    make,
};

fn make(request: &Request<'_>) -> Vec<Table> {
    let timeline = request.timeline;
    let mut rows = Vec::new();
    let index = request.index();
    for rank in &index.ranks {
        for idle in stream_idle(timeline, rank) {
            let Some(stream) = rank.streams.get(idle.stream as usize) else {
                continue;
            };
            let all = idle.total_us();
            for cause in IdleCause::ALL {
                let sum = idle.of(cause);
                rows.push(vec![
                    rank.rank.into(),
                    id_cell(timeline, stream.device.number),
                    id_cell(timeline, stream.number),
                    cause.word().into(),
                    sum.gaps.into(),
                    sum.us.into(),
                    sum.longest_us.into(),
                    (all > 0.0).then(|| 100.0 * sum.us / all).into(),
                ]);
            }
        }
    }
    vec![
        ENTRY.noted(rows, notes(timeline, index)),
        devices(timeline, index),
    ]
}

/// Why devices idle while no stream of theirs has work.
fn devices(timeline: &Timeline, index: &WorkIndex) -> Table {
    let mut rows = Vec::new();
    for idle in device_idle(timeline, index) {
        let ranks = match &idle.ranks[..] {
            [first, others @ ..] => ranks_cell(*first, others),
            [] => Cell::None,
        };
        for (cause, sum) in IdleBlame::ALL.into_iter().zip(idle.causes) {
            if sum.gaps == 0 {
                continue;
            }
            rows.push(vec![
                ranks.clone(),
                id_cell(timeline, idle.device.number),
                cause.word().into(),
                sum.gaps.into(),
                sum.us.into(),
                sum.longest_us.into(),
                (idle.elapsed_us > 0.0)
                    .then(|| 100.0 * sum.us / idle.elapsed_us)
                    .into(),
            ]);
        }
    }
    Table::of(
        "idle-devices",
        "Idle time of devices by cause",
        "rank device cause parts idle:us longest:us share:percent",
        rows,
    )
}

fn notes(timeline: &Timeline, index: &WorkIndex) -> Vec<String> {
    let all = index.ranks.iter().flat_map(|rank| &rank.work);
    let (mut known, mut count) = (0u64, 0u64);
    for work in all {
        count += 1;
        known += u64::from(timeline.events.get(work.call as usize).is_some());
    }
    let mut notes = vec![format!(
        "gaps below {} us count as kernel_wait",
        KERNEL_WAIT.micros()
    )];
    if known < count {
        let text = "have no known launch call; waits before them do not count as host_wait";
        notes.push(format!("{} of {count} operations {text}", count - known));
    }
    notes
}
