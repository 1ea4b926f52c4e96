//! Examples of what README-devel.md's table "to add | touch" has: `data/additions`, a file each.
//!
//! A file has lines `= DIRECTIVE`, and the text that belongs to each below it:
//!
//! * `= row NAME`: which row of the table it is an example of;
//! * `= new FILE`: a file with this text;
//! * `= in FILE`: the file that the following lines are about;
//! * `= after LINE`, `= before LINE`, `= instead of LINE`: where in it the text goes. LINE is how
//!   the only such line begins, without its indent;
//! * `= made FILE`: a file that a program writes anew.
//!
//! Paths are those of the repository.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};

/// An example of an addition.
#[derive(Debug)]
pub struct Addition {
    /// The row of the table, by its first cell.
    pub row: String,
    edits: Vec<Edit>,
    /// Files that it creates or changes.
    pub touched: BTreeSet<String>,
    created: BTreeSet<String>,
}

#[derive(Debug)]
struct Edit {
    file: String,
    place: EditPlace,
    text: String,
}

#[derive(Debug)]
enum EditPlace {
    /// The text is the file.
    Whole,
    After(String),
    Before(String),
    InsteadOf(String),
}

impl Addition {
    /// All of them, sorted by the names of their files.
    ///
    /// # Errors
    /// One cannot be read.
    pub fn all(root: &Path) -> anyhow::Result<Vec<Self>> {
        let folder = root.join("tests/data/additions");
        let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
        let mut paths = entries
            .map(|entry| Ok(entry?.path()))
            .collect::<anyhow::Result<Vec<_>>>()?;
        paths.sort();
        let read = |path: &std::path::PathBuf| {
            let text = fs::read_to_string(path)?;
            Self::parse(&text).with_context(|| path.display().to_string())
        };
        paths.iter().map(read).collect()
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut addition = Self {
            row: String::new(),
            edits: Vec::new(),
            touched: BTreeSet::new(),
            created: BTreeSet::new(),
        };
        let mut file = String::new();
        for line in text.lines() {
            let Some(directive) = line.strip_prefix("= ") else {
                let edit = addition.edits.last_mut().context("text before a place")?;
                edit.text += line;
                edit.text.push('\n');
                continue;
            };
            let is = |word: &str| directive.strip_prefix(word).map(str::to_owned);
            let place = if let Some(row) = is("row ") {
                addition.row = row;
                continue;
            } else if let Some(path) = is("in ").or_else(|| is("made ")) {
                addition.touched.insert(path.clone());
                file = path;
                continue;
            } else if let Some(path) = is("new ") {
                addition.touched.insert(path.clone());
                addition.created.insert(path.clone());
                file = path;
                EditPlace::Whole
            } else if let Some(line) = is("after ") {
                EditPlace::After(line)
            } else if let Some(line) = is("before ") {
                EditPlace::Before(line)
            } else if let Some(line) = is("instead of ") {
                EditPlace::InsteadOf(line)
            } else {
                bail!("unknown directive {directive:?}");
            };
            addition.edits.push(Edit {
                file: file.clone(),
                place,
                text: String::new(),
            });
        }
        ensure!(!addition.row.is_empty(), "no row");
        Ok(addition)
    }

    /// Makes the addition in a tree.
    ///
    /// # Errors
    /// A file cannot be written, is there already, or has not exactly one such line.
    pub fn apply(&self, root: &Path) -> anyhow::Result<()> {
        for edit in &self.edits {
            let path = root.join(&edit.file);
            let what = || format!("{}: {}: {:?}", self.row, edit.file, edit.place);
            if let EditPlace::Whole = edit.place {
                ensure!(!path.exists(), "{}: is there already", what());
                fs::create_dir_all(path.parent().context("a folder")?)?;
                fs::write(&path, &edit.text).with_context(what)?;
                continue;
            }
            let before = fs::read_to_string(&path).with_context(what)?;
            fs::write(&path, edit.edited(&before).with_context(what)?).with_context(what)?;
        }
        Ok(())
    }

    /// Compares the files that it touches with those that a row of the table names.
    ///
    /// # Errors
    /// The row lacks one, or names one that is not touched.
    pub fn compare_with_row(&self, root: &Path, row: &str) -> anyhow::Result<()> {
        let named = named_paths(root, row);
        // A folder stands for what is new in it.
        let has = |path: &str, file: &str| match path.ends_with('/') {
            true => file.starts_with(path) && self.created.contains(file),
            false => file == path,
        };
        for file in &self.touched {
            let is_named = named.iter().any(|(path, _)| has(path, file));
            ensure!(is_named, "the row of {:?} lacks {file}", self.row);
        }
        for (path, is_needed) in &named {
            let is_touched = self.touched.iter().any(|file| has(path, file));
            ensure!(
                is_touched || !is_needed,
                "{:?} needs no {path}, which its row names",
                self.row
            );
        }
        Ok(())
    }
}

impl Edit {
    /// The text of a file with this edit.
    fn edited(&self, before: &str) -> anyhow::Result<String> {
        let (EditPlace::After(mark) | EditPlace::Before(mark) | EditPlace::InsteadOf(mark)) =
            &self.place
        else {
            return Ok(self.text.clone());
        };
        let is_it = |line: &&str| line.trim_start().starts_with(mark.as_str());
        let found = before.lines().filter(is_it).count();
        ensure!(found == 1, "{found} lines begin so");
        let mut after = String::new();
        for line in before.split_inclusive('\n') {
            match (is_it(&line), &self.place) {
                (true, EditPlace::InsteadOf(_)) => after += &self.text,
                (true, EditPlace::Before(_)) => after = after + &self.text + line,
                (true, _) => after = after + line + &self.text,
                (false, _) => after += line,
            }
        }
        Ok(after)
    }
}

/// What stands behind the first cell in a row of README-devel.md's table "to add | touch".
///
/// # Errors
/// There is no such row.
pub fn row_of<'a>(readme: &'a str, name: &str) -> anyhow::Result<&'a str> {
    let mut rows = readme.lines();
    let start = format!("| {name} | ");
    rows.find_map(|line| line.strip_prefix(&start)?.strip_suffix(" |"))
        .with_context(|| format!("README-devel.md has no row {name:?}"))
}

/// The paths that a row names, as the repository has them, and whether each such addition needs
/// them: not where the sentence begins with "for".
fn named_paths(root: &Path, row: &str) -> Vec<(String, bool)> {
    let sentences = row.split(". ").flat_map(|part| part.split("; "));
    let paths = sentences.flat_map(|sentence| {
        let is_needed = !sentence.starts_with("For ") && !sentence.starts_with("for ");
        let quoted = sentence.split('`').skip(1).step_by(2);
        let quoted = quoted.filter(|text| text.contains('/') && !text.contains(' '));
        quoted.map(move |path| (path, is_needed))
    });
    let whole = |path: &str| {
        let folder = path.split('/').next().unwrap_or_default();
        match root.join("profiler/crates").join(folder).is_dir() {
            true => format!("profiler/crates/{path}"),
            false => path.to_owned(),
        }
    };
    paths
        .map(|(path, is_needed)| (whole(path), is_needed))
        .collect()
}
