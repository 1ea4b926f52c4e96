//! What becomes of the events of a recording: nothing here knows where they come from.

use super::{CollectError, last_seconds::LastSeconds, triggers::Triggers};
use crate::{bpf::perf, config::RecordConfig};
use aiprof_model::{process::ProcessTable, profile::Losses, wire::Event};
use aiprof_record::{
    aggregate::{Aggregator, LaunchOptions, Limits},
    capture::CaptureWriter,
    correlate::{KernelEvent, Tracked},
    recording::{NoSink, Recording, RecordingSink},
    store::Store,
    timeline::Builder,
};

/// What the tracker reports of kernels while it applies an event.
#[derive(Debug, Default)]
struct KernelEvents(Vec<KernelEvent>);

impl RecordingSink for KernelEvents {
    fn found(&mut self, _: &ProcessTable, found: &Tracked<'_>) {
        if let Tracked::Kernel(event) = *found {
            self.0.push(event.clone());
        }
    }
}

/// Takes the events that belong to a recording, in the order of their times.
pub(super) struct Events {
    /// The processes, and what interprets the calls.
    pub(super) recording: Recording,
    pub(super) aggregate: Aggregator,
    /// Counts launches beside it.
    pub(super) launches: Option<Box<Aggregator>>,
    pub(super) capture: Option<CaptureWriter>,
    pub(super) timeline: Option<Box<Builder<Store>>>,
    /// Sees every event, too.
    pub(super) watcher: Option<Box<dyn RecordingSink>>,
    /// The events of the last seconds, if they are kept.
    pub(super) last_seconds: Option<LastSeconds>,
    kernels: KernelEvents,
    pub(super) triggers: Triggers,
}

impl Events {
    /// Events go into what `config` wants, and into a capture or timeline.
    pub(super) fn new(
        config: &RecordConfig,
        sample_ns: u64,
        capture: Option<CaptureWriter>,
        timeline: Option<Box<Builder<Store>>>,
    ) -> Self {
        let launches = (config.also_launches && config.probes.is_some()).then(|| launches(config));
        let last_seconds = config.window.map(|length| {
            let length_ns = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
            LastSeconds::new(length_ns, perf::monotonic_ns())
        });
        Self {
            // Who reads the capture may ask for them: they are to have names.
            recording: Recording::new(config.python_c_frames || capture.is_some()),
            aggregate: aggregate(config, sample_ns),
            launches: launches.map(Box::new),
            capture,
            timeline,
            watcher: None,
            last_seconds,
            kernels: KernelEvents::default(),
            triggers: Triggers::new(&config.triggers, config.window.is_none()),
        }
    }

    /// Records an event. Returns whether the mappings of its process changed.
    pub(super) fn record(&mut self, event: &Event) -> Result<bool, CollectError> {
        if let Some(capture) = &mut self.capture {
            capture.event(event).map_err(CollectError::Capture)?;
        }
        if let Some(last) = &mut self.last_seconds {
            last.take(event, &self.recording.processes);
        }
        // An array: this runs up to a million times a second.
        let [mut no_launches, mut no_timeline, mut no_watcher] = [NoSink; 3];
        let launches = self.launches.as_deref_mut().map(sink);
        let timeline = self.timeline.as_deref_mut().map(sink);
        let sinks: &mut [&mut dyn RecordingSink] = &mut [
            &mut self.aggregate,
            launches.unwrap_or(&mut no_launches),
            &mut self.kernels,
            &mut self.triggers,
            timeline.unwrap_or(&mut no_timeline),
            match &mut self.watcher {
                Some(watcher) => &mut **watcher,
                None => &mut no_watcher,
            },
        ];
        let changed = self.recording.apply(event, sinks);
        self.triggers.taken(event);
        if let Some(watcher) = &mut self.watcher {
            watcher.taken(event);
        }
        changed.map_err(CollectError::Timeline)
    }

    /// Applies an event that is not recorded, for what waits for it.
    pub(super) fn watch(&mut self, event: &Event) {
        let (aggregate, kernels) = (&mut self.aggregate, &mut self.kernels);
        let sinks: &mut [&mut dyn RecordingSink] = &mut [aggregate, kernels, &mut self.triggers];
        // None of them writes: this does not fail.
        let _ = self.recording.apply(event, sinks);
        self.triggers.taken(event);
    }

    /// Forgets what was added up only for triggers, which wait for nothing more then. Returns
    /// whether anything was.
    pub(super) fn forget_watched(&mut self) -> bool {
        let is_watched = self.triggers.begin_recording();
        if is_watched {
            self.aggregate.reset();
            self.triggers.disarm();
        }
        is_watched
    }

    /// Begins a new window: forgets what was added up.
    pub(super) fn reset(&mut self) {
        self.aggregate.reset();
        if let Some(launches) = &mut self.launches {
            launches.reset();
        }
    }

    /// Forgets all processes and files, whose handles have other meanings from here on.
    pub(super) fn begin_afresh(&mut self) {
        self.recording.processes = self.recording.processes.successor();
        self.aggregate.forget_files();
        if let Some(launches) = &mut self.launches {
            launches.forget_files();
        }
    }

    /// Ends all open calls at `now_ns`, CLOCK_MONOTONIC.
    pub(super) fn finish(&mut self, now_ns: u64) {
        let mut sinks: Vec<&mut dyn RecordingSink> = vec![&mut self.aggregate];
        sinks.extend(self.launches.as_deref_mut().map(sink));
        sinks.extend(self.timeline.as_deref_mut().map(sink));
        if let Some(watcher) = &mut self.watcher {
            sinks.push(&mut **watcher);
        }
        self.recording.finish(now_ns, &mut sinks);
    }

    /// What was lost of calls since this was asked last; it is added to what adds calls up.
    pub(super) fn lost_calls(&mut self) -> Losses {
        let lost = self.recording.take_losses();
        match &mut self.launches {
            Some(launches) if !self.aggregate.adds_calls_up() => launches.losses.merge(&lost),
            _ if self.aggregate.adds_calls_up() => self.aggregate.losses.merge(&lost),
            _ => {}
        }
        lost
    }

    /// What names are wanted of.
    pub(super) fn aggregates(&self) -> impl Iterator<Item = &Aggregator> {
        std::iter::once(&self.aggregate).chain(self.launches.as_deref())
    }

    /// What calls did to kernels since this was asked last.
    pub(super) fn kernels(&mut self) -> Vec<KernelEvent> {
        std::mem::take(&mut self.kernels.0)
    }
}

/// What adds the events up.
fn aggregate(config: &RecordConfig, sample_ns: u64) -> Aggregator {
    let limits = Limits::default();
    if let Some(waits) = config.waits {
        return Aggregator::new(sample_ns, limits).with_waits(waits.options);
    }
    let aggregate = match config.launches {
        Some(LaunchOptions { timed }) => Aggregator::of_calls(timed, limits),
        None if config.devices.is_on() => Aggregator::new(sample_ns, limits).with_devices(),
        None => Aggregator::new(sample_ns, limits),
    };
    aggregate.with_driver_frames(config.driver_frames)
}

/// What counts launches beside CPU samples.
fn launches(config: &RecordConfig) -> Aggregator {
    let launches = Aggregator::of_calls(false, Limits::default()).beside();
    launches.with_driver_frames(config.driver_frames)
}

fn sink(one: &mut impl RecordingSink) -> &mut dyn RecordingSink {
    one
}
