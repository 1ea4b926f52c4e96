//! Names of code that is generated at run time, moves, and has its memory used again:
//! from jitdump files of a program that says itself what ran where, and of node.

use aiprof_tests::aiprof::{Aiprof, Run};
use aiprof_tests::chain::{check, check_reached, from_entry};
use aiprof_tests::folded::{Line, base};
use aiprof_tests::need::{Need, turn};
use aiprof_tests::pprof;
use aiprof_tests::workload::Workshop;

const C: [Need; 2] = [Need::Root, Need::Tool("cc")];
const NODE: [Need; 2] = [Need::Root, Need::Tool("node")];

const SECONDS: &str = "2";
const LEAST: u64 = 800;
const NAMES: [&str; 4] = ["alpha", "beta", "gamma", "delta"];

/// Whether the generated function has the name of the function that it calls, if it
/// does: they are generated for one another.
fn is_true(line: &Line) -> bool {
    if from_entry(line, "main").is_none() {
        return false;
    }
    let user = line.user();
    let at = user.iter().position(|frame| *frame == "run");
    match at.map_or(&[][..], |at| &user[at + 1..]) {
        [] => true,
        [code] => NAMES.iter().any(|name| *code == format!("{name}_[j]")),
        [code, truth] => base(truth) == format!("{}_truth", base(code)),
        _ => false,
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
            l.has(&format!("{name}_[j]")) && l.has(&format!("{name}_truth"))
        })?;
    }
    anyhow::ensure!(!run.stderr.contains("jit-"), "{}", run.stderr);
    Ok(())
}

#[test]
fn code_that_moves_and_is_replaced() -> anyhow::Result<()> {
    let Some(_turn) = turn("code_that_moves_and_is_replaced", &C)? else {
        return Ok(());
    };
    check_names("now")
}

/// Programs keep megabytes of records to themselves, and write them when they end.
#[test]
fn records_that_are_written_at_the_end() -> anyhow::Result<()> {
    let Some(_turn) = turn("records_that_are_written_at_the_end", &C)? else {
        return Ok(());
    };
    check_names("late")
}

/// A name at a wrong time is worse than none.
#[test]
fn times_of_another_clock_are_declined() -> anyhow::Result<()> {
    let Some(_turn) = turn("times_of_another_clock_are_declined", &C)? else {
        return Ok(());
    };
    let run = record("counter")?;
    anyhow::ensure!(run.stderr.contains("processor's counter"), "{}", run.stderr);
    check("without names", &run.folded, LEAST, |line| {
        NAMES.iter().all(|name| !line.has(&format!("{name}_[j]")))
    })?;
    check_reached("in generated code", &run.folded, 0.2, |l| l.has("[jit]"))
}

#[test]
fn source_lines_of_generated_code() -> anyhow::Result<()> {
    let Some(_turn) = turn("source_lines_of_generated_code", &C)? else {
        return Ok(());
    };
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
    aiprof_tests::workload::checked(&mut command)?;
    let mut seen = std::collections::BTreeSet::new();
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
        seen.iter().eq(all
            .as_flattened()
            .iter()
            .collect::<std::collections::BTreeSet<_>>()),
        "{seen:?}"
    );
    Ok(())
}

/// The program's functions by their letter, from the outermost on.
const CHAINS: [(char, &[&str]); 5] = [
    ('A', &["chainA", "midA", "leafA"]),
    ('B', &["chainB", "closureB"]),
    ('C', &["chainC", "recurse"]),
    ('D', &["leafD"]),
    ('E', &["chainE", "method"]),
];

/// Checks the shares of a node program's chains against what it measured itself.
fn check_node(name: &str, options: &[&str]) -> anyhow::Result<()> {
    let Some(_turn) = turn(name, &NODE)? else {
        return Ok(());
    };
    let shop = Workshop::new()?;
    let script = aiprof_tests::workload::source_path("chains.js");
    let script = script.to_str().unwrap_or_default();
    let mut args: Vec<&str> = options.to_vec();
    let dir = shop.path("");
    let dir = format!("--perf-prof-path={}", dir.to_str().unwrap_or_default());
    if options.contains(&"--perf-prof") {
        args.push(&dir);
    }
    args.extend([script, "6"]);
    let run = Aiprof::counting().command("node", &args).record_one()?;
    let spins = run.folded.filter(|l| l.has("spin_[j]"));
    let all = spins.total();
    anyhow::ensure!(all >= LEAST, "{all} samples:\n{}", run.folded.excerpt(20));
    for (letter, chain) in CHAINS {
        let truth = run.truth(&format!("share_{letter}"))?;
        let part = spins.filter(|l| {
            let user = l.user();
            let mut user = user.iter().map(|frame| base(frame));
            chain
                .iter()
                .all(|function| user.any(|frame| frame == *function))
        });
        let share = part.total() as f64 / all as f64;
        anyhow::ensure!(
            (share - truth).abs() < 0.05,
            "{letter}: {share:.3}, true: {truth:.3}\n{}",
            spins.excerpt(20)
        );
    }
    Ok(())
}

#[test]
fn node_with_a_jitdump_file() -> anyhow::Result<()> {
    check_node("node_with_a_jitdump_file", &["--perf-prof"])
}

#[test]
fn node_with_a_perf_map() -> anyhow::Result<()> {
    check_node("node_with_a_perf_map", &["--perf-basic-prof"])
}
