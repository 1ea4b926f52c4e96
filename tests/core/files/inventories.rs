//! Lists in the documentation are those of the source: files with `unsafe`, tests of attacks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Whether Rust source has an `unsafe` block, function or implementation.
fn has_unsafe(text: &str) -> bool {
    let code = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or(line));
    let words = ["unsafe {", "unsafe impl", "unsafe fn", "unsafe extern"];
    code.into_iter()
        .any(|line| words.iter().any(|word| line.contains(word)))
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(())
}

#[test]
fn the_inventory_of_unsafe_is_complete() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let readme = std::fs::read_to_string(root.join("README-devel.md"))?;
    let listed: BTreeSet<_> = readme
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` |"))
        .map(|(file, _)| file.to_owned())
        .filter(|file| file.ends_with(".rs"))
        .collect();
    let mut files = Vec::new();
    for folder in [
        "profiler/src",
        "profiler/crates",
        "profiler-common",
        "xtask/src",
    ] {
        sources(&root.join(folder), &mut files)?;
    }
    let mut found = BTreeSet::new();
    for file in files {
        if has_unsafe(&std::fs::read_to_string(&file)?) {
            found.insert(file.strip_prefix(&root)?.to_string_lossy().into_owned());
        }
    }
    assert_eq!(listed, found, "README-devel.md, section `unsafe`");
    Ok(())
}

/// docs/security.md names a test for each attack.
#[test]
fn tests_that_the_security_page_names_are_there() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join("docs/security.md"))?;
    let section = page.split("## Attacks and their tests").nth(1);
    let rows: Vec<&str> = section
        .and_then(|rest| rest.split("\n## ").next())
        .context("a section of attacks")?
        .lines()
        .filter(|line| line.starts_with("| "))
        .skip(1)
        .collect();
    anyhow::ensure!(rows.len() > 10, "{rows:?}");
    let mut files = Vec::new();
    for folder in ["tests", "profiler", "fleet"] {
        sources(&root.join(folder), &mut files)?;
    }
    let texts: Vec<String> = files
        .iter()
        .map(std::fs::read_to_string)
        .collect::<std::io::Result<_>>()?;
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let tests = cells.last().context("a test")?.trim().split(", ");
        for test in tests {
            let name = test.trim_matches('`');
            let is_there = texts.iter().any(|text| text.contains(&format!("fn {name}(")));
            anyhow::ensure!(is_there, "no test {name}: {row}");
        }
    }
    Ok(())
}
