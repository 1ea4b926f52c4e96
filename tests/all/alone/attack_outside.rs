//! Attacks by somebody who did not write what they are against. Another user maps what is not his,
//! leaves behind what costs memory, has names looked up that take work, and lies about who owns a
//! file. Root's programs keep their stacks and names. The recording keeps its size, and ends when
//! it is asked to.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use aiprof_tests::aiprof::{Aiprof, binary};
use aiprof_tests::attack::{
    STRANGER, Witness, Yard, as_stranger, hang_fs, interrupt, is_prompt, start_hang_fs,
};
use aiprof_tests::attacker::{Attacker, NOBODY, as_nobody, mode};
use aiprof_tests::child::Child;
use aiprof_tests::folded::Folded;
use aiprof_tests::monitor::perf_events_of;
use aiprof_tests::need::{Need, skip, skip_unless};
use aiprof_tests::workload::checked;

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("cc")];
const FUSE: Need = Need::Path("/dev/fuse");
/// A file system in memory that users may write to.
const SHM: &str = "/dev/shm";
const NO_FUSE: &str = "users may not mount FUSE and overlays here";
/// How long a state may take to come.
const STATE: Duration = Duration::from_secs(20);
/// CPU time that a witness is given, seconds, and the samples to judge it by.
const WORK: f64 = 1.5;
const LEAST: u64 = 100;
/// Samples before a witness that has just started is known: a third of a second, where others
/// start programs too. An attack that works costs all three hundred.
const UNKNOWN: u64 = 60;

/// Waits for a state; `false`: it does not come in that time.
fn comes(most: Duration, is_so: impl Fn() -> bool) -> bool {
    let end = Instant::now() + most;
    while !is_so() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// State and parent of a process, and the CPU time it used, seconds.
fn stat(pid: u32) -> Option<(String, u32, f64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    let (state, parent) = (fields.next()?.to_owned(), fields.next()?.parse().ok()?);
    let mut times = fields.skip(9).map_while(|t| t.parse::<f64>().ok());
    // Clock ticks are hundredths of a second for programs.
    Some((state, parent, (times.next()? + times.next()?) / 100.0))
}

/// Kibibytes that a line of a file of /proc speaks of.
fn kib(file: &str, line: &str) -> anyhow::Result<u64> {
    let text = fs::read_to_string(file)?;
    let rest = text.lines().find_map(|l| l.strip_prefix(line));
    let number = rest.and_then(|rest| rest.split_ascii_whitespace().next());
    Ok(number
        .with_context(|| format!("{line} in {file}"))?
        .parse()?)
}

/// A process and its children, grandchildren and so on.
fn family(first: u32) -> BTreeSet<u32> {
    let mut family = BTreeSet::from([first]);
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: Vec<(u32, u32)> = pids.filter_map(|pid| Some((pid, stat(pid)?.1))).collect();
    loop {
        let known = family.len();
        let children = parents.iter().filter(|(_, parent)| family.contains(parent));
        let children: Vec<u32> = children.map(|(pid, _)| *pid).collect();
        family.extend(children);
        if family.len() == known {
            return family;
        }
    }
}

/// A recording of the machine.
struct Recording {
    child: Child,
    out: PathBuf,
    log: PathBuf,
}

impl Recording {
    fn start(yard: &Yard) -> anyhow::Result<Self> {
        let (out, log) = (yard.path("out.folded"), yard.path("stderr"));
        let aiprof = Aiprof::with(["-F", "199", "--weight", "samples", "-o"]);
        let mut command = aiprof.option(&out).to_command()?;
        let command = command.stdout(Stdio::null()).stderr(File::create(&log)?);
        let child = Child::start(command)?;
        let pid = child.pid();
        let begun = comes(STATE, || perf_events_of(pid) > 0);
        ensure!(begun, "the recording does not begin");
        Ok(Self { child, out, log })
    }

    fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Waits until `count` processes that read for it wait for a file system that does not answer.
    /// Goes on after some time if they do not.
    fn wait_for_stuck(&self, count: usize) {
        let is_stuck = |pid: &u32| stat(*pid).is_some_and(|(state, ..)| state == "D");
        let stuck = || {
            family(self.pid())
                .iter()
                .filter(|pid| is_stuck(pid))
                .count()
        };
        // One that is looked at twice still waits for it, and not for a disk.
        comes(STATE / 4, || {
            stuck() >= count && {
                std::thread::sleep(Duration::from_millis(200));
                stuck() >= count
            }
        });
    }

    /// Ends it by SIGINT; gives how long that took and the profile, which must have the
    /// stacks of the witnesses.
    fn end(mut self, witnesses: &[&Witness]) -> anyhow::Result<(Duration, Folded)> {
        let took = interrupt(&mut self.child, Duration::from_secs(90))?;
        let said = fs::read_to_string(&self.log)?;
        let folded = Folded::parse(&fs::read_to_string(&self.out)?)?;
        for witness in witnesses {
            let checked = witness.check_met(&folded, LEAST, UNKNOWN);
            checked.map_err(|error| error.context(said.clone()))?;
        }
        Ok((took, folded))
    }
}

/// Lets a witness work for a while.
fn let_work(witness: &Witness) -> anyhow::Result<()> {
    let worked = || stat(witness.pid()).is_some_and(|(.., cpu)| cpu >= WORK);
    ensure!(comes(3 * STATE, worked), "the witness does not get to work");
    Ok(())
}

/// Starts something of the attacker's, and waits until it is done; see
/// `workloads/outsider.c`.
fn outsider(program: &Path, args: &[&str]) -> anyhow::Result<Child> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    let mut child = Child::start(as_stranger(command.stdout(Stdio::piped())))?;
    child.read_line()?;
    Ok(child)
}

