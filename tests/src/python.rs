//! CPython's interpreters that this machine has, and Python frames in folded stacks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

/// An interpreter.
#[derive(Clone, Debug)]
pub struct Interpreter {
    /// `3.12.1`, as it reports itself.
    pub version: String,
    /// The program.
    pub program: PathBuf,
}

/// The interpreters from 3.8 on: pyenv's, and the system's.
#[must_use]
pub fn interpreters() -> Vec<Interpreter> {
    let mut programs = Vec::new();
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let pyenv = home.map(|home| home.join(".pyenv/versions"));
    let versions = pyenv.and_then(|dir| std::fs::read_dir(dir).ok());
    for version in versions.into_iter().flatten().flatten() {
        programs.push(version.path().join("bin/python3"));
    }
    programs.push("/usr/bin/python3".into());
    let mut found: Vec<_> = programs.iter().filter_map(|p| interpreter(p)).collect();
    found.sort_by_key(|one| {
        let part = |part: &str| part.parse().unwrap_or(0);
        one.version.split('.').map(part).collect::<Vec<u32>>()
    });
    found.retain(|one| one.version.starts_with("3."));
    found.retain(|one| {
        let minor = one.version.split('.').nth(1).and_then(|m| m.parse().ok());
        minor.is_some_and(|minor: u32| minor >= 8)
    });
    found
}

fn interpreter(program: &Path) -> Option<Interpreter> {
    let print = "import platform; print(platform.python_version())";
    let output = Command::new(program).args(["-c", print]).output().ok()?;
    let version = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !version.is_empty()).then(|| Interpreter {
        version,
        program: program.to_owned(),
    })
}

/// A Python frame of a folded stack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Frame {
    /// `module.function`.
    pub name: String,
    /// Its file, without directories.
    pub file: String,
    /// The line that it is at.
    pub line: u32,
}

impl Frame {
    /// The frame that a name stands for: `json.loads (decoder.py:12)_[p]`; `None`: it is
    /// of no Python function.
    #[must_use]
    pub fn parse(frame: &str) -> Option<Self> {
        let frame = frame.strip_suffix(")_[p]")?;
        let (name, place) = frame.rsplit_once(" (")?;
        let (file, line) = place.rsplit_once(':')?;
        Some(Self {
            name: name.to_owned(),
            file: file.to_owned(),
            line: line.parse().ok()?,
        })
    }

    /// The name of the function alone.
    #[must_use]
    pub fn function(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }
}

/// The text of a program whose lines name what they call: `# -> names`.
#[derive(Debug)]
pub struct Calls {
    file: String,
    /// First and last line of each function, by its name.
    functions: BTreeMap<String, (u32, u32)>,
    calls: BTreeMap<u32, Vec<String>>,
}

impl Calls {
    /// Reads a program.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)?;
        let mut calls = BTreeMap::new();
        let mut functions = BTreeMap::new();
        let mut open: Vec<(usize, String, u32)> = Vec::new();
        let mut last = 0;
        let mut decorated = None;
        for (number, line) in (1u32..).zip(text.lines()) {
            if let Some((_, names)) = line.split_once("# -> ") {
                let names = names.split(' ').map(str::to_owned).collect();
                calls.insert(number, names);
            }
            let plain = line.trim_start();
            let indent = line.len() - plain.len();
            if plain.is_empty() {
                continue;
            }
            while let Some((own, ..)) = open.last()
                && indent <= *own
                && !plain.starts_with(')')
            {
                let (_, name, first) = open.pop().context("it is not empty")?;
                functions.insert(name, (first, last));
            }
            let plain = plain.strip_prefix("async ").unwrap_or(plain);
            if let Some(rest) = plain.strip_prefix("def ") {
                let name = rest.split('(').next().unwrap_or_default();
                open.push((indent, name.to_owned(), decorated.unwrap_or(number)));
            }
            // A function begins in the line of its first decorator: there it is entered, and
            // there a thread may give the GIL to another.
            let is_decorator = plain.starts_with('@');
            decorated = is_decorator.then(|| decorated.unwrap_or(number));
            last = number;
        }
        for (_, name, first) in open {
            functions.insert(name, (first, last));
        }
        let file = path.file_name().context("a file has a name")?;
        Ok(Self {
            file: file.to_string_lossy().into_owned(),
            functions,
            calls,
        })
    }

    /// Whether frames, outermost first, can be those of a stack of the program.
    #[must_use]
    pub fn allow(&self, frames: &[Frame]) -> bool {
        let is_own = frames.iter().all(|frame| frame.file == self.file);
        let within = |frame: &Frame| match self.functions.get(frame.function()) {
            Some((first, last)) => (first..=last).contains(&&frame.line),
            None => frame.function() == "<module>" || is_comprehension(frame),
        };
        let called = frames.windows(2).all(|pair| {
            let names = self.calls.get(&pair[0].line);
            names.is_some_and(|names| names.iter().any(|name| name == pair[1].function()))
                || is_comprehension(&pair[1])
        });
        let begins = frames
            .first()
            .is_some_and(|first| matches!(first.function(), "<module>" | "work"));
        is_own && begins && called && frames.iter().all(within)
    }
}

/// Whether a frame is a comprehension's, which is a function before 3.12.
fn is_comprehension(frame: &Frame) -> bool {
    frame.name.contains("<listcomp>")
}
