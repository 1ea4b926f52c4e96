//! Power counters, from the charge that devices count.
//!
//! An event may carry the charge counter (`Power`) as it was when one of its phases
//! ended. Two readings of a device and the time between them give its mean power.
//! What one unit of charge is worth depends on what wrote the trace, hence the
//! [`PowerScale`].

use crate::analyze::config::{PowerScale, PowerSource};
use crate::analyze::energy;
use crate::analyze::energy_fit::{MOST_WATTS, Period, Wraps};
use crate::analyze::messages::Messages;
use crate::analyze::utilization::python::{json, round};
use aiprof_model::parallel;
use aiprof_model::timeline::number::SAME_US;
use aiprof_model::timeline::{Event, Id, Kind, Kinds, Ph, Sym, Time, Timeline, Track};
use rustc_hash::{FxHashMap, FxHashSet};

/// Watts of one unit of charge per microsecond, by acelyzer 1.0.2 to 1.3.0: 12 V, and
/// 512 units per ampere.
const WATTS_PER_UNIT: f64 = 12.0 / 512.0;

/// Factors on that which are known, and who used them. 1.0.0 took 5.37/512 per
/// nanosecond.
const KNOWN: [(f64, &str); 2] = [
    (1.0, "acelyzer 1.0.2 to 1.3.0"),
    (0.00537, "acelyzer 1.0.0"),
];

/// Units of charge after which the counter wraps: 32 bits.
const CHARGE_PERIOD: f64 = 4_294_967_296.0;

/// Less than any card in use takes.
const LEAST_WATTS: f64 = 1.0;

/// Shorter events show nothing, microseconds. acelyzer's limit for TS4.
const SHORTEST: f64 = 0.1;

