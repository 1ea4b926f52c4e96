//! `files`: a file for each window, in a directory.

use super::super::check::{PATH_RULE, is_path};
use super::{Add, Output, OutputKind, To};
use serde::Deserialize;
use std::path::PathBuf;

pub(super) static FILES: OutputKind = OutputKind {
    name: "files",
    help: "a file for each window, in a directory",
    read: |keys| Files::deserialize(keys).map(To::Files),
};

/// Files in a directory, one for each window.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Files {
    /// Where.
    pub directory: PathBuf,
    /// As what: a format that `aiprof --every` writes.
    #[serde(default = "pprof")]
    pub format: String,
    /// How many are kept; `None`: all.
    #[serde(default)]
    pub keep: Option<u32>,
}

fn pprof() -> String {
    "pprof".to_owned()
}

impl Files {
    pub(super) fn check(&self, before: &[Output], add: &mut Add<'_>) {
        if !is_path(&self.directory) {
            add("directory", PATH_RULE);
        }
        if self.keep == Some(0) {
            add("keep", "must be at least 1");
        }
        let is_same = |other: &Output| match &other.to {
            To::Files(other) => other.directory == self.directory && other.format == self.format,
            _ => false,
        };
        if before.iter().any(is_same) {
            let why = "another output writes the same files: name a different directory";
            add("directory", why);
        }
    }
}
