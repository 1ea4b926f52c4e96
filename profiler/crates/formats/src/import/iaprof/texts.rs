//! The texts of iaprof's strings, each kept once.

use std::collections::HashMap;
use std::rc::Rc;

/// A text; equal ones are equal whatever ids the file gave them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TextId(usize);

/// What stands for the text of an id that the file does not have.
const MISSING: &str = "[text missing]";

/// Texts by the file's ids, which may be given anew.
pub(super) struct Texts {
    ids: HashMap<u64, TextId>,
    index: HashMap<Rc<str>, TextId>,
    texts: Vec<Rc<str>>,
}

impl Texts {
    pub(super) fn new() -> Self {
        let mut new = Self {
            ids: HashMap::new(),
            index: HashMap::new(),
            texts: Vec::new(),
        };
        new.intern("");
        new.intern(MISSING);
        new
    }

    fn intern(&mut self, text: &str) -> TextId {
        if let Some(known) = self.index.get(text) {
            return *known;
        }
        let id = TextId(self.texts.len());
        let text: Rc<str> = text.into();
        self.texts.push(text.clone());
        self.index.insert(text, id);
        id
    }

    /// Gives an id its text.
    pub(super) fn set(&mut self, id: u64, text: &str) {
        let text = self.intern(text);
        self.ids.insert(id, text);
    }

    /// The text of an id: of 0 the empty one.
    pub(super) fn id(&self, id: u64) -> TextId {
        match id {
            0 => TextId(0),
            id => self.ids.get(&id).copied().unwrap_or(TextId(1)),
        }
    }

    /// A text, or if it is empty or names nothing, `or`.
    pub(super) fn get_or(&self, id: TextId, or: &str) -> Rc<str> {
        let text = self.texts.get(id.0).filter(|text| !text.trim().is_empty());
        text.cloned().unwrap_or_else(|| or.into())
    }
}
