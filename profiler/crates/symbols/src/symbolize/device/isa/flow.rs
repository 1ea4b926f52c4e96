//! Where control goes after an instruction.

use super::opcode::Form;
use super::{Platform, word::Word};

/// Where control goes after an instruction. Targets are offsets from the
/// kernel's first instruction, and lie in the code (in hostile code perhaps within
/// an instruction).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Flow {
    /// To the next instruction.
    Next,
    /// To `target` only.
    Jump {
        /// Where to.
        target: u32,
    },
    /// To any of `targets`, or to the next instruction.
    Branch {
        /// Where to, without duplicates: the jump target (JIP) first, then the
        /// one where the channels that left meet again (UIP).
        targets: Vec<u32>,
    },
    /// To a function that returns to the next instruction.
    Call {
        /// The function's first instruction; `None` for an absolute or computed
        /// address.
        target: Option<u32>,
    },
    /// Back to the caller.
    Return,
    /// Nowhere: the thread ends (or faults, at an `illegal` instruction).
    End,
    /// To a computed address, or out of the code.
    Unknown,
}

/// Bits of the two offsets, relative to the instruction's own first byte.
const JIP: u32 = 96;
const UIP: u32 = 64;
/// Set where the first and the second operand is an immediate, not a register.
const IMMEDIATE0: u32 = 46;
const IMMEDIATE1: u32 = 47;

pub(super) fn decode(
    word: Word,
    form: Form,
    platform: Platform,
    offset: u32,
    code_len: usize,
) -> Flow {
    let target = |low| target(word, low, offset, code_len);
    match form {
        Form::Illegal => Flow::End,
        Form::Send if word.bit(34) => Flow::End,
        Form::SendG if word.bit(32) => Flow::End,
        Form::Return => Flow::Return,
        Form::CallAbsolute => Flow::Call { target: None },
        Form::Call if !word.bit(IMMEDIATE0) => Flow::Call { target: None },
        Form::Call => Flow::Call {
            target: target(JIP),
        },
        Form::Jump | Form::Branch1 | Form::Branch2 | Form::Leave if !word.bit(IMMEDIATE0) => {
            Flow::Unknown
        }
        Form::Jump if !predicated(word, platform) => {
            target(JIP).map_or(Flow::Unknown, |target| Flow::Jump { target })
        }
        Form::Jump | Form::Branch1 => branch([target(JIP), None]),
        Form::Leave if !predicated(word, platform) => leave(target(JIP), second(word, target)),
        Form::Branch2 | Form::Leave => branch([target(JIP), second(word, target)]),
        _ => Flow::Next,
    }
}

fn second(word: Word, target: impl Fn(u32) -> Option<u32>) -> Option<u32> {
    word.bit(IMMEDIATE1).then(|| target(UIP)).flatten()
}

fn target(word: Word, low: u32, offset: u32, code_len: usize) -> Option<u32> {
    let target = offset.checked_add_signed(word.signed(low))?;
    ((target as usize) < code_len).then_some(target)
}

/// Every channel leaves: control stays here for none.
fn leave(jip: Option<u32>, uip: Option<u32>) -> Flow {
    match (jip, uip) {
        (Some(target), Some(uip)) if target == uip => Flow::Jump { target },
        targets => branch(targets.into()),
    }
}

fn branch(targets: [Option<u32>; 2]) -> Flow {
    let mut targets: Vec<u32> = targets.into_iter().flatten().collect();
    targets.dedup();
    if targets.is_empty() {
        Flow::Unknown
    } else {
        Flow::Branch { targets }
    }
}

fn predicated(word: Word, platform: Platform) -> bool {
    let control = if platform >= Platform::XeHpc {
        word.field(26, 2)
    } else {
        word.field(24, 4)
    };
    control != 0
}
