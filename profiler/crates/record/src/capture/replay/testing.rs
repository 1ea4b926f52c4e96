//! What the fuzz target `capture` calls.

use super::*;

/// Fuzzing entry point: replays arbitrary bytes as an uncompressed stream.
pub fn fuzz_capture(data: &[u8]) {
    let options = ReplayOptions {
        launches: data
            .first()
            .filter(|&byte| byte & 1 == 1)
            .map(|byte| LaunchOptions {
                timed: byte & 2 == 2,
            }),
        ..ReplayOptions::default()
    };
    let mut replay = CaptureReplay::new(options);
    if super::super::reader::stream_records(data, |record| replay.take(record)).is_some() {
        replay.finish();
    }
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("capture", fuzz_capture);
