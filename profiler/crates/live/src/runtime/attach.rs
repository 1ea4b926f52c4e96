//! Attaching to what was planned, and telling of it.

use super::{
    plan::{Planned, ProbePlan, Use},
    registry::{FileIdentity, Number, Registry},
    stubs::Chain,
};
use crate::bpf::probe::{Attached, BpfLink, Point, RefusedPoint};
use crate::locking::lock;
use aiprof_common::{ProbeSpec, SPEC_EXIT};
use aiprof_model::{
    probes::{Probe, ProbedFile, table::CheckedTable},
    profile::BuildId,
    wire::Event,
};
use aiprof_symbols::unwind::TextSegment;
use rustc_hash::{FxHashMap, FxHashSet};
use std::{
    fs::File,
    io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// The programs at probed functions, by name.
pub(crate) const CALL_PROGRAMS: [&str; 6] = [
    "call_entry",
    "call_entry_s",
    "call_exit",
    "call_exit_s",
    "call_return",
    "call_return_s",
];

/// One of [`CALL_PROGRAMS`], in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum CallProgram {
    /// At the entry.
    Entry,
    /// At the entry; reads memory that may not be resident.
    EntrySleep,
    /// At an instruction that leaves the function.
    Exit,
    /// The same, reading memory that may not be resident.
    ExitSleep,
    /// Behind the return.
    Return,
    /// The same, reading memory that may not be resident.
    ReturnSleep,
}

impl CallProgram {
    /// All, in the order in which they are attached.
    pub(super) const ALL: [Self; 6] = [
        Self::Entry,
        Self::EntrySleep,
        Self::Exit,
        Self::ExitSleep,
        Self::Return,
        Self::ReturnSleep,
    ];

    /// Its name in the eBPF object.
    pub(super) const fn name(self) -> &'static str {
        CALL_PROGRAMS[self as usize]
    }

    /// Whether it is at the entry.
    fn is_entry(self) -> bool {
        matches!(self, Self::Entry | Self::EntrySleep)
    }

    /// Whether it is for return probes.
    pub(super) fn is_return(self) -> bool {
        matches!(self, Self::Return | Self::ReturnSleep)
    }
}

/// What the kernel does for this.
pub(super) trait KernelSide: Send {
    /// Sets what the programs do at the probe with this number.
    ///
    /// # Errors
    /// The map refused it.
    fn describe(&self, probe: u32, spec: &ProbeSpec) -> io::Result<()>;

    /// Attaches a program to points of a file, in one process `only` or in all.
    ///
    /// # Errors
    /// Nothing could be attached.
    fn attach(
        &self,
        program: CallProgram,
        file: &Path,
        only: Option<u32>,
        points: &[Point],
    ) -> io::Result<Attached>;
}

/// What was done so far, for those who ask on another thread.
#[derive(Debug, Default)]
pub(super) struct AttachReport {
    /// Functions and files that are probed from here on.
    pub(super) events: Vec<Event>,
    /// Files with functions that only lead on.
    pub(super) stubs: Vec<Stubs>,
    /// Totals.
    pub(super) tally: Tally,
}

/// The functions of a file that only lead on.
#[derive(Debug)]
pub(super) struct Stubs {
    /// Number of the file.
    pub(super) file: u32,
    /// Its path as first seen.
    pub(super) path: String,
    /// Its build id.
    pub(super) build_id: Option<BuildId>,
    /// Its executable parts.
    pub(super) text: Vec<TextSegment>,
    /// The table that it is a library of.
    pub(super) table: Arc<CheckedTable>,
    /// Symbols, and where they lead to.
    pub(super) chains: Vec<(String, Chain)>,
}

/// Totals of what was attached and what was not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Files with probes.
    pub files: u64,
    /// Functions with probes, in all files.
    pub functions: u64,
    /// Those whose entry the kernel must single-step.
    pub stepped: u64,
    /// Functions that could not be probed.
    pub refused: u64,
    /// Files that could not be read or attached to.
    pub failed: u64,
    /// Files that were replaced, removed or written to while attached.
    pub changed: u64,
    /// Links, each of which the kernel closes on its own.
    pub links: u64,
    /// Time spent on reading files and attaching to them.
    pub attaching: Duration,
    /// Time spent on detaching, where that was waited for.
    pub detaching: Duration,
}

