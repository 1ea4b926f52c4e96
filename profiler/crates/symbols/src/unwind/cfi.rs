//! The call frame instructions, interpreted for what the unwinder needs: the CFA and rbp. To
//! recognise special frames, it also needs rsp and the return address (DWARF 5, section 6.4.2; GNU
//! extensions: LSB, "DWARF Extensions").

use super::bytes::Bytes;
use super::cie::{Cie, encoded_address};

/// DWARF numbers of the registers that are tracked.
pub(super) const RBP: u64 = 6;
/// The stack pointer.
pub(super) const RSP: u64 = 7;
/// The return address column; in expressions, rip.
const RIP: u64 = 16;

/// Most remembered states: compilers nest one or two.
const MAX_STATES: usize = 32;

/// How the CFA is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Cfa {
    /// No rule was given.
    #[default]
    Unset,
    /// Register plus offset.
    Register { register: u64, offset: i64 },
    /// The memory at register plus offset, plus `add`.
    Deref {
        register: u64,
        offset: i64,
        add: i64,
    },
    /// A PLT's expression: rsp + 8, and 8 more if (rip & 15) >= threshold.
    Plt { threshold: u8 },
    /// An expression that is not recognised.
    Other,
}

/// Where a register's value in the caller is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Saved {
    /// No rule was given.
    #[default]
    Unspecified,
    /// Explicitly not recoverable.
    Undefined,
    /// Explicitly unchanged.
    Same,
    /// In memory at CFA plus offset.
    AtCfa(i64),
    /// CFA plus offset is the value.
    CfaPlus(i64),
    /// In memory at register plus offset.
    At { register: u64, offset: i64 },
    /// In another register.
    In(u64),
    /// Register plus offset is the value.
    Value { register: u64, offset: i64 },
    /// A rule that is not recognised.
    Other,
}

/// The rules at one address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RuleState {
    pub(super) cfa: Cfa,
    pub(super) rbp: Saved,
    pub(super) rsp: Saved,
    pub(super) return_address: Saved,
    /// Whether rax is saved, as only functions do that resume an exception elsewhere: they
    /// return two values of the unwinder's.
    pub(super) resumes: bool,
}

/// DWARF number of rax.
const RAX: u64 = 0;

impl RuleState {
    /// The rule of a register, if it is tracked.
    fn saved(&mut self, register: u64) -> Option<&mut Saved> {
        match register {
            RBP => Some(&mut self.rbp),
            RSP => Some(&mut self.rsp),
            RIP => Some(&mut self.return_address),
            _ => None,
        }
    }

    /// Sets the rule of a register.
    fn set(&mut self, register: u64, rule: Saved) {
        if let Some(saved) = self.saved(register) {
            *saved = rule;
        }
        self.resumes |= register == RAX && matches!(rule, Saved::AtCfa(_));
    }

    /// Whether a function that resumes an exception has restored the registers of the frame where
    /// it does so: its CFA is in neither rsp nor rbp any more.
    pub(super) fn is_left(&self) -> bool {
        self.resumes
            && matches!(self.cfa, Cfa::Register { register, .. } if register != RSP && register != RBP)
    }
}

/// Runs one instruction stream, row by row.
pub(super) struct Interpreter<'a> {
    cie: &'a Cie,
    code: Bytes<'a>,
    /// Address of the first instruction byte, for relative addresses.
    code_vaddr: u64,
    location: u64,
    state: RuleState,
    states: &'a mut Vec<RuleState>,
}

impl<'a> Interpreter<'a> {
    /// At the first row of an FDE whose code starts at `start`. `states` is
    /// scratch for remembered states, so that no FDE allocates.
    pub(super) fn new(
        cie: &'a Cie,
        code: &'a [u8],
        code_vaddr: u64,
        start: u64,
        states: &'a mut Vec<RuleState>,
    ) -> Self {
        states.clear();
        let code = Bytes::new(code);
        Self {
            cie,
            code,
            code_vaddr,
            location: start,
            state: cie.initial,
            states,
        }
    }

    /// Address where the next row starts.
    pub(super) fn location(&self) -> u64 {
        self.location
    }

    /// The rules from [`Self::location`] up to the next row, whose address
    /// becomes the location. The second value is false for the last row, which
    /// extends to the end of the FDE. `None`: malformed instructions.
    pub(super) fn next_row(&mut self) -> Option<(RuleState, bool)> {
        while !self.code.is_empty() {
            if let Some(next) = self.step()? {
                let state = self.state;
                self.location = next;
                return Some((state, true));
            }
        }
        Some((self.state, false))
    }

    /// Runs a CIE's initial instructions, which may not advance.
    pub(super) fn finish(mut self) -> Option<RuleState> {
        match self.next_row()? {
            (state, false) => Some(state),
            _ => None,
        }
    }

