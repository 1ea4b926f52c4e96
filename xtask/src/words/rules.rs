//! How the rules are matched.

use super::RULES;
use super::sentence::{Word, sentences};
use super::text::{Style, Text};

/// A rule for plain English.
pub(super) struct Rule {
    pub(super) name: &'static str,
    pub(super) finds: Finds,
    /// What to write instead.
    pub(super) advice: &'static str,
}

/// What a rule finds.
pub(super) enum Finds {
    /// Each of these words.
    Words(&'static [&'static str]),
    /// A word, but not behind these.
    Unless(&'static str, &'static [&'static str]),
    /// A sentence that begins with this word.
    First(&'static str),
    /// Words one after the other.
    Phrases(&'static [&'static [&'static str]]),
    /// A sentence of more words.
    Longer(usize),
}

/// What was found in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hit {
    pub(super) line: usize,
    /// Its place in [`RULES`].
    pub(super) rule: usize,
    /// The sentence around it.
    pub(super) excerpt: String,
}

/// The least number of words of a string of a program that is prose.
const LEAST: usize = 3;
/// How much of a sentence is shown, in bytes before what was found and behind its begin.
const SHOWN: (usize, usize) = (50, 70);

/// All that the rules find in a text.
pub(super) fn hits(text: &Text, style: Style) -> Vec<Hit> {
    let sentences = sentences(&text.body, style);
    let words = sentences.iter().map(Vec::len).sum::<usize>();
    let mut found = Vec::new();
    if style == Style::Message && words < LEAST {
        return found;
    }
    for sentence in &sentences {
        for (rule, of) in RULES.iter().enumerate() {
            places(&of.finds, sentence, |at| {
                let start = sentence[at].start;
                let shown = shown(&text.body, sentence, start);
                let length = match of.finds {
                    Finds::Longer(_) => format!("{} words: ", sentence.len()),
                    _ => String::new(),
                };
                found.push(Hit {
                    line: text.line_at(start),
                    rule,
                    excerpt: length + &shown,
                });
            });
        }
    }
    found
}

/// Calls `found` with the word that each hit of a rule begins with.
fn places(finds: &Finds, sentence: &[Word<'_>], found: impl FnMut(usize)) {
    let is = |at: usize, word: &str| {
        let text = sentence.get(at).map_or("", |word| word.text);
        text.len() == word.len() && text.eq_ignore_ascii_case(word)
    };
    let any = |at: usize, words: &[&str]| words.iter().any(|word| is(at, word));
    let goes_on = |at: usize| sentence.get(at).is_some_and(|word| !word.stops);
    let phrase = |at: usize, words: &[&str]| {
        let all = words.iter().enumerate();
        let last = words.len().saturating_sub(1);
        let mut all = all.map(|(n, word)| is(at + n, word) && (n == last || goes_on(at + n)));
        all.all(|is| is)
    };
    let matches = |at: usize| match finds {
        Finds::Words(words) => any(at, words),
        Finds::Unless(word, before) => is(at, word) && !(at > 0 && any(at - 1, before)),
        Finds::First(word) => at == 0 && sentence.len() > 1 && sentence[0].text == *word,
        Finds::Phrases(phrases) => phrases.iter().any(|words| phrase(at, words)),
        Finds::Longer(most) => at == 0 && sentence.len() > *most,
    };
    (0..sentence.len())
        .filter(|at| matches(*at))
        .for_each(found);
}

/// A sentence, shortened around a place in it.
fn shown(body: &str, sentence: &[Word<'_>], at: usize) -> String {
    let [Some(begin), Some(end)] = [sentence.first(), sentence.last()] else {
        return String::new();
    };
    let bytes = body.as_bytes();
    let is = |at: usize, signs: &[u8]| bytes.get(at).is_some_and(|byte| signs.contains(byte));
    // With the marks around it.
    let (mut first, mut last) = (begin.start, end.end);
    while first > 0 && is(first - 1, b"*_([\"`<") {
        first -= 1;
    }
    while is(last, b"*_)]\"`>.!?:;,") {
        last += 1;
    }
    let mut from = at.saturating_sub(SHOWN.0).max(first);
    let mut to = (at + SHOWN.1).min(last);
    // Whole words.
    while from > first && bytes[from - 1] != b' ' {
        from -= 1;
    }
    while to < last && bytes[to] != b' ' {
        to += 1;
    }
    let cut = |is_cut: bool| if is_cut { "\u{2026}" } else { "" };
    let shown = body.get(from..to).unwrap_or_default();
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{}{shown}{}", cut(from > first), cut(to < last))
}
