//! Messages and collectives of MPI, as calls of several processes have them: which send
//! belongs to which receive, and which calls are the same collective.
//!
//! Calls are those that aiprof's probes record, or unitrace's of its own trace. Nothing
//! here needs clocks that agree: they are found by what this finds (`clocks`).

mod calls;
pub(crate) mod clocks;
mod collectives;
mod comms;
mod function;
mod pairs;
mod posts;

pub use calls::CallSpan;
pub use clocks::{ClockReport, JobClock};
pub use collectives::{MpiCollective, MpiPart};

use aiprof_model::timeline::{Time, Timeline, TrackId};
use calls::{MpiArgs, MpiProcess};
use comms::Comms;
use function::MpiFunction;
use std::collections::BTreeMap;

/// A message: a send and its receive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairedMessage {
    /// Rank that sent it, in the run.
    pub from: u32,
    /// Rank that received it.
    pub to: u32,
    /// The sender's file.
    pub from_job: u32,
    /// The receiver's.
    pub to_job: u32,
    /// Its tag.
    pub tag: i64,
    /// Its size, if it is known.
    pub bytes: Option<u64>,
    /// The call that sent it, or began to.
    pub send: CallSpan,
    /// The call in which sending was over; `None`: not seen.
    pub sent: Option<CallSpan>,
    /// Sending was over only once the receive had begun.
    pub is_synchronous: bool,
    /// The call that received it, or began to.
    pub receive: CallSpan,
    /// The call in which it had arrived; `None`: not seen.
    pub arrived: Option<CallSpan>,
}

/// What could not be matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unmatched {
    /// Sends without a receive.
    pub sends: u64,
    /// Receives without a send.
    pub receives: u64,
    /// Receives from anybody, or of any tag, whose status the program ignored.
    pub unknown_senders: u64,
    /// Sends and receives of communicators in which the rank is not known.
    pub unknown_ranks: u64,
    /// Calls of collectives whose counterparts are not known.
    pub collectives: u64,
    /// Messages that are matched because as many were sent as received: the begin of the
    /// run was not seen.
    pub by_number: u64,
}

impl Unmatched {
    fn add(&mut self, sends: usize, receives: usize) {
        self.sends += sends as u64;
        self.receives += receives as u64;
    }
}

/// All that ranks did together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MpiTraffic {
    /// Messages, by the begin of their sends.
    pub messages: Vec<PairedMessage>,
    /// Collectives, by their begin.
    pub collectives: Vec<MpiCollective>,
    /// The rest.
    pub unmatched: Unmatched,
}

impl MpiTraffic {
    /// Finds the traffic in a timeline. Needs no order of events and no common clock.
    pub(crate) fn of(timeline: &Timeline) -> Self {
        let mut processes = calls::processes(timeline);
        for process in &mut processes {
            process.rank = rank_in_world(timeline, process).or(process.rank);
        }
        if processes.is_empty() {
            return Self::default();
        }
        let runs = runs(&processes);
        let mut comms = Comms::default();
        let mut all = Vec::with_capacity(processes.len());
        for (number, process) in processes.iter().enumerate() {
            let run = runs.get(number).copied().flatten();
            let handles = comms.begin(timeline, process, number, run);
            all.push(posts::of(timeline, process, number, &mut comms, handles));
        }
        comms.finish();
        let ranks: Vec<_> = processes.iter().map(|process| process.rank).collect();
        let matcher = pairs::Matcher {
            processes: &processes,
            posts: &all,
            comms: &comms,
            ranks: &ranks,
        };
        let (messages, mut unmatched) = matcher.run();
        let (collectives, rest) = collectives::find(timeline, &processes, &all, &comms, &ranks);
        unmatched.collectives = rest;
        Self {
            messages,
            collectives,
            unmatched,
        }
    }
}

/// A wait of one rank for another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MpiWait {
    /// Who waits.
    pub rank: u32,
    /// For whom.
    pub waits_for: u32,
    /// In a message, not a collective.
    pub is_message: bool,
    /// How long, microseconds.
    pub us: f64,
}

impl MpiTraffic {
    /// Who waited for whom. A call that waits for several messages waits for that which is
    /// sent last. Needs clocks that agree.
    pub fn waits(&self) -> Vec<MpiWait> {
        let mut calls: BTreeMap<(TrackId, Time, Time), MpiWait> = BTreeMap::new();
        let mut add = |waits: Option<(CallSpan, f64)>, rank: u32, waits_for: u32| {
            let Some((call, us)) = waits.filter(|(_, us)| *us > 0.0) else {
                return;
            };
            let wait = MpiWait {
                rank,
                waits_for,
                is_message: true,
                us,
            };
            let longest = calls.entry((call.track, call.begin, call.end));
            let longest = longest.or_insert(wait);
            if longest.us < us {
                *longest = wait;
            }
        };
        for message in self.messages.iter().filter(|one| one.from != one.to) {
            add(message.receiver_waits(), message.to, message.from);
            add(message.sender_waits(), message.from, message.to);
        }
        let mut all: Vec<MpiWait> = calls.into_values().collect();
        for one in &self.collectives {
            let waits = one.waits();
            let waits = waits.iter().filter(|(.., us)| *us > 0.0);
            all.extend(waits.map(|(part, last, us)| MpiWait {
                rank: part.rank,
                waits_for: last.rank,
                is_message: false,
                us: *us,
            }));
        }
        all
    }
}

/// A process's rank in the run, by the library.
fn rank_in_world(timeline: &Timeline, process: &MpiProcess) -> Option<u32> {
    let world = comms::world_of(timeline, process)?;
    let mut asked = process.calls.iter();
    asked.find_map(|call| {
        let args = MpiArgs::new(timeline, call);
        let is_it = call.function == MpiFunction::CommRank;
        let is_it = is_it && args.handle("communicator") == Some(world);
        u32::try_from(args.number("rank").filter(|_| is_it)?).ok()
    })
}

/// Which run each process belongs to, where a recording has several one after another; `None`: two
/// processes have one rank at the same time, and nothing distinguishes them.
fn runs(processes: &[MpiProcess]) -> Vec<Option<u32>> {
    let mut by_rank: BTreeMap<u32, Vec<(Time, Time, usize)>> = BTreeMap::new();
    let mut runs = vec![None; processes.len()];
    for (number, process) in processes.iter().enumerate() {
        let begin = process.calls.first().map(|call| call.span.begin);
        let end = process.calls.iter().map(|call| call.span.end).max();
        if let (Some(rank), Some(begin), Some(end)) = (process.rank, begin, end) {
            let all = by_rank.entry(rank).or_default();
            all.push((begin, end, number));
        }
    }
    let most = by_rank.values().map(Vec::len).max().unwrap_or(0);
    for mut all in by_rank.into_values() {
        all.sort_unstable_by_key(|(begin, _, number)| (*begin, *number));
        let jobs = all.iter().filter_map(|(.., number)| processes.get(*number));
        let mut jobs: Vec<u32> = jobs.map(|process| process.job).collect();
        jobs.dedup();
        let apart = all.windows(2).all(|pair| match pair {
            [(_, end, _), (begin, ..)] => end <= begin,
            _ => true,
        });
        if all.len() < most || !apart || jobs.len() > 1 {
            continue;
        }
        for (run, (.., number)) in (0..).zip(all) {
            if let Some(at) = runs.get_mut(number) {
                *at = Some(run);
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests;
