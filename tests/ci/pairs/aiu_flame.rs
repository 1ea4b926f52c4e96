//! The flame graph of the virtual AIU's programs against what its devices did: cycles
//! by call path, kernel and phase.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context as _;

use aiprof_tests::aiprof::{Aiprof, lost};
use aiprof_tests::aiu::{Call, Operation, Runtime, Truth, TruthFiles, accounts};
use aiprof_tests::folded::base;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::pprof::{self, Sample};
use aiprof_tests::workload::Workshop;

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("c++")];

/// Phases in the order of their windows.
const PHASES: [&str; 4] = ["dma in", "prepare", "execute", "dma out"];

/// By process, call path, kernel or operation, and phase.
type Key = (u32, &'static str, String, &'static str);

/// Cycles, and nanoseconds.
type Sums = BTreeMap<Key, (u64, u64)>;

/// A recording of a program.
struct Recorded {
    truths: Vec<Truth>,
    samples: Vec<Sample>,
    stderr: String,
}

/// Records a program with its own records switched on, as a pprof file.
fn record(
    arguments: &[&str],
    environment: &[(&str, &str)],
    options: &[&str],
) -> anyhow::Result<Recorded> {
    let shop = Workshop::new()?;
    let runtime = Runtime::build(&[])?;
    let truth = TruthFiles::new(&shop, "truth");
    let file = shop.path("profile.pb.gz");
    let work = runtime.work(&truth, arguments);
    let mut command = Aiprof::with(options.iter().copied())
        .option("--only")
        .option("-o")
        .option(file.as_os_str())
        .command(work.get_program(), &work.get_args().collect::<Vec<_>>())
        .to_command()?;
    for (name, value) in work.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.envs(environment.iter().copied());
    let output = command.output()?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    anyhow::ensure!(output.status.success(), "{}: {stderr}", output.status);
    for account in accounts(&String::from_utf8_lossy(&output.stdout))? {
        anyhow::ensure!(account["errors"].as_u64().unwrap_or(0) == 0, "{account}");
    }
    Ok(Recorded {
        truths: truth.read_all()?,
        samples: pprof::read(Path::new(&file))?,
        stderr,
    })
}

/// Where in the program a launch was made: one of the workload's functions.
fn path_of(sample: &Sample) -> &'static str {
    let has = |name: &str| sample.frames.iter().any(|frame| base(frame) == name);
    let paths = ["path_direct", "path_layers", "path_graph", "one_step"];
    let known = paths.into_iter().find(|path| has(path));
    let is_cut = sample.frames.iter().any(|f| f.starts_with("[stack "));
    known.unwrap_or(if is_cut { CUT } else { "unknown" })
}

/// The sums of devices in the profile.
fn seen(recorded: &Recorded) -> anyhow::Result<Sums> {
    let mut sums = Sums::new();
    for sample in &recorded.samples {
        let Some(&cycles) = sample.values.get("device_samples") else {
            continue;
        };
        let dash = sample.frames.iter().position(|frame| frame == "-");
        let device = dash.and_then(|at| sample.frames.get(at + 1..));
        let (work, phase) = match device.context("no device frames")? {
            [work] => (work, ""),
            [work, phase] => {
                let known = PHASES.into_iter().find(|known| known == phase);
                (work, known.context("no such phase")?)
            }
            more => anyhow::bail!("{more:?}"),
        };
        let pid = u32::try_from(sample.numbers["pid"])?;
        let key = (pid, path_of(sample), work.clone(), phase);
        let time = sample.values.get("device_time").copied().unwrap_or(0);
        let sum = sums.entry(key).or_default();
        sum.0 += u64::try_from(cycles)?;
        sum.1 += u64::try_from(time)?;
        for bound in ["certain", "possible"] {
            anyhow::ensure!(sample.numbers[bound] == cycles, "{bound}: {sample:?}");
        }
    }
    Ok(sums)
}

