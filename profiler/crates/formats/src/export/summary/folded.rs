//! The summary of folded stacks, of which nothing is known but frames and values.

use super::{FunctionTimes, SummaryOptions, SummaryPage};
use crate::export::folded::FoldedStacks;
use crate::export::{ExportError, Weight, text};
use rustc_hash::FxHashMap;
use std::io::Write;

/// Writes the summary of folded stacks, whose values are in the unit of `weight`: the
/// frames that have most of it.
///
/// # Errors
///
/// [`ExportError::Io`] when `out` fails.
pub fn write_folded(
    folded: &FoldedStacks,
    title: &str,
    weight: Weight,
    options: &SummaryOptions,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let scale = if weight == Weight::Time { 1000 } else { 1 };
    let mut page = SummaryPage {
        options,
        total_ns: folded.total.saturating_mul(scale),
        show: match weight {
            Weight::Time => text::duration,
            Weight::Samples => text::grouped,
            Weight::Bytes => text::bytes,
        },
        text: String::new(),
    };
    page.heading(&text::fit(title, text::TITLE));
    let total = text::weighed(folded.total, weight);
    let unit = if weight == Weight::Samples {
        " samples"
    } else {
        ""
    };
    let count = text::grouped(folded.stacks.len() as u64);
    page.line(&format!("{total}{unit} in {count} folded stacks"));
    let functions = functions(folded, scale);
    let all: Vec<&FunctionTimes> = functions.iter().collect();
    page.functions("Frames by self value", &all, |f| f.self_ns);
    page.functions("Frames by total value", &all, |f| f.total_ns);
    out.write_all(page.text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// All frames by name; one that is several times in a stack counts once there.
fn functions(folded: &FoldedStacks, scale: u64) -> Vec<FunctionTimes> {
    let mut values: FxHashMap<&str, (u64, u64, usize)> = FxHashMap::default();
    for (i, (stack, value)) in folded.stacks.iter().enumerate() {
        let mut frames = stack.split(';').peekable();
        while let Some(frame) = frames.next() {
            let (own, total, last) = values.entry(frame).or_insert((0, 0, usize::MAX));
            if frames.peek().is_none() {
                *own += value;
            }
            if *last != i {
                (*total, *last) = (*total + value, i);
            }
        }
    }
    let function = |(name, (own, total, _)): (&str, (u64, u64, usize))| FunctionTimes {
        name: name.to_owned(),
        self_ns: own.saturating_mul(scale),
        total_ns: total.saturating_mul(scale),
        through_ns: 0,
    };
    values.into_iter().map(function).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::folded;

    #[test]
    fn frames_have_what_is_their_own_and_what_they_call() {
        let text = b"main;f;f 3\nmain;g 1\n";
        let stacks = folded::read(&mut text.as_slice()).unwrap();
        let mut out = Vec::new();
        let options = SummaryOptions::default();
        write_folded(&stacks, "x", Weight::Samples, &options, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.starts_with("x\n4 samples in 2 folded stacks\n"),
            "{text}"
        );
        assert!(text.contains("   75.0%   75.0%           3  f\n"), "{text}");
        assert!(
            text.contains("    0.0%  100.0%           4  main\n"),
            "{text}"
        );
    }
}
