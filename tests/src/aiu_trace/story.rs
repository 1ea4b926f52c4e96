//! What was made: the truth, and beside it what the host wrote down.

use std::io::Write;
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

use super::clock::{Clock, WRAP};

/// What an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Kind {
    /// `Cmpt Prep`: TS2 to TS3.
    Prep,
    /// `Cmpt Exec`: TS3 to TS4.
    Exec,
    /// `DmaI`: TS1 to TS2.
    DmaIn,
    /// `DmaO`: TS4 to TS5.
    DmaOut,
    /// On the host; no counters.
    Cpu,
}

impl Kind {
    /// Which counters, from 0, begin and end the event.
    #[must_use]
    pub fn phase(self) -> (usize, usize) {
        match self {
            Self::DmaIn => (0, 1),
            Self::Prep => (1, 2),
            Self::Exec => (2, 3),
            Self::DmaOut => (3, 4),
            Self::Cpu => (0, 4),
        }
    }
}

/// One event.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    /// Whose.
    pub rank: usize,
    /// In which of the rank's jobs.
    pub job: usize,
    /// Name as FLEX files have it.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// When it really began, in microseconds of rank 0's host clock.
    pub start_us: f64,
    /// When it really ended.
    pub end_us: f64,
    /// The counters TS1..TS5, unwrapped; devices show the lower 32 bits.
    pub cycles: Option<[u64; 5]>,
    /// The charge counter at TS4, unwrapped.
    pub charge: Option<u64>,
    /// When it began by the host's record, exact to the nanosecond as it is written.
    pub host_ts_us: f64,
    /// How long it took by the host's record.
    pub host_dur_us: f64,
    /// Further arguments as FLEX files have them.
    pub args: Vec<(&'static str, String)>,
    /// What ties it to the call that launched it; 0 for nothing.
    pub correlation: u64,
}

impl Event {
    /// The counters as the device shows them.
    #[must_use]
    pub fn shown(&self) -> Option<[u64; 5]> {
        self.cycles.map(|cycles| cycles.map(|c| c % WRAP))
    }

    /// How long it really took.
    #[must_use]
    pub fn dur_us(&self) -> f64 {
        self.end_us - self.start_us
    }

    /// Whether a device did it.
    #[must_use]
    pub fn on_device(&self) -> bool {
        self.kind != Kind::Cpu
    }
}

/// A message between two ranks.
#[derive(Clone, Debug, Serialize)]
pub struct Message {
    /// Collective operation.
    pub group: String,
    /// Name of the synchronization.
    pub sync: String,
    /// Who sends.
    pub from: usize,
    /// Who receives.
    pub to: usize,
    /// When the send ended, in true microseconds.
    pub sent_us: f64,
    /// When the receive ended.
    pub received_us: f64,
}

/// Power between two readings of the charge counter.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Power {
    /// Whose.
    pub rank: usize,
    /// When the first reading was taken, in true microseconds.
    pub start_us: f64,
    /// When the second reading was taken.
    pub end_us: f64,
    /// Power in between.
    pub watts: f64,
}

/// A rank: its device and its host's clock.
#[derive(Clone, Debug, Serialize)]
pub struct Rank {
    /// The device's clock.
    pub clock: Clock,
    /// By how much its host's clock is ahead of rank 0's, in microseconds.
    pub offset_us: f64,
}

/// A job of a rank: a file.
#[derive(Clone, Debug, Serialize)]
pub struct Job {
    /// Whose.
    pub rank: usize,
    /// Which of the rank's.
    pub job: usize,
    /// By how much the host's times of its device events are wrong.
    pub shift_us: f64,
    /// When its `AIU Roundtrip` really began and ended.
    pub roundtrip_us: (f64, f64),
}

/// The whole truth.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Story {
    /// What it was made from.
    pub seed: u64,
    /// By rank.
    pub ranks: Vec<Rank>,
    /// By rank, then job.
    pub jobs: Vec<Job>,
    /// By rank, then job, then time on the host.
    pub events: Vec<Event>,
    /// In the order of sending.
    pub messages: Vec<Message>,
    /// By rank, then time.
    pub power: Vec<Power>,
}

impl Story {
    /// The events of one job, as its file has them.
    #[must_use]
    pub fn of_job(&self, rank: usize, job: usize) -> Vec<&Event> {
        let of = |event: &&Event| event.rank == rank && event.job == job;
        self.events.iter().filter(of).collect()
    }

    /// Mean frequency of a rank's device over the trace, in MHz.
    #[must_use]
    pub fn mhz(&self, rank: usize) -> f64 {
        let of = |event: &&Event| event.rank == rank && event.on_device();
        let times = self.events.iter().filter(of);
        let (first, last) = times.fold((f64::MAX, f64::MIN), |(a, b), event| {
            (a.min(event.start_us), b.max(event.end_us))
        });
        self.ranks
            .get(rank)
            .map_or(f64::NAN, |r| r.clock.mhz_at((first + last) / 2.0))
    }

    /// Writes everything as JSON, for readers in other languages.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, file: &Path) -> anyhow::Result<()> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        std::fs::File::create(file)
            .and_then(|mut file| file.write_all(&text))
            .with_context(|| file.display().to_string())
    }
}
