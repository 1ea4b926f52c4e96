//! The threads that look into programs: one at kernels' objects, at once; one for
//! code, at leisure.

use super::{
    Build,
    code::{FoundModules, Searcher},
    known::KnownPlaces,
    learn::Sampled,
};
use aiprof_model::wire::Event;
use std::{
    io,
    sync::mpsc::{self, Receiver, Sender},
    thread,
};

/// What happened, in the order of time.
#[derive(Debug)]
pub(super) enum PlaceMessage {
    /// A kernel was created, or is used that was created unseen.
    Kernel {
        pid: u32,
        build: Build,
        handle: u64,
        time_ns: u64,
        name: Option<String>,
        created: bool,
    },
    /// It has got a name.
    Named { pid: u32, handle: u64, name: String },
    /// It is launched, for the first time.
    Launched { pid: u32, handle: u64 },
    /// The runtime reported where it is.
    Told { pid: u32, handle: u64, address: u64 },
    /// It is being destroyed.
    Gone { pid: u32, handle: u64, time_ns: u64 },
    /// The process has ended, or has become another program.
    ProcessGone { pid: u32, time_ns: u64 },
    /// What was sampled since the last time; all that happened until `taken_ns` has been sent.
    Tick {
        taken_ns: u64,
        sampled: Vec<(Sampled, u64)>,
        last: bool,
    },
    /// Code was found.
    Code { pid: u32, found: FoundModules },
}

/// What comes of it.
#[derive(Debug)]
pub(super) enum PlaceAnswer {
    Event(Event),
    /// A tick was taken in.
    Ticked,
}

/// Starts the threads. They end with their messages.
pub(super) fn start() -> io::Result<(Sender<PlaceMessage>, Receiver<PlaceAnswer>)> {
    let (messages, inbox) = mpsc::channel::<PlaceMessage>();
    let (outbox, answers) = mpsc::channel::<PlaceAnswer>();
    let (searches, wanted) = mpsc::channel::<u32>();
    // The inbox ends with its last sender, which must not be a thread's.
    let (found, results) = mpsc::channel::<(u32, FoundModules)>();
    thread::Builder::new()
        .name("device code".into())
        .spawn(move || {
            prefer(10);
            let mut searcher = Searcher::default();
            for pid in wanted {
                if found.send((pid, searcher.search(pid))).is_err() {
                    break;
                }
            }
        })?;
    thread::Builder::new()
        .name("kernel places".into())
        .spawn(move || {
            prefer(0);
            let mut known = KnownPlaces::new(searches, outbox);
            for message in inbox {
                for (pid, found) in results.try_iter() {
                    known.take(PlaceMessage::Code { pid, found });
                }
                if matches!(message, PlaceMessage::Tick { last: true, .. }) {
                    // Searches that still run may find sizes.
                    while known.searching() > 0 {
                        let Ok((pid, found)) = results.recv_timeout(LAST_SEARCH) else {
                            break;
                        };
                        known.take(PlaceMessage::Code { pid, found });
                    }
                }
                if !known.take(message) {
                    break;
                }
            }
        })?;
    Ok((messages, answers))
}

/// How long a search for code is waited for at the end.
const LAST_SEARCH: std::time::Duration = std::time::Duration::from_secs(1);

/// Gives this thread a priority: higher is less.
fn prefer(nice: i32) {
    if let Err(error) = rustix::process::setpriority_process(None, nice) {
        tracing::debug!("cannot set the priority of a thread: {error}");
    }
}
