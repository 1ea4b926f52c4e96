//! What registers hold, if it leads to stack pointers.

use iced_x86::{
    Instruction, InstructionInfoFactory, MemorySize, Mnemonic, OpAccess, OpKind, Register,
};

/// Words that are followed from a thread's goroutine.
pub(super) const MAX_PATH: usize = 3;

/// A value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Unknown,
    Constant(i64),
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

/// The general registers, and where a thread's goroutine is.
#[derive(Clone)]
pub(super) struct Registers {
    values: [Value; 16],
    /// Offset of the thread's goroutine from its fs base, once known.
    pub(super) tls: Option<i16>,
}

impl Registers {
    /// Nothing is known, but the stack pointer.
    pub(super) fn new(sp: i64) -> Self {
        let mut registers = Self {
            values: [Value::Unknown; 16],
            tls: None,
        };
        registers.set(Register::RSP, Value::Stack(sp));
        registers
    }

    /// The value of a register of 64 bits.
    pub(super) fn get(&self, register: Register) -> Value {
        let place = place(register).filter(|_| register.is_gpr64());
        let value = place.and_then(|i| self.values.get(i));
        value.copied().unwrap_or(Value::Unknown)
    }

    /// Sets the value of a register.
    pub(super) fn set(&mut self, register: Register, value: Value) {
        if let Some(slot) = place(register).and_then(|i| self.values.get_mut(i)) {
            *slot = if register.is_gpr64() {
                value
            } else {
                Value::Unknown
            };
        }
    }

    /// The address of an instruction's operand in memory.
    pub(super) fn address(&self, i: &Instruction) -> Value {
        let disp = i.memory_displacement64().cast_signed();
        if i.memory_index() != Register::None {
            return Value::Unknown;
        }
        match i.memory_base() {
            Register::None => Value::Constant(disp),
            base if !base.is_gpr64() => Value::Unknown,
            base => plus(self.get(base), disp),
        }
    }

    /// The word in memory that an instruction reads.
    fn load(&mut self, i: &Instruction) -> Value {
        if i.memory_segment() == Register::FS {
            let Value::Constant(offset) = self.address(i) else {
                return Value::Unknown;
            };
            self.tls = i16::try_from(offset).ok();
            return match self.tls {
                Some(_) => Value::Goroutine {
                    path: [0; MAX_PATH],
                    length: 0,
                },
                None => Value::Unknown,
            };
        }
        let disp = i.memory_displacement64().cast_signed();
        let Ok(offset) = i32::try_from(disp) else {
            return Value::Unknown;
        };
        if i.memory_index() != Register::None || !i.memory_base().is_gpr64() {
            return Value::Unknown;
        }
        match self.get(i.memory_base()) {
            Value::Stack(at) => slot(at.saturating_add(disp)),
            Value::Slot {
                path: [first, _],
                length: 1,
            } => Value::Slot {
                path: [first, offset],
                length: 2,
            },
            Value::Goroutine { mut path, length } => match path.get_mut(length) {
                Some(step) => {
                    *step = offset;
                    let length = length + 1;
                    Value::Goroutine { path, length }
                }
                None => Value::Unknown,
            },
            _ => Value::Unknown,
        }
    }

    /// What an instruction's second operand is.
    fn operand(&mut self, i: &Instruction) -> Value {
        match i.op1_kind() {
            OpKind::Register => self.get(i.op1_register()),
            OpKind::Memory if i.memory_size().size() == 8 => self.load(i),
            OpKind::Immediate64 | OpKind::Immediate32to64 | OpKind::Immediate8to64 => {
                Value::Constant(i.immediate(1).cast_signed())
            }
            _ => Value::Unknown,
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
                Value::Constant(n) => plus(self.get(target), n),
                _ => Value::Unknown,
            }),
            Mnemonic::Sub => {
                let other = self.operand(i);
                Some(minus(self.get(target), other))
            }
            Mnemonic::Pop => {
                let sp = self.get(Register::RSP);
                self.set(Register::RSP, plus(sp, 8));
                match sp {
                    Value::Stack(at) => Some(slot(at)),
                    _ => Some(Value::Unknown),
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
                self.set(used.register().full_register(), Value::Unknown);
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

fn slot(at: i64) -> Value {
    match i32::try_from(at) {
        Ok(at) => Value::Slot {
            path: [at, 0],
            length: 1,
        },
        Err(_) => Value::Unknown,
    }
}

fn plus(value: Value, n: i64) -> Value {
    match value {
        Value::Stack(at) => Value::Stack(at.saturating_add(n)),
        Value::Constant(at) => Value::Constant(at.wrapping_add(n)),
        _ => Value::Unknown,
    }
}

fn minus(value: Value, other: Value) -> Value {
    match (value, other) {
        (value, Value::Constant(n)) => plus(value, n.wrapping_neg()),
        (
            Value::Slot {
                path: [of, end],
                length: 2,
            },
            Value::Slot {
                path: [depth, _],
                length: 1,
            },
        ) => Value::FromEnd { of, end, depth },
        _ => Value::Unknown,
    }
}
