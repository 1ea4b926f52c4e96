//! `aiprof analyze` on traces of PyTorch's profiler from NVIDIA and AMD GPUs. The figures of real
//! ones are HolisticTraceAnalysis's. Made ones are in dialects of other years and vendors; their
//! figures follow from how they are made.

use std::collections::BTreeMap;
use std::path::Path;

use aiprof_tests::acelyzer::run::Ran;
use aiprof_tests::acelyzer::{Input, Which};
use aiprof_tests::aiprof;
use anyhow::Context as _;
use serde_json::{Value, json};

/// How many device events of a class there are, and for how many microseconds one of them
/// runs at least.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Busy(u64, f64);

/// What a trace holds.
struct Expected {
    file: &'static str,
    compute: Busy,
    communication: Busy,
    copies: Busy,
    /// Part of communication during which kernels compute, percent.
    hidden: Option<f64>,
}

const NONE: Busy = Busy(0, 0.0);

/// Printed by `HTA_DISABLE_NS_ROUNDING=1 python3 hta_figures.py *.json.gz` in
/// `data/kineto`, with HolisticTraceAnalysis 0.5.0: `COMPUTATION`, `COMMUNICATION`,
/// `MEMORY`, `overlap_percent`.
const REAL: [Expected; 8] = [
    Expected {
        file: "alexnet",
        compute: Busy(79, 10630.0),
        communication: NONE,
        copies: Busy(19, 55511.0),
        hidden: None,
    },
    Expected {
        file: "alltoall",
        compute: Busy(978, 31980.0),
        communication: Busy(4, 13275.0),
        copies: Busy(101, 6166.0),
        hidden: Some(66.28),
    },
    Expected {
        file: "mi250",
        compute: Busy(14, 110.881),
        communication: NONE,
        copies: Busy(2, 38.161),
        hidden: None,
    },
    Expected {
        file: "nccl",
        compute: Busy(415, 11889.718),
        communication: Busy(4, 10233.24),
        copies: Busy(25, 81.404),
        hidden: Some(17.2),
    },
    Expected {
        file: "no_device_properties",
        compute: Busy(1144, 210_320.0),
        communication: Busy(10, 396_199.0),
        copies: Busy(50, 1325.0),
        hidden: Some(14.95),
    },
    Expected {
        file: "resnet50_2021",
        compute: Busy(502, 36573.0),
        communication: NONE,
        copies: Busy(9, 1947.0),
        hidden: None,
    },
    Expected {
        file: "streams",
        compute: Busy(3, 369.0),
        communication: NONE,
        copies: Busy(3, 3.0),
        hidden: None,
    },
    Expected {
        file: "triton",
        compute: Busy(1, 1.76),
        communication: NONE,
        copies: NONE,
        hidden: None,
    },
];

fn data(name: &str) -> anyhow::Result<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("data/kineto")
        .join(name);
    std::fs::read(&path).with_context(|| path.display().to_string())
}

/// The trace's text, decompressed.
fn text(name: &str) -> anyhow::Result<Value> {
    let packed = data(name)?;
    Ok(serde_json::from_reader(flate2::read::GzDecoder::new(
        &packed[..],
    ))?)
}

