//! Operators of PyTorch as frames of CPU samples.
//!
//! A sample taken while operators ran on its thread is added up under a stack with their frames.
//! These are below the Python frames that called them, see [`crate::ops`], and above what they ran.
//! On a thread without Python they are at the root of the stack.

use super::{Aggregator, Code, SampleKey, SampleTable, SampleValue};
use crate::ops::{self, KeptStack, Op, OpsDone, OpsPlaced, OpsWindow, PythonFrame};
use aiprof_model::{
    profile::LossKind,
    wire::{OpKind, Ops},
};
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// A sample that was added up, and its value.
#[derive(Clone, Debug)]
pub(super) struct AddedSample {
    pub(super) key: SampleKey,
    pub(super) value: SampleValue,
    /// When it was taken.
    pub(super) time_ns: u64,
}

impl Aggregator {
    /// Takes news of a process's operators in.
    pub(super) fn ops(&mut self, ops: &Ops) {
        match self.ops_inbox.take(ops.pid, &ops.news) {
            OpsDone::Nothing => {}
            OpsDone::Unanswered => self.losses.add(LossKind::OpsUnanswered, 1),
            OpsDone::Unreadable => self.losses.add(LossKind::OpsUnreadable, 1),
            OpsDone::Window(window, samples, refused) => {
                self.losses.add(LossKind::OpsRefused, refused);
                self.ops_window(&window, samples);
            }
        }
    }

    fn ops_window(&mut self, window: &OpsWindow, samples: Vec<KeptStack<AddedSample>>) {
        let mut by_thread: FxHashMap<u32, Vec<KeptStack<AddedSample>>> = FxHashMap::default();
        for sample in samples.into_iter().filter(|s| window.contains_key(&s.tid)) {
            by_thread.entry(sample.tid).or_default().push(sample);
        }
        let mut threads: Vec<_> = by_thread.into_iter().collect();
        threads.sort_unstable_by_key(|(tid, _)| *tid);
        let mut paths: FxHashMap<u32, Rc<[PythonFrame]>> = FxHashMap::default();
        for (tid, mut samples) in threads {
            samples.sort_by_key(|sample| sample.time_ns);
            let stacks = samples.iter().map(|sample| {
                let stack = sample.of.key.stack;
                let path = paths
                    .entry(stack)
                    .or_insert_with(|| self.table.python_of(stack).into());
                (sample.time_ns, Rc::clone(path))
            });
            let stacks: Vec<_> = stacks.collect();
            let ops = window.get(&tid).map_or(&[][..], Vec::as_slice);
            let placed = ops::place(ops, &stacks);
            for (sample, around) in samples.iter().zip(&placed.around) {
                if !around.is_empty() {
                    self.move_sample(&sample.of, ops, &placed, around);
                }
            }
        }
    }

    /// Adds a sample up under a stack with its operators instead.
    fn move_sample(
        &mut self,
        sample: &AddedSample,
        ops: &[Op],
        placed: &OpsPlaced,
        around: &[u32],
    ) {
        let table = &mut self.table;
        let Some(old) = table.stacks.values.get(sample.key.stack as usize).cloned() else {
            return;
        };
        let mut frames: Vec<(usize, u32)> = Vec::with_capacity(around.len());
        for &op in around {
            let Some(known) = ops.get(op as usize) else {
                continue;
            };
            let caller = placed.callers.get(op as usize).and_then(Option::as_ref);
            let outer = frames.last().map_or(0, |(depth, _)| *depth);
            let depth = caller.map_or(0, |caller| caller.depth()).max(outer);
            let name = table.names.intern(frame_name(known).to_owned());
            frames.push((depth, table.codes.intern(Code::Op { name })));
        }
        let codes = table.with_ops(&old, &frames);
        let Some(stack) = table.intern_stack(&codes) else {
            return self.losses.add(LossKind::OpsRefused, 1);
        };
        let key = SampleKey {
            stack,
            ..sample.key.clone()
        };
        if table.refuses(&key) {
            return self.losses.add(LossKind::OpsRefused, 1);
        }
        let Some(known) = table.samples.get_mut(&sample.key) else {
            return;
        };
        known.count = known.count.saturating_sub(sample.value.count);
        known.time_ns = known.time_ns.saturating_sub(sample.value.time_ns);
        if known.count == 0 {
            table.samples.remove(&sample.key);
        }
        self.times.rekey(&sample.key, &key, sample.time_ns);
        table.add(key, sample.value, &mut self.losses);
    }
}

