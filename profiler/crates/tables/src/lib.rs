//! Tables that answer one question each, by name: `aiprof analyze --table NAME`.
//!
//! A table is values, not text: how it looks is the matter of writers. Adding one is a
//! file and a line in [`ALL`].

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests open what they made")
)]

pub mod categories;
pub mod compare;
mod compile;
#[cfg(test)]
mod cycles_tests;
mod flops;
mod fwd_bwd;
mod hta;
mod kernels;
pub mod key_averages;
mod memory;
mod messages;
mod modules;
mod occupancy;
mod ranks;
pub mod report;
pub mod roofline;
mod steps;
#[cfg(test)]
mod test_tables;
mod triton;
pub mod unitrace;

use crate::categories::{Aggregator, Categories};
use aiprof_model::timeline::{Id, Timeline};
use aiprof_trace::analyze::pipeline::Outcome;
use aiprof_trace::analyze::report::Report;
use aiprof_trace::critical::{PathOptions, WhatIf};
use aiprof_trace::torch::TorchIndex;
use aiprof_trace::work::{SharedWork, WorkIndex};
use key_averages::TorchLayout;
use roofline::DevicePeaks;
use std::borrow::Cow;
use std::cmp::Ordering;

/// What a table is made of.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The events, calibrated and aligned.
    pub timeline: &'a Timeline,
    /// What the analyses found.
    pub outcome: &'a Outcome,
    /// The same in words and numbers.
    pub report: &'a Report,
    /// What the user wants of it.
    pub options: &'a Options,
    /// What tables of one input share.
    pub shared: &'a SharedWork,
}

impl<'a> Request<'a> {
    /// What ran on devices: found once for all tables.
    fn index(&self) -> &'a WorkIndex {
        self.shared.work_index(self.timeline)
    }

    /// The calls that torch's own tables count: found once for all tables.
    fn torch_index(&self) -> &'a TorchIndex {
        self.shared.torch_index(self.timeline)
    }
}

/// What the user wants of tables.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Order of the rows: a column, largest first; `None`: the table's own.
    pub sort_by: Option<String>,
    /// Rows of each table at most; `None`: all.
    pub limit: Option<usize>,
    /// What the critical path is of.
    pub path: PathOptions,
    /// What takes another time.
    pub what_if: Vec<WhatIf>,
    /// Operators whose name contains this are looked at; `None`: all.
    pub operator: Option<String>,
    /// Calls with different shapes of their inputs are kept apart.
    pub by_shape: bool,
    /// Calls with different innermost Python frames are kept apart: how many of these.
    pub group_by_stack: usize,
    /// What puts names of kernels in categories.
    pub categories: Option<Categories>,
    /// What the values of several ranks become.
    pub aggregator: Aggregator,
    /// What the device can do at most; `None`: not known.
    pub peaks: Option<DevicePeaks>,
}

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Not known, or there is none.
    None,
    /// A name.
    Text(String),
    /// A number of things.
    Count(u64),
    /// A number in the column's unit.
    Number(f64),
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
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

impl From<usize> for Cell {
    fn from(count: usize) -> Self {
        Self::Count(count as u64)
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::None, Into::into)
    }
}

/// A device, stream, process or thread as a cell.
fn id_cell(timeline: &Timeline, id: Id) -> Cell {
    match id {
        Id::Number(number) => match u64::try_from(number) {
            Ok(count) => Cell::Count(count),
            Err(_) => number.to_string().into(),
        },
        Id::Token(text) => timeline.name(text).trim_matches('"').into(),
    }
}

impl Cell {
    /// The largest first, names in their order, what is not known last.
    fn order(&self, other: &Self) -> Ordering {
        let number = |cell: &Self| match cell {
            Self::Count(count) => Some(*count as f64),
            Self::Number(number) => Some(*number),
            Self::None | Self::Text(_) => None,
        };
        match (self, other) {
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            _ => match (number(self), number(other)) {
                (Some(a), Some(b)) => b.total_cmp(&a),
                (a, b) => b.is_some().cmp(&a.is_some()),
            },
        }
    }
}

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name: the word that `--sort-by` takes, and the key in CSV and JSON.
    pub name: &'static str,
    /// Unit of its numbers, `us` or `percent`; empty: none.
    pub unit: &'static str,
    /// Digits behind the point in text.
    pub digits: usize,
    /// How its values look on a page.
    pub look: ColumnLook,
    /// What its values mean, on a page.
    pub about: &'static str,
}

