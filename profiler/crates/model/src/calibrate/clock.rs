//! A device's clock as the host sees it: which host time a counter value is.
//!
//! Host times are microseconds (`f64`) since an origin that the caller chooses, near
//! enough for nanoseconds to count (a trace's first event, not 1970). Counter
//! values are ticks.
//!
//! An [`Anchor`] is a counter value of which the host noted the time, some
//! microseconds off. A [`LineFit`] goes through all of them. Where the host's clock was set
//! or the device's restarted, the line begins anew: a *step*. Where the frequency changed,
//! two lines cross: a *bend*; a frequency that drifts becomes several bends.

use super::bounds::Uncertain;
use super::line_fit::{FitPoint, LineFit, median};
use super::piecewise_fit;

/// Times between two anchors at which the counter's wraps are not counted any more:
/// beyond half a period the number of wraps is a guess.
const HALF: f64 = 0.5;
/// Frequencies of anything that counts.
const MIN_MHZ: f64 = 1e-6;
/// See [`MIN_MHZ`].
const MAX_MHZ: f64 = 1e6;
/// A frequency less certain than this is not known at all.
const MAX_UNCERTAINTY: f64 = 10.0;
/// Host times beyond 300 years are none.
const MAX_US: f64 = 1e16;

/// A counter value whose host time was noted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Anchor {
    /// Host time, microseconds.
    pub host_us: f64,
    /// The counter, as read.
    pub ticks: u64,
}

/// What is known of a counter beforehand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counter {
    /// Its width in bits, 1 to 64; it wraps there.
    pub bits: u32,
    /// Ticks per microsecond, about: for the wraps between anchors that are far
    /// apart.
    pub mhz: f64,
    /// How far that may be off, as a share: 0.5 is half of it.
    pub uncertainty: f64,
}

/// A straight piece of a clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockPiece {
    /// Counter value where it begins, wraps counted: its first anchor, or the bend.
    pub from: i128,
    /// Where it ends: its last anchor, or the next bend.
    pub to: i128,
    /// Host time of `from`, microseconds.
    pub host_us: f64,
    /// Ticks per microsecond.
    pub mhz: Uncertain,
    /// Microseconds by ticks, both since `from`.
    pub line: LineFit,
    /// How far the earliest anchor that was used is before the line, microseconds. A host
    /// notes nothing before it is, so the line is late by no more than that.
    pub late_us: f64,
    /// It goes on where the piece before ends, at another frequency.
    pub is_bend: bool,
}

/// A clock: pieces in the order of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Clock {
    /// Its pieces, at least one.
    pub pieces: Vec<ClockPiece>,
    /// Counter values of the anchors, wraps counted, in the order given.
    pub unwrapped: Vec<i128>,
    /// Anchors before which the number of wraps is a guess: they are too far apart.
    pub guessed: Vec<usize>,
}

/// Why there is no clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockError {
    /// Fewer than two anchors, or all at one time.
    TooFew,
    /// A time, width or frequency that is no number or makes no sense.
    Nonsense,
}

impl Counter {
    /// The bits of a value that the counter has.
    fn raw(&self, ticks: u64) -> i128 {
        i128::from(ticks) & ((1 << self.bits) - 1)
    }

    /// The counter value with its wraps counted that is nearest to an expected one.
    pub(super) fn with_wraps(&self, ticks: u64, expected: f64) -> i128 {
        let raw = self.raw(ticks);
        raw + ((wraps(raw as f64, expected, self.bits) as i128) << self.bits)
    }
}

/// How often a counter of this width has wrapped that has `counted` and should have `expected`:
/// the nearest whole number.
pub fn wraps(counted: f64, expected: f64, bits: u32) -> f64 {
    ((expected - counted) / 2f64.powi(bits as i32)).round()
}

