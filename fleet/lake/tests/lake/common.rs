//! What the tests share.

use aiprof_fleet::config;
use aiprof_fleet::spool::{Body, BodyPacking, Queue};
use aiprof_lake::schema::{NUMBERS, TextField, schema};
use aiprof_lake::time::HOUR_NS;
use aiprof_lake::{Lake, LakeFile};
use arrow_array::Array as _;
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int32Type, Int64Type, TimestampMicrosecondType};
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use std::collections::BTreeMap;
use std::path::Path;

/// 2026-11-26, 10:00.
pub(crate) const TEN: u64 = 1_795_687_200_000_000_000;
/// A minute.
pub(crate) const MINUTE: u64 = 60_000_000_000;

/// Runs what is asynchronous.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(future)
}

pub(crate) fn config(url: &str) -> config::Lake {
    config::Lake::at(url)
}

/// A lake and a spool in a directory.
pub(crate) struct Place {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) lake: Lake,
    pub(crate) queue: Queue,
}

impl Place {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let lake = Self::lake_of(directory.path(), "h1");
        let queue = Queue::open(&directory.path().join("spool"), "lake").unwrap();
        Self {
            directory,
            lake,
            queue,
        }
    }

    pub(crate) fn lake_of(directory: &Path, host: &str) -> Lake {
        let url = directory.join("lake").display().to_string();
        Lake::open(&config(&url), &format!("id-{host}"), host).unwrap()
    }

    pub(crate) fn put(&self, start: u64, number: u64, content: &[u8]) -> Body {
        let body = Body {
            start_unix_ns: start,
            number,
            samples: 1,
            kind: BodyPacking::Pprof,
        };
        self.queue.put(&body, content).unwrap();
        body
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.bodies().unwrap().len()
    }

    /// All rows that count.
    pub(crate) fn rows(&self) -> Vec<ReadRow> {
        let files = run(self.lake.files(0..u64::MAX)).unwrap();
        self.rows_of(&files)
    }

    pub(crate) fn rows_of(&self, files: &[LakeFile]) -> Vec<ReadRow> {
        let folder = self.directory.path().join("lake");
        let mut rows: Vec<ReadRow> = files
            .iter()
            .flat_map(|file| read(&folder.join(&file.path)))
            .collect();
        rows.sort();
        rows
    }
}

/// Long after an hour.
pub(crate) fn after(hours: u64) -> u64 {
    TEN + hours * HOUR_NS + 30 * MINUTE
}

/// A row: numbers, texts, labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReadRow {
    pub(crate) numbers: Vec<i64>,
    pub(crate) texts: Vec<String>,
    pub(crate) labels: BTreeMap<String, String>,
}

impl ReadRow {
    pub(crate) fn text(&self, text: TextField) -> &str {
        &self.texts[text.at()]
    }

    pub(crate) fn value(&self) -> i64 {
        self.numbers[2]
    }

    pub(crate) fn count(&self) -> i64 {
        self.numbers[3]
    }
}

/// The rows of a file, read column by column.
pub(crate) fn read(path: &Path) -> Vec<ReadRow> {
    let file = std::fs::File::open(path).unwrap();
    let options = ArrowReaderOptions::new().with_schema(schema());
    let reader = ParquetRecordBatchReaderBuilder::try_new_with_options(file, options).unwrap();
    let mut rows = Vec::new();
    for batch in reader.build().unwrap() {
        let batch = batch.unwrap();
        for row in 0..batch.num_rows() {
            let mut new = ReadRow::default();
            for name in NUMBERS {
                let column = batch.column_by_name(name).unwrap();
                let number = match name {
                    "time" => column.as_primitive::<TimestampMicrosecondType>().value(row) * 1000,
                    _ => column.as_primitive::<Int64Type>().value(row),
                };
                new.numbers.push(number);
            }
            for text in TextField::ALL {
                let column = batch.column_by_name(text.name()).unwrap();
                let column = column.as_dictionary::<Int32Type>();
                let key = column.keys().value(row) as usize;
                new.texts
                    .push(column.values().as_string::<i32>().value(key).to_owned());
            }
            let labels = batch.column_by_name("labels").unwrap().as_map().value(row);
            let (keys, values) = (labels.column(0), labels.column(1));
            for at in 0..labels.len() {
                let text =
                    |column: &arrow_array::ArrayRef| column.as_string::<i32>().value(at).to_owned();
                new.labels.insert(text(keys), text(values));
            }
            rows.push(new);
        }
    }
    rows
}
