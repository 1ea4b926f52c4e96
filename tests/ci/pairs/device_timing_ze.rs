//! `--device-timing` on the virtual Level Zero driver (`virtual/level-zero`), through the system's
//! loader: *synthetic*, with a truth file of what ran when, and which call appended it. The loader,
//! the helper, the probes and the stacks are real.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

use aiprof_tests::aiprof::{binary, lost};
use aiprof_tests::child::Child;
use aiprof_tests::level_zero::driver::{Clock, Driver, Exports, Machine, NEEDS};
use aiprof_tests::level_zero::module::{Kernel, Module};
use aiprof_tests::level_zero::program::{Account, build_timing, build_work};
use aiprof_tests::level_zero::real;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::trace::Trace;
use aiprof_tests::truth::{Exec, Kind, Truth};
use aiprof_tests::workload::{Workshop, checked};

/// A tick of the usual clock, ns, rounded up.
const TICK: u64 = 53;
/// Losses of the helper's own.
const LOSSES: [&str; 5] = [
    "device commands not timed (no event with timestamps)",
    "device commands not timed (event used again too early)",
    "device records dropped inside of programs",
    "activity records from outside the recording",
    UNDATED,
];
/// The helper's thread had no CPU for so long that a counter may have wrapped.
const UNDATED: &str = "device commands not timed (read too late for their clock)";

/// What every test here needs.
fn needs() -> Vec<Need> {
    NEEDS.into_iter().chain([Need::Root]).collect()
}

/// A machine, its module, and where things are written.
struct Bench {
    shop: Workshop,
    machine: Machine,
    module: PathBuf,
}

/// What a program did and printed, below aiprof or alone.
struct Run {
    stdout: String,
    stderr: String,
    truth: Truth,
}

impl Bench {
    fn new(exports: Exports) -> anyhow::Result<Self> {
        let shop = Workshop::new()?;
        let machine = Machine::new(&Driver::build(exports)?).set("VZE_DEVICES", "2");
        let kernels = [
            Kernel::new("saxpy", 20_000),
            Kernel::new("reduce", 7_000),
            Kernel::new("tiny", 600),
        ];
        let module = Module::new(kernels.to_vec()).write(&shop.path("module.zebin"))?;
        Ok(Self {
            shop,
            machine,
            module,
        })
    }

    /// Runs it; `options`: of aiprof, or it runs alone.
    fn run(&self, options: Option<&[&str]>, program: &Path, args: &[&str]) -> anyhow::Result<Run> {
        let truth = self.shop.path("truth.json");
        let _ = std::fs::remove_file(&truth);
        let mut command = match options {
            Some(options) => {
                let mut command = Command::new(binary()?);
                command.arg("--only").args(options).arg("--").arg(program);
                command
            }
            None => Command::new(program),
        };
        command.envs(self.machine.clone().truth(&truth).environment());
        command.args(args);
        command.arg(format!("module={}", self.module.display()));
        let output = command.output()?;
        let stderr = String::from_utf8(output.stderr)?;
        ensure!(output.status.success(), "{}\n{stderr}", output.status);
        Ok(Run {
            stdout: String::from_utf8(output.stdout)?,
            stderr,
            truth: Truth::read(&truth)?,
        })
    }

    /// Runs it below aiprof, and reads the trace.
    fn traced(&self, program: &Path, args: &[&str]) -> anyhow::Result<(Run, Trace)> {
        let out = self.shop.path("t.json");
        let text = out.to_str().context("a path")?;
        let run = self.run(Some(&["--device-timing", "-o", text]), program, args)?;
        Ok((run, Trace::read(&out)?))
    }
}

fn category(exec: &Exec) -> Option<&'static str> {
    match exec.kind {
        Kind::Kernel => Some("kernel"),
        Kind::Copy => Some("gpu_memcpy"),
        Kind::Fill => Some("gpu_memset"),
        _ => None,
    }
}

/// Threads of the calls that arrows begin at, by the launch's number.
fn launching(trace: &Trace) -> BTreeMap<u64, u64> {
    let arrows = trace.others.iter().filter(|event| event["ph"] == "s");
    arrows
        .filter_map(|event| Some((event["id"].as_u64()? & 0xffff_ffff, event["tid"].as_u64()?)))
        .collect()
}

