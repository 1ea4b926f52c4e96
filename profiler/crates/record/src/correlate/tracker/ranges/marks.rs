//! Batches of marks that a helper hands over (`aiprof_common::timing`): total, for any
//! program may hand over anything.

use super::{CallSink, MadeMark, RangeAbout, RangePayload, Ranges, moment, named};
use aiprof_common::timing::{
    MARK_CATEGORY, MARK_END, MARK_GAP, MARK_ID, MARK_LONG_ID, MARK_MOMENT, MARK_PAYLOAD, MARK_POP,
    MARK_PUSH, MARK_START, MARK_THREAD_END, MARKS_LOST_ROOM, MARKS_LOST_TEXT, MARKS_LOST_THREADS,
    PAYLOAD_FLOAT, PAYLOAD_SIGNED, PAYLOAD_UNSIGNED, RANGES_ITT, RANGES_NVTX, TIMING_DOMAIN,
    TIMING_MAGIC, TIMING_MARKS, TIMING_MARKS_LOST, TIMING_NAME, TIMING_RANGES, TIMING_VERSION,
    TimingBatch, TimingDomain, TimingMarks, TimingMarksLost, TimingName, TimingRecord,
};
use aiprof_model::profile::{LossKind, Losses};
use rustc_hash::FxHashMap;
use std::mem::offset_of;
use std::rc::Rc;

/// Texts that a batch defines for its marks.
#[derive(Default)]
struct BatchTexts {
    names: FxHashMap<u64, Rc<str>>,
    /// By number: whose it is, and its name.
    domains: FxHashMap<u32, (Rc<str>, Option<Rc<str>>)>,
}

/// Who handed a batch over, and when.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct HandedOver {
    pub(in super::super) pid: u32,
    pub(in super::super) time_ns: u64,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Whether a batch is one of marks.
pub(in super::super) fn is_of_ranges(bytes: &[u8]) -> bool {
    u32_at(bytes, offset_of!(TimingBatch, magic)) == Some(TIMING_MAGIC)
        && u32_at(bytes, offset_of!(TimingBatch, version)) == Some(TIMING_VERSION)
        && u32_at(bytes, offset_of!(TimingBatch, recorder)) == Some(TIMING_RANGES)
}

impl Ranges {
    /// Takes a batch in. Gives the number of records that are none.
    pub(in super::super) fn batch(
        &mut self,
        by: HandedOver,
        bytes: &[u8],
        losses: &mut Losses,
        sink: &mut dyn CallSink,
    ) -> u64 {
        let own_pid = u32_at(bytes, offset_of!(TimingBatch, pid));
        // Threads of another namespace of pids have other numbers here.
        let is_foreign = own_pid != Some(by.pid);
        let Some(mut rest) = bytes.get(size_of::<TimingBatch>()..) else {
            return 1;
        };
        let mut texts = BatchTexts::default();
        let mut unknown = 0;
        while !rest.is_empty() {
            let length = u32_at(rest, offset_of!(TimingRecord, bytes));
            let length = length.and_then(|bytes| usize::try_from(bytes).ok());
            let length = length.filter(|length| *length >= size_of::<TimingRecord>());
            let Some((record, behind)) = length.and_then(|at| rest.split_at_checked(at)) else {
                return unknown + 1;
            };
            rest = behind;
            let read = match u32_at(record, offset_of!(TimingRecord, kind)) {
                Some(TIMING_NAME) => texts.name(record),
                Some(TIMING_DOMAIN) => texts.domain(record),
                Some(TIMING_MARKS) => {
                    unknown += self.marks(by, is_foreign, record, &texts, losses, sink);
                    Some(())
                }
                Some(TIMING_MARKS_LOST) => self.lost(by, record, losses, sink),
                _ => None,
            };
            unknown += u64::from(read.is_none());
        }
        unknown
    }

    /// A batch was not read: any of its process's ranges may have ended.
    pub(in super::super) fn unread(
        &mut self,
        by: HandedOver,
        losses: &mut Losses,
        sink: &mut dyn CallSink,
    ) {
        self.gap(by.pid, by.time_ns, losses, sink);
    }

    fn lost(
        &mut self,
        by: HandedOver,
        record: &[u8],
        losses: &mut Losses,
        sink: &mut dyn CallSink,
    ) -> Option<()> {
        let count = u64_at(record, offset_of!(TimingMarksLost, count))?;
        match u32_at(record, offset_of!(TimingMarksLost, reason))? {
            MARKS_LOST_ROOM => {
                losses.add(LossKind::RangesDropped, count);
                self.gap(by.pid, by.time_ns, losses, sink);
            }
            MARKS_LOST_TEXT => losses.add(LossKind::RangesTextsCut, count),
            MARKS_LOST_THREADS => losses.add(LossKind::RangesDropped, count),
            _ => return None,
        }
        Some(())
    }

