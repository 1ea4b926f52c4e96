//! From a frame without a rule to its caller.
//!
//! If the current function is a caller, its code and the frame pointer lead to its own caller.
//! If it was interrupted, they may not: it may not have made its frame yet, or may have none.
//! Its caller is then a guess and marked as one ([`ADDR_GUESSED`]), unless the code before it
//! shows that it has made a frame. A caller is accepted only if a call before the return
//! address can have led here.

use aiprof_common::*;
use aya_ebpf::helpers::generated::{bpf_loop, bpf_probe_read_user};
use core::ffi::c_void;

use super::{
    BY_FRAME_POINTER, BY_GENERATED, GO_ON, NO_STOP, STOP, Walk, apply::read_stack, mark_last,
};
use crate::maps::Scratch;

/// Most bytes from a function's first instruction to one that it runs.
const FUNCTION_REACH: u64 = 1 << 16;

/// Words of code before an instruction that are searched for the place where its function makes
/// its frame.
const FRAME_WORDS: u32 = 128;

/// Most registers that a function saves, with a word that fills up.
const MAX_PUSHES: u32 = 7;

/// Results of [`call_before`]: no call that can have led to the address; a call whose target
/// may have jumped to it; a call to a place shortly before it.
pub(super) const NO_CALL: u32 = 0;
const SOME_CALL: u32 = 1;
const NEAR_CALL: u32 = 2;

/// Moves the walk to the caller from code without a rule.
#[inline(never)]
pub(super) fn guess(scratch: *mut Scratch) -> u32 {
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    let interrupted = s.walk.exact != 0;
    let found = if interrupted {
        from_interrupted(&mut s.walk)
    } else {
        from_caller(&mut s.walk)
    };
    match found {
        Ok(sure) => {
            if interrupted && !sure {
                mark_last(s, ADDR_GUESSED);
            }
            NO_STOP
        }
        Err(stop) => stop.into(),
    }
}

/// Decides whether to accept a step that the rule of generated code made from `rip`. The code
/// may have changed since it was read. The step is accepted only if a call before the new
/// address can have led to `rip`.
#[inline(never)]
pub(super) fn confirm(scratch: *mut Scratch, rip: u64) -> u32 {
    // SAFETY: a checked map value.
    let w = unsafe { &mut (*scratch).walk };
    if call_before(w.rip, rip, w.map.start, w.map.end) == NO_CALL {
        return STOP_FRAME_POINTER.into();
    }
    w.guessed = BY_GENERATED;
    NO_STOP
}

/// Steps from a return address. `add $N, %rsp; ret` (48 83 c4 NN c3), as in CPython's
/// trampolines, contains the distance to the caller's frame.
#[inline(always)]
fn from_caller(w: &mut Walk) -> Result<bool, u8> {
    let code = code_at(w.rip);
    if code & 0xff_00ff_ffff == 0xc3_00c4_8348 {
        let address = w.rsp.wrapping_add(code >> 24 & 0x7f);
        let caller = read_stack(w, address)?;
        go_to(w, caller, address, BY_GENERATED);
        return Ok(true);
    }
    by_frame_pointer(w)
}

/// Steps from an interrupted instruction. Returns whether the caller is certain.
///
/// At `ret` (c3, c2) the return address is on top of the stack. It is probably there too at a
/// function's first instruction, usually `push %rbp` (55) or `endbr64` (f3 0f 1e fa). The same
/// is true of functions that never make a frame. At `mov %rsp, %rbp` (48 89 e5, 48 8b ec) after
/// the push, it is one word above.
#[inline(always)]
fn from_interrupted(w: &mut Walk) -> Result<bool, u8> {
    let code = code_at(w.rip);
    let first = code & 0xff;
    let returns = first == 0xc3 || first == 0xc2;
    let begins = first == 0x55 || code as u32 == 0xfa1e_0ff3;
    let mut moves = code;
    if w.word == 4 {
        // Without the prefix for 64 bits.
        moves = moves << 8 | 0x48;
    }
    let pushed = moves & 0xff_ffff == 0xe5_8948 || moves & 0xff_ffff == 0xec_8b48;
    let at = if pushed {
        w.rsp.wrapping_add(w.word)
    } else {
        w.rsp
    };
    let address = read_stack(w, at)?;
    let call = call_before(address, w.rip, w.map.start, w.map.end);
    if returns || call == NEAR_CALL || call == SOME_CALL && (begins || pushed) {
        if pushed {
            w.rbp = read_stack(w, w.rsp)?;
        }
        go_to(w, address, at, BY_GENERATED);
        return Ok(returns);
    }
    let rip = w.rip;
    match by_frame_pointer(w) {
        Err(STOP_FRAME_POINTER) if call == SOME_CALL => {
            go_to(w, address, at, BY_GENERATED);
            Ok(false)
        }
        other => other.map(|_| has_frame(rip) != 0),
    }
}

/// A backward search in code.
struct Search {
    /// The end of the code.
    end: u64,
    /// The 8 bytes after those being searched.
    behind: u64,
    /// The instruction that sets rbp; 0: none was found.
    found: u64,
}

