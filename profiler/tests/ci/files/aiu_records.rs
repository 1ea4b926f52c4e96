//! aiprof's readers of AIU data against the virtual runtime's truth: activity
//! records in every layout, and the metrics file while it is rewritten.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use aiprof::aiu::metrics::{MetricsError, snapshot};
use aiprof::aiu::{ActivityRecord, BufferContext, Decoder, EpochNs, Kind, Layouts, Unknown, events};
use aiprof_tests::aiu::{Record, Runtime, Truth, TruthFiles, accounts};
use aiprof_tests::child::Child;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::{Workshop, checked};

const NEEDS: [Need; 1] = [Need::Tool("c++")];
/// The cbid of control blocks with a kernel: its correlation id is the kernel's.
const LAUNCH_CB_CMPT: u32 = 2;

/// The buffers of a `--dump` file.
fn buffers(path: &Path) -> anyhow::Result<Vec<Vec<u8>>> {
    let bytes = std::fs::read(path)?;
    let mut rest = &bytes[..];
    let mut all = Vec::new();
    while let Some((size, after)) = rest.split_first_chunk::<8>() {
        let size = usize::try_from(u64::from_le_bytes(*size))?;
        let (buffer, after) = after.split_at_checked(size).context("cut dump")?;
        all.push(buffer.to_vec());
        rest = after;
    }
    Ok(all)
}

struct Profiled {
    truth: Truth,
    buffers: Vec<Vec<u8>>,
}

/// Runs the workload with all activities and a small buffer.
fn profiled(layout: &str, cycles: &str, arguments: &[&str]) -> anyhow::Result<Profiled> {
    let shop = Workshop::new()?;
    let runtime = Runtime::build(&[])?;
    let truth = TruthFiles::new(&shop, "truth");
    let dump = shop.path("dump");
    let mut command = runtime.work(&truth, &["profiled", "--launches", "150"]);
    command.args(arguments).arg("--dump").arg(&dump);
    command
        .env("VAIU_LAYOUT", layout)
        .env("VAIU_CYCLES", cycles);
    // A counter that wraps meanwhile, clocks that disagree.
    command
        .env("VAIU_SOC_HZ", "2e11")
        .env("VAIU_SKEW_NS", "-15000");
    command.env("VAIU_JITTER_NS", "2000");
    let stdout = checked(&mut command)?;
    let account = accounts(&stdout)?;
    anyhow::ensure!(account[0]["errors"] == 0, "{account:?}");
    Ok(Profiled {
        truth: truth.read_one()?,
        buffers: buffers(&dump)?,
    })
}

fn decode(run: &Profiled, layouts: &Layouts) -> (Vec<ActivityRecord>, Unknown, Vec<String>) {
    let context = BufferContext {
        pid: Some(run.truth.process.pid),
        ..BufferContext::default()
    };
    let mut decoder = Decoder::new(layouts);
    let (mut records, mut unknown) = (Vec::new(), Unknown::default());
    for buffer in &run.buffers {
        unknown += decoder.buffer(buffer, &context, |record| records.push(record));
    }
    let names = decoder.in_use().iter().map(|n| (*n).to_owned()).collect();
    (records, unknown, names)
}

/// The record that the decoder should read, from the truth.
fn expected(truth: &Record, has_cycles: bool) -> ActivityRecord {
    let kind = match truth.kind {
        1 => Kind::Compute,
        2 => Kind::Memset,
        3 => Kind::Memory,
        4 => Kind::Memcpy,
        _ => Kind::Runtime,
    };
    let (compute, runtime) = (kind == Kind::Compute, kind == Kind::Runtime);
    let (memory, device) = (kind == Kind::Memory, !runtime);
    let counted = has_cycles && (compute || kind == Kind::Memcpy) && truth.cycles != [0; 5];
    ActivityRecord {
        kind,
        status: if compute {
            aiprof::aiu::LayoutStatus::Published
        } else {
            aiprof::aiu::LayoutStatus::Assumed
        },
        code: (kind != Kind::Memset).then_some(truth.what),
        device: device.then_some(truth.device),
        context: (device && !memory).then_some(truth.context),
        stream: device.then_some(u64::from(truth.stream)),
        correlation: Some(u64::from(truth.corr)),
        start: EpochNs(truth.start),
        end: EpochNs(truth.end),
        queued: compute.then_some(EpochNs(truth.queued)),
        submitted: compute.then_some(EpochNs(truth.submitted)),
        amount: Some(truth.amount),
        address: memory.then_some(truth.address),
        pid: (runtime || memory).then_some(truth.pid),
        tid: runtime.then_some(u64::from(truth.tid)),
        name: compute.then(|| truth.name.clone()),
        cycles: counted.then_some(truth.cycles),
    }
}

