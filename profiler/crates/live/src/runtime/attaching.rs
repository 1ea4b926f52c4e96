//! Attaching, and who does it: this thread, or one of its own.

use super::{
    attach::{AttachReport, Attacher, KernelSide, Tally},
    worker::{self, AttachJob, AttachWorker, Jobs},
};
use crate::{bpf::probe::BpfLink, inspect::guard, locking::lock, owner};
use aiprof_system::workers::Owner;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// Where the attaching is done.
enum Stage {
    /// Here, at once: nothing runs yet.
    Here(Box<Attacher>),
    /// On a thread of its own.
    There(AttachWorker),
    /// Not any more.
    Over,
}

/// Attaches to what was read.
pub(crate) struct Attaching {
    stage: Stage,
    report: Arc<Mutex<AttachReport>>,
    pub(super) is_running: bool,
    /// Libraries of other users, to be attached to once the recording runs.
    deferred: Vec<AttachJob>,
    /// Jobs that were not taken.
    pub(super) refused: u64,
}

impl Attaching {
    /// Nothing is attached yet; by a thread with the privileges that this one has now.
    pub(super) fn start(kernel: Box<dyn KernelSide>, specs: u32) -> Self {
        let attacher = Attacher::new(kernel, specs);
        let mut attaching = Self {
            report: attacher.report(),
            stage: Stage::Here(Box::new(attacher)),
            is_running: false,
            deferred: Vec::new(),
            refused: 0,
        };
        attaching.start_worker();
        attaching
    }

    fn start_worker(&mut self) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Here(attacher) => match AttachWorker::start(attacher) {
                Ok(worker) => Stage::There(worker),
                Err((attacher, error)) => {
                    tracing::warn!("cannot start the thread that attaches probes: {error}");
                    Stage::Here(attacher)
                }
            },
            other => other,
        };
    }

    /// Has a job done.
    pub(super) fn give(&mut self, job: AttachJob) {
        if self.is_running {
            self.start_worker();
        }
        match &mut self.stage {
            Stage::Here(attacher) => worker::run(attacher, job),
            Stage::There(worker) if worker.give(job) => {}
            Stage::There(_) | Stage::Over => self.refused += 1,
        }
    }

    /// Has a file attached to that is read, on the account of its owner. The start of the recording
    /// does not wait for those of other users.
    pub(super) fn ready(&mut self, owner: Owner, job: AttachJob) {
        match self.is_running || owner::is_trusted(owner) {
            true => self.give(job),
            false => self.deferred.push(job),
        }
    }

    /// The recording runs: from here on, jobs are done by a thread with the privileges that this
    /// one has now.
    pub(super) fn run(&mut self) {
        self.is_running = true;
        for job in std::mem::take(&mut self.deferred) {
            self.give(job);
        }
        self.start_worker();
    }

    /// Whether something is being attached or waits for that.
    pub(super) fn is_busy(&self) -> bool {
        let is_attaching = matches!(&self.stage, Stage::There(worker) if worker.is_busy());
        is_attaching || !self.deferred.is_empty()
    }

    /// Who attaches while the recording runs, for the threads that read.
    pub(super) fn jobs(&self) -> Option<Jobs> {
        match &self.stage {
            Stage::There(worker) if self.is_running => Some(worker.jobs()),
            _ => None,
        }
    }

    /// Ends the thread when its work is done; `true`: it is. Then the attacher is at hand again,
    /// for a thread with fewer privileges.
    pub(super) fn settle(&mut self) -> bool {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::There(worker) if worker.is_busy() => {
                self.stage = Stage::There(worker);
                return false;
            }
            Stage::There(worker) => match worker.give_back() {
                Some(attacher) => Stage::Here(attacher),
                None => {
                    tracing::warn!(
                        "the thread that attaches probes does not answer, so libraries that are \
                         loaded from now on are not probed"
                    );
                    Stage::Over
                }
            },
            other => other,
        };
        true
    }

    /// What was attached since the last call, but for the totals.
    pub(super) fn take_report(&mut self) -> AttachReport {
        let mut report = lock(&self.report);
        let tally = report.tally;
        std::mem::replace(
            &mut *report,
            AttachReport {
                tally,
                ..AttachReport::default()
            },
        )
    }

    /// What must be done now and then.
    pub(crate) fn maintain(&mut self) {
        if lock(&self.report).tally.files > 0 {
            self.give(AttachJob::Check);
        }
    }

    /// Detaching took this long.
    pub(crate) fn detached(&self, took: Duration) {
        lock(&self.report).tally.detaching += took;
    }

    /// The totals so far.
    pub(super) fn tally(&self) -> Tally {
        lock(&self.report).tally
    }

    /// Ends the attaching and gives what is attached, for the caller to close.
    pub(crate) fn stop(&mut self) -> Vec<BpfLink> {
        guard::set_ending(true);
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Here(attacher) => attacher.handle().take_links(),
            Stage::There(worker) => worker.end(),
            Stage::Over => Vec::new(),
        }
    }
}
