//! What a launch costs the program that is recorded.

use std::path::Path;

use anyhow::{Context as _, ensure};

use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::states::waited_for;
use aiprof_tests::workload::Workshop;

/// Microseconds that a launch of OpenCL took, the least of some runs.
fn launch_us(program: &Path, options: &[&str], out: &Path) -> anyhow::Result<f64> {
    let mut least = f64::MAX;
    for _ in 0..7 {
        let mut command = waited_for()?;
        command.args(options).arg("-o").arg(out).arg("--").arg(program);
        let output = command.args(["Portable Computing", "gated", "50000"]).output()?;
        let stderr = String::from_utf8(output.stderr)?;
        ensure!(output.status.success(), "{}\n{stderr}", output.status);
        let words = stderr.split_whitespace();
        let value = words.skip_while(|word| *word != "launch_us").nth(1);
        least = least.min(value.context("no time")?.parse()?);
    }
    Ok(least)
}

#[test]
fn a_launch_takes_little_longer() -> anyhow::Result<()> {
    let needs = [
        Need::Root,
        Need::Tool("cc"),
        Need::Path("/usr/include/CL/cl.h"),
        Need::Path("/etc/OpenCL/vendors/pocl.icd"),
    ];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let program = shop.build("cl_timing.c", "cl_timing", &["-lOpenCL", "-lpthread"])?;
    let out = shop.path("t.json");
    let plain = launch_us(&program, &[], &out)?;
    let timed = launch_us(&program, &["--device-timing"], &out)?;
    println!("a launch: {plain:.2} us in a trace, {timed:.2} us timed, too");
    ensure!(timed - plain <= 1.5, "{plain} {timed}");
    Ok(())
}
