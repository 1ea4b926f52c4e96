//! A day of many hosts, as it is after compaction: synthetic rows, for timing queries.
//!
//! `cargo run --release --manifest-path fleet/Cargo.toml --example fleet_day DIRECTORY [HOSTS]`
//!
//! Each host has about 157,000 rows: 1,440 windows of 60 s, some of 4,000 stacks of 50
//! services. A file has 25 hosts, as merges of files of up to 32 MiB come to.

use aiprof_fleet_testkit::{PERIOD, Programs, Random};
use aiprof_lake::file::{FileWriter, Packing};
use aiprof_lake::schema::{Row, TextField};
use anyhow::{Context as _, Result};
use std::path::PathBuf;

/// 2026-11-26, 0:00.
const BEGIN: i64 = 1_795_651_200_000_000_000;
const MINUTE: i64 = 60_000_000_000;
const ROWS_OF_HOST: f64 = 157_310.0;
const HOSTS_OF_FILE: usize = 25;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let lake = PathBuf::from(arguments.next().context("fleet_day DIRECTORY [HOSTS]")?);
    let hosts: usize = arguments.next().map_or(Ok(1000), |text| text.parse())?;
    let folder = lake.join("date=2026-11-26");
    let commits = lake.join("_commits/date=2026-11-26");
    std::fs::create_dir_all(&folder)?;
    std::fs::create_dir_all(&commits)?;
    let programs = Programs::new(1, 50, 4000);
    let mut random = Random(7);
    let sum: f64 = (1..=4000).map(|n| 1.0 / f64::from(n)).sum();
    // By service and text, as files are sorted.
    let mut stacks: Vec<(&str, String, String, f64)> = programs
        .stacks
        .iter()
        .zip(1..)
        .map(|((service, stack), n)| {
            let name = |at: &u32| programs.functions[*at as usize].as_str();
            let text: Vec<&str> = stack.iter().map(name).collect();
            let leaf = text.last().map_or("", |leaf| leaf);
            let rows = ROWS_OF_HOST / f64::from(n) / sum;
            (
                programs.services[*service].as_str(),
                text.join(";"),
                leaf.to_owned(),
                rows,
            )
        })
        .collect();
    stacks.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    let (mut adds, mut bytes, mut rows) = (Vec::new(), 0, 0);
    for first in (0..hosts).step_by(HOSTS_OF_FILE) {
        let names: Vec<(String, String)> = (first..hosts.min(first + HOSTS_OF_FILE))
            .map(|n| {
                (
                    format!("web-{n:04}"),
                    format!("{:016x}", Random(n as u64).draw()),
                )
            })
            .collect();
        let mut writer = FileWriter::new(Packing::Small)?;
        for (service, stack, leaf, of_host) in &stacks {
            // No host has a stack more than once in a window.
            let chance = (of_host / 1440.0).min(1.0);
            for minute in 0..1440 {
                for (host, id) in &names {
                    if random.unit() >= chance {
                        continue;
                    }
                    let count = 1 + (random.below(5) / 4) as i64;
                    let mut texts = [""; TextField::COUNT];
                    for (text, value) in [
                        (TextField::Host, host.as_str()),
                        (TextField::HostId, id.as_str()),
                        (TextField::Service, service),
                        (TextField::SampleType, "cpu"),
                        (TextField::Unit, "nanoseconds"),
                        (TextField::Stack, stack.as_str()),
                        (TextField::Function, leaf.as_str()),
                        (TextField::Comm, service),
                        (TextField::Thread, "worker-#"),
                        (TextField::Container, service),
                        (TextField::Namespace, "shop"),
                        (TextField::Version, "1.0"),
                    ] {
                        texts[text.at()] = value;
                    }
                    writer.push(&Row {
                        time: BEGIN + minute * MINUTE,
                        duration: MINUTE,
                        value: count * PERIOD,
                        count,
                        texts,
                        labels: "",
                    })?;
                }
            }
        }
        let written = writer.finish()?;
        let name = format!("date=2026-11-26/c1-{first:016x}-0.parquet");
        std::fs::write(lake.join(&name), &written.bytes)?;
        bytes += written.bytes.len();
        rows += written.rows;
        adds.push(name);
    }
    let commit = serde_json::json!({"unix_ns": 0, "adds": adds, "replaces": []});
    std::fs::write(commits.join("00000001.json"), commit.to_string())?;
    println!(
        "synthetic: {hosts} hosts, {rows} rows, {} files, {bytes} bytes",
        adds.len()
    );
    Ok(())
}
