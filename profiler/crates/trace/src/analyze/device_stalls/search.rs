//! Looks backwards through a kernel for what an instruction waits for.
//!
//! From the instruction back through its block, then through the blocks before it,
//! breadth first, until the nearest one on each path. Each block is looked at once
//! for each way to come there, so that loops end. A path that comes out of a function
//! goes on where that function was called from, and nowhere else.

use super::graph::{Graph, Way};
use aiprof_symbols::symbolize::device::isa::{Instruction, Pipe, TokenUse};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::ops::Range;

/// Tokens of the scoreboard.
const TOKENS: usize = 32;
/// Most blocks that one search looks at.
const MAX_STEPS: u32 = 1 << 14;
/// Most blocks that all searches of a kernel look at together.
const MAX_ALL_STEPS: u32 = 1 << 22;
/// Most blocks of a function that is called.
const MAX_FUNCTION: usize = 1 << 14;
/// In-order instructions that lie further back than this have ended: the compiler
/// waits for none behind 18 (IGC's largest distance, for 64-bit math).
const PIPE_REACH: u32 = 64;

/// Pipes whose instructions end in order. `All` is the one pipe of Xe-LP.
const PIPES: [Pipe; 6] = [
    Pipe::Float,
    Pipe::Integer,
    Pipe::Long,
    Pipe::Math,
    Pipe::Scalar,
    Pipe::All,
];

/// An instruction that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoundInstruction {
    /// Its index.
    pub(super) instruction: usize,
    /// Whether it was executed on a way without a loop's way back.
    pub(super) direct: bool,
    /// Whether it was executed in an earlier turn of a loop.
    pub(super) looped: bool,
    /// Instructions from it to the one that waits, on the first path that was found.
    pub(super) apart: u32,
}

/// How paths ended on which nothing was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ends {
    /// At the kernel's first instruction.
    pub(super) entry: bool,
    /// At the first instruction of a function whose callers are not known.
    pub(super) caller: bool,
    /// At an instruction that waits for the same: what lies before is done.
    pub(super) waited: bool,
    /// Behind a call of a function that is not in this code.
    pub(super) elsewhere: bool,
    /// Behind bytes that are no known instruction.
    pub(super) unknown: bool,
    /// Too many blocks.
    pub(super) limit: bool,
}

/// What a search gave: every nearest instruction, the closest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NearestInstructions {
    pub(super) found: Vec<FoundInstruction>,
    pub(super) ends: Ends,
}

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// The holder of a token, for an instruction that uses it so.
    Token(u8, TokenUse),
    /// The n-th instruction back in a pipe of [`PIPES`].
    Pipe(usize, u8),
    /// The last instruction that writes an accumulator.
    Accumulator,
    /// The last one that signals to the rest of a work group that it is at the barrier.
    Signal,
}

/// What a piece of a block has of what is wanted.
enum SearchStep {
    Found(usize),
    Waited,
    /// Nothing: this many instructions are left to count.
    Further(u8),
}

/// A path so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PathState {
    block: usize,
    /// Instructions of the pipe still to be counted.
    left: u8,
    /// In a function that returned on this path.
    inside: bool,
    looped: bool,
}

/// The instructions of a kernel by what may be waited for.
pub(super) struct Index<'a> {
    pub(super) instructions: &'a [Instruction],
    pub(super) graph: &'a Graph,
    sets: Vec<Vec<usize>>,
    written: Vec<Vec<usize>>,
    read: Vec<Vec<usize>>,
    pipes: Vec<Vec<usize>>,
    accumulators: Vec<usize>,
    signals: Vec<usize>,
    /// Instructions before which bytes could not be decoded.
    gaps: Vec<usize>,
    returns: FxHashMap<usize, Option<Vec<usize>>>,
    steps: u32,
}

