//! The tables of traces that others wrote, and of aiprof's own.

use super::{Scope, device, host, lines, properties, submission};
use crate::{Cell, Table};
use aiprof_formats::import::json;
use aiprof_model::timeline::Timeline;

fn timeline(events: &[&str]) -> Timeline {
    let text = format!(r#"{{"traceEvents":[{}]}}"#, events.join(","));
    let mut timeline = Timeline::default();
    json::read(text.as_bytes(), "a.json", &mut timeline).unwrap();
    timeline
}

fn slice(cat: &str, name: &str, times: [f64; 2], args: &str) -> String {
    let [ts, dur] = times;
    format!(
        r#"{{"ph":"X","cat":"{cat}","name":{name:?},"pid":1,"tid":2,"ts":{ts},"dur":{dur},
        "args":{{{args}}}}}"#
    )
}

/// Cells of some columns as texts.
fn cells(table: &Table, columns: &[&str]) -> Vec<Vec<String>> {
    let at = |name: &&str| table.columns.iter().position(|one| one.name == *name);
    let at: Vec<usize> = columns.iter().map(|name| at(name).unwrap()).collect();
    let text = |cell: &Cell| match cell {
        Cell::None => "-".to_owned(),
        Cell::Text(text) => text.clone(),
        Cell::Count(count) => count.to_string(),
        Cell::Number(number) => format!("{number:.2}"),
    };
    let row = |row: &Vec<Cell>| at.iter().map(|at| text(&row[*at])).collect();
    table.rows.iter().map(row).collect()
}

/// What Kineto writes of CUDA (torch 2.x), and of 2021.
#[test]
fn kinetos_kernels_and_calls_are_rows() {
    let shape = r#""grid":[4,2,1],"block":[128,1,1],"stream":7"#;
    let events = [
        slice("cuda_runtime", "cudaLaunchKernel", [0.0, 5.0], ""),
        slice("cuda_runtime", "cudaLaunchKernel", [10.0, 3.0], ""),
        slice("cuda_driver", "cuLaunchKernel", [20.0, 1.0], ""),
        slice("cpu_op", "aten::zeros", [0.0, 50.0], ""),
        slice("kernel", "void gemm<1, 2>(float*)", [7.0, 20.0], shape),
        slice("kernel", "void gemm<1, 2>(float*)", [30.0, 10.0], shape),
        slice(
            "gpu_memcpy",
            "Memcpy HtoD (Pinned -> Device)",
            [50.0, 10.0],
            r#""bytes":64"#,
        ),
        slice("gpu_user_annotation", "step", [0.0, 99.0], ""),
    ];
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let timeline = timeline(&events);
    let host = host::table(&timeline, &Scope::default());
    let found = cells(
        &host,
        &["backend", "function", "calls", "time", "average", "min"],
    );
    let expected = [
        ["CUDA", "cudaLaunchKernel", "2", "8000", "4000", "3000"],
        ["CUDA", "cuLaunchKernel", "1", "1000", "1000", "1000"],
    ];
    assert_eq!(found, expected);
    let scope = Scope {
        shapes: true,
        ..Scope::default()
    };
    let device = device::table(&timeline, &scope);
    let found = cells(&device, &["kernel", "calls", "time", "share", "quality"]);
    let gemm = "void gemm<1, 2>(float*)[{4; 2; 1} {128; 1; 1}]";
    let copy = "Memcpy HtoD (Pinned -> Device)[64]";
    let expected = [
        [gemm, "2", "30000", "75.00", "exact"],
        [copy, "1", "10000", "25.00", "exact"],
    ];
    assert_eq!(found, expected);
    assert!(device.notes.is_empty());
    // They have no values.
    assert_eq!(submission::table(&timeline, &scope).rows[0][3], Cell::None);
}

/// unitrace's own Chrome traces: kernels have their shape in the name.
#[test]
fn unitraces_own_traces_are_read() {
    let events = [
        slice("cpu_op", "zeCommandListAppendLaunchKernel", [0.0, 2.0], ""),
        slice("cpu_op", "zero_grad", [0.0, 2.0], ""),
        slice(
            "gpu_op",
            "GEMM[SIMD32 {1; 1024; 1} {1024; 1; 1}]",
            [5.0, 4.0],
            "",
        ),
        slice(
            "gpu_op",
            "zeCommandListAppendMemoryCopy(M2D)[64]",
            [10.0, 1.0],
            "",
        ),
    ];
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let timeline = timeline(&events);
    let host = host::table(&timeline, &Scope::default());
    let found = cells(&host, &["backend", "function"]);
    assert_eq!(found, [["L0", "zeCommandListAppendLaunchKernel"]]);
    let device = device::table(&timeline, &Scope::default());
    let found = cells(&device, &["backend", "kernel", "time"]);
    let copy = "zeCommandListAppendMemoryCopy(M2D)";
    assert_eq!(found, [["L0", "GEMM", "4000"], ["L0", copy, "1000"]]);
}

const OF_LIST: &str = r#""api":"Level Zero","pid":9,"tid":10,"device_handle":"0x1f""#;

