//! What devices executed, by name: how often, and how long it took.

use super::command::{Command, CommandKind, commands};
use super::{AT_MOST, EXACT, Extent, Scope, percent};
use crate::{Cell, Layout, Request, Table, TableEntry};
use aiprof_model::timeline::{Time, Timeline};
use rustc_hash::FxHashMap;
use std::borrow::Cow;

/// Name of the table.
pub const NAME: &str = "device-timing";
/// Name of the table by shapes.
pub const SHAPES: &str = "device-shapes";
/// Title and columns of both.
const TITLE: &str = "Device Timing Summary";
const COLUMNS: &str = "backend kernel calls time:ns share:percent:6 average:ns min:ns max:ns timed \
                       quality";

/// `--table device-timing`.
pub(crate) const ENTRY: TableEntry = TableEntry {
    name: NAME,
    about: "device operations by name: calls and device times (unitrace -d)",
    title: TITLE,
    columns: COLUMNS,
    make: |request| vec![table(request.timeline, &Scope::default())],
};

/// `--table device-shapes`.
pub(crate) const SHAPES_ENTRY: TableEntry = TableEntry {
    name: SHAPES,
    about: "device operations by name, SIMD width, work groups and size (unitrace -d -v)",
    title: TITLE,
    columns: COLUMNS,
    make: shapes,
};

fn shapes(request: &Request<'_>) -> Vec<Table> {
    let scope = Scope {
        shapes: true,
        ..Scope::default()
    };
    vec![table(request.timeline, &scope)]
}

/// Commands of a name.
#[derive(Clone, Debug)]
pub(super) struct CommandRow {
    pub(super) backend: String,
    pub(super) name: String,
    pub(super) kind: CommandKind,
    pub(super) calls: u64,
    /// Those with known times.
    timed: u64,
    timed_ns: u64,
    min_ns: u64,
    max_ns: u64,
    /// Between which times the others lie.
    between: Vec<(Time, Time)>,
    pub(super) append_ns: u64,
    /// Commands of which that is known.
    pub(super) appended: u64,
    submit_ns: u64,
}

impl CommandRow {
    pub(super) fn of(backend: String, name: String, kind: CommandKind) -> Self {
        Self {
            backend,
            name,
            kind,
            calls: 0,
            timed: 0,
            timed_ns: 0,
            min_ns: u64::MAX,
            max_ns: 0,
            between: Vec::new(),
            append_ns: 0,
            appended: 0,
            submit_ns: 0,
        }
    }

    pub(super) fn add(&mut self, command: &Command<'_>) {
        self.calls = self.calls.saturating_add(command.count);
        if let Some(ns) = command.append_ns {
            self.append_ns = self.append_ns.saturating_add(ns);
            self.appended = self.appended.saturating_add(command.count);
        }
        if command.is_exact {
            self.add_exact(command.length_ns());
            self.submit_ns = self
                .submit_ns
                .saturating_add(command.submit_ns.unwrap_or(0));
        } else {
            self.max_ns = self.max_ns.max(command.length_ns());
            self.between.push((command.start, command.end));
        }
    }

    /// Adds the device's own time of one of the commands.
    pub(super) fn add_exact(&mut self, ns: u64) {
        self.timed += 1;
        self.timed_ns = self.timed_ns.saturating_add(ns);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Whether all times are the device's own.
    pub(super) fn is_exact(&self) -> bool {
        self.between.is_empty()
    }

    /// How well the times are known.
    pub(super) fn quality(&self) -> &'static str {
        match self.is_exact() {
            true => EXACT,
            false => AT_MOST,
        }
    }

    /// Time on the device, or the most that it can have been.
    pub(super) fn execute_ns(&self) -> u64 {
        self.timed_ns.saturating_add(union_ns(&self.between))
    }

    /// Time between handing over and begin, or the most that it can have been.
    pub(super) fn submit_ns(&self) -> u64 {
        self.submit_ns.saturating_add(union_ns(&self.between))
    }
}

/// Nanoseconds in which at least one span lies.
fn union_ns(spans: &[(Time, Time)]) -> u64 {
    let mut spans = spans.to_vec();
    spans.sort_unstable();
    let (mut all, mut reach) = (0_i64, None);
    for (start, end) in spans {
        let from = reach.map_or(start, |reach: Time| reach.max(start));
        if end > from {
            all = all.saturating_add((end - from).nanos());
        }
        reach = Some(reach.map_or(end, |reach| reach.max(end)));
    }
    u64::try_from(all).unwrap_or(0)
}

