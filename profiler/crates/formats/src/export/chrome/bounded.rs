//! Devices that tell nothing: between which calls they must have been at work.
//!
//! Without activity records all that is known of an AIU's kernels is that they ran
//! after their launch and before the end of the call that waited for them. That is
//! drawn as such, on rows that say so: never as if the device had been busy all
//! that time.

use super::{
    Survey,
    json::Object,
    lanes::{Group, Row, Span},
};
use aiprof_analysis::{
    aiu,
    correlate::{FinishedCall, Launch},
};
use aiprof_model::probes::{CallKind, role};
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

/// Follows launches and waits of processes without records.
#[derive(Debug, Default)]
pub(super) struct Bounded {
    /// By process and queue, 0 if it is not known.
    queues: FxHashMap<(u32, u64), Pending>,
}

impl Bounded {
    /// Takes a launch in. False: there is no room for it.
    pub(super) fn launch(&mut self, survey: &Survey, launch: &Launch, name: &str) -> bool {
        let is_work = match launch.kind {
            CallKind::Launch | CallKind::Submit => true,
            // Copies of the C interface tell no queue, and return when they are done.
            CallKind::Copy | CallKind::Fill => launch.queue != 0,
            _ => false,
        };
        if *launch.api != *aiu::API || !is_work || survey.recorded.contains(&launch.pid) {
            return true;
        }
        let key = (launch.pid, launch.queue);
        if self.queues.len() >= MAX_QUEUES && !self.queues.contains_key(&key) {
            return false;
        }
        let pending = self.queues.entry(key).or_insert_with(|| Pending {
            start_ns: launch.start_ns,
            launches: 0,
            names: Vec::new(),
        });
        pending.start_ns = pending.start_ns.min(launch.start_ns);
        pending.launches += 1;
        let is_new = !pending.names.iter().any(|known| known == name);
        if is_new && pending.names.len() < MAX_NAMES {
            pending.names.push(name.to_owned());
        }
        true
    }

    /// A call is over: the work that it waited for.
    pub(super) fn call(&mut self, survey: &Survey, call: &FinishedCall) -> Vec<Span<'static>> {
        let waits = call.probe.kind == CallKind::Synchronize && call.succeeded() != Some(false);
        let Some(end_ns) = call.end_ns.filter(|_| waits && !self.queues.is_empty()) else {
            return Vec::new();
        };
        if call.probe.api != aiu::API {
            return Vec::new();
        }
        let queue = call
            .probe
            .slot(role::QUEUE)
            .and_then(|slot| call.value(slot));
        let done = self.queues.extract_if(|(pid, of), pending| {
            let is_its = queue.is_none_or(|queue| queue == *of || *of == 0);
            *pid == call.pid && is_its && pending.start_ns < call.start_ns
        });
        let mut done: Vec<_> = done.collect();
        done.sort_by_key(|(key, _)| *key);
        let spans = done.into_iter();
        spans
            .map(|(key, pending)| pending.span(survey, key, Some(end_ns)))
            .collect()
    }

    /// What nobody waited for, until the recording's end.
    pub(super) fn finish(&mut self, survey: &Survey) -> Vec<Span<'static>> {
        let mut left: Vec<_> = self.queues.drain().collect();
        left.sort_by_key(|(key, _)| *key);
        let spans = left.into_iter();
        spans
            .map(|(key, pending)| pending.span(survey, key, None))
            .collect()
    }
}

impl Pending {
    fn span(self, survey: &Survey, (pid, queue): (u32, u64), end: Option<u64>) -> Span<'static> {
        let mut args = Object::new();
        args.text(
            "estimated",
            "the device was at work at some time between the first launch and the end of the wait",
        );
        args.number("launches", self.launches);
        args.text("work", &self.names.join(", "));
        if end.is_none() {
            args.text("end", "no wait was seen");
        }
        let process = survey.processes.get(&pid).map_or("process", |name| name);
        let end = end.unwrap_or_else(|| survey.end_ns());
        Span {
            row: Row {
                group: Group::Named(format!("AIU of {process} {pid}, estimated from calls")),
                name: match queue {
                    0 => "queue not known".to_owned(),
                    queue => format!("queue {queue:#x}"),
                },
            },
            name: "between launch and wait",
            category: "estimated",
            times: (self.start_ns, end.max(self.start_ns)),
            args,
            flow: None,
        }
    }
}
