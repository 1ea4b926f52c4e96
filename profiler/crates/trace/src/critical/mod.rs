//! The critical path: what the time of the whole is made of, through host, devices and, where
//! collectives join them, ranks. It also gives how long the whole would be if something took
//! another time.
//!
//! HTA's, with edges that keep work behind its launch (its
//! `CRITICAL_PATH_ADD_ZERO_WEIGHT_LAUNCH_EDGE`), without which another time of a kernel
//! would let work begin before it is launched. `graph` has the meaning, the others each kind
//! of edge.

mod arrivals;
mod build;
mod device;
mod graph;
mod host;
mod stages;
mod syncs;
mod unknown;
mod what_if;

pub use graph::LongestPath;
pub use unknown::unknown_names;
pub use what_if::WhatIf;

use crate::analyze::identity::file_of;
use crate::work::{RankWork, SpanRole, WorkClass, WorkIndex, name_of};
use aiprof_model::timeline::{Length, Time, Timeline};
use graph::{EdgeKind, PathEdge, PathGraph, PathRole};
use stages::Stages;
use std::collections::BTreeMap;

/// What is looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathOptions {
    /// Only what begins within annotations whose name contains this; `None`: everything.
    pub annotation: Option<String>,
    /// Which of them, by their begin: the first is 0; `None`: from the first to the last.
    pub instance: Option<usize>,
}

/// What a part of the path is bound by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BoundBy {
    /// Calls and operators on the host.
    Cpu,
    /// Other code of the host that the trace has: functions of Python, notes, waits for data.
    Code,
    /// Kernels that compute.
    Compute,
    /// Collectives.
    Communication,
    /// Copies and fills.
    Copy,
    /// Beginning a kernel behind another.
    KernelKernel,
    /// Launching.
    Launch,
}

impl BoundBy {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Cpu,
        Self::Code,
        Self::Compute,
        Self::Communication,
        Self::Copy,
        Self::KernelKernel,
        Self::Launch,
    ];

    /// The word for it: HTA's, but that HTA takes copies for computing and has no `code_bound`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cpu => "cpu_bound",
            Self::Code => "code_bound",
            Self::Compute => "compute_bound",
            Self::Communication => "communication_bound",
            Self::Copy => "copy_bound",
            Self::KernelKernel => "kernel_kernel_overhead",
            Self::Launch => "kernel_launch_overhead",
        }
    }
}

/// The critical path of ranks that collectives join, or of one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupPath {
    /// The ranks, by their number in the index.
    pub ranks: Vec<usize>,
    /// The path.
    pub path: LongestPath,
    /// From the first to the last event of these ranks' threads and devices that counts here, in
    /// each cycle of their profilers. No path is longer.
    pub wall: Length,
}

/// Critical paths of all ranks.
#[derive(Debug, Default)]
pub struct CriticalPath {
    /// What waits for what.
    graph: PathGraph,
    /// The paths.
    pub groups: Vec<GroupPath>,
    /// Collectives that join ranks.
    pub joined: usize,
    /// Messages from one device to another that join ranks.
    pub messages: usize,
    /// Collectives and messages whose ranks' times do not fit.
    pub apart: usize,
    /// Ranks whose waits are estimated: the trace has no rows of them.
    pub estimated: usize,
    stages: Stages,
}

/// A part of a path, and its bound.
#[derive(Clone, Copy, Debug)]
pub struct PathPart {
    /// Rank, in the index.
    pub rank: u32,
    /// The event of the timeline; `NONE`: it is of several.
    pub event: u32,
    /// The bound of a part.
    pub bound: BoundBy,
    /// How long it takes.
    pub took: Length,
    /// Number of the event in the graph.
    owner: u32,
    /// It is time of the event itself.
    is_own: bool,
}

/// Finds the critical paths.
pub fn run(timeline: &Timeline, index: &WorkIndex, options: &PathOptions) -> CriticalPath {
    let windows = index.ranks.iter();
    let windows = windows.map(|rank| window(timeline, index, (rank, None), options));
    let windows: Vec<(Time, Time)> = windows.collect();
    let (graph, arrivals) = build::graph(timeline, index, &windows);
    let (group_of, count) = groups(index.ranks.len(), &arrivals.pairs);
    let stages = Stages::new(timeline, index, &graph, (&group_of, count));
    let paths = stages.longest(&graph, count, &|edge| edge.weight);
    let ranks_of = |group: usize| {
        let all = group_of.iter().enumerate();
        let its = all.filter(|(_, of)| **of == group);
        its.map(|(rank, _)| rank).collect()
    };
    let walls = stages.walls(timeline, index, &graph, &windows);
    let groups = paths.into_iter().zip(walls).enumerate();
    let groups = groups.map(|(group, (path, wall))| GroupPath {
        ranks: ranks_of(group),
        path,
        wall,
    });
    let groups = groups.collect();
    let is_estimated =
        |rank: &&RankWork| rank.syncs.is_empty() && !rank.work.is_empty() && !rank.calls.is_empty();
    CriticalPath {
        groups,
        joined: arrivals.joined,
        messages: arrivals.messages,
        apart: arrivals.apart,
        estimated: index.ranks.iter().filter(is_estimated).count(),
        graph,
        stages,
    }
}

impl CriticalPath {
    /// The paths, if some of the work took another time, and how many names that concerns.
    pub fn what_if(&self, timeline: &Timeline, changes: &[WhatIf]) -> (Vec<LongestPath>, usize) {
        let factors = what_if::Factors::new(timeline, &self.graph, changes);
        let weight = |edge: &PathEdge| factors.weight(timeline, &self.graph, edge);
        let paths = self.stages.longest(&self.graph, self.groups.len(), &weight);
        (paths, factors.names())
    }

