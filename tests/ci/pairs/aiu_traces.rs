//! Chrome traces of the virtual AIU's programs, against its truth file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

use aiprof_tests::aiprof::{Aiprof, lost};
use aiprof_tests::aiu::{Record, Runtime, Truth, TruthFiles};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::trace::{Span, Trace, number};
use aiprof_tests::workload::Workshop;

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("c++")];

/// The first number of a row that is no thread.
const LANES: u64 = 1_200_000_000;

/// How far a time may be off: that of the clocks' reading, twice.
const CLOSE_NS: u64 = 100_000;

/// A recorded program.
struct Recorded {
    trace: Trace,
    truths: Vec<Truth>,
    stderr: String,
}

/// Records a program of the virtual AIU into a trace.
fn record(
    options: &[&str],
    arguments: &[&str],
    set: impl FnOnce(&mut Command),
) -> anyhow::Result<Recorded> {
    let shop = Workshop::new()?;
    let truth = TruthFiles::new(&shop, "truth");
    let file = shop.path("trace.json");
    let output = file.to_str().context("no text")?;
    let work = Runtime::build(&[])?.work(&truth, arguments);
    let words: Vec<_> = work.get_args().collect();
    let mut command = Aiprof::with(["--only", "-o", output].iter().chain(options).copied())
        .command(work.get_program(), &words)
        .to_command()?;
    for (name, value) in work.get_envs() {
        command.env(name, value.context("no value")?);
    }
    set(&mut command);
    let output = command.output()?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    anyhow::ensure!(output.status.success(), "{}: {stderr}", output.status);
    Ok(Recorded {
        trace: Trace::read(&file)?,
        truths: truth.read_all()?,
        stderr,
    })
}

/// Spans of records of devices.
fn device_spans(trace: &Trace) -> Vec<&Span> {
    let categories = [
        "prepare",
        "kernel",
        "gpu_memcpy",
        "gpu_memset",
        "privateuse1_driver",
    ];
    let spans = trace.spans.iter();
    spans
        .filter(|span| span.tid >= LANES && categories.contains(&span.category.as_str()))
        .collect()
}

/// What the trace should show of a record.
fn shown(record: &Record) -> (&str, String) {
    match (record.kind, record.what) {
        (1, 1) => ("prepare", record.name.clone()),
        (1, _) => ("kernel", record.name.clone()),
        (2, _) => ("gpu_memset", "Memset (Device)".into()),
        (3, 1) => ("privateuse1_driver", "Memory (Allocation)".into()),
        (3, _) => ("privateuse1_driver", "Memory (Release)".into()),
        (_, 1) => ("gpu_memcpy", "Memcpy (HtoD)".into()),
        (_, 2) => ("gpu_memcpy", "Memcpy (DtoH)".into()),
        _ => ("gpu_memcpy", "Memcpy (PtoP)".into()),
    }
}

/// Name of the device's track for a record.
fn device_of(trace: &Trace, truth: &Truth, record: &Record) -> String {
    let pid = truth.process.pid;
    // Ranks are started through /proc/self/exe.
    let name = trace.name(pid.into(), None).unwrap_or("no name");
    format!("AIU {} of {name} {pid}", record.device)
}

/// Every record of devices is a span, at the right time, on the right row.
fn check_devices(trace: &Trace, truths: &[Truth]) -> anyhow::Result<()> {
    let begin = trace.start_ns()?;
    let mut spans: BTreeMap<_, Vec<&Span>> = BTreeMap::new();
    for span in device_spans(trace) {
        let device = trace
            .name(span.pid, None)
            .context("a device without a name")?;
        let key = (device.to_owned(), span.category.clone(), span.name.clone());
        spans.entry(key).or_default().push(span);
    }
    let mut records: BTreeMap<_, Vec<(u64, &Record)>> = BTreeMap::new();
    for truth in truths {
        for record in truth.records.iter().filter(|r| r.kind != 6) {
            let (category, name) = shown(record);
            let start = record.start - truth.process.epoch_offset - begin;
            let key = (device_of(trace, truth, record), category.to_owned(), name);
            records.entry(key).or_default().push((start, record));
        }
    }
    assert_eq!(
        spans.keys().collect::<Vec<_>>(),
        records.keys().collect::<Vec<_>>()
    );
    for (key, mut records) in records {
        records.sort_by_key(|(start, record)| (*start, record.end));
        let spans = &spans[&key];
        assert_eq!(spans.len(), records.len(), "{key:?}");
        for (span, (start, record)) in spans.iter().zip(records) {
            let off = span.start.abs_diff(start);
            anyhow::ensure!(off < CLOSE_NS, "{off} ns off: {span:?} {record:?}");
            // Spans that touch are drawn a nanosecond apart.
            let length = (span.end - span.start).abs_diff(record.end - record.start);
            anyhow::ensure!(length <= 1, "{span:?} {record:?}");
            assert_eq!(span.args["correlation"], record.corr);
            assert_eq!(span.args["stream"], record.stream);
            let row = trace.name(span.pid, Some(span.tid)).context("no row")?;
            let stream = format!("Stream {}", record.stream);
            anyhow::ensure!(row.starts_with(&stream), "{row}");
        }
    }
    Ok(())
}

