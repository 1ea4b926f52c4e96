//! Playing the attacker: programs of another user beside a recording.
//!
//! A test of an attack starts a [`Witness`] (a program with known stacks, of a user
//! who is not the attacker), the attack as the user [`STRANGER`], and aiprof. The
//! attack must not change what aiprof reports about the witness, nor how long it takes to end
//! ([`is_prompt`]).

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tempfile::TempDir;

use crate::chain;
use crate::child::Child;
use crate::folded::{Folded, Line};
use crate::workload::compile;

/// User and group id of the attacker: `nobody` of most distributions.
pub const STRANGER: u32 = 65534;
/// How long aiprof may take to end after SIGINT, whatever hangs: the median of [`SCENES`].
const PROMPT: Duration = Duration::from_secs(1);
/// How often an attack is played; each scene has a limit of its own, see [`interrupt`].
const SCENES: usize = 5;
/// Exit status of `hang_fs` where the machine does not allow it.
const UNSUPPORTED: i32 = 77;

/// Starts a command as the attacker: without privileges and other groups.
pub fn as_stranger(command: &mut Command) -> &mut Command {
    // The other groups go with the user id when root changes it.
    command.uid(STRANGER).gid(STRANGER)
}

/// A directory that every user can enter, outside /tmp, removed when dropped.
#[derive(Debug)]
pub struct Yard {
    dir: TempDir,
}

impl Yard {
    /// An empty one.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new() -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("aiprof-attack-")
            .tempdir_in("/var/tmp")
            .context("making a directory in /var/tmp")?;
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755))?;
        Ok(Self { dir })
    }

    /// The path of a file in it.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Compiles `workloads/SOURCE` into the program `name`.
    ///
    /// # Errors
    /// When the compiler fails.
    pub fn build(&self, source: &str, name: &str, flags: &[&str]) -> anyhow::Result<PathBuf> {
        let path = self.path(name);
        compile(source, &path, flags)?;
        Ok(path)
    }

    /// Makes a directory that belongs to the attacker.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn strangers_dir(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.path(name);
        std::fs::create_dir(&path)?;
        chown(&path, Some(STRANGER), Some(STRANGER))?;
        Ok(path)
    }
}

/// The command of a file system that does not answer, see `workloads/hang_fs.c`:
/// at `point`, every name is `file`, and `program` is executed.
///
/// # Errors
/// When it cannot be built.
pub fn hang_fs<S: AsRef<OsStr>>(
    yard: &Yard,
    mode: &str,
    file: &Path,
    point: &Path,
    program: &[S],
) -> anyhow::Result<Command> {
    let fs = yard.path("hang_fs");
    if !fs.exists() {
        yard.build("hang_fs.c", "hang_fs", &[])?;
    }
    let mut command = Command::new(fs);
    command.arg(mode).arg(file).arg(point).args(program);
    as_stranger(&mut command);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(command)
}

/// Starts [`hang_fs`] and waits until its file system is mounted. `None` where the
/// machine does not allow user namespaces, FUSE or overlays to users. The process
/// is `program` then.
///
/// # Errors
/// When it fails otherwise.
pub fn start_hang_fs(command: &mut Command) -> anyhow::Result<Option<Child>> {
    let _open = FuseForAll::open();
    let mut child = Child::start(command)?;
    let ready = child.read_line().and_then(|_| child.read_line());
    if ready.is_ok() {
        return Ok(Some(child));
    }
    let status = child.wait(Duration::from_secs(5))?;
    anyhow::ensure!(status.code() == Some(UNSUPPORTED), "hang_fs: {status}");
    Ok(None)
}

/// Lets every user open /dev/fuse, as udev's rules of all distributions do: machines
/// without udev leave it to root. What is mounted by then stays when this is dropped.
struct FuseForAll(Option<Permissions>);

const FUSE: &str = "/dev/fuse";

impl FuseForAll {
    fn open() -> Self {
        let before = std::fs::metadata(FUSE).map(|fuse| fuse.permissions());
        // Where it cannot be changed, the test reports that it cannot run.
        let _ = std::fs::set_permissions(FUSE, Permissions::from_mode(0o666));
        Self(before.ok())
    }
}

impl Drop for FuseForAll {
    fn drop(&mut self) {
        if let Some(before) = self.0.take() {
            let _ = std::fs::set_permissions(FUSE, before);
        }
    }
}

/// A program that works all the time, of another user, from a file system that
/// serves it to its own processes only. `None`: see [`start_hang_fs`].
///
/// # Errors
/// When it cannot be built or started.
pub fn hung_program(yard: &Yard, mode: &str) -> anyhow::Result<Option<Child>> {
    let served = yard.path("served");
    if !served.exists() {
        yard.build("twin.c", "served", &["-DNAME=hung_work", "-static"])?;
    }
    let point = yard.path(mode);
    std::fs::create_dir_all(&point)?;
    let program = [point.join("program"), PathBuf::from("600")];
    start_hang_fs(&mut hang_fs(yard, mode, &served, &point, &program)?)
}

