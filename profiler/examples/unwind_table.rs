//! Builds every page of a file's unwind table, as often as asked, and prints
//! one line per time: pages, rows, bytes, seconds. For `cargo xtask bench
//! unwind-table`.

#![allow(clippy::disallowed_methods, reason = "not part of the program")]

use std::fs::File;
use std::process::ExitCode;
use std::time::Instant;

use aiprof::unwind::{UnwindError, UnwindFile, build_all};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (Some(path), rounds) = (args.next(), args.next()) else {
        eprintln!("usage: unwind_table FILE [ROUNDS]");
        return ExitCode::from(2);
    };
    let rounds: u32 = rounds.and_then(|n| n.parse().ok()).unwrap_or(1);
    for _ in 0..rounds {
        if let Err(error) = round(&path) {
            eprintln!("{path}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn round(path: &str) -> Result<(), UnwindError> {
    let start = Instant::now();
    let file = UnwindFile::open(File::open(path)?)?;
    let stats = build_all(&file)?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{} {} {} {seconds:.6}",
        stats.pages, stats.rows, stats.bytes
    );
    Ok(())
}