/// How a column's values look on a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ColumnLook {
    /// Numbers.
    #[default]
    Value,
    /// Texts.
    Name,
    /// Numbers, which are percents, and a bar for each.
    Bar,
}

impl Column {
    /// The column that a text describes: `NAME`, `NAME:UNIT` or `NAME:UNIT:DIGITS`. Without
    /// digits, microseconds have three, percents and points two, others none.
    pub fn of(text: &'static str) -> Self {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let unit = parts.next().unwrap_or_default();
        let usual = match unit {
            "us" => 3,
            "percent" | "points" => 2,
            _ => 0,
        };
        let digits = parts.next().and_then(|digits| digits.parse().ok());
        Self {
            name,
            unit,
            digits: digits.unwrap_or(usual),
            look: ColumnLook::Value,
            about: "",
        }
    }
}

/// The columns of a list with a space between each two.
fn columns(list: &'static str) -> Vec<Column> {
    list.split_whitespace().map(Column::of).collect()
}

/// The columns of a page's table, one a line.
fn described(list: &'static str) -> Vec<Column> {
    let columns = list.lines().filter_map(|line| {
        let (look, rest) = line.trim().split_once(' ')?;
        let (name, about) = rest.split_once(": ")?;
        let (look, digits) = match look {
            "name" => (ColumnLook::Name, 0),
            "bar" => (ColumnLook::Bar, 2),
            digits => (ColumnLook::Value, digits.parse().ok()?),
        };
        Some(Column {
            name,
            unit: "",
            digits,
            look,
            about,
        })
    });
    columns.collect()
}

/// How a table looks as text.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Layout {
    /// aiprof's own.
    #[default]
    Plain,
    /// Intel's unitrace's.
    Unitrace,
    /// That of torch's `key_averages().table()`.
    Torch(TorchLayout),
}

impl Layout {
    /// The column that the user's word stands for.
    fn column<'w>(&self, wanted: &'w str) -> Cow<'w, str> {
        match self {
            Self::Plain | Self::Unitrace => Cow::Borrowed(wanted),
            Self::Torch(_) => TorchLayout::column(wanted),
        }
    }
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Its name: the word that `--table` takes.
    pub name: &'static str,
    /// Its title, in a line.
    pub title: String,
    /// Its columns.
    pub columns: Vec<Column>,
    /// Its rows, each with a cell for each column.
    pub rows: Vec<Vec<Cell>>,
    /// Notes on the numbers.
    pub notes: Vec<String>,
    /// Sums over all that the rows are of, by name, nanoseconds.
    pub totals: Vec<(String, Cell)>,
    /// How it looks as text.
    pub layout: Layout,
}

impl Table {
    /// A table without notes; `list` are its columns, as [`Column::of`] reads each, with spaces
    /// between them.
    pub fn of(
        name: &'static str,
        title: impl Into<String>,
        list: &'static str,
        rows: impl IntoIterator<Item = Vec<Cell>>,
    ) -> Self {
        Self {
            name,
            title: title.into(),
            columns: columns(list),
            rows: rows.into_iter().collect(),
            ..Self::default()
        }
    }

    /// A table for a page; `list` are its columns, one a line: `LOOK NAME: MEANING`. The look is
    /// `name` for texts, `bar` for percents with a bar, else it is the digits behind the point.
    pub fn described(
        title: impl Into<String>,
        list: &'static str,
        rows: impl IntoIterator<Item = Vec<Cell>>,
    ) -> Self {
        Self {
            title: title.into(),
            columns: described(list),
            rows: rows.into_iter().collect(),
            ..Self::default()
        }
    }

