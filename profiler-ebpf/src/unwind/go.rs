//! Go's runtime: from the stack on which it makes calls to the stack that it came from.
//!
//! The way there is in the memory of the thread: its goroutine, that goroutine's thread
//! structure, and the goroutine that this thread runs. Everything that can be checked is
//! checked: two ways must lead to the same place.

use aiprof_common::*;
use aya_ebpf::helpers::{bpf_get_current_task_btf, generated::bpf_probe_read_user};
use core::ffi::c_void;

use super::{
    NO_STOP, Walk,
    apply::{RBP_UNKNOWN, user_register},
    read_kernel,
    tables::page_address,
};
use crate::{maps::Scratch, setting};

/// The stack pointer's DWARF number.
const RSP: u8 = 7;

/// Moves the walk to the caller by a [`CFA_GO`] rule.
#[inline(never)]
pub(super) fn follow(scratch: *mut Scratch) -> u32 {
    // SAFETY: a checked map value.
    let w = unsafe { &mut (*scratch).walk };
    match try_follow(w) {
        Ok(()) => NO_STOP,
        Err(stop) => stop.into(),
    }
}

#[inline(always)]
fn try_follow(w: &mut Walk) -> Result<(), u8> {
    let rule = w.rule;
    let what = rule.rbp & !GO_PAGE_FLAGS;
    // Before the walk moves on.
    let page = page_address(w);
    w.exact = u32::from(what == GO_INJECTED);
    w.guessed = 0;
    w.rbp = RBP_UNKNOWN;
    let cfa = match what {
        GO_INJECTED => w.rsp.wrapping_add(i64::from(rule.cfa_off) as u64),
        GO_CALLS_C => to_caller_of_c(w)?,
        GO_RESUMES => {
            let kept = thread_word(w, page)?;
            w.rsp = read_word(kept)?;
            w.rip = read_word(kept.wrapping_add(8))?;
            return Ok(());
        }
        GO_RETURNS | GO_CALLBACK => to_own_stack(w, what == GO_CALLBACK, page)?,
        _ => return Err(STOP_UNSUPPORTED),
    };
    w.rip = read_word(cfa.wrapping_sub(8))?;
    w.rsp = cfa;
    Ok(())
}

/// Number `index` of the rule (`a` to `d`), in bytes.
#[inline(always)]
fn step(rule: Rule, index: u32) -> u64 {
    u64::from(rule.cfa_off as u32 >> (8 * index) & 0xff) * 8
}

#[inline(always)]
fn to_caller_of_c(w: &Walk) -> Result<u64, u8> {
    let goroutine = read_word(w.rsp.wrapping_add(step(w.rule, 0)))?;
    let depth = read_word(w.rsp.wrapping_add(step(w.rule, 1)))?;
    let end = read_word(goroutine.wrapping_add(step(w.rule, 2)))?;
    Ok(end.wrapping_sub(depth).wrapping_add(step(w.rule, 3)))
}

/// The CFA on the stack from which the function came.
#[inline(always)]
fn to_own_stack(w: &mut Walk, is_callback: bool, page: u64) -> Result<u64, u8> {
    let sp = if is_callback && w.go.sp != 0 {
        read_word(w.go.sp)?
    } else {
        let has_step = step(w.rule, 2) != u64::from(GO_NO_STEP) * 8;
        let used = if has_step { 2 } else { 1 };
        if !is_callback && w.go.used & used != 0 {
            return Err(STOP_NO_PROGRESS);
        }
        if !is_callback {
            w.go.used |= used;
        }
        let word = thread_word(w, page)?;
        let sp = if has_step { read_word(word)? } else { word };
        // The thread is in this very function and has not left the stack yet. The value belongs
        // to the call inside of the one that is searched for.
        if is_callback && sp == user_register(RSP) {
            read_word(sp)?
        } else {
            sp
        }
    };
    if is_callback {
        w.go.sp = sp;
    }
    Ok(sp.wrapping_add(step(w.rule, 3)))
}

/// The offset of the thread's goroutine from its fs base. `page`: the address of the rule's page.
#[inline(always)]
fn goroutine_offset(rule: Rule, page: u64) -> Result<u64, u8> {
    let pages = u64::from(rule.rbp / GO_PAGE_BEFORE);
    if pages == 0 {
        return Ok(i64::from(rule.rbp_off) as u64);
    }
    let page = page.wrapping_add(pages << PAGE_SHIFT);
    let by = page
        .wrapping_sub(2 << PAGE_SHIFT)
        .wrapping_add(u64::from(rule.rbp_off as u16));
    // 4 bytes are enough of these 8: the word is not at distance 0.
    let distance = i64::from(read_word(by)? as u32 as i32) as u64;
    read_word(by.wrapping_add(4).wrapping_add(distance))
}

/// The address of a word of `x` (see [`GO_RETURNS`]); `x` itself if the rule has no such step.
#[inline(always)]
fn thread_word(w: &Walk, page: u64) -> Result<u64, u8> {
    // SAFETY: always valid in a tracing program.
    let task = unsafe { bpf_get_current_task_btf() } as u64;
    let base = read_kernel(task, setting!(task_fsbase));
    let to_thread = step(w.rule, 0);
    let goroutine = read_word(base.wrapping_add(goroutine_offset(w.rule, page)?))?;
    let thread = read_word(goroutine.wrapping_add(to_thread))?;
    let found = read_word(thread.wrapping_add(step(w.rule, 1)))?;
    let last = step(w.rule, 2);
    if last == u64::from(GO_NO_STEP) * 8 {
        return Ok(found);
    }
    // `x` is a goroutine, whose thread must be this one.
    if read_word(found.wrapping_add(to_thread))? != thread {
        return Err(STOP_READ);
    }
    Ok(found.wrapping_add(last))
}

/// The 8 bytes of user memory at an address. Zero is an error, because it leads nowhere.
#[inline(always)]
fn read_word(address: u64) -> Result<u64, u8> {
    let mut value = 0u64;
    // SAFETY: the destination is 8 bytes on the stack; a bad source is an error.
    let rc = unsafe { bpf_probe_read_user((&raw mut value).cast(), 8, address as *const c_void) };
    if rc == 0 && value != 0 {
        Ok(value)
    } else {
        Err(STOP_READ)
    }
}
