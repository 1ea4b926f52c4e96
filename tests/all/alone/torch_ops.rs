//! PyTorch's operators, by Kineto's on-demand protocol: with real PyTorch on the CPU, and
//! with a synthetic client (`workloads/kineto_client.py`) for what PyTorch does not do.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::Context as _;

use aiprof_tests::aiprof::{Aiprof, binary, lost, truth};
use aiprof_tests::attack::as_stranger;
use aiprof_tests::child::Child;
use aiprof_tests::folded::Folded;
use aiprof_tests::need::{Need, lacks, skip, skip_unless};
use aiprof_tests::python::Frame;
use aiprof_tests::torch::TorchPython;
use aiprof_tests::trace::{Span, Trace};
use aiprof_tests::workload::{Workshop, checked, source_path};

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("python3")];
const UNANSWERED: &str = "windows of operators that a program did not report";
const UNREADABLE: &str = "windows of operators not readable";
/// Reading the clock before and after a call takes less.
const SLACK_NS: u64 = 50_000;

/// A Python with PyTorch, or `None` after saying why not.
fn with_torch(name: &str) -> anyhow::Result<Option<TorchPython>> {
    let needs = [NEEDS.as_slice(), &[Need::Tool("gcc"), Need::Tool("nm")]].concat();
    if lacks(name, &needs) {
        return Ok(None);
    }
    Ok(match TorchPython::find() {
        Ok(python) => Some(python),
        Err(reason) => {
            skip(name, &reason);
            None
        }
    })
}

/// Operators by the line of `torch_lines.py` whose comment names them.
fn lines_of_source() -> anyhow::Result<BTreeMap<String, u64>> {
    let text = std::fs::read_to_string(source_path("torch_lines.py"))?;
    let named = text.lines().zip(1..).filter_map(|(line, number)| {
        let (_, name) = line.split_once("  # -> ")?;
        Some((name.to_owned(), number))
    });
    Ok(named.collect())
}

/// Runs `torch_lines.py` under aiprof with these options.
fn run_lines(
    python: &TorchPython,
    shop: &Workshop,
    seconds: &str,
    options: &[&str],
) -> anyhow::Result<Output> {
    let script = source_path("torch_lines.py");
    let log = shop.path("calls.json");
    let args = [script.as_os_str(), seconds.as_ref(), log.as_os_str()];
    let run = Aiprof::with(options).command(&python.program, &args);
    let mut command = run.to_command()?;
    let output = python.prepare(&mut command).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{}\n{stderr}", output.status);
    Ok(output)
}

/// Spans of an operator or a mark.
fn ops<'a>(trace: &'a Trace, name: &'a str) -> impl Iterator<Item = &'a Span> {
    let is_op = |span: &Span| matches!(&*span.category, "cpu_op" | "user_annotation");
    trace
        .spans
        .iter()
        .filter(move |s| is_op(s) && s.name == name)
}

/// The trace has the program's operators, when and where the program logged them.
fn check_trace(trace: &Trace, log: &Path, stdout: &str) -> anyhow::Result<()> {
    let calls: Vec<(u64, u64)> = serde_json::from_str(&std::fs::read_to_string(log)?)?;
    let origin = trace.about["start_monotonic_ns"].as_u64();
    let origin = origin.ok_or_else(|| anyhow::anyhow!("{}", trace.about))?;
    let main = truth(stdout, "main")? as u64;
    let own = |span: &&Span| {
        span.args["python"]
            .as_str()
            .is_some_and(|p| p.contains("multiply"))
    };
    let multiplied: Vec<&Span> = ops(trace, "aten::mm").filter(own).collect();
    anyhow::ensure!(multiplied.len() >= 5, "{} of multiply", multiplied.len());
    for span in &multiplied {
        let (start, end) = (span.start + origin, span.end + origin);
        let in_call =
            |&&(b, e): &&(u64, u64)| b <= start + SLACK_NS && end <= e + SLACK_NS && start <= e;
        let call = calls.iter().find(in_call);
        anyhow::ensure!(call.is_some() && span.tid == main, "{span:?}");
    }
    for (name, line) in lines_of_source()? {
        let known: Vec<_> = ops(trace, &name)
            .filter_map(|s| s.args["python"].as_str())
            .collect();
        let place = format!("(torch_lines.py:{line})");
        let right = known
            .iter()
            .filter(|python| python.ends_with(&place))
            .count();
        // Backward runs `aten::mm` too, below autograd's own Python.
        let elsewhere = known
            .iter()
            .filter(|python| python.contains("(graph.py"))
            .count();
        println!(
            "{name}: {right} of {} at {place}, {elsewhere} of autograd",
            known.len()
        );
        anyhow::ensure!(
            right >= 5 && right + elsewhere == known.len(),
            "{name}: {known:?}"
        );
    }
    let other = truth(stdout, "other")? as u64;
    let summed = ops(trace, "aten::cumsum").count();
    anyhow::ensure!(summed >= 10 && ops(trace, "aten::cumsum").all(|s| s.tid == other));
    let marks: Vec<_> = ops(trace, "marked_step")
        .filter_map(|s| s.args["python"].as_str())
        .collect();
    let right = marks
        .iter()
        .filter(|python| **python == "__main__.step (torch_lines.py)")
        .count();
    anyhow::ensure!(right * 10 >= marks.len() * 8 && right >= 5, "{marks:?}");
    // What the program's inputs were like.
    let shapes = multiplied[0].args["Input Dims"].to_string();
    anyhow::ensure!(shapes == "[[500,500],[500,500]]", "{shapes}");
    Ok(())
}

