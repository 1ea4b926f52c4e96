//! Tables as tests make them.

use super::{Options, Request, SharedWork, Table, TableEntry};
use aiprof_model::timeline::Timeline;
use aiprof_trace::analyze::pipeline::Outcome;
use aiprof_trace::findings::{self, Wanted};

/// The tables of an entry, with the usual options.
pub(crate) fn tables_of(timeline: &Timeline, entry: &TableEntry) -> Vec<Table> {
    let outcome = Outcome::default();
    let wanted = Wanted {
        plots: false,
        waste: false,
    };
    let shared = SharedWork::default();
    let report = findings::report(timeline, &outcome, Vec::new(), wanted, &shared);
    let request = Request {
        timeline,
        outcome: &outcome,
        report: &report,
        options: &Options::default(),
        shared: &shared,
    };
    entry.make(&request).unwrap()
}
