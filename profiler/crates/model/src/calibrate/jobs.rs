//! Jobs whose device events lie outside of the host's round trip around them.
//!
//! A job's device events are placed by a host time that can be off by the same amount for all of
//! it, in either direction. Jobs that are in place give the device's clock. The clock shows where
//! the others belong, within the limits of their round trips. Without one in place the round trips
//! of all jobs bound the clock, and each job's own bounds the shift: they are moved to the middle
//! of what both allow.

use super::clock::{Anchor, Clock, Counter, Piece, median};

/// A device event: its end as the host has it, and the counter there.
pub type Event = Anchor;

/// A job: its times by the host and by the device.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Begin and end of the host's round trip, microseconds; `None`: not recorded.
    pub round_trip_us: Option<(f64, f64)>,
    /// Begin of its first device event, by the host's times.
    pub first_us: f64,
    /// Its device events.
    pub events: Vec<Event>,
}

/// Where a job belongs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    /// Where it is.
    Right,
    /// By other jobs' clock, its device events belong `by_us` later, give or take `error_us`.
    Moved {
        /// What is added to their times, microseconds.
        by_us: f64,
        /// The true shift is within this of it.
        error_us: f64,
    },
    /// No job is in place to give the clock: the round trips of all jobs of this clock bound the
    /// shift. They are moved by the middle of the bounds.
    Bounded {
        /// What is added to their times, microseconds.
        by_us: f64,
        /// At least.
        least_us: f64,
        /// At most.
        most_us: f64,
    },
    /// Outside, and left there.
    Refused(Refusal),
}

/// Why a job is left outside of its round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its device events take longer than the round trip.
    Wider,
    /// The clock places it outside too.
    ClockDisagrees,
}

impl Job {
    fn last_us(&self) -> f64 {
        self.events
            .iter()
            .map(|e| e.host_us)
            .fold(f64::MIN, f64::max)
    }

    /// Middle of its round trip.
    fn middle(&self) -> Option<f64> {
        let (begin, end) = self.round_trip_us?;
        Some((begin + end) / 2.0)
    }

    /// The shifts that put it into its round trip: from, to.
    fn room(&self) -> Option<(f64, f64)> {
        let (begin, end) = self.round_trip_us?;
        Some((begin - self.first_us, end - self.last_us()))
    }
}

/// Finds where jobs belong whose counters did not restart in between. Times may be
/// off by `tolerance_us` and count as inside.
pub fn place(jobs: &[Job], counter: Counter, tolerance_us: f64) -> Vec<Place> {
    let is_inside = |job: &Job, shift: f64| {
        job.room().is_none_or(|(least, most)| {
            least - tolerance_us <= shift && shift <= most + tolerance_us
        })
    };
    let inside = jobs
        .iter()
        .filter(|job| job.round_trip_us.is_some() && !job.events.is_empty() && is_inside(job, 0.0));
    let anchors: Vec<Anchor> = inside.flat_map(|job| job.events.iter().copied()).collect();
    let clock = Clock::fit(&anchors, counter)
        .ok()
        .filter(|clock| clock.steps() == 0);
    let mut common = None;
    jobs.iter()
        .map(|job| {
            let Some((least, most)) = job.room() else {
                return Place::Right;
            };
            if job.events.is_empty() || is_inside(job, 0.0) {
                return Place::Right;
            }
            let by_clock = clock.as_ref().and_then(|clock| shift(job, clock, counter));
            match by_clock {
                Some(by_clock) => match meet(by_clock, (least, most), tolerance_us) {
                    Some((by_us, error_us)) => Place::Moved { by_us, error_us },
                    None => Place::Refused(Refusal::ClockDisagrees),
                },
                None if least > most => Place::Refused(Refusal::Wider),
                None => {
                    let common = common.get_or_insert_with(|| Common::new(jobs, counter));
                    let (least_us, most_us) = common.bounds(job, (least, most));
                    Place::Bounded {
                        by_us: (least_us + most_us) / 2.0,
                        least_us,
                        most_us,
                    }
                }
            }
        })
        .collect()
}

/// The shift by a clock, within the limits of the round trip; `None`: the two contradict.
fn meet(clock: (f64, f64), room: (f64, f64), tolerance_us: f64) -> Option<(f64, f64)> {
    let ((by_us, error_us), (least, most)) = (clock, room);
    let least = (by_us - error_us).max(least - tolerance_us);
    let most = (by_us + error_us).min(most + tolerance_us);
    let by_us = by_us.clamp(least, most.max(least));
    (least <= most).then(|| (by_us, (by_us - least).max(most - by_us)))
}

