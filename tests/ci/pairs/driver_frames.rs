//! The driver's frames between the runtime's function and the device, on the virtual Level Zero
//! driver. Its truth file and the program's account show which submission handed over which launch.
//! The driver's source (`virtual/level-zero/handover.cpp`) shows which frames there are. The device
//! of the ioctls, and so the table that they are known by, is *synthetic*: `/dev/full` knows
//! FIOCLEX, as every file does.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use aiprof_tests::aiprof::{binary, lost};
use aiprof_tests::folded::{Folded, Line, base};
use aiprof_tests::level_zero::driver::{Driver, Exports, Machine};
use aiprof_tests::level_zero::module::{Kernel, Module};
use aiprof_tests::level_zero::program::{Account, build_submits};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::pprof;
use aiprof_tests::stall_run::{NEEDS as STALL_NEEDS, Recording};
use aiprof_tests::states::{UNTIL_KNOWN, until_known};
use aiprof_tests::truth::{Kind, Truth};
use aiprof_tests::workload::{Workshop, checked};

const DEVICE: &str = "/dev/full";
const USER_TABLES: &str = "/etc/aiprof/probes.d";
const APPEND: &str = "zeCommandListAppendLaunchKernel";
const EXECUTE: &str = "zeCommandQueueExecuteCommandLists";

const TABLE: &str = r#"
name = "synthetic"
api = "Synthetic driver"
type = "T"

[[device]]
driver = "aiprof-synthetic"

[[ioctl]]
name = "SYNTHETIC_SUBMIT"
number = 0x51
kind = "submit"
"#;

fn needs() -> Vec<Need> {
    let own = [
        Need::Tool("unshare"),
        Need::Path(DEVICE),
        Need::Path("/sys/kernel/tracing/events/syscalls"),
    ];
    [&STALL_NEEDS[..], &own].concat()
}

