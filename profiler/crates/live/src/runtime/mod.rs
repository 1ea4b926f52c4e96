//! Probes on the functions of accelerator runtimes.
//!
//! * `discover`: where libraries are when a recording starts;
//! * `registry`: which of them are the same file;
//! * `opener`: the threads that open and read files;
//! * `wanted`: which libraries are wanted;
//! * `opening`: having them opened, each once;
//! * `budget`: how much each user may have probed;
//! * `symbols`: which functions of a file the tables name;
//! * `decode`: where in a function its probes go;
//! * `library`: both, for one file;
//! * `plan`: what is attached to a file;
//! * `attach`: attaching, and telling of it;
//! * `kernel`: the same, by the loaded eBPF programs;
//! * `attaching`: who attaches, here or there;
//! * `worker`: the thread that does so while a recording runs;
//! * `handed_out`: functions whose addresses a runtime hands out;
//! * `access`: whether the caller may have what is read there;
//! * `look`: the thread that reads other processes' memory;
//! * `classes`: where functions may lead that go on in a virtual function;
//! * `stubs`: where functions that only jump on lead to;
//! * `start`: what is probed when a recording starts;
//! * `service`: all of it, for the session;
//! * `survey`: what would be attached, for people.

mod access;
mod attach;
mod attaching;
mod budget;
mod classes;
mod decode;
mod discover;
mod handed_out;
mod kernel;
mod library;
#[cfg(test)]
mod listener_tests;
mod look;
mod opener;
mod opening;
mod plan;
mod registry;
mod service;
mod start;
mod stubs;
mod survey;
mod symbols;
mod wanted;
mod worker;

pub(crate) use attach::CALL_PROGRAMS;
pub use attach::Tally;
pub(super) use discover::variable_of;
pub(crate) use discover::{in_linker_cache, own_variable};
pub(crate) use service::RuntimeProbes;
pub use survey::{Surveyed, SurveyedFunction, SurveyedTable, survey};
