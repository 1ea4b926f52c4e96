//! The control flow graph of a kernel.
//!
//! A basic block begins at each target of a branch and behind each instruction that
//! may not go on to the next one. Where control comes from is what is asked for, so
//! blocks know the blocks before them.

use aiprof_symbols::symbolize::device::isa::{Flow, Instruction};
use std::ops::Range;

/// How control comes to a block from one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By going on or by a branch.
    Flow,
    /// By a call: this is where the function that was called begins.
    Call,
    /// Behind a call, when the function has returned; its first block, where that
    /// is known.
    Return(Option<usize>),
}

/// A block before another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Before {
    /// The block that control comes from.
    pub(super) block: usize,
    pub(super) way: Way,
    /// Whether this is the way back of a loop.
    pub(super) is_back: bool,
}

/// Instructions that are executed one after the other.
#[derive(Clone, Debug, Default)]
pub(super) struct BasicBlock {
    /// Indices of its instructions.
    pub(super) range: Range<usize>,
    pub(super) before: Vec<Before>,
}

/// A loop, by where its code lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loop {
    /// Index of the instruction that its way back leads to.
    pub(super) first: usize,
    /// Index behind the branch back.
    pub(super) end: usize,
}

/// The basic blocks of a kernel and how control comes to them.
#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    pub(super) blocks: Vec<BasicBlock>,
    /// Block of each instruction.
    block_of: Vec<usize>,
    /// Blocks that end in jumps to somewhere that is not known.
    pub(super) computed: Vec<usize>,
    /// By their code's size, the smallest first.
    pub(super) loops: Vec<Loop>,
    /// Blocks after each block.
    after: Vec<Vec<(usize, Way)>>,
}

/// Most edges that stand for jumps to computed addresses, for each block.
const COMPUTED_EDGES: usize = 4;
/// Most loops that are kept.
const MAX_LOOPS: usize = 4096;

impl Graph {
    /// The graph of instructions in the order of their offsets.
    pub(super) fn of(instructions: &[Instruction]) -> Self {
        let mut graph = Self::default();
        graph.cut(instructions);
        graph.connect(instructions);
        graph.connect_computed();
        graph.find_backs();
        graph
    }

    /// The block of an instruction.
    pub(super) fn block_of(&self, instruction: usize) -> Option<usize> {
        self.block_of.get(instruction).copied()
    }

    /// The smallest loop around an instruction.
    pub(super) fn loop_around(&self, instruction: usize) -> Option<Loop> {
        let mut around = self.loops.iter();
        let found = around.find(|l| (l.first..l.end).contains(&instruction));
        found.copied()
    }

    /// Cuts the instructions into blocks.
    fn cut(&mut self, instructions: &[Instruction]) {
        let mut begins = vec![false; instructions.len()];
        let mut mark = |index: usize| {
            if let Some(begin) = begins.get_mut(index) {
                *begin = true;
            }
        };
        mark(0);
        for (index, instruction) in instructions.iter().enumerate() {
            if instruction.flow != Flow::Next {
                mark(index + 1);
            }
            for target in targets(&instruction.flow) {
                index_of(instructions, target)
                    .into_iter()
                    .for_each(&mut mark);
            }
        }
        for (index, begin) in begins.into_iter().enumerate() {
            if begin {
                self.blocks.push(BasicBlock {
                    range: index..index,
                    before: Vec::new(),
                });
            }
            self.block_of.push(self.blocks.len() - 1);
            if let Some(block) = self.blocks.last_mut() {
                block.range.end = index + 1;
            }
        }
        self.after = vec![Vec::new(); self.blocks.len()];
    }

    fn connect(&mut self, instructions: &[Instruction]) {
        for block in 0..self.blocks.len() {
            let last = self.blocks.get(block).map_or(0, |b| b.range.end) - 1;
            let Some(instruction) = instructions.get(last) else {
                continue;
            };
            let next = self.block_of(last + 1);
            let at = |target| self.block_of(index_of(instructions, target)?);
            let known: Vec<Option<usize>> = targets(&instruction.flow).map(at).collect();
            let has_unknown = known.contains(&None) || instruction.flow == Flow::Unknown;
            let ways: Vec<(Option<usize>, Way)> = match instruction.flow {
                Flow::Call { .. } => {
                    let callee = known.first().copied().flatten();
                    vec![(callee, Way::Call), (next, Way::Return(callee))]
                }
                Flow::Next | Flow::Branch { .. } => {
                    let all = std::iter::once(next).chain(known);
                    all.map(|to| (to, Way::Flow)).collect()
                }
                _ => known.into_iter().map(|to| (to, Way::Flow)).collect(),
            };
            for (to, way) in ways {
                if let Some(to) = to {
                    self.edge(block, to, way);
                }
            }
            if has_unknown && !matches!(instruction.flow, Flow::Call { .. }) {
                self.computed.push(block);
            }
        }
    }

