//! What the unit tests of several crates share:
//!
//! * [`timelines`]: small timelines;
//! * [`script`]: a thread whose calls are probed, with a tracker behind it;
//! * [`seeds`]: the inputs that each fuzz target starts from.
//!
//! End-to-end tests have a crate of their own, `tests/`.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "not part of the program"
)]

use aiprof_record::correlate;

pub mod scene;
pub mod timelines;

// The tests of `correlate` itself compile the same file against the crate under test, whose
// types are others than those of the library here.
#[path = "../../record/src/correlate/script.rs"]
pub mod script;

use std::path::Path;

/// The committed seeds of a fuzz target (`fuzz/seeds/TARGET`), and inputs of zeros: name and
/// bytes.
///
/// # Panics
/// When a seed cannot be read.
#[must_use]
pub fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/seeds");
    let zeros = [0, 1, 16, 128, 1024, 4096].map(|n| (format!("{n} zeros"), vec![0; n]));
    let mut seeds = Vec::from(zeros);
    // A target whose inputs are made from nothing has no folder.
    for entry in std::fs::read_dir(folder.join(target)).into_iter().flatten() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        seeds.push((name, std::fs::read(entry.path()).unwrap()));
    }
    seeds
}

/// Declares a test that gives each of the [`seeds`] of a fuzz target to its function.
#[macro_export]
macro_rules! survives_seeds {
    ($target:literal, $fuzz:path) => {
        #[test]
        fn seeds_are_survived() {
            for (name, input) in $crate::seeds($target) {
                println!("{name}");
                $fuzz(&input);
            }
        }
    };
}
