//! Attacks on the probes of runtimes, played as another user: floods of libraries
//! and of processes, and arguments in pages that never come. What root's own
//! programs launch is recorded all the same, and aiprof ends when it should.

use std::collections::BTreeMap;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use aiprof_tests::aiprof::{binary, lost};
use aiprof_tests::attack::{
    STRANGER, Witness, Yard, as_stranger, hang_fs, hung_program, interrupt, is_prompt,
    start_hang_fs, stranger,
};
use aiprof_tests::child::Child;
use aiprof_tests::folded::{Folded, base};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::states::States;
use aiprof_tests::workload::checked;

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("cc")];
/// Copies of a library; somebody who tries things has a handful.
const COPIES: u32 = 600;
/// Functions of each copy.
const FUNCTIONS: usize = 120;
/// How much later than asked a recording may end.
const LATE: Duration = Duration::from_millis(1500);

/// The kernel's log lines about probes.
fn complaints() -> anyhow::Result<Vec<String>> {
    let log = checked(&mut Command::new("dmesg"))?;
    let lines = log.lines().filter(|line| {
        ["uprobe", "WARNING", "BUG:", "blocked for more"]
            .iter()
            .any(|word| line.contains(word))
    });
    Ok(lines.map(str::to_owned).collect())
}

/// Root's runtime, and a program that launches through it.
struct Victim {
    library: PathBuf,
    program: PathBuf,
    pages: PathBuf,
}

impl Victim {
    fn build(yard: &Yard) -> anyhow::Result<Self> {
        let library = ["-shared", "-fPIC", "-DLIBRARY", "-fvisibility=hidden"];
        let library = yard.build("faults.c", "libze_loader.so.1", &library)?;
        let path = library.to_string_lossy();
        let program = yard.build("faults.c", "faults", &["-pthread", &path])?;
        let pages = yard.path("pages");
        Ok(Self {
            library,
            program,
            pages,
        })
    }

    /// Runs it under aiprof: what it launched, by kernel, must be what was recorded. Returns
    /// aiprof's messages.
    fn record(&self, yard: &Yard) -> anyhow::Result<String> {
        let capture = yard.path("out.aiprof");
        let mut command = Command::new(binary()?);
        command.args(["-F", "99", "--call-stacks", "1000000", "-o"]);
        command.arg(&capture).arg("--").arg(&self.program);
        let done = command.args(["4", "400"]).arg(&self.pages).output()?;
        let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
        anyhow::ensure!(done.status.success(), "{}: {stderr}", done.status);
        let told = String::from_utf8(done.stdout)?;
        let told = told.lines().map(|line| {
            let (kernel, count) = line.split_once(' ').context("no count")?;
            Ok((kernel.to_owned(), count.parse()?))
        });
        let told: BTreeMap<String, u64> = told.collect::<anyhow::Result<_>>()?;
        let mut report = Command::new(binary()?);
        report.args(["report", "--format", "folded", "--events", "launches"]);
        let folded = Folded::parse(&checked(report.arg(&capture))?)?.of_comm("faults");
        let mut seen: BTreeMap<String, u64> = BTreeMap::new();
        for line in &folded.lines {
            let name = line.frames.last().map_or("", |leaf| base(leaf));
            *seen
                .entry(name.trim_end_matches('x').to_owned())
                .or_default() += line.value;
        }
        // Every launch was seen. A name may have found no room, which is counted.
        let sum = |of: &BTreeMap<String, u64>| of.values().sum::<u64>();
        anyhow::ensure!(sum(&seen) == sum(&told), "{seen:?}, not {told:?}: {stderr}");
        let dropped = lost(&stderr, "data of calls dropped");
        for (kernel, launches) in &told {
            let found = seen.get(kernel).copied().unwrap_or(0);
            let right = found <= *launches && found + dropped >= *launches;
            anyhow::ensure!(right, "{found} of {launches} of {kernel}: {stderr}");
        }
        println!("{} launches, all seen", told.values().sum::<u64>());
        Ok(stderr)
    }
}

