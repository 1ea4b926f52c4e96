//! The driver's own functions, as its tables gave them.

use super::abi::{
    EventDesc, FUNCTIONS, Handle, Pointer, PoolDesc, Timestamps, ZeFunction, ZeResult,
};
use std::sync::atomic::{AtomicUsize, Ordering};

static FOUND: [AtomicUsize; FUNCTIONS.len()] = [const { AtomicUsize::new(0) }; FUNCTIONS.len()];

/// Remembers where the driver has a function.
pub(super) fn remember(function: ZeFunction, address: usize) {
    if let Some(found) = FOUND.get(function as usize) {
        found.store(address, Ordering::Release);
    }
}

/// Whether the driver has a function.
pub(super) fn has(function: ZeFunction) -> bool {
    address(function) != 0
}

/// Where the driver has a function; 0: nowhere.
pub(super) fn address(function: ZeFunction) -> usize {
    let found = FOUND.get(function as usize);
    found.map_or(0, |found| found.load(Ordering::Acquire))
}

/// A function of the driver's.
///
/// # Safety
/// `F` is its type. It is known ([`has`]).
pub(super) unsafe fn get<F: Copy>(function: ZeFunction) -> F {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    let address = address(function);
    // SAFETY: an address of that size; the caller's promise.
    unsafe { std::mem::transmute_copy(&address) }
}

/// Defines a call of the driver's; without the function it answers that it failed.
macro_rules! call {
    ($(#[$doc:meta])* $name:ident, $function:ident, ($($arg:ident: $type:ty),*)) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The arguments are as the specification wants them.
        pub(super) unsafe fn $name($($arg: $type),*) -> ZeResult {
            type Real = unsafe extern "C-unwind" fn($($type),*) -> ZeResult;
            if !has(ZeFunction::$function) {
                return -1;
            }
            // SAFETY: its type, by the specification; the caller's promise.
            unsafe { get::<Real>(ZeFunction::$function)($($arg),*) }
        }
    };
}

call!(
    /// `zeEventPoolCreate`
    pool_create, PoolCreate,
    (context: Handle, desc: *const PoolDesc, devices: u32, which: Pointer, pool: *mut Handle)
);
call!(
    /// `zeEventPoolDestroy`
    pool_destroy, PoolDestroy, (pool: Handle)
);
call!(
    /// `zeEventCreate`
    event_create, EventCreate, (pool: Handle, desc: *const EventDesc, event: *mut Handle)
);
call!(
    /// `zeEventDestroy`
    event_destroy, EventDestroy, (event: Handle)
);
call!(
    /// `zeEventHostReset`
    event_reset, EventHostReset, (event: Handle)
);
call!(
    /// `zeEventQueryStatus`
    event_status, EventQueryStatus, (event: Handle)
);
call!(
    /// `zeEventQueryKernelTimestamp`
    event_times, EventQueryKernelTimestamp, (event: Handle, times: *mut Timestamps)
);
call!(
    /// `zeDeviceGetProperties`
    device_properties, DeviceGetProperties, (device: Handle, properties: *mut u64)
);
call!(
    /// `zeDeviceGetGlobalTimestamps`
    device_clock, DeviceGetGlobalTimestamps, (device: Handle, host: *mut u64, ticks: *mut u64)
);
