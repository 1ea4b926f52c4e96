//! Batches of the helper inside a program (`aiprof_common::timing`): total, for any
//! program may hand over anything.

use super::ranges::{HandedOver, Ranges, is_of_ranges};
use super::{CallSink, DeviceRecorder, DeviceSpan, FinishedCall, Tracked};
use crate::aiu::{ActivityRecord, EpochNs, Kind, LayoutStatus};
use aiprof_common::timing::{
    CLOCK_BOOT, CLOCK_DAY, CLOCK_DEVICE, CLOCK_HOST, CLOCK_RAW, TIMING_CALL, TIMING_CLOCK,
    TIMING_CUDA, TIMING_LEVEL_ZERO, TIMING_LOST, TIMING_MAGIC, TIMING_NAME, TIMING_OPENCL,
    TIMING_OWN_THREAD, TIMING_REFUSED, TIMING_UNTIMED, TIMING_VERSION, TIMING_WORK, TimingBatch,
    TimingCall, TimingClock, TimingLost, TimingName, TimingRecord, TimingUntimed, TimingWork,
    UNTIMED_AMBIGUOUS, UNTIMED_CLOCK, UNTIMED_EVENT, UNTIMED_ROOM, WORK_COPY, WORK_FILL,
    WORK_KERNEL,
};
use aiprof_model::{
    demangle::demangle,
    probes::role,
    profile::{LossKind, Losses},
};
use rustc_hash::FxHashMap;
use std::mem::offset_of;

/// What the helper's table calls its API (`probes/timing.toml`).
pub(super) const API: &str = "aiprof timing";
/// Most names that are kept of all processes; beyond it they are forgotten.
const MOST_NAMES: usize = 1 << 17;
/// Most threads of helpers.
const MOST_THREADS: usize = 1 << 16;
/// The longest that one piece of work is believed to last: a day.
const LONGEST: u64 = 86_400_000_000_000;

/// Names of kernels by process and number.
#[derive(Debug, Default)]
pub(super) struct Timing {
    names: FxHashMap<(u32, u64), String>,
    /// Clocks by process and number of the device.
    clocks: FxHashMap<(u32, u32), &'static str>,
    /// Helpers' own threads, and their processes.
    own_threads: FxHashMap<u32, u32>,
}

/// A record's bytes, and places in them.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn u32(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(*self.0.get(at..)?.first_chunk()?))
    }

    fn u64(&self, at: usize) -> Option<u64> {
        Some(u64::from_le_bytes(*self.0.get(at..)?.first_chunk()?))
    }

    /// Begin and end.
    fn times(&self, start: usize, end: usize) -> Option<(EpochNs, EpochNs)> {
        Some((EpochNs(self.u64(start)?), EpochNs(self.u64(end)?)))
    }
}

impl Timing {
    /// Takes in a call that hands over a batch.
    pub(super) fn take(
        &mut self,
        call: &FinishedCall,
        ranges: &mut Ranges,
        losses: &mut Losses,
        sink: &mut dyn CallSink,
    ) {
        let by = HandedOver {
            pid: call.pid,
            time_ns: call.start_ns,
        };
        let tag = call.probe.tag(role::RECORDS);
        let content = tag.and_then(|tag| call.content(tag.into()));
        let Some(content) = content.filter(|content| content.complete) else {
            // It may have been one of ranges.
            ranges.unread(by, losses, sink);
            return losses.add(LossKind::ActivityUnknown, 1);
        };
        let unknown = match is_of_ranges(&content.bytes) {
            true => ranges.batch(by, &content.bytes, losses, sink),
            false => self.batch(call, &content.bytes, losses, sink),
        };
        losses.add(LossKind::ActivityUnknown, unknown);
    }

