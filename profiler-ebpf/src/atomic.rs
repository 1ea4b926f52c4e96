//! Atomic operations on map values. They are in assembly, because those that `core` has on this
//! target do not return the previous value.

use core::arch::asm;

/// Adds `value` to the word at `to`.
///
/// # Safety
/// `to` must point to 8 aligned bytes of a map value.
#[inline(always)]
pub unsafe fn add(to: *mut u64, value: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) to, in(reg) value, options(nostack));
    }
}

/// Sets the word at `to` to `new` if it is `old`. Returns the previous value.
///
/// # Safety
/// `to` must point to 8 aligned bytes of a map value.
#[inline(always)]
pub unsafe fn compare_exchange(to: *mut u64, old: u64, new: u64) -> u64 {
    let mut before = old;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "r0 = cmpxchg_64({0} + 0, r0, {1})",
            in(reg) to,
            in(reg) new,
            inout("r0") before,
            options(nostack)
        );
    }
    before
}
