//! A trace of a real recording in the viewers that people use: Perfetto's trace processor and user
//! interface, and speedscope. They are fetched once, into the target folder (`viewers/fetch.sh`).
//! Without a network, the test is skipped with a message.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use serde_json::{Value, json};

use aiprof_tests::aiprof::binary;
use aiprof_tests::aiu::{Runtime, Truth, TruthFiles};
use aiprof_tests::need::{Need, find_tool, skip, skip_unless};
use aiprof_tests::trace::{SAMPLES, Span, Trace, number};
use aiprof_tests::viewers::{script, viewers};
use aiprof_tests::workload::{Workshop, checked};

const NEEDS: [Need; 5] = [
    Need::Root,
    Need::Tool("c++"),
    Need::Tool("node"),
    Need::Tool("npm"),
    Need::Tool("python3"),
];

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
    let mut command = Runtime::build(&[])?.recording(&truth, file, &words)?;
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
    skip_unless!(&NEEDS);
    let Some(viewers) = viewers(name) else {
        return Ok(());
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

/// Rows as texts, in order: what two tellers of the same have equal.
fn sorted(rows: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut rows: Vec<String> = rows.into_iter().collect();
    rows.sort();
    rows
}

/// The same rows, as Perfetto has them.
fn told(answer: &Value, of: &str, row: impl Fn(&Value) -> String) -> anyhow::Result<Vec<String>> {
    let rows = answer[of].as_array().with_context(|| format!("no {of}"))?;
    Ok(sorted(rows.iter().map(row)))
}

/// A text in JSON, without quotes.
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("none")
}

/// Whether Perfetto's own format holds what the Chrome trace of the same capture does:
/// spans, stacks of calls and samples, arrows, counters, one by one.
fn compare(answer: &Value, trace: &Trace) -> anyhow::Result<()> {
    assert_eq!(answer["errors"], json!([]));
    let is_sample = |span: &&Span| span.category == "sample";
    let process = |pid: u64| trace.name(pid, None).unwrap_or("none").to_owned();
    let spans = trace.spans.iter().filter(|span| !is_sample(span));
    let of =
        |name: &str, cat: &str, pid: &Value, tid: &Value, ts: &Value, dur: &Value, of: &str| {
            format!("{name} {cat} {pid} {tid} {ts} {dur} {of}")
        };
    let spans = spans.map(|s| {
        let [pid, tid, ts, dur] = [s.pid, s.tid, s.start, s.end - s.start].map(Value::from);
        of(&s.name, &s.category, &pid, &tid, &ts, &dur, &process(s.pid))
    });
    let slices = told(answer, "slices", |s| {
        let [name, cat, process] = ["name", "cat", "process"].map(|key| text(&s[key]));
        of(
            name, cat, &s["pid"], &s["tid"], &s["ts"], &s["dur"], process,
        )
    })?;
    assert_eq!(slices, sorted(spans));
    let with_stack = trace
        .spans
        .iter()
        .filter(|span| span.args["stack"].is_string());
    let stacks = with_stack.map(|s| format!("{} {} {}", s.name, s.start, text(&s.args["stack"])));
    let row = |s: &Value| format!("{} {} {}", text(&s["name"]), s["ts"], text(&s["stack"]));
    let stacks = sorted(stacks);
    anyhow::ensure!(
        slices.len() > 1000 && stacks.len() > 100,
        "{} stacks",
        stacks.len()
    );
    assert_eq!(told(answer, "stacks", row)?, stacks);
    let samples = trace.spans.iter().filter(is_sample).map(|s| {
        let tid = s.tid - SAMPLES;
        format!("{} {tid} {} {} {}", s.pid, s.end, s.args["cpu"], s.stack)
    });
    let row = |s: &Value| {
        format!(
            "{} {} {} {} {}",
            s["pid"],
            s["tid"],
            s["ts"],
            s["cpu"],
            text(&s["stack"])
        )
    };
    let samples = sorted(samples);
    anyhow::ensure!(samples.len() > 20, "{} samples", samples.len());
    assert_eq!(told(answer, "samples", row)?, samples);
    compare_others(answer, trace)
}

