//! Opcodes and sub-functions.

use super::Platform::{self, Xe2, Xe3, Xe3p, XeHp, XeHpc, XeHpg, XeLp};
use super::{compact, word::Word};
use std::borrow::Cow;

/// How an instruction's bits are laid out, and what it does to control flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Illegal,
    Nop,
    Sync,
    /// One source.
    Unary,
    /// Two sources.
    Binary,
    /// Three sources.
    Ternary,
    Math,
    Dpas,
    /// A message; end of thread in bit 34.
    Send,
    /// A message with a 64-bit descriptor; end of thread in bit 32.
    SendG,
    /// `jmpi`.
    Jump,
    /// A branch with one target (JIP).
    Branch1,
    /// A branch with two targets (JIP and UIP).
    Branch2,
    /// One with two targets that no channel passes unless it has a predicate.
    Leave,
    Call,
    /// `calla`.
    CallAbsolute,
    Return,
}

/// An operation on the platforms that have it.
#[derive(Clone, Copy)]
pub(super) struct Spec {
    pub(super) opcode: u32,
    name: &'static str,
    pub(super) form: Form,
    platforms: (Platform, Platform),
}

impl Spec {
    /// The operation of `word`; `None` where the platform has none with its
    /// opcode, or no compacted form of it.
    pub(super) fn of(word: Word, platform: Platform) -> Option<Self> {
        let opcode = word.opcode();
        let spec = SPECS.iter().find(|spec| {
            spec.opcode == opcode && (spec.platforms.0..=spec.platforms.1).contains(&platform)
        })?;
        (!word.compacted() || spec.compactable()).then_some(*spec)
    }

    fn compactable(self) -> bool {
        use Form::{Binary, Dpas, Sync, Ternary, Unary};
        matches!(self.form, Sync | Unary | Binary | Ternary | Dpas) && !matches!(self.opcode, DPASW)
    }
}

const fn op(opcode: u32, name: &'static str, form: Form) -> Spec {
    on(opcode, name, form, XeLp, Xe3p)
}

const fn on(opcode: u32, name: &'static str, form: Form, from: Platform, to: Platform) -> Spec {
    Spec {
        opcode,
        name,
        form,
        platforms: (from, to),
    }
}

const DPASW: u32 = 0x5a;
pub(super) const MOV: u32 = 0x61;
pub(super) const SRND: u32 = 0x54;
const LFSR: u32 = 0x39;

/// Every operation, by opcode.
static SPECS: &[Spec] = &[
    op(0x00, "illegal", Form::Illegal),
    op(0x01, "sync", Form::Sync),
    on(0x02, "thryld", Form::Nop, Xe3p, Xe3p),
    op(0x20, "jmpi", Form::Jump),
    on(0x21, "brd", Form::Branch1, XeLp, Xe2),
    op(0x22, "if", Form::Branch2),
    on(0x23, "brc", Form::Branch2, XeLp, Xe2),
    op(0x24, "else", Form::Branch2),
    op(0x25, "endif", Form::Branch1),
    op(0x27, "while", Form::Branch1),
    op(0x28, "break", Form::Leave),
    op(0x29, "cont", Form::Leave),
    op(0x2a, "halt", Form::Leave),
    op(0x2b, "calla", Form::CallAbsolute),
    op(0x2c, "call", Form::Call),
    op(0x2d, "ret", Form::Return),
    op(0x2e, "goto", Form::Leave),
    op(0x2f, "join", Form::Branch1),
    op(0x31, "send", Form::Send),
    op(0x32, "sendc", Form::Send),
    on(0x33, "sendg", Form::SendG, Xe3p, Xe3p),
    on(0x34, "sendgc", Form::SendG, Xe3p, Xe3p),
    on(0x35, "sendgx", Form::SendG, Xe3p, Xe3p),
    on(0x36, "sendgxc", Form::SendG, Xe3p, Xe3p),
    op(0x38, "math", Form::Math),
    on(LFSR, "lfsr", Form::Binary, Xe3p, Xe3p),
    op(0x40, "add", Form::Binary),
    op(0x41, "mul", Form::Binary),
    op(0x42, "avg", Form::Binary),
    op(0x43, "frc", Form::Unary),
    op(0x44, "rndu", Form::Unary),
    op(0x45, "rndd", Form::Unary),
    op(0x46, "rnde", Form::Unary),
    op(0x47, "rndz", Form::Unary),
    on(0x48, "mac", Form::Binary, XeLp, Xe3),
    on(0x49, "mach", Form::Binary, XeLp, Xe3),
    op(0x4a, "lzd", Form::Unary),
    op(0x4b, "fbh", Form::Unary),
    op(0x4c, "fbl", Form::Unary),
    op(0x4d, "cbit", Form::Unary),
    op(0x4e, "addc", Form::Binary),
    op(0x4f, "subb", Form::Binary),
    on(0x50, "shfl.idx4", Form::Binary, Xe3p, Xe3p),
    on(0x52, "add3", Form::Ternary, XeHp, Xe3p),
    on(0x53, "macl", Form::Binary, XeHpc, Xe3),
    on(SRND, "srnd", Form::Binary, XeHpc, Xe3p),
    on(0x55, "dnscl", Form::Ternary, Xe3p, Xe3p),
    op(0x58, "dp4a", Form::Ternary),
    on(0x59, "dpas", Form::Dpas, XeHp, Xe3p),
    on(DPASW, "dpasw", Form::Dpas, XeHp, XeHpg),
    op(0x5b, "mad", Form::Ternary),
    on(0x5c, "bdpas.8x8", Form::Dpas, Xe3p, Xe3p),
    on(0x5d, "madm", Form::Ternary, XeHp, Xe3p),
    on(0x5f, "mullh", Form::Binary, Xe3p, Xe3p),
    op(0x60, "nop", Form::Nop),
    op(MOV, "mov", Form::Unary),
    op(0x62, "sel", Form::Binary),
    op(0x63, "movi", Form::Binary),
    op(0x64, "not", Form::Unary),
    op(0x65, "and", Form::Binary),
    op(0x66, "or", Form::Binary),
    op(0x67, "xor", Form::Binary),
    op(0x68, "shr", Form::Binary),
    op(0x69, "shl", Form::Binary),
    on(0x6b, "bfn", Form::Ternary, XeHp, Xe3p),
    op(0x6c, "asr", Form::Binary),
    op(0x6e, "ror", Form::Binary),
    op(0x6f, "rol", Form::Binary),
    op(0x70, "cmp", Form::Binary),
    op(0x71, "cmpn", Form::Binary),
    op(0x72, "csel", Form::Ternary),
    op(0x77, "bfrev", Form::Unary),
    op(0x78, "bfe", Form::Ternary),
    op(0x79, "bfi1", Form::Binary),
    op(0x7a, "bfi2", Form::Ternary),
];

