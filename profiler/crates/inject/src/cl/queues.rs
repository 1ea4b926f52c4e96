//! Queues: created with profiling, with the properties that the program asked for to be
//! seen.

use super::api::{self, SUCCESS, answer, at, call};
use super::held::{self, Seat};
use crate::guarded;
use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

/// Most queues that are known; what those beyond do is not timed.
const MOST: usize = 1 << 14;
/// Most properties of a queue; OpenCL has two, and extensions a few.
const MOST_PROPERTIES: usize = 32;

/// `CL_QUEUE_PROPERTIES`, of a query and in a list.
const PROPERTIES: u32 = 0x1093;
/// `CL_QUEUE_PROPERTIES_ARRAY`.
const PROPERTIES_ARRAY: u32 = 0x1098;
/// `CL_QUEUE_REFERENCE_COUNT`, `CL_CONTEXT_REFERENCE_COUNT`.
const QUEUE_REFERENCES: u32 = 0x1092;
const CONTEXT_REFERENCES: u32 = 0x1080;
/// Bits of a queue's properties.
const OUT_OF_ORDER: u64 = 1;
const PROFILING: u64 = 2;
const ON_DEVICE: u64 = 4;

/// A queue that the program created.
#[derive(Debug)]
struct CommandQueue {
    seat: Seat,
    /// The program did not ask for profiling.
    is_masked: bool,
    /// Its commands are not timed any more.
    is_off: bool,
    /// The list of properties that it was created with, if that was changed.
    asked: Option<Vec<u64>>,
}

/// All queues, and numbers of what they belong to.
#[derive(Debug, Default)]
struct Queues {
    by_handle: HashMap<usize, CommandQueue>,
    devices: Vec<usize>,
    contexts: Vec<usize>,
    created: u64,
}

static QUEUES: RwLock<Option<Queues>> = RwLock::new(None);

/// The functions of queues.
pub(super) fn wrappers() -> [(usize, *const ()); 7] {
    [
        (at::RELEASE_CONTEXT, release_context as *const ()),
        (at::CONTEXT_INFO, context_info as *const ()),
        (at::CREATE_QUEUE, create as *const ()),
        (at::RELEASE_QUEUE, release as *const ()),
        (at::QUEUE_INFO, info as *const ()),
        (at::SET_QUEUE_PROPERTY, set_property as *const ()),
        (at::CREATE_QUEUE_WITH, create_with as *const ()),
    ]
}

fn find<T>(queue: usize, what: impl FnOnce(&CommandQueue) -> T) -> Option<T> {
    let queues = QUEUES.read().unwrap_or_else(PoisonError::into_inner);
    queues.as_ref()?.by_handle.get(&queue).map(what)
}

fn change() -> RwLockWriteGuard<'static, Option<Queues>> {
    QUEUES.write().unwrap_or_else(PoisonError::into_inner)
}

/// Where a queue's commands run, if they are timed.
pub(super) fn seat(queue: usize) -> Option<Seat> {
    let is_on = held::is_on();
    let seat = is_on.then(|| find(queue, |queue| (!queue.is_off).then_some(queue.seat)));
    seat??
}

/// Whether the program did not ask for a queue's profiling.
pub(super) fn is_masked(queue: usize) -> bool {
    find(queue, |queue| queue.is_masked).unwrap_or(false)
}

/// The handle of a device, by its number.
pub(super) fn device(number: u32) -> Option<usize> {
    let queues = QUEUES.read().unwrap_or_else(PoisonError::into_inner);
    queues.as_ref()?.devices.get(number as usize).copied()
}

