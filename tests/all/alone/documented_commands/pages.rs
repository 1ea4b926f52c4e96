//! The commands that pages show, and what is shortened in them before they run.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Measurements, which take hours.
const NOT_READ: &str = "benchmarks.md";

/// What is replaced in commands: they would take too long, or use directories of the machine.
const REPLACED: [(&str, &str); 9] = [
    ("sleep 30", "sleep 0.3"),
    ("sleep 10", "sleep 0.3"),
    ("--every 60s", "--every 1s"),
    ("mpirun -n 8", "mpirun -n 2"),
    ("mpirun -n 4", "mpirun -n 2"),
    ("https://debuginfod.debian.net", "http://127.0.0.1:9"),
    ("/var/lib/aiprof", "state"),
    ("/usr/local/bin/aiprof", "installed"),
    (
        "aiprof agent --check",
        "aiprof agent --config deploy/agent.toml --check",
    ),
];

/// A page, and its commands in their order.
pub(super) struct Page {
    pub(super) name: String,
    pub(super) commands: Vec<String>,
}

/// The repository.
pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The README and the pages of `docs/` that show commands.
pub(super) fn all() -> anyhow::Result<Vec<Page>> {
    let mut names = vec!["README.md".to_owned()];
    for entry in std::fs::read_dir(root().join("docs"))? {
        let name = entry?.file_name();
        let name = name.to_str().context("a name in UTF-8")?;
        if name.ends_with(".md") && name != NOT_READ {
            names.push(format!("docs/{name}"));
        }
    }
    names.sort();
    let mut pages = Vec::new();
    for name in names {
        let text = read(&name)?;
        let commands = commands(&text, name == "README.md");
        if !commands.is_empty() {
            pages.push(Page { name, commands });
        }
    }
    Ok(pages)
}

/// A file of the repository.
pub(super) fn read(name: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(root().join(name)).with_context(|| name.to_owned())
}

/// The commands in blocks of the shell; in `is_indented` pages also those in lines that begin
/// with four spaces. A command has several lines where one ends with a backslash.
fn commands(text: &str, is_indented: bool) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut block = None;
    for line in text.lines() {
        block = match (block, line.strip_prefix("```")) {
            (None, Some(language)) => Some(language),
            (Some(_), Some(_)) => None,
            (Some("sh"), None) => {
                add(&mut found, line);
                block
            }
            (None, None) if is_indented => {
                if let Some(line) = line.strip_prefix("    ") {
                    add(&mut found, line);
                }
                None
            }
            (block, None) => block,
        };
    }
    found
}

fn add(found: &mut Vec<String>, line: &str) {
    match found.last_mut() {
        Some(last) if last.ends_with('\\') => {
            last.push('\n');
            last.push_str(line);
        }
        _ if line.trim().is_empty() => {}
        _ => found.push(line.to_owned()),
    }
}

/// The first block of a language in a page.
pub(super) fn block(page: &str, language: &str) -> anyhow::Result<String> {
    let text = read(page)?;
    let begin = format!("```{language}\n");
    let block = text
        .split_once(&begin)
        .and_then(|(_, rest)| rest.split_once("```"));
    let (block, _) = block.with_context(|| format!("{page} has no block of {language}"))?;
    Ok(block.to_owned())
}

/// A command that takes a moment and stays in its directory; `PID` is `pid`, and the control
/// group that it names is `cgroup`.
pub(super) fn shortened(command: &str, pid: u32, cgroup: &str) -> String {
    let mut text = with_short_durations(command);
    for (long, short) in REPLACED {
        text = text.replace(long, short);
    }
    if text.ends_with("aiprof agent") {
        text.push_str(" --config deploy/agent.toml");
    }
    text.replace("-p PID", &format!("-p {pid}"))
        .replace("system.slice/nginx.service", cgroup)
}

/// Half a second as the value of each `-d`; unitrace's has none.
fn with_short_durations(command: &str) -> String {
    let mut parts = command.split(" -d ");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(" -d ");
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        if rest.len() < part.len() {
            text.push_str("0.5");
        }
        text.push_str(rest);
    }
    text
}

/// Whether a command runs until it is stopped.
pub(super) fn is_endless(command: &str) -> bool {
    let is_agent = command.contains("aiprof agent")
        && !["agent ctl", "agent --check"]
            .iter()
            .any(|word| command.contains(word));
    is_agent || command.contains("--every ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found() {
        let text = "    a\n```sh\nb \\\n    c\n\nd\n```\n```text\ne\n```\n";
        assert_eq!(commands(text, false), ["b \\\n    c", "d"]);
        assert_eq!(commands(text, true), ["a", "b \\\n    c", "d"]);
    }

    #[test]
    fn commands_are_shortened() {
        let short = |command| shortened(command, 7, "g");
        assert_eq!(
            short("aiprof trace -p PID -d 10s -c"),
            "aiprof trace -p 7 -d 0.5s -c"
        );
        assert_eq!(
            short("unitrace -h -d ./program"),
            "unitrace -h -d ./program"
        );
        assert_eq!(
            short("sudo aiprof agent"),
            "sudo aiprof agent --config deploy/agent.toml"
        );
    }
}
