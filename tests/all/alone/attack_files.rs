//! What somebody gains who may run aiprof with capabilities, or who shares a
//! directory with whoever runs it as root: nothing.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use aiprof_tests::aiprof::binary;
use aiprof_tests::attacker::{Attacker, NOBODY, mode};
use aiprof_tests::child::Child;
use aiprof_tests::level_zero::module::{Kernel, Module};
use aiprof_tests::level_zero::program::build_paths;
use aiprof_tests::need::{Need, skip, skip_unless};
use aiprof_tests::stall_run::Recording;
use aiprof_tests::workload::{Workshop, checked};

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("setcap")];
const SECRET: &str = "the-secret-that-only-root-may-read";

/// The attacker, or a visible skip.
fn attacker(name: &str) -> anyhow::Result<Option<Attacker>> {
    let attacker = Attacker::new()?;
    if attacker.is_none() {
        skip(name, "file capabilities have no effect here");
    }
    Ok(attacker)
}

fn said(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// Every file below a folder.
fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() && !path.is_symlink() {
            true => found.append(&mut files(&path)?),
            false => found.push(path),
        }
    }
    Ok(found)
}

/// The command line fails, and the secret is neither printed nor kept.
fn gains_nothing(attacker: &Attacker, args: &[&str]) -> anyhow::Result<()> {
    let output = attacker.run(args)?;
    let said = said(&output);
    ensure!(!output.status.success(), "{args:?} succeeded:\n{said}");
    ensure!(output.status.code() != Some(124), "{args:?} did not end");
    ensure!(!said.contains("panicked"), "{args:?}:\n{said}");
    ensure!(!said.contains(SECRET), "{args:?} told the secret:\n{said}");
    for file in files(&attacker.home())? {
        let bytes = fs::read(&file)?;
        let kept = bytes.windows(SECRET.len()).any(|w| w == SECRET.as_bytes());
        ensure!(!kept, "{args:?} kept the secret in {}", file.display());
    }
    Ok(())
}

#[test]
fn files_that_only_root_may_read_stay_unread() -> anyhow::Result<()> {
    const NAME: &str = "files_that_only_root_may_read_stay_unread";
    skip_unless!(NAME, &NEEDS);
    let Some(attacker) = attacker(NAME)? else {
        return Ok(());
    };
    // A file that only root may read, and one in a folder that only root may enter.
    let vault = attacker.path("vault");
    fs::create_dir(&vault)?;
    mode(&vault, 0o700)?;
    let text = format!("{{\"x\": \"{SECRET}\"}}\n").repeat(200);
    let secrets = [attacker.path("secret.json"), vault.join("inside.json")];
    for (secret, bits) in secrets.iter().zip([0o600, 0o644]) {
        fs::write(secret, &text)?;
        mode(secret, bits)?;
    }
    fs::write(attacker.path("good.folded"), "main 1\n")?;
    let good = attacker.path("good.folded").display().to_string();
    for secret in &secrets {
        let secret = secret.to_str().context("a path in UTF-8")?;
        for layout in ["pvc", "xe2", "xe3p", "capture"] {
            let spec = format!("{layout}:{secret}");
            let record = ["-d", "1", "--replay-device", &spec, "--save-device", "kept"];
            gains_nothing(&attacker, &[&record[..], &["-o", "x.folded"]].concat())?;
        }
        let modules = ["stalls", &good, "--modules", secret];
        for args in [
            &["report", secret, "-o", "x.svg"][..],
            &["report", secret, "-o", "x.json"],
            &["diff", secret, &good],
            &["diff", &good, secret],
            &["analyze", secret, "-o", "y.json"],
            &["analyze", secret, "-c", secret],
            &["stalls", secret],
            &modules,
            &["trace", "--from", secret],
            &["probes", "check", secret],
            &["acelyzer", "-i", secret, "-o", "z.json"],
            &["-d", "1", "--bpf-object", secret, "-o", "x.folded"],
            &["-d", "1", "--cgroup", secret, "-o", "x.folded"],
        ] {
            gains_nothing(&attacker, args)?;
        }
    }
    // Not even that it is there.
    let pattern = vault.join("*.json").display().to_string();
    gains_nothing(&attacker, &["analyze", &pattern])?;
    Ok(())
}

