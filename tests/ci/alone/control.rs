//! Recordings that are paused, resumed and stopped while they run, that begin at an event and that
//! keep their last seconds. The test controls a program, phase by phase, and so knows what it did,
//! and when.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use aiprof_tests::aiprof::binary;
use aiprof_tests::attacker::NOBODY;
use aiprof_tests::child::{Child, LONG};
use aiprof_tests::folded::Folded;
use aiprof_tests::level_zero::driver::{Driver, Exports, Machine, NEEDS};
use aiprof_tests::level_zero::module::{Kernel, Module};
use aiprof_tests::level_zero::program::build_phases;
use aiprof_tests::mount::Tmpfs;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::trace::Trace;
use aiprof_tests::workload::{Workshop, checked};

/// Samples a second.
const RATE: u64 = 499;
/// Where root's sockets are.
const SOCKETS: &str = "/run/aiprof";

fn needs() -> Vec<Need> {
    [&NEEDS[..], &[Need::Root]].concat()
}

/// Four kernels, one for each phase; the third takes long.
fn module(shop: &Workshop) -> anyhow::Result<PathBuf> {
    Module::new(vec![
        Kernel::new("kernel_a", 50_000),
        Kernel::new("kernel_b", 1_000_000),
        Kernel::new("kernel_c", 80_000_000),
        Kernel::new("kernel_d", 20_000),
    ])
    .write(&shop.path("module.zebin"))
}

