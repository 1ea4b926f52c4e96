//! Schedules of the virtual driver that the join of samples and launches must stand: the accounts
//! of the driver and the program agree.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;

use anyhow::Context as _;

use aiprof_tests::level_zero::driver::{Driver, Exports, Machine, NEEDS};
use aiprof_tests::level_zero::module::{Kernel, Module};
use aiprof_tests::level_zero::program::{Account, Run, build_paths, run};
use aiprof_tests::level_zero::real;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::truth::{Exec, Kind, Truth, Window};
use aiprof_tests::workload::{Workshop, checked};

const RECORD: u64 = 64;

/// A machine that writes records of `%d.%g` into the workshop.
fn machine(shop: &Workshop) -> anyhow::Result<Machine> {
    let file = shop.path("stalls.%d.%g").display().to_string();
    Ok(Machine::new(&Driver::build(Exports::All)?).set("VZE_STALLS", &file))
}

/// One kernel: 100 us, 102 samples.
fn module() -> Module {
    let kernel = Kernel::new("work", 100_000)
        .stall(0x40, "sbid", 100)
        .stall(0x80, "send", 2);
    Module::new(vec![kernel])
}

fn paths(
    shop: &Workshop,
    machine: &Machine,
    module: &Module,
    mode: &[&str],
) -> anyhow::Result<Run> {
    run(shop, &build_paths()?, machine, module, mode)
}

/// Written and lost samples by launch call.
fn by_launch(windows: &[Window]) -> BTreeMap<(u32, u64), (u64, u64)> {
    let mut out: BTreeMap<_, (u64, u64)> = BTreeMap::new();
    for window in windows {
        for sampled in &window.execs {
            let sum = out.entry((window.pid, sampled.seq)).or_default();
            *sum = (sum.0 + sampled.written, sum.1 + sampled.lost);
        }
    }
    out
}

fn kernels(truth: &Truth) -> Vec<&Exec> {
    let kernel = |e: &&Exec| e.kind == Kind::Kernel;
    truth.execs.iter().filter(kernel).collect()
}

#[test]
fn every_execution_has_its_samples() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    for mode in [
        &["launch", "plan=7030", "launches=200", "sync=10"][..],
        &[
            "launch",
            "paths=50",
            "plan=zipf",
            "launches=200",
            "sync=0",
            "events=1",
        ],
        &[
            "launch",
            "threads=3",
            "queues=2",
            "launches=50",
            "kernels=path",
        ],
    ] {
        let shop = Workshop::new()?;
        let run = paths(&shop, &machine(&shop)?, &module(), mode)?;
        let all = by_launch(&run.truth.windows);
        let known = run.account().paths()?;
        assert_eq!(all.len() as u64, run.account().total(), "{mode:?}");
        for ((_, seq), sum) in &all {
            assert_eq!(*sum, (102, 0), "{mode:?}: launch {seq}");
            assert!(known.contains_key(seq), "{mode:?}: launch {seq}");
        }
        let counted: u64 = run.truth.stalls().values().sum();
        assert_eq!(counted, 102 * run.account().total());
    }
    Ok(())
}

#[test]
fn plans_give_their_shares() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let machine = machine(&shop)?;
    let shares = |mode: &[&str]| -> anyhow::Result<BTreeMap<u32, usize>> {
        let run = paths(&shop, &machine, &Module::tiny(), mode)?;
        let mut out = BTreeMap::new();
        for path in run.account().paths()?.into_values() {
            *out.entry(path).or_default() += 1;
        }
        Ok(out)
    };
    let split = shares(&["launch", "plan=7030", "launches=1000"])?;
    assert_eq!(split, BTreeMap::from([(0, 700), (1, 300)]));
    let zipf = shares(&["launch", "plan=zipf", "paths=50", "launches=4499"])?;
    let sum: f64 = (1..=50).map(|k| 1.0 / f64::from(k)).sum();
    for path in 0..50 {
        let due = 4499.0 / f64::from(path + 1) / sum;
        let got = zipf.get(&path).copied().unwrap_or(0) as f64;
        assert!((got - due).abs() <= 2.0, "path {path}: {got}, not {due}");
    }
    Ok(())
}

