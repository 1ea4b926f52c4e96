//! What must hold for every trace, on traces made at random. The time of a device is whole, and no
//! share is above 100 %. No finding costs more than its gap, and the critical path is no longer than
//! the wall time. Names, numbers and the order of files change no result.
//!
//! `AIPROF_GENERATED=10000 cargo xtask test invariants` makes that many traces instead of 66.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use aiprof_tests::aiprof::{IDLE_FINDINGS, binary};
use aiprof_tests::gpu_trace::{Made, Operation, Shape};
use aiprof_tests::workload::checked;

/// Tables whose rows name no process, file or event.
const TABLES: &str = "kernels,temporal,comm-overlap,kernel-types,kernel-breakdown,idle,launch-stats,\
                      memory-bandwidth,op-delays,rank-balance,collectives,rank-waits,critical-path,steps";
/// Traces that are made without `AIPROF_GENERATED`.
const USUAL: u64 = 66;
/// Rounding, microseconds.
const NEAR: f64 = 0.01;

/// What aiprof finds in files.
struct Analysis {
    findings: Vec<Value>,
    tables: BTreeMap<String, Value>,
}

impl Analysis {
    fn new(dir: &Path, files: &[String]) -> anyhow::Result<Self> {
        let run = |args: &[&str]| -> anyhow::Result<Value> {
            let mut command = Command::new(binary()?);
            command.current_dir(dir).args(["analyze", "--json", "-q"]);
            let text = checked(command.args(args).args(files))?;
            serde_json::from_str(&text).context(text)
        };
        let mut report = run(&[])?;
        let tables = run(&["--table", TABLES])?;
        let tables = tables.as_array().context("no tables")?;
        let by_name = tables
            .iter()
            .map(|table| (table["name"].as_str().unwrap_or_default().to_owned(), table.clone()));
        let findings = report["findings"].take();
        Ok(Self {
            findings: findings.as_array().cloned().unwrap_or_default(),
            tables: by_name.collect(),
        })
    }

    fn rows(&self, table: &str) -> &[Value] {
        let rows = self.tables.get(table).and_then(|table| table["rows"].as_array());
        rows.map_or(&[], Vec::as_slice)
    }

    /// All that must not depend on names, numbers and order: `with_ranks`: ranks are from the
    /// files.
    fn lines(&self, with_ranks: bool) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, table) in &self.tables {
            for row in self.rows(name) {
                let mut row = row.clone();
                if let (Some(row), false) = (row.as_object_mut(), with_ranks) {
                    row.retain(|key, _| !key.contains("rank"));
                }
                round(&mut row);
                lines.push(format!("{name} {} {row}", table["title"]));
            }
        }
        for finding in &self.findings {
            lines.push(format!("{} {}", finding["kind"], finding["cost_ns"]));
        }
        lines.sort_unstable();
        lines
    }
}

/// Rounds the numbers of a row: the last bit of a mean depends on the order of its parts.
fn round(row: &mut Value) {
    for value in row.as_object_mut().into_iter().flat_map(|row| row.values_mut()) {
        if let Some(number) = value.as_f64().filter(|_| value.is_f64()) {
            *value = format!("{number:.6}").into();
        }
    }
}

/// What a finding or a place of it costs, microseconds.
fn cost_us(finding: &Value) -> f64 {
    finding["cost_ns"].as_f64().unwrap_or(0.0) / 1000.0
}

/// Writes the files, each below `prefix`. Their paths.
fn write(dir: &Path, prefix: &str, made: &Made) -> anyhow::Result<Vec<String>> {
    let mut paths = Vec::new();
    for (name, trace) in &made.files {
        let path = dir.join(prefix).join(name);
        std::fs::create_dir_all(path.parent().context("a folder")?)?;
        std::fs::write(&path, serde_json::to_vec(trace)?)?;
        paths.push(format!("{prefix}/{name}"));
    }
    Ok(paths)
}

/// No share above 100 %, no time below 0.
fn are_possible(analysis: &Analysis) -> anyhow::Result<()> {
    for (name, table) in &analysis.tables {
        for row in analysis.rows(name) {
            for (column, unit) in table["units"].as_object().context("no units")? {
                let Some(value) = row[column].as_f64() else {
                    continue;
                };
                let most = match unit.as_str() {
                    Some("percent") if !column.ends_with("_of_mean") => 100.0 + NEAR,
                    _ => f64::MAX,
                };
                ensure!((-NEAR..=most).contains(&value), "{name}.{column}: {row}");
            }
        }
    }
    Ok(())
}

