//! Schedules with a known truth, and properties of all schedules.

use super::*;
use aiprof_model::profile::{Method, StallReason};
use aiprof_model::wire::{DeviceStream, StallCount, StallWindow};
use std::collections::BTreeMap;

pub(super) const MS: u64 = 1_000_000;
const BASE: u64 = 0x8001_0000_0000;

/// xorshift64*: the same numbers everywhere.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % limit.max(1)
    }
}

pub(super) fn stream(id: u32) -> DeviceStream {
    DeviceStream {
        id,
        name: format!("GT{id}"),
        device: 0,
        card: 0,
        gt: id,
        relative: true,
        cycles_per_sample: 0,
        replayed: None,
    }
}

pub(super) fn join() -> Join {
    let mut join = Join::new(JoinLimits::default());
    for id in 0..2 {
        join.stream(&stream(id));
    }
    join
}

pub(super) fn place(pid: u32, kernel: u64, start: u64) -> Placement {
    Placement {
        pid,
        kernel,
        code: kernel as u32,
        start: BASE + start,
        last: BASE + start + 0xfff,
        base: BASE,
        since_ns: 0,
        until_ns: u64::MAX,
    }
}

pub(super) fn begun(pid: u32, kernel: u64, path: PathId, at: u64) -> Begun {
    Begun {
        pid,
        kernel,
        path,
        submitted_ns: at,
        work: 100,
        queue: 1,
        device: 1,
        event: 0,
        submit: 0,
    }
}

pub(super) fn window(stream: u32, from_ns: u64, to_ns: u64, counts: &[(u64, u32)]) -> StallWindow {
    StallWindow {
        stream,
        from_ns,
        to_ns,
        counts: counts
            .iter()
            .map(|&(address, n)| {
                let mut counts = [0; 10];
                counts[StallReason::Sbid as usize] = n;
                StallCount { address, counts }
            })
            .collect(),
        ..StallWindow::default()
    }
}

/// Samples by (path, pid), and how.
#[derive(Debug, Default)]
pub(super) struct Got {
    pub(super) parts: BTreeMap<(Option<PathId>, Option<u32>), u64>,
    pub(super) certain: BTreeMap<Option<PathId>, u64>,
    pub(super) possible: BTreeMap<Option<PathId>, u64>,
    pub(super) methods: BTreeMap<Method, u64>,
    pub(super) time_ns: f64,
    pub(super) offsets: BTreeMap<u64, u64>,
}

impl ShareSink for Got {
    fn share(&mut self, share: Share) {
        *self.parts.entry((share.path, share.pid)).or_default() += share.parts;
        *self.certain.entry(share.path).or_default() += share.certain;
        *self.possible.entry(share.path).or_default() += share.possible;
        *self.methods.entry(share.method).or_default() += share.parts;
        *self.offsets.entry(share.offset).or_default() += share.parts;
        self.time_ns += share.time_ns;
    }
}

impl Got {
    pub(super) fn of(&self, path: PathId) -> f64 {
        let of = self.parts.iter().filter(|(key, _)| key.0 == Some(path));
        of.map(|(_, parts)| *parts).sum::<u64>() as f64 / PARTS as f64
    }

    pub(super) fn all(&self) -> u64 {
        self.parts.values().sum()
    }
}

#[test]
fn a_sample_goes_to_the_only_path_that_can_have_been_running() {
    let mut join = join();
    join.placed(place(7, 1, 0x1000));
    join.executions.begun(&begun(7, 1, 5, 10 * MS));
    join.executions.ended(7, Waited::Queue(1), 11 * MS, 14 * MS);
    join.executions.begun(&begun(7, 1, 6, 20 * MS));
    join.executions.ended(7, Waited::Queue(1), 21 * MS, 24 * MS);
    let mut got = Got::default();
    join.window(&window(0, 10 * MS, 15 * MS, &[(0x1040, 30)]), &mut got);
    join.window(&window(0, 20 * MS, 25 * MS, &[(0x1080, 12)]), &mut got);
    join.finish(&mut got);
    assert_eq!((got.of(5), got.of(6)), (30.0, 12.0));
    assert_eq!(got.methods.keys().collect::<Vec<_>>(), [&Method::Sole]);
    assert_eq!(got.offsets.keys().collect::<Vec<_>>(), [&0x40, &0x80]);
    // Busy from submission to the end of the wait, 4 ms each.
    assert!((got.time_ns - 8e6).abs() < 1.0, "{}", got.time_ns);
}