/// Starts a program of the attacker that prints two lines before it is ready.
///
/// # Errors
/// When it cannot be started or ends before that.
pub fn stranger(program: &Path, args: &[&str]) -> anyhow::Result<Child> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    let mut child = Child::start(as_stranger(command.stdout(Stdio::piped())))?;
    child.read_line()?;
    child.read_line()?;
    Ok(child)
}

/// Sends SIGINT and returns how long the process takes to end, `most` at most.
///
/// # Errors
/// When it still runs after `most`.
pub fn interrupt(child: &mut Child, most: Duration) -> anyhow::Result<Duration> {
    let start = Instant::now();
    child.signal("INT")?;
    child.wait(most)?;
    Ok(start.elapsed())
}

/// Plays a scene until it is decided whether the median of five is a second. `scene` returns how
/// long aiprof took to end after SIGINT, or `None` if it cannot be played here.
///
/// # Errors
/// When a scene fails, or the median is above.
pub fn is_prompt(
    mut scene: impl FnMut() -> anyhow::Result<Option<Duration>>,
) -> anyhow::Result<()> {
    let mut all = Vec::new();
    loop {
        let Some(took) = scene()? else {
            return Ok(());
        };
        all.push(took);
        println!("SIGINT was answered after {all:?}");
        let late = all.iter().filter(|took| **took > PROMPT).count();
        anyhow::ensure!(late <= SCENES / 2, "SIGINT was answered after {all:?}");
        if all.len() - late > SCENES / 2 {
            return Ok(());
        }
    }
}

/// A program with known stacks, of root: it runs until it is dropped.
#[derive(Debug)]
pub struct Witness {
    child: Child,
    comm: String,
}

impl Witness {
    /// Builds and starts it.
    ///
    /// # Errors
    /// When it cannot be built or started.
    pub fn start(yard: &Yard) -> anyhow::Result<Self> {
        Self::of(&yard.build("frames.c", "witness", &["-g"])?)
    }

    /// Starts one that was built before, from `frames.c`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn of(path: &Path) -> anyhow::Result<Self> {
        let mut child = Child::start(
            Command::new(path)
                .arg("600")
                .stdin(Stdio::null())
                .stdout(Stdio::piped()),
        )?;
        child.read_line()?;
        // The kernel keeps 15 bytes of a name.
        let name = path.file_name().context("a program has a name")?;
        let comm = name.to_str().context("a name in UTF-8")?;
        let comm = comm.get(..15).unwrap_or(comm).to_owned();
        Ok(Self { child, comm })
    }

    /// Its samples. Another program may have had its process id before, so its name
    /// counts too.
    fn of_it(&self, folded: &Folded) -> Folded {
        folded.of_pid(self.pid()).of_comm(&self.comm)
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Waits until it has used so much more CPU time.
    ///
    /// # Errors
    /// It has not within a minute.
    pub fn wait_for_cpu_time(&self, more: Duration) -> anyhow::Result<()> {
        let path = format!("/proc/{}/schedstat", self.pid());
        let used = || -> anyhow::Result<Duration> {
            let text = std::fs::read_to_string(&path)?;
            let first = text.split(' ').next().context("no time")?;
            Ok(Duration::from_nanos(first.parse()?))
        };
        let (end, goal) = (Instant::now() + Duration::from_secs(60), used()? + more);
        while used()? < goal {
            anyhow::ensure!(Instant::now() < end, "the witness does not get to work");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// [`Self::check`] of a witness that started during the recording: how soon it is
    /// known depends on the load, so `unknown` samples may be cut for that.
    ///
    /// # Errors
    /// Describes what is wrong.
    pub fn check_met(&self, folded: &Folded, least: u64, unknown: u64) -> anyhow::Result<()> {
        let of_it = self.of_it(folded);
        let met = of_it.filter(|line| !is_unknown(line));
        let cut = of_it.total() - met.total();
        println!("the witness was not known yet in {cut} samples");
        anyhow::ensure!(
            cut <= unknown,
            "the witness was not known yet in {cut} samples of {}, may be in {unknown}",
            of_it.total()
        );
        self.check(&met, least)
    }

    /// Checks that a profile has the right stacks for it, with `least` samples.
    ///
    /// # Errors
    /// Describes what is wrong.
    pub fn check(&self, folded: &Folded, least: u64) -> anyhow::Result<()> {
        const CHAIN: [&str; 7] = [
            "main",
            "with_realigned_entry",
            "with_alignment",
            "with_array",
            "with_big_frame",
            "with_alloca",
            "spin",
        ];
        // Below the chain are calls of the clock, and inlined burn().
        chain::check("the witness's stacks", &self.of_it(folded), least, |line| {
            let stack = chain::from_entry(line, "main").unwrap_or_default();
            let n = stack.len().min(CHAIN.len());
            stack.get(..n) == CHAIN.get(..n) && n > 0
                || stack.get(1).is_some_and(|f| *f == "work_left")
        })
    }
}

/// Whether a stack was cut because its process, or a table for it, was not known yet.
fn is_unknown(line: &Line) -> bool {
    let not_yet = ["process not known yet", "unwind table not loaded yet"];
    let cut = |why: &&str| line.has(&format!("[stack cut: {why}]"));
    not_yet.iter().any(cut)
}
