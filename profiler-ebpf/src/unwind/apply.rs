//! Applying a rule: from a frame to its caller.

use aiprof_common::*;
use aya_ebpf::{
    bindings::pt_regs,
    helpers::{
        bpf_get_current_task_btf,
        generated::{bpf_probe_read_user, bpf_task_pt_regs},
    },
};
use core::{ffi::c_void, mem::offset_of};

use super::{FOUND, NO_STOP, WINDOW, Walk, cache::window_at, frame_at, go, read_kernel};
use crate::{maps::Scratch, pool::le_bit};

/// Value of rbp where it is not known. It is no stack address, so a frame that needs it ends
/// the walk.
pub(super) const RBP_UNKNOWN: u64 = 1;

/// Moves the walk to the caller by the current rule.
#[inline(never)]
pub(super) fn apply(scratch: *mut Scratch) -> u32 {
    // SAFETY: a checked map value.
    if unsafe { (*scratch).walk.rule.kind } == CFA_GO {
        return go::follow(scratch);
    }
    // SAFETY: as above.
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
        CFA_PLT => w
            .rsp
            .wrapping_add(8)
            .wrapping_add(8 * le_bit(offset, w.rip & 15)),
        CFA_DEREF_RBP | CFA_DEREF_RSP => {
            let from = if rule.kind == CFA_DEREF_RBP {
                w.rbp
            } else {
                w.rsp
            };
            let (offset, added) = rule.dereferenced();
            read_stack(w, from.wrapping_add(offset))?.wrapping_add(added)
        }
        CFA_SIGNAL => {
            // The kernel entered the handler with this address as its return address. It does
            // not follow a call.
            let at = (w.len as usize).wrapping_sub(1);
            if at > 0 {
                // SAFETY: in bounds by its mask.
                unsafe { *frame_at(&mut s.frames, at as u64) |= ADDR_EXACT };
            }
            return apply_signal(w, w.rsp.wrapping_add(offset));
        }
        kind if kind >= CFA_RETURN && w.len == 1 => w.rsp.wrapping_add(offset),
        kind if kind >= CFA_RETURN => return Err(STOP_UNSUPPORTED),
        kind if kind >= CFA_KEPT && w.len == 2 => {
            user_register(kind - CFA_KEPT).wrapping_add(offset)
        }
        kind if kind >= CFA_REG && w.len == 1 => {
            user_register(kind - CFA_REG & 15).wrapping_add(offset)
        }
        _ => return Err(STOP_UNSUPPORTED),
    };
    let in_register = rule.kind >= CFA_RETURN;
    // With the return address in a register, the frame may be empty.
    if cfa.wrapping_add(u64::from(in_register)) <= w.rsp {
        return Err(STOP_NO_PROGRESS);
    }
    let rbp_offset = i64::from(rule.rbp_off) as u64;
    match rule.rbp & !RBP_DERIVED {
        RBP_AT_CFA => w.rbp = read_stack(w, cfa.wrapping_add(rbp_offset))?,
        RBP_AT_RBP => w.rbp = read_stack(w, w.rbp.wrapping_add(rbp_offset))?,
        RBP_SAME => {}
        _ => w.rbp = RBP_UNKNOWN,
    }
    w.rip = if in_register {
        user_register(rule.kind - CFA_RETURN & 15)
    } else {
        read_stack(w, cfa.wrapping_sub(w.word))?
    };
    w.rsp = cfa;
    w.exact = 0;
    w.guessed = 0;
    match w.rip {
        0 if rule.rbp & RBP_DERIVED != 0 => Err(STOP_FRAME_POINTER),
        0 => Err(STOP_END),
        _ => Ok(()),
    }
}

/// A register of the innermost frame by its DWARF number. Read by a helper, as direct loads could be
/// made one with those of other memory, which the verifier refuses.
#[inline(always)]
pub(super) fn user_register(number: u8) -> u64 {
    let offset = match number {
        0 => offset_of!(pt_regs, rax),
        1 => offset_of!(pt_regs, rdx),
        2 => offset_of!(pt_regs, rcx),
        3 => offset_of!(pt_regs, rbx),
        4 => offset_of!(pt_regs, rsi),
        5 => offset_of!(pt_regs, rdi),
        6 => offset_of!(pt_regs, rbp),
        7 => offset_of!(pt_regs, rsp),
        8 => offset_of!(pt_regs, r8),
        9 => offset_of!(pt_regs, r9),
        10 => offset_of!(pt_regs, r10),
        11 => offset_of!(pt_regs, r11),
        12 => offset_of!(pt_regs, r12),
        13 => offset_of!(pt_regs, r13),
        14 => offset_of!(pt_regs, r14),
        _ => offset_of!(pt_regs, r15),
    };
    // SAFETY: helpers without preconditions.
    let regs = unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) };
    read_kernel(regs as u64, offset as u32)
}

/// Through a signal frame: the interrupted registers are in the `ucontext` at `uc` (struct
/// sigcontext_64: rbp at 40+80, rsp at 40+120, rip at 40+128).
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

/// The address on the user stack at `addr`.
#[inline(always)]
pub(super) fn read_stack(w: &mut Walk, addr: u64) -> Result<u64, u8> {
    if load_stack(w, addr) == FOUND {
        Ok(w.window.value)
    } else {
        Err(STOP_READ)
    }
}

/// Sets `value` to the address on the user stack at `addr`. [`FOUND`], or 0 if it cannot be
/// read.
#[inline(always)]
fn load_stack(w: *mut Walk, addr: u64) -> u32 {
    // SAFETY: part of a checked map value.
    let word = unsafe { (*w).word };
    let half = (8 - word) & addr;
    let found = load_word(w, addr.wrapping_sub(half));
    if word == 4 {
        // SAFETY: as above.
        let w = unsafe { &mut *w };
        w.window.value = w.window.value >> (8 * half & 63) & 0xffff_ffff;
    }
    found
}

/// The same of 8 bytes, through the window.
#[inline(never)]
fn load_word(w: *mut Walk, addr: u64) -> u32 {
    // SAFETY: part of a checked map value.
    let w = unsafe { &mut *w };
    let mut off = addr.wrapping_sub(w.window.base);
    if w.window.base == 0 || off > (WINDOW - 8) as u64 || off & 7 != 0 {
        // The other slots of the same frame are below the address.
        let base = if addr.wrapping_sub(w.rsp) < WINDOW as u64 / 2 {
            w.rsp
        } else {
            addr
        } & !7;
        // SAFETY: the destination is the window, of that size.
        let rc = unsafe {
            bpf_probe_read_user(
                w.window.words.as_mut_ptr().cast(),
                WINDOW as u32,
                base as *const c_void,
            )
        };
        off = addr.wrapping_sub(base);
        if rc != 0 || off > (WINDOW - 8) as u64 || off & 7 != 0 {
            w.window.base = 0;
            // SAFETY: the destination is 8 bytes of the scratch.
            let rc = unsafe {
                bpf_probe_read_user((&raw mut w.window.value).cast(), 8, addr as *const c_void)
            };
            return if rc == 0 { FOUND } else { 0 };
        }
        w.window.base = base;
    }
    w.window.value = window_at(w, off);
    FOUND
}
