//! The true call chains of code without unwind data.

use aiprof_tests::aiprof::{Aiprof, lost};
use aiprof_tests::chain::{check, check_share, from_entry};
use aiprof_tests::folded::{Folded, Line, base};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::Workshop;

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("cc")];

/// Seconds of CPU: about 1,000 samples at 499 Hz.
const SECONDS: &str = "2";
/// Fewest samples to judge by.
const LEAST: u64 = 500;

/// What leaves a program without unwind data, and without frame pointers.
const BARE: [&str; 3] = [
    "-fno-asynchronous-unwind-tables",
    "-fno-unwind-tables",
    "-fomit-frame-pointer",
];

/// Whether the stack is complete and lies on the way from `main` to the end of `chain`.
fn is_on_the_way(line: &Line, chain: &[&str]) -> bool {
    from_entry(line, "main").is_some_and(|names| {
        let body = names.get(1..).unwrap_or_default();
        let n = body.len().min(chain.len());
        body.get(..n) == chain.get(..n) || body.first() == Some(&"work_left")
    })
}

const FRAMES: [&str; 6] = [
    "with_realigned_entry",
    "with_alignment",
    "with_array",
    "with_big_frame",
    "with_alloca",
    "spin",
];

#[test]
fn frames_of_all_kinds_at_every_level_of_optimization() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    for level in ["-O1", "-O2", "-O3", "-Os", "-O0"] {
        let shop = Workshop::new()?;
        let mut flags = BARE.to_vec();
        flags.push(level);
        let program = shop.build("frames.c", "frames", &flags)?;
        let run = Aiprof::counting()
            .command(program, &[SECONDS])
            .record_one()?;
        // Too little of the big frame is copied to finish stacks when tables come late.
        check_share(level, &run.folded, LEAST, 0.97, |l| {
            is_on_the_way(l, &FRAMES)
        })?;
    }
    Ok(())
}

#[test]
fn assembly() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let program = shop.build("bare.c", "bare", &["-O2"])?;
    let run = Aiprof::counting()
        .command(program, &[SECONDS])
        .record_one()?;
    let chain = [
        "asm_aligned",
        "asm_pushes",
        "asm_shares",
        "asm_table",
        "asm_here",
        "asm_last",
        "spin",
    ];
    check("assembly", &run.folded, LEAST, |l| is_on_the_way(l, &chain))
}

#[test]
fn a_library_that_keeps_no_symbols() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let mut flags = BARE.to_vec();
    flags.extend(["-DHOP_A", "-s"]);
    shop.library("hop.c", "hopa", &flags)?;
    shop.library("hop.c", "hopb", &["-DHOP_B"])?;
    let program = shop.build("hop.c", "hop", &["-lhopa", "-lhopb"])?;
    let run = Aiprof::counting()
        .command(program, &[SECONDS])
        .record_one()?;
    let mut chain = ["hop_a", "hop_b"].repeat(50);
    chain.push("hop_leaf");
    check("100 hops", &run.folded, LEAST, |l| is_on_the_way(l, &chain))
}

/// Records functions that are generated at run time.
fn generated(mode: &str) -> anyhow::Result<Folded> {
    run_generated("generated.c", mode)
}

fn run_generated(source: &str, mode: &str) -> anyhow::Result<Folded> {
    let shop = Workshop::new()?;
    let program = shop.build(source, "generated", &["-O2"])?;
    let run = Aiprof::counting()
        .command(program, &["6", mode])
        .record_one()?;
    std::fs::remove_file(format!("/tmp/perf-{}.map", run.truth("pid")?))?;
    Ok(run.folded)
}

/// Whether the stack is complete, and as the program made it.
fn is_generated(line: &Line) -> bool {
    let names: Vec<String> = (0..6).map(|i| format!("generated_{i}")).collect();
    let mut chain = vec!["run"];
    chain.extend(names.iter().map(String::as_str));
    chain.push("callback");
    let makes = |line| from_entry(line, "main").is_some_and(|names| names.get(1) != Some(&"run"));
    is_on_the_way(line, &chain) || makes(line)
}

#[test]
fn generated_code_without_frame_pointers() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    check_share("stays", &generated("stays")?, LEAST, 0.97, is_generated)?;
    // Up to a second may go by until what is new is read.
    check_share("grows", &generated("grows")?, LEAST, 0.9, is_generated)
}

/// Frames of .NET's kind, whose callers are called through jumps.
#[test]
fn generated_code_called_through_jumps() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    check_share(
        "jumps",
        &run_generated("stubbed.c", "-")?,
        LEAST,
        0.97,
        |l| is_generated(l) && !l.has("[caller guessed]"),
    )
}

/// Rules of what was there before must not be believed.
#[test]
fn generated_code_that_is_replaced_all_the_time() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let samples = generated("replaced")?;
    check_share("replaced", &samples, LEAST, 1.0, |line| {
        // Before and after `main` nothing is generated.
        let begins = from_entry(line, "_dl_start").is_some();
        let ends = line.has("exit");
        let is_bare = (begins || ends) && !line.has("main");
        line.is_cut() || line.has("[caller guessed]") || is_generated(line) || is_bare
    })
}

#[test]
fn musl() -> anyhow::Result<()> {
    let needs = [Need::Root, Need::Tool("musl-gcc")];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/workloads/sorts.c");
    for strip in ["-Wl,--strip-debug", "-s"] {
        let program = shop.path("sorts");
        let status = std::process::Command::new("musl-gcc")
            .args(["-O2", "-static", strip, "-o"])
            .args([program.as_os_str(), source.as_ref()])
            .status()?;
        anyhow::ensure!(status.success(), "musl-gcc: {status}");
        let run = Aiprof::counting()
            .command(&program, &[SECONDS])
            .record_one()?;
        // musl's own functions, qsort and memcpy, call and are called.
        let named = strip != "-s";
        check(strip, &run.folded, LEAST, |line| {
            let names: Vec<&str> = line.user().iter().map(|f| base(f)).collect();
            let has = |name: &str| names.contains(&name);
            let starts = !names.contains(&"main");
            !line.is_cut() && (!named || has("sort_all") || has("work_left") || starts)
        })?;
    }
    Ok(())
}

#[test]
fn of_deep_stacks_leaf_and_root_are_kept() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let program = shop.build("depth.c", "depth", &[])?;
    for depth in ["900", "3000", "8000"] {
        let run = Aiprof::counting()
            .command(&program, &[SECONDS, depth])
            .record_one()?;
        let whole = depth == "900";
        // Too little of deep stacks is copied to finish them when tables come late.
        check_share(depth, &run.folded, LEAST, 0.97, |line| {
            let names: Vec<&str> = line.user().iter().map(|f| base(f)).collect();
            let main = names.iter().position(|f| *f == "main");
            let Some(below) = main.and_then(|at| names.get(at + 1..)) else {
                return !line.is_cut();
            };
            let cuts = |f: &&&str| f.starts_with("[stack cut: too deep");
            let downs = below.iter().filter(|f| **f == "down").count();
            let others = |f: &&str| !matches!(*f, "down" | "bottom" | "work_left");
            let strange = below.iter().filter(|f| others(f)).count();
            let cut = names.iter().filter(cuts).count();
            // A short stack is that of work_left(), or of the way down.
            let deep = downs > 1000;
            strange == cut && if whole || !deep { cut == 0 } else { cut == 1 }
        })?;
        let lost = lost(&run.stderr, "stacks cut: too deep");
        anyhow::ensure!(
            whole == (lost == 0),
            "{depth}: {lost} stacks too deep\n{}",
            run.stderr
        );
    }
    Ok(())
}