#[test]
fn cost_follows_the_turn_not_the_size() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let kernel = Kernel::new("turns", 0)
        .turns(&[1_000_000, 9_000_000])
        .rate(0x40, "sbid", 100);
    let mode = ["launch", "launches=20"];
    let run = paths(&shop, &machine(&shop)?, &Module::new(vec![kernel]), &mode)?;
    let known = run.account().paths()?;
    let samples = by_launch(&run.truth.windows);
    for exec in kernels(&run.truth) {
        let long = known[&exec.seq] == 1;
        let ns = if long { 9_000_000 } else { 1_000_000 };
        assert_eq!(exec.end_ns - exec.start_ns, ns);
        assert_eq!(exec.groups, Some([1, 1, 1]));
        let due = ns / 10_000;
        let got = samples[&(exec.pid, exec.seq)].0;
        assert!(got.abs_diff(due) <= 1, "{got}, not {due}");
    }
    Ok(())
}

#[test]
fn gts_have_streams_of_their_own() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    // Work of the whole device is spread over all of them.
    let shop = Workshop::new()?;
    let spread = machine(&shop)?.set("VZE_GTS", "8");
    let run = paths(&shop, &spread, &module(), &["launch", "launches=16"])?;
    for gt in 0..8 {
        let of_gt = run.truth.windows.iter().filter(|w| w.gt == gt);
        let counts = of_gt.flat_map(|w| &w.counts).map(|c| c.3).sum::<u64>();
        let due = 16 * (100 / 8 + u64::from(gt < 4) + u64::from(gt < 2));
        assert_eq!(counts, due, "GT {gt}");
        assert!(shop.path(&format!("stalls.0.{gt}")).metadata()?.len() >= RECORD);
    }
    // Work of a sub-device is its GT's.
    let shop = Workshop::new()?;
    let own = machine(&shop)?.set("VZE_SUBDEVICES", "8");
    let mode = ["launch", "launches=16", "queues=8", "subs=8"];
    let run = paths(&shop, &own, &module(), &mode)?;
    let gts: BTreeMap<u64, i32> = run.truth.execs.iter().map(|e| (e.seq, e.sub)).collect();
    for window in &run.truth.windows {
        for sampled in &window.execs {
            assert_eq!(gts[&sampled.seq], window.gt as i32);
        }
    }
    let seen: BTreeSet<u32> = run.truth.windows.iter().map(|w| w.gt).collect();
    assert_eq!(seen.len(), 8);
    Ok(())
}

#[test]
fn dropped_windows_are_told() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let machine = machine(&shop)?.set("VZE_STALLS_DROP", "3");
    let run = paths(&shop, &machine, &module(), &["launch", "launches=500"])?;
    let windows = &run.truth.windows;
    assert!(windows.len() > 6, "{}", windows.len());
    for (i, window) in windows.iter().enumerate() {
        assert_eq!(window.dropped, u32::from(i % 3 == 2));
        assert_eq!(window.dropped == 1, window.records == 0 && window.lost > 0);
    }
    let bytes = shop.path("stalls.0.0").metadata()?.len();
    let records: u64 = windows.iter().map(|w| w.records).sum();
    assert_eq!(bytes, records * RECORD);
    let (written, lost) = by_launch(windows)
        .into_values()
        .fold((0, 0), |sum, x| (sum.0 + x.0, sum.1 + x.1));
    assert_eq!(written + lost, 500 * 102);
    assert!(lost > 0);
    Ok(())
}

#[test]
fn one_sample_of_many_is_written() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let machine = machine(&shop)?.set("VZE_STALLS_EVERY", "10");
    let run = paths(&shop, &machine, &module(), &["launch", "launches=100"])?;
    let written: u64 = by_launch(&run.truth.windows).values().map(|x| x.0).sum();
    let skipped: u64 = run.truth.windows.iter().map(|w| w.skipped).sum();
    assert_eq!(written, 1020);
    assert_eq!(written + skipped, 10_200);
    Ok(())
}

/// Addresses by kernel.
fn addresses(truth: &Truth) -> BTreeMap<String, BTreeSet<u64>> {
    let mut out: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for exec in kernels(truth) {
        let name = exec.kernel.clone().unwrap_or_default();
        out.entry(name).or_default().extend(exec.isa);
    }
    out
}

