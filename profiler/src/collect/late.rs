//! Names of kernels that were created before the recording began.
//!
//! No probe saw their creation. As soon as one is launched, a thread of its own
//! looks into the process's memory for the names that its device images declare
//! and for the way from kernel handles to names (see [`inspect`]). The way
//! depends on the driver's build only, so what one process taught serves for all
//! others. What cannot be told for certain stays unnamed.

use super::{
    bpf::perf,
    inspect::{
        self, ProcessMemory, images,
        path::{self, Learned, NamePath},
    },
};
use crate::{
    probes::{CallKind, Probe, role},
    wire::{Call, CallData, KernelNamed},
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::{Duration, Instant},
};

/// Most bytes of a process that are searched for device images.
const BUDGET: u64 = 4 << 30;
/// Most processes followed.
const MAX_PROCESSES: usize = 1024;
/// Most kernels of a process followed.
const MAX_KERNELS: usize = 16_384;
/// How long to wait for further kernels before searching: one kernel alone can
/// prove less than several.
const GATHER: Duration = Duration::from_millis(300);
/// How long after a search that left kernels unnamed the next one may come; it
/// doubles each time.
const AGAIN: Duration = Duration::from_secs(1);
/// Most searches of a process.
const MAX_SEARCHES: u32 = 6;

/// Which build of a driver: what tells the build of the innermost library of a
/// process that is probed.
pub type Build = u64;

/// Slots and tags of a probe that matter here.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// Uses the kernel in this slot.
    Launch(usize),
    /// Creates the kernel in this slot at its exit; its name has this tag.
    Create(usize, Option<u8>),
    /// Ends the kernel in this slot.
    Destroy(usize),
}

/// What is known of a process's kernels.
#[derive(Debug, Default)]
struct Program {
    /// Created while watched, by handle; an empty name was not read.
    known: BTreeMap<u64, String>,
    unknown: BTreeSet<u64>,
    /// Named by a search.
    named: FxHashSet<u64>,
    since: Option<Instant>,
    searches: u32,
    searching: bool,
    /// The last name given by each thread.
    pending: FxHashMap<u32, String>,
}

struct Request {
    pid: u32,
    build: Build,
    known: BTreeMap<u64, String>,
    unknown: BTreeSet<u64>,
    path: Option<NamePath>,
}

struct Answer {
    pid: u32,
    build: Build,
    learned: Learned,
}

/// Follows kernels and finds the names of those it did not see created.
#[derive(Debug, Default)]
pub struct LateKernels {
    parts: FxHashMap<u32, Part>,
    programs: FxHashMap<u32, Program>,
    paths: FxHashMap<Build, NamePath>,
    worker: Option<(Sender<Request>, Receiver<Answer>)>,
}

impl LateKernels {
    /// A function is probed from here on.
    pub fn probe(&mut self, probe: &Probe) {
        let Some(slot) = probe.slot(role::KERNEL) else {
            return;
        };
        let created = probe.values.get(slot).is_some_and(|v| v.at_exit);
        let part = match probe.kind {
            CallKind::Launch => Part::Launch(slot),
            CallKind::Kernel if created => Part::Create(slot, probe.tag(role::NAME)),
            CallKind::Kernel if probe.function.contains("Destroy") => Part::Destroy(slot),
            _ => return,
        };
        self.parts.insert(probe.id, part);
    }

    /// A text that may be a kernel's name.
    pub fn data(&mut self, data: &CallData) {
        let Some(Part::Create(_, tag)) = self.parts.get(&data.probe) else {
            return;
        };
        if *tag != Some(data.tag) || data.unread || !self.has_room(data.pid) {
            return;
        }
        let program = self.programs.entry(data.pid).or_default();
        let name = String::from_utf8_lossy(&data.bytes).into_owned();
        if program.pending.len() < MAX_KERNELS {
            program.pending.insert(data.tid, name);
        }
    }

