//! Texts that occur often, each kept once.

use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// A text of [`Names`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sym(u32);

impl Sym {
    /// The empty text: nothing was given.
    pub const EMPTY: Self = Self(0);

    /// Its place in [`Names`]: 0 is the empty text, the others in the order they came.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The text at a place in [`Names`].
    pub fn at(index: u32) -> Self {
        Self(index)
    }

    /// Whether it is the empty text.
    pub fn is_empty(self) -> bool {
        self == Self::EMPTY
    }
}

/// Every text once. Its hash is seeded at random, so that no file can make it slow.
#[derive(Debug, Default)]
pub struct Names {
    text: String,
    /// Where each text ends; the empty one, which is the first, is not in it.
    ends: Vec<usize>,
    table: HashTable<Sym>,
    hasher: DefaultHashBuilder,
}

impl Names {
    /// The text's only copy.
    pub fn intern(&mut self, text: &str) -> Sym {
        if text.is_empty() {
            return Sym::EMPTY;
        }
        let Self {
            text: all,
            ends,
            table,
            hasher,
        } = self;
        let hash = hasher.hash_one(text);
        if let Some(known) = table.find(hash, |sym| get(all, ends, *sym) == text) {
            return *known;
        }
        let Ok(index) = u32::try_from(ends.len() + 1) else {
            // Over four milliard texts do not fit in memory either.
            return Sym::EMPTY;
        };
        all.push_str(text);
        ends.push(all.len());
        let new = Sym(index);
        table.insert_unique(hash, new, |sym| hasher.hash_one(get(all, ends, *sym)));
        new
    }

    /// The text, if it is known.
    pub fn find(&self, text: &str) -> Option<Sym> {
        if text.is_empty() {
            return Some(Sym::EMPTY);
        }
        let hash = self.hasher.hash_one(text);
        self.table.find(hash, |sym| self.get(*sym) == text).copied()
    }

    /// The text itself.
    pub fn get(&self, sym: Sym) -> &str {
        get(&self.text, &self.ends, sym)
    }

    /// How many there are, the empty one among them.
    pub fn len(&self) -> usize {
        self.ends.len() + 1
    }

    /// Whether there is none but the empty one.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// All of them, the empty one first.
    pub fn iter(&self) -> impl Iterator<Item = (Sym, &str)> {
        (0..self.len()).map(|index| {
            let sym = Sym(index as u32);
            (sym, self.get(sym))
        })
    }
}

fn get<'a>(text: &'a str, ends: &[usize], sym: Sym) -> &'a str {
    let index = sym.index();
    let end = |index: usize| match index {
        0 => Some(0),
        index => ends.get(index - 1).copied(),
    };
    let range = index.checked_sub(1).and_then(end).zip(end(index));
    range
        .and_then(|(from, to)| text.get(from..to))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_kept_once_and_read_back() {
        let mut names = Names::default();
        let texts: Vec<String> = (0..5000).map(|i| format!("kernel_{}é", i % 2500)).collect();
        let syms: Vec<Sym> = texts.iter().map(|text| names.intern(text)).collect();
        assert_eq!(names.len(), 2501);
        for (text, sym) in texts.iter().zip(&syms) {
            assert_eq!(names.get(*sym), text);
            assert_eq!(names.find(text), Some(*sym));
        }
        assert_eq!(names.intern(""), Sym::EMPTY);
        assert_eq!(names.get(Sym::EMPTY), "");
        assert_eq!(names.find("absent"), None);
        assert_eq!(names.iter().count(), 2501);
    }
}
