//! What calls reveal of devices.

use crate::correlate::script::{DRIVER, LOADER, Script, probe, probes};
use crate::correlate::{DeviceFactKind, TrackerLimits, device::Waited};
use aiprof_model::probes::{CallKind, ProbeRole};

const ZE: &str = "Level Zero";
const EXECUTE: &str = "zeCommandQueueExecuteCommandLists";
const WAIT: &str = "zeFenceHostSynchronize";
const QUERY: &str = "zeEventQueryStatus";
const TIMES: &str = "zeEventQueryKernelTimestamp";
const PROPERTIES: &str = "zeDeviceGetProperties";
const NOW: &str = "zeDeviceGetGlobalTimestamps";
const WAIT_EVENTS: &str = "clWaitForEvents";
const WAIT_ALL: &str = "aiuScheduleWait";
const PROFILING: &str = "clGetEventProfilingInfo";
const CAPACITY: &str = "aiuWaitForQueueCapacity";

fn script() -> Script {
    use CallKind::{Context, Event, Submit, Synchronize};
    let mut all = probes();
    all.retain(|probe| probe.function != EXECUTE);
    let given: [(&str, CallKind, &[&str]); 10] = [
        (EXECUTE, Submit, &["queue", "fence", "*lists"]),
        (WAIT, Synchronize, &["fence"]),
        (QUERY, Event, &["event"]),
        (TIMES, Event, &["event", ">global_start", ">global_end"]),
        (
            PROPERTIES,
            Context,
            &["device", ">stype", ">timer_resolution"],
        ),
        (NOW, Context, &["device", ">device_time"]),
        (WAIT_EVENTS, Synchronize, &["count", "*events"]),
        (WAIT_ALL, Synchronize, &[]),
        (CAPACITY, Synchronize, &[]),
        (PROFILING, Event, &["event", "info", ">time"]),
    ];
    for (function, kind, values) in given {
        let id = all.iter().map(|probe| probe.id + 1).max().unwrap_or(0);
        let mut new = probe(id, ZE, function, kind, values);
        if function == WAIT_ALL {
            new.role = Some(ProbeRole::WaitAll);
        }
        all.push(new);
    }
    Script::with(TrackerLimits::default(), all)
}

/// What was reported since the last call, for people.
fn take(s: &mut Script) -> Vec<String> {
    // What waits for data is reported when none can follow any more.
    s.now += 100_000_000;
    s.process(
        s.tid,
        aiprof_model::wire::ProcessEventKind::Comm {
            comm: String::new(),
        },
    );
    let facts = s.told.facts.drain(..);
    let kinds = facts.map(|fact| match fact.kind {
        DeviceFactKind::Ended(what) => format!("{what:?}"),
        DeviceFactKind::Timestamps { event, ticks } => format!("{event:#x} ran {ticks:?}"),
        DeviceFactKind::Profiled {
            event,
            time,
            is_end,
        } => {
            let what = if is_end { "ended" } else { "began" };
            format!("{event:#x} {what} {time}")
        }
        DeviceFactKind::Clock { device, .. } => format!("{device:#x} has a clock"),
        DeviceFactKind::ClockRead { device, ticks } => format!("{device:#x} shows {ticks}"),
    });
    kinds.collect()
}

#[test]
fn a_wait_is_for_what_its_first_handle_is() {
    let mut s = script();
    s.call("zeCommandQueueSynchronize", &[0x31], &[]);
    let fact = s.told.facts.first().cloned();
    let (entered, left) = (s.now - 10, s.now);
    let times = fact.map(|fact| (fact.pid, fact.entered_ns, fact.left_ns));
    assert_eq!(times, Some((1, entered, left)));
    assert_eq!(take(&mut s), [format!("{:?}", Waited::Queue(0x31))]);
    s.call(QUERY, &[0x41], &[]);
    assert_eq!(take(&mut s), [format!("{:?}", Waited::Event(0x41))]);
    // Without a handle it is for nothing.
    s.call(QUERY, &[0], &[]);
    assert_eq!(take(&mut s), Vec::<String>::new());
}

/// Values of cl.h: 0x1280 queued, 0x1282 begun, 0x1283 ended.
#[test]
fn times_of_events_are_begins_and_ends() {
    let mut s = script();
    for (info, time) in [(0x1280, 5), (0x1282, 7), (0x1283, 9), (0x1284, 10)] {
        s.call(PROFILING, &[0x41, info], &[time]);
    }
    assert_eq!(take(&mut s), ["0x41 began 7", "0x41 ended 9"]);
}

