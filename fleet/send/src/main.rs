//! `aiprof-send`: delivers what aiprof's agent has recorded, and serves its metrics.
//!
//! It has no privileges and needs none: a directory of ready-made bodies is all it knows of
//! profiles. One thread, one request at a time for each output. It confines itself before it
//! meets the network ([`confine`]); what only others may read, its [`keeper`] reads.

mod answer;
mod app;
mod backoff;
mod board;
mod check;
mod cli;
mod client;
mod confine;
mod credentials;
mod keeper;
mod lake;
mod log;
mod metrics;
mod payload;
mod server;
mod stdin;
mod thrift;
mod watch;
mod worker;

use aiprof_fleet::shared::AGAIN;
use aiprof_system::errors::chain;
use app::ProgramEnd;
use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = cli::Args::parse();
    log::init(args.verbose);
    let end = match args.keeper {
        true => keeper::serve(&args.config).map(|()| ProgramEnd::Well),
        false => app::main(&args),
    };
    match end {
        Ok(ProgramEnd::Well) => ExitCode::SUCCESS,
        Ok(ProgramEnd::Failed) => ExitCode::from(cli::FAILURE),
        Ok(ProgramEnd::Again) => ExitCode::from(AGAIN),
        Err(error) => {
            tracing::error!("{}", chain(&*error));
            ExitCode::from(cli::FAILURE)
        }
    }
}
