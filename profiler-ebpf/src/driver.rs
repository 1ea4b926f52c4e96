//! The programs that see ioctls of device drivers.
//!
//! If the kernel lets its functions be probed, the programs are at the functions that handle a
//! driver's ioctls. Only callers of those pay for them, and the kernel stack shows how the
//! driver is reached. Elsewhere they are at the system call, where every ioctl of the machine
//! passes. Ioctls of other files leave the programs early.

use aiprof_common::*;
use aya_ebpf::{
    EbpfContext,
    bindings::pt_regs,
    helpers::{
        bpf_get_current_pid_tgid, bpf_get_current_task_btf,
        generated::{
            bpf_get_attach_cookie, bpf_ktime_get_ns, bpf_map_update_elem, bpf_probe_read_kernel,
            bpf_probe_read_kernel_str, bpf_task_pt_regs,
        },
    },
    macros::{kprobe, kretprobe, tracepoint},
    programs::{ProbeContext, RetProbeContext, TracePointContext},
};
use core::{ffi::c_void, mem::MaybeUninit};

use crate::{
    calls::{Call, report},
    chosen::is_chosen,
    count,
    fetch::{Sources, fetch},
    maps::{DEVICES, FILES, IOCTL_CALLS, IOCTL_FRESH, IOCTLS, IoctlCall, PROBE_COUNTS, PROBES},
    paused::is_paused,
    setting,
    stacks::system_stack,
    threads,
};

/// `_IOC_SIZESHIFT` and `_IOC_SIZEBITS` of include/uapi/asm-generic/ioctl.h.
const SIZE_SHIFT: u64 = 16;
const SIZE_MASK: u64 = (1 << 14) - 1;
/// Most bytes between the handlers of one ioctl on the kernel's stack.
const SAME_IOCTL: u64 = 8192;
/// Value of [`Begin::place`] at the system call. At handlers, it is the cookie.
const SYSCALL: u64 = u64::MAX;

/// An ioctl as it begins.
#[repr(C)]
struct Begin {
    ctx: *mut c_void,
    /// `struct file`.
    file: u64,
    command: u64,
    argument: u64,
    /// Kernel stack pointer; at the system call 0.
    sp: u64,
    /// The place of the program: see [`SYSCALL`].
    place: u64,
}

/// At the beginning of a function that handles ioctls: (file, command, argument).
#[kprobe]
pub fn ioctl_handler_entry(ctx: ProbeContext) -> u32 {
    let regs = ctx.as_ptr().cast::<pt_regs>();
    // SAFETY: fields of the context, and a helper without preconditions.
    let begin = unsafe {
        Begin {
            ctx: ctx.as_ptr(),
            file: (*regs).rdi,
            command: (*regs).rsi & u64::from(u32::MAX),
            argument: (*regs).rdx,
            sp: (*regs).rsp,
            place: bpf_get_attach_cookie(regs.cast()),
        }
    };
    enter(&begin);
    0
}

/// At the return of such a function.
#[kretprobe]
pub fn ioctl_handler_exit(ctx: RetProbeContext) -> u32 {
    let regs = ctx.as_ptr().cast::<pt_regs>();
    // SAFETY: a field of the context, and a helper without preconditions.
    let (result, place) = unsafe { ((*regs).rax, bpf_get_attach_cookie(regs.cast())) };
    leave(result, place);
    0
}

/// At the tracepoint syscalls:sys_enter_ioctl, whose record is the number and three
/// arguments of 8 bytes each, from byte 8.
#[tracepoint]
pub fn ioctl_enter(ctx: TracePointContext) -> u32 {
    let record = ctx.as_ptr().cast::<u64>();
    // SAFETY: fields of the context.
    let (descriptor, command, argument) = unsafe {
        let at = |i: usize| record.add(i).read();
        (at(2), at(3), at(4))
    };
    let Some(file) = file_of(descriptor & u64::from(u32::MAX)) else {
        return 0;
    };
    enter(&Begin {
        ctx: ctx.as_ptr(),
        file,
        command: command & u64::from(u32::MAX),
        argument,
        sp: 0,
        place: SYSCALL,
    });
    0
}

