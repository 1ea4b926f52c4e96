//! Made-up reports, and the findings that they must give.

use super::*;
use crate::analyze::alignment::Cycle;
use crate::analyze::flows::Reversed;
use crate::analyze::plots::Series;
use crate::analyze::report::{Active, Input, JobShift, Kernel, Lengths, Power, RankShift, Ranks};
use crate::analyze::report_details::{Category, Details, Evidence, Fault};

/// Weights and texts.
fn told(report: &Report) -> Vec<(Weight, String)> {
    let findings = find(report, Vec::new()).into_iter();
    findings
        .map(|finding| (finding.weight, finding.text))
        .collect()
}

fn only(report: &Report) -> Finding {
    let mut findings = find(report, Vec::new());
    assert_eq!(findings.len(), 1, "{findings:?}");
    findings.remove(0)
}

fn clock(rank: u32, mhz: f64) -> RankClock {
    RankClock {
        rank,
        mhz,
        mhz_error: 0.002,
        anchors: 50,
        scatter_us: 1.5,
        offset_error_us: 2.5,
        steps: 0,
        bends: 0,
        least_mhz: mhz,
        most_mhz: mhz,
        guessed: 0,
    }
}

fn kernel(name: &str, percent: f64, utilization_percent: Option<f64>) -> Kernel {
    Kernel {
        device: "0".into(),
        rank: 1,
        name: name.to_owned(),
        percent,
        lengths: Lengths {
            calls: 10,
            total_us: percent * 10_000.0,
            mean_us: percent,
            median_us: percent,
            min_us: percent,
            max_us: percent,
            deviation_us: 0.0,
        },
        mean_watts: None,
        joules: None,
        utilization_percent,
    }
}

#[test]
fn nothing_is_said_of_nothing() {
    assert!(find(&Report::default(), Vec::new()).is_empty());
}

#[test]
fn a_trace_without_kernels_is_told() {
    let report = Report {
        inputs: vec![Input {
            path: "a.json".into(),
            dialect: "torch",
            rank: None,
            events: 12,
            is_synthetic: false,
            problems: Vec::new(),
        }],
        ..Report::default()
    };
    let found = only(&report);
    assert_eq!(found.text, "The traces contain no kernels.");
    assert_eq!(found.evidence, ["a.json: 12 events (torch)"]);
    let copies = Report {
        active: vec![active()],
        ..report
    };
    let text = only(&copies).text.clone();
    assert!(text.starts_with("The traces contain copies"), "{text}");
}

fn active() -> Active {
    Active {
        rank: 0,
        other_ranks: Vec::new(),
        device: "0".into(),
        kernel_us: 1.0,
        busy_us: 1.0,
        elapsed_us: 1.0,
        busy_percent: 100.0,
    }
}

#[test]
fn the_worst_comes_first() {
    let report = Report {
        active: vec![active()],
        kernels: vec![kernel("mm", 100.0, None)],
        clocks: vec![clock(0, 557.0)],
        inputs: vec![Input {
            path: "a.json".into(),
            dialect: "flex",
            rank: None,
            events: 1,
            is_synthetic: false,
            problems: vec!["cut off at byte 7".into()],
        }],
        jobs: vec![JobShift {
            path: "b.json".into(),
            rank: 2,
            state: "refused",
            by_us: None,
            error_us: None,
            least_us: None,
            most_us: None,
            reason: Some("because"),
        }],
        ..Report::default()
    };
    let findings = find(&report, Vec::new());
    let weights: Vec<Weight> = findings.iter().map(|f| f.weight).collect();
    assert_eq!(weights, [Weight::Error, Weight::Warning, Weight::Note]);
    assert_eq!(findings[0].evidence, ["b.json (rank 2): because"]);
    assert_eq!(findings[1].evidence, ["a.json: cut off at byte 7"]);
    // What costs time stands before all of it, the most expensive first.
    let cost = |kind, ns| Finding {
        kind,
        cost_ns: Some(ns),
        ..Finding::default()
    };
    let costs = vec![cost(Kind::Spills, 5), cost(Kind::LateRank, 7)];
    let kinds: Vec<Kind> = find(&report, costs).iter().map(|one| one.kind).collect();
    let wanted = [
        Kind::LateRank,
        Kind::Spills,
        Kind::JobsMoved,
        Kind::InputProblems,
        Kind::Clocks,
    ];
    assert_eq!(kinds, wanted);
}