fn of<'a>(trace: &'a Trace, ph: &'a str) -> impl Iterator<Item = &'a Value> {
    trace.others.iter().filter(move |event| event["ph"] == ph)
}

/// The span that an end of an arrow lies on.
fn bound<'a>(trace: &'a Trace, event: &Value) -> anyhow::Result<&'a Span> {
    let at = (event["ts"].as_f64().context("no time")? * 1000.0).round() as u64;
    let track = (number(&event["pid"])?, number(&event["tid"])?);
    let found = trace
        .spans
        .iter()
        .rfind(|span| (span.pid, span.tid) == track && span.start == at && at <= span.end);
    found.with_context(|| format!("on no span: {event}"))
}

/// An arrow leads from every launch with a record to its kernel, and there is no
/// other.
fn check_flows(trace: &Trace, truths: &[Truth]) -> anyhow::Result<usize> {
    let mut expected = Vec::new();
    for truth in truths {
        let kernels = truth.records.iter().filter(|r| r.kind == 1 && r.what == 2);
        for kernel in kernels {
            let launch = |r: &&Record| r.kind == 6 && r.what == 2 && r.corr == kernel.corr;
            if truth.records.iter().any(|r| launch(&r)) {
                expected.push((
                    u64::from(truth.process.pid),
                    kernel.corr,
                    kernel.name.clone(),
                ));
            }
        }
    }
    let ends: BTreeMap<u64, &Value> = of(trace, "f")
        .map(|event| Ok((number(&event["id"])?, event)))
        .collect::<anyhow::Result<_>>()?;
    let mut arrows = Vec::new();
    for begin in of(trace, "s") {
        assert_eq!(
            (&begin["cat"], &begin["name"]),
            (&"ac2g".into(), &"ac2g".into())
        );
        let end = ends
            .get(&number(&begin["id"])?)
            .context("an arrow to nowhere")?;
        let (launch, kernel) = (bound(trace, begin)?, bound(trace, end)?);
        assert_eq!(launch.name, "aiuLaunchControlBlocks");
        assert_eq!(launch.args["correlation"], kernel.args["correlation"]);
        assert_eq!(kernel.args["phase"], "execute");
        let number = number(&kernel.args["correlation"])?;
        arrows.push((launch.pid, u32::try_from(number)?, kernel.name.clone()));
    }
    assert_eq!(of(trace, "f").count(), arrows.len());
    expected.sort();
    arrows.sort();
    assert_eq!(arrows, expected);
    Ok(arrows.len())
}

#[test]
fn devices_and_arrows_are_those_of_the_truth() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    for arguments in [
        &[
            "profiled",
            "--launches",
            "200",
            "--streams",
            "2",
            "--threads",
            "2",
        ][..],
        &[
            "profiled",
            "--launches",
            "90",
            "--ranks",
            "3",
            "--buffer",
            "30000",
        ],
    ] {
        let run = record(&[], arguments, |_| ())?;
        let records: usize = run.truths.iter().map(|t| t.records.len()).sum();
        anyhow::ensure!(records > 500, "{records}");
        check_devices(&run.trace, &run.truths).with_context(|| run.stderr.clone())?;
        let flows = check_flows(&run.trace, &run.truths)?;
        anyhow::ensure!(flows >= 200, "{flows}");
        assert_eq!(number(&run.trace.about["flows"])?, flows as u64);
        assert_eq!(number(&run.trace.about["estimated_device_spans"])?, 0);
        assert_eq!(lost(&run.stderr, "activity"), 0, "{}", run.stderr);
        assert!(
            !run.stderr.contains("no activity records"),
            "{}",
            run.stderr
        );
        // The runtime's records of its calls, on rows of the process.
        let of_calls = run.trace.spans.iter();
        let of_calls = of_calls.filter(|span| span.category == "privateuse1_runtime");
        let told = run.truths.iter().flat_map(|t| &t.records);
        assert_eq!(of_calls.count(), told.filter(|r| r.kind == 6).count());
    }
    Ok(())
}

