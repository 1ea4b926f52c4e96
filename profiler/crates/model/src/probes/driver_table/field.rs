//! Where a value lies in an ioctl's argument: `u32 vm_id@8`.
//!
//! The type, the member's name in the driver's header (so that anybody can look
//! it up), its offset. `u32 arg` is the argument itself, and
//! `u16 instances@24->drm_xe_engine_class_instance.gt_id@4` follows a pointer.
//! It becomes an expression like those for functions.

use crate::probes::ValueFormat;
use crate::probes::expr::{Address, Expr, ExprError, Place, Type, ValuePart, scalar};
use crate::probes::ioctl::ElementField;
use crate::probes::program::Field;
use crate::probes::reader::FieldSyntax;

/// Largest offset: a command's size has 14 bits.
const MAX_OFFSET: u32 = (1 << 14) - 1;

/// Which argument of ioctl(2) is the command's own.
pub(super) const ARGUMENT: Place = Place::Argument(2, ValuePart::Whole);

/// `args`, `out` and `fields` of commands.
pub(super) const SYNTAX: FieldSyntax = FieldSyntax {
    shape: "name = ...",
    refuse: |name| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let message = "a value's name may contain only lower-case letters, digits and `_`";
        (name.is_empty() || !name.chars().all(plain)).then(|| message.to_owned())
    },
    parse,
};

/// The types, by their names in tables.
const TYPES: [&str; 11] = [
    "u8", "u16", "u32", "u64", "i32", "i64", "hex8", "hex16", "hex32", "hex", "text",
];

/// The names that a table gives for where a field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Members<'a> {
    /// The ioctl's argument itself.
    Argument,
    /// In what the argument points at.
    At(Member<'a>),
    /// In what a pointer in there points at.
    Through {
        /// The pointer.
        pointer: Member<'a>,
        /// C structure that it points at.
        structure: &'a str,
        /// The member of it.
        member: Member<'a>,
    },
}

/// A member of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    /// Its name in C; empty where the structure is the value.
    pub name: &'a str,
    /// Its offset in bytes.
    pub offset: u16,
}

fn error<T>(at: usize, message: impl Into<String>) -> Result<T, ExprError> {
    Err(ExprError {
        at,
        message: message.into(),
    })
}

/// The type's name in tables and the members of a field that a table gives as `text`.
pub fn members(text: &str) -> (&str, Members<'_>) {
    let (word, place) = text.split_once(' ').unwrap_or((text, ""));
    // Checked when the table was read.
    (word, parse_place(place, 0).unwrap_or(Members::Argument))
}

/// Parses `TYPE PLACE`.
pub(super) fn parse(text: &str) -> Result<Expr, ExprError> {
    let (word, place) = text.split_once(' ').unwrap_or((text, ""));
    let ty = match word {
        "text" => Some(Type::Text),
        "hex8" => Some((ValueFormat::Hex, 1).into()),
        "hex16" => Some((ValueFormat::Hex, 2).into()),
        word if TYPES.contains(&word) => scalar(word).map(Type::from),
        _ => None,
    };
    let Some(ty) = ty else {
        return error(0, format!("expected a type: {}", TYPES.join(", ")));
    };
    let place = parse_place(place, word.len() + 1)?.place();
    if ty == Type::Text && place != ARGUMENT {
        let message = "a text must be the argument itself: write `text arg`";
        return error(word.len() + 1, message);
    }
    Ok(Expr { ty, ..hex(place) })
}

/// Parses a place that holds an address.
pub(super) fn parse_pointer(text: &str) -> Result<Expr, ExprError> {
    Ok(hex(parse_place(text, 0)?.place()))
}

/// What lies at a place, as an address.
pub(super) fn hex(place: Place) -> Expr {
    Expr {
        ty: (ValueFormat::Hex, 8).into(),
        at: Address { place, offset: 0 },
    }
}

/// Parses a place that begins `at` bytes into the text.
fn parse_place(text: &str, at: usize) -> Result<Members<'_>, ExprError> {
    if text == "arg" {
        return Ok(Members::Argument);
    }
    let Some((pointer, rest)) = text.split_once("->") else {
        return parse_member(text, at).map(Members::At);
    };
    let inner = at + pointer.len() + 2;
    let Some((structure, member)) = rest.split_once('.') else {
        return error(inner, "expected STRUCTURE.MEMBER@OFFSET after `->`");
    };
    if structure.is_empty() || !structure.chars().all(is_c) {
        return error(inner, "expected the name of a C structure");
    }
    Ok(Members::Through {
        pointer: parse_member(pointer, at)?,
        structure,
        member: parse_member(member, inner + structure.len() + 1)?,
    })
}

