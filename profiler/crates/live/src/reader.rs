//! The threads that read what belongs to other users while a recording runs: which
//! files a process has mapped, these files, the unwind tables in them.
//!
//! The thread that reads the rings asks, and goes on. Answers are mostly there before they are
//! needed, for events wait a millisecond before they are taken in. An answer that is not there is
//! waited for, but only briefly, and out of a budget that no user can exhaust for long. What does
//! not come in time comes later or never: then a mapping has no file, a stack is cut, and both are
//! counted.

use super::{
    device_use, environment,
    java::FoundJava,
    kubernetes::PodNames,
    owner,
    procfs::{self, FileStat, MappedFile, OpenError},
    tables::{Wanted, Wish},
};
use aiprof_model::{
    labels,
    process::{FileId, Region},
    profile::BuildId,
    wire::MapEvent,
};
use aiprof_symbols::java::{HotSpot, JavaLibrary};
use aiprof_symbols::python::Interpreter;
use aiprof_symbols::unwind::{PageContent, ReadAt, TextSegment, UnwindError, UnwindFile};
use aiprof_symbols::v8::{V8Error, V8Library};
use aiprof_system::{
    files::{kernel, others},
    os::privileges,
    remote::{Client, Line, MAX_DESCRIPTORS, READER, cpu_clock},
    workers::{JobWorker, Outcome, Owner, Pool, PoolLimits, Refused, Ticket},
};
use rustc_hash::{FxHashMap, FxHashSet};
use rustix::fs::StatxFlags;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::{
    cell::Cell,
    fs::File,
    io,
    ops::{Deref, Range},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

/// Threads that read. Two, so that a slow file does not hold up others for long.
const THREADS: usize = 2;
/// How long one reading may take before its thread is given up.
const PATIENCE: Duration = Duration::from_millis(500);
/// Most files opened of a process that is met when it runs already: they come with
/// one message. A program that trains maps some 80, a desktop's browser 200.
const MAX_FILES: usize = MAX_DESCRIPTORS;
/// How long they are opened: what is left then is asked for by itself.
const OPENING: Duration = Duration::from_millis(150);
/// Most processes whose owners are remembered.
const MAX_OWNERS: usize = 65_536;

/// A file that several may read; read with pread, so that a file cut off under us is
/// a short read and not a SIGBUS.
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
    /// The file, as a place only (`O_PATH`): so it keeps its identity, and neither
    /// reading nor closing it can block here. Readers open it again.
    pub place: OwnedFd,
    /// What its headers contain.
    pub facts: Box<Facts>,
    /// Which content it is, see [`super::binaries`]; 0 until that is decided.
    pub number: u64,
}

/// What the headers of a file contain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Its executable segments.
    pub text: Vec<TextSegment>,
    /// Where its text is, if it has any.
    pub unwind: Option<Shape>,
    /// Its build id.
    pub build_id: Option<BuildId>,
    /// The Python interpreter in it.
    pub python: Option<Interpreter>,
    /// The HotSpot in it.
    pub java: Option<Box<JavaLibrary>>,
    /// The V8 in it, or why it cannot be read.
    pub v8: Option<Box<Result<V8Library, V8Error>>>,
}

/// The extent of a file's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Pages of text.
    pub n_pages: u32,
    /// Virtual address of the first.
    pub first_page_vaddr: u64,
    /// Whether the file has unwind data; if not, its instructions give the rules, which
    /// takes time.
    pub described: bool,
    /// Whether its functions may go on on another stack: a copy of one is not enough then
    /// to finish a walk.
    pub changes_stacks: bool,
}

/// The memory of a process, as a file whose offsets are addresses. What cannot be read
/// ends it.
struct Memory(File);

impl ReadAt for Memory {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(std::os::unix::fs::FileExt::read_at(&self.0, buf, offset).unwrap_or(0))
    }
}

impl OpenFile {
    /// A file of this program's own, whose headers are read at once.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn own(file: File, path: &str) -> io::Result<Self> {
        let place = file.try_clone()?.into();
        let file = Shared(Arc::new(file));
        Ok(Self {
            facts: Box::new(facts(open_unwind(&file, path).as_ref())),
            place,
            number: 0,
        })
    }
}