#[test]
fn a_place_is_used_again() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    for reuse in ["0", "1"] {
        let shop = Workshop::new()?;
        let machine = machine(&shop)?.set("VZE_ISA_REUSE", reuse);
        let other = Module::new(vec![Kernel::new("other", 50_000).stall(0x40, "sync", 9)]);
        let other = other.write(&shop.path("other.zebin"))?;
        let other = format!("module2={}", other.display());
        let mode = ["reload", "rounds=6", "launches=10", &other];
        let run = paths(&shop, &machine, &module(), &mode)?;
        let addresses = addresses(&run.truth);
        let (first, second) = (&addresses["work"], &addresses["other"]);
        if reuse == "1" {
            assert_eq!((first.len(), first), (1, second));
        } else {
            assert_eq!((first.len(), second.len()), (3, 3));
            assert!(first.is_disjoint(second));
        }
        for ((_, seq), sum) in by_launch(&run.truth.windows) {
            let due = if run.account().paths()?[&seq] == 0 {
                102
            } else {
                9
            };
            assert_eq!(sum, (due, 0));
        }
    }
    Ok(())
}

#[test]
fn kernels_share_an_allocation() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let machine = machine(&shop)?.set("VZE_ISA_POOL", "1");
    let mut small = ["a", "b", "c", "d"].map(|name| Kernel::new(name, 1000).stall(8, "sbid", 3));
    for kernel in &mut small {
        kernel.code.truncate(200);
    }
    let mode = ["launch", "paths=4", "kernels=path", "launches=8"];
    let run = paths(&shop, &machine, &Module::new(small.to_vec()), &mode)?;
    let addresses: Vec<u64> = addresses(&run.truth).into_values().flatten().collect();
    let steps: Vec<u64> = addresses.windows(2).map(|w| w[1] - w[0]).collect();
    // 200 bytes of code and 512 that hardware may read ahead, in units of 64.
    assert_eq!(steps, [768, 768, 768]);
    Ok(())
}

#[test]
fn two_processes_have_equal_addresses() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let mode = ["launch", "launches=50", "processes=2"];
    let run = paths(&shop, &machine(&shop)?, &module(), &mode)?;
    let pids: BTreeSet<u32> = run.truth.execs.iter().map(|e| e.pid).collect();
    assert_eq!(pids, run.accounts.iter().map(|a| a.pid).collect());
    assert_eq!(pids.len(), 2);
    assert_eq!(addresses(&run.truth)["work"].len(), 1);
    let bytes = shop.path("stalls.0.0").metadata()?.len();
    assert_eq!(
        bytes / RECORD,
        run.truth.windows.iter().map(|w| w.records).sum::<u64>()
    );
    Ok(())
}

#[test]
fn a_schedule_file_tells_of_real_code() -> anyhow::Result<()> {
    let needs = [&NEEDS[..], &real::NEEDS].concat();
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let zebin = real::compile(&shop, real::Product::Pvc)?;
    let schedule = shop.path("schedule");
    std::fs::write(
        &schedule,
        "# of several modules\nkernel saxpy ns=70000\nstall saxpy 0x20 sbid 5\n\
         kernel elsewhere ns=1\nstall elsewhere 0x10 send 1\n",
    )?;
    let machine = machine(&shop)?
        .truth(&shop.path("truth.json"))
        .set("VZE_SCHEDULE", &schedule.display().to_string())
        .set("VZE_STALLS_FORMAT", "pvc");
    let mut command = machine.command(&build_paths()?);
    command.args(["launch", "launches=30", "kernels=path", "paths=50"]);
    let account = Account::read(&checked(
        command.arg(format!("module={}", zebin.display())),
    )?)?;
    let truth = Truth::read(&shop.path("truth.json"))?;
    let launches = account[0].launches.get("saxpy").context("no saxpy")?;
    let stalls = truth.stalls();
    assert_eq!(stalls[&("saxpy".into(), 0x20, "sbid".into())], 5 * launches);
    assert_eq!(stalls.len(), 1);
    for exec in kernels(&truth) {
        if exec.kernel.as_deref() == Some("saxpy") {
            assert_eq!(exec.end_ns - exec.start_ns, 70_000);
        }
    }
    Ok(())
}

