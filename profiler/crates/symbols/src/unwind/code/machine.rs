//! What one instruction does to the stack pointer, and to what leads back from it.
//!
//! Only the values that unwinding needs are followed. These are the addresses that are known
//! relative to the stack pointer at the function's entry, and the rbp of its caller. Everything
//! else is unknown. Writes through unknown addresses are taken not to change what the function
//! saved: it would not find its way back either.

use crate::unwind::rule::{END, UNSUPPORTED, dereference};
use aiprof_common::{
    CFA_DEREF_RBP, CFA_DEREF_RSP, CFA_RBP, CFA_REG, CFA_RSP, RBP_AT_CFA, RBP_AT_RBP, RBP_SAME,
    RBP_UNDEFINED, Rule,
};
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

/// Most stack slots that are remembered; functions save six registers.
const MAX_SLOTS: usize = 16;
/// Bytes of the return address.
const WORD: i32 = 8;

/// What is known of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum MachineValue {
    #[default]
    Unknown,
    /// The stack pointer at the function's entry, where the return address is, plus
    /// bytes.
    Entry(i32),
    /// The stack pointer after it was aligned, plus bytes.
    Aligned(i32),
    /// The rbp of the caller.
    CallerRbp,
    /// Zero.
    Zero,
}

impl MachineValue {
    /// The value plus `bytes`.
    fn plus(self, bytes: i64) -> Self {
        let sum = |n: i32| i32::try_from(i64::from(n).checked_add(bytes)?).ok();
        let known = match self {
            Self::Entry(n) => sum(n).map(Self::Entry),
            Self::Aligned(n) => sum(n).map(Self::Aligned),
            Self::CallerRbp if bytes == 0 => Some(self),
            Self::CallerRbp | Self::Zero | Self::Unknown => None,
        };
        known.unwrap_or_default()
    }

    /// Whether it is an address on the stack.
    fn is_stack(self) -> bool {
        matches!(self, Self::Entry(_) | Self::Aligned(_))
    }
}

/// The general registers, by iced's order, which is the encoding's.
const REGISTERS: usize = 16;
const RSP: usize = 4;
const RBP: usize = 5;
/// DWARF's numbers of the registers in that order (x86-64 psABI, figure 3.36).
const DWARF: [u8; REGISTERS] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];
/// Registers that a call may change: rax, rcx, rdx, rsi, rdi, r8 to r11.
const SCRATCH: [usize; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];

/// The state between two instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MachineState {
    registers: [MachineValue; REGISTERS],
    /// Saved values by the address of their 8 bytes.
    slots: Vec<(MachineValue, MachineValue)>,
    /// Whether the stack pointer has been aligned: a second time has no name.
    aligned: bool,
    /// Whether the kernel was called: it may have made a thread, which begins there.
    called_kernel: bool,
    /// Whether the function uses rbp freely.
    is_free: bool,
}

impl MachineState {
    /// At a function's first instruction.
    pub(super) fn at_entry() -> Self {
        let mut registers = [MachineValue::Unknown; REGISTERS];
        registers[RSP] = MachineValue::Entry(0);
        registers[RBP] = MachineValue::CallerRbp;
        Self {
            registers,
            slots: Vec::new(),
            aligned: false,
            called_kernel: false,
            is_free: false,
        }
    }

    /// The same of a function that uses rbp freely, as code does that has one frame for all
    /// functions.
    pub(super) fn at_free_entry() -> Self {
        let mut state = Self::at_entry();
        state.registers[RBP] = MachineValue::Unknown;
        state.is_free = true;
        state
    }

    /// Whether the function can be left here: all is as it was at its entry.
    pub(super) fn is_as_at_entry(&self) -> bool {
        self.registers[RSP] == MachineValue::Entry(0)
            && (self.is_free || self.registers[RBP] == MachineValue::CallerRbp)
    }

    /// Whether the way back is known: by the stack pointer, or by rbp where frames are
    /// of variable size.
    pub(super) fn knows_stack(&self) -> bool {
        self.registers[RSP].is_stack() || matches!(self.registers[RBP], MachineValue::Entry(_))
    }

