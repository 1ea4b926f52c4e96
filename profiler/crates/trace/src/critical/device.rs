//! Edges between work of a rank's devices, from the calls that launched it and to the calls
//! that wait for it: HTA's.
//!
//! Work begins behind its launch where nothing else was in its stream's queue, else behind
//! the work before it or what an event of another stream held it back for. HTA takes a
//! kernel a call; of a graph's launch the first does not stand behind the others.

use super::build::{Builder, Numbered};
use super::graph::{EdgeKind, begin, end};
use super::syncs::{self, LastEnds, Wait, Waits};
use crate::device_time::begins_before;
use crate::work::{RankWork, RankedWork};
use aiprof_model::timeline::{Event, Length, Time, Timeline};
use rustc_hash::FxHashMap;

/// The length of its stream's queue around a work's launch and begin.
#[derive(Clone, Copy, Default)]
struct Queued {
    /// Before its call.
    before: i64,
    /// Once it has begun, without what its own call launched.
    behind: i64,
}

/// Adds the work of a rank's devices.
pub(super) fn add<'b>(builder: &mut Builder<'b>, rank: usize) -> Numbered<'b> {
    let index = builder.index;
    let Some(of_rank) = index.ranks.get(rank) else {
        return Vec::new();
    };
    let mut numbers = vec![None; of_rank.work.len()];
    let mut numbered = Vec::new();
    for (slot, work) in numbers.iter_mut().zip(&of_rank.work) {
        if is_looked_at(builder, rank, of_rank, work) {
            let number = builder.add_work(work, rank);
            *slot = Some(number);
            numbered.push((number, work));
        }
    }
    let waits = syncs::find(builder, of_rank);
    let queued = queues(builder.timeline, of_rank);
    let mut links = Links {
        builder,
        of_rank,
        queued,
        numbers,
        waits,
        last: vec![None; of_rank.streams.len()],
        ends: LastEnds::new(of_rank.streams.len()),
    };
    links.run();
    numbered
}

/// Work whose call is looked at; by its own begin, where the trace has no calls. In a trace
/// that has some, work without one was launched before it: nothing is known of its time.
fn is_looked_at(builder: &Builder<'_>, rank: usize, of_rank: &RankWork, work: &RankedWork) -> bool {
    match builder.timeline.events.get(work.call as usize) {
        Some(_) => builder.number_of(work.call).is_some(),
        None => of_rank.calls.is_empty() && builder.is_within(rank, work.start),
    }
}

/// The queue around each work of which the call is known.
fn queues(timeline: &Timeline, of_rank: &RankWork) -> Vec<Queued> {
    let mut all = vec![Queued::default(); of_rank.work.len()];
    // By stream and time; launches before begins.
    let mut changes: Vec<(u32, Time, bool, u32)> = Vec::new();
    for (at, work) in (0u32..).zip(&of_rank.work) {
        if let Some(call) = timeline.events.get(work.call as usize)
            && !begins_before(work, call)
        {
            changes.push((work.stream, call.start, false, at));
            changes.push((work.stream, work.start, true, at));
        }
    }
    changes.sort_unstable();
    let mut length = 0i64;
    let mut of_calls: FxHashMap<u32, (i64, i64)> = FxHashMap::default();
    let mut stream = None;
    for (of, _, begins, at) in changes {
        if stream != Some(of) {
            (stream, length) = (Some(of), 0);
            of_calls.clear();
        }
        let Some(work) = of_rank.work.get(at as usize) else {
            continue;
        };
        if begins {
            length -= 1;
            let (before, left) = of_calls.get(&work.call).copied().unwrap_or_default();
            let left = left - 1;
            if left == 0 {
                of_calls.remove(&work.call);
            } else {
                of_calls.insert(work.call, (before, left));
            }
            if let Some(queued) = all.get_mut(at as usize) {
                queued.behind = length - left;
                queued.before = before;
            }
            // The others of the launch stand behind this one.
            if left > 0 {
                of_calls.insert(work.call, (1, left));
            }
        } else {
            let one = of_calls.entry(work.call).or_insert((length, 0));
            one.1 += 1;
            length += 1;
        }
    }
    all
}

/// The last work of a stream.
#[derive(Clone, Copy)]
struct LastWork {
    number: u32,
    file: u16,
    start: Time,
    end: Time,
}

impl LastWork {
    fn of(number: u32, work: &RankedWork) -> Self {
        Self {
            number,
            file: work.file,
            start: work.start,
            end: work.end,
        }
    }
}

struct Links<'l, 'b> {
    builder: &'l mut Builder<'b>,
    of_rank: &'b RankWork,
    queued: Vec<Queued>,
    /// Numbers of the works that are looked at.
    numbers: Vec<Option<u32>>,
    waits: Waits,
    last: Vec<Option<LastWork>>,
    /// The ends of the last works, with their numbers.
    ends: LastEnds,
}

