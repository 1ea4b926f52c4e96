//! EU stall records of the virtual driver: the bytes are xe's, the counts are the
//! schedule's.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

use aiprof::collect::device::{DeviceOptions, DeviceSamplers, ReplaySpec};
use aiprof::eu_stall;
use aiprof::profile::StallReason;
use aiprof::wire::{Event, StallWindow};
use aiprof_tests::level_zero::driver::{Driver, Exports, Machine, NEEDS};
use aiprof_tests::level_zero::module::{Kernel, Module, REASONS};
use aiprof_tests::level_zero::program::{Run, build_paths, build_work, run};
use aiprof_tests::need::skip_unless;
use aiprof_tests::truth::Kind;
use aiprof_tests::workload::{Workshop, checked};

const RECORD: usize = 64;

/// Where a field lies in a record: first bit and width.
type Field = (usize, usize);

/// A record's layout, by the driver's name for the hardware.
struct Layout {
    name: &'static str,
    ip: Field,
    /// First bits of the counters and their reasons.
    counters: &'static [(&'static str, usize)],
    /// Addresses count from the instruction base address.
    relative: bool,
}

/// As struct xe_eu_stall_data_pvc, _xe2 and _xe3p have them (Linux,
/// drivers/gpu/drm/xe/xe_eu_stall.c).
const LAYOUTS: [Layout; 3] = [
    Layout {
        name: "pvc",
        ip: (0, 29),
        counters: &[
            ("active", 29),
            ("other", 37),
            ("control", 45),
            ("pipe", 53),
            ("send", 61),
            ("dist", 69),
            ("sbid", 77),
            ("sync", 85),
            ("fetch", 93),
        ],
        relative: true,
    },
    Layout {
        name: "xe2",
        ip: (0, 29),
        counters: &[
            ("tdr", 29),
            ("other", 37),
            ("control", 45),
            ("pipe", 53),
            ("send", 61),
            ("dist", 69),
            ("sbid", 77),
            ("sync", 85),
            ("fetch", 93),
            ("active", 101),
        ],
        relative: true,
    },
    Layout {
        name: "xe3p",
        ip: (0, 61),
        counters: &[
            ("tdr", 61),
            ("other", 69),
            ("control", 77),
            ("pipe", 85),
            ("send", 93),
            ("dist", 101),
            ("sbid", 109),
            ("sync", 117),
            ("fetch", 125),
            ("active", 133),
        ],
        relative: false,
    },
];

const ISA_BASE: u64 = 0x8001_0000_0000;

fn bits(record: &[u8], (at, width): Field) -> u64 {
    (0..width)
        .map(|i| {
            let bit = at + i;
            u64::from(record[bit / 8] >> (bit % 8) & 1) << i
        })
        .sum()
}

/// Counts by device address and reason.
fn decode(bytes: &[u8], layout: &Layout) -> BTreeMap<(u64, &'static str), u64> {
    let mut out = BTreeMap::new();
    assert!(bytes.len().is_multiple_of(RECORD));
    for record in bytes.chunks(RECORD) {
        let base = if layout.relative { ISA_BASE } else { 0 };
        let address = base + (bits(record, layout.ip) << 3);
        let mut any = 0;
        for (reason, at) in layout.counters {
            let n = bits(record, (*at, 8));
            any += n;
            if n > 0 {
                *out.entry((address, *reason)).or_default() += n;
            }
        }
        assert!(any > 0, "an empty record");
        // Nothing behind the last counter is used.
        let last = layout.counters.iter().map(|c| c.1 + 8).max().unwrap_or(0);
        for bit in last..RECORD * 8 {
            assert_eq!(bits(record, (bit, 1)), 0, "bit {bit}");
        }
    }
    out
}

/// The same by aiprof's own decoder.
fn decode_as_aiprof(
    bytes: &[u8],
    layout: &Layout,
) -> anyhow::Result<BTreeMap<(u64, &'static str), u64>> {
    let known: eu_stall::Layout = layout.name.parse().map_err(anyhow::Error::msg)?;
    assert_eq!(known.relative(), layout.relative);
    let mut sums = eu_stall::Sums::new(known, RECORD, 1 << 16);
    sums.add(bytes);
    let window = sums.take(if layout.relative { ISA_BASE } else { 0 });
    assert_eq!((window.refused, window.strange, window.drops), (0, 0, 0));
    assert_eq!(window.records, (bytes.len() / RECORD) as u64);
    let mut out = BTreeMap::new();
    for count in &window.counts {
        for (reason, n) in StallReason::ALL.into_iter().zip(count.counts) {
            if n > 0 {
                out.insert((count.address, short_name(reason)), n.into());
            }
        }
    }
    Ok(out)
}

/// The driver's name for a reason.
fn short_name(reason: StallReason) -> &'static str {
    match reason.name() {
        "pipestall" => "pipe",
        "dist_acc" => "dist",
        "inst_fetch" => "fetch",
        same => same,
    }
}

