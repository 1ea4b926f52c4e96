//! Functions that go on to another stack, call something there, and come back.
//!
//! Their own code shows how: what the stack pointer is set to when they come back is where their
//! frame is. That is found by following what registers hold from the call on. So nothing here
//! depends on how the structures of a version of Go are laid out.

use super::super::rule::{UNSUPPORTED, dereference};
use super::Ruled;
use super::frame;
use super::functions::overlaid;
use super::symbolic::{GoroutineOffset, SymbolicRegisters, SymbolicValue, is_word};
use aiprof_common::{
    CFA_DEREF_RSP, CFA_GO, GO_CALLBACK, GO_CALLS_C, GO_NO_STEP, GO_PAGE_AFTER, GO_PAGE_BEFORE,
    GO_PAGE_SAME, GO_RESUMES, GO_RETURNS, PAGE_SIZE, RBP_UNDEFINED, Rule,
};
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind,
    Register,
};
use std::ops::Range;

/// Most instructions of a function.
const MAX_INSTRUCTIONS: usize = 2048;
/// Instructions looked at before the stack pointer is set back.
const MAX_BEFORE: usize = 64;

/// The stack in use before an instruction: the function's own, another one; or both, by
/// how it was reached.
const OWN: u8 = 1;
const AWAY: u8 = 2;

/// What is known of a function that changes stacks.
pub(super) struct Switches<'a> {
    code: Vec<Instruction>,
    /// For each instruction, [`OWN`] and [`AWAY`].
    stacks: Vec<u8>,
    depths: &'a [(Range<u64>, i32)],
}

/// Where the frame is, while another stack is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FarFrame {
    /// Where the thread's data lead.
    Thread(ThreadFrame),
    /// Where words on the other stack lead, from the call on.
    Stack(Rule),
}

/// A frame to which the thread's data lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ThreadFrame {
    /// Its rule, without the thread's goroutine.
    steps: Rule,
    pub(super) tls: GoroutineOffset,
}

impl ThreadFrame {
    /// The rule as it is in a page; `None`: what it needs is too far from there.
    pub(super) fn rule(&self, page: u64) -> Option<Rule> {
        let by = match self.tls {
            GoroutineOffset::Known(rbp_off) => {
                return Some(Rule {
                    rbp_off,
                    ..self.steps
                });
            }
            GoroutineOffset::Loaded(by) => by,
        };
        let pages = by & !(PAGE_SIZE - 1);
        let flag = match pages.wrapping_sub(page).cast_signed() {
            0 => GO_PAGE_SAME,
            n if n == PAGE_SIZE.cast_signed() => GO_PAGE_AFTER,
            n if n == -PAGE_SIZE.cast_signed() => GO_PAGE_BEFORE,
            _ => return None,
        };
        let place = u16::try_from(by & (PAGE_SIZE - 1)).ok()?;
        Some(Rule {
            rbp_off: place.cast_signed(),
            rbp: self.steps.rbp | flag,
            ..self.steps
        })
    }
}

/// Follows a function's code. `None`: it does something that is not understood.
pub(super) fn switches<'a>(
    start: u64,
    bytes: &[u8],
    depths: &'a [(Range<u64>, i32)],
) -> Option<Switches<'a>> {
    let decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
    let code: Vec<Instruction> = decoder.into_iter().take(MAX_INSTRUCTIONS).collect();
    let stacks = follow(&code)?;
    Some(Switches {
        code,
        stacks,
        depths,
    })
}

/// How an instruction sets the stack pointer, beyond adding a constant.
fn sets_sp(i: &Instruction) -> Option<Mnemonic> {
    let is_sp = i.op0_kind() == OpKind::Register && i.op0_register() == Register::RSP;
    let is_sum = matches!(i.mnemonic(), Mnemonic::Add | Mnemonic::Sub)
        && matches!(
            i.op1_kind(),
            OpKind::Immediate8to64 | OpKind::Immediate32to64
        );
    let is_near = i.mnemonic() == Mnemonic::Lea && i.memory_base() == Register::RSP;
    let reads = matches!(
        i.mnemonic(),
        Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push
    );
    match i.mnemonic() {
        Mnemonic::Leave => Some(Mnemonic::Leave),
        mnemonic => (is_sp && !is_sum && !is_near && !reads).then_some(mnemonic),
    }
}

