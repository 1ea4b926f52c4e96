//! The true call chains of C++ and Rust programs and of run-time generated code.

use aiprof_tests::aiprof::{Aiprof, Run};
use aiprof_tests::chain::{check, check_reached, check_share, from_entry};
use aiprof_tests::folded::{Line, base};
use aiprof_tests::need::{Need, turn};
use aiprof_tests::workload::Workshop;

const CPP: [Need; 2] = [Need::Root, Need::Tool("c++")];
const C: [Need; 2] = [Need::Root, Need::Tool("cc")];
const RUST: [Need; 2] = [Need::Root, Need::Tool("rustc")];

const SECONDS: &str = "2";
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

#[test]
fn cpp_exceptions() -> anyhow::Result<()> {
    let Some(_turn) = turn("cpp_exceptions", &CPP)? else {
        return Ok(());
    };
    let shop = Workshop::new()?;
    let program = shop.build("throw.cpp", "throw", &[])?;
    let run = Aiprof::counting()
        .command(program, &[SECONDS])
        .record_one()?;
    check("throw and catch", &run.folded, LEAST, is_throwing)?;
    check_reached("thrown near", &run.folded, 0.05, |l| {
        is_throwing(l) && l.has("catch_near") && l.has("_Unwind_RaiseException")
    })?;
    check_reached("thrown far", &run.folded, 0.05, |l| {
        is_throwing(l) && l.has("catch_far") && l.has("_Unwind_RaiseException")
    })?;
    check_reached("cleaning up on the way", &run.folded, 0.05, |l| {
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
    let Some(_turn) = turn("cpp_inlined_functions", &CPP)? else {
        return Ok(());
    };
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
    let Some(_turn) = turn("no_inlines_shows_real_functions_only", &CPP)? else {
        return Ok(());
    };
    let run = record_inlines(Some("--no-inlines"))?;
    check_share("real functions", &run.folded, LEAST, 1.0, |line| {
        !line.frames.iter().any(|frame| frame.ends_with("_[i]"))
    })?;
    check("real chain", &run.folded, LEAST, |line| {
        from_entry(line, "main")
            .is_some_and(|names| matches!(&names[1..], [] | ["outermost"] | ["work_left", ..]))
    })
}

/// The frames of rusty.rs from its `run` on: generics and the trait in order.
/// The closure and `burn` are there if they were not inlined away by name.
fn check_rust(mangling: &str, generic: &str, work: &str) -> anyhow::Result<()> {
    let shop = Workshop::new()?;
    let flag = format!("-Csymbol-mangling-version={mangling}");
    let program = shop.build("rusty.rs", "rusty", &[&flag])?;
    let run = Aiprof::counting()
        .option("--no-inlines")
        .command(program, &["1"])
        .record_one()?;
    let right = |line: &Line| {
        let user = line.user();
        let from = |name: &str| user.iter().position(|frame| frame.contains(name));
        let complete = ["_start", "clone3", "__clone3", "__clone", "clone"]
            .iter()
            .any(|root| base(user[0]) == *root);
        let Some(at) = from("rusty::run") else {
            // Start and end of the program and of its thread.
            return complete && !line.is_cut() && from("rusty::generic").is_none();
        };
        let body = &user[at + 1..];
        let apply = |frame: &&str| frame.contains("rusty::apply");
        let closure = |frame: &&str| frame.contains("{closure") && frame.contains("rusty");
        complete
            && !line.is_cut()
            && match body {
                [g, rest @ ..] if g.contains(generic) => match rest {
                    [] => true,
                    [a, rest @ ..] if apply(a) => match rest {
                        [] => true,
                        [c, rest @ ..] if closure(c) => rest.first().is_none_or(|w| *w == work),
                        [w, ..] => *w == work,
                    },
                    // `apply` may end in a jump to the closure's code.
                    [..] => false,
                },
                [clock, ..] => clock.contains("time") || clock.contains("Instant"),
                [] => true,
            }
    };
    check(&format!("rust {mangling}"), &run.folded, LEAST, right)?;
    check_reached(
        &format!("rust {mangling}: in the trait's work"),
        &run.folded,
        0.9,
        |l| right(l) && l.user().contains(&work),
    )?;
    check_reached(
        &format!("rust {mangling}: in the thread"),
        &run.folded,
        0.3,
        |l| right(l) && l.user().contains(&work) && !l.has("_start"),
    )?;
    check_share(
        &format!("rust {mangling}: demangled"),
        &run.folded,
        LEAST,
        1.0,
        |line| {
            !line
                .frames
                .iter()
                .any(|f| f.starts_with("_ZN") || f.starts_with("_R"))
        },
    )
}

#[test]
fn rust_legacy_names() -> anyhow::Result<()> {
    let Some(_turn) = turn("rust_legacy_names", &RUST)? else {
        return Ok(());
    };
    // `;` in a name becomes `:`, so that it does not split the frame.
    check_rust(
        "legacy",
        "rusty::generic",
        "<rusty::Shape<[u8: 4]> as rusty::Work>::work",
    )
}

#[test]
fn rust_v0_names() -> anyhow::Result<()> {
    let Some(_turn) = turn("rust_v0_names", &RUST)? else {
        return Ok(());
    };
    check_rust(
        "v0",
        "rusty::generic::<u32>",
        "<rusty::Shape<[u8: 4]> as rusty::Work>::work",
    )
}

/// Whether the chain is main, run_jit, generated code, callback, as far as the
/// sample got, with generated frames marked so.
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
    let run = Aiprof::counting()
        .command(program, &[SECONDS, mode])
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
    let Some(_turn) = turn("jit_with_perf_map", &C)? else {
        return Ok(());
    };
    check_jit("good").map(drop)
}

#[test]
fn corrupt_perf_map_costs_only_its_bad_lines() -> anyhow::Result<()> {
    let Some(_turn) = turn("corrupt_perf_map_costs_only_its_bad_lines", &C)? else {
        return Ok(());
    };
    let run = check_jit("corrupt")?;
    let map = format!("perf-{}.map", run.truth("pid")?);
    anyhow::ensure!(
        run.stderr.contains(&map),
        "no warning names {map}:\n{}",
        run.stderr
    );
    Ok(())
}
