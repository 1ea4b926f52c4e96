//! Small files of a day become few.
//!
//! Hosts put a file each hour; a day of a thousand hosts is 24,000 of them. A compaction
//! merges files, which are sorted, into files that are sorted, and commits what replaces what
//! (see [`crate::layout`]). Several compactors may run: a commit has a number, and only one
//! of them can put it. The others look again whether what they merged still counts.

use crate::file::{FileWriter, Packing};
use crate::layout::{self, AT_ONCE, Commit, Day, Generation, LakeFile};
use crate::schema::{self, LABELS, NUMBERS, Row, TextField};
use crate::time::{DAY_NS, HOUR_NS, NS_PER_US};
use crate::{Lake, LakeError};
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int32Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{Array as _, RecordBatch};
use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _, PutMode, PutOptions};
use parquet::arrow::arrow_reader::{
    ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use std::cmp::{Ordering, Reverse};
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeSet, BinaryHeap};
use std::time::{Duration, Instant};

/// Rows of a file that are unpacked at a time.
const BATCH_ROWS: usize = 1024;
/// How often a commit is tried where others commit, too.
const TRIES: usize = 16;
/// How often what was merged is made to count.
const COMMIT_EVERY: Duration = Duration::from_secs(60);
/// Generation from which on a file is not merged any more: each has more files than the
/// last by a factor, so that only a mistake gets there.
const MAX_GENERATION: u32 = 12;

/// What is compacted, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactOptions {
    /// Fewest files that are merged while their day, or their hour, goes on.
    pub min_files: usize,
    /// Most files that are merged at once. Each takes up to some MiB of memory.
    pub max_files: usize,
    /// Most bytes of files that are merged at once: they are in memory.
    pub max_bytes: u64,
    /// Size from which on a file is not merged any more, and another is begun.
    pub file_bytes: u64,
    /// How long files are left that were replaced: for readers that are at them.
    pub grace: Duration,
}

impl Default for CompactOptions {
    fn default() -> Self {
        Self {
            min_files: 16,
            max_files: 64,
            max_bytes: 64 << 20,
            file_bytes: 32 << 20,
            grace: Duration::from_secs(600),
        }
    }
}

/// What a compaction did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Files that were merged.
    pub merged: u64,
    /// Bytes of these.
    pub merged_bytes: u64,
    /// Files that came of it.
    pub files: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Rows in these.
    pub rows: u64,
    /// Files that could not be read, and are left as they are.
    pub unreadable: u64,
    /// Which the last of those was, and why; empty: there was none.
    pub last_unreadable: String,
    /// Merges that another compactor had done.
    pub lost_races: u64,
    /// Files that were deleted since they had been replaced.
    pub swept: u64,
    /// Days that were deleted since they were older than is kept.
    pub expired_days: u64,
}

/// Files that were merged into others.
struct Merge {
    from: Vec<String>,
    to: Vec<String>,
}

/// The time, from what it was when a compaction began.
struct CompactionClock {
    began_unix_ns: u64,
    began: Instant,
}

impl CompactionClock {
    fn unix_ns(&self) -> u64 {
        let passed = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.began_unix_ns.saturating_add(passed)
    }
}

impl Lake {
    /// Merges small files, deletes those that were replaced some time ago, and days that are older
    /// than the lake keeps; now is `now_unix_ns`. Once a day is over, all its files are merged;
    /// before that, those of hours that are over and have enough files.
    ///
    /// # Errors
    /// A [`LakeError`] of the store. What was committed is done; the rest is done next time.
    pub async fn compact(
        &self,
        options: &CompactOptions,
        now_unix_ns: u64,
    ) -> Result<Compacted, LakeError> {
        let mut done = Compacted::default();
        let clock = CompactionClock {
            began_unix_ns: now_unix_ns,
            began: Instant::now(),
        };
        for day in self.days().await? {
            let end = u64::from(day).saturating_add(1).saturating_mul(DAY_NS);
            let keep = self
                .keep
                .map(|keep| u64::try_from(keep.as_nanos()).unwrap_or(u64::MAX));
            if keep.is_some_and(|keep| end.saturating_add(keep) < now_unix_ns) {
                self.expire(day).await?;
                done.expired_days += 1;
                continue;
            }
            self.compact_day(day, options, &clock, &mut done).await?;
        }
        Ok(done)
    }

