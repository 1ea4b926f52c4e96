//! `perf record` in aiprof's place: checks that the workloads do what the tests expect,
//! independently of aiprof (`AIPROF_TESTS_ORACLE=perf`).
//!
//! perf copies up to 64 KiB of each stack and unwinds it afterwards with libdw,
//! so its chains are slow to make but come from another unwinder. It knows
//! neither JIT frames nor pending return probes, and cuts at 127 frames by default.

use std::ffi::OsString;
use std::process::Command;

use anyhow::Context as _;
use tempfile::TempDir;

use crate::aiprof::Run;
use crate::folded::{Folded, Line};

/// Whether perf is to stand in for aiprof.
#[must_use]
pub fn is_chosen() -> bool {
    std::env::var_os("AIPROF_TESTS_ORACLE").is_some_and(|v| v == "perf")
}

/// Records a command with `perf record` and reads the stacks.
///
/// # Errors
/// When perf fails or its output cannot be read.
pub fn record(command: &[OsString]) -> anyhow::Result<Run> {
    let dir = TempDir::new()?;
    let data = dir.path().join("perf.data");
    let output = Command::new("perf")
        .args(["record", "-q", "-e", "cpu-clock", "-F", "499"])
        .args(["--call-graph", "dwarf,65528", "-o"])
        .arg(&data)
        .arg("--")
        .args(command)
        .output()
        .context("running perf record")?;
    let script = crate::workload::checked(
        Command::new("perf")
            .args(["script", "--max-stack", "512", "--no-inline"])
            .args(["-F", "comm,pid,ip,sym,dso", "-i"])
            .arg(&data),
    )?;
    Ok(Run {
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        folded: parse(&script)?,
    })
}

/// Reads `perf script -F comm,pid,ip,sym,dso`: per sample a line `COMM PID`,
/// its frames leaf first as `IP SYMBOL (FILE)`, and an empty line.
fn parse(script: &str) -> anyhow::Result<Folded> {
    let samples = script
        .split("\n\n")
        .filter(|block| !block.trim().is_empty());
    let mut lines: Vec<Line> = samples.map(parse_sample).collect::<anyhow::Result<_>>()?;
    lines.sort_by(|a, b| (&a.comm, a.pid, &a.frames).cmp(&(&b.comm, b.pid, &b.frames)));
    lines.dedup_by(|next, kept| {
        let same = (&next.comm, next.pid, &next.frames) == (&kept.comm, kept.pid, &kept.frames);
        if same {
            kept.value += next.value;
        }
        same
    });
    Ok(Folded { lines })
}

fn parse_sample(block: &str) -> anyhow::Result<Line> {
    let mut lines = block.lines().filter(|line| !line.trim().is_empty());
    let head = lines.next().context("no head")?.trim();
    let (comm, pid) = head.rsplit_once(' ').context("no pid")?;
    let mut frames: Vec<String> = lines.map(parse_frame).collect();
    frames.reverse();
    if frames.is_empty() {
        frames.push("[no stack]".to_owned());
    }
    Ok(Line {
        comm: comm.trim().to_owned(),
        pid: pid.parse().with_context(|| format!("pid in {head:?}"))?,
        frames,
        value: 1,
    })
}

fn parse_frame(line: &str) -> String {
    let line = line.trim();
    let rest = line.split_once(' ').map_or("[unknown]", |(_, rest)| rest);
    let (name, file) = rest.rsplit_once(" (").unwrap_or((rest, ""));
    let kernel = file.starts_with("[kernel") || file.starts_with("[guest.kernel");
    let name = name.replace(';', ":");
    match kernel {
        true => format!("{name}_[k]"),
        false => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_perf_script() {
        let script = "deep 77 \n\tffffffff81 irq_exit ([kernel.kallsyms])\n\t 55d1 leaf (/tmp/a b)\n\t 55d0 f(int, char) (/tmp/a)\n\t7f _start (/tmp/a)\n\n";
        let folded = parse(script).unwrap();
        assert_eq!(
            folded.lines[0].to_string(),
            "deep;77;_start;f(int, char);leaf;irq_exit_[k] 1"
        );
    }
}
