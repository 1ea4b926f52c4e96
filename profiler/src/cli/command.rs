//! Which words are never run as COMMAND, though a program of that name may be installed.
//!
//! Users of other profilers type the commands they know. `aiprof script x.aiprof` would run
//! util-linux's `script` as root, which empties the capture. So aiprof refuses the command
//! words of other profilers, and any program that is given by bare name together with a
//! capture. Both run with `--` before COMMAND, or by path.

use super::advice::refuse_mistyped;
use super::input::is_capture;
use super::usage_error;
use anyhow::Result;
use std::ffi::{OsStr, OsString};
use std::path::Path;

const REPORT: &str = "`aiprof report FILE -o x.svg` makes a flame graph of a capture";
const STACKS: &str = "`aiprof report FILE --format folded` prints the stacks of a capture";
const HOTTEST: &str = "`sudo aiprof -d 10` prints the hottest functions of the next ten seconds, \
                       `aiprof report FILE` prints the hottest functions of a capture";
const COUNTS: &str = "aiprof does not count hardware events; `sudo aiprof COMMAND` prints which \
                      functions use CPU time";
const LINES: &str = "`aiprof report FILE --lines -o x.svg` shows source lines, `aiprof stalls \
                     FILE` shows instructions of devices";
const WAITS: &str = "`sudo aiprof --off-cpu -o x.svg COMMAND` records what threads wait for";
const RECORD: &str = "`sudo aiprof -o x.aiprof COMMAND` records while COMMAND runs, `-p PID` \
                      selects a process that is already running";
const CONTROL: &str = "`sudo aiprof --control ...` starts a recording that `aiprof ctl` pauses, \
                       resumes and stops";
const CALLS: &str = "`aiprof probes` prints the functions that aiprof probes, `sudo aiprof trace \
                     COMMAND` prints their calls";
const DOCTOR: &str = "`aiprof doctor` prints what works on this machine";
const NAMES: &str = "a capture contains all names and needs no other file";
const NONE: &str = "aiprof has no such command";

/// Command words of other profilers that are no commands of aiprof: which profilers have
/// them, the words, and what does their job here. Words that are also ordinary programs
/// (`test`, `tree`, `dot`, `ps`, `import`, `service`, `gv`, `eog`, `evince`, `kcachegrind`,
/// `nvprof`) are not in it: they can be profiled.
const FOREIGN: &[(&str, &[&str], &str)] = &[
    ("perf", &["script"], STACKS),
    ("perf", &["stat"], COUNTS),
    ("perf, py-spy and pprof", &["top"], HOTTEST),
    ("perf", &["annotate"], LINES),
    ("perf and pprof", &["list"], LINES),
    ("pprof", &["weblist", "disasm"], LINES),
    (
        "perf",
        &["archive", "buildid-cache", "buildid-list", "kallsyms"],
        NAMES,
    ),
    ("perf", &["sched", "lock", "timechart", "kwork"], WAITS),
    (
        "perf",
        &["daemon"],
        "`sudo aiprof agent` records continuously",
    ),
    ("perf", &["probe", "ftrace"], CALLS),
    ("perf", &["check"], DOCTOR),
    (
        "perf",
        &["evlist"],
        "`aiprof report FILE` prints what a capture contains",
    ),
    (
        "perf",
        &[
            "bench", "c2c", "config", "data", "inject", "iostat", "kmem", "kvm", "mem",
        ],
        NONE,
    ),
    (
        "perf",
        &["version"],
        "`aiprof --version` prints the version",
    ),
    (
        "py-spy",
        &["dump"],
        "`sudo aiprof -d 1 -p PID` prints what a process does",
    ),
    ("other profilers", &["attach"], RECORD),
    ("samply", &["load"], REPORT),
    ("samply", &["setup"], DOCTOR),
    (
        "pprof",
        &["web", "svg", "pdf", "png", "gif", "callgrind"],
        REPORT,
    ),
    (
        "pprof",
        &["peek", "raw", "text", "traces", "tags", "comments"],
        STACKS,
    ),
    (
        "pprof",
        &["proto", "topproto"],
        "`aiprof report FILE -o x.pb.gz` converts a capture for pprof",
    ),
    ("nsys", &["profile", "launch"], RECORD),
    (
        "nsys",
        &["start", "stop", "cancel", "shutdown", "sessions", "status"],
        CONTROL,
    ),
    (
        "nsys",
        &["stats", "recipe"],
        "`aiprof analyze FILE` prints findings and tables of what devices did",
    ),
    (
        "nsys",
        &["export"],
        "`aiprof report FILE -o x.pftrace` converts a capture for Perfetto; the extension \
         selects the format",
    ),
];

