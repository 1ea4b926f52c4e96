//! `bench device`: stall records of devices, decoded and added up; joined with launches;
//! and how many a second a recording reads before any are lost.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::Options;
use super::report::{publish, table};
use super::watch::{Quiet, median};
use crate::proc::{capture, cargo};

/// Million records a second that a recording is fed with.
const RATES: [u64; 7] = [1, 2, 5, 10, 15, 20, 30];
/// FIFOs that stand for GTs.
const FIFOS: usize = 8;
/// Seconds of each.
const SECONDS: u64 = 3;

pub(super) fn main(options: &Options) -> Result<()> {
    let mut build = cargo();
    build.args("build --release --package aiprof --bins --example eu_stall".split(' '));
    crate::proc::run(&mut build)?;
    Quiet::new(options.wait).wait();
    let path = crate::proc::target_dir().join("release/examples/eu_stall");
    let rounds = options.rounds.max(5);
    let text = capture(Command::new(&path).arg(rounds.to_string()))?;
    let head = ["layout", "addresses", "million records/s", "least", "most"];
    let body = format!(
        "One thread; generated records of 64 bytes in windows of 65,536; {rounds} times; \
         medians. By layout: from memory to sorted counts. `joined`: 800 windows of 5 ms \
         through the join with launches of 20 kernels from 4 call paths each, to rows and the \
         names of their instructions.\n\n{}",
        table(&head, &rows(&text))
    );
    let body = format!("{body}\n\n{}", live(&path)?);
    publish("device", &options.command("device"), &body, options.write)
}

/// What a recording of the whole machine loses of a device, by the rate of its records, while the
/// feeder and everything else runs beside it.
fn live(feeder: &Path) -> Result<String> {
    let dir = super::work_dir("device")?;
    let fifos: Vec<PathBuf> = (0..FIFOS).map(|i| dir.join(format!("gt{i}"))).collect();
    let aiprof = crate::proc::target_dir().join("release/aiprof");
    let mut rows = Vec::new();
    for rate in RATES {
        for fifo in &fifos {
            let _ = std::fs::remove_file(fifo);
        }
        capture(Command::new("mkfifo").args(&fifos))?;
        let mut recording = Command::new(&aiprof);
        recording.args(["--quiet", "--duration", &(SECONDS + 3).to_string()]);
        for (i, fifo) in fifos.iter().enumerate() {
            let spec = format!("xe2:{},gt={i}", fifo.display());
            recording.arg("--replay-device").arg(spec);
        }
        let mut recording = recording
            .arg("--output")
            .arg(dir.join("out.folded"))
            .stdin(Stdio::null())
            .spawn()?;
        std::thread::sleep(Duration::from_secs(1));
        let records = (rate * 1_000_000).to_string();
        let mut feed = Command::new(feeder);
        feed.args(["feed", &records, &SECONDS.to_string()]);
        let fed = capture(feed.args(&fifos));
        anyhow::ensure!(recording.wait()?.success(), "the recording failed");
        let fed = fed?;
        let (written, lost) = fed.trim().split_once(' ').context("no counts")?;
        let (written, lost): (f64, f64) = (written.parse()?, lost.parse()?);
        rows.push(vec![
            rate.to_string(),
            format!("{:.1}", written / 1e6 / SECONDS as f64),
            format!("{:.1} %", 100.0 * lost / (written + lost)),
        ]);
    }
    let head = ["million records/s offered", "read", "lost"];
    Ok(format!(
        "A recording of the whole machine reads {FIFOS} FIFOs of 1 MiB each for {SECONDS} s (in \
         xe, 16 XeCores have buffers of this size). Records that find no room are lost, as on a \
         device. The program that writes them runs on the same machine.\n\n{}",
        table(&head, &rows)
    ))
}

/// A row for each layout and number of addresses, whose lines follow each other.
fn rows(text: &str) -> Vec<Vec<String>> {
    let lines: Vec<_> = text.lines().filter_map(|l| l.rsplit_once(' ')).collect();
    let mut rows = Vec::new();
    for group in lines.chunk_by(|a, b| a.0 == b.0) {
        let rates = || group.iter().filter_map(|line| line.1.parse::<f64>().ok());
        let Some((layout, addresses)) = group.first().and_then(|g| g.0.split_once(' ')) else {
            continue;
        };
        rows.push(vec![
            layout.to_owned(),
            addresses.to_owned(),
            format!("{:.0}", median(rates())),
            format!("{:.0}", rates().fold(f64::INFINITY, f64::min)),
            format!("{:.0}", rates().fold(0.0, f64::max)),
        ]);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_the_same_are_one_row() {
        let rows = rows("pvc 1000 10.0\npvc 1000 30.0\npvc 1000 20.0\nxe2 1000 5.4\n");
        let expected = [
            ["pvc", "1000", "20", "10", "30"],
            ["xe2", "1000", "5", "5", "5"],
        ];
        assert_eq!(rows, expected);
    }
}
