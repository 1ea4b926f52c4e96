//! The judge itself, on data made by hand with known errors.

use super::*;

const ISA: u64 = 0x8001_0000_1000;

fn launch(seq: u64, t0: u64, isa: u64, kernel: &str, exec: (u64, u64)) -> [String; 2] {
    let (start, end) = exec;
    let t1 = t0 + 1;
    [
        format!(
            r#"{{"pid":7,"tid":7,"call":"zeCommandListAppendLaunchKernel","seq":{seq},"t0":{t0},"t1":{t1},"kernel":"{kernel}","groups":[1,1,1],"list":9,"result":0}}"#
        ),
        format!(
            r#"{{"pid":7,"tid":8,"exec":"kernel","seq":{seq},"submit":{seq},"device":0,"sub":-1,"ordinal":0,"index":0,"kernel":"{kernel}","isa":{isa},"groups":[1,1,1],"bytes":0,"start_ticks":1,"end_ticks":2,"start_ns":{start},"end_ns":{end}}}"#
        ),
    ]
}

fn wait(seq: u64, t1: u64) -> String {
    format!(
        r#"{{"pid":7,"tid":7,"call":"zeCommandListHostSynchronize","seq":{seq},"t0":1,"t1":{t1},"list":9,"result":0}}"#
    )
}

fn window(t0: u64, t1: u64, execs: &str) -> String {
    format!(
        r#"{{"pid":7,"tid":9,"stalls":"window","device":0,"gt":0,"t0":{t0},"t1":{t1},"records":1,"lost":0,"dropped":0,"skipped":0,"execs":[{execs}],"counts":[]}}"#
    )
}

