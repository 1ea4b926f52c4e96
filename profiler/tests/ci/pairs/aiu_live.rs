//! Recordings of the virtual AIU's programs. Every launch is counted once, by the function that the
//! program called. Activity records are read on their way to the program. Nothing that the program
//! does is changed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::process::Command;
use std::rc::Rc;

use anyhow::Context as _;

use aiprof::aiu::{Kind, LayoutStatus};
use aiprof::collect::config::{ProbeConfig, RecordConfig};
use aiprof::collect::session::{Keep, Session};
use aiprof::correlate::{CallSink, DeviceSpan, Tracked, Tracker};
use aiprof::process::ProcessTable;
use aiprof::profile::{LossKind, Losses};
use aiprof::wire::Event;
use aiprof_tests::aiprof::{Aiprof, lost};
use aiprof_tests::aiu::{Call, Record, Runtime, Truth, TruthFiles, accounts};
use aiprof_tests::folded::{Folded, base};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::{Workshop, checked};

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("c++")];
/// The cbid of control blocks with a kernel: its correlation id is the kernel's.
const LAUNCH_CB_CMPT: u32 = 2;

/// Functions that give the device work, by what they are called.
const WORK: [&str; 11] = [
    "launchOperationCompute",
    "launchOperationH2D",
    "launchOperationD2H",
    "launchOperationFill",
    "aiuLaunchControlBlocks",
    "aiuLaunchComputeStream",
    "aiuLaunchScheduleCompute",
    "aiuDataTransferHtoD",
    "aiuDataTransferDtoH",
    "aiuFileTransferDtoF",
    "aiuFileTransferFtoD",
];

fn short(function: &str) -> &str {
    function.rsplit("::").next().unwrap_or(function)
}

fn is_work(call: &Call) -> bool {
    WORK.contains(&short(&call.function))
}

/// Launches by function and, if the call has it, kernel.
type Counts = BTreeMap<(String, String), u64>;

/// What was launched by the truth: calls of work that no other call of work made.
fn expected(truth: &Truth, names: bool) -> Counts {
    let parents: BTreeMap<u32, &Call> = truth.calls.iter().map(|c| (c.id, c)).collect();
    let mut counts = Counts::new();
    for call in truth.calls.iter().filter(|call| is_work(call)) {
        if parents.get(&call.parent).is_some_and(|c| is_work(c)) {
            continue;
        }
        let function = short(&call.function).to_owned();
        let name = match call.args.get("name").filter(|_| names) {
            Some(name) if function == "launchOperationCompute" => name.as_str().unwrap_or(""),
            _ => "",
        };
        *counts.entry((function, name.to_owned())).or_default() += 1;
    }
    counts
}

/// The same of a profile: `...;FUNCTION;-;KERNEL`.
fn counted(folded: &Folded) -> anyhow::Result<Counts> {
    let mut counts = Counts::new();
    for line in &folded.lines {
        let [.., function, device, work] = line.frames.as_slice() else {
            anyhow::bail!("no launch: {line}");
        };
        anyhow::ensure!(device == "-", "no launch: {line}");
        let function = short(base(function)).to_owned();
        let work = work.strip_suffix("_[G]").context("no kernel")?;
        let named = function == "launchOperationCompute" && !work.starts_with('[');
        let name = if named {
            work.to_owned()
        } else {
            String::new()
        };
        *counts.entry((function, name)).or_default() += line.value;
    }
    Ok(counts)
}

/// The program and its arguments, as aiprof's command.
fn profiled(options: &[&str], work: &Command) -> anyhow::Result<Command> {
    let arguments: Vec<_> = work.get_args().collect();
    let mut command = Aiprof::with(options.iter().copied())
        .command(work.get_program(), &arguments)
        .to_command()?;
    for (name, value) in work.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    Ok(command)
}

/// Records launches of a program. Returns the truth, the profile, and the output of the program and
/// of aiprof.
fn launches(flags: &[&str], arguments: &[&str]) -> anyhow::Result<(Truth, Folded, String, String)> {
    let shop = Workshop::new()?;
    let runtime = Runtime::build(flags)?;
    let truth = TruthFiles::new(&shop, "truth");
    let file = shop.path("launches.folded");
    let file = file.to_str().context("no text")?;
    let work = runtime.work(&truth, arguments);
    let output = profiled(&["--events", "launches", "-o", file], &work)?.output()?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    anyhow::ensure!(output.status.success(), "{}: {stderr}", output.status);
    let truth = truth.read_one()?;
    let folded = Folded::parse(&std::fs::read_to_string(file)?)?.of_pid(truth.process.pid);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok((truth, folded, stdout, stderr))
}

