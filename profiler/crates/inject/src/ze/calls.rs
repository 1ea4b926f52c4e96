//! The other functions in front of the driver's: those that make and end objects, execute
//! lists, wait, and reset.

use super::abi::{
    DDI_HANDLES_SUPPORTED, Handle, Pointer, PoolDesc, SUCCESS, ZeFunction, ZeResult, at, chained,
    pool_flag, stype, text,
};
use super::device::TimedDevice;
use super::state::{self, ProgramState, TimedEvent, TimedKernel, TimedList};
use super::{real, tables};
use crate::ffi;
use crate::timing::{MAX_TIMING_NAME, UNTIMED_EVENT};
use std::ffi::{c_char, c_void};

/// Most lists that are executed at once and looked at.
const MOST_LISTS: u32 = 1 << 16;

/// Defines functions in front of the driver's: work before, the driver's call, and work
/// after it.
macro_rules! calls {
    ($($function:ident ($($arg:ident: $type:ty),*) $call:ident => $body:expr;)*) => {
        $(
            #[expect(non_snake_case, reason = "named as the function that it stands before")]
            unsafe extern "C-unwind" fn $function($($arg: $type),*) -> ZeResult {
                type Real = unsafe extern "C-unwind" fn($($type),*) -> ZeResult;
                #[allow(unused_mut, reason = "some change their arguments")]
                let $call = || {
                    // SAFETY: the program's own arguments.
                    unsafe { real::get::<Real>(ZeFunction::$function)($($arg),*) }
                };
                $body
            }
        )*

        /// The helper's function in front of a driver's.
        pub(super) fn wrapper(function: ZeFunction) -> Option<usize> {
            match function {
                $(ZeFunction::$function => Some($function as *const () as usize),)*
                ZeFunction::PoolCreate => Some(PoolCreate as *const () as usize),
                _ => None,
            }
        }
    };
}

