//! `usage:` and `--help` of `aiprof acelyzer`, as wide as the terminal.

use super::super::options::{self, OptionRow, ValueCount};
use std::sync::LazyLock;

/// The help, 80 columns wide.
const HELP: &str = include_str!("help.txt");
/// The line above the options.
const HEADING: &str = "\nOptions:\n";
/// Column at which explanations start.
const INDENT: usize = 24;

/// All options, in acelyzer's order; then [`OURS`].
pub(super) static OPTIONS: LazyLock<Vec<OptionRow>> = LazyLock::new(|| options::rows(HELP));

/// Options that acelyzer does not have. They must be written in full, so that acelyzer's can be
/// shortened as before.
pub(super) const OURS: [&str; 2] = ["--compat-bugs", "--power-scale"];

/// `usage: acelyzer [-h] …`, wrapped.
pub(super) fn usage(width: usize) -> String {
    let head = format!("usage: {} ", super::NAME);
    let indent = head.len();
    wrapped(head, indent, width, OPTIONS.iter().map(bracketed))
}

fn bracketed(option: &OptionRow) -> String {
    let name = match option.short {
        "" => option.long,
        short => short,
    };
    match option.count() {
        ValueCount::Zero => format!("[{name}]"),
        ValueCount::One | ValueCount::Any => format!("[{name} {}]", option.value),
    }
}

/// The whole `--help`.
pub(super) fn help(width: usize) -> String {
    let width = width.max(INDENT + 20);
    let (opening, rest) = HELP.split_once(HEADING).unwrap_or((HELP, ""));
    let (_, ending) = rest.split_once("\n\n").unwrap_or((rest, ""));
    let rows: String = OPTIONS.iter().map(|row| describe(row, width)).collect();
    format!("{}\n{opening}{HEADING}{rows}\n{ending}", usage(width))
}

fn describe(option: &OptionRow, width: usize) -> String {
    let short = match option.short {
        "" => "    ".to_owned(),
        short => format!("{short}, "),
    };
    let head = format!("  {short}{} {}", option.long, option.value);
    let head = head.trim_end();
    let head = match head.len() + 2 > INDENT {
        true => format!("{head}\n{:INDENT$}", ""),
        false => format!("{head:INDENT$}"),
    };
    let words = option.help.split_whitespace();
    wrapped(head, INDENT, width, words.map(str::to_owned))
}

/// Words in lines that are no longer than `width`, after `head` and below its end, which is at
/// column `indent`.
fn wrapped(
    head: String,
    indent: usize,
    width: usize,
    words: impl Iterator<Item = String>,
) -> String {
    let (mut out, mut column) = (head, indent);
    for word in words {
        if column > indent && column + 1 + word.len() > width {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else if column > indent {
            out.push(' ');
            column += 1;
        }
        out.push_str(&word);
        column += word.len();
    }
    out.push('\n');
    out
}
