//! Activity records that a runtime hands to its program, read on the way.
//!
//! They are seen twice: where the library gives the program a full buffer, and
//! where the program has it walked, record by record. Which of the two is seen,
//! and first, is the program's choice; each buffer is read once, whole if it
//! arrived whole.

use super::{CallSink, DeviceRecorder, DeviceSpan, FinishedCall, Tracked, ranges::Ranges, timing};
use crate::aiu::{ActivityRecord, BufferContext, Decoder, Kind, Layouts};
use aiprof_model::{
    probes::role,
    profile::{LossKind, Losses},
};
use rustc_hash::FxHashMap;
use std::sync::OnceLock;

/// Most processes with records, and most walks and buffers of all of them.
const MOST: usize = 4096;

/// The layouts: reading their table takes longer than reading most records.
static LAYOUTS: OnceLock<Option<Layouts>> = OnceLock::new();

/// A record whose end is not known yet: it is where the next one begins.
#[derive(Debug)]
struct OpenRecord {
    buffer: u64,
    /// End of the buffer's valid part.
    end: u64,
    at: u64,
    bytes: Vec<u8>,
}

/// How a buffer was read last.
#[derive(Clone, Copy, Debug)]
enum Read {
    /// The whole buffer was read: walking it adds nothing.
    Whole,
    /// Record by record, the last one at this time.
    Walked(u64),
}

/// A call that hands out records.
#[derive(Clone, Copy, Debug)]
struct Tap {
    buffer: u64,
    /// End of the valid part.
    end: u64,
    pid: u32,
    call: u64,
}

/// Reads the activity records of all processes.
#[derive(Debug, Default)]
pub(super) struct Activity {
    decoders: FxHashMap<u32, Decoder<'static>>,
    /// By process and thread.
    walks: FxHashMap<(u32, u32), OpenRecord>,
    /// By process and address.
    buffers: FxHashMap<(u32, u64), Read>,
    /// What helpers inside of programs hand over.
    timing: timing::Timing,
    ranges: Ranges,
}

impl Activity {
    /// Takes in a finished call of kind `Activity`.
    pub(super) fn take(
        &mut self,
        call: &FinishedCall,
        losses: &mut Losses,
        sink: &mut dyn CallSink,
    ) {
        if call.probe.api == timing::API {
            return self.timing.take(call, &mut self.ranges, losses, sink);
        }
        let value = |name: &str| call.value(call.probe.slot(name)?);
        let Some((buffer, bytes)) = value(role::BUFFER).zip(value(role::BYTES)) else {
            return;
        };
        let Some(end) = buffer.checked_add(bytes) else {
            return losses.add(LossKind::ActivityUnknown, 1);
        };
        let tap = Tap {
            buffer,
            end,
            pid: call.pid,
            call: call.id,
        };
        if let Some(tag) = call.probe.tag(role::RECORDS) {
            let content = call.content(tag.into()).filter(|c| c.complete);
            self.buffer(tap, call.start_ns, content.map(|c| &*c.bytes), losses, sink);
        } else if call.probe.tag(role::RECORD).is_some() {
            self.step(tap, call, value(role::RECORD_AT), losses, sink);
        }
    }

    /// Takes in a finished call of kind `Range`.
    pub(super) fn range(
        &mut self,
        call: &FinishedCall,
        losses: &mut Losses,
        sink: &mut dyn CallSink,
    ) {
        self.ranges.call(call, losses, sink);
    }

    /// Whether a record is of a call that a helper inside of its program made.
    pub(super) fn is_helper_s(&self, (pid, tid): (u32, u32), api: &str) -> bool {
        api != timing::API && self.timing.is_own_thread(pid, tid)
    }

    /// A buffer, or the part of it that arrived.
    fn buffer(
        &mut self,
        tap: Tap,
        handed_ns: u64,
        bytes: Option<&[u8]>,
        losses: &mut Losses,
        sink: &mut dyn CallSink,
    ) {
        let key = (tap.pid, tap.buffer);
        if let Some(Read::Walked(at)) = self.buffers.get(&key)
            && *at >= handed_ns
        {
            // The program walked it before the record of this call arrived.
            return;
        }
        // What is not read whole is read while it is walked.
        let Some(bytes) = bytes else {
            self.buffers.remove(&key);
            return;
        };
        let Some(decoder) = self.decoder(tap.pid) else {
            return;
        };
        let unknown = decoder.buffer(bytes, &BufferContext::default(), |record| {
            report(tap, record, sink);
        });
        losses.add(LossKind::ActivityUnknown, unknown.total());
        self.note(key, Read::Whole);
    }

