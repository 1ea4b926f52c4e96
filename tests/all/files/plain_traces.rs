//! `aiprof analyze` writes traces of programs on the host back without a change of meaning.
//! Perfetto's trace processor finds as many slices, flows, asynchronous slices, counters and
//! arguments in what is written as in what was read, with the same sums.
//!
//! Where both differ, the difference is listed: what Perfetto drops of a file, aiprof may keep.

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use serde_json::{Value, json};

use aiprof_tests::aiprof::binary;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::viewers::{script, viewers};
use aiprof_tests::workload::{Workshop, checked};

/// Kinds of traces, by the parts of the Trace Event Format that they use.
const SAME: [(&str, &str); 17] = [
    (
        "complete slices",
        r#"{"traceEvents":[
        {"ph":"X","name":"outer","cat":"f","pid":1,"tid":1,"ts":100,"dur":50,"args":{"a":1,"deep":{"b":[1,2]}}},
        {"ph":"X","name":"inner","cat":"f","pid":1,"tid":1,"ts":110,"dur":20},
        {"ph":"X","name":"inner","cat":"f","pid":1,"tid":1,"ts":130,"dur":20},
        {"ph":"X","name":"other","cat":"f","pid":1,"tid":2,"ts":100,"dur":5}]}"#,
    ),
    (
        "begins and ends",
        r#"{"traceEvents":[
        {"ph":"B","name":"a","pid":1,"tid":1,"ts":10,"args":{"x":1}},
        {"ph":"B","name":"b","pid":1,"tid":1,"ts":12},
        {"ph":"E","pid":1,"tid":1,"ts":15},
        {"ph":"E","pid":1,"tid":1,"ts":20,"args":{"y":2}},
        {"ph":"B","name":"c","pid":1,"tid":2,"ts":30},
        {"ph":"E","name":"c","pid":1,"tid":2,"ts":40}]}"#,
    ),
    (
        "asynchronous slices",
        r#"{"traceEvents":[
        {"ph":"b","name":"a","cat":"c","id":1,"pid":1,"tid":1,"ts":10},
        {"ph":"n","name":"p","cat":"c","id":1,"pid":1,"tid":1,"ts":12,"args":{"x":3}},
        {"ph":"b","name":"in","cat":"c","id":1,"pid":1,"tid":1,"ts":13},
        {"ph":"e","name":"in","cat":"c","id":1,"pid":1,"tid":1,"ts":14},
        {"ph":"e","name":"a","cat":"c","id":1,"pid":1,"tid":1,"ts":20,"args":{"late":1}},
        {"ph":"b","name":"a","cat":"c","id":"0x2","pid":1,"tid":1,"ts":11},
        {"ph":"e","name":"a","cat":"c","id":"0x2","pid":1,"tid":1,"ts":31}]}"#,
    ),
    (
        "ids of a process and of all",
        r#"{"traceEvents":[
        {"ph":"b","name":"m","cat":"c","id2":{"local":"0x1"},"pid":1,"tid":1,"ts":10},
        {"ph":"b","name":"m","cat":"c","id2":{"local":"0x1"},"pid":2,"tid":1,"ts":15},
        {"ph":"e","name":"m","cat":"c","id2":{"local":"0x1"},"pid":1,"tid":1,"ts":20},
        {"ph":"e","name":"m","cat":"c","id2":{"local":"0x1"},"pid":2,"tid":1,"ts":40},
        {"ph":"b","name":"g","cat":"c","id2":{"global":"0x9"},"pid":1,"tid":1,"ts":50},
        {"ph":"e","name":"g","cat":"c","id2":{"global":"0x9"},"pid":2,"tid":1,"ts":60}]}"#,
    ),
    (
        "flows of three steps",
        r#"{"traceEvents":[
        {"ph":"X","name":"send","pid":1,"tid":1,"ts":10,"dur":10},
        {"ph":"X","name":"step","pid":1,"tid":2,"ts":30,"dur":10},
        {"ph":"X","name":"receive","pid":1,"tid":3,"ts":50,"dur":10},
        {"ph":"s","name":"f","cat":"c","id":7,"pid":1,"tid":1,"ts":12},
        {"ph":"t","name":"f","cat":"c","id":7,"pid":1,"tid":2,"ts":32},
        {"ph":"f","name":"f","cat":"c","id":7,"pid":1,"tid":3,"ts":52,"bp":"e"},
        {"ph":"s","name":"g","cat":"c","id":"0x8","pid":1,"tid":1,"ts":15},
        {"ph":"f","name":"g","cat":"c","id":"0x8","pid":1,"tid":2,"ts":35,"bp":"e"}]}"#,
    ),
    (
        "flows that slices name",
        r#"{"traceEvents":[
        {"ph":"X","name":"send","pid":1,"tid":1,"ts":10,"dur":10,"bind_id":"0x5","flow_out":true},
        {"ph":"X","name":"receive","pid":1,"tid":2,"ts":40,"dur":10,"bind_id":"0x5","flow_in":true},
        {"ph":"X","name":"send","pid":1,"tid":1,"ts":110,"dur":10,"bind_id":"0x6","flow_out":true},
        {"ph":"X","name":"receive","pid":1,"tid":2,"ts":140,"dur":10,"bind_id":"0x6","flow_in":true,"args":["a",0]}]}"#,
    ),
    (
        "counters",
        r#"{"traceEvents":[
        {"ph":"C","name":"memory","pid":1,"ts":1,"args":{"used":5,"free":2.5}},
        {"ph":"C","name":"memory","pid":1,"ts":2,"args":{"used":6,"free":1.5}},
        {"ph":"C","name":"memory","pid":2,"ts":3,"args":{"used":7}},
        {"ph":"X","name":"all","pid":1,"tid":1,"ts":1,"dur":10}]}"#,
    ),
    (
        "moments",
        r#"{"traceEvents":[
        {"ph":"X","name":"all","pid":1,"tid":1,"ts":1,"dur":100},
        {"ph":"i","name":"global","pid":1,"tid":1,"ts":10,"s":"g"},
        {"ph":"i","name":"process","pid":1,"tid":1,"ts":11,"s":"p"},
        {"ph":"i","name":"thread","pid":1,"tid":1,"ts":12,"s":"t"},
        {"ph":"I","name":"old","pid":1,"tid":1,"ts":13},
        {"ph":"R","name":"mark","pid":1,"tid":1,"ts":14},
        {"ph":"i","name":"none","pid":1,"tid":1,"ts":15,"args":{"k":4}}]}"#,
    ),
    (
        "names of rows",
        r#"{"traceEvents":[
        {"ph":"M","name":"process_name","pid":1,"args":{"name":"program"}},
        {"ph":"M","name":"thread_name","pid":1,"tid":1,"args":{"name":"main"}},
        {"ph":"M","name":"thread_sort_index","pid":1,"tid":1,"args":{"sort_index":3}},
        {"ph":"M","name":"process_labels","pid":1,"args":{"labels":"x"}},
        {"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":5},
        {"ph":"X","name":"b","pid":1,"tid":2,"ts":1,"dur":5}]}"#,
    ),
    (
        "ids of rows as text",
        r#"{"traceEvents":[
        {"ph":"X","name":"a","pid":"Renderer","tid":"worker","ts":10,"dur":5},
        {"ph":"X","name":"b","pid":"Renderer","tid":"main","ts":10,"dur":5},
        {"ph":"X","name":"c","pid":"Browser","tid":"main","ts":10,"dur":5}]}"#,
    ),
    (
        "times as text",
        r#"{"traceEvents":[
        {"ph":"X","name":"a","pid":"1","tid":"2","ts":"100.5","dur":"10.25"},
        {"ph":"X","name":"b","pid":"1","tid":"2","ts":"120.5","dur":"1"}]}"#,
    ),
    (
        "slices without a name",
        r#"{"traceEvents":[
        {"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":50},
        {"ph":"X","pid":1,"tid":1,"ts":10,"dur":5},
        {"ph":"B","pid":1,"tid":1,"ts":20},
        {"ph":"E","pid":1,"tid":1,"ts":25},
        {"ph":"i","pid":1,"tid":1,"ts":30,"s":"t"}]}"#,
    ),
    (
        "parts of nanoseconds",
        r#"{"traceEvents":[
        {"ph":"X","name":"a","pid":1,"tid":1,"ts":1000000.125,"dur":9.999,"args":{"result":7}},
        {"ph":"X","name":"b","pid":1,"tid":1,"ts":1000010.126,"dur":9.999},
        {"ph":"X","name":"c","pid":1,"tid":1,"ts":1000020.127,"dur":0.001}]}"#,
    ),
    (
        "times of the CPU and colors",
        r#"{"traceEvents":[
        {"ph":"X","name":"a","pid":1,"tid":1,"ts":10,"dur":20,"tts":5,"tdur":7,"cname":"good"},
        {"ph":"B","name":"b","pid":1,"tid":1,"ts":40,"tts":20},
        {"ph":"E","pid":1,"tid":1,"ts":50,"tts":29}]}"#,
    ),
    (
        "slices without a length",
        r#"{"traceEvents":[
        {"ph":"X","name":"a","pid":1,"tid":1,"ts":10,"dur":0},
        {"ph":"X","name":"b","pid":1,"tid":1,"ts":10,"dur":5},
        {"ph":"X","name":"c","pid":1,"tid":1,"ts":15,"dur":0},
        {"ph":"X","name":"d","pid":1,"tid":1,"ts":15,"dur":0}]}"#,
    ),
    (
        "a list without its end",
        r#"[
        {"ph":"X","name":"a","cat":"f","pid":1,"tid":1,"ts":1700000000000000,"dur":5},
        {"ph":"X","name":"b","cat":"f","pid":1,"tid":1,"ts":1700000000000003.5,"dur":1},
        "#,
    ),
    (
        "what stands beside the events",
        r#"{"displayTimeUnit":"ns","otherData":{"version":"1"},"systemTraceEvents":"",
        "stackFrames":{"1":{"name":"f","category":"c"}},"traceEvents":[
        {"ph":"X","name":"a","cat":"f","pid":1,"tid":1,"ts":10,"dur":5,"sf":1}]}"#,
    ),
];