#[test]
fn a_fence_stands_for_the_call_that_submitted_with_it() {
    let mut s = script();
    s.call(WAIT, &[0xf], &[]);
    assert_eq!(take(&mut s), Vec::<String>::new());
    s.call(EXECUTE, &[0x31, 0xf], &[]);
    take(&mut s);
    let submit = s.told.calls.last().map_or(0, |call| call.id);
    s.call(WAIT, &[0xf], &[]);
    assert_eq!(take(&mut s), [format!("{:?}", Waited::Submit(submit))]);
    // Another process's fence is another.
    s.pid = 2;
    s.tid = 2;
    s.call(WAIT, &[0xf], &[]);
    assert_eq!(take(&mut s), Vec::<String>::new());
}

#[test]
fn failed_calls_reveal_nothing_and_parts_what_they_know() {
    let mut s = script();
    s.enter(QUERY, LOADER, &[0x41]);
    s.leave(QUERY, LOADER, 0x7800_0004, &[]);
    s.enter(QUERY, LOADER, &[0x41]);
    s.vanish();
    assert_eq!(take(&mut s), Vec::<String>::new());
    // The driver may know the event by another handle, as launches do.
    s.enter(QUERY, LOADER, &[0x41]);
    s.enter(QUERY, DRIVER, &[0x1041]);
    s.leave(QUERY, DRIVER, 0, &[]);
    s.leave(QUERY, LOADER, 0, &[]);
    let both = [Waited::Event(0x1041), Waited::Event(0x41)];
    assert_eq!(take(&mut s), both.map(|event| format!("{event:?}")));
    // A launch is of the outermost call that handed it over.
    s.enter(EXECUTE, LOADER, &[0x31, 0xf]);
    s.enter(EXECUTE, DRIVER, &[0x1031, 0x100f]);
    s.leave(EXECUTE, DRIVER, 0, &[]);
    s.leave(EXECUTE, LOADER, 0, &[]);
    take(&mut s);
    let submit = s.told.calls.last().map_or(0, |call| call.id);
    s.call(WAIT, &[0xf], &[]);
    assert_eq!(take(&mut s), [format!("{:?}", Waited::Submit(submit))]);
}

#[test]
fn a_launch_is_told_before_the_event_that_another_thread_waited_for() {
    let mut s = script();
    s.call("zeCommandListCreateImmediate", &[0xc0, 0xde], &[0x11]);
    take(&mut s);
    s.enter(
        "zeCommandListAppendLaunchKernel",
        LOADER,
        &[0x11, 0x21, 0x41],
    );
    s.vanish();
    s.tid = 2;
    s.call(QUERY, &[0x42], &[]);
    take(&mut s);
    assert_eq!(s.told.launches.len(), 0);
    s.call(QUERY, &[0x41], &[]);
    let at = s.told.launches.first().map(|launch| launch.handed_over_ns);
    assert_eq!((s.told.launches.len(), at), (1, Some(s.now)));
    assert_eq!(take(&mut s), [format!("{:?}", Waited::Event(0x41))]);
}

#[test]
fn a_wait_for_several_events_is_for_each() {
    let mut s = script();
    s.enter(WAIT_EVENTS, LOADER, &[2]);
    s.array(WAIT_EVENTS, 0, &[0x41, 0, 0x42]);
    s.leave(WAIT_EVENTS, LOADER, 0, &[]);
    let both = [Waited::Event(0x41), Waited::Event(0x42)];
    assert_eq!(take(&mut s), both.map(|event| format!("{event:?}")));
}

#[test]
fn a_wait_without_a_handle_is_for_nothing_unless_its_table_says_so() {
    let mut s = script();
    s.call(CAPACITY, &[], &[]);
    assert_eq!(take(&mut s), Vec::<String>::new());
    s.call(WAIT_ALL, &[], &[]);
    assert_eq!(take(&mut s), [format!("{:?}", Waited::All)]);
}

#[test]
fn what_is_not_ready_is_not_over() {
    let mut s = script();
    s.enter(QUERY, LOADER, &[0x41]);
    s.leave(QUERY, LOADER, 1, &[]);
    s.enter("zeCommandQueueSynchronize", LOADER, &[0x31]);
    s.leave("zeCommandQueueSynchronize", LOADER, 1, &[]);
    assert_eq!(take(&mut s), Vec::<String>::new());
}

#[test]
fn clocks_and_what_was_timed_by_them_are_reported() {
    let mut s = script();
    s.call(PROPERTIES, &[0xd0], &[0x2_0006, 19_200_000]);
    s.call(NOW, &[0xd0], &[77]);
    s.call(TIMES, &[0x41], &[100, 140]);
    let all = ["0xd0 has a clock", "0xd0 shows 77", "0x41 ran (100, 140)"];
    assert_eq!(take(&mut s), all);
}

#[test]
fn device_code_is_handed_on_in_its_pieces() {
    let mut s = script();
    s.enter("zeModuleCreate", LOADER, &[0xc, 0xd0, 1]);
    s.data("zeModuleCreate", 0, &[7; 40], 40);
    // A text is none.
    s.kernel("gemm", 0x21);
    assert_eq!(s.told.pieces, [40]);
}
