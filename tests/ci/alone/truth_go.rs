//! The call chains of Go programs: whole, named without symbols, through C and back.

use std::path::PathBuf;
use std::process::Command;

use aiprof_tests::aiprof::{Aiprof, Run};
use aiprof_tests::chain::{check, check_reached};
use aiprof_tests::folded::{Line, base};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::python::{Frame, interpreters};
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
    let program = shop.path(&source.replace('.', "-"));
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

/// The first stacks of a program may have this.
const NOT_KNOWN_YET: &str = "[stack cut: process not known yet]";

/// What Go's library does, by what the program called.
const IN_LIBRARY: [(&str, &[&str]); 4] = [
    (
        "calls_spin",
        &["GoSpin", "runtime.cgocallback", "main.spin"],
    ),
    (
        "calls_fill",
        &["GoFill", "runtime.cgocallback", "main.fill"],
    ),
    (
        "calls_through",
        &["GoThrough", "main.through", "runtime.asmcgocall"],
    ),
    (
        "called_back",
        &[
            "GoThrough",
            "main.through",
            "GoSpin",
            "runtime.cgocallback",
            "main.spin",
        ],
    ),
];

#[test]
fn go_in_a_library_is_called_by_c() -> anyhow::Result<()> {
    skip_unless!(&CGO);
    let shop = Workshop::new()?;
    let library = build(&shop, "golibrary.go", &["-buildmode=c-shared"])?;
    let program = shop.build("golibrary.c", "golibrary", &["-O1", "-ldl"])?;
    let run = Aiprof::counting()
        .command(program, &[library.as_os_str(), SECONDS.as_ref()])
        .record_one()?;
    let known = run.folded.filter(|line| !line.has(NOT_KNOWN_YET));
    check("whole stacks", &known, LEAST, is_whole)?;
    for (caller, inside) in IN_LIBRARY {
        let chain = [&["_start", "main"], &[caller][..]].concat();
        check_reached(caller, &run.folded, 0.02, |line| {
            has_in_order(line, &chain) && has_in_order(line, inside)
        })?;
    }
    // The runtime's own stack, on which memory is got and garbage is collected.
    let inside = [
        "_start",
        "main",
        "calls_fill",
        "main.fill",
        "runtime.systemstack",
    ];
    check_reached("on another stack", &run.folded, 0.005, |line| {
        has_in_order(line, &inside)
    })
}

#[test]
fn go_in_a_library_is_called_by_python() -> anyhow::Result<()> {
    skip_unless!(&CGO);
    let shop = Workshop::new()?;
    let library = build(&shop, "golibrary.go", &["-buildmode=c-shared"])?;
    let Some(python) = interpreters().pop() else {
        anyhow::bail!("no Python");
    };
    let script = source_path("golibrary.py");
    let args = [script.as_os_str(), library.as_os_str(), SECONDS.as_ref()];
    let run = Aiprof::counting()
        .command(&python.program, &args)
        .record_one()?;
    let functions = |line: &Line| -> Vec<String> {
        let frames = line.frames.iter().filter_map(|frame| Frame::parse(frame));
        frames.map(|frame| frame.function().to_owned()).collect()
    };
    for (caller, inside) in IN_LIBRARY {
        check_reached(caller, &run.folded, 0.02, |line| {
            let python = functions(line);
            python.iter().any(|name| name == caller) && has_in_order(line, inside) && !line.is_cut()
        })?;
    }
    // A copy of a stack is not enough to follow Go to another one before the process is known.
    let known = run.folded.filter(|line| !line.has(NOT_KNOWN_YET));
    check("whole stacks", &known, LEAST, |line| !line.is_cut())
}
