//! The rules of one function.

use super::super::rule::{END, UNSUPPORTED};
use super::switches::{ThreadFrame, switches};
use super::{GoCode, GoUnwind, Ruled, frame};
use crate::elf::ReadAt;
use crate::go::GoReader;
use aiprof_common::{CFA_GO, CFA_RSP, CFA_SIGNAL, GO_INJECTED, RBP_SAME, Rule};
use iced_x86::{Decoder, DecoderOptions, FlowControl, OpKind, Register};
use std::io;
use std::ops::Range;

/// Functions among which `systemstack` is looked for: the runtime comes before what uses
/// it.
const MAX_SOUGHT: u32 = 1 << 15;

/// What reading a function's instructions costs, in changes of values, and reading which
/// functions it calls.
const CODE_COST: u64 = 1 << 14;
const CALLEES_COST: u64 = 1 << 18;

/// How to treat a function.
pub(super) enum FunctionRole {
    /// These are its rules.
    Described(Vec<Ruled>),
    /// Its instructions give its rules, and where they do not, these are.
    ByCode(Vec<Ruled>),
    /// It is none of Go's, though linked by Go.
    Foreign,
    /// Its record contradicts the format.
    Malformed,
}

/// Functions that change stacks; older tables do not mark them.
const SWITCHES: [&str; 9] = [
    "runtime.systemstack",
    "runtime.asmcgocall",
    "runtime.cgocallback",
    "runtime.mcall",
    "runtime.morestack",
    "runtime.gogo",
    "runtime.nanotime1",
    "runtime.walltime",
    "time.now",
];

/// Functions that the runtime has a signal's handler push a call of: what they return to
/// was interrupted, and did not call.
const INJECTED: [&str; 3] = [
    "runtime.sigpanic",
    "runtime.sigpanic0",
    "runtime.asyncPreempt",
];

/// What `newstack` calls and never returns from: they give the goroutine up, and what
/// runs then on the same stack has nothing to do with it.
const GIVE_UP: [&str; 3] = [
    "runtime.gopreempt_m",
    "runtime.goschedImpl",
    "runtime.preemptPark",
];

/// `mov $15, %rax; syscall`: `rt_sigreturn`, in two encodings.
const SIGRETURN: [&[u8]; 2] = [
    &[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05],
    &[0xb8, 15, 0, 0, 0, 0x0f, 0x05],
];

/// The rules of a function.
pub(super) fn rules_of<R: ReadAt>(place: &mut GoCode<'_, '_, R>) -> io::Result<FunctionRole> {
    let function = place.function;
    let name = place.reader.name(&function)?;
    let name = name.strip_suffix(".abi0").unwrap_or(&name);
    let code = function.start..function.end;
    if name.starts_with("runtime.sigreturn")
        && let Some(rules) = signal_return(place)?
    {
        return Ok(FunctionRole::Described(rules));
    }
    // What it returns to is there without a call.
    if function.is_top() && name == "runtime.goexit" {
        return Ok(FunctionRole::Described(vec![(code, END)]));
    }
    if function.pcsp == 0 {
        return Ok(FunctionRole::Foreign);
    }
    let Some(depths) = place.reader.values(&function, function.pcsp)? else {
        return Ok(FunctionRole::Malformed);
    };
    let mut rules: Vec<Ruled> = depths
        .iter()
        .map(|(range, depth)| (range.clone(), frame(*depth)))
        .collect();
    // A signal's handler was entered from what the kernel has saved.
    if function.is_top() && name != "runtime.sigtramp" {
        return Ok(FunctionRole::Described(outermost(place, &depths, rules)?));
    }
    let is_runtime = name.starts_with("runtime.") || matches!(name, "time.now" | "gogo");
    if function.writes_sp() || SWITCHES.contains(&name) {
        if !place.reader.charge(CODE_COST) {
            return Ok(FunctionRole::Malformed);
        }
        if !is_runtime {
            let own = own_part(place, rules)?;
            return Ok(FunctionRole::ByCode(own));
        }
        return Ok(FunctionRole::Described(switching(place, name, &depths)?));
    }
    if INJECTED.contains(&name) {
        rules
            .iter_mut()
            .for_each(|(_, rule)| *rule = injected(*rule));
    }
    if name == "runtime.newstack" && place.reader.charge(CALLEES_COST) {
        let ends = giving_up(place)?;
        rules = overlaid(rules, &ends);
    }
    if name == "crosscall2" && place.reader.charge(CODE_COST) {
        keep_rbp(place, &mut rules)?;
    }
    Ok(FunctionRole::Described(rules))
}

