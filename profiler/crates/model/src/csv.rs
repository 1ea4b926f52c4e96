//! Fields of comma-separated files.

use std::borrow::Cow;

/// A text as a field (RFC 4180): in quotes if it has commas, quotes or ends of lines. What a
/// spreadsheet would take for a formula has a `'` before it, which makes it text: names are
/// others' and could run programs there.
pub fn field(text: &str) -> Cow<'_, str> {
    let is_formula =
        text.starts_with(['=', '+', '-', '@', '\t', '\r']) && text.parse::<f64>().is_err();
    let guard = if is_formula { "'" } else { "" };
    match text.contains([',', '"', '\n', '\r']) {
        true => Cow::Owned(format!("\"{guard}{}\"", text.replace('"', "\"\""))),
        false if is_formula => Cow::Owned(format!("{guard}{text}")),
        false => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::field;

    #[test]
    fn quotes_only_what_needs_it() {
        assert_eq!(field("gemm kernel"), "gemm kernel");
        assert_eq!(field("gemm<1, 2>"), "\"gemm<1, 2>\"");
        assert_eq!(field("\"x\""), "\"\"\"x\"\"\"");
        assert_eq!(field("a\nb"), "\"a\nb\"");
    }

    #[test]
    fn formulas_are_text_and_numbers_are_numbers() {
        assert_eq!(field("=cmd|' /C calc'!A0"), "'=cmd|' /C calc'!A0");
        assert_eq!(field("=A(1,2)"), "\"'=A(1,2)\"");
        assert_eq!(field("@SUM"), "'@SUM");
        assert_eq!(field("-[NSView draw]"), "'-[NSView draw]");
        for number in ["-1", "+2.5", "-1e-3"] {
            assert_eq!(field(number), number);
        }
    }
}
