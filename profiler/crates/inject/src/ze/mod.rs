//! Level Zero: timestamps of events.
//!
//! The loader takes the helper for a driver. The helper has the driver's name, and because
//! it needs the driver's library, it has all that this exports. When the loader asks for a
//! table, the driver fills it, and the helper puts functions of its own before some.
//!
//! A command that the program awaits by no event gets one of the helper's. The program's
//! events have timestamps, too, because the helper creates their pools with them. They are
//! read when the command is over, and before the program resets them. If an event does not
//! give a command's times for certain, the command is counted, and the program goes on as
//! without the helper. On the program's own threads, the helper reads only timestamps that
//! the program is about to overwrite.
//!
//! Newer loaders call through tables at the begin of each handle if the driver reports that
//! they may: the helper changes that answer to no.

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
