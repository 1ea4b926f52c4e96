//! Where a thread's state is. Up to 3.14 it is a value of the thread under a key in `_PyRuntime`
//! (`gilstate.autoTSSkey`), which moves between patch releases; later it is in a variable of the
//! thread. The code of the function that returns the state shows both.

use super::Version;
use aiprof_common::{
    TSS_DYNAMIC, TSS_DYNAMIC_MUSL, TSS_GLIBC, TSS_LIST, TSS_LOADED, TSS_MUSL, TSS_STATIC,
};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use serde::{Deserialize, Serialize};

/// Bytes of `PyGILState_GetThisThreadState` that are read.
pub(super) const CODE_BYTES: usize = 96;
/// The first version without a key.
pub(super) const FIRST_WITHOUT: u8 = 15;
/// Most bytes of `_PyRuntime` before the key.
const MAX_OFFSET: u64 = 1 << 16;

/// How a thread's state is found. Addresses are the file's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum StatePlace {
    /// The key at this address.
    Key(u64),
    /// A variable of the program's threads, at this offset from their fs base.
    Static(u64),
    /// Likewise; the loader writes the offset to this address.
    Loaded(u64),
    /// A variable of a library's threads: the address of its `tls_index`, and what is added.
    Dynamic { index: u64, added: u64 },
    /// The lists of all threads.
    List,
}

impl StatePlace {
    /// `tss`, `key` and `tls_offset` of a layout, where the file is moved by `bias`.
    pub(super) fn located(&self, bias: u64, is_musl: bool) -> (u8, u64, u64) {
        match *self {
            Self::Key(at) if is_musl => (TSS_MUSL, at.wrapping_add(bias), 0),
            Self::Key(at) => (TSS_GLIBC, at.wrapping_add(bias), 0),
            Self::Static(offset) => (TSS_STATIC, offset, 0),
            Self::Loaded(at) => (TSS_LOADED, at.wrapping_add(bias), 0),
            Self::Dynamic { index, added } => {
                let tss = if is_musl {
                    TSS_DYNAMIC_MUSL
                } else {
                    TSS_DYNAMIC
                };
                (tss, index.wrapping_add(bias), added)
            }
            Self::List => (TSS_LIST, 0, 0),
        }
    }
}

/// The variable that has a thread's state, from the code of the function at `address`, which
/// returns it.
pub(super) fn variable(code: &[u8], address: u64) -> Option<StatePlace> {
    // Words that were loaded, and the argument of `__tls_get_addr`.
    let (mut loaded, mut index, mut called) = (None, None, None);
    for i in Decoder::with_ip(64, code, address, DecoderOptions::NONE) {
        let at = i.memory_displacement64();
        match (i.mnemonic(), i.memory_segment(), i.memory_base()) {
            _ if i.is_invalid() || i.flow_control() == FlowControl::Return => return None,
            _ if i.flow_control() == FlowControl::Call => called = index,
            (Mnemonic::Lea, _, Register::RIP) if i.op0_register() == Register::RDI => {
                index = Some(at);
            }
            _ if i.op0_kind() != OpKind::Register || i.op1_kind() != OpKind::Memory => {}
            (Mnemonic::Mov, Register::FS, Register::None) => return Some(StatePlace::Static(at)),
            (Mnemonic::Mov, Register::FS, base) => {
                let found = loaded.filter(|(register, _)| *register == base && at == 0);
                return found.map(|(_, at)| StatePlace::Loaded(at));
            }
            (Mnemonic::Mov, _, Register::RIP) => loaded = Some((i.op0_register(), at)),
            (Mnemonic::Mov, _, Register::RAX) => {
                return called.map(|index| StatePlace::Dynamic { index, added: at });
            }
            _ => {}
        }
    }
    None
}

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