/// A recording for `seconds`, with the states that it prints. It has the calls of the whole
/// machine, but samples of this test only, for naming is not what is attacked here.
fn recording(yard: &Yard, seconds: &str) -> anyhow::Result<(Child, States)> {
    let states = States::at(yard.path("states"));
    let (own, output) = (std::process::id().to_string(), yard.path("flood.aiprof"));
    let output = output.to_string_lossy();
    let mut command = states.command(&["-d", seconds, "-p", &own, "-o", &output], &[])?;
    Ok((Child::start(&mut command)?, states))
}

/// Names of functions that are probed.
fn runtime_functions() -> anyhow::Result<Vec<String>> {
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("../profiler/probes/level-zero.toml");
    let text = std::fs::read_to_string(&table).with_context(|| table.display().to_string())?;
    let names = text.lines().filter_map(|line| {
        let name = line.strip_prefix("symbols = [\"")?.split('"').next()?;
        let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric());
        is_plain.then(|| name.to_owned())
    });
    Ok(names.take(FUNCTIONS).collect())
}

/// A program of the attacker's with many copies of a library, half of them loaded.
fn flood(yard: &Yard) -> anyhow::Result<Child> {
    let source = yard.path("many.c");
    let functions = runtime_functions()?
        .into_iter()
        .map(|name| format!("int {name}(int a) {{ return work(a + {}); }}\n", name.len()));
    let head = "__attribute__((noipa)) static int work(int a) { return a * 3; }\n";
    std::fs::write(&source, head.to_owned() + &functions.collect::<String>())?;
    let library = yard.path("many.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-shared", "-fPIC", "-o"]);
    checked(compiler.arg(&library).arg(&source))?;
    let dir = yard.strangers_dir("copies")?;
    for n in 0..COPIES {
        let own = dir.join(n.to_string());
        std::fs::create_dir(&own)?;
        let copy = own.join("libze_loader.so.1");
        std::fs::copy(&library, &copy)?;
        chown(&copy, Some(STRANGER), Some(STRANGER))?;
    }
    let program = yard.build("many_libraries.c", "many_libraries", &["-ldl"])?;
    let mut command = Command::new(program);
    command.arg(&dir).arg("libze_loader.so.1");
    command.arg(COPIES.to_string());
    as_stranger(&mut command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut flood = Child::start(&mut command)?;
    anyhow::ensure!(flood.read_line()? == "half\n");
    Ok(flood)
}

#[test]
fn six_hundred_copies_of_a_runtime() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    is_prompt(|| {
        let before = complaints()?;
        let yard = Yard::new()?;
        let victim = Victim::build(&yard)?;
        let mut flood = flood(&yard)?;
        let begun = Instant::now();
        let (mut aiprof, _) = recording(&yard, "5")?;
        flood.write_line("")?;
        anyhow::ensure!(flood.read_line()? == "all\n");
        aiprof.wait(Duration::from_secs(60))?;
        let took = begun.elapsed();
        let stderr = aiprof.stderr()?;
        println!("-d 5 took {took:?}\n{stderr}");
        // Beside the flood, all that root launches is recorded.
        let stderr = victim.record(&yard)?;
        let refused = lost(&stderr, "libraries not probed (too many of one user)");
        anyhow::ensure!(refused > 0, "{stderr}");
        anyhow::ensure!(stderr.contains("user 65534"), "{stderr}");
        anyhow::ensure!(took < Duration::from_secs(5) + LATE + START, "{took:?}");
        let (mut aiprof, states) = recording(&yard, "600")?;
        states.wait_for("attached")?;
        let took = interrupt(&mut aiprof, Duration::from_secs(60))?;
        println!("SIGINT was answered after {took:?}");
        drop(flood);
        anyhow::ensure!(complaints()? == before, "{:?}", complaints()?);
        Ok(Some(took))
    })
}

