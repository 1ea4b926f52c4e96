//! Calls to launches: which work a call gave the device; pure.
//!
//! * [`Tracker`] pairs entries and exits, and finds which nested calls of a thread are one call.
//!   It keeps what handles mean (kernels, lists, queues, modules, memory), and hands finished
//!   calls and launches to a [`CallSink`].
//!
//! # Calls
//!
//! The eBPF programs know which calls of a thread are open: every record has the time when the
//! call around it began ([`Call::around_ns`]), and all that began later is over. A call is over
//! with its exit, with the next record of its thread that was not made inside of it, or with its
//! thread.
//!
//! A call is *part* of the call directly around it if both are the same step of different layers.
//! Examples are the loader's function and the driver's, or a framework's launch and the driver's
//! launch. That is: both are calls and not ioctls, and
//!
//! * they are of the same kind; for the kinds without a meaning for the device (`Host`,
//!   `Control`, `Resolve`, `Activity`, `Collective`) also of the same function name; or
//! * the inner one is work (`Launch`, `Copy`, `Fill`, `Barrier`) and the outer one a copy, a fill
//!   or a barrier. Those may be done by a kernel or by another operation. A launch may copy its
//!   arguments, but the copy is not the launch.
//!
//! The outermost call of such a chain is the one the program made: it names the
//! API, and its stack is the launch's. The innermost gives the handles.
//!
//! # Launches
//!
//! Work counts where it is innermost: a call of work counts as one launch unless
//! a call that is part of it counted already. So one launch through three layers
//! is one, a call that makes several launches inside counts as those, and a launch
//! that copies first is a copy and a launch. A call known to have failed counts
//! nothing. Work put on a regular command list counts when the list is executed,
//! as often as it is.
//!
//! A list that was created before aiprof was attached may be of either kind: its
//! work counts at once, and not again at the first execution that is seen.
//!
//! An ioctl that submits counts as a launch only outside of all calls of probed
//! runtimes: inside of them it is their work.
//!
//! # Handles of kernels
//!
//! Who reads the memory of running programs needs to know at once which handles are
//! kernels: [`KernelEvent`]s come with the record that shows them, also with entries.
//!
//! # Facts of devices
//!
//! A call that waits, asks for timestamps or reads a clock reveals something of a
//! device once it has returned: a [`DeviceFact`].
//!
//! # Records
//!
//! Each record of a call is taken once, here. A listener that must act before it is known
//! whether the call belongs to the recording gets a [`CallView`] of it.
//!
//! # The driver's calls
//!
//! The work of a call may be handed to the driver by an ioctl inside of that call, or inside of
//! the call that executes its list. Then the launch has the stacks of these ioctls
//! ([`Launch::driver`]). What else a thread hands over, and what another thread does, is not
//! taken for it.
//!
//! # Submissions
//!
//! The kernel reports work of any runtime by its fences and jobs. They become
//! [`Submission`]s. They are not matched with launches.
//!
//! [`Call::around_ns`]: aiprof_model::wire::Call::around_ns

mod activity;
mod calls;
mod data;
mod device_facts;
mod driver_calls;
mod effects;
mod fence;
mod forked;
mod gone;
mod handles;
mod kernel_events;
mod meaning;
mod memory;
mod open;
mod pending;
mod ranges;
mod state;
mod submit;
#[cfg(test)]
mod tests;
mod thread;
mod timing;
mod view;

pub use calls::{Counts, Tracker, TrackerLimits};
pub use data::ImagePiece;
pub(super) use data::is_cut;
pub use device_facts::{DeviceFact, DeviceFactKind};
pub use driver_calls::DriverCalls;
pub use fence::{Submission, SubmissionSource, begins};
pub use handles::ModuleImage;
pub use kernel_events::{KernelEvent, KernelStep};
pub use ranges::{RangeAbout, RangeForm, RangePayload, RangeSpan};
pub use view::{CallView, DataView};

use crate::aiu::ActivityRecord;
use aiprof_common::MAX_VALUES;
use aiprof_model::probes::ioctl::{ArrayLayout, Elements};
use aiprof_model::probes::{CallKind, Probe};
use aiprof_model::wire;
use std::rc::Rc;

