//! The stacks of calls. They are walked as those of samples are, identified by a hash of their
//! content, and sent once.

use aiprof_common::*;
use aya_ebpf::{
    bindings::pt_regs,
    helpers::{
        bpf_get_current_task_btf, bpf_get_smp_processor_id,
        generated::{
            bpf_get_current_cgroup_id, bpf_get_current_comm, bpf_get_prandom_u32, bpf_get_stack,
            bpf_loop, bpf_probe_read_kernel, bpf_probe_read_user, bpf_ringbuf_output,
            bpf_task_pt_regs,
        },
    },
};
use core::{arch::asm, ffi::c_void};

use crate::{
    atomic,
    calls::{Call, wakeup},
    count,
    limits::{may_hash_memory, may_send_pages, may_walk},
    maps::{
        CALL_SCRATCH, CALL_SHARED, CALLS, CallSlot, Frames, MEMORY_WORDS, STACKS_SEEN, Scratch,
    },
    pool::le_bit,
    ring::{NO_WAKEUP, Ring, is_unfinished, send_stack},
    setting, threads,
    unwind::{MAX_RETURN_INSTANCES, append, hidden_return, pending_return, walk_user},
};

/// log2 of the nanoseconds after which an unfinished stack is sent again: its tables may have
/// been loaded since.
const UNFINISHED_SHIFT: u32 = 28;
/// Words that one step of the hash takes.
const HASH_WORDS: u64 = 16;
/// Steps for the longest stack.
const HASH_STEPS: u64 = 136;
const _: () = assert!(HASH_STEPS * HASH_WORDS == size_of::<Frames>() as u64 / 8);
/// Steps for a page of memory.
const PAGE_STEPS: u64 = STACK_PAGE as u64 / (MEMORY_WORDS as u64 * 8);
/// Addresses below are not mapped (`vm.mmap_min_addr`): a smaller word is not an address.
const LOWEST: u64 = 1 << 16;

/// Records the user stack of a call. Sets `stack`, or the flag of the reason why there is none.
/// Pending calls of the `thread` that are not on its stack are over.
#[inline(never)]
pub fn user_stack(call: &mut Call, regs: *const pt_regs, thread: *mut ThreadCalls) -> u32 {
    let index = slot(call);
    let Some(slot) = CALL_SCRATCH.get_ptr_mut(index) else {
        return 0;
    };
    // SAFETY: a field of a checked map value, which is claimed.
    let scratch = unsafe { &raw mut (*slot).scratch };
    begin(scratch, call, FLAG_USER_MODE);
    threads::look_for(thread, call.depth, scratch);
    walk_user(scratch, regs, cache_of(index), Ring::of(&CALLS));
    if call.depth > 0 && !thread.is_null() {
        threads::prune(thread, call, scratch);
    }
    send::<false>(slot, call);
    // SAFETY: a field of a checked map value; written last.
    unsafe { (&raw mut (*slot).busy).write_volatile(0) };
    0
}

/// Records the stack of a call into the kernel, as [`user_stack`] does. The user part starts
/// from the registers that the system call saved; the kernel part is recorded if `kernel` is 1.
/// `ctx` is the program's context.
#[inline(never)]
pub fn system_stack(call: &mut Call, ctx: *mut c_void, kernel: u32) -> u32 {
    let index = slot(call);
    let Some(slot) = CALL_SCRATCH.get_ptr_mut(index) else {
        return 0;
    };
    // SAFETY: a field of a checked map value, which is claimed.
    let scratch = unsafe { &raw mut (*slot).scratch };
    begin(scratch, call, 0);
    walk_saved(scratch, index);
    if kernel == 1 {
        kernel_stack(scratch, call, ctx);
    }
    send::<false>(slot, call);
    // SAFETY: a field of a checked map value; written last.
    unsafe { (&raw mut (*slot).busy).write_volatile(0) };
    0
}

