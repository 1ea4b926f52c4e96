//! The budget: what the agent turns down when it costs too much, and up again; pure.
//!
//! What may be spent flows into a bucket, and what is spent flows out. The bucket holds what the
//! budget gives in [`DEPTH`], so that a burst of new processes does not reduce the recording. The
//! work at the end of a window counts as if it were spread evenly over the next. Sending comes in
//! bursts and has its own part of the budget: it counts as if it were spread evenly over half an
//! hour. When the bucket is empty, the most expensive part of the recording is turned down, by as
//! many notches as needed if the cost is proportional to the frequency. When there was room for a
//! while, the notch that was turned down last is turned up again. A notch that soon had to be taken
//! back is tried ever more rarely.
//!
//! The parts and their notches, from all to least:
//!
//! 1. waits: recorded, or not;
//! 2. launches: recorded, or not;
//! 3. samples: the frequency that was asked for, then the next lower of 499, 199, 99, 49,
//!    19, 10, 5, 2, 1 Hz.
//!
//! What is recorded never depends on what a program does, only on the time: each sample has
//! the weight of its frequency, and so sums are those of the machine.

use std::time::Duration;

/// How long the budget may be saved up.
const DEPTH: Duration = Duration::from_secs(40);
/// CPU time that may be spent besides, once, on meeting what runs.
const FIRST_SIGHT: Duration = Duration::from_millis(150);
/// How long a recording meets what runs.
const MEETS: Duration = Duration::from_secs(60);
/// Least part of all that is spent for turning it down to be of use.
const OF_USE: f64 = 0.05;
/// How long a change is given to show before the next.
const SETTLE: Duration = Duration::from_secs(3);
/// How long it must be well within the budget before more is recorded.
const CALM: Duration = Duration::from_secs(60);
/// The longest that is waited before a notch that failed is tried again.
const MOST_CALM: Duration = Duration::from_secs(3600);
/// A notch that is taken back so soon has failed.
const FAILED_WITHIN: Duration = Duration::from_secs(180);
/// Most that the cost may become, as a foreseen share of the budget, when more is recorded.
const ROOM: f64 = 0.7;
/// How long what is spent now is averaged, seconds.
const RECENT: f64 = 4.0;
/// The same for whether there is room for more.
const LATELY: f64 = 30.0;
/// How long what sending takes is counted, seconds.
const SENDING: f64 = 1800.0;
/// Frequencies below the one that was asked for, Hz.
const FREQUENCIES: [u32; 9] = [499, 199, 99, 49, 19, 10, 5, 2, 1];

/// What was spent between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spent {
    /// How long it was.
    pub(crate) in_time: Duration,
    /// CPU time of programs, of all together, but for the one that sends.
    pub(crate) own: Duration,
    /// That of the one that sends.
    pub(crate) sent: Duration,
    /// Time in eBPF programs that sample.
    pub(crate) samples: Duration,
    /// Time in those that record waits.
    pub(crate) waits: Duration,
    /// Time in those that record launches, with the way there.
    pub(crate) launches: Duration,
}

impl Spent {
    /// The time in eBPF programs.
    fn bpf(&self) -> Duration {
        self.samples + self.waits + self.launches
    }

    /// All but what sending takes.
    fn all(&self) -> Duration {
        self.own + self.bpf()
    }

    /// A part of it all, by its share of the programs' time.
    fn part(&self, programs: Duration) -> f64 {
        match self.bpf().as_secs_f64() {
            0.0 => 0.0,
            bpf => self.all().as_secs_f64() * programs.as_secs_f64() / bpf,
        }
    }
}

/// What is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordingLevel {
    /// Samples per second and CPU.
    pub(crate) frequency_hz: u32,
    /// Waits are recorded.
    pub(crate) waits: bool,
    /// Launches are recorded.
    pub(crate) launches: bool,
}

impl RecordingLevel {
    /// It in words.
    pub(crate) fn describe(self) -> String {
        let mut text = format!("{} Hz", self.frequency_hz);
        for (is_on, name) in [(self.waits, "waits"), (self.launches, "launches")] {
            if is_on {
                text.push_str(" and ");
                text.push_str(name);
            }
        }
        text
    }
}

/// What was turned down, the last one last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notch {
    Waits,
    Launches,
    /// From this frequency.
    Samples(u32),
}

/// How much is spent, as averages over time.
#[derive(Clone, Copy, Debug, Default)]
struct SpendingRates {
    /// What is spent now, CPUs.
    recent: f64,
    /// What was spent lately, CPUs.
    lately: f64,
    /// The part of it in eBPF programs that sample.
    lately_samples: f64,
}

