//! Code that no record of the unwind data describes: where it is, where functions
//! start in it, and the rules that its instructions give.

use super::code::{self, CodeText, KnownFunctions};
use super::go::GoUnwind;
use super::greenlet;
use super::page::PageBuilder;
use super::rule::{LATER, derived};
use super::survey::{self, Survey, SurveySources};
use super::{PageDepth, TextSegment, UnwindError};
use crate::elf::{self, CodeFile, CodeTables, ElfSymbol, Entries, FileRange, FileSpan, ReadAt};
use aiprof_common::{PAGE_SIZE, Rule};
use std::ops::Range;
use std::sync::OnceLock;

/// How far before a page a function may start that reaches into it.
const MAX_BEFORE: u64 = 64 << 10;
/// How much is looked at before a page where nothing shows where functions start.
const USUAL_BEFORE: u64 = 8 << 10;
/// How much is looked at behind it.
const BEHIND: u64 = 16 << 10;
/// Most symbols of functions that are kept of a file, 4 bytes of memory each: the
/// largest libraries have 400,000.
const MAX_STARTS: usize = 1 << 19;
/// Most bytes of symbol tables read.
const MAX_SYMBOL_BYTES: u64 = 64 << 20;
/// Most parts of a page whose calls are looked at.
const MAX_BY_REGISTER: usize = 64;
/// Bytes of a called function that are looked at.
const CALLEE: u64 = 4096;
/// Bytes of text whose records are looked at at once.
const COVERED_AT_ONCE: u64 = 1 << 20;
/// Most sections of code that are kept separate.
const MAX_CODE: usize = 64;
/// What leads to the functions that the unwind data do not describe.
#[derive(Debug)]
pub(super) struct Functions {
    tables: CodeTables,
    /// The parts of the text that are code, by address: old linkers put data among it.
    code: Vec<TextSegment>,
    /// Parts of the file that are written to.
    data: Vec<FileSpan>,
    /// The address of the program's first instruction; 0: none.
    entry: u64,
    /// The first function of a greenlet.
    pub(super) first_of_greenlet: Option<Range<u64>>,
    /// Found when it is first needed.
    layout: OnceLock<FunctionLayout>,
    /// The rule of the one frame in which all code without unwind data runs, if it does.
    frame: OnceLock<Option<Rule>>,
}

/// Where functions are.
#[derive(Debug)]
struct FunctionLayout {
    /// They start there, by symbols and calls.
    starts: Starts,
    /// They start there, or labels are there.
    likely: Starts,
    /// Other functions jump there.
    borders: Starts,
    /// Whether all starts are among these.
    all: bool,
}

/// Addresses of functions, in order, each in bytes from the text's first one.
#[derive(Debug)]
struct Starts {
    first: u64,
    offsets: Vec<u32>,
}

impl Starts {
    /// The starts, from those addresses that lie in some text.
    fn new(mut offsets: Vec<u32>, first: u64, text: &[TextSegment]) -> Self {
        let inside = |offset: u32| {
            let at = first.saturating_add(offset.into());
            text.iter().any(|t| at >= t.vaddr && at - t.vaddr < t.size)
        };
        offsets.retain(|&offset| inside(offset));
        offsets.sort_unstable();
        offsets.dedup();
        offsets.shrink_to_fit();
        Self { first, offsets }
    }

    /// How many lie before an address.
    fn before(&self, at: u64) -> usize {
        let address = |offset: u32| self.first.saturating_add(offset.into());
        self.offsets.partition_point(|&offset| address(offset) < at)
    }

    /// The last one at or before an address.
    fn last_up_to(&self, at: u64) -> Option<u64> {
        let index = self.before(at.saturating_add(1)).checked_sub(1)?;
        Some(
            self.first
                .saturating_add((*self.offsets.get(index)?).into()),
        )
    }

    /// Those in a range of addresses.
    fn within(&self, range: &Range<u64>) -> Vec<u64> {
        let found = self
            .offsets
            .get(self.before(range.start)..self.before(range.end));
        let found = found.unwrap_or_default().iter();
        found
            .map(|&o| self.first.saturating_add(o.into()))
            .collect()
    }
}

