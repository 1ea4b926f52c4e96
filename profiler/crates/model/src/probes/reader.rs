//! Reading checked values out of a TOML file, with the place of every mistake.

use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Most bytes of a table.
pub const MAX_BYTES: usize = 1 << 20;
/// Most mistakes that are reported of one file.
const MAX_ERRORS: usize = 50;
/// Most entries of any list.
pub(super) const MAX_ITEMS: usize = 4096;
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

/// What a file describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFile {
    /// Functions of a runtime: [`parse`](super::parse::parse) reads it.
    Runtime,
    /// Ioctls of a driver, for it has an `[[ioctl]]`:
    /// [`driver_table::parse`](super::driver_table::parse) reads it.
    Driver,
}

/// What a file describes; one that is no TOML at all counts as a runtime's.
pub fn kind_of(text: &str) -> TableFile {
    if text.len() > MAX_BYTES {
        return TableFile::Runtime;
    }
    let (root, _) = DeTable::parse_recoverable(text);
    match root.get_ref().get("ioctl") {
        Some(_) => TableFile::Driver,
        None => TableFile::Runtime,
    }
}

pub(super) type Value<'a> = Spanned<DeValue<'a>>;

/// A file being read; the mistakes are collected.
pub(super) struct Reader<'a> {
    /// The file's name.
    pub(super) source: &'a str,
    text: &'a str,
    /// Where each line but the first begins.
    lines: Vec<usize>,
    errors: Vec<TableError>,
}

/// Reads `text` with `read`, which gets the file's top level.
///
/// # Errors
/// The mistakes, at least one and at most fifty, in the order of the file.
pub(super) fn read<T>(
    source: &str,
    text: &str,
    read: impl FnOnce(&mut Reader<'_>, &DeTable<'_>) -> T,
) -> Result<T, Vec<TableError>> {
    let mut reader = Reader {
        source,
        text,
        lines: text.match_indices('\n').map(|(at, _)| at + 1).collect(),
        errors: Vec::new(),
    };
    if text.len() > MAX_BYTES {
        reader.error(0..0, format!("longer than the limit of {MAX_BYTES} bytes"));
        return Err(reader.errors);
    }
    let result = match DeTable::parse(text) {
        Ok(root) => Some(read(&mut reader, root.get_ref())),
        Err(error) => {
            let message = error.message().to_owned();
            reader.error(error.span().unwrap_or_default(), message);
            None
        }
    };
    match result {
        Some(result) if reader.errors.is_empty() => Ok(result),
        _ => {
            reader.errors.sort_by_key(|e| (e.line, e.column));
            Err(reader.errors)
        }
    }
}