/// A file to be probed.
#[derive(Debug)]
pub(super) struct Candidate {
    /// The file.
    pub(super) file: Arc<File>,
    /// Who it is.
    pub(super) identity: FileIdentity,
    /// Its path as first seen.
    pub(super) path: String,
    /// The tables that have functions of it.
    pub(super) uses: Vec<Use>,
    /// Its build id, once it was read.
    pub(super) build_id: Option<BuildId>,
}

/// A file with probes.
struct Probed {
    candidate: Candidate,
    /// Number of the file for each use of it that has functions.
    numbers: FxHashMap<usize, u32>,
    /// Offsets of the entries.
    entries: FxHashSet<u64>,
    attached: bool,
    changed: bool,
}

/// Attaches, and owns what is attached.
pub(super) struct Attacher {
    kernel: Box<dyn KernelSide>,
    registry: Registry,
    libraries: Vec<Probed>,
    handle: Handle,
    report: Arc<Mutex<AttachReport>>,
}

/// A link, and the process that it is for, if it is for one.
type LinkOf = (Option<u32>, BpfLink);

/// What is attached, and whether to go on, for those on other threads: the kernel
/// may take longer than they can wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Handle {
    links: Arc<Mutex<Vec<LinkOf>>>,
    stopped: Arc<AtomicBool>,
}

impl Handle {
    /// Stops the attaching: nothing more is attached.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// What is attached; dropping it detaches.
    pub(super) fn take_links(&self) -> Vec<BpfLink> {
        let links = std::mem::take(&mut *self.links());
        links.into_iter().map(|(_, link)| link).collect()
    }

    fn links(&self) -> MutexGuard<'_, Vec<LinkOf>> {
        lock(&self.links)
    }
}

impl Attacher {
    /// Nothing attached yet. `capacity`: functions the kernel side has room for.
    pub(super) fn new(kernel: Box<dyn KernelSide>, capacity: u32) -> Self {
        Self {
            kernel,
            registry: Registry::new(capacity),
            libraries: Vec::new(),
            handle: Handle::default(),
            report: Arc::default(),
        }
    }

    /// The report that it fills in.
    pub(super) fn report(&self) -> Arc<Mutex<AttachReport>> {
        Arc::clone(&self.report)
    }

    /// For other threads.
    pub(super) fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Whether the attaching was stopped.
    pub(super) fn is_stopped(&self) -> bool {
        self.handle.stopped.load(Ordering::Relaxed)
    }

    /// Probes functions of a file that may be probed already. `reading`: how long it
    /// took to find them.
    pub(super) fn attach_to(
        &mut self,
        candidate: Candidate,
        mut plan: ProbePlan,
        reading: Duration,
    ) {
        let begun = Instant::now();
        if plan.functions.is_empty() {
            lock(&self.report).tally.refused += plan.unprobed;
            tracing::debug!("{}: has no function of a probe table", candidate.path);
        } else {
            let (index, uses) = self.find(candidate);
            for function in &mut plan.functions {
                function.of = uses.get(function.of).copied().unwrap_or(0);
            }
            self.carry_out(index, plan);
        }
        lock(&self.report).tally.attaching += reading + begun.elapsed();
    }

    /// The index of a file that may be known already, and of the tables' uses of it.
    fn find(&mut self, candidate: Candidate) -> (usize, Vec<usize>) {
        let identity = &candidate.identity;
        let mut known = self.libraries.iter().map(|l| &l.candidate.identity);
        // What is for one process must not be attached in all.
        let is_same = |known: &FileIdentity| known.is(identity) && known.only() == identity.only();
        let Some(index) = known.position(is_same) else {
            let uses = (0..candidate.uses.len()).collect();
            self.libraries.push(Probed::new(candidate));
            return (self.libraries.len() - 1, uses);
        };
        let Some(library) = self.libraries.get_mut(index) else {
            return (index, Vec::new());
        };
        let known = &mut library.candidate.uses;
        let place = |used: Use| {
            known.iter().position(|u| u.is(&used)).unwrap_or_else(|| {
                known.push(used);
                known.len() - 1
            })
        };
        (index, candidate.uses.into_iter().map(place).collect())
    }

    /// The entries of a file that are probed in every process, if it is itself probed in
    /// one.
    fn probed_elsewhere(&self, index: usize) -> FxHashSet<u64> {
        let Some(this) = self.libraries.get(index) else {
            return FxHashSet::default();
        };
        let this = &this.candidate.identity;
        let others = self.libraries.iter().filter(|other| {
            let other = &other.candidate.identity;
            this.only().is_some() && other.only().is_none() && other.is(this)
        });
        others.flat_map(|other| &other.entries).copied().collect()
    }

