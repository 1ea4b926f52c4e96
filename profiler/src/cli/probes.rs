//! `aiprof probes`: the probe tables, for people who read or write them.

use super::values::plural;
use super::{Verbosity, driver_tables, screen};
use aiprof_live::probe_files::{self, Loaded, USER_TABLES};
use aiprof_live::runtime::{Surveyed, survey};
use aiprof_model::probes::program::Field;
use aiprof_model::probes::table::{CheckedTable, Exit, Exits, Function};
use aiprof_model::probes::{CallKind, TableFile, glob, parse_file};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueHint};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Options of `aiprof probes`.
#[derive(Debug, Args)]
pub(crate) struct ProbesArgs {
    #[command(subcommand)]
    command: ProbesCommand,
}

#[derive(Debug, Subcommand)]
enum ProbesCommand {
    /// List the probe tables, and the libraries of this machine that they apply to
    ///
    /// Shows for each table which API it is for, whether it was tested, and how many of its
    /// functions the libraries of this machine have. -v lists the functions by name, including
    /// the missing ones.
    List,
    /// Check probe tables of your own, and print each mistake with its line
    Check {
        /// Probe tables, in the form of those in /etc/aiprof/probes.d
        #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
        files: Vec<PathBuf>,
    },
    /// Show what the probes of a table or function read, and where they would be placed
    ///
    /// The places on this machine are shown for functions, not for whole tables.
    Show {
        /// Table, function or ioctl (`*` stands for any text)
        #[arg(value_name = "TABLE|FUNCTION")]
        name: String,
    },
}

/// Runs the subcommand; the exit code of `check` shows whether all is well.
///
/// # Errors
/// There is nothing of that name, or stdout could not be written.
pub(crate) fn run(args: &ProbesArgs, verbosity: Verbosity) -> Result<u8> {
    let mut out = BufWriter::new(io::stdout().lock());
    let code = match &args.command {
        ProbesCommand::List => {
            let loaded = load();
            let found = survey(&loaded.tables);
            list(&loaded, &found, verbosity.is_verbose(), &mut out)?;
            0
        }
        ProbesCommand::Check { files } => u8::from(!check(files, &mut out)?),
        ProbesCommand::Show { name } => {
            let loaded = load();
            let found = survey(&loaded.tables);
            show(&loaded, &found, name, &mut out)?;
            0
        }
    };
    out.flush().context("cannot write to stdout")?;
    Ok(code)
}

fn load() -> Loaded {
    let loaded = probe_files::load(Path::new(USER_TABLES));
    for warning in &loaded.warnings {
        screen::say(&format!("aiprof: {warning}"));
    }
    loaded
}

fn list(loaded: &Loaded, found: &[Surveyed], verbose: bool, out: &mut dyn Write) -> io::Result<()> {
    for table in loaded.tables.iter() {
        write_head(table, out)?;
        for library in found {
            write_found(library, &table.name, verbose, out)?;
        }
        writeln!(out)?;
    }
    for driver in loaded.drivers.iter() {
        driver_tables::write_head(driver, out)?;
        writeln!(out)?;
    }
    Ok(())
}

/// Where a table comes from and what it was tested with.
pub(super) fn write_origin(
    source: &str,
    tested: Option<&str>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let source = match source.contains('/') {
        true => source,
        false => "built in",
    };
    write_item("from", source, out)?;
    write_item("tested", tested.unwrap_or("no"), out)
}

/// What a table is, without its functions.
fn write_head(table: &CheckedTable, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}: {}", table.name, table.api)?;
    write_origin(&table.source, table.tested.as_deref(), out)?;
    let (names, patterns) = (table.names().count(), table.patterns().count());
    let patterns = match patterns {
        0 => String::new(),
        n => format!(" and {n} pattern{}", plural(n)),
    };
    write_item("functions", &format!("{names}{patterns}"), out)?;
    for library in &table.libraries {
        let files = library.files.join(", ");
        let layer = library.layer;
        write_item("library", &format!("{files} (layer {layer})"), out)?;
    }
    if let Some(switch) = table.only_with {
        write_item("only with", switch.option(), out)?;
    }
    Ok(())
}

