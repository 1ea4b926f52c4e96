//! `cargo xtask build-ebpf`: the committed eBPF object and its check.
//!
//! The object is committed so that plain stable Rust builds aiprof. The build is made reproducible
//! (paths remapped, tool versions in the manifest), so that the check can prove that the object was
//! built from the sources.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use lexopt::prelude::*;

use crate::elf::BpfObject;
use crate::manifest::{Manifest, hex_digest, sources_digest};
use crate::proc::{capture, cargo, find_program, is_root, root, run, target_dir};
use crate::toolchain::{Toolchain, cargo_home, clean, find_or_install};

pub(crate) const HELP: &str = "
Builds profiler-ebpf for bpfel-unknown-none and writes the object to
profiler/crates/live/src/bpf/aiprof.bpf.o. The manifest next to it
(aiprof.bpf.toml) has the digests of sources and object and the versions of the
tools. Commit both files.

The build needs bpf-linker and a compiler with core's sources: a rustup nightly with
rust-src, Debian's rustc-web and rust-web-src, or the compiler in AIPROF_EBPF_RUSTC.
As root on Debian, missing tools are installed; elsewhere, the commands are printed.

  --check   Fail if the sources differ from the manifest. Then rebuild: with the
            manifest's tool versions, code, relocations, maps and BTF must be
            equal; with other versions, both objects must load on this machine.
  --debug   Build to target/ebpf-debug, for `aiprof --bpf-object FILE`. Do not
            commit this object.
";

const TARGET: &str = "bpfel-unknown-none";
const OBJECT: &str = "profiler/crates/live/src/bpf/aiprof.bpf.o";
const MANIFEST: &str = "profiler/crates/live/src/bpf/aiprof.bpf.toml";

pub(crate) fn main(args: Vec<String>) -> Result<ExitCode> {
    let mut args = lexopt::Parser::from_args(args);
    let (mut check_only, mut debug) = (false, false);
    while let Some(arg) = args.next()? {
        match arg {
            Long("check") => check_only = true,
            Long("debug") => debug = true,
            _ => return Err(arg.unexpected().into()),
        }
    }
    match (check_only, debug) {
        (true, true) => {
            bail!(
                "--check cannot be used with --debug: the committed object is never a debug build"
            )
        }
        (true, false) => check()?,
        (false, true) => build_debug()?,
        (false, false) => build_committed()?,
    }
    Ok(ExitCode::SUCCESS)
}

fn build_committed() -> Result<()> {
    // The manifest must not describe sources that changed during the build.
    let sources_sha256 = sources_digest(&root())?;
    let wanted = Manifest::read(&root().join(MANIFEST)).ok();
    let tools = find_or_install(wanted.as_ref().map(|m| &m.versions))?;
    let built = build(&tools, &target_dir().join("ebpf"), &[])?;
    if sources_digest(&root())? != sources_sha256 {
        bail!("the sources changed during the build; run it again");
    }
    let data = fs::read(&built)?;
    BpfObject::parse(&data).context("cannot read the object that bpf-linker wrote")?;
    let manifest = Manifest {
        sources_sha256,
        object_sha256: hex_digest(&data),
        versions: tools.versions,
    };
    write(&root().join(OBJECT), &data)?;
    write(&root().join(MANIFEST), manifest.to_toml()?.as_bytes())?;
    eprintln!(
        "xtask: wrote {OBJECT} ({} bytes) and its manifest",
        data.len()
    );
    Ok(())
}

fn build_debug() -> Result<()> {
    let tools = find_or_install(None)?;
    let built = build(&tools, &target_dir().join("ebpf-debug"), &[])?;
    eprintln!("xtask: wrote {}", built.display());
    Ok(())
}

/// Writes beside the destination and renames, so that no half file is left.
fn write(path: &Path, data: &[u8]) -> Result<()> {
    let dir = path.parent().context("no folder")?;
    fs::create_dir_all(dir)?;
    let beside = path.with_extension("new");
    fs::write(&beside, data).with_context(|| format!("cannot write {}", beside.display()))?;
    fs::rename(&beside, path).with_context(|| format!("cannot write {}", path.display()))
}

fn check() -> Result<()> {
    let manifest = Manifest::read(&root().join(MANIFEST))?;
    if sources_digest(&root())? != manifest.sources_sha256 {
        bail!("the eBPF sources are newer than the committed object; run `cargo xtask build-ebpf`");
    }
    let committed =
        fs::read(root().join(OBJECT)).with_context(|| format!("cannot read {OBJECT}"))?;
    if hex_digest(&committed) != manifest.object_sha256 {
        bail!("{OBJECT} does not match its manifest; run `cargo xtask build-ebpf`");
    }
    let tools = find_or_install(Some(&manifest.versions))?;
    let built = build(&tools, &target_dir().join("ebpf-check"), &[])?;
    let differences =
        BpfObject::parse(&committed)?.differences(&BpfObject::parse(&fs::read(&built)?)?);
    if differences.is_empty() {
        eprintln!("xtask: the committed eBPF object matches its sources");
        return Ok(());
    }
    let differences = differences.join(", ");
    if tools.versions == manifest.versions {
        bail!(
            "the committed object differs from a build of the same sources with the same tools: \
             {differences}"
        );
    }
    eprintln!(
        "xtask: warning: the tools differ from the manifest's, and so does the object: \
         {differences}"
    );
    eprintln!("xtask: warning: manifest {:?}", manifest.versions);
    eprintln!("xtask: warning: here     {:?}", tools.versions);
    load_test(&[&root().join(OBJECT), &built])
}

