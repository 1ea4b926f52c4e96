//! What differs between two traces: operators, calls and kernels by name, their number and
//! time.
//!
//! HTA compares the first step of the first rank; here the whole files are compared, or what
//! `--annotation` and `--instance` choose.

use super::super::{Cell, Request, Table, TableEntry};
use aiprof_model::timeline::{Event, Sym, Time, Timeline};
use aiprof_trace::analyze::identity::file_of;
use aiprof_trace::critical::{PathOptions, window};
use aiprof_trace::work::WorkIndex;
use std::collections::BTreeMap;

/// `--table trace-diff`.
pub(crate) const ENTRY: TableEntry = TableEntry {
    name: "trace-diff",
    about: "two traces: operators and kernels by name, with number and time in each",
    title: "Differences between two traces",
    columns: "name side change control_count test_count control_time:us test_time:us count_diff \
              time_diff:us",
    make,
};

/// How many events of a name there are, and their time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct NameSum {
    /// How many.
    pub count: u64,
    /// Their time, microseconds.
    pub us: f64,
}

/// Sums by name, in the first trace and in the second; device work apart.
pub(crate) fn run(
    timeline: &Timeline,
    index: &WorkIndex,
    options: &PathOptions,
) -> BTreeMap<(bool, Sym), [NameSum; 2]> {
    let mut sums: BTreeMap<(bool, Sym), [NameSum; 2]> = BTreeMap::new();
    let mut add = |is_device: bool, event: &Event| {
        let job = timeline.job(event) as usize;
        let sums = sums.entry((is_device, event.original_name())).or_default();
        if let Some(sum) = sums.get_mut(job) {
            sum.count += 1;
            sum.us += event.dur();
        }
    };
    for rank in &index.ranks {
        let windows = rank.files.iter().map(|file| {
            let file = file.number;
            (file, window(timeline, index, (rank, Some(file)), options))
        });
        let windows: BTreeMap<u32, (Time, Time)> = windows.collect();
        let is_within = |event: &&Event| {
            let window = windows.get(&file_of(timeline, event));
            window.is_some_and(|(from, to)| event.start >= *from && event.start < *to)
        };
        let event = |at: u32| timeline.events.get(at as usize);
        let host = rank.host.iter().filter_map(|at| event(*at));
        host.filter(is_within).for_each(|event| add(false, event));
        for work in &rank.work {
            // Work is of the step that launched it; by its own begin only where there are
            // no calls, or no step is asked for.
            let is_by_begin = rank.calls.is_empty() || options.annotation.is_none();
            let own = event(work.event).filter(|_| is_by_begin);
            let when = event(work.call).or(own);
            let is_one = when.filter(is_within).is_some();
            if let Some(event) = event(work.event).filter(|_| is_one) {
                add(true, event);
            }
        }
    }
    sums.retain(|_, sums| sums.iter().any(|sum| sum.count > 0));
    sums
}

/// How the numbers of events of a name differ: HTA's words.
fn change(sums: &[NameSum; 2]) -> &'static str {
    let [control, test] = sums.map(|sum| sum.count);
    match (control, test) {
        (0, _) => "added",
        (_, 0) => "deleted",
        _ if test > control => "increased",
        _ if test < control => "decreased",
        _ => "unchanged",
    }
}

fn make(request: &Request<'_>) -> Vec<Table> {
    let timeline = request.timeline;
    let mut rows = Vec::new();
    let mut notes = Vec::new();
    if let [control, test] = &timeline.jobs[..] {
        notes.push(format!(
            "control is {}, test is {}",
            control.name, test.name
        ));
        let sums = run(timeline, request.index(), &request.options.path);
        let mut sums: Vec<_> = sums.into_iter().collect();
        let differs = |sums: &[NameSum; 2]| (sums[1].us - sums[0].us).abs();
        sums.sort_by(|a, b| differs(&b.1).total_cmp(&differs(&a.1)));
        for ((is_device, name), sums) in sums {
            let [control, test] = sums;
            rows.push(vec![
                timeline.name(name).into(),
                if is_device { "device" } else { "host" }.into(),
                change(&sums).into(),
                control.count.into(),
                test.count.into(),
                control.us.into(),
                test.us.into(),
                Cell::Number(test.count as f64 - control.count as f64),
                (test.us - control.us).into(),
            ]);
        }
    } else {
        notes.push("give two traces; the first is the baseline".to_owned());
    }
    vec![ENTRY.noted(rows, notes)]
}
