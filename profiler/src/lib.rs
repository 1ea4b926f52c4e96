//! aiprof: a system-wide profiler for Linux machines with AI accelerators.

pub mod profile;
pub mod export {
    //! Writers: one file per output format.
}
pub mod symbolize;
pub mod unwind {
    //! `.eh_frame` to the compact tables of the kernel-side unwinder.
}
