//! Processes that were requested because they were not known: how far that is.

use crate::bpf::perf;
use aiprof_model::wire::MapEvent;
use rustc_hash::FxHashMap;

/// Most processes of which this is remembered.
const MAX_LOOKUPS: usize = 8192;

/// Name and mappings of a process.
pub(super) type ReadProcess = (String, Vec<MapEvent>);

/// How far the lookup of one process is.
#[derive(Debug, Default)]
struct Lookup {
    /// When it was requested, CLOCK_MONOTONIC nanoseconds; `None`: no answer is to come.
    requested_ns: Option<u64>,
    /// What was read and is not needed yet.
    read: Option<ReadProcess>,
    /// Nothing waits for it any more: it is applied when it comes.
    is_late: bool,
    /// It did not come when it was needed, and is not requested again for a while.
    is_absent: bool,
}

impl Lookup {
    /// Whether there is an answer, or one may come.
    fn is_open(&self) -> bool {
        self.requested_ns.is_some() || self.read.is_some()
    }
}

/// The lookups of all processes that are not known.
#[derive(Debug, Default)]
pub(super) struct Lookups {
    processes: FxHashMap<u32, Lookup>,
    /// When process events were lost last.
    lost_ns: u64,
}

impl Lookups {
    /// Requests a process that is not known by `ask`, if it should be.
    pub(super) fn request(&mut self, pid: u32, ask: impl FnOnce() -> bool) {
        let lookup = self.processes.get(&pid);
        if lookup.is_some_and(|lookup| lookup.is_open() || lookup.is_absent) {
            return;
        }
        self.make_room();
        let now_ns = perf::monotonic_ns();
        if self.processes.len() < MAX_LOOKUPS && ask() {
            self.processes.entry(pid).or_default().requested_ns = Some(now_ns);
        }
    }

    /// Applies a process when it comes, if it was requested.
    pub(super) fn apply_when_read(&mut self, pid: u32) {
        if let Some(lookup) = self.processes.get_mut(&pid) {
            lookup.is_late |= lookup.is_open();
        }
    }

    /// An answer has come. `false`: it may be of the program that the process ran before, so
    /// it must be requested again.
    pub(super) fn read(&mut self, pid: u32, comm: String, maps: Vec<MapEvent>) -> bool {
        let Some(lookup) = self.processes.get_mut(&pid) else {
            return true;
        };
        match lookup.requested_ns.take() {
            Some(requested_ns) if requested_ns < self.lost_ns => return false,
            Some(_) => lookup.read = Some((comm, maps)),
            None => {}
        }
        true
    }

    /// No answer will come.
    pub(super) fn failed(&mut self, pid: u32) {
        if let Some(lookup) = self.processes.get_mut(&pid) {
            lookup.requested_ns = None;
            lookup.is_late = false;
        }
    }

    /// Whether an answer may still come.
    pub(super) fn is_requested(&self, pid: u32) -> bool {
        let lookup = self.processes.get(&pid);
        lookup.is_some_and(|lookup| lookup.requested_ns.is_some())
    }

    /// Whether no answer has come or will come.
    pub(super) fn has_given_up(&self, pid: u32) -> bool {
        !self.processes.get(&pid).is_some_and(Lookup::is_open)
    }

    /// Whether a process did not come when it was needed.
    pub(super) fn is_absent(&self, pid: u32) -> bool {
        self.processes.get(&pid).is_some_and(|one| one.is_absent)
    }

    /// The processes that came after they were needed.
    pub(super) fn late(&self) -> Vec<u32> {
        let all = self.processes.iter();
        let late = all.filter(|(_, lookup)| lookup.is_late && lookup.read.is_some());
        late.map(|(pid, _)| *pid).collect()
    }

    /// What was read of a process, which is applied now.
    pub(super) fn take(&mut self, pid: u32) -> Option<ReadProcess> {
        let lookup = self.processes.get_mut(&pid)?;
        lookup.is_late = false;
        lookup.read.take()
    }

    /// A process did not come when it was needed.
    pub(super) fn missed(&mut self, pid: u32) {
        self.make_room();
        let lookup = self.processes.entry(pid).or_default();
        lookup.is_late |= lookup.requested_ns.is_some();
        lookup.is_absent = true;
    }

    /// Something is known of a process.
    pub(super) fn is_here(&mut self, pid: u32) {
        if let Some(lookup) = self.processes.get_mut(&pid) {
            lookup.is_absent = false;
        }
    }

    /// A process runs another program: what was read is of the old.
    pub(super) fn replaced(&mut self, pid: u32) {
        if let Some(lookup) = self.processes.get_mut(&pid) {
            lookup.read = None;
            lookup.is_late = false;
        }
    }

    /// Process events before `time_ns` were lost: what was read of a process before that may
    /// be of the program that it ran before.
    pub(super) fn lost(&mut self, time_ns: u64) {
        self.lost_ns = time_ns;
        for lookup in self.processes.values_mut() {
            lookup.read = None;
            lookup.is_absent = false;
        }
    }

    /// Forgets all, also what was requested: its answer may have got lost, and it may be
    /// requested again.
    pub(super) fn clear(&mut self) {
        self.processes.clear();
    }

    /// Forgets all but that processes are absent.
    pub(super) fn begin_afresh(&mut self) {
        self.lost_ns = 0;
        self.processes.retain(|_, lookup| lookup.is_absent);
        for lookup in self.processes.values_mut() {
            *lookup = Lookup {
                is_absent: true,
                ..Lookup::default()
            };
        }
    }

    /// Forgets those that nothing will come of, where there are too many.
    fn make_room(&mut self) {
        if self.processes.len() >= MAX_LOOKUPS {
            self.processes.retain(|_, lookup| {
                lookup.is_absent = false;
                lookup.is_open()
            });
        }
    }
}