#[test]
fn records_of_every_layout_in_the_table_are_the_truth() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let layouts = Layouts::builtin()?;
    let small = ["--buffer", "20000", "--threads", "2"];
    for (layout, cycles, in_use) in [
        (
            "natural",
            "1",
            [
                "compute-232",
                "runtime-natural",
                "memcpy-natural-cycles",
                "memory-natural",
            ],
        ),
        (
            "natural",
            "0",
            [
                "compute-192",
                "runtime-natural",
                "memcpy-natural",
                "memory-natural",
            ],
        ),
        (
            "packed",
            "1",
            [
                "compute-232",
                "runtime-packed",
                "memcpy-packed-cycles",
                "memory-packed",
            ],
        ),
        (
            "packed",
            "0",
            [
                "compute-192",
                "runtime-packed",
                "memcpy-packed",
                "memory-packed",
            ],
        ),
        (
            "narrow",
            "1",
            [
                "compute-232",
                "runtime-narrow",
                "memcpy-natural-cycles",
                "memory-natural",
            ],
        ),
        (
            "narrow",
            "0",
            [
                "compute-192",
                "runtime-narrow",
                "memcpy-natural",
                "memory-natural",
            ],
        ),
    ] {
        let run = profiled(layout, cycles, &small)?;
        let (records, unknown, names) = decode(&run, &layouts);
        assert_eq!(unknown, Unknown::default(), "{layout} {cycles}");
        assert_eq!(names, in_use, "{layout} {cycles}");
        assert!(run.buffers.len() > 3 && records.len() > 800);
        assert_eq!(records.len(), run.truth.records.len());
        for (record, truth) in records.iter().zip(&run.truth.records) {
            assert_eq!(*record, expected(truth, cycles == "1"), "{layout} {cycles}");
        }
        check_joins(&run.truth, &records)?;
    }
    Ok(())
}

/// Kernels are joined with their launches by correlation id, and have the names
/// and the durations that the device really took.
fn check_joins(truth: &Truth, records: &[ActivityRecord]) -> anyhow::Result<()> {
    let launches: BTreeMap<u64, &ActivityRecord> = records
        .iter()
        .filter(|r| r.kind == Kind::Runtime && r.code == Some(LAUNCH_CB_CMPT))
        .filter_map(|r| Some((r.correlation?, r)))
        .collect();
    let mut kernels = 0;
    for kernel in records
        .iter()
        .filter(|r| r.kind == Kind::Compute && r.code == Some(2))
    {
        let id = kernel.correlation.context("no id")?;
        let launch = launches.get(&id).context("no launch")?;
        assert_eq!(
            launch.code.and_then(events::name),
            Some("aiuLaunchControlBlocks")
        );
        let op = truth.operations.iter().find(|op| u64::from(op.corr) == id);
        let op = op.context("the device did no such thing")?;
        assert_eq!(kernel.name.as_ref(), Some(&op.name));
        assert_eq!(kernel.end.0 - kernel.start.0, op.at[3] - op.at[2]);
        kernels += 1;
    }
    let control = truth.operations.iter().filter(|op| op.kind == "control");
    assert_eq!(kernels, control.count());
    Ok(())
}

#[test]
fn layouts_that_no_table_has_are_unknown_and_never_misread() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let layouts = Layouts::builtin()?;
    for cycles in ["0", "1"] {
        let run = profiled("future", cycles, &["--buffer", "20000"])?;
        let (records, unknown, names) = decode(&run, &layouts);
        assert_eq!(records, [], "{names:?}");
        let all: usize = run.buffers.iter().map(Vec::len).sum();
        assert_eq!(unknown.bytes, all as u64);
        assert!(unknown.total() >= run.buffers.len() as u64, "{unknown:?}");
    }
    Ok(())
}