#[test]
fn commands_are_found_and_executed_with_the_callers_rights() -> anyhow::Result<()> {
    const NAME: &str = "commands_are_found_and_executed_with_the_callers_rights";
    skip_unless!(NAME, &NEEDS);
    let Some(attacker) = attacker(NAME)? else {
        return Ok(());
    };
    let vault = attacker.path("vault");
    fs::create_dir(&vault)?;
    mode(&vault, 0o700)?;
    let program = vault.join("program");
    fs::copy("/bin/true", &program)?;
    let program = program.to_str().context("a path in UTF-8")?;
    let output = attacker.run(["-o", "x.folded", program])?;
    ensure!(output.status.code() == Some(126), "{}", said(&output));
    let output = attacker.run(["-o", "x.folded", "/bin/true"])?;
    ensure!(output.status.success(), "{}", said(&output));
    Ok(())
}

#[test]
fn results_go_only_where_the_caller_may_write() -> anyhow::Result<()> {
    const NAME: &str = "results_go_only_where_the_caller_may_write";
    skip_unless!(NAME, &NEEDS);
    let Some(attacker) = attacker(NAME)? else {
        return Ok(());
    };
    let roots = attacker.path("roots");
    fs::create_dir(&roots)?;
    fs::write(roots.join("old.folded"), "old 1\n")?;
    let place = |name: &str| roots.join(name).display().to_string();
    fs::write(attacker.path("stalls"), [0; 64])?;
    let replay = format!("pvc:{}", attacker.path("stalls").display());
    for args in [
        &["-d", "1", "-o", &place("x.folded")][..],
        &["-d", "1", "-o", &place("old.folded")],
        &["-d", "1", "-o", &place("x.json")],
        &["-d", "1", "--every", "1s", "-o", &place("windows")],
        &["-d", "1", "--every", "1s", "-o", &place("")],
        &["trace", "-d", "1", "-o", &place("x.txt")],
    ] {
        gains_nothing(&attacker, args)?;
    }
    let (x, kept) = (place("x.folded"), place("kept"));
    attacker.run([
        "-d",
        "1",
        "--replay-device",
        &replay,
        "--save-device",
        &kept,
    ])?;
    gains_nothing(&attacker, &["diff", "/dev/null", "/dev/null", "-o", &x])?;
    let left = files(&roots)?;
    ensure!(left == [roots.join("old.folded")], "{left:?}");
    ensure!(fs::read(&left[0])? == b"old 1\n");
    ensure!(!roots.join("kept").exists());
    Ok(())
}

/// A folder in which user 65534 planted things, and what root keeps elsewhere.
struct Planted {
    dir: TempDir,
}

