//! Arguments of a recording's events: keys and typed values, one after the other.
//!
//! Events wait in files until their time comes, and each format writes values in its own
//! way. So they are kept as what they are, not as text: a byte for the type, the key's
//! length and the key, the value. Numbers and lengths have seven bits a byte, the lowest
//! first, and a mark on all but the last.

use crate::json::cut;

const TEXT: u8 = 0;
const JSON: u8 = 1;
const NUMBER: u8 = 2;
const SIGNED: u8 = 3;
const HEX: u8 = 4;
const MICROS: u8 = 5;
const FLOAT: u8 = 6;
const NO: u8 = 7;
const YES: u8 = 8;
const NUMBERS: u8 = 9;
const TEXTS: u8 = 10;

/// Bytes that most events' arguments have room in.
const USUAL: usize = 160;

/// Arguments that are being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Args {
    bytes: Vec<u8>,
}

/// A value of an argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// A text.
    Text(&'a str),
    /// A value that is JSON already.
    Json(&'a str),
    /// A number.
    Number(u64),
    /// A signed number.
    Signed(i64),
    /// A number that is shown in hexadecimal, as a text.
    Hex(u64),
    /// Nanoseconds, shown as microseconds with decimals.
    Micros(u64),
    /// A floating-point number.
    Float(f64),
    /// Whether something is so.
    Flag(bool),
    /// Numbers, of any size.
    Numbers(List<'a>),
    /// Texts.
    Texts(List<'a>),
}

impl Args {
    /// None.
    pub fn new() -> Self {
        Self {
            bytes: Vec::with_capacity(USUAL),
        }
    }

    /// A text, cut where it is very long.
    pub fn text(&mut self, key: &str, value: &str) {
        self.key(TEXT, key);
        put_text(&mut self.bytes, &cut(value));
    }

    /// A value that is JSON already.
    pub fn raw(&mut self, key: &str, json: &str) {
        self.key(JSON, key);
        put_text(&mut self.bytes, json);
    }

    /// A number.
    pub fn number(&mut self, key: &str, value: u64) {
        self.key(NUMBER, key);
        put(&mut self.bytes, value);
    }

    /// A signed number.
    pub fn signed(&mut self, key: &str, value: i64) {
        self.key(SIGNED, key);
        put(&mut self.bytes, value.cast_unsigned());
    }

    /// A number that is shown in hexadecimal, as a text.
    pub fn hex(&mut self, key: &str, value: u64) {
        self.key(HEX, key);
        put(&mut self.bytes, value);
    }

    /// A time or duration, which is shown in microseconds.
    pub fn micros(&mut self, key: &str, ns: u64) {
        self.key(MICROS, key);
        put(&mut self.bytes, ns);
    }

    /// A floating-point number.
    pub fn float(&mut self, key: &str, value: f64) {
        self.key(FLOAT, key);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Whether something is so.
    pub fn flag(&mut self, key: &str, value: bool) {
        self.key(if value { YES } else { NO }, key);
    }

    /// Numbers, which are never shown as texts.
    pub fn numbers(&mut self, key: &str, values: &[u64]) {
        self.key(NUMBERS, key);
        let mut list = Vec::with_capacity(values.len() * 8);
        values.iter().for_each(|value| put(&mut list, *value));
        put(&mut self.bytes, list.len() as u64);
        self.bytes.extend_from_slice(&list);
    }

    /// Texts, each cut where it is very long.
    pub fn texts<'a>(&mut self, key: &str, values: impl IntoIterator<Item = &'a str>) {
        self.key(TEXTS, key);
        let mut list = Vec::new();
        for value in values {
            put_text(&mut list, &cut(value));
        }
        put(&mut self.bytes, list.len() as u64);
        self.bytes.extend_from_slice(&list);
    }

    /// Those written so far, as they are stored.
    pub fn members(&self) -> Members<'_> {
        Members::of(&self.bytes)
    }

    fn key(&mut self, kind: u8, key: &str) {
        self.bytes.push(kind);
        put_text(&mut self.bytes, key);
    }
}

/// Gives the keys and values of stored arguments. Damaged ones end early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Members<'a> {
    bytes: &'a [u8],
}

impl<'a> Members<'a> {
    /// Those of stored arguments.
    pub fn of(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// As they are stored.
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// The first value of a key.
    pub fn find(mut self, key: &str) -> Option<Value<'a>> {
        self.find_map(|(known, value)| (known == key).then_some(value))
    }

    fn read(&mut self) -> Option<(&'a str, Value<'a>)> {
        let (&kind, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        let from = &mut self.bytes;
        let key = take_text(from)?;
        let value = match kind {
            TEXT => Value::Text(take_text(from)?),
            JSON => Value::Json(take_text(from)?),
            NUMBER => Value::Number(take(from)?),
            SIGNED => Value::Signed(take(from)?.cast_signed()),
            HEX => Value::Hex(take(from)?),
            MICROS => Value::Micros(take(from)?),
            FLOAT => {
                let (number, rest) = from.split_first_chunk()?;
                *from = rest;
                Value::Float(f64::from_le_bytes(*number))
            }
            NO | YES => Value::Flag(kind == YES),
            NUMBERS => Value::Numbers(List(take_bytes(from)?)),
            TEXTS => Value::Texts(List(take_bytes(from)?)),
            _ => return None,
        };
        Some((key, value))
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = (&'a str, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let read = self.read();
        if read.is_none() {
            self.bytes = &[];
        }
        read
    }
}

/// Numbers or texts, as they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List<'a>(&'a [u8]);

impl<'a> List<'a> {
    /// The numbers.
    pub fn numbers(self) -> impl Iterator<Item = u64> + use<'a> {
        let mut rest = self.0;
        std::iter::from_fn(move || take(&mut rest))
    }

    /// The texts.
    pub fn texts(self) -> impl Iterator<Item = &'a str> + use<'a> {
        let mut rest = self.0;
        std::iter::from_fn(move || take_text(&mut rest))
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

/// Writes a number, seven bits a byte.
pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Reads a number that [`put`] wrote; `None`: it is damaged.
pub fn take(from: &mut &[u8]) -> Option<u64> {
    if let Some((&byte @ 0..0x80, rest)) = from.split_first() {
        *from = rest;
        return Some(byte.into());
    }
    let mut value = 0;
    for (shift, byte) in (0..64).step_by(7).zip(from.iter()) {
        value |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            *from = from.get(shift / 7 + 1..)?;
            return Some(value);
        }
    }
    None
}

fn take_bytes<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(take(from)?).ok()?;
    let (taken, rest) = from.split_at_checked(len)?;
    *from = rest;
    Some(taken)
}

fn take_text<'a>(from: &mut &'a [u8]) -> Option<&'a str> {
    std::str::from_utf8(take_bytes(from)?).ok()
}