/// Calls and times of each name are those of the truth.
fn kernels_are_true(analysis: &Analysis, made: &Made) -> anyhow::Result<()> {
    let mut truth: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for one in made.operations.iter().filter(|one| one.category == "kernel") {
        let sum = truth.entry(&one.name).or_default();
        *sum = (sum.0 + 1, sum.1 + one.span.1 - one.span.0);
    }
    let mut found: BTreeMap<&str, (u64, f64)> = BTreeMap::new();
    for row in analysis.rows("kernels") {
        let sum = found.entry(row["name"].as_str().context("a name")?).or_default();
        sum.0 += row["calls"].as_u64().context("calls")?;
        sum.1 += row["total"].as_f64().context("total")?;
    }
    for (name, (calls, ns)) in &truth {
        let (found_calls, us) = found.get(name).copied().unwrap_or_default();
        let is_near = (us - *ns as f64 / 1000.0).abs() < NEAR * (1 + calls) as f64;
        ensure!(found_calls == *calls && is_near, "{name}: {found_calls} of {calls}, {us} of {ns}");
    }
    Ok(())
}

/// Busy and idle time make up the whole, and are those of the truth where a rank has one device.
fn time_is_whole(analysis: &Analysis, shape: Shape, made: &Made) -> anyhow::Result<()> {
    let get = |row: &Value, column: &str| row[column].as_f64().context("a time");
    let mut sums: BTreeMap<u64, (f64, f64, f64)> = BTreeMap::new();
    for row in analysis.rows("temporal") {
        let (total, idle) = (get(row, "total")?, get(row, "idle")?);
        let (compute, other) = (get(row, "compute")?, get(row, "non_compute")?);
        ensure!((total - idle - compute - other).abs() < NEAR, "{row}");
        let sum = sums.entry(row["rank"].as_u64().unwrap_or(0)).or_default();
        *sum = (sum.0 + total, sum.1 + idle, sum.2 + compute);
    }
    if !made.has_ranks || shape == Shape::Devices {
        return Ok(());
    }
    let processes: BTreeSet<usize> = made.operations.iter().map(|one| one.process).collect();
    ensure!(sums.len() == processes.len(), "{sums:?} of {processes:?}");
    for (rank, (total, idle, compute)) in sums {
        let of_rank = |one: &&Operation| one.process as u64 == rank;
        let files = made.operations.iter().filter(of_rank).map(|one| one.file).max();
        let (mut whole, mut busy, mut computes) = (0, 0, 0);
        for file in 0..=files.unwrap_or(0) {
            let all = || made.operations.iter().filter(of_rank).filter(|one| one.file == file);
            let first = all().map(|one| one.span.0).min().unwrap_or(0);
            whole += all().map(|one| one.span.1).max().unwrap_or(0) - first;
            busy += Made::union(all());
            computes += Made::union(all().filter(|one| one.computes()));
        }
        let is_near = |us: f64, ns: u64| (us - ns as f64 / 1000.0).abs() < NEAR;
        ensure!(
            is_near(total, whole) && is_near(idle, whole - busy) && is_near(compute, computes),
            "rank {rank}: {total} {idle} {compute}, true {whole} ns, {busy} busy, {computes}"
        );
    }
    Ok(())
}

