//! What the streams of devices wait for between two pieces of their work.
//!
//! The causes of HTA: the host had not launched the next one yet (`host_wait`); the gap is what it
//! takes to begin a kernel behind another (`kernel_wait`); something else. In the last case the
//! time in which a collective ran on another stream of the rank is `collective_wait` here; the rest
//! is `other`. HTA's `other` is the two together. Work that overlaps the one before it makes HTA's
//! gap negative; here there is none.

use super::super::{Request, Table, TableEntry};
use crate::id_cell;
use aiprof_model::timeline::{Length, Time, Timeline};
use aiprof_trace::work::{RankWork, RankedWork, WorkClass, WorkIndex};

/// `--table idle`.
pub(crate) const ENTRY: TableEntry = TableEntry {
    name: "idle",
    about: "what each stream waits for: host, previous kernel, collective, other",
    title: "Idle time of streams by cause",
    columns: "rank device stream cause gaps idle:us longest:us share:percent",
    make,
};

/// Gaps below this are what it takes to begin a kernel behind another: HTA's default,
/// 30 us in the file's unit.
const KERNEL_WAIT: Length = Length(30_000_000);

/// Why a stream is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum IdleCause {
    /// The next work was launched after the last had ended.
    HostWait,
    /// The next work was there; beginning it took this long.
    KernelWait,
    /// The next work was there, and a collective ran on another stream of the rank.
    CollectiveWait,
    /// The next work was there; something else held it back.
    Other,
}

impl IdleCause {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [
        Self::HostWait,
        Self::KernelWait,
        Self::CollectiveWait,
        Self::Other,
    ];

    /// The word for it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::HostWait => "host_wait",
            Self::KernelWait => "kernel_wait",
            Self::CollectiveWait => "collective_wait",
            Self::Other => "other",
        }
    }
}

/// Time that a stream waits for one thing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct IdleSum {
    /// Gaps, or parts of gaps, with this cause.
    pub gaps: u64,
    /// Their time, microseconds.
    pub us: f64,
    /// The longest, microseconds.
    pub longest_us: f64,
}

/// The waits of a stream, by cause as [`IdleCause::ALL`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StreamIdle {
    /// The stream's number in its rank.
    pub stream: u32,
    /// Sums by cause.
    pub causes: [IdleSum; 4],
}

impl StreamIdle {
    /// All waits, microseconds.
    pub(crate) fn total_us(&self) -> f64 {
        self.causes.iter().map(|sum| sum.us).sum()
    }

    /// The waits with one cause.
    pub(crate) fn of(&self, cause: IdleCause) -> IdleSum {
        self.causes.get(cause as usize).copied().unwrap_or_default()
    }

    fn add(&mut self, cause: IdleCause, length: Length) {
        if length <= Length::ZERO {
            return;
        }
        if let Some(sum) = self.causes.get_mut(cause as usize) {
            sum.gaps += 1;
            sum.us += length.micros();
            sum.longest_us = sum.longest_us.max(length.micros());
        }
    }
}

/// The waits of a rank's streams. Where no call is known the host is not blamed.
pub(crate) fn of_rank(timeline: &Timeline, rank: &RankWork) -> Vec<StreamIdle> {
    let collectives = Busy::new(
        rank.work
            .iter()
            .filter(|w| w.class == WorkClass::Communication),
    );
    let streams = rank.by_stream().into_iter().zip(0..);
    let idle = streams.map(|(work, stream)| {
        let mut found = StreamIdle {
            stream,
            causes: [IdleSum::default(); 4],
        };
        let mut ended = work.first().map(|first| first.end);
        for next in work.into_iter().skip(1) {
            if let Some(before) = ended {
                gap(timeline, &collectives, before, next, &mut found);
            }
            ended = ended.max(Some(next.end));
        }
        found
    });
    idle.collect()
}

/// The time between a stream's last end and its next work.
fn gap(
    timeline: &Timeline,
    collectives: &Busy,
    before: Time,
    next: &RankedWork,
    found: &mut StreamIdle,
) {
    let length = next.start - before;
    let call = timeline.events.get(next.call as usize);
    if call.is_some_and(|call| call.start > before) {
        found.add(IdleCause::HostWait, length);
    } else if length < KERNEL_WAIT {
        found.add(IdleCause::KernelWait, length);
    } else {
        let waited = collectives.within(before, next.start);
        found.add(IdleCause::CollectiveWait, waited);
        found.add(IdleCause::Other, Length(length.0 - waited.0));
    }
}

