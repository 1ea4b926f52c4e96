//! Compares the built-in tables with the C headers of the runtimes.
//!
//! `profiler/probes/abi/TABLE.txt` is the output of a C program made from the header. For
//! each function of a table, it holds where a C compiler puts its parameters, and the
//! layout of the structures they point at. Where the header is installed the program is
//! made again and must agree. To write the file anew, with another header too:
//!
//! ```text
//! AIPROF_ABI="level-zero /path/to/include" cargo test -p aiprof-model --lib abi::
//! ```

mod generate;
mod names;

use super::expr::{Expr, Place, Type, ValuePart};
use super::program::Field;
use super::table::CheckedTable;
use super::{Tables, glob};
use generate::Headers;
use names::COMPARED;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A table with headers to compare with.
struct Compared {
    table: &'static str,
    headers: Headers,
    /// What the package is called on Debian.
    package: &'static str,
    /// Names in C of values that are not the same word.
    names: &'static [(&'static str, &'static [&'static str])],
}

/// A function of a header: its parameters in order.
type Prototype = Vec<Parameter>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Parameter {
    name: String,
    /// Bytes.
    size: u64,
    /// Where each four bytes of it are: `arg2.lo`.
    at: Vec<String>,
    /// The structure that it is, or with a `*` before it points at.
    structure: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Member {
    name: String,
    offset: u64,
    size: u64,
}

/// The content of headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Abi {
    functions: BTreeMap<String, Prototype>,
    structures: BTreeMap<String, Vec<Member>>,
}

impl Abi {
    /// A function; the variants for default streams of each thread have the
    /// parameters of those without.
    fn function(&self, name: &str) -> Option<&Prototype> {
        let plain = ["_ptsz", "_ptds", "_spt"]
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix));
        let found = self.functions.get(name);
        found.or_else(|| self.functions.get(plain?))
    }

    fn parse(text: &str) -> Self {
        let mut abi = Self::default();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        for line in lines {
            let words: Vec<_> = line.split_whitespace().collect();
            match words.as_slice() {
                ["fn", name] => {
                    abi.functions.entry((*name).to_owned()).or_default();
                }
                ["param", function, name, size, structure, at @ ..] => {
                    let function = abi.functions.entry((*function).to_owned()).or_default();
                    function.push(Parameter {
                        name: (*name).to_owned(),
                        size: size.parse().unwrap(),
                        at: at.iter().map(|&at| at.to_owned()).collect(),
                        structure: (*structure).to_owned(),
                    });
                }
                ["member", structure, name, offset, size] => {
                    let members = abi.structures.entry((*structure).to_owned()).or_default();
                    members.push(Member {
                        name: (*name).to_owned(),
                        offset: offset.parse().unwrap(),
                        size: size.parse().unwrap(),
                    });
                }
                other => panic!("{other:?}"),
            }
        }
        abi
    }
}

