//! No finding costs more than the time it is taken from: idle time, copies or the whole trace.
//! Those are computed from the traces' JSON alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

use aiprof_tests::aiprof::{IDLE_FINDINGS, binary};
use aiprof_tests::spans::covered;
use aiprof_tests::workload::checked;

/// Rounding, microseconds.
const NEAR: f64 = 1.0;

/// What there is of time in a trace, microseconds.
#[derive(Default)]
struct Times {
    wall: f64,
    /// Idle time of the device that idles most.
    idle: f64,
    /// Sums of copies, and of those from and to pageable memory with their calls.
    copies: f64,
    pageable: f64,
    has_devices: bool,
}

impl Times {
    fn of(trace: &Value) -> Self {
        let events = trace.as_array().or(trace["traceEvents"].as_array());
        let spans = events.into_iter().flatten().filter(|e| e["ph"] == "X");
        let mut times = Self::default();
        let mut devices: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        let (mut first, mut last) = (f64::MAX, f64::MIN);
        let mut calls: BTreeMap<u64, f64> = BTreeMap::new();
        let mut pageable = Vec::new();
        for span in spans {
            let micros = |key: &str| match &span[key] {
                Value::String(text) => text.parse().ok(),
                value => value.as_f64(),
            };
            let (Some(start), Some(dur)) = (micros("ts"), micros("dur")) else {
                continue;
            };
            (first, last) = (first.min(start), last.max(start + dur));
            let cat = span["cat"].as_str().unwrap_or_default().to_lowercase();
            let name = span["name"].as_str().unwrap_or_default();
            let correlation = span["args"]["correlation"].as_u64();
            let is_copy = cat.contains("memcpy");
            if is_copy || cat == "kernel" || cat.contains("memset") {
                let device = format!("{} {}", span["pid"], span["args"]["device"]);
                devices.entry(device).or_default().push((start, start + dur));
            } else if let Some(correlation) = correlation {
                let call = calls.entry(correlation).or_default();
                *call = dur.max(*call);
            }
            if is_copy {
                times.copies += dur;
                if name.to_lowercase().contains("pageable") {
                    pageable.push((correlation, dur));
                }
            }
        }
        let of_call = |id: &Option<u64>| id.and_then(|id| calls.get(&id)).copied().unwrap_or(0.0);
        times.pageable = pageable.iter().map(|(id, dur)| dur + of_call(id)).sum();
        times.wall = (last - first).max(0.0);
        times.has_devices = !devices.is_empty();
        times.idle = devices.into_values().map(idle).fold(0.0, f64::max);
        times
    }

    /// The most that a finding may cost.
    fn most(&self, kind: &str) -> f64 {
        match kind {
            "pageable-copy" => self.pageable,
            "copy-not-overlapped" => self.copies,
            // Without a device it is the loader's time.
            kind if IDLE_FINDINGS.contains(&kind) && self.has_devices => self.idle,
            _ => self.wall,
        }
    }
}

/// How much of the time from the first to the last of these none of them has.
fn idle(spans: Vec<(f64, f64)>) -> f64 {
    let ends = spans.iter().copied();
    let ends = ends.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)));
    ends.map_or(0.0, |(first, last)| last - first) - covered(spans)
}

/// The traces of this repository, and of the folders that `AIPROF_TRACES` names.
fn traces() -> anyhow::Result<Vec<PathBuf>> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
    let mut folders = vec![data.join("kineto"), data.join("torch")];
    let more = std::env::var_os("AIPROF_TRACES").unwrap_or_default();
    folders.extend(std::env::split_paths(&more).filter(|path| path.is_dir()));
    let mut found = Vec::new();
    for folder in folders {
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            let name = path.to_string_lossy();
            let is_trace = name.ends_with(".json") || name.ends_with(".json.gz");
            if is_trace && !name.ends_with(".rows.json.gz") {
                found.push(path);
            }
        }
    }
    Ok(found)
}

fn read(path: &Path) -> anyhow::Result<Value> {
    let bytes = std::fs::read(path)?;
    Ok(match bytes.starts_with(&[0x1f, 0x8b]) {
        true => serde_json::from_reader(flate2::read::GzDecoder::new(&bytes[..]))?,
        false => serde_json::from_slice(&bytes)?,
    })
}

#[test]
fn no_finding_costs_more_than_what_it_is_taken_from() -> anyhow::Result<()> {
    let (mut judged, mut files) = (0, 0);
    for path in traces()? {
        let shown = path.display();
        let Ok(trace) = read(&path) else {
            println!("{shown} is no JSON");
            continue;
        };
        let times = Times::of(&trace);
        let mut command = Command::new(binary()?);
        let Ok(text) = checked(command.arg("analyze").arg(&path).args(["--json", "-q"])) else {
            println!("{shown} is not analysed");
            continue;
        };
        let report: Value = serde_json::from_str(&text)?;
        let findings = report["findings"].as_array().context("no findings")?;
        files += 1;
        let mut of_idle = 0.0;
        for finding in findings {
            let Some(ns) = finding["cost_ns"].as_f64() else {
                continue;
            };
            let kind = finding["kind"].as_str().context("a kind")?;
            let (cost, most) = (ns / 1000.0, times.most(kind));
            anyhow::ensure!(cost <= most + NEAR, "{shown}: {most} us: {}", finding["text"]);
            of_idle += if IDLE_FINDINGS.contains(&kind) { cost } else { 0.0 };
            judged += 1;
        }
        let is_shared = !times.has_devices || of_idle <= times.idle + NEAR;
        anyhow::ensure!(is_shared, "{shown}: {of_idle} of {} us idle", times.idle);
    }
    println!("{judged} findings of {files} traces");
    anyhow::ensure!(judged > 20 && files > 20);
    Ok(())
}
