//! Recordings of one command alone, and recordings that print their progress.

use std::collections::BTreeSet;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, ensure};

use aiprof_tests::aiprof::{Aiprof, Run, binary, truth};
use aiprof_tests::child::{Child, LONG, until_it_waits};
use aiprof_tests::folded::Folded;
use aiprof_tests::level_zero::driver::{self, Driver, Exports, Machine};
use aiprof_tests::level_zero::module::{Kernel, Module};
use aiprof_tests::level_zero::program::build_phases;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::states::States;
use aiprof_tests::trace::Trace;
use aiprof_tests::workload::Workshop;

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("cc")];

/// A program that works for a minute of CPU time, unless it is killed.
fn busy(program: &Path) -> anyhow::Result<Child> {
    let mut command = Command::new(program);
    let mut child = Child::start(command.args(["60", "5"]).stdout(Stdio::piped()))?;
    ensure!(truth(&child.read_line()?, "pid")? as u32 == child.pid());
    Ok(child)
}

/// The processes that a workload or a script printed as `pid N`.
fn pids(output: &str) -> Vec<u32> {
    let of = |line: &str| line.strip_prefix("pid ")?.trim().parse().ok();
    output.lines().filter_map(of).collect()
}

/// Whether a profile is of these processes, each with samples, and of nothing else.
fn is_of(folded: &Folded, pids: &[u32], least: u64) -> anyhow::Result<()> {
    let others = folded.filter(|line| !pids.contains(&line.pid));
    ensure!(others.total() == 0, "others:\n{}", others.excerpt(9));
    for &pid in pids {
        let total = folded.of_pid(pid).total();
        ensure!(total >= least, "{pid}: {total}\n{}", folded.excerpt(9));
    }
    Ok(())
}

fn ended_well(run: &Run) -> anyhow::Result<()> {
    ensure!(run.status.success(), "{}\n{}", run.status, run.stderr);
    ensure!(!run.stderr.contains("panicked"), "{}", run.stderr);
    Ok(())
}

fn said(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

fn ctl(args: &[&str]) -> anyhow::Result<Output> {
    Ok(Command::new(binary()?).arg("ctl").args(args).output()?)
}

#[test]
fn only_the_command_and_all_that_descend_from_it() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let program = shop.build("depth.c", "depth", &[])?;
    // The same program runs beside it, started by the same parent.
    let beside = busy(&program)?;
    let depth = program.display();
    // A child, a child of a child, one whose parent has ended, and COMMAND itself, which
    // executes the program in the end.
    let script = format!(
        "{depth} 0.4 5; (sh -c '{depth} 0.4 5; true'); \
         (({depth} 0.6 5) & ); exec {depth} 1 5"
    );
    let run = Aiprof::counting()
        .option("--only")
        .command("sh", &["-c", &script])
        .record()?;
    ended_well(&run)?;
    let workers = pids(&run.stdout);
    ensure!(workers.len() == 4, "{}", run.stdout);
    for &pid in &workers {
        let lines = run.folded.of_pid(pid).filter(|line| line.has("bottom"));
        ensure!(lines.total() >= 100, "{pid}:\n{}", run.folded.excerpt(9));
    }
    ensure!(run.folded.of_pid(beside.pid()).total() == 0);
    // What else there is are the shells, and this program before it executed COMMAND.
    let worked = run
        .folded
        .filter(|line| workers.contains(&line.pid))
        .total();
    let rest = run.folded.total() - worked;
    ensure!(
        rest * 20 <= worked,
        "{rest} of others:\n{}",
        run.folded.excerpt(20)
    );
    let names = ["sh", "depth", "aiprof"];
    let strange = run
        .folded
        .filter(|line| !names.contains(&line.comm.as_str()));
    ensure!(strange.total() == 0, "{}", strange.excerpt(9));
    Ok(())
}

