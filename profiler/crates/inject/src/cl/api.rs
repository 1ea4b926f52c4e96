//! The functions of OpenCL: places in the table of an ICD (`cl_icd_dispatch` of cl_icd.h),
//! and the few values of cl.h that are needed. Handles are numbers here: they are never
//! looked into.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Functions of a table: OpenCL 3.0's.
pub(super) const ENTRIES: usize = 149;

pub(super) const SUCCESS: i32 = 0;
/// `CL_PROFILING_INFO_NOT_AVAILABLE`.
pub(super) const NO_TIMES: i32 = -7;
/// `CL_INVALID_VALUE`.
pub(super) const INVALID_VALUE: i32 = -30;

/// Places of functions that the helper itself calls.
pub(super) mod at {
    pub(in crate::cl) const RELEASE_CONTEXT: usize = 7;
    pub(in crate::cl) const CONTEXT_INFO: usize = 8;
    pub(in crate::cl) const CREATE_QUEUE: usize = 9;
    pub(in crate::cl) const RELEASE_QUEUE: usize = 11;
    pub(in crate::cl) const QUEUE_INFO: usize = 12;
    pub(in crate::cl) const SET_QUEUE_PROPERTY: usize = 13;
    pub(in crate::cl) const CREATE_KERNEL: usize = 34;
    pub(in crate::cl) const CREATE_KERNELS: usize = 35;
    pub(in crate::cl) const KERNEL_INFO: usize = 39;
    pub(in crate::cl) const EVENT_INFO: usize = 42;
    pub(in crate::cl) const RETAIN_EVENT: usize = 43;
    pub(in crate::cl) const RELEASE_EVENT: usize = 44;
    pub(in crate::cl) const EVENT_TIMES: usize = 45;
    pub(in crate::cl) const CREATE_QUEUE_WITH: usize = 123;
    pub(in crate::cl) const CLONE_KERNEL: usize = 137;
    pub(in crate::cl) const DEVICE_TIMER: usize = 140;
}

/// What is called behind the layer.
pub(super) static TARGET: [AtomicUsize; ENTRIES] = [const { AtomicUsize::new(0) }; ENTRIES];
/// What the loader calls; 0: what is behind the layer.
pub(super) static LAYER: [AtomicUsize; ENTRIES] = [const { AtomicUsize::new(0) }; ENTRIES];

/// The address of a function behind the layer; 0: there is none.
pub(super) fn target(at: usize) -> usize {
    TARGET
        .get(at)
        .map_or(0, |place| place.load(Ordering::Acquire))
}

/// Calls a function behind the layer. Needs an `unsafe` block, and a function that is there:
/// the types are those of cl_icd.h.
macro_rules! call {
    ($at:expr, ($($arg:expr => $ty:ty),* $(,)?) -> $ret:ty) => {{
        let address = $crate::cl::api::target($at);
        let function: unsafe extern "C" fn($($ty),*) -> $ret = std::mem::transmute(address);
        function($($arg),*)
    }};
}
pub(super) use call;

/// Answers a query as all of OpenCL's do.
///
/// # Safety
/// `value` has room for `size` bytes or is null; `size_ret` is a place or null.
pub(super) unsafe fn answer(
    bytes: &[u8],
    size: usize,
    value: *mut u8,
    size_ret: *mut usize,
) -> i32 {
    if !value.is_null() {
        if size < bytes.len() {
            return INVALID_VALUE;
        }
        // SAFETY: there is room, by the caller's promise.
        unsafe { value.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
    if !size_ret.is_null() {
        // SAFETY: the caller's promise.
        unsafe { size_ret.write_unaligned(bytes.len()) };
    }
    SUCCESS
}

/// Asks an `...Info` function for a value of 8 bytes or fewer.
pub(super) fn info(at: usize, handle: usize, what: u32) -> Option<u64> {
    let mut value = 0_u64;
    if target(at) == 0 {
        return None;
    }
    // SAFETY: a function of that kind, and room for 8 bytes.
    let status = unsafe {
        call!(at, (handle => usize, what => u32, 8 => usize,
            (&raw mut value) => *mut u64, std::ptr::null_mut() => *mut usize) -> i32)
    };
    (status == SUCCESS).then_some(value)
}

/// Lets go of an event.
pub(super) fn release_event(event: usize) {
    // SAFETY: an event that the helper holds a reference of.
    unsafe { call!(at::RELEASE_EVENT, (event => usize) -> i32) };
}
