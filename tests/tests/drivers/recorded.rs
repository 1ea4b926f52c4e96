//! Recording a program of the VM, and reading what was recorded and said.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use aiprof::correlate::{CallSink, FinishedCall, Launch, Submission, Tracker};
use aiprof::import::capture;
use aiprof::wire::{Event, ProcessEvent, ProcessEventKind, Sample, TracePoint};
use aiprof_tests::aiprof::binary;
use aiprof_tests::workload::{Workshop, checked};
use anyhow::Context as _;
use serde_json::Value;

/// What a recording has of the devices.
#[derive(Default)]
pub(crate) struct Recorded {
    pub(crate) calls: Vec<FinishedCall>,
    pub(crate) launches: Vec<Launch>,
    /// Stacks, by id.
    pub(crate) stacks: HashMap<u64, Sample>,
    pub(crate) submissions: Vec<Submission>,
    /// Tracepoints that were recorded.
    pub(crate) points: Vec<TracePoint>,
}

impl CallSink for Recorded {
    fn call(&mut self, call: &FinishedCall) {
        if call.probe.is_ioctl {
            self.calls.push(call.clone());
        }
    }

    fn launch(&mut self, launch: &Launch) {
        self.launches.push(launch.clone());
    }

    fn submission(&mut self, submission: &Submission) {
        self.submissions.push(submission.clone());
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
    let mut recorded = read(&file)?;
    // Others may ask the same device for something, such as whether it is a terminal.
    recorded.calls.retain(|call| u64::from(call.pid) == pid);
    recorded.launches.retain(|l| u64::from(l.pid) == pid);
    recorded.submissions.retain(|s| u64::from(s.pid) == pid);
    Ok((truth, recorded))
}

/// Records a program into a file; gives what it wrote down, and its number.
pub(crate) fn record_into(
    shop: &Workshop,
    file: &Path,
    stand_ins: &[&str],
    name: &str,
    args: &[&str],
) -> anyhow::Result<(Vec<Value>, u64)> {
    let mut command = Command::new(binary()?);
    // Calls are wanted, not samples, and some of this runs on emulated CPUs.
    command
        .args(["record", "-F", "1", "--no-inlines"])
        .args(options())
        .arg("-o")
        .arg(file);
    for stand_in in stand_ins {
        command.args(["--admit-device", stand_in]);
    }
    command.arg("--").arg(program(shop, name)?).args(args);
    command.stdin(std::process::Stdio::null());
    let text = checked(&mut command)?;
    let lines = text.lines().filter(|line| line.starts_with('{'));
    let truth = lines
        .map(|line| serde_json::from_str(line).with_context(|| line.to_owned()))
        .collect::<anyhow::Result<Vec<Value>>>()?;
    let end = truth.iter().find(|line| line["event"] == "end");
    let pid = end.and_then(|line| number(line, "pid")).context("no end")?;
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
            // Of nobody: the tracker has taken in then what came before.
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
