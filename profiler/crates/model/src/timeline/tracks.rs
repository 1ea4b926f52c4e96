//! Tracks: what the events of a timeline are of. An event has the number of its track.

use super::{Id, NONE};
use rustc_hash::FxHashMap;

/// The number of a [`Track`] in [`Tracks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrackId(pub u32);

/// What a track shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrackKind {
    /// Whatever its source says: rows of other tools' traces.
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
    /// A queue of a device of which only bounds are known: between launch and wait.
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
        known.unwrap_or(Track {
            job: NONE,
            rank: NONE,
            pid: Id::NONE,
            tid: Id::NONE,
            kind: TrackKind::Row,
        })
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
}