    /// A step of a walk: the record before it is whole now.
    fn step(
        &mut self,
        tap: Tap,
        call: &FinishedCall,
        at: Option<u64>,
        losses: &mut Losses,
        sink: &mut dyn CallSink,
    ) {
        let thread = (call.pid, call.tid);
        let found = at.filter(|_| call.succeeded() != Some(false));
        if let Some(walk) = self.walks.remove(&thread) {
            let next = found.filter(|&next| walk.buffer == tap.buffer && next > walk.at);
            let last = (found.is_none() && walk.buffer == tap.buffer).then_some(walk.end);
            self.record(tap, &walk, next.or(last), losses, sink);
        }
        let Some(at) = found else {
            return;
        };
        let key = (tap.pid, tap.buffer);
        if matches!(self.buffers.get(&key), Some(Read::Whole)) {
            return;
        }
        self.note(key, Read::Walked(call.start_ns));
        let tag = call.probe.tag(role::RECORD).map(usize::from);
        let content = tag.and_then(|tag| call.content(tag));
        let rest = tap.end.checked_sub(at).filter(|_| at >= tap.buffer);
        let Some((content, rest)) = content.zip(rest) else {
            return losses.add(LossKind::ActivityUnknown, 1);
        };
        // What was read may reach beyond the buffer.
        let rest = usize::try_from(rest).unwrap_or(usize::MAX);
        let bytes = content.bytes.get(..rest).unwrap_or(&content.bytes).to_vec();
        if self.walks.len() >= MOST {
            losses.add(LossKind::ActivityUnknown, self.walks.len() as u64);
            self.walks.clear();
        }
        let (buffer, end) = (tap.buffer, tap.end);
        let walk = OpenRecord {
            buffer,
            end,
            at,
            bytes,
        };
        self.walks.insert(thread, walk);
    }

    /// A record that ends where the next one begins, if that is known.
    fn record(
        &mut self,
        tap: Tap,
        walk: &OpenRecord,
        next: Option<u64>,
        losses: &mut Losses,
        sink: &mut dyn CallSink,
    ) {
        let stride = next.and_then(|next| usize::try_from(next.checked_sub(walk.at)?).ok());
        let Some(decoder) = self.decoder(tap.pid) else {
            return;
        };
        match decoder.record(&walk.bytes, stride, &BufferContext::default()) {
            Ok(record) => report(tap, record, sink),
            Err(_) => losses.add(LossKind::ActivityUnknown, 1),
        }
    }

    /// A process has ended, or runs another program: what is left of its walks.
    pub(super) fn forget(
        &mut self,
        pid: u32,
        now_ns: u64,
        losses: &mut Losses,
        sink: &mut dyn CallSink,
    ) {
        self.timing.forget(pid);
        self.ranges.forget(pid, now_ns, losses, sink);
        self.forget_walks(pid, losses, sink);
    }

    fn forget_walks(&mut self, pid: u32, losses: &mut Losses, sink: &mut dyn CallSink) {
        if !self.decoders.contains_key(&pid) && self.walks.is_empty() {
            return;
        }
        let gone: Vec<_> = self.walks.extract_if(|key, _| key.0 == pid).collect();
        for (_, walk) in gone {
            let tap = Tap {
                buffer: walk.buffer,
                end: walk.end,
                pid,
                call: 0,
            };
            self.record(tap, &walk, None, losses, sink);
        }
        self.decoders.remove(&pid);
        self.buffers.retain(|key, _| key.0 != pid);
    }

    /// The end of the recording: what is left of all walks.
    pub(super) fn finish(&mut self, now_ns: u64, losses: &mut Losses, sink: &mut dyn CallSink) {
        self.ranges.finish(now_ns, losses, sink);
        let mut pids: Vec<u32> = self.walks.keys().map(|key| key.0).collect();
        pids.sort_unstable();
        pids.dedup();
        for pid in pids {
            self.timing.forget(pid);
            self.forget_walks(pid, losses, sink);
        }
    }

    fn note(&mut self, key: (u32, u64), read: Read) {
        if self.buffers.len() >= MOST && !self.buffers.contains_key(&key) {
            self.buffers.clear();
        }
        self.buffers.insert(key, read);
    }

    /// What learns the layouts of a process; `None` if there are none to learn.
    fn decoder(&mut self, pid: u32) -> Option<&mut Decoder<'static>> {
        let layouts = LAYOUTS.get_or_init(|| Layouts::builtin().ok()).as_ref()?;
        if self.decoders.len() >= MOST && !self.decoders.contains_key(&pid) {
            self.decoders.clear();
        }
        let decoder = self.decoders.entry(pid);
        Some(decoder.or_insert_with(|| Decoder::new(layouts)))
    }
}

/// Passes on what a record describes.
fn report(tap: Tap, record: ActivityRecord, sink: &mut dyn CallSink) {
    let span = DeviceSpan {
        pid: tap.pid,
        call: tap.call,
        recorder: DeviceRecorder::Aiu,
        clock: None,
        record,
    };
    match span.record.kind {
        Kind::Compute | Kind::Memset | Kind::Memcpy | Kind::Memcpy2 | Kind::Memory => {
            sink.found(&Tracked::DeviceSpan(&span));
        }
        _ => sink.found(&Tracked::RuntimeRecord(&span)),
    }
}
