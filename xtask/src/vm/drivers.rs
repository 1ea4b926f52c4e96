//! Judging profiler/tests/drivers, which runs in the VM against the devices there.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::console::step;
use crate::counts::{Counts, Reader};
use crate::proc::{capture, cargo};

/// The step that runs them (xtask/vm/devices).
const STEP: &str = "tests";
/// A test's lines with measurements begin with this.
const MEASURED: &str = "measured: ";

/// Builds the tests' program.
pub(super) fn build() -> Result<PathBuf> {
    // With the features that the other tests have, so that nothing is built twice.
    let what = ["test", "--quiet", "--profile", "tests", "--workspace"];
    let how = ["--test", "drivers", "--no-run", "--message-format", "json"];
    let messages = capture(cargo().args(what).args(how))?;
    let program = messages.lines().find_map(executable);
    program
        .map(PathBuf::from)
        .context("cargo does not print the path of the tests' program")
}

/// The program in a message of cargo's, if it is the tests'. Paths with characters that JSON
/// escapes are not found, for xtask reads no JSON.
fn executable(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once("\"executable\":\"")?;
    let (path, _) = rest.split_once('"')?;
    let file = path.rsplit('/').next()?;
    file.starts_with("drivers-").then_some(path)
}

/// Judges one VM's run: each of the tests.
pub(super) fn judge(series: &str, console: &str) -> Counts {
    let step = step(console, STEP);
    let mut reader = Reader::default();
    for line in &step.lines {
        if line.starts_with(MEASURED) {
            println!("vm {series} {line}");
        }
        reader.line(line);
    }
    let mut counts = reader.finish(&format!("vm {series} drivers"), step.status == Some(0));
    if counts.failed > 0 {
        println!("vm {series} drivers: FAILED");
        // Not as they are: whoever reads this counts the lines of tests too.
        step.lines
            .iter()
            .for_each(|line| println!("vm {series} | {line}"));
    } else if counts.is_empty() {
        counts.fail(format!("vm {series} drivers: no test ran"));
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_program() {
        let message = |path: &str| format!("{{\"a\":1,\"executable\":\"{path}\",\"fresh\":true}}");
        assert_eq!(
            executable(&message("/t/debug/deps/drivers-1f")),
            Some("/t/debug/deps/drivers-1f")
        );
        assert_eq!(executable(&message("/t/debug/deps/other-1f")), None);
        assert_eq!(executable("{\"executable\":null}"), None);
    }

    #[test]
    fn counts_tests() {
        let console = |result: &str, status: i32| {
            format!(
                "@@begin tests\ntest xe ... {result}\nskipped: vfio: needs a device\n\
                 test result: {result}. 2 passed; {} failed; 0 ignored\n@@status {status}\n@@done\n",
                u8::from(status != 0),
            )
        };
        let counts = judge("6.1", &console("ok", 0));
        assert_eq!((counts.passed, counts.failed, counts.skipped), (1, 0, 1));
        assert_eq!(judge("6.1", &console("FAILED", 101)).failed, 1);
        assert_eq!(judge("6.1", &console("ok", 139)).failed, 1);
        assert_eq!(judge("6.1", "").failed, 1);
        assert_eq!(judge("6.1", "@@begin tests\n@@status 0\n").failed, 1);
    }
}
