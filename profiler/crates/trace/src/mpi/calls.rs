//! The calls of MPI in a timeline, by process, in the order of time.

use super::function::{self, MpiFunction};
use aiprof_model::profile::LossKind;
use aiprof_model::timeline::{Event, Id, Sym, Time, Timeline, TrackId, member};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Which library a process uses: their handles and numbers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MpiLibrary {
    /// Open MPI.
    OpenMpi,
    /// MPICH, and what shares its ABI.
    Mpich,
    /// unitrace's trace does not name it.
    Unknown,
}

/// Whom a rank's number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// A rank of the communicator.
    Rank(u32),
    /// Whoever sends (`MPI_ANY_SOURCE`).
    Any,
    /// No process (`MPI_PROC_NULL`): no message.
    Nobody,
}

impl MpiLibrary {
    /// What a number in the place of a rank means (`mpi.h` of each).
    pub(super) fn peer(self, number: i64) -> Peer {
        match (self, number) {
            (_, 0..) => u32::try_from(number).map_or(Peer::Nobody, Peer::Rank),
            (Self::OpenMpi, -2) | (Self::Mpich, -1) => Peer::Nobody,
            _ => Peer::Any,
        }
    }
}

/// When and where a call was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallSpan {
    /// Begin.
    pub begin: Time,
    /// End.
    pub end: Time,
    /// Its track.
    pub track: TrackId,
    /// Its function.
    pub name: Sym,
}

/// A call.
#[derive(Clone, Copy, Debug)]
pub(super) struct MpiCall {
    pub(super) function: MpiFunction,
    pub(super) span: CallSpan,
    /// The event, for its arguments.
    pub(super) event: u32,
    /// Its end was seen.
    pub(super) is_ended: bool,
}

/// A process that calls MPI.
#[derive(Debug)]
pub(super) struct MpiProcess {
    /// Its file.
    pub(super) job: u32,
    /// Rank that its environment or file gives it.
    pub(super) rank: Option<u32>,
    pub(super) library: MpiLibrary,
    pub(super) calls: Vec<MpiCall>,
    /// `MPI_Init` was seen: no call before was missed.
    pub(super) has_begin: bool,
    /// Calls of its recording were lost.
    pub(super) has_losses: bool,
}

/// Finds all of them. Needs no order of events; sorts the calls.
pub(super) fn processes(timeline: &Timeline) -> Vec<MpiProcess> {
    let functions: Vec<Option<MpiFunction>> = timeline
        .names
        .iter()
        .map(|(_, name)| function::of(name))
        .collect();
    if functions.iter().all(Option::is_none) {
        return Vec::new();
    }
    let function = |sym: Sym| functions.get(sym.index()).copied().flatten();
    let mut found: BTreeMap<(u32, Id), Vec<MpiCall>> = BTreeMap::new();
    for (index, event) in (0u32..).zip(&timeline.events) {
        if !event.is_slice() || event.dropped {
            continue;
        }
        let Some(function) = function(event.name) else {
            continue;
        };
        // A sample is called what its thread was in.
        if timeline.name(event.cat) == "sample" {
            continue;
        }
        let key = (timeline.job(event), timeline.pid(event));
        found.entry(key).or_default().push(MpiCall {
            function,
            span: CallSpan {
                begin: event.start,
                end: event.end(),
                track: event.track,
                name: event.name,
            },
            event: index,
            is_ended: timeline.arg(event, "end").is_none(),
        });
    }
    let ranks = given_ranks(timeline);
    let lossy = lossy_jobs(timeline);
    let processes = found.into_iter().map(|((job, pid), mut calls)| {
        calls.sort_by_key(|call| (call.span.begin, call.event));
        let has = |wanted| calls.iter().any(|call| call.function == wanted);
        let given = timeline.jobs.get(job as usize).and_then(|job| job.rank);
        MpiProcess {
            job,
            rank: ranks.get(&(job, pid)).copied().or(given),
            library: library(timeline, &calls),
            has_begin: has(MpiFunction::Init),
            has_losses: lossy.contains(&job),
            calls,
        }
    });
    processes.collect()
}

/// The library, by what the probe table calls it.
fn library(timeline: &Timeline, calls: &[MpiCall]) -> MpiLibrary {
    let first = calls
        .first()
        .and_then(|call| timeline.events.get(call.event as usize));
    let api = first.and_then(|event| timeline.arg(event, "api"));
    match api {
        Some("\"MPI\"") => MpiLibrary::OpenMpi,
        Some("\"MPICH\"") => MpiLibrary::Mpich,
        _ => MpiLibrary::Unknown,
    }
}

/// Ranks by file and process: of aiprof's labels (what the launcher put into the
/// environment), and of unitrace's names of processes (`RANK 3 HOST<node>`).
fn given_ranks(timeline: &Timeline) -> FxHashMap<(u32, Id), u32> {
    let (labels, name) = (
        timeline.names.find("process_labels"),
        timeline.names.find("process_name"),
    );
    let mut ranks = FxHashMap::default();
    for event in &timeline.events {
        let rank = match Some(event.name) {
            found if found == labels => label(timeline, event),
            found if found == name => named(timeline, event),
            _ => None,
        };
        if let Some(rank) = rank {
            ranks.insert((timeline.job(event), timeline.pid(event)), rank);
        }
    }
    ranks
}

fn label(timeline: &Timeline, event: &Event) -> Option<u32> {
    let values = timeline.arg(event, "values")?;
    let values = values.strip_prefix('{')?.strip_suffix('}')?;
    member(values, "rank")?.trim_matches('"').parse().ok()
}

fn named(timeline: &Timeline, event: &Event) -> Option<u32> {
    let name = timeline.arg(event, "name")?.trim_matches('"');
    let (rank, host) = name.strip_prefix("RANK ")?.split_once(' ')?;
    // The names of its devices' processes go on in another way.
    host.starts_with("HOST").then(|| rank.parse().ok())?
}

/// Files in which calls are missing.
fn lossy_jobs(timeline: &Timeline) -> Vec<u32> {
    const MISSING: [LossKind; 5] = [
        LossKind::CallRingDrops,
        LossKind::CallsRefused,
        LossKind::CallsUnknown,
        LossKind::CallsPaused,
        LossKind::ProgramsMissed,
    ];
    let marks = MISSING.map(|kind| timeline.names.find(&format!("lost: {}", kind.label())));
    let is_mark = |event: &&Event| marks.contains(&Some(event.name));
    let events = timeline.events.iter().filter(is_mark);
    events.map(|event| timeline.job(event)).collect()
}

/// The arguments of a call.
#[derive(Clone, Copy)]
pub(super) struct MpiArgs<'t>(&'t Timeline, Option<&'t Event>);

impl<'t> MpiArgs<'t> {
    pub(super) fn new(timeline: &'t Timeline, call: &MpiCall) -> Self {
        Self(timeline, timeline.events.get(call.event as usize))
    }

    fn text(self, key: &str) -> Option<&'t str> {
        Some(self.0.arg(self.1?, key)?.trim_matches('"'))
    }

    /// A decimal number.
    pub(super) fn number(self, key: &str) -> Option<i64> {
        self.text(key)?.parse().ok()
    }

    /// A handle.
    pub(super) fn handle(self, key: &str) -> Option<u64> {
        hex(self.text(key)?)
    }

    /// An array of handles.
    pub(super) fn handles(self, key: &str) -> Vec<u64> {
        let text = self.text(key).unwrap_or_default();
        let text = text.trim_matches(['[', ']']);
        let each = text.split(',').map(|one| one.trim().trim_matches('"'));
        each.filter_map(hex).collect()
    }
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}