/// Arrows, counters, marks.
fn compare_others(answer: &Value, trace: &Trace) -> anyhow::Result<()> {
    let nanos = |event: &Value| (event["ts"].as_f64().unwrap_or(0.0) * 1000.0).round() as u64;
    let of = |ph: &str| {
        trace
            .others
            .iter()
            .filter(move |event| event["ph"] == ph)
            .collect::<Vec<_>>()
    };
    let ends: BTreeMap<u64, u64> = of("f")
        .into_iter()
        .map(|e| Ok((number(&e["id"])?, nanos(e))))
        .collect::<anyhow::Result<_>>()?;
    let flows = of("s").into_iter().map(|event| {
        let end = ends.get(&number(&event["id"]).unwrap_or(0));
        format!("{} {}", nanos(event), end.copied().unwrap_or(0))
    });
    let flows = sorted(flows);
    anyhow::ensure!(!flows.is_empty(), "no arrows");
    let row = |flow: &Value| format!("{} {}", flow["begins_at"], flow["ends_at"]);
    assert_eq!(told(answer, "flows", row)?, flows);
    let counters = of("C").into_iter().flat_map(|event| {
        let pid = event["pid"].as_u64().unwrap_or(0);
        let process = trace.name(pid, None).unwrap_or("none").to_owned();
        let series = event["args"].as_object().into_iter().flatten();
        series.map(move |(key, value)| {
            let value = value.as_f64().unwrap_or(f64::NAN);
            format!(
                "{} {key} {process} {} {value}",
                text(&event["name"]),
                nanos(event)
            )
        })
    });
    let row = |c: &Value| {
        let value = c["value"].as_f64().unwrap_or(f64::NAN);
        format!(
            "{} {} {} {value}",
            text(&c["name"]),
            text(&c["process"]),
            c["ts"]
        )
    };
    let counters = sorted(counters);
    anyhow::ensure!(!counters.is_empty(), "no counters");
    assert_eq!(told(answer, "counters", row)?, counters);
    let marks = of("i")
        .into_iter()
        .map(|event| text(&event["name"]).to_owned());
    let marks = marks.chain(["recording".to_owned()]);
    assert_eq!(
        told(answer, "marks", |mark| text(&mark["name"]).to_owned())?,
        sorted(marks)
    );
    Ok(())
}

#[test]
fn perfetto_has_a_recording_as_it_was_recorded() -> anyhow::Result<()> {
    let name = "perfetto_has_a_recording_as_it_was_recorded";
    skip_unless!(&NEEDS);
    let Some(viewers) = viewers(name) else {
        return Ok(());
    };
    let shop = Workshop::new()?;
    let capture = shop.path("recorded.aiprof");
    record(&shop, &capture)?;
    let (answer, trace) = in_both(&shop, &capture, &[], &viewers)?;
    compare(&answer, &trace)
}

/// Perfetto's view of a capture in its own format, and the capture as a Chrome trace.
fn in_both(
    shop: &Workshop,
    capture: &Path,
    options: &[&str],
    viewers: &Path,
) -> anyhow::Result<(Value, Trace)> {
    let [chrome, perfetto] = ["trace.json", "trace.pftrace"].map(|file| shop.path(file));
    for output in [&chrome, &perfetto] {
        let mut command = Command::new(binary()?);
        command.arg("report").arg(capture).args(options);
        checked(command.arg("-o").arg(output))?;
    }
    let mut command = Command::new("node");
    command
        .arg(script("recording.mjs"))
        .arg(&perfetto)
        .arg(viewers);
    let answer = serde_json::from_str(&checked(&mut command)?)?;
    Ok((answer, Trace::read(&chrome)?))
}

/// Waits are spans among the calls of their threads, in both formats.
#[test]
fn perfetto_has_waits_as_they_were_recorded() -> anyhow::Result<()> {
    let name = "perfetto_has_waits_as_they_were_recorded";
    skip_unless!(&NEEDS);
    let Some(viewers) = viewers(name) else {
        return Ok(());
    };
    let shop = Workshop::new()?;
    let program = shop.build("waits.c", "waits", &["-pthread"])?;
    let capture = shop.path("run.aiprof");
    let mut recorder = Command::new(binary()?);
    recorder.args(["--off-cpu", "-o"]).arg(&capture);
    checked(recorder.arg(&program).arg(shop.path("file")))?;
    let (answer, trace) = in_both(&shop, &capture, &["--wakers"], &viewers)?;
    assert_eq!(answer["errors"], json!([]));
    let waits: Vec<&Span> = trace
        .spans
        .iter()
        .filter(|s| s.category == "wait")
        .collect();
    anyhow::ensure!(waits.len() > 500, "{} waits", waits.len());
    let of = |name: &str, pid: &Value, tid: &Value, ts: &Value, dur: &Value| {
        format!("{name} {pid} {tid} {ts} {dur}")
    };
    let spans = waits.iter().map(|s| {
        let [pid, tid, ts, dur] = [s.pid, s.tid, s.start, s.end - s.start].map(Value::from);
        of(&s.name, &pid, &tid, &ts, &dur)
    });
    let slices = answer["slices"].as_array().context("no slices")?;
    let slices = slices.iter().filter(|slice| slice["cat"] == "wait");
    let slices = slices.map(|s| of(text(&s["name"]), &s["pid"], &s["tid"], &s["ts"], &s["dur"]));
    assert_eq!(sorted(slices), sorted(spans));
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
    skip_unless!(&[Need::Tool("node"), Need::Tool("npm"), Need::Tool("python3")]);
    let Some(viewers) = viewers(name) else {
        return Ok(());
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
