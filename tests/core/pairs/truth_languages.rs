//! The true call chains of C++ and Rust programs and of run-time generated code.

use aiprof_tests::aiprof::{Aiprof, Run};
use aiprof_tests::chain::{check, check_reached, check_share, from_entry};
use aiprof_tests::folded::{Line, base};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::Workshop;

const CPP: [Need; 2] = [Need::Root, Need::Tool("c++")];
const C: [Need; 2] = [Need::Root, Need::Tool("cc")];
const RUST: [Need; 2] = [Need::Root, Need::Tool("rustc")];

const SECONDS: &str = "2";
/// The same where the first hundredth of a second is cut: rules are derived from generated code
/// when it has run for a while.
const LONGER: &str = "4";
const LEAST: u64 = 800;

/// Whether a chain from `main` is that of throw.cpp: the throwing functions in
/// order, each level once, then only the C++ run-time's own functions.
fn is_throwing(line: &Line) -> bool {
    let Some(names) = from_entry(line, "main") else {
        return false;
    };
    let ours = [
        "catch_near",
        "catch_far",
        "deep",
        "thrower",
        "Guard::~Guard",
    ];
    let (call, rest) = match &names[1..] {
        [] | ["work_left", ..] => return true,
        [call @ ("catch_near" | "catch_far"), rest @ ..] => (*call, rest),
        _ => return false,
    };
    let levels = rest.iter().take_while(|name| **name == "deep").count();
    let rest = &rest[levels..];
    let (thrown, rest) = match rest {
        ["thrower", rest @ ..] => (true, rest),
        _ => (false, rest),
    };
    let lawful = match (call, thrown) {
        ("catch_near", _) => levels == 0,
        ("catch_far", true) => levels == 30,
        _ => levels <= 30,
    };
    lawful && rest.iter().all(|name| !ours.contains(name))
}

/// Share of the samples that shows that a way out was sampled at all: each takes between 2 and 10 %
/// of the time, a few samples more or less.
const SEEN: f64 = 0.005;

#[test]
fn cpp_exceptions() -> anyhow::Result<()> {
    skip_unless!(&CPP);
    let shop = Workshop::new()?;
    let program = shop.build("throw.cpp", "throw", &[])?;
    let run = Aiprof::counting()
        .command(program, &[SECONDS])
        .record_one()?;
    check("throw and catch", &run.folded, LEAST, is_throwing)?;
    check_reached("thrown near", &run.folded, SEEN, |l| {
        is_throwing(l) && l.has("catch_near") && l.has("_Unwind_RaiseException")
    })?;
    check_reached("thrown far", &run.folded, SEEN, |l| {
        is_throwing(l) && l.has("catch_far") && l.has("_Unwind_RaiseException")
    })?;
    check_reached("cleaning up on the way", &run.folded, SEEN, |l| {
        is_throwing(l) && l.has("_Unwind_Resume")
    })
}

/// The part of a line's user frames that matters: from `outermost` on, suffixes
/// kept, parameter lists dropped.
fn kinds(line: &Line) -> Vec<(String, bool)> {
    line.user()
        .into_iter()
        .map(|frame| (base(frame).to_owned(), frame.ends_with("_[i]")))
        .skip_while(|(name, _)| name != "main")
        .skip(1)
        .collect()
}

fn record_inlines(option: Option<&str>) -> anyhow::Result<Run> {
    let shop = Workshop::new()?;
    let program = shop.build("inlines.cpp", "inlines", &["-g"])?;
    let mut aiprof = Aiprof::counting();
    if let Some(option) = option {
        aiprof = aiprof.option(option);
    }
    aiprof.command(program, &[SECONDS]).record_one()
}

#[test]
fn cpp_inlined_functions() -> anyhow::Result<()> {
    skip_unless!(&CPP);
    let run = record_inlines(None)?;
    check("inlined frames", &run.folded, LEAST, |line| {
        if from_entry(line, "main").is_none() {
            return false;
        }
        let chain = kinds(line);
        let names: Vec<_> = chain.iter().map(|(n, i)| (n.as_str(), *i)).collect();
        match names.as_slice() {
            [] | [("work_left", _), ..] => true,
            [("outermost", false)] | [("outermost", false), ("middle", true)] => true,
            [
                ("outermost", false),
                ("middle", true),
                (inner, true),
                burn @ ..,
            ] => {
                // The template's name carries its return type and arguments
                // or not, as the demangler likes.
                inner.contains("innermost") && matches!(burn, [] | [("burn", true)])
            }
            _ => false,
        }
    })?;
    check_reached("burn inlined three deep", &run.folded, 0.9, |l| {
        kinds(l).len() == 4
            && kinds(l)
                .last()
                .is_some_and(|last| *last == ("burn".to_owned(), true))
    })
}

#[test]
fn no_inlines_shows_real_functions_only() -> anyhow::Result<()> {
    skip_unless!(&CPP);
    let run = record_inlines(Some("--no-inlines"))?;
    check_share("real functions", &run.folded, LEAST, 1.0, |line| {
        !line.frames.iter().any(|frame| frame.ends_with("_[i]"))
    })?;
    check("real chain", &run.folded, LEAST, |line| {
        from_entry(line, "main")
            .is_some_and(|names| matches!(&names[1..], [] | ["outermost"] | ["work_left", ..]))
    })
}

