//! The events of the pipeline: what the kernel reports and a capture stores.

use super::call::{Call, CallData, CallStack, KernelNamed};
use super::counter::{ClockPair, Counter};
use super::device::{DeviceCode, DeviceStream, KernelPlaced, StallWindow};
use super::labels::ProcessLabels;
use super::ops::Ops;
use super::python::{PythonCode, PythonFound, PythonStack};
use super::trace::{Trace, TracePoint};
use super::wait::ThreadWait;
use crate::{
    probes::{Probe, ProbedFile},
    profile::{BuildId, LossKind},
};
use serde::{Deserialize, Serialize};

/// One event. A recording is a sequence of these in time order; live and from a
/// capture they go through the same code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// Something happened to a process.
    Process(ProcessEvent),
    /// A CPU was sampled.
    Sample(Sample),
    /// A probed call was entered or left.
    Call(Call),
    /// Data of a call.
    CallData(CallData),
    /// The stack of calls that follow.
    CallStack(CallStack),
    /// A function or ioctl is probed from here on; time-less, sent before its
    /// first call.
    Probe(Probe),
    /// A file is probed from here on.
    ProbedFile(ProbedFile),
    /// A kernel older than the recording has got its name.
    KernelNamed(KernelNamed),
    /// A tracepoint is recorded from here on.
    TracePoint(TracePoint),
    /// A tracepoint was hit.
    Trace(Trace),
    /// What the time of day is; about once a second.
    Clock(ClockPair),
    /// Something was measured.
    Counter(Counter),
    /// Samples of a device are read from here on.
    DeviceStream(DeviceStream),
    /// A device was sampled.
    Stalls(StallWindow),
    /// It was found out where a kernel lies on its device.
    KernelPlaced(KernelPlaced),
    /// What a driver compiled was found.
    DeviceCode(DeviceCode),
    /// A process has a Python interpreter.
    PythonFound(PythonFound),
    /// A Python code object was met.
    PythonCode(PythonCode),
    /// The Python frames of the next sample; in captures only.
    PythonStack(PythonStack),
    /// Labels of a process were found, or given to the recording.
    Labels(ProcessLabels),
    /// A thread has waited.
    Wait(ThreadWait),
    /// Operators of PyTorch became known.
    Ops(Ops),
    /// The recording was paused, or goes on.
    Pause(Pause),
}

/// The recording was paused, or goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// Whether it is paused from here on.
    pub begins: bool,
}

/// First number that no thread or process has: the kernel's own limit
/// (`FUTEX_TID_MASK`).
const FIRST_FREE_ID: u32 = 1 << 30;

impl Event {
    /// Whether the kernel can have given out the numbers of its process and thread; those
    /// of a damaged recording may be any.
    pub fn has_possible_ids(&self) -> bool {
        let ids = match self {
            Self::Call(call) => call.pid.max(call.tid),
            Self::CallData(data) => data.pid.max(data.tid),
            Self::Sample(sample) => sample.thread.pid.max(sample.thread.tid),
            Self::Wait(wait) => wait.pid.max(wait.tid),
            Self::Ops(ops) => ops.pid,
            _ => 0,
        };
        ids < FIRST_FREE_ID
    }

    /// When it happened: CLOCK_MONOTONIC nanoseconds.
    pub fn time_ns(&self) -> u64 {
        match self {
            Self::Process(event) => event.time_ns,
            Self::Sample(sample) => sample.time_ns,
            Self::Call(call) => call.time_ns,
            Self::CallData(data) => data.time_ns,
            Self::CallStack(stack) => stack.sample.time_ns,
            Self::KernelNamed(named) => named.time_ns,
            Self::Trace(trace) => trace.time_ns,
            Self::Counter(counter) => counter.time_ns,
            Self::Stalls(window) => window.to_ns,
            Self::KernelPlaced(placed) => placed.time_ns,
            Self::DeviceCode(code) => code.time_ns,
            Self::PythonFound(found) => found.time_ns,
            Self::PythonCode(code) => code.time_ns,
            Self::PythonStack(stack) => stack.time_ns,
            Self::Labels(labels) => labels.time_ns,
            Self::Wait(wait) => wait.time_ns,
            Self::Ops(ops) => ops.time_ns,
            Self::Pause(pause) => pause.time_ns,
            // They describe the recording and have no time in it.
            Self::Probe(_)
            | Self::ProbedFile(_)
            | Self::TracePoint(_)
            | Self::Clock(_)
            | Self::DeviceStream(_) => 0,
        }
    }
}

/// Something that happened to a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessEvent {
    /// CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// Process id (tgid) in the root pid namespace.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// What happened.
    pub kind: ProcessEventKind,
}

/// The kinds of [`ProcessEvent`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessEventKind {
    /// `pid`/`tid` was forked by `parent` (a thread of the same process if equal).
    Fork {
        /// Process id of the parent.
        parent: u32,
    },
    /// The process replaced its image.
    Exec {
        /// Its new name.
        comm: String,
    },
    /// A thread was renamed.
    Comm {
        /// Its new name.
        comm: String,
    },
    /// Executable memory was mapped.
    Map(MapEvent),
    /// The thread exited.
    Exit,
    /// A process seen for the first time, as /proc shows it.
    Snapshot {
        /// Name of the process.
        comm: String,
        /// All its executable mappings.
        maps: Vec<MapEvent>,
    },
    /// The kernel throttled the sampling of a CPU.
    Throttled,
    /// The kernel dropped events here: what is known of processes may be stale.
    Lost {
        /// Events dropped.
        count: u64,
    },
}

