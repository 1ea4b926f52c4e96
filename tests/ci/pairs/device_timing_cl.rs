//! `--device-timing` on PoCL: against PoCL's own log of when its commands ran
//! (`POCL_TRACING`), and against the same program without aiprof.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use aiprof_tests::aiprof::{binary, lost};
use aiprof_tests::folded::Folded;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::states::waited_for;
use aiprof_tests::trace::{Span, Trace};
use aiprof_tests::workload::{Workshop, checked};

const NEEDS: [Need; 4] = [
    Need::Root,
    Need::Tool("cc"),
    Need::Path("/usr/include/CL/cl.h"),
    Need::Path("/etc/OpenCL/vendors/pocl.icd"),
];
const PLATFORM: &str = "Portable Computing";
/// How far a time may be off that was converted from one clock of the host to another.
const CLOCKS_NS: u64 = 20_000;
/// Modes of the program that time nothing themselves.
const MODES: [&str; 3] = ["ways", "threads", "release"];

/// A command, as PoCL ran it.
#[derive(Clone, Debug, Default)]
struct Ran {
    name: String,
    queue: String,
    queued: u64,
    start: u64,
    end: u64,
}

/// The program, and a layer of its own.
struct Machine {
    shop: Workshop,
    program: PathBuf,
    layer: PathBuf,
}

/// A run of the program.
struct Run {
    output: String,
    stderr: String,
    log: Vec<Ran>,
}

/// CLOCK_MONOTONIC minus CLOCK_MONOTONIC_RAW, nanoseconds.
fn apart() -> i128 {
    let now = |clock| {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the address of a timespec.
        unsafe { libc::clock_gettime(clock, &raw mut time) };
        i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
    };
    let before = now(libc::CLOCK_MONOTONIC);
    let raw = now(libc::CLOCK_MONOTONIC_RAW);
    i128::midpoint(before, now(libc::CLOCK_MONOTONIC)) - raw
}

/// Reads PoCL's log; its times are of CLOCK_MONOTONIC_RAW.
fn read(path: &Path, apart: i128) -> anyhow::Result<Vec<Ran>> {
    let mut found: BTreeMap<u64, Ran> = BTreeMap::new();
    let text = std::fs::read_to_string(path).unwrap_or_default();
    for line in text.lines().filter(|line| !line.starts_with("DEP")) {
        let fields: Vec<&str> = line.split(" | ").collect();
        let [time, event, _, queue, kind, state, ..] = fields[..] else {
            continue;
        };
        let name = match kind {
            "ndrange_kernel" | "task" => fields.last().and_then(|f| f.strip_prefix("name=")),
            "native_kernel" => Some("[kernel without a name]"),
            "read_buffer" | "read_buffer_rect" => Some("Memcpy (DtoH)"),
            "write_buffer" => Some("Memcpy (HtoD)"),
            "copy_buffer" => Some("Memcpy (DtoD)"),
            "fill_buffer" => Some("Memset (Device)"),
            "map_buffer" | "unmap_mem_object" | "unmap_buffer" => Some("Memcpy"),
            "marker" | "barrier" | "user" => continue,
            _ => anyhow::bail!("{line}"),
        };
        let time = u64::try_from(time.trim().parse::<i128>()? + apart)?;
        let number = event.trim_start_matches("EV ID ").parse()?;
        let ran = found.entry(number).or_default();
        ran.name = name.context("no name")?.to_owned();
        ran.queue = queue.to_owned();
        match state {
            "queued" => ran.queued = time,
            "running" => ran.start = time,
            "complete" => ran.end = time,
            _ => {}
        }
    }
    Ok(found.into_values().collect())
}

impl Machine {
    fn new() -> anyhow::Result<Self> {
        let shop = Workshop::new()?;
        let program = shop.build("cl_timing.c", "cl_timing", &["-lOpenCL", "-lpthread"])?;
        let layer = shop.build("cl_layer.c", "cl_layer.so", &["-shared", "-fPIC"])?;
        Ok(Self {
            shop,
            program,
            layer,
        })
    }

