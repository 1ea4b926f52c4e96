//! The virtual Level Zero driver proves itself: against the account of the
//! program, against the clock's formula and against bpftrace.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use aiprof_tests::level_zero::driver::{Clock, Driver, Exports, LOADER, Machine, NEEDS, now_ns};
use aiprof_tests::level_zero::module::Module;
use aiprof_tests::level_zero::program::{Account, Run, build_direct, build_work, run};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::truth::{Kind, Truth};
use aiprof_tests::workload::{Workshop, checked};

/// What holds of every truth file: calls and executions fit together, times are in
/// order, clocks follow their formula, and the program counted the same launches.
fn check_run(run: &Run, clock: &Clock) -> anyhow::Result<()> {
    let mut program = BTreeMap::new();
    for account in &run.accounts {
        for (kernel, n) in &account.launches {
            *program.entry(kernel.clone()).or_default() += n;
        }
    }
    assert_eq!(run.truth.launches_by_kernel(), program);
    let mut threads = BTreeMap::new();
    for account in &run.accounts {
        threads.extend(account.threads.clone());
    }
    assert_eq!(run.truth.launches_by_thread(), threads);
    let mut calls = BTreeMap::new();
    for call in &run.truth.calls {
        assert!(call.succeeded(), "{call:?}");
        assert!(call.t0 <= call.t1, "{call:?}");
        assert!(calls.insert((call.pid, call.seq), call).is_none());
    }
    for exec in &run.truth.execs {
        let submit = calls.get(&(exec.pid, exec.submit)).context("no submit")?;
        let append = calls.get(&(exec.pid, exec.seq)).context("no append")?;
        assert!(exec.start_ns >= submit.t0, "{exec:?} {submit:?}");
        assert!(exec.end_ns >= exec.start_ns);
        assert_eq!(append.kernel, exec.kernel);
        assert_eq!(exec.start_ticks, clock.ticks(exec.device, exec.start_ns));
        assert_eq!(exec.end_ticks, clock.ticks(exec.device, exec.end_ns));
    }
    Ok(())
}

/// Start, end and what was running.
type Span = (u64, u64, Option<String>);

/// Executions of each engine, by start.
fn by_engine(truth: &Truth) -> BTreeMap<(u32, u32, i32, u32, u32), Vec<Span>> {
    let mut out: BTreeMap<_, Vec<Span>> = BTreeMap::new();
    for e in truth.execs.iter().filter(|e| e.kind != Kind::Barrier) {
        out.entry((e.pid, e.device, e.sub, e.ordinal, e.index))
            .or_default()
            .push((e.start_ns, e.end_ns, e.kernel.clone()));
    }
    out.values_mut().for_each(|spans| spans.sort());
    out
}

#[test]
fn program_and_truth_agree() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let machine = Machine::new(&Driver::build(Exports::All)?);
    let program = build_work()?;
    for mode in [
        &["basic", "rounds=20"][..],
        &["newer", "rounds=5"],
        &["paths", "rounds=2"],
        &["threads", "launches=50"],
        &["fork", "children=4"],
        &["rate", "rate=5000", "seconds=1"],
    ] {
        let run = run(&shop, &program, &machine, &Module::usual(), mode)?;
        check_run(&run, &machine.clock).with_context(|| format!("{mode:?}"))?;
        std::fs::remove_file(shop.path("truth.json"))?;
    }
    Ok(())
}

#[test]
fn basic_mode_is_complete() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let machine = Machine::new(&Driver::build(Exports::All)?);
    let program = build_work()?;
    let rounds = 10;
    let mode = ["basic", "rounds=10"];
    let run = run(&shop, &program, &machine, &Module::usual(), &mode)?;
    assert_eq!(run.account().more["memory_ok"], true);
    let functions = run.truth.calls_by_function();
    for (function, n) in &run.account().calls {
        assert_eq!(functions.get(function), Some(n), "{function}");
    }
    // Two closed lists with three kernels each run every round, as do two
    // immediate ones; then four launches with events.
    let kernels = run.truth.execs.iter().filter(|e| e.kind == Kind::Kernel);
    assert_eq!(kernels.count(), rounds * 4 * 3 + 4);
    let copies = run.truth.execs.iter().filter(|e| e.kind == Kind::Copy);
    assert_eq!(copies.count(), rounds * 2);
    // The event's timestamps are the execution's.
    let ticks: Vec<(u64, u64)> = serde_json::from_value(run.account().more["ticks"].clone())?;
    for (start, end) in ticks {
        let same = |e: &&_| {
            let e: &aiprof_tests::truth::Exec = e;
            (e.start_ticks, e.end_ticks) == (start, end)
        };
        assert_eq!(run.truth.execs.iter().filter(same).count(), 1);
    }
    Ok(())
}

