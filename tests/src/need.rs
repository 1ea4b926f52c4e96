//! What a test needs from the machine, and the visible skip where it is missing.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Something a test cannot run without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Effective user id 0: loading eBPF programs, mounts, tracefs.
    Root,
    /// A program on PATH.
    Tool(&'static str),
    /// A file or directory.
    Path(&'static str),
}

impl Need {
    /// Why this need is not met here; `None` when it is.
    fn missing(self) -> Option<String> {
        match self {
            Self::Root if !is_root() => Some("needs root".to_owned()),
            Self::Tool(name) if find_tool(name).is_none() => Some(format!("needs {name}")),
            Self::Path(path) if !Path::new(path).exists() => Some(format!("needs {path}")),
            _ => None,
        }
    }
}

/// Whether this process runs with effective user id 0.
#[must_use]
pub fn is_root() -> bool {
    // The owner of /proc/self is the effective user id.
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// Full path of a program on PATH.
#[must_use]
pub fn find_tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// A test's turn: no two tests record at the same time, in this process or in
/// another, because each profiles the whole machine and burns its CPUs.
#[derive(Debug)]
pub struct Turn {
    // Released when the file is closed.
    _lock: File,
}

/// Waits for this test's turn. `None`, after saying `skipped: NAME: REASON`,
/// when the machine lacks one of the needs.
///
/// # Errors
/// When the lock file cannot be opened or locked.
pub fn turn(name: &str, needs: &[Need]) -> anyhow::Result<Option<Turn>> {
    if let Some(reason) = needs.iter().find_map(|need| need.missing()) {
        skip(name, &reason);
        return Ok(None);
    }
    let path = std::env::temp_dir().join("aiprof-tests.lock");
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .with_context(|| format!("opening {}", path.display()))?;
    lock.lock()
        .with_context(|| format!("locking {}", path.display()))?;
    Ok(Some(Turn { _lock: lock }))
}

/// Whether a test that takes no turn must be left out: it says so when the machine
/// lacks one of its needs.
#[must_use]
pub fn skip_unless(name: &str, needs: &[Need]) -> bool {
    let reason = needs.iter().find_map(|need| need.missing());
    if let Some(reason) = &reason {
        skip(name, reason);
    }
    reason.is_some()
}

/// Says that a test did not run: on stdout for whoever counts (libtest hides
/// what a passing test prints unless `--show-output`), and on stderr for whoever
/// watches.
pub fn skip(name: &str, reason: &str) {
    println!("skipped: {name}: {reason}");
    // A closed stderr leaves nobody to tell.
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {reason}");
}
