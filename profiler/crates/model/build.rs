//! Lists the built-in tables of drivers: each file of `profiler/probes/drivers` is one.

#![allow(
    clippy::disallowed_methods,
    reason = "a build has no caller whose rights it could have"
)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let folder = manifest.join("../../probes/drivers");
    println!("cargo::rerun-if-changed={}", folder.display());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let written = list(&folder).and_then(|list| fs::write(out.join("drivers.rs"), list));
    if let Err(why) = written {
        println!("cargo::error=cannot list {}: {why}", folder.display());
    }
}

/// The tables by name: a constant with the name and the text of each file.
fn list(folder: &Path) -> io::Result<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(Some(name).filter(|name| name.ends_with(".toml")));
    }
    names.sort();
    let mut text = "/// The built-in tables of drivers: name of the file and its text.\n\
                    const DRIVERS: &[(&str, &str)] = &[\n"
        .to_owned();
    for name in names {
        let path = folder.join(&name);
        // Formatting a text cannot fail.
        let _ = writeln!(text, "    ({name:?}, include_str!({path:?})),");
    }
    Ok(text + "];\n")
}
