//! Programs that are replaced.

use aya_ebpf::{
    helpers::bpf_get_current_pid_tgid, macros::raw_tracepoint, programs::RawTracePointContext,
};

use crate::{
    atomic,
    maps::{PROC_CHANGES, PROCS},
};

/// At `sched_process_exec`: forgets the mapping list of the process, which is of the
/// program before. Until user space has the new one, stacks are sent along.
#[raw_tracepoint]
pub fn execd(_ctx: RawTracePointContext) -> u32 {
    let pid = (bpf_get_current_pid_tgid() >> 32) as u32;
    // Fails where there is none.
    let _ = PROCS.remove(pid);
    if let Some(changes) = PROC_CHANGES.get_ptr_mut(1) {
        // SAFETY: a checked map value, aligned.
        unsafe { atomic::add(changes, 1) };
    }
    0
}
