//! Which ioctls handed the work of calls to a driver.
//!
//! An ioctl belongs to the innermost call around it that gives work to a device. It handed
//! over what that call gave, or executed, before it. Where that call is part of another one
//! and has given nothing itself, it belongs to the other one.

use super::{TrackedLaunch, open::OpenCall, thread::CallThread};
use aiprof_model::probes::CallKind;
use std::rc::Rc;

/// Most different stacks of ioctls inside of one call; more are one that is not known.
const MOST_STACKS: usize = 8;

/// The ioctls that handed a launch to a driver, and the call that made them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DriverCalls {
    /// They were made inside of the call that made the launch; else inside of the one that
    /// executed its list.
    pub is_own: bool,
    /// The function of that call.
    pub function: Rc<str>,
    /// Id of the call's stack; 0: none.
    pub stack: u64,
    /// Ids of the ioctls' stacks, each once; 0: one has none, or is not known.
    pub ioctls: Vec<u64>,
}

/// The ioctls inside of a call: the id of a stack, and when the last ioctl that has it
/// began, CLOCK_MONOTONIC nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Ioctls(Vec<(u64, u64)>);

impl Ioctls {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    fn add(&mut self, stack: u64, at_ns: u64) {
        let is_full = self.0.len() >= MOST_STACKS;
        let is_known = |known: &&mut (u64, u64)| known.0 == stack;
        match self.0.iter_mut().find(is_known) {
            Some((_, last_ns)) => *last_ns = at_ns.max(*last_ns),
            None if is_full && stack != 0 => self.add(0, at_ns),
            None => self.0.push((stack, at_ns)),
        }
    }

    fn take_from(&mut self, other: &mut Self) {
        for (stack, at_ns) in other.0.drain(..) {
            self.add(stack, at_ns);
        }
    }

    /// Stacks of those that can have handed over what was given at a time.
    fn since(&self, given_ns: u64) -> Vec<u64> {
        let since = self.0.iter().filter(|(_, at_ns)| *at_ns >= given_ns);
        since.map(|(stack, _)| *stack).collect()
    }
}

impl CallThread {
    /// Notes which ioctls handed over what an ended call gave: this was the innermost.
    pub(super) fn note_ioctls(&mut self, ended: &mut OpenCall) {
        let probe = &ended.meaning.probe;
        if probe.is_ioctl && probe.kind == CallKind::Submit && ended.call.succeeded() == Some(true)
        {
            let (stack, at_ns) = (ended.call.stack, ended.call.start_ns);
            ended.ioctls.add(stack, at_ns);
        }
        if ended.ioctls.0.is_empty() {
            return;
        }
        if ended.meaning.gives_work() && (self.hand_over(ended) || !ended.call.nesting.is_part) {
            return;
        }
        if let Some(around) = self.open.last_mut() {
            around.ioctls.take_from(&mut ended.ioctls);
        }
    }

    /// Gives the launches of an ended call its ioctls; false if there are none.
    fn hand_over(&mut self, ended: &OpenCall) -> bool {
        let Self { open, pending, .. } = self;
        let mut known: Option<Rc<DriverCalls>> = None;
        let inside = pending.from(ended.first_pending).iter_mut();
        for one in inside.filter(|d| d.launch.driver.is_none()) {
            let ioctls = ended.ioctls.since(one.launch.submitted_ns);
            if ioctls.is_empty() {
                continue;
            }
            let calls = calls_of(&one.launch, open, ended, ioctls);
            let same = known.take().filter(|known| **known == calls);
            let calls = same.unwrap_or_else(|| Rc::new(calls));
            one.launch.driver = Some(calls.clone());
            known = Some(calls);
        }
        known.is_some()
    }
}

/// The call under which the ioctls inside of an ended call are shown. It is the launch's own call
/// if they are inside of that, else the ended call as the program made it.
fn calls_of(
    launch: &TrackedLaunch,
    open: &[Box<OpenCall>],
    ended: &OpenCall,
    ioctls: Vec<u64>,
) -> DriverCalls {
    let is_open = open.iter().any(|around| around.call.id == launch.by.call);
    if is_open || ended.call.id == launch.by.call {
        return DriverCalls {
            is_own: true,
            function: launch.by.function.clone(),
            stack: launch.by.stack,
            ioctls,
        };
    }
    let mut chain = vec![ended];
    for around in open.iter().rev() {
        if !chain.last().is_some_and(|inner| inner.call.nesting.is_part) {
            break;
        }
        chain.push(around);
    }
    let base = chain.last().copied().unwrap_or(ended);
    let outermost_first = chain.iter().rev();
    let mut stacks = outermost_first.map(|open| open.call.stack);
    DriverCalls {
        is_own: false,
        function: base.meaning.function.clone(),
        stack: stacks.find(|&stack| stack != 0).unwrap_or(0),
        ioctls,
    }
}
