//! Which launch a record of a device belongs to, by the runtime's correlation ids.
//!
//! A runtime's record of a call has the id that the device's records of its work have, and shows
//! when which thread made the call. The launch that was seen there at that time is the one.
//! Nothing else is taken for it: not the nearest one, and not one of another thread.
//!
//! A launch is reported when its call is over. Where the ends of calls are not seen, that is
//! when its thread makes the next call. Until then its record may look like one of the
//! launch before.
//!
//! One call executes all works of a graph: see [`GraphWorks`].

use super::{
    DeviceRecorder, DeviceSpan, TrackedLaunch,
    graph_works::{GraphWorks, kind_of},
};
use crate::aiu::{Kind, events, operation::WorkKind};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, VecDeque};

/// Most launches that are remembered; the oldest are forgotten first. Records may come
/// long after them: a full buffer of 32 MiB has some 100,000.
const MOST_LAUNCHES: usize = 1 << 20;
/// The same while no process has records.
const MOST_UNRECORDED: usize = 1 << 16;
/// Most records of calls that are remembered.
const MOST_RECORDS: usize = 1 << 19;
/// Most threads whose numbers were found out.
const MOST_THREADS: usize = 1 << 16;

/// A launch of a thread: the call that the program made.
#[derive(Clone, Debug)]
struct Launched<P> {
    start_ns: u64,
    /// Up to 4.2 s; a longer or unknown time lasts until the next launch.
    took_ns: u32,
    path: P,
    /// What the graph holds that it executed; `None`: it executed none.
    graph: Option<Box<GraphWorks<P>>>,
    /// Its runtime records what the device does, if that is on; of others only those of
    /// processes with records are missed.
    is_expected: bool,
    /// A record of a device was found for it.
    recorded: bool,
}

impl<P: Copy + Default> Launched<P> {
    /// The path of what a device did for it; `None`: it is none of the graph's works.
    fn take(&mut self, work: &WorkKind) -> Option<P> {
        self.recorded = true;
        match &mut self.graph {
            Some(graph) => graph.take(work),
            None => Some(self.path),
        }
    }

    /// How many of its works have no record.
    fn missing(&self) -> u64 {
        match &self.graph {
            Some(graph) => graph.left() as u64,
            None => u64::from(!self.recorded),
        }
    }
}

/// A call that a runtime recorded.
#[derive(Clone, Copy, Debug)]
struct RecordedCall {
    /// The thread, as the runtime numbers it.
    thread: Option<u64>,
    /// Its process sees itself as we see it: so are its threads.
    same_numbers: bool,
    rank: u8,
    start_ns: u64,
    end_ns: u64,
}

/// Launches and records of calls, waiting for each other. `P`: what is known of a launch.
#[derive(Debug, Default)]
pub(crate) struct RecordedLaunches<P> {
    /// By process and thread, in the order of their begin.
    launches: FxHashMap<u32, BTreeMap<u32, VecDeque<Launched<P>>>>,
    /// Whose launches came when.
    order: VecDeque<(u32, u32)>,
    /// Works of all their graphs.
    works: usize,
    /// By process and correlation id.
    records: FxHashMap<(u32, u64), RecordedCall>,
    record_order: VecDeque<(u32, u64)>,
    /// Threads of processes that number them otherwise.
    threads: FxHashMap<(u32, u64), u32>,
    /// Launches that were forgotten before a record of a device was found for them.
    unrecorded: u64,
    /// Processes with records.
    recorded: FxHashSet<u32>,
    /// Processes that are gone: they launch nothing more.
    gone: FxHashSet<u32>,
}

/// What is known of the launch of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordedLaunch {
    /// It is known.
    Known,
    /// It is known, unless its thread has launched something since that is not reported yet.
    Assumed,
    /// None is known. It may still be reported.
    Unknown,
}

impl<P: Copy + Default> RecordedLaunches<P> {
    /// A path launched something.
    pub(crate) fn launch(&mut self, launch: &TrackedLaunch, path: P, is_expected: bool) {
        let Some(graph) = &launch.executed else {
            let thread = (launch.by.pid, launch.by.tid);
            let times = (launch.by.start_ns, launch.by.end_ns);
            return self.add(thread, times, path, None, is_expected);
        };
        if let Some(what) = kind_of(launch) {
            let thread = (launch.by.pid, graph.tid);
            let times = (graph.start_ns, graph.end_ns);
            self.add(thread, times, path, Some(what), is_expected);
        }
    }

