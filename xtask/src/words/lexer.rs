//! A small lexer of Rust, C, JavaScript and CSS: comments, strings, words and signs.
//!
//! syn would give Rust's strings and doc comments, but neither its comments nor the other
//! languages, and it takes longer to build than all of xtask. So this one lexer serves for
//! everything: what it cannot see (types, macros that are expanded) is not needed here.

use super::text::Line;

/// What a file is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    Rust,
    C,
    JavaScript,
    Css,
}

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `// text` or `/* text */`.
    Comment,
    /// `/// text` or `/** text */`.
    Doc,
    /// `//! text` or `/*! text */`.
    InnerDoc,
    /// A string; a raw one has no escapes.
    Text { is_raw: bool },
    /// A name, a number or a lifetime.
    Word,
    /// Any other byte. Characters (`'x'`) and regular expressions are signs, too.
    Sign(u8),
}

/// A piece of source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind,
    /// Without the marks of comments and the quotes of strings.
    pub(crate) text: &'a str,
    pub(crate) line: usize,
    /// Nothing but blanks stands before it on its line.
    pub(crate) is_first: bool,
}

impl Token<'_> {
    pub(crate) fn is_sign(&self, sign: u8) -> bool {
        self.kind == Kind::Sign(sign)
    }

    pub(crate) fn is_word(&self, word: &str) -> bool {
        self.kind == Kind::Word && self.text == word
    }
}

/// All tokens of a source.
pub(crate) fn tokens(source: &str, language: Language) -> Vec<Token<'_>> {
    let mut lexer = Lexer {
        source,
        bytes: source.as_bytes(),
        at: 0,
        line: 1,
        is_first: true,
        language,
        tokens: Vec::with_capacity(source.len() / 8),
    };
    while lexer.token() {}
    lexer.tokens
}

struct Lexer<'a> {
    source: &'a str,
    bytes: &'a [u8],
    at: usize,
    line: usize,
    is_first: bool,
    language: Language,
    tokens: Vec<Token<'a>>,
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

