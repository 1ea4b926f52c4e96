//! Tracks: what the events of a timeline are of. An event has the number of its track.

use super::{Event, Id, NONE};
use rustc_hash::FxHashMap;

/// The number of a [`Track`] in [`Tracks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrackId(pub u32);

/// What a track shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrackKind {
    /// A row of another tool's trace: its source decides what it holds.
    #[default]
    Row,
    /// Calls of a thread, properly nested.
    Thread,
    /// CPU samples of a thread.
    Samples,
    /// What a runtime recorded of a thread.
    Records,
    /// A stream of a device, by the device's or its runtime's own records.
    Stream,
    /// A queue of a device: from submission to completion.
    Queue,
    /// A queue of a device with bounds only: work ran between its launch and its wait.
    Bounds,
    /// Values that a device measured.
    Counter,
}

/// What events are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Track {
    /// File that it is from, in [`Timeline::jobs`](super::Timeline::jobs).
    pub job: u32,
    /// Rank of its process in the distributed run; [`NONE`]: not known.
    pub rank: u32,
    /// Process, or group of rows.
    pub pid: Id,
    /// Thread, or row.
    pub tid: Id,
    /// What it shows.
    pub kind: TrackKind,
}

impl Track {
    /// A row of an unknown file and rank.
    pub fn row(pid: Id, tid: Id) -> Self {
        Self {
            job: NONE,
            rank: NONE,
            pid,
            tid,
            kind: TrackKind::Row,
        }
    }
}

/// Tracks, each once.
#[derive(Debug, Default)]
pub struct Tracks {
    all: Vec<Track>,
    index: FxHashMap<Track, TrackId>,
}

impl Tracks {
    /// A track's number.
    pub fn intern(&mut self, track: Track) -> TrackId {
        if let Some(&known) = self.index.get(&track) {
            return known;
        }
        // Four milliard tracks do not fit in memory.
        let new = TrackId(u32::try_from(self.all.len()).unwrap_or(NONE));
        self.all.push(track);
        self.index.insert(track, new);
        new
    }

    /// A track by its number; one without an owner, where there is none of that number.
    pub fn get(&self, id: TrackId) -> Track {
        let known = self.all.get(id.0 as usize).copied();
        known.unwrap_or(Track::row(Id::NONE, Id::NONE))
    }

    /// The process of an event's track.
    pub fn pid(&self, event: &Event) -> Id {
        self.known(event).map_or(Id::NONE, |track| track.pid)
    }

    /// The thread of an event's track.
    pub fn tid(&self, event: &Event) -> Id {
        self.known(event).map_or(Id::NONE, |track| track.tid)
    }

    /// The rank of an event's track.
    pub fn rank(&self, event: &Event) -> u32 {
        self.known(event).map_or(NONE, |track| track.rank)
    }

    /// The file of an event's track.
    pub fn job(&self, event: &Event) -> u32 {
        self.known(event).map_or(NONE, |track| track.job)
    }

    fn known(&self, event: &Event) -> Option<&Track> {
        self.all.get(event.track.0 as usize)
    }

    /// The number of a track that is like another but for a change.
    pub fn like(&mut self, id: TrackId, change: impl FnOnce(&mut Track)) -> TrackId {
        let old = self.get(id);
        let mut new = old;
        change(&mut new);
        if new == old && (id.0 as usize) < self.all.len() {
            return id;
        }
        self.intern(new)
    }

    /// Gives an event another process.
    pub fn set_pid(&mut self, event: &mut Event, pid: Id) {
        event.track = self.like(event.track, |track| track.pid = pid);
    }

    /// Gives an event another thread.
    pub fn set_tid(&mut self, event: &mut Event, tid: Id) {
        event.track = self.like(event.track, |track| track.tid = tid);
    }

    /// Gives an event another rank.
    pub fn set_rank(&mut self, event: &mut Event, rank: u32) {
        event.track = self.like(event.track, |track| track.rank = rank);
    }

    /// All of them, by number.
    pub fn iter(&self) -> impl Iterator<Item = (TrackId, &Track)> {
        (0..).map(TrackId).zip(&self.all)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::{Ph, Sym, Time};

    #[test]
    fn a_track_is_kept_once() {
        let mut tracks = Tracks::default();
        let track = |pid| Track {
            job: 0,
            rank: NONE,
            pid: Id::Number(pid),
            tid: Id::NONE,
            kind: TrackKind::Thread,
        };
        let one = tracks.intern(track(1));
        assert_eq!(tracks.intern(track(2)), TrackId(1));
        assert_eq!(tracks.intern(track(1)), one);
        assert_eq!((tracks.len(), tracks.get(one)), (2, track(1)));
        assert_eq!(tracks.get(TrackId(9)).job, NONE);
    }

    #[test]
    fn an_event_goes_to_a_track_like_its_own() {
        let mut tracks = Tracks::default();
        let row = Track::row(Id::Number(1), Id::Number(2));
        let track = tracks.intern(row);
        let mut event = Event::new(Ph::Instant, Sym::EMPTY, track, Time::ORIGIN);
        tracks.set_rank(&mut event, 3);
        tracks.set_pid(&mut event, Id::Number(4));
        tracks.set_tid(&mut event, Id::NONE);
        let ids = (tracks.pid(&event), tracks.tid(&event));
        assert_eq!(ids, (Id::Number(4), Id::NONE));
        assert_eq!((tracks.rank(&event), tracks.job(&event)), (3, NONE));
        assert_eq!(tracks.get(track), row);
        // What is not known changes too.
        event.track = TrackId(77);
        tracks.set_rank(&mut event, NONE);
        assert_eq!(tracks.get(event.track), Track::row(Id::NONE, Id::NONE));
        assert!((event.track.0 as usize) < tracks.len());
    }
}
