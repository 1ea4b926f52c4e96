//! Builds the programs in `workloads/` with the system's compilers.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use tempfile::TempDir;

/// Flags of every C and C++ workload that does not override them: optimized, no frame pointers.
/// Neither tail calls nor the merging of equal functions may change the truth.
const C_FLAGS: [&str; 6] = [
    "-O2",
    "-fomit-frame-pointer",
    "-fno-optimize-sibling-calls",
    "-fno-ipa-icf",
    "-Wall",
    "-Wextra",
];

/// A directory of built workloads, removed when dropped.
#[derive(Debug)]
pub struct Workshop {
    dir: TempDir,
}

impl Workshop {
    /// An empty one.
    ///
    /// # Errors
    /// When no temporary directory can be made.
    pub fn new() -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("aiprof-test-")
            .tempdir()
            .context("making a temporary directory")?;
        Ok(Self { dir })
    }

    /// The path of a file in the directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `workloads/SOURCE` as the program `output`, compiled with the usual flags and
    /// `flags`, by the source's extension: `.c`, `.cpp` or `.rs`. What has been compiled
    /// once is copied. Libraries built here before are found by `-lNAME` and at run time.
    ///
    /// # Errors
    /// When the compiler cannot be run or fails; its output is included.
    pub fn build(&self, source: &str, output: &str, flags: &[&str]) -> anyhow::Result<PathBuf> {
        let out = self.path(output);
        let here = self.dir.path().display().to_string();
        let search = format!("-L{here}");
        let mut all = flags.to_vec();
        // A run path makes static-PIE programs of this libc crash at start.
        let dynamic = !flags.iter().any(|flag| flag.starts_with("-static"));
        if dynamic && !source.ends_with(".rs") {
            all.extend([&search, "-Wl,-rpath,$ORIGIN"]);
        }
        // This directory's name would be in the program.
        if flags.iter().any(|flag| flag.contains(&here)) {
            compile(source, &out, &all)?;
            return Ok(out);
        }
        let mut sources = sources_of(source_path(source))?;
        let libraries = flags.iter().map(|flag| self.library_of(flag));
        sources.extend(libraries.filter(|library| library.exists()));
        let kept = cached(&flags.join("\n"), &sources, output, |dir| {
            compile(source, &dir.join(output), &all)
        })?;
        std::fs::copy(&kept, &out).with_context(|| out.display().to_string())?;
        Ok(out)
    }

    /// Where the library of `-lNAME` is, if it was built here.
    fn library_of(&self, flag: &str) -> PathBuf {
        let name = flag.strip_prefix("-l").unwrap_or("/");
        self.path(&format!("lib{name}.so"))
    }

    /// Compiles a shared object `libNAME.so`.
    ///
    /// # Errors
    /// As [`Self::build`].
    pub fn library(&self, source: &str, name: &str, flags: &[&str]) -> anyhow::Result<PathBuf> {
        let mut all = vec!["-shared", "-fPIC"];
        all.extend_from_slice(flags);
        self.build(source, &format!("lib{name}.so"), &all)
    }
}

/// Where a workload's source lies.
#[must_use]
pub fn source_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("workloads")
        .join(name)
}

/// A source and the files that it includes by `#include "FILE"`.
fn sources_of(source: PathBuf) -> anyhow::Result<Vec<PathBuf>> {
    let mut all = vec![source];
    let mut next = 0;
    while let Some(source) = all.get(next).cloned() {
        let text =
            std::fs::read_to_string(&source).with_context(|| source.display().to_string())?;
        let names = text
            .lines()
            .filter_map(|line| line.strip_prefix("#include \"")?.split('"').next());
        for name in names {
            let path = source.with_file_name(name);
            // Others are the compiler's, or in a directory that a flag names.
            if path.exists() && !all.contains(&path) {
                all.push(path);
            }
        }
        next += 1;
    }
    Ok(all)
}

/// Compiles `workloads/SOURCE` into the program `output` with the usual flags and
/// `flags`.
///
/// # Errors
/// As [`Workshop::build`].
pub fn compile(source: &str, output: &Path, flags: &[&str]) -> anyhow::Result<()> {
    let source = source_path(source);
    let mut command = compiler(&source);
    command.arg(&source).arg("-o").arg(output).args(flags);
    checked(&mut command).map(drop)
}

/// A file that is built once from its sources and kept below `target/virtual`:
/// `build` makes `file` in the directory that it is given.
///
/// # Errors
/// When a source cannot be read, or building fails.
pub fn cached(
    key: &str,
    sources: &[PathBuf],
    file: &str,
    build: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    for source in sources {
        let bytes = std::fs::read(source).with_context(|| source.display().to_string())?;
        bytes.hash(&mut hasher);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/virtual");
    let dir = root.join(format!("{file}-{:016x}", hasher.finish()));
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let dir = dir.canonicalize()?;
    // Other test programs may build the same at this moment.
    let lock = std::fs::File::create(dir.join("lock"))?;
    lock.lock()?;
    let done = dir.join("done");
    if !done.exists() {
        build(&dir)?;
        std::fs::write(&done, "")?;
    }
    Ok(dir.join(file))
}

fn compiler(source: &Path) -> Command {
    match source.extension().and_then(|e| e.to_str()) {
        Some("rs") => rustc(),
        Some("cpp") => cc("c++"),
        _ => cc("cc"),
    }
}

fn cc(name: &str) -> Command {
    let mut command = Command::new(name);
    command.args(C_FLAGS);
    command
}

fn rustc() -> Command {
    let name = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(name);
    command.args(["--edition=2024", "-Copt-level=3", "-Cdebuginfo=1"]);
    command.arg("-Cforce-frame-pointers=no");
    command
}

/// Runs a command to its end.
///
/// # Errors
/// When it cannot be started or fails: with its standard output and error.
pub fn checked(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .output()
        .with_context(|| format!("running {command:?}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    anyhow::ensure!(
        output.status.success(),
        "{command:?}: {}\n{stdout}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(stdout)
}
