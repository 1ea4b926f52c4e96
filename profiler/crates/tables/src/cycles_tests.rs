//! Ranks with several files, one for each cycle of the profiler: each is one row. What is expected
//! is computed from the begins and lengths that the traces are built with.

use super::test_tables::tables_of;
use super::{Cell, Table, entry};
use aiprof_model::timeline::Timeline;
use aiprof_testkit::scene::{Slice, files_of_torch};

/// From the begin of one cycle to that of the next, microseconds.
const CYCLE: f64 = 10_000.0;
const NCCL: &str = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)";

/// A cycle of a rank, in which it computes until `ready` and then waits for the others. The
/// numbers of calls begin again in each.
fn cycle(rank: u32, at: u32, ready: f64, collectives: u32) -> Vec<Slice<'static>> {
    let base = f64::from(at) * CYCLE;
    let mut slices = Vec::new();
    let mut launch = |name, called: f64, from: f64, to: f64| {
        let correlation = slices.len() as u64 + 1;
        let slice = |name, cat, ts: f64, dur, args| Slice {
            rank,
            tid: 7,
            name,
            cat,
            ts: base + ts,
            dur,
            correlation,
            args,
            ..Slice::default()
        };
        slices.push(slice("cudaLaunchKernel", "cuda_runtime", called, 5.0, ""));
        let args = "\"device\":0,\"stream\":7";
        slices.push(slice(name, "kernel", from, to - from, args));
    };
    launch("gemm", 0.0, 20.0, ready);
    for number in 0..collectives {
        let (called, from) = (10.0 + f64::from(number), f64::from(number));
        let from = match number {
            0 => ready,
            _ => 220.0 + 50.0 * (from - 1.0),
        };
        launch(NCCL, called, from, 220.0 + 50.0 * f64::from(number));
    }
    launch("gemm", 400.0, 430.0, 530.0);
    slices
}

/// Rank 0 is ready 50 us before rank 1, each of these times.
fn two_ranks(cycles: u32) -> Timeline {
    let files = (0..cycles).flat_map(|at| [cycle(0, at, 120.0, 1), cycle(1, at, 170.0, 1)]);
    files_of_torch(&files.collect::<Vec<_>>())
}

fn make(timeline: &Timeline, name: &str) -> Vec<Table> {
    tables_of(timeline, entry(name).unwrap())
}

/// Some columns of all rows, as numbers.
fn columns(table: &Table, names: &[&str]) -> Vec<Vec<f64>> {
    let at = |name: &&str| table.columns.iter().position(|one| one.name == *name);
    let at: Vec<usize> = names.iter().map(|name| at(name).unwrap()).collect();
    let number = |cell: &Cell| match cell {
        Cell::Count(count) => *count as f64,
        Cell::Number(number) => (number * 1e6).round() / 1e6,
        Cell::None | Cell::Text(_) => panic!("{cell:?}"),
    };
    let row = |row: &Vec<Cell>| at.iter().map(|at| number(&row[*at])).collect();
    table.rows.iter().map(row).collect()
}

#[test]
fn a_rank_is_one_row_over_all_of_its_files() {
    for cycles in [1, 2, 3] {
        let timeline = two_ranks(cycles);
        let n = f64::from(cycles);
        let split = make(&timeline, "temporal");
        let names = ["rank", "total", "idle", "compute", "communication"];
        let wanted = [
            vec![0.0, n * 510.0, n * 210.0, n * 200.0, n * 100.0],
            vec![1.0, n * 510.0, n * 210.0, n * 250.0, n * 50.0],
        ];
        assert_eq!(columns(&split[0], &names), wanted);
        let hidden = make(&timeline, "comm-overlap");
        let wanted = [vec![0.0, n * 100.0, 0.0], vec![1.0, n * 50.0, 0.0]];
        let names = ["rank", "communication", "overlap"];
        assert_eq!(columns(&hidden[0], &names), wanted);
        let balance = make(&timeline, "rank-balance");
        let names = ["rank", "waiting", "idle"];
        let wanted = [vec![0.0, n * 50.0, n * 210.0], vec![1.0, 0.0, n * 210.0]];
        assert_eq!(columns(&balance[0], &names), wanted);
        let waits = make(&timeline, "rank-waits");
        let names = ["rank", "waits_for", "collectives", "waiting", "share"];
        let share = (100.0 * 50.0 / 510.0 * 1e6_f64).round() / 1e6;
        let wanted = [vec![0.0, 1.0, n, n * 50.0, share]];
        assert_eq!(columns(&waits[0], &names), wanted);
        let kernels = make(&timeline, "kernel-breakdown");
        let names = ["rank", "count", "sum"];
        let wanted = [
            vec![0.0, 2.0 * n, n * 200.0],
            vec![0.0, n, n * 100.0],
            vec![1.0, 2.0 * n, n * 250.0],
            vec![1.0, n, n * 50.0],
        ];
        assert_eq!(columns(&kernels[0], &names), wanted);
        // Launched and not begun: 20, 120 - 10 or 170 - 10, and 30 us, of 430.
        let queues = make(&timeline, "queue-length");
        let mean = |us: f64| (us / 430.0 * 1e6_f64).round() / 1e6;
        let wanted = [
            vec![0.0, n * 6.0, mean(160.0)],
            vec![1.0, n * 6.0, mean(210.0)],
        ];
        let names = ["rank", "changes", "over_time"];
        assert_eq!(columns(&queues[0], &names), wanted);
        let launches = make(&timeline, "launch-stats");
        let names = ["rank", "launches", "delay_max"];
        let wanted = [vec![0.0, n * 3.0, 105.0], vec![1.0, n * 3.0, 155.0]];
        assert_eq!(columns(&launches[0], &names), wanted);
    }
}

