//! Packages of PyPI, in environments that are kept in the build folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workload::checked;

/// An interpreter that has packages: the one that a variable names, or one of an environment
/// `target/FOLDER`, into which they are installed once. `find` is a program of Python that
/// needs them; with the interpreter comes what it prints.
///
/// # Errors
/// Why there is none.
pub fn python(
    variable: &str,
    folder: &str,
    packages: &[&str],
    find: &str,
) -> Result<(PathBuf, String), String> {
    python_of(Path::new("python3"), variable, folder, packages, find)
}

/// The same, for packages that need another Python than the system's.
///
/// # Errors
/// As [`python`].
pub fn python_of(
    base: &Path,
    variable: &str,
    folder: &str,
    packages: &[&str],
    find: &str,
) -> Result<(PathBuf, String), String> {
    let found = |python: PathBuf| {
        let said = checked(Command::new(&python).args(["-c", find]));
        let said = said.map_err(|error| format!("{error:#}"))?;
        Ok((python, said.trim().to_owned()))
    };
    if let Some(python) = std::env::var_os(variable) {
        return found(python.into());
    }
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let root = target.join(folder);
    let python = root.join("bin/python");
    found(python.clone()).or_else(|_: String| {
        let mut venv = Command::new(base);
        venv.args(["-m", "venv"]).arg(&root);
        let mut pip = Command::new("timeout");
        pip.arg("120").arg(&python);
        pip.args(["-m", "pip", "install", "-q"]).args(packages);
        for step in [&mut venv, &mut pip] {
            checked(step).map_err(|error| format!("{error:#}"))?;
        }
        found(python)
    })
}