    /// A thread made a call that launched something outside of graphs.
    #[cfg(test)]
    pub(crate) fn called(&mut self, thread: (u32, u32), times: (u64, u64), path: P) {
        self.add(thread, (times.0, Some(times.1)), path, None, true);
    }

    /// A thread made a call that executed this work of a graph.
    #[cfg(test)]
    pub(crate) fn executed(
        &mut self,
        thread: (u32, u32),
        (start_ns, end_ns): (u64, u64),
        kind: WorkKind,
        path: P,
    ) {
        self.add(thread, (start_ns, Some(end_ns)), path, Some(kind), true);
    }

    /// A thread made a call that launched something, `in_graph` where that was in a graph;
    /// times are of CLOCK_MONOTONIC.
    fn add(
        &mut self,
        (pid, tid): (u32, u32),
        (start_ns, end_ns): (u64, Option<u64>),
        path: P,
        in_graph: Option<WorkKind>,
        is_expected: bool,
    ) {
        if !self.gone.is_empty() {
            self.gone.remove(&pid);
        }
        let took = end_ns.map_or(u64::MAX, |end| end.saturating_sub(start_ns));
        self.works += usize::from(in_graph.is_some());
        let known = self
            .launches
            .entry(pid)
            .or_default()
            .entry(tid)
            .or_default();
        let after = known
            .iter()
            .rev()
            .take_while(|l| l.start_ns > start_ns)
            .count();
        let at = known.len() - after;
        let before = at.checked_sub(1).and_then(|at| known.get(at));
        let is_same = before.is_some_and(|l| l.start_ns == start_ns);
        let at = match is_same {
            // One call that launches several times.
            true => at - 1,
            false => {
                let new = Launched {
                    start_ns,
                    took_ns: 0,
                    path,
                    graph: None,
                    is_expected,
                    recorded: false,
                };
                known.insert(at, new);
                self.order.push_back((pid, tid));
                at
            }
        };
        if let Some(launched) = known.get_mut(at) {
            launched.took_ns = u32::try_from(took).unwrap_or(u32::MAX);
            launched.path = path;
            if let Some(kind) = in_graph {
                launched.graph.get_or_insert_default().push(kind, path);
            }
        }
        let most = match self.recorded.is_empty() {
            true => MOST_UNRECORDED,
            false => MOST_LAUNCHES,
        };
        while self.order.len() + self.works > most
            && let Some((pid, tid)) = self.order.pop_front()
        {
            self.forget_oldest(pid, tid);
        }
    }

    fn forget_oldest(&mut self, pid: u32, tid: u32) {
        let is_counted = self.recorded.contains(&pid);
        let Some(threads) = self.launches.get_mut(&pid) else {
            return;
        };
        if let Some(launches) = threads.get_mut(&tid) {
            let oldest = launches.pop_front();
            if let Some(oldest) = oldest {
                let works = oldest.graph.as_ref().map_or(0, |graph| graph.len());
                self.works = self.works.saturating_sub(works);
                if is_counted || oldest.is_expected {
                    self.unrecorded += oldest.missing();
                }
            }
            if launches.is_empty() {
                threads.remove(&tid);
            }
        }
        if threads.is_empty() {
            self.launches.remove(&pid);
        }
    }

    /// A runtime recorded a call of a process; times are of CLOCK_MONOTONIC. Records
    /// that are of no launch are left out.
    pub(crate) fn record(&mut self, span: &DeviceSpan, (start_ns, end_ns): (u64, u64)) {
        let (pid, record) = (span.pid, &span.record);
        let rank = match span.recorder {
            DeviceRecorder::Aiu => record.code.and_then(rank),
            DeviceRecorder::Cuda | DeviceRecorder::LevelZero | DeviceRecorder::OpenCl => Some(1),
        };
        let rank = rank.filter(|_| record.kind == Kind::Runtime);
        if self.recorded.len() < MOST_THREADS {
            self.recorded.insert(pid);
        }
        let Some((rank, correlation)) = rank.zip(record.correlation) else {
            return;
        };
        let new = RecordedCall {
            thread: record.tid,
            same_numbers: record.pid == Some(pid),
            rank,
            start_ns,
            end_ns,
        };
        let key = (pid, correlation);
        match self.records.get_mut(&key) {
            Some(known) if known.rank > rank => {}
            Some(known) => *known = new,
            None => {
                self.records.insert(key, new);
                self.record_order.push_back(key);
                if self.record_order.len() > MOST_RECORDS
                    && let Some(oldest) = self.record_order.pop_front()
                {
                    self.records.remove(&oldest);
                }
            }
        }
    }