/// Too few buffers: what the program did not get is dropped and counted, what it
/// got is read.
#[test]
fn dropped_records_are_the_programs_loss_only() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let run = profiled("natural", "1", &["--buffer", "8000", "--buffers", "2"])?;
    let (records, unknown, _) = decode(&run, &Layouts::builtin()?);
    assert_eq!((unknown, run.buffers.len()), (Unknown::default(), 2));
    assert_eq!(records.len(), run.truth.records.len());
    assert!(!run.truth.dropped.is_empty());
    Ok(())
}

/// Record by record, as a probe at aiuptiActivityGetNextRecord sees them.
#[test]
fn records_one_by_one_are_the_truth() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let layouts = Layouts::builtin()?;
    let run = profiled("narrow", "1", &[])?;
    let context = BufferContext::default();
    let mut truths = run.truth.records.iter();
    for buffer in &run.buffers {
        // Walks as the runtime does, by the sizes in the truth.
        let mut at = 0;
        let mut decoder = Decoder::new(&layouts);
        while at < buffer.len() {
            let truth = truths.next().context("more records than told")?;
            let size = usize::try_from(truth.bytes)?;
            let seen = buffer
                .get(at..(at + 256).min(buffer.len()))
                .context("cut")?;
            let record = decoder.record(seen, Some(size), &context);
            assert_eq!(record, Ok(expected(truth, true)));
            at += size;
        }
    }
    assert!(truths.next().is_none());
    Ok(())
}

#[test]
fn metrics_file_is_read_while_it_is_rewritten() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let runtime = Runtime::build(&[])?;
    let truth = TruthFiles::new(&shop, "truth");
    let path = shop.path("metrics.0000:aa:00.0");
    let mut command = runtime.work(
        &truth,
        &["plain", "--launches", "600", "--pause-us", "1000"],
    );
    command
        .env("VAIU_METRICS", &path)
        .env("VAIU_METRICS_MS", "20");
    // Long enough for a reader that seldom gets the processor to meet it.
    command.env("VAIU_METRICS_HOLD_US", "8000");
    command.stdout(std::process::Stdio::null());
    let mut child = Child::start(&mut command)?;
    let (mut seen, mut rewritten, mut partial) = (BTreeMap::new(), 0, 0);
    let end = Instant::now() + Duration::from_secs(20);
    while child.is_running() && Instant::now() < end {
        std::thread::sleep(Duration::from_micros(700));
        if !path.exists() {
            continue;
        }
        if std::fs::read(&path)?.first() == Some(&b'!') {
            partial += 1;
        }
        match snapshot(|| std::fs::read(&path), 2) {
            Ok(metrics) => {
                let section = metrics.sections.first().context("no section")?;
                seen.insert(section.sequence, metrics);
            }
            Err(MetricsError::Rewriting) => rewritten += 1,
            Err(error) => return Err(error.into()),
        }
    }
    assert!(!child.is_running(), "the workload hangs");
    let truth = truth.read_one()?;
    assert!(
        seen.len() > 5 && rewritten > 0 && partial > 0,
        "{} {rewritten} {partial}",
        seen.len()
    );
    for (sequence, metrics) in &seen {
        let told = truth.metrics.iter().find(|m| m.seq == *sequence);
        let told = told.with_context(|| format!("nobody told of {sequence}"))?;
        let values = metrics.sections.iter().flat_map(|s| &s.values);
        let values: BTreeMap<u32, Vec<u64>> = values.map(|v| (v.id, v.samples.clone())).collect();
        assert_eq!(values, told.values);
    }
    // Bytes sent to the device and back, as the device counted them.
    let moved = |id: u32| -> u64 { truth.metrics.iter().flat_map(|m| &m.values[&id]).sum() };
    let bytes_in: u64 = truth.operations.iter().map(|op| op.bytes_in).sum();
    assert!(moved(0x14) * 1024 <= bytes_in && moved(0x14) * 1024 > bytes_in / 2);
    Ok(())
}

#[test]
fn old_metrics_files_are_refused_with_the_reason() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let runtime = Runtime::build(&[])?;
    let truth = TruthFiles::new(&shop, "truth");
    let path = shop.path("metrics");
    let mut command = runtime.work(&truth, &["plain", "--launches", "50", "--pause-us", "1000"]);
    checked(
        command
            .env("VAIU_METRICS", &path)
            .env("VAIU_METRICS_FORMAT", "old"),
    )?;
    let error = snapshot(|| std::fs::read(&path), 3);
    assert!(matches!(error, Err(MetricsError::OldFormat)), "{error:?}");
    Ok(())
}
