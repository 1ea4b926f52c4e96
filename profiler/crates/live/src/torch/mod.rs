//! PyTorch's operators, asked for by Kineto's on-demand protocol.
//!
//! A program with PyTorch that was started with `KINETO_USE_DAEMON=1` asks a daemon, by
//! dynolog's socket, once in a while whether to record. [`TorchDaemon`] takes the place of
//! that daemon: it asks the programs of the recording for windows of their operators, and
//! reads the files that they write. A program asks every 5 s, or every second with the
//! file of settings that `KINETO_CONFIG` names.
//!
//! Without a daemon to send to, Kineto tries for 10 s, and the program's exit waits for it.
//! So the socket is there before the command starts, and everybody is answered until this
//! process ends: programs that are not recorded by "nothing to do".
//!
//! **A program that ends while it records may crash**: Kineto's threads run on while the process
//! takes its data down. With torch 2.15, 3 of 13 programs that ended within 3 s of the request were
//! killed by SIGSEGV, after their last line. So a program is asked once, unless more is wanted.
//!
//! PyTorch knows which operator ran when, on which thread. It is not asked for stacks:
//! they take gigabytes a minute, and the recording has its own.

mod message;
mod service;
mod socket;

pub use service::{ReadOps, TorchDaemon, TorchGuard, TorchNews, TorchReports};

use std::io;
use std::time::Duration;

/// How programs are asked for their operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TorchOptions {
    /// Length of a window.
    pub window: Duration,
    /// From one request to the next; `None`: there is one only.
    pub every: Option<Duration>,
}

impl Default for TorchOptions {
    /// One window of 1 s.
    fn default() -> Self {
        Self {
            window: Duration::from_secs(1),
            every: None,
        }
    }
}

/// Shortest window.
pub const MIN_WINDOW: Duration = Duration::from_millis(10);
/// Longest window: a program keeps its operators in memory until the end.
pub const MAX_WINDOW: Duration = Duration::from_secs(60);

/// Why programs cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum TorchError {
    /// Another process has the daemon's name.
    #[error(
        "another process has the socket that PyTorch connects to (\\0dynolog): stop the dynolog \
         daemon (systemctl stop dynolog) or the other aiprof; `ss -xlp | grep dynolog` shows the \
         process"
    )]
    InUse,
    /// The socket could not be made.
    #[error("cannot create the socket that PyTorch connects to")]
    Socket(#[source] io::Error),
    /// The directory for what programs report could not be made.
    #[error("cannot create a directory in /tmp for PyTorch's reports")]
    Directory(#[source] io::Error),
    /// The thread that answers could not be started.
    #[error("cannot start the thread that collects operators from PyTorch")]
    Thread(#[source] io::Error),
}
