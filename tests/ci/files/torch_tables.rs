//! `aiprof analyze --table key-averages` and torch's other answers, on traces of PyTorch, against
//! PyTorch's own tables of the same profiles (`data/torch/README.md`).

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use aiprof_tests::acelyzer::{Input, Which};
use anyhow::Context as _;
use serde_json::Value;

const TRACES: [&str; 7] = [
    "eager_memory",
    "eager_stack",
    "graph",
    "streams",
    "compiled_warm",
    "cpu_nested",
    "cpu_mixed",
];
/// Traces with shapes.
const SHAPED: [&str; 2] = ["eager_memory", "cpu_mixed"];

fn data(name: &str) -> anyhow::Result<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("data/torch")
        .join(name);
    std::fs::read(&path).with_context(|| path.display().to_string())
}

fn text(name: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(&data(name)?[..]).read_to_string(&mut text)?;
    Ok(text)
}

/// What analyze prints of a trace.
fn printed(trace: &str, args: &str) -> anyhow::Result<String> {
    let name = format!("{trace}.json.gz");
    let input = Input::one(&name, data(&name)?);
    let ran = Which::Analyze.run(&input, &format!("{name} {args}"))?;
    anyhow::ensure!(ran.code == Some(0), "{}{}", ran.stdout, ran.stderr);
    Ok(ran.stdout)
}

fn json(trace: &str, args: &str) -> anyhow::Result<Value> {
    Ok(serde_json::from_str(&printed(
        trace,
        &format!("{args} --format json"),
    )?)?)
}

/// The options that ask for a table by torch's key; those of a device where there is one.
fn options(trace: &str, key: &str) -> String {
    let device = match trace.starts_with("cpu_") {
        true => "cpu",
        false => "cuda",
    };
    match key {
        "shapes" => format!("--by-shape --sort-by self_{device}_time_total"),
        "5" => format!("--sort-by {device}_time_total --limit 5"),
        key => format!("--sort-by {}", key.replace("device", "cuda")),
    }
}

#[test]
fn key_averages_are_torch_s_own_byte_for_byte() -> anyhow::Result<()> {
    for trace in TRACES {
        let tables = text(&format!("{trace}.txt.gz"))?;
        let mut count = 0;
        for part in tables.split("=== ").filter(|part| !part.is_empty()) {
            let (key, expected) = part.split_once('\n').context("no table")?;
            let args = format!("--table key-averages {}", options(trace, key));
            let printed = printed(trace, &args)?;
            // Notes below the table report a trace without shapes, and what torch counts twice.
            let lines = printed.lines().filter(|line| {
                !line.starts_with("(the trace has no shapes")
                    && !line.starts_with("(torch counts device time")
            });
            for (line, expected) in lines.clone().zip(expected.lines()) {
                assert_eq!(line, expected, "{trace} {key}");
            }
            let expected = expected.trim_end_matches('\n').lines().count();
            assert_eq!(lines.count(), expected, "{trace} {key}");
            count += 1;
        }
        assert_eq!(count, 5, "{trace}");
    }
    Ok(())
}

/// `key_averages(group_by_stack_n=N)` of a profile with `verbose=True`.
#[test]
fn calls_with_other_python_frames_are_apart_as_torch_s_own() -> anyhow::Result<()> {
    let tables = text("cpu_stack.txt.gz")?;
    let mut count = 0;
    for part in tables.split("=== stack ").filter(|part| !part.is_empty()) {
        let (frames, expected) = part.split_once('\n').context("no table")?;
        let args = format!(
            "--table key-averages --sort-by self_cpu_time_total --group-by-stack {frames}"
        );
        let printed = printed("cpu_stack", &args)?;
        let expected: Vec<_> = expected.trim_end_matches('\n').lines().collect();
        let found: Vec<_> = printed.trim_end_matches('\n').lines().collect();
        assert_eq!(found, expected, "{frames}");
        count += 1;
    }
    assert_eq!(count, 2);
    Ok(())
}

