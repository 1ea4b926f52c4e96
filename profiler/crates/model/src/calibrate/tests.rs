//! Against made-up data whose truth is known: frequencies, wraps, shifts, offsets
//! by seed.

use super::{
    clock::{Anchor, Clock, ClockError, Counter},
    cycles::{count_wraps, host_times},
    jobs::{JobPosition, JobTimes, Refusal, place},
    ranks::{Messages, align},
};
use crate::timeline::Phase;

/// Numbers that look random (xorshift), the same for the same seed.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            random.next();
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// In 0..1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// In -1..1.
    fn sign(&mut self) -> f64 {
        self.unit() * 2.0 - 1.0
    }

    /// A draw from a normal distribution.
    fn normal(&mut self) -> f64 {
        let (a, b) = (self.unit().max(1e-12), self.unit());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }

    fn mhz(&mut self) -> f64 {
        400.0 + 1100.0 * self.unit()
    }
}

const BITS: u32 = 32;

fn wrapped(ticks: f64) -> u64 {
    ticks.round() as u64 & u64::from(u32::MAX)
}

/// How the host's times are off.
#[derive(Clone, Copy, Debug)]
enum Jitter {
    Normal,
    Even,
    /// Late only, some of it very.
    Late,
}

impl Jitter {
    /// A jitter of about 5 us.
    fn next(self, random: &mut Random) -> f64 {
        match self {
            Self::Normal => 5.0 * random.normal(),
            Self::Even => 5.0 * random.sign(),
            Self::Late => -5.0 * random.unit().max(1e-9).ln(),
        }
    }
}

/// Anchors over a span, of a counter that begins anywhere; also the true frequency.
fn anchors(random: &mut Random, jitter: Jitter, span_us: f64, count: usize) -> (Vec<Anchor>, f64) {
    let (mhz, start) = (random.mhz(), random.unit() * 4e9);
    let mut times: Vec<f64> = (0..count).map(|_| random.unit() * span_us).collect();
    times.extend([0.0, span_us]);
    times.sort_by(f64::total_cmp);
    let anchor = |time: f64| Anchor {
        host_us: time + jitter.next(random),
        ticks: wrapped(start + time * mhz),
    };
    (times.into_iter().map(anchor).collect(), mhz)
}

/// The largest error of the frequency, and how often its bound was wrong.
fn frequency_errors(jitter: Jitter, span_us: f64, count: usize, seeds: u64) -> (f64, u32) {
    let (mut worst, mut outside) = (0.0f64, 0);
    for seed in 0..seeds {
        let mut random = Random::new(seed);
        let (anchors, mhz) = anchors(&mut random, jitter, span_us, count);
        let counter = Counter {
            bits: BITS,
            mhz: mhz * (1.0 + 0.01 * random.sign()),
            uncertainty: 0.05,
        };
        let clock = Clock::fit(&anchors, counter).unwrap();
        assert_eq!(clock.pieces.len(), 1, "{jitter:?} {seed}");
        let piece = clock.pieces[0];
        let error = (piece.mhz.value - mhz).abs();
        worst = worst.max(error);
        outside += u32::from(error > piece.mhz.error);
    }
    println!("{jitter:?}, {span_us} us, {count} anchors: {worst:.5} MHz, {outside} outside");
    (worst, outside)
}

#[test]
fn a_second_with_200_anchors_gives_the_frequency_within_a_hundredth() {
    for jitter in [Jitter::Normal, Jitter::Even, Jitter::Late] {
        let (worst, outside) = frequency_errors(jitter, 1e6, 200, 1000);
        assert!(
            worst < 0.01 && outside == 0,
            "{jitter:?}: {worst} {outside}"
        );
    }
}

#[test]
fn the_bound_holds_for_short_traces_too() {
    for jitter in [Jitter::Normal, Jitter::Even, Jitter::Late] {
        for (span, count) in [(1e3, 3), (20e3, 18), (200e3, 48), (60e6, 400)] {
            let (_, outside) = frequency_errors(jitter, span, count, 300);
            assert_eq!(outside, 0, "{jitter:?} {span}");
        }
    }
}