#[test]
fn two_at_once_do_not_see_each_other() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let program = shop.build("depth.c", "depth", &[])?;
    let runs: Vec<anyhow::Result<Run>> = std::thread::scope(|scope| {
        let one = || {
            let run = Aiprof::counting().option("--only");
            run.command(&program, &["1.5", "5"]).record()
        };
        let both = [scope.spawn(one), scope.spawn(one)];
        let end = |run: std::thread::ScopedJoinHandle<'_, _>| run.join();
        both.map(|run| end(run).unwrap_or_else(|_| Err(anyhow::anyhow!("panicked"))))
            .into()
    });
    for run in runs {
        let run = run?;
        ended_well(&run)?;
        let own = pids(&run.stdout);
        ensure!(own.len() == 1, "{}", run.stdout);
        is_of(&run.folded, &own, 300)?;
    }
    Ok(())
}

#[test]
fn launches_and_spans_of_others_are_left_out() -> anyhow::Result<()> {
    let needs = [&driver::NEEDS[..], &[Need::Root]].concat();
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let module = Module::new(vec![
        Kernel::new("kernel_a", 50_000),
        Kernel::new("kernel_b", 50_000),
        Kernel::new("kernel_c", 50_000),
        Kernel::new("kernel_d", 50_000),
    ]);
    let module = module.write(&shop.path("module.zebin"))?;
    let machine = Machine::new(&Driver::build(Exports::All)?);
    let program = build_phases()?;
    let module = format!("module={}", module.display());
    let start = |options: &[&str]| -> anyhow::Result<Child> {
        let mut inner = machine.command(&program);
        inner.args(["run", &module]);
        let mut command = match options {
            [] => inner,
            _ => {
                let mut command = Command::new(binary()?);
                command.args(options).arg("--").arg(&program);
                command.args(["run", &module]);
                command.envs(inner.get_envs().filter_map(|(k, v)| Some((k, v?))));
                command
            }
        };
        let mut child = Child::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let line = child.read_line()?;
        ensure!(line.trim_end() == "ready", "{line:?}");
        Ok(child)
    };
    let phase = |child: &mut Child, name: &str, launches: u32| -> anyhow::Result<()> {
        child.write_line(&format!("{name} 0 {launches}"))?;
        let line = child.read_line()?;
        ensure!(line.trim_end() == name, "{line:?}");
        Ok(())
    };
    let (counted, traced) = (shop.path("out.folded"), shop.path("out.json"));
    let (text, json) = (counted.display().to_string(), traced.display().to_string());
    let launches: &[&str] = &["--only", "--events", "launches", "-o", &text];
    for options in [launches, &["--only", "-o", &json]] {
        // One that ran before, and one that starts meanwhile, with the same library.
        let mut before = start(&[])?;
        let mut own = start(options)?;
        let mut later = start(&[])?;
        for _ in 0..3 {
            phase(&mut before, "b", 5)?;
            phase(&mut own, "a", 7)?;
            phase(&mut later, "d", 3)?;
        }
        own.write_line("quit")?;
        ensure!(own.wait(LONG)?.success());
    }
    let folded = Folded::parse(&std::fs::read_to_string(&counted)?)?;
    ensure!(folded.total() == 21, "{}", folded.excerpt(9));
    let own = folded.filter(|line| line.has("phase_a"));
    ensure!(own.total() == 21, "{}", folded.excerpt(9));
    let trace = Trace::read(&traced)?;
    trace.check()?;
    // Devices have numbers that no process has.
    let pids = trace.calls().map(|call| call.pid);
    let pids: BTreeSet<u64> = pids.filter(|pid| *pid < 1 << 22).collect();
    ensure!(pids.len() == 1, "{pids:?}");
    let launches = trace
        .calls()
        .filter(|call| call.name.contains("LaunchKernel"));
    ensure!(launches.count() == 21);
    Ok(())
}

#[test]
fn only_wants_a_command_and_no_other_process() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    for (words, hint) in [
        (
            &["--only", "-d", "1"][..],
            "aiprof --only -o flame.svg -- make -j8",
        ),
        (&["--only", "-p", "1", "--", "true"], "--pid"),
        (&["agent", "--only"], "--only"),
    ] {
        let output = Aiprof::with(words.iter().copied()).to_command()?.output()?;
        ensure!(
            output.status.code() == Some(2),
            "{words:?}: {}",
            said(&output)
        );
        ensure!(said(&output).contains(hint), "{words:?}: {}", said(&output));
    }
    Ok(())
}