/// What makes a row: name, kind, shapes.
type Key = (String, &'static str, String);

fn key(row: &Value) -> anyhow::Result<Key> {
    let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let is_device = row["device_type"] == "DeviceType.CUDA";
    let is_note = row["is_user_annotation"] == true;
    let kind = match (is_device, is_note) {
        (false, false) => "host",
        (false, true) => "note",
        (true, false) => "device",
        (true, true) => "device note",
    };
    Ok((text("name"), kind, text("shapes")))
}

/// Numbers are equal to the last bit: the same additions in the same order.
#[test]
fn key_averages_are_exact() -> anyhow::Result<()> {
    let numbers = [
        "count",
        "self_cpu_time_total",
        "cpu_time_total",
        "self_device_time_total",
        "device_time_total",
        "cpu_memory_usage",
        "self_cpu_memory_usage",
        "device_memory_usage",
        "self_device_memory_usage",
        "flops",
    ];
    for trace in TRACES {
        let torch: Value = serde_json::from_str(&text(&format!("{trace}.rows.json.gz"))?)?;
        for (part, option) in [("rows", ""), ("shapes", " --by-shape")] {
            let tables = json(trace, &format!("--table key-averages{option}"))?;
            let ours = tables[0]["rows"].as_array().context("no rows")?;
            let mut ours: BTreeMap<_, _> = ours
                .iter()
                .map(|row| {
                    let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
                    ((text("name"), text("kind"), text("input_shapes")), row)
                })
                .collect();
            for row in torch[part].as_array().context("no rows")? {
                let (name, kind, mut shapes) = key(row)?;
                // Torch has an empty list where no shapes were recorded.
                if !SHAPED.contains(&trace) && shapes == "[]" {
                    shapes.clear();
                }
                let key = (name, kind.to_owned(), shapes);
                let found = ours
                    .remove(&key)
                    .with_context(|| format!("{trace} {key:?}"))?;
                for number in numbers {
                    // Columns that are all 0 are left out.
                    let found = found[number].as_f64().unwrap_or(0.0);
                    assert_eq!(
                        Some(found),
                        row[number].as_f64(),
                        "{trace} {key:?} {number}"
                    );
                }
            }
            assert!(ours.is_empty(), "{trace} {part}: {:?}", ours.keys());
        }
    }
    Ok(())
}

#[test]
fn a_table_is_written_as_csv_too() -> anyhow::Result<()> {
    let csv = printed("graph", "--table key-averages --format csv --sort-by count")?;
    let mut lines = csv.lines();
    let head = lines.next().context("no head")?;
    assert!(
        head.starts_with("name,kind,self_cpu_percent,self_cpu_time_total_us,"),
        "{head}"
    );
    assert_eq!(lines.count(), 12);
    Ok(())
}

/// A row of a table: its texts and numbers in the order of the columns.
fn rows(tables: &Value) -> anyhow::Result<Vec<&Value>> {
    Ok(tables[0]["rows"]
        .as_array()
        .context("no rows")?
        .iter()
        .collect())
}

fn near(found: &Value, expected: f64) -> bool {
    let found = found.as_f64().unwrap_or(f64::NAN);
    (found - expected).abs() < 0.0015
}

/// Kineto draws an arrow for each pair; `torch_figures.py fwdbwd` counts them.
#[test]
fn pairs_are_those_of_kineto_s_arrows() -> anyhow::Result<()> {
    let eager: &[(&str, &str, u64)] = &[
        ("aten::_log_softmax", "LogSoftmaxBackward0", 4),
        ("aten::addmm", "AddmmBackward0", 8),
        ("aten::convolution", "ConvolutionBackward0", 4),
        ("aten::nll_loss_forward", "NllLossBackward0", 4),
        ("aten::relu", "ReluBackward0", 8),
        ("aten::t", "TBackward0", 8),
        ("aten::view", "ViewBackward0", 4),
    ];
    let compiled: &[(&str, &str, u64)] = &[
        ("CompiledFunction", "CompiledFunctionBackward", 9),
        ("aten::sum", "SumBackward0", 3),
    ];
    for (trace, expected) in [("eager_memory", eager), ("compiled_warm", compiled)] {
        let tables = json(trace, "--table fwd-bwd")?;
        let mut found = Vec::new();
        for row in rows(&tables)? {
            let text = |key: &str| row[key].as_str().unwrap_or_default();
            found.push((
                text("forward"),
                text("backward"),
                row["pairs"].as_u64().unwrap_or(0),
            ));
        }
        found.sort_unstable();
        assert_eq!(found, expected, "{trace}");
    }
    Ok(())
}

/// Compile time and runs of a compilation: number, microseconds, runs, microseconds.
type Compiled = (&'static str, f64, u64, f64);

/// A step of the compiler: name, how often, its own microseconds, all.
type Compiling = (&'static str, u64, f64, f64);

/// A trace, steps and compilations.
type Figures = (&'static str, [Compiling; 3], [Compiled; 6]);

/// `torch_figures.py steps`.
const STEPS: [Figures; 2] = [
    (
        "inductor",
        [
            ("async_compile.precompile", 12, 2_116_677.453, 2_116_677.453),
            ("backend_compile", 6, 770_321.548, 4_627_971.289),
            ("Scheduler.codegen", 12, 601_567.117, 601_567.117),
        ],
        [
            ("0/0", 2_938_459.326, 2, 823_957.317),
            ("0/1", 719_372.206, 3, 1_183_525.894),
            ("1/0", 522_916.317, 2, 412_622.372),
            ("1/1", 473_410.508, 3, 720_304.735),
            ("2/0", 606_670.835, 2, 558.789),
            ("2/1", 708_417.013, 3, 1_139.442),
        ],
    ),
    (
        "broken",
        [
            ("bytecode_tracing", 10, 281_832.341, 281_832.341),
            ("build_guards", 6, 174_167.662, 174_167.662),
            ("compile_attempt_1", 4, 30_906.266, 77_940.366),
        ],
        [
            ("0/0", 155_281.601, 2, 127_036.328),
            ("0/1", 124_903.601, 2, 149_586.762),
            ("1/0", 85_793.981, 2, 36_746.891),
            ("1/1", 66_967.007, 2, 78_106.051),
            ("2/0", 35_457.976, 2, 269.892),
            ("2/1", 76_827.973, 2, 246.006),
        ],
    ),
];

#[test]
fn steps_of_the_compiler_have_their_own_time() -> anyhow::Result<()> {
    for (trace, steps, compiled) in STEPS {
        let tables = json(trace, "--table compile")?;
        for (row, (step, calls, own, total)) in rows(&tables)?.iter().zip(steps) {
            let is_same = row["step"] == step
                && row["calls"] == calls
                && near(&row["self"], own)
                && near(&row["total"], total);
            anyhow::ensure!(is_same, "{trace} {step}: {row}");
        }
        let tables = json(trace, "--table compiled")?;
        let found = rows(&tables)?;
        assert_eq!(found.len(), compiled.len(), "{trace}");
        for (row, (id, compile, runs, run)) in found.iter().zip(compiled) {
            let is_same = row["id"] == id
                && row["runs"] == runs
                && near(&row["compile"], compile)
                && near(&row["run"], run);
            anyhow::ensure!(is_same, "{trace} {id}: {row}");
        }
    }
    Ok(())
}

/// The output and messages for a table with the program's log.
fn with_log(trace: &str, args: &str) -> anyhow::Result<(String, String)> {
    let (name, log) = (format!("{trace}.json.gz"), format!("{trace}.log.gz"));
    let input = Input::one(&name, data(&name)?).and(&log, data(&log)?);
    let ran = Which::Analyze.run(&input, &format!("{name} --torch-log {log} {args}"))?;
    anyhow::ensure!(ran.code == Some(0), "{}{}", ran.stdout, ran.stderr);
    Ok((ran.stdout, ran.stderr))
}

/// The programs' lines, and the guards that sizes fail.
#[test]
fn breaks_and_recompilations_have_reasons() -> anyhow::Result<()> {
    for (trace, line, functions, sizes) in [
        (
            "inductor",
            65,
            ["f", "inner", "torch_dynamo_resume_in_inner_at_65"],
            [64, 96],
        ),
        (
            "broken",
            36,
            ["model", "scale", "torch_dynamo_resume_in_scale_at_36"],
            [4, 6],
        ),
    ] {
        let place = format!("/home/me/train.py:{line}");
        let (text, _) = with_log(trace, "--table graph-breaks --format json")?;
        let tables: Value = serde_json::from_str(&text)?;
        let found = rows(&tables)?;
        assert_eq!(found.len(), 2, "{text}");
        for (row, frame) in found.iter().zip(0..) {
            let is_same = row["frame"] == frame
                && row["place"] == *place
                && row["reason"] == "Failed to trace builtin operator"
                && row["goes_on_in"] == functions[frame + 1];
            anyhow::ensure!(is_same, "{trace}: {row}");
        }
        let (text, _) = with_log(trace, "--table recompilations --format json")?;
        let tables: Value = serde_json::from_str(&text)?;
        let found = rows(&tables)?;
        assert_eq!(found.len(), 3, "{text}");
        for ((row, frame), function) in found.iter().zip(0..).zip(functions) {
            let guard = format!(
                "{frame}/0: tensor 'x' size mismatch at index 0. expected {}, actual {}",
                sizes[0], sizes[1]
            );
            let is_same = row["id"] == format!("{frame}/1")
                && row["function"] == function
                && row["guard"] == *guard;
            anyhow::ensure!(is_same, "{trace}: {row}");
        }
        let (text, _) = with_log(trace, "")?;
        let found = format!("{place}: Failed to trace builtin operator");
        assert!(text.contains(&found), "{text}");
        assert!(text.contains("size mismatch at index 0"), "{text}");
    }
    Ok(())
}

/// Without the log, the table has how often and how long, and a note on how to find the reasons.
#[test]
fn without_the_log_reasons_are_not_made_up() -> anyhow::Result<()> {
    let tables = json("broken", "--table graph-breaks")?;
    let found = rows(&tables)?;
    assert_eq!(found.len(), 2, "{tables}");
    assert!(
        found
            .iter()
            .all(|row| row["reason"].is_null() && row["runs"] == 4)
    );
    let note = tables[0]["notes"][0].as_str().unwrap_or_default();
    assert!(note.contains("--torch-log"), "{note}");
    Ok(())
}

/// Python stacks have the functions, and the line behind a break.
#[test]
fn stacks_have_functions_and_lines() -> anyhow::Result<()> {
    let tables = json("broken_stack", "--table compiled")?;
    let functions = [
        ("model", "train.py:38"),
        ("scale", "train.py:34"),
        ("torch_dynamo_resume_in_scale_at_36", "train.py:36"),
    ];
    let expected = functions.iter().flat_map(|one| [one, one]);
    for (row, (function, place)) in rows(&tables)?.iter().zip(expected) {
        let is_same = row["function"] == *function && row["place"] == *place;
        anyhow::ensure!(is_same, "{function}: {row}");
    }
    let tables = json("broken_stack", "--table graph-breaks")?;
    let found = rows(&tables)?;
    assert_eq!(found.len(), 2, "{tables}");
    assert_eq!(found[1]["goes_on_in"], functions[2].0);
    assert_eq!(found[1]["place"], functions[2].1);
    Ok(())
}

/// `torch_figures.py triton`: name, file's base name, launches, device time.
const TRITON: [(&str, &str, u64, f64); 4] = [
    (
        "triton_per_fused_sin_sum_0",
        "chrxcbfihglil6crseib7kw4klcvpybyv2jg2oxizhxgptasvbox",
        2,
        2.912,
    ),
    (
        "triton_poi_fused_gelu_0",
        "cooepe742drhcxcaqkt5jjjmgrioyb4s5diozncifinxqsmlz6iq",
        22,
        29.571,
    ),
    (
        "triton_poi_fused_gelu_0",
        "csovalqwnaimicfbii7krzqsdy6hg53ixadpjddkvywi3mjwrexu",
        3,
        3.232,
    ),
    (
        "triton_poi_fused_mul_threshold_backward_0",
        "coycrxnellc3dqxaeznlg6fbunvb2yyunsm65fiunmv2cpmvdrxl",
        22,
        30.559,
    ),
];

#[test]
fn triton_kernels_have_their_files() -> anyhow::Result<()> {
    let tables = json("inductor", "--table triton")?;
    let found = rows(&tables)?;
    for (name, hash, launches, us) in TRITON {
        let its: Vec<_> = found.iter().filter(|row| row["hash"] == hash).collect();
        let file = format!("/{hash}.py");
        let is_same = |row: &&Value| {
            row["name"] == name
                && row["file"]
                    .as_str()
                    .is_some_and(|path| path.ends_with(&file))
        };
        anyhow::ensure!(
            !its.is_empty() && its.iter().all(|row| is_same(row)),
            "{name}"
        );
        let sum: u64 = its.iter().filter_map(|row| row["launches"].as_u64()).sum();
        assert_eq!(sum, launches, "{name}");
        let device: f64 = its.iter().filter_map(|row| row["device"].as_f64()).sum();
        assert!((device - us).abs() < 0.0015, "{name}: {device}");
    }
    // Twenty of 22 launches chose the settings.
    let tuning: u64 = found.iter().filter_map(|row| row["tuning"].as_u64()).sum();
    assert_eq!(tuning, 100, "{tables}");
    Ok(())
}
