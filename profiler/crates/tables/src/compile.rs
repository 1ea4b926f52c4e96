//! What `torch.compile` did: steps of the compiler, compiled functions, graph breaks,
//! recompilations.

use super::{Cell, Request, Table, TableEntry};
use aiprof_trace::torch::compile::{CompileReport, Compiled};

/// `--table compile`.
pub(super) const STEPS: TableEntry = TableEntry {
    name: "compile",
    about: "time of torch.compile by step of dynamo and inductor",
    title: "Steps of torch.compile",
    columns: "step calls self:us share:percent total:us",
    make: steps,
};
/// `--table compiled`.
pub(super) const COMPILED: TableEntry = TableEntry {
    name: "compiled",
    about: "what torch.compile compiled, by frame and compilation: compile time, runs",
    title: "Compiled by torch.compile",
    columns: "id function place compile:us runs run:us",
    make: compiled,
};
/// `--table graph-breaks`.
pub(super) const BREAKS: TableEntry = TableEntry {
    name: "graph-breaks",
    about: "where torch.compile broke a graph, with reasons from --torch-log",
    title: "Graph breaks",
    columns: "frame goes_on_in place runs compile:us reason explanation",
    make: breaks,
};
/// `--table recompilations`.
pub(super) const RECOMPILED: TableEntry = TableEntry {
    name: "recompilations",
    about: "what torch.compile compiled again, with failed guards from --torch-log",
    title: "Recompilations",
    columns: "id function place compile:us runs guard",
    make: recompiled,
};

/// Where lines and reasons come from.
const WANTS_LOG: &str = "to see reasons, guards and places, run the program with \
                         TORCH_LOGS=graph_breaks,recompiles and pass its output with --torch-log";

fn steps(request: &Request<'_>) -> Vec<Table> {
    let steps = &request.outcome.compiled.steps;
    let all: f64 = steps.iter().map(|step| step.self_us).sum();
    let rows = steps.iter().map(|step| {
        let share = (all > 0.0).then(|| step.self_us * 100.0 / all);
        vec![
            step.name.as_str().into(),
            step.calls.into(),
            step.self_us.into(),
            share.into(),
            step.total_us.into(),
        ]
    });
    vec![STEPS.table(rows)]
}

fn compiled(request: &Request<'_>) -> Vec<Table> {
    let report = &request.outcome.compiled;
    let rows = report.compiled.iter().map(|one| {
        let mut row = named(one);
        row.extend([one.compile_us.into(), one.runs.into(), one.run_us.into()]);
        row
    });
    vec![COMPILED.noted(rows, unnumbered(report))]
}

/// Its number, function and place.
fn named(one: &Compiled) -> Vec<Cell> {
    vec![
        one.id.map(|id| id.to_string()).into(),
        one.function.as_deref().into(),
        one.place.as_deref().into(),
    ]
}

fn recompiled(request: &Request<'_>) -> Vec<Table> {
    let report = &request.outcome.compiled;
    let rows = report.recompiled().map(|one| {
        let guards = (!one.guards.is_empty()).then(|| one.guards.join("; "));
        // Which compilation a run without a number is of is not known.
        let runs = one.id.map(|_| one.runs);
        let mut row = named(one);
        row.extend([one.recompile_us.into(), runs.into(), guards.into()]);
        row
    });
    vec![RECOMPILED.noted(rows, notes(report))]
}

fn breaks(request: &Request<'_>) -> Vec<Table> {
    let report = &request.outcome.compiled;
    let rows = report.breaks.iter().map(|one| {
        vec![
            one.frame.into(),
            one.function.as_deref().into(),
            one.place.as_deref().into(),
            one.runs.into(),
            one.compile_us.into(),
            one.reason.as_deref().into(),
            one.explanation.as_deref().into(),
        ]
    });
    vec![BREAKS.noted(rows, notes(report))]
}

fn notes(report: &CompileReport) -> Vec<String> {
    let wants_log = !report.has_log && !report.compiled.is_empty();
    let wants_log = wants_log.then(|| WANTS_LOG.to_owned());
    let mut notes = unnumbered(report);
    notes.extend(wants_log);
    notes
}

/// What the tables lack if the trace does not number compilations.
fn unnumbered(report: &CompileReport) -> Vec<String> {
    let count = report.unnumbered;
    let note = (count > 0).then(|| {
        format!(
            "{count} compilations have neither numbers (PyTorch 2.6 or newer) nor Python stacks \
             (with_stack=True): their functions, and which are recompilations, are not known"
        )
    });
    note.into_iter().collect()
}
