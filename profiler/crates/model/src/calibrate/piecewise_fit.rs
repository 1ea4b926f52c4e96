//! Where a clock stepped or bent: its straight pieces.
//!
//! A step is a jump between neighbours, much higher than chance makes it. A bend is a place where
//! two lines of different slopes cross. It is looked for among medians of blocks of anchors, which
//! wild ones do not move. It is believed if the slopes differ by more than their bounds. Each side
//! is searched again, so that a frequency that drifts becomes as many pieces as the anchors can
//! resolve.

use super::block_fit;
use super::line_fit::{FitPoint, LineFit, fit, median};
use std::ops::Range;

/// Most steps of one clock, beyond which there is no clock, and most bends.
const MAX_STEPS: usize = 16;
/// Fewest anchors on either side of a step.
const MIN_SIDE: usize = 4;
/// Fewest anchors on either side of a bend.
const MIN_BEND_SIDE: usize = 8;
/// A step is believed if it is this many times what chance makes of the anchors.
const STEP_SIGMAS: f64 = 8.0;
/// Anchors on either side of a step that have to show it by themselves.
const NEAR: usize = 32;
/// Blocks of anchors among which a bend is looked for.
const BLOCKS: usize = 64;
/// The slopes of a bend differ by more than this many times their bounds: it is the best of many
/// places, of which chance makes some.
const SURE_BEND: f64 = 1.5;
/// A bend that moves nothing by more than this is none, microseconds.
const LEAST_BEND_US: f64 = 0.02;

/// Lines that are this many times as far off as the anchors are by themselves leave something to
/// explain.
const UNEXPLAINED: f64 = 2.0;
/// Lines that are nearer by this share explain the points better.
const MUCH_CLOSER: f64 = 0.7;

/// A straight piece.
pub(super) struct StraightPart {
    pub(super) line: LineFit,
    /// Its points.
    pub(super) range: Range<usize>,
    /// Where it begins and ends, x: at its first and last point, or at a bend.
    pub(super) extent: (f64, f64),
    /// It goes on where the piece before ends.
    pub(super) is_bend: bool,
}

impl StraightPart {
    /// The line through a range of points; `None` if they have no extent.
    pub(super) fn fit(points: &[FitPoint], range: Range<usize>) -> Option<Self> {
        let inside = points.get(range.clone())?;
        Some(Self {
            line: fit(inside)?,
            range,
            extent: (inside.first()?.x, inside.last()?.x),
            is_bend: false,
        })
    }
}

/// Fits a line to the points, which are by time, or several where the clock stepped or
/// bent.
pub(super) fn split(points: &[FitPoint]) -> Vec<StraightPart> {
    let mut parts = Vec::new();
    divide(points, 0..points.len(), false, &mut parts, MAX_STEPS);
    parts = better(points, parts);
    for index in 1..parts.len() {
        let Some([before, after]) = parts.get_mut(index - 1..=index) else {
            break;
        };
        if !after.is_bend {
            continue;
        }
        let (least, most) = (before.line.middle, after.line.middle);
        let crossing = before.line.crossing(&after.line);
        let edge = (before.extent.1 + after.extent.0) / 2.0;
        let at = match (least..=most).contains(&crossing) {
            true => crossing,
            false => edge,
        };
        (before.extent.1, after.extent.0) = (at, at);
    }
    parts
}

/// What explains the points better: these parts, or those of blocks that agree. The
/// second are looked for only where the first leave something to explain.
fn better(points: &[FitPoint], parts: Vec<StraightPart>) -> Vec<StraightPart> {
    let Some(noise) = block_fit::noise(points) else {
        return parts;
    };
    let steps = |parts: &[StraightPart]| parts.iter().skip(1).filter(|part| !part.is_bend).count();
    let is_plain = parts
        .iter()
        .all(|part| part.line.scatter <= UNEXPLAINED * noise);
    if is_plain && steps(&parts) == 0 {
        return parts;
    }
    let others = block_fit::parts(points, noise);
    let (own, other) = (off(points, &parts), off(points, &others));
    let is_closer = other < MUCH_CLOSER * own;
    // A step is a strong word where bends do as well.
    let has_fewer_steps = steps(&others) < steps(&parts) && other <= own / MUCH_CLOSER;
    match !others.is_empty() && (is_closer || has_fewer_steps) {
        true => others,
        false => parts,
    }
}

