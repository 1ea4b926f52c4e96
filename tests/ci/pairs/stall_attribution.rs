//! Device samples, charged to the launches that caused them: aiprof's profiles, compared with what
//! the virtual driver wrote and the program did. Schedules that stress the join, and one test for
//! each way in which iaprof, the tool closest to this, goes wrong.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};

use aiprof_tests::aiprof::{Aiprof, lost};
use aiprof_tests::folded::{Folded, base};
use aiprof_tests::level_zero::module::{Kernel, Module, REASONS};
use aiprof_tests::level_zero::program::build_paths;
use aiprof_tests::level_zero::real;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::stall_run::{NEEDS, Recording, Stream, report_folded};
use aiprof_tests::stall_truth::{Found, busy_ns, in_calls_ns, reason_name};
use aiprof_tests::truth::Truth;
use aiprof_tests::workload::{Workshop, source_path};

/// A kernel of 200 us, unless changed, seen 250 times in a millisecond.
fn kernel(name: &str) -> Kernel {
    Kernel::new(name, 200_000)
        .rate(0x40, "sbid", 200)
        .rate(0x80, "pipe", 50)
}

fn module() -> Module {
    Module::new(vec![kernel("work")])
}

/// By plan 7030, the second, sixth and ninth of ten launches are of path 1: they take four times as
/// long. By time, path 1 has 63 %.
fn uneven() -> Module {
    const SHORT: u64 = 100_000;
    const LONG: u64 = 400_000;
    let turns = [1, 5, 8];
    let turns: Vec<u64> = (0..10)
        .map(|i| if turns.contains(&i) { LONG } else { SHORT })
        .collect();
    Module::new(vec![kernel("work").turns(&turns)])
}

/// 100 us for each work group.
fn by_size() -> Module {
    let mut kernel = kernel("work").group_ns(100_000);
    kernel.ns = 0;
    Module::new(vec![kernel])
}

/// Blocks of one path, with pauses in which all windows end: only one launch stack can
/// have been running in each.
const BLOCKS: [&str; 5] = ["launch", "block=20", "sync=1", "pause_us=15000", "base=1"];

fn blocks(more: &[&'static str]) -> Vec<&'static str> {
    [&BLOCKS[..], more].concat()
}

#[test]
fn paths_alone_in_their_windows() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let recording = Recording::of(module());
    recording
        .run(&blocks(&["paths=5", "launches=400"]))?
        .certain()?;
    Ok(())
}

#[test]
fn bare_records_in_every_layout() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    for layout in ["xe2", "pvc", "xe3p"] {
        let mut recording = Recording::of(module());
        recording.stream = Stream::Raw(layout);
        // A reader's windows are longer than the driver's.
        let mode = ["paths=3", "launches=120", "pause_us=60000"];
        recording.run(&blocks(&mode))?.certain()?;
    }
    Ok(())
}

#[test]
fn two_paths_with_timestamps() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    for sync in ["sync=1", "sync=10"] {
        let mode = [
            "launch",
            "plan=7030",
            "launches=1000",
            "events=1",
            "base=1",
            sync,
        ];
        let outcome = Recording::of(uneven()).run(&mode)?;
        let verdict = outcome.shared()?;
        let path_1 = verdict.paths.iter().find(|p| p.path == 1);
        assert!(
            path_1.is_some_and(|p| (p.truth - 0.63).abs() < 0.01),
            "{verdict}"
        );
    }
    Ok(())
}

/// What little is known of the device's clock must not pass for exact times.
#[test]
fn timestamps_that_are_read_late() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let mode = ["launch", "plan=7030", "events=1", "base=1", "read_us=20000"];
    for more in [
        ["launches=10", "sync=10"],
        ["launches=300", "sync=10"],
        ["launches=300", "sync=0"],
    ] {
        let outcome = Recording::of(uneven()).run(&[&mode[..], &more].concat())?;
        let verdict = outcome.sound()?;
        ensure!(verdict.unattributed == 0, "{verdict}");
    }
    Ok(())
}

