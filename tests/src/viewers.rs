//! Perfetto and speedscope, which are fetched once into the target folder (`viewers/fetch.sh`), and
//! the scripts that ask them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::need::skip;
use crate::workload::checked;

/// A script in `viewers/`.
#[must_use]
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("viewers")
        .join(name)
}

/// The viewers; if they cannot be fetched, the test of this name is skipped with a message.
#[must_use]
pub fn viewers(name: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), |dir| root.join(dir));
    let folder = target.join("viewers");
    let fetched = checked(Command::new("sh").arg(script("fetch.sh")).arg(&folder));
    let fetched = fetched.inspect_err(|error| {
        skip(
            name,
            &format!("needs viewers, which could not be fetched: {error:#}"),
        );
    });
    fetched.is_ok().then_some(folder)
}
