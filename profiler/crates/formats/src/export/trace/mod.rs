//! Calls as text, one line each as they end: what `aiprof trace` prints.
//!
//! A call is printed when it ends, so nested calls come before it.

mod args;
mod filter;
mod json;
mod line;
mod results;
mod table;
#[cfg(test)]
mod tests;

pub use filter::CallFilter;

use aiprof_model::process::ProcessTable;
use aiprof_record::correlate::{FinishedCall, Tracked};
use aiprof_record::recording::RecordingSink;
use rustc_hash::FxHashMap;
use std::io::{self, Write};

/// Most names of processes that are remembered.
const MAX_NAMES: usize = 1 << 16;

/// What is printed, and how.
#[derive(Clone, Debug, Default)]
pub struct TraceOptions {
    /// Which calls.
    pub filter: CallFilter,
    /// Calls nested in printed ones too, indented.
    pub nested: bool,
    /// JSON lines instead of text.
    pub json: bool,
    /// Leave out arguments.
    pub no_args: bool,
    /// Times are relative to this, CLOCK_MONOTONIC nanoseconds.
    pub origin_ns: u64,
    /// Print times of day, UTC: the Unix time of `origin_ns`, nanoseconds.
    pub unix_ns: Option<u64>,
    /// A table of functions at the end.
    pub summary: bool,
    /// Nothing but that table.
    pub summary_only: bool,
}

/// Prints the calls of a recording as they end.
pub struct Tracer {
    options: TraceOptions,
    out: Box<dyn Write>,
    /// The first error of `out`: nothing is written after it.
    error: Option<io::Error>,
    table: table::CallTable,
    printed: u64,
    /// Names of processes with calls.
    comms: FxHashMap<u32, String>,
    /// A line under construction: its memory is used again.
    text: String,
}

impl RecordingSink for Tracer {
    fn found(&mut self, processes: &ProcessTable, found: &Tracked<'_>) {
        if let Tracked::Call(call) = *found {
            self.call(call, processes);
        }
    }
}

impl Tracer {
    /// Prints to `out`, which should be buffered.
    pub fn new(options: TraceOptions, out: Box<dyn Write>) -> Self {
        Self {
            options,
            out,
            error: None,
            table: table::CallTable::default(),
            printed: 0,
            comms: FxHashMap::default(),
            text: String::new(),
        }
    }

    /// Whether the output takes no more: the reader has gone, the disk is full.
    pub fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// Writes what is buffered.
    pub fn flush(&mut self) {
        self.write(|out, _| out.flush());
    }

    /// Prints the table, after the recording has ended. Gives how many calls were printed or are
    /// in the table.
    ///
    /// # Errors
    /// The first error of the output.
    pub fn finish(mut self) -> io::Result<u64> {
        if self.options.summary || self.options.summary_only {
            let table = std::mem::take(&mut self.table);
            let json = self.options.json;
            self.write(|out, _| match json {
                true => table.write_json(out),
                false => table.write(out),
            });
        }
        self.flush();
        self.error.map_or(Ok(self.printed), Err)
    }

    /// Remembers the name of a process: its last calls may end after it.
    fn note_name(&mut self, pid: u32, processes: &ProcessTable) {
        let Some(process) = processes.get(pid) else {
            return;
        };
        if self.comms.len() >= MAX_NAMES && !self.comms.contains_key(&pid) {
            self.comms.clear();
        }
        let known = self.comms.entry(pid).or_default();
        if *known != process.comm {
            known.clone_from(&process.comm);
        }
    }

    /// Writes, unless writing failed before.
    fn write(&mut self, write: impl FnOnce(&mut dyn Write, &mut String) -> io::Result<()>) {
        if self.error.is_none() {
            self.error = write(&mut *self.out, &mut self.text).err();
        }
    }

    fn call(&mut self, call: &FinishedCall, processes: &ProcessTable) {
        let options = &self.options;
        if !options.filter.wants(call) {
            return;
        }
        let inside = call.nesting.depth > 0 && options.filter.wants_probe(&call.nesting.outermost);
        if inside && !options.nested {
            return;
        }
        self.printed += 1;
        if options.summary || options.summary_only {
            self.table.add(call);
        }
        if options.summary_only {
            return;
        }
        self.note_name(call.pid, processes);
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        let comm = self.comms.get(&call.pid).map_or("", String::as_str);
        match self.options.json {
            true => json::line(&mut text, call, comm, &self.options),
            false => line::line(&mut text, call, comm, &self.options),
        }
        text.push('\n');
        self.text = text;
        self.write(|out, text| out.write_all(text.as_bytes()));
    }
}
