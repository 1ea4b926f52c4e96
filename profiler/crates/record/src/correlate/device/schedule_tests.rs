//! Schedules of launches on a virtual device, with an exact truth.

use super::tests::{Got, MS, Random, begun, join, place, stream, window};
use super::*;
use std::collections::{BTreeMap, BTreeSet};

/// A launch on a virtual device: when it was handed over, and ran.
#[derive(Clone, Copy, Debug)]
struct Ran {
    pid: u32,
    path: PathId,
    event: u64,
    submitted_ns: u64,
    from_ns: u64,
    to_ns: u64,
}

const SECOND: u64 = 1_000 * MS;

/// What a program learns of a launch.
#[derive(Clone, Copy, Debug)]
enum Told {
    /// A wait for its event has returned.
    Event,
    /// A wait for all that its queue was given.
    Queue,
    /// Its timestamps.
    Timestamps,
}

/// When a wait has returned, and of what; and when the timestamps were read.
type Learns = (Option<(u64, Told)>, Option<u64>);

impl Told {
    fn tell(self, join: &mut Join, run: &Ran, at: u64) {
        let executions = &mut join.executions;
        let ticks = (tick(run.from_ns), tick(run.to_ns));
        match self {
            Self::Event => executions.ended(run.pid, Waited::Event(run.event), at - 1000, at),
            Self::Queue => {
                executions.ended(run.pid, Waited::Queue(run.pid.into()), at - 1000, at);
            }
            Self::Timestamps => executions.timestamps(run.pid, run.event, ticks, at),
        }
    }
}

/// A device clock of 19.2 MHz that is 30 ppm fast; its 32 bits wrap after 2 s.
fn tick(ns: u64) -> u64 {
    let all = u128::from(ns) * 19_200_576 / 1_000_000_000;
    (all as u64).wrapping_add(0xffff_ffff - 38_400_000) & 0xffff_ffff
}

/// Nothing.
fn unknown(_: &Ran) -> Learns {
    (None, None)
}

/// That it has ended, a microsecond later.
fn end(run: &Ran) -> Learns {
    (Some((run.to_ns + 1000, Told::Event)), None)
}

impl Ran {
    fn later(self, ns: u64) -> Self {
        Self {
            submitted_ns: self.submitted_ns + ns,
            from_ns: self.from_ns + ns,
            to_ns: self.to_ns + ns,
            ..self
        }
    }
}

/// What a device of one GT did, and how it is read.
struct Schedule {
    /// In the order of submission, and by process one after the other.
    runs: Vec<Ran>,
    /// Length of a window, and how much earlier than it should each begins.
    window_ns: u64,
    early_ns: u64,
    /// Nanoseconds for each sample.
    every_ns: u64,
    /// The kernel of all launches; each process's own if `None`.
    kernel: Option<u64>,
}

/// What came out, and what was.
#[derive(Debug)]
struct Judged {
    /// How far a path's share is off, points; and the bounds of the median path's.
    worst: f64,
    median_width: f64,
    is_bounded: bool,
    /// Device time by the truth's busy time.
    time: f64,
}

impl Schedule {
    /// Processes that never wait, each with a queue of its own that is `depth` launches ahead;
    /// `path` returns the path of each launch, and `ns` how long it runs.
    fn unwaited(
        pids: &[u32],
        until_ns: u64,
        depth: usize,
        path: impl Fn(u32, usize, u64) -> (PathId, u64),
    ) -> Self {
        let mut runs = Vec::new();
        for &pid in pids {
            let mut ends: Vec<u64> = Vec::new();
            let mut now = u64::from(pid) * 3 * MS;
            for i in 0_usize.. {
                let submitted_ns = match i.checked_sub(depth) {
                    Some(before) => ends[before],
                    None => u64::from(pid) * 3 * MS + i as u64 * 2_000,
                };
                let from_ns = now.max(submitted_ns + 1000);
                if from_ns > until_ns {
                    break;
                }
                let (path, ns) = path(pid, i, from_ns);
                now = from_ns + ns;
                ends.push(now);
                runs.push(Ran {
                    pid,
                    path,
                    event: 0,
                    submitted_ns,
                    from_ns,
                    to_ns: now,
                });
            }
        }
        let schedule = Self {
            runs,
            window_ns: 5 * MS,
            early_ns: 0,
            every_ns: 50_000,
            kernel: None,
        };
        schedule.ordered()
    }