impl SpendingRates {
    /// Takes in what was spent in this time, seconds: all, and by programs that sample.
    fn add(&mut self, all: f64, samples: f64, time: f64) {
        let toward = |rate: f64, spent: f64, seconds: f64| {
            rate + (spent / time - rate) * (time / seconds).min(1.0)
        };
        self.recent = toward(self.recent, all, RECENT);
        self.lately = toward(self.lately, all, LATELY);
        self.lately_samples = toward(self.lately_samples, samples, LATELY);
    }
}

/// Keeps a budget.
#[derive(Debug)]
pub(crate) struct Governor {
    asked: RecordingLevel,
    now: RecordingLevel,
    /// Share of all CPUs' time, times their number.
    cpus: f64,
    /// What is left to be spent, seconds.
    left: f64,
    /// What may be spent besides on meeting what runs, seconds.
    first_sight: f64,
    /// How long that may go on.
    meets: Duration,
    turned_down: Vec<Notch>,
    /// Time since the last change.
    since: Duration,
    /// How long it has been well within the budget.
    calm: Duration,
    /// How long that must be before more is recorded.
    patience: Duration,
    /// The last change was for more.
    has_turned_up: bool,
    rates: SpendingRates,
    /// What the end of a window took and is not counted yet, seconds; and how much of it is
    /// counted in a second.
    owed: (f64, f64),
    /// What sending took and is not counted yet, seconds.
    owed_sent: f64,
    changes: u64,
}

impl Governor {
    /// One that begins with all that is asked for. `share`: of the time of all `cpus`.
    pub(crate) fn new(asked: RecordingLevel, share: f64, cpus: u32) -> Self {
        let cpus = share * f64::from(cpus);
        Self {
            asked,
            now: asked,
            cpus,
            left: cpus * DEPTH.as_secs_f64(),
            first_sight: FIRST_SIGHT.as_secs_f64(),
            meets: MEETS,
            turned_down: Vec::new(),
            since: Duration::ZERO,
            calm: Duration::ZERO,
            patience: CALM,
            has_turned_up: false,
            rates: SpendingRates::default(),
            owed: (0.0, 0.0),
            owed_sent: 0.0,
            changes: 0,
        }
    }

    /// What is recorded now.
    pub(crate) fn level(&self) -> RecordingLevel {
        self.now
    }

    /// How many notches it is turned down.
    pub(crate) fn step(&self) -> u32 {
        u32::try_from(self.turned_down.len()).unwrap_or(u32::MAX)
    }

    /// Whether more than the budget is spent though all is turned down.
    pub(crate) fn is_at_its_end(&self) -> bool {
        let is_lowest = FREQUENCIES
            .last()
            .is_some_and(|hz| self.now.frequency_hz <= *hz);
        let is_least = is_lowest && !self.now.waits && !self.now.launches;
        is_least && self.left <= 0.0 && self.since >= SETTLE && self.rates.recent > self.cpus
    }

    /// How often it was changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Something else is asked for, or may be spent: from now on, and what was turned down
    /// is forgotten.
    pub(crate) fn ask(&mut self, asked: RecordingLevel, share: f64, cpus: u32) {
        *self = Self {
            changes: self.changes,
            owed_sent: self.owed_sent,
            ..Self::new(asked, share, cpus)
        };
    }

    /// A recording has begun that knows nothing of what runs.
    pub(crate) fn meets_what_runs(&mut self) {
        self.first_sight = FIRST_SIGHT.as_secs_f64();
        self.meets = MEETS;
    }

    /// Launches cannot be recorded any more.
    pub(crate) fn give_up_launches(&mut self) {
        self.asked.launches = false;
        self.now.launches = false;
    }

    /// Takes in what was spent. Returns what to record from now on, if that changes.
    pub(crate) fn spend(&mut self, spent: &Spent) -> Option<RecordingLevel> {
        let time = spent.in_time.as_secs_f64();
        if time <= 0.0 {
            return None;
        }
        let (owed, each_second) = self.owed;
        let paid = owed.min(each_second * time);
        self.owed.0 -= paid;
        self.owe_sent(spent);
        let sent = self.owed_sent * (time / SENDING).min(1.0);
        self.owed_sent -= sent;
        let mut all = spent.all().as_secs_f64() + paid + sent;
        // What is more than the budget gives is of the first sight, as long as that lasts.
        if !self.meets.is_zero() {
            let more = (all - self.cpus * time).clamp(0.0, self.first_sight);
            self.first_sight -= more;
            all -= more;
            self.meets = self.meets.saturating_sub(spent.in_time);
        }
        let depth = self.depth();
        self.left = (self.left + self.cpus * time - all).clamp(-depth, depth);
        self.since = self.since.saturating_add(spent.in_time);
        self.rates.add(all, spent.samples.as_secs_f64(), time);
        let before = self.now;
        if self.left <= 0.0 && self.since >= SETTLE && self.rates.recent > self.cpus {
            self.turn_down(spent);
        } else {
            // What programs take besides goes with it in part only: it is tried, and taken back
            // if that is too much.
            let rates = &self.rates;
            let foreseen = rates.lately + rates.lately_samples * (self.growth() - 1.0);
            let has_room = self.left >= depth / 4.0 && foreseen <= ROOM * self.cpus;
            self.calm = match has_room {
                true => self.calm.saturating_add(spent.in_time),
                false => Duration::ZERO,
            };
            if self.calm >= self.patience {
                self.turn_up();
            }
        }
        (self.now != before).then_some(self.now)
    }

