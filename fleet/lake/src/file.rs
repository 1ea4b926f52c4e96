//! Rows as a Parquet file.

use crate::LakeError;
use crate::schema::{self, NUMBERS, Row, TextField, labels_of};
use crate::time::NS_PER_US;
use arrow_array::builder::{MapBuilder, MapFieldNames, StringBuilder};
use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, DictionaryArray, Int32Array, Int64Array, RecordBatch, StringArray,
    TimestampMicrosecondArray,
};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Most rows of a row group.
const GROUP_ROWS: usize = 100_000;
/// Rows from which on the next service begins a row group of its own.
const SERVICE_ROWS: usize = 20_000;
/// Rows that are turned into columns together, and their text.
const BATCH_ROWS: usize = 4_096;
const BATCH_BYTES: usize = 1 << 20;
/// Rows of a page.
const PAGE_ROWS: usize = 10_000;
/// Most text of a column in a row group that is written once each.
const STACK_DICTIONARY: usize = 8 << 20;

/// How hard it is tried to make a file small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Level 3 of zstd: on each host, each hour.
    Quick,
    /// Level 9: a sixth less for half as much time again, and 10 MiB more of memory.
    Small,
}

impl Packing {
    fn level(self) -> i32 {
        match self {
            Self::Quick => 3,
            Self::Small => 9,
        }
    }
}

/// A column of text of the rows that are not written yet.
#[derive(Default)]
struct TextColumn {
    keys: Vec<i32>,
    index: FxHashMap<Box<str>, i32>,
    values: StringBuilder,
    known: i32,
    last: Option<(String, i32)>,
}

impl TextColumn {
    /// Adds a text and returns how many bytes are new.
    fn push(&mut self, text: &str) -> usize {
        if let Some((last, key)) = &self.last
            && last == text
        {
            self.keys.push(*key);
            return 0;
        }
        let (key, bytes) = match self.index.get(text) {
            Some(key) => (*key, 0),
            None => {
                let key = self.known;
                self.known += 1;
                self.index.insert(text.into(), key);
                self.values.append_value(text);
                (key, text.len())
            }
        };
        self.keys.push(key);
        let last = self.last.get_or_insert_default();
        last.0.clear();
        last.0.push_str(text);
        last.1 = key;
        bytes
    }

    fn finish(&mut self) -> DictionaryArray<Int32Type> {
        let keys = Int32Array::from(std::mem::take(&mut self.keys));
        let values: StringArray = self.values.finish();
        self.index.clear();
        self.last = None;
        self.known = 0;
        DictionaryArray::new(keys, Arc::new(values))
    }
}

/// What a file became.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its rows.
    pub rows: u64,
}

/// Writes rows, which come in the order of [`Row::order`], as a file in memory.
pub struct FileWriter {
    writer: ArrowWriter<Vec<u8>>,
    numbers: [Vec<i64>; NUMBERS.len()],
    texts: Vec<TextColumn>,
    labels: MapBuilder<StringBuilder, StringBuilder>,
    service: String,
    batch_bytes: usize,
    rows: u64,
}

impl std::fmt::Debug for FileWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileWriter")
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

impl FileWriter {
    /// An empty file.
    ///
    /// # Errors
    /// None is known.
    pub fn new(packing: Packing) -> Result<Self, LakeError> {
        let properties = properties(packing)?;
        // Readers of Arrow would find its own form of the schema: 4 KiB in each small file.
        let options = ArrowWriterOptions::new()
            .with_properties(properties)
            .with_skip_arrow_metadata(true);
        let writer = ArrowWriter::try_new_with_options(Vec::new(), schema::schema(), options)
            .map_err(LakeError::parquet("cannot create a Parquet file"))?;
        let names = MapFieldNames {
            entry: "key_value".to_owned(),
            key: "key".to_owned(),
            value: "value".to_owned(),
        };
        let text = StringBuilder::new;
        Ok(Self {
            writer,
            numbers: Default::default(),
            texts: TextField::ALL.map(|_| TextColumn::default()).into(),
            labels: MapBuilder::new(Some(names), text(), text()),
            service: String::new(),
            batch_bytes: 0,
            rows: 0,
        })
    }

