//! `aiprof man`: the man page, from the command line's own types.

use super::Cli;
use anyhow::{Context, Result};
use clap::CommandFactory;
use std::io::Write;

/// Prints the page, in roff: `aiprof man | man -l -`.
///
/// # Errors
/// stdout could not be written.
pub(crate) fn run() -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(&page()?)
        .and_then(|()| out.flush())
        .context("cannot write to stdout")
}

/// The page: the main command, then the options of each subcommand.
fn page() -> Result<Vec<u8>> {
    let mut command = Cli::command();
    command.build();
    let mut page = Vec::new();
    let man = clap_mangen::Man::new(command.clone()).manual("aiprof manual");
    man.render(&mut page)?;
    for sub in command.get_subcommands().filter(|s| s.get_name() != "help") {
        writeln!(page, ".SH \"AIPROF {}\"", sub.get_name().to_uppercase())?;
        let man = clap_mangen::Man::new(sub.clone());
        man.render_synopsis_section(&mut page)?;
        man.render_options_section(&mut page)?;
    }
    Ok(page)
}
