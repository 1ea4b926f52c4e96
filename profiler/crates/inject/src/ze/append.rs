//! Appending commands: the program's call, with an event that has timestamps.

use super::abi::{Handle, Pointer, SUCCESS, Three, ZeFunction, ZeResult};
use super::real;
use super::state::{self, AppendPlan, CommandWork};
use crate::ffi;
use crate::timing::{WORK_COPY, WORK_FILL};

/// Before the driver's function is called.
fn before(list: Handle, signal: Handle) -> AppendPlan {
    super::start();
    let mut plan = AppendPlan::default();
    plan.signal = signal as usize;
    state::with(|state| Some(state.plan(list, signal))).unwrap_or(plan)
}

/// After it has returned.
fn after(
    plan: &AppendPlan,
    start_ns: u64,
    result: ZeResult,
    work: impl FnOnce(&state::ProgramState) -> CommandWork,
) {
    let end_ns = ffi::now();
    state::with(|state| match result {
        SUCCESS if plan.is_timed() => {
            let work = work(state);
            state.appended(plan, (start_ns, end_ns), work);
        }
        SUCCESS => {}
        _ => state.refused(plan),
    });
}

fn kernel_at(state: &state::ProgramState, kernel: Handle, groups: Pointer) -> CommandWork {
    let groups = match groups.is_null() {
        true => [0; 3],
        // SAFETY: the driver has just taken it.
        false => unsafe { super::abi::at(groups, 0) },
    };
    state.kernel_work(kernel, groups)
}

fn copy(bytes: usize) -> CommandWork {
    CommandWork {
        what: WORK_COPY,
        bytes: bytes as u64,
        ..CommandWork::default()
    }
}

fn filled(bytes: usize) -> CommandWork {
    CommandWork {
        what: WORK_FILL,
        ..copy(bytes)
    }
}

/// Bytes of a region of memory that is copied: `ze_copy_region_t`.
fn region(region: Pointer) -> usize {
    if region.is_null() {
        return 0;
    }
    // SAFETY: the driver has just taken it.
    let [width, height, depth] = unsafe { super::abi::at::<[u32; 3]>(region, 12) };
    let area = width as usize * height.max(1) as usize;
    area.saturating_mul(depth.max(1) as usize)
}

/// Defines functions in front of the driver's: arguments between the list and the events,
/// and what the command does.
macro_rules! appends {
    ($($function:ident ($($arg:ident: $type:ty),*) $state:ident => $work:expr;)*) => {
        $(
            #[expect(non_snake_case, reason = "named as the function that it stands before")]
            unsafe extern "C-unwind" fn $function(
                list: Handle,
                $($arg: $type,)*
                signal: Handle,
                waits: u32,
                waited: Pointer,
            ) -> ZeResult {
                type Real = unsafe extern "C-unwind" fn(
                    Handle, $($type,)* Handle, u32, Pointer,
                ) -> ZeResult;
                let plan = before(list, signal);
                let start = ffi::now();
                // SAFETY: the program's own arguments, and an event of the same context.
                let result = unsafe {
                    real::get::<Real>(ZeFunction::$function)(
                        list, $($arg,)* plan.signal as Handle, waits, waited,
                    )
                };
                after(&plan, start, result, |$state| $work);
                result
            }
        )*

        /// The helper's function in front of a driver's.
        pub(super) fn wrapper(function: ZeFunction) -> Option<usize> {
            match function {
                $(ZeFunction::$function => Some($function as *const () as usize),)*
                ZeFunction::AppendMemoryCopyWithParametersExp => {
                    Some(AppendMemoryCopyWithParametersExp as *const () as usize)
                }
                _ => None,
            }
        }
    };
}

appends! {
    AppendLaunchKernel(kernel: Handle, groups: Pointer)
        state => kernel_at(state, kernel, groups);
    AppendLaunchCooperativeKernel(kernel: Handle, groups: Pointer)
        state => kernel_at(state, kernel, groups);
    AppendLaunchKernelIndirect(kernel: Handle, _groups: Pointer)
        state => state.kernel_work(kernel, [0; 3]);
    AppendLaunchKernelWithParameters(kernel: Handle, groups: Pointer, _next: Pointer)
        state => kernel_at(state, kernel, groups);
    AppendLaunchKernelWithArguments(
        kernel: Handle, groups: Three, local: Three, _arguments: Pointer, _next: Pointer
    ) state => CommandWork { local: local.0, ..state.kernel_work(kernel, groups.0) };
    AppendMemoryCopy(_to: Pointer, _from: Pointer, bytes: usize) _state => copy(bytes);
    AppendMemoryFill(_to: Pointer, _pattern: Pointer, _size: usize, bytes: usize)
        _state => filled(bytes);
    AppendMemoryCopyRegion(
        _to: Pointer, to_region: Pointer, _to_pitch: u32, _to_slice: u32,
        _from: Pointer, _from_region: Pointer, _from_pitch: u32, _from_slice: u32
    ) _state => copy(region(to_region));
    AppendMemoryCopyFromContext(_to: Pointer, _context: Handle, _from: Pointer, bytes: usize)
        _state => copy(bytes);
    AppendImageCopy(_to: Handle, _from: Handle) _state => copy(0);
    AppendImageCopyRegion(_to: Handle, _from: Handle, _to_region: Pointer, _region: Pointer)
        _state => copy(0);
    AppendImageCopyToMemory(_to: Pointer, _from: Handle, _region: Pointer) _state => copy(0);
    AppendImageCopyFromMemory(_to: Handle, _from: Pointer, _region: Pointer) _state => copy(0);
    AppendMemoryCopyWithParameters(_to: Pointer, _from: Pointer, bytes: usize, _next: Pointer)
        _state => copy(bytes);
    AppendMemoryFillWithParameters(
        _to: Pointer, _pattern: Pointer, _size: usize, bytes: usize, _next: Pointer
    ) _state => filled(bytes);
}

/// Its events come the other way round.
#[expect(non_snake_case, reason = "named as the function that it stands before")]
unsafe extern "C-unwind" fn AppendMemoryCopyWithParametersExp(
    list: Handle,
    to: Pointer,
    from: Pointer,
    bytes: usize,
    next: Pointer,
    waits: u32,
    waited: Pointer,
    signal: Handle,
) -> ZeResult {
    type Real = unsafe extern "C-unwind" fn(
        Handle,
        Pointer,
        Pointer,
        usize,
        Pointer,
        u32,
        Pointer,
        Handle,
    ) -> ZeResult;
    let plan = before(list, signal);
    let start = ffi::now();
    // SAFETY: the program's own arguments, and an event of the same context.
    let result = unsafe {
        real::get::<Real>(ZeFunction::AppendMemoryCopyWithParametersExp)(
            list,
            to,
            from,
            bytes,
            next,
            waits,
            waited,
            plan.signal as Handle,
        )
    };
    after(&plan, start, result, |_| copy(bytes));
    result
}
