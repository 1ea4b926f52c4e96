//! Slices of one row that overlap in part, which no viewer can draw.
//!
//! Looked at in whole nanoseconds, as they are written: what touches there touches.

use super::config::OverlapMode;
use super::messages::Messages;
use super::spare_rows::SpareRows;
use aiprof_model::timeline::{Event, Id, Length, Ph, Sym, Time, Timeline, TrackId, slice_around};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;

/// Overlaps up to this are mended by a later begin, microseconds.
const MAX_SHIFT_US: f64 = 0.005;
/// How many rows are tried for a slice, one after the other, before the farthest row that
/// any slice came to. Without this limit, a slice would look at all that it overlaps.
const MAX_TRIED: u64 = 128;

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverlapReport {
    /// Overlaps that were resolved, in the way of the mode. A slice that overlaps on the
    /// next row too counts for each.
    pub resolved: u64,
    /// Events for which the spare rows were not enough: they got further ones.
    pub beyond: u64,
    /// Overlaps that a later begin does not mend.
    pub left: u64,
}

/// Ends of the slices of a row that are open, the earliest last.
type OpenEnds = Vec<i64>;

struct Resolver<'t> {
    timeline: &'t mut Timeline,
    mode: OverlapMode,
    messages: &'t mut Messages,
    rows: FxHashMap<(Id, Id), OpenEnds>,
    spare: Spare,
    asynchronous: Vec<Event>,
    outcome: OverlapReport,
}

/// Resolves overlaps. The events are in order of begin, longer ones first.
pub fn resolve(
    timeline: &mut Timeline,
    mode: OverlapMode,
    spare: Option<u32>,
    messages: &mut Messages,
) -> OverlapReport {
    let spare = Spare::new(timeline, spare, mode);
    let count = timeline.events.len();
    let mut resolver = Resolver {
        timeline,
        mode,
        messages,
        rows: FxHashMap::default(),
        spare,
        asynchronous: Vec::new(),
        outcome: OverlapReport::default(),
    };
    for index in 0..count {
        resolver.event(index);
    }
    let (more, outcome) = (resolver.asynchronous, resolver.outcome);
    timeline.events.extend(more);
    timeline.sweep();
    outcome
}

/// Slices of a row, as it was read, by begin and depth: begin, end, the row where each is now.
type FormerRow = Vec<(Time, Time, TrackId)>;

/// Has the ends of arrows follow the slices that were moved to other rows: on the old row they
/// would be on another slice.
pub(super) fn move_arrows(timeline: &mut Timeline) {
    let homes: FxHashSet<TrackId> = timeline.moved.values().copied().collect();
    if homes.is_empty() {
        return;
    }
    let mut rows: FxHashMap<TrackId, FormerRow> = FxHashMap::default();
    let slices = timeline.events.iter();
    for event in slices.filter(|event| event.is_slice() && !event.dropped) {
        let home = timeline.home(event);
        if homes.contains(&home) {
            let slice = (event.start, event.end(), event.track);
            rows.entry(home).or_default().push(slice);
        }
    }
    for row in rows.values_mut() {
        row.sort_unstable_by_key(|(begin, end, track)| (*begin, Reverse(*end), *track));
    }
    for event in &mut timeline.events {
        if !matches!(event.ph, Ph::FlowStart | Ph::FlowStep | Ph::FlowEnd) {
            continue;
        }
        let row = rows.get(&event.track);
        if let Some(track) = row.and_then(|row| slice_around(row, event.start)) {
            event.track = track;
        }
    }
}