    /// Passes on what a batch describes. Returns the number of records that cannot be read.
    fn batch(
        &mut self,
        call: &FinishedCall,
        bytes: &[u8],
        losses: &mut Losses,
        sink: &mut dyn CallSink,
    ) -> u64 {
        let header = Bytes(bytes);
        let is_known = header.u32(offset_of!(TimingBatch, magic)) == Some(TIMING_MAGIC)
            && header.u32(offset_of!(TimingBatch, version)) == Some(TIMING_VERSION);
        let recorder = header.u32(offset_of!(TimingBatch, recorder));
        let recorder = recorder.and_then(recorder_of).filter(|_| is_known);
        let Some(recorder) = recorder else {
            return 1;
        };
        let own_pid = header.u32(offset_of!(TimingBatch, pid));
        let Some(mut rest) = bytes.get(size_of::<TimingBatch>()..) else {
            return 1;
        };
        let mut unknown = 0;
        while !rest.is_empty() {
            let begin = Bytes(rest);
            let length = begin.u32(offset_of!(TimingRecord, bytes));
            let length = length.and_then(|bytes| usize::try_from(bytes).ok());
            let length = length.filter(|length| *length >= size_of::<TimingRecord>());
            let Some((record, behind)) = length.and_then(|at| rest.split_at_checked(at)) else {
                return unknown + 1;
            };
            rest = behind;
            let record = Bytes(record);
            let read = match begin.u32(offset_of!(TimingRecord, kind)) {
                Some(TIMING_NAME) => self.name(call.pid, &record),
                Some(TIMING_LOST) => {
                    let lost = record.u64(offset_of!(TimingLost, count));
                    lost.map(|count| losses.add(LossKind::ActivityDropped, count))
                }
                Some(TIMING_UNTIMED) => untimed(&record, losses),
                Some(TIMING_CLOCK) => self.clock(call.pid, &record),
                Some(TIMING_OWN_THREAD) => {
                    if self.own_threads.len() < MOST_THREADS {
                        self.own_threads.insert(call.tid, call.pid);
                    }
                    Some(())
                }
                Some(TIMING_REFUSED) => {
                    losses.add(LossKind::TimingRefused, 1);
                    Some(())
                }
                kind => {
                    let found = match kind {
                        Some(TIMING_CALL) => call_record(&record, own_pid),
                        Some(TIMING_WORK) => self.work_record(call.pid, &record),
                        _ => None,
                    };
                    found.map(|record| {
                        let span = DeviceSpan {
                            pid: call.pid,
                            call: call.id,
                            recorder,
                            clock: record
                                .device
                                .and_then(|device| self.clocks.get(&(call.pid, device)).copied()),
                            record,
                        };
                        match (span.record.kind, are_possible(&span.record)) {
                            (Kind::Runtime, true) => sink.found(&Tracked::RuntimeRecord(&span)),
                            (Kind::Runtime, false) => losses.add(LossKind::ActivityUntimed, 1),
                            (_, true) => sink.found(&Tracked::DeviceSpan(&span)),
                            (_, false) => {
                                losses.add(LossKind::DeviceTimesImpossible, 1);
                                sink.found(&Tracked::DeviceUntimed(&span));
                            }
                        }
                    })
                }
            };
            unknown += u64::from(read.is_none());
        }
        unknown
    }

    fn clock(&mut self, pid: u32, record: &Bytes<'_>) -> Option<()> {
        let device = record.u32(offset_of!(TimingClock, device))?;
        let clock = match record.u32(offset_of!(TimingClock, source))? {
            CLOCK_DEVICE => "the device's",
            CLOCK_HOST => "CLOCK_MONOTONIC",
            CLOCK_RAW => "CLOCK_MONOTONIC_RAW",
            CLOCK_DAY => "CLOCK_REALTIME",
            CLOCK_BOOT => "CLOCK_BOOTTIME",
            _ => return None,
        };
        if self.clocks.len() < MOST_THREADS {
            self.clocks.insert((pid, device), clock);
        }
        Some(())
    }

    fn name(&mut self, pid: u32, record: &Bytes<'_>) -> Option<()> {
        let number = record.u64(offset_of!(TimingName, name))?;
        let len = usize::try_from(record.u32(offset_of!(TimingName, len))?).ok()?;
        let text = record.0.get(size_of::<TimingName>()..)?.get(..len)?;
        if self.names.len() >= MOST_NAMES {
            self.names.clear();
        }
        let text = String::from_utf8_lossy(text);
        self.names
            .insert((pid, number), demangle(&text).into_owned());
        Some(())
    }

