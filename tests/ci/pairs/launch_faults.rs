//! Many threads whose calls' arguments are not in memory, while the sampler runs at
//! a high rate: every launch is counted under its own call path and kernel.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::Context as _;

use aiprof_tests::aiprof::{binary, lost};
use aiprof_tests::folded::{Folded, Line, base};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::states::waited_for;
use aiprof_tests::workload::{Workshop, checked};

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("cc")];
/// Bits of a call path's number, as faults.c has them.
const BITS: usize = 5;
/// How many bytes longer the names of every other kernel are.
const LONG: usize = 900;
const LAUNCH: &str = "zeCommandListAppendLaunchKernel";

/// The number of the call path in a launch's stack.
fn path(line: &Line) -> Option<u32> {
    let names: Vec<&str> = line.frames.iter().map(|frame| base(frame)).collect();
    let at = names.iter().position(|name| *name == "run")?;
    let steps = names.get(at + 1..at + 1 + BITS)?;
    let mut number = 0;
    for step in steps {
        number = number * 2
            + match *step {
                "zero" => 0,
                "one" => 1,
                _ => return None,
            };
    }
    (names.get(at + 1 + BITS) == Some(&LAUNCH)).then_some(number)
}

#[test]
fn faulting_arguments_under_4_khz_sampling() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let library = ["-shared", "-fPIC", "-DLIBRARY", "-fvisibility=hidden"];
    let library = shop.build("faults.c", "libze_loader.so.1", &library)?;
    let library = library.to_string_lossy();
    let program = shop.build("faults.c", "faults", &["-pthread", &library])?;
    let cpus = std::thread::available_parallelism()?.get();
    let (threads, pages) = ((8 * cpus).to_string(), shop.path("pages"));
    let capture = shop.path("out.aiprof");
    let mut command = waited_for()?;
    command.args(["--only", "-F", "4000", "--call-stacks", "1000000", "-o"]);
    command.arg(&capture).arg("--").arg(&program);
    let done = command.args([&threads, "800"]).arg(&pages).output()?;
    let stderr = String::from_utf8_lossy(&done.stderr);
    anyhow::ensure!(done.status.success(), "{}: {stderr}", done.status);
    println!("{stderr}");
    let told = String::from_utf8(done.stdout)?;
    let told = told.lines().map(|line| {
        let (kernel, count) = line.split_once(' ').context("no count")?;
        Ok((kernel, count.parse()?))
    });
    let told: BTreeMap<&str, u64> = told.collect::<anyhow::Result<_>>()?;

    let report = |options: &[&str]| -> anyhow::Result<Folded> {
        let mut command = Command::new(binary()?);
        command.args(["report", "--format", "folded"]).args(options);
        let folded = Folded::parse(&checked(command.arg(&capture))?)?;
        Ok(folded.of_comm("faults"))
    };
    let launches = report(&["--events", "launches"])?;
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    let mut cut = 0;
    for line in &launches.lines {
        let name = line.frames.last().map_or("", |leaf| base(leaf));
        let kernel = name.trim_end_matches('x');
        let odd = kernel.ends_with(['1', '3', '5', '7', '9']);
        let long = name.len() - kernel.len();
        assert_eq!(long, if odd { LONG } else { 0 }, "a name is cut: {name}");
        *seen.entry(kernel).or_default() += line.value;
        match path(line) {
            Some(number) => assert_eq!(kernel, format!("k_{number}"), "{line:?}"),
            // The first ones of a thread, before its tables are there.
            None if line.is_cut() => cut += line.value,
            None => panic!("a wrong stack: {line:?}"),
        }
    }
    let all: u64 = told.values().sum();
    println!("{all} launches, {cut} stacks cut");
    assert_eq!(seen, told, "{stderr}");
    assert!(cut as f64 <= 0.01 * all as f64, "{cut} of {all} cut");
    assert_eq!(lost(&stderr, "calls dropped"), 0, "{stderr}");

    // What the sampler saw meanwhile is as whole, and as right.
    let samples = report(&["--weight", "samples"])?;
    let in_threads = samples.filter(|line| line.has("run"));
    let total = in_threads.total();
    let whole = in_threads.filter(|line| !line.is_cut()).total();
    println!("{whole} of {total} samples in the threads are whole");
    anyhow::ensure!(total > 500, "only {total} samples");
    anyhow::ensure!(whole as f64 >= 0.99 * total as f64, "{whole} of {total}");
    for line in &in_threads.lines {
        if line.has(LAUNCH) && !line.is_cut() {
            anyhow::ensure!(path(line).is_some(), "a wrong stack: {line:?}");
        }
    }
    Ok(())
}
