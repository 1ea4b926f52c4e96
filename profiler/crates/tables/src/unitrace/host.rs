//! Host calls by function: how many, and how long they took.

use super::{Extent, Scope, backend_of_call};
use crate::{Cell, Layout, Table, TableEntry};
use aiprof_model::timeline::{Quality, Timeline};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Name of the table.
pub const NAME: &str = "host-timing";

/// `--table host-timing`.
pub(crate) const ENTRY: TableEntry = TableEntry {
    name: NAME,
    about: "calls of accelerator runtimes by function: calls and times (unitrace -h)",
    title: "API Timing Summary",
    columns: "backend function calls time:ns share:percent:6 average:ns min:ns max:ns",
    make: |request| vec![table(request.timeline, &Scope::default())],
};

/// FunctionTimes of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FunctionTimes {
    calls: u64,
    /// FunctionTimes whose ends were seen.
    timed: u64,
    total_ns: u64,
    min_ns: u64,
    max_ns: u64,
}

impl FunctionTimes {
    fn add(&mut self, ns: Option<u64>) {
        self.calls += 1;
        let Some(ns) = ns else {
            return;
        };
        self.min_ns = match self.timed {
            0 => ns,
            _ => self.min_ns.min(ns),
        };
        self.max_ns = self.max_ns.max(ns);
        self.total_ns = self.total_ns.saturating_add(ns);
        self.timed += 1;
    }
}

/// The table of a timeline.
pub fn table(timeline: &Timeline, scope: &Scope) -> Table {
    let (mut extent, mut backends) = (Extent::default(), BTreeMap::new());
    let mut index: FxHashMap<(u32, _, _), usize> = FxHashMap::default();
    let mut found: Vec<(String, String, FunctionTimes)> = Vec::new();
    for event in timeline.events.iter().filter(|event| event.is_slice()) {
        let pid = timeline.pid(event).number();
        if scope.pid.is_some_and(|wanted| pid != Some(wanted.into())) {
            continue;
        }
        extent.add(event);
        let Some(backend) = backend_of_call(timeline, event) else {
            continue;
        };
        if !scope.wants_backend(&backend) {
            continue;
        }
        let next = backends.len() as u32;
        let number = match backends.get(&*backend) {
            Some(number) => *number,
            None => *backends.entry(backend.to_string()).or_insert(next),
        };
        let name = event.original_name();
        let at = *index.entry((number, name, ())).or_insert_with(|| {
            let row = (backend.to_string(), timeline.name(name).to_owned());
            found.push((row.0, row.1, FunctionTimes::default()));
            found.len() - 1
        });
        let ns = match event.quality {
            Quality::Exact if timeline.arg(event, "end").is_none() => {
                Some(u64::try_from(event.length.nanos()).unwrap_or(0))
            }
            _ => None,
        };
        if let Some((.., calls)) = found.get_mut(at) {
            calls.add(ns);
        }
    }
    finish(found, extent)
}

fn finish(mut found: Vec<(String, String, FunctionTimes)>, extent: Extent) -> Table {
    found.sort_by(|(backend, name, calls), (other, other_name, others)| {
        let order = |calls: &FunctionTimes| (Reverse(calls.total_ns), Reverse(calls.calls));
        super::order_of(backend)
            .cmp(&super::order_of(other))
            .then_with(|| order(calls).cmp(&order(others)))
            .then_with(|| name.cmp(other_name))
    });
    let mut sums: Vec<(String, u64)> = Vec::new();
    for (backend, _, calls) in &found {
        match sums.last_mut().filter(|(name, _)| name == backend) {
            Some((_, sum)) => *sum = sum.saturating_add(calls.total_ns),
            None => sums.push((backend.clone(), calls.total_ns)),
        }
    }
    let by_backend = sums.iter().map(|(name, sum)| (name.as_str(), *sum));
    let by_backend: FxHashMap<&str, u64> = by_backend.collect();
    let sum_of = |backend: &str| by_backend.get(backend).copied().unwrap_or(0);
    let untimed: u64 = found.iter().map(|(.., c)| c.calls - c.timed).sum();
    let rows = found.iter().map(|(backend, name, calls)| {
        let is_timed = calls.timed > 0;
        let known = |ns: u64| is_timed.then_some(ns);
        vec![
            backend.as_str().into(),
            name.as_str().into(),
            calls.calls.into(),
            known(calls.total_ns).into(),
            known(0)
                .map(|_| super::percent(calls.total_ns, sum_of(backend)))
                .map_or(Cell::None, Cell::Number),
            known(calls.total_ns / calls.timed.max(1)).into(),
            known(calls.min_ns).into(),
            known(calls.max_ns).into(),
        ]
    });
    let mut notes = Vec::new();
    if untimed > 0 {
        notes.push(format!(
            "{untimed} calls have no recorded end: they are counted, but their times are not \
             included"
        ));
    }
    let mut totals = vec![("Total Execution Time".to_owned(), extent.ns().into())];
    let of = |(backend, sum): &(String, u64)| {
        (
            format!("Total API Time for {backend} backend"),
            Cell::Count(*sum),
        )
    };
    totals.extend(sums.iter().map(of));
    Table {
        totals,
        layout: Layout::Unitrace,
        ..ENTRY.noted(rows, notes)
    }
}
