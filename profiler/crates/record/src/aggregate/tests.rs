use super::*;
use crate::recording::Recording;
use aiprof_common::{ADDR_EXACT, ADDR_GUESSED};
use aiprof_model::wire::{
    FileKey, MapEvent, ProcessEvent, ProcessEventKind, ProcessLabels, StopReason, Thread,
};

pub(super) fn sample(pid: u32, user: &[u64], stop: StopReason) -> Event {
    Event::Sample(Sample {
        time_ns: 5,
        cpu: 0,
        thread: Thread {
            pid,
            tid: pid,
            comm: "t".into(),
        },
        cgroup: 0,
        period: 7,
        space: 0,
        miss_dir: 0,
        miss_page: 0,
        stop,
        flags: 0,
        rip: 0,
        rsp: 0,
        rbp: 0,
        user: user.to_vec(),
        kernel: Vec::new(),
        python: vec![],
    })
}

pub(super) fn exec_with_map(pid: u32, path: &str) -> [Event; 2] {
    let event = |kind| {
        Event::Process(ProcessEvent {
            time_ns: 1,
            pid,
            tid: pid,
            kind,
        })
    };
    let file = FileKey {
        path: path.into(),
        build_id: None,
        device: 1,
        inode: 2,
        version: 0,
    };
    let map = MapEvent {
        start: 0x1000,
        len: 0x1000,
        file_offset: 0x400,
        file,
    };
    [
        event(ProcessEventKind::Exec {
            comm: "prog".into(),
        }),
        event(ProcessEventKind::Map(map)),
    ]
}

pub(super) fn run(events: &[Event]) -> (Aggregator, Recording) {
    let mut recording = Recording::default();
    let mut aggregate = Aggregator::new(10, Limits::default());
    for event in events {
        recording.apply(event, &mut [&mut aggregate]).unwrap();
    }
    (aggregate, recording)
}

