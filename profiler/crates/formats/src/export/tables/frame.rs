//! `-f pddf`: all slices as a text table, as pandas 3 prints a data frame.

use aiprof_model::timeline::{Event, NONE, Timeline};
use aiprof_trace::analyze::utilization::python::scientific;
use std::borrow::Cow;
use std::io::{self, Write};

/// Names of the columns, acelyzer's spelling.
const COLUMNS: [&str; 9] = [
    "Rank",
    "Timestamp",
    "Duration",
    "Category",
    "Event Name",
    "Event CLass",
    "Job",
    "Size",
    "PT_Active",
];

/// Where the times are.
const TIMES: std::ops::Range<usize> = 1..3;

/// Decimals of pandas.
const DECIMALS: usize = 6;

/// What the table shall contain.
#[derive(Clone, Copy)]
pub struct FrameOptions<'a> {
    /// Names of event classes, by [`Event::class`].
    pub class_name: &'a dyn Fn(u8) -> &'static str,
    /// Whether jobs are written with their number: `name(number)`, as refinement does.
    pub is_refined: bool,
    /// Writes times in full, with three decimals. pandas has seven digits, which are too
    /// few for a time since boot.
    pub full_times: bool,
}

/// Writes the table, in the order of events.
///
/// # Errors
/// As `out`.
pub fn write(out: &mut impl Write, timeline: &Timeline, options: &FrameOptions) -> io::Result<()> {
    let rows = || {
        let slices = timeline.events.iter();
        slices.filter(|event| event.is_slice() && !event.dropped)
    };
    let mut columns = COLUMNS.map(FrameColumn::new);
    for event in rows() {
        for (column, cell) in columns.iter_mut().zip(cells(timeline, event, options)) {
            column.measure(&cell);
        }
    }
    if rows().next().is_none() {
        let names = COLUMNS.join(", ");
        return write!(out, "Empty DataFrame\nColumns: [{names}]\nIndex: []");
    }
    if options.full_times {
        for column in columns.get_mut(TIMES).unwrap_or_default() {
            column.is_full = true;
        }
    }
    let layouts = columns.each_ref().map(FrameColumn::layout);
    for (index, layout) in layouts.iter().enumerate() {
        let space = if index > 0 { " " } else { "" };
        write!(out, "{space}{:>1$}", layout.header, layout.width)?;
    }
    for event in rows() {
        out.write_all(b"\n")?;
        let cells = cells(timeline, event, options);
        for (index, (layout, cell)) in layouts.iter().zip(&cells).enumerate() {
            let space = if index > 0 { " " } else { "" };
            write!(out, "{space}{:>1$}", layout.text(cell), layout.width)?;
        }
    }
    Ok(())
}

/// A value.
enum FrameCell<'a> {
    Int(i64),
    Float(f64),
    Text(Cow<'a, str>),
}

fn cells<'a>(timeline: &'a Timeline, event: &Event, options: &FrameOptions) -> [FrameCell<'a>; 9] {
    let track = timeline.track(event);
    let job = match timeline.jobs.get(track.job as usize) {
        Some(job) if options.is_refined => format!("{}({})", job.name, job.hash).into(),
        Some(job) => Cow::Borrowed(&*job.name),
        None => "Unknown".into(),
    };
    let rank = if track.rank == NONE { 0 } else { track.rank };
    [
        FrameCell::Int(i64::from(rank)),
        FrameCell::Float(timeline.file_us(event)),
        FrameCell::Float(event.dur()),
        FrameCell::Text(escaped(timeline.name(event.cat))),
        FrameCell::Text(escaped(timeline.name(event.name))),
        FrameCell::Text((options.class_name)(event.class).into()),
        FrameCell::Text(escaped_cow(job)),
        argument(timeline.arg(event, "bytes")),
        argument(timeline.arg(event, "pt_active")),
    ]
}

/// The value of an argument, by its JSON.
fn argument(json: Option<&str>) -> FrameCell<'_> {
    let Some(json) = json else {
        return FrameCell::Float(0.0);
    };
    if let Some(text) = json.strip_prefix('"') {
        return match text.strip_suffix('"') {
            Some(plain) if !plain.contains('\\') => FrameCell::Text(escaped(plain)),
            _ => FrameCell::Text(serde_json::from_str::<String>(json).map_or_else(
                |_| escaped(json),
                |text| Cow::Owned(escaped(&text).into_owned()),
            )),
        };
    }
    match (json.parse(), json.parse::<f64>()) {
        (Ok(int), _) => FrameCell::Int(int),
        (_, Ok(float)) if float.is_finite() => FrameCell::Float(float),
        _ => FrameCell::Text(escaped(json)),
    }
}

