//! The thread that attaches while a recording runs: the kernel takes longer for a
//! large library than the rings can wait.

use super::{
    attach::{Attacher, Candidate},
    plan::Plan,
};
use crate::collect::bpf::{perf, probe::Link};
use std::{
    io,
    sync::mpsc::{self, Receiver, SyncSender},
    thread,
    time::Duration,
};

/// Most jobs that wait.
const MAX_WAITING: usize = 1024;

/// How long the end of a recording waits for what is being attached: a thread that
/// is killed meanwhile leaves the kernel's breakpoints behind.
const LAST: Duration = Duration::from_millis(400);

/// Something to do.
#[derive(Debug)]
pub(super) enum Job {
    /// Probe a file.
    Attach(Box<Attach>),
    /// Look which files have changed.
    Check,
}

/// A file, and its probes.
#[derive(Debug)]
pub(super) struct Attach {
    /// The file.
    pub(super) candidate: Candidate,
    /// The probes.
    pub(super) plan: Plan,
    /// How long it took to read the file.
    pub(super) reading: Duration,
}

/// The thread.
pub(super) struct Worker {
    jobs: SyncSender<Job>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
    handle: super::attach::Handle,
}

/// Does a job.
pub(super) fn run(attacher: &mut Attacher, job: Job) {
    match job {
        Job::Attach(attach) => {
            attacher.attach_to(attach.candidate, attach.plan, attach.reading);
        }
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
        let handle = attacher.handle();
        // Handed over only once the thread runs, so that it is not lost if it cannot.
        let (hand_over, given) = mpsc::sync_channel::<Box<Attacher>>(1);
        let (end, ended) = mpsc::sync_channel::<()>(1);
        let started = thread::Builder::new()
            .name("aiprof-attach".into())
            .spawn(move || {
                perf::take_turns();
                work(&given, &queue);
                drop(end);
            });
        if let Err(error) = started {
            return Err((attacher, error));
        }
        match hand_over.send(attacher) {
            Ok(()) => Ok(Self {
                jobs,
                ended,
                handle,
            }),
            Err(mpsc::SendError(attacher)) => Err((attacher, io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Gives it a job; `false`: too many wait, and this one is dropped.
    pub(super) fn give(&self, job: Job) -> bool {
        self.jobs.try_send(job).is_ok()
    }

    /// For those who give it jobs on other threads.
    pub(super) fn jobs(&self) -> SyncSender<Job> {
        self.jobs.clone()
    }

    /// Ends it after the attaching that is going on; what waits is left. Gives what is
    /// attached.
    pub(super) fn end(self) -> Vec<Link> {
        self.handle.stop();
        // Wakes it; a full queue does, too.
        let _ = self.jobs.try_send(Job::Check);
        drop(self.jobs);
        let ended = self.ended.recv_timeout(LAST);
        if ended == Err(mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!("a library is still being attached to; that is not waited for");
        }
        self.handle.take_links()
    }
}

fn work(given: &Receiver<Box<Attacher>>, queue: &Receiver<Job>) {
    let Ok(mut attacher) = given.recv() else {
        return;
    };
    while let Ok(job) = queue.recv() {
        if attacher.is_stopped() {
            return;
        }
        run(&mut attacher, job);
    }
}
