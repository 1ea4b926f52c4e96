//! Tables of analyses: those of acelyzer in its formats, byte for byte, and further ones.

pub mod collectives;
pub mod frame;
pub mod kernels;
pub mod plain;
pub mod rows;
mod torch;
pub mod unitrace;

use aiprof_model::timeline::{Id, Timeline};
use aiprof_trace::analyze::pipeline::{Outcome, Tables};
use aiprof_trace::analyze::utilization::table;
use std::borrow::Cow;
use std::io;

/// A table that belongs beside the trace.
#[derive(Clone, Debug)]
pub struct FileTable {
    /// What its file's name ends in: `summary` of `out_summary.csv`.
    pub purpose: &'static str,
    /// Extension of its file.
    pub extension: &'static str,
    /// What acelyzer prints before the file's name when it is written.
    pub said: &'static str,
    /// Its text.
    pub text: Vec<u8>,
}

/// The tables of what the analyses found in a timeline.
pub fn of_outcome(timeline: &Timeline, outcome: &Outcome) -> Vec<FileTable> {
    let mut all = Vec::new();
    for tables in &outcome.tables {
        match tables {
            Tables::Categories => all.extend(categories(outcome)),
            Tables::Ranks => all.push(FileTable::csv(
                "stats_summary",
                "SEC statistics summary file created:  ",
                |text| collectives::write_active(text, &outcome.collectives.active),
            )),
            Tables::Kernels => all.extend(kernels(timeline, outcome)),
            Tables::Further => all.extend(further(timeline, outcome)),
        }
    }
    all
}

impl FileTable {
    fn csv(
        purpose: &'static str,
        said: &'static str,
        write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>,
    ) -> Self {
        let mut text = Vec::new();
        // Writing to memory cannot fail.
        let _ = write(&mut text);
        Self {
            purpose,
            extension: "csv",
            said,
            text,
        }
    }
}

fn categories(outcome: &Outcome) -> [FileTable; 2] {
    let rows = &outcome.categories;
    let mut text = Vec::new();
    // Writing to memory cannot fail.
    let _ = table::write_text(rows, &mut text);
    [
        FileTable::csv(
            "categories",
            "UTL: category table(s) created as CSV: ",
            |csv| table::write_csv(rows, csv),
        ),
        FileTable {
            purpose: "categories",
            extension: "txt",
            said: "UTL: category table(s) created as TXT: ",
            text,
        },
    ]
}

fn kernels(timeline: &Timeline, outcome: &Outcome) -> [FileTable; 3] {
    let found = &outcome.statistics;
    [
        FileTable::csv(
            "summary",
            "SEC statistics summary file created:  ",
            |text| kernels::write_summary(text, timeline, found),
        ),
        FileTable::csv("active", "SEC statistics active file created:  ", |text| {
            kernels::write_active(text, timeline, found)
        }),
        FileTable::csv(
            "ts_analysis",
            "SEC statistics timestamp analysis file created:  ",
            |text| kernels::write_ts_analysis(text, timeline, found),
        ),
    ]
}

/// Those that acelyzer does not have.
fn further(timeline: &Timeline, outcome: &Outcome) -> impl Iterator<Item = FileTable> {
    const SAID: &str = "written: ";
    let power = (!outcome.kernel_power.is_empty()).then(|| {
        FileTable::csv("power", SAID, |text| {
            rows::write_power(text, timeline, &outcome.kernel_power)
        })
    });
    let has_iterations = outcome.iterations.iter().any(|one| !one.list.is_empty());
    let iterations = has_iterations.then(|| {
        FileTable::csv("iterations", SAID, |text| {
            rows::write_iterations(text, timeline, &outcome.iterations)
        })
    });
    let tokens = (!outcome.tokens.is_empty()).then(|| {
        FileTable::csv("tokens", SAID, |text| {
            rows::write_tokens(text, timeline, &outcome.tokens)
        })
    });
    power.into_iter().chain(iterations).chain(tokens)
}

/// The file of a table that belongs to an output: `out.pt.trace.json` has
/// `out_summary.csv`.
pub fn file_name(output: &str, purpose: &str, extension: &str) -> String {
    let output = output.replace(".pt.trace", "");
    let name_at = output.rfind('/').map_or(0, |slash| slash + 1);
    let (folder, name) = output.split_at(name_at);
    let name = name.strip_suffix(".gz").unwrap_or(name);
    // A name that is all extension would leave nothing.
    let base = match name.rfind('.') {
        Some(dot) => name.get(..dot).unwrap_or(name),
        None => name,
    };
    format!("{folder}{base}_{purpose}.{extension}")
}

/// A row group as text.
fn id_text<'a>(timeline: &'a Timeline, id: &Id) -> Cow<'a, str> {
    match id {
        Id::Number(number) => Cow::Owned(number.to_string()),
        Id::Token(text) => Cow::Borrowed(timeline.name(*text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// acelyzer 1.3.0 gives these names, but for the one in a folder with a dot, which
    /// it puts beside the folder.
    #[test]
    fn tables_are_named_after_the_output() {
        for (output, expected) in [
            ("o.json", "o_summary.csv"),
            ("a/b/o.pt.trace.json", "a/b/o_summary.csv"),
            ("a.b.json", "a.b_summary.csv"),
            ("plain", "plain_summary.csv"),
            ("v1.2/plain", "v1.2/plain_summary.csv"),
        ] {
            assert_eq!(file_name(output, "summary", "csv"), expected);
        }
    }
}
