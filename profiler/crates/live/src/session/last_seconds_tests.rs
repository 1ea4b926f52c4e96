//! The last seconds, fed with events of known times.

use super::*;
use aiprof_model::{
    probes::{Probe, ResultKind},
    wire::{CallStack, FileKey, MapEvent, Pause, StopReason, Thread},
};

const SECOND: u64 = 1_000_000_000;

fn process(time_ns: u64, pid: u32, kind: ProcessEventKind) -> Event {
    Event::Process(ProcessEvent {
        time_ns,
        pid,
        tid: pid,
        kind,
    })
}

fn exec(time_ns: u64, pid: u32) -> [Event; 2] {
    let map = MapEvent {
        start: 0x1000,
        len: 0x1000,
        file_offset: 0x400,
        file: FileKey {
            path: format!("/bin/{pid}"),
            build_id: None,
            device: 1,
            inode: u64::from(pid),
            version: 0,
        },
    };
    let comm = format!("p{pid}");
    [
        process(time_ns, pid, ProcessEventKind::Exec { comm }),
        process(time_ns + 1, pid, ProcessEventKind::Map(map)),
    ]
}

fn sample(time_ns: u64) -> Sample {
    Sample {
        time_ns,
        cpu: 0,
        thread: Thread {
            pid: 7,
            tid: 7,
            comm: "t".into(),
        },
        cgroup: 0,
        period: 1,
        space: 0,
        miss_dir: 0,
        miss_page: 0,
        stop: StopReason::End,
        flags: 0,
        rip: 0,
        rsp: 0,
        rbp: 0,
        user: vec![0x1100],
        kernel: Vec::new(),
        python: Vec::new(),
    }
}

fn probe(id: u32, kind: CallKind) -> Event {
    Event::Probe(Probe {
        id,
        table: "t".into(),
        api: "T".into(),
        function: "f".into(),
        kind,
        role: None,
        is_ioctl: false,
        values: Vec::new(),
        data: Vec::new(),
        result: ResultKind::None,
        has_exit: true,
        layout: None,
    })
}

fn call(time_ns: u64, pid: u32, probe: u32, around_ns: u64) -> Event {
    Event::Call(Call {
        time_ns,
        cpu: 0,
        pid,
        tid: pid,
        probe,
        library: 0,
        stack: 0,
        sp: 8,
        around_ns,
        result: 0,
        unread: 0,
        flags: 0,
        values: [0; aiprof_common::MAX_VALUES],
    })
}

/// As the session does, which has the processes as they are.
fn take(last: &mut LastSeconds, event: &Event) {
    last.take(event, &ProcessTable::default());
}

fn dump(last: &mut LastSeconds, now_ns: u64) -> (Vec<Event>, DumpExtent) {
    let mut events = Vec::new();
    let extent = last.dump(now_ns, |event| events.push(event.clone()));
    (events, extent)
}

#[test]
fn only_events_of_the_window_stay_and_what_they_refer_to() {
    let mut last = LastSeconds::new(10 * SECOND, 0);
    let (module, launch, memory) = (1, 2, 3);
    take(&mut last, &probe(module, CallKind::Module));
    take(&mut last, &probe(launch, CallKind::Launch));
    take(&mut last, &probe(memory, CallKind::Alloc));
    exec(SECOND, 7)
        .iter()
        .for_each(|event| take(&mut last, event));
    take(&mut last, &call(2 * SECOND, 7, module, 0));
    take(&mut last, &call(2 * SECOND + 5, 7, module, 2 * SECOND));
    take(&mut last, &call(2 * SECOND + 7, 7, memory, 0));
    let stack = sample(3 * SECOND);
    take(
        &mut last,
        &Event::CallStack(CallStack {
            id: 4,
            sample: stack,
        }),
    );
    take(&mut last, &call(3 * SECOND, 7, launch, 0));
    take(&mut last, &Event::Sample(sample(4 * SECOND)));
    take(&mut last, &Event::Sample(sample(15 * SECOND)));
    take(&mut last, &call(16 * SECOND, 7, launch, 0));
    let (events, extent) = dump(&mut last, 20 * SECOND);
    assert_eq!((extent.from_ns, extent.to_ns), (10 * SECOND, 20 * SECOND));
    let count = |is_it: &dyn Fn(&Event) -> bool| events.iter().filter(|e| is_it(e)).count();
    assert_eq!(count(&|e| matches!(e, Event::Probe(_))), 3);
    assert_eq!(count(&|e| matches!(e, Event::Sample(_))), 1);
    assert_eq!(count(&|e| matches!(e, Event::CallStack(_))), 1);
    let calls = |of| count(&|e| matches!(e, Event::Call(call) if call.probe == of));
    assert_eq!((calls(module), calls(launch), calls(memory)), (2, 1, 1));
    let snapshot = events.iter().find_map(|event| match event {
        Event::Process(ProcessEvent {
            kind: ProcessEventKind::Snapshot { comm, maps },
            ..
        }) => Some((comm.as_str(), maps.len())),
        _ => None,
    });
    assert_eq!(snapshot, Some(("p7", 1)));
    // What is older stands just before the begin, in its order.
    let times: Vec<u64> = events
        .iter()
        .map(Event::time_ns)
        .filter(|t| *t > 0)
        .collect();
    assert!(times.is_sorted(), "{times:?}");
    assert!(times[0] > 10 * SECOND - 100, "{times:?}");
    let exit = events.iter().find_map(|event| match event {
        Event::Call(call) if call.around_ns != 0 => Some(call.around_ns),
        _ => None,
    });
    let entry = events.iter().find_map(|event| match event {
        Event::Call(call) if call.probe == module => Some(call.time_ns),
        _ => None,
    });
    assert_eq!(exit, entry);
    // Again, with the same content.
    assert_eq!(dump(&mut last, 20 * SECOND).0, events);
}