calls! {
    DriverGetProperties(_driver: Handle, properties: Pointer) call => {
        let result = call();
        if result == SUCCESS {
            hide_dispatch(properties);
        }
        result
    };
    DriverGetExtensionFunctionAddress(_driver: Handle, name: *const c_char, found: *mut usize)
    call => {
        let result = call();
        if result == SUCCESS && !found.is_null() {
            // SAFETY: the driver has just written there.
            unsafe { *found = tables::replaced(name, *found) };
        }
        result
    };
    DeviceGet(_driver: Handle, count: *mut u32, devices: *mut Handle) call => {
        let result = call();
        if result == SUCCESS && !devices.is_null() && !count.is_null() {
            // SAFETY: the driver has just written that number of handles.
            let all = unsafe { std::slice::from_raw_parts(devices, (*count).min(4096) as usize) };
            state::with(|state| all.iter().for_each(|device| know_device(state, *device)));
        }
        result
    };
    ContextDestroy(context: Handle) call => {
        leave_context(context);
        call()
    };
    QueueCreate(_context: Handle, _device: Handle, _desc: Pointer, queue: *mut Handle) call => {
        let result = call();
        if let Some(queue) = made(result, queue) {
            state::with(|state| {
                let number = state.new_stream();
                state.queues.insert(queue as usize, number);
            });
        }
        result
    };
    QueueDestroy(queue: Handle) call => {
        let result = call();
        if result == SUCCESS {
            state::with(|state| state.queues.remove(&(queue as usize)));
        }
        result
    };
    QueueExecute(queue: Handle, count: u32, lists: *const Handle, fence: Handle) call => {
        let all = all_of(count, lists);
        state::with(|state| {
            let stream = state.queues.get(&(queue as usize)).copied().unwrap_or(0);
            state.execute(all, queue as usize, stream, fence as usize);
        });
        let result = call();
        if result != SUCCESS {
            state::with(|state| state.not_executed(all));
        }
        result
    };
    QueueSynchronize(queue: Handle, _timeout: u64) call => over(queue, call());
    FenceHostSynchronize(fence: Handle, _timeout: u64) call => over(fence, call());
    FenceQueryStatus(fence: Handle) call => over(fence, call());
    ListHostSynchronize(list: Handle, _timeout: u64) call => over(list, call());
    ListCreate(context: Handle, device: Handle, desc: Pointer, list: *mut Handle) call => {
        let result = call();
        if let Some(list) = made(result, list) {
            know_list(list, context, device, (desc, false));
        }
        result
    };
    ListCreateImmediate(context: Handle, device: Handle, desc: Pointer, list: *mut Handle)
    call => {
        let result = call();
        if let Some(list) = made(result, list) {
            know_list(list, context, device, (desc, true));
        }
        result
    };
    ListDestroy(list: Handle) call => {
        state::with(|state| state.empty_list(list, true));
        call()
    };
    ListReset(list: Handle) call => {
        let result = call();
        if result == SUCCESS {
            state::with(|state| state.empty_list(list, false));
        }
        result
    };
    ListCreateClone(list: Handle, _clone: *mut Handle) call => {
        state::with(|state| state.leave_list(list));
        call()
    };
    BeginGraphCapture(list: Handle, _next: Pointer) call => {
        state::with(|state| state.leave_list(list));
        call()
    };
    BeginCaptureIntoGraph(list: Handle, _graph: Handle, _next: Pointer) call => {
        state::with(|state| state.leave_list(list));
        call()
    };
    BeginGraphCaptureExp(list: Handle, _next: Pointer) call => {
        state::with(|state| state.leave_list(list));
        call()
    };
    BeginCaptureIntoGraphExp(list: Handle, _graph: Handle, _next: Pointer) call => {
        state::with(|state| state.leave_list(list));
        call()
    };
    ImmediateAppendLists(
        target: Handle, count: u32, lists: *const Handle, _signal: Handle, _waits: u32,
        _waited: Pointer
    ) call => append_lists(target, all_of(count, lists), call);
    ImmediateAppendListsWithParameters(
        target: Handle, count: u32, lists: *const Handle, _next: Pointer, _signal: Handle,
        _waits: u32, _waited: Pointer
    ) call => append_lists(target, all_of(count, lists), call);
    AppendLaunchMultipleKernelsIndirect(
        _list: Handle, _count: u32, _kernels: Pointer, _counts: Pointer, _groups: Pointer,
        _signal: Handle, _waits: u32, _waited: Pointer
    ) call => {
        // One event for all of them.
        state::with(|state| state.count_untimed(UNTIMED_EVENT, 1));
        call()
    };
    AppendEventReset(_list: Handle, event: Handle) call => {
        state::with(|state| state.spoil(event as usize));
        call()
    };
    PoolDestroy(pool: Handle) call => {
        let result = call();
        if result == SUCCESS {
            state::with(|state| state.pools.remove(&(pool as usize)));
        }
        result
    };
    EventCreate(pool: Handle, _desc: Pointer, event: *mut Handle) call => {
        let result = call();
        if let Some(event) = made(result, event) {
            state::with(|state| {
                if state.pools.contains(&(pool as usize)) {
                    state.events.insert(event as usize, TimedEvent::default());
                }
            });
        }
        result
    };
    EventDestroy(event: Handle) call => {
        state::with(|state| state.last_look(event, true));
        call()
    };
    EventHostSignal(event: Handle) call => {
        state::with(|state| {
            state.last_look(event, false);
        });
        call()
    };
    EventHostReset(event: Handle) call => {
        state::with(|state| state.last_look(event, false));
        call()
    };
    KernelCreate(_module: Handle, desc: Pointer, kernel: *mut Handle) call => {
        let result = call();
        if let Some(kernel) = made(result, kernel) {
            know_kernel(kernel, desc);
        }
        result
    };
    KernelDestroy(kernel: Handle) call => {
        let result = call();
        if result == SUCCESS {
            state::with(|state| state.kernels.remove(&(kernel as usize)));
        }
        result
    };
    KernelSetGroupSize(kernel: Handle, x: u32, y: u32, z: u32) call => {
        let result = call();
        if result == SUCCESS {
            state::with(|state| {
                if let Some(known) = state.kernels.get_mut(&(kernel as usize)) {
                    known.local = [x, y, z];
                }
            });
        }
        result
    };
}

fn leave_context(context: Handle) {
    // None of its events is being read.
    let _reading = super::report::lock();
    state::with(|state| state.leave_context(context));
}

/// Pools of the program's get events with timestamps, where that is allowed.
#[expect(non_snake_case, reason = "named as the function that it stands before")]
unsafe extern "C-unwind" fn PoolCreate(
    context: Handle,
    desc: *const PoolDesc,
    count: u32,
    devices: Pointer,
    pool: *mut Handle,
) -> ZeResult {
    let theirs = |desc: *const PoolDesc| {
        // SAFETY: the program's own arguments, or a copy of its description.
        unsafe { real::pool_create(context, desc, count, devices, pool) }
    };
    if desc.is_null() || !ffi::is_readable(desc.cast(), size_of::<PoolDesc>()) {
        return theirs(desc);
    }
    // SAFETY: the program's description.
    let mut own = unsafe { desc.read_unaligned() };
    // SAFETY: the chain of the program's description.
    let is_counter_based = unsafe { chained(own.next, stype::COUNTER_BASED_POOL) }.is_some();
    if own.flags & pool_flag::IPC != 0 || is_counter_based {
        return theirs(desc);
    }
    own.flags |= pool_flag::HOST_VISIBLE;
    if own.flags & pool_flag::MAPPED_TIMESTAMP == 0 {
        own.flags |= pool_flag::KERNEL_TIMESTAMP;
    }
    let result = theirs(&raw const own);
    let Some(pool) = made(result, pool) else {
        // What it would have got without the helper.
        return theirs(desc);
    };
    state::with(|state| state.pools.insert(pool as usize));
    result
}

