//! What a call costs here: it must be far below what it costs the program.

use crate::correlate::script::{DRIVER, LOADER, Script, probes};
use crate::correlate::{CallSink, Tracked, Tracker, TrackerLimits};
use aiprof_common::{CALL_EXIT, CALL_TAIL};
use aiprof_model::wire::{Call, Event};

struct Count(u64);

impl CallSink for Count {
    fn found(&mut self, found: &Tracked<'_>) {
        match found {
            Tracked::Call(call) => self.0 += u64::from(!call.nesting.is_part),
            Tracked::Launch(launch) => self.0 += launch.id & 1,
            _ => {}
        }
    }
}

/// Records the events of one launch through loader and driver with all exits.
fn events() -> Vec<Event> {
    let script = Script::with(TrackerLimits::default(), probes());
    let probe = script.probe("zeCommandListAppendLaunchKernel").id;
    let mut call = Call {
        time_ns: 0,
        cpu: 0,
        pid: 1,
        tid: 1,
        probe,
        library: LOADER,
        stack: 1,
        sp: 0x7000,
        around_ns: 0,
        result: 0,
        unread: 0,
        flags: 0,
        values: [0x10, 0x20, 0x30, 1, 2, 3, 0, 0, 0, 0, 0, 0],
    };
    let loader = Event::Call(call.clone());
    call.library = DRIVER;
    call.flags = CALL_TAIL;
    let driver = Event::Call(call.clone());
    call.flags = CALL_EXIT;
    vec![loader, driver, Event::Call(call)]
}

/// Time that this thread has run, nanoseconds.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

/// Run with `--release` and `--ignored --nocapture`: prints nanoseconds per call.
#[test]
#[ignore = "a measurement, not a check"]
fn time_of_a_launch() {
    let mut tracker = Tracker::new(TrackerLimits::default());
    let mut count = Count(0);
    for probe in probes() {
        tracker.apply(&Event::Probe(probe), &mut count);
    }
    let mut events = events();
    const CALLS: u32 = 2_000_000;
    let begin = cpu_ns();
    for now in 0..CALLS {
        for event in &mut events {
            if let Event::Call(call) = event {
                call.time_ns = u64::from(now) + 1;
                // Inside of the loader's call, that of the exit included.
                call.around_ns = if call.flags == 0 { 0 } else { call.time_ns };
            }
            tracker.apply(event, &mut count);
        }
    }
    let each = (cpu_ns() - begin) / u64::from(CALLS);
    println!(
        "{each} ns for a launch of three events; {} counted",
        count.0
    );
    assert_eq!(tracker.counts().launches, u64::from(CALLS));
}
