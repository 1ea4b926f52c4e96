//! The virtual AIU runtime alone: what it exports, and whether its truth file is
//! true, by what the workloads count and by the laws of the device.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

use aiprof_tests::aiu::{Runtime, Truth, TruthFiles, accounts};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::{Workshop, checked};

const NEEDS: [Need; 1] = [Need::Tool("c++")];

/// Runs a workload, returns its accounts and truths.
fn run(arguments: &[&str], variables: &[(&str, &str)]) -> anyhow::Result<(Vec<Value>, Vec<Truth>)> {
    let shop = Workshop::new()?;
    let runtime = Runtime::build(&[])?;
    let truth = TruthFiles::new(&shop, "truth");
    let mut command = runtime.work(&truth, arguments);
    let stdout = checked(command.envs(variables.iter().copied()))?;
    Ok((accounts(&stdout)?, truth.read_all()?))
}

/// The counts under a key of an account.
fn counts(account: &Value, key: &str) -> anyhow::Result<BTreeMap<String, u64>> {
    let map = account[key].as_object().context("no such counts")?;
    Ok(map
        .iter()
        .map(|(name, n)| (name.clone(), n.as_u64().unwrap_or(0)))
        .collect())
}

fn tally<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for name in names {
        *all.entry(name.to_owned()).or_default() += 1;
    }
    all
}

/// Dynamic symbols that a library defines.
fn exported(library: &std::path::Path) -> anyhow::Result<BTreeSet<String>> {
    let text = checked(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(library),
    )?;
    let names = text.lines().filter_map(|line| line.split(' ').nth(2));
    // Without what the compiler's own templates leave behind.
    let ours = names.filter(|name| !name.starts_with("_ZNSt"));
    Ok(ours.map(str::to_owned).collect())
}

#[test]
fn exports_the_names_of_the_real_libraries() -> anyhow::Result<()> {
    skip_unless!(&[NEEDS[0], Need::Tool("nm")]);
    let runtime = Runtime::build(&[])?;
    let aiupti: BTreeSet<String> = [
        "_Z20aiuptiActivityEnable19AIUpti_ActivityKind",
        "_Z21aiuptiActivityDisable19AIUpti_ActivityKind",
        "_Z24aiuptiFlushAllActivitiesv",
        "_Z27aiuptiActivityGetNextRecordPhmPP15AIUpti_Activity",
        "_Z31aiuptiActivityRegisterCallbacksPFvPPhPmS1_EPFvS_mmE",
        "_Z34aiuptiActivityGetNumDroppedRecordsPm",
    ]
    .map(str::to_owned)
    .into();
    assert_eq!(exported(&runtime.library("aiupti"))?, aiupti);
    let flex = exported(&runtime.library("flex"))?;
    for name in [
        "_ZN4flex12RuntimeEntry10toPriorityEi",
        "_ZN4flex13RuntimeStream11synchronizeEv",
        "_ZN4flex13RuntimeStream18launchOperationD2HEPNS_9DmaParamsE",
        "_ZN4flex13RuntimeStream18launchOperationH2DEPNS_9DmaParamsE",
        "_ZN4flex13RuntimeStream22launchOperationComputeEPNS_13ComputeParamsE",
        "_ZN4flex19AllocationDirectiveC1ENS_15PlacementPolicyESt6vectorIjSaIjEESt8optionalINS_16CompositeAddressEENS_10MemoryTypeE",
    ] {
        assert!(flex.contains(name), "{name}");
    }
    // The 33 events of the AIU guide, and the wait that ends them.
    assert_eq!(flex.iter().filter(|n| n.starts_with("aiu")).count(), 33);
    Ok(())
}

/// The unknowns of the real library: const parameters, other offsets.
#[test]
fn builds_of_another_abi_do_the_same() -> anyhow::Result<()> {
    let needs = [NEEDS[0], Need::Tool("nm")];
    skip_unless!(&needs);
    let runtime = Runtime::build(&["-DFLEX_CONST=const", "-DFLEX_OTHER_ABI"])?;
    let flex = exported(&runtime.library("flex"))?;
    let name = "_ZN4flex13RuntimeStream22launchOperationComputeEPKNS_13ComputeParamsE";
    assert!(flex.contains(name), "{flex:?}");
    let shop = Workshop::new()?;
    let truth = TruthFiles::new(&shop, "truth");
    let arguments = ["paths", "--launches", "24"];
    let other = accounts(&checked(&mut runtime.work(&truth, &arguments))?)?;
    assert_eq!(other, run(&arguments, &[])?.0);
    Ok(())
}

