//! Tables in the layout of Intel's unitrace 2.3, byte for byte, so that what reads its
//! outputs reads these.
//!
//! Sums stand above, then a section for each backend. Names and numbers stand on the right.
//! Level Zero has wider percents than OpenCL, and its kernels' names are in quotes. What is
//! only known to be at most so much has `<=` before it, and what is not known is `-`:
//! unitrace has neither. Notes stand below in brackets.

use aiprof_model::visible;
use aiprof_tables::unitrace::{AT_MOST, QUALITY, device, host, properties, submission};
use aiprof_tables::{Cell, Column, Table};
use std::io::{self, Write};

/// Least width of OpenCL's names.
const CL_NAME: usize = 10;
/// Width of numbers in the sums above.
const SUM: usize = 20;
/// The longest name of a sum, which all are as wide as.
const LONGEST_SUM: &str = " Time for CL GPU backend (ns): ";

/// Columns of numbers: heads and widths.
const HOST: &str = "Calls 13,Time (ns) 21,Time (%) 14,Average (ns) 21,Min (ns) 21,Max (ns) 21";
const DEVICE: &str = "Calls 13,Time (ns) 21,Time (%) 13,Average (ns) 21,Min (ns) 21,Max (ns) 21";
const SUBMISSION: &str = "Calls 13,Append (ns) 21,Append (%) 12,Submit (ns) 21,Submit (%) 12,\
                         Execute (ns) 21,Execute (%) 13";
const PROPERTIES: &str = "Compiled 9,SIMD 5,Number of Arguments 20,SLM Per Work Group 19,\
                         Private Memory Per Thread 26,Spill Memory Per Thread 24,\
                         Register File Size Per Thread 30";

/// Writes tables one after the other. The names of all tables of kernels are as wide.
///
/// # Errors
/// As `out`.
pub fn write(tables: &[&Table], out: &mut dyn Write) -> io::Result<()> {
    let of_kernels = tables.iter().filter(|table| table.name != host::NAME);
    let lengths = of_kernels
        .flat_map(|table| &table.rows)
        .map(|row| length(row));
    let widest = lengths.max().unwrap_or(0);
    for (index, table) in tables.iter().enumerate() {
        let section = TableSection {
            table,
            widest: match table.name {
                host::NAME => None,
                _ => Some(widest),
            },
        };
        section.write(out)?;
        // The properties of kernels belong to the table before.
        let next = tables.get(index + 1);
        if next.is_none_or(|next| next.name != properties::NAME) {
            out.write_all(b"\n\n")?;
        }
    }
    Ok(())
}

/// Length of the name of a row, with its quotes.
fn length(row: &[Cell]) -> usize {
    2 + name_of(row).chars().count()
}

fn text_at(row: &[Cell], index: usize) -> &str {
    match row.get(index) {
        Some(Cell::Text(text)) => text,
        _ => "",
    }
}

fn name_of(row: &[Cell]) -> String {
    visible::one_line(text_at(row, 1))
}

/// A table on its way out.
struct TableSection<'a> {
    table: &'a Table,
    /// Width of the names in quotes; `None`: that of each section's own.
    widest: Option<usize>,
}

