//! The virtual driver and its workloads under rough treatment: calls that are left
//! by exceptions, jumps and cancellation, bad pointers; and programs in other
//! languages.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use aiprof_tests::level_zero::driver::{Driver, Exports, Machine, NEEDS};
use aiprof_tests::level_zero::module::Module;
use aiprof_tests::level_zero::program::{Account, build_faults, build_rust, build_unwind, run};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::truth::Truth;
use aiprof_tests::workload::{Workshop, checked, source_path};

/// The functions that the driver writes down, from its sources.
fn driver_functions() -> anyhow::Result<BTreeSet<String>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("virtual/level-zero");
    let mut out = BTreeSet::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_none_or(|e| e != "cpp") {
            continue;
        }
        for line in std::fs::read_to_string(&path)?.lines() {
            let name = line.trim().strip_prefix("VZE_CALL(");
            if let Some(name) = name.and_then(|n| n.strip_suffix(");")) {
                out.insert(name.to_owned());
            }
        }
    }
    Ok(out)
}

#[test]
fn every_call_can_be_left_in_every_way() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let machine = Machine::new(&Driver::build(Exports::All)?);
    let program = build_unwind()?;
    let functions = driver_functions()?;
    assert!(functions.len() > 70, "{functions:?}");
    for action in ["throw", "longjmp", "backtrace", "cancel", "return"] {
        let shop = Workshop::new()?;
        let mode = [&format!("what={action}")[..], "rounds=3"];
        let run = run(&shop, &program, &machine, &Module::usual(), &mode)?;
        let left: BTreeSet<_> = run.account().calls.keys().cloned().collect();
        assert_eq!(left, functions, "{action}");
        for (function, n) in &run.account().calls {
            assert_eq!(*n, 3);
            let hooked = run.truth.calls_of(function).filter(|c| c.hooked == 1);
            assert_eq!(hooked.count(), 3, "{action} {function}");
        }
    }
    Ok(())
}

#[test]
fn bad_pointers_are_refused() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let machine = Machine::new(&Driver::build(Exports::All)?);
    let mode = ["threads=8", "seconds=0.3"];
    let run = run(&shop, &build_faults()?, &machine, &Module::usual(), &mode)?;
    assert_eq!(run.truth.launches_by_kernel(), run.account().launches);
    assert_eq!(run.truth.launches_by_thread(), run.account().threads);
    let failed = run.truth.calls.iter().filter(|c| !c.succeeded()).count();
    let refused = run.account().more["refused"].as_u64();
    assert_eq!(Some(failed as u64), refused);
    assert!(failed > 1000);
    Ok(())
}

/// Runs a program that takes a module and a number of launches for each of two
/// paths.
fn two_paths(command: &mut Command, shop: &Workshop, launches: u64) -> anyhow::Result<Truth> {
    let module = Module::usual().write(&shop.path("module.zebin"))?;
    let output = checked(command.arg(module).arg(launches.to_string()))?;
    let account = &Account::read(&output)?[0];
    let truth = Truth::read(&shop.path("truth.json"))?;
    assert_eq!(truth.launches_by_kernel(), account.launches);
    assert_eq!(account.total(), 2 * launches);
    let threads = truth.launches_by_thread();
    assert_eq!(threads.into_values().collect::<Vec<_>>(), [launches; 2]);
    Ok(truth)
}

#[test]
fn rust_through_raw_bindings() -> anyhow::Result<()> {
    let mut needs = NEEDS.to_vec();
    needs.push(Need::Tool("rustc"));
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let machine = Machine::new(&Driver::build(Exports::All)?).truth(&shop.path("truth.json"));
    let truth = two_paths(&mut machine.command(&build_rust()?), &shop, 500)?;
    for call in truth.launch_calls() {
        assert_eq!(call.group_size, Some([8, 2, 1]));
        assert!(matches!(call.groups, Some([3 | 4, 1, 1])));
    }
    Ok(())
}

#[test]
fn python_through_ctypes() -> anyhow::Result<()> {
    let mut needs = NEEDS.to_vec();
    needs.push(Need::Tool("python3"));
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let machine = Machine::new(&Driver::build(Exports::All)?).truth(&shop.path("truth.json"));
    let mut command = machine.command(Path::new("python3"));
    let truth = two_paths(command.arg(source_path("ze_python.py")), &shop, 500)?;
    for call in truth.launch_calls() {
        assert!(matches!(call.groups, Some([5 | 6, 1, 1])));
    }
    Ok(())
}
