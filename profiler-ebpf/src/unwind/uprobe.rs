//! Addresses in the kernel's uprobe area.

use aya_ebpf::{
    bindings::task_struct,
    helpers::{bpf_get_current_task_btf, generated::bpf_loop},
};
use core::ffi::c_void;

use super::{FOUND, GO_ON, LoopContext, STOP, read_kernel};
use crate::{maps::Scratch, setting};

/// Deepest nesting of return probes (`MAX_URETPROBE_DEPTH`, kernel/events/uprobes.c).
pub const MAX_RETURN_INSTANCES: u32 = 64;

/// Value of `Walk::instance` after a match.
const INSTANCE_MATCHED: u64 = 1;
/// Size of an out-of-line slot (`UPROBE_XOL_SLOT_BYTES`, arch/x86/include/asm/uprobes.h).
const XOL_SLOT_BYTES: u64 = 128;

/// Replaces an address in the kernel's uprobe area by the program's own. The trampoline of a
/// pending return probe is replaced by the return address it stands for. An out-of-line single
/// step is replaced by the instruction that it executes.
///
/// The kernel keeps the real return addresses in `task->utask->return_instances`, each with its
/// stack slot (`struct return_instance`, include/linux/uprobes.h). So nested, recursive and
/// abandoned ones cannot be confused.
#[inline(never)]
pub(super) fn resolve_uprobe(scratch: *mut Scratch) -> u32 {
    // SAFETY: a checked map value.
    let w = unsafe { &mut (*scratch).walk };
    // SAFETY: always valid in a tracing program.
    let task: *mut task_struct = unsafe { bpf_get_current_task_btf() };
    let utask = read_kernel(task as u64, setting!(task_utask));
    if utask == 0 {
        return 0;
    }
    if w.len == 0 {
        let xol = read_kernel(utask, setting!(utask_xol_vaddr));
        let vaddr = read_kernel(utask, setting!(utask_vaddr));
        let into = w.rip.wrapping_sub(xol);
        if xol != 0 && vaddr != 0 && into < XOL_SLOT_BYTES {
            // After the copied instruction, its effect on the stack exists already, so the
            // exact byte matters.
            w.rip = vaddr.wrapping_add(into);
            return FOUND;
        }
    }
    w.calls.instance = read_kernel(utask, setting!(utask_return_instances));
    let mut context = LoopContext { scratch };
    // SAFETY: the callback has bpf_loop's signature; the context lives on this
    // frame's stack for the whole call.
    unsafe {
        bpf_loop(
            MAX_RETURN_INSTANCES,
            match_instance as *mut c_void,
            (&raw mut context).cast(),
            0,
        );
    }
    // SAFETY: a checked map value.
    let w = unsafe { &mut (*scratch).walk };
    u32::from(w.calls.instance == INSTANCE_MATCHED)
}

/// The innermost pending return probe of the current thread (`struct return_instance`); 0:
/// there is none. The next one is further up the stack.
#[inline(always)]
pub fn pending_return() -> u64 {
    // SAFETY: always valid in a tracing program.
    let task: *mut task_struct = unsafe { bpf_get_current_task_btf() };
    match read_kernel(task as u64, setting!(task_utask)) {
        0 => 0,
        utask => read_kernel(utask, setting!(utask_return_instances)),
    }
}

/// The fields of a pending return probe: its stack slot, the return address that it hides
/// there, and the next pending one.
#[inline(always)]
pub fn hidden_return(instance: u64) -> (u64, u64, u64) {
    (
        read_kernel(instance, setting!(ri_stack)),
        read_kernel(instance, setting!(ri_orig_ret_vaddr)),
        read_kernel(instance, setting!(ri_next)),
    )
}

/// `bpf_loop` callback: whether `instance` is the one whose slot was just read.
extern "C" fn match_instance(_index: u64, context: *mut LoopContext) -> i64 {
    // SAFETY: the context is resolve_uprobe's, the scratch a map value.
    let w = unsafe { &mut (*(*context).scratch).walk };
    if w.calls.instance == 0 {
        return STOP;
    }
    if read_kernel(w.calls.instance, setting!(ri_stack)) != w.rsp.wrapping_sub(8) {
        w.calls.instance = read_kernel(w.calls.instance, setting!(ri_next));
        return GO_ON;
    }
    w.rip = read_kernel(w.calls.instance, setting!(ri_orig_ret_vaddr));
    w.exact = 0;
    w.calls.instance = INSTANCE_MATCHED;
    STOP
}
