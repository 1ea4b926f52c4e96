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
pub(crate) struct Level {
    /// Samples per second and CPU.
    pub(crate) frequency_hz: u32,
    /// Waits are recorded.
    pub(crate) waits: bool,
    /// Launches are recorded.
    pub(crate) launches: bool,
}

impl Level {
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

/// Keeps a budget.
#[derive(Debug)]
pub(crate) struct Governor {
    asked: Level,
    now: Level,
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
    /// What is spent now, CPUs.
    recent: f64,
    /// What was spent lately, CPUs.
    lately: f64,
    /// The part of it in eBPF programs that sample.
    lately_samples: f64,
    /// What the end of a window took and is not counted yet, seconds; and how much of it is
    /// counted in a second.
    owed: (f64, f64),
    /// What sending took and is not counted yet, seconds.
    owed_sent: f64,
    changes: u64,
}

impl Governor {
    /// One that begins with all that is asked for. `share`: of the time of all `cpus`.
    pub(crate) fn new(asked: Level, share: f64, cpus: u32) -> Self {
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
            recent: 0.0,
            lately: 0.0,
            lately_samples: 0.0,
            owed: (0.0, 0.0),
            owed_sent: 0.0,
            changes: 0,
        }
    }

    /// What is recorded now.
    pub(crate) fn level(&self) -> Level {
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
        is_least && self.left <= 0.0 && self.since >= SETTLE && self.recent > self.cpus
    }