    /// Reads all of a file, as a compaction does before it merges it.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub async fn check(&self, file: &LakeFile) -> Result<(), LakeError> {
        let content = self.get(&Path::from(file.path.as_str())).await?;
        SortedFile::open(&file.path, &content)?.check()
    }

    async fn compact_day(
        &self,
        day: u32,
        options: &CompactOptions,
        clock: &CompactionClock,
        done: &mut Compacted,
    ) -> Result<(), LakeError> {
        let now_unix_ns = clock.began_unix_ns;
        let mut unreadable = BTreeSet::new();
        loop {
            let found = self.day(day).await?;
            let live = found.live();
            let plan = plan(&live, day, options, now_unix_ns, &unreadable);
            if plan.is_empty() {
                return self.sweep(&found, options, now_unix_ns, done).await;
            }
            let (mut merges, mut committed) = (Vec::new(), Instant::now());
            for inputs in plan {
                let merged = self.merge(day, &inputs, options, done, &mut unreadable);
                merges.extend(merged.await?);
                // Who is ended before all is merged has not worked for nothing.
                if committed.elapsed() >= COMMIT_EVERY && !merges.is_empty() {
                    let merges = std::mem::take(&mut merges);
                    self.commit_merges(day, merges, clock, done).await?;
                    committed = Instant::now();
                }
            }
            if !merges.is_empty() {
                self.commit_merges(day, merges, clock, done).await?;
            }
        }
    }

    /// Merges files; `None`: fewer than two of them can be read.
    async fn merge(
        &self,
        day: u32,
        inputs: &[LakeFile],
        options: &CompactOptions,
        done: &mut Compacted,
        unreadable: &mut BTreeSet<String>,
    ) -> Result<Option<Merge>, LakeError> {
        let fetched: Vec<(&LakeFile, bytes::Bytes)> = futures_util::stream::iter(inputs)
            .map(|file| async move {
                let bytes = self.get(&Path::from(file.path.as_str())).await?;
                Ok::<_, LakeError>((file, bytes))
            })
            .buffered(AT_ONCE)
            .try_collect()
            .await?;
        let mut sources = Vec::new();
        let mut merge = Merge {
            from: Vec::new(),
            to: Vec::new(),
        };
        let mut bytes = 0;
        for (file, content) in fetched {
            // All of it is looked at before any of it is written: what is found damaged
            // later would be half merged.
            match SortedFile::open(&file.path, &content).and_then(|source| source.check()) {
                Ok(()) => {
                    sources.extend(SortedFile::open(&file.path, &content)?.start()?);
                    merge.from.push(file.path.clone());
                    bytes += file.bytes;
                }
                Err(error) => {
                    tracing::warn!("{error}");
                    done.unreadable += 1;
                    done.last_unreadable = error.to_string();
                    unreadable.insert(file.path.clone());
                }
            }
        }
        if merge.from.len() < 2 {
            return Ok(None);
        }
        let from = merge.from.iter().filter_map(|path| Generation::of(path));
        let generation = from.map(Generation::number).max().unwrap_or(0) + 1;
        // Another version may cut its parts elsewhere: they are other files.
        let version = std::iter::once(env!("CARGO_PKG_VERSION").to_owned());
        let digest = layout::digest(merge.from.iter().cloned().chain(version));
        let mut part = 0;
        let mut written = Vec::new();
        let mut writer = FileWriter::new(Packing::Small)?;
        let mut heap: BinaryHeap<Reverse<SortedFile>> = sources.into_iter().map(Reverse).collect();
        let mut since_look = 0_u32;
        while let Some(mut first) = heap.peek_mut() {
            if let Some(row) = first.0.row() {
                writer.push(&row)?;
            }
            if !first.0.advance()? {
                PeekMut::pop(first);
            }
            since_look += 1;
            if since_look.is_multiple_of(4096) && writer.bytes() >= options.file_bytes {
                let full = std::mem::replace(&mut writer, FileWriter::new(Packing::Small)?);
                written.push((part, full.finish()?));
                part += 1;
                self.put_parts(day, generation, &digest, &mut written, &mut merge, done)
                    .await?;
            }
        }
        if writer.rows() > 0 || part == 0 {
            written.push((part, writer.finish()?));
        }
        self.put_parts(day, generation, &digest, &mut written, &mut merge, done)
            .await?;
        done.merged += merge.from.len() as u64;
        done.merged_bytes += bytes;
        Ok(Some(merge))
    }

    async fn put_parts(
        &self,
        day: u32,
        generation: u32,
        digest: &str,
        written: &mut Vec<(u32, crate::file::Written)>,
        merge: &mut Merge,
        done: &mut Compacted,
    ) -> Result<(), LakeError> {
        for (part, file) in written.drain(..) {
            let folder = layout::folder(day);
            let path = Path::from(format!("{folder}/c{generation}-{digest}-{part}.parquet"));
            done.files += 1;
            done.bytes += file.bytes.len() as u64;
            done.rows += file.rows;
            self.create(&path, file.bytes.into()).await?;
            self.sync(&path)?;
            merge.to.push(path.to_string());
        }
        Ok(())
    }

    /// Makes merges count. Those of which another compactor has replaced a file are dropped;
    /// what they wrote is swept later.
    async fn commit_merges(
        &self,
        day: u32,
        mut merges: Vec<Merge>,
        clock: &CompactionClock,
        done: &mut Compacted,
    ) -> Result<(), LakeError> {
        for _ in 0..TRIES {
            let found = self.day(day).await?;
            let live: BTreeSet<String> = found.live().into_iter().map(|file| file.path).collect();
            let before = merges.len();
            merges.retain(|merge| merge.from.iter().all(|path| live.contains(path)));
            done.lost_races += (before - merges.len()) as u64;
            if merges.is_empty() {
                return Ok(());
            }
            let commit = Commit {
                unix_ns: clock.unix_ns(),
                adds: merges.iter().flat_map(|merge| merge.to.clone()).collect(),
                replaces: merges.iter().flat_map(|merge| merge.from.clone()).collect(),
            };
            let path = layout::commit_path(day, found.next);
            let json = serde_json::to_vec(&commit).map_err(|error| LakeError::Schema {
                what: path.to_string(),
                why: error.to_string(),
            })?;
            let options = PutOptions {
                mode: PutMode::Create,
                ..PutOptions::default()
            };
            match self.store.put_opts(&path, json.into(), options).await {
                Ok(_) => return self.sync(&path),
                Err(object_store::Error::AlreadyExists { .. }) => continue,
                Err(error) => return Err(LakeError::store(&path)(error)),
            }
        }
        done.lost_races += merges.len() as u64;
        Ok(())
    }

    /// Deletes what was replaced long enough ago, and what compactors left that did not come
    /// to commit.
    async fn sweep(
        &self,
        found: &Day,
        options: &CompactOptions,
        now_unix_ns: u64,
        done: &mut Compacted,
    ) -> Result<(), LakeError> {
        let grace = u64::try_from(options.grace.as_nanos()).unwrap_or(u64::MAX);
        let is_old = |commit: &&Commit| commit.unix_ns.saturating_add(grace) <= now_unix_ns;
        let replaced = found.commits.iter().filter(is_old);
        let mut gone: BTreeSet<&str> = replaced
            .flat_map(|commit| &commit.replaces)
            .map(String::as_str)
            .filter(|path| found.there.contains_key(*path))
            .collect();
        let added = found.added();
        for (path, about) in &found.there {
            let is_compacted = matches!(Generation::of(path), Some(Generation::Compacted(_)));
            let written = u64::try_from(about.last_modified.timestamp_nanos_opt().unwrap_or(0));
            let age = now_unix_ns.saturating_sub(written.unwrap_or(0));
            if is_compacted && !added.contains(path.as_str()) && age > grace.max(DAY_NS) {
                gone.insert(path);
            }
        }
        for path in gone {
            self.delete(&Path::from(path)).await?;
            done.swept += 1;
        }
        Ok(())
    }

    /// Deletes a day.
    async fn expire(&self, day: u32) -> Result<(), LakeError> {
        let folder = layout::folder(day);
        // Files before commits: without a commit what it replaced would count again.
        for prefix in [folder.clone(), format!("{}/{folder}", layout::COMMITS)] {
            let prefix = Path::from(prefix);
            let mut listed = self.store.list(Some(&prefix));
            while let Some(about) = listed.next().await {
                let about = about.map_err(LakeError::store(&prefix))?;
                self.delete(&about.location).await?;
            }
        }
        if let Some(directory) = &self.directory {
            for folder in [
                directory.join(&folder),
                directory.join(layout::COMMITS).join(&folder),
            ] {
                // It is not empty where somebody keeps more in it.
                let _ = std::fs::remove_dir(folder);
            }
        }
        Ok(())
    }

    async fn delete(&self, path: &Path) -> Result<(), LakeError> {
        match self.store.delete(path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(LakeError::store(path)(error)),
        }
    }
}