/// The program, on the virtual machine.
fn program(shop: &Workshop) -> anyhow::Result<Command> {
    let machine = Machine::new(&Driver::build(Exports::All)?);
    let mut command = machine.command(&build_phases()?);
    let module = format!("module={}", module(shop)?.display());
    command.args(["run", &module]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    Ok(command)
}

/// A recording of the program, which waits for commands.
struct Recording {
    aiprof: Child,
    name: String,
    errors: PathBuf,
}

impl Recording {
    fn start(shop: &Workshop, options: &[&str]) -> anyhow::Result<Self> {
        let name = format!("test-{}", std::process::id());
        let errors = shop.path("stderr");
        let inner = program(shop)?;
        let is_of_launches = options.contains(&"--events");
        let weight: &[&str] = match is_of_launches {
            true => &[],
            false => &["--weight", "samples"],
        };
        let mut command = Command::new(binary()?);
        command
            .args(["-F", &RATE.to_string()])
            .args(weight)
            .arg(format!("--control={name}"))
            .args(options)
            .arg("--")
            .arg(inner.get_program())
            .args(inner.get_args())
            .envs(inner.get_envs().filter_map(|(k, v)| Some((k, v?))))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&errors)?);
        let aiprof = Child::start(&mut command)?;
        let mut recording = Self {
            aiprof,
            name,
            errors,
        };
        recording.hear("ready")?;
        Ok(recording)
    }

    fn hear(&mut self, word: &str) -> anyhow::Result<()> {
        let said = std::fs::read_to_string(&self.errors).unwrap_or_default();
        let line = self.aiprof.read_line().context(said)?;
        ensure!(line.trim_end() == word, "{line:?} in place of {word}");
        Ok(())
    }

    /// Runs a phase of the program: `ms` milliseconds of CPU time and `launches` launches.
    /// Returns when the phase has ended.
    fn phase(&mut self, name: &'static str, ms: u32, launches: u32) -> anyhow::Result<Phase> {
        let start = Instant::now();
        self.aiprof.write_line(&format!("{name} {ms} {launches}"))?;
        self.hear(name)?;
        let cpu = f64::from(ms) / 1000.0;
        Ok(Phase {
            name,
            cpu,
            wall: start.elapsed().as_secs_f64(),
        })
    }

    /// Has the program enter a call, which waits until `meanwhile` is done. Gives how long the
    /// call lasted at least, and at most.
    fn hold(
        &mut self,
        meanwhile: impl FnOnce(&Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<[Duration; 2]> {
        let begun = Instant::now();
        self.aiprof.write_line("hold")?;
        self.hear("holding")?;
        let inside = Instant::now();
        meanwhile(self)?;
        let least = inside.elapsed();
        self.aiprof.write_line("release")?;
        self.hear("hold")?;
        Ok([least, begun.elapsed()])
    }

    fn ctl(&self, action: &str) -> anyhow::Result<String> {
        let output = ctl(&[action, &self.name])?;
        ensure!(output.status.success(), "{action}: {}", said(&output));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Ends the program, and returns aiprof's messages.
    fn end(mut self) -> anyhow::Result<String> {
        self.aiprof.write_line("quit")?;
        let status = self.aiprof.wait(LONG)?;
        let said = std::fs::read_to_string(&self.errors)?;
        ensure!(status.success(), "{status}: {said}");
        ensure!(!said.contains("panicked"), "{said}");
        Ok(said)
    }
}

fn ctl(args: &[&str]) -> anyhow::Result<Output> {
    Ok(Command::new(binary()?).arg("ctl").args(args).output()?)
}

fn said(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

fn folded(path: &Path) -> anyhow::Result<Folded> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Folded::parse(&text)
}

/// The values below a phase.
fn below(folded: &Folded, phase: &str) -> u64 {
    folded
        .filter(|line| line.has(&format!("phase_{phase}")))
        .total()
}

/// Work of the program that is over: its CPU time, and how long it took, seconds.
struct Phase {
    name: &'static str,
    cpu: f64,
    wall: f64,
}

impl Phase {
    /// The expected number of samples, and by how many the actual number may differ: 2 %, two
    /// samples, and five standard deviations of chance where the program shared its CPU.
    fn samples(&self) -> (f64, f64) {
        let expected = self.cpu * RATE as f64;
        let by_chance = (1.0 - self.cpu / self.wall).max(0.0);
        let deviation = (expected * by_chance).sqrt();
        (expected, 2.0 + 0.02 * expected + 5.0 * deviation)
    }
}

/// Checks that a phase has the samples of its CPU time, and that their stacks are whole.
fn is_whole(folded: &Folded, phase: &Phase) -> anyhow::Result<()> {
    let name = phase.name;
    let lines = folded.filter(|line| line.has(&format!("phase_{name}")));
    let (expected, most) = phase.samples();
    let total = lines.total();
    ensure!(
        (total as f64 - expected).abs() <= most,
        "phase {name}: {total} samples, not {expected} within {most}"
    );
    let torn = lines.filter(|line| !line.has("main") || line.is_cut());
    ensure!(torn.total() == 0, "phase {name}:\n{}", torn.excerpt(5));
    Ok(())
}

/// Waits until the recording's status contains `word`.
fn await_status(recording: &Recording, word: &str) -> anyhow::Result<()> {
    let start = Instant::now();
    while !recording.ctl("status")?.contains(word) {
        ensure!(start.elapsed() < LONG, "{}", recording.ctl("status")?);
    }
    Ok(())
}

#[test]
fn paused_phases_have_no_samples_and_the_others_all() -> anyhow::Result<()> {
    skip_unless!(&needs());
    let shop = Workshop::new()?;
    let out = shop.path("out.folded");
    let file = out.to_str().context("a path")?;
    let mut recording = Recording::start(&shop, &["-o", file])?;
    let a = recording.phase("a", 600, 3)?;
    let start = Instant::now();
    recording.ctl("pause")?;
    ensure!(recording.ctl("status")?.contains("paused"));
    let b = recording.phase("b", 600, 3)?;
    recording.ctl("resume")?;
    let c = recording.phase("c", 600, 1)?;
    recording.ctl("pause")?;
    // Twice is once.
    recording.ctl("pause")?;
    let d = recording.phase("d", 600, 3)?;
    // The program ends in a pause.
    let said = recording.end()?;
    let most = start.elapsed().as_secs_f64() - c.wall;
    let folded = folded(&out)?;
    is_whole(&folded, &a)?;
    is_whole(&folded, &c)?;
    assert_eq!(below(&folded, "b"), 0);
    assert_eq!(below(&folded, "d"), 0);
    let paused = said.split_once("paused for ").context(said.clone())?.1;
    let paused: f64 = paused.split(' ').next().context("a number")?.parse()?;
    // It is printed to a tenth of a second.
    let bounds = b.wall + d.wall - 0.1..most + 0.1;
    assert!(bounds.contains(&paused), "{bounds:?}: {said}");
    Ok(())
}

#[test]
fn launches_are_those_of_the_phases_that_were_recorded() -> anyhow::Result<()> {
    skip_unless!(&needs());
    let shop = Workshop::new()?;
    let out = shop.path("out.folded");
    let file = out.to_str().context("a path")?;
    let mut recording = Recording::start(&shop, &["--events", "launches", "-o", file])?;
    recording.phase("a", 0, 7)?;
    recording.ctl("pause")?;
    recording.phase("b", 0, 5)?;
    recording.ctl("resume")?;
    recording.phase("d", 0, 11)?;
    recording.ctl("pause")?;
    recording.phase("b", 0, 13)?;
    recording.ctl("resume")?;
    recording.end()?;
    let folded = folded(&out)?;
    let launches = |phase: &str| {
        let kernel = format!("kernel_{phase}");
        let of = folded.filter(|line| line.has(&format!("phase_{phase}")));
        let named = of.filter(|line| line.frames.iter().any(|f| f.contains(&kernel)));
        (of.total(), named.total())
    };
    assert_eq!(launches("a"), (7, 7), "{}", folded.excerpt(9));
    assert_eq!(launches("b"), (0, 0), "{}", folded.excerpt(9));
    assert_eq!(launches("d"), (11, 11), "{}", folded.excerpt(9));
    Ok(())
}

#[test]
fn a_trace_shows_the_pause_and_true_lengths_of_calls_across_it() -> anyhow::Result<()> {
    skip_unless!(&needs());
    let shop = Workshop::new()?;
    let out = shop.path("out.json");
    let file = out.to_str().context("a path")?;
    let mut recording = Recording::start(&shop, &["-o", file])?;
    recording.phase("a", 100, 7)?;
    // A call that begins before the pause and ends in it.
    let asked = Instant::now();
    let held = recording.hold(|recording| recording.ctl("pause").map(drop))?;
    let paused = Instant::now();
    recording.phase("b", 300, 5)?;
    let in_pause = paused.elapsed();
    recording.ctl("resume")?;
    let most = asked.elapsed();
    recording.phase("d", 100, 11)?;
    recording.end()?;
    let trace = Trace::read(&out)?;
    trace.check()?;
    let ns = |length: Duration| u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
    let pauses: Vec<_> = trace.spans.iter().filter(|s| s.name == "paused").collect();
    assert_eq!(pauses.len(), 1);
    let pause = pauses[0];
    let length = pause.end - pause.start;
    let bounds = ns(in_pause)..ns(most);
    assert!(bounds.contains(&length), "{length}, not {bounds:?}");
    // The call of the program that was there when the pause began.
    let is_held = |call: &&aiprof_tests::trace::Span| {
        call.name == "zeEventHostSynchronize"
            && (call.start..call.end).contains(&pause.start)
            && call.end < pause.end
    };
    let held_call = trace.calls().find(is_held).context("no call is held")?;
    let hold = held_call.end - held_call.start;
    let bounds = ns(held[0])..ns(held[1]);
    assert!(bounds.contains(&hold), "{hold}, not {bounds:?}");
    // No call of the pause: none begins in it.
    let begins = |call: &&aiprof_tests::trace::Span| {
        call.start > pause.start + 1_000_000 && call.start + 1_000_000 < pause.end
    };
    let strays: Vec<_> = trace.calls().filter(begins).map(|c| &c.name).collect();
    assert!(strays.is_empty(), "{strays:?}");
    let launches = trace
        .calls()
        .filter(|call| call.name == "zeCommandListAppendLaunchKernel");
    assert_eq!(launches.count(), 7 + 11);
    Ok(())
}

#[test]
fn processes_that_begin_in_a_pause_have_whole_stacks_after_it() -> anyhow::Result<()> {
    skip_unless!(&needs());
    let shop = Workshop::new()?;
    let out = shop.path("out.folded");
    let control = format!("test-{}", std::process::id());
    let mut command = Command::new(binary()?);
    command
        .args(["-q", "-F", &RATE.to_string(), "--weight", "samples"])
        .args(["--start-paused", "-o"])
        .arg(&out)
        .arg(format!("--control={control}"));
    let mut aiprof = Child::start(&mut command)?;
    let start = Instant::now();
    while !said(&ctl(&["status"])?).contains(&control) {
        ensure!(start.elapsed() < LONG && aiprof.is_running());
    }
    let mut program = Child::start(&mut program(&shop)?)?;
    ensure!(program.read_line()? == "ready\n");
    program.write_line("a 300 3")?;
    ensure!(program.read_line()? == "a\n");
    ensure!(ctl(&["resume"])?.status.success(), "the only one");
    let start = Instant::now();
    program.write_line("b 600 3")?;
    ensure!(program.read_line()? == "b\n");
    let b = Phase {
        name: "b",
        cpu: 0.6,
        wall: start.elapsed().as_secs_f64(),
    };
    let output = ctl(&["stop", &control])?;
    assert!(output.status.success(), "{}", said(&output));
    // The answer came when it was whole.
    let folded = folded(&out)?.of_pid(program.pid());
    assert!(aiprof.wait(LONG)?.success());
    assert_eq!(below(&folded, "a"), 0);
    is_whole(&folded, &b)?;
    assert!(
        !Path::new(SOCKETS)
            .join(format!("control-{control}.sock"))
            .exists()
    );
    Ok(())
}

#[test]
fn many_pauses_lose_nothing_and_leave_nothing() -> anyhow::Result<()> {
    skip_unless!(&needs());
    let shop = Workshop::new()?;
    let out = shop.path("out.folded");
    let file = out.to_str().context("a path")?;
    let mut recording = Recording::start(&shop, &["-o", file])?;
    // Not of files: those of other programs are open too. A descriptor of each would
    // be two thousand.
    let folder = PathBuf::from(format!("/proc/{}/fd", recording.aiprof.pid()));
    let own = || -> anyhow::Result<usize> {
        let links = files(&folder)?.into_iter().flat_map(std::fs::read_link);
        let is_own = |link: &PathBuf| !link.starts_with("/");
        Ok(links.filter(is_own).count())
    };
    let before = own()?;
    let script = "for i in $(seq 1000); do \"$0\" ctl pause \"$1\" && \"$0\" ctl resume \"$1\" || exit 1; done";
    let mut shell = Command::new("sh");
    shell
        .args(["-c", script])
        .arg(binary()?)
        .arg(&recording.name);
    checked(&mut shell)?;
    let after = own()?;
    assert!(after < before + 100, "{before} descriptors, {after} after");
    let a = recording.phase("a", 600, 3)?;
    recording.end()?;
    is_whole(&folded(&out)?, &a)
}

#[test]
fn nobody_else_can_steer_a_recording() -> anyhow::Result<()> {
    let needs = [needs(), vec![Need::Tool("setpriv"), Need::Tool("python3")]].concat();
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let out = shop.path("out.folded");
    let file = out.to_str().context("a path")?;
    let mut recording = Recording::start(&shop, &["-o", file])?;
    let socket = format!("{SOCKETS}/control-{}.sock", recording.name);
    let connect = "import socket, sys\n\
         s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
         s.connect(sys.argv[1])\n\
         try: s.send(b'aiprof-control-1 stop')\n\
         except BrokenPipeError: pass\n\
         print(s.recv(4096).decode())\n";
    let as_nobody = |words: &[&str]| -> anyhow::Result<Output> {
        let id = NOBODY.to_string();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
        Ok(command.args(words).output()?)
    };
    let refused = as_nobody(&["/usr/bin/python3", "-c", connect, &socket])?;
    assert!(
        said(&refused).contains("PermissionError"),
        "{}",
        said(&refused)
    );
    // Even with the directory and the socket open for all: the kernel knows who asks.
    let open = |path: &str, mode| std::fs::set_permissions(path, Permissions::from_mode(mode));
    open(SOCKETS, 0o755)?;
    open(&socket, 0o666)?;
    let answer = as_nobody(&["/usr/bin/python3", "-c", connect, &socket])?;
    open(&socket, 0o600)?;
    open(SOCKETS, 0o700)?;
    assert!(
        said(&answer).contains("no only root and the user"),
        "{}",
        said(&answer)
    );
    let a = recording.phase("a", 600, 3)?;
    // Root itself with nonsense, with nothing, killed while it waits.
    let nonsense = connect.replace("aiprof-control-1 stop", "aiprof-control-1 stopp");
    let answer = Command::new("/usr/bin/python3")
        .args(["-c", &nonsense, &socket])
        .output()?;
    assert!(said(&answer).starts_with("no "), "{}", said(&answer));
    let silent = connect.replace(
        "s.send(b'aiprof-control-1 stop')",
        "print('here', flush=True)",
    );
    let mut waiting = Child::start(
        Command::new("/usr/bin/python3")
            .args(["-c", &silent, &socket])
            .stdout(Stdio::piped()),
    )?;
    waiting.read_line()?;
    recording.ctl("pause")?;
    waiting.kill();
    recording.ctl("resume")?;
    recording.end()?;
    is_whole(&folded(&out)?, &a)
}

#[test]
fn what_a_killed_recording_left_is_taken_over() -> anyhow::Result<()> {
    skip_unless!(&needs());
    let shop = Workshop::new()?;
    let out = shop.path("out.folded");
    let file = out.to_str().context("a path")?;
    let mut killed = Recording::start(&shop, &["-o", file])?;
    killed.aiprof.kill();
    let status = ctl(&["status"])?;
    assert!(!said(&status).contains(&killed.name), "{}", said(&status));
    let gone = ctl(&["pause", &killed.name])?;
    assert_eq!(gone.status.code(), Some(1), "{}", said(&gone));
    // The same name again, and a second of it at the same time.
    let mut recording = Recording::start(&shop, &["-o", file])?;
    let mut second = Command::new(binary()?);
    second
        .arg(format!("--control={}", recording.name))
        .args(["-o", "/dev/null"]);
    let second = second.args(["--format", "folded", "true"]).output()?;
    assert_eq!(second.status.code(), Some(1), "{}", said(&second));
    assert!(said(&second).contains("already"), "{}", said(&second));
    let a = recording.phase("a", 600, 3)?;
    // It keeps no last seconds.
    let dump = ctl(&["dump", &recording.name])?;
    assert_eq!(dump.status.code(), Some(1), "{}", said(&dump));
    recording.end()?;
    is_whole(&folded(&out)?, &a)
}

#[test]
fn a_trigger_begins_the_recording() -> anyhow::Result<()> {
    skip_unless!(&needs());
    for (trigger, launches_b) in [
        ("kernel=kernel_b", 1),
        ("call=zeEventHostSignal", 0),
        ("kernel=kernel_,longer=60ms", 0),
    ] {
        let shop = Workshop::new()?;
        let out = shop.path("out.folded");
        let file = out.to_str().context("a path")?;
        let options = ["--events", "launches", "-o", file, "--trigger", trigger];
        let mut recording = Recording::start(&shop, &options)?;
        recording.phase("a", 0, 5)?;
        ensure!(recording.ctl("status")?.contains("paused"), "{trigger}");
        match trigger.split_once('=') {
            Some(("call", _)) => {
                recording.hold(|_| Ok(()))?;
            }
            _ if launches_b > 0 => {
                recording.phase("b", 0, 1)?;
            }
            _ => {
                recording.phase("b", 0, 3)?;
                ensure!(recording.ctl("status")?.contains("paused"), "{trigger}");
                recording.phase("c", 0, 1)?;
                // The next call shows that the kernel's times have been read.
                recording.hold(|_| Ok(()))?;
            }
        }
        await_status(&recording, " recording ")?;
        recording.phase("d", 0, 7)?;
        let said = recording.end()?;
        let folded = folded(&out)?;
        assert_eq!(below(&folded, "a"), 0, "{trigger}\n{}", folded.excerpt(9));
        assert_eq!(below(&folded, "b"), 0, "{trigger}\n{}", folded.excerpt(9));
        assert_eq!(below(&folded, "d"), 7, "{trigger}\n{said}");
        let named = folded.filter(|l| l.frames.iter().any(|f| f.contains("kernel_d")));
        assert_eq!(named.total(), 7, "{trigger}");
        assert!(said.contains("aiprof: recording: "), "{said}");
    }
    Ok(())
}

/// The files of a directory, sorted.
fn files(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        files.push(entry?.path());
    }
    files.sort();
    Ok(files)
}

/// Makes something else of a capture.
fn report(from: &Path, to: &Path, options: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new(binary()?);
    command
        .args(["-q", "report"])
        .arg(from)
        .arg("-o")
        .arg(to)
        .args(options);
    checked(&mut command).map(drop)
}

#[test]
fn a_window_has_the_last_seconds_only() -> anyhow::Result<()> {
    skip_unless!(&needs());
    let shop = Workshop::new()?;
    let out = shop.path("dumps");
    let file = out.to_str().context("a path")?;
    let mut recording = Recording::start(&shop, &["--window", "2s", "-o", file])?;
    recording.phase("a", 400, 7)?;
    // As long as the window, and longer.
    let b = recording.phase("b", 2600, 0)?;
    let d = recording.phase("d", 200, 11)?;
    let start = Instant::now();
    recording.ctl("dump")?;
    let dumping = start.elapsed().as_secs_f64();
    let first = files(&out)?;
    assert_eq!(first.len(), 1, "{first:?}");
    recording.phase("a", 300, 3)?;
    recording.aiprof.signal("USR2")?;
    let start = Instant::now();
    while files(&out)?.len() < 2 {
        ensure!(start.elapsed() < LONG, "no second file");
    }
    let said = recording.end()?;
    let all = files(&out)?;
    assert_eq!(all.len(), 3, "the end is one: {all:?}\n{said}");

    let profile = shop.path("first.folded");
    report(&first[0], &profile, &["--weight", "samples"])?;
    let samples = folded(&profile)?;
    assert_eq!(below(&samples, "a"), 0);
    is_whole(&samples, &d)?;
    // What was left of two seconds: the window ended while it was asked for.
    let rest = below(&samples, "b") as f64;
    let [least, most] = [d.wall + dumping + 0.05, d.wall - 0.05].map(|later| {
        let wall = (2.0 - later).max(0.0);
        let cpu = wall * b.cpu / b.wall;
        Phase { name: "b", cpu, wall }.samples()
    });
    let bounds = least.0 - least.1..=most.0 + most.1;
    assert!(bounds.contains(&rest), "{rest} of {bounds:?}");
    // Launches of the window, with names of kernels that were made before it.
    report(&first[0], &profile, &["--events", "launches"])?;
    let launches = folded(&profile)?;
    let named = launches.filter(|l| l.frames.iter().any(|f| f.contains("kernel_d")));
    assert_eq!((below(&launches, "d"), named.total()), (11, 11));
    assert_eq!(below(&launches, "a"), 0);
    // A trace is no longer than the window.
    let trace = shop.path("first.json");
    report(&first[0], &trace, &[])?;
    let trace = Trace::read(&trace)?;
    trace.check()?;
    let begin = trace.spans.iter().map(|s| s.start).min().context("spans")?;
    let end = trace.spans.iter().map(|s| s.end).max().context("spans")?;
    let length = end - begin;
    // It ended while it was asked for.
    let most = ((2.3 + dumping) * 1e9) as u64;
    assert!((1_000_000_000..most).contains(&length), "{length}");
    // The second file has the phase after the first.
    let second = all.iter().find(|f| **f != first[0]).context("a second")?;
    report(second, &profile, &["--events", "launches"])?;
    assert_eq!(below(&folded(&profile)?, "a"), 3);
    Ok(())
}

#[test]
fn a_slow_kernel_has_the_window_before_it_written() -> anyhow::Result<()> {
    skip_unless!(&needs());
    for format in ["json", "folded"] {
        let shop = Workshop::new()?;
        let out = shop.path("dumps");
        let file = out.to_str().context("a path")?;
        let kind = if format == "json" { "chrome" } else { format };
        let trigger = "kernel=kernel_,longer=50ms";
        let options = [
            "--window",
            "5s",
            "-o",
            file,
            "--format",
            kind,
            "--trigger",
            trigger,
            "--dumps",
            "2",
        ];
        let mut recording = Recording::start(&shop, &options)?;
        let a = recording.phase("a", 200, 5)?;
        recording.phase("b", 200, 5)?;
        ensure!(files(&out)?.is_empty(), "none of these is slow");
        for n in 1..=2 {
            recording.phase("c", 0, 1)?;
            recording.phase("d", 0, 1)?;
            let start = Instant::now();
            while files(&out)?.len() < n {
                ensure!(start.elapsed() < LONG, "no file {n}");
                // More calls: times are known by them.
                recording.phase("d", 0, 1)?;
            }
        }
        recording.phase("c", 0, 1)?;
        let said = recording.end()?;
        let all = files(&out)?;
        assert_eq!(all.len(), 2, "{all:?}\n{said}");
        assert!(said.contains("longer than 50 ms"), "{said}");
        if format == "folded" {
            let samples = folded(&all[0])?;
            is_whole(&samples, &a)?;
            continue;
        }
        let trace = Trace::read(&all[0])?;
        trace.check()?;
        let slow = trace.spans.iter().filter(|s| s.name == "kernel_c");
        let longest = slow.map(|s| s.end - s.start).max().unwrap_or(0);
        assert!((79_000_000..82_000_000).contains(&longest), "{longest}");
        let before = trace.spans.iter().filter(|s| s.name == "kernel_a");
        assert_eq!(before.count(), 5);
    }
    Ok(())
}

#[test]
fn a_full_disk_refuses_a_dump_and_the_recording_goes_on() -> anyhow::Result<()> {
    skip_unless!(&needs());
    let shop = Workshop::new()?;
    let out = shop.path("dumps");
    std::fs::create_dir(&out)?;
    let disk = Tmpfs::mount(&out, 1024)?;
    let file = out.to_str().context("a path")?;
    let mut recording = Recording::start(&shop, &["--window", "5s", "-o", file])?;
    let a = recording.phase("a", 400, 7)?;
    disk.fill()?;
    let dump = ctl(&["dump", &recording.name])?;
    assert_eq!(dump.status.code(), Some(1), "{}", said(&dump));
    assert!(said(&dump).contains("space"), "{}", said(&dump));
    std::fs::remove_file(out.join("filler"))?;
    recording.ctl("dump")?;
    recording.end()?;
    let all = files(&out)?;
    assert_eq!(all.len(), 2, "that and the end's: {all:?}");
    let profile = shop.path("all.folded");
    report(&all[0], &profile, &["--weight", "samples"])?;
    is_whole(&folded(&profile)?, &a)
}

#[test]
fn unitrace_sessions_are_paused_and_resumed_by_name() -> anyhow::Result<()> {
    skip_unless!(&needs());
    let shop = Workshop::new()?;
    let inner = program(&shop)?;
    let out = shop.path("perf.txt");
    let session = format!("s{}", std::process::id());
    let mut command = Command::new(binary()?);
    command
        .args(["unitrace", "-h", "--start-paused", "--session", &session])
        .arg("-o")
        .arg(&out)
        .arg(inner.get_program())
        .args(inner.get_args())
        .envs(inner.get_envs().filter_map(|(k, v)| Some((k, v?))))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut unitrace = Child::start(&mut command)?;
    ensure!(unitrace.read_line()? == "ready\n");
    let steer = |option: &str| {
        checked(Command::new(binary()?).args(["unitrace", option, &session])).map(drop)
    };
    let mut phase = |line: &str, name: &str| -> anyhow::Result<()> {
        unitrace.write_line(line)?;
        ensure!(unitrace.read_line()?.trim_end() == name);
        Ok(())
    };
    phase("a 0 5", "a")?;
    steer("--resume")?;
    phase("b 0 7", "b")?;
    steer("--pause")?;
    phase("d 0 11", "d")?;
    unitrace.write_line("quit")?;
    ensure!(unitrace.wait(LONG)?.success());
    let files = files(&shop.path(""))?;
    let tables = files.iter().find(|f| f.to_string_lossy().contains("perf."));
    let text = std::fs::read_to_string(tables.with_context(|| format!("{files:?}"))?)?;
    let row = text
        .lines()
        .find(|line| line.contains("zeCommandListAppendLaunchKernel"));
    let calls = row.and_then(|row| row.split(',').nth(1)).map(str::trim);
    assert_eq!(calls, Some("7"), "{text}");
    Ok(())
}
