//! Where `_PyRuntime` has the key of the thread states (`gilstate.autoTSSkey`). It moves
//! between patch releases, so it is read from the code of the function that uses it.

use super::Version;
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

/// Bytes of `PyGILState_GetThisThreadState` that are read.
pub(super) const CODE_BYTES: usize = 96;
/// Most bytes of `_PyRuntime` before the key.
const MAX_OFFSET: u64 = 1 << 16;

/// The offset of the key in `_PyRuntime`, from the code of the function at `address`. It
/// loads the address of the key, a `Py_tss_t`; or, with link-time optimization, both of
/// its parts.
pub(super) fn offset(code: &[u8], address: u64, runtime: u64) -> Option<u64> {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let within = |offset: u64| (1..MAX_OFFSET).contains(&offset).then_some(offset);
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() || instruction.mnemonic() == Mnemonic::Ret {
            break;
        }
        let has_memory =
            (0..instruction.op_count()).any(|op| instruction.op_kind(op) == OpKind::Memory);
        if !has_memory {
            continue;
        }
        let found = match (instruction.mnemonic(), instruction.memory_base()) {
            (Mnemonic::Lea, Register::RIP) => {
                within(instruction.memory_displacement64().wrapping_sub(runtime))
            }
            (Mnemonic::Lea, _) => within(instruction.memory_displacement64()),
            // The key itself, an int behind the int that shows whether there is one.
            (Mnemonic::Mov, Register::RIP) if instruction.op0_register() == Register::EDI => {
                within(
                    instruction
                        .memory_displacement64()
                        .wrapping_sub(runtime + 4),
                )
            }
            _ => None,
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Where it is in releases of each version that were looked at.
pub(super) fn usual(version: Version) -> Option<u64> {
    if version.major != 3 || version.free_threaded {
        return None;
    }
    match version.minor {
        8 => Some(1392),
        9 | 10 => Some(584),
        11 => Some(592),
        12 => Some(1544),
        13 => Some(2160),
        14 => Some(2336),
        _ => None,
    }
}
