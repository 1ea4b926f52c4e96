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
    page.write_all(section("DESCRIPTION", &[DESCRIPTION, NOTES], false).as_bytes())?;
    page.write_all(section("EXAMPLES", &[EXAMPLES], true).as_bytes())?;
    man.render_options_section(&mut page)?;
    for sub in command.get_subcommands_mut() {
        page.write_all(&subcommand(sub)?)?;
    }
    page.write_all(section("EXIT STATUS", &[EXIT_STATUS], true).as_bytes())?;
    page.write_all(definitions("ENVIRONMENT", &ENVIRONMENT).as_bytes())?;
    page.write_all(definitions("FILES", &FILES).as_bytes())?;
    Ok(page)
}

/// Variables of the environment, and what they do.
const ENVIRONMENT: [(&str, &str); 8] = [
    (
        "AIPROF_HOST",
        "What aiprof agent calls the host in profiles, where its configuration has no host: the \
         name of the node, in a container.",
    ),
    (
        "AIPROF_MEMORY_LIMIT",
        "How much memory files of others may take, as --memory-limit of analyze, report, diff \
         and stalls: 4G, 500M; 0 is no limit.",
    ),
    (
        "AIPROF_TIMEOUT",
        "How long the same may take, as --timeout: 90s, 2h; 0 is no limit.",
    ),
    (
        "DEBUGINFOD_URLS",
        "Servers that debug files of stripped programs are fetched from, in the background, if \
         debuginfod-find is installed. sudo drops it: sudo -E keeps it. \
         DEBUGINFOD_CACHE_PATH, DEBUGINFOD_TIMEOUT, DEBUGINFOD_MAXTIME and \
         DEBUGINFOD_MAXSIZE are passed on.",
    ),
    (
        "NO_COLOR",
        "If set and not empty, text on a terminal has no colours.",
    ),
    (
        "PTI_ENABLE_COLLECTION",
        "Read in the environment of programs that are recorded with --conditional-collection.",
    ),
    (
        "SUDO_UID, SUDO_GID",
        "Who called sudo: results belong to that user, and --as-user runs COMMAND as that user.",
    ),
    ("TERM", "dumb: no colours and no progress line."),
];

/// Files that are read, and where results go.
const FILES: [(&str, &str); 5] = [
    (
        "/etc/aiprof/probes.d/*.toml",
        "Probe tables of your own, read beside the built-in ones: aiprof probes explains them.",
    ),
    (
        "/tmp/perf-PID.map",
        "Names of functions that a JIT compiler made, as it writes them.",
    ),
    ("/usr/lib/debug", "Separate debug files."),
    (
        "/sys/kernel/btf/vmlinux",
        "The kernel's own types: without this file nothing can be recorded.",
    ),
    (
        "DIR/aiprof-YYYYmmddTHHMMSSZ.EXT",
        "What --every writes: a file per window, after its start in UTC.",
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
        // Everything after the section's own heading, which would come twice.
        let mut options = Vec::new();
        clap_mangen::Man::new(command.clone()).render_options_section(&mut options)?;
        let options = String::from_utf8_lossy(&options);
        let body = options.split_once(".SH OPTIONS\n");
        // Groups of options belong to this section.
        let body = body
            .map_or("", |(_, body)| body)
            .replace("\n.SH ", "\n.SS ");
        page.extend_from_slice(body.as_bytes());
    }
    Ok(page)
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
