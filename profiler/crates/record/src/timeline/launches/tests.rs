//! Tests of `launches.rs`.

use super::*;
use crate::correlate::{KernelName, LaunchingCall, device::TickClock};
use aiprof_model::timeline::Names;

pub(super) const PID: u32 = 7;
const QUEUE: u64 = 0x30;

/// The text of that index.
pub(super) fn sym(index: usize) -> Sym {
    let mut names = Names::default();
    let all = (0..index).map(|n| names.intern(&n.to_string()));
    all.last().unwrap()
}

pub(super) fn launch(event: u64, submitted_ns: u64) -> TrackedLaunch {
    let by = LaunchingCall {
        call: 1,
        api: "Level Zero".into(),
        function: "zeCommandListAppendLaunchKernel".into(),
        pid: PID,
        tid: PID,
        start_ns: submitted_ns,
        ..LaunchingCall::default()
    };
    let mut launch = TrackedLaunch::of(by, CallKind::Launch, KernelName::Unknown);
    launch.id = submitted_ns;
    (launch.on.device, launch.on.queue, launch.on.event) = (0xd0, QUEUE, event);
    (launch.work.kernel, launch.work.kernel_number) = (1, 1);
    launch
}

pub(super) fn fact(entered_ns: u64, left_ns: u64, kind: DeviceFactKind) -> DeviceFact {
    DeviceFact {
        pid: PID,
        entered_ns,
        left_ns,
        kind,
    }
}

fn wait(of: Waited, entered_ns: u64, left_ns: u64) -> DeviceFact {
    fact(entered_ns, left_ns, DeviceFactKind::Ended(of))
}

/// What is bounded: name, launches, from, to.
fn bounded(all: &mut DeviceLaunches) -> Vec<(usize, u64, u64, Option<u64>)> {
    let bounded = std::mem::take(&mut all.bounded).into_iter();
    let rows = bounded.flat_map(|one| {
        let end = one.end_ns;
        one.works
            .into_iter()
            .map(move |work| (work.name.index(), work.launches, work.from_ns, end))
    });
    rows.collect()
}

#[test]
fn a_wait_ends_what_was_handed_over_before_it() {
    let mut all = DeviceLaunches::default();
    all.launched(&launch(0, 10), sym(1));
    all.launched(&launch(0, 20), sym(2));
    all.launched(&launch(0, 30), sym(1));
    // A wait of another queue, device and process ends nothing here.
    all.fact(&wait(Waited::Queue(1), 35, 36));
    all.fact(&wait(Waited::Device(1), 35, 36));
    let other = DeviceFact {
        pid: 8,
        ..wait(Waited::All, 35, 36)
    };
    all.fact(&other);
    // It was entered before the last launch: that may go on.
    all.fact(&wait(Waited::Queue(QUEUE), 25, 37));
    all.fact(&wait(Waited::Queue(QUEUE), 40, 50));
    all.launched(&launch(0, 60), sym(1));
    all.finish();
    let rows = [(1, 2, 10, Some(50)), (2, 1, 20, Some(50)), (1, 1, 60, None)];
    assert_eq!(bounded(&mut all), rows);
}

#[test]
fn launches_with_events_end_one_by_one() {
    let mut all = DeviceLaunches::default();
    all.launched(&launch(0x41, 10), sym(1));
    all.launched(&launch(0x42, 20), sym(1));
    all.fact(&wait(Waited::Event(0x41), 30, 31));
    // The event is given to another launch while somebody waits for it.
    all.launched(&launch(0x42, 40), sym(1));
    all.fact(&wait(Waited::Event(0x42), 35, 50));
    all.process_gone(PID, 90);
    all.finish();
    let rows = [(1, 1, 10, Some(31)), (1, 2, 20, Some(90))];
    assert_eq!(bounded(&mut all), rows);
    assert!(all.signals.is_empty() && all.running.is_empty() && all.open.is_empty());
}

#[test]
fn a_launch_may_be_handed_over_after_a_wait_was_entered() {
    let mut all = DeviceLaunches::default();
    let slow = TrackedLaunch {
        handed_over_ns: 30,
        ..launch(0, 10)
    };
    all.launched(&slow, sym(1));
    all.fact(&wait(Waited::Queue(QUEUE), 20, 40));
    all.finish();
    assert_eq!(bounded(&mut all), [(1, 1, 10, None)]);
}

