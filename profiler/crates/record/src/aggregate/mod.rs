//! Events to an aggregated, not yet symbolized profile; pure.
//!
//! Addresses are normalized as events arrive, to (file, offset), because the
//! process may be gone a moment later; names come last, for unique addresses
//! only. The same code runs live and on a capture.

mod aiu;
mod calls;
mod code;
mod device_kernels;
mod device_rows;
mod devices;
mod driver;
mod finish;
mod modules;
mod ops;
mod python;
mod slices;
mod waits;

pub use calls::NoStack;
pub(crate) use code::each_code;
pub use code::{Code, CodeId, SpecialCode};
pub use device_kernels::{DeviceKernel, ReasonCounts};
pub use finish::{Names, NoNames, build_profile, build_profiles};
pub(crate) use finish::{ends_at_entry, unknown_name};
pub(crate) use modules::ModuleArrivals;
pub use waits::WaitOptions;

use crate::correlate::Tracked;
use crate::ops::OpsInbox;
use crate::recording::{Before, RecordingSink};
use aiprof_common::{FLAG_KERNEL_FAILED, FLAG_KERNEL_TRUNCATED, FLAG_PYTHON_CUT};
use aiprof_model::{
    labels::LabelSet,
    process::{Process, ProcessTable},
    profile::{LossKind, Losses},
    wire::{Event, Sample, WaitReason},
};
use rustc_hash::FxHashMap;
use std::hash::Hash;
use std::io;
use std::rc::Rc;

/// What samples are added up by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SampleKey {
    pid: u32,
    tid: u32,
    comm: u32,
    thread: u32,
    cgroup: u64,
    /// [`LabelSet::id`] of the process.
    labels: u64,
    stack: u32,
    /// The CPU where samples weigh differently on each, else 0.
    cpu: u32,
}

/// Most times of samples kept of processes whose code changes at known times: 8 MiB.
const MAX_TIMES: usize = 1 << 20;

/// Limits of an [`Aggregator`]; what is beyond them is counted as lost.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most unique code addresses.
    pub codes: usize,
    /// Most frames held by all unique stacks together.
    pub stack_frames: usize,
    /// Most distinct (thread, stack) pairs.
    pub samples: usize,
}

impl Default for Limits {
    /// About 64 MiB when all are reached.
    fn default() -> Self {
        Self {
            codes: 1 << 20,
            stack_frames: 4 << 20,
            samples: 1 << 19,
        }
    }
}

/// A table of unique values with dense handles.
struct Interner<T> {
    values: Vec<T>,
    index: FxHashMap<T, u32>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            index: FxHashMap::default(),
        }
    }
}

impl<T: Clone + Eq + Hash> Interner<T> {
    fn intern(&mut self, value: T) -> u32 {
        if let Some(&known) = self.index.get(&value) {
            return known;
        }
        let id = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        self.values.push(value.clone());
        self.index.insert(value, id);
        id
    }

    /// Adds a value even if an equal one exists.
    fn push(&mut self, value: T) -> u32 {
        let id = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        self.values.push(value);
        id
    }
}

/// How samples are turned into time and which are kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weighting {
    /// On-CPU nanoseconds of one sample. 0: samples are of a hardware counter,
    /// whose period is no time; each gets its share, by period, of its CPU's
    /// busy time (see [`Aggregator::complete`]).
    pub period_ns: u64,
}

/// What samples of one key weigh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Weigh {
    /// Samples, or launches.
    count: u64,
    /// On-CPU time, or time in calls, nanoseconds; before [`Aggregator::complete`]
    /// the period of hardware counters.
    time_ns: u64,
    /// Bytes moved by launches.
    bytes: u64,
}

/// How launches and calls are added up instead of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchOptions {
    /// The time in calls is wanted: a call of unknown length is a loss.
    pub timed: bool,
}

/// Adds samples up.
#[derive(Default)]
pub struct Aggregator {
    limits: Limits,
    weighting: Weighting,
    codes: Interner<Code>,
    names: Interner<String>,
    stacks: Interner<Rc<[u32]>>,
    stack_frames: usize,
    samples: FxHashMap<SampleKey, Weigh>,
    /// When samples were taken, of processes that report when their code changed. Samples beyond
    /// [`MAX_TIMES`] are named by what was there last.
    times: FxHashMap<SampleKey, Vec<u64>>,
    times_kept: usize,
    /// Keep the times of all samples, for slices.
    keeps_times: bool,
    /// Samples of processes that are to report their operators.
    ops_inbox: OpsInbox<ops::AddedSample>,
    /// The labels of the processes of samples: they may become known later.
    labels: FxHashMap<u64, Rc<LabelSet>>,
    /// Labels of all that is recorded.
    recording_labels: LabelSet,
    /// Number and time of calls. A profile of calls has no CPU samples.
    calls: Option<Box<calls::Calls>>,
    /// The frames of drivers are left out between launches and devices.
    no_driver_frames: bool,
    /// Another one has the same events: it counts what was lost of processes and operators.
    is_beside: bool,
    /// Waits are added up.
    waits: Option<Box<waits::Waits>>,
    /// What was lost.
    pub losses: Losses,
    /// Samples, or launches, taken in, also those without a stack.
    pub taken: u64,
}

