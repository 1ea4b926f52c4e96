//! The kinds of places to which profiles go: one row each, and one file.
//!
//! Whatever lists them (the help of `aiprof agent`, errors) is made from [`OUTPUTS`], and
//! docs/always-on.md is compared with it. A row reads an output's own keys, and makes them one of
//! the few ways to deliver ([`To`]): programs look at these and not at kinds. So an output whose
//! server takes bodies of a form that exists ([`BodyForm`]) needs no more than its row and its file.

mod files;
mod lake;
mod otlp;
mod parca;
mod pyroscope;
mod server;
mod url;

use super::Faults;
use super::check::{NAME_RULE, PATH_RULE, is_name, is_path};
use serde::Deserialize;
use serde::de::{self, Deserializer};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub use files::Files;
pub use lake::Lake;
pub use server::{BodyForm, Http, ServerApi, ServerTarget, Transport, UrlForm};

/// All kinds of outputs, in the order in which help texts list them.
pub static OUTPUTS: &[&OutputKind] = &[
    &files::FILES,
    &otlp::OTLP,
    &pyroscope::PYROSCOPE,
    &parca::PARCA,
    &lake::LAKE,
];

/// A kind of output: a row of [`OUTPUTS`].
pub struct OutputKind {
    /// What `type` is in the configuration; also the type of a spool's bodies.
    pub name: &'static str,
    /// Its purpose, as a line of a help text.
    pub help: &'static str,
    /// Makes an output of its keys, without `name` and `type`.
    read: fn(toml::Table) -> Result<To, toml::de::Error>,
}

impl PartialEq for OutputKind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl fmt::Debug for OutputKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// One place where profiles go.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Its name in logs, metrics and the spool; default: its type.
    pub name: String,
    /// Its type.
    pub kind: &'static OutputKind,
    /// How profiles get there.
    pub to: To,
}

/// How profiles get to an output.
#[derive(Clone, Debug, PartialEq)]
pub enum To {
    /// The agent writes a file for each window.
    Files(Files),
    /// `aiprof-send` sends each body to a server.
    Server(ServerTarget),
    /// `aiprof-send` makes files of a lake.
    Lake(Lake),
}

impl To {
    /// Whether `aiprof-send` delivers it.
    pub fn is_sent(&self) -> bool {
        !matches!(self, Self::Files(_))
    }

    /// Where profiles go, for people: a directory or a URL.
    pub fn place(&self) -> String {
        match self {
            Self::Files(files) => files.directory.display().to_string(),
            Self::Server(server) => server.http.url.clone(),
            Self::Lake(lake) => lake.url.clone(),
        }
    }
}

impl Output {
    /// From its keys in the configuration.
    fn of_keys(mut keys: toml::Table) -> Result<Self, String> {
        let mut word = |key: &str| match keys.remove(key) {
            None => Ok(None),
            Some(toml::Value::String(word)) => Ok(Some(word)),
            Some(_) => Err(format!("`{key}` must be a text in quotes")),
        };
        let (name, kind) = (word("name")?, word("type")?);
        let Some(kind) = kind else {
            return Err(format!("missing field `type`: write {}", types()));
        };
        let kind = OUTPUTS.iter().find(|known| known.name == kind);
        let Some(kind) = kind else {
            return Err(format!("`type` must be {}", types()));
        };
        let to = (kind.read)(keys).map_err(|error| error.to_string().trim_end().to_owned())?;
        let name = name.filter(|name| !name.is_empty());
        Ok(Self {
            name: name.unwrap_or_else(|| kind.name.to_owned()),
            kind,
            to,
        })
    }

    /// Finds what is wrong with values. `before`: outputs that stand before it in the file.
    pub(super) fn check(&self, before: &[Self], window: Duration, faults: &mut Faults) {
        let key = |part: &str| format!("output.{}.{part}", self.name);
        if !is_name(&self.name) {
            faults.add(key("name"), NAME_RULE);
        }
        if before.iter().any(|other| other.name == self.name) {
            let why = "two outputs have this name: give each a different `name`";
            faults.add(key("name"), why);
        }
        let mut add = |part: &str, why: &str| faults.add(key(part), why);
        match &self.to {
            To::Files(files) => files.check(before, &mut add),
            To::Server(server) => server.check(window, &mut add),
            To::Lake(lake) => lake.check(&mut add),
        }
    }
}

impl<'de> Deserialize<'de> for Output {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let keys = toml::Table::deserialize(from)?;
        Self::of_keys(keys).map_err(de::Error::custom)
    }
}

/// The words for all kinds.
fn types() -> String {
    let quoted = OUTPUTS.iter().map(|kind| format!("{:?}", kind.name));
    quoted.collect::<Vec<_>>().join(" or ")
}

/// Takes a key of an output, and what is wrong with it.
type Add<'a> = dyn FnMut(&str, &str) + 'a;

/// Finds paths that do not mean the same in each directory.
fn check_paths(files: &[(&str, &Option<PathBuf>)], add: &mut Add<'_>) {
    for (key, file) in files {
        if file.as_ref().is_some_and(|file| !is_path(file)) {
            add(key, PATH_RULE);
        }
    }
}