#[test]
fn states_come_in_order_and_command_before_its_children() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let program = shop.build("depth.c", "depth", &[])?;
    let _beside = busy(&program)?;
    let (states, out) = (States::new(&shop), shop.path("out.folded"));
    let script = format!(
        "echo pid $$; ls /proc/self/fd; {} 2 5 & wait",
        program.display()
    );
    let options = ["--only", "-o", &out.display().to_string()];
    let mut command = states.command(&options, &["sh", "-c", &script])?;
    let output = command.output()?;
    ensure!(output.status.success(), "{}", said(&output));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    // COMMAND has not got the descriptor: ls has 3 for the folder that it reads.
    let has = |number: &str| stdout.lines().any(|line| line == number);
    ensure!(has("2") && has("3") && !has("4"), "{stdout}");
    let [shell, child] = pids(&stdout)[..] else {
        anyhow::bail!("{stdout}");
    };
    let said = states.text();
    let expected = format!("attached\nsampling\nknown={shell}\nknown={child}\n");
    ensure!(said == expected, "{said}");
    // A whole recording of the machine prints of COMMAND and its children too.
    let options = ["-o", &out.display().to_string()];
    let output = states.command(&options, &["sleep", "1"])?.output()?;
    ensure!(output.status.success());
    let said = states.text();
    let known: Vec<&str> = said.lines().collect();
    ensure!(known.len() == 3 && known[2].starts_with("known="), "{said}");
    Ok(())
}

#[test]
fn a_known_process_has_whole_stacks_at_once() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let program = shop.build("family.c", "family", &[])?;
    let mut family = Child::start(
        Command::new(program)
            .arg("0.5")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped()),
    )?;
    family.read_line()?;
    let (states, out) = (States::new(&shop), shop.path("out.folded"));
    let pid = family.pid().to_string();
    let out_name = out.display().to_string();
    let options = [
        "-F", "499", "--weight", "samples", "-p", &pid, "-o", &out_name,
    ];
    let mut command = states.command(&options, &[])?;
    let mut aiprof = Child::start(&mut command)?;
    // It waits, and is known all the same.
    states.wait_known(family.pid())?;
    family.write_line("go")?;
    ensure!(family.wait(LONG)?.success());
    ensure!(aiprof.wait(LONG)?.success());
    let folded = Folded::parse(&std::fs::read_to_string(&out)?)?;
    let worked = folded.filter(|line| line.has("parent_spin") || line.has("child_spin"));
    let whole = worked.filter(|line| line.has("main") && !line.is_cut());
    ensure!(worked.total() >= 200, "{}", folded.excerpt(9));
    ensure!(whole == worked, "{}", worked.excerpt(9));
    Ok(())
}

#[test]
fn readers_that_go_and_that_do_not_read_disturb_nothing() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let shop = Workshop::new()?;
    let out = shop.path("out.folded").display().to_string();
    for is_read in [false, true] {
        let (read, write) = std::io::pipe()?;
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "exec \"$@\" 3>&1 >&2", "sh"])
            .arg(binary()?)
            .args([
                "--ready-fd",
                "3",
                "--only",
                "-o",
                &out,
                "--",
                "sleep",
                "0.7",
            ])
            .stdin(Stdio::null());
        // A pipe that is full, or that has no reader.
        let kept = match is_read {
            true => {
                let size = 1 << 20;
                // The other end takes what fits, and no more.
                fill(&write, size)?;
                Some(read)
            }
            false => {
                drop(read);
                None
            }
        };
        let output = shell.stdout(write).stderr(Stdio::piped()).output()?;
        ensure!(output.status.success(), "{is_read}: {}", said(&output));
        ensure!(!said(&output).contains("panicked"), "{}", said(&output));
        drop(kept);
    }
    for (redirect, hint) in [("", "not open"), ("3</dev/null", "only for reading")] {
        let script = format!("exec \"$@\" {redirect}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, "sh"]).arg(binary()?);
        shell.args(["--ready-fd", "3", "-o", &out, "--", "true"]);
        let output = shell.output()?;
        ensure!(output.status.code() == Some(2), "{}", said(&output));
        ensure!(said(&output).contains(hint), "{}", said(&output));
    }
    Ok(())
}