impl Functions {
    /// The functions of a file.
    pub(super) fn find<R: ReadAt>(source: &R, elf: &CodeFile) -> Self {
        let tables = elf.tables();
        Self {
            code: code_of(&elf.text, &tables.code),
            tables,
            data: elf.data.clone(),
            entry: elf.entry,
            first_of_greenlet: greenlet::first_function(source),
            layout: OnceLock::new(),
            frame: OnceLock::new(),
        }
    }

    /// For code that was generated at run time. Nothing describes its functions; each part
    /// probably starts with one.
    pub(super) fn generated(text: &[TextSegment]) -> Self {
        let first = text.first().map_or(0, |t| t.vaddr);
        let none = || Starts::new(Vec::new(), first, &[]);
        let likely = text.iter().filter_map(|t| offset(t.vaddr, first));
        let layout = FunctionLayout {
            starts: none(),
            likely: Starts::new(likely.collect(), first, text),
            borders: none(),
            all: false,
        };
        Self {
            tables: CodeTables::default(),
            code: text.to_vec(),
            data: Vec::new(),
            entry: 0,
            first_of_greenlet: None,
            layout: OnceLock::from(layout),
            frame: OnceLock::from(None),
        }
    }

    /// Where functions are in some text. `covered` gives the code of a range of
    /// addresses that the unwind data describe.
    fn layout<R: ReadAt>(
        &self,
        source: &R,
        go: Option<&GoUnwind>,
        covered: impl FnMut(&Range<u64>) -> Result<Vec<Range<u64>>, UnwindError>,
    ) -> &FunctionLayout {
        self.layout.get_or_init(|| {
            let text = &self.code;
            let first = text.first().map_or(0, |t| t.vaddr);
            let mut named = self.named(source, first);
            // If it cannot be read, only its starts are missing.
            let of_go = go.and_then(|go| go.starts(source, first).ok());
            let has_all = self.tables.has_all || of_go.is_some();
            if let Some(of_go) = of_go {
                named = Starts::new([named, of_go].concat(), first, text).offsets;
            }
            let surveyed = match has_all {
                true => None,
                false => self.survey(source, &named, covered).ok().flatten(),
            };
            let all = has_all || surveyed.is_some();
            let Survey {
                sure,
                likely,
                borders,
            } = surveyed.unwrap_or_default();
            let starts = [named, sure].concat();
            let place = |offsets| Starts::new(offsets, first, text);
            FunctionLayout {
                starts: place(starts),
                likely: place(likely),
                borders: place(borders),
                all,
            }
        })
    }

    /// Functions that symbols name, and the program's first one, in order, in bytes from
    /// the text's first one.
    fn named<R: ReadAt>(&self, source: &R, first: u64) -> Vec<u32> {
        let mut offsets = Vec::new();
        offsets.extend(offset(self.entry, first));
        let mut left = MAX_SYMBOL_BYTES;
        for table in &self.tables.symbols {
            left = left.saturating_sub(table.size);
            if left == 0 {
                break;
            }
            // A table that cannot be read costs its symbols only.
            let _ = add_symbols(source, *table, first, &mut offsets);
        }
        Starts::new(offsets, first, &self.code).offsets
    }

    /// A survey of all code without unwind data; `None`: there is too much.
    fn survey<R: ReadAt>(
        &self,
        source: &R,
        named: &[u32],
        mut covered: impl FnMut(&Range<u64>) -> Result<Vec<Range<u64>>, UnwindError>,
    ) -> Result<Option<Survey>, UnwindError> {
        let text = &self.code;
        if !survey::is_feasible(text) {
            return Ok(None);
        }
        let mut described = Vec::new();
        for segment in text {
            let end = segment.vaddr.saturating_add(segment.size);
            let mut at = segment.vaddr;
            while at < end {
                let part = at..at.saturating_add(COVERED_AT_ONCE).min(end);
                described.extend(covered(&part)?);
                at = part.end;
            }
        }
        let sources = SurveySources {
            source,
            text,
            data: &self.data,
            relocations: &self.tables.relocations,
        };
        Ok(Some(survey::survey(&sources, &described, named)?))
    }
}