impl Reader<'_> {
    /// Each table of the array of tables `key`, which must be there.
    pub(super) fn each<T>(
        &mut self,
        root: &DeTable<'_>,
        key: &str,
        read: impl FnMut(&mut Self, &DeTable<'_>, Range<usize>) -> T,
    ) -> Vec<T> {
        if root.get(key).is_none() {
            self.error(0..0, format!("a table must have at least one [[{key}]]"));
        }
        self.each_if_any(root, key, read)
    }

    /// Each table of the array of tables `key`.
    pub(super) fn each_if_any<T>(
        &mut self,
        root: &DeTable<'_>,
        key: &str,
        mut read: impl FnMut(&mut Self, &DeTable<'_>, Range<usize>) -> T,
    ) -> Vec<T> {
        let Some(value) = root.get(key) else {
            return Vec::new();
        };
        let items = value.get_ref().as_array().map_or(&[][..], |a| a);
        let mut all = Vec::with_capacity(items.len().min(MAX_ITEMS));
        for item in items.iter().take(MAX_ITEMS) {
            match item.get_ref().as_table() {
                Some(table) => all.push(read(self, table, item.span())),
                None => self.error(item.span(), format!("write [[{key}]]")),
            }
        }
        if items.is_empty() || items.len() > MAX_ITEMS {
            self.error(
                value.span(),
                format!("[[{key}]] must occur 1 to {MAX_ITEMS} times"),
            );
        }
        all
    }

    /// The entries of the inline table `key`: name, where it stands, value.
    pub(super) fn entries<'v>(
        &mut self,
        table: &'v DeTable<'_>,
        key: &str,
    ) -> Vec<(&'v str, Range<usize>, &'v Value<'v>)> {
        let Some(value) = table.get(key) else {
            return Vec::new();
        };
        let Some(inner) = value.get_ref().as_table() else {
            self.error(
                value.span(),
                format!("`{key}` must be a table: {{ name = ... }}"),
            );
            return Vec::new();
        };
        inner
            .iter()
            .take(MAX_ITEMS)
            .map(|(name, value)| (name.get_ref().as_ref(), name.span(), value))
            .collect()
    }

    pub(super) fn known_keys(&mut self, table: &DeTable<'_>, known: &[&str]) {
        for (key, _) in table.iter().take(MAX_ITEMS) {
            let word = key.get_ref().as_ref();
            if !known.contains(&word) {
                let known = known.join(", ");
                self.error(
                    key.span(),
                    format!("unknown key `{}`; known: {known}", cut(word)),
                );
            }
        }
    }

    /// The value of `key` among named ones; `default` where there is none.
    pub(super) fn choice<T: Copy>(
        &mut self,
        table: &DeTable<'_>,
        key: &str,
        named: &[(&str, T)],
        default: T,
    ) -> T {
        let Some(value) = table.get(key) else {
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

    /// A list of names that must be there, each with its place.
    pub(super) fn names(
        &mut self,
        table: &DeTable<'_>,
        key: &str,
        span: Range<usize>,
    ) -> Vec<(String, Range<usize>)> {
        if table.get(key).is_none() {
            self.missing(key, span);
        }
        self.names_if_any(table, key)
    }

    /// A list of names, each with its place; not empty where it is there.
    pub(super) fn names_if_any(
        &mut self,
        table: &DeTable<'_>,
        key: &str,
    ) -> Vec<(String, Range<usize>)> {
        let Some(value) = table.get(key) else {
            return Vec::new();
        };
        let items = value.get_ref().as_array().map_or(&[][..], |a| a);
        if items.is_empty() || items.len() > MAX_ITEMS {
            self.error(
                value.span(),
                format!("`{key}` must be a list of 1 to {MAX_ITEMS} names: [\"...\", ...]"),
            );
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
                self.error(
                    item.span(),
                    format!("a name must have 1 to {MAX_NAME} bytes and no spaces"),
                );
            }
            names.push((name.to_owned(), item.span()));
        }
        names
    }

    pub(super) fn boolean(&mut self, table: &DeTable<'_>, key: &str, default: bool) -> bool {
        let Some(value) = table.get(key) else {
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
            self.error(
                value.span(),
                format!("{what} must be a number from 0 to {most}"),
            );
            0
        })
    }

    pub(super) fn text(&mut self, table: &DeTable<'_>, key: &str) -> Option<String> {
        let value = table.get(key)?;
        let text = self.string(value)?;
        if text.is_empty() || text.len() > MAX_NAME || text.contains(char::is_control) {
            self.error(
                value.span(),
                format!("`{key}` must be one line of 1 to {MAX_NAME} bytes"),
            );
        }
        Some(text.to_owned())
    }

    pub(super) fn required_text(
        &mut self,
        table: &DeTable<'_>,
        key: &str,
        span: Range<usize>,
    ) -> String {
        if table.get(key).is_none() {
            self.missing(key, span);
        }
        self.text(table, key).unwrap_or_default()
    }

    pub(super) fn string<'v>(&mut self, value: &'v Value<'_>) -> Option<&'v str> {
        let text = value.get_ref().as_str();
        if text.is_none() {
            self.error(value.span(), "expected a text in quotes".into());
        }
        text
    }

    pub(super) fn missing(&mut self, key: &str, span: Range<usize>) {
        self.error(span, format!("`{key}` is missing"));
    }

    /// A mistake in a text, `at` bytes into it. In a plain string that place is
    /// known; in one with escapes it is the whole.
    pub(super) fn error_inside(&mut self, value: &Value<'_>, at: usize, message: String) {
        let text = value.get_ref().as_str().unwrap_or_default();
        let content = self.text.get(value.span().start + 1..);
        let plain = content.is_some_and(|content| content.starts_with(text));
        let start = value.span().start + if plain { 1 + at } else { 0 };
        self.error(start..start, message);
    }

    pub(super) fn error(&mut self, span: Range<usize>, message: String) {
        if self.errors.len() == MAX_ERRORS {
            return;
        }
        let (line, column) = self.position(span.start);
        self.errors.push(TableError {
            source_name: self.source.to_owned(),
            line,
            column,
            message,
        });
    }

    /// Line and column, both from 1.
    pub(super) fn position(&self, offset: usize) -> (u32, u32) {
        let offset = self.text.floor_char_boundary(offset);
        let line = self.lines.partition_point(|start| *start <= offset);
        let start = line.checked_sub(1).and_then(|at| self.lines.get(at));
        let before = self.text.get(start.copied().unwrap_or(0)..offset);
        let column = before.map_or(0, |text| text.chars().count());
        let from_1 = |n: usize| u32::try_from(n + 1).unwrap_or(u32::MAX);
        (from_1(line), from_1(column))
    }
}

pub(super) fn span_of(table: &DeTable<'_>, key: &str) -> Range<usize> {
    table.get(key).map(Spanned::span).unwrap_or_default()
}

pub(super) fn is_table_name(name: &str) -> bool {
    name.bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// The beginning of a text that may be as long as the file.
pub(super) fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(40)).unwrap_or(text)
}
