//! Names and paths of a module.

use super::limits::{MAX_NAME, MAX_TEXT};
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::sync::Arc;

/// A table of names that end with zeros. Those longer than [`MAX_NAME`] are not read
/// to their ends: a table may be one name, and be asked for it a million times.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Strings<'d> {
    pub(super) bytes: &'d [u8],
}

impl<'d> Strings<'d> {
    /// The name at an offset; empty where there is none.
    pub(super) fn get(self, offset: u32) -> &'d [u8] {
        let rest = self.bytes.get(offset as usize..).unwrap_or_default();
        let rest = rest.get(..=MAX_NAME).unwrap_or(rest);
        memchr::memchr(0, rest)
            .and_then(|end| rest.get(..end))
            .unwrap_or_default()
    }
}

/// Ends texts of a debug section that are longer than [`MAX_NAME`], for the same
/// reason.
pub(super) fn end_long_texts(bytes: &mut Cow<'_, [u8]>) {
    let mut ends = Vec::new();
    let mut length = 0;
    for (i, byte) in bytes.iter().enumerate() {
        length = if *byte == 0 { 0 } else { length + 1 };
        if length > MAX_NAME {
            ends.push(i);
            length = 0;
        }
    }
    for end in ends {
        if let Some(byte) = bytes.to_mut().get_mut(end) {
            *byte = 0;
        }
    }
}

/// A text of [`NumberedTexts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TextId(u32);

impl TextId {
    /// The empty text, which stands for "not known".
    pub(super) const NONE: Self = Self(0);
}

/// Texts by number, shared by the kernels of a module.
#[derive(Clone, Debug, Default)]
pub(super) struct NumberedTexts {
    list: Arc<[Box<str>]>,
}

impl NumberedTexts {
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

    pub(super) fn build(self) -> NumberedTexts {
        NumberedTexts {
            list: self.list.into(),
        }
    }
}
