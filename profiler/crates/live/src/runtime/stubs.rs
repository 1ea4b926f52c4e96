//! Where a stub leads: a function that only loads a pointer and jumps there, as
//! the functions of Level Zero's loader do. x86-64.
//!
//! If a program ran before aiprof did, no probe saw its driver hand out the addresses. The loader
//! has kept them, and its own code shows where.

use super::decode::FunctionCode;
use crate::inspect::ReadMemory;
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};

/// Instructions that are looked at on one way through a stub.
const MAX_STEPS: usize = 24;
/// Most branches on the way.
const MAX_BRANCHES: usize = 3;
/// Most pointers on the way.
const MAX_LOADS: usize = 6;

/// A chain of pointers that begins at a fixed place in the file's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    /// Address of the first pointer, as in the file.
    at: u64,
    /// What is added to each pointer to have the address of the next one.
    offsets: Vec<i64>,
}

/// What a register holds.
#[derive(Clone, Debug)]
enum RegisterValue {
    /// An address, as in the file.
    Address(u64),
    /// What a chain leads to.
    Loaded(Chain),
}

impl Chain {
    /// What it leads to in a process where the file is loaded `bias` higher than its headers state.
    pub(super) fn follow(&self, bias: u64, memory: &dyn ReadMemory) -> Option<u64> {
        let mut value = memory.word(self.at.wrapping_add(bias))?;
        for &offset in &self.offsets {
            value = memory.word(value.wrapping_add_signed(offset))?;
        }
        (value != 0).then_some(value)
    }
}

/// The pointer that a function jumps to the value of, as its last act and with the
/// stack as it found it; `None` if it is no such function.
pub(super) fn target(code: &FunctionCode<'_>) -> Option<Chain> {
    walk(code, code.start, KnownRegisters::default(), MAX_BRANCHES)
}

/// The registers whose value is known.
#[derive(Clone, Debug, Default)]
struct KnownRegisters(Vec<(Register, RegisterValue)>);

impl KnownRegisters {
    fn get(&self, register: Register) -> Option<&RegisterValue> {
        self.0.iter().find(|(r, _)| *r == register).map(|(_, v)| v)
    }

    fn set(&mut self, register: Register, value: Option<RegisterValue>) {
        self.0.retain(|(r, _)| *r != register);
        self.0.extend(value.map(|value| (register, value)));
    }
}

fn walk(
    code: &FunctionCode<'_>,
    from: u64,
    mut known: KnownRegisters,
    branches: usize,
) -> Option<Chain> {
    let at = usize::try_from(from.checked_sub(code.start)?).ok()?;
    let bytes = code.bytes.get(at..)?;
    let mut decoder = Decoder::with_ip(64, bytes, from, DecoderOptions::NONE);
    let mut factory = InstructionInfoFactory::new();
    let mut instruction = Instruction::default();
    for _ in 0..MAX_STEPS {
        if !decoder.can_decode() {
            return None;
        }
        decoder.decode_out(&mut instruction);
        match instruction.flow_control() {
            FlowControl::Next => step(&mut factory, &instruction, &mut known)?,
            FlowControl::IndirectBranch => return jump(&instruction, &known),
            FlowControl::UnconditionalBranch => {
                let left = branches.checked_sub(1)?;
                return walk(code, instruction.near_branch_target(), known, left);
            }
            FlowControl::ConditionalBranch => {
                // Usually the check whether the pointer is set: either way may be it.
                let left = branches.checked_sub(1)?;
                let target = instruction.near_branch_target();
                let next = walk(code, instruction.next_ip(), known.clone(), left);
                return next.or_else(|| walk(code, target, known, left));
            }
            _ => return None,
        }
    }
    None
}

/// What a jump through a register or memory leads to.
fn jump(instruction: &Instruction, known: &KnownRegisters) -> Option<Chain> {
    let value = match instruction.op0_kind() {
        OpKind::Register => known.get(instruction.op0_register())?.clone(),
        OpKind::Memory => load(instruction, known)?,
        _ => return None,
    };
    match value {
        RegisterValue::Loaded(chain) => Some(chain),
        RegisterValue::Address(_) => None,
    }
}

/// Takes in an instruction that is followed by the next. `None`: it changes the
/// stack pointer, so that what follows is no tail call.
fn step(
    factory: &mut InstructionInfoFactory,
    instruction: &Instruction,
    known: &mut KnownRegisters,
) -> Option<()> {
    let loads = instruction.mnemonic() == Mnemonic::Mov
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register().is_gpr64();
    let value = match (instruction.mnemonic(), loads) {
        (_, true) if instruction.op1_kind() == OpKind::Memory => load(instruction, known),
        (_, true) if instruction.op1_kind() == OpKind::Register => {
            known.get(instruction.op1_register()).cloned()
        }
        (Mnemonic::Lea, _) => address(instruction, known),
        _ => None,
    };
    let info = factory.info(instruction);
    for used in info.used_registers() {
        let reads = matches!(
            used.access(),
            OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
        );
        let register = used.register().full_register();
        if !reads && register == Register::RSP {
            return None;
        }
        if !reads {
            known.set(register, None);
        }
    }
    if value.is_some() {
        known.set(instruction.op0_register(), value);
    }
    Some(())
}

