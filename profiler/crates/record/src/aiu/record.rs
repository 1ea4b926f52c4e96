//! One activity record: its fields, and whether they can be true.

use super::layouts::{Kind, LayoutStatus, NumberSlot, RecordLayout};
use std::ops::RangeInclusive;

/// Nanoseconds since 1970 by the host's CLOCK_REALTIME: the times of records.
///
/// Device times among them were converted by the runtime, and are as good as its
/// calibration was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpochNs(pub u64);

/// The years in which a record can have been made: 2000 to 2100.
const PLAUSIBLE: RangeInclusive<EpochNs> =
    EpochNs(946_684_800_000_000_000)..=EpochNs(4_102_444_800_000_000_000);
/// The longest that one activity can last: a day.
const LONGEST: u64 = 86_400_000_000_000;
/// Largest device number that is believed of an assumed layout.
const MAX_DEVICE: u64 = 1023;
/// Largest cbid, event id or kind that is believed of an assumed layout.
const MAX_CODE: u64 = 1023;

/// Byte order of the process whose records these are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Endian {
    /// x86-64 and ppc64le.
    #[default]
    Little,
    /// s390x.
    Big,
}

/// What is known about the process that a buffer comes from. The more is known,
/// the harder it is for bytes that are no record to look like one.
#[derive(Clone, Copy)]
pub struct BufferContext<'a> {
    /// Its byte order.
    pub endian: Endian,
    /// Its process id, if records of it have the one that we know (they have
    /// that of its innermost PID namespace).
    pub pid: Option<u32>,
    /// The earliest and latest time that a record can have.
    pub earliest: EpochNs,
    /// See `earliest`.
    pub latest: EpochNs,
    /// Whether the buffer was cut where it was captured, within a record perhaps.
    pub is_cut: bool,
    /// Whether a correlation id is one of this process; asked only for device
    /// records of assumed layouts.
    pub known_correlation: Option<&'a dyn Fn(u64) -> bool>,
}

impl Default for BufferContext<'_> {
    /// Little-endian, and any process in this century.
    fn default() -> Self {
        Self {
            endian: Endian::Little,
            pid: None,
            earliest: *PLAUSIBLE.start(),
            latest: *PLAUSIBLE.end(),
            is_cut: false,
            known_correlation: None,
        }
    }
}

impl std::fmt::Debug for BufferContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("endian", &self.endian)
            .field("pid", &self.pid)
            .field("earliest", &self.earliest)
            .field("latest", &self.latest)
            .field("is_cut", &self.is_cut)
            .finish_non_exhaustive()
    }
}

/// An activity record. Fields that its layout does not have are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActivityRecord {
    /// Its kind.
    pub kind: Kind,
    /// How much is known about the layout it was read by.
    pub status: LayoutStatus,
    /// Compute: 1 preparing, 2 executing. Memcpy: 1 to the device, 2 to the host, 3
    /// to another device. Memory: 1 allocated, 2 released. Runtime: the cbid, see
    /// [`events`](super::events). Metric: the event id.
    pub code: Option<u32>,
    /// Device number.
    pub device: Option<u32>,
    /// Context number.
    pub context: Option<u32>,
    /// Stream number.
    pub stream: Option<u64>,
    /// Joins a kernel with the call that launched it.
    pub correlation: Option<u64>,
    /// When it began; a metric's only time.
    pub start: EpochNs,
    /// When it ended; `start` where there is no end.
    pub end: EpochNs,
    /// When it was queued.
    pub queued: Option<EpochNs>,
    /// When it was submitted.
    pub submitted: Option<EpochNs>,
    /// Bytes copied, filled, allocated; a kernel's local memory; a runtime record's
    /// data (`events::Data`); a metric's value.
    pub amount: Option<u64>,
    /// Address in device memory.
    pub address: Option<u64>,
    /// Process, as it sees itself.
    pub pid: Option<u32>,
    /// Thread, as the runtime numbers it.
    pub tid: Option<u64>,
    /// Kernel name; bytes that are no UTF-8 are replaced.
    pub name: Option<String>,
    /// TS1 to TS5 in device cycles; `None` also where all are 0, which means that
    /// the runtime had none.
    pub cycles: Option<[u64; 5]>,
}

/// A record's bytes, read by a layout.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    layout: &'a RecordLayout,
    bytes: &'a [u8],
    endian: Endian,
}

