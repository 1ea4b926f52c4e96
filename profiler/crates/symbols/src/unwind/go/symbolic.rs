//! What registers hold, if it leads to stack pointers.

use iced_x86::{
    Instruction, InstructionInfoFactory, MemorySize, Mnemonic, OpAccess, OpKind, Register,
};

/// Words that are followed from a thread's goroutine.
pub(super) const MAX_PATH: usize = 3;

/// A value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SymbolicValue {
    Unknown,
    Constant(i64),
    /// The word that an instruction addresses relative to itself, by the 4 bytes that are here.
    Loaded(u64),
    /// The stack pointer at the beginning, plus this.
    Stack(i64),
    /// The thread's goroutine, and on from there: each is added to an address, and the
    /// word there is the next one.
    Goroutine {
        path: [i32; MAX_PATH],
        length: usize,
    },
    /// Likewise from the stack pointer at the beginning.
    Slot {
        path: [i32; 2],
        length: usize,
    },
    /// `*(*(sp + of) + end) - *(sp + depth)`: a place that is counted from the end of a
    /// goroutine's stack, which may be moved.
    FromEnd {
        of: i32,
        end: i32,
        depth: i32,
    },
}

/// Where the offset of a thread's goroutine from its fs base is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GoroutineOffset {
    /// In the code: the program's own.
    Known(i16),
    /// In a word that the loader sets, as in libraries. The 4 bytes here address it, relative to
    /// their end.
    Loaded(u64),
}

/// The general registers, and where a thread's goroutine is.
#[derive(Clone)]
pub(super) struct SymbolicRegisters {
    values: [SymbolicValue; 16],
    /// Offset of the thread's goroutine from its fs base, once known.
    pub(super) tls: Option<GoroutineOffset>,
}

impl SymbolicRegisters {
    /// Nothing is known, but the stack pointer.
    pub(super) fn new(sp: i64) -> Self {
        let mut registers = Self {
            values: [SymbolicValue::Unknown; 16],
            tls: None,
        };
        registers.set(Register::RSP, SymbolicValue::Stack(sp));
        registers
    }

    /// The value of a register of 64 bits.
    pub(super) fn get(&self, register: Register) -> SymbolicValue {
        let place = place(register).filter(|_| register.is_gpr64());
        let value = place.and_then(|i| self.values.get(i));
        value.copied().unwrap_or(SymbolicValue::Unknown)
    }

    /// Sets the value of a register.
    pub(super) fn set(&mut self, register: Register, value: SymbolicValue) {
        if let Some(slot) = place(register).and_then(|i| self.values.get_mut(i)) {
            *slot = if register.is_gpr64() {
                value
            } else {
                SymbolicValue::Unknown
            };
        }
    }

    /// The address of an instruction's operand in memory.
    pub(super) fn address(&self, i: &Instruction) -> SymbolicValue {
        let disp = i.memory_displacement64().cast_signed();
        if i.memory_index() != Register::None {
            return SymbolicValue::Unknown;
        }
        match i.memory_base() {
            Register::None => SymbolicValue::Constant(disp),
            base if !base.is_gpr64() => SymbolicValue::Unknown,
            base => plus(self.get(base), disp),
        }
    }

    /// The word in memory that an instruction reads.
    fn load(&mut self, i: &Instruction) -> SymbolicValue {
        if i.memory_segment() == Register::FS {
            self.tls = match self.address(i) {
                SymbolicValue::Constant(offset) => {
                    i16::try_from(offset).ok().map(GoroutineOffset::Known)
                }
                SymbolicValue::Loaded(by) => Some(GoroutineOffset::Loaded(by)),
                _ => None,
            };
            return match self.tls {
                Some(_) => SymbolicValue::Goroutine {
                    path: [0; MAX_PATH],
                    length: 0,
                },
                None => SymbolicValue::Unknown,
            };
        }
        if i.memory_base() == Register::RIP {
            // No operand follows the displacement.
            return SymbolicValue::Loaded(i.next_ip().wrapping_sub(4));
        }
        let disp = i.memory_displacement64().cast_signed();
        let Ok(offset) = i32::try_from(disp) else {
            return SymbolicValue::Unknown;
        };
        if i.memory_index() != Register::None || !i.memory_base().is_gpr64() {
            return SymbolicValue::Unknown;
        }
        match self.get(i.memory_base()) {
            SymbolicValue::Stack(at) => slot(at.saturating_add(disp)),
            SymbolicValue::Slot {
                path: [first, _],
                length: 1,
            } => SymbolicValue::Slot {
                path: [first, offset],
                length: 2,
            },
            SymbolicValue::Goroutine { mut path, length } => match path.get_mut(length) {
                Some(step) => {
                    *step = offset;
                    let length = length + 1;
                    SymbolicValue::Goroutine { path, length }
                }
                None => SymbolicValue::Unknown,
            },
            _ => SymbolicValue::Unknown,
        }
    }

