//! Device time of CUDA graphs: it stands where work was put into the graph, below the
//! function that executed it, against the virtual driver's truth (*synthetic*).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

use aiprof_tests::aiprof::binary;
use aiprof_tests::cuda::{Cuda, Work, by_path};
use aiprof_tests::folded::Folded;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::trace::{Span, Trace};
use aiprof_tests::workload::checked;

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("cc")];

/// The ways of `cuda_graphs.c`.
const MODES: [&str; 6] = ["eager", "alone", "thread", "several", "again", "child"];
const MOST_MISPLACED: f64 = 0.005;

fn expected(truth: &[Work]) -> BTreeMap<(String, String), u64> {
    let mut sums = BTreeMap::new();
    for work in truth {
        let key = (work.path.clone(), work.name.clone());
        *sums.entry(key).or_insert(0) += (work.end - work.start) / 1000;
    }
    sums
}

/// The share of the time that stands below another path.
fn misplaced(folded: &Folded, truth: &[Work]) -> f64 {
    let (found, expected) = (by_path(folded), expected(truth));
    let keys: BTreeSet<_> = found.keys().chain(expected.keys()).collect();
    let of = |sums: &BTreeMap<_, u64>, key| sums.get(key).copied().unwrap_or(0);
    let off = keys
        .into_iter()
        .map(|key| of(&found, key).abs_diff(of(&expected, key)))
        .sum::<u64>();
    let all: u64 = expected.values().sum();
    off as f64 / 2.0 / all as f64
}

/// Above the device is the function that executed the graph, and only there.
fn judge_functions(folded: &Folded) -> anyhow::Result<()> {
    for line in &folded.lines {
        let Some(at) = line.frames.iter().position(|frame| frame == "-") else {
            continue;
        };
        let is_graph = line.frames[at - 1] == "cuGraphLaunch";
        ensure!(is_graph != line.has("tail"), "{line:?}");
    }
    Ok(())
}

#[test]
fn time_of_graphs_stands_below_the_path_that_filled_them() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let cuda = Cuda::new("cuda_graphs.c", true)?;
    let program = cuda.program.display().to_string();
    for mode in MODES {
        for name in ["o.folded", "o.aiprof"] {
            let out = cuda.shop.path(name).display().to_string();
            let options = ["--device-timing", "-o", &out];
            checked(&mut cuda.command(Some(&options), &[&program, mode])?)?;
            let truth = cuda.truth()?;
            let text = match name {
                "o.folded" => std::fs::read_to_string(&out)?,
                _ => {
                    let mut report = Command::new(binary()?);
                    checked(report.args(["report", &out, "--format", "folded"]))?
                }
            };
            let folded = Folded::parse(&text)?;
            let share = misplaced(&folded, &truth);
            println!("{mode}, {name}: {:.2} % misplaced", share * 100.0);
            let found = by_path(&folded);
            ensure!(
                share <= MOST_MISPLACED,
                "{mode}: {found:?}, not {:?}",
                expected(&truth)
            );
            judge_functions(&folded)?;
        }
    }
    Ok(())
}

/// Every other work has no times that can be true: it takes its place in its graph, and the
/// others keep theirs.
#[test]
fn work_of_graphs_without_times_misplaces_no_other() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let cuda = Cuda::new("cuda_graphs.c", true)?;
    let program = cuda.program.display().to_string();
    let out = cuda.shop.path("o.folded").display().to_string();
    for mode in ["alone", "several"] {
        let options = ["--device-timing", "-o", &out];
        let mut command = cuda.command(Some(&options), &[&program, mode])?;
        checked(command.env("VCUPTI_IMPOSSIBLE", "2"))?;
        let timed: Vec<Work> = cuda.truth()?.into_iter().step_by(2).collect();
        let folded = Folded::parse(&std::fs::read_to_string(&out)?)?;
        let share = misplaced(&folded, &timed);
        println!("{mode}: {:.2} % misplaced", share * 100.0);
        let found = by_path(&folded);
        let expected = expected(&timed);
        ensure!(share <= MOST_MISPLACED, "{mode}: {found:?}, not {expected:?}");
    }
    Ok(())
}

/// Each span leads to the call that executed its graph, on the thread that made it.
fn judge_trace(trace: &Trace, truth: &[Work]) -> anyhow::Result<()> {
    let begin = trace.start_ns()?;
    let spans: BTreeMap<u64, &Span> = trace
        .device_spans()
        .into_iter()
        .map(|span| (span.start + begin, span))
        .collect();
    ensure!(spans.len() == truth.len(), "{} spans", spans.len());
    let launches: Vec<(&Span, u64, u64)> = trace
        .calls()
        .filter_map(|call| {
            let (first, last) = range(&call.args["launch"])?;
            Some((call, first, last))
        })
        .collect();
    let mut numbers = BTreeSet::new();
    for work in truth {
        let span = spans.get(&work.start).context("a span")?;
        let launch = span.args["correlation"].as_u64().context("a launch")?;
        ensure!(numbers.insert(launch), "twice: {span:?}");
        let call = launches
            .iter()
            .find(|(_, first, last)| (*first..=*last).contains(&launch));
        let (call, ..) = call.with_context(|| format!("no call: {span:?}"))?;
        let is_graph = work.path != "tail";
        ensure!((call.name == "cuGraphLaunch") == is_graph, "{call:?}");
        ensure!(call.tid == work.tid, "{call:?} {work:?}");
        ensure!(call.start <= span.start, "{call:?} {span:?}");
    }
    let arrows = trace.others.iter().filter(|event| event["cat"] == "ac2g");
    ensure!(arrows.count() == 2 * truth.len(), "arrows");
    Ok(())
}

/// `7`, or `7-19`.
fn range(value: &serde_json::Value) -> Option<(u64, u64)> {
    if let Some(one) = value.as_u64() {
        return Some((one, one));
    }
    let (first, last) = value.as_str()?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

#[test]
fn arrows_and_tables_lead_to_the_call_that_executed_the_graph() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let cuda = Cuda::new("cuda_graphs.c", true)?;
    let program = cuda.program.display().to_string();
    for mode in ["eager", "thread", "several"] {
        let out = cuda.shop.path("t.json").display().to_string();
        let options = ["--device-timing", "-o", &out];
        checked(&mut cuda.command(Some(&options), &[&program, mode])?)?;
        let truth = cuda.truth()?;
        judge_trace(&Trace::read(Path::new(&out))?, &truth)
            .with_context(|| mode.to_owned())?;
        let mut analyze = Command::new(binary()?);
        analyze.args(["analyze", &out, "--table", "launches", "--format", "csv"]);
        let table = checked(&mut analyze)?;
        ensure!(table.lines().count() == 1 + truth.len(), "{mode}: {table}");
    }
    Ok(())
}
