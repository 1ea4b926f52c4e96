//! Processes that execute another program.

use aya_ebpf::{
    helpers::bpf_get_current_pid_tgid, macros::raw_tracepoint, programs::RawTracePointContext,
};

use crate::{
    atomic,
    maps::{PROC_CHANGES, PROCS},
};

/// At `sched_process_exec`: forgets the mapping list of the process, which belongs to its
/// previous program. Until user space has made the new one, stack memory is sent with the
/// samples.
#[raw_tracepoint]
pub fn execd(_ctx: RawTracePointContext) -> u32 {
    let pid = (bpf_get_current_pid_tgid() >> 32) as u32;
    // Fails if there is none.
    let _ = PROCS.remove(pid);
    if let Some(changes) = PROC_CHANGES.get_ptr_mut(1) {
        // SAFETY: a checked map value, aligned.
        unsafe { atomic::add(changes, 1) };
    }
    0
}
