//! What is probed in a library: its functions by table, with the places of their
//! probes. Only reads the file; nothing is attached here.

use super::{
    classes::Classes,
    decode::{self, FunctionCode, MAX_FUNCTION, ProbedEntry, Thunk},
    stubs::{self, Chain},
    symbols::{self, FileFunction},
};
use aiprof_model::profile::BuildId;
use aiprof_symbols::{
    elf::{self, ElfError, ElfInfo, TextSegment, address_of, bytes_from, offset_of},
    unwind::{UnwindError, UnwindFile},
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::{cell::OnceCell, fs::File, io, ops::Range};

/// How far tail calls are followed to where they return.
const MAX_TAIL_CALLS: usize = 3;
/// Most exits of a function that are probed; one with more has unknown exits.
const MAX_EXITS: usize = 256;
/// Bytes read of what may be a thunk.
const THUNK: u64 = 48;
/// Bytes read of a function whose end is not known.
const HEAD: u64 = 256;

/// Why a library cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LibraryError {
    /// Its headers or symbols.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// Its segments or unwind data.
    #[error(transparent)]
    Unwind(#[from] UnwindError),
}

impl LibraryError {
    /// Whether it is a file of another kind.
    pub(crate) fn is_not_elf(&self) -> bool {
        matches!(
            self,
            Self::Elf(ElfError::NotElf) | Self::Unwind(UnwindError::NotElf)
        )
    }
}

/// An ELF file whose functions are probed.
pub(crate) struct ProbedLibrary<'a> {
    file: &'a File,
    info: ElfInfo,
    unwind: UnwindFile<File>,
    /// Read when they are first needed.
    classes: OnceCell<Classes>,
}

/// Where the probes of a function go; offsets in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    /// The entry.
    pub(crate) entry: u64,
    /// Whether the kernel emulates the instruction there.
    pub(crate) emulated: bool,
    /// The exits, if they were asked for; empty if they are not known.
    pub(crate) exits: Vec<u64>,
}

impl<'a> ProbedLibrary<'a> {
    /// Reads the headers.
    ///
    /// # Errors
    /// No ELF file for this machine, or a malformed one.
    pub(crate) fn open(file: &'a File) -> Result<Self, LibraryError> {
        let info = elf::inspect(file)?;
        let own = file.try_clone().map_err(ElfError::Io)?;
        let unwind = UnwindFile::open(own)?;
        if unwind.is_narrow() {
            // EM_386: its arguments are elsewhere.
            return Err(ElfError::ForeignMachine(3).into());
        }
        Ok(Self {
            file,
            info,
            unwind,
            classes: OnceCell::new(),
        })
    }

    /// The functions that `rank` wants.
    ///
    /// # Errors
    /// The symbols cannot be read.
    pub(crate) fn functions(
        &self,
        rank: impl FnMut(&str) -> Option<usize>,
    ) -> Result<symbols::FoundFunctions, LibraryError> {
        let text = self.unwind.text();
        Ok(symbols::find(self.file, &self.info, text, rank)?)
    }

    /// The function that begins at an offset in the file; `None` if the unwind data show none.
    pub(crate) fn function_at(&self, file_offset: u64, name: &str) -> Option<FileFunction> {
        let vaddr = address_of(self.text(), file_offset)?;
        // Inside of a segment, not only in its last page.
        let file_offset = offset_of(self.text(), vaddr)?;
        self.around(vaddr).filter(|code| code.start == vaddr)?;
        Some(FileFunction {
            name: name.to_owned(),
            rank: 0,
            vaddr,
            file_offset,
            size: 0,
        })
    }

    /// Where the probes of a function go. `None`: nothing there can be probed.
    /// `arguments`: the registers that the entry's probe reads, see
    /// [`decode::entry`]. `exits`: whether they are wanted, and then which objects the
    /// function may go on in.
    ///
    /// # Errors
    /// The code cannot be read.
    pub(crate) fn places(
        &self,
        function: &FileFunction,
        arguments: u8,
        exits: Option<Objects<'_>>,
    ) -> Result<Option<Places>, LibraryError> {
        let range = self.range_of(function);
        let bytes = self.read(&range, function)?;
        let code = FunctionCode {
            start: function.vaddr,
            bytes: &bytes,
            whole: !range.is_empty(),
        };
        let Some(ProbedEntry { address, emulated }) = decode::entry(&code, arguments) else {
            return Ok(None);
        };
        let Some(entry) = offset_of(self.text(), address) else {
            return Ok(None);
        };
        let exits = match exits {
            Some(objects) => self.exits(&code, objects)?,
            None => Vec::new(),
        };
        Ok(Some(Places {
            entry,
            emulated,
            exits,
        }))
    }

    /// Where a function leads to that only jumps on.
    pub(crate) fn stub(&self, function: &FileFunction) -> io::Result<Option<Chain>> {
        let bytes = self.bytes(function.vaddr, HEAD)?;
        let code = FunctionCode {
            start: function.vaddr,
            bytes: &bytes,
            whole: false,
        };
        Ok(stubs::target(&code))
    }

    /// The executable parts of the file.
    pub(crate) fn text(&self) -> &[TextSegment] {
        self.unwind.text()
    }

    /// The build id.
    pub(crate) fn build_id(&self) -> Option<BuildId> {
        self.info.build_id
    }

    /// The addresses of a function's code; empty if its end is not known.
    fn range_of(&self, function: &FileFunction) -> Range<u64> {
        let start = function.vaddr;
        let end = match function.size {
            0 => self
                .around(start)
                .filter(|around| around.start == start)
                .map(|around| around.end),
            size => start.checked_add(size),
        };
        match end {
            Some(end) if end - start <= MAX_FUNCTION => start..end,
            _ => start..start,
        }
    }

