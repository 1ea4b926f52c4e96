//! Threads for jobs that may never return.
//!
//! Reading a file or the memory of another user can block for ever: FUSE, a dead server,
//! userfaultfd, an address space whose lock is held. The thread that reads the rings must not do
//! it. A [`Pool`] does such jobs on threads of its own. A thread that does not come back is given
//! up and replaced, and its job is answered with [`Outcome::Stuck`]. An owner whose jobs got stuck
//! is refused further ones until they return. Owners take turns, so that no queue is one user's.
//! Owners whose jobs got stuck lately share one thread, and then so do those of whom no job is done
//! yet: they hold up only each other.
//!
//! A thread that waits for a file system of another user cannot be ended, and keeps
//! its process from ending. So what reads such has a process of its own
//! ([`crate::remote`]), which is left behind: see [`JobWorker::client`].

use crate::remote::{self, Client, Remote};
use rustc_hash::{FxHashMap, FxHashSet};
use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// On whose account a job is done: who suffers if it gets stuck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// For root, who is somebody else in every container: which one. Else 0.
    pub container: u64,
}

impl Owner {
    /// Root of this machine, and this program itself.
    pub const ROOT: Self = Self {
        uid: 0,
        container: 0,
    };
}

/// Bounds of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// Threads that work.
    pub threads: usize,
    /// How long a job may take.
    pub patience: Duration,
    /// Most jobs of one owner that wait.
    pub queue: usize,
    /// Most jobs of one owner other than root that are done at a time: the other
    /// threads are for others.
    pub at_once: usize,
    /// Most jobs at a time of owners other than root of whom none is done yet, in all: theirs
    /// may all get stuck.
    pub at_once_new: usize,
    /// Stuck jobs from which on an owner other than root is refused further ones.
    pub stuck_of_owner: usize,
    /// Most threads that are given up, in all; root may use a few more.
    pub stuck: usize,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self {
            threads: 1,
            patience: Duration::from_secs(1),
            queue: 4096,
            at_once: usize::MAX,
            at_once_new: usize::MAX,
            stuck_of_owner: 2,
            stuck: 24,
        }
    }
}

/// How many times as long a job may take that waits for a CPU, or uses one.
const MOST_PATIENCE: u32 = 20;
/// Threads that only root's jobs may use up.
const RESERVE: usize = 4;
/// How long an owner shares a thread with others like it after a job of it got stuck. That the
/// job's process could be ended does not matter: the next job takes as long.
const SUSPECTED: Duration = Duration::from_secs(60);
/// Most owners that are remembered because a job of theirs was done.
const MAX_KNOWN: usize = 65_536;

/// What became of a job.
#[derive(Debug)]
pub enum Outcome<R> {
    /// It was done; possibly after it was reported as stuck.
    Done(R),
    /// It takes longer than it may, or waited behind such jobs of its owner.
    Stuck,
    /// It could not be done: its thread panicked.
    Failed,
}

/// Why a job was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Too many wait.
    #[error("too many reads are waiting")]
    Full,
    /// Jobs of this owner are stuck.
    #[error("earlier reads have not returned")]
    Stuck,
    /// No thread could be started.
    #[error("no thread can be started")]
    NoThread,
}

/// The number of a job.
pub type Ticket = u64;

/// A job at work.
struct Slot {
    ticket: Ticket,
    owner: Owner,
    /// The thread.
    task: i32,
    since: Instant,
    given_up: bool,
    client: Option<Arc<Client>>,
}

impl Slot {
    /// Whether the job takes too long: one that only waits for a CPU may take longer.
    fn is_late(&self, patience: Duration) -> bool {
        let took = self.since.elapsed();
        if self.given_up || took <= patience {
            return false;
        }
        took > patience * MOST_PATIENCE || !self.is_working()
    }