/// 100 ms: by then the clock is known no better than by when launches were handed over
/// and waited for.
#[test]
fn timestamps_that_are_read_very_late() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let mode = [
        "launch",
        "plan=7030",
        "events=1",
        "base=1",
        "read_us=100000",
    ];
    for more in [
        ["launches=300", "sync=10"],
        ["launches=300", "sync=100"],
        ["launches=2000", "sync=0"],
    ] {
        let outcome = Recording::of(uneven()).run(&[&mode[..], &more].concat())?;
        outcome.near()?;
    }
    Ok(())
}

/// Forked when the kernels exist: the children launch their parent's kernels.
#[test]
fn forked_processes_launch_too() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    for sync in ["sync=1", "sync=20", "sync=0"] {
        let mode = [
            "launch",
            "plan=7030",
            "forks=2",
            "launches=500",
            "base=1",
            sync,
        ];
        let outcome = Recording::of(module()).run(&mode)?;
        let verdict = outcome.near()?;
        assert_eq!(verdict.paths.len(), 6, "{:?}", verdict.paths);
    }
    Ok(())
}

/// Three processes of equal cost at equal addresses that only wait at their end.
#[test]
fn processes_that_do_not_wait() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let mode = ["launch", "processes=3", "plan=7030", "launches=5000"];
    let outcome = Recording::of(module()).run(&[&mode[..], &["sync=0", "base=1"]].concat())?;
    outcome.near()?;
    Ok(())
}

/// One path for 12 s, then another one, without waits.
#[test]
fn a_queue_that_nobody_waits_for_all_day() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let slow = Module::new(vec![Kernel::new("work", 2_000_000).rate(0x40, "sbid", 20)]);
    let mode = [
        "launch",
        "paths=2",
        "launches=12000",
        "block=6000",
        "sync=0",
        "base=1",
    ];
    Recording::of(slow).run(&mode)?.near()?;
    Ok(())
}

/// What the samples stand for adds up to the time that kernels were running.
#[test]
fn device_time_is_what_the_device_was_busy() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let mut bare = Recording::of(module());
    bare.stream = Stream::Raw("xe2");
    let mut eight = Recording::of(module()).set("VZE_GTS", "8");
    eight.gts = 8;
    let mut far = Vec::new();
    let ways = [
        &["launches=5000", "sync=0"][..],
        &["launches=5000", "sync=100"],
        &["launches=2000", "sync=1", "events=1"],
        &["launches=3000", "processes=3", "sync=100"],
    ];
    for (what, recording, ways) in [
        ("framed", Recording::of(module()), &ways[..]),
        ("bare", bare, &ways[1..3]),
        ("8 GTs", eight, &ways[2..]),
    ] {
        for &more in ways {
            let mode = [&["launch", "plan=7030", "base=1", "warm_us=2000000"], more].concat();
            let outcome = recording.run(&mode)?;
            ensure!(
                outcome.found.total() == outcome.expected.written(),
                "{what}"
            );
            let found = outcome.device_ns()? as f64;
            let busy = found / busy_ns(&outcome.truth, recording.gts) as f64;
            let in_calls = found / in_calls_ns(&outcome.truth, recording.gts) as f64;
            println!("{what}, {more:?}: {busy:.4} of busy time, {in_calls:.4} of time in calls");
            // Without timestamps a launch lasts until the wait for it returned, however late
            // a busy machine wakes the program.
            let most = if more.contains(&"sync=100") {
                in_calls
            } else {
                busy
            };
            if busy < 0.98 || most > 1.02 {
                far.push((what, more, busy, in_calls));
            }
        }
    }
    ensure!(far.is_empty(), "{far:?}");
    Ok(())
}

#[test]
fn two_paths_whose_cost_follows_their_size() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    for sync in ["sync=1", "sync=10", "sync=0"] {
        let mode = [
            "launch",
            "plan=7030",
            "launches=1000",
            "groups=path",
            "base=1",
            sync,
        ];
        Recording::of(by_size()).run(&mode)?.shared()?;
    }
    Ok(())
}

