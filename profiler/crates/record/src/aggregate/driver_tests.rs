//! Launches with the frames of the driver that handed them over.

use super::*;
use crate::correlate::script::{LOADER, Script};
use crate::recording::Recording;
use aiprof_formats::export::{self, ExportOptions, Weight, summary::SummaryOptions};
use aiprof_model::{
    profile::{FrameKind, Profile},
    wire::{FileKey, MapEvent, ProcessEvent, ProcessEventKind},
};
use aiprof_symbols::symbolize::SymFrame;

const APPEND: &str = "zeCommandListAppendLaunchKernel";
const EXECUTE: &str = "zeCommandQueueExecuteCommandLists";
const IOCTL: &str = "DRM_IOCTL_XE_EXEC";
const QUEUE: u64 = 0x31;
const LIST: u64 = 0x12;
const IMMEDIATE: u64 = 0x11;
const KERNEL: [u64; 2] = [0xffff_8000_0000_0010, 0xffff_8000_0000_0020];

/// Names by the offset in the file, all of which is mapped at `MAP`.
struct ByOffset(FxHashMap<Code, Vec<SymFrame>>);

const MAP: u64 = 0x1000;

impl ByOffset {
    fn new() -> Self {
        let native = |name: &str| vec![SymFrame::plain(name, FrameKind::Native)];
        let file = |offset: u64| Code::File { file: 0, offset };
        let kernel = |at: u64| Code::Kernel { address: at };
        let mut all: FxHashMap<Code, Vec<SymFrame>> = FxHashMap::default();
        for (offset, name) in [
            (0x10, "main"),
            (0x20, "train"),
            (0x30, "flush_all"),
            (0x90, APPEND),
            (0xa0, EXECUTE),
            (0xb0, "submit"),
            (0xc0, "ioctl"),
        ] {
            all.insert(file(offset), native(name));
        }
        let inlined = SymFrame::plain("inlined", FrameKind::Inlined);
        all.insert(file(0x98), [native(APPEND), vec![inlined]].concat());
        all.insert(
            kernel(KERNEL[0]),
            vec![SymFrame::plain("xe_exec_ioctl", FrameKind::Kernel)],
        );
        let outer = SymFrame::plain("__x64_sys_ioctl", FrameKind::Kernel);
        all.insert(kernel(KERNEL[1] - 1), vec![outer]);
        Self(all)
    }
}

impl NameSource for ByOffset {
    fn frames(&self, code: &Code) -> &[SymFrame] {
        self.0.get(code).map_or(&[], Vec::as_slice)
    }

    fn file_address(&self, _: u32, offset: u64) -> u64 {
        offset
    }

    fn cgroup(&self, _: u64) -> Option<&str> {
        None
    }
}

/// The stack of a function's calls: offsets, leaf first.
fn stack(s: &mut Script, function: &str, kernel: &[u64], user: &[u64]) {
    let id = s.stack(function);
    // An address is that of the next instruction, but the leaf's.
    let user = user.iter().enumerate();
    let user = user.map(|(at, offset)| MAP + offset + u64::from(at > 0));
    let user: Vec<u64> = user.collect();
    s.send_stack(id, user, kernel.to_vec());
}

fn script() -> Script {
    let mut s = Script::new();
    let mut process = |kind| {
        s.apply(&Event::Process(ProcessEvent {
            time_ns: 1,
            pid: 1,
            tid: 1,
            kind,
        }));
    };
    process(ProcessEventKind::Exec {
        comm: "train".into(),
    });
    process(ProcessEventKind::Map(MapEvent {
        start: MAP,
        len: 0x1000,
        file_offset: 0,
        file: FileKey {
            path: "/bin/train".into(),
            build_id: None,
            device: 1,
            inode: 2,
            version: 0,
        },
    }));
    s.call("zeCommandListCreateImmediate", &[1, 2], &[IMMEDIATE]);
    s.call("zeCommandListCreate", &[1, 2], &[LIST]);
    s.call("zeCommandQueueCreate", &[1, 2], &[QUEUE]);
    s.kernel("gemm", 0x21);
    stack(&mut s, APPEND, &[], &[0x88, 0x20, 0x10]);
    stack(&mut s, EXECUTE, &[], &[0xa8, 0x30, 0x10]);
    s
}

fn ioctl(s: &mut Script) {
    s.enter(IOCTL, 0, &[]);
    s.leave(IOCTL, 0, 0, &[]);
}

fn launch(s: &mut Script) {
    s.enter(APPEND, LOADER, &[IMMEDIATE, 0x21]);
    ioctl(s);
    s.leave(APPEND, LOADER, 0, &[]);
}