    fn edge(&mut self, from: usize, to: usize, way: Way) {
        let Some(after) = self.after.get_mut(from) else {
            return;
        };
        if after.contains(&(to, way)) {
            return;
        }
        after.push((to, way));
        if let Some(block) = self.blocks.get_mut(to) {
            block.before.push(Before {
                block: from,
                way,
                is_back: false,
            });
        }
    }

    /// Where computed jumps are, they lead to the blocks that nothing else leads to.
    fn connect_computed(&mut self) {
        let lost = |(index, block): (usize, &BasicBlock)| {
            (index > 0 && block.before.is_empty()).then_some(index)
        };
        let lost: Vec<usize> = self.blocks.iter().enumerate().filter_map(lost).collect();
        let edges = self.computed.len().saturating_mul(lost.len());
        if edges > self.blocks.len().saturating_mul(COMPUTED_EDGES) {
            return;
        }
        for from in self.computed.clone() {
            for &to in &lost {
                self.edge(from, to, Way::Flow);
            }
        }
    }

    /// Finds the ways back of loops: edges to a block that is being left, walking
    /// depth first. That holds for loops with several entries, too.
    fn find_backs(&mut self) {
        #[derive(Clone, Copy, PartialEq)]
        enum VisitState {
            New,
            Open,
            Done,
        }
        let mut state = vec![VisitState::New; self.blocks.len()];
        let mut backs = Vec::new();
        let starts = |index: &usize| self.blocks.get(*index).is_some_and(|b| b.before.is_empty());
        let all = 0..self.blocks.len();
        let roots: Vec<usize> = std::iter::once(0)
            .chain(all.clone().filter(starts))
            .chain(all)
            .collect();
        for root in roots {
            let mut path: Vec<(usize, usize)> = vec![(root, 0)];
            match state.get_mut(root) {
                Some(new @ VisitState::New) => *new = VisitState::Open,
                _ => continue,
            }
            while let Some((block, next)) = path.last_mut() {
                let from = *block;
                let edge = self.after.get(from).and_then(|after| after.get(*next));
                *next += 1;
                let Some(&(to, _)) = edge else {
                    path.pop();
                    if let Some(state) = state.get_mut(from) {
                        *state = VisitState::Done;
                    }
                    continue;
                };
                match state.get_mut(to) {
                    Some(new @ VisitState::New) => {
                        *new = VisitState::Open;
                        path.push((to, 0));
                    }
                    Some(VisitState::Open) => backs.push((from, to)),
                    _ => {}
                }
            }
        }
        for (from, to) in backs {
            self.mark_back(from, to);
        }
        self.loops.sort_by_key(|l| (l.end - l.first, l.first));
        self.loops.truncate(MAX_LOOPS);
    }

    fn mark_back(&mut self, from: usize, to: usize) {
        let end = self.blocks.get(from).map_or(0, |b| b.range.end);
        let Some(block) = self.blocks.get_mut(to) else {
            return;
        };
        let mut before = block.before.iter_mut();
        let of_loop = before.find(|b| b.block == from);
        let Some(edge) = of_loop else { return };
        edge.is_back = true;
        if edge.way == Way::Flow && block.range.start < end {
            self.loops.push(Loop {
                first: block.range.start,
                end,
            });
        }
    }

    /// Blocks that end in a return and are reached from a function's first block
    /// without going into the functions that it calls; `None` beyond `limit` blocks.
    pub(super) fn returns(
        &self,
        entry: usize,
        instructions: &[Instruction],
        limit: usize,
    ) -> Option<Vec<usize>> {
        let mut seen = rustc_hash::FxHashSet::from_iter([entry]);
        let mut open = vec![entry];
        let mut found = Vec::new();
        while let Some(block) = open.pop() {
            if seen.len() > limit {
                return None;
            }
            let end = self.blocks.get(block)?.range.end;
            let last = instructions.get(end.checked_sub(1)?)?;
            if last.flow == Flow::Return {
                found.push(block);
            }
            for &(to, way) in self.after.get(block)? {
                if way != Way::Call && seen.insert(to) {
                    open.push(to);
                }
            }
        }
        found.sort_unstable();
        Some(found)
    }
}

/// Index of the instruction that begins at an offset.
fn index_of(instructions: &[Instruction], offset: u32) -> Option<usize> {
    let found = instructions.binary_search_by_key(&offset, |i| i.offset);
    found.ok()
}

/// Offsets that an instruction may go to, beside the next.
pub(super) fn targets(flow: &Flow) -> impl Iterator<Item = u32> {
    let (one, many) = match flow {
        Flow::Jump { target } => (Some(*target), &[][..]),
        Flow::Call { target } => (*target, &[][..]),
        Flow::Branch { targets } => (None, targets.as_slice()),
        _ => (None, &[][..]),
    };
    one.into_iter().chain(many.iter().copied())
}
