//! From DWARF's rules at one address to the unwinder's [`Rule`].

use super::cfi::{Cfa, RBP, RSP, RuleState, Saved};
use aiprof_common::{
    CFA_DEREF_RBP, CFA_DEREF_RSP, CFA_END, CFA_LATER, CFA_NONE, CFA_PLT, CFA_RBP, CFA_REG,
    CFA_RETURN, CFA_RSP, CFA_SIGNAL, CFA_UNSUPPORTED, DEREF_OFFSET_MASK, RBP_AT_CFA, RBP_AT_RBP,
    RBP_DERIVED, RBP_SAME, RBP_UNDEFINED, Rule,
};

/// Text without unwind data.
pub(super) const NONE: Rule = plain(CFA_NONE);
/// The same, to be read later.
pub(super) const LATER: Rule = plain(CFA_LATER);
/// The outermost frame.
pub(super) const END: Rule = plain(CFA_END);
/// Rules that the unwinder does not implement.
pub(super) const UNSUPPORTED: Rule = plain(CFA_UNSUPPORTED);

/// Marks a rule as one that instructions gave.
pub(super) fn derived(rule: Rule) -> Rule {
    let leads_on = !matches!(rule.kind, CFA_NONE | CFA_END | CFA_LATER | CFA_UNSUPPORTED);
    Rule {
        rbp: rule.rbp | if leads_on { RBP_DERIVED } else { 0 },
        ..rule
    }
}

/// General registers have the DWARF numbers below this.
const REGISTERS: u64 = 16;

/// Offsets of saved registers in the kernel's `ucontext`: `uc_mcontext` is at
/// 40, in it rbp at 80, rsp at 120 and rip at 128
/// (linux/arch/x86/include/uapi/asm/{ucontext,sigcontext}.h).
const UC_RBP: i64 = 120;
const UC_RSP: i64 = 160;
const UC_RIP: i64 = 168;

/// A rule without offsets.
const fn plain(kind: u8) -> Rule {
    Rule {
        cfa_off: 0,
        rbp_off: 0,
        kind,
        rbp: RBP_SAME,
    }
}

/// The rule for a state; `signal`: the CIE marks a signal trampoline.
pub(super) fn rule_of(state: &RuleState, signal: bool) -> Rule {
    if state.return_address == Saved::Undefined {
        return END;
    }
    let rule = if signal {
        signal_rule(state)
    } else {
        frame_rule(state)
    };
    rule.unwrap_or(UNSUPPORTED)
}

/// The frame of a function that has taken its return address off the stack, as glibc's `vfork`.
fn register_rule(state: &RuleState) -> Option<Rule> {
    let (
        Saved::In(register),
        Cfa::Register {
            register: RSP,
            offset,
        },
    ) = (state.return_address, state.cfa)
    else {
        return None;
    };
    let (rbp, rbp_off) = saved_rbp(state);
    let known = register < REGISTERS && matches!(state.rsp, Saved::Unspecified);
    known.then_some(Rule {
        cfa_off: i32::try_from(offset).ok()?,
        rbp_off,
        kind: CFA_RETURN + u8::try_from(register).ok()?,
        rbp,
    })
}

/// The same rules with the caller's stack pointer as CFA. GHC's `StgRun` gives it by an expression:
/// its CFA is its own stack pointer.
fn from_callers_stack(state: RuleState) -> Option<RuleState> {
    let (
        Saved::Value {
            register: RSP,
            offset,
        },
        Cfa::Register {
            register: RSP,
            offset: old,
        },
    ) = (state.rsp, state.cfa)
    else {
        return Some(state);
    };
    let moved = |saved| match saved {
        Saved::AtCfa(at) => Some(Saved::AtCfa(at.checked_add(old)?.checked_sub(offset)?)),
        other => Some(other),
    };
    Some(RuleState {
        cfa: Cfa::Register {
            register: RSP,
            offset,
        },
        rsp: Saved::Unspecified,
        rbp: moved(state.rbp)?,
        return_address: moved(state.return_address)?,
        ..state
    })
}

