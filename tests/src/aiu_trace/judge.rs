//! Finds a story's events in an output, and measures how far it is from the truth.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde_json::Value;

use super::clock::WRAP;
use super::story::{Event, Kind, Story};

/// A device event of an output.
#[derive(Clone, Debug)]
pub struct Seen<'a> {
    /// When it began, in microseconds.
    pub ts: f64,
    /// How long it took.
    pub dur: f64,
    /// Its counters, unwrapped as the output has them.
    pub cycles: [i128; 5],
    /// All of it.
    pub event: &'a Value,
}

impl Seen<'_> {
    /// When it ended.
    #[must_use]
    pub fn end(&self) -> f64 {
        self.ts + self.dur
    }
}

/// The events of a trace.
///
/// # Errors
/// When it has none.
pub fn events(trace: &Value) -> anyhow::Result<&Vec<Value>> {
    trace["traceEvents"].as_array().context("no events")
}

/// The counters of an event, as strings `TS1`..`TS5` or a list `cycles_ts`.
fn cycles(event: &Value) -> Option<[i128; 5]> {
    let args = &event["args"];
    let mut all = [0; 5];
    for (i, one) in all.iter_mut().enumerate() {
        let value = match &args["cycles_ts"] {
            Value::Array(list) => list.get(i)?,
            _ => &args[format!("TS{}", i + 1)],
        };
        *one = match value {
            Value::String(text) => text.parse().ok()?,
            other => i128::from(other.as_i64()?),
        };
    }
    Some(all)
}

/// What identifies a device event: its rank, whether it is a preparation, and its
/// counters as the device shows them.
type Key = (u64, bool, [u64; 5]);

/// Pairs each device event of the story, preparations only if `preps`, with the
/// one of the output.
///
/// # Errors
/// When one is missing, or the output has others.
pub fn pair<'a>(
    story: &'a Story,
    trace: &'a Value,
    preps: bool,
) -> anyhow::Result<Vec<(&'a Event, Seen<'a>)>> {
    let mut seen: BTreeMap<Key, Seen<'a>> = BTreeMap::new();
    for event in events(trace)?.iter().filter(|event| event["ph"] == "X") {
        let Some(cycles) = cycles(event) else {
            continue;
        };
        let name = event["name"].as_str().unwrap_or_default();
        let rank = event["args"]["rank"].as_u64().context("no rank")?;
        let shown = cycles.map(|c| c.rem_euclid(i128::from(WRAP)) as u64);
        let found = Seen {
            ts: event["ts"].as_f64().context("no ts")?,
            dur: event["dur"].as_f64().context("no dur")?,
            cycles,
            event,
        };
        let twice = seen.insert((rank, name.contains("Cmpt Prep"), shown), found);
        anyhow::ensure!(twice.is_none(), "twice: {event}");
    }
    let mut pairs = Vec::new();
    for event in story.events.iter().filter(|event| event.on_device()) {
        let prep = event.kind == Kind::Prep;
        if prep && !preps {
            continue;
        }
        let shown = event.shown().context("no counters")?;
        let found = seen.remove(&(event.rank as u64, prep, shown));
        pairs.push((
            event,
            found.with_context(|| format!("not there: {event:?}"))?,
        ));
    }
    if preps {
        anyhow::ensure!(seen.is_empty(), "{} more than there are", seen.len());
    } else {
        seen.retain(|(_, prep, _), _| !prep);
        anyhow::ensure!(seen.is_empty(), "{} more than there are", seen.len());
    }
    Ok(pairs)
}

/// The largest error of begin, end or duration, in microseconds, and its event.
#[must_use]
pub fn worst<'a>(pairs: &[(&'a Event, Seen<'_>)]) -> (f64, Option<&'a Event>) {
    let error = |event: &Event, seen: &Seen<'_>| {
        let begin = (seen.ts - event.start_us).abs();
        let end = (seen.end() - event.end_us).abs();
        begin.max(end).max((seen.dur - event.dur_us()).abs())
    };
    let all = pairs
        .iter()
        .map(|(event, seen)| (error(event, seen), Some(*event)));
    all.max_by(|a, b| a.0.total_cmp(&b.0))
        .unwrap_or((f64::NAN, None))
}

/// Checks that no event is further from the truth than this.
///
/// # Errors
/// When one is.
pub fn within(pairs: &[(&Event, Seen<'_>)], most_us: f64) -> anyhow::Result<()> {
    let (error, event) = worst(pairs);
    anyhow::ensure!(error <= most_us, "{error} us wrong: {event:?}");
    Ok(())
}

/// Checks power: each value that is shown at a reading's time is the true one.
///
/// # Errors
/// When one is not, or readings are missing.
pub fn power(story: &Story, trace: &Value, relative: f64) -> anyhow::Result<()> {
    let counters = events(trace)?
        .iter()
        .filter(|event| event["name"] == "Power");
    let mut shown: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
    for event in counters.filter(|event| event["ph"] == "C") {
        let watts = event["args"]["Watts"].as_f64().context("no watts")?;
        let at = event["ts"].as_f64().context("no ts")?;
        shown
            .entry(event["pid"].as_u64().context("no pid")?)
            .or_default()
            .push((at, watts));
    }
    for truth in &story.power {
        let near = shown.get(&(truth.rank as u64)).and_then(|all| {
            let distance = |at: f64| (at - truth.start_us).abs();
            all.iter()
                .min_by(|a, b| distance(a.0).total_cmp(&distance(b.0)))
        });
        let (at, watts) = near.with_context(|| format!("no power for {truth:?}"))?;
        anyhow::ensure!((at - truth.start_us).abs() < 0.01, "{truth:?}: {at}");
        anyhow::ensure!(
            (watts - truth.watts).abs() <= relative * truth.watts,
            "{truth:?}: {watts} W"
        );
    }
    Ok(())
}
