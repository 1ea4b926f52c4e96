//! Building the table page for one page of text.

use super::cfi::Saved;
use super::code::{CodeText, direct_calls};
use super::gaps::{Functions, TextSource};
use super::go::{GoPage, GoUnwind};
use super::index::{Cursor, Index, IndexEntry};
use super::record::{Fde, RecordHeader, RecordReader};
use super::rule::{END, LATER, NONE, UNSUPPORTED, rule_of};
use super::table::{Encoder, PageRows};
use super::{PageContent, PageDepth, UnwindError};
use crate::elf::{FileSpan, ReadAt};
use aiprof_common::{CFA_RSP, PAGE_SIZE, RBP_UNDEFINED, Rule};
use std::ops::Range;

/// How many FDEs back one that covers the page's start is looked for; more than
/// one only where empty FDEs or duplicates precede the page.
const MAX_BACK: u64 = 32;
/// Most FDEs for the same address that are looked at; LLVM's own library has up
/// to 21.
const MAX_TWINS: usize = 32;
/// Most bytes of FDEs decoded for one page. Real pages need some 20 KB; a
/// hostile file could name one long FDE for every byte of text.
const MAX_PAGE_BYTES: u64 = 4 << 20;
/// Most FDEs that are searched for one frame. GHC's runtime has some thousands.
const MAX_SEARCHED: u64 = 1 << 16;
/// What looking at an FDE costs, whatever its size: a read from the file.
const FDE_COST: u64 = 64;

/// Builds pages of one file; kept between pages, it saves allocations.
pub(super) struct PageBuilder<'a, R> {
    source: &'a R,
    place: TextSource<'a, R>,
    go: Option<&'a GoUnwind>,
    cursor: Cursor<'a>,
    reader: RecordReader,
    rows: PageRows,
    encoder: Encoder,
    /// Bytes of FDEs that may still be decoded for this page.
    budget: u64,
    /// FDEs not understood, of all pages built.
    malformed: u64,
}

/// What became of an FDE.
enum FdeOutcome {
    /// It has no code, or none in the page.
    Elsewhere,
    /// Its rows are in the page.
    Added,
    /// It is malformed, or contradicts the index.
    Refused,
    /// The page's budget is used up.
    Exhausted,
}

impl<'a, R: ReadAt> PageBuilder<'a, R> {
    /// For a file's index and its text.
    pub(super) fn new(
        source: &'a R,
        index: &'a Index,
        functions: &'a Functions,
        go: Option<&'a GoUnwind>,
    ) -> Result<Self, UnwindError> {
        Ok(Self {
            source,
            place: TextSource {
                source,
                functions,
                go,
            },
            go,
            cursor: index.cursor(source)?,
            reader: RecordReader::new(index.frames().unwrap_or(FileSpan::EMPTY)),
            rows: PageRows::default(),
            encoder: Encoder::new(),
            budget: 0,
            malformed: 0,
        })
    }

    /// FDEs, of all pages built, that are malformed or beyond a limit.
    pub(super) fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Rows of the last page built, before rows that only bridge distances.
    pub(super) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Writes the table of the page at address `page` to `out`, which stays empty if
    /// neither an FDE nor its instructions give a rule for any of it.
    pub(super) fn build(
        &mut self,
        page: u64,
        depth: PageDepth,
        out: &mut Vec<u8>,
    ) -> Result<PageContent, UnwindError> {
        out.clear();
        let mut covered = self.describe(page)?;
        if let Some(first) = &self.place.functions.first_of_greenlet {
            let part = range_in_page(page, first);
            self.rows.change(&part, |_| END);
        }
        let go = self.describe_go(page)?;
        covered |= !go.parts.is_empty() || !go.otherwise.is_empty();
        self.rows.fill(&go.parts);
        self.rows.reserve(&mut self.encoder);
        let gaps = self.rows.gaps(PAGE_SIZE as u32);
        let place = self.place;
        let found = place.fill(page, &gaps, depth, self)?;
        let is_partial = found.iter().any(|(_, rule)| *rule == LATER);
        if !found.is_empty() {
            covered = true;
            self.rows.fill(&found);
        }
        self.rows.fill(&go.otherwise);
        let by_register = self.rows.by_register(PAGE_SIZE as u32);
        if !by_register.is_empty() {
            self.rows.fill(&place.behind_calls(page, &by_register)?);
        }
        if !covered {
            return Ok(PageContent::NoData);
        }
        self.rows.encode(&mut self.encoder, out);
        Ok(match is_partial {
            true => PageContent::Partial,
            false => PageContent::Table,
        })
    }