    /// Whether the job uses a CPU or waits for one, and for nothing else.
    fn is_working(&self) -> bool {
        let client = self.client.as_ref();
        remote::is_runnable(self.task) || client.is_some_and(|client| client.is_working())
    }
}

/// What does the jobs of a thread.
pub struct JobWorker<J, R> {
    /// Does a job; `None`: it could not.
    pub work: Box<dyn FnMut(J) -> Option<R>>,
    /// The process that it has do them, if it has.
    pub client: Option<Arc<Client>>,
}

/// Jobs of an owner that wait.
struct Queue<J> {
    now: VecDeque<(Ticket, J)>,
    later: VecDeque<(Ticket, J)>,
}

impl<J> Queue<J> {
    fn len(&self) -> usize {
        self.now.len() + self.later.len()
    }
}

impl<J> Default for Queue<J> {
    fn default() -> Self {
        Self {
            now: VecDeque::new(),
            later: VecDeque::new(),
        }
    }
}

struct PoolState<J, R> {
    /// Jobs that wait. Owners take turns in the order of `turns`.
    queues: FxHashMap<Owner, Queue<J>>,
    turns: VecDeque<Owner>,
    /// By the number of the thread.
    at_work: FxHashMap<u64, Slot>,
    answers: VecDeque<(Ticket, Outcome<R>)>,
    /// Stuck jobs by owner.
    stuck: FxHashMap<Owner, usize>,
    stuck_in_all: usize,
    /// When a job of an owner got stuck last, see [`SUSPECTED`].
    suspects: FxHashMap<Owner, Instant>,
    /// Owners of whom a job was done in time.
    known: FxHashSet<Owner>,
    /// Processes that do not come back.
    left: Vec<(Owner, Arc<Remote>)>,
    /// Threads that take jobs.
    threads: usize,
    next_thread: u64,
    closed: bool,
}

struct SharedPool<J, R> {
    state: Mutex<PoolState<J, R>>,
    work: Condvar,
    answered: Condvar,
    bell: Bell,
}

