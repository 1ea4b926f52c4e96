//! Any [`Table`] as text, CSV or JSON.

use super::torch;
use super::unitrace;
use aiprof_model::{csv, visible};
use aiprof_tables::{Cell, Column, Layout, Table};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::io::{self, Write};

/// Length of a name in text, characters; longer ones are cut.
const NAME: usize = 60;

/// How tables are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TableFormat {
    /// For people.
    #[default]
    Text,
    /// RFC 4180, one table after the other, an empty line between; columns are named
    /// with their units: `total_us`.
    Csv,
    /// A list of objects: `name`, `title`, `units` by column, `rows` as objects, `notes`,
    /// `totals_ns` by name.
    Json,
    /// The JSON of unitrace's `summary.py`, of the table `category-summary`: an object with
    /// `CATEGORY_time`, nanoseconds, and `CATEGORY_calls`.
    Summary,
}

/// Writes tables.
///
/// # Errors
/// As `out`.
pub fn write(tables: &[Table], format: TableFormat, out: &mut dyn Write) -> io::Result<()> {
    if format == TableFormat::Json {
        let tables: Vec<Value> = tables.iter().map(as_json).collect();
        serde_json::to_writer_pretty(&mut *out, &tables)?;
        return writeln!(out);
    }
    if format == TableFormat::Summary {
        serde_json::to_writer_pretty(&mut *out, &as_summary(tables))?;
        return writeln!(out);
    }
    if format == TableFormat::Text && tables.iter().all(|one| one.layout == Layout::Unitrace) {
        return unitrace::write(&tables.iter().collect::<Vec<_>>(), out);
    }
    for (index, table) in tables.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        match (format, &table.layout) {
            (TableFormat::Csv, _) => write_csv(table, out)?,
            (_, Layout::Plain) => write_text(table, out)?,
            (_, Layout::Unitrace) => unitrace::write(&[table], out)?,
            (_, Layout::Torch(layout)) => torch::write(table, layout, out)?,
        }
    }
    Ok(())
}