/// How long a recording may take to begin.
const START: Duration = Duration::from_secs(5);

/// How many links to functions of programs a process has.
fn links(pid: u32) -> usize {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter();
    let all = entries.flatten().flatten();
    let is_one = |entry: &std::fs::DirEntry| {
        let info = std::fs::read_to_string(entry.path()).unwrap_or_default();
        info.contains("uprobe_multi")
    };
    all.filter(is_one).count()
}

/// Waits until a process has attached to functions of all programs there are: until
/// its links have been the same for a second.
fn wait_for_probes(pid: u32) -> anyhow::Result<()> {
    let begun = Instant::now();
    let (mut known, mut since) = (0, Instant::now());
    while known == 0 || since.elapsed() < Duration::from_secs(1) {
        anyhow::ensure!(begun.elapsed() < Duration::from_secs(60), "no probes");
        std::thread::sleep(Duration::from_millis(20));
        let now = links(pid);
        if now != known {
            (known, since) = (now, Instant::now());
        }
    }
    Ok(())
}

/// Starts a program of the attacker's whose arguments lie in pages that never come, once it is
/// allowed to go on. `None`: this machine does not allow it.
fn absent(yard: &Yard, library: &Path) -> anyhow::Result<Option<Child>> {
    let path = library.to_string_lossy();
    let program = yard.build("absent_pages.c", "absent_pages", &["-pthread", &path])?;
    let file = yard.path("page-file");
    std::fs::write(&file, vec![b'n'; 64 * 4096])?;
    let point = yard.strangers_dir("point")?;
    let mapped = point.join("pages");
    let arguments = [program.as_os_str(), mapped.as_os_str(), "8".as_ref()];
    let mut command = hang_fs(yard, "serve", &file, &point, &arguments)?;
    command.stdin(Stdio::piped());
    start_hang_fs(&mut command)
}

#[test]
fn arguments_in_pages_that_never_come() -> anyhow::Result<()> {
    let test = "arguments_in_pages_that_never_come";
    skip_unless!(&NEEDS);
    is_prompt(|| {
        let before = complaints()?;
        let yard = Yard::new()?;
        let victim = Victim::build(&yard)?;
        let Some(mut attacker) = absent(&yard, &victim.library)? else {
            println!("skipped: {test}: no file systems of users");
            return Ok(None);
        };
        anyhow::ensure!(attacker.read_line()? == "mapped\n");
        let (mut aiprof, states) = recording(&yard, "600")?;
        states.wait_for("attached")?;
        silence_servers()?;
        attacker.write_line("")?;
        anyhow::ensure!(attacker.read_line()? == "called\n");
        // Beside it another recording starts, sees everything and ends.
        victim.record(&yard)?;
        let took = interrupt(&mut aiprof, Duration::from_secs(60))?;
        let stderr = aiprof.stderr()?;
        println!("SIGINT was answered after {took:?}\n{stderr}");
        let absent = lost(
            &stderr,
            "values and data of other users' calls not in memory",
        );
        anyhow::ensure!(absent > 0, "{stderr}");
        drop(attacker);
        anyhow::ensure!(complaints()? == before, "{:?}", complaints()?);
        Ok(Some(took))
    })
}

/// How much of libc's code in a process is a copy of its own: what has breakpoints.
fn copied_libc_kib(pid: u32) -> anyhow::Result<u64> {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    let (mut in_libc, mut copied) = (false, 0);
    for line in smaps.lines() {
        if line.contains(" r-xp ") || line.contains(" r--p ") || line.contains(" rw-p ") {
            in_libc = line.contains(" r-xp ") && line.contains("/libc.so.6");
        }
        let Some(dirty) = line.strip_prefix("Private_Dirty:").filter(|_| in_libc) else {
            continue;
        };
        let dirty = dirty.trim().trim_end_matches(" kB");
        copied += dirty.parse::<u64>().with_context(|| line.to_owned())?;
    }
    Ok(copied)
}

