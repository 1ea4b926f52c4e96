//! The columns of a lake.
//!
//! Texts that are not known are empty, never null: it saves every query a case.

use arrow_schema::{DataType, Field, Fields, Schema, TimeUnit};
use std::sync::Arc;

/// Version of the schema, in each file as `aiprof.schema`.
pub const VERSION: &str = "1";

/// A column of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum TextField {
    /// Host name.
    Host,
    /// What distinguishes the host from others.
    HostId,
    /// What the sample is of: label `service`, else container, unit or program.
    Service,
    /// `cpu`, `off_cpu`, `launches`, `device_time`, `aiprof.KEY`.
    SampleType,
    /// `nanoseconds`, `count`, `bytes`.
    Unit,
    /// Frames from root to leaf, `;` between them.
    Stack,
    /// The last frame of the stack.
    Function,
    /// The program.
    Comm,
    /// The thread; a number at its end is `#`.
    Thread,
    /// The container: its name, else its id.
    Container,
    /// The pod: its name, else its id.
    Pod,
    /// The pod's namespace.
    Namespace,
    /// The accelerator.
    Device,
    /// The kernel that the accelerator ran.
    Kernel,
    /// Why an accelerator was idle.
    IdleCause,
    /// The version of the service.
    Version,
}

impl TextField {
    /// How many there are.
    pub const COUNT: usize = 16;

    /// All, in the order of the columns.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Host,
        Self::HostId,
        Self::Service,
        Self::SampleType,
        Self::Unit,
        Self::Stack,
        Self::Function,
        Self::Comm,
        Self::Thread,
        Self::Container,
        Self::Pod,
        Self::Namespace,
        Self::Device,
        Self::Kernel,
        Self::IdleCause,
        Self::Version,
    ];

    /// The name of the column.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::HostId => "host_id",
            Self::Service => "service",
            Self::SampleType => "sample_type",
            Self::Unit => "unit",
            Self::Stack => "stack",
            Self::Function => "function",
            Self::Comm => "comm",
            Self::Thread => "thread",
            Self::Container => "container",
            Self::Pod => "pod",
            Self::Namespace => "namespace",
            Self::Device => "device",
            Self::Kernel => "kernel",
            Self::IdleCause => "idle_cause",
            Self::Version => "version",
        }
    }

    /// Its place among the columns of text.
    pub fn at(self) -> usize {
        self as usize
    }
}

/// Columns of numbers, before those of text.
pub const NUMBERS: [&str; 4] = ["time", "duration", "value", "count"];
/// The column of labels, after those of text.
pub const LABELS: &str = "labels";

/// The type of a column of text.
pub fn text_type() -> DataType {
    DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
}

/// The fields of the entries of `labels`.
pub(crate) fn label_fields() -> Fields {
    Fields::from(vec![
        Field::new("key", DataType::Utf8, false),
        Field::new("value", DataType::Utf8, true),
    ])
}

/// The type of column `time`. Spark reads no nanoseconds.
pub fn time_type() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

/// The columns.
pub fn schema() -> Arc<Schema> {
    let numbers = NUMBERS.map(|name| match name {
        "time" => Field::new(name, time_type(), false),
        name => Field::new(name, DataType::Int64, false),
    });
    let texts = TextField::ALL.map(|text| Field::new(text.name(), text_type(), false));
    let entries = Field::new("key_value", DataType::Struct(label_fields()), false);
    let labels = Field::new(LABELS, DataType::Map(Arc::new(entries), false), false);
    let all = numbers.into_iter().chain(texts).chain([labels]);
    Arc::new(Schema::new(all.collect::<Vec<_>>()))
}

/// A row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// When its window began, nanoseconds since the Unix epoch.
    pub time: i64,
    /// How long that was, nanoseconds.
    pub duration: i64,
    /// What was measured.
    pub value: i64,
    /// Samples of which that is the sum.
    pub count: i64,
    /// By [`TextField::at`].
    pub texts: [&'a str; TextField::COUNT],
    /// Other labels: sorted keys, each with its value, with a NUL after each of both.
    pub labels: &'a str,
}

impl<'a> Row<'a> {
    /// A text of it.
    pub fn text(&self, text: TextField) -> &'a str {
        self.texts[text.at()]
    }

    /// Its place in a file: by service, type, stack and time, then by all else but values.
    pub fn order(&self, other: &Self) -> std::cmp::Ordering {
        let by = |text: TextField| self.text(text).cmp(other.text(text));
        by(TextField::Service)
            .then_with(|| by(TextField::SampleType))
            .then_with(|| by(TextField::Stack))
            .then_with(|| self.time.cmp(&other.time))
            .then_with(|| self.texts.cmp(&other.texts))
            .then_with(|| self.labels.cmp(other.labels))
            .then_with(|| self.duration.cmp(&other.duration))
    }
}

/// The labels of an encoded set, in order.
pub fn labels_of(encoded: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut parts = encoded.split_terminator('\0');
    std::iter::from_fn(move || Some((parts.next()?, parts.next()?)))
}
