//! `aiprof analyze --table memory` and its relatives, on a trace of PyTorch, against PyTorch's own
//! exporter of the memory timeline (`data/torch/README.md`).

use std::io::Read as _;
use std::path::Path;

use aiprof_tests::acelyzer::{Input, Which};
use anyhow::Context as _;
use serde_json::Value;

const TRACE: &str = "train_memory.json.gz";

fn data(name: &str) -> anyhow::Result<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("data/torch")
        .join(name);
    std::fs::read(&path).with_context(|| path.display().to_string())
}

fn figures() -> anyhow::Result<Value> {
    let mut text = String::new();
    let packed = data("train_memory.figures.json.gz")?;
    flate2::read::GzDecoder::new(&packed[..]).read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

/// The rows of a table of a file.
fn rows(name: &str, content: Vec<u8>, table: &str) -> anyhow::Result<Vec<Value>> {
    let input = Input::one(name, content);
    let args = format!("{name} --table {table} --format json");
    let ran = Which::Analyze.run(&input, &args)?;
    anyhow::ensure!(ran.code == Some(0), "{}{}", ran.stdout, ran.stderr);
    let tables: Value = serde_json::from_str(&ran.stdout)?;
    Ok(tables[0]["rows"].as_array().context("no rows")?.clone())
}

fn bytes(value: &Value) -> anyhow::Result<u64> {
    value.as_u64().with_context(|| value.to_string())
}

/// PyTorch adds the tensors that it found in use and that were allocated before the profile;
/// the trace does not have them.
#[test]
fn peak_and_totals_are_those_of_torch_s_exporter() -> anyhow::Result<()> {
    let torch = figures()?;
    let before = bytes(&torch["preexisting"])?;
    let rows = rows(TRACE, data(TRACE)?, "memory")?;
    let [row] = &rows[..] else {
        anyhow::bail!("{rows:?}")
    };
    assert_eq!(row["device"], "CPU");
    assert_eq!(bytes(&row["peak"])? + before, bytes(&torch["peak"])?);
    assert_eq!(bytes(&row["end"])? + before, bytes(&torch["end"])?);
    for (count, sum, action) in [
        ("allocations", "allocated", "created"),
        ("frees", "freed", "destroyed"),
    ] {
        assert_eq!(row[count], torch[action]["count"], "{action}");
        assert_eq!(row[sum], torch[action]["bytes"], "{action}");
    }
    Ok(())
}

/// What PyTorch takes for the optimizer's state and for inputs was allocated in these lines of
/// `train_memory.py`.
#[test]
fn holders_at_the_peak_are_the_lines_that_allocated() -> anyhow::Result<()> {
    let torch = figures()?;
    let rows = rows(TRACE, data(TRACE)?, "memory-peak")?;
    let held = |lines: &[&str]| {
        let of_lines = rows.iter().filter(|row| {
            let line = row["python"].as_str().unwrap_or_default();
            lines.is_empty() || lines.contains(&line)
        });
        of_lines.map(|row| bytes(&row["held"])).sum::<anyhow::Result<u64>>()
    };
    let all = bytes(&torch["peak"])? - bytes(&torch["preexisting"])?;
    assert_eq!(held(&[])?, all);
    let optimizer = held(&["train_memory.py:38"])?;
    assert_eq!(optimizer, bytes(&torch["optimizer_at_peak"])?);
    let inputs = held(&["train_memory.py:34", "train_memory.py:35"])?;
    assert_eq!(inputs, bytes(&torch["inputs_at_peak"])?);
    Ok(())
}

#[test]
fn operators_have_the_memory_of_key_averages() -> anyhow::Result<()> {
    let torch = figures()?;
    let rows = rows(TRACE, data(TRACE)?, "key-averages")?;
    for expected in torch["rows"].as_array().context("no rows")? {
        let row = rows.iter().find(|row| row["name"] == expected["name"]);
        let row = row.with_context(|| expected.to_string())?;
        for (ours, theirs) in [("self_cpu_memory_usage", "self"), ("cpu_memory_usage", "total")] {
            let found = row[ours].as_f64().unwrap_or(0.0);
            assert_eq!(Some(found), expected[theirs].as_f64(), "{expected}");
        }
    }
    Ok(())
}

/// Written traces have one counter of the same values, however often they are read and written,
/// and the same tables.
#[test]
fn written_traces_have_the_counter_once() -> anyhow::Result<()> {
    let peak = rows(TRACE, data(TRACE)?, "memory")?[0]["peak"].clone();
    for first in ["out.json", "out.pftrace"] {
        let (mut name, mut content) = (TRACE.to_owned(), data(TRACE)?);
        let mut counts = Vec::new();
        for out in [first, "again.json"] {
            let input = Input::one(&name, content);
            let ran = Which::Analyze.run(&input, &format!("{name} -o {out}"))?;
            anyhow::ensure!(ran.code == Some(0), "{}{}", ran.stdout, ran.stderr);
            (name, content) = (out.to_owned(), ran.file(out)?.to_vec());
            if out.ends_with(".json") {
                let trace: Value = serde_json::from_slice(&content)?;
                let events = trace["traceEvents"].as_array().context("no events")?;
                let counters = events.iter().filter(|one| one["name"] == "Memory CPU");
                let values = counters.filter_map(|one| one["args"]["Allocated"].as_u64());
                let values: Vec<u64> = values.collect();
                assert_eq!(values.iter().max().copied(), peak.as_u64(), "{out}");
                counts.push(values.len());
            }
            let again = rows(&name, content.clone(), "memory")?;
            assert_eq!(again[0]["peak"], peak, "{out}");
        }
        // A sample for each of the 464 events, all at times of their own.
        assert!(counts.iter().all(|count| *count == 464), "{first}: {counts:?}");
    }
    Ok(())
}
