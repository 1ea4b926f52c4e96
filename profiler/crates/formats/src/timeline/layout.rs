//! Where the events of a recording are drawn: rows with numbers, and that what is on
//! one is properly nested.
//!
//! Viewers draw one row for a process and thread, and want the spans of a row beside or
//! inside each other. Calls of a thread are so already, except in damaged recordings. What
//! devices do overlaps: such a track has as many rows, its *lanes*, as it needs. A span
//! goes to the first lane in which it lies beside or inside of what is there already.

use super::lanes::{self, Nest};
use aiprof_model::json::{self, Object};
use aiprof_model::profile::{LossKind, Losses};
use aiprof_model::timeline::{
    Event, Id, Length, Time, TrackKind,
    recorded::{Group, Recorded},
};
use aiprof_model::visible;
use std::collections::BTreeMap;

/// Numbers of what is no process, and of rows that are no threads: larger than any that
/// the kernel gives out (`FUTEX_TID_MASK`), and readable.
const FIRST_GROUP: i64 = 1_100_000_000;
const FIRST_LANE: i64 = 1_200_000_000;
/// Added to a thread's number for the row of its samples.
pub(crate) const SAMPLES: i64 = 2_000_000_000;
/// Most lanes of all tracks.
const MAX_ALL_LANES: i64 = 1 << 20;
/// Groups that are no processes are listed after all processes, and lanes after all
/// threads.
const ORDER: u64 = 5_000_000;
/// Where spans touch they are set so far apart: viewers add times up as floating-point
/// numbers of microseconds, and would see some of them cross.
const APART: Length = Length(1000);

/// Where an event is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Process, or group of rows.
    pub pid: i64,
    /// Thread, or row.
    pub tid: i64,
    /// Begin, since the first event of the recording.
    pub start: Time,
    /// Length.
    pub length: Length,
}

/// What a process or row is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowName {
    /// Process, or group of rows.
    pub pid: i64,
    /// Thread, or row; `None`: the name is that of the process.
    pub tid: Option<i64>,
    /// Its name.
    pub name: String,
    /// Its place among its kind.
    pub order: u64,
    /// Labels of a process, in the order of their keys.
    pub labels: Vec<(String, String)>,
}

