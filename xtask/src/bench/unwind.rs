//! `bench unwind-table FILE`: the tables of a whole file.

use std::path::Path;

use anyhow::{Context, Result};

use super::Options;
use super::report::{mib, publish, table};
use super::watch::{Quiet, median};
use crate::proc::{capture, cargo};

pub(super) fn main(options: &Options, file: &str) -> Result<()> {
    let size = std::fs::metadata(file)
        .with_context(|| file.to_string())?
        .len();
    let mut build = cargo();
    build.args("build --release --package aiprof --example unwind_table".split(' '));
    crate::proc::run(&mut build)?;
    Quiet::new(options.wait).wait();
    let path = crate::proc::target_dir().join("release/examples/unwind_table");
    let mut example_command = std::process::Command::new(path);
    let text = capture(example_command.args([file, &options.rounds.max(3).to_string()]))?;
    let rounds: Vec<Vec<f64>> = text.lines().map(numbers).collect();
    let column = |i: usize| rounds.iter().filter_map(move |r| r.get(i).copied());
    let name = Path::new(file).file_name().unwrap_or_default();
    let row = vec![
        name.to_string_lossy().into_owned(),
        mib(size as f64),
        format!("{:.0}", median(column(0))),
        format!("{:.0}", median(column(1))),
        mib(median(column(2))),
        format!("{:.3} s", median(column(3))),
        format!(
            "{:.3} - {:.3} s",
            column(3).fold(f64::INFINITY, f64::min),
            column(3).fold(0.0, f64::max)
        ),
    ];
    let head = [
        "file",
        "MiB",
        "pages",
        "rows",
        "tables MiB",
        "to build all",
        "least - most",
    ];
    let body = format!(
        "One thread, file in the page cache; {} times; medians.\n\n{}",
        rounds.len(),
        table(&head, &[row])
    );
    let command = options.command("unwind-table FILE");
    publish("unwind-table", &command, &body, options.write)
}

fn numbers(line: &str) -> Vec<f64> {
    line.split(' ').filter_map(|w| w.parse().ok()).collect()
}
