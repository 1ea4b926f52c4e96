//! Runs the original or ours.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::Context as _;
use tempfile::TempDir;

use crate::aiprof;
use crate::workload::checked;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// acelyzer 1.3.0.
    Original,
    /// `aiprof acelyzer`.
    Ours,
    /// `aiprof acelyzer --compat-bugs`.
    OursWithBugs,
    /// `aiprof analyze`.
    Analyze,
}

/// The files of a run, by name relative to its folder.
pub type Files = BTreeMap<String, Vec<u8>>;

/// What a run is given: files, which it finds in its folder.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// By name.
    pub files: Files,
}

impl Input {
    /// One file.
    #[must_use]
    pub fn one(name: &str, text: impl Into<Vec<u8>>) -> Self {
        Self::default().and(name, text)
    }

    /// One more file.
    #[must_use]
    pub fn and(mut self, name: &str, text: impl Into<Vec<u8>>) -> Self {
        self.files.insert(name.to_owned(), text.into());
        self
    }

    /// All files in a folder and the folders in it.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn of_folder(folder: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            files: read_all(folder)?,
        })
    }

    /// Writes the files into a folder.
    ///
    /// # Errors
    /// When one cannot be written.
    pub fn write(&self, folder: &Path) -> anyhow::Result<()> {
        for (name, bytes) in &self.files {
            let path = folder.join(name);
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)?;
            }
            std::fs::write(&path, bytes).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }
}

/// A finished run.
#[derive(Debug)]
pub struct Ran {
    /// Exit status; `None` when a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
    /// The files it wrote.
    pub files: Files,
}

impl Ran {
    /// A file it wrote.
    ///
    /// # Errors
    /// When it did not write that file; the error shows what it printed.
    pub fn file(&self, name: &str) -> anyhow::Result<&[u8]> {
        let file = self.files.get(name).map(Vec::as_slice);
        file.with_context(|| {
            let names: Vec<_> = self.files.keys().collect();
            format!(
                "no {name} among {names:?}; status {:?}; stderr:\n{}",
                self.code, self.stderr
            )
        })
    }

    /// A JSON file it wrote.
    ///
    /// # Errors
    /// When it did not, or it is none.
    pub fn json(&self, name: &str) -> anyhow::Result<serde_json::Value> {
        serde_json::from_slice(self.file(name)?).with_context(|| name.to_owned())
    }
}

impl Which {
    /// Runs it in a new folder that holds the input's files. The words in `args`
    /// are separated by spaces; `'...'` keeps some together.
    ///
    /// # Errors
    /// When it cannot be run at all.
    pub fn run(self, input: &Input, args: &str) -> anyhow::Result<Ran> {
        if self != Self::Original {
            return self.run_now(input, args);
        }
        // The original is slow and always prints the same, so it runs once.
        let kept = Kept::of(input, args)?;
        if let Some(ran) = kept.load() {
            return Ok(ran);
        }
        let ran = self.run_now(input, args)?;
        kept.store(&ran)?;
        Ok(ran)
    }

    fn run_now(self, input: &Input, args: &str) -> anyhow::Result<Ran> {
        let dir = TempDir::with_prefix("aiprof-test-")?;
        input.write(dir.path())?;
        let output = self
            .command()?
            .args(words(args))
            .current_dir(dir.path())
            .output()
            .with_context(|| format!("running {self:?}"))?;
        let mut files = read_all(dir.path())?;
        files.retain(|name, _| !input.files.contains_key(name));
        Ok(Ran {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            files,
        })
    }

    fn command(self) -> anyhow::Result<Command> {
        // A check of the tests themselves, as elsewhere perf takes aiprof's place.
        let oracle = std::env::var_os("AIPROF_TESTS_ORACLE").is_some_and(|o| o == "acelyzer");
        if self == Self::Original || oracle {
            let folder = original().map_err(anyhow::Error::msg)?;
            let mut command = Command::new("python3");
            command.arg(folder.join("bin/acelyzer"));
            command.env("PYTHONPATH", &folder);
            command.env("PYTHONHASHSEED", "0");
            // Nothing is written into the folder, which other tests read.
            command.env("PYTHONDONTWRITEBYTECODE", "1");
            return Ok(command);
        }
        let mut command = Command::new(aiprof::binary()?);
        let words: &[&str] = match self {
            Self::OursWithBugs => &["acelyzer", "--compat-bugs"],
            Self::Analyze => &["analyze"],
            Self::Ours | Self::Original => &["acelyzer"],
        };
        command.args(words);
        Ok(command)
    }
}

