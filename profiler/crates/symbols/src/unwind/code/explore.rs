//! Following a function's instructions from its first one on.

use super::machine::MachineState;
use super::text::{ALIGNMENT, CodeText, ends_flow, loaded_address, skip_padding};
use super::visit::{OpenPath, Visit, VisitMark};
use aiprof_common::Rule;
use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind};
use std::collections::BTreeSet;

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
/// How many instructions are followed for such parts in vain, besides as many for each
/// instruction of the function.
const LEAST_IN_VAIN: usize = 2048;
const IN_VAIN: usize = 4;
/// What is known of a function's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// The kernel or the dynamic linker jumps there: it does not return.
    Entry,
    /// A symbol of a file that has kept all its symbols: what follows a call that does
    /// not return has one too.
    Named,
    /// A call leads there, or another symbol.
    Called,
    /// Code begins there, after other code's end and what fills up to the alignment of
    /// functions.
    Aligned,
    /// Code begins there, after other code's end.
    Guessed,
}

/// A function that was followed to its ends.
pub(super) struct ExploredFunction {
    /// Its instructions: address, bytes, and the rule while it runs.
    pub(super) instructions: Vec<(u64, u8, Rule)>,
    /// Where it calls.
    pub(super) calls: BTreeSet<u64>,
}

/// An instruction, and what is known of the place where it is.
struct Spot {
    instruction: Instruction,
    /// The number of the last visit that reached it, and how many others it had
    /// reached before.
    visit: u32,
    rank: usize,
    /// The rule there, as of that visit.
    rule: Rule,
    /// The rule there, if the function is believed.
    known: Option<Rule>,
}

impl Spot {
    fn len(&self) -> u8 {
        u8::try_from(self.instruction.len()).unwrap_or(u8::MAX)
    }
}

/// No instruction begins here.
const NO_SPOT: u32 = u32::MAX;

/// The instructions of a text, each decoded when it is first looked at.
struct Spots<'a> {
    text: CodeText<'a>,
    /// By byte of the text: 0, [`NO_SPOT`], or one more than the index in `all`.
    at: Vec<u32>,
    all: Vec<Spot>,
}

impl<'a> Spots<'a> {
    fn new(text: CodeText<'a>) -> Self {
        Self {
            text,
            at: vec![0; text.len()],
            all: Vec::new(),
        }
    }

    /// The index of the instruction at an address; `None`: there is none.
    fn find(&mut self, at: u64) -> Option<usize> {
        let byte = usize::try_from(at.checked_sub(self.text.start())?).ok()?;
        let slot = self.at.get_mut(byte)?;
        if *slot == 0 {
            let next = u32::try_from(self.all.len() + 1).ok()?;
            let decoded = self.text.decode(at);
            *slot = decoded.map_or(NO_SPOT, |_| next);
            self.all.extend(decoded.map(|instruction| Spot {
                instruction,
                visit: 0,
                rank: 0,
                rule: Rule::default(),
                known: None,
            }));
        }
        match *slot {
            NO_SPOT => None,
            index => usize::try_from(index - 1).ok(),
        }
    }

    fn get(&mut self, at: u64) -> Option<&mut Spot> {
        let index = self.find(at)?;
        self.all.get_mut(index)
    }
}

/// Follows functions of one text.
pub(super) struct Explorer<'a> {
    text: CodeText<'a>,
    spots: Spots<'a>,
    /// Where functions are known to start: a call before such an address did not
    /// return.
    starts: BTreeSet<u64>,
    /// Where other functions jump: a call before it did perhaps not return.
    borders: BTreeSet<u64>,
    /// The number of the visit.
    visit: u32,
    /// Instructions that may still be followed.
    budget: usize,
    /// Most instructions of the function that is being followed.
    limit: usize,
    /// Most instructions of the next one whose start is guessed: the fewer, the more
    /// guesses were wrong. Else each part of a long function that is not understood
    /// would be followed to its end.
    guess: usize,
    /// Whether all functions share one frame: none of them returns.
    is_shared: bool,
    /// Whether no call is taken to return.
    careful: bool,
    /// What is known of the start of the function that is being followed.
    start: Start,
    /// The code behind its first call with nothing on the stack, if it is a guess.
    behind_bare_call: Option<u64>,
    /// Whether the function followed last calls.
    called: bool,
    infos: InstructionInfoFactory,
    /// What was known at each instruction of the function followed last.
    #[cfg(test)]
    pub(super) states: Vec<(u64, MachineState)>,
}

/// Why a function is not trusted.
struct Doubtful;

