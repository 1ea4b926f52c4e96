//! Chrome traces of the virtual Level Zero driver's programs, against its truth
//! file.

use std::collections::BTreeMap;

use anyhow::Context as _;

use aiprof_tests::aiprof::binary;
use aiprof_tests::child::Child;
use aiprof_tests::level_zero::driver::{Driver, Exports, LOADER, Machine};
use aiprof_tests::level_zero::module::Module;
use aiprof_tests::level_zero::program::build_work;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::trace::{Span, Trace, number};
use aiprof_tests::truth::{Call, Truth};
use aiprof_tests::workload::{Workshop, checked};
use serde_json::Value;

const NEEDS: [Need; 4] = [
    Need::Root,
    Need::Tool("c++"),
    Need::Path("/usr/include/level_zero/ze_api.h"),
    Need::Path(LOADER),
];

/// Records `ze_work MODE` into a file of this name.
fn record(shop: &Workshop, file: &str, mode: &[&str]) -> anyhow::Result<(Trace, Truth)> {
    let truth = shop.path("truth.json");
    let machine = Machine::new(&Driver::build(Exports::All)?).truth(&truth);
    let module = Module::usual().write(&shop.path("module.zebin"))?;
    let output = shop.path(file);
    let mut command = machine.command(&binary()?);
    command.args(["--only", "-o"]).arg(&output).arg("--");
    command.arg(build_work()?).arg(mode[0]);
    command.arg(format!("module={}", module.display()));
    checked(command.args(&mode[1..]))?;
    let read = (Trace::read(&output)?, Truth::read(&truth)?);
    std::fs::remove_file(&truth)?;
    Ok(read)
}

/// Calls by thread and function, in the order of time.
fn by_function(truth: &Truth) -> BTreeMap<(u64, &str), Vec<&Call>> {
    let mut found: BTreeMap<_, Vec<&Call>> = BTreeMap::new();
    for call in &truth.calls {
        let key = (u64::from(call.tid), call.function.as_str());
        found.entry(key).or_default().push(call);
    }
    found
        .values_mut()
        .for_each(|calls| calls.sort_by_key(|call| call.t0));
    found
}

/// Every span lies around the call that the driver saw, and there are as many.
fn check_calls(trace: &Trace, truth: &Truth) -> anyhow::Result<()> {
    let start = trace.start_ns()?;
    let mut spans: BTreeMap<(u64, &str), Vec<&Span>> = BTreeMap::new();
    for span in trace
        .calls()
        .filter(|span| span.args["api"] == "Level Zero")
    {
        spans.entry((span.tid, &span.name)).or_default().push(span);
    }
    let calls = by_function(truth);
    for (key, spans) in &spans {
        let Some(calls) = calls.get(key).filter(|_| key.1 != "zeInit") else {
            // What the loader answers without asking a driver, or asks it twice.
            continue;
        };
        assert_eq!(spans.len(), calls.len(), "{key:?}");
        for (span, call) in spans.iter().zip(calls) {
            let (from, to) = (start + span.start, start + span.end);
            let around = from <= call.t0 && call.t1 <= to;
            anyhow::ensure!(around, "{from}..{to} is not around {call:?}");
            assert_eq!(span.args["result"], "SUCCESS", "{span:?}");
        }
    }
    for (tid, function) in calls.keys() {
        if function.contains("AppendLaunch") || function.contains("Execute") {
            let seen = spans.contains_key(&(*tid, *function));
            anyhow::ensure!(seen, "no span of {function} in {tid}");
        }
    }
    Ok(())
}

/// Launches by kernel, from the arguments of the spans that appended them.
fn appended(trace: &Trace) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for span in trace.calls().filter(|span| span.category == "launch") {
        let name = span.args["work"].as_str().unwrap_or("none");
        *sums.entry(name.to_owned()).or_default() += 1;
    }
    sums
}

#[test]
fn spans_lie_around_the_true_calls() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    for (file, mode) in [
        ("trace.json", &["basic", "rounds=20"][..]),
        ("trace.json.gz", &["threads", "threads=4", "launches=200"]),
        ("trace.json", &["fork", "children=3", "launches=50"]),
    ] {
        let (trace, truth) = record(&shop, file, mode)?;
        check_calls(&trace, &truth).with_context(|| format!("{mode:?}"))?;
        assert_eq!(appended(&trace), truth.launches_by_kernel(), "{mode:?}");
        let executed = truth.execs.iter().filter(|e| e.kernel.is_some()).count() as u64;
        let launches = number(&trace.about["launches"])?;
        anyhow::ensure!(launches >= executed, "{launches} of {executed}: {mode:?}");
    }
    Ok(())
}

#[test]
fn a_capture_becomes_the_same_trace() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let machine = Machine::new(&Driver::build(Exports::All)?);
    let module = Module::usual().write(&shop.path("module.zebin"))?;
    let capture = shop.path("run.aiprof");
    let mut command = machine.command(&binary()?);
    command.args(["--only", "-o"]).arg(&capture).arg("--").arg(build_work()?);
    command.args(["basic", &format!("module={}", module.display())]);
    checked(&mut command)?;
    let report = |name: &str| -> anyhow::Result<Trace> {
        let file = shop.path(name);
        let mut command = std::process::Command::new(binary()?);
        checked(command.arg("report").arg(&capture).arg("-o").arg(&file))?;
        Trace::read(&file)
    };
    let (plain, packed) = (report("a.json")?, report("b.json.gz")?);
    assert_eq!(format!("{plain:?}"), format!("{packed:?}"));
    anyhow::ensure!(plain.calls().count() > 20, "{}", plain.about);
    Ok(())
}

