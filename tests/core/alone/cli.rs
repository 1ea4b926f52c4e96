//! What aiprof promises about its command line, signals, files and streams.

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use aiprof_tests::aiprof::Aiprof;
use aiprof_tests::chain::{check_reached, check_share};
use aiprof_tests::child::Child;
use aiprof_tests::folded::Folded;
use aiprof_tests::monitor::{perf_events_of, programs_of, wait_until_unloaded};
use aiprof_tests::mount::Tmpfs;
use aiprof_tests::need::{Need, skip, skip_unless};
use aiprof_tests::states::States;
use aiprof_tests::workload::Workshop;

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("cc")];

/// Runs `aiprof OPTIONS -- sh -c SCRIPT`.
fn run_script(options: &[&str], script: &str) -> anyhow::Result<Output> {
    let mut command = Aiprof::with(options.iter().copied())
        .command("sh", &["-c", script])
        .to_command()?;
    command.output().context("running aiprof")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A finished aiprof must not have crashed.
fn check_sane(output: &Output) -> anyhow::Result<()> {
    let text = stderr(output);
    anyhow::ensure!(
        output.status.signal().is_none() && !text.contains("panicked"),
        "{}\n{text}",
        output.status
    );
    Ok(())
}

/// Starts aiprof and waits until it takes samples, and knows COMMAND if there is one.
fn start_recording(shop: &Workshop, options: &[&str], command: &[&str]) -> anyhow::Result<Child> {
    let out = shop.path("out.folded").display().to_string();
    let options = [&["-F", "499", "--weight", "samples", "-o", &out], options].concat();
    let states = States::new(shop);
    let mut aiprof = states.command(&options, command)?;
    let aiprof = Child::start(aiprof.stdin(Stdio::null()))?;
    states.wait_for("sampling")?;
    anyhow::ensure!(!programs_of(aiprof.pid()).is_empty() && perf_events_of(aiprof.pid()) > 0);
    if !command.is_empty() {
        states.wait_known_command()?;
    }
    Ok(aiprof)
}

#[test]
fn exit_status_is_the_commands() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    for (script, status) in [
        ("exit 0", 0),
        ("exit 3", 3),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
    ] {
        let output = run_script(&[], script)?;
        check_sane(&output)?;
        anyhow::ensure!(
            output.status.code() == Some(status),
            "{script}: {}, must be {status}\n{}",
            output.status,
            stderr(&output)
        );
    }
    Ok(())
}

#[test]
fn command_that_cannot_run() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    for (program, status) in [
        ("/nonexistent/program", 127),
        ("no-such-program-anywhere", 127),
        ("/etc/passwd", 126),
    ] {
        let output = Aiprof::with::<&str>([])
            .command::<&str>(program, &[])
            .to_command()?
            .output()?;
        check_sane(&output)?;
        anyhow::ensure!(
            output.status.code() == Some(status) && stderr(&output).contains(program),
            "{program}: {}, must be {status} and named\n{}",
            output.status,
            stderr(&output)
        );
    }
    Ok(())
}

#[test]
fn stdout_carries_the_profile_only() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let program = shop.build("depth.c", "quiet", &[])?;
    let output = run_script(
        &["-F", "499"],
        &format!("exec {} 1 >/dev/null", program.display()),
    )?;
    check_sane(&output)?;
    let folded = Folded::parse(std::str::from_utf8(&output.stdout)?)?;
    anyhow::ensure!(
        folded.lines.iter().any(|l| l.has("bottom")),
        "{}",
        folded.excerpt(10)
    );
    anyhow::ensure!(
        stderr(&output).contains("samples"),
        "no summary on stderr:\n{}",
        stderr(&output)
    );
    Ok(())
}

#[test]
fn no_kernel_has_no_kernel_frames() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let script = "dd if=/dev/zero of=/dev/null bs=64k count=60000 2>/dev/null";
    let with = run_script(&["-F", "499", "--weight", "samples"], script)?;
    let with = Folded::parse(std::str::from_utf8(&with.stdout)?)?.of_comm("dd");
    check_reached("kernel frames by default", &with, 0.2, |l| l.in_kernel())?;
    let without = run_script(&["-F", "499", "--weight", "samples", "--no-kernel"], script)?;
    let without = Folded::parse(std::str::from_utf8(&without.stdout)?)?.of_comm("dd");
    check_share("no kernel frames", &without, 10, 1.0, |l| {
        !l.frames.iter().any(|f| f.ends_with("_[k]"))
    })
}