    fn work_record(&self, pid: u32, record: &Bytes<'_>) -> Option<ActivityRecord> {
        let (start, end) = record.times(
            offset_of!(TimingWork, start_ns),
            offset_of!(TimingWork, end_ns),
        )?;
        let name = record.u64(offset_of!(TimingWork, name))?;
        let direction = record.u32(offset_of!(TimingWork, direction))?;
        let (kind, code) = match record.u32(offset_of!(TimingWork, what))? {
            WORK_KERNEL => (Kind::Compute, None),
            WORK_COPY => (Kind::Memcpy, Some(direction)),
            WORK_FILL => (Kind::Memset, None),
            _ => return None,
        };
        let bytes = record.u64(offset_of!(TimingWork, bytes))?;
        Some(ActivityRecord {
            code,
            device: record.u32(offset_of!(TimingWork, device)),
            context: record.u32(offset_of!(TimingWork, context)),
            stream: record.u64(offset_of!(TimingWork, stream)),
            correlation: record.u64(offset_of!(TimingWork, correlation)),
            amount: (kind != Kind::Compute).then_some(bytes),
            name: self.names.get(&(pid, name)).cloned(),
            ..blank(kind, start, end)
        })
    }

    /// A process has ended, or runs another program.
    pub(super) fn forget(&mut self, pid: u32) {
        self.names.retain(|key, _| key.0 != pid);
        self.clocks.retain(|key, _| key.0 != pid);
        self.own_threads.retain(|_, of| *of != pid);
    }

    /// Whether a thread is a helper's: its calls are not the program's.
    pub(super) fn is_own_thread(&self, pid: u32, tid: u32) -> bool {
        self.own_threads.get(&tid) == Some(&pid)
    }
}

/// Whether a record's times can be true.
fn are_possible(record: &ActivityRecord) -> bool {
    let (start, end) = (record.start.0, record.end.0);
    start > 0 && end >= start && end - start < LONGEST
}

fn recorder_of(number: u32) -> Option<DeviceRecorder> {
    match number {
        TIMING_CUDA => Some(DeviceRecorder::Cuda),
        TIMING_OPENCL => Some(DeviceRecorder::OpenCl),
        TIMING_LEVEL_ZERO => Some(DeviceRecorder::LevelZero),
        _ => None,
    }
}

/// Commands that the helper could not time, by the reason.
fn untimed(record: &Bytes<'_>, losses: &mut Losses) -> Option<()> {
    let kind = match record.u32(offset_of!(TimingUntimed, reason))? {
        UNTIMED_ROOM => LossKind::ActivityDropped,
        UNTIMED_EVENT => LossKind::TimingNoEvent,
        UNTIMED_AMBIGUOUS => LossKind::TimingAmbiguous,
        UNTIMED_CLOCK => LossKind::TimingUndated,
        _ => return None,
    };
    losses.add(kind, record.u64(offset_of!(TimingUntimed, count))?);
    Some(())
}

fn call_record(record: &Bytes<'_>, pid: Option<u32>) -> Option<ActivityRecord> {
    let (start, end) = record.times(
        offset_of!(TimingCall, start_ns),
        offset_of!(TimingCall, end_ns),
    )?;
    Some(ActivityRecord {
        correlation: Some(record.u64(offset_of!(TimingCall, correlation))?),
        pid,
        tid: Some(record.u32(offset_of!(TimingCall, tid))?.into()),
        ..blank(Kind::Runtime, start, end)
    })
}

