//! The user-stack walk: one frame a step, from the tables in the pool.
//!
//! Written with `bpf_loop` and look-ups, no tail calls, so that the same source
//! serves perf event, uprobe and sleepable programs. The state lives in the
//! caller's scratch memory and not on the BPF stack: the verifier does not track
//! map memory, which keeps its state small.
//!
//! The functions that do the steps are global to the verifier (`no_mangle`): it looks at
//! each once, for any arguments, and not for every way that leads to it, which took it
//! four times as long, and on Linux 6.1 ten times. So they take pointers that may be
//! null to it, and what they return is any number to their callers ([`forget`]).

use aiprof_common::*;
use aya_ebpf::{
    bindings::pt_regs,
    helpers::{
        bpf_get_current_task_btf,
        generated::{bpf_loop, bpf_probe_read_kernel},
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
pub use python::{Python, append};
use python::{place_mark, walk_python};
use tables::{find_mapping, find_rule};
use uprobe::resolve_uprobe;
pub use uprobe::{MAX_RETURN_INSTANCES, hidden_return, pending_return};
pub use v8::V8;

mod apply;
mod cache;
mod go;
mod guess;
mod java;
mod python;
mod tables;
mod uprobe;
mod v8;

/// Bytes of user stack copied at once.
const WINDOW: usize = 512;
/// Most steps of a walk: each records a frame, or moves the window for one.
const MAX_STEPS: u32 = 2 * MAX_WALKED_FRAMES as u32 + 1;
/// Ancestors to ask for the mappings of an unregistered fork.
const MAX_ANCESTORS: usize = 4;

/// A frame: its stack pointer, its caller's, and where it returns to.
#[repr(C)]
struct Passed {
    from: u64,
    to: u64,
    address: u64,
}

/// State of one walk.
#[repr(C)]
pub struct Walk {
    rip: u64,
    rsp: u64,
    rbp: u64,
    /// The mapping of the last look-up; the next frame is often in it too.
    map_start: u64,
    map_end: u64,
    map_bias: u64,
    map_dir: u32,
    map_dir_owner: u32,
    map_kind: u32,
    /// The layout of the interpreter.
    python: u32,
    /// The layout of HotSpot.
    java: u32,
    /// The layout of V8.
    v8: u32,
    /// Where HotSpot has generated code, and how many bytes; 0: nowhere.
    java_start: u64,
    java_size: u64,
    /// Where V8's interpreter is, there and there, and how many bytes; 0: not known.
    v8_starts: [u64; MAX_V8_INTERPRETERS],
    v8_size: u64,
    /// Registers of the innermost frame: the function that is entered, and where V8 has a
    /// return address while it takes arguments off the stack.
    v8_rdi: u64,
    v8_r9: u64,
    v8_r10: u64,
    /// 1: the process has a V8 whose frames are known.
    has_v8: u32,
    /// 1: the current address is in no mapping that is known.
    no_map: u32,
    /// The mapping list.
    list: u32,
    /// Its owner tag.
    list_owner: u32,
    /// The process whose they are, 0: its parent's; the space; and the changes of `PROCS` that
    /// had been made then.
    tgid: u32,
    space: u32,
    changes: u64,
    /// Frames recorded.
    len: u32,
    /// 1: `rip` is an interrupted instruction, not a return address.
    exact: u32,
    /// 1: the thread is in a system call.
    in_call: u32,
    /// [`BY_FRAME_POINTER`] or [`BY_GENERATED`]: where `rip` came from, and is to be checked.
    guessed: u32,
    /// First chunk of the rule cache that this walk alone uses meanwhile: that of the near
    /// rules.
    cache_first: u32,
    /// Entries of the chunks behind it less one.
    cache_mask: u32,
    /// Of Go: the stack pointer that C's calls of Go went on from, the last one seen; 0: none.
    go_sp: u64,
    /// Of Go: which ways back to a stack the walk has taken.
    go_used: u32,
    /// The return instance being looked at.
    instance: u64,
    /// The rule of the current frame.
    rule: Rule,
    /// Address of the first byte in `window`; 0: empty.
    window_base: u64,
    /// Copy of user stack; in `u64`s for its alignment.
    window: [u64; WINDOW / 8],
    /// The last value read from the user stack.
    value: u64,
    /// What the stack pointer is behind the return of the innermost pending call that is
    /// still looked for; `u64::MAX`: none is.
    watch: u64,
    /// Pending calls, without those of which the walk has shown that they are over.
    pending: u32,
    /// 1: the last of them was found on the stack.
    pending_found: u32,
    /// The frame in which they are looked for.
    passed: Passed,
    /// Where the return addresses of pending calls are, outermost first.
    pending_at: [u64; MAX_PENDING],
    /// These return addresses.
    pending_to: [u64; MAX_PENDING],
}

impl Walk {
    /// Has the next walk look for `n` pending calls.
    #[inline(always)]
    pub fn look_for(&mut self, n: u32) {
        self.pending = n;
        self.pending_found = 0;
        self.watch = self.watched();
    }

    /// Says where the return address of pending call `n` is, and what it is.
    #[inline(always)]
    pub fn set_pending(&mut self, n: usize, at: u64, address: u64) {
        let n = n & (MAX_PENDING - 1);
        // SAFETY: within the arrays by the mask.
        unsafe {
            *self.pending_at.as_mut_ptr().add(n) = at;
            *self.pending_to.as_mut_ptr().add(n) = address;
        }
    }

    /// Whether the last pending call can return to an address: it is its return address,
    /// or one of both is that of a return probe.
    #[inline(always)]
    fn may_return_to(&self, address: u64) -> bool {
        let last = (self.pending as usize).wrapping_sub(1) & (MAX_PENDING - 1);
        // SAFETY: within the array by the mask.
        let own = unsafe { self.pending_to.as_ptr().add(last).read() };
        own == address || own & 0xfff == 0 || address & 0xfff == 0
    }

    /// Pending calls that may be on the stack; and whether the last of them is.
    #[inline(always)]
    pub fn pending(&self) -> (u32, bool) {
        (self.pending, self.pending_found != 0)
    }

    #[inline(always)]
    fn watched(&self) -> u64 {
        if self.pending == 0 {
            return u64::MAX;
        }
        let last = self.pending as usize - 1 & (MAX_PENDING - 1);
        // SAFETY: within the array by the mask.
        unsafe { self.pending_at.as_ptr().add(last).read() }.wrapping_add(8)
    }

    /// Owner tag of the mapping list that was used.
    #[inline(always)]
    pub fn list_owner(&self) -> u32 {
        self.list_owner
    }
}

/// Where an address came from: a frame pointer, or what generated code says.
const BY_FRAME_POINTER: u32 = 1;
const BY_GENERATED: u32 = 2;

/// What a step decided.
const GO_ON: i64 = 0;
const STOP: i64 = 1;
/// Result of the functions that look something up.
const FOUND: u32 = 1;
/// Result of the functions that may end the walk: they do not.
const NO_STOP: u32 = u32::MAX;

/// Argument of the loop callback.
#[repr(C)]
struct LoopContext {
    scratch: *mut Scratch,
}

/// Walks the current task's user stack into `scratch.frames` and sets
/// `user_len`, `stop`, `flags`, `space` and the miss fields of the header.
///
/// `regs` are the task's user registers, `cache` is the part of the rule cache
/// that belongs to the caller and nobody else: first chunk, and entries of those
/// behind it less one.
/// Code objects go to `ring`, before the record that names them.
#[inline(always)]
pub fn walk_user(scratch: *mut Scratch, regs: *const pt_regs, cache: (u32, u32), ring: Ring) {
    // SAFETY: `scratch` is a checked map value, `regs` a BTF pointer of the
    // kernel's; both are only read and written within their types.
    let (s, r) = unsafe { (&mut *scratch, &*regs) };
    let w = &mut s.walk;
    w.rip = r.rip;
    w.rsp = r.rsp;
    w.rbp = r.rbp;
    w.in_call = u32::from(r.orig_rax as i64 >= 0);
    // One by one, for the compiler would otherwise call memset.
    w.len = 0;
    w.exact = 1;
    w.guessed = 0;
    w.window_base = 0;
    // SAFETY: a field.
    unsafe { (&raw mut w.go_sp).write_volatile(0) };
    w.go_used = 0;
    (w.cache_first, w.cache_mask) = cache;
    python::clear(s);
    s.header.stop = STOP_TOO_DEEP;
    match find_process(scratch) {
        FOUND => {
            // SAFETY: as above.
            let w = unsafe { &(*scratch).walk };
            let (python, java, v8) = (w.python, w.java, w.v8);
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
    if (s.header.stop == STOP_READ || s.header.stop == STOP_NO_PROCESS) && is_exiting() {
        s.header.stop = STOP_EXITING;
    }
}

/// Whether the current task is ending.
#[inline(never)]
fn is_exiting() -> bool {
    // SAFETY: always valid in a tracing program.
    let task = unsafe { bpf_get_current_task_btf() } as u64;
    read_kernel(task, setting!(task_flags)) as u32 & PF_EXITING != 0
}

/// Finds the mapping list of the current process. A fork that has not exec'd
/// has the mappings of its parent, and user space registers it only when it
/// must.
///
/// Not inlined, with its results in memory: the verifier then explores what
/// follows once and not for every way through the loop. The same holds for the
/// functions below that are marked so.
#[inline(never)]
fn find_process(scratch: *mut Scratch) -> u32 {
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    // Asked before the entry: a change meanwhile is seen next time.
    let changes = proc_changes();
    if s.walk.tgid == s.header.tgid && s.walk.changes == changes {
        s.header.space = s.walk.space;
        return FOUND;
    }
    // SAFETY: user space replaces entries by whole-value updates.
    if let Some(entry) = unsafe { PROCS.get(s.header.tgid) } {
        take_process(s, entry);
        s.walk.tgid = s.header.tgid;
        s.walk.changes = changes;
        return FOUND;
    }
    s.walk.tgid = 0;
    // SAFETY: always valid in a tracing program.
    let current = unsafe { bpf_get_current_task_btf() } as u64;
    // The flag is about processes, but threads carry it too and never lose it:
    // ask the one thread that an exec leaves.
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

/// Makes a process the one that is walked. The mapping of the last look-up stays known while
/// the list is the same: each change of it has an owner of its own.
#[inline(always)]
fn take_process(s: &mut Scratch, entry: &ProcEntry) {
    if s.walk.list != entry.maps || s.walk.list_owner != entry.owner {
        s.walk.map_end = 0;
    }
    s.walk.list = entry.maps;
    s.walk.list_owner = entry.owner;
    s.walk.python = entry.python;
    s.walk.java = entry.java;
    s.walk.v8 = entry.v8;
    s.walk.space = entry.space;
    s.header.space = entry.space;
}

/// How often `PROCS` was changed.
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

/// The 8 bytes of kernel memory at `base + offset`; 0 where they cannot be read
/// (the helper clears its destination) or the kernel has no such field.
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

/// Whether a place behind a pending call is within a frame, or at its end.
#[inline(always)]
fn is_passed(watch: u64, from: u64, to: u64) -> bool {
    watch.wrapping_sub(from) <= to.wrapping_sub(from)
}

/// Notes which pending calls a frame that returns to `address` is of, and which it shows
/// to be over: those whose return address would be in the midst of it, or is another.
/// Gives the next that is looked for.
#[inline(never)]
fn pass(scratch: *mut Scratch, from: u64, to: u64, address: u64) -> u64 {
    let mut context = LoopContext { scratch };
    // SAFETY: the scratch is a checked map value; the callback has bpf_loop's signature,
    // and the context lives on this frame's stack for the whole call.
    unsafe {
        (*scratch).walk.passed = Passed { from, to, address };
        bpf_loop(
            MAX_PENDING as u32,
            pass_one as *mut c_void,
            (&raw mut context).cast(),
            0,
        );
        (*scratch).walk.watch
    }
}

/// `bpf_loop` callback: looks at the last pending call.
extern "C" fn pass_one(_index: u64, context: *mut LoopContext) -> i64 {
    // SAFETY: the context is pass's, the scratch a checked map value.
    let w = unsafe { &mut (*(*context).scratch).walk };
    let (from, to) = (w.passed.from, w.passed.to);
    if w.pending == 0 || !is_passed(w.watch, from, to) {
        return STOP;
    }
    if w.watch == to && w.may_return_to(w.passed.address) {
        w.pending_found = 1;
        w.watch = u64::MAX;
        return STOP;
    }
    w.pending -= 1;
    w.watch = w.watched();
    GO_ON
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
        if exact != 0 && unsafe { (*scratch).walk.has_v8 } != 0 {
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
        // A guess may have left out a frame.
        if s.walk.guessed == 0 && is_passed(s.walk.watch, from, to) {
            pass(scratch, from, to, s.walk.rip);
        }
        return GO_ON;
    }
    // SAFETY: the scratch is a map value that stays valid during the program.
    unsafe { (*scratch).header.stop = stop as u8 };
    STOP
}

/// One step; anything but `NO_STOP` is the reason the walk ends.
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
    if s.walk.rip.wrapping_sub(s.walk.java_start) < s.walk.java_size {
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
    if s.walk.has_v8 != 0 {
        s.walk.no_map = u32::from(known != FOUND);
        if known != FOUND && walk_unmapped(scratch) == NO_STOP {
            return NO_STOP;
        }
    }
    if known != FOUND || s.walk.map_kind == MAP_UPROBES {
        // A return probe's trampoline, or a single step out of line. Asked
        // before giving up, so that it does not depend on the mapping list.
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
    if s.walk.has_v8 != 0
        && s.walk.map_kind == MAP_ANON
        && v8::follow_javascript(scratch) == NO_STOP
    {
        return NO_STOP;
    }
    s.walk.rule = Rule::default();
    match s.walk.map_kind {
        MAP_FILE | MAP_ANON => {
            let stop = find_rule(scratch);
            let is_file = s.walk.map_kind == MAP_FILE;
            // Generated code that was not read yet, or cannot be, has no rule.
            let is_absent = stop == u32::from(STOP_PAGE_ABSENT);
            if is_absent && v8::is_builtin(s) && v8::follow_javascript(scratch) == NO_STOP {
                return NO_STOP;
            }
            if stop != NO_STOP && (is_file || !is_absent) {
                return stop;
            }
            if s.walk.rule.kind == CFA_NONE && is_file && s.walk.len == 1 && s.walk.in_call != 0 {
                // In a system call the instruction pointer is behind the
                // `syscall`; where that does not return (exit, sigreturn) the
                // function may end there.
                s.walk.rip = s.walk.rip.wrapping_sub(1);
                s.frames[0] = s.walk.rip;
                let stop = find_rule(scratch);
                if stop != NO_STOP {
                    return stop;
                }
            }
            // Of frames in V8's interpreter the functions are to be read.
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
        if s.walk.map_kind != MAP_ANON {
            return stop;
        }
        // Generated code may have changed since its rule was made.
        if stop == NO_STOP && confirm(scratch, before.0) == NO_STOP {
            return NO_STOP;
        }
        let w = &mut s.walk;
        (w.rip, w.rsp, w.rbp, w.exact, w.guessed) = before;
    }
    guess(scratch)
}

/// Takes a step where no mapping is known: V8 makes memory that is mapped executable, and
/// nothing tells. Only from a frame that looks like one of V8's.
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

/// A value of which the compiler knows no more than the verifier does: of a global
/// function's result it would know the range, and leave out what bounds it.
#[inline(always)]
pub fn forget(mut value: u64) -> u64 {
    // SAFETY: a register moved to itself.
    unsafe { asm!("{0} = {0}", inout(reg) value, options(pure, nomem, nostack)) };
    value
}

/// The slot of a frame: of those beyond the first half, the last ones stay (see
/// [`ROOT_FRAMES`]). Masked into bounds, in assembly, for the compiler knows
/// the bounds already and would leave the mask out, which the verifier of Linux
/// 6.1 has no other way to know by.
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
