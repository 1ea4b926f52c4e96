//! Attacks on the naming of addresses, by another user: his files cost only his own names, and do
//! not keep aiprof from ending.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aiprof_tests::aiprof::Aiprof;
use aiprof_tests::attack::{
    STRANGER, Witness, Yard, as_stranger, hang_fs, interrupt, is_prompt, start_hang_fs,
};
use aiprof_tests::child::Child;
use aiprof_tests::folded::Folded;
use aiprof_tests::need::{Need, lacks, skip, skip_unless};

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("cc")];
/// Windows that must have the witness's names.
const WINDOWS: usize = 3;
/// Samples of the first of them before the witness is known: 60 ms. An attack that works
/// costs all of them, some three hundred.
const UNKNOWN: u64 = 30;

/// Records until this many windows are written, then interrupts; returns how long
/// that took.
fn run(yard: &Yard, dir: &Path, count: usize) -> anyhow::Result<Duration> {
    std::fs::create_dir(dir)?;
    let log = File::create(yard.path("stderr"))?;
    let mut command = Aiprof::with(["-F", "599", "--weight", "samples", "--every", "1s"])
        .option("--format")
        .option("folded")
        .option("-o")
        .option(dir)
        .to_command()?;
    let mut aiprof = Child::start(command.stdout(Stdio::null()).stderr(log))?;
    let end = Instant::now() + Duration::from_secs(180);
    while windows(dir)?.len() < count {
        anyhow::ensure!(aiprof.is_running(), "{}", said(yard)?);
        anyhow::ensure!(Instant::now() < end, "no windows: {}", said(yard)?);
        std::thread::sleep(Duration::from_millis(20));
    }
    interrupt(&mut aiprof, Duration::from_secs(60))
}

/// Records beside an attack. Returns the profiles of the first recording and aiprof's messages.
fn record(yard: &Yard, witness: &Witness) -> anyhow::Result<(Vec<Folded>, String)> {
    let (mut number, mut stderr) = (0, String::new());
    let dir = |number: u32| yard.path(&format!("windows{number}"));
    is_prompt(|| {
        number += 1;
        let took = run(yard, &dir(number), WINDOWS)?;
        if number == 1 {
            stderr = said(yard)?;
        }
        Ok(Some(took))
    })?;
    let read = |path: &PathBuf| Folded::parse(&std::fs::read_to_string(path)?);
    let all: Vec<Folded> = windows(&dir(1))?
        .iter()
        .map(read)
        .collect::<anyhow::Result<_>>()?;
    for (i, folded) in all.iter().take(WINDOWS).enumerate() {
        // It is known before sampling begins, unless the machine takes long to read.
        let checked = match i {
            0 => witness.check_met(folded, 50, UNKNOWN),
            _ => witness.check(folded, 50),
        };
        checked.map_err(|error| error.context(format!("window {i}; {stderr}")))?;
        let kernel = folded.filter(|line| line.in_kernel());
        let unknown = kernel.filter(|line| line.has("[unknown kernel]"));
        anyhow::ensure!(
            unknown.total() * 10 <= kernel.total(),
            "window {i}: kernel frames without names:\n{}",
            unknown.excerpt(5)
        );
    }
    Ok((all, stderr))
}

fn said(yard: &Yard) -> anyhow::Result<String> {
    Ok(std::fs::read_to_string(yard.path("stderr"))?)
}

fn windows(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "folded") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The attacker's program with code of its own making, and its perf map, replaced
/// by what `plant` makes of its path. Removes the map in the end.
struct Jit {
    child: Child,
    map: PathBuf,
}

