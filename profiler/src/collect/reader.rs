//! The threads that read what belongs to other users while a recording runs: which
//! files a process has mapped, these files, the unwind tables in them.
//!
//! The thread that reads the rings asks, and goes on. Answers are mostly there
//! before they are needed, for events wait a millisecond before they are taken in.
//! Where one is not, it is waited for, shortly, and only out of a [`Budget`] that
//! nobody can exhaust for long. What does not come in time comes later or never:
//! then a mapping has no file, a stack is cut, and both are counted.

use super::{
    privileges::{self, StillToDo},
    procfs::{self, FileStat, MappedFile, OpenError},
};
use crate::{
    process::{FileId, Region},
    unwind::{PageContent, ReadAt, UnwindError, UnwindFile},
    wire::MapEvent,
    workers::{Outcome, Owner, Pool, PoolLimits, Refused, Ticket},
};
use rustc_hash::{FxHashMap, FxHashSet};
use sha2::{Digest as _, Sha256};
use std::{
    fs::File,
    io,
    ops::Deref,
    os::fd::BorrowedFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Threads that read. Two, so that a slow file holds up nobody for long.
const THREADS: usize = 2;
/// How long one reading may take before its thread is given up.
const PATIENCE: Duration = Duration::from_millis(500);
/// Most files opened of a process that is met when it runs already.
const MAX_FILES: usize = 1024;
/// Most processes whose owners are remembered.
const MAX_OWNERS: usize = 65_536;

/// A file shared between the unwinder and the symbolizer; read with pread, so
/// that a file cut off under us is a short read and not a SIGBUS.
#[derive(Clone, Debug)]
pub struct Shared(pub Arc<File>);

impl ReadAt for Shared {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(&*self.0, buf, offset)
    }
}

/// A mapped file while it is open.
#[derive(Debug)]
pub struct OpenFile {
    /// The file.
    pub file: Shared,
    /// Its unwind data, `None` where it is no ELF file of this machine.
    pub unwind: Option<NamedUnwind>,
}

impl OpenFile {
    /// Reads the headers; `path` is for messages.
    pub fn new(file: File, path: &str) -> Self {
        let file = Shared(Arc::new(file));
        let unwind = UnwindFile::open(file.clone())
            .inspect_err(|error| tracing::warn!("{path}: no unwind data: {error}"))
            .ok()
            .map(|file| NamedUnwind::new(file, path));
        Self { file, unwind }
    }
}

/// A file's unwind data that reports, once and by the file's name, what of it is
/// not usable. Reads like the [`UnwindFile`] that it holds.
#[derive(Debug)]
pub struct NamedUnwind {
    file: UnwindFile<Shared>,
    path: String,
    warned: AtomicBool,
}

impl NamedUnwind {
    fn new(file: UnwindFile<Shared>, path: &str) -> Self {
        let named = Self {
            file,
            path: path.to_owned(),
            warned: AtomicBool::new(false),
        };
        named.check(None);
        named
    }

    /// [`UnwindFile::page`]; warns at the first error or malformed entry.
    ///
    /// # Errors
    /// As there.
    pub fn page(&self, index: u32, out: &mut Vec<u8>) -> Result<PageContent, UnwindError> {
        let content = self.file.page(index, out);
        self.check(content.as_ref().err());
        content
    }

    /// Warns of an error, or of anything malformed so far, the first time.
    fn check(&self, error: Option<&UnwindError>) {
        let malformed = self.file.malformed() > 0;
        if !malformed && error.is_none() || self.warned.swap(true, Ordering::Relaxed) {
            return;
        }
        let path = &self.path;
        match error {
            Some(error) => tracing::warn!("{path}: unwind data not usable: {error}"),
            None => tracing::warn!(
                "{path}: unwind data (.eh_frame) malformed: stacks through it may be cut"
            ),
        }
    }
}

impl Deref for NamedUnwind {
    type Target = UnwindFile<Shared>;

    fn deref(&self) -> &Self::Target {
        &self.file
    }
}

/// Something to read.
enum Job {
    /// The file behind a mapping of a process.
    File { pid: u32, map: MapEvent },
    /// A process, by any of its threads: its name, its mappings, their files.
    Process { pid: u32, tid: u32 },
    /// Tables of pages of a file.
    Tables {
        id: FileId,
        file: Arc<OpenFile>,
        pages: Vec<u32>,
    },
}

/// What was found behind a mapping.
#[derive(Debug)]
pub enum Found {
    /// A file that is open already, by [`Reader::holds`].
    Held(FileStat),
    /// A file, opened.
    Opened {
        /// It.
        file: Arc<OpenFile>,
        /// Which it is.
        stat: FileStat,
        /// See [`MappedFile::through_mapping`].
        through_mapping: bool,
    },
    /// Why none could be opened.
    Failed(OpenError),
}