/// Records the stack of a wait, as [`system_stack`] does. Its kernel part is `bytes` bytes of
/// kernel memory at `kernel`. `LOCKED`: the scheduler's locks are held, so no hash map is
/// updated and no memory of the stack is sent.
#[inline(never)]
pub fn wait_stack<const LOCKED: bool>(call: &mut Call, kernel: u64, bytes: u64) -> u32 {
    let index = slot(call);
    let Some(slot) = CALL_SCRATCH.get_ptr_mut(index) else {
        return 0;
    };
    // SAFETY: a field of a checked map value, which is claimed.
    let scratch = unsafe { &raw mut (*slot).scratch };
    begin(scratch, call, 0);
    walk_saved(scratch, index);
    let (to, most) = behind_user(scratch);
    let mut bytes = bytes;
    if bytes > most {
        bytes = most;
    }
    // SAFETY: there is room for `most` bytes; a bad source is an error.
    if bytes > 0 && unsafe { bpf_probe_read_kernel(to, bytes as u32, kernel as *const c_void) } == 0
    {
        // SAFETY: a claimed map value.
        unsafe { (*scratch).header.kernel_len = (bytes / 8) as u16 };
        call.flags |= u32::from(CALL_KERNEL_STACK);
    }
    send::<LOCKED>(slot, call);
    // SAFETY: a field of a checked map value; written last.
    unsafe { (&raw mut (*slot).busy).write_volatile(0) };
    0
}

/// Walks the user stack from the registers that the current task saved when it entered the
/// kernel.
#[inline(always)]
fn walk_saved(scratch: *mut Scratch, index: u32) {
    // SAFETY: a claimed map value.
    unsafe { (*scratch).walk.look_for(0) };
    // SAFETY: the current task is valid, and so are its registers' addresses.
    let regs = unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) } as *const pt_regs;
    // SAFETY: a BTF pointer, whose reads the kernel makes fault-safe.
    if unsafe { (*regs).cs } & 3 == 3 {
        walk_user(scratch, regs, cache_of(index), Ring::of(&CALLS));
    }
}

/// Where the kernel stack begins, after the user addresses, and its room in bytes.
#[inline(always)]
fn behind_user(scratch: *mut Scratch) -> (*mut c_void, u64) {
    // SAFETY: a claimed map value.
    let s = unsafe { &mut *scratch };
    let mut len = u64::from(s.header.user_len);
    // SAFETY: arithmetic on one register, in assembly so that the verifier sees the bound, even
    // if the compiler knows it.
    unsafe {
        asm!("{0} &= {mask}", inout(reg) len, mask = const 2 * MAX_USER_FRAMES - 1,
            options(pure, nomem, nostack));
    }
    if len > MAX_USER_FRAMES as u64 {
        len = MAX_USER_FRAMES as u64;
    }
    // SAFETY: `len <= MAX_USER_FRAMES`, after which there is room for the kernel's.
    let to = unsafe { s.frames.as_mut_ptr().add(len as usize) };
    (to.cast(), MAX_KERNEL_FRAMES as u64 * 8)
}

/// Appends the kernel stack after the user addresses.
#[inline(always)]
fn kernel_stack(scratch: *mut Scratch, call: &mut Call, ctx: *mut c_void) {
    const BYTES: usize = MAX_KERNEL_FRAMES * 8;
    let (to, _) = behind_user(scratch);
    // SAFETY: BYTES of room.
    let rc = unsafe { bpf_get_stack(ctx, to, BYTES as u32, 0) };
    // SAFETY: a claimed map value.
    let s = unsafe { &mut *scratch };
    if rc < 0 {
        s.header.flags |= FLAG_KERNEL_FAILED;
        return;
    }
    s.header.kernel_len = (rc / 8) as u16;
    call.flags |= u32::from(CALL_KERNEL_STACK);
    if rc as usize >= BYTES {
        s.header.flags |= FLAG_KERNEL_TRUNCATED;
    }
}