/// Which stacks are in use before each instruction.
fn follow(code: &[Instruction]) -> Option<Vec<u8>> {
    let mut stacks = vec![0u8; code.len()];
    let mut open = vec![(0usize, OWN)];
    while let Some((at, stack)) = open.pop() {
        let (Some(i), Some(known)) = (code.get(at), stacks.get_mut(at)) else {
            continue;
        };
        if *known & stack != 0 {
            continue;
        }
        *known |= stack;
        let after = match sets_sp(i) {
            None => stack,
            Some(Mnemonic::And) => AWAY,
            // From here and back.
            Some(_) if *known == OWN => AWAY,
            Some(_) if *known == AWAY => OWN,
            Some(_) => return None,
        };
        let target = || {
            let to = i.near_branch_target();
            code.binary_search_by_key(&to, Instruction::ip).ok()
        };
        match i.flow_control() {
            FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => {
                open.push((at + 1, after));
            }
            FlowControl::ConditionalBranch => {
                open.push((at + 1, after));
                open.extend(target().map(|to| (to, after)));
            }
            FlowControl::UnconditionalBranch => open.extend(target().map(|to| (to, after))),
            _ => {}
        }
    }
    Some(stacks)
}

impl Switches<'_> {
    /// The code during which another stack may be in use, or that is never reached.
    pub(super) fn away(&self) -> impl Iterator<Item = Range<u64>> {
        let pairs = self.code.iter().zip(&self.stacks);
        pairs
            .filter(|(_, stacks)| **stacks != OWN)
            .map(|(i, _)| i.ip()..i.next_ip())
    }

    /// The function's rules, with one for all code on another stack.
    pub(super) fn with(&self, rule: Rule) -> Vec<Ruled> {
        let away: Vec<Ruled> = self.away().map(|code| (code, rule)).collect();
        self.own(&away)
    }

    fn own(&self, away: &[Ruled]) -> Vec<Ruled> {
        let own = self.depths.iter();
        let own = own.map(|(code, depth)| (code.clone(), frame(*depth)));
        overlaid(own.collect(), away)
    }

    /// The function's rules in a page. `tls`: where a thread's goroutine is.
    pub(super) fn rules(&self, tls: Option<GoroutineOffset>, page: u64) -> Vec<Ruled> {
        self.with_frames(tls, page, |frame| frame)
    }

    /// The rules of the function through which C calls Go. The stack pointer that it goes
    /// back to is kept for the innermost such call; the one around it is on the stack
    /// there, at the stack pointer.
    pub(super) fn callback_rules(&self, page: u64) -> Vec<Ruled> {
        let restores = self.returns().any(|at| {
            let next = self.code.get(at + 1);
            next.is_some_and(|i| {
                i.mnemonic() == Mnemonic::Mov
                    && i.op0_kind() == OpKind::Register
                    && i.memory_base() == Register::RSP
                    && i.memory_index() == Register::None
                    && i.memory_displacement64() == 0
            })
        });
        self.with_frames(None, page, |frame| match frame {
            Some(FarFrame::Thread(frame)) if restores => {
                let steps = Rule {
                    rbp: GO_CALLBACK,
                    ..frame.steps
                };
                Some(FarFrame::Thread(ThreadFrame { steps, ..frame }))
            }
            _ => None,
        })
    }

    /// The rule that resumes a goroutine whose registers were kept when it left its stack.
    pub(super) fn resuming(&self) -> Option<ThreadFrame> {
        self.returns()
            .find_map(|at| match self.frame_of(at, None)? {
                FarFrame::Thread(frame) => {
                    let [a, b, c, _] = frame.steps.cfa_off.to_le_bytes();
                    let steps = Rule {
                        cfa_off: i32::from_le_bytes([a, b, c, 0]),
                        rbp: GO_RESUMES,
                        ..frame.steps
                    };
                    Some(ThreadFrame { steps, ..frame })
                }
                FarFrame::Stack(_) => None,
            })
    }

    fn with_frames(
        &self,
        tls: Option<GoroutineOffset>,
        page: u64,
        choose: impl Fn(Option<FarFrame>) -> Option<FarFrame>,
    ) -> Vec<Ruled> {
        let frames: Vec<(usize, Option<FarFrame>)> = self
            .returns()
            .map(|at| (at, choose(self.frame_of(at, tls))))
            .collect();
        let mut away = Vec::new();
        for (at, (i, &stacks)) in self.code.iter().zip(&self.stacks).enumerate() {
            if stacks == OWN {
                continue;
            }
            let next = frames.iter().find(|(back, _)| *back >= at);
            let found = next.or(frames.last());
            let rule = found.and_then(|(back, frame)| match (*frame)? {
                FarFrame::Thread(frame) => {
                    let applies = stacks == AWAY || is_of_thread(&frame.steps);
                    frame.rule(page).filter(|_| applies)
                }
                FarFrame::Stack(rule) => {
                    let call = self.call_before(*back)?;
                    (stacks == AWAY && (call..=*back).contains(&at)).then_some(rule)
                }
            });
            away.push((i.ip()..i.next_ip(), rule.unwrap_or(UNSUPPORTED)));
        }
        self.own(&away)
    }

    /// Instructions that set the stack pointer back.
    fn returns(&self) -> impl Iterator<Item = usize> {
        let pairs = self.code.iter().zip(&self.stacks).enumerate();
        pairs
            .filter(|(_, (i, stacks))| sets_sp(i) == Some(Mnemonic::Mov) && **stacks == AWAY)
            .map(|(at, _)| at)
    }

    /// The last call before an instruction.
    fn call_before(&self, at: usize) -> Option<usize> {
        let is_call = |at: &usize| {
            let flow = self.code.get(*at).map(Instruction::flow_control);
            matches!(flow, Some(FlowControl::Call | FlowControl::IndirectCall))
        };
        (at.saturating_sub(MAX_BEFORE)..at).rev().find(is_call)
    }

    /// Where the frame is, by an instruction that sets the stack pointer back.
    fn frame_of(&self, back: usize, tls: Option<GoroutineOffset>) -> Option<FarFrame> {
        let call = self.call_before(back)?;
        let mut registers = SymbolicRegisters::new(0);
        let mut info = InstructionInfoFactory::new();
        for i in self.code.get(call + 1..=back)? {
            if i.flow_control() != FlowControl::Next {
                return None;
            }
            registers.step(i, &mut info);
        }
        let behind = self.code.get(back)?.next_ip();
        let depths = || self.depths.iter();
        let (_, depth) = depths().find(|(code, _)| code.contains(&behind))?;
        let added = i64::from(*depth).checked_add(8)?;
        match registers.get(Register::RSP) {
            SymbolicValue::Goroutine {
                path: [m, g, sp],
                length: 3,
            } => {
                let steps = [m, g, sp, i32::try_from(added).ok()?];
                let (steps, tls) = (stepping(GO_RETURNS, steps)?, registers.tls?);
                Some(FarFrame::Thread(ThreadFrame { steps, tls }))
            }
            SymbolicValue::FromEnd { of, end, depth } => {
                let steps = [of, depth, end, i32::try_from(added).ok()?];
                Some(FarFrame::Stack(stepping(GO_CALLS_C, steps)?))
            }
            SymbolicValue::Slot {
                path: [at, _],
                length: 1,
            } => Some(FarFrame::Stack(Rule {
                cfa_off: dereference(at.into(), added)?,
                rbp_off: 0,
                kind: CFA_DEREF_RSP,
                rbp: RBP_UNDEFINED,
            })),
            SymbolicValue::Unknown => self.kept_frame(tls).map(FarFrame::Thread),
            _ => None,
        }
    }

    /// Where the frame is of a function that keeps its CFA in the thread's data before it
    /// leaves its stack, as those do that call the vDSO.
    fn kept_frame(&self, tls: Option<GoroutineOffset>) -> Option<ThreadFrame> {
        // The stack pointer at the first instruction is the CFA less 8.
        let mut registers = SymbolicRegisters::new(-8);
        registers.set(
            Register::R14,
            SymbolicValue::Goroutine {
                path: [0; 3],
                length: 0,
            },
        );
        let mut info = InstructionInfoFactory::new();
        let mut kept = None;
        for (i, &stacks) in self.code.iter().zip(&self.stacks) {
            let flow = i.flow_control();
            let goes_on = matches!(flow, FlowControl::Next | FlowControl::ConditionalBranch);
            if !goes_on || stacks != OWN {
                break;
            }
            if i.mnemonic() == Mnemonic::Mov && i.op0_kind() == OpKind::Memory && is_word(i) {
                let base = registers.get(i.memory_base());
                let value = registers.get(i.op1_register());
                if let SymbolicValue::Goroutine {
                    path: [m, ..],
                    length: 1,
                } = base
                    && value == SymbolicValue::Stack(0)
                    && i.memory_index() == Register::None
                {
                    kept = Some((m, i32::try_from(i.memory_displacement64()).ok()?));
                }
            }
            registers.step(i, &mut info);
        }
        let (m, cfa) = kept?;
        let steps = [m, cfa, i32::from(GO_NO_STEP) * 8, 0];
        Some(ThreadFrame {
            steps: stepping(GO_RETURNS, steps)?,
            // The function may have it in a register only.
            tls: registers.tls.or(tls)?,
        })
    }
}

/// Whether a rule is valid on both stacks.
fn is_of_thread(rule: &Rule) -> bool {
    rule.cfa_off.to_le_bytes()[2] == GO_NO_STEP
}

/// A rule whose steps, in bytes, are words.
fn stepping(what: u8, steps: [i32; 4]) -> Option<Rule> {
    let mut words = [0; 4];
    for (word, step) in words.iter_mut().zip(steps) {
        *word = u8::try_from(step / 8).ok().filter(|_| step % 8 == 0)?;
    }
    Some(Rule {
        cfa_off: i32::from_le_bytes(words),
        rbp_off: 0,
        kind: CFA_GO,
        rbp: what,
    })
}
