//! Recording a program of the VM, and reading the recording and the output.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use aiprof::capture;
use aiprof::correlate::{CallSink, FinishedCall, Submission, Tracked, TrackedLaunch, Tracker};
use aiprof::wire::{Event, ProcessEvent, ProcessEventKind, Sample, TracePoint};
use aiprof_tests::aiprof::binary;
use aiprof_tests::workload::{Workshop, checked};
use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::calls::ROUNDS;

/// vgem's nodes.
pub(crate) const NODES: [&str; 2] = ["/dev/dri/card0", "/dev/dri/renderD128"];

/// What a recording has of the devices.
#[derive(Default)]
pub(crate) struct Recorded {
    pub(crate) calls: Vec<FinishedCall>,
    pub(crate) launches: Vec<TrackedLaunch>,
    /// Stacks, by id.
    pub(crate) stacks: HashMap<u64, Sample>,
    pub(crate) submissions: Vec<Submission>,
    /// Tracepoints that were recorded.
    pub(crate) points: Vec<TracePoint>,
}

impl CallSink for Recorded {
    fn found(&mut self, found: &Tracked<'_>) {
        match *found {
            Tracked::Call(call) if call.probe.is_ioctl => self.calls.push(call.clone()),
            Tracked::Launch(launch) => self.launches.push(launch.clone()),
            Tracked::Submission(submission) => self.submissions.push(submission.clone()),
            _ => {}
        }
    }
}

