//! Launches that are taken together.

use super::{
    PathId,
    clock::{Tick, TickClock},
    executions::Begun,
};

/// Launches handed over within this time are taken together.
const TOGETHER_NS: u64 = 1_000_000;

/// What timestamps show about a batch's launches.
#[derive(Clone, Copy, Debug, Default)]
struct BatchTimes {
    /// How many launches they are of.
    launches: u64,
    /// How long these ran together, nanoseconds.
    ran_ns: u64,
    /// All ran between these times.
    from_ns: u64,
    to_ns: u64,
    /// The earliest begin and the latest end, to be dated again.
    ticks: Option<(Tick, Tick)>,
}

/// When a launch ran, by its timestamps: for so long exactly, since about then.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimedLaunch {
    pub(super) from_ns: u64,
    pub(super) ran_ns: u64,
    /// It ran between these times.
    between: (u64, u64),
    /// Its begin, to be dated again.
    tick: Option<Tick>,
}

impl TimedLaunch {
    /// Dates it with what is known of the clock by now.
    fn date(&mut self, clock: &TickClock) {
        let between = self.tick.and_then(|tick| clock.between(tick, self.from_ns));
        let Some((earliest, latest)) = between else {
            return;
        };
        self.from_ns = u64::midpoint(earliest, latest);
        let to_ns = latest.saturating_add(clock.longest_ns(self.ran_ns));
        // Both are true.
        let both = (self.between.0.max(earliest), self.between.1.min(to_ns));
        if both.0 <= both.1 {
            self.between = both;
        }
    }
}

/// A launch, or several: between which times they can have been running, and for how
/// long, if that is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchRun {
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    pub(super) ran_ns: Option<u64>,
}

/// Launches of a kernel from a path that were handed over within a millisecond, or
/// for longer where room was short.
#[derive(Clone, Debug)]
pub(super) struct LaunchBatch {
    pub(super) of: BatchKey,
    /// The call that handed all of them over; 0: not known.
    pub(super) submit: u64,
    /// The first was handed over.
    pub(super) from_ns: u64,
    /// The last was handed over.
    pub(super) last_ns: u64,
    /// All had ended; `u64::MAX`: not known to.
    pub(super) to_ns: u64,
    pub(super) launches: u64,
    /// Work of all; 0: that of one is not known.
    pub(super) work: u64,
    /// The part of the work that samples were not given for yet, 0 to 1.
    pub(super) left: f64,
    /// Launches that are not known to have ended.
    pub(super) open: u64,
    ended_ns: u64,
    /// How often all launches were found to have ended.
    pub(super) drained: u32,
    timed: BatchTimes,
    /// Times of single timed launches, while there is room.
    spans: Vec<TimedLaunch>,
}

/// What launches of a batch have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BatchKey {
    pub(super) pid: u32,
    pub(super) kernel: u64,
    pub(super) path: PathId,
    queue: u64,
    pub(super) device: u64,
}

impl LaunchBatch {
    pub(super) fn new(begun: &Begun) -> Self {
        Self {
            of: BatchKey {
                pid: begun.pid,
                kernel: begun.kernel,
                path: begun.path,
                queue: begun.queue,
                device: begun.device,
            },
            submit: begun.submit,
            from_ns: begun.submitted_ns,
            last_ns: begun.submitted_ns,
            to_ns: u64::MAX,
            launches: 0,
            work: 0,
            left: 1.0,
            open: 0,
            ended_ns: 0,
            drained: 0,
            timed: BatchTimes::default(),
            spans: Vec::new(),
        }
    }

    /// Whether a launch can be added. A fence is for one submission only.
    pub(super) fn takes(&self, begun: &Begun) -> bool {
        let near = begun.submitted_ns.abs_diff(self.from_ns) < TOGETHER_NS;
        let same = begun.queue == self.of.queue && begun.device == self.of.device;
        near && same && begun.submit == self.submit
    }

    pub(super) fn add(&mut self, begun: &Begun) {
        let is_known = begun.work > 0 && (self.launches == 0 || self.work > 0);
        self.work = match is_known {
            true => self.work.saturating_add(begun.work),
            false => 0,
        };
        self.launches += 1;
        self.open += 1;
        self.to_ns = u64::MAX;
        self.from_ns = self.from_ns.min(begun.submitted_ns);
        self.last_ns = self.last_ns.max(begun.submitted_ns);
    }

    /// Takes in the launches of another batch with the same [`BatchKey`]: what
    /// is known of each stays true of all.
    pub(super) fn merge(&mut self, other: &Self) {
        let (own, others) = (self.launches as f64, other.launches as f64);
        self.left = (self.left * own + other.left * others) / (own + others).max(1.0);
        self.work = match self.work > 0 && other.work > 0 {
            true => self.work.saturating_add(other.work),
            false => 0,
        };
        if self.submit != other.submit {
            self.submit = 0;
        }
        self.from_ns = self.from_ns.min(other.from_ns);
        self.last_ns = self.last_ns.max(other.last_ns);
        self.to_ns = self.to_ns.max(other.to_ns);
        self.launches = self.launches.saturating_add(other.launches);
        self.open = self.open.saturating_add(other.open);
        self.ended_ns = self.ended_ns.max(other.ended_ns);
        // Events of the batch with the lower count end no launch any more: theirs may have ended
        // before.
        self.drained = self.drained.max(other.drained);
        self.spans.extend(&other.spans);
        let (timed, all) = (self.timed, other.timed);
        self.timed = match (timed.launches, all.launches) {
            (_, 0) => timed,
            (0, _) => all,
            _ => BatchTimes {
                launches: timed.launches.saturating_add(all.launches),
                ran_ns: timed.ran_ns.saturating_add(all.ran_ns),
                from_ns: timed.from_ns.min(all.from_ns),
                to_ns: timed.to_ns.max(all.to_ns),
                ticks: join_ticks(timed.ticks, all.ticks),
            },
        };
    }