fn open_unwind(file: &Shared, path: &str) -> Option<NamedUnwind> {
    UnwindFile::open(file.clone())
        .inspect_err(|error| tracing::warn!("{path}: no unwind data: {error}"))
        .ok()
        .map(|file| NamedUnwind::new(file, path))
}

fn facts(unwind: Option<&NamedUnwind>) -> Facts {
    let Some(unwind) = unwind else {
        return Facts::default();
    };
    Facts {
        text: unwind.text().to_vec(),
        unwind: (unwind.n_pages() > 0).then(|| Shape {
            n_pages: unwind.n_pages(),
            first_page_vaddr: unwind.first_page_vaddr(),
            described: unwind.has_unwind_data(),
            changes_stacks: unwind.changes_stacks(),
        }),
        build_id: unwind.build_id(),
        python: Interpreter::find(unwind.source()),
        java: JavaLibrary::find(unwind.source()).map(Box::new),
        v8: V8Library::find(unwind.source()).map(Box::new),
    }
}

/// A file's unwind data that reports, once and by the file's name, what of it is
/// not usable. Reads like the [`UnwindFile`] that it holds.
#[derive(Debug)]
struct NamedUnwind {
    file: UnwindFile<Shared>,
    path: String,
    warned: Cell<bool>,
}

impl NamedUnwind {
    fn new(file: UnwindFile<Shared>, path: &str) -> Self {
        let named = Self {
            file,
            path: path.to_owned(),
            warned: Cell::new(false),
        };
        named.check(None);
        named
    }

    /// [`UnwindFile::page`] if `whole`, else [`UnwindFile::quick_page`]; warns at the first error
    /// or malformed entry.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn page(
        &self,
        index: u32,
        whole: bool,
        out: &mut Vec<u8>,
    ) -> Result<PageContent, UnwindError> {
        let content = match whole {
            true => self.file.page(index, out),
            false => self.file.quick_page(index, out),
        };
        self.check(content.as_ref().err());
        content
    }

    /// Warns of an error, or of anything malformed so far, the first time.
    fn check(&self, error: Option<&UnwindError>) {
        let malformed = self.file.malformed() > 0;
        if !malformed && error.is_none() || self.warned.replace(true) {
            return;
        }
        let path = &self.path;
        match error {
            Some(error) => tracing::warn!("{path}: cannot use the unwind data: {error}"),
            None => tracing::warn!(
                "{path}: malformed unwind data (.eh_frame); stacks through this file may be cut"
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
#[derive(Debug, Serialize, Deserialize)]
enum ReadJob {
    /// The file behind a mapping of a process.
    File { pid: u32, map: MapEvent },
    /// A process, by any of its threads: its name, its mappings, their files.
    Process { pid: u32, tid: u32 },
    /// The labels of a process: what it has open, its pod's names, and its environment.
    Labels { pid: u32, environment: bool },
    /// The HotSpot of a process: `bias` is what is added to its file's addresses.
    Java {
        pid: u32,
        library: Box<JavaLibrary>,
        bias: u64,
    },
    /// Tables of pages of code that a process has generated.
    Generated { code: Code, pages: Vec<u32> },
    /// Tables of pages of a file, which comes with it.
    Tables {
        /// Which content: what was read of it before need not be read again.
        number: u64,
        /// For messages.
        path: String,
        pages: Vec<u32>,
        /// With code that no unwind data describe.
        whole: bool,
    },
}

/// Code that a process has generated.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Code {
    /// The process.
    pub pid: u32,
    /// Where memory with code is, by address.
    pub text: Vec<Range<u64>>,
    /// What the pages are counted in.
    pub pages: Range<u64>,
}

/// A job, and the file that goes with it.
struct Errand {
    job: ReadJob,
    id: FileId,
    file: Option<Arc<OpenFile>>,
}

/// What was read. Files go with it, in the order of [`Behind::Opened`].
#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    File(Behind),
    Process {
        comm: String,
        maps: Vec<MapEvent>,
        found: Vec<(usize, Behind)>,
    },
    Labels(Vec<(String, String)>),
    Java(FoundJava),
    Tables(Vec<(u32, Table)>),
}

/// What is behind a mapping.
#[derive(Debug, Serialize, Deserialize)]
enum Behind {
    Opened {
        stat: FileStat,
        through_mapping: bool,
        facts: Facts,
    },
    Replaced,
    Failed(String),
}

/// What was found behind a mapping.
#[derive(Debug)]
pub enum Found {
    /// A file, opened.
    Opened {
        /// It.
        file: OpenFile,
        /// Which it is.
        stat: FileStat,
        /// See `MappedFile::through_mapping`.
        through_mapping: bool,
    },
    /// Why none could be opened.
    Failed(OpenError),
}

/// A page of unwind data as the pool stores it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Table {
    /// Its bytes, a digest of them that cannot be made to collide, and whether it is
    /// [`PageContent::Partial`].
    Built(Vec<u8>, TableDigest, bool),
    /// There is no unwind data for it, or none that can be used.
    NoData,
}