/// What a [`Tracker`] found.
#[derive(Clone, Copy, Debug)]
pub enum Tracked<'a> {
    /// A call is over. Also reported for parts ([`FinishedCall::is_part`]).
    Call(&'a FinishedCall),
    /// Work was given to a device.
    Launch(&'a Launch),
    /// A kernel that launches named [`KernelName::BeforeAttach`] has got its name.
    KernelNamed {
        /// Process.
        pid: u32,
        /// The kernel's handle.
        kernel: u64,
        /// Its name.
        name: &'a Rc<str>,
    },
    /// It is known where a kernel lies on its device.
    KernelPlaced(&'a PlacedKernel),
    /// A kernel was destroyed: what it was at is free.
    KernelGone {
        /// Process.
        pid: u32,
        /// The kernel's number ([`Launch::kernel_number`]).
        number: u64,
        /// When, CLOCK_MONOTONIC nanoseconds.
        at_ns: u64,
    },
    /// A forked process has the kernels of its parent, where they lie.
    KernelsInherited {
        /// The process that forked.
        parent: u32,
        /// The new process.
        pid: u32,
        /// When, CLOCK_MONOTONIC nanoseconds.
        at_ns: u64,
    },
    /// A process is gone, or runs another program.
    ProcessGone {
        /// Process.
        pid: u32,
        /// When, CLOCK_MONOTONIC nanoseconds.
        at_ns: u64,
    },
    /// Something happened to a kernel's handle. Reported with the record that shows it, an
    /// entry as well as an end.
    Kernel(&'a KernelEvent),
    /// A call has returned that reveals something of a device. Behind the call.
    DeviceFact(&'a DeviceFact),
    /// A program hands device code to its runtime, piece by piece.
    ImagePiece(&'a ImagePiece<'a>),
    /// A device did something, by the runtime's own record: a kernel, a copy, a fill, or memory
    /// taken or given back. In the order in which the program got the records, which may be
    /// long after the launches.
    DeviceSpan(&'a DeviceSpan),
    /// A device did something, by a record whose times cannot be true: they are counted
    /// ([`LossKind::DeviceTimesImpossible`](aiprof_model::profile::LossKind)).
    DeviceUntimed(&'a DeviceSpan),
    /// A record that is not about the device. One of a call has the correlation id that the
    /// device's records of its work have.
    RuntimeRecord(&'a DeviceSpan),
    /// A range that a program named has ended, or a moment was. Ranges may come long after
    /// their end.
    Range(&'a RangeSpan),
    /// Work that was handed to a driver is done, according to the Linux kernel's fences and
    /// scheduler jobs; or no more events of it will come.
    Submission(&'a Submission),
}

/// Listens to a [`Tracker`]; a closure does.
pub trait CallSink {
    /// Takes what the tracker found. In the order of the records that show it.
    fn found(&mut self, found: &Tracked<'_>);
}

impl<F: FnMut(&Tracked<'_>)> CallSink for F {
    fn found(&mut self, found: &Tracked<'_>) {
        self(found);
    }
}

/// A kernel at its place.
#[derive(Clone, Debug)]
pub struct PlacedKernel {
    /// The kernel's number ([`Launch::kernel_number`]).
    pub number: u64,
    /// Its name.
    pub name: KernelName,
    /// The module that it is of, where its creation was seen.
    pub module: Option<Rc<ModuleImage>>,
    /// Since when it is there: its creation, 0 if that was not seen.
    pub since_ns: u64,
    /// When it was destroyed; `u64::MAX`: it is still there.
    pub until_ns: u64,
    /// Where it is.
    pub placed: wire::KernelPlaced,
}

/// An activity record that a runtime handed to its program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpan {
    /// Process that got it.
    pub pid: u32,
    /// The call that handed it out ([`FinishedCall::id`]); 0: the process was gone
    /// before the record was read.
    pub call: u64,
    /// Who measured.
    pub recorder: Recorder,
    /// The clock that it was measured by, where that had to be found out.
    pub clock: Option<&'static str>,
    /// The record itself. Its times are of [`Recorder::clock`]; its
    /// [`status`](ActivityRecord::status) shows whether its layout is public.
    pub record: ActivityRecord,
}

/// Who recorded what a device did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Recorder {
    /// The AIU's runtime, for its program.
    Aiu,
    /// CUPTI, for the helper inside of the program.
    Cuda,
    /// Level Zero's events, for the same.
    LevelZero,
    /// The helper inside of the program, by the events of OpenCL.
    OpenCl,
}

/// The clock of a record's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordClock {
    /// CLOCK_REALTIME.
    Day,
    /// CLOCK_MONOTONIC, as all other times have it.
    Monotonic,
}

impl Recorder {
    /// The clock of its records' times.
    pub fn clock(self) -> RecordClock {
        match self {
            Self::Aiu => RecordClock::Day,
            Self::Cuda | Self::LevelZero | Self::OpenCl => RecordClock::Monotonic,
        }
    }

    /// What its devices are called.
    pub fn device(self) -> &'static str {
        match self {
            Self::Aiu => "AIU",
            Self::Cuda => "CUDA device",
            Self::LevelZero => "Level Zero device",
            Self::OpenCl => "OpenCL device",
        }
    }

    /// Whether its records of calls are those of calls that are seen anyway.
    pub(crate) fn repeats_calls(self) -> bool {
        self != Self::Aiu
    }
}

/// A call with its entry and, where seen, its exit.
#[derive(Clone, Debug)]
pub struct FinishedCall {
    /// Numbers the calls of the recording from 1, by entry; a launch refers to it.
    pub id: u64,
    /// The call directly around it, 0 if none.
    pub parent: u64,
    /// Calls around it: 0 is called by the program itself.
    pub depth: u32,
    /// The function of the outermost call around it; its own at depth 0.
    pub outermost: Rc<Probe>,
    /// It is the call around it, made in an inner library (see the module).
    pub is_part: bool,
    /// The function.
    pub probe: Rc<Probe>,
    /// The file ([`ProbedFile::id`](aiprof_model::probes::ProbedFile::id)) or the device number of an ioctl.
    pub library: u32,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// When it was entered, CLOCK_MONOTONIC nanoseconds.
    pub start_ns: u64,
    /// When it was left; `None`: not seen, it ended before `end_before_ns`.
    pub end_ns: Option<u64>,
    /// The latest it can have ended.
    pub end_before_ns: u64,
    /// Time in calls nested in it that are not part of it, nanoseconds. Calls whose ends were not
    /// seen do not count.
    pub nested_ns: u64,
    /// Return value, if its exit was seen.
    pub result: Option<u64>,
    /// Values by slot of `probe`; see [`FinishedCall::value`].
    pub values: [u64; MAX_VALUES],
    /// One bit for each slot that holds nothing: not read, or not readable.
    pub unread: u16,
    /// `CALL_*` bits of `aiprof_common`.
    pub flags: u16,
    /// Data read for it, in the order of arrival.
    pub data: Vec<CallContent>,
    /// Id of the stack; 0: none.
    pub stack: u64,
    /// Parts of it in inner libraries, outermost first.
    pub inner: Vec<Rc<Probe>>,
    /// What it gave the device, the first if it is several: the kernel or the
    /// operation. Also set for what was put on a list.
    pub work: Option<KernelName>,
    /// Launches that it stands for; what is put on a regular list counts here too.
    pub works: u32,
}

/// Data of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallContent {
    /// Index in [`Probe::data`].
    pub tag: u8,
    /// Bytes of the whole in the program's memory; of a text 0.
    pub total: u64,
    /// Whether all of it arrived.
    pub complete: bool,
    /// The bytes, up to 64 KiB; of device code none.
    pub bytes: Vec<u8>,
}

impl FinishedCall {
    /// A call of which nothing but the function is known.
    pub fn of(probe: Rc<Probe>) -> Self {
        Self {
            id: 0,
            parent: 0,
            depth: 0,
            outermost: probe.clone(),
            is_part: false,
            probe,
            library: 0,
            pid: 0,
            tid: 0,
            start_ns: 0,
            end_ns: None,
            end_before_ns: 0,
            nested_ns: 0,
            result: None,
            values: [0; MAX_VALUES],
            unread: (1 << MAX_VALUES) - 1,
            flags: 0,
            data: Vec::new(),
            stack: 0,
            inner: Vec::new(),
            work: None,
            works: 0,
        }
    }

    /// The elements of an array among its arguments.
    pub fn elements(&self, array: &ArrayLayout) -> Elements {
        let data = self.content(usize::from(array.tag));
        let data = data.map_or(&[][..], |content| &content.bytes);
        array.elements(&self.probe, |slot| self.value(slot), data)
    }

    /// The value in a slot, if it was read.
    pub fn value(&self, slot: usize) -> Option<u64> {
        wire::value(&self.values, self.unread, slot)
    }

    /// The data with a tag, if any arrived.
    pub fn content(&self, tag: usize) -> Option<&CallContent> {
        self.data.iter().find(|d| usize::from(d.tag) == tag)
    }

    /// By then it was over: its exit, or the latest that can have been.
    fn over_ns(&self) -> u64 {
        self.end_ns.unwrap_or(self.end_before_ns)
    }

    /// How long it took, if its exit was seen.
    pub fn duration_ns(&self) -> Option<u64> {
        Some(self.end_ns?.saturating_sub(self.start_ns))
    }

    /// Whether it succeeded, if that is known.
    pub fn succeeded(&self) -> Option<bool> {
        self.probe.result.success(self.result?)
    }
}

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

/// Work given to a device.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Numbers the launches of the recording from 1: the correlation id.
    pub id: u64,
    /// The call that made it ([`FinishedCall::id`]); of a list, the append.
    pub call: u64,
    /// The call that submitted it, if another.
    pub submit: Option<u64>,
    /// That call, where it executed a graph.
    pub executed: Option<GraphExecution>,
    /// `Launch`, `Copy`, `Fill`, `Barrier` or `Submit`.
    pub kind: CallKind,
    /// The outermost function's API.
    pub api: Rc<str>,
    /// The function that the program called.
    pub function: Rc<str>,
    /// Process.
    pub pid: u32,
    /// Thread that made it.
    pub tid: u32,
    /// Entry of that call.
    pub start_ns: u64,
    /// Its exit, where seen before the launch was reported.
    pub end_ns: Option<u64>,
    /// When it was handed to the device: the entry of the innermost call that did.
    pub submitted_ns: u64,
    /// By then it was: the end of the call that did, or the latest that can have been.
    pub handed_over_ns: u64,
    /// Device handle, 0 if not known.
    pub device: u64,
    /// Queue, stream or immediate list handle, 0 if not known.
    pub queue: u64,
    /// Regular list it was put on, 0 if none.
    pub list: u64,
    /// Kernel handle, 0 if none.
    pub kernel: u64,
    /// Numbers the kernels of the recording from 1; 0: none.
    pub kernel_number: u64,
    /// The kernel's name; of a copy or fill the operation, `Memcpy (H2D)`.
    pub name: KernelName,
    /// The module that the kernel is of, where its creation was seen.
    pub module: Option<Rc<ModuleImage>>,
    /// Work groups along each axis; 0 if not known.
    pub groups: [u32; 3],
    /// Work items of a group along each axis; 0 if not known.
    pub local: [u32; 3],
    /// Bytes moved.
    pub bytes: u64,
    /// Event handle that it signals, 0 if none.
    pub event: u64,
    /// The runtime's own correlation id, where it gives one.
    pub correlation: Option<u64>,
    /// Id of the stack of the call that made it; 0: none.
    pub stack: u64,
    /// `CALL_*` bits of that call: why there is no stack.
    pub flags: u16,
    /// The ioctls that handed it to the driver; `None`: none were seen.
    pub driver: Option<Rc<DriverCalls>>,
}

impl Launch {
    /// Whether a helper inside of its program (`--device-timing`) can report what the device did
    /// for it.
    pub(crate) fn may_be_timed_inside(&self) -> bool {
        match &*self.api {
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
