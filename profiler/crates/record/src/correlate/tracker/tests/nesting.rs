//! Which nested calls are one, and what counts.

use crate::correlate::script::{DRIVER, LOADER, Script, TOP, UR, named};
use aiprof_model::{probes::CallKind, profile::LossKind};

const APPEND: &str = "zeCommandListAppendLaunchKernel";
const COPY: &str = "zeCommandListAppendMemoryCopy";
const IMMEDIATE: u64 = 0x11;

fn script() -> Script {
    let mut script = Script::new();
    script.call("zeCommandListCreateImmediate", &[0xc0, 0xde], &[IMMEDIATE]);
    script.kernel("gemm", 0x21);
    script
}

#[test]
fn a_launch_has_everything_that_calls_told() {
    let mut s = script();
    s.call("zeKernelSetGroupSize", &[0x21, 32, 2, 1], &[]);
    s.enter(APPEND, LOADER, &[IMMEDIATE, 0x21, 0xe1, 8, 4, 1]);
    let entered = s.now;
    s.leave(APPEND, LOADER, 0, &[]);
    let [launch] = s.told.launches.as_slice() else {
        panic!("{:?}", s.told.launches)
    };
    assert_eq!(launch.work.name, named("gemm"));
    assert_eq!(
        (launch.work.kernel, launch.on.queue, launch.on.list),
        (0x21, IMMEDIATE, 0)
    );
    assert_eq!((launch.on.device, launch.on.event), (0xde, 0xe1));
    assert_eq!(
        (launch.work.groups, launch.work.local),
        ([8, 4, 1], [32, 2, 1])
    );
    assert_eq!(
        (launch.by.start_ns, launch.by.end_ns),
        (entered, Some(s.now))
    );
    assert_eq!(
        (&*launch.by.api, &*launch.by.function),
        ("Level Zero", APPEND)
    );
    assert_eq!((launch.by.pid, launch.by.tid, launch.id), (1, 1, 1));
    let call = s.told.calls.last().unwrap();
    assert_eq!((call.id, call.stack), (launch.by.call, launch.by.stack));
    assert_ne!(launch.by.stack, 0);
    assert_eq!(
        (call.work.first.clone(), call.work.launches),
        (Some(named("gemm")), 1)
    );
    assert_eq!(call.duration_ns(), Some(10));
}

#[test]
fn what_a_function_goes_on_in_is_open_as_long_as_it() {
    let mut s = script();
    // The loader's function jumps to an interceptor's, which calls the driver's.
    s.enter(APPEND, UR, &[0x99, 0x98]);
    s.jump(APPEND, LOADER, &[0x99, 0x98]);
    s.enter(APPEND, DRIVER, &[IMMEDIATE, 0x21]);
    s.leave(APPEND, DRIVER, 0, &[]);
    s.leave(APPEND, UR, 0, &[]);
    let queues: Vec<u64> = s
        .told
        .launches
        .iter()
        .map(|launch| launch.on.queue)
        .collect();
    assert_eq!(queues, [IMMEDIATE]);
    let outer = s.told.calls.last().unwrap();
    assert_eq!((outer.work.launches, outer.nesting.inner.len()), (1, 2));
    // And where no end is seen.
    let mut s = script();
    s.enter(APPEND, UR, &[0x99, 0x98]);
    s.jump(APPEND, LOADER, &[0x99, 0x98]);
    s.enter(APPEND, DRIVER, &[IMMEDIATE, 0x21]);
    s.vanish();
    s.vanish();
    s.call("zeCommandQueueSynchronize", &[0x31], &[]);
    assert_eq!(s.told.launches.len(), 1);
}

#[test]
fn three_layers_are_one_launch_named_by_the_outermost() {
    let mut s = script();
    s.enter("urEnqueueKernelLaunch", UR, &[0x77, 0x78]);
    s.enter(APPEND, LOADER, &[0x99, 0x98]);
    s.enter(APPEND, DRIVER, &[IMMEDIATE, 0x21, 0, 5, 6, 7]);
    s.leave(APPEND, DRIVER, 0, &[]);
    s.leave(APPEND, LOADER, 0, &[]);
    assert!(
        s.told.launches.is_empty(),
        "not certain before the outermost is over"
    );
    s.leave("urEnqueueKernelLaunch", UR, 0, &[]);
    let [launch] = s.told.launches.as_slice() else {
        panic!("{:?}", s.told.launches)
    };
    assert_eq!(&*launch.by.api, "Unified Runtime");
    assert_eq!(&*launch.by.function, "urEnqueueKernelLaunch");
    assert_eq!(
        (launch.work.kernel, launch.work.name.clone()),
        (0x21, named("gemm"))
    );
    assert_eq!(
        (launch.on.queue, launch.work.groups),
        (IMMEDIATE, [5, 6, 7])
    );
    assert_eq!(launch.by.end_ns, Some(s.now));
    let outer = s.told.calls.last().unwrap();
    assert_eq!(
        (
            outer.nesting.is_part,
            outer.nesting.depth,
            outer.work.launches
        ),
        (false, 0, 1)
    );
    assert_eq!(
        outer.work.first,
        Some(named("gemm")),
        "as the innermost knows it"
    );
    let functions: Vec<_> = outer
        .nesting
        .inner
        .iter()
        .map(|p| p.function.as_str())
        .collect();
    assert_eq!(functions, [APPEND, APPEND]);
    let parts: Vec<_> = s
        .told
        .calls
        .iter()
        .filter(|c| c.nesting.is_part)
        .map(|c| c.nesting.depth)
        .collect();
    assert_eq!(parts, [2, 1]);
}

