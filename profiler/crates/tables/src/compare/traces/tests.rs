//! Traces that are made by hand, with what changed in them known.

use super::*;
use aiprof_model::timeline::{Dialect, Id, Time, Timeline, Track};
use aiprof_testkit::timelines as testing;

/// A slice of a category on a row.
fn slice(timeline: &mut Timeline, cat: &str, name: &str, row: i64, ts: f64, dur: f64) -> usize {
    let at = testing::slice(timeline, name, 0, ts, dur);
    let cat = timeline.names.intern(cat);
    let track = timeline.tracks.intern(Track {
        job: 0,
        rank: 0,
        ..Track::row(Id::Number(0), Id::Number(row))
    });
    let event = &mut timeline.events[at];
    (event.cat, event.track) = (cat, track);
    at
}

/// Steps of 1000 us. In each `aten::mm` (100 us, with a call of 10 us in it, in which a
/// `aten::empty` takes 4) launches `gemm`, and `aten::add` launches `add`. `gemm` takes `gemm_us`
/// and up to 2 us more.
fn trace(steps: u32, gemm_us: f64, seed: u32) -> Timeline {
    let mut timeline = testing::timeline(Dialect::Torch);
    for step in 0..steps {
        let at = f64::from(step) * 1000.0;
        let jitter = f64::from((step * 7919 + seed * 104_729) % 97) / 97.0;
        let name = format!("ProfilerStep#{step}");
        slice(&mut timeline, "user_annotation", &name, 1, at, 900.0);
        for (op, kernel, from, us) in [
            ("aten::mm", "gemm", 10.0, gemm_us + 2.0 * jitter),
            ("aten::add", "add", 200.0, 30.0 + jitter),
        ] {
            let from = at + from;
            slice(&mut timeline, "cpu_op", op, 1, from, 100.0 + jitter);
            slice(&mut timeline, "cpu_op", "aten::empty", 1, from + 2.0, 4.0);
            let call = slice(
                &mut timeline,
                "cuda_runtime",
                "cudaLaunchKernel",
                1,
                from + 10.0,
                10.0,
            );
            let run = slice(&mut timeline, "kernel", kernel, 2, from + 50.0, us);
            let number = u64::from(step) * 2 + u64::from(op == "aten::add") + 1;
            timeline.events[call].correlation = number;
            timeline.events[run].correlation = number;
        }
    }
    timeline.events.sort_by_key(|event| event.start);
    timeline
}

fn compared(before: &Timeline, after: &Timeline) -> Vec<Table> {
    let (old, new) = (TraceWork::of(before), TraceWork::of(after));
    let of = |work| ComparedTrace {
        work,
        findings: &[],
    };
    compare(of(&old), of(&new))
}

fn named<'a>(tables: &'a [Table], name: &str) -> &'a Table {
    tables.iter().find(|table| table.name == name).unwrap()
}

fn cell<'a>(table: &'a Table, row: usize, column: &str) -> &'a Cell {
    let at = table.columns.iter().position(|one| one.name == column);
    &table.rows[row][at.unwrap()]
}

fn number(table: &Table, row: usize, column: &str) -> f64 {
    match cell(table, row, column) {
        Cell::Number(number) => *number,
        other => panic!("{column}: {other:?}"),
    }
}

#[test]
fn a_slower_kernel_is_named_first_with_its_path() {
    let tables = compared(&trace(40, 100.0, 1), &trace(50, 150.0, 2));
    let kernels = named(&tables, "kernels");
    assert!(
        kernels.title.starts_with("kernels: 1 of 2 kernels changed"),
        "{}",
        kernels.title
    );
    assert_eq!(cell(kernels, 0, "kernel"), &"gemm".into());
    assert_eq!(cell(kernels, 0, "verdict"), &"slower".into());
    let (change, error) = (
        number(kernels, 0, "mean_change"),
        number(kernels, 0, "mean_error"),
    );
    assert!(
        (change - 50.0).abs() <= error && error < 1.0,
        "{change} {error}"
    );
    let (change, error) = (
        number(kernels, 0, "step_change"),
        number(kernels, 0, "step_error"),
    );
    assert!(
        (change - 50.0).abs() <= error && error < 1.0,
        "{change} {error}"
    );
    assert_eq!(cell(kernels, 1, "verdict"), &"within noise".into());
    let paths = named(&tables, "paths");
    let path = Cell::from("aten::mm < ProfilerStep#");
    assert_eq!(cell(paths, 0, "path"), &path);
    assert_eq!(cell(paths, 0, "kernel"), &"gemm".into());
    // Operators by hand: 100 us less the 4 of the one inside; the call is none.
    let operators = named(&tables, "operators");
    assert!(
        operators.title.starts_with("operators: nothing changed"),
        "{}",
        operators.title
    );
    let mm = (0..3).find(|row| cell(operators, *row, "operator") == &"aten::mm".into());
    let own = number(operators, mm.unwrap(), "mean_before");
    assert!((96.0..97.1).contains(&own), "{own}");
}

#[test]
fn the_same_trace_has_not_changed() {
    let tables = compared(&trace(40, 100.0, 1), &trace(40, 100.0, 1));
    for table in &tables {
        assert!(table.title.contains("nothing changed"), "{}", table.title);
    }
}

#[test]
fn what_is_only_in_one_is_said_to_be() {
    let mut after = trace(10, 100.0, 2);
    slice(&mut after, "kernel", "relu", 2, 20_000.0, 5.0);
    let tables = compared(&trace(10, 100.0, 1), &after);
    let kernels = named(&tables, "kernels");
    assert_eq!(cell(kernels, 0, "kernel"), &"relu".into());
    assert_eq!(cell(kernels, 0, "verdict"), &"only after".into());
    assert_eq!(cell(kernels, 0, "mean_change"), &Cell::None);
}

/// Whatever is drawn from one distribution for both: at most 5 % of runs call a change.
#[test]
fn unchanged_calls_are_not_called_changed() {
    let mut state = 1_u64;
    let mut random = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as f64 + 0.5) / f64::from(1_u32 << 31)
    };
    let mut runs = 0;
    const RUNS: u32 = 300;
    for _ in 0..RUNS {
        let mut draw = |calls: usize| {
            let mut named = ByName::default();
            for kernel in 0..20 {
                let one = named.entry(format!("k{kernel}")).or_default();
                // Skewed, as lengths of calls are: exponential beyond a least.
                one.calls = (0..calls)
                    .map(|at| (at as f64, 10.0 - 3.0 * random().ln(), None))
                    .collect();
            }
            named
        };
        let (before, after) = (draw(30), draw(100));
        let calls = Calls {
            name: "kernels",
            noun: "kernel",
            steps: None,
        };
        let table = calls.table(&before, &after);
        runs += u32::from(!table.title.contains("nothing changed"));
    }
    assert!(
        f64::from(runs) <= 0.05 * f64::from(RUNS),
        "{runs} of {RUNS}"
    );
}

#[test]
fn times_of_the_edge_do_no_harm() {
    let mut timeline = trace(4, 100.0, 1);
    timeline.events[0].start = Time::FIRST;
    timeline.events[3].start = Time(i64::MAX);
    let tables = compared(&timeline, &trace(4, 100.0, 1));
    assert_eq!(tables.len(), 4);
}
