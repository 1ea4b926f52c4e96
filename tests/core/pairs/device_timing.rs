//! `--device-timing` on a virtual CUDA driver and CUPTI (`workloads/cuda_device.c`,
//! `cuda_cupti.c`): *synthetic*, with a truth file that says what ran when, for which thread's
//! call. The helper, the probes and the stacks are real.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use aiprof_tests::aiprof::{binary, lost};
use aiprof_tests::folded::Folded;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::trace::{Span, Trace};
use aiprof_tests::workload::{Workshop, checked};

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("cc")];
const LIBRARY: [&str; 2] = ["-shared", "-fPIC"];

/// A piece of work, as the driver ran it.
#[derive(Clone, Debug)]
struct Work {
    name: String,
    tid: u64,
    start: u64,
    end: u64,
    stream: u64,
}

/// The programs, built.
struct Machine {
    shop: Workshop,
    program: PathBuf,
}

/// A run of a program, with or without aiprof.
struct Run {
    output: String,
    stderr: String,
    truth: Vec<Work>,
}

impl Machine {
    fn new(has_cupti: bool) -> anyhow::Result<Self> {
        let shop = Workshop::new()?;
        let own = shop.path("lib");
        std::fs::create_dir(&own)?;
        let flags = |name: &str| {
            let path = own.join(name).to_string_lossy().into_owned();
            (path, ["-ldl", "-lpthread"])
        };
        for (source, name, is_wanted) in [
            ("cuda_device.c", "libcuda.so.1", true),
            ("cuda_cupti.c", "libcupti.so.13", has_cupti),
        ] {
            let (path, more) = flags(name);
            if is_wanted {
                let all = [&LIBRARY[..], &more].concat();
                aiprof_tests::workload::compile(source, Path::new(&path), &all)?;
            }
        }
        let (cuda, _) = flags("libcuda.so.1");
        let program = shop.build("cuda_work.c", "cuda_work", &[&cuda, "-lpthread"])?;
        Ok(Self { shop, program })
    }

    /// Runs it; `options`: of aiprof, or it runs alone.
    fn run(&self, options: Option<&[&str]>, args: &[&str]) -> anyhow::Result<Run> {
        let truth = self.shop.path("truth");
        let mut command = match options {
            Some(options) => {
                let mut command = Command::new(binary()?);
                command.arg("--only").args(options).arg("--").arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        let output = command
            .args(args)
            .env("LD_LIBRARY_PATH", self.shop.path("lib"))
            .env("VCUDA_TRUTH", &truth)
            .env_remove("CUDA_INJECTION64_PATH")
            .output()?;
        let stderr = String::from_utf8(output.stderr)?;
        ensure!(output.status.success(), "{}\n{stderr}", output.status);
        Ok(Run {
            output: String::from_utf8(output.stdout)?,
            stderr,
            truth: read(&truth)?,
        })
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<Work>> {
    let text = std::fs::read_to_string(path)?;
    text.lines()
        .map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [what, name, tid, _, start, end, stream, _] = fields[..] else {
                anyhow::bail!("{line}");
            };
            let name = match what {
                "2" => "Memcpy (HtoD)",
                "3" => "Memset (Device)",
                _ => match name {
                    "_Z8spin_30Pf_30" | "matmul_200" | "lost_10" => name,
                    _ => anyhow::bail!("{line}"),
                },
            };
            Ok(Work {
                name: name.to_owned(),
                tid: tid.parse()?,
                start: start.parse()?,
                end: end.parse()?,
                stream: stream.parse()?,
            })
        })
        .collect()
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
    let machine = Machine::new(true)?;
    for rounds in ["20", "300"] {
        let out = machine.shop.path("t.json");
        let out = out.to_str().context("a path")?;
        let run = machine.run(Some(&["--device-timing", "-o", out]), &[rounds])?;
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

/// Microseconds by the function that launched it and its name.
fn by_path(folded: &Folded) -> BTreeMap<(String, String), u64> {
    let mut sums = BTreeMap::new();
    for line in &folded.lines {
        let Some(at) = line.frames.iter().position(|frame| frame == "-") else {
            continue;
        };
        let path = line.frames[..at].iter().rev();
        let path = path
            .map(String::as_str)
            .find(|name| !name.starts_with("cu"));
        let work = line.frames[at + 1].trim_end_matches("_[G]");
        let key = (path.unwrap_or("").to_owned(), work.to_owned());
        *sums.entry(key).or_insert(0) += line.value;
    }
    sums
}

#[test]
fn flame_graphs_have_the_device_s_time_below_the_path_that_launched_it() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let machine = Machine::new(true)?;
    let (live, capture) = (machine.shop.path("o.folded"), machine.shop.path("o.aiprof"));
    for out in [&live, &capture] {
        let text = out.to_str().context("a path")?;
        let run = machine.run(Some(&["--device-timing", "-o", text]), &["40", "lost"])?;
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
                lost("launches without a record of the device") == 1,
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
    let machine = Machine::new(true)?;
    let plain = machine.run(None, &["30"])?;
    let out = machine.shop.path("o.folded");
    let out = out.to_str().context("a path")?;
    let timed = machine.run(Some(&["-q", "--device-timing", "-o", out]), &["30"])?;
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
    let machine = Machine::new(false)?;
    let out = machine.shop.path("t.json");
    let out = out.to_str().context("a path")?;
    let run = machine.run(Some(&["--device-timing", "-o", out]), &["200"])?;
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
