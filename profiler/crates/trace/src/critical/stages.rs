//! What one longest path is looked for in: the ranks that collectives join, in one cycle of their
//! profilers after the other. Nothing leads from one cycle to the next, and the time between them was
//! not recorded. So the path of a group is the paths of its cycles behind each other.

use super::graph::{LongestPath, PathEdge, PathGraph};
use crate::work::WorkIndex;
use aiprof_model::timeline::{Event, Length, NONE, Time, Timeline};

/// The stages of all groups, in order.
#[derive(Debug, Default)]
pub(super) struct Stages {
    /// The stage of each event of the graph; [`NONE`]: it is of several.
    of_events: Vec<u32>,
    /// The first stage of each rank.
    of_ranks: Vec<usize>,
    /// Whether each file of a rank is a stage.
    by_file: Vec<bool>,
    /// The group of each stage.
    groups: Vec<usize>,
}

impl Stages {
    /// The stages of `count` groups; `group_of` has that of each rank.
    pub(super) fn new(
        timeline: &Timeline,
        index: &WorkIndex,
        graph: &PathGraph,
        (group_of, count): (&[usize], usize),
    ) -> Self {
        // Files and whether to keep them apart, by group.
        let mut files = vec![(1, true); count];
        let mut members = vec![0; count];
        for (rank, group) in index.ranks.iter().zip(group_of) {
            if let Some((one, members)) = files.get_mut(*group).zip(members.get_mut(*group)) {
                one.0 = rank.files.len().max(one.0);
                *members += 1;
                one.1 = index.has_cycles() || *members == 1;
            }
        }
        let mut first = Vec::new();
        let mut stages = Self::default();
        for (group, (files, is_apart)) in files.iter().enumerate() {
            first.push(stages.groups.len());
            let more = if *is_apart { *files } else { 1 };
            stages.groups.extend(std::iter::repeat_n(group, more));
        }
        for group in group_of {
            let first = first.get(*group).copied().unwrap_or_default();
            let is_apart = files.get(*group).is_some_and(|one| one.1);
            stages.of_ranks.push(first);
            stages.by_file.push(is_apart);
        }
        let of = |event: &super::graph::PathEvent| {
            let at = timeline.events.get(event.event as usize)?;
            let stage = stages.of(timeline, index, event.rank as usize, at)?;
            u32::try_from(stage).ok()
        };
        let of_events = graph.events.iter().map(|event| of(event).unwrap_or(NONE));
        stages.of_events = of_events.collect();
        stages
    }

    /// The stage of an event of a rank.
    fn of(
        &self,
        timeline: &Timeline,
        index: &WorkIndex,
        rank: usize,
        event: &Event,
    ) -> Option<usize> {
        let first = *self.of_ranks.get(rank)?;
        match self.by_file.get(rank)? {
            true => Some(first + index.ranks.get(rank)?.file_at(timeline, event)),
            false => Some(first),
        }
    }

    /// The longest path of each group, with the weights that `weight` gives the edges.
    pub(super) fn longest(
        &self,
        graph: &PathGraph,
        count: usize,
        weight: &dyn Fn(&PathEdge) -> Length,
    ) -> Vec<LongestPath> {
        let mut all = vec![LongestPath::default(); count];
        let paths = graph.longest(&self.of_events, self.groups.len(), weight);
        for (group, path) in self.groups.iter().zip(paths) {
            if let Some(all) = all.get_mut(*group) {
                all.length = all.length + path.length;
                all.steps.extend(path.steps);
                all.circular = path.circular;
            }
        }
        all
    }

    /// From the first to the last of what each group did that is looked at, stage by stage.
    pub(super) fn walls(
        &self,
        timeline: &Timeline,
        index: &WorkIndex,
        graph: &PathGraph,
        windows: &[(Time, Time)],
    ) -> Vec<Length> {
        let mut ends = vec![None; self.groups.len()];
        let mut add = |stage: usize, (from, to): (Time, Time)| {
            if let Some(slot) = ends.get_mut(stage) {
                let (first, last) = slot.unwrap_or((from, to));
                *slot = Some((from.min(first), to.max(last)));
            }
        };
        for (event, stage) in graph.events.iter().zip(&self.of_events) {
            add(*stage as usize, event.times);
        }
        for (rank, (of_rank, window)) in index.ranks.iter().zip(windows).enumerate() {
            let work = of_rank.work.iter().map(|work| &work.event);
            for at in of_rank.host.iter().chain(work) {
                let Some(event) = timeline.events.get(*at as usize) else {
                    continue;
                };
                let (from, to) = (event.start.max(window.0), event.end().min(window.1));
                if from <= to
                    && let Some(stage) = self.of(timeline, index, rank, event)
                {
                    add(stage, (from, to));
                }
            }
        }
        let count = self.groups.last().map_or(0, |last| last + 1);
        let mut walls = vec![Length::ZERO; count];
        for (group, ends) in self.groups.iter().zip(ends) {
            if let Some((wall, (from, to))) = walls.get_mut(*group).zip(ends) {
                *wall = *wall + (to - from);
            }
        }
        walls
    }
}
