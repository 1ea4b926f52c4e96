//! Launches and the time in calls, by the stacks that made them.

use super::*;
use crate::correlate::script::{LOADER, Script, UR};
use crate::recording::Recording;
use aiprof_common::CALL_STACK_LIMITED;
use aiprof_formats::export::{self, ExportOptions, Weight};
use aiprof_model::{
    profile::Profile,
    wire::{Call, FileKey, MapEvent, ProcessEvent, ProcessEventKind},
};

const APPEND: &str = "zeCommandListAppendLaunchKernel";
const COPY: &str = "zeCommandListAppendMemoryCopy";

/// The stack of calls of a function, as the script numbers them: the function at
/// the leaf, `caller` in the program, the program's entry.
fn stack(script: &mut Script, function: &str, callers: &[u64]) {
    let id = u64::from(script.probe(function).id) + 1000;
    let mut user = vec![0x9999_0000];
    user.extend(callers);
    script.send_stack(id, user, Vec::new());
}

fn script() -> Script {
    let mut script = Script::new();
    let process = |kind| {
        Event::Process(ProcessEvent {
            time_ns: 1,
            pid: 1,
            tid: 1,
            kind,
        })
    };
    script.apply(&process(ProcessEventKind::Exec {
        comm: "train".into(),
    }));
    script.apply(&process(ProcessEventKind::Map(MapEvent {
        start: 0x1000,
        len: 0x1000,
        file_offset: 0,
        file: FileKey {
            path: "/bin/train".into(),
            build_id: None,
            device: 1,
            inode: 2,
            version: 0,
        },
    })));
    for function in [APPEND, COPY, "urEnqueueKernelLaunch"] {
        stack(&mut script, function, &[0x1010, 0x1020]);
    }
    script.call("zeCommandListCreateImmediate", &[1, 2], &[0x11]);
    script.kernel("gemm", 0x21);
    script
}

/// Names of control groups only.
struct Groups;

impl NameSource for Groups {
    fn frames(&self, _: &Code) -> &[aiprof_symbols::symbolize::SymFrame] {
        &[]
    }

    fn file_address(&self, _: u32, offset: u64) -> u64 {
        offset
    }

    fn cgroup(&self, id: u64) -> Option<&str> {
        (id == 3).then_some("/jobs")
    }
}

fn profile(events: &[Event]) -> Profile {
    let mut recording = Recording::default();
    let mut aggregate = Aggregator::of_calls(true, Limits::default());
    for event in events {
        recording.apply(event, &mut [&mut aggregate]).unwrap();
    }
    recording.finish(1_000_000, &mut [&mut aggregate]);
    aggregate.losses.merge(&recording.take_losses());
    aggregate.complete(&Default::default(), 0);
    build_profile(
        &aggregate,
        &recording.processes.files,
        &Groups,
        Default::default(),
    )
}