fn file(table: &str) -> PathBuf {
    let name = format!("../../probes/abi/{table}.txt");
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn known(table: &str) -> Abi {
    let path = file(table);
    let text = std::fs::read_to_string(&path);
    Abi::parse(&text.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// Where an expression starts: the argument, the bytes of it, and what is added
/// to it if it is followed once.
fn root(expr: &Expr) -> Option<(String, Option<i64>, bool)> {
    let mut place = &expr.at.place;
    let mut offset = (expr.ty.data_format().is_some()).then_some(i64::from(expr.at.offset));
    let mut depth = u32::from(expr.ty.data_format().is_some());
    while let Place::Read(address) = place {
        depth += 1;
        offset = Some(address.offset.into());
        place = &address.place;
    }
    let part = |base: String, part: &ValuePart| match part {
        ValuePart::Whole | ValuePart::Low => format!("{base}.lo"),
        ValuePart::High => format!("{base}.hi"),
    };
    let at = match place {
        Place::Argument(n, half) => part(format!("arg{n}"), half),
        Place::Stack(n, half) => part(format!("stack{n}"), half),
        Place::Result(_) | Place::Named(_) | Place::Read(_) => return None,
    };
    Some((at, offset, depth == 1))
}

/// The size of what an expression reads, of a number.
fn size(expr: &Expr) -> Option<u64> {
    match expr.ty {
        Type::Scalar { size, .. } => Some(size.into()),
        _ => None,
    }
}

/// `hSignalEvent` to `signal_event`, without the prefix for a handle or a pointer.
fn plain(name: &str) -> String {
    let stem = ["ppfn", "pfn", "pph", "pp", "ph", "h", "p"]
        .iter()
        .find_map(|prefix| {
            let rest = name.strip_prefix(prefix)?;
            rest.starts_with(char::is_uppercase).then_some(rest)
        })
        .unwrap_or(name);
    let mut out = String::new();
    for c in stem.chars() {
        if c.is_uppercase() && !out.is_empty() && !out.ends_with('_') {
            out.push('_');
        }
        out.extend(c.to_lowercase());
    }
    out
}

impl Compared {
    fn means(&self, value: &str, c_name: &str) -> bool {
        // Headers may leave names out: place and size are compared still.
        let is_unnamed = |digits: &str| digits.parse::<u32>().is_ok();
        if c_name.strip_prefix('p').is_some_and(is_unnamed) {
            return true;
        }
        if let Some((_, names)) = self.names.iter().find(|(name, _)| *name == value) {
            return names.contains(&c_name);
        }
        plain(c_name) == value
    }

    /// What is wrong with one value of a function; nothing, it is hoped.
    fn fault(&self, abi: &Abi, function: &str, field: &Field) -> Option<String> {
        let (at, offset, once) = root(&field.expr)?;
        let prototype = abi.function(function)?;
        let Some(index) = prototype.iter().position(|p| p.at.contains(&at)) else {
            return Some(format!("there is no {at}"));
        };
        let parameter = &prototype[index];
        let Some(offset) = offset else {
            return self.by_value(abi, parameter, &at, field);
        };
        if parameter.size != 8 {
            return Some(format!("{} is no pointer", parameter.name));
        }
        let structure = parameter.structure.trim_start_matches('*');
        let Some(members) = abi.structures.get(structure) else {
            let fits = self.means(&field.name, &parameter.name) && offset % 8 == 0;
            return (!fits).then(|| format!("{} is pointed at by {}", field.name, parameter.name));
        };
        let inside = |m: &&Member| (m.offset..m.offset + m.size).contains(&offset.unsigned_abs());
        let Some(member) = members.iter().find(inside) else {
            return Some(format!("{structure} has nothing at {offset}"));
        };
        if !self.means(&field.name, &member.name) && !self.means(&field.name, &parameter.name) {
            return Some(format!("{}.{} is there", parameter.name, member.name));
        }
        let starts = member.offset == offset.unsigned_abs();
        match size(&field.expr) {
            Some(size) if once && starts && member.size != size && member.size <= 8 => {
                Some(format!("{} has {} bytes", member.name, member.size))
            }
            _ => None,
        }
    }

    fn by_value(
        &self,
        abi: &Abi,
        parameter: &Parameter,
        at: &str,
        field: &Field,
    ) -> Option<String> {
        let size = size(&field.expr)?;
        let word = parameter.at.iter().position(|a| a == at)? as u64;
        // A structure passed by value: its members count.
        if let Some(members) = abi.structures.get(&parameter.structure) {
            let member = members.iter().find(|m| m.offset == 4 * word)?;
            let fits = self.means(&field.name, &member.name) && member.size == size;
            return (!fits).then(|| format!("{}.{} is there", parameter.name, member.name));
        }
        if !self.means(&field.name, &parameter.name) {
            return Some(format!("{} is there", parameter.name));
        }
        (parameter.size != size).then(|| format!("it has {} bytes", parameter.size))
    }
}

/// The symbols that a header can know.
fn symbols(table: &CheckedTable) -> impl Iterator<Item = &str> {
    table.names().filter(|name| !glob::is_pattern(name))
}

#[test]
fn every_argument_is_where_the_c_compiler_puts_it() {
    let tables = Tables::built_in();
    for compared in COMPARED {
        let table = tables.get(compared.table).unwrap();
        let abi = known(compared.table);
        let mut faults = Vec::new();
        let mut values = 0;
        for function in &table.functions {
            for symbol in &function.symbols {
                for field in function.args.iter().chain(&function.out) {
                    values += usize::from(abi.function(symbol).is_some());
                    if let Some(fault) = compared.fault(&abi, symbol, field) {
                        let (name, text) = (&field.name, &field.text);
                        faults.push(format!("{symbol}: {name} = {text:?}: {fault}"));
                    }
                }
            }
        }
        assert!(faults.is_empty(), "{}", faults.join("\n"));
        let checked = symbols(table).filter(|s| abi.function(s).is_some());
        assert!(checked.count() > 0 && values > 0, "{}", compared.table);
    }
}

#[test]
fn a_wrong_position_offset_size_or_name_would_be_found() {
    let compared = &COMPARED[0];
    let abi = known("level-zero");
    let fault = |symbol: &str, name: &str, text: &str| {
        let expr = super::expr::parse(text).unwrap();
        let (name, text) = (name.to_owned(), text.to_owned());
        compared.fault(&abi, symbol, &Field { name, text, expr })
    };
    let launch = "zeCommandListAppendLaunchKernel";
    assert_eq!(fault(launch, "kernel", "arg1"), None);
    assert_eq!(fault(launch, "groups_y", "u32 [arg2+4]"), None);
    for (symbol, name, text) in [
        (launch, "kernel", "arg2"),
        (launch, "kernel", "u32 arg1"),
        (launch, "groups_y", "u32 [arg2+8]"),
        (launch, "groups_y", "u64 [arg2+4]"),
        (launch, "groups_z", "u32 [arg2+12]"),
        (launch, "event", "stack0"),
        (
            "zeCommandListAppendLaunchKernelWithArguments",
            "local_y",
            "u32 arg4.lo",
        ),
        ("zeMemAllocShared", "address", "[arg5]"),
        ("zeKernelCreate", "name", "text [arg1+16]"),
    ] {
        assert!(
            fault(symbol, name, text).is_some(),
            "{symbol} {name} {text}"
        );
    }
}

/// Makes the file again from the installed header. Only what that header knows can be
/// compared: it may be older than the one the file was made with.
#[test]
fn the_headers_here_agree_with_the_files() {
    let wanted = std::env::var("AIPROF_ABI").unwrap_or_default();
    let tables = Tables::built_in();
    for compared in COMPARED {
        let table = tables.get(compared.table).unwrap();
        let symbols: Vec<_> = symbols(table).collect();
        if let Some(folder) = wanted.strip_prefix(&format!("{} ", compared.table)) {
            let text = compared.headers.abi(Path::new(folder), &symbols).unwrap();
            let head = format!(
                "# Where a C compiler for x86-64 puts the parameters, and the structures they\n\
                 # point at: made from {} by the test that compares them.\n",
                compared.headers.include.join(", ")
            );
            std::fs::write(file(compared.table), head + &text).unwrap();
            continue;
        }
        let folder = Path::new(compared.headers.folder);
        let text = match compared.headers.abi(folder, &symbols) {
            Ok(text) => text,
            Err(reason) => {
                let (name, package) = (compared.table, compared.package);
                println!(
                    "skipped: the_headers_here_agree_with_the_files: {name} ({package}): {reason}"
                );
                continue;
            }
        };
        let (here, known) = (Abi::parse(&text), known(compared.table));
        assert!(!here.functions.is_empty());
        for (name, prototype) in &here.functions {
            assert_eq!(Some(prototype), known.functions.get(name), "{name}");
        }
        for (name, members) in &here.structures {
            // Newer versions may add members at the end.
            let now = &known.structures[name];
            assert_eq!(Some(members.as_slice()), now.get(..members.len()), "{name}");
        }
    }
}