impl<'a> Explorer<'a> {
    pub(super) fn new(text: CodeText<'a>, budget: usize) -> Self {
        Self {
            text,
            spots: Spots::new(text),
            starts: BTreeSet::new(),
            borders: BTreeSet::new(),
            visit: 0,
            budget,
            limit: MAX_STEPS,
            guess: MAX_STEPS,
            is_shared: false,
            careful: false,
            start: Start::Called,
            behind_bare_call: None,
            called: false,
            infos: InstructionInfoFactory::new(),
            #[cfg(test)]
            states: Vec::new(),
        }
    }

    /// Has all functions share one frame.
    pub(super) fn share_frame(&mut self) {
        self.is_shared = true;
    }

    pub(super) fn add_starts(&mut self, starts: &BTreeSet<u64>) {
        self.starts.extend(starts);
    }

    pub(super) fn add_borders(&mut self, borders: &[u64]) {
        self.borders.extend(borders);
    }

    /// The instruction at an address; `None`: there is none.
    pub(super) fn decode(&mut self, at: u64) -> Option<Instruction> {
        self.spots.get(at).map(|spot| spot.instruction)
    }

    /// Whether an instruction of a function that is believed begins at an address.
    pub(super) fn is_known(&mut self, at: u64) -> bool {
        self.spots.get(at).is_some_and(|spot| spot.known.is_some())
    }

    /// Believes that an instruction has a rule, if it has none yet.
    pub(super) fn believe(&mut self, at: u64, rule: Rule) {
        if let Some(spot) = self.spots.get(at) {
            spot.known.get_or_insert(rule);
        }
    }

    /// The end of the instructions that are known from `at` on.
    pub(super) fn behind_known(&mut self, mut at: u64) -> u64 {
        while let Some(spot) = self.spots.get(at).filter(|spot| spot.known.is_some()) {
            at = spot.instruction.next_ip();
        }
        at
    }

    /// Address, end and rule of the instructions of the functions that were believed,
    /// in order.
    pub(super) fn known(self) -> Vec<(u64, u64, Rule)> {
        let known = self.spots.all.into_iter().filter_map(|spot| {
            let i = spot.instruction;
            Some((i.ip(), i.next_ip(), spot.known?))
        });
        let mut known: Vec<_> = known.collect();
        known.sort_unstable_by_key(|&(at, ..)| at);
        known
    }

    /// As [`skip_padding`], in this text.
    pub(super) fn skip_padding(&mut self, at: u64, end: u64) -> u64 {
        let text = self.text;
        skip_padding(&text, at..end, |at| self.decode(at))
    }

    /// Where to go on behind code that was followed from `at` on and is not believed.
    pub(super) fn behind_doubtful(&self, at: u64) -> Option<u64> {
        self.behind_bare_call.filter(|&behind| behind > at)
    }

    /// Whether any instruction may still be followed.
    pub(super) fn may_go_on(&self) -> bool {
        self.budget > 0
    }

    /// Follows the function that starts at `at`. `None`: it does not return as it
    /// was entered on every way, so that its start is none, or it does what is not
    /// understood.
    pub(super) fn function(&mut self, at: u64, start: Start) -> Option<ExploredFunction> {
        self.limit = match start {
            Start::Aligned | Start::Guessed => self.guess,
            Start::Entry | Start::Named | Start::Called => MAX_STEPS,
        };
        let found = self.attempt(at, start, false);
        // Without calls the second time would be as the first.
        let found = match found {
            None if self.called => self.attempt(at, start, true),
            _ => found,
        };
        if matches!(start, Start::Aligned | Start::Guessed) {
            self.guess = match found {
                Some(_) => MAX_STEPS,
                None => (self.guess / 2).max(LEAST_STEPS),
            };
        }
        found
    }

