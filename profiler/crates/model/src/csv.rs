//! Fields of comma-separated files.

use std::borrow::Cow;

/// A text as a field (RFC 4180): in quotes if it has commas, quotes or ends of lines.
pub fn field(text: &str) -> Cow<'_, str> {
    match text.contains([',', '"', '\n', '\r']) {
        true => Cow::Owned(format!("\"{}\"", text.replace('"', "\"\""))),
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
}