impl ProcessEventKind {
    /// The loss from the recording that the event reports, if any.
    pub fn loss(&self) -> Option<(LossKind, u64)> {
        match self {
            Self::Lost { count } => Some((LossKind::ProcessEventsLost, *count)),
            Self::Throttled => Some((LossKind::Throttled, 1)),
            _ => None,
        }
    }
}

/// An executable mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapEvent {
    /// First address.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Offset in the file of the first byte.
    pub file_offset: u64,
    /// What is mapped.
    pub file: FileKey,
}

/// What a mapping maps: a file, or one of the kernel's special regions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileKey {
    /// Path in the process's mount namespace, or `[vdso]`, `//anon` and so on.
    pub path: String,
    /// Build id, where the kernel could read it.
    pub build_id: Option<BuildId>,
    /// Device number, 0 if not known.
    pub device: u64,
    /// Inode number, 0 if not known.
    pub inode: u64,
    /// Which content of the inode: of a file without build id a digest of size
    /// and change time, else 0.
    pub version: u64,
}

/// A thread as sampled.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Thread {
    /// Process id (tgid) in the root pid namespace.
    pub pid: u32,
    /// Thread id in the root pid namespace.
    pub tid: u32,
    /// Thread name.
    pub comm: String,
}

/// One CPU sample with raw addresses, leaf first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// CPU it was taken on.
    pub cpu: u32,
    /// Thread it was taken in.
    pub thread: Thread,
    /// cgroup v2 id, 0 if unknown.
    pub cgroup: u64,
    /// What it stands for, in the event's unit.
    pub period: u64,
    /// Address space the stack was unwound in, 0 if none.
    pub space: u32,
    /// Directory of an absent table page.
    pub miss_dir: u32,
    /// Index of an absent table page.
    pub miss_page: u32,
    /// Why the user walk ended.
    pub stop: StopReason,
    /// `FLAG_*` bits of `aiprof_common`.
    pub flags: u8,
    /// Instruction pointer of the last user address.
    pub rip: u64,
    /// Stack pointer there.
    pub rsp: u64,
    /// Frame pointer register there.
    pub rbp: u64,
    /// User addresses, leaf first.
    pub user: Vec<u64>,
    /// Kernel addresses, leaf first.
    pub kernel: Vec<u64>,
    /// Words of Python frames and marks, leaf first (see `aiprof_common::PythonLayout`).
    /// Stored as an event of its own ([`PythonStack`]).
    #[serde(skip)]
    pub python: Vec<u64>,
}

/// Why the walk of a user stack ended (`STOP_*` of `aiprof_common`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum StopReason {
    /// A kernel thread: there is no user stack.
    KernelThread,
    /// The outermost frame was reached.
    End,
    /// The process was not known yet.
    NoProcess,
    /// An address in no known mapping.
    NoMapping,
    /// The table page was not resident.
    PageAbsent,
    /// A rule the unwinder does not implement.
    Unsupported,
    /// User memory could not be read.
    Read,
    /// Deeper than the limit.
    TooDeep,
    /// No unwind data, and no frame pointer chain.
    FramePointer,
    /// The stack pointer did not grow.
    NoProgress,
    /// A table changed while it was read.
    Torn,
    /// A return probe's address was not found.
    Trampoline,
    /// The process was ending and had no memory any more.
    Exiting,
    /// The stack was unwound with the mappings of an image that an exec had
    /// replaced (decided in user space).
    StaleImage,
}

impl StopReason {
    /// From the wire code.
    pub(crate) fn from_wire(code: u8) -> Option<Self> {
        use aiprof_common as c;
        Some(match code {
            c::STOP_KERNEL_THREAD => Self::KernelThread,
            c::STOP_END => Self::End,
            c::STOP_NO_PROCESS => Self::NoProcess,
            c::STOP_NO_MAPPING => Self::NoMapping,
            c::STOP_PAGE_ABSENT => Self::PageAbsent,
            c::STOP_UNSUPPORTED => Self::Unsupported,
            c::STOP_READ => Self::Read,
            c::STOP_TOO_DEEP => Self::TooDeep,
            c::STOP_FRAME_POINTER => Self::FramePointer,
            c::STOP_NO_PROGRESS => Self::NoProgress,
            c::STOP_TORN => Self::Torn,
            c::STOP_TRAMPOLINE => Self::Trampoline,
            c::STOP_EXITING => Self::Exiting,
            _ => return None,
        })
    }

    /// The loss it counts as; `None` for a complete stack.
    pub fn loss(self) -> Option<LossKind> {
        Some(match self {
            Self::KernelThread | Self::End => return None,
            Self::NoProcess => LossKind::StackNoProcess,
            Self::NoMapping => LossKind::StackNoMapping,
            Self::PageAbsent => LossKind::StackTableAbsent,
            Self::Unsupported => LossKind::StackUnsupportedRule,
            Self::Read => LossKind::StackUnreadable,
            Self::TooDeep => LossKind::StackTooDeep,
            Self::FramePointer => LossKind::StackFramePointer,
            Self::NoProgress => LossKind::StackNoProgress,
            Self::Torn => LossKind::StackTorn,
            Self::Trampoline => LossKind::StackTrampoline,
            Self::Exiting => LossKind::StackExiting,
            Self::StaleImage => LossKind::StackStaleImage,
        })
    }
}
