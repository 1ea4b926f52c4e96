//! Flame graphs of profiles: SVG with search and zoom.
//!
//! Colours show kinds of code (see `docs/output-formats.md`), the subtitle shows where the
//! profile comes from and what it lost.

use super::device::DeviceTotals;
use super::flame::{FlameFrame, FlamePage, FlameTable, Legend, LegendEntry};
use super::folded::FoldedStacks;
use super::launchers::Chosen;
use super::palette::Hue;
use super::stacks::SortedStacks;
use super::{ExportError, ExportOptions, Shown, Weight, text};
use aiprof_model::profile::{Profile, Values};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::io::{BufWriter, Write};

/// What stands around the frames of a flame graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caption {
    /// Above the picture.
    pub title: String,
    /// Below the title, smaller.
    pub subtitle: String,
    /// Below the subtitle, a line each.
    pub footer: Vec<String>,
    /// A comment inside the file.
    pub notes: String,
}

/// Draws a profile.
///
/// The tooltips give the weight and percent. A profile without samples gives a valid
/// picture that states it.
///
/// # Errors
///
/// [`ExportError::WeightsTooLarge`] when they add up to more than
/// [`folded::MAX_TOTAL`](super::folded::MAX_TOTAL), [`ExportError::Io`] when `out` fails.
pub fn write(
    profile: &Profile,
    options: &ExportOptions,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let chosen = Chosen::of(profile, options);
    let caption = caption(profile, options.shown, &chosen);
    let stacks = SortedStacks::from_profile(profile, options, &chosen)?;
    draw(stacks, &caption, options, profile.values, out)
}

/// Draws folded stacks, whose values are in the unit of `options.weight`.
///
/// # Errors
///
/// [`ExportError::Io`] when `out` fails.
pub fn write_folded(
    folded: &FoldedStacks,
    caption: &Caption,
    options: &ExportOptions,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let stacks = SortedStacks::from_folded(folded);
    draw(stacks, caption, options, Values::CpuTime, out)
}

fn draw(
    mut stacks: SortedStacks,
    caption: &Caption,
    options: &ExportOptions,
    values: Values,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    if options.inverted {
        stacks.reverse();
    }
    let total = stacks.total();
    let least = (total as f64 * options.min_width_percent / 100.0).ceil() as u64;
    // Most of a machine's frames are too narrow to be seen.
    stacks.prune(least);
    let hues = hues(&stacks);
    let mut table = FlameTable::new();
    for (path, value) in stacks.iter() {
        table.add(path, value, 0);
    }
    let look = |frame: &FlameFrame<'_>| match hues.get(frame.name) {
        Some(&hue) if frame.depth > 0 => (hue.class(), hue.shade(frame.name)),
        _ => (Hue::Process.class(), Hue::Process.base()),
    };
    let unit = Unit::of(options.weight, values);
    let page = FlamePage {
        caption,
        legend: legend(&hues),
        table,
        least,
        look: &look,
        value: &|frame| unit.share(frame.total, total),
    };
    finish(&page, out)
}

/// Writes a picture, with a buffer.
pub(super) fn finish(page: &FlamePage<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut out = BufWriter::with_capacity(1 << 16, out);
    page.write(&mut out)?;
    out.flush()?;
    Ok(())
}

/// What the values of a picture are counted in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    weight: Weight,
    noun: &'static str,
}

impl Unit {
    pub(super) fn of(weight: Weight, values: Values) -> Self {
        let noun = match (weight, values) {
            (Weight::Samples, Values::Launches) => " launches",
            (Weight::Samples, _) => " samples",
            (Weight::Time | Weight::Bytes, _) => "",
        };
        Self { weight, noun }
    }

    /// A value, and how much of the whole it is.
    pub(super) fn share(self, value: u64, total: u64) -> String {
        let percent = text::percent(value, total);
        let value = text::weighed(value, self.weight);
        format!("{value}{}, {percent:.2}%", self.noun)
    }
}

/// The kind of each name.
fn hues(stacks: &SortedStacks) -> FxHashMap<&str, Hue> {
    let hue = |(name, is_function)| match is_function {
        true => (name, Hue::of_frame(name)),
        false => (name, Hue::Process),
    };
    stacks.names().map(hue).collect()
}

/// The kinds that occur.
fn legend(hues: &FxHashMap<&str, Hue>) -> Legend {
    let used: BTreeSet<Hue> = hues.values().copied().collect();
    let entry = |hue: Hue| LegendEntry {
        class: hue.class(),
        label: hue.label().to_owned(),
        color: hue.base(),
    };
    Legend {
        entries: used.into_iter().map(entry).collect(),
        note: "",
    }
}

/// What stands around a profile.
fn caption(profile: &Profile, shown: Shown, chosen: &Chosen) -> Caption {
    let devices = DeviceTotals::of(profile);
    let mut title = text::title(profile);
    if !devices.replayed.is_empty() {
        title = text::fit(&format!("[replayed device] {title}"), text::TITLE);
    }
    let mut footer = devices.lines();
    match shown {
        Shown::All => footer.extend(chosen.line()),
        Shown::Cpu => footer.push("shown: CPU samples only".to_owned()),
        Shown::Device => footer.push("shown: device samples only".to_owned()),
    }
    Caption {
        title,
        subtitle: text::description(profile),
        notes: notes(profile, &footer),
        footer,
    }
}

/// The text about devices, and all losses, for the comment inside the file.
fn notes(profile: &Profile, devices: &[String]) -> String {
    let losses: Vec<String> = profile
        .losses
        .iter()
        .map(|(kind, n)| format!("{n} {}", kind.label()))
        .collect();
    let losses = if losses.is_empty() {
        "no losses".to_owned()
    } else {
        losses.join("; ")
    };
    let mut notes = devices.to_vec();
    notes.push(losses);
    notes.join("; ")
}
