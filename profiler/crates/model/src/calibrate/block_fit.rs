//! Straight parts of a clock that changes its frequency back and forth.
//!
//! A fit of two lines cannot distinguish such a clock from a straight one: both halves have the
//! same mean slope. So short blocks of anchors get lines of their own, and neighbours that agree
//! become one, those that agree best first. What is left are the clock's parts.

use super::line_fit::{FitPoint, fit, median};
use super::piecewise_fit::StraightPart;

/// Most blocks that a clock is cut into.
const MAX_BLOCKS: usize = 256;
/// Fewest anchors of a block.
const BLOCK: usize = 8;
/// Anchors of a window that shows how far they are off by themselves.
const WINDOW: usize = 12;
/// Fewest windows that show it.
const MIN_WINDOWS: usize = 4;
/// Lines agree if they differ by less than this many times their bounds.
const AGREE: f64 = 1.0;
/// Two blocks stay apart if a common line is more than this many times as far off as theirs.
const WORSE: f64 = 1.5;
/// Rounds in which borders are moved to where their lines cross.
const ROUNDS: usize = 3;

/// How far anchors are off by themselves, whatever the clock does; `None`: too few windows.
pub(super) fn noise(points: &[FitPoint]) -> Option<f64> {
    let windows = points.chunks_exact(WINDOW);
    let mut scatters: Vec<f64> = windows.filter_map(|w| Some(fit(w)?.scatter)).collect();
    (scatters.len() >= MIN_WINDOWS).then(|| median(&mut scatters))
}

/// The straight parts of a clock, by its points: blocks, and neighbours that agree.
pub(super) fn parts(points: &[FitPoint], noise: f64) -> Vec<StraightPart> {
    let size = points.len().div_ceil(MAX_BLOCKS).max(BLOCK);
    let mut blocks = blocks(points, size);
    join(points, &mut blocks, noise);
    // A block that lies across a border went to one of its sides.
    let near = 2 * size;
    for _ in 0..ROUNDS {
        for index in 1..blocks.len() {
            settle(points, &mut blocks, index, near);
        }
        join(points, &mut blocks, noise);
    }
    for index in 1..blocks.len() {
        let is_bend = bend(points, &blocks, index, near).is_some();
        if let Some(block) = blocks.get_mut(index) {
            block.is_bend = is_bend;
        }
    }
    blocks
}

fn blocks(points: &[FitPoint], size: usize) -> Vec<StraightPart> {
    let mut blocks: Vec<StraightPart> = Vec::new();
    let mut start = 0;
    while start < points.len() {
        // A rest that is no block belongs to the last one.
        let rest = points.len() - start;
        let len = if rest < 2 * size { rest } else { size };
        let range = start..start + len;
        start += len;
        let end = points.get(range.end - 1).map(|last| last.x);
        if let Some(block) = StraightPart::fit(points, range.clone()) {
            blocks.push(block);
        } else if let Some((last, end)) = blocks.last_mut().zip(end) {
            (last.range.end, last.extent.1) = (range.end, end);
        }
    }
    blocks
}

/// Joins neighbours that agree, the best first.
fn join(points: &[FitPoint], blocks: &mut Vec<StraightPart>, noise: f64) {
    let mut ratios: Vec<f64> = (1..blocks.len())
        .map(|index| ratio(points, blocks, index))
        .collect();
    loop {
        let best = ratios.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1));
        let Some((at, _)) = best.filter(|(_, ratio)| **ratio <= AGREE) else {
            return;
        };
        let Some([before, after]) = blocks.get(at..at + 2) else {
            return;
        };
        let range = before.range.start..after.range.end;
        let worst = before.line.scatter.max(after.line.scatter).max(noise);
        let joined = StraightPart::fit(points, range);
        let Some(joined) = joined.filter(|joined| joined.line.scatter <= WORSE * worst) else {
            ratios[at] = f64::INFINITY;
            continue;
        };
        blocks[at] = joined;
        blocks.remove(at + 1);
        ratios.remove(at);
        for index in [at, at + 1] {
            if index > 0 && index < blocks.len() {
                ratios[index - 1] = ratio(points, blocks, index);
            }
        }
    }
}

/// By how many times their bounds a block and the one before it differ.
fn ratio(points: &[FitPoint], blocks: &[StraightPart], index: usize) -> f64 {
    let Some([before, after]) = blocks.get(index - 1..=index) else {
        return f64::INFINITY;
    };
    let Some(point) = points.get(after.range.start) else {
        return f64::INFINITY;
    };
    let (a, b) = (&before.line, &after.line);
    let slopes = (a.slope - b.slope).abs() / (a.slope_error + b.slope_error);
    let heights = (a.at(point.x) - b.at(point.x)).abs();
    slopes.max(heights / (a.error_at(point.x) + b.error_at(point.x)))
}

/// Where the line of a block crosses that of the block before it, if they part there and not by a
/// step. The border may be wrong by `near` points.
fn bend(points: &[FitPoint], blocks: &[StraightPart], index: usize, near: usize) -> Option<f64> {
    let [before, after] = blocks.get(index - 1..=index)? else {
        return None;
    };
    let (a, b) = (&before.line, &after.line);
    let slopes = (a.slope - b.slope).abs();
    if slopes <= a.slope_error + b.slope_error {
        let x = points.get(after.range.start)?.x;
        let height = (a.at(x) - b.at(x)).abs();
        return (height <= a.error_at(x) + b.error_at(x)).then_some(x);
    }
    let x = a.crossing(b);
    // As far beside the border as the lines and the blocks at it are unsure.
    let unsure = (a.error_at(x) + b.error_at(x)) / slopes;
    let border = after.range.start;
    let first = points.get(border.saturating_sub(near).max(before.range.start))?;
    let last = points.get((border + near).min(after.range.end.saturating_sub(1)))?;
    (first.x - unsure..=last.x + unsure)
        .contains(&x)
        .then_some(x)
}

/// Moves the border before a block to where the lines cross.
fn settle(points: &[FitPoint], blocks: &mut [StraightPart], index: usize, near: usize) {
    let Some(x) = bend(points, blocks, index, near) else {
        return;
    };
    let Some([before, after]) = blocks.get_mut(index - 1..=index) else {
        return;
    };
    let least = before.range.start + BLOCK / 2;
    let most = after.range.end.saturating_sub(BLOCK / 2);
    let at = points.partition_point(|point| point.x < x);
    if at == after.range.start || !(least..=most).contains(&at) {
        return;
    }
    let sides = [before.range.start..at, at..after.range.end];
    let [Some(first), Some(second)] = sides.map(|side| StraightPart::fit(points, side)) else {
        return;
    };
    (*before, *after) = (first, second);
}
