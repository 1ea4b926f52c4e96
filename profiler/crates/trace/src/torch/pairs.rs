//! Forward operators and the backward ones that belong to them.
//!
//! Autograd gives each node of its graph a number (`Sequence number`), which is the thread's own.
//! The backward operator has the number and the forward thread (`Fwd thread id`, which counts
//! torch's threads, not the system's). If several operators have a number, the one that begins last
//! made the node.

use super::calls::{CallRole, TorchCall, TorchCalls};
use super::nesting::{Cost, TorchIndex};
use aiprof_model::timeline::{Event, Sym, Timeline};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Prefix of autograd's own span around each backward operator.
pub(crate) const EVALUATE: &str = "autograd::engine::evaluate_function: ";

/// Pairs of a forward and a backward operator.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pairs {
    /// Name of the forward operator.
    pub forward: String,
    /// Name of the backward operator.
    pub backward: String,
    /// How many pairs.
    pub count: u64,
    /// Host and device time of the forward operators, microseconds.
    pub forward_us: (f64, f64),
    /// The same for the backward operators.
    pub backward_us: (f64, f64),
}

/// All of a timeline.
#[derive(Clone, Debug, Default)]
pub struct PairReport {
    /// Pairs by names, in the order in which they occur.
    pub pairs: Vec<Pairs>,
    /// Backward operators whose forward operator is not in the trace.
    pub alone: u64,
}

/// An operator with a number.
#[derive(Clone, Copy)]
pub(super) struct Numbered {
    /// Its index among the calls.
    pub(super) call: usize,
    /// Its file.
    pub(super) file: u32,
    /// Its number.
    pub(super) number: i64,
    /// Number of the forward thread; 0: it is a forward operator.
    forward_thread: u64,
    /// Its thread.
    pub(super) thread: u32,
    /// It is autograd's own span around a backward operator.
    is_own: bool,
}

impl PairReport {
    /// Those of a timeline.
    pub fn new(timeline: &Timeline, index: &TorchIndex) -> Self {
        let TorchIndex { calls, costs, .. } = index;
        let mut report = Self::default();
        let mut places: FxHashMap<(Option<Sym>, Option<Sym>), usize> = FxHashMap::default();
        for (backward, forward) in joined(timeline, calls) {
            let forward =
                forward.and_then(|forward| calls.all.get(forward).zip(costs.get(forward)));
            let backward = calls.all.get(backward).zip(costs.get(backward));
            let (Some((forward, first)), Some((backward, second))) = (forward, backward) else {
                report.alone += 1;
                continue;
            };
            let place = *places
                .entry((forward.name, backward.name))
                .or_insert_with(|| {
                    report.pairs.push(Pairs {
                        forward: name(timeline, forward),
                        backward: name(timeline, backward),
                        ..Pairs::default()
                    });
                    report.pairs.len() - 1
                });
            if let Some(pairs) = report.pairs.get_mut(place) {
                pairs.add(first, second);
            }
        }
        report
    }
}

impl Pairs {
    fn add(&mut self, forward: &Cost, backward: &Cost) {
        self.count += 1;
        self.forward_us.0 += forward.cpu;
        self.forward_us.1 += forward.device;
        self.backward_us.0 += backward.cpu;
        self.backward_us.1 += backward.device;
    }
}

/// Backward operators with their forward ones, if the trace has them, as indexes of calls.
pub(super) fn joined(timeline: &Timeline, calls: &TorchCalls) -> Vec<(usize, Option<usize>)> {
    let partners = Partners::new(timeline, calls);
    let backward = partners.backward.iter().filter(|one| !one.is_own);
    let pairs = backward.map(|one| {
        let forward = partners.forward_of(one);
        (one.call, forward.map(|forward| forward.call))
    });
    pairs.collect()
}

fn name(timeline: &Timeline, call: &TorchCall) -> String {
    call.name.map_or("", |name| timeline.name(name)).to_owned()
}

