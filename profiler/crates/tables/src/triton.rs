//! Triton's kernels: operator, kernel and generated file.

use super::{Cell, Request, Table, TableEntry};
use aiprof_trace::torch::triton;

/// `--table triton`.
pub(super) const ENTRY: TableEntry = TableEntry {
    name: "triton",
    about: "Triton kernels of torch.compile: launches, times, the file generated for each",
    title: "Triton kernels",
    columns: "name id launches tuning host:us device:us graph hash file",
    make,
};

fn make(request: &Request<'_>) -> Vec<Table> {
    let kernels = triton::kernels(request.timeline, request.torch_index());
    let given = |text: &str| -> Cell { (!text.is_empty()).then_some(text).into() };
    let rows = kernels.iter().map(|kernel| {
        vec![
            kernel.name.as_str().into(),
            given(&kernel.compiled),
            kernel.launches.into(),
            kernel.tuning.into(),
            kernel.host_us.into(),
            kernel.device_us.into(),
            given(&kernel.graph),
            given(&kernel.hash),
            given(&kernel.file),
        ]
    });
    let mut names = request.timeline.names.iter();
    let has_some = names.any(|(_, name)| name.starts_with("triton_"));
    let notes = match kernels.is_empty() && has_some {
        true => vec!["profile with record_shapes=True to see the generated files".to_owned()],
        false => Vec::new(),
    };
    vec![ENTRY.noted(rows, notes)]
}
