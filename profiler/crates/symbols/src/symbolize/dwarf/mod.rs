//! Inlined functions and source lines, from DWARF 2 to 5.
//!
//! Made for hostile files of any size. Only the units that are needed are read, from the pages that
//! hold them. No tree is kept: a unit is walked once for all addresses of a batch, without
//! recursion. Only the chain of functions around each address is remembered; ranges, names and
//! lines are tested as they come. What stays from batch to batch is the bounded list of the units'
//! address ranges. Each batch has a deadline.
//!
//! What a unit refers to is followed to the supplementary file that `dwz -m` makes and to
//! split DWARF (`.dwo` and `.dwp` files).

mod bytes;
mod inflated;
mod limit;
mod sections;
mod split;
mod text;
mod unit;
mod units;
mod walk;

pub(super) use inflated::Inflated;
pub(super) use limit::DwarfError;
pub(super) use sections::MAX_SIZE;
pub(super) use unit::Question;

use crate::elf::ElfInfo;
use crate::frame::SourceFunction;
use limit::WorkLimit;
use sections::Sections;
use split::Split;
use std::fs::File;
use std::sync::Arc;
use std::time::Instant;
use text::{DwarfNames, SourceLines, UnitLists};
use unit::{Dwarf, load};
use units::{Supplement, UnitIndex};
use walk::{ChainLink, UnitWalk};

/// The debug information of one file.
#[derive(Debug)]
pub(super) struct DwarfFile {
    sections: Sections,
    supplement: Option<Supplement>,
    split: Split,
    /// `None` until it is needed.
    index: Option<UnitIndex>,
}

impl DwarfFile {
    /// Prepares to read a file's sections, and those of the `supplement` it refers to.
    /// Compressed ones are taken from what is kept `inflated`.
    pub(super) fn open(
        file: Arc<File>,
        info: &ElfInfo,
        supplement: Option<(File, ElfInfo)>,
        mut inflated: Option<&mut Inflated>,
        deadline: Instant,
    ) -> Result<Self, DwarfError> {
        let mut open = |file: Arc<File>, info: &ElfInfo| {
            let kept = inflated.as_mut();
            match kept.and_then(|kept| kept.get(&file, info, deadline)) {
                Some((kept, info)) => Sections::open(Arc::new(kept), &info),
                None => Sections::open(file, info),
            }
        };
        let supplement = match supplement {
            Some((file, info)) => Some(Supplement::new(open(Arc::new(file), &info)?)),
            None => None,
        };
        Ok(Self {
            sections: open(file, info)?,
            supplement,
            split: Split::default(),
            index: None,
        })
    }

    /// Bytes of heap held.
    pub(super) fn memory(&self) -> u64 {
        let index = self.index.as_ref().map_or(0, UnitIndex::memory);
        let supplement = self.supplement.as_ref().map_or(0, Supplement::memory);
        self.sections.memory() + supplement + self.split.memory() + index
    }

    /// Drops what can be read again, and keeps what takes time to make.
    pub(super) fn release(&mut self) {
        self.sections.release();
        if let Some(supplement) = &mut self.supplement {
            supplement.sections.release();
        }
        self.split.release();
    }

    /// Split units whose file was not found, since the start.
    pub(super) fn missing(&self) -> u64 {
        self.split.missing()
    }

    /// Finds the functions around each address, outermost first. Calls `found`
    /// with the address's index; not for addresses without a function and, where
    /// lines are wanted, without a line. Without a function there is one without a name.
    pub(super) fn lookup(
        &mut self,
        question: &Question<'_>,
        found: impl FnMut(usize, Vec<SourceFunction>),
    ) -> Result<(), DwarfError> {
        self.sections.allow(question.deadline);
        if let Some(supplement) = &self.supplement {
            supplement.sections.allow(question.deadline);
        }
        let mut clock = WorkLimit::until(question.deadline);
        let done = self.look_up(question, &mut clock, found);
        // What could not be read is the cause of all else.
        let failures = [
            self.sections.take_failure(),
            (self.supplement.as_ref()).and_then(|s| s.sections.take_failure()),
        ];
        match failures.into_iter().flatten().next() {
            Some(failure) => Err(failure),
            None => done,
        }
    }

    fn look_up(
        &mut self,
        question: &Question<'_>,
        clock: &mut WorkLimit,
        mut found: impl FnMut(usize, Vec<SourceFunction>),
    ) -> Result<(), DwarfError> {
        if self.index.is_none() {
            let new = UnitIndex::new(&self.sections, &self.dwarf(), clock)?;
            self.index = Some(new);
        }
        let Some(index) = &self.index else {
            return Ok(());
        };
        let mut work: Vec<(usize, u64, usize)> = Vec::new();
        for (i, &addr) in question.vaddrs.iter().enumerate() {
            work.extend(index.candidates(addr).map(|unit| (unit, addr, i)));
        }
        work.sort_unstable();
        let dwarf = self.dwarf();
        let lists = UnitLists {
            main: index.units(),
            supplement: self.supplement.as_ref(),
        };
        let mut batch = DwarfBatch {
            file: self,
            dwarf: &dwarf,
            names: DwarfNames::new(&dwarf, lists),
            question,
            answers: Answers {
                done: vec![false; question.vaddrs.len()],
                bare: vec![None; question.vaddrs.len()],
            },
        };
        for group in work.chunk_by(|a, b| a.0 == b.0) {
            clock.check()?;
            batch.unit(group, clock, &mut found)?;
        }
        let Answers { done, bare } = batch.answers;
        for (i, (source, done)) in bare.into_iter().zip(done).enumerate() {
            if let (Some(source), false) = (source, done) {
                let function = SourceFunction {
                    name: String::new(),
                    source: Some(source),
                };
                found(i, vec![function]);
            }
        }
        Ok(())
    }