/// The mnemonic with its sub-function; without one where that is reserved.
pub(super) fn mnemonic(word: Word, spec: Spec, platform: Platform) -> Cow<'static, str> {
    let function = word.field(92, 4);
    let sub = match spec.form {
        Form::Send | Form::SendG => shared_function(function, platform),
        Form::Math => math_function(function, platform),
        Form::Sync => {
            let known = if word.compacted() {
                compact::sync_function(word, platform)
            } else {
                Some(function)
            };
            known.and_then(|function| sync_function(function, platform))
        }
        Form::Dpas if !spec.name.contains('.') => return dpas(word, spec, platform),
        Form::Leave | Form::Branch2 if word.bit(33) && has_branch_control(spec) => Some("b"),
        Form::Binary if spec.opcode == LFSR && !word.compacted() => lfsr(function),
        _ => None,
    };
    match sub {
        Some(sub) => Cow::Owned(format!("{}.{sub}", spec.name)),
        None => Cow::Borrowed(spec.name),
    }
}

fn has_branch_control(spec: Spec) -> bool {
    matches!(spec.name, "if" | "else" | "goto")
}

/// The systolic depth and repeat count of a `dpas`.
fn dpas(word: Word, spec: Spec, platform: Platform) -> Cow<'static, str> {
    let (depth, repeat) = if word.compacted() {
        match compact::dpas_repeat(word, platform) {
            Some(repeat) => (8, repeat),
            None => return Cow::Borrowed(spec.name),
        }
    } else {
        (1 << word.field(48, 2), word.field(43, 3) + 1)
    };
    Cow::Owned(format!("{}.{depth}x{repeat}", spec.name))
}

/// The unit that a message goes to.
fn shared_function(number: u32, platform: Platform) -> Option<&'static str> {
    let late = platform >= XeHpg;
    Some(match number {
        0 => "null",
        1 if (XeHpg..=Xe3).contains(&platform) => "ugml",
        2 => "smpl",
        3 => "gtwy",
        4 if platform <= Xe3 => "dc2",
        5 => "rc",
        6 => "urb",
        7 if late => "btd",
        7 => "ts",
        8 if late => "rta",
        8 => "vme",
        9 if platform <= XeHpc => "dcro",
        10 => "dc0",
        11 if platform <= Xe3 => "pixi",
        12 if platform <= Xe3 => "dc1",
        13 if late => "tgm",
        13 => "cre",
        14 if late => "slm",
        15 if late => "ugm",
        _ => return None,
    })
}

fn math_function(number: u32, platform: Platform) -> Option<&'static str> {
    Some(match number {
        1 => "inv",
        2 => "log",
        3 => "exp",
        4 => "sqt",
        5 => "rsqt",
        6 => "sin",
        7 => "cos",
        9 if platform >= Xe3p => "tanh",
        10 if platform >= Xe3p => "sigm",
        11 if platform <= XeHp => "idiv",
        12 if platform <= XeHp => "iqot",
        13 if platform <= XeHp => "irem",
        14 => "invm",
        15 => "rsqtm",
        _ => return None,
    })
}

fn sync_function(number: u32, platform: Platform) -> Option<&'static str> {
    Some(match number {
        0 => "nop",
        2 => "allrd",
        3 => "allwr",
        12 if platform >= Xe2 => "flush",
        13 if platform >= XeHpc => "fence",
        14 => "bar",
        15 => "host",
        _ => return None,
    })
}

fn lfsr(number: u32) -> Option<&'static str> {
    ["b32", "b16v2", "b8v4"].get((number & 3) as usize).copied()
}
