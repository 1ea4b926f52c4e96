//! The sentences of a text, and their words.
//!
//! What is no prose is masked first, byte for byte: places in the text stay the same. Code and
//! quotations become one word each, marks of Markdown and HTML become nothing.

use super::text::Style;

/// Part of a word that is no prose: code, a quotation, a placeholder, an address.
const OPAQUE: u8 = 1;
/// Nothing: marks, tags, targets of links.
const NOTHING: u8 = 2;
/// The end of a text within a text: a cell, a paragraph of HTML.
const BREAK: u8 = 3;
/// The end of a quotation that ends a sentence of its own.
const QUOTED_END: u8 = 4;

/// Shortened words whose dot ends no sentence.
const ABBREVIATIONS: [&str; 7] = ["e.g", "i.e", "vs", "cf", "approx", "incl", "resp"];
/// HTML that ends a text.
const BLOCKS: [&str; 24] = [
    "p", "li", "ul", "ol", "td", "th", "tr", "table", "h1", "h2", "h3", "h4", "div", "br",
    "footer", "header", "title", "section", "caption", "summary", "details", "option", "label",
    "button",
];
/// HTML within a text.
const INLINE: [&str; 12] = [
    "a", "b", "i", "em", "strong", "code", "span", "sub", "sup", "kbd", "text", "small",
];

/// A word and where it stands in its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word<'a> {
    /// Without punctuation around it and without `'s`; empty for what is no prose.
    pub(super) text: &'a str,
    pub(super) start: usize,
    pub(super) end: usize,
    /// Punctuation follows.
    pub(super) stops: bool,
}

/// A sentence.
pub(super) type Sentence<'a> = Vec<Word<'a>>;

/// The sentences of a text.
pub(super) fn sentences(body: &str, style: Style) -> Vec<Sentence<'_>> {
    let masked = Mask::of(body, style);
    let chunks = chunks(&masked);
    let mut found = Vec::new();
    let mut open = Vec::new();
    for (at, chunk) in chunks.iter().enumerate() {
        let word = word(body, &masked, chunk);
        open.extend(word);
        let next = chunks.get(at + 1);
        if next.is_none_or(|next| is_end(&masked, chunk, next)) {
            found.push(std::mem::take(&mut open));
        }
    }
    found.push(open);
    found.retain(|sentence| !sentence.is_empty());
    found
}

type Range = std::ops::Range<usize>;

/// What stands between blanks.
fn chunks(masked: &[u8]) -> Vec<Range> {
    let mut found = Vec::with_capacity(masked.len() / 5);
    let mut start = None;
    for (at, byte) in masked.iter().enumerate() {
        match (*byte, start) {
            (b' ' | b'\t' | b'\n' | BREAK, Some(from)) => {
                found.push(from..at);
                start = None;
            }
            (b' ' | b'\t' | b'\n' | BREAK, None) => {}
            (_, None) => start = Some(at),
            _ => {}
        }
    }
    found.extend(start.map(|from| from..masked.len()));
    found
}

fn is_core(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == OPAQUE || byte >= 0x80
}

/// The word of a chunk, if it has one.
fn word<'a>(body: &'a str, masked: &[u8], chunk: &Range) -> Option<Word<'a>> {
    let bytes = &masked[chunk.clone()];
    let from = bytes.iter().position(|byte| is_core(*byte))?;
    let to = bytes.iter().rposition(|byte| is_core(*byte))? + 1;
    let (start, end) = (chunk.start + from, chunk.start + to);
    let text = body.get(start..end).unwrap_or_default();
    let marks = &bytes[..from];
    let is_prose =
        !marks.iter().any(|mark| b"-$@%#=\\/.".contains(mark)) && is_plain(&bytes[from..to]);
    let text = text.strip_suffix("'s").unwrap_or(text);
    Some(Word {
        text: if is_prose { text } else { "" },
        start,
        end,
        stops: bytes[to..].iter().any(|byte| *byte != NOTHING),
    })
}

