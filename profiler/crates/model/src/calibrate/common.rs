//! Two recordings of one run, aligned by the events that both have.
//!
//! Their clocks may differ by any offset, and each may lack a part of the run. Events that both
//! have carry the same name; which of several of that name it is, neither recording shows. The true
//! offset brings many pairs together, any other only few: pairs vote.

use super::bounds::Uncertain;
use super::line_fit::median;
use rustc_hash::FxHashMap;

/// Pairs of equal names that are looked at for one event: neighbours of the same rank
/// among those of its name, so that long recordings stay affordable.
const NEIGHBOURS: usize = 64;
/// Most events of either recording that vote; the others are then placed like them.
const MAX_EVENTS: usize = 20_000;
/// Fewest pairs that give an offset.
const MIN_PAIRS: usize = 3;
/// The best offset must have this many times the votes of any other one.
const CLEAR: f64 = 1.5;

/// An event that the other recording may have too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Common {
    /// Its name, as a number.
    pub name: u32,
    /// When, by its recording's clock, microseconds.
    pub us: f64,
}

/// How far two recordings are apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offset {
    /// To be added to the second's times, by the pairs, microseconds.
    pub us: Uncertain,
    /// Pairs that agree.
    pub pairs: usize,
}

/// Why there is no offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoOffset {
    /// They have too few events of the same names.
    TooFew,
    /// Several offsets fit about as well: what repeats could be any of its turns.
    Ambiguous,
}

/// Finds the offset of the second recording. Pairs agree if they are within
/// `tolerance_us` of each other.
///
/// # Errors
/// When the events do not determine it, see [`NoOffset`].
pub fn align(first: &[Common], second: &[Common], tolerance_us: f64) -> Result<Offset, NoOffset> {
    let mut differences = differences(&thinned(first), &thinned(second));
    differences.retain(|d| d.is_finite());
    if differences.len() < MIN_PAIRS {
        return Err(NoOffset::TooFew);
    }
    differences.sort_by(f64::total_cmp);
    let best = densest(&differences, tolerance_us, None).ok_or(NoOffset::TooFew)?;
    let agreeing = differences.get(best.clone()).unwrap_or_default();
    if agreeing.len() < MIN_PAIRS {
        return Err(NoOffset::TooFew);
    }
    // Overlapping windows are the same offset.
    let other = densest(&differences, tolerance_us, Some(&best));
    let other = other.map_or(0, |other| other.len());
    if other as f64 * CLEAR > agreeing.len() as f64 {
        return Err(NoOffset::Ambiguous);
    }
    let us = median(&mut agreeing.to_vec());
    let mut away: Vec<f64> = agreeing.iter().map(|d| (d - us).abs()).collect();
    let scatter = median(&mut away);
    // A median of n values is that sure; what scatters by less than a nanosecond is
    // no surer.
    let error = (4.0 * scatter / (agreeing.len() as f64).sqrt()).max(0.001);
    Ok(Offset {
        us: Uncertain { value: us, error },
        pairs: agreeing.len(),
    })
}

/// The rarest names first, because they distinguish best; then in order of time.
fn thinned(events: &[Common]) -> Vec<Common> {
    let mut counts: FxHashMap<u32, u32> = FxHashMap::default();
    for event in events {
        *counts.entry(event.name).or_default() += 1;
    }
    let mut kept: Vec<Common> = events.to_vec();
    if kept.len() > MAX_EVENTS {
        kept.sort_by_key(|event| counts.get(&event.name).copied());
        kept.truncate(MAX_EVENTS);
    }
    kept.sort_by(|a, b| a.us.total_cmp(&b.us));
    kept
}