/// The rules of a function that has no caller by the records of Go's runtime: what it has called
/// ends there. The function itself may have been called by something else, such as C's library.
fn outermost<R: ReadAt>(
    place: &mut GoCode<'_, '_, R>,
    depths: &[(Range<u64>, i32)],
    rules: Vec<Ruled>,
) -> io::Result<Vec<Ruled>> {
    if !place.reader.charge(CODE_COST) {
        return Ok(vec![(
            place.function.start..place.function.end,
            UNSUPPORTED,
        )]);
    }
    let (start, bytes) = (place.function.start, place.code()?);
    let own = switches(start, &bytes, depths);
    let rules = own.map_or(rules, |own| own.with(UNSUPPORTED));
    Ok(overlaid(rules, &behind_calls(start, &bytes)))
}

/// Ends, where return addresses of a function's calls are looked up: not at the first
/// byte of a call, where that has not been made.
fn behind_calls(start: u64, bytes: &[u8]) -> Vec<Ruled> {
    let decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
    let calls = decoder.into_iter().filter(|i| {
        matches!(
            i.flow_control(),
            FlowControl::Call | FlowControl::IndirectCall
        )
    });
    calls.map(|i| (i.ip() + 1..i.next_ip(), END)).collect()
}

/// The rule for a call that was not made, but put on the stack.
fn injected(rule: Rule) -> Rule {
    match rule.kind {
        CFA_RSP => Rule {
            kind: CFA_GO,
            rbp: GO_INJECTED,
            ..rule
        },
        _ => rule,
    }
}

/// Where a signal's handler returns to. The byte before it too: a return address is
/// looked up one byte before, and the kernel returns to a function's first one.
fn signal_return<R: ReadAt>(place: &GoCode<'_, '_, R>) -> io::Result<Option<Vec<Ruled>>> {
    let bytes = place.code()?;
    let found = SIGRETURN.iter().any(|code| bytes.starts_with(code));
    let code = place.function.start.saturating_sub(1)..place.function.end;
    let rule = Rule {
        kind: CFA_SIGNAL,
        ..Rule::default()
    };
    Ok(found.then(|| vec![(code, rule)]))
}

/// The rules of a function of the runtime that changes stacks.
fn switching<R: ReadAt>(
    place: &mut GoCode<'_, '_, R>,
    name: &str,
    depths: &[(Range<u64>, i32)],
) -> io::Result<Vec<Ruled>> {
    let bytes = place.code()?;
    let start = place.function.start;
    let found = switches(start, &bytes, depths);
    let away = |rule: Rule| found.as_ref().map(|found| found.with(rule));
    let rules = match name {
        // It leads to the scheduler, which has no caller.
        "runtime.mcall" => {
            away(UNSUPPORTED).map(|rules| overlaid(rules, &behind_calls(start, &bytes)))
        }
        "runtime.morestack" => {
            let resuming = place.go.resuming(place.source);
            let rule = resuming.and_then(|frame| frame.rule(place.page));
            away(rule.unwrap_or(UNSUPPORTED))
        }
        "runtime.cgocallback" => {
            let found = found.as_ref();
            found.map(|found| found.callback_rules(place.page))
        }
        _ => {
            let resuming = place.go.resuming(place.source);
            let tls = resuming.map(|frame| frame.tls);
            found.as_ref().map(|found| found.rules(tls, place.page))
        }
    };
    let all = place.function.start..place.function.end;
    Ok(rules.unwrap_or_else(|| vec![(all, UNSUPPORTED)]))
}

