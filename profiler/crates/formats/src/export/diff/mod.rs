//! Differences between two recordings: a differential flame graph, and a table
//! of the functions that changed most.
//!
//! Both start from folded stacks. The first recording is scaled to the total of the
//! second, so that recordings of different lengths compare: what is shown is
//! how the *shares* moved.

mod functions;

pub use functions::{ComparedProfile, SampleCount, compare, table, verdict};

use super::flame::{FlameFrame, FlamePage, FlameTable, Legend, LegendEntry};
use super::folded::FoldedStacks;
use super::palette::Color;
use super::svg::{self, Caption};
use super::{ExportError, ExportOptions, names, text};
use aiprof_model::profile::Values;
use aiprof_tables::compare::Verdict;
use aiprof_tables::compare::shares::SharesCompared;
use rustc_hash::FxHashMap;
use std::io::Write;

/// Which recording gives the frames their widths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Widths {
    /// The second one: what is new or grew is visible, what vanished is not.
    #[default]
    After,
    /// The first one, scaled: what vanished is visible, what is new is not.
    Before,
}

/// How to compare.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiffOptions {
    /// Unit of the values, smallest frame, direction.
    pub export: ExportOptions,
    /// Which recording gives the widths.
    pub widths: Widths,
    /// Keep process ids in the stacks. They differ between recordings, so that
    /// nothing but processes that lived through both would match.
    pub keep_pids: bool,
    /// Keep the offsets of device instructions (`0x1b8_[g]`). They differ between
    /// builds of a kernel: one more instruction at its begin, and none would match.
    pub keep_offsets: bool,
}

/// One stack in both recordings, the first scaled to the second's total.
type Both = (u64, u64);

/// Draws a differential flame graph: red frames grew, blue ones shrank, by
/// their own time without what they call; the more saturated, the more. Frames of
/// functions whose own share is within noise, by `found`, have the colour of those that
/// did not change.
///
/// # Errors
///
/// [`ExportError::Io`] when `out` fails.
pub fn write_svg(
    before: &FoldedStacks,
    after: &FoldedStacks,
    title: &str,
    options: &DiffOptions,
    found: &SharesCompared,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let weight = options.export.weight;
    let caption = Caption {
        title: title.to_owned(),
        subtitle: format!(
            "{}; {}",
            functions::verdict(found),
            subtitle(before, after, options)
        ),
        ..Caption::default()
    };
    let stacks = join(before, after, options);
    let total = match options.widths {
        Widths::After => after.total,
        Widths::Before => stacks.iter().map(|(_, both)| both.0).sum(),
    };
    let paths = paths(&stacks, options);
    let mut table = FlameTable::new();
    for (path, (width, other)) in &paths {
        table.add(path.iter().copied(), *width, *other);
    }
    let least = (total as f64 * options.export.min_width_percent / 100.0).ceil() as u64;
    let points = |width: u64, other: u64| {
        let change = text::percent(width, total) - text::percent(other, total);
        match options.widths {
            Widths::After => change,
            Widths::Before => -change,
        }
    };
    let own = |frame: &FlameFrame<'_>| points(frame.own, frame.other_own);
    let verdicts = functions::verdicts(found);
    let verdict = |frame: &FlameFrame<'_>| match verdicts.get(frame.name) {
        // On one path a function may seem to go the other way than as a whole.
        Some((Verdict::Changed, grew)) if *grew != (own(frame) > 0.0) => Verdict::WithinNoise,
        Some((verdict, _)) => *verdict,
        // The root and processes are no functions.
        None => Verdict::NotKnown,
    };
    let colored = |frame: &FlameFrame<'_>| match verdict(frame) {
        Verdict::WithinNoise => 0.0,
        Verdict::Changed | Verdict::NotKnown => own(frame),
    };
    let most = table
        .frames(least)
        .map(|frame| colored(frame).abs())
        .fold(0.0, f64::max);
    let unit = svg::Unit::of(weight, Values::CpuTime);
    let page = FlamePage {
        caption: &caption,
        legend: scale(most, found.has_intervals),
        table,
        least,
        look: &|frame| look(colored(frame), most),
        value: &|frame| {
            let all = points(frame.total, frame.other_total);
            let said = match verdict(frame) {
                Verdict::WithinNoise => " (within noise)",
                Verdict::Changed | Verdict::NotKnown => "",
            };
            format!(
                "{}; self {:+.2} points{said}, total {all:+.2} points",
                unit.share(frame.total, total),
                own(frame)
            )
        },
    };
    svg::finish(&page, out)
}

/// Changes of less than this many percentage points have no colour of their own.
const UNCHANGED: f64 = 0.005;

/// Class and colour of a frame whose own time changed by `points`, where `most` is the
/// largest change.
fn look(points: f64, most: f64) -> (&'static str, Color) {
    if points.abs() < UNCHANGED || most <= 0.0 {
        return ("same", SAME);
    }
    let part = (points.abs() / most).clamp(0.0, 1.0);
    match points > 0.0 {
        true => ("grew", between(SAME, GREW, part)),
        false => ("shrank", between(SAME, SHRANK, part)),
    }
}

