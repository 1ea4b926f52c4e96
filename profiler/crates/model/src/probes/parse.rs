//! From a TOML file to a [`CheckedTable`].
//!
//! Every mistake is reported with its line and column and with what is allowed
//! there, not only the first: a table is written in a few rounds, not in fifty.

use super::driver_table::{DriverTable, parse_driver};
use super::expr;
use super::glob;
use super::program::{Field, ProbeProgram};
use super::reader::{self, FieldSyntax, TableError, TableReader, is_table_name};
use super::table::{CheckedTable, Exit, Function, Library, Switch};
use super::{CallKind, ProbeRole, ResultKind};
use std::collections::HashMap;
use std::ops::Range;

/// What a file describes.
#[derive(Clone, Debug)]
pub enum TableFile {
    /// Functions of a runtime.
    Runtime(CheckedTable),
    /// Ioctls of a driver, for it has an `[[ioctl]]`.
    Driver(DriverTable),
}

/// Reads and checks a file of either kind; `source` is its name for messages.
///
/// # Errors
/// The mistakes, at least one and at most fifty, in the order of the file.
pub fn parse_file(source: &str, text: &str) -> Result<TableFile, Vec<TableError>> {
    reader::read(source, text, |root| match root.has("ioctl") {
        true => TableFile::Driver(parse_driver(root)),
        false => TableFile::Runtime(parse_runtime(root)),
    })
}

/// `args` and `out` of functions.
const SYNTAX: FieldSyntax = FieldSyntax {
    shape: "name = \"expression\", ...",
    refuse: |word| {
        let fits = expr::is_name(word) && !expr::is_reserved(word);
        (!fits).then(|| {
            format!(
                "`{word}` cannot name a value; use lower-case letters, digits and `_`, and not \
                 the name of a type or place"
            )
        })
    },
    parse: expr::parse,
};

/// Reads a file's top level.
pub(super) fn parse_runtime(root: &mut TableReader<'_, '_>) -> CheckedTable {
    let name = root.required_text("name");
    if !name.is_empty() && !is_table_name(&name) {
        let message =
            format!("`{name}` is not a table name; use lower-case letters, digits and `-`");
        root.error(root.span_of("name"), message);
    }
    let api = root.required_text("api");
    let tested = root.text("tested");
    let conditional = Some(Switch::ConditionalCollection);
    let only_with = root.choice(
        "only_with",
        &[("conditional-collection", conditional)],
        None,
    );
    let result = root.choice("result", ResultKind::NAMED, ResultKind::None);
    let objects = objects(root);
    let libraries = root.each("library", library);
    let mut exact = HashMap::new();
    let mut functions: Vec<Function> = Vec::new();
    root.each("function", |reader| {
        let (function, places) = function(reader, result);
        for (symbol, at) in function.symbols.iter().zip(places) {
            if glob::is_pattern(symbol) {
                continue;
            }
            if let Some(first) = exact.insert(symbol.clone(), functions.len()) {
                let first = functions.get(first).unwrap_or(&function);
                let line = first.line;
                let message = format!("`{symbol}` is already in the function in line {line}");
                reader.error(at, message);
            }
        }
        functions.push(function);
    });
    CheckedTable {
        name,
        api,
        tested,
        only_with,
        libraries,
        functions,
        objects,
        source: root.source(),
        exact,
    }
}

fn objects(root: &mut TableReader<'_, '_>) -> HashMap<String, String> {
    let mut objects = HashMap::new();
    for (name, _, value) in root.entries("objects", "argument = \"class\", ...") {
        if let Some(class) = root.string(value) {
            objects.insert(name.to_owned(), class.to_owned());
        }
    }
    objects
}

fn library(reader: &mut TableReader<'_, '_>) -> Library {
    reader.required("files");
    let files = reader.plain_names("files");
    let layer = match reader.value("layer") {
        None => 1,
        // At most 255.
        Some(value) => reader.number(value, "a layer", 255) as u8,
    };
    Library { files, layer }
}

/// A function, and where each of its symbols stands.
fn function(reader: &mut TableReader<'_, '_>, result: ResultKind) -> (Function, Vec<Range<usize>>) {
    reader.required("symbols");
    let (symbols, places): (Vec<_>, Vec<_>) = reader.names("symbols").into_iter().unzip();
    for (symbol, at) in symbols.iter().zip(&places) {
        if glob::is_pattern(symbol) && symbol.chars().all(|c| c == '*' || c == '?') {
            let message = format!("`{symbol}` would probe every function of a library");
            reader.error(at.clone(), message);
        }
    }
    reader.required("kind");
    let kind = reader.choice("kind", CallKind::NAMED, CallKind::Host);
    let role = role(reader, kind);
    let (args, args_at) = reader.fields("args", &SYNTAX);
    let (out, out_at) = reader.fields("out", &SYNTAX);
    let full = program(reader, &args, &out, &[args_at, out_at].concat());
    let entry_only = match out.as_slice() {
        [] => full.clone(),
        _ => ProbeProgram::new(&args, &[]).unwrap_or_default(),
    };
    let function = Function {
        symbols,
        kind,
        role,
        result: reader.choice("result", ResultKind::NAMED, result),
        exit: exit(reader, !out.is_empty()),
        nothrow: reader.boolean("nothrow", false),
        stack: reader.boolean("stack", kind.wants_stack()),
        hands_out: reader.text("hands_out"),
        fills: reader.plain_names("fills"),
        detail: reader.boolean("detail", false),
        line: reader.line(),
        args,
        out,
        entry_only,
        full,
    };
    (function, places)
}

fn role(reader: &mut TableReader<'_, '_>, kind: CallKind) -> Option<ProbeRole> {
    let value = reader.value("role")?;
    let role = reader.choice("role", ProbeRole::NAMED, ProbeRole::Retain);
    if !role.is_of(kind) {
        let (role, kind) = (role.name(), kind.name());
        let text = format!("a function of the kind `{kind}` cannot have the role `{role}`");
        reader.error(value.span(), text);
    }
    Some(role)
}

fn exit(reader: &mut TableReader<'_, '_>, reads: bool) -> Exit {
    let default = if reads { Exit::Needed } else { Exit::Useful };
    let exit = reader.choice("exit", Exit::NAMED, default);
    if reads && exit == Exit::Never {
        let message = "`out` is read at the exit, so `exit` must not be \"never\"";
        reader.error(reader.span_of("exit"), message);
    }
    exit
}

fn program(
    reader: &mut TableReader<'_, '_>,
    args: &[Field],
    out: &[Field],
    at: &[Range<usize>],
) -> ProbeProgram {
    for ((index, field), at) in args.iter().chain(out).enumerate().zip(at) {
        let mut before = args.iter().chain(out).take(index);
        if before.any(|other| other.name == field.name) {
            let message = format!("value `{}` is defined twice", field.name);
            reader.error(at.clone(), message);
        }
    }
    ProbeProgram::new(args, out).unwrap_or_else(|(index, message)| {
        reader.error(at.get(index).cloned().unwrap_or_default(), message);
        ProbeProgram::default()
    })
}
