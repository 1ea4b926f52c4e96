//! The roofline of a device: what bounds kernels, by their operations, bytes and time.
//!
//! The numbers and the rule of what bounds a kernel are those of unitrace's `roofline.py`.

use crate::{Cell, Table};

/// Bytes of a GiB: intensities of the rule are by these, others by bytes.
const GIB: f64 = 1_073_741_824.0;
/// What the rule adds to numbers that may be 0.
const TINY: f64 = 1e-7;

/// A type of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlopKind {
    /// 16 bits, on the vector engine.
    Fp16,
    /// bfloat16, on the matrix engine.
    Bf16Xmx,
    /// 32 bits.
    Fp32,
    /// 64 bits.
    Fp64,
    /// 16 bits, on the matrix engine.
    Fp16Xmx,
}

impl FlopKind {
    /// All of them, in the order in which the first of equals counts.
    pub const ALL: [Self; 5] = [
        Self::Fp16,
        Self::Bf16Xmx,
        Self::Fp32,
        Self::Fp64,
        Self::Fp16Xmx,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp16 => "FP16",
            Self::Bf16Xmx => "BF16_XMX",
            Self::Fp32 => "FP32",
            Self::Fp64 => "FP64",
            Self::Fp16Xmx => "FP16_XMX",
        }
    }
}

/// What a device can do at most.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DevicePeaks {
    /// Its name.
    pub name: String,
    /// GFLOP/s, in the order of [`FlopKind::ALL`].
    pub gflops: [f64; FlopKind::ALL.len()],
    /// Bandwidth of its memory, GB/s.
    pub memory_gbps: f64,
    /// Bandwidth of its L3 cache, GB/s.
    pub l3_gbps: f64,
}

/// Why peaks cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeaksError {
    /// A line is missing, or its value no positive number.
    #[error("expected a line `{0},NUMBER` with a number above 0")]
    Missing(String),
}

impl DevicePeaks {
    /// Reads the lines `NAME,VALUE` of unitrace's `device_configs/*.csv`.
    ///
    /// # Errors
    /// One is missing.
    pub fn parse(text: &str) -> Result<Self, PeaksError> {
        let value = |key: &str| {
            let lines = text.lines().filter_map(|line| line.split_once(','));
            let mut lines = lines.map(|(name, value)| (name.trim(), value.trim()));
            lines.find(|(name, _)| *name == key).map(|(_, value)| value)
        };
        let number = |key: &str| {
            let number = value(key).and_then(|text| text.parse::<f64>().ok());
            let number = number.filter(|number| *number > 0.0 && number.is_finite());
            number.ok_or_else(|| PeaksError::Missing(key.to_owned()))
        };
        let mut gflops = [0.0; FlopKind::ALL.len()];
        for (peak, kind) in gflops.iter_mut().zip(FlopKind::ALL) {
            *peak = number(&format!("{}_GFLOPS", kind.name()))?;
        }
        Ok(Self {
            name: value("PlatformName")
                .unwrap_or("")
                .trim_matches('"')
                .to_owned(),
            gflops,
            memory_gbps: number("GPU_MEMORY_BW_in_GB_per_sec")?,
            l3_gbps: number("L3_BW_in_GB_per_sec")?,
        })
    }

    /// The peak of a type, GFLOP/s.
    pub fn of(&self, kind: FlopKind) -> f64 {
        self.gflops.get(kind as usize).copied().unwrap_or(0.0)
    }
}

/// What all runs of a kernel did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelWork {
    /// Its name.
    pub name: String,
    /// Runs that were measured.
    pub calls: u64,
    /// Time on the device, nanoseconds.
    pub ns: f64,
    /// Operations, in the order of [`FlopKind::ALL`].
    pub flops: [f64; FlopKind::ALL.len()],
    /// Bytes from and to the memory.
    pub memory_bytes: f64,
    /// Bytes from and to the L3 cache.
    pub l3_bytes: f64,
    /// Part of the time in which the matrix engine worked on 16 bits, percent.
    pub xmx_percent: f64,
}

