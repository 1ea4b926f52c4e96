//! Events to an aggregated, not yet symbolized profile; pure.
//!
//! Addresses are normalized as events arrive, to (file, offset), because the
//! process may be gone a moment later; names come last, for unique addresses
//! only. The same code runs live and on a capture.

mod aiu;
mod aiu_rows;
mod calls;
mod code;
mod device_kernels;
mod device_rows;
mod devices;
mod driver;
mod finish;
mod modules;
mod numbers;
mod ops;
mod python;
mod samples;
mod slices;
mod stacks;
mod waits;

pub use calls::NoStack;
pub(crate) use code::each_code;
pub use code::{Code, CodeId, SpecialCode};
pub use device_kernels::{DeviceKernel, ReasonCounts};
pub use finish::{NameSource, NoNames, build_profile, build_profiles};
pub(crate) use finish::{ends_at_entry, unknown_name};
pub(crate) use modules::ModuleArrivals;
pub use waits::WaitOptions;

use crate::correlate::Tracked;
use crate::ops::OpsInbox;
use crate::recording::{Recording, RecordingSink};
use aiprof_model::{
    labels::LabelSet,
    process::ProcessTable,
    profile::{LossKind, Losses},
    wire::{Event, Sample, WaitReason},
};
use rustc_hash::FxHashMap;
use samples::{SampleKey, SampleTable, SampleValue};
use std::io;

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

/// How launches and calls are added up instead of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchOptions {
    /// The time in calls is wanted: a call of unknown length is a loss.
    pub timed: bool,
}

/// Adds samples up.
#[derive(Default)]
pub struct Aggregator {
    /// On-CPU nanoseconds of one sample, or 0.
    period_ns: u64,
    table: SampleTable,
    times: slices::SampleTimes,
    /// Samples of processes that are to report their operators.
    ops_inbox: OpsInbox<ops::AddedSample>,
    /// Labels of all that is recorded.
    recording_labels: LabelSet,
    known_stacks: stacks::KnownStacks,
    /// Number and time of calls. A profile of calls has no CPU samples.
    calls: Option<Box<calls::CallSums>>,
    /// The frames of drivers are left out between launches and devices.
    no_driver_frames: bool,
    /// Another one has the same events: it counts what was lost of processes and operators.
    is_beside: bool,
    /// Waits are added up.
    waits: Option<WaitOptions>,
    /// What was lost.
    pub losses: Losses,
    /// Samples, or launches, taken in, also those without a stack.
    pub taken: u64,
}

impl Aggregator {
    /// An empty one. `period_ns`: on-CPU nanoseconds of one sample. 0: samples are of a hardware
    /// counter, whose period is no time; each gets its share, by period, of its CPU's busy time
    /// (see [`Aggregator::complete`]).
    pub fn new(period_ns: u64, limits: Limits) -> Self {
        Self {
            period_ns,
            table: SampleTable::new(limits),
            ..Self::default()
        }
    }

    /// From now on samples stand for another time. What was added up keeps its own.
    pub fn set_period(&mut self, period_ns: u64) {
        self.period_ns = period_ns;
    }

    /// Whether launches and calls are counted instead of CPU samples.
    fn counts_launches(&self) -> bool {
        self.calls
            .as_ref()
            .is_some_and(|calls| calls.devices.is_none())
    }

    /// Unique codes from handle `from` on: what has no name yet.
    pub fn codes_from(&self, from: usize) -> &[Code] {
        self.table.codes.values.get(from..).unwrap_or_default()
    }

    /// Ids of the control groups of the samples, each once.
    pub fn cgroups(&self) -> impl Iterator<Item = u64> {
        let ids: std::collections::BTreeSet<u64> =
            self.table.samples.keys().map(|k| k.cgroup).collect();
        ids.into_iter()
    }

