//! Devices that record nothing: between which calls they must have been at work.
//!
//! Without records all that is known of an AIU's kernels is that they ran after their
//! launch and before the end of the call that waited for them. That is a span of its
//! own kind, on a row that says so: never as if the device had been busy all that time.

use super::{Builder, Key, Span, late};
use crate::{
    aiu,
    correlate::{FinishedCall, Launch},
};
use aiprof_model::{
    probes::{CallKind, role},
    profile::LossKind,
    timeline::{Args, Quality, recorded::EventSink},
};
use rustc_hash::FxHashMap;

/// Most queues with work that nobody waited for yet.
const MAX_QUEUES: usize = 1 << 14;
/// Most kernels that are named with one span.
const MAX_NAMES: usize = 8;

/// Work that was launched and not waited for.
#[derive(Debug)]
struct Pending {
    start_ns: u64,
    launches: u64,
    names: Vec<String>,
}

/// Follows launches and waits.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    /// By process and queue, 0 if it is not known.
    queues: FxHashMap<(u32, u64), Pending>,
}

impl<S: EventSink> Builder<S> {
    /// Takes a launch in.
    pub(super) fn bound_from(&mut self, launch: &Launch) {
        let is_work = match launch.kind {
            CallKind::Launch | CallKind::Submit => true,
            // Copies of the C interface tell no queue, and return when they are done.
            CallKind::Copy | CallKind::Fill => launch.queue != 0,
            _ => false,
        };
        let is_recorded = self.with_records.contains(&launch.pid);
        if *launch.api != *aiu::API || !is_work || is_recorded {
            return;
        }
        let (queues, key) = (&mut self.bounds.queues, (launch.pid, launch.queue));
        if queues.len() >= MAX_QUEUES && !queues.contains_key(&key) {
            return self.out.losses.add(LossKind::SpansRefused, 1);
        }
        let pending = queues.entry(key).or_insert_with(|| Pending {
            start_ns: launch.start_ns,
            launches: 0,
            names: Vec::new(),
        });
        pending.start_ns = pending.start_ns.min(launch.start_ns);
        pending.launches += 1;
        let name = late::of_work(launch.pid, &launch.name);
        let is_new = !pending.names.iter().any(|known| **known == *name);
        if is_new && pending.names.len() < MAX_NAMES {
            pending.names.push(name.into_owned());
        }
    }

    /// A call is over: the work that it waited for.
    pub(super) fn bound_to(&mut self, call: &FinishedCall) {
        let waits = call.probe.kind == CallKind::Synchronize && call.succeeded() != Some(false);
        let waits = waits && !self.bounds.queues.is_empty() && call.probe.api == aiu::API;
        let Some(end_ns) = call.end_ns.filter(|_| waits) else {
            return;
        };
        let queue = call.probe.slot(role::QUEUE);
        let queue = queue.and_then(|slot| call.value(slot));
        let done = self.bounds.queues.extract_if(|(pid, of), pending| {
            let is_its = queue.is_none_or(|queue| queue == *of || *of == 0);
            *pid == call.pid && is_its && pending.start_ns < call.start_ns
        });
        let mut done: Vec<_> = done.collect();
        done.sort_by_key(|(key, _)| *key);
        for (key, pending) in done {
            self.bounded(key, pending, Some(end_ns));
        }
    }

    /// What nobody waited for, until the recording's end.
    pub(super) fn bound_rest(&mut self) {
        let mut left: Vec<_> = self.bounds.queues.drain().collect();
        left.sort_by_key(|(key, _)| *key);
        for (key, pending) in left {
            self.bounded(key, pending, None);
        }
    }

    fn bounded(&mut self, (pid, queue): (u32, u64), pending: Pending, end: Option<u64>) {
        let mut args = Args::new();
        args.text(
            "estimated",
            "the device was at work at some time between the first launch and the end of the wait",
        );
        args.number("launches", pending.launches);
        if end.is_none() {
            args.text("end", "no wait was seen");
        }
        let end = end.unwrap_or(self.last_ns).max(pending.start_ns);
        let work = self.name(&pending.names.join(", "));
        *self.bounded_of.entry(pid).or_default() += 1;
        let Some(track) = self.track(Key::Bounds { pid, queue }) else {
            return self.out.losses.add(LossKind::SpansRefused, 1);
        };
        let name = self.name("between launch and wait");
        let mut event = self.span(name, "estimated", track, (pending.start_ns, end));
        event.quality = Quality::Bounded;
        event.work = work;
        self.push(&Span { event, depth: 0 }, &args);
    }
}
