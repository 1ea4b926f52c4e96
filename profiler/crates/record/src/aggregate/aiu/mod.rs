//! What AIUs did, by the stacks that launched it.
//!
//! Activity records become operations ([`crate::aiu::operation`]), operations get
//! their launch by the runtime's correlation ids
//! ([`RecordedLaunches`](crate::correlate::RecordedLaunches)) and their times by the
//! device's clock ([`LiveClock`](aiprof_model::calibrate::live::LiveClock)). They wait for
//! all of that, bounded: records of one operation, and of the call that launched it,
//! come one after the other.

#[cfg(test)]
mod tests;

use super::numbers::Numbers;
use crate::{
    aiu::{
        EpochNs,
        operation::{self, Operation, ticks},
    },
    correlate::{
        DeviceRecorder, DeviceSpan, EpochClock, RecordClock, RecordedLaunch, RecordedLaunches,
        TrackedLaunch, device::PathId,
    },
};
use aiprof_model::{
    calibrate::live::LiveClock,
    profile::{LossKind, Losses},
    timeline::Phase,
    wire::Event,
};
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// Most operations that wait: what several buffers of a runtime hold, since the records of
/// calls may come in a later one.
const MOST_WAITING: usize = 1 << 16;
/// How long an operation waits at least at the end of a window.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Most clocks of devices; beyond it all are learned anew.
const MOST_CLOCKS: usize = 256;
/// How far behind the last event a record may reach: clocks of devices are
/// converted, not the same.
const SKEW_NS: u64 = 1_000_000_000;

/// What cycles are added up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct AiuRowKey {
    pub(super) recorder: DeviceRecorder,
    /// Number of the device, if the record has one.
    pub(super) device: Option<u32>,
    pub(super) path: Option<PathId>,
    pub(super) pid: u32,
    /// Number of the name of the kernel, or of the operation.
    pub(super) work: u32,
    /// It is a kernel.
    pub(super) is_kernel: bool,
    /// Index in [`PHASES`](crate::aiu::operation::PHASES); `None`: no phase.
    pub(super) phase: Option<u8>,
}

/// What they add up to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AiuTotals {
    pub(super) ticks: u64,
    pub(super) time_ns: f64,
}

/// Which operation a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct OperationKey {
    recorder: DeviceRecorder,
    pid: u32,
    device: Option<u32>,
    correlation: Option<u64>,
    stamps: [u64; 5],
}

/// An operation that waits.
#[derive(Debug)]
struct Waiting {
    recorder: DeviceRecorder,
    pid: u32,
    device: Option<u32>,
    correlation: Option<u64>,
    /// When its first record was reported.
    reported_ns: u64,
    /// When it was over, CLOCK_MONOTONIC; `None`: its times cannot be true.
    end_ns: Option<u64>,
    operation: Operation,
}

/// A device of a process.
#[derive(Debug, Default)]
struct AiuDevice {
    clock: LiveClock,
    last: Option<Last>,
}

/// The last operation of a device: counter values, and when it was over.
#[derive(Clone, Copy, Debug)]
struct Last {
    begin: u64,
    end: u64,
    end_ns: u64,
}

/// The AIUs' part of [`Devices`](super::devices::Devices).
#[derive(Debug)]
pub(super) struct Aiu {
    launches: RecordedLaunches<PathId>,
    /// By process and number: what is 0 to one may be another one's 1.
    devices: FxHashMap<(u32, Option<u32>), AiuDevice>,
    epoch: EpochClock,
    first_ns: u64,
    now_ns: u64,
    waiting: Vec<Waiting>,
    /// Where each of those that wait is.
    index: FxHashMap<OperationKey, usize>,
    pub(super) works: Numbers<Rc<str>>,
    pub(super) rows: FxHashMap<AiuRowKey, AiuTotals>,
    limit: usize,
    losses: Losses,
}

