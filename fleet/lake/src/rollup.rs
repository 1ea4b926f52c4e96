//! From the spool into the lake.
//!
//! Bodies of an hour become a file, and are removed when it is there. Before it is put, its name
//! and those of its bodies are noted in a journal beside them. A crash or a lost answer may come
//! between the two. The next roll-up then finds the note, checks whether the file is there, and
//! either removes the bodies or begins anew. So no window is lost, and none is there twice.

use crate::file::{FileWriter, Packing};
use crate::layout;
use crate::rows::Rows;
use crate::time::HOUR_NS;
use crate::{Lake, LakeError, decode};
use aiprof_fleet::spool::{Body, BodyPacking, Queue};
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _, PutMode, PutOptions, PutPayload};
use serde::{Deserialize, Serialize};
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

/// The note of what is being rolled up.
const JOURNAL: &str = ".rolling-up.json";
/// Largest note that is read.
const MAX_JOURNAL: u64 = 16 << 20;
/// Most rows and bytes of a file before equal rows are merged; what is more becomes another.
const MAX_ROWS: usize = 200_000;
const MAX_BYTES: usize = 24 << 20;
/// Most bodies of a file.
const MAX_BODIES: usize = 10_000;
/// Most time after its end that an hour's last window may take to get into the spool.
const SETTLE_NS: u64 = 120_000_000_000;

/// What a roll-up did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RolledUp {
    /// Files that were put into the lake.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their rows.
    pub rows: u64,
    /// Bodies that they were made of.
    pub bodies: u64,
    /// Bytes of these, as they were in the spool.
    pub body_bytes: u64,
    /// Samples in these.
    pub samples: u64,
    /// Bodies that cannot be read, and were removed.
    pub refused: u64,
    /// Why the last of those could not; empty: there was none.
    pub last_refusal: String,
    /// Samples in bodies that were read which could not.
    pub refused_samples: u64,
    /// Stacks of which the root was cut.
    pub cut_stacks: u64,
    /// Labels that were one too many.
    pub refused_labels: u64,
}

/// What is being rolled up.
#[derive(Debug, Serialize, Deserialize)]
struct Journal {
    /// The file.
    path: String,
    /// The bodies, by name.
    bodies: Vec<String>,
}

/// A file under construction.
struct Pending {
    rows: Rows,
    bodies: Vec<Body>,
    done: RolledUp,
}

impl Lake {
    /// Rolls up what waits of complete hours, or of complete parts of the configured length
    /// where that is less than an hour; now is `now_unix_ns`. It takes memory for one file,
    /// and pauses after each body ([`Lake::with_pauses`]).
    ///
    /// Bodies that are no profiles are removed and counted.
    ///
    /// # Errors
    /// A [`LakeError`]: bodies that are not in the lake still wait, and the next roll-up
    /// tries anew.
    pub async fn roll_up(&self, queue: &Queue, now_unix_ns: u64) -> Result<RolledUp, LakeError> {
        self.resume(queue).await?;
        let period = u64::try_from(self.roll_up.as_nanos())
            .unwrap_or(u64::MAX)
            .max(1);
        let settle = SETTLE_NS.min(period).saturating_add(self.spread(period));
        let is_complete = |body: &Body| {
            let end = (body.start_unix_ns / period)
                .saturating_add(1)
                .saturating_mul(period);
            end.saturating_add(settle) <= now_unix_ns
        };
        let waiting = queue
            .bodies()
            .map_err(LakeError::local(queue.directory()))?;
        let ready = waiting
            .into_iter()
            .map(|(body, _)| body)
            .filter(is_complete);
        let mut ready = ready.peekable();
        if ready.peek().is_some() {
            // So that readers of commits always find one. And a store that cannot be had is
            // noticed before there was work for it.
            let none = serde_json::to_vec(&layout::Commit::default());
            let none = none.unwrap_or_default().into();
            self.create(&layout::no_commit_path(), none).await?;
        }
        let file_of = |body: &Body| (body.start_unix_ns / HOUR_NS, body.start_unix_ns / period);
        let mut all = RolledUp::default();
        let mut pending = self.pending();
        let mut last = None;
        for body in ready {
            let is_full = pending.rows.len() > MAX_ROWS
                || pending.rows.bytes() > MAX_BYTES
                || pending.bodies.len() >= MAX_BODIES;
            if is_full || last.is_some_and(|last| last != file_of(&body)) {
                let full = std::mem::replace(&mut pending, self.pending());
                self.put(queue, full, &mut all).await?;
            }
            last = Some(file_of(&body));
            pending.take(queue, body);
            self.pauses.pause().await;
        }
        self.put(queue, pending, &mut all).await?;
        Ok(all)
    }

