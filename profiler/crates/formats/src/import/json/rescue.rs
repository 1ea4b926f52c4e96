//! Events of damaged text: where the next one begins, and what can be mended in one.

use super::cut::value_len;
use aiprof_model::timeline::Ph;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::borrow::Cow;

/// Longest value that is mended, bytes.
const MOST_MENDED: usize = 1 << 20;

/// How many bytes may still be looked at in the search for events: a text made to be
/// searched again and again is given up.
pub(super) struct Effort(usize);

impl Effort {
    /// Enough for all damage that happens to a text of this length.
    pub(super) fn of(text: &[u8]) -> Self {
        Self(text.len().saturating_mul(32).saturating_add(1 << 16))
    }

    fn spend(&mut self, bytes: usize) {
        self.0 = self.0.saturating_sub(bytes.saturating_add(1));
    }
}

/// The first event of a text from `from` on: where it begins.
pub(super) fn next_event(text: &[u8], from: usize, effort: &mut Effort) -> Option<usize> {
    let mut at = from;
    loop {
        at += text.get(at..)?.iter().position(|byte| *byte == b'{')?;
        if event_len(text.get(at..)?, effort).is_some() {
            return Some(at);
        }
        if effort.0 == 0 {
            return None;
        }
        at += 1;
    }
}

/// The last whole event of a text: where it ends.
pub(super) fn last_event(text: &[u8], effort: &mut Effort) -> Option<usize> {
    let mut end = text.len();
    loop {
        end = text.get(..end)?.iter().rposition(|byte| *byte == b'{')?;
        if let Some(len) = event_len(text.get(end..)?, effort) {
            return Some(end + len);
        }
        if effort.0 == 0 {
            return None;
        }
    }
}

/// What makes an object an event.
#[derive(Deserialize)]
struct Probe<'a> {
    #[serde(borrow)]
    ph: Option<Cow<'a, str>>,
    ts: Option<IgnoredAny>,
}

impl Probe<'_> {
    fn is_event(&self) -> bool {
        let ph = self.ph.as_deref().and_then(Ph::of);
        ph.is_some_and(|ph| self.ts.is_some() || ph == Ph::Metadata)
    }
}

/// The length of the whole event that a text begins with, if it does.
fn event_len(text: &[u8], effort: &mut Effort) -> Option<usize> {
    let inner = text.get(1..)?.trim_ascii_start();
    effort.spend(text.len() - inner.len());
    if !inner.starts_with(b"\"") {
        return None;
    }
    let mut values = serde_json::Deserializer::from_slice(text).into_iter::<Probe<'_>>();
    match values.next()? {
        Ok(probe) => {
            effort.spend(values.byte_offset());
            probe.is_event().then(|| values.byte_offset())
        }
        Err(error) => {
            effort.spend(place_of(&error, text));
            if error.is_eof() {
                return None;
            }
            let some = text.get(..text.len().min(MOST_MENDED))?;
            let len = value_len(some);
            effort.spend(len.unwrap_or(some.len()));
            let value = String::from_utf8_lossy(some.get(..len?)?);
            let mended = with_escapes(&without_nan(&value));
            effort.spend(mended.len());
            let probe: Probe<'_> = serde_json::from_str(&mended).ok()?;
            probe.is_event().then_some(len?)
        }
    }
}

/// How many bytes were read before an error.
fn place_of(error: &serde_json::Error, text: &[u8]) -> usize {
    let lines = error.line().saturating_sub(1);
    let before = text.split_inclusive(|byte| *byte == b'\n').take(lines);
    before.map(<[u8]>::len).sum::<usize>() + error.column()
}

/// Whether the first value of a text that does not end in it is damaged; else more of the
/// text may complete it.
pub(super) fn is_damaged(text: &[u8]) -> bool {
    let skipped = |byte: &u8| byte.is_ascii_whitespace() || *byte == b',';
    let start = text.iter().position(|byte| !skipped(byte));
    let Some(value) = start.and_then(|start| text.get(start..)) else {
        return false;
    };
    let mut values = serde_json::Deserializer::from_slice(value).into_iter::<IgnoredAny>();
    !matches!(values.next(), Some(Err(error)) if error.is_eof())
}

/// How many events a text had: each has one `ph`.
pub(super) fn events_in(text: &str) -> u64 {
    let keys = text.match_indices("\"ph\"");
    let is_key = |at: usize| {
        let rest = text.get(at + 4..).unwrap_or_default();
        rest.trim_ascii_start().starts_with(':')
    };
    keys.filter(|(at, _)| is_key(*at)).count() as u64
}

/// The same text with null for NaN and infinities outside of strings: Python writes them,
/// and JSON does not have them.
pub(super) fn without_nan(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut quoted, mut escaped, mut rest) = (false, false, text);
    while let Some(c) = rest.chars().next() {
        if quoted {
            quoted = c != '"' || escaped;
            escaped = c == '\\' && !escaped;
        } else {
            let word = ["-Infinity", "Infinity", "-NaN", "NaN", "nan"];
            if let Some(word) = word.iter().find(|word| rest.starts_with(**word)) {
                out.push_str("null");
                rest = rest.get(word.len()..).unwrap_or_default();
                continue;
            }
            quoted = c == '"';
        }
        out.push(c);
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
    }
    out
}

