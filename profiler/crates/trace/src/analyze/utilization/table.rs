//! The table of kernel categories as acelyzer writes it: `_categories.csv`, and
//! `_categories.txt` with columns of fixed width.

use super::{CategoryRow, python};
use aiprof_model::csv;
use std::io::{self, Write};

const HEADER: [&str; 10] = [
    "Pid",
    "Phase",
    "Category",
    "Kernel_Time",
    "Frac_Time",
    "Calls",
    "Ideal_Time",
    "Ideal_Cyc",
    "Frac_Ideal",
    "PT_Util",
];

/// A column. pandas keeps numbers without fractions apart from those with: a column
/// of fractions that are all undefined shows `0`, not `0.0`.
enum Column {
    Texts(Vec<String>),
    Integers(Vec<i128>),
    Floats(Vec<f64>),
}

/// Writes the comma separated table.
///
/// # Errors
/// Errors of the output.
pub fn write_csv(rows: &[CategoryRow], out: &mut dyn Write) -> io::Result<()> {
    let columns = columns(rows).map(|column| match column {
        Column::Texts(texts) => texts
            .iter()
            .map(|text| csv::field(text).into_owned())
            .collect(),
        Column::Integers(numbers) => numbers.iter().map(i128::to_string).collect::<Vec<_>>(),
        Column::Floats(numbers) => numbers.iter().map(|number| csv_float(*number)).collect(),
    });
    writeln!(out, "{}", HEADER.join(","))?;
    write_rows(&columns, rows.len(), ",", out)
}

/// Writes the table with columns of fixed width.
///
/// # Errors
/// Errors of the output.
pub fn write_text(rows: &[CategoryRow], out: &mut dyn Write) -> io::Result<()> {
    let mut widths = [0; HEADER.len()];
    let mut columns = columns(rows).map(|column| match column {
        Column::Texts(texts) => (false, texts.iter().map(|text| escaped(text)).collect()),
        Column::Integers(numbers) => (true, numbers.iter().map(i128::to_string).collect()),
        Column::Floats(numbers) => (true, python::pandas_floats(&numbers)),
    });
    let mut header = HEADER.map(str::to_owned);
    for ((width, name), (is_number, texts)) in widths.iter_mut().zip(&mut header).zip(&columns) {
        if *is_number {
            name.insert(0, ' ');
        }
        let longest = texts.iter().map(|text: &String| text.chars().count()).max();
        *width = longest.unwrap_or(0).max(name.len());
        *name = format!("{name:>width$}");
    }
    for (width, (_, texts)) in widths.iter().zip(&mut columns) {
        for text in texts {
            *text = format!("{text:>width$}");
        }
    }
    writeln!(out, "{}", header.join(" "))?;
    write_rows(&columns.map(|(_, texts)| texts), rows.len(), " ", out)
}

fn write_rows(
    columns: &[Vec<String>],
    rows: usize,
    separator: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    for row in 0..rows {
        let cells: Vec<_> = columns.iter().filter_map(|c| c.get(row)).collect();
        for (number, cell) in cells.into_iter().enumerate() {
            let before = if number == 0 { "" } else { separator };
            write!(out, "{before}{cell}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn columns(rows: &[CategoryRow]) -> [Column; HEADER.len()] {
    let texts = |value: fn(&CategoryRow) -> String| Column::Texts(rows.iter().map(value).collect());
    let integers =
        |value: fn(&CategoryRow) -> i128| Column::Integers(rows.iter().map(value).collect());
    let floats = |value: fn(&CategoryRow) -> f64| Column::Floats(rows.iter().map(value).collect());
    [
        integers(|row| row.rank.into()),
        texts(|row| row.phase.to_owned()),
        texts(|row| row.category.clone()),
        floats(|row| row.time_us),
        fractions(rows, |row| (row.time_us, row.total_us)),
        integers(|row| row.calls.into()),
        floats(|row| python::round(row.ideal_us, 4)),
        integers(|row| row.ideal_cycles.into()),
        fractions(rows, |row| (row.ideal_us, row.total_ideal_us)),
        fractions(rows, |row| (row.ideal_us, row.time_us)),
    ]
}

/// Fractions with four digits; of nothing they are the integer 0.
fn fractions(rows: &[CategoryRow], value: fn(&CategoryRow) -> (f64, f64)) -> Column {
    let defined = |(_, whole): (f64, f64)| whole.abs() > 1e-9;
    if !rows.iter().map(value).any(defined) {
        return Column::Integers(vec![0; rows.len()]);
    }
    let fraction = |row| match value(row) {
        (part, whole) if defined((part, whole)) => python::round(part / whole, 4),
        _ => 0.0,
    };
    Column::Floats(rows.iter().map(fraction).collect())
}

fn csv_float(number: f64) -> String {
    match number.is_nan() {
        true => String::new(),
        false => python::repr(number),
    }
}

/// A text on one line, as pandas shows it.
fn escaped(text: &str) -> String {
    let text = text.replace('\t', "\\t").replace('\r', "\\r");
    text.replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(category: &str, time_us: f64, ideal_us: f64, ideal_cycles: u64) -> CategoryRow {
        CategoryRow {
            rank: 0,
            phase: "UNKN",
            category: category.to_owned(),
            time_us,
            calls: u64::from(time_us > 0.0),
            ideal_us,
            ideal_cycles,
            total_us: 4.0,
            total_ideal_us: ideal_us,
        }
    }

    fn written(rows: &[CategoryRow]) -> (String, String) {
        let (mut csv, mut text) = (Vec::new(), Vec::new());
        write_csv(rows, &mut csv).unwrap();
        write_text(rows, &mut text).unwrap();
        let string = |bytes| String::from_utf8(bytes).unwrap();
        (string(csv), string(text))
    }

    /// The cells are those of acelyzer 1.3.0 on a table in which nothing fits.
    #[test]
    fn undefined_fractions_are_integers() {
        let rows = [row("StcdpHbm", 0.0, 0.0, 0), row("Total", 4.0, 0.0, 0)];
        let (csv, text) = written(&rows);
        assert_eq!(
            csv,
            "Pid,Phase,Category,Kernel_Time,Frac_Time,Calls,Ideal_Time,Ideal_Cyc,Frac_Ideal,\
             PT_Util\n0,UNKN,StcdpHbm,0.0,0.0,0,0.0,0,0,0.0\n0,UNKN,Total,4.0,1.0,1,0.0,0,0,0.0\n"
        );
        assert_eq!(
            text,
            " Pid Phase Category  Kernel_Time  Frac_Time  Calls  Ideal_Time  Ideal_Cyc  \
             Frac_Ideal  PT_Util\n\
             \u{20}  0  UNKN StcdpHbm          0.0        0.0      0         0.0          0           0      0.0\n\
             \u{20}  0  UNKN    Total          4.0        1.0      1         0.0          0           0      0.0\n"
        );
    }

    #[test]
    fn names_cannot_break_the_table() {
        let (csv, text) = written(&[row("a,\"b\n", 4.0, 2.0, 2)]);
        assert_eq!(
            csv.lines().skip(1).collect::<Vec<_>>(),
            ["0,UNKN,\"a,\"\"b", "\",4.0,1.0,1,2.0,2,1.0,0.5"]
        );
        assert_eq!(text.lines().count(), 2);
        assert!(text.contains("a,\"b\\n"));
    }
}