    /// A call was entered or left.
    pub fn call(&mut self, call: &Call) {
        let Some(&part) = self.parts.get(&call.probe) else {
            return;
        };
        let (Part::Launch(slot) | Part::Create(slot, _) | Part::Destroy(slot)) = part;
        let kernel = call.values.get(slot).copied().unwrap_or(0);
        let read = u32::try_from(slot).is_ok_and(|bit| bit < 16 && call.unread >> bit & 1 == 0);
        if kernel == 0 || !read || !self.has_room(call.pid) {
            return;
        }
        let program = self.programs.entry(call.pid).or_default();
        match part {
            Part::Create(..) if call.is_exit() => {
                let name = program.pending.remove(&call.tid).unwrap_or_default();
                // A kernel in use is not created: the handle is another's.
                let other = call.is_late() && program.has(kernel);
                if call.result == 0 && !other && program.known.len() < MAX_KERNELS {
                    program.unknown.remove(&kernel);
                    program.named.remove(&kernel);
                    program.known.insert(kernel, name);
                }
            }
            Part::Create(..) => {}
            Part::Destroy(_) => {
                program.known.remove(&kernel);
                program.unknown.remove(&kernel);
                program.named.remove(&kernel);
            }
            Part::Launch(_) => program.launched(kernel),
        }
    }

    /// The process has ended, or has become another program.
    pub fn forget(&mut self, pid: u32) {
        self.programs.remove(&pid);
    }

    fn has_room(&self, pid: u32) -> bool {
        self.programs.len() < MAX_PROCESSES || self.programs.contains_key(&pid)
    }

    /// Starts the searches that are due; `build` tells the driver's build of a
    /// process. Gives the names found since the last call.
    pub fn maintain(&mut self, now: Instant, build: impl Fn(u32) -> Build) -> Vec<KernelNamed> {
        let mut found = Vec::new();
        while let Some(answer) = self.answer() {
            self.take(answer, &mut found);
        }
        let due = self.programs.iter().filter(|(_, p)| p.is_due(now));
        let due: Vec<u32> = due.map(|(pid, _)| *pid).collect();
        for pid in due {
            self.search(pid, build(pid));
        }
        found
    }

    /// Kernels launched that have no name yet.
    pub fn unnamed(&self) -> usize {
        let open = |p: &Program| {
            p.unknown
                .difference(&p.named.iter().copied().collect())
                .count()
        };
        self.programs.values().map(open).sum()
    }

    /// Searches a last time and waits for it: the recording ends.
    pub fn settle(&mut self, build: impl Fn(u32) -> Build, patience: Duration) -> Vec<KernelNamed> {
        let deadline = Instant::now() + patience;
        let open: Vec<u32> = self
            .programs
            .iter()
            .filter(|(_, p)| !p.searching && p.has_unnamed() && p.searches < MAX_SEARCHES)
            .map(|(pid, _)| *pid)
            .collect();
        for pid in open {
            self.search(pid, build(pid));
        }
        let mut found = Vec::new();
        while self.programs.values().any(|p| p.searching) {
            let left = deadline.saturating_duration_since(Instant::now());
            let answer = match &self.worker {
                Some((_, answers)) => answers.recv_timeout(left).ok(),
                None => None,
            };
            let Some(answer) = answer else { break };
            self.take(answer, &mut found);
        }
        found
    }

    fn answer(&self) -> Option<Answer> {
        self.worker.as_ref()?.1.try_recv().ok()
    }

    fn take(&mut self, answer: Answer, found: &mut Vec<KernelNamed>) {
        if let Some(path) = answer.learned.path {
            self.paths.insert(answer.build, path);
        }
        let Some(program) = self.programs.get_mut(&answer.pid) else {
            return;
        };
        program.searching = false;
        for (kernel, name) in answer.learned.names {
            if program.unknown.contains(&kernel) && program.named.insert(kernel) {
                found.push(KernelNamed {
                    time_ns: perf::monotonic_ns(),
                    pid: answer.pid,
                    kernel,
                    name,
                });
            }
        }
        program.since = program.has_unnamed().then(Instant::now);
    }

