//! The table `.gopclntab`, with which Go's linker describes a program.
//!
//! The table is in every Go program, stripped or not, because Go's runtime itself walks stacks by
//! it. It names functions. For each instruction it gives the distance of the stack pointer below
//! the return address, the file and line, and the calls into which it was inlined. Its format is in
//! Go's sources (`src/runtime/symtab.go`, `src/cmd/link/internal/ld/pcln.go`) and in "Go 1.2
//! Runtime Symbol Information".
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

#[cfg(any(test, feature = "testing"))]
pub use inline::testing::fuzz_go_table;
pub(crate) use table::{GoFunction, GoReader, GoTable};
