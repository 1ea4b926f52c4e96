//! What Go's runtime does to stacks, by which of its functions does it.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

/// Functions of a program of Go, by `go tool nm`.
#[derive(Clone, Debug, Default)]
pub struct GoRuntime {
    /// Where stacks begin, as Go's runtime sees it: its start, that of a thread, and
    /// that of the scheduler on a thread's stack.
    roots: Vec<Range<u64>>,
    /// It gives a goroutine up by one of the next, which start the scheduler too.
    newstack: Range<u64>,
    gives_up: HashSet<u64>,
    /// C calls Go through it.
    cgocallback: Range<u64>,
    /// The goroutine of the first thread's own stack.
    first: u64,
}

impl GoRuntime {
    /// The Go runtime of a program.
    ///
    /// # Errors
    /// When its symbols cannot be listed.
    pub fn of(go: &Path, program: &Path) -> anyhow::Result<Self> {
        let output = Command::new(go)
            .args(["tool", "nm", "-size"])
            .arg(program)
            .output()
            .context("go tool nm")?;
        anyhow::ensure!(output.status.success(), "go tool nm: {}", output.status);
        let mut found = Self::default();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [address, size, _, name] = words[..] else {
                continue;
            };
            let (Ok(start), Ok(size)) = (u64::from_str_radix(address, 16), size.parse::<u64>())
            else {
                continue;
            };
            let code = start..start + size;
            match name.strip_suffix(".abi0").unwrap_or(name) {
                "runtime.mcall" | "runtime.mstart" | "runtime.rt0_go" => found.roots.push(code),
                "runtime.g0" => found.first = start,
                "runtime.newstack" if !name.ends_with(".abi0") => found.newstack = code,
                "runtime.cgocallback" => found.cgocallback = code,
                "runtime.gopreempt_m" | "runtime.goschedImpl" | "runtime.preemptPark" => {
                    found.gives_up.insert(start);
                }
                _ => {}
            }
        }
        anyhow::ensure!(found.roots.len() == 3, "no runtime.mcall");
        Ok(found)
    }

    /// Whether a stack begins with a call.
    pub(super) fn is_last(&self, from: u64, to: u64) -> bool {
        let mut roots = self.roots.iter();
        roots.any(|code| code.contains(&from))
            || self.newstack.contains(&from) && self.gives_up.contains(&to)
    }

    /// Whether a goroutine is that of the first thread's own stack.
    pub(super) fn is_first(&self, goroutine: u64) -> bool {
        goroutine == self.first
    }

    /// Whether an instruction is one of those through which C calls Go.
    pub(super) fn is_callback(&self, at: u64) -> bool {
        self.cgocallback.contains(&at)
    }
}
