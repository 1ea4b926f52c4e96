//! Categories of kernels by their names: what unitrace's `categorize.py` and `summary.py`
//! make of an INI file.
//!
//! A name is in the category of the rule that equals it, else of the longest rule that it
//! begins with, else of the longest that it ends with.

mod aggregate;
mod ini;
mod tree;

pub use aggregate::Aggregator;
pub use ini::IniError;
pub use tree::TreeError;

use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Category of what a device did that no rule is of, as `summary.py` calls it.
pub(crate) const DEFAULT: &str = "device";
/// The name by which rules put the whole time in a category.
pub(crate) const WALLCLOCK: &str = "Wallclock";
/// The name by which rules put the time of all devices in a category.
pub(crate) const ALL_DEVICES: &str = "L0_backend";
/// Most rules that are kept.
const MAX_RULES: usize = 1 << 18;
/// Most bytes of their texts that are kept.
const MAX_TEXT: usize = 1 << 26;

/// How a name is compared with the text of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleKind {
    /// `equals to`.
    Equals,
    /// `starts with`.
    Starts,
    /// `ends with`.
    Ends,
}

/// Rules of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RuleSet {
    by_text: FxHashMap<String, String>,
    /// Lengths of their texts, bytes.
    lengths: BTreeSet<usize>,
}

impl RuleSet {
    fn add(&mut self, text: String, category: &str) {
        self.lengths.insert(text.len());
        self.by_text.insert(text, category.to_owned());
    }

    /// The category of the longest text that `part` cuts out of a name.
    fn longest<'n>(&self, part: impl Fn(usize) -> Option<&'n str>) -> Option<&str> {
        let mut parts = self.lengths.iter().rev().filter_map(|length| part(*length));
        parts.find_map(|part| self.by_text.get(part).map(String::as_str))
    }
}

/// Rules that put names in categories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Categories {
    /// Blanks and tabs count neither in rules nor in names.
    pub ignores_blanks: bool,
    exact: RuleSet,
    prefixes: RuleSet,
    suffixes: RuleSet,
    /// Bytes of texts that were added.
    bytes: usize,
    /// Rules that were left out: empty ones, ones of trees that no name reaches, and more
    /// than can be kept.
    pub lost: u64,
}

impl Categories {
    /// Adds a rule; of two with the same text and kind the later one counts.
    pub fn add(&mut self, kind: RuleKind, text: &str, category: &str) {
        let text = self.plain(text);
        let bytes = self.bytes.saturating_add(text.len());
        if text.is_empty() || self.len() >= MAX_RULES || bytes > MAX_TEXT {
            self.lost += 1;
            return;
        }
        self.bytes = bytes;
        let rules = match kind {
            RuleKind::Equals => &mut self.exact,
            RuleKind::Starts => &mut self.prefixes,
            RuleKind::Ends => &mut self.suffixes,
        };
        rules.add(text.into_owned(), category);
    }

    /// Number of rules.
    pub fn len(&self) -> usize {
        let all = [&self.exact, &self.prefixes, &self.suffixes];
        all.iter().map(|rules| rules.by_text.len()).sum()
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The category of a name; `None`: no rule is of it. Sums leave out names of the empty
    /// category.
    pub fn of(&self, name: &str) -> Option<&str> {
        let name = &*self.plain(name);
        let exact = self.exact.by_text.get(name).map(String::as_str);
        exact
            .or_else(|| self.prefixes.longest(|length| name.get(..length)))
            .or_else(|| {
                let end = |length: usize| name.get(name.len().checked_sub(length)?..);
                self.suffixes.longest(end)
            })
    }

    /// A text as it is compared.
    fn plain<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.ignores_blanks && text.contains([' ', '\t']) {
            true => Cow::Owned(text.replace([' ', '\t'], "")),
            false => Cow::Borrowed(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_rules_come_first_then_the_longest() {
        let mut rules = Categories {
            ignores_blanks: true,
            ..Categories::default()
        };
        rules.add(RuleKind::Starts, "ge mm", "mm");
        rules.add(RuleKind::Starts, "gemm_big", "big");
        rules.add(RuleKind::Equals, "gemm_big", "one");
        rules.add(RuleKind::Ends, "::sync", "sync");
        rules.add(RuleKind::Ends, "é::sync", "wide");
        rules.add(RuleKind::Ends, "", "none");
        let of = |name: &str| rules.of(name).unwrap_or("-").to_owned();
        assert_eq!(of("gemm_big"), "one");
        assert_eq!(of("gemm_big<1>"), "big");
        assert_eq!(of("ge\tmm::sync"), "mm");
        assert_eq!(of("x::sync"), "sync");
        assert_eq!(of("xé::sync"), "wide");
        assert_eq!([of(""), of("ge"), of("::syncs")], ["-", "-", "-"]);
        assert_eq!((rules.len(), rules.lost), (5, 1));
    }
}
