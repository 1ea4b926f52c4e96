//! Pairs drawn from known distributions: what is called changed, and what intervals hold.

use super::*;

/// Runs of each experiment.
const SEEDS: u64 = 600;

/// A generator of random numbers (splitmix64, Steele et al. 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Draws `samples` leaf functions by their weights. A function stays for `stay` samples
/// as a mean, so that samples which follow each other are alike; 1: they are independent.
fn draw(
    weights: &[f64],
    samples: usize,
    stay: f64,
    timed: bool,
    random: &mut Random,
) -> SampledFunctions {
    let whole: f64 = weights.iter().sum();
    let mut found = SampledFunctions {
        whole: samples as f64,
        samples: Some(samples as u64),
        ..SampledFunctions::default()
    };
    if timed {
        found.slices = vec![0.0; SLICES];
    }
    let mut at = None;
    for sample in 0..samples {
        if at.is_none() || random.next() < 1.0 / stay {
            let mut left = random.next() * whole;
            at = weights.iter().position(|weight| {
                left -= weight;
                left < 0.0
            });
        }
        let name = format!("f{}", at.unwrap_or(0));
        found.add(&name, 1.0, 1.0);
        found.add("main", 0.0, 1.0);
        if timed {
            let slice = sample * SLICES / samples;
            found.slices[slice] += 1.0;
            found.add_to_slice(slice, &name, 1.0, 1.0);
            found.add_to_slice(slice, "main", 0.0, 1.0);
        }
    }
    found
}

/// Functions as programs have them: few large ones, many small ones (Zipf).
fn program(functions: usize) -> Vec<f64> {
    (0..functions).map(|n| 1.0 / (n as f64 + 1.0)).collect()
}

/// The share of all runs in which something is called changed although nothing did.
fn false_alarms(functions: usize, samples: usize, stay: f64, timed: bool) -> f64 {
    let weights = program(functions);
    let runs = (0..SEEDS).filter(|seed| {
        let mut random = Random(*seed);
        let before = draw(&weights, samples, stay, timed, &mut random);
        let after = draw(&weights, samples + samples / 3, stay, timed, &mut random);
        compare(&before, &after).changed > 0
    });
    runs.count() as f64 / SEEDS as f64
}

#[test]
fn unchanged_pairs_are_not_called_changed() {
    for (functions, samples, stay, timed) in [
        (200, 400, 1.0, false),
        (200, 400, 1.0, true),
        (50, 3000, 1.0, true),
        (3, 2000, 1.0, false),
        // Bursts of ten samples: slices see it.
        (50, 4000, 10.0, true),
    ] {
        let share = false_alarms(functions, samples, stay, timed);
        assert!(share <= MISSED, "{functions} {samples} {stay}: {share}");
    }
}

/// Samples that are alike look like changes to whoever takes them as independent: the
/// test that slices are needed.
#[test]
fn bursts_without_times_give_false_alarms() {
    assert!(false_alarms(50, 4000, 10.0, false) > 0.2);
}

/// A function of a known share that grows by half: how often its interval holds the
/// truth, and how often it is named first.
fn planted(samples: usize, stay: f64, timed: bool) -> (f64, f64) {
    let before = program(40);
    let mut after = before.clone();
    after[2] *= 1.5;
    let share = |weights: &[f64]| weights[2] / weights.iter().sum::<f64>();
    let truth = share(&after) - share(&before);
    let (mut inside, mut first) = (0, 0);
    for seed in 0..SEEDS {
        let mut random = Random(1000 + seed);
        let before = draw(&before, samples, stay, timed, &mut random);
        let after = draw(&after, samples, stay, timed, &mut random);
        let found = compare(&before, &after);
        let of = found.functions.iter().find(|one| one.name == "f2").unwrap();
        let off = (of.own.change() - truth).abs();
        inside += usize::from(off <= of.own.half.unwrap());
        first += usize::from(found.changed > 0 && found.functions[0].name == "f2");
    }
    (inside as f64 / SEEDS as f64, first as f64 / SEEDS as f64)
}

/// Intervals that hold the truth in 95 % of all runs do so in as many of these runs, but for
/// chance: two standard errors of the experiment.
#[test]
fn a_planted_change_is_in_its_interval_and_named_first() {
    let least_inside = 0.95 - 2.0 * (0.95 * 0.05 / SEEDS as f64).sqrt();
    for (samples, stay, timed, least_first) in [
        (1000, 1.0, false, 0.0),
        (5000, 1.0, false, 0.95),
        (5000, 1.0, true, 0.9),
        // Bursts: as good as some five hundred independent samples.
        (10_000, 10.0, true, 0.0),
    ] {
        let (inside, first) = planted(samples, stay, timed);
        assert!(inside >= least_inside, "{samples} {stay} {timed}: {inside}");
        assert!(first >= least_first, "{samples} {stay} {timed}: {first}");
    }
}

/// A program with two phases: the same in both recordings. Slices that are paired do not
/// take the phases for noise.
#[test]
fn phases_that_both_have_are_no_noise() {
    let recording = |slow: f64, seed: u64| {
        let mut random = Random(seed);
        let mut found = SampledFunctions {
            whole: 10_000.0,
            samples: Some(10_000),
            slices: vec![500.0; SLICES],
            ..SampledFunctions::default()
        };
        for sample in 0..10_000 {
            let (slice, draw) = (sample / 500, random.next());
            let name = match (slice < 10, draw < slow) {
                (true, _) => "load",
                (false, true) => "slow",
                (false, false) => "rest",
            };
            found.add(name, 1.0, 1.0);
            found.add_to_slice(slice, name, 1.0, 1.0);
        }
        found
    };
    let found = compare(&recording(0.3, 1), &recording(0.4, 2));
    let of = |name: &str| found.functions.iter().find(|one| one.name == name).unwrap();
    assert_eq!(of("slow").verdict(), Verdict::Changed);
    assert!(of("slow").own.half.unwrap() < 0.02);
    assert_eq!(of("load").verdict(), Verdict::WithinNoise);
}

#[test]
fn without_a_number_of_samples_nothing_is_said() {
    let mut random = Random(1);
    let before = draw(&program(5), 500, 1.0, false, &mut random);
    let after = SampledFunctions {
        samples: None,
        ..draw(&program(9), 500, 1.0, false, &mut random)
    };
    let found = compare(&before, &after);
    assert_eq!(
        (found.changed, found.comparisons, found.has_intervals),
        (0, 0, false)
    );
    assert!(
        found
            .functions
            .iter()
            .all(|one| one.verdict() == Verdict::NotKnown)
    );
}