    /// `count` of its launches have ended by then.
    pub(super) fn end(&mut self, count: u64, ended_ns: u64) {
        self.open = self.open.saturating_sub(count);
        self.ended_ns = self.ended_ns.max(ended_ns);
        if self.open == 0 {
            self.to_ns = self.to_ns.min(self.ended_ns.max(self.from_ns));
        }
    }

    /// All of its launches have ended by then.
    pub(super) fn end_all(&mut self, ended_ns: u64) {
        if self.open > 0 {
            self.drained = self.drained.wrapping_add(1);
            self.end(self.open, ended_ns);
        }
    }

    /// One more of its launches ran so long between these times. `keeps`: there is room
    /// to remember it by itself.
    pub(super) fn time(
        &mut self,
        (from_ns, to_ns): (u64, u64),
        ran_ns: u64,
        ticks: Option<(Tick, Tick)>,
        keeps: bool,
    ) {
        if keeps {
            let spare_ns = to_ns.saturating_sub(from_ns).saturating_sub(ran_ns);
            self.spans.push(TimedLaunch {
                from_ns: from_ns.saturating_add(spare_ns / 2),
                ran_ns,
                between: (from_ns, to_ns),
                tick: ticks.map(|ticks| ticks.0),
            });
        }
        let known = self.timed;
        let is_first = known.launches == 0;
        self.timed = BatchTimes {
            launches: known.launches + 1,
            ran_ns: known.ran_ns.saturating_add(ran_ns),
            from_ns: if is_first {
                from_ns
            } else {
                known.from_ns.min(from_ns)
            },
            to_ns: known.to_ns.max(to_ns),
            ticks: if is_first {
                ticks
            } else {
                join_ticks(known.ticks, ticks)
            },
        };
    }

    /// Dates its timestamps with what is known of the clock by now. Both the old
    /// bounds and the new ones are true.
    pub(super) fn date(&mut self, clock: &TickClock) {
        self.spans.iter_mut().for_each(|span| span.date(clock));
        let timed = &mut self.timed;
        let Some((first, last)) = timed.ticks else {
            return;
        };
        let first = clock.between(first, timed.from_ns);
        let last = clock.between(last, timed.to_ns);
        if let Some(((from_ns, _), (_, to_ns))) = first.zip(last) {
            let (from_ns, to_ns) = (from_ns.max(timed.from_ns), to_ns.min(timed.to_ns));
            if from_ns <= to_ns {
                (timed.from_ns, timed.to_ns) = (from_ns, to_ns);
            }
        }
    }

    /// Whether there are timestamps to be dated again.
    pub(super) fn has_ticks(&self) -> bool {
        self.timed.ticks.is_some()
    }

    /// Its timed launches one by one.
    pub(super) fn spans(&self) -> &[TimedLaunch] {
        &self.spans
    }

    /// Whether each of its launches is timed and remembered.
    pub(super) fn is_spanned(&self) -> bool {
        self.launches > 0 && self.spans.len() as u64 == self.launches
    }

    /// When all of its launches together can have been running.
    pub(super) fn whole(&self) -> BatchRun {
        let (from_ns, to_ns) = self.bounds();
        BatchRun {
            from_ns,
            to_ns,
            ran_ns: self.ran_ns(),
        }
    }

    /// When its launches can have been running, and for how long they were if that is
    /// known: one by one where they are timed, else all of them together.
    pub(super) fn runs(&self) -> impl Iterator<Item = BatchRun> {
        let (whole, spans) = (self.whole(), self.spans.iter());
        let spans = spans.take(if self.is_spanned() { usize::MAX } else { 0 });
        let one = move |span: &TimedLaunch| {
            let from_ns = span.between.0.max(whole.from_ns);
            BatchRun {
                from_ns,
                to_ns: span.between.1.min(whole.to_ns).max(from_ns),
                ran_ns: Some(span.ran_ns),
            }
        };
        spans.map(one).chain((!self.is_spanned()).then_some(whole))
    }

    /// Nanoseconds that all ran together, if all are timed.
    pub(super) fn ran_ns(&self) -> Option<u64> {
        let is_known = self.launches > 0 && self.timed.launches >= self.launches;
        is_known.then_some(self.timed.ran_ns)
    }

    /// Between which times it can have been running.
    pub(super) fn bounds(&self) -> (u64, u64) {
        if self.ran_ns().is_none() {
            return (self.from_ns, self.to_ns);
        }
        let from = self.timed.from_ns.max(self.from_ns);
        (from, self.timed.to_ns.min(self.to_ns).max(from))
    }
}

/// The earliest begin and the latest end of both, if the clock was not set between.
fn join_ticks(a: Option<(Tick, Tick)>, b: Option<(Tick, Tick)>) -> Option<(Tick, Tick)> {
    let (a, b) = a.zip(b)?;
    let pick = |a: Tick, b: Tick, at: i128| (a.sets == b.sets).then_some(Tick { at, ..a });
    let first = pick(a.0, b.0, a.0.at.min(b.0.at))?;
    Some((first, pick(a.1, b.1, a.1.at.max(b.1.at))?))
}