/// A thread waits for an event while another one gives it to a new launch: the wait does not show
/// the end of that launch.
#[test]
fn an_event_that_is_used_again_during_a_wait_ends_nothing_new() {
    let mut join = join();
    join.placed(place(7, 1, 0x1000));
    let launch = |path, at| Begun {
        event: 9,
        ..begun(7, 1, path, at)
    };
    join.executions.begun(&launch(5, 10 * MS));
    join.executions.begun(&launch(6, 13 * MS));
    join.executions.ended(7, Waited::Event(9), 11 * MS, 14 * MS);
    let mut got = Got::default();
    join.window(&window(0, 20 * MS, 25 * MS, &[(0x1040, 30)]), &mut got);
    join.finish(&mut got);
    assert_eq!(got.of(5) + got.of(6), 30.0, "{got:?}");
    assert_eq!(got.possible.get(&Some(6)), Some(&30));
}

/// A fence is waited for: what was handed over after it can still be running.
#[test]
fn a_fence_ends_nothing_of_other_submissions() {
    let mut join = join();
    join.placed(place(7, 1, 0x1000));
    for submit in [1, 2] {
        join.executions.begun(&Begun {
            submit,
            ..begun(7, 1, 5, 10 * MS + submit)
        });
    }
    join.executions
        .ended(7, Waited::Submit(1), 11 * MS, 12 * MS);
    let mut got = Got::default();
    join.window(&window(0, 20 * MS, 25 * MS, &[(0x1040, 30)]), &mut got);
    join.finish(&mut got);
    assert_eq!(got.possible.get(&Some(5)), Some(&30), "{got:?}");
}

/// The event of a launch that a wait for the queue has ended already is asked for: a
/// launch since then can still be running.
#[test]
fn an_event_of_an_ended_launch_ends_nothing_else() {
    let mut join = join();
    join.placed(place(7, 1, 0x1000));
    join.executions.begun(&Begun {
        event: 9,
        ..begun(7, 1, 5, 10 * MS)
    });
    let queue = Waited::Queue(1);
    join.executions
        .ended(7, queue, 10 * MS + 100, 10 * MS + 200);
    join.executions.begun(&begun(7, 1, 5, 10 * MS + 300));
    let event = Waited::Event(9);
    join.executions
        .ended(7, event, 10 * MS + 400, 10 * MS + 500);
    let mut got = Got::default();
    join.window(&window(0, 20 * MS, 25 * MS, &[(0x1040, 30)]), &mut got);
    join.finish(&mut got);
    assert_eq!(got.of(5), 30.0, "{got:?}");
}

/// A window that found no room grew: it begins before the one before it.
#[test]
fn windows_that_begin_earlier_than_others_keep_their_candidates() {
    let mut join = join();
    join.placed(place(7, 1, 0x1000));
    for (path, at) in [(5, 10 * MS), (6, 20 * MS)] {
        join.executions.begun(&begun(7, 1, path, at));
        join.executions
            .ended(7, Waited::Queue(1), at + MS, at + 2 * MS);
    }
    let mut got = Got::default();
    join.window(&window(0, 19 * MS, 21 * MS, &[(0x1040, 10)]), &mut got);
    join.window(&window(0, 5 * MS, 25 * MS, &[(0x1040, 30)]), &mut got);
    join.finish(&mut got);
    assert!(got.possible[&Some(5)] >= 30, "{got:?}");
    assert_eq!(got.possible[&Some(6)], 40, "{got:?}");
}