#[test]
fn each_launch_counts_once_by_its_outer_function() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    for arguments in [
        &[
            "plain",
            "--launches",
            "200",
            "--threads",
            "3",
            "--streams",
            "2",
        ][..],
        &["paths", "--launches", "120"],
        &["every", "--launches", "20"],
    ] {
        let (truth, folded, stdout, stderr) = launches(&[], arguments)?;
        let account = accounts(&stdout)?;
        assert_eq!(account[0]["errors"], 0);
        let expected = expected(&truth, true);
        assert!(expected.values().sum::<u64>() >= 120, "{expected:?}");
        assert_eq!(counted(&folded)?, expected, "{arguments:?}\n{stderr}");
        assert_eq!(lost(&stderr, "calls dropped"), 0, "{stderr}");
    }
    Ok(())
}

/// Where this build has its strings elsewhere, no name is shown: never a wrong one.
#[test]
fn names_that_are_only_assumed_are_never_wrong() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let flags = ["-DFLEX_CONST=const", "-DFLEX_OTHER_ABI"];
    let (truth, folded, _, stderr) = launches(&flags, &["plain", "--launches", "60"])?;
    assert_eq!(counted(&folded)?, expected(&truth, false), "{stderr}");
    Ok(())
}

/// The account of a run without aiprof and that of one with it.
fn both(mode: &str) -> anyhow::Result<(String, String)> {
    let shop = Workshop::new()?;
    let runtime = Runtime::build(&[])?;
    let truth = TruthFiles::new(&shop, "truth");
    let mut work = runtime.work(&truth, &[mode, "--launches", "2"]);
    let alone = checked(&mut work)?;
    let file = shop.path("out.aiprof");
    let options = [
        "--events",
        "time-in-call",
        "-o",
        file.to_str().context("no text")?,
    ];
    let with = checked(&mut profiled(&options, &work)?)?;
    // The first line is the process's id.
    let account = |text: &str| text.lines().skip(1).collect::<Vec<_>>().join("\n");
    Ok((account(&alone), account(&with)))
}

#[test]
fn exceptions_jumps_cancellation_and_backtraces_are_as_without_aiprof() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    for mode in ["throw", "longjmp", "cancel", "backtrace"] {
        let (alone, with) = both(mode)?;
        assert!(accounts(&alone)?[0]["left"].as_u64() > Some(10), "{alone}");
        assert_eq!(with, alone, "{mode}");
    }
    Ok(())
}

/// What a tracker reports of one process.
#[derive(Default)]
struct Told {
    pid: u32,
    spans: Vec<DeviceSpan>,
    calls: Vec<DeviceSpan>,
}

impl CallSink for Told {
    fn found(&mut self, found: &Tracked<'_>) {
        match *found {
            Tracked::DeviceSpan(span) if span.pid == self.pid => self.spans.push(span.clone()),
            Tracked::RuntimeRecord(span) if span.pid == self.pid => self.calls.push(span.clone()),
            _ => {}
        }
    }
}

/// Records every event of the machine while a program runs, and tracks them.
fn track(work: &mut Command, truth: &TruthFiles) -> anyhow::Result<(Truth, Told, Losses)> {
    let config = RecordConfig {
        probes: Some(ProbeConfig {
            command: vec![work.get_program().into()],
            late_libraries: true,
            ..ProbeConfig::default()
        }),
        ..RecordConfig::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let seen = Rc::new(RefCell::new(Vec::new()));
    let mut session = runtime.block_on(async { Session::start(&config, Keep::Nothing) })?;
    let sink = Rc::clone(&seen);
    session.on_events(Box::new(move |event: &Event, _: &ProcessTable| {
        sink.borrow_mut().push(event.clone());
    }));
    runtime.block_on(session.prepare(std::future::pending()))?;
    let (done, ended) = tokio::sync::oneshot::channel();
    let output = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let output = checked(work);
            // Whatever is in flight arrives.
            std::thread::sleep(std::time::Duration::from_millis(50));
            // If the recording has failed, there is no receiver.
            let _ = done.send(());
            output
        });
        let stop = async { drop(ended.await) };
        let ran = runtime.block_on(session.run(stop, |_| {}));
        let output = thread.join().map_err(|_| anyhow::anyhow!("panicked"))?;
        ran?;
        output
    })?;
    let finished = runtime.block_on(async { session.finish() })?;
    anyhow::ensure!(accounts(&output)?[0]["errors"] == 0, "{output}");
    let truth = truth.read_one()?;
    let mut told = Told {
        pid: truth.process.pid,
        ..Told::default()
    };
    let mut tracker = Tracker::default();
    let mut last = 0;
    for event in seen.borrow().iter() {
        last = last.max(event.time_ns());
        tracker.apply(event, &mut told);
    }
    tracker.finish(last, &mut told);
    let mut losses = tracker.take_losses();
    losses.merge(&finished.profile.losses);
    Ok((truth, told, losses))
}

