//! What aiprof records and analyses, as values: profiles, events, processes, probe
//! tables, classes of kernels, timelines.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests open what they made")
)]

pub mod calibrate;
pub mod csv;
pub mod demangle;
pub mod eu_stall;
pub mod json;
pub mod kernel_classes;
pub mod labels;
pub mod lines;
pub mod parallel;
pub mod probes;
pub mod process;
pub mod profile;
pub mod timeline;
pub mod visible;
pub mod wire;