/// Frames of operators stand below the line that calls them.
fn check_folded(profile: &Folded) -> anyhow::Result<()> {
    for (name, line) in lines_of_source()? {
        let frame = format!("{name}_[o]");
        let (mut right, mut wrong) = (0, 0);
        for stack in &profile.lines {
            let Some(at) = stack.frames.iter().position(|f| *f == frame) else {
                continue;
            };
            let above = stack.frames[..at]
                .iter()
                .rev()
                .find_map(|f| Frame::parse(f));
            match above.map(|f| (f.file, u64::from(f.line) == line)) {
                Some((file, true)) if file == "torch_lines.py" => right += stack.value,
                // Autograd's.
                Some((file, _)) if file == "graph.py" => {}
                // This includes cut stacks.
                _ => wrong += stack.value,
            }
            // And nothing of Python is below it.
            let below = stack.frames[at..].iter().any(|f| Frame::parse(f).is_some());
            anyhow::ensure!(!below, "{:?}", stack.frames);
        }
        println!("{name}: {right} right, {wrong} wrong");
        anyhow::ensure!(
            right > 0 && wrong * 100 <= right,
            "{name}: {right} right, {wrong} wrong"
        );
    }
    let is_mark = |frame: &&String| *frame == "marked_step_[o]";
    let (mut right, mut all) = (0, 0);
    for stack in &profile.lines {
        let above = stack.frames.iter().take_while(|f| !is_mark(f)).last();
        if stack.frames.iter().any(|f| is_mark(&f)) {
            all += stack.value;
            let above = above.and_then(|f| Frame::parse(f));
            if above.is_some_and(|f| f.function() == "step") {
                right += stack.value;
            }
        }
    }
    println!("marked_step: {right} of {all}");
    anyhow::ensure!(all > 0 && right * 10 >= all * 8, "{right} of {all}");
    Ok(())
}

#[test]
fn operators_are_under_the_lines_of_python_that_call_them() -> anyhow::Result<()> {
    let name = "operators_are_under_the_lines_of_python_that_call_them";
    let Some(python) = with_torch(name)? else {
        return Ok(());
    };
    let shop = Workshop::new()?;
    let (capture, log) = (shop.path("out.aiprof"), shop.path("calls.json"));
    let out = capture.display().to_string();
    let options = ["--torch-ops=2s", "-F", "499", "-o", &out];
    let run = run_lines(&python, &shop, "12", &options)?;
    let stdout = String::from_utf8_lossy(&run.stdout).into_owned();
    let report = |to: &str| -> anyhow::Result<_> {
        let file = shop.path(to);
        let mut command = Command::new(binary()?);
        checked(command.arg("report").arg(&capture).arg("-o").arg(&file))?;
        Ok(file)
    };
    check_trace(&Trace::read(&report("out.json")?)?, &log, &stdout)?;
    check_folded(&Folded::parse(&std::fs::read_to_string(report(
        "out.folded",
    )?)?)?)?;
    // And live. One window: PyTorch may crash where a program ends within one.
    let live = shop.path("live.json.gz");
    let out = live.display().to_string();
    let options = ["--torch-ops=1s", "-F", "499", "-o", &out];
    let run = run_lines(&python, &shop, "12", &options)?;
    check_trace(
        &Trace::read(&live)?,
        &log,
        &String::from_utf8_lossy(&run.stdout),
    )
}

/// How often Kineto asks its daemon. At its end, a program waits for the thread that does, up to
/// this long (uniform in 0 to 1 s with torch 2.15, measured without a recording too).
const ASKS_EVERY_MS: f64 = 1000.0;
/// What the machine may take longer. Unanswered, a program takes 7 s.
const NOISE_MS: f64 = 2000.0;

