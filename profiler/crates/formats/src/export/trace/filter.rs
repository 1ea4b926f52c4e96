//! Which calls are printed.

use aiprof_model::probes::{CallKind, Probe, glob};
use aiprof_record::correlate::FinishedCall;

/// Which calls are wanted; empty lists want all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallFilter {
    /// Patterns of API or table names, whatever their case.
    pub apis: Vec<String>,
    /// Patterns of function names.
    pub functions: Vec<String>,
    /// Kinds.
    pub kinds: Vec<CallKind>,
    /// Only calls known to have taken at least as many nanoseconds.
    pub min_duration_ns: u64,
    /// Only calls known to have failed.
    pub failed: bool,
}

impl CallFilter {
    /// Whether a call is wanted.
    pub fn wants(&self, call: &FinishedCall) -> bool {
        let long = || {
            call.duration_ns()
                .is_some_and(|ns| ns >= self.min_duration_ns)
        };
        (self.min_duration_ns == 0 || long())
            && (!self.failed || call.succeeded() == Some(false))
            && self.wants_probe(&call.probe)
    }

    /// Whether calls of a function are wanted, if they are long and failed enough.
    pub(crate) fn wants_probe(&self, probe: &Probe) -> bool {
        let any = |patterns: &[String], matches: &dyn Fn(&str) -> bool| {
            patterns.is_empty() || patterns.iter().any(|pattern| matches(pattern))
        };
        let is_api = |pattern: &str| {
            let pattern = pattern.to_lowercase();
            let names = [&probe.api, &probe.table];
            names
                .iter()
                .any(|name| glob::matches(&pattern, &name.to_lowercase()))
        };
        (self.kinds.is_empty() || self.kinds.contains(&probe.kind))
            && any(&self.functions, &|p| glob::matches(p, &probe.function))
            && any(&self.apis, &is_api)
    }
}
