//! Tables, the machine they were measured on, and their place in the docs.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::packages::os_release;
use crate::proc::{capture, root};

/// Where the results live.
const PAGE: &str = "docs/benchmarks.md";

/// A Markdown table; the first column is text, the others are figures.
pub(super) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
    let rule = head.iter().enumerate();
    let rule = rule.map(|(i, _)| if i == 0 { "---" } else { "--:" });
    let mut text = line(head.to_vec()) + &line(rule.collect());
    for row in rows {
        text += &line(row.iter().map(String::as_str).collect());
    }
    text
}

/// Bytes as MiB.
pub(super) fn mib(bytes: f64) -> String {
    format!("{:.1}", bytes / (1 << 20) as f64)
}

/// Shows a result, and puts it into the docs when that is asked for.
pub(super) fn publish(name: &str, command: &str, body: &str, write: bool) -> Result<()> {
    let text = format!("`{command}`, {}\n\n{}\n{body}", date(), machine());
    println!("{text}");
    if !write {
        return Ok(());
    }
    let path = root().join(PAGE);
    let page = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let page = replace(&page, name, &text)?;
    fs::write(&path, page).with_context(|| path.display().to_string())
}

/// The page with the text between the marks of `name` replaced.
fn replace(page: &str, name: &str, text: &str) -> Result<String> {
    let begin = format!("<!-- {name}: begin -->\n");
    let end = format!("<!-- {name}: end -->");
    let parts = page.split_once(&begin).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(&end)?;
        Some((before, after))
    });
    let Some((before, after)) = parts else {
        bail!("{PAGE} has no section for {name:?}");
    };
    Ok(format!("{before}{begin}{}\n{end}{after}", text.trim_end()))
}

fn date() -> String {
    let date = capture(Command::new("date").arg("+%Y-%m-%d"));
    date.map_or_else(|_| "today".into(), |d| d.trim().to_string())
}

/// What this was measured on, in a line or two.
fn machine() -> String {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = value(&cpuinfo, "model name");
    let virtual_machine = if value(&cpuinfo, "flags").contains("hypervisor") {
        ", a virtual machine"
    } else {
        ""
    };
    let memory: u64 = value(&read("/proc/meminfo"), "MemTotal")
        .split_whitespace()
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    let kernel = read("/proc/sys/kernel/osrelease");
    let system = os_release();
    let system = system
        .lines()
        .find_map(|l| l.strip_prefix("PRETTY_NAME="))
        .unwrap_or("an unknown system")
        .trim_matches('"');
    format!(
        "{} CPUs ({model}), {:.0} GiB{virtual_machine}; Linux {}, {system}.\n",
        super::cpus(),
        memory as f64 / 1024.0 / 1024.0,
        kernel.trim(),
    )
}

/// The value of the first `key : value` line.
fn value<'a>(text: &'a str, key: &str) -> &'a str {
    text.lines()
        .find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == key).then(|| value.trim())
        })
        .unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_markdown() {
        let text = table(&["a", "b"], &[vec!["x".into(), "1".into()]]);
        assert_eq!(text, "| a | b |\n| --- | --: |\n| x | 1 |\n");
    }

    #[test]
    fn only_the_marked_place_changes() {
        let page = "before\n<!-- m: begin -->\nold\n<!-- m: end -->\nafter\n";
        let new = replace(page, "m", "new\n\n").unwrap();
        assert_eq!(
            new,
            "before\n<!-- m: begin -->\nnew\n<!-- m: end -->\nafter\n"
        );
        assert!(replace(page, "absent", "new").is_err());
    }
}