/// The same text with escapes that JSON has in its strings. A backslash that begins none
/// stands for itself (names of files on Windows), as control characters do. Half a
/// surrogate pair is no character.
pub(super) fn with_escapes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut quoted, mut rest) = (false, text);
    while let Some(c) = rest.chars().next() {
        let mut len = c.len_utf8();
        match c {
            '"' => {
                quoted = !quoted;
                out.push(c);
            }
            '\\' if quoted => {
                let (taken, mended) = escape(rest);
                out.push_str(&mended);
                len = taken;
            }
            c if quoted && c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
        rest = rest.get(len..).unwrap_or_default();
    }
    out
}

/// The length of the escape that a text begins with, and what JSON has for it.
fn escape(text: &str) -> (usize, Cow<'_, str>) {
    let whole = |len: usize| (len, Cow::Borrowed(text.get(..len).unwrap_or_default()));
    match text.as_bytes().get(1) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => whole(2),
        Some(b'u') => match unit(text) {
            None => (1, Cow::Borrowed("\\\\")),
            Some(0xd800..=0xdbff) => match text.get(6..).and_then(unit) {
                Some(0xdc00..=0xdfff) => whole(12),
                _ => (6, Cow::Borrowed("\\ufffd")),
            },
            Some(0xdc00..=0xdfff) => (6, Cow::Borrowed("\\ufffd")),
            Some(_) => whole(6),
        },
        _ => (1, Cow::Borrowed("\\\\")),
    }
}

/// The number of `\uXXXX` at the begin of a text.
fn unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex
        .then(|| u16::from_str_radix(digits, 16).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_become_those_of_json() {
        for (text, mended) in [
            (r#"{"a":"C:\dir\x.py"}"#, r#"{"a":"C:\\dir\\x.py"}"#),
            (r#"{"a":"\n\"\\ \u00e9"}"#, r#"{"a":"\n\"\\ \u00e9"}"#),
            (
                r#"{"a":"\u12 \ud800 \udc00x"}"#,
                r#"{"a":"\\u12 \ufffd \ufffdx"}"#,
            ),
            (r#"{"a":"\ud83d\ude00"}"#, r#"{"a":"\ud83d\ude00"}"#),
            (
                "{\"a\":\"x\ny\u{1}\",\n\"b\":1}",
                "{\"a\":\"x\\u000ay\\u0001\",\n\"b\":1}",
            ),
        ] {
            assert_eq!(with_escapes(text), mended);
            assert!(
                serde_json::from_str::<serde_json::Value>(mended).is_ok(),
                "{mended}"
            );
        }
    }

    #[test]
    fn events_are_found_in_any_column() {
        let event = r#"{"ph":"X","name":"a","ts":1,"args":{"ph":1}}"#;
        let name = r#"{"name":"process_name","ph":"M","args":{"name":"p"}}"#;
        let escaped = r#"{"ph":"i","name":"C:\d","ts":1,"x":NaN}"#;
        let find = |text: &str| next_event(text.as_bytes(), 0, &mut Effort::of(text.as_bytes()));
        for one in [event, name, escaped] {
            for before in [
                "",
                "x",
                "{\"args\":{\"a\":1}} ",
                "\"}, {\"q\": ",
                "[[{\"ph\":\"X\"}",
            ] {
                let text = format!("{before}{one},");
                assert_eq!(find(&text), Some(before.len()), "{text}");
                let text = text.as_bytes();
                let end = before.len() + one.len();
                assert_eq!(last_event(text, &mut Effort::of(text)), Some(end));
            }
        }
        for none in [
            "",
            "{}",
            "{\"name\":\"p\",\"ts\":1}",
            "{\"ph\":\"X\",\"ts\":1",
        ] {
            assert_eq!(find(none), None, "{none}");
        }
        let text = r#"{"ph":"X","ts":1},{"name":"ph","ph" : "M"},{"a":"\"ph\""}"#;
        assert_eq!(events_in(text), 2);
    }

    #[test]
    fn what_is_cut_off_is_not_damaged() {
        for (text, damaged) in [
            (r#", {"ph":"X","name":"a"#, false),
            (r#"{"ph":"X","args":{"#, false),
            ("  ", false),
            (r#"{"ph":"X"name":"a"#, true),
            (r#"{"ph":"X",{"ph":"#, true),
        ] {
            assert_eq!(is_damaged(text.as_bytes()), damaged, "{text}");
        }
    }

    #[test]
    fn a_text_made_to_be_searched_long_is_given_up() {
        // Each bracket begins an object that goes on to the end.
        let text = r#"{":":"{":":","#.repeat(200_000);
        let begun = std::time::Instant::now();
        let _ = next_event(text.as_bytes(), 0, &mut Effort::of(text.as_bytes()));
        let _ = last_event(text.as_bytes(), &mut Effort::of(text.as_bytes()));
        assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    }
}
