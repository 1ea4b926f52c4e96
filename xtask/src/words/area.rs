//! Which files have texts, and for whom.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::lexer::Language;
use super::text::{Style, Text};
use super::{comments, rust};

/// What belongs together in the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Area {
    Readme,
    Docs,
    Changelog,
    /// Strings of the product: messages, errors, tables.
    Messages,
    /// Help of command lines.
    Help,
    /// Strings of pages that aiprof writes.
    Pages,
    /// Templates of configuration, units, charts, dashboards.
    Deploy,
    /// Comments of all source.
    Comments,
    /// Documents for developers.
    Guides,
    /// Subjects of commits.
    Commits,
}

impl Area {
    pub(super) const ALL: [Self; 10] = [
        Self::Readme,
        Self::Docs,
        Self::Changelog,
        Self::Messages,
        Self::Help,
        Self::Pages,
        Self::Deploy,
        Self::Comments,
        Self::Guides,
        Self::Commits,
    ];

    /// Its name in the counts.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Readme => "readme",
            Self::Docs => "docs",
            Self::Changelog => "changelog",
            Self::Messages => "messages",
            Self::Help => "help",
            Self::Pages => "pages",
            Self::Deploy => "deploy",
            Self::Comments => "comments",
            Self::Guides => "guides",
            Self::Commits => "commits",
        }
    }

    /// Whether users see it.
    pub(super) fn is_for_users(self) -> bool {
        !matches!(self, Self::Comments | Self::Guides | Self::Commits)
    }
}

/// Where texts are looked for, from the root of the repository on.
const PLACES: [&str; 12] = [
    "CHANGELOG.md",
    "README-devel.md",
    "README.md",
    "deploy",
    "docs",
    "fleet",
    "fuzz",
    "profiler",
    "profiler-common",
    "profiler-ebpf",
    "tests",
    "xtask",
];
/// Folders without texts: what is built, and what tests compare with.
const LEFT_OUT: [&str; 6] = [
    "target",
    "data",
    "seeds",
    "golden",
    "fixtures",
    "node_modules",
];
/// Where the product's Rust code is.
const PRODUCT: [&str; 4] = ["profiler/", "profiler-common/", "fleet/", "xtask/src/"];

/// Files whose strings are other programs' words, which those who read their outputs look for.
const REPRODUCED: [(&str, &str); 2] = [
    (
        "profiler/src/cli/compat/acelyzer/argparse.rs",
        "the messages of Python's argparse",
    ),
    (
        "profiler/src/cli/compat/acelyzer/convert.rs",
        "acelyzer's messages",
    ),
];

/// A file that may have texts.
#[derive(Clone, Debug)]
pub(super) struct File {
    /// From the root of the repository on.
    pub(super) name: String,
    pub(super) source: String,
}