#[test]
fn the_frequency_need_not_be_known() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let (anchors, mhz) = anchors(&mut random, Jitter::Even, 20e6, 300);
        let counter = Counter {
            bits: BITS,
            mhz: 800.0,
            uncertainty: 1.0,
        };
        let clock = Clock::fit(&anchors, counter).unwrap();
        assert!((clock.pieces[0].mhz.value - mhz).abs() < 0.01, "{seed}");
    }
}

#[test]
fn wild_anchors_do_not_count() {
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let (mut anchors, mhz) = anchors(&mut random, Jitter::Even, 4e6, 400);
        for anchor in anchors.iter_mut().step_by(10) {
            anchor.host_us += 2000.0 * random.unit();
        }
        let counter = Counter {
            bits: BITS,
            mhz,
            uncertainty: 0.05,
        };
        let clock = Clock::fit(&anchors, counter).unwrap();
        assert_eq!(clock.pieces.len(), 1, "{seed}");
        assert!((clock.pieces[0].mhz.value - mhz).abs() < 0.01, "{seed}");
    }
}

#[test]
fn a_clock_that_was_set_is_two_pieces() {
    for (step, count) in [(100.0, 200), (1000.0, 400), (200e3, 60)] {
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let (mut anchors, mhz) = anchors(&mut random, Jitter::Even, 4e6, count);
            let at = 4e6 * (0.2 + 0.6 * random.unit());
            for anchor in anchors.iter_mut().filter(|a| a.host_us > at) {
                anchor.host_us += step;
            }
            let counter = Counter {
                bits: BITS,
                mhz: mhz * 1.002,
                uncertainty: 0.05,
            };
            let clock = Clock::fit(&anchors, counter).unwrap();
            assert_eq!(clock.pieces.len(), 2, "{step} {seed}");
            for piece in &clock.pieces {
                assert!((piece.mhz.value - mhz).abs() < 10.0 * piece.mhz.error.max(0.001));
            }
        }
    }
}

#[test]
fn host_times_are_within_their_bounds() {
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let mhz = random.mhz();
        let times: Vec<f64> = (0..300).map(|i| f64::from(i) * 10e3).collect();
        let noted = |time: &f64| Anchor {
            host_us: time + 5.0 * random.sign(),
            ticks: wrapped(time * mhz),
        };
        let anchors: Vec<Anchor> = times.iter().map(noted).collect();
        let counter = Counter {
            bits: BITS,
            mhz,
            uncertainty: 0.01,
        };
        let clock = Clock::fit(&anchors, counter).unwrap();
        for (ticks, time) in clock.unwrapped.iter().zip(&times) {
            let found = clock.host_time(*ticks);
            assert!(
                (found.value - time).abs() <= found.error,
                "{seed} {found:?} {time}"
            );
            assert!(found.error < 5.0, "{found:?}");
        }
    }
}

#[test]
fn no_clock_without_anchors_or_with_nonsense() {
    let counter = Counter {
        bits: BITS,
        mhz: 560.0,
        uncertainty: 0.1,
    };
    let one = Anchor {
        host_us: 1.0,
        ticks: 5,
    };
    assert_eq!(Clock::fit(&[], counter), Err(ClockError::TooFew));
    assert_eq!(Clock::fit(&[one], counter), Err(ClockError::TooFew));
    assert_eq!(Clock::fit(&[one; 9], counter), Err(ClockError::TooFew));
    let nan = Anchor {
        host_us: f64::NAN,
        ticks: 0,
    };
    assert_eq!(Clock::fit(&[one, nan], counter), Err(ClockError::Nonsense));
    for (bits, mhz) in [(0, 560.0), (65, 560.0), (32, 0.0), (32, f64::INFINITY)] {
        let counter = Counter {
            bits,
            mhz,
            uncertainty: 0.1,
        };
        assert_eq!(Clock::fit(&[one, one], counter), Err(ClockError::Nonsense));
    }
}

