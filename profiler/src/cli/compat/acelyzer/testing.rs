//! What the fuzz target `acelyzer_args` calls.

use super::*;

/// Fuzzing entry: any bytes as acelyzer's command line, arguments between zeros. No
/// file is opened.
pub fn fuzz_acelyzer(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let words: Vec<_> = text.split('\0').map(str::to_owned).collect();
    if let Ok(Given { mut settings, .. }) = settings::parse(&words) {
        settings.profile = "default.json".to_owned();
        let mut messages = Messages::new(Level::Trace);
        if convert::check(&settings, &mut messages).is_ok() {
            // A filter may be refused.
            let _ = convert::plan(&settings, &mut messages);
        }
    }
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("acelyzer_args", fuzz_acelyzer);