impl Table {
    fn new(content: Vec<u8>, is_partial: bool) -> Self {
        let digest = Sha256::digest(&content).into();
        Self::Built(content, digest, is_partial)
    }
}

/// SHA-256 of a table.
pub type TableDigest = [u8; 32];

/// What came back.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "few at a time, and taken apart at once"
)]
pub enum Answer {
    /// The file behind a mapping that was asked for.
    File {
        /// The process.
        pid: u32,
        /// The mapping.
        map: MapEvent,
        /// What is behind it.
        found: Found,
    },
    /// The mappings and files of a process that was asked for.
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
    /// The labels of a process that were asked for.
    Labels {
        /// The process.
        pid: u32,
        /// Them.
        labels: Vec<(String, String)>,
    },
    /// What was found of a HotSpot that was asked for.
    Java {
        /// The process.
        pid: u32,
        /// What was found of it.
        found: FoundJava,
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
    /// The labels of a process.
    Labels(u32),
    /// The HotSpot of a process.
    Java(u32),
    /// Tables of a file, on somebody's account.
    Tables(FileId, Owner, Vec<u32>),
}

/// How much the main thread may wait: what is saved up, and gains a part of the time.
#[derive(Debug)]
struct Budget {
    limits: BudgetLimits,
    left: Duration,
    at: Instant,
}

/// The bounds of a budget.
#[derive(Clone, Copy, Debug)]
struct BudgetLimits {
    /// Most that is saved up.
    most: Duration,
    /// One part in `share` of the time that goes by is added.
    share: u32,
}

/// For what root does here. A storm of short programs needs about a tenth.
const OF_ROOT: BudgetLimits = BudgetLimits {
    most: Duration::from_millis(400),
    share: 4,
};
/// For what another user does.
const OF_OWNER: BudgetLimits = BudgetLimits {
    most: Duration::from_millis(200),
    share: 8,
};
/// For all but root: who makes aiprof wait must not use up what others need.
const OF_ALL: BudgetLimits = BudgetLimits {
    most: Duration::from_millis(800),
    share: 2,
};
/// For all but root, and for root, from the moment that a recording is to end.
const AT_END: Duration = Duration::from_millis(250);
/// Least for one answer: what is left of a budget is saved until there is as much.
const LEAST: Duration = Duration::from_millis(1);
/// How long the rings are not looked at while an answer is waited for.
const MOMENT: Duration = Duration::from_millis(5);
/// Most for one answer: an answer that takes longer is of a slow file, or of many.
const EACH: Duration = Duration::from_millis(150);

impl Budget {
    fn new(limits: BudgetLimits) -> Self {
        Self {
            limits,
            left: limits.most,
            at: Instant::now(),
        }
    }

    /// What there is now.
    fn left(&mut self) -> Duration {
        let now = Instant::now();
        let gained = (now - self.at) / self.limits.share;
        self.left = (self.left + gained).min(self.limits.most);
        self.at = now;
        self.left
    }

    fn spend(&mut self, waited: Duration) {
        self.left = self.left.saturating_sub(waited);
    }

