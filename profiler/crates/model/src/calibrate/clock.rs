//! A device's clock as the host sees it: which host time a counter value is.
//!
//! Host times are microseconds (`f64`) since an origin that the caller chooses, near
//! enough for nanoseconds to count (a trace's first event, not 1970). Counter
//! values are ticks.
//!
//! An [`Anchor`] is a counter value of which the host noted the time, some
//! microseconds off. The line through them is fitted to all of them, robustly:
//! Theil's slope first (medians, which a third of wild anchors cannot move), then
//! least squares reweighted by Tukey's biweight. Where the host's clock was set or
//! the device's restarted, the line begins anew: a *step*. Where the frequency changed,
//! two lines meet: a *bend*; a frequency that drifts becomes several bends.

use super::pieces;

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
/// Tukey's constant: 95 % efficient where the errors are normal.
const TUKEY: f64 = 4.685;
/// A normal distribution's deviation by its median absolute deviation.
const MAD: f64 = 1.482_602_218_505_602;
/// Rounds of reweighting; it settles in a few.
const ROUNDS: usize = 12;
/// Fewer points than these all count in full: they are too few to find the wild ones.
const FEW: usize = 8;

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
pub struct Piece {
    /// Counter value where it begins, wraps counted: its first anchor, or the bend.
    pub from: i128,
    /// Where it ends: its last anchor, or the next bend.
    pub to: i128,
    /// Host time of `from`, microseconds.
    pub host_us: f64,
    /// Ticks per microsecond.
    pub mhz: f64,
    /// The true `mhz` is within this of it.
    pub mhz_error: f64,
    /// Anchors that were used.
    pub anchors: usize,
    /// Typical distance of an anchor from the line, microseconds.
    pub scatter_us: f64,
    /// How far the earliest anchor that was used is before the line, microseconds. A host
    /// notes nothing before it is, so the line is late by no more than that.
    pub late_us: f64,
    /// It goes on where the piece before ends, at another frequency.
    pub is_bend: bool,
    /// Middle of the anchors' counter values, where the line is surest.
    middle: f64,
    /// Error of the host time there, microseconds.
    middle_error_us: f64,
    /// Error of the slope, microseconds per tick.
    slope_error: f64,
}

/// A clock: pieces in the order of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Clock {
    /// Its pieces, at least one.
    pub pieces: Vec<Piece>,
    /// Counter values of the anchors, wraps counted, in the order given.
    pub unwrapped: Vec<i128>,
    /// Anchors before which the number of wraps is a guess: they are too far apart.
    pub guessed: Vec<usize>,
}

/// A host time, and how far off it may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostTime {
    /// Microseconds since the origin.
    pub us: f64,
    /// The true time is within this of it, microseconds.
    pub error_us: f64,
}

/// Why there is no clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockError {
    /// Fewer than two anchors, or all at one time.
    TooFew,
    /// A time, width or frequency that is no number or makes no sense.
    Nonsense,
}

