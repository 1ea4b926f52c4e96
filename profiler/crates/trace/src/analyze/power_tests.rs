use super::*;
use crate::analyze::energy;
use crate::analyze::messages::Level;
use aiprof_model::timeline::Dialect;
use aiprof_testkit::timelines as testing;

/// One event every 100 us, and the charge at its end.
const READINGS: [(&str, i64); 12] = [
    ("a DmaI", 4_294_000_000),
    ("b Cmpt Exec", 4_294_128_000),
    ("c Cmpt Exec", 4_294_256_000),
    ("d DmaO", 4_294_900_000),
    ("e DmaI", 100_000),
    ("f AllReduce Cmpt Exec", 190_000),
    ("g Cmpt Prep", 230_000),
    ("h Foo", 250_000),
    ("i Cmpt Exec", 0),
    ("j Cmpt Exec", 900_000),
    ("k Cmpt Exec", 100_000_000),
    ("l Cmpt Exec", 100_050_000),
];

fn timeline_of(readings: &[(&str, i64)]) -> Timeline {
    let mut timeline = testing::timeline(Dialect::Flex);
    for (index, (name, charge)) in readings.iter().enumerate() {
        let begin = 1000 + 100 * index as i64;
        let stamps = [0, 10, 12, 40, 50].map(|us| (begin + us) * 1000);
        let (from, to) = aiprof_model::timeline::Phase::of(name).ends();
        let us = |index: usize| stamps[index] as f64 / 1000.0;
        let slice = testing::slice(&mut timeline, name, 0, us(from), us(to) - us(from));
        testing::count(&mut timeline, slice, stamps, *charge);
    }
    timeline
}

fn powered(timeline: &mut Timeline, options: &PowerOptions) -> (PowerReport, Vec<String>) {
    let kinds = Kinds::new(timeline);
    let mut messages = Messages::new(Level::Info);
    let outcome = run(timeline, &kinds, options, &mut messages);
    let said = messages.iter().map(|message| message.text.clone());
    (outcome, said.collect())
}

fn options(source: PowerSource, skip: bool) -> PowerOptions {
    let scale = PowerScale::Fixed(1.0);
    PowerOptions {
        source,
        scale,
        skip,
        is_literal: false,
    }
}

fn watts(timeline: &Timeline, name: &str) -> Vec<(f64, String)> {
    let counters = testing::counters(timeline, name).into_iter();
    counters
        .map(|(ts, args)| (ts, args.strip_prefix("\"Watts\":").unwrap().to_owned()))
        .collect()
}

fn owned(expected: &[(f64, &str)]) -> Vec<(f64, String)> {
    expected
        .iter()
        .map(|(ts, text)| (*ts, (*text).into()))
        .collect()
}

/// acelyzer 1.3.0 gives these counters and messages for the same events.
#[test]
fn power_by_ts4_is_that_of_acelyzer() {
    let mut timeline = timeline_of(&READINGS);
    let (outcome, said) = powered(&mut timeline, &options(PowerSource::Ts4, false));
    let expected = owned(&[
        (1040.0, "30.0"),
        (1140.0, "30.0"),
        (1240.0, "0"),
        (1340.0, "39.21"),
        (1440.0, "21.09375"),
        (1540.0, "7.03125"),
        (1740.0, "76.171875"),
        (1940.0, "0"),
        (2040.0, "11.71875"),
    ]);
    assert_eq!(watts(&timeline, "Power"), expected);
    assert_eq!(
        (outcome.periods.len(), outcome.readings, outcome.bad),
        (9, 12, 2)
    );
    let expected = [
        "PEC encountered 2 bad power events set to 0.0W. Enable DEBUG (-D 3) to display.",
        "PEC event stats o/i: 9 / 12",
    ];
    assert_eq!(said, expected);
}

/// acelyzer 1.3.0 gives these counters for the same events with `-k`.
#[test]
fn readings_are_skipped_as_by_acelyzer() {
    let mut timeline = timeline_of(&READINGS);
    let (_, said) = powered(&mut timeline, &options(PowerSource::Ts4, true));
    let expected = owned(&[
        (1040.0, "30.0"),
        (1140.0, "90.46875"),
        (1340.0, "30.151875"),
        (1540.0, "7.03125"),
        (1740.0, "76.171875"),
    ]);
    assert_eq!(watts(&timeline, "Power"), expected);
    assert_eq!(said, ["PEC event stats o/i: 5 / 12"]);
}