fn write_text(table: &Table, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", visible::one_line(&table.title))?;
    let mut shown = ShownCells::default();
    for column in &table.columns {
        shown.cell(|text| text.push_str(&head(*column)));
    }
    for row in &table.rows {
        for (cell, column) in row.iter().zip(&table.columns) {
            shown.cell(|text| show(cell, *column, text));
        }
    }
    let lengths = table
        .rows
        .iter()
        .map(|row| row.len().min(table.columns.len()));
    let lengths: Vec<usize> = std::iter::once(table.columns.len())
        .chain(lengths)
        .collect();
    let mut widths = vec![0; table.columns.len()];
    let mut cells = shown.cells();
    for length in &lengths {
        for (width, cell) in widths.iter_mut().zip(cells.by_ref().take(*length)) {
            *width = cell.chars().count().max(*width);
        }
    }
    // Names stand on the left, numbers on the right.
    let is_name = |index: usize| {
        let mut cells = table.rows.iter().filter_map(|row| row.get(index));
        cells.any(|cell| matches!(cell, Cell::Text(_)))
    };
    let left: Vec<bool> = (0..widths.len()).map(is_name).collect();
    let mut cells = shown.cells();
    let mut line = String::new();
    for length in &lengths {
        line.clear();
        let columns = widths.iter().zip(&left);
        for (cell, (width, left)) in cells.by_ref().take(*length).zip(columns) {
            let rest = std::iter::repeat_n(' ', width - cell.chars().count());
            line.push_str("  ");
            match left {
                true => {
                    line.push_str(cell);
                    line.extend(rest);
                }
                false => {
                    line.extend(rest);
                    line.push_str(cell);
                }
            }
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    for note in &table.notes {
        writeln!(out, "  ({})", visible::one_line(note))?;
    }
    Ok(())
}

/// Cells as they are shown, one behind the other: tables have millions.
#[derive(Default)]
struct ShownCells {
    text: String,
    /// Where each ends.
    ends: Vec<usize>,
}

impl ShownCells {
    fn cell(&mut self, write: impl FnOnce(&mut String)) {
        write(&mut self.text);
        self.ends.push(self.text.len());
    }

    fn cells(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let cells = starts.zip(&self.ends);
        cells.filter_map(|(start, end)| self.text.get(start..*end))
    }
}

/// A column's name for people.
fn head(column: Column) -> String {
    let name = column.name.replace('_', " ");
    match column.unit {
        "" => name,
        "percent" => format!("{name} %"),
        unit => format!("{name} {unit}"),
    }
}

fn show(cell: &Cell, column: Column, to: &mut String) {
    // Writing to a text does not fail.
    let _ = match cell {
        Cell::None => write!(to, "-"),
        Cell::Count(count) => write!(to, "{count}"),
        Cell::Number(number) => {
            let digits = column.digits;
            // Points are differences, but for how far they may be off.
            match column.unit == "points" && !column.name.ends_with("_error") {
                true => write!(to, "{number:+.digits$}"),
                false => write!(to, "{number:.digits$}"),
            }
        }
        Cell::Text(text) => {
            let text = visible::one_line(text);
            match text.chars().count() > NAME {
                true => to.extend(text.chars().take(NAME - 4).chain("[..]".chars())),
                false => to.push_str(&text),
            }
            Ok(())
        }
    };
}

fn write_csv(table: &Table, out: &mut dyn Write) -> io::Result<()> {
    let heads = table.columns.iter().map(|one| match one.unit {
        "" => one.name.to_owned(),
        unit => format!("{}_{unit}", one.name),
    });
    csv_line(heads, out)?;
    for row in &table.rows {
        let cells = row.iter().map(|cell| match cell {
            Cell::None => String::new(),
            Cell::Text(text) => text.clone(),
            Cell::Count(count) => count.to_string(),
            Cell::Number(number) => number.to_string(),
        });
        csv_line(cells, out)?;
    }
    Ok(())
}

fn csv_line(cells: impl Iterator<Item = String>, out: &mut dyn Write) -> io::Result<()> {
    for (index, cell) in cells.enumerate() {
        if index > 0 {
            write!(out, ",")?;
        }
        write!(out, "{}", csv::field(&cell))?;
    }
    writeln!(out)
}

fn as_json(table: &Table) -> Value {
    let rows = table.rows.iter().map(|row| {
        let members = row.iter().zip(&table.columns);
        let members = members.map(|(cell, column)| (column.name.to_owned(), value(cell)));
        Value::Object(members.collect::<Map<_, _>>())
    });
    let units = table.columns.iter().filter(|one| !one.unit.is_empty());
    let units: Map<_, _> = units
        .map(|one| (one.name.to_owned(), json!(one.unit)))
        .collect();
    let totals = table.totals.iter();
    let totals = totals.map(|(name, sum)| (name.clone(), value(sum)));
    json!({
        "name": table.name,
        "title": table.title,
        "units": units,
        "rows": rows.collect::<Vec<_>>(),
        "notes": table.notes,
        "totals_ns": totals.collect::<Map<_, _>>(),
    })
}

fn as_summary(tables: &[Table]) -> Value {
    let mut members = Map::new();
    for row in tables.iter().flat_map(|table| &table.rows) {
        if let [Cell::Text(category), calls, time] = row.as_slice() {
            members.insert(format!("{category}_time"), value(time));
            members.insert(format!("{category}_calls"), value(calls));
        }
    }
    Value::Object(members)
}

fn value(cell: &Cell) -> Value {
    match cell {
        Cell::None => Value::Null,
        Cell::Text(text) => json!(text),
        Cell::Count(count) => json!(count),
        Cell::Number(number) => json!(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        Table {
            name: "t",
            title: "Times".to_owned(),
            columns: vec![
                Column::of("name"),
                Column::of("calls"),
                Column::of("total:us"),
                Column::of("share:percent"),
            ],
            rows: vec![
                vec!["a, \"b\"".into(), 2u64.into(), 1.5.into(), Cell::None],
                vec!["c".into(), 10u64.into(), 0.25.into(), 12.5.into()],
            ],
            notes: vec!["all of it".to_owned()],
            ..Table::default()
        }
    }

    fn text(format: TableFormat) -> String {
        let mut out = Vec::new();
        write(&[table()], format, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn people_read_columns() {
        let expected = "\
Times
  name    calls  total us  share %
  a, \"b\"      2     1.500        -
  c          10     0.250    12.50
  (all of it)
";
        assert_eq!(text(TableFormat::Text), expected);
    }

    #[test]
    fn programs_read_csv_and_json() {
        let expected =
            "name,calls,total_us,share_percent\n\"a, \"\"b\"\"\",2,1.5,\nc,10,0.25,12.5\n";
        assert_eq!(text(TableFormat::Csv), expected);
        let tables: Value = serde_json::from_str(&text(TableFormat::Json)).unwrap();
        let row = |index: usize| &tables[0]["rows"][index];
        assert_eq!(row(0)["name"], json!("a, \"b\""));
        assert_eq!(row(0)["share"], Value::Null);
        assert_eq!(row(1)["total"], json!(0.25));
        assert_eq!(
            tables[0]["units"],
            json!({"total": "us", "share": "percent"})
        );
    }
}
