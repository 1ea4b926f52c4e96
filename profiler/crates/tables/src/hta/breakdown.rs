//! Kernels of each rank by what they are for and their name.
//!
//! HTA's figures, of all names: HTA keeps ten of a rank and sums up the others.

use super::super::{Cell, Request, Table, TableEntry};
use super::describe::Spread;
use aiprof_model::timeline::{Sym, Timeline};
use aiprof_trace::work::{RankWork, WorkClass};
use rustc_hash::FxHashMap;

/// `--table kernel-breakdown`.
pub(crate) const ENTRY: TableEntry = TableEntry {
    name: "kernel-breakdown",
    about: "kernels and copies by rank, type and name: sum, max, min, mean, deviation",
    title: "Kernels by rank and type",
    columns: "rank type name count sum:us max:us min:us mean:us deviation:us",
    make,
};

/// Lengths of a rank's work by class and name, microseconds; the longest first.
pub(crate) fn of_rank(timeline: &Timeline, rank: &RankWork) -> Vec<(WorkClass, Sym, Spread)> {
    let mut sums: FxHashMap<(WorkClass, Sym), Spread> = FxHashMap::default();
    for work in &rank.work {
        if let Some(event) = timeline.events.get(work.event as usize) {
            let sum = sums.entry((work.class, event.original_name())).or_default();
            sum.add(work.us());
        }
    }
    let sums = sums.into_iter();
    let mut sums: Vec<_> = sums
        .map(|((class, name), sum)| (class, name, sum))
        .collect();
    sums.sort_by(|a, b| {
        let by_sum = b.2.sum.total_cmp(&a.2.sum);
        a.0.cmp(&b.0).then(by_sum).then(a.1.cmp(&b.1))
    });
    sums
}

/// Count, sum, max, min, mean, deviation.
pub(super) fn cells(sum: &Spread) -> [Cell; 6] {
    [
        sum.count.into(),
        sum.sum.into(),
        sum.max.into(),
        sum.min.into(),
        sum.mean().into(),
        sum.deviation().into(),
    ]
}

fn make(request: &Request<'_>) -> Vec<Table> {
    let timeline = request.timeline;
    let mut rows = Vec::new();
    for rank in &request.index().ranks {
        for (class, name, sum) in of_rank(timeline, rank) {
            let mut row = vec![
                rank.rank.into(),
                class.word().into(),
                timeline.name(name).into(),
            ];
            row.extend(cells(&sum));
            rows.push(row);
        }
    }
    vec![ENTRY.table(rows)]
}
