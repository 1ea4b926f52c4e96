//! Reads the metrics of kernels that `unitrace -q` writes, of the groups ComputeBasic (bytes)
//! and VectorEngine138 (operations).
//!
//! Total and bounded. Sections, their banners, tables before them and repeated headers are
//! known by the columns: a header names `GpuTime[ns]`, rows have as many cells. Names of
//! kernels may be in quotes, or have commas without them, as older releases write them.

#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

use aiprof_model::lines::{LineError, Lines};
use aiprof_tables::roofline::{FlopKind, KernelWork};
use std::collections::BTreeMap;
use std::io::{self, BufRead};

/// Longest line that is read, bytes.
const MAX_LINE: usize = 1 << 20;
/// Most text that is read, bytes.
const MAX_INPUT: u64 = 1 << 30;
/// Most kernels that are counted separately.
const MAX_KERNELS: usize = 1 << 16;

/// What begins a header.
const KERNEL: &str = "Kernel";
/// The column of times.
const TIME: &str = "GpuTime[ns]";
/// Columns of operations, in the order of [`FlopKind::ALL`], and how many operations an
/// instruction is, as `roofline.py` has it.
const FLOPS: [(&str, f64); FlopKind::ALL.len()] = [
    ("XVE_INST_EXECUTED_FP16[events]", 64.0),
    ("XVE_INST_EXECUTED_XMX_BF16[events]", 512.0),
    ("XVE_INST_EXECUTED_FP32[events]", 32.0),
    ("XVE_INST_EXECUTED_FP64[events]", 32.0),
    ("XVE_INST_EXECUTED_XMX_FP16[events]", 512.0),
];
const XMX: &str = "XVE_INST_EXECUTED_XMX_FP16_UTILIZATION[%]";
const MEMORY: [&str; 2] = [
    "GPU_MEMORY_BYTE_READ[bytes]",
    "GPU_MEMORY_BYTE_WRITE[bytes]",
];
const L3: [&str; 2] = ["L3_BYTE_READ[bytes]", "L3_BYTE_WRITE[bytes]"];

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It has neither bytes nor operations.
    #[error(
        "no kernel metrics of the group ComputeBasic (L3_BYTE_READ) or VectorEngine138 \
         (XVE_INST_EXECUTED_FP32); write them with `unitrace -q -g GROUP`"
    )]
    NoMetrics,
    /// A line, the file or the number of kernels is too large.
    #[error("line {0}: the metrics table is too large")]
    TooLarge(u64),
}

impl From<LineError> for MetricsError {
    fn from(error: LineError) -> Self {
        match error {
            LineError::Io(error) => Self::Io(error),
            LineError::TooLong(line) | LineError::TooLarge(line) => Self::TooLarge(line),
        }
    }
}

/// Sums of runs of a kernel.
#[derive(Clone, Debug, Default)]
struct RunSums {
    rows: u64,
    ns: f64,
    flops: [f64; FlopKind::ALL.len()],
    xmx_percent: f64,
    memory_bytes: f64,
    l3_bytes: f64,
}

/// The metrics of files.
#[derive(Clone, Debug, Default)]
pub struct KernelMetrics {
    /// Sums of files with bytes.
    bytes: BTreeMap<String, RunSums>,
    /// Sums of files with operations.
    flops: BTreeMap<String, RunSums>,
    /// Lines that have a header but are no rows.
    pub skipped: u64,
}

/// Where a header has what.
struct MetricColumns {
    count: usize,
    time: usize,
    flops: Option<[usize; FlopKind::ALL.len()]>,
    xmx: Option<usize>,
    bytes: Option<[usize; 4]>,
}