    /// Runs it; `options`: of aiprof, or it runs alone; `own`: variables.
    fn run(
        &self,
        options: Option<&[&str]>,
        mode: &[&str],
        own: &[(&str, &str)],
    ) -> anyhow::Result<Run> {
        let log = self.shop.path("log");
        drop(std::fs::remove_file(&log));
        let mut command = match options {
            Some(options) => {
                let mut command = waited_for()?;
                command.arg("--only").args(options).arg("--").arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        command.arg(PLATFORM).args(mode).envs(own.iter().copied());
        if mode[0] != "many" {
            command
                .env("POCL_TRACING", "text")
                .env("POCL_TRACING_OPT", &log);
        }
        let before = apart();
        let output = command.output()?;
        let after = apart();
        let stderr = String::from_utf8(output.stderr)?;
        ensure!(output.status.success(), "{}\n{stderr}", output.status);
        ensure!(before.abs_diff(after) < 10_000, "the clock is being set");
        Ok(Run {
            output: String::from_utf8(output.stdout)?,
            stderr,
            log: read(&log, i128::midpoint(before, after))?,
        })
    }

    fn trace(&self) -> anyhow::Result<String> {
        let path = self.shop.path("t.json");
        Ok(path.to_str().context("a path")?.to_owned())
    }
}

/// What is only known to lie between calls.
fn bounds(trace: &Trace) -> impl Iterator<Item = &Span> {
    let is_bound = |span: &&Span| span.category == "estimated" && span.args["api"] == "OpenCL";
    trace.spans.iter().filter(is_bound)
}

/// Spans are as long as PoCL's commands and where those ran, each one once, and lead to the
/// call that queued it.
fn judge(trace: &Trace, log: &[Ran]) -> anyhow::Result<()> {
    let begin = trace.start_ns()?;
    let calls: BTreeMap<u64, &Span> = trace
        .calls()
        .filter_map(|call| Some((call.args["launch"].as_u64()?, call)))
        .collect();
    let mut left = trace.device_spans();
    ensure!(left.len() == log.len(), "{} of {}", left.len(), log.len());
    let mut threads: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for ran in log {
        let is_it = |span: &&Span| {
            span.name == ran.name
                && (span.start + begin).abs_diff(ran.start) <= CLOCKS_NS
                && span.end - span.start == ran.end - ran.start
        };
        let queued = ran.queued - begin;
        let call = |span: &Span| {
            let launch = span.args["correlation"].as_u64();
            launch.and_then(|launch| calls.get(&launch)).copied()
        };
        // A call whose end was not seen ends before its thread's next one begins.
        let end = |call: &Span| match call.args["end"] == "not seen" {
            true => {
                let later = |c: &&&Span| c.tid == call.tid && c.start > call.start;
                let next = calls.values().filter(later).map(|c| c.start).min();
                next.unwrap_or(u64::MAX / 2)
            }
            false => call.end,
        };
        // How far from a call it was queued.
        let outside = |call: &Span| {
            let before = call.start.saturating_sub(queued);
            before.max(queued.saturating_sub(end(call)))
        };
        // Commands that were queued one after the other, or by two threads, may run at about the
        // same time and for as long: the call distinguishes them.
        let alike = (0..left.len()).filter(|at| left.get(*at).is_some_and(is_it));
        let at = alike.min_by_key(|at| {
            let span = left.get(*at);
            let off = span.map(|span| (span.start + begin).abs_diff(ran.start));
            let call = span.and_then(|span| call(span));
            (call.map_or(u64::MAX, outside), off)
        });
        let at = at.with_context(|| format!("missing: {ran:?}, from {begin}: {left:?}"))?;
        let span = left.swap_remove(at);
        ensure!(span.args["clock"] == "CLOCK_MONOTONIC_RAW", "{span:?}");
        let call = call(span).with_context(|| format!("no call: {span:?}"))?;
        ensure!(
            outside(call) <= CLOCKS_NS,
            "queued at {queued}: {call:?} {ran:?}"
        );
        threads.entry(&ran.queue).or_default().insert(call.tid);
    }
    // A queue of the program is one thread's.
    ensure!(threads.values().all(|t| t.len() == 1), "{threads:?}");
    // Nothing is there twice, and nothing is guessed.
    ensure!(bounds(trace).count() == 0, "{:?}", bounds(trace).next());
    let arrows = trace.others.iter().filter(|event| event["cat"] == "ac2g");
    ensure!(arrows.count() == 2 * log.len());
    // The helper's own calls are no calls of the program.
    let own = trace.calls().filter(|call| {
        trace
            .name(call.pid, Some(call.tid))
            .is_some_and(|name| name.contains("aiprof-timing"))
    });
    let own: Vec<_> = own.map(|call| &call.name).collect();
    ensure!(
        own.iter().all(|name| *name == "aiprof_timing_batch"),
        "{own:?}"
    );
    Ok(())
}

#[test]
fn times_are_those_of_pocl_s_own_log() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let machine = Machine::new()?;
    let out = machine.trace()?;
    for (mode, least) in MODES.into_iter().zip([50, 300, 240]) {
        let run = machine.run(Some(&["--device-timing", "-o", &out]), &[mode], &[])?;
        ensure!(run.log.len() >= least, "{mode}: {}", run.log.len());
        let trace = Trace::read(Path::new(&out))?;
        judge(&trace, &run.log).with_context(|| format!("{mode}\n{}", run.stderr))?;
        println!("{mode}: {} commands, all exact", run.log.len());
    }
    Ok(())
}

#[test]
fn programs_see_nothing_of_it() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let machine = Machine::new()?;
    let out = machine.trace()?;
    let layer = machine.layer.to_str().context("a path")?;
    let own = [("OPENCL_LAYERS", layer)];
    let timed = ["-q", "--device-timing", "-o", &out];
    for variables in [&[][..], &own] {
        for mode in MODES {
            let plain = machine.run(None, &[mode], variables)?;
            let run = machine.run(Some(&timed), &[mode], variables)?;
            ensure!(plain.output == run.output, "{}{}", plain.output, run.output);
            ensure!(run.stderr.is_empty(), "{}", run.stderr);
            let has_layer = run.output.contains("the layer saw");
            ensure!(has_layer != variables.is_empty(), "{}", run.output);
            judge(&Trace::read(Path::new(&out))?, &run.log).context(mode)?;
        }
    }
    Ok(())
}