    /// A page by Go's tables.
    fn describe_go(&mut self, page: u64) -> Result<GoPage, UnwindError> {
        let Some(go) = self.go else {
            return Ok(GoPage::default());
        };
        let found = go.page(self.source, page)?;
        self.malformed += found.malformed;
        Ok(found)
    }

    /// Takes in the rows of the page that the unwind data give; whether there are any.
    fn describe(&mut self, page: u64) -> Result<bool, UnwindError> {
        self.budget = MAX_PAGE_BYTES;
        self.rows.clear();
        self.rows.push(0, NONE);
        let first_inside = self.cursor.count_up_to(self.source, page)?;
        let mut covered = false;
        for i in self.first_covering(first_inside)?..self.cursor.len() {
            let entry = self.cursor.entry(self.source, i)?;
            let Some(at) = offset_in_page(page, entry.start) else {
                break;
            };
            let outcome = self.add(page, entry)?;
            covered |= !matches!(outcome, FdeOutcome::Elsewhere);
            if matches!(outcome, FdeOutcome::Refused | FdeOutcome::Exhausted) {
                self.rows.push(at, UNSUPPORTED);
                self.malformed += 1;
            }
            if matches!(outcome, FdeOutcome::Exhausted) {
                break;
            }
        }
        Ok(covered)
    }

    /// The rule of the frame that GHC's `StgRun` makes for all Haskell code: the one frame whose
    /// unwind data give the caller's stack pointer by an expression.
    pub(super) fn shared_frame(&mut self) -> Option<Rule> {
        for i in 0..self.cursor.len().min(MAX_SEARCHED) {
            let entry = self.cursor.entry(self.source, i).ok()?;
            let header = self.reader.header(self.source, entry.fde).ok()??;
            let Some(mut fde) = self.reader.fde(self.source, &header).ok()? else {
                continue;
            };
            let mut program = fde.rows();
            while let Some((state, more)) = program.next_row() {
                let rule = rule_of(&state, false);
                if matches!(state.rsp, Saved::Value { .. }) && rule.kind == CFA_RSP {
                    return Some(rule);
                }
                if !more {
                    break;
                }
            }
        }
        None
    }

    /// The code in a range of addresses that FDEs, or Go's tables, describe, in order.
    pub(super) fn covered(&mut self, range: &Range<u64>) -> Result<Vec<Range<u64>>, UnwindError> {
        let first_inside = self.cursor.count_up_to(self.source, range.start)?;
        let mut found = Vec::new();
        self.budget = MAX_PAGE_BYTES;
        for i in self.first_covering(first_inside)?..self.cursor.len() {
            let entry = self.cursor.entry(self.source, i)?;
            if entry.start >= range.end {
                break;
            }
            match self.find_fde(&entry)? {
                Some((_, code)) if !code.is_empty() => found.push(code),
                // Not known: what follows is not described either.
                None => found.push(entry.start..range.end),
                Some(_) => {}
            }
        }
        if let Some(go) = self.go {
            found.extend(go.covered(self.source, range)?);
            found.sort_by_key(|code| code.start);
        }
        Ok(found)
    }

    /// The entry, of the `n` that start at or before a page, that may cover the
    /// page's first byte: the last one that is not empty.
    fn first_covering(&mut self, n: u64) -> Result<u64, UnwindError> {
        for i in (n.saturating_sub(MAX_BACK)..n).rev() {
            let entry = self.cursor.entry(self.source, i)?;
            let found = self.find_fde(&entry)?;
            if found.is_none_or(|(_, range)| !range.is_empty()) {
                return Ok(i);
            }
        }
        Ok(n)
    }

    /// The FDE an entry leads to, and the code it describes; `None` if it is
    /// malformed or describes other code.
    ///
    /// lld lists an address once, and if an empty function shares it with a real
    /// one, it may be the empty one that is listed: the other follows it.
    fn find_fde(
        &mut self,
        entry: &IndexEntry,
    ) -> Result<Option<(RecordHeader, Range<u64>)>, UnwindError> {
        let mut found = None;
        let mut at = entry.fde;
        for _ in 0..MAX_TWINS {
            if !self.charge(FDE_COST) {
                return Ok(None);
            }
            let Some(header) = self.reader.header(self.source, at)? else {
                break;
            };
            at = header.end;
            match self.reader.fde_range(self.source, &header)? {
                Some(range) if range.start == entry.start => {
                    let empty = range.is_empty();
                    found = Some((header, range));
                    if !empty {
                        break;
                    }
                }
                _ => break,
            }
        }
        Ok(found)
    }