/// Which way a launch went: what it was appended by, and the driver's function that handed it over;
/// `None`: no ioctl did that can be identified as its own.
type Way = (String, Option<&'static str>);

/// How the driver hands work over.
struct Submitting {
    variables: Vec<(&'static str, &'static str)>,
    /// Whether each call has its ioctl.
    by_ioctl: bool,
}

impl Submitting {
    fn by_ioctl() -> Self {
        Self {
            variables: vec![("VZE_SUBMIT", DEVICE)],
            by_ioctl: true,
        }
    }

    fn otherwise(variables: &[(&'static str, &'static str)]) -> Self {
        Self {
            variables: variables.to_vec(),
            by_ioctl: false,
        }
    }
}

/// A recorded run of `ze_submits`.
struct Run {
    shop: Workshop,
    truth: Truth,
    account: Account,
    stderr: String,
}

fn module() -> Module {
    let kernel = |name: &str| {
        Kernel::new(name, 400_000)
            .rate(0x40, "sbid", 200)
            .rate(0x80, "pipe", 50)
    };
    Module::new(vec![kernel("first"), kernel("second")])
}

/// A command that runs aiprof with these options, and with a table of its own: in a mount
/// namespace, so that others have no such table.
fn aiprof(shop: &Workshop, options: &[String]) -> anyhow::Result<Command> {
    let tables = shop.path("tables");
    std::fs::create_dir_all(&tables)?;
    std::fs::write(tables.join("synthetic.toml"), TABLE)?;
    // A place to mount on; it stays, empty.
    std::fs::create_dir_all(USER_TABLES)?;
    let script = format!("mount --bind \"$0\" {USER_TABLES} && exec \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script]).arg(&tables);
    let (name, wait) = until_known()?;
    command.env(UNTIL_KNOWN, wait);
    command.arg(binary()?).arg("--only").args(options);
    command.arg(format!("--control={name}"));
    command.args(["--admit-device", &format!("synthetic={DEVICE}")]);
    command.stdin(Stdio::null());
    Ok(command)
}

/// Records `ze_submits MODE` into `file` with these options.
fn record(
    submitting: &Submitting,
    options: &[&str],
    file: &str,
    mode: &[&str],
) -> anyhow::Result<Run> {
    let shop = Workshop::new()?;
    let mut recording = Recording::of(module());
    for (name, value) in &submitting.variables {
        recording = recording.set(name, value);
    }
    let samples = !options.contains(&"--events");
    let mut all: Vec<String> = options.iter().map(|&option| option.into()).collect();
    let fifos = match samples {
        true => {
            all.extend(recording.replay(&shop));
            recording.fifos(&shop)?
        }
        false => Vec::new(),
    };
    let machine = match samples {
        true => recording.machine(&shop)?,
        false => {
            let machine = Machine::new(&Driver::build(Exports::All)?);
            let machine = machine.truth(&shop.path("truth.json"));
            let variables = submitting.variables.iter();
            variables.fold(machine, |machine, (name, value)| machine.set(name, value))
        }
    };
    let mut command = aiprof(&shop, &all)?;
    command.arg("-o").arg(shop.path(file)).arg("--");
    command.arg(build_submits()?);
    command.args(recording.arguments(&shop, mode)?);
    command.envs(machine.environment());
    let output = command.output()?;
    drop(fifos);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{}: {stderr}", output.status);
    let account = Account::read(&String::from_utf8_lossy(&output.stdout))?.remove(0);
    Ok(Run {
        truth: Truth::read(&shop.path("truth.json"))?,
        shop,
        account,
        stderr,
    })
}

impl Run {
    /// What the program called its calls, by their numbers.
    fn paths(&self, member: &str) -> anyhow::Result<BTreeMap<u64, String>> {
        let all = self.account.more.get(member).context("no such member")?;
        let all: BTreeMap<String, Vec<u64>> = serde_json::from_value(all.clone())?;
        let each = all
            .into_iter()
            .flat_map(|(path, seqs)| seqs.into_iter().map(move |seq| (seq, path.clone())));
        Ok(each.collect())
    }

    /// The way of each execution, by the numbers of the calls that appended and that
    /// submitted it.
    fn ways(&self, submitting: &Submitting) -> anyhow::Result<BTreeMap<(u64, u64), Way>> {
        let (appends, submits) = (self.paths("appends")?, self.paths("submits")?);
        let kernels = self.truth.execs.iter().filter(|e| e.kind == Kind::Kernel);
        let way = |append: u64, submit: u64| -> anyhow::Result<Way> {
            let append_path = appends.get(&append).context("an unknown launch")?;
            let flush = match submits.get(&submit).map(String::as_str) {
                None => "flush_immediate",
                Some("plain") => "flush_queue",
                Some(_) => "flush_fenced",
            };
            ensure!(
                submit == append || submits.contains_key(&submit),
                "{submit}"
            );
            let flush = submitting.by_ioctl.then_some(flush);
            Ok((format!("append_{append_path}"), flush))
        };
        let each = kernels.map(|e| Ok(((e.seq, e.submit), way(e.seq, e.submit)?)));
        each.collect()
    }

    /// Executions by kernel and way.
    fn executed(&self, submitting: &Submitting) -> anyhow::Result<BTreeMap<(String, Way), u64>> {
        let ways = self.ways(submitting)?;
        let mut sums = BTreeMap::new();
        for exec in self.truth.execs.iter().filter(|e| e.kind == Kind::Kernel) {
            let way = ways[&(exec.seq, exec.submit)].clone();
            let kernel = exec.kernel.clone().context("a kernel without a name")?;
            *sums.entry((kernel, way)).or_insert(0) += 1;
        }
        Ok(sums)
    }

    fn folded(&self, file: &str) -> anyhow::Result<Folded> {
        let text = std::fs::read_to_string(self.shop.path(file))?;
        Ok(Folded::parse(&text)?.of_pid(self.account.pid))
    }

    fn report(&self, file: &str, options: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new(binary()?);
        command.arg("report").arg(self.shop.path("run.aiprof"));
        command.arg("-o").arg(self.shop.path(file)).args(options);
        checked(&mut command).map(drop)
    }
}

/// Functions of frames, without their suffixes and arguments.
fn functions(frames: &[String]) -> Vec<String> {
    let named = frames
        .iter()
        .map(|f| f.replace("(anonymous namespace)::", ""));
    named.map(|frame| base(&frame).to_owned()).collect()
}

/// The way that the frames of a stack show, the kernel, and all that is between the
/// function that launched and the device. The stack must be the program's, then
/// `zeCommandListAppendLaunchKernel`, then perhaps the function that executed, and the
/// driver's frames.
fn way_of(frames: &[String]) -> anyhow::Result<(String, Way, Vec<&str>)> {
    let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
    let mark = frames.iter().position(|&frame| frame == "-");
    let (host, device) = frames.split_at(mark.context("no device")?);
    let kernel = device.iter().find(|frame| KERNELS.contains(frame));
    let kernel = kernel.context("no kernel")?;
    let launch = host.iter().position(|&frame| frame == APPEND);
    let (program, below) = host.split_at(launch.context("no launch")?);
    let appends: Vec<_> = program
        .iter()
        .filter(|f| f.starts_with("append_"))
        .collect();
    let [append] = appends.as_slice() else {
        anyhow::bail!("{} append functions", appends.len());
    };
    let flush = ["flush_immediate", "flush_queue", "flush_fenced"];
    let flush = flush
        .into_iter()
        .find(|name| below.contains(&&*format!("vze::{name}")));
    let way = (append.to_string(), flush);
    Ok((kernel.to_string(), way, below[1..].to_vec()))
}

/// The frames between a launch and the device are those of the driver's source.
fn check_below(way: &Way, below: &[&str]) -> anyhow::Result<()> {
    let Some(flush) = way.1 else {
        ensure!(below.is_empty(), "nothing handed it over: {below:?}");
        return Ok(());
    };
    let flush = format!("vze::{flush}");
    let is_list = flush != "vze::flush_immediate";
    ensure!((below.first() == Some(&EXECUTE)) == is_list, "{below:?}");
    let names = ["vze::submit_batch", "vze::kernel_submit"];
    let mut wanted: Vec<&str> = vec![&flush];
    wanted.extend(names);
    let at = below.iter().position(|&frame| frame == flush);
    let at = at.with_context(|| format!("{below:?}"))?;
    let tail: Vec<&str> = below[at..].iter().copied().take(3).collect();
    ensure!(tail == wanted, "{below:?}");
    let libc: Vec<&str> = below[at + 3..].to_vec();
    ensure!(
        matches!(libc.as_slice(), [f] if f.ends_with("ioctl")),
        "behind the driver's: {libc:?}"
    );
    // Only the driver's own, and each function of the interface once.
    for (i, frame) in below.iter().enumerate() {
        let is_own = frame.starts_with("append_") || frame.starts_with("submit_");
        let again = below[..i].contains(frame) || *frame == APPEND;
        ensure!(
            !is_own && !again && *frame != "main",
            "{frame} in {below:?}"
        );
    }
    Ok(())
}

const KERNELS: [&str; 2] = ["first", "second"];

/// Sums by kernel and way of those lines that are of the program's kernels.
fn sums(folded: &Folded) -> anyhow::Result<BTreeMap<(String, Way), u64>> {
    let mut sums = BTreeMap::new();
    let is_ours = |line: &&Line| KERNELS.iter().any(|kernel| line.has(kernel));
    for line in folded.lines.iter().filter(is_ours) {
        let frames = functions(&line.frames);
        let (kernel, way, below) = way_of(&frames).with_context(|| line.to_string())?;
        check_below(&way, &below).with_context(|| line.to_string())?;
        *sums.entry((kernel, way)).or_insert(0) += line.value;
    }
    Ok(sums)
}

const IMMEDIATE: [&str; 2] = ["immediate", "rounds=40"];
const QUEUE: [&str; 2] = ["queue", "rounds=20"];

#[test]
fn launches_show_who_handed_them_over() -> anyhow::Result<()> {
    skip_unless!(&needs());
    let submitting = Submitting::by_ioctl();
    for mode in [IMMEDIATE, QUEUE] {
        let run = record(&submitting, &["--events", "launches"], "out.folded", &mode)?;
        let found = sums(&run.folded("out.folded")?)?;
        let expected = run.executed(&submitting)?;
        ensure!(found == expected, "{mode:?}: {found:#?}\n{expected:#?}");
        let ways = expected.len();
        ensure!(ways == if mode == QUEUE { 5 } else { 2 }, "{expected:#?}");
        ensure!(lost(&run.stderr, "driver's frames") == 0, "{}", run.stderr);
        ensure!(run.truth.execs.len() as u64 == expected.values().sum::<u64>());
    }
    Ok(())
}

/// Nothing is joined that is only near in time: an ioctl of another thread while the call
/// waits for it, and one ioctl for several calls.
#[test]
fn what_cannot_be_told_is_not_shown() -> anyhow::Result<()> {
    skip_unless!(&needs());
    let thread = [("VZE_SUBMIT", DEVICE), ("VZE_SUBMIT_THREAD", "1")];
    for submitting in [Submitting::otherwise(&[]), Submitting::otherwise(&thread)] {
        for mode in [IMMEDIATE, QUEUE] {
            let run = record(&submitting, &["--events", "launches"], "out.folded", &mode)?;
            let found = sums(&run.folded("out.folded")?)?;
            let expected = run.executed(&submitting)?;
            ensure!(found == expected, "{mode:?}: {found:#?}\n{expected:#?}");
        }
    }
    // If four calls are handed over at once, by the last: they are shown for that one.
    let batches = [("VZE_SUBMIT", DEVICE), ("VZE_SUBMIT_EVERY", "4")];
    let submitting = Submitting::otherwise(&batches);
    let run = record(
        &submitting,
        &["--events", "launches"],
        "out.folded",
        &IMMEDIATE,
    )?;
    let mut by_flush = BTreeMap::new();
    for ((_, (_, flush)), n) in sums(&run.folded("out.folded")?)? {
        *by_flush.entry(flush).or_insert(0) += n;
    }
    let expected = BTreeMap::from([(None, 30), (Some("flush_immediate"), 10)]);
    ensure!(by_flush == expected, "{by_flush:?}");
    Ok(())
}

/// Samples that the driver wrote, by kernel and way, of windows in which only one execution
/// of each launch was.
fn sampled(run: &Run, submitting: &Submitting) -> anyhow::Result<BTreeMap<(String, Way), u64>> {
    let ways = run.ways(submitting)?;
    let mut sums = BTreeMap::new();
    for window in &run.truth.windows {
        for sampled in &window.execs {
            let inside =
                run.truth.execs.iter().filter(|e| {
                    e.seq == sampled.seq && e.start_ns < window.t1 && e.end_ns > window.t0
                });
            let submits: Vec<u64> = inside.map(|e| e.submit).collect();
            let [submit] = submits.as_slice() else {
                anyhow::bail!("{} executions in a window", submits.len());
            };
            let exec = run.truth.execs.iter().find(|e| e.seq == sampled.seq);
            let kernel = exec.and_then(|e| e.kernel.clone()).context("no kernel")?;
            let way = ways[&(sampled.seq, *submit)].clone();
            *sums.entry((kernel, way)).or_insert(0) += sampled.written;
        }
    }
    sums.retain(|_, n| *n > 0);
    Ok(sums)
}

/// Frames of samples of devices, from a capture, in all outputs from the same place.
#[test]
fn samples_of_devices_show_who_handed_their_launches_over() -> anyhow::Result<()> {
    skip_unless!(&needs());
    let submitting = Submitting::by_ioctl();
    for mode in [IMMEDIATE, QUEUE] {
        let mode = [&mode[..], &["pause_us=15000"]].concat();
        let run = record(&submitting, &[], "run.aiprof", &mode)?;
        let expected = sampled(&run, &submitting)?;
        let total: u64 = expected.values().sum();
        ensure!(total > 1000, "{total} samples\n{}", run.stderr);
        run.report("out.folded", &["--weight", "samples", "--device-only"])?;
        let found = sums(&run.folded("out.folded")?)?;
        // Which of two paths that ran in one window it was is an estimate.
        let far = |(key, &due): (&(String, Way), &u64)| {
            let got = found.get(key).copied().unwrap_or(0);
            got.abs_diff(due) as f64 > 0.02 * total as f64
        };
        let far: Vec<_> = expected.iter().filter(|&pair| far(pair)).collect();
        ensure!(far.is_empty(), "{far:#?}\n{found:#?}");
        ensure!(
            found.values().sum::<u64>() == total,
            "{found:#?}\n{expected:#?}"
        );
        ensure!(found.len() == expected.len(), "{found:#?}");

        run.report("out.pb.gz", &[])?;
        let mut of_pprof = BTreeMap::new();
        for sample in pprof::read(&run.shop.path("out.pb.gz"))? {
            if sample.numbers.contains_key("possible") {
                let frames = functions(&sample.frames);
                let (kernel, way, below) = way_of(&frames)?;
                check_below(&way, &below)?;
                let count = sample.values.get("device_samples");
                let count = count.map_or(0, |n| n.unsigned_abs());
                *of_pprof.entry((kernel, way)).or_insert(0) += count;
            }
        }
        ensure!(of_pprof == found, "{of_pprof:#?}\n{found:#?}");

        run.report("out.svg", &["--device-only"])?;
        let svg = std::fs::read_to_string(run.shop.path("out.svg"))?;
        for (_, (_, flush)) in found.keys() {
            let flush = flush.context("no way")?;
            ensure!(svg.contains(&format!("vze::{flush}")), "{flush}");
        }

        // Without them it is as it was: nothing between the function and the device.
        let plain = ["--weight", "samples", "--device-only", "--no-driver-frames"];
        run.report("plain.folded", &plain)?;
        let mut by_append = BTreeMap::new();
        for ((kernel, (append, _)), n) in &found {
            *by_append
                .entry((kernel.clone(), (append.clone(), None)))
                .or_insert(0) += n;
        }
        ensure!(sums(&run.folded("plain.folded")?)? == by_append);
        run.report("launches.folded", &["--events", "launches"])?;
        ensure!(sums(&run.folded("launches.folded")?)? == run.executed(&submitting)?);
        run.report(
            "summary.txt",
            &["--events", "launches", "--format", "summary"],
        )?;
        let summary = std::fs::read_to_string(run.shop.path("summary.txt"))?;
        let called = summary
            .split("Functions called")
            .nth(1)
            .context("no table")?;
        let first = called.lines().nth(2).context("no row")?;
        ensure!(first.ends_with(APPEND), "{called}");
    }
    Ok(())
}

/// The ioctl in a trace: a span of its own inside of the call, with its stack.
#[test]
fn traces_have_the_ioctl_inside_of_the_call() -> anyhow::Result<()> {
    skip_unless!(&needs());
    let submitting = Submitting::by_ioctl();
    let run = record(&submitting, &[], "run.aiprof", &IMMEDIATE)?;
    run.report("trace.json", &[])?;
    let text = std::fs::read_to_string(run.shop.path("trace.json"))?;
    let trace: Value = serde_json::from_str(&text)?;
    let events = trace["traceEvents"].as_array().context("no events")?;
    let of = |name: &str| -> Vec<(f64, f64)> {
        let spans = events
            .iter()
            .filter(|e| e["name"] == name && e["ph"] == "X");
        let times = |e: &Value| Some((e["ts"].as_f64()?, e["dur"].as_f64()?));
        spans.filter_map(times).collect()
    };
    let (calls, ioctls) = (of(APPEND), of("SYNTHETIC_SUBMIT"));
    ensure!(
        calls.len() == 40 && ioctls.len() == 40,
        "{} {}",
        calls.len(),
        ioctls.len()
    );
    for ((at, took), (begin, length)) in calls.into_iter().zip(ioctls) {
        ensure!(at <= begin && begin + length <= at + took);
    }
    Ok(())
}
