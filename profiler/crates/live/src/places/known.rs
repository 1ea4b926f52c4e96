//! All that is known of kernels and their places.

use super::{
    Build,
    learn::{self, KernelCode, Sampled, Subject},
    snapshot::{AddressPath, Snapshot},
    worker::{PlaceAnswer, PlaceMessage},
};
use crate::{
    bpf::perf,
    inspect::{self, ProcessMemory, Region},
};
use aiprof_model::wire::{DeviceCode, Event, KernelPlaced, PlacedBy};
use rustc_hash::FxHashMap;
use std::{
    sync::{Arc, mpsc::Sender},
    time::{Duration, Instant},
};

/// Most processes, those that have ended included.
const MAX_PROCESSES: usize = 256;
/// Most kernels of a process.
const MAX_KERNELS: usize = 16_384;
/// Kernels of a process that are looked at before the path is known.
const MAX_SNAPSHOTS: usize = 32;
/// The same of all processes; about 100 KiB each.
const MAX_ALL_SNAPSHOTS: usize = 256;
/// Most sampled addresses.
const MAX_SAMPLED: usize = 1 << 16;
/// Most searches for code of a process.
const MAX_SEARCHES: u32 = 8;
/// After a search, or an attempt to learn, that did not suffice, the next one waits;
/// it doubles each time.
const AGAIN: Duration = Duration::from_millis(100);
/// Most doublings of that.
const MAX_DOUBLINGS: u32 = 6;
/// How long what is known of mappings is believed, in times that it took to read them.
const MAPS_HOLD: u32 = 10;

/// How long after a search for code another one is waited for.
const PATIENCE: Duration = Duration::from_millis(300);
/// How long the name of a kernel is waited for that was created unseen, nanoseconds.
const NAME_WAIT_NS: u64 = 5_000_000_000;
/// Bytes of code that a kernel of unknown size may have.
const UNKNOWN_SIZE: u64 = 1 << 20;

/// A kernel.
#[derive(Debug)]
struct KnownKernel {
    handle: u64,
    name: Option<String>,
    seen_ns: u64,
    gone_ns: u64,
    launched: bool,
    told: Option<u64>,
    /// What its handle leads to.
    snapshot: Option<Snapshot>,
    /// Where it is.
    address: Option<u64>,
    /// When one of these was read.
    read_ns: u64,
    is_placed: bool,
}

impl KnownKernel {
    fn is_alive(&self) -> bool {
        self.gone_ns == u64::MAX
    }
}

/// A process.
#[derive(Debug, Default)]
struct KnownProcess {
    build: Build,
    kernels: Vec<KnownKernel>,
    /// The newest kernel of each handle.
    by_handle: FxHashMap<u64, usize>,
    code: FxHashMap<String, Arc<KernelCode>>,
    is_gone: bool,
    searches: u32,
    is_searched: bool,
    last_search: Option<Instant>,
}

impl KnownProcess {
    fn kernel(&mut self, handle: u64) -> Option<&mut KnownKernel> {
        self.kernels.get_mut(*self.by_handle.get(&handle)?)
    }

    /// Whether code is being searched for, or will be soon.
    fn may_find_code(&self) -> bool {
        let recent = self
            .last_search
            .is_some_and(|last| last.elapsed() < PATIENCE);
        self.is_searched || !self.is_gone && recent && self.searches < MAX_SEARCHES
    }

    /// Whether there are kernels of which no code was found.
    fn wants_code(&self) -> bool {
        let without = |kernel: &KnownKernel| {
            let name = kernel.name.as_ref();
            kernel.is_alive() && name.is_some_and(|name| !self.code.contains_key(name))
        };
        self.kernels.iter().any(without)
    }
}

/// A process's memory, and what of it is what.
struct MemoryView {
    pid: u32,
    memory: ProcessMemory,
    heap: Vec<Region>,
    own: Vec<Region>,
    /// Until when it is believed.
    until: Instant,
}

/// All that is known.
pub(super) struct KnownPlaces {
    processes: FxHashMap<u32, KnownProcess>,
    /// Processes that have ended, by numbers of their own: theirs may be used again.
    ended: Vec<(u32, KnownProcess)>,
    paths: FxHashMap<Build, AddressPath>,
    sampled: FxHashMap<Sampled, u64>,
    view: Option<MemoryView>,
    taken_ns: u64,
    snapshots: usize,
    /// Something is new since the last attempt to learn.
    is_news: bool,
    attempts: u32,
    last_attempt: Option<Instant>,
    searching: usize,
    searches: Sender<u32>,
    outbox: Sender<PlaceAnswer>,
}

