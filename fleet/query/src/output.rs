//! Tables for people and programs.

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use std::io::Write;
use std::path::PathBuf;

/// Where and how a table is written.
#[derive(Clone, Debug, Args)]
pub(crate) struct TableArgs {
    /// Output format
    #[arg(long, value_enum, default_value_t = TableFormat::Text)]
    format: TableFormat,

    /// Output file [default: stdout]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The form of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TableFormat {
    /// Aligned columns
    Text,
    /// Comma-separated values
    Csv,
    /// One JSON object per line
    Json,
}

/// A value of a table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    /// A text.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// A number, and how many digits after the point people see.
    Number(f64, usize),
    /// It is not known.
    None,
}

impl Cell {
    /// A whole number, which may be too large for [`Cell::Integer`].
    pub(crate) fn whole(number: f64) -> Self {
        const MOST: f64 = i64::MAX as f64;
        match number.abs() < MOST {
            true => Self::Integer(number as i64),
            false => Self::Number(number, 0),
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Text(text) => text
                .chars()
                .map(|c| if c.is_control() { ' ' } else { c })
                .collect(),
            Self::Integer(number) => number.to_string(),
            Self::Number(number, digits) => format!("{number:.digits$}"),
            Self::None => "-".to_owned(),
        }
    }

    fn json(&self) -> serde_json::Value {
        match self {
            Self::Text(text) => text.as_str().into(),
            Self::Integer(number) => (*number).into(),
            // Turns -0 into 0.
            Self::Number(number, _) => (*number + 0.0).into(),
            Self::None => serde_json::Value::Null,
        }
    }

    fn csv(&self) -> String {
        match self {
            Self::Text(text) if text.contains([',', '"', '\n', '\r']) => {
                format!("\"{}\"", text.replace('"', "\"\""))
            }
            Self::Text(text) => text.clone(),
            Self::Integer(number) => number.to_string(),
            Self::Number(number, _) => (*number + 0.0).to_string(),
            Self::None => String::new(),
        }
    }
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct OutputTable {
    /// Names of the columns.
    pub(crate) columns: Vec<String>,
    /// The rows.
    pub(crate) rows: Vec<Vec<Cell>>,
}

impl OutputTable {
    /// Without rows.
    pub(crate) fn new(columns: &[&str]) -> Self {
        Self {
            columns: columns.iter().map(|name| (*name).to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Writes it.
    pub(crate) fn write(&self, args: &TableArgs) -> Result<()> {
        to(args.output.as_ref(), |out| match args.format {
            TableFormat::Text => self.text(out),
            TableFormat::Csv => self.csv(out),
            TableFormat::Json => self.json(out),
        })
    }

    fn text(&self, out: &mut dyn Write) -> Result<()> {
        let mut shown: Vec<Vec<String>> = vec![self.columns.clone()];
        let rows = self.rows.iter();
        shown.extend(rows.map(|row| row.iter().map(Cell::shown).collect()));
        let width = |column: usize| {
            let cells = shown.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let is_number = |column: usize| {
            let mut cells = self.rows.iter().filter_map(|row| row.get(column));
            !self.rows.is_empty() && cells.all(|cell| !matches!(cell, Cell::Text(_)))
        };
        let right: Vec<bool> = (0..self.columns.len()).map(is_number).collect();
        for row in &shown {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths.get(column).copied().unwrap_or(0);
                // Formatting refuses widths from 65,536 on, which a stack may have.
                let blank = " ".repeat(width.saturating_sub(cell.chars().count()));
                let cells = match right.get(column) {
                    Some(true) => [blank.as_str(), cell.as_str()],
                    _ if column + 1 == row.len() => [cell.as_str(), ""],
                    _ => [cell.as_str(), blank.as_str()],
                };
                line.extend(cells);
                line.push_str("  ");
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    fn csv(&self, out: &mut dyn Write) -> Result<()> {
        writeln!(out, "{}", self.columns.join(","))?;
        for row in &self.rows {
            let cells: Vec<String> = row.iter().map(Cell::csv).collect();
            writeln!(out, "{}", cells.join(","))?;
        }
        Ok(())
    }

    fn json(&self, out: &mut dyn Write) -> Result<()> {
        for row in &self.rows {
            let cells = self.columns.iter().zip(row);
            let object: serde_json::Map<String, serde_json::Value> = cells
                .map(|(name, cell)| (name.clone(), cell.json()))
                .collect();
            writeln!(out, "{}", serde_json::Value::Object(object))?;
        }
        Ok(())
    }
}

/// Writes to a file, whole or not at all, or to stdout.
pub(crate) fn to(
    path: Option<&PathBuf>,
    write: impl FnOnce(&mut dyn Write) -> Result<()>,
) -> Result<()> {
    let Some(path) = path.filter(|path| path.as_os_str() != "-") else {
        let mut out = std::io::BufWriter::new(std::io::stdout().lock());
        write(&mut out)?;
        out.flush()?;
        return Ok(());
    };
    let mut content = Vec::new();
    write(&mut content)?;
    std::fs::write(path, content).with_context(|| path.display().to_string())
}

/// A remark for people.
pub(crate) fn note(text: &str) {
    // Nothing can be done where stderr is closed.
    let _ = writeln!(std::io::stderr(), "aiprof-query: {text}");
}
