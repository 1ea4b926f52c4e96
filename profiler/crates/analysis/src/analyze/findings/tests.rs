//! Made-up reports, and what must be said of them.

use super::*;
use crate::analyze::plots::Series;
use crate::analyze::report::{
    Active, Cycle, Input, JobShift, Kernel, Lengths, Power, RankShift, Ranks,
};
use crate::analyze::report_details::{
    Category, Collective, Communication, Details, Evidence, Fault, Part, Reversed,
};

/// Weights and texts.
fn told(report: &Report) -> Vec<(Weight, String)> {
    let findings = find(report).into_iter();
    findings
        .map(|finding| (finding.weight, finding.text))
        .collect()
}

fn only(report: &Report) -> Finding {
    let mut findings = find(report);
    assert_eq!(findings.len(), 1, "{findings:?}");
    findings.remove(0)
}

fn clock(rank: u32, mhz: f64) -> Clock {
    Clock {
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
        rank: 1,
        name: name.to_owned(),
        percent,
        lengths: Lengths {
            calls: 10,
            total_us: percent * 10.0,
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
    assert!(find(&Report::default()).is_empty());
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
    assert_eq!(found.text, "There are no kernels in the traces.");
    assert_eq!(found.evidence, ["a.json: 12 events (torch)"]);
}

#[test]
fn the_worst_comes_first() {
    let report = Report {
        active: vec![Active {
            rank: 0,
            kernel_us: 1.0,
            busy_us: 1.0,
            elapsed_us: 1.0,
            busy_percent: 100.0,
        }],
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
    let findings = find(&report);
    let weights: Vec<Weight> = findings.iter().map(|f| f.weight).collect();
    assert_eq!(weights, [Weight::Error, Weight::Warning, Weight::Note]);
    assert_eq!(findings[0].evidence, ["b.json (rank 2): because"]);
    assert_eq!(findings[1].evidence, ["a.json: cut off at byte 7"]);
}

#[test]
fn clocks_are_told_together() {
    let mut report = Report {
        clocks: vec![clock(0, 557.25)],
        ..Report::default()
    };
    let one = only(&report);
    assert_eq!(one.text, "The device of rank 0 counts at 557.250 MHz.");
    let by = "557.250000 MHz, within 0.002000, by 50 events that are 1.500 us late as a rule; \
              times within 2.500 us if the earliest notes are on time";
    assert_eq!(one.evidence, [by]);
    report.clocks.extend((1..40).map(|rank| clock(rank, 556.5)));
    let all = only(&report);
    assert_eq!(
        all.text,
        "The devices of 40 ranks count at 556.500 to 557.250 MHz."
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
            .contains("rank 5 changed its frequency 1 times, between 445.200000")
    );
    assert!(told[0].1.contains("rank 3 was set or restarted 2 times"));
    assert!(told[1].1.contains("Rank 3 was quiet 1 times"));
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
    let findings = find(&report);
    assert_eq!(
        findings[0].evidence,
        ["j.json (rank 0): by something between 5.000 and 15.000 us"]
    );
    assert_eq!(findings[0].weight, Weight::Error);
    assert_eq!(
        findings[1].evidence,
        ["j.json (rank 0): by 50000.000 us, within 0.250 us"]
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
    let findings = find(&report);
    assert!(
        findings[0]
            .text
            .contains("contradict each other by 3.500 us")
    );
    assert_eq!(
        findings[1].evidence,
        ["rank 2: no message leads to it, it was left"]
    );
    assert!(
        findings[2]
            .text
            .contains("3 ranks were brought together by 9 messages")
    );
    assert!(findings[2].text.contains("up to 12.500 us apart"));
    assert_eq!(
        findings[2].evidence[1],
        "rank 1: -12.500 us, certainly between -13.500 and any"
    );
}

#[test]
fn idle_devices_are_warned_of_and_busy_ones_are_not() {
    let active = |rank, busy_us: f64| Active {
        rank,
        kernel_us: busy_us,
        busy_us,
        elapsed_us: 1000.0,
        busy_percent: busy_us / 10.0,
    };
    let report = |busy: &[f64]| Report {
        active: (0..)
            .zip(busy)
            .map(|(rank, us)| active(rank, *us))
            .collect(),
        ..Report::default()
    };
    assert!(find(&report(&[501.0, 999.0])).is_empty());
    let one = only(&report(&[600.0, 250.0]));
    assert!(
        one.text.contains("rank 1 ran no kernel for 75.0 %"),
        "{}",
        one.text
    );
    assert_eq!(
        one.evidence,
        ["rank 1: busy 250.000 of 1000.000 us, idle 75.0 %"]
    );
    let two = only(&report(&[100.0, 250.0]));
    assert!(
        two.text.starts_with("The devices of 2 ranks"),
        "{}",
        two.text
    );
    assert_eq!(two.evidence.len(), 2);
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
    assert!(find(&report).is_empty());
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
    assert!(told[0].1.starts_with("7 of the times"));
    assert!(
        told[1]
            .1
            .contains("40.0 W while kernels run and 25.5 W while none")
    );
}

#[test]
fn utilization_above_all_there_is_is_an_error() {
    let mut report = Report {
        kernels: vec![kernel("fast", 50.0, Some(100.4)), kernel("x", 50.0, None)],
        ..Report::default()
    };
    assert!(find(&report).is_empty());
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
        ["rank 3: single calls, the first 7.500 us after the first event"]
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
            "much (rank 1): 30.0 % of what is possible, 40.0 % of the rank's time",
            "little (rank 1): 10.0 % of what is possible, 6.0 % of the rank's time",
        ]
    );
    let category = |name: &str, utilization_percent| Category {
        rank: 0,
        phase: "ITL",
        name: name.to_owned(),
        time_us: 100.0,
        time_percent: 50.0,
        calls: 1,
        ideal_us: 20.0,
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
        ["MatMul (rank 0, ITL): 20.0 % of what is possible, 50.0 % of the time"]
    );
}

#[test]
fn communication_that_is_not_hidden_is_warned_of() {
    let row = |rank, communication_us: f64, overlap_us: f64| Communication {
        rank,
        compute_us: 900.0,
        communication_us,
        overlap_us,
        overlap_percent: Some(overlap_us / communication_us * 100.0),
        copy_us: 0.0,
        copy_overlap_percent: None,
    };
    let report = Report {
        details: Details {
            // Half is hidden; it is hardly any; it costs.
            communication: vec![row(0, 100.0, 50.0), row(1, 40.0, 0.0), row(2, 100.0, 10.0)],
            ..Details::default()
        },
        ..Report::default()
    };
    let found = only(&report);
    assert_eq!(found.evidence.len(), 1);
    assert!(found.evidence[0].starts_with("rank 2: 10.0 % of 100.000 us; 890.000 us"));
}

fn collective(start: &[f64], elapsed_us: f64) -> Collective {
    let parts = (0..).zip(start).map(|(rank, start)| Part {
        rank,
        start_us: *start,
        elapsed_us,
    });
    Collective {
        group: "AllReduce_1".into(),
        algorithm: "ring".into(),
        start_us: start[0],
        elapsed_us,
        bytes: Some(1024),
        gigabytes_per_second: Some(0.5),
        parts: parts.collect(),
    }
}

#[test]
fn ranks_that_wait_are_told_and_whom_they_wait_for() {
    let mut report = Report {
        elapsed_us: 1000.0,
        details: Details {
            // Rank 0 waits 40 and 30 us, rank 1 0 and 10, rank 2 20 and 0.
            collectives: vec![
                collective(&[0.0, 40.0, 20.0], 100.0),
                collective(&[500.0, 520.0, 530.0], 100.0),
                collective(&[700.0, 700.0, 700.0], 100.0),
                collective(&[800.0], 100.0),
            ],
            ..Details::default()
        },
        ..Report::default()
    };
    let found = only(&report);
    assert!(
        found.text.contains("most often for rank 2: 7.0 %"),
        "{}",
        found.text
    );
    assert_eq!(
        found.evidence,
        [
            "rank 0: 70.000 us before others in 3 collectives, the last of all in 0",
            "rank 2: 20.000 us before others in 3 collectives, the last of all in 1",
            "rank 1: 10.000 us before others in 3 collectives, the last of all in 1",
        ]
    );
    report.elapsed_us = 10_000.0;
    assert!(find(&report).is_empty());
}

#[test]
fn slow_collectives_are_those_unlike_their_like() {
    let mut report = Report {
        elapsed_us: 1e6,
        ..Report::default()
    };
    let all = &mut report.details.collectives;
    all.extend((0..6).map(|n| collective(&[f64::from(n) * 1000.0], 100.0)));
    // Larger ones take longer; one of its kind cannot be told to be slow.
    all.push(collective(&[7000.0], 900.0));
    all[6].bytes = Some(1 << 20);
    all.push(collective(&[8000.0], 199.0));
    all.push(collective(&[9000.0], 350.0));
    let found = only(&report);
    assert!(found.text.starts_with("1 collectives take more than twice"));
    assert_eq!(
        found.evidence,
        ["AllReduce_1 at 9000.000 us: 350.000 us, 0.500 GB/s, its like take 100.000 us"]
    );
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
    let findings = find(&report);
    assert!(
        findings[0]
            .text
            .ends_with("kernels of one stream overlap: 5000.")
    );
    assert_eq!(findings[0].evidence.len(), LINES + 1);
    assert_eq!(
        findings[0].evidence[0],
        "k (rank 1) at 5.000 us, 2.000 us long, by 1.000 us; other"
    );
    assert_eq!(findings[0].evidence[LINES], "and 4992 more");
    assert_eq!(
        findings[1].evidence,
        ["from rank 0 to rank 3: 4 of them, by up to 2.500 us"]
    );
}