/// Whether the frames are those of rusty.rs, from `run` on: generics, closure
/// and the trait's method in order, with their generic arguments.
fn is_rusty(line: &Line) -> bool {
    let user = line.user();
    let complete = ["_start", "clone3", "__clone3", "__clone", "clone"]
        .iter()
        .any(|root| user.first().is_some_and(|frame| base(frame) == *root))
        && !line.is_cut();
    let Some(at) = user.iter().position(|frame| *frame == "rusty::run") else {
        // Start and end of the program and of its thread.
        return complete && !user.iter().any(|f| f.starts_with("rusty::generic"));
    };
    let chain = [
        "rusty::generic::<u32>",
        "rusty::apply::<rusty::generic<u32>::{closure#0}>",
        WORK,
    ];
    let body = &user[at + 1..];
    let clock = |frame: &&str| frame.contains("time") || frame.contains("Instant");
    complete && (chain.starts_with(body) || body.first().is_some_and(clock))
}

/// `;` in a name becomes `:`, so that it does not split the frame.
const WORK: &str = "<rusty::Shape<[u8: 4]> as rusty::Work>::work";

#[test]
fn rust_program() -> anyhow::Result<()> {
    skip_unless!(&RUST);
    let shop = Workshop::new()?;
    let program = shop.build("rusty.rs", "rusty", &["-Csymbol-mangling-version=v0"])?;
    let run = Aiprof::counting()
        .option("--no-inlines")
        .command(program, &["2"])
        .record_one()?;
    let least = LEAST / 2;
    check("rust", &run.folded, least, is_rusty)?;
    let in_work = |l: &Line| is_rusty(l) && l.user().last() == Some(&WORK);
    check_reached("in the trait's method", &run.folded, 0.9, in_work)?;
    check_reached("in the thread", &run.folded, 0.3, |l| {
        in_work(l) && !l.has("_start")
    })?;
    check_share("demangled", &run.folded, least, 1.0, |line| {
        !line
            .frames
            .iter()
            .any(|f| f.starts_with("_ZN") || f.starts_with("_R"))
    })
}

#[test]
fn rust_legacy_name() -> anyhow::Result<()> {
    skip_unless!(&C);
    let shop = Workshop::new()?;
    let program = shop.build("legacy.c", "legacy", &[])?;
    let run = Aiprof::counting()
        .command(program, &[SECONDS])
        .record_one()?;
    // The hash is no part of the name that its author gave it.
    check("legacy name", &run.folded, LEAST, |line| {
        from_entry(line, "main").is_some_and(|names| {
            matches!(
                &names[1..],
                [] | ["foreign::Outer::work"] | ["work_left", ..]
            )
        })
    })
}

#[test]
fn rust_inlined_functions() -> anyhow::Result<()> {
    skip_unless!(&RUST);
    let shop = Workshop::new()?;
    let program = shop.build("rusty.rs", "rusty", &["-Csymbol-mangling-version=v0"])?;
    let run = Aiprof::counting().command(program, &["2"]).record_one()?;
    // Below the method lies the inlined `burn`, perhaps with core's functions
    // inlined into it in turn.
    check_share(
        "burn inlined into the method",
        &run.folded,
        LEAST / 2,
        0.9,
        |line| {
            let user = line.user();
            let at = user.iter().position(|frame| *frame == WORK);
            at.and_then(|at| user.get(at + 1))
                .is_some_and(|frame| *frame == "rusty::burn_[i]")
        },
    )
}

/// Whether the chain is main, run_jit, generated code, callback, or the beginning of that, with
/// generated frames marked as such.
fn is_jit(line: &Line) -> bool {
    if from_entry(line, "main").is_none() {
        return false;
    }
    let user = line.user();
    let at = user.iter().position(|frame| *frame == "main").unwrap_or(0);
    let chain = ["run_jit", "jit_outer_[j]", "jit_inner_[j]", "callback"];
    let body = &user[at + 1..];
    chain.starts_with(body) || body.first() == Some(&"work_left")
}

fn check_jit(mode: &str) -> anyhow::Result<Run> {
    let shop = Workshop::new()?;
    let program = shop.build("jit.c", "jit", &[])?;
    // Until then stacks are copied, and a copy does not lead through generated code.
    let run = Aiprof::counting()
        .waited_for()
        .command(program, &[LONGER, mode])
        .record_one()?;
    let map = format!("/tmp/perf-{}.map", run.truth("pid")?);
    std::fs::remove_file(map)?;
    check(&format!("jit, {mode} map"), &run.folded, LEAST, is_jit)?;
    check_reached("in generated code", &run.folded, 0.2, |l| {
        is_jit(l) && l.user().last() == Some(&"jit_inner_[j]")
    })?;
    check_reached("called back from generated code", &run.folded, 0.2, |l| {
        is_jit(l) && l.user().last() == Some(&"callback")
    })?;
    Ok(run)
}

#[test]
fn jit_with_perf_map() -> anyhow::Result<()> {
    skip_unless!(&C);
    check_jit("good").map(drop)
}

#[test]
fn corrupt_perf_map_costs_only_its_bad_lines() -> anyhow::Result<()> {
    skip_unless!(&C);
    let run = check_jit("corrupt")?;
    let map = format!("perf-{}.map", run.truth("pid")?);
    anyhow::ensure!(
        run.stderr.contains(&map),
        "no warning names {map}:\n{}",
        run.stderr
    );
    Ok(())
}
