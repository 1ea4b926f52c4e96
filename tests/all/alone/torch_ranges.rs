//! PyTorch's own ranges under `--ranges`: `emit_itt` of the real PyTorch.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

use aiprof_tests::need::skip;
use aiprof_tests::ranges::{Bench, judge, nothing_lost};
use aiprof_tests::torch::TorchPython;
use aiprof_tests::workload::source_path;

#[test]
fn pytorch_names_ranges_by_itt() -> anyhow::Result<()> {
    let name = "pytorch_names_ranges_by_itt";
    let Some(bench) = Bench::with_packages(name)? else {
        return Ok(());
    };
    let script = source_path("ranges.py");
    let script = script.to_str().context("a path")?;
    let torch = match TorchPython::find() {
        Ok(torch) => torch,
        Err(reason) => {
            skip(name, &reason);
            return Ok(());
        }
    };
    let mut env = Command::new("true");
    let stubs = torch.prepare(&mut env).get_envs();
    let stubs: Vec<String> = stubs
        .filter_map(|(key, value)| {
            let value = value?.to_string_lossy();
            Some(format!("{}={value}", key.to_string_lossy()))
        })
        .collect();
    let program = torch.program.to_string_lossy().into_owned();
    let mut args: Vec<&str> = stubs.iter().map(String::as_str).collect();
    args.extend([&*program, script, "torch"]);
    let run = bench.run(
        Some("t.json"),
        Path::new("/usr/bin/env"),
        &args,
        &["--ranges"],
    )?;
    ensure!(run.truth.len() == 21, "{}", run.stderr);
    judge(&run.trace.context("a trace")?, &run.truth, "ITT")?;
    nothing_lost(&run.stderr)
}
