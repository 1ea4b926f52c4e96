//! A lake of profiles: Parquet files in a directory or in S3, that `aiprof-query`, DuckDB,
//! ClickHouse and Spark read.
//!
//! `aiprof-send` rolls the windows that wait in the spool up into a file per hour
//! ([`Lake::roll_up`]); [`Lake::compact`] merges small files, and [`Lake::files`] lists what
//! counts. The format, and why it is so, is in docs/lake.md.
//!
//! - [`decode`]: a window's pprof, of which nothing is trusted, as [`rows`];
//! - [`schema`], [`mod@file`]: rows as columns, and columns as a Parquet file;
//! - [`layout`]: names of files, and which of them count;
//! - [`store`]: the directory or the bucket;
//! - `rollup`, `compact`: what is done with all of these.

mod answers;
mod compact;
pub mod decode;
pub mod file;
pub mod layout;
mod rollup;
pub mod rows;
pub mod schema;
pub mod store;
pub mod time;

pub use compact::{CompactOptions, Compacted};
pub use layout::LakeFile;
use rollup::Pauses;
pub use rollup::RolledUp;

use aiprof_fleet::config;
use futures_util::TryStreamExt as _;
use object_store::ObjectStore;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What went wrong with a lake. Nothing secret is in it.
#[derive(Debug, thiserror::Error)]
pub enum LakeError {
    /// The store refused, or cannot be reached.
    #[error("{what}: {cause}")]
    Store {
        /// What was tried.
        what: String,
        /// The cause.
        cause: object_store::Error,
    },
    /// A file on this machine: the spool, or credentials.
    #[error("{path}: {cause}")]
    Local {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: std::io::Error,
    },
    /// A Parquet file could not be written or read.
    #[error("{what}: {cause}")]
    Parquet {
        /// Which.
        what: String,
        /// The cause.
        cause: parquet::errors::ParquetError,
    },
    /// Columns are not those of a lake.
    #[error("{what}: not a valid lake file: {why}")]
    Schema {
        /// Which file.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// The configuration cannot be followed.
    #[error("{0}")]
    Config(String),
}

impl LakeError {
    /// An error of the store, while this was tried.
    pub(crate) fn store(what: impl ToString) -> impl FnOnce(object_store::Error) -> Self {
        let what = what.to_string();
        move |cause| Self::Store { what, cause }
    }

    /// An error of a Parquet file.
    pub(crate) fn parquet(
        what: impl ToString,
    ) -> impl FnOnce(parquet::errors::ParquetError) -> Self {
        let what = what.to_string();
        move |cause| Self::Parquet { what, cause }
    }

    /// An error of a local file.
    pub(crate) fn local(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |cause| Self::Local { path, cause }
    }
}

/// A lake that is open. Opening is cheap, without any request: a program that opens it anew for
/// each use follows changes of the credentials. Connections belong to the tokio runtime that it is
/// used in first.
#[derive(Clone, Debug)]
pub struct Lake {
    store: Arc<dyn ObjectStore>,
    /// Where it is, if it is a directory.
    directory: Option<PathBuf>,
    host: String,
    host_id: String,
    roll_up: Duration,
    keep: Option<Duration>,
    pauses: Pauses,
}

impl Lake {
    /// A lake as the configuration has it, for a host of this id and name. The directory of a
    /// local one is made.
    ///
    /// # Errors
    /// [`LakeError::Config`] and [`LakeError::Local`]: the URL, credentials or certificates.
    pub fn open(config: &config::Lake, host_id: &str, host: &str) -> Result<Self, LakeError> {
        Self::open_with(config, host_id, host, &store::reader(config))
    }

    /// The same, where somebody else reads the files of credentials and certificates: of at
    /// most a mebibyte each.
    ///
    /// # Errors
    /// As [`Lake::open`].
    pub fn open_with(
        config: &config::Lake,
        host_id: &str,
        host: &str,
        read: &store::Read<'_>,
    ) -> Result<Self, LakeError> {
        let (store, directory) = store::open(config, store::Access::Write, read)?;
        Ok(Self {
            store,
            directory,
            host: host.to_owned(),
            host_id: host_id.to_owned(),
            roll_up: config.roll_up,
            keep: config.keep,
            pauses: Pauses::default(),
        })
    }

    /// Checks whether [`Lake::open_with`] opens a lake and, where it is a directory, whether it can
    /// be written to. Sends no request, and makes nothing.
    ///
    /// # Errors
    /// As [`Lake::open`].
    pub fn check_config(config: &config::Lake, read: &store::Read<'_>) -> Result<(), LakeError> {
        store::check(config, read)
    }

    /// Asks the store of a lake for something: whether it is there, and knows who asks.
    ///
    /// # Errors
    /// [`LakeError::Store`]: what it says.
    pub async fn reach(&self) -> Result<(), LakeError> {
        let first = self.store.list(None).try_next().await;
        first
            .map(drop)
            .map_err(LakeError::store("cannot list the lake"))
    }

    /// A lake to read. The directory of a local one must be there.
    ///
    /// # Errors
    /// As [`Lake::open`].
    pub fn open_to_read(config: &config::Lake) -> Result<Self, LakeError> {
        let (store, directory) = store::open(config, store::Access::Read, &store::reader(config))?;
        Ok(Self {
            store,
            directory,
            host: String::new(),
            host_id: String::new(),
            roll_up: config.roll_up,
            keep: config.keep,
            pauses: Pauses::default(),
        })
    }

    /// Has a roll-up pause so after each body: it may not use all of a CPU.
    #[must_use]
    pub fn with_pauses<P: Future<Output = ()> + Send + 'static>(
        mut self,
        pause: impl Fn() -> P + Send + Sync + 'static,
    ) -> Self {
        self.pauses = Pauses::new(move || Box::pin(pause()));
        self
    }

    /// The store, in which the lake is at the root.
    pub fn store(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.store)
    }

    /// Makes sure that a file which was just written outlives a power cut, where that is this
    /// machine's business.
    pub(crate) fn sync(&self, path: &object_store::path::Path) -> Result<(), LakeError> {
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        let file = directory.join(path.as_ref());
        let open = |path: &std::path::Path| std::fs::File::open(path)?.sync_all();
        let parent = file.parent().unwrap_or(directory);
        open(&file)
            .and_then(|()| open(parent))
            .map_err(LakeError::local(&file))
    }
}