    /// A process is gone, after its last launch was reported.
    pub(crate) fn process_gone(&mut self, pid: u32) {
        if self.gone.len() < MOST_THREADS && self.launches.contains_key(&pid) {
            self.gone.insert(pid);
        }
    }

    /// What is known by now of the launch with this correlation id.
    pub(crate) fn known(&mut self, pid: u32, correlation: u64) -> RecordedLaunch {
        let gone = self.gone.contains(&pid);
        match self.find(pid, correlation) {
            Some((launches, at)) if is_open_last(launches, at) && !gone => RecordedLaunch::Assumed,
            Some(_) => RecordedLaunch::Known,
            None => RecordedLaunch::Unknown,
        }
    }

    /// The path that launched what has this correlation id, if it is known by now. `work`: what
    /// the device did; to be asked once for each record.
    pub(crate) fn take(&mut self, pid: u32, correlation: u64, work: &WorkKind) -> Option<P> {
        let (launches, at) = self.find(pid, correlation)?;
        launches.get_mut(at)?.take(work)
    }

    /// The launch with this correlation id among those of its thread.
    fn find(&mut self, pid: u32, correlation: u64) -> Option<(&mut VecDeque<Launched<P>>, usize)> {
        let record = *self.records.get(&(pid, correlation))?;
        let tid = self.thread(pid, &record)?;
        let launches = self.launches.get_mut(&pid)?.get_mut(&tid)?;
        let at = at(launches, &record)?;
        Some((launches, at))
    }

    /// How many launches no record of a device was found for: of all that are remembered
    /// if nothing more will come (`last`), else of those that were forgotten. Each is
    /// counted once.
    pub(crate) fn take_unrecorded(&mut self, last: bool) -> u64 {
        let mut count = std::mem::take(&mut self.unrecorded);
        for (pid, threads) in self.launches.iter_mut().filter(|_| last) {
            let is_counted = self.recorded.contains(pid);
            for launch in threads.values_mut().flatten() {
                if is_counted || launch.is_expected {
                    count += launch.missing();
                }
                launch.recorded = true;
                if let Some(graph) = &mut launch.graph {
                    let counted = std::mem::take(&mut **graph);
                    self.works = self.works.saturating_sub(counted.len());
                }
            }
        }
        count
    }

    /// The thread that a record of a call is of, as we see it.
    fn thread(&mut self, pid: u32, record: &RecordedCall) -> Option<u32> {
        let thread = record.thread?;
        if record.same_numbers {
            return u32::try_from(thread).ok();
        }
        if let Some(&tid) = self.threads.get(&(pid, thread)) {
            return Some(tid);
        }
        // In a container it has another number: whichever was launching then, if it
        // was only one.
        let threads = self.launches.get(&pid)?;
        let mut found = threads.iter().filter_map(|(tid, launches)| {
            let at = at(launches, record)?;
            Some((*tid, !is_open_last(launches, at)))
        });
        let (tid, is_certain) = found.next()?;
        if found.next().is_some() {
            return None;
        }
        // A launch of another thread may still be reported.
        if is_certain && self.threads.len() < MOST_THREADS {
            self.threads.insert((pid, thread), tid);
        }
        Some(tid)
    }
}

/// How near records of an event are to a launch; the nearest of an id is taken.
/// `None`: it is no launch.
fn rank(cbid: u32) -> Option<u8> {
    match cbid {
        events::LAUNCH_CB_CMPT => Some(2),
        1 | 3..=5 | 16 | 22 | 30..=35 => Some(1),
        events::SUBMIT_TO_HARDWARE => Some(0),
        _ => None,
    }
}

/// Whether a launch is its thread's last one and its end is not known: the next one may
/// have begun, and not be reported yet.
fn is_open_last<P>(launches: &VecDeque<Launched<P>>, at: usize) -> bool {
    let is_open = |launch: &Launched<P>| launch.took_ns == u32::MAX;
    at + 1 == launches.len() && launches.get(at).is_some_and(is_open)
}

