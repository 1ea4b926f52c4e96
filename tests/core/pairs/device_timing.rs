//! `--device-timing` on the virtual CUDA driver and CUPTI. The helper, the probes and the
//! stacks are real.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

use aiprof_tests::aiprof::{binary, lost};
use aiprof_tests::cuda::{Cuda, Work, by_path};
use aiprof_tests::folded::Folded;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::trace::{Span, Trace};
use aiprof_tests::workload::checked;

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("cc")];

/// A run of a program, with or without aiprof.
struct Run {
    output: String,
    stderr: String,
    truth: Vec<Work>,
}

/// Runs the program; `options`: of aiprof, or it runs alone.
fn run(cuda: &Cuda, options: Option<&[&str]>, args: &[&str]) -> anyhow::Result<Run> {
    let program = cuda.program.display().to_string();
    let words = [&[program.as_str()], args].concat();
    let output = cuda.command(options, &words)?.output()?;
    let stderr = String::from_utf8(output.stderr)?;
    ensure!(output.status.success(), "{}\n{stderr}", output.status);
    Ok(Run {
        output: String::from_utf8(output.stdout)?,
        stderr,
        truth: cuda.truth()?,
    })
}

/// Spans are where the driver ran the work, and lead to the call of the thread that gave it.
fn judge(trace: &Trace, truth: &[Work]) -> anyhow::Result<()> {
    let begin = trace.start_ns()?;
    let calls: BTreeMap<u64, &Span> = trace
        .calls()
        .filter_map(|call| Some((call.args["launch"].as_u64()?, call)))
        .collect();
    let mut found: BTreeMap<(u64, u64), &Span> = BTreeMap::new();
    for span in trace.device_spans() {
        let stream = span.args["stream"].as_u64().context("a stream")?;
        let before = found.insert((stream, span.start + begin), span);
        ensure!(before.is_none(), "two at once: {before:?} {span:?}");
    }
    ensure!(
        found.len() == truth.len(),
        "{} of {}",
        found.len(),
        truth.len()
    );
    for work in truth {
        let span = found.get(&(work.stream, work.start));
        let span = span.with_context(|| format!("missing: {work:?}"))?;
        ensure!(span.name == work.name, "{span:?} {work:?}");
        ensure!(span.end + begin == work.end, "{span:?} {work:?}");
        let launch = span.args["correlation"].as_u64();
        let call = launch.and_then(|launch| calls.get(&launch));
        let call = call.with_context(|| format!("no call: {span:?}"))?;
        ensure!(call.tid == work.tid, "{call:?} {work:?}");
        ensure!(call.start <= span.start, "{call:?} {span:?}");
    }
    // Each has an arrow of its own, that begins at its call.
    let arrows = trace.others.iter().filter(|event| event["cat"] == "ac2g");
    ensure!(arrows.count() == 2 * truth.len());
    Ok(())
}

#[test]
fn times_are_the_driver_s_own_and_lead_to_the_calls() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let cuda = Cuda::new("cuda_work.c", true)?;
    for rounds in ["20", "300"] {
        let out = cuda.shop.path("t.json");
        let out = out.to_str().context("a path")?;
        let run = run(&cuda, Some(&["--device-timing", "-o", out]), &[rounds])?;
        let each: usize = rounds.parse()?;
        ensure!(run.truth.len() == 12 * each, "{}", run.truth.len());
        judge(&Trace::read(Path::new(out))?, &run.truth)?;
        // Tables find the calls, too.
        let mut analyze = Command::new(binary()?);
        analyze.args(["analyze", out, "--table", "launches", "--format", "csv"]);
        let table = checked(&mut analyze)?;
        ensure!(table.lines().count() == 1 + run.truth.len(), "{table}");
        println!("{} pieces of work: all exact", run.truth.len());
    }
    Ok(())
}

#[test]
fn flame_graphs_have_the_device_s_time_below_the_path_that_launched_it() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let cuda = Cuda::new("cuda_work.c", true)?;
    let (live, capture) = (cuda.shop.path("o.folded"), cuda.shop.path("o.aiprof"));
    for out in [&live, &capture] {
        let text = out.to_str().context("a path")?;
        let run = run(&cuda, Some(&["--device-timing", "-o", text]), &["40", "lost"])?;
        let folded = match out == &live {
            true => std::fs::read_to_string(out)?,
            false => {
                let mut report = Command::new(binary()?);
                checked(report.arg("report").arg(out).args(["--format", "folded"]))?
            }
        };
        let found = by_path(&Folded::parse(&folded)?);
        let mut expected = BTreeMap::new();
        for work in run.truth.iter().filter(|work| work.name != "lost_10") {
            let path = match work.name.as_str() {
                "Memcpy (HtoD)" => "path_copy",
                "Memset (Device)" => "main",
                "matmul_200" => "path_long",
                _ => "path_short",
            };
            let key = (path.to_owned(), work.name.clone());
            *expected.entry(key).or_insert(0) += work.end - work.start;
        }
        ensure!(found.len() == expected.len(), "{found:?} {expected:?}");
        for (key, ns) in &expected {
            let us = found.get(key).copied().unwrap_or(0);
            // A stack of its own is rounded by itself.
            ensure!((us * 1000).abs_diff(*ns) <= 4000, "{key:?}: {us} {ns}");
        }
        if out == &live {
            let lost = |cause| lost(&run.stderr, cause);
            ensure!(
                lost("device records dropped inside of programs") == 1,
                "{}",
                run.stderr
            );
            ensure!(
                lost("launches without a device record") == 1,
                "{}",
                run.stderr
            );
        }
    }
    Ok(())
}

