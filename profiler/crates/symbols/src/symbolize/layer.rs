//! One ELF file that is asked for names: by DWARF, by Go's table and by its symbols.

use super::debug_file::Finder;
use super::dwarf::{DwarfError, DwarfFile, Inflated, Question};
use super::go::GoNames;
use super::options::SymbolizeOptions;
use super::{plt, symtab};
use crate::elf::{ElfError, ElfInfo};
use crate::frame::{SourceFunction, SymFrame, frames_of};
use aiprof_model::demangle::{self, demangle};
use aiprof_model::profile::{BuildId, FrameKind};
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

/// How far a file's DWARF is.
pub(super) enum DwarfState {
    /// Not needed, not there, or given up.
    Unused,
    Unopened,
    Open(Box<DwarfFile>),
}

/// One ELF file to ask: by DWARF first, then by Go's table, which has what was inlined
/// too, then by symbol table.
pub(super) struct Layer {
    pub(super) file: Arc<File>,
    pub(super) info: ElfInfo,
    pub(super) dwarf: DwarfState,
    /// What its DWARF refers to, until that is opened.
    pub(super) supplement: Option<(File, ElfInfo)>,
    /// Build id of what it refers to, if that was not found yet.
    pub(super) wants: Option<BuildId>,
    go: GoNames,
    symtab: bool,
    /// Bytes of memory that the file itself is.
    pub(super) held: u64,
}

/// What a layer's names are found with.
pub(super) struct LayerSources<'a> {
    pub(super) options: &'a SymbolizeOptions,
    pub(super) finder: &'a Finder<'a>,
    pub(super) inflated: Option<&'a mut Inflated>,
}

impl Layer {
    /// A file whose DWARF is not used.
    pub(super) fn new(file: File, info: ElfInfo) -> Self {
        Self {
            file: Arc::new(file),
            info,
            dwarf: DwarfState::Unused,
            supplement: None,
            wants: None,
            go: GoNames::default(),
            symtab: true,
            held: 0,
        }
    }

    /// Bytes of memory held.
    pub(super) fn memory(&self) -> u64 {
        match &self.dwarf {
            DwarfState::Open(dwarf) => self.held + dwarf.memory(),
            DwarfState::Unopened | DwarfState::Unused => self.held,
        }
    }

    /// Drops what can be read again.
    pub(super) fn release(&mut self) {
        if let DwarfState::Open(dwarf) = &mut self.dwarf {
            dwarf.release();
        }
    }

    pub(super) fn is_usable(&self) -> bool {
        self.symtab || !matches!(self.dwarf, DwarfState::Unused)
    }

    /// Split units that were not found, since the start.
    pub(super) fn missing(&self) -> u64 {
        match &self.dwarf {
            DwarfState::Open(dwarf) => dwarf.missing(),
            DwarfState::Unopened | DwarfState::Unused => 0,
        }
    }

    /// Names the addresses that have no name yet. A source that fails is not asked again; the error
    /// gives the reason.
    pub(super) fn symbolize(
        &mut self,
        vaddrs: &[u64],
        sources: LayerSources<'_>,
        found: &mut [Option<Vec<SymFrame>>],
    ) -> Result<(), Failure> {
        let options = sources.options;
        let unnamed = |found: &[Option<_>]| -> Vec<usize> {
            (0..found.len()).filter(|&i| found[i].is_none()).collect()
        };
        let mut bare = Vec::new();
        let by_dwarf = self.ask_dwarf(vaddrs, &unnamed(found), sources, |i, functions| {
            if functions
                .first()
                .is_some_and(|f| !demangle::is_mangled(&f.name))
            {
                bare.push(i);
            }
            found[i] = Some(readable(functions, options));
        });
        if by_dwarf.is_err() {
            self.dwarf = DwarfState::Unused;
        }
        let open = unnamed(found);
        let by_go = self
            .go
            .lookup(&self.file, vaddrs, &open, options, |i, frames| {
                found[i] = Some(frames);
            });
        let by_debug = by_dwarf.and(by_go.map_err(|error| match error.kind() {
            std::io::ErrorKind::TimedOut => Failure::TooSlow,
            _ => Failure::Corrupt(error.to_string()),
        }));
        if !self.symtab {
            return by_debug;
        }
        let by_symtab = self.ask_symtab(vaddrs, &unnamed(found), &bare, found);
        self.symtab = by_symtab.is_ok();
        by_debug.and(by_symtab.map_err(|e| Failure::Corrupt(e.to_string())))
    }