/// A program may lie about a driver's functions: those in libc are probed in itself, but not in the
/// programs of others.
#[test]
fn a_table_of_functions_of_everybodys_library() -> anyhow::Result<()> {
    let needs = [&NEEDS[..], &[Need::Path("/usr/include/CL/cl.h")]].concat();
    skip_unless!(&needs);
    is_prompt(|| {
        let yard = Yard::new()?;
        let program = yard.build("liar.c", "liar", &["-lOpenCL"])?;
        let mut command = Command::new(&program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut liar = Child::start(as_stranger(&mut command))?;
        anyhow::ensure!(liar.read_line()? == "ready\n");
        let (mut aiprof, states) = recording(&yard, "600")?;
        states.wait_for("attached")?;
        let own = std::process::id();
        anyhow::ensure!((copied_libc_kib(own)?, copied_libc_kib(liar.pid())?) == (0, 0));
        let before = links(aiprof.pid());
        liar.write_line("")?;
        let begun = Instant::now();
        while copied_libc_kib(liar.pid())? == 0 {
            anyhow::ensure!(begun.elapsed() < Duration::from_secs(30), "never believed");
            anyhow::ensure!(copied_libc_kib(own)? == 0);
            std::thread::sleep(Duration::from_millis(10));
        }
        wait_for_probes(aiprof.pid())?;
        anyhow::ensure!(copied_libc_kib(own)? == 0, "probed in this program");
        // What was for that program goes with it; a driver that it loaded stays probed.
        let during = links(aiprof.pid());
        anyhow::ensure!(during > before, "{during} links, {before} before");
        drop(liar);
        let begun = Instant::now();
        while links(aiprof.pid()) >= during {
            anyhow::ensure!(begun.elapsed() < Duration::from_secs(30), "still attached");
            std::thread::sleep(Duration::from_millis(10));
        }
        let took = interrupt(&mut aiprof, Duration::from_secs(60))?;
        Ok(Some(took))
    })
}

/// Makes the attacker's file systems stop answering.
fn silence_servers() -> anyhow::Result<()> {
    let mut signal = Command::new("pkill");
    signal.args(["-USR1", "-u", &STRANGER.to_string(), "-x", "hang_fs"]);
    checked(&mut signal).map(drop)
}

/// Lets users have userfaultfds that hold up the kernel, while it lives.
struct Userfaultfd(String);

const USERFAULTFD: &str = "/proc/sys/vm/unprivileged_userfaultfd";

impl Userfaultfd {
    fn allow() -> Option<Self> {
        let before = std::fs::read_to_string(USERFAULTFD).ok()?;
        std::fs::write(USERFAULTFD, "1").ok()?;
        Some(Self(before))
    }
}

impl Drop for Userfaultfd {
    fn drop(&mut self) {
        let _ = std::fs::write(USERFAULTFD, &self.0);
    }
}

/// Files and memory that do not come, a perf map of 15 TB, 20,000 mappings and 600
/// libraries, beside a program whose stacks are known.
#[test]
fn everything_at_once() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    is_prompt(|| {
        let before = complaints()?;
        let yard = Yard::new()?;
        let victim = Victim::build(&yard)?;
        let witness = Witness::start(&yard)?;
        let mut attacks = Vec::new();
        for mode in ["hang-lookup", "hang-getattr", "hang-open", "hang-read"] {
            match hung_program(&yard, mode)? {
                Some(attack) => attacks.push(attack),
                None => println!("without FUSE: users may not mount it here"),
            }
        }
        let allowed = Userfaultfd::allow();
        let absent = yard.build(
            "absent_pages.c",
            "absent_pages",
            &["-pthread", &victim.library.to_string_lossy()],
        )?;
        let mut faults = Command::new(absent);
        faults.args(["userfaultfd", "8"]).stdin(Stdio::piped());
        let mut faults = Child::start(as_stranger(faults.stdout(Stdio::piped())))?;
        let waits = allowed.is_some() && faults.read_line()? == "mapped\n";
        println!("userfaultfd: {waits}");
        let jit = yard.build("jit.c", "jit", &[])?;
        let mut program = Command::new(jit);
        program.args(["600", "nomap"]).stdin(Stdio::null());
        let program = Child::start(as_stranger(program.stdout(Stdio::null())))?;
        let map = PerfMap::large(program.pid())?;
        let maps = yard.build("many_maps.c", "many_maps", &[])?;
        attacks.push(stranger(&maps, &["600", "20000"])?);
        let mut flood = flood(&yard)?;

        let out = yard.path("all.aiprof");
        let (states, output) = (States::at(yard.path("states")), out.display().to_string());
        let mut command = states.command(&["-F", "199", "-o", &output], &[])?;
        let mut aiprof = Child::start(&mut command)?;
        states.wait_for("attached")?;
        flood.write_line("")?;
        anyhow::ensure!(flood.read_line()? == "all\n");
        if waits {
            faults.write_line("")?;
            anyhow::ensure!(faults.read_line()? == "called\n");
        }
        attacks.push(stranger(&maps, &["600", "20000"])?);
        attacks.extend(hung_program(&yard, "hang-read")?);
        witness.wait_for_cpu_time(Duration::from_millis(1500))?;
        let took = interrupt(&mut aiprof, Duration::from_secs(60))?;
        let stderr = aiprof.stderr()?;
        println!("SIGINT was answered after {took:?}\n{stderr}");
        let mut report = Command::new(binary()?);
        report.args(["report", "--format", "folded", "--weight", "samples"]);
        let folded = Folded::parse(&checked(report.arg(&out))?)?;
        // It was met among programs that hang.
        witness
            .check_met(&folded, 100, 60)
            .with_context(|| stderr.clone())?;
        drop((attacks, flood, program, map, faults));
        anyhow::ensure!(complaints()? == before, "{:?}", complaints()?);
        Ok(Some(took))
    })
}

