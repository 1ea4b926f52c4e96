//! The helper's threads. They take no signals, and end when all of the program's own threads
//! have ended: a program whose first thread calls `pthread_exit` ends with its last thread.

use crate::{ffi, guarded};
use std::io::ErrorKind;
use std::thread::{Builder, Thread};
use std::time::{Duration, Instant};

/// The name of each thread of a helper.
const NAME: &str = "aiprof-timing";
/// How often a thread looks whether the program's own have ended.
const EVERY: Duration = Duration::from_millis(500);
const TASKS: &str = "/proc/self/task";

/// Starts a thread; `None`: the system refuses it.
pub(crate) fn spawn(run: impl FnOnce() + Send + 'static) -> Option<Thread> {
    ffi::without_signals(|| {
        let thread = Builder::new().name(NAME.to_owned());
        let started = thread.spawn(|| guarded(run)).ok()?;
        Some(started.thread().clone())
    })
}

/// Looks now and then whether only helpers' threads are left.
pub(crate) struct Watch(Instant);

impl Watch {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    /// Whether this thread has to end; no, until the next look. When the last one returns,
    /// the C library ends the process as if the program's last thread had returned.
    pub(crate) fn is_over(&mut self) -> bool {
        if self.0.elapsed() < EVERY {
            return false;
        }
        self.0 = Instant::now();
        has_first_thread_ended() && are_all_others_helpers()
    }
}

/// A thread that has ended has no program file. No file is opened for that: other programs'
/// first threads run as long as they do.
#[expect(
    clippy::disallowed_methods,
    reason = "the program's own threads, with the program's own rights"
)]
fn has_first_thread_ended() -> bool {
    let link = std::fs::read_link(format!("{TASKS}/{}/exe", ffi::pid()));
    link.is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Whether each thread but the first is a helper's; no, where that cannot be found out.
#[expect(
    clippy::disallowed_methods,
    reason = "the program's own threads, with the program's own rights"
)]
fn are_all_others_helpers() -> bool {
    let Ok(tasks) = std::fs::read_dir(TASKS) else {
        return false;
    };
    let first = ffi::pid().to_string();
    let mut others = tasks
        .flatten()
        .filter(|task| task.file_name() != first.as_str());
    others.all(|task| {
        let name = std::fs::read_to_string(task.path().join("comm"));
        name.is_ok_and(|name| name.trim_end() == NAME)
    })
}
