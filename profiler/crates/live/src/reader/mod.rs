//! The threads that read what belongs to other users while a recording runs: which
//! files a process has mapped, these files, the unwind tables in them.
//!
//! The thread that reads the rings asks, and goes on. Answers are mostly there before they are
//! needed, for events wait a millisecond before they are taken in. An answer that is not there is
//! waited for, but only briefly, and out of a budget that no user can exhaust for long. What does
//! not come in time comes later or never: then a mapping has no file, a stack is cut, and both are
//! counted.

mod budget;
mod copied;
mod denied;
mod file;
mod job;
mod serve;

pub use file::{Facts, OpenFile, Shape};
pub(crate) use job::GeneratedCode;
pub use job::{FoundFile, ReadSubject, ReaderAnswer, TableDigest, UnwindPage};
pub use serve::serve;

use super::{
    owner::KnownOwners,
    tables::{WantedPages, Wish},
};
use aiprof_model::wire::MapEvent;
use aiprof_symbols::java::JavaLibrary;
use aiprof_system::{
    remote::{Client, READER},
    workers::{JobWorker, Outcome, Owner, Pool, PoolLimits, Refused, Ticket},
};
use budget::WaitBudgets;
use job::{Errand, ReadJob, answer, left_out};
use rustc_hash::FxHashMap;
use serve::ReaderProcess;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::{Duration, Instant},
};

/// Threads that read. Two, so that a slow file does not hold up others for long.
const THREADS: usize = 2;
/// How long one reading may take before its thread is given up.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long the rings are not looked at while an answer is waited for.
const MOMENT: Duration = Duration::from_millis(5);

/// A wait for one answer, see [`Reader::wait`].
#[derive(Debug)]
pub struct AnswerWait {
    owner: Owner,
    left: Duration,
}

