//! What versions of PyTorch write of compilations, with what the programs measured themselves.

use super::*;
use aiprof_model::timeline::Dialect;
use aiprof_testkit::scene::{self, Slice};

/// Traces of programs of a few lines, without what is deep in the compiler. A section begins with
/// `# VERSION PROGRAM`. Lines with `=` have what the program measured:
///
/// - `ID LEAST MOST RUNS`: a compilation and its microseconds, at least by the compiler's own
///   metrics, at most by the first call compared with a later one. `-` stands for all without
///   numbers.
/// - `function NAME LEAST MOST RUNS AGAIN LEAST MOST`: the same of a function without numbers, with
///   how many are recompilations and what those took.
/// - `unnumbered COUNT`: compilations that have neither.
/// - `breaks RUNS`: a graph break, and how often the program ran across it.
///
/// The others are events: thread, category, name, begin and length in microseconds. Operators of
/// autograd have their number and thread, too.
const TRACES: &str = include_str!("tests/versions.txt");

/// A section of the file.
struct VersionTrace {
    title: &'static str,
    timeline: Timeline,
    facts: Vec<Vec<&'static str>>,
}

fn traces() -> Vec<VersionTrace> {
    let mut found: Vec<VersionTrace> = Vec::new();
    for line in TRACES.lines() {
        if let Some(title) = line.strip_prefix("# ") {
            found.push(VersionTrace {
                title,
                timeline: scene::empty(Dialect::Torch),
                facts: Vec::new(),
            });
            continue;
        }
        let trace = found.last_mut().unwrap();
        if let Some(fact) = line.strip_prefix("= ") {
            trace.facts.push(fact.split(' ').collect());
            continue;
        }
        let row: Vec<&str> = line.split('|').collect();
        let [thread, cat, name, ts, dur, number, forward] = row[..] else {
            panic!("{line}")
        };
        let args = match number {
            "" => String::new(),
            _ => format!("\"Sequence number\":{number},\"Fwd thread id\":{forward}"),
        };
        let slice = Slice {
            tid: thread.parse().unwrap(),
            name,
            cat,
            ts: ts.parse().unwrap(),
            dur: dur.parse().unwrap(),
            args: &args,
            ..Slice::default()
        };
        scene::add(&mut trace.timeline, &slice);
    }
    found
}

fn number(text: &str) -> f64 {
    text.parse().unwrap()
}

/// Compares what was found with one line of what the program measured.
fn compare(title: &str, report: &CompileReport, fact: &[&str], breaks: &mut Vec<u64>) {
    let rows = || report.compiled.iter();
    let is_within = |us: f64, least, most| number(least) <= us && us <= number(most);
    match *fact {
        ["breaks", runs] => breaks.push(number(runs) as u64),
        ["unnumbered", count] => assert_eq!(report.unnumbered, number(count) as u64, "{title}"),
        [
            "function",
            name,
            least,
            most,
            runs,
            again,
            least_again,
            most_again,
        ] => {
            let one = rows().find(|one| one.function.as_deref() == Some(name));
            let Some(one) = one else {
                panic!("{title}: no {name}")
            };
            assert!(is_within(one.compile_us, least, most), "{title}: {one:?}");
            let is_same = is_within(one.recompile_us, least_again, most_again);
            assert!(is_same, "{title}: {one:?}");
            let counts = (one.runs, one.recompilations);
            assert_eq!(counts, (number(runs) as u64, number(again) as u64));
        }
        [id, least, most, runs] => {
            let id = CompileId::parse(id);
            let Some(one) = rows().find(|one| one.id == id) else {
                panic!("{title}: no {id:?}")
            };
            assert!(is_within(one.compile_us, least, most), "{title}: {one:?}");
            assert_eq!(one.runs, number(runs) as u64, "{title}: {id:?}");
            // Which of those without a number are recompilations is not known.
            let again = u64::from(id.is_some_and(|id| id.compile > 0));
            assert_eq!(one.recompilations, again, "{title}: {id:?}");
        }
        _ => panic!("{title}: {fact:?}"),
    }
}

#[test]
fn compilations_of_each_version_take_what_the_program_measured() {
    let traces = traces();
    assert!(traces.len() > 20, "{}", traces.len());
    for trace in traces {
        let report = CompileReport::new(&trace.timeline, &TorchLog::default());
        let mut breaks = Vec::new();
        for fact in &trace.facts {
            compare(trace.title, &report, fact, &mut breaks);
        }
        let is_row = |fact: &&Vec<&str>| !["breaks", "unnumbered"].contains(&fact[0]);
        let rows = trace.facts.iter().filter(is_row).count();
        assert_eq!(report.compiled.len(), rows, "{}", trace.title);
        let found: Vec<u64> = report.breaks.iter().map(|one| one.runs).collect();
        assert_eq!(found, breaks, "{}", trace.title);
    }
}

