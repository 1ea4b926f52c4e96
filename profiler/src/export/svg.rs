//! Flame graphs: SVG with search and zoom, drawn by inferno.
//!
//! Colours tell kinds of code apart (see `docs/output-formats.md`), the
//! subtitle says where the profile comes from and what it lost.

use super::device::DeviceTotals;
use super::folded::FoldedStacks;
use super::legend::{Legend, LegendWriter};
use super::palette::Hue;
use super::stacks::Stacks;
use super::{ExportError, ExportOptions, Shown, Weight, text};
use crate::profile::{Profile, Values};
use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};
use inferno::flamegraph::{self, Options, TextTruncateDirection};
use std::collections::BTreeSet;
use std::io::{BufWriter, Write};

/// What stands around the frames of a flame graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caption {
    /// Above the picture.
    pub title: String,
    /// Below the title, smaller.
    pub subtitle: String,
    /// Below the picture, a line each.
    pub footer: Vec<String>,
    /// A comment inside the file.
    pub notes: String,
}

/// Draws a profile.
///
/// The tooltips give the weight and percent. A profile without samples gives a
/// valid picture that says so.
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
    let caption = caption(profile, options.shown);
    let stacks = Stacks::from_profile(profile, options)?;
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
    let stacks = Stacks::from_folded(folded);
    draw(stacks, caption, options, Values::CpuTime, out)
}

fn draw(
    mut stacks: Stacks,
    caption: &Caption,
    options: &ExportOptions,
    values: Values,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    if options.inverted {
        stacks.reverse();
    }
    let total = stacks.total();
    if total == 0 {
        return write_empty(caption, out);
    }
    // inferno would drop narrow frames as well, but only after it has handled
    // all of them.
    let least = (total as f64 * options.min_width_percent / 100.0).ceil() as u64;
    stacks.prune(least);
    let (mut palette, hues) = colours(&stacks);
    let lines = lines(&stacks);
    drop(stacks);

    let mut config = config(caption, options.weight, total);
    if (options.weight, values) == (Weight::Samples, Values::Launches) {
        config.count_name = "launches".to_owned();
    }
    config.palette_map = Some(&mut palette);
    config.min_width = 0.0;
    let legend = Legend {
        entries: hues.iter().map(|hue| (hue.label(), hue.base())).collect(),
        footer: caption.footer.clone(),
    };
    render(config, &lines, legend, out)
}

/// What stands around a profile.
fn caption(profile: &Profile, shown: Shown) -> Caption {
    let devices = DeviceTotals::of(profile);
    let mut title = text::title(profile);
    if !devices.replayed.is_empty() {
        title = text::fit(&format!("[replayed device] {title}"), 90);
    }
    let mut footer = devices.lines();
    match shown {
        Shown::All => {}
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

/// Has inferno draw lines that are sorted by frame, and adds a legend.
pub(super) fn render(
    mut config: Options<'_>,
    lines: &[String],
    legend: Legend,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let mut out = BufWriter::with_capacity(1 << 16, out);
    let mut with_legend = LegendWriter::new(&mut out, legend);
    // A flame chart keeps the order of its lines, reading them from the last:
    // inferno would sort them by byte and so split `f` where a sibling is
    // called `f x`.
    config.flame_chart = true;
    flamegraph::from_lines(
        &mut config,
        lines.iter().rev().map(String::as_str),
        &mut with_legend,
    )?;
    with_legend.finish()?;
    Ok(())
}

/// inferno's options that all our flame graphs share.
pub(super) fn config(caption: &Caption, weight: Weight, total: u64) -> Options<'static> {
    let mut config = Options::default();
    config.title = text::one_line(&caption.title);
    config.subtitle = Some(text::one_line(&caption.subtitle));
    config.notes = text::one_line(&caption.notes).replace("--", "- -");
    config.bgcolors = Some(BackgroundColor::Flat(Color::new(250, 250, 250)));
    config.text_truncate_direction = TextTruncateDirection::Right;
    match weight {
        Weight::Samples => config.count_name = "samples".to_owned(),
        Weight::Bytes => config.count_name = "bytes".to_owned(),
        // From a second up, milliseconds are exact enough for the percentages
        // that inferno makes of the rounded values.
        Weight::Time if total >= 1_000_000 => {
            config.count_name = "ms".to_owned();
            config.factor = 0.001;
        }
        Weight::Time => config.count_name = "microseconds".to_owned(),
    }
    config
}

/// One line per stack, as inferno reads them.
fn lines(stacks: &Stacks) -> Vec<String> {
    stacks
        .iter()
        .map(|(frames, value)| {
            let mut line = String::new();
            for frame in frames {
                line.push_str(frame);
                line.push(';');
            }
            line.pop();
            line.push(' ');
            line.push_str(&value.to_string());
            line
        })
        .collect()
}

/// A colour for every name, and the hues used.
fn colours(stacks: &Stacks) -> (PaletteMap, Vec<Hue>) {
    let mut palette = PaletteMap::default();
    let mut hues = BTreeSet::from([Hue::Process]);
    palette.insert("", Hue::Process.base());
    for (name, is_function) in stacks.names() {
        let hue = if is_function {
            Hue::of_frame(name)
        } else {
            Hue::Process
        };
        hues.insert(hue);
        palette.insert(name, hue.shade(name));
    }
    (palette, hues.into_iter().collect())
}

/// What is said about devices, and all losses, for the comment inside the file.
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

/// A picture that says that there is nothing to see.
pub(super) fn write_empty(caption: &Caption, out: &mut dyn Write) -> Result<(), ExportError> {
    let height = 120 + 17 * caption.footer.len();
    let mut svg = format!(
        "<?xml version=\"1.0\" standalone=\"no\"?>\n\
         <svg version=\"1.1\" width=\"1200\" height=\"{height}\" viewBox=\"0 0 1200 {height}\" \
         xmlns=\"http://www.w3.org/2000/svg\" font-family=\"monospace\" font-size=\"12\" \
         text-anchor=\"middle\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"rgb(250,250,250)\"/>\n",
    );
    let rows = [
        (24, 17, text::xml(&caption.title)),
        (48, 12, text::xml(&caption.subtitle)),
        (84, 14, "No samples were recorded.".to_owned()),
    ];
    for (y, size, row) in rows {
        svg.push_str(&format!(
            "<text x=\"600\" y=\"{y}\" font-size=\"{size}\">{row}</text>\n"
        ));
    }
    for (line, i) in caption.footer.iter().zip(0..) {
        let (line, y) = (text::xml(line), 120 + 17 * i);
        svg.push_str(&format!("<text x=\"600\" y=\"{y}\">{line}</text>\n"));
    }
    svg.push_str("</svg>\n");
    out.write_all(svg.as_bytes())?;
    out.flush()?;
    Ok(())
}