/// Traces of which Perfetto drops something, or does not keep it apart. It counts slices on threads,
/// slices elsewhere and counters' tracks: in the file, in the written file, and in that of its own
/// format.
const DIFFERENT: [(&str, &str, [[u64; 3]; 3]); 3] = [
    (
        // It does not know S, T and F. The trace is written with b, n and e.
        "asynchronous slices of the old kind",
        r#"{"traceEvents":[
        {"ph":"S","name":"a","cat":"c","id":1,"pid":1,"tid":1,"ts":10},
        {"ph":"T","name":"a","cat":"c","id":1,"pid":1,"tid":1,"ts":12,"args":{"step":"x"}},
        {"ph":"F","name":"a","cat":"c","id":1,"pid":1,"tid":1,"ts":20},
        {"ph":"X","name":"all","pid":1,"tid":1,"ts":1,"dur":100}]}"#,
        [[1, 0, 0], [1, 2, 0], [1, 2, 0]],
    ),
    (
        // It drops a slice that overlaps another in part. The trace has a row more.
        "slices that overlap in part",
        r#"{"traceEvents":[
        {"ph":"X","name":"a","pid":1,"tid":1,"ts":10,"dur":20},
        {"ph":"X","name":"b","pid":1,"tid":1,"ts":20,"dur":20}]}"#,
        [[1, 0, 0], [2, 0, 0], [2, 0, 0]],
    ),
    (
        // A counter's id is a part of its name (Trace Event Format); it leaves that out.
        "counters with ids",
        r#"{"traceEvents":[
        {"ph":"C","name":"queue","id":1,"pid":1,"ts":3,"args":{"n":1}},
        {"ph":"C","name":"queue","id":2,"pid":1,"ts":4,"args":{"n":10}},
        {"ph":"C","name":"queue","id":1,"pid":1,"ts":5,"args":{"n":3}}]}"#,
        [[0, 0, 1], [0, 0, 1], [0, 0, 2]],
    ),
];

