//! Forward operators with the backward ones that belong to them.

use super::{Column, Request, Table, TableEntry};
use aiprof_trace::torch::pairs::PairReport;

/// `--table fwd-bwd`.
pub(super) const ENTRY: TableEntry = TableEntry {
    name: "fwd-bwd",
    about: "pairs of forward and backward operators, with host and device time of both",
    make,
};

fn make(request: &Request<'_>) -> Vec<Table> {
    let report = PairReport::new(request.timeline);
    let rows = report.pairs.iter().map(|pairs| {
        vec![
            pairs.forward.as_str().into(),
            pairs.backward.as_str().into(),
            pairs.count.into(),
            pairs.forward_us.0.into(),
            pairs.forward_us.1.into(),
            pairs.backward_us.0.into(),
            pairs.backward_us.1.into(),
        ]
    });
    let alone = report.alone;
    let notes = match alone {
        0 => Vec::new(),
        _ => vec![format!(
            "{alone} backward operators have no forward operator in the trace"
        )],
    };
    vec![Table {
        name: ENTRY.name,
        title: "Forward and backward operators".to_owned(),
        columns: vec![
            Column::of("forward"),
            Column::of("backward"),
            Column::of("pairs"),
            Column::us("forward_host"),
            Column::us("forward_device"),
            Column::us("backward_host"),
            Column::us("backward_device"),
        ],
        rows: rows.collect(),
        notes,
        ..Table::default()
    }]
}
