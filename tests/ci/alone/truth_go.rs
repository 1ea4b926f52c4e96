//! The call chains of Go programs: whole, named without symbols, through C and back.

use std::path::PathBuf;
use std::process::Command;

use aiprof_tests::aiprof::{Aiprof, Run};
use aiprof_tests::chain::{check, check_reached};
use aiprof_tests::folded::{Line, base};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::{Workshop, checked, source_path};

const GO: [Need; 2] = [Need::Root, Need::Tool("go")];
const CGO: [Need; 3] = [Need::Root, Need::Tool("go"), Need::Tool("cc")];

const SECONDS: &str = "3";
const LEAST: u64 = 800;

/// Where stacks begin: a goroutine, a thread's start and the scheduler on it, and C's
/// threads, which libc starts.
const ROOTS: [&str; 7] = [
    "runtime.goexit",
    "runtime.mstart",
    "runtime.mcall",
    "runtime.newstack",
    "runtime.rt0_go",
    "clone3",
    "_start",
];

fn build(shop: &Workshop, source: &str, flags: &[&str]) -> anyhow::Result<PathBuf> {
    let program = shop.path(source.trim_end_matches(".go"));
    checked(
        Command::new("go")
            .args(["build", "-o"])
            .arg(&program)
            .args(flags)
            .arg(source_path(source))
            .env("GOCACHE", shop.path("go-cache"))
            .env("GOFLAGS", "-mod=mod"),
    )?;
    Ok(program)
}

fn names(line: &Line) -> Vec<&str> {
    line.user().into_iter().map(base).collect()
}

/// Whether a stack is whole.
fn is_whole(line: &Line) -> bool {
    !line.is_cut() && names(line).first().is_some_and(|root| ROOTS.contains(root))
}

/// Whether a stack has these functions, in this order, others between them.
fn has_in_order(line: &Line, wanted: &[&str]) -> bool {
    let mut names = names(line).into_iter();
    wanted
        .iter()
        .all(|wanted| names.any(|name| name == *wanted))
}

fn record(program: PathBuf) -> anyhow::Result<Run> {
    let run = Aiprof::counting()
        .command(program, &[SECONDS])
        .record_one()?;
    check("whole stacks", &run.folded, LEAST, is_whole)?;
    Ok(run)
}

#[test]
fn go_without_symbols() -> anyhow::Result<()> {
    skip_unless!(&GO);
    let shop = Workshop::new()?;
    for flags in [&["-ldflags=-s"][..], &["-ldflags=-s", "-buildmode=pie"]] {
        let run = record(build(&shop, "goroutines.go", flags)?)?;
        let root = ["runtime.goexit", "runtime.main", "main.main"];
        check_reached("work", &run.folded, 0.5, |line| has_in_order(line, &root))?;
        check_reached("formatting", &run.folded, 0.02, |line| {
            has_in_order(line, &[&root[..], &["fmt.Sprintf"]].concat())
        })?;
        check_reached("allocation", &run.folded, 0.01, |line| {
            has_in_order(line, &["main.main", "runtime.mallocgc"])
        })?;
        check_reached("an inlined function", &run.folded, 0.01, |line| {
            line.user().iter().any(|frame| frame.ends_with("_[i]"))
        })?;
    }
    Ok(())
}

#[test]
fn go_and_c_call_each_other() -> anyhow::Result<()> {
    skip_unless!(&CGO);
    let shop = Workshop::new()?;
    let run = record(build(&shop, "gocalls.go", &[])?)?;
    let down = ["runtime.goexit", "main.main", "runtime.asmcgocall", "spin"];
    check_reached("C called by Go", &run.folded, 0.01, |line| {
        has_in_order(line, &down)
    })?;
    let back = [
        "runtime.goexit",
        "main.main",
        "runtime.asmcgocall",
        "back",
        "crosscall2",
        "main.goBack",
        "runtime.asmcgocall",
        "back",
        "crosscall2",
        "main.goBack",
        "main.work",
    ];
    check_reached("Go called by C called by Go", &run.folded, 0.05, |line| {
        has_in_order(line, &back)
    })
}
