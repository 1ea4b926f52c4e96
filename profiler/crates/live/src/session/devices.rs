//! What devices report about themselves: counters, the time of day that their records are in,
//! whether there are such records, samples, and where kernels lie.

use super::pausing::Pausing;
use crate::{
    clock, config::RecordConfig, device::DeviceSamplers, metrics::MetricsReader,
    places::KernelPlaces,
};
use aiprof_model::{
    probes::{CallKind, role},
    profile::{LossKind, Losses},
    wire::{Event, ProcessEventKind},
};
use aiprof_record::{aiu, correlate::CallView};
use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

/// How often the time of day is written down.
const CLOCK: Duration = Duration::from_secs(1);
/// How long the last answers about kernels are waited for.
const LAST_PLACES: Duration = Duration::from_secs(3);

/// How AIUs were used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AiuUse {
    /// Calls of the runtime that give a device work, parts of others included.
    pub launches: u64,
    /// Times that the runtime handed activity records to a program.
    pub records: u64,
}

/// What devices report, and what must still be asked of them. The fields are dropped in this
/// order.
#[derive(Debug, Default)]
pub(super) struct Devices {
    /// Where metrics files are looked for; empty: nowhere.
    folders: Vec<PathBuf>,
    reader: Option<MetricsReader>,
    /// Somebody reads the records of devices, which are in the time of day.
    is_dated: bool,
    clock: Option<Instant>,
    pub(super) used: AiuUse,
    /// The samplers, while they run.
    pub(super) samplers: Option<DeviceSamplers>,
    /// Where kernels lie, if any device is sampled.
    pub(super) places: Option<KernelPlaces>,
}

impl Devices {
    /// What is wanted of devices. Counters go nowhere but into a capture.
    pub(super) fn new(config: &RecordConfig, has_capture: bool) -> Self {
        let probes = config.probes.as_ref().filter(|_| has_capture);
        Self {
            folders: probes.map_or_else(Vec::new, |probes| probes.metrics.clone()),
            is_dated: has_capture || config.devices.is_on(),
            places: config.devices.is_on().then(KernelPlaces::default),
            ..Self::default()
        }
    }

    /// A call was entered, or left, that belongs to the recording.
    pub(super) fn called(&mut self, call: &CallView<'_>) {
        let probe = call.probe();
        if call.is_exit() || probe.api != aiu::API {
            return;
        }
        match probe.kind {
            CallKind::Activity => {
                let hands_out = |role| probe.tag(role).is_some();
                let is_one = hands_out(role::RECORDS) || hands_out(role::RECORD);
                self.used.records += u64::from(is_one);
            }
            CallKind::Launch | CallKind::Submit | CallKind::Copy | CallKind::Fill => {
                self.used.launches += 1;
            }
            _ => {}
        }
    }

    /// What was lost since the start.
    pub(super) fn losses(&self) -> Losses {
        let reader = self.reader.as_ref();
        let mut losses = reader.map(MetricsReader::losses).unwrap_or_default();
        if let Some(samplers) = &self.samplers {
            // The windows of samples carry the others.
            let kind = LossKind::DeviceUndecodable;
            losses.add(kind, samplers.losses().get(kind));
        }
        losses
    }

    /// Begins to read counters. Late, so that the thread has the reduced privileges
    /// of this process.
    pub(super) fn start_counters(&mut self) {
        if self.reader.is_none() && !self.folders.is_empty() {
            self.reader = MetricsReader::start(&self.folders)
                .inspect_err(|error| {
                    tracing::warn!("cannot read the metrics files of AIUs: {error}")
                })
                .ok();
        }
    }

    /// The time of day, if it is time to record it, and what was counted outside of pauses.
    pub(super) fn counters(&mut self, pausing: &Pausing, last: bool) -> Vec<Event> {
        let mut events = Vec::new();
        if !self.is_dated {
            return events;
        }
        let due = self.clock.is_none_or(|read| read.elapsed() >= CLOCK);
        if due || last {
            self.clock = Some(Instant::now());
            events.push(Event::Clock(clock::pair()));
        }
        while let Some(counter) = self.reader.as_ref().and_then(MetricsReader::next) {
            if !pausing.covers(counter.time_ns, counter.time_ns) {
                events.push(Event::Counter(counter));
            }
        }
        events
    }

    /// An event is recorded that may be about kernels.
    pub(super) fn recorded(&mut self, event: &Event) {
        let Some(places) = &mut self.places else {
            return;
        };
        match event {
            Event::KernelNamed(named) => places.named(named),
            Event::DeviceStream(stream) => places.stream(stream),
            Event::Stalls(window) => places.window(window),
            Event::Process(event) => match event.kind {
                ProcessEventKind::Exec { .. } => places.process_gone(event.pid, event.time_ns),
                ProcessEventKind::Exit if event.pid == event.tid => {
                    places.process_gone(event.pid, event.time_ns);
                }
                _ => {}
            },
            _ => {}
        }
    }

    /// Where kernels were found to lie, and what code was found. All that happened until
    /// `applied_ns` has been applied. If it is `None`, everything has been, and this waits for
    /// what is still being found out.
    pub(super) fn kernels_placed(&mut self, applied_ns: Option<u64>) -> Vec<Event> {
        match (&mut self.places, applied_ns) {
            (Some(places), Some(applied_ns)) => places.maintain(applied_ns),
            (Some(places), None) => places.settle(LAST_PLACES),
            (None, _) => Vec::new(),
        }
    }

    /// Samples devices no longer. Returns why they were not sampled, or not well.
    pub(super) fn stop(&mut self) -> Vec<String> {
        self.samplers.as_mut().map_or_else(Vec::new, |samplers| {
            samplers.stop();
            samplers.problems()
        })
    }
}
