//! What handles mean, and for how long.

use crate::correlate::KernelName;
use crate::correlate::script::{LOADER, Script, UR, named};
use aiprof_model::{profile::LossKind, wire::ProcessEventKind};
use sha2::{Digest, Sha256};

const LIST: u64 = 0x11;

fn script() -> Script {
    let mut script = Script::new();
    script.call("zeCommandListCreateImmediate", &[0xc0, 0xde], &[LIST]);
    script
}

#[test]
fn a_destroyed_kernel_is_forgotten_and_its_handle_gets_the_new_name() {
    let mut s = script();
    s.kernel("first", 0x21);
    s.launch(LIST, 0x21);
    s.call("zeKernelDestroy", &[0x21], &[]);
    s.launch(LIST, 0x21);
    s.kernel("second", 0x21);
    s.launch(LIST, 0x21);
    let expected = ["first", "[kernel created before attach 0x21]", "second"];
    assert_eq!(s.names(), expected);
}

#[test]
fn a_handle_used_again_before_the_destroying_call_returns_keeps_its_new_name() {
    let mut s = script();
    s.kernel("old", 0x21);
    s.enter("zeKernelDestroy", LOADER, &[0x21]);
    let inside = s.sp;
    s.tid = 2;
    s.sp += 0x40;
    s.kernel("new", 0x21);
    s.tid = 1;
    s.sp = inside;
    s.leave("zeKernelDestroy", LOADER, 0, &[]);
    s.launch(LIST, 0x21);
    assert_eq!(s.names(), ["new"]);
}

#[test]
fn failed_calls_change_no_handles() {
    const IN_USE: u64 = 0x7800_0007;
    let mut s = script();
    s.kernel("gemm", 0x21);
    s.enter("zeKernelDestroy", LOADER, &[0x21]);
    s.leave("zeKernelDestroy", LOADER, IN_USE, &[]);
    s.enter("zeKernelCreate", LOADER, &[1]);
    s.data("zeKernelCreate", 0, b"wrong", 0);
    s.leave("zeKernelCreate", LOADER, IN_USE, &[0x21]);
    s.enter("zeKernelSetGroupSize", LOADER, &[0x21, 9, 9, 9]);
    s.leave("zeKernelSetGroupSize", LOADER, IN_USE, &[]);
    s.launch(LIST, 0x21);
    assert_eq!(s.names(), ["gemm"]);
    assert_eq!(s.told.launches[0].work.local, [0; 3]);
}

#[test]
fn owners_are_counted() {
    let mut s = script();
    s.enter("clCreateKernel", LOADER, &[1]);
    s.data("clCreateKernel", 0, b"k", 0);
    s.leave("clCreateKernel", LOADER, 0x21, &[0x21]);
    let call = |s: &mut Script, function: &str| {
        s.enter(function, LOADER, &[0x21]);
        s.leave(function, LOADER, 1, &[]);
    };
    call(&mut s, "clRetainKernel");
    call(&mut s, "clReleaseKernel");
    s.launch(LIST, 0x21);
    call(&mut s, "clReleaseKernel");
    s.launch(LIST, 0x21);
    assert_eq!(s.names(), ["k", "[kernel created before attach 0x21]"]);
}

#[test]
fn a_reference_is_taken_before_another_thread_gives_it_back() {
    let mut s = script();
    s.enter("clCreateKernel", LOADER, &[1]);
    s.data("clCreateKernel", 0, b"k", 0);
    s.leave("clCreateKernel", LOADER, 0x21, &[0x21]);
    // The end of the call that takes it is not seen before the thread's next call.
    s.enter("clRetainKernel", LOADER, &[0x21]);
    s.vanish();
    s.tid = 2;
    s.enter("clReleaseKernel", LOADER, &[0x21]);
    s.leave("clReleaseKernel", LOADER, 1, &[]);
    s.tid = 1;
    s.launch(LIST, 0x21);
    assert_eq!(s.names(), ["k"]);
}