#[test]
fn equal_size_but_unequal_cost_stays_in_its_bounds() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    for sync in ["sync=1", "sync=10", "sync=0"] {
        let mode = ["launch", "plan=7030", "launches=500", "base=1", sync];
        let outcome = Recording::of(uneven()).run(&mode)?;
        // Only the bounds can be reported, and they are.
        let verdict = outcome.sound()?;
        let sole = outcome.bounded.method("only one call path possible");
        assert!(sole < 0.9, "{verdict}: {:?}", outcome.bounded.methods);
    }
    Ok(())
}

#[test]
fn fifty_skewed_paths() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let zipf = ["launch", "plan=zipf", "paths=50", "launches=1000", "base=1"];
    for (module, more) in [
        (module(), ["sync=10", "events=1"]),
        (by_size(), ["sync=50", "groups=path"]),
    ] {
        let mut module = module;
        // Not 50 times 100 us.
        module.kernels[0].group_ns /= 10;
        Recording::of(module)
            .run(&[&zipf[..], &more].concat())?
            .shared()?;
    }
    Ok(())
}

#[test]
fn kernels_of_two_microseconds() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let tiny = Kernel::new("tiny", 2000)
        .stall(0x40, "sbid", 2)
        .stall(0x80, "sync", 1);
    let mode = [
        "launch",
        "plan=7030",
        "launches=10000",
        "sync=100",
        "base=1",
    ];
    Recording::of(Module::new(vec![tiny]))
        .run(&mode)?
        .shared()?;
    Ok(())
}

#[test]
fn kernels_of_two_seconds() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let long = Kernel::new("long", 2_000_000_000).rate(0x40, "sbid", 100);
    // Side by side, on two queues.
    let mode = [
        "launch",
        "paths=2",
        "launches=2",
        "queues=2",
        "sync=0",
        "events=1",
        "base=1",
    ];
    Recording::of(Module::new(vec![long]))
        .run(&mode)?
        .shared()?;
    Ok(())
}

#[test]
fn threads_and_queues() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let mode = [
        "launch",
        "threads=3",
        "queues=2",
        "paths=6",
        "plan=zipf",
        "launches=200",
        "sync=4",
        "events=1",
        "clock=1",
        "base=1",
    ];
    Recording::of(module()).run(&mode)?.shared()?;
    Ok(())
}

#[test]
fn two_processes_at_equal_addresses() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let mode = [
        "launch",
        "processes=2",
        "plan=7030",
        "launches=500",
        "sync=5",
        "events=1",
        "base=1",
    ];
    let outcome = Recording::of(uneven()).run(&mode)?;
    let verdict = outcome.shared()?;
    assert_eq!(verdict.paths.len(), 4, "{:?}", verdict.paths);
    Ok(())
}

fn other() -> Module {
    let kernel = Kernel::new("other", 150_000).rate(0x40, "sbid", 100);
    Module::new(vec![kernel])
}

#[test]
fn a_place_that_is_used_again() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let mut recording = Recording::of(module()).set("VZE_ISA_REUSE", "1");
    recording.modules.push(other());
    let mode = ["reload", "rounds=12", "launches=40", "base=1"];
    recording
        .run(&[&mode[..], &["pause_us=15000"]].concat())?
        .certain()?;
    // Both in one window.
    recording
        .run(&[&mode[..], &["events=1"]].concat())?
        .shared()?;
    Ok(())
}

#[test]
fn kernels_of_one_allocation() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let mut recording = Recording::of(Module::new(["a", "b", "c", "d"].map(kernel).to_vec()));
    recording = recording.set("VZE_ISA_POOL", "1");
    // The address alone determines the path.
    let mode = [
        "launch",
        "paths=4",
        "kernels=path",
        "launches=1000",
        "sync=0",
        "base=1",
    ];
    recording.run(&mode)?.certain()?;
    Ok(())
}

