//! How long operators take to launch, and launches to begin: by the kernels in turn that an
//! operator of ATen launches itself.
//!
//! HTA's, but that HTA looks for the operator on all threads.

use super::super::{Request, Table, TableEntry};
use super::stack::{walk, work_of_calls};
use aiprof_model::timeline::{Event, Sym, Time, Timeline, TrackId};
use aiprof_trace::device_time::launch_of;
use aiprof_trace::work::{RankWork, SpanRole, WorkClass, WorkIndex, name_of};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// `--table op-delays`.
pub(crate) const ENTRY: TableEntry = TableEntry {
    name: "op-delays",
    about: "ATen operators by the kernels they launch: delay to the launch and to the device",
    title: "Delays of operators",
    columns: "rank operator kernels count launch_delay:us device_delay:us",
    make,
};

/// One call of an operator.
#[derive(Default)]
struct OpCall {
    name: Sym,
    kernels: Vec<Sym>,
    /// From its begin to its first launch, microseconds.
    launch_us: f64,
    /// From its first launch to the begin of the kernel, microseconds.
    device_us: f64,
}

/// Operators with the same kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct OpDelay {
    /// How many.
    pub count: u64,
    /// From the operator's begin to its first launch, all together, microseconds.
    pub launch_us: f64,
    /// From the first launch's begin to that of its kernel, all together, microseconds.
    pub device_us: f64,
}

/// Delays by operator and the kernels it launches in turn.
pub(crate) fn of_rank(
    timeline: &Timeline,
    index: &WorkIndex,
    rank: &RankWork,
) -> BTreeMap<(Sym, Vec<Sym>), OpDelay> {
    let work = work_of_calls(rank);
    let mut ops: FxHashMap<u32, OpCall> = FxHashMap::default();
    let mut open = OpenOperators::default();
    walk(timeline, index, rank, &mut |_, at, call| {
        open.reach(call);
        let around = open.around(call.end());
        if name_of(timeline, call).starts_with("aten::") {
            open.push(at, call.end());
        }
        let Some(work) = work.get(&at).filter(|_| index.role(call) == SpanRole::Call) else {
            return;
        };
        let op = around.and_then(|op| Some((op, timeline.events.get(op as usize)?)));
        let Some((number, op)) = op else { return };
        let kernels = work.iter().filter(|work| work.class != WorkClass::Copy);
        for work in kernels.filter(|work| launch_of(timeline, work).is_some()) {
            let Some(kernel) = timeline.events.get(work.event as usize) else {
                continue;
            };
            let one = ops.entry(number).or_insert_with(|| OpCall {
                name: op.original_name(),
                launch_us: (call.start - op.start).micros(),
                device_us: (work.start - call.start).micros(),
                kernels: Vec::new(),
            });
            one.kernels.push(kernel.original_name());
        }
    });
    let mut delays: BTreeMap<(Sym, Vec<Sym>), OpDelay> = BTreeMap::new();
    for op in ops.into_values() {
        let sum = delays.entry((op.name, op.kernels)).or_default();
        sum.count += 1;
        sum.launch_us += op.launch_us;
        sum.device_us += op.device_us;
    }
    delays
}

/// Operators of a thread that are open: each ends before the ones below it, as one that ends first
/// is never the innermost round anything while another is open.
#[derive(Default)]
struct OpenOperators {
    all: Vec<(Time, u32)>,
    track: Option<TrackId>,
}

impl OpenOperators {
    /// Leaves out what is over when a span begins.
    fn reach(&mut self, span: &Event) {
        if self.track.replace(span.track) != Some(span.track) {
            self.all.clear();
        }
        while self.all.pop_if(|(end, _)| *end < span.start).is_some() {}
    }

    /// The innermost that ends no sooner than at `end`.
    fn around(&self, end: Time) -> Option<u32> {
        let longer = self.all.partition_point(|(other, _)| *other >= end);
        let (_, innermost) = self.all.get(longer.checked_sub(1)?)?;
        Some(*innermost)
    }

    fn push(&mut self, event: u32, end: Time) {
        while self.all.pop_if(|(other, _)| *other <= end).is_some() {}
        self.all.push((end, event));
    }
}

/// Names in turn.
pub(super) fn chain(timeline: &Timeline, names: &[Sym], between: &str) -> String {
    let names = names.iter().map(|name| timeline.name(*name));
    names.collect::<Vec<_>>().join(between)
}

fn make(request: &Request<'_>) -> Vec<Table> {
    let timeline = request.timeline;
    let index = request.index();
    let mut rows = Vec::new();
    for rank in &index.ranks {
        let delays = of_rank(timeline, index, rank);
        let mut delays: Vec<_> = delays.into_iter().collect();
        delays.sort_by_key(|(_, delay)| std::cmp::Reverse(delay.count));
        for ((name, kernels), delay) in delays {
            rows.push(vec![
                rank.rank.into(),
                timeline.name(name).into(),
                chain(timeline, &kernels, " -> ").into(),
                delay.count.into(),
                (delay.launch_us / delay.count as f64).into(),
                (delay.device_us / delay.count as f64).into(),
            ]);
        }
    }
    vec![ENTRY.noted(
        rows,
        vec![
            "means: from the begin of an operator to its first launch, and from that launch to the \
             begin of its kernel"
                .to_owned(),
        ],
    )]
}