/// Which files to merge with each other, none of them twice.
fn plan(
    live: &[LakeFile],
    day: u32,
    options: &CompactOptions,
    now_unix_ns: u64,
    unreadable: &BTreeSet<String>,
) -> Vec<Vec<LakeFile>> {
    let begin = u64::from(day).saturating_mul(DAY_NS);
    // Hosts roll up within some minutes after an hour.
    let is_over = |end: u64| end.saturating_add(HOUR_NS) <= now_unix_ns;
    let day_is_over = is_over(begin.saturating_add(DAY_NS));
    let small = live.iter().filter(|file| {
        let generation = Generation::of(&file.path).map_or(0, Generation::number);
        file.bytes < options.file_bytes
            && generation < MAX_GENERATION
            && !unreadable.contains(&file.path)
    });
    let of_hour = |file: &LakeFile| match Generation::of(&file.path) {
        Some(Generation::RolledUp(hour)) => Some(hour),
        _ => None,
    };
    let wanted: Vec<&LakeFile> = match day_is_over {
        true => small.collect(),
        false => small
            .filter(|file| {
                let end = |hour| begin.saturating_add(u64::from(hour + 1) * HOUR_NS);
                of_hour(file).is_some_and(|hour| is_over(end(hour)))
            })
            .collect(),
    };
    let mut groups: Vec<Vec<LakeFile>> = vec![Vec::new()];
    let mut bytes = 0;
    for file in wanted {
        let is_full = groups.last().is_some_and(|group| {
            group.len() >= options.max_files.max(2) || bytes + file.bytes > options.max_bytes
        });
        if is_full {
            groups.push(Vec::new());
            bytes = 0;
        }
        bytes += file.bytes;
        if let Some(group) = groups.last_mut() {
            group.push(file.clone());
        }
    }
    let least = match day_is_over {
        true => 2,
        false => options.min_files.max(2),
    };
    groups.retain(|group| group.len() >= least);
    groups
}