    fn ordered(mut self) -> Self {
        self.runs.sort_by_key(|run| run.submitted_ns);
        for (run, event) in self.runs.iter_mut().zip(1..) {
            run.event = event;
        }
        self
    }

    fn end_ns(&self) -> u64 {
        self.runs.iter().map(|run| run.to_ns).max().unwrap_or(0)
    }

    /// Nanoseconds in which anything ran.
    fn busy_ns(&self) -> u64 {
        let mut runs: Vec<_> = self.runs.iter().map(|r| (r.from_ns, r.to_ns)).collect();
        runs.sort_unstable();
        let (mut busy, mut reach) = (0, 0);
        for (from, to) in runs {
            busy += to.saturating_sub(from.max(reach));
            reach = reach.max(to);
        }
        busy
    }

    /// Feeds a join as a recording does, with what its program learns of each launch, and
    /// compares.
    fn judge(
        &self,
        mut join: Join,
        learns: impl Fn(&Ran) -> Learns,
        placed: impl Fn(u32) -> Placement,
    ) -> Judged {
        let mut got = Got::default();
        let mut truth: BTreeMap<PathId, u64> = BTreeMap::new();
        let pids: BTreeSet<u32> = self.runs.iter().map(|r| r.pid).collect();
        for &pid in &pids {
            join.placed(placed(pid));
        }
        let mut ended: Vec<&Ran> = self.runs.iter().collect();
        ended.sort_by_key(|run| run.to_ns);
        let mut learned = self.learned(learns);
        learned.reverse();
        let (mut submitted, mut live) = (0, 0);
        let end = self.end_ns();
        for w in 0..=end / self.window_ns {
            let (from, to) = (w * self.window_ns, (w + 1) * self.window_ns);
            while let Some(run) = self.runs.get(submitted).filter(|r| r.submitted_ns < to) {
                join.executions.begun(&Begun {
                    queue: run.pid.into(),
                    work: (run.to_ns - run.from_ns) / 1000,
                    event: run.event,
                    ..begun(
                        run.pid,
                        self.kernel.unwrap_or(run.pid.into()),
                        run.path,
                        run.submitted_ns,
                    )
                });
                submitted += 1;
            }
            // Grid points at which each was running.
            let seen = |a: u64, b: u64| b.div_ceil(self.every_ns) - a.div_ceil(self.every_ns);
            let mut samples = 0;
            while ended.get(live).is_some_and(|run| run.to_ns <= from) {
                live += 1;
            }
            for run in ended.iter().skip(live).take(4096) {
                let (a, b) = (run.from_ns.max(from), run.to_ns.min(to));
                let n = if a < b { seen(a, b) } else { 0 };
                *truth.entry(run.path).or_default() += n;
                samples += n as u32;
            }
            while learned.last().is_some_and(|(at, ..)| *at < to) {
                if let Some((at, run, told)) = learned.pop() {
                    told.tell(&mut join, run, at);
                }
            }
            let begin = from.saturating_sub(self.early_ns);
            join.window(&window(0, begin, to, &[(0x1010, samples)]), &mut got);
            join.advance(to, &mut got);
        }
        for &pid in &pids {
            join.executions.process_gone(pid, end + MS);
        }
        join.finish(&mut got);
        self.verdict(&got, &truth)
    }