    /// Takes `cost` from the page's budget; false, and nothing left, if it is
    /// too much.
    fn charge(&mut self, cost: u64) -> bool {
        let left = self.budget.checked_sub(cost);
        self.budget = left.unwrap_or(0);
        left.is_some()
    }

    /// Why an FDE was not decoded.
    fn refusal(&self) -> FdeOutcome {
        match self.budget < FDE_COST {
            true => FdeOutcome::Exhausted,
            false => FdeOutcome::Refused,
        }
    }

    /// Adds the rows of one FDE that lie in the page.
    fn add(&mut self, page: u64, entry: IndexEntry) -> Result<FdeOutcome, UnwindError> {
        let Some((header, range)) = self.find_fde(&entry)? else {
            return Ok(self.refusal());
        };
        if range.is_empty() || range.end <= page {
            return Ok(FdeOutcome::Elsewhere);
        }
        if !self.charge(header.end - header.body) {
            return Ok(FdeOutcome::Exhausted);
        }
        let Some(fde) = self.reader.fde(self.source, &header)? else {
            return Ok(self.refusal());
        };
        let AddedRows { is_good, left_at } = add_rows(&mut self.rows, page, fde);
        self.malformed += u64::from(!is_good);
        if let Some(left_at) = left_at {
            self.resumes(page, &(range.start..left_at))?;
        }
        if let Some(end) = offset_in_page(page, range.end) {
            self.rows.push(end, NONE);
        }
        Ok(FdeOutcome::Added)
    }

    /// Takes in that a function overwrites what it saved, at the end of `code`, to resume an
    /// exception in another frame: its last call does so. From there on, the saved rbp is that
    /// frame's and not the caller's.
    fn resumes(&mut self, page: u64, code: &Range<u64>) -> Result<(), UnwindError> {
        let bytes = self.place.read(code)?;
        let calls = direct_calls(CodeText::new(code.start, &bytes));
        let Some(&(behind, length, _)) = calls.last() else {
            return Ok(());
        };
        let from = behind.saturating_sub(length as u64 - 1);
        let part = range_in_page(page, &(from..code.end));
        self.rows.change(&part, |rule| Rule {
            rbp: RBP_UNDEFINED,
            ..rule
        });
        Ok(())
    }
}

/// The part of a range of addresses that lies in the page.
fn range_in_page(page: u64, range: &Range<u64>) -> Range<u32> {
    let offset = |at: u64| at.saturating_sub(page).min(PAGE_SIZE) as u32;
    offset(range.start)..offset(range.end)
}

/// What [`add_rows`] found of an FDE.
struct AddedRows {
    /// Whether its instructions are well-formed.
    is_good: bool,
    /// Where its function has restored the registers of another frame, in which it resumes an
    /// exception.
    left_at: Option<u64>,
}

/// Offset of an address in the page; the page's start for earlier ones, `None`
/// for later ones.
fn offset_in_page(page: u64, at: u64) -> Option<u32> {
    let offset = at.saturating_sub(page);
    (offset < PAGE_SIZE).then_some(offset as u32)
}

/// Runs an FDE's instructions and adds the rows that reach into the page.
fn add_rows(rows: &mut PageRows, page: u64, mut fde: Fde<'_>) -> AddedRows {
    let signal = fde.cie.signal;
    let end = fde.range.end;
    let mut program = fde.rows();
    let mut added = AddedRows {
        is_good: true,
        left_at: None,
    };
    loop {
        let start = program.location();
        if start >= end {
            return added;
        }
        let Some(offset) = offset_in_page(page, start) else {
            return added;
        };
        let Some((state, more)) = program.next_row() else {
            // From here on the file's own rules are not known.
            rows.push(offset, UNSUPPORTED);
            added.is_good = false;
            return added;
        };
        if state.is_left() {
            added.left_at.get_or_insert(start);
        }
        let end = if more { program.location() } else { end };
        if end > page && end > start {
            rows.push(offset, rule_of(&state, signal));
        }
        if !more {
            return added;
        }
    }
}