    fn dwarf(&self) -> Dwarf<'_> {
        let mut dwarf = load(&self.sections, |id| Some(id.name()));
        if let Some(supplement) = &self.supplement {
            dwarf.set_sup(load(&supplement.sections, |id| Some(id.name())));
        }
        dwarf
    }
}

/// Addresses that are looked up together.
struct DwarfBatch<'d, 'a> {
    file: &'a DwarfFile,
    dwarf: &'d Dwarf<'a>,
    names: DwarfNames<'d, 'a>,
    question: &'d Question<'d>,
    answers: Answers,
}

/// What is known of the addresses of a batch.
struct Answers {
    /// Which of them have their functions.
    done: Vec<bool>,
    /// Source positions of those in no function so far.
    bare: Vec<Option<(String, u32)>>,
}

impl DwarfBatch<'_, '_> {
    /// Looks up the addresses that one unit may describe: unit, address, index.
    fn unit(
        &mut self,
        group: &[(usize, u64, usize)],
        clock: &mut WorkLimit,
        found: &mut impl FnMut(usize, Vec<SourceFunction>),
    ) -> Result<(), DwarfError> {
        let is_open = |i: usize| self.answers.done.get(i) == Some(&false);
        let open = group.iter().filter(|(_, _, i)| is_open(*i));
        let (addrs, open): (Vec<u64>, Vec<usize>) = open.map(|&(_, addr, i)| (addr, i)).unzip();
        let Some(&(offset, ..)) = group.first().filter(|_| !open.is_empty()) else {
            return Ok(());
        };
        let root = self.names.unit(false, offset)?;
        let lines = match self.question.lines {
            true => Some(SourceLines::read(self.dwarf, &root, &addrs, clock)?),
            false => None,
        };
        let lines = lines.as_ref();
        let object = self.file.split.find(self.dwarf, &root, self.question);
        let split = match &object {
            Some(object) => object.unit(self.dwarf, &root, clock)?,
            None => None,
        };
        let Some(split) = split else {
            let walk = UnitWalk::run(self.dwarf, &root.unit, &addrs, clock)?;
            for (slot, (chain, i)) in walk.iter().zip(open).enumerate() {
                let name = |link: &ChainLink| self.names.get(offset, link.offset);
                self.answers
                    .take(i, functions(chain, slot, name, lines), lines, slot, found);
            }
            return Ok(());
        };
        let lists = UnitLists {
            main: &split.units,
            supplement: None,
        };
        let mut names = DwarfNames::new(&split.dwarf, lists);
        let walk = UnitWalk::run(&split.dwarf, &split.root.unit, &addrs, clock)?;
        for (slot, (chain, i)) in walk.iter().zip(open).enumerate() {
            let name = |link: &ChainLink| names.get(split.offset, link.offset);
            self.answers
                .take(i, functions(chain, slot, name, lines), lines, slot, found);
        }
        Ok(())
    }
}

impl Answers {
    /// Reports the functions around an address, or notes its line if there are none.
    fn take(
        &mut self,
        i: usize,
        functions: Vec<SourceFunction>,
        lines: Option<&SourceLines<'_, '_>>,
        slot: usize,
        found: &mut impl FnMut(usize, Vec<SourceFunction>),
    ) {
        let (Some(done), Some(bare)) = (self.done.get_mut(i), self.bare.get_mut(i)) else {
            return;
        };
        if functions.is_empty() {
            *bare = bare.take().or_else(|| lines?.of_address(slot));
            return;
        }
        *done = true;
        found(i, functions);
    }
}

/// The named functions of a chain. Each call site is where the function before
/// it in the chain stands.
fn functions(
    chain: &[ChainLink],
    slot: usize,
    mut name: impl FnMut(&ChainLink) -> String,
    lines: Option<&SourceLines<'_, '_>>,
) -> Vec<SourceFunction> {
    let source = |at: usize| {
        let lines = lines?;
        match chain.get(at + 1) {
            Some(callee) => lines.file(callee.call_file).map(|f| (f, callee.call_line)),
            None => lines.of_address(slot),
        }
    };
    let one = |(at, link): (usize, &ChainLink)| SourceFunction {
        name: name(link),
        source: source(at),
    };
    chain.iter().enumerate().map(one).collect()
}
