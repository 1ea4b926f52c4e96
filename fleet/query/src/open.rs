//! A lake as a table of DataFusion.

use crate::LakeArgs;
use aiprof_fleet::config;
use aiprof_lake::file::{FileWriter, Packing};
use aiprof_lake::rows::Rows;
use aiprof_lake::schema::{LABELS, NUMBERS, TextField, time_type};
use aiprof_lake::{Lake, LakeFile, decode};
use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::object_store::ObjectStoreUrl;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::logical_expr::{TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::{DataFrame, Expr, SessionConfig, SessionContext};
use futures_util::FutureExt as _;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt as _, path::Path as StorePath};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The table.
pub(crate) const TABLE: &str = "profiles";
/// Where its files are, for DataFusion.
const STORE: &str = "lake://files/";
/// Most pprof files of a directory that are read.
const MAX_WINDOWS: usize = 100_000;
/// Largest of these.
const MAX_WINDOW: u64 = 64 << 20;
/// Rows of a file in memory.
const MAX_ROWS: usize = 200_000;

/// A lake that is asked.
pub(crate) struct OpenLake {
    args: LakeArgs,
    source: LakeSource,
}

/// What is asked.
enum LakeSource {
    Lake(Lake),
    /// Windows' pprof files, as a lake in memory.
    Windows(Arc<InMemory>, Vec<LakeFile>),
}

/// The configuration of a lake that the command line has.
pub(crate) fn config(args: &LakeArgs, keep: Option<Duration>) -> config::Lake {
    config::Lake {
        endpoint: args.endpoint.clone(),
        region: args.region.clone(),
        credentials_file: args.credentials_file.clone(),
        ca_file: args.ca_file.clone(),
        keep,
        ..config::Lake::at(args.lake.as_str())
    }
}

impl OpenLake {
    /// Opens a lake, or reads a directory of windows.
    pub(crate) async fn open(args: &LakeArgs) -> Result<Self> {
        limit_memory(args);
        let source = match windows(&args.lake)? {
            Some(files) => in_memory(files).await?,
            None => LakeSource::Lake(Lake::open_to_read(&config(args, None))?),
        };
        Ok(Self {
            args: args.clone(),
            source,
        })
    }

    /// The files that count and may have windows of a time.
    pub(crate) async fn files(&self, range: &Range<u64>) -> Result<Vec<LakeFile>> {
        match &self.source {
            LakeSource::Lake(lake) => Ok(lake.files(range.clone()).await?),
            LakeSource::Windows(_, files) => Ok(files.clone()),
        }
    }

    /// A session in which the table has what a time has.
    pub(crate) async fn session(&self, range: &Range<u64>) -> Result<SessionContext> {
        let files = self.files(range).await?;
        let store: Arc<dyn ObjectStore> = match &self.source {
            LakeSource::Lake(lake) => lake.store(),
            LakeSource::Windows(store, _) => Arc::clone(store) as _,
        };
        let mut config = SessionConfig::new().with_information_schema(true);
        let parquet = &mut config.options_mut().execution.parquet;
        // What a query does not want is not unpacked.
        parquet.pushdown_filters = true;
        parquet.reorder_filters = true;
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_limit(self.args.memory << 20, 1.0)
            .build_arc()?;
        let session = SessionContext::new_with_config_rt(config, runtime);
        let url = ObjectStoreUrl::parse(STORE)?;
        session.register_object_store(url.as_ref(), store);
        session.register_table(TABLE, Arc::new(LakeTable { url, files }))?;
        Ok(session)
    }

    /// Asks for rows. A file may go while it is read, since it was compacted: then what is
    /// there now is asked.
    pub(crate) async fn ask<T>(
        &self,
        range: &Range<u64>,
        query: impl Fn(DataFrame) -> DataFusionResult<DataFrame>,
        read: impl Fn(Vec<RecordBatch>) -> Result<T>,
    ) -> Result<T> {
        let mut tries = 0;
        loop {
            tries += 1;
            let session = self.session(range).await?;
            let table = session.table(TABLE).await?;
            match collect(query(table)?).await {
                Ok(batches) => return read(batches),
                Err(error) if tries < 3 && is_gone(&error) => continue,
                Err(error) => return Err(self.explain(range, error).await),
            }
        }
    }

    /// An error with the file that it is of, if it is of one: who reads batches does not know.
    pub(crate) async fn explain(
        &self,
        range: &Range<u64>,
        error: DataFusionError,
    ) -> anyhow::Error {
        let is_of_query = matches!(
            error.find_root(),
            DataFusionError::ResourcesExhausted(_)
                | DataFusionError::Plan(_)
                | DataFusionError::SchemaError(..)
                | DataFusionError::SQL(..)
        );
        let root = anyhow::Error::msg(error.find_root().to_string());
        let LakeSource::Lake(lake) = &self.source else {
            return root;
        };
        if is_of_query || is_gone(&error) {
            return root;
        }
        for file in self.files(range).await.unwrap_or_default() {
            if let Err(why) = lake.check(&file).await {
                return anyhow::Error::new(why).context(
                    "a file of the lake is damaged or not a lake file; queries that include its \
                     date fail until you remove it",
                );
            }
        }
        root
    }
}

/// The rows of a query. Readers of files panic where some are damaged: that is an error here.
pub(crate) async fn collect(query: DataFrame) -> DataFusionResult<Vec<RecordBatch>> {
    let collected = AssertUnwindSafe(query.collect()).catch_unwind().await;
    let gave_up = |_| Err(DataFusionError::External("reading a file failed".into()));
    collected.unwrap_or_else(gave_up)
}