    /// What an edge is bound by; `None`: it takes no time.
    fn bound_by(&self, edge: &PathEdge) -> Option<BoundBy> {
        match edge.kind {
            EdgeKind::Own => {
                let owner = self.graph.events.get(edge.owner as usize)?;
                Some(match owner.role {
                    PathRole::Host | PathRole::Arrival => BoundBy::Cpu,
                    PathRole::Code => BoundBy::Code,
                    PathRole::Device(WorkClass::Compute) => BoundBy::Compute,
                    PathRole::Device(WorkClass::Communication) => BoundBy::Communication,
                    PathRole::Device(WorkClass::Copy) => BoundBy::Copy,
                })
            }
            EdgeKind::LaunchDelay => Some(BoundBy::Launch),
            EdgeKind::KernelKernel => Some(BoundBy::KernelKernel),
            EdgeKind::Order | EdgeKind::Launch | EdgeKind::Sync | EdgeKind::Arrival => None,
        }
    }

    /// The parts of a path that are bound by something, in order.
    pub fn parts<'p>(&'p self, path: &'p LongestPath) -> impl Iterator<Item = PathPart> + 'p {
        path.steps.iter().filter_map(|(number, took)| {
            let edge = self.graph.edges.get(*number as usize)?;
            let owner = self.graph.events.get(edge.owner as usize)?;
            Some(PathPart {
                rank: owner.rank,
                event: owner.event,
                bound: self.bound_by(edge)?,
                took: *took,
                owner: edge.owner,
                is_own: edge.kind == EdgeKind::Own,
            })
        })
    }

    /// A path's time by what bounds it, as [`BoundBy::ALL`], and by rank.
    pub fn bounds(&self, path: &LongestPath) -> Vec<(u32, [Length; 7])> {
        let mut ranks: BTreeMap<u32, [Length; 7]> = BTreeMap::new();
        for part in self.parts(path) {
            let sums = ranks.entry(part.rank).or_default();
            if let Some(sum) = sums.get_mut(part.bound as usize) {
                *sum = *sum + part.took;
            }
        }
        ranks.into_iter().collect()
    }

    /// The events on a path and the time that each has there.
    pub fn events_on(&self, path: &LongestPath) -> Vec<(u32, Length)> {
        let mut found: BTreeMap<u32, (u32, Length)> = BTreeMap::new();
        for part in self.parts(path) {
            let (_, sum) = found
                .entry(part.owner)
                .or_insert((part.event, Length::ZERO));
            if part.is_own {
                *sum = *sum + part.took;
            }
        }
        found.into_values().collect()
    }
}

/// Marks the events on the critical paths: `critical_path_us`, the time that each has there,
/// among their arguments. Returns how many.
pub fn mark(timeline: &mut Timeline, options: &PathOptions) -> usize {
    let index = WorkIndex::new(timeline);
    let found = run(timeline, &index, options);
    let groups = found.groups.iter();
    let events: Vec<_> = groups
        .flat_map(|group| found.events_on(&group.path))
        .collect();
    drop((index, found));
    for (event, took) in &events {
        let member = format!("\"critical_path_us\":{}", took.micros());
        timeline.add_args(*event as usize, &member);
    }
    events.len()
}

/// The time in which a rank is looked at: of the annotations in one of its files, or in all.
pub fn window(
    timeline: &Timeline,
    index: &WorkIndex,
    (rank, file): (&RankWork, Option<u32>),
    options: &PathOptions,
) -> (Time, Time) {
    let Some(wanted) = &options.annotation else {
        return (Time(i64::MIN), Time(i64::MAX));
    };
    let notes = notes(timeline, index, (rank, file), wanted);
    let notes = match options.instance {
        Some(instance) => notes.get(instance..=instance).unwrap_or_default(),
        None => &notes,
    };
    let all = notes.iter().copied();
    let all = all.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)));
    // Nothing is looked at where there is no such annotation.
    all.unwrap_or((Time(i64::MAX), Time(i64::MIN)))
}

/// When a rank's annotations were whose name contains a text, by begin; in one file, or in all.
fn notes(
    timeline: &Timeline,
    index: &WorkIndex,
    (rank, file): (&RankWork, Option<u32>),
    wanted: &str,
) -> Vec<(Time, Time)> {
    let notes = rank.host.iter().filter_map(|at| {
        let event = timeline.events.get(*at as usize)?;
        if file.is_some_and(|file| file != file_of(timeline, event)) {
            return None;
        }
        let is_one =
            index.role(event) == SpanRole::Note && name_of(timeline, event).contains(wanted);
        is_one.then_some((event.start, event.end()))
    });
    let mut notes: Vec<(Time, Time)> = notes.collect();
    notes.sort_unstable();
    notes
}

/// The group of each rank, and how many there are.
fn groups(ranks: usize, pairs: &rustc_hash::FxHashSet<(usize, usize)>) -> (Vec<usize>, usize) {
    let mut lowest: Vec<usize> = (0..ranks).collect();
    let mut sorted: Vec<_> = pairs.iter().copied().collect();
    sorted.sort_unstable();
    for (a, b) in sorted {
        let (Some(a), Some(b)) = (lowest.get(a).copied(), lowest.get(b).copied()) else {
            continue;
        };
        for of in &mut lowest {
            if *of == a.max(b) {
                *of = a.min(b);
            }
        }
    }
    let mut known: Vec<usize> = lowest.clone();
    known.sort_unstable();
    known.dedup();
    let group = |of: &usize| known.binary_search(of).unwrap_or(0);
    (lowest.iter().map(group).collect(), known.len())
}

#[cfg(test)]
mod tests;