impl SampleTable {
    /// The Python frames of a stack, outermost first.
    fn python_of(&self, stack: u32) -> Vec<PythonFrame> {
        let codes = self.stacks.values.get(stack as usize);
        let codes = codes.iter().flat_map(|codes| codes.iter().rev());
        codes.filter_map(|&code| self.python_frame(code)).collect()
    }

    fn python_frame(&self, code: u32) -> Option<PythonFrame> {
        match self.codes.values.get(code as usize)? {
            Code::Python { function, line } => Some((*function, *line)),
            _ => None,
        }
    }

    /// A stack, leaf first, with frames inserted. Each frame of `frames` is below the given number
    /// of the stack's Python frames, outermost first. Where the walk ended too early stays the
    /// root.
    fn with_ops(&self, stack: &[u32], frames: &[(usize, u32)]) -> Vec<u32> {
        let mut codes = Vec::with_capacity(stack.len() + frames.len());
        let mut frames = frames.iter().peekable();
        let mut depth = 0;
        for &code in stack.iter().rev() {
            let known = self.codes.values.get(code as usize);
            let is_cut = codes.is_empty() && known.is_some_and(|code| code.cut().is_some());
            if !is_cut {
                while let Some((_, op)) = frames.next_if(|(below, _)| *below <= depth) {
                    codes.push(*op);
                }
            }
            codes.push(code);
            depth += usize::from(matches!(known, Some(Code::Python { .. })));
        }
        // Below the innermost frame, or of a stack with fewer.
        codes.extend(frames.map(|(_, op)| *op));
        codes.reverse();
        codes
    }
}

/// What an operator's frame is called: steps are added up.
fn frame_name(op: &Op) -> &str {
    match op.name.split_once('#') {
        Some((step @ "ProfilerStep", number))
            if op.kind == OpKind::Annotation && number.bytes().all(|b| b.is_ascii_digit()) =>
        {
            step
        }
        _ => &op.name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::wire::StopReason;

    #[test]
    fn frames_stand_below_the_python_frame_that_called_them() {
        let mut known = SampleTable::default();
        let mut of = |code| known.codes.intern(code);
        let [outer, inner] = [1, 2].map(|function| of(Code::Python { function, line: 1 }));
        let [root, between, leaf] = [1, 2, 3].map(|address| of(Code::Kernel { address }));
        let [mark, op] = [1, 2].map(|name| of(Code::Op { name }));
        let cut = of(Code::Cut(StopReason::NoMapping));
        let stack = [leaf, inner, between, outer, root];
        let with = |frames: &[_]| known.with_ops(&stack, frames);
        let both = with(&[(1, mark), (2, op)]);
        assert_eq!(both, [leaf, op, inner, between, mark, outer, root]);
        let inside = with(&[(2, mark), (2, op)]);
        assert_eq!(inside, [leaf, op, mark, inner, between, outer, root]);
        assert_eq!(with(&[(0, op)]), [leaf, inner, between, outer, root, op]);
        // A walk that ended too early stays the root, and a Python frame may be the leaf.
        assert_eq!(known.with_ops(&[leaf, cut], &[(0, op)]), [leaf, op, cut]);
        assert_eq!(known.with_ops(&[outer], &[(1, op)]), [op, outer]);
    }

    #[test]
    fn steps_of_the_profiler_are_one_frame() {
        let name = |name: &str, kind| {
            let op = Op {
                name: name.into(),
                shapes: None,
                kind,
                begin_ns: 0,
                end_ns: 1,
                sequence: None,
                forward_thread: None,
            };
            frame_name(&op).to_owned()
        };
        let mark = OpKind::Annotation;
        assert_eq!(name("ProfilerStep#12", mark), "ProfilerStep");
        for other in ["ProfilerStep#x", "Optimizer.step#SGD.step", "Layer#3"] {
            assert_eq!(name(other, mark), other);
        }
        assert_eq!(name("ProfilerStep#1", OpKind::Operator), "ProfilerStep#1");
    }
}