/// What Perfetto's trace processor makes of each trace, of what is written of it as JSON, and of
/// that in Perfetto's format.
fn processed(traces: &[&str], viewers: &Path) -> anyhow::Result<Vec<[Value; 3]>> {
    let shop = Workshop::new()?;
    let mut command = Command::new("node");
    command.arg(script("counts.mjs")).arg(viewers);
    for (number, text) in traces.iter().enumerate() {
        let input = shop.path(&format!("{number}.json"));
        std::fs::write(&input, text)?;
        command.arg(&input);
        for extension in ["out.json", "pftrace"] {
            let output = shop.path(&format!("{number}.{extension}"));
            let mut analyze = Command::new(binary()?);
            analyze.args(["analyze", "-q", "--no-tables"]).arg(&input);
            checked(analyze.arg("-o").arg(&output)).with_context(|| (*text).to_owned())?;
            command.arg(&output);
        }
    }
    let answer: Vec<Value> = serde_json::from_str(&checked(&mut command)?)?;
    let threes = answer.chunks_exact(3).map(|three| match three {
        [read, json, own] => Ok([read.clone(), json.clone(), own.clone()]),
        _ => anyhow::bail!("not three answers"),
    });
    threes.collect()
}

#[test]
fn plain_traces_are_written_back_without_a_change_of_meaning() -> anyhow::Result<()> {
    let name = "plain_traces_are_written_back_without_a_change_of_meaning";
    skip_unless!(&[Need::Tool("node"), Need::Tool("npm"), Need::Tool("python3")]);
    let Some(viewers) = viewers(name) else {
        return Ok(());
    };
    let traces: Vec<&str> = SAME.iter().map(|(_, text)| *text).collect();
    for ((name, _), [read, json, own]) in SAME.iter().zip(processed(&traces, &viewers)?) {
        assert_eq!(read["errors"], json!([]), "{name}");
        assert_eq!(json, read, "{name}, as JSON");
        assert_eq!(own, read, "{name}, in Perfetto's format");
    }
    let traces: Vec<&str> = DIFFERENT.iter().map(|(_, text, _)| *text).collect();
    for ((name, _, expected), all) in DIFFERENT.iter().zip(processed(&traces, &viewers)?) {
        let numbers = all.map(|one| {
            let of = |what: &str, key: &str| one[what][key].as_u64().unwrap_or(u64::MAX);
            [
                of("slices", "n"),
                of("others", "n"),
                of("counters", "tracks"),
            ]
        });
        assert_eq!(numbers, *expected, "{name}");
    }
    Ok(())
}