/// What the device can do: one thing at a time, no sooner than submitted, each phase as long as by
/// the counter.
fn check_device(truth: &Truth) -> anyhow::Result<()> {
    let mut free_at = 0;
    let device = truth.devices.first().context("no device")?;
    let rate = device.hz * (1.0 + device.ppm * 1e-6) / 1e9;
    for op in &truth.operations {
        anyhow::ensure!(op.start >= free_at && op.start >= op.submitted, "{op:?}");
        anyhow::ensure!(op.seen >= op.end && op.submitted >= op.queued, "{op:?}");
        anyhow::ensure!(op.at[0] == op.start && op.at[4] == op.end, "{op:?}");
        anyhow::ensure!(op.at.is_sorted(), "{op:?}");
        for i in 0..5 {
            let since = op.at[i].wrapping_sub(device.at) as i64 as f64 * rate;
            let cycles = (f64::from(device.cycles) + since).rem_euclid(4294967296.0);
            let off = (cycles - op.ts[i] as f64).abs();
            let off = off.min(4294967296.0 - off);
            anyhow::ensure!(off < 3.0, "{off} cycles off: {op:?}");
        }
        free_at = op.end;
    }
    Ok(())
}

/// Every call lies within its parent, on the same thread.
fn check_nesting(truth: &Truth) -> anyhow::Result<()> {
    let by_id: BTreeMap<u32, _> = truth.calls.iter().map(|c| (c.id, c)).collect();
    for call in truth.calls.iter().filter(|call| call.parent != 0) {
        let parent = by_id.get(&call.parent).context("no parent")?;
        anyhow::ensure!(
            parent.tid == call.tid && parent.t0 <= call.t0 && call.t1 <= parent.t1,
            "{call:?} in {parent:?}"
        );
    }
    Ok(())
}

#[test]
fn plain_run_is_told_and_records_nothing() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let arguments = [
        "plain",
        "--launches",
        "60",
        "--threads",
        "3",
        "--streams",
        "2",
    ];
    let (accounts, truths) = run(&arguments, &[])?;
    let (account, truth) = (&accounts[0], &truths[0]);
    check_device(truth)?;
    check_nesting(truth)?;
    let control = truth.operations.iter().filter(|op| op.kind == "control");
    assert_eq!(
        tally(control.map(|op| op.name.as_str())),
        counts(account, "launches")?
    );
    let prefix = "flex::RuntimeStream::";
    let outer = truth.calls.iter().filter(|call| call.parent == 0);
    let outer = outer.filter_map(|call| call.function.strip_prefix(prefix));
    assert_eq!(tally(outer), counts(account, "calls")?);
    let threads: BTreeSet<u32> = truth
        .calls_of("aiuLaunchControlBlocks")
        .map(|c| c.tid)
        .collect();
    assert_eq!(threads.len(), 3);
    assert!(truth.records.is_empty() && truth.buffers.is_empty());
    // Each launch is the inner call of the one that the program made.
    for op in truth.operations.iter().filter(|op| op.kind == "control") {
        let inner = truth.call(op.corr).context("no launching call")?;
        let launch = truth.call(inner.parent).context("no outer call")?;
        assert_eq!(launch.args["name"], op.name.as_str());
        assert!(inner.t0 <= op.submitted && op.submitted <= inner.t1);
    }
    Ok(())
}

#[test]
fn known_durations_and_wrapping_counter() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    // 20 GHz: the counter wraps every 0.2 s.
    let variables = [
        (
            "VAIU_KERNELS",
            "sdsc_fused_add_t_0=12345678,spyre_kernel_v1_softmax_mfrggzdf=1000",
        ),
        ("VAIU_SOC_HZ", "2e10"),
        ("VAIU_DRIFT_PPM", "250"),
        ("VAIU_CYCLES_START", "4294967295"),
    ];
    let (_, truths) = run(&["plain", "--launches", "60"], &variables)?;
    check_device(&truths[0])?;
    let mut seen = BTreeSet::new();
    for op in truths[0]
        .operations
        .iter()
        .filter(|op| op.kind == "control")
    {
        seen.insert((op.name.as_str(), op.at[3] - op.at[2]));
    }
    assert!(
        seen.contains(&("sdsc_fused_add_t_0", 12_345_678)),
        "{seen:?}"
    );
    assert!(
        seen.contains(&("spyre_kernel_v1_softmax_mfrggzdf", 1000)),
        "{seen:?}"
    );
    assert_eq!(seen.len(), 3);
    let ts: Vec<u64> = truths[0].operations.iter().map(|op| op.ts[0]).collect();
    assert!(!ts.is_sorted(), "the counter never wrapped: {ts:?}");
    Ok(())
}

