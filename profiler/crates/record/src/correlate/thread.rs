//! The calls of one thread: which are open, which are over.

use super::{
    CallSink,
    draft::Draft,
    effects,
    known::{Effect, Known},
    open::{Open, Submitted},
    world::World,
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
pub(super) struct Thread {
    pub(super) pid: u32,
    /// Open calls, outermost first.
    #[expect(
        clippy::vec_box,
        reason = "they are large, and move from here to there"
    )]
    pub(super) open: Vec<Box<Open>>,
    /// Launches of the open calls, in the order they were made.
    pub(super) drafts: Vec<Draft>,
    /// The call that ended last, if nothing was entered since.
    last_exit: Option<u64>,
}

/// How a call ended.
#[derive(Clone, Copy)]
struct End<'a> {
    /// Its exit, if that was seen.
    exit: Option<&'a Call>,
    /// The latest it can have been.
    before_ns: u64,
}

impl Thread {
    pub(super) fn new(pid: u32) -> Self {
        Self {
            pid,
            open: Vec::new(),
            drafts: Vec::new(),
            last_exit: None,
        }
    }

    /// Takes an entry in.
    pub(super) fn enter(
        &mut self,
        call: &Call,
        known: &Rc<Known>,
        world: &mut World,
        sink: &mut dyn CallSink,
    ) {
        self.last_exit = None;
        self.end_returned(call, known, world, sink);
        if self.open.len() >= world.limits.depth {
            world.losses.add(LossKind::CallsRefused, 1);
            return;
        }
        let mut open = world.open(call, known);
        world.enter_kernel(&mut open);
        let index = self.open.len();
        if let Some(around) = self.open.last() {
            open.call.parent = around.call.id;
            open.call.outermost = around.call.outermost.clone();
            open.call.depth = around.call.depth.saturating_add(1);
            open.call.is_part = known.is_part_of(&around.known);
            if open.call.is_part && known.is_work() {
                self.withdraw(index - 1, world);
            }
        }
        open.first_draft = self.drafts.len();
        self.open.push(open);
        self.draft(index, world);
        let is_early = match known.effect {
            // Another thread may give its reference back before this one is seen again.
            Effect::Retain(_) => true,
            // The next launch may be another thread's, likewise.
            Effect::GroupSize => !known.has_ended(call.library),
            _ => false,
        };
        if let Some(open) = self.open.last_mut().filter(|_| is_early) {
            open.applied = true;
            effects::apply(open, call.time_ns, world);
        }
    }

    /// Ends the calls that are over, as a new record of the thread shows.
    fn end_returned(
        &mut self,
        call: &Call,
        known: &Known,
        world: &mut World,
        sink: &mut dyn CallSink,
    ) {
        let end = End {
            exit: None,
            before_ns: call.time_ns,
        };
        let is_over = |open: &Open| match call.flags & CALL_UNTRACKED {
            0 => open.since_ns > call.around_ns,
            // All that is known: the thread is above it, or at its place in another
            // function than the one it may have gone on in.
            _ => {
                let same = open.known.function == known.function;
                let tail = same && open.call.library != call.library;
                open.sp < call.sp || open.sp == call.sp && !tail
            }
        };
        while self.open.last().is_some_and(|open| is_over(open)) {
            self.end_top(end, world, sink);
        }
    }