/// A number in hexadecimal, `0x1f`.
pub fn hex(value: u64) -> Digits {
    let mut digits = Digits::default();
    let mut rest = value;
    while rest > 0 || digits.is_empty() {
        digits.prepend(b"0123456789abcdef"[(rest & 15) as usize]);
        rest >>= 4;
    }
    digits.prepend(b'x');
    digits.prepend(b'0');
    digits
}

/// A number in decimal.
pub fn decimal(value: u64) -> Digits {
    let mut digits = Digits::default();
    let mut rest = value;
    while rest > 0 || digits.is_empty() {
        digits.prepend(b'0' + (rest % 10) as u8);
        rest /= 10;
    }
    digits
}

/// The text of a number.
#[derive(Clone, Copy, Debug)]
pub struct Digits {
    bytes: [u8; 20],
    from: usize,
}

impl Default for Digits {
    fn default() -> Self {
        Self {
            bytes: [0; 20],
            from: 20,
        }
    }
}

impl Digits {
    /// The text.
    pub fn text(&self) -> &str {
        let digits = self.bytes.get(self.from..).unwrap_or_default();
        std::str::from_utf8(digits).unwrap_or_default()
    }

    fn is_empty(&self) -> bool {
        self.from == self.bytes.len()
    }

    fn prepend(&mut self, digit: u8) {
        self.from = self.from.saturating_sub(1);
        if let Some(place) = self.bytes.get_mut(self.from) {
            *place = digit;
        }
    }
}

impl Value<'_> {
    /// The number that a counter has, if it is one.
    pub fn as_float(self) -> Option<f64> {
        match self {
            Self::Number(value) => Some(value as f64),
            Self::Signed(value) => Some(value as f64),
            Self::Float(value) => Some(value).filter(|value| value.is_finite()),
            Self::Micros(ns) => Some(micros(ns)),
            _ => None,
        }
    }
}

/// Microseconds of nanoseconds.
pub fn micros(ns: u64) -> f64 {
    // Where a double is not exact, the nanoseconds do not show.
    ns as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Args {
        let mut args = Args::new();
        args.text("text", "é\"");
        args.raw("json", "{\"a\":[1]}");
        args.number("number", u64::MAX);
        args.signed("signed", i64::MIN);
        args.hex("hex", 0x1f0);
        args.micros("micros", 1500);
        args.float("float", -0.5);
        args.flag("yes", true);
        args.flag("", false);
        args.numbers("numbers", &[0, 300, u64::MAX]);
        args.texts("texts", ["a", "", "c"]);
        args.texts("none", []);
        args
    }

    #[test]
    fn arguments_are_read_as_they_were_written() {
        let args = all();
        let read: Vec<_> = args.members().collect();
        assert_eq!(read.len(), 12);
        assert_eq!(
            read[..9],
            [
                ("text", Value::Text("é\"")),
                ("json", Value::Json("{\"a\":[1]}")),
                ("number", Value::Number(u64::MAX)),
                ("signed", Value::Signed(i64::MIN)),
                ("hex", Value::Hex(0x1f0)),
                ("micros", Value::Micros(1500)),
                ("float", Value::Float(-0.5)),
                ("yes", Value::Flag(true)),
                ("", Value::Flag(false)),
            ]
        );
        let (Value::Numbers(numbers), Value::Texts(texts)) = (read[9].1, read[10].1) else {
            panic!("{read:?}");
        };
        assert_eq!(numbers.numbers().collect::<Vec<_>>(), [0, 300, u64::MAX]);
        assert_eq!(texts.texts().collect::<Vec<_>>(), ["a", "", "c"]);
        assert_eq!(args.members().find("micros"), Some(Value::Micros(1500)));
        assert_eq!(args.members().find("absent"), None);
    }

    #[test]
    fn damaged_arguments_end() {
        let args = all();
        let bytes = args.members().bytes();
        for len in 0..bytes.len() {
            assert!(Members::of(&bytes[..len]).count() < 12);
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 0xff;
            for (_, value) in Members::of(&damaged) {
                if let Value::Numbers(list) | Value::Texts(list) = value {
                    assert!(list.numbers().count() + list.texts().count() <= 2 * bytes.len());
                }
            }
        }
    }

    #[test]
    fn digits_are_those_of_the_number() {
        for value in [0, 9, 10, 15, 16, 255, 1 << 53, u64::MAX] {
            assert_eq!(hex(value).text(), format!("{value:#x}"));
            assert_eq!(decimal(value).text(), value.to_string());
        }
    }
}
