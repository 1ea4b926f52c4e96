//! Java: every stack in the method that burns has one of the few lists of methods that
//! can lead there, interpreted, compiled by C1, and by all compilers.

use aiprof_tests::aiprof::{Aiprof, Run};
use aiprof_tests::chain::{check_reached, check_share};
use aiprof_tests::folded::{Line, base};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::{Workshop, checked, source_path};
use std::path::{Path, PathBuf};
use std::process::Command;

const NEEDS: [Need; 3] = [Need::Root, Need::Tool("java"), Need::Tool("javac")];

/// Other versions of Java to run the same with, by the directories that have their `bin`,
/// with a colon between each.
const OTHERS: &str = "AIPROF_JAVA_HOMES";

const SECONDS: &str = "6";
const LEAST: u64 = 800;
/// The project's goal: complete stacks with names.
const GOAL: f64 = 0.97;

/// Options: all compilers, none, C1 only.
const MODES: [&[&str]; 3] = [&[], &["-Xint"], &["-XX:TieredStopAtLevel=1"]];

/// The methods of `JavaFrames` from the one that repeats all on.
const FRAMES: [&[&str]; 11] = [
    &[
        "mutual", "even", "odd", "even", "odd", "even", "odd", "even", "odd", "even", "odd",
    ],
    &["catching", "caught"],
    &["streaming", "lambda$streaming$"],
    &["sorting", "ordered"],
    &["reflective", "reflected"],
    &["shaped", "Square.area"],
    &["shaped", "Circle.area"],
    &["shaped", "Point.area"],
    &["holding", "held"],
    &["allocating"],
    &["many", "variables"],
];

/// The same of `Chains`; the fourth of its chains repeats a method.
const CHAINS: [&[&str]; 3] = [
    &["chainA", "midA", "leafA"],
    &["chainB", "lambda$chainB$"],
    &["chainD", "method"],
];

/// The methods of `JavaPushes` that push words, or call what does.
const PUSHES: [&str; 5] = ["compares", "sorts", "searches", "checks", "converts"];

/// Whether a function pushes words, or only `JavaPushes` calls it, and no start of a program.
fn is_pushing(frame: &str) -> bool {
    let name = base(frame);
    name.starts_with("java.util.TimSort.")
        || name.starts_with("java.util.TreeMap.merge")
        || name.starts_with("slow_subtype_check")
        || PUSHES
            .iter()
            .any(|method| name == format!("JavaPushes.{method}"))
}

/// The methods of a class, and of those in it, outermost first. A lambda's is called as its
/// method; the class that is made for it is left out, and so is the number.
fn methods<'a>(line: &'a Line, class: &str) -> Vec<&'a str> {
    let of_class = line.frames.iter().filter_map(|frame| {
        let rest = base(frame).strip_prefix(class)?;
        let name = rest.strip_prefix('.').or_else(|| rest.strip_prefix('$'))?;
        (!name.starts_with("$Lambda")).then(|| match name.starts_with("lambda$") {
            true => name.trim_end_matches(|c: char| c.is_ascii_digit()),
            false => name,
        })
    });
    of_class.collect()
}

/// Whether a stack in the method that burns came there as only it can.
fn is_true(line: &Line, class: &str, burns: &str) -> bool {
    let methods = methods(line, class);
    let Some(at) = methods.iter().position(|method| *method == burns) else {
        return false;
    };
    if line.is_cut() || methods.len() != at + 1 {
        return false;
    }
    match &methods[..at] {
        ["main" | "lambda$main$", "work", chain @ ..] => {
            class == "JavaFrames" && !chain.is_empty() && FRAMES.contains(&chain)
        }
        ["main", "timed", "chainC", rest @ ..] => {
            rest.len() == 21 && rest.iter().all(|method| *method == "recurse")
        }
        ["main", "timed", chain @ ..] => class == "Chains" && CHAINS.contains(&chain),
        _ => false,
    }
}

/// Whether a stack has frames of Java.
fn has_java(line: &Line) -> bool {
    line.frames
        .iter()
        .any(|frame| frame.ends_with("_[j]") || frame == "[jit]" || frame.starts_with("[Java"))
}

