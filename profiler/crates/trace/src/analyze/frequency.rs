//! Frequencies of device counters by single kernels: by the length of each, and by the
//! time since the kernel before it.
//!
//! These are quick checks of the trace and of `--freq`. The clock that times are
//! calibrated with is fitted to all events, see [`aiprof_model::calibrate::clock`].

use crate::analyze::messages::{Level, Messages};
use crate::analyze::utilization::python::{repr, round};
use aiprof_model::calibrate::clock::wraps;
use aiprof_model::calibrate::cycles::count_wraps;
use aiprof_model::calibrate::line_fit::median;
use aiprof_model::timeline::{Event, Id, Kind, Kinds, Timeline};
use rustc_hash::FxHashMap;

/// Relative difference from which on something is wrong. acelyzer's limit.
const TOLERANCE: f64 = 0.1;

/// Width of the counters, bits.
const BITS: u32 = 32;
/// Ticks of one period of the counter.
const PERIOD: f64 = (1u64 << BITS) as f64;

/// Frequencies over all kernels, MHz.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Least of any kernel.
    pub min: f64,
    /// Mean of the row groups' means.
    pub mean: f64,
    /// Most of any kernel.
    pub max: f64,
}

impl Estimate {
    /// How far they are apart, relative to their mean.
    fn relative_range(&self) -> f64 {
        (self.max - self.min) / self.mean
    }
}

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FrequencyReport {
    /// By ticks and length of kernels; `None`: no kernel has both.
    pub by_length: Option<Estimate>,
    /// By ticks and time from one kernel's begin to the next one's.
    pub by_interval: Option<Estimate>,
    /// Kernels that begin when the one before began.
    pub identical: usize,
    /// Kernels that begin before the one before began: out of order.
    pub reversed: usize,
    /// Kernels without length, which give no frequency.
    pub without_length: usize,
}

/// A kernel with its counters.
#[derive(Clone, Copy)]
struct CountedKernel {
    place: u32,
    ts: f64,
    mhz: f64,
    begin: i128,
}

#[derive(Clone, Copy)]
struct Running {
    min: f64,
    max: f64,
    sum: f64,
    count: usize,
}

impl Running {
    const NONE: Self = Self {
        min: f64::INFINITY,
        max: f64::NEG_INFINITY,
        sum: 0.0,
        count: 0,
    };

    fn add(&mut self, mhz: f64) {
        self.min = self.min.min(mhz);
        self.max = self.max.max(mhz);
        self.sum += mhz;
        self.count += 1;
    }
}

/// Estimates both frequencies from the slices with `Cmpt Exec` in their name, and reports
/// what acelyzer reports about them; `mhz` is the frequency that was given.
///
/// Takes the events as they were read, before calibration (which makes lengths agree
/// with the counters), each row group's in the file's order. Wraps of the counter
/// between two kernels are counted by the kernels' lengths; acelyzer does not, and
/// prints negative frequencies.
pub fn run(
    timeline: &Timeline,
    kinds: &Kinds,
    mhz: f64,
    messages: &mut Messages,
) -> FrequencyReport {
    let mut outcome = FrequencyReport::default();
    let mut places: FxHashMap<Id, u32> = FxHashMap::default();
    let mut kernels = Vec::new();
    for event in &timeline.events {
        if event.dropped || !event.is_slice() || !kinds.of(event.name).is(Kind::HAS_EXEC) {
            continue;
        }
        let Some((begin, ticks)) = ticks(timeline, event) else {
            continue;
        };
        if event.dur() <= 0.0 {
            outcome.without_length += 1;
            continue;
        }
        let next = places.len() as u32;
        kernels.push(CountedKernel {
            place: *places.entry(timeline.pid(event)).or_insert(next),
            ts: event.ts(),
            mhz: ticks as f64 / event.dur(),
            begin,
        });
    }
    kernels.sort_by_key(|kernel| kernel.place);
    let (mut by_length, mut by_interval) = (Vec::new(), Vec::new());
    for kernels in kernels.chunk_by(|a, b| a.place == b.place) {
        let mut lengths = Running::NONE;
        kernels.iter().for_each(|kernel| lengths.add(kernel.mhz));
        by_length.push(lengths);
        by_interval.push(intervals(kernels, &mut outcome));
    }
    outcome.by_length = estimate(&by_length);
    outcome.by_interval = estimate(&by_interval);
    report(&outcome, mhz, messages);
    outcome
}

/// Counter at the kernel's begin, and how far it counted until its end.
fn ticks(timeline: &Timeline, event: &Event) -> Option<(i128, i128)> {
    let device = timeline.device(event)?;
    let raw = device.stamps.map(|stamp| u64::try_from(stamp).unwrap_or(0));
    let (stamps, _) = count_wraps(raw, BITS);
    let (from, to) = device.phase.ends();
    let (begin, end) = (*stamps.get(from)?, *stamps.get(to)?);
    Some((begin, end - begin))
}

/// Frequencies by the intervals between one row group's kernels.
fn intervals(kernels: &[CountedKernel], outcome: &mut FrequencyReport) -> Running {
    let mut all: Vec<f64> = kernels.iter().map(|kernel| kernel.mhz).collect();
    let typical = median(&mut all);
    let mut found = Running::NONE;
    // acelyzer takes the length of a kernel of which there is no interval.
    if let Some(first) = kernels.first() {
        found.add(first.mhz);
    }
    for pair in kernels.windows(2) {
        let [before, this] = pair else { continue };
        let us = this.ts - before.ts;
        if us > 0.0 {
            let ticks = (this.begin - before.begin) as f64;
            found.add((ticks + wraps(ticks, typical * us, BITS) * PERIOD) / us);
        } else {
            outcome.identical += usize::from(us == 0.0);
            outcome.reversed += usize::from(us < 0.0);
            found.add(this.mhz);
        }
    }
    found
}

