//! What the fuzz target `eu_stall` calls.

use super::*;

/// For fuzzing: reads bytes as a capture, whole and in pieces, with the same result.
pub fn fuzz_capture(data: &[u8]) {
    let tell = |pieces: usize| {
        let mut told = Vec::new();
        let mut reader = CaptureReader::new();
        let mut result = Ok(());
        for piece in data.chunks(pieces) {
            result = reader.read(piece, |part| match part {
                Part::Header(header) => told.push(format!("{header:?}")),
                Part::Begin(frame) => told.push(format!("{frame:?}")),
                Part::Records(records) => told.extend(records.iter().map(u8::to_string)),
                Part::End => told.push("end".into()),
            });
        }
        (told, result, reader.is_within())
    };
    assert_eq!(tell(7), tell(data.len().max(1)));
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("eu_stall", fuzz_capture);
