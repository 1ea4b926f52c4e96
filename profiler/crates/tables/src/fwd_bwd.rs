//! Forward operators with the backward ones that belong to them.

use super::{Request, Table, TableEntry};
use aiprof_trace::torch::pairs::PairReport;

/// `--table fwd-bwd`.
pub(super) const ENTRY: TableEntry = TableEntry {
    name: "fwd-bwd",
    about: "pairs of forward and backward operators, with host and device time of both",
    title: "Forward and backward operators",
    columns: "forward backward pairs forward_host:us forward_device:us backward_host:us \
              backward_device:us",
    make,
};

fn make(request: &Request<'_>) -> Vec<Table> {
    let report = PairReport::new(request.timeline, request.torch_index());
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
    vec![ENTRY.noted(rows, notes)]
}