/// All addresses differ, so that windows taken together need as much room as before.
#[test]
fn what_finds_no_room_is_shared_early() {
    let mut join = Join::new(JoinLimits {
        counts: 100,
        ..JoinLimits::default()
    });
    join.stream(&stream(0));
    join.placed(Placement {
        last: BASE + 0xff_ffff,
        ..place(7, 1, 0x1000)
    });
    join.executions.begun(&begun(7, 1, 5, 0));
    let mut got = Got::default();
    for w in 0..100_u64 {
        let counts: Vec<(u64, u32)> = (0..50).map(|i| (0x1000 + w * 800 + i * 16, 1)).collect();
        join.window(&window(0, w * MS, (w + 1) * MS, &counts), &mut got);
        assert!(got.all() >= (w * 50).saturating_sub(100) * PARTS, "{w}");
    }
    join.finish(&mut got);
    assert_eq!(got.of(5), 5000.0);
}

/// iaprof keeps one stack per kernel: everything goes to the last one.
#[test]
fn iaprof_one_stack_per_kernel() {
    let mut join = join();
    join.placed(place(7, 1, 0x1000));
    let mut got = Got::default();
    for i in 0..200_u64 {
        let at = i * 5 * MS;
        join.executions.begun(&begun(7, 1, (i % 2) as u32, at));
        join.executions
            .ended(7, Waited::Queue(1), at + 1, at + 4 * MS);
        let n = if i % 2 == 0 { 70 } else { 30 };
        join.window(&window(0, at, at + 5 * MS - 1, &[(0x1000, n)]), &mut got);
    }
    join.finish(&mut got);
    assert_eq!((got.of(0), got.of(1)), (7_000.0, 3_000.0));
}

/// iaprof has one instruction base for all: the last process's.
#[test]
fn iaprof_global_instruction_base() {
    let mut join = join();
    let far = Placement {
        start: 0x9000_0000_2000,
        last: 0x9000_0000_2fff,
        base: 0x9000_0000_0000,
        ..place(8, 2, 0)
    };
    join.placed(place(7, 1, 0x1000));
    join.placed(far);
    for (pid, kernel) in [(7, 1), (8, 2)] {
        join.executions.begun(&begun(pid, kernel, pid, MS));
    }
    let mut got = Got::default();
    let counts = [(0x1010, 5), (0x2020, 7)];
    join.window(&window(0, 0, 5 * MS, &counts), &mut got);
    join.finish(&mut got);
    assert_eq!((got.of(7), got.of(8)), (5.0, 7.0));
    assert_eq!(got.offsets.keys().collect::<Vec<_>>(), [&0x10, &0x20]);
}

/// iaprof drops samples of kernels that it learns of later.
#[test]
fn iaprof_late_samples_are_lost() {
    let mut join = join();
    join.executions.begun(&begun(7, 1, 5, MS));
    let mut got = Got::default();
    join.window(&window(0, 0, 5 * MS, &[(0x1010, 5)]), &mut got);
    // Long after what was sampled was shared.
    join.executions.ended(7, Waited::Queue(1), 6 * MS, 6 * MS);
    join.advance(5_000 * MS, &mut got);
    assert_eq!(got.all(), 0);
    assert!(join.is_waiting());
    join.placed(place(7, 1, 0x1000));
    join.window(&window(0, 9_000 * MS, 9_005 * MS, &[(0x1010, 1)]), &mut got);
    join.finish(&mut got);
    assert_eq!(got.of(5), 5.0, "{got:?}");
    // Samples that never get a kernel are reported as unattributed.
    assert_eq!(got.all(), 6 * PARTS);
    assert_eq!(got.methods[&Method::Unattributed], PARTS);
}

#[test]
fn an_address_that_is_used_again_is_the_kernel_of_its_time() {
    let mut join = join();
    join.placed(place(7, 1, 0x1000));
    join.executions.begun(&begun(7, 1, 5, MS));
    join.executions.ended(7, Waited::Queue(1), 2 * MS, 4 * MS);
    join.unplaced(4 * MS, |p| p.kernel == 1);
    join.placed(Placement {
        since_ns: 5 * MS,
        ..place(7, 2, 0x1000)
    });
    join.executions.begun(&begun(7, 2, 6, 6 * MS));
    let mut got = Got::default();
    join.window(&window(0, 0, 4 * MS + 1, &[(0x1010, 5)]), &mut got);
    join.window(&window(0, 5 * MS, 9 * MS, &[(0x1010, 8)]), &mut got);
    join.finish(&mut got);
    assert_eq!((got.of(5), got.of(6)), (5.0, 8.0));
}

