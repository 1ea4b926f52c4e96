//! What can be found only once a file is over: pairs, rows, flows and the order.

use super::reader::PacketReader;
use crate::import::json::event::Parsed;
use crate::import::json::{Problems, Trouble, add_end_args, close};
use aiprof_model::timeline::{Id, Length, NONE, Ph, Texts, Time, Timeline, Track, TrackId};

/// A begin or an end of a slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Half {
    /// When, nanoseconds.
    pub ns: i64,
    /// The slice's event; [`NONE`]: an end.
    pub at: u32,
    /// An event with the arguments of its end, or [`NONE`].
    pub end_args: u32,
    /// Where it stands in the file.
    pub offset: u64,
}

impl PacketReader<'_> {
    /// The file is over: gives everything to the timeline. What was wrong.
    pub(super) fn finish(mut self, job: u32, start: usize) -> Problems {
        self.flush();
        let rows = self.final_tracks(job);
        let mut slices = SlicePairs {
            parsed: &mut self.parsed,
            texts: &mut self.into.texts,
        };
        for halves in std::mem::take(&mut self.halves) {
            slices.pair(halves);
        }
        for event in self.parsed.events.get_mut(start..).unwrap_or_default() {
            if let Some((row, of_counter)) = rows.get(event.track.0 as usize) {
                event.track = match event.ph {
                    Ph::Counter => *of_counter,
                    _ => *row,
                };
            }
        }
        let flows = std::mem::take(&mut self.flows).into_events(&mut self.parsed);
        self.parsed.events.extend(flows);
        let zero = Time::from_whole_micros(self.origin.unwrap_or(0).saturating_neg());
        let into = &mut *self.into;
        let (names, texts) = (&mut self.parsed.names, &mut into.texts);
        for (track, mut event) in self.tracks.metadata(zero, names, texts) {
            event.track = into.tracks.intern(Track { job, ..track });
            self.parsed.events.push(event);
        }
        let into: &mut Timeline = self.into;
        into.events = self.parsed.events;
        into.devices = self.parsed.devices;
        into.transfers = self.parsed.transfers;
        into.names = self.parsed.names;
        into.origin = into.origin.or(self.origin);
        let mut index = 0;
        into.events.retain(|event| {
            index += 1;
            index <= start || !event.dropped
        });
        let events = into.events.get_mut(start..).unwrap_or_default();
        // Names first, whatever the times.
        events.sort_by_key(|event| (event.ph != Ph::Metadata, event.start));
        self.parsed.problems
    }

    /// The track of each row, and that of the row's counters.
    fn final_tracks(&mut self, job: u32) -> Vec<(TrackId, TrackId)> {
        let mut found = Vec::with_capacity(self.rows.len());
        for uuid in &self.rows {
            let (pid, tid) = self.tracks.row(*uuid, &mut self.parsed.names);
            let row = Track {
                job,
                ..Track::row(pid, tid)
            };
            let of_counter = Track {
                // Its row is its own name.
                tid: match tid {
                    Id::Number(_) => tid,
                    Id::Token(_) => Id::NONE,
                },
                ..row
            };
            let tracks = &mut self.into.tracks;
            found.push((tracks.intern(row), tracks.intern(of_counter)));
        }
        found
    }
}

/// The events whose begins and ends are paired.
struct SlicePairs<'a> {
    parsed: &'a mut Parsed,
    texts: &'a mut Texts,
}

impl SlicePairs<'_> {
    /// Finds the begin of each end: the last that is open.
    fn pair(&mut self, mut halves: Vec<Half>) {
        if !halves.is_sorted_by_key(|half| half.ns) {
            halves.sort_by_key(|half| half.ns);
        }
        let mut open: Vec<Half> = Vec::new();
        for half in halves {
            if half.at != NONE {
                open.push(half);
                continue;
            }
            let begin = open.pop();
            self.drop_event(half.end_args);
            let Some(begin) = begin else {
                let problems = &mut self.parsed.problems;
                problems.add(Trouble::NeverBegun, half.offset);
                continue;
            };
            self.add_end_args(begin.at, half.end_args);
            let Some(event) = self.parsed.events.get_mut(begin.at as usize) else {
                continue;
            };
            let end = event.start + Length::from_nanos(half.ns.saturating_sub(begin.ns));
            let (devices, problems) = (&self.parsed.devices, &mut self.parsed.problems);
            close(event, end, devices, problems, begin.offset);
        }
        for begin in open {
            let problems = &mut self.parsed.problems;
            problems.add(Trouble::NeverEnded, begin.offset);
            self.drop_event(begin.at);
        }
    }

    fn drop_event(&mut self, at: u32) {
        if let Some(event) = self.parsed.events.get_mut(at as usize) {
            event.dropped = true;
        }
    }

    /// Adds the arguments of an end to its slice, unless the begin has them.
    fn add_end_args(&mut self, slice: u32, end: u32) {
        let events = &mut self.parsed.events;
        let more = events.get(end as usize).map(|event| event.args);
        if let (Some(more), Some(slice)) = (more, events.get_mut(slice as usize)) {
            add_end_args(self.texts, slice, more);
        }
    }
}