/// What a library of this machine has of a table.
fn write_found(
    library: &Surveyed,
    table: &str,
    verbose: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let Some(part) = library.tables.iter().find(|t| t.name == table) else {
        return Ok(());
    };
    let used = match library.processes.len() {
        0 => String::new(),
        n => format!("; in use by {n} process{}", if n == 1 { "" } else { "es" }),
    };
    let (path, here, missing) = (&library.path, part.functions.len(), part.missing.len());
    let stepped = part.functions.iter().filter(|f| !f.emulated).count();
    let cost = match stepped {
        0 => String::new(),
        n => format!(", {n} of them single-stepped"),
    };
    let text = format!(
        "{path}: {here} function{} would be probed{cost}; {missing} missing{used}",
        plural(here)
    );
    write_item("found", &text, out)?;
    if verbose {
        let names: Vec<_> = part.functions.iter().map(|f| f.symbol.as_str()).collect();
        write_item("  probed", &names.join(" "), out)?;
        write_item("  missing", &part.missing.join(" "), out)?;
    }
    Ok(())
}

pub(super) fn write_item(name: &str, text: &str, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "  {name:<11}{text}")
}

/// Prints the mistakes of each file; returns whether there are none.
fn check(files: &[PathBuf], out: &mut dyn Write) -> Result<bool> {
    let (mut good, mut mistakes) = (0, 0);
    for path in files {
        let source = path.display().to_string();
        let text = match probe_files::read(path) {
            Ok(text) => text,
            Err(error) => {
                mistakes += 1;
                writeln!(out, "{source}: {error}")?;
                continue;
            }
        };
        match parse_file(&source, &text) {
            Ok(table) => {
                good += 1;
                let words = match &table {
                    TableFile::Runtime(table) => in_short(table),
                    TableFile::Driver(table) => driver_tables::in_short(table),
                };
                writeln!(out, "{source}: {words}")?;
            }
            Err(found) => {
                mistakes += found.len();
                for mistake in found {
                    writeln!(out, "{mistake}")?;
                }
            }
        }
    }
    let bad = files.len() - good;
    if bad > 0 {
        writeln!(
            out,
            "{mistakes} mistake{} in {bad} of {} file{}",
            plural(mistakes),
            files.len(),
            plural(files.len())
        )?;
    }
    Ok(bad == 0)
}

/// A table in one line.
fn in_short(table: &CheckedTable) -> String {
    let (functions, libraries) = (table.functions.len(), table.libraries.len());
    let symbols = table.names().count() + table.patterns().count();
    format!(
        "table `{}`: {libraries} librar{}, {functions} function{} with {symbols} symbol{}",
        table.name,
        if libraries == 1 { "y" } else { "ies" },
        plural(functions),
        plural(symbols),
    )
}

fn show(loaded: &Loaded, found: &[Surveyed], name: &str, out: &mut dyn Write) -> Result<()> {
    if let Some(table) = loaded.tables.get(name) {
        write_head(table, out)?;
        for function in &table.functions {
            let symbols: Vec<_> = function.symbols.iter().map(String::as_str).collect();
            write_function(table, function, &symbols, out)?;
        }
        return Ok(());
    }
    let mut any = driver_tables::show(&loaded.drivers, name, out)?;
    for table in loaded.tables.iter() {
        for (function, symbols) in named(table, name) {
            any = true;
            write_function(table, function, &symbols, out)?;
            write_places(found, &table.name, &symbols, out)?;
        }
    }
    if !any {
        let drivers = loaded.drivers.iter().map(|t| t.name.as_str());
        let tables = loaded.tables.iter().map(|t| t.name.as_str());
        let tables: Vec<_> = tables.chain(drivers).collect();
        bail!(
            "there is no table or function {name:?}; the tables are {}",
            tables.join(", ")
        );
    }
    Ok(())
}

/// The functions that a name or pattern of the user's means, with their symbols.
fn named<'a>(table: &'a CheckedTable, name: &'a str) -> Vec<(&'a Function, Vec<&'a str>)> {
    if !glob::is_pattern(name) {
        let function = table.function(name);
        return function.map(|f| (f, vec![name])).into_iter().collect();
    }
    let matching = |function: &'a Function| {
        let symbols = function.symbols.iter().map(String::as_str);
        let symbols: Vec<_> = symbols.filter(|s| glob::matches(name, s)).collect();
        (function, symbols)
    };
    let functions = table.functions.iter().map(matching);
    functions.filter(|(_, s)| !s.is_empty()).collect()
}