/// acelyzer 1.3.0 gives these counters for the same events with `-C power_ts3`.
#[test]
fn power_by_ts3_is_that_of_acelyzer() {
    let mut timeline = timeline_of(&READINGS);
    let (outcome, said) = powered(&mut timeline, &options(PowerSource::Ts3, false));
    assert_eq!(said, ["PEC event stats o/i: 9 / 11"]);
    let close = |name: &str, expected: &[(f64, &str)]| {
        let found = watts(&timeline, name);
        assert_eq!(found.len(), expected.len(), "{name}");
        for (found, expected) in found.iter().zip(expected) {
            assert!((found.0 - expected.0).abs() < 1e-6, "{found:?}");
            assert_eq!(found.1, expected.1);
        }
    };
    close(
        "Power DmaI",
        &[
            (1012.0, "1.28"),
            (1111.999, "0.0"),
            (1412.0, "0.9"),
            (1511.999, "0.0"),
        ],
    );
    close("Power DmaO", &[(1312.0, "1.673"), (1411.999, "0.0")]);
    close("Power AllReduce", &[(1512.0, "0.3"), (1711.999, "0.0")]);
    close("Power Other", &[(1712.0, "3.25"), (1911.999, "0.0")]);
    close(
        "Power Cmpt Exec",
        &[
            (1112.0, "1.28"),
            (1211.999, "0.0"),
            (1212.0, "6.44"),
            (1311.999, "0.0"),
            (1912.0, "991.0"),
            (2011.999, "0.0"),
            (2012.0, "0.5"),
            (2111.999, "0.0"),
        ],
    );
    // Its periods are in watts all the same: 128000 units in 100 us.
    assert!((outcome.periods[0].watts - 30.0).abs() < 1e-9);
}

/// acelyzer 1.3.0 prints these lines for the same events, but for the unit, which it
/// calls ms.
#[test]
fn power_statistics_are_those_of_acelyzer() {
    let mut timeline = timeline_of(&READINGS);
    let (outcome, _) = powered(&mut timeline, &options(PowerSource::Ts4, false));
    let kinds = Kinds::new(&timeline);
    let mut messages = Messages::new(Level::Info);
    energy::statistics(&timeline, &kinds, &outcome.periods, &mut messages);
    let said: Vec<_> = messages
        .iter()
        .map(|message| message.text.as_str())
        .collect();
    let expected = [
        "Power with kernels: min_non_zero=21.09W, max=76.17W, mean_non_zero=46.69W, \
         median_non_zero=30.00W, avg_total=38.91W (time-weighted, dur_total=168.00us, \
         dur_non_zero=140.00us)",
        "Power without kernels: min_non_zero=7.03W, max=76.17W, mean_non_zero=33.54W, \
         median_non_zero=30.00W, avg_total=26.60W (time-weighted, dur_total=832.00us, \
         dur_non_zero=660.00us)",
    ];
    assert_eq!(said, expected);
}

#[test]
fn the_scale_is_found_and_named() {
    // 35 W by either scale.
    for (unit, factor) in [
        (35.0 / 0.0234375, 1.0),
        (35.0 / 0.0234375 / 0.00537, 0.00537),
    ] {
        let charge = |i: usize| ("k Cmpt Exec", 1000 + (unit * 100.0) as i64 * i as i64);
        let readings: Vec<_> = (0..20).map(charge).collect();
        let mut timeline = timeline_of(&readings);
        let wanted = PowerOptions {
            scale: PowerScale::Auto,
            ..options(PowerSource::Ts4, false)
        };
        let (outcome, said) = powered(&mut timeline, &wanted);
        assert_eq!((outcome.factor, outcome.bad), (factor, 0));
        assert!(
            outcome
                .periods
                .iter()
                .all(|p| (p.watts - 35.0).abs() < 0.01)
        );
        assert!(said[0].contains(&format!("scale {factor} ")) && said[0].contains("19 of 19"));
    }
    // Possible by none: as acelyzer 1.3.0.
    let readings: Vec<_> = (0..9)
        .map(|i| ("k Cmpt Exec", 1 + 400_000_000 * i))
        .collect();
    let mut timeline = timeline_of(&readings);
    let wanted = PowerOptions {
        scale: PowerScale::Auto,
        ..options(PowerSource::Ts4, false)
    };
    let (outcome, said) = powered(&mut timeline, &wanted);
    assert_eq!((outcome.factor, outcome.bad), (1.0, 8));
    assert!(said[0].contains("doubtful"), "{said:?}");
}