impl Lexer<'_> {
    /// Reads a token; false at the end.
    fn token(&mut self) -> bool {
        self.blanks();
        let Some(byte) = self.peek(0) else {
            return false;
        };
        let next = self.peek(1).unwrap_or(0);
        match (byte, next) {
            (b'/', b'/') if self.language != Language::Css => self.line_comment(),
            (b'/', b'*') => self.block_comment(),
            (b'/', _) if self.is_expression() => self.until(b'/', Kind::Sign(b'/')),
            (b'"', _) => self.until(b'"', Kind::Text { is_raw: false }),
            (b'\'', _) => self.apostrophe(),
            (b'`', _) if self.language == Language::JavaScript => {
                self.until(b'`', Kind::Text { is_raw: false });
            }
            _ if is_word_byte(byte) => self.word(),
            _ => self.push(Kind::Sign(byte), self.at..self.at + 1, self.at + 1),
        }
        true
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.bytes.get(self.at + ahead).copied()
    }

    fn blanks(&mut self) {
        while let Some(byte) = self.peek(0) {
            match byte {
                b'\n' => (self.line, self.is_first) = (self.line + 1, true),
                b' ' | b'\t' | b'\r' => {}
                _ => break,
            }
            self.at += 1;
        }
    }

    /// Adds a token and goes on behind it.
    fn push(&mut self, kind: Kind, text: std::ops::Range<usize>, end: usize) {
        let end = end.min(self.bytes.len());
        let text = text.start.min(end)..text.end.min(end);
        self.tokens.push(Token {
            kind,
            text: self.source.get(text).unwrap_or_default(),
            line: self.line,
            is_first: self.is_first,
        });
        if !matches!(kind, Kind::Word | Kind::Sign(_)) {
            let passed = &self.bytes[self.at..end];
            self.line += passed.iter().filter(|byte| **byte == b'\n').count();
        }
        self.is_first = false;
        self.at = end;
    }

    fn line_comment(&mut self) {
        let rest = &self.source[self.at..];
        let end = self.at + rest.find('\n').unwrap_or(rest.len());
        let (kind, marks) = match rest.as_bytes().get(2..4).unwrap_or_default() {
            [b'/', b'/'] => (Kind::Comment, 4),
            [b'/', _] if self.language == Language::Rust => (Kind::Doc, 3),
            [b'!', _] if self.language == Language::Rust => (Kind::InnerDoc, 3),
            _ => (Kind::Comment, 2),
        };
        self.push(kind, self.at + marks..end, end);
    }

    fn block_comment(&mut self) {
        let (mut depth, mut end) = (0, self.at);
        while end < self.bytes.len() {
            match self.bytes.get(end..end + 2) {
                Some(b"/*") if depth == 0 || self.language == Language::Rust => {
                    (depth, end) = (depth + 1, end + 2);
                }
                Some(b"*/") => (depth, end) = (depth - 1, end + 2),
                _ => end += 1,
            }
            if depth == 0 {
                break;
            }
        }
        let (kind, marks) = match self.bytes.get(self.at + 2..self.at + 4) {
            Some([b'*', third]) if !b"*/".contains(third) => (Kind::Doc, 3),
            Some([b'!', _]) => (Kind::InnerDoc, 3),
            _ => (Kind::Comment, 2),
        };
        let text = self.at + marks..end.saturating_sub(2).max(self.at + marks);
        self.push(kind, text, end);
    }

    /// What ends with a sign that has no backslash before it.
    fn until(&mut self, sign: u8, kind: Kind) {
        let mut end = self.at + 1;
        let mut is_class = false;
        while let Some(byte) = self.bytes.get(end) {
            match byte {
                b'\\' => end += 1,
                b'[' if sign == b'/' => is_class = true,
                b']' => is_class = false,
                b'\n' if sign == b'/' => break,
                _ if *byte == sign && !is_class => break,
                _ => {}
            }
            end += 1;
        }
        self.push(kind, self.at + 1..end, end + 1);
    }

    /// Whether a value may follow: then a slash begins a regular expression.
    fn is_expression(&self) -> bool {
        let before = self.tokens.iter().rev();
        let is_code = |kind| !matches!(kind, Kind::Comment | Kind::Doc | Kind::InnerDoc);
        let last = before
            .filter(|token| is_code(token.kind))
            .map(|token| token.kind);
        let begins = |kind| matches!(kind, Kind::Sign(s) if b"(,=:[!&|?{};+>".contains(&s));
        self.language == Language::JavaScript && last.take(1).all(begins)
    }

    /// A character, a lifetime, or a string of JavaScript's and CSS's.
    fn apostrophe(&mut self) {
        let is_rust = self.language == Language::Rust;
        if matches!(self.language, Language::JavaScript | Language::Css) {
            return self.until(b'\'', Kind::Text { is_raw: false });
        }
        let next = self.source[self.at + 1..].chars().next();
        let width = next.map_or(0, char::len_utf8);
        let is_char = next == Some('\\') || self.peek(1 + width) == Some(b'\'');
        if is_rust && !is_char {
            let name = self.bytes[self.at + 1..].iter();
            let end = self.at + 1 + name.take_while(|byte| is_word_byte(**byte)).count();
            return self.push(Kind::Word, self.at..end, end);
        }
        self.until(b'\'', Kind::Sign(b'\''));
    }

    fn word(&mut self) {
        let mut end = self.at;
        let is_number = self.bytes[self.at].is_ascii_digit();
        while let Some(byte) = self.bytes.get(end) {
            let follows = self.bytes.get(end + 1).is_some_and(u8::is_ascii_digit);
            if !(is_word_byte(*byte) || is_number && *byte == b'.' && follows) {
                break;
            }
            end += 1;
        }
        let name = &self.source[self.at..end];
        let is_prefix = self.language == Language::Rust && end - self.at <= 2;
        if is_prefix && matches!(name, "r" | "br" | "cr") && self.raw(end) {
            return;
        }
        if is_prefix && matches!(name, "b" | "c") && self.bytes.get(end) == Some(&b'"') {
            self.at = end;
            return self.until(b'"', Kind::Text { is_raw: false });
        }
        if is_prefix && name == "b" && self.bytes.get(end) == Some(&b'\'') {
            self.at = end;
            return self.apostrophe();
        }
        self.push(Kind::Word, self.at..end, end);
    }

    /// A raw string behind its prefix; false: it is none.
    fn raw(&mut self, from: usize) -> bool {
        let marks = self.bytes[from..]
            .iter()
            .take_while(|b| **b == b'#')
            .count();
        let start = from + marks + 1;
        if self.bytes.get(start - 1) != Some(&b'"') {
            return false;
        }
        let close = format!("\"{}", "#".repeat(marks));
        let rest = &self.source[start..];
        let end = start + rest.find(&close).unwrap_or(rest.len());
        self.push(Kind::Text { is_raw: true }, start..end, end + close.len());
        true
    }
}