/// What bounds a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundBy {
    /// The engines.
    Compute,
    /// The memory.
    Memory,
    /// The L3 cache.
    L3,
}

impl BoundBy {
    /// The word of the script.
    pub fn word(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Memory => "gpu_memory",
            Self::L3 => "L3",
        }
    }
}

/// A kernel under the roofs.
#[derive(Clone, Debug, PartialEq)]
pub struct RooflineRow {
    /// What it did.
    pub work: KernelWork,
    /// Part of the time of all kernels, percent.
    pub share: f64,
    /// The type with most operations: the fields below are for these.
    pub kind: FlopKind,
    /// GFLOP/s.
    pub gflops: f64,
    /// What bounds it.
    pub bound_by: BoundBy,
    /// Operations for each byte of the memory.
    pub memory_intensity: f64,
    /// The same of the L3 cache.
    pub l3_intensity: f64,
    /// By how much faster the memory would let it be.
    pub memory_headroom: f64,
    /// The same of the L3 cache.
    pub l3_headroom: f64,
}

impl RooflineRow {
    fn of(work: KernelWork, all_ns: f64, peaks: &DevicePeaks) -> Self {
        let kinds = FlopKind::ALL.into_iter().zip(work.flops);
        let (kind, flops) = kinds.fold((FlopKind::Fp16, f64::MIN), |most, one| {
            if one.1 > most.1 { one } else { most }
        });
        let giga = flops / 1e9 + TINY;
        let gflops = giga / (work.ns / 1e9);
        let headroom = |bytes: f64, gbps: f64| {
            let intensity = giga / (bytes / GIB + TINY);
            let reach = intensity / (intensity / peaks.of(kind) + 1.0 / gbps);
            reach / (gflops + TINY)
        };
        let l3 = headroom(work.l3_bytes, peaks.l3_gbps);
        let memory = headroom(work.memory_bytes, peaks.memory_gbps);
        let (limit, bytes, gbps) = match l3 <= memory {
            true => (BoundBy::L3, work.l3_bytes, peaks.l3_gbps),
            false => (BoundBy::Memory, work.memory_bytes, peaks.memory_gbps),
        };
        let is_below = giga / (bytes / GIB) < peaks.of(FlopKind::Fp32) / gbps;
        let per = |bytes: f64| if bytes > 0.0 { flops / bytes } else { 0.0 };
        Self {
            share: work.ns / all_ns * 100.0,
            kind,
            gflops: flops / work.ns,
            bound_by: if is_below { limit } else { BoundBy::Compute },
            memory_intensity: per(work.memory_bytes),
            l3_intensity: per(work.l3_bytes),
            memory_headroom: memory,
            l3_headroom: l3,
            work,
        }
    }
}

/// Puts kernels under the roofs, those that take longest first. `all_ns`: the time of all
/// kernels, also of those that are not among these.
pub fn rows(kernels: Vec<KernelWork>, all_ns: f64, peaks: &DevicePeaks) -> Vec<RooflineRow> {
    let timed = kernels.into_iter().filter(|work| work.ns > 0.0);
    let mut rows: Vec<_> = timed
        .map(|work| RooflineRow::of(work, all_ns, peaks))
        .collect();
    rows.sort_by(|a, b| {
        let order = b.work.ns.total_cmp(&a.work.ns);
        order.then_with(|| a.work.name.cmp(&b.work.name))
    });
    rows
}

/// The columns of the table.
const COLUMNS: &str = "kernel calls time:ns share:percent bound_by kind fp16:GFLOP/s:1 \
                       bf16_xmx:GFLOP/s:1 fp32:GFLOP/s:1 fp64:GFLOP/s:1 fp16_xmx:GFLOP/s:1 \
                       xmx_utilization:percent memory_intensity:FLOP/byte:2 \
                       l3_intensity:FLOP/byte:2 memory:GB/s:1 l3:GB/s:1 memory_headroom:times:2 \
                       l3_headroom:times:2";