    fn pending(&self) -> Pending {
        Pending {
            rows: Rows::new(&self.host_id, &self.host),
            bodies: Vec::new(),
            done: RolledUp::default(),
        }
    }

    /// How long this host waits after others, up to a sixth of the period, so that they do
    /// not all come at once.
    fn spread(&self, period: u64) -> u64 {
        let digest = layout::digest(std::iter::once(self.host_id.clone()));
        let number = u64::from_str_radix(&digest, 16).unwrap_or(0);
        number % (period / 6).max(1)
    }

    /// Puts a file into the lake and removes its bodies.
    async fn put(
        &self,
        queue: &Queue,
        mut pending: Pending,
        all: &mut RolledUp,
    ) -> Result<(), LakeError> {
        let Some(first) = pending.bodies.first() else {
            return Ok(());
        };
        let names: Vec<String> = pending.bodies.iter().map(Body::name).collect();
        let path =
            layout::rolled_up_path(first.start_unix_ns, &self.host_id, names.iter().cloned());
        let mut done = pending.done;
        if !pending.rows.is_empty() {
            pending.rows.sort();
            let mut writer = FileWriter::new(Packing::Quick)?;
            for row in pending.rows.iter() {
                writer.push(&row)?;
            }
            drop(pending.rows);
            let written = writer.finish()?;
            done.files = 1;
            done.rows = written.rows;
            done.bytes = written.bytes.len() as u64;
            note(queue, &path, names)?;
            self.create(&path, written.bytes.into()).await?;
            self.sync(&path)?;
        }
        for body in &pending.bodies {
            queue
                .remove(body)
                .map_err(LakeError::local(queue.directory()))?;
        }
        forget(queue)?;
        all.add(done);
        Ok(())
    }

    /// Puts an object that must not be there yet. It is no error if it is there, since its name
    /// identifies its content.
    pub(crate) async fn create(&self, path: &Path, content: PutPayload) -> Result<(), LakeError> {
        let options = PutOptions {
            mode: PutMode::Create,
            ..PutOptions::default()
        };
        match self.store.put_opts(path, content, options).await {
            Ok(_) | Err(object_store::Error::AlreadyExists { .. }) => Ok(()),
            Err(error) => Err(LakeError::store(path)(error)),
        }
    }

    /// Ends what an earlier roll-up began.
    async fn resume(&self, queue: &Queue) -> Result<(), LakeError> {
        let Some(journal) = noted(queue)? else {
            return Ok(());
        };
        let path = Path::from(journal.path);
        match self.store.head(&path).await {
            Ok(_) => {
                self.sync(&path)?;
                for body in journal.bodies.iter().filter_map(|name| Body::parse(name)) {
                    queue
                        .remove(&body)
                        .map_err(LakeError::local(queue.directory()))?;
                }
            }
            Err(object_store::Error::NotFound { .. }) => {
                // It may have been there and be compacted by now.
                if self.was_replaced(&path).await? {
                    for body in journal.bodies.iter().filter_map(|name| Body::parse(name)) {
                        queue
                            .remove(&body)
                            .map_err(LakeError::local(queue.directory()))?;
                    }
                }
            }
            Err(error) => return Err(LakeError::store(&path)(error)),
        }
        forget(queue)
    }

    /// Whether a compaction has replaced a file.
    async fn was_replaced(&self, path: &Path) -> Result<bool, LakeError> {
        let mut parts = path.as_ref().split('/');
        let date = parts.next().and_then(|folder| folder.strip_prefix("date="));
        let Some(day) = date.and_then(crate::time::parse_date) else {
            return Ok(false);
        };
        let commits = self.day(day).await?.commits;
        let mut replaced = commits.iter().flat_map(|commit| &commit.replaces);
        Ok(replaced.any(|replaced| replaced == path.as_ref()))
    }
}

