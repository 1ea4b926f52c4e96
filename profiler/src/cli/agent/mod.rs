//! `aiprof agent`: records always, in windows, within a budget.
//!
//! This process records, with privileges and without network. What it makes of a window it
//! writes to files and to the spool; `aiprof-send`, its child, has the network and no
//! privileges ([`aiprof_fleet`]).

mod args;
mod checks;
mod ctl;
mod governor;
mod notify;
mod outputs;
mod run;
mod sender;
mod status;
mod turns;

pub(crate) use args::AgentArgs;
pub(super) use run::run;
