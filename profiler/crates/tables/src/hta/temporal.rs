//! How the time of a rank's devices splits: computing, communicating, copying, idle; and
//! what of it goes on at once.
//!
//! The time of a device is from its first work's begin to its last work's end in each file of its
//! rank: what lies between two files was not recorded. HTA's `idle_time`, `compute_time` and `non_compute_time` are the same, but that HTA takes the
//! profiler's rows of waits (`cuda_sync`) for work.

use super::super::{Cell, Request, Table, TableEntry};
use aiprof_model::timeline::Time;
use aiprof_trace::work::{RankWork, WorkClass, WorkIndex};

/// `--table temporal`.
pub(crate) const ENTRY: TableEntry = TableEntry {
    name: "temporal",
    about: "how each rank's device time splits: compute, communication, copy, idle",
    title: "Device time",
    columns: "rank total:us idle:us compute:us non_compute:us communication:us copy:us \
              idle_share:percent compute_share:percent non_compute_share:percent",
    make,
};

/// `--table comm-overlap`.
pub(crate) const COMM_OVERLAP: TableEntry = TableEntry {
    name: "comm-overlap",
    about: "communication that is hidden behind computation, by rank",
    title: "Communication hidden behind computation",
    columns: "rank communication:us overlap:us overlap_share:percent",
    make: make_overlap,
};

/// `--table kernel-types`.
pub(crate) const KERNEL_TYPES: TableEntry = TableEntry {
    name: "kernel-types",
    about: "time of compute, communication and copies, alone and overlapping, by rank",
    title: "Device time by combination of operation types",
    columns: "rank types time:us share:percent",
    make: make_types,
};

/// How the time of a rank's devices splits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TemporalSplit {
    /// The rank.
    pub rank: u32,
    /// From the first begin to the last end in each of its files, microseconds.
    pub total_us: f64,
    /// Time by the classes that go on in it, as bits of [`WorkClass`], microseconds; the
    /// first is idle.
    pub by_classes_us: [f64; 8],
}

impl TemporalSplit {
    /// Nothing runs.
    pub(crate) fn idle_us(&self) -> f64 {
        self.by_classes_us.first().copied().unwrap_or(0.0)
    }

    /// Work of this class runs, whatever else does.
    pub(crate) fn class_us(&self, class: WorkClass) -> f64 {
        self.sum(|classes| classes & bit(class) != 0)
    }

    /// Something runs that does not compute, and nothing that does.
    fn non_compute_us(&self) -> f64 {
        self.sum(|classes| classes != 0 && classes & bit(WorkClass::Compute) == 0)
    }

    /// Communication while something computes.
    fn overlap_us(&self) -> f64 {
        let both = bit(WorkClass::Compute) | bit(WorkClass::Communication);
        self.sum(|classes| classes & both == both)
    }

    /// Share of the communication that is hidden behind computation, percent; `None`:
    /// there is none.
    fn overlap_percent(&self) -> Option<f64> {
        let all = self.class_us(WorkClass::Communication);
        (all > 0.0).then(|| 100.0 * self.overlap_us() / all)
    }

    fn percent(&self, us: f64) -> Option<f64> {
        (self.total_us > 0.0).then(|| 100.0 * us / self.total_us)
    }

    fn sum(&self, counts: impl Fn(usize) -> bool) -> f64 {
        let all = self.by_classes_us.iter().enumerate();
        let counted = all.filter(|(classes, _)| counts(*classes));
        counted.map(|(_, us)| us).sum()
    }
}

fn bit(class: WorkClass) -> usize {
    1 << class as usize
}

/// Splits the time of every rank that has work.
pub(crate) fn run(index: &WorkIndex) -> Vec<TemporalSplit> {
    let with_work = index.ranks.iter().filter(|rank| !rank.work.is_empty());
    with_work.map(of_rank).collect()
}

