//! The user-stack walk: one frame a step, from the tables in the pool.
//!
//! Written with `bpf_loop` and look-ups, no tail calls, so that the same source
//! serves perf event, uprobe and sleepable programs. The state lives in the
//! caller's scratch memory and not on the BPF stack: the verifier does not track
//! map memory, which keeps its state small.

use aiprof_common::*;
use aya_ebpf::{
    bindings::{pt_regs, task_struct},
    helpers::{
        bpf_get_current_task_btf,
        generated::{bpf_loop, bpf_probe_read_kernel, bpf_probe_read_user, bpf_task_pt_regs},
    },
};
use core::{arch::asm, ffi::c_void};

use crate::{
    maps::{Frames, PROCS, SAMPLER_RULES, Scratch},
    pool::{Block, le_bit},
    setting,
};

/// Bytes of user stack copied at once.
const WINDOW: usize = 256;
/// Frames that one look at the rule cache walks at most.
const CACHED_FRAMES: u32 = 16;
/// Deepest nesting of return probes (`MAX_URETPROBE_DEPTH`, kernel/events/uprobes.c).
const MAX_RETURN_INSTANCES: u32 = 64;
/// Value of rbp where it is not known: no stack address, so that a frame that
/// needs it ends the walk.
const RBP_UNKNOWN: u64 = 1;
/// Value of `Walk::instance` after a match.
const INSTANCE_MATCHED: u64 = 1;
/// Size of an out-of-line slot (`UPROBE_XOL_SLOT_BYTES`, arch/x86/include/asm/uprobes.h).
const XOL_SLOT_BYTES: u64 = 128;
/// Ancestors to ask for the mappings of an unregistered fork.
const MAX_ANCESTORS: usize = 4;

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
    /// The mapping list.
    list: u32,
    /// Its owner tag.
    list_owner: u32,
    /// Frames recorded.
    len: u32,
    /// 1: `rip` is an interrupted instruction, not a return address.
    exact: u32,
    /// 1: `rip` came from a frame pointer and is to be checked.
    guessed: u32,
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
}

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
/// `regs` are the task's user registers (`bpf_task_pt_regs`).
#[inline(always)]
pub fn walk_user(scratch: *mut Scratch, regs: *const pt_regs) {
    // SAFETY: `scratch` is a checked map value, `regs` a BTF pointer of the
    // kernel's; both are only read and written within their types.
    let (s, r) = unsafe { (&mut *scratch, &*regs) };
    let w = &mut s.walk;
    w.rip = r.rip;
    w.rsp = r.rsp;
    w.rbp = r.rbp;
    w.map_start = 0;
    w.map_end = 0;
    w.len = 0;
    w.exact = 1;
    w.guessed = 0;
    w.window_base = 0;
    s.header.stop = STOP_TOO_DEEP;
    match find_process(scratch) {
        FOUND => {
            let mut context = LoopContext { scratch };
            // SAFETY: the callback has bpf_loop's signature; the context lives
            // on this frame's stack for the whole call.
            unsafe {
                bpf_loop(
                    MAX_USER_FRAMES as u32 + 1,
                    step as *mut c_void,
                    (&raw mut context).cast(),
                    0,
                );
            }
            // SAFETY: as above.
            let s = unsafe { &mut *scratch };
            s.header.user_len = s.walk.len as u16;
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
    // SAFETY: user space replaces entries by whole-value updates.
    if let Some(entry) = unsafe { PROCS.get(s.header.tgid) } {
        s.walk.list = entry.maps;
        s.walk.list_owner = entry.owner;
        s.header.space = entry.space;
        return FOUND;
    }
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
            s.walk.list = entry.maps;
            s.walk.list_owner = entry.owner;
            s.header.space = entry.space;
            s.header.flags |= FLAG_FROM_ANCESTOR;
            return FOUND;
        }
    }
    0
}

/// The 8 bytes of kernel memory at `base + offset`; 0 where they cannot be read
/// (the helper clears its destination) or the kernel has no such field.
#[inline(always)]
fn read_kernel(base: u64, offset: u32) -> u64 {
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
    let stop = try_step(scratch);
    if stop == NO_STOP {
        return GO_ON;
    }
    // SAFETY: the scratch is a map value that stays valid during the program.
    unsafe { (*scratch).header.stop = stop as u8 };
    STOP
}

