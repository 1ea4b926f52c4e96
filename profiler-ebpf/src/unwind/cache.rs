//! The rule cache: most frames need no search at all.

use aiprof_common::*;

use super::{WINDOW, Walk, frame_at};
use crate::maps::{RULES, Scratch};

/// Frames that one look at the rule cache walks at most.
const CACHED_FRAMES: u32 = 16;

/// Walks as many frames as the rule cache knows and the window holds, up to
/// [`CACHED_FRAMES`]: the usual case, in few instructions. Stops, without an
/// opinion, at the first frame that needs more.
#[inline(never)]
pub(super) fn walk_cached(scratch: *mut Scratch) -> u32 {
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    let w = &mut s.walk;
    let (mut rip, mut rsp, mut rbp) = (w.rip, w.rsp, w.rbp);
    let mut len = w.len;
    let owner = w.list_owner;
    let base = w.window_base;
    let (first, mask) = (w.cache_first, w.cache_mask);
    let mut moved = 0;
    for _ in 0..CACHED_FRAMES {
        let Some(entry) = cache_entry(rip, first, mask) else {
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

/// Remembers the rule just found for a return address, if it is of the common
/// kinds that the cache holds.
#[inline(always)]
pub(super) fn cache_rule(s: &mut Scratch) {
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
    if let Some(entry) = cache_entry(w.rip, w.cache_first, w.cache_mask) {
        let key = cache_key(w.rip, w.list_owner);
        // SAFETY: an entry of a checked per-CPU map value, in the walk's own part.
        unsafe { *entry = CachedRule { key, rule: packed } };
    }
}

/// The key of a return address in the cache.
#[inline(always)]
fn cache_key(address: u64, owner: u32) -> u64 {
    address ^ u64::from(owner) << 48
}

/// The entry of an address: neighbours in the text are neighbours here.
#[inline(always)]
fn cache_entry(address: u64, first: u32, mask: u32) -> Option<*mut CachedRule> {
    let slot = (address >> 4) as u32 & mask;
    let chunk = RULES.get_ptr_mut(first + slot / RULE_CACHE_CHUNK as u32)?;
    let at = slot as usize & (RULE_CACHE_CHUNK - 1);
    // SAFETY: `at` is within the chunk by the mask.
    Some(unsafe { chunk.cast::<CachedRule>().add(at) })
}

/// The 8 bytes at byte `at` of the window.
#[inline(always)]
pub(super) fn window_at(w: &Walk, at: u64) -> u64 {
    let at = at as usize & (WINDOW - 8);
    // SAFETY: `at + 8` is within the window by the mask.
    unsafe { w.window.as_ptr().byte_add(at).read() }
}
