//! The commands that the README and the pages of `docs/` show: each runs as it is written, but for
//! durations, and succeeds. Page by page, in one directory: what a command writes is there for
//! those below it.

#[path = "documented_commands/desk.rs"]
mod desk;
#[path = "documented_commands/pages.rs"]
mod pages;

use std::path::Path;
use std::process::Command;

use aiprof_tests::need::{Need, find_tool, skip, skip_unless};
use anyhow::Context as _;

use desk::{Desk, Ended, Running};
use pages::Page;

/// What is checked of a command that need not succeed.
#[derive(Clone, Copy, Debug)]
enum Instead {
    /// It succeeds where this program is installed; elsewhere the shell can parse it.
    With(&'static str),
    /// It runs, may fail, and its command line is accepted.
    Accepted,
    /// It does not run. The shell can parse it, and the files of the repository that it names
    /// are there.
    Parsed,
    /// It does not run. The task of xtask is there, or the example.
    Cargo,
    /// It does not run. The subcommand and the options are those of `aiprof-query`.
    Query,
}

/// The status of a recording whose COMMAND was interrupted.
const INTERRUPTED: i32 = 130;

/// Commands that need not succeed.
struct Listed {
    /// The page; empty: each.
    page: &'static str,
    /// A part of the command.
    fragment: &'static str,
    reason: &'static str,
    instead: Instead,
}

const fn listed(
    page: &'static str,
    fragment: &'static str,
    reason: &'static str,
    instead: Instead,
) -> Listed {
    Listed {
        page,
        fragment,
        reason,
        instead,
    }
}

const LISTED: &[Listed] = &[
    listed(
        "docs/stalls.md",
        "aiprof stalls ",
        "needs a GPU that samples stalls",
        Instead::Accepted,
    ),
    listed(
        "docs/control.md",
        "--control=train ",
        "a command below stops it, as Ctrl-C does",
        Instead::Accepted,
    ),
    listed(
        "",
        "sudo aiprof doctor",
        "fails where the machine lacks something",
        Instead::Accepted,
    ),
    listed(
        "",
        " --annotation ",
        "fails where the trace has no such annotation",
        Instead::Accepted,
    ),
    listed("", "cargo ", "builds for minutes", Instead::Cargo),
    listed(
        "",
        "aiprof-query ",
        "is the fleet's program",
        Instead::Query,
    ),
    listed("", "kubectl ", "needs a cluster", Instead::Parsed),
    listed("", "helm ", "needs a cluster", Instead::Parsed),
    listed("", "podman build ", "builds an image", Instead::Parsed),
    listed("", "sudo apt ", "installs a package", Instead::Parsed),
    listed("", "sudo systemctl ", "needs the service", Instead::Parsed),
    listed("", "sudo editor ", "is for a person", Instead::Parsed),
    listed(
        "",
        "sudo setcap ",
        "may not be installed",
        Instead::With("setcap"),
    ),
    listed(
        "",
        "go tool pprof ",
        "may not be installed",
        Instead::With("go"),
    ),
    listed("", "| jq ", "may not be installed", Instead::With("jq")),
];

impl Listed {
    fn is_for(&self, page: &str, command: &str) -> bool {
        (self.page.is_empty() || self.page == page) && command.contains(self.fragment)
    }

    fn of(page: &str, command: &str) -> Option<&'static Self> {
        LISTED.iter().find(|listed| listed.is_for(page, command))
    }
}

#[test]
fn documented_commands_work() -> anyhow::Result<()> {
    let name = "documented_commands_work";
    let tools = ["cc", "make", "mkfifo", "python3"].map(Need::Tool);
    skip_unless!(name, &[Need::Root]);
    skip_unless!(name, &tools);
    let desk = match Desk::new()? {
        Ok(desk) => desk,
        Err(reason) => {
            skip(name, &reason);
            return Ok(());
        }
    };
    let pages = pages::all()?;
    let mut failures = Vec::new();
    for page in &pages {
        check_page(&desk, page, &mut failures).with_context(|| page.name.clone())?;
    }
    let count: usize = pages.iter().map(|page| page.commands.len()).sum();
    println!("{count} commands of {} pages", pages.len());
    anyhow::ensure!(failures.is_empty(), "{}", failures.join("\n\n"));
    Ok(())
}

#[test]
fn listed_commands_are_documented() -> anyhow::Result<()> {
    let pages = pages::all()?;
    for listed in LISTED {
        let is_it = |page: &Page| {
            let mut found = page
                .commands
                .iter()
                .filter_map(|one| Listed::of(&page.name, one));
            found.any(|one| std::ptr::eq(one, listed))
        };
        anyhow::ensure!(
            pages.iter().any(is_it),
            "no command of {:?} has {:?}, or an entry above has it ({})",
            listed.page,
            listed.fragment,
            listed.reason
        );
    }
    Ok(())
}