impl Planted {
    fn new() -> anyhow::Result<Self> {
        let planted = Self {
            dir: TempDir::new()?,
        };
        mode(planted.dir.path(), 0o755)?;
        for folder in ["roots", "strangers"] {
            fs::create_dir(planted.path(folder))?;
        }
        fs::write(planted.path("a.folded"), "main;f 1\n")?;
        fs::write(planted.path("roots/config"), "root's own\n")?;
        chown(planted.path("strangers"), Some(NOBODY), Some(NOBODY))?;
        planted.link("../roots/config", "strangers/link.svg")?;
        planted.link("../roots/new.svg", "strangers/dangling.svg")?;
        planted.link("../roots", "strangers/folder")?;
        checked(Command::new("mkfifo").arg(planted.path("strangers/pipe.svg")))?;
        lchown(planted.path("strangers/pipe.svg"), Some(NOBODY), None)?;
        Ok(planted)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn link(&self, target: &str, name: &str) -> anyhow::Result<()> {
        symlink(target, self.path(name))?;
        Ok(lchown(self.path(name), Some(NOBODY), Some(NOBODY))?)
    }

    /// `aiprof diff` with an output, as root, called by sudo or not.
    fn diff(&self, output: &str, sudo: Option<u32>) -> anyhow::Result<Output> {
        let mut command = Command::new("timeout");
        command.args(["-k", "1", "30"]).arg(binary()?).arg("diff");
        command.args([self.path("a.folded"), self.path("a.folded")]);
        command.arg("-o").arg(self.path(output));
        command.env_remove("SUDO_UID").env_remove("SUDO_GID");
        if let Some(uid) = sudo {
            let uid = uid.to_string();
            command.env("SUDO_UID", &uid).env("SUDO_GID", &uid);
        }
        Ok(command.stdin(Stdio::null()).output()?)
    }
}

#[test]
fn what_a_stranger_planted_leads_root_nowhere() -> anyhow::Result<()> {
    const NAME: &str = "what_a_stranger_planted_leads_root_nowhere";
    skip_unless!(NAME, &[Need::Root]);
    let planted = Planted::new()?;
    for sudo in [None, Some(1234)] {
        for name in ["link.svg", "dangling.svg", "pipe.svg", "folder/x.svg"] {
            let output = planted.diff(&format!("strangers/{name}"), sudo)?;
            let said = said(&output);
            ensure!(output.status.code() == Some(1), "{name}: {said}");
            ensure!(said.contains("belongs to user 65534"), "{name}: {said}");
        }
        let config = planted.path("roots/config");
        ensure!(fs::read(&config)? == b"root's own\n");
        ensure!(fs::metadata(&config)?.uid() == 0, "given away");
        ensure!(files(&planted.path("roots"))? == [config]);
    }
    // So it is with a folder for what devices hand out.
    fs::write(planted.path("stalls"), [0; 64])?;
    let kept = planted.path("strangers/folder").display().to_string();
    let replay = format!("pvc:{}", planted.path("stalls").display());
    let mut record = Command::new(binary()?);
    record.args(["-d", "0.3", "--replay-device", &replay]);
    record.args([
        "--save-device",
        &kept,
        "--format",
        "folded",
        "-o",
        "/dev/null",
    ]);
    let output = record.stdin(Stdio::null()).output()?;
    let text = said(&output);
    ensure!(text.contains("belongs to user 65534"), "{text}");
    ensure!(files(&planted.path("roots"))? == [planted.path("roots/config")]);
    // Whoever called sudo may do everything: their links are followed.
    let output = planted.diff("strangers/link.svg", Some(NOBODY))?;
    ensure!(output.status.success(), "{}", said(&output));
    ensure!(planted.path("strangers/link.svg").is_symlink());
    ensure!(fs::read(planted.path("roots/config"))?.starts_with(b"<?xml"));
    // So are root's own, and a stranger's file is replaced, not written to.
    symlink("../roots/own.svg", planted.path("strangers/own.svg"))?;
    let output = planted.diff("strangers/own.svg", None)?;
    ensure!(output.status.success(), "{}", said(&output));
    ensure!(fs::metadata(planted.path("roots/own.svg"))?.uid() == 0);
    fs::write(planted.path("strangers/file.svg"), "planted")?;
    fs::hard_link(
        planted.path("strangers/file.svg"),
        planted.path("strangers/held"),
    )?;
    chown(planted.path("strangers/file.svg"), Some(NOBODY), None)?;
    let output = planted.diff("strangers/file.svg", None)?;
    ensure!(output.status.success(), "{}", said(&output));
    ensure!(fs::metadata(planted.path("strangers/file.svg"))?.uid() == 0);
    ensure!(fs::read(planted.path("strangers/held"))? == b"planted");
    Ok(())
}

#[test]
fn pruning_takes_only_what_is_our_own() -> anyhow::Result<()> {
    const NAME: &str = "pruning_takes_only_what_is_our_own";
    skip_unless!(NAME, &[Need::Root]);
    let planted = Planted::new()?;
    let folder = planted.path("strangers");
    let window = |n: u32| folder.join(format!("aiprof-2020010{n}T000000Z.folded"));
    symlink("../roots/config", window(1))?;
    lchown(window(1), Some(NOBODY), Some(NOBODY))?;
    fs::write(window(2), "a stranger's")?;
    chown(window(2), Some(NOBODY), None)?;
    fs::create_dir(window(3))?;
    fs::write(window(4), "ours")?;
    let output = Command::new(binary()?)
        .args(["-q", "-d", "2500ms", "--every", "1s", "--keep", "1"])
        .args(["--format", "folded", "-o"])
        .arg(&folder)
        .env_remove("SUDO_UID")
        .output()?;
    ensure!(output.status.success(), "{}", said(&output));
    ensure!(window(1).is_symlink() && window(2).exists() && window(3).exists());
    ensure!(!window(4).exists(), "our own oldest is still there");
    let ours = |path: &PathBuf| path.metadata().is_ok_and(|m| m.is_file() && m.uid() == 0);
    let mut new = files(&folder)?;
    new.retain(|path| ours(path) && !path.is_symlink());
    ensure!(new.len() == 1, "{new:?}");
    ensure!(fs::read(planted.path("roots/config"))? == b"root's own\n");
    Ok(())
}

#[test]
fn what_a_killed_run_left_is_cleared_up_by_the_next() -> anyhow::Result<()> {
    const NAME: &str = "what_a_killed_run_left_is_cleared_up_by_the_next";
    skip_unless!(NAME, &[Need::Root]);
    let planted = Planted::new()?;
    let temporaries = || -> anyhow::Result<Vec<PathBuf>> {
        let mut found = files(&planted.path("roots"))?;
        found.retain(|path| path.to_string_lossy().contains("/.aiprof-"));
        Ok(found)
    };
    let start = |n: usize| -> anyhow::Result<Child> {
        let mut command = Command::new(binary()?);
        command
            .args(["-q", "-o"])
            .arg(planted.path("roots/x.folded"));
        let child = Child::start(command.stdin(Stdio::null()))?;
        while temporaries()?.len() < n {
            std::thread::yield_now();
        }
        Ok(child)
    };
    drop(start(1)?); // killed
    let dead = temporaries()?;
    ensure!(dead.len() == 1, "{dead:?}");
    let _living = start(1)?;
    while temporaries()? == dead {
        std::thread::yield_now();
    }
    let output = planted.diff("roots/y.svg", None)?;
    ensure!(output.status.success(), "{}", said(&output));
    let left = temporaries()?;
    ensure!(left.len() == 1 && left != dead, "{dead:?}, {left:?}");
    Ok(())
}

#[test]
fn a_result_that_nobody_can_get_is_an_error_at_once() -> anyhow::Result<()> {
    const NAME: &str = "a_result_that_nobody_can_get_is_an_error_at_once";
    skip_unless!(NAME, &[Need::Root]);
    let planted = Planted::new()?;
    let a = planted.path("a.folded").display().to_string();
    let shell = |script: &str| {
        Command::new("sh")
            .args(["-c", script])
            .arg(binary()?)
            .arg(&a)
            .current_dir(planted.dir.path())
            .stdin(Stdio::null())
            .output()
            .context("running sh")
    };
    for command in [
        "-d 1h",
        "diff $1 $1",
        "trace -d 1h",
        "doctor",
        "probes list",
        "man",
    ] {
        for closed in [">&-", "1</dev/null"] {
            let output = shell(&format!("exec \"$0\" {command} {closed}"))?;
            let said = said(&output);
            ensure!(
                output.status.code() == Some(1),
                "{command} {closed}: {said}"
            );
            ensure!(said.contains("stdout is closed"), "{command}: {said}");
        }
    }
    let output = shell("exec \"$0\" diff $1 $1 -o d.svg >&-")?;
    ensure!(output.status.success(), "{}", said(&output));
    // Descriptors that the shell gave are written to as they are.
    let output = shell("exec 3>three.txt; \"$0\" diff $1 $1 -o /dev/fd/3 && wc -c <three.txt");
    let said_so = said(&output?);
    ensure!(
        said_so.contains("names no format") || !said_so.is_empty(),
        "{said_so}"
    );
    let output = shell("ulimit -n 20; exec \"$0\" -d 1 -o x.folded")?;
    ensure!(!output.status.success(), "{}", said(&output));
    ensure!(said(&output).contains("ulimit -n"), "{}", said(&output));
    Ok(())
}

#[test]
fn a_setuid_program_file_is_refused() -> anyhow::Result<()> {
    const NAME: &str = "a_setuid_program_file_is_refused";
    skip_unless!(NAME, &NEEDS);
    let Some(attacker) = attacker(NAME)? else {
        return Ok(());
    };
    mode(&attacker.aiprof(), 0o4755)?;
    for args in [&["-d", "1", "-o", "x.folded"][..], &["doctor"], &["man"]] {
        let output = attacker.run(args)?;
        ensure!(!output.status.success(), "{}", said(&output));
        ensure!(said(&output).contains("setuid"), "{}", said(&output));
    }
    Ok(())
}

/// What each thread may do, as strace saw it change.
#[derive(Default)]
struct Rights {
    /// Whether a thread has capabilities in effect.
    raised: BTreeMap<u32, bool>,
    /// System calls that another thread's interrupted.
    unfinished: BTreeMap<u32, String>,
    /// Files opened with capabilities.
    opened: Vec<String>,
    /// Files opened without.
    plain: Vec<String>,
}

impl Rights {
    fn line(&mut self, line: &str) -> Option<()> {
        let (tid, call) = line.split_once(' ')?;
        let tid = tid.parse().ok()?;
        let call = call.trim_start();
        if let Some(begun) = call.strip_suffix("<unfinished ...>") {
            // The rights are those of the begin.
            self.unfinished.insert(tid, begun.to_owned());
            return Some(());
        }
        let whole = match call.split_once(" resumed>") {
            Some((_, rest)) => self.unfinished.remove(&tid)? + rest,
            None => call.to_owned(),
        };
        self.call(tid, &whole)
    }