impl KnownPlaces {
    pub(super) fn new(searches: Sender<u32>, outbox: Sender<PlaceAnswer>) -> Self {
        Self {
            processes: FxHashMap::default(),
            ended: Vec::new(),
            paths: FxHashMap::default(),
            sampled: FxHashMap::default(),
            view: None,
            taken_ns: 0,
            snapshots: 0,
            is_news: false,
            attempts: 0,
            last_attempt: None,
            searching: 0,
            searches,
            outbox,
        }
    }

    /// Searches for code that have not ended.
    pub(super) fn searching(&self) -> usize {
        self.searching
    }

    /// Takes a message in; `false`: the receiver of answers is gone.
    pub(super) fn take(&mut self, message: PlaceMessage) -> bool {
        match message {
            PlaceMessage::Kernel {
                pid,
                build,
                handle,
                time_ns,
                name,
                created,
            } => {
                self.kernel(pid, build, handle, time_ns, name, created);
            }
            PlaceMessage::Named { pid, handle, name } => {
                if let Some(kernel) = self.find(pid, handle).filter(|k| k.name.is_none()) {
                    kernel.name = Some(name);
                    // Reports its place again, with the name.
                    kernel.is_placed &= kernel.told.is_some();
                    self.is_news = true;
                }
            }
            PlaceMessage::Launched { pid, handle } => self.launched(pid, handle),
            PlaceMessage::Told {
                pid,
                handle,
                address,
            } => {
                if let Some(kernel) = self.find(pid, handle) {
                    kernel.told = Some(address);
                    kernel.is_placed = true;
                    self.is_news = true;
                }
            }
            PlaceMessage::Gone {
                pid,
                handle,
                time_ns,
            } => {
                let process = self.processes.get_mut(&pid);
                if let Some(process) = process {
                    let lost = process.kernel(handle).is_some_and(|k| k.end(time_ns));
                    process.by_handle.remove(&handle);
                    self.snapshots -= usize::from(lost);
                }
            }
            PlaceMessage::ProcessGone { pid, time_ns } => self.process_gone(pid, time_ns),
            PlaceMessage::Code { pid, found } => self.code(pid, found),
            PlaceMessage::Tick {
                taken_ns,
                sampled,
                last,
            } => return self.tick(taken_ns, sampled, last),
        }
        true
    }

    fn find(&mut self, pid: u32, handle: u64) -> Option<&mut KnownKernel> {
        self.processes.get_mut(&pid)?.kernel(handle)
    }

    fn kernel(
        &mut self,
        pid: u32,
        build: Build,
        handle: u64,
        time_ns: u64,
        name: Option<String>,
        created: bool,
    ) {
        if self.processes.len() >= MAX_PROCESSES && !self.processes.contains_key(&pid) {
            return;
        }
        let process = self.processes.entry(pid).or_default();
        process.build = build;
        if let Some(kernel) = process.kernel(handle) {
            // The same call in an outer library, which ends later.
            if created && !kernel.launched {
                kernel.seen_ns = kernel.seen_ns.max(time_ns);
                kernel.name = name.or(kernel.name.take());
            }
            if !created || kernel.read_ns >= time_ns {
                return;
            }
            kernel.is_placed = false;
            self.snapshots -= usize::from(kernel.snapshot.take().is_some());
        } else {
            if process.kernels.len() >= MAX_KERNELS {
                process.forget_gone();
                if process.kernels.len() >= MAX_KERNELS {
                    return;
                }
            }
            process.by_handle.insert(handle, process.kernels.len());
            process.kernels.push(KnownKernel {
                handle,
                name,
                seen_ns: time_ns,
                gone_ns: u64::MAX,
                launched: false,
                told: None,
                snapshot: None,
                address: None,
                read_ns: 0,
                is_placed: false,
            });
        }
        self.look(pid, handle);
        self.search(pid, false);
    }