    /// Orders and cuts the rows as the user wants it.
    ///
    /// # Errors
    /// There is no such column.
    fn arrange(&mut self, options: &Options) -> Result<(), TableError> {
        if let Some(wanted) = &options.sort_by {
            let wanted = self.layout.column(wanted);
            let Some(at) = self.columns.iter().position(|one| one.name == wanted) else {
                let names = self.columns.iter().map(|one| one.name);
                return Err(TableError::NoColumn {
                    table: self.name,
                    column: wanted.into_owned(),
                    known: names.collect::<Vec<_>>().join(", "),
                });
            };
            self.rows.sort_by(|a, b| match (a.get(at), b.get(at)) {
                (Some(a), Some(b)) => a.order(b),
                (a, b) => b.is_some().cmp(&a.is_some()),
            });
        }
        if let Some(limit) = options.limit {
            self.cut(limit);
        }
        Ok(())
    }

    /// Leaves out all columns but those whose names `keeps` is true for.
    pub fn keep(&mut self, keeps: impl Fn(&str) -> bool) {
        let kept: Vec<bool> = self.columns.iter().map(|one| keeps(one.name)).collect();
        let mut all = kept.iter();
        self.columns.retain(|_| all.next() == Some(&true));
        for row in &mut self.rows {
            let mut all = kept.iter();
            row.retain(|_| all.next() == Some(&true));
        }
    }

    /// Leaves out all rows after the first `limit`, and notes it.
    pub fn cut(&mut self, limit: usize) {
        if self.rows.len() > limit {
            let more = self.rows.len() - limit;
            self.rows.truncate(limit);
            self.notes.push(format!("{more} more rows are not shown"));
        }
    }
}

/// Why a table cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// None is called so.
    #[error("there is no table `{0}`; use `--table list` to see all tables")]
    NoTable(String),
    /// None of its columns is called so.
    #[error("table `{table}` has no column `{column}`; its columns are: {known}")]
    NoColumn {
        /// The table.
        table: &'static str,
        /// What was asked for.
        column: String,
        /// What there is.
        known: String,
    },
}

/// A table that can be made.
#[derive(Clone, Copy)]
pub struct TableEntry {
    /// Its name.
    pub name: &'static str,
    /// What it answers, in a line.
    pub about: &'static str,
    /// Title of the table.
    title: &'static str,
    /// Its columns, as [`columns`] reads them.
    columns: &'static str,
    /// Makes it; several for tables of several parts.
    make: fn(&Request<'_>) -> Vec<Table>,
}

/// All tables, in the order of `--table list`.
pub const ALL: &[TableEntry] = &[
    kernels::ENTRY,
    hta::TEMPORAL,
    hta::COMM_OVERLAP,
    hta::KERNEL_TYPES,
    hta::KERNEL_BREAKDOWN,
    hta::IDLE,
    hta::QUEUE_LENGTH,
    hta::LAUNCH_STATS,
    hta::LAUNCHES,
    hta::ANNOTATIONS,
    hta::MEMORY_BANDWIDTH,
    hta::OP_DELAYS,
    hta::KERNEL_SEQUENCES,
    hta::CUPTI_COUNTERS,
    hta::STRAGGLERS,
    ranks::WAITS,
    ranks::BALANCE,
    ranks::COLLECTIVES,
    messages::ENTRY,
    messages::CLOCKS,
    hta::TRACE_DIFF,
    hta::CRITICAL_PATH,
    unitrace::host::ENTRY,
    unitrace::device::ENTRY,
    unitrace::device::SHAPES_ENTRY,
    unitrace::properties::ENTRY,
    unitrace::submission::ENTRY,
    unitrace::categories::ENTRY,
    unitrace::categories::SUMMARY_ENTRY,
    key_averages::ENTRY,
    memory::ENTRY,
    memory::PEAK,
    memory::OVER_TIME,
    compile::STEPS,
    compile::COMPILED,
    compile::BREAKS,
    compile::RECOMPILED,
    triton::ENTRY,
    fwd_bwd::ENTRY,
    modules::ENTRY,
    steps::ENTRY,
    occupancy::ENTRY,
    flops::ENTRY,
];

/// The table of that name.
///
/// # Errors
/// There is none.
pub fn entry(name: &str) -> Result<&'static TableEntry, TableError> {
    let mut all = ALL.iter();
    all.find(|entry| entry.name == name)
        .ok_or_else(|| TableError::NoTable(name.to_owned()))
}