/// Whether a word is prose: letters, with hyphens and apostrophes, not all of them capitals.
fn is_plain(core: &[u8]) -> bool {
    let is_letter =
        |byte: &u8| byte.is_ascii_alphabetic() || b"-'\x02".contains(byte) || *byte >= 0x80;
    core.iter().all(is_letter)
        && (core.len() == 1 || core.iter().any(|b| b.is_ascii_lowercase() || *b >= 0x80))
}

/// Whether a sentence ends behind a chunk.
fn is_end(masked: &[u8], chunk: &Range, next: &Range) -> bool {
    if masked[chunk.end..next.start].contains(&BREAK) {
        return true;
    }
    let bytes = &masked[chunk.clone()];
    let tail = bytes
        .iter()
        .rposition(|byte| is_core(*byte))
        .map_or(0, |at| at + 1);
    let (core, tail) = bytes.split_at(tail);
    let capital = masked[next.clone()]
        .iter()
        .find(|byte| byte.is_ascii_alphanumeric() || **byte == OPAQUE);
    let capital = capital.is_some_and(u8::is_ascii_uppercase);
    if tail.contains(&QUOTED_END)
        || tail.windows(2).any(|pair| pair == b"..")
        || core.eq_ignore_ascii_case(b"etc")
    {
        return capital && !tail.is_empty();
    }
    let core = core.iter().filter(|byte| !b"(\x02".contains(byte)).copied();
    let core = String::from_utf8_lossy(&core.collect::<Vec<_>>()).to_ascii_lowercase();
    let is_short = ABBREVIATIONS.contains(&core.as_str()) && tail.starts_with(b".");
    !is_short && tail.iter().any(|byte| b".!?".contains(byte))
}

/// A text whose parts that are no prose are overwritten.
struct Mask<'a> {
    body: &'a str,
    bytes: Vec<u8>,
    style: Style,
}

impl<'a> Mask<'a> {
    fn of(body: &'a str, style: Style) -> Vec<u8> {
        let bytes = body.as_bytes().to_vec();
        let mut mask = Self { body, bytes, style };
        let mut at = 0;
        while at < mask.bytes.len() {
            at = mask.step(at).max(at + 1);
        }
        mask.bytes
    }

    /// Masks what begins at a byte; gives where to go on.
    fn step(&mut self, at: usize) -> usize {
        let source = self.body.as_bytes();
        match source[at] {
            b'`' => self.code(at),
            b'"' => self.quotation(at, 1, "\""),
            0xe2 => self.beyond_ascii(at),
            b'<' => self.tag(at),
            b'[' | b'*' | b'\\' => self.fill(at..at + 1, NOTHING),
            b']' => self.link(at),
            b'_' => self.underscore(at),
            b'h' if self.body[at..].starts_with("http") => self.address(at),
            b'{' | b'}' if self.style == Style::Message => self.placeholder(at),
            b'\t' if self.style == Style::Message => self.fill(at..at + 1, BREAK),
            _ => at + 1,
        }
    }

    fn fill(&mut self, range: Range, with: u8) -> usize {
        let end = range.end.min(self.bytes.len());
        if let Some(bytes) = self.bytes.get_mut(range.start..end) {
            bytes.fill(with);
        }
        end
    }

    /// Where a text stands behind a place.
    fn find(&self, from: usize, what: &str) -> Option<usize> {
        self.body.get(from..)?.find(what).map(|at| from + at)
    }

    fn code(&mut self, at: usize) -> usize {
        let rest = &self.body[at..];
        let ticks = &rest[..rest.len() - rest.trim_start_matches('`').len()];
        match self.find(at + ticks.len(), ticks) {
            Some(end) => self.fill(at..end + ticks.len(), OPAQUE),
            None => self.fill(at..at + ticks.len(), NOTHING),
        }
    }