fn profile(events: &[Event], with_driver: bool) -> Profile {
    let mut recording = Recording::default();
    let aggregate = Aggregator::of_calls(false, Limits::default());
    let mut aggregate = aggregate.with_driver_frames(with_driver);
    for event in events {
        recording.apply(event, &mut [&mut aggregate]).unwrap();
    }
    recording.finish(1_000_000, &mut [&mut aggregate]);
    aggregate.losses.merge(&recording.take_losses());
    aggregate.complete(&Default::default(), 0);
    build_profile(
        &aggregate,
        &recording.processes.files,
        &ByOffset::new(),
        Default::default(),
    )
}

fn folded(profile: &Profile) -> String {
    let mut out = Vec::new();
    let options = ExportOptions {
        weight: Weight::Samples,
        ..ExportOptions::default()
    };
    export::folded::write(profile, &options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

const DRIVER: &str = "submit;ioctl;__x64_sys_ioctl_[k];xe_exec_ioctl_[k]";

#[test]
fn the_driver_and_the_kernel_stand_below_the_function_that_launched() {
    let mut s = script();
    stack(&mut s, IOCTL, &KERNEL, &[0xc0, 0xb0, 0x90, 0x20, 0x10]);
    launch(&mut s);
    launch(&mut s);
    s.launch(IMMEDIATE, 0x21);
    let with = profile(&s.events, true);
    let path = format!("train;1;main;train;{APPEND}");
    let expected = format!("{path};-;gemm_[G] 1\n{path};{DRIVER};-;gemm_[G] 2\n");
    assert_eq!(folded(&with), expected);
    assert_eq!(with.losses.get(LossKind::DriverFramesUnknown), 0);
    let without = profile(&s.events, false);
    assert_eq!(folded(&without), format!("{path};-;gemm_[G] 3\n"));
    // Each is a launch of the function that the program called.
    let mut out = Vec::new();
    export::summary::write(&with, &SummaryOptions::default(), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let called = text.split("Functions called").nth(1).unwrap();
    assert!(called.lines().nth(2).unwrap().ends_with(APPEND), "{text}");
    assert!(!called.contains("xe_exec_ioctl"), "{text}");
}

#[test]
fn what_is_inlined_into_the_function_is_shown_and_the_function_once() {
    let mut s = script();
    stack(&mut s, IOCTL, &[], &[0xc0, 0xb0, 0x98, 0x20, 0x10]);
    launch(&mut s);
    let path = format!("train;1;main;train;{APPEND};inlined_[i];submit;ioctl;-;gemm_[G] 1\n");
    assert_eq!(folded(&profile(&s.events, true)), path);
}

#[test]
fn an_executed_list_has_the_function_that_submitted_it_and_not_who_called_that() {
    let mut s = script();
    stack(&mut s, IOCTL, &KERNEL, &[0xc0, 0xb0, 0xa0, 0x30, 0x10]);
    s.launch(LIST, 0x21);
    s.enter(EXECUTE, LOADER, &[QUEUE]);
    s.array(EXECUTE, 0, &[LIST]);
    ioctl(&mut s);
    s.leave(EXECUTE, LOADER, 0, &[]);
    let path = format!("train;1;main;train;{APPEND};{EXECUTE};{DRIVER};-;gemm_[G] 1\n");
    assert_eq!(folded(&profile(&s.events, true)), path);
}

/// A stack that is lost, one that was left out, and one of somebody else's.
#[test]
fn stacks_that_do_not_fit_are_counted() {
    let mut s = script();
    launch(&mut s);
    launch(&mut s);
    stack(&mut s, IOCTL, &[], &[0xc0, 0xb0, 0x90, 0x30, 0x10]);
    launch(&mut s);
    let path = format!("train;1;main;train;{APPEND}");
    let profile_of = |s: &Script| profile(&s.events, true);
    assert_eq!(folded(&profile_of(&s)), format!("{path};-;gemm_[G] 3\n"));
    let losses = profile_of(&s).losses;
    assert_eq!(losses.get(LossKind::DriverFramesUnknown), 3);
    // It comes with the next one of its kind.
    stack(&mut s, IOCTL, &[], &[0xc0, 0xb0, 0x90, 0x20, 0x10]);
    launch(&mut s);
    let expected = format!("{path};-;gemm_[G] 3\n{path};submit;ioctl;-;gemm_[G] 1\n");
    assert_eq!(folded(&profile_of(&s)), expected);
}
