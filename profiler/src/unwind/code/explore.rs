//! Following a function's instructions from its first one on.

use super::machine::Machine;
use aiprof_common::Rule;
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Most instructions of one function that are followed.
const MAX_STEPS: usize = 16 * 1024;
/// What is still followed after many wrong guesses of a start.
const LEAST_STEPS: usize = 256;
/// Most branches of one function that wait to be followed.
const MAX_WAITING: usize = 1024;

/// Most calls of one function that do perhaps not return.
const MAX_BEHIND_CALLS: usize = 64;
/// Most parts of one function that only tables of jumps lead to.
const MAX_CASES: usize = 512;
/// Most jumps by tables with which such a part is tried.
const MAX_SWITCHES: usize = 4;
/// Instructions whose copy costs as much as following one.
const COPIED_PER_STEP: usize = 16;
/// What compilers align functions to, in bytes.
const ALIGNMENT: u64 = 16;

/// Bytes of text, and where they are.
#[derive(Clone, Copy)]
pub(in crate::unwind) struct Text<'a> {
    start: u64,
    bytes: &'a [u8],
    /// Parts that the unwind data describe, by address: nothing of them is looked at.
    holes: &'a [Range<u64>],
}

impl<'a> Text<'a> {
    /// From an address on.
    pub(in crate::unwind) fn new(start: u64, bytes: &'a [u8]) -> Self {
        Self {
            start,
            bytes,
            holes: &[],
        }
    }

    /// The same without some parts, which come in order.
    pub(in crate::unwind) fn without(self, holes: &'a [Range<u64>]) -> Self {
        Self { holes, ..self }
    }

    /// The first address from `at` on that is in no hole.
    fn behind_hole(&self, at: u64) -> u64 {
        let next = self.holes.partition_point(|hole| hole.end <= at);
        let hole = self.holes.get(next).filter(|hole| hole.start <= at);
        hole.map_or(at, |hole| hole.end)
    }

    /// The bytes from an address on; none outside.
    fn from(&self, at: u64) -> &'a [u8] {
        if self.behind_hole(at) != at {
            return &[];
        }
        let skip = at.checked_sub(self.start).map(usize::try_from);
        match skip {
            Some(Ok(skip)) => self.bytes.get(skip..).unwrap_or_default(),
            _ => &[],
        }
    }

    /// Whether an address lies in it.
    pub(super) fn contains(&self, at: u64) -> bool {
        !self.from(at).is_empty()
    }

    /// Its first address.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// The first address behind it.
    pub(super) fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes.len() as u64)
    }

    /// The instruction at an address; `None`: there is none.
    pub(super) fn decode(&self, at: u64) -> Option<Instruction> {
        let bytes = self.from(at);
        let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
        let instruction = decoder.decode();
        (!instruction.is_invalid()).then_some(instruction)
    }
}

/// What is known of a function's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// A symbol of a file that has kept all its symbols: what follows a call that does
    /// not return has one too.
    Named,
    /// A call leads there, or another symbol.
    Called,
    /// Code begins there, after other code's end.
    Guessed,
}

/// A function that was followed to its ends.
pub(super) struct Function {
    /// Its instructions: address, bytes, and the rule while it runs.
    pub(super) instructions: Vec<(u64, u8, Rule)>,
    /// Where it calls.
    pub(super) calls: BTreeSet<u64>,
}

/// Follows functions of one text.
pub(super) struct Explorer<'a> {
    text: Text<'a>,
    /// Where functions are known to start: a call before such an address did not
    /// return.
    starts: BTreeSet<u64>,
    /// Bytes and rule of each instruction of the functions that were believed.
    pub(super) known: BTreeMap<u64, (u8, Rule)>,
    /// Instructions that may still be followed.
    budget: usize,
    /// Most instructions of the function that is being followed.
    limit: usize,
    /// Most instructions of the next one whose start is guessed: the fewer, the more
    /// guesses were wrong. Else each part of a long function that is not understood
    /// would be followed to its end.
    guess: usize,
    /// Whether no call is taken to return.
    careful: bool,
    /// Whether the function followed last calls.
    called: bool,
    infos: InstructionInfoFactory,
    /// What was known at each instruction of the function followed last.
    #[cfg(test)]
    pub(super) states: Vec<(u64, Machine)>,
}

/// One function while it is followed.
#[derive(Clone, Default)]
struct Visit {
    seen: FxHashMap<u64, (u8, Rule)>,
    /// From which instruction to which one code goes: to, from.
    ways: Vec<(u64, u64)>,
    /// Instructions at which the function is left.
    ends: Vec<u64>,
    /// Calls behind which there is only padding, as far as an aligned function.
    last_calls: Vec<u64>,
    waiting: Vec<Way>,
    /// Code behind calls that do perhaps not return.
    behind_calls: Vec<Way>,
    calls: BTreeSet<u64>,
    /// Ends at which everything was as at the entry.
    good_returns: usize,
    /// Jumps to what a table says, in the midst of the function.
    switches: Vec<(u64, Machine)>,
}