    /// A quotation, if it begins here and ends in this text.
    fn quotation(&mut self, at: usize, width: usize, close: &str) -> usize {
        let before = self.bytes.get(at.wrapping_sub(1)).copied();
        let begins = before.is_none_or(|byte| b" ([{=/,:-\t\x01\x02\x03".contains(&byte));
        let end = self
            .find(at + width, close)
            .filter(|end| begins && *end > at + width);
        let Some(end) = end else {
            return self.fill(at..at + width, NOTHING);
        };
        let is_sentence = b".!?".contains(&self.body.as_bytes()[end - 1]);
        self.fill(at..end, OPAQUE);
        let with = if is_sentence { QUOTED_END } else { NOTHING };
        self.fill(end..end + close.len(), with)
    }

    /// Dashes stand between words, quotation marks around quotations.
    fn beyond_ascii(&mut self, at: usize) -> usize {
        match self.body[at..].chars().next() {
            Some('\u{201c}') => self.quotation(at, 3, "\u{201d}"),
            Some('\u{2013}' | '\u{2014}') => self.fill(at..at + 3, b' '),
            Some('\u{2026}') => self.fill(at..at + 3, b'.'),
            Some('\u{2019}') => at + 3,
            Some(sign) if !sign.is_alphanumeric() => self.fill(at..at + 3, NOTHING),
            _ => at + 3,
        }
    }

    /// A tag of HTML; another word in such brackets stands for something.
    fn tag(&mut self, at: usize) -> usize {
        let rest = &self.body[at + 1..];
        let name = rest.trim_start_matches(['/', '!']);
        let name = name
            .split(|c: char| !c.is_ascii_alphanumeric())
            .next()
            .unwrap_or_default();
        let Some(end) = self.find(at, ">").filter(|_| !name.is_empty()) else {
            return at + 1;
        };
        let is_known = |names: &[&str]| names.contains(&name);
        let is_tag = rest[..end - at - 1].contains('=') && !rest.starts_with("http");
        let with = match () {
            () if is_known(&BLOCKS) => BREAK,
            () if is_known(&INLINE) || is_tag => NOTHING,
            () if rest[..end - at - 1].contains(' ') => return at + 1,
            () => OPAQUE,
        };
        self.fill(at..end + 1, with)
    }

    /// The end of a link's text, with its target behind.
    fn link(&mut self, at: usize) -> usize {
        let close = match self.body.as_bytes().get(at + 1) {
            Some(b'(') => ")",
            Some(b'[') => "]",
            _ => return self.fill(at..at + 1, NOTHING),
        };
        let end = self.find(at + 2, close).unwrap_or(at);
        self.fill(at..end + 1, NOTHING)
    }

    /// A mark of emphasis; within a word it belongs to that.
    fn underscore(&mut self, at: usize) -> usize {
        let is_word = |at: usize| {
            self.bytes
                .get(at)
                .is_some_and(|b| is_core(*b) || *b == b'_')
        };
        match is_word(at + 1) && (at > 0 && is_word(at - 1)) {
            true => at + 1,
            false => self.fill(at..at + 1, NOTHING),
        }
    }

    fn address(&mut self, at: usize) -> usize {
        let rest = &self.body[at..];
        if !rest.starts_with("http://") && !rest.starts_with("https://") {
            return at + 1;
        }
        let ends = |c: char| c.is_whitespace() || ")>\"]`".contains(c);
        let address = &rest[..rest.find(ends).unwrap_or(rest.len())];
        let address = address.trim_end_matches(['.', ',', ';', ':', '!', '?']);
        self.fill(at..at + address.len(), OPAQUE)
    }

    /// `{}` of Rust, `${}` of JavaScript, `{{ }}` of templates. Two brackets are one in Rust.
    fn placeholder(&mut self, at: usize) -> usize {
        let rest = &self.body[at..];
        if rest.starts_with("{{ ") || rest.starts_with("{{-") {
            let end = self.find(at, "}}").unwrap_or(at);
            return self.fill(at..end + 2, OPAQUE);
        }
        if rest.starts_with("{{") || rest.starts_with('}') {
            let width = if rest.starts_with("}}") {
                2
            } else {
                rest.find(|c| c != '{').unwrap_or(1)
            };
            return self.fill(at..at + width.min(2), NOTHING);
        }
        let end = closing(rest).unwrap_or(0);
        let from = at - usize::from(self.body[..at].ends_with('$'));
        self.fill(from..at + end + 1, OPAQUE)
    }
}