/// The making of modules was not seen, and the program does not report where kernels lie. This is
/// found out from the driver's objects and the code in the program's memory. It takes real code,
/// and more than one kernel: for a single one both name and place are in doubt.
#[test]
fn modules_made_before_aiprof_started() -> anyhow::Result<()> {
    let needs = [&NEEDS[..], &real::NEEDS].concat();
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let built = real::compile_listed(&shop, "ai.cl", real::Product::Pvc)?;
    let mut schedule = String::new();
    for (kernel, listing) in &built.listings {
        schedule += &format!("kernel {kernel} ns=200000\n");
        for listed in listing.iter().step_by(listing.len() / 4) {
            schedule += &format!("rate {kernel} {:#x} sbid 50\n", listed.offset);
        }
    }
    let mut recording = Recording::compiled(&shop, &schedule)?;
    recording.file = Some(built.zebin);
    let mode: Vec<_> = blocks(&["paths=3", "launches=120", "kernels=path"])
        .into_iter()
        .filter(|option| *option != "base=1")
        .collect();
    recording.run_late(&mode)?.certain()?;
    Ok(())
}

#[test]
fn addresses_that_nobody_asks_for() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let mode: Vec<_> = blocks(&["paths=3", "launches=120"])
        .into_iter()
        .filter(|option| *option != "base=1")
        .collect();
    Recording::of(module()).run(&mode)?.certain()?;
    // With the probes of a driver that was patched for iaprof.
    let patched = Recording::of(module()).set("VZE_USDT", "1");
    patched.run(&mode)?.certain()?;
    Ok(())
}

#[test]
fn eight_gts() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    // Spread over all, and each with work of its own.
    let mut spread = Recording::of(module()).set("VZE_GTS", "8");
    spread.gts = 8;
    spread
        .run(&blocks(&["paths=3", "launches=120"]))?
        .certain()?;
    let mut own = Recording::of(module()).set("VZE_SUBDEVICES", "8");
    own.gts = 8;
    let mode = [
        "launch",
        "queues=8",
        "subs=8",
        "paths=4",
        "launches=800",
        "sync=16",
        "events=1",
        "base=1",
    ];
    own.run(&mode)?.shared()?;
    Ok(())
}

#[test]
fn drops_are_told() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let recording = Recording::of(module()).set("VZE_STALLS_DROP", "4");
    let outcome = recording.run(&blocks(&["paths=3", "launches=300"]))?;
    outcome.certain()?;
    let (drops, lost_samples) = (outcome.expected.drops, outcome.expected.lost);
    assert!(drops > 2 && lost_samples > 100, "{drops} {lost_samples}");
    let told = lost(&outcome.stderr, "drops of samples by devices");
    assert_eq!(told, drops, "{}", outcome.stderr);
    Ok(())
}

#[test]
fn one_sample_of_many() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let recording = Recording::of(uneven()).set("VZE_STALLS_EVERY", "7");
    let mode = [
        "launch",
        "plan=7030",
        "launches=1000",
        "sync=10",
        "events=1",
        "base=1",
    ];
    recording.run(&mode)?.shared()?;
    Ok(())
}

#[test]
fn samples_of_nobody_stay_visible() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    // Three records of Xe2 hardware at an address where nothing is: 5 samples for
    // another reason each (bits 37 to 44).
    let mut record = [0; 64];
    record[0] = 0x77;
    record[4] = (5u8 & 7) << 5;
    let file = shop.path("nobody");
    std::fs::write(&file, record.repeat(3))?;
    let run = Aiprof::counting()
        .option("--replay-device")
        .option(format!("xe2:{}", file.display()))
        .command("sleep", &["0.3"])
        .record()?;
    let found = Found::folded(&run.folded, &["work".to_owned()].into());
    assert_eq!(
        (found.unattributed, found.total()),
        (15, 15),
        "{}",
        run.stderr
    );
    Ok(())
}

/// Frames of the device's source, mnemonic and counts, by kernel and offset.
type Shown = BTreeMap<(String, u64), (Vec<String>, String, u64)>;