#[test]
fn return_addresses_step_back_into_the_call_and_exact_ones_do_not() {
    let [exec, map] = exec_with_map(1, "/bin/prog");
    let stack = [0x1010, 0x1100, 0x1200 | ADDR_EXACT];
    let (aggregate, _) = run(&[exec, map, sample(1, &stack, StopReason::End)]);
    let offsets: Vec<u64> = aggregate
        .codes_from(0)
        .iter()
        .map(|c| match c {
            Code::File { offset, .. } => *offset,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(offsets, [0x410, 0x4ff, 0x600]);
}

#[test]
fn labels_that_come_late_are_those_of_earlier_samples_of_the_same_program() {
    let process = |pid, kind| {
        Event::Process(ProcessEvent {
            time_ns: 1,
            pid,
            tid: pid,
            kind,
        })
    };
    let labels = |pid, key: &str, value: &str| {
        Event::Labels(ProcessLabels {
            time_ns: 1,
            pid,
            labels: vec![(key.into(), value.into())],
        })
    };
    let exec = |pid, comm: &str| process(pid, ProcessEventKind::Exec { comm: comm.into() });
    let (aggregate, recording) = run(&[
        labels(0, "job", "nightly"),
        exec(1, "launcher"),
        sample(1, &[], StopReason::End),
        labels(1, "user", "root"),
        process(2, ProcessEventKind::Fork { parent: 1 }),
        exec(2, "worker"),
        sample(2, &[], StopReason::End),
        labels(2, "rank", "3"),
        // Another program in the same process, of another user.
        exec(1, "next"),
        labels(1, "user", "bob"),
        sample(1, &[], StopReason::End),
    ]);
    let profile = build_profile(
        &aggregate,
        &recording.processes.files,
        &NoNames,
        Default::default(),
    );
    let mut found: Vec<String> = profile
        .samples
        .iter()
        .map(|sample| {
            let process = &profile.processes[sample.process.0 as usize];
            let labels = profile.shown_labels(sample);
            let labels = labels.iter().map(|(key, value)| format!(" {key}={value}"));
            format!(
                "{}{}",
                profile.str(process.comm),
                labels.collect::<String>()
            )
        })
        .collect();
    found.sort();
    let expected = [
        "launcher job=nightly user=root",
        "next job=nightly user=bob",
        "worker job=nightly rank=3 user=root",
    ];
    assert_eq!(found, expected);
}

#[test]
fn weights_add_up_and_cut_stacks_stay_visible() {
    let [exec, map] = exec_with_map(1, "/bin/prog");
    let (aggregate, recording) = run(&[
        exec,
        map,
        sample(1, &[0x1010], StopReason::End),
        sample(1, &[0x1010], StopReason::End),
        sample(1, &[0x1010], StopReason::Read),
        sample(9, &[0x55], StopReason::NoProcess),
    ]);
    let profile = build_profile(
        &aggregate,
        &recording.processes.files,
        &NoNames,
        Default::default(),
    );
    assert_eq!((profile.total_count(), profile.total_time_ns()), (4, 40));
    assert_eq!(profile.losses.cut_stacks(), 2);
    let roots: Vec<&str> = profile
        .samples
        .iter()
        .filter_map(|s| profile.stack_frames(s.stack).next())
        .map(|f| profile.str(f.name))
        .collect();
    assert!(
        roots.contains(&"[stack cut: memory not readable]"),
        "{roots:?}"
    );
    assert!(
        roots.contains(&"[stack cut: process not known yet]"),
        "{roots:?}"
    );
    assert!(roots.contains(&"[no symbols prog]"), "{roots:?}");
}

#[test]
fn a_stack_of_a_replaced_image_keeps_only_its_leaf() {
    let [exec, map] = exec_with_map(1, "/bin/prog");
    let Event::Sample(mut old) = sample(1, &[0x1010, 0x1020], StopReason::End) else {
        unreachable!()
    };
    old.space = 4711;
    let (aggregate, recording) = run(&[exec, map, Event::Sample(old)]);
    let profile = build_profile(
        &aggregate,
        &recording.processes.files,
        &NoNames,
        Default::default(),
    );
    assert_eq!(profile.losses.get(LossKind::StackStaleImage), 1);
    assert_eq!(aggregate.codes_from(0).len(), 2, "leaf and the mark");
}

#[test]
fn a_stack_of_another_process_under_the_same_id_is_no_exec() {
    let [exec, map] = exec_with_map(1, "/bin/prog");
    let fork = Event::Process(ProcessEvent {
        time_ns: 1,
        pid: 3,
        tid: 3,
        kind: ProcessEventKind::Fork { parent: 1 },
    });
    let Event::Sample(mut old) = sample(3, &[0x1010, 0x1020], StopReason::End) else {
        unreachable!()
    };
    old.space = 4711;
    let (aggregate, recording) = run(&[exec, map, fork, Event::Sample(old)]);
    let profile = build_profile(
        &aggregate,
        &recording.processes.files,
        &NoNames,
        Default::default(),
    );
    assert_eq!(profile.losses.get(LossKind::StackStaleImage), 0);
    assert_eq!(profile.losses.get(LossKind::StackNoProcess), 1);
}

#[test]
fn a_guessed_caller_is_marked() {
    let [exec, map] = exec_with_map(1, "/bin/prog");
    let both = [0x1010 | ADDR_GUESSED, 0x1020];
    let alone = [0x1010 | ADDR_GUESSED];
    let vsyscall = [0xffff_ffff_ff60_0000, 0x1020];
    let stacks = [&both[..], &alone, &vsyscall].map(|stack| sample(1, stack, StopReason::End));
    let [both, alone, vsyscall] = stacks;
    let (aggregate, recording) = run(&[exec, map, both, alone, vsyscall]);
    let profile = build_profile(
        &aggregate,
        &recording.processes.files,
        &NoNames,
        Default::default(),
    );
    let names = |n: usize| -> Vec<&str> {
        let frames = profile.stack_frames(profile.samples[n].stack);
        frames.map(|f| profile.str(f.name)).collect()
    };
    let of: Vec<_> = (0..profile.samples.len()).map(names).collect();
    let code = "[no symbols prog]";
    assert!(of.contains(&vec![code, "[caller guessed]", code]), "{of:?}");
    assert!(of.contains(&vec![code]), "{of:?}");
    assert!(of.contains(&vec![code, "[vsyscall]"]), "{of:?}");
}

#[test]
fn full_tables_refuse_and_count() {
    let mut recording = Recording::default();
    let limits = Limits {
        codes: 100,
        stack_frames: 4,
        samples: 1,
    };
    let mut aggregate = Aggregator::new(0, limits);
    for event in [
        sample(1, &[1], StopReason::End),
        sample(1, &[1], StopReason::End),
        sample(2, &[1], StopReason::End),
        sample(1, &[1, 2, 3, 4, 5, 6], StopReason::End),
    ] {
        recording.apply(&event, &mut [&mut aggregate]).unwrap();
    }
    assert_eq!(aggregate.losses.get(LossKind::TableFull), 2);
    assert_eq!(aggregate.taken, 4);
}

#[test]
fn counter_samples_share_their_cpus_busy_time() {
    let mut recording = Recording::default();
    let mut aggregate = Aggregator::new(0, Limits::default());
    for (cpu, period, pid) in [(0, 300, 1), (0, 100, 2), (1, 5, 1), (2, 9, 3)] {
        let Event::Sample(mut one) = sample(pid, &[1], StopReason::End) else {
            unreachable!()
        };
        (one.cpu, one.period) = (cpu, period);
        recording
            .apply(&Event::Sample(one), &mut [&mut aggregate])
            .unwrap();
    }
    let busy = std::collections::BTreeMap::from([(0, 8000), (1, 500)]);
    aggregate.complete(&busy, 77);
    let mut times: Vec<u64> = aggregate
        .table
        .samples
        .values()
        .map(|w| w.time_ns)
        .collect();
    times.sort_unstable();
    assert_eq!(times, [77, 500, 2000, 6000]);
}
