//! Stalls of device kernels: by kernel, source line and instruction, and why.
//!
//! An instruction that stalls is rarely the cause. The scoreboard annotation names what
//! it waits for: a token, or an instruction a number of places back in a pipe. The
//! control flow graph leads back to the cause ([`Why`]). Where Intel's
//! `analyzeperfmetrics` does not end, in loops without such an instruction, each block is
//! looked at once.
//!
//! Every sample is in one instruction, one line and one kernel: samples at offsets
//! that are no instruction, and of kernels whose code is not known, too.

mod accumulator;
mod graph;
mod hints;
mod search;
mod tally;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_listing;
mod why;

pub use tally::Tally;
pub use why::{Producer, Role, Why, meaning, pipe_name};

use aiprof_model::profile::StallReason;
use aiprof_symbols::symbolize::device::isa::{Decoded, Instruction, Platform};
use aiprof_symbols::symbolize::device::{DeviceFunction, SourceFrame};
use graph::Graph;
use search::Index;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use why::Explainer;

/// A kernel's code, decoded.
#[derive(Clone, Debug)]
pub struct Code {
    /// Its code, names and sources.
    pub kernel: DeviceFunction,
    /// What device it was decoded for.
    pub platform: Platform,
    /// Its instructions.
    pub decoded: Decoded,
    /// Where the module is from, for people: a path, `the capture`.
    pub origin: String,
    /// What to know about the choice of this code; empty: nothing.
    pub note: String,
}

/// Samples of a kernel of a device.
#[derive(Clone, Debug)]
pub struct Sampled {
    /// The device.
    pub device: String,
    /// The kernel's name for people.
    pub kernel: String,
    /// Its code, or why there is none.
    pub code: Result<Code, String>,
    /// Samples by offset, in bytes from its first instruction; `None`: not known.
    pub rows: Vec<(Option<u64>, Tally)>,
}

/// Where in the source an instruction is: the kernel's function first, which others
/// are inlined into.
pub type SourcePlace = Vec<SourceFrame>;

/// An instruction with samples.
#[derive(Clone, Debug)]
pub struct InstructionStalls {
    /// Bytes from the kernel's first instruction; `None`: not known.
    pub offset: Option<u64>,
    /// Its index in the code's instructions; `None`: no instruction is there.
    pub index: Option<usize>,
    /// Its samples.
    pub samples: Tally,
    /// Where in the source it is; empty: not known.
    pub place: SourcePlace,
    /// Why it stalls, the most frequent reason first; without `active`.
    pub why: Vec<(StallReason, u64, Why)>,
}

/// A source line with samples, together with where it is inlined.
#[derive(Clone, Debug)]
pub struct LineStalls {
    /// The line and the calls that it is inlined by, the kernel's first; empty: all
    /// samples whose line is not known.
    pub place: SourcePlace,
    /// Its samples.
    pub samples: Tally,
    /// Instructions with samples.
    pub instructions: usize,
}

/// A kernel with samples.
#[derive(Clone, Debug)]
pub struct KernelStalls {
    /// The device.
    pub device: String,
    /// Its name for people.
    pub name: String,
    /// Its code, or why there is none.
    pub code: Result<Code, String>,
    /// All its samples.
    pub samples: Tally,
    /// The instructions with samples, by offset.
    pub instructions: Vec<InstructionStalls>,
    /// The lines with samples, the most frequent first.
    pub lines: Vec<LineStalls>,
    /// Samples at offsets where no instruction of the code begins.
    pub astray: u64,
    /// What its attributes have to do with its stalls.
    pub hints: Vec<String>,
}

/// A kernel with samples, and how long it ran.
#[derive(Clone, Debug)]
pub struct TimedStalls {
    /// Time on its device, nanoseconds: its part of the time in which the device was busy.
    pub device_ns: f64,
    /// Its samples.
    pub stalls: KernelStalls,
}

/// The stalls of all kernels.
#[derive(Clone, Debug, Default)]
pub struct StallReport {
    /// What was read, for people.
    pub title: String,
    /// What to know about it, a sentence each: losses, what is missing, that it is
    /// synthetic.
    pub notes: Vec<String>,
    /// The kernels, the most frequent first.
    pub kernels: Vec<KernelStalls>,
    /// Samples of all kernels, also of those that are not shown.
    pub samples: Tally,
}

impl StallReport {
    /// Analyses the samples of kernels.
    pub fn of(title: String, notes: Vec<String>, sampled: Vec<Sampled>) -> Self {
        let mut kernels: Vec<_> = sampled.into_iter().map(KernelStalls::of).collect();
        kernels.sort_by(|a, b| {
            let order = b.samples.total().cmp(&a.samples.total());
            order.then_with(|| (&a.name, &a.device).cmp(&(&b.name, &b.device)))
        });
        let samples = kernels.iter().map(|kernel| kernel.samples).sum();
        Self {
            title,
            notes,
            kernels,
            samples,
        }
    }
}

