//! Rules for text without unwind data, from the instructions themselves.
//!
//! Hand-written assembly often has none, musl's and Go's files have none at all. A function is
//! followed from its first instruction to its ends. Each instruction's effect on the stack pointer,
//! on rbp and on the places that lead back to them is followed. The result is believed only if
//! every `ret` that is reached finds the stack as the call left it, for only then was the
//! function's start a real one. What is not believed, or not reached, stays without rules: a stack
//! is cut there, or guessed, and is marked so.
//!
//! Starts are the symbols of functions, the targets of calls, and where code goes on
//! behind the end of other code.

mod callee;
mod explore;
mod machine;
#[cfg(test)]
mod tests;
mod text;
mod visit;

use super::rule::{END, NONE};
use aiprof_common::{CFA_RSP, Rule};
use explore::{Explorer, Start};
use rustc_hash::FxHashSet;
use std::collections::BTreeSet;
use text::{ALIGNMENT, ends_flow, range, skip_padding};

pub(super) use callee::{direct_calls, rule_behind_call};
pub(super) use text::{CodeText, loaded_address};

/// Most instructions followed for one page of text: 100 ms or so.
const MAX_STEPS: usize = 500_000;

/// Code with one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RuledCode {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) rule: Rule,
}

/// What a file records about its functions.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownFunctions<'a> {
    /// Where functions start, by symbols and such.
    pub(super) starts: &'a [u64],
    /// Where they start, or where labels are.
    pub(super) likely: &'a [u64],
    /// Where other functions jump.
    pub(super) borders: &'a [u64],
    /// Whether these are all.
    pub(super) all: bool,
    /// Where the program begins: nothing has called what is there. 0: nowhere.
    pub(super) entry: u64,
    /// The rule of the one frame in which all these functions run, if they do.
    pub(super) frame: Option<Rule>,
}

/// The rules of the functions in `text`, by address. What lies in between has none.
pub(super) fn rules(text: CodeText<'_>, known: KnownFunctions<'_>) -> Vec<RuledCode> {
    let mut found = TextScan {
        text,
        explorer: Explorer::new(text, MAX_STEPS),
        called: BTreeSet::new(),
        followed: FxHashSet::default(),
        entry: known.entry,
        frame: known.frame,
    };
    if known.frame.is_some() {
        found.explorer.share_frame();
    }
    let named = known.starts.iter().copied().filter(|&at| text.contains(at));
    let named: BTreeSet<u64> = named.collect();
    found.explorer.add_starts(&named);
    found.explorer.add_borders(known.borders);
    let likely = known.likely.iter().filter(|&&at| text.contains(at));
    let (sure, unsure): (Vec<u64>, Vec<u64>) =
        likely.partition(|&&at| text::begins_as_function(&text, at));
    found.explorer.add_starts(&sure.iter().copied().collect());
    found.explorer.add_borders(&unsure);
    let start = if known.all {
        Start::Named
    } else {
        Start::Called
    };
    for at in named.into_iter().chain(sure) {
        found.follow(at, start);
    }
    found.follow_called();
    for at in unsure {
        if !found.explorer.is_known(at) {
            found.follow(at, Start::Aligned);
        }
    }
    found.follow_called();
    found.sweep();
    found.pieces()
}

/// Whether text from `start` on does nothing but fill up.
pub(super) fn is_padding(start: u64, bytes: &[u8]) -> bool {
    let text = CodeText::new(start, bytes);
    skip_padding(&text, range(&text), |at| text.decode(at)) == text.end()
}

/// What has been found of a text.
struct TextScan<'a> {
    text: CodeText<'a>,
    explorer: Explorer<'a>,
    /// Starts that calls lead to and that are still to be followed.
    called: BTreeSet<u64>,
    /// Starts that were followed, believed or not.
    followed: FxHashSet<u64>,
    /// See [`KnownFunctions`].
    entry: u64,
    frame: Option<Rule>,
}

impl TextScan<'_> {
    /// Follows what was called.
    fn follow_called(&mut self) {
        while let Some(at) = self.called.pop_first() {
            self.follow(at, Start::Called);
        }
    }

    /// Follows a function; whether it is believed.
    fn follow(&mut self, at: u64, start: Start) -> bool {
        self.followed.insert(at);
        let is_entry = at == self.entry;
        let start = if is_entry { Start::Entry } else { start };
        let Some(mut function) = self.explorer.function(at, start) else {
            return false;
        };
        if is_entry {
            for (_, _, rule) in &mut function.instructions {
                *rule = END;
            }
        }
        for (at, _, rule) in function.instructions {
            self.explorer.believe(at, rule);
        }
        let new = function
            .calls
            .into_iter()
            .filter(|&at| self.text.contains(at));
        let new: BTreeSet<u64> = new.filter(|&at| !self.explorer.is_known(at)).collect();
        self.explorer.add_starts(&new);
        let new = new.into_iter().filter(|at| !self.followed.contains(at));
        self.called.extend(new);
        true
    }

    /// Follows what code is left, from its first instruction on.
    fn sweep(&mut self) {
        let range = range(&self.text);
        let mut at = range.start;
        while at < range.end && self.explorer.may_go_on() {
            let end = self.explorer.behind_known(at);
            at = self.explorer.skip_padding(end, range.end);
            if self.explorer.is_known(at) {
                continue;
            }
            if at >= range.end || self.explorer.decode(at).is_none() {
                at += 1;
                continue;
            }
            let start = match at > end && at.is_multiple_of(ALIGNMENT) {
                true => Start::Aligned,
                false => Start::Guessed,
            };
            if !self.follow(at, start) {
                let end = self.end_of_flow(at);
                let behind = self.explorer.behind_doubtful(at);
                at = behind.map_or(end, |behind| behind.min(end));
            }
            self.follow_called();
        }
    }

    /// Where the code from `at` on does not go on to the next instruction.
    fn end_of_flow(&mut self, mut at: u64) -> u64 {
        while let Some(i) = self.explorer.decode(at) {
            at = i.next_ip();
            if ends_flow(&i) || self.explorer.is_known(at) {
                return at;
            }
        }
        at + 1
    }

    /// Neighbours with equal rules as one.
    fn pieces(self) -> Vec<RuledCode> {
        let mut pieces: Vec<RuledCode> = Vec::new();
        for (start, end, rule) in self.explorer.known() {
            let rule = self.frame.map_or(rule, |frame| within(rule, frame));
            match pieces.last_mut() {
                Some(last) if last.end == start && last.rule == rule => last.end = end,
                _ => pieces.push(RuledCode { start, end, rule }),
            }
        }
        pieces.retain(|piece| piece.rule != NONE);
        pieces
    }
}

/// The rule of a function that runs in a frame made by others. It adds to that frame's stack pointer
/// what it has pushed itself.
fn within(rule: Rule, frame: Rule) -> Rule {
    if rule.kind != CFA_RSP {
        return rule;
    }
    let pushed = rule.cfa_off.saturating_sub(8);
    Rule {
        cfa_off: frame.cfa_off.saturating_add(pushed),
        ..frame
    }
}