    /// What an instruction's second operand is.
    fn operand(&mut self, i: &Instruction) -> SymbolicValue {
        match i.op1_kind() {
            OpKind::Register => self.get(i.op1_register()),
            OpKind::Memory if i.memory_size().size() == 8 => self.load(i),
            OpKind::Immediate64 | OpKind::Immediate32to64 | OpKind::Immediate8to64 => {
                SymbolicValue::Constant(i.immediate(1).cast_signed())
            }
            _ => SymbolicValue::Unknown,
        }
    }

    /// Takes in an instruction that is no branch and no call.
    pub(super) fn step(&mut self, i: &Instruction, info: &mut InstructionInfoFactory) {
        let target = i.op0_register();
        let value = match i.mnemonic() {
            _ if i.op0_kind() != OpKind::Register => None,
            Mnemonic::Mov => Some(self.operand(i)),
            Mnemonic::Lea => Some(self.address(i)),
            Mnemonic::Add => Some(match self.operand(i) {
                SymbolicValue::Constant(n) => plus(self.get(target), n),
                _ => SymbolicValue::Unknown,
            }),
            Mnemonic::Sub => {
                let other = self.operand(i);
                Some(minus(self.get(target), other))
            }
            Mnemonic::Pop => {
                let sp = self.get(Register::RSP);
                self.set(Register::RSP, plus(sp, 8));
                match sp {
                    SymbolicValue::Stack(at) => Some(slot(at)),
                    _ => Some(SymbolicValue::Unknown),
                }
            }
            _ => None,
        };
        if let Some(value) = value {
            self.set(target, value);
            return;
        }
        if matches!(i.mnemonic(), Mnemonic::Push | Mnemonic::Pushfq) {
            let sp = self.get(Register::RSP);
            self.set(Register::RSP, plus(sp, -8));
            return;
        }
        for used in info.info(i).used_registers() {
            let written = !matches!(
                used.access(),
                OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
            );
            if written && used.register().is_gpr() {
                self.set(used.register().full_register(), SymbolicValue::Unknown);
            }
        }
    }
}

/// Whether an instruction reads or writes 8 bytes of memory.
pub(super) fn is_word(i: &Instruction) -> bool {
    matches!(i.memory_size(), MemorySize::UInt64 | MemorySize::Int64)
}

fn place(register: Register) -> Option<usize> {
    let full = register.full_register();
    full.is_gpr64().then(|| full.number())
}

fn slot(at: i64) -> SymbolicValue {
    match i32::try_from(at) {
        Ok(at) => SymbolicValue::Slot {
            path: [at, 0],
            length: 1,
        },
        Err(_) => SymbolicValue::Unknown,
    }
}

fn plus(value: SymbolicValue, n: i64) -> SymbolicValue {
    match value {
        SymbolicValue::Stack(at) => SymbolicValue::Stack(at.saturating_add(n)),
        SymbolicValue::Constant(at) => SymbolicValue::Constant(at.wrapping_add(n)),
        SymbolicValue::Loaded(_) if n == 0 => value,
        _ => SymbolicValue::Unknown,
    }
}

fn minus(value: SymbolicValue, other: SymbolicValue) -> SymbolicValue {
    match (value, other) {
        (value, SymbolicValue::Constant(n)) => plus(value, n.wrapping_neg()),
        (
            SymbolicValue::Slot {
                path: [of, end],
                length: 2,
            },
            SymbolicValue::Slot {
                path: [depth, _],
                length: 1,
            },
        ) => SymbolicValue::FromEnd { of, end, depth },
        _ => SymbolicValue::Unknown,
    }
}