/// A way through a function that is still to be followed.
#[derive(Clone)]
struct Way {
    /// The instruction that leads there; `None` at the start.
    from: Option<u64>,
    at: u64,
    machine: Machine,
}

impl Visit {
    /// The instructions, by address, from which the function's end can be reached.
    /// What follows a call that does not return is another function's.
    fn proven(self) -> Vec<(u64, u8, Rule)> {
        let mut ways = self.ways;
        ways.sort_unstable();
        let mut proven: FxHashSet<u64> = FxHashSet::default();
        let mut waiting = self.ends;
        while let Some(at) = waiting.pop() {
            if proven.insert(at) {
                let first = ways.partition_point(|&(to, _)| to < at);
                let here = ways.iter().skip(first).take_while(|&&(to, _)| to == at);
                waiting.extend(here.map(|&(_, from)| from));
            }
        }
        let seen = self.seen.into_iter();
        let kept = seen.filter(|(at, _)| proven.contains(at));
        let mut kept: Vec<_> = kept.map(|(at, (len, rule))| (at, len, rule)).collect();
        kept.sort_unstable_by_key(|&(at, ..)| at);
        kept
    }
}

/// Why a function is not trusted.
struct Doubtful;

impl<'a> Explorer<'a> {
    pub(super) fn new(text: Text<'a>, budget: usize) -> Self {
        Self {
            text,
            starts: BTreeSet::new(),
            known: BTreeMap::new(),
            budget,
            limit: MAX_STEPS,
            guess: MAX_STEPS,
            careful: false,
            called: false,
            infos: InstructionInfoFactory::new(),
            #[cfg(test)]
            states: Vec::new(),
        }
    }

    pub(super) fn add_starts(&mut self, starts: &BTreeSet<u64>) {
        self.starts.extend(starts);
    }

    /// Whether any instruction may still be followed.
    pub(super) fn may_go_on(&self) -> bool {
        self.budget > 0
    }

    /// Follows the function that starts at `at`. `None`: it does not return as it
    /// was entered on every way, so that its start is none, or it does what is not
    /// understood.
    pub(super) fn function(&mut self, at: u64, start: Start) -> Option<Function> {
        self.limit = match start {
            Start::Guessed => self.guess,
            Start::Named | Start::Called => MAX_STEPS,
        };
        let found = self.attempt(at, start, false);
        // Without calls the second time would be as the first.
        let found = match found {
            None if self.called => self.attempt(at, start, true),
            _ => found,
        };
        if start == Start::Guessed {
            self.guess = match found {
                Some(_) => MAX_STEPS,
                None => (self.guess / 2).max(LEAST_STEPS),
            };
        }
        found
    }

    /// Follows it; `careful`: no call is taken to return, but where what follows fits.
    fn attempt(&mut self, at: u64, start: Start, careful: bool) -> Option<Function> {
        #[cfg(test)]
        self.states.clear();
        self.careful = careful;
        self.called = false;
        let mut visit = Visit {
            waiting: vec![Way {
                from: None,
                at,
                machine: Machine::at_entry(),
            }],
            ..Visit::default()
        };
        self.paths(&mut visit).ok()?;
        self.behind_calls(&mut visit);
        self.cases(&mut visit, at);
        let trusted = match start {
            // What only jumps on could do so from its midst.
            Start::Guessed => visit.good_returns > 0,
            Start::Called => {
                visit.ends.append(&mut visit.last_calls);
                true
            }
            Start::Named => {
                visit.ends = visit.seen.keys().copied().collect();
                true
            }
        };
        let calls = std::mem::take(&mut visit.calls);
        let instructions = visit.proven();
        (trusted && !overlap(&instructions)).then_some(Function {
            instructions,
            calls,
        })
    }

    /// Follows what is behind calls that do perhaps not return.
    fn behind_calls(&mut self, visit: &mut Visit) {
        for _ in 0..MAX_BEHIND_CALLS {
            let Some(next) = visit.behind_calls.pop() else {
                break;
            };
            // What contradicts the rest is another function.
            if let Some(more) = self.with(visit, next) {
                *visit = more;
            }
        }
    }

    /// Follows the code that only tables of jumps lead to: what lies in the function
    /// that starts at `start` and was not reached, entered as the jump was left. It is
    /// believed only if it leads to the function's end, or to what was reached before,
    /// with the stack as it is there.
    fn cases(&mut self, visit: &mut Visit, mut at: u64) {
        let next = self.starts.range(at.saturating_add(1)..).next();
        let limit = next.map_or(self.text.end(), |&next| next.min(self.text.end()));
        for _ in 0..MAX_CASES {
            if visit.switches.is_empty() || !self.may_go_on() {
                return;
            }
            at = self.not_reached(visit, at, limit);
            if at >= limit {
                return;
            }
            match self.case(visit, at) {
                Some(more) => *visit = more,
                None => at = self.end_of_flow(visit, at).max(at + 1),
            }
        }
    }

