//! Adds a legend below a flame graph that inferno writes.
//!
//! inferno has no legend. Its output is an SVG whose header and fixed elements
//! come before `<svg id="frames"`: the legend goes there, and the picture is
//! made taller by its height. Where that place is not found the picture passes
//! through as it is.

use super::text;
use inferno::flamegraph::color::Color;
use std::io::{self, Write};

/// What is added below the picture.
#[derive(Clone, Debug, Default)]
pub(super) struct Legend {
    /// Labels and the colours that they explain, in one row.
    pub(super) entries: Vec<(&'static str, Color)>,
    /// Lines of text below them.
    pub(super) footer: Vec<String>,
}

/// Height of the row of colours in pixels.
const HEIGHT: usize = 22;

/// Height of a line of the footer in pixels.
const LINE: usize = 17;

impl Legend {
    fn height(&self) -> usize {
        HEIGHT + LINE * self.footer.len()
    }
}

/// What the elements before the frames end with.
const FRAMES: &[u8] = b"<svg id=\"frames\"";

/// Most bytes to look through for [`FRAMES`]: the header holds 20 KB of script.
const MAX_HEAD: usize = 1 << 20;

/// Passes an SVG on and inserts a legend.
pub(super) struct LegendWriter<'a> {
    out: &'a mut dyn Write,
    legend: Legend,
    /// What was written so far; `None` once the legend was inserted.
    head: Option<Vec<u8>>,
}

impl<'a> LegendWriter<'a> {
    /// A writer to `out` that adds this legend.
    pub(super) fn new(out: &'a mut dyn Write, legend: Legend) -> Self {
        Self {
            out,
            legend,
            head: Some(Vec::new()),
        }
    }

    /// Writes what is still held back.
    pub(super) fn finish(mut self) -> io::Result<()> {
        if let Some(head) = self.head.take() {
            self.out.write_all(&head)?;
        }
        self.out.flush()
    }
}

impl Write for LegendWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(head) = &mut self.head else {
            return self.out.write(bytes);
        };
        // The mark may begin in what was written before.
        let from = head.len().saturating_sub(FRAMES.len());
        head.extend_from_slice(bytes);
        let found = head[from..]
            .windows(FRAMES.len())
            .position(|window| window == FRAMES);
        if let Some(position) = found {
            let text = with_legend(head, from + position, &self.legend);
            self.head = None;
            self.out.write_all(&text)?;
        } else if head.len() > MAX_HEAD
            && let Some(head) = self.head.take()
        {
            self.out.write_all(&head)?;
        }
        Ok(bytes.len())
    }

    /// Does nothing: [`Self::finish`] writes what is held back.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `head` made taller, with the legend inserted at `position`.
fn with_legend(head: &[u8], position: usize, legend: &Legend) -> Vec<u8> {
    let (before, after) = head.split_at(position);
    let before = String::from_utf8_lossy(before);
    let Some(height) = image_height(&before) else {
        return head.to_vec();
    };
    let taller = height.saturating_add(legend.height());
    let mut text = before
        .replace(
            &format!(" height=\"{height}\""),
            &format!(" height=\"{taller}\""),
        )
        .replacen(
            &format!(" {height}\" xmlns="),
            &format!(" {taller}\" xmlns="),
            1,
        );
    text.push_str(&elements(height, legend));
    let mut text = text.into_bytes();
    text.extend_from_slice(after);
    text
}

/// The value of the first `height` attribute.
fn image_height(svg: &str) -> Option<usize> {
    let (_, rest) = svg.split_once(" height=\"")?;
    rest.split_once('"')?.0.parse().ok()
}

/// The legend: a coloured square and a label each, in a row at height `y`, and the
/// footer below.
fn elements(y: usize, legend: &Legend) -> String {
    use std::fmt::Write as _;
    // inferno's search button is nearly invisible until the mouse finds it.
    let mut text =
        String::from("<style type=\"text/css\">#search { opacity:0.6; }</style><g id=\"legend\">");
    let mut x = 10;
    for (label, color) in &legend.entries {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" rx=\"2\" fill=\"rgb({},{},{})\"/>\
             <text x=\"{}\" y=\"{}\">{label}</text>",
            y + 1,
            color.r,
            color.g,
            color.b,
            x + 17,
            y + 11,
        );
        // 12-pixel monospace characters are about 7.2 pixels wide.
        x += 17 + label.len() * 36 / 5 + 18;
    }
    for (line, i) in legend.footer.iter().zip(0..) {
        let line = text::xml(line);
        let y = y + HEIGHT + 11 + LINE * i;
        let _ = write!(text, "<text x=\"10\" y=\"{y}\">{line}</text>");
    }
    text.push_str("</g>");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SVG: &str = r#"<svg width="9" height="76" viewBox="0 0 9 76" xmlns="x"><rect y="0" height="76"/><svg id="frames" x="1"><rect height="76"/></svg></svg>"#;

    fn pass(pieces: impl Iterator<Item = u8>) -> String {
        let mut out = Vec::new();
        let legend = Legend {
            entries: vec![("kernel", Color::new(1, 2, 3))],
            footer: vec!["a < b".to_owned()],
        };
        let mut writer = LegendWriter::new(&mut out, legend);
        for byte in pieces {
            writer.write_all(&[byte]).unwrap();
        }
        writer.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_picture_grows_by_the_legend() {
        let text = pass(SVG.bytes());
        assert!(text.starts_with(
            r#"<svg width="9" height="115" viewBox="0 0 9 115" xmlns="x"><rect y="0" height="115"/><style"#
        ));
        assert!(text.contains(r#"<g id="legend"><rect x="10" y="77""#));
        assert!(
            text.contains(">kernel</text><text x=\"10\" y=\"109\">a &lt; b</text></g><svg id=\"frames\" x=\"1\"><rect height=\"76\"/>")
        );
    }

    #[test]
    fn other_documents_pass_unchanged() {
        for document in ["", "<svg/>", "<svg id=\"frames\">"] {
            assert_eq!(pass(document.bytes()), document);
        }
        let large = "x".repeat(MAX_HEAD + 10) + SVG;
        assert_eq!(pass(large.bytes()), large);
    }
}