impl Aggregator {
    /// An empty one.
    pub fn new(weighting: Weighting, limits: Limits) -> Self {
        Self {
            limits,
            weighting,
            ..Self::default()
        }
    }

    /// From now on samples stand for another time. What was added up keeps its own.
    pub fn set_period(&mut self, period_ns: u64) {
        self.weighting.period_ns = period_ns;
    }

    /// Whether launches and calls are counted instead of CPU samples.
    fn counts_launches(&self) -> bool {
        self.calls
            .as_ref()
            .is_some_and(|calls| calls.devices.is_none())
    }

    /// Unique codes from handle `from` on: what has no name yet.
    pub fn codes_from(&self, from: usize) -> &[Code] {
        self.codes.values.get(from..).unwrap_or_default()
    }

    /// Ids of the control groups of the samples, each once.
    pub fn cgroups(&self) -> impl Iterator<Item = u64> {
        let ids: std::collections::BTreeSet<u64> = self.samples.keys().map(|k| k.cgroup).collect();
        ids.into_iter()
    }

    /// Adds what is only known at the end of a window, before its profile is built.
    ///
    /// Turns the periods of hardware-counter samples into time: every CPU's busy
    /// nanoseconds are shared out among its samples by their periods. A CPU that
    /// is not in `busy` gives its samples `fallback_ns` each. Nothing is shared out
    /// where samples stand for a fixed time.
    pub fn complete(&mut self, busy: &std::collections::BTreeMap<u32, u64>, fallback_ns: u64) {
        if self.weighting.period_ns != 0 || self.counts_launches() {
            return;
        }
        let mut totals: FxHashMap<u32, u128> = FxHashMap::default();
        for (key, weight) in &self.samples {
            *totals.entry(key.cpu).or_default() += u128::from(weight.time_ns);
        }
        for (key, weight) in &mut self.samples {
            let total = totals.get(&key.cpu).copied().unwrap_or(0);
            weight.time_ns = match busy.get(&key.cpu) {
                Some(&busy) if total > 0 => {
                    u64::try_from(u128::from(weight.time_ns) * u128::from(busy) / total)
                        .unwrap_or(u64::MAX)
                }
                _ => weight.count.saturating_mul(fallback_ns),
            };
        }
    }

    /// Forgets all samples (a new window), and the codes and stacks with them.
    pub fn reset(&mut self) {
        // Not cleared: what one busy window took must not stay with all others.
        self.codes = Interner::default();
        self.names = Interner::default();
        self.stacks = Interner::default();
        self.stack_frames = 0;
        self.samples = FxHashMap::default();
        self.times = FxHashMap::default();
        self.times_kept = 0;
        self.ops_inbox = OpsInbox::default();
        self.labels = FxHashMap::default();
        self.losses = Losses::default();
        self.taken = 0;
        if let Some(calls) = &mut self.calls {
            calls.reset();
        }
    }

    fn sample(&mut self, before: Before<'_>, sample: &Sample) {
        let processes = before.processes;
        let spins = self.waits.is_some() && before.tracker.is_waiting(sample.thread.tid);
        if !spins && self.waits.as_ref().is_some_and(|waits| !waits.options.wall) {
            return;
        }
        self.taken += 1;
        if self.codes.values.len() > self.limits.codes
            || self.names.values.len() > self.limits.samples
        {
            // Before anything of a refused sample is kept.
            self.losses.add(LossKind::TableFull, 1);
            return;
        }
        let process = processes.get(sample.thread.pid);
        let mut codes = self.stack_codes(processes, process, sample);
        if spins {
            codes.insert(0, self.codes.intern(Code::Wait(WaitReason::Accelerator)));
        }
        let Some(stack) = self.intern_stack(&codes) else {
            self.losses.add(LossKind::TableFull, 1);
            return;
        };
        let comm = process.map(|p| p.comm.as_str()).filter(|c| !c.is_empty());
        let key = SampleKey {
            pid: sample.thread.pid,
            tid: sample.thread.tid,
            comm: self
                .names
                .intern(comm.unwrap_or(&sample.thread.comm).to_owned()),
            thread: self.names.intern(sample.thread.comm.clone()),
            cgroup: sample.cgroup,
            labels: self.labels_of(process),
            stack,
            cpu: if self.weighting.period_ns == 0 {
                sample.cpu
            } else {
                0
            },
        };
        let time = match self.weighting.period_ns {
            0 => sample.period,
            fixed => fixed,
        };
        let weight = Weigh {
            count: 1,
            time_ns: time,
            bytes: 0,
        };
        let has_dump = process.is_some_and(|p| p.space.generated.dump.is_some());
        self.note_time(&key, has_dump, sample.time_ns);
        let thread = (sample.thread.pid, sample.thread.tid);
        self.ops_inbox.stack(thread, sample.time_ns, || {
            let key = key.clone();
            ops::AddedSample {
                key,
                weight,
                time_ns: sample.time_ns,
            }
        });
        self.weigh(key, weight);
    }

