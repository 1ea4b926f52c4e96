//! The calls that give a queue work.

use super::api::{INVALID_VALUE, SUCCESS, at, call};
use super::held::{self, EnqueuedWork, Held};
use super::{names, queues};
use crate::timing::{WORK_COPY, WORK_FILL, WORK_KERNEL};
use crate::{ffi, guarded};

/// Directions of a copy, as records have them.
const UNKNOWN: u32 = 0;
const TO_DEVICE: u32 = 1;
const TO_HOST: u32 = 2;
const WITHIN: u32 = 4;

fn kernel(handle: usize) -> EnqueuedWork {
    EnqueuedWork {
        what: WORK_KERNEL,
        name: names::number(handle),
        ..EnqueuedWork::default()
    }
}

fn copy(direction: u32, bytes: usize) -> EnqueuedWork {
    EnqueuedWork {
        what: WORK_COPY,
        direction,
        bytes: bytes as u64,
        name: 0,
    }
}

fn fill(bytes: usize) -> EnqueuedWork {
    EnqueuedWork {
        what: WORK_FILL,
        bytes: bytes as u64,
        ..EnqueuedWork::default()
    }
}

/// Bytes of a region of a buffer: the runtime has taken it.
fn region(sizes: *const [usize; 3]) -> usize {
    if sizes.is_null() {
        return 0;
    }
    // SAFETY: three sizes, which the runtime has just read.
    let [x, y, z] = unsafe { sizes.read_unaligned() };
    x.saturating_mul(y).saturating_mul(z)
}

/// Makes a call with an event, and holds that. `work` is asked once it has succeeded;
/// `give` makes the call and gives what it returns and its status.
fn launch<T>(
    queue: usize,
    event: *mut usize,
    work: impl FnOnce() -> EnqueuedWork,
    give: impl FnOnce(*mut usize) -> (T, i32),
) -> T {
    let seat = queues::seat(queue).filter(|_| held::has_room());
    let Some(seat) = seat else {
        return give(event).0;
    };
    let mut own = 0;
    let from = ffi::now();
    let (result, status) = give(&raw mut own);
    let to = ffi::now();
    if status == SUCCESS && own != 0 {
        guarded(|| {
            if !event.is_null() {
                // SAFETY: an event that was just created. The program does not know it yet.
                unsafe { call!(at::RETAIN_EVENT, (own => usize) -> i32) };
            }
            held::add(Held {
                event: own,
                work: work(),
                seat,
                tid: ffi::tid(),
                call: (from, to),
            });
        });
    }
    if !event.is_null() && (own != 0 || status == SUCCESS) {
        // SAFETY: the program's own variable.
        unsafe { event.write_unaligned(own) };
    }
    result
}

/// Functions of queues that end with a list of events and an event.
macro_rules! functions {
    ($($name:ident = $at:literal ($($arg:ident: $ty:ty),*) => $work:expr;)*) => {
        $(
            unsafe extern "C" fn $name(
                queue: usize,
                $($arg: $ty,)*
                waits: u32,
                list: usize,
                event: *mut usize,
            ) -> i32 {
                launch(queue, event, || $work, |event| {
                    // SAFETY: what the program gave, but for the place of the event.
                    let status = unsafe {
                        call!($at, (queue => usize, $($arg => $ty,)* waits => u32,
                            list => usize, event => *mut usize) -> i32)
                    };
                    (status, status)
                })
            }
        )*

        /// The functions, and their places.
        pub(super) fn wrappers() -> Vec<(usize, *const ())> {
            vec![
                (56, map_buffer as *const ()),
                (57, map_image as *const ()),
                $(($at, $name as *const ())),*
            ]
        }
    };
}

type Sizes = *const [usize; 3];

