use super::*;
use crate::test_data as data;
use aiprof_testkit::scene::{self, Slice};

/// A timeline of slices: category, name, thread, begin, end, correlation.
fn of(slices: &[(&str, &str, i64, f64, f64, u64)]) -> Timeline {
    let slices = slices.iter();
    scene::of_torch(slices.map(|&(cat, name, tid, ts, end, id)| (cat, name, tid, ts, end, id, "")))
}

fn steps_of(timeline: &Timeline) -> Vec<StepRow> {
    steps(timeline, &WorkIndex::new(timeline))
}

/// Step 1 is 0 to 100 on the host; its last kernel, launched at 90, ends at 140. Step 2 is 100
/// to 200: its device time begins at 140, and ends at 200 with the host, after a kernel that
/// ends at 180. A copy launched in step 1 is hidden behind a kernel in part, a collective of step
/// 2 is not hidden.
#[test]
fn a_step_has_the_work_that_it_launched() {
    let timeline = of(&[
        ("user_annotation", "ProfilerStep#1", 1, 0.0, 100.0, 0),
        ("user_annotation", "ProfilerStep#2", 1, 100.0, 200.0, 0),
        (
            "user_annotation",
            "enumerate(DataLoader)#X.__next__",
            1,
            0.0,
            10.0,
            0,
        ),
        ("user_annotation", "## forward ##", 1, 10.0, 40.0, 0),
        ("user_annotation", "Net.forward", 1, 12.0, 42.0, 0),
        (
            "cpu_op",
            "autograd::engine::evaluate_function: A",
            2,
            50.0,
            60.0,
            0,
        ),
        (
            "user_annotation",
            "Optimizer.step#Adam.step",
            1,
            90.0,
            96.0,
            0,
        ),
        ("cuda_runtime", "cudaLaunchKernel", 1, 20.0, 21.0, 1),
        ("cuda_runtime", "cudaMemcpyAsync", 1, 22.0, 23.0, 2),
        ("cuda_runtime", "cudaLaunchKernel", 1, 90.0, 91.0, 3),
        ("cuda_runtime", "cudaLaunchKernel", 1, 110.0, 111.0, 4),
        ("cuda_runtime", "cudaLaunchKernel", 1, 112.0, 113.0, 5),
        ("cuda_runtime", "cudaLaunchKernel", 1, 210.0, 211.0, 6),
        ("kernel", "k", 7, 30.0, 50.0, 1),
        ("gpu_memcpy", "Memcpy HtoD", 8, 45.0, 60.0, 2),
        ("kernel", "k", 7, 100.0, 140.0, 3),
        ("kernel", "k", 7, 140.0, 150.0, 4),
        ("kernel", "ncclDevKernel_AllReduce_Sum", 9, 145.0, 180.0, 5),
        ("kernel", "k", 7, 220.0, 230.0, 6),
    ]);
    let rows = steps_of(&timeline);
    let names: Vec<_> = rows
        .iter()
        .map(|row| (row.step.as_str(), row.wall_us))
        .collect();
    assert_eq!(names, [("1", 100.0), ("2", 100.0)]);
    assert_eq!(
        rows[0].phases,
        [Some(10.0), Some(32.0), Some(10.0), Some(6.0)]
    );
    assert_eq!(rows[1].phases, [Some(0.0); 4]);
    let parts = rows.iter().map(|row| {
        let device = row.device.unwrap();
        [
            device.span_us,
            device.compute_us,
            device.communication_us,
            device.copy_us,
            device.idle_us,
        ]
    });
    // From 30, the device's first work, to 140; from 140 to 200.
    let wanted = [
        [110.0, 60.0, 0.0, 10.0, 40.0],
        [60.0, 10.0, 30.0, 0.0, 20.0],
    ];
    assert_eq!(parts.collect::<Vec<_>>(), wanted);
    for row in &rows {
        let device = row.device.unwrap();
        let causes: f64 = device.causes.iter().map(|sum| sum.us).sum();
        assert!((causes - device.idle_us).abs() < 1e-9, "{row:?}");
    }
}

/// Steps of two processes share no time, and a step without work of a device has a row.
#[test]
fn steps_of_processes_and_of_hosts_alone() {
    let mut timeline = of(&[
        ("user_annotation", "ProfilerStep#7", 1, 0.0, 100.0, 0),
        ("user_annotation", "ProfilerStep#8", 1, 100.0, 150.0, 0),
        ("cuda_runtime", "cudaLaunchKernel", 1, 10.0, 11.0, 1),
        ("kernel", "k", 7, 30.0, 50.0, 1),
    ]);
    let other = Slice {
        rank: 1,
        name: "ProfilerStep#7",
        cat: "user_annotation",
        ts: 20.0,
        dur: 40.0,
        ..Slice::default()
    };
    scene::add(&mut timeline, &other);
    let rows = steps_of(&timeline);
    let found = rows.iter().map(|row| {
        let span = row.device.map(|device| device.span_us);
        (row.rank, row.step.as_str(), row.wall_us, span)
    });
    let wanted = [
        (0, "7", 100.0, Some(20.0)),
        (0, "8", 50.0, None),
        (1, "7", 40.0, None),
    ];
    assert_eq!(found.collect::<Vec<_>>(), wanted);
}

/// What `tests/data/kineto/step_figures.py` prints of the trace.
#[test]
fn steps_of_a_real_trace_split() {
    let timeline = data::timeline("kineto/no_device_properties.json.gz");
    let rows = steps_of(&timeline);
    let found = rows.iter().map(|row| {
        let device = row.device.unwrap();
        let phases = row.phases.map(|us| us.unwrap_or(-1.0));
        let parts = [
            device.span_us,
            device.compute_us,
            device.communication_us,
            device.copy_us,
            device.idle_us,
        ];
        (row.step.as_str(), row.wall_us, phases, parts)
    });
    let wanted = [
        (
            "551",
            607312.0,
            [-1.0, 138773.0, 234964.0, 204454.0],
            [604376.0, 106252.0, 172259.0, 169.0, 325696.0],
        ),
        (
            "552",
            622928.0,
            [-1.0, 151945.0, 229175.0, 212752.0],
            [618422.0, 104068.0, 164724.0, 184.0, 349446.0],
        ),
    ];
    assert_eq!(found.collect::<Vec<_>>(), wanted);
    for row in &rows {
        let device = row.device.unwrap();
        let causes: f64 = device.causes.iter().map(|sum| sum.us).sum();
        assert!((causes - device.idle_us).abs() < 1e-6, "{row:?}");
    }
}

/// A copy that step 1 launched runs until after all work of step 2: its device time ends before
/// the copy does, and is none rather than negative.
#[test]
fn a_step_within_work_of_the_one_before_has_no_negative_time() {
    let timeline = of(&[
        ("user_annotation", "ProfilerStep#1", 1, 0.0, 100.0, 0),
        ("user_annotation", "ProfilerStep#2", 1, 100.0, 200.0, 0),
        ("cuda_runtime", "cudaMemcpyAsync", 1, 70.0, 71.0, 1),
        ("cuda_runtime", "cudaLaunchKernel", 1, 110.0, 111.0, 2),
        ("gpu_memcpy", "Memcpy DtoH", 8, 80.0, 600.0, 1),
        ("kernel", "k", 7, 120.0, 180.0, 2),
    ]);
    for row in steps_of(&timeline) {
        let device = row.device.unwrap();
        let times = [
            device.span_us,
            device.compute_us,
            device.copy_us,
            device.idle_us,
        ];
        assert!(times.iter().all(|us| *us >= 0.0), "{times:?}");
    }
}
