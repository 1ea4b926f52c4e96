//! `aiprof-send`: delivers what aiprof's agent has recorded, and serves its metrics.
//!
//! It has no privileges and needs none: a directory of ready-made bodies is all it knows of
//! profiles. One thread, one request at a time for each output.

mod answer;
mod app;
mod backoff;
mod board;
mod check;
mod cli;
mod client;
mod credentials;
mod lake;
mod log;
mod metrics;
mod payload;
mod server;
mod stdin;
mod thrift;
mod watch;
mod worker;

use aiprof_system::errors::chain;
use aiprof_system::os::privileges;
use clap::Parser as _;
use rustix::thread::CapabilitySet;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = cli::Args::parse();
    log::init(args.verbose);
    // The agent that starts it has some; before there are threads.
    if let Err(error) = privileges::drop_to(CapabilitySet::empty()) {
        tracing::error!("{error}");
        return ExitCode::from(cli::FAILURE);
    }
    match app::main(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(cli::FAILURE),
        Err(error) => {
            tracing::error!("{}", chain(&*error));
            ExitCode::from(cli::FAILURE)
        }
    }
}
