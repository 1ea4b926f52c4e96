//! `torch.profiler`'s `key_averages()`: calls by name, in its columns.

use super::{Cell, Layout, Options, Request, Table, TableEntry};
use aiprof_trace::torch::averages::{Average, Averages};
use std::borrow::Cow;

/// `--table key-averages`.
pub(super) const ENTRY: TableEntry = TableEntry {
    name: "key-averages",
    about: "calls by name, like torch's key_averages(): host and device time, memory",
    title: "key_averages()",
    columns: "name kind self_cpu:percent self_cpu_time_total:us cpu:percent cpu_time_total:us \
              cpu_time:us self_device_time_total:us self_device:percent device_time_total:us \
              device_time:us cpu_memory_usage:bytes self_cpu_memory_usage:bytes \
              device_memory_usage:bytes self_device_memory_usage:bytes count input_shapes stack flops",
    make,
};

/// Longest that names and shapes get in torch's text, characters.
const MAX_NAME: usize = 55;
const MAX_SHAPES: usize = 80;
const MAX_STACK: usize = 75;

/// What the text of torch's table needs besides the rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TorchLayout {
    /// What torch or the trace calls the device.
    pub device: String,
    /// Width of the names' column, characters.
    pub name_width: usize,
    /// Width of the shapes' column, characters.
    pub shapes_width: usize,
    /// Width of the column of Python frames, characters.
    pub stack_width: usize,
    /// Power of ten by which operations are divided, and what they are called then;
    /// `None`: there are none.
    pub flops: Option<(i32, &'static str)>,
    /// Host time of all rows, microseconds.
    pub self_cpu: f64,
    /// Device time of all rows, microseconds; `None`: no device ran anything.
    pub self_device: Option<f64>,
}

impl TorchLayout {
    /// The column that a name of torch's stands for: `cuda`, `xpu` and `privateuse1` are
    /// all the device.
    pub(super) fn column(wanted: &str) -> Cow<'_, str> {
        let of_device = ["cuda", "xpu", "privateuse1"];
        let name = of_device.iter().find(|name| wanted.contains(**name));
        name.map_or(Cow::Borrowed(wanted), |name| {
            Cow::Owned(wanted.replace(name, "device"))
        })
    }
}

fn make(request: &Request<'_>) -> Vec<Table> {
    let options = request.options;
    let averages = Averages::new(
        request.timeline,
        request.torch_index(),
        options.by_shape,
        options.group_by_stack,
    );
    let parts = Parts::of(&averages, options.by_shape);
    let sums = (
        sum(&averages.rows, |row| row.self_cpu),
        device_sum(&averages.rows),
    );
    let rows = averages.rows.iter();
    let mut table = Table {
        layout: Layout::Torch(TorchLayout::default()),
        ..ENTRY.noted(rows.map(|row| cells(row, sums)), notes(request, &averages))
    };
    table.keep(|column| parts.has(column));
    let order = options
        .sort_by
        .as_deref()
        .unwrap_or(match parts.has_device {
            true => "self_device_time_total",
            false => "self_cpu_time_total",
        });
    let all = Options {
        sort_by: Some(order.to_owned()),
        ..Options::default()
    };
    // A column that was asked for and is not there is reported later.
    let _ = table.arrange(&all);
    table.layout = Layout::Torch(parts.layout(&table, &averages));
    if let Some(limit) = options.limit {
        table.rows.truncate(limit);
    }
    vec![table]
}

/// The cells of a row in all columns. `cpu` and `device` are the times of all rows.
fn cells(row: &Average, (cpu, device): (f64, f64)) -> Vec<Cell> {
    let share = |part: f64, all: f64| (all != 0.0).then(|| part * 100.0 / all);
    let mean = |total: f64| total / row.count as f64;
    let bytes = |bytes: i64| Cell::Number(bytes as f64);
    vec![
        row.name.as_str().into(),
        kind(row).into(),
        share(row.self_cpu, cpu).into(),
        row.self_cpu.into(),
        share(row.cpu, cpu).into(),
        row.cpu.into(),
        mean(row.cpu).into(),
        row.self_device.into(),
        share(row.self_device, device).into(),
        row.device.into(),
        mean(row.device).into(),
        bytes(row.cpu_memory),
        bytes(row.self_cpu_memory),
        bytes(row.device_memory),
        bytes(row.self_device_memory),
        row.count.into(),
        row.shapes.as_deref().into(),
        row.stack.join(";").into(),
        row.flops.into(),
    ]
}

/// Which columns there are.
struct Parts {
    has_device: bool,
    has_memory: bool,
    has_device_memory: bool,
    has_shapes: bool,
    has_stack: bool,
    has_flops: bool,
}

impl Parts {
    fn of(averages: &Averages, by_shape: bool) -> Self {
        let any = |test: fn(&Average) -> bool| averages.rows.iter().any(test);
        Self {
            has_device: any(|row| row.self_device > 0.0),
            has_memory: averages.has_memory,
            has_device_memory: averages.has_memory && any(|row| row.self_device_memory > 0),
            has_shapes: by_shape && averages.has_shapes,
            has_stack: any(|row| !row.stack.is_empty()),
            has_flops: any(|row| row.flops > 0),
        }
    }