/// Claims a scratch slot for a stack. If there is none, returns CALL_SLOTS and sets the flag of
/// the reason.
#[inline(always)]
fn slot(call: &mut Call) -> u32 {
    if !may_walk(call.time_ns) {
        call.flags |= u32::from(CALL_STACK_LIMITED);
        count!(call.counts, stacks_limited);
        return CALL_SLOTS;
    }
    let index = claim();
    if index >= CALL_SLOTS {
        call.flags |= u32::from(CALL_STACK_BUSY);
        count!(call.counts, stacks_busy);
    }
    index
}

/// The part of the rule cache that belongs to a slot.
#[inline(always)]
fn cache_of(index: u32) -> (u32, u32) {
    let chunks = (setting!(rule_cache_mask) + 1) / RULE_CACHE_CHUNK as u32;
    (1 + chunks + 2 * index, RULE_CACHE_CHUNK as u32 - 1)
}

/// Claims a scratch slot. Returns its index, or CALL_SLOTS if all are in use.
#[inline(always)]
fn claim() -> u32 {
    let mut slot = CALL_SLOTS;
    // SAFETY: the callback has bpf_loop's signature; the context lives on this
    // frame's stack for the whole call.
    unsafe {
        bpf_loop(
            CALL_SLOTS,
            claim_one as *mut c_void,
            (&raw mut slot).cast(),
            0,
        );
    }
    slot
}

/// `bpf_loop` callback: claims a slot if it is free.
extern "C" fn claim_one(index: u64, claimed: *mut u32) -> i64 {
    let Some(slot) = CALL_SCRATCH.get_ptr_mut(index as u32) else {
        return 1;
    };
    // SAFETY: a field of a checked map value, aligned; `claimed` is claim's.
    unsafe {
        if atomic::compare_exchange(&raw mut (*slot).busy, 0, 1) != 0 {
            return 0;
        }
        *claimed = index as u32;
    }
    1
}

/// Fills in the header of a stack, with these `FLAG_*` bits.
#[inline(always)]
fn begin(scratch: *mut Scratch, call: &Call, flags: u8) {
    // SAFETY: fields of a claimed map value, and helpers without preconditions. Volatile and
    // one by one, because the compiler would otherwise call memset.
    unsafe {
        let h = &raw mut (*scratch).header;
        (&raw mut (*h).kind).write_volatile(KIND_CALL_STACK);
        (&raw mut (*h).cpu).write_volatile(bpf_get_smp_processor_id() as u32);
        (&raw mut (*h).time_ns).write_volatile(call.time_ns);
        (&raw mut (*h).tgid).write_volatile((call.ids >> 32) as u32);
        (&raw mut (*h).tid).write_volatile(call.ids as u32);
        (&raw mut (*h).space).write_volatile(0);
        (&raw mut (*h).miss_dir).write_volatile(0);
        (&raw mut (*h).miss_page).write_volatile(0);
        (&raw mut (*h).user_len).write_volatile(0);
        (&raw mut (*h).kernel_len).write_volatile(0);
        // stop, flags, python_len and omitted: 8 bytes.
        let tail = u64::from(STOP_KERNEL_THREAD) | u64::from(flags) << 8;
        (&raw mut (*h).stop).cast::<u64>().write_volatile(tail);
    }
}

