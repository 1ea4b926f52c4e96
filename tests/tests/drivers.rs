//! Ioctls and fences of device drivers, against programs that write down what
//! they do (xtask/vm).
//!
//! Most of these need devices that only the test VMs have (`cargo xtask vm-test`
//! runs this very program there); one runs on any machine.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

use aiprof::correlate::{Backing, CallSink, FinishedCall, Launch, Submission, Tracker};
use aiprof::import::capture;
use aiprof::wire::{Call, Event, ProcessEvent, ProcessEventKind};
use aiprof_tests::aiprof::binary;
use aiprof_tests::need::{Need, turn};
use aiprof_tests::trace::Trace;
use aiprof_tests::workload::{Workshop, checked};
use anyhow::{Context as _, ensure};
use serde_json::Value;

/// Submissions that each program makes.
const ROUNDS: &str = "5";

/// What a recording has of the devices.
#[derive(Default)]
struct Recorded {
    calls: Vec<FinishedCall>,
    launches: Vec<Launch>,
    /// Addresses of stacks, by id: user, then kernel.
    stacks: HashMap<u64, (Vec<u64>, Vec<u64>)>,
    submissions: Vec<Submission>,
    /// What was bound by each process, after each change.
    bound: HashMap<u32, Vec<Pages>>,
}

/// What lies in device memory, page by page: by address space and address, the
/// object, 0 for the program's own memory.
type Pages = BTreeMap<(Option<u64>, u64), u64>;
const PAGE: u64 = 4096;

impl Recorded {
    /// Notes what is bound now.
    fn note(&mut self, tracker: &Tracker, pid: u32) {
        let mut pages = Pages::new();
        for (id, space) in tracker.address_spaces().of(pid) {
            for bound in space.iter() {
                let object = match bound.backing {
                    Backing::Object { handle, .. } => handle,
                    Backing::Program { .. } | Backing::Nothing => 0,
                };
                put(&mut pages, id.vm, bound.start, bound.last, Some(object));
            }
        }
        change(self.bound.entry(pid).or_default(), pages);
    }
}

fn put(pages: &mut Pages, vm: Option<u64>, start: u64, last: u64, to: Option<u64>) {
    for page in start / PAGE..=last / PAGE {
        match to {
            Some(object) => drop(pages.insert((vm, page), object)),
            None => drop(pages.remove(&(vm, page))),
        }
    }
}