fn write_function(
    table: &CheckedTable,
    function: &Function,
    symbols: &[&str],
    out: &mut dyn Write,
) -> io::Result<()> {
    writeln!(out, "\n{}", symbols.join("\n"))?;
    let (api, kind) = (&table.api, function.kind.name());
    writeln!(out, "  {api}: {kind}; {}", result_words(function))?;
    let mut how = vec![exit_words(function)];
    if function.stack {
        how.push("the caller's stack is recorded");
    }
    if function.detail {
        how.push("probed only if all calls are recorded");
    }
    if function.program(Exits::All).entry_sleeps() {
        how.push("reads memory that may not be resident");
    }
    writeln!(out, "  {}", how.join("; "))?;
    let words = |field: &Field| field.expr.to_string();
    write_fields("at the entry", &function.args, words, out)?;
    write_fields("at the exit", &function.out, words, out)?;
    if let Some(symbol) = &function.hands_out {
        writeln!(
            out,
            "  the function in `function` is then probed as {symbol}"
        )?;
    } else if function.kind == CallKind::Resolve && function.fills.is_empty() {
        writeln!(
            out,
            "  the function in `function` is then probed by its name in `name`"
        )?;
    }
    if !function.fills.is_empty() {
        let names = function.fills.join(", ");
        writeln!(
            out,
            "  fills an array of functions, which are then probed: {names}"
        )?;
    }
    Ok(())
}

/// Where functions would be probed on this machine.
fn write_places(
    found: &[Surveyed],
    table: &str,
    symbols: &[&str],
    out: &mut dyn Write,
) -> io::Result<()> {
    for library in found {
        let parts = library.tables.iter().filter(|part| part.name == table);
        let functions = parts.flat_map(|part| &part.functions);
        for function in functions.filter(|f| symbols.contains(&f.symbol.as_str())) {
            let how = match function.emulated {
                true => "emulated",
                false => "single-stepped",
            };
            let exits = match function.exits {
                0 => String::new(),
                n => format!(", {n} exit{}", plural(n)),
            };
            writeln!(
                out,
                "  {} in {} at {:#x}: {how}{exits}",
                function.symbol, library.path, function.entry
            )?;
        }
    }
    Ok(())
}

fn exit_words(function: &Function) -> &'static str {
    match (function.exit, function.nothrow) {
        (Exit::Needed, true) => "the exit is probed, by a return probe",
        (Exit::Needed, false) => "the exit is probed",
        (Exit::Useful, _) => "the exit is probed only if exact times are recorded",
        (Exit::Never, _) => "the exit is never probed",
    }
}

fn result_words(function: &Function) -> &'static str {
    use aiprof_model::probes::ResultKind as R;
    match function.result {
        R::None => "returns nothing of interest",
        R::ZeroOk => "returns 0 or an error",
        R::Level0 => "returns 0, 1 for \"not ready\", or an error",
        R::Pointer => "returns a pointer, 0 on failure",
        R::Number => "returns a number",
        R::Errno => "returns a negative number on failure",
    }
}