impl<'a> View<'a> {
    /// The record at `at`; `None` when it is cut.
    pub(super) fn new(
        layout: &'a RecordLayout,
        data: &'a [u8],
        at: usize,
        endian: Endian,
    ) -> Option<Self> {
        let bytes = data.get(at..at.checked_add(layout.size)?)?;
        Some(Self {
            layout,
            bytes,
            endian,
        })
    }

    fn number(&self, slot: Option<NumberSlot>) -> Option<u64> {
        let slot = slot?;
        let bytes = self.bytes.get(slot.offset..slot.offset + slot.width)?;
        let shift = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        Some(match self.endian {
            Endian::Little => bytes.iter().rev().fold(0, shift),
            Endian::Big => bytes.iter().fold(0, shift),
        })
    }

    fn small(&self, slot: Option<NumberSlot>) -> Option<u32> {
        self.number(slot)
            .map(|n| u32::try_from(n).unwrap_or(u32::MAX))
    }

    fn time(&self, slot: Option<NumberSlot>) -> Option<EpochNs> {
        self.number(slot).map(EpochNs)
    }

    /// Whether the fields can be those of a record: start and end are in order
    /// and in time, and, where the layout is assumed, everything else is in range.
    pub(super) fn is_plausible(&self, context: &BufferContext<'_>) -> bool {
        let fields = &self.layout.fields;
        let Some(start) = self.time(fields.start) else {
            return false;
        };
        let end = self.time(fields.end).unwrap_or(start);
        let in_time = context.earliest <= start && start <= end && end <= context.latest;
        let wrong_pid = |pid| context.pid.is_some_and(|known| known != pid);
        if !in_time || end.0 - start.0 > LONGEST || self.small(fields.pid).is_some_and(wrong_pid) {
            return false;
        }
        self.layout.status == LayoutStatus::Published || self.is_believable(context)
    }

    /// The part of plausibility that only assumed layouts need.
    fn is_believable(&self, context: &BufferContext<'_>) -> bool {
        let fields = &self.layout.fields;
        let within = |slot, range: RangeInclusive<u64>| {
            self.number(slot).is_none_or(|value| range.contains(&value))
        };
        let known = self.layout.kind == Kind::Runtime
            || match (context.known_correlation, self.number(fields.correlation)) {
                (Some(is_known), Some(id)) => is_known(id),
                _ => true,
            };
        known
            && within(fields.code, 1..=MAX_CODE)
            && within(fields.device, 0..=MAX_DEVICE)
            // The kernel's largest process id.
            && within(fields.pid, 1..=1 << 22)
            && within(fields.tid, 1..=u64::MAX)
            && within(fields.correlation, 1..=u64::MAX)
    }

    /// The text up to its zero.
    fn text(&self, slot: Option<NumberSlot>) -> Option<String> {
        let slot = slot?;
        let bytes = self.bytes.get(slot.offset..slot.offset + slot.width)?;
        let text = bytes.split(|byte| *byte == 0).next()?;
        Some(String::from_utf8_lossy(text).into_owned())
    }

    fn cycles(&self) -> Option<[u64; 5]> {
        let slot = self.layout.fields.cycles?;
        let mut values = [0; 5];
        for (i, value) in values.iter_mut().enumerate() {
            *value = self.number(Some(NumberSlot {
                offset: slot.offset + i * 8,
                width: 8,
            }))?;
        }
        (values != [0; 5]).then_some(values)
    }

    /// The record, if it is plausible.
    pub(super) fn read(&self, context: &BufferContext<'_>) -> Option<ActivityRecord> {
        if !self.is_plausible(context) {
            return None;
        }
        let fields = &self.layout.fields;
        let start = self.time(fields.start)?;
        Some(ActivityRecord {
            kind: self.layout.kind,
            status: self.layout.status,
            code: self.small(fields.code),
            device: self.small(fields.device),
            context: self.small(fields.context),
            stream: self.number(fields.stream),
            correlation: self.number(fields.correlation),
            start,
            end: self.time(fields.end).unwrap_or(start),
            queued: self.time(fields.queued),
            submitted: self.time(fields.submitted),
            amount: self.number(fields.amount),
            address: self.number(fields.address),
            pid: self.small(fields.pid),
            tid: self.number(fields.tid),
            name: self.text(fields.name),
            cycles: self.cycles(),
        })
    }
}