    /// What is learned of all launches, in the order of time.
    fn learned(&self, learns: impl Fn(&Ran) -> Learns) -> Vec<(u64, &Ran, Told)> {
        let mut all = Vec::new();
        for run in &self.runs {
            let (waited, read) = learns(run);
            all.extend(waited.map(|(at, told)| (at, run, told)));
            all.extend(read.map(|at| (at, run, Told::Timestamps)));
        }
        all.sort_by_key(|(at, ..)| *at);
        all
    }

    fn verdict(&self, got: &Got, truth: &BTreeMap<PathId, u64>) -> Judged {
        let all = truth.values().sum::<u64>();
        assert_eq!(got.all(), all * PARTS, "samples in, samples out");
        let points = |n: f64| 100.0 * n / all as f64;
        let (mut worst, mut widths, mut is_bounded) = (0.0_f64, Vec::new(), true);
        for (&path, &n) in truth {
            let least = got.certain.get(&Some(path)).copied().unwrap_or(0);
            let most = got.possible.get(&Some(path)).copied().unwrap_or(0);
            is_bounded &= least <= n && n <= most;
            widths.push(points((most - least) as f64));
            worst = worst.max(points((got.of(path) - n as f64).abs()));
        }
        widths.sort_by(f64::total_cmp);
        Judged {
            worst,
            median_width: widths[widths.len() / 2],
            is_bounded,
            time: got.time_ns / self.busy_ns() as f64,
        }
    }
}

fn same_place(pid: u32) -> Placement {
    Placement {
        code: 1,
        ..place(pid, pid.into(), 0x1000)
    }
}

fn assert_right(what: &str, judged: &Judged) {
    println!("{what}: {judged:?}");
    assert!(judged.is_bounded, "{what}: {judged:?}");
    let narrow = judged.median_width <= 10.0;
    assert!(judged.worst <= 2.0 || narrow, "{what}: {judged:?}");
}

/// Some number below a limit.
fn any(i: usize, limit: u64) -> u64 {
    Random(0x9e37_79b9 + i as u64 * 7919).below(limit)
}

/// The first path in the first half, the second one in the second: what was launched
/// first cannot have got samples for ever.
#[test]
fn a_queue_that_nobody_waits_for_is_shared_once() {
    for (seconds, depth) in [
        (6, 100),
        (24, 100),
        (40, 100),
        (24, 2000),
        (150, 100),
        (1500, 10),
    ] {
        let until = seconds * SECOND;
        // As many launches and windows, however long it takes.
        let unit = seconds * MS / 3;
        let halves = |_, i, at: u64| (u32::from(at > until / 2), unit + any(i, 2 * unit));
        let mut schedule = Schedule::unwaited(&[1], until, depth, halves);
        schedule.window_ns = 2 * unit;
        let judged = schedule.judge(join(), unknown, same_place);
        assert_right(&format!("{seconds} s, {depth}"), &judged);
        assert!(judged.worst <= 2.0, "{judged:?}");
    }
}

/// Two processes that take turns to wait: something runs at any time, but what ran is
/// known to have ended, so it is shared as time goes on.
#[test]
fn processes_that_take_turns_are_shared_as_they_go() {
    // Room for 15 s.
    let mut join = Join::new(JoinLimits {
        counts: 3000,
        ..JoinLimits::default()
    });
    join.stream(&stream(0));
    let mut pair = Schedule::unwaited(&[1, 2], 40 * SECOND, 4, |pid, i, _| {
        (
            pid * 10 + (i % 3) as u32,
            5 * MS + any(i, u64::from(pid) * 5 * MS),
        )
    });
    // Windows overlap, also where rounds meet.
    pair.early_ns = 25 * MS;
    let judged = pair.judge(join, end, same_place);
    assert_right("turns", &judged);
    assert!(judged.worst <= 2.0, "{judged:?}");
    assert!((0.98..1.001).contains(&judged.time), "{judged:?}");
}

