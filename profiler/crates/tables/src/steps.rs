//! Steps of training, and how the time of each splits.

use super::{Cell, Request, Table, TableEntry};
use crate::id_cell;
use aiprof_trace::device_time::IdleBlame;
use aiprof_trace::steps::{DeviceStep, StepPhase, StepRow, steps};

/// `--table steps`.
pub(super) const ENTRY: TableEntry = TableEntry {
    name: "steps",
    about: "each ProfilerStep: phases on the host; compute, communication, copies, idle of devices",
    title: "Steps",
    columns: "rank step device wall:us dataloader:us forward:us backward:us optimizer:us \
              device_span:us compute:us communication:us copy:us idle:us idle_share:percent",
    make,
};

fn make(request: &Request<'_>) -> Vec<Table> {
    let timeline = request.timeline;
    let steps = steps(timeline, request.index());
    let head = |row: &StepRow| -> Vec<Cell> {
        let device = row.device.as_ref();
        let device = device.map(|device| id_cell(timeline, device.device.number));
        vec![
            row.rank.into(),
            row.step.as_str().into(),
            device.unwrap_or(Cell::None),
        ]
    };
    let rows = steps.iter().map(|row| {
        let mut cells = head(row);
        cells.push(row.wall_us.into());
        let phase = |phase: StepPhase| row.phases.get(phase as usize).copied().flatten().into();
        cells.extend(StepPhase::ALL.map(phase));
        let device = |of: fn(&DeviceStep) -> f64| Cell::from(row.device.as_ref().map(of));
        cells.extend([
            device(|device| device.span_us),
            device(|device| device.compute_us),
            device(|device| device.communication_us),
            device(|device| device.copy_us),
            device(|device| device.idle_us),
        ]);
        let share = row.device.as_ref().and_then(|one| share(one.idle_us, one));
        cells.push(share.into());
        cells
    });
    let notes = match steps.is_empty() {
        true => vec!["the trace has no steps; call step() of the profiler".to_owned()],
        false => Vec::new(),
    };
    let mut causes = Vec::new();
    for row in &steps {
        let Some(device) = &row.device else { continue };
        for (cause, sum) in IdleBlame::ALL.into_iter().zip(device.causes) {
            if sum.gaps > 0 {
                let mut cells = head(row);
                cells.extend([
                    Cell::from(cause.word()),
                    sum.gaps.into(),
                    sum.us.into(),
                    sum.longest_us.into(),
                    share(sum.us, device).into(),
                ]);
                causes.push(cells);
            }
        }
    }
    vec![
        ENTRY.noted(rows, notes),
        Table::of(
            "steps-idle",
            "Idle time of devices in steps by cause",
            "rank step device cause parts idle:us longest:us share:percent",
            causes,
        ),
    ]
}

/// A part of a device's time of a step, percent.
fn share(us: f64, device: &DeviceStep) -> Option<f64> {
    (device.span_us > 0.0).then(|| 100.0 * us / device.span_us)
}