fn blank(kind: Kind, start: EpochNs, end: EpochNs) -> ActivityRecord {
    ActivityRecord {
        kind,
        status: LayoutStatus::Published,
        code: None,
        device: None,
        context: None,
        stream: None,
        correlation: None,
        start,
        end,
        queued: None,
        submitted: None,
        amount: None,
        address: None,
        pid: None,
        tid: None,
        name: None,
        cycles: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correlate::script::probe;
    use aiprof_model::probes::CallKind;

    #[derive(Default)]
    struct Seen {
        device: Vec<DeviceSpan>,
        calls: Vec<DeviceSpan>,
    }

    impl CallSink for Seen {
        fn found(&mut self, found: &Tracked<'_>) {
            match *found {
                Tracked::DeviceSpan(span) => self.device.push(span.clone()),
                Tracked::RuntimeRecord(span) => self.calls.push(span.clone()),
                _ => {}
            }
        }
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// A batch by hand: a call, a name and the kernel of that name, a copy, a record of a
    /// later version, what was lost.
    fn batch() -> Vec<u8> {
        let header = [TIMING_MAGIC, TIMING_VERSION, TIMING_CUDA, 70];
        let call = [TIMING_CALL, 40, 71, 0, 5, 0, 100, 0, 200, 0];
        let name = [TIMING_NAME, 40, 9, 0, 7, 0];
        let text = *b"_Z1kPfi\0\0\0\0\0\0\0\0\0";
        let work = |what, name, direction, bytes| {
            [
                TIMING_WORK,
                96,
                what,
                2,
                1,
                direction,
                7,
                0,
                5,
                0,
                1000,
                0,
                1500,
                0,
                bytes,
                0,
                name,
                0,
                4,
                1,
                1,
                64,
                1,
                1,
            ]
        };
        let mut all = words(&header);
        all.extend(words(&call));
        all.extend(words(&name));
        all.extend(text);
        all.extend(words(&work(WORK_KERNEL, 9, 0, 0)));
        all.extend(words(&work(WORK_COPY, 0, 2, 4096)));
        all.extend(words(&[77, 16, 0, 0]));
        all.extend(words(&[TIMING_LOST, 16, 3, 0]));
        all
    }

    fn take(bytes: &[u8]) -> (Seen, Losses, u64) {
        let call = FinishedCall {
            pid: 7,
            id: 3,
            ..FinishedCall::of(std::rc::Rc::new(probe(
                1,
                API,
                "batch",
                CallKind::Activity,
                &[],
            )))
        };
        let (mut seen, mut losses) = (Seen::default(), Losses::default());
        let unknown = Timing::default().batch(&call, bytes, &mut losses, &mut seen);
        (seen, losses, unknown)
    }

    #[test]
    fn a_batch_tells_of_calls_and_of_what_devices_did() {
        let (seen, losses, unknown) = take(&batch());
        assert_eq!((seen.calls.len(), seen.device.len(), unknown), (1, 2, 1));
        assert_eq!(losses.get(LossKind::ActivityDropped), 3);
        let call = &seen.calls[0].record;
        assert_eq!(
            (call.pid, call.tid, call.correlation),
            (Some(70), Some(71), Some(5))
        );
        let [kernel, copy] = &seen.device[..] else {
            panic!("{:?}", seen.device);
        };
        assert_eq!(kernel.record.name.as_deref(), Some("k(float*, int)"));
        assert_eq!((kernel.record.start.0, kernel.record.end.0), (1000, 1500));
        assert_eq!((kernel.pid, kernel.recorder), (7, DeviceRecorder::Cuda));
        assert_eq!(
            (copy.record.kind, copy.record.code),
            (Kind::Memcpy, Some(2))
        );
        assert_eq!(copy.record.amount, Some(4096));
    }

    #[test]
    fn whatever_the_bytes_nothing_panics_and_nothing_is_silent() {
        let whole = batch();
        for end in 0..whole.len() {
            let (seen, _, unknown) = take(&whole[..end]);
            let is_boundary = [16, 56, 96, 192, 288, 304].contains(&end);
            assert!(is_boundary || unknown > 0, "{end}");
            assert!(seen.device.len() <= 2);
        }
        let mut seed = 1u64;
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..4 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (seed >> 33) as usize % bytes.len();
                bytes[at] = (seed >> 24) as u8;
            }
            for span in take(&bytes).0.device {
                assert!(span.record.start <= span.record.end);
            }
        }
    }
}
