//! Ranges that the program names: NVTX (`NVTX_INJECTION64_PATH`) and ITT
//! (`INTEL_LIBITTNOTIFY64`).
//!
//! A range, or a moment, is a few words in a ring of its thread's. A thread of the helper
//! takes them out, puts their texts into numbers, and hands them over. What finds no room is
//! counted. The program gets the answers that it would get without a tool, except for
//! handles and numbers of ranges, which only a tool gives: these are the helper's.

mod drainer;
mod itt;
mod nvtx;
mod ring;
mod tables;
mod writer;

use crate::ffi;
use ring::{MarkId, MarkText, NewMark};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// What is done once in all the life of a process and its children was done.
static HOOKED: AtomicBool = AtomicBool::new(false);
/// What the thread that forks holds meanwhile.
static HELD: AtomicPtr<HeldRanges> = AtomicPtr::new(std::ptr::null_mut());
/// Numbers ranges that may end on any thread.
static LAST_RANGE: AtomicU64 = AtomicU64::new(0);

type HeldRanges = (
    MutexGuard<'static, Option<drainer::Drainer>>,
    MutexGuard<'static, ring::Rings>,
    MutexGuard<'static, Option<tables::RangeTables>>,
);

/// Makes ready for ranges, once in a process.
fn start() {
    if HOOKED.swap(true, Ordering::AcqRel) {
        return;
    }
    ffi::at_exit(drainer::finish);
    ffi::around_fork(before_fork, after_fork_parent, after_fork_child);
}

/// The number of a new range.
fn new_range() -> u64 {
    LAST_RANGE.fetch_add(1, Ordering::Relaxed) + 1
}

/// A mark without anything but its kind and domain.
fn plain(kind: u8, domain: u16) -> NewMark<'static> {
    NewMark {
        kind,
        domain,
        id: MarkId::None,
        payload: None,
        category: 0,
        text: MarkText::None,
    }
}

/// No other thread works on the state while the process is copied.
extern "C" fn before_fork() {
    // In the order in which all take them.
    let drainer = drainer::lock();
    let rings = ring::lock();
    let held: Box<HeldRanges> = Box::new((drainer, rings, tables::lock()));
    HELD.store(Box::into_raw(held), Ordering::Release);
}

fn take_held() -> Option<Box<HeldRanges>> {
    let held = HELD.swap(std::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: of `before_fork`, and taken once.
    (!held.is_null()).then(|| unsafe { Box::from_raw(held) })
}

extern "C" fn after_fork_parent() {
    drop(take_held());
}

/// The child has what its parent had, and no thread that takes it out: what was marked
/// before is the parent's to hand over.
extern "C" fn after_fork_child() {
    ffi::forget_tids();
    if let Some(mut held) = take_held() {
        *held.0 = None;
        held.1.forget_parent();
    }
}