fn estimate(groups: &[Running]) -> Option<Estimate> {
    let means = groups.iter().map(|group| group.sum / group.count as f64);
    let mean = means.sum::<f64>() / groups.len() as f64;
    let mins = groups.iter().map(|group| group.min);
    let maxes = groups.iter().map(|group| group.max);
    let found = Estimate {
        min: mins.fold(f64::INFINITY, f64::min),
        mean,
        max: maxes.fold(0.0, f64::max),
    };
    (mean.is_finite() && mean.abs() > 1e-9).then_some(found)
}

fn report(outcome: &FrequencyReport, mhz: f64, messages: &mut Messages) {
    let found = [
        ("duration", outcome.by_length),
        ("interval", outcome.by_interval),
    ];
    for (key, found) in found {
        let Some(found) = found else { continue };
        let range = round(found.relative_range(), 3);
        let ratio = round(mhz / found.mean, 3);
        let level = match range > TOLERANCE || (1.0 - ratio).abs() > TOLERANCE {
            true => Level::Warn,
            false => Level::Info,
        };
        let text = |mhz: f64| repr(round(mhz, 2));
        messages.say(
            level,
            "FREQ",
            format_args!(
                "FREQ: Detected Event-{key}-based frequency (min/mean/max): {} {} {} ; \
                 rel_range={}, input_soc_freq/detected={}",
                text(found.min),
                text(found.mean),
                text(found.max),
                repr(range),
                repr(ratio)
            ),
        );
    }
    // Those that go back are among them, as in acelyzer.
    let identical = outcome.identical + outcome.reversed;
    if identical > 0 {
        messages.warn(
            "FREQ",
            format_args!(
                "Detected {identical} identical timestamps between consecutive events. This \
                 suggests a timestamp issue in the trace and causes unreliable interval-based \
                 frequency calculation."
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::timeline::Dialect;
    use aiprof_testkit::timelines as testing;

    fn found(kernels: &[(u32, f64, f64, [i64; 5])]) -> (FrequencyReport, Vec<String>) {
        let mut timeline = testing::timeline(Dialect::Flex);
        for (rank, ts, dur, stamps) in kernels {
            let index = testing::slice(&mut timeline, "a Cmpt Exec", *rank, *ts, *dur);
            testing::count(&mut timeline, index, *stamps, -1);
        }
        let mut messages = Messages::new(Level::Info);
        let outcome = run(&timeline, &Kinds::new(&timeline), 1000.0, &mut messages);
        let said = messages.iter().map(|message| message.text.clone());
        (outcome, said.collect())
    }

    fn stamps(begin: i64, ticks: i64) -> [i64; 5] {
        [
            begin - 2,
            begin - 1,
            begin,
            begin + ticks,
            begin + ticks + 1,
        ]
        .map(|s| s & 0xffff_ffff)
    }

    const SAID: [&str; 3] = [
        "FREQ: Detected Event-duration-based frequency (min/mean/max): 559.0 562.72 565.0 ; \
         rel_range=0.011, input_soc_freq/detected=1.777",
        "FREQ: Detected Event-interval-based frequency (min/mean/max): 559.0 562.5 565.0 ; \
         rel_range=0.011, input_soc_freq/detected=1.778",
        "Detected 2 identical timestamps between consecutive events. This suggests a timestamp \
         issue in the trace and causes unreliable interval-based frequency calculation.",
    ];

    /// acelyzer 1.3.0 prints these lines for the same kernels.
    #[test]
    fn frequencies_are_those_of_acelyzer() {
        let (outcome, said) = found(&[
            (0, 1000.0, 10.0, stamps(5_000_000, 5600)),
            (0, 2000.0, 10.0, stamps(5_560_000, 5610)),
            (1, 2000.0, 20.0, stamps(9_000_000, 11_300)),
            (0, 2000.0, 10.0, stamps(5_570_000, 5590)),
            (0, 4000.5, 40.0, stamps(6_690_000, 22_444)),
            (0, 3000.5, 40.0, stamps(6_130_000, 22_444)),
        ]);
        assert_eq!(said, SAID);
        assert_eq!((outcome.identical, outcome.reversed), (1, 1));
    }

    /// By hand: 557 ticks per microsecond through all wraps. (acelyzer 1.3.0 does not
    /// count them.)
    #[test]
    fn wraps_of_the_counter_are_counted() {
        let kernels: Vec<_> = (0..40i64)
            .map(|i| {
                (
                    0,
                    3_000_001.0 * i as f64,
                    10.0,
                    stamps(557 * 3_000_001 * i, 5570),
                )
            })
            .collect();
        let (outcome, said) = found(&kernels);
        for estimate in [outcome.by_length, outcome.by_interval] {
            let estimate = estimate.unwrap();
            assert!((estimate.min - 557.0).abs() < 1e-6 && (estimate.max - 557.0).abs() < 1e-6);
        }
        assert!(
            said[1].contains("557.0 557.0 557.0 ; rel_range=0.0"),
            "{said:?}"
        );
    }

    #[test]
    fn nothing_to_measure_is_nothing_said() {
        assert_eq!(found(&[]).1, [""; 0]);
        let (outcome, said) = found(&[(0, 0.0, 0.0, stamps(10, 10)), (0, 1.0, 0.0, [-1; 5])]);
        assert_eq!((outcome.without_length, said.len()), (2, 0));
        let (_, said) = found(&[(0, 0.0, f64::MAX, [i64::MAX; 5]), (0, 1e-300, 1.0, [0; 5])]);
        assert!(said.iter().all(|text| !text.contains("nan")), "{said:?}");
    }
}
