//! What values of a configuration must be. A fault names the key and what to write.
//!
//! What depends on the machine, such as files and directories, is looked at by the program
//! that uses it, by the same functions by which it uses it.

use super::{Config, FREQUENCY, Faults};
use bytesize::ByteSize;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

/// Most outputs.
const MAX_OUTPUTS: usize = 32;
/// Most labels of all that is recorded.
const MAX_LABELS: usize = 16;
/// Bounds of a window.
const WINDOW: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);
/// Bounds of the turns of which a host records one.
const ONE_IN: RangeInclusive<u32> = 1..=1000;
/// Least memory.
const LEAST_MEMORY: ByteSize = ByteSize::mib(16);
/// Least spool: a few windows of a busy host.
const LEAST_SPOOL: ByteSize = ByteSize::mib(1);
/// Most bytes of a label's value: of more the rest would be cut.
const MAX_LABEL: usize = 255;
/// Most bytes of a host's name: DNS has no longer ones.
const MAX_HOST: usize = 253;
/// The label that the host's id is.
const HOST_ID: &str = "host.id";

pub(super) const NAME_RULE: &str = "must have 1 to 64 letters, digits, `.`, `_` and `-`, and begin with a \
                         letter or digit";
const KEY_RULE: &str = "the key of a label must have 1 to 64 letters, digits, `_`, `.` and `-`";
pub(super) const PATH_RULE: &str = "must be an absolute path without control characters";
/// What a host can be called.
pub const HOST_RULE: &str = "must have 1 to 253 bytes and no control characters";

/// Whether a host can be called so.
pub fn is_host(name: &str) -> bool {
    is_line(name, MAX_HOST)
}

/// Whether a text is in one line, and has something in it.
fn is_line(text: &str, most: usize) -> bool {
    !text.is_empty() && text.len() <= most && !text.contains(char::is_control)
}

/// Whether something can be called so: it is the name of a directory, too.
pub(super) fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let first = name.bytes().next();
    name.len() <= 64
        && first.is_some_and(|byte| byte.is_ascii_alphanumeric())
        && name.bytes().all(is_letter)
}

/// Whether a path means the same in each directory.
pub(super) fn is_path(path: &Path) -> bool {
    path.is_absolute() && !path.to_string_lossy().contains(char::is_control)
}

impl Config {
    /// Finds what is wrong with values.
    pub(super) fn check(&self, faults: &mut Faults) {
        self.check_numbers(faults);
        self.check_names(faults);
        self.check_labels(faults);
        if self.outputs.len() > MAX_OUTPUTS {
            faults.add("output", format!("must be at most {MAX_OUTPUTS} outputs"));
        }
        for (at, output) in self.outputs.iter().enumerate() {
            let before = self.outputs.get(..at).unwrap_or_default();
            output.check(before, self.window, faults);
        }
    }

    fn check_numbers(&self, faults: &mut Faults) {
        if !FREQUENCY.contains(&self.frequency) {
            let (least, most) = (FREQUENCY.start(), FREQUENCY.end());
            let why = format!("must be {least} to {most} samples per second and CPU");
            faults.add("frequency", why);
        }
        if !WINDOW.contains(&self.window) {
            faults.add("window", "must be 1s to 1h");
        }
        if !ONE_IN.contains(&self.one_in) {
            faults.add("one_in", "must be 1 (always) to 1000");
        }
        if !(self.budget.cpu > 0.0 && self.budget.cpu <= 1.0) {
            faults.add("budget.cpu", "must be above 0% and at most 100%");
        }
        if self.budget.memory < LEAST_MEMORY {
            faults.add("budget.memory", "must be at least 16MiB");
        }
        if self.spool.size < LEAST_SPOOL {
            let why = "must be at least 1MiB to hold profiles while a server is down";
            faults.add("spool.size", why);
        }
        if self.metrics.listen.is_some_and(|at| at.port() == 0) {
            faults.add(
                "metrics.listen",
                "the port must be 1 to 65535, or write \"off\"",
            );
        }
    }

    fn check_names(&self, faults: &mut Faults) {
        for (key, name) in [("host", &self.host), ("host_id", &self.host_id)] {
            if name.as_ref().is_some_and(|name| !is_host(name)) {
                faults.add(key, HOST_RULE);
            }
        }
        if !is_path(&self.state) {
            faults.add("state", PATH_RULE);
        }
        if !is_name(&self.control.name) {
            faults.add("control.name", NAME_RULE);
        }
    }

    fn check_labels(&self, faults: &mut Faults) {
        if self.labels.len() > MAX_LABELS {
            faults.add("labels", format!("must be at most {MAX_LABELS} labels"));
        }
        for (key, value) in &self.labels {
            let name = format!("labels.{key}");
            let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
            if key.is_empty() || key.len() > 64 || !key.bytes().all(is_letter) {
                faults.add(name, KEY_RULE);
            } else if key == HOST_ID {
                faults.add(name, "the agent sets this label: use `host_id`");
            } else if !value.is_empty() && !is_line(value, MAX_LABEL) {
                let why = format!("must have at most {MAX_LABEL} bytes and no control characters");
                faults.add(name, why);
            }
        }
    }
}