/// Path 0 alone in the first window, both paths in the second: 1000 samples of path 0
/// that only it can have, then 700 and 300.
fn truth() -> Truth {
    let mut truth = Truth::default();
    let lines = [
        launch(1, 100, ISA, "k", (110, 190)).to_vec(),
        vec![wait(2, 200)],
        launch(3, 1000, ISA, "k", (1010, 1050)).to_vec(),
        launch(4, 1005, ISA, "k", (1050, 1090)).to_vec(),
        vec![wait(5, 1100)],
        vec![window(100, 200, &format!(r#"[1,{ISA},64,"pipe",1000,0]"#))],
        vec![window(
            1000,
            1100,
            &format!(r#"[3,{ISA},64,"pipe",700,0],[4,{ISA},64,"pipe",300,50]"#),
        )],
    ];
    for line in lines.concat() {
        truth.add(&line).unwrap();
    }
    truth
}

fn account() -> Account {
    let text = r#"{"mode":"launch","pid":7,"launches":{"k":3},"paths":{"0":[1,3],"1":[4]}}"#;
    serde_json::from_str(text).unwrap()
}

fn expected() -> Expected {
    Expected::new(&truth(), &[account()], 10).unwrap()
}

/// A profile with these samples in paths 0 and 1, and `nobody` unattributed samples.
fn found(path_0: u64, path_1: u64, nobody: u64) -> Found {
    let device = "-;k_[G];mul_[g];pipestall_[g];0x40_[g]";
    let text = format!(
        "p;7;main;path_0;zeCommandListAppendLaunchKernel;{device} {path_0}\n\
         p;7;main;path_1;zeCommandListAppendLaunchKernel;{device} {path_1}\n\
         [unknown];0;[unattributed];{device} {nobody}\n\
         p;7;main;path_0;ioctl_[k] 55\n"
    );
    Found::folded(&Folded::parse(&text).unwrap(), &kernels())
}

fn kernels() -> BTreeSet<String> {
    BTreeSet::from(["k".to_owned()])
}

#[test]
fn truth_says_who_can_have_been_running() {
    let expected = expected();
    let due: Vec<_> = expected.cells.values().copied().collect();
    let (all, sole) = (1700, 1000);
    assert_eq!(due, [Due { all, sole }, Due { all: 300, sole: 0 }]);
    assert_eq!((expected.lost, expected.written()), (50, 2000));
    // A reader whose windows reach from one wait to the next launch cannot distinguish launches.
    let slow = Expected::new(&truth(), &[account()], 10_000).unwrap();
    assert!(slow.cells.values().all(|due| due.sole == 0));
}

#[test]
fn a_right_profile_is_right() {
    let verdict = Verdict::new(&expected(), &found(1700, 300, 0));
    assert_eq!((verdict.sole, verdict.sole_wrong), (1000, 0));
    assert!(verdict.right() >= 1.0 && verdict.worst() < 1e-9);
    assert_eq!(verdict.unaccounted(0), 0);
    assert_eq!(verdict.strange, 0);
}

#[test]
fn one_percent_at_the_wrong_place_is_seen() {
    // All of the second window to path 1, and 10 of the first too.
    let verdict = Verdict::new(&expected(), &found(990, 1010, 0));
    assert!((verdict.right() - 0.99).abs() < 1e-9, "{verdict}");
    // Samples left unattributed.
    let verdict = Verdict::new(&expected(), &found(990, 300, 710));
    assert!((verdict.right() - 0.99).abs() < 1e-9, "{verdict}");
    // To another kernel, offset, reason or process: one cell less, one too many.
    for (what, with) in [
        ("0x40_[g]", "0x48_[g]"),
        ("pipestall", "sbid"),
        ("p;7;", "p;8;"),
    ] {
        let device = "-;k_[G];mul_[g];pipestall_[g];0x40_[g]";
        let right = format!("p;7;path_0;{device} 1690\np;7;path_1;{device} 300\n");
        let wrong = format!("p;7;path_0;{device} 10\n").replace(what, with);
        let folded = Folded::parse(&(right + &wrong)).unwrap();
        let mut expected = expected();
        // As if all windows were of one stack.
        for due in expected.cells.values_mut() {
            due.sole = due.all;
        }
        let verdict = Verdict::new(&expected, &Found::folded(&folded, &kernels()));
        assert_eq!(verdict.sole_wrong, 10, "{with}: {verdict}");
    }
}

#[test]
fn shares_of_paths_are_compared_in_points() {
    // 4 points of all samples from path 0 to path 1.
    let verdict = Verdict::new(&expected(), &found(1620, 380, 0));
    assert!((verdict.worst() - 4.0).abs() < 1e-9, "{verdict}");
    assert!(verdict.right() >= 1.0, "{verdict}");
}

#[test]
fn what_is_missing_or_too_much_is_counted() {
    let verdict = Verdict::new(&expected(), &found(1700, 280, 0));
    assert_eq!(verdict.unaccounted(0), 20);
    assert_eq!(verdict.unaccounted(20), 0);
    let verdict = Verdict::new(&expected(), &found(1700, 320, 0));
    assert_eq!(verdict.unaccounted(0), -20);
    let verdict = Verdict::new(&expected(), &found(1700, 0, 300));
    assert_eq!((verdict.unaccounted(0), verdict.unattributed), (0, 300));
}

#[test]
fn stacks_against_the_grammar_are_strange() {
    for stack in [
        "p;7;main;-;k_[G];mul_[g];pipestall_[g];0x40_[g]",
        "p;7;path_0;path_1;-;k_[G];mul_[g];pipestall_[g];0x40_[g]",
        "p;7;path_0;-;unknown_[G];mul_[g];pipestall_[g];0x40_[g]",
        "p;7;path_0;k_[G];mul_[g];pipestall_[g];0x40_[g]",
    ] {
        let folded = Folded::parse(&format!("{stack} 5\n")).unwrap();
        let found = Found::folded(&folded, &kernels());
        assert_eq!(found.strange.values().sum::<u64>(), 5, "{stack}");
        assert_eq!(found.total(), 5);
    }
}

/// Samples of a pprof file: both paths with these counts and bounds.
fn bounded(path_0: (u64, u64, u64), path_1: (u64, u64, u64)) -> Found {
    let sample = |path: &str, (count, certain, possible): (u64, u64, u64)| {
        let frames = [path, "-", "k", "mul", "pipestall", "0x40"].map(str::to_owned);
        let number = |name: &str, n: u64| (name.to_owned(), n as i64);
        pprof::Sample {
            frames: frames.to_vec(),
            values: BTreeMap::from([number("device_samples", count)]),
            numbers: BTreeMap::from([
                number("pid", 7),
                number("certain", certain),
                number("possible", possible),
            ]),
            texts: BTreeMap::from([("method".to_owned(), "shared by work size".to_owned())]),
        }
    };
    let samples = [sample("path_0", path_0), sample("path_1", path_1)];
    Found::pprof(&samples, &kernels())
}

#[test]
fn truth_outside_of_the_bounds_is_seen() {
    let unbound = |path_0, path_1| {
        let verdict = Verdict::new(&expected(), &bounded(path_0, path_1));
        verdict.unbound.len()
    };
    assert_eq!(unbound((1500, 1000, 2000), (500, 0, 1000)), 0);
    assert_eq!(unbound((1500, 1701, 2000), (500, 0, 1000)), 1);
    assert_eq!(unbound((1500, 1000, 1699), (500, 0, 299)), 2);
    let found = bounded((1500, 1000, 2000), (500, 0, 1000));
    assert!((found.method("shared by work size") - 1.0).abs() < 1e-9);
    assert!(found.method("shared by launch count") < 1e-9);
}
