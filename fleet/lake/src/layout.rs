//! Names of files, and which of them count.
//!
//! ```text
//! date=2026-11-26/h14-HOST-DIGEST.parquet    rolled up: windows of one host and hour
//! date=2026-11-26/c2-DIGEST-0.parquet        compacted: generation 2, part 0
//! _commits/date=2026-11-26/00000001.json     what a compaction replaced by what
//! ```
//!
//! A rolled-up file counts from when it is there until a commit replaces it; a compacted one from
//! when a commit adds it until another replaces it. So a compaction changes what counts by one put
//! of one small object, which only one of several compactors can make. Replaced files are deleted
//! later, for readers that still use them. The name of such a file in the commit also keeps it from
//! counting again, should a host that was cut off put it there once more.

use crate::time::{self, DAY_NS, HOUR_NS};
use crate::{Lake, LakeError};
use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore as _, ObjectStoreExt as _};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Folder of commits.
pub(crate) const COMMITS: &str = "_commits";
/// Most files of a day that are listed.
const MAX_FILES: usize = 1_000_000;
/// Largest commit that is read.
const MAX_COMMIT: u64 = 64 << 20;
/// Requests at a time.
pub(crate) const AT_ONCE: usize = 8;

/// A Parquet file that counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LakeFile {
    /// Where it is in the lake.
    pub path: String,
    /// Its bytes.
    pub bytes: u64,
}

/// What kind of file a name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Generation {
    /// Rolled up, of an hour.
    RolledUp(u32),
    /// Compacted, and how many times.
    Compacted(u32),
}

impl Generation {
    /// The generation in a path; `None`: it is no file of a lake.
    pub(crate) fn of(path: &str) -> Option<Self> {
        let name = path.rsplit('/').next()?.strip_suffix(".parquet")?;
        let (head, _) = name.split_once('-')?;
        let (kind, number) = head.split_at_checked(1)?;
        let number = number.parse().ok()?;
        match kind {
            "h" if number < 24 => Some(Self::RolledUp(number)),
            "c" => Some(Self::Compacted(number)),
            _ => None,
        }
    }

    /// How often it was compacted.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::RolledUp(_) => 0,
            Self::Compacted(number) => number,
        }
    }
}

/// What a compaction did: an object of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Commit {
    /// When, nanoseconds since the Unix epoch.
    pub(crate) unix_ns: u64,
    /// Files that count from now on.
    pub(crate) adds: Vec<String>,
    /// Files that no longer do.
    pub(crate) replaces: Vec<String>,
}

/// A day of a lake.
#[derive(Clone, Debug, Default)]
pub(crate) struct Day {
    /// All files that are there, with their sizes.
    pub(crate) there: BTreeMap<String, ObjectMeta>,
    /// The commits, oldest first.
    pub(crate) commits: Vec<Commit>,
    /// The number of the next.
    pub(crate) next: u64,
}

impl Day {
    /// The files that count.
    pub(crate) fn live(&self) -> Vec<LakeFile> {
        let (adds, replaces) = (self.added(), self.replaced());
        let counts = |path: &str| match Generation::of(path) {
            None => false,
            Some(_) if replaces.contains(path) => false,
            Some(Generation::RolledUp(_)) => true,
            Some(Generation::Compacted(_)) => adds.contains(path),
        };
        let files = self.there.iter().filter(|(path, _)| counts(path));
        files
            .map(|(path, about)| LakeFile {
                path: path.clone(),
                bytes: about.size,
            })
            .collect()
    }

    /// A file that a commit adds, and none replaces, and that is not there.
    fn missing(&self) -> Option<&str> {
        let replaced = self.replaced();
        let is_missing = |path: &&str| !replaced.contains(path) && !self.there.contains_key(*path);
        self.added().into_iter().find(is_missing)
    }

    /// The files that commits add.
    pub(crate) fn added(&self) -> BTreeSet<&str> {
        let all = self.commits.iter().flat_map(|commit| &commit.adds);
        all.map(String::as_str).collect()
    }

    /// The files that commits replace.
    fn replaced(&self) -> BTreeSet<&str> {
        let all = self.commits.iter().flat_map(|commit| &commit.replaces);
        all.map(String::as_str).collect()
    }
}

/// The folder of a day.
pub(crate) fn folder(day: u32) -> String {
    format!("date={}", time::date(day))
}

/// The path of a commit.
pub(crate) fn commit_path(day: u32, number: u64) -> Path {
    Path::from(format!("{COMMITS}/{}/{number:08}.json", folder(day)))
}

/// The path of a commit of nothing.
pub(crate) fn no_commit_path() -> Path {
    Path::from(format!("{COMMITS}/none/00000000.json"))
}

/// The path of what was rolled up of an hour from these bodies.
pub(crate) fn rolled_up_path(
    hour_unix_ns: u64,
    host_id: &str,
    bodies: impl Iterator<Item = String>,
) -> Path {
    let digest = digest(std::iter::once(host_id.to_owned()).chain(bodies));
    let is_plain = |c: &char| c.is_ascii_alphanumeric();
    let host: String = host_id.chars().filter(is_plain).take(32).collect();
    let host = match host.as_str() {
        "" => "host",
        host => host,
    };
    let folder = folder(time::day_of(hour_unix_ns));
    let hour = time::hour_of(hour_unix_ns);
    Path::from(format!("{folder}/h{hour:02}-{host}-{digest}.parquet"))
}

/// The first 16 digits of the digest of some names.
pub(crate) fn digest(names: impl Iterator<Item = String>) -> String {
    let mut hash = Sha256::new();
    for name in names {
        hash.update(name.len().to_le_bytes());
        hash.update(name);
    }
    let digest = hash.finalize();
    let digits = digest.iter().take(8).map(|byte| format!("{byte:02x}"));
    digits.collect()
}

