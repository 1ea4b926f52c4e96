//! Events to an aggregated, not yet symbolized profile; pure.
//!
//! Addresses are normalized as events arrive, to (file, offset), because the
//! process may be gone a moment later; names come last, for unique addresses
//! only. The same code runs live and on a capture.

mod aiu;
mod calls;
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
pub use device_kernels::{DeviceKernel, ReasonCounts};
pub use finish::{Names, NoNames, build_profile, build_profiles};
pub(crate) use finish::{ends_at_entry, unknown_name};
pub(crate) use modules::ModuleArrivals;
pub use waits::WaitOptions;

use crate::correlate::Tracked;
use crate::ops::OpsInbox;
use crate::recording::{Before, RecordingSink};
use aiprof_common::{
    ADDR_EXACT, ADDR_GUESSED, ADDR_MIDDLE, FLAG_KERNEL_FAILED, FLAG_KERNEL_TRUNCATED,
    FLAG_PYTHON_CUT, JsFunction, is_caller_guessed, java_method,
};
use aiprof_model::{
    labels::LabelSet,
    process::{FileId, Process, ProcessTable, Region, Runtime, Space},
    profile::{LossKind, Losses},
    wire::{Event, Sample, StopReason, WaitReason},
};
use python::Placed;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::hash::Hash;
use std::io;
use std::rc::Rc;

/// A normalized code address: what gets a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Code {
    /// In a file, by offset in the file.
    File {
        /// Handle in the process table's file table.
        file: u32,
        /// Offset in the file.
        offset: u64,
    },
    /// In the kernel.
    Kernel {
        /// Absolute address.
        address: u64,
    },
    /// In memory without a file: code generated at run time.
    Jit {
        /// Process id.
        pid: u32,
        /// Absolute address.
        address: u64,
    },
    /// In a region the kernel provides, or in none known.
    Special(SpecialCode),
    /// Not an address: the walk of the stack ended here for this reason.
    Cut(StopReason),
    /// A probed function, by its table's name.
    Function {
        /// Handle of the name in the aggregator.
        name: u32,
    },
    /// What follows is done by a device.
    Device,
    /// A kernel, or an operation, of a device.
    Work {
        /// Handle of the name in the aggregator.
        name: u32,
    },
    /// A call whose stack is not known.
    NoStack(NoStack),
    /// A frame of an interpreter.
    Python {
        /// Handle of the function in the process table's scripts.
        function: u32,
        /// Line that it is at.
        line: u32,
    },
    /// Not an address: what the thread waited for.
    Wait(WaitReason),
    /// The walk of the stack ended here for this reason, in code of this runtime.
    CutIn(StopReason, Runtime),
    /// Code generated at run time, as it was since this time.
    JitSince {
        /// Process id.
        pid: u32,
        /// Absolute address.
        address: u64,
        /// `CLOCK_MONOTONIC` nanoseconds; 0: before what is known.
        since: u64,
    },
    /// A method of Java that HotSpot's interpreter runs.
    JavaMethod {
        /// Process id.
        pid: u32,
        /// The method's address, no code.
        method: u64,
    },
    /// A function of JavaScript that V8 runs.
    JsFunction {
        /// Process id.
        pid: u32,
        /// Where V8 describes it, no code.
        shared: u64,
        /// Distinguishes it from another one there, see [`aiprof_common::js_check`].
        check: u16,
    },
    /// An operator of PyTorch.
    Op {
        /// Handle of the name in the aggregator.
        name: u32,
    },
}

impl Code {
    /// Why the walk of a stack ended here; `None` for addresses.
    pub fn cut(&self) -> Option<StopReason> {
        match self {
            Self::Cut(reason) | Self::CutIn(reason, _) => Some(*reason),
            _ => None,
        }
    }

    /// The process that is asked for its name, and has it only while it lives.
    pub fn named_by(&self) -> Option<u32> {
        match self {
            Self::Jit { pid, .. } | Self::JavaMethod { pid, .. } | Self::JsFunction { pid, .. } => {
                Some(*pid)
            }
            _ => None,
        }
    }
}

/// Code that has a name by where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SpecialCode {
    /// The vsyscall page.
    Vsyscall,
    /// The kernel's uprobe area.
    Uprobes,
    /// An address in no known mapping.
    Unmapped,
    /// An address of a process of which nothing is known.
    UnknownProcess,
    /// No code: a guess that what is below called what is above.
    Guessed,
    /// A Python frame whose function is not known.
    UnknownPython,
    /// No code: of the Python frames that follow it is not known which native frames ran
    /// them.
    PythonApart,
}

/// Handle of a [`Code`] in an [`Aggregator`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CodeId(pub u32);

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
    /// Another one counts what was lost of processes.
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