/// Wakes a thread that polls, from another one.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// One that has not rung.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(Self(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    /// Readable from [`Bell::ring`] to [`Bell::silence`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Wakes who polls.
    pub fn ring(&self) {
        // A full counter wakes as well.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Takes note that it has rung.
    pub fn silence(&self) {
        // Nothing to read is fine: only the reset matters.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    /// Whether it has rung since.
    pub fn has_rung(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        matches!(poll(&mut polled, Some(&Timespec::default())), Ok(1))
    }
}

/// Makes what does the jobs, on the thread that will use it.
type Make<J, R> = dyn Fn() -> JobWorker<J, R> + Send + Sync;

/// A pool of threads, see the [module](self).
pub struct Pool<J, R> {
    name: &'static str,
    limits: PoolLimits,
    shared: Arc<SharedPool<J, R>>,
    make: Arc<Make<J, R>>,
    next: Ticket,
}

impl<J, R> std::fmt::Debug for Pool<J, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl<J: Send + 'static, R: Send + 'static> Pool<J, R> {
    /// A pool without threads yet. `name` (15 bytes at most are shown) is that of
    /// its threads; `make` runs on each of them, first of all.
    ///
    /// # Errors
    /// No descriptor is left to wake the reader of answers by.
    pub fn new(
        name: &'static str,
        limits: PoolLimits,
        make: impl Fn() -> Box<dyn FnMut(J) -> R> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Self::of_workers(name, limits, move || {
            let mut work = make();
            JobWorker {
                work: Box::new(move |job| Some(work(job))),
                client: None,
            }
        })
    }

    /// A pool whose threads may have other processes do their jobs.
    ///
    /// # Errors
    /// As [`Pool::new`].
    pub fn of_workers(
        name: &'static str,
        limits: PoolLimits,
        make: impl Fn() -> JobWorker<J, R> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Ok(Self {
            name,
            limits,
            shared: Arc::new(SharedPool {
                state: Mutex::new(PoolState {
                    queues: FxHashMap::default(),
                    turns: VecDeque::new(),
                    at_work: FxHashMap::default(),
                    answers: VecDeque::new(),
                    stuck: FxHashMap::default(),
                    stuck_in_all: 0,
                    suspects: FxHashMap::default(),
                    known: FxHashSet::default(),
                    left: Vec::new(),
                    threads: 0,
                    next_thread: 0,
                    closed: false,
                }),
                work: Condvar::new(),
                answered: Condvar::new(),
                bell: Bell::new()?,
            }),
            make: Arc::new(make),
            next: 0,
        })
    }

    /// Readable when an answer has come since [`Pool::answers`] was called.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.bell.fd()
    }

    /// Has a job done. Every job that was taken is answered, see [`Pool::answers`].
    ///
    /// # Errors
    /// Why it is not taken.
    pub fn give(&mut self, owner: Owner, job: J) -> Result<Ticket, Refused> {
        self.put(owner, job, false)
    }

    /// As [`Pool::give`], but all other jobs of this owner come first.
    ///
    /// # Errors
    /// As there.
    pub fn give_later(&mut self, owner: Owner, job: J) -> Result<Ticket, Refused> {
        self.put(owner, job, true)
    }

    fn put(&mut self, owner: Owner, job: J, later: bool) -> Result<Ticket, Refused> {
        let mut state = self.shared.lock();
        if state.is_refused(owner, &self.limits) {
            return Err(Refused::Stuck);
        }
        let needs_thread = state.threads < self.limits.threads
            && state.waiting() + state.working() >= state.threads;
        if needs_thread && !self.start(&mut state) && state.threads == 0 {
            return Err(Refused::NoThread);
        }
        let limit = self.limits.queue;
        let queue = state.queues.entry(owner).or_default();
        if queue.len() >= limit {
            return Err(Refused::Full);
        }
        self.next += 1;
        match later {
            false => queue.now.push_back((self.next, job)),
            true => queue.later.push_back((self.next, job)),
        }
        if queue.len() == 1 {
            state.turns.push_back(owner);
        }
        drop(state);
        self.shared.work.notify_one();
        Ok(self.next)
    }

    /// The answers that have come, and those to jobs that turn out to be stuck. To
    /// be called regularly: threads that are stuck are replaced here.
    pub fn answers(&mut self) -> Vec<(Ticket, Outcome<R>)> {
        self.shared.bell.silence();
        let mut state = self.shared.lock();
        self.supervise(&mut state);
        state.answers.drain(..).collect()
    }

    /// Waits for an answer until then, at most. To be followed by
    /// [`Pool::answers`]. Returns whether there is one.
    pub fn wait(&self, until: Instant) -> bool {
        let state = self.shared.lock();
        let left = until.saturating_duration_since(Instant::now());
        let none = |state: &mut PoolState<J, R>| state.answers.is_empty();
        let waited = self.shared.answered.wait_timeout_while(state, left, none);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !state.answers.is_empty()
    }

    /// Jobs that wait or are at work; those that are stuck do not count.
    pub fn pending(&self) -> usize {
        let state = self.shared.lock();
        state.waiting() + state.working()
    }

    /// Whether a job is at work that uses a CPU or waits for one.
    pub fn is_working(&self) -> bool {
        let state = self.shared.lock();
        let mut slots = state.at_work.values();
        slots.any(|slot| !slot.given_up && slot.is_working())
    }

    /// Whether an owner's next job may well get stuck, because one of its own did lately or, while
    /// none of it is done yet, one of others. Such a job is not to be waited for.
    pub fn is_suspect(&self, owner: Owner) -> bool {
        self.shared.lock().is_suspect(owner)
    }

    /// Drops the jobs of such owners that wait, without an answer.
    pub fn forget(&self, which: impl Fn(Owner) -> bool) {
        let mut state = self.shared.lock();
        state.queues.retain(|&owner, _| !which(owner));
        state.turns.retain(|&owner| !which(owner));
    }

    /// Jobs that are stuck now.
    pub fn stuck(&self) -> usize {
        self.shared.lock().stuck_in_all
    }

    /// Gives up threads whose job takes too long, and starts others.
    fn supervise(&self, state: &mut PoolState<J, R>) {
        let gone = state.left.extract_if(.., |(_, remote)| remote.is_gone());
        for (owner, _) in gone.collect::<Vec<_>>() {
            state.unstuck(owner);
        }
        let late: Vec<u64> = state
            .at_work
            .iter()
            .filter(|(_, slot)| slot.is_late(self.limits.patience))
            .map(|(&thread, _)| thread)
            .collect();
        for thread in late {
            let Some(slot) = state.at_work.get_mut(&thread) else {
                continue;
            };
            slot.given_up = true;
            let (owner, ticket) = (slot.owner, slot.ticket);
            let client = slot.client.clone();
            state.answers.push_back((ticket, Outcome::Stuck));
            *state.stuck.entry(owner).or_default() += 1;
            state.stuck_in_all += 1;
            let now = Instant::now();
            state.suspects.retain(|_, since| now - *since < SUSPECTED);
            state.suspects.insert(owner, now);
            match client.as_ref().map(|client| client.give_up()) {
                Some(Some(remote)) => state.left.push((owner, remote)),
                Some(None) => state.unstuck(owner),
                None => {}
            }
            state.threads = state.threads.saturating_sub(1);
            if state.is_refused(owner, &self.limits) {
                // What waits behind it would only get stuck, too.
                let waiting = state.queues.remove(&owner).unwrap_or_default();
                let waiting = waiting.now.into_iter().chain(waiting.later);
                let answers = waiting.map(|(t, _)| (t, Outcome::Stuck));
                state.answers.extend(answers);
                state.turns.retain(|other| *other != owner);
            }
        }
        let most = self.limits.stuck + RESERVE;
        while state.threads < self.limits.threads
            && state.waiting() > 0
            && state.stuck_in_all < most
        {
            if !self.start(state) {
                break;
            }
        }
        if !state.turns.is_empty() {
            // One that was given up holds back its owner's next no more.
            self.shared.work.notify_all();
        }
    }

    /// Starts a thread.
    fn start(&self, state: &mut PoolState<J, R>) -> bool {
        let (shared, make) = (Arc::clone(&self.shared), Arc::clone(&self.make));
        state.next_thread += 1;
        let (number, limits) = (state.next_thread, self.limits);
        let started = thread::Builder::new()
            .name(self.name.to_owned())
            .stack_size(STACK)
            .spawn(move || work(&shared, &*make, number, &limits));
        match started {
            Ok(_) => state.threads += 1,
            Err(ref error) => tracing::warn!("{}: cannot start a thread: {error}", self.name),
        }
        started.is_ok()
    }
}