/// A sorted file that is merged, at a row of it.
struct SortedFile {
    what: String,
    reader: ParquetRecordBatchReader,
    batch: Columns,
    at: usize,
}

/// Columns of some rows.
#[derive(Default)]
struct Columns {
    rows: usize,
    numbers: [Vec<i64>; NUMBERS.len()],
    /// For each column, its texts, and for each row the index of its text.
    texts: Vec<(arrow_array::StringArray, Vec<i32>)>,
    labels: Vec<String>,
}

impl SortedFile {
    fn open(what: &str, content: &bytes::Bytes) -> Result<Self, LakeError> {
        let options = ArrowReaderOptions::new().with_schema(schema::schema());
        let builder =
            ParquetRecordBatchReaderBuilder::try_new_with_options(content.clone(), options)
                .map_err(LakeError::parquet(what))?;
        let reader = builder
            .with_batch_size(BATCH_ROWS)
            .build()
            .map_err(LakeError::parquet(what))?;
        Ok(Self {
            what: what.to_owned(),
            reader,
            batch: Columns::default(),
            at: 0,
        })
    }

    /// Reads all of it.
    fn check(mut self) -> Result<(), LakeError> {
        while self.load()? {}
        Ok(())
    }

    /// At its first row; `None`: it has none.
    fn start(mut self) -> Result<Option<Self>, LakeError> {
        Ok(self.load()?.then_some(self))
    }