    /// Describes and attaches what is planned.
    fn carry_out(&mut self, index: usize, plan: ProbePlan) {
        if plan.functions.is_empty() {
            lock(&self.report).tally.refused += plan.unprobed;
            return;
        }
        let elsewhere = self.probed_elsewhere(index);
        let Some(library) = self.libraries.get_mut(index) else {
            return;
        };
        let mut events = Vec::new();
        let mut tally = Tally {
            refused: plan.unprobed,
            ..Tally::default()
        };
        let mut wanted: Vec<(u64, Planned)> = Vec::new();
        let mut stubs: Vec<Stubs> = Vec::new();
        for mut planned in plan.functions {
            // The same code by another name.
            if elsewhere.contains(&planned.places.entry)
                || !library.entries.insert(planned.places.entry)
            {
                continue;
            }
            let number = register(&mut self.registry, &*self.kernel, &planned, &mut events);
            let number = match number {
                Ok(number) => number,
                Err(error) => {
                    tally.refused += 1;
                    tracing::debug!("{}: not probed: {error}", planned.symbol);
                    continue;
                }
            };
            let file = library.number(&planned, &mut self.registry, &mut events);
            if let Some(chain) = planned.leads_to.take() {
                let link = (planned.symbol.clone(), chain);
                match stubs.iter_mut().find(|s| s.file == file) {
                    Some(known) => known.chains.push(link),
                    None => stubs.extend(library.stubs(file, &planned, &plan.text, link)),
                }
            }
            wanted.push((u64::from(file) << 32 | u64::from(number), planned));
        }
        // Reported before anything can happen there.
        let mut report = lock(&self.report);
        report.events.append(&mut events);
        report.stubs.append(&mut stubs);
        drop(report);
        let path = PathBuf::from(format!(
            "/proc/self/fd/{}",
            library.candidate.file.as_raw_fd()
        ));
        let links = self.handle.links().len();
        let only = library.candidate.identity.only();
        let name = library.candidate.path.clone();
        let first = library.attached;
        library.attached = true;
        self.attach(&name, (&path, only), &wanted, &mut tally);
        tally.links = self.handle.links().len().saturating_sub(links) as u64;
        tally.files = u64::from(!first);
        tracing::debug!(
            "{name}: {} functions probed with {} links, {} not probed, {} aliases",
            tally.functions,
            tally.links,
            tally.refused,
            plan.aliases
        );
        lock(&self.report).tally.add(&tally);
    }

    fn attach(
        &self,
        name: &str,
        (file, only): (&Path, Option<u32>),
        wanted: &[(u64, Planned)],
        tally: &mut Tally,
    ) {
        let mut without_entry: FxHashSet<u64> = FxHashSet::default();
        for program in CallProgram::ALL {
            let mut points = Vec::new();
            for (cookie, planned) in wanted {
                if !without_entry.contains(cookie) {
                    points.extend(points_of(program, *cookie, planned));
                }
            }
            if points.is_empty() {
                continue;
            }
            if self.is_stopped() {
                without_entry.extend(points.iter().map(|point| point.cookie));
                continue;
            }
            match self.kernel.attach(program, file, only, &points) {
                Ok(Attached { links, refused }) => {
                    let links = links.into_iter().map(|link| (only, link));
                    self.handle.links().extend(links);
                    for RefusedPoint { point, .. } in refused.iter().filter(|_| program.is_entry())
                    {
                        without_entry.insert(point.cookie);
                    }
                    refused.iter().for_each(|r| tell(name, wanted, r));
                }
                Err(error) => {
                    tracing::warn!("{name}: cannot attach {}: {error}", program.name());
                    if program.is_entry() {
                        without_entry.extend(points.iter().map(|point| point.cookie));
                    }
                }
            }
        }
        let attached = |cookie: &u64| !without_entry.contains(cookie);
        let probed = wanted.iter().filter(|(cookie, _)| attached(cookie));
        for (_, planned) in probed {
            tally.functions += 1;
            tally.stepped += u64::from(!planned.places.emulated);
        }
        tally.refused += without_entry.len() as u64;
    }

    /// Detaches what is for one process, which is gone.
    pub(super) fn forget(&mut self, pid: u32) {
        self.libraries
            .retain(|library| library.candidate.identity.only() != Some(pid));
        let mut links = self.handle.links();
        let gone: Vec<_> = links
            .extract_if(.., |(only, _)| *only == Some(pid))
            .collect();
        drop(links);
        // The kernel takes its time, and whoever wants the others must not wait.
        drop(gone);
    }