/// What `aiprof trace` prints of `ze_work MODE`: JSON lines, and the truth.
fn live(shop: &Workshop, options: &[&str], mode: &[&str]) -> anyhow::Result<(Vec<Value>, Truth)> {
    let truth = shop.path("live.json");
    let machine = Machine::new(&Driver::build(Exports::All)?).truth(&truth);
    let module = Module::usual().write(&shop.path("module.zebin"))?;
    let output = shop.path("live.txt");
    let mut command = machine.command(&binary()?);
    command.args(["trace", "--json", "-o"]).arg(&output);
    command.args(options).arg("--").arg(build_work()?);
    command.arg(mode[0]);
    command.arg(format!("module={}", module.display()));
    checked(command.args(&mode[1..]))?;
    let text = std::fs::read_to_string(&output)?;
    let lines = text.lines().map(serde_json::from_str);
    let read = (lines.collect::<Result<_, _>>()?, Truth::read(&truth)?);
    std::fs::remove_file(&truth)?;
    Ok(read)
}

#[test]
fn the_live_trace_has_every_call() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    for mode in [
        &["basic", "rounds=20"][..],
        &["threads", "threads=4", "launches=200"],
        &["fork", "children=3", "launches=50"],
    ] {
        let (lines, truth) = live(&shop, &[], mode)?;
        let mut printed: BTreeMap<(u64, &str), u64> = BTreeMap::new();
        for line in &lines {
            let function = line["function"].as_str().context("function")?;
            *printed
                .entry((number(&line["tid"])?, function))
                .or_default() += 1;
        }
        for (key, calls) in by_function(&truth) {
            // What the loader answers without asking a driver, or asks it twice.
            let Some(times) = printed.get(&key).filter(|_| key.1 != "zeInit") else {
                continue;
            };
            assert_eq!(*times, calls.len() as u64, "{key:?} in {mode:?}");
        }
        let mut launched: BTreeMap<String, u64> = BTreeMap::new();
        for line in lines.iter().filter(|line| line["kind"] == "launch") {
            assert_eq!(line["result"], 0, "{line}");
            let work = line["work"].as_str().context("a launch of nothing")?;
            *launched.entry(work.to_owned()).or_default() += 1;
        }
        assert_eq!(launched, truth.launches_by_kernel(), "{mode:?}");
    }
    Ok(())
}

/// Another program of the same kind runs beside: a trace of a command is of that alone,
/// and `--all` is of both.
#[test]
fn a_trace_of_a_command_is_of_that_command() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let machine = Machine::new(&Driver::build(Exports::All)?);
    let module = Module::usual().write(&shop.path("module.zebin"))?;
    let module = format!("module={}", module.display());
    let mut other = machine.command(&build_work()?);
    other.args(["rate", "rate=100", "seconds=600"]).arg(&module);
    let other = Child::start(&mut other)?;
    let mode = ["fork", "children=3", "launches=50"];
    let (own, _) = live(&shop, &[], &mode)?;
    let (all, _) = live(&shop, &["--all"], &mode)?;
    let by_process = |lines: &[Value]| -> BTreeMap<u64, usize> {
        let launches = lines.iter().filter(|line| line["kind"] == "launch");
        let mut found = BTreeMap::new();
        for pid in launches.filter_map(|line| line["pid"].as_u64()) {
            *found.entry(pid).or_default() += 1;
        }
        found
    };
    let mut own: Vec<_> = by_process(&own).into_values().collect();
    own.sort_unstable();
    assert_eq!(own, [50, 51, 52, 100]);
    // Those of other tests, which may run beside, too.
    let all = by_process(&all);
    anyhow::ensure!(all.len() >= 5 && all.contains_key(&u64::from(other.pid())), "{all:?}");
    Ok(())
}

#[test]
fn the_live_trace_shows_what_is_asked_for() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let mode = ["basic", "rounds=20"];
    let (lines, truth) = live(&shop, &["--kind", "launch", "--api", "Level*"], &mode)?;
    let launches: u64 = truth.launches_by_kernel().values().sum();
    assert_eq!(lines.len() as u64, launches);
    assert!(lines.iter().all(|line| line["kind"] == "launch"));
    let (lines, _) = live(&shop, &["--function", "*AppendBarrier"], &mode)?;
    assert!(!lines.is_empty());
    assert!(
        lines
            .iter()
            .all(|line| line["function"] == "zeCommandListAppendBarrier")
    );
    let (lines, _) = live(&shop, &["--api", "CUDA*"], &mode)?;
    assert_eq!(lines.len(), 0);
    Ok(())
}

/// The exit status is the program's, and its own output is left alone.
#[test]
fn the_live_trace_leaves_the_program_alone() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let output = shop.path("trace.txt");
    let mut command = std::process::Command::new(binary()?);
    command.args(["trace", "-o"]).arg(&output);
    command.args(["--", "sh", "-c", "echo out; echo err >&2; exit 9"]);
    let done = command.output()?;
    assert_eq!(done.status.code(), Some(9));
    assert_eq!(done.stdout, b"out\n");
    assert!(done.stderr.starts_with(b"err\n"), "{done:?}");
    assert_eq!(std::fs::read_to_string(&output)?, "");
    Ok(())
}
