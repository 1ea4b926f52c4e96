//! Ranges that programs name: their begins and ends put together.
//!
//! Marks come from the helper inside a program (NVTX, ITT), in batches, or are probed calls
//! (ROCTX). A pushed range ends with the next pop of its thread and domain; a started one with
//! the end of its number, on any thread. Where marks of a thread are missing, what is open there
//! may have ended: it ends there, and is marked as a range whose end was not seen.

mod marks;

use super::{CallSink, FinishedCall, Tracked};
use aiprof_model::{
    probes::{ProbeRole, role},
    profile::{LossKind, Losses},
};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::rc::Rc;

pub(super) use marks::{HandedOver, is_of_ranges};

/// Most processes with ranges.
const MOST_PROCESSES: usize = 1 << 14;
/// Most ranges that are open, over all processes.
const MOST_OPEN: usize = 1 << 18;
/// What a range is called whose text is empty, or is not known.
const NAMELESS: &str = "[range without a name]";

/// A range that a program named, or a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct RangeSpan {
    /// Process.
    pub pid: u32,
    /// Thread that it began on.
    pub tid: u32,
    /// Thread that it ended on, if another.
    pub ended_on: Option<u32>,
    /// Its API, name, domain, category and payload.
    pub about: RangeAbout,
    /// When it began, CLOCK_MONOTONIC nanoseconds.
    pub start_ns: u64,
    /// When it ended; of a moment, the same.
    pub end_ns: u64,
    /// How it lies among others.
    pub form: RangeForm,
    /// Its end was not seen: it may have ended before.
    pub is_unended: bool,
}

/// What is known of a range, beside its times.
#[derive(Clone, Debug, PartialEq)]
pub struct RangeAbout {
    /// By which functions it was named: NVTX, ITT, ROCTX.
    pub api: Rc<str>,
    /// Its text.
    pub name: Rc<str>,
    /// The name of its domain, if that has one.
    pub domain: Option<Rc<str>>,
    /// The number of its category, and the category's name.
    pub category: Option<(u32, Option<Rc<str>>)>,
    /// A number that the program gave with it.
    pub payload: Option<RangePayload>,
}

/// A number that a program gives with a range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RangePayload {
    /// Unsigned.
    Unsigned(u64),
    /// Signed.
    Signed(i64),
    /// Floating-point.
    Float(f64),
}

/// How a range lies among the others of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeForm {
    /// On its thread, inside of this number of others.
    Nested(u32),
    /// Beside others: it may overlap them, or end on another thread.
    Loose,
    /// It has no length.
    Moment,
}

/// A range that is open.
#[derive(Clone, Debug)]
struct OpenRange {
    domain: u16,
    about: RangeAbout,
    tid: u32,
    start_ns: u64,
    /// It is not known which thread that is.
    is_foreign: bool,
}

/// What ends a range that may end on any thread: by whom it was named, its domain where its
/// number is the program's own choice, and the number.
type RangeKey = (Rc<str>, u16, [u64; 3]);

/// The ranges of a thread.
#[derive(Debug, Default)]
struct ThreadRanges {
    open: Vec<OpenRange>,
    last_ns: u64,
}

/// The ranges of a process.
#[derive(Debug, Default)]
struct ProcessRanges {
    threads: BTreeMap<u32, ThreadRanges>,
    started: FxHashMap<RangeKey, Vec<OpenRange>>,
}

/// Follows the ranges of all processes.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    processes: FxHashMap<u32, ProcessRanges>,
    open: usize,
}

/// A mark: where it was made, and its content.
#[derive(Debug)]
struct MadeMark {
    pid: u32,
    tid: u32,
    is_foreign: bool,
    time_ns: u64,
    domain: u16,
    about: RangeAbout,
    id: Option<(u16, [u64; 3])>,
}

/// The process's state; `None`: there are too many.
fn admitted(processes: &mut FxHashMap<u32, ProcessRanges>, pid: u32) -> Option<&mut ProcessRanges> {
    if processes.len() >= MOST_PROCESSES && !processes.contains_key(&pid) {
        return None;
    }
    Some(processes.entry(pid).or_default())
}

