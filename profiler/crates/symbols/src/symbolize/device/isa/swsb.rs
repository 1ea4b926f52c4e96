//! The software scoreboard annotation of an instruction.

use super::opcode::Form;
use super::{Platform, word::Word};
use std::fmt;

/// Software scoreboard annotation: what an instruction waits for before it
/// issues, and the token it sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Swsb {
    /// Wait for an earlier in-order instruction.
    pub distance: Option<Distance>,
    /// Set a token, or wait for one.
    pub token: Option<Token>,
}

/// Wait for the instruction `value` back in an in-order pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Distance {
    /// Whose instructions are counted.
    pub pipe: Pipe,
    /// How many of them back, from 1.
    pub value: u8,
}

/// An in-order execution pipe, or a choice of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pipe {
    /// The instruction's own pipe (`@1`).
    Any,
    /// Every pipe (`A@1`).
    All,
    /// Floating point up to 32 bits (`F@1`).
    Float,
    /// Integers (`I@1`).
    Integer,
    /// Double precision, and 64-bit integers before Xe-HPC (`L@1`).
    Long,
    /// Extended mathematics from Xe-HPC on (`M@1`).
    Math,
    /// Moves of immediates to scalar registers from Xe3 on (`S@1`).
    Scalar,
}

/// A token of the scoreboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    /// Which: 0 to 15, from Xe-HPC on to 31.
    pub number: u8,
    /// Set or waited for.
    pub use_: TokenUse,
}

/// What an instruction does with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenUse {
    /// Takes it until it completes (`$3`); from Xe3p on also beside others that
    /// hold it (`$3.inc`).
    Set,
    /// Waits until its holder has written its destination (`$3.dst`).
    WaitDst,
    /// Waits until its holder has read its sources (`$3.src`).
    WaitSrc,
}

/// In IGA's syntax: `I@2,$3.dst`; nothing where there is no annotation.
impl fmt::Display for Swsb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Distance { pipe, value }) = self.distance {
            write!(f, "{}@{value}", pipe.letter())?;
        }
        if self.distance.is_some() && self.token.is_some() {
            f.write_str(",")?;
        }
        let Some(Token { number, use_ }) = self.token else {
            return Ok(());
        };
        let suffix = match use_ {
            TokenUse::Set => "",
            TokenUse::WaitDst => ".dst",
            TokenUse::WaitSrc => ".src",
        };
        write!(f, "${number}{suffix}")
    }
}

impl Pipe {
    /// Its letter in IGA's syntax; none for an instruction's own pipe.
    #[must_use]
    pub const fn letter(self) -> &'static str {
        match self {
            Self::Any => "",
            Self::All => "A",
            Self::Float => "F",
            Self::Integer => "I",
            Self::Long => "L",
            Self::Math => "M",
            Self::Scalar => "S",
        }
    }
}

/// The annotation of an instruction; empty where its encoding is reserved.
pub(super) fn decode(word: Word, form: Form, platform: Platform) -> Swsb {
    if form == Form::Illegal {
        return Swsb::default();
    }
    match platform {
        Platform::XeLp => one_pipe(word.field(8, 8), form),
        Platform::XeHp | Platform::XeHpg => three_pipes(word.field(8, 8), form),
        _ => many_pipes(word.field(8, 10), form, platform),
    }
}

/// Xe-LP: 8 bits, 16 tokens.
fn one_pipe(bits: u32, form: Form) -> Swsb {
    if bits & 0xf0 == 0 {
        return distance(Pipe::Any, bits & 0xf);
    }
    if bits & 0x80 != 0 {
        let sets = matches!(form, Form::Math | Form::Send | Form::SendG);
        let use_ = if sets {
            TokenUse::Set
        } else {
            TokenUse::WaitDst
        };
        return both(Pipe::Any, bits >> 4 & 7, bits & 0xf, use_);
    }
    token8(bits)
}

/// Xe-HP and Xe-HPG: 8 bits, 16 tokens, pipes by name.
fn three_pipes(bits: u32, form: Form) -> Swsb {
    let pipe = match bits >> 3 {
        0 => Pipe::Any,
        1 => Pipe::All,
        2 => Pipe::Float,
        3 => Pipe::Integer,
        10 => Pipe::Long,
        _ if bits & 0x80 == 0 => return token8(bits),
        _ => {
            let (pipe, use_) = match form {
                Form::Send | Form::SendG => (Pipe::All, TokenUse::Set),
                Form::Math | Form::Dpas => (Pipe::Any, TokenUse::Set),
                _ => (Pipe::Any, TokenUse::WaitDst),
            };
            return both(pipe, bits >> 4 & 7, bits & 0xf, use_);
        }
    };
    distance(pipe, bits & 7)
}

/// Xe-HPC and later: 10 bits, 32 tokens, math in order.
fn many_pipes(bits: u32, form: Form, platform: Platform) -> Swsb {
    let pipe = match bits >> 3 {
        0 => Pipe::Any,
        1 => Pipe::All,
        2 => Pipe::Float,
        3 => Pipe::Integer,
        4 => Pipe::Long,
        5 => Pipe::Math,
        6 if platform >= Platform::Xe3 => Pipe::Scalar,
        _ if bits & 0x300 == 0 => return token10(bits, platform),
        _ => {
            let (pipe, use_) = combined(bits >> 8, form);
            return both(pipe, bits >> 5 & 7, bits & 0x1f, use_);
        }
    };
    distance(pipe, bits & 7)
}

/// What the two mode bits of a distance with a token mean, from Xe-HPC on.
fn combined(mode: u32, form: Form) -> (Pipe, TokenUse) {
    match (form, mode) {
        (Form::Send | Form::SendG, 1) => (Pipe::All, TokenUse::Set),
        (Form::Send | Form::SendG, 2) => (Pipe::Float, TokenUse::Set),
        (Form::Send | Form::SendG, _) => (Pipe::Integer, TokenUse::Set),
        (Form::Dpas, 1) => (Pipe::Any, TokenUse::Set),
        (_, 2) => (Pipe::Any, TokenUse::WaitSrc),
        (Form::Dpas, _) | (_, 1) => (Pipe::Any, TokenUse::WaitDst),
        _ => (Pipe::All, TokenUse::WaitDst),
    }
}

fn token8(bits: u32) -> Swsb {
    let use_ = match bits >> 4 {
        2 => TokenUse::WaitDst,
        3 => TokenUse::WaitSrc,
        4 => TokenUse::Set,
        _ => return Swsb::default(),
    };
    token(bits & 0xf, use_)
}

fn token10(bits: u32, platform: Platform) -> Swsb {
    let use_ = match bits >> 5 {
        2 if platform >= Platform::Xe3p => TokenUse::Set,
        4 => TokenUse::WaitDst,
        5 => TokenUse::WaitSrc,
        6 => TokenUse::Set,
        // 0xf0 is "no accumulator scoreboard set": neither distance nor token.
        _ => return Swsb::default(),
    };
    token(bits & 0x1f, use_)
}

fn distance(pipe: Pipe, value: u32) -> Swsb {
    let value = value as u8;
    Swsb {
        distance: (value != 0).then_some(Distance { pipe, value }),
        token: None,
    }
}

fn token(number: u32, use_: TokenUse) -> Swsb {
    Swsb {
        distance: None,
        token: Some(Token {
            number: number as u8,
            use_,
        }),
    }
}

fn both(pipe: Pipe, value: u32, number: u32, use_: TokenUse) -> Swsb {
    Swsb {
        distance: distance(pipe, value).distance,
        ..token(number, use_)
    }
}
