//! Has files read by a process that may get stuck.
//!
//! A read of a FUSE file waits until the file system answers. Once the request was handed over, no
//! signal ends the wait: a thread in it would keep the whole program from ending. So the files of
//! others are read by another process ([`super::server`], [`aiprof_system::remote`]); one that
//! hangs is left behind.

use super::job::{AddressNames, SymbolizeJob};
use super::jobs::Jobs;
use super::options::SymbolizeOptions;
use aiprof_system::files::others;
use aiprof_system::remote::{self, NAMES, Remote, cpu_clock};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a process at work is looked at.
const LOOK: Duration = Duration::from_millis(25);
/// Most CPU time of one job.
const MOST: Duration = Duration::from_secs(10);
/// Longest that one job may take, however busy the machine.
const LONGEST: Duration = Duration::from_secs(60);
/// CPU time that counts as progress.
const PROGRESS: Duration = Duration::from_millis(2);

/// How long a process may wait without using the CPU until it counts as hung.
/// Shared by all, and shorter while somebody waits for the end.
#[derive(Debug)]
pub struct Patience(AtomicU64);

impl Patience {
    /// While a recording runs.
    pub const USUAL: Duration = Duration::from_secs(2);

    /// From now on so long.
    pub fn set(&self, patience: Duration) {
        let ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        self.0.store(ms, Ordering::Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

impl Default for Patience {
    fn default() -> Self {
        let new = Self(AtomicU64::new(0));
        new.set(Self::USUAL);
        new
    }
}

/// Why a job gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum NamingError {
    /// The process hung, or worked longer than it may. It may be there still.
    #[error("takes too long")]
    TooLong,
    /// It could not be started, or ended.
    #[error("{0}")]
    Failed(#[from] io::Error),
}

/// A process that serves.
#[derive(Debug)]
struct Server {
    remote: Remote,
    clock: libc::clockid_t,
}

/// A process that was killed and may not be gone, and where it is counted.
#[derive(Debug)]
struct Left {
    remote: Remote,
    count: Arc<AtomicUsize>,
}

/// Has jobs done: by a process where this program can be one, else right here.
#[derive(Debug)]
pub struct Client {
    options: SymbolizeOptions,
    patience: Arc<Patience>,
    server: Option<Server>,
    here: Option<Jobs>,
}

/// Processes that were killed and did not end. Whoever can be waited for is.
static LEFT: Mutex<Vec<Left>> = Mutex::new(Vec::new());

impl Client {
    /// Forgets the processes that have ended since.
    pub fn reap() {
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        left.retain(|one| {
            let ended = one.remote.is_gone();
            if ended {
                one.count.fetch_sub(1, Ordering::Relaxed);
            }
            !ended
        });
    }

    /// No process is started before there is a job.
    #[must_use]
    pub fn new(options: SymbolizeOptions, patience: Arc<Patience>) -> Self {
        Self {
            options,
            patience,
            server: None,
            here: None,
        }
    }

    /// Has a job done. `stuck` counts the processes that hang since such jobs. Gives the
    /// place of a jitdump file that was opened for it, to be handed over with the next job
    /// of the process.
    ///
    /// # Errors
    /// It took too long, or could not be done.
    pub fn run(
        &mut self,
        job: &SymbolizeJob,
        place: Option<BorrowedFd<'_>>,
        stuck: &Arc<AtomicUsize>,
    ) -> Result<(AddressNames, Option<OwnedFd>), NamingError> {
        Self::reap();
        if !remote::is_started() {
            let options = &self.options;
            let here = self.here.get_or_insert_with(|| Jobs::new(options.clone()));
            let file = place.map(others::reopen).transpose()?;
            let (answer, opened) = here.run(job, file.as_ref());
            return Ok((answer, opened.and_then(|file| others::place_of(file).ok())));
        }
        let server = match self.server.take() {
            Some(server) => server,
            None => Server::start(&self.options)?,
        };
        let mut watch = ProgressWatch::new(server.clock, &self.patience);
        let answer = server.run(job, place, &mut watch);
        match answer {
            Ok(_) => self.server = Some(server),
            Err(_) => server.leave(stuck),
        }
        answer
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.leave(&Arc::default());
        }
    }
}

impl Server {
    fn start(options: &SymbolizeOptions) -> io::Result<Self> {
        let remote = Remote::new(NAMES)?;
        let mut clock = 0;
        // SAFETY: `clock` lives through the call, which writes a number to it.
        let error = unsafe { libc::clock_getcpuclockid(remote.pid(), &raw mut clock) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        remote.ask(options, &[])?;
        Ok(Self { remote, clock })
    }

    fn run(
        &self,
        job: &SymbolizeJob,
        place: Option<BorrowedFd<'_>>,
        watch: &mut ProgressWatch<'_>,
    ) -> Result<(AddressNames, Option<OwnedFd>), NamingError> {
        self.remote.ask(job, place.as_slice())?;
        // An answer that begins to come is in memory, and comes whole.
        while !self.remote.is_answering(LOOK) {
            watch.look(self.remote.pid())?;
        }
        let (answer, places) = self.remote.answer()?;
        Ok((answer, places.into_iter().next()))
    }

    /// Ends the process without waiting for its end.
    fn leave(self, stuck: &Arc<AtomicUsize>) {
        self.remote.give_up();
        stuck.fetch_add(1, Ordering::Relaxed);
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        left.push(Left {
            remote: self.remote,
            count: Arc::clone(stuck),
        });
    }
}

/// Distinguishes a process that works from one that hangs.
struct ProgressWatch<'a> {
    patience: &'a Patience,
    clock: libc::clockid_t,
    since: Instant,
    begun_with: Duration,
    used: Duration,
    progress: Instant,
}

impl<'a> ProgressWatch<'a> {
    fn new(clock: libc::clockid_t, patience: &'a Patience) -> Self {
        let used = cpu_clock(clock);
        Self {
            patience,
            clock,
            since: Instant::now(),
            begun_with: used,
            used,
            progress: Instant::now(),
        }
    }

    /// A process works if it uses the CPU or waits for one.
    fn look(&mut self, pid: i32) -> Result<(), NamingError> {
        let now = Instant::now();
        let used = cpu_clock(self.clock);
        if used.saturating_sub(self.used) >= PROGRESS || remote::is_runnable(pid) {
            self.used = used;
            self.progress = now;
        }
        let is_hung = now - self.progress > self.patience.get();
        let is_endless = used.saturating_sub(self.begun_with) > MOST;
        if is_hung || is_endless || now - self.since > LONGEST {
            return Err(NamingError::TooLong);
        }
        Ok(())
    }
}
