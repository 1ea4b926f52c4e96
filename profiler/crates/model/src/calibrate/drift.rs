//! Clocks of several hosts, aligned by what passes between them, where they also run at
//! different speeds.
//!
//! Nothing arrives before it was sent: each message is a point that the line of one clock
//! against another's must be above, or below for the way back. All points of two clocks
//! leave a set of lines (Duda, Harrus, Haddad, Bernard: Estimating Global Time in
//! Distributed Systems, 1987); only the hulls of the points bound it. A constant difference
//! is taken where one is possible; else the line that is farthest from all points. How far
//! the true line can be from it is the error bound, over all ways between clocks.

use super::bounds::Bounds;
use super::ranks::{self, Messages};

/// Clocks that are steered differ by less than this in speed: NTP's and Linux's limit is
/// 500 ppm for each of two.
const MOST_DRIFT: f64 = 1e-3;
/// Steps of a search along a line: each takes a third of what is left.
const STEPS: usize = 120;
/// Times are written in nanoseconds or coarser, microseconds.
const ROUNDING_US: f64 = 0.002;

/// Something that left one clock's host and arrived at another's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossing {
    /// Clock of the sender.
    pub from: usize,
    /// Clock of the receiver.
    pub to: usize,
    /// When it began to leave, by the sender's clock, microseconds.
    pub left_us: f64,
    /// When it had arrived, by the receiver's.
    pub arrived_us: f64,
}

/// How a clock's times become those of the first clock: a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockLine {
    /// A time of the clock, microseconds.
    pub at_us: f64,
    /// Amount to add to it.
    pub us: f64,
    /// What more for each microsecond later.
    pub rate: f64,
    /// The true difference is within this of the line, from the first to the last message
    /// of all clocks; infinite where messages went one way only.
    pub error_us: f64,
    /// The same from the first to the last of all times that are looked at.
    pub error_anywhere_us: f64,
}

impl ClockLine {
    /// A clock that is right.
    const RIGHT: Self = Self {
        at_us: 0.0,
        us: 0.0,
        rate: 0.0,
        error_us: 0.0,
        error_anywhere_us: 0.0,
    };

    /// Amount to add to a time of the clock.
    pub fn shift(&self, us: f64) -> f64 {
        self.us + (us - self.at_us) * self.rate
    }

    /// The same, and a small correction of its results.
    fn then(&self, next: &Self) -> Self {
        let at_us = self.at_us;
        let moved = at_us + self.us;
        Self {
            at_us,
            us: self.us + next.shift(moved),
            rate: (1.0 + self.rate) * (1.0 + next.rate) - 1.0,
            ..*next
        }
    }
}

/// All clocks.
#[derive(Clone, Debug, PartialEq)]
pub struct AlignedClocks {
    /// By number; `None`: no message leads to it. The first is right by definition.
    pub lines: Vec<Option<ClockLine>>,
    /// By how much something arrives before it left, whatever the lines are.
    pub contradiction_us: f64,
}

