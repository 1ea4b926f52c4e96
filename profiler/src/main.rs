//! The `aiprof` binary. Exit codes: see `aiprof --help`.

use std::io::Write as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    if aiprof::symbolize::serve_if_asked(std::env::args_os().next().as_deref()) {
        return ExitCode::SUCCESS;
    }
    let error = match aiprof::cli::run(std::env::args_os()) {
        Ok(code) => return ExitCode::from(code),
        Err(error) => error,
    };
    if aiprof::cli::is_broken_pipe(&error) {
        return ExitCode::SUCCESS;
    }
    // Nothing helps if stderr is closed.
    let _ = match error.downcast_ref::<clap::Error>() {
        Some(usage) => usage.print(),
        None => writeln!(std::io::stderr(), "aiprof: {error:#}"),
    };
    ExitCode::from(aiprof::cli::exit_code(&error))
}
