//! What was given to a device.

use super::{DriverCalls, ModuleImage};
use aiprof_model::probes::CallKind;
use std::rc::Rc;

/// What is known of a kernel's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KernelName {
    /// The name, demangled; of a copy or a fill the operation, `Memcpy (H2D)`.
    Known(Rc<str>),
    /// Created before aiprof was attached, and not found out since: its handle.
    BeforeAttach(u64),
    /// The API gives no name, or it could not be read.
    Unknown,
    /// Work that was prepared unseen: a list, a graph, an ioctl's batch.
    Submitted,
}

impl std::fmt::Display for KernelName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Known(name) => f.write_str(name),
            Self::BeforeAttach(handle) => write!(f, "[kernel created before attach {handle:#x}]"),
            Self::Unknown => f.write_str("[kernel without a name]"),
            Self::Submitted => f.write_str("[submitted work]"),
        }
    }
}

/// A call that executes a graph.
#[derive(Clone, Debug)]
pub struct GraphExecution {
    /// The function that the program called.
    pub function: Rc<str>,
    /// The thread.
    pub tid: u32,
    /// Its entry, CLOCK_MONOTONIC nanoseconds.
    pub start_ns: u64,
    /// Its exit, where seen.
    pub end_ns: Option<u64>,
}

/// The call that made a launch.
#[derive(Clone, Debug, Default)]
pub struct LaunchingCall {
    /// The call ([`FinishedCall::id`](super::FinishedCall::id)); of a list, the append.
    pub call: u64,
    /// The outermost function's API.
    pub api: Rc<str>,
    /// The function that the program called.
    pub function: Rc<str>,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Its entry, CLOCK_MONOTONIC nanoseconds.
    pub start_ns: u64,
    /// Its exit, where seen before the launch was reported.
    pub end_ns: Option<u64>,
    /// Id of its stack; 0: none.
    pub stack: u64,
    /// Its `CALL_*` bits: why there is no stack.
    pub flags: u16,
}

/// Where a launch was put: handles, 0 where not known.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaunchTarget {
    /// Device.
    pub device: u64,
    /// Queue, stream or immediate list.
    pub queue: u64,
    /// Regular list it was put on.
    pub list: u64,
    /// Event that it signals.
    pub event: u64,
}

/// What a launch has the device do.
#[derive(Clone, Debug)]
pub struct DeviceWork {
    /// The kernel's name; of a copy or fill the operation, `Memcpy (H2D)`.
    pub name: KernelName,
    /// Kernel handle, 0 if none.
    pub kernel: u64,
    /// Numbers the kernels of the recording from 1; 0: none.
    pub kernel_number: u64,
    /// The module that the kernel is of, where its creation was seen.
    pub module: Option<Rc<ModuleImage>>,
    /// Work groups along each axis; 0 if not known.
    pub groups: [u32; 3],
    /// Work items of a group along each axis; 0 if not known.
    pub local: [u32; 3],
    /// Bytes moved.
    pub bytes: u64,
}

/// Work given to a device.
#[derive(Clone, Debug)]
pub struct TrackedLaunch {
    /// Numbers the launches of the recording from 1: the correlation id.
    pub id: u64,
    /// The call that made it.
    pub by: LaunchingCall,
    /// The call that submitted it, if another.
    pub submit: Option<u64>,
    /// That call, where it executed a graph.
    pub executed: Option<GraphExecution>,
    /// `Launch`, `Copy`, `Fill`, `Barrier` or `Submit`.
    pub kind: CallKind,
    /// When it was handed to the device: the entry of the innermost call that did.
    pub submitted_ns: u64,
    /// By then it was: the end of the call that did, or the latest that can have been.
    pub handed_over_ns: u64,
    /// Where it was put.
    pub on: LaunchTarget,
    /// What the device is to do.
    pub work: DeviceWork,
    /// The runtime's own correlation id, where it gives one.
    pub correlation: Option<u64>,
    /// The ioctls that handed it to the driver; `None`: none were seen.
    pub driver: Option<Rc<DriverCalls>>,
}

impl TrackedLaunch {
    /// A launch of which only the call and the name of the work are known.
    pub fn of(by: LaunchingCall, kind: CallKind, name: KernelName) -> Self {
        Self {
            id: 0,
            submit: None,
            executed: None,
            kind,
            submitted_ns: by.start_ns,
            handed_over_ns: by.start_ns,
            by,
            on: LaunchTarget::default(),
            work: DeviceWork {
                name,
                kernel: 0,
                kernel_number: 0,
                module: None,
                groups: [0; 3],
                local: [0; 3],
                bytes: 0,
            },
            correlation: None,
            driver: None,
        }
    }

    /// Whether a helper inside of its program (`--device-timing`) can report what the device did
    /// for it.
    pub(crate) fn may_be_timed_inside(&self) -> bool {
        match &*self.by.api {
            // Barriers and markers are no work.
            "OpenCL" => matches!(
                self.kind,
                CallKind::Launch | CallKind::Copy | CallKind::Fill
            ),
            api => {
                // What the libraries above launch goes on to a runtime.
                let known = ["CUDA", "Level Zero", "SYCL", "oneDNN", "oneCCL"];
                known.iter().any(|one| api.starts_with(one))
            }
        }
    }
}