/// Stack of a thread: demanglers and DWARF readers recurse within bounds.
const STACK: usize = 2 << 20;

impl<J, R> Drop for Pool<J, R> {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
    }
}

impl<J, R> SharedPool<J, R> {
    /// A panic on another thread leaves the state whole: jobs run outside the lock.
    fn lock(&self) -> MutexGuard<'_, PoolState<J, R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J, R> PoolState<J, R> {
    fn waiting(&self) -> usize {
        self.queues.values().map(Queue::len).sum()
    }

    fn working(&self) -> usize {
        self.at_work.values().filter(|slot| !slot.given_up).count()
    }

    fn is_refused(&self, owner: Owner, limits: &PoolLimits) -> bool {
        // A dead server may hold up a few of root's jobs: not the others.
        if owner == Owner::ROOT {
            return self.stuck_in_all >= limits.stuck + RESERVE;
        }
        let own = self.stuck.get(&owner).copied().unwrap_or(0);
        own >= limits.stuck_of_owner || self.stuck_in_all >= limits.stuck
    }

    /// A stuck job has ended.
    fn unstuck(&mut self, owner: Owner) {
        self.stuck_in_all = self.stuck_in_all.saturating_sub(1);
        if let Some(stuck) = self.stuck.get_mut(&owner) {
            *stuck -= 1;
            if *stuck == 0 {
                self.stuck.remove(&owner);
            }
        }
    }

