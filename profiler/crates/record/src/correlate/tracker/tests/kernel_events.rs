//! What listeners hear of kernels' handles, and when.

use crate::correlate::script::{DRIVER, LOADER, Script};
use crate::correlate::{KernelEvent, KernelStep};

const CREATE: &str = "zeKernelCreate";
const DESTROY: &str = "zeKernelDestroy";

/// What was reported since the last call: handle and step.
fn take(s: &mut Script) -> Vec<(u64, KernelStep)> {
    let events = s.told.kernels.drain(..);
    let own = |event: KernelEvent| {
        assert_eq!(event.pid, 1);
        (event.handle, event.step)
    };
    events.map(own).collect()
}

fn created(name: Option<&str>, is_certain: bool) -> KernelStep {
    KernelStep::Created {
        name: name.map(Into::into),
        is_certain,
    }
}

#[test]
fn entries_are_reported_at_once_and_creations_at_their_ends() {
    let mut s = Script::new();
    s.enter(CREATE, LOADER, &[0xd0]);
    // As the program has it, not for people.
    s.data(CREATE, 0, b"_Z4gemmv", 0);
    assert_eq!(take(&mut s), []);
    s.leave(CREATE, LOADER, 0, &[0x21]);
    assert_eq!(take(&mut s), [(0x21, created(Some("_Z4gemmv"), true))]);
    s.enter("zeCommandListAppendLaunchKernel", LOADER, &[0x11, 0x21]);
    let launched = s.told.kernels.first().map(|event| event.time_ns);
    assert_eq!(launched, Some(s.now));
    assert_eq!(take(&mut s), [(0x21, KernelStep::Launched)]);
    s.leave("zeCommandListAppendLaunchKernel", LOADER, 0, &[]);
    s.enter(DESTROY, LOADER, &[0x21]);
    assert_eq!(take(&mut s), [(0x21, KernelStep::Destroyed)]);
    s.leave(DESTROY, LOADER, 0, &[]);
    assert_eq!(take(&mut s), []);
}

#[test]
fn a_kernel_of_two_layers_is_created_once() {
    let mut s = Script::new();
    s.enter(CREATE, LOADER, &[0xd0]);
    s.data(CREATE, 0, b"gemm", 0);
    s.enter(CREATE, DRIVER, &[0xd0]);
    s.leave(CREATE, DRIVER, 0, &[0x21]);
    assert_eq!(take(&mut s), [(0x21, created(None, true))]);
    // The outer layer has its name.
    s.leave(CREATE, LOADER, 0, &[0x21]);
    assert_eq!(take(&mut s), [(0x21, created(Some("gemm"), true))]);
    s.enter(CREATE, LOADER, &[0xd0]);
    s.enter(CREATE, DRIVER, &[0xd0]);
    s.data(CREATE, 0, b"conv", 0);
    s.leave(CREATE, DRIVER, 0, &[0x31]);
    s.leave(CREATE, LOADER, 0, &[0x31]);
    assert_eq!(take(&mut s), [(0x31, created(Some("conv"), true))]);
}

#[test]
fn failed_calls_create_nothing() {
    let mut s = Script::new();
    s.enter(CREATE, LOADER, &[0xd0]);
    s.leave(CREATE, LOADER, 0x7800_0004, &[0x21]);
    // A pointer is the result of this one: 0 is the failure.
    s.enter("clCreateKernel", LOADER, &[0xd0]);
    s.leave("clCreateKernel", LOADER, 0, &[0x31]);
    assert_eq!(take(&mut s), []);
    s.enter("clCreateKernel", LOADER, &[0xd0]);
    s.leave("clCreateKernel", LOADER, 0x31, &[0x31]);
    assert_eq!(take(&mut s), [(0x31, created(None, true))]);
}

#[test]
fn where_the_end_was_not_seen_the_creation_is_not_certain() {
    let mut s = Script::new();
    s.enter(CREATE, LOADER, &[0xd0]);
    s.data(CREATE, 0, b"gemm", 0);
    s.leave_unseen(CREATE, LOADER, &[0x21]);
    assert_eq!(take(&mut s), [(0x21, created(Some("gemm"), false))]);
    s.launch(0x11, 0x31);
    take(&mut s);
    // In use: the call failed, or another handle was put there since.
    s.enter(CREATE, LOADER, &[0xd0]);
    s.leave_unseen(CREATE, LOADER, &[0x31]);
    assert_eq!(take(&mut s), []);
    // Without the entry, too.
    s.leave_unseen(CREATE, LOADER, &[0x41]);
    assert_eq!(take(&mut s), [(0x41, created(None, false))]);
}

#[test]
fn the_last_owner_ends_a_kernel() {
    let mut s = Script::new();
    s.enter("clCreateKernel", LOADER, &[0xd0]);
    s.leave("clCreateKernel", LOADER, 0x31, &[0x31]);
    s.enter("clRetainKernel", LOADER, &[0x31]);
    s.leave("clRetainKernel", LOADER, 1, &[]);
    take(&mut s);
    let release = |s: &mut Script| {
        s.enter("clReleaseKernel", LOADER, &[0x31]);
        s.leave("clReleaseKernel", LOADER, 1, &[]);
    };
    release(&mut s);
    assert_eq!(take(&mut s), []);
    release(&mut s);
    assert_eq!(take(&mut s), [(0x31, KernelStep::Destroyed)]);
    // A kernel that is older than the recording is destroyed by the first release that is seen.
    release(&mut s);
    assert_eq!(take(&mut s), [(0x31, KernelStep::Destroyed)]);
}
