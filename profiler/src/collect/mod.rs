//! The live side: the only place that needs privileges.
pub mod bpf;
