//! The rule cache: most frames need no search at all.

use aiprof_common::*;
use aya_ebpf::helpers::generated::bpf_probe_read_user;
use core::ffi::c_void;

use super::{
    FOUND, WINDOW, Walk, frame_at,
    pending::{is_passed, pass},
    python::place_mark,
};
use crate::maps::{RULES, Scratch};

/// Most frames that one pass over the rule cache walks.
const CACHED_FRAMES: u32 = 16;

/// Walks as many frames as the rule cache knows and the window holds, up to [`CACHED_FRAMES`]:
/// the usual case, in few instructions. [`FOUND`]: call it again; if the window stopped it, the
/// window has been moved. 0: it stopped at a frame that needs more than the cache, without a
/// decision about it.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn walk_cached(scratch: *mut Scratch) -> u32 {
    if scratch.is_null() {
        return 0;
    }
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    let w = &mut s.walk;
    let (mut rip, mut rsp, mut rbp) = (w.rip, w.rsp, w.rbp);
    let mut len = w.len;
    // Values that do not change are read again for each frame: in variables, they would take
    // more stack than Linux 6.1 allows a program.
    let mut kind = rule_kind(w.process.list_owner, w.exact);
    let mut mark = s.python.mark();
    let mut watch = w.calls.watch;
    let Some(nearest) = RULES.get_ptr_mut(w.cache.first) else {
        return 0;
    };
    let mut more = FOUND;
    for _ in 0..CACHED_FRAMES {
        more = 0;
        if len >= MAX_WALKED_FRAMES as u32 {
            break;
        }
        let wanted = cache_key(rip, w.process.list_owner);
        let near = near_entry(nearest.cast(), rsp);
        // SAFETY: an entry of the walk's own.
        let CachedRule { key, mut rule } = unsafe { *near };
        if key != wanted || rule >> KIND_SHIFT != kind {
            let Some(entry) = cache_entry(rip, w.cache.first, w.cache.mask) else {
                break;
            };
            // SAFETY: an entry of a checked per-CPU map value.
            let found = unsafe { *entry };
            if found.key != wanted || found.rule >> KIND_SHIFT != kind {
                break;
            }
            // SAFETY: as above.
            unsafe { *near = found };
            rule = found.rule;
        }
        let from = if rule >> 40 & 1 != 0 { rbp } else { rsp };
        let cfa = from.wrapping_add(rule & 0xff_ffff);
        let below = rule >> 24 & 0xffff;
        if cfa <= rsp || (cfa | below) & 7 != 0 || below > WINDOW as u64 {
            break;
        }
        // The needed part of the frame: rbp's slot, if rbp is saved, and the return address.
        let base = w.window.base;
        let lowest = cfa.wrapping_sub(if below > 8 { below } else { 8 });
        let slot = cfa.wrapping_sub(8).wrapping_sub(base);
        if slot > (WINDOW - 8) as u64 || lowest < base {
            more = move_window(w, lowest);
            break;
        }
        let caller = window_at(w, slot);
        if caller == 0 {
            break;
        }
        if below != 0 {
            rbp = window_at(w, cfa.wrapping_sub(below).wrapping_sub(base));
        }
        // SAFETY: in bounds by its mask.
        unsafe { *frame_at(&mut s.frames, len.into()) = rip };
        if mark.wrapping_sub(rsp) < cfa.wrapping_sub(rsp) {
            mark = place_mark(scratch, len);
        }
        if is_passed(watch, rsp, cfa) {
            watch = pass(scratch, rsp, cfa, caller);
        }
        len += 1;
        rip = caller;
        rsp = cfa;
        kind &= !1;
        more = FOUND;
    }
    if len != w.len {
        w.rip = rip;
        w.rsp = rsp;
        w.rbp = rbp;
        w.len = len;
        w.exact = 0;
        w.guessed = 0;
    }
    more
}

/// Moves the window to `base`.
#[inline(always)]
fn move_window(w: &mut Walk, base: u64) -> u32 {
    // SAFETY: the destination is the window, of that size; a bad source is an error.
    let rc = unsafe {
        bpf_probe_read_user(
            w.window.words.as_mut_ptr().cast(),
            WINDOW as u32,
            base as *const c_void,
        )
    };
    w.window.base = if rc == 0 { base } else { 0 };
    u32::from(rc == 0)
}

/// Stores the rule just found for a return address, or for an interrupted instruction, if it is
/// of the common kinds that the cache holds.
#[inline(always)]
pub(super) fn cache_rule(s: &mut Scratch) {
    let w = &s.walk;
    if w.word != 8 {
        return;
    }
    let rule = w.rule;
    let below = -i32::from(rule.rbp_off);
    let rbp = rule.rbp & !RBP_DERIVED;
    let saved = rbp == RBP_AT_CFA && below > 0;
    let common = (rule.kind == CFA_RSP || rule.kind == CFA_RBP)
        && (rbp == RBP_SAME || saved)
        && rule.cfa_off as u32 <= 0xff_ffff;
    // In a program with V8, an interrupted instruction needs more than its rule.
    let is_of_leaf = w.len == 1 && w.v8.is_walked == 0;
    if w.exact != 0 && !is_of_leaf || !common {
        return;
    }
    let below = if saved { below as u64 & 0xffff } else { 0 };
    let packed = u64::from(rule.cfa_off as u32)
        | below << 24
        | u64::from(rule.kind == CFA_RBP) << 40
        | rule_kind(w.process.list_owner, w.exact) << KIND_SHIFT;
    if let Some(entry) = cache_entry(w.rip, w.cache.first, w.cache.mask) {
        let key = cache_key(w.rip, w.process.list_owner);
        // SAFETY: an entry of a checked per-CPU map value, in the walk's own part.
        unsafe { *entry = CachedRule { key, rule: packed } };
    }
}

/// The key of an address in the cache.
#[inline(always)]
fn cache_key(address: u64, owner: u32) -> u64 {
    address ^ u64::from(owner) << 48
}

/// The first bit of a cached rule's kind ([`rule_kind`]).
const KIND_SHIFT: u32 = 41;

/// The kind of a rule: the upper half of the owner tag, and whether the address is exact.
#[inline(always)]
fn rule_kind(owner: u32, exact: u32) -> u64 {
    u64::from(owner >> 16) << 7 | u64::from(exact & 1)
}

/// The entry for a stack pointer among the near rules. A stack usually has the frames that it
/// had at the last walk, and in this order their rules share cache lines.
#[inline(always)]
fn near_entry(chunk: *mut CachedRule, rsp: u64) -> *mut CachedRule {
    let at = (rsp >> 5) as usize & (RULE_CACHE_CHUNK - 1);
    // SAFETY: within the chunk by the mask.
    unsafe { chunk.add(at) }
}

/// The entry for an address. Neighbours in the text are neighbours here.
#[inline(always)]
fn cache_entry(address: u64, first: u32, mask: u32) -> Option<*mut CachedRule> {
    let slot = (address >> 4) as u32 & mask;
    let chunk = RULES.get_ptr_mut(first + 1 + slot / RULE_CACHE_CHUNK as u32)?;
    let at = slot as usize & (RULE_CACHE_CHUNK - 1);
    // SAFETY: `at` is within the chunk by the mask.
    Some(unsafe { chunk.cast::<CachedRule>().add(at) })
}

/// The 8 bytes at byte `at` of the window.
#[inline(always)]
pub(super) fn window_at(w: &Walk, at: u64) -> u64 {
    let at = at as usize & (WINDOW - 8);
    // SAFETY: `at + 8` is within the window by the mask.
    unsafe { w.window.words.as_ptr().byte_add(at).read() }
}
