//! A trace of a real recording in the viewers that people use: Perfetto's trace
//! processor and user interface, and speedscope. They are fetched once, into the
//! target folder (`viewers/fetch.sh`); without a network the test says so and is
//! skipped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use serde_json::{Value, json};

use aiprof_tests::aiprof::{Aiprof, binary};
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

/// A trace of Torch's profiler, whose rows and times an analysis leaves as they are.
const TORCH: &str = r#"{"deviceProperties": [{"id": 0}], "traceEvents": [
{"ph":"M","name":"process_name","pid":11,"args":{"name":"python \"x\""}},
{"ph":"M","name":"thread_name","pid":11,"tid":4,"args":{"name":"main"}},
{"ph":"X","name":"outer","cat":"cpu_op","pid":11,"tid":4,"ts":1751234567890100.125,"dur":10,
 "args":{"x_n":-5,"x_d":0.5,"x_t":"a\"b","x_deep":{"k":[1,[],{"z":null}],"e":{}},"x_yes":true,"x_nil":null}},
{"ph":"X","name":"inner","cat":"cpu_op","pid":11,"tid":4,"ts":1751234567890100.125,"dur":4},
{"ph":"X","name":"touching","cat":"cpu_op","pid":11,"tid":4,"ts":1751234567890104.125,"dur":6},
{"ph":"X","name":"later","cat":"cpu_op","pid":12,"tid":12,"ts":1751234567890120,"dur":1.001},
{"ph":"C","name":"memory","pid":11,"ts":1751234567890124,"args":{"used":5,"free":2.5}},
{"ph":"C","name":"memory","pid":11,"ts":1751234567890125,"args":{"used":6,"free":1.5}},
{"ph":"s","name":"go","cat":"go","id":7,"pid":11,"tid":4,"ts":1751234567890106},
{"ph":"f","name":"go","cat":"go","id":7,"pid":12,"tid":12,"ts":1751234567890120.5,"bp":"e"}]}"#;

#[test]
fn perfetto_reads_what_is_written_in_its_own_format() -> anyhow::Result<()> {
    let name = "perfetto_reads_what_is_written_in_its_own_format";
    let Some(_turn) = turn(
        name,
        &[Need::Tool("node"), Need::Tool("npm"), Need::Tool("python3")],
    )?
    else {
        return Ok(());
    };
    let viewers = match viewers() {
        Ok(viewers) => viewers,
        Err(reason) => {
            skip(name, &reason);
            return Ok(());
        }
    };
    let shop = Workshop::new()?;
    let (input, output) = (shop.path("in.json"), shop.path("out.pftrace"));
    std::fs::write(&input, TORCH)?;
    checked(
        Command::new(binary()?)
            .arg("analyze")
            .arg(&input)
            .arg("-o")
            .arg(&output),
    )?;
    let mut command = Command::new("node");
    let text = checked(
        command
            .arg(script("pftrace.mjs"))
            .arg(&output)
            .arg(&viewers),
    )?;
    let answer: Value = serde_json::from_str(&text)?;
    let start = 1_751_234_567_890_000_000_u64;
    let slice = |name: &str, ns: u64, dur: u64, depth: u64| {
        json!({"name": name, "cat": "cpu_op", "ts": start + ns, "dur": dur, "depth": depth,
            "tid": 4, "thread": "main", "pid": 11, "process": "python \"x\""})
    };
    let later = json!({"name": "later", "cat": "cpu_op", "ts": start + 120_000, "dur": 1001,
        "depth": 0, "tid": 12, "thread": null, "pid": 12, "process": null});
    let slices = json!([
        slice("outer", 100_125, 10_000, 0),
        slice("inner", 100_125, 4000, 1),
        slice("touching", 104_125, 6000, 1),
        later
    ]);
    // The numbers of the reply are doubles: they have no nanoseconds since 1970.
    assert_eq!(rounded(&answer["slices"]), rounded(&slices));
    let arg = |key: &str, number: Value, real: Value, text: Value| json!({"slice": "outer", "key": format!("debug.{key}"), "number": number, "real": real, "text": text});
    let none = Value::Null;
    assert_eq!(
        answer["args"],
        json!([
            arg("x_d", none.clone(), json!(0.5), none.clone()),
            arg("x_deep.k[0]", json!(1), none.clone(), none.clone()),
            arg("x_n", json!(-5), none.clone(), none.clone()),
            arg("x_t", none.clone(), none.clone(), json!("a\"b")),
            arg("x_yes", json!(1), none.clone(), none.clone()),
        ])
    );
    let counter = |series: &str, ns: u64, value: f64| {
        json!({"name": format!("memory {series}"), "unit": series, "pid": 11, "ts": start + ns,
            "value": value})
    };
    let counters = json!([
        counter("free", 124_000, 2.5),
        counter("free", 125_000, 1.5),
        counter("used", 124_000, 5.0),
        counter("used", 125_000, 6.0),
    ]);
    assert_eq!(rounded(&answer["counters"]), rounded(&counters));
    assert_eq!(
        answer["flows"],
        json!([{"begins": "touching", "ends": "later"}])
    );
    assert_eq!(answer["errors"], json!([]));
    Ok(())
}

/// All numbers as doubles.
fn rounded(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(values) => values.iter().map(rounded).collect(),
        Value::Object(members) => {
            let members = members
                .iter()
                .map(|(key, value)| (key.clone(), rounded(value)));
            Value::Object(members.collect())
        }
        other => other.clone(),
    }
}
