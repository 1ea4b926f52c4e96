//! The layout of a flame graph, and its text.

use super::super::palette::Color;
use super::super::svg::Caption;
use super::super::{names, text};
use super::{FlameFrame, FlameTable};
use std::io::{self, Write};

const STYLE: &str = include_str!("flame.css");
const SCRIPT: &str = include_str!("flame.js");

/// Width without a script, in pixels.
const WIDTH: usize = 1200;
/// Left and right of the frames.
const MARGIN: usize = 10;
/// Height of a window for whose first screen the height of the rows is chosen.
const SCREEN: usize = 880;
/// Least and largest height of a row: the least leaves text readable.
const ROW: [usize; 2] = [13, 18];
/// Frames of less than this part of the picture do not affect the height of rows.
const NARROW: u64 = 200;
/// Height of a line of small text.
const LINE: usize = 16;

/// A kind of frame in the legend.
#[derive(Clone, Debug)]
pub(in crate::export) struct LegendEntry {
    /// Class of the frames that it stands for.
    pub(in crate::export) class: &'static str,
    /// What they are.
    pub(in crate::export) label: String,
    /// Their colour.
    pub(in crate::export) color: Color,
}

/// What the colours mean.
#[derive(Clone, Debug, Default)]
pub(in crate::export) struct Legend {
    /// In one row.
    pub(in crate::export) entries: Vec<LegendEntry>,
    /// After them.
    pub(in crate::export) note: &'static str,
}

/// A flame graph to be drawn.
pub(in crate::export) struct FlamePage<'a> {
    pub(in crate::export) caption: &'a Caption,
    pub(in crate::export) legend: Legend,
    pub(in crate::export) table: FlameTable<'a>,
    /// Narrower frames are not drawn.
    pub(in crate::export) least: u64,
    /// Class and colour of a frame.
    pub(in crate::export) look: &'a dyn Fn(&FlameFrame<'_>) -> (&'static str, Color),
    /// The value of a frame, with its unit.
    pub(in crate::export) value: &'a dyn Fn(&FlameFrame<'_>) -> String,
}

impl FlamePage<'_> {
    /// Writes the picture.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub(in crate::export) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let has_frames = self.table.root().total > 0;
        let rows = self.rows(self.least);
        let head = self.head_height();
        // Stacks that are a hair wide may go on below the screen.
        let wide = self.table.root().total / NARROW;
        let row = row_height(self.rows(wide.max(self.least)), head);
        let height = head + rows.max(3) * row + MARGIN;
        self.open(height, out)?;
        if has_frames {
            self.frames(head, row, rows, out)?;
        } else {
            let y = head + 2 * row;
            let nothing = "No samples were recorded.";
            writeln!(
                out,
                "<text x=\"{MARGIN}\" y=\"{y}\" font-size=\"14\">{nothing}</text>"
            )?;
        }
        self.head(head, has_frames, out)?;
        if has_frames {
            writeln!(out, "<script><![CDATA[\n{}]]></script>", compact(SCRIPT))?;
        }
        out.write_all(b"</svg>\n")
    }

    /// Frames of at least this width one above the other, at most.
    fn rows(&self, least: u64) -> usize {
        let depths = self.table.frames(least).map(|frame| frame.depth + 1);
        depths.max().unwrap_or(1)
    }

    fn head_height(&self) -> usize {
        // Title, subtitle, footer, legend, details.
        let legend = usize::from(!self.legend.entries.is_empty());
        let lines = 2 + self.caption.footer.len() + legend;
        32 + lines * LINE + 8
    }

    fn open(&self, height: usize, out: &mut dyn Write) -> io::Result<()> {
        // Two hyphens would end the comment.
        let mut notes = text::one_line(&self.caption.notes);
        while notes.contains("--") {
            notes = notes.replace("--", "- -");
        }
        writeln!(
            out,
            "<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"no\"?>\n\
             <svg class=\"flame\" version=\"1.1\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" xmlns=\"http://www.w3.org/2000/svg\" \
             xmlns:fg=\"http://github.com/jonhoo/inferno\" font-family=\"sans-serif\" \
             font-size=\"12\">\n\
             <!-- {notes} -->\n\
             <style><![CDATA[\n{}]]></style>\n\
             <rect class=\"back\" width=\"100%\" height=\"100%\" fill=\"#fafafa\"/>",
            compact(STYLE)
        )
    }

    fn frames(&self, head: usize, row: usize, rows: usize, out: &mut dyn Write) -> io::Result<()> {
        let total = self.table.root().total;
        let (width, height) = (WIDTH - 2 * MARGIN, rows * row);
        writeln!(
            out,
            "<svg id=\"frames\" class=\"frames\" x=\"{MARGIN}\" y=\"{head}\" width=\"{width}\" \
             height=\"{height}\" total_samples=\"{total}\" data-row=\"{row}\" \
             data-base=\"{}\" font-family=\"monospace\" font-size=\"{}\">",
            baseline(row),
            (row - 2).min(12)
        )?;
        for frame in self.table.frames(self.least) {
            self.frame(frame, row, out)?;
        }
        out.write_all(b"</svg>\n")
    }

    fn frame(&self, frame: &FlameFrame<'_>, row: usize, out: &mut dyn Write) -> io::Result<()> {
        let total = self.table.root().total;
        let name = match frame.depth {
            0 => "all",
            _ => names::shown(frame.name),
        };
        let (class, color) = (self.look)(frame);
        let (x, width) = (
            text::percent(frame.start, total),
            text::percent(frame.total, total),
        );
        let (y, height) = (frame.depth * row, row - 1);
        write!(
            out,
            "<g class=\"{class}\"><title>{} ({})</title>\
             <rect x=\"{x:.4}%\" y=\"{y}\" width=\"{width:.4}%\" height=\"{height}\" \
             fill=\"{color}\" fg:x=\"{}\" fg:w=\"{}\"/>",
            text::xml(name),
            (self.value)(frame),
            frame.start,
            frame.total,
        )?;
        // Characters are at most 7.3 pixels wide; a label needs three of them to be useful.
        let room = ((width / 100.0 * (WIDTH - 2 * MARGIN) as f64 - 6.0) / 7.3).max(0.0) as usize;
        if room > 2 {
            let label = text::xml(&text::fit(name, room));
            let y = y + baseline(row);
            write!(out, "<text x=\"{x:.4}%\" y=\"{y}\" dx=\"3\">{label}</text>")?;
        }
        out.write_all(b"</g>\n")
    }

    /// What stays in sight.
    fn head(&self, height: usize, has_frames: bool, out: &mut dyn Write) -> io::Result<()> {
        write!(
            out,
            "<g class=\"top\"><rect class=\"back\" width=\"100%\" height=\"{height}\" \
             fill=\"#fafafa\"/>\
             <text id=\"title\" class=\"title\" x=\"{MARGIN}\" y=\"22\" font-size=\"16\">{}</text>",
            text::xml(&self.caption.title)
        )?;
        let mut y = 32 + LINE - 4;
        write!(
            out,
            "<text id=\"subtitle\" class=\"line\" x=\"{MARGIN}\" y=\"{y}\">{}</text>",
            text::xml(&self.caption.subtitle)
        )?;
        for line in &self.caption.footer {
            y += LINE;
            let line = text::xml(line);
            write!(
                out,
                "<text class=\"line\" x=\"{MARGIN}\" y=\"{y}\">{line}</text>"
            )?;
        }
        y += LINE;
        if !self.legend.entries.is_empty() {
            self.legend.write(y, out)?;
            y += LINE;
        }
        write!(
            out,
            "<text id=\"details\" class=\"details\" x=\"{MARGIN}\" y=\"{}\"> </text>",
            y + 2
        )?;
        if has_frames {
            out.write_all(TOOLS.as_bytes())?;
        }
        out.write_all(b"</g>\n")
    }
}

