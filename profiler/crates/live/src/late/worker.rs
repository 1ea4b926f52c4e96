//! The thread that searches programs' memory for kernel names.

use super::Build;
use crate::{
    bpf::perf,
    inspect::{
        self, ProcessMemory, Region, images,
        path::{self, Learned, NamePath},
        predict::{self, ObjectClass},
    },
};
use rustc_hash::FxHashMap;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::Instant,
};

/// Most bytes of a process that are searched for device images.
const BUDGET: u64 = 4 << 30;
/// The same before anything was launched: most programs that have a driver loaded
/// may not launch at all.
const BUDGET_AHEAD: u64 = 1 << 30;
/// Most processes whose declared names are remembered.
const MAX_REMEMBERED: usize = 256;

/// What is wanted of a process.
pub(super) enum LateWanted {
    /// What can be known before anything is launched: the paths of the files whose
    /// data its objects point at.
    Ahead(Vec<String>),
    /// The names of these kernels.
    Names(WantedNames),
}

/// Kernels whose names are wanted.
pub(super) struct WantedNames {
    /// Those whose names are known, by handle.
    pub(super) known: BTreeMap<u64, String>,
    /// Those whose names are not.
    pub(super) unknown: BTreeSet<u64>,
    /// The way, if it is known.
    pub(super) path: Option<NamePath>,
}

/// A process, and what is wanted of it.
pub(super) struct SearchRequest {
    pub(super) pid: u32,
    pub(super) build: Build,
    pub(super) wanted: LateWanted,
}

/// What was found.
pub(super) enum LateAnswer {
    /// Objects that may be kernels.
    Ahead(Vec<ObjectClass>),
    /// Kernels' names.
    Names(Learned),
}

/// The answer to a [`SearchRequest`].
pub(super) struct SearchAnswer {
    pub(super) pid: u32,
    pub(super) build: Build,
    /// When the last of it had been read, CLOCK_MONOTONIC nanoseconds.
    pub(super) read_ns: u64,
    pub(super) found: LateAnswer,
}

/// The declared names of processes looked at before.
type Remembered = FxHashMap<u32, BTreeSet<String>>;

/// Starts the thread that searches. It ends with its requests.
pub(super) fn start() -> io::Result<(Sender<SearchRequest>, Receiver<SearchAnswer>)> {
    let (requests, inbox) = mpsc::channel::<SearchRequest>();
    let (outbox, answers) = mpsc::channel();
    thread::Builder::new()
        .name("kernel names".into())
        .spawn(move || {
            let mut remembered = Remembered::default();
            for request in inbox {
                let found = match &request.wanted {
                    LateWanted::Ahead(files) => ahead(request.pid, files, &mut remembered),
                    LateWanted::Names(names) => look(request.pid, names, &mut remembered),
                };
                let answer = SearchAnswer {
                    pid: request.pid,
                    build: request.build,
                    read_ns: perf::monotonic_ns(),
                    found,
                };
                if outbox.send(answer).is_err() {
                    break;
                }
            }
        })?;
    Ok((requests, answers))
}

/// A process's memory and what of it is searched.
fn open(pid: u32) -> Option<(ProcessMemory, Vec<Region>)> {
    let opened = ProcessMemory::open(pid).and_then(|memory| Ok((memory, inspect::regions(pid)?)));
    opened
        .inspect_err(|error| tracing::debug!("cannot read the memory of process {pid}: {error}"))
        .ok()
}

/// The names that the device images of a process declare.
fn declared(
    pid: u32,
    memory: &ProcessMemory,
    regions: &[Region],
    budget: u64,
    remembered: &mut Remembered,
) -> BTreeSet<String> {
    let begun = Instant::now();
    let found = images::find(memory, regions, budget);
    let names: BTreeSet<String> = found.kernel_names().into_iter().map(Into::into).collect();
    tracing::debug!(
        "process {pid}: {} modules declare {} kernels, {} bytes not searched, {:?}",
        found.images.len(),
        names.len(),
        found.skipped,
        begun.elapsed()
    );
    if remembered.len() >= MAX_REMEMBERED {
        remembered.clear();
    }
    remembered.insert(pid, names.clone());
    names
}

/// What can be known before anything is launched.
fn ahead(pid: u32, files: &[String], remembered: &mut Remembered) -> LateAnswer {
    let Some((memory, regions)) = open(pid) else {
        return LateAnswer::Ahead(Vec::new());
    };
    let own = inspect::data_of(pid, |path| files.iter().any(|f| f == path));
    let own = own.unwrap_or_default();
    let names = declared(pid, &memory, &regions, BUDGET_AHEAD, remembered);
    let names = names.iter().map(String::as_str).collect();
    let begun = Instant::now();
    // Remains of calls look like objects there.
    let stack = inspect::data_of(pid, |path| path == "[stack]").unwrap_or_default();
    let mut regions = regions;
    regions.retain(|region| !stack.contains(region));
    let classes = predict::classes(&memory, &regions, &own, &names, BUDGET_AHEAD);
    tracing::debug!(
        "process {pid}: {} classes of named objects, {:?}",
        classes.len(),
        begun.elapsed()
    );
    LateAnswer::Ahead(classes)
}

/// One search; a process that is gone gives nothing.
fn look(pid: u32, wanted: &WantedNames, remembered: &mut Remembered) -> LateAnswer {
    let begun = Instant::now();
    let mut learned = Learned::default();
    if let Some((memory, regions)) = open(pid) {
        learned = quick(&memory, wanted).unwrap_or_default();
        // What was declared earlier may do; there may be more images since.
        let earlier = remembered.get(&pid).cloned();
        for names in [earlier, None] {
            if learned.names.len() == wanted.unknown.len() {
                break;
            }
            let names =
                names.unwrap_or_else(|| declared(pid, &memory, &regions, BUDGET, remembered));
            let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
            if !names.is_empty() || !wanted.known.is_empty() {
                let (known, unknown) = (&wanted.known, &wanted.unknown);
                learned = path::learn(&memory, &regions, known, unknown, &names);
            }
        }
    }
    tracing::debug!(
        "process {pid}: {:?} names {} of {} kernels, {:?}",
        learned.path,
        learned.names.len(),
        wanted.unknown.len(),
        begun.elapsed()
    );
    LateAnswer::Names(learned)
}

/// By a way that is known already, for the driver is.
fn quick(memory: &ProcessMemory, wanted: &WantedNames) -> Option<Learned> {
    let path = wanted.path.clone()?;
    let names = path::apply(memory, &path, &wanted.unknown, &BTreeSet::new());
    Some(Learned {
        path: Some(path),
        names,
        is_proven: true,
    })
}