    /// Follows it; `careful`: no call is taken to return, but where what follows fits.
    fn attempt(&mut self, at: u64, start: Start, careful: bool) -> Option<ExploredFunction> {
        #[cfg(test)]
        self.states.clear();
        self.careful = careful;
        self.start = start;
        self.behind_bare_call = None;
        self.called = false;
        self.visit += 1;
        let mut visit = Visit {
            waiting: vec![OpenPath {
                from: None,
                at,
                machine: match self.is_shared {
                    true => MachineState::at_free_entry(),
                    false => MachineState::at_entry(),
                },
            }],
            ..Visit::default()
        };
        self.paths(&mut visit).ok()?;
        if start == Start::Entry {
            self.behind_entry(&mut visit);
        } else {
            self.behind_calls(&mut visit);
            self.cases(&mut visit, at);
        }
        let trusted = match start {
            // What only jumps on could do so from its midst.
            Start::Aligned | Start::Guessed if !self.is_shared => visit.good_returns > 0,
            Start::Aligned | Start::Guessed => !visit.ends.is_empty(),
            Start::Called => {
                visit.ends.append(&mut visit.last_calls);
                true
            }
            Start::Entry | Start::Named => {
                visit.ends.clone_from(&visit.seen);
                true
            }
        };
        let calls = std::mem::take(&mut visit.calls).into_iter().collect();
        let proven = visit.proven().into_iter();
        let instructions: Vec<_> = proven
            .filter_map(|at| {
                let spot = self.spots.get(at)?;
                Some((at, spot.len(), spot.rule))
            })
            .collect();
        (trusted && !overlap(&instructions)).then_some(ExploredFunction {
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
            self.with(visit, next);
        }
    }

    /// Follows what is behind the calls of a program's first code. Mostly that is other code. In a
    /// dynamic linker it runs the program in the end: by a jump to an address in a register.
    fn behind_entry(&mut self, visit: &mut Visit) {
        let mark = visit.mark();
        self.behind_calls(visit);
        if visit.ends.len() == mark.ends || visit.good_returns > mark.good_returns {
            self.undo(visit, &mark);
            visit.behind_calls.clear();
        }
    }

    /// Follows the code that only tables of jumps lead to: what lies in the function
    /// that starts at `start` and was not reached, entered as the jump was left. It is
    /// believed only if it leads to the function's end, or to what was reached before,
    /// with the stack as it is there.
    fn cases(&mut self, visit: &mut Visit, mut at: u64) {
        let next = self.starts.range(at.saturating_add(1)..).next();
        let limit = next.map_or(self.text.end(), |&next| next.min(self.text.end()));
        let mut in_vain = 0;
        for _ in 0..MAX_CASES {
            if visit.switches.is_empty() || !self.may_go_on() {
                return;
            }
            if in_vain > LEAST_IN_VAIN + IN_VAIN * visit.seen.len() {
                return;
            }
            at = self.not_reached(at, limit);
            if at >= limit {
                return;
            }
            let left = self.budget;
            if !self.case(visit, at) {
                in_vain += left - self.budget;
                at = self.end_of_flow(at).max(at + 1);
            }
        }
    }

    /// The first instruction from `at` on that nothing led to so far.
    fn not_reached(&mut self, mut at: u64, limit: u64) -> u64 {
        loop {
            at = self.skip_padding(at, limit);
            let visit = self.visit;
            let reached = |spot: &&mut Spot| spot.visit == visit || spot.known.is_some();
            match self.spots.get(at).filter(reached) {
                Some(spot) if at < limit => at = spot.instruction.next_ip(),
                _ => return at,
            }
        }
    }

    /// Follows the code at `at` as a jump's target; whether it is one.
    fn case(&mut self, visit: &mut Visit, at: u64) -> bool {
        let mark = visit.mark();
        for switch in (0..mark.switches).rev().take(MAX_SWITCHES) {
            let Some((from, machine)) = visit.switches.get(switch) else {
                continue;
            };
            let way = OpenPath {
                from: Some(*from),
                at,
                machine: machine.clone(),
            };
            if !self.with(visit, way) {
                continue;
            }
            self.behind_calls(visit);
            let new = visit.ways.get(mark.ways..).unwrap_or_default();
            let joins = new.iter().any(|&(to, _)| {
                let spot = self.spots.get(to);
                spot.is_some_and(|spot| spot.visit == self.visit && spot.rank < mark.seen)
            });
            if joins || visit.good_returns > mark.good_returns {
                return true;
            }
            self.undo(visit, &mark);
        }
        false
    }

    /// Follows one more way; `false`: it contradicts the rest, and is forgotten.
    fn with(&mut self, visit: &mut Visit, way: OpenPath) -> bool {
        let mark = visit.mark();
        visit.waiting.push(way);
        let fits = self.paths(visit).is_ok();
        if !fits {
            self.undo(visit, &mark);
        }
        fits
    }

    /// Forgets what was followed since.
    fn undo(&mut self, visit: &mut Visit, mark: &VisitMark) {
        for at in visit.seen.drain(mark.seen..) {
            if let Some(spot) = self.spots.get(at) {
                spot.visit = 0;
            }
        }
        visit.ways.truncate(mark.ways);
        visit.ends.truncate(mark.ends);
        visit.last_calls.truncate(mark.last_calls);
        visit.calls.truncate(mark.calls);
        visit.switches.truncate(mark.switches);
        visit.good_returns = mark.good_returns;
        visit.behind_calls.clone_from(&mark.behind_calls);
        visit.waiting.clear();
    }

    /// Where the code from `at` on does not go on to the next instruction, or was
    /// reached.
    fn end_of_flow(&mut self, mut at: u64) -> u64 {
        let visit = self.visit;
        while let Some(i) = self.decode(at) {
            at = i.next_ip();
            if ends_flow(&i) || self.spots.get(at).is_some_and(|next| next.visit == visit) {
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
    fn path(&mut self, visit: &mut Visit, way: OpenPath) -> Result<(), Doubtful> {
        let OpenPath {
            mut from,
            mut at,
            mut machine,
        } = way;
        loop {
            let rule = machine.rule();
            if let Some(from) = from {
                visit.ways.push((at, from));
            }
            let number = self.visit;
            let Some(spot) = self.spots.get(at) else {
                // Data, or the end of what is there: after a call that does not return.
                return Ok(());
            };
            if spot.visit == number {
                return if spot.rule == rule {
                    Ok(())
                } else {
                    Err(Doubtful)
                };
            }
            if let Some(known) = spot.known {
                if known != rule {
                    return Err(Doubtful);
                }
                // From here on it was followed to its end before.
                visit.ends.extend(from);
                visit.good_returns += 1;
                return Ok(());
            }
            if visit.seen.len() >= self.limit || self.budget == 0 {
                return Err(Doubtful);
            }
            self.budget -= 1;
            #[cfg(test)]
            self.states.push((at, machine.clone()));
            (spot.visit, spot.rank, spot.rule) = (number, visit.seen.len(), rule);
            let i = spot.instruction;
            visit.seen.push(at);
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
        machine: &mut MachineState,
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
                let is_new = visit.switches.iter().all(|(_, known)| known != machine);
                if is_new && !machine.is_as_at_entry() {
                    visit.switches.push((i.ip(), machine.clone()));
                }
                Ok(false)
            }
            FlowControl::Return => {
                if self.is_shared || !machine.is_as_at_entry() {
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
        loaded_address(i).filter(|at| at.is_multiple_of(ALIGNMENT) && self.text.contains(*at))
    }

    /// A direct jump: within the text it is followed.
    fn jump(
        &self,
        visit: &mut Visit,
        i: &Instruction,
        machine: &MachineState,
    ) -> Result<(), Doubtful> {
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
        visit.waiting.push(OpenPath {
            from: Some(i.ip()),
            at: to,
            machine: machine.clone(),
        });
        Ok(())
    }

    /// A call; returns whether it may return, if that can be seen.
    fn call(&mut self, visit: &mut Visit, i: &Instruction, machine: &mut MachineState) -> bool {
        self.called = true;
        if i.op0_kind() == OpKind::NearBranch64 {
            let to = i.near_branch_target();
            if to == i.next_ip() {
                machine.push_address();
                return true;
            }
            visit.calls.push(to);
        }
        let is_syscall = i.mnemonic() == Mnemonic::Syscall;
        if self.start == Start::Entry && !is_syscall {
            // Nothing goes on behind what runs the program.
            machine.call();
            if !self.is_perhaps_end(i.next_ip()) && visit.behind_calls.len() < MAX_BEHIND_CALLS {
                visit.behind_calls.push(OpenPath {
                    from: Some(i.ip()),
                    at: i.next_ip(),
                    machine: machine.clone(),
                });
            }
            return false;
        }
        let is_bare = machine.stack() == Some(0) && !is_syscall;
        if self.start == Start::Guessed && is_bare {
            // With something on the stack, what follows shows that the call returns: it
            // takes it off again. Without, this may be the midst of a function, and what
            // follows, behind a call that does not return, another one.
            self.behind_bare_call.get_or_insert(i.next_ip());
            return false;
        }
        if is_syscall {
            machine.system_call();
        } else {
            machine.call();
        }
        if self.starts.contains(&i.next_ip()) || self.borders.contains(&i.next_ip()) {
            visit.last_calls.push(i.ip());
            return false;
        }
        let is_last = self.is_perhaps_end(i.next_ip());
        if is_last {
            visit.last_calls.push(i.ip());
        }
        if (is_last || self.careful) && visit.behind_calls.len() < MAX_BEHIND_CALLS {
            visit.behind_calls.push(OpenPath {
                from: Some(i.ip()),
                at: i.next_ip(),
                machine: machine.clone(),
            });
            return false;
        }
        true
    }

    /// Whether padding up to the usual alignment of functions begins here.
    fn is_perhaps_end(&mut self, at: u64) -> bool {
        let next = self.skip_padding(at, at.saturating_add(ALIGNMENT));
        next > at && next.is_multiple_of(ALIGNMENT)
    }
}

/// Whether instructions, by address, lie over each other: then some are none.
fn overlap(instructions: &[(u64, u8, Rule)]) -> bool {
    let pairs = instructions.iter().zip(instructions.iter().skip(1));
    pairs
        .into_iter()
        .any(|(a, b)| a.0.saturating_add(a.1.into()) > b.0)
}
