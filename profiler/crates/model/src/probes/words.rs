//! Expressions in words, for people who check a table.

use super::expr::{Address, Count, Expr, Place, SCALARS, Type, ValuePart};
use std::fmt;

/// The registers of the integer arguments (System V ABI for x86-64, 3.2.3).
const REGISTERS: [&str; 6] = ["rdi", "rsi", "rdx", "rcx", "r8", "r9"];

/// `u32: memory at rdx + 4`.
impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.ty {
            Type::Scalar { format, size } => {
                let name = SCALARS.iter().find(|(_, of, n)| (of, n) == (format, size));
                write!(f, "{}: {}", name.map_or("hex", |(name, ..)| name), self.at)
            }
            Type::Text => write!(f, "text at: {}", self.at),
            Type::Handles(count) => write!(f, "{count} handles at: {}", self.at),
            Type::Bytes(count) => write!(f, "the first of {count} bytes at: {}", self.at),
            Type::Blob(count) => write!(f, "{count} bytes at: {}", self.at),
        }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({})", self.at)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.offset {
            0 => self.place.fmt(f),
            offset if offset < 0 => write!(f, "{} - {}", self.place, offset.unsigned_abs()),
            offset => write!(f, "{} + {offset}", self.place),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = match self {
            Self::Argument(n, part) => {
                let register = REGISTERS.get(usize::from(*n)).unwrap_or(&"?");
                f.write_str(register)?;
                part
            }
            Self::Stack(n, part) => {
                write!(f, "[rsp + {}]", 8 + 8 * u32::from(*n))?;
                part
            }
            Self::Result(part) => {
                f.write_str("rax, the result")?;
                part
            }
            Self::Named(name) => return write!(f, "`{name}`"),
            Self::Read(address) => return write!(f, "[{address}]"),
        };
        f.write_str(match part {
            ValuePart::Whole => "",
            ValuePart::Low => ", bits 0 to 31",
            ValuePart::High => ", bits 32 to 63",
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::probes::expr::parse;

    #[test]
    fn expressions_are_told_with_their_registers() {
        for (text, words) in [
            ("arg0", "hex: rdi"),
            ("u32 arg1.hi", "u32: rsi, bits 32 to 63"),
            ("u32 [arg2+4]", "u32: [rdx + 4]"),
            ("i64 [[stack1]-8]", "i64: [[[rsp + 16]] - 8]"),
            ("text [arg1+24]", "text at: [rsi + 24]"),
            ("handles(count) arg2", "(`count`) handles at: rdx"),
            ("blob(u64 [arg3]) arg4+64", "([rcx]) bytes at: r8 + 64"),
            ("u64 [result]", "u64: [rax, the result]"),
        ] {
            assert_eq!(parse(text).unwrap().to_string(), words, "{text}");
        }
    }
}
