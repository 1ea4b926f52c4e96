//! Limits for the work of a CPU for calls in a second, divided by owner (see
//! [`Shares`](aiprof_common::Shares)).

use aiprof_common::*;
use aya_ebpf::helpers::bpf_get_current_task_btf;

use crate::{
    driver::kernel,
    fetch::current_uid,
    maps::{CALL_LIMITS, CALLS},
    ring::Ring,
    setting,
    stacks::{mix, seed},
};

/// Nanoseconds of a limiter's burst: unused time that can be saved.
const BURST_NS: u64 = 1_000_000_000;
/// Nanoseconds between two stacks of one CPU that are sent with their memory, so that user
/// space can finish them.
const PAGES_NS: u64 = BURST_NS / 64;
/// Nanoseconds of their burst: 2,048 stacks. A program that has just started makes about as
/// many calls before its tables are loaded.
const PAGES_BURST_NS: u64 = 2048 * PAGES_NS;
/// The same for hashes of a stack's memory: 4,096 a second, which take 1% to 2% of a CPU, and
/// 32,768 at once.
const MEMORY_NS: u64 = BURST_NS / 4096;
const MEMORY_BURST_NS: u64 = 32_768 * MEMORY_NS;
/// Nanoseconds between two stacks that one CPU takes when a wait begins.
const DRAW_NS: u64 = BURST_NS / 1000;
/// Bit that marks a container's number as owner: user ids have 32 bits.
const CONTAINER: u64 = 1 << 32;

/// Whether the current process may have one more stack walked on this CPU.
#[inline(always)]
pub fn may_walk(now: u64) -> bool {
    let limit = u64::from(setting!(call_stack_limit));
    limit != 0 && take(LIMIT_STACKS, now, BURST_NS / limit, BURST_NS) != 0
}

/// Whether it may have one more stack taken at the beginning of a wait.
#[inline(always)]
pub fn may_draw(now: u64) -> bool {
    take(LIMIT_DRAWS, now, DRAW_NS, BURST_NS / 16) != 0
}

/// Whether it may have the memory of a stack hashed.
#[inline(always)]
pub fn may_hash_memory(now: u64) -> bool {
    take(LIMIT_MEMORY, now, MEMORY_NS, MEMORY_BURST_NS) != 0
}

/// Whether it may have the memory of a stack sent. Half of the ring is reserved for calls.
#[inline(always)]
pub fn may_send_pages(now: u64) -> bool {
    Ring::of(&CALLS).has_free(1) && take(LIMIT_PAGES, now, PAGES_NS, PAGES_BURST_NS) != 0
}

/// Takes what the current process asks of this CPU. 0: the process may not have it.
#[inline(never)]
fn take(limit: u32, now: u64, cost: u64, burst: u64) -> u32 {
    let Some(limits) = CALL_LIMITS.get_ptr_mut(0) else {
        return 0;
    };
    let owner = owner();
    let ask = Ask {
        limit,
        now,
        cost,
        burst,
    };
    // SAFETY: a checked map value (see CallLimits).
    let shares = unsafe { &mut (*limits).shares };
    shares.take(owner, mix(seed(), owner), ask).into()
}

/// Owner of the current process: a user, or a container of root's.
#[inline(always)]
fn owner() -> u64 {
    let uid = current_uid();
    if uid == 0 {
        return container();
    }
    if uid == setting!(caller_uid) {
        return OWNER_TRUSTED;
    }
    uid.into()
}

/// The container of root's current process, by its mount namespace.
#[inline(always)]
fn container() -> u64 {
    if setting!(own_mounts) == 0 || setting!(mounts_number) == NO_FIELD {
        return OWNER_TRUSTED;
    }
    let number = mounts().unwrap_or(0);
    if number == setting!(own_mounts) {
        return OWNER_TRUSTED;
    }
    CONTAINER | u64::from(number)
}

/// The number of the current process's mount namespace; `None` if it has left it.
#[inline(always)]
fn mounts() -> Option<u32> {
    // SAFETY: a helper without preconditions.
    let task = unsafe { bpf_get_current_task_btf() } as u64;
    let spaces: u64 = kernel(task + u64::from(setting!(task_nsproxy)))?;
    let mounts: u64 = kernel(spaces + u64::from(setting!(nsproxy_mounts)))?;
    kernel(mounts + u64::from(setting!(mounts_number)))
}