    /// The stack pointer, in bytes from that at the entry.
    pub(super) fn stack(&self) -> Option<i32> {
        match self.registers[RSP] {
            MachineValue::Entry(n) => Some(n),
            _ => None,
        }
    }

    /// How to find the caller from here.
    pub(super) fn rule(&self) -> Rule {
        if self.is_outermost() {
            return END;
        }
        let Some((kind, cfa_off)) = self.cfa() else {
            return UNSUPPORTED;
        };
        let (rbp, rbp_off) = self.saved_rbp();
        Rule {
            cfa_off,
            rbp_off,
            kind,
            rbp,
        }
    }

    /// Whether the code marks the outermost frame of a new thread: rbp is zero, and the
    /// caller's is kept nowhere (x86-64 psABI, section 3.4.1). Without a system call it
    /// is a function that does not return, and that need not save what it uses.
    fn is_outermost(&self) -> bool {
        let is_kept = |value: &MachineValue| *value == MachineValue::CallerRbp;
        self.called_kernel
            && self.registers[RBP] == MachineValue::Zero
            && !self.registers.iter().any(is_kept)
            && !self.slots.iter().any(|(_, value)| is_kept(value))
    }

    /// Kind and offset of the CFA, which is 8 bytes above the entry's stack pointer.
    fn cfa(&self) -> Option<(u8, i32)> {
        let from = |value| match value {
            MachineValue::Entry(n) => Some(WORD.checked_sub(n)?),
            _ => None,
        };
        let [rsp, rbp] = [RSP, RBP].map(|r| self.registers[r]);
        // Some callees take their arguments off the stack, as JavaScript's: that does not change a
        // frame pointer.
        if rbp == MachineValue::Entry(-WORD) {
            return Some((CFA_RBP, 2 * WORD));
        }
        for (value, kind) in [(rsp, CFA_RSP), (rbp, CFA_RBP)] {
            if let Some(offset) = from(value) {
                // Once the return address is off the stack nothing leads to it.
                let is_popped = kind == CFA_RSP && offset < WORD;
                return (!is_popped).then_some((kind, offset));
            }
        }
        for &(at, value) in &self.slots {
            let (MachineValue::Aligned(at), Some(add)) = (at, from(value)) else {
                continue;
            };
            for (register, kind) in [(rsp, CFA_DEREF_RSP), (rbp, CFA_DEREF_RBP)] {
                if let MachineValue::Aligned(base) = register {
                    let offset = i64::from(at) - i64::from(base);
                    return Some((kind, dereference(offset, i64::from(add))?));
                }
            }
        }
        let held = self.registers.iter().zip(DWARF);
        held.filter_map(|(&value, number)| Some((CFA_REG + number, from(value)?)))
            .next()
    }

    /// Kind and offset of the caller's rbp. The saved one is preferred: where ways
    /// meet rbp is still the caller's on some of them.
    fn saved_rbp(&self) -> (u8, i16) {
        let saved = self
            .slots
            .iter()
            .find(|(_, v)| *v == MachineValue::CallerRbp);
        let found = match (saved.map(|(at, _)| *at), self.registers[RBP]) {
            (Some(MachineValue::Entry(at)), _) => Some((RBP_AT_CFA, at - WORD)),
            (_, MachineValue::CallerRbp) => Some((RBP_SAME, 0)),
            (Some(MachineValue::Aligned(at)), MachineValue::Aligned(base)) => {
                Some((RBP_AT_RBP, at - base))
            }
            _ => None,
        };
        let fits = found.and_then(|(kind, offset)| Some((kind, i16::try_from(offset).ok()?)));
        fits.unwrap_or((RBP_UNDEFINED, 0))
    }

    fn get(&self, register: Register) -> MachineValue {
        general(register).map_or(MachineValue::Unknown, |r| self.registers[r])
    }

    fn set(&mut self, register: Register, value: MachineValue) {
        if let Some(r) = general(register) {
            self.registers[r] = value;
        }
    }

    /// The 8 bytes at a stack address.
    fn load(&self, at: MachineValue) -> MachineValue {
        let slot = self.slots.iter().find(|(place, _)| *place == at);
        slot.map_or(MachineValue::Unknown, |(_, value)| *value)
    }

