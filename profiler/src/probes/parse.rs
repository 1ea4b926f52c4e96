//! From a TOML file to a checked [`Table`].
//!
//! Every mistake is reported with its line and column and with what is allowed
//! there, not only the first: a table is written in a few rounds, not in fifty.

use super::expr::{self, Expr};
use super::glob;
use super::program::{Field, Program};
use super::table::{Exit, Function, Library, Switch, Table};
use super::{CallKind, ResultKind};
use std::collections::HashMap;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Most bytes of a table.
pub const MAX_BYTES: usize = 1 << 20;
/// Most mistakes that are reported of one file.
const MAX_ERRORS: usize = 50;
/// Most functions, libraries, and names in one list.
const MAX_ITEMS: usize = 4096;
/// Most bytes of a symbol or file name.
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

/// Reads and checks a table; `source` is the file's name for messages.
///
/// # Errors
/// The mistakes, at least one and at most fifty, in the order of the file.
pub fn parse(source: &str, text: &str) -> Result<Table, Vec<TableError>> {
    let mut reader = Reader {
        source,
        text,
        lines: text.match_indices('\n').map(|(at, _)| at + 1).collect(),
        errors: Vec::new(),
    };
    if text.len() > MAX_BYTES {
        reader.error(0..0, format!("longer than {MAX_BYTES} bytes"));
        return Err(reader.errors);
    }
    let table = match DeTable::parse(text) {
        Ok(root) => reader.table(root.get_ref()),
        Err(error) => {
            let message = error.message().to_owned();
            reader.error(error.span().unwrap_or_default(), message);
            Table::default()
        }
    };
    if reader.errors.is_empty() {
        return Ok(table);
    }
    reader.errors.sort_by_key(|e| (e.line, e.column));
    Err(reader.errors)
}

/// What a file describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFile {
    /// Functions of a runtime: [`parse`] reads it.
    Runtime,
    /// Ioctls of a driver: it has an `[[ioctl]]`.
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

type Value<'a> = Spanned<DeValue<'a>>;

struct Reader<'a> {
    source: &'a str,
    text: &'a str,
    /// Where each line but the first begins.
    lines: Vec<usize>,
    errors: Vec<TableError>,
}

