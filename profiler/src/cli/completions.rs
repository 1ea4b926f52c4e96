//! `aiprof completions`: scripts for the shells, from the command line's own types.

use super::Cli;
use anyhow::{Context, Result};
use clap::{Args, CommandFactory};
use std::io::Write;

/// Options of `aiprof completions`.
#[derive(Debug, Args)]
#[command(after_help = "For bash: aiprof completions bash > \
                        ~/.local/share/bash-completion/completions/aiprof")]
pub(crate) struct CompletionsArgs {
    /// Shell to print the script for
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

/// Prints the script.
///
/// # Errors
/// stdout could not be written.
pub(crate) fn run(args: &CompletionsArgs) -> Result<()> {
    // Into memory first: the generator panics when its writer fails.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "aiprof", &mut script);
    let mut out = std::io::stdout().lock();
    out.write_all(&script)
        .and_then(|()| out.flush())
        .context("cannot write to stdout")
}
