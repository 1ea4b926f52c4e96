//! `usage:` and `--help` of `aiprof acelyzer`.

use super::argparse::{Opt, Values};
use super::options::{Id, OPTIONS};
use std::fmt::Write as _;

const PROGRAM: &str = "acelyzer";

const OPENING: &str = "\
Analyses traces of AIUs: command line, files and formats of acelyzer 1.3.0, made by
aiprof. Where acelyzer's results are wrong, those of aiprof are right; --compat-bugs
gives acelyzer's timestamps. `aiprof analyze --help` has the same analyses with clearer
options. A link named acelyzer to aiprof behaves as `aiprof acelyzer`.

Examples:
  acelyzer -i job.json -o out.json --freq 560:1100        one trace, its tables
  acelyzer -i 'rank*.json' -o out.json --flow -R          ranks, aligned; collectives
  acelyzer -i job.json -c compiler.log -o out.json        with utilization
  acelyzer -i kineto.json --tb -o run.pt.trace.json       for TensorBoard
  acelyzer -i job.json -V -f text                         is the trace sound?";

const ENDING: &str = "\
Long options may be shortened as long as they stay unambiguous.

Exit status:
  0    the outputs are written
  1    they are not, or -V found errors
  2    the command line is wrong
  255  the format of -f cannot be written";

/// Column at which explanations start.
const INDENT: usize = 24;

/// `usage: acelyzer [-h] …`, wrapped.
pub(super) fn usage(width: usize) -> String {
    let head = format!("usage: {PROGRAM}");
    let indent = head.len();
    let mut out = head;
    let mut column = indent;
    for option in OPTIONS {
        let part = bracketed(option);
        if column + 1 + part.len() > width && column > indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        }
        out.push(' ');
        out.push_str(&part);
        column += 1 + part.len();
    }
    out.push('\n');
    out
}

fn bracketed(option: &Opt<Id>) -> String {
    let name = if option.short.is_empty() {
        option.long
    } else {
        option.short
    };
    match option.values {
        Values::Flag => format!("[{name}]"),
        Values::One | Values::Many => format!("[{name} {}]", option.metavar),
    }
}

/// The whole `--help`.
pub(super) fn help(width: usize) -> String {
    let width = width.max(INDENT + 20);
    let mut out = format!("{}\n{OPENING}\n\nOptions:\n", usage(width));
    for option in OPTIONS {
        describe(&mut out, option, width);
    }
    // Writing to a string cannot fail.
    let _ = writeln!(out, "\n{ENDING}");
    out
}

fn describe(out: &mut String, option: &Opt<Id>, width: usize) {
    let mut head = match option.short {
        "" => format!("      {}", option.long),
        short => format!("  {short}, {}", option.long),
    };
    if !option.metavar.is_empty() {
        head.push(' ');
        head.push_str(option.metavar);
    }
    out.push_str(&head);
    let mut column = head.chars().count();
    if column + 2 > INDENT {
        out.push('\n');
        column = 0;
    }
    out.extend(std::iter::repeat_n(' ', INDENT - column));
    column = INDENT;
    for word in option.help.split_whitespace() {
        if column + 1 + word.len() > width && column > INDENT {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', INDENT));
            column = INDENT;
        }
        if column > INDENT {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += word.len();
    }
    out.push('\n');
}