#[test]
fn static_probes_fire_as_in_the_patched_driver() -> anyhow::Result<()> {
    let needs = [&NEEDS[..], &[Need::Root, Need::Tool("bpftrace")]].concat();
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let driver = Driver::build(Exports::All)?;
    let dump = shop.path("dump");
    std::fs::create_dir(&dump)?;
    let machine = machine(&shop)?
        .truth(&shop.path("truth.json"))
        .set("VZE_USDT", "1")
        .set("VZE_DUMP", &dump.display().to_string());
    let module = module();
    let file = module.write(&shop.path("module.zebin"))?;
    let path = driver.path().display();
    // It needs a process for static probes only where they have no semaphores.
    let script = format!(
        "usdt:{path}:level_zero:launch_kernel \
         {{ printf(\"%lx %lx %ld %s\\n\", arg0, arg1, arg2, str(arg3)); }} \
         usdt:{path}:level_zero:compile_kernel {{ printf(\"file %s\\n\", str(arg0)); }} \
         interval:ms:100 {{ printf(\"attached\\n\"); }}"
    );
    let mut bpftrace = std::process::Command::new("bpftrace")
        .args(["-B", "line", "-e", &script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut stdout = BufReader::new(bpftrace.stdout.take().context("stdout")?);
    let mut out = String::new();
    while !out.contains("attached\n") {
        anyhow::ensure!(stdout.read_line(&mut out)? > 0, "bpftrace ended: {out}");
    }
    let mut command = machine.command(&build_paths()?);
    command.args(["launch", "launches=3"]);
    checked(command.arg(format!("module={}", file.display())))?;
    checked(std::process::Command::new("kill").args(["-INT", &bpftrace.id().to_string()]))?;
    stdout.read_to_string(&mut out)?;
    bpftrace.wait()?;
    let truth = Truth::read(&shop.path("truth.json"))?;
    let isa = kernels(&truth).first().and_then(|e| e.isa).context("isa")?;
    let line = format!("800100000000 {isa:x} 4096 work");
    let launches = out.lines().filter(|l| **l == line).count();
    assert_eq!(launches, 3, "{out}");
    let dumped = out.lines().find_map(|l| l.strip_prefix("file "));
    let dumped = dumped.with_context(|| format!("no module in {out}"))?;
    assert_eq!(std::fs::read(dumped)?, module.zebin());
    Ok(())
}

/// A little-endian number of `n` bytes, taken off the front.
fn take(bytes: &mut &[u8], n: usize) -> anyhow::Result<u64> {
    let (number, rest) = bytes.split_at_checked(n).context("cut off")?;
    *bytes = rest;
    let digits = number.iter().rev();
    Ok(digits.fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

#[test]
fn framed_windows_have_their_times_and_drops() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let machine = machine(&shop)?
        .set("VZE_STALLS_FRAMED", "1")
        .set("VZE_STALLS_DROP", "4");
    let mode = ["launch", "launches=300", "processes=2"];
    let run = paths(&shop, &machine, &module(), &mode)?;
    let file = std::fs::read(shop.path("stalls.0.0"))?;
    let mut bytes = file.strip_prefix(b"aipdevc1").context("magic")?;
    let mut numbers = [1, 1, 2, 4, 4, 4, 8, 4].map(|n| take(&mut bytes, n));
    let header: Vec<u64> = numbers.iter_mut().flatten().map(|n| *n).collect();
    // Layout xe2, CLOCK_MONOTONIC, record, card, GT, cycles and base not known, name.
    assert_eq!(header, [1, 1, RECORD, 0, 0, 0, u64::MAX, 13]);
    let (name, mut bytes) = bytes.split_at(13);
    assert_eq!(name, b"virtual 0 GT0");
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let (from, to) = (take(&mut bytes, 8)?, take(&mut bytes, 8)?);
        let (drops, length) = (take(&mut bytes, 4)?, take(&mut bytes, 4)?);
        bytes = bytes.get(length as usize..).context("cut off")?;
        frames.push((from, to, drops, length / RECORD));
    }
    let told = run.truth.windows.iter();
    let mut told: Vec<_> = told
        .map(|w| (w.t0, w.t1, u64::from(w.dropped), w.records))
        .collect();
    // The processes write in turn.
    frames.sort_unstable();
    told.sort_unstable();
    assert_eq!(frames, told);
    assert!(frames.iter().any(|frame| frame.2 == 1));
    Ok(())
}
