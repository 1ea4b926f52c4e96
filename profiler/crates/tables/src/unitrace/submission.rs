//! How long commands waited on the host and for the device, by name.

use super::device::{CommandRow, note, rows, totals};
use super::{Scope, percent};
use crate::{Cell, Layout, Table, TableEntry};
use aiprof_model::timeline::Timeline;

/// Name of the table.
pub const NAME: &str = "submission";

/// `--table submission`.
pub(crate) const ENTRY: TableEntry = TableEntry {
    name: NAME,
    about: "from appending to submitting to executing, by name (unitrace -s)",
    title: "Kernel Submission Summary",
    columns: "backend kernel calls append:ns append_share:percent:6 submit:ns \
              submit_share:percent:6 execute:ns execute_share:percent:6 quality",
    make: |request| vec![table(request.timeline, &Scope::default())],
};

/// The table of a timeline.
pub fn table(timeline: &Timeline, scope: &Scope) -> Table {
    let (found, extent_ns) = rows(timeline, scope);
    let sum = |of: &dyn Fn(&CommandRow) -> u64, backend: &str| {
        let exact = found.iter().filter(|row| row.backend == backend);
        exact.map(of).fold(0, u64::saturating_add)
    };
    let of_exact = |of: &dyn Fn(&CommandRow) -> u64, row: &CommandRow| {
        let exact = |row: &CommandRow| match row.is_exact() {
            true => of(row),
            false => 0,
        };
        match row.is_exact() {
            true => Cell::Number(percent(of(row), sum(&exact, &row.backend))),
            false => Cell::None,
        }
    };
    let lines = found.iter().map(|row| {
        let appended = (row.appended > 0).then_some(row.append_ns);
        let append_share = appended.map(|ns| percent(ns, sum(&|row| row.append_ns, &row.backend)));
        vec![
            row.backend.as_str().into(),
            row.name.as_str().into(),
            row.calls.into(),
            appended.into(),
            append_share.into(),
            appended.map(|_| row.submit_ns()).into(),
            appended.map_or(Cell::None, |_| of_exact(&CommandRow::submit_ns, row)),
            row.execute_ns().into(),
            of_exact(&CommandRow::execute_ns, row),
            row.quality().into(),
        ]
    });
    Table {
        totals: totals(&found, extent_ns),
        layout: Layout::Unitrace,
        ..ENTRY.noted(lines, note(&found).into_iter().collect())
    }
}