impl MetricColumns {
    /// The columns of a header; `None`: the header of something else.
    fn of(line: &str) -> Option<Self> {
        let heads: Vec<String> = cells(line);
        let at = |name: &str| heads.iter().position(|head| head.trim() == name);
        let mut flops = [0; FlopKind::ALL.len()];
        let mut has_flops = true;
        for (place, (name, _)) in flops.iter_mut().zip(FLOPS) {
            *place = at(name).unwrap_or(0);
            has_flops &= *place > 0;
        }
        let [memory_read, memory_write] = MEMORY.map(at);
        let [l3_read, l3_write] = L3.map(at);
        let bytes = (|| Some([memory_read?, memory_write?, l3_read?, l3_write?]))();
        Some(Self {
            count: heads.len(),
            time: at(TIME)?,
            flops: has_flops.then_some(flops),
            xmx: at(XMX),
            bytes,
        })
    }
}

impl KernelMetrics {
    /// Adds a file.
    ///
    /// # Errors
    /// It cannot be read, is too large, or has no metrics.
    pub fn read(&mut self, input: &mut dyn BufRead) -> Result<(), MetricsError> {
        let mut lines = Lines::new(input, MAX_LINE, MAX_INPUT);
        let mut columns: Option<MetricColumns> = None;
        let mut has_some = false;
        while let Some((number, line)) = lines.next_line()? {
            let text = String::from_utf8_lossy(line);
            let text = text.trim();
            if text.is_empty() || text.starts_with('=') {
                continue;
            }
            let rest = text.strip_prefix(KERNEL).map(str::trim_start);
            if rest.is_some_and(|rest| rest.starts_with(',')) {
                columns = MetricColumns::of(text);
                has_some |= columns
                    .as_ref()
                    .is_some_and(|columns| columns.flops.is_some() || columns.bytes.is_some());
                continue;
            }
            let Some(columns) = &columns else { continue };
            if self.row(text, columns).is_none() {
                self.skipped += 1;
            }
            if self.bytes.len().max(self.flops.len()) > MAX_KERNELS {
                return Err(MetricsError::TooLarge(number));
            }
        }
        match has_some {
            true => Ok(()),
            false => Err(MetricsError::NoMetrics),
        }
    }

    fn row(&mut self, text: &str, columns: &MetricColumns) -> Option<()> {
        let cells = cells(text);
        // Commas in a name that has no quotes.
        let more = cells.len().checked_sub(columns.count)?;
        let name = cells.get(..=more)?.join(",");
        let number = |at: usize| {
            let number: f64 = cells.get(at + more)?.trim().parse().ok()?;
            number.is_finite().then_some(number)
        };
        let ns = number(columns.time)?;
        if let Some([memory_read, memory_write, l3_read, l3_write]) = columns.bytes {
            let memory = number(memory_read)? + number(memory_write)?;
            let l3 = number(l3_read)? + number(l3_write)?;
            let sums = self.bytes.entry(name.trim().to_owned()).or_default();
            (sums.rows, sums.ns) = (sums.rows + 1, sums.ns + ns);
            sums.memory_bytes += memory;
            sums.l3_bytes += l3;
        }
        if let Some(places) = columns.flops {
            let mut flops = [0.0; FlopKind::ALL.len()];
            for ((flops, at), (_, each)) in flops.iter_mut().zip(places).zip(FLOPS) {
                *flops = number(at)? * each;
            }
            let sums = self.flops.entry(name.trim().to_owned()).or_default();
            (sums.rows, sums.ns) = (sums.rows + 1, sums.ns + ns);
            sums.xmx_percent += columns.xmx.and_then(number).unwrap_or(0.0);
            for (sum, flops) in sums.flops.iter_mut().zip(flops) {
                *sum += flops;
            }
        }
        Some(())
    }

