//! JSON text, piece by piece: always valid, whatever names hold.

use crate::timeline::{Members, Value, decimal, hex};
use crate::visible;
use std::{borrow::Cow, fmt::Write as _};

/// Largest integer that every reader holds exactly: JavaScript's numbers have 53 bits.
const MAX_EXACT: u64 = 1 << 53;

/// Longest text of a value in bytes; what goes beyond is cut and marked.
const MAX_TEXT: usize = 4096;

/// An object that is being written.
#[derive(Debug, Default)]
pub struct Object {
    text: String,
}

impl Object {
    /// An empty one.
    pub fn new() -> Self {
        Self { text: "{".into() }
    }

    /// One that has these members.
    pub fn of(members: Members<'_>) -> Self {
        let mut object = Self::new();
        members.for_each(|(key, value)| object.value(key, value));
        object
    }

    /// Writes a key; the value must follow.
    fn key(&mut self, key: &str) -> &mut String {
        if self.text.len() > 1 {
            self.text.push(',');
        }
        quote(&mut self.text, key);
        self.text.push(':');
        &mut self.text
    }

    /// A text, cut where it is very long.
    pub fn text(&mut self, key: &str, value: &str) {
        quote_cut(self.key(key), value);
    }

    /// A number; a text where readers could not hold it exactly.
    pub fn number(&mut self, key: &str, value: u64) {
        number(self.key(key), value);
    }

    /// A signed number; a text where readers could not hold it exactly.
    pub fn signed(&mut self, key: &str, value: i64) {
        let out = self.key(key);
        let is_exact = value.unsigned_abs() <= MAX_EXACT;
        if !is_exact {
            out.push('"');
        }
        if value < 0 {
            out.push('-');
        }
        out.push_str(decimal(value.unsigned_abs()).text());
        if !is_exact {
            out.push('"');
        }
    }

    /// A number in hexadecimal, as a text.
    pub fn hex(&mut self, key: &str, value: u64) {
        let out = self.key(key);
        out.push('"');
        out.push_str(hex(value).text());
        out.push('"');
    }

    /// A floating-point number; a text where JSON has none for it.
    pub fn float(&mut self, key: &str, value: f64) {
        let out = self.key(key);
        // Writing to a String cannot fail.
        let _ = match value.is_finite() {
            true => write!(out, "{value}"),
            false => write!(out, "\"{value}\""),
        };
    }

    /// A time or duration in microseconds, with nanoseconds as its decimals.
    pub fn micros(&mut self, key: &str, ns: u64) {
        let out = self.key(key);
        out.push_str(decimal(ns / 1000).text());
        out.push('.');
        // The first of four digits is not of the number.
        out.push_str(&decimal(1000 + ns % 1000).text()[1..]);
    }

    /// `true` or `false`.
    pub fn flag(&mut self, key: &str, value: bool) {
        self.key(key).push_str(if value { "true" } else { "false" });
    }

    /// A value that is JSON already.
    pub fn raw(&mut self, key: &str, json: &str) {
        self.key(key).push_str(json);
    }

    /// A value of whatever type; numbers as in [`Self::number`].
    pub fn value(&mut self, key: &str, value: Value<'_>) {
        match value {
            // Cut before, if it was long.
            Value::Text(text) => quote(self.key(key), text),
            Value::Json(json) => self.raw(key, json),
            Value::Number(value) => self.number(key, value),
            Value::Signed(value) => self.signed(key, value),
            Value::Hex(value) => self.hex(key, value),
            Value::Micros(ns) => self.micros(key, ns),
            Value::Float(value) => self.float(key, value),
            Value::Flag(value) => self.flag(key, value),
            Value::Numbers(list) => {
                let out = self.key(key);
                each(out, list.numbers(), |out, value| {
                    out.push_str(decimal(value).text());
                });
            }
            Value::Texts(list) => each(self.key(key), list.texts(), quote),
        }
    }

    /// Its members, with commas between them.
    pub fn members(&self) -> &str {
        self.text.get(1..).unwrap_or_default()
    }

    /// Makes it empty again.
    pub fn clear(&mut self) {
        self.text.truncate(1);
    }