/// What a call has made.
fn made(result: ZeResult, object: *mut Handle) -> Option<Handle> {
    if result != SUCCESS || object.is_null() {
        return None;
    }
    // SAFETY: the driver has just written there.
    Some(unsafe { *object })
}

/// The lists that a call executes.
fn all_of<'a>(count: u32, lists: *const Handle) -> &'a [Handle] {
    let bytes = count.min(MOST_LISTS) as usize * size_of::<Handle>();
    let can_read = || ffi::is_readable(lists.cast(), bytes);
    if lists.is_null() || count > MOST_LISTS || bytes == 0 || !can_read() {
        return &[];
    }
    // SAFETY: the program's array, that the call reads.
    unsafe { std::slice::from_raw_parts(lists, count as usize) }
}

/// A wait is over: so is all that was submitted there.
fn over(target: Handle, result: ZeResult) -> ZeResult {
    if result == SUCCESS {
        state::with(|state| state.over(target as usize));
    }
    result
}

fn append_lists(target: Handle, lists: &[Handle], call: impl FnOnce() -> ZeResult) -> ZeResult {
    state::with(|state| {
        let known = state.lists.get(&(target as usize));
        let stream = known.and_then(|list| list.stream).unwrap_or(0);
        state.execute(lists, target as usize, stream, 0);
    });
    let result = call();
    if result != SUCCESS {
        state::with(|state| state.not_executed(lists));
    }
    result
}

/// Handles may not be called through: the helper would not see it.
fn hide_dispatch(properties: Pointer) {
    // SAFETY: a structure that the driver has just filled, and its chain.
    let found = unsafe { chained(properties, stype::DDI_HANDLES) };
    if let Some(found) = found {
        let flags = found.wrapping_byte_add(16).cast_mut().cast::<u32>();
        // SAFETY: `ze_driver_ddi_handles_ext_properties_t` has its flags there.
        unsafe { flags.write_unaligned(flags.read_unaligned() & !DDI_HANDLES_SUPPORTED) };
    }
}

fn know_device(state: &mut ProgramState, device: *mut c_void) {
    let key = device as usize;
    if state.devices.contains_key(&key) || state.devices.len() >= 4096 {
        return;
    }
    let number = u32::try_from(state.devices.len()).unwrap_or(0);
    state.devices.insert(key, TimedDevice::new(key, number));
}

/// A new list; `desc`: its description, and whether it is an immediate one.
fn know_list(list: Handle, context: Handle, device: Handle, desc: (Pointer, bool)) {
    let (desc, is_immediate) = desc;
    // SAFETY: the description that the driver has just taken.
    let is_mutable = unsafe { chained(desc, stype::MUTABLE_LIST) }.is_some();
    let is_timed = tables::can_time() && !is_mutable;
    state::with(|state| {
        know_device(state, device);
        if let Some(device) = state.devices.get_mut(&(device as usize)) {
            device.calibrate_if_due(false);
        }
        let number = u32::try_from(state.contexts.len()).unwrap_or(0) + 1;
        let known = state.contexts.entry(context as usize).or_default();
        if known.number == 0 {
            known.number = number;
        }
        let stream = is_immediate.then(|| state.new_stream());
        let new = TimedList::new(context as usize, device as usize, stream, is_timed);
        state.lists.insert(list as usize, new);
    });
    super::start();
}

fn know_kernel(kernel: Handle, desc: Pointer) {
    // SAFETY: `ze_kernel_desc_t`, that the driver has just taken; its name is at 24.
    let name = unsafe { text(at::<*const c_char>(desc, 24)) }.to_bytes();
    let name = name.get(..MAX_TIMING_NAME).unwrap_or(name);
    state::with(|state| {
        let name = state.names.number(name);
        let new = TimedKernel {
            name,
            local: [1; 3],
        };
        state.kernels.insert(kernel as usize, new);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The begin of `ze_driver_properties_t`, and the extension's structure.
    #[repr(C)]
    struct Properties {
        stype: u32,
        next: Pointer,
        flags: u32,
    }

    #[test]
    fn drivers_do_not_say_that_handles_may_be_called_through() {
        let mut extension = Properties {
            stype: stype::DDI_HANDLES,
            next: std::ptr::null(),
            flags: 0b11,
        };
        let between = Properties {
            stype: 0x1234,
            next: (&raw mut extension).cast(),
            flags: 0b11,
        };
        let first = Properties {
            stype: 1,
            next: (&raw const between).cast(),
            flags: 0b11,
        };
        hide_dispatch((&raw const first).cast());
        assert_eq!((first.flags, between.flags, extension.flags), (3, 3, 2));
        hide_dispatch(std::ptr::null());
    }
}
