//! Calls of probed functions and ioctls: the second half of the wire contract.
//!
//! User space compiles its probe tables into [`ProbeSpec`]s, one for each function. It attaches
//! the probe programs with the cookie `library << 32 | index of the spec`. At the entry and at
//! the exit, a program runs the spec's [`FetchOp`]s and sends a [`CallRecord`]. Texts and
//! larger data follow in records of their own ([`DataHeader`]). A stack is sent once, before
//! the first call that has it ([`KIND_CALL_STACK`]).
//!
//! # Pairing, and calls without an exit probe
//!
//! A call is identified by its thread and by its stack pointer at entry, [`CallRecord::sp`]:
//! the address of its *slot*, which holds its return address. The stack pointer is the same at
//! a `ret` instruction; in a return probe it is 8 higher. A call whose exit is not probed, or
//! that was left by an exception or `longjmp`, is over as soon as its thread is seen above its
//! slot. The values that it returned through pointers are usually still there then, and are
//! read ([`SPEC_LATE`]).

use crate::SampleHeader;

/// A [`CallRecord`].
pub const KIND_CALL: u32 = 3;
/// A stack, laid out as a CPU sample ([`SampleHeader`]) whose `period` is the stack's id. It is
/// sent before the first call that has it.
pub const KIND_CALL_STACK: u32 = 4;
/// A [`DataHeader`] and its data.
pub const KIND_CALL_DATA: u32 = 5;

/// Most fetch operations of a probe, those of the entry and the exit together.
pub const MAX_OPS: usize = 16;
/// Most values of a call.
pub const MAX_VALUES: usize = 12;
/// Most bytes of a text ([`FETCH_TEXT`]), its NUL included. Names of kernels that are C++
/// templates have several hundred.
pub const TEXT_BYTES: usize = 1024;
/// Most bytes of an array ([`FETCH_BYTES`]).
pub const ARRAY_BYTES: usize = 256;
/// Bytes of one record of a blob ([`FETCH_BLOB`]).
pub const BLOB_BYTES: usize = 4096;
/// Most bytes of a blob; the rest is not sent, and `total` shows how much that is.
pub const MAX_BLOB: u64 = 16 << 20;
/// Most nested calls of one thread that wait for their exit.
pub const MAX_PENDING: usize = 8;

/// One value or piece of data to read when a probe is hit.
///
/// `from` and `index` choose the base. `offset` is added if the base is an address to read at.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchOp {
    /// One of the `FROM_*` constants.
    pub from: u8,
    /// Which argument or value.
    pub index: u8,
    /// One of the `FETCH_*` constants.
    pub how: u8,
    /// Bytes of a value: 1, 2, 4 or 8; the rest of the `u64` is zero.
    pub size: u8,
    /// Right shift of a [`FETCH_VALUE`], in bits, for the upper half of a register.
    pub shift: u8,
    /// The value slot for the result ([`FETCH_VALUE`], [`FETCH_READ`]), or the tag of the data
    /// ([`DataHeader::tag`]).
    pub to: u8,
    /// The value slot that holds the count, for [`FETCH_BYTES`] and [`FETCH_BLOB`].
    pub count: u8,
    /// Bytes of one counted element.
    pub unit: u8,
    /// Bytes added to the base if that is an address.
    pub offset: i32,
    /// Zero.
    pub pad: u32,
}
const _: () = assert!(size_of::<FetchOp>() == 16);

/// Base: integer argument `index`, 0..=5 (rdi, rsi, rdx, rcx, r8, r9). For an ioctl, 0..=2
/// (descriptor, command, argument).
pub const FROM_ARGUMENT: u8 = 0;
/// Base: the address of the call's return address; the first argument on the
/// stack is at offset 8.
pub const FROM_STACK: u8 = 1;
/// Base: value `index`, fetched earlier. At the exit, values of the entry count if the spec has
/// [`SPEC_KEEP`].
pub const FROM_VALUE: u8 = 2;
/// Base: the return value (rax), at the exit only.
pub const FROM_RESULT: u8 = 3;