    /// How often it was changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Something else is asked for, or may be spent: from now on, and what was turned down
    /// is forgotten.
    pub(crate) fn ask(&mut self, asked: Level, share: f64, cpus: u32) {
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
    pub(crate) fn spend(&mut self, spent: &Spent) -> Option<Level> {
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
        let toward =
            |rate: f64, seconds: f64| rate + (all / time - rate) * (time / seconds).min(1.0);
        self.recent = toward(self.recent, RECENT);
        self.lately = toward(self.lately, LATELY);
        // What programs take besides goes with it in part only: it is tried, and taken back
        // if that is too much.
        let samples = spent.samples.as_secs_f64() / time;
        self.lately_samples += (samples - self.lately_samples) * (time / LATELY).min(1.0);
        let before = self.now;
        if self.left <= 0.0 && self.since >= SETTLE && self.recent > self.cpus {
            self.turn_down(spent);
        } else {
            let foreseen = self.lately + self.lately_samples * (self.growth() - 1.0);
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
            let wanted = asked * ROOM * self.cpus / self.recent;
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
        self.recent = self.cpus * ROOM;
        self.lately = self.cpus * ROOM;
        // Nothing is saved up: where it is still too much, that shows at once.
        self.left = self.left.max(0.0);
        self.owed = (0.0, 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: Level = Level {
        frequency_hz: 19,
        waits: true,
        launches: true,
    };
    const LOOK: Duration = Duration::from_secs(2);

    /// A machine whose agent spends this, as CPUs: per Hz, for waits, for launches, and always.
    #[derive(Clone, Copy)]
    struct Machine {
        per_hz: f64,
        waits: f64,
        launches: f64,
        fixed: f64,
    }

    const NOTHING: Machine = Machine {
        per_hz: 0.0,
        waits: 0.0,
        launches: 0.0,
        fixed: 0.0,
    };

    impl Machine {
        fn spends(self, level: Level) -> f64 {
            let waits = if level.waits { self.waits } else { 0.0 };
            let launches = if level.launches { self.launches } else { 0.0 };
            self.per_hz * f64::from(level.frequency_hz) + waits + launches + self.fixed
        }

        fn spent(self, level: Level) -> Spent {
            let seconds = |share: f64| Duration::from_secs_f64(share * LOOK.as_secs_f64());
            let samples = self.per_hz * f64::from(level.frequency_hz);
            Spent {
                in_time: LOOK,
                own: seconds(samples / 2.0 + self.fixed),
                sent: Duration::ZERO,
                samples: seconds(samples / 2.0),
                waits: seconds(if level.waits { self.waits } else { 0.0 }),
                launches: seconds(if level.launches { self.launches } else { 0.0 }),
            }
        }

        /// Lets the time pass; gives the levels, each with when it began.
        fn run(self, governor: &mut Governor, seconds: u64) -> Vec<(u64, Level)> {
            let looks = seconds / LOOK.as_secs();
            (0..looks)
                .filter_map(|look| {
                    let changed = governor.spend(&self.spent(governor.level()))?;
                    Some((look * LOOK.as_secs(), changed))
                })
                .collect()
        }
    }

    /// 0.1 % of two CPUs.
    fn governor() -> Governor {
        Governor::new(ASKED, 0.001, 2)
    }

    #[test]
    fn what_is_within_the_budget_is_left_alone() {
        let machine = Machine {
            per_hz: 0.00006,
            waits: 0.0004,
            fixed: 0.0002,
            ..NOTHING
        };
        assert!(machine.spends(ASKED) < 0.002);
        assert_eq!(machine.run(&mut governor(), 10_000), []);
    }

    #[test]
    fn what_a_change_costs_is_no_reason_for_the_next() {
        let mut governor = governor();
        let machine = Machine {
            per_hz: 0.0006,
            ..NOTHING
        };
        let (mut changes, mut spent) = (0, 0.0);
        for look in 0..90 {
            let now = machine.spent(governor.level());
            if look > 10 {
                spent += now.all().as_secs_f64();
            }
            if governor.spend(&now).is_some() {
                changes += 1;
                // The window that ends here takes as much as the budget of 15 s.
                let end = Spent {
                    in_time: Duration::from_millis(30),
                    own: Duration::from_millis(30),
                    ..Spent::default()
                };
                governor.spend_at_end(&end, Duration::from_secs(10));
                spent += 0.03;
            }
        }
        assert_eq!((changes, governor.level().frequency_hz), (1, 2));
        assert!(spent <= 0.002 * 180.0, "{spent} s");
    }

    #[test]
    fn tenfold_is_brought_back_within_ten_seconds() {
        let mut governor = governor();
        let quiet = Machine {
            per_hz: 0.00006,
            waits: 0.0004,
            fixed: 0.0002,
            ..NOTHING
        };
        quiet.run(&mut governor, 120);
        for busy in [
            Machine {
                waits: 0.02,
                ..quiet
            },
            Machine {
                per_hz: 0.0010,
                ..quiet
            },
        ] {
            let mut governor = self::governor();
            quiet.run(&mut governor, 120);
            let changes = busy.run(&mut governor, 60);
            let under = changes
                .iter()
                .find(|(_, level)| busy.spends(*level) <= 0.002)
                .unwrap_or_else(|| panic!("{changes:?}"));
            assert!(under.0 <= 10, "{changes:?}");
        }
    }

    #[test]
    fn what_costs_the_most_goes_first() {
        let waits = Machine {
            per_hz: 0.00001,
            waits: 0.02,
            fixed: 0.0,
            ..NOTHING
        };
        let changes = waits.run(&mut governor(), 30);
        assert_eq!(changes.len(), 1, "{changes:?}");
        assert_eq!(
            changes[0].1,
            Level {
                waits: false,
                ..ASKED
            }
        );
        let samples = Machine {
            per_hz: 0.0005,
            waits: 0.0001,
            fixed: 0.0,
            ..NOTHING
        };
        let changes = samples.run(&mut governor(), 60);
        assert!(changes.last().unwrap().1.waits, "{changes:?}");
        assert_eq!(changes.last().unwrap().1.frequency_hz, 2, "{changes:?}");
    }

    /// Meeting what runs costs a fifth of a second, and that is no reason to record less.
    #[test]
    fn the_first_sight_of_what_runs_is_no_reason() {
        let mut governor = governor();
        let quiet = Machine {
            per_hz: 0.00006,
            fixed: 0.0003,
            ..NOTHING
        };
        let first = Machine {
            fixed: 0.02,
            ..quiet
        };
        assert_eq!(first.run(&mut governor, 10), []);
        assert_eq!(quiet.run(&mut governor, 600), []);
        // Once only.
        assert_ne!(first.run(&mut governor, 20), []);
    }

    /// What costs nothing is not turned down, for it would have to be turned up again.
    #[test]
    fn launches_that_nobody_makes_stay() {
        let hopeless = Machine {
            per_hz: 0.1,
            waits: 0.1,
            ..NOTHING
        };
        let mut governor = governor();
        hopeless.run(&mut governor, 600);
        let level = governor.level();
        assert!(
            level.launches && !level.waits && level.frequency_hz == 1,
            "{level:?}"
        );
    }

    #[test]
    fn launches_that_cost_the_most_go_first() {
        let calls = Machine {
            per_hz: 0.00001,
            waits: 0.0005,
            launches: 0.02,
            ..NOTHING
        };
        let changes = calls.run(&mut governor(), 60);
        assert_eq!(changes.len(), 1, "{changes:?}");
        let expected = Level {
            launches: false,
            ..ASKED
        };
        assert_eq!(changes[0].1, expected);
    }

    #[test]
    fn all_of_it_comes_back_when_the_load_goes() {
        let mut governor = governor();
        let busy = Machine {
            per_hz: 0.002,
            waits: 0.02,
            fixed: 0.0,
            ..NOTHING
        };
        busy.run(&mut governor, 120);
        assert!(governor.step() >= 4);
        let quiet = Machine {
            per_hz: 0.00004,
            waits: 0.0001,
            fixed: 0.0002,
            ..NOTHING
        };
        quiet.run(&mut governor, 3600);
        assert_eq!(governor.level(), ASKED);
        assert_eq!(governor.step(), 0);
    }

    /// 19 Hz for 1.41 ms/s of 2.0, some of it whatever the frequency is.
    #[test]
    fn what_was_within_the_budget_before_a_burst_is_so_after_it() {
        for fixed in [0.0, 0.0005, 0.001] {
            let quiet = Machine {
                per_hz: (0.00141 - fixed) / 19.0,
                fixed,
                ..NOTHING
            };
            let burst = Machine {
                fixed: 0.05,
                ..quiet
            };
            let mut governor = governor();
            assert_eq!(quiet.run(&mut governor, 600), []);
            burst.run(&mut governor, 60);
            assert!(governor.level().frequency_hz < 19);
            quiet.run(&mut governor, 2 * 3600);
            assert_eq!(governor.level(), ASKED, "{fixed}");
        }
    }

    #[test]
    fn a_notch_that_fails_is_tried_ever_more_rarely() {
        let mut governor = governor();
        // Without waits it is cheap, with them it is not.
        let machine = Machine {
            per_hz: 0.00001,
            waits: 0.02,
            fixed: 0.0002,
            ..NOTHING
        };
        let changes = machine.run(&mut governor, 24 * 3600);
        assert!((10..70).contains(&changes.len()), "{}", changes.len());
        let spent: f64 = {
            let mut level = ASKED;
            let mut at = 0;
            let mut sum = 0.0;
            for (when, next) in &changes {
                sum += machine.spends(level) * (when - at) as f64;
                (at, level) = (*when, *next);
            }
            sum + machine.spends(level) * (24 * 3600 - at) as f64
        };
        assert!(spent / (24.0 * 3600.0) < 0.002, "{spent}");
    }

    #[test]
    fn the_work_at_the_end_of_a_window_is_no_reason() {
        let mut governor = governor();
        let spent = |own: f64, seconds: f64| Spent {
            in_time: Duration::from_secs_f64(seconds),
            own: Duration::from_secs_f64(own),
            samples: Duration::from_secs_f64(0.0002),
            ..Spent::default()
        };
        for look in 0..10_000 {
            assert_eq!(governor.spend(&spent(0.0015, 2.0)), None, "{look}");
            if look % 30 == 29 {
                // Half of what a minute may cost, at once.
                governor.spend_at_end(&spent(0.06, 0.1), Duration::from_secs(60));
            }
        }
        // It counts all the same.
        let mut changes = 0;
        for look in 0..1000 {
            changes += u32::from(governor.spend(&spent(0.0015, 2.0)).is_some());
            if look % 30 == 29 {
                governor.spend_at_end(&spent(0.3, 0.5), Duration::from_secs(60));
            }
        }
        assert!(changes > 0);
    }

    /// Each hour a lake's output has a quarter of a second of work at once, and after a day
    /// without its store a day's.
    #[test]
    fn bursts_of_sending_are_no_reason_and_count_all_the_same() {
        let mut governor = governor();
        let machine = Machine {
            per_hz: 0.00006,
            fixed: 0.0002,
            ..NOTHING
        };
        let with = |sent: f64| Spent {
            sent: Duration::from_secs_f64(sent),
            ..machine.spent(ASKED)
        };
        for look in 0..86_400 {
            let sent = if look % 1800 == 0 { 0.25 } else { 0.0 };
            assert_eq!(governor.spend(&with(sent)), None, "{look}");
        }
        // More than the budget, always.
        let mut changes = 0;
        for _ in 0..3600 {
            changes += u32::from(governor.spend(&with(0.006)).is_some());
        }
        assert!(changes > 0);
    }

    /// Whoever floods what is sent and served with requests takes half of the budget at most.
    #[test]
    fn what_others_make_sending_cost_ends_no_recording() {
        let mut governor = governor();
        let machine = Machine {
            per_hz: 0.00006,
            fixed: 0.0002,
            ..NOTHING
        };
        for look in 0..3600 {
            let spent = Spent {
                sent: Duration::from_secs(1),
                ..machine.spent(governor.now)
            };
            governor.spend(&spent);
            assert!(governor.now.frequency_hz >= 5, "{look}: {:?}", governor.now);
        }
    }

    #[test]
    fn least_is_least() {
        let mut governor = governor();
        let hopeless = Machine {
            per_hz: 0.1,
            waits: 0.1,
            launches: 0.1,
            fixed: 1.0,
        };
        hopeless.run(&mut governor, 600);
        assert_eq!(
            governor.level(),
            Level {
                frequency_hz: 1,
                waits: false,
                launches: false
            }
        );
        // Asked for one that is below the notches.
        let mut governor = Governor::new(
            Level {
                frequency_hz: 1,
                waits: false,
                launches: false,
            },
            0.001,
            2,
        );
        assert_eq!(hopeless.run(&mut governor, 600), []);
    }
}
