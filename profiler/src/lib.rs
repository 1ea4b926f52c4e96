//! aiprof: a system-wide profiler for Linux machines with AI accelerators.

pub mod profile;
pub mod export {
    //! Writers: one file per output format.
}
pub mod symbolize {
    //! Addresses to names.
}
pub mod unwind;