#[test]
fn wild_numbers_are_survived() {
    let numbers = [0.0, -1.0, 1e300, -1e300, 1e-300, 5.0];
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let any = |_| Anchor {
            host_us: numbers[(random.next() % 6) as usize],
            ticks: random.next(),
        };
        let anchors: Vec<Anchor> = (0..12).map(any).collect();
        let counter = Counter {
            bits: 1 + (seed % 64) as u32,
            mhz: 1e3,
            uncertainty: 0.5,
        };
        let _ = Clock::fit(&anchors, counter);
    }
}

#[test]
fn wraps_within_an_event_are_counted_once_each() {
    let max = u64::from(u32::MAX);
    assert_eq!(count_wraps([1, 2, 2, 3, 9], BITS), ([1, 2, 2, 3, 9], None));
    let (stamps, first) = count_wraps([max - 1, max, 5, 6, 7], BITS);
    assert_eq!(stamps[1..3], [i128::from(max), (1 << 32) + 5]);
    assert_eq!(first, Some(2));
    // Twice, which takes an event of more than a period.
    let (stamps, first) = count_wraps([100, 50, 60, 10, 20], BITS);
    assert_eq!(stamps[4], (2 << 32) + 20);
    assert_eq!(first, Some(1));
    // Counters that are wider do not wrap.
    let wide = [1 << 40, (1 << 40) + 1, 1 << 41, 1 << 42, 1 << 43];
    assert_eq!(count_wraps(wide, 64).0, wide.map(i128::from));
}

/// The specification's example: the end of the phase is the host's, its length the
/// counter's.
#[test]
fn the_host_knows_the_end_and_the_counter_the_length() {
    let stamps = [1000, 2000, 4000, 10_000, 11_000];
    let times = host_times(&stamps, Phase::of("conv Cmpt Exec"), 500.0, 1000.0);
    assert_eq!((times.start_us, times.duration_us), (494.0, 6.0));
    assert_eq!(times.stamps_us, [491.0, 492.0, 494.0, 500.0, 501.0]);
    for (name, start, duration) in [
        ("x DmaI", 499.0, 1.0),
        ("x Cmpt Prep", 498.0, 2.0),
        ("x DmaO", 499.0, 1.0),
        ("x", 490.0, 10.0),
    ] {
        let times = host_times(&stamps, Phase::of(name), 500.0, 1000.0);
        assert_eq!(
            (times.start_us, times.duration_us),
            (start, duration),
            "{name}"
        );
    }
}

/// Four jobs, of which one's device events are off by `by_us`.
fn four_jobs(random: &mut Random, by_us: f64, noise_us: f64) -> (Vec<JobTimes>, usize, f64) {
    let (mhz, wrong) = (random.mhz(), (random.next() % 4) as usize);
    let job = |index: usize| {
        let begin = index as f64 * 700e3 + random.unit() * 10e3;
        let length = 30e3 + random.unit() * 20e3;
        let by = if index == wrong { by_us } else { 0.0 };
        let event = |i: u32| {
            let time = begin + 500.0 + (length - 1500.0) * f64::from(i) / 20.0;
            Anchor {
                host_us: time + by + noise_us * random.sign(),
                ticks: wrapped(time * mhz),
            }
        };
        JobTimes {
            events: (1..=20).map(event).collect(),
            round_trip_us: Some((begin, begin + length)),
            first_us: begin + 400.0 + by,
        }
    };
    ((0..4).map(job).collect(), wrong, mhz)
}

#[test]
fn jobs_are_moved_to_where_the_clock_says() {
    for by in [-50e3, 50e3] {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let (jobs, wrong, mhz) = four_jobs(&mut random, by, 0.5);
            let counter = Counter {
                bits: BITS,
                mhz: mhz * 1.003,
                uncertainty: 0.02,
            };
            for (index, found) in place(&jobs, counter, 20.0).into_iter().enumerate() {
                match found {
                    JobPosition::Right => assert_ne!(index, wrong),
                    JobPosition::Moved(shift) => {
                        assert_eq!(index, wrong);
                        assert!((shift.value + by).abs() < 1.0, "{seed} {shift:?}");
                        assert!(shift.error < 5.0, "{shift:?}");
                    }
                    other => panic!("{seed} {index} {other:?}"),
                }
            }
        }
    }
}

