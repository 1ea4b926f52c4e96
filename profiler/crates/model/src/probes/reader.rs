//! Reading checked values out of a TOML file, with the place of every mistake.

use super::expr::{Expr, ExprError};
use super::program::Field;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Most bytes of a table.
pub const MAX_BYTES: usize = 1 << 20;
/// Most mistakes that are reported of one file.
const MAX_ERRORS: usize = 50;
/// Most entries of any list.
const MAX_ITEMS: usize = 4096;
/// Most bytes of a name.
const MAX_NAME: usize = 1024;

/// A mistake in a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{source_name}:{line}:{column}: {message}")]
pub struct TableError {
    /// The file.
    pub source_name: String,
    /// Its line, from 1.
    pub line: u32,
    /// The column, in characters from 1.
    pub column: u32,
    /// What is wrong and what is allowed.
    pub message: String,
}

pub(crate) type Value<'a> = Spanned<DeValue<'a>>;

/// How a kind of table writes the values that are read.
pub(super) struct FieldSyntax {
    /// An entry, for messages.
    pub(super) shape: &'static str,
    /// Why a word cannot name a value.
    pub(super) refuse: fn(&str) -> Option<String>,
    /// Parses where a value is.
    pub(super) parse: fn(&str) -> Result<Expr, ExprError>,
}

/// A file being read; the mistakes are collected.
struct SourceText<'a> {
    /// The file's name.
    name: &'a str,
    text: &'a str,
    /// Where each line but the first begins.
    lines: Vec<usize>,
    errors: Vec<TableError>,
}

/// A table of the file, read key by key. Keys that nothing asked for are mistakes.
pub(crate) struct TableReader<'r, 'a> {
    source: &'r mut SourceText<'a>,
    table: &'r DeTable<'r>,
    /// Where the table begins.
    pub(super) span: Range<usize>,
    /// Keys that were asked for, in this order.
    known: Vec<&'static str>,
}

/// Reads `text` with `read`, which gets the file's top level.
///
/// # Errors
/// The mistakes, at least one and at most fifty, in the order of the file.
pub(crate) fn read<T>(
    name: &str,
    text: &str,
    read: impl FnOnce(&mut TableReader<'_, '_>) -> T,
) -> Result<T, Vec<TableError>> {
    let mut source = SourceText {
        name,
        text,
        lines: text.match_indices('\n').map(|(at, _)| at + 1).collect(),
        errors: Vec::new(),
    };
    if text.len() > MAX_BYTES {
        source.error(0, format!("longer than the limit of {MAX_BYTES} bytes"));
        return Err(source.errors);
    }
    let result = match DeTable::parse(text) {
        Ok(root) => Some(source.table(root.get_ref(), 0..0, read)),
        Err(error) => {
            source.error(
                error.span().unwrap_or_default().start,
                error.message().to_owned(),
            );
            None
        }
    };
    match result {
        Some(result) if source.errors.is_empty() => Ok(result),
        _ => {
            source.errors.sort_by_key(|e| (e.line, e.column));
            Err(source.errors)
        }
    }
}

impl<'a> SourceText<'a> {
    /// Reads a table with `read`, and reports keys that it does not know.
    fn table<'r, T>(
        &'r mut self,
        table: &'r DeTable<'r>,
        span: Range<usize>,
        read: impl FnOnce(&mut TableReader<'r, 'a>) -> T,
    ) -> T {
        let mut reader = TableReader {
            source: self,
            table,
            span,
            known: Vec::new(),
        };
        let result = read(&mut reader);
        for (key, _) in table.iter().take(MAX_ITEMS) {
            let word = key.get_ref().as_ref();
            if !reader.known.contains(&word) {
                let (word, known) = (cut(word), reader.known.join(", "));
                reader.error(key.span(), format!("unknown key `{word}`; known: {known}"));
            }
        }
        result
    }

    fn error(&mut self, at: usize, message: String) {
        if self.errors.len() == MAX_ERRORS {
            return;
        }
        let (line, column) = self.position(at);
        self.errors.push(TableError {
            source_name: self.name.to_owned(),
            line,
            column,
            message,
        });
    }

    /// Line and column, both from 1.
    fn position(&self, offset: usize) -> (u32, u32) {
        let offset = self.text.floor_char_boundary(offset);
        let line = self.lines.partition_point(|start| *start <= offset);
        let start = line.checked_sub(1).and_then(|at| self.lines.get(at));
        let before = self.text.get(start.copied().unwrap_or(0)..offset);
        let column = before.map_or(0, |text| text.chars().count());
        let from_1 = |n: usize| u32::try_from(n + 1).unwrap_or(u32::MAX);
        (from_1(line), from_1(column))
    }
}

