//! Programs do the same with and without probes at every function of the built-in tables. The
//! test's own libraries have the names of the real ones and all their probed functions. Their
//! functions return in every possible way; their arguments point nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;

use aiprof::probes::Tables;
use aiprof::probes::table::{CheckedTable, Library};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::states::waited_for;
use aiprof_tests::trace::Trace;
use aiprof_tests::workload::{Workshop, checked};

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("c++")];
/// As many as leave_main.cpp has.
const WAYS: u64 = 5;

/// A name that a pattern matches.
fn example(pattern: &str) -> String {
    let filler = if pattern.starts_with("_Z") {
        "v"
    } else {
        "Any"
    };
    pattern.replace('*', filler).replace('?', "x")
}

/// The file names of a table's libraries, one each.
fn files(table: &CheckedTable) -> impl Iterator<Item = String> {
    let first = |library: &Library| {
        let pattern = library.files.first().cloned().unwrap_or_default();
        let name = pattern.rsplit('/').next().unwrap_or_default();
        name.replace('*', "")
    };
    let names: BTreeSet<String> = table.libraries.iter().map(first).collect();
    names.into_iter().filter(|name| !name.is_empty())
}

/// A library with all functions of a table.
fn build(shop: &Workshop, file: &str, symbols: &BTreeSet<String>) -> anyhow::Result<PathBuf> {
    let mut text = String::new();
    for (number, symbol) in symbols.iter().enumerate() {
        writeln!(text, "FUNCTION_{}(f{number}, \"{symbol}\")", number % 3)?;
    }
    let list = shop.path(&format!("list-{file}.inc"));
    std::fs::write(&list, text)?;
    let define = format!("-DFUNCTIONS=\"{}\"", list.display());
    shop.build(
        "leave_library.cpp",
        file,
        &["-shared", "-fPIC", "-w", &define],
    )
}

#[test]
fn every_function_of_the_tables_may_be_left_in_every_way() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let mut list = String::new();
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    for table in Tables::built_in().iter().filter(|t| t.only_with.is_none()) {
        let named = table.names().map(str::to_owned);
        let symbols: BTreeSet<String> = named.chain(table.patterns().map(example)).collect();
        for file in files(table) {
            let path = build(&shop, &file, &symbols)?;
            for symbol in &symbols {
                writeln!(list, "{} {symbol}", path.display())?;
                let function = table.function(symbol).context("not in its own table")?;
                // For ranges, the range itself is shown, and these calls make none.
                let is_shown = function.kind != aiprof::probes::CallKind::Range;
                if is_shown && function.exit != aiprof::probes::table::Exit::Never {
                    *expected.entry(symbol.clone()).or_default() += WAYS;
                }
            }
        }
    }
    let listed = shop.path("list");
    std::fs::write(&listed, &list)?;
    let program = shop.build("leave_main.cpp", "leave_main", &["-ldl", "-pthread"])?;
    let plain = checked(Command::new(&program).arg(&listed))?;
    let calls = list.lines().count() as u64 * WAYS;
    assert!(plain.ends_with(&format!("calls {calls}\n")), "{plain}");

    let output = shop.path("trace.json");
    let folded = shop.path("launches.folded");
    let mut last_pid = 0;
    for (options, file) in [(&["--events", "launches"][..], &folded), (&[], &output)] {
        let mut command = waited_for()?;
        command.args(options).arg("-o").arg(file);
        command.arg("--").arg(&program).arg(&listed);
        let done = command.output()?;
        let stderr = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(0), "{options:?}: {stderr}");
        let mut pids = stderr
            .lines()
            .filter_map(|line| line.strip_prefix("leave_main "));
        last_pid = pids.next().context("no pid")?.parse()?;
        let probed = String::from_utf8_lossy(&done.stdout);
        let other = plain.lines().zip(probed.lines()).find(|(a, b)| a != b);
        assert_eq!(other, None, "{options:?}: {stderr}");
        assert_eq!(plain.len(), probed.len(), "{options:?}");
        println!("{options:?}: {calls} calls\n{stderr}");
    }
    // It was no test of unprobed functions: every call has its span.
    let trace = Trace::read(&output)?;
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    // Others may use accelerators here at the same time.
    let pid = last_pid;
    for span in trace.calls().filter(|span| span.pid == pid) {
        *seen.entry(span.name.as_str()).or_default() += 1;
    }
    let all: u64 = seen.values().sum();
    println!("{} functions, {all} of {calls} calls seen", seen.len());
    let plain_names = expected
        .iter()
        .filter(|(symbol, _)| !symbol.starts_with("_Z"));
    for (symbol, times) in plain_names {
        let found = seen.get(symbol.as_str()).copied().unwrap_or(0);
        assert_eq!(found, *times, "{symbol}");
    }
    Ok(())
}
