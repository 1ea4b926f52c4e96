//! Compiler logs of the AIU: tables of ideal cycles among everything else.
//!
//! ```text
//!    PREFILL
//! ~~~~ Ideal/Total Cycles ~~~~
//! addmm_MatMul-opCatBmm_fp16                    2048
//! Total                                         2048
//! ====== Perf Summary End ======
//! ```

#[cfg(any(test, feature = "testing"))]
pub mod testing;

use crate::analyze::messages::Messages;
use crate::analyze::utilization::ideal::{IdealTable, IdealTables, NOT_AVAILABLE, Phase, TOTAL};
use memchr::memmem::Finder;
use std::io::{self, BufRead};
use std::sync::LazyLock;

/// Longest line that is read, bytes; of a longer one the rest is passed over, and it
/// is no row.
const MAX_LINE: usize = 64 * 1024;

/// Reads a compiler log line by line; memory does not grow with its length.
///
/// # Errors
/// The input cannot be read. What it holds is never an error.
pub fn read(input: &mut dyn BufRead, messages: &mut Messages) -> io::Result<IdealTables> {
    let mut scan = Scan::default();
    let mut line = Vec::new();
    loop {
        match next_line(input, &mut line)? {
            LogLine::End => break,
            LogLine::Whole if scan.may_tell(&line) => {
                scan.line(&String::from_utf8_lossy(&line), messages);
            }
            LogLine::Whole => {}
            LogLine::TooLong => scan.too_long += 1,
        }
    }
    scan.finish(messages);
    Ok(scan.tables)
}

/// What is looked for in all lines.
static MARKS: LazyLock<[Finder<'static>; 3]> =
    LazyLock::new(|| [AUTOPILOT, SCALING, TABLE].map(Finder::new));
const AUTOPILOT: &str = "DSM-AutoPilot BEGIN";
const SCALING: &str = "Ideal Clock Scaling:";
const TABLE: &str = " Ideal/Total Cycles ";

enum LogLine {
    End,
    Whole,
    TooLong,
}

/// Reads the next line, without its end.
fn next_line(input: &mut dyn BufRead, line: &mut Vec<u8>) -> io::Result<LogLine> {
    line.clear();
    let (mut any, mut too_long) = (false, false);
    loop {
        let chunk = match input.fill_buf() {
            Ok(chunk) => chunk,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if chunk.is_empty() {
            break;
        }
        any = true;
        let end = memchr::memchr(b'\n', chunk);
        let (text, _) = chunk.split_at(end.unwrap_or(chunk.len()));
        too_long |= line.len() + text.len() > MAX_LINE;
        if !too_long {
            line.extend_from_slice(text);
        }
        let used = text.len() + usize::from(end.is_some());
        input.consume(used);
        if end.is_some() {
            break;
        }
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(match (any, too_long) {
        (false, _) => LogLine::End,
        (true, true) => LogLine::TooLong,
        (true, false) => LogLine::Whole,
    })
}

/// Where in a log the reader is.
#[derive(Default)]
struct Scan {
    tables: IdealTables,
    /// Phase of the tables that follow.
    phase: Phase,
    table: Option<IdealTable>,
    too_long: u64,
    /// Rows whose number is beyond 64 bits.
    too_large: u64,
}

impl Scan {
    /// Whether a line can be anything but noise: most of a log is, and is passed over
    /// without a look at its characters.
    fn may_tell(&self, line: &[u8]) -> bool {
        // A row of the table, or a phase, which is indented.
        self.table.is_some()
            || line.first().is_none_or(|first| !first.is_ascii_graphic())
            || MARKS.iter().any(|mark| mark.find(line).is_some())
    }

    fn line(&mut self, line: &str, messages: &mut Messages) {
        if line.contains(AUTOPILOT) {
            self.autopilot(messages);
        } else if line.contains(SCALING) {
            messages.warn(
                "UTL",
                format_args!(
                    "UTL: Found obsolete 'Ideal Cycle Scaling' setting in logfile. This setting \
                     is ignored. Use '--freq=<soc>:<core>'."
                ),
            );
        } else if let Some(phase) = phase_of(line) {
            self.phase = phase;
        } else if line.contains(TABLE) {
            self.close(true, messages);
            self.table = Some(IdealTable::new(self.phase));
        } else if self.table.is_some() {
            if line.contains("====== Perf Summary End ======") {
                self.close(false, messages);
            } else {
                self.row(line, messages);
            }
        }
    }

    fn autopilot(&mut self, messages: &mut Messages) {
        if !self.tables.autopilot {
            messages.warn(
                "UTL",
                format_args!(
                    "UTL: Detected autopilot=on. Event categorization, cycles table matching \
                     and other utilization-related data might be unreliable."
                ),
            );
        }
        self.tables.autopilot = true;
    }

    fn row(&mut self, line: &str, messages: &mut Messages) {
        let Some((name, digits)) = columns(line) else {
            return;
        };
        let (kernel, category) = split_name(name);
        if kernel.is_empty() {
            return;
        }
        match (digits.parse(), &mut self.table) {
            (Ok(cycles), Some(table)) => table.add(kernel, category, cycles, messages),
            _ => self.too_large += 1,
        }
    }

    /// Ends the table that is being read, if there is one.
    fn close(&mut self, is_cut: bool, messages: &mut Messages) {
        let Some(table) = self.table.take() else {
            return;
        };
        if is_cut {
            messages.warn(
                "UTL",
                format_args!(
                    "UTL: An ideal cycles table ends early, after {} rows; these rows are used",
                    table.rows()
                ),
            );
        }
        if !(is_cut && table.is_empty()) {
            self.tables.add(table, messages);
        }
    }

    fn finish(&mut self, messages: &mut Messages) {
        self.close(true, messages);
        if self.too_long > 0 {
            let count = self.too_long;
            messages.warn(
                "UTL",
                format_args!("UTL: {count} lines longer than {MAX_LINE} bytes were skipped"),
            );
        }
        if self.too_large > 0 {
            let count = self.too_large;
            messages.warn(
                "UTL",
                format_args!("UTL: {count} rows with impossible cycle counts were skipped"),
            );
        }
    }
}

/// The phase that a line announces: the word alone, indented.
fn phase_of(line: &str) -> Option<Phase> {
    if !line.starts_with(char::is_whitespace) {
        return None;
    }
    match line.trim() {
        "PREFILL" => Some(Phase::Ttft),
        "DECODING" => Some(Phase::Itl),
        _ => None,
    }
}

/// Name and number of a row; `None` where a line is none. Only blanks are between
/// them: a tab is what other tables have.
fn columns(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.split_once(' ')?;
    let digits = rest.trim_matches(' ');
    let in_name = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    let is_row = !name.is_empty()
        && name.bytes().all(in_name)
        && !digits.is_empty()
        && digits.bytes().all(|b| b.is_ascii_digit());
    let is_ignored = name.contains("Precompute") || name.contains("-LxPreload");
    (is_row && !is_ignored).then_some((name, digits))
}

/// Kernel and category of a row's name.
fn split_name(name: &str) -> (&str, &str) {
    let bare = name.strip_suffix("-NA");
    let mut parts = bare.unwrap_or(name).split("-opCat");
    let kernel = parts.next().unwrap_or_default();
    match parts.last() {
        Some(category) => (kernel, category),
        None if kernel == TOTAL && bare.is_none() => (kernel, TOTAL),
        None => (kernel, NOT_AVAILABLE),
    }
}

#[cfg(test)]
#[path = "compiler_log_tests.rs"]
mod tests;