    /// Takes in what the end of a window took, to be counted evenly in one of this length. If a
    /// change ended the window, the change caused that cost. It must be made good, but does not
    /// reduce the recording further, since the next change would cost as much.
    pub(crate) fn spend_at_end(&mut self, spent: &Spent, window: Duration) {
        self.owe_sent(spent);
        if self.since.is_zero() {
            self.left += self.cpus * spent.in_time.as_secs_f64() - spent.all().as_secs_f64();
            return;
        }
        self.owed.0 += spent.all().as_secs_f64();
        self.owed.1 = self.owed.0 / window.as_secs_f64().max(1.0);
        self.left += self.cpus * spent.in_time.as_secs_f64();
    }

    /// Counts what sending took, up to half of the budget: others can make it costly, and are
    /// not to end the recording.
    fn owe_sent(&mut self, spent: &Spent) {
        let owed = self.owed_sent + spent.sent.as_secs_f64();
        self.owed_sent = owed.min(self.cpus * SENDING / 2.0);
    }

    fn depth(&self) -> f64 {
        self.cpus * DEPTH.as_secs_f64()
    }

    /// By how much what samples cost grows with the next notch up.
    fn growth(&self) -> f64 {
        match self.turned_down.last() {
            Some(Notch::Samples(higher)) => {
                f64::from(*higher) / f64::from(self.now.frequency_hz.max(1))
            }
            // The cost is not known: it is tried.
            Some(Notch::Waits | Notch::Launches) | None => 1.0,
        }
    }

    fn turn_down(&mut self, spent: &Spent) {
        let before = self.now;
        let (by_waits, by_launches) = (spent.part(spent.waits), spent.part(spent.launches));
        let by_samples = spent.all().as_secs_f64() - by_waits - by_launches;
        let lower = |hz: u32| FREQUENCIES.into_iter().find(|lower| *lower < hz);
        let is_lowest = lower(self.now.frequency_hz).is_none();
        // Where the kernel counts no programs nothing is known of parts.
        let least = match spent.bpf().is_zero() {
            true => 0.0,
            false => OF_USE * spent.all().as_secs_f64(),
        };
        let is_most = |part: f64, other: f64| {
            part >= least && (is_lowest || (part >= by_samples && part >= other))
        };
        if self.now.waits && is_most(by_waits, by_launches) {
            self.now.waits = false;
            self.turned_down.push(Notch::Waits);
        } else if self.now.launches && is_most(by_launches, by_waits) {
            self.now.launches = false;
            self.turned_down.push(Notch::Launches);
        } else {
            let asked = f64::from(self.now.frequency_hz);
            let wanted = asked * ROOM * self.cpus / self.rates.recent;
            while let Some(hz) = lower(self.now.frequency_hz) {
                self.turned_down.push(Notch::Samples(self.now.frequency_hz));
                self.now.frequency_hz = hz;
                if f64::from(hz) <= wanted {
                    break;
                }
            }
        }
        if self.now == before {
            return;
        }
        let has_failed = self.has_turned_up && self.since < FAILED_WITHIN;
        self.patience = match has_failed {
            true => (self.patience * 2).min(MOST_CALM),
            false => CALM,
        };
        self.changed(false);
    }

    fn turn_up(&mut self) {
        match self.turned_down.pop() {
            Some(Notch::Waits) => self.now.waits = self.asked.waits,
            Some(Notch::Launches) => self.now.launches = self.asked.launches,
            Some(Notch::Samples(higher)) => self.now.frequency_hz = higher,
            None => return,
        }
        self.changed(true);
    }

    fn changed(&mut self, has_turned_up: bool) {
        self.changes += 1;
        self.since = Duration::ZERO;
        self.calm = Duration::ZERO;
        self.has_turned_up = has_turned_up;
        // Earlier costs do not predict later ones.
        self.rates.recent = self.cpus * ROOM;
        self.rates.lately = self.cpus * ROOM;
        // Nothing is saved up: where it is still too much, that shows at once.
        self.left = self.left.max(0.0);
        self.owed = (0.0, 0.0);
    }
}

#[cfg(test)]
mod tests;
