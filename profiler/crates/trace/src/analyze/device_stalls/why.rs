//! Why an instruction stalls: what it waits for, and which instructions that is.

use super::accumulator;
use super::graph::targets;
use super::search::{
    Ends, FoundInstruction, Index, NearestInstructions, Want, tokens_of_sync, waits_for_results,
};
use aiprof_model::profile::StallReason;
use aiprof_symbols::symbolize::device::isa::{Flow, Instruction, Pipe, TokenUse};

/// Most instructions that one explanation names; the nearest.
const MAX_PRODUCERS: usize = 8;
/// Most sends to one unit that an explanation of a send names.
const MAX_SENDS: usize = 3;
/// Most tokens that are looked for one by one.
const TOKENS: u8 = 32;

/// What another instruction has to do with a stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It holds this token of the scoreboard.
    Token(u8),
    /// Its result, in this in-order pipe, is waited for.
    Pipe(Pipe),
    /// It writes the accumulator.
    Accumulator,
    /// It signals that the thread has come to the barrier.
    Signal,
    /// The branch by which control comes here.
    Branch,
    /// It sends to the same unit shortly before.
    Send,
}

/// Another instruction that a stall has to do with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Producer {
    /// Its index in the kernel's instructions.
    pub instruction: usize,
    /// What it has to do with the stall.
    pub role: Role,
    /// It comes before the stalled one without going round a loop.
    pub direct: bool,
    /// It comes before it in an earlier turn of a loop.
    pub looped: bool,
    /// Instructions from it to the stalled one, on the shortest path that was found.
    pub apart: u32,
}

/// Why an instruction stalls for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Why {
    /// What it waits for: a sentence without a point.
    pub text: String,
    /// The instructions that it waits for, the nearest first.
    pub producers: Vec<Producer>,
    /// Further ones that are not named.
    pub more: usize,
    /// What is not known, or not certain; empty: nothing.
    pub open: String,
}

/// What a stall for a reason means, whatever the instruction is.
pub fn meaning(reason: StallReason) -> &'static str {
    match reason {
        StallReason::Active => "an instruction was issued (no stall)",
        StallReason::Control => "a branch was being resolved",
        StallReason::PipeStall => "ready, but its pipe was busy",
        StallReason::Send => "no slot was free to send a message",
        StallReason::DistAcc => {
            "the result of an in-order instruction, or an accumulator, was not ready yet"
        }
        StallReason::Sbid => "a scoreboard token was held (memory, systolic array or math)",
        StallReason::Sync => "a barrier or another synchronization",
        StallReason::InstFetch => "the instruction was not in the instruction cache",
        StallReason::Other => "a reason that the device does not specify",
        StallReason::Tdr => "an earlier thread of a pixel shader had to run first",
    }
}

/// Explains the stalls of a kernel's instructions.
pub(super) struct Explainer<'a> {
    index: Index<'a>,
    code_bytes: usize,
}

impl<'a> Explainer<'a> {
    pub(super) fn new(index: Index<'a>, code_bytes: usize) -> Self {
        Self { index, code_bytes }
    }

    /// Why the instruction of an index stalls for a reason.
    pub(super) fn why(&mut self, at: usize, reason: StallReason) -> Why {
        let Some(instruction) = self.index.instructions.get(at) else {
            return Why::default();
        };
        match reason {
            StallReason::Sbid => self.tokens(at, instruction),
            StallReason::DistAcc => self.distance(at, instruction),
            StallReason::Sync => self.sync(at, instruction),
            StallReason::Control => self.control(at, instruction),
            StallReason::Send => self.send(at, instruction),
            StallReason::PipeStall => Why::said(match instruction.pipe {
                Some(pipe) => format!("ready, but the {} pipe was busy", pipe_name(pipe)),
                None => "ready, but its execution unit was busy".to_owned(),
            }),
            StallReason::InstFetch => self.fetch(at),
            StallReason::Active | StallReason::Other | StallReason::Tdr => {
                Why::said(meaning(reason).to_owned())
            }
        }
    }