fn analyzed(name: &str, bytes: impl Into<Vec<u8>>, args: &str) -> anyhow::Result<Ran> {
    let ran = Which::Analyze.run(&Input::one(name, bytes), &format!("{name} {args}"))?;
    anyhow::ensure!(ran.code == Some(0), "{}{}", ran.stdout, ran.stderr);
    Ok(ran)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn events(trace: &Value) -> &[Value] {
    match trace.as_array() {
        Some(events) => events,
        None => list(&trace["traceEvents"]),
    }
}

/// The device's kernels, copies and fills, whatever their year calls them.
fn is_device(event: &Value) -> bool {
    let cat = event["cat"].as_str().unwrap_or_default().to_lowercase();
    let known = ["kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"];
    event["ph"] == "X" && known.contains(&cat.as_str())
}

/// What analyze found: compute, communication, copies, and what of communication is hidden.
fn found(ran: &Ran) -> anyhow::Result<([Busy; 3], Option<f64>)> {
    let (trace, report) = (ran.json("out.json")?, ran.json("out_report.json")?);
    let device = || events(&trace).iter().filter(|event| is_device(event));
    let is_kernel = |event: &&Value| {
        let cat = event["cat"].as_str().unwrap_or_default();
        cat.eq_ignore_ascii_case("kernel")
    };
    let of_class = |class: &str| {
        let its = device().filter(is_kernel);
        its.filter(|event| event["args"]["class"] == class).count() as u64
    };
    let copies = device().count() - device().filter(is_kernel).count();
    let row = &report["communication"][0];
    let us = |key: &str| row[key].as_f64().unwrap_or(0.0);
    let compute_us = match row.is_null() {
        // There is nothing else.
        true => report["active"][0]["busy_us"]
            .as_f64()
            .context("no kernels")?,
        false => us("compute_us"),
    };
    let busy = [
        Busy(of_class("COMPUTE_EXEC"), compute_us),
        Busy(of_class("COMMUNICATION"), us("communication_us")),
        Busy(copies as u64, us("copy_us")),
    ];
    Ok((busy, row["overlap_percent"].as_f64()))
}

/// Within a thousandth.
fn near(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= 0.001 * expected
}

#[test]
fn real_traces_hold_what_hta_finds_in_them() -> anyhow::Result<()> {
    for one in &REAL {
        let name = format!("{}.json.gz", one.file);
        let ran = analyzed(&name, data(&name)?, "-o out.json")?;
        let (busy, hidden) = found(&ran)?;
        let expected = [one.compute, one.communication, one.copies];
        for (found, expected) in busy.into_iter().zip(expected) {
            anyhow::ensure!(
                found.0 == expected.0 && near(found.1, expected.1),
                "{}: {found:?}, expected {expected:?}",
                one.file
            );
        }
        // HTA rounds to hundredths.
        let is_same = match (hidden, one.hidden) {
            (Some(found), Some(expected)) => (found - expected).abs() < 0.011,
            (found, expected) => found == expected,
        };
        anyhow::ensure!(
            is_same,
            "{}: hidden {hidden:?}, not {:?}",
            one.file,
            one.hidden
        );
    }
    Ok(())
}

/// Name, begin, length (nanoseconds) of each device event, in order.
fn spans(trace: &Value) -> Vec<(String, i64, i64)> {
    let origin = |event: &Value| (event["ts"].as_f64().unwrap_or(f64::NAN) * 1000.0).round() as i64;
    let length =
        |event: &Value| (event["dur"].as_f64().unwrap_or(f64::NAN) * 1000.0).round() as i64;
    let name = |event: &Value| event["name"].as_str().unwrap_or_default().to_owned();
    let device = events(trace).iter().filter(|event| is_device(event));
    let mut spans: Vec<_> = device.map(|e| (name(e), origin(e), length(e))).collect();
    spans.sort();
    spans
}

fn count(trace: &Value, phase: &str) -> usize {
    let its = events(trace).iter();
    its.filter(|event| event["ph"] == phase).count()
}

/// Nothing is moved, renamed, lost or drawn twice, and nothing is called a fault.
#[test]
fn real_traces_are_passed_on_as_they_are() -> anyhow::Result<()> {
    for one in &REAL {
        let name = format!("{}.json.gz", one.file);
        let before = text(&name)?;
        let ran = analyzed(&name, data(&name)?, "-o out.json")?;
        let (after, report) = (ran.json("out.json")?, ran.json("out_report.json")?);
        let (old, new) = (spans(&before), spans(&after));
        anyhow::ensure!(
            old.len() == new.len(),
            "{}: {} of {}",
            one.file,
            new.len(),
            old.len()
        );
        for (old, new) in old.iter().zip(&new) {
            // Doubles of microseconds since 1970 have a quarter of one at most.
            let is_same = old.0 == new.0 && (old.1 - new.1).abs() <= 1000;
            anyhow::ensure!(is_same && (old.2 - new.2).abs() <= 1, "{old:?} is {new:?}");
        }
        for phase in ["s", "f"] {
            assert_eq!(
                count(&after, phase),
                count(&before, phase),
                "{} {phase}",
                one.file
            );
        }
        assert_eq!(report["faults"], json!([]), "{}", one.file);
        assert_eq!(
            list(&report["inputs"][0]["problems"]),
            [] as [Value; 0],
            "{}",
            one.file
        );
        assert_eq!(report["inputs"][0]["dialect"], "torch", "{}", one.file);
        let kernels: BTreeMap<&str, u64> = list(&report["kernels"])
            .iter()
            .map(|row| (row["name"].as_str().unwrap_or_default(), 0))
            .collect();
        let mut names: Vec<&str> = events(&before)
            .iter()
            .filter(|e| {
                e["cat"]
                    .as_str()
                    .is_some_and(|c| c.eq_ignore_ascii_case("kernel"))
            })
            .filter_map(|e| e["name"].as_str())
            .collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(
            kernels.into_keys().collect::<Vec<_>>(),
            names,
            "{}",
            one.file
        );
    }
    Ok(())
}

#[test]
fn kernels_of_gpus_are_no_orphans() -> anyhow::Result<()> {
    for one in &REAL {
        let name = format!("{}.json.gz", one.file);
        let input = Input::one(&name, data(&name)?);
        let ran = Which::Analyze.run(&input, &format!("{name} --verify"))?;
        assert!(
            ran.stdout.starts_with("Verification by aiprof\n"),
            "{}",
            ran.stdout
        );
        assert!(ran.stdout.contains("orphan_parents: 0"), "{}", ran.stdout);
        assert!(
            ran.stdout.contains("kernel_outside_parent: 0"),
            "{}",
            ran.stdout
        );
        // Only sampled_rank-0 and the parts that were cut out lack calls.
        let is_whole = ["alexnet", "mi250", "streams", "triton"].contains(&one.file);
        if is_whole {
            assert!(
                ran.stdout.contains("orphan_kernels: 0"),
                "{}: {}",
                one.file,
                ran.stdout
            );
        }
    }
    Ok(())
}

/// A slice on a device or a host.
fn slice(cat: &str, name: &str, ts: f64, dur: f64, args: Value) -> Value {
    let pid = if is_device(&json!({"ph": "X", "cat": cat})) {
        0
    } else {
        99
    };
    json!({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": 7, "ts": ts, "dur": dur,
        "args": args})
}

/// Steps of a model on a GPU, 80 us apart, in a trace with these names: two matrix products, and a
/// collective and a copy that each overlap the second.
fn model(words: &Words, steps: u32, base: f64) -> Vec<Value> {
    let mut all = Vec::new();
    for step in 0..steps {
        let at = base + 80.0 * f64::from(step);
        let id = 10 * step + 1;
        // The collective and the copy run beside.
        let stream = |i: u32| if i == 2 || i == 3 { 20 + i } else { 7 };
        let args = |i: u32| json!({"correlation": id + i, "stream": stream(i), "device": 0});
        let calls = [words.launch, words.launch, words.launch, words.copy_call];
        for (call, i) in calls.into_iter().zip(0..) {
            all.push(slice(
                words.runtime,
                call,
                at + 2.0 * f64::from(i),
                1.5,
                args(i),
            ));
        }
        all.extend([
            slice(words.kernel, "gemm_128x64_nn", at + 20.0, 10.25, args(0)),
            slice(words.kernel, "gemm_64x64_nn", at + 30.5, 20.0, args(1)),
            slice(words.kernel, words.collective, at + 40.5, 30.0, args(2)),
            slice(words.memcpy, words.copy, at + 45.5, 4.5, args(3)),
            slice(words.memset, "Memset (Device)", at + 71.0, 0.5, args(9)),
        ]);
    }
    all
}

/// How a profiler calls things.
struct Words {
    runtime: &'static str,
    kernel: &'static str,
    memcpy: &'static str,
    memset: &'static str,
    launch: &'static str,
    copy_call: &'static str,
    collective: &'static str,
    copy: &'static str,
}

const CUDA_2021: Words = Words {
    runtime: "Runtime",
    kernel: "Kernel",
    memcpy: "Memcpy",
    memset: "Memset",
    launch: "cudaLaunchKernel",
    copy_call: "cudaMemcpyAsync",
    collective: "ncclAllReduceRingLLKernel_sum_f32(ncclColl)",
    copy: "Memcpy HtoD (Pinned -> Device)",
};
const ROCM: Words = Words {
    runtime: "hip_runtime",
    kernel: "kernel",
    memcpy: "gpu_memcpy",
    memset: "gpu_memset",
    launch: "hipExtModuleLaunchKernel",
    copy_call: "hipMemcpyWithStream",
    collective: "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
    copy: "CopyHostToDevice",
};
const XPU: Words = Words {
    runtime: "xpu_runtime",
    kernel: "kernel",
    memcpy: "gpu_memcpy",
    memset: "gpu_memset",
    launch: "urEnqueueKernelLaunch",
    copy_call: "urEnqueueUSMMemcpy",
    collective: "oneccl_allreduce_large_kernel",
    copy: "zeCommandListAppendMemoryCopy(M2D)",
};
const SHOUTING: Words = Words {
    runtime: "CUDA_RUNTIME",
    kernel: "KERNEL",
    memcpy: "GPU_MEMCPY",
    memset: "GPU_MEMSET",
    ..CUDA_2021
};

/// Dialects that are recognized by their categories only.
#[test]
fn other_years_and_vendors_are_read_alike() -> anyhow::Result<()> {
    for words in [CUDA_2021, ROCM, XPU, SHOUTING] {
        let steps = 20;
        let all = model(&words, steps, 1.7e15);
        let object = json!({"displayTimeUnit": "ns", "traceEvents": all, "baseTimeNanoseconds": 5});
        for text in [json!(all).to_string(), object.to_string()] {
            let ran = analyzed("in.json", text, "-o out.json")?;
            let (busy, hidden) = found(&ran)?;
            let all = f64::from(steps);
            let expected = [
                Busy(2 * u64::from(steps), 30.25 * all),
                Busy(steps.into(), 30.0 * all),
                // Copies and fills.
                Busy(2 * u64::from(steps), 5.0 * all),
            ];
            for (found, expected) in busy.into_iter().zip(expected) {
                let is_near = found.0 == expected.0 && (found.1 - expected.1).abs() < 0.01 * all;
                anyhow::ensure!(is_near, "{}: {found:?}, not {expected:?}", words.launch);
            }
            // Ten of the thirty microseconds are beside the second product.
            let hidden = hidden.context("no communication")?;
            anyhow::ensure!(
                (hidden - 100.0 / 3.0).abs() < 0.5,
                "{}: {hidden}",
                words.launch
            );
            let (trace, report) = (ran.json("out.json")?, ran.json("out_report.json")?);
            let into = |e: &&Value| e["args"]["class"] == "DATA_IN";
            assert_eq!(events(&trace).iter().filter(into).count(), steps as usize);
            assert_eq!(report["faults"], json!([]), "{}", words.launch);
            let repeats = &report["iterations"][0];
            assert_eq!(repeats["kernels_each"], 3, "{}", words.launch);
            let mean = repeats["mean_us"].as_f64().context("no period")?;
            anyhow::ensure!((mean - 80.0).abs() < 0.3, "{}: {mean}", words.launch);
        }
    }
    Ok(())
}

/// Only the host was recorded: there is no kernel to report on, and nothing is wrong.
#[test]
fn calls_without_kernels_are_no_fault() -> anyhow::Result<()> {
    let calls = |i: u32| {
        let ts = 1e9 + 50.0 * f64::from(i % 7) + f64::from(i);
        slice(
            "cuda_runtime",
            "cudaLaunchKernel",
            ts,
            0.0,
            json!({"correlation": i}),
        )
    };
    let all: Vec<Value> = (1..50).map(calls).collect();
    let ran = analyzed("in.json", json!(all).to_string(), "-o out.json")?;
    let report = ran.json("out_report.json")?;
    assert_eq!(report["faults"], json!([]));
    assert_eq!(report["inputs"][0]["dialect"], "torch");
    let findings = list(&report["findings"]);
    assert_eq!(findings.len(), 1, "{findings:?}");
    let text = findings[0]["text"].as_str().unwrap_or("");
    assert!(text.contains("49 launches, but no record"), "{text}");
    let said = ran.stderr.lines();
    let mut said = said.filter(|line| !line.starts_with("  written to "));
    assert_eq!(said.next(), None);
    Ok(())
}

/// torch.compile: kernels of one name and different numbers are different kernels; one
/// launch of a graph starts several, each with its arrow; a kernel without one gets it.
#[test]
fn compiled_graphs_keep_their_kernels_and_arrows() -> anyhow::Result<()> {
    let base = 2e9;
    let mut all = Vec::new();
    let arrow = |phase: &str, id: u32, pid: u32, tid: u32, ts: f64| {
        json!({"ph": phase, "id": id, "pid": pid, "tid": tid, "ts": ts, "cat": "ac2g",
            "name": "ac2g", "bp": "e"})
    };
    for step in 0..10u32 {
        let at = base + 100.0 * f64::from(step);
        let args = json!({"correlation": step + 1, "stream": 7});
        all.push(slice(
            "cuda_runtime",
            "cudaGraphLaunch",
            at,
            5.0,
            args.clone(),
        ));
        all.push(arrow("s", step + 1, 99, 7, at));
        for i in 0..4u32 {
            let ts = at + 10.0 + 20.0 * f64::from(i);
            let name = format!("triton_poi_fused_relu_{i}");
            let dur = f64::from(i) + 1.0;
            all.push(slice("kernel", &name, ts, dur, args.clone()));
            // For the last one the profiler wrote none.
            if i < 3 {
                all.push(arrow("f", step + 1, 0, 7, ts));
            }
        }
        // Its number is a counter of its own.
        let mut backward = arrow("s", step + 1, 99, 8, at + 1.0);
        backward["cat"] = json!("fwdbwd");
        all.push(backward);
    }
    let object = json!({"deviceProperties": [{"id": 0}], "traceEvents": all});
    let ran = analyzed("in.json", object.to_string(), "-o out.json")?;
    let (trace, report) = (ran.json("out.json")?, ran.json("out_report.json")?);
    let totals: BTreeMap<&str, f64> = list(&report["kernels"])
        .iter()
        .filter_map(|row| Some((row["name"].as_str()?, row["lengths"]["total_us"].as_f64()?)))
        .collect();
    let expected: BTreeMap<&str, f64> = [
        ("triton_poi_fused_relu_0", 10.0),
        ("triton_poi_fused_relu_1", 20.0),
        ("triton_poi_fused_relu_2", 30.0),
        ("triton_poi_fused_relu_3", 40.0),
    ]
    .into();
    assert_eq!(totals, expected);
    // Three ends were there, one is added with a begin of its own.
    assert_eq!(count(&trace, "f"), 40);
    let kernels = events(&trace).iter().filter(|e| e["cat"] == "kernel");
    for kernel in kernels {
        let ends = events(&trace)
            .iter()
            .filter(|e| e["ph"] == "f" && e["ts"] == kernel["ts"]);
        assert_eq!(ends.count(), 1, "{kernel}");
    }
    assert_eq!(report["iterations"][0]["kernels_each"], 4);
    Ok(())
}

/// A file of an older run beside the output is of another trace.
#[test]
fn only_this_run_s_files_stand_beside_the_output() -> anyhow::Result<()> {
    let dir = tempfile::TempDir::new()?;
    let older = [
        (
            "out_power.csv",
            "pid,rank,name,calls,time_us\n0,0,old,1,1\n",
        ),
        ("out_categories.csv", "Pid,Phase,Category,Kernel_Time\n"),
    ];
    let others = [("out_mine.csv", "mine\n"), ("out_tokens.csv", "mine too\n")];
    for (name, text) in older.iter().chain(&others) {
        std::fs::write(dir.path().join(name), text)?;
    }
    std::fs::write(dir.path().join("in.json.gz"), data("triton.json.gz")?)?;
    let ran = std::process::Command::new(aiprof::binary()?)
        .args(["analyze", "in.json.gz", "-o", "out.json"])
        .current_dir(dir.path())
        .output()?;
    anyhow::ensure!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    let said = String::from_utf8_lossy(&ran.stderr);
    let lines = said
        .lines()
        .filter_map(|line| line.strip_prefix("  written to "));
    // Each file has a description.
    let mut expected: Vec<&str> = lines
        .filter_map(|line| Some(line.split_once("  ")?.0))
        .collect();
    anyhow::ensure!(expected.len() > 2, "{said}");
    expected.extend(others.iter().map(|(name, _)| *name));
    expected.push("in.json.gz");
    expected.sort_unstable();
    let entries = std::fs::read_dir(dir.path())?.collect::<Result<Vec<_>, _>>()?;
    let names = entries.iter().map(|entry| entry.file_name().into_string());
    let mut names = names.collect::<Result<Vec<_>, _>>().unwrap_or_default();
    names.sort();
    assert_eq!(names, expected);
    Ok(())
}

/// Nothing in a file is not nothing wrong.
#[test]
fn a_trace_without_events_is_an_error() -> anyhow::Result<()> {
    let deep = "[".repeat(100_000);
    for text in ["[]", "{\"traceEvents\": []}", "[\n]\n", deep.as_str()] {
        let ran = Which::Analyze.run(&Input::one("in.json", text), "in.json -o out.json")?;
        let shown: String = text.chars().take(20).collect();
        assert_eq!(ran.code, Some(1), "{shown}: {}{}", ran.stdout, ran.stderr);
        assert!(
            ran.stderr.contains("has no events"),
            "{shown}: {}",
            ran.stderr
        );
        assert!(!ran.files.contains_key("out.json"), "{shown}");
    }
    // Beside a file that has some, a message and the exit status report it, and the rest is
    // analysed.
    let input = Input::one("in.json", data("triton.json.gz")?).and("empty.json", "[]");
    let ran = Which::Analyze.run(&input, "in.json empty.json -o out.json")?;
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("empty.json has no events"),
        "{}",
        ran.stderr
    );
    Ok(())
}
