//! The stacks of a recording as a tree of code addresses, which get their names at the
//! end.

use crate::{
    aggregate::{Code, NameSource, NoStack, each_code, ends_at_entry, unknown_name},
    correlate::FinishedCall,
    ops::PythonFrame,
};
use aiprof_common::{FLAG_KERNEL_FAILED, FLAG_KERNEL_TRUNCATED};
use aiprof_model::{
    process::{FileTable, ProcessTable},
    profile::{FrameKind, LossKind, Losses},
    timeline::{
        NONE,
        recorded::{StackFrame, StackNode, Stacks},
    },
    wire::{CallStack, Sample, StopReason, ThreadWait},
};
use rustc_hash::FxHashMap;

/// Most nodes: some 100 MiB.
const MAX_NODES: usize = 1 << 21;
/// Most stacks of calls and waits that are kept.
const MAX_STACKS: usize = 1 << 17;

/// A node: the one towards the root, and what is there.
type Node = (u32, Code);

/// Knows all stacks, and those that calls and waits refer to.
#[derive(Debug, Default)]
pub(super) struct StackTree {
    nodes: Vec<Node>,
    index: FxHashMap<Node, u32>,
    of_calls: FxHashMap<u64, u32>,
    /// Samples by the outermost node of a walk that ended early, and why it did.
    cut: FxHashMap<(u32, StopReason), u64>,
    codes: Vec<Code>,
    pub(super) losses: Losses,
}

impl StackTree {
    /// Keeps the stack of calls and waits that follow.
    pub(super) fn note(&mut self, processes: &ProcessTable, stack: &CallStack) {
        if self.of_calls.len() >= MAX_STACKS && !self.of_calls.contains_key(&stack.id) {
            self.losses.add(LossKind::TableFull, 1);
            return;
        }
        let (node, _) = self.walk(processes, &stack.sample);
        self.of_calls.insert(stack.id, node);
    }

    /// The stack of a call; or a node that shows why there is none.
    pub(super) fn of_call(&mut self, call: &FinishedCall) -> u32 {
        match self.of_calls.get(&call.stack) {
            Some(&node) => node,
            None => self.node((NONE, Code::NoStack(NoStack::of(call.stack, call.flags)))),
        }
    }

    /// The stack of a wait; or a node that shows why there is none.
    pub(super) fn of_wait(&mut self, wait: &ThreadWait) -> u32 {
        match self.of_calls.get(&wait.stack) {
            Some(&node) => node,
            None => self.node((NONE, Code::NoStack(NoStack::of_wait(wait)))),
        }
    }

    /// The stack of a sample.
    pub(super) fn of_sample(&mut self, processes: &ProcessTable, sample: &Sample) -> u32 {
        let (node, cut) = self.walk(processes, sample);
        for (flag, loss) in [
            (FLAG_KERNEL_FAILED, LossKind::KernelStackFailed),
            (FLAG_KERNEL_TRUNCATED, LossKind::KernelStackTruncated),
        ] {
            self.losses.add(loss, u64::from(sample.flags & flag != 0));
        }
        if let Some(cut) = cut {
            *self.cut.entry(cut).or_default() += 1;
        }
        node
    }

    /// The Python frames of a stack, outermost first.
    pub(super) fn python_of(&self, stack: u32) -> Vec<PythonFrame> {
        let mut frames = Vec::new();
        let mut next = stack;
        while let Some(&(parent, code)) = self.nodes.get(next as usize) {
            if let Code::Python { function, line } = code {
                frames.push((function, line));
            }
            // A node's parent came before it: so this ends.
            next = parent;
        }
        frames.reverse();
        frames
    }

