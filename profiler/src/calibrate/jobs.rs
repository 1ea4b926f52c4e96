//! Jobs whose device events lie outside of the host's round trip around them.
//!
//! A job's device events are placed by a host time that can be off by the same
//! amount for all of it, in either direction. Jobs that are in place tell the
//! device's clock, and the clock tells where the others belong. Without one in
//! place the round trip bounds the shift, and that is all that is known.

use super::clock::{Anchor, Clock, Counter, median};

/// A device event: its end as the host has it, and the counter there.
pub type Event = Anchor;

/// A job: what the host and what the device say of it.
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
    /// Its device events are to be moved by so much, give or take `error_us`: other
    /// jobs' clock says so.
    Moved {
        /// What is added to their times, microseconds.
        by_us: f64,
        /// The true shift is within this of it.
        error_us: f64,
    },
    /// They are to be moved by something between these: into the round trip.
    Bounded {
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
        .filter(|clock| clock.pieces.len() == 1);
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
                Some((by_us, _)) if !is_inside(job, by_us) => {
                    Place::Refused(Refusal::ClockDisagrees)
                }
                Some((by_us, error_us)) => Place::Moved { by_us, error_us },
                None if least > most => Place::Refused(Refusal::Wider),
                None => Place::Bounded {
                    least_us: least,
                    most_us: most,
                },
            }
        })
        .collect()
}

/// What a clock says how far a job's events are from where they belong.
fn shift(job: &Job, clock: &Clock, counter: Counter) -> Option<(f64, f64)> {
    let modulus = 1i128 << counter.bits;
    let (begin, end) = job.round_trip_us?;
    let piece = clock.pieces.first()?;
    // The wraps by the round trip, which is right: the counter there.
    let middle = (begin + end) / 2.0;
    let there = piece.from as f64 + (middle - piece.host_us) * piece.mhz;
    if there.is_nan() || there.abs() > 1e30 {
        return None;
    }
    let mut shifts: Vec<f64> = Vec::with_capacity(job.events.len());
    let mut error: f64 = 0.0;
    for event in &job.events {
        let raw = i128::from(event.ticks) & (modulus - 1);
        let wraps = ((there - raw as f64) / modulus as f64).round() as i128;
        let time = piece.host_time(raw + wraps * modulus);
        shifts.push(time.us - event.host_us);
        error = error.max(time.error_us);
    }
    (!shifts.is_empty()).then(|| (median(&mut shifts), error))
}
