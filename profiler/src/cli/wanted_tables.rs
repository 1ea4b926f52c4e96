//! Tables by name, beside what an analysis writes else.

use aiprof_model::parallel;
use aiprof_model::timeline::Timeline;
use aiprof_tables::{Options, Request, Table, TableEntry, TableError};
use aiprof_trace::analyze::pipeline::Outcome;
use aiprof_trace::analyze::report::Report;
use aiprof_trace::critical::unknown_names;
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

    /// Annotations, operators and names that are asked for and that no trace has, in sentences: a path of
    /// nothing looks like a result.
    pub(super) fn unknown_names(&self, timeline: &Timeline, shared: &SharedWork) -> Vec<String> {
        let has = |name: &str| self.entries.iter().any(|entry| entry.name == name);
        let has_path = has("critical-path");
        let Options {
            path,
            what_if,
            operator,
            ..
        } = &self.options;
        let changes = if has_path { &what_if[..] } else { &[] };
        let has_notes = has_path || has("trace-diff") || self.marks_path;
        let path = match has_notes {
            true => path.clone(),
            false => Default::default(),
        };
        let operator = operator.as_deref().filter(|_| has("kernel-sequences"));
        if path.annotation.is_none() && changes.is_empty() && operator.is_none() {
            return Vec::new();
        }
        unknown_names(
            timeline,
            shared.work_index(timeline),
            &path,
            changes,
            operator,
        )
    }
}