/// The number of a handle, by its first appearance.
fn number(known: &mut Vec<usize>, handle: usize) -> u32 {
    let at = known.iter().position(|known| *known == handle);
    let at = at.unwrap_or_else(|| {
        if known.len() < MOST {
            known.push(handle);
        }
        known.len() - 1
    });
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// Takes note of a queue; `flags`: as the program asked for it.
fn note(queue: usize, (context, device): (usize, usize), flags: u64, asked: Option<Vec<u64>>) {
    let mut queues = change();
    let queues = queues.get_or_insert_default();
    queues.created += 1;
    let seat = Seat {
        device: number(&mut queues.devices, device),
        context: number(&mut queues.contexts, context),
        stream: queues.created,
        in_order: flags & OUT_OF_ORDER == 0,
    };
    let new = CommandQueue {
        seat,
        is_masked: flags & PROFILING == 0,
        is_off: false,
        asked,
    };
    // A handle that is used again is another queue's.
    queues.by_handle.insert(queue, new);
}

/// Whether another queue can be followed. If the helper switched on profiling for a queue
/// that it does not know, the program would see the times.
fn has_room() -> bool {
    let queues = QUEUES.read().unwrap_or_else(PoisonError::into_inner);
    let known = queues.as_ref().map_or(0, |queues| queues.by_handle.len());
    held::is_on() && known < MOST
}

unsafe extern "C" fn create(context: usize, device: usize, flags: u64, error: *mut i32) -> usize {
    let create = |flags: u64| {
        // SAFETY: what the program gave, and a flag more.
        unsafe {
            call!(at::CREATE_QUEUE, (context => usize, device => usize, flags => u64,
                error => *mut i32) -> usize)
        }
    };
    let is_left = !has_room() || flags & ON_DEVICE != 0;
    let queue = if is_left {
        0
    } else {
        create(flags | PROFILING)
    };
    if queue == 0 {
        // As without the helper, with the same error.
        return create(flags);
    }
    guarded(|| note(queue, (context, device), flags, None));
    queue
}

/// A list of properties with its end. `None`: it has none, or is long.
///
/// # Safety
/// It is a list of pairs that ends with 0.
unsafe fn list(properties: *const u64) -> Option<Vec<u64>> {
    let mut list = Vec::new();
    while list.len() < 2 * MOST_PROPERTIES {
        // SAFETY: the list's end is behind this, by the caller's promise.
        let key = unsafe { properties.add(list.len()).read_unaligned() };
        list.push(key);
        if key == 0 {
            return Some(list);
        }
        // SAFETY: as above; a key has a value.
        list.push(unsafe { properties.add(list.len()).read_unaligned() });
    }
    None
}

/// The flags of a list, and the list with profiling; `None`: it is left as it is.
fn with_profiling(asked: &[u64]) -> Option<(u64, Vec<u64>)> {
    let mut changed = asked.to_vec();
    let mut flags = None;
    for pair in changed.chunks_exact_mut(2) {
        if let [key, value] = pair
            && *key == u64::from(PROPERTIES)
        {
            flags = Some(*value);
            *value |= PROFILING;
        }
    }
    if flags.is_none() {
        changed.pop();
        changed.extend([PROPERTIES.into(), PROFILING, 0]);
    }
    let flags = flags.unwrap_or(0);
    (flags & ON_DEVICE == 0).then_some((flags, changed))
}

unsafe extern "C" fn create_with(
    context: usize,
    device: usize,
    properties: *const u64,
    error: *mut i32,
) -> usize {
    let create = |properties: *const u64| {
        // SAFETY: what the program gave, or a list of the same form.
        unsafe {
            call!(at::CREATE_QUEUE_WITH, (context => usize, device => usize,
                properties => *const u64, error => *mut i32) -> usize)
        }
    };
    let asked = match properties.is_null() {
        true => Some(vec![0]),
        // SAFETY: the program's list.
        false => unsafe { list(properties) },
    };
    let changed = asked.as_deref().and_then(with_profiling);
    let Some((flags, changed)) = changed.filter(|_| has_room()) else {
        return create(properties);
    };
    let queue = create(changed.as_ptr());
    if queue == 0 {
        // As without the helper, with the same error.
        return create(properties);
    }
    let asked = asked.filter(|_| !properties.is_null()).unwrap_or_default();
    guarded(|| note(queue, (context, device), flags, Some(asked)));
    queue
}

unsafe extern "C" fn release(queue: usize) -> i32 {
    guarded(held::settle);
    // SAFETY: what the program gave.
    unsafe { call!(at::RELEASE_QUEUE, (queue => usize) -> i32) }
}

unsafe extern "C" fn release_context(context: usize) -> i32 {
    guarded(held::settle);
    // SAFETY: what the program gave.
    unsafe { call!(at::RELEASE_CONTEXT, (context => usize) -> i32) }
}

unsafe extern "C" fn context_info(
    context: usize,
    what: u32,
    size: usize,
    value: usize,
    size_ret: usize,
) -> i32 {
    if what == CONTEXT_REFERENCES {
        // Events hold their context.
        guarded(held::settle);
    }
    // SAFETY: what the program gave.
    unsafe {
        call!(at::CONTEXT_INFO, (context => usize, what => u32, size => usize,
            value => usize, size_ret => usize) -> i32)
    }
}

unsafe extern "C" fn info(
    queue: usize,
    what: u32,
    size: usize,
    value: *mut u8,
    size_ret: *mut usize,
) -> i32 {
    if what == QUEUE_REFERENCES {
        guarded(held::settle);
    }
    if what == PROPERTIES_ARRAY
        && api::info(at::QUEUE_INFO, queue, PROPERTIES).is_some()
        && let Some(asked) = find(queue, |queue| queue.asked.clone()).flatten()
    {
        let bytes: Vec<u8> = asked.iter().flat_map(|word| word.to_ne_bytes()).collect();
        // SAFETY: the program's own variables.
        return unsafe { answer(&bytes, size, value, size_ret) };
    }
    // SAFETY: what the program gave.
    let status = unsafe {
        call!(at::QUEUE_INFO, (queue => usize, what => u32, size => usize,
            value => *mut u8, size_ret => *mut usize) -> i32)
    };
    if what == PROPERTIES && status == SUCCESS && is_masked(queue) {
        // SAFETY: the runtime has just written 8 bytes there, if anywhere.
        unsafe { mask(value.cast()) };
    }
    status
}

/// Takes profiling out of properties.
///
/// # Safety
/// They are 8 bytes, or null.
unsafe fn mask(properties: *mut u64) {
    if !properties.is_null() {
        // SAFETY: the caller's promise.
        unsafe { properties.write_unaligned(properties.read_unaligned() & !PROFILING) };
    }
}

unsafe extern "C" fn set_property(queue: usize, flags: u64, enable: u32, old: *mut u64) -> i32 {
    let was_masked = is_masked(queue);
    // SAFETY: what the program gave.
    let status = unsafe {
        call!(at::SET_QUEUE_PROPERTY, (queue => usize, flags => u64, enable => u32,
            old => *mut u64) -> i32)
    };
    if status == SUCCESS && was_masked {
        // SAFETY: the runtime has just written 8 bytes there, if anywhere.
        unsafe { mask(old) };
    }
    if status == SUCCESS && flags & PROFILING != 0 {
        guarded(|| {
            if let Some(queue) = change().as_mut().and_then(|q| q.by_handle.get_mut(&queue)) {
                queue.is_masked = enable == 0;
                queue.is_off = enable == 0;
            }
        });
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiling_is_added_to_what_was_asked_for_and_nothing_else_is_changed() {
        let list = |list: &[u64]| with_profiling(list);
        assert_eq!(list(&[0]), Some((0, vec![0x1093, 2, 0])));
        assert_eq!(list(&[0x1093, 1, 0]), Some((1, vec![0x1093, 3, 0])));
        assert_eq!(
            list(&[0x4100, 7, 0x1093, 2, 0]),
            Some((2, vec![0x4100, 7, 0x1093, 2, 0]))
        );
        assert_eq!(
            list(&[0x4100, 7, 0]),
            Some((0, vec![0x4100, 7, 0x1093, 2, 0]))
        );
        assert_eq!(list(&[0x1093, 5, 0x1094, 64, 0]), None, "of a device");
    }

    #[test]
    fn a_list_without_an_end_is_left() {
        let endless = [1_u64; 4 * MOST_PROPERTIES];
        // SAFETY: longer than what is read.
        assert_eq!(unsafe { list(endless.as_ptr()) }, None);
        // SAFETY: it has an end.
        let short = unsafe { list([0x1093, 1, 0, 9].as_ptr()) };
        assert_eq!(short, Some(vec![0x1093, 1, 0]));
    }
}
