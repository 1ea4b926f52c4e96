//! The user-stack walk: one frame a step, with the tables in the pool.
//!
//! It uses `bpf_loop` and look-ups, and no tail calls, so that the same source serves perf
//! event, uprobe and sleepable programs. Its state is in the caller's scratch memory and not on
//! the BPF stack: the verifier does not track the content of map memory, so its own state stays
//! small.
//!
//! The functions that do the steps are global to the verifier (`no_mangle`). It verifies each
//! of them once, for any arguments, and not for every path to it. Otherwise it took four times
//! as long, and on Linux 6.1 ten times. In return, their pointers can be null to the verifier,
//! and their results are any number to their callers ([`forget`]).

use aiprof_common::*;
use aya_ebpf::{
    bindings::pt_regs,
    helpers::{
        bpf_get_current_task_btf,
        generated::{bpf_loop, bpf_probe_read_kernel, bpf_probe_read_user},
    },
};
use core::{arch::asm, ffi::c_void};

use crate::{
    maps::{Frames, PROC_CHANGES, PROCS, Scratch},
    pool::le_bit,
    ring::Ring,
    setting,
};
use apply::apply;
use cache::{cache_rule, walk_cached};
use guess::{confirm, guess};
pub use java::Java;
use pending::{is_passed, pass};
use planted::look_up_planted;
pub use python::{Python, append};
use python::{place_mark, walk_python};
use scan::find_native;
use tables::{find_mapping, find_rule};
use uprobe::resolve_uprobe;
pub use uprobe::{MAX_RETURN_INSTANCES, hidden_return, pending_return};
pub use v8::V8;

mod apply;
mod cache;
mod go;
mod guess;
mod java;
mod pending;
mod planted;
mod python;
mod scan;
mod tables;
mod uprobe;
mod v8;

/// Bytes of the user stack that are copied at once.
const WINDOW: usize = 512;
/// Most steps of a walk. Each records a frame, or moves the window for one.
const MAX_STEPS: u32 = 2 * MAX_WALKED_FRAMES as u32 + 1;
/// Numbers of the system calls that execute a program (asm/unistd_64.h).
const EXECVE: u64 = 59;
const EXECVEAT: u64 = 322;
/// Most ancestors whose mappings are tried for an unregistered fork.
const MAX_ANCESTORS: usize = 4;

/// A frame: its stack pointer, its caller's stack pointer, and its return address.
#[repr(C)]
struct Passed {
    from: u64,
    to: u64,
    address: u64,
}

/// The mapping of the last look-up. The next frame is often in it, too.
#[repr(C)]
struct LastMapping {
    start: u64,
    end: u64,
    bias: u64,
    dir: u32,
    dir_owner: u32,
    kind: u32,
    /// 1: the current address is in no known mapping.
    is_missing: u32,
}

/// What is known of the process.
#[repr(C)]
struct WalkedProcess {
    /// The layouts of the interpreter, of HotSpot and of V8.
    python: u32,
    java: u32,
    v8: u32,
    /// The mapping list.
    list: u32,
    /// Its owner tag.
    list_owner: u32,
    /// The process of the layouts and of the list, 0: an ancestor's; its address space; and the
    /// number of changes of `PROCS` at that time.
    tgid: u32,
    changes: u64,
    space: u32,
}

/// HotSpot's heaps.
#[repr(C)]
struct Heaps {
    start: u64,
    /// Bytes; 0: there are none.
    size: u64,
}

/// V8's interpreter, and what its frames need.
#[repr(C)]
struct V8Code {
    /// Starts of the interpreter, which may be mapped twice.
    starts: [u64; MAX_V8_INTERPRETERS],
    /// Its size in bytes; 0: not known.
    size: u64,
    /// Registers of the innermost frame: the function that is entered, and the two in which V8
    /// has a return address while it removes arguments from the stack.
    rdi: u64,
    r9: u64,
    r10: u64,
    /// 1: the process has a V8 whose frames can be walked.
    is_walked: u32,
}

/// The part of the rule cache that only this walk uses now.
#[repr(C)]
struct OwnRules {
    /// Its first chunk: the near rules.
    first: u32,
    /// Number of entries in the chunks after it, less one.
    mask: u32,
}

