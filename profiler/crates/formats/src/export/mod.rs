//! Writers: one file per output format; [`FORMATS`] lists them.
//!
//! Writers open no files and read no clock. Their output depends on the profile
//! and the options alone, byte for byte, so that tests can compare it.
//! The formats are described in `docs/output-formats.md`.

pub mod analysis_text;
pub mod chrome;
mod code;
pub mod device;
mod device_kernels;
pub mod diff;
pub mod findings;
mod flame;
pub mod folded;
pub mod formats;
pub mod html;
pub mod iaprof;
mod launchers;
mod launches;
pub(crate) mod names;
pub mod otlp;
mod palette;
pub mod perfetto;
pub mod pprof;
pub mod push;
mod services;
mod stacks;
pub mod stalls;
pub mod summary;
pub mod svg;
pub mod tables;
mod text;
pub mod trace;
pub mod trace_events;
pub mod unitrace_csv;

pub use formats::{FORMATS, FileFormat, FormatSource};
pub use launchers::processes_left_out;
pub(crate) use stacks::round_to_microseconds;

use aiprof_model::profile::Sample;
use std::io;

/// What the number behind a stack, or the width of a frame, means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Weight {
    /// On-CPU time, and busy time of devices, in microseconds.
    #[default]
    Time,
    /// Number of samples, or of launches.
    Samples,
    /// Bytes moved by launches.
    Bytes,
}

/// Which samples are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Shown {
    /// All.
    #[default]
    All,
    /// Those of CPUs.
    Cpu,
    /// Those of devices.
    Device,
}

impl Shown {
    /// Whether a sample is shown.
    pub fn includes(self, sample: &Sample) -> bool {
        match self {
            Self::All => true,
            Self::Cpu => sample.device.is_none(),
            Self::Device => sample.device.is_some(),
        }
    }
}

/// Options of all writers. pprof carries all weights; `weight` is the one that is
/// shown first.
#[derive(Clone, Debug, PartialEq)]
pub struct ExportOptions {
    /// What folded values and frame widths mean.
    pub weight: Weight,
    /// Which samples are written.
    pub shown: Shown,
    /// Write stacks from the leaf to the root: what the device (or the CPU) does
    /// first, who had it done above. Folded stacks and flame graphs only.
    pub inverted: bool,
    /// Move the stall reason of device samples to the front of their device frames,
    /// so that they are merged by it first. Folded stacks and flame graphs only.
    pub by_stall: bool,
    /// Begin every stack with the value of this label: `container=0123`, before the name
    /// of the process. Folded stacks and flame graphs only.
    pub by_label: Option<String>,
    /// Write where in the source a frame is after its name: `parse (json.c:42)`, so that
    /// the same function at another line is another frame. Only for code on CPUs, and where
    /// the profile has it. Folded stacks and flame graphs only.
    pub source_lines: bool,
    /// Start folded output with a `# ` comment per loss and about device samples,
    /// which flame graph tools skip. Folded stacks only.
    pub loss_comments: bool,
    /// Write CPU samples of all processes also where devices were sampled. Otherwise a
    /// profile of both has the processes that launched work ([`processes_left_out`] counts
    /// the others). Flame graphs, folded stacks, pprof and OTLP only.
    pub all_processes: bool,
    /// Frames narrower than this share of the whole, in percent, are not drawn.
    /// Flame graphs only.
    pub min_width_percent: f64,
    /// Width of texts in characters. The summary only.
    pub width: usize,
    /// Whether texts have ANSI colours. The summary only.
    pub color: bool,
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self {
            weight: Weight::Time,
            shown: Shown::All,
            inverted: false,
            by_stall: false,
            by_label: None,
            source_lines: false,
            loss_comments: false,
            all_processes: false,
            // A tenth of a pixel at the usual width of a browser window.
            min_width_percent: 0.01,
            width: 80,
            color: false,
        }
    }
}

/// Why a profile could not be written or a folded file not be read.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// Reading or writing failed. A closed pipe is
    /// [`io::ErrorKind::BrokenPipe`].
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A line of a folded file is not `STACK VALUE`.
    #[error("line {line}: not a folded stack (expected `frame;frame;... VALUE`)")]
    NotFolded {
        /// Line number, from 1.
        line: u64,
    },
    /// A line of a folded file has no space before its value.
    #[error(
        "line {line}: no space before the value (iaprof of July 2025, tag `tiber`, writes such \
         lines); correct the file with: sed -E 's/(_\\[g\\])([0-9]+)$/\\1 \\2/'"
    )]
    NoSpace {
        /// Line number, from 1.
        line: u64,
    },
    /// A line of a folded file is longer than [`folded::MAX_LINE`].
    #[error("line {line} is too long (limit: {max} bytes)", max = folded::MAX_LINE)]
    LineTooLong {
        /// Line number, from 1.
        line: u64,
    },
    /// A folded file is larger than [`folded::MAX_INPUT`].
    #[error(
        "the file is too large: aiprof reads at most {max} bytes of folded stacks",
        max = folded::MAX_INPUT
    )]
    InputTooLarge,
    /// The values of a folded file add up to more than [`folded::MAX_TOTAL`].
    #[error(
        "line {line}: the sum of the values up to here exceeds the limit of {max}",
        max = folded::MAX_TOTAL
    )]
    TotalTooLarge {
        /// Line number, from 1.
        line: u64,
    },
    /// The weights of a profile add up to more than [`folded::MAX_TOTAL`].
    #[error("the sum of the samples' weights exceeds the limit of {max}", max = folded::MAX_TOTAL)]
    WeightsTooLarge,
}