/// The name of a metadata event, and its arguments: keys, and values in JSON.
type RowFact = (String, Vec<(&'static str, String)>);

impl RowName {
    /// The metadata events of the Trace Event Format that describe it.
    pub(crate) fn facts(&self) -> Vec<RowFact> {
        let what = match self.tid {
            Some(_) => "thread",
            None => "process",
        };
        let order = self.order.to_string();
        let mut facts = vec![
            (
                format!("{what}_name"),
                vec![("name", json::quoted(&self.name))],
            ),
            (format!("{what}_sort_index"), vec![("sort_index", order)]),
        ];
        if !self.labels.is_empty() {
            let mut values = Object::new();
            for (key, value) in &self.labels {
                values.text(key, value);
            }
            // What viewers show, and what programs read.
            let texts: Vec<String> = self.label_texts().collect();
            let mut shown = String::new();
            json::quote(&mut shown, &texts.join(","));
            let labels = vec![("labels", shown), ("values", values.end())];
            facts.push(("process_labels".to_owned(), labels));
        }
        facts
    }

    /// Each label as one text.
    pub(crate) fn label_texts(&self) -> impl Iterator<Item = String> {
        let texts = self.labels.iter();
        texts.map(|(key, value)| visible::one_line(&format!("{key}={value}")))
    }
}

/// A row in which spans lie beside or inside each other.
#[derive(Debug, Default)]
struct Lane {
    tid: i64,
    open: Nest<Time, ()>,
    /// The last end of those that are not.
    closed: Option<Time>,
    /// When the last span began, and its number of a launch.
    last: Time,
    correlation: u64,
}

impl Lane {
    /// Puts a span there if nothing else is open: submissions wait for each other, and are
    /// not made inside of each other.
    fn beside(&mut self, start: Time, end: Time) -> Option<(Time, Time)> {
        while self.open.end(start).is_some() {}
        if self.open.around().is_some() {
            return None;
        }
        self.open.begin(end, ());
        self.last = start;
        Some((start, end))
    }

    /// Puts a span there, after all others: CPU samples come a little early at times, and
    /// their periods do not lie inside each other.
    fn append(&mut self, start: Time, end: Time) -> (Time, Time) {
        let start = self
            .closed
            .map_or(start, |closed| start.max(closed + APART));
        let end = end.max(start);
        self.closed = Some(end);
        (start, end)
    }

    /// Puts a span there, where it fits; gives its times. `force`: it is made to fit.
    fn take(&mut self, start: Time, end: Time, force: bool) -> Option<(Time, Time)> {
        while let Some((last, ())) = self.open.end(start) {
            self.closed = self.closed.max(Some(last));
        }
        let start = self
            .closed
            .map_or(start, |closed| start.max(closed + APART));
        let mut end = end.max(start);
        if let Some(around) = self.open.around() {
            if !force && (!self.open.holds(end) || start >= around) {
                return None;
            }
            end = end.min(around - APART).max(start);
        }
        self.open.begin(end, ());
        self.last = start;
        Some((start, end))
    }
}

/// Lays out the events of a recording, which come in order of time.
#[derive(Debug)]
pub(crate) struct TimelineLayout<'r> {
    recorded: &'r Recorded,
    /// Processes, or groups of rows, by track; `None`: it is not shown.
    pids: Vec<Option<i64>>,
    /// Lanes by track.
    tracks: Vec<Vec<Lane>>,
    lanes: i64,
    /// The rows since the last call of [`Self::take_new`].
    new: Vec<RowName>,
    /// Spans without a place.
    refused: u64,
}

impl<'r> TimelineLayout<'r> {
    /// Knows the groups, and the rows of threads.
    pub(crate) fn new(recorded: &'r Recorded) -> Self {
        let mut layout = Self {
            recorded,
            pids: vec![None; recorded.rows.len()],
            tracks: Vec::new(),
            lanes: 0,
            new: Vec::new(),
            refused: 0,
        };
        layout.tracks.resize_with(recorded.rows.len(), Vec::new);
        layout.name_groups();
        layout.name_threads();
        layout
    }

    fn name_groups(&mut self) {
        let recorded = self.recorded;
        for (&pid, process) in &recorded.processes {
            let name = if process.name.is_empty() {
                "process"
            } else {
                &process.name
            };
            self.new.push(RowName {
                pid: pid.into(),
                tid: None,
                name: name.to_owned(),
                // Those that use an accelerator first.
                order: if process.has_calls { 1 } else { 2 },
                labels: process.labels.clone(),
            });
        }
        let mut named: BTreeMap<&str, i64> = BTreeMap::new();
        let tracks = recorded.tracks.iter().zip(&recorded.rows);
        for (((id, track), row), of_track) in tracks.zip(&mut self.pids) {
            if recorded.surplus.contains(&id) {
                continue;
            }
            let name = match &row.group {
                Group::Named(name) => name,
                Group::Process(pid) => {
                    *of_track = Some(i64::from(*pid));
                    continue;
                }
            };
            let next = FIRST_GROUP + named.len() as i64;
            let is_new = !named.contains_key(&**name);
            let pid = *named.entry(name).or_insert(next);
            *of_track = Some(pid);
            if is_new {
                let is_queue = track.kind == TrackKind::Queue;
                self.new.push(RowName {
                    pid,
                    tid: None,
                    name: name.clone(),
                    order: if is_queue { 3 } else { ORDER },
                    labels: Vec::new(),
                });
            }
        }
    }

    fn name_threads(&mut self) {
        let recorded = self.recorded;
        let mut threads = BTreeMap::new();
        for ((_, track), row) in recorded.tracks.iter().zip(&recorded.rows) {
            if let (TrackKind::Thread | TrackKind::Samples, Id::Number(tid)) =
                (track.kind, track.tid)
                && let Group::Process(pid) = row.group
            {
                threads.insert((i64::from(pid), tid, track.kind), &row.name);
            }
        }
        for (((pid, tid, kind), name), order) in threads.into_iter().zip(0..) {
            self.new.push(RowName {
                pid,
                tid: Some(tid + samples(kind)),
                name: name.clone(),
                order,
                labels: Vec::new(),
            });
        }
    }

    /// The names of processes and rows that were not given yet.
    pub(crate) fn take_new(&mut self) -> Vec<RowName> {
        std::mem::take(&mut self.new)
    }

    /// What was lost, while recording and here.
    pub(crate) fn losses(&self) -> Losses {
        let mut losses = self.recorded.losses.clone();
        losses.add(LossKind::SpansRefused, self.refused);
        losses
    }

    /// How far the first event of the recording is from where times count.
    pub(crate) fn first(&self) -> Length {
        let Recorded {
            start_ns,
            origin_ns,
            ..
        } = self.recorded;
        Length::from_nanos(start_ns.wrapping_sub(*origin_ns).cast_signed())
    }

    /// Where an event is drawn; `None`: it is surplus, or there is no room for it.
    pub(crate) fn place(&mut self, event: &Event) -> Option<Placed> {
        let recorded = self.recorded;
        let index = event.track.0 as usize;
        let pid = self.pids.get(index).copied().flatten()?;
        let track = recorded.tracks.get(event.track);
        let row = recorded.rows.get(index)?;
        let shift = self.first();
        if !event.is_slice() {
            let (tid, start) = self.end_of_arrow(event);
            return Some(Placed {
                pid,
                tid,
                start: start - shift,
                length: Length::ZERO,
            });
        }
        let (tid, start, end) = match (track.kind, track.tid) {
            (TrackKind::Thread | TrackKind::Samples, Id::Number(tid)) => {
                let lanes = self.tracks.get_mut(index)?;
                if lanes.is_empty() {
                    lanes.push(Lane {
                        tid: tid + samples(track.kind),
                        ..Lane::default()
                    });
                }
                let lane = lanes.first_mut()?;
                let (start, end) = (event.start, event.end());
                let (start, end) = match track.kind {
                    TrackKind::Samples => lane.append(start, end),
                    _ => lane.take(start, end, true)?,
                };
                (lane.tid, start, end)
            }
            (kind, _) => self.lane(event, kind, pid, &row.name)?,
        };
        Some(Placed {
            pid,
            tid,
            start: start - shift,
            length: end - start,
        })
    }

    /// The row and begin of the span that an arrow begins or ends at: the last of that
    /// launch on the track.
    fn end_of_arrow(&self, event: &Event) -> (i64, Time) {
        let lanes = self.tracks.get(event.track.0 as usize);
        let lanes = lanes.into_iter().flatten();
        let of = |lane: &&Lane| (lane.correlation == event.correlation, lane.last);
        let found = lanes.max_by_key(of);
        found.map_or((0, event.start), |lane| {
            (lane.tid, lane.last.max(event.start))
        })
    }

    /// The first lane in which a span lies beside or inside of all that is there.
    fn lane(
        &mut self,
        event: &Event,
        kind: TrackKind,
        pid: i64,
        name: &str,
    ) -> Option<(i64, Time, Time)> {
        let lanes = self.tracks.get_mut(event.track.0 as usize)?;
        let (start, end) = (event.start, event.end());
        let found = lanes::first(lanes, |lane| {
            let (start, end) = match kind {
                TrackKind::Queue => lane.beside(start, end)?,
                _ => lane.take(start, end, false)?,
            };
            lane.correlation = event.correlation;
            Some((lane.tid, start, end))
        });
        if let Some((_, place)) = found {
            return Some(place);
        }
        if !lanes::has_room(lanes) || self.lanes >= MAX_ALL_LANES {
            self.refused += 1;
            return None;
        }
        let tid = FIRST_LANE + self.lanes;
        self.lanes += 1;
        let mut lane = Lane {
            tid,
            last: start,
            correlation: event.correlation,
            ..Lane::default()
        };
        lane.open.begin(end, ());
        lanes.push(lane);
        self.new.push(RowName {
            pid,
            tid: Some(tid),
            name: match lanes.len() {
                1 => name.to_owned(),
                more => format!("{name} ({more})"),
            },
            order: ORDER + self.lanes.unsigned_abs(),
            labels: Vec::new(),
        });
        Some((tid, start, end))
    }
}

fn samples(kind: TrackKind) -> i64 {
    match kind {
        TrackKind::Samples => SAMPLES,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::timeline::{NONE, Ph, Sym, Track, TrackId, recorded::Row};

    /// A recording with one track of a kind.
    fn recorded(kind: TrackKind, group: Group) -> (Recorded, TrackId) {
        let mut recorded = Recorded::default();
        let track = recorded.tracks.intern(Track {
            job: 0,
            rank: NONE,
            pid: Id::Number(7),
            tid: Id::Number(8),
            kind,
        });
        recorded.rows.push(Row {
            group,
            name: "row".into(),
        });
        (recorded, track)
    }

    fn span(track: TrackId, start: i64, end: i64) -> Event {
        let mut event = Event::new(Ph::Complete, Sym::EMPTY, track, Time::from_nanos(start));
        event.length = Length::from_nanos(end - start);
        event
    }

    /// Rows and times of spans, in the order of their begins.
    fn place(kind: TrackKind, spans: &[(i64, i64)]) -> (Vec<(i64, i64, i64)>, u64) {
        let group = match kind {
            TrackKind::Thread | TrackKind::Samples => Group::Process(7),
            _ => Group::Named("device".into()),
        };
        let (recorded, track) = recorded(kind, group);
        let mut layout = TimelineLayout::new(&recorded);
        let placed = spans.iter().filter_map(|&(start, end)| {
            let placed = layout.place(&span(track, start, end))?;
            let end = placed.start + placed.length;
            Some((placed.tid, placed.start.nanos(), end.nanos()))
        });
        (placed.collect(), layout.refused)
    }

    #[test]
    fn what_overlaps_gets_a_lane_of_its_own_and_what_nests_does_not() {
        let spans = [
            (2000, 5000),
            (2500, 3000),
            (4000, 6000),
            (5000, 5500),
            (5500, 5500),
            (9000, 9500),
        ];
        let (placed, refused) = place(TrackKind::Stream, &spans);
        assert_eq!(refused, 0);
        let lanes: Vec<_> = placed.iter().map(|(tid, ..)| tid - FIRST_LANE).collect();
        assert_eq!(lanes, [0, 0, 1, 0, 0, 0]);
        // What touches is a nanosecond apart.
        assert_eq!((placed[3].1, placed[4].1), (5001, 5501));
    }

    /// In the order of their begins; three at a time at most.
    #[test]
    fn a_queue_has_as_many_rows_as_submissions_at_a_time() {
        let spans = [
            (0, 10),
            (5, 12),
            (8, 30),
            (10, 20),
            (12, 25),
            (20, 40),
            (26, 41),
        ];
        let (placed, refused) = place(TrackKind::Queue, &spans);
        assert_eq!(refused, 0);
        let mut ends: BTreeMap<i64, i64> = BTreeMap::new();
        for ((tid, start, end), span) in placed.into_iter().zip(spans) {
            assert_eq!((start, end), span);
            let before = ends.insert(tid, end);
            assert!(before.is_none_or(|before| before <= start), "{start} {tid}");
        }
        assert_eq!(ends.len(), 3);
    }

    #[test]
    fn lanes_are_named_once_and_too_many_spans_are_counted() {
        let (recorded, track) = recorded(TrackKind::Queue, Group::Named("xe".into()));
        let mut layout = TimelineLayout::new(&recorded);
        const MOST: usize = 64;
        let spans = (0..MOST as i64 + 5).map(|i| span(track, i, 9000 + i));
        assert_eq!(spans.filter_map(|span| layout.place(&span)).count(), MOST);
        assert_eq!(layout.refused, 5);
        let names = layout.take_new();
        assert_eq!(names.len(), MOST + 1);
        assert_eq!(
            (&*names[0].name, names[0].tid, names[0].order),
            ("xe", None, 3)
        );
        assert_eq!((&*names[1].name, &*names[2].name), ("row", "row (2)"));
        assert!(layout.take_new().is_empty());
    }

    /// Threads have one row, even in a damaged recording.
    #[test]
    fn calls_of_a_thread_are_nested_in_one_row() {
        let spans = [
            (0, 100),
            (10, 150),
            (20, 30),
            (100, 110),
            (105, 300),
            (105, 106),
        ];
        let (placed, refused) = place(TrackKind::Thread, &spans);
        assert_eq!((placed.len(), refused), (spans.len(), 0));
        let mut open: Vec<i64> = Vec::new();
        for (tid, start, end) in placed {
            assert_eq!(tid, 8);
            while open.pop_if(|last| *last <= start).is_some() {}
            assert!(
                open.last().is_none_or(|around| end < *around),
                "{start} {end}"
            );
            open.push(end);
        }
    }

    #[test]
    fn samples_follow_each_other() {
        let (placed, _) = place(TrackKind::Samples, &[(0, 10), (9, 19), (30, 40)]);
        let tid = 8 + SAMPLES;
        assert_eq!(placed, [(tid, 0, 10), (tid, 11, 19), (tid, 30, 40)]);
    }

    #[test]
    fn surplus_tracks_are_left_out() {
        let (mut recorded, track) = recorded(TrackKind::Bounds, Group::Named("AIU".into()));
        recorded.surplus.insert(track);
        let mut layout = TimelineLayout::new(&recorded);
        assert!(layout.take_new().is_empty());
        assert_eq!(layout.place(&span(track, 0, 1)), None);
        assert_eq!(layout.refused, 0);
    }
}
