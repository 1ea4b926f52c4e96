//! `aiprof analyze --table` against HolisticTraceAnalysis 0.5.0 itself, which runs beside it
//! (`hta/oracle.py`; fetched from PyPI into the target folder). Every analysis is compared, on real
//! traces of NVIDIA and AMD GPUs and on made ones.
//!
//! Figures are equal to a thousandth once four habits are taken out of HTA that are in no
//! definition of its analyses (`oracle.py` names them). That they are what differs in HTA as it is
//! shipped is tested too. [`DIFFERENT`] lists, with the cause, what HTA cannot do, or does to other
//! numbers by the definition that `profiler/crates/tables/src/hta` gives.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use aiprof_tests::aiprof;
use aiprof_tests::need::skip;
use aiprof_tests::workload::checked;
use anyhow::Context as _;
use serde_json::{Value, json};

/// A table of ours and one of HTA's.
struct Pair {
    /// Ours; parts of a table have names of their own.
    ours: &'static str,
    /// The name in `oracle.py`.
    theirs: &'static str,
    /// Columns that identify rows, ours and HTA's.
    keys: &'static [(&'static str, &'static str)],
    /// Columns that are compared.
    values: &'static [(&'static str, &'static str)],
}

const SPREAD: &[(&str, &str)] = &[
    ("sum", "sum (us)"),
    ("max", "max (us)"),
    ("min", "min (us)"),
    ("mean", "mean (us)"),
    ("deviation", "stddev"),
];
const DESCRIBED: &[(&str, &str)] = &[
    ("changes", "count"),
    ("mean", "mean"),
    ("deviation", "std"),
    ("min", "min"),
    ("p25", "25%"),
    ("median", "50%"),
    ("p75", "75%"),
    ("max", "max"),
];

const PAIRS: &[Pair] = &[
    Pair {
        ours: "temporal",
        theirs: "temporal",
        keys: &[("rank", "rank")],
        values: &[
            ("total", "kernel_time(us)"),
            ("idle", "idle_time(us)"),
            ("compute", "compute_time(us)"),
            ("non_compute", "non_compute_time(us)"),
        ],
    },
    Pair {
        ours: "comm-overlap",
        theirs: "comm-overlap",
        keys: &[("rank", "rank")],
        values: &[("overlap_share", "comp_comm_overlap_pctg")],
    },
    Pair {
        ours: "kernel-types",
        theirs: "kernel-types",
        keys: &[("types", "kernel_type")],
        values: &[("time", "sum")],
    },
    Pair {
        ours: "kernel-breakdown",
        theirs: "kernel-breakdown",
        keys: &[("rank", "rank"), ("type", "kernel_type"), ("name", "name")],
        values: SPREAD,
    },
    Pair {
        ours: "idle",
        theirs: "idle",
        keys: &[
            ("rank", "rank"),
            ("stream", "stream"),
            ("cause", "idle_category"),
        ],
        values: &[("idle", "idle_time")],
    },
    Pair {
        ours: "queue-length",
        theirs: "queue-length",
        keys: &[("rank", "rank"), ("stream", "stream")],
        values: DESCRIBED,
    },
    Pair {
        ours: "launches",
        theirs: "launches",
        keys: &[("rank", "rank"), ("correlation", "correlation")],
        values: &[
            ("call_time", "cpu_duration"),
            ("device_time", "gpu_duration"),
            ("delay", "launch_delay"),
        ],
    },
    Pair {
        ours: "annotations",
        theirs: "annotations",
        keys: &[("rank", "rank"), ("side", "side"), ("name", "name")],
        values: SPREAD,
    },
    Pair {
        ours: "memory-bandwidth",
        theirs: "memory-bandwidth",
        keys: &[("rank", "rank"), ("kind", "name")],
        values: DESCRIBED,
    },
    Pair {
        ours: "op-delays",
        theirs: "op-delays",
        keys: &[
            ("rank", "rank"),
            ("operator", "aten_op_name"),
            ("kernels", "kernel_sequence"),
        ],
        values: &[
            ("count", "occurrence_count"),
            ("launch_delay", "avg_aten_op_launch_delay"),
            ("device_delay", "avg_runtime_delay"),
        ],
    },
    Pair {
        ours: "kernel-sequences",
        theirs: "kernel-sequences",
        keys: &[("rank", "rank"), ("kernels", "pattern")],
        values: &[
            ("count", "count"),
            ("device_time", "GPU kernel duration (us)"),
            ("host_time", "CPU op duration (us)"),
        ],
    },
    Pair {
        ours: "cupti-counters",
        theirs: "cupti-counters",
        keys: &[
            ("rank", "rank"),
            ("number", "number"),
            ("counter", "counter"),
            ("kernel", "name"),
            ("top_operator", "top_level_op"),
            ("operator", "bottom_level_op"),
        ],
        values: &[("value", "value")],
    },
    Pair {
        ours: "critical-path-bounds",
        theirs: "critical-path",
        keys: &[("rank", "rank"), ("bound_by", "bound_by")],
        values: &[("time", "us")],
    },
    Pair {
        ours: "trace-diff",
        theirs: "trace-diff",
        keys: &[("name", "name")],
        values: &[
            ("control_count", "control_counts"),
            ("test_count", "test_counts"),
            ("control_time", "control_total_duration"),
            ("test_time", "test_total_duration"),
        ],
    },
];