#[test]
fn a_stub_that_jumps_is_the_same_call_with_or_without_the_mark() {
    for marked in [true, false] {
        let mut s = script();
        for _ in 0..3 {
            s.enter(APPEND, LOADER, &[IMMEDIATE, 0x21]);
            if marked {
                s.jump(APPEND, DRIVER, &[IMMEDIATE, 0x21]);
            } else {
                s.vanish();
                s.enter_untracked(APPEND, DRIVER, &[IMMEDIATE, 0x21]);
            }
            s.leave(APPEND, DRIVER, 0, &[]);
        }
        assert_eq!(s.names(), ["gemm"; 3], "marked: {marked}");
        let calls: Vec<_> = s
            .told
            .calls
            .iter()
            .filter(|c| c.probe.function == APPEND)
            .collect();
        let outer: Vec<_> = calls.iter().filter(|c| !c.nesting.is_part).collect();
        assert_eq!((calls.len(), outer.len()), (6, 3));
        assert!(
            outer
                .iter()
                .all(|c| c.end_ns.is_some() && c.library == LOADER)
        );
        assert_eq!(s.lost(LossKind::CallsNoEnd), 0);
    }
}

#[test]
fn both_exits_of_a_stub_and_what_it_jumped_to_are_one() {
    let mut s = script();
    s.enter(APPEND, LOADER, &[IMMEDIATE, 0x21]);
    s.jump(APPEND, DRIVER, &[IMMEDIATE, 0x21]);
    s.leave(APPEND, DRIVER, 0, &[]);
    s.sp -= 0x40;
    s.leave(APPEND, LOADER, 0, &[]);
    assert_eq!(s.names(), ["gemm"]);
    assert_eq!(s.lost(LossKind::CallsNoEntry), 0);
}

#[test]
fn calls_in_a_loop_without_exits_are_calls_of_their_own() {
    let mut s = script();
    for _ in 0..4 {
        s.enter(APPEND, LOADER, &[IMMEDIATE, 0x21]);
        s.vanish();
    }
    assert_eq!(s.told.launches.len(), 3, "the last one may not be over");
    s.finish();
    assert_eq!(s.told.launches.len(), 4);
    let ends: Vec<_> = s.told.launches.iter().map(|l| l.by.end_ns).collect();
    assert_eq!(ends, [None; 4]);
    // No end of this function was ever seen, and none could be missed.
    assert_eq!(s.lost(LossKind::CallsNoEnd), 0);
}

#[test]
fn a_launch_that_copies_first_is_a_copy_and_a_launch() {
    let mut s = script();
    s.enter("urEnqueueKernelLaunch", UR, &[]);
    s.call(COPY, &[IMMEDIATE, 1, 2, 64], &[]);
    s.call(APPEND, &[IMMEDIATE, 0x21], &[]);
    s.leave("urEnqueueKernelLaunch", UR, 0, &[]);
    let found: Vec<_> = s
        .told
        .launches
        .iter()
        .map(|l| (l.kind, &*l.by.function))
        .collect();
    let expected = [
        (CallKind::Copy, COPY),
        (CallKind::Launch, "urEnqueueKernelLaunch"),
    ];
    assert_eq!(found, expected);
    assert_eq!(s.told.launches[0].work.bytes, 64);
    let outer = s.told.calls.last().unwrap();
    assert_eq!(
        (outer.nesting.nested_ns, outer.work.launches),
        (10, 1),
        "the copy is not part of it"
    );
}

#[test]
fn a_launch_with_only_a_copy_inside_still_is_a_launch() {
    let mut s = script();
    s.enter("urEnqueueKernelLaunch", UR, &[]);
    s.call(COPY, &[IMMEDIATE, 1, 2, 64], &[]);
    s.leave("urEnqueueKernelLaunch", UR, 0, &[]);
    let kinds: Vec<_> = s.told.launches.iter().map(|l| l.kind).collect();
    assert_eq!(kinds, [CallKind::Copy, CallKind::Launch]);
}

