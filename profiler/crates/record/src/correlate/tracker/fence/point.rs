//! What a tracepoint means, by its name and the fields that this kernel gives it.
//!
//! Until Linux 6.15 the tracepoints of jobs are `drm_sched_job`, `drm_run_job` and
//! `drm_sched_process_job`, which have the address of the job's fence. Since then they are
//! `drm_sched_job_queue`, `_run` and `_done`, which have its context and number.

use super::SubmissionSource;
use aiprof_model::wire::{Trace, TracePoint};

/// What a tracepoint means for a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// It was submitted.
    Begin,
    /// It was handed to the hardware's queue.
    Start,
    /// It is done.
    End,
    /// Its fence is released; if that was not signalled, it never will be.
    Gone,
}

/// Identifies a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Key {
    /// Context and number of a driver's fence.
    Fence(u64, u64),
    /// Those of a job's.
    Job(u64, u64),
    /// Address of a job's fence.
    Address(u64),
}

impl Key {
    pub(super) fn source(self) -> SubmissionSource {
        match self {
            Self::Fence(..) => SubmissionSource::Fence,
            Self::Job(..) | Self::Address(_) => SubmissionSource::Job,
        }
    }

    /// Context and number, 0 where they are not known.
    pub(super) fn numbers(self) -> (u64, u64) {
        match self {
            Self::Fence(context, seqno) | Self::Job(context, seqno) => (context, seqno),
            Self::Address(_) => (0, 0),
        }
    }
}

/// Where a key's parts are.
#[derive(Clone, Copy, Debug)]
enum KeySlots {
    Fence(usize, usize),
    Job(usize, usize),
    Address(usize),
}

/// A tracepoint that reports submissions.
#[derive(Clone, Debug)]
pub(super) struct SubmissionPoint {
    pub(super) meaning: Meaning,
    key: KeySlots,
    client: Option<usize>,
    number: Option<usize>,
    driver: Option<usize>,
    device: Option<usize>,
    queue: Option<usize>,
}

/// The tracepoints that are known.
const MEANINGS: [(&str, &str, Meaning); 10] = [
    ("dma_fence", "dma_fence_init", Meaning::Begin),
    ("dma_fence", "dma_fence_emit", Meaning::Start),
    ("dma_fence", "dma_fence_signaled", Meaning::End),
    ("dma_fence", "dma_fence_destroy", Meaning::Gone),
    ("gpu_scheduler", "drm_sched_job_queue", Meaning::Begin),
    ("gpu_scheduler", "drm_sched_job_run", Meaning::Start),
    ("gpu_scheduler", "drm_sched_job_done", Meaning::End),
    ("gpu_scheduler", "drm_sched_job", Meaning::Begin),
    ("gpu_scheduler", "drm_run_job", Meaning::Start),
    ("gpu_scheduler", "drm_sched_process_job", Meaning::End),
];

fn meaning(point: &TracePoint) -> Option<Meaning> {
    let mut known = MEANINGS.iter();
    let found =
        known.find(|(category, name, _)| point.category == *category && point.name == *name);
    found.map(|(.., meaning)| *meaning)
}

/// Whether the process that submits work hits this tracepoint. Hits by other processes
/// may be left out of a recording. Ends of work may not: any process or interrupt can
/// report them.
pub fn begins(point: &TracePoint) -> bool {
    meaning(point) == Some(Meaning::Begin)
}

impl SubmissionPoint {
    /// `None` if it reports nothing of interest, or has no key for its submission.
    pub(super) fn of(point: &TracePoint) -> Option<Self> {
        let both = |a: &str, b: &str| point.value(a).zip(point.value(b));
        let key = match point.category.as_str() {
            "dma_fence" => both("context", "seqno").map(|(c, s)| KeySlots::Fence(c, s)),
            _ => both("fence_context", "fence_seqno")
                .map(|(c, s)| KeySlots::Job(c, s))
                .or_else(|| point.value("fence").map(KeySlots::Address)),
        };
        Some(Self {
            meaning: meaning(point)?,
            key: key?,
            client: point.value("client_id"),
            number: point.value("id"),
            driver: point.text("driver"),
            device: point.text("dev"),
            queue: point.text("timeline").or_else(|| point.text("name")),
        })
    }

    /// Whether it reports the ends of jobs.
    pub(super) fn ends_job(&self) -> bool {
        self.meaning == Meaning::End && !matches!(self.key, KeySlots::Fence(..))
    }

    pub(super) fn key(&self, trace: &Trace) -> Option<Key> {
        let value = |slot: usize| trace.values.get(slot).copied();
        Some(match self.key {
            KeySlots::Fence(context, seqno) => Key::Fence(value(context)?, value(seqno)?),
            KeySlots::Job(context, seqno) => Key::Job(value(context)?, value(seqno)?),
            KeySlots::Address(slot) => Key::Address(value(slot)?),
        })
    }

    /// The driver of a fence; empty for a job.
    pub(super) fn driver<'t>(&self, trace: &'t Trace) -> &'t str {
        text(trace, self.driver)
    }

    /// The device, or the driver.
    pub(super) fn device<'t>(&self, trace: &'t Trace) -> &'t str {
        text(trace, self.device.or(self.driver))
    }

    /// The timeline or ring.
    pub(super) fn queue<'t>(&self, trace: &'t Trace) -> &'t str {
        text(trace, self.queue)
    }

    pub(super) fn client(&self, trace: &Trace) -> u64 {
        self.client
            .and_then(|slot| trace.values.get(slot).copied())
            .unwrap_or(0)
    }

    /// The job's own number.
    pub(super) fn number(&self, trace: &Trace) -> Option<u64> {
        trace.values.get(self.number?).copied()
    }
}

fn text(trace: &Trace, slot: Option<usize>) -> &str {
    let text = slot.and_then(|slot| trace.texts.get(slot));
    text.map_or("", String::as_str)
}
