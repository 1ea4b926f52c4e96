//! Operators of PyTorch: spans of their threads, with the line of Python that called them.

use super::{Builder, TrackKey};
use crate::ops::{self, KeptStack, Op, OpCaller, OpsDone, OpsPlaced, OpsWindow, PythonFrame};
use aiprof_model::{
    process::ProcessTable,
    profile::LossKind,
    timeline::{Args, recorded::EventSink},
    wire,
};
use rustc_hash::FxHashMap;
use std::rc::Rc;

impl<S: EventSink> Builder<S> {
    /// Takes news of a process's operators in.
    pub(super) fn ops(&mut self, processes: &ProcessTable, ops: &wire::Ops) {
        match self.ops_inbox.take(ops.pid, &ops.news) {
            OpsDone::Nothing => {}
            OpsDone::Unanswered => self.writer.out.losses.add(LossKind::OpsUnanswered, 1),
            OpsDone::Unreadable => self.writer.out.losses.add(LossKind::OpsUnreadable, 1),
            OpsDone::Window(window, stacks, refused) => {
                self.writer.out.losses.add(LossKind::OpsRefused, refused);
                self.ops_window(processes, ops.pid, window, stacks);
            }
        }
    }

    fn ops_window(
        &mut self,
        processes: &ProcessTable,
        pid: u32,
        window: OpsWindow,
        stacks: Vec<KeptStack<u32>>,
    ) {
        let mut by_thread: FxHashMap<u32, Vec<(u64, u32)>> = FxHashMap::default();
        for stack in stacks {
            let of_thread = by_thread.entry(stack.tid).or_default();
            of_thread.push((stack.time_ns, stack.of));
        }
        let mut threads: Vec<_> = window.into_iter().collect();
        threads.sort_unstable_by_key(|(tid, _)| *tid);
        let mut paths = FxHashMap::default();
        for (tid, ops) in threads {
            let mut stacks = by_thread.remove(&tid).unwrap_or_default();
            stacks.sort_unstable_by_key(|(time, _)| *time);
            let stacks = stacks.iter().map(|&(time, node)| {
                let path: &Rc<[PythonFrame]> = paths
                    .entry(node)
                    .or_insert_with(|| self.stacks.python_of(node).into());
                (time, Rc::clone(path))
            });
            let stacks: Vec<_> = stacks.collect();
            let placed = ops::place(&ops, &stacks);
            self.ops_of_thread(processes, (pid, tid), &ops, &placed);
        }
    }

    fn ops_of_thread(
        &mut self,
        processes: &ProcessTable,
        (pid, tid): (u32, u32),
        ops: &[Op],
        placed: &OpsPlaced,
    ) {
        let Some(track) = self.writer.track(TrackKey::Thread { pid, tid }) else {
            let lost = ops.len() as u64;
            return self.writer.out.losses.add(LossKind::SpansRefused, lost);
        };
        self.process_tracks.waited(processes, pid, tid);
        let forward = forward_callers(ops, placed);
        for (op, caller) in ops.iter().zip(&placed.callers) {
            if op.end_ns < self.writer.first_ns || op.begin_ns > self.writer.last_ns {
                self.writer.out.losses.add(LossKind::OpsRefused, 1);
                continue;
            }
            let name = self.writer.name(&op.name);
            let times = (op.begin_ns.max(self.writer.first_ns), op.end_ns);
            let event = self.writer.span(name, op.kind.category(), track, times);
            let mut args = Args::new();
            if let Some(caller) = caller {
                write_caller(&mut args, "python", processes, caller);
                args.number("python_stacks", caller.stacks);
            }
            if op.forward_thread.is_some()
                && let Some(caller) = op.sequence.and_then(|number| forward.get(&number))
            {
                write_caller(&mut args, "forward_python", processes, caller);
            }
            if let Some(shapes) = &op.shapes {
                args.raw("Input Dims", shapes);
            }
            for (key, number) in [
                ("Sequence number", op.sequence),
                ("Fwd thread id", op.forward_thread),
            ] {
                if let Some(number) = number {
                    args.number(key, number);
                }
            }
            self.writer.out.totals.ops += 1;
            // What a runtime's call has around it began before.
            self.writer.push(&event, 0, &args);
        }
    }
}

/// The callers of forward operators by their numbers in autograd: a backward operator has
/// the number of its forward one.
fn forward_callers<'a>(ops: &[Op], placed: &'a OpsPlaced) -> FxHashMap<u64, &'a OpCaller> {
    let forward = ops.iter().zip(&placed.callers);
    let forward = forward.filter(|(op, _)| op.forward_thread.is_none());
    let known = forward.filter_map(|(op, caller)| Some((op.sequence?, caller.as_ref()?)));
    known.collect()
}

fn write_caller(args: &mut Args, key: &str, processes: &ProcessTable, caller: &OpCaller) {
    if let Some((function, line)) = caller.frame()
        && let Some(known) = processes.files.scripts.get(function)
    {
        args.text(key, &known.at(line));
    }
}