fn build_outsider(yard: &Yard) -> anyhow::Result<PathBuf> {
    yard.build("outsider.c", "outsider", &[])
}

fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str().context("a path in UTF-8")
}

/// Another user maps a program of root's before root runs it, and then has reads of
/// his own files hang. Who was first is no reason to read root's program, or not, on
/// his account.
#[test]
fn what_a_stranger_mapped_first_is_read_for_root_all_the_same() -> anyhow::Result<()> {
    let name = "what_a_stranger_mapped_first_is_read_for_root_all_the_same";
    skip_unless!(&[NEEDS[0], NEEDS[1], FUSE]);
    is_prompt(|| {
        let yard = Yard::new()?;
        let program = yard.build("large.c", "large", &["-g"])?;
        let outsiders = build_outsider(&yard)?;
        let served = yard.build("twin.c", "served", &["-DNAME=hung_work", "-static"])?;
        let recording = Recording::start(&yard)?;
        let _first = outsider(&outsiders, &["map", "2", text(&program)?])?;
        let is_known = || {
            let fds = fs::read_dir(format!("/proc/{}/fd", recording.pid()));
            let fds = fds.into_iter().flatten().flatten();
            let mut targets = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
            targets.any(|target| target == program)
        };
        // Whether it is kept open is the recording's own affair.
        comes(STATE / 10, is_known);
        let mut hung = Vec::new();
        for n in 0..3 {
            let point = yard.path(&format!("point{n}"));
            fs::create_dir(&point)?;
            let command = [point.join("program"), PathBuf::from("600")];
            let mut command = hang_fs(&yard, "hang-open", &served, &point, &command)?;
            let Some(child) = start_hang_fs(&mut command)? else {
                skip(name, NO_FUSE);
                return Ok(None);
            };
            hung.push(child);
        }
        recording.wait_for_stuck(2);
        let witness = Witness::of(&program)?;
        let_work(&witness)?;
        let (took, _) = recording.end(&[&witness])?;
        Ok(Some(took))
    })
}

/// The same for names: another user's perf maps hang, and he has root's program
/// mapped, too, in many processes.
#[test]
fn what_a_stranger_has_mapped_too_is_named_for_root_all_the_same() -> anyhow::Result<()> {
    let name = "what_a_stranger_has_mapped_too_is_named_for_root_all_the_same";
    skip_unless!(&[NEEDS[0], NEEDS[1], FUSE]);
    is_prompt(|| {
        let yard = Yard::new()?;
        let program = yard.build("frames.c", "shared", &["-g"])?;
        let outsiders = build_outsider(&yard)?;
        let jit = yard.build("jit.c", "jit", &[])?;
        let map = yard.path("map");
        fs::write(&map, "1000 10 name\n")?;
        let recording = Recording::start(&yard)?;
        let mut hung = Vec::new();
        for _ in 0..3 {
            let command = [jit.as_os_str(), "600".as_ref(), "nomap".as_ref()];
            let mut command = hang_fs(&yard, "hang-open", &map, Path::new("/tmp"), &command)?;
            let Some(child) = start_hang_fs(&mut command)? else {
                skip(name, NO_FUSE);
                return Ok(None);
            };
            hung.push(child);
        }
        recording.wait_for_stuck(2);
        let _maps = outsider(&outsiders, &["map", "50", text(&program)?])?;
        let witness = Witness::of(&program)?;
        let_work(&witness)?;
        let (took, _) = recording.end(&[&witness])?;
        Ok(Some(took))
    })
}

