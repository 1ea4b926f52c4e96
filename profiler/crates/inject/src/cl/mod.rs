//! OpenCL: a layer of the ICD loader (`OPENCL_LAYERS`; cl_layer.h of OpenCL-Headers,
//! extension cl_loader_layers).
//!
//! Queues are created with `CL_QUEUE_PROFILING_ENABLE`, and each command that is work has an
//! event: its own where the program wants none. A thread of the helper looks at these events
//! and reads when the commands began and ended. On the program's threads a command costs a
//! few lines in memory, and nothing waits.
//!
//! The program sees none of it: queues have the properties that it asked for, events of
//! queues without profiling have no times, and reference counts are its own.

mod api;
mod clock;
mod enqueue;
mod events;
mod held;
mod names;
mod queues;
mod reader;

use api::{ENTRIES, LAYER, TARGET};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

/// `CL_LAYER_API_VERSION`, `CL_LAYER_NAME` (cl_layer.h).
const API_VERSION: u32 = 0x4240;
const NAME: u32 = 0x4241;
/// `CL_LAYER_API_VERSION_100`.
const VERSION_100: u32 = 100;
/// What the layer is called.
const OWN_NAME: &[u8] = b"aiprof device times\0";
/// It is in the program already: only one loader of a program can be followed.
static IS_THERE: AtomicBool = AtomicBool::new(false);

/// What the loader asks first.
///
/// # Safety
/// As cl_layer.h has it: `value` has room for `size` bytes, or is null.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn clGetLayerInfo(
    what: u32,
    size: usize,
    value: *mut u8,
    size_ret: *mut usize,
) -> i32 {
    let version = VERSION_100.to_ne_bytes();
    let answer: &[u8] = match what {
        API_VERSION => &version,
        NAME => OWN_NAME,
        _ => return api::INVALID_VALUE,
    };
    // SAFETY: the caller's promise.
    unsafe { api::answer(answer, size, value, size_ret) }
}

/// Gives the loader the functions that are called in place of its own.
///
/// # Safety
/// As in cl_layer.h: `target` has `entries` functions, and the others are places for the
/// answers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn clInitLayer(
    entries: u32,
    target: *const *const c_void,
    entries_ret: *mut u32,
    layer_ret: *mut *const c_void,
) -> i32 {
    let is_refused = target.is_null() || entries_ret.is_null() || layer_ret.is_null();
    if is_refused || IS_THERE.swap(true, Ordering::AcqRel) {
        return api::INVALID_VALUE;
    }
    for (at, place) in TARGET.iter().take(entries as usize).enumerate() {
        // SAFETY: within the loader's functions, by the caller's promise.
        place.store(unsafe { *target.add(at) } as usize, Ordering::Release);
    }
    let queues = queues::wrappers();
    let all = [&enqueue::wrappers()[..], &queues, &events::wrappers()].concat();
    for (at, wrapper) in all.into_iter().chain(names::wrappers()) {
        if api::target(at) != 0
            && let Some(place) = LAYER.get(at)
        {
            place.store(wrapper as usize, Ordering::Release);
        }
    }
    reader::start();
    // SAFETY: places for the answers, by the caller's promise.
    unsafe {
        *entries_ret = entries.min(ENTRIES as u32);
        *layer_ret = (&raw const LAYER).cast();
    }
    api::SUCCESS
}
