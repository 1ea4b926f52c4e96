//! Arguments of events as JSON text.

use super::proto::{Annotation, Nested};
use super::sequence::Sequence;
use crate::import::json::Trouble;
use std::borrow::Cow;
use std::ops::Range;

/// Arguments of one event, all in one text.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    text: String,
    /// Where each key and each value stands.
    members: Vec<(Range<usize>, Range<usize>)>,
    /// What was wrong with them.
    pub troubles: Vec<Trouble>,
}

impl Arguments {
    /// Takes those of an event instead of the last one's.
    pub(super) fn take(&mut self, annotations: &[Annotation], sequence: &Sequence) {
        self.text.clear();
        self.members.clear();
        self.troubles.clear();
        for annotation in annotations {
            let Some(key) = self.key(annotation, sequence) else {
                continue;
            };
            let start = self.text.len();
            self.text.push_str(&key);
            let middle = self.text.len();
            self.value(annotation, sequence);
            let end = self.text.len();
            self.members.push((start..middle, middle..end));
        }
    }

    /// Keys, and values as JSON text.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.members.iter().map(|(key, value)| {
            let text = |range: &Range<usize>| self.text.get(range.clone()).unwrap_or_default();
            (text(key), text(value))
        })
    }

    fn key<'a>(
        &mut self,
        annotation: &'a Annotation,
        sequence: &'a Sequence,
    ) -> Option<Cow<'a, str>> {
        if let Some(name) = &annotation.name {
            return Some(self.utf8(name));
        }
        let key = sequence.keys.get(&annotation.name_iid);
        match key {
            Some(key) => Some(Cow::Borrowed(key)),
            None => {
                self.troubles.push(Trouble::Unresolved);
                None
            }
        }
    }

    fn utf8<'a>(&mut self, bytes: &'a [u8]) -> Cow<'a, str> {
        let text = String::from_utf8_lossy(bytes);
        if let Cow::Owned(_) = text {
            self.troubles.push(Trouble::BadText);
        }
        text
    }

    fn value(&mut self, annotation: &Annotation, sequence: &Sequence) {
        let Annotation {
            bool,
            uint,
            int,
            double,
            string,
            pointer,
            nested,
            json,
            dict,
            array,
            string_iid,
            ..
        } = annotation;
        if let Some(text) = string {
            let text = self.utf8(text);
            self.string(&text);
        } else if let Some(iid) = string_iid {
            match sequence.values.get(iid) {
                Some(text) => self.string(text),
                None => {
                    self.troubles.push(Trouble::Unresolved);
                    self.text.push_str("null");
                }
            }
        } else if let Some(number) = int {
            self.text.push_str(&number.to_string());
        } else if let Some(number) = uint {
            self.text.push_str(&number.to_string());
        } else if let Some(number) = double {
            self.double(*number);
        } else if let Some(is) = bool {
            self.text.push_str(if *is { "true" } else { "false" });
        } else if let Some(address) = pointer {
            self.string(&format!("{address:#x}"));
        } else if let Some(json) = json {
            self.json(json);
        } else if let Some(nested) = nested {
            self.nested(nested);
        } else if !dict.is_empty() {
            self.dict(dict, sequence);
        } else if !array.is_empty() {
            self.list('[', ']', array.iter(), |to, one| to.value(one, sequence));
        } else {
            // A value of a type that is not understood, or none.
            self.text.push_str("null");
        }
    }

    fn dict(&mut self, dict: &[Annotation], sequence: &Sequence) {
        self.list('{', '}', dict.iter(), |to, one| {
            let key = to.key(one, sequence).unwrap_or_default();
            to.string(&key);
            to.text.push(':');
            to.value(one, sequence);
        });
    }

    fn nested(&mut self, nested: &Nested) {
        match nested.kind {
            1 => {
                let members = nested.keys.iter().zip(&nested.values);
                self.list('{', '}', members, |to, (key, value)| {
                    let key = to.utf8(key);
                    to.string(&key);
                    to.text.push(':');
                    to.nested(value);
                });
            }
            2 => self.list('[', ']', nested.array.iter(), Self::nested),
            _ => {
                if let Some(text) = &nested.string {
                    let text = self.utf8(text);
                    self.string(&text);
                } else if let Some(number) = nested.int {
                    self.text.push_str(&number.to_string());
                } else if let Some(number) = nested.double {
                    self.double(number);
                } else {
                    let word = match nested.bool {
                        Some(true) => "true",
                        Some(false) => "false",
                        None => "null",
                    };
                    self.text.push_str(word);
                }
            }
        }
    }

    fn list<T>(
        &mut self,
        open: char,
        close: char,
        items: impl Iterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) {
        self.text.push(open);
        for (i, item) in items.enumerate() {
            if i > 0 {
                self.text.push(',');
            }
            write(self, item);
        }
        self.text.push(close);
    }

    /// JSON that the event's program wrote; what is none is a text.
    fn json(&mut self, json: &[u8]) {
        let text = self.utf8(json);
        match serde_json::from_str::<&serde_json::value::RawValue>(&text) {
            Ok(value) => self.text.push_str(value.get()),
            Err(_) => self.string(&text),
        }
    }

    fn double(&mut self, number: f64) {
        match number.is_finite() {
            true => push_double(&mut self.text, number),
            false => {
                self.troubles.push(Trouble::NotANumber);
                self.text.push_str("null");
            }
        }
    }

    fn string(&mut self, text: &str) {
        push_string(&mut self.text, text);
    }
}

/// Adds a finite number, so that it stays a double.
pub(super) fn push_double(out: &mut String, number: f64) {
    use std::fmt::Write as _;
    let _ = write!(out, "{number:?}");
}

/// Adds a text in quotes.
pub(super) fn push_string(out: &mut String, text: &str) {
    match text.bytes().all(|b| b >= b' ' && b != b'"' && b != b'\\') {
        true => {
            out.push('"');
            out.push_str(text);
            out.push('"');
        }
        false => out.push_str(&serde_json::Value::from(text).to_string()),
    }
}