fn track_profiled(layout: &str, arguments: &[&str]) -> anyhow::Result<(Truth, Told, Losses)> {
    let shop = Workshop::new()?;
    let runtime = Runtime::build(&[])?;
    let truth = TruthFiles::new(&shop, "truth");
    let mut work = runtime.work(&truth, &["profiled", "--launches", "90"]);
    work.args(arguments).env("VAIU_LAYOUT", layout);
    track(&mut work, &truth)
}

/// Correlation id, start, end, code, name and cycles of a record.
type Facts = (Option<u64>, u64, u64, Option<u32>, String, Option<[u64; 5]>);

/// The facts of a record, in a form that the truth has too.
fn told(span: &DeviceSpan) -> Facts {
    let r = &span.record;
    let name = r.name.clone().unwrap_or_default();
    (r.correlation, r.start.0, r.end.0, r.code, name, r.cycles)
}

fn true_one(r: &Record) -> Facts {
    let code = (r.kind != 2).then_some(r.what);
    let cycles = matches!(r.kind, 1 | 4).then_some(r.cycles);
    let cycles = cycles.filter(|cycles| *cycles != [0; 5]);
    let name = if r.kind == 1 {
        r.name.clone()
    } else {
        String::new()
    };
    (Some(r.corr.into()), r.start, r.end, code, name, cycles)
}

/// Small buffers are read whole or while they are walked, large ones only while they are walked.
/// Each record is still reported once, and equals the truth.
#[test]
fn activity_records_are_read_on_their_way_to_the_program() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    for (layout, arguments) in [
        ("natural", &["--buffer", "20000"][..]),
        ("natural", &["--launches", "400"]),
        ("packed", &[]),
        ("narrow", &["--threads", "2", "--buffer", "30000"]),
    ] {
        let (truth, seen, losses) = track_profiled(layout, arguments)?;
        assert!(truth.records.len() > 200);
        let of_calls = truth.records.iter().filter(|r| r.kind == 6).count();
        let mut spans: Vec<_> = seen.spans.iter().chain(&seen.calls).map(told).collect();
        let mut records: Vec<_> = truth.records.iter().map(true_one).collect();
        spans.sort();
        records.sort();
        assert_eq!(spans, records, "{layout} {arguments:?}: {losses:?}");
        assert_eq!(seen.calls.len(), of_calls);
        assert_eq!(losses.get(LossKind::ActivityUnknown), 0);
        for span in &seen.spans {
            let published = span.record.kind == Kind::Compute;
            assert_eq!(span.record.status == LayoutStatus::Published, published);
        }
        // A kernel's launch has its id.
        let launches = seen
            .calls
            .iter()
            .filter(|c| c.record.code == Some(LAUNCH_CB_CMPT));
        let ids: Vec<_> = launches.map(|call| call.record.correlation).collect();
        let mut kernels = seen.spans.iter().filter(|s| s.record.kind == Kind::Compute);
        assert!(kernels.all(|kernel| ids.contains(&kernel.record.correlation)));
    }
    Ok(())
}

#[test]
fn records_of_unknown_layout_are_counted() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let (truth, seen, losses) = track_profiled("future", &[])?;
    assert!(
        seen.spans.is_empty() && seen.calls.is_empty(),
        "{:?}",
        seen.spans
    );
    let unknown = losses.get(LossKind::ActivityUnknown);
    assert!(truth.records.len() > 200 && unknown > 0, "{losses:?}");
    Ok(())
}
