//! An ordinary user with a copy of aiprof that has capabilities, as the README
//! lets users have one, and with more than those: what must hold, must hold with any.

use std::ffi::OsStr;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::Context as _;
use tempfile::TempDir;

use crate::aiprof::binary;
use crate::workload::checked;

/// The user `nobody`, and the group of that number.
pub const NOBODY: u32 = 65534;

/// What the README gives, and what would let the user write and give away files.
const CAPABILITIES: &str = "cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search,\
     cap_checkpoint_restore,cap_dac_override,cap_chown,cap_fowner=ep";

/// A folder that everybody can enter, with the copy and a folder of the user's own.
#[derive(Debug)]
pub struct Attacker {
    dir: TempDir,
}

impl Attacker {
    /// Makes both; `None` where file capabilities have no effect.
    ///
    /// # Errors
    /// When a file cannot be made.
    pub fn new() -> anyhow::Result<Option<Self>> {
        let dir = TempDir::new()?;
        mode(dir.path(), 0o755)?;
        let attacker = Self { dir };
        std::fs::copy(binary()?, attacker.aiprof())?;
        checked(
            Command::new("setcap")
                .arg(CAPABILITIES)
                .arg(attacker.aiprof()),
        )?;
        std::fs::create_dir(attacker.home())?;
        chown(attacker.home(), Some(NOBODY), Some(NOBODY))?;
        let probe = attacker.run(["-q", "-d", "1", "-o", "/dev/null", "--format", "folded"])?;
        Ok((probe.status.code() != Some(77)).then_some(attacker))
    }

    /// The copy with capabilities.
    #[must_use]
    pub fn aiprof(&self) -> PathBuf {
        self.dir.path().join("aiprof")
    }

    /// A folder of the user's own.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// A path beside it, for what is root's.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs the copy as the user, in the user's folder, for a minute at most.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn run<S: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
    ) -> anyhow::Result<Output> {
        self.command(Path::new("timeout"))
            .args(["-k", "1", "60"])
            .arg(self.aiprof())
            .args(args)
            .output()
            .context("running aiprof as nobody")
    }

    /// A program to run as the user.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut command = as_nobody(program);
        command.current_dir(self.home()).env("TMPDIR", self.home());
        command
    }
}

/// A program to run as the user, without root's groups.
#[must_use]
pub fn as_nobody(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.uid(NOBODY).gid(NOBODY).stdin(Stdio::null());
    command
}

/// Sets a file's mode.
///
/// # Errors
/// chmod(2)'s.
pub fn mode(path: &Path, mode: u32) -> std::io::Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}
