//! A trace of a real recording in the viewers that people use: Perfetto's trace
//! processor and user interface, and speedscope. They are fetched once, into the
//! target folder (`viewers/fetch.sh`); without a network the test says so and is
//! skipped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

use aiprof_tests::aiprof::Aiprof;
use aiprof_tests::aiu::{Runtime, Truth, TruthFiles};
use aiprof_tests::need::{Need, find_tool, skip, turn};
use aiprof_tests::trace::{Trace, number};
use aiprof_tests::workload::{Workshop, checked};

const NEEDS: [Need; 5] = [
    Need::Root,
    Need::Tool("c++"),
    Need::Tool("node"),
    Need::Tool("npm"),
    Need::Tool("python3"),
];

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("viewers")
        .join(name)
}

/// The viewers, or why they are not to be had.
fn viewers() -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), |dir| root.join(dir));
    let folder = target.join("viewers");
    let fetched = checked(Command::new("sh").arg(script("fetch.sh")).arg(&folder));
    let error =
        |error: anyhow::Error| format!("needs viewers, which could not be fetched: {error:#}");
    fetched.map(|_| folder).map_err(error)
}

/// Records a program with everything that a trace can hold: calls, samples, device
/// records, arrows, counters.
fn record(shop: &Workshop, file: &Path) -> anyhow::Result<Truth> {
    let truth = TruthFiles::new(shop, "truth");
    // Counters are found in /tmp only, by an address that no device has.
    let id = std::process::id();
    let metrics = format!(
        "/tmp/metrics.{:04x}:{:02x}:00.6",
        id >> 8 & 0xffff,
        id & 0xff
    );
    let words = [
        "profiled",
        "--launches",
        "800",
        "--threads",
        "2",
        "--pause-us",
        "2000",
    ];
    let work = Runtime::build(&[])?.work(&truth, &words);
    let mut command = Aiprof::with(["-o", file.to_str().context("no text")?])
        .command(work.get_program(), &words)
        .to_command()?;
    for (name, value) in work.get_envs() {
        command.env(name, value.context("no value")?);
    }
    let ran = checked(command.env("VAIU_METRICS", &metrics));
    // Gone already if the program made none.
    let _ = std::fs::remove_file(&metrics);
    ran?;
    truth.read_one()
}

/// Numbers of rows by a text of theirs.
fn counts(rows: &Value, key: &str) -> anyhow::Result<BTreeMap<String, u64>> {
    let rows = rows.as_array().context("no rows")?.iter();
    let row = |row: &Value| {
        let name = row[key].as_str().unwrap_or("none").to_owned();
        Ok((name, number(&row["n"])?))
    };
    rows.map(row).collect()
}

fn check_processor(answer: &Value, trace: &Trace, truth: &Truth) -> anyhow::Result<()> {
    assert_eq!(answer["errors"], Value::Array(Vec::new()));
    let mut slices: BTreeMap<String, u64> = BTreeMap::new();
    for span in &trace.spans {
        *slices.entry(span.category.clone()).or_default() += 1;
    }
    let instants = trace.others.iter().filter(|event| event["ph"] == "i");
    for event in instants {
        let category = event["cat"].as_str().unwrap_or("none").to_owned();
        *slices.entry(category).or_default() += 1;
    }
    assert_eq!(counts(&answer["slices"], "category")?, slices);
    for category in [
        "launch",
        "sample",
        "kernel",
        "gpu_memcpy",
        "privateuse1_runtime",
    ] {
        anyhow::ensure!(slices.contains_key(category), "no {category}: {slices:?}");
    }
    let flows = answer["flows"].as_array().context("no flows")?;
    let executed = truth.records.iter().filter(|r| r.kind == 1 && r.what == 2);
    assert_eq!(flows.len(), executed.count());
    for flow in flows {
        assert_eq!(flow["launch"], "aiuLaunchControlBlocks");
        assert_eq!(
            (&flow["category"], &flow["begins"]),
            (&"kernel".into(), &flow["ends"])
        );
        anyhow::ensure!(flow["gap"].as_i64() > Some(0), "{flow}");
    }
    let mut counters: BTreeMap<String, u64> = BTreeMap::new();
    for event in trace.others.iter().filter(|event| event["ph"] == "C") {
        let unit = event["args"]
            .as_object()
            .and_then(|args| args.keys().next());
        let name = event["name"].as_str().context("no name")?;
        let name = format!("{name} {}", unit.context("no unit")?);
        *counters.entry(name).or_default() += 1;
    }
    assert_eq!(counts(&answer["counters"], "name")?, counters);
    anyhow::ensure!(counters.get("power W") > Some(&5), "{counters:?}");
    let devices = answer["devices"].as_array().context("no devices")?;
    let on_devices: u64 = devices.iter().filter_map(|row| row["n"].as_u64()).sum();
    let told = truth
        .records
        .iter()
        .filter(|r| matches!(r.kind, 1 | 4))
        .count();
    assert_eq!(on_devices, told as u64);
    Ok(())
}

#[test]
fn traces_open_in_real_viewers_without_a_warning() -> anyhow::Result<()> {
    let name = "traces_open_in_real_viewers_without_a_warning";
    let Some(_turn) = turn(name, &NEEDS)? else {
        return Ok(());
    };
    let viewers = match viewers() {
        Ok(viewers) => viewers,
        Err(reason) => {
            skip(name, &reason);
            return Ok(());
        }
    };
    for file in ["trace.json", "trace.json.gz"] {
        let shop = Workshop::new()?;
        let file = shop.path(file);
        let truth = record(&shop, &file)?;
        let mut command = Command::new("node");
        command.arg(script("check.mjs")).arg(&file).arg(&viewers);
        command.arg(shop.path(""));
        let browser = find_tool("chromium");
        let answer: Value = serde_json::from_str(&checked(command.args(&browser))?)?;
        check_processor(&answer["processor"], &Trace::read(&file)?, &truth)?;
        if browser.is_none() {
            skip(name, "its part in the browser needs chromium");
            continue;
        }
        for viewer in ["speedscope", "perfetto_ui"] {
            assert_eq!(
                answer[viewer]["messages"],
                Value::Array(Vec::new()),
                "{viewer}"
            );
        }
        let title = answer["speedscope"]["title"].as_str().unwrap_or("");
        assert!(title.starts_with("trace.json"), "{title}");
    }
    Ok(())
}
