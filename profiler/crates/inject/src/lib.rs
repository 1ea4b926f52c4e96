//! The helper inside a program: asks an accelerator's runtime for the times of its work
//! by the way that its vendor provides, and hands them over.
//!
//! `aiprof --device-timing COMMAND` names this library to the runtimes that COMMAND uses
//! (CUDA: `CUDA_INJECTION64_PATH`, OpenCL: `OPENCL_LAYERS`, Level Zero:
//! `LD_LIBRARY_PATH`). The helper hands over what the device did in batches, by a call of
//! `aiprof_timing_batch`, which aiprof probes. It opens no file and no socket. Without the
//! probe, it hands nothing over.
//!
//! `aiprof --ranges COMMAND` names it to what COMMAND marks ranges with: NVTX
//! (`NVTX_INJECTION64_PATH`) and ITT (`INTEL_LIBITTNOTIFY64`).
//!
//! It is a guest: it prints nothing, changes no result, and where something is not as it
//! expects, it steps back. On the program's own threads run the clock that CUDA asks for and
//! CUDA's own recording; in OpenCL's calls, a note of each command.

// The build script of aiprof-live compiles this crate by rustc, without dependencies.
#[expect(unreachable_pub, reason = "the same file is a module of aiprof-common")]
#[path = "../../../../profiler-common/src/timing.rs"]
mod timing;

mod batch;
mod cl;
mod cupti;
mod ffi;
mod ranges;
mod thread;
mod ze;

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What the driver of CUDA calls when it starts (`CUDA_INJECTION64_PATH`). Gives 1: it
/// may go on, whatever came of it here.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjection() -> c_int {
    guarded(cupti::start);
    1
}

/// Runs something that must not end the program, whatever happens in it.
fn guarded(work: impl FnOnce()) {
    // A panic here is a fault of ours; the program goes on without device times.
    let _ = catch_unwind(AssertUnwindSafe(work));
}
