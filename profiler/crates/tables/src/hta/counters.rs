//! Counters of kernels that CUPTI's range profiler measured (`cuda_profiler_range`), with the
//! operators that launched them.
//!
//! A range has no number of its launch: as HTA has it, the n-th range is that of the n-th
//! call of `cudaLaunchKernel`, where there are as many.

use super::super::{Cell, Request, Table, TableEntry};
use super::stack::walk;
use aiprof_model::timeline::{Sym, Time, Timeline, members};
use aiprof_trace::work::{RankWork, SpanRole, WorkIndex, name_of};
use std::cmp::Ordering;

/// `--table cupti-counters`.
pub(crate) const ENTRY: TableEntry = TableEntry {
    name: "cupti-counters",
    about: "counters of kernels (CUPTI ranges) with the operators that launched them",
    title: "Counters of kernels",
    columns: "rank number kernel top_operator operator counter value::3",
    make,
};

/// A call that launches, and the operators round it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RangeLaunch {
    /// When it was called.
    called: Time,
    /// The outermost operator.
    pub top: Sym,
    /// The innermost.
    pub bottom: Sym,
}

/// The launches of a rank in turn; `None`: there are not as many as ranges.
pub(crate) fn launches(
    timeline: &Timeline,
    index: &WorkIndex,
    rank: &RankWork,
) -> Option<Vec<RangeLaunch>> {
    let mut found = Vec::new();
    walk(timeline, index, rank, &mut |open, _, event| {
        let is_call = index.role(event) == SpanRole::Call;
        if is_call && name_of(timeline, event).starts_with("cudaLaunchKernel") {
            let (top, bottom) = open.last().and_then(|span| span.operators).unzip();
            let name = |at: Option<u32>| {
                let event = at.and_then(|at| timeline.events.get(at as usize));
                event.map(|event| event.original_name()).unwrap_or_default()
            };
            found.push(RangeLaunch {
                called: event.start,
                top: name(top),
                bottom: name(bottom),
            });
        }
    });
    found.sort_by_key(|launch| launch.called);
    match found.len().cmp(&rank.ranges.len()) {
        Ordering::Equal => Some(found),
        Ordering::Less | Ordering::Greater => None,
    }
}

fn make(request: &Request<'_>) -> Vec<Table> {
    let timeline = request.timeline;
    let index = request.index();
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    for rank in &index.ranks {
        let mut ranges = rank.ranges.clone();
        ranges.sort_by_key(|at| timeline.events.get(*at as usize).map(|event| event.start));
        let launches = launches(timeline, index, rank);
        if launches.is_none() && !ranges.is_empty() {
            notes.push(format!(
                "rank {}: the numbers of launches and ranges differ, so operators are unknown",
                rank.rank
            ));
        }
        for (number, at) in ranges.iter().enumerate() {
            let Some(event) = timeline.events.get(*at as usize) else {
                continue;
            };
            let launch = launches.as_ref().and_then(|all| all.get(number));
            let name = |sym: Option<Sym>| sym.map(|sym| timeline.name(sym));
            for (counter, value) in members(timeline.texts.get(event.args)) {
                let Ok(value) = value.parse::<f64>() else {
                    continue;
                };
                rows.push(vec![
                    rank.rank.into(),
                    number.into(),
                    name_of(timeline, event).into(),
                    name(launch.map(|launch| launch.top)).into(),
                    name(launch.map(|launch| launch.bottom)).into(),
                    counter.into(),
                    Cell::Number(value),
                ]);
            }
        }
    }
    vec![ENTRY.noted(rows, notes)]
}