#[test]
fn what_finds_no_room_is_counted_and_runs_as_ever() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let machine = Machine::new()?;
    let out = machine.trace()?;
    let run = machine.run(
        Some(&["--device-timing", "-o", &out]),
        &["blocked", "70000"],
        &[],
    )?;
    ensure!(run.output == "70000 were blocked\n", "{}", run.output);
    let dropped = lost(&run.stderr, "device records dropped inside of programs");
    let shown = Trace::read(Path::new(&out))?.device_spans().len() as u64;
    ensure!(dropped >= 4_000, "{}", run.stderr);
    ensure!(
        shown <= 70_001 && shown + dropped >= 65_000,
        "{shown}\n{}",
        run.stderr
    );
    Ok(())
}

#[test]
fn times_of_a_clock_that_nobody_knows_are_not_taken() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let machine = Machine::new()?;
    let out = machine.trace()?;
    let own = [
        ("OPENCL_LAYERS", machine.layer.to_str().context("a path")?),
        ("CL_LAYER_SHIFT", "1000000000"),
    ];
    let run = machine.run(Some(&["--device-timing", "-o", &out]), &["threads"], &own)?;
    let refused = lost(&run.stderr, "processes that could not be timed");
    ensure!(refused == 1, "{}", run.stderr);
    let trace = Trace::read(Path::new(&out))?;
    ensure!(trace.device_spans().is_empty());
    // Bounds are all that is known then, and hold what really happened.
    let begin = trace.start_ns()?;
    for ran in run.log.iter().filter(|ran| ran.name == "add") {
        let holds = |span: &Span| {
            span.name == ran.name
                && span.start + begin <= ran.start + CLOCKS_NS
                && ran.end <= span.end + begin + CLOCKS_NS
        };
        ensure!(bounds(&trace).any(holds), "{ran:?}");
    }
    Ok(())
}

#[test]
fn flame_graphs_have_the_device_s_time_below_the_path_that_launched_it() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let machine = Machine::new()?;
    let capture = machine.shop.path("o.aiprof");
    let text = capture.to_str().context("a path")?;
    let run = machine.run(Some(&["--device-timing", "-o", text]), &["threads"], &[])?;
    let mut report = Command::new(binary()?);
    let folded = checked(
        report
            .arg("report")
            .arg(&capture)
            .args(["--format", "folded"]),
    )?;
    let mut found = 0;
    for line in &Folded::parse(&folded)?.lines {
        let Some(at) = line.frames.iter().position(|frame| frame == "-") else {
            continue;
        };
        if line.frames[at + 1] == "add_[G]" {
            let path = line.frames[..at].iter();
            ensure!(path.clone().any(|frame| frame == "launch"), "{line:?}");
            ensure!(path.clone().any(|frame| frame == "thread"), "{line:?}");
            found += line.value;
        }
    }
    let kernels = run.log.iter().filter(|ran| ran.name == "add");
    let truth: u64 = kernels.map(|ran| ran.end - ran.start).sum();
    // Folded stacks have whole microseconds, rounded each by itself.
    ensure!((found * 1000).abs_diff(truth) <= 20_000, "{found} {truth}");
    Ok(())
}