/// Counts the wraps of a counter between values that follow each other: the values
/// without wraps, and where their number is a guess. `anchors` are in the order of
/// time.
fn count_wraps(anchors: &[Anchor], counter: Counter) -> (Vec<i128>, Vec<usize>) {
    let period = 2f64.powi(counter.bits as i32);
    let modulus = 1i128 << counter.bits;
    let (mut mhz, mut uncertainty) = (counter.mhz, counter.uncertainty);
    let mut unwrapped: Vec<i128> = Vec::with_capacity(anchors.len());
    let mut guessed = Vec::new();
    let mut begin = 0;
    for (index, anchor) in anchors.iter().enumerate() {
        let raw = i128::from(anchor.ticks) & (modulus - 1);
        let Some((&last, before)) = unwrapped.last().zip(anchors.get(index.wrapping_sub(1))) else {
            unwrapped.push(raw);
            continue;
        };
        let gap = anchor.host_us - before.host_us;
        let expected = last as f64 + gap * mhz;
        let wraps = ((expected - raw as f64) / period).round();
        let value = raw + (wraps as i128) * modulus;
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

/// Middle of numbers; 0 for none. Reorders them.
pub fn median(values: &mut [f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let (middle, odd) = (values.len() / 2, values.len() % 2 == 1);
    let (below, &mut at, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    if odd {
        return at;
    }
    let lower = below.iter().copied().fold(f64::MIN, f64::max);
    (lower + at) / 2.0
}

/// A point of a fit: ticks since the first, and host microseconds since the first.
#[derive(Clone, Copy)]
pub(super) struct FitPoint {
    pub(super) x: f64,
    pub(super) y: f64,
}

/// A line `y = middle_y + slope * (x - middle)`.
#[derive(Clone, Copy)]
pub(super) struct Line {
    pub(super) slope: f64,
    pub(super) middle: f64,
    pub(super) middle_y: f64,
    pub(super) scatter: f64,
    pub(super) slope_error: f64,
    pub(super) middle_error: f64,
    pub(super) used: usize,
}

impl Line {
    pub(super) fn at(&self, x: f64) -> f64 {
        self.middle_y + self.slope * (x - self.middle)
    }

    pub(super) fn error_at(&self, x: f64) -> f64 {
        self.middle_error + self.slope_error * (x - self.middle).abs()
    }

    /// Where it meets another line.
    pub(super) fn meets(&self, other: &Self) -> f64 {
        let slope = self.slope - other.slope;
        (other.middle_y - other.slope * other.middle - self.middle_y + self.slope * self.middle)
            / slope
    }

    /// How far the earliest of the points is before the line, wild ones apart.
    fn lateness(&self, points: &[FitPoint]) -> f64 {
        let limit = TUKEY * self.scatter;
        let early = points.iter().map(|p| self.at(p.x) - p.y);
        early.filter(|early| *early <= limit).fold(0.0, f64::max)
    }
}

/// The line through points, in the order of x; `None` if they have no extent.
pub(super) fn fit(points: &[FitPoint]) -> Option<Line> {
    let n = points.len();
    let half = n / 2;
    let pairs = points.iter().zip(points.get(half.max(1)..)?);
    let mut slopes: Vec<f64> = pairs
        .filter(|(a, b)| b.x > a.x)
        .map(|(a, b)| (b.y - a.y) / (b.x - a.x))
        .collect();
    if slopes.is_empty() {
        return None;
    }
    let slope = median(&mut slopes);
    let mut rests: Vec<f64> = points.iter().map(|p| p.y - slope * p.x).collect();
    let offset = median(&mut rests);
    let mut line = Line {
        slope,
        middle: 0.0,
        middle_y: offset,
        scatter: 0.0,
        slope_error: f64::INFINITY,
        middle_error: f64::INFINITY,
        used: n,
    };
    for _ in 0..ROUNDS {
        let next = reweighted(points, &line)?;
        let moved = (next.slope - line.slope).abs();
        line = next;
        if moved <= line.slope_error * 1e-6 {
            break;
        }
    }
    Some(line)
}

/// One round: least squares with weights by the distances from `line`.
fn reweighted(points: &[FitPoint], line: &Line) -> Option<Line> {
    let mut off: Vec<f64> = points.iter().map(|p| (p.y - line.at(p.x)).abs()).collect();
    // Nanoseconds are what host times are printed with.
    let scatter = (median(&mut off) * MAD).max(1e-3);
    let weight = |p: &FitPoint| {
        if points.len() < FEW {
            return 1.0;
        }
        let u = (p.y - line.at(p.x)) / (TUKEY * scatter);
        let v = (1.0 - u * u).max(0.0);
        v * v
    };
    let (mut sum, mut sx, mut sy, mut used) = (0.0, 0.0, 0.0, 0);
    for p in points {
        let w = weight(p);
        sum += w;
        sx += w * p.x;
        sy += w * p.y;
        used += usize::from(w > 0.0);
    }
    if sum <= 0.0 {
        return None;
    }
    let (middle, middle_y) = (sx / sum, sy / sum);
    let (mut sxx, mut sxy, mut square) = (0.0, 0.0, 0.0);
    for p in points {
        let w = weight(p);
        sxx += w * (p.x - middle) * (p.x - middle);
        sxy += w * (p.x - middle) * (p.y - middle_y);
    }
    if sxx <= 0.0 {
        return None;
    }
    let slope = sxy / sxx;
    for p in points {
        let rest = p.y - (middle_y + slope * (p.x - middle));
        square += weight(p) * rest * rest;
    }
    // Two parameters were fitted; the weights lose some of the information.
    let free = (sum - 2.0).max(0.5);
    let sigma = (square / free).sqrt().max(scatter / 2.0);
    let t = student(sum as usize);
    Some(Line {
        slope,
        middle,
        middle_y,
        scatter,
        slope_error: t * sigma / sxx.sqrt(),
        middle_error: t * sigma / sum.sqrt(),
        used,
    })
}

/// How many standard errors make a bound, by the number of points: about one in
/// 100,000 lies outside (Student's distribution, for two fitted parameters).
fn student(points: usize) -> f64 {
    match points.saturating_sub(2) {
        0 => 1000.0,
        1 => 320.0,
        2 => 100.0,
        3 => 40.0,
        4 => 25.0,
        5..=7 => 15.0,
        8..=12 => 9.0,
        13..=30 => 6.5,
        31..=100 => 5.5,
        _ => 5.0,
    }
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
        let parts = pieces::split(&points);
        if parts.is_empty() {
            return Err(ClockError::TooFew);
        }
        let whole = |x: f64| from + x as i128;
        let pieces = parts.into_iter().map(|part| {
            let (line, (a, b)) = (part.line, part.extent);
            let mhz = 1.0 / line.slope;
            Piece {
                from: whole(a),
                to: whole(b),
                host_us: first.host_us + line.at(a.trunc()),
                mhz,
                mhz_error: mhz * (line.slope_error / line.slope).abs(),
                anchors: line.used,
                scatter_us: line.scatter,
                late_us: line.lateness(points.get(part.range).unwrap_or_default()),
                is_bend: part.is_bend,
                middle: line.middle - a,
                middle_error_us: line.middle_error,
                slope_error: line.slope_error,
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

    /// The piece that a counter value, wraps counted, belongs to: the one around it,
    /// else the nearest.
    pub fn piece(&self, ticks: i128) -> &Piece {
        let distance = |p: &&Piece| (p.from - ticks).max(ticks - p.to).max(0);
        self.pieces
            .iter()
            .min_by_key(distance)
            .unwrap_or(&self.pieces[0])
    }

    /// The piece of a counter value, wraps counted, of which the host noted the time.
    /// Behind a restart the counter may have values again that it had before: of these
    /// the one that is nearer to the note.
    pub fn piece_near(&self, ticks: i128, noted_us: f64) -> &Piece {
        let distance = |p: &&Piece| (p.from - ticks).max(ticks - p.to).max(0);
        let runs = self.pieces.chunk_by(|_, next| next.is_bend);
        let nearest = runs.filter_map(|run| run.iter().min_by_key(distance));
        let away = |p: &&Piece| (p.host_time(ticks).us - noted_us).abs();
        nearest
            .min_by(|a, b| away(a).total_cmp(&away(b)))
            .unwrap_or(&self.pieces[0])
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

    /// The host time of a counter value, wraps counted.
    pub fn host_time(&self, ticks: i128) -> HostTime {
        self.piece(ticks).host_time(ticks)
    }
}

impl Piece {
    /// The host time of a counter value, wraps counted.
    pub fn host_time(&self, ticks: i128) -> HostTime {
        let x = (ticks - self.from) as f64;
        let away = (x - self.middle).abs();
        HostTime {
            us: self.host_us + x / self.mhz,
            error_us: self.middle_error_us + away * self.slope_error,
        }
    }
}