    /// The node of a stack; and the outermost node, where the walk ended there too early.
    fn walk(
        &mut self,
        processes: &ProcessTable,
        sample: &Sample,
    ) -> (u32, Option<(u32, StopReason)>) {
        let mut codes = std::mem::take(&mut self.codes);
        codes.clear();
        let process = processes.get(sample.thread.pid);
        each_code(processes, process, sample, |code| codes.push(code));
        let (mut node, mut outermost) = (NONE, NONE);
        for (depth, &code) in codes.iter().rev().enumerate() {
            node = self.node((node, code));
            if depth == 1 {
                outermost = node;
            }
        }
        let cut = codes.last().and_then(Code::cut);
        let cut = cut.map(|reason| (outermost, reason));
        self.codes = codes;
        (node, cut)
    }

    fn node(&mut self, node: Node) -> u32 {
        if let Some(&known) = self.index.get(&node) {
            return known;
        }
        if self.nodes.len() >= MAX_NODES {
            self.losses.add(LossKind::TableFull, 1);
            return node.0;
        }
        let id = self.nodes.len() as u32;
        self.nodes.push(node);
        self.index.insert(node, id);
        id
    }

    /// Names every node. Gives what was lost too.
    pub(super) fn finish(self, names: &dyn NameSource, files: &FileTable) -> (Stacks, Losses) {
        let mut losses = self.losses;
        let mut namer = Namer {
            names,
            files,
            index: FxHashMap::default(),
            lists: FxHashMap::default(),
            stacks: Stacks::default(),
            unnamed: 0,
        };
        for &(parent, code) in &self.nodes {
            // A walk that ended at a program's entry was whole.
            let above = self.nodes.get(parent as usize);
            let is_whole = matches!(above, Some((NONE, above)) if above.cut()
                .is_some_and(|reason| ends_at_entry(names, &code, reason)));
            let parent = if is_whole { NONE } else { parent };
            let (first, len) = namer.list(code);
            namer.stacks.nodes.push(StackNode { parent, first, len });
        }
        losses.add(LossKind::FramesUnnamed, namer.unnamed);
        for ((outermost, reason), count) in self.cut {
            let code = self.nodes.get(outermost as usize).map(|(_, code)| code);
            let is_whole = code.is_some_and(|code| ends_at_entry(names, code, reason));
            if let Some(loss) = reason.loss().filter(|_| !is_whole) {
                losses.add(loss, count);
            }
        }
        (namer.stacks, losses)
    }
}

/// Gives codes their frames, each once.
struct Namer<'a> {
    names: &'a dyn NameSource,
    files: &'a FileTable,
    index: FxHashMap<StackFrame, u32>,
    lists: FxHashMap<Code, (u32, u32)>,
    stacks: Stacks,
    unnamed: u64,
}

impl Namer<'_> {
    /// Where a code's frames are in the list of frames, and how many.
    fn list(&mut self, code: Code) -> (u32, u32) {
        if let Some(&known) = self.lists.get(&code) {
            return known;
        }
        let first = self.stacks.lists.len() as u32;
        if let Code::Python { function, line } = code {
            let known = self.files.scripts.get(function);
            let name = known.map_or_else(String::new, |known| known.at(line));
            self.frame(&name, FrameKind::Interpreter);
            self.lists.insert(code, (first, 1));
            return (first, 1);
        }
        let found = self.names.frames(&code);
        if found.iter().all(|f| f.kind == FrameKind::Unknown)
            && code.cut().is_none()
            && !matches!(code, Code::NoStack(_))
        {
            self.unnamed += 1;
        }
        if found.is_empty() {
            let name = unknown_name(self.files, code);
            self.frame(&name, FrameKind::Unknown);
        }
        for frame in found {
            self.frame(&frame.name, frame.kind);
        }
        let list = (first, self.stacks.lists.len() as u32 - first);
        self.lists.insert(code, list);
        list
    }

    fn frame(&mut self, name: &str, kind: FrameKind) {
        let frame = StackFrame {
            name: name.into(),
            kind,
        };
        let stacks = &mut self.stacks;
        let new = stacks.frames.len() as u32;
        let id = *self.index.entry(frame).or_insert_with_key(|frame| {
            stacks.frames.push(frame.clone());
            new
        });
        self.stacks.lists.push(id);
    }
}
