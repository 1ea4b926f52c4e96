//! Writing is fast enough to run at the end of a command.

use crate::export;
use crate::fixtures;
use aiprof::export::{ExportOptions, FileFormat, formats};
use std::time::{Duration, Instant};

/// Prints the times; `cargo test --release -- --nocapture speed` shows them.
/// The limit is wide because debug builds on busy machines run it, too.
#[test]
fn speed_of_twenty_thousand_stacks() {
    let profile = fixtures::random(1, 26_000, 40, 2_000);
    assert!(profile.stacks.len() > 20_000, "{}", profile.stacks.len());
    for format in [
        &formats::FOLDED,
        &formats::SVG,
        &formats::PPROF,
        FileFormat::named("otlp").unwrap(),
    ] {
        let start = Instant::now();
        let bytes = export(&profile, format, &ExportOptions::default());
        let time = start.elapsed();
        eprintln!("{}: {} bytes in {time:?}", format.name, bytes.len());
        assert!(time < Duration::from_secs(10), "{format:?}: {time:?}");
    }
}
