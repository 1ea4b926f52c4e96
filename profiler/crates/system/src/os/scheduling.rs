//! When this program's threads run: sched(7).

/// Lets the calling thread run before ordinary ones, where that is allowed: the
/// rings must be read in time even on a busy machine, and it takes little.
///
/// It asks for short slices too. Linux lets a thread that wakes up wait for the end of the running
/// one's slice, but not if its own is shorter. This is so since 6.12 (`PREEMPT_SHORT` of
/// kernel/sched/features.h); earlier kernels ignore it.
pub fn prefer_this_thread() {
    // A value that the user chose stays. A refusal is fine.
    if nice() == 0 {
        set_nice(-10);
    }
    set_slice(SHORTEST_SLICE_NS);
}

/// Takes the preference back that a thread inherited from its creator.
pub fn take_turns() {
    if nice() < 0 {
        set_nice(0);
    }
    set_slice(0);
}

/// The shortest slice that the kernel allows (`__setparam_fair`, kernel/sched/fair.c).
const SHORTEST_SLICE_NS: u64 = 100_000;

fn nice() -> i32 {
    // SAFETY: no memory is passed; 0 is the calling thread.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

fn set_nice(value: i32) {
    // SAFETY: as above.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, value) };
}

/// Sets the slice of the calling thread, unless it is of a real-time class; 0 is the
/// usual one.
fn set_slice(ns: u64) {
    // SAFETY: no memory is passed; 0 is the calling thread.
    if unsafe { libc::sched_getscheduler(0) } != libc::SCHED_OTHER {
        return;
    }
    let attr = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: nice(),
        sched_priority: 0,
        sched_runtime: ns,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: `attr` lives through the call and contains its size. A refusal is fine.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
}