    /// Adds a row.
    ///
    /// # Errors
    /// Those of packing.
    pub fn push(&mut self, row: &Row<'_>) -> Result<(), LakeError> {
        let waiting = self.numbers[0].len();
        if self.service != row.text(TextField::Service) {
            row.text(TextField::Service).clone_into(&mut self.service);
            if self.writer.in_progress_rows() + waiting >= SERVICE_ROWS {
                self.flush()?;
                self.writer
                    .flush()
                    .map_err(LakeError::parquet("cannot write a row group"))?;
            }
        } else if waiting >= BATCH_ROWS || self.batch_bytes >= BATCH_BYTES {
            self.flush()?;
        }
        let time = row.time.div_euclid(NS_PER_US);
        let numbers = [time, row.duration, row.value, row.count];
        for (column, number) in self.numbers.iter_mut().zip(numbers) {
            column.push(number);
        }
        for (column, text) in self.texts.iter_mut().zip(row.texts) {
            self.batch_bytes += column.push(text);
        }
        for (key, value) in labels_of(row.labels) {
            self.labels.keys().append_value(key);
            self.labels.values().append_value(value);
            self.batch_bytes += key.len() + value.len();
        }
        let done = self.labels.append(true);
        done.map_err(|error| LakeError::Config(error.to_string()))?;
        self.rows += 1;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), LakeError> {
        let [time, duration, value, count] = std::mem::take(&mut self.numbers);
        if time.is_empty() {
            return Ok(());
        }
        let time = TimestampMicrosecondArray::from(time).with_timezone("UTC");
        let mut columns: Vec<ArrayRef> = vec![Arc::new(time)];
        for numbers in [duration, value, count] {
            columns.push(Arc::new(Int64Array::from(numbers)));
        }
        for column in &mut self.texts {
            columns.push(Arc::new(column.finish()));
        }
        columns.push(Arc::new(self.labels.finish()));
        self.batch_bytes = 0;
        let batch = RecordBatch::try_new(schema::schema(), columns)
            .map_err(|error| LakeError::Config(error.to_string()))?;
        self.writer
            .write(&batch)
            .map_err(LakeError::parquet("cannot encode rows"))
    }

    /// Bytes of the row groups that are done.
    pub fn bytes(&self) -> u64 {
        self.writer.bytes_written() as u64
    }

    /// Rows so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The file.
    ///
    /// # Errors
    /// Those of packing.
    pub fn finish(mut self) -> Result<Written, LakeError> {
        self.flush()?;
        let bytes = self
            .writer
            .into_inner()
            .map_err(LakeError::parquet("cannot finish a Parquet file"))?;
        Ok(Written {
            bytes,
            rows: self.rows,
        })
    }
}

/// How columns are written.
fn properties(packing: Packing) -> Result<WriterProperties, LakeError> {
    let level =
        ZstdLevel::try_new(packing.level()).map_err(LakeError::parquet("cannot set up zstd"))?;
    let place = |text: TextField| {
        let at = NUMBERS.len() + text.at();
        i32::try_from(at).unwrap_or(0)
    };
    let sorted = [
        place(TextField::Service),
        place(TextField::SampleType),
        place(TextField::Stack),
        // `time`.
        0,
    ];
    let sorted = sorted.map(|column_idx| SortingColumn {
        column_idx,
        descending: false,
        nulls_first: false,
    });
    let version = KeyValue::new("aiprof.schema".to_owned(), schema::VERSION.to_owned());
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_max_row_group_row_count(Some(GROUP_ROWS))
        .set_data_page_row_count_limit(PAGE_ROWS)
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_sorting_columns(Some(sorted.to_vec()))
        .set_key_value_metadata(Some(vec![version]))
        .set_created_by(concat!("aiprof ", env!("CARGO_PKG_VERSION")).to_owned());
    // Few different numbers: multiples of a period, begins of windows. Where there are more
    // than a dictionary holds, differences.
    for name in NUMBERS {
        let column = ColumnPath::from(name);
        properties = properties.set_column_encoding(column, Encoding::DELTA_BINARY_PACKED);
    }
    let stack = ColumnPath::from(TextField::Stack.name());
    properties = properties
        .set_column_dictionary_page_size_limit(stack.clone(), STACK_DICTIONARY)
        .set_column_encoding(stack, Encoding::DELTA_BYTE_ARRAY);
    Ok(properties.build())
}