    /// The number of a process's labels, which are kept to be looked at when all are known.
    fn labels_of(&mut self, process: Option<&Process>) -> u64 {
        let Some(process) = process else {
            return 0;
        };
        let set = &process.labels;
        if self.labels.len() < self.limits.samples || self.labels.contains_key(&set.id) {
            self.labels.entry(set.id).or_insert_with(|| Rc::clone(set));
        }
        set.id
    }

    /// Adds a weight to a key's.
    fn weigh(&mut self, key: SampleKey, weight: Weigh) {
        if self.samples.len() >= self.limits.samples && !self.samples.contains_key(&key) {
            self.losses.add(LossKind::TableFull, 1);
            return;
        }
        let sum = self.samples.entry(key).or_default();
        sum.count = sum.count.saturating_add(weight.count);
        sum.time_ns = sum.time_ns.saturating_add(weight.time_ns);
        sum.bytes = sum.bytes.saturating_add(weight.bytes);
    }

    /// The stack as code handles, leaf first.
    fn stack_codes(
        &mut self,
        processes: &ProcessTable,
        process: Option<&Process>,
        sample: &Sample,
    ) -> Vec<u32> {
        let mut codes = Vec::with_capacity(sample.kernel.len() + sample.user.len() + 1);
        if sample.flags & FLAG_KERNEL_FAILED != 0 {
            self.losses.add(LossKind::KernelStackFailed, 1);
        }
        if sample.flags & FLAG_KERNEL_TRUNCATED != 0 {
            self.losses.add(LossKind::KernelStackTruncated, 1);
        }
        if sample.flags & FLAG_PYTHON_CUT != 0 {
            self.losses.add(LossKind::PythonFramesCut, 1);
        }
        each_code(processes, process, sample, |code| {
            match code {
                Code::Special(SpecialCode::PythonApart) => {
                    self.losses.add(LossKind::PythonFramesApart, 1);
                }
                Code::Special(SpecialCode::UnknownPython) => {
                    self.losses.add(LossKind::PythonFramesUnnamed, 1);
                }
                _ => {}
            }
            codes.push(self.codes.intern(code));
        });
        codes
    }

    fn intern_stack(&mut self, codes: &[u32]) -> Option<u32> {
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

impl RecordingSink for Aggregator {
    fn event(&mut self, before: Before<'_>, event: &Event) -> io::Result<()> {
        let processes = before.processes;
        self.note_for_calls(event);
        match event {
            Event::Process(event) => {
                if let Some((kind, count)) = event.kind.loss()
                    && !self.is_beside
                {
                    self.losses.add(kind, count);
                }
            }
            Event::Sample(sample) if !self.counts_launches() => self.sample(before, sample),
            Event::CallStack(stack) => {
                if self.calls.is_some() {
                    self.take_stack(processes, stack);
                }
                if self.waits.is_some() {
                    self.take_wait_stack(processes, stack);
                } else if self.calls.is_none() {
                    self.note_codes(processes, stack);
                }
            }
            Event::Wait(wait) => self.wait(processes, wait),
            Event::Ops(ops) if !self.is_beside => self.ops(ops),
            Event::Labels(labels) if labels.pid == 0 => self.recording_labels.add(&labels.labels),
            _ => {}
        }
        Ok(())
    }

    fn found(&mut self, processes: &ProcessTable, found: &Tracked<'_>) {
        self.take_found(processes, found);
    }

    fn damaged(&mut self) {
        if !self.is_beside {
            self.losses.add(LossKind::Undecodable, 1);
        }
    }
}

#[cfg(test)]
mod call_tests;
#[cfg(test)]
mod driver_tests;
#[cfg(test)]
mod generated_tests;
#[cfg(test)]
mod tests;
