//! Samples added up by thread and stack, and what their stacks consist of.

use super::{Code, Limits, SpecialCode, each_code, numbers::Interner};
use aiprof_common::{FLAG_KERNEL_FAILED, FLAG_KERNEL_TRUNCATED, FLAG_PYTHON_CUT};
use aiprof_model::{
    labels::LabelSet,
    process::{Process, ProcessTable},
    profile::{LossKind, Losses},
    wire::Sample,
};
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// What samples are added up by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SampleKey {
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) comm: u32,
    pub(super) thread: u32,
    pub(super) cgroup: u64,
    /// [`LabelSet::id`] of the process.
    pub(super) labels: u64,
    pub(super) stack: u32,
    /// The CPU where samples stand for another time on each, else 0.
    pub(super) cpu: u32,
}

/// What samples of one key add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SampleValue {
    /// Samples, or launches.
    pub(super) count: u64,
    /// On-CPU time, or time in calls, nanoseconds; before
    /// [`Aggregator::complete`](super::Aggregator::complete) the period of hardware counters.
    pub(super) time_ns: u64,
    /// Bytes moved by launches.
    pub(super) bytes: u64,
}

/// The samples of a window, within limits.
#[derive(Default)]
pub(super) struct SampleTable {
    pub(super) limits: Limits,
    pub(super) codes: Interner<Code>,
    pub(super) names: Interner<String>,
    pub(super) stacks: Interner<Rc<[u32]>>,
    stack_frames: usize,
    pub(super) samples: FxHashMap<SampleKey, SampleValue>,
    /// The labels of the processes of samples: they may become known later.
    pub(super) labels: FxHashMap<u64, Rc<LabelSet>>,
}

impl SampleTable {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// A name by its handle.
    pub(super) fn name(&self, id: u32) -> &str {
        self.names
            .values
            .get(id as usize)
            .map_or("", String::as_str)
    }

    /// Whether there are too many codes.
    pub(super) fn has_all_codes(&self) -> bool {
        self.codes.values.len() > self.limits.codes
    }

    /// Whether there are too many codes or names: checked before anything of a refused sample
    /// is kept.
    pub(super) fn is_full(&self) -> bool {
        self.has_all_codes() || self.names.values.len() > self.limits.samples
    }

    /// Whether there is no room for samples of a new key.
    pub(super) fn refuses(&self, key: &SampleKey) -> bool {
        self.samples.len() >= self.limits.samples && !self.samples.contains_key(key)
    }

    /// The number of a process's labels, which are kept to be looked at when all are known.
    pub(super) fn labels_of(&mut self, process: Option<&Process>) -> u64 {
        let Some(process) = process else {
            return 0;
        };
        let set = &process.labels;
        if self.labels.len() < self.limits.samples || self.labels.contains_key(&set.id) {
            self.labels.entry(set.id).or_insert_with(|| Rc::clone(set));
        }
        set.id
    }

    /// Adds a value to a key's.
    pub(super) fn add(&mut self, key: SampleKey, value: SampleValue, losses: &mut Losses) {
        if self.refuses(&key) {
            losses.add(LossKind::TableFull, 1);
            return;
        }
        let sum = self.samples.entry(key).or_default();
        sum.count = sum.count.saturating_add(value.count);
        sum.time_ns = sum.time_ns.saturating_add(value.time_ns);
        sum.bytes = sum.bytes.saturating_add(value.bytes);
    }

    /// The stack as code handles, leaf first.
    pub(super) fn stack_codes(
        &mut self,
        processes: &ProcessTable,
        process: Option<&Process>,
        sample: &Sample,
        losses: &mut Losses,
    ) -> Vec<u32> {
        let mut codes = Vec::with_capacity(sample.kernel.len() + sample.user.len() + 1);
        for (flag, loss) in [
            (FLAG_KERNEL_FAILED, LossKind::KernelStackFailed),
            (FLAG_KERNEL_TRUNCATED, LossKind::KernelStackTruncated),
            (FLAG_PYTHON_CUT, LossKind::PythonFramesCut),
        ] {
            if sample.flags & flag != 0 {
                losses.add(loss, 1);
            }
        }
        each_code(processes, process, sample, |code| {
            match code {
                Code::Special(SpecialCode::PythonApart) => {
                    losses.add(LossKind::PythonFramesApart, 1);
                }
                Code::Special(SpecialCode::UnknownPython) => {
                    losses.add(LossKind::PythonFramesUnnamed, 1);
                }
                _ => {}
            }
            codes.push(self.codes.intern(code));
        });
        codes
    }

    /// A stack's handle; `None`: there is no room for it.
    pub(super) fn intern_stack(&mut self, codes: &[u32]) -> Option<u32> {
        if let Some(&known) = self.stacks.index.get(codes) {
            return Some(known);
        }
        if self.stack_frames + codes.len() > self.limits.stack_frames {
            return None;
        }
        self.stack_frames += codes.len();
        Some(self.stacks.intern(codes.into()))
    }
}