impl<'r> TableReader<'r, '_> {
    /// The file's name.
    pub(super) fn source(&self) -> String {
        self.source.name.to_owned()
    }

    /// Line of the file at which the table begins.
    pub(super) fn line(&self) -> u32 {
        self.source.position(self.span.start).0
    }

    /// Whether there is a `key`.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// The value of `key`.
    pub(super) fn value(&mut self, key: &'static str) -> Option<&'r Value<'r>> {
        if !self.known.contains(&key) {
            self.known.push(key);
        }
        self.table.get(key)
    }

    /// The value of `key`, which must be there.
    pub(crate) fn required(&mut self, key: &'static str) -> Option<&'r Value<'r>> {
        let value = self.value(key);
        if value.is_none() {
            self.error(self.span.clone(), format!("`{key}` is missing"));
        }
        value
    }

    /// Where the value of `key` stands.
    pub(super) fn span_of(&self, key: &str) -> Range<usize> {
        self.table.get(key).map(Spanned::span).unwrap_or_default()
    }

    /// Each table of the array of tables `key`, which must be there.
    pub(crate) fn each<T>(
        &mut self,
        key: &'static str,
        read: impl FnMut(&mut TableReader<'_, '_>) -> T,
    ) -> Vec<T> {
        if self.value(key).is_none() {
            self.error(0..0, format!("a table must have at least one [[{key}]]"));
        }
        self.each_if_any(key, read)
    }

    /// Each table of the array of tables `key`.
    pub(super) fn each_if_any<T>(
        &mut self,
        key: &'static str,
        mut read: impl FnMut(&mut TableReader<'_, '_>) -> T,
    ) -> Vec<T> {
        let Some(value) = self.value(key) else {
            return Vec::new();
        };
        let items = value.get_ref().as_array().map_or(&[][..], |a| a);
        let mut all = Vec::with_capacity(items.len().min(MAX_ITEMS));
        for item in items.iter().take(MAX_ITEMS) {
            match item.get_ref().as_table() {
                Some(table) => all.push(self.source.table(table, item.span(), &mut read)),
                None => self.error(item.span(), format!("write [[{key}]]")),
            }
        }
        if items.is_empty() || items.len() > MAX_ITEMS {
            let message = format!("[[{key}]] must occur 1 to {MAX_ITEMS} times");
            self.error(value.span(), message);
        }
        all
    }

    /// The entries of the inline table `key`, which looks like `shape`: name, where it
    /// stands, value.
    pub(super) fn entries(
        &mut self,
        key: &'static str,
        shape: &str,
    ) -> Vec<(&'r str, Range<usize>, &'r Value<'r>)> {
        let Some(value) = self.value(key) else {
            return Vec::new();
        };
        let Some(inner) = value.get_ref().as_table() else {
            let message = format!("`{key}` must be a table: {{ {shape} }}");
            self.error(value.span(), message);
            return Vec::new();
        };
        let entries = inner.iter().take(MAX_ITEMS);
        entries
            .map(|(name, value)| (name.get_ref().as_ref(), name.span(), value))
            .collect()
    }

    /// The values of `args`, `out` or the like, and where each stands.
    pub(super) fn fields(
        &mut self,
        key: &'static str,
        syntax: &FieldSyntax,
    ) -> (Vec<Field>, Vec<Range<usize>>) {
        let (mut fields, mut places) = (Vec::new(), Vec::new());
        for (name, span, value) in self.entries(key, syntax.shape) {
            if let Some(message) = (syntax.refuse)(name) {
                self.error(span, message);
            } else if let Some(field) = self.field(name, value, syntax.parse) {
                fields.push(field);
                places.push(value.span());
            }
        }
        (fields, places)
    }

    /// The value `name`, which is where the text `value` names.
    pub(super) fn field(
        &mut self,
        name: &str,
        value: &Value<'_>,
        parse: fn(&str) -> Result<Expr, ExprError>,
    ) -> Option<Field> {
        let text = self.string(value)?;
        match parse(text) {
            Ok(expr) => Some(Field {
                name: name.to_owned(),
                text: text.to_owned(),
                expr,
            }),
            Err(error) => {
                self.error_inside(value, error);
                None
            }
        }
    }

    /// The value of `key` among named ones; `default` where there is none.
    pub(crate) fn choice<T: Copy>(
        &mut self,
        key: &'static str,
        named: &[(&str, T)],
        default: T,
    ) -> T {
        let Some(value) = self.value(key) else {
            return default;
        };
        let Some(word) = self.string(value) else {
            return default;
        };
        if let Some((_, found)) = named.iter().find(|(name, _)| *name == word) {
            return *found;
        }
        let known: Vec<_> = named.iter().map(|(name, _)| *name).collect();
        let message = format!("unknown {key} `{}`; known: {}", cut(word), known.join(", "));
        self.error(value.span(), message);
        default
    }

    /// A list of names, each with its place; not empty where it is there.
    pub(crate) fn names(&mut self, key: &'static str) -> Vec<(String, Range<usize>)> {
        let Some(value) = self.value(key) else {
            return Vec::new();
        };
        let items = value.get_ref().as_array().map_or(&[][..], |a| a);
        if items.is_empty() || items.len() > MAX_ITEMS {
            let message =
                format!("`{key}` must be a list of 1 to {MAX_ITEMS} names: [\"...\", ...]");
            self.error(value.span(), message);
        }
        let mut names = Vec::new();
        for item in items.iter().take(MAX_ITEMS) {
            let Some(name) = self.string(item) else {
                continue;
            };
            let odd = name.is_empty()
                || name.len() > MAX_NAME
                || name.contains(|c: char| c.is_control() || c.is_whitespace());
            if odd {
                let message = format!("a name must have 1 to {MAX_NAME} bytes and no spaces");
                self.error(item.span(), message);
            }
            names.push((name.to_owned(), item.span()));
        }
        names
    }

    /// A list of names, without their places.
    pub(super) fn plain_names(&mut self, key: &'static str) -> Vec<String> {
        self.names(key).into_iter().map(|(name, _)| name).collect()
    }

    pub(super) fn boolean(&mut self, key: &'static str, default: bool) -> bool {
        let Some(value) = self.value(key) else {
            return default;
        };
        value.get_ref().as_bool().unwrap_or_else(|| {
            self.error(value.span(), format!("`{key}` must be true or false"));
            default
        })
    }

    /// A number from 0 to `most`; 0 after a mistake.
    pub(super) fn number(&mut self, value: &Value<'_>, what: &str, most: u64) -> u64 {
        let number = value.get_ref().as_integer();
        let number = number.and_then(|n| u64::from_str_radix(n.as_str(), n.radix()).ok());
        number.filter(|n| *n <= most).unwrap_or_else(|| {
            let message = format!("{what} must be a number from 0 to {most}");
            self.error(value.span(), message);
            0
        })
    }

    pub(crate) fn text(&mut self, key: &'static str) -> Option<String> {
        let value = self.value(key)?;
        let text = self.string(value)?;
        if text.is_empty() || text.len() > MAX_NAME || text.contains(char::is_control) {
            let message = format!("`{key}` must be one line of 1 to {MAX_NAME} bytes");
            self.error(value.span(), message);
        }
        Some(text.to_owned())
    }

    pub(super) fn required_text(&mut self, key: &'static str) -> String {
        self.required(key);
        self.text(key).unwrap_or_default()
    }

    pub(super) fn string<'v>(&mut self, value: &'v Value<'_>) -> Option<&'v str> {
        let text = value.get_ref().as_str();
        if text.is_none() {
            self.error(value.span(), "expected a text in quotes");
        }
        text
    }

    /// A mistake in a text. In a plain string its place is known; in one with escapes it
    /// is the whole.
    fn error_inside(&mut self, value: &Value<'_>, error: ExprError) {
        let text = value.get_ref().as_str().unwrap_or_default();
        let content = self.source.text.get(value.span().start + 1..);
        let plain = content.is_some_and(|content| content.starts_with(text));
        let start = value.span().start + if plain { 1 + error.at } else { 0 };
        self.error(start..start, error.message);
    }

    /// A mistake at `span`.
    pub(crate) fn error(&mut self, span: Range<usize>, message: impl Into<String>) {
        self.source.error(span.start, message.into());
    }
}

pub(super) fn is_table_name(name: &str) -> bool {
    name.bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// The beginning of a text that may be as long as the file.
pub(super) fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(40)).unwrap_or(text)
}
