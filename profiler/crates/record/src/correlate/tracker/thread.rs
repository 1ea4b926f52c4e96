//! The calls of one thread: which are open, which are over.

use super::{
    CallSink, effects,
    meaning::{Effect, ProbeMeaning},
    open::{OpenCall, Submitted},
    pending::PendingLaunches,
    state::TrackerState,
};
use aiprof_common::{CALL_ENTRY_UNKNOWN, CALL_UNTRACKED};
use aiprof_model::{
    probes::CallKind,
    profile::LossKind,
    wire::{Call, CallData},
};
use std::rc::Rc;

/// A thread with open calls.
#[derive(Debug)]
pub(super) struct CallThread {
    pub(super) pid: u32,
    /// Open calls, outermost first.
    #[expect(
        clippy::vec_box,
        reason = "they are large, and move from here to there"
    )]
    pub(super) open: Vec<Box<OpenCall>>,
    pub(super) pending: PendingLaunches,
    /// The call that ended last, if nothing was entered since.
    last_exit: Option<u64>,
}

/// How a call ended.
#[derive(Clone, Copy)]
struct CallEnd<'a> {
    /// Its exit, if that was seen.
    exit: Option<&'a Call>,
    /// The latest it can have been.
    before_ns: u64,
}

impl CallThread {
    pub(super) fn new(pid: u32) -> Self {
        Self {
            pid,
            open: Vec::new(),
            pending: PendingLaunches::default(),
            last_exit: None,
        }
    }

    /// Takes an entry in.
    pub(super) fn enter(
        &mut self,
        call: &Call,
        known: &Rc<ProbeMeaning>,
        state: &mut TrackerState,
        sink: &mut dyn CallSink,
    ) {
        self.last_exit = None;
        self.end_returned(call, known, state, sink);
        if self.open.len() >= state.limits.depth {
            state.losses.add(LossKind::CallsRefused, 1);
            return;
        }
        let mut open = state.open(call, known);
        state.enter_kernel(&mut open);
        let index = self.open.len();
        if let Some(around) = self.open.last() {
            open.call.nesting.parent = around.call.id;
            open.call.nesting.outermost = around.call.nesting.outermost.clone();
            open.call.nesting.depth = around.call.nesting.depth.saturating_add(1);
            open.call.nesting.is_part = known.is_part_of(&around.meaning);
            if open.call.nesting.is_part && known.is_work() {
                self.remove_own_work(index - 1, state);
            }
        }
        open.first_pending = self.pending.len();
        self.open.push(open);
        self.add_work(index, state);
        let is_early = match known.effect {
            // Another thread may give its reference back before this one is seen again.
            Effect::Retain(_) => true,
            // The next launch may be another thread's, likewise.
            Effect::GroupSize => !known.has_ended(call.library),
            _ => false,
        };
        if let Some(open) = self.open.last_mut().filter(|_| is_early) {
            open.applied = true;
            effects::apply(open, call.time_ns, state);
        }
    }

    /// Ends the calls that are over, as a new record of the thread shows.
    fn end_returned(
        &mut self,
        call: &Call,
        known: &ProbeMeaning,
        state: &mut TrackerState,
        sink: &mut dyn CallSink,
    ) {
        let end = CallEnd {
            exit: None,
            before_ns: call.time_ns,
        };
        let is_over = |open: &OpenCall| match call.flags & CALL_UNTRACKED {
            0 => open.since_ns > call.around_ns,
            // All that is known: the thread is above it, or at its place in another
            // function than the one it may have gone on in.
            _ => {
                let same = open.meaning.function == known.function;
                let tail = same && open.call.library != call.library;
                open.sp < call.sp || open.sp == call.sp && !tail
            }
        };
        while self.open.last().is_some_and(|open| is_over(open)) {
            self.end_top(end, state, sink);
        }
    }

    /// Takes an exit in; `known` is the probe that saw it.
    pub(super) fn exit(
        &mut self,
        call: &Call,
        known: &Rc<ProbeMeaning>,
        state: &mut TrackerState,
        sink: &mut dyn CallSink,
    ) {
        let end = CallEnd {
            exit: Some(call),
            before_ns: call.time_ns,
        };
        let unseen = CallEnd { exit: None, ..end };
        let is_known = call.flags & CALL_ENTRY_UNKNOWN == 0;
        let is = |open: &OpenCall| is_known && open.call.start_ns == call.around_ns;
        let mut found = false;
        while let Some(top) = self.open.last()
            && (is(top) || top.call.start_ns > call.around_ns || found)
        {
            // A function that went on in another one returns when that does.
            let same = call.sp != 0 && top.sp == call.sp;
            if found && !same {
                break;
            }
            found |= is(top);
            let seen = is(top) || is_known && same;
            self.end_top(if seen { end } else { unseen }, state, sink);
        }
        // A stub and the function it jumped to return once, and both may be probed.
        let again = self.last_exit == Some(call.sp);
        self.last_exit = Some(call.sp);
        if !found && !again {
            unmatched(call, known, state);
        }
    }

    /// Whether one of the open calls waits for the device.
    pub(super) fn is_waiting(&self) -> bool {
        let is_wait = |open: &OpenCall| {
            let probe = &open.meaning.probe;
            probe.kind == CallKind::Synchronize || probe.is_ioctl
        };
        self.open.iter().any(|open| is_wait(open))
    }