fn of_rank(rank: &RankWork) -> TemporalSplit {
    let mut changes: Vec<(Time, i8)> = Vec::with_capacity(rank.work.len() * 2);
    for work in rank.work.iter().filter(|work| work.end > work.start) {
        let class = work.class as i8 + 1;
        changes.extend([(work.start, class), (work.end, -class)]);
    }
    changes.sort_unstable_by_key(|(time, _)| *time);
    let recorded = rank.recorded();
    let is_recorded = |from: Time, to: Time| {
        let behind = recorded.partition_point(|(start, _)| *start <= from);
        let around = behind.checked_sub(1).and_then(|at| recorded.get(at));
        around.is_some_and(|(_, end)| *end >= to)
    };
    let mut split = TemporalSplit {
        rank: rank.rank,
        ..TemporalSplit::default()
    };
    let (mut running, mut last) = ([0u64; 3], changes.first().map(|(time, _)| *time));
    for (time, class) in changes {
        let classes = (0..running.len())
            .filter(|at| running.get(*at).is_some_and(|count| *count > 0))
            .fold(0, |classes, at| classes | 1 << at);
        // Begins and ends of files are those of work: no gap is recorded in part.
        let took = last.filter(|last| classes != 0 || is_recorded(*last, time));
        let took = took.map_or(0.0, |last| (time - last).micros());
        split.total_us += took;
        if let Some(sum) = split.by_classes_us.get_mut(classes) {
            *sum += took;
        }
        last = Some(time);
        if let Some(count) = running.get_mut(usize::from(class.unsigned_abs()) - 1) {
            *count = match class > 0 {
                true => *count + 1,
                false => count.saturating_sub(1),
            };
        }
    }
    split
}

fn make(request: &Request<'_>) -> Vec<Table> {
    let splits = run(request.index());
    let rows = splits.iter().map(|split| {
        let [compute, communication, copy] = WorkClass::ALL.map(|class| split.class_us(class));
        vec![
            split.rank.into(),
            split.total_us.into(),
            split.idle_us().into(),
            compute.into(),
            split.non_compute_us().into(),
            communication.into(),
            copy.into(),
            split.percent(split.idle_us()).into(),
            split.percent(compute).into(),
            split.percent(split.non_compute_us()).into(),
        ]
    });
    vec![ENTRY.noted(
        rows,
        vec![
            "total: from the first begin to the last end in each file; idle + compute + non-compute = total; \
             communication and copy can overlap compute"
                .to_owned(),
        ],
    )]
}

fn make_overlap(request: &Request<'_>) -> Vec<Table> {
    let splits = run(request.index());
    let rows = splits.iter().map(|split| {
        vec![
            split.rank.into(),
            split.class_us(WorkClass::Communication).into(),
            split.overlap_us().into(),
            split.overlap_percent().into(),
        ]
    });
    vec![COMM_OVERLAP.table(rows)]
}

fn make_types(request: &Request<'_>) -> Vec<Table> {
    let splits = run(request.index());
    let mut rows = Vec::new();
    for split in &splits {
        let busy: f64 = split.by_classes_us.iter().skip(1).sum();
        for (classes, us) in split.by_classes_us.iter().enumerate().skip(1) {
            if *us > 0.0 {
                rows.push(vec![
                    split.rank.into(),
                    words(classes).into(),
                    (*us).into(),
                    Cell::Number(100.0 * us / busy),
                ]);
            }
        }
    }
    vec![KERNEL_TYPES.table(rows)]
}

/// What runs: `compute + copy`.
fn words(classes: usize) -> String {
    let all = WorkClass::ALL.into_iter();
    let running = all.filter(|class| classes & bit(*class) != 0);
    running.map(WorkClass::word).collect::<Vec<_>>().join(" + ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::timeline::Dialect;
    use aiprof_testkit::scene::{self, Slice};

    /// 0 compute 30, 10 communication 50, 60 copy 70, 20 a wait that is no work.
    #[test]
    fn time_splits_by_what_runs() {
        let mut timeline = scene::empty(Dialect::Torch);
        for (name, cat, ts, end) in [
            ("gemm", "kernel", 0.0, 30.0),
            ("gemm", "kernel", 0.0, 20.0),
            ("ncclKernel_AllReduce", "kernel", 10.0, 50.0),
            ("Memcpy DtoH", "gpu_memcpy", 60.0, 70.0),
            ("Context Sync", "cuda_sync", 20.0, 300.0),
            ("step", "gpu_user_annotation", 0.0, 900.0),
        ] {
            let slice = Slice {
                name,
                cat,
                ts,
                dur: end - ts,
                ..Slice::default()
            };
            scene::add(&mut timeline, &slice);
        }
        let splits = run(&WorkIndex::new(&timeline));
        let [split] = splits[..] else { panic!() };
        assert_eq!((split.total_us, split.idle_us()), (70.0, 10.0));
        assert_eq!(split.class_us(WorkClass::Compute), 30.0);
        assert_eq!(split.non_compute_us(), 30.0);
        assert_eq!(split.class_us(WorkClass::Communication), 40.0);
        assert_eq!(split.overlap_us(), 20.0);
        assert_eq!(split.overlap_percent(), Some(50.0));
        assert_eq!(words(3), "compute + communication");
    }

    #[test]
    fn no_work_no_rows() {
        let timeline = scene::empty(Dialect::Flex);
        assert!(run(&WorkIndex::new(&timeline)).is_empty());
    }
}
