//! ELF files: what is read of a file with code before its names and its unwind data.
//!
//! [`inspect`] summarizes a file for those who look for names. `CodeFile` gives the segments of
//! code for x86-64. `Dynamic` finds an exported symbol by the hash table of the loader.
//!
//! Files are read by offset ([`ReadAt`]) into bounded buffers, and tables of symbols and
//! relocations in pieces ([`Entries`]), so the memory needed does not depend on the file. A
//! hostile or cut-off file costs an error. Formats: System V gABI, chapters 4 and 5; psABI for
//! x86-64, chapter 4.4.

mod code;
mod dynamic;
mod header;
mod info;
mod read;
mod tables;
mod words;

pub(crate) use code::{CodeFile, CodeTables, FileSpan, each_relocation};
pub use code::{TextSegment, address_of, bytes_from, offset_of};
pub(crate) use dynamic::{Dynamic, DynamicSymbol};
pub(crate) use header::ElfHeader;
pub(crate) use info::{AltLink, DEBUG_SECTIONS, DebugLink, DebugSection, Packing};
pub use info::{ElfInfo, PltSection, inspect, run_path};
pub use read::{ElfError, FileRange, ReadAt};
pub(crate) use read::{ReadWindow, i32_at, read_full, u16_at, u32_at, u64_at};
pub use tables::{ElfSymbol, Entries, RelaTable, Relocation, SymbolNames, SymbolTable};
pub(crate) use tables::{R_X86_64_IRELATIVE, STB_GLOBAL, STB_LOCAL, STT_NOTYPE};
pub(crate) use words::{each_relative, each_word};
