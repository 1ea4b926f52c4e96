//! Shows foreign texts on a screen. Names of files, processes and functions are whatever
//! somebody chose. None of them may move the cursor, change colours, or change the order of
//! other characters.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a character changes the direction of those around it (Unicode 15.1,
/// UAX 9).
pub(crate) fn is_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether a character would break a line, a terminal or an XML document, or hide the
/// content of a text.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || is_direction(c)
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{fffe}' | '\u{ffff}')
}

/// A message as it may be shown: what is unsafe is shown by its number, `\x1b` or
/// `\u{202e}`. Ends of lines and tabs stay.
pub fn message(text: &str) -> Cow<'_, str> {
    let is_hidden = |c: char| is_unsafe(c) && c != '\n' && c != '\t';
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_hidden(c) {
            true => push_number(&mut out, c),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// A name in one line: marks of direction are shown by their number, what else is
/// unsafe becomes a space.
pub fn one_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        push(&mut out, c);
    }
    out
}

/// Appends a character of a name as [`one_line`] shows it.
pub fn push(out: &mut String, c: char) {
    match c {
        c if is_direction(c) => push_number(out, c),
        c if is_unsafe(c) => out.push(' '),
        c => out.push(c),
    }
}

/// A JSON text without unsafe characters: they stand in strings only, where their
/// escapes mean the same.
pub fn json(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            // White space between values.
            '\n' | '\t' | '\r' => out.push(c),
            // All of them are in the plane that one escape reaches. Writing to a
            // string cannot fail.
            c if is_unsafe(c) => drop(write!(out, "\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Appends a character's number: `\x1b`, `\u{202e}`.
fn push_number(out: &mut String, c: char) {
    // Writing to a string cannot fail.
    let _ = match u32::from(c) {
        number @ ..0x100 => write!(out, "\\x{number:02x}"),
        number => write!(out, "\\u{{{number:x}}}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a terminal or a reader could be fooled with.
    const HOSTILE: &str = "a\x1b[2Jb\u{9b}c\u{202e}d\u{2066}e\u{61c}f\rg\u{8}";

    #[test]
    fn messages_show_what_is_unsafe() {
        assert_eq!(
            message(HOSTILE),
            r"a\x1b[2Jb\x9bc\u{202e}d\u{2066}e\u{61c}f\x0dg\x08"
        );
        let plain = "error: x\n\tдва 二 🔥 e\u{301}";
        assert!(matches!(message(plain), Cow::Borrowed(text) if text == plain));
    }

    #[test]
    fn names_stay_in_their_line() {
        assert_eq!(one_line("a\nb\u{202e}c\x1b"), r"a b\u{202e}c ");
    }

    #[test]
    fn json_means_the_same() {
        let value = serde_json::Value::from(HOSTILE);
        let text = json(&value.to_string()).into_owned();
        assert!(!text.contains(is_unsafe));
        let again: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(again, value);
    }
}