/// Stretches of time in which something runs, and what of them was before each.
struct Busy {
    /// Begin, end, and the sum of those before.
    spans: Vec<(Time, Time, i64)>,
}

impl Busy {
    /// From work by begin.
    fn new<'w>(work: impl Iterator<Item = &'w RankedWork>) -> Self {
        let mut spans: Vec<(Time, Time, i64)> = Vec::new();
        let mut sum = 0i64;
        for work in work {
            match spans.last_mut() {
                Some((_, end, _)) if work.start <= *end => *end = (*end).max(work.end),
                last => {
                    if let Some((start, end, _)) = last {
                        sum = sum.saturating_add((*end - *start).0);
                    }
                    spans.push((work.start, work.end, sum));
                }
            }
        }
        Self { spans }
    }

    /// Busy time up to a moment, picoseconds.
    fn until(&self, moment: Time) -> i64 {
        let after = self.spans.partition_point(|(start, ..)| *start <= moment);
        let last = after.checked_sub(1).and_then(|at| self.spans.get(at));
        last.map_or(0, |(start, end, sum)| {
            sum.saturating_add((moment.min(*end) - *start).0)
        })
    }

    fn within(&self, from: Time, to: Time) -> Length {
        Length(self.until(to).saturating_sub(self.until(from)))
    }
}

fn make(request: &Request<'_>) -> Vec<Table> {
    let timeline = request.timeline;
    let mut rows = Vec::new();
    let index = request.index();
    for rank in &index.ranks {
        for idle in of_rank(timeline, rank) {
            let Some(stream) = rank.streams.get(idle.stream as usize) else {
                continue;
            };
            let all = idle.total_us();
            for cause in IdleCause::ALL {
                let sum = idle.of(cause);
                rows.push(vec![
                    rank.rank.into(),
                    id_cell(timeline, stream.device),
                    id_cell(timeline, stream.stream),
                    cause.word().into(),
                    sum.gaps.into(),
                    sum.us.into(),
                    sum.longest_us.into(),
                    (all > 0.0).then(|| 100.0 * sum.us / all).into(),
                ]);
            }
        }
    }
    vec![ENTRY.noted(rows, notes(timeline, index))]
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

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::timeline::Dialect;
    use aiprof_testkit::scene::{self, Slice};

    /// One stream: 0-10, 12-20 (queued), 120-130 (launched at 50), 200-210 (queued, of the
    /// gap 150-190 is a collective), 205-215 (overlaps).
    #[test]
    fn gaps_have_their_cause() {
        let mut timeline = scene::empty(Dialect::Torch);
        let mut add = |name, cat, ts, end, correlation, stream: &str| {
            let args = format!("\"stream\":{stream}");
            let slice = Slice {
                name,
                cat,
                ts,
                dur: end - ts,
                correlation,
                args: if stream.is_empty() { "" } else { &args },
                ..Slice::default()
            };
            scene::add(&mut timeline, &slice);
        };
        for (correlation, ts) in [(1, -9.0), (2, -7.0), (3, 50.0), (4, 55.0), (5, 56.0)] {
            add(
                "cudaLaunchKernel",
                "cuda_runtime",
                ts,
                ts + 1.0,
                correlation,
                "",
            );
        }
        for (correlation, ts, end) in [
            (1, 0.0, 10.0),
            (2, 12.0, 20.0),
            (3, 120.0, 130.0),
            (4, 200.0, 210.0),
            (5, 205.0, 215.0),
        ] {
            add("k", "kernel", ts, end, correlation, "7");
        }
        add("ncclKernel_Sum", "kernel", 150.0, 190.0, 9, "8");
        let index = WorkIndex::new(&timeline);
        let [rank] = &index.ranks[..] else { panic!() };
        let idle = of_rank(&timeline, rank);
        let causes = idle[0].causes.map(|sum| (sum.gaps, sum.us));
        assert_eq!(causes, [(1, 100.0), (1, 2.0), (1, 40.0), (1, 30.0)]);
        assert_eq!(idle[1].total_us(), 0.0);
    }
}
