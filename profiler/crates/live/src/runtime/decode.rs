//! Where in a function its probes go: x86-64; pure.
//!
//! A probe replaces an instruction, which the kernel then either emulates or runs out of line with
//! a single step. Emulated it costs less than a microsecond; a single step costs one more, and
//! twenty under virtualisation. So the probe of an entry does not sit at the function's first byte.
//! It sits at the first emulated instruction that every call reaches exactly once with its
//! arguments untouched ([`entry`]). Exits are the return instructions themselves ([`exits`]).
//!
//! Which instructions the kernel emulates and which it refuses follows
//! linux/arch/x86/kernel/uprobes.c, Linux 5.17 to 6.18. An instruction that only some of these
//! versions emulate (a long no-op) does not count as emulated.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};
use rustc_hash::FxHashSet;

/// Most bytes of the loop that a thunk keeps a guessing processor in.
const MAX_LOOP: u64 = 32;
/// Instructions looked at for the entry's probe.
const MAX_ENTRY: usize = 16;
/// Most bytes of a function that is decoded; larger ones have unknown exits, and
/// entry probes at their very start.
pub(super) const MAX_FUNCTION: u64 = 1 << 20;

/// The code of a function, or its beginning.
#[derive(Clone, Copy, Debug)]
pub(super) struct FunctionCode<'a> {
    /// Address of its first byte.
    pub(super) start: u64,
    /// Its bytes.
    pub(super) bytes: &'a [u8],
    /// Whether these are all of its bytes.
    pub(super) whole: bool,
}

/// Where the entry of a function is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbedEntry {
    /// Address of the instruction.
    pub(super) address: u64,
    /// Whether the kernel emulates it.
    pub(super) emulated: bool,
}

/// How a function is left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Exits {
    /// Addresses of its return instructions.
    pub(super) returns: Vec<u64>,
    /// Its direct jumps out of itself.
    pub(super) jumps: Vec<Jump>,
    /// Where in a table the pointers lie that it jumps through: tail calls of
    /// virtual functions.
    pub(super) slots: Vec<i32>,
}

/// A direct jump out of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Jump {
    /// Address of its instruction.
    pub(super) at: u64,
    /// Where it leads.
    pub(super) to: u64,
    /// It may go on behind the instruction.
    pub(super) is_conditional: bool,
    /// What was loaded last before it.
    loaded: LoadedFrom,
}

impl Jump {
    /// Where in a table the pointer lies that a register holds here.
    pub(super) fn slot(&self, register: Register) -> Option<i32> {
        self.loaded.slot(register)
    }
}

/// For each register, the offset it was loaded from, if it was from memory that another register
/// points at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LoadedFrom([Option<i32>; 16]);

impl LoadedFrom {
    fn slot(&self, register: Register) -> Option<i32> {
        *self.0.get(index_of(register)?)?
    }

    /// Takes in an instruction that the next one follows.
    fn step(&mut self, info: &mut InstructionInfoFactory, instruction: &Instruction) {
        for used in info.info(instruction).used_registers() {
            let changed = index_of(used.register()).filter(|_| is_write(used.access()));
            if let Some(slot) = changed.and_then(|at| self.0.get_mut(at)) {
                *slot = None;
            }
        }
        let loads = instruction.mnemonic() == Mnemonic::Mov
            && instruction.op0_kind() == OpKind::Register
            && instruction.op0_register().is_gpr64();
        let to = index_of(instruction.op0_register()).filter(|_| loads);
        if let Some(slot) = to.and_then(|at| self.0.get_mut(at)) {
            *slot = table_offset(instruction, 1);
        }
    }
}

/// Number of a general register, whatever its width.
fn index_of(register: Register) -> Option<usize> {
    let full = register.full_register();
    full.is_gpr64().then(|| full.number())
}

/// The offset in an operand that is memory at an offset from what a register
/// points at, the stack left out.
fn table_offset(instruction: &Instruction, operand: u32) -> Option<i32> {
    let plain = instruction.op_kind(operand) == OpKind::Memory
        && instruction.memory_index() == Register::None
        && instruction.segment_prefix() == Register::None
        && instruction.memory_base().is_gpr64()
        && instruction.memory_base() != Register::RSP;
    let offset = instruction.memory_displacement64().cast_signed();
    plain.then(|| i32::try_from(offset).ok()).flatten()
}

/// Code that only stands for one instruction, so that the processor does not guess
/// where that leads (the compilers' options `-mfunction-return=thunk` and
/// `-mindirect-branch=thunk`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thunk {
    /// A return: who jumps here returns.
    Return,
    /// A jump to where a register points.
    Jump(Register),
}

