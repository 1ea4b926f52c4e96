//! Jobs that hold several passes through the model, such as one file of a whole run. Each
//! pass is a job of its own, so that it gets its own table.

use super::ideal::Phase;
use super::{CompilerInfo, JobKey, KernelCall, events};
use crate::analyze::iterations::{self, Period};
use crate::analyze::messages::{Level, Messages};
use crate::analyze::token_times::{Step, StepKind};
use aiprof_model::timeline::{Event, Id, Kinds, Timeline};
use rustc_hash::FxHashMap;

/// Which pass kernels are part of.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// Begins and ends of each row group's iterations, by time.
    iterations: FxHashMap<Id, Vec<(f64, f64)>>,
    /// Calls of each job without launches of its own.
    calls: FxHashMap<(Id, u32), usize>,
    /// A job with more calls is several passes.
    most: usize,
}

impl Parts {
    /// Finds what repeats, where it is as long as some table: what repeats within one pass,
    /// such as a layer, is no pass.
    pub(super) fn new(
        timeline: &Timeline,
        kinds: &Kinds,
        kernels: &[usize],
        info: &CompilerInfo,
    ) -> Self {
        let Some((least, most)) = info.rows() else {
            return Self::default();
        };
        let mut calls: FxHashMap<(Id, u32), usize> = FxHashMap::default();
        for event in kernels
            .iter()
            .filter_map(|index| timeline.events.get(*index))
        {
            if event.correlation == 0 {
                *calls
                    .entry((timeline.pid(event), timeline.job(event)))
                    .or_default() += 1;
            }
        }
        if calls.values().all(|count| *count <= most) {
            return Self::default();
        }
        let mut unsaid = Messages::new(Level::Error);
        let found = iterations::run(timeline, kinds, Period::Smallest, &mut unsaid);
        let is_pass = |len: usize| 10 * len >= 8 * least && len <= most;
        let iterations = found.iter().filter(|one| is_pass(one.sequence.len()));
        let iterations = iterations.map(|one| {
            let spans = one.list.iter().map(|one| (one.start_us, one.end_us));
            (one.pid, spans.collect())
        });
        Self {
            iterations: iterations.collect(),
            calls,
            most,
        }
    }

    /// The call of an event, with its pass.
    pub(super) fn call_of<'t>(&self, timeline: &'t Timeline, event: &Event) -> KernelCall<'t> {
        let mut call = events::call_of(timeline, event);
        let calls = self
            .calls
            .get(&(timeline.pid(event), timeline.job(event)))
            .copied()
            .unwrap_or(0);
        if event.correlation == 0
            && calls > self.most
            && let Some(spans) = self.iterations.get(&timeline.pid(event))
        {
            // Odd: in an iteration; even: before the first, or between two.
            let begun = spans.partition_point(|span| span.0 <= event.ts());
            let last = begun.checked_sub(1).and_then(|last| spans.get(last));
            let is_inside = last.is_some_and(|span| event.ts() < span.1);
            call.part = u32::try_from(2 * begun + 1 - usize::from(is_inside)).unwrap_or(u32::MAX);
        }
        call
    }
}

/// The steps of a model, by the phases of tables.
#[derive(Debug, Default)]
pub(super) struct Steps {
    places: FxHashMap<(Id, JobKey), usize>,
    /// Steps, their kernels, and the rows of their tables.
    steps: Vec<(Step, usize, usize)>,
}

impl Steps {
    /// Adds a kernel.
    pub(super) fn add(
        &mut self,
        timeline: &Timeline,
        event: &Event,
        phase: Option<(JobKey, Phase, usize)>,
    ) {
        let Some((key, phase, rows)) = phase else {
            return;
        };
        let kind = match phase {
            Phase::Ttft => StepKind::Prefill,
            Phase::Itl => StepKind::Decode,
            Phase::Unknown => return,
        };
        let next = self.steps.len();
        let place = *self
            .places
            .entry((timeline.pid(event), key))
            .or_insert(next);
        if place == next {
            let step = Step {
                pid: timeline.pid(event),
                rank: timeline.rank(event),
                kind,
                start_us: event.ts(),
                end_us: event.end_us(),
                is_apart: false,
            };
            self.steps.push((step, 0, rows));
        }
        if let Some((step, kernels, _)) = self.steps.get_mut(place) {
            step.start_us = step.start_us.min(event.ts());
            step.end_us = step.end_us.max(event.end_us());
            *kernels += 1;
        }
    }

    /// The steps by row group and time; none if some job holds more kernels than its table,
    /// for it is no step.
    pub(super) fn finish(self) -> Vec<Step> {
        if self.steps.iter().any(|(_, kernels, rows)| kernels > rows) {
            return Vec::new();
        }
        let mut steps: Vec<Step> = self.steps.into_iter().map(|(step, ..)| step).collect();
        steps.sort_by(|a, b| a.pid.cmp(&b.pid).then(a.start_us.total_cmp(&b.start_us)));
        steps
    }
}

#[cfg(test)]
#[path = "parts_tests.rs"]
mod tests;