/// Aligns `clocks` clocks. `spans` are the first and last times that are looked at, by each clock.
pub fn align(clocks: usize, crossings: &[Crossing], spans: &[(f64, f64)]) -> AlignedClocks {
    let usable = |c: &&Crossing| {
        let inside = c.from < clocks && c.to < clocks && c.from != c.to;
        inside && c.left_us.is_finite() && c.arrived_us.is_finite()
    };
    let crossings: Vec<Crossing> = crossings.iter().filter(usable).copied().collect();
    // Lines depend a little on what they are to find: the time of the other clock.
    let mut lines = vec![Some(ClockLine::RIGHT); clocks];
    let mut contradiction_us = 0.0;
    for _ in 0..PASSES {
        let moved: Vec<Crossing> = crossings.iter().filter_map(|c| moved(c, &lines)).collect();
        let found = pass(clocks, &moved);
        contradiction_us = found.contradiction_us;
        for (line, next) in lines.iter_mut().zip(&found.lines) {
            *line = line.zip(*next).map(|(line, next)| line.then(&next));
        }
    }
    let moved: Vec<Crossing> = crossings.iter().filter_map(|c| moved(c, &lines)).collect();
    let while_sent = span(&moved);
    let ends = lines.iter().zip(spans).filter_map(|(line, span)| {
        let line = (*line)?;
        Some((span.0 + line.shift(span.0), span.1 + line.shift(span.1)))
    });
    let anywhere = ends.fold(while_sent, |(a, b), (c, d)| (a.min(c), b.max(d)));
    let errors_there = errors(clocks, &moved, while_sent);
    let errors_anywhere = errors(clocks, &moved, anywhere);
    for (line, (error, anywhere)) in lines
        .iter_mut()
        .zip(errors_there.into_iter().zip(errors_anywhere))
    {
        if let Some(line) = line {
            (line.error_us, line.error_anywhere_us) = (error, anywhere);
        }
    }
    AlignedClocks {
        lines,
        contradiction_us,
    }
}

/// The first only brings clocks near to each other.
const PASSES: usize = 3;

/// A message by corrected clocks.
fn moved(crossing: &Crossing, lines: &[Option<ClockLine>]) -> Option<Crossing> {
    let line = |clock: usize| lines.get(clock).copied().flatten();
    let (from, to) = (line(crossing.from)?, line(crossing.to)?);
    Some(Crossing {
        left_us: crossing.left_us + from.shift(crossing.left_us),
        arrived_us: crossing.arrived_us + to.shift(crossing.arrived_us),
        ..*crossing
    })
}

/// The middle of all times, which lines turn around.
fn middle(crossings: &[Crossing]) -> f64 {
    let (first, last) = span(crossings);
    f64::midpoint(first, last)
}

fn span(crossings: &[Crossing]) -> (f64, f64) {
    let ends = crossings.iter().flat_map(|c| [c.left_us, c.arrived_us]);
    let ends = ends.fold((f64::MAX, f64::MIN), |(a, b), t| (a.min(t), b.max(t)));
    if ends.0 <= ends.1 { ends } else { (0.0, 0.0) }
}

/// Speeds, then differences with these speeds.
fn pass(clocks: usize, crossings: &[Crossing]) -> AlignedClocks {
    let at_us = middle(crossings);
    let rates = rates(clocks, &pairs(crossings, at_us));
    let line = |clock: usize, us: f64| ClockLine {
        at_us,
        us,
        rate: rates.get(clock).copied().unwrap_or(0.0),
        error_us: f64::INFINITY,
        error_anywhere_us: f64::INFINITY,
    };
    let straight: Vec<_> = (0..clocks).map(|clock| Some(line(clock, 0.0))).collect();
    let mut least = std::collections::BTreeMap::new();
    for c in crossings.iter().filter_map(|c| moved(c, &straight)) {
        let at = least.entry((c.from, c.to)).or_insert(f64::INFINITY);
        *at = f64::min(*at, c.arrived_us - c.left_us);
    }
    let messages: Vec<Messages> = least
        .into_iter()
        .map(|((from, to), least_us)| Messages { from, to, least_us })
        .collect();
    let found = ranks::align(clocks, &messages);
    let shifts = found.shifts.iter().enumerate();
    let lines = shifts.map(|(clock, shift)| Some(line(clock, shift.as_ref()?.us)));
    AlignedClocks {
        lines: lines.collect(),
        contradiction_us: found.contradiction_us,
    }
}

/// What bounds the line of the second of two clocks against the first.
#[derive(Debug)]
struct DriftBounds {
    first: usize,
    second: usize,
    /// Points that it is above, as time since the middle and difference.
    below: Vec<(f64, f64)>,
    /// Points that it is below.
    above: Vec<(f64, f64)>,
}