/// How a goroutine that has left its stack is resumed there. The code of `systemstack` shows where
/// its registers are, and where a thread's goroutine is.
pub(super) fn resuming<R: ReadAt>(go: &GoUnwind, source: &R) -> io::Result<Option<ThreadFrame>> {
    let mut reader = GoReader::new(source, &go.table);
    for index in 0..go.table.len().min(MAX_SOUGHT) {
        let Some(function) = reader.function(index)? else {
            continue;
        };
        let name = reader.name(&function)?;
        if name.strip_suffix(".abi0").unwrap_or(&name) != "runtime.systemstack" {
            continue;
        }
        let Some(depths) = reader.values(&function, function.pcsp)? else {
            return Ok(None);
        };
        let code = go.code(source, &function)?;
        let found = switches(function.start, &code, &depths);
        return Ok(found.and_then(|found| found.resuming()));
    }
    Ok(None)
}

/// The rules of a function outside of the runtime that moves the stack pointer: only those for the
/// code before the move.
fn own_part<R: ReadAt>(place: &GoCode<'_, '_, R>, rules: Vec<Ruled>) -> io::Result<Vec<Ruled>> {
    let bytes = place.code()?;
    let all = place.function.start..place.function.end;
    let depths: Vec<(Range<u64>, i32)> = Vec::new();
    let Some(found) = switches(place.function.start, &bytes, &depths) else {
        return Ok(vec![(all, UNSUPPORTED)]);
    };
    let away: Vec<Ruled> = found.away().map(|code| (code, UNSUPPORTED)).collect();
    Ok(overlaid(rules, &away))
}

/// The calls of `newstack` that give a goroutine up.
fn giving_up<R: ReadAt>(place: &mut GoCode<'_, '_, R>) -> io::Result<Vec<Ruled>> {
    let bytes = place.code()?;
    let mut found = Vec::new();
    let decoder = Decoder::with_ip(64, &bytes, place.function.start, DecoderOptions::NONE);
    for i in decoder {
        if i.flow_control() != FlowControl::Call || i.op0_kind() != OpKind::NearBranch64 {
            continue;
        }
        let Some(callee) = place.reader.function_at(i.near_branch_target())? else {
            continue;
        };
        let name = place.reader.name(&callee)?;
        if GIVE_UP.contains(&name.strip_suffix(".abi0").unwrap_or(&name)) {
            found.push((i.ip() + 1..i.next_ip(), END));
        }
    }
    Ok(found)
}

/// `crosscall2` is called by C, which needs its rbp: until that is on the stack, the
/// register still has it.
fn keep_rbp<R: ReadAt>(place: &GoCode<'_, '_, R>, rules: &mut Vec<Ruled>) -> io::Result<()> {
    let bytes = place.code()?;
    let mut decoder = Decoder::with_ip(64, &bytes, place.function.start, DecoderOptions::NONE);
    let first = decoder.decode();
    let saves = |i: &iced_x86::Instruction| {
        i.op0_kind() == OpKind::Memory && i.op1_register() == Register::RBP
    };
    if first.op0_register() == Register::RBP {
        return Ok(());
    }
    let Some(saving) = decoder.into_iter().take(8).find(saves) else {
        return Ok(());
    };
    let before: Vec<Ruled> = rules
        .iter()
        .map(|(code, rule)| {
            let rule = Rule {
                rbp: RBP_SAME,
                rbp_off: 0,
                ..*rule
            };
            (code.start..code.end.min(saving.next_ip()), rule)
        })
        .filter(|(code, _)| !code.is_empty())
        .collect();
    *rules = overlaid(std::mem::take(rules), &before);
    Ok(())
}

/// Rules with others in their places, both in order.
pub(super) fn overlaid(rules: Vec<Ruled>, over: &[Ruled]) -> Vec<Ruled> {
    let mut result = Vec::new();
    for (code, rule) in rules {
        let mut at = code.start;
        for (part, other) in over {
            let (start, end) = (part.start.max(at), part.end.min(code.end));
            if start >= end {
                continue;
            }
            if at < start {
                result.push((at..start, rule));
            }
            result.push((start..end, *other));
            at = end;
        }
        if at < code.end {
            result.push((at..code.end, rule));
        }
    }
    result
}
