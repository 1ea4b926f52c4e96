//! Recordings of devices that keep no records: which kernels ran, how often, when. They are
//! compared with the truth files of the virtual Level Zero driver and the log of an OpenCL program
//! on PoCL.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

use aiprof_tests::aiprof::binary;
use aiprof_tests::level_zero::driver::{Driver, Exports, Machine, NEEDS};
use aiprof_tests::level_zero::module::Module;
use aiprof_tests::level_zero::program::{Account, build_paths, build_work};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::states::waited_for;
use aiprof_tests::trace::{Span, Trace, number};
use aiprof_tests::truth::{Exec, Kind, Truth};
use aiprof_tests::workload::{Workshop, checked, source_path};

/// A tick of the virtual device's clock, and the nanoseconds that a nested span is
/// longer than it is.
const TICK_NS: u64 = 53;

/// What was run on a device.
#[derive(Clone, Debug)]
struct Ran {
    name: String,
    start: u64,
    end: u64,
}

/// A recording's spans of devices: those that the program timed, and those that are bounds.
struct Shown {
    begin: u64,
    timed: Vec<Span>,
    bounds: Vec<Span>,
}

impl Shown {
    fn read(capture: &Path, trace: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(binary()?);
        checked(command.arg("report").arg(capture).arg("-o").arg(trace))?;
        let trace = Trace::read(trace)?;
        let begin = trace.start_ns()?;
        let (bounds, others) = trace
            .spans
            .into_iter()
            .partition(|span| span.category == "estimated");
        let of_devices = ["kernel", "gpu_memcpy", "gpu_memset"];
        let mut timed: Vec<Span> = others;
        timed.retain(|span| of_devices.contains(&span.category.as_str()));
        Ok(Self {
            begin,
            timed,
            bounds,
        })
    }

    /// Checks one kernel's spans against what was run; gives how many were timed.
    fn check(&self, name: &str, mut runs: Vec<Ran>) -> anyhow::Result<usize> {
        runs.sort_by_key(|run| run.start);
        // Spans that must have begun first take the first run that they can be of: if
        // there is a way to give each its own, this finds it.
        let within = |span: &Span| {
            let us = span.args["begin_within_us"].as_f64().unwrap_or(0.0);
            (us * 1000.0) as u64 + TICK_NS
        };
        let timed = self.timed.iter().filter(|span| span.name == name);
        let mut timed: Vec<&Span> = timed.collect();
        timed.sort_by_key(|span| span.start + within(span));
        let count = timed.len();
        for span in timed {
            let start = self.begin + span.start;
            let is_it = |run: &Ran| {
                let length = (run.end - run.start).abs_diff(span.end - span.start);
                run.start.abs_diff(start) <= within(span) && length <= 2 * TICK_NS
            };
            let at = runs.iter().position(is_it).with_context(|| {
                let runs: Vec<_> = runs.iter().take(9).collect();
                format!("at {start} nothing ran that is like {span:?}: {runs:?}")
            })?;
            runs.remove(at);
        }
        let bounds: Vec<_> = self
            .bounds
            .iter()
            .filter(|span| span.name == name)
            .collect();
        let launches = bounds.iter().map(|span| number(&span.args["launches"]));
        let launches: u64 = launches.sum::<anyhow::Result<u64>>()?;
        assert_eq!(launches, runs.len() as u64, "launches of {name}");
        for run in runs {
            let around = |span: &&&Span| {
                self.begin + span.start <= run.start && run.end <= self.begin + span.end
            };
            anyhow::ensure!(
                bounds.iter().any(|span| around(&span)),
                "nothing around {run:?}, counted from {}: {bounds:#?}",
                self.begin
            );
        }
        Ok(count)
    }

