//! Probes on the functions of accelerator runtimes.
//!
//! * `discover`: where libraries are when a recording starts;
//! * `registry`: which of them are the same file;
//! * `opener`: the threads that open and read files;
//! * `opening`: which libraries are wanted;
//! * `budget`: how much each user may have probed;
//! * `symbols`: which functions of a file the tables name;
//! * `decode`: where in a function its probes go;
//! * `library`: both, for one file;
//! * `plan`: what is attached to a file;
//! * `attach`: attaching, and telling of it;
//! * `kernel`: the same, by the loaded eBPF programs;
//! * `worker`: the thread that does so while a recording runs;
//! * `handed_out`: functions whose addresses a runtime hands out;
//! * `look`: the thread that reads other processes' memory;
//! * `classes`: where functions may lead that go on in a virtual function;
//! * `stubs`: where functions that only jump on lead to;
//! * `service`: all of it, for the session;
//! * `survey`: what would be attached, for people.

mod attach;
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
mod stubs;
mod survey;
mod symbols;
mod worker;

pub(crate) use attach::CALL_PROGRAMS;
pub use attach::Tally;
pub use discover::Command;
pub(super) use discover::variable_of;
pub(crate) use discover::{in_linker_cache, own_variable};
pub(crate) use service::RuntimeProbes;
pub use survey::{Surveyed, SurveyedFunction, SurveyedTable, survey};
