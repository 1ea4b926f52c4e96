//! Where a function saves a register of its caller.
//!
//! A caller that finds its frame by such a register, as glibc's lazy binding does
//! (`_dl_runtime_resolve`, by rbx), is found by it only while it runs itself: the
//! walker does not follow it. But the function that it has called has put it on the
//! stack, at a place that its first instructions tell.

use super::explore::Text;
use super::machine::{Machine, register};
use aiprof_common::{CFA_DEREF_RSP, CFA_REG, Rule};
use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, OpKind};

use crate::unwind::rule::dereference;

/// Most instructions before the one that saves the register.
const MAX_PROLOGUE: usize = 24;
/// Bytes of the return address.
const WORD: i32 = 8;

/// The rule behind a call in code with `rule`, whose CFA is in a register: the word at
/// the place where the called function, in `callee`, saves it.
pub(in crate::unwind) fn rule_behind_call(rule: Rule, callee: Text<'_>) -> Option<Rule> {
    let number = rule.kind.checked_sub(CFA_REG)?;
    let slot = saved_at(callee, number)?;
    // The callee was entered with the stack pointer a return address lower.
    let offset = slot.checked_sub(WORD)?;
    Some(Rule {
        kind: CFA_DEREF_RSP,
        cfa_off: dereference(offset.into(), rule.cfa_off.into())?,
        ..rule
    })
}

/// The direct calls in some text: the address behind each, its length, and where it
/// leads.
pub(in crate::unwind) fn direct_calls(text: Text<'_>) -> Vec<(u64, usize, u64)> {
    let mut calls = Vec::new();
    let mut at = text.start();
    while let Some(i) = text.decode(at) {
        if i.flow_control() == FlowControl::Call && i.op0_kind() == OpKind::NearBranch64 {
            calls.push((i.next_ip(), i.len(), i.near_branch_target()));
        }
        at = i.next_ip();
    }
    calls
}

/// Where a function pushes a register, by its DWARF number: bytes from the stack
/// pointer at its entry.
fn saved_at(text: Text<'_>, number: u8) -> Option<i32> {
    let mut infos = InstructionInfoFactory::new();
    let mut machine = Machine::at_entry();
    let mut at = text.start();
    for _ in 0..MAX_PROLOGUE {
        let i: Instruction = text.decode(at)?;
        if i.flow_control() != FlowControl::Next {
            return None;
        }
        machine.step(&i, &mut infos);
        let pushed = i.mnemonic() == iced_x86::Mnemonic::Push
            && i.op0_kind() == OpKind::Register
            && register(i.op0_register()) == Some(number);
        if pushed {
            return machine.stack();
        }
        at = i.next_ip();
    }
    None
}
