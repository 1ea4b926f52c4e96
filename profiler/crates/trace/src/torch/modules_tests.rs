use super::*;
use crate::test_data as data;
use aiprof_model::timeline::Dialect;
use aiprof_testkit::scene::{self, Slice, ThreadSlice};

fn report(timeline: &Timeline) -> ModuleReport {
    ModuleReport::new(timeline, &WorkIndex::new(timeline))
}

fn of(slices: &[ThreadSlice<'_>]) -> Timeline {
    scene::of_torch(slices.iter().copied())
}

fn path(row: &ModuleRow) -> String {
    match row.parents.as_str() {
        "" => row.name.clone(),
        parents => format!("{parents}/{}", row.name),
    }
}

/// What `tests/data/torch/torch_figures.py modules` prints of the trace: it joins frames by
/// their numbers, and backward operators by the trace's arrows and autograd's spans round them.
/// The times of a row: host and device, each whole and its own, and backward.
fn times(row: &ModuleRow) -> [f64; 5] {
    [
        row.host_us,
        row.self_host_us,
        row.device_us,
        row.self_device_us,
        row.backward_us,
    ]
}

#[test]
fn a_real_trace_splits_as_its_arrows_show() {
    let timeline = data::timeline("torch/eager_stack.json.gz");
    let report = report(&timeline);
    let wanted = [
        (
            "CrossEntropyLoss_0",
            4,
            [514.020, 514.020, 13.504, 13.504, 13.407],
        ),
        (
            "Sequential_0",
            4,
            [2835.774, 224.334, 372.255, 0.000, 436.230],
        ),
        (
            "Sequential_0/Conv2d_0",
            4,
            [980.872, 980.872, 69.887, 69.887, 213.858],
        ),
        (
            "Sequential_0/Flatten_0",
            4,
            [116.907, 116.907, 0.000, 0.000, 0.000],
        ),
        (
            "Sequential_0/Linear_0",
            4,
            [658.871, 658.871, 232.578, 232.578, 154.881],
        ),
        (
            "Sequential_0/Linear_1",
            4,
            [379.304, 379.304, 56.446, 56.446, 52.514],
        ),
        (
            "Sequential_0/ReLU_0",
            4,
            [300.289, 300.289, 9.088, 9.088, 10.625],
        ),
        (
            "Sequential_0/ReLU_1",
            4,
            [175.197, 175.197, 4.256, 4.256, 4.352],
        ),
    ];
    assert_eq!(report.rows.len(), wanted.len());
    for (name, calls, times) in wanted {
        let row = report.rows.iter().find(|row| path(row) == name).unwrap();
        let found = [
            row.host_us,
            row.self_host_us,
            row.device_us,
            row.self_device_us,
            row.backward_us,
        ];
        assert_eq!(row.calls, Some(calls), "{name}");
        for (found, wanted) in found.iter().zip(times) {
            assert!((found - wanted).abs() < 0.001, "{name}: {found} {wanted}");
        }
    }
    assert!((report.outside_us - 565.279).abs() < 0.001, "{report:?}");
}

/// Two modules of one parent; work launched in each, between them and behind them; a
/// backward operator on another thread, and one whose forward operator is in no module.
#[test]
fn work_belongs_to_the_innermost_module() {
    let op = |number: u32, thread: u32| {
        format!("\"Sequence number\":{number},\"Fwd thread id\":{thread}")
    };
    let (one, two, back_one, back_two) = (op(1, 0), op(2, 0), op(1, 5), op(2, 5));
    let timeline = of(&[
        ("python_function", "nn.Module: Net_0", 1, 0.0, 100.0, 0, ""),
        (
            "python_function",
            "nn.Module: Linear_0",
            1,
            10.0,
            40.0,
            0,
            "",
        ),
        ("cpu_op", "aten::linear", 1, 12.0, 38.0, 0, &one),
        ("cuda_runtime", "cudaLaunchKernel", 1, 20.0, 21.0, 1, ""),
        ("python_function", "f.py(1): f", 1, 50.0, 60.0, 0, ""),
        ("cuda_runtime", "cudaLaunchKernel", 1, 55.0, 56.0, 2, ""),
        (
            "python_function",
            "nn.Module: Linear_1",
            1,
            60.0,
            90.0,
            0,
            "",
        ),
        ("cpu_op", "aten::mul", 1, 110.0, 120.0, 0, &two),
        ("cuda_runtime", "cudaLaunchKernel", 1, 115.0, 116.0, 3, ""),
        ("cpu_op", "LinearBackward0", 2, 130.0, 140.0, 0, &back_one),
        ("cuda_runtime", "cudaLaunchKernel", 2, 135.0, 136.0, 4, ""),
        ("cpu_op", "MulBackward0", 2, 150.0, 160.0, 0, &back_two),
        ("cuda_runtime", "cudaLaunchKernel", 2, 155.0, 156.0, 5, ""),
        ("kernel", "gemm", 7, 30.0, 31.0, 1, ""),
        ("kernel", "add", 7, 60.0, 62.0, 2, ""),
        ("kernel", "mul", 7, 120.0, 124.0, 3, ""),
        ("kernel", "gemm_back", 7, 140.0, 148.0, 4, ""),
        ("kernel", "mul_back", 7, 160.0, 176.0, 5, ""),
        ("kernel", "lost", 7, 180.0, 212.0, 6, ""),
    ]);
    let report = report(&timeline);
    let rows = report.rows.iter().map(|row| {
        let times = times(row);
        (path(row), row.calls, times, row.kernels.join(","))
    });
    let row =
        |path: &str, times, kernels: &str| (path.to_owned(), Some(1), times, kernels.to_owned());
    let wanted = [
        row("Net_0", [100.0, 40.0, 3.0, 2.0, 8.0], "add"),
        row("Net_0/Linear_0", [30.0, 30.0, 1.0, 1.0, 8.0], "gemm"),
        row("Net_0/Linear_1", [30.0, 30.0, 0.0, 0.0, 0.0], ""),
    ];
    assert_eq!(rows.collect::<Vec<_>>(), wanted);
    assert_eq!(report.outside_us, 4.0 + 16.0 + 32.0);
    let share = report.rows[0].share.unwrap();
    assert!((share - 100.0 * 11.0 / 63.0).abs() < 1e-9);
}

/// TorchScript: operators name their modules, the inner of two in the same module counts once.
#[test]
fn operators_of_torchscript_name_their_modules() {
    let named = |text: &str| format!("\"Module Hierarchy\":\"{text}\"");
    let net = named("TOP(Net)::forward");
    let layer = named("TOP(Net)::forward.SELF(Net)::run.fc(Linear)::forward");
    let timeline = of(&[
        ("cpu_op", "aten::linear", 1, 0.0, 10.0, 0, &layer),
        ("cpu_op", "aten::addmm", 1, 2.0, 8.0, 0, &layer),
        ("cuda_runtime", "cudaLaunchKernel", 1, 3.0, 4.0, 1, ""),
        ("cpu_op", "aten::relu", 1, 20.0, 25.0, 0, &net),
        ("cpu_op", "aten::add", 1, 30.0, 35.0, 0, &named("")),
        ("kernel", "gemm", 7, 30.0, 34.0, 1, ""),
    ]);
    let report = report(&timeline);
    let rows = report.rows.iter();
    let rows = rows.map(|row| {
        (
            path(row),
            row.calls,
            row.host_us,
            row.self_host_us,
            row.device_us,
        )
    });
    let wanted = [
        ("Net".to_owned(), None, 15.0, 5.0, 4.0),
        ("Net/fc".to_owned(), None, 10.0, 10.0, 4.0),
    ];
    assert_eq!(rows.collect::<Vec<_>>(), wanted);
    let names: Vec<_> = hierarchy("model.layers.0.mlp").collect();
    assert_eq!(names, ["model", "layers", "0", "mlp"]);
}

/// A hostile depth of modules takes no more than its time, and texts stay short.
#[test]
fn deep_modules_are_counted() {
    let count = 20_000;
    let mut timeline = scene::empty(Dialect::Torch);
    let mut add = |cat, name, ts: u32, dur: u32| {
        let slice = Slice {
            name,
            cat,
            ts: f64::from(ts),
            dur: f64::from(dur),
            ..Slice::default()
        };
        scene::add(&mut timeline, &slice);
    };
    for depth in 0..count {
        add(
            "python_function",
            "nn.Module: A_0",
            depth,
            3 * count - 2 * depth,
        );
    }
    add("cpu_op", "aten::add", count, 1);
    let report = report(&timeline);
    assert_eq!(report.rows.len(), count as usize);
    let longest = report.rows.iter().map(|row| row.parents.len()).max();
    assert_eq!(longest, Some(2 + MOST_PARENTS * 4));
    assert!(report.rows.iter().all(|row| row.self_host_us >= 0.0));
}

/// Activation checkpointing: a backward operator on another thread calls a module again. Its number
/// shows that it is that of the forward pass, and so is what is in it.
#[test]
fn a_module_that_runs_again_is_one_row() {
    let op = |thread: u32| format!("\"Sequence number\":1,\"Fwd thread id\":{thread}");
    let (forward, backward) = (op(0), op(5));
    let frame = |name, thread, from, to| ("python_function", name, thread, from, to, 0, "");
    let timeline = of(&[
        frame("nn.Module: Net_0", 2, 0.0, 100.0),
        frame("nn.Module: Block_0", 2, 10.0, 40.0),
        frame("nn.Module: Linear_0", 2, 15.0, 30.0),
        ("cpu_op", "aten::mm", 2, 16.0, 20.0, 0, &forward),
        // The thread of the backward pass stands before the other.
        ("cpu_op", "MmBackward0", 1, 200.0, 300.0, 0, &backward),
        frame("nn.Module: Block_0", 1, 210.0, 260.0),
        frame("nn.Module: Linear_0", 1, 220.0, 240.0),
        ("cuda_runtime", "cudaLaunchKernel", 1, 225.0, 226.0, 1, ""),
        ("cuda_runtime", "cudaLaunchKernel", 1, 270.0, 271.0, 2, ""),
        ("kernel", "again", 7, 300.0, 302.0, 1, ""),
        ("kernel", "back", 7, 310.0, 314.0, 2, ""),
    ]);
    let report = report(&timeline);
    let rows = report.rows.iter().map(|row| {
        let times = times(row);
        (path(row), row.calls, times)
    });
    let row = |path: &str, calls, times| (path.to_owned(), Some(calls), times);
    let wanted = [
        row("Net_0", 1, [150.0, 70.0, 2.0, 0.0, 4.0]),
        row("Net_0/Block_0", 2, [80.0, 45.0, 2.0, 0.0, 4.0]),
        row("Net_0/Block_0/Linear_0", 2, [35.0, 35.0, 2.0, 2.0, 4.0]),
    ];
    assert_eq!(rows.collect::<Vec<_>>(), wanted);
    assert_eq!(report.outside_us, 0.0);
}

/// A trace that begins in the backward pass does not show round which modules a module is called
/// again: it stands by itself.
#[test]
fn a_module_that_runs_again_without_its_first_call_is_alone() {
    let op = |thread: u32| format!("\"Sequence number\":1,\"Fwd thread id\":{thread}");
    let (forward, backward) = (op(0), op(5));
    let timeline = of(&[
        ("cpu_op", "aten::mm", 2, 16.0, 20.0, 0, &forward),
        ("cpu_op", "MmBackward0", 1, 200.0, 300.0, 0, &backward),
        (
            "python_function",
            "nn.Module: Block_0",
            1,
            210.0,
            260.0,
            0,
            "",
        ),
    ]);
    let rows = report(&timeline).rows;
    let rows: Vec<_> = rows.iter().map(|row| (path(row), row.calls)).collect();
    assert_eq!(rows, [("Block_0".to_owned(), Some(1))]);
}
