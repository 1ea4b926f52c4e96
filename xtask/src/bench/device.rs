//! `bench device`: stall records of devices, decoded and added up.

use anyhow::Result;

use super::Options;
use super::report::{publish, table};
use super::watch::{Quiet, median};
use crate::proc::{capture, cargo};

pub(super) fn main(options: &Options) -> Result<()> {
    let mut build = cargo();
    build.args("build --release --package aiprof --example eu_stall".split(' '));
    crate::proc::run(&mut build)?;
    Quiet::new(options.wait).wait();
    let path = crate::proc::target_dir().join("release/examples/eu_stall");
    let rounds = options.rounds.max(5);
    let text = capture(std::process::Command::new(path).arg(rounds.to_string()))?;
    let head = ["layout", "addresses", "million records/s", "least", "most"];
    let body = format!(
        "One thread; generated records of 64 bytes in windows of 65,536; {rounds} times; \
         medians. By layout: from memory to sorted counts. `joined`: 800 windows of 5 ms \
         through the join with launches of 20 kernels from 4 call paths each, to rows and the \
         names of their instructions.\n\n{}",
        table(&head, &rows(&text))
    );
    publish("device", &options.command("device"), &body, options.write)
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