#[test]
fn programs_do_not_wait_for_an_answer_at_their_end() -> anyhow::Result<()> {
    let name = "programs_do_not_wait_for_an_answer_at_their_end";
    let Some(python) = with_torch(name)? else {
        return Ok(());
    };
    let shop = Workshop::new()?;
    let (wrapper, script) = (source_path("torch_exit.py"), source_path("torch_lines.py"));
    let log = shop.path("calls.json");
    let out = shop.path("out.folded");
    let args = [
        wrapper.as_os_str(),
        python.program.as_os_str(),
        script.as_os_str(),
        "12".as_ref(),
        log.as_os_str(),
    ];
    let mut plain = Command::new("python3");
    let plain = python.prepare(plain.args(args)).output()?;
    // The recording ends before the program, which is answered all the same.
    let run = Aiprof::with(["--torch-ops", "-d", "2", "-o"]).option(&out);
    let mut command = run.command("python3", &args).to_command()?;
    let recorded = python.prepare(&mut command).output()?;
    let exit = |output: &Output| -> anyhow::Result<(f64, f64)> {
        let stdout = String::from_utf8_lossy(&output.stdout);
        Ok((truth(&stdout, "exit_ms")?, truth(&stdout, "status")?))
    };
    let (without, with) = (exit(&plain)?, exit(&recorded)?);
    println!(
        "exit after {} ms without, {} ms with aiprof",
        without.0, with.0
    );
    let most = without.0 + ASKS_EVERY_MS + NOISE_MS;
    anyhow::ensure!(
        with.0 < most && with.1 == 0.0,
        "{with:?}: {}",
        String::from_utf8_lossy(&recorded.stderr)
    );
    Ok(())
}

/// Runs a mode of the synthetic client under aiprof. Gives what aiprof wrote.
fn client(shop: &Workshop, mode: &str) -> anyhow::Result<(Output, String)> {
    let script = source_path("kineto_client.py");
    let out = shop.path("out.folded");
    let run = Aiprof::with(["--torch-ops", "-o"]).option(&out);
    let run = run.command("python3", &[script.as_os_str(), mode.as_ref()]);
    let output = run.to_command()?.output()?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let stdout = String::from_utf8_lossy(&output.stdout);
    anyhow::ensure!(
        stdout.contains(&format!("ok {mode}\n")),
        "{mode}: {stdout}\n{stderr}"
    );
    let left = std::fs::read_dir("/tmp")?.flatten();
    let left = left.filter(|e| e.file_name().to_string_lossy().starts_with("aiprof-torch-"));
    anyhow::ensure!(left.count() == 0, "{mode}: something stays in /tmp");
    Ok((output, stderr))
}

#[test]
fn faults_of_clients_are_counted() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    // Each request without a report counts as one window. For a window that must not be read, a
    // message gives the reason.
    for (mode, unanswered, unreadable, why) in [
        ("garbage", 1, 0, ""),
        ("hundreds", 1, 0, ""),
        ("silent", 1, 0, ""),
        ("dies", 1, 0, ""),
        ("no_trace", 0, 1, "operators of process"),
        ("link", 0, 1, "operators of process"),
        ("pipe", 0, 1, "not a regular file"),
        ("large", 0, 1, "4398046511104 bytes"),
        ("stranger", 2, 0, ""),
    ] {
        let (output, stderr) = client(&shop, mode)?;
        let expected = if mode == "dies" { 137 } else { 0 };
        anyhow::ensure!(
            output.status.code() == Some(expected),
            "{mode}: {}",
            output.status
        );
        let found = (lost(&stderr, UNANSWERED), lost(&stderr, UNREADABLE));
        anyhow::ensure!(
            found == (unanswered, unreadable),
            "{mode}: {found:?}\n{stderr}"
        );
        anyhow::ensure!(stderr.contains(why), "{mode}: {stderr}");
    }
    Ok(())
}

#[test]
fn nobody_outside_of_the_recording_is_asked() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let out = shop.path("out.folded");
    let run = Aiprof::with(["--torch-ops", "-o"])
        .option(&out)
        .command("cat", &["-"]);
    let mut recording = Child::start(run.to_command()?.stdin(Stdio::piped()))?;
    // It has the name before the command starts; so an echo means that it answers.
    recording.write_line("hello")?;
    anyhow::ensure!(recording.read_line()?.trim() == "hello");
    for of_stranger in [false, true] {
        let mut command = Command::new("python3");
        command.arg("-");
        if of_stranger {
            as_stranger(&mut command);
        }
        let script = std::fs::read_to_string(source_path("kineto_client.py"))?;
        command
            .args(["outside"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let mut stdin = child.stdin.take().context("no stdin")?;
        stdin.write_all(script.as_bytes())?;
        drop(stdin);
        let output = child.wait_with_output()?;
        let stdout = String::from_utf8_lossy(&output.stdout);
        anyhow::ensure!(
            stdout.contains("ok outside"),
            "stranger {of_stranger}: {stdout}"
        );
    }
    recording.signal("INT")?;
    recording.wait(Duration::from_secs(20))?;
    let stderr = recording.stderr()?;
    anyhow::ensure!(lost(&stderr, UNANSWERED) == 0, "{stderr}");
    Ok(())
}

#[test]
fn a_name_that_is_taken_is_said() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let ran = shop.path("ran");
    let address = SocketAddr::from_abstract_name("dynolog\0")?;
    let _daemon = UnixDatagram::bind_addr(&address)?;
    let run = Aiprof::with(["--torch-ops"]).command("touch", &[ran.as_os_str()]);
    let output = run.to_command()?.output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(
        output.status.code() == Some(1),
        "{}: {stderr}",
        output.status
    );
    for part in ["dynolog", "stop"] {
        anyhow::ensure!(stderr.contains(part), "{stderr}");
    }
    anyhow::ensure!(!ran.exists(), "the command ran");
    Ok(())
}
