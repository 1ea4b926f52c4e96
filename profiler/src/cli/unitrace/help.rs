//! `--help` of `aiprof unitrace`.

use super::options::{Has, OPTIONS, Opt};
use std::fmt::Write as _;

const OPENING: &str = "\
Usage: aiprof unitrace [OPTIONS] [--] COMMAND [ARGS]...

Traces what COMMAND and the processes that it starts do with GPUs. The command line and the
tables are those of Intel's unitrace 2.3, but aiprof loads nothing into the program. A link
named unitrace to aiprof behaves as `aiprof unitrace`. Needs the privileges of a recording.

Examples:
  aiprof unitrace -h -d ./app                  host calls, kernels and their properties
  aiprof unitrace -d -v -s ./app               kernels by shape; append, submit, execute
  aiprof unitrace -h -o perf.txt ./app         to perf.<pid>.txt
  aiprof unitrace --result-dir out -h -d --chrome-kernel-logging ./app

Device times are exact where the program reads timestamps itself (events of pools with
ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP). Otherwise it is only known that an operation ran between
the call that submitted it and the end of a wait. Such times have <= before them, and there is
a note below the table.

The same tables can be made from any trace or capture, also as CSV and JSON:
  aiprof analyze x.aiprof --table host-timing,device-timing,kernel-properties,submission

Options:
";

const ENDING: &str = "
Exit status:
  that of COMMAND; 128+N if signal N killed it; 127 if it was not found, 126 if it could
  not be executed
  1   a table or trace could not be written
  2   the command line is wrong, or asks for something that aiprof does not support
  77  privileges are missing
";

/// Column at which explanations start.
const INDENT: usize = 34;

/// The whole help.
pub(super) fn help() -> String {
    let mut out = OPENING.to_owned();
    let taken = |opt: &&Opt| matches!(opt.has, Has::Yes(_));
    for option in OPTIONS.iter().filter(taken) {
        line(&mut out, option, option.help);
    }
    out.push_str("\nAccepted, without effect:\n");
    for option in OPTIONS {
        if let Has::Nothing(why) = option.has {
            line(&mut out, option, why);
        }
    }
    out.push_str("\nNot supported:\n");
    for option in OPTIONS {
        if let Has::No(why) = option.has {
            line(&mut out, option, why);
        }
    }
    out.push_str(ENDING);
    out
}

fn line(out: &mut String, option: &Opt, text: &str) {
    let short = match option.short {
        "" => String::new(),
        short => format!("{short}, "),
    };
    let name = format!("  {short}{} {}", option.long, option.value);
    let name = name.trim_end();
    let mut column = name.len();
    out.push_str(name);
    for (index, word) in text.split_whitespace().enumerate() {
        let is_full = column + 1 + word.len() > 90;
        if index == 0 && column < INDENT || index > 0 && !is_full {
            let blanks = if index == 0 { INDENT - column } else { 1 };
            out.extend(std::iter::repeat_n(' ', blanks));
            column += blanks;
        } else {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', INDENT));
            column = INDENT;
        }
        // Writing to a String cannot fail.
        let _ = write!(out, "{word}");
        column += word.len();
    }
    out.push('\n');
}
