//! Python frames: which functions ran, at which lines, among which native frames, compared with the
//! programs' own output.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use aiprof_tests::aiprof::Aiprof;
use aiprof_tests::child::Child;
use aiprof_tests::folded::{Folded, Line};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::python::{Calls, Frame, Interpreter, interpreters};
use aiprof_tests::states::{UNTIL_KNOWN, until_known};
use aiprof_tests::workload::{Workshop, source_path};

const NEEDS: [Need; 3] = [Need::Root, Need::Tool("cc"), Need::Tool("python3")];

/// The Python frames of a line, outermost first.
fn frames(line: &Line) -> Vec<Frame> {
    line.frames.iter().filter_map(|f| Frame::parse(f)).collect()
}

/// Launches by their names: the Python frames that each was made from, and how often.
fn launches(profile: &Folded) -> BTreeMap<String, (Vec<Frame>, u64)> {
    let mut found: BTreeMap<String, (Vec<Frame>, u64)> = BTreeMap::new();
    for line in &profile.lines {
        let name = line
            .frames
            .last()
            .and_then(|leaf| leaf.strip_suffix("_[G]"));
        if let Some(name) = name.filter(|name| name.starts_with('k')) {
            let known = found.entry(name.to_owned()).or_default();
            *known = (frames(line), known.1 + 1);
        }
    }
    found
}

/// What the program wrote down: the frames of each launch.
fn written(log: &Path) -> anyhow::Result<Vec<(String, Vec<Frame>)>> {
    type Written = (String, Vec<(String, String, String, u32)>);
    let text = std::fs::read_to_string(log)?;
    let lines = text.lines().map(|line| {
        let (name, frames): Written = serde_json::from_str(line)?;
        let frames = frames.into_iter().map(|(module, function, file, line)| {
            // Code without a module's dictionary: its file takes the place of the module.
            let module = match module.as_str() {
                "" if file.starts_with('<') => String::new(),
                "" => file.trim_end_matches(".py").to_owned(),
                _ => module,
            };
            let dot = if module.is_empty() { "" } else { "." };
            Frame {
                name: format!("{module}{dot}{function}"),
                file,
                line,
            }
        });
        Ok((name, frames.collect()))
    });
    lines.collect()
}

/// Records the launches of `python_marks.py`, which has written down each with its frames.
/// Gives how many are right, and how many there are.
fn judge_launches(
    events: &str,
    shop: &Workshop,
    python: &Interpreter,
    library: &Path,
) -> anyhow::Result<(usize, usize)> {
    let log = shop.path(&format!("marks-{}.log", python.version));
    let script = source_path("python_marks.py");
    let (name, wait) = until_known()?;
    let variable = format!("{UNTIL_KNOWN}={wait}");
    let args: [&OsStr; 5] = [
        variable.as_ref(),
        python.program.as_ref(),
        script.as_os_str(),
        library.as_os_str(),
        log.as_os_str(),
    ];
    let run = Aiprof::with(["--events", events])
        .option(format!("--control={name}"))
        .command("env", &args)
        .record()?;
    anyhow::ensure!(run.status.success(), "{}\n{}", run.status, run.stderr);
    let found = launches(&run.folded);
    let written = written(&log)?;
    let mut right = 0;
    for (name, frames) in &written {
        match found.get(name) {
            Some((got, _)) if got == frames => right += 1,
            Some((got, _)) => println!("{name}: {got:?}\ninstead of {frames:?}"),
            None => println!("{name} is missing"),
        }
    }
    Ok((right, written.len()))
}

#[test]
fn launches_have_the_python_frames_that_made_them() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let library = shop.path("libcuda.so.1");
    aiprof_tests::workload::compile("cuda_marks.c", &library, &["-shared", "-fPIC"])?;
    let interpreters = interpreters();
    anyhow::ensure!(!interpreters.is_empty(), "no Python from 3.8 on");
    for python in &interpreters {
        // The ends of calls are probed for their times only.
        let events = ["launches", "time-in-call"][usize::from(python.version.ends_with('0'))];
        let (right, all) = judge_launches(events, &shop, python, &library)?;
        println!("{}: {right} of {all} launches", python.version);
        anyhow::ensure!(all > 900 && right * 1000 >= all * 995, "{}", python.version);
    }
    Ok(())
}

/// Starts `python_busy.py`, and waits until it computes.
fn busy(python: &Interpreter, threads: &str) -> anyhow::Result<Child> {
    let mut program = Child::start(
        Command::new(&python.program)
            .arg(source_path("python_busy.py"))
            .arg(threads)
            .stdout(Stdio::piped()),
    )?;
    let line = program.read_line()?;
    anyhow::ensure!(line.trim() == "ready", "{line}");
    Ok(program)
}

/// Whether a sample of the program is at a place that its text allows. Functions of
/// modules that it uses may be between its own.
fn is_right(calls: &Calls, line: &Line) -> bool {
    let mut frames = frames(line);
    frames.retain(|frame| frame.file == "python_busy.py");
    calls.allow(&frames)
}

#[test]
fn samples_are_at_lines_that_the_text_allows() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let calls = Calls::read(&source_path("python_busy.py"))?;
    for python in &interpreters() {
        for threads in ["0", "3"] {
            let program = busy(python, threads)?;
            let pid = program.pid();
            let run = Aiprof::with(["-F", "997", "--weight", "samples"])
                .option("--no-kernel")
                .option("-p")
                .option(pid.to_string())
                .until_used(pid, 1)
                .record()?;
            drop(program);
            let profile = run.folded.of_pid(pid);
            let total: u64 = profile.lines.iter().map(|line| line.value).sum();
            let wrong: Vec<&Line> = profile
                .lines
                .iter()
                .filter(|l| !is_right(&calls, l))
                .collect();
            let missed: u64 = wrong.iter().map(|line| line.value).sum();
            for line in wrong.iter().take(5) {
                println!("{line}");
            }
            println!(
                "{}, {threads} threads: {missed} of {total} wrong",
                python.version
            );
            anyhow::ensure!(
                total > 300 && missed * 1000 <= total * 5,
                "{}",
                python.version
            );
        }
    }
    Ok(())
}
