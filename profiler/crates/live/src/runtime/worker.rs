//! The thread that attaches while a recording runs: the kernel takes longer for a
//! large library than the rings can wait.

use super::{
    attach::{Attacher, Candidate},
    plan::ProbePlan,
};
use crate::bpf::probe::BpfLink;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, Receiver, SyncSender},
    },
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
pub(super) enum AttachJob {
    /// Probe a file.
    Attach(Box<Attach>),
    /// Detach what is for this process, which is gone.
    Forget(u32),
    /// Look which files have changed.
    Check,
    /// Give the attacher back, and end.
    GiveBack,
}

/// A file, and its probes.
#[derive(Debug)]
pub(super) struct Attach {
    /// The file.
    pub(super) candidate: Candidate,
    /// The probes.
    pub(super) plan: ProbePlan,
    /// How long it took to read the file.
    pub(super) reading: Duration,
}

/// The queue of the thread, for those who give it jobs.
#[derive(Clone, Debug)]
pub(super) struct Jobs {
    queue: SyncSender<AttachJob>,
    /// Jobs that were given and are not done.
    waiting: Arc<AtomicUsize>,
}

impl Jobs {
    /// Gives the thread a job; `false`: too many wait, and this one is dropped.
    pub(super) fn give(&self, job: AttachJob) -> bool {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let given = self.queue.try_send(job).is_ok();
        if !given {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        given
    }
}

/// The thread.
pub(super) struct AttachWorker {
    jobs: Jobs,
    /// Disconnected when the thread has ended; gives the attacher if it was asked to.
    ended: Receiver<Box<Attacher>>,
    handle: super::attach::Handle,
}

/// Does a job.
pub(super) fn run(attacher: &mut Attacher, job: AttachJob) {
    match job {
        AttachJob::Attach(attach) => {
            attacher.attach_to(attach.candidate, attach.plan, attach.reading);
        }
        AttachJob::Forget(pid) => attacher.forget(pid),
        AttachJob::Check => attacher.check(),
        AttachJob::GiveBack => {}
    }
}

impl AttachWorker {
    /// Starts it; it has the privileges that the calling thread has now.
    ///
    /// # Errors
    /// The attacher comes back with the reason.
    pub(super) fn start(attacher: Box<Attacher>) -> Result<Self, (Box<Attacher>, io::Error)> {
        let (jobs, queue) = mpsc::sync_channel(MAX_WAITING);
        let handle = attacher.handle();
        // Handed over only once the thread runs, so that it is not lost if it cannot.
        let (hand_over, given) = mpsc::sync_channel::<Box<Attacher>>(1);
        let (end, ended) = mpsc::sync_channel::<Box<Attacher>>(1);
        let waiting = Arc::new(AtomicUsize::new(0));
        let done = Arc::clone(&waiting);
        let started = thread::Builder::new()
            .name("aiprof-attach".into())
            .spawn(move || {
                aiprof_system::os::scheduling::take_turns();
                let attacher = work(&given, &queue, &done);
                // If no thread wants it, it is dropped.
                let _ = attacher.map(|attacher| end.try_send(attacher));
                drop(end);
            });
        if let Err(error) = started {
            return Err((attacher, error));
        }
        match hand_over.send(attacher) {
            Ok(()) => Ok(Self {
                jobs: Jobs {
                    queue: jobs,
                    waiting,
                },
                ended,
                handle,
            }),
            Err(mpsc::SendError(attacher)) => Err((attacher, io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Gives it a job; `false`: too many wait, and this one is dropped.
    pub(super) fn give(&self, job: AttachJob) -> bool {
        self.jobs.give(job)
    }

    /// Whether jobs that it was given are not done.
    pub(super) fn is_busy(&self) -> bool {
        self.jobs.waiting.load(Ordering::Relaxed) > 0
    }

    /// Ends it when what it was given is done, and gives the attacher back; `None`: that
    /// took too long, or it has ended before.
    pub(super) fn give_back(self) -> Option<Box<Attacher>> {
        self.jobs.queue.try_send(AttachJob::GiveBack).ok()?;
        self.ended.recv_timeout(LAST).ok()
    }

    /// For those who give it jobs on other threads.
    pub(super) fn jobs(&self) -> Jobs {
        self.jobs.clone()
    }

    /// Ends it after the attaching that is going on; what waits is left. Gives what is
    /// attached.
    pub(super) fn end(self) -> Vec<BpfLink> {
        self.handle.stop();
        // Wakes it; a full queue does, too.
        let _ = self.jobs.queue.try_send(AttachJob::Check);
        drop(self.jobs);
        let ended = self.ended.recv_timeout(LAST);
        if ended.is_err_and(|error| error == mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!(
                "probes of a library are still being attached; the recording ends without waiting \
                 for them"
            );
        }
        self.handle.take_links()
    }
}

/// Does jobs until there are no more; gives the attacher if it is asked for.
fn work(
    given: &Receiver<Box<Attacher>>,
    queue: &Receiver<AttachJob>,
    waiting: &AtomicUsize,
) -> Option<Box<Attacher>> {
    let mut attacher = given.recv().ok()?;
    while let Ok(job) = queue.recv() {
        if attacher.is_stopped() {
            return None;
        }
        if matches!(job, AttachJob::GiveBack) {
            return Some(attacher);
        }
        run(&mut attacher, job);
        // What ends it, or gives the attacher back, is not counted.
        let less = |waiting: usize| Some(waiting.saturating_sub(1));
        let _ = waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
    None
}
