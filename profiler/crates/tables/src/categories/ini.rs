//! INI files of categories:
//!
//! ```ini
//! [allreduce.small if starts with]
//! sycl_allreducer_small
//! [sync if ends with]
//! ::barrier
//! ```
//!
//! As `categorize.py` reads them, by Python's `configparser`. A line is a name. What is behind the
//! first point of a category does not count. A verb that is neither `ends with` nor `equals to` is
//! `starts with`. What stands below `[DEFAULT]` is in all sections. `#` begins a line of comment;
//! `\#` a name that begins with `#`, which `categorize.py` cannot have.

use super::{Categories, RuleKind};
use rustc_hash::FxHashMap;

/// What stands in the middle of names that `configparser` cuts in two.
const ASSIGN: &str = ":=";
/// The section whose names are in all others.
const SHARED: &str = "DEFAULT";
/// Longest name in messages, characters.
const SHOWN: usize = 80;

/// Why an INI file gives no categories.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum IniError {
    /// A name is not in a section.
    #[error(
        "line {line}: `{name}` comes before the first section, such as [matmul if starts with]"
    )]
    NoSection {
        /// Its line, from 1.
        line: usize,
        /// The name.
        name: String,
    },
}

impl Categories {
    /// Reads an INI file. `ignores_blanks`: blanks and tabs do not count in names.
    ///
    /// # Errors
    /// A name is below no section.
    pub fn of_ini(text: &str, ignores_blanks: bool) -> Result<Self, IniError> {
        let mut rules = Self {
            ignores_blanks,
            ..Self::default()
        };
        let mut sections: Vec<IniSection> = Vec::new();
        let mut known: FxHashMap<&str, usize> = FxHashMap::default();
        let mut at = None;
        for (line, text) in (1..).zip(text.trim_start_matches('\u{feff}').lines()) {
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            if let Some(head) = head(text) {
                at = Some(*known.entry(head).or_insert_with(|| {
                    sections.push(IniSection::of(head));
                    sections.len() - 1
                }));
                continue;
            }
            let name = name(text);
            let Some(section) = at.and_then(|at| sections.get_mut(at)) else {
                let name = name.chars().take(SHOWN).collect();
                return Err(IniError::NoSection { line, name });
            };
            section.names.push(name);
        }
        let is_shared = |section: &IniSection<'_>| section.head == SHARED;
        let (shared, own): (Vec<_>, Vec<_>) = sections.into_iter().partition(is_shared);
        let shared = shared.into_iter().flat_map(|section| section.names);
        let shared: Vec<String> = shared.collect();
        for section in &own {
            for name in section.names.iter().chain(&shared) {
                rules.add(section.kind, name, section.category);
            }
        }
        Ok(rules)
    }
}

/// What stands below a head.
struct IniSection<'t> {
    head: &'t str,
    category: &'t str,
    kind: RuleKind,
    names: Vec<String>,
}

impl<'t> IniSection<'t> {
    fn of(head: &'t str) -> Self {
        let (category, verb) = head.split_once(" if ").unwrap_or((head, ""));
        let category = category.trim();
        let category = category.split_once('.').map_or(category, |(main, _)| main);
        let kind = match &*verb.replace([' ', '\t'], "") {
            "endswith" => RuleKind::Ends,
            "equalsto" => RuleKind::Equals,
            _ => RuleKind::Starts,
        };
        Self {
            head,
            category,
            kind,
            names: Vec::new(),
        }
    }
}

/// What stands in the brackets of a section's head.
fn head(line: &str) -> Option<&str> {
    let rest = line.strip_prefix('[')?;
    let end = rest.rfind(']').filter(|end| *end > 0)?;
    rest.get(..end)
}

/// The name on a line. Blanks around the first `:=` do not count.
fn name(line: &str) -> String {
    let line = match line.strip_prefix('\\') {
        Some(rest) if rest.starts_with('#') => rest,
        _ => line,
    };
    match line.split_once(ASSIGN) {
        Some((left, right)) => format!("{}{ASSIGN}{}", left.trim_end(), right.trim_start()),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_names_below_their_sections() {
        let text = "[mm.small if starts with]\n  gemm <1\n# no\n\\#4\n\n[sync if ends with]\nb := c\n\
                    [odd]\nconv\n[DEFAULT]\nevery\n[mm.small if starts with]\nagain\n[x if equals \
                    to]\n[a]b]\none\n";
        let rules = Categories::of_ini(text, false).unwrap();
        let of = |name: &str| rules.of(name).unwrap_or("-").to_owned();
        assert_eq!(of("gemm <1>"), "mm");
        assert_eq!(of("gemm<1>"), "-");
        assert_eq!(of("#4"), "mm");
        assert_eq!(of("a b:=c"), "sync");
        assert_eq!(of("conv2d"), "odd");
        assert_eq!(of("again"), "mm");
        assert_eq!(of("one"), "a]b");
        assert_eq!(of("every"), "x");
        assert_eq!(of("every_"), "a]b");
        assert_eq!(of("no"), "-");
    }

    #[test]
    fn names_need_a_section() {
        let error = Categories::of_ini("# so\n\ngemm\n", true).unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 3: `gemm` comes before the first section, such as [matmul if starts with]"
        );
    }
}