/// The path of a thread's n-th launch, as the workload's source has it.
fn path_of_launch(paths: bool, n: usize) -> &'static str {
    match n % 6 {
        _ if !paths => "one_step",
        0 => "path_direct",
        1 | 2 => "path_layers",
        _ => "path_graph",
    }
}

/// The path of each launch, by the id of the call that hands it to the device.
fn paths_of(truth: &Truth, paths: bool) -> BTreeMap<u32, &'static str> {
    let is_launch = |call: &&Call| call.function.ends_with("launchOperationCompute");
    let mut of_threads: BTreeMap<u32, usize> = BTreeMap::new();
    let mut calls: Vec<&Call> = truth.calls.iter().collect();
    calls.sort_by_key(|call| call.t0);
    let mut outer = BTreeMap::new();
    for call in calls.iter().copied().filter(is_launch) {
        let n = of_threads.entry(call.tid).or_default();
        outer.insert(call.id, path_of_launch(paths, *n));
        *n += 1;
    }
    let found = calls.iter().map(|call| {
        let path = outer.get(&call.parent).or(outer.get(&call.id));
        (call.id, path.copied().unwrap_or("one_step"))
    });
    found.collect()
}

/// Cycles of each phase of what the device did: a counter of 32 bits.
fn cycles(operation: &Operation, phase: usize) -> u64 {
    let [from, to] = [operation.ts[phase], operation.ts[phase + 1]];
    to.wrapping_sub(from) & 0xffff_ffff
}

/// What devices did, of what was recorded, by the truth. Kernels are in cycles. Copies, whose
/// records have no counter values, are in nanoseconds.
fn expected(truths: &[Truth], paths: bool) -> Sums {
    let mut sums = Sums::new();
    for truth in truths {
        let of_call = paths_of(truth, paths);
        let of_devices = truth.records.iter().filter(|r| matches!(r.kind, 1 | 4));
        let recorded: BTreeSet<u32> = of_devices.map(|record| record.corr).collect();
        let operations = truth.operations.iter();
        for operation in operations.filter(|op| recorded.contains(&op.corr)) {
            let path = of_call[&operation.corr];
            let phases = (0..4).map(|phase| {
                let took = operation.at[phase + 1] - operation.at[phase];
                match operation.kind.as_str() {
                    "control" => (PHASES[phase], cycles(operation, phase), took),
                    _ => ("", took, took),
                }
            });
            for (phase, ticks, took) in phases.filter(|(_, ticks, _)| *ticks > 0) {
                let name = match operation.kind.as_str() {
                    "htod" => "Memcpy (HtoD)",
                    "dtoh" => "Memcpy (DtoH)",
                    _ => &operation.name,
                };
                let key = (truth.process.pid, path, name.to_owned(), phase);
                let sum = sums.entry(key).or_default();
                sum.0 += ticks;
                sum.1 += took;
            }
        }
    }
    sums
}

/// The path of a stack that does not reach the program's functions, and is marked as cut.
const CUT: &str = "cut";

/// How far off a profile is.
struct Off {
    /// The largest difference in time, as a share.
    time: f64,
    /// Share of the cycles whose launch stack was cut before the path showed.
    cut: f64,
}

