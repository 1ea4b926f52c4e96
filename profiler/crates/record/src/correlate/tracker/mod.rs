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
//! ([`TrackedLaunch::driver`]). What else a thread hands over, and what another thread does, is not
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
mod finished_call;
mod forked;
mod gone;
mod handles;
mod kernel_events;
mod launch;
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
pub use finished_call::{CallContent, CallNesting, CallWork, FinishedCall};
pub use handles::ModuleImage;
pub use kernel_events::{KernelEvent, KernelStep};
pub use launch::{
    DeviceWork, GraphExecution, KernelName, LaunchTarget, LaunchingCall, TrackedLaunch,
};
pub use ranges::{RangeAbout, RangeForm, RangePayload, RangeSpan};
pub use view::{CallView, DataView};

use crate::aiu::ActivityRecord;
use aiprof_model::wire;
use std::rc::Rc;

/// What a [`Tracker`] found.
#[derive(Clone, Copy, Debug)]
pub enum Tracked<'a> {
    /// A call is over. Also reported for parts ([`CallNesting::is_part`]).
    Call(&'a FinishedCall),
    /// Work was given to a device.
    Launch(&'a TrackedLaunch),
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
        /// The kernel's number ([`DeviceWork::kernel_number`]).
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
    /// The kernel's number ([`DeviceWork::kernel_number`]).
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
    pub recorder: DeviceRecorder,
    /// The clock that it was measured by, where that had to be found out.
    pub clock: Option<&'static str>,
    /// The record itself. Its times are of [`DeviceRecorder::clock`]; its
    /// [`status`](ActivityRecord::status) shows whether its layout is public.
    pub record: ActivityRecord,
}

/// Who recorded what a device did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceRecorder {
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

impl DeviceRecorder {
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