#[test]
fn kernels_take_the_time_their_module_says() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let driver = Driver::build(Exports::All)?;
    let program = build_work()?;
    let mut module = Module::usual();
    module.kernels[2].group_ns = 100;
    let machine = Machine::new(&driver).set("VZE_LANES", "1");
    let run = run(&shop, &program, &machine, &module, &["basic", "rounds=5"])?;
    for exec in run.truth.execs.iter().filter(|e| e.kind == Kind::Kernel) {
        let kernel = module
            .kernels
            .iter()
            .find(|k| Some(&k.name) == exec.kernel.as_ref())
            .context("unknown kernel")?;
        let groups: u64 = exec.groups.context("no groups")?.iter().product();
        let expected = kernel.ns + kernel.group_ns * groups;
        assert_eq!(exec.end_ns - exec.start_ns, expected);
    }
    // One lane: nothing overlaps on an engine.
    for spans in by_engine(&run.truth).values() {
        for pair in spans.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "{pair:?}");
        }
    }
    Ok(())
}

#[test]
fn clock_wraps_and_drifts() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let driver = Driver::build(Exports::All)?;
    let program = build_work()?;
    // Wraps every 4.3 s, for the first time while the program runs.
    let clock = Clock {
        hz: 1_000_000_000,
        ppb: -80_000,
        ..Clock::default()
    };
    let clock = clock.wrapping_in(Duration::from_millis(700));
    let machine = Machine::new(&driver).clock(clock);
    let mode = ["rate", "rate=200", "seconds=2"];
    let run = run(&shop, &program, &machine, &Module::usual(), &mode)?;
    check_run(&run, &clock)?;
    let ticks: Vec<u64> = run.truth.execs.iter().map(|e| e.start_ticks).collect();
    let wraps = ticks.windows(2).filter(|t| t[1] < t[0]).count();
    assert_eq!(wraps, 1, "{ticks:?}");
    assert!(ticks.iter().all(|t| *t < 1 << 32));
    Ok(())
}

#[test]
fn devices_and_subdevices() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let driver = Driver::build(Exports::All)?;
    let program = build_work()?;
    let machine = Machine::new(&driver)
        .set("VZE_DEVICES", "3")
        .set("VZE_SUBDEVICES", "2");
    let modes = [
        ("device=0", 0, -1),
        ("device=2", 2, -1),
        ("sub=0", 0, 0),
        ("sub=1", 0, 1),
    ];
    for (option, device, sub) in modes {
        let mode = ["basic", option];
        let run = run(&shop, &program, &machine, &Module::usual(), &mode)?;
        check_run(&run, &machine.clock)?;
        assert!(!run.truth.execs.is_empty());
        for exec in &run.truth.execs {
            assert_eq!((exec.device, exec.sub), (device, sub));
        }
        std::fs::remove_file(shop.path("truth.json"))?;
    }
    Ok(())
}

#[test]
fn without_loader_and_without_exports() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let hidden = Driver::build(Exports::TablesOnly)?;
    let symbols = checked(Command::new("nm").arg("-D").arg(hidden.path()))?;
    assert!(symbols.contains("zeGetKernelProcAddrTable"));
    assert!(!symbols.contains("zeKernelCreate"), "{symbols}");
    let symbols = checked(
        Command::new("nm")
            .arg("-D")
            .arg(Driver::build(Exports::All)?.path()),
    )?;
    assert!(symbols.contains(" T zeKernelCreate\n"), "{symbols}");
    let machine = Machine::new(&hidden);
    for program in [build_work()?, build_direct()?] {
        for mode in ["basic", "newer"] {
            let run = run(&shop, &program, &machine, &Module::usual(), &[mode])?;
            check_run(&run, &machine.clock)?;
            std::fs::remove_file(shop.path("truth.json"))?;
        }
    }
    Ok(())
}

/// Calls of each function that bpftrace's probes on the loader counted.
fn count_with_bpftrace(
    functions: &[&str],
    command: &mut Command,
) -> anyhow::Result<(BTreeMap<String, u64>, String)> {
    let mut script = String::new();
    for function in functions {
        // Other tests use the loader meanwhile.
        script += &format!(
            "uprobe:{LOADER}:{function} /pid == cpid/ {{ @[\"{function}\"] = count(); }}\n"
        );
    }
    let program = command.get_program().to_owned();
    let arguments: Vec<_> = command
        .get_args()
        .map(|a| a.to_string_lossy().into_owned())
        .collect();
    let line = format!("{} {}", program.to_string_lossy(), arguments.join(" "));
    let mut bpftrace = Command::new("bpftrace");
    bpftrace.args(["-e", &script, "-c", &line]);
    bpftrace.envs(command.get_envs().filter_map(|(k, v)| Some((k, v?))));
    let output = checked(&mut bpftrace)?;
    let mut counts = BTreeMap::new();
    for line in output.lines() {
        let entry = line.strip_prefix("@[").and_then(|l| l.split_once("]: "));
        if let Some((name, n)) = entry {
            counts.insert(name.to_owned(), n.parse()?);
        }
    }
    Ok((counts, output))
}