impl<'a> Index<'a> {
    pub(super) fn new(instructions: &'a [Instruction], graph: &'a Graph) -> Self {
        let lists = || vec![Vec::new(); TOKENS];
        let mut index = Self {
            instructions,
            graph,
            sets: lists(),
            written: lists(),
            read: lists(),
            pipes: vec![Vec::new(); PIPES.len()],
            accumulators: Vec::new(),
            signals: Vec::new(),
            gaps: Vec::new(),
            returns: FxHashMap::default(),
            steps: 0,
        };
        let mut end = 0;
        for (at, instruction) in instructions.iter().enumerate() {
            if instruction.offset > end {
                index.gaps.push(at);
            }
            end = instruction.offset.saturating_add(instruction.length.into());
            index.add(at, instruction);
        }
        index
    }

    fn add(&mut self, at: usize, instruction: &Instruction) {
        if let Some(token) = instruction.swsb.token {
            let lists = match token.use_ {
                TokenUse::Set => &mut self.sets,
                TokenUse::WaitDst => &mut self.written,
                TokenUse::WaitSrc => &mut self.read,
            };
            if let Some(list) = lists.get_mut(usize::from(token.number)) {
                list.push(at);
            }
        }
        // Without its syntax it is not known for which it waits.
        if let (Some(tokens), Some(_)) = (tokens_of_sync(instruction), &instruction.text) {
            let lists = match waits_for_results(instruction) {
                true => &mut self.written,
                false => &mut self.read,
            };
            for (number, list) in lists.iter_mut().enumerate() {
                if tokens >> number & 1 == 1 && list.last() != Some(&at) {
                    list.push(at);
                }
            }
        }
        let pipe = instruction
            .pipe
            .and_then(|pipe| PIPES.iter().position(|p| *p == pipe));
        if let Some(list) = pipe.and_then(|pipe| self.pipes.get_mut(pipe)) {
            list.push(at);
        }
        if super::accumulator::is_written(instruction) {
            self.accumulators.push(at);
        }
        if instruction.mnemonic.starts_with("send") && instruction.mnemonic.ends_with(".gtwy") {
            self.signals.push(at);
        }
    }

    /// The pipes that an annotation means, as [`Want::Pipe`] names them.
    pub(super) fn pipes_of(&self, pipe: Pipe) -> Vec<usize> {
        let has_one = self.pipes.last().is_some_and(|all| !all.is_empty());
        let named = PIPES.iter().position(|p| *p == pipe && *p != Pipe::All);
        match named {
            Some(named) => vec![named],
            None if has_one => vec![PIPES.len() - 1],
            None => (0..PIPES.len() - 1).collect(),
        }
    }

    /// The pipe of a [`Want::Pipe`].
    pub(super) fn pipe(number: usize) -> Pipe {
        PIPES.get(number).copied().unwrap_or(Pipe::All)
    }

    /// Tokens that any instruction holds.
    pub(super) fn tokens(&self) -> u32 {
        let sets = self.sets.iter().enumerate();
        sets.fold(0, |all, (number, list)| {
            all | u32::from(!list.is_empty()) << number
        })
    }

    /// Looks backwards from an instruction.
    pub(super) fn search(&mut self, from: usize, want: Want) -> NearestInstructions {
        let mut walk = OpenSearch::default();
        if let Some(block) = self.graph.block_of(from) {
            let left = match want {
                Want::Pipe(_, distance) => distance,
                _ => 0,
            };
            let state = PathState {
                block,
                left,
                inside: false,
                looped: false,
            };
            let start = self.graph.blocks.get(block).map_or(from, |b| b.range.start);
            walk.steps_left = MAX_STEPS.min(MAX_ALL_STEPS.saturating_sub(self.steps));
            let given = walk.steps_left;
            self.piece(&mut walk, start..from, state, 0, want);
            while let Some((state, apart)) = walk.open.pop_front() {
                if walk.steps_left == 0 {
                    walk.result.ends.limit = true;
                    break;
                }
                walk.steps_left -= 1;
                let range = self.graph.blocks.get(state.block).map(|b| b.range.clone());
                self.piece(&mut walk, range.unwrap_or(0..0), state, apart, want);
            }
            self.steps = self.steps.saturating_add(given - walk.steps_left);
        }
        let mut result = walk.result;
        result.found.sort_by_key(|f| (f.apart, f.instruction));
        result
    }