#[test]
fn ranks_have_their_own_devices_and_meet_at_barriers() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let arguments = ["every", "--launches", "2", "--ranks", "3"];
    let (accounts, truths) = run(&arguments, &[("VAIU_DRIFT_PPM", "0,40,-60")])?;
    assert_eq!((truths.len(), accounts.len()), (3, 4));
    let launcher = accounts.iter().find(|a| a["mode"] == "launcher");
    assert_eq!(launcher.context("no launcher")?["failed"], 0);
    let ranks: BTreeSet<u32> = truths.iter().map(|t| t.process.rank).collect();
    assert_eq!(ranks, BTreeSet::from([0, 1, 2]));
    for truth in &truths {
        check_device(truth)?;
        assert_eq!(truth.devices[0].device, truth.process.rank);
        assert_eq!(
            truth.devices[0].ppm,
            [0.0, 40.0, -60.0][truth.process.rank as usize]
        );
    }
    // Each rank leaves a barrier only after all have come.
    for i in 0..2 {
        let calls: Option<Vec<_>> = truths
            .iter()
            .map(|t| t.calls_of("aiuRDMABarrier1").nth(i))
            .collect();
        let calls = calls.context("a barrier is missing")?;
        let last_in = calls.iter().map(|c| c.t0).max();
        assert!(calls.iter().map(|c| c.t1).min() >= last_in, "{calls:?}");
    }
    Ok(())
}

#[test]
fn functions_left_by_exceptions_and_jumps_are_told() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    for (mode, how) in [
        ("throw", "unwound"),
        ("cancel", "unwound"),
        ("longjmp", "longjmp"),
    ] {
        let (accounts, truths) = run(&[mode, "--launches", "1"], &[])?;
        let left = accounts[0]["left"].as_u64().context("no count")?;
        let truth = &truths[0];
        // Once each in every function and in those it is called from.
        let marked = truth
            .calls
            .iter()
            .filter(|c| c.left.as_deref() == Some(how));
        let functions: BTreeSet<&str> = marked.map(|c| c.function.as_str()).collect();
        assert!(left as usize >= functions.len(), "{mode}: {left}");
        let all: BTreeSet<&str> = truth.calls.iter().map(|c| c.function.as_str()).collect();
        let untouched: Vec<_> = all.difference(&functions).collect();
        // Only what was called before the hook was set, and after.
        assert_eq!(
            untouched,
            [
                &"flex::FlexAllocator::allocate",
                &"flex::FlexAllocator::deallocate",
                &"flex::initializeRuntime"
            ],
            "{mode}"
        );
        check_nesting(truth)?;
    }
    Ok(())
}

#[test]
fn backtrace_sees_the_caller_everywhere() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let (accounts, truths) = run(&["backtrace", "--launches", "1"], &[])?;
    // The hook runs in every call but those before and after it was set.
    let others = [
        "flex::FlexAllocator::allocate",
        "flex::FlexAllocator::deallocate",
        "flex::initializeRuntime",
    ];
    let hooked = truths[0].calls.iter().filter(|call| {
        let outer = truths[0].call(call.parent);
        let names = [Some(*call), outer]
            .into_iter()
            .flatten()
            .map(|c| c.function.as_str());
        !names.into_iter().any(|name| others.contains(&name))
    });
    assert_eq!(accounts[0]["left"].as_u64(), Some(hooked.count() as u64));
    Ok(())
}

#[test]
fn accounts_do_not_depend_on_the_run() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    for arguments in [
        ["profiled", "--launches", "50", "--threads", "2"],
        ["profiled", "--launches", "50", "--late", "17"],
    ] {
        assert_eq!(run(&arguments, &[])?.0, run(&arguments, &[])?.0);
    }
    Ok(())
}

#[test]
fn python_calls_through_ctypes() -> anyhow::Result<()> {
    skip_unless!(&[NEEDS[0], Need::Tool("python3")]);
    let shop = Workshop::new()?;
    let runtime = Runtime::build(&[])?;
    let truth = TruthFiles::new(&shop, "truth");
    let stdout = checked(&mut runtime.python(&truth, &["30", "profiled"]))?;
    let account = &accounts(&stdout)?[0];
    let truth = truth.read_one()?;
    check_device(&truth)?;
    assert_eq!(truth.calls_of("aiuLaunchControlBlocks").count(), 30);
    assert_eq!(account["launches"]["evaluate"], 10);
    let kinds: Vec<String> = truth.records.iter().map(|r| r.kind.to_string()).collect();
    assert_eq!(
        tally(kinds.iter().map(String::as_str)),
        counts(account, "records")?
    );
    Ok(())
}

#[test]
fn early_library_costs_every_operation() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let cost = [("VAIU_TELEMETRY_NS", "300000")];
    let shortest = |arguments: &[&str]| -> anyhow::Result<u64> {
        let (_, truths) = run(arguments, &cost)?;
        let calls = truths[0].calls_of("flex::RuntimeStream::launchOperationCompute");
        calls.map(|c| c.t1 - c.t0).min().context("no launch")
    };
    assert!(shortest(&["profiled", "--launches", "20", "--early"])? >= 300_000);
    assert!(shortest(&["profiled", "--launches", "20"])? < 300_000);
    Ok(())
}
