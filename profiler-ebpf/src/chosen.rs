//! Whether calls of the current process are recorded.

use aiprof_common::NO_FIELD;
use aya_ebpf::helpers::{
    bpf_get_current_task_btf,
    generated::{bpf_get_current_ancestor_cgroup_id, bpf_probe_read_kernel},
};
use core::ffi::c_void;

use crate::{maps::CHOSEN, setting};

/// Generations of ancestors that are searched for a chosen process. User space learns of a fork
/// only a moment after it.
const MAX_GENERATIONS: u32 = 4;
/// Levels of control groups that are compared.
const MAX_LEVELS: i32 = 32;

/// 1 if calls of the current process are recorded, else 0. Other processes use up nothing: no
/// limit, no room in the ring.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn is_chosen(tgid: u32) -> u32 {
    if tgid == setting!(own_tgid) {
        return 0;
    }
    let [low, high] = setting!(cgroup);
    let group = u64::from(low) | u64::from(high) << 32;
    if group != 0 && !is_below(group) {
        return 0;
    }
    (setting!(chosen_only) == 0 || descends(tgid)).into()
}

/// Whether the current task is in a control group, or in one below it.
#[inline(always)]
fn is_below(group: u64) -> bool {
    for level in 0..MAX_LEVELS {
        // SAFETY: a helper without preconditions; 0: the task is not that deep.
        let id = unsafe { bpf_get_current_ancestor_cgroup_id(level) };
        if id == group {
            return true;
        }
        if id == 0 {
            return false;
        }
    }
    false
}

/// Whether a process, or one that it descends from, is in [`CHOSEN`].
#[inline(always)]
fn descends(tgid: u32) -> bool {
    // SAFETY: only the key's presence is checked.
    if unsafe { CHOSEN.get(tgid) }.is_some() {
        return true;
    }
    // SAFETY: always valid in a tracing program.
    let mut task = unsafe { bpf_get_current_task_btf() } as u64;
    for _ in 0..MAX_GENERATIONS {
        task = read(task, setting!(task_real_parent));
        let tgid = read(task, setting!(task_tgid)) as u32;
        // SAFETY: as above.
        if tgid > 1 && unsafe { CHOSEN.get(tgid) }.is_some() {
            return true;
        }
    }
    false
}

/// The 8 bytes of kernel memory at `base + offset`; 0 where they cannot be read.
#[inline(always)]
fn read(base: u64, offset: u32) -> u64 {
    let mut value = 0u64;
    if offset != NO_FIELD {
        let from = base.wrapping_add(u64::from(offset));
        // SAFETY: the destination is 8 bytes on the stack; a bad source is an error.
        unsafe { bpf_probe_read_kernel((&raw mut value).cast(), 8, from as *const c_void) };
    }
    value
}
