//! The pages of the documentation: links lead somewhere, and pages stay short.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// The most lines of the README, and of a page written by hand.
const README_LINES: usize = 130;
const PAGE_LINES: usize = 300;
/// Pages that a program writes, or that only grow by measurements.
const UNBOUNDED: [&str; 3] = ["benchmarks.md", "options.md", "agent-metrics.md"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The READMEs and all pages of `docs/`, with their texts.
fn pages() -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let mut paths = vec![
        root().join("README.md"),
        root().join("README-devel.md"),
        root().join("CHANGELOG.md"),
        root().join("tests/README.md"),
    ];
    for entry in std::fs::read_dir(root().join("docs"))? {
        paths.push(entry?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|end| end == "md"));
    paths
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path)?;
            Ok((path.canonicalize()?, text))
        })
        .collect()
}

/// The lines outside of blocks of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The targets of `[text](target)`.
fn links(text: &str) -> Vec<String> {
    let flowing: Vec<&str> = prose(text).collect();
    let flowing = flowing.join("\n");
    let targets = flowing.split("](").skip(1);
    targets
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.to_owned())
        .filter(|target| !target.contains([' ', '\n', '`']))
        .collect()
}

/// Headings as GitHub turns them into anchors, and `<a id="...">`.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in prose(text) {
        if let Some(heading) = line.strip_prefix('#') {
            let heading = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
            let anchor: String = heading.chars().filter(kept).collect();
            found.insert(anchor.replace(' ', "-"));
        }
        for rest in line.split("<a id=\"").skip(1) {
            found.extend(rest.split('"').next().map(ToOwned::to_owned));
        }
    }
    found
}

#[test]
fn links_of_the_documentation_lead_somewhere() -> anyhow::Result<()> {
    let pages = pages()?;
    let mut dead = Vec::new();
    for (path, text) in &pages {
        let folder = path.parent().context("a folder")?;
        for link in links(text) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => path.clone(),
                file => folder.join(file),
            };
            let target = target.canonicalize().unwrap_or(target);
            let leads = match pages.get(&target) {
                Some(page) => anchor.is_empty() || anchors(page).contains(anchor),
                None => target.exists(),
            };
            if !leads {
                dead.push(format!("{}: {link}", path.display()));
            }
        }
    }
    anyhow::ensure!(dead.is_empty(), "{}", dead.join("\n"));
    Ok(())
}

#[test]
fn pages_stay_short() -> anyhow::Result<()> {
    for (path, text) in pages()? {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.context("a name")?;
        let most = match name {
            "README.md" if path.parent() == root().canonicalize().ok().as_deref() => README_LINES,
            _ if path.parent().is_some_and(|parent| parent.ends_with("docs")) => PAGE_LINES,
            _ => continue,
        };
        let lines = text.lines().count();
        anyhow::ensure!(
            lines <= most || UNBOUNDED.contains(&name),
            "{name} has {lines} lines, and may have {most}"
        );
    }
    Ok(())
}

/// The libraries that a manifest's `[dependencies]` name, without the project's own crates.
fn libraries(manifest: &Path) -> anyhow::Result<Vec<String>> {
    let text = std::fs::read_to_string(manifest)?;
    let manifest: toml::Table = text.parse()?;
    let named = manifest.get("dependencies").and_then(|all| all.as_table());
    let names = named.into_iter().flat_map(toml::Table::keys);
    Ok(names
        .filter(|name| !name.starts_with("aiprof"))
        .cloned()
        .collect())
}

#[test]
fn the_page_of_libraries_has_each_that_is_used() -> anyhow::Result<()> {
    let page = std::fs::read_to_string(root().join("docs/dependencies.md"))?;
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| ")).collect();
    let listed: BTreeSet<&str> = rows
        .iter()
        .filter_map(|row| row.split(" | ").next())
        .flat_map(|names| names.trim_start_matches("| ").split(", "))
        .collect();
    let mut manifests = vec![
        root().join("profiler/Cargo.toml"),
        root().join("profiler-ebpf/Cargo.toml"),
    ];
    for folder in ["profiler/crates", "fleet"] {
        for entry in std::fs::read_dir(root().join(folder))? {
            let manifest = entry?.path().join("Cargo.toml");
            manifests.extend(manifest.exists().then_some(manifest));
        }
    }
    let mut missing = BTreeSet::new();
    for manifest in manifests {
        let names = libraries(&manifest)?;
        missing.extend(
            names
                .into_iter()
                .filter(|name| !listed.contains(name.as_str())),
        );
    }
    anyhow::ensure!(missing.is_empty(), "docs/dependencies.md lacks {missing:?}");
    Ok(())
}

/// Texts between backticks, outside of blocks of code.
fn quoted(text: &str) -> Vec<&str> {
    let pieces = prose(text).flat_map(|line| line.split('`').skip(1).step_by(2));
    pieces.collect()
}

/// The folders that READMEs name files in without the whole path.
const SHORT: [&str; 4] = ["", "tests", "tests/ci", "profiler/crates"];

#[test]
fn files_that_the_guides_name_exist() -> anyhow::Result<()> {
    let mut missing = Vec::new();
    for guide in ["README-devel.md", "tests/README.md"] {
        let text = std::fs::read_to_string(root().join(guide))?;
        for path in quoted(&text) {
            // Names of folders that are there only after a build are left out.
            let is_path = path.contains('/') && !path.contains([' ', '*', ':', '<', '=']);
            if !is_path || path.starts_with("target/") || path.starts_with('/') {
                continue;
            }
            let guide = root().join(guide);
            let beside = guide.parent().context("a folder")?.join(path);
            let is_there = |folder: &&str| root().join(folder).join(path).exists();
            if !beside.exists() && !SHORT.iter().any(is_there) {
                missing.push(format!("{}: {path}", guide.display()));
            }
        }
    }
    anyhow::ensure!(missing.is_empty(), "{}", missing.join("\n"));
    Ok(())
}

/// What follows `cargo xtask` wherever a page names it.
fn tasks(text: &str) -> Vec<Vec<&str>> {
    let uses = text.split("cargo xtask ").skip(1);
    let words = uses.filter_map(|rest| rest.split(['`', '\n', ')', '|']).next());
    words
        .map(|words| words.split_whitespace().collect())
        .collect()
}

#[test]
fn tasks_that_the_guides_name_exist_with_their_options() -> anyhow::Result<()> {
    let sources = root().join("xtask/src");
    let main = std::fs::read_to_string(sources.join("main.rs"))?;
    let mut unknown = Vec::new();
    for (path, text) in pages()? {
        for task in tasks(&text) {
            let [name, arguments @ ..] = task.as_slice() else {
                continue;
            };
            let name = name.trim_end_matches([',', '.', ':', ';']);
            if name == "help" || name.starts_with('-') {
                continue;
            }
            let is_task = main.contains(&format!("name: \"{name}\""));
            let file = sources.join(format!(
                "{}.rs",
                name.replace('-', "_").replace("vm_test", "vm")
            ));
            let source = std::fs::read_to_string(file).unwrap_or_default();
            let options = arguments.iter().take_while(|word| **word != "--");
            let lacks = |word: &&&str| {
                let option = word.trim_end_matches([',', '.', ':', ';']);
                option.starts_with("--") && !source.contains(option)
            };
            if !is_task || options.clone().any(|word| lacks(&word)) {
                unknown.push(format!(
                    "{}: cargo xtask {}",
                    path.display(),
                    task.join(" ")
                ));
            }
        }
    }
    anyhow::ensure!(unknown.is_empty(), "{}", unknown.join("\n"));
    Ok(())
}