/// The pairs of clocks between which something passed.
fn pairs(crossings: &[Crossing], middle_us: f64) -> Vec<DriftBounds> {
    let mut found: std::collections::BTreeMap<(usize, usize), DriftBounds> = Default::default();
    for c in crossings {
        let (first, second) = (c.from.min(c.to), c.from.max(c.to));
        let pair = found.entry((first, second)).or_insert_with(|| DriftBounds {
            first,
            second,
            below: Vec::new(),
            above: Vec::new(),
        });
        match c.to == second {
            true => pair
                .below
                .push((c.arrived_us - middle_us, c.left_us - c.arrived_us)),
            false => pair
                .above
                .push((c.left_us - middle_us, c.arrived_us - c.left_us)),
        }
    }
    for pair in found.values_mut() {
        pair.below = hull(std::mem::take(&mut pair.below), 1.0);
        pair.above = hull(std::mem::take(&mut pair.above), -1.0);
    }
    found.into_values().collect()
}

/// The upper hull of points (`sign` 1), or the lower (-1).
fn hull(mut points: Vec<(f64, f64)>, sign: f64) -> Vec<(f64, f64)> {
    points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut kept: Vec<(f64, f64)> = Vec::new();
    for point in points {
        while let [.., a, b] = kept.as_slice() {
            let turn = (b.0 - a.0) * (point.1 - a.1) - (b.1 - a.1) * (point.0 - a.0);
            if turn * sign < 0.0 {
                break;
            }
            kept.pop();
        }
        kept.push(point);
    }
    kept
}

impl DriftBounds {
    /// The least difference in the middle that a line of this slope may have.
    fn low(&self, slope: f64) -> f64 {
        let all = self.below.iter().map(|(t, v)| v - slope * t);
        all.fold(f64::NEG_INFINITY, f64::max)
    }

    /// The most.
    fn high(&self, slope: f64) -> f64 {
        let all = self.above.iter().map(|(t, v)| v - slope * t);
        all.fold(f64::INFINITY, f64::min)
    }

    fn gap(&self, slope: f64) -> f64 {
        self.high(slope) - self.low(slope)
    }

    fn is_two_sided(&self) -> bool {
        !self.below.is_empty() && !self.above.is_empty()
    }

    /// The slope that is taken: none, where that is possible.
    fn slope(&self) -> f64 {
        match !self.is_two_sided() || self.gap(0.0) >= 0.0 {
            true => 0.0,
            false => best((-MOST_DRIFT, MOST_DRIFT), |slope| self.gap(slope)),
        }
    }

    /// How far the second clock's line can be above the first's at a time since the middle.
    fn difference(&self, at_us: f64) -> Bounds {
        let (mut from, mut to, mut slack) = (-MOST_DRIFT, MOST_DRIFT, 0.0);
        if self.is_two_sided() {
            let best = best((from, to), |slope| self.gap(slope));
            slack = f64::max(0.0, -self.gap(best)) + ROUNDING_US;
            let fits = |slope: f64| self.gap(slope) + 2.0 * slack >= 0.0;
            from = edge(best, from, fits);
            to = edge(best, to, fits);
        }
        let high = |slope: f64| self.high(slope) + slope * at_us;
        let low = |slope: f64| self.low(slope) + slope * at_us;
        let most = match self.above.is_empty() {
            true => f64::INFINITY,
            false => high(best((from, to), high)) + slack,
        };
        let least = match self.below.is_empty() {
            true => f64::NEG_INFINITY,
            false => low(best((from, to), |slope| -low(slope))) - slack,
        };
        Bounds { least, most }
    }
}

/// Where a function with one top is highest.
fn best((mut from, mut to): (f64, f64), of: impl Fn(f64) -> f64) -> f64 {
    for _ in 0..STEPS {
        let third = (to - from) / 3.0;
        let (a, b) = (from + third, to - third);
        match of(a) < of(b) {
            true => from = a,
            false => to = b,
        }
    }
    f64::midpoint(from, to)
}