/// A page of unwind data as the pool stores it.
#[derive(Clone, Debug)]
pub enum Table {
    /// Its bytes, and a digest of them that cannot be made to collide.
    Built(Arc<[u8]>, TableDigest),
    /// There is no unwind data for it, or none that can be used.
    NoData,
}

/// SHA-256 of a table.
pub type TableDigest = [u8; 32];

/// What came back.
#[derive(Debug)]
pub enum Answer {
    /// Of a mapping that was asked for.
    File {
        /// The process.
        pid: u32,
        /// The mapping.
        map: MapEvent,
        /// What is behind it.
        found: Found,
    },
    /// Of a process that was asked for.
    Process {
        /// The process.
        pid: u32,
        /// Its name.
        comm: String,
        /// All its executable mappings.
        maps: Vec<MapEvent>,
        /// What is behind the first mapping of each file, by its index.
        found: Vec<(usize, Found)>,
    },
    /// Tables of a file.
    Tables {
        /// The file.
        id: FileId,
        /// Them, by the index of their page.
        pages: Vec<(u32, Table)>,
    },
    /// What was asked is not answered in time, if at all.
    Late(Asked),
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The file behind a mapping of a process, by the device and inode number that
    /// the kernel shows.
    File(u32, (u64, u64)),
    /// A process.
    Process(u32),
    /// Tables of a file.
    Tables(FileId, Vec<u32>),
}

/// How much the main thread may wait.
#[derive(Debug)]
struct Budget {
    left: Duration,
    at: Instant,
}

impl Budget {
    /// What can be saved up, and the part of the time that is added.
    const MOST: Duration = Duration::from_millis(60);
    const SHARE: u32 = 20;
    /// Most for one answer.
    const EACH: Duration = Duration::from_millis(20);

    fn take(&mut self) -> Duration {
        let now = Instant::now();
        self.left = (self.left + (now - self.at) / Self::SHARE).min(Self::MOST);
        self.at = now;
        self.left.min(Self::EACH)
    }

    fn spend(&mut self, waited: Duration) {
        self.left = self.left.saturating_sub(waited);
    }
}

/// The threads, and what is asked of them.
#[derive(Debug)]
pub struct Reader {
    pool: Pool<Job, Answer>,
    /// Files that are open already: they need not be opened again.
    held: Arc<Mutex<FxHashSet<FileStat>>>,
    asked: FxHashMap<Ticket, Asked>,
    owners: FxHashMap<u32, Owner>,
    budget: Budget,
    /// Readings that were refused or did not end in time.
    pub late: u64,
}