// Arguments between the queue and the list, in the order of cl_icd.h.
functions! {
    read_buffer = 48 (memory: usize, blocking: u32, offset: usize, bytes: usize, to: usize)
        => copy(TO_HOST, bytes);
    write_buffer = 49 (memory: usize, blocking: u32, offset: usize, bytes: usize, from: usize)
        => copy(TO_DEVICE, bytes);
    copy_buffer = 50 (from: usize, to: usize, from_offset: usize, to_offset: usize, bytes: usize)
        => copy(WITHIN, bytes);
    read_image = 51 (image: usize, blocking: u32, origin: usize, size: usize, row: usize,
        slice: usize, to: usize) => copy(TO_HOST, 0);
    write_image = 52 (image: usize, blocking: u32, origin: usize, size: usize, row: usize,
        slice: usize, from: usize) => copy(TO_DEVICE, 0);
    copy_image = 53 (from: usize, to: usize, from_origin: usize, to_origin: usize, size: usize)
        => copy(WITHIN, 0);
    image_to_buffer = 54 (from: usize, to: usize, origin: usize, size: usize, offset: usize)
        => copy(WITHIN, 0);
    buffer_to_image = 55 (from: usize, to: usize, offset: usize, origin: usize, size: usize)
        => copy(WITHIN, 0);
    unmap = 58 (memory: usize, mapped: usize) => copy(UNKNOWN, 0);
    nd_range = 59 (of: usize, dimensions: u32, offset: usize, global: usize, local: usize)
        => kernel(of);
    task = 60 (of: usize) => kernel(of);
    native = 61 (function: usize, args: usize, bytes: usize, count: u32, memories: usize,
        places: usize) => kernel(0);
    read_rect = 86 (memory: usize, blocking: u32, origin: usize, host: usize, size: Sizes,
        row: usize, slice: usize, host_row: usize, host_slice: usize, to: usize)
        => copy(TO_HOST, region(size));
    write_rect = 87 (memory: usize, blocking: u32, origin: usize, host: usize, size: Sizes,
        row: usize, slice: usize, host_row: usize, host_slice: usize, from: usize)
        => copy(TO_DEVICE, region(size));
    copy_rect = 88 (from: usize, to: usize, from_origin: usize, to_origin: usize, size: Sizes,
        from_row: usize, from_slice: usize, to_row: usize, to_slice: usize)
        => copy(WITHIN, region(size));
    fill_buffer = 102 (memory: usize, pattern: usize, pattern_bytes: usize, offset: usize,
        bytes: usize) => fill(bytes);
    fill_image = 103 (image: usize, color: usize, origin: usize, size: usize) => fill(0);
    migrate = 104 (count: u32, memories: usize, flags: u64) => copy(UNKNOWN, 0);
    svm_copy = 129 (blocking: u32, to: usize, from: usize, bytes: usize) => copy(UNKNOWN, bytes);
    svm_fill = 130 (to: usize, pattern: usize, pattern_bytes: usize, bytes: usize)
        => fill(bytes);
    svm_map = 131 (blocking: u32, flags: u64, from: usize, bytes: usize) => copy(UNKNOWN, bytes);
    svm_unmap = 132 (from: usize) => copy(UNKNOWN, 0);
    svm_migrate = 139 (count: u32, pointers: usize, sizes: usize, flags: u64)
        => copy(UNKNOWN, 0);
}

/// What a call returned that gives a pointer, and its status: null where it failed.
fn mapped(pointer: usize) -> (usize, i32) {
    let status = if pointer == 0 { INVALID_VALUE } else { SUCCESS };
    (pointer, status)
}

unsafe extern "C" fn map_buffer(
    queue: usize,
    memory: usize,
    blocking: u32,
    flags: u64,
    offset: usize,
    bytes: usize,
    waits: u32,
    list: usize,
    event: *mut usize,
    error: usize,
) -> usize {
    launch(
        queue,
        event,
        || copy(UNKNOWN, bytes),
        |event| {
            // SAFETY: what the program gave, but for the place of the event.
            mapped(unsafe {
                call!(56, (queue => usize, memory => usize, blocking => u32, flags => u64,
                offset => usize, bytes => usize, waits => u32, list => usize,
                event => *mut usize, error => usize) -> usize)
            })
        },
    )
}

unsafe extern "C" fn map_image(
    queue: usize,
    image: usize,
    blocking: u32,
    flags: u64,
    origin: usize,
    size: usize,
    row: usize,
    slice: usize,
    waits: u32,
    list: usize,
    event: *mut usize,
    error: usize,
) -> usize {
    launch(
        queue,
        event,
        || copy(UNKNOWN, 0),
        |event| {
            // SAFETY: what the program gave, but for the place of the event.
            mapped(unsafe {
                call!(57, (queue => usize, image => usize, blocking => u32, flags => u64,
                origin => usize, size => usize, row => usize, slice => usize, waits => u32,
                list => usize, event => *mut usize, error => usize) -> usize)
            })
        },
    )
}