/// Whether a line describes a column of a report's table: `LOOK HEAD: MEANING`. LOOK is `name`,
/// `bar` or a number of decimals.
fn is_column(line: &str) -> bool {
    let look = line.split(' ').next().unwrap_or_default();
    let is_look = matches!(look, "name" | "bar") || look.parse::<u8>().is_ok();
    is_look && line.contains(": ")
}

/// The lines that a string holds. A line that an escape begins is a hard one, and so is a line that
/// describes a column.
pub(super) fn decode(token: &Token<'_>) -> Vec<Line> {
    let mut lines = vec![Line::new(token.line, String::new())];
    let mut number = token.line;
    let mut chars = token.text.chars().peekable();
    let is_raw = token.kind == Kind::Text { is_raw: true };
    while let Some(char) = chars.next() {
        let Some(line) = lines.last_mut() else { break };
        match char {
            '\n' => {
                number += 1;
                let rest: String = chars.clone().take_while(|char| *char != '\n').collect();
                lines.push(match is_column(rest.trim_start()) {
                    true => Line::hard(number, String::new()),
                    false => Line::new(number, String::new()),
                });
            }
            '\\' if !is_raw => match chars.next() {
                Some('n') => lines.push(Line::hard(number, String::new())),
                Some('\n') => {
                    let blanks = std::iter::from_fn(|| chars.next_if(|c| c.is_whitespace()));
                    let wraps = 1 + blanks.filter(|blank| *blank == '\n').count();
                    number += wraps;
                    line.wrap(number, wraps);
                }
                Some('t') => line.text.push('\t'),
                Some('u') => line.text.extend(code_point(&mut chars)),
                Some('x') => {
                    chars.nth(1);
                }
                Some('r' | '0') | None => {}
                Some(other) => line.text.push(other),
            },
            other => line.text.push(other),
        }
    }
    lines
}