fn estimated(name: &str, times: [f64; 2], more: &str) -> String {
    let args = format!(r#""estimated":"it was","launches":2,{OF_LIST},{more}"#);
    slice("estimated", name, times, &args)
}

#[test]
fn bounds_are_of_their_union_and_never_exact() {
    let kernel = r#""call":"zeCommandListAppendLaunchKernel","kind":"launch","append_us":1.5"#;
    let exact = format!("{OF_LIST},{kernel},\"submit_us\":2,\"simd\":8,\"compiled\":\"JIT\"");
    let copy = r#""call":"zeCommandListAppendMemoryCopy","kind":"copy","bytes":4096"#;
    let events = [
        estimated("mm", [0.0, 10.0], kernel),
        estimated("mm", [5.0, 10.0], kernel),
        slice("kernel", "mm", [30.0, 3.0], &exact),
        slice("kernel", "add", [40.0, 7.0], &exact),
        estimated("Memcpy (M2D)", [50.0, 4.0], copy),
    ];
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let timeline = timeline(&events);
    let table = device::table(&timeline, &Scope::default());
    let columns = [
        "kernel", "calls", "time", "share", "min", "max", "timed", "quality",
    ];
    let expected = [
        ["mm", "5", "18000", "-", "-", "10000", "1", "at most"],
        ["add", "1", "7000", "100.00", "7000", "7000", "1", "exact"],
        [
            "zeCommandListAppendMemoryCopy(M2D)",
            "2",
            "4000",
            "-",
            "-",
            "4000",
            "0",
            "at most",
        ],
    ];
    assert_eq!(cells(&table, &columns), expected);
    assert!(
        table.notes[0].starts_with("<=: 6 of 8 commands "),
        "{:?}",
        table.notes
    );
    assert_eq!(table.totals[1].1, Cell::from("<=29000"));
    let table = submission::table(&timeline, &Scope::default());
    let found = cells(&table, &["append", "submit", "execute", "execute_share"]);
    assert_eq!(found[0], ["4500", "17000", "18000", "-"]);
    assert_eq!(found[1], ["1500", "2000", "7000", "100.00"]);
    assert_eq!(found[2], ["-", "-", "4000", "-"]);
    let table = properties::table(&timeline, &Scope::default());
    let found = cells(&table, &["kernel", "compiled", "simd", "registers"]);
    assert_eq!(
        found,
        [
            ["mm", "JIT", "8", "unknown"],
            ["add", "JIT", "8", "unknown"]
        ]
    );
    let lines = lines::lines(&timeline, &Scope::default(), 1_000_000);
    let expected = "Thread 10 Device 31 : \"add[SIMD8 {?; ?; ?} {?; ?; ?}]\" [ns] 1036500 (append) \
                    1038000 (submit) 1040000 (start) 1047000 (end)";
    assert_eq!(lines[3], expected);
    assert!(
        lines[0].ends_with(">=1000000 (start) <=1010000 (end)"),
        "{lines:?}"
    );
}

#[test]
fn a_scope_leaves_out_the_rest() {
    let kernel = r#""call":"zeCommandListAppendLaunchKernel","kind":"launch""#;
    let call = |api: &str, end: &str| format!(r#""api":"{api}"{end}"#);
    let events = [
        estimated("mm", [0.0, 10.0], kernel),
        estimated("add", [5.0, 10.0], kernel),
        slice(
            "launch",
            "zeCommandListAppendLaunchKernel",
            [0.0, 1.0],
            &call("Level Zero", ""),
        ),
        slice(
            "launch",
            "zeInit",
            [2.0, 1.0],
            &call("Level Zero", r#","end":"not seen""#),
        ),
        slice("launch", "clFinish", [4.0, 1.0], &call("OpenCL", "")),
        slice("ioctl", "DRM_IOCTL", [6.0, 1.0], &call("xe", "")),
        slice(
            "resolve",
            "zeGetMemProcAddrTable",
            [8.0, 1.0],
            &call("Level Zero", ""),
        ),
    ];
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let timeline = timeline(&events);
    let mut scope = Scope::default();
    let found = |table: Table| cells(&table, &["backend"]).len();
    assert_eq!(found(host::table(&timeline, &scope)), 3);
    assert_eq!(found(device::table(&timeline, &scope)), 2);
    scope.commands.include = vec!["mm".to_owned()];
    scope.backends = vec!["L0".to_owned()];
    assert_eq!(found(device::table(&timeline, &scope)), 1);
    let table = host::table(&timeline, &scope);
    let rows = cells(&table, &["function", "calls", "time"]);
    let launch = "zeCommandListAppendLaunchKernel";
    assert_eq!(rows, [[launch, "1", "1000"], ["zeInit", "1", "-"]]);
    assert!(table.notes[0].starts_with("1 calls have no recorded end"));
    // Device rows by the process that made them.
    scope.pid = Some(8);
    assert_eq!(found(device::table(&timeline, &scope)), 0);
    scope.pid = Some(9);
    assert_eq!(found(device::table(&timeline, &scope)), 1);
}