impl TableSection<'_> {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let table = self.table;
        if table.name == properties::NAME {
            write!(out, "\n\n=== {} ===\n\n", table.title)?;
            self.rows("", out)?;
            return self.notes(out);
        }
        write!(out, "\n=== {} ===\n\n", table.title)?;
        self.sums(out)?;
        let mut before = None;
        for row in &table.rows {
            let backend = text_at(row, 0);
            if before != Some(backend) {
                write!(out, "\n== {} Backend ==\n\n", visible::one_line(backend))?;
                self.rows(backend, out)?;
            }
            before = Some(backend);
        }
        self.notes(out)
    }

    /// The sums that stand above.
    fn sums(&self, out: &mut dyn Write) -> io::Result<()> {
        let what = match self.table.name {
            host::NAME => "Total API",
            _ => "Total Device",
        };
        let width = what.len() + LONGEST_SUM.len();
        for (name, sum) in &self.table.totals {
            let name = format!("{} (ns): ", visible::one_line(name));
            let sum = match sum {
                // Upper bounds come as texts.
                Cell::Text(text) => text.clone(),
                other => shown(other, Column::of(":ns"), ""),
            };
            writeln!(out, "{name:>width$}{sum:>SUM$}")?;
        }
        Ok(())
    }

    /// The rows of a backend; of properties all.
    fn rows(&self, backend: &str, out: &mut dyn Write) -> io::Result<()> {
        let table = self.table;
        let is_cl = backend.starts_with("CL");
        let is_host = table.name == host::NAME;
        let is_quoted = !is_cl && !is_host;
        let mine = |row: &&Vec<Cell>| backend.is_empty() || text_at(row, 0) == backend;
        let widest = table.rows.iter().filter(mine);
        let widest = widest.map(|row| name_of(row).chars().count()).max();
        let widest = widest.unwrap_or(0);
        let width = match self.widest {
            Some(width) if is_quoted => width,
            _ if is_cl => widest.max(CL_NAME),
            _ => widest,
        };
        let head = match is_host {
            true => "Function",
            false => "Kernel",
        };
        let fields = fields(table.name);
        write!(out, "{head:>width$}")?;
        for (name, wide) in &fields {
            let name = match *name {
                "Append (ns)" if is_cl => "Queued (ns)",
                "Append (%)" if is_cl => "Queued (%)",
                name => name,
            };
            let wide = narrow(*wide, name, is_cl);
            write!(out, ",{name:>wide$}")?;
        }
        writeln!(out)?;
        let quality = table.columns.iter().position(|one| one.name == QUALITY);
        for row in table.rows.iter().filter(mine) {
            let name = match is_quoted {
                true => format!("\"{}\"", name_of(row)),
                false => name_of(row),
            };
            write!(out, "{name:>width$}")?;
            let is_bound = quality.is_some_and(|at| text_at(row, at) == AT_MOST);
            let cells = row.iter().zip(&table.columns).skip(2);
            for ((cell, column), (head, wide)) in cells.zip(&fields) {
                let is_exact = !is_bound || is_always_exact(head);
                let cell = match is_exact || *cell == Cell::None {
                    true => shown(cell, *column, if is_cl { "CL" } else { "" }),
                    false => format!("<={}", shown(cell, *column, "")),
                };
                let wide = narrow(*wide, head, is_cl);
                write!(out, ",{cell:>wide$}")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }

    fn notes(&self, out: &mut dyn Write) -> io::Result<()> {
        for note in &self.table.notes {
            write!(out, "\n({})", visible::one_line(note))?;
        }
        match self.table.notes.is_empty() {
            true => Ok(()),
            false => writeln!(out),
        }
    }
}

/// What is exact also where the time of a device is not.
fn is_always_exact(head: &str) -> bool {
    head == "Calls" || head.starts_with("Append")
}

/// The heads and widths of a table's columns of numbers.
fn fields(table: &str) -> Vec<(&'static str, usize)> {
    let list = match table {
        host::NAME => HOST,
        submission::NAME => SUBMISSION,
        properties::NAME => PROPERTIES,
        device::NAME | device::SHAPES => DEVICE,
        _ => "",
    };
    let fields = list.split(',').filter_map(|field| {
        let (head, width) = field.rsplit_once(' ')?;
        Some((head, width.parse().ok()?))
    });
    fields.collect()
}

/// Width of a column: those of OpenCL are narrower.
fn narrow(width: usize, head: &str, is_cl: bool) -> usize {
    match head {
        _ if !is_cl => width,
        "Calls" => 12,
        _ if head.ends_with("(%)") => 12,
        _ => 20,
    }
}

fn shown(cell: &Cell, column: Column, style: &str) -> String {
    match cell {
        Cell::None => "-".to_owned(),
        Cell::Count(count) => count.to_string(),
        Cell::Number(number) if column.unit == "percent" && style == "CL" => {
            // The digits beyond are left out, not rounded.
            let text = format!("{number:.6}");
            let end = text.find('.').map_or(text.len(), |dot| dot + 3);
            text.get(..end).unwrap_or(&text).to_owned()
        }
        Cell::Number(number) => format!("{number:.digits$}", digits = column.digits),
        Cell::Text(text) => visible::one_line(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_tables::Layout;

    fn table(name: &'static str, columns: &[&'static str], rows: Vec<Vec<Cell>>) -> Table {
        let of = |name: &&'static str| match *name {
            "share" => Column::of("share:percent:6"),
            name => Column::of(name),
        };
        Table {
            name,
            title: match name {
                host::NAME => "API Timing Summary",
                properties::NAME => "Kernel Properties",
                submission::NAME => "Kernel Submission Summary",
                _ => "Device Timing Summary",
            }
            .to_owned(),
            columns: columns.iter().map(of).collect(),
            rows,
            layout: Layout::Unitrace,
            ..Table::default()
        }
    }

    fn text(tables: &[&Table]) -> String {
        let mut out = Vec::new();
        write(tables, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn row(backend: &str, name: &str, cells: [u64; 2], share: f64, more: [u64; 3]) -> Vec<Cell> {
        let [calls, time] = cells;
        let mut row: Vec<Cell> = vec![backend.into(), name.into(), calls.into(), time.into()];
        row.push(share.into());
        row.extend(more.map(Cell::from));
        row
    }

    const TIMES: [&str; 8] = [
        "backend", "function", "calls", "time", "share", "average", "min", "max",
    ];

    /// The widths of unitrace's own samples (its test/cpp_test/*/gold/linux/h.txt).
    #[test]
    fn host_calls_have_a_section_for_each_backend() {
        let mut host = table(
            host::NAME,
            &TIMES,
            vec![
                row("L0", "zeMemFree", [4, 100], 80.0, [25, 20, 30]),
                row("L0", "zeInit", [1, 25], 20.0, [25, 25, 25]),
                row("CL", "clFinish", [3, 9], 52.789, [3, 2, 4]),
            ],
        );
        host.totals = vec![
            ("Total Execution Time".to_owned(), 1234u64.into()),
            ("Total API Time for L0 backend".to_owned(), 125u64.into()),
        ];
        host.notes.push("note".to_owned());
        let expected = "
=== API Timing Summary ===

             Total Execution Time (ns):                 1234
    Total API Time for L0 backend (ns):                  125

== L0 Backend ==

 Function,        Calls,            Time (ns),      Time (%),         Average (ns),             Min (ns),             Max (ns)
zeMemFree,            4,                  100,     80.000000,                   25,                   20,                   30
   zeInit,            1,                   25,     20.000000,                   25,                   25,                   25

== CL Backend ==

  Function,       Calls,           Time (ns),    Time (%),        Average (ns),            Min (ns),            Max (ns)
  clFinish,           3,                   9,       52.78,                   3,                   2,                   4

(note)


";
        assert_eq!(text(&[&host]), expected);
    }

    /// Those of d.txt.
    #[test]
    fn kernels_and_their_properties_have_names_of_one_width() {
        let columns = [&TIMES[..], &[QUALITY]].concat();
        let mut rows = vec![
            row("L0", "a_kernel", [2, 10], 100.0, [5, 4, 6]),
            row("L0", "copy(M2D)", [1, 7], 0.0, [7, 0, 7]),
        ];
        rows[0].push("exact".into());
        rows[1].push(AT_MOST.into());
        (rows[1][4], rows[1][6]) = (Cell::None, Cell::None);
        let mut device = table(device::NAME, &columns, rows);
        device.totals = vec![(
            "Total Device Time for L0 backend".to_owned(),
            Cell::Text("<=17".to_owned()),
        )];
        let properties = table(
            properties::NAME,
            &["backend", "kernel", "c", "s", "a", "m", "p", "x", "r"],
            vec![vec![
                "L0".into(),
                "a_kernel".into(),
                "JIT".into(),
                32u64.into(),
                3u64.into(),
                0u64.into(),
                0u64.into(),
                0u64.into(),
                "unknown".into(),
            ]],
        );
        let expected = "
=== Device Timing Summary ===

    Total Device Time for L0 backend (ns):                 <=17

== L0 Backend ==

     Kernel,        Calls,            Time (ns),     Time (%),         Average (ns),             Min (ns),             Max (ns)
 \"a_kernel\",            2,                   10,   100.000000,                    5,                    4,                    6
\"copy(M2D)\",            1,                  <=7,            -,                  <=7,                    -,                  <=7


=== Kernel Properties ===

     Kernel, Compiled, SIMD, Number of Arguments, SLM Per Work Group, Private Memory Per Thread, Spill Memory Per Thread, Register File Size Per Thread
 \"a_kernel\",      JIT,   32,                   3,                  0,                         0,                       0,                       unknown


";
        assert_eq!(text(&[&device, &properties]), expected);
    }

    #[test]
    fn submissions_are_as_wide_as_unitraces() {
        let columns = [
            "backend", "kernel", "calls", "append", "share", "submit", "share", "execute", "share",
        ];
        let row: Vec<Cell> = vec![
            "L0".into(),
            "k".into(),
            4u64.into(),
            1u64.into(),
            100.0.into(),
            2u64.into(),
            100.0.into(),
            3u64.into(),
            100.0.into(),
        ];
        let found = text(&[&table(submission::NAME, &columns, vec![row])]);
        let expected = "
== L0 Backend ==

Kernel,        Calls,          Append (ns),  Append (%),          Submit (ns),  Submit (%),         Execute (ns),  Execute (%)
\"k\",            4,                    1,  100.000000,                    2,  100.000000,                    3,   100.000000


";
        assert!(found.ends_with(expected), "{found}");
    }
}
