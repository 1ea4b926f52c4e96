//! Names and paths of a module, each kept once.

use super::limits::MAX_TEXT;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A text of [`Texts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TextId(u32);

impl TextId {
    /// The empty text, which stands for "not known".
    pub(super) const NONE: Self = Self(0);
}

/// Texts by number, shared by the kernels of a module.
#[derive(Clone, Debug, Default)]
pub(super) struct Texts {
    list: Arc<[Box<str>]>,
}

impl Texts {
    pub(super) fn get(&self, id: TextId) -> &str {
        self.list.get(id.0 as usize).map_or("", |text| text)
    }

    /// Bytes of heap held.
    pub(super) fn memory(&self) -> usize {
        let texts = self.list.iter().map(|t| t.len() + size_of::<Box<str>>());
        texts.sum()
    }
}

/// Collects texts.
#[derive(Debug)]
pub(super) struct TextsBuilder {
    list: Vec<Box<str>>,
    known: FxHashMap<Box<str>, TextId>,
    bytes: usize,
}

impl TextsBuilder {
    pub(super) fn new() -> Self {
        let empty: Box<str> = "".into();
        Self {
            list: vec![empty.clone()],
            known: FxHashMap::from_iter([(empty, TextId::NONE)]),
            bytes: 0,
        }
    }

    /// The number of a text; [`TextId::NONE`] for those beyond the limit.
    pub(super) fn add(&mut self, text: &str) -> TextId {
        if let Some(id) = self.known.get(text) {
            return *id;
        }
        let next = u32::try_from(self.list.len());
        let Ok(next) = next.map(TextId) else {
            return TextId::NONE;
        };
        if self.bytes + text.len() > MAX_TEXT {
            return TextId::NONE;
        }
        // What a text costs besides its bytes counts, too.
        self.bytes += text.len() + 64;
        self.list.push(text.into());
        self.known.insert(text.into(), next);
        next
    }

    pub(super) fn build(self) -> Texts {
        Texts {
            list: self.list.into(),
        }
    }
}
