//! Folded stacks: the text format that flame graph tools share.
//!
//! One line per unique stack: frames from root to leaf separated by `;`, a
//! space, and the value. The grammar is in `docs/output-formats.md`.

use super::device::DeviceTotals;
use super::launchers::Chosen;
use super::stacks::{SortedStacks, round_to_microseconds};
use super::{ExportError, ExportOptions};
use aiprof_model::lines::{LineError, Lines};
use aiprof_model::profile::{FrameKind, Profile};
use aiprof_model::visible;
use rustc_hash::FxHashMap;
use std::io::{BufRead, BufWriter, Write};

/// Longest line that [`read`] accepts, in bytes.
pub const MAX_LINE: usize = 16 << 20;

/// Most text that [`read`] accepts, in bytes. Equal stacks are merged while
/// reading, so memory use is at most about this.
pub const MAX_INPUT: u64 = 1 << 30;

/// Largest sum of all values: 1,100 years in microseconds. Renderers multiply
/// it, and browsers hold it in a 53-bit number.
pub const MAX_TOTAL: u64 = 1 << 55;

/// Writes `comm;pid;user frames;kernel frames_[k] VALUE` lines, sorted frame by
/// frame; stacks of device samples go on with `-` and what the device did.
///
/// The values add up to the total of what is shown: microseconds to half a
/// microsecond, or samples exactly.
///
/// # Errors
///
/// [`ExportError::WeightsTooLarge`] beyond [`MAX_TOTAL`], [`ExportError::Io`]
/// when `out` fails.
pub fn write(
    profile: &Profile,
    options: &ExportOptions,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let mut out = BufWriter::with_capacity(1 << 16, out);
    let chosen = Chosen::of(profile, options);
    if options.loss_comments {
        for line in DeviceTotals::of(profile)
            .lines()
            .into_iter()
            .chain(chosen.line())
        {
            writeln!(out, "# {line}")?;
        }
        for (kind, n) in profile.losses.iter() {
            writeln!(out, "# {n} {}", kind.label())?;
        }
    }
    let mut stacks = SortedStacks::from_profile(profile, options, &chosen)?;
    if options.inverted {
        stacks.reverse();
    }
    write_lines(&stacks, &mut out)
}

/// Writes stacks that were folded already; of the options `inverted` counts.
///
/// # Errors
///
/// [`ExportError::Io`] when `out` fails.
pub fn write_stacks(
    folded: &FoldedStacks,
    options: &ExportOptions,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let mut stacks = SortedStacks::from_folded(folded);
    if options.inverted {
        stacks.reverse();
    }
    write_lines(&stacks, &mut BufWriter::with_capacity(1 << 16, out))
}

fn write_lines(stacks: &SortedStacks, out: &mut impl Write) -> Result<(), ExportError> {
    for (frames, value) in stacks.iter() {
        for (i, frame) in frames.enumerate() {
            if i > 0 {
                out.write_all(b";")?;
            }
            out.write_all(frame.as_bytes())?;
        }
        writeln!(out, " {value}")?;
    }
    out.flush()?;
    Ok(())
}

/// The contents of a folded file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoldedStacks {
    /// Unique stacks, frames separated by `;`, and their values, sorted frame by
    /// frame.
    pub stacks: Vec<(String, u64)>,
    /// Sum of the values, at most [`MAX_TOTAL`].
    pub total: u64,
}

impl FoldedStacks {
    /// Converts unique stacks, sorted frame by frame, from nanoseconds to microseconds. The
    /// sum is right to half a microsecond.
    pub fn from_nanoseconds(mut stacks: Vec<(String, u64)>) -> Self {
        let mut values: Vec<&mut u64> = stacks.iter_mut().map(|(_, value)| value).collect();
        round_to_microseconds(&mut values);
        stacks.retain(|(_, value)| *value > 0);
        let values = stacks.iter().map(|(_, value)| *value);
        let total = values.fold(0, u64::saturating_add);
        Self { stacks, total }
    }
}

