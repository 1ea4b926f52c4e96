//! Instructions of Intel GPUs, from Xe-LP to Xe3p: length, mnemonic, scoreboard
//! annotation, control flow and execution pipe.
//!
//! Two decoders give the same types:
//!
//! * [`decode`], a table of our own: total, without allocation per byte of input,
//!   for any bytes. It knows no operands.
//! * [`iga::Iga`], Intel's disassembler `libiga64` loaded at run time where it is
//!   installed. It adds the whole syntax of each instruction.
//!
//! An instruction is 16 bytes, or 8 when bit 29 marks it as compacted. Opcode (bits 0 to 6) and
//! scoreboard annotation (from bit 8) stand at the same place in both. What a compacted instruction
//! leaves out is looked up by small indices in tables of the hardware; those needed here are in
//! `compact`.
//!
//! Field positions, opcodes and index tables are facts of the hardware, found in Intel's
//! Programmer's Reference Manuals and IGA's public models. They are checked against `iga64` for
//! every instruction of the fixtures and for every value of the fields (see `tests`).

mod compact;
mod flow;
pub mod iga;
mod opcode;
mod pipe;
mod platform;
mod swsb;
mod word;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use flow::Flow;
pub use platform::Platform;
pub use swsb::{Distance, Pipe, Swsb, Token, TokenUse};

use opcode::Spec;
use std::borrow::Cow;
use word::Word;

/// Code beyond this is not decoded and counts as one undecodable instruction:
/// the largest kernels are a few MiB.
const MAX_CODE_BYTES: usize = 64 << 20;

/// One instruction of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Bytes from the kernel's first instruction.
    pub offset: u32,
    /// Bytes: 8 (compacted) or 16.
    pub length: u8,
    /// Operation with its sub-function, as `iga64` prints it: `send.ugm`,
    /// `sync.nop`, `mad`, `math.inv`, `dpas.8x8`. Without the truth table of
    /// `bfn` and the modes of `dnscl` and of a compacted `lfsr`.
    pub mnemonic: Cow<'static, str>,
    /// What it waits for before it issues, and the token it sets.
    pub swsb: Swsb,
    /// Where control goes after it.
    pub flow: Flow,
    /// The in-order pipe it runs in; `None` for what completes out of order
    /// (sends, dpas, math before Xe-HPC) and for control flow, sync and nop.
    pub pipe: Option<Pipe>,
    /// The whole syntax; only with `libiga64`.
    pub text: Option<Box<str>>,
}

impl Instruction {
    /// The in-order pipe whose earlier instruction a distance annotation means,
    /// and how many instructions of that pipe back it is (from 1). `Any` is
    /// resolved: the instruction's own pipe, or every pipe where it has none.
    #[must_use]
    pub fn waits_for(&self) -> Option<(Pipe, u8)> {
        let distance = self.swsb.distance?;
        let pipe = match distance.pipe {
            Pipe::Any => self.pipe.unwrap_or(Pipe::All),
            pipe => pipe,
        };
        Some((pipe, distance.value))
    }
}

/// What decoding some code gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// In the order of their offsets. Padding of zeros after the last one shows
    /// as `illegal`.
    pub instructions: Vec<Instruction>,
    /// Instructions that could not be decoded and are missing: unknown opcodes,
    /// compacted forms that do not exist, a cut-off end.
    pub bad: u32,
}

impl Decoded {
    /// The instruction that holds byte `offset`.
    #[must_use]
    pub fn at(&self, offset: u32) -> Option<&Instruction> {
        let after = self.instructions.partition_point(|i| i.offset <= offset);
        let found = self.instructions.get(after.checked_sub(1)?)?;
        (offset - found.offset < u32::from(found.length)).then_some(found)
    }
}

/// The execution pipe of an in-order instruction, for distance stalls. `None`: completes out of
/// order, or is control flow. On Xe-LP, where there is one pipe, `All`. Double precision is
/// reported in the long pipe on all of Xe-HPG; Meteor Lake and Arrow Lake have it out of order in
/// the math pipe.
#[must_use]
pub fn pipe(instruction: &Instruction) -> Option<Pipe> {
    instruction.pipe
}

/// Decodes `code` by the own table. An instruction that cannot be decoded is
/// counted and skipped by the length its compaction bit states.
#[must_use]
pub fn decode(code: &[u8], platform: Platform) -> Decoded {
    let known = code.get(..MAX_CODE_BYTES).unwrap_or(code);
    let mut decoded = Decoded::default();
    let mut rest = known;
    let mut offset = 0u32;
    while let Some(word) = Word::read(rest) {
        match instruction(word, offset, known.len(), platform) {
            Some(instruction) => decoded.instructions.push(instruction),
            None => decoded.bad = decoded.bad.saturating_add(1),
        }
        rest = rest.get(usize::from(word.length)..).unwrap_or_default();
        offset = offset.saturating_add(u32::from(word.length));
    }
    let cut = rest.iter().any(|byte| *byte != 0) || known.len() < code.len();
    decoded.bad = decoded.bad.saturating_add(u32::from(cut));
    decoded
}

fn instruction(
    word: Word,
    offset: u32,
    code_len: usize,
    platform: Platform,
) -> Option<Instruction> {
    let spec = Spec::of(word, platform)?;
    Some(Instruction {
        offset,
        length: word.length,
        mnemonic: opcode::mnemonic(word, spec, platform),
        swsb: swsb::decode(word, spec.form, platform),
        flow: flow::decode(word, spec.form, platform, offset, code_len),
        pipe: pipe::of(word, spec, platform),
        text: None,
    })
}