    /// The kernels of which bytes and operations are known; time of all kernels with bytes,
    /// nanoseconds; and what is missing, in words.
    pub fn kernels(&self) -> (Vec<KernelWork>, f64, Vec<String>) {
        let (mut kernels, mut uneven) = (Vec::new(), 0_u64);
        for (name, bytes) in &self.bytes {
            let Some(flops) = self.flops.get(name) else {
                continue;
            };
            uneven += u64::from(flops.rows != bytes.rows);
            kernels.push(KernelWork {
                name: name.clone(),
                calls: bytes.rows,
                ns: bytes.ns,
                flops: flops.flops,
                memory_bytes: bytes.memory_bytes,
                l3_bytes: bytes.l3_bytes,
                xmx_percent: flops.xmx_percent / flops.rows.max(1) as f64,
            });
        }
        let all_ns = self.bytes.values().map(|sums| sums.ns).sum();
        let only = |these: &BTreeMap<String, RunSums>, others: &BTreeMap<String, RunSums>| {
            these
                .keys()
                .filter(|name| !others.contains_key(*name))
                .count() as u64
        };
        let notes = [
            (
                only(&self.bytes, &self.flops),
                "kernels have bytes but no operations, and are left out",
            ),
            (
                only(&self.flops, &self.bytes),
                "kernels have operations but no bytes, and are left out",
            ),
            (
                uneven,
                "kernels have different numbers of runs with bytes and with operations",
            ),
            (self.skipped, "lines are not table rows"),
        ];
        let notes = notes.into_iter().filter(|(count, _)| *count > 0);
        let notes = notes.map(|(count, what)| format!("{count} {what}"));
        (kernels, all_ns, notes.collect())
    }
}

/// The cells of a line; without what is behind a comma at its end.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut is_quoted = false;
    let line = line.strip_suffix(',').unwrap_or(line);
    for c in line.chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.push(String::new()),
            c => cells.last_mut().into_iter().for_each(|cell| cell.push(c)),
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<KernelMetrics, MetricsError> {
        let mut metrics = KernelMetrics::default();
        metrics.read(&mut text.as_bytes())?;
        Ok(metrics)
    }

    const BYTES: &str = "Kernel,GlobalInstanceId,SubDeviceId,GpuTime[ns],L3_BYTE_READ[bytes],\
        L3_BYTE_WRITE[bytes],GPU_MEMORY_BYTE_READ[bytes],GPU_MEMORY_BYTE_WRITE[bytes],";
    const OPERATIONS: &str = "Kernel,GpuTime[ns],XVE_INST_EXECUTED_FP16[events],\
        XVE_INST_EXECUTED_FP32[events],XVE_INST_EXECUTED_FP64[events],\
        XVE_INST_EXECUTED_XMX_FP16[events],XVE_INST_EXECUTED_XMX_BF16[events]";

    #[test]
    fn rows_are_added_up_by_kernel() {
        let text = format!(
            "\n=== Device Timing Summary ===\n\n   Kernel,  Calls\n  \"k\",  2\n\n\
             === Device #0 Metrics ===\n\n{BYTES}\n\"k<1, 2>[SIMD8 {{1; 1; 1}}]\",1,0,10,1,2,3,4,\n\n\
             {BYTES}\n k<1, 2>[SIMD8 {{1; 1; 1}}],2,0,20,1,2,3,4,\nother,3,0,5,0,0,0,0,\nodd,1\n"
        );
        let mut metrics = read(&text).unwrap();
        let more = format!("{OPERATIONS}\n\"k<1, 2>[SIMD8 {{1; 1; 1}}]\",9,1,2,3,4,5\n");
        metrics.read(&mut more.as_bytes()).unwrap();
        let (kernels, all_ns, notes) = metrics.kernels();
        let [one] = &kernels[..] else {
            panic!("{kernels:?}")
        };
        assert_eq!((one.calls, one.ns, all_ns), (2, 30.0, 35.0));
        assert_eq!((one.memory_bytes, one.l3_bytes), (14.0, 6.0));
        assert_eq!(one.flops, [64.0, 2560.0, 64.0, 96.0, 2048.0]);
        assert_eq!(notes.len(), 3, "{notes:?}");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "Kernel, Calls\n\"k\", 1\n", "Kernel,GpuTime[ns]\nk,1\n"] {
            assert!(matches!(read(text), Err(MetricsError::NoMetrics)), "{text}");
        }
        let long = format!("{BYTES}\n{}", "x".repeat(MAX_LINE + 2));
        assert!(matches!(read(&long), Err(MetricsError::TooLarge(2))));
    }
}
