use super::*;
use aiprof_testkit::scene::{self, ThreadSlice};

/// Shapes of a product of 10 x 20 and 20 x 30 numbers of 32 bits: 12,000 operations, 4,400 bytes.
const MM: &str = r#""Input Dims":[[10,20],[20,30]],"Input type":["float","float"]"#;

fn found(slices: &[ThreadSlice<'_>]) -> Vec<WorkRow> {
    let timeline = scene::of_torch(slices.iter().copied());
    rows(&timeline, &WorkIndex::new(&timeline), false)
}

fn launch(ts: f64, correlation: u64) -> ThreadSlice<'static> {
    let call = "cudaLaunchKernel";
    ("cuda_runtime", call, 1, ts, ts + 1.0, correlation, "")
}

fn kernel(name: &str, ts: f64, us: f64, correlation: u64) -> ThreadSlice<'_> {
    ("kernel", name, 7, ts, ts + us, correlation, "\"stream\":7")
}

fn op<'a>(name: &'a str, from: f64, to: f64, args: &'a str) -> ThreadSlice<'a> {
    ("cpu_op", name, 1, from, to, 0, args)
}

fn note(name: &str, from: f64, to: f64) -> ThreadSlice<'_> {
    ("user_annotation", name, 1, from, to, 0, "")
}

/// Operator, kernels, calls, microseconds, operations, bytes.
type Brief = (String, String, u64, f64, Option<u64>, Option<u64>);

fn brief(row: &WorkRow) -> Brief {
    (
        row.operator.clone(),
        row.kernels.join("|"),
        row.calls,
        row.us,
        row.counted.map(|one| one.flops),
        row.counted.and_then(|one| one.bytes),
    )
}

fn row(operator: &str, kernels: &str, calls: u64, us: f64, counted: Option<(u64, u64)>) -> Brief {
    let (flops, bytes) = counted.unzip();
    (
        operator.to_owned(),
        kernels.to_owned(),
        calls,
        us,
        flops,
        bytes,
    )
}

/// Two calls of one operator, one of which launches a second kernel below an operator without a
/// formula; a kernel of another operator, and one of none.
#[test]
fn work_belongs_to_the_innermost_operator_with_a_formula() {
    let rows = found(&[
        op(
            "aten::linear",
            0.0,
            50.0,
            r#""Input Dims":[[10,20],[30,20]]"#,
        ),
        op("aten::t", 1.0, 2.0, ""),
        op("aten::mm", 10.0, 40.0, MM),
        launch(12.0, 1),
        op("mylib::reduce_parts", 20.0, 30.0, ""),
        launch(22.0, 2),
        op("aten::mm", 60.0, 70.0, MM),
        launch(62.0, 3),
        launch(64.0, 4),
        op("mylib::other", 80.0, 90.0, MM),
        launch(82.0, 5),
        launch(95.0, 6),
        kernel("gemm", 100.0, 10.0, 1),
        kernel("splitk", 110.0, 2.0, 2),
        kernel("gemm", 120.0, 12.0, 3),
        kernel("splitk", 132.0, 2.0, 4),
        kernel("other", 140.0, 5.0, 5),
        kernel("alone", 150.0, 4.0, 6),
        kernel("unknown", 160.0, 3.0, 99),
    ]);
    let rows: Vec<_> = rows.iter().map(brief).collect();
    let wanted = [
        row("aten::mm", "gemm|splitk", 2, 26.0, Some((24_000, 8_800))),
        row("mylib::other", "other", 1, 5.0, None),
        row("", "alone", 1, 4.0, None),
        row("", "unknown", 1, 3.0, None),
    ];
    assert_eq!(rows, wanted);
}

/// A convolution has a kernel of its own and adds its bias by an operator in it. It has 2 x 3
/// results of 2 x 4 operations; the 6 additions are the inner operator's.
#[test]
fn no_operation_is_counted_twice() {
    let outer = "\"Input Dims\":[[1,4,4],[2,4,2],[2]],\"Input type\":[\"float\",\"float\",\"float\"],\
                 \"Concrete Inputs\":[\"\",\"\",\"\",\"[1]\",\"[0]\",\"[1]\",\"False\",\"[0]\",\"1\"]";
    let inner = r#""Input Dims":[[1,2,3],[1,2,1],[]],"Input type":["float","float","Scalar"]"#;
    let slices = [
        op("aten::convolution", 0.0, 50.0, outer),
        op("aten::_convolution", 1.0, 49.0, outer),
        launch(2.0, 1),
        op("aten::add_", 10.0, 20.0, inner),
        launch(12.0, 2),
        kernel("conv", 100.0, 10.0, 1),
        kernel("add", 110.0, 2.0, 2),
    ];
    let rows = found(&slices);
    let flops = |row: &WorkRow| row.counted.map(|one| one.flops);
    assert_eq!(flops(&rows[0]), Some(6 * 2 * 4 * 2 - 6));
    assert_eq!(flops(&rows[1]), Some(6));
    // An operator without work of its own is not counted.
    let rest: Vec<_> = slices.into_iter().filter(|one| one.5 != 1).collect();
    let rows = found(&rest);
    assert_eq!(rows.len(), 1);
    assert_eq!(flops(&rows[0]), Some(6));
}

