//! Where a function saves a register of its caller.
//!
//! A caller may find its frame by such a register, as glibc's lazy binding does
//! (`_dl_runtime_resolve`, by rbx). That works only while the caller itself runs: the walker does
//! not follow the register. But the function that it has called has put it on the stack, at a place
//! that its first instructions show. Or it leaves the register alone, as the parts of OpenSSL's
//! ciphers do: then it is known as long as that function is the innermost one.

use super::machine::{MachineState, register};
use super::text::CodeText;
use aiprof_common::{CFA_DEREF_RSP, CFA_KEPT, CFA_REG, Rule};
use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, OpAccess, OpKind};

use crate::unwind::rule::dereference;

/// Most instructions before the one that saves the register.
const MAX_PROLOGUE: usize = 24;
/// Most instructions of a function that is to leave a register alone.
const MAX_BODY: usize = 1024;
/// Bytes of the return address.
const WORD: i32 = 8;

/// The rule behind a call in code with `rule`, whose CFA is in a register: the word at
/// the place where the called function, in `callee`, saves it.
pub(in crate::unwind) fn rule_behind_call(rule: Rule, callee: CodeText<'_>) -> Option<Rule> {
    let number = rule.kind.checked_sub(CFA_REG).filter(|&n| n < 16)?;
    let Some(slot) = saved_at(callee, number) else {
        return keeps(callee, number).then_some(Rule {
            kind: CFA_KEPT + number,
            ..rule
        });
    };
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
pub(in crate::unwind) fn direct_calls(text: CodeText<'_>) -> Vec<(u64, usize, u64)> {
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
fn saved_at(text: CodeText<'_>, number: u8) -> Option<i32> {
    let mut infos = InstructionInfoFactory::new();
    let mut machine = MachineState::at_entry();
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

/// Whether a function neither writes a register, by its DWARF number, nor runs code but
/// its own, which ends with the first `ret` that nothing jumps over.
fn keeps(text: CodeText<'_>, number: u8) -> bool {
    let mut infos = InstructionInfoFactory::new();
    let mut at = text.start();
    let mut furthest = at;
    for _ in 0..MAX_BODY {
        let Some(i) = text.decode(at) else {
            return false;
        };
        let writes = infos.info(&i).used_registers().iter().any(|used| {
            let reads = matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
            !reads && used.access() != OpAccess::None && register(used.register()) == Some(number)
        });
        if writes {
            return false;
        }
        match i.flow_control() {
            FlowControl::Next => {}
            FlowControl::Return if furthest <= at => return true,
            FlowControl::Return => {}
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
                if i.op0_kind() == OpKind::NearBranch64
                    && i.near_branch_target() >= text.start() =>
            {
                furthest = furthest.max(i.near_branch_target());
            }
            _ => return false,
        }
        at = i.next_ip();
    }
    false
}