/// At syscalls:sys_exit_ioctl: the result is at byte 16.
#[tracepoint]
pub fn ioctl_exit(ctx: TracePointContext) -> u32 {
    // SAFETY: a field of the context.
    let result = unsafe { ctx.as_ptr().cast::<u64>().add(2).read() };
    leave(result, SYSCALL);
    0
}

/// Reads a `T` of the kernel's memory.
#[inline(always)]
pub fn kernel<T: Copy>(address: u64) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    let (to, size) = (value.as_mut_ptr().cast::<c_void>(), size_of::<T>() as u32);
    // SAFETY: the destination has the size given; a bad source is an error, and
    // then nothing is read from it.
    unsafe {
        let rc = bpf_probe_read_kernel(to, size, address as *const c_void);
        (rc == 0).then(|| value.assume_init())
    }
}

/// The `struct file` of a descriptor of the current process.
#[inline(always)]
fn file_of(descriptor: u64) -> Option<u64> {
    if setting!(task_files) == NO_FIELD || setting!(fdt_max_fds) == NO_FIELD {
        return None;
    }
    // SAFETY: a helper without preconditions.
    let task = unsafe { bpf_get_current_task_btf() } as u64;
    let files: u64 = kernel(task + u64::from(setting!(task_files)))?;
    let table: u64 = kernel(files + u64::from(setting!(files_fdt)))?;
    let most: u32 = kernel(table + u64::from(setting!(fdt_max_fds)))?;
    if descriptor >= u64::from(most) {
        return None;
    }
    let array: u64 = kernel(table + u64::from(setting!(fdt_fd)))?;
    kernel(array + descriptor * 8)
}

/// Number of a file's device, 0 if it has none; `None` if it cannot be read.
#[inline(always)]
fn device_of(file: u64) -> Option<u32> {
    let inode: u64 = kernel(file + u64::from(setting!(file_inode)))?;
    kernel(inode + u64::from(setting!(inode_rdev)))
}

/// No class.
const NONE: u32 = u32::MAX;

/// Class of a file with this device, or NONE. Not inlined, so that the name is not on the stack
/// while the rest of the program runs.
#[inline(never)]
fn class_of(file: u64, device: u32) -> u32 {
    if device != 0 {
        return DEVICES.get_ptr(device).map_or(NONE, |class| {
            // SAFETY: a checked map value.
            unsafe { *class }
        });
    }
    if setting!(named_files) == 0 || setting!(dentry_name) == NO_FIELD {
        return NONE;
    }
    class_by_name(file).unwrap_or(NONE)
}

/// Class of a file by its name.
#[inline(always)]
fn class_by_name(file: u64) -> Option<u32> {
    let dentry: u64 = kernel(file + u64::from(setting!(file_dentry)))?;
    let name: u64 = kernel(dentry + u64::from(setting!(dentry_name)))?;
    let mut key = [0u64; FILE_NAME_BYTES / 8];
    // SAFETY: the destination has the size given; a bad source is an error.
    unsafe {
        let to = (&raw mut key).cast::<c_void>();
        bpf_probe_read_kernel_str(to, FILE_NAME_BYTES as u32, name as *const c_void);
    }
    // SAFETY: the same bytes.
    let key = unsafe { &*(&raw const key).cast::<[u8; FILE_NAME_BYTES]>() };
    // SAFETY: a checked map value.
    FILES.get_ptr(*key).map(|class| unsafe { *class })
}

/// Index of the spec of a command.
#[inline(always)]
fn spec_of(class: u32, command: u64) -> Option<u32> {
    let mask = if class & CLASS_WHOLE != 0 {
        u32::MAX
    } else {
        0xffff
    };
    let mut key = IoctlKey {
        class: class & CLASS_MASK,
        command: command as u32 & mask,
    };
    let mut found = IOCTLS.get_ptr(key);
    if found.is_none() {
        key.command = COMMAND_OTHER;
        found = IOCTLS.get_ptr(key);
    }
    // SAFETY: a checked map value.
    found.map(|index| unsafe { *index })
}