#[test]
fn the_program_does_not_notice() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let cuda = Cuda::new("cuda_work.c", true)?;
    let plain = run(&cuda, None, &["30"])?;
    let out = cuda.shop.path("o.folded");
    let out = out.to_str().context("a path")?;
    let timed = run(&cuda, Some(&["-q", "--device-timing", "-o", out]), &["30"])?;
    ensure!(
        plain.output == timed.output,
        "{} {}",
        plain.output,
        timed.output
    );
    ensure!(timed.stderr.is_empty(), "{}", timed.stderr);
    ensure!(plain.truth.len() == timed.truth.len());
    // The variable is the user's: nothing is put in its place.
    let mut command = Command::new(binary()?);
    command.args(["--device-timing", "-q", "-o", out, "--"]);
    command.args(["sh", "-c", "echo $CUDA_INJECTION64_PATH"]);
    let own = checked(command.env("CUDA_INJECTION64_PATH", "/no/such"))?;
    ensure!(own.trim() == "/no/such", "{own}");
    Ok(())
}

#[test]
fn a_program_without_cupti_is_told_of_and_runs_as_before() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let cuda = Cuda::new("cuda_work.c", false)?;
    let out = cuda.shop.path("t.json");
    let out = out.to_str().context("a path")?;
    let run = run(&cuda, Some(&["--device-timing", "-o", out]), &["200"])?;
    let refused = "processes that could not be timed (no CUPTI, or it refused)";
    ensure!(lost(&run.stderr, refused) == 1, "{}", run.stderr);
    let trace = Trace::read(Path::new(out))?;
    ensure!(trace.device_spans().is_empty());
    // Bounds are all that is known then, and hold what really happened.
    let begin = trace.start_ns()?;
    let bounds: Vec<&Span> = trace
        .spans
        .iter()
        .filter(|span| span.category == "estimated")
        .collect();
    ensure!(!bounds.is_empty(), "no bounds");
    for work in &run.truth {
        let holds =
            |span: &&&Span| span.start + begin <= work.start && work.end <= span.end + begin;
        let is_kernel = !work.name.starts_with("Mem");
        let has = bounds
            .iter()
            .filter(holds)
            .any(|span| span.name == work.name);
        ensure!(!is_kernel || has, "{work:?}");
    }
    Ok(())
}

/// All that aiprof prints.
fn told(args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(binary()?).args(args).output()?;
    Ok(String::from_utf8([output.stdout, output.stderr].concat())?)
}

/// As some drivers write them: begin and end 0, no end, an end before the begin.
#[test]
fn records_with_impossible_times_are_counted_everywhere() -> anyhow::Result<()> {
    const LOSS: &str = "device records with impossible times";
    skip_unless!(&NEEDS);
    let cuda = Cuda::new("cuda_work.c", true)?;
    let program = cuda.program.display().to_string();
    for name in ["o.folded", "o.aiprof", "o.json"] {
        let out = cuda.shop.path(name).display().to_string();
        let options = ["--device-timing", "-o", &out];
        let mut command = cuda.command(Some(&options), &[&program, "20"])?;
        let output = command.env("VCUPTI_IMPOSSIBLE", "8").output()?;
        let stderr = String::from_utf8(output.stderr)?;
        let all = cuda.truth()?.len();
        let untimed = all - all.div_ceil(8);
        let text = match name {
            "o.aiprof" => told(&["report", &out, "--format", "summary", "-o", "-"])?,
            _ => stderr,
        };
        let count = usize::try_from(lost(&text, LOSS))?;
        ensure!(count == untimed, "{name}: {count} of {untimed}: {text}");
        let others = "launches without a device record";
        ensure!(lost(&text, others) == 0, "{text}");
        if name != "o.json" {
            ensure!(text.contains("operations are not counted"), "{text}");
        }
        if name != "o.folded" {
            let text = told(&["analyze", &out])?;
            let untimed = format!("{untimed} launches without device times");
            ensure!(text.contains(&untimed), "{name}: {text}");
        }
    }
    Ok(())
}