/// Index of the launch that a record lies in: its middle does.
fn at<P>(launches: &VecDeque<Launched<P>>, record: &RecordedCall) -> Option<usize> {
    let length = record.end_ns.saturating_sub(record.start_ns);
    let middle = record.start_ns.saturating_add(length / 2);
    let after = launches.partition_point(|launch| launch.start_ns <= middle);
    let at = after.checked_sub(1)?;
    let launch = launches.get(at)?;
    let is_open = launch.took_ns == u32::MAX;
    let within = middle - launch.start_ns <= launch.took_ns.into();
    (is_open || within).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aiu::{ActivityRecord, EpochNs, LayoutStatus};

    const KERNEL: &WorkKind = &WorkKind::Kernel(None);

    fn record(cbid: u32, correlation: u64, pid: u32, tid: u64) -> ActivityRecord {
        ActivityRecord {
            kind: Kind::Runtime,
            status: LayoutStatus::Assumed,
            code: Some(cbid),
            device: None,
            context: None,
            stream: None,
            correlation: Some(correlation),
            start: EpochNs(0),
            end: EpochNs(0),
            queued: None,
            submitted: None,
            amount: None,
            address: None,
            pid: Some(pid),
            tid: Some(tid),
            name: None,
            cycles: None,
        }
    }

    fn of(pid: u32, record: ActivityRecord) -> DeviceSpan {
        DeviceSpan {
            pid,
            call: 0,
            recorder: DeviceRecorder::Aiu,
            clock: None,
            record,
        }
    }

    #[test]
    fn a_record_belongs_to_the_launch_that_it_lies_in() {
        let mut joined = RecordedLaunches::default();
        joined.add((7, 8), (1000, Some(2000)), 1, None, true);
        joined.add((7, 8), (3000, Some(4000)), 2, None, true);
        joined.add((7, 9), (3000, Some(4000)), 3, None, true);
        for (id, times, expected) in [
            (1, (1100, 1900), Some(1)),
            (2, (3100, 3900), Some(2)),
            // Between both: its launch was not seen, and is no neighbour's.
            (3, (2100, 2900), None),
            (4, (100, 900), None),
            (5, (4100, 4900), None),
        ] {
            joined.record(&of(7, record(events::LAUNCH_CB_CMPT, id, 7, 8)), times);
            assert_eq!(joined.take(7, id, KERNEL), expected, "{id}");
        }
        assert_eq!(joined.take(7, 99, KERNEL), None, "no record");
        assert_eq!(joined.take(6, 1, KERNEL), None, "another process");
    }

    #[test]
    fn the_launch_may_come_after_its_record_and_several_be_one_call() {
        let mut joined = RecordedLaunches::default();
        joined.record(&of(7, record(35, 5, 7, 8)), (3100, 3900));
        assert_eq!(joined.take(7, 5, KERNEL), None);
        joined.add((7, 8), (5000, None), 2, None, true);
        joined.add((7, 8), (3000, Some(4000)), 1, None, true);
        joined.add((7, 8), (3000, Some(4000)), 1, None, true);
        assert_eq!(joined.take(7, 5, KERNEL), Some(1));
        // Whose end was not seen lasts until the next one.
        joined.record(&of(7, record(35, 6, 7, 8)), (90_000, 90_010));
        assert_eq!(joined.take(7, 6, KERNEL), Some(2));
    }

    /// What is known of a launch of process 7.
    fn known(joined: &mut RecordedLaunches<i32>, id: u64) -> (RecordedLaunch, Option<i32>) {
        (joined.known(7, id), joined.take(7, id, KERNEL))
    }

    /// Calls whose end is not seen are reported when the next one begins.
    #[test]
    fn a_record_waits_while_its_launch_may_not_have_been_reported() {
        let mut joined = RecordedLaunches::default();
        joined.add((7, 8), (1000, None), 1, None, false);
        joined.record(&of(7, record(35, 1, 7, 8)), (1010, 1020));
        joined.record(&of(7, record(35, 2, 7, 8)), (2010, 2020));
        assert_eq!(known(&mut joined, 2), (RecordedLaunch::Assumed, Some(1)));
        joined.add((7, 8), (2000, None), 2, None, false);
        assert_eq!(known(&mut joined, 1), (RecordedLaunch::Known, Some(1)));
        assert_eq!(known(&mut joined, 2), (RecordedLaunch::Assumed, Some(2)));
        joined.process_gone(7);
        assert_eq!(known(&mut joined, 2), (RecordedLaunch::Known, Some(2)));
        // Another one of the same number.
        joined.add((7, 8), (5000, None), 3, None, false);
        joined.record(&of(7, record(35, 3, 7, 8)), (5010, 5020));
        assert_eq!(known(&mut joined, 3), (RecordedLaunch::Assumed, Some(3)));
    }

    #[test]
    fn the_kernel_s_own_record_is_taken_of_an_id_that_several_have() {
        let mut joined = RecordedLaunches::default();
        joined.add((7, 8), (1000, Some(2000)), 1, None, true);
        joined.record(
            &of(7, record(events::LAUNCH_CB_CMPT, 5, 7, 8)),
            (1100, 1900),
        );
        joined.record(
            &of(7, record(events::SUBMIT_TO_HARDWARE, 5, 7, 9)),
            (6000, 7000),
        );
        joined.record(&of(7, record(17, 5, 7, 9)), (6000, 7000));
        assert_eq!(joined.take(7, 5, KERNEL), Some(1));
    }

    /// In a container threads have other numbers.
    #[test]
    fn other_numbers_of_threads_are_found_out_where_only_one_was_launching() {
        let mut joined = RecordedLaunches::default();
        joined.add((700, 701), (1000, Some(2000)), 1, None, true);
        joined.add((700, 701), (3000, Some(4000)), 1, None, true);
        joined.add((700, 702), (3000, Some(4000)), 2, None, true);
        joined.record(&of(700, record(2, 1, 1, 4)), (3100, 3900));
        joined.record(&of(700, record(2, 2, 1, 4)), (1100, 1900));
        assert_eq!(joined.take(700, 1, KERNEL), None, "two were");
        assert_eq!(joined.take(700, 2, KERNEL), Some(1));
        assert_eq!(joined.take(700, 1, KERNEL), Some(1), "now it is known");
    }

    /// One call for all that a graph does, by whichever thread.
    #[test]
    fn works_of_a_graph_are_each_execution_s_own() {
        let mut joined = RecordedLaunches::default();
        let kernel = |name: &str| WorkKind::Kernel(Some(name.into()));
        joined.add((7, 9), (100, Some(200)), 9, None, false);
        for (start, first) in [(1000, 1), (3000, 11)] {
            let works = [kernel("a"), WorkKind::Copy, kernel("a")];
            for (path, what) in (first..).zip(works) {
                joined.add((7, 9), (start, Some(start + 500)), path, Some(what), false);
            }
        }
        for (id, start, first) in [(1, 1000, 1), (2, 3000, 11)] {
            joined.record(&of(7, record(35, id, 7, 9)), (start + 10, start + 490));
            assert_eq!(joined.known(7, id), RecordedLaunch::Known);
            assert_eq!(joined.take(7, id, &kernel("a")), Some(first));
            assert_eq!(joined.take(7, id, &kernel("a")), Some(first + 2));
            assert_eq!(joined.take(7, id, &kernel("b")), None);
        }
        assert_eq!(
            joined.take_unrecorded(true),
            3,
            "an eager launch, two copies"
        );
        assert_eq!(joined.take_unrecorded(true), 0, "each is counted once");
    }

    #[test]
    fn what_is_only_looked_up_has_no_record() {
        let mut joined = RecordedLaunches::default();
        joined.add((7, 8), (1000, Some(2000)), 1, None, true);
        joined.record(&of(7, record(35, 1, 7, 8)), (1100, 1900));
        assert_eq!(joined.known(7, 1), RecordedLaunch::Known);
        assert_eq!(joined.take_unrecorded(true), 1);
    }

    #[test]
    fn memory_is_bounded() {
        let mut joined = RecordedLaunches::default();
        for i in 0..(MOST_LAUNCHES as u64 + 5000) {
            let thread = ((i % 3) as u32, (i % 7) as u32);
            joined.add(thread, (i * 10, Some(i * 10 + 5)), 1, None, true);
            joined.record(&of((i % 3) as u32, record(2, i, 1, 1)), (i, u64::MAX));
        }
        let held: usize = joined
            .launches
            .values()
            .flat_map(BTreeMap::values)
            .map(VecDeque::len)
            .sum();
        assert_eq!(held, MOST_LAUNCHES);
        assert!(joined.records.len() <= MOST_RECORDS);
        // One graph with the maximum number of works, and as many more.
        for i in 0..(2 * MOST_LAUNCHES as u64) {
            let at = 1 << 40 | (i * 10 / MOST_LAUNCHES as u64);
            joined.add((1, 1), (at, Some(at)), 1, Some(WorkKind::Copy), true);
        }
        let launches = joined.launches.values().flat_map(BTreeMap::values);
        let graphs = launches.flatten().filter_map(|l| l.graph.as_ref());
        let works: usize = graphs.map(|graph| graph.len()).sum();
        assert_eq!(works, joined.works);
        assert!(works + joined.order.len() <= MOST_LAUNCHES);
    }
}