#[test]
fn two_processes_at_one_address_share_by_what_ran() {
    let mut join = join();
    join.placed(place(7, 1, 0x1000));
    join.placed(place(8, 2, 0x1000));
    let mut got = Got::default();
    for i in 0..100_u64 {
        let at = i * 10 * MS;
        // One after the other, three times as much work in the second.
        join.executions.begun(&begun(7, 1, 5, at));
        join.executions.begun(&Begun {
            work: 300,
            ..begun(8, 2, 6, at)
        });
        join.executions
            .ended(7, Waited::All, at + 8 * MS, at + 8 * MS);
        join.executions
            .ended(8, Waited::All, at + 8 * MS, at + 8 * MS);
        join.window(&window(0, at, at + 9 * MS, &[(0x1010, 40)]), &mut got);
    }
    join.finish(&mut got);
    assert!((got.of(5) - 1000.0).abs() < 20.0, "{got:?}");
    assert!((got.of(6) - 3000.0).abs() < 20.0, "{got:?}");
    assert_eq!(got.methods.keys().collect::<Vec<_>>(), [&Method::Work]);
}

/// Work that was handed over all at once, or little by little while earlier work was
/// still running, gets samples in proportion to it.
#[test]
fn a_queue_that_nobody_waits_for_is_shared_by_work() {
    for stagger in [0, 2 * MS] {
        let mut join = join();
        join.placed(place(7, 1, 0x1000));
        // 100 launches of 10 ms; the paths take turns in the proportion 7 to 3.
        for i in 0..100_u64 {
            let path = u32::from(i % 10 >= 7);
            join.executions.begun(&begun(7, 1, path, i * stagger));
        }
        join.executions
            .ended(7, Waited::Queue(1), 300 * MS, 1000 * MS);
        let mut got = Got::default();
        for i in 0..200_u64 {
            let (from, to) = (i * 5 * MS, (i + 1) * 5 * MS);
            join.window(&window(0, from, to, &[(0x1010, 10)]), &mut got);
        }
        join.finish(&mut got);
        assert!((got.of(0) - 1400.0).abs() < 40.0, "{stagger}: {got:?}");
        assert_eq!(got.of(0) + got.of(1), 2000.0);
    }
}

#[test]
fn exact_times_tell_apart_what_work_cannot() {
    let mut join = join();
    join.placed(place(7, 1, 0x1000));
    let mut got = Got::default();
    for i in 0..100_u64 {
        let at = i * 10 * MS;
        // The same work, but the second takes four times as long.
        for (path, from, to) in [(0, at, at + MS), (1, at + MS, at + 5 * MS)] {
            let event = 100 + u64::from(path);
            join.executions.begun(&Begun {
                event,
                ..begun(7, 1, path, at)
            });
            join.executions.timed(7, event, (from, to), to - from);
        }
        join.executions
            .ended(7, Waited::Queue(1), at + 9 * MS, at + 9 * MS);
        join.window(&window(0, at, at + 10 * MS - 1, &[(0x1010, 50)]), &mut got);
    }
    join.finish(&mut got);
    assert!((got.of(0) - 1000.0).abs() < 10.0, "{got:?}");
    assert!(got.methods[&Method::Durations] > 0);
}