/// Differences of pairs of the same name.
fn differences(first: &[Common], second: &[Common]) -> Vec<f64> {
    let mut by_name: FxHashMap<u32, Vec<f64>> = FxHashMap::default();
    for event in second {
        by_name.entry(event.name).or_default().push(event.us);
    }
    let mut turns: FxHashMap<u32, usize> = FxHashMap::default();
    let mut out = Vec::new();
    for event in first {
        let turn = turns.entry(event.name).or_default();
        if let Some(times) = by_name.get(&event.name) {
            // A part may be missing at either end: turns around the same one.
            let from = turn.saturating_sub(NEIGHBOURS / 2);
            let to = (from + NEIGHBOURS).min(times.len());
            let near = times.get(from.min(to)..to).unwrap_or_default();
            out.extend(near.iter().map(|us| event.us - us));
        }
        *turn += 1;
    }
    out
}

/// The window of this width with the most values, apart from another one.
fn densest(
    sorted: &[f64],
    width: f64,
    apart: Option<&std::ops::Range<usize>>,
) -> Option<std::ops::Range<usize>> {
    let limits =
        apart.and_then(|range| Some((sorted.get(range.start)?, sorted.get(range.end - 1)?)));
    let is_near = |value: f64| limits.is_some_and(|(a, b)| value > a - width && value < b + width);
    let mut best: Option<std::ops::Range<usize>> = None;
    let mut end = 0;
    for (start, value) in sorted.iter().enumerate() {
        end = end.max(start);
        while sorted.get(end).is_some_and(|next| next - value <= width) {
            end += 1;
        }
        if is_near(*value) || sorted.get(end - 1).is_some_and(|last| is_near(*last)) {
            continue;
        }
        if best.as_ref().is_none_or(|best| end - start > best.len()) {
            best = Some(start..end);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events of a run with `kinds` names, whose distances do not repeat.
    fn run(count: u32, kinds: u32) -> Vec<Common> {
        let mut us = 0.0;
        let mut state = 88_172_645_463_325_252u64;
        (0..count)
            .map(|i| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                us += 50.0 + (state % 1000) as f64;
                Common {
                    name: i % kinds,
                    us,
                }
            })
            .collect()
    }

    fn shifted(events: &[Common], by: f64, jitter: f64) -> Vec<Common> {
        let late = |i: usize| (i * 7919 % 100) as f64 / 100.0 * jitter;
        let events = events.iter().enumerate();
        events
            .map(|(i, event)| Common {
                us: event.us + by + late(i),
                ..*event
            })
            .collect()
    }

    #[test]
    fn the_offset_is_found_though_parts_are_missing() {
        let all = run(3000, 7);
        for (from, to) in [(0, 3000), (40, 3000), (0, 2900), (100, 2000)] {
            let second = shifted(&all[from..to], -1.5e9, 2.0);
            let found = align(&all, &second, 10.0).unwrap();
            // Jitter is 0 to 2 us, so the middle of it is 1 us late.
            assert!(
                (found.us.value - (1.5e9 - 1.0)).abs() < 0.2,
                "{from} {found:?}"
            );
            assert!(found.pairs > 1000, "{found:?}");
        }
    }

    #[test]
    fn what_repeats_evenly_tells_nothing() {
        let even: Vec<Common> = (0..1000)
            .map(|i| Common {
                name: 0,
                us: f64::from(i) * 100.0,
            })
            .collect();
        let part = shifted(&even[300..400], 5.0e6, 0.0);
        assert_eq!(align(&even, &part, 10.0), Err(NoOffset::Ambiguous));
    }

    #[test]
    fn little_in_common_tells_nothing() {
        let a = run(100, 5);
        let b: Vec<Common> = run(100, 5)
            .iter()
            .map(|event| Common {
                name: event.name + 100,
                ..*event
            })
            .collect();
        assert_eq!(align(&a, &b, 10.0), Err(NoOffset::TooFew));
        assert_eq!(align(&a, &[], 10.0), Err(NoOffset::TooFew));
        let wild = [
            Common {
                name: 0,
                us: f64::NAN,
            },
            Common {
                name: 0,
                us: f64::INFINITY,
            },
        ];
        assert_eq!(align(&a, &wild, 10.0), Err(NoOffset::TooFew));
    }
}