/// Gives the stack its id, and sends it if user space has not seen it. `LOCKED`: see
/// [`wait_stack`].
#[inline(always)]
fn send<const LOCKED: bool>(slot: *mut CallSlot, call: &mut Call) {
    // SAFETY: a field of a checked map value, which is claimed.
    let scratch = unsafe { &raw mut (*slot).scratch };
    // SAFETY: a claimed map value.
    let s = unsafe { &mut *scratch };
    let addresses = u64::from(s.header.user_len) + u64::from(s.header.kernel_len);
    append(s, addresses);
    hash(scratch);
    // SAFETY: a claimed map value.
    let s = unsafe { &mut *scratch };
    let mut id = s.header.period;
    let mut pages = false;
    if is_unfinished(s.header.stop) {
        // The stack may end elsewhere when the tables have been loaded.
        let now = mix(id, call.time_ns >> UNFINISHED_SHIFT);
        id = now | 1;
        // User space finishes the walk: stacks with other memory may end elsewhere.
        if !LOCKED && may_hash_memory(call.time_ns) {
            hash_memory(slot, now);
            // SAFETY: a field of a claimed map value.
            let whole = unsafe { (*slot).hash } | 1;
            if STACKS_SEEN.get_ptr(whole).is_some() {
                call.stack = whole;
                return;
            }
            pages = may_send_pages(call.time_ns);
            if pages {
                id = whole;
            }
        }
    }
    if !pages && STACKS_SEEN.get_ptr(id).is_some() {
        call.stack = id;
        return;
    }
    s.header.period = id;
    if !output::<LOCKED>(s, call.time_ns) {
        return;
    }
    if !LOCKED && (!pages || send_stack(&s.header, Ring::of(&CALLS))) {
        // After the stack was sent, so that another CPU does not refer to a stack that is never
        // sent.
        let _ = STACKS_SEEN.insert(id, call.time_ns, 0);
    }
    call.stack = id;
}

/// Sends the record. `false`: there is no room.
#[inline(always)]
fn output<const LOCKED: bool>(s: &mut Scratch, now: u64) -> bool {
    const MAX: u64 = (STACK_HEADER + size_of::<Frames>()) as u64;
    // SAFETY: the destination has the size given; helpers without preconditions.
    unsafe {
        bpf_get_current_comm(s.header.comm.as_mut_ptr().cast(), 16);
        s.header.cgroup = bpf_get_current_cgroup_id();
    }
    let mut bytes = STACK_HEADER as u64 + (words(s) & 4095) * 8;
    if bytes > MAX {
        bytes = MAX;
    }
    let ring = Ring::of(&CALLS);
    let record = (&raw mut *s).cast::<c_void>();
    // SAFETY: `ring` is a map; the scratch is larger than MAX.
    unsafe {
        let flags = if LOCKED { NO_WAKEUP } else { wakeup(ring, now) };
        bpf_ringbuf_output(ring.map(), record, bytes, flags) == 0
    }
}

/// Number of addresses and words of Python frames in the record.
#[inline(always)]
fn words(s: &Scratch) -> u64 {
    u64::from(s.header.user_len) + u64::from(s.header.kernel_len) + u64::from(s.header.python_len)
}

/// Folds a word into a hash.
#[inline(always)]
pub fn mix(hash: u64, word: u64) -> u64 {
    let product = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ product >> 32
}

/// Context of the hash loop.
#[repr(C)]
struct Hashing {
    scratch: *mut Scratch,
    hash: u64,
}

/// Sets `period` to a hash of the stack: of its process, its mappings, the reason for its end
/// and all its addresses. Never 0.
#[inline(never)]
fn hash(scratch: *mut Scratch) -> u32 {
    // SAFETY: a claimed map value.
    let s = unsafe { &*scratch };
    let ends = u64::from(s.header.stop) << 32 | u64::from(s.header.space);
    let whose = u64::from(s.header.tgid) << 32 | u64::from(s.walk.list_owner());
    let mut context = Hashing {
        scratch,
        hash: mix(mix(seed(), ends), whose),
    };
    // SAFETY: the callback has bpf_loop's signature; the context lives on this
    // frame's stack for the whole call.
    unsafe {
        let steps = words(s).div_ceil(HASH_WORDS);
        bpf_loop(
            steps as u32,
            hash_words as *mut c_void,
            (&raw mut context).cast(),
            0,
        );
        (*scratch).header.period = context.hash | 1;
    }
    0
}