#[test]
fn a_fill_done_by_a_kernel_is_one_launch() {
    let mut s = script();
    s.enter("urEnqueueMemBufferFill", UR, &[0x77, 4096]);
    s.call(APPEND, &[IMMEDIATE, 0x21], &[]);
    s.leave("urEnqueueMemBufferFill", UR, 0, &[]);
    let [launch] = s.told.launches.as_slice() else {
        panic!("{:?}", s.told.launches)
    };
    assert_eq!(
        (launch.kind, launch.work.name.clone()),
        (CallKind::Launch, named("gemm"))
    );
    assert_eq!(
        (&*launch.by.function, launch.work.bytes),
        ("urEnqueueMemBufferFill", 4096)
    );
}

#[test]
fn several_launches_inside_count_and_the_call_around_them_does_not() {
    let mut s = script();
    s.kernel("relu", 0x22);
    s.enter("cudaGraphLaunch", UR, &[0x5]);
    for kernel in [0x21, 0x22, 0x21] {
        s.call("cuLaunchKernel", &[kernel, 0x5, 900 + kernel], &[]);
    }
    s.leave("cudaGraphLaunch", UR, 0, &[]);
    assert_eq!(s.names(), ["gemm", "relu", "gemm"]);
    for launch in &s.told.launches {
        assert_eq!(&*launch.by.function, "cudaGraphLaunch");
        assert_eq!(launch.correlation, Some(900 + launch.work.kernel));
    }
    assert_eq!(s.told.calls.last().unwrap().work.launches, 3);
}

#[test]
fn a_span_of_the_host_and_a_wait_are_around_launches_not_them() {
    let mut s = script();
    s.enter("dnnl_primitive_execute", UR, &[]);
    s.enter("urQueueFinish", UR, &[0x7]);
    s.call(APPEND, &[IMMEDIATE, 0x21], &[]);
    s.call(APPEND, &[IMMEDIATE, 0x21], &[]);
    s.leave("urQueueFinish", UR, 0, &[]);
    s.leave("dnnl_primitive_execute", UR, 0, &[]);
    assert_eq!(s.names(), ["gemm", "gemm"]);
    assert!(s.told.launches.iter().all(|l| &*l.by.function == APPEND));
    let depths: Vec<_> = s
        .told
        .calls
        .iter()
        .rev()
        .take(4)
        .map(|c| c.nesting.depth)
        .collect();
    assert_eq!(depths, [0, 1, 2, 2]);
    assert!(s.told.calls.iter().all(|c| !c.nesting.is_part));
}

#[test]
fn failed_calls_count_nothing_and_a_second_try_counts_once() {
    const DEVICE_LOST: u64 = 0x7000_0001;
    let mut s = script();
    s.enter(APPEND, LOADER, &[IMMEDIATE, 0x21]);
    s.leave(APPEND, LOADER, DEVICE_LOST, &[]);
    assert!(s.told.launches.is_empty());
    assert_eq!(s.told.calls.last().unwrap().succeeded(), Some(false));

    s.enter("urEnqueueKernelLaunch", UR, &[]);
    s.enter(APPEND, LOADER, &[IMMEDIATE, 0x21]);
    s.leave(APPEND, LOADER, DEVICE_LOST, &[]);
    s.enter(APPEND, LOADER, &[IMMEDIATE, 0x21]);
    s.leave(APPEND, LOADER, 0, &[]);
    s.leave("urEnqueueKernelLaunch", UR, 0, &[]);
    assert_eq!(s.names(), ["gemm"]);

    // The inner call's end is not seen, and the outer one returns that it failed.
    s.enter("urEnqueueKernelLaunch", UR, &[]);
    s.enter(APPEND, LOADER, &[IMMEDIATE, 0x21]);
    s.vanish();
    s.leave("urEnqueueKernelLaunch", UR, DEVICE_LOST, &[]);
    assert_eq!(s.names(), ["gemm"]);

    // All tries inside failed, and yet the call returns success: it used other means.
    s.enter("urEnqueueKernelLaunch", UR, &[]);
    s.enter(APPEND, LOADER, &[IMMEDIATE, 0x21]);
    s.leave(APPEND, LOADER, DEVICE_LOST, &[]);
    s.leave("urEnqueueKernelLaunch", UR, 0, &[]);
    assert_eq!(s.told.launches.len(), 2);
}