    fn search(&mut self, pid: u32, build: Build) {
        if self.worker.is_none() {
            self.worker = start()
                .inspect_err(|error| tracing::warn!("cannot start a search thread: {error}"))
                .ok();
        }
        let path = self.paths.get(&build).cloned();
        let Some((requests, _)) = &self.worker else {
            return;
        };
        let Some(program) = self.programs.get_mut(&pid) else {
            return;
        };
        program.searches += 1;
        let named = &program.named;
        let request = Request {
            pid,
            build,
            known: program
                .known
                .iter()
                .filter(|(_, name)| !name.is_empty())
                .map(|(kernel, name)| (*kernel, name.clone()))
                .collect(),
            // Those named already are proof too.
            unknown: program.unknown.iter().copied().collect(),
            path,
        };
        tracing::debug!(
            "process {pid}: searching names of {} kernels, {} found before",
            request.unknown.len(),
            named.len()
        );
        program.searching = requests.send(request).is_ok();
    }
}

impl Program {
    fn launched(&mut self, kernel: u64) {
        if !self.has(kernel) && self.unknown.len() < MAX_KERNELS {
            self.unknown.insert(kernel);
            self.since.get_or_insert_with(Instant::now);
        }
    }

    fn has(&self, kernel: u64) -> bool {
        self.known.contains_key(&kernel) || self.unknown.contains(&kernel)
    }

    fn has_unnamed(&self) -> bool {
        self.unknown.len() > self.named.len()
    }

    fn is_due(&self, now: Instant) -> bool {
        let wait = match self.searches {
            0 => GATHER,
            n => AGAIN * (1 << n.min(10)),
        };
        let waited = self.since.is_some_and(|since| now >= since + wait);
        waited && !self.searching && self.has_unnamed() && self.searches < MAX_SEARCHES
    }
}

/// Starts the thread that searches. It ends with its requests.
fn start() -> io::Result<(Sender<Request>, Receiver<Answer>)> {
    let (requests, inbox) = mpsc::channel::<Request>();
    let (outbox, answers) = mpsc::channel();
    thread::Builder::new()
        .name("kernel names".into())
        .spawn(move || {
            for request in inbox {
                let answer = Answer {
                    pid: request.pid,
                    build: request.build,
                    learned: look(&request),
                };
                if outbox.send(answer).is_err() {
                    break;
                }
            }
        })?;
    Ok((requests, answers))
}

