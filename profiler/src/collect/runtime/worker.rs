//! The thread that reads libraries and attaches to them while a recording runs:
//! the symbols of a large library take longer than the rings can wait.

use super::attach::{Attacher, Candidate};
use std::{
    io,
    sync::mpsc::{self, Receiver, SyncSender},
    thread::{self, JoinHandle},
};

/// Most jobs that wait.
const MAX_WAITING: usize = 1024;

/// Something to do.
#[derive(Debug)]
pub(super) enum Job {
    /// Probe a file.
    Library(Box<Candidate>),
    /// Probe functions by their places.
    Functions {
        /// The file.
        candidate: Box<Candidate>,
        /// Offsets of the first instructions in the file, and symbols.
        functions: Vec<(u64, String)>,
    },
    /// Look which files have changed.
    Check,
}

/// The thread.
pub(super) struct Worker {
    jobs: SyncSender<Job>,
    thread: JoinHandle<Option<Box<Attacher>>>,
}

/// Does a job.
pub(super) fn run(attacher: &mut Attacher, job: Job) {
    match job {
        Job::Library(candidate) => attacher.library(*candidate),
        Job::Functions {
            candidate,
            functions,
        } => attacher.functions(*candidate, &functions),
        Job::Check => attacher.check(),
    }
}

impl Worker {
    /// Starts it; it has the privileges that the calling thread has now.
    ///
    /// # Errors
    /// The attacher comes back with the reason.
    pub(super) fn start(attacher: Box<Attacher>) -> Result<Self, (Box<Attacher>, io::Error)> {
        let (jobs, queue) = mpsc::sync_channel(MAX_WAITING);
        // Handed over only once the thread runs, so that it is not lost if it cannot.
        let (hand_over, given) = mpsc::sync_channel::<Box<Attacher>>(1);
        let started = thread::Builder::new()
            .name("aiprof-attach".into())
            .spawn(move || work(&given, &queue));
        let thread = match started {
            Ok(thread) => thread,
            Err(error) => return Err((attacher, error)),
        };
        match hand_over.send(attacher) {
            Ok(()) => Ok(Self { jobs, thread }),
            Err(mpsc::SendError(attacher)) => Err((attacher, io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Gives it a job; `false`: too many wait, and this one is dropped.
    pub(super) fn give(&self, job: Job) -> bool {
        self.jobs.try_send(job).is_ok()
    }

    /// Ends it after the jobs that wait; `None`: it did not end well.
    pub(super) fn end(self) -> Option<Box<Attacher>> {
        drop(self.jobs);
        self.thread.join().ok().flatten()
    }
}

fn work(given: &Receiver<Box<Attacher>>, queue: &Receiver<Job>) -> Option<Box<Attacher>> {
    let mut attacher = given.recv().ok()?;
    while let Ok(job) = queue.recv() {
        run(&mut attacher, job);
    }
    Some(attacher)
}