/// Whether all frames have names.
fn is_named(line: &Line) -> bool {
    let unnamed = ["[jit]", "[unmapped]", "[Java method not known]"];
    line.frames.iter().all(|f| !unnamed.contains(&f.as_str()))
}

/// The programs `java` to run with.
fn javas() -> Vec<PathBuf> {
    let others = std::env::var_os(OTHERS).unwrap_or_default();
    let others = std::env::split_paths(&others).filter(|home| !home.as_os_str().is_empty());
    let others = others.map(|home| home.join("bin").join("java"));
    std::iter::once("java".into()).chain(others).collect()
}

/// Compiles a workload for the oldest Java.
fn compile(shop: &Workshop, source: &str) -> anyhow::Result<()> {
    checked(
        Command::new("javac")
            .args(["--release", "11", "-d"])
            .arg(shop.path(""))
            .arg(source_path(source)),
    )
    .map(drop)
}

fn record(shop: &Workshop, java: &Path, mode: &[&str], run: &[&str]) -> anyhow::Result<Run> {
    let classes = shop.path("").display().to_string();
    let args = [mode, &["-cp", &classes], run].concat();
    Aiprof::counting().command(java, &args).record_one()
}

/// Runs a program with all versions in all modes, and checks all of its samples that have
/// frames of Java, and those in the method that `burns`.
fn check_program(class: &str, args: &[&str], burns: &str) -> anyhow::Result<()> {
    let shop = Workshop::new()?;
    compile(&shop, &format!("{class}.java"))?;
    let program = [&[class], args].concat();
    for java in javas() {
        for mode in MODES {
            let what = format!("{} {mode:?} {class}", java.display());
            let run = record(&shop, &java, mode, &program)?;
            let of_java = run.folded.filter(has_java);
            let whole = |line: &Line| !line.is_cut() && is_named(line);
            check_share(&format!("{what}, whole"), &of_java, LEAST, GOAL, whole)?;
            let burning = of_java.filter(|l| methods(l, class).contains(&burns));
            check_reached(&format!("{what} burns"), &of_java, 0.6, |l| {
                methods(l, class).contains(&burns)
            })?;
            check_share(&format!("{what}, true"), &burning, LEAST / 2, 0.99, |l| {
                is_true(l, class, burns)
            })?;
        }
    }
    Ok(())
}

/// Whether all that main has called is known of a stack of `JavaPushes`: it came to one of the
/// methods that only work calls.
fn is_worked(line: &Line) -> bool {
    let whole = !line.is_cut() && is_named(line) && !line.has("[caller guessed]");
    let methods = methods(line, "JavaPushes");
    whole && matches!(&methods[..], ["main", "work", method, ..] if PUSHES.contains(method))
}

/// Code that pushes words in the middle of its frame: it compares and searches strings, checks
/// types, converts numbers.
#[test]
fn java_code_that_pushes_words() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    compile(&shop, "JavaPushes.java")?;
    for java in javas() {
        for mode in [&MODES[0], &MODES[2]] {
            let what = format!("{} {mode:?} pushes", java.display());
            let run = record(&shop, &java, mode, &["JavaPushes", SECONDS])?;
            let reached = |line: &Line| line.frames.iter().any(|f| is_pushing(f));
            let pushing = run.folded.filter(reached);
            check_share(&what, &pushing, LEAST, GOAL, is_worked)?;
        }
    }
    Ok(())
}

#[test]
fn chains_of_java_methods() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    check_program("Chains", &[SECONDS], "spin")
}

/// Recursion, exceptions, streams, comparators, reflection, interfaces, locks, garbage,
/// many parameters; in two threads.
#[test]
fn ways_of_calling_java_methods() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    check_program("JavaFrames", &[SECONDS, "2"], "burn")
}

/// With a perf map too each frame is there once.
#[test]
fn a_perf_map_of_java_changes_nothing() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    compile(&shop, "Chains.java")?;
    let mode = ["-XX:+UnlockDiagnosticVMOptions", "-XX:+DumpPerfMapAtExit"];
    let run = record(&shop, Path::new("java"), &mode, &["Chains", SECONDS])?;
    let burning = run
        .folded
        .filter(|l| methods(l, "Chains").contains(&"spin"));
    check_share("with a perf map", &burning, LEAST / 2, 0.99, |l| {
        is_true(l, "Chains", "spin")
    })
}
