//! Rules for Go's code, from the tables by which Go's runtime walks stacks itself.
//!
//! A table gives for each instruction the distance of the stack pointer below the return address,
//! so the CFA is that and the return address's 8 bytes. A function with a frame, whose first word
//! is the caller's rbp, has that at CFA - 16. Some functions of the runtime move the stack pointer
//! to another stack, which no table describes: see [`switches`]. Functions outside of the runtime
//! that do so get rules from their instructions only; where those give none, a stack is cut.

mod functions;
mod switches;
mod symbolic;

use super::TextSegment;
use super::rule::UNSUPPORTED;
use crate::elf::{CodeFile, ReadAt, bytes_from};
use crate::go::{GoFunction, GoReader, GoTable};
use aiprof_common::{CFA_RSP, PAGE_SIZE, RBP_AT_CFA, RBP_SAME, Rule};
use functions::{FunctionRole, rules_of};
use std::io;
use std::ops::Range;
use std::sync::OnceLock;
use switches::ThreadFrame;

/// Most functions of a page: there is one for each 16 bytes of it.
const MAX_PAGE_FUNCTIONS: u32 = 4096;
/// Most bytes of code that are looked at of a function that changes stacks.
const MAX_CODE: u64 = 16 << 10;
/// Most functions whose starts are kept.
const MAX_STARTS: u32 = 1 << 19;

/// A part of a page, and its rule.
pub(super) type RuledPart = (Range<u32>, Rule);

/// Code with one rule.
type Ruled = (Range<u64>, Rule);

/// The table of a file of Go's linker.
#[derive(Debug)]
pub(super) struct GoUnwind {
    table: GoTable,
    text: Vec<TextSegment>,
    /// See [`functions::resuming`]; found when it is first needed.
    resuming: OnceLock<Option<ThreadFrame>>,
}

/// What is known of a page.
#[derive(Default)]
pub(super) struct GoPage {
    /// Rules.
    pub(super) parts: Vec<RuledPart>,
    /// Rules for code whose own instructions give none.
    pub(super) otherwise: Vec<RuledPart>,
    /// Functions whose records contradict the format.
    pub(super) malformed: u64,
}

impl GoUnwind {
    /// Finds Go's tables in a file; `None` if it is no Go program.
    pub(super) fn find<R: ReadAt>(source: &R, elf: &CodeFile) -> io::Result<Option<Self>> {
        let table = GoTable::find(source, elf)?;
        Ok(table.map(|table| Self {
            table,
            text: elf.text.clone(),
            resuming: OnceLock::new(),
        }))
    }

    /// The rules for a page.
    pub(super) fn page<R: ReadAt>(&self, source: &R, page: u64) -> io::Result<GoPage> {
        let mut found = GoPage::default();
        let end = page.saturating_add(PAGE_SIZE);
        let mut reader = GoReader::new(source, &self.table);
        let first = reader.index_of(page)?.unwrap_or(0);
        for index in first..first.saturating_add(MAX_PAGE_FUNCTIONS) {
            if index >= self.table.len() {
                break;
            }
            let Some(function) = reader.function(index)? else {
                found.malformed += 1;
                continue;
            };
            if function.start > end {
                break;
            }
            let mut place = GoCode {
                go: self,
                source,
                reader: &mut reader,
                function,
                page,
            };
            let (list, rules) = match rules_of(&mut place)? {
                FunctionRole::Described(rules) => (&mut found.parts, rules),
                FunctionRole::ByCode(rules) => (&mut found.otherwise, rules),
                FunctionRole::Foreign => continue,
                FunctionRole::Malformed => {
                    found.malformed += 1;
                    let all = function.start..function.end;
                    (&mut found.parts, vec![(all, UNSUPPORTED)])
                }
            };
            let rules = rules.into_iter();
            list.extend(rules.filter_map(|(code, rule)| Some((in_page(page, &code)?, rule))));
        }
        Ok(found)
    }

    /// The code in a range of addresses that tables describe, in order.
    pub(super) fn covered<R: ReadAt>(
        &self,
        source: &R,
        range: &Range<u64>,
    ) -> io::Result<Vec<Range<u64>>> {
        let mut found: Vec<Range<u64>> = Vec::new();
        let mut reader = GoReader::new(source, &self.table);
        let first = reader.index_of(range.start)?.unwrap_or(0);
        for index in first..self.table.len() {
            let Some(function) = reader.function(index)? else {
                continue;
            };
            if function.start >= range.end {
                break;
            }
            if function.pcsp == 0 || function.writes_sp() {
                continue;
            }
            match found.last_mut() {
                Some(last) if last.end == function.start => last.end = function.end,
                _ => found.push(function.start..function.end),
            }
        }
        Ok(found)
    }

    /// Where all functions start, as bytes from the text's first one.
    pub(super) fn starts<R: ReadAt>(&self, source: &R, first: u64) -> io::Result<Vec<u32>> {
        let mut reader = GoReader::new(source, &self.table);
        let mut starts = Vec::new();
        for index in 0..self.table.len().min(MAX_STARTS) {
            let function = reader.function(index)?;
            let start = function.and_then(|f| f.start.checked_sub(first));
            starts.extend(start.and_then(|start| u32::try_from(start).ok()));
        }
        Ok(starts)
    }

    fn resuming<R: ReadAt>(&self, source: &R) -> Option<ThreadFrame> {
        // If it cannot be read, only this rule is missing.
        let find = || functions::resuming(self, source).ok().flatten();
        *self.resuming.get_or_init(find)
    }

    /// The bytes of a function's code, at most [`MAX_CODE`].
    fn code<R: ReadAt>(&self, source: &R, function: &GoFunction) -> io::Result<Vec<u8>> {
        let size = (function.end - function.start).min(MAX_CODE);
        bytes_from(source, &self.text, function.start, size)
    }
}

/// A function, and where it was read from.
struct GoCode<'a, 'r, R> {
    go: &'a GoUnwind,
    source: &'a R,
    reader: &'r mut GoReader<'a, R>,
    function: GoFunction,
    /// The page whose rules are sought.
    page: u64,
}

impl<R: ReadAt> GoCode<'_, '_, R> {
    fn code(&self) -> io::Result<Vec<u8>> {
        self.go.code(self.source, &self.function)
    }
}

/// The part of a page that some code is.
fn in_page(page: u64, code: &Range<u64>) -> Option<Range<u32>> {
    let offset = |at: u64| at.saturating_sub(page).min(PAGE_SIZE) as u32;
    let part = offset(code.start)..offset(code.end);
    (!part.is_empty()).then_some(part)
}

/// The rule where the stack pointer is `depth` bytes below the return address.
fn frame(depth: i32) -> Rule {
    let Some(cfa_off) = depth.checked_add(8).filter(|_| depth >= 0) else {
        return UNSUPPORTED;
    };
    let (rbp, rbp_off) = match depth {
        8.. => (RBP_AT_CFA, -16),
        _ => (RBP_SAME, 0),
    };
    Rule {
        cfa_off,
        rbp_off,
        kind: CFA_RSP,
        rbp,
    }
}