/// The farthest from `inside` towards `outside` that still fits.
fn edge(inside: f64, outside: f64, fits: impl Fn(f64) -> bool) -> f64 {
    if fits(outside) {
        return outside;
    }
    let (mut inside, mut outside) = (inside, outside);
    for _ in 0..STEPS {
        let middle = f64::midpoint(inside, outside);
        match fits(middle) {
            true => inside = middle,
            false => outside = middle,
        }
    }
    outside
}

/// Speeds of all clocks against the first: along the pairs that know them best.
fn rates(clocks: usize, pairs: &[DriftBounds]) -> Vec<f64> {
    let mut rates = vec![0.0; clocks];
    let mut is_known = vec![false; clocks];
    if let Some(first) = is_known.first_mut() {
        *first = true;
    }
    let mut ways: Vec<(f64, f64, &DriftBounds)> = pairs
        .iter()
        .map(|pair| {
            let slope = pair.slope();
            (pair.gap(slope), slope, pair)
        })
        .collect();
    ways.sort_by(|a, b| a.0.total_cmp(&b.0));
    let known = |is_known: &[bool], clock: usize| is_known.get(clock).copied().unwrap_or(false);
    // The tightest pair that leads on, until none does.
    while let Some((_, slope, pair)) = ways
        .iter()
        .find(|(.., pair)| known(&is_known, pair.first) != known(&is_known, pair.second))
    {
        let (from, to, slope) = match known(&is_known, pair.first) {
            true => (pair.first, pair.second, *slope),
            false => (pair.second, pair.first, -*slope),
        };
        let rate = rates.get(from).copied().unwrap_or(0.0) + slope;
        if let (Some(at), Some(is_known)) = (rates.get_mut(to), is_known.get_mut(to)) {
            (*at, *is_known) = (rate, true);
        }
    }
    rates
}

/// How far the true lines can be from none at two times, and between them.
fn errors(clocks: usize, crossings: &[Crossing], (first, last): (f64, f64)) -> Vec<f64> {
    let middle_us = middle(crossings);
    let pairs = pairs(crossings, middle_us);
    let mut errors = vec![0.0; clocks];
    for at_us in [first - middle_us, last - middle_us] {
        let ranges: Vec<_> = pairs
            .iter()
            .map(|pair| (pair.first, pair.second, pair.difference(at_us)))
            .collect();
        let most = farthest(clocks, &ranges, false);
        let least = farthest(clocks, &ranges, true);
        for ((error, most), least) in errors.iter_mut().zip(most).zip(least) {
            *error = f64::max(*error, f64::max(most.abs(), least.abs()));
        }
    }
    errors
}

/// The most that each clock's line is above the first's, by all ways; or below, mirrored.
fn farthest(clocks: usize, ranges: &[(usize, usize, Bounds)], mirrored: bool) -> Vec<f64> {
    let mut most = vec![f64::INFINITY; clocks];
    if let Some(first) = most.first_mut() {
        *first = 0.0;
    }
    let steps: Vec<(usize, usize, f64)> = ranges
        .iter()
        .flat_map(|(first, second, by)| match mirrored {
            false => [(*first, *second, by.most), (*second, *first, -by.least)],
            true => [(*first, *second, -by.least), (*second, *first, by.most)],
        })
        .collect();
    // As often as a way can have steps.
    for _ in 0..clocks {
        let mut has_changed = false;
        for (from, to, step) in &steps {
            let way = most.get(*from).copied().unwrap_or(f64::INFINITY) + step;
            if let Some(at) = most.get_mut(*to).filter(|at| way < **at) {
                (*at, has_changed) = (way, true);
            }
        }
        if !has_changed {
            break;
        }
    }
    most
}

#[cfg(test)]
#[path = "drift_tests.rs"]
mod tests;