/// What is read, `words` for each.
pub(super) fn write_fields(
    when: &str,
    fields: &[Field],
    words: impl Fn(&Field) -> String,
    out: &mut dyn Write,
) -> io::Result<()> {
    if fields.is_empty() {
        return Ok(());
    }
    writeln!(out, "  {when}:")?;
    let width = fields.iter().map(|f| f.name.len()).max().unwrap_or(0);
    for field in fields {
        writeln!(out, "    {:<width$}  {}", field.name, words(field))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_live::runtime::{SurveyedFunction, SurveyedTable};

    fn built_in() -> Loaded {
        probe_files::load(Path::new("/nowhere"))
    }

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    fn found() -> Vec<Surveyed> {
        let function = |symbol: &str, emulated| SurveyedFunction {
            symbol: symbol.into(),
            entry: 0x1234,
            emulated,
            exits: 2,
        };
        vec![Surveyed {
            path: "/lib/libze_loader.so.1".into(),
            processes: [7].into(),
            tables: vec![SurveyedTable {
                name: "level-zero".into(),
                functions: vec![function("zeInit", true), function("zeMemFree", false)],
                missing: vec!["zeInitDrivers".into()],
            }],
            error: None,
        }]
    }

    #[test]
    fn the_list_says_what_this_machine_has() {
        let loaded = built_in();
        let short = text(|out| list(&loaded, &found(), false, out).unwrap());
        let line = "  found      /lib/libze_loader.so.1: 2 functions would be probed, 1 of them \
                    single-stepped; 1 missing; in use by 1 process\n";
        assert!(
            short.contains(line) && !short.contains("zeInitDrivers"),
            "{short}"
        );
        let long = text(|out| list(&loaded, &found(), true, out).unwrap());
        assert!(long.contains("  missing  zeInitDrivers\n"), "{long}");
        let shown = text(|out| show(&loaded, &found(), "zeMemFree", out).unwrap());
        let place = "zeMemFree in /lib/libze_loader.so.1 at 0x1234: single-stepped, 2 exits\n";
        assert!(shown.contains(place), "{shown}");
    }

    #[test]
    fn the_list_names_every_table_and_whether_it_was_tested() {
        let loaded = built_in();
        let list = text(|out| list(&loaded, &found(), false, out).unwrap());
        for table in loaded.tables.iter() {
            let block = list.split("\n\n").find(|b| b.starts_with(&table.name));
            let tested = table.tested.as_deref().unwrap_or("no");
            assert!(block.unwrap().contains(&format!("tested     {tested}")));
        }
    }

    #[test]
    fn a_function_is_shown_with_its_registers() {
        let loaded = built_in();
        let name = "zeCommandListAppendLaunchKernel";
        let shown = text(|out| show(&loaded, &[], name, out).unwrap());
        assert_eq!(
            shown,
            "\nzeCommandListAppendLaunchKernel\n  \
             Level Zero: launch; returns 0, 1 for \"not ready\", or an error\n  \
             the exit is probed only if exact times are recorded; \
             the caller's stack is recorded\n  \
             at the entry:\n    \
             list      hex: rdi\n    \
             kernel    hex: rsi\n    \
             groups_x  u32: [rdx]\n    \
             groups_y  u32: [rdx + 4]\n    \
             groups_z  u32: [rdx + 8]\n    \
             event     hex: rcx\n    \
             waits     u32: r8\n"
        );
        let several = text(|out| show(&loaded, &[], "zeCommandListAppendLaunch*", out).unwrap());
        assert!(several.contains("\nzeCommandListAppendLaunchCooperativeKernel\n"));
        assert!(several.contains("\nzeCommandListAppendLaunchKernelIndirect\n"));
        let all = text(|out| show(&loaded, &[], "level-zero", out).unwrap());
        assert!(all.len() > several.len() && all.starts_with("level-zero: Level Zero\n"));
        let error = show(&loaded, &[], "zeNothing", &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("the tables are level-zero"));
    }

    #[test]
    fn check_says_every_mistake_and_counts() {
        let folder = tempfile::tempdir().unwrap();
        let [good, bad, absent] = ["good", "bad", "absent"].map(|name| folder.path().join(name));
        let table = "name = \"t\"\napi = \"T\"\n[[library]]\nfiles = [\"libt.so*\"]\n\
                     [[function]]\nsymbols = [\"f\", \"g\"]\nkind = \"host\"\n";
        std::fs::write(&good, table).unwrap();
        std::fs::write(&bad, table.replace("host", "guest").replace("api", "apo")).unwrap();
        let mut clean = true;
        let said = text(|out| clean = check(std::slice::from_ref(&good), out).unwrap());
        assert!(clean && said.ends_with("table `t`: 1 library, 1 function with 2 symbols\n"));
        let said = text(|out| clean = check(&[good, bad, absent], out).unwrap());
        assert!(!clean);
        assert!(said.contains("bad:7:8: unknown kind `guest`"), "{said}");
        assert!(said.contains("absent: No such file"), "{said}");
        assert!(said.ends_with("\n4 mistakes in 2 of 3 files\n"), "{said}");
    }
}
