//! Traces of clocks whose frequency and steps are known.

use super::*;
use aiprof_formats::import::json;

/// The device's clock in the traces below.
const MHZ: f64 = 557.05;

/// A trace of kernels, 10 ms apart, on a clock that starts at `first` ticks.
fn trace(kernels: u32, first: i64, jitter: bool) -> String {
    let mut text = String::from("[");
    for i in 0..kernels {
        let begin = 1e9 + f64::from(i) * 10_000.0;
        let tick = |us: f64| (first + (us * MHZ).round() as i64) & 0xffff_ffff;
        let late = if jitter {
            f64::from(i * 7919 % 11) * 0.1
        } else {
            0.0
        };
        let at = |us: f64| tick(begin - 1e9 + us);
        text += &format!(
            r#"{{"ph":"X","name":"k Cmpt Exec","pid":0,"tid":1,"ts":{:.3},"dur":200,"args":
            {{"TS1":{},"TS2":{},"TS3":{},"TS4":{},"TS5":{}}}}},"#,
            begin + late,
            at(-50.0),
            at(-20.0),
            at(0.0),
            at(200.0),
            at(210.0)
        );
    }
    text.pop();
    text + "]"
}

fn calibrated(text: &str, options: Options) -> (Timeline, Calibration) {
    let mut timeline = Timeline::default();
    let reading = json::read(text.as_bytes(), "x", &mut timeline).unwrap();
    crate::analyze::normalize::assign_ranks(&mut timeline, reading.job, reading.events, false);
    let found = run(&mut timeline, options);
    (timeline, found)
}

const FITTED: Options = Options {
    mhz: 1000.0,
    is_fitted: true,
    moves_jobs: true,
    keeps_listed: false,
    converts: true,
};

#[test]
fn clocks_and_wraps_are_found_whatever_frequency_is_given() {
    // 40 s: five periods; the first wrap falls into an event.
    let first = (1 << 32) - (100.0 * MHZ) as i64;
    let (t, found) = calibrated(&trace(4000, first, true), FITTED);
    let [clock] = found.clocks[..] else {
        panic!("{found:?}")
    };
    assert!(
        (clock.mhz - MHZ).abs() <= clock.mhz_error && clock.mhz_error < 0.01,
        "{clock:?}"
    );
    assert!((clock.steps, clock.guessed) == (0, 0), "{clock:?}");
    assert_eq!(t.devices[0].wrapped_at, 4);
    for (i, (event, device)) in t.events.iter().zip(&t.devices).enumerate() {
        let begin = first + (i as f64 * 10_000.0 * MHZ).round() as i64;
        assert_eq!(device.stamps[2], begin, "{i}");
        assert!((event.dur() - 200.0).abs() < 0.01, "{i} {event:?}");
    }
    assert!(found.unknown.is_empty() && found.jobs.is_empty());
}

/// Kernels of 20 us, 5 us apart, on a clock of `ticks(us)`, whose ends are noted late.
fn noted(kernels: u32, jitter: f64, ticks: impl Fn(f64) -> f64) -> String {
    let mut text = String::from("[");
    let mut seed = 77u64;
    for i in 0..kernels {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let unit = (seed >> 11) as f64 / (1u64 << 53) as f64;
        let late = -jitter * unit.max(1e-9).ln();
        let begin = 25.0 * f64::from(i);
        let at = |us: f64| (5e6 + ticks(begin + us)).round() as i64;
        text += &format!(
            r#"{{"ph":"X","name":"k Cmpt Exec","pid":0,"tid":1,"ts":{:.3},"dur":20,"args":
            {{"TS1":{},"TS2":{},"TS3":{},"TS4":{},"TS5":{}}}}},"#,
            1e9 + begin + late,
            at(-3.0),
            at(-2.0),
            at(0.0),
            at(20.0),
            at(21.0)
        );
    }
    text.pop();
    text + "]"
}

#[test]
fn neither_begins_nor_ends_keep_the_jitter_of_the_host() {
    for (kernels, jitter) in [(300, 0.2), (300, 2.0), (3000, 5.0)] {
        let text = noted(kernels, jitter, |us| us * MHZ);
        let (t, found) = calibrated(&text, FITTED);
        let bound = found.clocks[0].offset_error_us;
        // The first event's note, late by itself, is the origin.
        let first = 1e9 - t.origin() as f64;
        for (i, pair) in t.events.windows(2).enumerate() {
            let gap = pair[1].ts() - pair[0].ts();
            assert!((gap - 25.0).abs() < 0.1, "{jitter} {i} {gap}");
            assert!(pair[0].end_us() < pair[1].ts(), "{jitter} {i}");
            let off = pair[0].ts() - (first + 25.0 * i as f64);
            assert!(off.abs() <= bound, "{jitter} {i} {off} {bound}");
        }
        assert!(bound < 4.0 * jitter, "{jitter} {bound}");
        assert_eq!(
            (found.clocks[0].bends, found.clocks[0].steps, found.strays),
            (0, 0, 0)
        );
    }
}

#[test]
fn lengths_are_right_on_either_side_of_a_bend() {
    let at = 25.0 * 1200.0;
    let ticks = |us: f64| MHZ * us.min(at) + 0.8 * MHZ * (us - at).max(0.0);
    let (t, found) = calibrated(&noted(3000, 1.0, ticks), FITTED);
    assert_eq!(
        (found.clocks[0].bends, found.clocks[0].steps),
        (1, 0),
        "{found:?}"
    );
    let (least, most) = (found.clocks[0].least_mhz, found.clocks[0].most_mhz);
    assert!((least / MHZ - 0.8).abs() < 1e-3 && (most / MHZ - 1.0).abs() < 1e-3);
    for (i, event) in t.events.iter().enumerate() {
        if i.abs_diff(1200) > 3 {
            assert!((event.dur() - 20.0).abs() < 0.05, "{i} {event:?}");
            let length = t.stamp_time(event, 4).unwrap() - t.stamp_time(event, 0).unwrap();
            assert!((length - 24.0).abs() < 0.05, "{i} {length}");
        }
    }
}

#[test]
fn a_given_frequency_is_kept_to() {
    let options = Options {
        is_fitted: false,
        ..FITTED
    };
    let (t, _) = calibrated(&trace(100, 5000, false), options);
    // 200 µs at 557.05 MHz are 111.41 µs at 1000 MHz; the end stays.
    let event = t.events[0];
    assert!((event.dur() - 111.41).abs() < 1e-9);
    assert!((event.end_us() - 200.0).abs() < 1e-9);
    // Up to TS4 from TS1: 250 µs at 557.05 MHz.
    let (ts, dur) = t.devices[0].adjusted;
    assert!((dur - (139.262 - 200.0)).abs() < 1e-3, "{dur}");
    assert!((ts + dur).abs() < 1e-9, "{ts} {dur}");
    assert!((t.stamp_time(&event, 2).unwrap() - event.ts()).abs() < 1e-9);
}

#[test]
fn few_events_keep_their_times_or_go_by_the_given_frequency() {
    let (t, found) = calibrated(&trace(1, 5000, false), FITTED);
    assert_eq!(found.unknown, [0]);
    // The host's times stay.
    assert_eq!((t.events[0].ts(), t.events[0].dur()), (0.0, 200.0));
    let given = Options {
        is_fitted: false,
        ..FITTED
    };
    let (t, _) = calibrated(&trace(1, 5000, false), given);
    assert!((t.events[0].dur() - 111.41).abs() < 1e-9);
    let (_, found) = calibrated("[]", FITTED);
    assert_eq!(found, Calibration::default());
}
