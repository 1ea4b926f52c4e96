//! Tables of a page: scripts make them sortable, without scripts they can be read.

use super::escape;
use std::fmt::Write as _;

/// Most rows of a table.
pub(super) const ROWS: usize = 2000;

/// Texts longer than this are broken into lines.
const WIDE: usize = 16;

/// A cell.
pub(super) enum Cell {
    /// A name.
    Text(String),
    /// A whole number.
    Count(u64),
    /// A number with this many digits behind the point; `None`: it is not known.
    Number(Option<f64>, usize),
    /// A part of the whole in percent, with a bar.
    Percent(f64),
}

impl Cell {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    pub(super) fn number(value: f64, digits: usize) -> Self {
        Self::Number(Some(value), digits)
    }
}

impl From<usize> for Cell {
    fn from(count: usize) -> Self {
        Self::Count(count as u64)
    }
}

impl From<u64> for Cell {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<u32> for Cell {
    fn from(count: u32) -> Self {
        Self::Count(count.into())
    }
}

/// A table.
pub(super) struct HtmlTable<'a> {
    /// What it shows, for those who do not see it.
    pub(super) label: &'a str,
    /// Heads of its columns: whether numbers are in it, the words, and what they mean.
    pub(super) heads: &'a [(bool, &'a str, &'a str)],
    /// Whether rows are chosen by their text and by the rank in their first column.
    pub(super) has_filter: bool,
}

impl HtmlTable<'_> {
    /// Writes it: the first [`ROWS`] rows, and how many there are besides.
    pub(super) fn write(&self, rows: Vec<Vec<Cell>>, out: &mut String) {
        let label = escape::text(self.label);
        let filter = if self.has_filter { " data-filter" } else { "" };
        // Writing to a string cannot fail, here and below.
        let _ = write!(
            out,
            "<div class=\"scroll\" role=\"region\" aria-label=\"{label}\" tabindex=\"0\">\n\
             <table{filter}><caption class=\"unseen\">{label}</caption>\n<thead><tr>"
        );
        for (is_number, words, meaning) in self.heads {
            let class = if *is_number { " class=\"n\"" } else { "" };
            let _ = write!(
                out,
                "<th scope=\"col\"{class} title=\"{}\">{}</th>",
                escape::text(meaning),
                escape::text(words)
            );
        }
        out.push_str("</tr></thead>\n<tbody>\n");
        let left_out = rows.len().saturating_sub(ROWS);
        for row in rows.iter().take(ROWS) {
            out.push_str("<tr>");
            for cell in row {
                cell.write(out);
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</tbody></table></div>\n");
        if left_out > 0 {
            let left_out = grouped(left_out as u64);
            let _ = writeln!(
                out,
                "<p class=\"cut\">{left_out} further rows are not on this page.</p>"
            );
        }
    }
}

impl Cell {
    fn write(&self, out: &mut String) {
        let _ = match self {
            Self::Text(text) => {
                // Room for them in narrow windows; what is short does not need it.
                let class = if text.len() > WIDE {
                    " class=\"long\""
                } else {
                    ""
                };
                write!(out, "<td{class}><bdi>{}</bdi></td>", escape::text(text))
            }
            Self::Count(count) => write!(out, "<td class=\"n\">{}</td>", grouped(*count)),
            Self::Number(Some(value), digits) => {
                write!(out, "<td class=\"n\">{}</td>", number(*value, *digits))
            }
            Self::Number(None, _) => {
                write!(
                    out,
                    "<td class=\"n unknown\" title=\"unknown\">\u{2013}</td>"
                )
            }
            Self::Percent(percent) => {
                let width = percent.clamp(0.0, 100.0);
                write!(
                    out,
                    "<td class=\"n bar\">{}<svg viewBox=\"0 0 100 4\" preserveAspectRatio=\"none\" \
                     aria-hidden=\"true\"><rect width=\"{width:.1}\" height=\"4\"/></svg></td>",
                    number(*percent, 2)
                )
            }
        };
    }
}

/// A number with separators: `-1,234.50`. Huge ones are written with an exponent.
pub(super) fn number(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return "\u{2013}".to_owned();
    }
    if value.abs() >= 1e15 {
        return format!("{value:.3e}");
    }
    let text = format!("{value:.digits$}");
    let (sign, text) = match text.strip_prefix('-') {
        // What is rounded to nothing has no sign.
        Some(rest) if rest.chars().all(|c| matches!(c, '0' | '.')) => ("", rest),
        Some(rest) => ("\u{2212}", rest),
        None => ("", text.as_str()),
    };
    let (whole, part) = match text.split_once('.') {
        Some((whole, part)) => (whole, format!(".{part}")),
        None => (text, String::new()),
    };
    let whole = whole.parse().map_or_else(|_| whole.to_owned(), grouped);
    format!("{sign}{whole}{part}")
}

/// As [`number`], with a sign also where it is positive.
pub(super) fn signed(value: f64, digits: usize) -> String {
    let text = number(value, digits);
    match value > 0.0 && text.chars().any(|c| matches!(c, '1'..='9')) {
        true => format!("+{text}"),
        false => text,
    }
}

/// 1,234,567.
pub(super) fn grouped(count: u64) -> String {
    crate::export::text::grouped(count)
}

/// A time with the unit in which it is read best.
pub(super) fn time(us: f64) -> String {
    let (value, unit) = match us.abs() {
        us if us >= 60e6 => return format!("{} min {:.1} s", (us / 60e6) as u64, us % 60e6 / 1e6),
        size if size >= 1e6 => (us / 1e6, "s"),
        size if size >= 1e3 => (us / 1e3, "ms"),
        _ => (us, "\u{b5}s"),
    };
    format!("{} {unit}", number(value, 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_separators_and_no_sign_of_nothing() {
        for (value, digits, text) in [
            (1_234_567.891, 2, "1,234,567.89"),
            (-1234.5, 1, "\u{2212}1,234.5"),
            (-0.0004, 3, "0.000"),
            (0.5, 0, "0"),
            (f64::NAN, 3, "\u{2013}"),
            (1e300, 3, "1.000e300"),
        ] {
            assert_eq!(number(value, digits), text);
        }
        assert_eq!(signed(3.25, 1), "+3.2");
        assert_eq!(signed(0.0001, 1), "0.0");
        assert_eq!(signed(-3.0, 1), "\u{2212}3.0");
    }

    #[test]
    fn times_choose_their_unit() {
        let shown = [0.5, 1500.0, 2_500_000.0, 90_000_000.0].map(time);
        assert_eq!(
            shown,
            ["0.500 \u{b5}s", "1.500 ms", "2.500 s", "1 min 30.0 s"]
        );
    }

    #[test]
    fn rows_beyond_the_limit_are_counted() {
        let table = HtmlTable {
            label: "<t>",
            heads: &[(false, "name", "x"), (true, "calls", "\"y\"")],
            has_filter: false,
        };
        let rows = |count: usize| (0..count).map(|n| vec![Cell::text("a<b"), n.into()]);
        let mut page = String::new();
        table.write(rows(ROWS + 1234).collect(), &mut page);
        assert_eq!(page.matches("<tr><td>").count(), ROWS);
        assert!(page.contains("1,234 further rows are not on this page"));
        assert!(page.contains("a&lt;b") && !page.contains("a<b") && !page.contains("<t>"));
        let mut page = String::new();
        table.write(rows(3).collect(), &mut page);
        assert!(!page.contains("further rows"));
    }
}