#[test]
fn an_idle_device_takes_nothing() {
    let readings = [
        ("k Cmpt Exec", 500),
        ("k Cmpt Exec", 500),
        ("k Cmpt Exec", 600),
    ];
    let mut timeline = timeline_of(&readings);
    let (outcome, _) = powered(&mut timeline, &options(PowerSource::Ts4, false));
    // acelyzer takes an unchanged counter for one that wrapped exactly once.
    assert_eq!(outcome.periods[0].watts, 0.0);
    assert_eq!(outcome.bad, 0);
}

#[test]
fn odd_readings_are_no_trouble() {
    let huge = [
        ("a Cmpt Exec", i64::MAX),
        ("b Cmpt Exec", 1),
        ("c Cmpt Exec", i64::MAX),
    ];
    for readings in [&huge[..], &huge[..1], &[]] {
        for source in [PowerSource::Ts3, PowerSource::Ts4] {
            let mut timeline = timeline_of(readings);
            let (outcome, _) = powered(&mut timeline, &options(source, false));
            assert_eq!(outcome.periods.len(), readings.len().saturating_sub(1));
        }
    }
    let mut timeline = timeline_of(&READINGS);
    for device in &mut timeline.devices {
        // As far apart as the reader lets them be.
        device.stamps = [1 << 60, 0, 1 << 60, 0, 1 << 60];
    }
    powered(&mut timeline, &options(PowerSource::Ts3, false));
}

/// By hand: kernels a (1012 to 1040) and b (1112 to 1140) and c, each 28 us, lie in
/// periods of 30 W, 30 W and 0 W.
#[test]
fn energy_goes_to_the_kernels_that_ran() {
    let charges = [1000, 129_000, 257_000, 257_000];
    let names = [
        "a_1 Cmpt Exec",
        "a_2 Cmpt Exec",
        "b Cmpt Exec",
        "b Cmpt Exec",
    ];
    let readings: Vec<_> = names.into_iter().zip(charges).collect();
    let mut timeline = timeline_of(&readings);
    let (outcome, _) = powered(&mut timeline, &options(PowerSource::Ts4, false));
    let kinds = Kinds::new(&timeline);
    let rows = energy::kernels(
        &timeline,
        &kinds,
        &outcome.periods,
        &mut Messages::new(Level::Info),
    );
    assert_eq!(rows.len(), 2);
    let a = rows
        .iter()
        .find(|row| row.name == "a_[N] Cmpt Exec")
        .unwrap();
    // a_1 ends where the first reading is: nothing is known of it.
    assert_eq!((a.calls, a.time_us, a.measured_us), (2, 56.0, 28.0));
    assert!((a.joules - 30.0 * 28e-6).abs() < 1e-12);
    assert!((a.mean_watts.unwrap() - 30.0).abs() < 1e-9);
    let b = rows.iter().find(|row| row.name == "b Cmpt Exec").unwrap();
    assert_eq!((b.calls, b.measured_us), (2, 56.0));
    assert!((b.joules - 30.0 * 28e-6).abs() < 1e-12);
    assert!((b.mean_watts.unwrap() - 15.0).abs() < 1e-9);
}

#[test]
fn kernels_at_the_same_time_share_energy() {
    let readings: Vec<_> = (0..2).map(|i| ("k Foo", 1000 + 128_000 * i)).collect();
    let mut timeline = timeline_of(&readings);
    let (outcome, _) = powered(&mut timeline, &options(PowerSource::Ts4, false));
    testing::slice(&mut timeline, "x Cmpt Exec", 0, 1040.0, 100.0);
    testing::slice(&mut timeline, "y Cmpt Exec", 0, 1090.0, 50.0);
    testing::slice(&mut timeline, "z Cmpt Exec", 1, 1090.0, 50.0);
    let kinds = Kinds::new(&timeline);
    let rows = energy::kernels(
        &timeline,
        &kinds,
        &outcome.periods,
        &mut Messages::new(Level::Info),
    );
    let joules = |name: &str| {
        rows.iter()
            .find(|row| row.name.starts_with(name))
            .unwrap()
            .joules
    };
    assert!((joules("x") - 30.0 * 75e-6).abs() < 1e-12);
    assert!((joules("y") - 30.0 * 25e-6).abs() < 1e-12);
    assert_eq!(joules("z"), 0.0);
    assert_eq!(
        rows.iter()
            .find(|row| row.name.starts_with('z'))
            .unwrap()
            .mean_watts,
        None
    );
}
