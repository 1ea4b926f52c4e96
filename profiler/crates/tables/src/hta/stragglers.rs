//! Ranks that the others wait for: whose last large collective of a step begins late.
//!
//! As in HTA: only collectives that take at least a hundredth of a step count, and only the last of
//! each rank, stream, step and name. One stream and name is chosen: the one whose lengths differ
//! most between ranks. The two ranks that begin it last are late in the step. HTA knows names that
//! begin with `ncclKernel`, here every communication counts.

use super::super::{Request, Table, TableEntry};
use super::describe::Spread;
use aiprof_model::timeline::{Id, Sym, Time, Timeline};
use aiprof_trace::work::{RankWork, STEP, SpanRole, WorkClass, WorkIndex, name_of};
use std::collections::BTreeMap;

/// `--table stragglers`.
pub(crate) const ENTRY: TableEntry = TableEntry {
    name: "stragglers",
    about: "ranks that begin collectives late, by step (ProfilerStep)",
    title: "Late ranks",
    columns: "rank late_steps steps behind_mean:us behind_max:us",
    make,
};

/// Part of a step's time that a collective takes at least.
const LEAST_SHARE: f64 = 0.01;
/// Ranks that are late in each step.
const LATE: usize = 2;

/// How late a rank is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Lateness {
    /// Steps in which it is one of the last two to begin.
    pub steps: u64,
    /// Behind the first rank's begin, over all steps, microseconds.
    pub behind: Spread,
}

/// Which collective of each rank and step is compared: its stream and name.
type Compared = (Id, Sym);

/// Lateness by rank, of the collective that differs most.
pub(crate) fn run(timeline: &Timeline, index: &WorkIndex) -> BTreeMap<u32, Lateness> {
    let mut found = BTreeMap::new();
    let last = last_collectives(timeline, index);
    let Some(compared) = most_different(&last) else {
        return found;
    };
    for ((_, of), ranks) in &last {
        if *of != compared || ranks.len() < LATE {
            continue;
        }
        let mut begins: Vec<(Time, u32)> = ranks.iter().map(|(rank, at)| (at.0, *rank)).collect();
        begins.sort_unstable();
        let threshold = begins.len().checked_sub(LATE).and_then(|at| begins.get(at));
        let first = begins.first();
        for (begin, rank) in &begins {
            let late: &mut Lateness = found.entry(*rank).or_default();
            let is_late = threshold.is_some_and(|(least, _)| begin >= least);
            late.steps += u64::from(is_late);
            let behind = first.map_or(0.0, |(first, _)| (*begin - *first).micros());
            late.behind.add(behind);
        }
    }
    found
}

/// Begin and length, microseconds, by step, stream and name, and rank.
type LastCollectives = BTreeMap<(u64, Compared), BTreeMap<u32, (Time, f64)>>;

fn last_collectives(timeline: &Timeline, index: &WorkIndex) -> LastCollectives {
    let mut last = LastCollectives::new();
    let steps: Vec<_> = index
        .ranks
        .iter()
        .map(|rank| steps_of(timeline, index, rank))
        .collect();
    let all = || steps.iter().flatten();
    let mut numbers: Vec<u64> = all().map(|(_, _, number)| *number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let ends = all().map(|(from, to, _)| (*from, *to));
    let ends = ends.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)));
    let Some((from, mut to)) = ends else {
        return last;
    };
    let in_step = |rank: usize, at: Time| {
        let steps = steps.get(rank)?;
        let behind = steps.partition_point(|(from, ..)| *from <= at);
        let step = steps.get(behind.checked_sub(1)?)?;
        (at < step.1).then_some(step.2)
    };
    let mut found = Vec::new();
    for (number, rank) in index.ranks.iter().enumerate() {
        for work in &rank.work {
            let call = timeline.events.get(work.call as usize);
            let step = call.and_then(|call| in_step(number, call.start));
            let Some(step) = step else { continue };
            to = to.max(work.end);
            if work.class == WorkClass::Communication {
                found.push((rank, step, work));
            }
        }
    }
    let mean = (to - from).micros() / numbers.len().max(1) as f64;
    for (rank, step, work) in found {
        if work.us() < LEAST_SHARE * mean || step == 0 {
            continue;
        }
        let stream = rank.streams.get(work.stream as usize).map(|s| s.number);
        let event = timeline.events.get(work.event as usize);
        if let Some((stream, event)) = stream.zip(event) {
            let ranks = last
                .entry((step, (stream, event.original_name())))
                .or_default();
            ranks.insert(rank.rank, (work.start, work.us()));
        }
    }
    last
}

/// The stream and name whose lengths deviate most between ranks, in the mean over steps.
fn most_different(last: &LastCollectives) -> Option<Compared> {
    let mut deviations: BTreeMap<Compared, Spread> = BTreeMap::new();
    for ((_, of), ranks) in last {
        let mut lengths = Spread::default();
        ranks.values().for_each(|(_, us)| lengths.add(*us));
        if lengths.count > 1 {
            let deviation = deviations.entry(*of).or_default();
            deviation.add(lengths.deviation());
        }
    }
    let all = deviations.into_iter();
    let most = all.max_by(|a, b| a.1.mean().total_cmp(&b.1.mean()));
    most.map(|(of, _)| of)
}

/// The steps of a rank: begin, end, number, in order.
fn steps_of(timeline: &Timeline, index: &WorkIndex, rank: &RankWork) -> Vec<(Time, Time, u64)> {
    let steps = rank.host.iter().filter_map(|at| {
        let event = timeline.events.get(*at as usize)?;
        let is_note = matches!(index.role(event), SpanRole::Note | SpanRole::Operator);
        let number = name_of(timeline, event).strip_prefix(STEP)?;
        let number = number.parse().ok().filter(|_| is_note)?;
        Some((event.start, event.end(), number))
    });
    let mut steps: Vec<_> = steps.collect();
    steps.sort_unstable();
    steps
}

fn make(request: &Request<'_>) -> Vec<Table> {
    let timeline = request.timeline;
    let found = run(timeline, request.index());
    let mut rows: Vec<_> = found.into_iter().collect();
    rows.sort_by_key(|(_, late)| std::cmp::Reverse(late.steps));
    let mut notes = Vec::new();
    if rows.is_empty() {
        notes.push(
            "no collective of at least two ranks takes 1 % of a step (ProfilerStep#N)".to_owned(),
        );
    }
    let rows = rows.into_iter().map(|(rank, late)| {
        vec![
            rank.into(),
            late.steps.into(),
            late.behind.count.into(),
            late.behind.mean().into(),
            late.behind.max.into(),
        ]
    });
    vec![ENTRY.noted(rows, notes)]
}