    /// Stores `bytes` bytes at a stack address.
    fn store(&mut self, at: MachineValue, bytes: i32, value: MachineValue) {
        self.slots.retain(|(place, _)| match (*place, at) {
            (MachineValue::Entry(a), MachineValue::Entry(b))
            | (MachineValue::Aligned(a), MachineValue::Aligned(b)) => {
                a.saturating_add(WORD) <= b || b.saturating_add(bytes) <= a
            }
            _ => true,
        });
        let known = value != MachineValue::Unknown && at.is_stack() && bytes == WORD;
        if known && self.slots.len() < MAX_SLOTS {
            self.slots.push((at, value));
        }
    }

    /// Moves the stack pointer; what lies below it is gone.
    fn move_stack(&mut self, to: MachineValue) {
        self.registers[RSP] = to;
        self.slots.retain(|(place, _)| match (*place, to) {
            (MachineValue::Entry(a), MachineValue::Entry(b))
            | (MachineValue::Aligned(a), MachineValue::Aligned(b)) => a >= b,
            _ => true,
        });
    }

    fn push(&mut self, value: MachineValue) {
        let to = self.registers[RSP].plus(-i64::from(WORD));
        self.registers[RSP] = to;
        self.store(to, WORD, value);
    }

    fn pop(&mut self) -> MachineValue {
        let at = self.registers[RSP];
        let value = self.load(at);
        self.move_stack(at.plus(i64::from(WORD)));
        value
    }

    /// The stack address that a memory operand names.
    fn address(&self, i: &Instruction) -> MachineValue {
        let plain = i.memory_index() == Register::None && i.segment_prefix() == Register::None;
        match plain {
            true => self
                .get(i.memory_base())
                .plus(i.memory_displacement64().cast_signed()),
            false => MachineValue::Unknown,
        }
    }

    /// Takes in one instruction that is no jump and no return.
    pub(super) fn step(&mut self, i: &Instruction, infos: &mut InstructionInfoFactory) {
        if !self.known_step(i) {
            self.other(i, infos);
        }
    }

    /// The instructions that move stack addresses about; false: not one of them.
    fn known_step(&mut self, i: &Instruction) -> bool {
        let kinds = (i.op0_kind(), i.op1_kind());
        let (to, from) = (i.op0_register(), i.op1_register());
        match (i.mnemonic(), kinds) {
            (Mnemonic::Push, (OpKind::Register, _)) if from_width(to) == 8 => {
                self.push(self.get(to));
            }
            (Mnemonic::Push, _) if i.stack_pointer_increment() == -WORD => {
                self.push(MachineValue::Unknown);
            }
            (Mnemonic::Pop, (OpKind::Register, _)) if from_width(to) == 8 => {
                let value = self.pop();
                self.set(to, value);
            }
            (Mnemonic::Leave, _) => {
                self.move_stack(self.registers[RBP]);
                self.registers[RBP] = self.pop();
            }
            (Mnemonic::Mov, (OpKind::Register, OpKind::Register)) if from_width(to) == 8 => {
                self.assign(to, self.get(from));
            }
            (Mnemonic::Mov, (OpKind::Register, OpKind::Memory)) if from_width(to) == 8 => {
                self.assign(to, self.load(self.address(i)));
            }
            (Mnemonic::Mov, (OpKind::Memory, OpKind::Register)) if from_width(from) == 8 => {
                self.store(self.address(i), WORD, self.get(from));
            }
            (Mnemonic::Lea, (OpKind::Register, _)) if from_width(to) == 8 => {
                self.assign(to, self.address(i));
            }
            (Mnemonic::Xchg, (OpKind::Register, OpKind::Register)) if from_width(to) == 8 => {
                let (a, b) = (self.get(to), self.get(from));
                self.assign(to, b);
                self.assign(from, a);
            }
            (Mnemonic::Xor, (OpKind::Register, OpKind::Register))
                if to == from && from_width(to) >= 4 =>
            {
                self.assign(to, MachineValue::Zero);
            }
            (Mnemonic::Add | Mnemonic::Sub | Mnemonic::And, (OpKind::Register, kind))
                if from_width(to) == 8 && is_immediate(kind) =>
            {
                self.arithmetic(i, to);
            }
            _ => return false,
        }
        true
    }