    /// The recording is to end: nothing more is added.
    fn end(&mut self) {
        *self = Self::new(BudgetLimits {
            most: AT_END.min(self.left()),
            share: u32::MAX,
        });
    }
}

/// A wait for one answer, see [`Reader::wait`].
#[derive(Debug)]
pub struct Wait {
    owner: Owner,
    left: Duration,
}

/// The threads, and what is asked of them.
#[derive(Debug)]
pub struct Reader {
    pool: Pool<Errand, Answer>,
    asked: FxHashMap<Ticket, Asked>,
    owners: FxHashMap<u32, Owner>,
    budget: Budget,
    budgets: FxHashMap<Owner, Budget>,
    /// What may be waited before budgets are spent.
    credit: Duration,
    /// Readings that were refused or did not end in time.
    pub late: u64,
}

impl Reader {
    /// The threads are started when there is something to do.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        let limits = PoolLimits {
            threads: THREADS,
            patience: PATIENCE,
            at_once: 1,
            at_once_new: 1,
            ..PoolLimits::default()
        };
        let pool = Pool::of_workers("aiprof-read", limits, || {
            let client = Arc::new(Client::new(READER));
            let remote = Arc::clone(&client);
            let mut here = None;
            JobWorker {
                work: Box::new(move |errand| run(&remote, &mut here, errand)),
                client: Some(client),
            }
        })?;
        Ok(Self {
            pool,
            asked: FxHashMap::default(),
            owners: FxHashMap::default(),
            budget: Budget::new(OF_ALL),
            budgets: FxHashMap::default(),
            credit: Duration::ZERO,
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
        *self
            .owners
            .entry(pid)
            .or_insert_with(|| owner::owner_of(pid))
    }

    /// A process has ended, or may be another user's now.
    pub fn forget(&mut self, pid: u32) {
        self.owners.remove(&pid);
    }

    /// Asks for the file behind a mapping of a process. `false`: refused, there will
    /// be no answer.
    pub(crate) fn ask_file(&mut self, pid: u32, map: MapEvent) -> bool {
        let asked = Asked::File(pid, (map.file.device, map.file.inode));
        let owner = self.owner(pid);
        self.ask(owner, asked, Errand::of(ReadJob::File { pid, map }))
    }

    /// Asks for a process: its name, mappings and files. `tid` is any of its live
    /// threads.
    pub(crate) fn ask_process(&mut self, pid: u32, tid: u32) -> bool {
        let owner = self.owner(pid);
        let job = ReadJob::Process { pid, tid };
        self.ask(owner, Asked::Process(pid), Errand::of(job))
    }

    /// Asks for the labels of a process: the device that it has open, the names of its pod
    /// and container, and, if its `environment` is wanted, those in it.
    pub(crate) fn ask_labels(&mut self, pid: u32, environment: bool) -> bool {
        let owner = self.owner(pid);
        let errand = Errand::of(ReadJob::Labels { pid, environment });
        let given = self.pool.give_later(owner, errand);
        self.asked(Asked::Labels(pid), given)
    }

    /// Asks for the HotSpot of a process. `false`: refused, there will be no answer.
    pub(crate) fn ask_java(&mut self, pid: u32, library: Box<JavaLibrary>, bias: u64) -> bool {
        let owner = self.owner(pid);
        let job = ReadJob::Java { pid, library, bias };
        self.ask(owner, Asked::Java(pid), Errand::of(job))
    }

    /// Asks for tables of an open file.
    pub(crate) fn ask_tables(&mut self, wanted: &Wanted, path: &str, file: Arc<OpenFile>) -> bool {
        let (id, owner) = (wanted.id, wanted.owner);
        let asked = Asked::Tables(id, owner, wanted.pages.clone());
        let job = ReadJob::Tables {
            number: file.number,
            path: path.to_owned(),
            pages: wanted.pages.clone(),
            whole: wanted.wish == Wish::Slow,
        };
        let file = Some(file);
        let errand = Errand { job, id, file };
        match wanted.wish {
            Wish::Missed => self.ask(owner, asked, errand),
            Wish::Slow | Wish::Ahead => {
                let given = self.pool.give_later(owner, errand);
                self.asked(asked, given)
            }
        }
    }

    /// Asks for tables of code that a process has generated.
    pub(crate) fn ask_generated(&mut self, wanted: &Wanted, code: Code) -> bool {
        let (id, owner) = (wanted.id, wanted.owner);
        let asked = Asked::Tables(id, owner, wanted.pages.clone());
        let job = ReadJob::Generated {
            code,
            pages: wanted.pages.clone(),
        };
        let errand = Errand {
            id,
            ..Errand::of(job)
        };
        let given = self.pool.give_later(owner, errand);
        self.asked(asked, given)
    }

    fn ask(&mut self, owner: Owner, asked: Asked, errand: Errand) -> bool {
        let given = self.pool.give(owner, errand);
        self.asked(asked, given)
    }

    fn asked(&mut self, asked: Asked, given: Result<Ticket, Refused>) -> bool {
        match given {
            Ok(ticket) => {
                self.asked.insert(ticket, asked);
                true
            }
            Err(error) => {
                self.late += 1;
                if error == Refused::NoThread {
                    tracing::warn!(
                        "cannot read the programs of other processes, so stacks may be cut and without names: {error}"
                    );
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
                (Outcome::Done(answer), Some(asked)) => {
                    let left = left_out(&answer, asked);
                    answers.push(answer);
                    answers.extend(left.map(Answer::Late));
                }
                // It was given up before, and has come all the same.
                (Outcome::Done(answer @ Answer::File { .. }), None) => answers.push(answer),
                (Outcome::Stuck | Outcome::Failed, Some(asked)) => {
                    self.late += 1;
                    tracing::debug!("read timed out: {asked:?}");
                    answers.push(Answer::Late(asked));
                }
                (_, None) => {}
            }
        }
        answers
    }

    /// The budget of an owner.
    fn budget_of(&mut self, owner: Owner) -> &mut Budget {
        if self.budgets.len() >= MAX_OWNERS {
            // Root's may have ended.
            self.budgets.retain(|&owner, _| owner == Owner::ROOT);
        }
        let limits = match owner == Owner::ROOT {
            true => OF_ROOT,
            false => OF_OWNER,
        };
        let own = self.budgets.entry(owner);
        own.or_insert_with(|| Budget::new(limits))
    }

    /// Begins to wait for an answer on somebody's account. Whose reads get stuck is not waited
    /// for.
    pub(crate) fn begin_wait(&mut self, owner: Owner) -> Wait {
        if self.pool.is_suspect(owner) {
            let left = Duration::ZERO;
            return Wait { owner, left };
        }
        let own = self.budget_of(owner).left();
        let of_all = self.budget.left();
        // What others use up does not concern root.
        let left = match owner == Owner::ROOT {
            true => own,
            false => own.min(of_all),
        };
        let left = left.max(self.credit).min(EACH);
        let left = if left < LEAST { Duration::ZERO } else { left };
        Wait { owner, left }
    }

    /// Whether answers have come.
    pub(crate) fn has_answers(&self) -> bool {
        self.pool.wait(Instant::now())
    }

    /// Begins to wait for what will be needed soon, for a moment only.
    pub(crate) fn begin_short_wait(&mut self, owner: Owner) -> Wait {
        let wait = self.begin_wait(owner);
        let left = wait.left.min(MOMENT);
        Wait { left, ..wait }
    }

    /// Whether such a wait would end at once.
    pub fn is_over(&self, wait: &Wait) -> bool {
        wait.left.is_zero() || self.pool.pending() == 0
    }

    /// Waits for answers, out of the budgets of who is waited for and of all, for a
    /// moment at most: meanwhile the rings fill. `false`: there is no time left, or
    /// nothing is being read.
    pub fn wait(&mut self, wait: &mut Wait) -> bool {
        if self.is_over(wait) {
            return false;
        }
        let begun = Instant::now();
        self.pool.wait(begun + wait.left.min(MOMENT));
        let waited = begun.elapsed();
        wait.left = wait.left.saturating_sub(waited);
        let lent = waited.min(self.credit);
        self.credit -= lent;
        let waited = waited - lent;
        if wait.owner != Owner::ROOT {
            self.budget.spend(waited);
        }
        if let Some(own) = self.budgets.get_mut(&wait.owner) {
            own.spend(waited);
        }
        true
    }

    /// The recording has just begun, and everything is met at once: so long may be
    /// waited before anybody's budget is spent.
    pub(crate) fn lend(&mut self, credit: Duration) {
        self.credit = credit;
    }

    /// The recording is to end: from now on little is waited for.
    pub(crate) fn hurry(&mut self) {
        self.credit = Duration::ZERO;
        self.budget_of(Owner::ROOT).end();
        self.budget.end();
    }

    /// Whether something is read that needs nothing but a CPU.
    pub(crate) fn is_working(&self) -> bool {
        self.pool.is_working()
    }

    /// Waits for answers until `end`, when there is nothing else to do. `false`: nothing is being
    /// read, or it is `end`.
    pub(crate) fn wait_until(&self, end: Instant) -> bool {
        // Looked at in between: what is stuck is no longer waited for.
        let soon = Instant::now() + PATIENCE / 5;
        self.pool.pending() > 0 && (self.pool.wait(end.min(soon)) || Instant::now() < end)
    }

    /// What was asked for so far is not wanted any more.
    pub(crate) fn begin_afresh(&mut self) {
        self.asked.clear();
    }
}

impl Errand {
    fn of(job: ReadJob) -> Self {
        Self {
            job,
            id: FileId(0),
            file: None,
        }
    }
}

/// Does an errand, on a thread of the pool: has another process do the job, or does
/// it here where there are none, as in tests. `None`: it could not be done.
fn run(remote: &Client, here: &mut Option<Opened>, errand: Errand) -> Option<Answer> {
    let Errand { job, id, file } = errand;
    let fd = file.as_ref().map(|file| file.place.as_fd());
    let (reply, fds) = match remote.call(&job, fd.as_slice()) {
        Ok(done) => done,
        Err(error) if error.kind() == io::ErrorKind::NotConnected => {
            let file = fd.map(|fd| fd.try_clone_to_owned().ok());
            let fds = file.into_iter().flatten().collect();
            here.get_or_insert_default().read(&job, fds)
        }
        Err(error) => {
            tracing::debug!("a reader ended: {error}");
            return None;
        }
    };
    answer(job, id, reply, fds)
}

/// The answer in a reply, with the files that came with it; `None`: not what was asked.
fn answer(job: ReadJob, id: FileId, reply: Reply, fds: Vec<OwnedFd>) -> Option<Answer> {
    let mut fds = fds.into_iter();
    let mut found = |behind: Behind| match behind {
        Behind::Opened {
            stat,
            through_mapping,
            facts,
        } => match fds.next() {
            Some(fd) => Found::Opened {
                file: OpenFile {
                    place: fd,
                    facts: Box::new(facts),
                    number: 0,
                },
                stat,
                through_mapping,
            },
            None => Found::Failed(io::Error::other("too many open files").into()),
        },
        Behind::Replaced => Found::Failed(OpenError::Replaced),
        Behind::Failed(text) => Found::Failed(io::Error::other(text).into()),
    };
    Some(match (reply, job) {
        (Reply::File(behind), ReadJob::File { pid, map }) => Answer::File {
            pid,
            map,
            found: found(behind),
        },
        (
            Reply::Process {
                comm,
                maps,
                found: behind,
            },
            ReadJob::Process { pid, .. },
        ) => {
            let found = behind.into_iter().map(|(i, b)| (i, found(b))).collect();
            Answer::Process {
                pid,
                comm,
                maps,
                found,
            }
        }
        (Reply::Labels(labels), ReadJob::Labels { pid, .. }) => Answer::Labels { pid, labels },
        (Reply::Java(found), ReadJob::Java { pid, .. }) => Answer::Java { pid, found },
        (Reply::Tables(pages), _) => Answer::Tables { id, pages },
        // No reader replies so.
        _ => return None,
    })
}

/// What was asked for and is not in the answer: pages that would have taken too long
/// for something that may not be needed.
fn left_out(answer: &Answer, asked: Asked) -> Option<Asked> {
    let (Answer::Tables { pages: built, .. }, Asked::Tables(id, owner, mut pages)) =
        (answer, asked)
    else {
        return None;
    };
    pages.retain(|page| built.iter().all(|(done, _)| done != page));
    (!pages.is_empty()).then_some(Asked::Tables(id, owner, pages))
}

/// What a process of readers does: answers jobs until the line is closed.
pub fn serve(line: &Line) {
    // As whoever asks: the next samples need the answer.
    aiprof_system::os::scheduling::prefer_this_thread();
    if let Err(error) = privileges::drop_to(privileges::READING) {
        tracing::debug!("{error}");
    }
    let mut opened = Opened::default();
    line.serve(|job: ReadJob, fds| opened.read(&job, fds));
}

/// Files whose tables were asked for lately, by the number of their content.
#[derive(Default)]
struct Opened {
    /// Names of pods and containers.
    pods: PodNames,
    files: Vec<(u64, Option<(NamedUnwind, Shared)>)>,
    /// When those that were deleted were last dropped.
    dropped: Option<Instant>,
}

/// How often deleted files are dropped: a file that stays open keeps its space.
const DROP_EVERY: Duration = Duration::from_secs(1);

/// CPU time of one page behind which no other of the same job is read: a job with
/// several is of pages that may not be needed, and others wait.
const SLICE: Duration = Duration::from_millis(8);
/// Most files that a reader remembers.
const MAX_REMEMBERED: usize = 64;

impl Opened {
    /// Does a job.
    fn read(&mut self, job: &ReadJob, fds: Vec<OwnedFd>) -> (Reply, Vec<OwnedFd>) {
        let mut opened = Vec::new();
        let reply = match job {
            ReadJob::File { pid, map } => Reply::File(find(*pid, map, &mut opened)),
            ReadJob::Process { pid, tid } => {
                let maps = procfs::executable_maps(*pid, *tid).unwrap_or_default();
                let end = Instant::now() + OPENING;
                let in_time = |_: &_| Instant::now() < end;
                let mut find = |(i, map)| (i, find(*pid, map, &mut opened));
                let files = files_in_order(&maps).take_while(in_time);
                let found = files.map(&mut find).collect();
                Reply::Process {
                    comm: procfs::comm(*pid).unwrap_or_default(),
                    maps,
                    found,
                }
            }
            ReadJob::Labels { pid, environment } => {
                let device = device_use::of_process(*pid);
                let device = device.map(|name| (labels::DEVICE.to_owned(), name));
                let mut found: Vec<_> = device.into_iter().collect();
                found.extend(self.pods.labels_of(*pid));
                if *environment {
                    found.extend(environment::labels_of(*pid));
                }
                Reply::Labels(found)
            }
            ReadJob::Java { pid, library, bias } => {
                Reply::Java(match kernel::open(format!("/proc/{pid}/mem")) {
                    Ok(memory) => HotSpot::read(library, *bias, &Memory(memory)).into(),
                    Err(error) => FoundJava::Declined(error.to_string()),
                })
            }
            ReadJob::Generated { code, pages } => {
                let code = generated(code);
                Reply::Tables(build_all(pages, |page, out| {
                    Some(code.as_ref()?.page(page, out))
                }))
            }
            ReadJob::Tables {
                number,
                path,
                pages,
                whole,
            } => {
                self.drop_deleted();
                let unwind = self.unwind(*number, path, fds);
                Reply::Tables(build_all(pages, |page, out| {
                    Some(unwind?.page(page, *whole, out))
                }))
            }
        };
        (reply, opened)
    }

    /// Drops files that have no name any more, once in a while.
    fn drop_deleted(&mut self) {
        let now = Instant::now();
        if self.dropped.is_some_and(|at| now - at < DROP_EVERY) {
            return;
        }
        self.dropped = Some(now);
        self.files
            .retain(|(_, file)| file.as_ref().is_some_and(is_linked));
    }

    /// The unwind data of a content, from the file that came with the job.
    fn unwind(&mut self, number: u64, path: &str, fds: Vec<OwnedFd>) -> Option<&NamedUnwind> {
        let known = self.files.iter().position(|(n, _)| *n == number);
        // The one asked for last is the last.
        let (_, opened) = match known.filter(|_| number != 0) {
            Some(at) => self.files.remove(at),
            None => {
                let place = fds.into_iter().next();
                let file = place.and_then(|place| others::reopen(place).ok());
                let file = file.map(|file| Shared(Arc::new(file)));
                let opened = file.and_then(|file| Some((open_unwind(&file, path)?, file)));
                (number, opened)
            }
        };
        if self.files.len() >= MAX_REMEMBERED {
            self.files.remove(0);
        }
        self.files.push((number, opened));
        self.files.last()?.1.as_ref().map(|(unwind, _)| unwind)
    }
}

/// The first mapping of each file of a process, by its index, at most `MAX_FILES`. The program's
/// comes first, then those of what it loaded first, for all of its stacks lead there. The kernel
/// gives out addresses from above.
fn files_in_order(maps: &[MapEvent]) -> impl Iterator<Item = (usize, &MapEvent)> {
    let mut seen = FxHashSet::default();
    let first = |(_, map): &(usize, &MapEvent)| {
        let is_file = Region::of(&map.file) == Region::File;
        is_file && seen.insert((map.file.device, map.file.inode))
    };
    let mut files: Vec<_> = maps.iter().enumerate().filter(first).collect();
    if let Some((_, libraries)) = files.split_first_mut() {
        libraries.reverse();
    }
    files.into_iter().take(MAX_FILES)
}

/// Whether a file still has a name.
fn is_linked((_, file): &(NamedUnwind, Shared)) -> bool {
    let found = others::cached(&*file.0, StatxFlags::NLINK);
    found.is_ok_and(|found| found.stx_nlink > 0)
}

/// Finds the file of a mapping; one that is opened is added to `opened`.
fn find(pid: u32, map: &MapEvent, opened: &mut Vec<OwnedFd>) -> Behind {
    if opened.len() >= MAX_FILES {
        return Behind::Failed("too many files in one request".to_owned());
    }
    match procfs::open_exact(pid, map) {
        Ok(MappedFile {
            file,
            place,
            stat,
            through_mapping,
        }) => {
            let file = Shared(Arc::new(file));
            let facts = facts(open_unwind(&file, &map.file.path).as_ref());
            opened.push(place);
            Behind::Opened {
                stat,
                through_mapping,
                facts,
            }
        }
        Err(OpenError::Replaced) => Behind::Replaced,
        Err(OpenError::Io(error)) => Behind::Failed(error.to_string()),
    }
}

/// Code in the memory of a process; `None`: it cannot be read.
fn generated(code: &Code) -> Option<UnwindFile<Memory>> {
    let memory = Memory(kernel::open(format!("/proc/{}/mem", code.pid)).ok()?);
    let text = code.text.iter().map(|range| TextSegment {
        file_offset: range.start,
        vaddr: range.start,
        size: range.end.saturating_sub(range.start),
    });
    UnwindFile::generated(memory, text.collect(), code.pages.clone()).ok()
}

/// Builds the tables of some pages, of which `page` writes one; `None`: nothing is known
/// of its file. What would take too long for pages that may not be needed is left out.
fn build_all(
    pages: &[u32],
    page: impl Fn(u32, &mut Vec<u8>) -> Option<Result<PageContent, UnwindError>>,
) -> Vec<(u32, Table)> {
    let mut built = Vec::new();
    for &index in pages {
        let end = cpu_clock(libc::CLOCK_THREAD_CPUTIME_ID) + SLICE;
        let mut content = Vec::new();
        let table = match page(index, &mut content) {
            Some(Ok(PageContent::Table)) => Table::new(content, false),
            Some(Ok(PageContent::Partial)) => Table::new(content, true),
            Some(Ok(PageContent::NoData)) | None => Table::NoData,
            Some(Err(error)) => {
                tracing::debug!("unwind table page {index}: {error}");
                Table::NoData
            }
        };
        built.push((index, table));
        if cpu_clock(libc::CLOCK_THREAD_CPUTIME_ID) >= end {
            break;
        }
    }
    built
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::wire::FileKey;

    fn map(path: &str, inode: u64) -> MapEvent {
        MapEvent {
            start: 0x1000 * inode,
            len: 0x1000,
            file_offset: 0,
            file: FileKey {
                path: path.to_owned(),
                build_id: None,
                device: 1,
                inode,
                version: 0,
            },
        }
    }

    #[test]
    fn of_many_files_the_program_and_what_it_loaded_first_are_read() {
        let library = |inode| map("/lib/x.so", inode);
        let mut maps = vec![map("/bin/program", 1), map("", 0)];
        maps.extend((2..400).map(library));
        // Two mappings of one file.
        maps.push(library(399));
        let order: Vec<u64> = files_in_order(&maps).map(|(_, m)| m.file.inode).collect();
        let expected: Vec<u64> = [1].into_iter().chain((2..400).rev()).collect();
        assert_eq!(order, expected[..MAX_FILES]);
        assert!(files_in_order(&maps).all(|(i, m)| maps[i] == *m));
        assert_eq!(files_in_order(&[]).count(), 0);
    }
}