/// Operators that have numbers, in the order of begin.
fn numbered(timeline: &Timeline, calls: &TorchCalls) -> Vec<Numbered> {
    let operators = calls.all.iter().enumerate();
    let operators = operators.filter(|(_, call)| call.role == CallRole::Operator && !call.is_note);
    let numbered = operators.filter_map(|(index, call)| {
        let event = timeline.events.get(call.event)?;
        let number: i64 = argument(timeline, event, "Sequence number")?.parse().ok()?;
        let thread = argument(timeline, event, "Fwd thread id")?.parse().ok()?;
        let is_own = timeline.name(event.name).starts_with(EVALUATE);
        (number >= 0).then_some(Numbered {
            call: index,
            file: timeline.job(event),
            number,
            forward_thread: thread,
            thread: call.thread,
            is_own,
        })
    });
    numbered.collect()
}

fn argument<'t>(timeline: &'t Timeline, event: &Event, key: &str) -> Option<&'t str> {
    Some(timeline.arg(event, key)?.trim_matches('"'))
}

/// Forward operators by file, number and thread.
type Made = BTreeMap<(u32, i64, u32), Numbered>;

/// Threads with one number that vote for which of torch's threads they are. Each of many backward
/// operators would look at each of many threads; real programs have few threads that train.
const MOST_THREADS: usize = 256;

/// Which forward operators the backward ones of a timeline belong to.
pub(super) struct Partners {
    made: Made,
    threads: FxHashMap<(u32, u64), u32>,
    forward: Vec<Numbered>,
    /// Backward operators, in the order of begin, and autograd's own spans around them.
    pub(super) backward: Vec<Numbered>,
}

impl Partners {
    /// Those of a timeline's calls.
    pub(super) fn new(timeline: &Timeline, calls: &TorchCalls) -> Self {
        let all = numbered(timeline, calls);
        let (forward, backward): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|one| one.forward_thread == 0);
        let mut made = Made::default();
        for one in forward.iter().filter(|one| !one.is_own) {
            // The calls are in the order of begin: the last of a thread stays.
            made.insert((one.file, one.number, one.thread), *one);
        }
        Self {
            threads: threads(&made, &backward),
            made,
            forward,
            backward,
        }
    }

    /// All operators with numbers.
    pub(super) fn all(&self) -> impl Iterator<Item = &Numbered> {
        self.forward.iter().chain(&self.backward)
    }

    /// The thread that a backward operator's forward operator ran on.
    pub(super) fn thread_of(&self, backward: &Numbered) -> Option<u32> {
        let key = (backward.file, backward.forward_thread);
        self.threads.get(&key).copied()
    }

    /// The forward operator that a backward one belongs to.
    pub(super) fn forward_of(&self, backward: &Numbered) -> Option<Numbered> {
        let key = (backward.file, backward.number, self.thread_of(backward)?);
        self.made.get(&key).copied()
    }
}

/// Which thread of the trace each of torch's threads is: that which has most of the
/// numbers.
fn threads(made: &Made, backward: &[Numbered]) -> FxHashMap<(u32, u64), u32> {
    let mut of_threads: FxHashMap<(u32, u64), Vec<i64>> = FxHashMap::default();
    for one in backward {
        let of_thread = of_threads.entry((one.file, one.forward_thread));
        of_thread.or_default().push(one.number);
    }
    let chosen = of_threads.into_iter().filter_map(|(of, numbers)| {
        // One of torch's threads after the other: the votes of all would take too much memory.
        let mut votes: FxHashMap<u32, u64> = FxHashMap::default();
        for number in numbers {
            let voters = made.range((of.0, number, 0)..=(of.0, number, u32::MAX));
            for ((.., thread), _) in voters.rev().take(MOST_THREADS) {
                *votes.entry(*thread).or_default() += 1;
            }
        }
        let most = votes.into_iter();
        let most = most.max_by_key(|(thread, votes)| (*votes, *thread));
        Some((of, most?.0))
    });
    chosen.collect()
}