/// Counts the wraps of a counter between values that follow each other: the values
/// without wraps, and where their number is a guess. `anchors` are in the order of
/// time.
fn count_wraps(anchors: &[Anchor], counter: Counter) -> (Vec<i128>, Vec<usize>) {
    let period = 2f64.powi(counter.bits as i32);
    let (mut mhz, mut uncertainty) = (counter.mhz, counter.uncertainty);
    let mut unwrapped: Vec<i128> = Vec::with_capacity(anchors.len());
    let mut guessed = Vec::new();
    let mut begin = 0;
    for (index, anchor) in anchors.iter().enumerate() {
        let Some((&last, before)) = unwrapped.last().zip(anchors.get(index.wrapping_sub(1))) else {
            unwrapped.push(counter.raw(anchor.ticks));
            continue;
        };
        let gap = anchor.host_us - before.host_us;
        let value = counter.with_wraps(anchor.ticks, last as f64 + gap * mhz);
        unwrapped.push(value);
        if gap * mhz * uncertainty > period * HALF {
            guessed.push(index);
            begin = index;
        }
        // The farther the anchors reach, the better their slope; a jitter of 50 us
        // is more than any host makes of it, as a rule.
        let (first, span) = (
            anchors[begin].host_us,
            anchor.host_us - anchors[begin].host_us,
        );
        let better = 50.0 / span;
        let steeper = (value - unwrapped[begin]) as f64 / span;
        let plausible = (steeper / counter.mhz - 1.0).abs() <= counter.uncertainty;
        if anchor.host_us > first && better < uncertainty && plausible {
            mhz = steeper;
            uncertainty = better;
        }
    }
    (unwrapped, guessed)
}

impl Clock {
    /// Fits a clock to anchors.
    ///
    /// # Errors
    /// When there are too few anchors, or a number is none.
    pub fn fit(anchors: &[Anchor], counter: Counter) -> Result<Self, ClockError> {
        let sound = (1..=64).contains(&counter.bits)
            && (MIN_MHZ..MAX_MHZ).contains(&counter.mhz)
            && (0.0..MAX_UNCERTAINTY).contains(&counter.uncertainty)
            && anchors.iter().all(|a| a.host_us.abs() < MAX_US);
        if !sound {
            return Err(ClockError::Nonsense);
        }
        let mut order: Vec<usize> = (0..anchors.len()).collect();
        order.sort_by(|&a, &b| anchors[a].host_us.total_cmp(&anchors[b].host_us));
        let sorted: Vec<Anchor> = order.iter().map(|&i| anchors[i]).collect();
        let (values, guessed) = count_wraps(&sorted, counter);
        let (Some(&from), Some(first)) = (values.first(), sorted.first()) else {
            return Err(ClockError::TooFew);
        };
        let points: Vec<FitPoint> = values
            .iter()
            .zip(&sorted)
            .map(|(&value, anchor)| FitPoint {
                x: (value - from) as f64,
                y: anchor.host_us - first.host_us,
            })
            .collect();
        let parts = piecewise_fit::split(&points);
        if parts.is_empty() {
            return Err(ClockError::TooFew);
        }
        let whole = |x: f64| from + x as i128;
        let pieces = parts.into_iter().map(|part| {
            let (line, (a, b)) = (part.line, part.extent);
            let mhz = 1.0 / line.slope;
            ClockPiece {
                from: whole(a),
                to: whole(b),
                host_us: first.host_us + line.at(a.trunc()),
                mhz: Uncertain {
                    value: mhz,
                    error: mhz * (line.slope_error / line.slope).abs(),
                },
                line: line.from(a),
                late_us: line.lateness(points.get(part.range).unwrap_or_default()),
                is_bend: part.is_bend,
            }
        });
        let mut unwrapped = vec![0; anchors.len()];
        order
            .iter()
            .zip(&values)
            .for_each(|(&i, &value)| unwrapped[i] = value);
        Ok(Self {
            pieces: pieces.collect(),
            unwrapped,
            guessed: guessed.into_iter().map(|i| order[i]).collect(),
        })
    }