#[test]
fn without_a_job_in_place_the_round_trip_bounds_the_shift() {
    let mut random = Random::new(1);
    let (jobs, wrong, mhz) = four_jobs(&mut random, 50e3, 0.0);
    let counter = Counter {
        bits: BITS,
        mhz,
        uncertainty: 0.02,
    };
    let alone = &jobs[wrong..=wrong];
    let [JobPosition::Bounded(bounds)] = place(alone, counter, 20.0)[..] else {
        panic!("{:?}", place(alone, counter, 20.0));
    };
    let (by_us, least_us, most_us) = (bounds.middle(), bounds.least, bounds.most);
    assert!(least_us <= -50e3 && -50e3 <= most_us && most_us - least_us < 2e3);
    assert!((by_us + 50e3).abs() <= (most_us - least_us) / 2.0);
    let mut wider = jobs[wrong].clone();
    wider.round_trip_us = wider.round_trip_us.map(|(begin, _)| (begin, begin + 1e3));
    assert_eq!(
        place(&[wider], counter, 20.0),
        [JobPosition::Refused(Refusal::Wider)]
    );
}

/// Bounds of messages along edges between ranks whose clocks are off by `offsets`.
fn exchanged(
    random: &mut Random,
    edges: &[(usize, usize)],
    offsets: &[f64],
    symmetric: bool,
) -> Vec<Messages> {
    let mut messages = Vec::new();
    for &(a, b) in edges {
        let there = 1.0 + 3.0 * random.unit();
        let back = if symmetric {
            there
        } else {
            1.0 + 30.0 * random.unit()
        };
        for (from, to, latency) in [(a, b, there), (b, a, back)] {
            let mut least_us = f64::INFINITY;
            for i in 0..40 {
                let late = if i % 5 == 0 { 0.0 } else { 4.0 * random.unit() };
                least_us = least_us.min(latency + late + offsets[from] - offsets[to]);
            }
            messages.push(Messages { from, to, least_us });
        }
    }
    messages
}

#[test]
fn ranks_are_aligned_along_any_graph() {
    for ranks in [2usize, 4, 16, 64] {
        let chain: Vec<_> = (1..ranks).map(|i| (i - 1, i)).collect();
        let ring: Vec<_> = (0..ranks).map(|i| (i, (i + 1) % ranks)).collect();
        let tree: Vec<_> = (1..ranks).map(|i| ((i - 1) / 2, i)).collect();
        for edges in [&chain, &ring, &tree] {
            for symmetric in [true, false] {
                let mut random = Random::new(ranks as u64);
                let mut offsets: Vec<f64> = (0..ranks).map(|_| 1e5 * random.sign()).collect();
                offsets[0] = 0.0;
                let messages = exchanged(&mut random, edges, &offsets, symmetric);
                let found = align(ranks, &messages);
                assert_eq!(found.contradiction_us, 0.0);
                for (shift, truth) in found.shifts.iter().zip(&offsets) {
                    let shift = shift.unwrap();
                    if symmetric {
                        assert!((shift.us - truth).abs() < 2.0, "{shift:?} {truth}");
                    }
                    let inside = shift.bounds.least - 1e-6..=shift.bounds.most + 1e-6;
                    assert!(inside.contains(truth), "{shift:?} {truth}");
                }
                // No effect before its cause.
                let by = |rank: usize| found.shifts[rank].unwrap().us;
                for m in &messages {
                    assert!(m.least_us + by(m.to) - by(m.from) > -1e-6, "{m:?}");
                }
            }
        }
    }
}