    fn call(&mut self, tid: u32, call: &str) -> Option<()> {
        let (name, rest) = call.split_once('(')?;
        let result: i64 = {
            let (_, result) = call.rsplit_once(" = ")?;
            result.split([' ', '<']).next()?.parse().ok()?
        };
        match name {
            "execve" if result == 0 => {
                self.raised.insert(tid, rest.contains("/aiprof\""));
            }
            "capset" if result == 0 => {
                let (_, effective) = rest.split_once("effective=")?;
                let none = effective.starts_with("0,") || effective.starts_with("0x0,");
                self.raised.insert(tid, !none);
            }
            "clone" | "clone3" | "fork" | "vfork" => {
                let raised = self.raised.get(&tid).copied().unwrap_or(true);
                self.raised
                    .entry(u32::try_from(result).ok()?)
                    .or_insert(raised);
            }
            // A place only: nothing of the file is opened.
            "open" | "openat" | "openat2" if rest.contains("O_PATH") => {}
            "open" | "openat" | "openat2" | "creat" | "mkdirat" | "unlinkat" | "renameat" => {
                let path = rest.split('"').nth(1)?;
                let base = rest
                    .split_once('<')
                    .map_or("", |(_, b)| b.split('>').next().unwrap_or(""));
                let full = match (path.starts_with('/'), rest.starts_with("AT_FDCWD")) {
                    (true, _) | (_, true) => path.to_owned(),
                    _ => format!("{base}/{path}"),
                };
                match self.raised.get(&tid).copied().unwrap_or(true) {
                    true => self.opened.push(full),
                    false => self.plain.push(full),
                }
            }
            _ => {}
        }
        Some(())
    }
}

/// Whether capabilities are for this: what the kernel shows, mapped files and those
/// with their names, and the libraries that the linker loads before main.
fn is_for_capabilities(path: &str) -> bool {
    let kernel = ["/proc", "/sys", "/dev/"]
        .iter()
        .any(|p| path.starts_with(p));
    let linker = path.starts_with("/etc/ld.so");
    let is_elf = || {
        let mut head = [0; 4];
        let file = fs::File::open(path);
        file.is_ok_and(|mut file| {
            std::io::Read::read_exact(&mut file, &mut head).is_ok() && head == *b"\x7fELF"
        })
    };
    // Files of other processes: checked for owner, type and size when they are opened.
    let others = [
        "/tmp/perf-",
        "/jit-",
        "/spyre-metrics",
        ".debug",
        ".gnu_debugdata",
    ];
    let is_others = path == "/tmp" || others.iter().any(|part| path.contains(part));
    let is_library = || [".so", "/lib", "/usr/lib"].iter().any(|p| path.contains(p));
    kernel || linker || is_others || is_elf() || (is_library() && !Path::new(path).exists())
}

/// What aiprof, started by `command`, keeps of two programs of root's that launch the
/// kernel [`KERNEL`]: one has it when the recording starts, one makes it while it runs.
fn capture_of_launches(command: &mut Command, file: &Path) -> anyhow::Result<Vec<u8>> {
    let shop = Workshop::new()?;
    let recording = Recording::of(Module::new(vec![Kernel::new(KERNEL, 100_000)]));
    let _fifos = recording.fifos(&shop)?;
    let machine = recording.machine(&shop)?;
    let program = |more: &str| -> anyhow::Result<Child> {
        let mode = [
            "launch",
            "launches=50",
            "pause_us=1000",
            "block=1",
            "sync=1",
            more,
        ];
        let mut command = machine.command(&build_paths()?);
        command.args(recording.arguments(&shop, &mode)?);
        Child::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))
    };
    let mut early = program("wait=1")?;
    ensure!(early.read_line()?.trim() == "ready", "not ready");
    let log = shop.path("log");
    let stderr = fs::File::create(&log)?;
    command.arg("-o").arg(file).stdin(Stdio::null());
    let mut aiprof = Child::start(command.stdout(Stdio::null()).stderr(stderr))?;
    let end = Instant::now() + Duration::from_secs(60);
    while !fs::read_to_string(&log)?.contains("recording") {
        ensure!(Instant::now() < end, "{}", fs::read_to_string(&log)?);
        std::thread::sleep(Duration::from_millis(20));
    }
    program("wait=0")?.output()?;
    early.write_line("go")?;
    early.output()?;
    aiprof.signal("INT")?;
    let ended = aiprof.wait(Duration::from_secs(30))?;
    let said = fs::read_to_string(&log)?;
    ensure!(ended.success(), "{ended}: {said}");
    let bytes = fs::read(file)?;
    let stream = bytes.get(MAGIC..).context("an empty capture")?;
    Ok([zstd::decode_all(stream)?, said.into_bytes()].concat())
}