/// `MEMBER@OFFSET`; the member may be left out.
fn parse_member(text: &str, at: usize) -> Result<Member<'_>, ExprError> {
    let Some((name, offset)) = text.split_once('@') else {
        return error(at, "expected MEMBER@OFFSET or `arg`");
    };
    if !name.chars().all(|c| is_c(c) || c == '.') {
        let message = "a member's name may contain only letters, digits, `_` and `.`";
        return error(at, message);
    }
    match offset.parse::<u32>() {
        Ok(number) if number <= MAX_OFFSET && !offset.starts_with('+') => Ok(Member {
            name,
            // At most MAX_OFFSET.
            offset: number as u16,
        }),
        _ => error(
            at + name.len() + 1,
            format!("an offset must be a number from 0 to {MAX_OFFSET}"),
        ),
    }
}

fn is_c(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

impl Members<'_> {
    /// The place of the value.
    fn place(&self) -> Place {
        match self {
            Self::Argument => ARGUMENT,
            Self::At(member) => member.of(ARGUMENT),
            Self::Through {
                pointer, member, ..
            } => member.of(pointer.of(ARGUMENT)),
        }
    }
}

impl Member<'_> {
    /// Its place in a structure that `place` points at.
    fn of(&self, place: Place) -> Place {
        let offset = self.offset.into();
        Place::Read(Box::new(Address { place, offset }))
    }
}

impl Field {
    /// The offset of what must be a member of the argument or of an element.
    pub(super) fn offset(&self) -> Option<u16> {
        match &self.expr.at.place {
            Place::Read(address) if address.place == ARGUMENT => address.offset.try_into().ok(),
            _ => None,
        }
    }

    /// As a field of an array's elements; `None` if it cannot be one.
    pub(super) fn element(&self) -> Option<ElementField> {
        let Type::Scalar { format, size } = self.expr.ty else {
            return None;
        };
        Some(ElementField {
            name: self.name.clone(),
            offset: self.offset()?,
            size,
            format,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(name: &str, offset: u16) -> Member<'_> {
        Member { name, offset }
    }

    #[test]
    fn reads_fields() {
        let plain = parse("u32 in.op@8").unwrap();
        assert_eq!(plain.ty, (ValueFormat::Decimal, 4).into());
        let op = Members::At(at("in.op", 8));
        assert_eq!(members("u32 in.op@8"), ("u32", op));
        assert_eq!(plain.at.place, op.place());
        assert_eq!(parse("text arg").unwrap().ty, Type::Text);
        assert_eq!(members("hex arg"), ("hex", Members::Argument));
        assert_eq!(parse("hex arg").unwrap().at.place, ARGUMENT);
        assert_eq!(members("i32 @0"), ("i32", Members::At(at("", 0))));
        let followed = "u16 instances@24->engine.gt_id@4";
        let through = Members::Through {
            pointer: at("instances", 24),
            structure: "engine",
            member: at("gt_id", 4),
        };
        assert_eq!(members(followed), ("u16", through));
        let expr = parse(followed).unwrap();
        assert_eq!(expr.at.place, through.place());
        assert_eq!(
            expr,
            crate::probes::expr::parse("u16 [[arg2+24]+4]").unwrap()
        );
    }

    #[test]
    fn says_where_a_mistake_is() {
        for (text, place) in [
            ("", 0),
            ("u33 a@0", 0),
            ("u32", 4),
            ("u32 a", 4),
            ("u32 a@", 6),
            ("u32 a@-1", 6),
            ("u32 a@+1", 6),
            ("u32 a@16384", 6),
            ("u32 a b@1", 4),
            ("u32 a@1->b", 9),
            ("u32 a@1->.c@1", 9),
            ("u32 a@1->b.c", 11),
            ("u32 a->b.c@1", 4),
            ("text a@0", 5),
            ("u32 a@1->b.c@1->d.e@1", 13),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.at, place, "{text}: {}", error.message);
        }
    }

    #[test]
    fn types_have_names() {
        for name in TYPES {
            let (text, place) = match name {
                "text" => (format!("{name} arg"), Members::Argument),
                _ => (format!("{name} a@0"), Members::At(at("a", 0))),
            };
            assert!(parse(&text).is_ok(), "{name}");
            assert_eq!(members(&text), (name, place));
        }
    }
}