/// Where the bracket is closed that a text begins with.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sentences with a blank between words, `_` for what is no prose.
    fn plain(body: &str, style: Style) -> Vec<String> {
        let shown = |word: &Word<'_>| if word.text.is_empty() { "_" } else { word.text }.to_owned();
        let sentences = sentences(body, style).into_iter();
        sentences
            .map(|words| words.iter().map(shown).collect::<Vec<_>>().join(" "))
            .collect()
    }

    fn markdown(body: &str) -> Vec<String> {
        plain(body, Style::Markdown)
    }

    #[test]
    fn sentences_end_at_dots_that_end_sentences() {
        assert_eq!(
            markdown("One. Two! three? (Four.) End"),
            ["One", "Two", "three", "Four", "End"]
        );
        assert_eq!(
            markdown("By 0.1 percent, e.g. this, i.e. That vs. these etc. and more... it goes on."),
            ["By _ percent _ this _ That vs these etc and more it goes on"]
        );
        assert_eq!(
            markdown("A, B etc. Next it is... More"),
            ["A B etc", "Next it is", "More"]
        );
        assert_eq!(markdown("Version 0.1. `a` then."), ["Version _", "_ then"]);
        assert_eq!(markdown("ends **here.** Then"), ["ends here", "Then"]);
    }

    #[test]
    fn what_is_no_prose_is_one_word() {
        assert_eq!(
            markdown("See `a b` and ``c ` d``, \"so it is\", “or so”, https://x.y/z?a=b. Go"),
            ["See _ and _ _ _ _", "Go"]
        );
        assert_eq!(
            markdown("It prints \"It is said.\" in red"),
            ["It prints _ in red"]
        );
        assert_eq!(
            markdown("It prints \"It is said.\" Then"),
            ["It prints _", "Then"]
        );
        assert_eq!(
            markdown("tell_of x::tell --tell TELL a/tell <TELL>"),
            ["_ _ _ _ _ _"]
        );
        assert_eq!(
            markdown("an open \"quote and `tick"),
            ["an open quote and tick"]
        );
    }

    #[test]
    fn markup_is_nothing() {
        assert_eq!(
            markdown("<a id=\"x\"></a>**Of one** [link text](a.md#said) _so_ [x][y] [`z`]"),
            ["Of one link text so x _"]
        );
        assert_eq!(
            plain("<p class=\"a b\">One<td>two</p>", Style::Message),
            ["One", "two"]
        );
        assert_eq!(markdown("a < b and c > d \u{2014} e"), ["a b and c d e"]);
    }

    #[test]
    fn placeholders_are_one_word_each() {
        let message = |body| plain(body, Style::Message);
        assert_eq!(
            message("{} of {name:?}: {{x}} at {a}.{b}"),
            ["_ of _ x at _"]
        );
        assert_eq!(
            message("${a.map((x) => { return x; })} in ${b} frames"),
            ["_ in _ frames"]
        );
        assert_eq!(message("on {{ $labels.instance }} does"), ["on _ does"]);
        assert_eq!(message("a\tb"), ["a", "b"]);
    }

    #[test]
    fn words_know_where_they_stand() {
        let body = "**Of** `x`, said";
        let found = sentences(body, Style::Markdown);
        let places: Vec<_> = found[0]
            .iter()
            .map(|word| (word.start, word.end, word.stops))
            .collect();
        assert_eq!(places, [(2, 4, false), (7, 10, true), (12, 16, false)]);
    }

    #[test]
    fn nothing_panics() {
        for body in [
            "<", "[a](", "]", "{", "{{ a", "}", "“", "…", "\"", "``", "_", "é_é", "http", "<é",
            "${", "*…*", "][",
        ] {
            for style in [Style::Markdown, Style::Message] {
                let twice = format!("{body}{body}");
                assert!(sentences(body, style).len() + sentences(&twice, style).len() < 5);
            }
        }
    }
}
