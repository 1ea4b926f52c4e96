//! docs/options.md: every option of every command, from the command line's own types.

use super::Cli;
use clap::{Arg, Command, CommandFactory};
use std::fmt::Write as _;
use std::path::Path;

const OPENING: &str = "\
# Options

All commands with their options, as `--help` prints them. A test generates this page: edit the
help texts in `profiler/src/cli`, then run
`AIPROF_BLESS=1 cargo test -p aiprof --lib options_page`.

`aiprof acelyzer --help`, `aiprof unitrace --help` and `aiprof query --help` list the options of
these three.
";

/// The whole page.
fn page() -> String {
    let mut cli = Cli::command();
    cli.build();
    let mut page = OPENING.to_owned();
    section(&mut page, &cli, "aiprof");
    for sub in cli.get_subcommands() {
        // `record` has the options of `aiprof` itself, `help` none.
        if !matches!(sub.get_name(), "record" | "help") {
            sections(&mut page, sub, "aiprof");
        }
    }
    page
}

/// The section of a command and those of its subcommands.
fn sections(page: &mut String, command: &Command, parent: &str) {
    let name = format!("{parent} {}", command.get_name());
    section(page, command, &name);
    for sub in command.get_subcommands() {
        if sub.get_name() != "help" {
            sections(page, sub, &name);
        }
    }
}

/// What a command does, and a table for each group of its options.
fn section(page: &mut String, command: &Command, name: &str) {
    // Writing to a string cannot fail.
    let _ = write!(page, "\n## {name}\n");
    if let Some(about) = command.get_about() {
        let _ = write!(page, "\n{}.\n", flowing(&about.to_string()));
    }
    let mut groups: Vec<(Option<&str>, Vec<&Arg>)> = Vec::new();
    for arg in command.get_arguments().filter(|arg| is_listed(arg, name)) {
        let heading = arg.get_help_heading();
        match groups.iter_mut().find(|(found, _)| *found == heading) {
            Some((_, args)) => args.push(arg),
            None => groups.push((heading, vec![arg])),
        }
    }
    for (heading, args) in groups {
        if let Some(heading) = heading {
            let _ = write!(page, "\n**{heading}**\n");
        }
        page.push_str("\n| option | default | meaning |\n|---|---|---|\n");
        for arg in args {
            page.push_str(&row(arg));
        }
    }
}

/// Whether the page has the option: options of all commands stand with the first alone.
fn is_listed(arg: &Arg, name: &str) -> bool {
    let id = arg.get_id().as_str();
    !arg.is_hide_set()
        && !matches!(id, "help" | "version")
        && (name == "aiprof" || !arg.is_global_set())
}

fn row(arg: &Arg) -> String {
    let help = arg.get_long_help().or_else(|| arg.get_help());
    let mut help = cell(&help.map(ToString::to_string).unwrap_or_default());
    let values = arg.get_possible_values();
    let shown = values.iter().filter(|value| !value.is_hide_set());
    let names: Vec<_> = shown.map(|v| format!("`{}`", v.get_name())).collect();
    if !names.is_empty() && arg.get_action().takes_values() {
        let _ = write!(help, " Values: {}.", names.join(", "));
    }
    let default = match arg.get_action().takes_values() && !arg.is_hide_default_value_set() {
        true => arg.get_default_values(),
        false => &[],
    };
    let default: Vec<_> = default.iter().map(|d| d.to_string_lossy()).collect();
    format!(
        "| {} | {} | {help} |\n",
        spelling(arg),
        default.join(" ").replace('|', "\\|")
    )
}

/// How the option is written on a command line: `-o`, `--output FILE`.
fn spelling(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let value = match arg.get_action().takes_values() && !names.is_empty() {
        true => names
            .iter()
            .map(|n| format!(" {n}"))
            .collect::<String>()
            .replace('|', "\\|"),
        false => String::new(),
    };
    let short = arg.get_short().map(|short| format!("`-{short}`"));
    let long = arg.get_long().map(|long| format!("`--{long}{value}`"));
    match (short, long) {
        (Some(short), Some(long)) => format!("{short}, {long}"),
        (Some(short), None) => short,
        (None, Some(long)) => long,
        (None, None) => format!("`{}`", value.trim()),
    }
}

/// A text of several paragraphs as one cell.
fn cell(text: &str) -> String {
    let mut paragraphs = text.split("\n\n").map(flowing).filter(|p| !p.is_empty());
    let Some(first) = paragraphs.next() else {
        return String::new();
    };
    let rest: Vec<_> = paragraphs.collect();
    // The first line of a help text has no full stop, as clap's have none.
    let end = if first.ends_with(['.', ':']) { "" } else { "." };
    format!("{first}{end} {}", rest.join(" "))
        .trim_end()
        .replace('|', "\\|")
}

fn flowing(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_page_of_options_is_that_of_the_command_line() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/options.md");
    let page = page();
    if std::env::var_os("AIPROF_BLESS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/options.md differs: AIPROF_BLESS=1 writes it anew"
    );
}
