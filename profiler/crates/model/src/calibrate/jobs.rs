//! Jobs whose device events lie outside of the host's round trip around them.
//!
//! A job's device events are placed by a host time that can be off by the same amount for all of
//! it, in either direction. Jobs that are in place give the device's clock. The clock shows where
//! the others belong, within the limits of their round trips. Without one in place the round trips
//! of all jobs bound the clock, and each job's own bounds the shift: they are moved to the middle
//! of what both allow.

use super::bounds::{Bounds, Uncertain};
use super::clock::{Anchor, Clock, Counter, wraps};
use super::line_fit::median;

/// A device event: its end as the host has it, and the counter there.
pub type Event = Anchor;

/// A job: its times by the host and by the device.
#[derive(Clone, Debug, PartialEq)]
pub struct JobTimes {
    /// Begin and end of the host's round trip, microseconds; `None`: not recorded.
    pub round_trip_us: Option<(f64, f64)>,
    /// Begin of its first device event, by the host's times.
    pub first_us: f64,
    /// Its device events.
    pub events: Vec<Event>,
}

/// Where a job belongs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum JobPosition {
    /// Where it is.
    Right,
    /// By other jobs' clock, its device events belong so much later, microseconds.
    Moved(Uncertain),
    /// No job is in place to give the clock: the round trips of all jobs of this clock bound the
    /// shift, microseconds. The events are moved by the middle of the bounds.
    Bounded(Bounds),
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

impl JobTimes {
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

    /// The shifts that put it into its round trip.
    fn shifts_inside(&self) -> Option<Bounds> {
        let (begin, end) = self.round_trip_us?;
        Some(Bounds {
            least: begin - self.first_us,
            most: end - self.last_us(),
        })
    }
}

/// Finds where jobs belong whose counters did not restart in between. Times may be
/// off by `tolerance_us` and count as inside.
pub fn place(jobs: &[JobTimes], counter: Counter, tolerance_us: f64) -> Vec<JobPosition> {
    let is_inside = |job: &&JobTimes| {
        let inside = job.shifts_inside();
        inside.is_none_or(|inside| inside.widened(tolerance_us).contains(0.0))
    };
    let inside = jobs
        .iter()
        .filter(|job| job.round_trip_us.is_some() && !job.events.is_empty() && is_inside(job));
    let anchors: Vec<Anchor> = inside.flat_map(|job| job.events.iter().copied()).collect();
    let clock = Clock::fit(&anchors, counter)
        .ok()
        .filter(|clock| clock.steps() == 0);
    let mut shared = None;
    jobs.iter()
        .map(|job| {
            let Some(inside) = job.shifts_inside() else {
                return JobPosition::Right;
            };
            if job.events.is_empty() || is_inside(&job) {
                return JobPosition::Right;
            }
            if let Some(by_clock) = clock.as_ref().and_then(|clock| shift(job, clock, counter)) {
                let both = Bounds::around(by_clock).and(inside.widened(tolerance_us));
                return match both.is_possible() {
                    true => JobPosition::Moved(both.nearest(by_clock.value)),
                    false => JobPosition::Refused(Refusal::ClockDisagrees),
                };
            }
            if !inside.is_possible() {
                return JobPosition::Refused(Refusal::Wider);
            }
            let shared = shared.get_or_insert_with(|| SharedClock::new(jobs, counter));
            JobPosition::Bounded(shared.bounds(job, inside))
        })
        .collect()
}

/// What the round trips of all jobs show of the one clock that they share.
struct SharedClock {
    counter: Counter,
    /// A counter value and about when it was.
    origin: Option<(f64, f64)>,
    /// Host time of the origin.
    offset: Bounds,
}

impl SharedClock {
    fn new(jobs: &[JobTimes], counter: Counter) -> Self {
        let mut shared = Self {
            counter: sharpened(jobs, counter),
            origin: None,
            offset: Bounds::NONE,
        };
        let first = jobs.iter().find_map(|job| {
            let ticks = job.events.first()?.ticks & low_bits(counter.bits);
            Some((ticks as f64, job.middle()?))
        });
        shared.origin = first;
        for job in jobs {
            if let Some((inside, at)) = job.shifts_inside().zip(shared.offset_of(job)) {
                let own = inside.plus(at.value).widened(at.error);
                shared.offset = shared.offset.and(own);
            }
        }
        shared
    }

    /// Where a job's own times put the origin, and how far the frequency makes that off.
    fn offset_of(&self, job: &JobTimes) -> Option<Uncertain> {
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
                let wraps = wraps(raw, away_us * self.counter.mhz, self.counter.bits);
                event.host_us - (raw + wraps * period) / self.counter.mhz
            })
            .collect();
        (!offsets.is_empty()).then(|| Uncertain {
            value: median(&mut offsets),
            error: slack,
        })
    }

    /// The bounds of a job's shift by its own round trip, and by those of the others if
    /// these agree.
    fn bounds(&self, job: &JobTimes, inside: Bounds) -> Bounds {
        let Some(at) = self.offset_of(job) else {
            return inside;
        };
        let both = inside.and(self.offset.plus(-at.value).widened(at.error));
        if both.is_possible() { both } else { inside }
    }
}

/// The counter with the frequency of the job that gives it best.
fn sharpened(jobs: &[JobTimes], counter: Counter) -> Counter {
    let mut best = counter;
    for job in jobs {
        let Ok(clock) = Clock::fit(&job.events, counter) else {
            continue;
        };
        let [piece] = &clock.pieces[..] else { continue };
        let mhz = piece.mhz.value;
        let uncertainty = piece.mhz.error / mhz;
        let is_possible = (mhz / counter.mhz - 1.0).abs() <= counter.uncertainty + uncertainty;
        if is_possible && uncertainty < best.uncertainty {
            (best.mhz, best.uncertainty) = (mhz, uncertainty);
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

/// How far a job's events are from where they belong, by a clock, microseconds.
fn shift(job: &JobTimes, clock: &Clock, counter: Counter) -> Option<Uncertain> {
    // The wraps by the round trip, which is right: the counter there.
    let there = clock.ticks_at(job.middle()?);
    if there.is_nan() || there.abs() > 1e30 {
        return None;
    }
    let mut shifts: Vec<f64> = Vec::with_capacity(job.events.len());
    let mut error: f64 = 0.0;
    for event in &job.events {
        let time = clock.host_time(counter.with_wraps(event.ticks, there));
        shifts.push(time.value - event.host_us);
        error = error.max(time.error);
    }
    (!shifts.is_empty()).then(|| Uncertain {
        value: median(&mut shifts),
        error,
    })
}