    /// Adds what is only known at the end of a window, before its profile is built.
    ///
    /// Turns the periods of hardware-counter samples into time: every CPU's busy
    /// nanoseconds are shared out among its samples by their periods. A CPU that
    /// is not in `busy` gives its samples `fallback_ns` each. Nothing is shared out
    /// where samples stand for a fixed time.
    pub fn complete(&mut self, busy: &std::collections::BTreeMap<u32, u64>, fallback_ns: u64) {
        if self.period_ns != 0 || self.counts_launches() {
            return;
        }
        let mut totals: FxHashMap<u32, u128> = FxHashMap::default();
        for (key, value) in &self.table.samples {
            *totals.entry(key.cpu).or_default() += u128::from(value.time_ns);
        }
        for (key, value) in &mut self.table.samples {
            let total = totals.get(&key.cpu).copied().unwrap_or(0);
            value.time_ns = match busy.get(&key.cpu) {
                Some(&busy) if total > 0 => {
                    u64::try_from(u128::from(value.time_ns) * u128::from(busy) / total)
                        .unwrap_or(u64::MAX)
                }
                _ => value.count.saturating_mul(fallback_ns),
            };
        }
    }

    /// Forgets all samples (a new window), and the codes and stacks with them.
    pub fn reset(&mut self) {
        // Not cleared: what one busy window took must not stay with all others.
        self.table = SampleTable::new(self.table.limits);
        self.times.forget();
        self.ops_inbox = OpsInbox::default();
        self.losses = Losses::default();
        self.taken = 0;
        if let Some(calls) = &mut self.calls {
            calls.reset();
        }
    }

    fn sample(&mut self, before: &Recording, sample: &Sample) {
        let processes = &before.processes;
        let is_polling = self.waits.is_some() && before.tracker().is_waiting(sample.thread.tid);
        if !is_polling && self.waits.is_some_and(|options| !options.wall) {
            return;
        }
        self.taken += 1;
        let table = &mut self.table;
        if table.is_full() {
            self.losses.add(LossKind::TableFull, 1);
            return;
        }
        let process = processes.get(sample.thread.pid);
        let mut codes = table.stack_codes(processes, process, sample, &mut self.losses);
        if is_polling {
            codes.insert(0, table.codes.intern(Code::Wait(WaitReason::Accelerator)));
        }
        let Some(stack) = table.intern_stack(&codes) else {
            self.losses.add(LossKind::TableFull, 1);
            return;
        };
        let comm = process.map(|p| p.comm.as_str()).filter(|c| !c.is_empty());
        let comm = comm.unwrap_or(&sample.thread.comm).to_owned();
        let (cpu, time_ns) = match self.period_ns {
            0 => (sample.cpu, sample.period),
            fixed => (0, fixed),
        };
        let key = SampleKey {
            pid: sample.thread.pid,
            tid: sample.thread.tid,
            comm: table.names.intern(comm),
            thread: table.names.intern(sample.thread.comm.clone()),
            cgroup: sample.cgroup,
            labels: table.labels_of(process),
            stack,
            cpu,
        };
        let value = SampleValue {
            count: 1,
            time_ns,
            bytes: 0,
        };
        let has_dump = process.is_some_and(|p| p.space.generated.dump.is_some());
        self.times.note(&key, has_dump, sample.time_ns);
        let thread = (sample.thread.pid, sample.thread.tid);
        self.ops_inbox
            .stack(thread, sample.time_ns, || ops::AddedSample {
                key: key.clone(),
                value,
                time_ns: sample.time_ns,
            });
        table.add(key, value, &mut self.losses);
    }
}

impl RecordingSink for Aggregator {
    fn event(&mut self, before: &Recording, event: &Event) -> io::Result<()> {
        let processes = &before.processes;
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
            Event::CallStack(stack) if self.calls.is_some() || self.waits.is_some() => {
                self.keep_stack(processes, stack);
            }
            Event::CallStack(stack) => self.note_codes(processes, stack),
            Event::Wait(wait) => self.wait(processes, wait),
            Event::Ops(ops) if !self.is_beside => self.ops(ops),
            Event::Labels(labels) if labels.pid == 0 => self.recording_labels.add(&labels.labels),
            _ => {}
        }
        Ok(())
    }

    fn found(&mut self, processes: &ProcessTable, found: &Tracked<'_>) {
        self.add_found(processes, found);
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