/// HTA and what it needs; why it cannot be had.
fn hta() -> Result<PathBuf, String> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let fetched = || fetch().map_err(|error| format!("needs HTA of PyPI: {error:#}"));
    FOLDER.get_or_init(fetched).clone()
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("hta").join(name)
}

fn fetch() -> anyhow::Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let root = root.context("the tests lie in the workspace")?;
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), |dir| root.join(dir));
    std::fs::create_dir_all(&target)?;
    let lock = std::fs::File::create(target.join("hta.lock"))?;
    lock.lock()?;
    let folder = target.join("hta");
    checked(Command::new("sh").arg(script("fetch.sh")).arg(&folder))?;
    Ok(folder)
}

/// Rows of HTA's analyses by name; what failed is an object with `error`.
type Tables = BTreeMap<String, Value>;

fn theirs(mode: &str, arguments: &[String]) -> anyhow::Result<Tables> {
    let folder = hta().map_err(anyhow::Error::msg)?;
    let mut command = Command::new("python3");
    command.arg(script("oracle.py")).arg(mode).args(arguments);
    let printed = checked(command.env("PYTHONPATH", folder))?;
    Ok(serde_json::from_str(&printed)?)
}

/// Rows of our tables by name.
fn ours(files: &[PathBuf], arguments: &[&str]) -> anyhow::Result<Tables> {
    let printed = checked(
        Command::new(aiprof::binary()?)
            .arg("analyze")
            .args(files)
            .args(["--format", "json", "--table"])
            .args(arguments),
    )?;
    let tables: Vec<Value> = serde_json::from_str(&printed)?;
    let named = tables.into_iter().map(|mut table| {
        let name = table["name"].as_str().unwrap_or_default().to_owned();
        (name, table["rows"].take())
    });
    Ok(named.collect())
}

