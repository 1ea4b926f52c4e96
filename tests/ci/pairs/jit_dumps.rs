//! Names of code that is generated at run time, moves, and has its memory used again. They come
//! from jitdump files of node, and of a program that prints what ran where.

use aiprof_tests::aiprof::{Aiprof, Run};
use aiprof_tests::chain::{check, check_reached, from_entry};
use aiprof_tests::folded::{Line, base};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::pprof;
use aiprof_tests::workload::{Workshop, checked, source_path};
use std::collections::BTreeSet;

const C: [Need; 2] = [Need::Root, Need::Tool("cc")];
const NODE: [Need; 2] = [Need::Root, Need::Tool("node")];

const SECONDS: &str = "2";
const LEAST: u64 = 800;
const NAMES: [&str; 4] = ["alpha", "beta", "gamma", "delta"];

/// Whether the generated function has the name of the function that it calls, if it
/// does: they are generated for one another. Where the walk went on to is not judged here.
fn is_true(line: &Line) -> bool {
    let user = line.user();
    let at = user
        .iter()
        .position(|f| f.ends_with("_[j]") || *f == "[jit]");
    match at.map(|at| &user[at..]) {
        None => line.is_cut() || from_entry(line, "main").is_some(),
        Some([code]) => NAMES.iter().any(|name| *code == format!("{name}_[j]")),
        Some([code, truth]) => base(truth) == format!("{}_truth", base(code)),
        Some(_) => false,
    }
}

fn record(mode: &str) -> anyhow::Result<Run> {
    let shop = Workshop::new()?;
    let program = shop.build("jitdump.c", "jitdump", &[])?;
    let dir = shop.path("");
    let dir = dir.to_str().unwrap_or_default();
    Aiprof::counting()
        .command(program, &[SECONDS, mode, dir])
        .record_one()
}

fn check_names(mode: &str) -> anyhow::Result<()> {
    let run = record(mode)?;
    check(&format!("jitdump, {mode}"), &run.folded, LEAST, is_true)?;
    for name in NAMES {
        check_reached(&format!("in {name}"), &run.folded, 0.03, |l| {
            l.user().last() == Some(&format!("{name}_[j]").as_str())
        })?;
        check_reached(&format!("called by {name}"), &run.folded, 0.03, |l| {
            l.has(name) && l.has(&format!("{name}_truth"))
        })?;
    }
    anyhow::ensure!(!run.stderr.contains("jit-"), "{}", run.stderr);
    Ok(())
}

#[test]
fn code_that_moves_and_is_replaced() -> anyhow::Result<()> {
    skip_unless!(&C);
    check_names("now")
}

/// Programs keep megabytes of records to themselves, and write them when they end.
#[test]
fn records_that_are_written_at_the_end() -> anyhow::Result<()> {
    skip_unless!(&C);
    check_names("late")
}

/// A name at a wrong time is worse than none.
#[test]
fn times_of_another_clock_are_declined() -> anyhow::Result<()> {
    skip_unless!(&C);
    let run = record("counter")?;
    anyhow::ensure!(run.stderr.contains("processor's counter"), "{}", run.stderr);
    check("without names", &run.folded, LEAST, |line| {
        NAMES.iter().all(|name| !line.has(name))
    })?;
    check_reached("in generated code", &run.folded, 0.2, |l| l.has("[jit]"))
}

#[test]
fn source_lines_of_generated_code() -> anyhow::Result<()> {
    skip_unless!(&C);
    let shop = Workshop::new()?;
    let program = shop.build("jitdump.c", "jitdump", &[])?;
    let (dir, out) = (shop.path(""), shop.path("out.pb.gz"));
    let mut command = Aiprof::counting()
        .option("-o")
        .option(&out)
        .command(
            &program,
            &[SECONDS, "now", dir.to_str().unwrap_or_default()],
        )
        .to_command()?;
    checked(&mut command)?;
    let mut seen = BTreeSet::new();
    for place in pprof::generated(&out)? {
        for (name, file, line) in place.lines {
            let name = base(&name).to_owned();
            if NAMES.contains(&name.as_str()) {
                anyhow::ensure!(file == format!("{name}.src"), "{name}: {file}");
                seen.insert((name, line));
            }
        }
    }
    // It spins in line 10, and calls in line 20.
    let all = NAMES.map(|name| [(name.to_owned(), 10), (name.to_owned(), 20)]);
    anyhow::ensure!(
        seen.iter()
            .eq(all.as_flattened().iter().collect::<BTreeSet<_>>()),
        "{seen:?}"
    );
    Ok(())
}

/// The functions of each of the program's chains. V8 inlines some of them into others.
const CHAINS: [(char, &[&str]); 5] = [
    ('A', &["chainA", "midA", "leafA"]),
    ('B', &["chainB", "closureB"]),
    ('C', &["chainC", "recurse"]),
    ('D', &["chainD", "leafD"]),
    ('E', &["chainE", "method"]),
];