    /// Looks which files have changed since they were attached to.
    pub(super) fn check(&mut self) {
        for library in self.libraries.iter_mut().filter(|l| !l.changed) {
            let candidate = &library.candidate;
            if candidate.identity.has_changed(&candidate.file) {
                library.changed = true;
                lock(&self.report).tally.changed += 1;
                tracing::warn!(
                    "{}: replaced or removed; programs that use the old file are still probed",
                    candidate.path
                );
            }
        }
    }
}

impl Probed {
    fn new(candidate: Candidate) -> Self {
        Self {
            candidate,
            numbers: FxHashMap::default(),
            entries: FxHashSet::default(),
            attached: false,
            changed: false,
        }
    }

    /// The first function of this file that only leads on.
    fn stubs(
        &self,
        file: u32,
        planned: &Planned,
        text: &[TextSegment],
        first: (String, Chain),
    ) -> Option<Stubs> {
        let used = self.candidate.uses.get(planned.of)?;
        Some(Stubs {
            file,
            path: self.candidate.path.clone(),
            build_id: self.candidate.build_id,
            text: text.to_vec(),
            table: Arc::clone(&used.table),
            chains: vec![first],
        })
    }

    /// The number of this file as a library of the function's table.
    fn number(
        &mut self,
        planned: &Planned,
        registry: &mut Registry,
        events: &mut Vec<Event>,
    ) -> u32 {
        let Some(used) = self.candidate.uses.get(planned.of) else {
            return 0;
        };
        if let Some(&known) = self.numbers.get(&planned.of) {
            return known;
        }
        let id = registry.file();
        self.numbers.insert(planned.of, id);
        events.push(Event::ProbedFile(ProbedFile {
            id,
            path: self.candidate.path.clone(),
            table: used.table.name.clone(),
            layer: used.layer,
        }));
        id
    }
}

/// Gives a function its number and sets what the kernel side does there.
fn register(
    registry: &mut Registry,
    kernel: &dyn KernelSide,
    planned: &Planned,
    events: &mut Vec<Event>,
) -> io::Result<u32> {
    let compiled = &planned.compiled;
    let number = registry.probe(&compiled.probe.table, &planned.symbol);
    match number.map_err(|_| io::Error::other("too many functions"))? {
        Number::Known(id) => Ok(id),
        Number::New(id) => {
            kernel.describe(id, &compiled.spec)?;
            let probe = Probe {
                id,
                ..compiled.probe.clone()
            };
            events.push(Event::Probe(probe));
            Ok(id)
        }
    }
}

/// The points of a function for one of the programs.
fn points_of(program: CallProgram, cookie: u64, planned: &Planned) -> Vec<Point> {
    let compiled = &planned.compiled;
    let places = &planned.places;
    let entry = match compiled.sleepable {
        true => CallProgram::EntrySleep,
        false => CallProgram::Entry,
    };
    let has_exit = compiled.spec.flags & SPEC_EXIT != 0;
    let exit = match (has_exit, planned.nothrow, compiled.sleepable_exit) {
        (false, ..) => None,
        (true, true, true) => Some(CallProgram::ReturnSleep),
        (true, true, false) => Some(CallProgram::Return),
        (true, false, true) => Some(CallProgram::ExitSleep),
        (true, false, false) => Some(CallProgram::Exit),
    };
    let offsets: &[u64] = if program == entry || exit == Some(program) && program.is_return() {
        std::slice::from_ref(&places.entry)
    } else if exit == Some(program) {
        &places.exits
    } else {
        &[]
    };
    let point = |&offset| Point { offset, cookie };
    offsets.iter().map(point).collect()
}

/// Names a function that the kernel refused.
fn tell(library: &str, wanted: &[(u64, Planned)], refused: &RefusedPoint) {
    let cookie = refused.point.cookie;
    let symbol = wanted.iter().find(|(c, _)| *c == cookie);
    let symbol = symbol.map_or("?", |(_, planned)| &planned.symbol);
    tracing::debug!("{library}: {symbol}: {refused}");
}

impl Tally {
    /// Adds another's numbers.
    fn add(&mut self, other: &Self) {
        self.files += other.files;
        self.functions += other.functions;
        self.stepped += other.stepped;
        self.refused += other.refused;
        self.failed += other.failed;
        self.changed += other.changed;
        self.links += other.links;
        self.attaching += other.attaching;
        self.detaching += other.detaching;
    }
}
