//! Making a trace of a long recording takes no more memory than one of a short.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use aiprof::capture::{CaptureWriter, ResolvedNames, ReplayOptions, CaptureItem, Scanned, scan};
use aiprof::process::FileTable;
use aiprof::wire::Event;
use aiprof_tests::aiprof::binary;
use aiprof_tests::aiu::{Runtime, TruthFiles};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::trace::number;
use aiprof_tests::workload::{Workshop, checked};

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("c++")];

/// All of a capture, and what a sample of it stands for.
fn read(path: &Path) -> anyhow::Result<(Vec<Event>, u64, Scanned)> {
    let options = ReplayOptions::default();
    let (mut events, mut period_ns) = (Vec::new(), 0);
    let scanned = scan(path, options, &mut |scan| {
        match scan {
            CaptureItem::Event(event) => events.push(event),
            CaptureItem::Period(period) => period_ns = period,
        }
        ControlFlow::Continue(())
    })?;
    Ok((events, period_ns, scanned))
}

/// The event, so much later; `None` for what happens but once.
fn later(event: &Event, by_ns: u64) -> Option<Event> {
    let mut event = event.clone();
    match &mut event {
        Event::Call(call) => call.time_ns += by_ns,
        Event::CallData(data) => data.time_ns += by_ns,
        Event::CallStack(stack) => stack.sample.time_ns += by_ns,
        Event::Sample(sample) => sample.time_ns += by_ns,
        Event::Counter(counter) => counter.time_ns += by_ns,
        // The time of day in records stays: as if the clock had been set back.
        Event::Clock(pair) => pair.time_ns += by_ns,
        _ => return None,
    }
    Some(event)
}

/// Writes a capture in which everything happens `times` times, one after the other.
fn repeat(
    (events, period_ns): (&[Event], u64),
    about: &Scanned,
    times: u64,
    path: &Path,
) -> anyhow::Result<()> {
    let of_all = || events.iter().map(Event::time_ns).filter(|time| *time > 0);
    let length = of_all().max().context("no events")? - of_all().min().unwrap_or(0);
    // Far enough that a time of one is none of another.
    let length = length + 3_000_000_000;
    let out = Box::new(File::create(path)?);
    let mut writer = CaptureWriter::new(out, &about.meta, period_ns)?;
    for event in events {
        writer.event(event)?;
    }
    for i in 1..times {
        for event in events.iter().filter_map(|event| later(event, i * length)) {
            writer.event(&event)?;
        }
    }
    let busy = BTreeMap::new();
    let known = ResolvedNames {
        names: &[],
        texts: &[],
        files: &FileTable::default(),
        cgroups: &[],
    };
    writer.finish(&known, &about.meta, &about.losses, &busy)?;
    Ok(())
}

/// Peak resident memory of a process until it ends, in KiB.
fn peak(child: &mut Child) -> anyhow::Result<u64> {
    let mut peak = 0;
    let end = Instant::now() + Duration::from_secs(300);
    while child.try_wait()?.is_none() {
        anyhow::ensure!(Instant::now() < end, "it does not end");
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let now = line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok());
        peak = now.unwrap_or(0).max(peak);
        std::thread::sleep(Duration::from_millis(5));
    }
    anyhow::ensure!(child.wait()?.success(), "it failed");
    Ok(peak)
}

/// Makes a trace; gives its peak memory in KiB and its number of device spans.
fn report(capture: &Path, output: &Path) -> anyhow::Result<(u64, u64)> {
    let mut command = Command::new(binary()?);
    command.arg("report").arg(capture).arg("-o").arg(output);
    let peak = peak(&mut command.spawn()?)?;
    let text = std::fs::read_to_string(output)?;
    let about = text
        .rsplit_once("\"otherData\":")
        .context("no otherData")?
        .1;
    // The last brace is that of the whole.
    let about = about.trim_end().strip_suffix("}").unwrap_or(about);
    let about: serde_json::Value = serde_json::from_str(about)?;
    Ok((peak, number(&about["device_spans"])?))
}

#[test]
fn memory_does_not_grow_with_the_length_of_a_trace() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let truth = TruthFiles::new(&shop, "truth");
    let capture = shop.path("once.aiprof");
    let words = ["profiled", "--launches", "600", "--threads", "2"];
    checked(&mut Runtime::build(&[])?.recording(&truth, &capture, &words)?)?;
    let (events, period_ns, about) = read(&capture)?;
    let (many, output) = (shop.path("many.aiprof"), shop.path("trace.json"));
    let mut measured = Vec::new();
    for times in [15, 150] {
        repeat((&events, period_ns), &about, times, &many)?;
        measured.push(report(&many, &output)?);
    }
    let [(short, spans), (long, of_long)] = measured[..] else {
        anyhow::bail!("{measured:?}");
    };
    println!("{short} KiB for {spans} device spans, {long} KiB for {of_long}");
    anyhow::ensure!(
        spans > 15_000 && of_long == 10 * spans,
        "{spans}, {of_long}"
    );
    let flat = long * 10 < short * 13;
    anyhow::ensure!(
        flat,
        "{short} KiB for {spans} spans, {long} KiB for {of_long}"
    );
    Ok(())
}

/// A measurement, with `AIPROF_TRACE_CALLS=10000000`: time and memory of the traces of this number
/// of calls, beside those of folded stacks of the same capture.
#[test]
fn traces_of_so_many_calls() -> anyhow::Result<()> {
    let Ok(calls) = std::env::var("AIPROF_TRACE_CALLS") else {
        return Ok(());
    };
    let calls: usize = calls.parse()?;
    let shop = Workshop::new()?;
    let truth = TruthFiles::new(&shop, "truth");
    let capture = shop.path("once.aiprof");
    let words = ["profiled", "--launches", "5000", "--threads", "2"];
    checked(&mut Runtime::build(&[])?.recording(&truth, &capture, &words)?)?;
    let (events, period_ns, about) = read(&capture)?;
    let records = events
        .iter()
        .filter(|event| matches!(event, Event::Call(_)));
    let times = calls.div_ceil(records.count() / 2);
    let many = shop.path("many.aiprof");
    repeat((&events, period_ns), &about, times as u64, &many)?;
    drop(events);
    for output in ["x.folded", "x.json", "x.pftrace"] {
        let output = shop.path(output);
        let begun = Instant::now();
        let mut command = Command::new(binary()?);
        command.arg("report").arg(&many).arg("-o").arg(&output);
        let peak = peak(&mut command.spawn()?)?;
        let (took, size) = (begun.elapsed(), std::fs::metadata(&output)?.len());
        let name = output.display();
        println!(
            "{times} times, {name}: {took:.1?}, {peak} KiB, file of {} MiB",
            size >> 20
        );
    }
    Ok(())
}