/// The character of `\u{2013}` or `\u2013`.
fn code_point(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<char> {
    let is_braced = chars.next_if_eq(&'{').is_some();
    let mut value = 0;
    for _ in 0..if is_braced { 6 } else { 4 } {
        let Some(digit) = chars.peek().and_then(|char| char.to_digit(16)) else {
            break;
        };
        value = value * 16 + digit;
        chars.next();
    }
    if is_braced {
        chars.next_if_eq(&'}');
    }
    char::from_u32(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::text::WRAP;

    fn kinds(source: &str, language: Language) -> Vec<(Kind, &str)> {
        let tokens = tokens(source, language).into_iter();
        tokens.map(|token| (token.kind, token.text)).collect()
    }

    const TEXT: Kind = Kind::Text { is_raw: false };
    const RAW: Kind = Kind::Text { is_raw: true };

    #[test]
    fn strings_of_all_kinds_are_found() {
        let source = r##"f("a \" b", r"\", r#"c " d"#, b"e", br"f", r#type, b'"', '"', "g")"##;
        let found = kinds(source, Language::Rust);
        let texts = found
            .iter()
            .filter(|(kind, _)| matches!(kind, Kind::Text { .. }));
        let texts: Vec<_> = texts.copied().collect();
        assert_eq!(
            texts,
            [
                (TEXT, "a \\\" b"),
                (RAW, "\\"),
                (RAW, "c \" d"),
                (TEXT, "e"),
                (RAW, "f"),
                (TEXT, "g")
            ]
        );
        assert!(found.contains(&(Kind::Word, "type")));
    }

    #[test]
    fn lifetimes_are_no_characters() {
        let found = kinds(
            r"fn f<'a>(x: &'a str, c: char) { '\'' ; 'ü'; '\u{2}'; 'b }",
            Language::Rust,
        );
        let words = found.iter().filter(|(kind, _)| *kind == Kind::Word);
        let names: Vec<_> = words.map(|(_, text)| *text).collect();
        assert_eq!(
            names,
            ["fn", "f", "'a", "x", "'a", "str", "c", "char", "'b"]
        );
    }

    #[test]
    fn comments_may_nest_in_rust_alone() {
        let source = "/* a /* b */ c */ d";
        let comment = (Kind::Comment, " a /* b */ c ");
        assert_eq!(kinds(source, Language::Rust), [comment, (Kind::Word, "d")]);
        assert_eq!(kinds(source, Language::C)[0], (Kind::Comment, " a /* b "));
        let docs = kinds("//! in\n/// out\n//// no\n/** d */ /**/ //", Language::Rust);
        let kinds: Vec<_> = docs.iter().map(|(kind, _)| *kind).collect();
        let [plain, doc] = [Kind::Comment, Kind::Doc];
        assert_eq!(kinds, [Kind::InnerDoc, doc, plain, doc, plain, plain]);
    }

    #[test]
    fn regular_expressions_hide_quotes() {
        let found = kinds(
            "x = y.replace(/[/\"']/g, '\\$&') / 2; 'a'",
            Language::JavaScript,
        );
        let texts = found.iter().filter(|(kind, _)| *kind == TEXT);
        let texts: Vec<_> = texts.map(|(_, text)| *text).collect();
        assert_eq!(texts, ["\\$&", "a"]);
    }

    #[test]
    fn lines_are_counted_through_strings_and_comments() {
        let source = "/* a\n*/ \"b\nc\"\n  d // e\nf";
        let tokens = tokens(source, Language::Rust);
        let lines: Vec<_> = tokens
            .iter()
            .map(|token| (token.line, token.is_first))
            .collect();
        assert_eq!(
            lines,
            [(1, true), (2, false), (4, true), (4, false), (5, true)]
        );
    }

    #[test]
    fn escapes_are_decoded() {
        let source = "\"a\\tb \\u{2013} \\x1b[1m\\\n    c\\nd\ne\"";
        let lines = decode(&tokens(source, Language::Rust)[0]);
        let found: Vec<_> = lines
            .iter()
            .map(|l| (l.number, &*l.text, l.is_hard))
            .collect();
        let first = format!("a\tb \u{2013} [1m{WRAP}c");
        assert_eq!(
            found,
            [(1, &*first, false), (2, "d", true), (3, "e", false)]
        );
    }

    #[test]
    fn what_is_cut_off_does_not_panic() {
        for source in [
            "\"a", "/* a", "'", "r#\"a", "b'", "'\\", "//", "\"\\", "é'é", "/**/",
        ] {
            for language in [
                Language::Rust,
                Language::C,
                Language::JavaScript,
                Language::Css,
            ] {
                tokens(source, language)
                    .iter()
                    .for_each(|token| drop(decode(token)));
            }
        }
    }
}
