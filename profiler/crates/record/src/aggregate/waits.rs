//! Waits by the stacks that they were in.

use super::{Aggregator, Code, NoStack, SampleKey, Weigh};
use aiprof_model::{
    process::ProcessTable,
    profile::LossKind,
    wire::{CallStack, Wait, WaitReason},
};
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// Most stacks that are remembered for waits that refer to them.
const MAX_STACKS: usize = 1 << 17;

/// How waits are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitOptions {
    /// The time on CPUs beside the waits, in one picture.
    pub wall: bool,
    /// Who woke the thread is part of the stack.
    pub wakers: bool,
}

/// A stack that waits refer to.
#[derive(Debug)]
struct KnownStack {
    /// Leaf first.
    codes: Rc<[Code]>,
    cgroup: u64,
    /// Name of the thread.
    thread: String,
}

/// The waits' part of an [`Aggregator`].
#[derive(Debug, Default)]
pub(super) struct Waits {
    pub(super) options: WaitOptions,
    stacks: FxHashMap<u64, KnownStack>,
}

impl Waits {
    /// The codes of all stacks that waits may refer to.
    pub(super) fn codes(&self) -> impl Iterator<Item = &Rc<[Code]>> {
        self.stacks.values().map(|known| &known.codes)
    }

    pub(super) fn forget_stacks(&mut self) {
        self.stacks.clear();
    }
}

impl Aggregator {
    /// One that adds up waits, too. Who spins inside a runtime's function that waits does wait.
    pub fn with_waits(mut self, options: WaitOptions) -> Self {
        let stacks = FxHashMap::default();
        self.waits = Some(Box::new(Waits { options, stacks }));
        self
    }

    /// Normalizes a stack now, for its process may be gone when a wait refers to it.
    pub(super) fn take_wait_stack(&mut self, processes: &ProcessTable, stack: &CallStack) {
        if self.codes.values.len() > self.limits.codes {
            return self.losses.add(LossKind::TableFull, 1);
        }
        let sample = &stack.sample;
        let process = processes.get(sample.thread.pid);
        let ids = self.stack_codes(processes, process, sample);
        let codes = ids.iter().map(|&id| self.codes.values[id as usize]);
        let known = KnownStack {
            codes: codes.collect(),
            cgroup: sample.cgroup,
            thread: sample.thread.comm.clone(),
        };
        let Some(waits) = &mut self.waits else {
            return;
        };
        if waits.stacks.len() >= MAX_STACKS && !waits.stacks.contains_key(&stack.id) {
            return self.losses.add(LossKind::TableFull, 1);
        }
        waits.stacks.insert(stack.id, known);
    }

    /// Adds a wait up.
    pub(super) fn wait(&mut self, processes: &ProcessTable, wait: &Wait) {
        let Some(waits) = self.waits.take() else {
            return;
        };
        self.taken += 1;
        if self.codes.values.len() > self.limits.codes
            || self.names.values.len() > self.limits.samples
        {
            self.losses.add(LossKind::TableFull, 1);
        } else {
            self.add_wait(&waits, processes, wait);
        }
        self.waits = Some(waits);
    }

    fn add_wait(&mut self, waits: &Waits, processes: &ProcessTable, wait: &Wait) {
        let process = processes.get(wait.pid);
        let comm = process.map_or("", |process| process.comm.as_str());
        let known = waits.stacks.get(&wait.stack);
        let missing = [Code::NoStack(NoStack::of_wait(wait))];
        let codes = known.map_or(&missing[..], |known| &known.codes);
        let mut stack: Vec<u32> = codes.iter().map(|&code| self.codes.intern(code)).collect();
        let thread = known.map_or(comm, |known| known.thread.as_str());
        let key = SampleKey {
            pid: wait.pid,
            tid: wait.tid,
            comm: self
                .names
                .intern(if comm.is_empty() { thread } else { comm }.into()),
            thread: self.names.intern(thread.into()),
            cgroup: known.map_or(0, |known| known.cgroup),
            labels: self.labels_of(process),
            stack: 0,
            cpu: 0,
        };
        let waker = waits.options.wakers.then(|| self.waker(processes, wait));
        let reasons = [
            (wait.reason, wait.blocked_ns, waker.flatten()),
            (WaitReason::Cpu, wait.queued_ns, None),
        ];
        for (reason, time_ns, waker) in reasons {
            if time_ns == 0 {
                continue;
            }
            let leaf = std::iter::once(self.codes.intern(Code::Wait(reason)));
            let before: Vec<u32> = waker.into_iter().chain(leaf).collect();
            stack.splice(0..0, before.iter().copied());
            match self.intern_stack(&stack) {
                None => self.losses.add(LossKind::TableFull, 1),
                Some(stack) => self.weigh(
                    SampleKey {
                        stack,
                        ..key.clone()
                    },
                    Weigh {
                        time_ns,
                        ..Weigh::default()
                    },
                ),
            }
            stack.drain(..before.len());
        }
    }

    /// The frame of who woke the thread, where that is somebody.
    fn waker(&mut self, processes: &ProcessTable, wait: &Wait) -> Option<u32> {
        let (pid, _) = wait.woken_by()?;
        let name = processes.get(pid)?.comm.clone();
        let name = self.names.intern(format!("woken by {name}"));
        Some(self.codes.intern(Code::Function { name }))
    }
}
