//! Against devices whose power is known by class.

use super::*;
use crate::analyze::config::{PowerScale, PowerSource};
use crate::analyze::energy::{self, EnergyMethod, KernelPower};
use crate::analyze::messages::{Level, Messages};
use crate::analyze::power::{self, PowerOptions};
use aiprof_model::timeline::{Dialect, Kinds, Timeline};
use aiprof_testkit::timelines as testing;

const NAMES: [&str; 4] = ["mm", "sum", "softmax", "copy"];
const WATTS: [f64; 4] = [60.0, 35.0, 45.0, 30.0];
const IDLE: f64 = 25.0;

/// Numbers that look random, the same for the same seed.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// What to make.
#[derive(Clone, Copy)]
struct Story {
    seed: u64,
    kernels: usize,
    /// Least and most time between kernels, microseconds.
    gaps: (f64, f64),
    scale: f64,
    /// How far each reading's time is off, microseconds.
    jitter: f64,
    /// Each kernel takes the same time, each gap too.
    is_even: bool,
    /// One in this many kernels is missing in the trace; 0: none.
    missing: usize,
}

const STORY: Story = Story {
    seed: 1,
    kernels: 400,
    gaps: (0.0, 400.0),
    scale: 1.0,
    jitter: 0.0,
    is_even: false,
    missing: 0,
};

/// A trace, and the joules of each class in the kernels that it has.
fn make(story: Story) -> (Timeline, [f64; 4]) {
    let mut timeline = testing::timeline(Dialect::Flex);
    let mut random = Random(story.seed);
    let (mut ts, mut energy, mut joules) = (1000.0, 0.0, [0.0; 4]);
    let unit = 12.0 / 512.0 * story.scale;
    for index in 0..story.kernels {
        let (class, share, length) = match story.is_even {
            true => (0, 0.5, 100.0),
            false => {
                let class = (random.unit() * 4.0) as usize;
                (class, random.unit(), 20.0 + 180.0 * random.unit())
            }
        };
        let gap = story.gaps.0 + (story.gaps.1 - story.gaps.0) * share;
        let (begin, end) = (ts + gap, ts + gap + length);
        energy += gap * IDLE + length * WATTS[class];
        ts = end;
        if story.missing > 0 && random.unit() * (story.missing as f64) < 1.0 {
            continue;
        }
        joules[class] += length * WATTS[class] / 1e6;
        let off = story.jitter * (random.unit() - 0.5);
        let name = format!("{}_{index} Cmpt Exec", NAMES[class]);
        let slice = testing::slice(&mut timeline, &name, 0, begin + off, length);
        let stamps = [begin, begin, begin, end, end].map(|us| (us * 1000.0) as i64);
        let charge = (energy / unit) as i64 & 0xffff_ffff;
        testing::count(&mut timeline, slice, stamps, charge.max(1));
    }
    (timeline, joules)
}

fn analysed(
    mut timeline: Timeline,
    scale: f64,
) -> (power::PowerReport, Vec<KernelPower>, Vec<String>) {
    let kinds = Kinds::new(&timeline);
    let mut messages = Messages::new(Level::Info);
    let options = PowerOptions {
        source: PowerSource::Ts4,
        scale: PowerScale::Fixed(scale),
        skip: false,
        is_literal: false,
    };
    let outcome = power::run(&mut timeline, &kinds, &options, &mut messages);
    let rows = energy::kernels(&timeline, &kinds, &outcome.periods, &mut messages);
    let said = messages.iter().map(|message| message.text.clone());
    (outcome, rows, said.collect())
}

/// The largest relative error of a class's joules.
fn worst(rows: &[KernelPower], joules: [f64; 4]) -> f64 {
    let errors = NAMES.iter().zip(joules).map(|(name, joules)| {
        let row = rows.iter().find(|row| row.name.starts_with(name)).unwrap();
        assert!(matches!(row.method, EnergyMethod::Fitted { .. }), "{row:?}");
        (row.joules / joules - 1.0).abs()
    });
    errors.fold(0.0, f64::max)
}

#[test]
fn energy_of_each_class_is_true_within_3_percent() {
    for seed in 1..=20 {
        for (gaps, jitter, missing) in [
            ((0.0, 400.0), 0.0, 0),
            ((0.0, 400.0), 2.0, 0),
            ((0.0, 400.0), 0.2, 50),
            ((0.0, 20.0), 0.2, 0),
            ((5_000.0, 30_000.0), 0.0, 0),
        ] {
            let story = Story {
                seed,
                gaps,
                jitter,
                missing,
                ..STORY
            };
            let (timeline, joules) = make(story);
            let (_, rows, said) = analysed(timeline, 1.0);
            let worst = worst(&rows, joules);
            assert!(
                worst < 0.03,
                "{seed} {gaps:?} {jitter} {missing}: {worst} {said:?}"
            );
        }
    }
}