/// The time between two files is no wait of a stream and no idle time of a device.
#[test]
fn idle_time_is_that_within_files() {
    for cycles in [1, 2, 3] {
        let timeline = two_ranks(cycles);
        let [streams, devices] = &make(&timeline, "idle")[..] else {
            panic!()
        };
        let n = f64::from(cycles);
        let rows = columns(streams, &["rank", "gaps", "idle"]);
        let waits = rows.into_iter().filter(|row| row[1] > 0.0);
        let wanted = [vec![0.0, n, n * 210.0], vec![1.0, n, n * 210.0]];
        assert_eq!(waits.collect::<Vec<_>>(), wanted);
        // Until the launch has returned, and behind that.
        let rows = columns(devices, &["rank", "parts", "idle"]);
        let (launch, queue) = (405.0 - 220.0, 430.0 - 405.0);
        let wanted = [0.0, 1.0].map(|rank| [vec![rank, n, n * launch], vec![rank, n, n * queue]]);
        assert_eq!(rows, wanted.concat());
    }
}

/// Each cycle has a path of its own, and the path of the whole is all of these.
#[test]
fn the_critical_path_is_through_each_file() {
    let path = |cycles| {
        let tables = make(&two_ranks(cycles), "critical-path");
        let table = &tables[0];
        assert_eq!(table.rows.len(), 1);
        assert_eq!(table.rows[0][0], Cell::from("0 1"));
        let notes: Vec<&String> = table.notes.iter().skip(1).collect();
        assert!(notes[0].starts_with(&format!("{cycles} collectives join")));
        assert!(notes[1].starts_with("2 ranks have no records of waits"));
        assert_eq!(notes.len(), 2, "{notes:?}");
        let bounds = columns(&tables[1], &["time"]).concat();
        (columns(table, &["length", "wall"]), bounds)
    };
    // Begun at 0 by the launch, gemm of rank 1 until 170, the collective until 220: longer than
    // what the host does, whose last call begins the last gemm.
    let (one, bounds) = path(1);
    assert_eq!(one[0][1], 530.0);
    for cycles in [2, 3] {
        let (all, all_bounds) = path(cycles);
        let n = f64::from(cycles);
        assert_eq!(all, [vec![n * one[0][0], n * 530.0]]);
        let wanted: Vec<f64> = bounds.iter().map(|us| n * us).collect();
        assert_eq!(all_bounds, wanted);
    }
}

/// Only the cycle in which ranks have different numbers of collectives cannot be matched.
#[test]
fn collectives_match_within_a_cycle() {
    let files = [
        cycle(0, 0, 120.0, 1),
        cycle(1, 0, 170.0, 1),
        cycle(0, 1, 120.0, 1),
        cycle(1, 1, 170.0, 2),
    ];
    let timeline = files_of_torch(&files);
    let waits = make(&timeline, "rank-waits");
    let names = ["rank", "waits_for", "collectives", "waiting"];
    assert_eq!(columns(&waits[0], &names), [[0.0, 1.0, 1.0, 50.0]]);
    assert!(waits[0].notes[0].starts_with("3 collective kernels are left out"));
    // Where the numbers of files differ, all of a rank's collectives are matched in turn.
    let files = [
        [cycle(0, 0, 120.0, 1), cycle(0, 1, 120.0, 1)].concat(),
        cycle(1, 0, 170.0, 1),
        cycle(1, 1, 170.0, 1),
    ];
    let waits = make(&files_of_torch(&files), "rank-waits");
    assert_eq!(columns(&waits[0], &names), [[0.0, 1.0, 2.0, 100.0]]);
}