impl Reader<'_> {
    fn table(&mut self, root: &DeTable<'_>) -> Table {
        self.known_keys(
            root,
            &[
                "name",
                "api",
                "tested",
                "only_with",
                "result",
                "library",
                "function",
            ],
        );
        let name = self.required_text(root, "name", 0..0);
        if !name.is_empty() && !is_table_name(&name) {
            let span = span_of(root, "name");
            self.error(
                span,
                format!("`{name}` is no table name: lower case letters, digits and `-`"),
            );
        }
        let result = self.choice(root, "result", &ResultKind::NAMED, ResultKind::None);
        let libraries = self.each(root, "library", Self::library);
        let functions = self.each(root, "function", |reader, table, span| {
            reader.function(table, span, result)
        });
        let exact = self.exact_symbols(root, &functions);
        Table {
            api: self.required_text(root, "api", 0..0),
            tested: self.text(root, "tested"),
            only_with: self.only_with(root),
            source: self.source.to_owned(),
            name,
            libraries,
            functions,
            exact,
        }
    }

    fn only_with(&mut self, root: &DeTable<'_>) -> Option<Switch> {
        let named = [(
            "conditional-collection",
            Some(Switch::ConditionalCollection),
        )];
        self.choice(root, "only_with", &named, None)
    }

    fn library(&mut self, table: &DeTable<'_>, span: Range<usize>) -> Library {
        self.known_keys(table, &["files", "layer"]);
        let files = self.names(table, "files", span);
        let layer = match table.get("layer") {
            None => 1,
            Some(value) => self.small_number(value),
        };
        Library {
            files: files.into_iter().map(|(name, _)| name).collect(),
            layer,
        }
    }

    fn function(
        &mut self,
        table: &DeTable<'_>,
        span: Range<usize>,
        result: ResultKind,
    ) -> Function {
        self.known_keys(
            table,
            &[
                "symbols",
                "kind",
                "args",
                "out",
                "result",
                "exit",
                "nothrow",
                "stack",
                "hands_out",
                "fills",
                "detail",
            ],
        );
        if table.get("kind").is_none() {
            self.missing("kind", span.clone());
        }
        let symbols = self.names(table, "symbols", span.clone());
        for (symbol, at) in &symbols {
            if glob::is_pattern(symbol) && symbol.chars().all(|c| c == '*' || c == '?') {
                self.error(
                    at.clone(),
                    format!("`{symbol}` would probe every function of a library"),
                );
            }
        }
        let kind = self.choice(table, "kind", &CallKind::NAMED, CallKind::Host);
        let (args, args_at) = self.fields(table, "args");
        let (out, out_at) = self.fields(table, "out");
        let at = [args_at, out_at].concat();
        let full = self.program(&args, &out, &at);
        let entry_only = match out.as_slice() {
            [] => full.clone(),
            _ => Program::new(&args, &[]).unwrap_or_default(),
        };
        Function {
            symbols: symbols.into_iter().map(|(symbol, _)| symbol).collect(),
            kind,
            exit: self.exit(table, !out.is_empty()),
            result: self.choice(table, "result", &ResultKind::NAMED, result),
            nothrow: self.boolean(table, "nothrow", false),
            stack: self.boolean(table, "stack", kind.wants_stack()),
            hands_out: self.text(table, "hands_out"),
            fills: self.fills(table),
            detail: self.boolean(table, "detail", false),
            line: self.position(span.start).0,
            args,
            out,
            entry_only,
            full,
        }
    }

    fn fills(&mut self, table: &DeTable<'_>) -> Vec<String> {
        if table.get("fills").is_none() {
            return Vec::new();
        }
        let names = self.names(table, "fills", 0..0);
        names.into_iter().map(|(name, _)| name).collect()
    }

    fn exit(&mut self, table: &DeTable<'_>, reads: bool) -> Exit {
        let named = [
            ("needed", Exit::Needed),
            ("useful", Exit::Useful),
            ("never", Exit::Never),
        ];
        let default = if reads { Exit::Needed } else { Exit::Useful };
        let exit = self.choice(table, "exit", &named, default);
        if reads && exit == Exit::Never {
            self.error(
                span_of(table, "exit"),
                "`out` is read at the exit, which is \"never\" probed".into(),
            );
        }
        exit
    }

    /// The fields of `args` or `out`, and where each stands.
    fn fields(&mut self, table: &DeTable<'_>, key: &str) -> (Vec<Field>, Vec<Range<usize>>) {
        let (mut fields, mut places) = (Vec::new(), Vec::new());
        let Some(value) = table.get(key) else {
            return (fields, places);
        };
        let Some(inner) = value.get_ref().as_table() else {
            let message = format!("`{key}` is a table: {{ name = \"expression\", ... }}");
            self.error(value.span(), message);
            return (fields, places);
        };
        for (name, value) in inner.iter().take(MAX_ITEMS) {
            let word = name.get_ref().as_ref();
            if !expr::is_name(word) || expr::is_reserved(word) {
                self.error(
                    name.span(),
                    format!(
                        "`{word}` cannot name a value: lower case letters, digits and `_`, and \
                         no type or place"
                    ),
                );
                continue;
            }
            let Some((text, expr)) = self.expression(value) else {
                continue;
            };
            fields.push(Field {
                name: word.to_owned(),
                text,
                expr,
            });
            places.push(value.span());
        }
        (fields, places)
    }

    fn expression(&mut self, value: &Value<'_>) -> Option<(String, Expr)> {
        let text = self.string(value)?;
        match expr::parse(text) {
            Ok(expr) => Some((text.to_owned(), expr)),
            Err(error) => {
                // In a plain string the column inside of it is known.
                let content = self.text.get(value.span().start + 1..);
                let plain = content.is_some_and(|content| content.starts_with(text));
                let inside = if plain { 1 + error.at } else { 0 };
                let start = value.span().start + inside;
                self.error(start..start, error.message);
                None
            }
        }
    }

    fn program(&mut self, args: &[Field], out: &[Field], at: &[Range<usize>]) -> Program {
        for (index, field) in args.iter().chain(out).enumerate() {
            let before = args.iter().chain(out).take(index);
            if before.clone().any(|other| other.name == field.name) {
                let at = at.get(index).cloned().unwrap_or_default();
                self.error(at, format!("there are two values `{}`", field.name));
            }
        }
        Program::new(args, out).unwrap_or_else(|(index, message)| {
            self.error(at.get(index).cloned().unwrap_or_default(), message);
            Program::default()
        })
    }

    /// Where each exact symbol is; two of the same name are a mistake.
    fn exact_symbols(
        &mut self,
        root: &DeTable<'_>,
        functions: &[Function],
    ) -> HashMap<String, usize> {
        let mut exact = HashMap::new();
        for (index, function) in functions.iter().enumerate() {
            let names = function.symbols.iter().filter(|s| !glob::is_pattern(s));
            for name in names {
                let Some(first) = exact.insert(name.clone(), index) else {
                    continue;
                };
                let line = functions.get(first).map_or(0, |function| function.line);
                let span = nth_symbol(root, index, name).unwrap_or_default();
                self.error(
                    span,
                    format!("`{name}` is in the function of line {line} already"),
                );
            }
        }
        exact
    }

    /// Each table of an array of tables.
    fn each<T>(
        &mut self,
        root: &DeTable<'_>,
        key: &str,
        mut read: impl FnMut(&mut Self, &DeTable<'_>, Range<usize>) -> T,
    ) -> Vec<T> {
        let Some(value) = root.get(key) else {
            self.error(0..0, format!("a table has at least one [[{key}]]"));
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
                format!("[[{key}]] stands one to {MAX_ITEMS} times"),
            );
        }
        all
    }

    fn known_keys(&mut self, table: &DeTable<'_>, known: &[&str]) {
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
    fn choice<T: Copy>(
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

    /// A list of names that is not empty, each with its place.
    fn names(
        &mut self,
        table: &DeTable<'_>,
        key: &str,
        span: Range<usize>,
    ) -> Vec<(String, Range<usize>)> {
        let Some(value) = table.get(key) else {
            self.missing(key, span);
            return Vec::new();
        };
        let items = value.get_ref().as_array().map_or(&[][..], |a| a);
        if items.is_empty() || items.len() > MAX_ITEMS {
            self.error(
                value.span(),
                format!("`{key}` is a list of 1 to {MAX_ITEMS} names: [\"...\", ...]"),
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
                    format!("a name has 1 to {MAX_NAME} bytes and no spaces"),
                );
            }
            names.push((name.to_owned(), item.span()));
        }
        names
    }

    fn boolean(&mut self, table: &DeTable<'_>, key: &str, default: bool) -> bool {
        let Some(value) = table.get(key) else {
            return default;
        };
        value.get_ref().as_bool().unwrap_or_else(|| {
            self.error(value.span(), format!("`{key}` is true or false"));
            default
        })
    }

    fn small_number(&mut self, value: &Value<'_>) -> u8 {
        let number = value.get_ref().as_integer();
        let number = number.and_then(|n| u8::from_str_radix(n.as_str(), n.radix()).ok());
        number.unwrap_or_else(|| {
            self.error(value.span(), "a layer is a number from 0 to 255".into());
            0
        })
    }

    fn text(&mut self, table: &DeTable<'_>, key: &str) -> Option<String> {
        let value = table.get(key)?;
        let text = self.string(value)?;
        if text.is_empty() || text.len() > MAX_NAME || text.contains(char::is_control) {
            self.error(
                value.span(),
                format!("`{key}` is one line of 1 to {MAX_NAME} bytes"),
            );
        }
        Some(text.to_owned())
    }

    fn required_text(&mut self, table: &DeTable<'_>, key: &str, span: Range<usize>) -> String {
        if table.get(key).is_none() {
            self.missing(key, span);
        }
        self.text(table, key).unwrap_or_default()
    }

    fn string<'v>(&mut self, value: &'v Value<'_>) -> Option<&'v str> {
        let text = value.get_ref().as_str();
        if text.is_none() {
            self.error(value.span(), "a text in quotes is expected here".into());
        }
        text
    }

    fn missing(&mut self, key: &str, span: Range<usize>) {
        self.error(span, format!("`{key}` is missing"));
    }

    fn error(&mut self, span: Range<usize>, message: String) {
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

fn span_of(table: &DeTable<'_>, key: &str) -> Range<usize> {
    table.get(key).map(Spanned::span).unwrap_or_default()
}

/// Where `name` stands among the symbols of the `index`-th function, the last time.
fn nth_symbol(root: &DeTable<'_>, index: usize, name: &str) -> Option<Range<usize>> {
    let functions = root.get("function")?.get_ref().as_array()?;
    let function = functions.get(index)?.get_ref().as_table()?;
    let symbols = function.get("symbols")?.get_ref().as_array()?;
    let named = |symbol: &&Value<'_>| symbol.get_ref().as_str() == Some(name);
    symbols.iter().rev().find(named).map(Spanned::span)
}

fn is_table_name(name: &str) -> bool {
    name.bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// The beginning of a text that may be as long as the file.
fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(40)).unwrap_or(text)
}