/// `bpf_loop` callback: hashes HASH_WORDS words; those after the last count as 0.
extern "C" fn hash_words(index: u64, context: *mut Hashing) -> i64 {
    // SAFETY: the context is hash's, the scratch a claimed map value.
    let (c, s) = unsafe { (&mut *context, &*(*context).scratch) };
    let mut step = index;
    // SAFETY: arithmetic on one register, in assembly so that the verifier sees the bound, even
    // if the compiler knows it.
    unsafe { asm!("{0} &= 255", inout(reg) step, options(pure, nomem, nostack)) };
    if step >= HASH_STEPS {
        return 1;
    }
    let at = step * HASH_WORDS;
    let left = words(s).wrapping_sub(at);
    // SAFETY: HASH_STEPS times HASH_WORDS words are within the addresses.
    let addresses = unsafe { s.frames.as_ptr().add(at as usize) };
    let mut hash = c.hash;
    for i in 0..HASH_WORDS {
        let inside = le_bit(i + 1, left).wrapping_neg();
        // SAFETY: as above.
        let word = unsafe { addresses.add(i as usize).read() };
        hash = mix(hash, word & inside);
    }
    c.hash = hash;
    0
}

/// Sets the slot's `hash` to a hash of `start` and of the stack memory that would be sent. It
/// takes in where that memory is, and all words in it that can be addresses. A walk that
/// continues there depends on nothing else, so stacks with equal hashes have equal ends.
/// Counters in their frames may differ.
#[inline(never)]
fn hash_memory(slot: *mut CallSlot, start: u64) -> u32 {
    // SAFETY: a claimed map value; the callback has bpf_loop's signature, and its context
    // lives on this frame's stack for the whole call.
    unsafe {
        let header = &(*slot).scratch.header;
        let known = mix(mix(start, header.rip), u64::from(header.flags));
        (*slot).hash = mix(mix(known, header.rsp), header.rbp);
        let mut context = slot;
        bpf_loop(
            (PAGE_STEPS * MAX_STACK_PAGES as u64) as u32,
            hash_piece as *mut c_void,
            (&raw mut context).cast(),
            0,
        );
        (*slot).hash = hash_returns((*slot).hash);
    }
    0
}

/// Hashes the return addresses that return probes hide, which are sent with the memory.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn hash_returns(hash: u64) -> u64 {
    let (mut hash, mut pending) = (hash, pending_return());
    for _ in 0..MAX_RETURN_INSTANCES {
        if pending == 0 {
            break;
        }
        let (_, hidden, next) = hidden_return(pending);
        hash = mix(hash, hidden);
        pending = next;
    }
    hash
}

/// `bpf_loop` callback: hashes MEMORY_WORDS words of a stack. Stops at memory that cannot be
/// read.
extern "C" fn hash_piece(index: u64, context: *mut *mut CallSlot) -> i64 {
    // SAFETY: the context is hash_memory's, the slot a claimed map value.
    let slot = unsafe { &mut **context };
    let from = slot.scratch.header.rsp & !(STACK_PAGE as u64 - 1);
    let from = from + index * (MEMORY_WORDS as u64 * 8);
    let words = &raw mut slot.memory;
    let bytes = (MEMORY_WORDS * 8) as u32;
    // SAFETY: the destination has the size given; a bad source is an error.
    if unsafe { bpf_probe_read_user(words.cast(), bytes, from as *const c_void) } != 0 {
        // The first page may not exist yet, see send_stack.
        return i64::from(index >= PAGE_STEPS);
    }
    let mut hash = slot.hash;
    for i in 0..MEMORY_WORDS {
        // SAFETY: within the words.
        let word = unsafe { words.cast::<u64>().add(i).read() };
        hash = mix(hash, word & le_bit(LOWEST, word).wrapping_neg());
    }
    slot.hash = hash;
    0
}

/// The random start value of hashes, which no program can know.
#[inline(always)]
pub fn seed() -> u64 {
    let Some(shared) = CALL_SHARED.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: a field of a checked map value, aligned and written once; helpers without
    // preconditions.
    unsafe {
        let seed = &raw mut (*shared).seed;
        let known = seed.read_volatile();
        if known != 0 {
            return known;
        }
        let new = u64::from(bpf_get_prandom_u32()) << 32 | u64::from(bpf_get_prandom_u32()) | 1;
        match atomic::compare_exchange(seed, 0, new) {
            0 => new,
            others => others,
        }
    }
}