    /// The whole object.
    pub fn end(mut self) -> String {
        self.text.push('}');
        self.text
    }
}

/// An array of values that are JSON already.
pub fn array(values: impl IntoIterator<Item = String>) -> String {
    let mut text = String::from("[");
    for value in values {
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&value);
    }
    text.push(']');
    text
}

/// Writes an array.
fn each<T>(
    out: &mut String,
    values: impl Iterator<Item = T>,
    mut write: impl FnMut(&mut String, T),
) {
    out.push('[');
    for (index, value) in values.enumerate() {
        if index > 0 {
            out.push(',');
        }
        write(out, value);
    }
    out.push(']');
}

/// A text as JSON, cut where it is very long.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(MAX_TEXT) + 2);
    quote_cut(&mut out, text);
    out
}

/// A number as JSON, as in [`Object::number`].
pub fn number(out: &mut String, value: u64) {
    let digits = decimal(value);
    if value <= MAX_EXACT {
        return out.push_str(digits.text());
    }
    out.push('"');
    out.push_str(digits.text());
    out.push('"');
}

/// Whether readers hold a number exactly; if not, it is shown as a text.
pub fn is_exact(value: u64) -> bool {
    value <= MAX_EXACT
}

/// A text, cut and marked where it is very long.
pub fn cut(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_TEXT {
        return text.into();
    }
    let end = text.floor_char_boundary(MAX_TEXT);
    [&text[..end], "[..]"].concat().into()
}

/// A text as it is shown: marks of direction by their number, for viewers obey them.
pub fn shown(text: &str) -> Cow<'_, str> {
    if text.is_ascii() || !text.contains(visible::is_direction) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match visible::is_direction(c) {
            true => visible::push(&mut out, c),
            false => out.push(c),
        }
    }
    out.into()
}

fn quote_cut(out: &mut String, text: &str) {
    quote(out, &cut(text));
}

/// Whether nothing of a text has to be escaped.
fn is_plain(text: &str) -> bool {
    let escaped = |byte: u8| !(0x20..0x7f).contains(&byte) || byte == b'"' || byte == b'\\';
    // Without an end at the first: many bytes are looked at at once.
    !text
        .bytes()
        .fold(false, |found, byte| found | escaped(byte))
}

/// Appends a text as a JSON string.
pub fn quote(out: &mut String, text: &str) {
    out.push('"');
    if is_plain(text) {
        out.push_str(text);
        return out.push('"');
    }
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            // The last two end a line in JavaScript.
            '\0'..='\x1f' | '\x7f' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            // Shown by its number: viewers obey it.
            c if visible::is_direction(c) => {
                let _ = write!(out, "\\\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_valid_json_and_reads_back() {
        let hostile = "a\"b\\c\n\0\u{1f}\u{7f}\u{2028}é🔥</script>";
        let mut object = Object::new();
        object.text(hostile, hostile);
        object.number("n", 1 << 53);
        object.number("big", u64::MAX);
        object.signed("s", -5);
        object.signed("small", i64::MIN);
        object.float("f", 0.5);
        object.float("nan", f64::NAN);
        object.float("inf", f64::NEG_INFINITY);
        object.micros("ts", 1_234_005);
        object.flag("yes", true);
        object.raw("list", &array([quoted("x"), "1".into()]));
        let text = object.end();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let expected = serde_json::json!({
            hostile: hostile, "n": 9_007_199_254_740_992_u64, "big": "18446744073709551615",
            "s": -5, "small": "-9223372036854775808", "f": 0.5, "nan": "NaN", "inf": "-inf",
            "ts": 1234.005, "yes": true, "list": ["x", 1],
        });
        assert_eq!(value, expected);
        assert!(text.contains("\"ts\":1234.005,"), "{text}");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let mut object = Object::new();
        object.text("t", &"é".repeat(4000));
        let value: serde_json::Value = serde_json::from_str(&object.end()).unwrap();
        let text = value["t"].as_str().unwrap();
        assert!(text.len() <= MAX_TEXT + 4 && text.ends_with("é[..]"));
    }
}
