//! Device code to names: modules of Intel's graphics devices.
//!
//! * [`Module`] is what a program gave to the runtime or the compiler made. It is a *zebin* (ELF
//!   with a section for each kernel), an archive of zebins for several devices, or SPIR-V. It gives
//!   each kernel's name, code, attributes and the source at each instruction.
//! * [`read_dump_folder`] reads what Intel's compiler writes when it is asked to dump: the modules,
//!   and listings with more detail than a module.
//!
//! Everything read here is written by others. What cannot be read is left out
//! and counted in [`Problems`]; work and memory are bounded (`limits.rs`).

mod archive;
mod dump;
mod dwarf;
mod dwarf_entry;
pub mod isa;
pub(crate) mod limits;
mod line_table;
mod listing;
mod module;
mod names;
mod platform;
mod relocate;
pub mod spirv;
mod ze_info;
pub mod zebin;

pub use dump::{Dump, read_dump_folder};
pub use listing::{Listed, Listing};
#[cfg(any(test, feature = "testing"))]
pub use module::testing::fuzz_module;
pub use module::{
    Attributes, DeviceFunction, Module, ModuleError, Problems, SourceFrame, attributes,
};

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_hostile;
