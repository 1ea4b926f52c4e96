//! Where a value lies in an ioctl's argument: `u32 vm_id@8`.
//!
//! The type, the member's name in the driver's header (so that anybody can look
//! it up), its offset. `u32 arg` is the argument itself, and
//! `u16 instances@24->drm_xe_engine_class_instance.gt_id@4` follows a pointer.

use crate::probes::ValueFormat;

/// Largest offset: a command's size has 14 bits.
const MAX_OFFSET: u32 = (1 << 14) - 1;

/// A value to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: Type,
    /// Where it is.
    pub place: Place,
}

/// What a field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// A number of this many bytes.
    Number(u8, ValueFormat),
    /// NUL-terminated text.
    Text,
}

impl Default for Type {
    fn default() -> Self {
        Self::Number(4, ValueFormat::Decimal)
    }
}

/// Where a field is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// The ioctl's argument itself.
    #[default]
    Argument,
    /// In what the argument points at.
    At(Member),
    /// In what a pointer in there points at.
    Through {
        /// The pointer.
        pointer: Member,
        /// C structure that it points at.
        structure: String,
        /// The member of it.
        member: Member,
    },
}

/// A member of a structure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its name in C; empty where the structure is the value.
    pub name: String,
    /// Its offset in bytes.
    pub offset: u16,
}

/// The types, by their names in tables.
const TYPES: [(&str, Type); 11] = [
    ("u8", Type::Number(1, ValueFormat::Decimal)),
    ("u16", Type::Number(2, ValueFormat::Decimal)),
    ("u32", Type::Number(4, ValueFormat::Decimal)),
    ("u64", Type::Number(8, ValueFormat::Decimal)),
    ("i32", Type::Number(4, ValueFormat::Signed(4))),
    ("i64", Type::Number(8, ValueFormat::Signed(8))),
    ("hex8", Type::Number(1, ValueFormat::Hex)),
    ("hex16", Type::Number(2, ValueFormat::Hex)),
    ("hex32", Type::Number(4, ValueFormat::Hex)),
    ("hex", Type::Number(8, ValueFormat::Hex)),
    ("text", Type::Text),
];

/// A mistake in a field, and how many bytes into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FieldError {
    pub(super) at: usize,
    pub(super) message: String,
}

fn error<T>(at: usize, message: impl Into<String>) -> Result<T, FieldError> {
    Err(FieldError {
        at,
        message: message.into(),
    })
}

impl Type {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        let found = TYPES.iter().find(|(_, kind)| *kind == self);
        found.map_or("?", |(name, _)| name)
    }
}

/// Parses `TYPE PLACE`; the name is filled in by the caller.
pub(super) fn parse(text: &str) -> Result<Field, FieldError> {
    let (word, place) = text.split_once(' ').unwrap_or((text, ""));
    let Some((_, kind)) = TYPES.iter().find(|(name, _)| *name == word) else {
        let names: Vec<_> = TYPES.iter().map(|(name, _)| *name).collect();
        return error(0, format!("expected a type: {}", names.join(", ")));
    };
    let place = parse_place(place, word.len() + 1)?;
    if *kind == Type::Text && place != Place::Argument {
        return error(
            word.len() + 1,
            "a text must be the argument itself: write `text arg`",
        );
    }
    Ok(Field {
        name: String::new(),
        kind: *kind,
        place,
    })
}

/// Parses a place that begins `at` bytes into the text.
pub(super) fn parse_place(text: &str, at: usize) -> Result<Place, FieldError> {
    if text == "arg" {
        return Ok(Place::Argument);
    }
    let Some((pointer, rest)) = text.split_once("->") else {
        return parse_member(text, at).map(Place::At);
    };
    let inner = at + pointer.len() + 2;
    let Some((structure, member)) = rest.split_once('.') else {
        return error(inner, "expected STRUCTURE.MEMBER@OFFSET after `->`");
    };
    if structure.is_empty() || !structure.chars().all(is_c) {
        return error(inner, "expected the name of a C structure");
    }
    Ok(Place::Through {
        pointer: parse_member(pointer, at)?,
        structure: structure.to_owned(),
        member: parse_member(member, inner + structure.len() + 1)?,
    })
}

/// `MEMBER@OFFSET`; the member may be left out.
fn parse_member(text: &str, at: usize) -> Result<Member, FieldError> {
    let Some((name, offset)) = text.split_once('@') else {
        return error(at, "expected MEMBER@OFFSET or `arg`");
    };
    if !name.chars().all(|c| is_c(c) || c == '.') {
        return error(
            at,
            "a member's name may contain only letters, digits, `_` and `.`",
        );
    }
    match offset.parse::<u32>() {
        Ok(number) if number <= MAX_OFFSET && !offset.starts_with('+') => Ok(Member {
            name: name.to_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(name: &str, offset: u16) -> Member {
        Member {
            name: name.into(),
            offset,
        }
    }

    #[test]
    fn reads_fields() {
        let plain = parse("u32 in.op@8").unwrap();
        assert_eq!(plain.kind, Type::Number(4, ValueFormat::Decimal));
        assert_eq!(plain.place, Place::At(at("in.op", 8)));
        assert_eq!(parse("text arg").unwrap().kind, Type::Text);
        assert_eq!(parse("hex arg").unwrap().place, Place::Argument);
        assert_eq!(parse("i32 @0").unwrap().place, Place::At(at("", 0)));
        assert_eq!(
            parse("u16 instances@24->engine.gt_id@4").unwrap().place,
            Place::Through {
                pointer: at("instances", 24),
                structure: "engine".into(),
                member: at("gt_id", 4),
            }
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
        for (name, kind) in TYPES {
            assert_eq!(kind.name(), name);
        }
    }
}