/// Adds to a history if something changed.
fn change(history: &mut Vec<Pages>, pages: Pages) {
    let before = history.last();
    if before.map_or(!pages.is_empty(), |before| *before != pages) {
        history.push(pages);
    }
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
fn record(
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
fn record_into(
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
fn read(file: &Path) -> anyhow::Result<Recorded> {
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
        if let Event::Process(ProcessEvent { pid, .. }) | Event::Call(Call { pid, .. }) = &event {
            recorded.note(&tracker, *pid);
        }
        tracker.apply(&event, &mut recorded);
        if let Event::CallStack(stack) = event {
            let addresses = (stack.sample.user, stack.sample.kernel);
            recorded.stacks.insert(stack.id, addresses);
        }
        true
    })?;
    tracker.finish(last, &mut recorded);
    recorded.calls.sort_by_key(|call| call.start_ns);
    recorded.submissions.sort_by_key(|s| s.submitted_ns);
    Ok(recorded)
}

fn number(line: &Value, key: &str) -> Option<u64> {
    line.get(key)?.as_u64()
}

/// The value of a call's with this name, if it was read.
fn value(call: &FinishedCall, name: &str) -> Option<u64> {
    call.value(call.probe.slot(name)?)
}

/// The calls that the program says it made on the device.
fn made(truth: &[Value]) -> Vec<&Value> {
    let elsewhere = [Some("file"), Some("descriptor")];
    truth
        .iter()
        .filter(|line| line["event"] == "call" && !elsewhere.contains(&line["bad"].as_str()))
        .collect()
}

/// The program's words for fields, and the tables'.
const FIELDS: &[(&str, &str)] = &[
    ("vm", "vm"),
    ("queue", "queue"),
    ("handle", "object"),
    ("address", "batch"),
    ("size", "bytes"),
    ("addr", "address"),
    ("range", "bytes"),
    ("op", "op"),
    ("sequence", "fence"),
    ("gpu", "device"),
    ("events", "count"),
    ("vaddr", "pointer"),
    ("unmapped", "unmapped"),
    ("query", "query"),
    ("value", "value"),
];

/// Every call was recorded, in order, with its times, result and fields.
fn compare(truth: &[Value], calls: &[FinishedCall], prefixes: &[&str]) -> anyhow::Result<()> {
    let made = made(truth);
    let names: Vec<_> = calls.iter().map(|c| c.probe.function.as_str()).collect();
    ensure!(
        made.len() == calls.len(),
        "{} made, {} recorded: {names:?}",
        made.len(),
        calls.len()
    );
    for (line, call) in made.into_iter().zip(calls) {
        compare_one(line, call, prefixes)
            .with_context(|| format!("{line}\nrecorded: {} {call:?}", call.probe.function))?;
    }
    Ok(())
}

fn compare_one(line: &Value, call: &FinishedCall, prefixes: &[&str]) -> anyhow::Result<()> {
    let command = line["command"].as_str().context("no command")?;
    if command == "unknown" {
        ensure!(
            call.probe.function.ends_with(" ioctl"),
            "an unknown command"
        );
        let number = line["number"].as_str().context("no number")?;
        let recorded = value(call, "command").map(|n| format!("{n:#x}"));
        ensure!(
            recorded.as_deref() == Some(number),
            "its number: {recorded:?}"
        );
    } else {
        // Tables name a command that grew by its newer name.
        let function = call.probe.function.as_str();
        let function = function.strip_suffix("_EXT").unwrap_or(function);
        let same = |prefix: &&str| function.strip_prefix(prefix) == Some(command);
        ensure!(prefixes.iter().any(same), "another command");
    }
    let (before, after) = (number(line, "before"), number(line, "after"));
    ensure!(before <= Some(call.start_ns), "began too early");
    let end = call.end_ns.context("its end was not seen")?;
    ensure!(call.start_ns <= end && Some(end) <= after, "ended too late");
    let (result, error) = (line["result"].as_i64(), line["error"].as_i64());
    // The C library turns -errno into -1 and errno.
    let expected = if error == Some(0) {
        result
    } else {
        error.map(|e| -e)
    };
    ensure!(
        call.result.map(|r| r as i64) == expected,
        "result {:?}",
        call.result
    );
    for (said, name) in FIELDS {
        let Some(said) = number(line, said) else {
            continue;
        };
        let Some(slot) = call.probe.slot(name) else {
            continue;
        };
        let at_exit = call.probe.values.get(slot).is_some_and(|v| v.at_exit);
        if at_exit && error != Some(0) {
            ensure!(call.value(slot).is_none(), "{name} of a call that failed");
        } else {
            ensure!(
                call.value(slot) == Some(said),
                "{name}: {:?}",
                call.value(slot)
            );
        }
    }
    if line["bad"] == "address" {
        ensure!(call.unread != 0, "a bad address was read");
    }
    compare_binds(line, call)
}

/// The elements of VM_BIND, in place and in an array.
fn compare_binds(line: &Value, call: &FinishedCall) -> anyhow::Result<()> {
    let Some(binds) = line["binds"].as_array() else {
        return Ok(());
    };
    let layout = call.probe.layout.as_ref().context("no layout")?;
    let array = layout.arrays.first().context("no array")?;
    let elements = array.elements(&call.probe, call);
    ensure!(elements.missing == 0 && elements.elements.len() == binds.len());
    for (bind, element) in binds.iter().zip(&elements.elements) {
        for (said, name) in [
            ("op", "op"),
            ("obj", "object"),
            ("addr", "address"),
            ("range", "bytes"),
        ] {
            let at = array.field(name).context("no such field")?;
            ensure!(number(bind, said) == element.get(at).copied(), "{name}");
        }
    }
    Ok(())
}

/// What is bound changes as the program's successful calls say; gives how often.
fn compare_bound(truth: &[Value], recorded: &Recorded) -> anyhow::Result<usize> {
    let mut history = Vec::new();
    let mut pages = Pages::new();
    for line in made(truth) {
        if line["error"] != 0 {
            continue;
        }
        let vm = number(line, "vm");
        let mut bind = |object: Option<u64>, what: &Value| -> anyhow::Result<()> {
            let range = number(what, "addr").zip(number(what, "range"));
            let (start, bytes) = range.with_context(|| what.to_string())?;
            put(&mut pages, vm, start, start + bytes - 1, object);
            Ok(())
        };
        match line["command"].as_str().unwrap_or_default() {
            "VM_BIND" => {
                for one in line["binds"].as_array().context("no binds")? {
                    // 1 takes out.
                    let object = number(one, "obj").filter(|_| one["op"] != 1);
                    bind(object, one)?;
                }
            }
            "GEM_VA" => bind(number(line, "handle").filter(|_| line["op"] == 1), line)?,
            "IOMMU_MAP_DMA" => bind(Some(0), line)?,
            "IOMMU_UNMAP_DMA" => bind(None, line)?,
            "VM_DESTROY" => pages.retain(|(of, _), _| *of != vm),
            _ => {}
        }
        change(&mut history, pages.clone());
    }
    let end = truth.iter().find(|line| line["event"] == "end");
    let pid = end.and_then(|line| number(line, "pid")).context("no end")?;
    let seen = recorded.bound.get(&u32::try_from(pid)?);
    let mut seen = seen.cloned().unwrap_or_default();
    if history.last().is_some_and(|last| !last.is_empty()) {
        // What is left goes with the process.
        seen.pop_if(|last| last.is_empty());
    }
    ensure!(seen == history, "bound: {seen:?}, not {history:?}");
    Ok(history.len())
}

/// Each submission's stack goes from the function that makes it through the one
/// that calls that, to the end.
fn compare_stacks(truth: &[Value], recorded: &Recorded, kernel: bool) -> anyhow::Result<()> {
    let section = |name: &str| {
        let mut code = truth.iter().filter(|line| line["event"] == "code");
        let line = code.find(|line| line["name"] == name)?;
        Some(number(line, "start")?..number(line, "stop")?)
    };
    let (submit, run) = (
        section("submit").context("code")?,
        section("run").context("code")?,
    );
    let submits = recorded.calls.iter();
    let submits = submits.filter(|c| c.probe.kind == aiprof::probes::CallKind::Submit);
    // Those behind them are mistakes, made elsewhere.
    for call in submits.take(ROUNDS.parse()?) {
        let (user, kernel_part) = recorded.stacks.get(&call.stack).context("no stack")?;
        let inner = user.iter().position(|a| submit.contains(a));
        let outer = user.iter().position(|a| run.contains(a));
        let (inner, outer) = (
            inner.with_context(|| format!("no submit in {user:x?} {submit:x?}"))?,
            outer.context("no run")?,
        );
        ensure!(inner < outer, "the order of calls");
        // main, what calls it, and the program's entry.
        ensure!(user.len() >= outer + 4, "the stack ends early: {user:x?}");
        ensure!(
            kernel_part.is_empty() != kernel,
            "{} kernel frames",
            kernel_part.len()
        );
    }
    Ok(())
}

/// On any machine: a device that refuses every command is told from other files,
/// and its calls are recorded with what went in.
#[test]
#[ignore = "needs root"]
fn refused_ioctls_of_a_stand_in() -> anyhow::Result<()> {
    let mut needs = vec![
        Need::Root,
        Need::Path("/sys/kernel/tracing/events/syscalls"),
    ];
    if std::env::var_os("AIPROF_VM_PROGRAMS").is_none() {
        needs.push(Need::Tool("cc"));
    }
    let Some(_turn) = turn("refused_ioctls_of_a_stand_in", &needs)? else {
        return Ok(());
    };
    let shop = Workshop::new()?;
    let args = ["xe", "/dev/null", ROUNDS];
    let (truth, recorded) = record(&shop, &["xe=/dev/null"], "ioctl_work", &args)?;
    // What is no device of ours is not seen: /dev/null is standard input too.
    compare_with_stdin(&truth, &recorded)?;
    compare_stacks(&truth, &recorded, false)
}

/// As [`compare`], where standard input is the device too.
fn compare_with_stdin(truth: &[Value], recorded: &Recorded) -> anyhow::Result<()> {
    let mut all = truth.to_vec();
    for line in &mut all {
        if line["bad"] == "file" {
            line["bad"] = "stdin".into();
        }
    }
    compare(&all, &recorded.calls, &["DRM_IOCTL_XE_", "DRM_IOCTL_"])
}

fn on_cuse(test: &str, table: &str, node: &'static str, prefixes: &[&str]) -> anyhow::Result<()> {
    let Some(_turn) = turn(test, &[Need::Root, Need::Path(node)])? else {
        return Ok(());
    };
    let shop = Workshop::new()?;
    let stand_in = format!("{table}={node}");
    let (truth, recorded) = record(&shop, &[&stand_in], "ioctl_work", &[table, node, ROUNDS])?;
    compare(&truth, &recorded.calls, prefixes)?;
    compare_stacks(&truth, &recorded, false)?;
    let changes = compare_bound(&truth, &recorded)?;
    let binds = ["xe", "amdgpu"].contains(&table);
    ensure!((changes > 0) == binds, "{changes} changes of what is bound");
    let submits = recorded.launches.len();
    let wanted = if table == "kfd" { 0 } else { 5 };
    ensure!(submits == wanted, "{submits} launches");
    Ok(())
}

#[test]
#[ignore = "needs a test VM"]
fn xe_ioctls() -> anyhow::Result<()> {
    on_cuse(
        "xe_ioctls",
        "xe",
        "/dev/xe_test",
        &["DRM_IOCTL_XE_", "DRM_IOCTL_"],
    )
}

#[test]
#[ignore = "needs a test VM"]
fn i915_ioctls() -> anyhow::Result<()> {
    let prefixes = ["DRM_IOCTL_I915_GEM_", "DRM_IOCTL_I915_", "DRM_IOCTL_"];
    on_cuse("i915_ioctls", "i915", "/dev/i915_test", &prefixes)
}

#[test]
#[ignore = "needs a test VM"]
fn amdgpu_ioctls() -> anyhow::Result<()> {
    on_cuse(
        "amdgpu_ioctls",
        "amdgpu",
        "/dev/amdgpu_test",
        &["DRM_IOCTL_AMDGPU_"],
    )
}

#[test]
#[ignore = "needs a test VM"]
fn kfd_ioctls() -> anyhow::Result<()> {
    on_cuse("kfd_ioctls", "kfd", "/dev/kfd_test", &["AMDKFD_IOC_"])
}

/// Real VFIO. The group stands in for an AIU's; the container and the opened
/// device then belong to it.
#[test]
#[ignore = "needs a test VM"]
fn vfio_ioctls() -> anyhow::Result<()> {
    let Some(_turn) = turn("vfio_ioctls", &[Need::Root, Need::Path("/tmp/vfio-device")])? else {
        return Ok(());
    };
    let place = std::fs::read_to_string("/tmp/vfio-device")?;
    let (group, address) = place.trim().split_once(' ').context("the device's place")?;
    let shop = Workshop::new()?;
    let stand_in = format!("vfio={group}");
    let (truth, recorded) = record(&shop, &[&stand_in], "vfio_work", &[group, address, "4"])?;
    compare(&truth, &recorded.calls, &["VFIO_"])?;
    let changes = compare_bound(&truth, &recorded)?;
    ensure!(changes > 4, "{changes} changes of what is bound");
    let open = recorded
        .calls
        .iter()
        .find(|c| c.probe.function == "VFIO_GROUP_GET_DEVICE_FD");
    let name = open.and_then(|call| Some(&call.content(0)?.bytes));
    ensure!(
        name.map(Vec::as_slice) == Some(address.as_bytes()),
        "its name: {name:?}"
    );
    // The container's and the device's handlers are the kernel's own.
    let map = recorded
        .calls
        .iter()
        .find(|c| c.probe.function == "VFIO_IOMMU_MAP_DMA");
    let stack = map.and_then(|call| recorded.stacks.get(&call.stack));
    let kernel = stack.map_or(0, |(_, kernel)| kernel.len());
    ensure!(kernel > 2, "{kernel} kernel frames");
    Ok(())
}

/// vgem: real DRM ioctls, seen at the kernel's own handler.
#[test]
#[ignore = "needs a test VM"]
fn vgem_ioctls() -> anyhow::Result<()> {
    let nodes = ["/dev/dri/card0", "/dev/dri/renderD128"];
    let Some(_turn) = turn("vgem_ioctls", &[Need::Root, Need::Path(nodes[1])])? else {
        return Ok(());
    };
    let shop = Workshop::new()?;
    let (truth, recorded) = record(&shop, &[], "vgem_work", &[nodes[0], nodes[1], "3"])?;
    let of = |name: &str| -> Vec<&FinishedCall> {
        recorded
            .calls
            .iter()
            .filter(|c| c.probe.function.ends_with(name))
            .collect()
    };
    for (event, function, field) in [
        ("attach", "VGEM_FENCE_ATTACH", "fence"),
        ("signal", "VGEM_FENCE_SIGNAL", "fence"),
        ("create", "MODE_CREATE_DUMB", "bytes"),
    ] {
        let said: Vec<_> = truth.iter().filter(|line| line["event"] == event).collect();
        let calls = of(function);
        ensure!(
            said.len() == calls.len(),
            "{} of {function}, not {}",
            calls.len(),
            said.len()
        );
        for (line, call) in said.into_iter().zip(calls) {
            ensure!(
                number(line, "before") <= Some(call.start_ns),
                "{line} {call:?}"
            );
            ensure!(call.end_ns <= number(line, "after"), "{line} {call:?}");
            let key = if field == "bytes" { "size" } else { field };
            ensure!(value(call, field) == number(line, key), "{line} {call:?}");
            if event == "attach" {
                let stack = recorded.stacks.get(&call.stack).context("no stack")?;
                ensure!(stack.1.len() > 2, "{} kernel frames", stack.1.len());
            }
        }
    }
    Ok(())
}

/// Intervals of fences as recorded, begin and end, against those of the program: each
/// begins and ends within its ioctls, and is as long as the program says, within 1 %
/// or 1 ms. How long the ioctls themselves took, which may be long on emulated CPUs,
/// the program's own account is unsure of; most of its intervals must be better known
/// than that.
fn compare_fences(truth: &[Value], seen: &[(u64, Option<u64>)], what: &str) -> anyhow::Result<()> {
    let said = |event: &str| -> Vec<&Value> {
        let lines = truth.iter();
        lines.filter(|line| line["event"] == event).collect()
    };
    let (attached, signalled) = (said("attach"), said("signal"));
    ensure!(
        seen.len() == attached.len() && attached.len() == signalled.len() + 1,
        "{} fences of {}",
        seen.len(),
        attached.len()
    );
    let around = |time: Option<u64>, line: &Value| {
        number(line, "before") <= time && time <= number(line, "after") && time.is_some()
    };
    let mut errors = Vec::new();
    for (attach, &(from, to)) in attached.iter().zip(seen) {
        ensure!(around(Some(from), attach), "{attach} does not hold {from}");
        let same = |line: &&&Value| line["fence"] == attach["fence"];
        // Numbers are used again: the first signal behind it is its own.
        let mut signals = signalled.iter().filter(same);
        let Some(signal) = signals.find(|s| number(s, "before") > Some(from)) else {
            // The last one, which the kernel signals when the program ends.
            ensure!(to > number(attach, "after"), "the fence left: {to:?}");
            continue;
        };
        ensure!(around(to, signal), "{signal} does not hold {to:?}");
        let pending = number(signal, "pending_ns").context("no length")?;
        let length = to.context("no end")?.saturating_sub(from);
        let error = length.abs_diff(pending);
        let reach = (pending / 100).max(1_000_000);
        let unknown = (took(attach)? + took(signal)?) / 2;
        ensure!(
            error <= reach + unknown,
            "{length} ns instead of {pending}, give or take {unknown}"
        );
        errors.push((unknown <= reach, error));
    }
    let surely = errors.iter().filter(|(sure, _)| *sure);
    let surely: Vec<u64> = surely.map(|(_, error)| *error).collect();
    let most = |errors: &mut dyn Iterator<Item = u64>| errors.max().unwrap_or(0) / 1000;
    println!(
        "measured: {what}: {} fences, errors at most {} us; of the {} whose length the \
         program knows within 1 % or 1 ms, at most {} us",
        errors.len(),
        most(&mut errors.iter().map(|(_, error)| *error)),
        surely.len(),
        most(&mut surely.iter().copied()),
    );
    ensure!(2 * surely.len() > errors.len(), "{errors:?}");
    Ok(())
}

/// How long an ioctl of the program took.
fn took(line: &Value) -> anyhow::Result<u64> {
    let times = number(line, "before").zip(number(line, "after"));
    let (before, after) = times.context("no times")?;
    Ok(after - before)
}

/// Fences with a schedule that the program keeps by its own clock.
#[test]
#[ignore = "needs a test VM"]
fn vgem_fences_in_a_capture() -> anyhow::Result<()> {
    let nodes = ["/dev/dri/card0", "/dev/dri/renderD128"];
    let needs = [Need::Root, Need::Path(nodes[1])];
    let Some(_turn) = turn("vgem_fences_in_a_capture", &needs)? else {
        return Ok(());
    };
    let shop = Workshop::new()?;
    let (truth, recorded) = record(&shop, &[], "vgem_work", &[nodes[0], nodes[1], "5"])?;
    for submission in &recorded.submissions {
        ensure!(&*submission.device == "vgem", "{submission:?}");
    }
    let seen = recorded.submissions.iter();
    let seen: Vec<_> = seen.map(|s| (s.submitted_ns, s.ended_ns)).collect();
    compare_fences(&truth, &seen, "capture")
}

/// The same, as spans of a Chrome trace.
#[test]
#[ignore = "needs a test VM"]
fn vgem_fences_in_a_trace() -> anyhow::Result<()> {
    let nodes = ["/dev/dri/card0", "/dev/dri/renderD128"];
    let needs = [Need::Root, Need::Path(nodes[1])];
    let Some(_turn) = turn("vgem_fences_in_a_trace", &needs)? else {
        return Ok(());
    };
    let shop = Workshop::new()?;
    let file = shop.path("trace.json");
    let args = [nodes[0], nodes[1], "5"];
    let (truth, pid) = record_into(&shop, &file, &[], "vgem_work", &args)?;
    let trace = Trace::read(&file)?;
    let start = trace.start_ns()?;
    let spans: Vec<_> = trace
        .submissions()
        .filter(|span| span.args["pid"] == pid)
        .collect();
    let seen: Vec<_> = spans
        .iter()
        .map(|span| (start + span.start, Some(start + span.end)))
        .collect();
    compare_fences(&truth, &seen, "trace")?;
    // Five at a time lie on five tracks of one device.
    let mut tracks: Vec<_> = spans.iter().map(|span| (span.pid, span.tid)).collect();
    tracks.sort_unstable();
    tracks.dedup();
    ensure!(tracks.len() == 5, "{tracks:?}");
    let device = trace.name(tracks[0].0, None);
    ensure!(
        device == Some("vgem: submissions, not busy time"),
        "{device:?}"
    );
    for (device, track) in tracks {
        let name = trace.name(device, Some(track)).context("no name")?;
        ensure!(name.starts_with("unbound"), "{name}");
    }
    for span in &spans {
        ensure!(span.name == "vgem_work", "{span:?}");
    }
    Ok(())
}