impl Ranges {
    /// Takes in a probed call that begins or ends a range.
    pub(super) fn call(
        &mut self,
        call: &FinishedCall,
        losses: &mut Losses,
        sink: &mut dyn CallSink,
    ) {
        let Some(what) = call.probe.role else {
            return;
        };
        let tag = call.probe.tag(role::NAME);
        let text = tag.and_then(|tag| call.content(tag.into()));
        let text = text.map(|content| String::from_utf8_lossy(&content.bytes));
        let number = || {
            let slot = call.probe.slot(role::RANGE);
            slot.and_then(|slot| call.value(slot)).or(call.result)
        };
        let made = MadeMark {
            pid: call.pid,
            tid: call.tid,
            is_foreign: false,
            time_ns: call.start_ns,
            domain: 0,
            about: RangeAbout {
                api: Rc::from(&*call.probe.api),
                name: named(text.as_deref().unwrap_or_default()),
                domain: None,
                category: None,
                payload: None,
            },
            id: number().map(|number| (0, [number, 0, 0])),
        };
        match what {
            ProbeRole::Push => self.push(made, losses, sink),
            ProbeRole::Pop => self.pop(&made, losses, sink),
            ProbeRole::Start => self.start(made, losses),
            ProbeRole::Stop => self.stop(&made, losses, sink),
            ProbeRole::Mark => moment(made, sink),
            _ => {}
        }
    }

    fn push(&mut self, made: MadeMark, losses: &mut Losses, sink: &mut dyn CallSink) {
        let has_room = self.open < MOST_OPEN;
        let process = admitted(&mut self.processes, made.pid).filter(|_| has_room);
        let Some(process) = process else {
            // Which of those that are open the next pop ends is not known from here on.
            losses.add(LossKind::RangesDropped, 1);
            return self.end_thread((made.pid, made.tid), made.time_ns, losses, sink);
        };
        self.open += 1;
        let thread = process.threads.entry(made.tid).or_default();
        thread.last_ns = made.time_ns;
        thread.open.push(made.opened());
    }

    fn pop(&mut self, made: &MadeMark, losses: &mut Losses, sink: &mut dyn CallSink) {
        let process = self.processes.get_mut(&made.pid);
        let Some(thread) = process.and_then(|process| process.threads.get_mut(&made.tid)) else {
            return losses.add(LossKind::RangesUnmatched, 1);
        };
        let is_own = |range: &OpenRange| range.domain == made.domain;
        let Some(at) = thread.open.iter().rposition(is_own) else {
            return losses.add(LossKind::RangesUnmatched, 1);
        };
        // With two domains the inner range may end last: that is no nesting.
        let form = match at + 1 == thread.open.len() {
            true => RangeForm::Nested(u32::try_from(at).unwrap_or(u32::MAX)),
            false => RangeForm::Loose,
        };
        let range = thread.open.remove(at);
        self.open -= 1;
        if thread.open.is_empty()
            && let Some(process) = self.processes.get_mut(&made.pid)
        {
            process.threads.remove(&made.tid);
        }
        sink.found(&Tracked::Range(&range.ended(
            made.pid,
            made.tid,
            made.time_ns,
            form,
        )));
    }

    fn start(&mut self, made: MadeMark, losses: &mut Losses) {
        let has_room = self.open < MOST_OPEN;
        let process = admitted(&mut self.processes, made.pid).filter(|_| has_room);
        let Some((process, key)) = process.zip(made.key()) else {
            return losses.add(LossKind::RangesDropped, 1);
        };
        self.open += 1;
        process.started.entry(key).or_default().push(made.opened());
    }

    fn stop(&mut self, made: &MadeMark, losses: &mut Losses, sink: &mut dyn CallSink) {
        let process = self.processes.get_mut(&made.pid);
        let Some((process, key)) = process.zip(made.key()) else {
            return losses.add(LossKind::RangesUnmatched, 1);
        };
        let found = process.started.get_mut(&key).and_then(Vec::pop);
        if process.started.get(&key).is_some_and(Vec::is_empty) {
            process.started.remove(&key);
        }
        let Some(range) = found else {
            return losses.add(LossKind::RangesUnmatched, 1);
        };
        self.open -= 1;
        sink.found(&Tracked::Range(&range.ended(
            made.pid,
            made.tid,
            made.time_ns,
            RangeForm::Loose,
        )));
    }

