//! The crates depend on each other from below to above only, and on nothing that they do
//! not use.

#[path = "house/source.rs"]
mod source;
#[path = "house/visibility.rs"]
mod visibility;
#[path = "house/words.rs"]
mod words;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// The crates of the product, each of which may depend on those before it.
const CRATES: [&str; 9] = [
    "profiler/crates/system",
    "profiler/crates/model",
    "profiler/crates/symbols",
    "profiler/crates/record",
    "profiler/crates/trace",
    "profiler/crates/tables",
    "profiler/crates/formats",
    "profiler/crates/live",
    "profiler",
];
/// What only live may depend on: it needs C libraries and a kernel of Linux's.
const LIVE: [&str; 3] = ["libbpf-rs", "perf-event-open-sys", "iced-x86"];
/// Who else may: rules of code without unwind data come from its instructions.
const ALSO: [(&str, &str); 1] = [("profiler/crates/symbols", "iced-x86")];

/// Where records of calls are taken: the Tracker, and who hands them to it. All others
/// listen to the Tracker.
const CALL_RECORDS: [&str; 10] = [
    "live/src/session/collector.rs",
    // Keeps the records of the last seconds as they came.
    "live/src/session/last_seconds.rs",
    // Leaves out what begins in a pause.
    "live/src/session/pausing.rs",
    // Receives them from the ring.
    "live/src/session/queue.rs",
    "record/src/correlate/tracker/calls.rs",
    "record/src/correlate/tracker/data.rs",
    "record/src/correlate/tracker/open.rs",
    "record/src/correlate/tracker/state.rs",
    "record/src/correlate/tracker/thread.rs",
    "record/src/correlate/tracker/view.rs",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The folders of a crate that have source.
const PARTS: [&str; 7] = ["src", "tests", "examples", "benches", "core", "ci", "all"];

/// The sections of a Cargo.toml that name other crates.
const SECTIONS: [&str; 2] = ["dependencies", "dev-dependencies"];

/// The names in those sections of a folder's Cargo.toml.
fn dependencies(folder: &str) -> anyhow::Result<BTreeMap<&'static str, Vec<String>>> {
    let path = root().join(folder).join("Cargo.toml");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let manifest: toml::Table = text.parse().with_context(|| path.display().to_string())?;
    let named = SECTIONS.iter().filter_map(|section| {
        let table = manifest.get(*section)?.as_table()?;
        Some((*section, table.keys().cloned().collect()))
    });
    Ok(named.collect())
}

/// All Rust source in some folders of a crate, without what is a crate of its own.
fn source(folder: &str, parts: &[&str]) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut folders: Vec<PathBuf> = parts.iter().map(|p| root().join(folder).join(p)).collect();
    while let Some(at) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&at) else {
            continue;
        };
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension() == Some("rs".as_ref()) {
                text += &std::fs::read_to_string(&path)?;
            }
        }
    }
    anyhow::ensure!(!text.is_empty(), "{folder} has no source");
    Ok(text)
}

/// The product's source files in a folder of a crate, with their text up to the tests.
fn files(folder: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let crates = root().join("profiler/crates");
    let mut found = BTreeMap::new();
    let mut folders = vec![crates.join(folder)];
    while let Some(at) = folders.pop() {
        for entry in std::fs::read_dir(&at)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_test = name.ends_with("tests") || name.ends_with("tests.rs") || ["golden.rs", "script.rs", "testing.rs"].contains(&&*name);
            if is_test {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension() == Some("rs".as_ref()) {
                let text = std::fs::read_to_string(&path)?;
                let product = text.split("#[cfg(test)]\nmod tests {").next();
                let short = path.strip_prefix(&crates)?.display().to_string();
                found.insert(short, product.unwrap_or_default().into());
            }
        }
    }
    Ok(found)
}

/// Whether source reads the records of calls, or takes them.
fn takes_records(source: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    ["Call", "CallData"].into_iter().any(|record| {
        let given = [
            format!("&{record}"),
            format!("&'a {record}"),
            format!(": {record}"),
        ];
        let is_taken = given.iter().any(|given| {
            let all = source.match_indices(given);
            let mut behind = all.map(|(at, text)| &source[at + text.len()..]);
            behind.any(|behind| !behind.starts_with(is_word) && !behind.starts_with("::"))
        });
        let event = format!("Event::{record}(");
        let mut read = source.match_indices(&event);
        is_taken || read.any(|(at, _)| !source[at + event.len()..].starts_with("_)"))
    })
}

/// Whether source names a crate, in a path.
fn names(source: &str, name: &str) -> bool {
    let name = name.replace('-', "_");
    // A module of the same name is not the crate.
    if source.contains(&format!("mod {name};")) {
        return source.contains(&format!("\nuse {name}::"));
    }
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    source.match_indices(&name).any(|(at, _)| {
        let behind = &source[at + name.len()..];
        !source[..at].ends_with(is_word) && (behind.starts_with("::") || behind.starts_with(" as"))
    })
}

#[test]
fn arrows_lead_down() -> anyhow::Result<()> {
    for (at, folder) in CRATES.iter().enumerate() {
        let found = dependencies(folder)?;
        for name in found.get("dependencies").into_iter().flatten() {
            let own = CRATES.iter().position(|other| {
                let last = other.rsplit('/').next();
                last.is_some_and(|last| *name == format!("aiprof-{last}"))
            });
            assert!(own.is_none_or(|own| own < at), "{folder} depends on {name}");
            let is_live = LIVE.contains(&name.as_str()) && !folder.ends_with("live");
            let may = ALSO.contains(&(folder, name));
            assert!(!is_live || may, "{folder} depends on {name}");
        }
    }
    Ok(())
}

#[test]
fn what_is_depended_on_is_used() -> anyhow::Result<()> {
    let mut unused = Vec::new();
    let mut seen = 0;
    let others = ["xtask", "tests", "profiler-common"];
    for folder in CRATES.iter().chain(&others) {
        let product = source(folder, &["src"])?;
        let all = source(folder, &PARTS)?;
        for (section, named) in dependencies(folder)? {
            let text = match section {
                "dependencies" => &product,
                _ => &all,
            };
            seen += named.len();
            let of = named.iter().filter(|name| !names(text, name));
            unused.extend(of.map(|name| format!("{folder}: {name} ({section})")));
        }
    }
    anyhow::ensure!(seen > 60, "only {seen} dependencies are seen");
    assert_eq!(unused, Vec::<String>::new());
    Ok(())
}

#[test]
fn only_the_tracker_takes_records_of_calls() -> anyhow::Result<()> {
    let mut taking = Vec::new();
    for folder in ["live/src", "record/src", "tables/src", "trace/src"] {
        let found = files(folder)?.into_iter();
        let own = found.filter(|(_, text)| takes_records(text));
        taking.extend(own.map(|(path, _)| path));
    }
    assert_eq!(taking, CALL_RECORDS);
    Ok(())
}