    /// The code around an address, as the unwind data has it. Nothing in a PLT:
    /// its entries are no functions.
    fn around(&self, vaddr: u64) -> Option<Range<u64>> {
        if self.info.plt.iter().any(|plt| plt.contains(vaddr)) {
            return None;
        }
        self.unwind.code_around(vaddr).ok().flatten()
    }

    /// A function's code, or its beginning.
    fn read(&self, range: &Range<u64>, function: &FileFunction) -> io::Result<Vec<u8>> {
        let known = range.end - range.start;
        let wanted = if known == 0 { HEAD } else { known };
        let mut bytes = self.bytes(function.vaddr, wanted)?;
        if (bytes.len() as u64) < known {
            // Cut off by the end of its segment: not all of it is there.
            bytes.clear();
        }
        Ok(bytes)
    }

    /// Up to `len` bytes of code at an address; fewer at the segment's end.
    fn bytes(&self, vaddr: u64, len: u64) -> io::Result<Vec<u8>> {
        bytes_from(self.file, self.text(), vaddr, len.min(MAX_FUNCTION))
    }

    /// The offsets in the file of the instructions by which a function is left. Those of the
    /// functions that it ends by jumping to are included. Empty if its own code cannot be decoded,
    /// or there are too many.
    fn exits(
        &self,
        code: &FunctionCode<'_>,
        objects: Objects<'_>,
    ) -> Result<Vec<u64>, LibraryError> {
        let mut ways = Ways::default();
        if !self.leave(code, (objects, 0), &mut ways)? {
            return Ok(Vec::new());
        }
        for depth in 1..=MAX_TAIL_CALLS {
            for target in std::mem::take(&mut ways.next) {
                if ways.seen.iter().any(|range| range.contains(&target)) {
                    continue;
                }
                let Some(range) = self.around(target) else {
                    continue;
                };
                let bytes = self.bytes(range.start, range.end - range.start)?;
                let code = FunctionCode {
                    start: range.start,
                    bytes: &bytes,
                    whole: bytes.len() as u64 == range.end - range.start,
                };
                // One that cannot be decoded is an exit that is not seen.
                self.leave(&code, (objects, depth), &mut ways)?;
                if ways.returns.len() > MAX_EXITS || ways.seen.len() > MAX_EXITS {
                    return Ok(Vec::new());
                }
            }
        }
        let mut offsets: Vec<u64> = ways
            .returns
            .into_iter()
            .filter_map(|vaddr| offset_of(self.text(), vaddr))
            .collect();
        offsets.sort_unstable();
        Ok(offsets)
    }

    /// Adds the ways out of some code, `depth` jumps behind the function's own; false if it cannot
    /// be decoded.
    fn leave(
        &self,
        code: &FunctionCode<'_>,
        (objects, depth): (Objects<'_>, usize),
        ways: &mut Ways,
    ) -> Result<bool, LibraryError> {
        ways.seen
            .push(code.start..code.start + code.bytes.len() as u64);
        let Some(exits) = decode::exits(code) else {
            return Ok(false);
        };
        ways.returns.extend(exits.returns);
        let mut slots = exits.slots;
        for jump in &exits.jumps {
            match self.thunk(jump.to, ways)? {
                Some(Thunk::Return) if !jump.is_conditional => {
                    ways.returns.insert(jump.at);
                }
                Some(Thunk::Jump(register)) => slots.extend(jump.slot(register)),
                Some(Thunk::Return) => {}
                None => ways.next.push(jump.to),
            }
        }
        slots.sort_unstable();
        slots.dedup();
        for slot in slots {
            // Not always the first argument's.
            let mut found = self.classes().functions(slot, objects.first);
            if found.is_empty() || depth > 0 {
                found = self.classes().functions(slot, objects.all);
            }
            ways.next.extend(found);
        }
        Ok(true)
    }

    /// What stands at the target of a jump, if that stands for one instruction.
    fn thunk(&self, target: u64, ways: &mut Ways) -> io::Result<Option<Thunk>> {
        if let Some(&known) = ways.thunks.get(&target) {
            return Ok(known);
        }
        let thunk = decode::thunk(target, &self.bytes(target, THUNK)?);
        ways.thunks.insert(target, thunk);
        Ok(thunk)
    }

    /// The virtual functions of the file's classes. A file whose relocations cannot be
    /// read has none.
    fn classes(&self) -> &Classes {
        self.classes.get_or_init(|| {
            let parts = (self.unwind.loaded(), self.text());
            let found = Classes::read(self.file, &self.info, parts);
            let found = found
                .inspect_err(|error| tracing::debug!("cannot read virtual functions: {error}"));
            found.unwrap_or_default()
        })
    }
}

/// The C++ classes at or above those of the objects in whose virtual functions a function
/// may go on; empty: not known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Objects<'a> {
    /// Those of its first argument's object.
    pub(crate) first: &'a [&'a str],
    /// Those of other objects that it may know.
    pub(crate) all: &'a [&'a str],
}

/// The known ways out of a function.
#[derive(Default)]
struct Ways {
    /// Addresses of the instructions.
    returns: FxHashSet<u64>,
    /// Where it goes on.
    next: Vec<u64>,
    /// Code that was looked at.
    seen: Vec<Range<u64>>,
    /// What the targets of jumps stand for.
    thunks: FxHashMap<u64, Option<Thunk>>,
}

#[cfg(test)]
#[path = "library_tests.rs"]
mod tests;