/// An ordinary frame: the return address is at CFA - 8 and the caller's rsp is
/// the CFA.
fn frame_rule(state: &RuleState) -> Option<Rule> {
    let state = &from_callers_stack(*state)?;
    if matches!(state.return_address, Saved::In(_)) {
        return register_rule(state);
    }
    if offset_from_cfa(state.cfa, state.return_address) != Some(-8) {
        return None;
    }
    if !matches!(state.rsp, Saved::Unspecified | Saved::CfaPlus(0)) {
        return None;
    }
    let (kind, offset) = match state.cfa {
        Cfa::Register {
            register: RSP,
            offset,
        } => (CFA_RSP, offset),
        Cfa::Register {
            register: RBP,
            offset,
        } => (CFA_RBP, offset),
        Cfa::Register { register, offset } if register < REGISTERS => {
            (CFA_REG + u8::try_from(register).ok()?, offset)
        }
        Cfa::Deref {
            register: RSP,
            offset,
            add,
        } => (CFA_DEREF_RSP, dereference(offset, add)?.into()),
        Cfa::Deref {
            register: RBP,
            offset,
            add,
        } => (CFA_DEREF_RBP, dereference(offset, add)?.into()),
        Cfa::Plt { threshold } => (CFA_PLT, i64::from(threshold)),
        _ => return None,
    };
    let (rbp, rbp_off) = saved_rbp(state);
    Some(Rule {
        cfa_off: i32::try_from(offset).ok()?,
        rbp_off,
        kind,
        rbp,
    })
}

/// The `cfa_off` of a CFA that is in memory at a register plus `offset`, plus `add`.
pub(super) fn dereference(offset: i64, add: i64) -> Option<i32> {
    let words = u8::try_from(add / 8).ok().filter(|_| add % 8 == 0)?;
    let offset = i32::try_from(offset).ok()?;
    let fits = offset << 8 >> 8 == offset;
    let low = offset & DEREF_OFFSET_MASK;
    fits.then_some(low | i32::from_le_bytes([0, 0, 0, words]))
}

/// Kind and offset for the caller's rbp. Without a rule it is unchanged: rbp is
/// callee-saved (x86-64 psABI, section 3.2.1).
fn saved_rbp(state: &RuleState) -> (u8, i16) {
    if matches!(state.rbp, Saved::Unspecified | Saved::Same) {
        return (RBP_SAME, 0);
    }
    let (kind, offset) = match (offset_from_cfa(state.cfa, state.rbp), state.rbp) {
        (Some(offset), _) => (RBP_AT_CFA, offset),
        (
            None,
            Saved::At {
                register: RBP,
                offset,
            },
        ) => (RBP_AT_RBP, offset),
        _ => return (RBP_UNDEFINED, 0),
    };
    i16::try_from(offset).map_or((RBP_UNDEFINED, 0), |offset| (kind, offset))
}

/// Offset from the CFA of where a register is saved, if that is constant.
fn offset_from_cfa(cfa: Cfa, saved: Saved) -> Option<i64> {
    match (saved, cfa) {
        (Saved::AtCfa(offset), _) => Some(offset),
        (
            Saved::At { register, offset },
            Cfa::Register {
                register: base,
                offset: cfa_off,
            },
        ) if register == base => offset.checked_sub(cfa_off),
        _ => None,
    }
}

/// The trampoline that a signal handler returns to: all registers are in the
/// `ucontext` that the kernel left on the stack, which the rules must confirm.
fn signal_rule(state: &RuleState) -> Option<Rule> {
    let Cfa::Deref {
        register: RSP,
        offset,
        add: 0,
    } = state.cfa
    else {
        return None;
    };
    let context = offset.checked_sub(UC_RSP)?;
    let at = |field: i64| Saved::At {
        register: RSP,
        offset: context.wrapping_add(field),
    };
    let confirmed = state.return_address == at(UC_RIP)
        && state.rbp == at(UC_RBP)
        && (state.rsp == at(UC_RSP) || state.rsp == Saved::Unspecified);
    let cfa_off = i32::try_from(context).ok()?;
    confirmed.then_some(Rule {
        cfa_off,
        ..plain(CFA_SIGNAL)
    })
}