    /// One instruction; the new location if it advances.
    #[inline]
    fn step(&mut self) -> Option<Option<u64>> {
        let byte = self.code.u8()?;
        let operand = u64::from(byte & 0x3f);
        match byte >> 6 {
            1 => return self.advance(operand).map(Some),
            2 => {
                let offset = self.factored_unsigned()?;
                self.set(operand, Saved::AtCfa(offset));
            }
            3 => self.restore(operand),
            _ => return self.extended(byte),
        }
        Some(None)
    }

    /// An instruction whose upper two bits are zero.
    fn extended(&mut self, opcode: u8) -> Option<Option<u64>> {
        match opcode {
            0x00 => {}
            0x01 => {
                let at = encoded_address(&mut self.code, self.cie.encoding, self.code_vaddr)?;
                return (at >= self.location).then_some(Some(at));
            }
            0x02 => {
                let delta = u64::from(self.code.u8()?);
                return self.advance(delta).map(Some);
            }
            0x03 => {
                let delta = u64::from(self.code.u16()?);
                return self.advance(delta).map(Some);
            }
            0x04 => {
                let delta = u64::from(self.code.u32()?);
                return self.advance(delta).map(Some);
            }
            0x0a => {
                if self.states.len() >= MAX_STATES {
                    return None;
                }
                self.states.push(self.state);
            }
            0x0b => self.state = self.states.pop()?,
            0x0c..=0x0f | 0x12 | 0x13 => self.define_cfa(opcode)?,
            // GNU_args_size: bytes of arguments pushed, of no use here.
            0x2e => {
                self.code.uleb()?;
            }
            _ => self.register_rule(opcode)?,
        }
        Some(None)
    }

    /// The instructions that set the CFA.
    fn define_cfa(&mut self, opcode: u8) -> Option<()> {
        self.state.cfa = match (opcode, self.state.cfa) {
            (0x0c, _) => {
                let register = self.cfa_register()?;
                Cfa::Register {
                    register,
                    offset: self.unsigned()?,
                }
            }
            (0x12, _) => {
                let register = self.cfa_register()?;
                Cfa::Register {
                    register,
                    offset: self.factored_signed()?,
                }
            }
            (0x0d, Cfa::Register { offset, .. }) => Cfa::Register {
                register: self.cfa_register()?,
                offset,
            },
            (0x0e, Cfa::Register { register, .. }) => Cfa::Register {
                register,
                offset: self.unsigned()?,
            },
            (0x13, Cfa::Register { register, .. }) => Cfa::Register {
                register,
                offset: self.factored_signed()?,
            },
            (0x0f, _) => {
                let cfa = parse_cfa_expression(self.block()?);
                self.own(cfa)
            }
            // A new offset or register for a CFA that is an expression, as in
            // hand-written assembly of libgcrypt: what is meant is not known
            // until the next full definition.
            (0x13, _) => {
                self.code.sleb()?;
                Cfa::Other
            }
            _ => {
                self.code.uleb()?;
                Cfa::Other
            }
        };
        Some(())
    }

    /// The instructions that set the rule of a register.
    fn register_rule(&mut self, opcode: u8) -> Option<()> {
        let register = self.code.uleb()?;
        let rule = match opcode {
            0x05 => Saved::AtCfa(self.factored_unsigned()?),
            0x06 => {
                self.restore(register);
                return Some(());
            }
            0x07 => Saved::Undefined,
            0x08 => Saved::Same,
            0x09 => match self.code.uleb()? {
                same if same == register => Saved::Same,
                other => Saved::In(other),
            },
            0x10 => parse_location_expression(self.block()?),
            0x11 => Saved::AtCfa(self.factored_signed()?),
            0x14 => Saved::CfaPlus(self.factored_unsigned()?),
            0x15 => Saved::CfaPlus(self.factored_signed()?),
            0x16 => match parse_register_offset(self.block()?) {
                Some((register, offset, &[])) => Saved::Value { register, offset },
                _ => Saved::Other,
            },
            // GNU_negative_offset_extended.
            0x2f => Saved::AtCfa(self.factored_unsigned()?.checked_neg()?),
            _ => return None,
        };
        self.set(register, rule);
        Some(())
    }

    /// Sets the rule of a register, whose number is the file's.
    fn set(&mut self, register: u64, rule: Saved) {
        let register = self.register(register);
        let rule = match rule {
            // One word below the CFA, as everywhere.
            Saved::AtCfa(-4) if self.cie.is_narrow && register == RIP => Saved::AtCfa(-8),
            Saved::At { register, offset } => Saved::At {
                register: self.register(register),
                offset,
            },
            rule => rule,
        };
        self.state.set(register, rule);
    }

