//! Waits of threads: from the switch away from a thread to the switch back to it.

/// A [`WaitRecord`].
pub const KIND_WAIT: u32 = 9;

/// Threads that can wait at a time and be known: by their ids, modulo this.
pub const WAIT_SLOTS: usize = 1 << 16;
/// Waits that are over and whose threads have not left the kernel yet.
pub const WAITS_OVER: usize = 1 << 12;
/// Addresses of the kernel's part of a wait's stack.
pub const MAX_WAIT_FRAMES: usize = 48;
/// Of waits outside of system calls (of preempted threads, and of page faults) the length is
/// not known when their stack has to be taken. All are taken up to a thousand a second on a
/// CPU; beyond it one in so many, which stands for as many.
pub const BLIND_SHARE: u32 = 16;

/// `WaitRecord::syscall` of a wait outside of a system call.
pub const NO_SYSCALL: u64 = u64::MAX;

/// A wait that is over.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitRecord {
    /// [`KIND_WAIT`].
    pub kind: u32,
    /// CPU that it was recorded on.
    pub cpu: u32,
    /// When it was recorded, CLOCK_MONOTONIC nanoseconds, as all of them.
    pub time_ns: u64,
    /// Process id (tgid) in the root pid namespace.
    pub tgid: u32,
    /// Thread id in the root pid namespace.
    pub tid: u32,
    /// When the thread was switched away from.
    pub begin_ns: u64,
    /// When it was switched to again. Several waits of one system call are one: the
    /// beginning of the first, the end of the last.
    pub end_ns: u64,
    /// Nanoseconds until it was woken that it stands for: its own if it is recorded for
    /// certain, more if it was drawn from among others.
    pub blocked_ns: u64,
    /// Nanoseconds that it could run in and did not, in the same way.
    pub queued_ns: u64,
    /// [`CallStack`](crate::KIND_CALL_STACK) that it waited in, 0: none.
    pub stack: u64,
    /// Process and, in the lower half, thread that ran where it was woken, 0: none.
    pub waker: u64,
    /// Number of the system call, [`NO_SYSCALL`] if it was in none.
    pub syscall: u64,
    /// The first two arguments of the system call.
    pub arguments: [u64; 2],
    /// `task_struct.__state` as it was switched away from, 0: it was preempted.
    pub state: u32,
    /// `CALL_STACK_*`: why it has no stack.
    pub flags: u32,
}
const _: () = assert!(size_of::<WaitRecord>() == 104);