#[test]
fn ranks_that_no_message_reaches_and_contradictions_are_told() {
    let one = |from, to, least_us| Messages { from, to, least_us };
    let found = align(3, &[one(0, 1, 5.0), one(1, 0, -7.0)]);
    assert_eq!(found.shifts[2], None);
    // Round in -2: one of them is at least 1 us wrong.
    assert!((found.contradiction_us - 1.0).abs() < 1e-6, "{found:?}");
    // One direction only: as near as that allows.
    let found = align(2, &[one(0, 1, 5.0)]);
    let shift = found.shifts[1].unwrap();
    assert_eq!((shift.us, shift.bounds.most), (-5.0, f64::INFINITY));
    // Nonsense is left out.
    let found = align(2, &[one(0, 9, 1.0), one(1, 1, 1.0), one(0, 1, f64::NAN)]);
    assert_eq!((found.shifts[1], found.contradiction_us), (None, 0.0));
}

#[test]
fn chains_and_rings_of_one_direction_are_evened_out() {
    for ranks in [2usize, 3, 4, 16, 64] {
        let last = ranks - 1;
        let mut chain: Vec<_> = (1..ranks).map(|i| (i - 1, i)).collect();
        chain.extend((0..last).map(|to| (last, to)));
        let ring: Vec<_> = (0..ranks).map(|i| (i, (i + 1) % ranks)).collect();
        for edges in [&chain, &ring] {
            let mut random = Random::new(ranks as u64);
            let mut offsets: Vec<f64> = (0..ranks).map(|_| 1e5 * random.sign()).collect();
            offsets[0] = 0.0;
            let message = |(from, to): &(usize, usize)| Messages {
                from: *from,
                to: *to,
                least_us: 1.0 + offsets[*from] - offsets[*to],
            };
            let messages: Vec<_> = edges.iter().map(message).collect();
            let found = align(ranks, &messages);
            for (shift, truth) in found.shifts.iter().zip(&offsets) {
                assert!(
                    (shift.unwrap().us - truth).abs() < 0.01,
                    "{shift:?} {truth}"
                );
            }
        }
    }
}

/// All jobs lie outside of their round trips, each by another shift. The round trips leave
/// different room, and the clock that the jobs share makes the smallest count for all.
#[test]
fn round_trips_of_all_jobs_bound_the_clock_they_share() {
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let mhz = random.mhz();
        let mut truth = Vec::new();
        let mut jobs = Vec::new();
        for index in 0..4 {
            let begin = 1e6 * f64::from(index) + 1e5 * random.unit();
            let (before, after) = match index {
                2 => (40.0, 2000.0),
                3 => (2000.0, 30.0),
                _ => (1000.0 * random.unit() + 50.0, 1000.0 * random.unit() + 50.0),
            };
            let by = 49e3 + 10e3 * random.unit();
            let events = (0..200).map(|i| {
                let time = begin + 400.0 * f64::from(i);
                Anchor {
                    host_us: time - by + 0.5 * random.sign(),
                    ticks: wrapped(3e9 + time * mhz),
                }
            });
            let events: Vec<Anchor> = events.collect();
            jobs.push(JobTimes {
                round_trip_us: Some((begin - before, begin + 400.0 * 199.0 + after)),
                first_us: begin - by,
                events,
            });
            truth.push(by);
        }
        let counter = Counter {
            bits: BITS,
            mhz: mhz * 1.001,
            uncertainty: 0.05,
        };
        for (index, found) in place(&jobs, counter, 10.0).into_iter().enumerate() {
            let JobPosition::Bounded(bounds) = found else {
                panic!("{seed} {index} {found:?}")
            };
            let (by_us, least_us, most_us) = (bounds.middle(), bounds.least, bounds.most);
            assert!(
                least_us - 2.0 <= truth[index] && truth[index] <= most_us + 2.0,
                "{seed} {index} {found:?} {}",
                truth[index]
            );
            assert!((by_us - (least_us + most_us) / 2.0).abs() < 1e-6);
            let own = match index {
                2 | 3 => 2100.0,
                _ => 2200.0,
            };
            assert!(most_us - least_us < own, "{seed} {found:?}");
            if index >= 2 {
                // Job 2 gives the least, job 3 the most.
                assert!(most_us - least_us < 400.0, "{seed} {index} {found:?}");
            }
        }
    }
}