#[test]
fn an_event_that_is_used_for_something_else_tells_nothing_more() {
    let mut all = DeviceLaunches::default();
    let device = 0xd0;
    let clock = TickClock::of_hz(1_000_000_000, 64).unwrap();
    all.fact(&fact(1, 2, DeviceFactKind::Clock { device, clock }));
    all.launched(&launch(0x41, 10), sym(1));
    all.fact(&wait(Waited::Event(0x41), 20, 30));
    all.event_used(PID, 0x41);
    let (event, ticks) = (0x41, (25, 28));
    all.fact(&fact(40, 41, DeviceFactKind::Timestamps { event, ticks }));
    all.finish();
    assert_eq!(bounded(&mut all), [(1, 1, 10, Some(30))]);
    assert!(all.ran.is_empty());
}

#[test]
fn a_fence_ends_what_its_call_handed_over() {
    let mut all = DeviceLaunches::default();
    for (submit, at) in [(5, 10), (6, 20)] {
        let launch = TrackedLaunch {
            submit: Some(submit),
            ..launch(0, at)
        };
        all.launched(&launch, sym(1));
    }
    all.fact(&wait(Waited::Submit(5), 30, 31));
    all.fact(&wait(Waited::All, 40, 41));
    all.finish();
    let rows = [(1, 1, 10, Some(31)), (1, 1, 20, Some(41))];
    assert_eq!(bounded(&mut all), rows);
}

#[test]
fn timestamps_date_a_launch_within_its_bounds() {
    let mut all = DeviceLaunches::default();
    let clock = TickClock::of_hz(1_000_000_000, 64).unwrap();
    let device = 0xd0;
    all.fact(&fact(1, 2, DeviceFactKind::Clock { device, clock }));
    // Ticks are 1,000 more than nanoseconds. Two launches, the second just before the wait
    // ended, bound the offset to within 30.
    for (event, at) in [(0x41, 5_000), (0x42, 6_000)] {
        all.launched(&launch(event, at), sym(1));
    }
    let times = [(0x41, (6_010, 6_300)), (0x42, (7_200, 7_480))];
    for (event, ticks) in times {
        all.fact(&fact(
            6_500,
            6_510,
            DeviceFactKind::Timestamps { event, ticks },
        ));
    }
    // Read again, of an event that nothing signals now.
    let ticks = (1, 2);
    all.fact(&fact(
        7_000,
        7_010,
        DeviceFactKind::Timestamps { event: 0x41, ticks },
    ));
    all.finish();
    assert_eq!(bounded(&mut all), []);
    let ran = std::mem::take(&mut all.ran);
    assert_eq!(ran.len(), 2);
    for (ran, (_, (from, to))) in ran.iter().zip(times) {
        assert_eq!((ran.ran_ns, ran.device, ran.stream), (to - from, 0, 0));
        let off = ran.start_ns.abs_diff(from - 1_000);
        assert!(off <= ran.within_ns && ran.within_ns <= 30, "{ran:?}");
    }
    // One clock for both.
    assert_eq!(ran[1].start_ns - ran[0].start_ns, 1_190);
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut all = DeviceLaunches::default();
    let mut names = Names::default();
    let syms: Vec<Sym> = (0..500)
        .map(|n: u32| names.intern(&n.to_string()))
        .collect();
    for n in 0..100_000_u64 {
        let mut launch = launch(n % 3 * n, n);
        (launch.on.queue, launch.submit) = (n % 20_000, Some(n));
        all.launched(&launch, syms[n as usize % 500]);
    }
    assert!(all.signals.len() <= MAX_SIGNALS && all.open.len() <= MAX_QUEUES);
    assert!(all.ended.len() <= MAX_ENDED);
    all.finish();
    let launches = all.bounded.iter().flat_map(|one| &one.works);
    let launches: u64 = launches.map(|work| work.launches).sum();
    assert_eq!(launches + all.refused, 100_000);
    assert!(all.refused > 0);
}
