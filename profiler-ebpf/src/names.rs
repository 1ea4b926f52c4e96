//! Names of kernel addresses, as the kernel itself prints them.

use aiprof_common::{KERNEL_NAME_BYTES, KERNEL_NAMES, KernelNames};
use aya_ebpf::helpers::generated::{bpf_loop, bpf_snprintf};
use core::ffi::c_void;

use crate::maps::NAMES;

/// Format of a function's name without an offset (Documentation/core-api/printk-formats.rst,
/// "Symbols/Function Pointers"). The helper accepts constants only from a read-only map.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata")]
static NAME_FORMAT: [u8; 4] = *b"%ps\0";

/// Argument of the loop callback.
#[repr(C)]
struct NamesContext {
    names: *mut KernelNames,
}

/// Run by user space: writes the names of the addresses in [`NAMES`].
#[unsafe(no_mangle)]
#[unsafe(link_section = "syscall")]
pub extern "C" fn name_kernel(_context: *mut c_void) -> i32 {
    let Some(names) = NAMES.get_ptr_mut(0) else {
        return 0;
    };
    let mut context = NamesContext { names };
    // SAFETY: the callback has bpf_loop's signature; the context lives on this frame's
    // stack for the whole call.
    unsafe {
        bpf_loop(
            KERNEL_NAMES as u32,
            name_one as *mut c_void,
            (&raw mut context).cast(),
            0,
        );
    }
    0
}

/// `bpf_loop` callback: names one address.
extern "C" fn name_one(index: u64, context: *mut NamesContext) -> i64 {
    let at = index as usize & (KERNEL_NAMES - 1);
    // SAFETY: the context is name_kernel's, the names a checked map value; within the
    // arrays by the mask.
    unsafe {
        let names = (*context).names;
        let address = (&raw const (*names).addresses).cast::<u64>().add(at).read();
        if address == 0 {
            return 1;
        }
        let name = (&raw mut (*names).names)
            .cast::<[u8; KERNEL_NAME_BYTES]>()
            .add(at);
        bpf_snprintf(
            name.cast(),
            KERNEL_NAME_BYTES as u32,
            (&raw const NAME_FORMAT).cast(),
            (&raw const address).cast_mut().cast(),
            size_of::<u64>() as u32,
        );
    }
    0
}