impl Jit {
    fn start(yard: &Yard, plant: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<Self> {
        let jit = yard.build("jit.c", "jit", &[])?;
        let mut command = Command::new(jit);
        as_stranger(command.arg("600")).stdout(Stdio::piped());
        let mut child = Child::start(&mut command)?;
        child.read_line()?;
        let map = PathBuf::from(format!("/tmp/perf-{}.map", child.pid()));
        std::fs::remove_file(&map)?;
        plant(&map)?;
        Ok(Self { child, map })
    }

    /// The names that a profile has for its code.
    fn names(&self, folded: &[Folded]) -> Vec<String> {
        let own = folded.iter().flat_map(|f| f.of_pid(self.child.pid()).lines);
        let mut names: Vec<String> = own.flat_map(|line| line.frames).collect();
        names.sort();
        names.dedup();
        names
    }
}

impl Drop for Jit {
    fn drop(&mut self) {
        // Some attacks have none.
        let _ = std::fs::remove_file(&self.map);
    }
}

/// One attack by a perf map; returns the names in the attacker's stacks and aiprof's messages.
fn with_map(
    name: &str,
    plant: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<Option<(Vec<String>, String)>> {
    if lacks(name, &NEEDS) {
        return Ok(None);
    }
    let yard = Yard::new()?;
    let witness = Witness::start(&yard)?;
    let jit = Jit::start(&yard, plant)?;
    let (folded, stderr) = record(&yard, &witness)?;
    Ok(Some((jit.names(&folded), stderr)))
}

fn give(path: &Path, owner: u32) -> anyhow::Result<()> {
    Ok(chown(path, Some(owner), Some(owner))?)
}

/// A line of a map that names every address.
const EVERYTHING: &str = "1000 7fffffff0000 planted_name\n";

fn check_not_planted(names: &[String]) -> anyhow::Result<()> {
    anyhow::ensure!(names.iter().any(|n| n.contains("run_jit")), "{names:?}");
    anyhow::ensure!(
        !names.iter().any(|n| n.contains("planted_name")),
        "{names:?}"
    );
    Ok(())
}

#[test]
fn a_map_of_15_tb() -> anyhow::Result<()> {
    let done = with_map("a_map_of_15_tb", |map| {
        File::create(map)?.set_len(15 << 40)?;
        give(map, STRANGER)
    })?;
    let Some((_, stderr)) = done else {
        return Ok(());
    };
    anyhow::ensure!(stderr.contains("16492674416640 bytes"), "{stderr}");
    Ok(())
}

#[test]
fn a_map_that_is_a_pipe() -> anyhow::Result<()> {
    let done = with_map("a_map_that_is_a_pipe", |map| {
        let made = Command::new("mkfifo").arg(map).status()?;
        anyhow::ensure!(made.success(), "mkfifo");
        give(map, STRANGER)
    })?;
    let Some((_, stderr)) = done else {
        return Ok(());
    };
    anyhow::ensure!(stderr.contains("not a regular file"), "{stderr}");
    Ok(())
}

#[test]
fn a_map_that_is_a_link_to_another_users_file() -> anyhow::Result<()> {
    // Not root's, whose files everybody may believe.
    let secret = Path::new("/var/tmp/aiprof-attack-secret");
    let done = with_map("a_map_that_is_a_link_to_another_users_file", |map| {
        std::fs::write(secret, EVERYTHING)?;
        std::fs::set_permissions(secret, std::fs::Permissions::from_mode(0o600))?;
        give(secret, 12_345)?;
        Ok(symlink(secret, map)?)
    });
    let _ = std::fs::remove_file(secret);
    let Some((names, stderr)) = done? else {
        return Ok(());
    };
    anyhow::ensure!(stderr.contains("belongs to user 12345"), "{stderr}");
    check_not_planted(&names)
}

#[test]
fn a_map_of_another_user() -> anyhow::Result<()> {
    let done = with_map("a_map_of_another_user", |map| {
        std::fs::write(map, EVERYTHING)?;
        give(map, 12_345)
    })?;
    let Some((names, stderr)) = done else {
        return Ok(());
    };
    anyhow::ensure!(stderr.contains("belongs to user 12345"), "{stderr}");
    check_not_planted(&names)
}

#[test]
fn a_map_that_grows_while_it_is_read() -> anyhow::Result<()> {
    let mut writer = None;
    let done = with_map("a_map_that_grows_while_it_is_read", |map| {
        std::fs::write(map, vec![b'x'; 64 << 20])?;
        give(map, STRANGER)?;
        let mut file = File::options().append(true).open(map)?;
        let line = [b"1000 10 name\n".as_slice(); 4096].concat();
        writer = Some(std::thread::spawn(move || {
            // Until the limit of what it may fill, as fast as it reads.
            for _ in 0..8000 {
                if file.write_all(&line).is_err() {
                    return;
                }
            }
        }));
        Ok(())
    });
    if let Some(writer) = writer {
        anyhow::ensure!(writer.join().is_ok(), "the writer failed");
    }
    done.map(drop)
}

#[test]
fn a_map_that_is_never_read() -> anyhow::Result<()> {
    for mode in ["hang-lookup", "hang-open", "hang-read", "slow-100"] {
        let name = "a_map_that_is_never_read";
        skip_unless!(&NEEDS);
        let yard = Yard::new()?;
        let witness = Witness::start(&yard)?;
        let map = yard.path("map");
        // More than one request; what is read first names nothing that runs.
        let nothing = "10 10 planted_name\n".repeat(200_000);
        std::fs::write(&map, nothing + EVERYTHING)?;
        let jit = yard.build("jit.c", "jit", &[])?;
        let program = [jit.into_os_string(), "600".into(), "nomap".into()];
        let mut command = hang_fs(&yard, mode, &map, Path::new("/tmp"), &program)?;
        let Some(jit) = start_hang_fs(&mut command)? else {
            skip(name, "needs user namespaces, FUSE and overlays for users");
            return Ok(());
        };
        let (folded, stderr) = record(&yard, &witness)?;
        let first = folded.first().map(|f| f.of_pid(jit.pid()));
        let late = first.unwrap_or_default().filter(|line| {
            let late = format!("[symbols took too long perf-{}.map]", jit.pid());
            line.frames.contains(&late)
        });
        let others: Folded = folded[0].of_pid(jit.pid());
        anyhow::ensure!(late.total() > 0, "{mode}:\n{}\n{stderr}", others.excerpt(5));
    }
    Ok(())
}

#[test]
fn a_debug_file_that_is_never_read() -> anyhow::Result<()> {
    let name = "a_debug_file_that_is_never_read";
    skip_unless!(&[NEEDS[0], NEEDS[1], Need::Tool("objcopy")]);
    let yard = Yard::new()?;
    let witness = Witness::start(&yard)?;
    let point = yard.strangers_dir("program")?.join(".debug");
    let program = yard.build("frames.c", "program/stranger", &["-g"])?;
    let debug = yard.path("stranger.debug");
    let objcopy = |args: &[&str]| -> anyhow::Result<()> {
        let done = Command::new("objcopy").args(args).arg(&program).status()?;
        anyhow::ensure!(done.success(), "objcopy {args:?}");
        Ok(())
    };
    std::fs::copy(&program, &debug)?;
    let link = format!("--add-gnu-debuglink={}", debug.display());
    objcopy(&["--strip-all", &link])?;
    give(&program, STRANGER)?;
    std::fs::create_dir(&point)?;
    give(&point, STRANGER)?;
    let command = [program.as_os_str(), "600".as_ref()];
    let mut command = hang_fs(&yard, "hang-read", &debug, &point, &command)?;
    let Some(stranger) = start_hang_fs(&mut command)? else {
        skip(name, "needs user namespaces, FUSE and overlays for users");
        return Ok(());
    };
    let (folded, stderr) = record(&yard, &witness)?;
    let own = folded[0].of_pid(stranger.pid());
    anyhow::ensure!(own.total() > 0, "no samples: {stderr}");
    Ok(())
}

#[test]
fn debug_information_that_is_cut_off_while_it_is_read() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let yard = Yard::new()?;
    let witness = Witness::start(&yard)?;
    let program = yard.build("frames.c", "stranger", &["-g"])?;
    let whole = std::fs::read(&program)?;
    let mut command = Command::new(&program);
    as_stranger(command.arg("600")).stdout(Stdio::piped());
    let mut child = Child::start(&mut command)?;
    child.read_line()?;
    // The file of a running program cannot be written to; its twin can.
    let twin = yard.path("twin");
    std::fs::copy(&program, &twin)?;
    let mut command = Command::new("/lib64/ld-linux-x86-64.so.2");
    as_stranger(command.arg(&twin).arg("600")).stdout(Stdio::piped());
    let mut mapped = Child::start(&mut command)?;
    mapped.read_line()?;
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let cutter = scope.spawn(|| -> std::io::Result<()> {
            let file = File::options().write(true).open(&twin)?;
            let code = whole.len() as u64 / 2;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                file.set_len(code)?;
                file.set_len(whole.len() as u64)?;
            }
            Ok(())
        });
        let recorded = record(&yard, &witness);
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        let cut = cutter
            .join()
            .map_err(|_| anyhow::anyhow!("the cutter failed"))?;
        recorded.map(drop)?;
        Ok(cut?)
    })
}