/// Mean distance of points from their parts' lines.
fn off(points: &[FitPoint], parts: &[StraightPart]) -> f64 {
    let parts = parts.iter().map(|part| {
        let inside = points.get(part.range.clone()).unwrap_or_default();
        let distance = |p: &FitPoint| (p.y - part.line.at(p.x)).abs();
        inside.iter().map(distance).sum::<f64>()
    });
    parts.sum::<f64>() / points.len().max(1) as f64
}

fn divide(
    points: &[FitPoint],
    range: Range<usize>,
    is_bend: bool,
    parts: &mut Vec<StraightPart>,
    steps: usize,
) {
    let inside = points.get(range.clone()).unwrap_or_default();
    let Some(part) = StraightPart::fit(points, range.clone()) else {
        return;
    };
    let line = &part.line;
    let found = (steps > 0).then(|| {
        let step = step(points, range.clone(), line).map(|at| (at, false));
        let side = (points.len() / BLOCKS).max(MIN_BEND_SIDE);
        let bend = bend(inside, line, side).map(|(at, is_bend)| (range.start + at, is_bend));
        // A place beside a bend looks like a step, and explains less.
        let away = |found: &(usize, bool)| distance(points, range.clone(), found.0);
        step.into_iter()
            .chain(bend)
            .min_by(|a, b| away(a).total_cmp(&away(b)))
    });
    if let Some((at, bends)) = found.flatten() {
        let known = parts.len();
        divide(points, range.start..at, is_bend, parts, steps / 2);
        let goes_on = bends && parts.len() > known;
        divide(points, at..range.end, goes_on, parts, steps / 2);
        if parts.len() > known {
            return;
        }
    }
    parts.push(StraightPart { is_bend, ..part });
}

/// Mean distance of points from two lines that part at an index.
fn distance(points: &[FitPoint], range: Range<usize>, at: usize) -> f64 {
    let mut sum = 0.0;
    for side in [range.start..at, at..range.end] {
        let side = points.get(side).unwrap_or_default();
        let Some(line) = fit(side) else {
            return f64::MAX;
        };
        sum += side.iter().map(|p| (p.y - line.at(p.x)).abs()).sum::<f64>();
    }
    sum / range.len().max(1) as f64
}

/// Where a clock stepped among points, if it did: where two lines are much nearer to
/// the points than one, and the points nearby show the same.
fn step(points: &[FitPoint], range: Range<usize>, one: &LineFit) -> Option<usize> {
    let n = range.len();
    if n < 2 * MIN_SIDE {
        return None;
    }
    let points_of = |range: Range<usize>| points.get(range).unwrap_or_default();
    // The largest jump between neighbours, of which small groups are the medians.
    let jump = |at: usize| {
        let rest = |r: Range<usize>| {
            let mut rests: Vec<f64> = points_of(r).iter().map(|p| p.y - one.at(p.x)).collect();
            median(&mut rests)
        };
        let side = MIN_SIDE.min(n / 2);
        (rest(at..(at + side).min(range.end)) - rest(at.saturating_sub(side).max(range.start)..at))
            .abs()
    };
    let places = range.start + MIN_SIDE..range.end - MIN_SIDE + 1;
    let at = places.max_by(|&a, &b| jump(a).total_cmp(&jump(b)))?;
    let near = at.saturating_sub(NEAR).max(range.start)..(at + NEAR).min(range.end);
    let is_step = |range: Range<usize>| {
        let (before, after) = (
            fit(points_of(range.start..at))?,
            fit(points_of(at..range.end))?,
        );
        let x = points.get(at)?.x;
        let height = (after.at(x) - before.at(x)).abs();
        let chance = before.scatter.max(after.scatter);
        let known = before.error_at(x) + after.error_at(x);
        Some(height > STEP_SIGMAS * chance && height > 2.0 * known && height > 1.0)
    };
    // A drifting frequency makes two long lines miss each other, but not two short ones.
    (is_step(range)? && is_step(near)?).then_some(at)
}