fn data(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/kineto");
    folder.join(format!("{name}.json.gz"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// HTA's words in ours.
fn word(text: &str) -> String {
    let words = [
        (
            "COMPUTATION overlapping COMMUNICATION",
            "compute + communication",
        ),
        ("COMPUTATION overlapping MEMORY", "compute + copy"),
        ("COMMUNICATION overlapping MEMORY", "communication + copy"),
        (
            "COMPUTATION overlapping COMMUNICATION overlapping MEMORY",
            "compute + communication + copy",
        ),
        ("COMPUTATION", "compute"),
        ("COMMUNICATION", "communication"),
        ("MEMORY", "copy"),
        // Here these are separate.
        ("collective_wait", "other"),
        ("copy_bound", "compute_bound"),
        ("gpu_compute_bound", "compute_bound"),
        ("gpu_communication_bound", "communication_bound"),
        ("gpu_kernel_kernel_overhead", "kernel_kernel_overhead"),
        ("gpu_kernel_launch_overhead", "kernel_launch_overhead"),
    ];
    let known = words.iter().find(|(theirs, _)| *theirs == text);
    known.map_or(text, |(_, ours)| ours).to_owned()
}

/// HTA's four calls: of others it has no launches.
const CALLS: [&str; 4] = [
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
];

/// Rows by their keys; those that only one side separates are added up. Rows of nothing are left
/// out: one side prints them, the other does not.
fn by_key(rows: &[Value], keys: &[&str], values: &[&str]) -> BTreeMap<Vec<String>, Vec<f64>> {
    let mut found: BTreeMap<Vec<String>, Vec<f64>> = BTreeMap::new();
    for row in rows {
        // Rows of our launches have the call's name.
        if row["call_time"].is_number() && row["call"].as_str().is_none_or(|c| !CALLS.contains(&c))
        {
            continue;
        }
        let key = keys.iter().map(|key| match &row[*key] {
            Value::String(text) => word(text),
            other => other.to_string(),
        });
        let numbers = values
            .iter()
            .map(|value| row[*value].as_f64().unwrap_or(0.0));
        let numbers: Vec<f64> = numbers.collect();
        if numbers.iter().all(|number| *number == 0.0) {
            continue;
        }
        let sums = found
            .entry(key.collect())
            .or_insert_with(|| vec![0.0; values.len()]);
        sums.iter_mut()
            .zip(numbers)
            .for_each(|(sum, number)| *sum += number);
    }
    found
}

/// A thousandth, or a thousandth of a microsecond: HTA rounds some to 2 or 3 digits.
fn near(ours: f64, theirs: f64) -> bool {
    (ours - theirs).abs() <= 0.001 * ours.abs().max(theirs.abs()).max(5.0)
}

/// What differs, one line each.
fn differences(pair: &Pair, ours: &[Value], theirs: &[Value]) -> Vec<String> {
    let (our_keys, their_keys): (Vec<_>, Vec<_>) = pair.keys.iter().copied().unzip();
    let (our_values, their_values): (Vec<_>, Vec<_>) = pair.values.iter().copied().unzip();
    let mut ours = by_key(ours, &our_keys, &our_values);
    let mut found = Vec::new();
    for (key, theirs) in by_key(theirs, &their_keys, &their_values) {
        match ours.remove(&key) {
            Some(ours) if ours.iter().zip(&theirs).all(|(a, b)| near(*a, *b)) => {}
            ours => found.push(format!("{key:?}: {ours:?}, HTA has {theirs:?}")),
        }
    }
    let only = ours.into_iter();
    found.extend(only.map(|(key, ours)| format!("{key:?}: {ours:?}, HTA has none")));
    found
}

/// HTA's rows as ours stand: annotations of both sides in one, patterns without the
/// operator, a row for each counter.
fn arranged(mut tables: Tables) -> Tables {
    let mut sides = Vec::new();
    for (side, name) in [("cpu", "cpu_annotations"), ("device", "gpu_annotations")] {
        for row in list(tables.get(name).unwrap_or(&Value::Null)) {
            let mut row = row.clone();
            row["side"] = json!(side);
            sides.push(row);
        }
    }
    tables.insert("annotations".to_owned(), json!(sides));
    if let Some(Value::Array(rows)) = tables.get_mut("kernel-sequences") {
        for row in rows {
            let pattern = row["pattern"].as_str().unwrap_or_default();
            let kernels = pattern.split_once('|').map_or("", |(_, kernels)| kernels);
            row["pattern"] = json!(kernels);
        }
    }
    let mut counters = Vec::new();
    if let Some(Value::Array(rows)) = tables.get("cupti-counters") {
        for (number, row) in rows.iter().enumerate() {
            let all = row.as_object().into_iter().flatten();
            for (counter, value) in all.filter(|(name, _)| name.contains("__")) {
                let mut one = row.clone();
                one["number"] = json!(number);
                one["counter"] = json!(counter);
                one["value"] = value.clone();
                counters.push(one);
            }
        }
        tables.insert("cupti-counters".to_owned(), json!(counters));
    }
    tables
}

/// All tables that have a pair, but those of two traces.
const TABLES: &str = "temporal,comm-overlap,kernel-types,kernel-breakdown,idle,queue-length,\
    launches,annotations,memory-bandwidth,op-delays,kernel-sequences,cupti-counters,critical-path";

/// The table of an operator's kernels.
const SEQUENCES: &str = "kernel-sequences";

/// What a compressed file holds.
fn text(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let packed = std::fs::File::open(file)?;
    flate2::read::GzDecoder::new(packed).read_to_string(&mut text)?;
    Ok(text)
}

/// Compares all tables of a trace; gives what differs as `table: row`, and what HTA failed
/// at as `table: HTA fails`.
fn compared(file: &Path, rank: u32, operator: &str) -> anyhow::Result<Vec<String>> {
    let arguments = [
        format!("{rank}={}", file.display()),
        format!("operator={operator}"),
    ];
    let theirs = arranged(theirs("plain", &arguments)?);
    // An operator that a trace does not have is an error, and its table is not compared.
    let has_operator = text(file)?.contains(operator);
    let is_compared = |table: &str| table != SEQUENCES || has_operator;
    let tables: Vec<&str> = TABLES.split(',').map(str::trim).collect();
    let tables = tables.into_iter().filter(|table| is_compared(table));
    let tables = tables.collect::<Vec<_>>().join(",");
    let mut arguments = vec![tables.as_str()];
    if has_operator {
        arguments.extend(["--operator", operator]);
    }
    let ours = ours(&[file.to_owned()], &arguments)?;
    let mut found = Vec::new();
    let pairs = PAIRS.iter().filter(|pair| pair.ours != "trace-diff");
    for pair in pairs.filter(|pair| is_compared(pair.ours)) {
        let theirs = theirs.get(pair.theirs).context(pair.theirs)?;
        if let Some(error) = theirs["error"].as_str() {
            found.push(format!("{}: HTA fails: {error}", pair.ours));
            continue;
        }
        let mine = ours.get(pair.ours).context(pair.ours)?;
        let has_code = || list(mine).iter().any(|row| row["bound_by"] == "code_bound");
        if pair.ours == "critical-path-bounds" && (!has_waits(file)? || has_code()) {
            found.extend(shorter(list(mine), list(theirs)));
            continue;
        }
        let differ = differences(pair, list(mine), list(theirs));
        found.extend(
            differ
                .into_iter()
                .map(|one| format!("{}: {one}", pair.ours)),
        );
    }
    Ok(found)
}

/// Whether the profiler wrote down what waits for what.
fn has_waits(file: &Path) -> anyhow::Result<bool> {
    let mut text = String::new();
    let packed = std::fs::File::open(file)?;
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(packed), &mut text)?;
    Ok(text.contains("\"cuda_sync\""))
}

/// Without records of waits HTA's host waits for nothing; what ours waits for is
/// estimated. HTA knows no code between operators. With more to wait for no path is shorter.
fn shorter(ours: &[Value], theirs: &[Value]) -> Option<String> {
    let sum = |rows: &[Value], key: &str| rows.iter().filter_map(|row| row[key].as_f64()).sum();
    let (ours, theirs): (f64, f64) = (sum(ours, "time"), sum(theirs, "us"));
    let is_longer = ours >= theirs || near(ours, theirs);
    (!is_longer).then(|| format!("critical-path-bounds: {ours} is shorter than HTA's {theirs}"))
}

/// Where a trace's figures are not HTA's: file, table, text of the difference, cause.
type Different = (&'static str, &'static str, &'static str, &'static str);

const EMPTY: &str = "the trace has no work of devices";
const TIES: &str = "these begin in the same microsecond: HTA's order is that of its sort";
const NO_OPS: &str = "no call that HTA knows stands in an operator of ATen";
const LAUNCHED_BEFORE: &str = "the trace has calls without their work";

const DIFFERENT: &[Different] = &[
    ("cupti", "temporal", "HTA fails: IndexError", EMPTY),
    ("cupti", "idle", "HTA fails: ValueError", EMPTY),
    ("cupti", "op-delays", "HTA fails: ValueError", EMPTY),
    (
        "cupti",
        "critical-path-bounds",
        "HTA fails: TypeError",
        EMPTY,
    ),
    ("diff_control", "op-delays", "HTA fails: KeyError", NO_OPS),
    ("diff_test", "op-delays", "HTA fails: KeyError", NO_OPS),
    ("h200_graph", "op-delays", "HTA fails: KeyError", NO_OPS),
    ("mi250", "op-delays", "HTA fails: KeyError", NO_OPS),
    ("triton", "op-delays", "HTA fails: KeyError", NO_OPS),
    (
        "h200_graph",
        "critical-path-bounds",
        "HTA fails: TypeError",
        "HTA knows no launch of a graph",
    ),
    (
        "h200_graph",
        "queue-length",
        "HTA has none",
        "HTA knows no launch of a graph",
    ),
    ("no_device_properties", "op-delays", "aten::", TIES),
    (
        "resnet50_2021",
        "op-delays",
        "HTA fails: ValueError",
        LAUNCHED_BEFORE,
    ),
    (
        "resnet50_2021",
        "kernel-sequences",
        "HTA fails: TypeError",
        "ids of threads are texts, as those of 2021",
    ),
    (
        "resnet50_2021",
        "critical-path-bounds",
        "HTA fails: AssertionError",
        "HTA knows none of the categories of 2021",
    ),
    ("alltoall", "queue-length", "\"7\"", TIES),
    ("simple_add", "queue-length", "\"7\"", TIES),
];

/// Traces, the rank in them, and an operator whose sequences of kernels are compared: it stands at
/// one depth, HTA sees no others.
const TRACES: &[(&str, u32, &str)] = &[
    ("alexnet", 0, "aten::conv2d"),
    ("alltoall", 3, "MulBackward0"),
    ("cupti", 0, "aten::linear"),
    ("diff_control", 1, "aten::linear"),
    ("diff_test", 1, "aten::linear"),
    ("event_sync", 0, "aten::linear"),
    ("h200_eager", 0, "AddmmBackward0"),
    ("h200_graph", 0, "aten::linear"),
    ("h200_streams", 0, "aten::linear"),
    ("mi250", 0, "aten::linear"),
    ("nccl", 0, "ConvolutionBackward0"),
    ("no_device_properties", 0, "aten::_foreach_"),
    ("resnet50_2021", 0, "aten::linear"),
    ("simple_add", 0, "aten::conv2d"),
    ("streams", 0, "aten::linear"),
    ("triton", 0, "aten::linear"),
];

#[test]
fn every_analysis_finds_what_hta_finds() -> anyhow::Result<()> {
    if let Err(reason) = hta() {
        skip("every_analysis_finds_what_hta_finds", &reason);
        return Ok(());
    }
    let mut unknown = Vec::new();
    let mut used = vec![false; DIFFERENT.len()];
    for (trace, rank, operator) in TRACES {
        for one in compared(&data(trace), *rank, operator)? {
            let cause = DIFFERENT.iter().position(|(file, table, says, _)| {
                file == trace && one.starts_with(&format!("{table}: ")) && one.contains(says)
            });
            match cause.and_then(|at| used.get_mut(at)) {
                Some(used) => *used = true,
                None => unknown.push(format!("{trace}: {one}")),
            }
        }
    }
    let unused = DIFFERENT.iter().zip(used).filter(|(_, used)| !used);
    let unused: Vec<_> = unused
        .map(|(one, _)| format!("no longer differs: {one:?}"))
        .collect();
    anyhow::ensure!(unknown.is_empty(), "{}", unknown.join("\n"));
    anyhow::ensure!(unused.is_empty(), "{}", unused.join("\n"));
    Ok(())
}

/// As it is shipped HTA leaves the last step out and rounds to microseconds: a trace with
/// three steps and times of nanoseconds has other figures, by these two alone.
#[test]
fn rounding_and_dropped_steps_are_what_hta_does_besides() -> anyhow::Result<()> {
    if let Err(reason) = hta() {
        skip(
            "rounding_and_dropped_steps_are_what_hta_does_besides",
            &reason,
        );
        return Ok(());
    }
    let file = data("nccl");
    let argument = [format!("0={}", file.display()), "temporal".to_owned()];
    let ours = ours(&[file], &["temporal"])?;
    let temporal = PAIRS
        .iter()
        .find(|pair| pair.ours == "temporal")
        .context("temporal")?;
    let differ = |theirs: &Tables| {
        let theirs = theirs.get("temporal").map_or(&[][..], list);
        differences(temporal, ours.get("temporal").map_or(&[][..], list), theirs)
    };
    let shipped = theirs("shipped", &argument)?;
    anyhow::ensure!(!differ(&shipped).is_empty(), "{shipped:?}");
    let plain = theirs("plain", &argument)?;
    anyhow::ensure!(differ(&plain).is_empty(), "{:?}", differ(&plain));
    Ok(())
}

#[test]
fn two_traces_differ_as_hta_says() -> anyhow::Result<()> {
    if let Err(reason) = hta() {
        skip("two_traces_differ_as_hta_says", &reason);
        return Ok(());
    }
    let files = [data("diff_control"), data("diff_test")];
    let arguments: Vec<String> = (0..)
        .zip(&files)
        .map(|(number, file): (u32, _)| format!("{number}={}", file.display()))
        .collect();
    let theirs = theirs("diff", &arguments)?;
    let step = ["trace-diff", "--annotation", "ProfilerStep#10"];
    let ours = ours(&files, &step)?;
    let pair = PAIRS
        .iter()
        .find(|pair| pair.ours == "trace-diff")
        .context("trace-diff")?;
    let rows = |tables: &Tables| tables.get("trace-diff").cloned().unwrap_or_default();
    let (ours, theirs) = (rows(&ours), rows(&theirs));
    anyhow::ensure!(!list(&theirs).is_empty(), "HTA finds nothing");
    let differ = differences(pair, list(&ours), list(&theirs));
    anyhow::ensure!(differ.is_empty(), "{}", differ.join("\n"));
    Ok(())
}

/// Four ranks of three steps. Rank 2 computes the longest, so its collective begins last;
/// rank 0 is the next.
fn rank(rank: u32) -> Value {
    let compute = [700.0, 500.0, 900.0, 600.0][rank as usize];
    let mut all = Vec::new();
    let mut add = |cat: &str, name: &str, pid: u32, tid: u32, ts: f64, dur: f64, args: Value| {
        all.push(
            json!({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid,
            "ts": ts, "dur": dur, "args": args}),
        );
    };
    for step in 0..4u32 {
        let (at, id) = (1000.0 + 2000.0 * f64::from(step), 10 * step + 1);
        let name = format!("ProfilerStep#{}", step + 1);
        add("user_annotation", &name, 99, 99, at, 1990.0, json!({}));
        for (offset, id) in [(10.0, id), (30.0, id + 1)] {
            let args = json!({"correlation": id});
            add(
                "cuda_runtime",
                "cudaLaunchKernel",
                99,
                99,
                at + offset,
                10.0,
                args,
            );
        }
        let args = |id: u32, stream: u32| json!({"correlation": id, "stream": stream, "device": 0});
        add("kernel", "gemm", 0, 7, at + 50.0, compute, args(id, 7));
        let begin = at + 60.0 + compute;
        add(
            "kernel",
            "ncclKernel_AllReduce",
            0,
            7,
            begin,
            at + 1200.0 - begin,
            args(id + 1, 7),
        );
    }
    json!({"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 4},
        "deviceProperties": [{"id": 0}], "traceEvents": all})
}

#[test]
fn late_ranks_are_hta_s_and_join_the_critical_path() -> anyhow::Result<()> {
    let folder = tempfile::TempDir::new()?;
    let files: Vec<PathBuf> = (0..4)
        .map(|number| {
            let path = folder.path().join(format!("rank{number}.json"));
            std::fs::write(&path, rank(number).to_string()).map(|()| path)
        })
        .collect::<Result<_, _>>()?;
    let found = ours(&files, &["stragglers,critical-path"])?;
    let late = found.get("stragglers").map_or(&[][..], list);
    let late: Vec<(u64, u64)> = late
        .iter()
        .filter_map(|row| Some((row["rank"].as_u64()?, row["late_steps"].as_u64()?)))
        .collect();
    assert_eq!(late, [(0, 4), (2, 4), (1, 0), (3, 0)]);
    // One path of all ranks, through rank 2's product and the collective.
    let path = found.get("critical-path").map_or(&[][..], list);
    assert_eq!(path.len(), 1, "{path:?}");
    assert_eq!(
        path.first().map(|row| &row["ranks"]),
        Some(&json!("0 1 2 3"))
    );
    let bounds = found.get("critical-path-bounds").map_or(&[][..], list);
    let computes: Vec<_> = bounds
        .iter()
        .filter(|row| row["bound_by"] == "compute_bound")
        .map(|row| row["rank"].as_u64())
        .collect();
    assert_eq!(computes, [Some(2)], "{bounds:?}");
    let theirs = match hta() {
        Ok(_) => {
            let files = (0..).zip(&files);
            let mut arguments: Vec<String> = files
                .map(|(number, file): (u32, _)| format!("{number}={}", file.display()))
                .collect();
            arguments.push("stragglers".to_owned());
            theirs("plain", &arguments)?
        }
        Err(reason) => {
            skip("late_ranks_are_hta_s", &reason);
            return Ok(());
        }
    };
    let theirs = theirs.get("stragglers").map_or(&[][..], list);
    let mut theirs: Vec<_> = theirs.iter().map(|row| row["rank"].as_u64()).collect();
    theirs.sort_unstable();
    assert_eq!(theirs, [Some(0), Some(2)]);
    Ok(())
}