/// Options that the VM wants aiprof to be run with.
fn options() -> Vec<String> {
    let text = std::env::var("AIPROF_OPTIONS").unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

/// A program of the VM: there it lies in a folder, elsewhere it is built.
fn program(shop: &Workshop, name: &str) -> anyhow::Result<PathBuf> {
    if let Some(folder) = std::env::var_os("AIPROF_VM_PROGRAMS") {
        return Ok(Path::new(&folder).join(name));
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../xtask/vm")
        .join(format!("{name}.c"));
    let output = shop.path(name);
    checked(
        Command::new("cc")
            .args(["-O2", "-fomit-frame-pointer", "-o"])
            .arg(&output)
            .arg(source),
    )?;
    Ok(output)
}

/// Records a program; gives what it wrote down, line by line, and what was
/// recorded of it.
pub(crate) fn record(
    shop: &Workshop,
    stand_ins: &[&str],
    name: &str,
    args: &[&str],
) -> anyhow::Result<(Vec<Value>, Recorded)> {
    let file = shop.path(&format!(
        "{name}-{}.aiprof",
        args.join("-").replace('/', "_")
    ));
    let (truth, pid) = record_into(shop, &file, stand_ins, name, args)?;
    Ok((truth, read_of(&file, pid)?))
}

/// Reads what was recorded of one process. Others may ask the same device for
/// something, such as whether it is a terminal.
fn read_of(file: &Path, pid: u64) -> anyhow::Result<Recorded> {
    let mut recorded = read(file)?;
    recorded.calls.retain(|call| u64::from(call.pid) == pid);
    recorded.launches.retain(|l| u64::from(l.by.pid) == pid);
    recorded.submissions.retain(|s| u64::from(s.pid) == pid);
    Ok(recorded)
}

/// A device of the VM, and the program that uses it.
struct Work {
    /// What the tests call it.
    device: &'static str,
    program: &'static str,
    args: Vec<String>,
    /// For `--admit-device`.
    stand_in: Option<String>,
}

/// The works of those devices that are here.
fn works() -> Vec<Work> {
    let mut works = Vec::new();
    let [card, render] = NODES;
    if Path::new(render).exists() {
        works.push(Work {
            device: "vgem",
            program: "vgem_work",
            args: [card, render, ROUNDS].map(String::from).into(),
            stand_in: None,
        });
    }
    for device in ["xe", "i915", "amdgpu", "kfd"] {
        let node = format!("/dev/{device}_test");
        if Path::new(&node).exists() {
            works.push(Work {
                device,
                program: "ioctl_work",
                stand_in: Some(format!("{device}={node}")),
                args: vec![device.into(), node, ROUNDS.into()],
            });
        }
    }
    if let Some((group, address)) = vfio_device() {
        works.push(Work {
            device: "vfio",
            program: "vfio_work",
            stand_in: Some(format!("vfio={group}")),
            args: vec![group, address, "4".into()],
        });
    }
    works
}

/// The VFIO group of the VM's PCI device, and the device's address.
pub(crate) fn vfio_device() -> Option<(String, String)> {
    let place = std::fs::read_to_string("/tmp/vfio-device").ok()?;
    let (group, address) = place.trim().split_once(' ')?;
    Some((group.into(), address.into()))
}

/// Runs `DEVICE PROGRAM ARGS`, with lines around what it prints. Those behind it run
/// whether or not it goes well.
const WORK: &str = r#"work() {
    echo "work $1"
    shift
    "$@" 2>&1
    echo "status $?"
}
"#;

/// The programs of all devices, one after another, in one recording: where CPUs are
/// emulated, the kernel takes long to verify what each recording loads.
struct Together {
    /// Holds the recording. This is never dropped, so the files stay: in a VM that does no harm.
    _shop: Workshop,
    file: PathBuf,
    /// What the programs printed, with lines between them.
    text: String,
}

impl Together {
    fn record() -> anyhow::Result<Self> {
        let shop = Workshop::new()?;
        let file = shop.path("together.aiprof");
        let works = works();
        let mut script = String::from(WORK);
        for work in &works {
            let program = program(&shop, work.program)?;
            let (device, args) = (work.device, work.args.join(" "));
            writeln!(script, "work {device} {} {args}", program.display())?;
        }
        let stand_ins: Vec<_> = works.iter().filter_map(|w| w.stand_in.as_deref()).collect();
        let mut command = recording(&file, &stand_ins)?;
        command.args(["--", "sh", "-c", &script]);
        let text = checked(&mut command)?;
        Ok(Self {
            _shop: shop,
            file,
            text,
        })
    }

    /// What a device's program wrote down.
    fn truth(&self, device: &str) -> anyhow::Result<Vec<Value>> {
        let lines = self.text.lines();
        let begin = format!("work {device}");
        let lines: Vec<_> = lines
            .skip_while(|line| *line != begin)
            .skip(1)
            .take_while(|line| !line.starts_with("work "))
            .collect();
        let (status, lines) = lines.split_last().context("it did not run")?;
        let text = lines.join("\n");
        ensure!(*status == "status 0", "{status}\n{text}");
        said(&text)
    }
}

/// What a device's program wrote down, line by line, and what was recorded of it, in
/// one recording of all devices that is made once.
pub(crate) fn recorded(device: &str) -> anyhow::Result<(Vec<Value>, Recorded)> {
    static TOGETHER: OnceLock<Result<Together, String>> = OnceLock::new();
    let together = TOGETHER
        .get_or_init(|| Together::record().map_err(|error| format!("{error:#}")))
        .as_ref()
        .map_err(anyhow::Error::msg)?;
    let truth = together.truth(device).with_context(|| device.to_owned())?;
    let recorded = read_of(&together.file, pid(&truth)?)?;
    Ok((truth, recorded))
}

/// A recording to be, of calls: samples are few, and some of this runs on emulated
/// CPUs.
fn recording(file: &Path, stand_ins: &[&str]) -> anyhow::Result<Command> {
    let mut command = Command::new(binary()?);
    command
        .args(["record", "-F", "1", "--no-inlines"])
        .args(options())
        .arg("-o")
        .arg(file);
    for stand_in in stand_ins {
        command.args(["--admit-device", stand_in]);
    }
    command.stdin(std::process::Stdio::null());
    Ok(command)
}

/// The lines of programs' accounts.
fn said(text: &str) -> anyhow::Result<Vec<Value>> {
    let lines = text.lines().filter(|line| line.starts_with('{'));
    lines
        .map(|line| serde_json::from_str(line).with_context(|| line.to_owned()))
        .collect()
}

/// The number of the process that wrote an account.
fn pid(truth: &[Value]) -> anyhow::Result<u64> {
    let end = truth.iter().find(|line| line["event"] == "end");
    end.and_then(|line| number(line, "pid")).context("no end")
}

/// Records a program into a file; gives what it wrote down, and its number.
pub(crate) fn record_into(
    shop: &Workshop,
    file: &Path,
    stand_ins: &[&str],
    name: &str,
    args: &[&str],
) -> anyhow::Result<(Vec<Value>, u64)> {
    let mut command = recording(file, stand_ins)?;
    command.arg("--").arg(program(shop, name)?).args(args);
    let truth = said(&checked(&mut command)?)?;
    let pid = pid(&truth)?;
    Ok((truth, pid))
}

/// Reads a recording.
pub(crate) fn read(file: &Path) -> anyhow::Result<Recorded> {
    let mut recorded = Recorded::default();
    let mut tracker = Tracker::default();
    let mut last = 0;
    capture::for_each_event(file, |event| {
        last = last.max(event.time_ns());
        if let Event::Process(exit) = &event
            && exit.kind == ProcessEventKind::Exit
        {
            // An exit of no known process: it makes the tracker take in all that came before.
            let nobody = u32::MAX - 1;
            let exit = ProcessEvent {
                pid: nobody,
                tid: nobody,
                ..exit.clone()
            };
            tracker.apply(&Event::Process(exit), &mut recorded);
        }
        tracker.apply(&event, &mut recorded);
        match event {
            Event::CallStack(stack) => {
                recorded.stacks.insert(stack.id, stack.sample);
            }
            Event::TracePoint(point) => recorded.points.push(point),
            _ => {}
        }
        true
    })?;
    tracker.finish(last, &mut recorded);
    recorded.calls.sort_by_key(|call| call.start_ns);
    recorded.submissions.sort_by_key(|s| s.submitted_ns);
    Ok(recorded)
}

pub(crate) fn number(line: &Value, key: &str) -> Option<u64> {
    line.get(key)?.as_u64()
}

/// The value of a call's with this name, if it was read.
pub(crate) fn value(call: &FinishedCall, name: &str) -> Option<u64> {
    call.value(call.probe.slot(name)?)
}