#[test]
fn bpftrace_counts_the_same_calls() -> anyhow::Result<()> {
    let mut needs = NEEDS.to_vec();
    needs.extend([Need::Root, Need::Tool("bpftrace")]);
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let truth_file = shop.path("truth.json");
    let machine = Machine::new(&Driver::build(Exports::All)?).truth(&truth_file);
    let module = Module::usual().write(&shop.path("module.zebin"))?;
    let functions = [
        "zeModuleCreate",
        "zeKernelCreate",
        "zeKernelSetGroupSize",
        "zeCommandListCreate",
        "zeCommandListCreateImmediate",
        "zeCommandListAppendLaunchKernel",
        "zeCommandListAppendMemoryCopy",
        "zeCommandListAppendMemoryFill",
        "zeCommandListAppendBarrier",
        "zeCommandQueueExecuteCommandLists",
        "zeCommandQueueSynchronize",
        "zeFenceHostSynchronize",
        "zeEventHostSynchronize",
        "zeMemAllocShared",
        "zeMemFree",
    ];
    let mut command = machine.command(&build_work()?);
    command.args(["basic", "rounds=7"]);
    command.arg(format!("module={}", module.display()));
    let (counts, output) = count_with_bpftrace(&functions, &mut command)?;
    let truth = Truth::read(&truth_file)?;
    let all = truth.calls_by_function();
    for function in functions {
        assert!(all.get(function).is_some_and(|n| *n > 0), "{function}");
        assert_eq!(
            counts.get(function),
            all.get(function),
            "{function}\n{output}"
        );
    }
    Ok(())
}

#[test]
fn counts_only_and_nothing_at_all() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let driver = Driver::build(Exports::All)?;
    let program = build_work()?;
    let module = Module::tiny().write(&shop.path("module.zebin"))?;
    for null in ["0", "1"] {
        let file = shop.path("counts.json");
        let machine = Machine::new(&driver).counts(&file).set("VZE_NULL", null);
        let mut command = machine.command(&program);
        command.args(["loop", "seconds=0.3", "threads=2"]);
        let output = checked(command.arg(format!("module={}", module.display())))?;
        let account = &Account::read(&output)?[0];
        let truth = Truth::read(&file)?;
        assert!(truth.calls.is_empty() && truth.execs.is_empty());
        assert_eq!(truth.launches_by_kernel(), account.launches);
        let execs = truth.exec_counts.get("kernel").copied().unwrap_or(0);
        assert_eq!(execs, if null == "1" { 0 } else { account.total() });
        println!("null {null}: {:?}", account.more);
        std::fs::remove_file(&file)?;
    }
    Ok(())
}

#[test]
fn two_processes_share_one_clock() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let driver = Driver::build(Exports::All)?;
    let program = build_work()?;
    let machine = Machine::new(&driver).clock(Clock {
        ppb: 123_456,
        ..Clock::default()
    });
    let before = now_ns();
    let first = run(&shop, &program, &machine, &Module::usual(), &["basic"])?;
    let both = run(&shop, &program, &machine, &Module::usual(), &["basic"])?;
    let after = now_ns();
    // The second run's lines are behind the first one's.
    assert!(both.truth.execs.len() > first.truth.execs.len());
    let pids: std::collections::BTreeSet<_> = both.truth.execs.iter().map(|e| e.pid).collect();
    assert_eq!(pids.len(), 2);
    for exec in &both.truth.execs {
        assert!(exec.start_ns > before && exec.end_ns < after);
        let ticks = machine.clock.ticks(exec.device, exec.start_ns);
        assert_eq!(exec.start_ticks, ticks);
    }
    Ok(())
}

#[test]
fn spirv_becomes_a_zebin() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let truth_file = shop.path("truth.json");
    let machine = Machine::new(&Driver::build(Exports::All)?).truth(&truth_file);
    // Header, then OpEntryPoint Kernel %1 "first" and %2 "second_kernel".
    let entry = |name: &str| -> Vec<u32> {
        let mut text = name.as_bytes().to_vec();
        text.push(0);
        text.resize(text.len().next_multiple_of(4), 0);
        let words = text
            .chunks(4)
            .map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]));
        let mut out = vec![0, 6, 1];
        out.extend(words);
        out[0] = (out.len() as u32) << 16 | 15;
        out
    };
    let mut words = vec![0x0723_0203, 0x0001_0400, 0, 3, 0];
    words.extend(entry("first"));
    words.extend(entry("second_kernel"));
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let module = shop.path("module.spv");
    std::fs::write(&module, bytes)?;
    let mut command = machine.command(&build_work()?);
    command.args(["late", "launches=5", "spirv=1"]);
    let output = checked(command.arg(format!("module={}", module.display())))?;
    let account = &Account::read(&output)?[0];
    assert_eq!(account.total(), 5);
    assert!(account.launches["first"] > 0 && account.launches["second_kernel"] > 0);
    let truth = Truth::read(&truth_file)?;
    assert_eq!(truth.launches_by_kernel(), account.launches);
    let sizes: Vec<_> = account.more["native"].as_u64().into_iter().collect();
    // Two kernels of 4 KiB and what is around them.
    assert!(matches!(sizes[..], [8192..10_000]), "{sizes:?}");
    Ok(())
}
