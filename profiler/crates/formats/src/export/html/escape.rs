//! Text of others in a page: names in a trace are whatever its writer wanted.

use aiprof_model::visible;
use std::fmt::Write as _;

/// Most characters of a name; the rest is cut, and the cut shows.
const LENGTH: usize = 400;

/// A text as content or attribute of an element: nothing in it is markup. Characters that
/// cannot be seen, or that change the order of others, are shown by their number.
pub(super) fn text(from: &str) -> String {
    let mut out = String::with_capacity(from.len().min(LENGTH) + 8);
    for (count, c) in from.chars().enumerate() {
        if count == LENGTH {
            out.push_str(" [..]");
            break;
        }
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' | '\r' => out.push(' '),
            c if is_unseen(c) => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\u{27e8}U+{:04X}\u{27e9}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

/// A text for a member of the page's data, where scripts put it in as text.
pub(super) fn plain(from: &str) -> String {
    let mut out = String::with_capacity(from.len().min(LENGTH));
    for (count, c) in from.chars().enumerate() {
        if count == LENGTH {
            out.push_str(" [..]");
            break;
        }
        match is_unseen(c) {
            true => out.push('\u{fffd}'),
            false => out.push(c),
        }
    }
    out
}

/// JSON for a `script` element: without what could end it or start a comment in it.
pub(super) fn json(from: &str) -> String {
    let mut out = String::with_capacity(from.len() + 16);
    for c in from.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

/// Controls, marks of writing direction (Unicode 15.1, UAX 9), separators of lines and
/// characters without width.
fn is_unseen(c: char) -> bool {
    visible::is_unsafe(c)
        || matches!(c,
            '\u{ad}' | '\u{115f}' | '\u{1160}' | '\u{180e}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_shown_not_obeyed() {
        assert_eq!(
            text(r#"</script><b a="1" c='2'>&amp;"#),
            "&lt;/script&gt;&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;amp;"
        );
    }

    #[test]
    fn what_cannot_be_seen_is_shown_by_its_number() {
        let shown = text("a\u{202e}b\u{0}c\u{2029}d\u{200b}e\u{1b}f\ng");
        let want = "a\u{27e8}U+202E\u{27e9}b\u{27e8}U+0000\u{27e9}c\u{27e8}U+2029\u{27e9}d\
                    \u{27e8}U+200B\u{27e9}e\u{27e8}U+001B\u{27e9}f g";
        assert_eq!(shown, want);
        assert_eq!(plain("a\u{202e}b"), "a\u{fffd}b");
    }

    #[test]
    fn long_names_are_cut_visibly() {
        let shown = text(&"x".repeat(1_000_000));
        assert_eq!(shown.len(), LENGTH + 5);
        assert!(shown.ends_with("x [..]"));
        assert_eq!(text(&"x".repeat(LENGTH)), "x".repeat(LENGTH));
        assert_eq!(plain(&"\u{e4}".repeat(500)).chars().count(), LENGTH + 5);
    }

    #[test]
    fn data_cannot_end_their_element() {
        let name = "</script><!--\u{2028}&";
        let data = json(&serde_json::to_string(name).unwrap());
        assert!(!data.contains(['<', '>', '&', '\u{2028}']), "{data}");
        assert_eq!(serde_json::from_str::<String>(&data).unwrap(), name);
    }
}