    /// Whether a job of it got stuck lately, or may as those of others did: none of it is done
    /// yet. Root's jobs may use any thread.
    fn is_suspect(&self, owner: Owner) -> bool {
        let is_recent = |since: &Instant| since.elapsed() < SUSPECTED;
        owner != Owner::ROOT
            && match self.known.contains(&owner) {
                true => self.suspects.get(&owner).is_some_and(is_recent),
                false => self.suspects.values().any(is_recent),
            }
    }

    /// Whether no job of it is done yet. Root is always known.
    fn is_new(&self, owner: Owner) -> bool {
        owner != Owner::ROOT && !self.known.contains(&owner)
    }

    /// The next job: owners take turns.
    fn next(&mut self, limits: &PoolLimits) -> Option<(Owner, Ticket, J)> {
        let at_work = || self.at_work.values().filter(|slot| !slot.given_up);
        let is_shared = at_work().any(|slot| self.is_suspect(slot.owner));
        let new = at_work().filter(|slot| self.is_new(slot.owner)).count();
        let is_free = |owner: &Owner| {
            let own = at_work().filter(|slot| slot.owner == *owner);
            *owner == Owner::ROOT
                || own.count() < limits.at_once
                    && !(is_shared && self.is_suspect(*owner))
                    && !(new >= limits.at_once_new && self.is_new(*owner))
        };
        let turn = self.turns.iter().position(is_free)?;
        let owner = self.turns.remove(turn)?;
        let queue = self.queues.get_mut(&owner)?;
        let (ticket, job) = queue.now.pop_front().or_else(|| queue.later.pop_front())?;
        if queue.len() == 0 {
            self.queues.remove(&owner);
        } else {
            self.turns.push_back(owner);
        }
        Some((owner, ticket, job))
    }
}

/// A thread of a pool.
fn work<J, R>(shared: &SharedPool<J, R>, make: &Make<J, R>, number: u64, limits: &PoolLimits) {
    let JobWorker { mut work, client } = make();
    let mut state = shared.lock();
    loop {
        let (owner, ticket, job) = loop {
            if state.closed {
                return;
            }
            match state.next(limits) {
                Some(next) => break next,
                None => {
                    let waited = shared.work.wait(state);
                    state = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        state.at_work.insert(
            number,
            Slot {
                ticket,
                owner,
                task: rustix::thread::gettid().as_raw_nonzero().get(),
                since: Instant::now(),
                given_up: false,
                client: client.clone(),
            },
        );
        drop(state);
        let done = catch_unwind(AssertUnwindSafe(|| work(job)));
        state = shared.lock();
        let given_up = state.at_work.remove(&number).is_none_or(|s| s.given_up);
        let failed = done.is_err();
        let outcome = done.ok().flatten().map_or(Outcome::Failed, Outcome::Done);
        state.answers.push_back((ticket, outcome));
        if given_up {
            // A process that is left behind counts until it has ended.
            if client.is_none() {
                state.unstuck(owner);
            }
        } else if !failed {
            if state.known.len() >= MAX_KNOWN {
                state.known.clear();
            }
            state.known.insert(owner);
        } else {
            // What it holds may be half changed: another thread begins afresh.
            state.threads = state.threads.saturating_sub(1);
        }
        shared.answered.notify_all();
        shared.bell.ring();
        if given_up || failed {
            return; // it was replaced
        }
    }
}

#[cfg(test)]
mod tests;