/// Reads folded stacks.
///
/// Empty lines and comments (`# `) are skipped, equal stacks added up, bytes that are
/// not UTF-8 replaced, control characters turned into spaces.
///
/// # Errors
///
/// An [`ExportError`] that names the line: not a stack and a value, too long,
/// sum too large. [`ExportError::InputTooLarge`] beyond [`MAX_INPUT`],
/// [`ExportError::Io`] when `input` fails.
pub fn read(input: &mut dyn BufRead) -> Result<FoldedStacks, ExportError> {
    let mut values: FxHashMap<String, u64> = FxHashMap::default();
    let mut total = 0_u64;
    let mut lines = Lines::new(input, MAX_LINE, MAX_INPUT);
    while let Some((number, line)) = lines.next_line()? {
        let text = String::from_utf8_lossy(line);
        let text = text.trim();
        if text.is_empty() || text.starts_with("# ") {
            continue;
        }
        let (stack, value) = parse_line(text).ok_or_else(|| no_stack(text, number))?;
        total = total
            .checked_add(value)
            .filter(|&total| total <= MAX_TOTAL)
            .ok_or(ExportError::TotalTooLarge { line: number })?;
        *values.entry(stack).or_default() += value;
    }
    let mut stacks: Vec<(String, u64)> = values.into_iter().collect();
    stacks.sort_unstable_by(|a, b| a.0.split(';').cmp(b.0.split(';')));
    Ok(FoldedStacks { stacks, total })
}

impl From<LineError> for ExportError {
    fn from(error: LineError) -> Self {
        match error {
            LineError::Io(error) => Self::Io(error),
            LineError::TooLong(line) => Self::LineTooLong { line },
            LineError::TooLarge(_) => Self::InputTooLarge,
        }
    }
}

/// Stack and value of one line.
fn parse_line(text: &str) -> Option<(String, u64)> {
    let (stack, value) = text.rsplit_once(' ')?;
    // `parse` alone would accept a sign.
    if !value.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let value = value.parse().ok()?;
    let stack = visible::one_line(stack.trim());
    (!stack.is_empty()).then_some((stack, value))
}

/// What is wrong with a line.
fn no_stack(text: &str, line: u64) -> ExportError {
    let stack = text.trim_end_matches(|c: char| c.is_ascii_digit());
    let hardware = FrameKind::DeviceHardware.suffix();
    if stack.len() < text.len() && stack.ends_with(hardware) {
        ExportError::NoSpace { line }
    } else {
        ExportError::NotFolded { line }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &[u8]) -> Result<FoldedStacks, ExportError> {
        read(&mut &text[..])
    }

    #[test]
    fn equal_stacks_are_added_and_sorted_by_frame() {
        let folded = parse(b"a;b c 2\na;b;z 1\n\n# 3 lost\na;b 1\r\na;b c 5\n").unwrap();
        let expected = [("a;b", 1), ("a;b;z", 1), ("a;b c", 7)];
        assert_eq!(
            folded.stacks,
            expected.map(|(stack, value)| (stack.to_owned(), value))
        );
        assert_eq!(folded.total, 9);
    }

    #[test]
    fn errors_name_the_line() {
        for bad in ["a;b", "a;b x", "a;b -1", "a;b +1", "a 1.5", " 5", "5"] {
            let error = parse(format!("ok 1\n{bad}\n").as_bytes()).unwrap_err();
            assert!(
                matches!(error, ExportError::NotFolded { line: 2 }),
                "{bad}: {error}"
            );
        }
        let error = parse(format!("a {MAX_TOTAL}\nb 1\n").as_bytes()).unwrap_err();
        assert!(matches!(error, ExportError::TotalTooLarge { line: 2 }));
    }

    #[test]
    fn lines_of_the_old_iaprof_are_explained() {
        // iaprof's tag `tiber` leaves out the space.
        for line in [
            "matmul;12;main;-;a.cl_[G];gemm_[G];mul_[g];sbid_[g];0xf8_[g]17",
            "matmul;12;main;-;gemm (int)_[G];mul_[g];sbid_[g];0xf8_[g]17",
        ] {
            let error = parse(format!("ok 1\n{line}\n").as_bytes()).unwrap_err();
            assert!(matches!(error, ExportError::NoSpace { line: 2 }), "{error}");
            assert!(error.to_string().contains(r"s/(_\[g\])([0-9]+)$/\1 \2/"));
        }
    }

    #[test]
    fn lines_are_bounded() {
        let mut text = vec![b'a'; MAX_LINE + 100];
        text.extend_from_slice(b" 1\n");
        assert!(matches!(
            parse(&text),
            Err(ExportError::LineTooLong { line: 1 })
        ));
    }

    #[test]
    fn bytes_that_are_not_text_are_replaced() {
        let folded = parse(b"a\xff;b\x01c 3").unwrap();
        assert_eq!(folded.stacks, [("a\u{fffd};b c".to_owned(), 3)]);
        assert_eq!(parse(b"").unwrap(), FoldedStacks::default());
    }
}