/// Compares counts exactly, and times within `share` of them. What is missing at a path must be at
/// a stack that is marked as cut.
fn compare(recorded: &Recorded, paths: bool, share: f64) -> anyhow::Result<Off> {
    let (seen, expected) = (seen(recorded)?, expected(&recorded.truths, paths));
    let difference = || format!("{seen:#?}\n{expected:#?}\n{}", recorded.stderr);
    let mut off = Off {
        time: 0.0,
        cut: 0.0,
    };
    for (key, sum) in &seen {
        let (path, most) = (key.1, expected.get(key));
        let fits = path == CUT || most.is_some_and(|most| sum.0 <= most.0);
        let at_key =
            |s: &&Sample| s.numbers.get("pid") == Some(&key.0.into()) && path_of(s) == path;
        let stacks = || recorded.samples.iter().filter(at_key).map(|s| &s.frames);
        anyhow::ensure!(
            fits,
            "{key:?}: {:#?}\n{}",
            stacks().collect::<Vec<_>>(),
            difference()
        );
    }
    let (all, truth) = (over_paths(&seen), over_paths(&expected));
    anyhow::ensure!(all.len() == truth.len(), "{}", difference());
    for (key, (count, time)) in &all {
        let true_one = truth.get(key).with_context(difference)?;
        anyhow::ensure!(*count == true_one.0, "{key:?}: {}", difference());
        let wrong = (*time as f64 - true_one.1 as f64).abs() / true_one.1 as f64;
        anyhow::ensure!(wrong <= share, "{key:?}: {time} ns, not {}", true_one.1);
        off.time = off.time.max(wrong);
    }
    let total: u64 = seen.values().map(|sum| sum.0).sum();
    let cut = seen.iter().filter(|(key, _)| key.1 == CUT);
    off.cut = cut.map(|(_, sum)| sum.0).sum::<u64>() as f64 / total as f64;
    let unattributed = lost(&recorded.stderr, "device samples without a launch");
    anyhow::ensure!(unattributed == 0, "{}", recorded.stderr);
    let beside = lost(&recorded.stderr, "device operations that overlap others");
    anyhow::ensure!(beside == 0, "the only engine: {}", recorded.stderr);
    Ok(off)
}

/// Sums of all call paths.
fn over_paths(sums: &Sums) -> Sums {
    let mut all = Sums::new();
    for ((pid, _, work, phase), (ticks, time)) in sums {
        let sum = all.entry((*pid, "", work.clone(), phase)).or_default();
        sum.0 += ticks;
        sum.1 += time;
    }
    all
}

/// The first launches are not recorded by the runtime: their stacks are those of code
/// that has just begun to run, and may be cut.
const WARM: [&str; 4] = ["--late", "100", "--pause-us", "1000"];

#[test]
fn cycles_by_call_path_kernel_and_phase_are_the_device_s() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    for (arguments, paths) in [
        (&["timed", "--paths", "--launches", "700"][..], true),
        (&["timed", "--launches", "400"], false),
    ] {
        let recorded = record(&[arguments, &WARM].concat(), &[], &["--aiu-timing"])?;
        assert!(recorded.truths[0].records.len() >= 600);
        let off = compare(&recorded, paths, 0.01)?;
        println!(
            "{arguments:?}: times within {:.6} %, stacks cut {:.3} %",
            off.time * 100.0,
            off.cut * 100.0
        );
        assert!(off.cut < 0.05, "{}", recorded.stderr);
    }
    // Read record by record, from several threads.
    let threads = [
        "timed",
        "--threads",
        "3",
        "--streams",
        "2",
        "--buffer",
        "20000",
    ];
    compare(&record(&threads, &[], &["--aiu-timing"])?, false, 0.01)?;
    Ok(())
}

/// 1.07 s to a wrap, a clock that is 300 ppm fast, and records that are up to 200 us off. Cycles
/// are still exact, and times within the 1 % that a fit is used for.
#[test]
fn wraps_drift_and_jitter_leave_the_cycles_exact() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let environment = [
        ("VAIU_SOC_HZ", "4e9"),
        ("VAIU_DRIFT_PPM", "300"),
        ("VAIU_JITTER_NS", "200000"),
        ("VAIU_LAYOUT", "packed"),
    ];
    let arguments = ["timed", "--launches", "1500", "--pause-us", "2000"];
    let recorded = record(&arguments, &environment, &["--aiu-timing"])?;
    let operations = &recorded.truths[0].operations;
    let wrapped = operations.windows(2).filter(|w| w[1].ts[0] < w[0].ts[0]);
    assert!(wrapped.count() >= 2, "the counter wraps");
    let off = compare(&recorded, false, 0.01)?;
    println!("times within {:.6} %", off.time * 100.0);
    Ok(())
}

