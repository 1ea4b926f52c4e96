//! `aiprof analyze` of recordings gives the same as of the traces that are made of them, and agrees
//! with the program's truth file.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

use aiprof_tests::aiprof::binary;
use aiprof_tests::aiu::{Runtime, Truth, TruthFiles};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::trace::number;
use aiprof_tests::workload::{Workshop, checked};

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("c++")];

/// Records a program of the virtual AIU into a capture.
fn record(shop: &Workshop, capture: &Path, words: &[&str]) -> anyhow::Result<Vec<Truth>> {
    let truth = TruthFiles::new(shop, "truth");
    checked(&mut Runtime::build(&[])?.recording(&truth, capture, words)?)?;
    truth.read_all()
}

/// What `analyze` reports of a file, without what names the file.
fn report(shop: &Workshop, input: &Path) -> anyhow::Result<Value> {
    let name = input.file_name().context("no name")?.to_string_lossy();
    let output = shop.path(&format!("of_{}.json", name.replace('.', "_")));
    let mut command = Command::new(binary()?);
    checked(command.arg("analyze").arg(input).arg("-o").arg(&output))?;
    let text = output.to_string_lossy().replace(".json", "_report.json");
    let mut report: Value = serde_json::from_slice(&std::fs::read(text)?)?;
    let members = report.as_object_mut().context("no object")?;
    members.remove("inputs").context("no inputs")?;
    Ok(report)
}

/// How far numbers may differ: by the last digits of their sums, since times count from where
/// each file has them from.
const LAST_DIGITS: f64 = 1e-9;
/// The same for a series, in percent of the time between two points, 0.1 ms or more. The
/// nanosecond at the edge may count for either.
const AT_AN_EDGE: f64 = 1e-5;

/// Whether two values are equal, numbers to a part of themselves, or of 1.
fn alike(one: &Value, other: &Value, tolerance: f64) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            let [one, other] = [one, other].map(|n| n.as_f64().unwrap_or(f64::NAN));
            (one - other).abs() <= tolerance * one.abs().max(1.0)
        }
        (Value::Array(one), Value::Array(other)) => {
            let mut pairs = one.iter().zip(other);
            one.len() == other.len() && pairs.all(|(one, other)| alike(one, other, tolerance))
        }
        (Value::Object(one), Value::Object(other)) => {
            let is_in = |(key, value)| {
                let other = other.get(key);
                other.is_some_and(|other| alike(value, other, tolerance))
            };
            one.len() == other.len() && one.iter().all(is_in)
        }
        _ => one == other,
    }
}

#[test]
fn a_recording_is_analysed_as_its_traces_are() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let capture = shop.path("recorded.aiprof");
    let words = ["profiled", "--launches", "400", "--threads", "2"];
    let truths = record(&shop, &capture, &words)?;
    let own = report(&shop, &capture)?;
    for trace in ["trace.json", "trace.json.gz", "trace.pftrace"] {
        let trace = shop.path(trace);
        let mut command = Command::new(binary()?);
        checked(command.arg("report").arg(&capture).arg("-o").arg(&trace))?;
        let of_trace = report(&shop, &trace)?;
        for (key, value) in own.as_object().context("no object")? {
            // Names of rows, and notes about the recording, are events in one and not in another.
            if key == "events" && trace.extension().is_some_and(|e| e == "pftrace") {
                continue;
            }
            let tolerance = match key.as_str() {
                "series" => AT_AN_EDGE,
                _ => LAST_DIGITS,
            };
            let other = &of_trace[key];
            let shown = trace.display();
            anyhow::ensure!(
                alike(other, value, tolerance),
                "{key} of {shown}: {other}, not {value}"
            );
        }
    }
    // Every execution that the program got a record of, once, by its name, with its time.
    let mut executed: BTreeMap<String, (u64, f64)> = BTreeMap::new();
    let records = truths.iter().flat_map(|truth| &truth.records);
    for record in records.filter(|r| r.kind == 1 && r.what == 2) {
        let (calls, us) = executed.entry(record.name.clone()).or_default();
        *calls += 1;
        *us += (record.end - record.start) as f64 / 1000.0;
    }
    anyhow::ensure!(executed.len() > 1, "{executed:?}");
    let kernels = own["kernels"].as_array().context("no kernels")?;
    assert_eq!(kernels.len(), executed.len());
    for kernel in kernels {
        let name = kernel["name"].as_str().context("no name")?;
        let (calls, us) = executed.get(name).with_context(|| format!("no {name}"))?;
        assert_eq!(number(&kernel["lengths"]["calls"])?, *calls, "{name}");
        let total = kernel["lengths"]["total_us"].as_f64().context("no time")?;
        anyhow::ensure!(
            (total - us).abs() <= 0.001 * us,
            "{name}: {total} us, not {us}"
        );
    }
    Ok(())
}