/// Each span is a piece of work of the truth, within a tick, and leads to the thread that
/// appended it (`is_linked`: each of them does). Gives how many pieces have no span.
fn judge(trace: &Trace, truth: &Truth, is_linked: bool) -> anyhow::Result<usize> {
    let begin = trace.start_ns()?;
    let threads = launching(trace);
    let appends: BTreeMap<(u32, u64), u64> = truth
        .calls
        .iter()
        .map(|call| ((call.pid, call.seq), u64::from(call.tid)))
        .collect();
    let works = truth.execs.iter().filter(|exec| category(exec).is_some());
    let mut rest: Vec<&Exec> = works.collect();
    for span in trace.device_spans() {
        let (start, end) = (span.start + begin, span.end + begin);
        let launch = span.args["correlation"].as_u64();
        let thread = launch.and_then(|launch| threads.get(&launch));
        ensure!(thread.is_some() || !is_linked, "no call: {span:?}");
        let is_it = |exec: &&&Exec| {
            let is_same = category(exec) == Some(span.category.as_str())
                && (exec.kernel.is_none() || exec.kernel.as_deref() == Some(&*span.name))
                && span.args["device"].as_u64() == Some(exec.device.into());
            // Several run at the same time.
            let is_of = thread.is_none() || appends.get(&(exec.pid, exec.seq)) == thread;
            let is_then =
                exec.start_ns.abs_diff(start) <= TICK && exec.end_ns.abs_diff(end) <= TICK;
            is_same && is_of && is_then
        };
        let found = rest.iter().find(is_it).copied();
        let found = found.with_context(|| {
            let near = truth
                .execs
                .iter()
                .min_by_key(|e| e.start_ns.abs_diff(start));
            format!("no such work: {span:?} {start} {end}, nearest {near:?}")
        })?;
        rest.retain(|exec| !std::ptr::eq(*exec, found));
    }
    Ok(rest.len())
}

/// All that is not timed is counted, by its reason.
fn all_lost(stderr: &str) -> u64 {
    LOSSES.iter().map(|cause| lost(stderr, cause)).sum()
}

#[test]
fn every_way_is_timed_to_the_tick() -> anyhow::Result<()> {
    skip_unless!(&needs());
    let program = build_timing()?;
    for exports in [Exports::All, Exports::TablesOnly] {
        let bench = Bench::new(exports)?;
        for ways in [
            "reused",
            "immediate",
            "events",
            "reset",
            "signals",
            "chained",
            "devices",
            "teardown",
            "own",
            "fork",
        ] {
            let (run, trace) = bench.traced(&program, &[ways, "rounds=20"])?;
            // That lists are run by such a call is learnt too late here.
            let is_linked = ways != "chained";
            let missing = judge(&trace, &run.truth, is_linked).context(ways)?;
            ensure!(missing == 0, "{ways}: {missing} missing\n{}", run.stderr);
            ensure!(all_lost(&run.stderr) == 0, "{ways}: {}", run.stderr);
            println!("{exports:?} {ways}: {} exact", trace.device_spans().len());
        }
    }
    Ok(())
}

#[test]
fn what_cannot_be_told_is_counted_and_never_guessed() -> anyhow::Result<()> {
    skip_unless!(&needs());
    let program = build_timing()?;
    let bench = Bench::new(Exports::All)?;
    for (way, cause) in [
        ("twice", LOSSES[1]),
        ("counters", LOSSES[0]),
        ("cycle", LOSSES[1]),
        ("shared", LOSSES[1]),
    ] {
        let (run, trace) = bench.traced(&program, &[way, "rounds=20"])?;
        let missing = judge(&trace, &run.truth, true).context(way)?;
        let counted = lost(&run.stderr, cause);
        ensure!(missing > 0, "{way}: all are there");
        ensure!(
            counted == missing as u64,
            "{way}: {missing}\n{}",
            run.stderr
        );
        println!(
            "{way}: {} exact, {missing} counted",
            trace.device_spans().len()
        );
    }
    Ok(())
}

#[test]
fn drifting_and_wrapping_clocks_are_followed() -> anyhow::Result<()> {
    skip_unless!(&needs());
    let program = build_work()?;
    for (hz, ppb, bits) in [(19_200_000, 40_000, 32), (12_500_000, -60_000, 24)] {
        let mut bench = Bench::new(Exports::All)?;
        let clock = Clock {
            hz,
            ppb,
            bits,
            ..Clock::default()
        };
        bench.machine = bench.machine.clone().clock(clock);
        // The counter of 24 bits wraps after 1.3 s.
        let args = ["rate", "rate=200", "seconds=4"];
        let (run, trace) = bench.traced(&program, &args)?;
        let begin = trace.start_ns()?;
        let spans = trace.device_spans();
        let execs: Vec<&Exec> = run
            .truth
            .execs
            .iter()
            .filter(|e| category(e).is_some())
            .collect();
        // A machine that stops for longer than the counter takes to wrap leaves commands that
        // nothing can date. They are counted.
        let undated = lost(&run.stderr, UNDATED);
        let is_whole = spans.len() as u64 + undated == execs.len() as u64;
        ensure!(
            is_whole && undated * 100 <= execs.len() as u64,
            "{bits} bits: {} spans and {undated} not dated of {}: {}",
            spans.len(),
            execs.len(),
            run.stderr
        );
        let tick = 1_000_000_000 / hz + 1;
        for span in spans {
            let start = span.start + begin;
            let error = execs.iter().map(|e| e.start_ns.abs_diff(start)).min();
            let error = error.context("no work")?;
            // Calibrations a second apart, a tick each.
            ensure!(error <= 2 * tick, "{error} ns: {span:?}");
        }
    }
    Ok(())
}

