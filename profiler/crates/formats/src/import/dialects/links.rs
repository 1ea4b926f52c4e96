//! Calls and the work that they launched, by the arrows between both.

use aiprof_model::timeline::{
    Event, Id, Kind, Kinds, Ph, Sym, Time, Timeline, TrackId, slice_around,
};
use rustc_hash::{FxHashMap, FxHashSet};

/// What distinguishes an arrow from others.
type Arrow = (Sym, Sym, Id);

/// The slices of a row, by begin: begin, end, event.
type Row = Vec<(Time, Time, usize)>;

/// Gives calls and work that arrows connect the same number, where the work has none that another
/// slice has.
pub(super) fn by_flows(timeline: &mut Timeline, start: usize) {
    let kinds = Kinds::new(timeline);
    let events = timeline.events.get(start..).unwrap_or_default();
    let slices = || events.iter().filter(|event| event.is_slice());
    let calls = slices().filter(|event| !is_work(&kinds, event));
    let mut known: FxHashSet<u64> = calls.map(|event| event.correlation).collect();
    // That is no number.
    known.remove(&0);
    let is_open = |event: &Event, known: &FxHashSet<u64>| {
        is_work(&kinds, event) && !known.contains(&event.correlation)
    };
    if !slices().any(|event| is_open(event, &known)) {
        return;
    }
    let mut pairs = by_ends(timeline, &kinds, start);
    pairs.extend(by_slices(timeline, start));
    let is_call = |(call, _): &(usize, usize)| {
        let call = timeline.events.get(*call);
        call.is_some_and(|call| timeline.name(call.cat).ends_with("_runtime"))
    };
    // Work may have an arrow from its call, and one from the operator around that.
    let (calls, others): (Vec<_>, Vec<_>) = pairs.into_iter().partition(is_call);
    // A new number is not that of another arrow.
    let ids = events.iter().filter_map(|event| event.id.number());
    let ids = ids.filter_map(|id| u64::try_from(id).ok());
    let numbers = events.iter().map(|event| event.correlation);
    let mut last = numbers.chain(ids).max().unwrap_or(0);
    for (call, work) in calls.into_iter().chain(others) {
        let work_event = timeline.events.get(work);
        if work_event.is_none_or(|event| !is_open(event, &known)) {
            continue;
        }
        let Some(call) = timeline.events.get_mut(call) else {
            continue;
        };
        if call.correlation == 0 {
            last = last.saturating_add(1);
            call.correlation = last;
        }
        let number = call.correlation;
        known.insert(number);
        if let Some(work) = timeline.events.get_mut(work) {
            work.correlation = number;
        }
    }
}

/// The slices that arrows connect whose ends are events: from which, and to which.
fn by_ends(timeline: &Timeline, kinds: &Kinds, start: usize) -> Vec<(usize, usize)> {
    let events = timeline.events.get(start..).unwrap_or_default();
    let mut arrows: FxHashMap<Arrow, [Option<(TrackId, Time)>; 2]> = FxHashMap::default();
    let mut rows: FxHashMap<TrackId, Row> = FxHashMap::default();
    for event in events {
        let end = match event.ph {
            Ph::FlowStart => 0,
            Ph::FlowStep | Ph::FlowEnd => 1,
            _ => continue,
        };
        if kinds.of(event.cat).is(Kind::CAT_FORWARD) {
            continue;
        }
        let ends = arrows.entry((event.cat, event.name, event.id)).or_default();
        if let Some(end) = ends.get_mut(end) {
            end.get_or_insert((event.track, event.start));
        }
        rows.entry(event.track).or_default();
    }
    if arrows.is_empty() {
        return Vec::new();
    }
    for (index, event) in events
        .iter()
        .enumerate()
        .filter(|(_, event)| event.is_slice())
    {
        if let Some(row) = rows.get_mut(&event.track) {
            row.push((event.start, event.end(), start + index));
        }
    }
    rows.values_mut().for_each(|row| row.sort_unstable());
    let mut arrows: Vec<_> = arrows.into_values().collect();
    arrows.sort_unstable_by_key(|ends| ends.map(|end| end.map(|(track, at)| (at, track))));
    let at = |(track, time): (TrackId, Time)| slice_around(rows.get(&track)?, time);
    let pairs = arrows
        .into_iter()
        .filter_map(|[from, to]| Some((at(from?)?, at(to?)?)));
    pairs.collect()
}

/// The slices that arrows connect which the slices themselves name. An arrow comes from the last
/// slice of its id before its end; from the first, if none is before: clocks of devices may be
/// ahead of the host's.
fn by_slices(timeline: &Timeline, start: usize) -> Vec<(usize, usize)> {
    let mut begins: FxHashMap<&str, Vec<(Time, usize)>> = FxHashMap::default();
    let mut ends = Vec::new();
    for (index, event) in timeline.events.iter().enumerate().skip(start) {
        let Some(bound) = timeline.bound_flow(event) else {
            continue;
        };
        let place = (event.start, index);
        if bound.begins {
            begins.entry(bound.id).or_default().push(place);
        }
        if bound.ends {
            ends.push((bound.id, place));
        }
    }
    begins
        .values_mut()
        .for_each(|begins| begins.sort_unstable());
    let pair = |(id, place): (&str, (Time, usize))| {
        let begins = begins.get(id)?;
        let before = begins.partition_point(|begin| *begin < place);
        let (_, from) = *begins.get(before.saturating_sub(1))?;
        (from != place.1).then_some((from, place.1))
    };
    ends.into_iter().filter_map(pair).collect()
}

fn is_work(kinds: &Kinds, event: &Event) -> bool {
    let cat = kinds.of(event.cat);
    let is_one = [Kind::CAT_KERNEL, Kind::CAT_COPY, Kind::CAT_COMMAND];
    is_one.into_iter().any(|kind| cat.is(kind))
}