fn shown(folded: &Folded, kernels: &[&str]) -> anyhow::Result<Shown> {
    let mut out: Shown = BTreeMap::new();
    for line in &folded.lines {
        let Some(mark) = line.frames.iter().position(|f| f == "-") else {
            continue;
        };
        let device: Vec<&str> = line.frames[mark + 1..].iter().map(|f| base(f)).collect();
        let [source @ .., mnemonic, _reason, offset] = device.as_slice() else {
            anyhow::bail!("{line}");
        };
        let kernel = source.iter().find(|f| kernels.contains(f));
        let kernel = kernel.with_context(|| format!("no kernel in {line}"))?;
        let offset = offset.strip_prefix("0x").context("no offset")?;
        let key = ((*kernel).to_owned(), u64::from_str_radix(offset, 16)?);
        let source = source.iter().map(|&f| f.to_owned()).collect();
        let entry = out.entry(key).or_default();
        *entry = (source, (*mnemonic).to_owned(), entry.2 + line.value);
    }
    Ok(out)
}

/// What hardware and disassembler call an operation of the compiler's listing: it
/// writes messages to the memory units out, as `load.ugm.d32x32t.a32`.
fn operation(listed: &str) -> String {
    let mut parts = listed.split('.');
    let first = parts.next().unwrap_or_default();
    let is_message = ["load", "store", "fence"].contains(&first) || first.starts_with("atomic");
    match (is_message, parts.next()) {
        (true, Some(unit)) => format!("send.{unit}"),
        _ => listed.to_owned(),
    }
}

#[test]
fn compiled_code_has_its_lines_and_mnemonics() -> anyhow::Result<()> {
    let needs = [&NEEDS[..], &real::NEEDS].concat();
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let built = real::compile_listed(&shop, "ai.cl", real::Product::Pvc)?;
    // Each instruction is seen, each a different number of times.
    let mut schedule = String::new();
    for (kernel, listing) in &built.listings {
        schedule += &format!("kernel {kernel} ns=100000\n");
        for (i, instruction) in listing.iter().enumerate() {
            let (offset, count) = (instruction.offset, 1 + i % 7);
            schedule += &format!("stall {kernel} {offset:#x} sbid {count}\n");
        }
    }
    let recording = Recording::compiled(&shop, &schedule)?;
    let program = [
        build_paths()?.display().to_string(),
        "launch".to_owned(),
        "paths=3".to_owned(),
        "kernels=path".to_owned(),
        "launches=60".to_owned(),
        "base=1".to_owned(),
        format!("module={}", built.zebin.display()),
    ];
    let (_, stderr) = recording.record(&shop, &program)?;
    let names: Vec<&str> = built.listings.keys().map(String::as_str).collect();
    let shown = shown(&report_folded(&shop)?, &names)?;
    let (mut with_line, mut other_line) = (0, Vec::new());
    for (kernel, listing) in &built.listings {
        for (i, listed) in listing.iter().enumerate() {
            let key = (kernel.clone(), listed.offset);
            let found = shown.get(&key);
            let (source, mnemonic, count) = found.with_context(|| format!("{listed:?}"))?;
            assert_eq!(*count, 20 * (1 + i as u64 % 7), "{kernel} {listed:?}");
            assert_eq!(
                *mnemonic,
                operation(&listed.mnemonic),
                "{kernel} {listed:?}"
            );
            let Some(line) = listed.line else { continue };
            with_line += 1;
            if source.last() != Some(&format!("ai.cl:{line}")) {
                other_line.push((listed, source));
            }
        }
    }
    assert!(with_line > 200, "{with_line}; {stderr}");
    // Instructions that load arguments or were made late are of other lines by DWARF
    // than by the listing.
    let allowed = with_line / 10;
    assert!(other_line.len() <= allowed, "{allowed}: {other_line:#?}");
    // Nothing but what was seen.
    let instructions: usize = built.listings.values().map(Vec::len).sum();
    assert_eq!(shown.len(), instructions);
    Ok(())
}