/// Calls from C to Go.
#[repr(C)]
struct GoCalls {
    /// The last stack pointer found from which a call continued; 0: none.
    sp: u64,
    /// The ways back to a stack that the walk has taken.
    used: u32,
}

/// Copy of a part of the user stack.
#[repr(C)]
struct StackWindow {
    /// Address of the first byte; 0: the window is empty.
    base: u64,
    /// `u64`s for the alignment.
    words: [u64; WINDOW / 8],
    /// The last value that was read.
    value: u64,
}

/// Pending calls of probed functions, which are searched for on the stack.
#[repr(C)]
struct PendingCalls {
    /// The current return instance.
    instance: u64,
    /// The stack pointer after the return of the innermost call that is still searched for;
    /// `u64::MAX`: none is.
    watch: u64,
    /// Number of calls, without those that the walk has shown to be over.
    count: u32,
    /// 1: the last of them was found on the stack.
    found: u32,
    /// The frame in which they are searched for.
    passed: Passed,
    /// Addresses of their slots, outermost first.
    at: [u64; MAX_PENDING],
    /// The return addresses in these slots.
    to: [u64; MAX_PENDING],
}

/// State of one walk.
#[repr(C)]
pub struct Walk {
    rip: u64,
    rsp: u64,
    rbp: u64,
    /// Bytes of an address on the stack: 8, or 4 in a program of 32 bits.
    word: u64,
    map: LastMapping,
    process: WalkedProcess,
    heaps: Heaps,
    v8: V8Code,
    /// Frames recorded.
    len: u32,
    /// 1: `rip` is an interrupted instruction, not a return address.
    exact: u32,
    /// 1: the thread is in a system call.
    in_call: u32,
    /// Origin of a `rip` that must be checked: [`BY_FRAME_POINTER`] or [`BY_GENERATED`]; 0: it
    /// need not be.
    guessed: u32,
    cache: OwnRules,
    go: GoCalls,
    /// The rule of the current frame.
    rule: Rule,
    window: StackWindow,
    calls: PendingCalls,
}

impl Walk {
    /// Makes the next walk look for `n` pending calls.
    #[inline(always)]
    pub fn look_for(&mut self, n: u32) {
        self.calls.count = n;
        self.calls.found = 0;
        self.calls.watch = self.calls.watched();
    }

    /// Sets the slot's address and the return address of pending call `n`.
    #[inline(always)]
    pub fn set_pending(&mut self, n: usize, at: u64, address: u64) {
        let n = n & (MAX_PENDING - 1);
        // SAFETY: within the arrays by the mask.
        unsafe {
            *self.calls.at.as_mut_ptr().add(n) = at;
            *self.calls.to.as_mut_ptr().add(n) = address;
        }
    }

    /// Number of pending calls that may be on the stack, and whether the last of them is.
    #[inline(always)]
    pub fn pending(&self) -> (u32, bool) {
        (self.calls.count, self.calls.found != 0)
    }

    /// Owner tag of the mapping list that was used.
    #[inline(always)]
    pub fn list_owner(&self) -> u32 {
        self.process.list_owner
    }
}

/// The origin of an address: a frame pointer, or generated code.
const BY_FRAME_POINTER: u32 = 1;
const BY_GENERATED: u32 = 2;

/// The code segment of programs of 32 bits (`__USER32_CS` in the kernel's asm/segment.h).
const USER32_CS: u64 = 0x23;

/// Results of a step.
const GO_ON: i64 = 0;
const STOP: i64 = 1;
/// Result of a successful look-up.
const FOUND: u32 = 1;
/// Result of functions that can end the walk: it continues.
const NO_STOP: u32 = u32::MAX;

/// Argument of the loop callback.
#[repr(C)]
struct LoopContext {
    scratch: *mut Scratch,
}