/// The instruction that the code at the beginning of some bytes stands for, if it is a thunk. A
/// thunk calls into its own midst. There it replaces its return address by another, or removes it,
/// and returns.
pub(super) fn thunk(start: u64, bytes: &[u8]) -> Option<Thunk> {
    let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
    let call = decoder.decode();
    let target = call.near_branch_target();
    let inside = target.checked_sub(call.next_ip())?;
    if call.flow_control() != FlowControl::Call || call.is_invalid() || inside > MAX_LOOP {
        return None;
    }
    let at = usize::try_from(target - start).ok()?;
    let bytes = bytes.get(at..)?;
    let mut decoder = Decoder::with_ip(64, bytes, target, DecoderOptions::NONE);
    let (first, second) = (decoder.decode(), decoder.decode());
    if second.flow_control() != FlowControl::Return || first.is_invalid() {
        return None;
    }
    let stack = first.memory_base() == Register::RSP && first.memory_index() == Register::None;
    match (first.mnemonic(), first.memory_displacement64()) {
        (Mnemonic::Lea, 8) if stack && first.op0_register() == Register::RSP => Some(Thunk::Return),
        (Mnemonic::Add, _) if first.op0_register() == Register::RSP && first.immediate(1) == 8 => {
            Some(Thunk::Return)
        }
        (Mnemonic::Mov, 0) if stack && first.op0_kind() == OpKind::Memory => {
            let register = first.op1_register();
            register.is_gpr64().then_some(Thunk::Jump(register))
        }
        _ => None,
    }
}

/// The decoded function.
struct Sweep {
    exits: Exits,
    /// It calls into its own midst, to return to the address in a register (a retpoline): its
    /// return instructions are jumps of the code that came here.
    is_thunk: bool,
    /// Targets of jumps within the function.
    targets: FxHashSet<u64>,
}

/// Decodes a function from its first to its last byte. `None` if that is not possible: bytes that
/// are no instructions, or jumps into the midst of one, show that data lie between.
fn sweep(code: &FunctionCode<'_>) -> Option<Sweep> {
    if !code.whole || code.bytes.is_empty() {
        return None;
    }
    let end = code.start.checked_add(code.bytes.len() as u64)?;
    let mut decoder = Decoder::with_ip(64, code.bytes, code.start, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let (mut starts, mut targets) = (FxHashSet::default(), FxHashSet::default());
    let mut exits = Exits::default();
    let (mut info, mut loaded) = (InstructionInfoFactory::new(), LoadedFrom::default());
    let mut is_thunk = false;
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            return None;
        }
        starts.insert(instruction.ip());
        match instruction.flow_control() {
            FlowControl::Return => exits.returns.push(instruction.ip()),
            FlowControl::IndirectBranch => exits.slots.extend(slot_of(&instruction, &loaded)),
            FlowControl::Call => {
                let target = instruction.near_branch_target();
                is_thunk |= target != code.start && (code.start..end).contains(&target);
            }
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                let target = instruction.near_branch_target();
                if (code.start..end).contains(&target) {
                    targets.insert(target);
                } else {
                    let flow = instruction.flow_control();
                    exits.jumps.push(Jump {
                        at: instruction.ip(),
                        to: target,
                        is_conditional: flow == FlowControl::ConditionalBranch,
                        loaded: loaded.clone(),
                    });
                }
            }
            _ => {}
        }
        match instruction.flow_control() {
            FlowControl::Return
            | FlowControl::IndirectBranch
            | FlowControl::UnconditionalBranch => loaded = LoadedFrom::default(),
            _ => loaded.step(&mut info, &instruction),
        }
    }
    targets.is_subset(&starts).then_some(Sweep {
        exits,
        is_thunk,
        targets,
    })
}

/// Where in a table the pointer lies that an instruction jumps through; `None` for
/// the jumps of a `switch`, which code that marks its landing places marks too.
fn slot_of(instruction: &Instruction, loaded: &LoadedFrom) -> Option<i32> {
    match instruction.op0_kind() {
        _ if instruction.segment_prefix() == Register::DS => None,
        OpKind::Register => loaded.slot(instruction.op0_register()),
        OpKind::Memory => table_offset(instruction, 0),
        _ => None,
    }
}

/// The exits of a function; `None` if it cannot be decoded, or returns to other
/// places than its caller's.
pub(super) fn exits(code: &FunctionCode<'_>) -> Option<Exits> {
    let sweep = sweep(code).filter(|sweep| !sweep.is_thunk);
    sweep.map(|sweep| sweep.exits)
}

