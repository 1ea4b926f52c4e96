//! Which calls of different ranks are the same collective: all ranks of a communicator
//! call its collectives in the same order.

use super::calls::{CallSpan, MpiProcess};
use super::comms::{CommId, Comms};
use super::function::Flow;
use super::posts::{Posts, RankPart};
use aiprof_model::timeline::Timeline;
use std::collections::BTreeMap;

/// A rank's part in a collective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MpiPart {
    /// Its rank in the run.
    pub rank: u32,
    /// Its file.
    pub job: u32,
    /// Its call.
    pub call: CallSpan,
    /// The call returned when its part was over.
    pub is_blocking: bool,
}

/// A collective.
#[derive(Clone, Debug, PartialEq)]
pub struct MpiCollective {
    /// Its function: `Allreduce`.
    pub name: String,
    /// Its communicator, in words.
    pub group: String,
    /// Ranks of the communicator.
    pub ranks: u32,
    /// Bytes that a rank gives or gets.
    pub bytes: Option<u64>,
    /// Whose end depends on whose begin.
    pub(crate) flow: Flow,
    /// The place of the root's part.
    pub root: Option<usize>,
    /// Parts of those ranks that were recorded.
    pub parts: Vec<MpiPart>,
}

/// Finds all collectives, and how many calls belong to none.
pub(super) fn find(
    timeline: &Timeline,
    processes: &[MpiProcess],
    posts: &[Posts],
    comms: &Comms,
    ranks: &[Option<u32>],
) -> (Vec<MpiCollective>, u64) {
    let mut by_comm: BTreeMap<CommId, BTreeMap<usize, Vec<&RankPart>>> = BTreeMap::new();
    for (number, posts) in posts.iter().enumerate() {
        for part in &posts.parts {
            let all = by_comm.entry(part.comm).or_default();
            all.entry(number).or_default().push(part);
        }
    }
    let (mut found, mut unmatched) = (Vec::new(), 0);
    for (comm, members) in by_comm {
        let total: usize = members.values().map(Vec::len).sum();
        let known = |number: &usize| ranks.get(*number).copied().flatten().is_some();
        let is_sure = |number: &usize| {
            let process = processes.get(*number);
            process.is_some_and(|process| process.has_begin && !process.has_losses)
        };
        let counts = || members.values().map(Vec::len);
        let least = counts().min().unwrap_or(0);
        let is_even = counts().all(|count| count == least);
        let fits = members.keys().all(known) && (is_even || members.keys().all(is_sure));
        let mut used = 0;
        for nth in (0..least).take_while(|_| fits && members.len() > 1) {
            let parts = members.iter();
            let parts = parts.filter_map(|(number, all)| Some((*number, **all.get(nth)?)));
            let parts: Vec<(usize, RankPart)> = parts.collect();
            let Some(one) = one(timeline, processes, comms, ranks, comm, &parts) else {
                break;
            };
            found.push(one);
            used += members.len();
        }
        // Those of one rank alone have no counterparts.
        if members.len() > 1 {
            unmatched += (total - used) as u64;
        }
    }
    let begin = |one: &MpiCollective| one.parts.iter().map(|part| part.call.begin).min();
    found.sort_by_key(begin);
    (found, unmatched)
}

/// A collective of these parts; `None`: they are not alike.
fn one(
    timeline: &Timeline,
    processes: &[MpiProcess],
    comms: &Comms,
    ranks: &[Option<u32>],
    comm: CommId,
    parts: &[(usize, RankPart)],
) -> Option<MpiCollective> {
    let (_, first) = parts.first()?;
    let name = plain(timeline.name(first.call.name));
    let is_alike = |part: &RankPart| {
        let is_same = plain(timeline.name(part.call.name)) == name;
        is_same && part.flow == first.flow && part.root == first.root
    };
    if !parts.iter().all(|(_, part)| is_alike(part)) {
        return None;
    }
    let root = first.root.and_then(|root| comms.process(comm, root));
    let of = |(number, part): &(usize, RankPart)| {
        Some(MpiPart {
            rank: ranks.get(*number).copied().flatten()?,
            job: processes.get(*number)?.job,
            call: part.call,
            is_blocking: part.is_blocking,
        })
    };
    Some(MpiCollective {
        name: name.to_owned(),
        group: comms.name(comm),
        ranks: comms.size(comm),
        bytes: parts.iter().filter_map(|(_, part)| part.bytes).max(),
        flow: first.flow,
        root: root.and_then(|root| parts.iter().position(|(number, _)| *number == root)),
        parts: parts.iter().filter_map(of).collect(),
    })
}

/// `MPI_Allreduce` of `PMPI_Allreduce`.
fn plain(name: &str) -> &str {
    name.strip_prefix('P').unwrap_or(name)
}

impl MpiCollective {
    /// Parts whose begin others depend on.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &MpiPart> {
        let root = self.root.filter(|_| self.flow == Flow::FromRoot);
        let are_all = matches!(self.flow, Flow::All | Flow::ToRoot);
        let parts = self.parts.iter().enumerate();
        let parts = parts.filter(move |(at, _)| are_all || root == Some(*at));
        parts.map(|(_, part)| part)
    }

    /// Parts whose end depends on all sources but themselves.
    pub(crate) fn ends(&self) -> impl Iterator<Item = &MpiPart> {
        let root = self.root.filter(|_| self.flow == Flow::ToRoot);
        let are_all = matches!(self.flow, Flow::All | Flow::FromRoot);
        let parts = self.parts.iter().enumerate();
        let parts = parts.filter(move |(at, _)| are_all || root == Some(*at));
        parts.map(|(_, part)| part).filter(|part| part.is_blocking)
    }

    /// What parts waited for the last of those they depend on, and for which, microseconds.
    /// Needs clocks that agree.
    pub fn waits(&self) -> Vec<(&MpiPart, &MpiPart, f64)> {
        let Some(last) = self.sources().max_by_key(|part| part.call.begin) else {
            return Vec::new();
        };
        let waits = self.ends().filter(|part| part.rank != last.rank);
        let waits = waits.map(|part| {
            let until = last.call.begin.min(part.call.end);
            let waited = (until - part.call.begin).micros();
            (part, last, waited.max(0.0))
        });
        waits.collect()
    }

    /// From when the last part begins until the last ends, microseconds; 0 where calls only
    /// begin it. Needs clocks that agree.
    pub fn busy_us(&self) -> f64 {
        let begin = self.parts.iter().map(|part| part.call.begin).max();
        let ends = self.parts.iter().filter(|part| part.is_blocking);
        let end = ends.map(|part| part.call.end).max();
        let took = begin.zip(end).map(|(begin, end)| (end - begin).micros());
        took.unwrap_or(0.0).max(0.0)
    }
}
