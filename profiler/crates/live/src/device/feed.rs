//! What the threads of streams and the session share.

use crate::locking::lock;
use aiprof_model::{
    profile::{LossKind, Losses},
    wire::Event,
};
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        mpsc::{SyncSender, TrySendError},
    },
    time::Duration,
};

/// Makes threads end.
#[derive(Debug, Default)]
pub(super) struct StreamControl {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl StreamControl {
    pub(super) fn stop(&self) {
        *lock(&self.stopped) = true;
        self.changed.notify_all();
    }

    pub(super) fn is_stopped(&self) -> bool {
        *lock(&self.stopped)
    }

    /// Sleeps, but not beyond the end. Whether it has come.
    pub(super) fn sleep(&self, time: Duration) -> bool {
        let stopped = lock(&self.stopped);
        let wait = self.changed.wait_timeout_while(stopped, time, |s| !*s);
        *wait.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// What a problem is about; a stream has one of each at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Topic {
    /// It cannot be opened or read.
    Reading,
    /// Its records look wrong.
    Records,
    /// Their counters are too small.
    Counters,
    /// Its device capture.
    Saving,
    /// A card, by its number.
    Card,
    /// Its thread.
    Thread,
}

/// What was missed, and why.
#[derive(Debug, Default)]
pub(super) struct StreamStatus {
    losses: Mutex<Losses>,
    /// By stream and topic: the latest of each is what counts.
    problems: Mutex<BTreeMap<(u32, Topic), String>>,
}

impl StreamStatus {
    pub(super) fn losses(&self) -> Losses {
        lock(&self.losses).clone()
    }

    pub(super) fn lost(&self, kind: LossKind, n: u64) {
        if n > 0 {
            lock(&self.losses).add(kind, n);
        }
    }

    pub(super) fn problems(&self) -> Vec<String> {
        lock(&self.problems).values().cloned().collect()
    }

    /// Sets or removes a problem of a stream.
    pub(super) fn problem(&self, stream: u32, topic: Topic, text: Option<String>) {
        let mut problems = lock(&self.problems);
        match text {
            Some(text) => problems.insert((stream, topic), text),
            None => problems.remove(&(stream, topic)),
        };
    }
}

/// The way of events to the session.
#[derive(Clone, Debug)]
pub(super) struct Feed {
    events: SyncSender<Event>,
    status: Arc<StreamStatus>,
    /// Folder for device captures.
    save: Option<Arc<Path>>,
}

impl Feed {
    pub(super) fn new(
        events: SyncSender<Event>,
        status: Arc<StreamStatus>,
        save: Option<Arc<Path>>,
    ) -> Self {
        Self {
            events,
            status,
            save,
        }
    }

    /// Where streams are kept, if that was asked for.
    pub(super) fn save(&self) -> Option<&Path> {
        self.save.as_deref()
    }

    pub(super) fn status(&self) -> &StreamStatus {
        &self.status
    }

    /// Hands on an event, if there is room; else it comes back.
    pub(super) fn offer(&self, event: Event) -> Option<Event> {
        match self.events.try_send(event) {
            // Without a receiver the event is not needed.
            Ok(()) | Err(TrySendError::Disconnected(_)) => None,
            Err(TrySendError::Full(event)) => Some(event),
        }
    }

    /// Hands on an event, waiting for room. Whether somebody wants it.
    pub(super) fn send(&self, event: Event) -> bool {
        self.events.send(event).is_ok()
    }
}