/// Checks the shares of a node program's chains against what it measured itself.
fn check_node(name: &str, option: &str) -> anyhow::Result<()> {
    skip_unless!(name, &NODE);
    let shop = Workshop::new()?;
    let script = source_path("chains.js");
    // node writes its jitdump file to the working directory.
    let (dir, script) = (shop.path(""), script.display().to_string());
    let shell = format!("cd '{}' && exec node {option} '{script}' 6", dir.display());
    let run = Aiprof::counting()
        .command("sh", &["-c", &shell])
        .record_one()?;
    let spins = run.folded.filter(|line| line.has("spin"));
    anyhow::ensure!(
        spins.total() * 10 >= run.folded.total() * 9 && spins.total() >= LEAST,
        "{} of {} samples are in the function that spins",
        spins.total(),
        run.folded.total()
    );
    let part = |chain: &[&str]| {
        let is_of = |line: &Line| chain.iter().any(|function| line.has(function));
        spins.filter(is_of).total() as f64
    };
    let all: f64 = CHAINS.iter().map(|(_, chain)| part(chain)).sum();
    anyhow::ensure!(
        all >= 0.8 * spins.total() as f64,
        "{all} of {} samples have their chain",
        spins.total()
    );
    for (letter, chain) in CHAINS {
        let truth = run.truth(&format!("share_{letter}"))?;
        let share = part(chain) / all;
        anyhow::ensure!(
            (share - truth).abs() < 0.03,
            "{letter}: {share:.3}, true: {truth:.3}\n{}",
            spins.excerpt(20)
        );
    }
    Ok(())
}

#[test]
fn node_with_a_jitdump_file() -> anyhow::Result<()> {
    check_node("node_with_a_jitdump_file", "--perf-prof")
}

#[test]
fn node_with_a_perf_map() -> anyhow::Result<()> {
    check_node("node_with_a_perf_map", "--perf-basic-prof")
}

/// Java's chains; the last is that of a method of an object.
const JAVA_CHAINS: [(char, &[&str]); 4] = [
    ('A', &["chainA", "midA", "leafA"]),
    ('B', &["chainB", "lambda$chainB$0"]),
    ('C', &["chainC", "recurse"]),
    ('D', &["chainD", "method"]),
];

/// The name of a function or method alone: `long Chains.spin(double)_[j]` is `spin`, and
/// so is `Chains.spin_[i]`.
fn function(frame: &str) -> &str {
    let name = frame.rfind("_[").map_or(frame, |at| &frame[..at]);
    let name = name.split('(').next().unwrap_or(name);
    let name = name.rsplit(' ').next().unwrap_or(name);
    name.rsplit('.').next().unwrap_or(name)
}

/// What a recording of a program with chains shows of them, as a row of a table.
fn row(label: &str, command: &str, chains: &[(char, &[&str])]) -> anyhow::Result<String> {
    let run = Aiprof::counting()
        .command("sh", &["-c", command])
        .record_one()?;
    let all = run.folded.total();
    let share = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
    let cut = run.folded.filter(Line::is_cut).total();
    let is_unnamed = |f: &String| f == "[jit]" || f == "[unmapped]" || f.starts_with("[no symbols");
    let unnamed = run.folded.filter(|l| l.frames.iter().any(is_unnamed));
    let spins = |l: &Line| l.frames.iter().any(|f| function(f) == "spin");
    let of = |l: &Line, chain: &[&str]| l.frames.iter().any(|f| chain.contains(&function(f)));
    let spins = run.folded.filter(spins);
    let parts: Vec<_> = chains
        .iter()
        .map(|(letter, chain)| (letter, spins.filter(|l| of(l, chain))))
        .collect();
    let known: u64 = parts.iter().map(|(_, part)| part.total()).sum();
    let whole: u64 = parts
        .iter()
        .map(|(_, part)| part.filter(|l| !l.is_cut()).total())
        .sum();
    let mut worst = 0.0_f64;
    for (letter, part) in &parts {
        let truth = 100.0 * run.truth(&format!("share_{letter}"))?;
        worst = worst.max((share(part.total(), known) - truth).abs());
    }
    let worst = match known * 10 >= all {
        true => format!("{worst:.1}"),
        false => "-".to_owned(),
    };
    Ok(format!(
        "| {label} | {all} | {:.1} | {:.1} | {:.1} | {:.1} | {worst} |",
        share(all - unnamed.total(), all),
        share(all - cut, all),
        share(known, all),
        share(whole, all),
    ))
}

/// Prints a table for `docs/benchmarks.md`, of `AIPROF_RUNTIME_ROUNDS` rounds.
#[test]
fn shares_of_chains_in_node_and_java() -> anyhow::Result<()> {
    let rounds = std::env::var("AIPROF_RUNTIME_ROUNDS").ok();
    let Some(rounds) = rounds.and_then(|rounds| rounds.parse::<u32>().ok()) else {
        return Ok(());
    };
    let needs = [NODE[0], NODE[1], Need::Tool("java"), Need::Tool("javac")];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let dir = shop.path("");
    let dir = dir.display();
    let mut javac = std::process::Command::new("javac");
    checked(
        javac
            .arg("-d")
            .arg(shop.path(""))
            .arg(source_path("Chains.java")),
    )?;
    let script = source_path("chains.js");
    println!(
        "| program | samples | named % | complete % | chain % | chain, complete % | worst share |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|");
    for _ in 0..rounds {
        let native = "--interpreted-frames-native-stack";
        for options in [
            String::new(),
            "--perf-basic-prof".to_owned(),
            "--perf-prof".to_owned(),
            format!("--perf-basic-prof {native}"),
            format!("--perf-prof {native}"),
        ] {
            let command = format!("cd '{dir}' && exec node {options} '{}' 8", script.display());
            println!("{}", row(&format!("`node {options}`"), &command, &CHAINS)?);
        }
        for options in [
            "",
            "-XX:+DumpPerfMapAtExit",
            "-XX:+DumpPerfMapAtExit -XX:+PreserveFramePointer",
        ] {
            let unlock = "-XX:+UnlockDiagnosticVMOptions";
            let command = format!("cd '{dir}' && exec java {unlock} {options} Chains 8");
            println!(
                "{}",
                row(&format!("`java {options}`"), &command, &JAVA_CHAINS)?
            );
        }
    }
    Ok(())
}