/// One search; a process that is gone gives nothing.
fn look(request: &Request) -> Learned {
    let begun = Instant::now();
    let opened = ProcessMemory::open(request.pid)
        .and_then(|memory| Ok((memory, inspect::regions(request.pid)?)));
    let (memory, regions) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            tracing::debug!("process {}: memory not readable: {error}", request.pid);
            return Learned::default();
        }
    };
    let found = images::find(&memory, &regions, BUDGET);
    let declared = found.kernel_names();
    tracing::debug!(
        "process {}: {} device images declare {} kernels, {} bytes not searched, {:?}",
        request.pid,
        found.images.len(),
        declared.len(),
        found.skipped,
        begun.elapsed()
    );
    if declared.is_empty() && request.known.is_empty() && request.path.is_none() {
        return Learned::default();
    }
    if let Some(path) = &request.path {
        let names = path::apply(&memory, path, &request.unknown, &declared);
        if names.len() == request.unknown.len() {
            return Learned {
                path: Some(path.clone()),
                names,
            };
        }
    }
    path::learn(
        &memory,
        &regions,
        &request.known,
        &request.unknown,
        &declared,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probes::{ResultKind, ValueFormat, ValueInfo};

    fn probe(id: u32, function: &str, kind: CallKind, at_exit: bool) -> Probe {
        Probe {
            id,
            table: "level-zero".into(),
            api: "Level Zero".into(),
            function: function.into(),
            kind,
            is_ioctl: false,
            values: vec![ValueInfo {
                name: role::KERNEL.into(),
                format: ValueFormat::Hex,
                at_exit,
            }],
            data: Vec::new(),
            result: ResultKind::Level0,
            has_exit: at_exit,
            layout: None,
        }
    }

    fn call(probe: u32, kernel: u64, flags: u16) -> Call {
        let mut values = [0; aiprof_common::MAX_VALUES];
        values[0] = kernel;
        Call {
            time_ns: 1,
            cpu: 0,
            pid: std::process::id(),
            tid: 1,
            probe,
            library: 1,
            stack: 0,
            sp: 0x1000,
            result: 0,
            unread: 0,
            flags,
            values,
        }
    }

    fn late() -> LateKernels {
        let mut late = LateKernels::default();
        late.probe(&probe(0, "zeKernelCreate", CallKind::Kernel, true));
        late.probe(&probe(
            1,
            "zeCommandListAppendLaunchKernel",
            CallKind::Launch,
            false,
        ));
        late.probe(&probe(2, "zeKernelDestroy", CallKind::Kernel, false));
        late
    }

    #[test]
    fn only_kernels_not_seen_created_are_looked_for() {
        let mut late = late();
        late.call(&call(0, 0x100, aiprof_common::CALL_EXIT));
        late.call(&call(1, 0x100, 0));
        assert_eq!(late.unnamed(), 0);
        late.call(&call(1, 0x200, 0));
        late.call(&call(1, 0x200, 0));
        assert_eq!(late.unnamed(), 1);
        late.call(&call(2, 0x200, 0));
        assert_eq!(late.unnamed(), 0);
        let mut unread = call(1, 0x300, 0);
        unread.unread = 1;
        late.call(&unread);
        assert_eq!(late.unnamed(), 0);
    }

    #[test]
    fn a_search_waits_for_more_kernels_and_is_not_repeated_for_ever() {
        let now = Instant::now();
        let mut late = late();
        // A handle that leads nowhere, in this very process.
        late.call(&call(1, 8, 0));
        assert!(late.maintain(now, |_| 1).is_empty());
        assert_eq!(late.programs.values().next().unwrap().searches, 0);
        let mut later = now;
        for _ in 0..30 {
            later += Duration::from_secs(3600);
            late.maintain(later, |_| 1);
            late.settle(|_| 1, Duration::from_secs(20));
        }
        let program = late.programs.values().next().unwrap();
        assert_eq!(program.searches, MAX_SEARCHES);
        assert!(program.has_unnamed());
    }

    /// An object with the name inside, as a driver's would be.
    #[repr(C)]
    struct Object {
        other: u64,
        name: *const u8,
        len: u64,
    }

    #[test]
    fn what_one_kernel_teaches_names_the_other() {
        let texts = [c"first_kernel", c"second_kernel"];
        let objects: Vec<Box<Object>> = texts
            .iter()
            .map(|text| {
                Box::new(Object {
                    other: 7,
                    name: text.as_ptr().cast(),
                    len: text.to_bytes().len() as u64,
                })
            })
            .collect();
        let at = |i: usize| std::ptr::from_ref::<Object>(&objects[i]) as u64;
        let mut late = late();
        let created = call(0, at(0), aiprof_common::CALL_EXIT);
        late.programs
            .entry(created.pid)
            .or_default()
            .pending
            .insert(created.tid, "first_kernel".into());
        late.call(&created);
        late.call(&call(1, at(1), 0));
        let found = late.settle(|_| 1, Duration::from_secs(20));
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].kernel, found[0].name.as_str()),
            (at(1), "second_kernel")
        );
        assert_eq!(late.unnamed(), 0);
        assert_eq!(objects[1].other, 7);
    }
}