/// What the schedule and the executions of a run demand.
fn expected(run: &Run, module: &Module, layout: &Layout) -> BTreeMap<(u64, &'static str), u64> {
    let mut out = BTreeMap::new();
    for exec in run.truth.execs.iter().filter(|e| e.kind == Kind::Kernel) {
        let same = |k: &&Kernel| Some(&k.name) == exec.kernel.as_ref();
        let Some(kernel) = module.kernels.iter().find(same) else {
            continue;
        };
        for stall in &kernel.stalls {
            if layout.counters.iter().all(|c| c.0 != stall.reason) {
                continue;
            }
            let address = exec.isa.unwrap_or(0) + u64::from(stall.offset);
            *out.entry((address, stall.reason)).or_default() += u64::from(stall.count);
        }
    }
    out
}

/// Every reason at its own instruction, with counts that need several records.
fn module_of_all_reasons() -> Module {
    let mut kernel = Kernel::new("all_reasons", 20_000);
    for (i, reason) in REASONS.iter().enumerate() {
        let i = i as u32;
        kernel = kernel.stall(0x40 + 8 * i, reason, 1 + 100 * i);
        kernel = kernel.stall(0x200, reason, 3);
    }
    Module::new(vec![kernel, Kernel::new("quiet", 1000)])
}

#[test]
fn records_hold_the_schedule() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let driver = Driver::build(Exports::All)?;
    let program = build_work()?;
    let module = module_of_all_reasons();
    for layout in &LAYOUTS {
        let shop = Workshop::new()?;
        let file = shop.path("stalls.0");
        let machine = Machine::new(&driver)
            .set("VZE_STALLS", &shop.path("stalls.%d").display().to_string())
            .set("VZE_STALLS_FORMAT", layout.name);
        let run = run(&shop, &program, &machine, &module, &["basic", "rounds=4"])?;
        let bytes = std::fs::read(&file)?;
        assert_eq!(
            decode(&bytes, layout),
            expected(&run, &module, layout),
            "{}",
            layout.name
        );
        assert_eq!(decode_as_aiprof(&bytes, layout)?, decode(&bytes, layout));
        let windows = &run.truth.windows;
        let written: u64 = windows.iter().map(|w| w.records).sum();
        assert_eq!(written, (bytes.len() / RECORD) as u64);
        assert!(windows.iter().all(|w| w.lost == 0));
        assert_eq!(run.truth.stalls_refused, 0);
    }
    Ok(())
}

#[test]
fn long_kernels_spread_over_windows() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let machine = Machine::new(&Driver::build(Exports::All)?)
        .set("VZE_STALLS", &shop.path("stalls").display().to_string())
        .set("VZE_STALLS_MS", "2");
    // One sample a microsecond.
    let module = Module::new(vec![
        Kernel::new("long", 40_000_000).stall(0x40, "sbid", 40_000),
    ]);
    let run = run(
        &shop,
        &build_work()?,
        &machine,
        &module,
        &["paths", "rounds=0"],
    )?;
    assert!(run.truth.windows.is_empty());
    let run = self::run(
        &shop,
        &build_work()?,
        &machine,
        &module,
        &["late", "launches=2"],
    )?;
    assert!(run.truth.windows.len() > 10, "{:?}", run.truth.windows);
    let start = run.truth.execs.iter().map(|e| e.start_ns).min();
    let start = start.context("no executions")?;
    let mut sum = 0;
    for window in &run.truth.windows {
        assert!(window.t0 < window.t1);
        sum += window.counts.iter().map(|c| c.3).sum::<u64>();
        // The kernels run one after the other: never more than the time that passed.
        assert!(sum <= (window.t1 - start) / 1000 + 1, "{window:?}");
    }
    assert_eq!(sum, 80_000);
    Ok(())
}

/// Makes a FIFO and reads it in a thread until `stop` is written to it.
fn read_fifo(path: &Path) -> anyhow::Result<std::thread::JoinHandle<Vec<u8>>> {
    checked(Command::new("mkfifo").arg(path))?;
    // Both ends: otherwise opening waits, and the end comes with the first writer's.
    let mut file = std::fs::File::options().read(true).write(true).open(path)?;
    Ok(std::thread::spawn(move || {
        let mut all = Vec::new();
        let mut piece = [0; 4096];
        while let Ok(n) = file.read(&mut piece) {
            all.extend_from_slice(&piece[..n]);
            if all.ends_with(b"stop") {
                all.truncate(all.len() - 4);
                break;
            }
        }
        all
    }))
}