/// Line ends and tabs as pandas writes them.
fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(['\n', '\r', '\t']) {
        return Cow::Borrowed(text);
    }
    let text = text.replace('\n', "\\n").replace('\r', "\\r");
    Cow::Owned(text.replace('\t', "\\t"))
}

fn escaped_cow(text: Cow<'_, str>) -> Cow<'_, str> {
    match text {
        Cow::Borrowed(text) => escaped(text),
        Cow::Owned(text) => Cow::Owned(escaped(&text).into_owned()),
    }
}

/// What is to know of a column before its first value can be written.
struct FrameColumn {
    header: &'static str,
    has_float: bool,
    has_text: bool,
    /// Characters of the widest value if they are written one by one.
    widest: usize,
    /// Characters of the widest value before its decimal point.
    whole: usize,
    /// Decimals that are not zero.
    decimals: usize,
    /// Characters of the widest value in full.
    full: usize,
    is_large: bool,
    is_small: bool,
    is_negative: bool,
    is_full: bool,
}

impl FrameColumn {
    fn new(header: &'static str) -> Self {
        Self {
            header,
            has_float: false,
            has_text: false,
            widest: 0,
            whole: 0,
            decimals: 1,
            full: 0,
            is_large: false,
            is_small: false,
            is_negative: false,
            is_full: false,
        }
    }

    fn measure(&mut self, cell: &FrameCell<'_>) {
        let number = match cell {
            FrameCell::Text(text) => {
                self.has_text = true;
                self.widest = self.widest.max(text.chars().count());
                return;
            }
            FrameCell::Int(number) => *number as f64,
            FrameCell::Float(number) => {
                self.has_float = true;
                *number
            }
        };
        let text = format!("{number:.DECIMALS$}");
        let trimmed = trimmed(&text);
        let whole = text.find('.').unwrap_or(text.len());
        self.whole = self.whole.max(whole);
        self.decimals = self.decimals.max(trimmed.len().saturating_sub(whole + 1));
        self.full = self.full.max(format!("{number:.3}").len());
        self.widest = self.widest.max(match cell {
            FrameCell::Int(number) => number.to_string().len(),
            // Among texts with a space for a sign.
            _ => trimmed.len() + usize::from(number >= 0.0),
        });
        let magnitude = number.abs();
        self.is_large |= magnitude > 1e6;
        self.is_small |= magnitude > 0.0 && magnitude < 1e-6;
        self.is_negative |= number.is_sign_negative();
    }

    fn layout(&self) -> ColumnLayout {
        let fixed = self.whole + 1 + self.decimals;
        let style = match (self.has_text, self.has_float) {
            (true, _) => Style::Single,
            _ if self.is_full => Style::Fixed(3),
            (_, false) => Style::Int,
            _ if self.is_small || self.is_large && fixed > DECIMALS + 6 => Style::Scientific,
            _ => Style::Fixed(self.decimals),
        };
        let widest = match style {
            Style::Single | Style::Int => self.widest,
            Style::Fixed(_) if self.is_full => self.full,
            Style::Fixed(_) => fixed,
            // Exponents have two digits, or three beyond 1e100.
            Style::Scientific => self.scientific_width(),
        };
        // Over numbers there is room for a sign.
        let sign = if self.has_text { "" } else { " " };
        let header = format!("{sign}{}", self.header);
        ColumnLayout {
            width: widest.max(header.len()),
            header,
            style,
        }
    }

    fn scientific_width(&self) -> usize {
        let huge = usize::from(self.whole > 100);
        scientific(1.0).len() + usize::from(self.is_negative) + huge
    }
}

/// How a column's values are written.
enum Style {
    Int,
    Fixed(usize),
    Scientific,
    /// Each by itself, as there are texts among them.
    Single,
}

struct ColumnLayout {
    header: String,
    width: usize,
    style: Style,
}

impl ColumnLayout {
    fn text<'a>(&self, cell: &'a FrameCell<'_>) -> Cow<'a, str> {
        let number = match (cell, &self.style) {
            (FrameCell::Text(text), _) => return Cow::Borrowed(text),
            (FrameCell::Int(number), Style::Int | Style::Single) => {
                return number.to_string().into();
            }
            (FrameCell::Int(number), _) => *number as f64,
            (FrameCell::Float(number), _) => *number,
        };
        match self.style {
            Style::Fixed(decimals) => format!("{number:.decimals$}").into(),
            Style::Scientific => scientific(number).into(),
            Style::Int | Style::Single => {
                let text = format!("{number:.DECIMALS$}");
                let sign = if number >= 0.0 { " " } else { "" };
                format!("{sign}{}", trimmed(&text)).into()
            }
        }
    }
}

/// A number without zeros at its end, but one decimal.
fn trimmed(text: &str) -> &str {
    let short = text.trim_end_matches('0');
    let len = short.len() + usize::from(short.ends_with('.'));
    text.get(..len).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::timeline::Dialect;
    use aiprof_testkit::timelines as testing;

    /// Rank, begin (in all), length, category, name, arguments.
    type Row<'a> = (u32, f64, f64, &'a str, &'a str, &'a str);

    fn table(rows: &[Row<'_>], full_times: bool) -> String {
        let mut timeline = testing::timeline(Dialect::Flex);
        timeline.origin = Some(0);
        for (rank, ts, dur, cat, name, args) in rows {
            let index = testing::slice(&mut timeline, name, *rank, *ts, *dur);
            timeline.events[index].cat = timeline.names.intern(cat);
            timeline.add_args(index, args);
        }
        let options = FrameOptions {
            class_name: &|class| if class == 0 { "OTHER" } else { "COMPUTE_EXEC" },
            is_refined: true,
            full_times,
        };
        let mut out = Vec::new();
        write(&mut out, &timeline, &options).unwrap();
        String::from_utf8(out).unwrap()
    }

    const ROWS: [Row<'static>; 3] = [
        (
            0,
            1_475_000_719_773.834,
            196.942,
            "kernel",
            "a Cmpt Exec",
            "",
        ),
        (
            10,
            1_475_000_719_970.776,
            0.5,
            "",
            "b\n\u{e9}",
            r#""bytes":"524288""#,
        ),
        (
            0,
            1_475_000_719_971.0,
            10.0,
            "cpu_op",
            "c",
            r#""bytes":128,"pt_active":0.25"#,
        ),
    ];

    /// pandas 3.1.1's `to_string(index=False)` of the same rows.
    #[test]
    fn tables_are_those_of_pandas() {
        assert_eq!(table(&ROWS, false), include_str!("tests/frame.txt"));
        let small = [
            (0, 1.0, 1.0, "x", "n", r#""bytes":128,"pt_active":1e-7"#),
            (1, 2.5, 4.0, "x", "n", r#""bytes":64"#),
        ];
        assert_eq!(table(&small, false), include_str!("tests/frame_small.txt"));
        let large = [
            (0, 123_456.5, 1.0, "x", "n", r#""bytes":128"#),
            (1, 1_234_567.5, 4.0, "x", "n", ""),
        ];
        assert_eq!(table(&large, false), include_str!("tests/frame_large.txt"));
        let none = "Empty DataFrame\nColumns: [Rank, Timestamp, Duration, Category, Event Name, \
                    Event CLass, Job, Size, PT_Active]\nIndex: []";
        assert_eq!(table(&[], false), none);
    }

    #[test]
    fn times_are_there_in_full_if_wanted() {
        let table = table(&ROWS, true);
        let line = table.lines().nth(1).unwrap();
        assert!(
            line.starts_with("    0 1475000719773.834   196.942 "),
            "{line}"
        );
        let widths: Vec<usize> = table.lines().map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{widths:?}");
    }

    #[test]
    fn odd_values_keep_the_columns_apart() {
        let odd = [
            (
                u32::MAX,
                -1e300,
                1e300,
                "",
                "",
                r#""bytes":-5,"pt_active":"x""#,
            ),
            (
                0,
                f64::MIN_POSITIVE,
                0.0,
                "",
                "n",
                r#""bytes":[1,"a"],"pt_active":null"#,
            ),
            (0, 1e308, 1e-320, "", "n", r#""bytes":"\ud83d""#),
        ];
        let table = table(&odd, false);
        assert_eq!(table.lines().count(), 4);
        let widths: Vec<usize> = table.lines().map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{table}");
    }
}