/// Fills a pipe, with the descriptor as it was afterwards.
fn fill(pipe: &std::io::PipeWriter, most: usize) -> anyhow::Result<()> {
    use std::io::Write as _;
    let set = |flags: i32| {
        // SAFETY: the descriptor is open as long as the pipe is borrowed.
        let done = unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, flags) };
        ensure!(done == 0, "{}", std::io::Error::last_os_error());
        Ok(())
    };
    set(libc::O_WRONLY | libc::O_NONBLOCK)?;
    let mut writer = pipe;
    let mut written = 0;
    while written < most {
        match writer.write(b"x") {
            Ok(n) => written += n,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error.into()),
        }
    }
    ensure!(written < most, "the pipe takes {most} bytes");
    set(libc::O_WRONLY)
}

#[test]
fn states_can_be_waited_for_from_outside() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let program = shop.build("depth.c", "depth", &[])?;
    let beside = busy(&program)?;
    let out = shop.path("out.folded").display().to_string();
    let recording = format!("test-only-{}", std::process::id());
    // Whoever waits may be there first.
    let early = Command::new(binary()?)
        .args(["ctl", "status", "--wait", "sampling", &recording])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    until_it_waits(early.id(), "who came before the recording")?;
    let mut aiprof = Child::start(
        Command::new(binary()?)
            .arg(format!("--control={recording}"))
            .args(["-o", &out, "--", "sh", "-c", "echo pid $$; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    )?;
    let early = early.wait_with_output()?;
    ensure!(early.status.success(), "{}", said(&early));
    ensure!(said(&early).contains(&recording), "{}", said(&early));
    let pid = truth(&aiprof.read_line()?, "pid")?;
    let of_command = format!("known={pid}");
    let of_other = format!("known={}", beside.pid());
    for state in ["attached", "sampling", &of_command, &of_other, &of_command] {
        let output = ctl(&["status", "--wait", state, &recording])?;
        ensure!(output.status.success(), "{state}: {}", said(&output));
    }
    let never = format!("known={}", u32::MAX);
    for (words, hint) in [
        (
            &["status", "--wait", &never, &recording][..],
            "does not exist",
        ),
        (&["pause", "--wait", "sampling", &recording], "ctl status"),
        (&["status", "--wait", "asleep", &recording], "known=PID"),
        (
            &[
                "status",
                "--wait",
                "sampling",
                "--timeout",
                "100ms",
                "no-such",
            ],
            "no-such",
        ),
    ] {
        let output = ctl(words)?;
        ensure!(!output.status.success(), "{words:?}");
        ensure!(said(&output).contains(hint), "{words:?}: {}", said(&output));
    }
    aiprof.write_line("go")?;
    ensure!(aiprof.wait(LONG)?.success());
    Ok(())
}

#[test]
fn a_recording_that_ends_first_is_not_waited_for() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let out = shop.path("out.folded").display().to_string();
    let recording = format!("test-only-{}", std::process::id());
    // Nothing resumes it: it is attached, and never samples.
    let mut aiprof = Child::start(
        Command::new(binary()?)
            .arg(format!("--control={recording}"))
            .args(["--start-paused", "-o", &out, "--", "sh", "-c", "read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    )?;
    let output = ctl(&["status", "--wait", "attached", &recording])?;
    ensure!(output.status.success(), "{}", said(&output));
    let words = [
        "status",
        "--wait",
        "sampling",
        "--timeout",
        "300ms",
        &recording,
    ];
    let output = ctl(&words)?;
    ensure!(output.status.code() == Some(1), "{}", said(&output));
    ensure!(
        said(&output).contains("did not reach sampling within"),
        "{}",
        said(&output)
    );
    let waiting = Command::new(binary()?)
        .args(["ctl", "status", "--wait", "sampling", &recording])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    until_it_waits(waiting.id(), "who asked the recording")?;
    aiprof.write_line("go")?;
    let output = waiting.wait_with_output().context("waiting for ctl")?;
    ensure!(output.status.code() == Some(1), "{}", said(&output));
    ensure!(said(&output).contains("ended"), "{}", said(&output));
    ensure!(aiprof.wait(LONG)?.success());
    Ok(())
}
