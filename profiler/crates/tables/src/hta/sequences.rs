//! Kernels in turn below one operator, and how often they come like that: what is worth
//! fusing.
//!
//! HTA's, of the outermost operators with the text in their name, wherever they stand: HTA
//! takes only those at the least depth that any has.

use super::super::{Request, Table, TableEntry};
use super::op_delays::chain;
use super::stack::{OpenSpan, walk, work_of_calls};
use aiprof_model::timeline::{Sym, Timeline};
use aiprof_trace::work::{RankWork, RankedWork, SpanRole, WorkIndex, name_of};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// `--table kernel-sequences`.
pub(crate) const ENTRY: TableEntry = TableEntry {
    name: "kernel-sequences",
    about: "sequences of kernels below an operator (--operator), by how often they occur",
    title: "Sequences of kernels below operators",
    columns: "rank operator kernels length count device_time:us host_time:us",
    make,
};

/// Fewer kernels are no sequence: HTA's `min_pattern_len`.
const LEAST_KERNELS: usize = 3;

/// Operators with the same kernels below them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct SequenceSum {
    /// How many.
    pub count: u64,
    /// Time of the kernels, microseconds.
    pub device_us: f64,
    /// Time of the operators, microseconds.
    pub host_us: f64,
}

/// Sequences of a rank below operators whose name contains `wanted`: the operator's name
/// and its kernels' by their begin.
pub(crate) fn of_rank(
    timeline: &Timeline,
    index: &WorkIndex,
    rank: &RankWork,
    wanted: &str,
) -> BTreeMap<Vec<Sym>, SequenceSum> {
    let is_wanted = |at: u32, role: SpanRole| {
        let event = timeline.events.get(at as usize);
        let name = event.map_or("", |event| name_of(timeline, event));
        role == SpanRole::Operator && name.contains(wanted)
    };
    let work = work_of_calls(rank);
    let mut below: FxHashMap<u32, Vec<&RankedWork>> = FxHashMap::default();
    // Where the outermost stands among what is open. Each span is looked at once: behind the visit
    // in which it is the last that was opened.
    let mut root: Option<usize> = None;
    let mut last: Option<u32> = None;
    walk(timeline, index, rank, &mut |open, at, _| {
        root = root.filter(|root| *root < open.len());
        let opened = open.last().filter(|span| last == Some(span.event));
        let is_root = |span: &&OpenSpan| root.is_none() && is_wanted(span.event, span.role);
        if opened.filter(is_root).is_some() {
            root = open.len().checked_sub(1);
        }
        last = Some(at);
        let Some(work) = work.get(&at) else { return };
        if let Some(root) = root.and_then(|root| open.get(root)) {
            below.entry(root.event).or_default().extend(work);
        }
    });
    let mut sums: BTreeMap<Vec<Sym>, SequenceSum> = BTreeMap::new();
    for (root, mut work) in below {
        let Some(operator) = timeline.events.get(root as usize) else {
            continue;
        };
        if work.len() < LEAST_KERNELS {
            continue;
        }
        work.sort_by_key(|work| (work.start, work.event));
        let kernels = work.iter();
        let kernels = kernels.filter_map(|work| timeline.events.get(work.event as usize));
        let mut names = vec![operator.original_name()];
        names.extend(kernels.map(|event| event.original_name()));
        let sum = sums.entry(names).or_default();
        sum.count += 1;
        sum.device_us += work.iter().map(|work| work.us()).sum::<f64>();
        sum.host_us += operator.dur();
    }
    sums
}

fn make(request: &Request<'_>) -> Vec<Table> {
    let timeline = request.timeline;
    let index = request.index();
    let wanted = request.options.operator.as_deref().unwrap_or_default();
    let mut rows = Vec::new();
    for rank in &index.ranks {
        let sums = of_rank(timeline, index, rank, wanted);
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(names, sum)| (std::cmp::Reverse(sum.count), names.len()));
        for (names, sum) in sums {
            let Some((operator, kernels)) = names.split_first() else {
                continue;
            };
            rows.push(vec![
                rank.rank.into(),
                timeline.name(*operator).into(),
                chain(timeline, kernels, "|").into(),
                kernels.len().into(),
                sum.count.into(),
                sum.device_us.into(),
                sum.host_us.into(),
            ]);
        }
    }
    vec![ENTRY.noted(
        rows,
        vec![format!(
            "outermost operators with at least {LEAST_KERNELS} kernels"
        )],
    )]
}