/// The rows of a timeline, in unitrace's order, and how long it is, nanoseconds.
pub(super) fn rows(timeline: &Timeline, scope: &Scope) -> (Vec<CommandRow>, u64) {
    let mut extent = Extent::default();
    let of_process = timeline.events.iter().filter(|event| {
        let pid = timeline.pid(event).number();
        let is_its = scope.pid.is_none_or(|wanted| pid == Some(wanted.into()));
        event.is_slice() && is_its
    });
    of_process.for_each(|event| extent.add(event));
    let mut index: FxHashMap<(Cow<'_, str>, Cow<'_, str>), usize> = FxHashMap::default();
    let mut rows: Vec<CommandRow> = Vec::new();
    for (event, command) in commands(timeline, scope) {
        extent.add(event);
        let kind = command.kind;
        let (backend, name) = command.title(scope);
        let next = rows.len();
        let at = *index
            .entry((backend, name))
            .or_insert_with_key(|(backend, name)| {
                rows.push(CommandRow::of(backend.to_string(), name.to_string(), kind));
                next
            });
        if let Some(row) = rows.get_mut(at) {
            row.add(&command);
        }
    }
    let mut timed: Vec<(u64, CommandRow)> = rows
        .into_iter()
        .map(|row| (row.execute_ns(), row))
        .collect();
    timed.sort_by(|(ns, row), (other_ns, other)| {
        super::order_of(&row.backend)
            .cmp(&super::order_of(&other.backend))
            .then_with(|| other_ns.cmp(ns))
            .then_with(|| other.calls.cmp(&row.calls))
            .then_with(|| row.name.cmp(&other.name))
    });
    let rows = timed.into_iter().map(|(_, row)| row).collect();
    (rows, extent.ns())
}

/// Nanoseconds of the rows of each backend in all.
pub(super) fn by_backend(
    rows: &[CommandRow],
    of: impl Fn(&CommandRow) -> u64,
) -> FxHashMap<&str, u64> {
    let mut sums: FxHashMap<&str, u64> = FxHashMap::default();
    for row in rows {
        let sum = sums.entry(&row.backend).or_default();
        *sum = sum.saturating_add(of(row));
    }
    sums
}

/// A note on times that are not exact.
pub(super) fn note(rows: &[CommandRow]) -> Option<String> {
    let untimed: u64 = rows
        .iter()
        .map(|row| row.calls - row.timed.min(row.calls))
        .sum();
    let all: u64 = rows.iter().map(|row| row.calls).sum();
    (untimed > 0).then(|| {
        format!(
            "<=: {untimed} of {all} commands have no device times. They ran between their \
             submission and the end of a wait, which is an upper bound of their time. If they \
             overlapped, the sum can be larger"
        )
    })
}

/// The sums above the table, by backend.
pub(super) fn totals(rows: &[CommandRow], extent_ns: u64) -> Vec<(String, Cell)> {
    let mut totals = vec![("Total Execution Time".to_owned(), extent_ns.into())];
    // Rows of one backend follow each other.
    for of in rows.chunk_by(|row, next| row.backend == next.backend) {
        let Some(backend) = of.first().map(|row| &row.backend) else {
            continue;
        };
        let exact = of.iter().map(|row| row.timed_ns);
        let between = of.iter().flat_map(|row| &row.between).copied();
        let between: Vec<_> = between.collect();
        let sum = exact.fold(union_ns(&between), u64::saturating_add);
        let is_exact = between.is_empty();
        totals.push((
            format!("Total Device Time for {backend} backend"),
            match is_exact {
                true => sum.into(),
                false => Cell::Text(format!("<={sum}")),
            },
        ));
    }
    totals
}

/// The table of a timeline.
pub fn table(timeline: &Timeline, scope: &Scope) -> Table {
    let (found, extent_ns) = rows(timeline, scope);
    let exact = by_backend(&found, |row| match row.is_exact() {
        true => row.execute_ns(),
        false => 0,
    });
    let rows = found.iter().map(|row| {
        let time = row.execute_ns();
        let share = row.is_exact().then(|| {
            let all = exact.get(row.backend.as_str()).copied().unwrap_or(0);
            Cell::Number(percent(time, all))
        });
        vec![
            row.backend.as_str().into(),
            row.name.as_str().into(),
            row.calls.into(),
            time.into(),
            share.unwrap_or(Cell::None),
            (time / row.calls.max(1)).into(),
            row.is_exact().then_some(row.min_ns).into(),
            row.max_ns.into(),
            row.timed.into(),
            row.quality().into(),
        ]
    });
    let entry = if scope.shapes { SHAPES_ENTRY } else { ENTRY };
    Table {
        totals: totals(&found, extent_ns),
        layout: Layout::Unitrace,
        ..entry.noted(rows, note(&found).into_iter().collect())
    }
}