/// The program's account, without what differs from run to run.
fn sight(stdout: &str) -> anyhow::Result<Vec<String>> {
    let accounts = Account::read(stdout)?;
    let mut all: Vec<String> = accounts
        .into_iter()
        .map(|one| {
            format!(
                "{} {:?} {:?} {:?}",
                one.mode,
                one.launches,
                one.calls,
                one.more.get("own_ok")
            )
        })
        .collect();
    all.sort();
    Ok(all)
}

#[test]
fn programs_do_the_same_as_without() -> anyhow::Result<()> {
    skip_unless!(&needs());
    let bench = Bench::new(Exports::All)?;
    let out = bench.shop.path("o.folded");
    let out = out.to_str().context("a path")?;
    let options = ["-q", "--device-timing", "-o", out];
    let ways = "reused,twice,immediate,events,reset,signals,chained,counters,cycle,shared,\
                devices,teardown,own,fork";
    for (program, args) in [
        (build_timing()?, vec![ways, "rounds=10"]),
        (build_work()?, vec!["basic", "rounds=10"]),
        (build_work()?, vec!["newer", "rounds=10"]),
        (build_work()?, vec!["reuse", "rounds=50"]),
        (build_work()?, vec!["fork", "children=3", "launches=50"]),
        (build_work()?, vec!["threads", "threads=6", "launches=200"]),
    ] {
        let alone = bench.run(None, &program, &args)?;
        let timed = bench.run(Some(&options), &program, &args)?;
        ensure!(timed.stderr == alone.stderr, "{args:?}: {}", timed.stderr);
        ensure!(sight(&timed.stdout)? == sight(&alone.stdout)?, "{args:?}");
        let work = |truth: &Truth| {
            let mut counts: BTreeMap<(Option<String>, u64), u64> = BTreeMap::new();
            for exec in truth.execs.iter().filter(|e| category(e).is_some()) {
                *counts.entry((exec.kernel.clone(), exec.bytes)).or_default() += 1;
            }
            counts
        };
        ensure!(work(&timed.truth) == work(&alone.truth), "{args:?}");
    }
    Ok(())
}

/// Intel's own driver in its capture mode: nothing runs, but all calls are real.
#[test]
fn intel_s_driver_does_the_same_behind_the_helper() -> anyhow::Result<()> {
    let needs: Vec<Need> = real::NEEDS.into_iter().chain([Need::Root]).collect();
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let product = real::Product::Skl;
    let module = format!("module={}", real::compile(&shop, product)?.display());
    let program = build_work()?;
    let out = shop.path("t.json");
    let recording = format!("test-ze-{}", std::process::id());
    for mode in [["basic", "rounds=20"], ["reuse", "rounds=20"]] {
        let args = [&mode[..], &["real=1", &module]].concat();
        let dir = shop.path("");
        let plain = real::command(&program, product, real::Recording::Off, &dir)
            .args(&args)
            .output()?;
        ensure!(plain.status.success(), "{plain:?}");
        let alone = sight(&String::from_utf8(plain.stdout)?)?;

        let mut timed = Command::new(binary()?);
        timed.envs(real::environment(product, real::Recording::Off));
        timed.env_remove("ZE_ENABLE_ALT_DRIVERS").current_dir(&dir);
        timed.arg(format!("--control={recording}"));
        timed.args(["--only", "--device-timing", "-o"]).arg(&out).arg("--");
        timed.arg(&program).args(&args).arg("go=1");
        timed.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut timed = Child::start(&mut timed)?;
        // Calls of the driver are the program's own where the loader has no probes yet.
        let loaded = timed.read_line()?;
        let pid = loaded.trim_end().strip_prefix("loaded ").context(loaded.clone())?;
        let mut known = Command::new(binary()?);
        known.args(["ctl", "status", "--timeout", "60s", "--wait"]);
        checked(known.arg(format!("known={pid}")).arg(&recording))?;
        // `reuse` itself waits for two more lines.
        timed.write_line("go\n\n")?;
        let stdout = timed.output()?;
        let stderr = timed.stderr()?;
        ensure!(sight(&stdout)? == alone, "{mode:?}");
        // The probes see the same launches, once each.
        let trace = Trace::read(&out)?;
        let launches = trace.calls().filter(|call| call.category == "launch");
        let launches = launches.count() as u64;
        let expected: u64 = Account::read(&stdout)?.iter().map(Account::total).sum();
        ensure!(
            launches == expected,
            "{mode:?}: {launches} of {expected}\n{stderr}"
        );
    }
    Ok(())
}
