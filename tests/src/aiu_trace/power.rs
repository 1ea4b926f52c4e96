//! The charge counter.

use std::collections::BTreeMap;

use super::make::TAIL_US;
use super::rng::Rng;
use super::scenario::Scenario;
use super::story::{Kind, Power, Story};

/// Longer pauses are spent idle, in microseconds.
const IDLE_AFTER_US: f64 = 5000.0;
/// Power of an idle device, in watts.
const IDLE_W: f64 = 5.0;

/// Gives every device event the charge counter at its TS4, and the story the
/// power between these readings. Preparations are no readings of their own.
pub(super) fn charge(story: &mut Story, scenario: &Scenario, rng: &mut Rng) {
    let Some(unit) = scenario.charge else {
        return;
    };
    for rank in 0..scenario.ranks {
        let mut readings: BTreeMap<u64, f64> = BTreeMap::new();
        for event in story.events.iter().filter(|event| event.rank == rank) {
            if let Some([.., ts4, _]) = event.cycles.filter(|_| event.kind != Kind::Prep) {
                let at_us = match event.kind {
                    Kind::DmaIn => event.end_us + TAIL_US,
                    Kind::DmaOut => event.start_us,
                    Kind::Prep | Kind::Exec | Kind::Cpu => event.end_us,
                };
                readings.insert(ts4, at_us);
            }
        }
        let mut counter = 3_000_000_000 + rng.next_u64() % 1_000_000_000;
        let mut charges: BTreeMap<u64, u64> = BTreeMap::new();
        let mut last: Option<(u64, f64)> = None;
        let mhz = story.ranks.get(rank).map_or(f64::NAN, |r| r.clock.mhz);
        for (ts4, at_us) in readings {
            if let Some((before, start_us)) = last {
                let passed_us = (ts4 - before) as f64 / mhz;
                let watts = if passed_us > IDLE_AFTER_US {
                    IDLE_W
                } else {
                    rng.between(10.0, 95.0)
                };
                let counted = (watts * passed_us * unit.per_us_and_watt())
                    .round()
                    .max(1.0);
                counter += counted as u64;
                story.power.push(Power {
                    rank,
                    start_us,
                    end_us: at_us,
                    watts: counted / unit.per_us_and_watt() / passed_us,
                });
            }
            charges.insert(ts4, counter);
            last = Some((ts4, at_us));
        }
        for event in story.events.iter_mut().filter(|event| event.rank == rank) {
            event.charge = event
                .cycles
                .and_then(|[.., ts4, _]| charges.get(&ts4).copied());
        }
    }
}
