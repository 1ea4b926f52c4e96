//! Counting tests: what libtest prints, and the tests that say that they could
//! not run. A test that cannot run prints `skipped: NAME: REASON` on a line of
//! its own and returns; libtest calls it passed, we do not.

use std::fmt;

/// How many tests passed, failed and were skipped, and which.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    /// The names of the failed.
    pub(crate) failures: Vec<String>,
    /// The names of the skipped, with the reason.
    pub(crate) skips: Vec<String>,
}

impl Counts {
    /// One more test that passed.
    pub(crate) fn pass(&mut self) {
        self.passed += 1;
    }

    /// One more test that failed.
    pub(crate) fn fail(&mut self, name: impl Into<String>) {
        self.failed += 1;
        self.failures.push(name.into());
    }

    /// One more test that could not run.
    pub(crate) fn skip(&mut self, name_and_reason: impl Into<String>) {
        self.skipped += 1;
        self.skips.push(name_and_reason.into());
    }

    /// Whether no test ran at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.passed + self.failed + self.skipped == 0
    }

    /// Adds another run's counts.
    pub(crate) fn add(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
        self.skips.extend(other.skips);
    }

    /// Names of the failed and the skipped, one a line.
    pub(crate) fn details(&self) -> String {
        let failed = self.failures.iter().map(|name| format!("failed: {name}\n"));
        let skipped = self.skips.iter().map(|text| format!("skipped: {text}\n"));
        failed.chain(skipped).collect()
    }
}

/// The line that ends a test run; .ci/run adds such lines up.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

/// Reads the output of `cargo test`, line by line.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    counts: Counts,
    /// Visible skips since the last `test result:` line.
    skipped: Vec<String>,
}

impl Reader {
    pub(crate) fn line(&mut self, line: &str) {
        let line = line.trim_end();
        if let Some(text) = skip_line(line) {
            // The same line may be shown live and again as captured output.
            if !self.skipped.iter().any(|seen| seen == text) {
                self.skipped.push(text.to_string());
            }
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.result(result);
        } else if let Some(test) = line.strip_prefix("test ") {
            self.test(test);
        }
    }

    fn test(&mut self, text: &str) {
        let Some((name, outcome)) = text.rsplit_once(" ... ") else {
            return;
        };
        if outcome == "FAILED" {
            self.counts.failures.push(name.to_string());
        } else if let Some(reason) = outcome.strip_prefix("ignored") {
            let reason = reason.trim_start_matches(", ");
            self.counts.skips.push(format!(
                "{name}: {}",
                if reason.is_empty() { "ignored" } else { reason }
            ));
        }
    }

    /// `ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; ...`
    fn result(&mut self, text: &str) {
        let number = |what: &str| -> u64 {
            let words: Vec<_> = text
                .split([' ', ';'])
                .filter(|word| !word.is_empty())
                .collect();
            let pair = words.windows(2).find(|pair| pair[1] == what);
            pair.and_then(|pair| pair[0].parse().ok()).unwrap_or(0)
        };
        let skipped = self.skipped.len() as u64;
        self.counts.passed += number("passed").saturating_sub(skipped);
        self.counts.failed += number("failed");
        self.counts.skipped += number("ignored") + skipped;
        self.counts.skips.append(&mut self.skipped);
    }

    /// The counts, given how cargo ended: a run that failed without a failed
    /// test (it did not compile, or a test brought its process down) counts as
    /// one failure named `what`.
    pub(crate) fn finish(mut self, what: &str, success: bool) -> Counts {
        if !success && self.counts.failed == 0 {
            self.counts
                .fail(format!("{what} (did not compile, or crashed)"));
        }
        self.counts
    }
}

/// The text of a visible skip: `NAME: REASON`.
fn skip_line(line: &str) -> Option<&str> {
    let text = line.strip_prefix("skipped: ")?;
    let (name, reason) = text.split_once(": ")?;
    (!name.is_empty() && !reason.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Reader {
        let mut reader = Reader::default();
        text.lines().for_each(|line| reader.line(line));
        reader
    }

    const TWO_BINARIES: &str = "
running 3 tests
test wire::truncated ... ok
test wire::unknown_kind ... FAILED
test wire::slow ... ignored, needs an hour

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

running 2 tests
test storm ... ok
test chain ... ok

successes:

---- storm stdout ----
skipped: storm: needs root

test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 4 filtered out; finished in 1.20s
";

    #[test]
    fn adds_up_all_binaries_and_takes_skips_from_the_passed() {
        let counts = read(TWO_BINARIES).finish("unit", false);
        assert_eq!(counts.to_string(), "2 passed, 1 failed, 2 skipped");
        assert_eq!(counts.failures, ["wire::unknown_kind"]);
        assert_eq!(
            counts.skips,
            ["wire::slow: needs an hour", "storm: needs root"]
        );
    }

    #[test]
    fn a_skip_shown_twice_counts_once() {
        let text = "skipped: vm: no qemu\nskipped: vm: no qemu\n\
                    test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(
            read(text).finish("x", true).to_string(),
            "0 passed, 0 failed, 1 skipped"
        );
    }

    #[test]
    fn prose_about_skipping_is_no_skip() {
        let text = "skipped: 3\nsee skipped: a: b\nskipped: : b\n\
                    test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(
            read(text).finish("x", true).to_string(),
            "1 passed, 0 failed, 0 skipped"
        );
    }

    #[test]
    fn a_crash_is_a_failure() {
        let counts = read("running 9 tests\n").finish("end to end", false);
        assert_eq!(counts.to_string(), "0 passed, 1 failed, 0 skipped");
        assert!(counts.failures[0].starts_with("end to end"));
        assert_eq!(read("").finish("x", true), Counts::default());
    }
}