    fn launched(&mut self, pid: u32, handle: u64) {
        let Some(kernel) = self.find(pid, handle) else {
            return;
        };
        kernel.launched = true;
        let unread = kernel.read_ns == 0;
        self.is_news = true;
        if unread {
            self.look(pid, handle);
        }
    }

    /// Reads where a kernel is, or what may show it later.
    fn look(&mut self, pid: u32, handle: u64) {
        let Some(process) = self.processes.get(&pid) else {
            return;
        };
        let path = self.paths.get(&process.build).copied();
        let read = process
            .kernels
            .iter()
            .filter(|k| k.snapshot.is_some())
            .count();
        let room = read < MAX_SNAPSHOTS && self.snapshots < MAX_ALL_SNAPSHOTS;
        if path.is_none() && !room {
            return;
        }
        let Some(view) = view(&mut self.view, pid) else {
            return;
        };
        let (mut address, mut snapshot) = (None, None);
        match path {
            Some(path) => address = path.follow(&view.memory, &view.own, handle),
            None => snapshot = Snapshot::read(&view.memory, &view.heap, &view.own, handle),
        }
        self.snapshots += usize::from(snapshot.is_some());
        let read_ns = perf::monotonic_ns();
        if let Some(kernel) = self.find(pid, handle) {
            kernel.address = address;
            kernel.snapshot = snapshot;
            kernel.read_ns = read_ns;
            self.is_news = true;
        }
    }

    fn process_gone(&mut self, pid: u32, time_ns: u64) {
        let Some(mut process) = self.processes.remove(&pid) else {
            return;
        };
        for kernel in process
            .kernels
            .iter_mut()
            .filter(|kernel| kernel.is_alive())
        {
            self.snapshots -= usize::from(kernel.end(time_ns));
        }
        process.is_gone = true;
        process.by_handle.clear();
        if self.view.as_ref().is_some_and(|view| view.pid == pid) {
            self.view = None;
        }
        if self.ended.len() >= MAX_PROCESSES {
            let (_, oldest) = self.ended.remove(0);
            let held = oldest.kernels.iter().filter(|k| k.snapshot.is_some());
            self.snapshots -= held.count();
        }
        self.ended.push((pid, process));
    }

    /// Has a process searched for code, if it is time to. `again`: it was before.
    fn search(&mut self, pid: u32, again: bool) {
        let Some(process) = self.processes.get_mut(&pid) else {
            return;
        };
        let wait = AGAIN * (1 << process.searches.min(MAX_DOUBLINGS));
        let due = process
            .last_search
            .is_none_or(|last| again && last.elapsed() >= wait);
        if process.is_searched || !due || process.searches >= MAX_SEARCHES {
            return;
        }
        process.searches += 1;
        process.last_search = Some(Instant::now());
        process.is_searched = self.searches.send(pid).is_ok();
        self.searching += usize::from(process.is_searched);
    }

    fn code(&mut self, pid: u32, found: super::code::FoundModules) {
        self.searching = self.searching.saturating_sub(1);
        let ended = self
            .ended
            .iter_mut()
            .rev()
            .find(|(number, _)| *number == pid);
        let process = self
            .processes
            .get_mut(&pid)
            .filter(|process| process.is_searched);
        if let Some(process) = process.or(ended.map(|(_, process)| process)) {
            process.is_searched = false;
            process.code.extend(found.kernels);
        }
        self.is_news = true;
        for bytes in found.modules {
            let time_ns = perf::monotonic_ns();
            let code = DeviceCode {
                time_ns,
                pid,
                bytes,
            };
            // If the receiver is gone, the next tick finds out.
            let _ = self
                .outbox
                .send(PlaceAnswer::Event(Event::DeviceCode(code)));
        }
    }

    fn tick(&mut self, taken_ns: u64, sampled: Vec<(Sampled, u64)>, last: bool) -> bool {
        self.taken_ns = taken_ns;
        self.is_news |= !sampled.is_empty();
        for (sample, count) in sampled {
            if self.sampled.len() < MAX_SAMPLED || self.sampled.contains_key(&sample) {
                let sum = self.sampled.entry(sample).or_default();
                *sum = sum.saturating_add(count);
            }
        }
        let wanting = self
            .processes
            .iter()
            .filter(|(_, process)| process.wants_code());
        let wanting: Vec<u32> = wanting.map(|(pid, _)| *pid).collect();
        for pid in wanting {
            self.search(pid, true);
        }
        let wait = AGAIN * (1 << self.attempts.min(MAX_DOUBLINGS));
        let due = self.last_attempt.is_none_or(|last| last.elapsed() >= wait);
        if last || self.is_news && due {
            self.learn();
        }
        self.place(last) && self.outbox.send(PlaceAnswer::Ticked).is_ok()
    }

