//! `aiprof stalls` on a capture: code that the compiler made, launched on the virtual device, which
//! stalls at every instruction as often as the schedule sets.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

use aiprof_tests::aiprof::binary;
use aiprof_tests::level_zero::program::build_paths;
use aiprof_tests::level_zero::real;
use aiprof_tests::need::skip_unless;
use aiprof_tests::stall_run::{NEEDS, Recording};
use aiprof_tests::workload::Workshop;

/// Launches of each kernel: 60 of three kernels in turn.
const EACH: u64 = 20;

/// The report of `aiprof stalls` on the capture in a workshop.
fn stalls(shop: &Workshop) -> anyhow::Result<Value> {
    let mut command = Command::new(binary()?);
    command.arg("stalls").arg(shop.path("run.aiprof"));
    let output = command.args(["--format", "json"]).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{stderr}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn list<'a>(of: &'a Value, name: &str) -> &'a [Value] {
    of[name].as_array().map_or(&[], Vec::as_slice)
}

#[test]
fn a_capture_with_compiled_code() -> anyhow::Result<()> {
    let needs = [&NEEDS[..], &real::NEEDS].concat();
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let built = real::compile_listed(&shop, "ai.cl", real::Product::Pvc)?;
    let mut schedule = String::new();
    let mut due: BTreeMap<(&str, u64), (&str, u64)> = BTreeMap::new();
    for (kernel, listing) in &built.listings {
        schedule += &format!("kernel {kernel} ns=100000\n");
        for (i, listed) in listing.iter().enumerate() {
            let count = 1 + i as u64 % 7;
            schedule += &format!("stall {kernel} {:#x} sbid {count}\n", listed.offset);
            due.insert((kernel, listed.offset), (&listed.mnemonic, EACH * count));
        }
    }
    let recording = Recording::compiled(&shop, &schedule)?;
    let paths = build_paths()?.display().to_string();
    let module = format!("module={}", built.zebin.display());
    let options = [
        "launch",
        "paths=3",
        "kernels=path",
        "launches=60",
        "base=1",
        &module,
    ];
    let program = std::iter::once(paths).chain(options.map(str::to_owned));
    recording.record(&shop, &program.collect::<Vec<_>>())?;

    let report = stalls(&shop)?;
    let notes = report["notes"].to_string();
    assert!(notes.contains("replayed"), "{notes}");
    let mut waits = 0;
    for kernel in list(&report, "kernels") {
        let name = kernel["name"].as_str().context("a kernel without a name")?;
        assert_eq!(kernel["samples_astray"], 0);
        let mut of_lines = 0;
        for line in list(kernel, "lines") {
            of_lines += line["samples"]["total"].as_u64().context("no samples")?;
        }
        assert_eq!(
            Some(of_lines),
            kernel["samples"]["total"].as_u64(),
            "{name}"
        );
        for stalled in list(kernel, "instructions") {
            let offset = stalled["offset"].as_u64().context("no offset")?;
            let (mnemonic, count) = due.remove(&(name, offset)).context("not in the schedule")?;
            assert_eq!(stalled["samples"]["sbid"], count, "{name} {offset:#x}");
            let found = stalled["mnemonic"].as_str().unwrap_or_default();
            // The listing has what a message does in place of where it goes.
            let is_message = ["load", "store", "fence", "atomic"]
                .iter()
                .any(|m| mnemonic.starts_with(m));
            assert!(
                found == mnemonic || is_message && found.starts_with("send"),
                "{found} {mnemonic}"
            );
            let swsb = stalled["swsb"].as_str().unwrap_or_default();
            let Some((_, token)) = swsb.split_once('$') else {
                continue;
            };
            let Some((number, _)) = token.split_once('.') else {
                continue;
            };
            let producers = list(&stalled["why"][0], "producers");
            for producer in producers {
                let mnemonic = producer["mnemonic"].as_str().unwrap_or_default();
                let holds = ["send", "math", "dpas"]
                    .iter()
                    .any(|m| mnemonic.starts_with(m));
                assert!(
                    holds && producer["is"] == format!("${number}"),
                    "{stalled:#}"
                );
            }
            let open = stalled["why"][0]["not_known"].as_str().unwrap_or_default();
            let is_over = open.contains("already waited for it");
            assert!(!producers.is_empty() || is_over, "{stalled:#}");
            waits += 1;
        }
    }
    assert!(due.is_empty(), "{due:?}");
    assert!(waits > 20, "{waits}");
    Ok(())
}
