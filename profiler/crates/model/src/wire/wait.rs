//! Waits of threads, as events.

use super::{WireError, bytes};
use aiprof_common::{NO_SYSCALL, STATES_STOPPED, WaitRecord};
use serde::{Deserialize, Serialize};
use std::mem::offset_of;

/// What a thread waited for.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub enum WaitReason {
    /// Not known.
    #[default]
    Other,
    /// A lock, or a condition: a futex, a semaphore, a file lock.
    Lock,
    /// A file, a disk, or a page of memory.
    Io,
    /// Time to pass.
    Sleep,
    /// A pipe, a socket, a terminal, or one of several descriptors.
    Pipe,
    /// An accelerator: inside a runtime's function that waits, or a driver's ioctl.
    Accelerator,
    /// Another process to change its state.
    Process,
    /// A CPU: it could run.
    Cpu,
    /// Whoever stopped it, to let it go on: a signal, a debugger, a frozen cgroup.
    Stopped,
    /// A timer that it reads: a timerfd.
    Timer,
}

impl WaitReason {
    /// The name of the frame that stands for the wait.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Other => "[waits]",
            Self::Lock => "[waits for a lock]",
            Self::Io => "[waits for I/O]",
            Self::Sleep => "[sleeps]",
            Self::Pipe => "[waits for a pipe or socket]",
            Self::Accelerator => "[waits for the accelerator]",
            Self::Process => "[waits for a process]",
            Self::Cpu => "[waits for a CPU]",
            Self::Stopped => "[stopped]",
            Self::Timer => "[waits for a timer]",
        }
    }
}

/// A wait of a thread that is over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadWait {
    /// When it was recorded, CLOCK_MONOTONIC nanoseconds, as all of them.
    pub time_ns: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// When the thread was switched away from.
    pub begin_ns: u64,
    /// When it was switched to again. Several waits of one system call are one.
    pub end_ns: u64,
    /// Nanoseconds until it was woken that it stands for.
    pub blocked_ns: u64,
    /// Nanoseconds that it could run in and did not, which it stands for.
    pub queued_ns: u64,
    /// Id of its [`CallStack`](super::CallStack), 0: none.
    pub stack: u64,
    /// Process and thread that ran where it was woken.
    pub waker: Option<(u32, u32)>,
    /// Number of the system call that it waited in.
    pub syscall: Option<u32>,
    /// The first two arguments of the system call.
    pub arguments: [u64; 2],
    /// `CALL_STACK_*`: why it has no stack.
    pub flags: u32,
    /// What it waited for until it was woken.
    pub reason: WaitReason,
}

impl ThreadWait {
    /// Process and thread that woke the thread, where that is somebody: time and devices
    /// wake by interrupts, which come to anybody.
    #[must_use]
    pub fn woken_by(&self) -> Option<(u32, u32)> {
        let by_somebody = matches!(
            self.reason,
            WaitReason::Lock | WaitReason::Pipe | WaitReason::Process | WaitReason::Stopped
        );
        self.waker.filter(|_| by_somebody)
    }
}

macro_rules! field {
    ($data:expr, $field:ident: $ty:ty) => {
        bytes($data, offset_of!(WaitRecord, $field)).map(<$ty>::from_ne_bytes)
    };
}

pub(super) fn decode(data: &[u8]) -> Result<ThreadWait, WireError> {
    let arguments = offset_of!(WaitRecord, arguments);
    let argument = |i: usize| bytes(data, arguments + i * 8).map(u64::from_ne_bytes);
    let waker = field!(data, waker: u64)?;
    let syscall = field!(data, syscall: u64)?;
    Ok(ThreadWait {
        time_ns: field!(data, time_ns: u64)?,
        pid: field!(data, tgid: u32)?,
        tid: field!(data, tid: u32)?,
        begin_ns: field!(data, begin_ns: u64)?,
        end_ns: field!(data, end_ns: u64)?,
        blocked_ns: field!(data, blocked_ns: u64)?,
        queued_ns: field!(data, queued_ns: u64)?,
        stack: field!(data, stack: u64)?,
        waker: (waker as u32 != 0).then_some(((waker >> 32) as u32, waker as u32)),
        syscall: (syscall != NO_SYSCALL).then_some(syscall as u32),
        arguments: [argument(0)?, argument(1)?],
        flags: field!(data, flags: u32)?,
        reason: match field!(data, state: u32)? & STATES_STOPPED {
            0 => WaitReason::Other,
            _ => WaitReason::Stopped,
        },
    })
}