/// The compiler's time as a whole: steps in each other count once.
#[test]
fn steps_add_up_to_the_compilations() {
    for trace in traces() {
        let report = CompileReport::new(&trace.timeline, &TorchLog::default());
        let steps: f64 = report.steps.iter().map(|step| step.self_us).sum();
        let all: f64 = report.compiled.iter().map(|one| one.compile_us).sum();
        assert!((steps - all).abs() < 2.0, "{}: {steps}, {all}", trace.title);
    }
}

const STEP: &str = "_compile.compile_inner (dynamo_timed)";
const LOOKUP: &str = "TorchDynamo Cache Lookup";

/// A timeline of these events: thread, name, begin, end.
fn timeline(rows: &[(i64, &str, f64, f64)]) -> Timeline {
    let mut timeline = scene::empty(Dialect::Torch);
    for &(tid, name, from, to) in rows {
        let cat = match name.ends_with(TIMED) {
            true => "user_annotation",
            false => "cpu_op",
        };
        let slice = Slice {
            tid,
            name,
            cat,
            ts: from,
            dur: to - from,
            ..Slice::default()
        };
        scene::add(&mut timeline, &slice);
    }
    timeline
}

fn times(rows: &[(i64, &str, f64, f64)]) -> Vec<(String, f64)> {
    let report = CompileReport::new(&timeline(rows), &TorchLog::default());
    let all = report.compiled.iter();
    all.map(|one| {
        let id = one.id.map_or("-".to_owned(), |id| id.to_string());
        (id, one.compile_us)
    })
    .collect()
}

/// A function that dynamo gives up runs as it is; the next region is of another.
#[test]
fn what_led_to_no_region_is_nobodys() {
    let found = times(&[
        (1, STEP, 0.0, 100.0),
        (1, LOOKUP, 110.0, 111.0),
        (1, STEP, 120.0, 150.0),
        (1, "Torch-Compiled Region: 1/0", 160.0, 170.0),
        // Compiled again, and given up.
        (1, STEP, 200.0, 300.0),
        (1, "Torch-Compiled Region: 1/0", 310.0, 320.0),
        // The end of the profile.
        (1, STEP, 400.0, 500.0),
    ]);
    assert_eq!(found, [("1/0".to_owned(), 30.0)]);
}

/// What a function takes again without numbers, by the frames of Python.
#[test]
fn stacks_show_what_is_compiled_again() {
    let mut timeline = timeline(&[
        (1, "Torch-Compiled Region", 0.0, 9.0),
        (1, STEP, 10.0, 40.0),
        (1, "gc (dynamo_timed)", 41.0, 43.0),
        (1, "Torch-Compiled Region", 50.0, 60.0),
        (1, STEP, 100.0, 170.0),
        (1, "Torch-Compiled Region", 180.0, 190.0),
    ]);
    for (ts, name) in [
        (1.0, "a.py(5): f"),
        (51.0, "a.py(5): f"),
        (181.0, "a.py(9): g"),
    ] {
        let slice = Slice {
            tid: 1,
            name,
            cat: "python_function",
            ts,
            dur: 5.0,
            ..Slice::default()
        };
        scene::add(&mut timeline, &slice);
    }
    let report = CompileReport::new(&timeline, &TorchLog::default());
    let rows = report.compiled.iter().map(|one| {
        let place = one.place.as_deref().unwrap();
        (place, one.runs, one.compile_us, one.recompile_us)
    });
    // What ran before the first compilation was compiled before the trace.
    let rows: Vec<_> = rows.collect();
    assert_eq!(rows, [("a.py:5", 2, 32.0, 32.0), ("a.py:9", 1, 70.0, 0.0)]);
    assert_eq!(report.unnumbered, 0);
    let again: Vec<u64> = report.recompiled().map(|one| one.recompilations).collect();
    assert_eq!(again, [1]);
}

/// Each thread compiles what it runs next itself.
#[test]
fn threads_compile_their_own() {
    let found = times(&[
        (1, STEP, 0.0, 100.0),
        (2, STEP, 10.0, 50.0),
        (2, "Torch-Compiled Region: 1/0", 60.0, 170.0),
        (2, LOOKUP, 61.0, 62.0),
        (1, "Torch-Compiled Region: 0/0", 160.0, 170.0),
    ]);
    assert_eq!(found, [("0/0".to_owned(), 100.0), ("1/0".to_owned(), 40.0)]);
}

/// What runs while the compiler works is not what it compiles.
#[test]
fn regions_within_compilations_are_not_theirs() {
    let found = times(&[
        (1, STEP, 0.0, 100.0),
        (1, "Torch-Compiled Region: 0/0", 10.0, 20.0),
        (1, "gc (dynamo_timed)", 101.0, 103.0),
        (1, "Torch-Compiled Region: 1/0", 110.0, 120.0),
    ]);
    assert_eq!(found, [("0/0".to_owned(), 0.0), ("1/0".to_owned(), 102.0)]);
}