/// A run of the original, kept in the target folder.
struct Kept(PathBuf);

impl Kept {
    fn of(input: &Input, args: &str) -> anyhow::Result<Self> {
        let mut hasher = DefaultHasher::new();
        (args, &input.files).hash(&mut hasher);
        let folder = original().map_err(anyhow::Error::msg)?.join("runs");
        Ok(Self(folder.join(format!("{:016x}", hasher.finish()))))
    }

    fn load(&self) -> Option<Ran> {
        let mut all = read_all(&self.0).ok()?;
        let mut text = |name: &str| {
            let bytes = all.remove(name)?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        };
        let code = text("code")?;
        let (stdout, stderr) = (text("stdout")?, text("stderr")?);
        let files = all.into_iter();
        let files = files
            .filter_map(|(name, bytes)| Some((name.strip_prefix("files/")?.to_owned(), bytes)));
        Some(Ran {
            code: code.parse().ok(),
            stdout,
            stderr,
            files: files.collect(),
        })
    }

    fn store(&self, ran: &Ran) -> anyhow::Result<()> {
        let mut all = Input {
            files: ran
                .files
                .iter()
                .map(|(name, bytes)| (format!("files/{name}"), bytes.clone()))
                .collect(),
        };
        let code = ran
            .code
            .map_or_else(|| "signal".to_owned(), |code| code.to_string());
        all = all
            .and("code", code)
            .and("stdout", ran.stdout.as_str())
            .and("stderr", ran.stderr.as_str());
        let parent = self.0.parent().context("no folder")?;
        std::fs::create_dir_all(parent)?;
        let fresh = TempDir::with_prefix_in("new-", parent)?;
        all.write(fresh.path())?;
        // Complete or not there; another test may have been faster.
        if std::fs::rename(fresh.path(), &self.0).is_ok() {
            let _ = fresh.keep();
        }
        Ok(())
    }
}

/// The folder of the original, fetched once into the target folder, or why it is
/// not to be had.
///
/// # Errors
/// When there is no network, no pip, or no Python it runs on.
pub fn original() -> Result<PathBuf, String> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    FOLDER
        .get_or_init(|| {
            fetch()
                .map_err(|error| format!("needs acelyzer, which could not be fetched: {error:#}"))
        })
        .clone()
}

fn fetch() -> anyhow::Result<PathBuf> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = tests.parent().context("the tests lie in the workspace")?;
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), |dir| root.join(dir));
    std::fs::create_dir_all(&target)?;
    // Several test programs may come here at once.
    let lock = File::create(target.join("acelyzer.lock"))?;
    lock.lock()?;
    let folder = target.join("acelyzer");
    checked(
        Command::new("sh")
            .arg(tests.join("acelyzer/fetch.sh"))
            .arg(&folder),
    )?;
    Ok(folder)
}

/// A trace or log that acelyzer is tested with.
///
/// # Errors
/// When it is not there.
pub fn sample(name: &str) -> Result<Vec<u8>, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("data/acelyzer")
        .join(name);
    std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The words of a command line.
fn words(text: &str) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    for (i, part) in text.split('\'').enumerate() {
        if i % 2 == 1 {
            words.push(part.into());
        } else {
            words.extend(part.split_whitespace().map(OsString::from));
        }
    }
    words
}

fn read_all(folder: &Path) -> anyhow::Result<Files> {
    let mut files = Files::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(folder)?.display().to_string();
            files.insert(name, std::fs::read(&path)?);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_words_stay_together() {
        assert_eq!(
            words("-i 'a b.json' -o x '{\"count\": 3}'"),
            ["-i", "a b.json", "-o", "x", "{\"count\": 3}"].map(OsString::from)
        );
    }
}
