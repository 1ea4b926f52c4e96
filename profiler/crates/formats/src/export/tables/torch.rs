//! The text of torch's `key_averages().table()`, byte for byte as `_build_table` of
//! `torch/autograd/profiler_util.py` prints it.

use aiprof_model::visible;
use aiprof_tables::key_averages::TorchLayout;
use aiprof_tables::{Cell, Table};
use std::io::{self, Write};

/// Width of a column of numbers, characters.
const WIDTH: usize = 12;
/// Names from this length on are cut.
const CUT_NAME: usize = 52;

/// A column of the text.
struct TextColumn {
    head: String,
    width: usize,
    cells: Vec<String>,
    /// Texts stand at the left, one below the other, and rows are apart.
    is_stack: bool,
}

impl TextColumn {
    /// A text at its place in the column.
    fn padded(&self, text: &str) -> String {
        let width = self.width;
        match self.is_stack {
            true => format!("{text:<width$}  "),
            false => format!("{text:>width$}  "),
        }
    }
}

/// Writes a table in torch's layout, and the notes behind it.
///
/// # Errors
/// As `out`.
pub(super) fn write(table: &Table, layout: &TorchLayout, out: &mut dyn Write) -> io::Result<()> {
    if table.rows.is_empty() {
        return write_notes(table, out);
    }
    let columns = columns(table, layout);
    let line = |cells: &mut dyn Iterator<Item = String>| {
        let cells: Vec<String> = cells.collect();
        cells.concat()
    };
    let rule = line(
        &mut columns
            .iter()
            .map(|one| format!("{}  ", "-".repeat(one.width))),
    );
    let head = line(&mut columns.iter().map(|one| one.padded(&one.head)));
    writeln!(out, "{rule}\n{head}\n{rule}")?;
    for row in 0..table.rows.len() {
        let cell = |one: &TextColumn| one.cells.get(row).cloned().unwrap_or_default();
        let stack = columns.iter().find(|one| one.is_stack).map(cell);
        let mut frames = stack.as_deref().unwrap_or_default().split('\n');
        let first = frames.next().unwrap_or_default();
        let cells = columns.iter().map(|one| match one.is_stack {
            true => one.padded(first),
            false => one.padded(&cell(one)),
        });
        writeln!(out, "{}", line(&mut { cells }))?;
        let rest = frames.chain(stack.as_ref().map(|_| ""));
        for frame in rest {
            let cells = columns.iter().map(|one| match one.is_stack {
                true => one.padded(frame),
                false => one.padded(""),
            });
            writeln!(out, "{}", line(&mut { cells }))?;
        }
    }
    writeln!(
        out,
        "{rule}\nSelf CPU time total: {}",
        time(layout.self_cpu)
    )?;
    if let Some(total) = layout.self_device {
        writeln!(out, "Self {} time total: {}", layout.device, time(total))?;
    }
    write_notes(table, out)
}

fn write_notes(table: &Table, out: &mut dyn Write) -> io::Result<()> {
    for note in &table.notes {
        writeln!(out, "({})", visible::one_line(note))?;
    }
    Ok(())
}