/// Where to probe the entry of a function. `None` if there is no instruction
/// that the kernel takes.
///
/// Each call reaches the instruction once, before anything that the probe reads is changed. The
/// probe reads the stack pointer, memory, and those of the six argument registers whose bit is set
/// in `arguments`. (Code that has fewer arguments uses the other registers at once.) If there is no
/// such instruction, it is the function's first.
pub(super) fn entry(code: &FunctionCode<'_>, arguments: u8) -> Option<ProbedEntry> {
    let known = sweep(code);
    let mut decoder = Decoder::with_ip(64, code.bytes, code.start, DecoderOptions::NONE);
    let mut info = InstructionInfoFactory::new();
    let mut instruction = Instruction::default();
    // The best so far of those that the kernel steps over.
    let (mut stepped, mut first) = (None, None);
    let mut once = true;
    for _ in 0..MAX_ENTRY {
        if !decoder.can_decode() {
            break;
        }
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            break;
        }
        let (address, bytes) = (instruction.ip(), bytes_of(code, &instruction));
        // What follows a jump's target is reached by the jump too.
        once &= known.as_ref().is_none_or(|k| !k.targets.contains(&address));
        let emulated = match handling(bytes) {
            Handling::Emulated => Some(true),
            Handling::Stepped => Some(false),
            Handling::Refused => None,
        };
        if let Some(emulated) = emulated {
            let here = ProbedEntry { address, emulated };
            if once && emulated {
                return Some(here);
            }
            if once && !is_landing_pad(bytes) {
                stepped = stepped.or(Some(here));
            }
            first = first.or((address == code.start).then_some(here));
        }
        // In code that is not all known, anything may jump anywhere.
        let alone = known.is_none() && !is_landing_pad(bytes);
        if !once || alone || changes(&mut info, &instruction, arguments) {
            break;
        }
    }
    stepped.or(first)
}

/// The bytes of an instruction.
fn bytes_of<'a>(code: &FunctionCode<'a>, instruction: &Instruction) -> &'a [u8] {
    let at = usize::try_from(instruction.ip() - code.start).unwrap_or(usize::MAX);
    let bytes = code.bytes.get(at..).unwrap_or_default();
    bytes.get(..instruction.len()).unwrap_or_default()
}

/// endbr64, which marks where indirect calls may lead.
fn is_landing_pad(bytes: &[u8]) -> bool {
    bytes == [0xf3, 0x0f, 0x1e, 0xfa]
}

/// The integer arguments (System V ABI, AMD64 supplement, 3.2.3).
const ARGUMENTS: [Register; 6] = [
    Register::RDI,
    Register::RSI,
    Register::RDX,
    Register::RCX,
    Register::R8,
    Register::R9,
];

/// Whether an instruction changes what a probe behind it would read, or is not
/// followed by the next one.
fn changes(info: &mut InstructionInfoFactory, instruction: &Instruction, arguments: u8) -> bool {
    if instruction.flow_control() != FlowControl::Next {
        return true;
    }
    let info = info.info(instruction);
    let is_read = |register: Register| {
        let register = register.full_register();
        let mut read = (0..)
            .zip(ARGUMENTS)
            .filter(|(i, _)| arguments >> i & 1 != 0);
        register == Register::RSP || read.any(|(_, argument)| argument == register)
    };
    let mut registers = info.used_registers().iter();
    let mut memory = info.used_memory().iter();
    registers.any(|used| is_write(used.access()) && is_read(used.register()))
        || memory.any(|used| is_write(used.access()))
}

/// Whether an instruction changes what it accesses so.
fn is_write(access: OpAccess) -> bool {
    !matches!(
        access,
        OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
    )
}

/// What the kernel does with an instruction that is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handling {
    /// It does the same itself.
    Emulated,
    /// It runs a copy and steps over it.
    Stepped,
    /// It does not take the probe (not all cases are known here).
    Refused,
}

/// How the kernel handles an instruction of these bytes.
fn handling(bytes: &[u8]) -> Handling {
    let is_prefix = |b: &u8| {
        matches!(
            b,
            0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3
        )
    };
    let n_prefixes = bytes.iter().take_while(|b| is_prefix(b)).count();
    let (prefixes, rest) = bytes.split_at(n_prefixes);
    let has = |wanted: &[u8]| prefixes.iter().any(|b| wanted.contains(b));
    if has(&[0x26, 0x2e, 0x36, 0x3e, 0xf0]) {
        return Handling::Refused;
    }
    let (rex, rest) = match rest {
        [rex @ 0x40..=0x4f, rest @ ..] => (Some(*rex), rest),
        _ => (None, rest),
    };
    match rest {
        // A push of one register: no prefix but the one for r8 to r15.
        [0x50..=0x57] if prefixes.is_empty() && matches!(rex, None | Some(0x41)) => {
            Handling::Emulated
        }
        // A no-op; with a REX prefix an exchange, which it takes for one.
        [0x90] => match rex {
            None if !has(&[0xf3]) => Handling::Emulated,
            _ => Handling::Refused,
        },
        // Jumps and calls; those with 16-bit operands are refused.
        [0x70..=0x7f | 0xe8 | 0xe9 | 0xeb, ..] | [0x0f, 0x80..=0x8f, ..] => match has(&[0x66]) {
            false => Handling::Emulated,
            true => Handling::Refused,
        },
        // Input and output, breakpoints, interrupts.
        [0x6c..=0x6f | 0xcc..=0xcf | 0xe4..=0xe7 | 0xec..=0xef, ..]
        | [0xf1 | 0xf4 | 0xfa | 0xfb, ..]
        | [] => Handling::Refused,
        _ => Handling::Stepped,
    }
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
