//! Waits of threads: from the switch away from a thread to the switch back to it.

/// A [`WaitRecord`].
pub const KIND_WAIT: u32 = 9;

/// Threads whose waits can be followed at the same time, by their ids modulo this.
pub const WAIT_SLOTS: usize = 1 << 16;
/// Most waits that are over and whose threads have not left the kernel yet.
pub const WAITS_OVER: usize = 1 << 12;
/// Most addresses of the kernel part of a wait's stack.
pub const MAX_WAIT_FRAMES: usize = 48;
/// One in this many waits outside of system calls (preemption, page faults) is recorded where
/// there are many. Their stack must be taken when they begin, before their length is known. On
/// each CPU, up to 1000 a second are all taken. Beyond that, one in `BLIND_SHARE` is taken and
/// counts as that many.
pub const BLIND_SHARE: u32 = 16;

/// `WaitRecord::syscall` of a wait outside of a system call.
pub const NO_SYSCALL: u64 = u64::MAX;

/// `task_struct.__state` of threads that wait until somebody lets them go on: stopped by a signal
/// (`__TASK_STOPPED`), by a debugger (`__TASK_TRACED`), or frozen with their cgroup (`TASK_FROZEN`,
/// include/linux/sched.h).
pub const STATES_STOPPED: u32 = 0x4 | 0x8 | 0x8000;

/// A wait that is over.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitRecord {
    /// [`KIND_WAIT`].
    pub kind: u32,
    /// CPU that it was recorded on.
    pub cpu: u32,
    /// When it was recorded. All times are of CLOCK_MONOTONIC, in nanoseconds.
    pub time_ns: u64,
    /// Process id (tgid) in the root pid namespace.
    pub tgid: u32,
    /// Thread id in the root pid namespace.
    pub tid: u32,
    /// When the thread was switched out.
    pub begin_ns: u64,
    /// When it was switched in again. Several waits of one system call are one record, from the
    /// beginning of the first to the end of the last.
    pub end_ns: u64,
    /// Nanoseconds until it was woken that the record stands for: those of this wait if it is
    /// always recorded, more if it was drawn at random from among others.
    pub blocked_ns: u64,
    /// Nanoseconds that it waited for a CPU after that, counted in the same way.
    pub queued_ns: u64,
    /// Id of its stack ([`KIND_CALL_STACK`](crate::KIND_CALL_STACK)), 0: none.
    pub stack: u64,
    /// Process and, in the lower half, thread that was current on the CPU that woke it, 0:
    /// none.
    pub waker: u64,
    /// Number of the system call, [`NO_SYSCALL`] if it was in none.
    pub syscall: u64,
    /// The first two arguments of the system call.
    pub arguments: [u64; 2],
    /// `task_struct.__state` when it was switched out, 0: it was preempted.
    pub state: u32,
    /// `CALL_STACK_*` flags: why it has no stack.
    pub flags: u32,
}
const _: () = assert!(size_of::<WaitRecord>() == 104);
