//! The AIU's metrics file: power, temperature, memory traffic of one device.
//!
//! The runtime keeps `/tmp/metrics.<PCI address>` mapped in the process that uses
//! the device and rewrites it in place; reading it touches no device. The format
//! of virtual functions ("AiuM", version 1) is read by IBM's public
//! spyre-metrics-api and here; that of physical functions begins with four zeros
//! and is not public. While the file is rewritten its first byte is `!`; since a
//! reader is not stopped by that, [`snapshot`] accepts only what two readings
//! agree on.
//!
//! All numbers are little-endian. A header (32 bytes), a directory of sections,
//! the sections; each with a header (32 bytes), a directory of metrics, and the
//! metrics' values, 8 bytes each.

#[cfg(any(test, feature = "testing"))]
pub mod testing;

use thiserror::Error;

/// Most bytes of a metrics file that are read.
pub const MAX_BYTES: usize = 1 << 20;
/// Most sections, and most metrics of a section.
const MAX_ITEMS: usize = 1024;
const HEADER: usize = 32;
/// The version that is understood; the rest of the four bytes may differ.
const VERSION: [u8; 2] = [1, 0];

/// Why a metrics file could not be read.
#[derive(Debug, Error)]
pub enum MetricsError {
    /// The runtime is at it: try again.
    #[error("the metrics file is being rewritten")]
    Rewriting,
    /// The format of physical functions.
    #[error(
        "the metrics file has the format of AIU physical functions, which only IBM's proprietary \
         libaiumonitor can read"
    )]
    OldFormat,
    /// No metrics file.
    #[error("not a metrics file: it does not begin with `AiuM`")]
    Foreign,
    /// A version that is not understood.
    #[error("the metrics file has version {}.{}; aiprof reads version 1.0", .0[0], .0[1])]
    Version([u8; 4]),
    /// It ends before the end of what its header lists.
    #[error("the metrics file is shorter than its header states: {what} at byte {at} is missing")]
    Truncated {
        /// What should be there.
        what: &'static str,
        /// Where.
        at: usize,
    },
    /// It contradicts itself.
    #[error("the metrics file is inconsistent: {0}")]
    Inconsistent(&'static str),
    /// It could not be read at all.
    #[error("cannot read the metrics file: {0}")]
    Io(#[from] std::io::Error),
}

/// What a metrics file held at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// Its sections, in its order.
    pub sections: Vec<Section>,
}

/// One section: metrics that are measured together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// What it holds.
    pub kind: SectionKind,
    /// Counts its updates: equal means nothing new.
    pub sequence: u32,
    /// When it was updated, milliseconds since 1970.
    pub time_ms: u64,
    /// Length of the interval it covers, in milliseconds; the unit is not certain.
    pub interval: u32,
    /// Its metrics, in its order.
    pub values: Vec<Value>,
}

/// What a section holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SectionKind {
    /// About the host.
    Host,
    /// About the runtime's memory.
    Runtime,
    /// The device's counters.
    Counters,
    /// Unknown; its metrics are read all the same.
    Other(u32),
}

/// The values of a metric within the interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Its id in the file.
    pub id: u32,
    /// The samples, at least none.
    pub samples: Vec<u64>,
}

/// How the samples of an interval make one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Summary {
    /// The first.
    First,
    /// The largest.
    Max,
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
}

/// What is known of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// Its id in the file.
    pub id: u32,
    /// Its name, as aiu-smi calls it.
    pub name: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// Unit of [`Value::summary`].
    pub unit: &'static str,
    /// What a raw value is multiplied by.
    pub scale: f64,
    /// How an interval's samples make one number.
    pub summary: Summary,
}

const fn metric(
    id: u32,
    name: &'static str,
    meaning: &'static str,
    unit: &'static str,
    scale: f64,
    summary: Summary,
) -> Metric {
    Metric {
        id,
        name,
        meaning,
        unit,
        scale,
        summary,
    }
}

const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * 1024.0;

/// The metrics with a known meaning.
const KNOWN: [Metric; 10] = [
    metric(0x10, "pwr", "power", "W", 0.1, Summary::First),
    metric(0x11, "tempr", "temperature", "C", 0.1, Summary::Max),
    metric(0x12, "rdmem", "device memory read", "B", KIB, Summary::Sum),
    metric(
        0x13,
        "wrmem",
        "device memory written",
        "B",
        KIB,
        Summary::Sum,
    ),
    metric(
        0x14,
        "rxpci",
        "received from the host",
        "B",
        KIB,
        Summary::Sum,
    ),
    metric(0x15, "txpci", "sent to the host", "B", KIB, Summary::Sum),
    metric(
        0x16,
        "rdrdma",
        "read from other devices",
        "B",
        KIB,
        Summary::Sum,
    ),
    metric(
        0x17,
        "wrrdma",
        "written to other devices",
        "B",
        KIB,
        Summary::Sum,
    ),
    metric(
        0x81,
        "avgmem",
        "device memory in use",
        "B",
        MIB,
        Summary::Mean,
    ),
    metric(
        0x82,
        "peakmem",
        "most device memory in use",
        "B",
        MIB,
        Summary::Max,
    ),
];

/// What is known of the metric with this id.
#[must_use]
pub fn known(id: u32) -> Option<&'static Metric> {
    KNOWN.iter().find(|metric| metric.id == id)
}