/// The ends and the middle of the scale: black text is readable on all of them.
const GREW: Color = Color::new(244, 96, 78);
const SHRANK: Color = Color::new(92, 148, 245);
const SAME: Color = Color::new(219, 222, 227);

fn between(from: Color, to: Color, part: f64) -> Color {
    let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * part).round() as u8;
    Color::new(mix(from.r, to.r), mix(from.g, to.g), mix(from.b, to.b))
}

/// The colours with the changes that they stand for.
fn scale(most: f64, has_intervals: bool) -> Legend {
    let steps: &[f64] = match most < UNCHANGED {
        true => &[0.0],
        false => &[-1.0, -0.5, 0.0, 0.5, 1.0],
    };
    let entry = |&part: &f64| {
        let points = part * most;
        let (class, color) = look(points, most);
        let label = match part {
            -1.0 => format!("{points:+.2}: shrank"),
            0.0 if has_intervals => "unchanged or within noise".to_owned(),
            0.0 => "unchanged".to_owned(),
            1.0 => format!("{points:+.2}: grew"),
            _ => format!("{points:+.2}"),
        };
        LegendEntry {
            class,
            label,
            color,
        }
    };
    Legend {
        entries: steps.iter().map(entry).collect(),
        note: match has_intervals {
            true => "change of self time in percentage points of the total",
            false => "change of self time in percentage points of the total; noise is unknown",
        },
    }
}

/// Stacks in the order of their frames, with the value that gives the width first.
fn paths<'a>(stacks: &'a [(String, Both)], options: &DiffOptions) -> Vec<(Vec<&'a str>, Both)> {
    let path = |(stack, (before, after)): &'a (String, Both)| {
        let mut names: Vec<&str> = stack.split(';').collect();
        if options.export.inverted {
            names.reverse();
        }
        let both = match options.widths {
            Widths::After => (*after, *before),
            Widths::Before => (*before, *after),
        };
        (names, both)
    };
    let mut paths: Vec<_> = stacks.iter().map(path).collect();
    paths.sort_unstable();
    paths
}

fn subtitle(before: &FoldedStacks, after: &FoldedStacks, options: &DiffOptions) -> String {
    let weight = options.export.weight;
    let widths = match options.widths {
        Widths::After => "widths: after",
        Widths::Before => "widths: before",
    };
    format!(
        "before: {}, after: {}; before is scaled to after; {widths}",
        text::weighed(before.total, weight),
        text::weighed(after.total, weight),
    )
}

/// All stacks of both recordings, the first scaled to the total of the second,
/// in no order that matters.
fn join(before: &FoldedStacks, after: &FoldedStacks, options: &DiffOptions) -> Vec<(String, Both)> {
    let mut stacks: FxHashMap<String, Both> = FxHashMap::default();
    for (stack, value) in scaled(before, after.total) {
        stacks.entry(normalized(stack, options)).or_default().0 += value;
    }
    for (stack, value) in &after.stacks {
        stacks.entry(normalized(stack, options)).or_default().1 += value;
    }
    let mut stacks: Vec<(String, Both)> = stacks.into_iter().collect();
    stacks.sort_unstable();
    stacks
}

/// A stack with clean names and, unless wanted, without the process id and without
/// offsets in device code.
fn normalized(stack: &str, options: &DiffOptions) -> String {
    let is_pid = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit());
    stack
        .split(';')
        .enumerate()
        .filter(|&(depth, name)| options.keep_pids || depth != 1 || !is_pid(name))
        .filter(|&(_, name)| options.keep_offsets || !names::is_device_offset(name))
        .map(|(_, name)| names::clean(name))
        .collect::<Vec<_>>()
        .join(";")
}

/// The stacks of a recording with values that add up to `total`: rounded down,
/// and what is missing given to the largest remainders.
fn scaled(folded: &FoldedStacks, total: u64) -> Vec<(&str, u64)> {
    // Without a second recording there is nothing to scale to.
    let total = if total == 0 { folded.total } else { total };
    let whole = u128::from(folded.total.max(1));
    let mut missing = if folded.total == 0 { 0 } else { total };
    let mut remainders = Vec::with_capacity(folded.stacks.len());
    let mut stacks = Vec::with_capacity(folded.stacks.len());
    for (i, (stack, value)) in folded.stacks.iter().enumerate() {
        let product = u128::from(*value) * u128::from(total);
        let floor = u64::try_from(product / whole).unwrap_or(u64::MAX);
        missing = missing.saturating_sub(floor);
        remainders.push((std::cmp::Reverse(product % whole), i));
        stacks.push((stack.as_str(), floor));
    }
    remainders.sort_unstable();
    for (_, i) in remainders
        .into_iter()
        .take(usize::try_from(missing).unwrap_or(usize::MAX))
    {
        stacks[i].1 += 1;
    }
    stacks
}
