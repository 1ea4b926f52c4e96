//! The table of functions at the end of a trace.

use crate::export::text;
use aiprof_record::correlate::FinishedCall;
use rustc_hash::FxHashMap;
use serde_json::json;
use std::cmp::Reverse;
use std::io::{self, Write};

/// Calls of a function.
#[derive(Clone, Copy, Debug, Default)]
struct FunctionCalls {
    calls: u64,
    errors: u64,
    /// Calls of known length.
    timed: u64,
    total_ns: u64,
    min_ns: u64,
    max_ns: u64,
}

impl FunctionCalls {
    fn average_ns(self) -> u64 {
        self.total_ns.checked_div(self.timed).unwrap_or(0)
    }
}

/// Calls by function.
#[derive(Debug, Default)]
pub(super) struct CallTable {
    /// By probe; probes are few.
    rows: FxHashMap<u32, (String, FunctionCalls)>,
}

impl CallTable {
    pub(super) fn add(&mut self, call: &FinishedCall) {
        let (_, row) = self.rows.entry(call.probe.id).or_insert_with(|| {
            (
                text::one_line(&call.probe.function),
                FunctionCalls::default(),
            )
        });
        row.calls += 1;
        row.errors += u64::from(call.succeeded() == Some(false));
        if let Some(ns) = call.duration_ns() {
            row.min_ns = if row.timed == 0 {
                ns
            } else {
                row.min_ns.min(ns)
            };
            row.max_ns = row.max_ns.max(ns);
            row.timed += 1;
            row.total_ns = row.total_ns.saturating_add(ns);
        }
    }

    /// The rows, those that took longest first.
    fn sorted(&self) -> Vec<(&str, FunctionCalls)> {
        let mut rows: Vec<_> = self
            .rows
            .values()
            .map(|(name, row)| (name.as_str(), *row))
            .collect();
        rows.sort_by_key(|(name, row)| (Reverse(row.total_ns), Reverse(row.calls), *name));
        rows
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let rows = self.sorted();
        let all = rows
            .iter()
            .fold(0, |sum: u64, (_, row)| sum.saturating_add(row.total_ns));
        writeln!(
            out,
            " time %       total     average         min         max       calls    errors  function"
        )?;
        for (name, row) in &rows {
            writeln!(
                out,
                "{:>6.1}% {:>11} {:>11} {:>11} {:>11} {:>11} {:>9}  {name}",
                text::percent(row.total_ns, all),
                text::duration(row.total_ns),
                text::duration(row.average_ns()),
                text::duration(row.min_ns),
                text::duration(row.max_ns),
                text::grouped(row.calls),
                text::grouped(row.errors),
            )?;
        }
        let calls = rows.iter().map(|(_, row)| row.calls).sum();
        let errors = rows.iter().map(|(_, row)| row.errors).sum();
        writeln!(
            out,
            "{:>6.1}% {:>11} {:>47} {:>9}  in all",
            text::percent(all, all),
            text::duration(all),
            text::grouped(calls),
            text::grouped(errors),
        )
    }

    pub(super) fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        for (name, row) in self.sorted() {
            let line = json!({
                "summary": name,
                "calls": row.calls,
                "errors": row.errors,
                "timed": row.timed,
                "total_ns": row.total_ns,
                "average_ns": row.average_ns(),
                "min_ns": row.min_ns,
                "max_ns": row.max_ns,
            });
            writeln!(out, "{line}")?;
        }
        Ok(())
    }
}