    /// The first instruction from `at` on that nothing led to so far.
    fn not_reached(&self, visit: &Visit, mut at: u64, limit: u64) -> u64 {
        loop {
            at = skip_padding(&self.text, at, limit);
            let known = visit.seen.get(&at).or_else(|| self.known.get(&at));
            match known {
                Some(&(len, _)) if at < limit => at = at.saturating_add(len.max(1).into()),
                _ => return at,
            }
        }
    }

    /// What is known with the code at `at` as a jump's target; `None`: it is none.
    fn case(&mut self, visit: &Visit, at: u64) -> Option<Visit> {
        for (from, machine) in visit.switches.iter().rev().take(MAX_SWITCHES) {
            let way = Way {
                from: Some(*from),
                at,
                machine: machine.clone(),
            };
            let Some(mut more) = self.with(visit, way) else {
                continue;
            };
            self.behind_calls(&mut more);
            let new = more.ways.get(visit.ways.len()..).unwrap_or_default();
            let joins = new.iter().any(|(to, _)| visit.seen.contains_key(to));
            if joins || more.good_returns > visit.good_returns {
                return Some(more);
            }
        }
        None
    }

    /// What is known after one more way; `None`: it contradicts the rest.
    fn with(&mut self, visit: &Visit, way: Way) -> Option<Visit> {
        let mut more = visit.clone();
        self.budget = self
            .budget
            .saturating_sub(visit.seen.len() / COPIED_PER_STEP);
        more.waiting.push(way);
        self.paths(&mut more).ok().map(|()| more)
    }

    /// Where the code from `at` on does not go on to the next instruction, or was
    /// reached.
    fn end_of_flow(&self, visit: &Visit, mut at: u64) -> u64 {
        while let Some(i) = self.text.decode(at) {
            at = i.next_ip();
            if ends_flow(&i) || visit.seen.contains_key(&at) {
                break;
            }
        }
        at
    }

    /// Follows all ways that wait.
    fn paths(&mut self, visit: &mut Visit) -> Result<(), Doubtful> {
        while let Some(way) = visit.waiting.pop() {
            self.path(visit, way)?;
        }
        Ok(())
    }

    /// Follows one way through the function to its end, or to where it was before.
    fn path(&mut self, visit: &mut Visit, way: Way) -> Result<(), Doubtful> {
        let Way {
            mut from,
            mut at,
            mut machine,
        } = way;
        loop {
            let rule = machine.rule();
            if let Some(from) = from {
                visit.ways.push((at, from));
            }
            if let Some((_, known)) = visit.seen.get(&at) {
                return if *known == rule {
                    Ok(())
                } else {
                    Err(Doubtful)
                };
            }
            if let Some((_, known)) = self.known.get(&at) {
                if *known != rule {
                    return Err(Doubtful);
                }
                // From here on it was followed to its end before.
                visit.ends.extend(from);
                visit.good_returns += 1;
                return Ok(());
            }
            let Some(i) = self.text.decode(at) else {
                // Data, or the end of what is there: after a call that does not return.
                return Ok(());
            };
            if visit.seen.len() >= self.limit || self.budget == 0 {
                return Err(Doubtful);
            }
            self.budget -= 1;
            #[cfg(test)]
            self.states.push((at, machine.clone()));
            let len = u8::try_from(i.len()).unwrap_or(u8::MAX);
            visit.seen.insert(at, (len, rule));
            // Into another function code runs only where a call does not return, or
            // where that one is entered so.
            if !self.go_on(visit, &i, &mut machine)? || self.starts.contains(&i.next_ip()) {
                return Ok(());
            }
            from = Some(at);
            at = i.next_ip();
        }
    }

    /// Takes in an instruction; whether the next one follows.
    fn go_on(
        &mut self,
        visit: &mut Visit,
        i: &Instruction,
        machine: &mut Machine,
    ) -> Result<bool, Doubtful> {
        match i.flow_control() {
            FlowControl::Next | FlowControl::XbeginXabortXend => {
                if i.mnemonic() == Mnemonic::Hlt {
                    return Ok(false);
                }
                visit.calls.extend(self.function_named_by(i));
                machine.step(i, &mut self.infos);
                // From where the stack is not known there is nothing to follow.
                Ok(machine.knows_stack())
            }
            FlowControl::ConditionalBranch => {
                self.jump(visit, i, machine)?;
                Ok(true)
            }
            FlowControl::UnconditionalBranch => {
                self.jump(visit, i, machine)?;
                Ok(false)
            }
            FlowControl::IndirectBranch => {
                // A table of jumps, or a function called last.
                visit.ends.push(i.ip());
                if !machine.is_as_at_entry() {
                    visit.switches.push((i.ip(), machine.clone()));
                }
                Ok(false)
            }
            FlowControl::Return => {
                if !machine.is_as_at_entry() {
                    return Err(Doubtful);
                }
                visit.good_returns += 1;
                visit.ends.push(i.ip());
                Ok(false)
            }
            FlowControl::Call | FlowControl::IndirectCall => Ok(self.call(visit, i, machine)),
            FlowControl::Interrupt => Ok(i.mnemonic() == Mnemonic::Int && i.immediate8() == 0x80),
            FlowControl::Exception => Ok(false),
        }
    }