    /// Looks at a block, or the part of it before the instruction that waits.
    fn piece(
        &mut self,
        walk: &mut OpenSearch,
        range: Range<usize>,
        state: PathState,
        apart: u32,
        want: Want,
    ) {
        let end = range.end;
        let is_pipe = matches!(want, Want::Pipe(..));
        match self.step(range.clone(), want, state.left) {
            SearchStep::Found(found) => {
                let apart = apart.saturating_add(length(found..end));
                if !(is_pipe && apart > PIPE_REACH) {
                    walk.found(found, state.looped, apart);
                }
            }
            SearchStep::Waited => walk.result.ends.waited = true,
            SearchStep::Further(left) => {
                if within(&self.gaps, range.clone()).next().is_some() {
                    walk.result.ends.unknown = true;
                }
                let apart = apart.saturating_add(length(range));
                if is_pipe && apart > PIPE_REACH {
                    return;
                }
                self.before(walk, PathState { left, ..state }, apart);
            }
        }
    }

    fn step(&self, range: Range<usize>, want: Want, left: u8) -> SearchStep {
        let last = |list: Option<&Vec<usize>>| within(list?, range.clone()).next_back();
        match want {
            Want::Token(number, use_) => {
                let number = usize::from(number);
                let set = last(self.sets.get(number));
                let written = last(self.written.get(number));
                let read = match use_ {
                    TokenUse::WaitSrc => last(self.read.get(number)),
                    _ => None,
                };
                match (set, written.max(read)) {
                    (Some(set), waited) if Some(set) > waited => SearchStep::Found(set),
                    (_, Some(_)) => SearchStep::Waited,
                    _ => SearchStep::Further(0),
                }
            }
            Want::Pipe(pipe, _) => {
                let all = self.pipes.get(pipe).map_or(&[][..], Vec::as_slice);
                let mut own = within(all, range);
                let count = own.len();
                match own.nth_back(usize::from(left).saturating_sub(1)) {
                    Some(found) => SearchStep::Found(found),
                    None => SearchStep::Further(left.saturating_sub(count as u8)),
                }
            }
            Want::Accumulator => {
                last(Some(&self.accumulators)).map_or(SearchStep::Further(0), SearchStep::Found)
            }
            Want::Signal => {
                last(Some(&self.signals)).map_or(SearchStep::Further(0), SearchStep::Found)
            }
        }
    }

    /// Goes on to the blocks before a block.
    fn before(&mut self, walk: &mut OpenSearch, state: PathState, apart: u32) {
        let graph = self.graph;
        let Some(block) = graph.blocks.get(state.block) else {
            return;
        };
        if block.range.start == 0 {
            walk.result.ends.entry |= !state.inside;
        } else if block.before.is_empty() {
            walk.result.ends.caller = true;
        }
        if state.inside {
            walk.leave(state, apart);
        }
        for before in &block.before {
            let next = PathState {
                block: before.block,
                looped: state.looped || before.is_back,
                ..state
            };
            match before.way {
                Way::Flow => walk.push(next, apart),
                Way::Call if state.inside => {}
                Way::Call => walk.push(next, apart),
                Way::Return(callee) => self.enter(walk, next, callee, apart),
            }
        }
    }

    /// Goes into a function from its returns; without, past it.
    fn enter(&mut self, walk: &mut OpenSearch, call: PathState, callee: Option<usize>, apart: u32) {
        let returns = callee.and_then(|callee| {
            let (graph, instructions) = (self.graph, self.instructions);
            let known = self.returns.entry(callee);
            let returns =
                known.or_insert_with(|| graph.returns(callee, instructions, MAX_FUNCTION));
            returns.clone().filter(|returns| !returns.is_empty())
        });
        let (Some(callee), Some(returns)) = (callee, returns) else {
            walk.result.ends.elsewhere = true;
            return walk.push(call, apart);
        };
        for block in returns {
            let state = PathState {
                block,
                inside: true,
                ..call
            };
            walk.push(state, apart);
        }
        walk.call(callee, call);
    }
}