/// The base itself is the value.
pub const FETCH_VALUE: u8 = 0;
/// The value is read from user memory at base + offset.
pub const FETCH_READ: u8 = 1;
/// The NUL-terminated text at base + offset, up to TEXT_BYTES.
pub const FETCH_TEXT: u8 = 2;
/// `count * unit` bytes at base + offset, up to ARRAY_BYTES.
pub const FETCH_BYTES: u8 = 3;
/// `count * unit` bytes at base + offset, up to MAX_BLOB, in records of
/// BLOB_BYTES. In sleepable programs only.
pub const FETCH_BLOB: u8 = 4;

/// What to do when a probe is hit.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeSpec {
    /// Identity of the function's name, the same in every library, never 0. A stub that jumps
    /// to the function of the same name in the next library is thus one call, not two.
    pub function: u32,
    /// `SPEC_*` bits.
    pub flags: u32,
    /// Operations at the entry: `ops[..n_entry]`.
    pub n_entry: u8,
    /// Operations at the exit: the `n_exit` after them.
    pub n_exit: u8,
    /// Value slots in use, at most MAX_VALUES.
    pub n_values: u8,
    /// Zero.
    pub pad: u8,
    /// With [`SPEC_LATE`]: the value slots that the exit's operations write, one bit each.
    pub exit_slots: u16,
    /// Zero.
    pub pad2: u16,
    /// The operations.
    pub ops: [FetchOp; MAX_OPS],
}
const _: () = assert!(size_of::<ProbeSpec>() == 16 + 16 * MAX_OPS);

/// Record the user stack at the entry.
pub const SPEC_STACK: u32 = 1;
/// Keep the entry's values for the exit.
pub const SPEC_KEEP: u32 = 2;
/// The exit is probed too.
pub const SPEC_EXIT: u32 = 4;
/// Send no record at the entry; the exit's record has everything.
pub const SPEC_EXIT_ONLY: u32 = 8;
/// Record the kernel stack too (ioctls).
pub const SPEC_KERNEL_STACK: u32 = 16;
/// If the exit was not seen, the thread's next call reads what the exit would have read
/// ([`CALL_LATE`]).
pub const SPEC_LATE: u32 = 32;
/// No call of this function starts to be recorded while the recording is paused.
pub const SPEC_WORK: u32 = 64;

/// One probed call: its entry or its exit.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallRecord {
    /// [`KIND_CALL`].
    pub kind: u32,
    /// CPU it was seen on.
    pub cpu: u32,
    /// CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// Process id (tgid) in the root pid namespace.
    pub tgid: u32,
    /// Thread id in the root pid namespace.
    pub tid: u32,
    /// Index of the spec.
    pub probe: u32,
    /// Upper half of the cookie: the attached file. For an ioctl, the file's device number
    /// (`i_rdev`, kernel encoding).
    pub library: u32,
    /// Id of the user stack at the entry; 0: none recorded.
    pub stack: u64,
    /// The call's identity on its thread (see the module's documentation); 0 for an ioctl.
    pub sp: u64,
    /// At an entry, the start time of the pending call around this one; 0 if there is none. At
    /// an exit, the start time of the call that ends. If the entry of that call is not known
    /// ([`CALL_ENTRY_UNKNOWN`]), the same as at an entry. All calls of the thread that started
    /// later are over.
    pub around_ns: u64,
    /// Return value; 0 at the entry.
    pub result: u64,
    /// One bit for each value that could not be read.
    pub unread: u16,
    /// `CALL_*` bits.
    pub flags: u16,
    /// Calls of this thread that were pending around this one.
    pub depth: u8,
    /// Values in use.
    pub n_values: u8,
    /// Zero.
    pub pad: u16,
    /// The values fetched, with those of the entry if they were kept.
    pub values: [u64; MAX_VALUES],
}
const _: () = assert!(size_of::<CallRecord>() == 72 + 8 * MAX_VALUES);