    /// All processes, and whether their memory can still be read.
    fn all(&self) -> impl Iterator<Item = (u32, &KnownProcess)> {
        let ended = self.ended.iter().map(|(pid, process)| (*pid, process));
        self.processes
            .iter()
            .map(|(pid, process)| (*pid, process))
            .chain(ended)
    }

    /// Tries to find the path of each build that has none.
    fn learn(&mut self) {
        self.is_news = false;
        self.last_attempt = Some(Instant::now());
        self.attempts += 1;
        let mut builds: Vec<Build> = self.all().map(|(_, process)| process.build).collect();
        builds.sort_unstable();
        builds.dedup();
        for build in builds {
            if self.paths.contains_key(&build) {
                continue;
            }
            let sampled = self.unexplained();
            let subjects = self.subjects(build);
            let begun = Instant::now();
            let learned = learn::learn(&subjects, &sampled);
            tracing::debug!(
                "learned from {} kernels and {} sampled addresses: {learned:?}, {:?}",
                subjects.len(),
                sampled.len(),
                begun.elapsed()
            );
            if let Some(learned) = learned {
                self.believe(build, &learned);
            }
        }
    }

    /// Kernels of a build that were looked at, all changes until then known.
    fn subjects(&self, build: Build) -> Vec<Subject<'_>> {
        let processes = self.all().filter(|(_, process)| process.build == build);
        let subjects = processes.flat_map(|(pid, process)| {
            process.kernels.iter().filter_map(move |kernel| {
                let snapshot = kernel.snapshot.as_ref()?;
                let name = kernel.name.as_deref();
                (kernel.read_ns <= self.taken_ns).then(|| Subject {
                    pid,
                    snapshot,
                    name,
                    code: name.and_then(|name| process.code.get(name)).cloned(),
                    launched: kernel.launched,
                    life: (kernel.seen_ns, kernel.gone_ns),
                    exact: kernel.told,
                })
            })
        });
        subjects.collect()
    }

    /// What was sampled but where kernels of known places lie.
    fn unexplained(&self) -> Vec<(Sampled, u64)> {
        let placed = self.all().flat_map(|(_, process)| {
            let kernels = process.kernels.iter().filter(|k| k.launched);
            kernels.filter_map(|kernel| {
                let code = process.code.get(kernel.name.as_ref()?)?;
                Some((kernel.address?, code.size))
            })
        });
        let mut placed: Vec<(u64, u64)> = placed.collect();
        placed.sort_unstable();
        let low = |address: u64| address & u64::from(u32::MAX);
        let mut relative: Vec<(u64, u64)> =
            placed.iter().map(|(a, size)| (low(*a), *size)).collect();
        relative.sort_unstable();
        let explained = |sampled: &Sampled| {
            let known = if sampled.relative { &relative } else { &placed };
            let at = known.partition_point(|(start, _)| *start <= sampled.address);
            let last = at.checked_sub(1).and_then(|at| known.get(at));
            last.is_some_and(|(start, size)| sampled.address - start < *size)
        };
        let left = self
            .sampled
            .iter()
            .filter(|(sampled, _)| !explained(sampled));
        left.map(|(sampled, count)| (*sampled, *count)).collect()
    }

    /// Gives all kernels of a build their addresses.
    fn believe(&mut self, build: Build, learned: &learn::Learned) {
        tracing::debug!("kernel addresses are found through {:?}", learned.path);
        let ended = self.ended.iter_mut().map(|(_, process)| process);
        let taken_ns = self.taken_ns;
        for process in self.processes.values_mut().chain(ended) {
            for kernel in process
                .kernels
                .iter_mut()
                .filter(|_| process.build == build)
            {
                if kernel.read_ns > taken_ns {
                    continue;
                }
                if let Some(snapshot) = &kernel.snapshot {
                    kernel.address = learned.path.of(snapshot);
                }
            }
        }
        // With only one kernel, all ways to its address look equally right.
        if !learned.is_proven {
            return;
        }
        self.paths.insert(build, learned.path);
        self.attempts = 0;
        let open: Vec<(u32, u64)> = self
            .processes
            .iter()
            .filter(|(_, process)| process.build == build)
            .flat_map(|(pid, process)| {
                let open = process
                    .kernels
                    .iter()
                    .filter(|k| k.is_alive() && k.address.is_none());
                open.map(|kernel| (*pid, kernel.handle))
            })
            .collect();
        for (pid, handle) in open {
            self.look(pid, handle);
        }
        let ended = self.ended.iter_mut().map(|(_, process)| process);
        for process in self.processes.values_mut().chain(ended) {
            for kernel in process
                .kernels
                .iter_mut()
                .filter(|_| process.build == build)
            {
                self.snapshots -= usize::from(kernel.snapshot.take().is_some());
            }
        }
    }

    /// Sends where kernels are; `false`: the receiver is gone. A kernel's size may still be found
    /// later, unless this is the `last` time.
    fn place(&mut self, last: bool) -> bool {
        let taken_ns = self.taken_ns;
        let ended = self.ended.iter_mut().map(|(pid, process)| (*pid, process));
        let running = self
            .processes
            .iter_mut()
            .map(|(pid, process)| (*pid, process));
        for (pid, process) in running.chain(ended) {
            let may_tell = !last && process.may_find_code();
            let mut starts: Vec<u64> = process.kernels.iter().filter_map(|k| k.address).collect();
            starts.sort_unstable();
            for kernel in &mut process.kernels {
                let Some(address) = kernel.address else {
                    continue;
                };
                if kernel.is_placed || kernel.read_ns > taken_ns {
                    continue;
                }
                let code = kernel.name.as_ref().and_then(|name| process.code.get(name));
                let unnamed = kernel.name.is_none() && !last && !process.is_gone;
                let waits = unnamed && taken_ns < kernel.read_ns.saturating_add(NAME_WAIT_NS);
                if code.is_none() && may_tell || waits {
                    continue;
                }
                kernel.is_placed = true;
                let next = starts.get(starts.partition_point(|&start| start <= address));
                let room = next.map_or(0, |next| (next - address).min(UNKNOWN_SIZE));
                let placed = KernelPlaced {
                    time_ns: kernel.seen_ns,
                    pid,
                    kernel: kernel.handle,
                    address,
                    size: code.map_or(room, |code| code.size),
                    instruction_base: None,
                    by: PlacedBy::Object,
                };
                if self
                    .outbox
                    .send(PlaceAnswer::Event(Event::KernelPlaced(placed)))
                    .is_err()
                {
                    return false;
                }
            }
        }
        true
    }
}