#[test]
fn the_truth_is_within_the_bounds_whatever_the_costs() {
    let mut random = Random(11);
    for round in 0..200 {
        let mut join = join();
        join.placed(place(7, 1, 0x1000));
        let paths = 2 + random.below(6) as u32;
        let mut truth: BTreeMap<PathId, u64> = BTreeMap::new();
        let mut got = Got::default();
        // Launches one after the other, of any cost; the program waits now and then.
        let (mut now, mut runs) = (MS, Vec::new());
        for i in 0..60 {
            let path = random.below(paths.into()) as u32;
            let cost = 1 + random.below(8) * MS;
            join.executions
                .begun(&begun(7, 1, path, now.min(1 + i * MS)));
            runs.push((path, now, now + cost));
            now += cost;
            if random.below(5) == 0 {
                join.executions.ended(7, Waited::Queue(1), now, now + 100);
            }
        }
        for w in 0..=now / (5 * MS) {
            let (from, to) = (w * 5 * MS, (w + 1) * 5 * MS);
            let mut n = 0;
            for &(path, begin, end) in &runs {
                let ran = end.min(to).saturating_sub(begin.max(from));
                let samples = ran / 100_000;
                *truth.entry(path).or_default() += samples;
                n += samples as u32;
            }
            join.window(&window(0, from, to, &[(0x1010, n)]), &mut got);
        }
        join.finish(&mut got);
        assert_eq!(got.all(), truth.values().sum::<u64>() * PARTS);
        for (path, n) in truth {
            let least = got.certain.get(&Some(path)).copied().unwrap_or(0);
            let most = got.possible.get(&Some(path)).copied().unwrap_or(0);
            assert!(
                least <= n && n <= most,
                "{round}: {path}: {least} {n} {most}"
            );
            let estimate = got.of(path);
            assert!(least as f64 <= estimate + 1e-3 && estimate <= most as f64 + 1e-3);
        }
    }
}

#[test]
fn nothing_gets_lost_whatever_happens() {
    let mut random = Random(3);
    for round in 0..300 {
        let mut join = Join::new(JoinLimits {
            counts: 50 + random.below(500) as usize,
            unknown: random.below(200) as usize,
            hold_ns: random.below(100) * MS,
            hold_unknown_ns: random.below(1000) * MS,
            executions: 4 + random.below(300) as usize,
            placements: 2 + random.below(20) as usize,
        });
        join.stream(&DeviceStream {
            relative: random.below(2) == 0,
            ..stream(0)
        });
        let mut got = Got::default();
        let (mut fed, mut busy) = (0, 0);
        let mut now = 0;
        for _ in 0..400 {
            now += random.below(3 * MS);
            let pid = random.below(3) as u32;
            let kernel = random.below(6);
            match random.below(8) {
                0 => join.placed(Placement {
                    since_ns: now.saturating_sub(random.below(20 * MS)),
                    ..place(pid, kernel, random.below(4) * 0x800)
                }),
                1 => join.unplaced(now, |p| p.pid == pid && p.kernel == kernel),
                2 => {
                    let waited = match random.below(5) {
                        0 => Waited::All,
                        1 => Waited::Device(1),
                        2 => Waited::Event(random.below(4)),
                        3 => Waited::Submit(random.below(4)),
                        _ => Waited::Queue(random.below(3)),
                    };
                    join.executions
                        .ended(pid, waited, now, now + random.below(MS));
                }
                3 => {
                    let ran = random.below(MS);
                    let event = random.below(4);
                    join.executions.timed(pid, event, (now, now + ran), ran);
                }
                4 => {
                    let counts: Vec<(u64, u32)> = (0..random.below(20))
                        .map(|i| (i * 0x200, random.below(100) as u32))
                        .collect();
                    let counted = counts.iter().map(|c| u64::from(c.1)).sum::<u64>();
                    fed += counted;
                    let mut one = window(0, now.saturating_sub(5 * MS), now, &counts);
                    one.busy_ns = Some(1000);
                    busy += if counted > 0 { 1000 } else { 0 };
                    join.window(&one, &mut got);
                    join.advance(now, &mut got);
                }
                _ => join.executions.begun(&Begun {
                    work: random.below(3) * 50,
                    queue: random.below(3),
                    event: random.below(4),
                    submit: random.below(4),
                    ..begun(pid, kernel, random.below(5) as u32, now)
                }),
            }
        }
        join.finish(&mut got);
        assert!(!join.is_waiting());
        assert_eq!(got.all(), fed * PARTS, "round {round}");
        let off = (got.time_ns - f64::from(u32::try_from(busy).unwrap())).abs();
        assert!(off < 1.0, "round {round}: {} of {busy}", got.time_ns);
        for (path, least) in &got.certain {
            assert!(*least <= got.possible[path]);
        }
    }
}