#[test]
fn a_kernel_named_while_its_launch_is_open_has_its_name() {
    let mut s = script();
    s.launch(LIST, 0x21);
    s.enter("zeCommandListAppendLaunchKernel", LOADER, &[LIST, 0x21]);
    s.tracker.name_kernel(1, 0x21, "found", &mut s.told);
    s.leave("zeCommandListAppendLaunchKernel", LOADER, 0, &[]);
    assert_eq!(s.names()[1], "found");
    assert_eq!(s.tracker.take_losses().get(LossKind::KernelsUnnamed), 0);
}

#[test]
fn kernels_of_before_are_named_by_the_scanner_and_by_the_program() {
    let mut s = script();
    s.launch(LIST, 0x21);
    s.launch(LIST, 0x22);
    assert!(s.tracker.is_unnamed(1, 0x21) && !s.tracker.is_unnamed(1, 0x99));
    assert_eq!(s.told.launches[0].work.name, KernelName::BeforeAttach(0x21));
    s.tracker.name_kernel(1, 0x21, "found", &mut s.told);
    assert_eq!(s.told.named, [(1, 0x21, "found".into())]);
    // The name comes behind the exit.
    s.enter("zeKernelGetName", LOADER, &[0x22]);
    s.leave("zeKernelGetName", LOADER, 0, &[]);
    s.data("zeKernelGetName", 0, b"asked", 0);
    s.launch(LIST, 0x21);
    s.launch(LIST, 0x22);
    assert_eq!(s.names()[2..], ["found", "asked"]);
    let told = s
        .told
        .calls
        .iter()
        .find(|c| c.probe.function == "zeKernelGetName");
    assert_eq!(told.unwrap().content(0).unwrap().bytes, b"asked");
    let losses = s.tracker.take_losses();
    // That of the scanner is no loss any more.
    assert_eq!(losses.get(LossKind::KernelsUnnamed), 1);
    assert_eq!(losses.get(LossKind::CallDataIncomplete), 0);
    // A creation that was seen is not overruled.
    s.kernel("mine", 0x23);
    s.tracker.name_kernel(1, 0x23, "scanned", &mut s.told);
    s.launch(LIST, 0x23);
    assert_eq!(s.names()[4..], ["mine"]);
}

