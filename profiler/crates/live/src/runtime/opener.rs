//! The threads that open files and read what should be probed in them.
//!
//! A file may be another user's, on a file system that never answers: such a job holds up only its
//! owner's jobs (see [`aiprof_system::workers`]).

use super::{
    attach::Candidate,
    budget::Budgets,
    discover::{self, ALTERNATIVE_DRIVERS},
    library::{LibraryError, ProbedLibrary},
    plan::{self, ProbePlan, Use},
    registry::{FileIdentity, FileSeen, Files, Nature},
    worker,
};
use crate::{locking::lock, owner, procfs};
use aiprof_model::{probes::table::Exits, process::Region, profile::BuildId, wire::MapEvent};
use aiprof_system::{
    files::others::{self, RootDir},
    workers::{Outcome, Owner, Pool, PoolLimits, Refused, Ticket},
};
use std::{
    ffi::OsString,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// The threads, and what they may take up.
const LIMITS: PoolLimits = PoolLimits {
    threads: 4,
    // Reading the symbols of the largest libraries takes a second on a busy machine.
    patience: Duration::from_secs(3),
    queue: 1024,
    at_once: 2,
    at_once_new: usize::MAX,
    stuck_of_owner: 2,
    stuck: 24,
};

/// Something to do.
pub(super) enum OpenWork {
    /// Read a file and plan its probes.
    File(Box<FileWork>),
    /// Look what a process has mapped.
    Process(u32),
}

/// A file to read.
pub(super) struct FileWork {
    /// Who has it mapped.
    pub(super) owner: Owner,
    /// Where it is.
    pub(super) place: FileLocation,
    /// Its path, for people.
    pub(super) path: String,
    /// The tables that have functions of it.
    pub(super) uses: Vec<Use>,
    /// Which exits are wanted.
    pub(super) exits: Exits,
    /// Offsets of the first instructions in the file, and symbols; `None`: whatever the
    /// tables name.
    pub(super) functions: Option<Vec<(u64, String)>>,
    /// Who attaches; `None`: the job comes back.
    pub(super) attach: Option<worker::Jobs>,
}

/// Where a file is.
pub(super) enum FileLocation {
    /// There, seen with the caller's rights.
    Path(PathBuf),
    /// The program of a process.
    Program(u32),
    /// Mapped in a process.
    Mapped(u32, Box<MapEvent>),
}

/// What came of it.
pub(super) enum OpenAnswer {
    /// It is being probed, or there is nothing to probe.
    Done,
    /// The job that probes it.
    Ready(Owner, worker::AttachJob),
    /// It cannot be probed; the count is the number of losses.
    Failed(u64),
    /// What a process has mapped, and the drivers that its environment names to its loader.
    Maps(u32, Vec<MapEvent>, Option<OsString>),
}

/// What was seen, and what more may be.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// The files seen.
    pub(super) files: Files,
    /// What each owner has.
    pub(super) budgets: Budgets,
}

/// The threads.
pub(super) struct Opener {
    pool: Option<Pool<OpenWork, OpenAnswer>>,
    gate: Arc<Mutex<Gate>>,
}

impl Opener {
    /// Threads with the privileges that the calling thread has when it gives them
    /// their work.
    pub(super) fn new(gate: Arc<Mutex<Gate>>) -> Self {
        let shared = Arc::clone(&gate);
        let pool = Pool::new("aiprof-open", LIMITS, move || {
            aiprof_system::os::scheduling::take_turns();
            let gate = Arc::clone(&shared);
            Box::new(move |work| run(&gate, work))
        });
        let pool = pool.inspect_err(|error| tracing::warn!("cannot probe libraries: {error}"));
        Self {
            pool: pool.ok(),
            gate,
        }
    }

    /// What was seen.
    pub(super) fn gate(&self) -> &Arc<Mutex<Gate>> {
        &self.gate
    }

    /// Has something done.
    ///
    /// # Errors
    /// Why it is not.
    pub(super) fn give(&mut self, owner: Owner, work: OpenWork) -> Result<Ticket, Refused> {
        let pool = self.pool.as_mut();
        pool.ok_or(Refused::NoThread)?.give(owner, work)
    }