    /// What is open on a thread may have ended, or has ended with it.
    fn end_thread(
        &mut self,
        (pid, tid): (u32, u32),
        time_ns: u64,
        losses: &mut Losses,
        sink: &mut dyn CallSink,
    ) {
        let process = self.processes.get_mut(&pid);
        let Some(thread) = process.and_then(|process| process.threads.remove(&tid)) else {
            return;
        };
        self.open -= thread.open.len();
        losses.add(LossKind::RangesUnended, thread.open.len() as u64);
        for (depth, range) in (0..).zip(thread.open) {
            let span = range.ended(pid, tid, time_ns, RangeForm::Nested(depth));
            sink.found(&Tracked::Range(&RangeSpan {
                is_unended: true,
                ..span
            }));
        }
    }

    /// Marks of a process are missing: see [`end_thread`](Self::end_thread).
    pub(super) fn gap(
        &mut self,
        pid: u32,
        time_ns: u64,
        losses: &mut Losses,
        sink: &mut dyn CallSink,
    ) {
        let threads = self.processes.get(&pid).map(|process| &process.threads);
        let tids: Vec<u32> = threads
            .into_iter()
            .flat_map(BTreeMap::keys)
            .copied()
            .collect();
        for tid in tids {
            self.end_thread((pid, tid), time_ns, losses, sink);
        }
    }

    /// A process has ended, or runs another program.
    pub(super) fn forget(
        &mut self,
        pid: u32,
        now_ns: u64,
        losses: &mut Losses,
        sink: &mut dyn CallSink,
    ) {
        self.gap(pid, now_ns, losses, sink);
        let Some(process) = self.processes.remove(&pid) else {
            return;
        };
        let mut left: Vec<OpenRange> = process.started.into_values().flatten().collect();
        left.sort_by_key(|range| (range.start_ns, range.tid));
        self.open -= left.len();
        losses.add(LossKind::RangesUnended, left.len() as u64);
        for range in left {
            let tid = range.tid;
            let span = range.ended(pid, tid, now_ns, RangeForm::Loose);
            sink.found(&Tracked::Range(&RangeSpan {
                is_unended: true,
                ..span
            }));
        }
    }

    /// The end of the recording.
    pub(super) fn finish(&mut self, now_ns: u64, losses: &mut Losses, sink: &mut dyn CallSink) {
        let mut pids: Vec<u32> = self.processes.keys().copied().collect();
        pids.sort_unstable();
        for pid in pids {
            self.forget(pid, now_ns, losses, sink);
        }
    }
}

fn moment(made: MadeMark, sink: &mut dyn CallSink) {
    let (pid, tid, time_ns) = (made.pid, made.tid, made.time_ns);
    let range = made.opened();
    sink.found(&Tracked::Range(&range.ended(
        pid,
        tid,
        time_ns,
        RangeForm::Moment,
    )));
}

impl MadeMark {
    fn opened(self) -> OpenRange {
        OpenRange {
            domain: self.domain,
            about: self.about,
            tid: self.tid,
            start_ns: self.time_ns,
            is_foreign: self.is_foreign,
        }
    }

    fn key(&self) -> Option<RangeKey> {
        let (domain, id) = self.id?;
        Some((Rc::clone(&self.about.api), domain, id))
    }
}

impl OpenRange {
    fn ended(self, pid: u32, tid: u32, time_ns: u64, form: RangeForm) -> RangeSpan {
        RangeSpan {
            pid,
            tid: self.tid,
            ended_on: (tid != self.tid).then_some(tid),
            about: self.about,
            start_ns: self.start_ns,
            end_ns: time_ns.max(self.start_ns),
            form: match form {
                RangeForm::Nested(_) if self.is_foreign => RangeForm::Loose,
                form => form,
            },
            is_unended: false,
        }
    }
}

/// The name of a range of this text.
fn named(text: &str) -> Rc<str> {
    if text.is_empty() { NAMELESS } else { text }.into()
}

#[cfg(test)]
mod tests;
