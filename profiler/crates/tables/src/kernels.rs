//! Kernels by the time they took.

use super::{Cell, Column, Request, Table, TableEntry};

/// `--table kernels`.
pub(super) const ENTRY: TableEntry = TableEntry {
    name: "kernels",
    about: "kernels by rank and name: calls and times",
    make,
};

fn make(request: &Request<'_>) -> Vec<Table> {
    let rows = request.report.kernels.iter().map(|kernel| {
        let lengths = &kernel.lengths;
        vec![
            kernel.rank.into(),
            kernel.name.as_str().into(),
            lengths.calls.into(),
            lengths.total_us.into(),
            kernel.percent.into(),
            lengths.mean_us.into(),
            lengths.median_us.into(),
            lengths.min_us.into(),
            lengths.max_us.into(),
            Cell::Number(lengths.deviation_us),
        ]
    });
    vec![Table {
        name: ENTRY.name,
        title: "Kernels".to_owned(),
        columns: vec![
            Column::of("rank"),
            Column::of("name"),
            Column::of("calls"),
            Column::us("total"),
            Column::percent("share"),
            Column::us("mean"),
            Column::us("median"),
            Column::us("min"),
            Column::us("max"),
            Column::us("deviation"),
        ],
        rows: rows.collect(),
        ..Table::default()
    }]
}
