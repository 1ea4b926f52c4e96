//! The judge of device samples on real schedules of the virtual driver, with profilers
//! that are perfect, or wrong in a known way.

use std::collections::BTreeMap;

use anyhow::Context as _;

use aiprof_tests::folded::Folded;
use aiprof_tests::level_zero::driver::{Driver, Exports, Machine, NEEDS};
use aiprof_tests::level_zero::module::{Kernel, Module};
use aiprof_tests::level_zero::program::{Account, Run, build_paths, run};
use aiprof_tests::need::skip_unless;
use aiprof_tests::stall_truth::{Cell, Expected, Found, Verdict, reason_name};
use aiprof_tests::workload::Workshop;

/// Runs a mode of `ze_paths` with its stall records in a file.
fn record(mode: &[&str]) -> anyhow::Result<Run> {
    let shop = Workshop::new()?;
    let machine = Machine::new(&Driver::build(Exports::All)?)
        .set("VZE_STALLS", &shop.path("stalls").display().to_string());
    let kernel = Kernel::new("work", 200_000)
        .rate(0x40, "sbid", 200)
        .rate(0x80, "pipe", 50);
    run(
        &shop,
        &build_paths()?,
        &machine,
        &Module::new(vec![kernel]),
        mode,
    )
}

fn expected(run: &Run) -> anyhow::Result<Expected> {
    Expected::new(&run.truth, &run.accounts, 200_000)
}

/// The folded stacks of a profiler that charges each execution's samples to a call path. `charge`
/// returns that path for a process and launch call.
fn profile(run: &Run, charge: impl Fn(u32, u64) -> u32) -> Found {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for window in &run.truth.windows {
        for sampled in &window.execs {
            let path = charge(window.pid, sampled.seq);
            let reason = reason_name(&sampled.reason);
            let line = format!(
                "ze_paths;{};_start;main;path_{path};zeCommandListAppendLaunchKernel;-;\
                 work_[G];mul_[g];{reason}_[g];{:#x}_[g]",
                window.pid, sampled.offset
            );
            *sums.entry(line).or_default() += sampled.written;
        }
    }
    let text: String = sums
        .iter()
        .map(|(line, n)| format!("{line} {n}\n"))
        .collect();
    let folded = Folded::parse(&text).unwrap_or_default();
    Found::folded(&folded, &["work".to_owned()].into())
}

/// The true path of each launch.
fn paths(accounts: &[Account]) -> anyhow::Result<BTreeMap<(u32, u64), u32>> {
    let mut all = BTreeMap::new();
    for account in accounts {
        let of_account = account.paths()?.into_iter();
        all.extend(of_account.map(|(seq, path)| ((account.pid, seq), path)));
    }
    Ok(all)
}

const BLOCKS: [&str; 6] = [
    "launch",
    "plan=7030",
    "block=20",
    "sync=1",
    "pause_us=15000",
    "launches=200",
];

#[test]
fn windows_of_blocks_have_one_stack() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let run = record(&BLOCKS)?;
    let expected = expected(&run)?;
    let sole: u64 = expected.cells.values().map(|due| due.sole).sum();
    let written = expected.written();
    assert!(sole as f64 >= 0.9 * written as f64, "{sole} of {written}");
    let known = paths(&run.accounts)?;
    let perfect = profile(&run, |pid, seq| known[&(pid, seq)]);
    let verdict = Verdict::new(&expected, &perfect);
    assert_eq!(
        (verdict.sole_wrong, verdict.unaccounted(0)),
        (0, 0),
        "{verdict}"
    );
    assert!(verdict.worst() < 1e-9, "{verdict}");
    // As iaprof does: all to the latest.
    let verdict = Verdict::new(&expected, &profile(&run, |_, _| 1));
    assert!((verdict.right() - 0.3).abs() < 0.05, "{verdict}");
    assert!((verdict.worst() - 70.0).abs() < 1.0, "{verdict}");
    // One block of ten to the other path.
    let first: Vec<u64> = known.keys().take(20).map(|(_, seq)| *seq).collect();
    let block = |pid, seq| known[&(pid, seq)] ^ u32::from(first.contains(&seq));
    let verdict = Verdict::new(&expected, &profile(&run, block));
    assert!((verdict.right() - 0.9).abs() < 0.03, "{verdict}");
    Ok(())
}

#[test]
fn windows_of_a_mixture_have_several_stacks() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    for mode in [
        &["launch", "plan=7030", "sync=10", "launches=300"][..],
        &[
            "launch",
            "processes=2",
            "paths=1",
            "sync=10",
            "launches=300",
        ],
    ] {
        let run = record(mode)?;
        let expected = expected(&run)?;
        let sole: u64 = expected.cells.values().map(|due| due.sole).sum();
        let written = expected.written();
        assert!(
            (sole as f64) < 0.2 * written as f64,
            "{mode:?}: {sole} of {written}"
        );
    }
    Ok(())
}

#[test]
fn a_sample_that_is_nowhere_is_missed() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let run = record(&BLOCKS)?;
    let expected = expected(&run)?;
    let known = paths(&run.accounts)?;
    let mut found = profile(&run, |pid, seq| known[&(pid, seq)]);
    let cell: Cell = found.cells.keys().next().context("no cell")?.clone();
    found.cells.entry(cell).and_modify(|got| got.count -= 1);
    assert_eq!(Verdict::new(&expected, &found).unaccounted(0), 1);
    Ok(())
}