/// An ioctl begins.
#[inline(always)]
fn enter(begin: &Begin) {
    let Some(device) = device_of(begin.file) else {
        return;
    };
    let class = class_of(begin.file, device);
    // A device is observed in one place only.
    if class == NONE || (class & CLASS_SYSCALL != 0) != (begin.place == SYSCALL) {
        return;
    }
    let Some(probe) = spec_of(class, begin.command) else {
        return;
    };
    let mut call = MaybeUninit::<Call>::uninit();
    // SAFETY: `begin_call` fills in every field before anything reads one.
    let call = unsafe { &mut *call.as_mut_ptr() };
    if !begin_call(call, probe, device) {
        return;
    }
    // SAFETY: a checked map value.
    if unsafe { (*call.spec).flags } & SPEC_WORK != 0 && is_paused() {
        return;
    }
    let Some(open) = open(call, begin) else {
        return;
    };
    count!(call.counts, calls);
    around(call);
    // SAFETY: a checked map value; user space does not change specs in use.
    let spec = unsafe { &*call.spec };
    if spec.flags & SPEC_STACK != 0 {
        let wanted = spec.flags & SPEC_KERNEL_STACK != 0 && setting!(kernel_stacks) != 0;
        let kernel = u32::from(wanted && begin.place != SYSCALL);
        system_stack(call, begin.ctx, kernel);
    }
    // SAFETY: a checked map value of this thread's.
    unsafe { (*open).stack = call.stack };
    report_enter(call, open);
}

/// Begins a [`Call`] of the current thread. `false`: it must not be recorded.
#[inline(always)]
fn begin_call(call: &mut Call, probe: u32, device: u32) -> bool {
    call.ids = bpf_get_current_pid_tgid();
    // SAFETY: a helper without preconditions.
    call.time_ns = unsafe { bpf_ktime_get_ns() };
    call.clear();
    call.sp = 0;
    call.probe = probe;
    call.library = device;
    if is_chosen((call.ids >> 32) as u32) == 0 {
        return false;
    }
    let (Some(spec), Some(counts)) = (PROBES.get_ptr(probe), PROBE_COUNTS.get_ptr_mut(probe))
    else {
        return false;
    };
    call.spec = spec;
    call.counts = counts;
    true
}

/// Notes the pending call around the ioctl.
#[inline(always)]
fn around(call: &mut Call) {
    let Some(thread) = threads::known(call.ids as u32) else {
        return;
    };
    // SAFETY: the current task is valid, and so are the addresses of its registers; the kernel
    // makes reads through a BTF pointer fault-safe.
    call.sp = unsafe {
        let regs = bpf_task_pt_regs(bpf_get_current_task_btf()) as *const pt_regs;
        (*regs).rsp
    };
    threads::settle(thread, call, 0);
    call.sp = 0;
}

/// Remembers that the thread is in this ioctl. `None`: an outer handler has remembered it
/// already, or there is no memory.
#[inline(always)]
fn open(call: &Call, begin: &Begin) -> Option<*mut IoctlCall> {
    let tid = call.ids as u32;
    if IOCTL_CALLS.get_ptr(tid).is_none() {
        let fresh = IOCTL_FRESH.get_ptr(0)?;
        // SAFETY: key and value have the sizes of the map's; the value is copied.
        unsafe {
            let map = (&raw const IOCTL_CALLS).cast_mut().cast();
            bpf_map_update_elem(map, (&raw const tid).cast(), fresh.cast(), 0);
        }
    }
    let Some(open) = IOCTL_CALLS.get_ptr_mut(tid) else {
        count!(call.counts, untracked);
        return None;
    };
    // SAFETY: a checked map value, which only its own thread uses.
    let known = unsafe { &mut *open };
    let inside = known.sp.wrapping_sub(begin.sp).wrapping_sub(1) < SAME_IOCTL
        && known.command == begin.command
        && known.argument == begin.argument;
    if known.open != 0 && known.place != begin.place && inside {
        return None;
    }
    known.open = 1;
    known.place = begin.place;
    known.time_ns = call.time_ns;
    known.sp = begin.sp;
    known.command = begin.command;
    known.argument = begin.argument;
    known.probe = u64::from(call.library) << 32 | u64::from(call.probe);
    Some(open)
}

