//! How long commands waited on the host and for the device, by name.

use super::device::{CommandRow, by_backend, note, rows, totals};
use super::{Scope, percent};
use crate::{Cell, Layout, Table, TableEntry};
use aiprof_model::timeline::Timeline;
use rustc_hash::FxHashMap;

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
    let exact = |of: fn(&CommandRow) -> u64| {
        by_backend(&found, move |row| if row.is_exact() { of(row) } else { 0 })
    };
    let appended = by_backend(&found, |row| row.append_ns);
    let (submitted, executed) = (exact(CommandRow::submit_ns), exact(CommandRow::execute_ns));
    let share = |ns: u64, all: &FxHashMap<&str, u64>, row: &CommandRow| {
        percent(ns, all.get(row.backend.as_str()).copied().unwrap_or(0))
    };
    let of_exact = |ns: u64, all: &FxHashMap<&str, u64>, row: &CommandRow| match row.is_exact() {
        true => Cell::Number(share(ns, all, row)),
        false => Cell::None,
    };
    let lines = found.iter().map(|row| {
        let (submit_ns, execute_ns) = (row.submit_ns(), row.execute_ns());
        let append_ns = (row.appended > 0).then_some(row.append_ns);
        let append_share = append_ns.map(|ns| share(ns, &appended, row));
        vec![
            row.backend.as_str().into(),
            row.name.as_str().into(),
            row.calls.into(),
            append_ns.into(),
            append_share.into(),
            append_ns.map(|_| submit_ns).into(),
            append_ns.map_or(Cell::None, |_| of_exact(submit_ns, &submitted, row)),
            execute_ns.into(),
            of_exact(execute_ns, &executed, row),
            row.quality().into(),
        ]
    });
    Table {
        totals: totals(&found, extent_ns),
        layout: Layout::Unitrace,
        ..ENTRY.noted(lines, note(&found).into_iter().collect())
    }
}