/// Loads each object into this kernel: a recording of one second must end well.
fn load_test(objects: &[&Path]) -> Result<()> {
    if !is_root() {
        eprintln!("xtask: warning: not root, so neither object was loaded");
        return Ok(());
    }
    run(cargo().args(["build", "--release", "--package", "aiprof"]))?;
    let aiprof = target_dir().join("release/aiprof");
    let profile = target_dir().join("ebpf-check/load.folded");
    for object in objects {
        let mut record = Command::new(&aiprof);
        record
            .arg("--bpf-object")
            .arg(object)
            .args(["-d", "1", "-o"])
            .arg(&profile);
        run(&mut record)?;
    }
    Ok(())
}

/// Builds the object under `out` and gives its path, debug sections stripped.
fn build(tools: &Toolchain, out: &Path, extra: &[&str]) -> Result<PathBuf> {
    // Crates must be unpacked before their folders can be remapped.
    run(ebpf_cargo(tools).arg("fetch").arg("--locked"))?;
    let mut command = ebpf_cargo(tools);
    command.args([
        "build",
        "--release",
        "--locked",
        "-Zbuild-std=core",
        "--target",
        TARGET,
    ]);
    command.arg("--target-dir").arg(out).args(extra);
    command.env("CARGO_ENCODED_RUSTFLAGS", rust_flags(tools)?);
    run(&mut command)?;
    let object = out.join("aiprof.bpf.o");
    let built = out.join(TARGET).join("release/aiprof-ebpf");
    fs::copy(&built, &object).with_context(|| format!("cannot copy {}", built.display()))?;
    strip(tools, &object)?;
    Ok(object)
}

/// The compiler's cargo, in profiler-ebpf, with the environment of the build.
fn ebpf_cargo(tools: &Toolchain) -> Command {
    let mut command = match &tools.compiler.cargo {
        Some(path) => Command::new(path),
        None => cargo(),
    };
    clean(&mut command).current_dir(root().join("profiler-ebpf"));
    command.env("RUSTC", &tools.compiler.rustc);
    // A distribution's stable compiler takes -Z options only with this.
    command.env("RUSTC_BOOTSTRAP", "1");
    let path = std::env::var("PATH").unwrap_or_default();
    let linker = tools.linker.parent().unwrap_or(Path::new("."));
    command.env("PATH", format!("{}:{path}", linker.display()));
    command
}

/// Compiler flags, in cargo's encoding. Kernels below 6.6 know cpu v3 at most;
/// no path of this machine stays in the object.
fn rust_flags(tools: &Toolchain) -> Result<OsString> {
    let mut flags: Vec<OsString> = ["-Ctarget-cpu=v3", "-Cdebuginfo=2", "-Clink-arg=--btf"]
        .map(OsString::from)
        .into();
    let mut remap = |from: &Path, to: &str| {
        let mut flag = OsString::from("--remap-path-prefix=");
        flag.push(from);
        flag.push("=");
        flag.push(to);
        flags.push(flag);
    };
    remap(&root(), "/aiprof");
    for registry in registries() {
        remap(&registry, "/crates");
    }
    // A distribution's sources may be a link: both names occur.
    remap(&tools.compiler.sources, "/rustc");
    remap(&fs::canonicalize(&tools.compiler.sources)?, "/rustc");
    Ok(flags.join(OsStr::new("\x1f")))
}

/// The folders that cargo unpacks crates to; their names contain the registry.
fn registries() -> Vec<PathBuf> {
    let Some(sources) = cargo_home().map(|home| home.join("registry/src")) else {
        return Vec::new();
    };
    let Ok(entries) = fs::read_dir(sources) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect()
}

/// Removes the DWARF, four fifths of the file, which no loader reads; BTF
/// stays. Without llvm-objcopy the object is merely larger.
fn strip(tools: &Toolchain, object: &Path) -> Result<()> {
    let major = tools
        .versions
        .rustc_llvm
        .split('.')
        .next()
        .unwrap_or_default();
    let packaged = PathBuf::from(format!("/usr/lib/llvm-{major}/bin/llvm-objcopy"));
    let tool = packaged
        .is_file()
        .then_some(packaged)
        .or_else(|| find_program("llvm-objcopy"));
    match tool {
        Some(tool) => capture(Command::new(tool).arg("--strip-debug").arg(object)).map(drop),
        None => {
            eprintln!(
                "xtask: llvm-objcopy is not installed, so the object keeps its debug sections"
            );
            Ok(())
        }
    }
}
