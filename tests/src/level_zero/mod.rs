//! Level Zero without an accelerator: our virtual driver, and Intel's real one in
//! its capture mode.
//!
//! * [`driver`]: builds the virtual driver and sets up the machine it pretends;
//! * [`module`]: device modules of known duration;
//! * [`program`]: the workloads and what they report about themselves;
//! * [`real`]: Intel's driver, compiler and environment.

pub mod driver;
pub mod module;
pub mod program;
pub mod real;