impl KernelStalls {
    /// Analyses the samples of a kernel.
    pub fn of(sampled: Sampled) -> Self {
        let code = sampled.code.as_ref().ok();
        let decoded = code.map_or(&[][..], |c| c.decoded.instructions.as_slice());
        let mut instructions = by_instruction(&sampled.rows, code);
        let samples: Tally = sampled.rows.iter().map(|(_, tally)| *tally).sum();
        let astray = instructions.iter().filter(|i| i.index.is_none());
        let astray: u64 = astray.map(|i| i.samples.total()).sum();
        if let Some(code) = code {
            explain(&mut instructions, decoded, code.kernel.code.len());
        }
        let lines = by_line(&instructions);
        let hints = code.map(|code| hints::of(code, &samples, &instructions));
        Self {
            device: sampled.device,
            name: sampled.kernel,
            astray: if code.is_some() { astray } else { 0 },
            hints: hints.unwrap_or_default(),
            code: sampled.code,
            samples,
            instructions,
            lines,
        }
    }

    /// An instruction of the code.
    pub fn instruction(&self, index: usize) -> Option<&Instruction> {
        self.code.as_ref().ok()?.decoded.instructions.get(index)
    }

    /// Where in the source an instruction of the code is.
    pub fn place(&self, index: usize) -> SourcePlace {
        let code = self.code.as_ref().ok();
        let found = code.zip(self.instruction(index));
        found.map_or_else(Vec::new, |(code, i)| code.kernel.source(i.offset))
    }
}

/// Samples by instruction. Offsets within one are no instruction: the device is sampled
/// where instructions begin, so the code is not what ran there, or the record is wrong.
fn by_instruction(rows: &[(Option<u64>, Tally)], code: Option<&Code>) -> Vec<InstructionStalls> {
    let decoded = code.map_or(&[][..], |c| c.decoded.instructions.as_slice());
    let index = |offset: u64| {
        let offset = u32::try_from(offset).ok()?;
        decoded.binary_search_by_key(&offset, |i| i.offset).ok()
    };
    // Samples without an offset come last.
    let mut all: BTreeMap<(bool, u64), (Option<usize>, Tally)> = BTreeMap::new();
    for (offset, tally) in rows {
        let key = (offset.is_none(), offset.unwrap_or(0));
        let found = offset.and_then(index);
        let (_, sum) = all.entry(key).or_insert((found, Tally::default()));
        sum.add(tally);
    }
    type Row = ((bool, u64), (Option<usize>, Tally));
    let instruction = |((is_unknown, offset), (index, samples)): Row| {
        let at = u32::try_from(offset).ok().filter(|_| index.is_some());
        InstructionStalls {
            offset: (!is_unknown).then_some(offset),
            index,
            samples,
            place: code
                .zip(at)
                .map_or_else(Vec::new, |(code, at)| code.kernel.source(at)),
            why: Vec::new(),
        }
    };
    all.into_iter().map(instruction).collect()
}

/// Explains the stalls; those with the most samples first, as the work is bounded.
fn explain(stalled: &mut [InstructionStalls], decoded: &[Instruction], code_bytes: usize) {
    let graph = Graph::of(decoded);
    let mut explainer = Explainer::new(Index::new(decoded, &graph), code_bytes);
    let mut order: Vec<&mut InstructionStalls> = stalled.iter_mut().collect();
    order.sort_by_key(|i| (Reverse(i.samples.stalled()), i.offset));
    for stalled in order {
        let Some(index) = stalled.index else { continue };
        let reasons = stalled.samples.reasons().into_iter();
        let stalls = reasons.filter(|(reason, _)| *reason != StallReason::Active);
        let why = stalls.map(|(reason, count)| (reason, count, explainer.why(index, reason)));
        stalled.why = why.collect();
    }
}

/// Samples by line.
fn by_line(instructions: &[InstructionStalls]) -> Vec<LineStalls> {
    type Key<'a> = Vec<(&'a str, &'a str, u32)>;
    let mut lines: BTreeMap<Key, LineStalls> = BTreeMap::new();
    for instruction in instructions {
        let frames = instruction.place.iter();
        let is_known = instruction.place.last().is_some_and(|f| f.line > 0);
        let key: Key = match is_known {
            true => frames.map(|f| (&*f.function, &*f.file, f.line)).collect(),
            false => Vec::new(),
        };
        let line = lines.entry(key).or_insert_with(|| LineStalls {
            place: instruction.place.clone(),
            samples: Tally::default(),
            instructions: 0,
        });
        if !is_known {
            line.place.clear();
        }
        line.samples.add(&instruction.samples);
        line.instructions += 1;
    }
    let mut lines: Vec<LineStalls> = lines.into_values().collect();
    lines.sort_by_key(|line| Reverse(line.samples.total()));
    lines
}
