//! The session's part in what devices report about themselves: counters, the time of day that their
//! records are in, and whether there are such records.

use super::{CollectError, Session};
use crate::{clock, config::RecordConfig, metrics::MetricsReader};
use aiprof_model::{
    probes::{CallKind, role},
    wire::Event,
};
use aiprof_record::{aiu, correlate::CallView};
use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

/// How often the time of day is written down.
const CLOCK: Duration = Duration::from_secs(1);

/// How AIUs were used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AiuUse {
    /// Calls of the runtime that give a device work, parts of others included.
    pub launches: u64,
    /// Times that the runtime handed activity records to a program.
    pub records: u64,
}

/// What devices report, and what must still be asked of them.
#[derive(Debug, Default)]
pub(super) struct Devices {
    /// Where metrics files are looked for; empty: nowhere.
    folders: Vec<PathBuf>,
    reader: Option<MetricsReader>,
    /// Somebody reads the records of devices, which are in the time of day.
    is_dated: bool,
    clock: Option<Instant>,
    pub(super) used: AiuUse,
}

impl Devices {
    /// What is wanted of devices. Counters go nowhere but into a capture.
    pub(super) fn new(config: &RecordConfig, has_capture: bool) -> Self {
        let probes = config.probes.as_ref().filter(|_| has_capture);
        Self {
            folders: probes.map_or_else(Vec::new, |probes| probes.metrics.clone()),
            is_dated: has_capture || config.devices.is_on(),
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
    pub(super) fn losses(&self) -> aiprof_model::profile::Losses {
        let reader = self.reader.as_ref();
        reader.map(MetricsReader::losses).unwrap_or_default()
    }
}

impl Session {
    /// Begins to read counters. Late, so that the thread has the reduced privileges
    /// of this process.
    pub(super) fn start_counters(&mut self) {
        let devices = &mut self.devices;
        if devices.reader.is_none() && !devices.folders.is_empty() {
            devices.reader = MetricsReader::start(&devices.folders)
                .inspect_err(|error| {
                    tracing::warn!("cannot read the metrics files of AIUs: {error}")
                })
                .ok();
        }
    }

    /// Writes down the time of day, if it is time to, and what was counted.
    pub(super) fn tell_of_devices(&mut self, last: bool) -> Result<(), CollectError> {
        if !self.devices.is_dated {
            return Ok(());
        }
        let due = self
            .devices
            .clock
            .is_none_or(|told| told.elapsed() >= CLOCK);
        if due || last {
            self.devices.clock = Some(Instant::now());
            self.record(&Event::Clock(clock::pair()))?;
        }
        while let Some(counter) = self.devices.reader.as_ref().and_then(MetricsReader::next) {
            if !self.pausing.covers(counter.time_ns, counter.time_ns) {
                self.record(&Event::Counter(counter))?;
            }
        }
        Ok(())
    }
}