#[test]
fn devices_without_records_lie_between_launches_and_waits() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let run = record(
        &[],
        &["plain", "--launches", "120", "--streams", "2"],
        |_| (),
    )?;
    let [truth] = run.truths.as_slice() else {
        anyhow::bail!("{} processes", run.truths.len());
    };
    assert_eq!(device_spans(&run.trace).len(), 0);
    let estimates = run.trace.spans.iter().filter(|s| s.category == "estimated");
    let estimates: Vec<_> = estimates.collect();
    let begin = run.trace.start_ns()?;
    let kernels = truth.operations.iter().filter(|op| op.kind == "control");
    assert_eq!(kernels.clone().count(), 120);
    for op in kernels {
        let around = |s: &&&Span| begin + s.start <= op.start && op.end <= begin + s.end;
        anyhow::ensure!(
            estimates.iter().any(|s| around(&s)),
            "nothing around {op:?}"
        );
    }
    let launches: u64 = estimates
        .iter()
        .filter_map(|s| s.args["launches"].as_u64())
        .sum();
    anyhow::ensure!(launches >= 120, "{launches}");
    for span in &estimates {
        assert!(span.args["estimated"].is_string(), "{span:?}");
        let row = run.trace.name(span.pid, None).context("no name")?;
        anyhow::ensure!(row.contains("estimated"), "{row}");
    }
    // Messages on the terminal show that too, with advice.
    assert!(run.stderr.contains("no activity records"), "{}", run.stderr);
    assert!(run.stderr.contains("--aiu-timing"), "{}", run.stderr);
    Ok(())
}

#[test]
fn timing_is_switched_on_where_it_is_asked_for() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let arguments = ["timed", "--launches", "60"];
    let off = record(&[], &arguments, |_| ())?;
    assert_eq!(off.truths[0].records.len(), 0);
    let on = record(&["--aiu-timing"], &arguments, |_| ())?;
    anyhow::ensure!(on.truths[0].records.len() > 100);
    check_devices(&on.trace, &on.truths)?;
    // What the caller has set stays as it is.
    let kept = record(&["--aiu-timing"], &arguments, |command| {
        command.env("ENABLE_FLEX_TIMING", "0");
    })?;
    assert_eq!(kept.truths[0].records.len(), 0);
    assert!(
        kept.stderr.contains("despite --aiu-timing"),
        "{}",
        kept.stderr
    );
    let alone = Aiprof::with(["--aiu-timing", "-d", "1"])
        .to_command()?
        .output()?;
    let stderr = String::from_utf8_lossy(&alone.stderr);
    assert_eq!(alone.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("COMMAND"), "{stderr}");
    Ok(())
}

/// A file that is gone with the test, also when that fails.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // It may never have been there.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn counters_are_those_of_the_metrics_file() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let pid = std::process::id();
    let address = format!("{:04x}:{:02x}:00.7", pid >> 8 & 0xffff, pid & 0xff);
    let file = Removed(Path::new("/tmp").join(format!("metrics.{address}")));
    let run = record(
        &[],
        &["plain", "--launches", "1500", "--pause-us", "1500"],
        |command| {
            command
                .env("VAIU_METRICS", &file.0)
                .env("VAIU_METRICS_MS", "50");
        },
    )?;
    let source = format!("AIU {address}");
    let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for event in of(&run.trace, "C") {
        if run.trace.name(number(&event["pid"])?, None) != Some(&source) {
            continue;
        }
        let args = event["args"].as_object().context("no values")?;
        let (unit, value) = args.iter().next().context("no value")?;
        let name = format!("{} {unit}", event["name"].as_str().context("no name")?);
        values
            .entry(name)
            .or_default()
            .push(value.as_f64().context("no number")?);
    }
    let truth = &run.truths[0].metrics;
    anyhow::ensure!(truth.len() > 10, "{}", truth.len());
    for (name, id, scale) in [
        ("power W", 0x10, 0.1),
        ("received from the host B", 0x14, 1024.0),
        ("most device memory in use B", 0x82, 1024.0 * 1024.0),
    ] {
        let told: Vec<f64> = truth
            .iter()
            .map(|m| {
                let samples = &m.values[&id];
                let raw = match id {
                    0x10 => samples[0],
                    0x14 => samples.iter().sum(),
                    _ => samples.iter().copied().max().unwrap_or(0),
                };
                (raw as f64 * scale * 1000.0).round() / 1000.0
            })
            .collect();
        let seen = values
            .get(name)
            .with_context(|| format!("no {name}: {values:?}"))?;
        // In the truth's order, and few are missed: those of the second in which the
        // file was not looked for yet, and some while the machine was busy.
        let mut left = told.iter();
        for value in seen {
            let found = left.any(|told| (told - value).abs() < 0.002);
            anyhow::ensure!(found, "{name}: {value} is not in {told:?} or not in order");
        }
        let enough = (seen.len() + 22) * 5 > told.len() * 4 && seen.len() > 10;
        anyhow::ensure!(enough, "{name}: {} of {}", seen.len(), told.len());
    }
    Ok(())
}