/// This is the exit.
pub const CALL_EXIT: u16 = 1;
/// The pending call around it is the same call in an outer library, which jumped here. It has
/// no stack of its own and is not a call of its own.
pub const CALL_TAIL: u16 = 2;
/// The stack was left out because of the limit.
pub const CALL_STACK_LIMITED: u16 = 4;
/// No scratch memory was free for the stack.
pub const CALL_STACK_BUSY: u16 = 8;
/// The entry of this exit is not known: the entry's values are missing.
pub const CALL_ENTRY_UNKNOWN: u16 = 16;
/// A kernel stack is part of the stack.
pub const CALL_KERNEL_STACK: u16 = 32;
/// Data of this call were left out: the ring had no room, or aiprof's caller may not read them.
pub const CALL_DATA_LOST: u16 = 64;
/// With [`CALL_EXIT`]: the exit was not seen, but the thread was seen again outside of the
/// call. The end of the call and its result are not known. Values that have not changed since
/// the entry are marked as unread, but are there.
pub const CALL_LATE: u16 = 128;

/// There was no memory to follow the calls of this thread: [`CallRecord::around_ns`] has no
/// meaning.
pub const CALL_UNTRACKED: u16 = 256;

/// Header of data read for a call. TEXT_BYTES, ARRAY_BYTES or BLOB_BYTES bytes follow, of which
/// the first `len` count.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataHeader {
    /// [`KIND_CALL_DATA`].
    pub kind: u32,
    /// CPU it was seen on.
    pub cpu: u32,
    /// Time of the call's record; with the thread it identifies the record.
    pub time_ns: u64,
    /// Process id (tgid).
    pub tgid: u32,
    /// Thread id.
    pub tid: u32,
    /// Index of the spec.
    pub probe: u32,
    /// Which data of the call: [`FetchOp::to`].
    pub tag: u8,
    /// 1: the data could not be read from here on.
    pub unread: u8,
    /// Bytes that count.
    pub len: u16,
    /// Offset of the first of them in the whole data.
    pub offset: u64,
    /// Bytes of the whole data in the program's memory; 0 for a text.
    pub total: u64,
}
const _: () = assert!(size_of::<DataHeader>() == 48);

/// A call that waits for its exit.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingCall {
    /// [`CallRecord::sp`].
    pub sp: u64,
    /// When it began.
    pub time_ns: u64,
    /// [`CallRecord::stack`].
    pub stack: u64,
    /// [`ProbeSpec::function`].
    pub function: u32,
    /// Index of the spec.
    pub probe: u32,
    /// [`CallRecord::library`].
    pub library: u32,
    /// [`CallRecord::unread`] of the values kept.
    pub unread: u32,
    /// [`ProbeSpec::flags`].
    pub flags: u32,
    /// Zero.
    pub pad: u32,
    /// The return address that was in its slot at the entry.
    pub return_address: u64,
    /// The entry's values, if kept. With [`SPEC_LATE`], also those that the exit's operations
    /// read at the entry.
    pub values: [u64; MAX_VALUES],
}
const _: () = assert!(size_of::<PendingCall>() == 56 + 8 * MAX_VALUES);

/// Value of the map `THREADS`, by thread id: the thread's pending calls,
/// outermost first. User space deletes it when the thread exits.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadCalls {
    /// Calls in use.
    pub n: u32,
    /// Zero.
    pub pad: u32,
    /// The calls.
    pub calls: [PendingCall; MAX_PENDING],
}

/// Value of the per-CPU map `PROBE_COUNTS`, by spec.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeCounts {
    /// Entries seen, those whose record was lost included.
    pub calls: u64,
    /// Records lost because the ring was full.
    pub lost: u64,
    /// Stacks that were left out because of the limit.
    pub stacks_limited: u64,
    /// Stacks left out because no scratch memory was free.
    pub stacks_busy: u64,
    /// Data records lost because the ring was full.
    pub data_lost: u64,
    /// Calls whose exit cannot be recorded: there was no memory for the thread's state, or
    /// [`MAX_PENDING`] calls were pending already.
    pub untracked: u64,
    /// Values and data of other users' processes that were not in memory. A program waits for a
    /// page only in processes of root and of aiprof's caller.
    pub absent: u64,
    /// Calls of other users' processes whose data were not read because aiprof's caller may not
    /// read them ([`Settings::own_data_only`](crate::Settings::own_data_only)).
    pub withheld: u64,
}

/// Scratch slots of each CPU for stacks of calls: programs can be preempted, so several may
/// need one at the same time.
pub const CALL_SLOTS: u32 = 8;

/// Bytes of the header that a stack record shares with a sample.
pub const STACK_HEADER: usize = size_of::<SampleHeader>();