/// What is wanted.
#[derive(Clone, Copy, Debug)]
pub struct PowerOptions {
    /// Counter value at which charge was read.
    pub source: PowerSource,
    /// What a unit of charge is worth.
    pub scale: PowerScale,
    /// Leaves out readings that follow a computation with a computation or an input
    /// transfer, or an output transfer with an input transfer (`-k`).
    pub skip: bool,
    /// Count at most one wrap of the charge counter between readings, as acelyzer does.
    pub is_literal: bool,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct PowerReport {
    /// Readings, with one at the begin of each row group as acelyzer counts for TS4.
    pub readings: usize,
    /// Periods between readings, by row group and time; a counter each.
    pub periods: Vec<Period>,
    /// How many of them are bad.
    pub bad: usize,
    /// The factor that was used, see [`PowerScale`].
    pub factor: f64,
    /// Wraps of the charge counter over long periods.
    pub(crate) wraps: Wraps,
}

/// One reading of the charge counter.
#[derive(Clone, Copy)]
struct ChargeReading {
    place: u32,
    name: Sym,
    ts: f64,
    /// TS3.
    cycles: i64,
    charge: i64,
}

/// Where readings are from.
struct Group {
    pid: Id,
    rank: u32,
    mhz: f64,
}

/// Two readings between which power is known.
#[derive(Clone, Copy)]
struct Pair {
    from: ChargeReading,
    to: ChargeReading,
    charge: i64,
    /// Time between them.
    us: f64,
}

impl Pair {
    /// By a factor of 1.
    fn watts(&self) -> f64 {
        self.charge as f64 * WATTS_PER_UNIT / self.us
    }
}

/// Adds power counters: each holds from a reading to the next one. Takes calibrated
/// events in any order; appends the counters, those of a row group together and by
/// time.
///
/// TS4: counters `Power` in watts. TS3: counters `Power <kind of operation>` in
/// charge per cycle, as acelyzer makes them; the outcome's periods are in watts.
pub fn run(
    timeline: &mut Timeline,
    kinds: &Kinds,
    options: &PowerOptions,
    messages: &mut Messages,
) -> PowerReport {
    let (readings, groups) = readings(timeline, kinds, options.source);
    let mut pairs = Vec::new();
    let by_group = readings.chunk_by(|a, b| a.place == b.place);
    for (readings, group) in by_group.zip(&groups) {
        pair(readings, kinds, options, group.mhz, &mut pairs);
    }
    let factor = choose(options.scale, &pairs, messages);
    let mut outcome = PowerReport {
        readings: readings.len(),
        factor,
        ..PowerReport::default()
    };
    if options.source == PowerSource::Ts4 {
        outcome.readings += groups.len();
    }
    outcome.periods = periods(&pairs, &groups, factor);
    if !options.is_literal {
        outcome.wraps = energy::count_wraps(timeline, kinds, &mut outcome.periods);
    }
    outcome.bad = outcome
        .periods
        .iter()
        .filter(|period| period.is_bad)
        .count();
    match options.source {
        PowerSource::Ts4 => add_watts(timeline, &outcome.periods),
        PowerSource::Ts3 => add_charge(timeline, &outcome.periods, &pairs),
    }
    report(&outcome, options, messages);
    outcome
}

fn periods(pairs: &[Pair], groups: &[Group], factor: f64) -> Vec<Period> {
    // Counters that go beyond 32 bits do not wrap there.
    let wide = pairs
        .iter()
        .filter(|pair| pair.to.charge > i64::from(u32::MAX));
    let wide: FxHashSet<u32> = wide.map(|pair| pair.from.place).collect();
    let periods = pairs.iter().filter_map(|pair| {
        let group = groups.get(pair.from.place as usize)?;
        let watts = pair.watts() * factor;
        Some(Period {
            pid: group.pid,
            rank: group.rank,
            start_us: pair.from.ts,
            end_us: pair.to.ts,
            watts,
            is_bad: watts > MOST_WATTS,
            wrap_watts: match wide.contains(&pair.from.place) {
                true => f64::INFINITY,
                false => CHARGE_PERIOD * WATTS_PER_UNIT / pair.us * factor,
            },
            are_wraps_unknown: false,
        })
    });
    periods.collect()
}

fn report(outcome: &PowerReport, options: &PowerOptions, messages: &mut Messages) {
    // The counters of TS3 are not watts.
    if outcome.bad > 0 && options.source == PowerSource::Ts4 {
        messages.warn(
            "PEC",
            format_args!(
                "PEC encountered {} bad power events set to 0.0W. Enable DEBUG (-D 3) to display.",
                outcome.bad
            ),
        );
        for period in outcome.periods.iter().filter(|period| period.is_bad) {
            let (watts, start, end) = (period.watts, period.start_us, period.end_us);
            messages.debug(
                "PEC",
                format_args!("POWER: BAD event a,b: {watts} W from {start} to {end} us"),
            );
        }
    }
    let (wraps, all) = (outcome.wraps, outcome.periods.len());
    if wraps.counted > 0 {
        messages.info(
            "PEC",
            format_args!(
                "PEC: in {} of {all} periods the charge counter wrapped more than once; the wraps \
                 were estimated from the power in other periods",
                wraps.counted
            ),
        );
    }
    if wraps.unknown > 0 {
        messages.warn(
            "PEC",
            format_args!(
                "PEC: in {} of {all} periods the charge counter may have wrapped an unknown number \
                 of times; their power is a lower bound, and no energy is computed from them",
                wraps.unknown
            ),
        );
    }
    let (out, of) = (outcome.periods.len(), outcome.readings);
    messages.info("PEC", format_args!("PEC event stats o/i: {out} / {of}"));
}

/// All readings, by row group in the order these appear, and time.
fn readings(
    timeline: &Timeline,
    kinds: &Kinds,
    source: PowerSource,
) -> (Vec<ChargeReading>, Vec<Group>) {
    let (mut places, mut groups) = (FxHashMap::default(), Vec::new());
    let mut readings = Vec::new();
    for event in &timeline.events {
        if event.dropped || !matches!(event.ph, Ph::Complete | Ph::AsyncBegin) {
            continue;
        }
        let Some(device) = timeline.device(event).filter(|device| device.power >= 0) else {
            continue;
        };
        let (index, least) = match source {
            PowerSource::Ts3 => (2, f64::NEG_INFINITY),
            PowerSource::Ts4 => (3, SHORTEST),
        };
        if kinds.of(event.name).is(Kind::HAS_PREP) || event.dur() <= least {
            continue;
        }
        let Some(ts) = timeline.stamp_time(event, index) else {
            continue;
        };
        let place = *places.entry(timeline.pid(event)).or_insert_with(|| {
            groups.push(Group {
                pid: timeline.pid(event),
                rank: timeline.rank(event),
                mhz: timeline.mhz(event),
            });
            groups.len() as u32 - 1
        });
        let [_, _, cycles, ..] = device.stamps;
        readings.push(ChargeReading {
            place,
            name: event.name,
            ts,
            cycles,
            charge: device.power,
        });
    }
    readings.sort_by(|a, b| {
        let order = match source {
            PowerSource::Ts3 => a.cycles.cmp(&b.cycles),
            PowerSource::Ts4 => a.ts.total_cmp(&b.ts),
        };
        a.place.cmp(&b.place).then(order)
    });
    (readings, groups)
}

/// Pairs of readings of one row group.
fn pair(
    readings: &[ChargeReading],
    kinds: &Kinds,
    options: &PowerOptions,
    mhz: f64,
    pairs: &mut Vec<Pair>,
) {
    let mut before: Option<ChargeReading> = None;
    for this in readings {
        // A device that counts no charge gives zero.
        let Some(from) = before.filter(|from| from.charge != 0) else {
            before = Some(*this);
            continue;
        };
        let cycles = this.cycles.saturating_sub(from.cycles);
        let (us, is_same) = match options.source {
            PowerSource::Ts3 => (cycles as f64 / mhz, cycles == 0),
            PowerSource::Ts4 => (this.ts - from.ts, this.ts - from.ts < SAME_US),
        };
        let skips = options.skip && is_skipped(kinds, from.name, this.name);
        if this.charge == 0 || is_same || skips {
            continue;
        }
        pairs.push(Pair {
            from,
            to: *this,
            charge: charge_between(from.charge, this.charge),
            us,
        });
        before = Some(*this);
    }
}

/// Charge from one reading to the next of a counter of 32 bits that wraps at most once.
fn charge_between(from: i64, to: i64) -> i64 {
    match to.saturating_sub(from) {
        charge if charge >= 0 => charge,
        wrapped => wrapped.rem_euclid(1 << 32),
    }
}

fn is_skipped(kinds: &Kinds, from: Sym, to: Sym) -> bool {
    let (from, to) = (kinds.of(from), kinds.of(to));
    match (from.is(Kind::HAS_EXEC), from.is(Kind::DMA_OUT)) {
        (true, _) if to.is(Kind::HAS_EXEC) => true,
        (false, false) => false,
        _ => to.is(Kind::DMA_IN),
    }
}

/// Chooses the factor, and reports which and why if there was a choice.
fn choose(scale: PowerScale, pairs: &[Pair], messages: &mut Messages) -> f64 {
    if let PowerScale::Fixed(factor) = scale {
        return factor;
    }
    let charged: Vec<f64> = pairs.iter().map(Pair::watts).filter(|w| *w > 0.0).collect();
    let possible = |factor: f64| {
        let fits = |watts: &&f64| (LEAST_WATTS..=MOST_WATTS).contains(&(**watts * factor));
        charged.iter().filter(fits).count()
    };
    let counts = KNOWN.map(|(factor, who)| (possible(factor), factor, who));
    let all = charged.len();
    // Among equal counts, the first wins.
    let Some((count, factor, who)) = counts.into_iter().rev().max_by_key(|known| known.0) else {
        return 1.0;
    };
    if all == 0 {
        return 1.0;
    }
    let range = format!("{LEAST_WATTS} to {MOST_WATTS} W");
    if count * 2 < all {
        messages.warn(
            "PEC",
            format_args!(
                "PEC: no known charge counter scale gives {range} in half of the {all} intervals; \
                 scale 1 ({}) is used, and the power is doubtful",
                KNOWN[0].1
            ),
        );
        return 1.0;
    }
    let others = counts.iter().filter(|other| other.1 != factor);
    let others: Vec<String> = others
        .map(|(count, factor, who)| format!("{count} with scale {factor} ({who})"))
        .collect();
    messages.info(
        "PEC",
        format_args!(
            "PEC: charge counter scale {factor} ({who}): {count} of {all} intervals are within \
             {range}, {}",
            others.join(", ")
        ),
    );
    factor
}

/// The counters of periods in watts.
fn add_watts(timeline: &mut Timeline, periods: &[Period]) {
    let name = timeline.names.intern("Power");
    let cat = timeline.names.intern("Power4");
    let texts = |periods: &[Period]| -> Vec<String> {
        let text = |period: &Period| match period.is_bad {
            true => "0".into(),
            false => json(period.watts),
        };
        periods.iter().map(text).collect()
    };
    // Texts of numbers are most of the work.
    let (some, others) = periods.split_at(periods.len() / 2);
    let (some, others) = parallel::both(|| texts(some), || texts(others));
    timeline.events.reserve(periods.len());
    for (period, watts) in periods.iter().zip(some.iter().chain(&others)) {
        add(timeline, period, (name, cat), period.start_us, watts);
    }
}

/// The counters of periods in charge per cycle, and the zeros before the next ones.
fn add_charge(timeline: &mut Timeline, periods: &[Period], pairs: &[Pair]) {
    let cat = timeline.names.intern("Power3");
    timeline.events.reserve(2 * periods.len());
    for (period, pair) in periods.iter().zip(pairs) {
        let kind = kind_of(timeline.name(pair.from.name));
        let name = timeline.names.intern(&format!("Power {kind}"));
        let cycles = pair.to.cycles.saturating_sub(pair.from.cycles);
        let value = json(round(pair.charge as f64 / cycles as f64, 3));
        add(timeline, period, (name, cat), period.start_us, &value);
        add(timeline, period, (name, cat), period.end_us - 0.001, "0.0");
    }
}

fn kind_of(name: &str) -> &'static str {
    let kinds = ["DmaI", "DmaO", "AllGather", "AllReduce", "Cmpt Exec"];
    let found = kinds.into_iter().find(|kind| name.contains(kind));
    found.unwrap_or("Other")
}

fn add(timeline: &mut Timeline, period: &Period, (name, cat): (Sym, Sym), ts: f64, watts: &str) {
    let track = timeline.tracks.intern(Track {
        rank: period.rank,
        ..Track::row(period.pid, Id::NONE)
    });
    let mut counter = Event::new(Ph::Counter, name, track, Time::from_micros(ts));
    counter.cat = cat;
    counter.args = timeline.texts.join(&["\"Watts\":", watts]);
    timeline.events.push(counter);
}

#[cfg(test)]
#[path = "power_tests.rs"]
mod tests;