impl Resolver<'_> {
    fn event(&mut self, index: usize) {
        let Some(event) = self.timeline.events.get(index).copied() else {
            return;
        };
        if !event.is_slice() || event.dropped {
            return;
        }
        if self.fits(&event) {
            return;
        }
        self.outcome.resolved += 1;
        let mut event = event;
        match self.mode {
            OverlapMode::Count => {
                let name = self.timeline.name(event.name);
                let text = format_args!("Detected overlap conflict:  {name}");
                self.messages.warn("POD", text);
            }
            OverlapMode::Drop => {
                let name = self.timeline.name(event.name);
                let text = format_args!("Solving overlap conflict by dropping: {name}");
                self.messages.warn("POD", text);
                event.dropped = true;
            }
            OverlapMode::SpareRow => {
                let home = self.timeline.home(&event);
                self.move_away(&mut event);
                self.timeline.moved.insert(event.track, home);
            }
            OverlapMode::Shift => self.shift(&mut event, index),
            OverlapMode::Async => {
                // The pair's id: its number among the pairs.
                event.id = Id::Number(self.asynchronous.len() as i64);
                let mut end = event;
                end.ph = Ph::AsyncEnd;
                (end.start, end.length) = (event.end(), Length::ZERO);
                event.ph = Ph::AsyncBegin;
                event.length = Length::ZERO;
                self.asynchronous.push(end);
            }
        }
        // Arguments may have been added meanwhile.
        if let Some(place) = self.timeline.events.get_mut(index) {
            event.args = place.args;
            *place = event;
        }
    }

    /// Whether the slice nests in its row; then it is open there.
    fn fits(&mut self, event: &Event) -> bool {
        let (from, to) = times(event);
        let open = self
            .rows
            .entry((self.timeline.pid(event), self.timeline.tid(event)))
            .or_default();
        while open.last().is_some_and(|end| *end <= from) {
            open.pop();
        }
        let fits = open.last().is_none_or(|end| *end >= to);
        if fits {
            open.push(to);
        }
        fits
    }

    fn move_away(&mut self, event: &mut Event) {
        let start = match self.timeline.tid(event) {
            // Numbers lead to one another's rows.
            Id::Number(_) => (self.timeline.pid(event), Sym::EMPTY),
            Id::Token(tid) => (self.timeline.pid(event), tid),
        };
        // Ends at the latest on a row that is empty.
        for tried in 1u64.. {
            let (next, is_beyond) = self.spare.next(self.timeline, event);
            self.timeline.tracks.set_tid(event, next);
            let fits = self.fits(event);
            self.outcome.beyond += u64::from(fits && is_beyond);
            if tried > MAX_TRIED {
                self.spare.farthest.insert(start, next);
            }
            if fits {
                return;
            }
            self.outcome.resolved += 1;
            if tried == MAX_TRIED {
                let farthest = self.spare.farthest.get(&start);
                let next = farthest.copied().unwrap_or(next);
                self.timeline.tracks.set_tid(event, next);
            }
        }
    }

    /// Lets the slice begin after those that it overlaps, if that is a matter of
    /// nanoseconds.
    fn shift(&mut self, event: &mut Event, index: usize) {
        let (from, to) = times(event);
        let open = self
            .rows
            .entry((self.timeline.pid(event), self.timeline.tid(event)))
            .or_default();
        let latest = open.partition_point(|end| *end > to);
        let Some(end) = open.get(latest).copied() else {
            return;
        };
        let by = end.saturating_sub(from) as f64 / 1000.0;
        if by >= MAX_SHIFT_US {
            self.outcome.left += 1;
            let name = self.timeline.name(event.name);
            self.messages.warn(
                "POD",
                format_args!(
                    "Detected overlap of {name} exceeds the threshold/limit {MAX_SHIFT_US} us. \
                     Overlap of {by} us: increase threshold or use different overlap res option."
                ),
            );
            return;
        }
        let by = (by * 1000.0 + 1.5).round() / 1000.0;
        let mut members = format!("\"orig_ts\":{}", absolute(self.timeline, event));
        event.shift(by);
        if by > event.dur() {
            self.outcome.left += 1;
        } else {
            members += &format!(",\"orig_dur\":{}", event.dur());
            event.set_dur(event.dur() - by);
        }
        self.timeline.add_args(index, &members);
        self.fits(event);
    }
}

fn absolute(timeline: &Timeline, event: &Event) -> String {
    let mut text = Vec::new();
    let origin = timeline.origin_of(event);
    let _ = aiprof_model::timeline::number::write_time(&mut text, origin, event.start);
    String::from_utf8_lossy(&text).into_owned()
}

/// Begin and end, nanoseconds.
fn times(event: &Event) -> (i64, i64) {
    (event.start.nearest_nanos(), event.end().nearest_nanos())
}

/// Rows that slices are moved to.
struct Spare {
    /// Spare rows of rows with numbers; `None`: no limit, the next row is the next
    /// number.
    rows: Option<SpareRows>,
    /// The farthest row that was tried, by process and, of names, the first row.
    farthest: FxHashMap<(Id, Sym), Id>,
}