#[test]
fn interrupt_ends_the_recording_and_writes() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let program = shop.build("depth.c", "endless", &[])?;
    let program = program.display().to_string();
    let mut aiprof = start_recording(&shop, &[], &[&program, "600"])?;
    let programs = programs_of(aiprof.pid());
    aiprof.signal("INT")?;
    let status = aiprof.wait(Duration::from_secs(10))?;
    // COMMAND ended by the passed-on signal.
    anyhow::ensure!(status.code() == Some(130), "{status}\n{}", aiprof.stderr()?);
    let folded = Folded::parse(&std::fs::read_to_string(shop.path("out.folded"))?)?;
    anyhow::ensure!(
        folded.lines.iter().any(|l| l.has("bottom")),
        "{}",
        folded.excerpt(10)
    );
    wait_until_unloaded(&programs)
}

#[test]
fn interrupt_ends_a_recording_without_command() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let shop = Workshop::new()?;
    let mut aiprof = start_recording(&shop, &["-d", "600"], &[])?;
    aiprof.signal("INT")?;
    let status = aiprof.wait(Duration::from_secs(10))?;
    anyhow::ensure!(status.success(), "{status}\n{}", aiprof.stderr()?);
    Folded::parse(&std::fs::read_to_string(shop.path("out.folded"))?).map(drop)
}

#[test]
fn terminate_is_passed_on() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let shop = Workshop::new()?;
    let script = "trap 'exit 42' TERM; while :; do sleep 0.05; done";
    let mut aiprof = start_recording(&shop, &[], &["sh", "-c", script])?;
    aiprof.signal("TERM")?;
    let status = aiprof.wait(Duration::from_secs(10))?;
    anyhow::ensure!(status.code() == Some(42), "{status}\n{}", aiprof.stderr()?);
    Folded::parse(&std::fs::read_to_string(shop.path("out.folded"))?).map(drop)
}

#[test]
fn kill_leaves_nothing_attached() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let mut aiprof = start_recording(&Workshop::new()?, &["-d", "600"], &[])?;
    let programs = programs_of(aiprof.pid());
    anyhow::ensure!(!programs.is_empty(), "aiprof holds no program");
    aiprof.kill();
    wait_until_unloaded(&programs)
}

#[test]
fn closed_stdout_ends_quietly() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let mut command = Aiprof::with::<&str>([])
        .command("sleep", &["1"])
        .to_command()?;
    let mut process = command.spawn()?;
    drop(process.stdout.take());
    let output = process.wait_with_output()?;
    check_sane(&output)?;
    let text = stderr(&output).to_lowercase();
    anyhow::ensure!(
        output.status.success() && !text.contains("broken pipe") && !text.contains("error"),
        "{}\n{text}",
        output.status
    );
    Ok(())
}

/// Names of the files in a directory.
fn files(dir: &Path) -> anyhow::Result<Vec<String>> {
    let entries = std::fs::read_dir(dir)?.collect::<Result<Vec<_>, _>>()?;
    Ok(entries
        .iter()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect())
}

#[test]
fn full_disk_leaves_no_half_file() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root, Need::Tool("mount")]);
    let shop = Workshop::new()?;
    let dir = shop.path("small");
    std::fs::create_dir(&dir)?;
    let tmpfs = Tmpfs::mount(&dir, 64)?;
    tmpfs.fill()?;
    for format in ["folded", "svg", "pb.gz", "aiprof"] {
        let name = format!("out.{format}");
        let out = dir.join(&name);
        let output = Aiprof::counting()
            .option("-o")
            .option(&out)
            .command("sleep", &["1"])
            .to_command()?
            .output()?;
        check_sane(&output)?;
        anyhow::ensure!(!output.status.success(), "{format}: success on a full disk");
        anyhow::ensure!(
            stderr(&output).contains(&name) && stderr(&output).contains("No space left"),
            "{format}: the error must name the file and the cause:\n{}",
            stderr(&output)
        );
        anyhow::ensure!(
            files(&dir)? == ["filler"],
            "{format}: left behind {:?}",
            files(&dir)?
        );
    }
    Ok(())
}

