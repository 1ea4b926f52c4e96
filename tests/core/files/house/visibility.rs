//! Items are as visible as their users need.
//!
//! Functions, methods, types, traits and constants are checked, by their names. An item counts as
//! used if its name stands in the code of another crate, or of another file, whatever that name
//! means there. So a method `new` is always used, and what is found is unused for certain. Left out
//! are fields, variants and methods of traits, which are as visible as their types; modules; and
//! what is compiled for tests only. A type that a used item names in its signature is used with it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::source::{CrateSource, VisibleItem, folder_of};

/// Items that only tests and examples outside their crate use: a whole subsystem is
/// driven there without the rest. Functions that only fuzz targets call are compiled for the
/// feature `testing` instead.
const DRIVEN_BY_TESTS: [(&str, &str); 9] = [
    // profiler/tests/ci/files/virtual_stalls.rs
    ("live", "DeviceSamplers"),
    // trace/src/analyze/device_stalls/tests.rs
    ("symbols", "bare"),
    // profiler/tests/ci/files/aiu_records.rs
    ("record", "builtin"),
    // profiler/examples/eu_stall.rs
    ("record", "Executions"),
    ("record", "Join"),
    ("record", "OperationPart"),
    ("record", "PARTS"),
    ("record", "is_waiting"),
    ("record", "timestamps"),
];

/// All crates of the product, by name.
pub(crate) fn crates() -> anyhow::Result<BTreeMap<String, CrateSource>> {
    let mut all = BTreeMap::new();
    for folder in super::CRATES {
        let base = super::root().join(folder).join("src");
        let mut source = CrateSource::read(&base, "lib.rs")?;
        if base.join("main.rs").is_file() {
            source
                .words
                .append(&mut CrateSource::read(&base, "main.rs")?.words);
        }
        let name = folder.rsplit('/').next().unwrap_or(folder);
        all.insert(name.to_owned(), source);
    }
    Ok(all)
}

/// Words of the programs beside the product, which use its crates too.
fn words_of_fleet() -> anyhow::Result<BTreeSet<String>> {
    let mut words = BTreeSet::new();
    for (folder, file) in [
        ("base", "lib.rs"),
        ("lake", "lib.rs"),
        ("query", "main.rs"),
        ("send", "main.rs"),
    ] {
        let base = super::root().join("fleet").join(folder).join("src");
        let source = CrateSource::read(&base, file)?;
        words.extend(source.words.into_values().flatten());
    }
    Ok(words)
}

/// Words of used items' interfaces, those of the interfaces' own items too.
fn interfaces<'a>(
    items: impl Iterator<Item = &'a VisibleItem> + Clone,
    is_used: impl Fn(&VisibleItem) -> bool,
) -> BTreeSet<&'a str> {
    let mut words = BTreeSet::new();
    loop {
        let before = words.len();
        for item in items.clone() {
            if is_used(item) || words.contains(item.name.as_str()) {
                words.extend(item.interface.iter().map(String::as_str));
            }
        }
        if words.len() == before {
            return words;
        }
    }
}

/// Public items of a crate that no other crate uses.
fn unused_outside(
    name: &str,
    all: &BTreeMap<String, CrateSource>,
    fleet: &BTreeSet<String>,
) -> Vec<String> {
    let others = all.iter().filter(|(other, _)| *other != name);
    let words: BTreeSet<&String> = others
        .flat_map(|(_, source)| source.words.values().flatten())
        .collect();
    let public = all[name].items.iter().filter(|item| item.is_public);
    let is_used = |item: &VisibleItem| {
        words.contains(&item.name)
            || fleet.contains(&item.name)
            || DRIVEN_BY_TESTS.contains(&(name, &item.name))
    };
    let shown = interfaces(public.clone(), is_used);
    public
        .filter(|item| !is_used(item) && !shown.contains(item.name.as_str()))
        .map(|item| format!("{name}: {item}"))
        .collect()
}

/// Items of a crate, visible in it only, that no file needs but their own and the modules
/// below it, which see private items too.
fn used_in_one_file(source: &CrateSource) -> Vec<String> {
    let restricted = source.items.iter().filter(|item| !item.is_public);
    let is_used = |item: &VisibleItem| {
        let below = folder_of(Path::new(&item.file));
        let all = source.words.iter().chain(&source.test_words);
        let mut elsewhere =
            all.filter(|(file, _)| **file != item.file && !file.starts_with(&below));
        elsewhere.any(|(_, words)| words.contains(&item.name))
    };
    let shown = interfaces(source.items.iter(), |item| item.is_public || is_used(item));
    restricted
        .filter(|item| !is_used(item) && !shown.contains(item.name.as_str()))
        .map(ToString::to_string)
        .collect()
}

#[test]
fn what_no_other_crate_uses_is_not_public() -> anyhow::Result<()> {
    let (all, fleet) = (crates()?, words_of_fleet()?);
    let libraries = all.keys().filter(|name| *name != "profiler");
    let found: Vec<String> = libraries
        .flat_map(|name| unused_outside(name, &all, &fleet))
        .collect();
    let public = all.values().flat_map(|source| &source.items);
    let seen = public.filter(|item| item.is_public).count();
    anyhow::ensure!(seen > 1000, "only {seen} public items are seen");
    assert!(
        found.is_empty(),
        "pub(crate) is enough:\n{}",
        found.join("\n")
    );
    Ok(())
}

#[test]
fn what_no_other_file_uses_is_private() -> anyhow::Result<()> {
    let mut found = Vec::new();
    for (name, source) in crates()? {
        let own = used_in_one_file(&source).into_iter();
        found.extend(own.map(|item| format!("{name}: {item}")));
    }
    assert!(found.is_empty(), "private is enough:\n{}", found.join("\n"));
    Ok(())
}

/// A name identifies a type without its module: only a few types share one.
#[test]
fn type_names_are_shared_by_few() -> anyhow::Result<()> {
    /// Types of one name, at most.
    const MOST: usize = 4;
    let root = super::root();
    let mut all = crates()?;
    for (folder, file) in [("profiler-common", "lib.rs"), ("profiler-ebpf", "main.rs")] {
        let base = root.join(folder).join("src");
        all.insert(folder.to_owned(), CrateSource::read(&base, file)?);
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for name in all.values().flat_map(|source| &source.types) {
        *counts.entry(name).or_default() += 1;
    }
    anyhow::ensure!(counts.len() > 500, "only {} names are seen", counts.len());
    let shared = counts.iter().filter(|(_, count)| **count > MOST);
    assert_eq!(shared.collect::<Vec<_>>(), []);
    Ok(())
}