/// The parts of the text that lie in sections of code. A segment in which no section is
/// known counts whole, and so does all of it where the sections make no sense.
fn code_of(text: &[TextSegment], sections: &[FileSpan]) -> Vec<TextSegment> {
    if sections.len() > MAX_CODE {
        return text.to_vec();
    }
    let mut code: Vec<TextSegment> = Vec::new();
    for segment in text {
        let known = code.len();
        let end = segment.vaddr.saturating_add(segment.size);
        code.extend(sections.iter().filter_map(|section| {
            let from = section.vaddr.max(segment.vaddr);
            let to = section.vaddr.saturating_add(section.size).min(end);
            (from < to).then(|| TextSegment {
                file_offset: segment.file_offset.saturating_add(from - segment.vaddr),
                vaddr: from,
                size: to - from,
            })
        }));
        if code.len() == known {
            code.push(*segment);
        }
    }
    code.sort_unstable_by_key(|part| part.vaddr);
    let overlaps = |a: &TextSegment, b: &TextSegment| a.vaddr.saturating_add(a.size) > b.vaddr;
    let mut pairs = code.iter().zip(code.iter().skip(1));
    match pairs.any(|(a, b)| overlaps(a, b)) {
        true => text.to_vec(),
        false => code,
    }
}

/// Whether code looks like Haskell's: its functions go on by jumps to addresses on a stack of their
/// own, at which rbp points.
fn has_shared_frame(code: &[u8]) -> bool {
    const LEAST: usize = 8;
    let jumps = code.windows(2).filter(|two| *two == [0xff, 0x65]);
    jumps.take(LEAST).count() == LEAST
}

/// Bytes from the text's first one to an address, if it can lie in the text.
fn offset(at: u64, first: u64) -> Option<u32> {
    at.checked_sub(first)?.try_into().ok()
}

/// Adds a table's functions that are defined here (System V gABI, chapter 4, "Symbol Table").
fn add_symbols<R: ReadAt>(
    source: &R,
    table: FileRange,
    first: u64,
    offsets: &mut Vec<u32>,
) -> Result<(), UnwindError> {
    let mut table = Entries::symbols(source, table);
    while offsets.len() < MAX_STARTS
        && let Some(entries) = table.more()?
    {
        let functions = entries.filter_map(ElfSymbol::parse);
        let functions = functions.filter(|symbol| symbol.is_here() && symbol.may_be_function());
        offsets.extend(functions.filter_map(|symbol| offset(symbol.value, first)));
    }
    Ok(())
}

/// A file's text.
pub(super) struct TextSource<'a, R> {
    pub(super) source: &'a R,
    pub(super) functions: &'a Functions,
    pub(super) go: Option<&'a GoUnwind>,
}

impl<R> Clone for TextSource<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for TextSource<'_, R> {}

