//! `aiprof doctor`.
use anyhow::Result;
use clap::Args;

/// Options of `aiprof doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs.
///
/// # Errors
/// io.
pub(crate) fn run(_args: &DoctorArgs) -> Result<u8> {
    Ok(0)
}