/// Unmounts what fusermount3 mounted.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        // It may not have come to a mount.
        let mut umount = Command::new("umount");
        let _ = umount.arg("-l").arg(&self.0).stderr(Stdio::null()).status();
    }
}

/// Another user shows, in a root directory of his own, a debug file for root's program. It has the
/// program's build id and is owned by root, as a program that serves a file system can claim. He
/// has root's program mapped in many processes.
#[test]
fn no_debug_file_of_a_stranger_renames_functions_of_root() -> anyhow::Result<()> {
    let name = "no_debug_file_of_a_stranger_renames_functions_of_root";
    let tools = [Need::Tool("objcopy"), Need::Tool("fusermount3")];
    skip_unless!(&[NEEDS[0], NEEDS[1], FUSE, tools[0], tools[1]]);
    is_prompt(|| {
        const ID: &str = "cd0123456789abcdef0123456789abcdef012345";
        let yard = Yard::new()?;
        let program = yard.build("frames.c", "shared", &[&format!("-Wl,--build-id=0x{ID}")])?;
        let outsiders = build_outsider(&yard)?;
        let forged = yard.path("forged.debug");
        let mut objcopy = Command::new("objcopy");
        objcopy.arg("--prefix-symbols=forged_").arg(&program);
        checked(objcopy.arg(&forged))?;
        let outside = yard.strangers_dir("outside")?;
        let _mounted = Mounted(outside.clone());
        let recording = Recording::start(&yard)?;
        let mode = format!("root-{}", outside.display());
        let folder = Path::new("/usr/lib/debug/.build-id").join(&ID[..2]);
        let command = [outsiders.as_os_str(), "map".as_ref(), "50".as_ref()];
        let command = [&command[..], &[program.as_os_str()]].concat();
        let mut command = hang_fs(&yard, &mode, &forged, &folder, &command)?;
        let Some(mut maps) = start_hang_fs(&mut command)? else {
            skip(name, NO_FUSE);
            return Ok(None);
        };
        maps.read_line()?;
        let planted = format!(
            "/proc/{}/root{}/{}.debug",
            maps.pid(),
            folder.display(),
            &ID[2..]
        );
        ensure!(Path::new(&planted).is_file(), "{planted} is not there");
        let witness = Witness::of(&program)?;
        let_work(&witness)?;
        let pid = witness.pid();
        let (took, folded) = recording.end(&[&witness])?;
        let forged = folded
            .of_pid(pid)
            .filter(|l| l.frames.iter().any(|f| f.starts_with("forged_")));
        ensure!(forged.total() == 0, "{}", forged.excerpt(5));
        Ok(Some(took))
    })
}

/// Another user deletes programs that ran: what they take of memory comes back, though
/// a recording goes on.
#[test]
fn deleted_programs_that_have_ended_take_no_memory() -> anyhow::Result<()> {
    let name = "deleted_programs_that_have_ended_take_no_memory";
    const PROGRAMS: u64 = 24;
    const MIB: u64 = 32;
    skip_unless!(&[NEEDS[0], NEEDS[1], Need::Path(SHM)]);
    is_prompt(|| {
        let yard = Yard::new()?;
        let outsiders = build_outsider(&yard)?;
        // Some machines allow no programs there.
        let dir = tempfile::Builder::new().tempdir_in(SHM)?;
        chown(dir.path(), Some(STRANGER), Some(STRANGER))?;
        let taken = || kib("/proc/meminfo", "Shmem:").map_or(0, |kib| kib >> 10);
        let available = kib("/proc/meminfo", "MemAvailable:")? >> 10;
        if available < 4 * PROGRAMS * MIB {
            skip(name, "needs 3 GiB of memory");
            return Ok(None);
        }
        let before = taken();
        let recording = Recording::start(&yard)?;
        let (programs, mib) = (PROGRAMS.to_string(), MIB.to_string());
        let pin = ["pin", text(dir.path())?, &programs, &mib];
        let mut command = Command::new(&outsiders);
        let done = as_stranger(command.args(pin).stdin(Stdio::null())).output()?;
        if !done.status.success() {
            skip(name, &String::from_utf8_lossy(&done.stderr));
            return Ok(None);
        }
        // The programs and whoever started them have ended, and their files have no name.
        let allowed = before + PROGRAMS * MIB / 4;
        let is_free = comes(STATE / 4, || taken() <= allowed);
        let left = taken();
        let witness = Witness::start(&yard)?;
        let_work(&witness)?;
        let (took, _) = recording.end(&[&witness])?;
        ensure!(
            is_free,
            "{} MiB of {} are still taken 5 s after all that had them ended",
            left.saturating_sub(before),
            PROGRAMS * MIB
        );
        Ok(Some(took))
    })
}