impl Links<'_, '_> {
    /// Work by its begin, waits by their end: a wait's row may begin before what it waits
    /// for.
    fn run(&mut self) {
        let mut order: Vec<(Time, bool, u32)> = Vec::new();
        for (at, work) in (0u32..).zip(&self.of_rank.work) {
            order.push((work.start, true, at));
        }
        for (at, (time, _)) in (0u32..).zip(&self.waits.rows) {
            order.push((*time, false, at));
        }
        order.sort_unstable();
        for (_, is_work, at) in order {
            if is_work {
                self.work(at);
            } else if let Some((_, wait)) = self.waits.rows.get(at as usize).copied() {
                self.wait(wait);
            }
        }
    }

    fn number(&self, work: u32) -> Option<u32> {
        self.numbers.get(work as usize).copied().flatten()
    }

    /// A call that waits for a device.
    fn wait(&mut self, wait: Wait) {
        let (call, ended) = match wait {
            Wait::Device { call } => {
                let streams = self.ends.latest().into_iter().map(|(stream, ..)| stream);
                let last = |stream| self.last.get(stream as usize).copied().flatten();
                (call, streams.filter_map(last).collect())
            }
            Wait::Stream { call, stream } => {
                let last = self.last.get(stream as usize).copied().flatten();
                (call, last.into_iter().collect())
            }
            Wait::Work { call, work } => {
                let number = self.number(work);
                let work = self.of_rank.work.get(work as usize);
                let one = number.zip(work);
                let one = one.map(|(number, work)| LastWork::of(number, work));
                (call, one.into_iter().collect::<Vec<_>>())
            }
        };
        let event = self.builder.timeline.events.get(call as usize);
        let file = event.map(|event| self.of_rank.file_at(self.builder.timeline, event));
        let Some(call) = self.builder.number_of(call) else {
            return;
        };
        let ended = ended.into_iter();
        let ended = ended.filter(|last| Some(usize::from(last.file)) == file);
        for number in ended.map(|last| last.number) {
            self.edge(EdgeKind::Sync, end(number), end(call), number, Length::ZERO);
        }
    }

    fn edge(&mut self, kind: EdgeKind, from: u32, to: u32, owner: u32, weight: Length) {
        self.builder.graph.add(kind, from, to, owner, weight);
    }

    fn work(&mut self, at: u32) {
        let Some((number, work)) = self.number(at).zip(self.of_rank.work.get(at as usize)) else {
            return;
        };
        let starts = begin(number);
        let held = self.waits.held.get(&at).copied();
        let held = held.and_then(|source| {
            let source_work = self.of_rank.work.get(source as usize)?;
            let is_same_file = source_work.file == work.file;
            is_same_file.then_some((self.number(source)?, source_work.end))
        });
        if let Some((source, _)) = held {
            self.edge(EdgeKind::Sync, end(source), starts, source, Length::ZERO);
        }
        // Between two files nothing was recorded.
        let last = self.last.get(work.stream as usize).copied().flatten();
        let last = last.filter(|last| last.file == work.file);
        let call = self.builder.timeline.events.get(work.call as usize);
        let call = call.filter(|call| !begins_before(work, call));
        let is_launched = self.is_behind_launch(at, last, held.map(|(_, ends)| ends), call);
        let call = call.zip(self.builder.number_of(work.call));
        if let Some((call, from)) = call {
            let (kind, took) = match is_launched {
                true => (EdgeKind::LaunchDelay, work.start - call.start),
                false => (EdgeKind::Launch, Length::ZERO),
            };
            self.edge(kind, begin(from), starts, number, took);
        }
        if let Some(last) = last.filter(|_| !is_launched)
            && held.is_none_or(|(_, ends)| ends < last.end)
        {
            // Kernels may begin before the one before them is over.
            let (kind, from, took) = match work.start < last.end {
                true => (EdgeKind::Own, begin(last.number), work.start - last.start),
                false => (
                    EdgeKind::KernelKernel,
                    end(last.number),
                    work.start - last.end,
                ),
            };
            self.edge(kind, from, starts, last.number, took);
        }
        self.ends.set(work.stream, work.end, number);
        if let Some(slot) = self.last.get_mut(work.stream as usize) {
            *slot = Some(LastWork::of(number, work));
        }
    }

    /// Whether only its launch holds work back.
    fn is_behind_launch(
        &self,
        at: u32,
        last: Option<LastWork>,
        held: Option<Time>,
        call: Option<&Event>,
    ) -> bool {
        let Some(call) = call else {
            return false;
        };
        let queued = self.queued.get(at as usize).copied().unwrap_or_default();
        queued.before == 0
            && queued.behind == 0
            && last.is_none_or(|last| last.end < call.start)
            && held.is_none_or(|ends| ends < call.start)
    }
}
