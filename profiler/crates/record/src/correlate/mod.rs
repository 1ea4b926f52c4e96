//! What calls and devices have to do with each other; pure.
//!
//! * [`Tracker`] finds which work a call gave a device.
//! * [`device`] finds which launches caused the samples of a device.
//! * `RecordedLaunches` finds which launch a runtime's own record is of.

pub mod device;
mod epoch;
mod graph_works;
mod recorded;
#[cfg(test)]
pub(crate) mod script;
mod tracker;

pub(crate) use epoch::EpochClock;
pub(crate) use recorded::{RecordedLaunch, RecordedLaunches};
pub use tracker::{
    CallContent, CallNesting, CallSink, CallView, CallWork, Counts, DataView, DeviceFact,
    DeviceFactKind, DeviceRecorder, DeviceSpan, DeviceWork, DriverCalls, FinishedCall,
    GraphExecution, ImagePiece, KernelEvent, KernelName, KernelStep, LaunchTarget, LaunchingCall,
    ModuleImage, PlacedKernel, RangeAbout, RangeForm, RangePayload, RangeSpan, RecordClock,
    Submission, SubmissionSource, Tracked, TrackedLaunch, Tracker, TrackerLimits, begins,
};