/// The program that sends them can be preempted behind the exit.
#[test]
fn data_of_an_end_may_come_after_what_other_threads_did() {
    for (later_ns, lost) in [(0, 0), (99_000_000, 0), (101_000_000, 1)] {
        let mut s = script();
        s.enter("zeKernelGetName", LOADER, &[0x22]);
        s.leave("zeKernelGetName", LOADER, 0, &[]);
        let left = s.now;
        s.now += later_ns;
        s.tid = 2;
        s.launch(LIST, 0x21);
        let asked = |s: &Script| {
            let calls = s.told.calls.iter();
            let asked = calls.filter(|c| c.probe.function == "zeKernelGetName");
            asked
                .map(|c| c.content(0).map(|c| c.bytes.clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(asked(&s).len(), lost as usize, "{later_ns}");
        let now = std::mem::replace(&mut s.now, left);
        s.tid = 1;
        s.data("zeKernelGetName", 0, b"asked", 0);
        s.now = now;
        s.launch(LIST, 0x22);
        let bytes = (lost == 0).then(|| b"asked".to_vec());
        assert_eq!(asked(&s), [bytes], "{later_ns}");
        assert_eq!(s.lost(LossKind::CallDataIncomplete), lost, "{later_ns}");
    }
}

#[test]
fn a_kernel_whose_name_could_not_be_read_is_not_called_older_than_aiprof() {
    let mut s = script();
    s.call("zeKernelCreate", &[1], &[0x21]);
    s.launch(LIST, 0x21);
    assert_eq!(s.told.launches[0].work.name, KernelName::Unknown);
}

#[test]
fn names_are_demangled_and_cut_ones_say_so() {
    let mut s = script();
    s.kernel("_ZTSZ4mainEUlvE_", 0x21);
    s.kernel("_ZN3foo3barEi", 0x22);
    s.kernel(&"x".repeat(aiprof_common::TEXT_BYTES - 1), 0x23);
    for kernel in [0x21, 0x22, 0x23] {
        s.launch(LIST, kernel);
    }
    let names = s.names();
    assert!(names[0].starts_with("main::"), "{}", names[0]);
    assert_eq!(names[1], "foo::bar(int)");
    assert!(names[2].ends_with("xx[..]"));
}

#[test]
fn the_outer_api_knows_the_name_where_the_inner_one_does_not() {
    let mut s = script();
    s.enter("urKernelCreate", UR, &[1]);
    s.data("urKernelCreate", 0, b"sycl", 0);
    s.leave("urKernelCreate", UR, 0, &[0x500]);
    s.enter("urEnqueueKernelLaunch", UR, &[0x7, 0x500]);
    s.call("zeCommandListAppendLaunchKernel", &[LIST, 0x21], &[]);
    s.leave("urEnqueueKernelLaunch", UR, 0, &[]);
    assert_eq!(s.names(), ["sycl"]);
    assert_eq!(s.told.launches[0].work.kernel, 0x21);
}

#[test]
fn a_module_is_known_by_the_digest_of_its_code() {
    let code: Vec<u8> = (0..9000_u32).map(|i| (i % 251) as u8).collect();
    let mut s = script();
    let create = |s: &mut Script, pieces: &[std::ops::Range<usize>], handle| {
        s.enter("zeModuleCreate", LOADER, &[1, 2, 1]);
        for piece in pieces {
            let data = aiprof_model::wire::CallData {
                time_ns: s.now,
                pid: 1,
                tid: 1,
                probe: s.probe("zeModuleCreate").id,
                tag: 0,
                unread: false,
                offset: piece.start as u64,
                total: code.len() as u64,
                bytes: code[piece.clone()].to_vec(),
            };
            s.apply(&aiprof_model::wire::Event::CallData(data));
        }
        s.leave("zeModuleCreate", LOADER, 0, &[handle]);
        s.enter("zeKernelCreate", LOADER, &[handle]);
        s.data("zeKernelCreate", 0, b"k", 0);
        s.leave("zeKernelCreate", LOADER, 0, &[handle + 1]);
        s.launch(LIST, handle + 1);
    };
    create(&mut s, &[0..4096, 4096..8192, 8192..9000], 0xa0);
    create(&mut s, &[0..4096, 8192..9000], 0xb0);
    let module = |i: usize| s.told.launches[i].work.module.clone().unwrap();
    let expected: [u8; 32] = Sha256::digest(&code).into();
    assert_eq!(module(0).digest, Some(expected));
    assert_eq!((module(0).bytes, module(0).format), (9000, 1));
    assert_eq!(module(1).digest, None, "a piece is missing");
    assert_eq!(s.lost(LossKind::CallDataIncomplete), 1);
}

#[test]
fn copies_are_named_by_where_from_and_where_to() {
    let mut s = script();
    s.call("zeMemAllocDevice", &[0x1000], &[0x10_0000]);
    s.call("zeMemAllocHost", &[0x1000], &[0x20_0000]);
    s.call("zeMemAllocShared", &[0x1000], &[0x30_0000]);
    let copy = |s: &mut Script, dst, src| {
        s.call("zeCommandListAppendMemoryCopy", &[LIST, dst, src, 16], &[]);
    };
    copy(&mut s, 0x10_0fff, 0x20_0000);
    copy(&mut s, 0x30_0000, 0x10_0000);
    copy(&mut s, 0x10_0000, 0x7f00);
    copy(&mut s, 0x10_1000, 0x10_0000);
    s.call("zeCommandListAppendMemoryFill", &[LIST, 0x30_0010, 16], &[]);
    s.call("zeMemFree", &[0x30_0000], &[]);
    s.call("zeCommandListAppendMemoryFill", &[LIST, 0x30_0010, 16], &[]);
    s.call("zeCommandListAppendBarrier", &[LIST], &[]);
    let region = "zeCommandListAppendMemoryCopyRegion";
    s.call(region, &[LIST, 0x10_0000, 0x20_0000, 64, 8, 0], &[]);
    s.call(
        "zeCommandListAppendMemoryPrefetch",
        &[LIST, 0x30_0000, 4096],
        &[],
    );
    s.call(
        "zeCommandListAppendImageCopyToMemory",
        &[LIST, 0x20_0000, 0x77],
        &[],
    );
    s.call("cudaMemcpy", &[1, 2, 3, 2], &[]);
    s.call("cuMemcpyDtoHAsync_v2", &[1, 2, 3], &[]);
    let expected = [
        "Memcpy (H2D)",
        "Memcpy (D2S)",
        "Memcpy (M2D)",
        "Memcpy (D2M)",
        "Memset (S)",
        "Memset (M)",
        "Barrier",
        "Memcpy (H2D)",
        "Memory prefetch",
        "Memcpy (D2H)",
        "Memcpy (D2H)",
        "Memcpy (D2H)",
    ];
    assert_eq!(s.names(), expected);
    assert_eq!(s.told.launches[0].work.bytes, 16);
    assert_eq!(s.told.launches[7].work.bytes, 512);
}

#[test]
fn parts_of_an_allocation_do_not_take_it_apart() {
    let mut s = script();
    s.call("zeMemAllocDevice", &[0x10_0000], &[0x100_0000]);
    for part in 0..100 {
        s.call("zeMemAllocDevice", &[0x100], &[0x100_0000 + part * 0x100]);
    }
    s.call("zeMemFree", &[0x100_0100], &[]);
    s.call(
        "zeCommandListAppendMemoryFill",
        &[LIST, 0x100_0100, 16],
        &[],
    );
    s.call(
        "zeCommandListAppendMemoryFill",
        &[LIST, 0x10f_ffff, 16],
        &[],
    );
    assert_eq!(s.names(), ["Memset (D)", "Memset (D)"]);
}

#[test]
fn opencl_sizes_arrive_as_arrays() {
    const RANGE: &str = "clEnqueueNDRangeKernel";
    let mut s = script();
    s.kernel("k", 0x21);
    s.enter(RANGE, LOADER, &[0x7, 0x21]);
    s.array(RANGE, 0, &[1000, 30]);
    s.array(RANGE, 1, &[64, 4]);
    s.leave(RANGE, LOADER, 0, &[]);
    let launch = &s.told.launches[0];
    assert_eq!(
        (launch.work.groups, launch.work.local),
        ([16, 8, 1], [64, 4, 1])
    );
    assert_eq!(
        (launch.work.name.clone(), launch.on.queue),
        (named("k"), 0x7)
    );
}

#[test]
fn processes_have_handles_of_their_own_and_exec_clears_them() {
    let mut s = script();
    s.kernel("one", 0x21);
    (s.pid, s.tid) = (2, 2);
    s.kernel("two", 0x21);
    s.launch(LIST, 0x21);
    (s.pid, s.tid) = (1, 1);
    s.launch(LIST, 0x21);
    let comm = "new".to_owned();
    s.process(1, ProcessEventKind::Exec { comm });
    s.launch(LIST, 0x21);
    let expected = ["two", "one", "[kernel created before attach 0x21]"];
    assert_eq!(s.names(), expected);
    // Another process with the number of one whose end was not seen.
    (s.pid, s.tid) = (2, 2);
    s.process(2, ProcessEventKind::Fork { parent: 1 });
    s.launch(LIST, 0x21);
    assert_eq!(s.names()[3], "[kernel created before attach 0x21]");
}

#[test]
fn threads_end_their_calls_and_processes_give_their_room_back() {
    let mut s = script();
    s.kernel("k", 0x21);
    s.tid = 7;
    s.enter("zeCommandListAppendLaunchKernel", LOADER, &[LIST, 0x21]);
    s.process(7, ProcessEventKind::Exit);
    assert_eq!(s.names(), ["k"]);
    s.process(1, ProcessEventKind::Exit);
    s.tid = 1;
    s.launch(LIST, 0x21);
    assert_eq!(s.names()[1], "[kernel created before attach 0x21]");
}
