//! Limits, and events that make no sense.

use crate::correlate::TrackerLimits;
use crate::correlate::script::{LOADER, Script, TOP, probes};
use aiprof_common::{CALL_EXIT, MAX_VALUES};
use aiprof_model::{
    profile::LossKind,
    wire::{Call, CallData, Event},
};

fn small() -> TrackerLimits {
    TrackerLimits {
        probes: 64,
        threads: 4,
        processes: 4,
        depth: 8,
        handles: 16,
        per_list: 4,
        recorded: 6,
        launches_per_call: 10,
    }
}

#[test]
fn what_does_not_fit_is_counted() {
    let mut s = Script::with(small(), probes());
    s.call("zeCommandListCreate", &[1, 2], &[0x10]);
    s.call("zeCommandListCreate", &[1, 2], &[0x11]);
    for _ in 0..5 {
        s.launch(0x10, 0x21);
        s.launch(0x11, 0x21);
    }
    s.execute(1, &[0x10]);
    s.execute(1, &[0x11]);
    assert_eq!(s.told.launches.len(), 6);
    let lost = s.lost(LossKind::LaunchesRefused);
    // Four did not fit, and are missing from one execution each.
    assert_eq!(lost, 8);
    for kernel in 0x100..0x140 {
        s.kernel("k", kernel);
    }
    assert!(s.lost(LossKind::HandlesRefused) > 40);
    s.call("zeCommandListDestroy", &[0x10], &[]);
    s.kernel("fits", 0x200);
    assert_eq!(s.lost(LossKind::HandlesRefused), 0);
    for tid in 2..20 {
        s.tid = tid;
        s.enter("dnnl_primitive_execute", LOADER, &[]);
        s.vanish();
    }
    assert!(s.lost(LossKind::CallsRefused) > 10);
    s.tid = 2;
    for _ in 0..20 {
        s.enter("dnnl_primitive_execute", LOADER, &[]);
    }
    assert!(s.lost(LossKind::CallsRefused) >= 12);
}

#[test]
fn a_list_executed_very_often_at_once_is_bounded() {
    let mut s = Script::with(small(), probes());
    s.call("zeCommandListCreate", &[1, 2], &[0x10]);
    (0..4).for_each(|_| s.launch(0x10, 0x21));
    s.execute(1, &[0x10; 30]);
    assert_eq!(s.told.launches.len(), 10);
    assert_eq!(s.lost(LossKind::LaunchesRefused), 110);
}

/// Graphs that are put into a graph, again and again.
#[test]
fn a_graph_of_graphs_is_bounded() {
    let limits = TrackerLimits {
        recorded: 100,
        ..small()
    };
    let mut s = Script::with(limits, probes());
    s.call("cuStreamBeginCapture", &[0x5], &[]);
    for _ in 0..3 {
        s.call("cuLaunchKernel", &[0x21, 0x5], &[]);
    }
    s.call("cuStreamEndCapture", &[0x5], &[0x71]);
    for _ in 0..5 {
        s.call("cuGraphAddChildGraphNode", &[0x72, 0x71], &[]);
    }
    s.call("cuGraphLaunch", &[0x5, 0x72], &[]);
    assert_eq!(s.told.launches.len(), 4, "the room of one list");
    assert_eq!(s.lost(LossKind::LaunchesRefused), 11);
}

#[test]
fn calls_of_probes_never_described_and_ends_without_a_begin_are_counted() {
    let mut s = Script::new();
    let call = Call {
        time_ns: 5,
        cpu: 0,
        pid: 1,
        tid: 1,
        probe: 4711,
        library: 0,
        stack: 0,
        sp: TOP,
        around_ns: 0,
        result: 0,
        unread: 0,
        flags: 0,
        values: [0; MAX_VALUES],
    };
    s.apply(&Event::Call(call));
    assert_eq!(s.lost(LossKind::CallsUnknown), 1);
    // The entry was lost: the kernel is known nevertheless, if it was kept.
    s.leave("zeKernelCreate", LOADER, 0, &[0x21]);
    assert_eq!(s.lost(LossKind::CallsNoEntry), 1);
    s.sp = TOP;
    s.launch(0x10, 0x21);
    assert_eq!(s.names(), ["[kernel without a name]"]);
    assert_eq!(s.told.calls.len(), 1);
}

#[test]
fn exits_lost_at_any_depth_do_not_wedge_a_thread() {
    let mut s = Script::new();
    s.call("zeCommandListCreateImmediate", &[1, 2], &[0x10]);
    for round in 0..200_u64 {
        for _ in 0..round % 40 {
            s.enter("dnnl_primitive_execute", LOADER, &[]);
        }
        s.sp = TOP;
        s.open.clear();
        s.launch(0x10, 0x21);
        let call = s.told.calls.last().unwrap();
        assert_eq!(
            (call.nesting.depth, call.end_ns),
            (0, Some(s.now)),
            "round {round}"
        );
    }
    assert_eq!(s.told.launches.len(), 200);
}

/// A generator of numbers without a pattern (xorshift64*).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }
}

#[test]
fn any_events_are_survived_and_room_comes_back() {
    for seed in 0..30 {
        let mut random = Random::new(seed + 1);
        let mut s = Script::with(small(), probes());
        let count = s.probes.len() as u64;
        for now in 0..3000 {
            let pid = 1 + random.below(6) as u32;
            let flags = [0, CALL_EXIT, 2, 0xffff, 64][random.below(5) as usize];
            let tid = pid * 2 + random.below(2) as u32;
            let probe = random.below(count + 1) as u32;
            let event = match random.below(8) {
                0 => {
                    let data = CallData {
                        time_ns: now - random.below(2).min(now),
                        pid,
                        tid,
                        probe,
                        tag: random.below(3) as u8,
                        unread: random.below(4) == 0,
                        offset: random.below(3) * 8,
                        total: random.next() >> random.below(64),
                        bytes: vec![random.below(20) as u8; random.below(40) as usize],
                    };
                    Event::CallData(data)
                }
                _ => Event::Call(Call {
                    time_ns: now,
                    cpu: 0,
                    pid,
                    tid,
                    probe,
                    library: random.below(5) as u32,
                    stack: random.below(3),
                    sp: [0, TOP, TOP - 8, TOP - 64, u64::MAX, 1][random.below(6) as usize],
                    around_ns: [0, now.wrapping_sub(random.below(9)), u64::MAX]
                        [random.below(3) as usize],
                    result: random.below(3),
                    unread: (random.next() & random.next()) as u16,
                    flags,
                    values: std::array::from_fn(|_| random.below(20)),
                }),
            };
            s.apply(&event);
        }
        s.finish();
        for pid in 1..8 {
            s.pid = pid;
            s.process(pid, aiprof_model::wire::ProcessEventKind::Exit);
        }
        assert!(s.tracker.is_idle(), "seed {seed}: {:?}", s.tracker);
    }
}
