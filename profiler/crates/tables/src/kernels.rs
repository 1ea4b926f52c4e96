//! Kernels by the time they took.

use super::report::device_cell;
use super::{Cell, Request, Table, TableEntry};

/// `--table kernels`.
pub(super) const ENTRY: TableEntry = TableEntry {
    name: "kernels",
    about: "kernels by rank, device and name: calls and times",
    title: "Kernels",
    columns: "rank device name calls total:us share:percent mean:us median:us min:us max:us \
              deviation:us",
    make,
};

fn make(request: &Request<'_>) -> Vec<Table> {
    let rows = request.report.kernels.iter().map(|kernel| {
        let lengths = &kernel.lengths;
        vec![
            kernel.rank.into(),
            device_cell(&kernel.device),
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
    vec![ENTRY.table(rows)]
}