/// Refuses a COMMAND that was probably not meant as a program.
///
/// # Errors
/// A usage error for a command word of another profiler, and for a capture among the words
/// of COMMAND; [`LaunchError::NotFound`](aiprof_live::launch::LaunchError::NotFound) for
/// a mistyped subcommand.
pub(super) fn check(command: &[OsString]) -> Result<()> {
    let args: Vec<_> = std::env::args_os().collect();
    check_in(&args, command)
}

/// [`check`], for the end of a command line.
fn check_in(args: &[OsString], command: &[OsString]) -> Result<()> {
    let Some(program) = command.first() else {
        return Ok(());
    };
    let before = args.len().checked_sub(command.len() + 1);
    let is_meant = before.is_some_and(|at| args[at] == "--");
    if is_meant || program.as_encoded_bytes().contains(&b'/') {
        return Ok(());
    }
    let name = program.to_string_lossy();
    if let Some((whose, instead)) = foreign(&name) {
        return Err(usage_error(format!(
            "'{name}' is a command of {whose}, not of aiprof: {instead}. {}",
            to_run(&name)
        )));
    }
    match command.iter().find_map(|word| capture_in(word)) {
        None => refuse_mistyped(command).map_err(Into::into),
        Some(capture) if capture.as_os_str() == program => Err(usage_error(format!(
            "'{name}' is a capture, not a program: {REPORT}"
        ))),
        Some(capture) => Err(usage_error(format!(
            "'{name}' is not a command of aiprof, and '{}' is a capture, which a program could \
             overwrite: `aiprof --help` lists the commands. {}",
            capture.display(),
            to_run(&name)
        ))),
    }
}

/// Which profilers have a command of this name, and what does its job here.
fn foreign(name: &str) -> Option<(&'static str, &'static str)> {
    let mut all = FOREIGN.iter();
    let found = all.find(|(_, words, _)| words.contains(&name));
    found.map(|(whose, _, instead)| (*whose, *instead))
}

/// The capture that a word names, also as the value of an option (`--file=x.aiprof`,
/// `-fx.aiprof`).
fn capture_in(word: &OsStr) -> Option<&Path> {
    use std::os::unix::ffi::OsStrExt as _;
    let bytes = word.as_bytes();
    let value = bytes.iter().position(|&b| b == b'=').map(|at| at + 1);
    let short = (bytes.starts_with(b"-") && bytes.len() > 2).then_some(2);
    [Some(0), value, short]
        .into_iter()
        .flatten()
        .map(|from| Path::new(OsStr::from_bytes(&bytes[from..])))
        .find(|path| is_capture(path))
}

fn to_run(program: &str) -> String {
    format!("To profile a program of that name, put `--` before it: `aiprof -- {program} ...`")
}

#[cfg(test)]
mod tests {
    use super::super::Cli;
    use super::*;
    use aiprof_record::capture;
    use clap::CommandFactory as _;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    /// The message for a COMMAND after `aiprof` and the words of `before`.
    fn refused(before: &str, command: &str) -> Option<String> {
        let args = words(&format!("aiprof {before} {command}"));
        let refused = check_in(&args, &words(command)).err();
        refused.map(|error| error.to_string())
    }

    #[test]
    fn commands_of_other_profilers_are_not_run() {
        for (_, foreign, _) in FOREIGN {
            for word in *foreign {
                let text = refused("-d 1", &format!("{word} x")).unwrap_or_default();
                assert!(
                    text.contains(&format!("'{word}' is a command of")),
                    "{text}"
                );
                assert_eq!(refused("--", word), None);
                assert_eq!(refused("-d 1", &format!("/usr/bin/{word}")), None);
                assert_eq!(refused("-d 1", &format!("echo {word}")), None);
            }
        }
        for word in ["test", "tree", "dot", "import", "service", "sleep"] {
            let text = refused("-d 1", word).unwrap_or_default();
            assert!(!text.contains("is a command of"), "{text}");
        }
    }

    #[test]
    fn no_word_is_a_command_of_aiprof_too() {
        for sub in Cli::command().get_subcommands() {
            assert_eq!(foreign(sub.get_name()), None);
        }
    }

    #[test]
    fn no_program_by_bare_name_gets_a_capture() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, capture::MAGIC).unwrap();
        let path = path.to_str().unwrap();
        for arguments in [
            path.to_owned(),
            format!("-n --file={path}"),
            format!("-f{path} y"),
        ] {
            let line = format!("zstd {arguments}");
            let text = refused("-d 1", &line).unwrap_or_default();
            assert!(text.contains("`aiprof -- zstd ...`"), "{line}: {text}");
            assert_eq!(refused("--", &line), None);
            assert_eq!(refused("-d 1", &format!("/bin/{line}")), None);
        }
        assert_eq!(refused("-d 1", &format!("zstd {path}.missing")), None);
    }
}
