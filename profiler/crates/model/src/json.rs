//! JSON text, piece by piece: always valid, whatever names hold.

use crate::visible;
use std::fmt::Write as _;

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

    /// One that has members already: with commas between them.
    pub(crate) fn of_members(members: &str) -> Self {
        Self {
            text: ["{", members].concat(),
        }
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
        // Writing to a String cannot fail.
        let _ = match value.unsigned_abs() <= MAX_EXACT {
            true => write!(out, "{value}"),
            false => write!(out, "\"{value}\""),
        };
    }

    /// A floating-point number; a text where JSON has none for it.
    pub fn float(&mut self, key: &str, value: f64) {
        let out = self.key(key);
        let _ = match value.is_finite() {
            true => write!(out, "{value}"),
            false => write!(out, "\"{value}\""),
        };
    }

    /// A time or duration in microseconds, with nanoseconds as its decimals.
    pub fn micros(&mut self, key: &str, ns: u64) {
        let _ = write!(self.key(key), "{}.{:03}", ns / 1000, ns % 1000);
    }

    /// `true` or `false`.
    pub fn flag(&mut self, key: &str, value: bool) {
        self.key(key).push_str(if value { "true" } else { "false" });
    }

    /// A value that is JSON already.
    pub fn raw(&mut self, key: &str, json: &str) {
        self.key(key).push_str(json);
    }

    /// Its members, with commas between them.
    pub fn members(mut self) -> String {
        self.text.remove(0);
        self.text
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

/// A text as JSON, cut where it is very long.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(MAX_TEXT) + 2);
    quote_cut(&mut out, text);
    out
}

/// A number as JSON, as in [`Object::number`].
pub fn number(out: &mut String, value: u64) {
    let _ = match value <= MAX_EXACT {
        true => write!(out, "{value}"),
        false => write!(out, "\"{value}\""),
    };
}

fn quote_cut(out: &mut String, text: &str) {
    if text.len() <= MAX_TEXT {
        return quote(out, text);
    }
    let end = text.floor_char_boundary(MAX_TEXT);
    quote(out, &text[..end]);
    out.pop();
    out.push_str("[..]\"");
}

/// Appends a text as a JSON string.
pub fn quote(out: &mut String, text: &str) {
    out.push('"');
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