/// A search under way.
#[derive(Default)]
struct OpenSearch {
    open: VecDeque<(PathState, u32)>,
    seen: FxHashSet<PathState>,
    /// Calls that paths go back to, by the first block of the function.
    calls: FxHashMap<usize, Vec<PathState>>,
    /// Paths that are through a function.
    through: FxHashMap<usize, Vec<(PathState, u32)>>,
    result: NearestInstructions,
    steps_left: u32,
}

impl OpenSearch {
    fn push(&mut self, state: PathState, apart: u32) {
        if self.seen.len() < MAX_STEPS as usize && self.seen.insert(state) {
            self.open.push_back((state, apart));
        }
    }

    fn found(&mut self, instruction: usize, looped: bool, apart: u32) {
        let mut known = self.result.found.iter_mut();
        if let Some(known) = known.find(|f| f.instruction == instruction) {
            known.looped |= looped;
            known.direct |= !looped;
            known.apart = known.apart.min(apart);
        } else {
            self.result.found.push(FoundInstruction {
                instruction,
                direct: !looped,
                looped,
                apart,
            });
        }
    }

    /// A path has come to the first block of what may be a function that it is in.
    fn leave(&mut self, state: PathState, apart: u32) {
        let through = self.through.entry(state.block).or_default();
        if through.iter().all(|(known, _)| *known != state) {
            through.push((state, apart));
        }
        for call in self.calls.get(&state.block).cloned().unwrap_or_default() {
            self.resume(call, state, apart);
        }
    }

    /// A path goes back to a call when it is through the function.
    fn call(&mut self, callee: usize, call: PathState) {
        let calls = self.calls.entry(callee).or_default();
        if !calls.contains(&call) {
            calls.push(call);
        }
        for (state, apart) in self.through.get(&callee).cloned().unwrap_or_default() {
            self.resume(call, state, apart);
        }
    }

    fn resume(&mut self, call: PathState, inner: PathState, apart: u32) {
        let state = PathState {
            left: inner.left,
            looped: call.looped || inner.looped,
            ..call
        };
        self.push(state, apart);
    }
}

/// Members of a sorted list that lie in a range.
fn within(
    list: &[usize],
    range: Range<usize>,
) -> impl DoubleEndedIterator<Item = usize> + ExactSizeIterator {
    let from = list.partition_point(|at| *at < range.start);
    let to = list.partition_point(|at| *at < range.end);
    list.get(from..to.max(from))
        .unwrap_or_default()
        .iter()
        .copied()
}

fn length(range: Range<usize>) -> u32 {
    u32::try_from(range.len()).unwrap_or(u32::MAX)
}

/// The tokens that `sync.allrd` and `sync.allwr` wait for, a bit for each: those that
/// its syntax names, where that is known, else all.
pub(super) fn tokens_of_sync(instruction: &Instruction) -> Option<u32> {
    let is_sync = matches!(&*instruction.mnemonic, "sync.allrd" | "sync.allwr");
    let named = |text: &str| {
        // `sync.allwr ($0,$3)`; what it has in braces is its annotation.
        let operands = text.split('{').next().unwrap_or_default();
        let tokens = operands.split('$').skip(1);
        tokens.fold(0_u32, |all, token| {
            let digits: String = token.chars().take_while(char::is_ascii_digit).collect();
            let number = digits.parse::<u32>().unwrap_or(u32::MAX);
            all | 1_u32.checked_shl(number).unwrap_or(0)
        })
    };
    let named = instruction.text.as_deref().map(named);
    is_sync.then(|| named.filter(|named| *named != 0).unwrap_or(u32::MAX))
}

/// Whether a `sync` waits for results, not only until operands have been read.
pub(super) fn waits_for_results(instruction: &Instruction) -> bool {
    instruction.mnemonic != "sync.allrd"
}