/// The threads, and what is asked of them.
#[derive(Debug)]
pub struct Reader {
    pool: Pool<Errand, ReaderAnswer>,
    asked: FxHashMap<Ticket, ReadSubject>,
    owners: KnownOwners,
    pub(crate) budgets: WaitBudgets,
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
            owners: KnownOwners::default(),
            budgets: WaitBudgets::new(),
            late: 0,
        })
    }

    /// Readable when an answer has come.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.pool.fd()
    }

    /// On whose account it is what a process does.
    pub fn owner(&mut self, pid: u32) -> Owner {
        self.owners.of(pid)
    }

    /// A process has ended, or may be another user's now.
    pub fn forget(&mut self, pid: u32) {
        self.owners.forget(pid);
    }

    /// Asks for the file behind a mapping of a process. `false`: refused, there will
    /// be no answer.
    pub(crate) fn ask_file(&mut self, pid: u32, map: MapEvent) -> bool {
        let asked = ReadSubject::File(pid, (map.file.device, map.file.inode));
        let owner = self.owner(pid);
        self.ask(owner, asked, Errand::of(ReadJob::File { pid, map }))
    }

    /// Asks for a process: its name, mappings and files. `tid` is any of its live
    /// threads.
    pub(crate) fn ask_process(&mut self, pid: u32, tid: u32) -> bool {
        let owner = self.owner(pid);
        let job = ReadJob::Process { pid, tid };
        self.ask(owner, ReadSubject::Process(pid), Errand::of(job))
    }

    /// Asks for the labels of a process: the device that it has open, the names of its pod
    /// and container, and, if its `environment` is wanted, those in it.
    pub(crate) fn ask_labels(&mut self, pid: u32, environment: bool) -> bool {
        let owner = self.owner(pid);
        let errand = Errand::of(ReadJob::Labels { pid, environment });
        let given = self.pool.give_later(owner, errand);
        self.asked(ReadSubject::Labels(pid), given)
    }

    /// Asks for the HotSpot of a process. `false`: refused, there will be no answer.
    pub(crate) fn ask_java(&mut self, pid: u32, library: Box<JavaLibrary>, bias: u64) -> bool {
        let owner = self.owner(pid);
        let job = ReadJob::Java { pid, library, bias };
        self.ask(owner, ReadSubject::Java(pid), Errand::of(job))
    }

    /// Asks for what of the files of a process is copied to other memory. `false`: refused, there
    /// will be no answer.
    pub(crate) fn ask_copied(&mut self, pid: u32) -> bool {
        let owner = self.owner(pid);
        let job = ReadJob::Copied { pid };
        self.ask(owner, ReadSubject::Copied(pid), Errand::of(job))
    }

    /// Asks for tables of an open file.
    pub(crate) fn ask_tables(
        &mut self,
        wanted: &WantedPages,
        path: &str,
        file: Arc<OpenFile>,
    ) -> bool {
        let (id, owner) = (wanted.id, wanted.owner);
        let asked = ReadSubject::Tables(id, owner, wanted.pages.clone());
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
    pub(crate) fn ask_generated(&mut self, wanted: &WantedPages, code: GeneratedCode) -> bool {
        let (id, owner) = (wanted.id, wanted.owner);
        let asked = ReadSubject::Tables(id, owner, wanted.pages.clone());
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

    fn ask(&mut self, owner: Owner, asked: ReadSubject, errand: Errand) -> bool {
        let given = self.pool.give(owner, errand);
        self.asked(asked, given)
    }

    fn asked(&mut self, asked: ReadSubject, given: Result<Ticket, Refused>) -> bool {
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
    pub fn answers(&mut self) -> Vec<ReaderAnswer> {
        let mut answers = Vec::new();
        for (ticket, outcome) in self.pool.answers() {
            let asked = self.asked.remove(&ticket);
            match (outcome, asked) {
                (Outcome::Done(answer), Some(asked)) => {
                    let left = left_out(&answer, asked);
                    answers.push(answer);
                    answers.extend(left.map(ReaderAnswer::Late));
                }
                // It was given up before, and has come all the same.
                (Outcome::Done(answer @ ReaderAnswer::File { .. }), None) => answers.push(answer),
                (Outcome::Stuck | Outcome::Failed, Some(asked)) => {
                    self.late += 1;
                    tracing::debug!("read timed out: {asked:?}");
                    answers.push(ReaderAnswer::Late(asked));
                }
                (_, None) => {}
            }
        }
        answers
    }

    /// Begins to wait for an answer on somebody's account. Whose reads get stuck is not waited
    /// for.
    pub(crate) fn begin_wait(&mut self, owner: Owner) -> AnswerWait {
        let left = match self.pool.is_suspect(owner) {
            true => Duration::ZERO,
            false => self.budgets.left(owner),
        };
        AnswerWait { owner, left }
    }

    /// Whether answers have come.
    pub(crate) fn has_answers(&self) -> bool {
        self.pool.wait(Instant::now())
    }

    /// Begins to wait for what will be needed soon, for a moment only.
    pub(crate) fn begin_short_wait(&mut self, owner: Owner) -> AnswerWait {
        let wait = self.begin_wait(owner);
        let left = wait.left.min(MOMENT);
        AnswerWait { left, ..wait }
    }

    /// Whether such a wait would end at once.
    pub fn is_over(&self, wait: &AnswerWait) -> bool {
        wait.left.is_zero() || self.pool.pending() == 0
    }

    /// Waits for answers, out of the budgets of who is waited for and of all, for a
    /// moment at most: meanwhile the rings fill. `false`: there is no time left, or
    /// nothing is being read.
    pub fn wait(&mut self, wait: &mut AnswerWait) -> bool {
        if self.is_over(wait) {
            return false;
        }
        let begun = Instant::now();
        self.pool.wait(begun + wait.left.min(MOMENT));
        let waited = begun.elapsed();
        wait.left = wait.left.saturating_sub(waited);
        self.budgets.spend(wait.owner, waited);
        true
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

/// Does an errand, on a thread of the pool: has another process do the job, or does
/// it here where there are none, as in tests. `None`: it could not be done.
fn run(remote: &Client, here: &mut Option<ReaderProcess>, errand: Errand) -> Option<ReaderAnswer> {
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
