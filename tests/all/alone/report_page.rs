//! The page that `aiprof analyze` makes, in a real browser, opened from the disk. It prints nothing
//! on the console, sorts, filters, draws and zooms. What hostile names in a trace want is not done.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use serde_json::{Value, json};

use aiprof_tests::aiprof::binary;
use aiprof_tests::need::{Need, find_tool, skip_unless};
use aiprof_tests::workload::{Workshop, checked};

const HOSTILE: [&str; 4] = [
    "<img src=x onerror='hacked=1'> Cmpt Exec",
    "</script><script>hacked=1</script> Cmpt Exec",
    "\"><svg onload=hacked=1> Cmpt Exec",
    "\u{202e}cexE tpmC\u{2028}\u{0} Cmpt Exec",
];

/// A trace of two ranks. Kernels have no counters: their times are as written.
fn trace() -> Value {
    let mut events = Vec::new();
    let mut kernel = |name: &str, rank: u32, ts: f64, dur: f64| {
        events.push(
            json!({"ph": "X", "name": name, "cat": name, "pid": rank, "tid": 1,
            "ts": ts, "dur": dur, "args": {"note": name}}),
        );
    };
    for (index, name) in HOSTILE.into_iter().enumerate() {
        kernel(name, 0, 100.0 * index as f64, 5.0 + index as f64);
    }
    kernel("add_1 Cmpt Exec", 0, 1000.0, 1_234_567.0);
    kernel("relu_1 Cmpt Exec", 0, 1_300_000.0, 9_000.0);
    kernel("relu_2 Cmpt Exec", 0, 1_310_000.0, 2_000.0);
    kernel("relu_1 Cmpt Exec", 1, 500_000.0, 800.0);
    for n in 0..3000 {
        events.push(
            json!({"ph": "C", "name": HOSTILE[1], "pid": 0, "ts": 100 * n,
            "args": {"<b>": n % 7}}),
        );
    }
    let synthetic = json!({"synthetic": true, "note": HOSTILE[1]});
    json!({"traceEvents": events, "otherData": synthetic})
}

fn in_browser(page: &Path, shop: &Workshop) -> anyhow::Result<Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("viewers/report.mjs");
    let browser = find_tool("chromium").context("no chromium")?;
    let mut command = Command::new("node");
    command
        .arg(script)
        .arg(page)
        .arg(shop.path(""))
        .arg(browser);
    Ok(serde_json::from_str(&checked(&mut command)?)?)
}

fn analyze(trace: &Path, output: &Path) -> anyhow::Result<()> {
    let mut command = Command::new(binary()?);
    command.arg("analyze").arg(trace).arg("-o").arg(output);
    checked(&mut command).map(drop)
}

fn texts(of: &Value) -> Vec<&str> {
    of.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

#[test]
fn a_report_opens_from_the_disk_and_works() -> anyhow::Result<()> {
    let needs = [Need::Tool("node"), Need::Tool("chromium")];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    // A name that could be markup, too.
    let file: PathBuf = shop.path("<b>'t'.json");
    std::fs::write(&file, trace().to_string())?;
    let page = shop.path("report.html");
    analyze(&file, &page)?;
    let answer = in_browser(&page, &shop)?;

    assert_eq!(answer["messages"], json!([]), "it said something");
    assert_eq!(
        (&answer["hacked"], &answer["refused"]),
        (&json!("undefined"), &json!("undefined"))
    );
    assert_eq!(answer["images"], 0);
    assert_eq!(
        (&answer["wide"], &answer["narrow"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(answer["title"], "<b>'t'.json \u{2013} aiprof");

    let heads = texts(&answer["heads"]);
    assert_eq!(&heads[..4], ["Rank", "Kernel", "Time %", "Total ms"]);
    // Rank 0: 1234567, 9000 + 2000, 8, 7, 6, 5 us; rank 1: 800 us.
    let written = [
        "1,234.567",
        "11.000",
        "0.008",
        "0.007",
        "0.006",
        "0.005",
        "0.800",
    ];
    assert_eq!(texts(&answer["as_written"]), written);
    let falling = [
        "1,234.567",
        "11.000",
        "0.800",
        "0.008",
        "0.007",
        "0.006",
        "0.005",
    ];
    assert_eq!(texts(&answer["falling"]), falling);
    let mut rising = falling;
    rising.reverse();
    assert_eq!(texts(&answer["rising"]), rising);
    let names = texts(&answer["names"]);
    for name in &HOSTILE[..3] {
        assert!(names.contains(name), "{names:?}");
    }
    let unseen =
        "\u{27e8}U+202E\u{27e9}cexE tpmC\u{27e8}U+2028\u{27e9}\u{27e8}U+0000\u{27e9} Cmpt Exec";
    assert!(names.contains(&unseen), "{names:?}");
    let by_name = texts(&answer["by_name"]);
    let relu = ["relu_[N] Cmpt Exec", "relu_[N] Cmpt Exec"];
    let place = |name: &str| by_name.iter().position(|other| *other == name);
    assert!(place("add_[N] Cmpt Exec") < place(relu[0]), "{by_name:?}");
    assert_eq!(texts(&answer["filtered"]), relu);

    let plots = answer["plots"].as_array().context("no plots")?;
    let plot = |name: &str| plots.iter().find(|plot| plot["name"] == name);
    let busy = plot("Device busy").context("no plot of busy devices")?;
    assert_eq!(busy["lines"], 2);
    let counter = plot(HOSTILE[1]).context("no plot of the counter")?;
    assert_eq!(counter["lines"], 1);
    let label = counter["label"].as_str().unwrap_or("");
    assert!(label.ends_with("rank 0: 0 to 6 <b>"), "{label}");
    assert_eq!(answer["zoom"], json!({"changed": true, "back": true}));
    let tip = answer["tip"].as_str().context("no tip")?;
    assert!(tip.contains("rank 0: 100 %"), "{tip}");
    assert!(matches!(answer["theme"].as_str(), Some("light" | "dark")));
    Ok(())
}