/// Another user maps ever new files, whose paths are long.
#[test]
fn ever_new_files_do_not_fill_the_memory() -> anyhow::Result<()> {
    const FILES: &str = "100000";
    /// MiB: eight thousand files with all that is known of them.
    const MOST: u64 = 96;
    skip_unless!(&[NEEDS[0], NEEDS[1], Need::Path(SHM)]);
    is_prompt(|| {
        let yard = Yard::new()?;
        let outsiders = build_outsider(&yard)?;
        // There, the numbers of deleted files are not used again.
        let dir = tempfile::Builder::new().tempdir_in(SHM)?;
        chown(dir.path(), Some(STRANGER), Some(STRANGER))?;
        let recording = Recording::start(&yard)?;
        let status = format!("/proc/{}/status", recording.pid());
        let before = kib(&status, "RssAnon:")? >> 10;
        let _files = outsider(&outsiders, &["files", text(dir.path())?, FILES])?;
        let witness = Witness::start(&yard)?;
        let_work(&witness)?;
        let after = kib(&status, "RssAnon:")? >> 10;
        println!("{before} MiB before, {after} MiB after");
        let (took, _) = recording.end(&[&witness])?;
        ensure!(
            after <= before + MOST,
            "{before} MiB before, {after} MiB after"
        );
        Ok(Some(took))
    })
}

/// Programs of another user whose names take a second of work each. Their debug files have to be
/// read from begin to end before it is clear that they are none. They wait their turn behind all
/// others, and the end of the recording does not wait for them.
#[test]
fn names_that_take_work_are_not_waited_for() -> anyhow::Result<()> {
    const PROGRAMS: usize = 60;
    skip_unless!(&[NEEDS[0], NEEDS[1], Need::Tool("objcopy")]);
    is_prompt(|| {
        let yard = Yard::new()?;
        let dir = yard.strangers_dir("programs")?;
        let flags = ["-g", "-Wl,--build-id=none"];
        let debug = yard.build("outsider.c", "programs/debug", &flags)?;
        let program = yard.path("program");
        let mut objcopy = Command::new("objcopy");
        objcopy.arg("--strip-all");
        objcopy.arg(format!("--add-gnu-debuglink={}", debug.display()));
        checked(objcopy.arg(&debug).arg(&program))?;
        fs::create_dir(dir.join(".debug"))?;
        fs::copy(&debug, dir.join(".debug/debug"))?;
        for debug in [debug, dir.join(".debug/debug")] {
            // Takes no room on the disk, and is another file than the link means.
            File::options().write(true).open(&debug)?.set_len(1 << 30)?;
            chown(&debug, Some(STRANGER), None)?;
        }
        let recording = Recording::start(&yard)?;
        let mut programs = Vec::new();
        for n in 0..PROGRAMS {
            let copy = dir.join(format!("p{n}"));
            fs::copy(&program, &copy)?;
            chown(&copy, Some(STRANGER), None)?;
            programs.push(outsider(&copy, &["work", "30"])?);
        }
        let witness = Witness::start(&yard)?;
        let_work(&witness)?;
        let (took, _) = recording.end(&[&witness])?;
        Ok(Some(took))
    })
}

/// Another user's mapping lists fill the pool that the stacks are walked by.
#[test]
fn lists_of_mappings_that_fill_the_pool() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    is_prompt(|| {
        let yard = Yard::new()?;
        let outsiders = build_outsider(&yard)?;
        let before = Witness::start(&yard)?;
        let recording = Recording::start(&yard)?;
        let _lists = outsider(&outsiders, &["lists", "100", "4096"])?;
        let program = yard.build("frames.c", "later", &["-g"])?;
        let later = Witness::of(&program)?;
        let_work(&later)?;
        let (took, _) = recording.end(&[&before, &later])?;
        Ok(Some(took))
    })
}