/// The value of a plain address in memory.
fn load(instruction: &Instruction, known: &KnownRegisters) -> Option<RegisterValue> {
    let (base, offset) = place(instruction)?;
    let chain = match base {
        None => Chain {
            at: offset,
            offsets: Vec::new(),
        },
        Some(base) => match known.get(base)? {
            RegisterValue::Address(address) => Chain {
                at: address.wrapping_add(offset),
                offsets: Vec::new(),
            },
            RegisterValue::Loaded(chain) if chain.offsets.len() < MAX_LOADS => {
                let mut chain = chain.clone();
                chain.offsets.push(offset.cast_signed());
                chain
            }
            RegisterValue::Loaded(_) => return None,
        },
    };
    Some(RegisterValue::Loaded(chain))
}

/// The address that an instruction computes without reading it.
fn address(instruction: &Instruction, known: &KnownRegisters) -> Option<RegisterValue> {
    let (base, offset) = place(instruction)?;
    match base.map(|base| known.get(base)) {
        None => Some(RegisterValue::Address(offset)),
        Some(Some(RegisterValue::Address(address))) => {
            Some(RegisterValue::Address(address.wrapping_add(offset)))
        }
        Some(_) => None,
    }
}

/// Base and offset of an operand in memory; relative to the instruction, the
/// offset is the address itself and there is no base.
fn place(instruction: &Instruction) -> Option<(Option<Register>, u64)> {
    let plain = instruction.memory_index() == Register::None
        && instruction.segment_prefix() == Register::None;
    let offset = instruction.memory_displacement64();
    match instruction.memory_base() {
        _ if !plain => None,
        Register::RIP => Some((None, offset)),
        Register::None => None,
        base => Some((Some(base), offset)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    struct Words(BTreeMap<u64, u64>);

    impl ReadMemory for Words {
        fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
            let Some(word) = self.0.get(&address) else {
                return 0;
            };
            buffer.copy_from_slice(&word.to_le_bytes());
            8
        }
    }

    fn target_of(bytes: &[u8]) -> Option<Chain> {
        target(&FunctionCode {
            start: 0x1000,
            bytes,
            whole: true,
        })
    }

    #[test]
    fn the_loaders_stub_is_followed() {
        // mov rax, [rip+0x10]; mov r10, [rax]; mov rax, [r10+0x1f0]; test rax, rax;
        // je +2; jmp rax; ret
        let stub = b"\x48\x8b\x05\x10\0\0\0\x4c\x8b\x10\x49\x8b\x82\xf0\x01\0\0\
                     \x48\x85\xc0\x74\x02\xff\xe0\xc3";
        let chain = target_of(stub).unwrap();
        let expected = Chain {
            at: 0x1017,
            offsets: vec![0, 0x1f0],
        };
        assert_eq!(chain, expected);
        let bias = 0x7f00_0000_0000;
        let mut words =
            BTreeMap::from([(bias + 0x1017, 0x5000), (0x5000, 0x6000), (0x61f0, 0x1234)]);
        assert_eq!(chain.follow(bias, &Words(words.clone())), Some(0x1234));
        words.insert(0x61f0, 0);
        assert_eq!(chain.follow(bias, &Words(words.clone())), None);
        words.remove(&0x5000);
        assert_eq!(chain.follow(bias, &Words(words)), None);
    }

    #[test]
    fn other_shapes_of_stubs() {
        // jmp [rip+0x10]
        let chain = target_of(b"\xff\x25\x10\0\0\0").unwrap();
        assert_eq!((chain.at, chain.offsets), (0x1016, vec![]));
        // lea rax, [rip+0]; jmp [rax+8]
        let chain = target_of(b"\x48\x8d\x05\0\0\0\0\xff\x60\x08").unwrap();
        assert_eq!((chain.at, chain.offsets), (0x100f, vec![]));
        // mov rax, [rip+0]; test rax, rax; jne +1; ret; jmp [rax-8]
        let chain = target_of(b"\x48\x8b\x05\0\0\0\0\x48\x85\xc0\x75\x01\xc3\xff\x60\xf8").unwrap();
        assert_eq!((chain.at, chain.offsets), (0x1007, vec![-8]));
    }

    #[test]
    fn what_is_no_stub_leads_nowhere() {
        for bytes in [
            // jmp rax without a load; push rbx first; a pointer from an argument.
            &b"\xff\xe0"[..],
            b"\x53\x48\x8b\x05\0\0\0\0\xff\xe0",
            b"\x48\x8b\x07\xff\xe0",
            // mov rax, [rip+0]; xor eax, eax; jmp rax
            b"\x48\x8b\x05\0\0\0\0\x31\xc0\xff\xe0",
            // with an index; of another segment; call, not jump; a loop
            b"\x48\x8b\x05\0\0\0\0\xff\x24\xc8",
            b"\x64\x48\x8b\x05\0\0\0\0\xff\xe0",
            b"\x48\x8b\x05\0\0\0\0\xff\xd0\xc3",
            b"\xeb\xfe",
            b"",
        ] {
            assert_eq!(target_of(bytes), None, "{bytes:x?}");
        }
    }
}
