//! Level Zero: timestamps of events.
//!
//! The loader takes the helper for a driver, whose name it has, for the helper needs the
//! driver's library and so has all that it exports. Of the tables that the loader asks
//! for, the helper has the driver fill each, and puts functions of its own before some.
//!
//! A command that the program awaits by no event gets one of the helper's. Events of the
//! program's have timestamps, too, for their pools are made with them; they are read once
//! the command is over, and before the program resets them. What an event cannot tell for
//! certain is counted, and the program goes on as without the helper. Nothing is read on
//! the program's own threads but what it is about to overwrite.
//!
//! Newer loaders call through tables that handles begin with, if the driver says that they
//! may: here it says no.

mod abi;
mod append;
mod calls;
mod clock;
mod device;
mod events;
mod jobs;
mod lists;
mod real;
mod report;
mod state;
mod tables;

use crate::{ffi, guarded, thread};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// The thread that reads runs.
static STARTED: AtomicBool = AtomicBool::new(false);
/// What is done once in all the life of a process and its children was done.
static HOOKED: AtomicBool = AtomicBool::new(false);
/// What the thread that forks holds meanwhile.
static HELD: AtomicPtr<HeldAtFork> = AtomicPtr::new(std::ptr::null_mut());

type HeldAtFork = (
    MutexGuard<'static, Option<Box<state::ProgramState>>>,
    MutexGuard<'static, Option<report::Reporter>>,
);

/// Begins to read, once in a process.
fn start() {
    if STARTED.swap(true, Ordering::AcqRel) {
        return;
    }
    guarded(|| {
        if !HOOKED.swap(true, Ordering::AcqRel) {
            ffi::at_exit(report::finish);
            ffi::around_fork(before_fork, after_fork_parent, after_fork_child);
        }
        // Without it all is handed over at the end.
        let _ = thread::spawn(report::run);
    });
}

/// No other thread works on the state while the process is copied.
extern "C" fn before_fork() {
    let reporter = report::lock();
    let held: Box<HeldAtFork> = Box::new((state::lock(), reporter));
    HELD.store(Box::into_raw(held), Ordering::Release);
}

fn release() {
    let held = HELD.swap(std::ptr::null_mut(), Ordering::AcqRel);
    if !held.is_null() {
        // SAFETY: of `before_fork`, and taken once.
        drop(unsafe { Box::from_raw(held) });
    }
}

extern "C" fn after_fork_parent() {
    release();
}

/// The child has the state, and no thread that reads.
extern "C" fn after_fork_child() {
    ffi::forget_tids();
    release();
    STARTED.store(false, Ordering::Release);
    guarded(report::forget_parent);
    state::with(state::ProgramState::forget_parent);
}
