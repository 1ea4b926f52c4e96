//! The in-order execution pipe of an instruction, from its data types.

use super::opcode::{Form, MOV, SRND, Spec};
use super::{Pipe, Platform, compact, word::Word};

/// Data types as uncompacted instructions encode them: bit 3 floating point,
/// bits 0 and 1 the size where it is 3 (64 bits).
const SIZE_64: u32 = 3;
const FLOAT: u32 = 8;
const DOUBLE: u32 = FLOAT | SIZE_64;

/// First register number of the scalar registers among the architecture's.
const SCALAR_REGISTERS: u32 = 6;

/// The pipe; `None` for what completes out of order, and for control flow.
pub(super) fn of(word: Word, spec: Spec, platform: Platform) -> Option<Pipe> {
    match spec.form {
        Form::Math if platform >= Platform::XeHpc => return Some(Pipe::Math),
        Form::Unary | Form::Binary | Form::Ternary => {}
        _ => return None,
    }
    if platform == Platform::XeLp {
        return Some(Pipe::All);
    }
    if word.compacted() {
        let pipe = compact::pipe(word, spec.form, platform);
        let converts = platform >= Platform::Xe3p && spec.opcode == SRND;
        return Some(if converts { Pipe::Integer } else { pipe });
    }
    if spec.opcode == MOV && platform >= Platform::Xe3 && moves_to_scalar(word) {
        return Some(Pipe::Scalar);
    }
    Some(by_types(word, spec, platform))
}

fn by_types(word: Word, spec: Spec, platform: Platform) -> Pipe {
    let (destination, sources) = types(word, spec.form);
    let long = if platform >= Platform::XeHpc {
        // 64-bit integers run in the integer pipe here.
        destination == DOUBLE
    } else {
        let mut all = std::iter::once(destination).chain(sources);
        all.any(|kind| kind & SIZE_64 == SIZE_64)
    };
    if long {
        Pipe::Long
    } else if destination & FLOAT == 0 || converts(spec, platform, destination, sources[0]) {
        Pipe::Integer
    } else {
        Pipe::Float
    }
}

/// Conversions to floating point run in the integer pipe from Xe3p on.
fn converts(spec: Spec, platform: Platform, destination: u32, source: u32) -> bool {
    platform >= Platform::Xe3p
        && match spec.opcode {
            MOV => destination != source,
            SRND => true,
            _ => false,
        }
}

/// Types of the destination and the sources; 0 where there is no source.
fn types(word: Word, form: Form) -> (u32, [u32; 3]) {
    let destination = word.field(36, 4);
    let sources = match form {
        // Three sources share bit 39, which means floating point, with the destination.
        Form::Ternary => {
            let float = word.field(39, 1) << 3;
            [40, 88, 80].map(|low| word.field(low, 3) | float)
        }
        Form::Binary => [word.field(40, 4), word.field(88, 4), 0],
        _ => [word.field(40, 4), 0, 0],
    };
    (destination, sources)
}

/// `mov` of an immediate to a scalar register.
fn moves_to_scalar(word: Word) -> bool {
    let architecture = !word.bit(50);
    let immediate = word.bit(46);
    architecture && immediate && word.field(60, 4) == SCALAR_REGISTERS
}