/// A program of another user's with code of its own making, ended when dropped.
struct Jit {
    child: Child,
    map: PathBuf,
}

impl Drop for Jit {
    fn drop(&mut self) {
        self.child.kill();
        // It may not have come to one.
        let _ = fs::remove_file(&self.map);
    }
}

/// A process of root's with code of its own making ends. Another user gets its number
/// for a process of his, and writes a perf map for that.
#[test]
fn who_gets_the_number_of_an_ended_process_names_nothing_of_it() -> anyhow::Result<()> {
    let name = "who_gets_the_number_of_an_ended_process_names_nothing_of_it";
    skip_unless!(&NEEDS);
    is_prompt(|| {
        let numbers: u32 = fs::read_to_string("/proc/sys/kernel/pid_max")?
            .trim()
            .parse()?;
        if numbers > 1 << 16 {
            skip(
                name,
                "takes too long to come round: more than 65,536 process ids",
            );
            return Ok(None);
        }
        let yard = Yard::new()?;
        let outsiders = build_outsider(&yard)?;
        let jit = yard.build("jit.c", "jit", &[])?;
        let recording = Recording::start(&yard)?;
        let mut ended = Child::start(
            Command::new(jit)
                .args(["1", "nomap"])
                .stdout(Stdio::piped()),
        )?;
        ended.output()?;
        let pid = ended.pid();
        let map = PathBuf::from(format!("/tmp/perf-{pid}.map"));
        let _jit = Jit {
            child: outsider(&outsiders, &["reuse", &pid.to_string()])?,
            map: map.clone(),
        };
        ensure!(map.exists(), "no map was planted");
        let witness = Witness::start(&yard)?;
        let_work(&witness)?;
        let (took, folded) = recording.end(&[&witness])?;
        let folded = folded.of_pid(pid);
        let own = folded.filter(|line| line.has("run_jit"));
        ensure!(own.total() >= LEAST, "{}", folded.excerpt(5));
        let planted = folded.filter(|line| line.frames.iter().any(|f| f.contains("planted_name")));
        ensure!(planted.total() == 0, "{}", planted.excerpt(5));
        Ok(Some(took))
    })
}

/// What reads for recordings, by its name; not that of other installations.
fn readers(name: &str) -> anyhow::Result<Vec<u32>> {
    let own = fs::canonicalize(binary()?)?;
    let entries = fs::read_dir("/proc")?.flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_it = |pid: &u32| {
        let of = |file: &str| PathBuf::from(format!("/proc/{pid}/{file}"));
        let comm = fs::read_to_string(of("comm")).unwrap_or_default();
        comm.trim_end() == name && fs::read_link(of("exe")).is_ok_and(|exe| exe == own)
    };
    Ok(pids.filter(is_it).collect())
}

/// Whoever kills the processes that read for a recording, and the one that starts them,
/// takes no names from what begins later.
#[test]
fn killed_readers_are_replaced() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    is_prompt(|| {
        let yard = Yard::new()?;
        let recording = Recording::start(&yard)?;
        let mut witnesses = Vec::new();
        for (n, name) in ["first", "second", "third", "fourth"]
            .into_iter()
            .enumerate()
        {
            let witness = Witness::of(&yard.build("frames.c", name, &["-g"])?)?;
            let_work(&witness)?;
            witnesses.push(witness);
            // Each time others: the copy that took the place of the killed one, the copy itself.
            let other = if n % 2 == 0 {
                "aiprof-reader"
            } else {
                "aiprof-standby"
            };
            for killed in ["aiprof-nursery", other] {
                let has = |name: &str| readers(name).is_ok_and(|found| !found.is_empty());
                let are_there = || {
                    ["aiprof-nursery", "aiprof-standby", killed]
                        .into_iter()
                        .all(has)
                };
                ensure!(comes(STATE, are_there), "no {killed}");
                let pids = readers(killed)?;
                let arguments = pids.iter().map(u32::to_string);
                // One of them may have ended by itself.
                let _ = Command::new("kill").arg("-KILL").args(arguments).status()?;
                let is_gone = |pid: &u32| stat(*pid).is_none_or(|(state, ..)| state == "Z");
                ensure!(comes(STATE, || pids.iter().all(is_gone)), "{killed} lives");
            }
        }
        let (took, _) = recording.end(&witnesses.iter().collect::<Vec<_>>())?;
        let is_over = || {
            ["aiprof-nursery", "aiprof-standby", "aiprof-reader"]
                .iter()
                .all(|name| readers(name).is_ok_and(|found| found.is_empty()))
        };
        ensure!(comes(STATE, is_over), "something is left behind");
        Ok(Some(took))
    })
}