    /// The marks of a thread. Gives the number of those that are none.
    fn marks(
        &mut self,
        by: HandedOver,
        is_foreign: bool,
        record: &[u8],
        texts: &BatchTexts,
        losses: &mut Losses,
        sink: &mut dyn CallSink,
    ) -> u64 {
        let tid = u32_at(record, offset_of!(TimingMarks, tid));
        let operation_names = record.get(size_of::<TimingMarks>()..);
        let Some((tid, mut operation_names)) = tid.zip(operation_names) else {
            return 1;
        };
        let mut unknown = 0;
        while !operation_names.is_empty() {
            let Some((kind, made)) = texts.mark(&mut operation_names, by.pid, tid) else {
                return unknown + 1;
            };
            let made = MadeMark { is_foreign, ..made };
            if made.time_ns > by.time_ns || !self.is_in_order(&made) {
                unknown += 1;
                continue;
            }
            match kind {
                MARK_PUSH => self.push(made, losses, sink),
                MARK_POP => self.pop(&made, losses, sink),
                MARK_START => self.start(made, losses),
                MARK_END => self.stop(&made, losses, sink),
                MARK_MOMENT => moment(made, sink),
                MARK_THREAD_END => self.end_thread((by.pid, tid), made.time_ns, losses, sink),
                MARK_GAP => {
                    let count = made.id.map_or(0, |(_, [count, ..])| count);
                    losses.add(LossKind::RangesDropped, count);
                    self.end_thread((by.pid, tid), made.time_ns, losses, sink);
                }
                _ => unknown += 1,
            }
        }
        unknown
    }

    /// Whether a mark comes behind those that its thread made before.
    fn is_in_order(&mut self, made: &MadeMark) -> bool {
        let process = self.processes.get_mut(&made.pid);
        let Some(thread) = process.and_then(|process| process.threads.get_mut(&made.tid)) else {
            return made.time_ns > 0;
        };
        let is_in_order = made.time_ns >= thread.last_ns;
        thread.last_ns = thread.last_ns.max(made.time_ns);
        is_in_order
    }
}

impl BatchTexts {
    fn name(&mut self, record: &[u8]) -> Option<()> {
        let number = u64_at(record, offset_of!(TimingName, name))?;
        let len = usize::try_from(u32_at(record, offset_of!(TimingName, len))?).ok()?;
        let text = record.get(size_of::<TimingName>()..)?.get(..len)?;
        let text = String::from_utf8_lossy(text);
        self.names.insert(number, text.as_ref().into());
        Some(())
    }

    fn domain(&mut self, record: &[u8]) -> Option<()> {
        let number = u32_at(record, offset_of!(TimingDomain, domain))?;
        let api = match u32_at(record, offset_of!(TimingDomain, api))? {
            RANGES_NVTX => "NVTX",
            RANGES_ITT => "ITT",
            _ => return None,
        };
        let name = u64_at(record, offset_of!(TimingDomain, name))?;
        let name = self.names.get(&name).cloned();
        self.domains.insert(number, (api.into(), name));
        Some(())
    }

    /// Takes the next mark out: its kind and its content.
    fn mark(&self, operation_names: &mut &[u8], pid: u32, tid: u32) -> Option<(u8, MadeMark)> {
        let mut next = || {
            let (word, behind) = operation_names.split_first_chunk::<8>()?;
            *operation_names = behind;
            Some(*word)
        };
        let time_ns = u64::from_le_bytes(next()?);
        let [kind, flags, d0, d1, n0, n1, n2, n3] = next()?;
        let domain = u16::from_le_bytes([d0, d1]);
        let name = u32::from_le_bytes([n0, n1, n2, n3]);
        let mut number = || Some(u64::from_le_bytes(next()?));
        // Numbers of one word are unique in a process.
        let id = match flags & (MARK_ID | MARK_LONG_ID) {
            MARK_ID => Some((0, [number()?, 0, 0])),
            MARK_LONG_ID => Some((domain, [number()?, number()?, number()?])),
            _ => None,
        };
        let payload = match flags & MARK_PAYLOAD {
            PAYLOAD_UNSIGNED => Some(RangePayload::Unsigned(number()?)),
            PAYLOAD_SIGNED => Some(RangePayload::Signed(number()?.cast_signed())),
            PAYLOAD_FLOAT => Some(RangePayload::Float(f64::from_bits(number()?))),
            _ => None,
        };
        let category = match flags & MARK_CATEGORY {
            0 => None,
            _ => {
                let word = number()?;
                let name = self.names.get(&(word >> 32)).cloned();
                Some(((word & 0xffff_ffff) as u32, name))
            }
        };
        let known = self.domains.get(&domain.into());
        let (api, domain_name) = known.cloned().unwrap_or_else(|| ("NVTX".into(), None));
        let name = self.names.get(&name.into());
        let name = name.filter(|name| !name.is_empty()).cloned();
        let about = RangeAbout {
            api,
            name: name.unwrap_or_else(|| named("")),
            domain: domain_name,
            category,
            payload,
        };
        let made = MadeMark {
            pid,
            tid,
            is_foreign: false,
            time_ns,
            domain,
            about,
            id,
        };
        Some((kind, made))
    }
}
