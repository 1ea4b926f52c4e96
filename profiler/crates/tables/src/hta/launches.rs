//! How long launches take: the call, and from the call's end to the begin of its work.
//!
//! HTA looks at four calls by name; here every call of which work is known counts.

use super::super::{Cell, Request, Table, TableEntry};
use super::describe::{Spread, quantile};
use aiprof_model::timeline::Timeline;
use aiprof_trace::device_time::launch_of;
use aiprof_trace::work::{RankWork, name_of};

/// `--table launch-stats`.
pub(crate) const ENTRY: TableEntry = TableEntry {
    name: "launch-stats",
    about: "launches by rank and call: delay, short kernels, outliers",
    title: "Launches by call",
    columns: "rank call launches call_mean:us delay_mean:us delay_median:us delay_p99:us \
              delay_max:us short_kernels long_calls long_delays",
    make,
};

/// `--table launches`.
pub(crate) const LAUNCHES: TableEntry = TableEntry {
    name: "launches",
    about: "each launch: its call, its operation and the delay between them",
    title: "Launches",
    columns: "rank correlation call name call_time:us device_time:us delay:us",
    make: make_each,
};

/// A call that takes longer is an outlier; what runs shorter than its call is a short
/// kernel only below this. HTA's `runtime_cutoff`, microseconds.
const LONG_CALL_US: f64 = 50.0;
/// A delay that is longer is an outlier: HTA's `launch_delay_cutoff`, microseconds.
const LONG_DELAY_US: f64 = 100.0;

/// A launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LaunchTimes {
    /// The event of the call.
    pub call: u32,
    /// The event of the work.
    pub event: u32,
    /// What both are linked by.
    pub correlation: u64,
    /// Length of the call, microseconds.
    pub call_us: f64,
    /// Length of the work, microseconds.
    pub work_us: f64,
    /// From the call's end to the work's begin, microseconds; 0 if it began before.
    pub delay_us: f64,
}

impl LaunchTimes {
    /// Its work takes less time than the call.
    fn is_short(&self) -> bool {
        self.call_us <= LONG_CALL_US && self.work_us < self.call_us
    }
}

/// The launches of a rank, by the begin of their work. Work that begins before its launch has a
/// wrong time: it is left out.
pub(crate) fn of_rank(timeline: &Timeline, rank: &RankWork) -> Vec<LaunchTimes> {
    let launches = rank.work.iter().filter_map(|work| {
        let call = launch_of(timeline, work)?;
        Some(LaunchTimes {
            call: work.call,
            event: work.event,
            correlation: call.correlation,
            call_us: call.dur(),
            work_us: work.us(),
            delay_us: (work.start - call.end()).micros().max(0.0),
        })
    });
    launches.collect()
}

fn make_each(request: &Request<'_>) -> Vec<Table> {
    let timeline = request.timeline;
    let mut rows = Vec::new();
    let name = |at: u32| {
        let event = timeline.events.get(at as usize);
        event.map_or("", |event| name_of(timeline, event))
    };
    for rank in &request.index().ranks {
        rows.extend(of_rank(timeline, rank).iter().map(|one| {
            vec![
                rank.rank.into(),
                one.correlation.into(),
                name(one.call).into(),
                name(one.event).into(),
                one.call_us.into(),
                one.work_us.into(),
                one.delay_us.into(),
            ]
        }));
    }
    vec![LAUNCHES.table(rows)]
}

/// Launches by one call.
#[derive(Default)]
struct CallSum {
    call: Spread,
    delay: Spread,
    delays: Vec<f64>,
    short: u64,
    long_calls: u64,
    long_delays: u64,
}

impl CallSum {
    fn add(&mut self, launch: &LaunchTimes) {
        self.call.add(launch.call_us);
        self.delay.add(launch.delay_us);
        self.delays.push(launch.delay_us);
        self.short += u64::from(launch.is_short());
        self.long_calls += u64::from(launch.call_us > LONG_CALL_US);
        self.long_delays += u64::from(launch.delay_us > LONG_DELAY_US);
    }

    fn row(mut self, rank: u32, call: &str) -> Vec<Cell> {
        self.delays.sort_by(f64::total_cmp);
        let quantile = |part| quantile(&self.delays, part);
        vec![
            rank.into(),
            call.into(),
            self.delay.count.into(),
            self.call.mean().into(),
            self.delay.mean().into(),
            quantile(0.5).into(),
            quantile(0.99).into(),
            self.delay.max.into(),
            self.short.into(),
            self.long_calls.into(),
            self.long_delays.into(),
        ]
    }
}

fn make(request: &Request<'_>) -> Vec<Table> {
    let timeline = request.timeline;
    let mut rows = Vec::new();
    for rank in &request.index().ranks {
        let mut sums: std::collections::BTreeMap<&str, CallSum> = Default::default();
        for launch in of_rank(timeline, rank) {
            let call = timeline.events.get(launch.call as usize);
            let name = call.map_or("", |call| name_of(timeline, call));
            sums.entry(name).or_default().add(&launch);
        }
        let sums = sums.into_iter();
        rows.extend(sums.map(|(name, sum)| sum.row(rank.rank, name)));
    }
    vec![ENTRY.noted(
        rows,
        vec![format!(
            "short kernels: shorter than their call, which takes at most {LONG_CALL_US} us; long \
             calls: over {LONG_CALL_US} us; long delays: over {LONG_DELAY_US} us"
        )],
    )]
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::timeline::Dialect;
    use aiprof_testkit::scene::{self, Slice};
    use aiprof_trace::work::WorkIndex;

    #[test]
    fn delays_are_from_the_call_s_end() {
        let mut timeline = scene::empty(Dialect::Torch);
        for (cat, ts, dur, correlation) in [
            ("cuda_runtime", 0.0, 10.0, 1),
            ("kernel", 110.5, 5.0, 1),
            // Its work begins within the call.
            ("hip_runtime", 20.0, 60.0, 2),
            ("kernel", 40.0, 5.0, 2),
            // No call.
            ("kernel", 300.0, 5.0, 3),
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
        let index = WorkIndex::new(&timeline);
        let found = of_rank(&timeline, &index.ranks[0]);
        let seen: Vec<_> = found.iter().map(|l| (l.delay_us, l.is_short())).collect();
        assert_eq!(seen, [(0.0, false), (100.5, true)]);
        // 90 us before its call, which cannot be.
        for (cat, ts, correlation) in [("cuda_runtime", 400.0, 4), ("kernel", 310.0, 4)] {
            let slice = Slice {
                name: "k",
                cat,
                ts,
                dur: 5.0,
                correlation,
                ..Slice::default()
            };
            scene::add(&mut timeline, &slice);
        }
        let index = WorkIndex::new(&timeline);
        assert_eq!(of_rank(&timeline, &index.ranks[0]).len(), 2);
    }
}