/// No finding costs more than the time it is taken from, its places not more than it, and the
/// findings of idle time not more than the device's idle time. The host is not charged for what
/// the critical path gives to a device.
fn costs_are_possible(analysis: &Analysis, shape: Shape, made: &Made) -> anyhow::Result<()> {
    let key_of = |one: &Operation| match shape {
        Shape::Shared => (0, one.device),
        _ => (one.process, one.device),
    };
    let us = |ns: u64| ns as f64 / 1000.0;
    let wall = us(made.span.1 - made.span.0);
    let mut idle_of: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    for one in &made.operations {
        let key = key_of(one);
        if idle_of.contains_key(&key) {
            continue;
        }
        let all = || made.operations.iter().filter(|other| key_of(other) == key);
        let files = all().map(|one| one.file).max().unwrap_or(0);
        let idle = (0..=files).map(|file| {
            let all = || all().filter(|one| one.file == file);
            let first = all().map(|one| one.span.0).min().unwrap_or(0);
            all().map(|one| one.span.1).max().unwrap_or(0) - first - Made::union(all())
        });
        idle_of.insert(key, idle.sum());
    }
    let idle = us(idle_of.values().copied().max().unwrap_or(0));
    let mut of_idle: BTreeMap<&str, f64> = BTreeMap::new();
    for finding in &analysis.findings {
        let kind = finding["kind"].as_str().context("a kind")?;
        let cost = cost_us(finding);
        let most = if IDLE_FINDINGS.contains(&kind) { idle } else { wall };
        ensure!((0.0..=most + NEAR).contains(&cost), "{most} us: {finding}");
        // Several devices may wait at the same time: the cost is that of one.
        let mut of_places: BTreeMap<&str, f64> = BTreeMap::new();
        for place in finding["places"].as_array().into_iter().flatten() {
            let device = place["device"].as_str().unwrap_or_default();
            *of_places.entry(device).or_default() += cost_us(place);
        }
        for (device, us) in of_places {
            ensure!(us <= cost + NEAR, "{device}: places cost {us} us: {finding}");
            let sum = of_idle.entry(device).or_default();
            *sum += if IDLE_FINDINGS.contains(&kind) { us } else { 0.0 };
        }
    }
    let of_idle = of_idle.into_values().fold(0.0, f64::max);
    ensure!(of_idle <= idle + NEAR, "{of_idle} of {idle} us idle");
    ensure!(!analysis.rows("critical-path").is_empty(), "no critical path");
    for row in analysis.rows("critical-path") {
        let (length, wall) = (row["length"].as_f64(), row["wall"].as_f64());
        ensure!(length <= wall.map(|us| us + NEAR), "{row}");
    }
    if made.operations.iter().all(|one| one.process == 0) && idle_of.len() == 1 {
        let bounds = analysis.rows("critical-path-bounds").iter();
        let on_device = bounds
            .filter(|row| ["compute_bound", "copy_bound"].iter().any(|bound| row["bound_by"] == **bound))
            .filter_map(|row| row["time"].as_f64());
        let on_device: f64 = on_device.sum();
        ensure!(of_idle + on_device <= wall + NEAR, "{of_idle} + {on_device} of {wall} us");
    }
    Ok(())
}

fn judge(shape: Shape, seed: u64) -> anyhow::Result<()> {
    let dir = tempfile::TempDir::new()?;
    let made = Made::new(shape, seed, 0);
    let files = write(dir.path(), "a", &made)?;
    let analysis = Analysis::new(dir.path(), &files)?;
    are_possible(&analysis)?;
    kernels_are_true(&analysis, &made)?;
    time_is_whole(&analysis, shape, &made)?;
    costs_are_possible(&analysis, shape, &made)?;
    let lines = analysis.lines(made.has_ranks);
    // Other numbers of processes, another folder, the other order.
    let other = Made::new(shape, seed, 5000);
    let mut files = write(dir.path(), "other", &other)?;
    files.reverse();
    let changed = Analysis::new(dir.path(), &files)?.lines(made.has_ranks);
    same(&lines, &changed).context("other numbers and names, other order")?;
    // What aiprof writes.
    let mut command = Command::new(binary()?);
    command.current_dir(dir.path()).args(["analyze", "-q", "--no-tables", "-o", "out.json"]);
    checked(command.args(files))?;
    let again = Analysis::new(dir.path(), &["out.json".to_owned()])?;
    same(&lines, &again.lines(made.has_ranks)).context("its own output, read again")
}

fn same(before: &[String], after: &[String]) -> anyhow::Result<()> {
    let only = |these: &[String], those: &[String]| {
        let only: Vec<&String> = these.iter().filter(|line| !those.contains(line)).collect();
        only.iter().take(4).map(|line| format!("\n  {line}")).collect::<String>()
    };
    ensure!(before == after, "before:{}\nafter:{}", only(before, after), only(after, before));
    Ok(())
}

#[test]
fn every_trace_keeps_them() -> anyhow::Result<()> {
    let count = match std::env::var("AIPROF_GENERATED") {
        Ok(count) => count.parse()?,
        Err(_) => USUAL,
    };
    let next = AtomicU64::new(0);
    let failed: Mutex<BTreeMap<String, Vec<String>>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= count {
                    return;
                }
                let shapes = Shape::ALL.len() as u64;
                let shape = Shape::ALL[(at % shapes) as usize];
                if let Err(error) = judge(shape, at / shapes) {
                    let mut failed = failed.lock().unwrap();
                    let seeds = failed.entry(format!("{shape:?}")).or_default();
                    seeds.push(format!("seed {}: {error:#}", at / shapes));
                }
            });
        }
    });
    let failed = failed.into_inner()?;
    for (shape, seeds) in &failed {
        println!("{shape}: {} wrong\n{}", seeds.len(), seeds.iter().take(3).cloned().collect::<Vec<_>>().join("\n"));
    }
    println!("{count} traces");
    ensure!(failed.is_empty(), "{} shapes are wrong", failed.len());
    Ok(())
}
