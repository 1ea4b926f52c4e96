//! From a TOML file to a checked [`Table`].
//!
//! Every mistake is reported with its line and column and with what is allowed
//! there, not only the first: a table is written in a few rounds, not in fifty.

use super::expr::{self, Expr};
use super::glob;
use super::program::{Field, Program};
use super::reader::{self, MAX_ITEMS, Reader, TableError, Value, is_table_name, span_of};
use super::table::{Exit, Function, Library, Switch, Table};
use super::{CallKind, ResultKind, Role};
use std::collections::HashMap;
use std::ops::Range;
use toml::Spanned;
use toml::de::DeTable;

/// Reads and checks a table; `source` is the file's name for messages.
///
/// # Errors
/// The mistakes, at least one and at most fifty, in the order of the file.
pub fn parse(source: &str, text: &str) -> Result<Table, Vec<TableError>> {
    reader::read(source, text, |reader, root| reader.table(root))
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
                "objects",
                "library",
                "function",
            ],
        );
        let name = self.required_text(root, "name", 0..0);
        if !name.is_empty() && !is_table_name(&name) {
            let span = span_of(root, "name");
            self.error(
                span,
                format!("`{name}` is not a table name; use lower-case letters, digits and `-`"),
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
            objects: self.objects(root),
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

    fn objects(&mut self, root: &DeTable<'_>) -> HashMap<String, String> {
        let mut objects = HashMap::new();
        let Some(value) = root.get("objects") else {
            return objects;
        };
        let Some(inner) = value.get_ref().as_table() else {
            let message = "`objects` must be a table: { argument = \"class\", ... }";
            self.error(value.span(), message.into());
            return objects;
        };
        for (name, value) in inner.iter().take(MAX_ITEMS) {
            if let Some(class) = self.string(value) {
                objects.insert(name.get_ref().as_ref().to_owned(), class.to_owned());
            }
        }
        objects
    }

    fn library(&mut self, table: &DeTable<'_>, span: Range<usize>) -> Library {
        self.known_keys(table, &["files", "layer"]);
        let files = self.names(table, "files", span);
        let layer = match table.get("layer") {
            None => 1,
            Some(value) => self.number(value, "a layer", 255) as u8,
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
                "role",
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
            role: self.role(table, kind),
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

    fn role(&mut self, table: &DeTable<'_>, kind: CallKind) -> Option<Role> {
        let value = table.get("role")?;
        let role = self.choice(table, "role", &Role::NAMED, Role::NAMED[0].1);
        if !role.is_of(kind) {
            let (role, kind) = (role.name(), kind.name());
            let text = format!("a function of the kind `{kind}` cannot have the role `{role}`");
            self.error(value.span(), text);
        }
        Some(role)
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
                "`out` is read at the exit, so `exit` must not be \"never\"".into(),
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
            let message = format!("`{key}` must be a table: {{ name = \"expression\", ... }}");
            self.error(value.span(), message);
            return (fields, places);
        };
        for (name, value) in inner.iter().take(MAX_ITEMS) {
            let word = name.get_ref().as_ref();
            if !expr::is_name(word) || expr::is_reserved(word) {
                self.error(
                    name.span(),
                    format!(
                        "`{word}` cannot name a value; use lower-case letters, digits and `_`, and \
                         not the name of a type or place"
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
                self.error_inside(value, error.at, error.message);
                None
            }
        }
    }

    fn program(&mut self, args: &[Field], out: &[Field], at: &[Range<usize>]) -> Program {
        for (index, field) in args.iter().chain(out).enumerate() {
            let before = args.iter().chain(out).take(index);
            if before.clone().any(|other| other.name == field.name) {
                let at = at.get(index).cloned().unwrap_or_default();
                self.error(at, format!("value `{}` is defined twice", field.name));
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
                    format!("`{name}` is already in the function in line {line}"),
                );
            }
        }
        exact
    }
}

/// Where `name` stands among the symbols of the `index`-th function, the last time.
fn nth_symbol(root: &DeTable<'_>, index: usize, name: &str) -> Option<Range<usize>> {
    let functions = root.get("function")?.get_ref().as_array()?;
    let function = functions.get(index)?.get_ref().as_table()?;
    let symbols = function.get("symbols")?.get_ref().as_array()?;
    let named = |symbol: &&Value<'_>| symbol.get_ref().as_str() == Some(name);
    symbols.iter().rev().find(named).map(Spanned::span)
}
