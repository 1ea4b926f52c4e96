//! `aiprof diff`.
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;

/// Options of `aiprof diff`.
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// Profile from before: folded stacks or a capture
    before: PathBuf,
    /// Profile from after
    after: PathBuf,
    /// Where the differential flame graph goes
    #[arg(short, long)]
    output: Option<PathBuf>,
}

/// Compares.
///
/// # Errors
/// io.
pub(crate) fn run(_args: &DiffArgs) -> Result<()> {
    Ok(())
}