/// Runs the commands of a page, and adds those that are not right.
fn check_page(desk: &Desk, page: &Page, failures: &mut Vec<String>) -> anyhow::Result<()> {
    let dir = desk.page()?;
    // Those that run while others do.
    let mut running: Vec<(&str, Running)> = Vec::new();
    let mut judge = |command: &str, problem: Option<String>| {
        failures.extend(problem.map(|problem| format!("{}: {command}\n{problem}", page.name)));
    };
    for command in &page.commands {
        if let Some(problem) = unrun(page, command, dir.path())? {
            judge(command, problem);
            continue;
        }
        let text = desk.shortened(command);
        let is_endless = pages::is_endless(command);
        if is_endless {
            end_all(page, &mut running, &mut judge)?;
        }
        let mut one = desk.start(&text, dir.path())?;
        if is_endless {
            one.gets_going();
        }
        if is_endless || text.trim_end().ends_with('&') {
            running.push((command, one));
        } else {
            judge(command, problem_of(page, command, &one.end()?));
        }
    }
    end_all(page, &mut running, &mut judge)
}

/// Waits for what runs beside others.
fn end_all(
    page: &Page,
    running: &mut Vec<(&str, Running)>,
    judge: &mut impl FnMut(&str, Option<String>),
) -> anyhow::Result<()> {
    for (command, one) in running.drain(..) {
        judge(command, problem_of(page, command, &one.end()?));
    }
    Ok(())
}

/// What is wrong with a command that has run.
fn problem_of(page: &Page, command: &str, ended: &Ended) -> Option<String> {
    match Listed::of(&page.name, command).map(|listed| listed.instead) {
        // Neither a wrong command line, nor a program that cannot be run, nor a crash.
        Some(Instead::Accepted) => problem_with(ended, |status| {
            !matches!(status, 2 | 126 | 127) && (status < 128 || status == INTERRUPTED)
        }),
        _ => problem_with(ended, |status| status == 0),
    }
}

fn problem_with(ended: &Ended, is_right: impl Fn(i32) -> bool) -> Option<String> {
    let status = match ended.status {
        Some(status) if is_right(status) => return None,
        Some(status) => format!("exit status {status}"),
        None => "it did not end in time".to_owned(),
    };
    Some(format!("{status}\n{}", ended.errors))
}

/// What is wrong with a command that does not run here; `None`: it does run.
fn unrun(page: &Page, command: &str, dir: &Path) -> anyhow::Result<Option<Option<String>>> {
    let Some(listed) = Listed::of(&page.name, command) else {
        return Ok(None);
    };
    let problem = match listed.instead {
        Instead::Accepted => return Ok(None),
        Instead::With(tool) if find_tool(tool).is_some() => return Ok(None),
        Instead::With(_) | Instead::Parsed => missing_file(command),
        Instead::Cargo => missing_of_cargo(command)?,
        Instead::Query => missing_of_query(command)?,
    };
    Ok(Some(match problem {
        None => unparsed(command, dir)?,
        problem => problem,
    }))
}

/// What the shell cannot parse.
fn unparsed(command: &str, dir: &Path) -> anyhow::Result<Option<String>> {
    let mut shell = Command::new("sh");
    let output = shell
        .args(["-n", "-c", command])
        .current_dir(dir)
        .output()?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((!output.status.success()).then_some(errors))
}

/// The first file of the repository that a command names and that is not there.
fn missing_file(command: &str) -> Option<String> {
    let mut words = command.split_whitespace();
    let missing =
        words.find(|word| word.starts_with("deploy/") && !pages::root().join(word).exists());
    missing.map(|name| format!("{name} is not there"))
}

/// The word behind another.
fn behind<'a>(command: &'a str, word: &str) -> Option<&'a str> {
    let mut words = command.split_whitespace();
    words.find(|one| *one == word)?;
    words.next()
}

/// A task of xtask, or an example of the fleet, that is not there.
fn missing_of_cargo(command: &str) -> anyhow::Result<Option<String>> {
    if let Some(example) = behind(command, "--example") {
        let file = format!("fleet/lake/examples/{example}.rs");
        return Ok((!pages::root().join(&file).exists()).then_some(file));
    }
    let task = behind(command, "xtask").context("neither a task nor an example")?;
    let tasks = pages::read("xtask/src/main.rs")?;
    let is_there = tasks.contains(&format!("name: \"{task}\","));
    Ok((!is_there).then(|| format!("xtask has no task {task}")))
}

/// All source of `aiprof-query`.
fn query_source() -> anyhow::Result<String> {
    let mut source = String::new();
    for entry in std::fs::read_dir(pages::root().join("fleet/query/src"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "rs") {
            source.push_str(&std::fs::read_to_string(path)?);
        }
    }
    Ok(source)
}

/// A subcommand or option of `aiprof-query` that its source does not have as a variant or field.
fn missing_of_query(command: &str) -> anyhow::Result<Option<String>> {
    let source = query_source()?;
    let subcommand = behind(command, "aiprof-query").context("no subcommand")?;
    let is_variant = |line: &str| {
        let variant = line.trim().trim_end_matches(|c: char| !c.is_alphanumeric());
        variant
            .split('(')
            .next()
            .unwrap_or_default()
            .eq_ignore_ascii_case(subcommand)
    };
    if !source.lines().any(is_variant) {
        return Ok(Some(format!("it has no subcommand {subcommand}")));
    }
    let mut own = command
        .split_whitespace()
        .skip_while(|word| *word != "aiprof-query");
    let is_unknown = |word: &&str| {
        let name = word.strip_prefix("--").map(|name| name.replace('-', "_"));
        name.is_some_and(|name| !source.contains(&format!(" {name}: ")))
    };
    Ok(own
        .find(is_unknown)
        .map(|word| format!("it has no option {word}")))
}