impl Value {
    /// The interval's samples as one number in the metric's unit; `None` without
    /// samples or without a known meaning.
    #[must_use]
    pub fn summary(&self) -> Option<f64> {
        let metric = known(self.id)?;
        let first = *self.samples.first()?;
        // Sums of 64-bit values do not overflow 128 bits.
        let sum: u128 = self.samples.iter().map(|v| u128::from(*v)).sum();
        let raw = match metric.summary {
            Summary::First => first as f64,
            Summary::Max => self.samples.iter().copied().fold(first, u64::max) as f64,
            Summary::Sum => sum as f64,
            Summary::Mean => sum as f64 / self.samples.len() as f64,
        };
        Some(raw * metric.scale)
    }
}

/// Reads the file until two readings agree and are no rewriting in progress.
///
/// `read` returns the whole file, at most [`MAX_BYTES`]; it is called at most
/// `2 * attempts` times and may wait between its calls.
///
/// # Errors
/// [`MetricsError::Rewriting`] when no two readings agreed; else as [`parse`], and
/// the error of `read`.
pub fn snapshot(
    mut read: impl FnMut() -> std::io::Result<Vec<u8>>,
    attempts: usize,
) -> Result<Metrics, MetricsError> {
    for _ in 0..attempts {
        let first = read()?;
        if matches!(first.first(), None | Some(b'!')) {
            continue;
        }
        if read()? == first {
            return parse(&first);
        }
    }
    Err(MetricsError::Rewriting)
}

/// Reads the bytes of a metrics file that no program writes to meanwhile.
///
/// An empty file counts as being rewritten: its writer has created it and will
/// fill it next.
///
/// # Errors
/// When it is being rewritten, is in another format, or is damaged.
pub fn parse(data: &[u8]) -> Result<Metrics, MetricsError> {
    if data.is_empty() {
        return Err(MetricsError::Rewriting);
    }
    let data = Data(data);
    match data.array::<4>(0, "magic")? {
        [b'!', ..] => return Err(MetricsError::Rewriting),
        [0, 0, 0, 0] => return Err(MetricsError::OldFormat),
        magic if magic != *b"AiuM" => return Err(MetricsError::Foreign),
        _ => {}
    }
    let version = data.array::<4>(8, "version")?;
    if !version.starts_with(&VERSION) {
        return Err(MetricsError::Version(version));
    }
    let size = data.u32(4, "size")? as usize;
    if size > MAX_BYTES {
        return Err(MetricsError::Inconsistent("its size exceeds the limit"));
    }
    let Some(whole) = data.0.get(..size) else {
        return Err(MetricsError::Truncated {
            what: "the end",
            at: size,
        });
    };
    let data = Data(whole);
    let count = limited(data.u32(12, "number of sections")?)?;
    let mut sections = Vec::new();
    let mut at = HEADER + count * 8;
    for i in 0..count {
        let kind = data.u32(HEADER + i * 8, "directory")?;
        let size = data.u32(HEADER + i * 8 + 4, "directory")? as usize;
        let end = at.saturating_add(size);
        let Some(section) = data.0.get(at..end) else {
            return Err(MetricsError::Truncated {
                what: "section",
                at,
            });
        };
        sections.push(parse_section(Data(section), kind)?);
        at = end;
    }
    Ok(Metrics {
        time_ms: data.u64(16, "time")?,
        sections,
    })
}

fn parse_section(data: Data<'_>, kind: u32) -> Result<Section, MetricsError> {
    let size = data.u32(4, "size of a section")? as usize;
    if data.u32(0, "type of a section")? != kind || size != data.0.len() {
        return Err(MetricsError::Inconsistent(
            "a section differs in type or size from the file's table of sections",
        ));
    }
    let count = limited(data.u32(12, "number of metrics")?)?;
    let mut values = Vec::new();
    let mut at = HEADER + count * 8;
    for i in 0..count {
        let id = data.u32(HEADER + i * 8, "directory of metrics")?;
        let words = data.u32(HEADER + i * 8 + 4, "directory of metrics")? as usize;
        let end = at.saturating_add(words.saturating_mul(8));
        let Some(bytes) = data.0.get(at..end) else {
            return Err(MetricsError::Truncated { what: "values", at });
        };
        let samples = bytes.as_chunks::<8>().0.iter();
        values.push(Value {
            id,
            samples: samples.map(|word| u64::from_le_bytes(*word)).collect(),
        });
        at = end;
    }
    Ok(Section {
        kind: SectionKind::of(kind),
        sequence: data.u32(8, "sequence number")?,
        time_ms: data.u64(16, "time of a section")?,
        interval: data.u32(24, "interval")?,
        values,
    })
}

fn limited(count: u32) -> Result<usize, MetricsError> {
    let count = count as usize;
    if count > MAX_ITEMS {
        return Err(MetricsError::Inconsistent("it has too many items"));
    }
    Ok(count)
}

impl SectionKind {
    fn of(number: u32) -> Self {
        match number {
            0x01 => Self::Host,
            0x10 => Self::Runtime,
            0x20 => Self::Counters,
            other => Self::Other(other),
        }
    }
}

/// Bytes with checked access.
#[derive(Clone, Copy)]
struct Data<'a>(&'a [u8]);

impl Data<'_> {
    fn array<const N: usize>(
        &self,
        at: usize,
        what: &'static str,
    ) -> Result<[u8; N], MetricsError> {
        let bytes = self.0.get(at..at + N).and_then(|b| b.try_into().ok());
        bytes.ok_or(MetricsError::Truncated { what, at })
    }

    fn u32(&self, at: usize, what: &'static str) -> Result<u32, MetricsError> {
        self.array(at, what).map(u32::from_le_bytes)
    }

    fn u64(&self, at: usize, what: &'static str) -> Result<u64, MetricsError> {
        self.array(at, what).map(u64::from_le_bytes)
    }
}
