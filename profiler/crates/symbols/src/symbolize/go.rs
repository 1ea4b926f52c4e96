//! Names of Go's functions, from the table that Go's linker leaves in every program.

use super::options::SymbolizeOptions;
use crate::elf::{CodeFile, ElfError};
use crate::frame::{SymFrame, frames_of};
use crate::go::{GoReader, GoTable};
use std::fs::File;
use std::io;
use std::time::Instant;

/// The table of a file, once it has been looked for.
#[derive(Debug, Default)]
pub(super) enum GoNames {
    #[default]
    NotSought,
    /// There is none, or it could not be read.
    None,
    Found(Box<GoTable>),
}

impl GoNames {
    /// Names the addresses at the given indices; calls `found` for those that are in a
    /// function of Go.
    ///
    /// # Errors
    /// The file cannot be read, and is not asked again; or it takes longer than
    /// [`SymbolizeOptions::dwarf_time`].
    pub(super) fn lookup(
        &mut self,
        file: &File,
        vaddrs: &[u64],
        indices: &[usize],
        options: &SymbolizeOptions,
        mut found: impl FnMut(usize, Vec<SymFrame>),
    ) -> io::Result<()> {
        if indices.is_empty() {
            return Ok(());
        }
        if matches!(self, Self::NotSought) {
            *self = Self::None;
            if let Some(table) = find(file)? {
                *self = Self::Found(Box::new(table));
            }
        }
        let Self::Found(table) = self else {
            return Ok(());
        };
        let deadline = Instant::now() + options.dwarf_time;
        let mut reader = GoReader::new(file, table);
        for &i in indices {
            let Some(&address) = vaddrs.get(i) else {
                continue;
            };
            if Instant::now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let frames = reader.frames(address, options.source_lines)?;
            if !frames.is_empty() {
                found(i, frames_of(frames.into_iter(), options.inlines));
            }
        }
        Ok(())
    }
}

/// A file's table. One that is not for x86-64 has none that is read.
fn find(file: &File) -> io::Result<Option<GoTable>> {
    match CodeFile::read(file) {
        Ok(elf) if elf.is_narrow => Ok(None),
        Ok(elf) => GoTable::find(file, &elf),
        Err(ElfError::Io(error)) => Err(error),
        Err(_) => Ok(None),
    }
}
