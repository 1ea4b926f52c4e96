//! `aiprof man`: the man page, from the command line's own types.

use super::{Cli, DESCRIPTION, EXAMPLES, EXIT_STATUS, NOTES};
use anyhow::{Context, Result};
use clap::CommandFactory;
use std::fmt::Write as _;
use std::io::Write;

/// Prints the page, in roff: `aiprof man | man -l -`.
///
/// # Errors
/// stdout could not be written.
pub(crate) fn run() -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(&page()?)
        .and_then(|()| out.flush())
        .context("cannot write to stdout")
}

/// The page: the main command, then the options of each subcommand.
fn page() -> Result<Vec<u8>> {
    let mut command = Cli::command();
    command.build();
    let mut page = Vec::new();
    let man = clap_mangen::Man::new(command.clone()).manual("aiprof manual");
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    let description: Vec<_> = std::iter::once(DESCRIPTION).chain(NOTES).collect();
    page.write_all(section("DESCRIPTION", &description, false).as_bytes())?;
    page.write_all(section("EXAMPLES", &[EXAMPLES], true).as_bytes())?;
    page.write_all(b".SH OPTIONS\n")?;
    page.write_all(options(&command)?.as_bytes())?;
    for sub in command.get_subcommands_mut() {
        page.write_all(&subcommand(sub)?)?;
    }
    page.write_all(section("EXIT STATUS", &[EXIT_STATUS], true).as_bytes())?;
    page.write_all(definitions("ENVIRONMENT", ENVIRONMENT).as_bytes())?;
    page.write_all(definitions("FILES", FILES).as_bytes())?;
    Ok(page)
}

/// Variables of the environment, and what they do.
const ENVIRONMENT: &[(&str, &str)] = &[
    #[cfg(feature = "live")]
    (
        "AIPROF_HOST",
        "Name of the host in the profiles of aiprof agent, if its configuration has no host. In \
         a container, set it to the name of the node.",
    ),
    (
        "AIPROF_MEMORY_LIMIT",
        "Maximum memory for reading files, like --memory-limit of analyze, report, diff and stalls: \
         4G, 500M; 0: no limit.",
    ),
    (
        "AIPROF_TIMEOUT",
        "Maximum time for reading files, like --timeout of these commands: 90s, 2h; 0: no limit.",
    ),
    #[cfg(feature = "live")]
    (
        "DEBUGINFOD_URLS",
        "Servers from which aiprof fetches debug files of stripped programs in the background, \
         if debuginfod-find is installed. sudo drops this variable; sudo -E keeps it. \
         DEBUGINFOD_CACHE_PATH, DEBUGINFOD_TIMEOUT, DEBUGINFOD_MAXTIME and \
         DEBUGINFOD_MAXSIZE are passed on.",
    ),
    (
        "NO_COLOR",
        "If set and not empty, output on a terminal has no colours.",
    ),
    #[cfg(feature = "live")]
    (
        "PTI_ENABLE_COLLECTION",
        "With --conditional-collection, read from the environment of each recorded program. If \
         it is unset or begins with 0, the program's launches are recorded only after it calls \
         __itt_resume.",
    ),
    #[cfg(feature = "live")]
    (
        "SUDO_UID, SUDO_GID",
        "The user who called sudo. Results belong to this user, and --as-user runs COMMAND as \
         this user.",
    ),
    #[cfg(not(feature = "live"))]
    (
        "SUDO_UID, SUDO_GID",
        "The user who called sudo. Results belong to this user.",
    ),
    (
        "TERM",
        "If it is dumb, there are no colours and no progress line.",
    ),
];

/// Files that are read, and where results go.
const FILES: &[(&str, &str)] = &[
    #[cfg(feature = "live")]
    (
        "/etc/aiprof/probes.d/*.toml",
        "Your own probe tables, used together with the built-in ones. See aiprof probes.",
    ),
    #[cfg(feature = "live")]
    (
        "/tmp/perf-PID.map",
        "Names of the functions that a JIT compiler made, written by the process with this PID.",
    ),
    ("/usr/lib/debug", "Separate debug files of programs."),
    #[cfg(feature = "live")]
    (
        "/sys/kernel/btf/vmlinux",
        "Types of the Linux kernel. aiprof cannot record without this file.",
    ),
    #[cfg(feature = "live")]
    (
        "DIR/aiprof-YYYYmmddTHHMMSSZ.EXT",
        "Output of --every: one file per window, named after the window's start in UTC.",
    ),
];

/// A section of terms with what they mean.
fn definitions(heading: &str, terms: &[(&str, &str)]) -> String {
    let mut text = format!(".SH \"{heading}\"\n");
    for (term, meaning) in terms {
        // Writing to a string cannot fail.
        let _ = writeln!(text, ".TP\n\\fB{}\\fR\n{}", escaped(term), escaped(meaning));
    }
    text
}

/// The section of a subcommand.
fn subcommand(command: &mut clap::Command) -> Result<Vec<u8>> {
    let name = command.get_name().to_owned();
    if name == "help" {
        return Ok(Vec::new());
    }
    let usage = command.render_usage().to_string();
    let about = command.get_about().map(ToString::to_string);
    let heading = format!("AIPROF {}", name.to_uppercase());
    let mut page = section(&heading, &[&usage, &about.unwrap_or_default()], false).into_bytes();
    if name != "record" {
        page.extend_from_slice(options(command)?.as_bytes());
    }
    Ok(page)
}

/// The options of a command, without the heading of their section. Groups of options are parts
/// of it.
fn options(command: &clap::Command) -> Result<String> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render_options_section(&mut page)?;
    let page = String::from_utf8_lossy(&page);
    let body = page.split_once(".SH OPTIONS\n");
    Ok(body
        .map_or("", |(_, body)| body)
        .replace("\n.SH ", "\n.SS "))
}

/// A section of paragraphs; `verbatim` keeps their lines as they are.
fn section(heading: &str, paragraphs: &[&str], verbatim: bool) -> String {
    let mut text = format!(".SH \"{heading}\"\n");
    for paragraph in paragraphs {
        // Writing to a string cannot fail.
        let _ = match verbatim {
            true => writeln!(text, ".nf\n{}\n.fi", escaped(paragraph)),
            false => writeln!(text, ".PP\n{}", escaped(paragraph)),
        };
    }
    text
}

/// Text for roff: `\` and `-` have a meaning anywhere, `.` and `'` at the start
/// of a line; an empty line is a paragraph.
fn escaped(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        match line.chars().next() {
            None => ".PP".to_owned(),
            Some('.' | '\'') => format!("\\&{line}"),
            Some(_) => line,
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(all(test, not(feature = "live")))]
mod tests {
    use super::super::{ending, how_to_start};
    use super::*;

    /// A build that only reads explains nothing that only a recording has.
    #[test]
    fn what_only_reads_explains_no_recording() {
        let texts = [
            how_to_start(),
            ending(),
            definitions("ENVIRONMENT", ENVIRONMENT),
            definitions("FILES", FILES),
        ];
        for text in texts {
            for word in [" COMMAND", "doctor", "Ctrl", "vmlinux", "privileges"] {
                assert!(!text.contains(word), "{word}: {text}");
            }
        }
    }
}