/// The rows as a table.
pub fn table(rows: &[RooflineRow], peaks: &DevicePeaks, notes: Vec<String>) -> Table {
    let kind = |row: &RooflineRow, kind: FlopKind| {
        let flops = row.work.flops.get(kind as usize).copied();
        Cell::from(flops.map(|flops| flops / row.work.ns))
    };
    let lines = rows.iter().map(|row| {
        let mut cells = vec![
            Cell::from(row.work.name.as_str()),
            row.work.calls.into(),
            row.work.ns.into(),
            row.share.into(),
            row.bound_by.word().into(),
            row.kind.name().into(),
        ];
        cells.extend(FlopKind::ALL.map(|one| kind(row, one)));
        cells.extend([
            Cell::from(row.work.xmx_percent),
            row.memory_intensity.into(),
            row.l3_intensity.into(),
            (row.work.memory_bytes / row.work.ns).into(),
            (row.work.l3_bytes / row.work.ns).into(),
            row.memory_headroom.into(),
            row.l3_headroom.into(),
        ]);
        cells
    });
    Table {
        notes,
        ..Table::of(
            "roofline",
            format!("Roofline of {}", peaks.name),
            COLUMNS,
            lines,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peaks() -> DevicePeaks {
        let text = "PlatformName,\"made up\"\nFP16_GFLOPS,40000\nFP16_XMX_GFLOPS,300000\n\
                    BF16_XMX_GFLOPS,300000\nFP32_GFLOPS,20000\nFP64_GFLOPS,10000\n\
                    GPU_MEMORY_BW_in_GB_per_sec,1000\nL3_BW_in_GB_per_sec,2000\n";
        DevicePeaks::parse(text).unwrap()
    }

    #[test]
    fn peaks_are_lines() {
        let found = peaks();
        assert_eq!(found.name, "made up");
        assert_eq!(found.of(FlopKind::Fp64), 10000.0);
        assert_eq!(found.of(FlopKind::Bf16Xmx), 300000.0);
        let error = DevicePeaks::parse("FP16_GFLOPS,0\n").unwrap_err();
        assert_eq!(error, PeaksError::Missing("FP16_GFLOPS".to_owned()));
    }

    /// By hand: 1 s; 10 TFLOP of FP32; its memory or its L3 cache is the limit, or neither.
    #[test]
    fn a_kernel_is_bound_by_the_least_headroom() {
        let work = |memory: f64, l3: f64| KernelWork {
            name: "k".to_owned(),
            calls: 1,
            ns: 1e9,
            flops: [0.0, 0.0, 1e13, 0.0, 0.0],
            memory_bytes: memory,
            l3_bytes: l3,
            ..KernelWork::default()
        };
        let of = |memory, l3| rows(vec![work(memory, l3)], 2e9, &peaks()).remove(0);
        let row = of(900e9, 1e9);
        assert_eq!((row.bound_by, row.kind), (BoundBy::Memory, FlopKind::Fp32));
        assert_eq!((row.share, row.gflops), (50.0, 10000.0));
        assert!((row.memory_intensity - 11.11).abs() < 0.01);
        // 10,000 / 838.19 = 11.93 FLOP/byte; 11.93 / (11.93 / 20,000 + 1 / 1,000) = 7,472.
        assert!((row.memory_headroom - 0.747).abs() < 0.001, "{row:?}");
        assert_eq!(of(1e9, 1900e9).bound_by, BoundBy::L3);
        assert_eq!(of(1e9, 1e9).bound_by, BoundBy::Compute);
        assert_eq!(of(0.0, 0.0).bound_by, BoundBy::Compute);
        assert!(rows(vec![KernelWork::default()], 1.0, &peaks()).is_empty());
    }
}
