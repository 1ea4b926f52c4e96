//! What versions of PyTorch write of compilations, with what the programs measured themselves.

use super::*;
use aiprof_model::timeline::Dialect;
use aiprof_testkit::scene::{self, Slice};

/// Traces of programs of a few lines, without what is deep in the compiler. A section begins with
/// `# VERSION PROGRAM`. Lines with `=` have what the program measured: number of the compilation,
/// least and most microseconds (the compiler's own metrics, and the first call compared with a
/// later one), runs; or how many compilations have no number; or for each graph break how often
/// it was run across. The others are events: thread, category, name, begin and length in
/// microseconds, number of the operator and of its thread (of autograd).
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

fn compiled<'r>(report: &'r CompileReport, id: &str) -> Option<&'r Compiled> {
    let id = CompileId::parse(id);
    report.compiled.iter().find(|one| one.id == id)
}

#[test]
fn compilations_of_each_version_take_what_the_program_measured() {
    let traces = traces();
    assert!(traces.len() > 20, "{}", traces.len());
    for VersionTrace {
        title,
        timeline,
        facts,
    } in traces
    {
        let report = CompileReport::new(&timeline, &TorchLog::default());
        let number = |text: &str| -> f64 { text.parse().unwrap() };
        let (mut ids, mut breaks, mut unnumbered) = (Vec::new(), Vec::new(), 0.0);
        for fact in facts {
            match fact[..] {
                ["breaks", runs] => breaks.push(number(runs) as u64),
                ["unnumbered", count] => unnumbered = number(count),
                [id, least, most, runs] => {
                    let Some(one) = compiled(&report, id) else {
                        panic!("{title}: no {id}")
                    };
                    let is_true = number(least) <= one.compile_us && one.compile_us <= number(most);
                    assert!(is_true, "{title}: {one:?}, not from {least} to {most}");
                    assert_eq!(one.runs, number(runs) as u64, "{title}: {id}");
                    ids.push(one.id);
                }
                _ => panic!("{title}: {fact:?}"),
            }
        }
        let found: Vec<_> = report.compiled.iter().map(|one| one.id).collect();
        assert_eq!(found, ids, "{title}");
        assert_eq!(report.unnumbered, unnumbered as u64, "{title}");
        let found: Vec<u64> = report.breaks.iter().map(|one| one.runs).collect();
        assert_eq!(found, breaks, "{title}");
        // Only what was compiled by number is known to be compiled again.
        let again = ids.iter().flatten().filter(|id| id.compile > 0).count();
        assert_eq!(report.recompiled().count(), again, "{title}");
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