#[test]
fn a_python_program() -> anyhow::Result<()> {
    let needs = [&NEEDS[..], &real::NEEDS, &[Need::Tool("python3")]].concat();
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let built = real::compile_listed(&shop, "ai.cl", real::Product::Pvc)?;
    let recording = Recording::compiled(
        &shop,
        "kernel matmul ns=0 group_ns=20000\nrate matmul 0x40 sbid 300\n\
         kernel softmax ns=300000\nrate softmax 0x40 send 100\n\
         kernel adam ns=100000\nrate adam 0x40 dist 50\n",
    )?;
    let program = [
        "python3".to_owned(),
        source_path("ze_ai.py").display().to_string(),
        built.zebin.display().to_string(),
        "40".to_owned(),
    ];
    recording.record(&shop, &program)?;
    let truth = Truth::read(&shop.path("truth.json"))?;
    let due: BTreeMap<String, u64> = truth
        .stalls()
        .into_iter()
        .map(|((kernel, ..), n)| (kernel, n))
        .collect();
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    let names = ["matmul", "softmax", "adam"];
    for ((kernel, offset), (.., n)) in shown(&report_folded(&shop)?, &names)? {
        assert_eq!(offset, 0x40);
        *found.entry(kernel).or_default() += n;
    }
    assert_eq!(found, due);
    Ok(())
}

/// iaprof keeps one stack for each kernel: all samples of a kernel that is launched
/// from two call paths are charged to the latest.
#[test]
fn iaprof_one_stack_for_each_kernel() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let verdict = Recording::of(module())
        .run(&blocks(&["plan=7030", "launches=400"]))?
        .certain()?;
    let shares: BTreeMap<u32, f64> = verdict.paths.iter().map(|p| (p.path, p.found)).collect();
    assert!((shares[&0] - 0.7).abs() < 0.02, "{shares:?}");
    assert!((shares[&1] - 0.3).abs() < 0.02, "{shares:?}");
    Ok(())
}

/// iaprof has one instruction base address for all processes: relative addresses of
/// the others are taken for other kernels, or none.
#[test]
fn iaprof_one_instruction_base_for_all_processes() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let mut recording = Recording::of(module());
    recording.modules.push(other());
    let shop = Workshop::new()?;
    let arguments = recording.arguments(&shop, &blocks(&["paths=2", "launches=80"]))?;
    let program = build_paths()?.display().to_string();
    let all = format!("{program} {}", arguments.join(" "));
    // Equal relative addresses, other bases; one after the other, the first twice.
    let other = all
        .replace("module=", "was=")
        .replace("module2=", "module=");
    let script = format!(
        "{all} && VZE_ISA_BASE=0x900200000000 {other} && {all} && \
         VZE_ISA_BASE=0x700300000000 {other}"
    );
    let program = ["sh", "-c", &script].map(str::to_owned);
    let outcome = recording.run_program(shop, &program)?;
    let verdict = outcome.certain()?;
    assert_eq!(verdict.paths.len(), 8, "{:?}", verdict.paths);
    Ok(())
}

/// iaprof drops samples that arrive before their kernel is known.
#[test]
fn iaprof_late_samples_lost() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    // The program reports where its kernel lies when all samples have been read.
    let mode: Vec<_> = blocks(&["paths=3", "launches=120", "base=2"])
        .into_iter()
        .filter(|option| *option != "base=1")
        .collect();
    let outcome = Recording::of(module()).run(&mode)?;
    let verdict = outcome.certain()?;
    assert_eq!(verdict.unattributed, 0, "{verdict}");
    Ok(())
}

/// iaprof's converters print counts under other reasons than they are of.
#[test]
fn iaprof_counts_shifted() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let mut kernel = Kernel::new("reasons", 100_000);
    let mut due = BTreeMap::new();
    for (i, reason) in REASONS.iter().enumerate() {
        let (i, count) = (i as u32, 3 + 7 * i as u32);
        kernel = kernel
            .stall(0x40 + 16 * i, reason, count)
            .stall(0x200, reason, 1 + i);
        due.insert(
            reason_name(reason).to_owned(),
            u64::from(count + 1 + i) * 60,
        );
    }
    let mode = blocks(&["paths=1", "launches=60"]);
    let outcome = Recording::of(Module::new(vec![kernel])).run(&mode)?;
    outcome.certain()?;
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    for (cell, got) in &outcome.found.cells {
        *found.entry(cell.reason.clone()).or_default() += got.count;
    }
    assert_eq!(found, due);
    Ok(())
}