/// What the round trips of all jobs show of the one clock that they share.
struct Common {
    counter: Counter,
    /// A counter value and about when it was.
    origin: Option<(f64, f64)>,
    /// Host time of the origin: at least, at most.
    offset: (f64, f64),
}

impl Common {
    fn new(jobs: &[Job], counter: Counter) -> Self {
        let mut common = Self {
            counter: sharpened(jobs, counter),
            origin: None,
            offset: (f64::NEG_INFINITY, f64::INFINITY),
        };
        let first = jobs.iter().find_map(|job| {
            let ticks = job.events.first()?.ticks & low_bits(counter.bits);
            Some((ticks as f64, job.middle()?))
        });
        common.origin = first;
        for job in jobs {
            let (Some((least, most)), Some((at, slack))) = (job.room(), common.offset_of(job))
            else {
                continue;
            };
            let (from, to) = common.offset;
            common.offset = (from.max(at + least - slack), to.min(at + most + slack));
        }
        common
    }

    /// Where a job's own times put the origin, and how far the frequency makes that off.
    fn offset_of(&self, job: &Job) -> Option<(f64, f64)> {
        let (origin, about) = self.origin?;
        let period = 2f64.powi(self.counter.bits as i32);
        let away_us = job.middle()? - about;
        let slack = away_us.abs() * self.counter.uncertainty;
        if slack * self.counter.mhz > period / 4.0 {
            return None;
        }
        let mut offsets: Vec<f64> = job
            .events
            .iter()
            .map(|event| {
                let raw = (event.ticks & low_bits(self.counter.bits)) as f64 - origin;
                let wraps = ((away_us * self.counter.mhz - raw) / period).round();
                event.host_us - (raw + wraps * period) / self.counter.mhz
            })
            .collect();
        (!offsets.is_empty()).then(|| (median(&mut offsets), slack))
    }

    /// The bounds of a job's shift by its own round trip, and by those of the others if
    /// these agree.
    fn bounds(&self, job: &Job, room: (f64, f64)) -> (f64, f64) {
        let Some((at, slack)) = self.offset_of(job) else {
            return room;
        };
        let least = room.0.max(self.offset.0 - at - slack);
        let most = room.1.min(self.offset.1 - at + slack);
        if least <= most { (least, most) } else { room }
    }
}

/// The counter with the frequency of the job that gives it best.
fn sharpened(jobs: &[Job], counter: Counter) -> Counter {
    let mut best = counter;
    for job in jobs {
        let Ok(clock) = Clock::fit(&job.events, counter) else {
            continue;
        };
        let [piece] = &clock.pieces[..] else { continue };
        let uncertainty = piece.mhz_error / piece.mhz;
        let is_possible =
            (piece.mhz / counter.mhz - 1.0).abs() <= counter.uncertainty + uncertainty;
        if is_possible && uncertainty < best.uncertainty {
            (best.mhz, best.uncertainty) = (piece.mhz, uncertainty);
        }
    }
    best
}

fn low_bits(bits: u32) -> u64 {
    match bits {
        64.. => u64::MAX,
        bits => (1 << bits) - 1,
    }
}

/// How far a job's events are from where they belong, by a clock.
fn shift(job: &Job, clock: &Clock, counter: Counter) -> Option<(f64, f64)> {
    let modulus = 1i128 << counter.bits;
    // The wraps by the round trip, which is right: the counter there.
    let middle = job.middle()?;
    let away = |piece: &&Piece| {
        let (from, to) = (piece.host_us, piece.host_time(piece.to).us);
        (from - middle).max(middle - to).max(0.0)
    };
    let pieces = clock.pieces.iter();
    let piece = pieces.min_by(|a, b| away(a).total_cmp(&away(b)))?;
    let there = piece.from as f64 + (middle - piece.host_us) * piece.mhz;
    if there.is_nan() || there.abs() > 1e30 {
        return None;
    }
    let mut shifts: Vec<f64> = Vec::with_capacity(job.events.len());
    let mut error: f64 = 0.0;
    for event in &job.events {
        let raw = i128::from(event.ticks) & (modulus - 1);
        let wraps = ((there - raw as f64) / modulus as f64).round() as i128;
        let time = clock.host_time(raw + wraps * modulus);
        shifts.push(time.us - event.host_us);
        error = error.max(time.error_us);
    }
    (!shifts.is_empty()).then(|| (median(&mut shifts), error))
}