    /// The function whose address an instruction takes: one that is handed on, to be
    /// called from elsewhere.
    fn function_named_by(&self, i: &Instruction) -> Option<u64> {
        let address = match (i.mnemonic(), i.op0_kind(), i.op1_kind()) {
            (Mnemonic::Lea, _, _) if i.is_ip_rel_memory_operand() => i.ip_rel_memory_address(),
            (Mnemonic::Mov, OpKind::Register, OpKind::Immediate32to64 | OpKind::Immediate32) => {
                i.immediate(1)
            }
            _ => return None,
        };
        let is_one = address.is_multiple_of(ALIGNMENT) && self.text.contains(address);
        is_one.then_some(address)
    }

    /// A direct jump: within the text it is followed.
    fn jump(&self, visit: &mut Visit, i: &Instruction, machine: &Machine) -> Result<(), Doubtful> {
        let near = i.op0_kind() == OpKind::NearBranch64;
        let to = i.near_branch_target();
        if !near || !self.text.contains(to) {
            if machine.is_as_at_entry() {
                visit.ends.push(i.ip());
            }
            return Ok(());
        }
        if self.starts.contains(&to) && machine.is_as_at_entry() {
            // A function called last: followed by itself.
            visit.ends.push(i.ip());
            return Ok(());
        }
        if visit.waiting.len() >= MAX_WAITING {
            return Err(Doubtful);
        }
        visit.waiting.push(Way {
            from: Some(i.ip()),
            at: to,
            machine: machine.clone(),
        });
        Ok(())
    }

    /// A call; whether it returns, as far as that can be seen.
    fn call(&mut self, visit: &mut Visit, i: &Instruction, machine: &mut Machine) -> bool {
        self.called = true;
        if i.op0_kind() == OpKind::NearBranch64 {
            let to = i.near_branch_target();
            if to == i.next_ip() {
                machine.push_address();
                return true;
            }
            visit.calls.insert(to);
        }
        machine.call();
        if self.starts.contains(&i.next_ip()) {
            visit.last_calls.push(i.ip());
            return false;
        }
        let is_last = self.is_perhaps_end(i.next_ip());
        if is_last {
            visit.last_calls.push(i.ip());
        }
        if (is_last || self.careful) && visit.behind_calls.len() < MAX_BEHIND_CALLS {
            visit.behind_calls.push(Way {
                from: Some(i.ip()),
                at: i.next_ip(),
                machine: machine.clone(),
            });
            return false;
        }
        true
    }

    /// Whether padding up to the usual alignment of functions begins here.
    fn is_perhaps_end(&self, at: u64) -> bool {
        let next = skip_padding(&self.text, at, at.saturating_add(ALIGNMENT));
        next > at && next.is_multiple_of(ALIGNMENT)
    }
}

/// Whether no code follows an instruction.
pub(super) fn ends_flow(i: &Instruction) -> bool {
    matches!(
        i.flow_control(),
        FlowControl::Return
            | FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Exception
    )
}

/// Whether instructions, by address, lie over each other: then some are none.
fn overlap(instructions: &[(u64, u8, Rule)]) -> bool {
    let pairs = instructions.iter().zip(instructions.iter().skip(1));
    pairs
        .into_iter()
        .any(|(a, b)| a.0.saturating_add(a.1.into()) > b.0)
}

/// The first address from `at` on, before `end`, that is not filled up with
/// instructions that only fill up.
pub(super) fn skip_padding(text: &Text<'_>, mut at: u64, end: u64) -> u64 {
    while at < end {
        let behind = text.behind_hole(at);
        if behind != at {
            at = behind;
            continue;
        }
        let Some(i) = text.decode(at).filter(|_| !text.from(at).starts_with(&[0])) else {
            at += 1;
            continue;
        };
        if !matches!(i.mnemonic(), Mnemonic::Nop | Mnemonic::Int3) {
            return at;
        }
        at = i.next_ip();
    }
    end
}

/// The range of addresses of some text.
pub(super) fn range(text: &Text<'_>) -> Range<u64> {
    text.start..text.end()
}