impl Aiu {
    /// Keeps at most `limit` rows.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            launches: RecordedLaunches::default(),
            devices: FxHashMap::default(),
            epoch: EpochClock::default(),
            first_ns: 0,
            now_ns: 0,
            waiting: Vec::new(),
            index: FxHashMap::default(),
            works: Numbers::new("[too many kernels]".into()),
            rows: FxHashMap::default(),
            limit,
            losses: Losses::default(),
        }
    }

    /// Forgets what belongs to the window.
    pub(super) fn reset(&mut self) {
        self.rows.clear();
    }

    /// Paths with samples.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathId> {
        self.rows.keys().filter_map(|row| row.path)
    }

    pub(super) fn take_losses(&mut self) -> Losses {
        std::mem::take(&mut self.losses)
    }

    /// Takes note of an event, before the tracker sees it.
    pub(super) fn event(&mut self, event: &Event) {
        let time_ns = event.time_ns();
        if self.first_ns == 0 {
            self.first_ns = time_ns;
        }
        self.now_ns = self.now_ns.max(time_ns);
        if let Event::Clock(pair) = event {
            self.epoch.note(pair);
        }
    }

    /// A path launched something.
    pub(super) fn launch(&mut self, launch: &TrackedLaunch, path: PathId) {
        let is_expected = *launch.by.api == *crate::aiu::API;
        self.launches.launch(launch, path, is_expected);
    }

    /// A runtime's record of what it did on the host.
    pub(super) fn runtime_record(&mut self, span: &DeviceSpan) {
        let record = &span.record;
        let at = |time| self.at(span.recorder, time);
        if let Some(times) = at(record.start).zip(at(record.end)) {
            self.launches.record(span, times);
        }
    }

    /// A runtime's record of what a device did.
    pub(super) fn device_span(&mut self, span: &DeviceSpan) {
        let record = &span.record;
        let Some(operation) = Operation::new(record) else {
            return;
        };
        let end = self
            .at(span.recorder, record.end)
            .filter(|end| (self.first_ns..=self.now_ns.saturating_add(SKEW_NS)).contains(end));
        let Some(end_ns) = end else {
            return self.losses.add(LossKind::ActivityUntimed, 1);
        };
        self.note_clock(span, end_ns);
        let key = operation.stamps.map(|stamps| OperationKey {
            recorder: span.recorder,
            pid: span.pid,
            device: record.device,
            correlation: record.correlation,
            stamps,
        });
        let known = key.and_then(|key| self.index.get(&key).copied());
        if let Some(known) = known.and_then(|at| self.waiting.get_mut(at)) {
            known.operation.join(record);
            known.end_ns = known.end_ns.max(Some(end_ns));
            return;
        }
        self.wait(span, operation, Some(end_ns));
        if let Some(key) = key {
            self.index.insert(key, self.waiting.len() - 1);
        }
    }

    fn wait(&mut self, span: &DeviceSpan, operation: Operation, end_ns: Option<u64>) {
        if self.waiting.len() >= MOST_WAITING {
            // The older half: what belongs to them has come, if it comes at all.
            let older = self.waiting.drain(..MOST_WAITING / 2).collect();
            self.settle_all(older, true);
        }
        self.waiting.push(Waiting {
            recorder: span.recorder,
            pid: span.pid,
            device: span.record.device,
            correlation: span.record.correlation,
            reported_ns: self.now_ns,
            end_ns,
            operation,
        });
    }

    /// A record whose times cannot be true: its launch has a record all the same.
    pub(super) fn device_untimed(&mut self, span: &DeviceSpan) {
        if let Some(operation) = Operation::new(&span.record) {
            self.wait(span, operation, None);
        }
    }

    /// A record's end is an anchor of its device's clock, and its length gives the approximate
    /// frequency.
    fn note_clock(&mut self, span: &DeviceSpan, end_ns: u64) {
        let record = &span.record;
        let stamps = operation::stamps(record);
        let phase = operation::phase_of(record);
        let Some((stamps, phase)) = stamps.zip(phase) else {
            return;
        };
        let key = (span.pid, record.device);
        if self.devices.len() >= MOST_CLOCKS && !self.devices.contains_key(&key) {
            self.devices.clear();
        }
        let clock = &mut self.devices.entry(key).or_default().clock;
        let (_, end) = phase.ends();
        if let Some(&at) = stamps.get(end) {
            clock.anchor(at, end_ns);
        }
        let took = record.end.0.saturating_sub(record.start.0);
        clock.duration(ticks(stamps, phase, clock.bits()), took);
    }

    /// Adds up what waits; `last`: nothing more will come.
    pub(super) fn settle(&mut self, last: bool) {
        let horizon = self.now_ns.saturating_sub(PATIENCE_NS);
        let (ready, wait) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|waiting| last || waiting.reported_ns <= horizon);
        self.waiting = wait;
        self.settle_all(ready, last);
        let unrecorded = self.launches.take_unrecorded(last);
        self.losses.add(LossKind::LaunchesUnrecorded, unrecorded);
    }

    /// A process is gone.
    pub(super) fn process_gone(&mut self, pid: u32) {
        self.launches.process_gone(pid);
    }

    /// Adds up these, in the order in which they came; `all`: also those whose launch may
    /// not have been reported, which else wait on.
    fn settle_all(&mut self, ready: Vec<Waiting>, all: bool) {
        let (ready, mut wait) = ready.into_iter().partition::<Vec<_>, _>(|waiting| {
            all || !waiting
                .correlation
                .is_some_and(|id| self.launches.known(waiting.pid, id) == RecordedLaunch::Assumed)
        });
        wait.append(&mut self.waiting);
        self.waiting = wait;
        self.index.clear();
        let all = self.waiting.iter().enumerate();
        self.index.extend(all.filter_map(|(at, waiting)| {
            let key = OperationKey {
                recorder: waiting.recorder,
                pid: waiting.pid,
                device: waiting.device,
                correlation: waiting.correlation,
                stamps: waiting.operation.stamps?,
            };
            Some((key, at))
        }));
        if ready.is_empty() {
            return;
        }
        for device in self.devices.values_mut() {
            device.clock.fit();
        }
        let taken = ready.into_iter().filter_map(|waiting| {
            let id = waiting.correlation;
            let kind = &waiting.operation.kind;
            let path = id.and_then(|id| self.launches.take(waiting.pid, id, kind));
            Some((waiting.end_ns?, waiting, path))
        });
        let mut timed: Vec<_> = taken.collect();
        timed.sort_by_key(|(end_ns, ..)| *end_ns);
        for (end_ns, waiting, path) in &timed {
            self.settle_one(*end_ns, waiting, *path);
        }
    }

    fn settle_one(&mut self, end_ns: u64, waiting: &Waiting, path: Option<PathId>) {
        let (pid, operation) = (waiting.pid, &waiting.operation);
        let clock = self.devices.get(&(pid, waiting.device)).map(|d| &d.clock);
        let bits = clock.map_or(32, LiveClock::bits);
        let rough = clock.and_then(LiveClock::rough_mhz);
        let fitted = clock.and_then(|clock| clock.frequency(end_ns));
        let parts = operation.parts(bits, rough, fitted.map(|frequency| frequency.value));
        if self.overlaps((waiting, end_ns), bits, fitted.map(|f| f.value).or(rough)) {
            self.losses.add(LossKind::DeviceSpansOverlap, 1);
        }
        let work = self.works.number((*operation.name).into());
        for part in parts {
            let key = AiuRowKey {
                recorder: waiting.recorder,
                device: waiting.device,
                path,
                pid,
                work,
                is_kernel: operation.is_kernel(),
                // Only AIUs' phases are known.
                phase: match waiting.recorder {
                    DeviceRecorder::Aiu => part.phase.and_then(index_of),
                    DeviceRecorder::Cuda | DeviceRecorder::LevelZero | DeviceRecorder::OpenCl => {
                        None
                    }
                },
            };
            if self.rows.len() >= self.limit && !self.rows.contains_key(&key) {
                self.losses.add(LossKind::DeviceSamplesRefused, part.ticks);
                continue;
            }
            if path.is_none() {
                self.losses.add(LossKind::DeviceUnattributed, part.ticks);
            }
            let row = self.rows.entry(key).or_default();
            row.ticks = row.ticks.saturating_add(part.ticks);
            row.time_ns += part.time_ns;
        }
    }

    /// Whether an operation ran beside the last one of its device, by the counter: as
    /// those do whose copies run beside another one's kernel.
    fn overlaps(
        &mut self,
        (waiting, end_ns): (&Waiting, u64),
        bits: u32,
        mhz: Option<f64>,
    ) -> bool {
        let Some(device) = self.devices.get_mut(&(waiting.pid, waiting.device)) else {
            return false;
        };
        let (Some(stamps), Some(mhz)) = (waiting.operation.stamps, mhz) else {
            return false;
        };
        let [begin, .., end] = stamps;
        let before = device.last.replace(Last { begin, end, end_ns });
        let Some(last) = before else {
            return false;
        };
        // A counter of 32 bits is read by its nearest wrap; beyond a quarter of a period
        // that might be the wrong one.
        let since = |earlier: u64, later: u64| match bits {
            64 => later.wrapping_sub(earlier).cast_signed(),
            _ => i64::from((later.wrapping_sub(earlier) as u32).cast_signed()),
        };
        let gap_us = end_ns.saturating_sub(last.end_ns) as f64 / 1e3;
        let is_near = bits == 64 || gap_us * mhz < f64::from(1_u32 << 30);
        is_near && since(last.end, begin) < 0 && since(last.begin, end) > 0
    }

    /// CLOCK_MONOTONIC nanoseconds of a record's time.
    fn at(&self, recorder: DeviceRecorder, time: EpochNs) -> Option<u64> {
        match recorder.clock() {
            RecordClock::Day => self.epoch.monotonic(time, self.now_ns),
            RecordClock::Monotonic => Some(time.0),
        }
    }
}

/// Index of a phase in [`PHASES`](crate::aiu::operation::PHASES).
fn index_of(phase: Phase) -> Option<u8> {
    let mut phases = operation::PHASES.into_iter();
    u8::try_from(phases.position(|known| known == phase)?).ok()
}