impl Spare {
    fn new(timeline: &Timeline, limit: Option<u32>, mode: OverlapMode) -> Self {
        Self {
            // Other modes move nothing.
            rows: limit.map(|limit| match mode {
                OverlapMode::SpareRow => SpareRows::new(timeline, limit),
                _ => SpareRows::default(),
            }),
            farthest: FxHashMap::default(),
        }
    }

    /// The next row, and whether it is beyond those that were asked for.
    fn next(&mut self, timeline: &mut Timeline, event: &Event) -> (Id, bool) {
        match (timeline.tid(event), &mut self.rows) {
            (Id::Number(tid), None) => (Id::Number(tid.wrapping_add(1)), false),
            (Id::Number(tid), Some(rows)) => match rows.next(timeline.pid(event), tid) {
                Some(next) => (Id::Number(next), false),
                None => (Id::Number(rows.add(timeline.pid(event), tid)), true),
            },
            (Id::Token(sym), _) => {
                let text = timeline.name(sym).trim_matches('"');
                let name = format!("\"{}\"", primed(text));
                (Id::Token(timeline.names.intern(&name)), false)
            }
        }
    }
}

/// The name of the row after a named one: a prime more, from four on their number.
fn primed(name: &str) -> String {
    if let Some((base, digits)) = name.rsplit_once('\'')
        && let Ok(primes) = digits.parse::<u32>()
    {
        return format!("{base}'{}", primes.saturating_add(1));
    }
    match name.strip_suffix("'''") {
        Some(base) => format!("{base}'4"),
        None => format!("{name}'"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::messages::Level;
    use aiprof_model::timeline::Track;

    fn resolve(timeline: &mut Timeline, mode: OverlapMode, spare: Option<u32>) -> OverlapReport {
        super::resolve(timeline, mode, spare, &mut Messages::new(Level::Warn))
    }

    fn slices(times: &[(f64, f64)]) -> Timeline {
        let mut timeline = Timeline::default();
        for (ts, dur) in times {
            let track = Track::row(Id::Number(0), Id::Number(1000));
            let track = timeline.tracks.intern(track);
            let mut event = Event::new(Ph::Complete, Sym::EMPTY, track, Time::from_micros(*ts));
            event.set_dur(*dur);
            timeline.events.push(event);
        }
        timeline
    }

    fn tids(timeline: &Timeline) -> Vec<i64> {
        timeline
            .events
            .iter()
            .filter_map(|e| timeline.tid(e).number())
            .collect()
    }

    #[test]
    fn nested_and_touching_slices_stay() {
        let mut t = slices(&[(0.0, 10.0), (0.0, 5.0), (5.0, 5.0), (6.0, 1.0), (10.0, 1.0)]);
        assert_eq!(
            resolve(&mut t, OverlapMode::SpareRow, Some(5)),
            OverlapReport::default()
        );
        // Less than half a nanosecond is none when written.
        let mut t = slices(&[(0.0, 10.0004), (10.0001, 5.0)]);
        assert_eq!(
            resolve(&mut t, OverlapMode::SpareRow, Some(5)),
            OverlapReport::default()
        );
    }

    #[test]
    fn overlapping_ones_go_to_the_next_rows() {
        let mut t = slices(&[
            (0.0, 10.0),
            (1.0, 10.0),
            (2.0, 10.0),
            (10.0, 5.0),
            (11.5, 1.0),
        ]);
        let outcome = resolve(&mut t, OverlapMode::SpareRow, Some(5));
        assert_eq!((outcome.resolved, outcome.beyond), (3, 0));
        assert_eq!(tids(&t), [1000, 1001, 1002, 1000, 1000]);
    }

    #[test]
    fn arrows_go_with_their_slices() {
        let mut t = slices(&[(0.0, 10.0), (5.0, 10.0), (20.0, 1.0)]);
        let track = t.events[0].track;
        let at = [2.0, 5.0, 12.0, 20.0];
        for time in at {
            let arrow = Event::new(Ph::FlowStart, Sym::EMPTY, track, Time::from_micros(time));
            t.events.push(arrow);
        }
        resolve(&mut t, OverlapMode::SpareRow, Some(5));
        move_arrows(&mut t);
        assert_eq!(tids(&t), [1000, 1001, 1000, 1000, 1001, 1001, 1000]);
    }

    #[test]
    fn many_at_once_get_as_many_rows() {
        let times: Vec<(f64, f64)> = (0..20).map(|i| (f64::from(i), 100.0)).collect();
        let mut t = slices(&times);
        let outcome = resolve(&mut t, OverlapMode::SpareRow, Some(5));
        assert_eq!((outcome.resolved, outcome.beyond), (190, 14));
        assert_eq!(tids(&t), (1000..1020).collect::<Vec<_>>());
        let mut t = slices(&times);
        assert_eq!(resolve(&mut t, OverlapMode::SpareRow, None).resolved, 190);
        assert_eq!(tids(&t), (1000..1020).collect::<Vec<_>>());
    }

    #[test]
    fn other_modes_do_as_they_are_called() {
        let times = [(0.0, 10.0), (1.0, 10.0), (10.0, 1.0)];
        let mut t = slices(&times);
        assert_eq!(resolve(&mut t, OverlapMode::Drop, None).resolved, 1);
        assert_eq!(t.events.len(), 2);
        let mut t = slices(&times);
        assert_eq!(resolve(&mut t, OverlapMode::Count, None).resolved, 1);
        assert_eq!(t.events.len(), 3);
        let mut t = slices(&times);
        resolve(&mut t, OverlapMode::Async, None);
        let kinds: Vec<Ph> = t.events.iter().map(|e| e.ph).collect();
        assert_eq!(
            kinds,
            [Ph::Complete, Ph::AsyncBegin, Ph::Complete, Ph::AsyncEnd]
        );
        assert_eq!((t.events[3].ts(), t.events[1].id), (11.0, t.events[3].id));
        let mut t = slices(&[(0.0, 10.0), (9.998, 10.0)]);
        resolve(&mut t, OverlapMode::Shift, None);
        let moved = t.events[1];
        // 0.002 and 1.5 ns, rounded: acelyzer adds round(0.002 + 0.0015, 3) = 0.004.
        assert!((moved.ts() - 10.002).abs() < 1e-9 && (moved.end_us() - 19.998).abs() < 1e-9);
        assert!(t.arg(&moved, "orig_ts").is_some());
        let mut t = slices(&times);
        assert_eq!(resolve(&mut t, OverlapMode::Shift, None).left, 1);
    }

    #[test]
    fn rows_of_many_overlapping_slices_are_found_soon() {
        // Each would look at the rows of all before it.
        let many = 20_000;
        let times: Vec<_> = (0..many).map(|i| (f64::from(i), f64::from(many))).collect();
        for (spare, is_named) in [(None, false), (Some(5), false), (Some(5), true)] {
            let mut t = slices(&times);
            let name = t.names.intern("\"row\"");
            if is_named {
                let Timeline { events, tracks, .. } = &mut t;
                for event in events {
                    tracks.set_tid(event, Id::Token(name));
                }
            }
            resolve(&mut t, OverlapMode::SpareRow, spare);
            let rows: rustc_hash::FxHashSet<Id> = t.events.iter().map(|e| t.tid(e)).collect();
            assert_eq!(rows.len(), times.len());
            assert!(t.names.iter().all(|(_, name)| name.len() < 20));
        }
    }

    #[test]
    fn rows_of_many_threads_are_found_soon() {
        let many = 50_000;
        let mut t = slices(&vec![(0.0, 2.0); many]);
        let Timeline { events, tracks, .. } = &mut t;
        for (tid, event) in (0..).zip(events) {
            tracks.set_tid(event, Id::Number(tid));
        }
        let mut late = t.events[0];
        late.set_ts(1.0);
        t.events.push(late);
        assert_eq!(resolve(&mut t, OverlapMode::SpareRow, Some(5)).resolved, 1);
        assert_eq!(tids(&t).last(), Some(&(many as i64)));
    }

    #[test]
    fn named_rows_are_followed_by_short_names() {
        let mut name = "row".to_owned();
        let mut names = Vec::new();
        for _ in 0..5 {
            name = primed(&name);
            names.push(name.clone());
        }
        assert_eq!(names, ["row'", "row''", "row'''", "row'4", "row'5"]);
    }

    #[test]
    fn slices_at_the_edge_of_times_are_left() {
        let mut t = slices(&[(-9e12, 1.8e13), (-8e12, 1e12), (-7.5e12, 1e19)]);
        assert_eq!(resolve(&mut t, OverlapMode::Shift, None).left, 1);
    }
}