/// Where a clock bent among points, if it did, and whether the lines on both sides cross
/// there. `side`: fewest anchors on either side.
fn bend(points: &[FitPoint], one: &LineFit, side: usize) -> Option<(usize, bool)> {
    if points.len() < 2 * side {
        return None;
    }
    let clamp = |at: usize| at.clamp(side, points.len() - side);
    let mut at = clamp(knee(points, one)?);
    let sides = |at: usize| {
        let (before, after) = points.split_at_checked(at)?;
        Some((fit(before)?, fit(after)?))
    };
    let (mut before, mut after) = sides(at)?;
    let crossing = before.crossing(&after);
    let better = clamp(points.partition_point(|p| p.x < crossing));
    if (before.middle..after.middle).contains(&crossing) && better != at {
        at = better;
        (before, after) = sides(at)?;
    }
    let (first, x, last) = (points.first()?.x, points.get(at)?.x, points.last()?.x);
    let slopes = (before.slope - after.slope).abs();
    let moves = slopes * (x - first).min(last - x);
    let known = before.slope_error + after.slope_error;
    if slopes <= SURE_BEND * known || moves <= LEAST_BEND_US {
        return None;
    }
    let height = (before.at(x) - after.at(x)).abs();
    let crosses = (before.middle..=after.middle).contains(&before.crossing(&after));
    let is_near = height <= 2.0 * (before.error_at(x) + after.error_at(x));
    Some((at, crosses || is_near))
}

/// The index that divides points best into two lines, by least squares.
fn knee(points: &[FitPoint], one: &LineFit) -> Option<usize> {
    let size = points.len().div_ceil(BLOCKS).max(1);
    let extent = (points.last()?.x - points.first()?.x).max(1.0);
    let blocks: Vec<FitPoint> = points
        .chunks(size)
        .map(|chunk| {
            let mut xs: Vec<f64> = chunk.iter().map(|p| (p.x - one.middle) / extent).collect();
            let mut ys: Vec<f64> = chunk.iter().map(|p| p.y - one.at(p.x)).collect();
            FitPoint {
                x: median(&mut xs),
                y: median(&mut ys),
            }
        })
        .collect();
    let forward = costs(blocks.iter());
    let backward = costs(blocks.iter().rev());
    let cost = |at: &usize| {
        let before = forward.get(*at).copied().unwrap_or(f64::MAX);
        before + backward.get(blocks.len() - at).copied().unwrap_or(f64::MAX)
    };
    let best = (2..blocks.len().saturating_sub(1)).min_by(|a, b| cost(a).total_cmp(&cost(b)))?;
    Some(best * size)
}

/// For each number of points from the begin on, the square sum of their distances from
/// their line.
fn costs<'p>(points: impl Iterator<Item = &'p FitPoint>) -> Vec<f64> {
    let (mut n, mut x, mut y, mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
    let mut costs = vec![0.0];
    for p in points {
        // Updates around the mean lose no digits (Welford, 1962).
        n += 1.0;
        let (dx, dy) = (p.x - x, p.y - y);
        x += dx / n;
        y += dy / n;
        xx += dx * (p.x - x);
        xy += dx * (p.y - y);
        yy += dy * (p.y - y);
        let explained = if xx > 0.0 { xy * xy / xx } else { 0.0 };
        costs.push((yy - explained).max(0.0));
    }
    costs
}

#[cfg(test)]
#[path = "piecewise_fit_tests.rs"]
mod tests;
