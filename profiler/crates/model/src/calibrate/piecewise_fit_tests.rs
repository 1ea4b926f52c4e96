//! Clocks whose frequency changes, against the truth they are made from.

use crate::calibrate::clock::{Anchor, Clock, Counter};

/// Numbers that look random, the same for the same seed.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Mostly small, sometimes ten times that, never early.
    fn late(&mut self, us: f64) -> f64 {
        let wild = if self.unit() < 0.05 { 10.0 } else { 1.0 };
        -us * wild * self.unit().max(1e-9).ln()
    }
}

/// True times and anchors of a counter that has counted `ticks(us)` by then.
fn anchors(
    seed: u64,
    count: usize,
    span_us: f64,
    jitter: f64,
    ticks: impl Fn(f64) -> f64,
) -> (Vec<f64>, Vec<Anchor>) {
    let mut random = Random(seed);
    let mut times: Vec<f64> = (0..count).map(|_| random.unit() * span_us).collect();
    times.sort_by(f64::total_cmp);
    let noted = times.iter().map(|us| Anchor {
        host_us: us + random.late(jitter),
        ticks: (4e9 + ticks(*us)).round() as u64 & 0xffff_ffff,
    });
    let noted = noted.collect();
    (times, noted)
}

fn fitted(anchors: &[Anchor], mhz: f64) -> Clock {
    let counter = Counter {
        bits: 32,
        mhz,
        uncertainty: 0.05,
    };
    Clock::fit(anchors, counter).unwrap()
}

/// The largest error of the time between neighbours, and of a time, by the clock.
fn errors(clock: &Clock, times: &[f64], noted: &[Anchor]) -> (f64, f64) {
    let all = clock.unwrapped.iter().zip(times).zip(noted);
    let away: Vec<f64> = all
        .map(|((ticks, us), noted)| {
            clock
                .piece_near(*ticks, noted.host_us)
                .host_time(*ticks)
                .value
                - us
        })
        .collect();
    let gaps = away.windows(2).map(|pair| (pair[1] - pair[0]).abs());
    let most = away.iter().map(|away| away.abs()).fold(0.0, f64::max);
    (gaps.fold(0.0, f64::max), most)
}

#[test]
fn a_frequency_that_falls_is_two_pieces_that_meet() {
    for (count, span, jitter) in [(60, 1e6, 2.0), (300, 1e6, 2.0), (4000, 10e6, 5.0)] {
        for seed in 0..60 {
            let share = 0.2 + 0.6 * Random(seed + 7).unit();
            let (mhz, at) = (560.0 + seed as f64, span * share);
            let ticks = |us: f64| mhz * us.min(at) + 0.8 * mhz * (us - at).max(0.0);
            let (times, noted) = anchors(seed, count, span, jitter, ticks);
            let clock = fitted(&noted, mhz);
            assert_eq!(
                (clock.pieces.len(), clock.bends(), clock.steps()),
                (2, 1, 0),
                "{count} {seed} {clock:?}"
            );
            let [a, b] = &clock.pieces[..] else { panic!() };
            assert!((a.mhz.value - mhz).abs() <= a.mhz.error, "{seed} {a:?}");
            assert!(
                (b.mhz.value - 0.8 * mhz).abs() <= b.mhz.error,
                "{seed} {b:?}"
            );
            let (_, most) = errors(&clock, &times, &noted);
            assert!(most < 3.0 * jitter, "{count} {seed}: {most}");
        }
    }
}

/// Back and forth, as a governor does it, also for a short while only: no half of it has
/// another mean than the other.
#[test]
fn a_frequency_that_goes_back_and_forth_is_pieces_that_meet() {
    for (count, changes, low) in [(4000, 20, 0.85), (2000, 9, 0.7), (1000, 2, 0.8)] {
        for seed in 0..8 {
            let (mhz, span) = (560.0 + seed as f64, 1e6);
            // With two changes the low part is a tenth in the middle.
            let borders: Vec<f64> = match changes {
                2 => vec![0.45 * span, 0.55 * span],
                _ => (1..changes)
                    .map(|i| span * f64::from(i) / f64::from(changes))
                    .collect(),
            };
            let ticks = |us: f64| {
                let (mut sum, mut from, mut share) = (0.0, 0.0, 1.0);
                for border in borders.iter().copied().chain([f64::MAX]) {
                    sum += mhz * share * (us.min(border) - from).max(0.0);
                    (from, share) = (border, if share == 1.0 { low } else { 1.0 });
                }
                sum
            };
            let (times, noted) = anchors(seed, count, span, 1.0, ticks);
            let clock = fitted(&noted, mhz);
            let seen = (clock.steps(), clock.bends());
            let expected = (0, borders.len());
            assert_eq!(seen, expected, "{count} {seed} {:?}", clock.pieces);
            let (_, most) = errors(&clock, &times, &noted);
            assert!(most < 4.0, "{count} {seed}: {most}");
        }
    }
}

#[test]
fn a_frequency_that_drifts_is_several_pieces_and_no_step() {
    for seed in 0..60 {
        let (mhz, span) = (800.0, 10e6);
        // 100 ppm over the trace.
        let ticks = |us: f64| mhz * (us + 100e-6 * us * us / 2.0 / span);
        let (times, noted) = anchors(seed, 3000, span, 1.0, ticks);
        let clock = fitted(&noted, mhz);
        assert!(clock.bends() >= 3 && clock.steps() == 0, "{seed} {clock:?}");
        let (gap, most) = errors(&clock, &times, &noted);
        assert!(gap < 2.5 && most < 4.0, "{seed} {gap} {most}");
        for piece in &clock.pieces {
            let ppm = (piece.mhz.value / mhz - 1.0) * 1e6;
            assert!((-20.0..120.0).contains(&ppm), "{piece:?}");
        }
    }
}

#[test]
fn steady_clocks_neither_bend_nor_step() {
    for seed in 0..400 {
        let count = [12, 40, 300, 2000][seed as usize % 4];
        let jitter = [0.2, 2.0, 20.0][seed as usize % 3];
        let ticks = |us: f64| 557.05 * us;
        let (times, noted) = anchors(seed, count, 3e6, jitter, ticks);
        let clock = fitted(&noted, 560.0);
        assert_eq!(clock.pieces.len(), 1, "{seed} {count} {jitter} {clock:?}");
        let (gap, most) = errors(&clock, &times, &noted);
        if count >= 300 {
            assert!(
                gap < 0.05 * jitter.max(0.5),
                "{seed} {count} {jitter}: {gap}"
            );
        }
        let piece = &clock.pieces[0];
        let ends = [piece.from, piece.to].map(|ticks| piece.host_time(ticks).error);
        let bound = ends
            .into_iter()
            .fold(piece.late_us, |sum, end| sum.max(piece.late_us + end));
        assert!(most <= bound, "{seed} {count} {jitter}: {most} {bound}");
    }
}

/// The counter begins again at zero while the host's clock goes on.
#[test]
fn behind_a_restart_values_that_were_there_before_are_told_apart() {
    for seed in 0..60 {
        let at = 1e6 * (0.3 + 0.4 * Random(seed + 3).unit());
        let ticks = |us: f64| {
            if us < at {
                600.0 * us
            } else {
                600.0 * (us - at)
            }
        };
        let (times, noted) = anchors(seed, 400, 1e6, 2.0, ticks);
        let clock = fitted(&noted, 600.0);
        assert_eq!((clock.steps(), clock.bends()), (1, 0), "{seed} {clock:?}");
        let (_, most) = errors(&clock, &times, &noted);
        assert!(most < 5.0, "{seed}: {most}");
    }
}
