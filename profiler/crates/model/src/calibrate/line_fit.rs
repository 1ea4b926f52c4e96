//! A line through points, robustly: Theil's slope first (medians, which a third of wild points
//! cannot move), then least squares reweighted by Tukey's biweight.

/// Tukey's constant: 95 % efficient where the errors are normal.
const TUKEY: f64 = 4.685;
/// A normal distribution's deviation by its median absolute deviation.
const MAD: f64 = 1.482_602_218_505_602;
/// Rounds of reweighting; it settles in a few.
const ROUNDS: usize = 12;
/// Fewer points than these all count in full: they are too few to find the wild ones.
const FEW: usize = 8;

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

/// A line `y = middle_y + slope * (x - middle)`, how far points are from it, and how far it may be
/// off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LineFit {
    pub(super) slope: f64,
    /// Middle of the points, where the line is surest.
    pub(super) middle: f64,
    pub(super) middle_y: f64,
    /// Typical distance of a point from the line, in units of y.
    pub scatter: f64,
    /// The true slope is within this of it.
    pub(super) slope_error: f64,
    /// The true y at the middle is within this of it.
    pub(super) middle_error: f64,
    /// Points that were used.
    pub used: usize,
}

impl LineFit {
    pub(super) fn at(&self, x: f64) -> f64 {
        self.middle_y + self.slope * (x - self.middle)
    }

    pub(super) fn error_at(&self, x: f64) -> f64 {
        self.middle_error + (x - self.middle).abs() * self.slope_error
    }

    /// The x at which it crosses another line.
    pub(super) fn crossing(&self, other: &Self) -> f64 {
        let slope = self.slope - other.slope;
        (other.middle_y - other.slope * other.middle - self.middle_y + self.slope * self.middle)
            / slope
    }

    /// The same line with x and y counted from its point at `x`.
    pub(super) fn from(&self, x: f64) -> Self {
        Self {
            middle: self.middle - x,
            middle_y: self.middle_y - self.at(x),
            ..*self
        }
    }

    /// How far the earliest of the points is before the line, wild ones apart.
    pub(super) fn lateness(&self, points: &[FitPoint]) -> f64 {
        let limit = TUKEY * self.scatter;
        let early = points.iter().map(|p| self.at(p.x) - p.y);
        early.filter(|early| *early <= limit).fold(0.0, f64::max)
    }
}

/// The line through points, in the order of x; `None` if they have no extent.
pub(super) fn fit(points: &[FitPoint]) -> Option<LineFit> {
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
    let mut line = LineFit {
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
fn reweighted(points: &[FitPoint], line: &LineFit) -> Option<LineFit> {
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
    Some(LineFit {
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
