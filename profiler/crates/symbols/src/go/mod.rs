//! What Go's linker says of a program: its `.gopclntab`.
//!
//! The table is in every Go program, stripped or not, because Go's runtime itself
//! walks stacks by it. It names functions, and says for each instruction how far the
//! stack pointer is below the return address, from which file and line it comes, and
//! into which calls it was inlined (Go's sources: `src/runtime/symtab.go`,
//! `src/cmd/link/internal/ld/pcln.go`; "Go 1.2 Runtime Symbol Information").
//!
//! A [`GoTable`] is where the table's parts lie in the file; a [`GoReader`] reads
//! functions from it, one at a time, with `pread`. Input is hostile: reading is total,
//! what contradicts the format is `None`, and each read is bounded. x86-64 only.

mod find;
mod inline;
mod table;
#[cfg(test)]
mod tests;
mod values;

pub(crate) use inline::GoFrame;
#[cfg(any(test, fuzzing))]
pub use inline::fuzz_go_table;
pub(crate) use table::{GoFunction, GoReader, GoTable};