/// By the scale of acelyzer 1.0.0 the counter wraps after 18 ms at 30 W.
#[test]
fn wraps_over_long_gaps_are_counted() {
    for seed in 1..=10 {
        let story = Story {
            seed,
            gaps: (5_000.0, 30_000.0),
            scale: 0.00537,
            kernels: 800,
            ..STORY
        };
        let (timeline, joules) = make(story);
        let (outcome, rows, said) = analysed(timeline, 0.00537);
        assert!(
            outcome.wraps.counted > 100 && outcome.wraps.unknown == 0,
            "{said:?}"
        );
        assert!(worst(&rows, joules) < 0.03, "{seed} {rows:?}");
        // Each period by itself: idle power and at most one kernel above it.
        let is_sound = |p: &&Period| p.watts > 24.9 && p.watts < 26.5;
        assert_eq!(
            outcome.periods.iter().filter(is_sound).count(),
            outcome.periods.len()
        );
    }
}

/// The same gaps, by a counter of more bits: the charge of each period is right as it is.
#[test]
fn counters_of_more_than_32_bits_do_not_wrap_there() {
    let story = Story {
        gaps: (20_000.0, 40_000.0),
        scale: 0.00537,
        ..STORY
    };
    let (mut timeline, _) = make(story);
    let mut high = 0;
    let mut before = 0;
    for device in &mut timeline.devices {
        high += i64::from(device.power < before) << 32;
        before = device.power;
        device.power += high;
    }
    let (outcome, _, said) = analysed(timeline, 0.00537);
    assert_eq!(
        (outcome.wraps.counted, outcome.wraps.unknown),
        (0, 0),
        "{said:?}"
    );
}

/// Only long gaps: nothing shows how often the counter wrapped.
#[test]
fn wraps_that_nothing_tells_are_reported() {
    let story = Story {
        gaps: (20_000.0, 40_000.0),
        scale: 0.00537,
        ..STORY
    };
    let (timeline, _) = make(story);
    let (outcome, rows, said) = analysed(timeline, 0.00537);
    assert_eq!(outcome.wraps.unknown, outcome.periods.len());
    assert!(
        said.iter().any(|text| text.contains("may have wrapped")),
        "{said:?}"
    );
    assert!(rows.iter().all(|row| row.mean_watts.is_none()), "{rows:?}");
}

/// One ratio of kernel time and idle time in all periods: the sum is known, the parts
/// are not.
#[test]
fn what_cannot_be_separated_is_reported() {
    let (timeline, _) = make(Story {
        is_even: true,
        ..STORY
    });
    let (_, rows, said) = analysed(timeline, 1.0);
    assert!(
        rows.iter().all(|row| row.method == EnergyMethod::Shared),
        "{rows:?}"
    );
    assert!(
        said.iter().any(|text| text.contains("cannot be separated")),
        "{said:?}"
    );
}

/// Two classes that always run one after the other with one ratio, beside one that is
/// separate.
#[test]
fn one_class_is_separated_though_others_are_not() {
    let mut periods = Vec::new();
    let mut spans = Vec::new();
    let mut random = Random(5);
    let mut ts = 0.0;
    let period = |start_us, end_us, watts| Period {
        pid: aiprof_model::timeline::Id::Number(0),
        rank: 0,
        start_us,
        end_us,
        watts,
        is_bad: false,
        wrap_watts: 1e9,
        are_wraps_unknown: false,
    };
    for _ in 0..100 {
        let (pair, single, gap) = (
            random.unit() * 50.0,
            random.unit() * 50.0,
            random.unit() * 50.0,
        );
        let starts = [ts, ts + pair, ts + 3.0 * pair, ts + 3.0 * pair + single];
        for (column, pair) in (0u32..).zip(starts.windows(2)) {
            spans.push(KernelSpan {
                start: pair[0],
                end: pair[1],
                column,
            });
        }
        let end = starts[3] + gap;
        let energy = pair * 60.0 + 2.0 * pair * 30.0 + single * 45.0 + gap * 20.0;
        periods.push(period(ts, end, energy / (end - ts)));
        ts = end;
    }
    let seen = observe(&spans, &periods, 4);
    let model = Model::fit(&seen, 4, |_| true);
    let [a, b, c, idle] = model.columns[..] else {
        panic!()
    };
    assert_eq!((a, b), (None, None));
    assert!((c.unwrap().value - 45.0).abs() < 1e-6);
    assert!((idle.unwrap().value - 20.0).abs() < 1e-6);
}