#[test]
fn clocks_are_told_together() {
    let mut report = Report {
        clocks: vec![clock(0, 557.25)],
        ..Report::default()
    };
    let one = only(&report);
    assert_eq!(
        one.text,
        "The device counter of rank 0 runs at 557.250 MHz."
    );
    let by = "557.250 MHz +- 0.002 (50 events, median residual 1.5 us; time error <= 2.5 us)";
    assert_eq!(one.evidence, [by]);
    report.clocks.extend((1..40).map(|rank| clock(rank, 556.5)));
    let all = only(&report);
    assert_eq!(
        all.text,
        "The device counters of 40 ranks run at 556.500 to 557.250 MHz."
    );
    assert_eq!(all.evidence.len(), RANKS + 1);
    assert_eq!(all.evidence[RANKS], "and 24 more");
    report.clocks[3].steps = 2;
    report.clocks[3].guessed = 1;
    report.clocks[5].bends = 1;
    report.clocks[5].least_mhz = 445.2;
    let told = told(&report);
    assert_eq!(told.len(), 4);
    assert!(
        told[2]
            .1
            .contains("rank 5 changed its frequency 1 times, between 445.200 and")
    );
    assert!(told[0].1.contains("rank 3 was set or restarted 2 times"));
    assert!(told[1].1.contains("Rank 3 had 1 gaps without events"));
}

#[test]
fn shifts_of_jobs_say_how_certain_they_are() {
    let job = |state, by_us: Option<f64>, least_us: Option<f64>| JobShift {
        path: "j.json".into(),
        rank: 0,
        state,
        by_us,
        error_us: by_us.map(|_| 0.25),
        least_us,
        most_us: least_us.map(|us| us + 10.0),
        reason: None,
    };
    let report = Report {
        jobs: vec![
            job("moved", Some(50_000.0), None),
            job("bounded", None, Some(5.0)),
        ],
        ..Report::default()
    };
    let findings = find(&report, Vec::new());
    assert_eq!(
        findings[0].evidence,
        ["j.json (rank 0): the shift is between 5.000 and 15.000 us"]
    );
    assert_eq!(findings[0].weight, Weight::Error);
    assert_eq!(
        findings[1].evidence,
        ["j.json (rank 0): moved by 50000.000 us +- 0.250"]
    );
}

#[test]
fn ranks_that_contradict_or_are_alone_are_named() {
    let shift = |rank, us: Option<f64>| RankShift {
        rank,
        us,
        least_us: us.map(|us| us - 1.0),
        most_us: None,
    };
    let report = Report {
        ranks: Some(Ranks {
            shifts: vec![shift(0, Some(0.0)), shift(1, Some(-12.5)), shift(2, None)],
            cycles: vec![Cycle {
                ranks: vec![0, 1],
                closure_us: 1.0,
            }],
            messages: 9,
            contradiction_us: 3.5,
            reversed: (2, 1),
        }),
        ..Report::default()
    };
    let findings = find(&report, Vec::new());
    assert!(
        findings[0]
            .text
            .contains("contradict each other by 3.500 us")
    );
    assert_eq!(
        findings[1].evidence,
        ["rank 2: no messages connect it to the others; clock unchanged"]
    );
    assert!(
        findings[2]
            .text
            .contains("3 ranks were aligned by 9 messages")
    );
    assert!(findings[2].text.contains("up to 12.500 us apart"));
    assert_eq!(
        findings[2].evidence[1],
        "rank 1: -12.500 us (at least -13.500, at most unknown)"
    );
}

#[test]
fn uneven_kernels_are_told_only_where_they_matter() {
    let uneven = |percent| {
        let mut kernel = kernel("k", percent, None);
        kernel.lengths.deviation_us = kernel.lengths.mean_us;
        kernel
    };
    let mut report = Report {
        kernels: vec![uneven(4.9), kernel("even", 90.0, None)],
        ..Report::default()
    };
    assert!(find(&report, Vec::new()).is_empty());
    report.kernels.push(uneven(5.0));
    let found = only(&report);
    assert_eq!(
        found.evidence,
        ["k (rank 1): 5.000 to 5.000 us, median 5.000, 10 calls"]
    );
}