    /// Ends every open call, for the thread is gone or runs something else.
    pub(super) fn end_all(
        &mut self,
        now_ns: u64,
        state: &mut TrackerState,
        sink: &mut dyn CallSink,
    ) {
        let end = CallEnd {
            exit: None,
            before_ns: now_ns,
        };
        while !self.open.is_empty() {
            self.end_top(end, state, sink);
        }
    }

    /// Ends the calls that launched the work that signals an event, which has happened by now.
    /// Where the ends of its calls are not seen, they would end with the thread's next call.
    pub(super) fn signalled(
        &mut self,
        event: u64,
        now_ns: u64,
        state: &mut TrackerState,
        sink: &mut dyn CallSink,
    ) {
        let has_ended = |open: &OpenCall| open.meaning.has_ended(open.call.library);
        if self.pending.signals(event) && !self.open.iter().any(|open| has_ended(open)) {
            self.end_all(now_ns, state, sink);
        }
    }

    /// Ends the innermost open call.
    fn end_top(&mut self, end: CallEnd<'_>, state: &mut TrackerState, sink: &mut dyn CallSink) {
        let Some(top) = self.open.last_mut() else {
            return;
        };
        top.call.end_before_ns = end.before_ns;
        if let Some(exit) = end.exit {
            if exit.is_late() {
                // Neither when nor how it ended is known.
                top.is_assumed = true;
            } else {
                top.meaning.ended(top.call.library);
                top.call.end_ns = Some(exit.time_ns);
                top.call.result = Some(exit.result);
            }
            if exit.probe == top.meaning.probe.id {
                top.exit(exit);
            }
        } else if top.meaning.has_ended(top.call.library) {
            state.losses.add(LossKind::CallsNoEnd, 1);
        }
        let succeeded = top.call.succeeded();
        let index = self.open.len() - 1;
        if succeeded != Some(false) {
            self.complete(index, state);
        }
        if let Some(mut open) = self.open.pop() {
            match succeeded {
                Some(false) => {
                    open.ioctls.clear();
                    effects::undo(&mut open, state);
                    self.pending.undo(&mut open, state);
                }
                Some(true) => self.pending.confirm(&mut open),
                None => {}
            }
            self.ended(open, state, sink);
        }
    }

    /// What is only known now of a call that did not fail: its effect, and that no
    /// part of it did its work.
    fn complete(&mut self, index: usize, state: &mut TrackerState) {
        let Some(open) = self.open.get_mut(index) else {
            return;
        };
        if !std::mem::replace(&mut open.applied, true) {
            effects::apply(open, open.call.end_before_ns, state);
        }
        if open.call.work.launches == 0 && open.submitted == Submitted::No {
            self.add_work(index, state);
        }
    }

    /// Passes an ended call to the one around it and to the sink.
    fn ended(
        &mut self,
        mut open: Box<OpenCall>,
        state: &mut TrackerState,
        sink: &mut dyn CallSink,
    ) {
        if open.is_incomplete() {
            state.losses.add(LossKind::CallDataIncomplete, 1);
        }
        if open.meaning.tags.lists.is_some()
            && open.submitted == Submitted::No
            && open.call.flags & aiprof_common::CALL_DATA_LOST != 0
        {
            state.losses.add(LossKind::ListsUnknown, 1);
        }
        self.note_ioctls(&mut open);
        if open.call.nesting.is_part {
            if let Some(around) = self.open.last_mut() {
                around.learn_from(&mut open);
            }
            state.report(open, sink);
            return;
        }
        if let Some(around) = self.open.last_mut() {
            let took = open.call.duration_ns().unwrap_or(0);
            around.call.nesting.nested_ns = around.call.nesting.nested_ns.saturating_add(took);
        }
        state.date_recorded(&open);
        let first = open.first_pending;
        if self.pending.len() <= first {
            state.report(open, sink);
            return;
        }
        state.report_now(&open, sink);
        self.report_launches(&open, state, sink);
        state.recycle(open);
    }

    /// Takes data of a call in; false if no open call has sent them.
    pub(super) fn data(&mut self, data: &CallData, state: &mut TrackerState) -> bool {
        let of = |open: &OpenCall| {
            open.call.start_ns == data.time_ns && open.meaning.probe.id == data.probe
        };
        let Some(index) = self.open.iter().rposition(|open| of(open)) else {
            return false;
        };
        let Some(open) = self.open.get_mut(index) else {
            return false;
        };
        open.take_data(data);
        let tags = &open.meaning.tags;
        let tag = Some(data.tag);
        if tag == tags.lists {
            self.submit(index, state);
        } else if [tags.name, tags.assumed_name, tags.global, tags.local].contains(&tag) {
            self.update_work(index, state);
        }
        true
    }
}

/// An exit without an entry: lost, or of a call that began before aiprof did. What it changed is
/// known only by what the exit shows. Its launch is not counted, because the calls around it may
/// have counted that.
fn unmatched(call: &Call, known: &Rc<ProbeMeaning>, state: &mut TrackerState) {
    state.losses.add(LossKind::CallsNoEntry, 1);
    let mut open = state.open(call, known);
    open.exit(call);
    open.is_assumed = call.is_late();
    open.call.result = (!call.is_late()).then_some(call.result);
    if open.call.succeeded() != Some(false) {
        effects::apply(&mut open, call.time_ns, state);
    }
    state.recycle(open);
}
