//! Stacks that calls and waits refer to.

use super::{Aggregator, Code};
use aiprof_model::{
    process::ProcessTable,
    profile::{LossKind, Losses},
    wire::CallStack,
};
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// Most stacks and threads that are remembered for calls and waits that refer to them.
pub(super) const MAX_STACKS: usize = 1 << 17;

/// A stack that calls or waits refer to.
pub(super) struct KnownStack {
    /// Leaf first. The leaf of a call's is the probed function itself.
    pub(super) codes: Rc<[Code]>,
    pub(super) cgroup: u64,
    /// Name of the thread; empty where waits are not added up.
    pub(super) thread: Box<str>,
}

/// Stacks by their ids.
pub(super) type KnownStacks = FxHashMap<u64, KnownStack>;

impl Aggregator {
    /// Normalizes a stack now, for its process may be gone when something refers to it.
    pub(super) fn keep_stack(&mut self, processes: &ProcessTable, stack: &CallStack) {
        let table = &mut self.table;
        if table.has_all_codes() {
            return self.losses.add(LossKind::TableFull, 1);
        }
        let sample = &stack.sample;
        let process = processes.get(sample.thread.pid);
        let ids = table.stack_codes(processes, process, sample, &mut self.losses);
        if self.known_stacks.len() >= MAX_STACKS && !self.known_stacks.contains_key(&stack.id) {
            return self.losses.add(LossKind::TableFull, 1);
        }
        let codes = ids.iter().map(|&id| table.codes.values[id as usize]);
        let thread = self.waits.map_or("", |_| &sample.thread.comm);
        let known = KnownStack {
            codes: codes.collect(),
            cgroup: sample.cgroup,
            thread: thread.into(),
        };
        self.known_stacks.insert(stack.id, known);
        if let Some(devices) = self.calls.as_mut().and_then(|c| c.devices.as_mut()) {
            devices.forget_stack(stack.id);
        }
    }

    /// Has the addresses of a stack named, though nothing here refers to it: who
    /// reads the capture of this recording may ask for its calls.
    pub(super) fn note_codes(&mut self, processes: &ProcessTable, stack: &CallStack) {
        if !self.table.has_all_codes() {
            let process = processes.get(stack.sample.thread.pid);
            // It is no sample: what is wrong with it is no loss of this profile.
            let losses = &mut Losses::default();
            self.table
                .stack_codes(processes, process, &stack.sample, losses);
        }
    }

    /// The files that calls and waits of later windows may refer to, by their handles.
    pub fn files_of_calls(&self) -> impl Iterator<Item = u32> {
        let known = self.known_stacks.values().map(|known| &known.codes);
        let devices = self.calls.iter().filter_map(|calls| calls.devices.as_ref());
        let paths = devices.flat_map(|devices| devices.all_codes());
        let codes = known.chain(paths).flat_map(|codes| codes.iter());
        codes.filter_map(|code| match code {
            Code::File { file, .. } => Some(*file),
            _ => None,
        })
    }

    /// Forgets the stacks that calls and waits refer to, for files have got new numbers.
    pub fn forget_files(&mut self) {
        self.known_stacks.clear();
        if let Some(devices) = self.calls.as_mut().and_then(|c| c.devices.as_mut()) {
            devices.forget_files();
        }
    }
}
