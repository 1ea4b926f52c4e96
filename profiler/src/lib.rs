//! aiprof: a system-wide profiler for Linux machines with AI accelerators.

pub mod aggregate;
pub mod collect;
pub mod export {
    //! Writers: one file per output format.
}
pub mod process;
pub mod profile;
pub mod symbolize;
pub mod unwind;
pub mod wire;