    /// A clock whose frequency is given: the line of that slope through the middle of points,
    /// which are counter values, wraps counted, and host times. `None`: there are none.
    pub fn with_frequency(mhz: f64, points: &[(i64, f64)]) -> Option<Self> {
        let unwrapped: Vec<i128> = points.iter().map(|point| point.0.into()).collect();
        let (from, to) = (*unwrapped.first()?, *unwrapped.last()?);
        let since = |ticks: &i128| (ticks - from) as f64 / mhz;
        let rests = unwrapped.iter().zip(points);
        let mut rests: Vec<f64> = rests.map(|(ticks, point)| point.1 - since(ticks)).collect();
        let host_us = median(&mut rests);
        let mut off: Vec<f64> = rests.iter().map(|rest| (rest - host_us).abs()).collect();
        let scatter = median(&mut off);
        let piece = ClockPiece {
            from,
            to,
            host_us,
            mhz: Uncertain {
                value: mhz,
                error: 0.0,
            },
            line: LineFit {
                slope: 1.0 / mhz,
                middle: 0.0,
                middle_y: 0.0,
                scatter,
                slope_error: 0.0,
                // Five standard errors of a median, by the median distance.
                middle_error: 9.0 * scatter / (points.len() as f64).sqrt(),
                used: points.len(),
            },
            late_us: 0.0,
            is_bend: false,
        };
        Some(Self {
            pieces: vec![piece],
            unwrapped,
            guessed: Vec::new(),
        })
    }

    /// The piece that a counter value, wraps counted, belongs to: the one around it,
    /// else the nearest.
    pub fn piece(&self, ticks: i128) -> &ClockPiece {
        let distance = |p: &&ClockPiece| (p.from - ticks).max(ticks - p.to).max(0);
        self.pieces
            .iter()
            .min_by_key(distance)
            .unwrap_or(&self.pieces[0])
    }

    /// The piece of a counter value, wraps counted, of which the host noted the time.
    /// Behind a restart the counter may have values again that it had before: of these
    /// the one that is nearer to the note.
    pub fn piece_near(&self, ticks: i128, noted_us: f64) -> &ClockPiece {
        let distance = |p: &&ClockPiece| (p.from - ticks).max(ticks - p.to).max(0);
        let runs = self.pieces.chunk_by(|_, next| next.is_bend);
        let nearest = runs.filter_map(|run| run.iter().min_by_key(distance));
        let away = |p: &&ClockPiece| (p.host_time(ticks).value - noted_us).abs();
        nearest
            .min_by(|a, b| away(a).total_cmp(&away(b)))
            .unwrap_or(&self.pieces[0])
    }

    /// About what the counter was at a host time, wraps counted, by the piece nearest to it.
    pub fn ticks_at(&self, host_us: f64) -> f64 {
        let away = |p: &&ClockPiece| {
            let last = p.host_time(p.to).value;
            (p.host_us - host_us).max(host_us - last).max(0.0)
        };
        let pieces = self.pieces.iter();
        let nearest = pieces.min_by(|a, b| away(a).total_cmp(&away(b)));
        nearest.map_or(f64::NAN, |p| {
            p.from as f64 + (host_us - p.host_us) * p.mhz.value
        })
    }

    /// How often the clock was set or restarted.
    pub fn steps(&self) -> usize {
        let runs = self.pieces.chunk_by(|_, next| next.is_bend);
        runs.count().saturating_sub(1)
    }

    /// How often its frequency changed without a step.
    pub fn bends(&self) -> usize {
        self.pieces.iter().filter(|piece| piece.is_bend).count()
    }

    /// The host time of a counter value, wraps counted, microseconds.
    pub fn host_time(&self, ticks: i128) -> Uncertain {
        self.piece(ticks).host_time(ticks)
    }
}

impl ClockPiece {
    /// The host time of a counter value, wraps counted, microseconds.
    pub fn host_time(&self, ticks: i128) -> Uncertain {
        let x = (ticks - self.from) as f64;
        Uncertain {
            value: self.host_us + x / self.mhz.value,
            error: self.line.error_at(x),
        }
    }
}