/// The arguments that operations start from: those of ioctl(2), but without the descriptor,
/// which is not known.
#[inline(always)]
fn arguments(open: &IoctlCall) -> [u64; 6] {
    [0, open.command, open.argument, 0, 0, 0]
}

/// Fetches the entry's values, keeps them and sends the record.
#[inline(never)]
fn report_enter(call: &Call, open: *mut IoctlCall) -> u32 {
    let mut sources = MaybeUninit::<Sources>::uninit();
    // SAFETY: a checked map value.
    let spec = unsafe { &*call.spec };
    // SAFETY: a checked map value, which only its own thread uses.
    let open = unsafe { &mut *open };
    let ops = (0, spec.n_entry);
    Sources::set(sources.as_mut_ptr(), spec, ops, arguments(open), (0, 0));
    // SAFETY: just set.
    let sources = unsafe { &mut *sources.as_mut_ptr() };
    fetch::<false>(sources);
    limit(sources, open.command);
    for slot in 0..MAX_VALUES {
        open.values[slot] = sources.value(slot);
    }
    open.unread = sources.unread().into();
    report::<false>(call, sources)
}

/// Marks values beyond the argument's size as unread: those bytes are not the argument's. The
/// size is part of the command; 0 means that it is not known.
#[inline(always)]
fn limit(sources: &mut Sources, command: u64) {
    let bytes = command >> SIZE_SHIFT & SIZE_MASK;
    if bytes != 0 {
        sources.unread_beyond(bytes);
    }
}

/// The thread's ioctl ends.
#[inline(always)]
fn leave(result: u64, place: u64) {
    let tid = bpf_get_current_pid_tgid() as u32;
    let Some(open) = IOCTL_CALLS.get_ptr_mut(tid) else {
        return;
    };
    // SAFETY: a checked map value, which only its own thread uses.
    let known = unsafe { &mut *open };
    if known.open == 0 || known.place != place {
        return;
    }
    known.open = 0;
    let mut call = MaybeUninit::<Call>::uninit();
    // SAFETY: `begin_call` fills in every field before anything reads one.
    let call = unsafe { &mut *call.as_mut_ptr() };
    if !begin_call(call, known.probe as u32, (known.probe >> 32) as u32) {
        return;
    }
    call.flags = CALL_EXIT.into();
    call.result = result;
    call.stack = known.stack;
    call.around_ns = known.time_ns;
    report_leave(call, known);
}

/// Fetches the exit's values, in addition to those kept, and sends the record. A call that
/// failed has no outputs.
#[inline(never)]
fn report_leave(call: &Call, open: &IoctlCall) -> u32 {
    let mut sources = MaybeUninit::<Sources>::uninit();
    // SAFETY: a checked map value.
    let spec = unsafe { &*call.spec };
    let ops = (spec.n_entry, spec.n_exit);
    let given = (0, call.result);
    Sources::set(sources.as_mut_ptr(), spec, ops, arguments(open), given);
    // SAFETY: just set.
    let sources = unsafe { &mut *sources.as_mut_ptr() };
    for slot in 0..MAX_VALUES {
        sources.set_value(slot, open.values[slot]);
    }
    sources.set_unread(open.unread as u32);
    if (call.result as i64) < 0 {
        sources.unread_all();
    } else {
        fetch::<false>(sources);
        limit(sources, open.command);
    }
    report::<false>(call, sources)
}