impl Reader {
    /// The threads are started when there is something to do.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        let held = Arc::new(Mutex::new(FxHashSet::default()));
        let shared = Arc::clone(&held);
        let limits = PoolLimits {
            threads: THREADS,
            patience: PATIENCE,
            ..PoolLimits::default()
        };
        let pool = Pool::new("aiprof-read", limits, move || {
            // Started before or after this process gave up what it does not need.
            if let Err(error) = privileges::drop_to_needed(StillToDo::default()) {
                tracing::debug!("{error}");
            }
            let held = Arc::clone(&shared);
            Box::new(move |job| read(job, &held))
        })?;
        Ok(Self {
            pool,
            held,
            asked: FxHashMap::default(),
            owners: FxHashMap::default(),
            budget: Budget {
                left: Budget::MOST,
                at: Instant::now(),
            },
            late: 0,
        })
    }

    /// Readable when an answer has come.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.pool.fd()
    }

    /// On whose account it is what a process does.
    pub fn owner(&mut self, pid: u32) -> Owner {
        if self.owners.len() >= MAX_OWNERS {
            self.owners.clear();
        }
        *self.owners.entry(pid).or_insert_with(|| procfs::owner(pid))
    }

    /// A process has ended, or may be another user's now.
    pub fn forget(&mut self, pid: u32) {
        self.owners.remove(&pid);
    }

    /// Asks for the file behind a mapping of a process. `false`: refused, there will
    /// be no answer.
    pub fn ask_file(&mut self, pid: u32, map: MapEvent) -> bool {
        let asked = Asked::File(pid, (map.file.device, map.file.inode));
        let owner = self.owner(pid);
        self.ask(owner, asked, Job::File { pid, map })
    }

    /// Asks for a process: its name, mappings and files. `tid` is any of its live
    /// threads.
    pub fn ask_process(&mut self, pid: u32, tid: u32) -> bool {
        let owner = self.owner(pid);
        self.ask(owner, Asked::Process(pid), Job::Process { pid, tid })
    }

    /// Asks for tables of an open file, on somebody's account.
    pub fn ask_tables(
        &mut self,
        owner: Owner,
        id: FileId,
        file: Arc<OpenFile>,
        pages: Vec<u32>,
    ) -> bool {
        let asked = Asked::Tables(id, pages.clone());
        self.ask(owner, asked, Job::Tables { id, file, pages })
    }

    fn ask(&mut self, owner: Owner, asked: Asked, job: Job) -> bool {
        match self.pool.give(owner, job) {
            Ok(ticket) => {
                self.asked.insert(ticket, asked);
                true
            }
            Err(error) => {
                self.late += 1;
                if error == Refused::NoThread {
                    tracing::warn!("nothing can be read of other processes: {error}");
                }
                false
            }
        }
    }

    /// The answers that have come since the last call.
    pub fn answers(&mut self) -> Vec<Answer> {
        let mut answers = Vec::new();
        for (ticket, outcome) in self.pool.answers() {
            let asked = self.asked.remove(&ticket);
            match (outcome, asked) {
                (Outcome::Done(answer), Some(_)) => answers.push(answer),
                // It was given up before, and has come all the same.
                (Outcome::Done(answer @ Answer::File { .. }), None) => answers.push(answer),
                (Outcome::Stuck | Outcome::Failed, Some(asked)) => {
                    self.late += 1;
                    tracing::debug!("not read in time: {asked:?}");
                    answers.push(Answer::Late(asked));
                }
                (_, None) => {}
            }
        }
        answers
    }

    /// Waits a little for answers, out of the budget. `false`: there is no time
    /// left, or none came.
    pub fn wait(&mut self) -> bool {
        let most = self.budget.take();
        if most.is_zero() || self.pool.pending() == 0 {
            return false;
        }
        let begun = Instant::now();
        let came = self.pool.wait(begun + most);
        self.budget.spend(begun.elapsed());
        came
    }

    /// Waits for answers as long as this, where nothing else is to be done yet.
    /// `false`: nothing is being read.
    pub fn wait_until(&self, end: Instant) -> bool {
        // Looked at in between: what is stuck is no longer waited for.
        let soon = Instant::now() + PATIENCE / 5;
        self.pool.pending() > 0 && (self.pool.wait(end.min(soon)) || Instant::now() < end)
    }

    /// What was asked for so far is not wanted any more.
    pub fn begin_afresh(&mut self) {
        self.asked.clear();
    }

    /// A file is held open, or not any more.
    pub fn holds(&self, stat: FileStat, held: bool) {
        let mut all = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held {
            all.insert(stat);
        } else {
            all.remove(&stat);
        }
    }
}

/// Does a job, on a thread of the pool.
fn read(job: Job, held: &Mutex<FxHashSet<FileStat>>) -> Answer {
    match job {
        Job::File { pid, map } => {
            let found = find(pid, &map, held);
            Answer::File { pid, map, found }
        }
        Job::Process { pid, tid } => {
            let maps = procfs::executable_maps(pid, tid).unwrap_or_default();
            let mut seen = FxHashSet::default();
            let first = |(_, map): &(usize, &MapEvent)| {
                let is_file = Region::of(&map.file) == Region::File;
                is_file && seen.insert((map.file.device, map.file.inode))
            };
            let files = maps.iter().enumerate().filter(first).take(MAX_FILES);
            let found = files.map(|(i, map)| (i, find(pid, map, held))).collect();
            Answer::Process {
                pid,
                comm: procfs::comm(pid).unwrap_or_default(),
                maps,
                found,
            }
        }
        Job::Tables { id, file, pages } => {
            let built = |page| (page, build(&file, page));
            Answer::Tables {
                id,
                pages: pages.into_iter().map(built).collect(),
            }
        }
    }
}

fn find(pid: u32, map: &MapEvent, held: &Mutex<FxHashSet<FileStat>>) -> Found {
    match procfs::open_exact(pid, map) {
        Ok(MappedFile {
            file,
            stat,
            through_mapping,
        }) => {
            let held = held.lock().unwrap_or_else(PoisonError::into_inner);
            if through_mapping && held.contains(&stat) {
                return Found::Held(stat);
            }
            drop(held);
            Found::Opened {
                file: Arc::new(OpenFile::new(file, &map.file.path)),
                stat,
                through_mapping,
            }
        }
        Err(error) => Found::Failed(error),
    }
}

fn build(file: &OpenFile, page: u32) -> Table {
    let mut content = Vec::new();
    let built = file.unwind.as_ref().map(|u| u.page(page, &mut content));
    match built {
        Some(Ok(PageContent::Table)) => {
            let digest = Sha256::digest(&content).into();
            Table::Built(content.into(), digest)
        }
        Some(Ok(PageContent::NoData)) | None => Table::NoData,
        Some(Err(error)) => {
            tracing::debug!("unwind table page {page}: {error}");
            Table::NoData
        }
    }
}