const KERNEL: &str = "kernel_of_root_alone";
/// Bytes of a capture before its zstd stream.
const MAGIC: usize = 8;

#[test]
fn texts_of_others_enter_no_capture() -> anyhow::Result<()> {
    const NAME: &str = "texts_of_others_enter_no_capture";
    let needs = [NEEDS[0], NEEDS[1], Need::Tool("g++"), Need::Tool("mkfifo")];
    skip_unless!(NAME, &needs);
    let Some(attacker) = attacker(NAME)? else {
        return Ok(());
    };
    let has = |kept: &[u8], text: &str| kept.windows(text.len()).any(|w| w == text.as_bytes());
    let launch = "zeCommandListAppendLaunchKernel";
    // Root may have them: this shows that the test can see them.
    let file = attacker.path("root.aiprof");
    let kept = capture_of_launches(&mut Command::new(binary()?), &file)?;
    ensure!(has(&kept, launch), "root has no launches");
    ensure!(has(&kept, KERNEL), "root has no names of kernels");
    let file = attacker.home().join("own.aiprof");
    let kept = capture_of_launches(&mut attacker.command(&attacker.aiprof()), &file)?;
    ensure!(has(&kept, launch), "the user has no launches");
    ensure!(!has(&kept, KERNEL), "the user has names of root's kernels");
    ensure!(
        has(&kept, "data of other users' processes, not read"),
        "not counted"
    );
    Ok(())
}

