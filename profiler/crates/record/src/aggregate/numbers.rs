//! Numbers for values.

use rustc_hash::FxHashMap;
use std::hash::Hash;

/// Most values of [`Numbers`] that are kept apart; all others are one.
const MAX_VALUES: usize = 1 << 17;

/// A table of unique values with dense handles.
#[derive(Debug)]
pub(super) struct Interner<T> {
    pub(super) values: Vec<T>,
    pub(super) index: FxHashMap<T, u32>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            index: FxHashMap::default(),
        }
    }
}

impl<T: Clone + Eq + Hash> Interner<T> {
    pub(super) fn intern(&mut self, value: T) -> u32 {
        if let Some(&known) = self.index.get(&value) {
            return known;
        }
        let id = self.push(value.clone());
        self.index.insert(value, id);
        id
    }

    /// Adds a value even if an equal one exists.
    pub(super) fn push(&mut self, value: T) -> u32 {
        let id = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        self.values.push(value);
        id
    }
}

/// Numbers for values, bounded: number 0 is that of all that find no room.
#[derive(Debug)]
pub(super) struct Numbers<T>(pub(super) Interner<T>);

impl<T: Clone + Eq + Hash> Numbers<T> {
    pub(super) fn new(rest: T) -> Self {
        let mut all = Interner::default();
        all.intern(rest);
        Self(all)
    }

    pub(super) fn number(&mut self, value: T) -> u32 {
        match self.0.values.len() >= MAX_VALUES {
            true => self.0.index.get(&value).copied().unwrap_or(0),
            false => self.0.intern(value),
        }
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.0.values.get(number as usize)
    }
}