    /// Whether the table has a column.
    fn has(&self, column: &str) -> bool {
        match column {
            "cpu_memory_usage" | "self_cpu_memory_usage" => self.has_memory,
            "device_memory_usage" | "self_device_memory_usage" => self.has_device_memory,
            "input_shapes" => self.has_shapes,
            "stack" => self.has_stack,
            "flops" => self.has_flops,
            column => self.has_device || !column.contains("device"),
        }
    }

    /// The sums are made in the order of the rows, as torch makes them.
    fn layout(&self, table: &Table, averages: &Averages) -> TorchLayout {
        let width = |texts: &mut dyn Iterator<Item = &str>, most: usize| {
            let longest = texts.map(|text| text.chars().count()).max();
            (longest.unwrap_or(0) + 4).min(most)
        };
        let rows = || averages.rows.iter();
        let least = rows().map(|row| row.flops).filter(|flops| *flops > 0).min();
        TorchLayout {
            device: averages.device.clone(),
            name_width: width(&mut rows().map(|row| row.name.as_str()), MAX_NAME),
            shapes_width: width(
                &mut rows().filter_map(|row| row.shapes.as_deref()),
                MAX_SHAPES,
            ),
            stack_width: width(
                &mut rows().flat_map(|row| &row.stack).map(String::as_str),
                MAX_STACK,
            ),
            flops: least.map(scale),
            self_cpu: sum_of(table, "self_cpu_time_total", |_| true),
            self_device: self
                .has_device
                .then(|| sum_of(table, "self_device_time_total", |kind| kind == DEVICE)),
        }
    }
}

const DEVICE: &str = "device";
/// Calls with more device time than the device has, by this factor, have some of it twice.
const TWICE: f64 = 1.001;

/// What a row's calls are: of the host, of a device, or notes drawn on a device.
fn kind(row: &Average) -> &'static str {
    match (row.is_device, row.is_note) {
        (false, false) => "host",
        (false, true) => "note",
        (true, false) => DEVICE,
        (true, true) => "device note",
    }
}

fn sum(rows: &[Average], of: fn(&Average) -> f64) -> f64 {
    rows.iter().map(of).fold(0.0, |sum, time| sum + time)
}

/// Device time of all rows: notes lie over the work that they are of.
fn device_sum(rows: &[Average]) -> f64 {
    sum(rows, |row| match row.is_device && !row.is_note {
        true => row.self_device,
        false => 0.0,
    })
}

/// The sum of a column, of rows of a kind.
fn sum_of(table: &Table, column: &str, is_kind: fn(&str) -> bool) -> f64 {
    let at = |name| table.columns.iter().position(|one| one.name == name);
    let (Some(value), Some(kind)) = (at(column), at("kind")) else {
        return 0.0;
    };
    let numbers = table
        .rows
        .iter()
        .filter_map(|row| match (row.get(kind), row.get(value)) {
            (Some(Cell::Text(kind)), Some(Cell::Number(number))) if is_kind(kind) => Some(*number),
            _ => None,
        });
    numbers.fold(0.0, |sum, number| sum + number)
}

/// By which power of ten the least number of operations is best shown.
fn scale(least: u64) -> (i32, &'static str) {
    const UNITS: [&str; 6] = ["FLOPs", "KFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs"];
    let thousands = ((least as f64).log10() / 3.0).clamp(0.0, 5.0) as usize;
    let unit = UNITS.get(thousands).copied().unwrap_or("FLOPs");
    (3 * thousands as i32, unit)
}

fn notes(request: &Request<'_>, averages: &Averages) -> Vec<String> {
    let mut notes = Vec::new();
    let files = request.timeline.jobs.len();
    if files > 1 {
        notes.push(format!(
            "sums over {files} traces; torch makes a table for each"
        ));
    }
    if !averages.is_kineto && !averages.rows.is_empty() {
        notes.push(
            "not all events are from torch's profiler, so calls are joined with device spans by \
             correlation ID"
                .to_owned(),
        );
    }
    // Torch gives a device span to each call with its number, also if several have it.
    let (of_calls, of_device) = (
        sum(&averages.rows, |row| {
            if row.is_device { 0.0 } else { row.self_device }
        }),
        device_sum(&averages.rows),
    );
    if of_calls > of_device * TWICE {
        notes.push(format!(
            "torch counts device time of some calls twice, and so does this table: {of_calls:.3} us \
             of calls for {of_device:.3} us of the device; other tables count it once"
        ));
    }
    if request.options.by_shape && !averages.has_shapes {
        notes.push("the trace has no shapes; profile with record_shapes=True".to_owned());
    }
    if request.options.group_by_stack > 0 && averages.rows.iter().all(|row| row.stack.is_empty()) {
        notes.push("the trace has no Python frames; profile with with_stack=True".to_owned());
    }
    if averages.has_flops && averages.rows.iter().all(|row| row.flops == 0) {
        notes.push(
            "the trace has no FLOPs; with_flops=True also needs record_shapes=True".to_owned(),
        );
    }
    notes
}
