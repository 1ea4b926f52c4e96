//! Fences as recorded, against the schedule that the program keeps by its own clock.

use aiprof::correlate::begins;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::trace::Trace;
use aiprof_tests::workload::Workshop;
use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::calls::ROUNDS;
use crate::recorded::{NODES, number, record_into, recorded};

/// Compares recorded intervals of fences with those of the program. Each begins and ends within its
/// ioctls. Its length is the program's, within 1 % or 1 ms. If the ioctls themselves took longer,
/// as on emulated CPUs, the program does not know the length: it must know more than a quarter of
/// them.
fn compare_fences(truth: &[Value], seen: &[(u64, Option<u64>)], what: &str) -> anyhow::Result<()> {
    let said = |event: &str| -> Vec<&Value> {
        let lines = truth.iter();
        lines.filter(|line| line["event"] == event).collect()
    };
    let (attached, signalled) = (said("attach"), said("signal"));
    ensure!(
        seen.len() == attached.len() && attached.len() == signalled.len() + 1,
        "{} fences of {}",
        seen.len(),
        attached.len()
    );
    let around = |time: Option<u64>, line: &Value| {
        number(line, "before") <= time && time <= number(line, "after") && time.is_some()
    };
    let mut errors = Vec::new();
    for (attach, &(from, to)) in attached.iter().zip(seen) {
        ensure!(around(Some(from), attach), "{attach} does not hold {from}");
        let same = |line: &&&Value| line["fence"] == attach["fence"];
        // Numbers are used again: the first signal behind it is its own.
        let mut signals = signalled.iter().filter(same);
        let Some(signal) = signals.find(|s| number(s, "before") > Some(from)) else {
            // The last one, which the kernel signals when the program ends.
            ensure!(to > number(attach, "after"), "the fence left: {to:?}");
            continue;
        };
        ensure!(around(to, signal), "{signal} does not hold {to:?}");
        let pending = number(signal, "pending_ns").context("no length")?;
        let length = to.context("no end")?.saturating_sub(from);
        let error = length.abs_diff(pending);
        let reach = (pending / 100).max(1_000_000);
        let unknown = (took(attach)? + took(signal)?) / 2;
        ensure!(
            error <= reach || unknown > reach,
            "{length} ns instead of {pending}, give or take {unknown}"
        );
        errors.push((unknown <= reach, error));
    }
    let surely = errors.iter().filter(|(sure, _)| *sure);
    let surely: Vec<u64> = surely.map(|(_, error)| *error).collect();
    let most = |errors: &mut dyn Iterator<Item = u64>| errors.max().unwrap_or(0) / 1000;
    println!(
        "measured: {what}: {} fences, errors at most {} us; of the {} whose length the \
         program knows within 1 % or 1 ms, at most {} us",
        errors.len(),
        most(&mut errors.iter().map(|(_, error)| *error)),
        surely.len(),
        most(&mut surely.iter().copied()),
    );
    ensure!(4 * surely.len() > errors.len(), "{errors:?}");
    Ok(())
}

/// How long an ioctl of the program took.
fn took(line: &Value) -> anyhow::Result<u64> {
    let times = number(line, "before").zip(number(line, "after"));
    let (before, after) = times.context("no times")?;
    Ok(after - before)
}

/// Fences with a schedule that the program keeps by its own clock.
#[test]
fn vgem_fences_in_a_capture() -> anyhow::Result<()> {
    let needs = [Need::Root, Need::Path(NODES[1])];
    skip_unless!(&needs);
    let (truth, recorded) = recorded("vgem")?;
    for submission in &recorded.submissions {
        ensure!(&*submission.device == "vgem", "{submission:?}");
    }
    let seen = recorded.submissions.iter();
    let seen: Vec<_> = seen.map(|s| (s.submitted_ns, s.ended_ns)).collect();
    compare_fences(&truth, &seen, "capture")
}

/// The same, as spans of a Chrome trace.
#[test]
fn vgem_fences_in_a_trace() -> anyhow::Result<()> {
    let needs = [Need::Root, Need::Path(NODES[1])];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let file = shop.path("trace.json");
    let args = [NODES[0], NODES[1], ROUNDS];
    let (truth, pid) = record_into(&shop, &file, &[], "vgem_work", &args)?;
    let trace = Trace::read(&file)?;
    let start = trace.start_ns()?;
    let spans: Vec<_> = trace
        .submissions()
        .filter(|span| span.args["pid"] == pid)
        .collect();
    let seen: Vec<_> = spans
        .iter()
        .map(|span| (start + span.start, Some(start + span.end)))
        .collect();
    compare_fences(&truth, &seen, "trace")?;
    // Five at a time lie on five tracks of one device.
    let mut tracks: Vec<_> = spans.iter().map(|span| (span.pid, span.tid)).collect();
    tracks.sort_unstable();
    tracks.dedup();
    ensure!(tracks.len() == 5, "{tracks:?}");
    let device = trace.name(tracks[0].0, None);
    ensure!(
        device == Some("vgem: submissions, not busy time"),
        "{device:?}"
    );
    for (device, track) in tracks {
        let name = trace.name(device, Some(track)).context("no name")?;
        ensure!(name.starts_with("unbound"), "{name}");
    }
    for span in &spans {
        ensure!(span.name == "vgem_work", "{span:?}");
    }
    Ok(())
}

/// On this kernel, the tracepoints of DRM's scheduler identify jobs by the address or the numbers
/// of their fence, and contain their ring. Nothing here uses them.
#[test]
fn scheduler_tracepoints_are_recorded() -> anyhow::Result<()> {
    let jobs = "/sys/kernel/tracing/events/gpu_scheduler";
    let needs = [Need::Root, Need::Path(NODES[1]), Need::Path(jobs)];
    skip_unless!(&needs);
    let (_, recorded) = recorded("vgem")?;
    let points = recorded.points.iter();
    let points: Vec<_> = points.filter(|p| p.category == "gpu_scheduler").collect();
    println!("measured: scheduler: {points:?}");
    ensure!(points.len() == 3, "{} tracepoints", points.len());
    for point in &points {
        let numbers = ["fence_context", "fence_seqno"].map(|name| point.value(name).is_some());
        let address = point.value("fence").is_some();
        ensure!(address || numbers == [true; 2], "{point:?}");
    }
    let begin: Vec<_> = points.iter().filter(|point| begins(point)).collect();
    ensure!(
        begin.len() == 1 && begin[0].text("name").is_some(),
        "{begin:?}"
    );
    Ok(())
}