impl Pending {
    /// Adds a body's rows.
    fn take(&mut self, queue: &Queue, body: Body) {
        let done = &mut self.done;
        let content = match queue.read(&body) {
            Ok(content) => content,
            // The spool was full, and it went: that is counted there.
            Err(error) => {
                tracing::debug!("{}: {error}", body.name());
                return;
            }
        };
        let decoded = match body.kind {
            BodyPacking::Pprof => decode::add(&content, body.start_unix_ns, &mut self.rows),
            BodyPacking::Raw | BodyPacking::Gzip => Err(decode::BodyError::Damaged),
        };
        match decoded {
            Ok(decoded) => {
                done.bodies += 1;
                done.body_bytes += content.len() as u64;
                done.samples += decoded.samples;
                done.refused_samples += decoded.refused_samples;
                done.cut_stacks += decoded.cut_stacks;
                done.refused_labels += decoded.refused_labels;
            }
            Err(error) => {
                done.refused += 1;
                done.last_refusal = format!("{}: {error}", body.name());
            }
        }
        self.bodies.push(body);
        if self.rows.len() > MAX_ROWS {
            self.rows.sort();
        }
    }
}

impl RolledUp {
    fn add(&mut self, other: Self) {
        let Self {
            files,
            bytes,
            rows,
            bodies,
            body_bytes,
            samples,
            refused,
            last_refusal,
            refused_samples,
            cut_stacks,
            refused_labels,
        } = other;
        self.files += files;
        self.bytes += bytes;
        self.rows += rows;
        self.bodies += bodies;
        self.body_bytes += body_bytes;
        self.samples += samples;
        self.refused += refused;
        self.refused_samples += refused_samples;
        self.cut_stacks += cut_stacks;
        self.refused_labels += refused_labels;
        if !last_refusal.is_empty() {
            self.last_refusal = last_refusal;
        }
    }
}

fn journal(queue: &Queue) -> PathBuf {
    queue.directory().join(JOURNAL)
}

/// Notes what is being rolled up.
fn note(queue: &Queue, path: &Path, bodies: Vec<String>) -> Result<(), LakeError> {
    let journal = journal(queue);
    let note = Journal {
        path: path.to_string(),
        bodies,
    };
    let new = journal.with_extension("new");
    let write = || {
        let mut file = std::fs::File::create(&new)?;
        file.write_all(&serde_json::to_vec(&note).map_err(std::io::Error::other)?)?;
        file.sync_all()?;
        std::fs::rename(&new, &journal)
    };
    write().map_err(LakeError::local(&journal))
}

/// What was noted; a note that cannot be read is none.
fn noted(queue: &Queue) -> Result<Option<Journal>, LakeError> {
    let journal = journal(queue);
    let mut bytes = Vec::new();
    match std::fs::File::open(&journal) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(LakeError::local(&journal)(error)),
        Ok(file) => file
            .take(MAX_JOURNAL)
            .read_to_end(&mut bytes)
            .map_err(LakeError::local(&journal))?,
    };
    let read = serde_json::from_slice(&bytes);
    Ok(read
        .inspect_err(|error| tracing::warn!("{}: {error}", journal.display()))
        .ok())
}

/// Removes the note.
fn forget(queue: &Queue) -> Result<(), LakeError> {
    let journal = journal(queue);
    match std::fs::remove_file(&journal) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(LakeError::local(&journal)(error))
        }
        _ => Ok(()),
    }
}

/// What is done between two bodies.
#[derive(Clone, Default)]
pub(crate) struct Pauses(Option<Arc<dyn Fn() -> Pause + Send + Sync>>);

/// A pause between two bodies of a roll-up.
type Pause = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Pauses {
    pub(crate) fn new(pause: impl Fn() -> Pause + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(pause)))
    }

    /// Lets others of this thread run, and pauses if that was asked for.
    async fn pause(&self) {
        yield_now().await;
        if let Some(pause) = &self.0 {
            pause().await;
        }
    }
}

impl std::fmt::Debug for Pauses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pauses").field(&self.0.is_some()).finish()
    }
}

/// Lets others of this thread run.
async fn yield_now() {
    let mut has_yielded = false;
    std::future::poll_fn(|context| {
        if has_yielded {
            return std::task::Poll::Ready(());
        }
        has_yielded = true;
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}