    /// Scoreboard: who holds the tokens.
    fn tokens(&mut self, at: usize, instruction: &Instruction) -> Why {
        if let Some(token) = instruction.swsb.token {
            let search = self.index.search(at, Want::Token(token.number, token.use_));
            let text = match token.use_ {
                TokenUse::WaitDst => {
                    format!(
                        "waits for the result of the instruction that holds ${}",
                        token.number
                    )
                }
                TokenUse::WaitSrc => {
                    format!(
                        "waits until the instruction that holds ${} has read its operands",
                        token.number
                    )
                }
                TokenUse::Set => format!(
                    "takes ${}, and waits until its previous holder is done",
                    token.number
                ),
            };
            let missing = match token.use_ {
                TokenUse::Set => "no previous holder found",
                _ => "no holder found",
            };
            return self.searched(text, missing, [(search, Role::Token(token.number))]);
        }
        let Some(mask) = tokens_of_sync(instruction) else {
            return Why {
                text: "waits for the scoreboard".to_owned(),
                open: "its annotation contains no token".to_owned(),
                ..Why::default()
            };
        };
        let (use_, text) = match waits_for_results(instruction) {
            true => (
                TokenUse::WaitDst,
                "waits for the results of the instructions that hold tokens",
            ),
            false => (
                TokenUse::WaitSrc,
                "waits until the instructions that hold tokens have read their operands",
            ),
        };
        let held = mask & self.index.tokens();
        let numbers = (0..TOKENS).filter(|number| held >> number & 1 == 1);
        let all: Vec<_> = numbers
            .map(|number| {
                (
                    self.index.search(at, Want::Token(number, use_)),
                    Role::Token(number),
                )
            })
            .collect();
        self.searched(text.to_owned(), "no holders found", all)
    }

    /// Distance: the n-th instruction back in a pipe.
    fn distance(&mut self, at: usize, instruction: &Instruction) -> Why {
        let Some((pipe, back)) = instruction.waits_for() else {
            return self.accumulator(at, instruction);
        };
        let pipes = self.index.pipes_of(pipe);
        let mut all = Vec::new();
        for &number in &pipes {
            let search = self.index.search(at, Want::Pipe(number, back));
            all.push((search, Role::Pipe(Index::pipe(number))));
        }
        let of = match (pipes.as_slice(), back) {
            ([_], 1) => format!("the last instruction of the {} pipe", pipe_name(pipe)),
            ([_], _) => format!(
                "the {} instruction before it in the {} pipe",
                nth(back),
                pipe_name(pipe)
            ),
            (_, 1) => "the last instruction of every pipe".to_owned(),
            _ => format!("the {} instruction before it in every pipe", nth(back)),
        };
        self.searched(
            format!("waits for the result of {of}"),
            "no such instruction is near",
            all,
        )
    }

    fn accumulator(&mut self, at: usize, instruction: &Instruction) -> Why {
        if !accumulator::is_read(instruction) && !accumulator::is_written(instruction) {
            return Why {
                text: "waits for the result of an in-order instruction".to_owned(),
                open:
                    "its annotation has no distance; the device keeps the order of accumulators, \
                       flags and addresses itself"
                        .to_owned(),
                ..Why::default()
            };
        }
        let search = self.index.search(at, Want::Accumulator);
        let text = "waits for the accumulator".to_owned();
        self.searched(
            text,
            "the instruction that writes it is unknown",
            [(search, Role::Accumulator)],
        )
    }