/// One step; anything but `NO_STOP` is the reason the walk ends.
#[inline(always)]
fn try_step(scratch: *mut Scratch) -> u32 {
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    if s.walk.exact == 0 {
        walk_cached(scratch);
    }
    let len = s.walk.len as usize;
    if len >= MAX_USER_FRAMES {
        return STOP_TOO_DEEP.into();
    }
    let known = find_mapping(scratch);
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
    match s.walk.map_kind {
        MAP_FILE => {
            let stop = find_rule(scratch);
            if stop != NO_STOP {
                return stop;
            }
            if s.walk.rule.kind == CFA_NONE
                && s.walk.len == 1
                && s.header.flags & FLAG_USER_MODE == 0
            {
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
            cache_rule(s);
        }
        MAP_VSYSCALL => {
            s.walk.rule = Rule {
                kind: CFA_RSP,
                cfa_off: 8,
                ..Rule::default()
            }
        }
        _ => s.walk.rule = generated_code_rule(&s.walk),
    }
    apply(scratch)
}

/// The rule for generated code, which has no unwind data: the frame pointer, but
/// where the call returns to `add $N, %rsp; ret` (48 83 c4 NN c3), as CPython's
/// trampolines do, that says where the caller's frame is.
#[inline(always)]
fn generated_code_rule(w: &Walk) -> Rule {
    let mut code = 0u64;
    if w.exact == 0 {
        // SAFETY: the destination is 8 bytes on the stack; a bad source is an error.
        unsafe { bpf_probe_read_user((&raw mut code).cast(), 8, w.rip as *const c_void) };
    }
    if code & 0xff_00ff_ffff != 0xc3_00c4_8348 {
        return Rule::default();
    }
    Rule {
        cfa_off: (code >> 24 & 0x7f) as i32 + 8,
        kind: CFA_RSP,
        ..Rule::default()
    }
}

/// Walks as many frames as the rule cache knows and the window holds, up to
/// [`CACHED_FRAMES`]: the usual case, in few instructions. Stops, without an
/// opinion, at the first frame that needs more.
#[inline(never)]
fn walk_cached(scratch: *mut Scratch) -> u32 {
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    let w = &mut s.walk;
    let (mut rip, mut rsp, mut rbp) = (w.rip, w.rsp, w.rbp);
    let mut len = w.len;
    let owner = w.list_owner;
    let base = w.window_base;
    let mut moved = 0;
    for _ in 0..CACHED_FRAMES {
        let Some(entry) = cache_entry(rip) else {
            break;
        };
        // SAFETY: an entry of a checked per-CPU map value.
        let CachedRule { key, rule } = unsafe { *entry };
        let found = key == cache_key(rip, owner) && rule >> 48 == u64::from(owner >> 16);
        if !found || len >= MAX_USER_FRAMES as u32 {
            break;
        }
        let from = if rule >> 40 & 1 != 0 { rbp } else { rsp };
        let cfa = from.wrapping_add(rule & 0xff_ffff);
        let slot = cfa.wrapping_sub(8).wrapping_sub(base);
        if cfa <= rsp || slot > (WINDOW - 8) as u64 || slot & 7 != 0 {
            break;
        }
        let mut caller_rbp = rbp;
        let below = rule >> 24 & 0xffff;
        if below != 0 {
            let at = cfa.wrapping_sub(below).wrapping_sub(base);
            if at > (WINDOW - 8) as u64 || at & 7 != 0 {
                break;
            }
            caller_rbp = window_at(w, at);
        }
        let caller = window_at(w, slot);
        if caller == 0 {
            break;
        }
        // SAFETY: in bounds by its mask.
        unsafe { *frame_at(&mut s.frames, len.into()) = rip };
        len += 1;
        rip = caller;
        rsp = cfa;
        rbp = caller_rbp;
        moved = 1;
    }
    if moved != 0 {
        w.rip = rip;
        w.rsp = rsp;
        w.rbp = rbp;
        w.len = len;
        w.guessed = 0;
    }
    moved
}

/// The 8 bytes at byte `at` of the window.
#[inline(always)]
fn window_at(w: &Walk, at: u64) -> u64 {
    let at = at as usize & (WINDOW - 8);
    // SAFETY: `at + 8` is within the window by the mask.
    unsafe { w.window.as_ptr().byte_add(at).read() }
}

/// Remembers the rule just found for a return address, if it is of the common
/// kinds that the cache holds.
#[inline(always)]
fn cache_rule(s: &mut Scratch) {
    let w = &s.walk;
    let rule = w.rule;
    let below = -i32::from(rule.rbp_off);
    let saved = rule.rbp == RBP_AT_CFA && below > 0;
    let common = (rule.kind == CFA_RSP || rule.kind == CFA_RBP)
        && (rule.rbp == RBP_SAME || saved)
        && rule.cfa_off as u32 <= 0xff_ffff;
    if w.exact != 0 || !common {
        return;
    }
    let below = if saved { below as u64 & 0xffff } else { 0 };
    let packed = u64::from(rule.cfa_off as u32)
        | below << 24
        | u64::from(rule.kind == CFA_RBP) << 40
        | u64::from(w.list_owner >> 16) << 48;
    if let Some(entry) = cache_entry(w.rip) {
        let key = cache_key(w.rip, w.list_owner);
        // SAFETY: an entry of a checked per-CPU map value; the sampler does not nest.
        unsafe { *entry = CachedRule { key, rule: packed } };
    }
}

/// The slot of a frame, masked into bounds. In assembly, for the compiler knows
/// the bounds already and would leave the mask out, which the verifier of Linux
/// 6.1 has no other way to know by.
#[inline(always)]
fn frame_at(frames: &mut Frames, at: u64) -> *mut u64 {
    let mut slot = at;
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

/// The key of a return address in the cache.
#[inline(always)]
fn cache_key(address: u64, owner: u32) -> u64 {
    address ^ u64::from(owner) << 48
}

/// The entry of an address: neighbours in the text are neighbours here.
#[inline(always)]
fn cache_entry(address: u64) -> Option<*mut CachedRule> {
    let slot = (address >> 4) as u32 & setting!(rule_cache_mask);
    let chunk = SAMPLER_RULES.get_ptr_mut(slot / RULE_CACHE_CHUNK as u32)?;
    let at = slot as usize & (RULE_CACHE_CHUNK - 1);
    // SAFETY: `at` is within the chunk by the mask.
    Some(unsafe { chunk.cast::<CachedRule>().add(at) })
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

/// The address to look rules up for: a return address may be the first byte
/// after a call that does not return, and then belongs to the next function.
#[inline(always)]
fn lookup_address(w: &Walk) -> u64 {
    if w.exact != 0 {
        w.rip
    } else {
        w.rip.wrapping_sub(1)
    }
}

/// Makes `map_*` the mapping that holds the current address.
#[inline(never)]
fn find_mapping(scratch: *mut Scratch) -> u32 {
    // SAFETY: a checked map value.
    let w = unsafe { &mut (*scratch).walk };
    u32::from(search_mappings(w))
}

#[inline(always)]
fn search_mappings(w: &mut Walk) -> bool {
    let pc = lookup_address(w);
    if pc >= w.map_start && pc < w.map_end {
        return true;
    }
    if pc >> 63 != 0 {
        // Only the vsyscall page is up here.
        w.map_start = 0xffff_ffff_ff60_0000;
        w.map_end = w.map_start + 0x1000;
        w.map_kind = MAP_VSYSCALL;
        return pc >= w.map_start && pc < w.map_end;
    }
    let Some(list) = Block::get(w.list) else {
        return false;
    };
    let n = u64::from(list.u32(4));
    if n == 0 || n > MAX_MAPPINGS as u64 {
        return false;
    }
    let mut at = 0u64;
    let mut stride = MAX_MAPPINGS as u64 / 2;
    while stride > 0 {
        let probe = at + stride;
        let start = list.u64(8 + probe * 8);
        at += stride * (le_bit(start, pc) & le_bit(probe + 1, n));
        stride /= 2;
    }
    let entry = 8 + n * 8 + at * 32;
    let start = list.u64(8 + at * 8);
    let end = list.u64(entry);
    if pc < start || pc >= end {
        return false;
    }
    w.map_bias = list.u64(entry + 8);
    w.map_dir = list.u32(entry + 16);
    w.map_dir_owner = list.u32(entry + 20);
    w.map_kind = list.u32(entry + 24);
    w.map_start = start;
    w.map_end = end;
    if list.u32(0) != w.list_owner || w.list_owner == 0 {
        // Replaced while it was read.
        w.map_end = 0;
        return false;
    }
    true
}

/// Makes `rule` the rule for the current address of a file mapping.
#[inline(never)]
fn find_rule(scratch: *mut Scratch) -> u32 {
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    s.walk.rule = Rule::default();
    let rel = lookup_address(&s.walk).wrapping_sub(s.walk.map_bias);
    let index = rel >> PAGE_SHIFT;
    if s.walk.map_dir < REF_FIRST {
        return NO_STOP;
    }
    let Some(dir) = Block::get(s.walk.map_dir) else {
        return STOP_TORN.into();
    };
    if index >= u64::from(dir.u32(4)) {
        return NO_STOP;
    }
    let page = dir.u32(8 + index * 4);
    if dir.u32(0) != s.walk.map_dir_owner {
        return STOP_TORN.into();
    }
    if page == REF_ABSENT {
        s.header.miss_dir = s.walk.map_dir;
        s.header.miss_page = index as u32;
        return STOP_PAGE_ABSENT.into();
    }
    if page < REF_FIRST {
        return NO_STOP;
    }
    let Some(page) = Block::get(page) else {
        return STOP_TORN.into();
    };
    let now = (s.header.time_ns >> 30) as u32;
    match search_page(&page, rel & (PAGE_SIZE - 1), now) {
        Some(rule) => s.walk.rule = rule,
        None => return STOP_TORN.into(),
    }
    NO_STOP
}

/// The rule for byte `pc` of a table page; `None` if it changed meanwhile.
#[inline(always)]
fn search_page(page: &Block, pc: u64, now: u32) -> Option<Rule> {
    let owner = page.u32(0);
    let sizes = page.u32(8);
    let n_groups = u64::from(sizes & 0xffff);
    let rules_off = u64::from(page.u32(12));
    let groups_off = u64::from(page.u32(16));

    // The last group whose anchor is at or below pc.
    let mut group = 0u64;
    let mut stride = MAX_GROUPS as u64 / 2;
    while stride > 0 {
        let probe = group + stride;
        let anchor = u64::from(page.u16(24 + probe * 2));
        group += stride * (le_bit(anchor, pc) & le_bit(probe + 1, n_groups));
        stride /= 2;
    }
    let rel = pc - u64::from(page.u16(24 + group * 2));
    let at = groups_off + group * GROUP_BYTES as u64;

    // The last row of the group at or below pc: count the rows that start there.
    let (low, high) = (page.u64(at), page.u64(at + 8));
    let mut row = 0u64;
    let mut start = 0u64;
    let mut deltas = low >> 8;
    let mut i = 1;
    while i < GROUP_ROWS {
        if i == 8 {
            deltas = high;
        }
        start += deltas & 0xff;
        deltas >>= 8;
        row += le_bit(start, rel);
        i += 1;
    }
    let rule = page.u8(at + GROUP_ROWS as u64 + row);
    let raw = page.u64(rules_off + u64::from(rule) * 8);
    if page.u32(0) != owner || owner == 0 {
        return None;
    }
    if page.u32(4) != now {
        page.set_u32(4, now);
    }
    Some(Rule {
        cfa_off: raw as u32 as i32,
        rbp_off: (raw >> 32) as u16 as i16,
        kind: (raw >> 48) as u8,
        rbp: (raw >> 56) as u8,
    })
}

/// Moves the walk to the caller by the current rule.
#[inline(never)]
fn apply(scratch: *mut Scratch) -> u32 {
    // SAFETY: a checked map value.
    match try_apply(unsafe { &mut *scratch }) {
        Ok(()) => NO_STOP,
        Err(stop) => stop.into(),
    }
}

#[inline(always)]
fn try_apply(s: &mut Scratch) -> Result<(), u8> {
    let w = &mut s.walk;
    let rule = w.rule;
    let offset = i64::from(rule.cfa_off) as u64;
    let cfa = match rule.kind {
        CFA_RSP => w.rsp.wrapping_add(offset),
        CFA_RBP => w.rbp.wrapping_add(offset),
        CFA_END => return Err(STOP_END),
        CFA_NONE => {
            s.header.flags |= FLAG_FRAME_POINTER;
            return apply_frame_pointer(w);
        }
        CFA_PLT => w
            .rsp
            .wrapping_add(8)
            .wrapping_add(8 * le_bit(offset, w.rip & 15)),
        CFA_DEREF_RBP => read_stack(w, w.rbp.wrapping_add(offset))?,
        CFA_DEREF_RSP => read_stack(w, w.rsp.wrapping_add(offset))?,
        CFA_SIGNAL => {
            // The kernel entered the handler with this very address to return
            // to: it is no address behind a call.
            let at = (w.len as usize).wrapping_sub(1);
            if at > 0 {
                // SAFETY: in bounds by its mask.
                unsafe { *frame_at(&mut s.frames, at as u64) |= ADDR_EXACT };
            }
            return apply_signal(w, w.rsp.wrapping_add(offset));
        }
        kind if kind >= CFA_REG && w.len == 1 => user_register(kind - CFA_REG).wrapping_add(offset),
        _ => return Err(STOP_UNSUPPORTED),
    };
    if cfa <= w.rsp {
        return Err(STOP_NO_PROGRESS);
    }
    let rbp_offset = i64::from(rule.rbp_off) as u64;
    match rule.rbp {
        RBP_AT_CFA => w.rbp = read_stack(w, cfa.wrapping_add(rbp_offset))?,
        RBP_AT_RBP => w.rbp = read_stack(w, w.rbp.wrapping_add(rbp_offset))?,
        RBP_SAME => {}
        _ => w.rbp = RBP_UNKNOWN,
    }
    w.rip = read_stack(w, cfa.wrapping_sub(8))?;
    w.rsp = cfa;
    w.exact = 0;
    w.guessed = 0;
    if w.rip == 0 { Err(STOP_END) } else { Ok(()) }
}

/// A register of the innermost frame by its DWARF number.
#[inline(always)]
fn user_register(number: u8) -> u64 {
    // SAFETY: the current task is valid, and so are its registers; reads of a
    // BTF pointer are made fault-safe by the kernel.
    unsafe {
        let r = &*(bpf_task_pt_regs(bpf_get_current_task_btf()) as *const pt_regs);
        match number {
            0 => r.rax,
            1 => r.rdx,
            2 => r.rcx,
            3 => r.rbx,
            4 => r.rsi,
            5 => r.rdi,
            6 => r.rbp,
            7 => r.rsp,
            8 => r.r8,
            9 => r.r9,
            10 => r.r10,
            11 => r.r11,
            12 => r.r12,
            13 => r.r13,
            14 => r.r14,
            _ => r.r15,
        }
    }
}

/// One step along the frame pointer chain: rbp -> {caller's rbp, return address}.
#[inline(always)]
fn apply_frame_pointer(w: &mut Walk) -> Result<(), u8> {
    let frame = w.rbp;
    if frame == 0 && w.guessed != 0 {
        return Err(STOP_END);
    }
    if frame < w.rsp || frame & 7 != 0 {
        return Err(STOP_FRAME_POINTER);
    }
    let caller = read_stack(w, frame).map_err(|_| STOP_FRAME_POINTER)?;
    w.rip = read_stack(w, frame.wrapping_add(8)).map_err(|_| STOP_FRAME_POINTER)?;
    w.rbp = caller;
    w.rsp = frame.wrapping_add(16);
    w.exact = 0;
    w.guessed = 1;
    if w.rip == 0 { Err(STOP_END) } else { Ok(()) }
}

/// Through a signal frame: the interrupted registers are in the `ucontext` at
/// `uc` (struct sigcontext_64: rbp at 40+80, rsp at 40+120, rip at 40+128).
#[inline(always)]
fn apply_signal(w: &mut Walk, uc: u64) -> Result<(), u8> {
    let rbp = read_stack(w, uc.wrapping_add(120))?;
    let rsp = read_stack(w, uc.wrapping_add(160))?;
    w.rip = read_stack(w, uc.wrapping_add(168))?;
    w.rbp = rbp;
    w.rsp = rsp;
    w.exact = 1;
    w.guessed = 0;
    Ok(())
}

/// The 8 bytes of the user stack at `addr`.
#[inline(always)]
fn read_stack(w: &mut Walk, addr: u64) -> Result<u64, u8> {
    if load_stack(w, addr) == FOUND {
        Ok(w.value)
    } else {
        Err(STOP_READ)
    }
}

/// Makes `value` the 8 bytes of the user stack at `addr`, through the window.
#[inline(never)]
fn load_stack(w: *mut Walk, addr: u64) -> u32 {
    // SAFETY: part of a checked map value.
    let w = unsafe { &mut *w };
    let mut off = addr.wrapping_sub(w.window_base);
    if w.window_base == 0 || off > (WINDOW - 8) as u64 || off & 7 != 0 {
        // Below the address lie the other slots of the same frame.
        let base = if addr.wrapping_sub(w.rsp) < WINDOW as u64 / 2 {
            w.rsp
        } else {
            addr
        } & !7;
        // SAFETY: the destination is the window, of that size.
        let rc = unsafe {
            bpf_probe_read_user(
                w.window.as_mut_ptr().cast(),
                WINDOW as u32,
                base as *const c_void,
            )
        };
        off = addr.wrapping_sub(base);
        if rc != 0 || off > (WINDOW - 8) as u64 || off & 7 != 0 {
            w.window_base = 0;
            // SAFETY: the destination is 8 bytes of the scratch.
            let rc =
                unsafe { bpf_probe_read_user((&raw mut w.value).cast(), 8, addr as *const c_void) };
            return if rc == 0 { FOUND } else { 0 };
        }
        w.window_base = base;
    }
    w.value = window_at(w, off);
    FOUND
}

/// Replaces an address in the kernel's uprobe area by the program's own: a
/// pending return probe's trampoline by the return address it stands for, an
/// out-of-line single step by the instruction it executes.
///
/// The kernel keeps the real return addresses in `task->utask->return_instances`
/// with the stack slot each came from (`struct return_instance`,
/// include/linux/uprobes.h), so nested, recursive and abandoned ones cannot be
/// confused.
#[inline(never)]
fn resolve_uprobe(scratch: *mut Scratch) -> u32 {
    // SAFETY: a checked map value.
    let w = unsafe { &mut (*scratch).walk };
    // SAFETY: always valid in a tracing program.
    let task: *mut task_struct = unsafe { bpf_get_current_task_btf() };
    let utask = read_kernel(task as u64, setting!(task_utask));
    if utask == 0 {
        return 0;
    }
    if w.len == 0 {
        let xol = read_kernel(utask, setting!(utask_xol_vaddr));
        let vaddr = read_kernel(utask, setting!(utask_vaddr));
        let into = w.rip.wrapping_sub(xol);
        if xol != 0 && vaddr != 0 && into < XOL_SLOT_BYTES {
            // Behind the copied instruction its effect on the stack is there
            // already, so the place matters to the byte.
            w.rip = vaddr.wrapping_add(into);
            return FOUND;
        }
    }
    w.instance = read_kernel(utask, setting!(utask_return_instances));
    let mut context = LoopContext { scratch };
    // SAFETY: the callback has bpf_loop's signature; the context lives on this
    // frame's stack for the whole call.
    unsafe {
        bpf_loop(
            MAX_RETURN_INSTANCES,
            match_instance as *mut c_void,
            (&raw mut context).cast(),
            0,
        );
    }
    // SAFETY: a checked map value.
    let w = unsafe { &mut (*scratch).walk };
    u32::from(w.instance == INSTANCE_MATCHED)
}

/// `bpf_loop` callback: is `instance` the one whose slot was just read?
extern "C" fn match_instance(_index: u64, context: *mut LoopContext) -> i64 {
    // SAFETY: the context is resolve_uprobe's, the scratch a map value.
    let w = unsafe { &mut (*(*context).scratch).walk };
    if w.instance == 0 {
        return STOP;
    }
    if read_kernel(w.instance, setting!(ri_stack)) != w.rsp.wrapping_sub(8) {
        w.instance = read_kernel(w.instance, setting!(ri_next));
        return GO_ON;
    }
    w.rip = read_kernel(w.instance, setting!(ri_orig_ret_vaddr));
    w.exact = 0;
    w.instance = INSTANCE_MATCHED;
    STOP
}
