//! `cargo xtask fleet`: the programs of fleet/, a workspace of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use lexopt::prelude::*;
use sha2::{Digest as _, Sha256};

use crate::counts::Counts;
use crate::install::ensure;
use crate::packages::Group;
use crate::proc::{cargo, root, run};
use crate::test::{Options, build, in_workspace, nextest};

pub(crate) const HELP: &str = "
Builds aiprof-send, aiprof-query and the lake's library with DataFusion, which takes
minutes, and runs clippy and the tests. If all pass, it writes the digest of the sources
to fleet/tested. Commit that file with the change.

  --if-changed   do nothing if the sources still have the digest in fleet/tested
";

/// What the programs are made of, and what they share with the product.
const SOURCES: [&str; 13] = [
    "fleet",
    "profiler-common",
    "profiler/classes",
    "profiler/crates/formats",
    "profiler/crates/model",
    "profiler/crates/record",
    "profiler/crates/symbols",
    "profiler/crates/system",
    "profiler/crates/tables",
    "profiler/crates/testkit",
    "profiler/crates/trace",
    "profiler/probes",
    "tests/src",
];
/// The digest of the sources whose tests have passed.
const TESTED: &str = "fleet/tested";

pub(crate) fn main(args: Vec<String>) -> Result<ExitCode> {
    let mut args = lexopt::Parser::from_args(args);
    let mut if_changed = false;
    while let Some(arg) = args.next()? {
        match arg {
            Long("if-changed") => if_changed = true,
            _ => bail!(arg.unexpected()),
        }
    }
    if if_changed
        && fs::read_to_string(root().join(TESTED))
            .is_ok_and(|t| t.trim() == digest().unwrap_or_default())
    {
        let mut counts = Counts::default();
        counts.skip("fleet: the sources are unchanged since the tests passed (fleet/tested)");
        return Ok(counts.report());
    }
    ensure(&[Group::Build, Group::Test])?;
    lint()?;
    Ok(test()?.report())
}

fn lint() -> Result<()> {
    let mut clippy = cargo();
    clippy.args(["clippy", "--locked", "--profile", "tests", "--workspace"]);
    clippy.arg("--all-targets");
    run(in_workspace(&mut clippy, "fleet").args(["--", "-D", "warnings"]))
}

/// Runs the tests; notes that they passed.
pub(crate) fn test() -> Result<Counts> {
    // Some record.
    build()?;
    let options = Options {
        workspace: Some("fleet"),
        ..Options::default()
    };
    let counts = nextest("all()", &options)?;
    if counts.failed == 0 && !counts.is_empty() {
        fs::write(root().join(TESTED), digest()? + "\n")?;
    }
    Ok(counts)
}

/// A digest of the sources: names and contents, in order.
fn digest() -> Result<String> {
    let mut files = Vec::new();
    for folder in SOURCES {
        collect(&root().join(folder), &mut files)?;
    }
    files.sort();
    let mut hasher = Sha256::new();
    for path in files {
        let name = path.strip_prefix(root()).unwrap_or(&path).to_string_lossy();
        let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
        hasher.update((name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
        hasher.update((bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    }
    let digest = hasher.finalize();
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Adds the files below a folder, without what is built.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        match entry.file_type()? {
            kind if kind.is_dir() && entry.file_name() != "target" => collect(&path, files)?,
            kind if kind.is_file() && path != root().join(TESTED) => files.push(path),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_of_all_crates_that_the_programs_are_made_of() {
        for folder in SOURCES {
            assert!(root().join(folder).is_dir(), "{folder}");
        }
        assert_eq!(digest().unwrap().len(), 64);
        assert_eq!(digest().unwrap(), digest().unwrap());
        let manifest = fs::read_to_string(root().join("fleet/Cargo.toml")).unwrap();
        let paths = manifest
            .lines()
            .filter_map(|line| line.split_once("path = \"../"));
        for (_, path) in paths {
            let path = path.split('"').next().unwrap();
            let is_in = |folder: &&str| folder.starts_with(path);
            assert!(SOURCES.iter().any(is_in), "{path}");
        }
    }
}