impl TableEntry {
    /// The table with these rows.
    fn table(&self, rows: impl IntoIterator<Item = Vec<Cell>>) -> Table {
        self.noted(rows, Vec::new())
    }

    /// The table with these rows and notes.
    fn noted(&self, rows: impl IntoIterator<Item = Vec<Cell>>, notes: Vec<String>) -> Table {
        Table {
            notes,
            ..Table::of(self.name, self.title, self.columns, rows)
        }
    }

    /// Makes the table, in the order and as long as the user wants it.
    ///
    /// # Errors
    /// It has no such column.
    pub fn make(&self, request: &Request<'_>) -> Result<Vec<Table>, TableError> {
        let mut tables = (self.make)(request);
        for table in &mut tables {
            table.arrange(request.options)?;
        }
        Ok(tables)
    }
}

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let row = |name: &str, us: Cell| vec![Cell::from(name), us];
        Table {
            name: "t",
            columns: columns("name total:us"),
            rows: vec![
                row("b", 1.0.into()),
                row("c", Cell::None),
                row("a", 2.0.into()),
            ],
            ..Table::default()
        }
    }

    fn names(table: &Table) -> Vec<&Cell> {
        table.rows.iter().filter_map(|row| row.first()).collect()
    }

    #[test]
    fn rows_are_ordered_and_cut() {
        let by = |column: &str, limit| Options {
            sort_by: Some(column.to_owned()),
            limit,
            ..Options::default()
        };
        let mut sorted = table();
        sorted.arrange(&by("total", None)).unwrap();
        assert_eq!(names(&sorted), [&"a".into(), &"b".into(), &"c".into()]);
        assert!(sorted.notes.is_empty());
        let mut cut = table();
        cut.arrange(&by("name", Some(1))).unwrap();
        assert_eq!(names(&cut), [&Cell::from("a")]);
        assert_eq!(cut.notes, ["2 more rows are not shown"]);
        let error = table().arrange(&by("size", None)).unwrap_err().to_string();
        assert!(error.ends_with("its columns are: name, total"), "{error}");
    }

    #[test]
    fn columns_have_units_and_digits() {
        let of = |name, unit, digits| Column {
            name,
            unit,
            digits,
            ..Column::of("")
        };
        let wanted = [
            of("name", "", 0),
            of("total", "us", 3),
            of("share", "percent", 6),
            of("mean", "", 2),
            of("speed", "GB/s", 1),
        ];
        assert_eq!(
            columns("name total:us share:percent:6 mean::2 speed:GB/s:1"),
            wanted
        );
        for entry in ALL {
            let columns = columns(entry.columns);
            assert!(
                columns
                    .iter()
                    .all(|one| !one.name.is_empty() && one.digits < 7)
            );
        }
    }

    #[test]
    fn columns_of_pages_have_looks_and_meanings() {
        let list = "\n name A: b: c\n bar D %: e\n 3 F ms: g\n";
        let [name, bar, number] = described(list)[..] else {
            panic!()
        };
        assert_eq!((name.name, name.about), ("A", "b: c"));
        assert_eq!((name.look, bar.look), (ColumnLook::Name, ColumnLook::Bar));
        assert_eq!((number.name, number.digits), ("F ms", 3));
    }

    #[test]
    fn names_are_unique() {
        for (index, entry) in ALL.iter().enumerate() {
            let first = ALL.iter().position(|other| other.name == entry.name);
            assert_eq!(first, Some(index), "{}", entry.name);
        }
        assert!(entry("list").is_err());
    }
}
