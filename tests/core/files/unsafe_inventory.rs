//! README-devel.md lists every file with `unsafe`, and no other.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

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
