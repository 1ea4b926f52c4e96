//! What a test needs from the machine, and the visible skip where it is missing.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

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

/// Ends a test here if the machine lacks something that it needs; prints that it was
/// skipped, and why. The name is that of the function, or the first of two arguments.
#[macro_export]
macro_rules! skip_unless {
    ($needs:expr) => {
        $crate::skip_unless!($crate::own_name!(), $needs)
    };
    ($name:expr, $needs:expr) => {
        if $crate::need::lacks($name, $needs) {
            return Ok(());
        }
    };
}

/// The name of the function that this is used in.
#[macro_export]
macro_rules! own_name {
    () => {{
        fn here() {}
        let path = std::any::type_name_of_val(&here);
        path.rsplit("::").nth(1).unwrap_or(path)
    }};
}

pub use crate::skip_unless;

/// Whether the machine lacks something; prints that the test was skipped, and why.
pub fn lacks(name: &str, needs: &[Need]) -> bool {
    let reason = needs.iter().find_map(|need| need.missing());
    if let Some(reason) = &reason {
        skip(name, reason);
    }
    reason.is_some()
}

/// Prints that a test did not run: on stdout, where `cargo xtask test` counts such lines,
/// and on stderr for whoever watches.
pub fn skip(name: &str, reason: &str) {
    println!("skipped: {name}: {reason}");
    // Ignored: with stderr closed, the note cannot be written.
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {reason}");
}
