//! Events, as the program sees them.

use super::api::{self, NO_TIMES, SUCCESS, at, call};
use super::{held, queues};

/// `CL_EVENT_COMMAND_QUEUE`.
const QUEUE: u32 = 0x11d0;
/// `CL_EVENT_REFERENCE_COUNT`.
const REFERENCES: u32 = 0x11d2;

/// The functions of events.
pub(super) fn wrappers() -> [(usize, *const ()); 2] {
    [
        (at::EVENT_INFO, info as *const ()),
        (at::EVENT_TIMES, times as *const ()),
    ]
}

unsafe extern "C" fn info(
    event: usize,
    what: u32,
    size: usize,
    value: *mut u8,
    size_ret: usize,
) -> i32 {
    let ask = || {
        // SAFETY: what the program gave.
        unsafe {
            call!(at::EVENT_INFO, (event => usize, what => u32, size => usize,
                value => *mut u8, size_ret => usize) -> i32)
        }
    };
    if what != REFERENCES {
        return ask();
    }
    held::with_references(event, |own| {
        let status = ask();
        if status == SUCCESS && !value.is_null() {
            let count: *mut u32 = value.cast();
            // SAFETY: the runtime has just written 4 bytes there.
            unsafe { count.write_unaligned(count.read_unaligned().saturating_sub(own)) };
        }
        status
    })
}

unsafe extern "C" fn times(
    event: usize,
    what: u32,
    size: usize,
    value: usize,
    size_ret: usize,
) -> i32 {
    let queue = api::info(at::EVENT_INFO, event, QUEUE).unwrap_or(0);
    if usize::try_from(queue).is_ok_and(queues::is_masked) {
        return NO_TIMES;
    }
    // SAFETY: what the program gave.
    unsafe {
        call!(at::EVENT_TIMES, (event => usize, what => u32, size => usize,
            value => usize, size_ret => usize) -> i32)
    }
}