impl<R: ReadAt> TextSource<'_, R> {
    /// The bytes of text of a range of addresses that lies in one segment.
    pub(super) fn read(&self, range: &Range<u64>) -> Result<Vec<u8>, UnwindError> {
        let (code, size) = (&self.functions.code, range.end - range.start);
        Ok(elf::bytes_from(self.source, code, range.start, size)?)
    }

    /// Whether there is code in one of some gaps, and not only padding. The page is read
    /// once: there is padding behind nearly every function.
    fn has_code(&self, page: u64, gaps: &[Range<u32>]) -> Result<bool, UnwindError> {
        let (Some(first), Some(last)) = (gaps.first(), gaps.last()) else {
            return Ok(false);
        };
        for segment in &self.functions.code {
            let end = segment.vaddr.saturating_add(segment.size);
            let begin = (page + u64::from(first.start)).max(segment.vaddr);
            let end = (page + u64::from(last.end)).min(end);
            if begin >= end {
                continue;
            }
            let bytes = self.read(&(begin..end))?;
            for gap in gaps {
                let from = (page + u64::from(gap.start)).max(begin);
                let to = (page + u64::from(gap.end)).min(end);
                let at = |address: u64| usize::try_from(address - begin).unwrap_or(usize::MAX);
                if from < to {
                    let rest = bytes.get(at(from)..).unwrap_or_default();
                    let part = rest.get(..at(to) - at(from)).unwrap_or(rest);
                    if !code::is_padding(from, part) {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    /// The addresses to look at for the gaps of a page.
    fn surroundings(page: u64, gaps: &[Range<u32>], starts: &Starts) -> Range<u64> {
        let end = page.saturating_add(PAGE_SIZE);
        let before = match gaps.first() {
            Some(gap) if gap.start == 0 => {
                let last = starts.last_up_to(page);
                let near = last.filter(|&start| page - start <= MAX_BEFORE);
                near.map_or(USUAL_BEFORE, |start| page - start)
            }
            _ => 0,
        };
        let open = gaps.last().is_some_and(|g| u64::from(g.end) >= PAGE_SIZE);
        let behind = if open { BEHIND } else { 0 };
        page.saturating_sub(before)..end.saturating_add(behind)
    }

    /// Rules behind calls in code whose CFA is in a register, by offset in a page.
    pub(super) fn behind_calls(
        &self,
        page: u64,
        code: &[(Range<u32>, Rule)],
    ) -> Result<Vec<(Range<u32>, Rule)>, UnwindError> {
        let mut parts = Vec::new();
        for (range, rule) in code.iter().take(MAX_BY_REGISTER) {
            let from = page + u64::from(range.start);
            let bytes = self.read(&(from..page + u64::from(range.end)))?;
            for (behind, length, callee) in code::direct_calls(CodeText::new(from, &bytes)) {
                let body = self.read(&(callee..callee.saturating_add(CALLEE)))?;
                let text = CodeText::new(callee, &body);
                if let Some(rule) = code::rule_behind_call(*rule, text) {
                    // Not at its first byte: there its own registers are known.
                    let end = behind.saturating_sub(page) as u32;
                    parts.push((end.saturating_sub(length as u32 - 1)..end, rule));
                }
            }
        }
        Ok(parts)
    }

    /// Rules for the gaps of a page, by offset in it. `builder` knows which code around the page
    /// the unwind data describe.
    pub(super) fn fill(
        &self,
        page: u64,
        gaps: &[Range<u32>],
        depth: PageDepth,
        builder: &mut PageBuilder<'_, R>,
    ) -> Result<Vec<(Range<u32>, Rule)>, UnwindError> {
        // Mostly padding, and a few bytes that never run: not worth looking at, let alone
        // looking through all of a file.
        if depth == PageDepth::Quick {
            return Ok(gaps.iter().map(|gap| (gap.clone(), LATER)).collect());
        }
        if gaps.is_empty() || !self.has_code(page, gaps)? {
            return Ok(Vec::new());
        }
        let layout = self
            .functions
            .layout(self.source, self.go, |range| builder.covered(range));
        let around = Self::surroundings(page, gaps, &layout.starts);
        let covered = builder.covered(&around)?;
        let mut parts = Vec::new();
        for segment in &self.functions.code {
            let end = segment.vaddr.saturating_add(segment.size);
            let range = around.start.max(segment.vaddr)..around.end.min(end);
            if range.is_empty() {
                continue;
            }
            let bytes = self.read(&range)?;
            let starts = layout.starts.within(&range);
            let likely = layout.likely.within(&range);
            let borders = layout.borders.within(&range);
            let text = CodeText::new(range.start, &bytes).without(&covered);
            let known = KnownFunctions {
                starts: &starts,
                likely: &likely,
                borders: &borders,
                all: layout.all,
                entry: self.functions.entry,
                frame: match has_shared_frame(&bytes) {
                    true => *self.functions.frame.get_or_init(|| builder.shared_frame()),
                    false => None,
                },
            };
            for piece in code::rules(text, known) {
                let offset = |at: u64| at.saturating_sub(page).min(PAGE_SIZE) as u32;
                let (start, end) = (offset(piece.start), offset(piece.end));
                if start < end {
                    parts.push((start..end, derived(piece.rule)));
                }
            }
        }
        Ok(parts)
    }
}
