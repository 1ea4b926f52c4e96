//! aiprof: a system-wide profiler for Linux machines with AI accelerators.

pub mod cli;
pub mod collect;
pub mod export;
pub mod import;
pub mod profile;
pub mod symbolize {
    //! Addresses to names.
}
pub mod unwind {
    //! `.eh_frame` to the compact tables of the kernel-side unwinder.
}