    /// What came of it since the last call.
    pub(super) fn answers(&mut self) -> Vec<(Ticket, Outcome<OpenAnswer>)> {
        self.pool.as_mut().map_or_else(Vec::new, Pool::answers)
    }

    /// Whether there are answers to come.
    pub(super) fn is_busy(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| pool.pending() > 0)
    }
}

fn run(gate: &Mutex<Gate>, work: OpenWork) -> OpenAnswer {
    match work {
        OpenWork::Process(pid) => look_at(pid),
        OpenWork::File(work) => {
            let pid = match &work.place {
                FileLocation::Path(_) => None,
                FileLocation::Program(pid) | FileLocation::Mapped(pid, _) => Some(*pid),
            };
            let path = work.path.clone();
            read(gate, *work).unwrap_or_else(|error| {
                tracing::debug!("{path}: not probed: {error}");
                // What could not be read of a process that has ended is no loss.
                OpenAnswer::Failed(pid.map_or(0, |pid| u64::from(is_running(pid))))
            })
        }
    }
}

/// Whether a process is still there.
fn is_running(pid: u32) -> bool {
    // A zombie has none.
    aiprof_system::files::kernel::read_link(format!("/proc/{pid}/exe")).is_ok()
}

/// What a process has mapped.
fn look_at(pid: u32) -> OpenAnswer {
    // It may have ended, or be another user's.
    let mut maps = procfs::executable_maps(pid, pid).unwrap_or_default();
    maps.retain(|map| Region::of(&map.file) == Region::File);
    let has_loader = maps.iter().any(|m| discover::is_loader(&m.file.path));
    let drivers = has_loader.then(|| discover::variable_of(pid, ALTERNATIVE_DRIVERS));
    OpenAnswer::Maps(pid, maps, drivers.flatten())
}

/// Opens a file, and plans its probes unless it is probed already.
fn read(gate: &Mutex<Gate>, work: FileWork) -> io::Result<OpenAnswer> {
    let begun = Instant::now();
    if let (FileLocation::Mapped(pid, map), false) = (&work.place, owner::is_trusted(work.owner)) {
        // Neither this thread nor the kernel may ever wait for a program of that user: while a
        // probe is set, no process on this machine can fork.
        let range = map.start..map.start.saturating_add(map.len);
        others::is_served_by_kernel(*pid, others::mapping(*pid, range)?)?;
    }
    let (file, identity) = open(&work)?;
    let nature = Nature::of(&file)?;
    if nature.is_fuse && !owner::is_trusted(work.owner) {
        // The kernel would wait for its program with all forks held up.
        return Err(io::Error::other(
            "on a FUSE file system, where only files of root's and the caller's programs are probed",
        ));
    }
    // What another user's process reports about a file is believed only for that process. Otherwise
    // it could make all users' programs stop at probes in any file.
    let is_hearsay = work.functions.is_some() && !owner::is_trusted(work.owner);
    let identity = match work.place {
        FileLocation::Mapped(pid, _) if is_hearsay => identity.only_in(pid),
        _ => identity,
    };
    let account = if nature.is_system && !is_hearsay {
        Owner::ROOT
    } else {
        work.owner
    };
    if work.functions.is_none() && lock(gate).files.look(&identity) == FileSeen::Known {
        return Ok(OpenAnswer::Done);
    }
    if lock(gate).budgets.is_exhausted(account) {
        lock(gate).budgets.refuse(account);
        return Ok(OpenAnswer::Done);
    }
    let planned = ProbedLibrary::open(&file).and_then(|library| {
        let build_id = library.build_id();
        Ok((build_id, plan_of(&library, &work)?))
    });
    let (build_id, plan) = match planned {
        Ok(planned) => planned,
        // Found by its name beside libraries; a linker script, for example.
        Err(error) if error.is_not_elf() => {
            tracing::debug!("{}: {error}", work.path);
            return Ok(OpenAnswer::Done);
        }
        Err(error) => {
            tracing::warn!("{}: not probed: {error}", work.path);
            return Ok(OpenAnswer::Failed(1));
        }
    };
    if !admit(gate, account, &identity, &plan, work.functions.is_some()) {
        return Ok(OpenAnswer::Done);
    }
    let job = worker::AttachJob::Attach(Box::new(worker::Attach {
        candidate: Candidate {
            file: Arc::new(file),
            identity,
            path: work.path,
            uses: work.uses,
            build_id,
        },
        plan,
        reading: begun.elapsed(),
    }));
    Ok(match work.attach {
        None => OpenAnswer::Ready(account, job),
        Some(attach) => match attach.give(job) {
            true => OpenAnswer::Done,
            false => OpenAnswer::Failed(1),
        },
    })
}

