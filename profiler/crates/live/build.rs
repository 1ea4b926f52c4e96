//! Makes the shared objects that `--device-timing` puts into programs.
//!
//! rustc alone makes them of the sources of aiprof-inject, which use nothing but the standard
//! library: cargo cannot build a dependency as a shared object. The one for Level Zero needs
//! the library whose name aiprof writes into it: here a name that only holds the place.

#![allow(
    clippy::disallowed_methods,
    reason = "a build has no caller whose rights it could have"
)]

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let sources = manifest.join("../inject/src");
    let common = manifest.join("../../../profiler-common/src/timing.rs");
    for path in [&sources, &common] {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    if let Err(why) = build_all(&sources, &out) {
        println!("cargo::error=cannot build the helpers for --device-timing: {why}");
    }
}

fn build_all(sources: &Path, out: &Path) -> Result<(), String> {
    let helper = sources.join("lib.rs");
    build(&helper, &out.join("libaiprof-timing.so"), &[])?;
    let name = std::fs::read_to_string(sources.join("ze/driver_name.txt"));
    let name = name.map_err(|error| format!("no ze/driver_name.txt: {error}"))?;
    let empty = out.join("driver.rs");
    let text =
        "#![no_std]\n#[panic_handler]\nfn end(_: &core::panic::PanicInfo) -> ! { loop {} }\n";
    std::fs::write(&empty, text).map_err(|error| format!("{}: {error}", empty.display()))?;
    let driver = out.join("libdriver.so");
    let soname = format!("link-arg=-Wl,-soname,{}", name.trim_end_matches('\0'));
    build(&empty, &driver, &["panic=abort".to_owned(), soname])?;
    let needed = [
        "link-arg=-Wl,--no-as-needed".to_owned(),
        format!("link-arg={}", driver.display()),
        "link-arg=-Wl,--as-needed".to_owned(),
    ];
    build(&helper, &out.join("libaiprof-timing-ze.so"), &needed)
}

/// `options`: further ones for code generation.
fn build(source: &Path, object: &Path, options: &[String]) -> Result<(), String> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command
        .args(["--edition", "2024", "--crate-type", "cdylib"])
        .args(["--crate-name", "aiprof_inject"])
        // Small, and quick to build: a second.
        .args([
            "-C",
            "opt-level=2",
            "-C",
            "lto=fat",
            "-C",
            "codegen-units=1",
        ])
        .args(["-C", "strip=symbols", "-C", "debuginfo=0"])
        // Whoever loads it may close it, and its thread and functions are still used.
        .args(["-C", "link-arg=-Wl,-z,nodelete"]);
    for option in options {
        command.args(["-C", option]);
    }
    if let Some(target) = env::var_os("TARGET") {
        command.arg("--target").arg(target);
    }
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let mut option = std::ffi::OsString::from("linker=");
        option.push(linker);
        command.arg("-C").arg(option);
    }
    let status = command.arg("-o").arg(object).arg(source).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("rustc ended with {status}")),
        Err(error) => Err(format!("rustc did not start: {error}")),
    }
}
