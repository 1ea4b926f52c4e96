//! The Level Zero workloads: how they are built, and their accounts of themselves.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Deserialize;

use super::driver::Machine;
use super::module::Module;
use crate::truth::Truth;
use crate::workload::{Workshop, cached, checked, compile, source_path};

/// What a workload reports that it did: the line of JSON that it prints.
#[derive(Clone, Debug, Deserialize)]
pub struct Account {
    /// The mode it ran in.
    pub mode: String,
    /// Its process id.
    pub pid: u32,
    /// Launches by kernel.
    pub launches: BTreeMap<String, u64>,
    /// Other calls by function, those that the mode counts.
    #[serde(default)]
    pub calls: BTreeMap<String, u64>,
    /// Launches by thread id.
    #[serde(default)]
    pub threads: BTreeMap<u32, u64>,
    /// What only this mode reports.
    #[serde(flatten)]
    pub more: BTreeMap<String, serde_json::Value>,
}

impl Account {
    /// The accounts among a program's output, one for each process.
    ///
    /// # Errors
    /// When there is none, or one is damaged.
    pub fn read(output: &str) -> anyhow::Result<Vec<Self>> {
        let accounts = output
            .lines()
            .filter(|line| line.starts_with('{'))
            .map(|line| serde_json::from_str(line).with_context(|| line.to_owned()))
            .collect::<anyhow::Result<Vec<Self>>>()?;
        anyhow::ensure!(!accounts.is_empty(), "no account in {output:?}");
        Ok(accounts)
    }

    /// Launches in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.launches.values().sum()
    }

    /// The call path of each launch of `ze_paths`, by the number of the call.
    ///
    /// # Errors
    /// When the account contains no paths.
    pub fn paths(&self) -> anyhow::Result<BTreeMap<u64, u32>> {
        let paths = self.more.get("paths").context("an account without paths")?;
        let paths: BTreeMap<u32, Vec<u64>> = serde_json::from_value(paths.clone())?;
        let seqs = paths
            .into_iter()
            .flat_map(|(path, seqs)| seqs.into_iter().map(move |seq| (seq, path)));
        Ok(seqs.collect())
    }
}

/// A run of a workload and both accounts of it.
#[derive(Clone, Debug)]
pub struct Run {
    /// What the program's processes reported, its own first or last.
    pub accounts: Vec<Account>,
    /// What the driver wrote down.
    pub truth: Truth,
}

impl Run {
    /// The account of a program of one process.
    #[must_use]
    pub fn account(&self) -> &Account {
        &self.accounts[0]
    }
}

/// Runs `PROGRAM MODE module=... [key=value...]` on a virtual machine with a truth
/// file, which it adds to when there is one of an earlier run in this workshop.
///
/// # Errors
/// When it fails.
pub fn run(
    shop: &Workshop,
    program: &Path,
    machine: &Machine,
    module: &Module,
    mode: &[&str],
) -> anyhow::Result<Run> {
    let truth = shop.path("truth.json");
    let file = module.write(&shop.path("module.zebin"))?;
    let mut command = machine.clone().truth(&truth).command(program);
    command.args(mode);
    let output = checked(command.arg(format!("module={}", file.display())))?;
    Ok(Run {
        accounts: Account::read(&output)?,
        truth: Truth::read(&truth)?,
    })
}

/// Builds `ze_unwind`, which leaves calls in every way.
///
/// # Errors
/// When the compiler fails.
pub fn build_unwind() -> anyhow::Result<PathBuf> {
    build("ze_unwind.cpp", "ze_unwind", &["-lze_loader"])
}

/// Builds `ze_faults`, which passes bad pointers.
///
/// # Errors
/// When the compiler fails.
pub fn build_faults() -> anyhow::Result<PathBuf> {
    build("ze_faults.cpp", "ze_faults", &["-lze_loader"])
}

/// Builds `ze_rust`.
///
/// # Errors
/// When the compiler fails.
pub fn build_rust() -> anyhow::Result<PathBuf> {
    build("ze_rust.rs", "ze_rust", &[])
}

/// Builds `ze_paths`, which launches from many call paths.
///
/// # Errors
/// When the compiler fails.
pub fn build_paths() -> anyhow::Result<PathBuf> {
    build("ze_paths.cpp", "ze_paths", &["-lze_loader", "-pthread"])
}

/// Builds `ze_phases`, which plays the phases that its arguments list.
///
/// # Errors
/// When the compiler fails.
pub fn build_phases() -> anyhow::Result<PathBuf> {
    build("ze_phases.cpp", "ze_phases", &["-lze_loader", "-pthread"])
}

/// Builds `ze_submits`, which hands launches over in different ways.
///
/// # Errors
/// When the compiler fails.
pub fn build_submits() -> anyhow::Result<PathBuf> {
    build("ze_submits.cpp", "ze_submits", &["-lze_loader", "-pthread"])
}

/// Builds `ze_work`, which calls through the system's loader.
///
/// # Errors
/// When the compiler fails.
pub fn build_work() -> anyhow::Result<PathBuf> {
    build("ze_work.cpp", "ze_work", &["-lze_loader"])
}

/// Builds `ze_timing`, which hands work over and waits in many ways.
///
/// # Errors
/// When the compiler fails.
pub fn build_timing() -> anyhow::Result<PathBuf> {
    build("ze_timing.cpp", "ze_timing", &["-lze_loader", "-pthread"])
}

/// Builds `ze_gemm`, the loop of a usual program.
///
/// # Errors
/// When the compiler fails.
pub fn build_gemm() -> anyhow::Result<PathBuf> {
    build("ze_gemm.cpp", "ze_gemm", &["-lze_loader"])
}

/// Builds `ze_shapes`, whose calls come from all sorts of places.
///
/// # Errors
/// When the compiler fails.
pub fn build_shapes() -> anyhow::Result<PathBuf> {
    build("ze_shapes.cpp", "ze_shapes", &["-lze_loader", "-pthread"])
}

/// Builds `ze_odd`, whose calls are made in rare ways, and the library that it opens.
///
/// # Errors
/// When the compiler fails.
pub fn build_odd() -> anyhow::Result<(PathBuf, PathBuf)> {
    let flags = ["-std=c++20", "-lze_loader", "-pthread", "-ldl"];
    let program = build("ze_odd.cpp", "ze_odd", &flags)?;
    // A wrapper that only jumps is part of it.
    let flags = [
        "-shared",
        "-fPIC",
        "-foptimize-sibling-calls",
        "-lze_loader",
    ];
    let part = build("ze_odd_part.cpp", "libze_odd_part.so", &flags)?;
    Ok((program, part))
}

/// Builds `ze_work` without a loader: it opens the driver itself.
///
/// # Errors
/// When the compiler fails.
pub fn build_direct() -> anyhow::Result<PathBuf> {
    build("ze_work.cpp", "ze_direct", &["-DDIRECT"])
}

/// Builds a workload, or takes the one that was built from the same source before:
/// the compiler needs some seconds for each.
fn build(source: &str, name: &str, flags: &[&str]) -> anyhow::Result<PathBuf> {
    let headers = ["ze.h", "ze_walk.h", "known.h"].map(source_path);
    let sources = [&[source_path(source)][..], &headers].concat();
    let key = format!("{name} {flags:?}");
    cached(&key, &sources, name, |dir| {
        compile(source, &dir.join(name), flags)
    })
}