/// Phases of rows, in the order of kernels' names.
fn phases(rows: &[WorkRow]) -> Vec<(&str, Option<&str>)> {
    let all = rows.iter().map(|row| {
        let phase = row.phase.map(WorkPhase::word);
        (row.kernels[0].as_str(), phase)
    });
    let mut all: Vec<_> = all.collect();
    all.sort_unstable();
    all
}

#[test]
fn notes_show_phases() {
    let rows = found(&[
        note("## forward ##", 0.0, 100.0),
        note("step[EXTEND bs=2 toks=900]", 5.0, 30.0),
        note("ProfilerStep#1", 6.0, 29.0),
        op("aten::mm", 10.0, 20.0, MM),
        launch(12.0, 1),
        launch(40.0, 2),
        launch(110.0, 3),
        op(
            "autograd::engine::evaluate_function: MmBackward0",
            120.0,
            140.0,
            "",
        ),
        op("aten::mm", 125.0, 135.0, MM),
        launch(126.0, 4),
        kernel("a", 200.0, 1.0, 1),
        kernel("b", 210.0, 1.0, 2),
        kernel("c", 220.0, 1.0, 3),
        kernel("d", 230.0, 1.0, 4),
    ]);
    let wanted = [
        ("a", Some("prefill")),
        ("b", Some("forward")),
        ("c", None),
        ("d", Some("backward")),
    ];
    assert_eq!(phases(&rows), wanted);
}

/// An attention of as many queries and keys, causal or not.
fn attention(queries: u32, keys: u32, is_causal: bool) -> String {
    let causal = if is_causal { "True" } else { "False" };
    format!(
        "\"Input Dims\":[[1,8,{queries},64],[1,8,{keys},64],[1,8,{keys},64],[],[]],\
         \"Input type\":[\"c10::Half\",\"c10::Half\",\"c10::Half\",\"Scalar\",\"Scalar\"],\
         \"Concrete Inputs\":[\"\",\"\",\"\",\"0.\",\"{causal}\"]"
    )
}

/// Attention with a launch, and a launch before it and behind it, twice or more.
fn layers(calls: &[String]) -> Vec<ThreadSlice<'_>> {
    let name = "aten::_scaled_dot_product_flash_attention";
    let mut slices = Vec::new();
    for (at, args) in calls.iter().enumerate() {
        let ts = 100.0 * at as f64;
        let number = at as u64 * 2;
        slices.push(launch(ts, number + 1));
        slices.push(op(name, ts + 10.0, ts + 20.0, args));
        slices.push(launch(ts + 12.0, number + 2));
    }
    let end = 100.0 * calls.len() as f64;
    slices.push(launch(end, calls.len() as u64 * 2 + 1));
    slices
}

#[test]
fn attention_shows_phases() {
    let of = |calls: &[String]| {
        let mut slices = layers(calls);
        let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
        let count = calls.len() * 2 + 1;
        for (at, name) in names.into_iter().take(count).enumerate() {
            slices.push(kernel(name, 1000.0 + 10.0 * at as f64, 1.0, at as u64 + 1));
        }
        let rows = found(&slices);
        let found = phases(&rows);
        let found = found.into_iter().map(|(_, phase)| phase.unwrap_or("-"));
        found.collect::<Vec<_>>().join(" ")
    };
    let (prompt, token) = (attention(9, 9, true), attention(1, 10, false));
    let both = [prompt.clone(), prompt.clone(), token.clone(), token.clone()];
    // What is between the last call for the prompt and the first for a token may be of either.
    let wanted = "prefill prefill prefill prefill - decode decode decode decode";
    assert_eq!(of(&both), wanted);
    // A model that learns has prompts only; one that sees pictures has no causal attention.
    assert_eq!(of(&[prompt.clone(), prompt]), "- - - - -");
    assert_eq!(of(&[attention(9, 9, false), token]), "- - - - -");
}

#[test]
fn shapes_keep_calls_apart_if_wanted() {
    let other = r#""Input Dims":[[1,20],[20,30]],"Input type":["float","float"]"#;
    let slices = [
        op("aten::mm", 0.0, 10.0, MM),
        launch(1.0, 1),
        op("aten::mm", 20.0, 30.0, other),
        launch(21.0, 2),
        kernel("gemm", 100.0, 10.0, 1),
        kernel("gemm", 120.0, 4.0, 2),
    ];
    let timeline = scene::of_torch(slices);
    let index = WorkIndex::new(&timeline);
    assert_eq!(rows(&timeline, &index, false).len(), 1);
    let rows = rows(&timeline, &index, true);
    let shapes: Vec<_> = rows
        .iter()
        .filter_map(|row| row.shapes.as_deref())
        .collect();
    assert_eq!(shapes, ["[[10, 20], [20, 30]]", "[[1, 20], [20, 30]]"]);
    assert_eq!(rows[1].counted.unwrap().flops, 2 * 20 * 30);
}
