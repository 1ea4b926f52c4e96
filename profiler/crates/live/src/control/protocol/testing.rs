//! What the fuzz target `control` calls.

use super::*;

/// Fuzzing entry point: a message is read as either, and what is read is written so that
/// it is read again.
pub fn fuzz_control(data: &[u8]) {
    if let Ok(request) = Request::decode(data) {
        assert_eq!(request.encode().as_bytes(), data);
    }
    if let Some(answer) = Reply::decode(data) {
        let sent = answer.encode();
        assert!(sent.len() <= MAX_MESSAGE, "{}", sent.len());
        assert_eq!(Reply::decode(sent.as_bytes()), Some(answer));
    }
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("control", fuzz_control);