/// Walks the current task's user stack into `scratch.frames` and sets
/// `user_len`, `stop`, `flags`, `space` and the miss fields of the header.
///
/// `regs` are the task's user registers. `cache` is the part of the rule cache that only the
/// caller uses: its first chunk, and the number of entries in the chunks after it, less one.
/// Code objects go to `ring`, before the record that names them.
#[inline(always)]
pub fn walk_user(scratch: *mut Scratch, regs: *const pt_regs, cache: (u32, u32), ring: Ring) {
    // SAFETY: `scratch` is a checked map value, `regs` a BTF pointer of the kernel's; both are
    // only read and written within their types.
    let (s, r) = unsafe { (&mut *scratch, &*regs) };
    let w = &mut s.walk;
    w.rip = r.rip;
    w.rsp = r.rsp;
    w.rbp = r.rbp;
    w.word = if r.cs == USER32_CS { 4 } else { 8 };
    w.in_call = u32::from(r.orig_rax as i64 >= 0);
    // One by one, because the compiler would otherwise call memset.
    w.len = 0;
    w.exact = 1;
    w.guessed = 0;
    w.window.base = 0;
    // SAFETY: a field.
    unsafe { (&raw mut w.go.sp).write_volatile(0) };
    w.go.used = 0;
    (w.cache.first, w.cache.mask) = cache;
    python::clear(s);
    s.header.stop = STOP_TOO_DEEP;
    match find_process(scratch) {
        FOUND => {
            // SAFETY: as above.
            let w = unsafe { &(*scratch).walk };
            let (python, java, v8) = (w.process.python, w.process.java, w.process.v8);
            walk_python(scratch, python, ring);
            java::begin(scratch, java);
            v8::begin(scratch, v8, regs);
            let mut context = LoopContext { scratch };
            // SAFETY: the callback has bpf_loop's signature; the context lives
            // on this frame's stack for the whole call.
            unsafe {
                bpf_loop(MAX_STEPS, step as *mut c_void, (&raw mut context).cast(), 0);
            }
            // SAFETY: as above.
            let s = unsafe { &mut *scratch };
            s.header.user_len = s.walk.len as u16;
            if s.walk.len > MAX_USER_FRAMES as u32 {
                s.header.omitted = s.walk.len - MAX_USER_FRAMES as u32;
                s.header.user_len = MAX_USER_FRAMES as u16;
            }
            s.header.rip = s.walk.rip;
            s.header.rsp = s.walk.rsp;
            s.header.rbp = s.walk.rbp;
            if s.walk.exact != 0 {
                s.header.flags |= FLAG_EXACT;
            }
        }
        _ => {
            // SAFETY: as above.
            let s = unsafe { &mut *scratch };
            s.frames[0] = s.walk.rip;
            s.header.rip = s.walk.rip;
            s.header.rsp = s.walk.rsp;
            s.header.rbp = s.walk.rbp;
            s.header.flags |= FLAG_EXACT;
            s.header.user_len = 1;
            s.header.stop = STOP_NO_PROCESS;
        }
    }
    // SAFETY: as above.
    let s = unsafe { &mut *scratch };
    if s.header.stop == STOP_READ || s.header.stop == STOP_NO_PROCESS {
        if is_exiting() {
            s.header.stop = STOP_EXITING;
        } else if is_replaced(regs) {
            s.header.stop = STOP_EXITING;
            s.header.user_len = 0;
        }
    }
}

/// Whether the current task executes a program and has the new one's memory already: the stack
/// of the registers is gone.
#[inline(always)]
fn is_replaced(regs: *const pt_regs) -> bool {
    // SAFETY: a BTF pointer of the kernel's, only read.
    let r = unsafe { &*regs };
    if r.orig_rax != EXECVE && r.orig_rax != EXECVEAT {
        return false;
    }
    let mut word = 0u64;
    // SAFETY: the destination is 8 bytes on the stack; a bad source is an error.
    unsafe { bpf_probe_read_user((&raw mut word).cast(), 8, r.rsp as *const c_void) != 0 }
}

/// Whether the current task is ending.
#[inline(never)]
fn is_exiting() -> bool {
    // SAFETY: always valid in a tracing program.
    let task = unsafe { bpf_get_current_task_btf() } as u64;
    read_kernel(task, setting!(task_flags)) as u32 & PF_EXITING != 0
}

