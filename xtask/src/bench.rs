//! `cargo xtask bench`: measurements beside other profilers.

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::args::Args;

pub(crate) const HELP: &str = "
Measures aiprof beside other profilers on the same workload, in one run.
";

pub(crate) fn main(args: Vec<String>) -> Result<ExitCode> {
    let mut args = Args::new(args);
    let what = args.positional();
    let _peers = args.flag("--peers");
    args.end()?;
    bail!("there is no bench {:?}", what.unwrap_or_default())
}