    /// Names of all spans.
    fn names(&self) -> Vec<&str> {
        let all = self.timed.iter().chain(&self.bounds);
        let mut names: Vec<_> = all.map(|span| &*span.name).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// Launches by name in a report of `analyze`: those that have times, and all.
fn analysed(shop: &Workshop, input: &Path) -> anyhow::Result<BTreeMap<String, (u64, u64)>> {
    let output = shop.path("analysed.json");
    let mut command = Command::new(binary()?);
    checked(command.arg("analyze").arg(input).arg("-o").arg(&output))?;
    let report = std::fs::read(shop.path("analysed_report.json"))?;
    let report: Value = serde_json::from_slice(&report)?;
    let mut found: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for kernel in report["kernels"].as_array().context("no kernels")? {
        let name = kernel["name"].as_str().context("no name")?.to_owned();
        let calls = number(&kernel["lengths"]["calls"])?;
        let (timed, all) = found.entry(name).or_default();
        *timed += calls;
        *all += calls;
    }
    for row in report["untimed_launches"].as_array().context("no rows")? {
        let name = row["name"].as_str().context("no name")?.to_owned();
        found.entry(name).or_default().1 += number(&row["launches"])?;
    }
    Ok(found)
}

/// Records a Level Zero program and holds the recording against the driver's truth.
/// How many kernels were timed.
fn check_level_zero(program: &Path, mode: &[&str]) -> anyhow::Result<usize> {
    let shop = Workshop::new()?;
    let [truth, capture] = ["truth.json", "recorded.aiprof"].map(|name| shop.path(name));
    let machine = Machine::new(&Driver::build(Exports::All)?).truth(&truth);
    let module = Module::usual().write(&shop.path("module.zebin"))?;
    let mut command = machine.command(&binary()?);
    command.args(["--only", "-o"]).arg(&capture).arg("--").arg(program);
    command.args(mode);
    let output = checked(command.arg(format!("module={}", module.display())))?;
    let mut launched: BTreeMap<String, u64> = BTreeMap::new();
    for (kernel, n) in Account::read(&output)?.iter().flat_map(|a| &a.launches) {
        *launched.entry(kernel.clone()).or_default() += n;
    }
    let truth = Truth::read(&truth)?;
    let shown = Shown::read(&capture, &shop.path("trace.json"))?;
    let mut timed = BTreeMap::new();
    for (kernel, &count) in &launched {
        let is_it =
            |exec: &&Exec| exec.kind == Kind::Kernel && exec.kernel.as_ref() == Some(kernel);
        let runs = truth.execs.iter().filter(is_it);
        let runs: Vec<_> = runs
            .map(|exec| Ran {
                name: kernel.clone(),
                start: exec.start_ns,
                end: exec.end_ns,
            })
            .collect();
        anyhow::ensure!(runs.len() as u64 >= count, "{} of {count}", runs.len());
        let all = runs.len() as u64;
        let known = shown
            .check(kernel, runs)
            .with_context(|| format!("{mode:?}"))?;
        timed.insert(kernel.clone(), (known as u64, all));
    }
    // `analyze` counts the same, of the capture and, where there is all, of both traces.
    let has_all = timed.values().any(|(known, _)| *known > 0);
    let inputs = ["recorded.aiprof", "trace.json", "trace.pftrace"];
    for name in inputs.into_iter().take(if has_all { 3 } else { 1 }) {
        let input = shop.path(name);
        if !input.exists() {
            let mut command = Command::new(binary()?);
            checked(command.arg("report").arg(&capture).arg("-o").arg(&input))?;
        }
        let mut found = analysed(&shop, &input)?;
        found.retain(|name, _| launched.contains_key(name));
        assert_eq!(found, timed, "{name} of {mode:?}");
    }
    Ok(timed.values().map(|(known, _)| *known as usize).sum())
}

#[test]
fn launches_of_level_zero_are_as_the_driver_ran_them() -> anyhow::Result<()> {
    let needs = [&NEEDS[..], &[Need::Root]].concat();
    skip_unless!(&needs);
    let (work, paths) = (build_work()?, build_paths()?);
    for (program, mode, has_times) in [
        (&work, &["basic", "rounds=20"][..], false),
        (&work, &["newer", "rounds=5"], false),
        (&work, &["paths", "rounds=2"], false),
        (&work, &["threads", "launches=50"], false),
        (&work, &["fork", "children=4"], false),
        (&work, &["reuse", "rounds=4"], false),
        (
            &paths,
            &["launch", "launches=200", "sync=7", "kernels=path"],
            false,
        ),
        (
            &paths,
            &["launch", "launches=200", "sync=0", "threads=2", "queues=2"],
            false,
        ),
        (&paths, &["launch", "launches=200", "leave=1"], false),
        (
            &paths,
            &["launch", "launches=300", "sync=10", "events=1", "clock=1"],
            true,
        ),
        // Read long after, of several queues, by processes at once.
        (
            &paths,
            &[
                "launch",
                "launches=120",
                "sync=6",
                "events=1",
                "read_us=3000",
                "queues=3",
            ],
            true,
        ),
        (
            &paths,
            &[
                "launch",
                "launches=90",
                "sync=9",
                "events=1",
                "clock=1",
                "forks=2",
            ],
            true,
        ),
    ] {
        let timed = check_level_zero(program, mode)?;
        assert_eq!(timed > 0, has_times, "{mode:?}: {timed} with times");
    }
    Ok(())
}

/// The program reads when its commands ran: so does aiprof. That commands whose times are not read
/// lie within bounds is in device_timing_cl.rs.
#[test]
fn launches_of_opencl_are_as_the_program_read_them() -> anyhow::Result<()> {
    let needs = [
        Need::Root,
        Need::Tool("cc"),
        Need::Path("/usr/include/CL/cl.h"),
        Need::Path("/etc/OpenCL/vendors/pocl.icd"),
    ];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let program = shop.build("cl_work.c", "cl_work", &["-lOpenCL"])?;
    let (capture, log) = (shop.path("recorded.aiprof"), shop.path("times"));
    let mut command = waited_for()?;
    command.current_dir(shop.path(""));
    command.env("CL_WORK_TIMES", &log);
    command.args(["--only", "-o"]).arg(&capture).arg("--").arg(program);
    command
        .arg("Portable Computing")
        .arg(source_path("kernels.cl"));
    checked(command.args(["60", "no-check"]))?;
    let mut runs: BTreeMap<String, Vec<Ran>> = BTreeMap::new();
    for line in std::fs::read_to_string(&log)?.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [name, start, end] = words[..] else {
            anyhow::bail!("{line}");
        };
        let ran = Ran {
            name: name.to_owned(),
            start: start.parse()?,
            end: end.parse()?,
        };
        runs.entry(ran.name.clone()).or_default().push(ran);
    }
    anyhow::ensure!(runs.len() > 1 && runs.values().map(Vec::len).sum::<usize>() >= 60);
    let shown = Shown::read(&capture, &shop.path("trace.json"))?;
    let found = analysed(&shop, &capture)?;
    for (kernel, runs) in runs {
        let count = runs.len() as u64;
        let timed = shown.check(&kernel, runs)? as u64;
        assert_eq!(timed, count, "{:?}", shown.names());
        assert_eq!(found.get(&kernel), Some(&(count, count)), "{kernel}");
    }
    Ok(())
}
