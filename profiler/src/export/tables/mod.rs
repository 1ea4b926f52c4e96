//! Tables of analyses: those of acelyzer in its formats, byte for byte, and further ones.

pub mod collectives;
pub mod frame;
pub mod kernels;
pub mod rows;

use crate::timeline::{Id, Timeline};
use std::borrow::Cow;

/// The file of a table that belongs to an output: `out.pt.trace.json` has
/// `out_summary.csv`.
pub fn file_name(output: &str, purpose: &str, extension: &str) -> String {
    let output = output.replace(".pt.trace", "");
    let name_at = output.rfind('/').map_or(0, |slash| slash + 1);
    let (folder, name) = output.split_at(name_at);
    let name = name.strip_suffix(".gz").unwrap_or(name);
    // Of a name that is all extension nothing would be left.
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