/// Who may record has a perf map of his own lead to a file that only root may read.
#[test]
fn a_perf_map_leads_nobody_to_what_only_root_may_read() -> anyhow::Result<()> {
    const NAME: &str = "a_perf_map_leads_nobody_to_what_only_root_may_read";
    const SECRET: &str = "the-secret-that-only-root-may-read";
    skip_unless!(NAME, &[NEEDS[0], NEEDS[1], Need::Tool("setcap")]);
    let Some(attacker) = Attacker::new()? else {
        skip(NAME, "file capabilities have no effect here");
        return Ok(());
    };
    let vault = attacker.path("vault");
    fs::create_dir(&vault)?;
    mode(&vault, 0o700)?;
    let secret = vault.join("secret");
    fs::write(&secret, format!("1000 7fffffff0000 {SECRET}\n"))?;
    mode(&secret, 0o600)?;
    let yard = Yard::new()?;
    let jit = yard.build("jit.c", "jit", &[])?;
    let mut command = as_nobody(&jit);
    let mut child = Child::start(command.args(["600", "nomap"]).stdout(Stdio::piped()))?;
    child.read_line()?;
    let map = PathBuf::from(format!("/tmp/perf-{}.map", child.pid()));
    let _jit = Jit {
        child,
        map: map.clone(),
    };
    symlink(&secret, &map)?;
    lchown(&map, Some(NOBODY), Some(NOBODY))?;
    let output = attacker.run(["-d", "1", "-o", "x.folded"])?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{said}");
    let profile = fs::read_to_string(attacker.home().join("x.folded"))?;
    ensure!(
        profile.contains("run_jit"),
        "no samples of the program:\n{said}"
    );
    let told = profile.lines().find(|line| line.contains(SECRET));
    ensure!(told.is_none() && !said.contains(SECRET), "{told:?}\n{said}");
    Ok(())
}

/// Who started a program with capabilities looks into it and the processes that read
/// for it.
#[test]
fn nobody_looks_into_a_program_with_capabilities() -> anyhow::Result<()> {
    const NAME: &str = "nobody_looks_into_a_program_with_capabilities";
    skip_unless!(NAME, &[NEEDS[0], NEEDS[1], Need::Tool("setcap")]);
    let Some(attacker) = Attacker::new()? else {
        skip(NAME, "file capabilities have no effect here");
        return Ok(());
    };
    let yard = Yard::new()?;
    let spy = build_outsider(&yard)?;
    let witness = Witness::start(&yard)?;
    let mut command = attacker.command(&attacker.aiprof());
    let command = command.args(["-q", "-o", "x.folded"]).stdout(Stdio::null());
    let mut aiprof = Child::start(command)?;
    let pid = aiprof.pid();
    // The nursery, its copy, and one that reads at least.
    ensure!(comes(STATE, || perf_events_of(pid) > 0 && family(pid).len() > 3));
    let_work(&witness)?;
    let family = family(pid);
    println!("{} processes", family.len());
    let pids = family.iter().map(u32::to_string);
    let mut command = as_nobody(&spy);
    let seen = command.arg("spy").args(pids).output()?;
    let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
    ensure!(seen.is_empty(), "{seen}");
    // The spy sees what there is to see.
    let mut own = Child::start(as_nobody(Path::new("sleep")).arg("600"))?;
    let started = comes(STATE, || {
        fs::read_to_string(format!("/proc/{}/comm", own.pid())).is_ok_and(|c| c == "sleep\n")
    });
    ensure!(started, "sleep does not start");
    let seen = as_nobody(&spy)
        .arg("spy")
        .arg(own.pid().to_string())
        .output()?;
    let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
    ensure!(
        ["/mem", "/environ", "traced"]
            .iter()
            .all(|what| seen.contains(what)),
        "{seen}"
    );
    own.kill();
    interrupt(&mut aiprof, Duration::from_secs(30))?;
    Ok(())
}
