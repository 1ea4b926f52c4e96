//! From a capture to the profile that the recording would have given.

#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

use super::{
    CaptureRecord, ImportError,
    reader::{StoredNames, file_records, records},
};
use crate::aggregate::{
    Aggregator, DeviceKernel, LaunchOptions, Limits, WaitOptions, build_profile,
};
use crate::recording::Recording;
use aiprof_model::{
    profile::{LossKind, Losses, Meta, Profile},
    wire::Event,
};
use std::{collections::BTreeMap, io::Read, path::Path};

/// How to replay a capture.
#[derive(Clone, Copy, Debug)]
pub struct ReplayOptions {
    /// Expand inlined functions when naming frames.
    pub inlines: bool,
    /// Keep the source lines of frames: the same function at another line is another
    /// frame then.
    pub source_lines: bool,
    /// Keep kernel stacks.
    pub kernel_stacks: bool,
    /// Count launches and the time in calls instead of CPU samples.
    pub launches: Option<LaunchOptions>,
    /// Add up waits instead of CPU samples, or beside them.
    pub waits: Option<WaitOptions>,
    /// Keep the frames of Python's interpreter itself.
    pub python_c_frames: bool,
    /// Put the driver's frames between launches and devices.
    pub driver_frames: bool,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self {
            inlines: true,
            source_lines: false,
            kernel_stacks: true,
            launches: None,
            waits: None,
            python_c_frames: false,
            driver_frames: true,
        }
    }
}

impl ReplayOptions {
    /// Takes out of an event what is not wanted.
    pub(super) fn thin(self, event: &mut Event) {
        match event {
            _ if self.kernel_stacks => {}
            Event::Sample(sample) => sample.kernel.clear(),
            Event::CallStack(stack) => stack.sample.kernel.clear(),
            _ => {}
        }
    }
}

/// State of a replay.
struct CaptureReplay {
    options: ReplayOptions,
    recording: Recording,
    aggregate: Aggregator,
    names: StoredNames,
    meta: Meta,
    busy: BTreeMap<u32, u64>,
    /// Time of the last event.
    last_ns: u64,
    /// Keep the times of samples, for slices.
    keeps_times: bool,
}

impl CaptureReplay {
    fn new(options: ReplayOptions) -> Self {
        Self {
            options,
            recording: Recording::new(options.python_c_frames),
            aggregate: Aggregator::default(),
            names: StoredNames::default(),
            meta: Meta::default(),
            busy: BTreeMap::new(),
            last_ns: 0,
            keeps_times: false,
        }
    }

    fn take(&mut self, record: CaptureRecord) -> bool {
        match record {
            CaptureRecord::Header { meta, period_ns } => {
                self.meta = meta;
                let of_samples = || Aggregator::new(period_ns, Limits::default());
                self.aggregate = match (self.options.launches, self.options.waits) {
                    (Some(LaunchOptions { timed }), _) => {
                        Aggregator::of_calls(timed, Limits::default())
                    }
                    (None, Some(waits)) => of_samples().with_waits(waits),
                    (None, None) => of_samples().with_devices(),
                }
                .with_driver_frames(self.options.driver_frames);
                if self.keeps_times {
                    self.aggregate = std::mem::take(&mut self.aggregate).with_times();
                }
            }
            CaptureRecord::Events(events) => events.into_iter().for_each(|event| self.event(event)),
            CaptureRecord::End { meta, losses, busy } => {
                self.meta = meta;
                self.busy = busy;
                self.aggregate.losses.merge(&losses);
            }
            names => self.names.take(names, &self.options),
        }
        true
    }

    fn event(&mut self, mut event: Event) {
        self.options.thin(&mut event);
        self.last_ns = self.last_ns.max(event.time_ns());
        // A profile is not written meanwhile: this does not fail.
        let _ = self.recording.apply(&event, &mut [&mut self.aggregate]);
    }

    /// Nothing more will come.
    fn settle(&mut self) {
        self.recording
            .finish(self.last_ns, &mut [&mut self.aggregate]);
        let lost = self.recording.take_losses();
        match self.aggregate.adds_calls_up() {
            true => self.aggregate.losses.merge(&lost),
            // What is lost of calls is not missing in a profile of others.
            false => {
                let damaged = lost.get(LossKind::Undecodable);
                self.aggregate.losses.add(LossKind::Undecodable, damaged);
            }
        }
        self.aggregate.settle_devices(true);
        self.aggregate.complete(&self.busy, self.meta.period_ns);
    }

    fn finish(mut self) -> Profile {
        self.settle();
        self.profile(&self.aggregate)
    }

    fn profile(&self, aggregate: &Aggregator) -> Profile {
        let meta = self.meta.clone();
        build_profile(
            aggregate,
            &self.recording.processes.files,
            &self.names,
            meta,
        )
    }
}

/// Replays a capture into the profile that the recording would have given. A
/// capture that is cut off or damaged gives what is whole, with a warning.
///
/// # Errors
/// [`ImportError`] names the file and what is wrong with it.
pub fn replay(path: &Path, options: &ReplayOptions) -> Result<Profile, ImportError> {
    let mut replay = CaptureReplay::new(*options);
    records(path, |record| replay.take(record))?;
    Ok(replay.finish())
}

/// [`replay`] of what is open already, from its start; `path` is for messages.
///
/// # Errors
/// As [`replay`].
pub fn replay_from(
    path: &Path,
    from: impl Read,
    options: &ReplayOptions,
) -> Result<Profile, ImportError> {
    let mut replay = CaptureReplay::new(*options);
    file_records(path, from, |record| replay.take(record))?;
    Ok(replay.finish())
}

/// [`replay_from`], and then the profiles of `count` equal slices of the recording's
/// time, in their order: CPU samples only. There are none where not all samples have
/// times (see `Aggregator::each_slice`). Each is given away before the next is made.
///
/// # Errors
/// As [`replay`].
pub fn replay_slices(
    path: &Path,
    from: impl Read,
    options: &ReplayOptions,
    count: usize,
    mut take: impl FnMut(Profile),
) -> Result<Profile, ImportError> {
    let mut replay = CaptureReplay::new(*options);
    replay.keeps_times = true;
    file_records(path, from, |record| replay.take(record))?;
    replay.settle();
    let whole = replay.profile(&replay.aggregate);
    let mut aggregate = std::mem::take(&mut replay.aggregate);
    aggregate.each_slice(count, |slice| take(replay.profile(slice)));
    Ok(whole)
}

/// What a capture has of devices.
#[derive(Clone, Debug)]
pub struct DeviceReplay {
    /// The kernels that were sampled, with their samples and code.
    pub kernels: Vec<DeviceKernel>,
    /// About the recording.
    pub meta: Meta,
    /// What was lost.
    pub losses: Losses,
}

/// Replays a capture for the samples of its devices, by kernel and instruction.
///
/// # Errors
/// As [`replay`].
pub fn replay_devices(path: &Path) -> Result<DeviceReplay, ImportError> {
    let mut replay = CaptureReplay::new(ReplayOptions {
        inlines: false,
        kernel_stacks: false,
        ..ReplayOptions::default()
    });
    records(path, |record| replay.take(record))?;
    replay.settle();
    Ok(DeviceReplay {
        kernels: replay.aggregate.device_kernels(),
        meta: replay.meta,
        losses: replay.aggregate.losses,
    })
}