/// Finds the mapping list of the current process. A fork that has not called exec has the
/// mappings of its parent, and user space registers it only if it must.
///
/// Not inlined, with its results in memory: the verifier then explores the code after it once,
/// and not for every path through the loop. The same is true of the functions below that are
/// marked so.
#[inline(never)]
fn find_process(scratch: *mut Scratch) -> u32 {
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    // Read before the entry, so that a change meanwhile is seen the next time.
    let changes = proc_changes();
    if s.walk.process.tgid == s.header.tgid && s.walk.process.changes == changes {
        s.header.space = s.walk.process.space;
        return FOUND;
    }
    // SAFETY: user space replaces entries by whole-value updates.
    if let Some(entry) = unsafe { PROCS.get(s.header.tgid) } {
        take_process(s, entry);
        s.walk.process.tgid = s.header.tgid;
        s.walk.process.changes = changes;
        return FOUND;
    }
    s.walk.process.tgid = 0;
    // SAFETY: always valid in a tracing program.
    let current = unsafe { bpf_get_current_task_btf() } as u64;
    // The flag describes a process, but threads carry it too and never lose it. The group
    // leader has the right one: it is the thread that remains after an exec.
    let mut task = read_kernel(current, setting!(task_group_leader));
    for _ in 0..MAX_ANCESTORS {
        if read_kernel(task, setting!(task_flags)) as u32 & PF_FORKNOEXEC == 0 {
            return 0;
        }
        task = read_kernel(task, setting!(task_real_parent));
        let tgid = read_kernel(task, setting!(task_tgid)) as u32;
        // SAFETY: as above.
        if let Some(entry) = unsafe { PROCS.get(tgid) } {
            take_process(s, entry);
            s.header.flags |= FLAG_FROM_ANCESTOR;
            return FOUND;
        }
    }
    0
}

/// Makes a process the walked one. The mapping of the last look-up stays valid while the list
/// is the same: each change of a list gets a new owner tag.
#[inline(always)]
fn take_process(s: &mut Scratch, entry: &ProcEntry) {
    if s.walk.process.list != entry.maps || s.walk.process.list_owner != entry.owner {
        s.walk.map.end = 0;
    }
    s.walk.process.list = entry.maps;
    s.walk.process.list_owner = entry.owner;
    s.walk.process.python = entry.python;
    s.walk.process.java = entry.java;
    s.walk.process.v8 = entry.v8;
    s.walk.process.space = entry.space;
    s.header.space = entry.space;
}

/// Number of changes of `PROCS`.
#[inline(always)]
fn proc_changes() -> u64 {
    let read = |index| {
        // SAFETY: a checked map value, aligned; others write it.
        PROC_CHANGES
            .get_ptr(index)
            .map_or(0, |n| unsafe { n.read_volatile() })
    };
    read(0) + read(1)
}

/// The 8 bytes of kernel memory at `base + offset`; 0 if they cannot be read (the helper clears
/// its destination) or the kernel has no such field.
#[inline(always)]
pub fn read_kernel(base: u64, offset: u32) -> u64 {
    let mut value = 0u64;
    if offset != NO_FIELD {
        let from = base.wrapping_add(u64::from(offset));
        // SAFETY: the destination is 8 bytes on the stack; a bad source is an error.
        unsafe { bpf_probe_read_kernel((&raw mut value).cast(), 8, from as *const c_void) };
    }
    value
}

/// `bpf_loop` callback: records the current frame and moves to its caller.
extern "C" fn step(_index: u64, context: *mut LoopContext) -> i64 {
    // SAFETY: the context is walk_user's.
    let scratch = unsafe { (*context).scratch };
    // SAFETY: a checked map value.
    let w = unsafe { &(*scratch).walk };
    let (from, exact, is_first) = (w.rsp, w.exact, w.len == 0);
    if (exact == 0 || is_first) && forget(walk_cached(scratch).into()) == FOUND.into() {
        return GO_ON;
    }
    // SAFETY: as above.
    let own = unsafe {
        let w = &(*scratch).walk;
        (w.rip, w.rsp, w.rbp, w.exact)
    };
    let stop = forget(try_step(scratch).into()) as u32;
    if stop == NO_STOP {
        let (rip, rsp, rbp, exact) = own;
        // SAFETY: as above.
        if exact != 0 && unsafe { (*scratch).walk.v8.is_walked } != 0 {
            forget(v8::note_interrupted(scratch, rip, rsp, rbp).into());
        }
        // SAFETY: as above.
        let s = unsafe { &*scratch };
        let (len, to) = (s.walk.len.wrapping_sub(1), s.walk.rsp);
        // The caller may be on another stack.
        if to <= from {
            return GO_ON;
        }
        if s.python.mark().wrapping_sub(from) < to.wrapping_sub(from) {
            place_mark(scratch, len);
        }
        // A guess may have skipped a frame.
        if s.walk.guessed == 0 && is_passed(s.walk.calls.watch, from, to) {
            pass(scratch, from, to, s.walk.rip);
        }
        return GO_ON;
    }
    // SAFETY: the scratch is a map value that stays valid during the program.
    unsafe { (*scratch).header.stop = stop as u8 };
    STOP
}