/// A perf map of 15 TB; it takes no room.
struct PerfMap(PathBuf);

impl PerfMap {
    fn large(pid: u32) -> anyhow::Result<Self> {
        let map = Self(PathBuf::from(format!("/tmp/perf-{pid}.map")));
        std::fs::File::create(&map.0)?.set_len(15 << 40)?;
        chown(&map.0, Some(STRANGER), Some(STRANGER))?;
        Ok(map)
    }
}

impl Drop for PerfMap {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn two_thousand_short_processes_with_a_runtime() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    is_prompt(|| {
        let before = complaints()?;
        let yard = Yard::new()?;
        let victim = Victim::build(&yard)?;
        let source = yard.path("brief.c");
        std::fs::write(
            &source,
            "int zeInit(int);\nint main(void) { return zeInit(0); }\n",
        )?;
        let program = yard.path("brief");
        let mut compiler = Command::new("cc");
        checked(
            compiler
                .arg("-o")
                .arg(&program)
                .args([&source, &victim.library]),
        )?;
        let script = format!(
            "i=0; while [ $i -lt 2000 ]; do {} & i=$((i + 1)); \
         [ $((i % 20)) = 0 ] && wait; done; wait; echo over",
            program.display()
        );
        let mut command = Command::new("sh");
        as_stranger(command.args(["-c", &script]));
        let (mut aiprof, _) = recording(&yard, "600")?;
        let mut flood = Child::start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
        victim.record(&yard)?;
        anyhow::ensure!(flood.read_line()? == "over\n");
        let took = interrupt(&mut aiprof, Duration::from_secs(60))?;
        println!("SIGINT was answered after {took:?}\n{}", aiprof.stderr()?);
        anyhow::ensure!(complaints()? == before, "{:?}", complaints()?);
        Ok(Some(took))
    })
}