    /// A new value of a register, which may be the stack pointer.
    fn assign(&mut self, register: Register, value: MachineValue) {
        match general(register) {
            Some(RSP) => self.move_stack(value),
            _ => self.set(register, value),
        }
    }

    /// Adds, subtracts or aligns by a constant.
    fn arithmetic(&mut self, i: &Instruction, to: Register) {
        let constant = i.immediate(1).cast_signed();
        let old = self.get(to);
        let new = match i.mnemonic() {
            Mnemonic::Add => old.plus(constant),
            Mnemonic::Sub => constant
                .checked_neg()
                .map_or(MachineValue::Unknown, |n| old.plus(n)),
            // `and $-64, %rsp`
            _ if matches!(old, MachineValue::Entry(_)) && constant < 0 && !self.aligned => {
                self.aligned = true;
                MachineValue::Aligned(0)
            }
            _ => MachineValue::Unknown,
        };
        self.assign(to, new);
    }

    /// Any other instruction: what it writes is unknown.
    fn other(&mut self, i: &Instruction, infos: &mut InstructionInfoFactory) {
        let info = infos.info(i);
        for used in info.used_registers() {
            if is_write(used.access()) {
                self.set(used.register(), MachineValue::Unknown);
            }
        }
        // Pushes and pops of other widths, calls to the next instruction and so on.
        if i.is_stack_instruction() && i.stack_pointer_increment() != 0 {
            self.registers[RSP] = MachineValue::Unknown;
        }
        for used in info.used_memory() {
            if is_write(used.access()) && used.index() == Register::None {
                let at = self
                    .get(used.base())
                    .plus(used.displacement().cast_signed());
                let bytes = i32::try_from(used.memory_size().size()).unwrap_or(0);
                self.store(at, bytes.max(WORD), MachineValue::Unknown);
            }
        }
    }

    /// A call that returns: it leaves the stack as it was.
    pub(super) fn call(&mut self) {
        for register in SCRATCH {
            self.registers[register] = MachineValue::Unknown;
        }
        self.move_stack(self.registers[RSP]);
    }

    /// A system call.
    pub(super) fn system_call(&mut self) {
        self.called_kernel = true;
        self.call();
    }

    /// A call to the next instruction, which only pushes its address.
    pub(super) fn push_address(&mut self) {
        self.push(MachineValue::Unknown);
    }
}

/// Bytes of a general register; 0 of others.
fn from_width(register: Register) -> usize {
    general(register).map_or(0, |_| register.size())
}

/// DWARF's number of a general register.
pub(super) fn register(register: Register) -> Option<u8> {
    general(register).and_then(|r| DWARF.get(r).copied())
}

/// Index of the general register that a register is, or is a part of.
fn general(register: Register) -> Option<usize> {
    let full = register.full_register();
    full.is_gpr64().then(|| full.number())
}

fn is_immediate(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Immediate8to64 | OpKind::Immediate32to64 | OpKind::Immediate64
    )
}

fn is_write(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

#[cfg(test)]
impl MachineState {
    /// Whether a rule of the file's own unwind data agrees; `None`: it is of a kind that is not
    /// compared.
    pub(super) fn agrees(&self, rule: &Rule) -> Option<bool> {
        let register = match rule.kind {
            CFA_RSP => RSP,
            CFA_RBP => RBP,
            _ => return None,
        };
        let cfa = self.registers[register] == MachineValue::Entry(WORD - rule.cfa_off);
        let rbp = match rule.rbp {
            RBP_SAME => self.registers[RBP] == MachineValue::CallerRbp,
            RBP_AT_CFA => {
                self.load(MachineValue::Entry(WORD + i32::from(rule.rbp_off)))
                    == MachineValue::CallerRbp
                    || self.registers[RBP] == MachineValue::CallerRbp
            }
            _ => true,
        };
        Some(cfa && rbp)
    }

    /// Whether the CFA is known at all.
    pub(super) fn knows_cfa(&self) -> bool {
        self.cfa().is_some()
    }
}