/// One step. Any result but `NO_STOP` is the reason why the walk ends.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn try_step(scratch: *mut Scratch) -> u32 {
    if scratch.is_null() {
        return STOP_UNSUPPORTED.into();
    }
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    let len = s.walk.len as usize;
    if len >= MAX_WALKED_FRAMES {
        return STOP_TOO_DEEP.into();
    }
    if s.walk.rip.wrapping_sub(s.walk.heaps.start) < s.walk.heaps.size {
        record(s, len);
        let stop = java::follow(scratch);
        if stop != java::NOT_KNOWN {
            return stop;
        }
    }
    if v8::is_interpreted(&s.walk) {
        record(s, len);
        if v8::follow_javascript(scratch) == NO_STOP {
            return NO_STOP;
        }
    }
    let known = find_mapping(scratch);
    if s.walk.v8.is_walked != 0 {
        s.walk.map.is_missing = u32::from(known != FOUND);
        if known != FOUND && walk_unmapped(scratch) == NO_STOP {
            return NO_STOP;
        }
    }
    if known != FOUND || s.walk.map.kind == MAP_UPROBES {
        // A return probe's trampoline, or a single step out of line. Checked before the walk
        // gives up, so that it does not depend on the mapping list.
        let resolved = resolve_uprobe(scratch);
        if resolved != FOUND && s.walk.guessed != 0 {
            return STOP_FRAME_POINTER.into();
        }
        record(s, len);
        if resolved != FOUND {
            return if known == FOUND {
                STOP_TRAMPOLINE
            } else {
                STOP_NO_MAPPING
            }
            .into();
        }
        if find_mapping(scratch) != FOUND {
            return STOP_NO_MAPPING.into();
        }
    } else {
        record(s, len);
    }
    if s.walk.v8.is_walked != 0
        && s.walk.map.kind == MAP_ANON
        && v8::follow_javascript(scratch) == NO_STOP
    {
        return NO_STOP;
    }
    s.walk.rule = Rule::default();
    match s.walk.map.kind {
        MAP_FILE | MAP_ANON => {
            let stop = find_rule(scratch);
            let is_file = s.walk.map.kind == MAP_FILE;
            // Generated code that user space has not read yet, or cannot read, has no rule.
            let is_absent = stop == u32::from(STOP_PAGE_ABSENT);
            if is_absent && v8::is_builtin(s) && v8::follow_javascript(scratch) == NO_STOP {
                return NO_STOP;
            }
            if stop != NO_STOP && (is_file || !is_absent) {
                return stop;
            }
            if s.walk.rule.kind == CFA_NONE && is_file && s.walk.len == 1 && s.walk.in_call != 0 {
                // In a system call, the instruction pointer is after `syscall`. If the system
                // call does not return (exit, sigreturn), the function may end there.
                s.walk.rip = s.walk.rip.wrapping_sub(1);
                s.frames[0] = s.walk.rip;
                let stop = find_rule(scratch);
                if stop != NO_STOP {
                    return stop;
                }
            }
            // A function calls others with more on the stack than its own return address: the
            // address is probably behind its end.
            let rule = s.walk.rule;
            let is_bare = rule.kind == CFA_RSP && rule.cfa_off == 8;
            let is_sure = rule.kind != CFA_NONE && rule.rbp & RBP_DERIVED == 0 && !is_bare;
            if is_file && !is_sure && s.walk.exact == 0 {
                let stop = forget(look_up_planted(scratch).into()) as u32;
                if stop != NO_STOP {
                    return stop;
                }
            }
            // Not in V8's interpreter, whose frames need their functions read.
            if is_file && !v8::is_interpreted(&s.walk) {
                cache_rule(s);
            }
        }
        MAP_VSYSCALL => {
            s.walk.rule = Rule {
                kind: CFA_RSP,
                cfa_off: 8,
                ..Rule::default()
            }
        }
        _ => {}
    }
    if s.walk.rule.kind != CFA_NONE {
        let w = &s.walk;
        let before = (w.rip, w.rsp, w.rbp, w.exact, w.guessed);
        let stop = apply(scratch);
        if s.walk.map.kind != MAP_ANON {
            return stop;
        }
        // Generated code may have changed since its rule was made.
        if stop == NO_STOP && confirm(scratch, before.0) == NO_STOP {
            return NO_STOP;
        }
        let w = &mut s.walk;
        (w.rip, w.rsp, w.rbp, w.exact, w.guessed) = before;
    }
    let stop = guess(scratch);
    // SAFETY: as above.
    let w = unsafe { &(*scratch).walk };
    let is_scanned = w.map.kind == MAP_ANON && w.heaps.size == 0 && w.v8.is_walked == 0;
    if is_scanned && stop == u32::from(STOP_FRAME_POINTER) {
        return forget(find_native(scratch).into()) as u32;
    }
    stop
}

