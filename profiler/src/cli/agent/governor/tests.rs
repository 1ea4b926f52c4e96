//! Tests of `governor.rs`.

use super::*;

const ASKED: RecordingLevel = RecordingLevel {
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
    fn spends(self, level: RecordingLevel) -> f64 {
        let waits = if level.waits { self.waits } else { 0.0 };
        let launches = if level.launches { self.launches } else { 0.0 };
        self.per_hz * f64::from(level.frequency_hz) + waits + launches + self.fixed
    }

    fn spent(self, level: RecordingLevel) -> Spent {
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
    fn run(self, governor: &mut Governor, seconds: u64) -> Vec<(u64, RecordingLevel)> {
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
        RecordingLevel {
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
    let expected = RecordingLevel {
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
        RecordingLevel {
            frequency_hz: 1,
            waits: false,
            launches: false
        }
    );
    // Asked for one that is below the notches.
    let mut governor = Governor::new(
        RecordingLevel {
            frequency_hz: 1,
            waits: false,
            launches: false,
        },
        0.001,
        2,
    );
    assert_eq!(hopeless.run(&mut governor, 600), []);
}