fn folded(profile: &Profile, weight: Weight) -> String {
    let mut out = Vec::new();
    let options = ExportOptions {
        weight,
        ..ExportOptions::default()
    };
    export::folded::write(profile, &options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn a_launch_is_its_call_path_the_function_and_the_kernel() {
    let mut s = script();
    for _ in 0..3 {
        s.launch(0x11, 0x21);
    }
    s.call(COPY, &[0x11, 1, 2, 4096], &[]);
    let profile = profile(&s.events);
    let path = "train;1;[no symbols train];[no symbols train]";
    let launches = format!("{path};{APPEND};-;gemm_[G] 3\n{path};{COPY};-;Memcpy (M2M)_[G] 1\n");
    assert_eq!(folded(&profile, Weight::Samples), launches);
    let bytes = format!("{path};{COPY};-;Memcpy (M2M)_[G] 4096\n");
    assert_eq!(folded(&profile, Weight::Bytes), bytes);
    assert_eq!(profile.total_count(), 4);
    let sample = profile.samples.iter().find(|s| s.count == 3).unwrap();
    assert_eq!(sample.cgroup.map(|c| profile.str(c)), Some("/jobs"));
    assert_eq!(profile.str(sample.thread), "worker");
}

#[test]
fn time_in_calls_is_without_the_calls_nested_in_them() {
    let mut s = script();
    s.enter("urEnqueueKernelLaunch", UR, &[]);
    s.now += 5000;
    for ns in [1500, 500] {
        s.enter(COPY, LOADER, &[0x11, 1, 2, 64]);
        s.now += ns;
        s.leave(COPY, LOADER, 0, &[]);
    }
    s.enter(APPEND, LOADER, &[0x11, 0x21]);
    s.now += 30_000;
    s.leave(APPEND, LOADER, 0, &[]);
    s.leave("urEnqueueKernelLaunch", UR, 0, &[]);
    let profile = profile(&s.events);
    let text = folded(&profile, Weight::Time);
    let line = |needle: &str| {
        let found = text.lines().find(|line| line.contains(needle));
        let value = found.and_then(|line| line.rsplit(' ').next());
        value.map(|value| value.parse::<u64>().unwrap())
    };
    assert_eq!(line("urEnqueueKernelLaunch;-;gemm_[G]"), Some(35), "{text}");
    assert_eq!(line("MemoryCopy;-;Memcpy (M2M)_[G]"), Some(2), "{text}");
    // Calls that give the device nothing have their time too, and no launches.
    s.call("zeCommandQueueSynchronize", &[1], &[]);
    let all = profile_time(&s.events);
    assert!(all > profile.total_time_ns());
    assert!(!folded(&profile, Weight::Samples).contains("Synchronize"));
}

fn profile_time(events: &[Event]) -> u64 {
    profile(events).total_time_ns()
}

#[test]
fn calls_without_a_stack_say_why() {
    let mut s = Script::new();
    s.call("zeCommandListCreateImmediate", &[1, 2], &[0x11]);
    s.kernel("gemm", 0x21);
    s.launch(0x11, 0x21);
    s.launch(0x11, 0x21);
    let last = s.events.len() - 4;
    let flags = [CALL_STACK_LIMITED, 0];
    for (event, flags) in s.events[last..].iter_mut().step_by(2).zip(flags) {
        let Event::Call(call) = event else {
            panic!("{event:?}")
        };
        *call = Call {
            flags,
            stack: 0,
            ..call.clone()
        };
    }
    s.launch(0x11, 0x21);
    let profile = profile(&s.events);
    let text = folded(&profile, Weight::Samples);
    for why in [
        "[stack not recorded: limit]",
        "[stack not recorded]",
        "[stack lost]",
    ] {
        let found = text.lines().find(|line| line.contains(why));
        let found = found.unwrap_or_else(|| panic!("{why}: {text}"));
        assert!(
            found.ends_with(&format!(";{why};{APPEND};-;gemm_[G] 1")),
            "{found}"
        );
    }
    assert!(profile.stacks.iter().all(|stack| !stack.complete));
}

/// One call site, run at once and captured.
#[test]
fn launches_of_a_graph_stand_above_the_function_that_executed_it() {
    const LAUNCH: &str = "cuLaunchKernel";
    let mut s = script();
    stack(&mut s, LAUNCH, &[0x1010, 0x1020]);
    let launch = |s: &mut Script| s.call(LAUNCH, &[0x21, 0x5], &[]);
    launch(&mut s);
    s.call("cuStreamBeginCapture", &[0x5], &[]);
    launch(&mut s);
    s.call("cuStreamEndCapture", &[0x5], &[0x71]);
    s.call("cuGraphInstantiate", &[0x71], &[0x72]);
    s.call("cuGraphLaunch", &[0x5, 0x72], &[]);
    s.call("cuGraphLaunch", &[0x5, 0x72], &[]);
    launch(&mut s);
    let path = format!("train;1;[no symbols train];[no symbols train];{LAUNCH}");
    assert_eq!(
        folded(&profile(&s.events), Weight::Samples),
        format!("{path};-;gemm_[G] 2\n{path};cuGraphLaunch;-;gemm_[G] 2\n")
    );
}

#[test]
fn a_new_window_knows_the_stacks_of_before() {
    let mut s = script();
    s.launch(0x11, 0x21);
    let mut recording = Recording::default();
    let mut aggregate = Aggregator::of_calls(true, Limits::default());
    for event in s.events.drain(..) {
        recording.apply(&event, &mut [&mut aggregate]).unwrap();
    }
    aggregate.reset();
    s.launch(0x11, 0x21);
    for event in &s.events {
        recording.apply(event, &mut [&mut aggregate]).unwrap();
    }
    let profile = build_profile(
        &aggregate,
        &recording.processes.files,
        &NoNames,
        Default::default(),
    );
    let text = folded(&profile, Weight::Samples);
    let path = "train;1;[no symbols train];[no symbols train]";
    assert_eq!(text, format!("{path};{APPEND};-;gemm_[G] 1\n"));
}

#[test]
fn a_new_window_names_kernels_of_before_anew() {
    let mut s = script();
    s.launch(0x11, 0x41);
    let mut recording = Recording::default();
    let mut aggregate = Aggregator::of_calls(true, Limits::default());
    for event in s.events.drain(..) {
        recording.apply(&event, &mut [&mut aggregate]).unwrap();
    }
    aggregate.reset();
    s.launch(0x11, 0x21);
    s.launch(0x11, 0x41);
    for event in &s.events {
        recording.apply(event, &mut [&mut aggregate]).unwrap();
    }
    let profile = build_profile(
        &aggregate,
        &recording.processes.files,
        &NoNames,
        Default::default(),
    );
    let text = folded(&profile, Weight::Samples);
    let path = format!("train;1;[no symbols train];[no symbols train];{APPEND};-");
    let before = "[kernel created before attach 0x41]_[G]";
    assert_eq!(text, format!("{path};{before} 1\n{path};gemm_[G] 1\n"));
}

#[test]
fn calls_whose_ends_were_not_seen_are_counted_not_guessed() {
    let mut s = script();
    s.enter(APPEND, LOADER, &[0x11, 0x21]);
    s.vanish();
    // No end of the function was ever seen: it may have none to see.
    let never = profile(&s.events);
    assert_eq!(never.losses.get(LossKind::CallsUntimed), 1);
    assert_eq!(never.losses.get(LossKind::CallsNoEnd), 0);
    assert_eq!(never.total_count(), 1);

    let mut s = script();
    s.launch(0x11, 0x21);
    s.enter(APPEND, LOADER, &[0x11, 0x21]);
    s.vanish();
    let once = profile(&s.events);
    assert_eq!(once.losses.get(LossKind::CallsUntimed), 1);
    assert_eq!(once.losses.get(LossKind::CallsNoEnd), 1);
    assert_eq!(once.total_count(), 2);
}

#[test]
fn a_profile_of_cpu_samples_has_the_addresses_of_calls_named_and_no_more() {
    let s = script();
    let mut recording = Recording::default();
    let mut aggregate = Aggregator::new(10, Limits::default());
    for event in &s.events {
        recording.apply(event, &mut [&mut aggregate]).unwrap();
    }
    let files = |code: &&Code| matches!(code, Code::File { .. });
    assert_eq!(aggregate.codes_from(0).iter().filter(files).count(), 2);
    let profile = build_profile(
        &aggregate,
        &recording.processes.files,
        &NoNames,
        Default::default(),
    );
    assert!(profile.samples.is_empty() && profile.losses.iter().next().is_none());
}

#[test]
fn the_formats_carry_all_three_values() {
    let mut s = script();
    s.launch(0x11, 0x21);
    s.call(COPY, &[0x11, 1, 2, 1 << 20], &[]);
    let profile = profile(&s.events);
    let bytes = ExportOptions {
        weight: Weight::Bytes,
        ..ExportOptions::default()
    };
    let pprof = export::pprof::convert(&profile, &bytes);
    let text = |at: i64| pprof.string_table[usize::try_from(at).unwrap()].as_str();
    let types: Vec<_> = pprof
        .sample_type
        .iter()
        .map(|t| (text(t.r#type), text(t.unit)))
        .collect();
    let expected = [
        ("launches", "count"),
        ("call time", "nanoseconds"),
        ("bytes", "bytes"),
    ];
    assert_eq!(types, expected);
    assert_eq!(text(pprof.default_sample_type), "bytes");
    let sum = |at: usize| pprof.sample.iter().map(|s| s.value[at]).sum::<i64>();
    assert_eq!((sum(0), sum(2)), (2, 1 << 20));
    let mut out = Vec::new();
    export::summary::write(&profile, &Default::default(), &mut out).unwrap();
    let summary = String::from_utf8(out).unwrap();
    assert!(summary.contains("2 launches, 1.00 MiB moved"), "{summary}");
    let row = |name: &str| summary.lines().find(|line| line.ends_with(name));
    assert!(
        row("  gemm").is_some_and(|row| row.trim().starts_with('1')),
        "{summary}"
    );
    assert!(
        row(COPY).is_some_and(|row| row.contains("1.00 MiB")),
        "{summary}"
    );
    assert!(row("train (1)").is_some(), "{summary}");
    let mut svg = Vec::new();
    let options = ExportOptions {
        weight: Weight::Samples,
        ..ExportOptions::default()
    };
    export::svg::write(&profile, &options, &mut svg).unwrap();
    assert!(
        String::from_utf8(svg)
            .unwrap()
            .contains("(2 launches, 100.00%)")
    );
}