/// The field to search in, as HTML in the right corner. The script shows it.
const TOOLS: &str = "<svg class=\"tools\" x=\"100%\" overflow=\"visible\">\
    <foreignObject x=\"-490\" y=\"3\" width=\"482\" height=\"28\">\
    <div xmlns=\"http://www.w3.org/1999/xhtml\"><span id=\"matched\" class=\"matched\"></span>\
    <input id=\"search\" type=\"search\" spellcheck=\"false\" autocomplete=\"off\" \
    placeholder=\"Search (Ctrl-F), text or regex\" aria-label=\"Search in frames\"/>\
    <button type=\"button\" id=\"unzoom\" \
    title=\"Show all frames, clear the search and marks (Esc)\">Reset</button>\
    </div></foreignObject></svg>";

impl Legend {
    fn write(&self, y: usize, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(b"<g id=\"legend\" class=\"legend\">")?;
        let mut x = MARGIN;
        for entry in &self.entries {
            let label = text::xml(&entry.label);
            write!(
                out,
                "<g data-kind=\"{}\"><rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" rx=\"2\" \
                 fill=\"{}\"/><text x=\"{}\" y=\"{y}\">{label}</text></g>",
                entry.class,
                y - 10,
                entry.color,
                x + 17,
            )?;
            // 12-pixel characters are about 7 pixels wide.
            x += 17 + entry.label.chars().count() * 7 + 14;
        }
        let note = text::xml(self.note);
        write!(out, "<text x=\"{x}\" y=\"{y}\">{note}</text></g>")
    }
}

/// Where a row's text stands, from the top of the row.
fn baseline(row: usize) -> usize {
    row - 1 - row / 4
}

/// Rows as high as they can be for the first screen to hold all, within limits.
fn row_height(rows: usize, head: usize) -> usize {
    let [least, most] = ROW;
    (SCREEN.saturating_sub(head) / rows.max(1)).clamp(least, most)
}

/// A style or script without its comments and what indents its lines.
fn compact(source: &str) -> String {
    let lines = source.lines().map(str::trim);
    let mut text = String::with_capacity(source.len());
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with("//")) {
        text.push_str(line);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_and_style_are_small_and_whole() {
        let size = compact(SCRIPT).len() + compact(STYLE).len();
        assert!(size < 15_000, "{size}");
        for source in [SCRIPT, STYLE] {
            assert!(!source.contains("]]>"));
            // Nothing is fetched from anywhere.
            assert!(!source.contains("http") && !source.contains("url("));
        }
    }

    #[test]
    fn rows_shrink_with_depth_but_stay_readable() {
        assert_eq!(row_height(10, 100), 18);
        assert_eq!(row_height(52, 100), 15);
        assert_eq!(row_height(500, 100), 13);
        assert_eq!(row_height(0, 5000), 13);
    }
}