    fn sync(&mut self, at: usize, instruction: &Instruction) -> Why {
        let is_waiting = instruction.swsb.token.is_some() || tokens_of_sync(instruction).is_some();
        match &*instruction.mnemonic {
            "sync.bar" => {
                let search = self.index.search(at, Want::Signal);
                let text = "waits at a barrier for the other threads of its work group".to_owned();
                self.searched(
                    text,
                    "the instruction that signals it was not found",
                    [(search, Role::Signal)],
                )
            }
            "sync.host" => Why::said("waits for the host".to_owned()),
            _ if is_waiting => self.tokens(at, instruction),
            _ if instruction.swsb.distance.is_some() => self.distance(at, instruction),
            name if name.starts_with("sync") => Why::said("a synchronization".to_owned()),
            _ => Why {
                text: "waits for a synchronization".to_owned(),
                open: "it is not a sync instruction".to_owned(),
                ..Why::default()
            },
        }
    }

    fn control(&mut self, at: usize, instruction: &Instruction) -> Why {
        let instructions = self.index.instructions;
        let offsets: Vec<String> = targets(&instruction.flow)
            .map(|t| format!("{t:#x}"))
            .collect();
        if !matches!(instruction.flow, Flow::Next) {
            let to = match instruction.flow {
                Flow::Unknown | Flow::Call { target: None } => "to a computed address".to_owned(),
                Flow::Return => "back to the caller".to_owned(),
                Flow::End => "the thread ends".to_owned(),
                _ => format!("to {}", offsets.join(" or ")),
            };
            return Why::said(format!("a branch that was being resolved: {to}"));
        }
        let graph = self.index.graph;
        let block = graph.block_of(at).and_then(|block| graph.blocks.get(block));
        let before = block.map_or(&[][..], |b| b.before.as_slice());
        let last = |block: usize| graph.blocks.get(block)?.range.end.checked_sub(1);
        let mut producers = Vec::new();
        for edge in before {
            let Some(branch) = last(edge.block) else {
                continue;
            };
            let is_branch = instructions
                .get(branch)
                .is_some_and(|i| i.flow != Flow::Next);
            if is_branch {
                producers.push(Producer {
                    instruction: branch,
                    role: Role::Branch,
                    direct: !edge.is_back,
                    looped: edge.is_back,
                    apart: block.map_or(0, |b| at.saturating_sub(b.range.start) as u32 + 1),
                });
            }
        }
        let open = match producers.is_empty() {
            true => "no branch leads to its block".to_owned(),
            false => String::new(),
        };
        Why::of(
            "follows a branch that was being resolved".to_owned(),
            producers,
            open,
        )
    }

    fn send(&mut self, at: usize, instruction: &Instruction) -> Why {
        let Some(unit) = unit_of(instruction) else {
            return Why {
                text: meaning(StallReason::Send).to_owned(),
                open: "it is not a send".to_owned(),
                ..Why::default()
            };
        };
        let graph = self.index.graph;
        let block = graph.block_of(at).and_then(|block| graph.blocks.get(block));
        let start = block.map_or(at, |b| b.range.start);
        let earlier = self.index.instructions.get(start..at).unwrap_or_default();
        let sends = earlier.iter().enumerate().rev();
        let sends = sends
            .filter(|(_, i)| unit_of(i) == Some(unit))
            .take(MAX_SENDS);
        let producers = sends.map(|(i, _)| Producer {
            instruction: start + i,
            role: Role::Send,
            direct: true,
            looped: false,
            apart: (at - start - i) as u32,
        });
        let text = format!(
            "no slot was free to send to {unit}, which accepts messages more slowly than they \
             arrive"
        );
        Why::of(text, producers.collect(), String::new())
    }

    fn fetch(&self, at: usize) -> Why {
        let offset = |index: usize| {
            let instructions = self.index.instructions;
            let found = instructions.get(index);
            let last = || instructions.last().map(|l| l.offset + u32::from(l.length));
            found.map(|i| i.offset).or_else(last).unwrap_or(0)
        };
        let whole = format!("the kernel has {} bytes of code", self.code_bytes);
        Why::said(match self.index.graph.loop_around(at) {
            Some(l) => {
                let bytes = offset(l.end).saturating_sub(offset(l.first));
                format!(
                    "was not in the instruction cache; the loop around it has {bytes} bytes, and \
                     {whole}"
                )
            }
            None => format!("was not in the instruction cache; it is not in a loop, and {whole}"),
        })
    }

