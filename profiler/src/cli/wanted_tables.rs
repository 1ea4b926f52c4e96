//! Tables by name, beside what an analysis writes else.

use aiprof_model::parallel;
use aiprof_model::timeline::Timeline;
use aiprof_tables::{Options, Request, Table, TableEntry, TableError};
use aiprof_trace::analyze::pipeline::Outcome;
use aiprof_trace::analyze::report::Report;
use aiprof_trace::work::SharedWork;

/// Most tables that are made at once: each may need as much memory as the events do.
const MAX_THREADS: usize = 2;

/// Tables that are wanted by name, and what was made of them.
#[derive(Default)]
pub(super) struct WantedTables {
    /// Which.
    pub(super) entries: Vec<&'static TableEntry>,
    /// How.
    pub(super) options: Options,
    /// The tables.
    pub(super) made: Vec<Table>,
    /// Whether the events on the critical path are marked in the trace.
    pub(super) marks_path: bool,
}

impl WantedTables {
    /// Makes them.
    ///
    /// # Errors
    /// One has no such column.
    pub(super) fn make(
        &mut self,
        timeline: &Timeline,
        outcome: &Outcome,
        report: &Report,
        shared: &SharedWork,
    ) -> Result<(), TableError> {
        let request = Request {
            timeline,
            outcome,
            report,
            options: &self.options,
            shared,
        };
        let mut failed = None;
        parallel::ordered_in(
            parallel::threads().min(MAX_THREADS),
            |entries| self.entries.iter().all(|entry| entries.put(*entry)),
            |entry| entry.make(&request),
            |made| match made {
                Ok(tables) => {
                    self.made.extend(tables);
                    true
                }
                Err(error) => {
                    failed = Some(error);
                    false
                }
            },
        );
        failed.map_or(Ok(()), Err)
    }
}
