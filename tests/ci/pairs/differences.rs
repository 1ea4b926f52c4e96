//! `aiprof diff` on pairs whose truth is known, drawn, made and recorded.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

use aiprof_tests::aiprof::{Aiprof, binary};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::{Workshop, checked};

/// The tables of `aiprof diff WORDS --format json`.
fn tables(dir: &Path, words: &[&str]) -> anyhow::Result<Vec<Value>> {
    let mut command = Command::new(binary()?);
    command.arg("diff").args(words).args(["--format", "json"]);
    let text = checked(command.current_dir(dir))?;
    Ok(serde_json::from_str(&text)?)
}

fn named<'a>(tables: &'a [Value], name: &str) -> anyhow::Result<&'a Value> {
    let table = tables.iter().find(|table| table["name"] == name);
    table.with_context(|| format!("no {name} in {tables:?}"))
}

fn title(table: &Value) -> &str {
    table["title"].as_str().unwrap_or_default()
}

fn number(row: &Value, column: &str) -> anyhow::Result<f64> {
    let number = row[column].as_f64();
    number.with_context(|| format!("no {column} in {row}"))
}

/// Two recordings of a program show no change, and one of whose functions takes half as
/// long again names that function first, with the truth in its interval.
#[test]
fn recordings_of_a_program_tell_noise_from_change() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root, Need::Tool("cc")]);
    let shop = Workshop::new()?;
    let program = shop.build("shares.c", "shares", &[])?;
    for (file, factor) in [("a", "1"), ("b", "1"), ("slow", "1.5")] {
        let capture = shop.path(&format!("{file}.aiprof"));
        let mut recording = Aiprof::with(["-F", "999", "--comm", "^shares$", "-o"])
            .option(&capture)
            .command(&program, &[factor, "150000"])
            .to_command()?;
        checked(&mut recording)?;
    }
    let at = shop.path("");
    let same = tables(&at, &["a.aiprof", "b.aiprof"])?;
    let same = named(&same, "functions")?;
    anyhow::ensure!(title(same).starts_with("nothing changed"), "{same:#}");
    let slow = tables(&at, &["a.aiprof", "slow.aiprof"])?;
    let slow = named(&slow, "functions")?;
    let first = &slow["rows"][0];
    anyhow::ensure!(
        first["function"] == "lookup" && first["self_verdict"] == "changed",
        "{slow:#}"
    );
    // 300 of 1,800 parts before, 450 of 1,950 after. The rest of the process, its start,
    // takes little.
    let truth = 100.0 * (450.0 / 1950.0 - 300.0 / 1800.0);
    let off = (number(first, "self")? - truth).abs();
    anyhow::ensure!(
        off <= 1.5 * number(first, "self_error")?,
        "{truth}: {slow:#}"
    );
    Ok(())
}

/// Values of a flame graph tool: microseconds, of samples 10,101 us apart.
#[test]
fn folded_stacks_say_what_a_sample_is_taken_for() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let write = |name: &str, counts: &[(&str, u64)]| {
        let lines = counts.iter().map(|(stack, count)| {
            let us = (*count as f64 * 1e6 / 99.0).round();
            format!("p;main;{stack} {us}\n")
        });
        std::fs::write(dir.path().join(name), lines.collect::<String>())
    };
    write("before", &[("e", 1), ("f", 50), ("g", 151), ("h", 199)])?;
    // 2.5 points in 400 samples: nothing.
    write("noise", &[("e", 1), ("f", 60), ("g", 141), ("h", 199)])?;
    write("after", &[("e", 1), ("f", 120), ("g", 151), ("h", 199)])?;
    let noise = tables(dir.path(), &["before", "noise"])?;
    let noise = named(&noise, "functions")?;
    anyhow::ensure!(title(noise).starts_with("nothing changed"), "{noise:#}");
    anyhow::ensure!(
        noise.to_string().contains("stand for 10101 us"),
        "{noise:#}"
    );
    let after = tables(dir.path(), &["before", "after"])?;
    let first = &named(&after, "functions")?["rows"][0];
    anyhow::ensure!(
        first["function"] == "f" && first["self_verdict"] == "changed",
        "{first}"
    );
    // By hand: sqrt(p (1 - p) / n) of both after one more sample of either kind, times
    // 1.96, and half a sample of each.
    let part = |x: f64, n: f64| (x + 1.0) / (n + 2.0) * (1.0 - (x + 1.0) / (n + 2.0)) / (n + 2.0);
    let (n, m) = (401.0, 471.0);
    let half = 1.959_964 * (part(50.0, n) + part(120.0, m)).sqrt() + 0.5 / n + 0.5 / m;
    let off = (number(first, "self_error")? - 100.0 * half).abs();
    anyhow::ensure!(off < 0.01, "{half}: {first}");
    // Times that are no multiples of a period do not allow to estimate chance.
    std::fs::write(dir.path().join("odd"), "p;f 10101\np;g 13377\np;h 27003\n")?;
    let odd = tables(dir.path(), &["before", "odd"])?;
    let odd = named(&odd, "functions")?;
    anyhow::ensure!(title(odd).starts_with("unknown whether"), "{odd:#}");
    let told = tables(dir.path(), &["before", "odd", "--period", "1ms"])?;
    anyhow::ensure!(!title(named(&told, "functions")?).starts_with("unknown"));
    Ok(())
}