/// Processes of equal cost that begin one after the other: each one's work counts once.
#[test]
fn processes_that_never_wait_share_by_their_work() {
    for n in [2, 3, 8] {
        let pids: Vec<u32> = (1..=n).collect();
        let late = |pid: u32| Placement {
            since_ns: u64::from(pid) * SECOND,
            ..same_place(pid)
        };
        let mut schedule = Schedule::unwaited(&pids, 3_000 * MS, 50, |pid, i, _| {
            (
                pid * 10 + u32::from(i % 10 >= 7),
                MS + any(i, u64::from(pid) * MS),
            )
        });
        for run in &mut schedule.runs {
            *run = run.later(u64::from(run.pid) * SECOND);
        }
        let judged = schedule.ordered().judge(join(), unknown, late);
        assert_right(&format!("{n} processes"), &judged);
        assert!(judged.worst <= 2.0, "{judged:?}");
    }
}

/// Whatever room there is: resolution is lost, no sample, no work and no bound.
#[test]
fn without_room_resolution_is_lost_and_nothing_else() {
    let rooms = [(1 << 20, 400), (100, 1 << 19), (100, 400)];
    for (room, waits) in rooms.into_iter().flat_map(|r| [(r, false), (r, true)]) {
        let (counts, executions) = room;
        let small = JoinLimits {
            counts,
            executions,
            ..JoinLimits::default()
        };
        let mut join = Join::new(small);
        join.stream(&stream(0));
        let thirds = |_, i: usize, at: u64| match at / (4_000 * MS) {
            1 => (1 + (i % 4) as u32, MS + any(i, MS)),
            _ => (0, MS + any(i, 3 * MS)),
        };
        let schedule = Schedule::unwaited(&[1], 12_000 * MS, 100, thirds);
        let learns = if waits { end } else { unknown };
        let judged = schedule.judge(join, learns, same_place);
        assert_right(&format!("{counts} {executions} {waits}"), &judged);
        assert!(judged.worst <= 2.0, "{judged:?}");
    }
}

/// A reader's windows begin earlier than they must, so that they overlap: what was busy
/// once is not counted again.
#[test]
fn device_time_is_what_the_device_was_busy() {
    for early_ns in [0, 10 * MS, 25 * MS] {
        for depth in [1, 100] {
            let mut schedule =
                Schedule::unwaited(&[1, 2], 500 * MS, depth, |pid, _, _| (pid, 2 * MS));
            // Again after a pause, twice.
            for run in schedule.runs.clone() {
                schedule
                    .runs
                    .extend([run.later(SECOND), run.later(2 * SECOND)]);
            }
            schedule = schedule.ordered();
            schedule.early_ns = early_ns;
            let judged = schedule.judge(join(), end, same_place);
            assert!(judged.is_bounded, "{early_ns} {depth}: {judged:?}");
            println!("{early_ns} {depth}: {judged:?}");
            // Launches are handed over a microsecond before they run.
            let is_right = (0.98..1.001).contains(&judged.time);
            assert!(is_right, "{early_ns} {depth}: {judged:?}");
        }
    }
}

/// Forked processes launch their parent's kernels, where these lie: their samples are their own,
/// by their work, and the bounds cover what is not known.
#[test]
fn samples_of_forked_processes_are_their_own() {
    for waits in [true, false] {
        let mut join = join();
        join.placed(same_place(1));
        for child in [2, 3] {
            join.inherited(1, child, u64::from(child) * MS);
        }
        let mut schedule = Schedule::unwaited(&[1, 2, 3], 2_000 * MS, 20, |pid, i, _| {
            (pid, MS + any(i, u64::from(pid) * MS))
        });
        schedule.kernel = Some(1);
        let done = |run: &Ran| if waits { end(run) } else { unknown(run) };
        // What is placed again is known already.
        let judged = schedule.judge(join, done, |_| same_place(1));
        assert_right(&format!("forks, {waits}"), &judged);
        assert!(judged.worst <= 2.0, "{judged:?}");
    }
}