/// Before libaiupti #114 records had no counter values: each has its own times.
#[test]
fn records_without_counter_values_are_their_own_length() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let environment = [("VAIU_CYCLES", "0")];
    let arguments = ["timed", "--paths", "--launches", "120"];
    let recorded = record(&arguments, &environment, &["--aiu-timing"])?;
    let seen = over_paths(&seen(&recorded)?);
    let mut expected = over_paths(&expected(&recorded.truths, true));
    expected.values_mut().for_each(|sum| sum.0 = sum.1);
    assert_eq!(seen, expected, "{}", recorded.stderr);
    Ok(())
}

#[test]
fn each_device_is_named_and_has_the_cycles_of_its_process() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let environment = [("VAIU_DRIFT_PPM", "-50,80")];
    let ranks = ["timed", "--paths", "--ranks", "2", "--launches", "240"];
    let arguments = [&ranks[..], &WARM].concat();
    let recorded = record(&arguments, &environment, &["--aiu-timing"])?;
    assert_eq!(recorded.truths.len(), 2);
    compare(&recorded, true, 0.01)?;
    for truth in &recorded.truths {
        let pid = i64::from(truth.process.pid);
        let own = recorded.samples.iter().filter(|sample| {
            sample.numbers["pid"] == pid && sample.values.contains_key("device_samples")
        });
        let expected = format!("AIU {}", truth.devices[0].device);
        let names: Vec<_> = own.map(|sample| sample.texts["device"].as_str()).collect();
        assert!(!names.is_empty() && names.iter().all(|name| *name == expected));
    }
    Ok(())
}

/// Whoever writes a capture decides later.
#[test]
fn a_capture_of_a_program_has_the_same_in_its_report() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let runtime = Runtime::build(&[])?;
    let truth = TruthFiles::new(&shop, "truth");
    let [capture, file] = ["run.aiprof", "run.pb.gz"].map(|name| shop.path(name));
    let work = runtime.work(&truth, &["timed", "--paths", "--launches", "240"]);
    let mut command = Aiprof::with(["--only", "--aiu-timing", "-o"])
        .option(capture.as_os_str())
        .command(work.get_program(), &work.get_args().collect::<Vec<_>>())
        .to_command()?;
    for (name, value) in work.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let output = command.output()?;
    assert!(output.status.success(), "{output:?}");
    let report = Aiprof::with(["report"])
        .option(capture.as_os_str())
        .option("-o")
        .option(file.as_os_str())
        .to_command()?
        .output()?;
    let stderr = String::from_utf8_lossy(&report.stderr).into_owned();
    assert!(report.status.success(), "{stderr}");
    let recorded = Recorded {
        truths: truth.read_all()?,
        samples: pprof::read(&file)?,
        stderr,
    };
    compare(&recorded, true, 0.01)?;
    Ok(())
}

/// Where no AIU is found and none is asked for, nothing is probed.
#[test]
fn unasked_and_without_a_device_nothing_is_observed() -> anyhow::Result<()> {
    let name = "unasked_and_without_a_device_nothing_is_observed";
    skip_unless!(&NEEDS);
    if has_aiu() {
        aiprof_tests::need::skip(name, "this machine has an AIU");
        return Ok(());
    }
    let environment = [("ENABLE_FLEX_TIMING", "1")];
    let recorded = record(&["timed"], &environment, &[])?;
    assert!(seen(&recorded)?.is_empty());
    assert!(!recorded.stderr.contains("probes:"), "{}", recorded.stderr);
    Ok(())
}

/// Whether an AIU is on the PCI bus.
fn has_aiu() -> bool {
    let devices = std::fs::read_dir("/sys/bus/pci/devices").into_iter().flatten();
    let mut ids = devices.flatten().map(|device| {
        ["vendor", "device"].map(|name| {
            let id = std::fs::read_to_string(device.path().join(name));
            id.unwrap_or_default().trim().to_owned()
        })
    });
    ids.any(|[vendor, device]| vendor == "0x1014" && ["0x06a7", "0x06a8"].contains(&&*device))
}