fn columns(table: &Table, layout: &TorchLayout) -> Vec<TextColumn> {
    let device = &layout.device;
    let mut columns = Columns {
        table,
        all: Vec::new(),
    };
    columns.add("name", "Name", layout.name_width, name);
    columns.add("self_cpu", "Self CPU %", WIDTH, share);
    columns.add("self_cpu_time_total", "Self CPU", WIDTH, time_of);
    columns.add("cpu", "CPU total %", WIDTH, share);
    columns.add("cpu_time_total", "CPU total", WIDTH, time_of);
    columns.add("cpu_time", "CPU time avg", WIDTH, time_of);
    let heads = [
        ("self_device_time_total", format!("Self {device}")),
        ("device_time_total", format!("{device} total")),
        ("device_time", format!("{device} time avg")),
    ];
    let [(of_self, self_head), (total, total_head), (mean, mean_head)] = &heads;
    columns.add(of_self, self_head, WIDTH, time_of);
    columns.add("self_device", &format!("Self {device} %"), WIDTH, share);
    columns.add(total, total_head, WIDTH, time_of);
    columns.add(mean, mean_head, WIDTH, time_of);
    columns.add("cpu_memory_usage", "CPU Mem", WIDTH, bytes);
    columns.add("self_cpu_memory_usage", "Self CPU Mem", WIDTH, bytes);
    let head = format!("{device} Mem");
    columns.add("device_memory_usage", &head, WIDTH, bytes);
    columns.add(
        "self_device_memory_usage",
        &format!("Self {head}"),
        WIDTH,
        bytes,
    );
    columns.add("count", "# of Calls", WIDTH, count);
    let width = layout.shapes_width;
    columns.add("input_shapes", "Input Shapes", width, move |cell| {
        text(cell).chars().take(width).collect()
    });
    let width = layout.stack_width;
    columns.add("stack", "Source Location", width, move |cell| {
        let frames = text(cell).split(';').map(|frame| end_of(frame, width));
        frames.collect::<Vec<_>>().join("\n")
    });
    if let Some((power, unit)) = layout.flops {
        let scale = 10f64.powi(-power);
        columns.add(
            "flops",
            &format!("Total {unit}"),
            WIDTH,
            move |cell| match cell {
                Cell::Count(0) => "--".to_owned(),
                Cell::Count(flops) => format!("{:8.3}", *flops as f64 * scale),
                _ => String::new(),
            },
        );
    }
    columns.all
}

struct Columns<'t> {
    table: &'t Table,
    all: Vec<TextColumn>,
}

impl Columns<'_> {
    /// Adds a column, if the table has it.
    fn add(&mut self, name: &str, head: &str, width: usize, shown: impl Fn(&Cell) -> String) {
        let mut columns = self.table.columns.iter();
        let Some(at) = columns.position(|one| one.name == name) else {
            return;
        };
        let cells = self.table.rows.iter();
        let cells = cells.map(|row| row.get(at).map_or_else(String::new, &shown));
        self.all.push(TextColumn {
            head: head.to_owned(),
            width,
            cells: cells.collect(),
            is_stack: name == "stack",
        });
    }
}

fn text(cell: &Cell) -> &str {
    match cell {
        Cell::Text(text) => text,
        _ => "",
    }
}

fn name(cell: &Cell) -> String {
    let name = visible::one_line(text(cell));
    match name.chars().count() >= CUT_NAME {
        true => name.chars().take(CUT_NAME).chain("...".chars()).collect(),
        false => name.to_string(),
    }
}

/// The end of a frame, where it is too long for its column.
fn end_of(frame: &str, width: usize) -> String {
    let frame = visible::one_line(frame);
    let count = frame.chars().count();
    match count > width {
        true => {
            let rest = frame.chars().skip(count - width);
            "...".chars().chain(rest.skip(3)).collect()
        }
        false => frame.to_string(),
    }
}

fn share(cell: &Cell) -> String {
    match cell {
        Cell::Number(share) => format!("{share:.2}%"),
        _ => "NaN".to_owned(),
    }
}

fn time_of(cell: &Cell) -> String {
    match cell {
        Cell::Number(micros) => time(*micros),
        _ => String::new(),
    }
}

fn time(micros: f64) -> String {
    if micros >= 1e6 {
        format!("{:.3}s", micros / 1e6)
    } else if micros >= 1e3 {
        format!("{:.3}ms", micros / 1e3)
    } else {
        format!("{micros:.3}us")
    }
}

fn bytes(cell: &Cell) -> String {
    let Cell::Number(bytes) = cell else {
        return String::new();
    };
    let units = [(30, "GB"), (20, "MB"), (10, "KB")];
    let mut units = units
        .iter()
        .map(|(power, unit)| (f64::from(1u32 << power), unit));
    match units.find(|(size, _)| bytes.abs() >= *size) {
        Some((size, unit)) => format!("{:.2} {unit}", bytes / size),
        None => format!("{bytes:.0} B"),
    }
}

fn count(cell: &Cell) -> String {
    match cell {
        Cell::Count(count) => count.to_string(),
        _ => String::new(),
    }
}
