//! OTLP profiles, read by OpenTelemetry's own messages.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use aiprof_tests::aiprof::binary;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::packages;
use aiprof_tests::pprof;
use aiprof_tests::workload::{Workshop, checked, source_path};
use anyhow::{Context as _, ensure};
use serde_json::Value;

/// Fails if the package is missing.
const FIND: &str = "import opentelemetry.proto.collector.profiles.v1development as p; print(p)";

/// Process, thread, names of both, frames.
type Key = (i64, i64, String, String, Vec<String>);

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Samples of CPUs in a file, and the services that they are of.
fn read(python: &Path, file: &Path) -> anyhow::Result<(BTreeMap<Key, i64>, Vec<String>)> {
    let mut command = Command::new(python);
    let said = checked(command.arg(source_path("read_otlp.py")).arg(file))?;
    let (mut found, mut services) = (BTreeMap::new(), Vec::new());
    for line in said.lines() {
        let sample: Value = serde_json::from_str(line)?;
        ensure!(sample["kind"] == "samples", "{sample}");
        // 99 Hz, of which the period is no round part of a second.
        ensure!(sample["period"] == 10_101_400, "{sample}");
        ensure!(!text(&sample["host"]).is_empty(), "{sample}");
        let known = &sample["attributes"];
        let frames = sample["frames"].as_array().into_iter().flatten();
        let key = (
            known["process.pid"].as_i64().unwrap_or(0),
            known["thread.id"].as_i64().unwrap_or(0),
            text(&known["process.executable.name"]),
            text(&known["thread.name"]),
            frames.map(text).collect(),
        );
        let value = sample["value"].as_i64().context("a number")?;
        *found.entry(key).or_default() += value;
        services.push(text(&sample["service"]));
    }
    services.sort();
    services.dedup();
    Ok((found, services))
}

#[test]
fn opentelemetry_reads_what_was_recorded() -> anyhow::Result<()> {
    let name = "opentelemetry_reads_what_was_recorded";
    skip_unless!(&[Need::Root, Need::Tool("cc"), Need::Tool("python3")]);
    let package = ["opentelemetry-proto==1.45.2"];
    let (python, _) = match packages::python("AIPROF_TESTS_OTLP", "otlp", &package, FIND) {
        Ok(found) => found,
        Err(why) => {
            println!("skipped: {name}: {why}");
            return Ok(());
        }
    };
    let shop = Workshop::new()?;
    let path = |name: &str| shop.path(name);
    let capture = path("x.aiprof");
    let busy = "import time\nend = time.time() + 2\nwhile time.time() < end: sum(range(1000))";
    let mut record = Command::new(binary()?);
    record.args(["-q", "-o"]).arg(&capture);
    checked(record.args(["python3", "-c", busy]))?;
    for file in ["x.otlp", "x.pb.gz"] {
        let mut report = Command::new(binary()?);
        checked(report.arg("report").arg(&capture).arg("-o").arg(path(file)))?;
    }
    let (found, services) = read(&python, &path("x.otlp"))?;
    let mut expected: BTreeMap<Key, i64> = BTreeMap::new();
    for sample in pprof::read(&path("x.pb.gz"))? {
        let number = |key: &str| sample.numbers.get(key).copied().unwrap_or(0);
        let text = |key: &str| sample.texts.get(key).cloned().unwrap_or_default();
        let key = (
            number("pid"),
            number("tid"),
            text("comm"),
            text("thread"),
            sample.frames.clone(),
        );
        *expected.entry(key).or_default() += sample.values.get("samples").copied().unwrap_or(0);
    }
    ensure!(found == expected, "{found:#?}\n{expected:#?}");
    let of_python = found
        .iter()
        .filter(|((_, _, comm, ..), _)| comm == "python3");
    let seen: i64 = of_python.map(|(_, count)| count).sum();
    ensure!(seen > 100, "{seen} samples of Python");
    ensure!(!services.is_empty(), "no services");
    // A window of an always-on recording is a request, too.
    let folder = path("windows");
    let mut record = Command::new(binary()?);
    record.args(["-q", "--every", "1s", "--format", "otlp", "-o"]);
    checked(record.arg(&folder).args(["python3", "-c", busy]))?;
    let mut windows = 0;
    for file in std::fs::read_dir(&folder)? {
        let (found, _) = read(&python, &file?.path())?;
        ensure!(!found.is_empty(), "no samples");
        windows += 1;
    }
    ensure!(windows >= 2, "{windows} windows");
    Ok(())
}