#[test]
fn a_fifo_carries_the_same_records() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let fifo = shop.path("stalls");
    let reader = read_fifo(&fifo)?;
    let machine =
        Machine::new(&Driver::build(Exports::All)?).set("VZE_STALLS", &fifo.display().to_string());
    let module = module_of_all_reasons();
    let run = run(
        &shop,
        &build_work()?,
        &machine,
        &module,
        &["basic", "rounds=3"],
    )?;
    std::fs::write(&fifo, "stop")?;
    let bytes = reader.join().ok().context("the reader panicked")?;
    let layout = &LAYOUTS[1];
    assert_eq!(decode(&bytes, layout), expected(&run, &module, layout));
    Ok(())
}

/// The windows of a replay device that reads the driver's FIFO, and the driver's own.
struct Watched {
    read: Vec<StallWindow>,
    written: Vec<aiprof_tests::truth::Window>,
}

fn watch_live(module: &Module) -> anyhow::Result<Watched> {
    let shop = Workshop::new()?;
    let fifo = shop.path("stalls");
    checked(Command::new("mkfifo").arg(&fifo))?;
    let spec: ReplaySpec = format!("xe2:{}", fifo.display())
        .parse()
        .map_err(anyhow::Error::msg)?;
    let mut samplers = DeviceSamplers::start(&DeviceOptions {
        xe: false,
        replay: vec![spec],
        ..DeviceOptions::default()
    })?;
    let machine =
        Machine::new(&Driver::build(Exports::All)?).set("VZE_STALLS", &fifo.display().to_string());
    let run = run(
        &shop,
        &build_work()?,
        &machine,
        module,
        &["late", "launches=2"],
    )?;
    samplers.stop();
    anyhow::ensure!(samplers.problems().is_empty(), "{:?}", samplers.problems());
    let window = |event| match event {
        Event::Stalls(window) => Some(window),
        _ => None,
    };
    Ok(Watched {
        read: samplers.events().filter_map(window).collect(),
        written: run.truth.windows,
    })
}

/// Longer windows of the driver are not judged.
const LATE_NS: u64 = 20_000_000;

/// Each record was sampled within the driver's window, and is read in one of aiprof's:
/// that must hold the driver's.
#[test]
fn windows_of_a_live_fifo_hold_those_of_the_driver() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let module = Module::new(vec![
        Kernel::new("long", 400_000_000).stall(0x40, "sbid", 40_000),
    ]);
    let watched = watch_live(&module)?;
    let samples = |w: &StallWindow| w.counts.iter().flat_map(|c| c.counts).sum::<u32>();
    assert_eq!(watched.read.iter().map(samples).sum::<u32>(), 80_000);
    let mut read = watched
        .read
        .iter()
        .flat_map(|w| (0..w.records).map(move |_| w));
    let (mut all, mut held, mut worst) = (0, 0, 0);
    for written in &watched.written {
        for _ in 0..written.records {
            let read = read.next().context("records are missing")?;
            let before = read.from_ns.saturating_sub(written.t0);
            let after = written.t1.saturating_sub(read.to_ns);
            // Its thread had to wait for a CPU for longer than aiprof allows for.
            if written.t1 - written.t0 > LATE_NS {
                continue;
            }
            all += 1;
            held += u64::from(before == 0 && after == 0);
            worst = worst.max(before).max(after);
        }
    }
    assert!(read.next().is_none());
    eprintln!("{held} of {all} records in a window that holds the driver's; worst {worst} ns");
    assert!(all > 100, "{all}");
    // It may also have to wait between looking at the clock and writing.
    assert!(held * 100 >= all * 95, "{held} of {all}, worst {worst} ns");
    Ok(())
}

/// Several processes leave while their work is in flight: all their calls are in one
/// truth file, and every sample is of an execution that is there too.
#[test]
fn processes_that_leave_early_leave_a_whole_truth() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let module = Module::new(vec![Kernel::new("work", 20_000).rate(0x40, "sbid", 200)]);
    for how in ["processes=3", "forks=2"] {
        let shop = Workshop::new()?;
        let records = shop.path("stalls").display().to_string();
        let machine = Machine::new(&Driver::build(Exports::All)?).set("VZE_STALLS", &records);
        let mode = ["launch", how, "leave=1", "sync=0", "launches=3000"];
        let run = run(&shop, &build_paths()?, &machine, &module, &mode)?;
        assert_eq!(run.truth.launch_calls().count(), 9000, "{how}");
        let begun: BTreeSet<(u32, u64)> = run.truth.execs.iter().map(|e| (e.pid, e.seq)).collect();
        assert!(begun.len() < 9000, "{how}: nothing was in flight");
        let sampled = run.truth.windows.iter();
        let sampled = sampled.flat_map(|w| w.execs.iter().map(|e| (w.pid, e.seq)));
        let unknown: Vec<_> = sampled.filter(|key| !begun.contains(key)).collect();
        assert!(unknown.is_empty(), "{how}: {unknown:?}");
        let last = run.truth.windows.iter().map(|w| w.t1).max();
        let end = run.truth.execs.iter().map(|e| e.end_ns).max();
        assert!(last.is_some() && end <= last, "{how}: {end:?} {last:?}");
    }
    Ok(())
}
