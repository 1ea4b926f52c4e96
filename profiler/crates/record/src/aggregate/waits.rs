//! Waits by the stacks that they were in.

use super::{Aggregator, Code, NoStack, SampleKey, SampleTable, SampleValue};
use aiprof_model::{
    process::ProcessTable,
    profile::LossKind,
    wire::{ThreadWait, WaitReason},
};

/// How waits are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitOptions {
    /// The time on CPUs beside the waits, in one picture.
    pub wall: bool,
    /// Who woke the thread is part of the stack.
    pub wakers: bool,
}

impl Aggregator {
    /// One that adds up waits, too. A thread that polls inside a runtime's function that waits
    /// does wait.
    pub fn with_waits(mut self, options: WaitOptions) -> Self {
        self.waits = Some(options);
        self
    }

    /// Adds a wait up.
    pub(super) fn wait(&mut self, processes: &ProcessTable, wait: &ThreadWait) {
        let Some(options) = self.waits else {
            return;
        };
        self.taken += 1;
        if self.table.is_full() {
            return self.losses.add(LossKind::TableFull, 1);
        }
        let (table, losses) = (&mut self.table, &mut self.losses);
        let process = processes.get(wait.pid);
        let comm = process.map_or("", |process| process.comm.as_str());
        let known = self.known_stacks.get(&wait.stack);
        let missing = [Code::NoStack(NoStack::of_wait(wait))];
        let codes = known.map_or(&missing[..], |known| &known.codes);
        let mut stack: Vec<u32> = codes.iter().map(|&code| table.codes.intern(code)).collect();
        let thread = known.map_or(comm, |known| &known.thread);
        let key = SampleKey {
            pid: wait.pid,
            tid: wait.tid,
            comm: table
                .names
                .intern(if comm.is_empty() { thread } else { comm }.into()),
            thread: table.names.intern(thread.into()),
            cgroup: known.map_or(0, |known| known.cgroup),
            labels: table.labels_of(process),
            stack: 0,
            cpu: 0,
        };
        let waker = options.wakers.then(|| waker(table, processes, wait));
        let reasons = [
            (wait.reason, wait.blocked_ns, waker.flatten()),
            (WaitReason::Cpu, wait.queued_ns, None),
        ];
        for (reason, time_ns, waker) in reasons {
            if time_ns == 0 {
                continue;
            }
            let leaf = std::iter::once(table.codes.intern(Code::Wait(reason)));
            let before: Vec<u32> = waker.into_iter().chain(leaf).collect();
            stack.splice(0..0, before.iter().copied());
            let value = SampleValue {
                time_ns,
                ..SampleValue::default()
            };
            match table.intern_stack(&stack) {
                None => losses.add(LossKind::TableFull, 1),
                Some(stack) => {
                    let key = key.clone();
                    table.add(SampleKey { stack, ..key }, value, losses);
                }
            }
            stack.drain(..before.len());
        }
    }
}

/// The frame of who woke the thread, where that is somebody.
fn waker(table: &mut SampleTable, processes: &ProcessTable, wait: &ThreadWait) -> Option<u32> {
    let (pid, _) = wait.woken_by()?;
    let name = &processes.get(pid)?.comm;
    let name = table.names.intern(format!("woken by {name}"));
    Some(table.codes.intern(Code::Function { name }))
}
