//! What compacted instructions leave out: small indices into the hardware's
//! tables. Only those columns are here that a decoder without operands needs.
//!
//! Up to Xe-HPG the control index (of three-source instructions too) stands in bits 24 to 28, the
//! data type index in bits 30 to 34. From Xe-HPC on the control index is in bits 18 to 22 (18 to 21
//! for three sources, whose bits 22 to 25 are the source index). The data type index is in bits 26,
//! 27, 28, 30 and 31.

use super::Platform::{self, Xe2, Xe3p, XeHpc, XeLp};
use super::opcode::Form;
use super::{Pipe, word::Word};

/// Sync function by control index; '-' where the index makes no sync.
const SYNC_XE: &[u8] = b"00000-0-0003--20-0000-00---0--00";
const SYNC_XEHPC: &[u8] = b"00000000--0------2-3-3-0e0-000--";
const SYNC_XE2: &[u8] = b"00000--00030-03-----20-0-000000-";

/// Repeat count of dpas, by data type index.
const DPAS_XE: &[u8] = b"111115-1-111-11515111-1511111111";
/// The same by source index.
const DPAS_XEHPC: &[u8] = b"1111111112222288";

/// Pipe of the destination's type by data type index: Float, Integer, Long.
const TYPES_XE: &[u8] = b"FFFFFFFIFIIFIFIIFIIIIIIIIFIIFFFF";
const TYPES_XEHPC: &[u8] = b"IIIFIFIFIILIIIIIIIIIFIIIIIFIIIII";
const TYPES_XE2: &[u8] = b"FFFIFFIIFIIFFFFIIIFIFIIILFIIIIFI";
/// Xe3p has a table of its own for one source.
const TYPES_XE3P_UNARY: &[u8] = b"FFIFIIIIFFIIIILIIIIIIIIIIIIIIIII";
/// The same by control index, for three sources.
const TERNARY_XELP: &[u8] = b"FFFFFFFFFFFFFFFFFFFFFFFFFFFIFFFF";
const TERNARY_XEHP: &[u8] = b"FFFFFFFFFFFFFFFFFFFFFFIIIIIIIIFF";
const TERNARY_XEHPC: &[u8] = b"LLLFFLFIFLLFFIFI";
const TERNARY_XE2: &[u8] = b"FFFFLLLFFFFLFIIL";

/// The function of a compacted sync; `None` where the index is not for one.
pub(super) fn sync_function(word: Word, platform: Platform) -> Option<u32> {
    let (table, index) = match platform {
        _ if platform < XeHpc => (SYNC_XE, word.field(24, 5)),
        XeHpc => (SYNC_XEHPC, word.field(18, 5)),
        _ => (SYNC_XE2, word.field(18, 5)),
    };
    char::from(entry(table, index)).to_digit(16)
}

/// The repeat count of a compacted dpas, whose depth is 8; `None` where the
/// index is not for one.
pub(super) fn dpas_repeat(word: Word, platform: Platform) -> Option<u32> {
    let (table, index) = if platform < XeHpc {
        (DPAS_XE, word.field(30, 5))
    } else {
        (DPAS_XEHPC, word.field(22, 4))
    };
    char::from(entry(table, index)).to_digit(10)
}

/// The in-order pipe of a compacted instruction. No index before Xe-HPC has a
/// type of 64 bits.
pub(super) fn pipe(word: Word, form: Form, platform: Platform) -> Pipe {
    let (table, index) = match (form, platform) {
        (Form::Ternary, XeLp) => (TERNARY_XELP, word.field(24, 5)),
        (Form::Ternary, _) if platform < XeHpc => (TERNARY_XEHP, word.field(24, 5)),
        (Form::Ternary, XeHpc) => (TERNARY_XEHPC, word.field(18, 4)),
        (Form::Ternary, _) => (TERNARY_XE2, word.field(18, 4)),
        (Form::Unary, Xe3p) => (TYPES_XE3P_UNARY, split_index(word)),
        _ if platform < XeHpc => (TYPES_XE, word.field(30, 5)),
        _ if platform < Xe2 => (TYPES_XEHPC, split_index(word)),
        _ => (TYPES_XE2, split_index(word)),
    };
    match entry(table, index) {
        b'F' => Pipe::Float,
        b'L' => Pipe::Long,
        _ => Pipe::Integer,
    }
}

/// The data type index around the compaction bit.
fn split_index(word: Word) -> u32 {
    word.field(26, 3) | word.field(30, 2) << 3
}

fn entry(table: &[u8], index: u32) -> u8 {
    table.get(index as usize).copied().unwrap_or(b'-')
}