    /// Names the addresses of PLT entries, which symbol tables do not cover.
    pub(super) fn ask_plt(&self, vaddrs: &[u64]) -> Result<Vec<Option<Vec<SymFrame>>>, ElfError> {
        let names = plt::lookup(&self.file, &self.info, vaddrs)?;
        let frames = |name: String| {
            let name = match name.strip_suffix("@plt") {
                Some(callee) => format!("{}@plt", demangle(callee)),
                None => name,
            };
            vec![SymFrame::plain(name, FrameKind::Native)]
        };
        Ok(names.into_iter().map(|name| name.map(frames)).collect())
    }

    /// Looks up the addresses at the given indices in DWARF; calls `found` for
    /// those that have a function.
    fn ask_dwarf(
        &mut self,
        vaddrs: &[u64],
        indices: &[usize],
        sources: LayerSources<'_>,
        mut found: impl FnMut(usize, Vec<SourceFunction>),
    ) -> Result<(), Failure> {
        if indices.is_empty() || matches!(self.dwarf, DwarfState::Unused) {
            return Ok(());
        }
        let addrs: Vec<u64> = indices.iter().map(|&i| vaddrs[i]).collect();
        let deadline = Instant::now() + sources.options.dwarf_time;
        let question = Question {
            vaddrs: &addrs,
            lines: sources.options.source_lines,
            deadline,
            finder: sources.finder,
        };
        let ask = || -> Result<(), DwarfError> {
            if matches!(self.dwarf, DwarfState::Unopened) {
                let file = Arc::clone(&self.file);
                let dwarf = DwarfFile::open(
                    file,
                    &self.info,
                    self.supplement.take(),
                    sources.inflated,
                    deadline,
                )?;
                self.dwarf = DwarfState::Open(Box::new(dwarf));
            }
            match &mut self.dwarf {
                DwarfState::Open(dwarf) => dwarf.lookup(&question, |i, functions| {
                    found(indices[i], functions);
                }),
                DwarfState::Unopened | DwarfState::Unused => Ok(()),
            }
        };
        // The input is hostile and the parser below is large: a panic in it must
        // cost this file only, never the recording.
        match catch_unwind(AssertUnwindSafe(ask)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(DwarfError::Deadline)) => Err(Failure::TooSlow),
            Ok(Err(error)) => Err(Failure::Corrupt(error.to_string())),
            Err(_) => Err(Failure::Corrupt("the parser panicked".to_owned())),
        }
    }

    /// Looks up the addresses at the indices `open` in the symbol tables. Those at the indices
    /// `bare` have a name from DWARF that is not mangled. A mangled symbol replaces it (GCC leaves
    /// out the scope of members of unnamed namespaces). So does a symbol that is better to read:
    /// the source may know a C function by an internal alias.
    fn ask_symtab(
        &self,
        vaddrs: &[u64],
        open: &[usize],
        bare: &[usize],
        found: &mut [Option<Vec<SymFrame>>],
    ) -> Result<(), ElfError> {
        let indices: Vec<usize> = open.iter().chain(bare).copied().collect();
        if indices.is_empty() {
            return Ok(());
        }
        let addrs: Vec<u64> = indices.iter().map(|&i| vaddrs[i]).collect();
        let names = symtab::lookup(&self.file, &self.info, &addrs)?;
        for (i, name) in indices.into_iter().zip(names) {
            let Some(name) = name else { continue };
            let readable = || demangle(&name).into_owned();
            match found[i].as_mut().and_then(|frames| frames.first_mut()) {
                None => found[i] = Some(vec![SymFrame::plain(readable(), FrameKind::Native)]),
                Some(outermost)
                    if outermost.name.is_empty()
                        || demangle::is_mangled(&name)
                        || symtab::readability(&name) > symtab::readability(&outermost.name) =>
                {
                    outermost.name = readable();
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// Why a source of names was given up.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{0}")]
    Corrupt(String),
    #[error("debug information too large, inlined functions not shown")]
    TooLarge,
    #[error("debug information takes too long to read, some inlined functions not shown")]
    TooSlow,
    #[error("its supplementary debug file (dwz) is missing")]
    NoSupplement,
    #[error("its split debug files (.dwo, .dwp) are missing")]
    Missing,
}

/// The frames of an address, with names to be read.
fn readable(functions: Vec<SourceFunction>, options: &SymbolizeOptions) -> Vec<SymFrame> {
    let named = functions.into_iter().enumerate().map(|(i, function)| {
        let name = match demangle(&function.name) {
            // The outermost may get its symbol's name yet.
            name if name.is_empty() && i > 0 => "[inlined]".to_owned(),
            name => name.into_owned(),
        };
        SourceFunction { name, ..function }
    });
    frames_of(named, options.inlines)
}
