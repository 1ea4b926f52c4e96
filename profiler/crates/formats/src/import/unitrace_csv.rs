//! Reads the CSV of unitrace's `--stall-sampling`.
//!
//! Total and bounded: lines that are no rows are counted and left out. Offsets are
//! hexadecimal even where all their digits are decimal, with `0x` (unitrace before
//! 2.3) or without. Columns go by their names: newer drivers have more of them.

#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

use crate::export::unitrace_csv::{COLUMNS, IP, KERNEL};
use aiprof_model::lines::{LineError, Lines};
use aiprof_model::profile::{StallReason, StallRow, StallTable, StalledDevice};
use aiprof_record::aggregate::ReasonCounts;
use std::collections::BTreeMap;
use std::io::{self, BufRead};

/// Longest line that is read, in bytes.
pub const MAX_LINE: usize = 1 << 20;

/// Most text that is read, in bytes.
pub const MAX_INPUT: u64 = 1 << 30;

/// Most instructions that are read, over all devices.
pub const MAX_ROWS: usize = 1 << 22;

/// Most devices that are read.
pub const MAX_DEVICES: usize = 1 << 12;

/// What a file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// The stalls. Devices are called as the file does: `Device #0`.
    pub table: StallTable,
    /// Lines that are no rows of a table, or cut off.
    pub skipped: u64,
    /// The first of them, counted from 1.
    pub first_skipped: Option<u64>,
}

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum StallCsvError {
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// No line names the columns of stall sampling.
    #[error("not a stall table of `unitrace --stall-sampling`")]
    NotStalls,
    /// A line is longer than [`MAX_LINE`].
    #[error("line {line} is too long (limit: {max} bytes)", max = MAX_LINE)]
    LineTooLong {
        /// Line number, from 1.
        line: u64,
    },
    /// The file has more than [`MAX_INPUT`] bytes, [`MAX_ROWS`] instructions or
    /// [`MAX_DEVICES`] devices.
    #[error("line {line}: the stall table is too large")]
    TooLarge {
        /// Line number, from 1.
        line: u64,
    },
}

/// What a column of a row is.
#[derive(Clone, Copy)]
enum CsvColumn {
    Kernel,
    Offset,
    Count(StallReason),
    Ignored,
}

#[derive(Default)]
struct StallTableReader {
    /// Instructions by device, kernel and offset.
    devices: BTreeMap<String, BTreeMap<(String, u64), ReasonCounts>>,
    rows: usize,
    /// Name of the device whose section this is.
    device: String,
    /// The columns of that section; `None`: not known yet.
    columns: Option<Vec<CsvColumn>>,
    /// Whether any section had columns.
    is_stalls: bool,
    skipped: u64,
    first_skipped: Option<u64>,
}

/// Whether the first lines of a file are those of a table of stalls.
pub(crate) fn is_stall_csv(head: &[u8]) -> bool {
    let lines = head.split(|byte| *byte == b'\n');
    let mut lines = lines
        .map(|line| line.trim_ascii())
        .filter(|l| !l.is_empty());
    let is_banner = |line: &[u8]| line.starts_with(b"=== Device #");
    let is_header = |line: &[u8]| {
        let line = String::from_utf8_lossy(line);
        line.starts_with(KERNEL) && line.contains(IP)
    };
    match lines.next() {
        Some(first) if is_banner(first) => lines.next().is_some_and(is_header),
        Some(first) => is_header(first),
        None => false,
    }
}

/// Reads a file.
///
/// Rows of one instruction are added up.
///
/// # Errors
///
/// A [`StallCsvError`]: the file is something else, or too large.
pub fn read(input: &mut dyn BufRead) -> Result<Stalls, StallCsvError> {
    let mut reader = StallTableReader {
        device: "Device #0".to_owned(),
        ..StallTableReader::default()
    };
    let mut lines = Lines::new(input, MAX_LINE, MAX_INPUT);
    while let Some((number, line)) = lines.next_line()? {
        if !reader.has_room() {
            return Err(StallCsvError::TooLarge { line: number });
        }
        // The last line of a file that was cut off may look whole: `12` of `123`.
        let is_whole = line.last() == Some(&b'\n');
        let text = String::from_utf8_lossy(line);
        let text = text.trim();
        if !(text.is_empty() || is_whole && reader.line(text)) {
            reader.skipped += 1;
            reader.first_skipped.get_or_insert(number);
        }
    }
    reader.finish()
}

