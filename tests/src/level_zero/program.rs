//! The Level Zero workloads: how they are built, and their accounts of themselves.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context as _;
use serde::Deserialize;

use crate::workload::{cached, compile, source_path};

/// What a workload says it did: the line of JSON that it prints.
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
    /// What only this mode says.
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
}

/// Builds `ze_work`, which calls through the system's loader.
///
/// # Errors
/// When the compiler fails.
pub fn build_work() -> anyhow::Result<PathBuf> {
    build("ze_work.cpp", "ze_work", &["-lze_loader"])
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
    let sources = [source_path(source), source_path("ze.h")];
    let key = format!("{name} {flags:?}");
    cached(&key, &sources, name, |dir| {
        compile(source, &dir.join(name), flags)
    })
}
