//! Modules of a model, by their time on devices.

use super::{Request, Table, TableEntry};
use aiprof_trace::torch::modules::ModuleReport;

/// `--table modules`.
pub(super) const ENTRY: TableEntry = TableEntry {
    name: "modules",
    about: "modules of a PyTorch model (nn.Module): calls, host and device time, backward time",
    title: "Modules",
    columns: "rank module parents calls host:us self_host:us device:us self_device:us backward:us \
              share:percent kernels",
    make,
};

fn make(request: &Request<'_>) -> Vec<Table> {
    let report = ModuleReport::new(request.timeline, request.index());
    let rows = report.rows.iter().map(|row| {
        vec![
            row.rank.into(),
            row.name.as_str().into(),
            row.parents.as_str().into(),
            row.calls.into(),
            row.host_us.into(),
            row.self_host_us.into(),
            row.device_us.into(),
            row.self_device_us.into(),
            row.backward_us.into(),
            row.share.into(),
            row.kernels.join(" | ").into(),
        ]
    });
    let mut notes = Vec::new();
    if report.rows.is_empty() {
        notes.push("the trace has no modules; profile with with_stack=True".to_owned());
    } else if report.outside_us > 0.0 {
        let us = report.outside_us;
        notes.push(format!("{us:.3} us of device time belong to no module"));
    }
    vec![ENTRY.noted(rows, notes)]
}