impl KnownProcess {
    /// Forgets kernels that are gone.
    fn forget_gone(&mut self) {
        self.kernels
            .retain(|kernel| kernel.is_alive() || kernel.snapshot.is_some());
        let alive = self
            .kernels
            .iter()
            .enumerate()
            .filter(|(_, k)| k.is_alive());
        self.by_handle = alive.map(|(at, kernel)| (kernel.handle, at)).collect();
    }
}

impl KnownKernel {
    /// It is gone; whether a snapshot was of what came after it.
    fn end(&mut self, time_ns: u64) -> bool {
        self.gone_ns = time_ns;
        if self.read_ns < time_ns {
            return false;
        }
        self.address = None;
        self.snapshot.take().is_some()
    }
}

/// A process's memory, opened or looked at anew if need be.
fn view(view: &mut Option<MemoryView>, pid: u32) -> Option<&MemoryView> {
    let is_new = view
        .as_ref()
        .is_some_and(|v| v.pid == pid && Instant::now() < v.until);
    if !is_new {
        let begun = Instant::now();
        let opened = ProcessMemory::open(pid).and_then(|memory| {
            Ok(MemoryView {
                pid,
                memory,
                heap: inspect::regions(pid)?,
                own: inspect::accessible(pid)?,
                until: Instant::now() + begun.elapsed() * MAPS_HOLD,
            })
        });
        *view = opened
            .inspect_err(|error| {
                tracing::debug!("cannot read the memory of process {pid}: {error}")
            })
            .ok();
    }
    view.as_ref()
}