impl From<LineError> for StallCsvError {
    fn from(error: LineError) -> Self {
        match error {
            LineError::Io(error) => error.into(),
            LineError::TooLong(line) => Self::LineTooLong { line },
            LineError::TooLarge(line) => Self::TooLarge { line },
        }
    }
}

impl StallTableReader {
    fn has_room(&self) -> bool {
        self.rows <= MAX_ROWS && self.devices.len() <= MAX_DEVICES
    }

    /// Takes a line; false if it is nothing known.
    fn line(&mut self, text: &str) -> bool {
        if let Some(device) = banner(text) {
            self.device = device.to_owned();
            self.columns = None;
            return true;
        }
        if text.starts_with(KERNEL) && text.contains(IP) {
            self.columns = Some(columns(text));
            self.is_stalls = true;
            return true;
        }
        let Some(row) = self.columns.as_ref().and_then(|columns| row(text, columns)) else {
            return false;
        };
        let (kernel, offset, counts) = row;
        let device = self.devices.entry(self.device.clone()).or_default();
        let before = device.len();
        let sums = device.entry((kernel, offset)).or_default();
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum = sum.saturating_add(count);
        }
        self.rows = self.rows.saturating_add(device.len() - before);
        true
    }

    fn finish(self) -> Result<Stalls, StallCsvError> {
        if !self.is_stalls {
            return Err(StallCsvError::NotStalls);
        }
        let devices = self.devices.into_iter().map(|(name, rows)| {
            let rows = rows.into_iter().map(|((kernel, offset), counts)| StallRow {
                kernel,
                offset,
                counts,
            });
            StalledDevice {
                name,
                rows: rows.collect(),
            }
        });
        let mut table = StallTable {
            devices: devices.collect(),
        };
        // `Device #10` comes after `Device #9`.
        table.devices.sort_by_key(|device| device.name.len());
        Ok(Stalls {
            table,
            skipped: self.skipped,
            first_skipped: self.first_skipped,
        })
    }
}

/// The device of a section's first line, `=== Device #0 Metrics ===`.
fn banner(text: &str) -> Option<&str> {
    text.strip_prefix("=== ")?.strip_suffix(" Metrics ===")
}

fn columns(header: &str) -> Vec<CsvColumn> {
    let header = header.trim_end_matches([',', ' ']);
    let column = |name: &str| match name.trim() {
        KERNEL => CsvColumn::Kernel,
        IP => CsvColumn::Offset,
        name => {
            let known = COLUMNS.into_iter().find(|(column, _)| *column == name);
            known.map_or(CsvColumn::Ignored, |(_, reason)| CsvColumn::Count(reason))
        }
    };
    header.split(',').map(column).collect()
}

/// Kernel, offset and counts of a row.
fn row(text: &str, columns: &[CsvColumn]) -> Option<(String, u64, ReasonCounts)> {
    let text = text.trim_end_matches([',', ' ']);
    // From the right: names of kernels have commas, and quotes that are not doubled.
    let mut fields: Vec<&str> = text.rsplitn(columns.len(), ',').map(str::trim).collect();
    fields.reverse();
    if fields.len() != columns.len() {
        return None;
    }
    let (mut kernel, mut offset, mut counts) = (None, None, ReasonCounts::default());
    for (field, column) in fields.into_iter().zip(columns) {
        match column {
            CsvColumn::Kernel => kernel = Some(unquoted(field)),
            CsvColumn::Offset => offset = Some(hexadecimal(field)?),
            CsvColumn::Count(reason) => *counts.get_mut(*reason as usize)? = decimal(field)?,
            CsvColumn::Ignored => {}
        }
    }
    let kernel = kernel.filter(|name| !name.is_empty())?;
    Some((kernel.to_owned(), offset?, counts))
}

fn unquoted(field: &str) -> &str {
    let inside = field.strip_prefix('"').and_then(|f| f.strip_suffix('"'));
    inside.unwrap_or(field)
}

fn hexadecimal(field: &str) -> Option<u64> {
    let digits = field.strip_prefix("0x").unwrap_or(field);
    // `from_str_radix` alone would accept a sign.
    let is_hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
    is_hex.then(|| u64::from_str_radix(digits, 16).ok())?
}

fn decimal(field: &str) -> Option<u64> {
    let is_decimal = field.bytes().all(|b| b.is_ascii_digit());
    is_decimal.then(|| field.parse().ok())?
}

#[cfg(test)]
#[path = "unitrace_csv_tests.rs"]
mod tests;
