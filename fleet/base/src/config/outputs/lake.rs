//! `lake`: Parquet files that `aiprof-query`, DuckDB, ClickHouse or Spark ask.

use super::super::check::{NAME_RULE, is_name, is_path};
use super::super::duration;
use super::url::UrlParts;
use super::{Add, OutputKind, To, check_paths};
use serde::Deserialize;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) static LAKE: OutputKind = OutputKind {
    name: "lake",
    help: "Parquet files for aiprof-query, in a directory or S3",
    read: |keys| Lake::deserialize(keys).map(To::Lake),
};

/// Bounds of the time after which a lake gets a file.
const ROLL_UP: RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_secs(86_400);

/// A lake.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lake {
    /// `file:///PATH`, a path, or `s3://BUCKET[/PREFIX]`.
    pub url: String,
    /// How often what was spooled becomes a file of the lake.
    #[serde(default = "one_hour", deserialize_with = "duration")]
    pub roll_up: Duration,
    /// The endpoint of S3, if not AWS.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// The region of S3.
    #[serde(default)]
    pub region: Option<String>,
    /// Credentials for S3: a file in the form of `~/.aws/credentials`, profile `default`. Without
    /// it the environment and the machine's own role are asked.
    #[serde(default)]
    pub credentials_file: Option<PathBuf>,
    /// Certificates of who is trusted, PEM; default: those of the system.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// How long files are kept; `None`: until somebody deletes them. Only the program that compacts
    /// sets it: the agent's configuration cannot have it.
    #[serde(skip)]
    pub keep: Option<Duration>,
}

fn one_hour() -> Duration {
    Duration::from_secs(3600)
}

impl Lake {
    /// Its directory, if it is in one.
    pub fn directory(&self) -> Option<PathBuf> {
        let path = self.url.strip_prefix("file://").unwrap_or(&self.url);
        (!self.url.starts_with("s3://")).then(|| PathBuf::from(path))
    }

    /// One at this place, with the defaults.
    pub fn at(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            roll_up: one_hour(),
            endpoint: None,
            region: None,
            credentials_file: None,
            ca_file: None,
            keep: None,
        }
    }

    pub(super) fn check(&self, add: &mut Add<'_>) {
        let path = self.url.strip_prefix("file://").unwrap_or(&self.url);
        let place = self.url.strip_prefix("s3://");
        match place {
            Some(place) => {
                let bucket = place.split('/').next().unwrap_or_default();
                let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
                if !(3..=63).contains(&bucket.len()) || !bucket.bytes().all(is_letter) {
                    let why = "must be s3://BUCKET[/PREFIX], where BUCKET has 3 to 63 letters, \
                               digits, `.` and `-`";
                    add("url", why);
                } else if place.contains(char::is_control) {
                    add("url", "the prefix must not have control characters");
                }
            }
            None if !is_path(Path::new(path)) => {
                add("url", "must be file:///PATH, /PATH or s3://BUCKET[/PREFIX]");
            }
            None => {}
        }
        if !ROLL_UP.contains(&self.roll_up) {
            add("roll_up", "must be 10s to 1d");
        }
        if let Some(Err(why)) = self.endpoint.as_deref().map(UrlParts::of) {
            add("endpoint", why);
        }
        if self.region.as_ref().is_some_and(|name| !is_name(name)) {
            add("region", NAME_RULE);
        }
        let files = [
            ("credentials_file", &self.credentials_file),
            ("ca_file", &self.ca_file),
        ];
        check_paths(&files, add);
        let of_s3 = [
            ("endpoint", self.endpoint.is_some()),
            ("region", self.region.is_some()),
            ("credentials_file", self.credentials_file.is_some()),
            ("ca_file", self.ca_file.is_some()),
        ];
        for (key, _) in of_s3
            .iter()
            .filter(|(_, is_set)| *is_set && place.is_none())
        {
            add(
                key,
                "works with s3:// only: remove it, or set `url` to s3://BUCKET",
            );
        }
    }
}
