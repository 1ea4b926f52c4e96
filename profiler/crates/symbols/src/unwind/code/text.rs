//! Text, and what single instructions of it show.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use std::ops::Range;

/// What compilers align functions to, in bytes.
pub(super) const ALIGNMENT: u64 = 16;

/// Bytes of text, and where they are.
#[derive(Clone, Copy)]
pub(in crate::unwind) struct CodeText<'a> {
    start: u64,
    bytes: &'a [u8],
    /// Parts that the unwind data describe, by address: nothing of them is looked at.
    holes: &'a [Range<u64>],
}

impl<'a> CodeText<'a> {
    /// From an address on.
    pub(in crate::unwind) fn new(start: u64, bytes: &'a [u8]) -> Self {
        Self {
            start,
            bytes,
            holes: &[],
        }
    }

    /// The same without some parts, which come in order.
    pub(in crate::unwind) fn without(self, holes: &'a [Range<u64>]) -> Self {
        Self { holes, ..self }
    }

    /// The first address from `at` on that is in no hole.
    fn behind_hole(&self, at: u64) -> u64 {
        let next = self.holes.partition_point(|hole| hole.end <= at);
        let hole = self.holes.get(next).filter(|hole| hole.start <= at);
        hole.map_or(at, |hole| hole.end)
    }

    /// The bytes from an address on; none outside.
    fn from(&self, at: u64) -> &'a [u8] {
        if self.behind_hole(at) != at {
            return &[];
        }
        let skip = at.checked_sub(self.start).map(usize::try_from);
        match skip {
            Some(Ok(skip)) => self.bytes.get(skip..).unwrap_or_default(),
            _ => &[],
        }
    }

    /// Whether an address lies in it.
    pub(super) fn contains(&self, at: u64) -> bool {
        !self.from(at).is_empty()
    }

    /// Its first address.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Its bytes, those in holes too.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The first address behind it.
    pub(super) fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes.len() as u64)
    }

    /// The instruction at an address; `None`: there is none.
    pub(super) fn decode(&self, at: u64) -> Option<Instruction> {
        let bytes = self.from(at);
        let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
        let instruction = decoder.decode();
        (!instruction.is_invalid()).then_some(instruction)
    }
}

/// Whether code begins as functions do, and labels hardly ever: it makes room on the
/// stack, or saves a register there that is its caller's.
pub(super) fn begins_as_function(text: &CodeText<'_>, at: u64) -> bool {
    let first = text.decode(at);
    let first = match first {
        Some(i) if i.mnemonic() == Mnemonic::Endbr64 => text.decode(i.next_ip()),
        _ => first,
    };
    first.is_some_and(|i| match i.mnemonic() {
        Mnemonic::Push => matches!(
            i.op0_register(),
            Register::RBX
                | Register::RBP
                | Register::R12
                | Register::R13
                | Register::R14
                | Register::R15
        ),
        Mnemonic::Sub => i.op0_register() == Register::RSP && i.op1_kind() != OpKind::Register,
        _ => false,
    })
}

/// The address that an instruction loads into a register.
pub(in crate::unwind) fn loaded_address(i: &Instruction) -> Option<u64> {
    match (i.mnemonic(), i.op0_kind(), i.op1_kind()) {
        (Mnemonic::Lea, _, _) if i.is_ip_rel_memory_operand() => Some(i.ip_rel_memory_address()),
        (Mnemonic::Mov, OpKind::Register, OpKind::Immediate32 | OpKind::Immediate32to64) => {
            Some(i.immediate(1))
        }
        _ => None,
    }
}

/// Whether no code follows an instruction.
pub(super) fn ends_flow(i: &Instruction) -> bool {
    matches!(
        i.flow_control(),
        FlowControl::Return
            | FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Exception
    )
}

/// The first address of some that is not filled up with instructions that only fill
/// up; `decode` gives the instructions of the text.
pub(super) fn skip_padding(
    text: &CodeText<'_>,
    within: Range<u64>,
    mut decode: impl FnMut(u64) -> Option<Instruction>,
) -> u64 {
    let mut at = within.start;
    while at < within.end {
        let behind = text.behind_hole(at);
        if behind != at {
            at = behind;
            continue;
        }
        let Some(i) = decode(at).filter(|_| !text.from(at).starts_with(&[0])) else {
            at += 1;
            continue;
        };
        if !matches!(i.mnemonic(), Mnemonic::Nop | Mnemonic::Int3) {
            return at;
        }
        at = i.next_ip();
    }
    within.end
}

/// The range of addresses of some text.
pub(super) fn range(text: &CodeText<'_>) -> Range<u64> {
    text.start..text.end()
}
