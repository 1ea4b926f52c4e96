//! Counting tests: what libtest prints, and the tests that report that they could not run. A test
//! that cannot run prints `skipped: NAME: REASON` on a line of its own and returns. libtest counts
//! it as passed, we do not.

use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result};

use crate::proc::display;

/// How many tests passed, failed and were skipped, and which.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    /// The names of the failed.
    pub(crate) failures: Vec<String>,
    /// What failed tests printed: name, lines.
    pub(crate) outputs: Vec<(String, Vec<String>)>,
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

    /// Has all names begin with that of a machine.
    pub(crate) fn prefix(&mut self, machine: &str) {
        let outputs = self.outputs.iter_mut().map(|(name, _)| name);
        let names = self.failures.iter_mut().chain(&mut self.skips);
        for name in names.chain(outputs) {
            *name = format!("{machine}: {name}");
        }
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
        self.outputs.extend(other.outputs);
        self.skips.extend(other.skips);
    }

    /// Prints the names and, as the last line, the counts. Gives the exit status of the task.
    pub(crate) fn report(&self) -> ExitCode {
        print!("{}", self.details());
        println!("{self}");
        match self.failed {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        }
    }

    /// Names of the failed, with what they printed, and of the skipped.
    pub(crate) fn details(&self) -> String {
        let failed = self.failures.iter().map(|name| {
            let output = self.outputs.iter().find(|(of, _)| of == name);
            let lines = output.map_or(&[][..], |(_, lines)| lines);
            let lines: String = lines.iter().map(|l| format!("    {l}\n")).collect();
            format!("failed: {name}\n{lines}")
        });
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
    /// What the output of tests that follows is of.
    section: Section,
}

/// What libtest prints behind its list of tests.
#[derive(Debug, Default, PartialEq, Eq)]
enum Section {
    #[default]
    List,
    Passed,
    Failed,
}

/// Most lines kept of what a failed test printed, and most bytes of a line.
const MAX_LINES: usize = 40;
const MAX_LINE: usize = 300;

impl Reader {
    /// Takes a line in. Gives whether it is worth showing: what tests that passed
    /// printed is not, but for their skips.
    pub(crate) fn line(&mut self, line: &str) -> bool {
        let line = line.trim_end();
        match line {
            "successes:" => self.section = Section::Passed,
            "failures:" => self.section = Section::Failed,
            _ if line.starts_with("test result: ") => self.section = Section::List,
            _ => {}
        }
        if self.section == Section::Failed {
            self.output(line);
        }
        self.count(line);
        self.section != Section::Passed || skip_line(line).is_some()
    }

    /// Keeps what a failed test printed.
    fn output(&mut self, line: &str) {
        let header = line.strip_prefix("---- ");
        if let Some(name) = header.and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.counts.outputs.push((name.to_string(), Vec::new()));
        } else if let Some((_, lines)) = self.counts.outputs.last_mut()
            && !line.is_empty()
            && line != "failures:"
            && lines.len() < MAX_LINES
        {
            lines.push(line.chars().take(MAX_LINE).collect());
        }
    }

    fn count(&mut self, line: &str) {
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

    /// The counts, given how cargo ended. A run that failed without a failed test counts as one
    /// failure named `what`: it did not compile, or a test brought its process down.
    pub(crate) fn finish(mut self, what: &str, success: bool) -> Counts {
        if !success && self.counts.failed == 0 {
            self.counts
                .fail(format!("{what} (compilation failed, or a test crashed)"));
        }
        self.counts
    }
}

/// Runs `cargo test`, shows its output as it comes, and counts.
pub(crate) fn count(what: &str, command: &mut Command) -> Result<Counts> {
    let text = display(command);
    eprintln!("+ {text}");
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {text}"))?;
    let mut reader = Reader::default();
    if let Some(stdout) = child.stdout.take() {
        let mut stdout = BufReader::new(stdout);
        let mut line = Vec::new();
        // Bytes, not lines of UTF-8: a failing test may print anything.
        while stdout.read_until(b'\n', &mut line)? > 0 {
            let shown = String::from_utf8_lossy(&line);
            if reader.line(&shown) {
                print!("{shown}");
            }
            line.clear();
        }
    }
    let status = child.wait()?;
    Ok(reader.finish(what, status.success()))
}

/// What is kept of a failed test's lines: the last ones, cut where they are long.
pub(crate) fn excerpt<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let lines: Vec<&str> = lines.filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(MAX_LINES)..];
    let cut = |line: &&str| line.chars().take(MAX_LINE).collect();
    last.iter().map(cut).collect()
}

/// The text of a visible skip: `NAME: REASON`.
pub(crate) fn skip_line(line: &str) -> Option<&str> {
    let text = line.strip_prefix("skipped: ")?;
    let (name, reason) = text.split_once(": ")?;
    (!name.is_empty() && !reason.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Reader {
        let mut reader = Reader::default();
        for line in text.lines() {
            reader.line(line);
        }
        reader
    }

    #[test]
    fn what_failed_tests_printed_is_kept_and_what_passed_ones_did_is_not_shown() {
        let text = "test a ... ok\ntest b ... FAILED\n\nsuccesses:\n\n---- a stdout ----\n\
                    thread panicked\nskipped: c: no root\n\nsuccesses:\n    a\n\n\
                    failures:\n\n---- b stdout ----\n1 is not 2\n\n\nfailures:\n    b\n\n\
                    test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured\n";
        let mut reader = Reader::default();
        let shown: Vec<_> = text.lines().filter(|line| reader.line(line)).collect();
        assert!(shown.contains(&"1 is not 2") && shown.contains(&"skipped: c: no root"));
        assert!(!shown.contains(&"thread panicked"), "{shown:?}");
        let counts = reader.finish("x", false);
        assert!(
            counts.details().contains("failed: b\n    1 is not 2\n"),
            "{}",
            counts.details()
        );
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
    fn failures_are_named_with_their_machine_and_keep_what_they_printed() {
        let mut counts = read(
            "test b ... FAILED\n\nfailures:\n\n---- b stdout ----\n1 is not 2\n\n\
             test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured\n",
        )
        .finish("x", false);
        counts.skip("c: no root");
        counts.prefix("s390x");
        let details = "failed: s390x: b\n    1 is not 2\nskipped: s390x: c: no root\n";
        assert_eq!(counts.details(), details);
    }

    #[test]
    fn a_crash_is_a_failure() {
        let counts = read("running 9 tests\n").finish("end to end", false);
        assert_eq!(counts.to_string(), "0 passed, 1 failed, 0 skipped");
        assert!(counts.failures[0].starts_with("end to end"));
        assert_eq!(read("").finish("x", true), Counts::default());
    }
}
