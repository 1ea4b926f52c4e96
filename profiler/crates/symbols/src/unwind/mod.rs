//! `.eh_frame` to the compact tables of the kernel-side unwinder.
//!
//! An [`UnwindFile`] knows where a file's unwind data is. [`UnwindFile::page`] reads what describes
//! one page of text ([`aiprof_common::PAGE_SIZE`] bytes of virtual address space) and writes it as
//! a table page ([`aiprof_common::PageHeader`]). Nothing is kept but the headers, and nothing is
//! read before it is asked for.
//!
//! The unwinder follows rip, rsp and rbp only, so a [`Rule`] gives the places of the CFA and the
//! caller's rbp. What a file states beyond that becomes [`aiprof_common::CFA_UNSUPPORTED`] and ends
//! a walk visibly. Input is hostile: reading is total, and work and memory per page are bounded.
//! x86-64, little-endian only.

mod bytes;
mod cfi;
mod cie;
mod code;
mod file;
mod gaps;
mod go;
mod greenlet;
mod index;
mod page;
mod record;
mod rule;
mod survey;
mod table;
#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "testing"))]
pub use file::testing::fuzz_one;
pub use file::{BuildStats, UnwindFile, build_all};
pub mod walk;

pub use crate::elf::{ReadAt, TextSegment, address_of};
pub use table::lookup;

use crate::elf::ElfError;
#[cfg(doc)]
use aiprof_common::Rule;

/// Why a file's unwind data cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum UnwindError {
    /// The file could not be read.
    #[error("cannot read: {0}")]
    Io(#[from] std::io::Error),
    /// The file does not begin as an ELF file does.
    #[error("not an ELF file")]
    NotElf,
    /// ELF, but not 64-bit little-endian x86-64; holds `e_machine`.
    #[error("not an x86-64 ELF file (machine {0})")]
    UnsupportedMachine(u16),
    /// The file ends within what is named.
    #[error("truncated: {0}")]
    Truncated(&'static str),
    /// What is named contradicts the format.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// What is named exceeds a limit.
    #[error("too large: {0}")]
    TooLarge(&'static str),
    /// The file has no page of text with this index.
    #[error("no page {0} in this file")]
    NoSuchPage(u32),
}

impl From<ElfError> for UnwindError {
    fn from(error: ElfError) -> Self {
        match error {
            ElfError::Io(error) => Self::Io(error),
            ElfError::NotElf | ElfError::ForeignEndian => Self::NotElf,
            ElfError::ForeignMachine(machine) => Self::UnsupportedMachine(machine),
            ElfError::Malformed(what) => Self::Malformed(what),
            ElfError::Truncated(what) => Self::Truncated(what),
            ElfError::TooLarge(what) => Self::TooLarge(what),
        }
    }
}

/// How much of a page is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageDepth {
    /// Only the rules of the unwind data.
    Quick,
    /// All.
    Whole,
}

/// What [`UnwindFile::page`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageContent {
    /// A table was written.
    Table,
    /// A table was written in which code without unwind data has no rules yet
    /// ([`aiprof_common::CFA_LATER`]).
    Partial,
    /// The file has nothing about this page: no table.
    NoData,
}