/// A trace of which the calls of one kernel are made half as long again.
#[test]
fn a_slower_kernel_of_a_trace_is_named_first() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/kineto/nccl.json.gz");
    let packed = std::fs::read(packed)?;
    let mut trace: Value =
        serde_json::from_reader(flate2::read::GzDecoder::new(packed.as_slice()))?;
    std::fs::write(dir.path().join("before.json"), trace.to_string())?;
    let same = tables(dir.path(), &["before.json", "before.json"])?;
    for name in ["kernels", "operators", "paths", "findings"] {
        let table = named(&same, name)?;
        anyhow::ensure!(title(table).contains("nothing changed"), "{}", title(table));
    }
    let events = trace["traceEvents"].as_array_mut().context("no events")?;
    let is_kernel = |event: &Value| event["cat"] == "kernel";
    // The name whose calls differ least, but do.
    let mut calls: std::collections::BTreeMap<String, Vec<f64>> = Default::default();
    for event in events.iter().filter(|event| is_kernel(event)) {
        let name = event["name"].as_str().unwrap_or_default().to_owned();
        calls.entry(name).or_default().push(number(event, "dur")?);
    }
    let spread = |calls: &[f64]| {
        let mean = calls.iter().sum::<f64>() / calls.len() as f64;
        let least = calls.iter().copied().fold(f64::MAX, f64::min);
        let most = calls.iter().copied().fold(0.0, f64::max);
        (most - least) / mean
    };
    let is_long = |calls: &[f64]| calls.iter().sum::<f64>() > 20.0 * calls.len() as f64;
    let usable = calls
        .iter()
        .filter(|(_, calls)| calls.len() >= 10 && spread(calls) > 0.0 && is_long(calls));
    let even = usable.min_by(|a, b| spread(a.1).total_cmp(&spread(b.1)));
    let (name, lengths) = even.context("no kernels")?;
    for event in events
        .iter_mut()
        .filter(|event| is_kernel(event) && event["name"] == **name)
    {
        // Three times as long it would not end before the next kernel of its stream begins.
        event["dur"] = (number(event, "dur")? / 3.0).into();
    }
    let mut file = std::fs::File::create(dir.path().join("faster.json"))?;
    file.write_all(trace.to_string().as_bytes())?;
    let slow = tables(dir.path(), &["faster.json", "before.json"])?;
    let kernels = named(&slow, "kernels")?;
    let first = &kernels["rows"][0];
    anyhow::ensure!(
        first["kernel"] == **name && first["verdict"] == "slower",
        "{name}: {first}"
    );
    let mean = lengths.iter().sum::<f64>() / lengths.len() as f64;
    let off = (number(first, "mean_change")? - mean * 2.0 / 3.0).abs();
    anyhow::ensure!(off < 0.01 * mean, "{mean}: {first}");
    anyhow::ensure!(first["calls_after"] == lengths.len(), "{first}");
    let others = title(named(&slow, "operators")?).to_owned();
    anyhow::ensure!(others.contains("nothing changed"), "{others}");
    Ok(())
}
