//! Stalls of device kernels for people and programs: text, an annotated listing, a
//! page, CSV and JSON. What is in them is [`aiprof_trace::analyze::device_stalls`]'s.

mod csv;
mod json;
mod listing;
mod names;
#[cfg(test)]
mod tests;
mod text;

pub use csv::write as write_csv;
pub use json::write as write_json;
pub(super) use listing::targets;
pub use listing::write as write_listing;
pub(super) use names::{attributes, instruction, line_name, offset, place_note, role_name, syntax};
pub use text::write as write_text;

use aiprof_trace::analyze::device_stalls::{KernelStalls, Tally};

/// What a table has a row for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// Kernels.
    Kernel,
    /// Source lines.
    Line,
    /// Instructions, and why they stall.
    #[default]
    Instruction,
    /// Instructions, for each reason by itself.
    Reason,
}

/// A line of a source file: its path as compiled, and its number from 1.
pub type Source<'a> = &'a dyn Fn(&str, u32) -> Option<String>;

/// What is shown, and how.
#[derive(Clone, Copy)]
pub struct StallView<'a> {
    /// What tables have rows for.
    pub by: By,
    /// Most rows of a table, and most kernels; `None`: all.
    pub top: Option<usize>,
    /// Smallest part of all samples that a row has, in percent.
    pub min_percent: f64,
    /// Width of the terminal in characters. Below 40 lines get longer than it.
    pub width: usize,
    /// Whether to use ANSI colours.
    pub color: bool,
    /// The text of source lines.
    pub source: Source<'a>,
}

impl Default for StallView<'_> {
    fn default() -> Self {
        Self {
            by: By::default(),
            top: Some(10),
            min_percent: 0.0,
            width: 80,
            color: false,
            source: &|_, _| None,
        }
    }
}

impl StallView<'_> {
    /// The rows of a table that are shown, and how many are not; rows are sorted by
    /// `samples`, which gives each one's.
    pub(super) fn shown<'r, T>(
        &self,
        rows: &'r [T],
        whole: u64,
        samples: impl Fn(&T) -> u64,
    ) -> (Vec<&'r T>, usize) {
        let least = |row: &&T| percent(samples(row), whole) >= self.min_percent;
        let most = self.top.unwrap_or(usize::MAX);
        let mut shown: Vec<&T> = rows.iter().filter(least).collect();
        shown.sort_by_key(|row| std::cmp::Reverse(samples(row)));
        shown.truncate(most);
        let hidden = rows.len() - shown.len();
        (shown, hidden)
    }
}

pub(super) fn percent(part: u64, whole: u64) -> f64 {
    super::text::percent(part, whole)
}

/// `sbid 71.0%, active 9.1%`: the reasons of samples, at most `most` of them.
pub(super) fn reasons(samples: &Tally, most: usize) -> String {
    let total = samples.total();
    let all = samples.reasons();
    let some: Vec<String> = all
        .iter()
        .take(most)
        .map(|(reason, count)| format!("{} {:.1}%", reason.name(), percent(*count, total)))
        .collect();
    some.join(", ")
}

/// A kernel's name for people, on one line.
pub(super) fn kernel_name(kernel: &KernelStalls) -> String {
    match super::text::one_line(&kernel.name) {
        name if name.is_empty() => "[unnamed kernel]".to_owned(),
        name => name,
    }
}