#[test]
fn stacks_are_of_the_mappings_of_their_process_or_visibly_not() {
    let mut live = ProcessTable::default();
    for event in exec(SECOND, 7) {
        if let Event::Process(event) = event {
            live.apply(&event);
        }
    }
    let space = live.get(7).unwrap().space.id;
    let mut last = LastSeconds::new(10 * SECOND, 0);
    for (at, space) in [(1, space), (2, space + 1), (3, 0)] {
        let time_ns = at * SECOND;
        let sample = Sample {
            space,
            ..sample(time_ns)
        };
        last.take(&Event::Sample(sample), &live);
    }
    let (events, _) = dump(&mut last, 4 * SECOND);
    let spaces: Vec<u32> = events
        .iter()
        .filter_map(|event| match event {
            Event::Sample(sample) => Some(sample.space),
            _ => None,
        })
        .collect();
    assert_eq!(spaces, [0, u32::MAX, 0]);
}

#[test]
fn what_processes_made_goes_with_them() {
    let mut last = LastSeconds::new(SECOND, 0);
    take(&mut last, &probe(1, CallKind::Module));
    for pid in [7, 8] {
        exec(SECOND, pid)
            .iter()
            .for_each(|event| take(&mut last, event));
        take(&mut last, &call(2 * SECOND, pid, 1, 0));
    }
    take(&mut last, &process(3 * SECOND, 7, ProcessEventKind::Exit));
    // A thread of process 8 ends; the process goes on.
    let mut thread = process(4 * SECOND, 8, ProcessEventKind::Exit);
    if let Event::Process(event) = &mut thread {
        event.tid = 9;
    }
    take(&mut last, &thread);
    take(&mut last, &Event::Sample(sample(20 * SECOND)));
    take(&mut last, &process(21 * SECOND, 8, ProcessEventKind::Exit));
    take(&mut last, &Event::Sample(sample(21 * SECOND + 1)));
    let (events, _) = dump(&mut last, 21 * SECOND + 2);
    let pids: Vec<u32> = events
        .iter()
        .filter_map(|event| match event {
            Event::Call(call) => Some(call.pid),
            _ => None,
        })
        .collect();
    assert_eq!(pids, [8]);
}

#[test]
fn memory_is_bounded_and_the_window_gets_shorter() {
    let mut last = LastSeconds::new(1000 * SECOND, 0);
    let big = Sample {
        user: vec![1; 1 << 17],
        ..sample(0)
    };
    for second in 1..=600 {
        take(
            &mut last,
            &Event::Sample(Sample {
                time_ns: second * SECOND,
                ..big.clone()
            }),
        );
        assert!(last.recent_bytes <= MAX_RECENT + (2 << 20));
    }
    let (events, extent) = dump(&mut last, 600 * SECOND);
    assert_eq!(events.len() as u64 + extent.shortened, 600);
    assert!(extent.shortened > 300);
    assert_eq!(extent.from_ns, extent.shortened * SECOND);
}

#[test]
fn what_lasts_is_bounded_too() {
    let mut last = LastSeconds::new(SECOND, 0);
    take(&mut last, &probe(1, CallKind::Event));
    take(&mut last, &probe(2, CallKind::Alloc));
    let many = (2 * MAX_LASTING / size_of::<Event>()) as u64;
    for at in 0..many {
        take(&mut last, &call(SECOND + at, 7, 2, 0));
    }
    take(&mut last, &Event::Sample(sample(30 * SECOND)));
    assert!(last.passing.bytes <= MAX_LASTING);
    let (_, extent) = dump(&mut last, 30 * SECOND);
    assert!(extent.forgotten > many / 4, "{extent:?}");
}

#[test]
fn pauses_in_the_window_are_known() {
    let mut last = LastSeconds::new(10 * SECOND, 0);
    let pause = |at: u64, begins| {
        Event::Pause(Pause {
            time_ns: at * SECOND,
            begins,
        })
    };
    take(&mut last, &pause(1, true));
    take(&mut last, &Event::Sample(sample(12 * SECOND)));
    take(&mut last, &pause(13, false));
    take(&mut last, &pause(15, true));
    // From 10 to 13, and from 15 to 20.
    let (events, extent) = dump(&mut last, 20 * SECOND);
    assert_eq!(extent.paused_ns, 8 * SECOND);
    let begins = |event: &&Event| matches!(event, Event::Pause(pause) if pause.begins);
    assert_eq!(events.iter().filter(begins).count(), 2);
}