/// Whether the function that runs `rip` has made its frame. It has if the instructions that do
/// so are shortly before, with no return instruction between. A return instruction is
/// recognized by its first byte and by the byte before it, which can also be within another
/// instruction.
#[inline(never)]
fn has_frame(rip: u64) -> u32 {
    let mut search = Search {
        end: rip,
        behind: 0,
        found: 0,
    };
    // SAFETY: the callback has bpf_loop's signature; the context lives on this frame's
    // stack for the whole call.
    unsafe {
        bpf_loop(
            FRAME_WORDS,
            find_frame as *mut c_void,
            (&raw mut search).cast(),
            0,
        );
    }
    let code = code_at(search.found);
    let n = match code as u32 {
        LEA_NEAR => code >> 32 & 0xff,
        LEA_FAR => code >> 32,
        _ => 0,
    };
    if search.found == 0 {
        return 0;
    }
    has_pushed(search.found, n)
}

/// `lea n(%rsp), %rbp`, with one byte for `n` and with four.
const LEA_NEAR: u32 = 0x246c_8d48;
const LEA_FAR: u32 = 0x24ac_8d48;

/// Whether a byte before c3 shows that c3 names registers and is no `ret`. It is an opcode then:
/// `mov` (8b, 89), `test` (85), `cmp` (3b, 39), `add` (03, 01), `sub` (2b, 29), `xor` (33, 31).
#[inline(always)]
fn takes_registers(before: u8) -> bool {
    matches!(
        before,
        0x8b | 0x89 | 0x85 | 0x3b | 0x39 | 0x03 | 0x01 | 0x2b | 0x29 | 0x33 | 0x31
    )
}

/// Whether `push %rbp` (55) comes before `at`, and what is between has moved the stack pointer by
/// `n` bytes. At `at` is `lea n(%rsp), %rbp` or `mov %rsp, %rbp`.
///
/// Between can be, as in .NET's code, pushes of r15 to r12 (41 57 to 41 54), rbx (53) and rax (50).
/// There can also be `sub $m, %rsp` (48 83 ec, 48 81 ec) and `vzeroupper` (c5 f8 77).
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn has_pushed(at: u64, n: u64) -> u32 {
    let mut at = at;
    if code_at(at.wrapping_sub(8)) >> 40 == 0x77_f8c5 {
        at = at.wrapping_sub(3);
    }
    let mut left = n;
    let code = code_at(at.wrapping_sub(8));
    if code >> 32 & 0xff_ffff == 0xec_8348 {
        left = left.wrapping_sub(code >> 56);
        at = at.wrapping_sub(4);
    } else if code >> 8 & 0xff_ffff == 0xec_8148 {
        left = left.wrapping_sub(code >> 32);
        at = at.wrapping_sub(7);
    }
    if code_at(at.wrapping_sub(8)) >> 40 == 0x77_f8c5 {
        at = at.wrapping_sub(3);
    }
    for _ in 0..MAX_PUSHES {
        let two = code_at(at.wrapping_sub(8)) >> 48;
        if left == 0 {
            return u32::from(two >> 8 == 0x55);
        }
        left = left.wrapping_sub(8);
        at = if two & 0xfcff == 0x5441 {
            at.wrapping_sub(2)
        } else if two >> 8 == 0x53 || two >> 8 == 0x50 {
            at.wrapping_sub(1)
        } else {
            return 0;
        };
    }
    0
}

/// `bpf_loop` callback: searches 8 bytes for `mov %rsp, %rbp` (48 89 e5, 48 8b ec; in programs of
/// 32 bits 89 e5, 8b ec behind a push, 55), `lea n(%rsp), %rbp` and `ret` (c3).
extern "C" fn find_frame(index: u64, search: *mut Search) -> i64 {
    // SAFETY: the context is has_frame's.
    let search = unsafe { &mut *search };
    let from = search.end.wrapping_sub(8 * (index + 1));
    let mut word = code_at(from);
    let is_first = word == 0;
    if is_first {
        // The code may begin within these bytes: takes only those on the next page.
        let page = from.wrapping_add(7) & !4095;
        word = code_at(page) << (page.wrapping_sub(from) << 3 & 63);
    }
    for at in (0..8).rev() {
        let mut four = (word >> (8 * at)) as u32;
        if at > 4 {
            four |= (search.behind << (64 - 8 * at)) as u32;
        }
        if four as u8 == 0xc3 {
            let before = match at {
                0 => code_at(from.wrapping_sub(8)) >> 56,
                _ => word >> (8 * (at - 1)),
            };
            if !takes_registers(before as u8) {
                return STOP;
            }
        }
        let three = four & 0xff_ffff;
        if three == 0xe5_8948 || three == 0xec_8b48 || four == LEA_NEAR || four == LEA_FAR {
            search.found = from.wrapping_add(at);
            return STOP;
        }
        if three == 0xe5_8955 || three == 0xec_8b55 {
            search.found = from.wrapping_add(at + 1);
            return STOP;
        }
    }
    search.behind = word;
    if is_first { STOP } else { GO_ON }
}