    /// The number that a register has in programs of 64 bits, by that in this one. Both psABIs
    /// list them: eax, ecx, edx, ebx, esp, ebp, esi, edi, eip.
    fn register(&self, number: u64) -> u64 {
        const NARROW: [u64; 9] = [0, 2, 1, 3, RSP, RBP, 4, 5, RIP];
        let index = usize::try_from(number).ok().filter(|_| self.cie.is_narrow);
        let known = index.and_then(|index| NARROW.get(index));
        known.copied().unwrap_or(number)
    }

    /// The same of a CFA.
    fn own(&self, cfa: Cfa) -> Cfa {
        match cfa {
            Cfa::Register { register, offset } => Cfa::Register {
                register: self.register(register),
                offset,
            },
            Cfa::Deref {
                register,
                offset,
                add,
            } => Cfa::Deref {
                register: self.register(register),
                offset,
                add,
            },
            // Those of a PLT of 64 bits.
            Cfa::Plt { .. } if self.cie.is_narrow => Cfa::Other,
            cfa => cfa,
        }
    }

    /// Gives a register the rule it has at the start of the FDE.
    fn restore(&mut self, register: u64) {
        let register = self.register(register);
        let mut initial = self.cie.initial;
        if let Some(rule) = initial.saved(register) {
            self.state.set(register, *rule);
        }
    }

    /// The location `delta` units of code further.
    fn advance(&self, delta: u64) -> Option<u64> {
        self.location
            .checked_add(delta.checked_mul(self.cie.code_align)?)
    }

    /// The register that a CFA counts from.
    fn cfa_register(&mut self) -> Option<u64> {
        let number = self.code.uleb()?;
        Some(self.register(number))
    }

    /// An unsigned operand.
    fn unsigned(&mut self) -> Option<i64> {
        i64::try_from(self.code.uleb()?).ok()
    }

    /// An unsigned operand in units of the data alignment.
    fn factored_unsigned(&mut self) -> Option<i64> {
        self.unsigned()?.checked_mul(self.cie.data_align)
    }

    /// A signed operand in units of the data alignment.
    fn factored_signed(&mut self) -> Option<i64> {
        self.code.sleb()?.checked_mul(self.cie.data_align)
    }

    /// The bytes of an expression.
    fn block(&mut self) -> Option<&'a [u8]> {
        let len = self.code.uleb()?;
        self.code.take_u64(len)
    }
}

/// Expression opcodes (DWARF 5, section 7.7.1).
const OP_DEREF: u8 = 0x06;
const OP_PLUS_UCONST: u8 = 0x23;
const OP_BREG0: u8 = 0x70;
const OP_BREG16: u8 = 0x80;

/// `register + offset` at the start of an expression, and what follows.
fn parse_register_offset(expression: &[u8]) -> Option<(u64, i64, &[u8])> {
    let mut bytes = Bytes::new(expression);
    let opcode = bytes
        .u8()
        .filter(|op| (OP_BREG0..=OP_BREG16).contains(op))?;
    Some((u64::from(opcode - OP_BREG0), bytes.sleb()?, bytes.rest()))
}

/// The CFA expressions that compilers, linkers and libc write.
fn parse_cfa_expression(expression: &[u8]) -> Cfa {
    match parse_register_offset(expression) {
        Some((register, offset, &[])) => Cfa::Register { register, offset },
        Some((register, offset, &[OP_DEREF, ref rest @ ..])) => {
            parse_added(rest).map_or(Cfa::Other, |add| Cfa::Deref {
                register,
                offset,
                add,
            })
        }
        Some((RSP, 8, rest)) => parse_plt(rest).unwrap_or(Cfa::Other),
        _ => Cfa::Other,
    }
}

/// The constant that the rest of an expression adds; 0 without any rest.
fn parse_added(rest: &[u8]) -> Option<i64> {
    let mut bytes = Bytes::new(rest);
    if bytes.is_empty() {
        return Some(0);
    }
    let added = (bytes.u8()? == OP_PLUS_UCONST).then(|| bytes.uleb())??;
    i64::try_from(added).ok().filter(|_| bytes.is_empty())
}

/// The rest of a PLT's expression, as the linkers write it for lazy entries of
/// 16 bytes: breg16 0; lit15; and; lit*n*; ge; lit3; shl; plus. Before offset
/// *n* of an entry nothing is pushed, after it the relocation's index is; *n*
/// differs between the plain and the CET forms.
fn parse_plt(rest: &[u8]) -> Option<Cfa> {
    let [OP_BREG16, 0, 0x3f, 0x1a, literal, 0x2a, 0x33, 0x24, 0x22] = rest else {
        return None;
    };
    let threshold = literal.checked_sub(0x30).filter(|&n| n < 32)?;
    Some(Cfa::Plt { threshold })
}

/// The location of a saved register: register plus offset, or not recognised.
fn parse_location_expression(expression: &[u8]) -> Saved {
    match parse_register_offset(expression) {
        Some((register, offset, &[])) => Saved::At { register, offset },
        _ => Saved::Other,
    }
}