/// Whether a file may be probed, and was not yet.
fn admit(
    gate: &Mutex<Gate>,
    account: Owner,
    identity: &FileIdentity,
    plan: &ProbePlan,
    by_address: bool,
) -> bool {
    let mut gate = lock(gate);
    let seen = gate.files.look(identity);
    if seen == FileSeen::Known && !by_address {
        return false;
    }
    let taken = gate.budgets.take(
        account,
        plan.functions.len(),
        seen == FileSeen::New,
        identity.only(),
    );
    taken && gate.files.insert(identity).is_ok()
}

/// The probes of a file.
fn plan_of(library: &ProbedLibrary<'_>, work: &FileWork) -> Result<ProbePlan, LibraryError> {
    let Some(functions) = &work.functions else {
        return plan::plan(library, &work.uses, work.exits);
    };
    let mut plan = ProbePlan::default();
    let Some(used) = work.uses.first() else {
        return Ok(plan);
    };
    for (offset, symbol) in functions {
        let function = library.function_at(*offset, symbol);
        let planned = match &function {
            Some(function) => plan::plan_one(library, function, used, work.exits)?,
            None => None,
        };
        match planned {
            Some(planned) => plan.functions.push(planned),
            None => tracing::debug!("{}: {symbol} at {offset:#x} is not probed", work.path),
        }
    }
    Ok(plan)
}

fn open(work: &FileWork) -> io::Result<(File, FileIdentity)> {
    let of = |file: File, build_id: Option<BuildId>| {
        let identity = FileIdentity::of(&file, work.owner.uid, build_id)?;
        Ok((file, identity))
    };
    match &work.place {
        FileLocation::Path(path) => of(aiprof_system::files::caller::open_regular(path)?, None),
        FileLocation::Program(pid) => of(
            discover::open(Path::new(&format!("/proc/{pid}/exe")))?,
            None,
        ),
        FileLocation::Mapped(pid, map) => open_mapped(*pid, map, of),
    }
}

/// Opens the file behind a mapping: through the mapping, where that is allowed, and otherwise by
/// its path. If the kernel does not confirm that it is the file of the mapping, it counts for this
/// process alone, which may have put another file there.
fn open_mapped(
    pid: u32,
    map: &MapEvent,
    of: impl Fn(File, Option<BuildId>) -> io::Result<(File, FileIdentity)>,
) -> io::Result<(File, FileIdentity)> {
    let range = |map: &MapEvent| map.start..map.start.saturating_add(map.len);
    let build_id = map.file.build_id;
    if let Ok(file) = others::open_mapping(pid, range(map)) {
        return of(file, build_id);
    }
    // It may have been cut in parts since.
    let now = procfs::executable_maps(pid, pid).unwrap_or_default();
    let now = now.iter().find(|now| range(now).contains(&map.start));
    if let Some(file) = now.and_then(|now| others::open_mapping(pid, range(now)).ok()) {
        return of(file, build_id);
    }
    let path = map.file.path.as_str();
    let place = RootDir::of_process(pid)?.place(Path::new(path))?;
    let (file, identity) = of(others::regular(place)?, build_id)?;
    let known = now.map_or(&map.file, |now| &now.file);
    Ok(if identity.is_at(known.device, known.inode) {
        (file, identity)
    } else {
        (file, identity.only_in(pid))
    })
}