#[test]
fn an_exception_through_calls_ends_them_at_the_next_event() {
    let mut s = script();
    for thrown in [false, true] {
        s.enter("urEnqueueKernelLaunch", UR, &[]);
        s.enter(APPEND, LOADER, &[IMMEDIATE, 0x21]);
        if !thrown {
            s.leave(APPEND, LOADER, 0, &[]);
            s.leave("urEnqueueKernelLaunch", UR, 0, &[]);
        }
    }
    s.sp = TOP;
    s.open.clear();
    let before = s.now;
    s.call("zeCommandQueueSynchronize", &[1], &[]);
    assert_eq!(s.names(), ["gemm"; 2]);
    let outer = &s.told.calls[s.told.calls.len() - 2];
    assert_eq!(outer.probe.function, "urEnqueueKernelLaunch");
    assert_eq!((outer.end_ns, outer.end_before_ns), (None, before + 10));
    assert_eq!(s.lost(LossKind::CallsNoEnd), 2);
}

#[test]
fn a_call_on_another_stack_is_inside_if_the_kernel_side_says_so() {
    for inside in [true, false] {
        let mut s = script();
        s.enter("dnnl_primitive_execute", UR, &[]);
        if !inside {
            s.open.clear();
        }
        s.sp -= 1 << 30;
        s.call(APPEND, &[IMMEDIATE, 0x21], &[]);
        assert_eq!(
            s.told.calls.last().unwrap().nesting.depth,
            u32::from(inside)
        );
        assert_eq!(s.names(), ["gemm"]);
    }
}

#[test]
fn deeper_calls_are_not_inside_of_what_is_over() {
    // Each from further down the program, of any layer, their ends unseen.
    let mut s = script();
    for library in [LOADER, DRIVER, UR, LOADER, DRIVER] {
        s.enter(APPEND, library, &[IMMEDIATE, 0x21]);
        s.vanish();
        s.sp -= 0x400;
    }
    s.finish();
    assert_eq!(s.names(), ["gemm"; 5]);
    assert!(s.told.calls.iter().all(|call| call.nesting.depth == 0));
}

#[test]
fn calls_older_than_a_lost_one_stay_open() {
    let mut s = script();
    s.enter("dnnl_primitive_execute", UR, &[]);
    // The record of the call between was lost.
    let lost = s.now + 5;
    s.open.get_mut(&1).unwrap().push(lost);
    s.now += 10;
    s.call(APPEND, &[IMMEDIATE, 0x21], &[]);
    assert_eq!(s.told.calls.last().unwrap().nesting.depth, 1);
    s.open.get_mut(&1).unwrap().pop();
    s.leave("dnnl_primitive_execute", UR, 0, &[]);
    let outer = s.told.calls.last().unwrap();
    assert_eq!((outer.nesting.depth, outer.end_ns), (0, Some(s.now)));
}

#[test]
fn an_ioctl_counts_only_where_no_runtime_was_seen() {
    const EXEC: &str = "DRM_IOCTL_XE_EXEC";
    let mut s = script();
    s.enter(APPEND, LOADER, &[IMMEDIATE, 0x21]);
    let inside = s.sp;
    s.enter(EXEC, 0, &[3, 0xba7c]);
    s.sp = inside;
    s.leave(EXEC, 0, 0, &[]);
    s.leave(APPEND, LOADER, 0, &[]);
    assert_eq!(s.names(), ["gemm"]);
    let ioctl = &s.told.calls[s.told.calls.len() - 2];
    assert_eq!((ioctl.nesting.depth, ioctl.nesting.is_part), (1, false));

    let outside = s.sp;
    s.enter(EXEC, 0, &[3, 0xba7c]);
    s.sp = outside;
    s.leave(EXEC, 0, 0, &[]);
    let launch = s.told.launches.last().unwrap();
    assert_eq!((launch.kind, launch.on.queue), (CallKind::Submit, 3));
    s.enter(EXEC, 0, &[3, 0xba7c]);
    s.sp = outside;
    s.leave(EXEC, 0, (-12_i64).cast_unsigned(), &[]);
    assert_eq!(s.told.launches.len(), 2, "ENOMEM is no launch");
}

#[test]
fn threads_do_not_disturb_one_another() {
    let mut s = script();
    for tid in 2..6 {
        s.tid = tid;
        s.enter("urEnqueueKernelLaunch", UR, &[]);
        s.sp = TOP;
    }
    for tid in (2..6).rev() {
        s.tid = tid;
        s.sp = TOP - 0x40;
        s.call(APPEND, &[IMMEDIATE, 0x21], &[]);
        s.leave("urEnqueueKernelLaunch", UR, 0, &[]);
    }
    let tids: Vec<_> = s.told.launches.iter().map(|l| l.by.tid).collect();
    assert_eq!(tids, [5, 4, 3, 2]);
    assert!(
        s.told
            .launches
            .iter()
            .all(|l| &*l.by.api == "Unified Runtime")
    );
}
