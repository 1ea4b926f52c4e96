//! The `aiprof` binary. Exit codes: see `aiprof --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let error = match aiprof::cli::run(std::env::args_os()) {
        Ok(code) => return ExitCode::from(code),
        Err(error) => error,
    };
    if aiprof::cli::is_broken_pipe(&error) {
        return ExitCode::SUCCESS;
    }
    aiprof::cli::show_error(&error);
    ExitCode::from(aiprof::cli::exit_code(&error))
}
