//! Notes that the program made of its own parts (`record_function`, NVTX, steps): their
//! time on the host, and where their work ran.

use super::super::{Request, Table, TableEntry};
use super::breakdown::cells;
use super::describe::Spread;
use aiprof_model::timeline::{Sym, Timeline};
use aiprof_trace::work::SpanRole;
use std::collections::BTreeMap;

/// `--table annotations`.
pub(crate) const ENTRY: TableEntry = TableEntry {
    name: "annotations",
    about: "annotations by rank and name, on the CPU and on devices",
    title: "Annotations",
    columns: "rank side name count sum:us max:us min:us mean:us deviation:us",
    make,
};

/// Lengths of some events by name, microseconds.
fn by_name<'e>(
    timeline: &Timeline,
    events: impl Iterator<Item = &'e u32>,
) -> BTreeMap<Sym, Spread> {
    let mut sums: BTreeMap<Sym, Spread> = BTreeMap::new();
    for event in events.filter_map(|at| timeline.events.get(*at as usize)) {
        sums.entry(event.original_name())
            .or_default()
            .add(event.dur());
    }
    sums
}

fn make(request: &Request<'_>) -> Vec<Table> {
    let timeline = request.timeline;
    let index = request.index();
    let mut rows = Vec::new();
    for rank in &index.ranks {
        let is_note = |at: &&u32| {
            let event = timeline.events.get(**at as usize);
            event.is_some_and(|event| index.role(event) == SpanRole::Note)
        };
        let host = by_name(timeline, rank.host.iter().filter(is_note));
        let device = by_name(timeline, rank.device_notes.iter());
        for (side, sums) in [("cpu", host), ("device", device)] {
            let mut sums: Vec<_> = sums.into_iter().collect();
            sums.sort_by(|a, b| b.1.sum.total_cmp(&a.1.sum));
            for (name, sum) in sums {
                let mut row = vec![rank.rank.into(), side.into(), timeline.name(name).into()];
                row.extend(cells(&sum));
                rows.push(row);
            }
        }
    }
    vec![ENTRY.table(rows)]
}