#[test]
fn capabilities_open_only_what_they_are_for() -> anyhow::Result<()> {
    const NAME: &str = "capabilities_open_only_what_they_are_for";
    let needs = [NEEDS[0], NEEDS[1], Need::Tool("strace")];
    skip_unless!(NAME, &needs);
    let Some(attacker) = attacker(NAME)? else {
        return Ok(());
    };
    fs::write(attacker.path("stalls"), [0; 64])?;
    let log = attacker.path("strace");
    let replay = format!("pvc:{}", attacker.path("stalls").display());
    let output = Command::new("strace")
        .args(["-f", "-y", "-u", "nobody", "-s", "4096", "-o"])
        .arg(&log)
        .args([
            "-e",
            "trace=execve,capset,clone,clone3,fork,vfork,open,openat,openat2,\
                creat,mkdirat,unlinkat,renameat",
        ])
        .arg(attacker.aiprof())
        .args([
            "-d",
            "1",
            "--replay-device",
            &replay,
            "--save-device",
            "kept",
        ])
        .args(["-o", "out.json", "/bin/sleep", "0.3"])
        .current_dir(attacker.home())
        .output()?;
    ensure!(output.status.success(), "{}", said(&output));
    let mut rights = Rights::default();
    for line in fs::read_to_string(&log)?.lines() {
        rights.line(line);
    }
    let wrong: Vec<_> = rights
        .opened
        .iter()
        .filter(|path| !is_for_capabilities(path))
        .collect();
    ensure!(wrong.is_empty(), "opened with capabilities: {wrong:#?}");
    // This shows that the test sees opened files.
    let home = attacker.home().display().to_string();
    let has = |paths: &[String], part: &str| paths.iter().any(|path| path.contains(part));
    ensure!(has(&rights.plain, "/stalls"), "{:#?}", rights.plain);
    ensure!(has(&rights.plain, "kept/device-"), "{:#?}", rights.plain);
    ensure!(has(&rights.plain, &home), "{:#?}", rights.plain);
    ensure!(has(&rights.opened, "/maps"), "{:#?}", rights.opened);
    Ok(())
}