/// All files with texts, by their names.
pub(super) fn files(root: &Path) -> Result<Vec<File>> {
    let mut found = Vec::new();
    for place in PLACES {
        collect(root, place.to_owned(), &mut found)?;
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn collect(root: &Path, name: String, found: &mut Vec<File>) -> Result<()> {
    let path = root.join(&name);
    if !path.is_dir() {
        if is_text(&name) {
            let source = fs::read(&path).with_context(|| name.clone())?;
            let source = String::from_utf8_lossy(&source).into_owned();
            found.push(File { name, source });
        }
        return Ok(());
    }
    for entry in fs::read_dir(&path).with_context(|| name.clone())? {
        let entry = entry?.file_name();
        let entry = entry.to_string_lossy();
        if !LEFT_OUT.contains(&&*entry) && !entry.starts_with('.') {
            collect(root, format!("{name}/{entry}"), found)?;
        }
    }
    Ok(())
}

fn extension(name: &str) -> &str {
    let file = name.rsplit('/').next().unwrap_or(name);
    file.rsplit_once('.').map_or("", |(_, extension)| extension)
}

/// Whether a file's name is one of those that [`read`] reads.
fn is_text(name: &str) -> bool {
    const KINDS: [&str; 18] = [
        "c", "cpp", "css", "h", "html", "j2", "js", "md", "py", "rs", "service", "sh", "toml",
        "tpl", "yaml", "yml", "json", "txt",
    ];
    let is_template = name.starts_with("deploy/");
    let kind = extension(name);
    KINDS.contains(&kind) && (is_template || !matches!(kind, "json" | "txt"))
        || is_template && name.ends_with("Containerfile")
}

/// Whether the strings of a Rust file are for users.
fn is_product(name: &str) -> bool {
    let parts = name.split('/');
    let is_test = |part: &str| {
        matches!(part, "tests" | "testkit" | "benches") || {
            let stem = part.strip_suffix(".rs").unwrap_or_default();
            stem == "tests" || stem.ends_with("_tests") || stem.starts_with("tests_")
        }
    };
    let is_reproduced = REPRODUCED.iter().any(|(file, _)| *file == name);
    PRODUCT.iter().any(|place| name.starts_with(place))
        && !parts.into_iter().any(is_test)
        && !is_reproduced
}

/// The texts of a file.
#[derive(Debug, Default)]
pub(super) struct Texts {
    pub(super) texts: Vec<(Area, Style, Text)>,
    /// Files and folders, without `.rs`, whose strings are for tests only.
    pub(super) test_modules: Vec<String>,
}

/// Reads the texts of a file.
pub(super) fn read(file: &File) -> Texts {
    let File { name, source } = file;
    let is_template = name.starts_with("deploy/");
    let is_page = name.starts_with("profiler/");
    let texts = match extension(name) {
        "rs" => return rust_file(name, source),
        "md" => comments::of_document(source, document(name)),
        "c" | "cpp" | "h" => comments::of_source(source, Language::C, false),
        "js" => comments::of_source(source, Language::JavaScript, is_page),
        "css" => comments::of_source(source, Language::Css, is_page),
        "html" if is_page => comments::of_page(source),
        _ if is_template => template(source),
        "html" | "txt" | "json" => Vec::new(),
        _ => comments::of_script(source, Area::Comments),
    };
    Texts {
        texts,
        test_modules: Vec::new(),
    }
}

fn document(name: &str) -> Area {
    match name {
        "README.md" => Area::Readme,
        "CHANGELOG.md" => Area::Changelog,
        _ if name.starts_with("docs/") => Area::Docs,
        _ if name.starts_with("deploy/") => Area::Deploy,
        _ => Area::Guides,
    }
}

fn template(source: &str) -> Vec<(Area, Style, Text)> {
    let mut texts = comments::of_script(source, Area::Deploy);
    texts.extend(comments::of_values(source, Area::Deploy));
    texts.extend(comments::of_echo(source, Area::Deploy));
    texts
}

fn rust_file(name: &str, source: &str) -> Texts {
    let found = rust::read(source, is_product(name));
    let (folder, file) = name.rsplit_once('/').unwrap_or(("", name));
    let stem = file.trim_end_matches(".rs");
    let children = match stem {
        "lib" | "main" | "mod" => folder.to_owned(),
        stem => format!("{folder}/{stem}"),
    };
    let path = |module: String| match module.strip_prefix('/') {
        Some(beside) => format!("{folder}/{beside}"),
        None => format!("{children}/{module}"),
    };
    Texts {
        texts: found.texts,
        test_modules: found.test_modules.into_iter().map(path).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_of_tests_are_not_for_users() {
        for name in [
            "profiler/src/cli/log.rs",
            "fleet/send/src/main.rs",
            "xtask/src/test.rs",
        ] {
            assert!(is_product(name), "{name}");
        }
        let others = [
            "profiler/tests/cli.rs",
            "a/src/tests.rs",
            "fleet/testkit/src/lib.rs",
        ];
        for name in others.into_iter().chain([
            "fuzz/a.rs",
            "profiler/src/power_tests.rs",
            "tests/src/lib.rs",
        ]) {
            assert!(!is_product(name), "{name}");
        }
    }

    #[test]
    fn modules_for_tests_have_paths() {
        let source = "#[cfg(test)] mod fake; #[cfg(test)] #[path = \"x.rs\"] mod y;";
        let found = |name| rust_file(name, source).test_modules;
        assert_eq!(found("a/src/lib.rs"), ["a/src/fake", "a/src/x"]);
        assert_eq!(found("a/src/b.rs"), ["a/src/b/fake", "a/src/x"]);
    }

    #[test]
    fn reproduced_files_are_there() {
        for (name, _) in REPRODUCED {
            assert!(crate::proc::root().join(name).is_file(), "{name}");
        }
    }
}