#[test]
fn impossible_power_is_warned_of() {
    let report = Report {
        power: Some(Power {
            factor: 1.0,
            readings: 100,
            bad: 7,
            mean_with_kernels: Some(40.0),
            mean_without_kernels: Some(25.5),
        }),
        ..Report::default()
    };
    let told = told(&report);
    assert_eq!(told[0].0, Weight::Warning);
    assert!(told[0].1.starts_with("7 intervals between"));
    assert!(
        told[1]
            .1
            .contains("40.0 W while kernels run and 25.5 W otherwise")
    );
}

#[test]
fn utilization_above_all_there_is_is_an_error() {
    let mut report = Report {
        kernels: vec![kernel("fast", 50.0, Some(100.4)), kernel("x", 50.0, None)],
        ..Report::default()
    };
    assert!(find(&report, Vec::new()).is_empty());
    report.kernels[0].utilization_percent = Some(130.0);
    let found = only(&report);
    assert_eq!(found.weight, Weight::Error);
    assert_eq!(found.evidence, ["fast (rank 1): 130.0 % in 10 calls"]);
    // Single calls, whose kernel is possible on the whole.
    report.kernels.clear();
    report.series.push(Series {
        name: "PT Active".into(),
        unit: "%".into(),
        rank: Some(3),
        readings: 2,
        points: vec![(5.0, 80.0, 80.0, 80.0), (7.5, 101.0, 101.0, 101.0)],
    });
    let found = only(&report);
    assert_eq!(
        found.evidence,
        ["rank 3: single calls, the first one 7.500 us after the first event"]
    );
}

#[test]
fn what_loses_the_most_time_is_the_first_of_low_utilization() {
    let report = Report {
        kernels: vec![
            kernel("little", 6.0, Some(10.0)),
            kernel("none", 20.0, Some(0.0)),
            kernel("much", 40.0, Some(30.0)),
            kernel("small", 4.0, Some(1.0)),
            kernel("good", 30.0, Some(80.0)),
        ],
        ..Report::default()
    };
    let found = only(&report);
    assert_eq!(
        found.evidence,
        [
            "much (rank 1): 30.0 % utilization, 40.0 % of the rank's time",
            "little (rank 1): 10.0 % utilization, 6.0 % of the rank's time",
        ]
    );
    // 70 % of 400 ms and 90 % of 60 ms.
    assert_eq!(found.cost_ns, Some(334_000_000));
    let category = |name: &str, utilization_percent| Category {
        rank: 0,
        phase: "ITL",
        name: name.to_owned(),
        time_us: 10_000.0,
        time_percent: 50.0,
        calls: 1,
        ideal_us: 2_000.0,
        utilization_percent,
    };
    let report = Report {
        details: Details {
            categories: vec![
                category("MatMul", Some(20.0)),
                category("Total", Some(20.0)),
            ],
            ..Details::default()
        },
        ..Report::default()
    };
    let found = only(&report);
    assert_eq!(
        found.evidence,
        ["MatMul (rank 0, ITL): 20.0 % utilization, 50.0 % of the time"]
    );
    assert_eq!(found.cost_ns, Some(8_000_000));
}

#[test]
fn faults_and_reversed_messages_are_told_with_their_number() {
    let evidence = Evidence {
        name: "k".into(),
        rank: 1,
        file: "f.json".into(),
        ts_us: 5.0,
        dur_us: 2.0,
        by_us: 1.0,
        against: "other".into(),
    };
    let report = Report {
        details: Details {
            faults: vec![Fault {
                fault: "kernels of one stream overlap".into(),
                count: 5000,
                evidence: vec![evidence; 20],
            }],
            reversed: vec![Reversed {
                from: 0,
                to: 3,
                count: 4,
                most_us: 2.5,
            }],
            ..Details::default()
        },
        ..Report::default()
    };
    let findings = find(&report, Vec::new());
    assert!(
        findings[0]
            .text
            .ends_with("kernels of one stream overlap (events: 5000).")
    );
    assert_eq!(findings[0].evidence.len(), LINES + 1);
    assert_eq!(
        findings[0].evidence[0],
        "k (rank 1) at 5.000 us for 2.000 us, off by 1.000 us; other"
    );
    assert_eq!(findings[0].evidence[LINES], "and 4992 more");
    assert_eq!(
        findings[1].evidence,
        ["from rank 0 to rank 3: 4 messages, up to 2.500 us early"]
    );
}