/// Ends this program rather than the machine's memory: what files unpack into is not counted
/// by a query, and a small one may unpack into anything.
fn limit_memory(args: &LakeArgs) {
    let bytes = (args.memory as u64).saturating_mul(2 << 20) + (1 << 30);
    let limit = Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    // Where there is a lower limit already it holds.
    let _ = setrlimit(Resource::Data, limit);
}

/// Whether a file is not there any more.
pub(crate) fn is_gone(error: &DataFusionError) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(object_store::Error::NotFound { .. }) = error.downcast_ref() {
            return true;
        }
        cause = error.source();
    }
    error.to_string().contains("not found")
}

/// The pprof files that are meant by a path; `None`: it is a lake.
fn windows(url: &str) -> Result<Option<Vec<PathBuf>>> {
    let path = Path::new(url.strip_prefix("file://").unwrap_or(url));
    let is_window = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".pb.gz") || name.ends_with(".pprof")
    };
    if url.contains("://") && !url.starts_with("file://") {
        return Ok(None);
    }
    if path.is_file() {
        return Ok(Some(vec![path.to_owned()]));
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).with_context(|| path.display().to_string())? {
        let path = entry?.path();
        if is_window(&path) && found.len() < MAX_WINDOWS {
            found.push(path);
        }
    }
    found.sort();
    Ok((!found.is_empty()).then_some(found))
}

async fn in_memory(windows: Vec<PathBuf>) -> Result<LakeSource> {
    let store = Arc::new(InMemory::new());
    let mut files = Vec::new();
    let mut rows: Option<(String, Rows)> = None;
    let (mut refused, mut all) = (0, 0);
    for path in windows {
        let about = std::fs::metadata(&path);
        let about = about.with_context(|| path.display().to_string())?;
        let content = match about.len() <= MAX_WINDOW {
            true => std::fs::read(&path).with_context(|| path.display().to_string())?,
            false => Vec::new(),
        };
        all += 1;
        let Ok(origin) = decode::origin(&content) else {
            refused += 1;
            continue;
        };
        let is_other =
            |(host, rows): &(String, Rows)| *host != origin.host || rows.len() > MAX_ROWS;
        if rows.as_ref().is_some_and(is_other)
            && let Some((_, full)) = rows.take()
        {
            files.push(put(&store, files.len(), full).await?);
        }
        let (_, rows) = rows.get_or_insert_with(|| {
            let new = Rows::new(&origin.host, &origin.host);
            (origin.host.clone(), new)
        });
        if decode::add(&content, origin.start_unix_ns, rows).is_err() {
            refused += 1;
        }
    }
    if let Some((_, rows)) = rows {
        files.push(put(&store, files.len(), rows).await?);
    }
    ensure!(refused < all, "none of the {all} files is a pprof profile");
    if refused > 0 {
        crate::output::note(&format!(
            "skipped {refused} of {all} files, which are not pprof profiles"
        ));
    }
    Ok(LakeSource::Windows(store, files))
}

async fn put(store: &InMemory, number: usize, mut rows: Rows) -> Result<LakeFile> {
    rows.sort();
    let mut writer = FileWriter::new(Packing::Quick)?;
    for row in rows.iter() {
        writer.push(&row)?;
    }
    let content = writer.finish()?.bytes;
    let file = LakeFile {
        path: format!("windows-{number}.parquet"),
        bytes: content.len() as u64,
    };
    let path = StorePath::from(file.path.as_str());
    store.put(&path, content.into()).await?;
    Ok(file)
}

/// Files of a lake as a table.
#[derive(Debug)]
struct LakeTable {
    url: ObjectStoreUrl,
    files: Vec<LakeFile>,
}

/// The columns as queries see them: texts as views of what was unpacked, which are not copied.
fn schema() -> SchemaRef {
    let numbers = NUMBERS.map(|name| match name {
        "time" => Field::new(name, time_type(), false),
        name => Field::new(name, DataType::Int64, false),
    });
    let texts = TextField::ALL.map(|text| Field::new(text.name(), DataType::Utf8View, false));
    let fields = Fields::from(vec![
        Field::new("key", DataType::Utf8, false),
        Field::new("value", DataType::Utf8, true),
    ]);
    let entries = Field::new("key_value", DataType::Struct(fields), false);
    let labels = Field::new(LABELS, DataType::Map(Arc::new(entries), false), false);
    let all = numbers.into_iter().chain(texts).chain([labels]);
    Arc::new(Schema::new(all.collect::<Vec<_>>()))
}

#[async_trait]
impl TableProvider for LakeTable {
    fn schema(&self) -> SchemaRef {
        schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> DataFusionResult<Vec<TableProviderFilterPushDown>> {
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        limit: Option<usize>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let parquet = state.config_options().execution.parquet.clone();
        let options = datafusion::common::config::TableParquetOptions {
            global: parquet,
            ..Default::default()
        };
        let source = ParquetSource::new(schema()).with_table_parquet_options(options);
        let groups = state.config().target_partitions().max(1);
        let mut groups = vec![Vec::new(); groups.min(self.files.len()).max(1)];
        // The largest first, each to who has least.
        let mut files: Vec<&LakeFile> = self.files.iter().collect();
        files.sort_by_key(|file| std::cmp::Reverse(file.bytes));
        let mut bytes = vec![0_u64; groups.len()];
        for file in files {
            let least = (0..bytes.len()).min_by_key(|at| bytes[*at]).unwrap_or(0);
            bytes[least] += file.bytes;
            groups[least].push(PartitionedFile::new(file.path.clone(), file.bytes));
        }
        let groups = groups.into_iter().map(FileGroup::new).collect();
        let config = FileScanConfigBuilder::new(self.url.clone(), Arc::new(source))
            .with_file_groups(groups)
            .with_projection_indices(projection.cloned())?
            .with_limit(limit)
            .build();
        Ok(DataSourceExec::from_data_source(config))
    }
}
