//! Lines of source files under one folder.

use aiprof_system::files::caller;
use anyhow::{Context, Result};
use std::cell::RefCell;
use std::collections::HashMap;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

/// Largest source file.
const MAX_FILE: u64 = 8 << 20;
/// Most files that are kept.
const MAX_FILES: usize = 256;

/// Source files, as they are asked for.
pub(crate) struct Sources {
    /// Where they are; `None`: nowhere.
    folder: Option<PathBuf>,
    files: RefCell<HashMap<String, Option<Vec<String>>>>,
}

impl Sources {
    /// Sources in a folder. Nothing outside of it is read: modules may name any path.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(crate) fn new(folder: Option<&Path>) -> Result<Self> {
        let folder = folder.map(|folder| {
            let found = caller::canonicalize(folder);
            found.with_context(|| format!("cannot read {}", folder.display()))
        });
        Ok(Self {
            folder: folder.transpose()?,
            files: RefCell::default(),
        })
    }

    /// A line of the file that was compiled as `path`; from 1.
    pub(crate) fn line(&self, path: &str, line: u32) -> Option<String> {
        let folder = self.folder.as_ref()?;
        let mut files = self.files.borrow_mut();
        if files.len() >= MAX_FILES && !files.contains_key(path) {
            files.clear();
        }
        let file = files.entry(path.to_owned()).or_insert_with(|| {
            let text = read(folder, path)?;
            Some(text.lines().map(str::to_owned).collect())
        });
        let index = usize::try_from(line.checked_sub(1)?).ok()?;
        file.as_ref()?.get(index).cloned()
    }
}

/// The file whose end of the path is there, the longest such.
fn read(folder: &Path, path: &str) -> Option<String> {
    let mut parts: Vec<&std::ffi::OsStr> = Vec::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => parts.push(name),
            Component::ParentDir => {
                parts.pop();
            }
            _ => {}
        }
    }
    (0..parts.len()).find_map(|skip| {
        let relative: PathBuf = parts.get(skip..)?.iter().collect();
        let found = caller::canonicalize(folder.join(relative)).ok()?;
        if !found.starts_with(folder) {
            return None;
        }
        let mut bytes = Vec::new();
        caller::open_regular(found)
            .ok()?
            .take(MAX_FILE)
            .read_to_end(&mut bytes)
            .ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_path_is_looked_for_and_nothing_outside() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("src");
        std::fs::create_dir_all(folder.join("a")).unwrap();
        std::fs::write(folder.join("a/k.cl"), "one\ntwo\n").unwrap();
        std::fs::write(dir.path().join("secret"), "secret\n").unwrap();
        std::os::unix::fs::symlink(dir.path().join("secret"), folder.join("link")).unwrap();
        let sources = Sources::new(Some(&folder)).unwrap();
        assert_eq!(
            sources.line("/build/x/../a/./k.cl", 2).as_deref(),
            Some("two")
        );
        assert_eq!(sources.line("k.cl", 1), None);
        for path in ["../secret", "/../secret", "link", "", "/", "a"] {
            assert_eq!(sources.line(path, 1), None, "{path}");
        }
        for line in [0, 3, u32::MAX] {
            assert_eq!(sources.line("a/k.cl", line), None);
        }
        assert_eq!(Sources::new(None).unwrap().line("a/k.cl", 1), None);
        assert!(Sources::new(Some(&dir.path().join("none"))).is_err());
    }
}
