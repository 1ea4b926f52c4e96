//! Programs of aiprof that are built apart, for what they depend on.

use aiprof_system::files::caller;
use anyhow::{Result, bail};
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

/// Where one is: beside this program, or in one of the folders of PATH.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let beside = std::env::current_exe().ok();
    let beside = beside.and_then(|own| Some(own.parent()?.join(name)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join(name));
    let absolute = |file: &PathBuf| file.is_absolute() && caller::is_file(file);
    beside.into_iter().chain(in_path).find(absolute)
}

/// Becomes `aiprof-query`, with these arguments.
///
/// # Errors
/// It is not installed, or cannot be executed.
pub(crate) fn query(args: &[OsString]) -> Result<u8> {
    let Some(program) = find("aiprof-query") else {
        bail!(
            "aiprof-query is neither beside aiprof nor in PATH: install the package aiprof-query; \
             in a clone, run `cargo build --release --manifest-path fleet/Cargo.toml \
             --target-dir target`"
        );
    };
    let error = Command::new(&program).args(args).exec();
    bail!("{}: {error}", program.display());
}