#[test]
fn missing_directory_is_named() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let output = run_script(&["-o", "/nonexistent-dir/out.folded"], "exit 0")?;
    check_sane(&output)?;
    anyhow::ensure!(
        !output.status.success() && stderr(&output).contains("/nonexistent-dir"),
        "{}\n{}",
        output.status,
        stderr(&output)
    );
    Ok(())
}

#[test]
fn output_belongs_to_the_sudo_user() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let shop = Workshop::new()?;
    let out = shop.path("out.folded");
    let mut command = Aiprof::counting()
        .option("-o")
        .option(&out)
        .command("true", &[] as &[&str])
        .to_command()?;
    let output = command
        .env("SUDO_UID", "65534")
        .env("SUDO_GID", "65533")
        .output()?;
    anyhow::ensure!(
        output.status.success(),
        "{}\n{}",
        output.status,
        stderr(&output)
    );
    let meta = std::fs::metadata(&out)?;
    anyhow::ensure!(
        (meta.uid(), meta.gid()) == (65534, 65533),
        "{}:{}",
        meta.uid(),
        meta.gid()
    );
    Ok(())
}

#[test]
fn duration_ends_the_recording() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let start = Instant::now();
    let output = Aiprof::counting()
        .option("-d")
        .option("1")
        .to_command()?
        .stdin(Stdio::null())
        .output()?;
    let took = start.elapsed();
    check_sane(&output)?;
    // How long it recorded; how long it takes to begin and to write is another matter.
    let said = stderr(&output);
    let length = said.lines().find_map(|line| line.split_once(" stacks, "));
    let length = length.and_then(|(_, length)| length.trim_end().strip_suffix(" s"));
    let recorded: f64 = length.with_context(|| said.clone())?.parse()?;
    anyhow::ensure!(
        output.status.success(),
        "{}\n{}",
        output.status,
        stderr(&output)
    );
    anyhow::ensure!(
        took >= Duration::from_secs(1) && (1.0..6.0).contains(&recorded),
        "took {took:?}: {said}"
    );
    Folded::parse(std::str::from_utf8(&output.stdout)?).map(drop)
}

#[test]
fn idle_cpus_on_request_only() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let record = |options: &[&str]| {
        let aiprof = Aiprof::with(["-F", "199", "--weight", "samples"]);
        let stat = "head -n 1 /proc/stat";
        options
            .iter()
            .fold(aiprof, |aiprof, option| aiprof.option(option))
            .command("sh", &["-c", &format!("{stat}; sleep 3; {stat}")])
            .record()
    };
    // The idle task is process 0.
    let without = record(&[])?.folded;
    anyhow::ensure!(
        without.of_pid(0).total() == 0,
        "{}",
        without.of_pid(0).excerpt(5)
    );
    let run = record(&["--idle"])?;
    let idle = idle_seconds(&run.stdout)?;
    if idle < 1.0 {
        let reason = format!("the CPUs were idle for {idle:.2} s only");
        skip("idle_cpus_on_request_only", &reason);
        return Ok(());
    }
    // An idle virtual CPU gets its timer interrupts when its host runs it: 9 % beside a busy
    // one on a busy host (perf sees as few). That they are there is what shows.
    let (found, expected) = (run.folded.of_pid(0).total() as f64, idle * 199.0);
    anyhow::ensure!(
        (0.02 * expected..1.5 * expected).contains(&found),
        "{found} idle samples, must be about {expected}:\n{}",
        run.folded.excerpt(5)
    );
    Ok(())
}

/// Seconds that all CPUs together were idle between two first lines of /proc/stat.
fn idle_seconds(stat: &str) -> anyhow::Result<f64> {
    let idle = |line: Option<&str>| -> anyhow::Result<f64> {
        // cpu USER NICE SYSTEM IDLE ..., in units of 1/100 s
        let idle = line.and_then(|line| line.split_whitespace().nth(4));
        Ok(idle.context("no idle time")?.parse::<f64>()? / 100.0)
    };
    let mut lines = stat.lines();
    let begin = idle(lines.next())?;
    Ok(idle(lines.next())? - begin)
}