    /// Takes an exit in; `known` is the probe that saw it.
    pub(super) fn exit(
        &mut self,
        call: &Call,
        known: &Rc<Known>,
        world: &mut World,
        sink: &mut dyn CallSink,
    ) {
        let end = End {
            exit: Some(call),
            before_ns: call.time_ns,
        };
        let unseen = End { exit: None, ..end };
        let is_known = call.flags & CALL_ENTRY_UNKNOWN == 0;
        let is = |open: &Open| is_known && open.call.start_ns == call.around_ns;
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
            self.end_top(if seen { end } else { unseen }, world, sink);
        }
        // A stub and the function it jumped to return once, and both may be probed.
        let again = self.last_exit == Some(call.sp);
        self.last_exit = Some(call.sp);
        if !found && !again {
            unmatched(call, known, world);
        }
    }

    /// Whether one of the open calls waits for the device.
    pub(super) fn waits(&self) -> bool {
        let waits = |open: &Open| {
            let probe = &open.known.probe;
            probe.kind == CallKind::Synchronize || probe.is_ioctl
        };
        self.open.iter().any(|open| waits(open))
    }

    /// Ends every open call, for the thread is gone or runs something else.
    pub(super) fn end_all(&mut self, now_ns: u64, world: &mut World, sink: &mut dyn CallSink) {
        let end = End {
            exit: None,
            before_ns: now_ns,
        };
        while !self.open.is_empty() {
            self.end_top(end, world, sink);
        }
    }

    /// Ends the calls that launched the work that signals an event, which has happened by now.
    /// Where the ends of its calls are not seen, they would end with the thread's next call.
    pub(super) fn signalled(
        &mut self,
        event: u64,
        now_ns: u64,
        world: &mut World,
        sink: &mut dyn CallSink,
    ) {
        let launches = |draft: &Draft| draft.launch.event == event;
        let has_ended = |open: &Open| open.known.has_ended(open.call.library);
        if self.drafts.iter().any(launches) && !self.open.iter().any(|open| has_ended(open)) {
            self.end_all(now_ns, world, sink);
        }
    }

    /// Ends the innermost open call.
    fn end_top(&mut self, end: End<'_>, world: &mut World, sink: &mut dyn CallSink) {
        let Some(top) = self.open.last_mut() else {
            return;
        };
        top.call.end_before_ns = end.before_ns;
        if let Some(exit) = end.exit {
            if exit.is_late() {
                // Neither when nor how it ended is known.
                top.is_assumed = true;
            } else {
                top.known.ended(top.call.library);
                top.call.end_ns = Some(exit.time_ns);
                top.call.result = Some(exit.result);
            }
            if exit.probe == top.known.probe.id {
                top.exit(exit);
            }
        } else if top.known.has_ended(top.call.library) {
            world.losses.add(LossKind::CallsNoEnd, 1);
        }
        let succeeded = top.call.succeeded();
        let index = self.open.len() - 1;
        if succeeded != Some(false) {
            self.complete(index, world);
        }
        if let Some(mut open) = self.open.pop() {
            match succeeded {
                Some(false) => {
                    open.ioctls.clear();
                    effects::take_back(&mut open, world);
                    self.take_back(&mut open, world);
                }
                Some(true) => self.confirm(&mut open),
                None => {}
            }
            self.ended(open, world, sink);
        }
    }

    /// What is only known now of a call that did not fail: its effect, and that no
    /// part of it did its work.
    fn complete(&mut self, index: usize, world: &mut World) {
        let Some(open) = self.open.get_mut(index) else {
            return;
        };
        if !std::mem::replace(&mut open.applied, true) {
            effects::apply(open, open.call.end_before_ns, world);
        }
        if open.call.works == 0 && open.submitted == Submitted::No {
            self.draft(index, world);
        }
    }

    /// Passes an ended call to the one around it and to the sink.
    fn ended(&mut self, mut open: Box<Open>, world: &mut World, sink: &mut dyn CallSink) {
        if open.is_incomplete() {
            world.losses.add(LossKind::CallDataIncomplete, 1);
        }
        if open.known.tags.lists.is_some()
            && open.submitted == Submitted::No
            && open.call.flags & aiprof_common::CALL_DATA_LOST != 0
        {
            world.losses.add(LossKind::ListsUnknown, 1);
        }
        self.note_ioctls(&mut open);
        if open.call.is_part {
            if let Some(around) = self.open.last_mut() {
                around.learn_from(&mut open);
            }
            world.report(open, sink);
            return;
        }
        if let Some(around) = self.open.last_mut() {
            let took = open.call.duration_ns().unwrap_or(0);
            around.call.nested_ns = around.call.nested_ns.saturating_add(took);
        }
        world.date_recorded(&open);
        let first = open.first_draft;
        if self.drafts.len() <= first {
            world.report(open, sink);
            return;
        }
        world.tell(&open, sink);
        self.deliver(&open, world, sink);
        world.recycle(open);
    }

    /// Takes data of a call in; false if no open call has sent them.
    pub(super) fn data(&mut self, data: &CallData, world: &mut World) -> bool {
        let of =
            |open: &Open| open.call.start_ns == data.time_ns && open.known.probe.id == data.probe;
        let Some(index) = self.open.iter().rposition(|open| of(open)) else {
            return false;
        };
        let Some(open) = self.open.get_mut(index) else {
            return false;
        };
        open.take_data(data);
        let tags = &open.known.tags;
        let tag = Some(data.tag);
        if tag == tags.lists {
            self.submit(index, world);
        } else if [tags.name, tags.assumed_name, tags.global, tags.local].contains(&tag) {
            self.redraft(index, world);
        }
        true
    }
}

/// An exit without an entry: lost, or of a call that began before aiprof did. What it changed is
/// known only by what the exit shows. Its launch is not counted, because the calls around it may
/// have counted that.
fn unmatched(call: &Call, known: &Rc<Known>, world: &mut World) {
    world.losses.add(LossKind::CallsNoEntry, 1);
    let mut open = world.open(call, known);
    open.exit(call);
    open.is_assumed = call.is_late();
    open.call.result = (!call.is_late()).then_some(call.result);
    if open.call.succeeded() != Some(false) {
        effects::apply(&mut open, call.time_ns, world);
    }
    world.recycle(open);
}
