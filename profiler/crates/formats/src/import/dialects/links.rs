//! Calls and the work that they launched, by the arrows between both.

use aiprof_model::timeline::{
    Event, Id, Kind, Kinds, Ph, Sym, Time, Timeline, TrackId, slice_around,
};
use rustc_hash::FxHashMap;

/// What distinguishes an arrow from others.
type Arrow = (Sym, Sym, Id);

/// The slices of a row, by begin: begin, end, event.
type Row = Vec<(Time, Time, usize)>;

/// Gives calls and work that arrows connect the same number, where the work has none.
pub(super) fn by_flows(timeline: &mut Timeline, start: usize) {
    let kinds = Kinds::new(timeline);
    let events = timeline.events.get(start..).unwrap_or_default();
    let is_open =
        |event: &Event| event.is_slice() && event.correlation == 0 && is_work(&kinds, event);
    let has_arrows = events.iter().any(|event| event.ph == Ph::FlowStart);
    if !has_arrows || !events.iter().any(is_open) {
        return;
    }
    let mut arrows: FxHashMap<Arrow, [Option<(TrackId, Time)>; 2]> = FxHashMap::default();
    let mut rows: FxHashMap<TrackId, Row> = FxHashMap::default();
    let mut last = 0;
    for event in events {
        last = last.max(event.correlation);
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
    let pairs = arrows.into_iter().filter_map(|ends| {
        let [from, to] = ends;
        Some((at(from?)?, at(to?)?))
    });
    let is_call = |(call, _): &(usize, usize)| {
        let call = timeline.events.get(*call);
        call.is_some_and(|call| timeline.name(call.cat).ends_with("_runtime"))
    };
    // Work may have an arrow from its call, and one from the operator around that.
    let (calls, others): (Vec<_>, Vec<_>) = pairs.partition(is_call);
    for (call, work) in calls.into_iter().chain(others) {
        let is_work = |event: &&Event| event.correlation == 0 && is_work(&kinds, event);
        if timeline.events.get(work).filter(is_work).is_none() {
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
        if let Some(work) = timeline.events.get_mut(work) {
            work.correlation = number;
        }
    }
}

fn is_work(kinds: &Kinds, event: &Event) -> bool {
    let cat = kinds.of(event.cat);
    let is_one = [Kind::CAT_KERNEL, Kind::CAT_COPY, Kind::CAT_COMMAND];
    is_one.into_iter().any(|kind| cat.is(kind))
}