/// Takes a step where no mapping is known. V8 makes mapped memory executable, and user space is
/// not notified of that. Steps only from a frame that looks like one of V8's.
#[inline(always)]
fn walk_unmapped(scratch: *mut Scratch) -> u32 {
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    let at = s.walk.len as usize;
    record(s, at);
    let w = &s.walk;
    let before = (w.rip, w.rsp, w.rbp, w.exact, w.guessed);
    if v8::follow_javascript(scratch) == NO_STOP {
        return NO_STOP;
    }
    let w = &mut s.walk;
    (w.rip, w.rsp, w.rbp, w.exact, w.guessed) = before;
    w.len = at as u32;
    STOP_NO_MAPPING.into()
}

/// Hides a value's origin from the compiler, so that it knows no more than the verifier. It
/// knows the range of a global function's result, and would omit the code that bounds it.
#[inline(always)]
pub fn forget(mut value: u64) -> u64 {
    // SAFETY: a register moved to itself.
    unsafe { asm!("{0} = {0}", inout(reg) value, options(pure, nomem, nostack)) };
    value
}

/// Marks the last recorded frame with a flag (`ADDR_*`).
#[inline(always)]
fn mark_last(s: &mut Scratch, flag: u64) {
    let at = s.walk.len.wrapping_sub(1);
    // SAFETY: in bounds by its mask.
    unsafe { *frame_at(&mut s.frames, at.into()) |= flag };
}

/// The slot of a frame. Frames after the first half share the second half, so that the last
/// ones stay (see [`ROOT_FRAMES`]). The mask is in assembly: the compiler knows the bounds and
/// would omit it, but the verifier of Linux 6.1 needs it.
#[inline(always)]
fn frame_at(frames: &mut Frames, at: u64) -> *mut u64 {
    const HALF: u64 = ROOT_FRAMES as u64;
    let mut slot = (at & (HALF - 1)) + HALF * le_bit(HALF, at);
    // SAFETY: arithmetic on one register; the result is within the array.
    unsafe {
        asm!(
            "{0} &= {mask}",
            inout(reg) slot,
            mask = const MAX_USER_FRAMES - 1,
            options(pure, nomem, nostack)
        );
        frames.as_mut_ptr().add(slot as usize)
    }
}

/// Stores the current address as frame `at`.
#[inline(always)]
fn record(s: &mut Scratch, at: usize) {
    let mark = if s.walk.exact != 0 && at > 0 {
        ADDR_EXACT
    } else {
        0
    };
    // SAFETY: in bounds by its mask.
    unsafe { *frame_at(&mut s.frames, at as u64) = s.walk.rip | mark };
    s.walk.len = at as u32 + 1;
}