    fn searched(
        &self,
        text: String,
        missing: &str,
        all: impl IntoIterator<Item = (NearestInstructions, Role)>,
    ) -> Why {
        let mut producers: Vec<Producer> = Vec::new();
        let mut ends = Ends::default();
        for (search, role) in all {
            producers.extend(search.found.iter().map(|found| producer(found, role)));
            ends.merge(search.ends);
        }
        let mut open = Vec::new();
        if producers.is_empty() {
            open.push(missing.to_owned());
            open.extend(ends.why_nothing().map(str::to_owned));
        } else {
            open.extend(ends.why_more().map(str::to_owned));
        }
        if !self.index.graph.computed.is_empty() {
            open.push("the code has computed jumps, so there may be other paths to it".to_owned());
        }
        Why::of(text, producers, open.join("; "))
    }
}

impl Why {
    fn said(text: String) -> Self {
        Self {
            text,
            ..Self::default()
        }
    }

    fn of(text: String, mut producers: Vec<Producer>, open: String) -> Self {
        producers.sort_by_key(|p| (p.apart, p.instruction));
        let more = producers.len().saturating_sub(MAX_PRODUCERS);
        producers.truncate(MAX_PRODUCERS);
        Self {
            text,
            producers,
            more,
            open,
        }
    }
}

impl Ends {
    fn merge(&mut self, other: Self) {
        self.entry |= other.entry;
        self.caller |= other.caller;
        self.waited |= other.waited;
        self.elsewhere |= other.elsewhere;
        self.unknown |= other.unknown;
        self.limit |= other.limit;
    }

    /// Why a search may have found nothing.
    fn why_nothing(self) -> impl Iterator<Item = &'static str> {
        let entry = (self.entry, "the kernel has none before this instruction");
        let waited = (self.waited, "an earlier instruction already waited for it");
        let at_all = [entry, waited].into_iter().filter(|(is, _)| *is);
        at_all.map(|(_, text)| text).chain(self.why_more())
    }

    /// Why it may not have found all.
    fn why_more(self) -> impl Iterator<Item = &'static str> {
        let all = [
            (self.caller, "the caller is unknown and may have one"),
            (
                self.elsewhere,
                "a function called earlier is not in this code and may have one",
            ),
            (self.unknown, "some instructions on the path are unknown"),
            (
                self.limit,
                "there are too many paths, so the search stopped",
            ),
        ];
        all.into_iter().filter(|(is, _)| *is).map(|(_, text)| text)
    }
}

fn producer(found: &FoundInstruction, role: Role) -> Producer {
    Producer {
        instruction: found.instruction,
        role,
        direct: found.direct,
        looped: found.looped,
        apart: found.apart,
    }
}

/// The unit that a send goes to: `ugm` of `send.ugm`.
pub(super) fn unit_of(instruction: &Instruction) -> Option<&str> {
    let (send, unit) = instruction.mnemonic.split_once('.')?;
    let unit = unit.split('.').next()?;
    send.starts_with("send").then_some(unit)
}

/// The name of a pipe for people.
pub fn pipe_name(pipe: Pipe) -> &'static str {
    match pipe {
        Pipe::Any | Pipe::All => "in-order",
        Pipe::Float => "float",
        Pipe::Integer => "integer",
        Pipe::Long => "long",
        Pipe::Math => "math",
        Pipe::Scalar => "scalar",
    }
}

fn nth(number: u8) -> String {
    match number {
        2 => "2nd".to_owned(),
        3 => "3rd".to_owned(),
        number => format!("{number}th"),
    }
}