    /// The next rows; `false`: there are none.
    fn load(&mut self) -> Result<bool, LakeError> {
        loop {
            let Some(batch) = self.reader.next() else {
                return Ok(false);
            };
            let wrong = |why: String| LakeError::Schema {
                what: self.what.clone(),
                why,
            };
            let batch = batch.map_err(|error| wrong(error.to_string()))?;
            self.batch = Columns::of(&batch).map_err(|why| wrong(why.to_owned()))?;
            self.at = 0;
            if self.batch.rows > 0 {
                return Ok(true);
            }
        }
    }

    /// To the next row; `false`: there is none.
    fn advance(&mut self) -> Result<bool, LakeError> {
        self.at += 1;
        match self.at < self.batch.rows {
            true => Ok(true),
            false => self.load(),
        }
    }

    fn row(&self) -> Option<Row<'_>> {
        let number = |column: usize| self.batch.numbers.get(column)?.get(self.at).copied();
        let mut texts = [""; TextField::COUNT];
        for (slot, (values, keys)) in texts.iter_mut().zip(&self.batch.texts) {
            let key = usize::try_from(*keys.get(self.at)?).ok()?;
            *slot = (key < values.len()).then(|| values.value(key))?;
        }
        Some(Row {
            time: number(0)?,
            duration: number(1)?,
            value: number(2)?,
            count: number(3)?,
            texts,
            labels: self.batch.labels.get(self.at)?,
        })
    }
}

impl Columns {
    fn of(batch: &RecordBatch) -> Result<Self, &'static str> {
        let mut columns = Self {
            rows: batch.num_rows(),
            ..Self::default()
        };
        for (slot, name) in columns.numbers.iter_mut().zip(NUMBERS) {
            let column = batch.column_by_name(name).ok_or("a column is missing")?;
            if column.null_count() > 0 {
                return Err("a number is null");
            }
            let as_time = column.as_primitive_opt::<TimestampMicrosecondType>();
            let as_number = column.as_primitive_opt::<Int64Type>();
            *slot = match (as_time, as_number) {
                (Some(times), _) => {
                    let times = times.values().iter();
                    times.map(|us| us.saturating_mul(NS_PER_US)).collect()
                }
                (None, Some(numbers)) => numbers.values().to_vec(),
                (None, None) => return Err("a number column has the wrong type"),
            };
        }
        for text in TextField::ALL {
            let column = batch
                .column_by_name(text.name())
                .ok_or("a column is missing")?;
            if column.null_count() > 0 {
                return Err("a text column contains a null");
            }
            let column = column
                .as_dictionary_opt::<Int32Type>()
                .ok_or("a text column has the wrong type")?;
            let values = column.values().as_string_opt::<i32>();
            let values = values.ok_or("a text column has the wrong type")?.clone();
            columns
                .texts
                .push((values, column.keys().values().to_vec()));
        }
        let labels = batch.column_by_name(LABELS).ok_or("a column is missing")?;
        let labels = labels.as_map_opt().ok_or("labels are not a map")?;
        let keys = labels.keys().as_string_opt::<i32>();
        let values = labels.values().as_string_opt::<i32>();
        let (Some(keys), Some(values)) = (keys, values) else {
            return Err("labels are not text");
        };
        for row in 0..labels.len() {
            let offset = |at: usize| labels.value_offsets().get(at).copied().unwrap_or(0);
            let range = usize::try_from(offset(row)).unwrap_or(0)
                ..usize::try_from(offset(row + 1)).unwrap_or(0);
            let mut encoded = String::new();
            for at in range.filter(|at| *at < keys.len() && *at < values.len()) {
                for part in [keys.value(at), values.value(at)] {
                    encoded.push_str(part);
                    encoded.push('\0');
                }
            }
            columns.labels.push(encoded);
        }
        Ok(columns)
    }
}

impl Ord for SortedFile {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.row(), other.row()) {
            (Some(a), Some(b)) => a.order(&b),
            (a, b) => a.is_some().cmp(&b.is_some()),
        }
    }
}

impl PartialOrd for SortedFile {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for SortedFile {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for SortedFile {}