/// A program hands all launches over at once, and ends as soon as it has read the timestamps.
/// Each launch is known by itself, though all were handed over within a millisecond.
#[test]
fn timestamps_that_are_a_programs_last_act() {
    let mut schedule = Schedule::unwaited(&[1], 0, 1, |_, _, _| (0, MS));
    schedule.runs.clear();
    let mut now = 10 * MS;
    for i in 0..12_u64 {
        let ns = [40 * MS, 3_000, 170 * MS][i as usize % 3];
        schedule.runs.push(Ran {
            pid: 1,
            // Work is equal, what it costs is not, and neither comes in turns.
            path: (i / 5) as PathId,
            event: 0,
            submitted_ns: 10 * MS + i * 2_000,
            from_ns: now + 25_000,
            to_ns: now + 25_000 + ns,
        });
        now += 25_000 + ns;
    }
    let schedule = schedule.ordered();
    let end = schedule.end_ns() + 20_000;
    let mut join = join();
    let clock = TickClock::of_period(52, 32).unwrap();
    join.executions.clocks.add(1, 1, clock);
    let learns = |run: &Ran| (Some((end, Told::Queue)), Some(end + run.event * 10_000));
    let judged = schedule.judge(join, learns, same_place);
    assert_right("all at once", &judged);
    assert!(judged.worst <= 0.2, "{judged:?}");
    // Windows of 5 ms, 840 ms in all.
    assert!(judged.median_width <= 2.5, "{judged:?}");
    assert!((0.995..1.005).contains(&judged.time), "{judged:?}");
}

/// A program waits for its queue after some launches and reads their timestamps much later. At
/// first little is known of the clock, and no time is exact; what is known later makes it exact.
#[test]
fn timestamps_that_are_read_late_keep_their_error() {
    for (burst, late_ns) in [(10, 0), (10, 100 * MS), (100, 100 * MS), (300, 5_000 * MS)] {
        let mut schedule = Schedule::unwaited(&[1], 0, 1, |_, _, _| (0, MS));
        schedule.runs.clear();
        let (mut now, mut ends) = (10 * MS, Vec::new());
        for round in 0..1200 / burst {
            let submitted_ns = now;
            for i in 0..burst {
                // Both paths do equal work, but the second takes four times as long.
                let long = [1, 5, 8].contains(&(i % 10));
                let ns = if long { 400_000 } else { 100_000 } + any(i, 10_000);
                schedule.runs.push(Ran {
                    pid: 1,
                    path: long.into(),
                    event: 0,
                    submitted_ns: submitted_ns + i as u64 * 2000,
                    from_ns: now.max(submitted_ns + i as u64 * 2000) + 1000,
                    to_ns: now.max(submitted_ns + i as u64 * 2000) + 1000 + ns,
                });
                now += ns + 3000;
            }
            let waited = now + 30_000;
            ends.extend((0..burst).map(|_| (waited, waited + late_ns)));
            now = waited + late_ns + 50_000 + any(round, MS);
        }
        let runs = schedule.ordered();
        let learns = |run: &Ran| {
            let (waited, read) = ends[run.event as usize - 1];
            (
                Some((waited, Told::Queue)),
                Some(read + run.event % 300 * 20_000),
            )
        };
        let mut join = join();
        let clock = TickClock::of_period(52, 32).unwrap();
        join.executions.clocks.add(1, 1, clock);
        let judged = runs.judge(join, learns, same_place);
        assert_right(&format!("{burst}, {late_ns} ns late"), &judged);
        assert!(judged.worst <= 2.0, "{judged:?}");
        // Shared before the timestamps are read, the gaps of 3 us are not seen.
        let most = if late_ns > SECOND { 1.02 } else { 1.002 };
        assert!((0.98..most).contains(&judged.time), "{judged:?}");
    }
}
