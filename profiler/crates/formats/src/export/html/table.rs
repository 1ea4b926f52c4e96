//! Tables of a page: scripts make them sortable, without scripts they can be read.

use super::escape;
use aiprof_tables::{Cell, Column, ColumnLook, Table};
use std::fmt::Write as _;

/// Most rows of a table.
pub(super) const ROWS: usize = 2000;

/// Texts longer than this are broken into lines.
const WIDE: usize = 16;

/// Writes a table: the first [`ROWS`] rows, and how many there are besides. `has_filter`: rows
/// are chosen by their text and by the rank in their first column.
pub(super) fn write(table: &Table, has_filter: bool, out: &mut String) {
    let label = escape::text(&table.title);
    let filter = if has_filter { " data-filter" } else { "" };
    // Writing to a string cannot fail, here and below.
    let _ = write!(
        out,
        "<div class=\"scroll\" role=\"region\" aria-label=\"{label}\" tabindex=\"0\">\n\
         <table{filter}><caption class=\"unseen\">{label}</caption>\n<thead><tr>"
    );
    for column in &table.columns {
        let class = match column.look {
            ColumnLook::Name => "",
            ColumnLook::Value | ColumnLook::Bar => " class=\"n\"",
        };
        let _ = write!(
            out,
            "<th scope=\"col\"{class} title=\"{}\">{}</th>",
            escape::text(column.about),
            escape::text(column.name)
        );
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in table.rows.iter().take(ROWS) {
        out.push_str("<tr>");
        for (cell, column) in row.iter().zip(&table.columns) {
            write_cell(cell, *column, out);
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    cut(table.rows.len().saturating_sub(ROWS), "rows", out);
}

/// Writes how many there are that the page leaves out.
pub(super) fn cut(hidden: usize, what: &str, out: &mut String) {
    if hidden > 0 {
        let hidden = grouped(hidden as u64);
        let _ = writeln!(
            out,
            "<p class=\"cut\">{hidden} further {what} are not on this page.</p>"
        );
    }
}

fn write_cell(cell: &Cell, column: Column, out: &mut String) {
    let _ = match cell {
        Cell::Text(text) => {
            // Room for them in narrow windows; what is short does not need it.
            let class = if text.len() > WIDE {
                " class=\"long\""
            } else {
                ""
            };
            write!(out, "<td{class}><bdi>{}</bdi></td>", escape::text(text))
        }
        Cell::Count(count) => write!(out, "<td class=\"n\">{}</td>", grouped(*count)),
        Cell::Number(percent) if column.look == ColumnLook::Bar => {
            let width = percent.clamp(0.0, 100.0);
            write!(
                out,
                "<td class=\"n bar\">{}<svg viewBox=\"0 0 100 4\" preserveAspectRatio=\"none\" \
                 aria-hidden=\"true\"><rect width=\"{width:.1}\" height=\"4\"/></svg></td>",
                number(*percent, column.digits)
            )
        }
        Cell::Number(value) => {
            write!(
                out,
                "<td class=\"n\">{}</td>",
                number(*value, column.digits)
            )
        }
        Cell::None => write!(
            out,
            "<td class=\"n unknown\" title=\"unknown\">\u{2013}</td>"
        ),
    };
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
        let written = |count: usize| {
            let rows = (0..count).map(|n| vec!["a<b".into(), n.into()]);
            let table = Table::described("<t>", "name name: x\n0 calls: \"y\"", rows);
            let mut page = String::new();
            write(&table, false, &mut page);
            page
        };
        let page = written(ROWS + 1234);
        assert_eq!(page.matches("<tr><td>").count(), ROWS);
        assert!(page.contains("1,234 further rows are not on this page"));
        assert!(page.contains("a&lt;b") && !page.contains("a<b") && !page.contains("<t>"));
        assert!(!written(3).contains("further rows"));
    }
}