impl Lake {
    /// The days that it has files of.
    ///
    /// # Errors
    /// [`LakeError::Store`].
    pub async fn days(&self) -> Result<Vec<u32>, LakeError> {
        let listed = self.store.list_with_delimiter(None).await;
        let listed = listed.map_err(LakeError::store("cannot list the lake"))?;
        let folders = listed.common_prefixes.iter();
        let days = folders.filter_map(|path| {
            let name = path.filename()?.strip_prefix("date=")?;
            time::parse_date(name)
        });
        let days: BTreeSet<u32> = days.collect();
        Ok(days.into_iter().collect())
    }

    /// The files that count and may have windows that began in a time, nanoseconds since the
    /// Unix epoch. They stay for some minutes after another compaction: who takes longer and
    /// misses one asks anew.
    ///
    /// # Errors
    /// [`LakeError::Store`], and [`LakeError::Schema`] of a commit that is none, and of a file
    /// that must be there and is not, or is empty.
    pub async fn files(&self, unix_ns: Range<u64>) -> Result<Vec<LakeFile>, LakeError> {
        let days = self.days().await?;
        let wanted = days.into_iter().filter(|day| {
            let from = u64::from(*day).saturating_mul(DAY_NS);
            from < unix_ns.end && from.saturating_add(DAY_NS) > unix_ns.start
        });
        let all: Vec<(u32, Day)> = futures_util::stream::iter(wanted)
            .map(|day| async move { Ok::<_, LakeError>((day, self.day(day).await?)) })
            .buffered(AT_ONCE)
            .try_collect()
            .await?;
        let mut files = Vec::new();
        for (day, mut found) in all {
            if found.missing().is_some() {
                // It may have been replaced since the commits were read, and be deleted by now.
                found = self.day(day).await?;
            }
            let wrong = |what: &str, why: &str| LakeError::Schema {
                what: what.to_owned(),
                why: why.to_owned(),
            };
            if let Some(path) = found.missing() {
                return Err(wrong(path, "a compaction wrote it, but it is missing"));
            }
            let from = u64::from(day).saturating_mul(DAY_NS);
            let live = found.live();
            if let Some(file) = live.iter().find(|file| file.bytes == 0) {
                return Err(wrong(&file.path, "it is empty"));
            }
            files.extend(live.into_iter().filter(|file| {
                let Some(Generation::RolledUp(hour)) = Generation::of(&file.path) else {
                    return true;
                };
                let from = from.saturating_add(u64::from(hour) * HOUR_NS);
                from < unix_ns.end && from.saturating_add(HOUR_NS) > unix_ns.start
            }));
        }
        Ok(files)
    }

    /// What is there of a day.
    pub(crate) async fn day(&self, day: u32) -> Result<Day, LakeError> {
        let folder = folder(day);
        // Commits first. A commit may be made meanwhile. What it replaces is still listed, because
        // that is deleted minutes later, and what it adds does not count without it: that is the
        // state before it.
        let commits = Path::from(format!("{COMMITS}/{folder}"));
        let listed: Vec<ObjectMeta> = self
            .store
            .list(Some(&commits))
            .try_collect()
            .await
            .map_err(LakeError::store(&commits))?;
        let mut numbers: Vec<u64> = listed
            .iter()
            .filter_map(|about| {
                let name = about.location.filename()?.strip_suffix(".json")?;
                name.parse().ok().filter(|_| about.size <= MAX_COMMIT)
            })
            .collect();
        numbers.sort_unstable();
        let mut all = Day {
            next: numbers.last().map_or(1, |last| last + 1),
            ..Day::default()
        };
        all.commits = futures_util::stream::iter(numbers)
            .map(|number| self.commit(day, number))
            .buffered(AT_ONCE)
            .try_collect()
            .await?;
        let path = Path::from(folder);
        let mut files = self.store.list(Some(&path));
        while let Some(about) = files.next().await {
            let about = about.map_err(LakeError::store(&path))?;
            if all.there.len() == MAX_FILES {
                tracing::warn!("{path}: more than {MAX_FILES} files; the rest is ignored");
                break;
            }
            all.there.insert(about.location.to_string(), about);
        }
        Ok(all)
    }

    /// An object, whole.
    pub(crate) async fn get(&self, path: &Path) -> Result<bytes::Bytes, LakeError> {
        let got = self.store.get(path).await;
        let got = got.map_err(LakeError::store(path))?;
        got.bytes().await.map_err(LakeError::store(path))
    }

    async fn commit(&self, day: u32, number: u64) -> Result<Commit, LakeError> {
        let path = commit_path(day, number);
        let bytes = self.get(&path).await?;
        serde_json::from_slice(&bytes).map_err(|error| LakeError::Schema {
            what: path.to_string(),
            why: error.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_what_files_are() {
        let path = rolled_up_path(14 * HOUR_NS, "ab/..é1", ["x".to_owned()].into_iter());
        assert!(
            path.as_ref().starts_with("date=1970-01-01/h14-ab1-"),
            "{path}"
        );
        assert_eq!(
            Generation::of(path.as_ref()),
            Some(Generation::RolledUp(14))
        );
        let other = rolled_up_path(14 * HOUR_NS, "ab/..é1", ["y".to_owned()].into_iter());
        assert_ne!(path, other);
        assert_eq!(
            Generation::of("date=1970-01-01/c3-00-0.parquet"),
            Some(Generation::Compacted(3))
        );
        for other in [
            "",
            "x.parquet",
            "h25-a.parquet",
            "h1.parquet",
            "é-1.parquet",
            "c1-a.json",
        ] {
            assert_eq!(Generation::of(other), None, "{other}");
        }
    }
}