/// The codes of a sample's stack, leaf first: kernel, then user, then why the walk
/// of the user stack ended, where that was too early.
pub(crate) fn each_code(
    processes: &ProcessTable,
    process: Option<&Process>,
    sample: &Sample,
    mut take: impl FnMut(Code),
) {
    for (depth, &address) in sample.kernel.iter().enumerate() {
        let address = if depth == 0 {
            address
        } else {
            address.wrapping_sub(1)
        };
        take(Code::Kernel { address });
    }
    let space = process.map(|p| &*p.space);
    let stale = sample.space != 0 && space.is_some_and(|s| s.id != sample.space);
    let (user, stop) = match (stale, sample.user.get(..1)) {
        // Without an exec since the fork, another process had this id before.
        (true, Some(leaf)) if process.is_some_and(|p| p.is_fork) => (leaf, StopReason::NoProcess),
        (true, Some(leaf)) => (leaf, StopReason::StaleImage),
        _ => (sample.user.as_slice(), sample.stop),
    };
    let known = process.map(|process| &*process.python);
    // What was unwound with the mappings of a dead image has Python frames of that.
    let mut python = known.filter(|_| !stale).map(|known| {
        Placed::new(
            known,
            sample,
            user,
            stop.loss().is_none(),
            processes.python_c_frames,
        )
    });
    let mut outermost = None;
    for (depth, &raw) in user.iter().enumerate() {
        if raw == ADDR_MIDDLE {
            take(Code::Cut(StopReason::TooDeep));
            continue;
        }
        if let Some(code) = function(sample.thread.pid, raw) {
            outermost = Some(code);
            if let Some(python) = &mut python {
                // Its address is none of code.
                python.at(depth, 0, code, &mut take);
            }
            take(code);
            continue;
        }
        let exact = depth == 0 || raw & ADDR_EXACT != 0;
        let guessed = is_caller_guessed(raw);
        let marks = if guessed {
            ADDR_EXACT | ADDR_GUESSED
        } else {
            ADDR_EXACT
        };
        let address = raw & !marks;
        let address = if exact {
            address
        } else {
            address.wrapping_sub(1)
        };
        let code = normalize(processes, space, sample.thread.pid, address);
        outermost = Some(code);
        if let Some(python) = &mut python
            && !python.at(depth, address, code, &mut take)
        {
            continue;
        }
        take(code);
        if guessed && depth + 1 < user.len() {
            take(Code::Special(SpecialCode::Guessed));
        }
    }
    let is_cut = stop.loss().is_some();
    let gap = if is_cut {
        match outermost.and_then(|code| runtime_of(processes, space, code)) {
            Some(runtime) => Code::CutIn(stop, runtime),
            None => Code::Cut(stop),
        }
    } else {
        Code::Special(SpecialCode::PythonApart)
    };
    let has_rest = python.is_some_and(|mut python| python.rest(gap, &mut take));
    if is_cut && !has_rest {
        take(gap);
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
            Event::Ops(ops) => self.ops(ops),
            Event::Labels(labels) if labels.pid == 0 => self.recording_labels.add(&labels.labels),
            _ => {}
        }
        Ok(())
    }

    fn found(&mut self, processes: &ProcessTable, found: &Tracked<'_>) {
        self.take_found(processes, found);
    }

    fn damaged(&mut self) {
        self.losses.add(LossKind::Undecodable, 1);
    }
}

/// The function that an address of a sample stands for; `None`: it is one of code.
fn function(pid: u32, raw: u64) -> Option<Code> {
    if let Some(method) = java_method(raw) {
        return Some(Code::JavaMethod { pid, method });
    }
    let JsFunction { shared, check } = JsFunction::of(raw)?;
    Some(Code::JsFunction { pid, shared, check })
}

/// The runtime whose code, generated or its own, is there.
fn runtime_of(processes: &ProcessTable, space: Option<&Space>, code: Code) -> Option<Runtime> {
    match code {
        Code::Jit { .. } => space?.generated.runtime(),
        Code::JavaMethod { .. } => Some(Runtime::Java),
        Code::JsFunction { .. } => Some(Runtime::V8),
        Code::File { file, .. } => {
            let key = processes.files.key(FileId(file))?;
            Runtime::of_path(&key.path)
        }
        _ => None,
    }
}

/// What an address of a process means now.
fn normalize(processes: &ProcessTable, space: Option<&Space>, pid: u32, address: u64) -> Code {
    const VSYSCALL: u64 = 0xffff_ffff_ff60_0000;
    // The mark of exact addresses is bit 63: put it back for the one page that has it.
    if address | ADDR_EXACT >= VSYSCALL && address > 1 << 62 {
        return Code::Special(SpecialCode::Vsyscall);
    }
    let Some(space) = space else {
        return Code::Special(SpecialCode::UnknownProcess);
    };
    let Some(mapping) = space.find(address) else {
        return Code::Special(SpecialCode::Unmapped);
    };
    match region(processes, mapping.file) {
        Region::File | Region::Vdso => Code::File {
            file: mapping.file.0,
            offset: address - mapping.start + mapping.file_offset,
        },
        Region::Vsyscall => Code::Special(SpecialCode::Vsyscall),
        Region::Uprobes => Code::Special(SpecialCode::Uprobes),
        Region::Anonymous => Code::Jit { pid, address },
    }
}

fn region(processes: &ProcessTable, file: FileId) -> Region {
    processes
        .files
        .key(file)
        .map_or(Region::Anonymous, Region::of)
}

#[cfg(test)]
mod call_tests;
#[cfg(test)]
mod driver_tests;
#[cfg(test)]
mod generated_tests;
#[cfg(test)]
mod tests;