/// One step along the frame pointer chain: rbp -> {caller's rbp, return address}. Zero is the
/// chain's end only after such a step; elsewhere code may use rbp for other things.
#[inline(always)]
fn by_frame_pointer(w: &mut Walk) -> Result<bool, u8> {
    let frame = w.rbp;
    if frame == 0 && w.guessed == BY_FRAME_POINTER {
        return Err(STOP_END);
    }
    if frame < w.rsp || frame & (w.word - 1) != 0 {
        return Err(STOP_FRAME_POINTER);
    }
    let caller = read_stack(w, frame).map_err(|_| STOP_FRAME_POINTER)?;
    let at = frame.wrapping_add(w.word);
    let address = read_stack(w, at).map_err(|_| STOP_FRAME_POINTER)?;
    if address == 0 && w.guessed == BY_FRAME_POINTER {
        return Err(STOP_END);
    }
    if call_before(address, w.rip, w.map.start, w.map.end) == NO_CALL {
        // The outermost frame: its function returns to an address that no call has pushed.
        let is_last = caller == 0 && w.guessed != 0;
        return Err(if is_last {
            STOP_END
        } else {
            STOP_FRAME_POINTER
        });
    }
    w.rbp = caller;
    go_to(w, address, at, BY_FRAME_POINTER);
    Ok(true)
}

/// Makes the frame of a return address the current one.
#[inline(always)]
fn go_to(w: &mut Walk, address: u64, at: u64, by: u32) {
    w.rip = address;
    w.rsp = at.wrapping_add(w.word);
    w.exact = 0;
    w.guessed = by;
}

/// The 8 bytes of code at an address; 0 if they cannot be read.
#[inline(always)]
fn code_at(address: u64) -> u64 {
    let mut code = 0u64;
    // SAFETY: the destination is 8 bytes on the stack; a bad source is an error.
    if unsafe { bpf_probe_read_user((&raw mut code).cast(), 8, address as *const c_void) } != 0 {
        return 0;
    }
    code
}

/// Whether the code at an address is only a jump (e9, ff 25), as where .NET's methods are called.
#[inline(always)]
fn jumps(address: u64) -> bool {
    let code = code_at(address);
    code & 0xff == 0xe9 || code & 0xffff == 0x25ff
}

/// Whether the code before `address` can be read and ends in no call.
#[inline(never)]
pub(super) fn follows_no_call(address: u64) -> bool {
    let code = code_at(address.wrapping_sub(8));
    code != 0 && !may_be_probed(code) && call_among(address, address, 0, 0) == NO_CALL
}

/// Whether 8 bytes of code may end in a call whose first byte a probe or a debugger has replaced
/// (int3, cc). Where the last byte is one too, they fill the space between functions.
#[inline(always)]
fn may_be_probed(code: u64) -> bool {
    let is_int3 = |from_end: u64| code >> (64 - 8 * from_end) & 0xff == 0xcc;
    !is_int3(1)
        && (is_int3(2) || is_int3(3) || is_int3(4) || is_int3(5) || is_int3(6) || is_int3(7))
}

/// Whether a call through a register or memory (ff /2) precedes `address`.
#[inline(always)]
pub(super) fn is_call_by_pointer(address: u64) -> bool {
    calls_by_pointer(code_at(address.wrapping_sub(8)))
}

/// The same of the 8 bytes of code before it.
#[inline(always)]
fn calls_by_pointer(code: u64) -> bool {
    // The opcode and the byte that names the register or memory, by their distance from the
    // end.
    let two = code >> 48;
    let three = code >> 40 & 0xffff;
    let four = code >> 32 & 0xffff;
    let six = code >> 16 & 0xffff;
    let seven = code >> 8 & 0xffff;
    two & 0xf8ff == 0xd0ff
        || two & 0xf8ff == 0x10ff
        || three & 0xf8ff == 0x50ff
        || three == 0x14ff
        || four == 0x54ff
        || six & 0xf8ff == 0x90ff
        || six == 0x15ff
        || seven == 0x94ff
        || seven == 0x14ff
}

/// Whether a call before `address` can have led to `rip`, which is in the mapping from `start`
/// to `end`. Two forms of calls can (Intel SDM, "CALL"):
///
/// * `call` to an address (e8) shortly before `rip`, or to one outside of the mapping or with a
///   jump, from where a jump leads here;
/// * a call through a register or memory (ff /2).
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn call_before(address: u64, rip: u64, start: u64, end: u64) -> u32 {
    call_among(address, rip, start, end)
}

/// The same, for functions that the verifier does not let call one more.
#[inline(always)]
pub(super) fn call_among(address: u64, rip: u64, start: u64, end: u64) -> u32 {
    let code = code_at(address.wrapping_sub(8));
    if code >> 24 & 0xff == 0xe8 {
        let target = address.wrapping_add((code >> 32) as i32 as i64 as u64);
        if rip.wrapping_sub(target) < FUNCTION_REACH {
            return NEAR_CALL;
        }
        if target < start || target >= end || jumps(target) {
            return SOME_CALL;
        }
    }
    match calls_by_pointer(code) {
        true => SOME_CALL,
        false => NO_CALL,
    }
}
