//! What the fuzz target `categories` calls.

use super::*;

/// Fuzzing entry point: any text is rules or refused, and what is written is read as the same.
pub fn fuzz_categories(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let rules = match text.starts_with('{') {
        true => Categories::of_json(&text).ok(),
        false => Categories::of_ini(&text, data.len().is_multiple_of(2)).ok(),
    };
    let Some(rules) = rules else { return };
    rules.of(&text);
    if let Ok(json) = rules.to_json() {
        let again = Categories::of_json(&json.to_string());
        assert!(again.is_ok_and(|again| again.len() == rules.len()));
    }
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("categories", fuzz_categories);
