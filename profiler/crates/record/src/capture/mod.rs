//! The capture file: the recorded event stream, replayed without root, device
//! or the profiled machine.
//!
//! Layout: `MAGIC`, then one zstd stream of records, each a little-endian
//! `u32` length and that many bytes of a `CaptureRecord` in postcard's encoding. The
//! first record is the header, the last one the end mark: without it the capture
//! was cut off, which is reported, and what is there is used.

#[cfg(test)]
mod golden;
mod reader;
mod replay;
mod scan;
#[cfg(test)]
mod tests;
mod writer;

pub use reader::{Contents, StoredNames, contents, for_each_event};
#[cfg(any(test, feature = "testing"))]
pub use replay::testing::fuzz_capture;
pub use replay::{DeviceReplay, ReplayOptions, replay, replay_devices, replay_from, replay_slices};
pub use scan::{CaptureItem, Scanned, scan, scan_file};
pub use writer::{CaptureWriter, ResolvedNames};

use crate::aggregate::Code;
use aiprof_model::{
    profile::{Losses, Meta},
    wire::Event,
};
use aiprof_symbols::{symbolize::SymFrame, unwind::TextSegment};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, io, path::PathBuf};

use aiprof_system::memory::LimitError;

/// First bytes of a capture; the digit is the version of the format.
pub const MAGIC: &[u8; 8] = b"aiprof\x003";

/// Why a capture could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be opened or read.
    #[error("{}: cannot be read", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is no capture.
    #[error("{}: not an aiprof capture (`aiprof -o FILE.aiprof` writes one)", .0.display())]
    NotACapture(PathBuf),
    /// The file is a capture of another version.
    #[error("{}: a capture of format version {found}; this aiprof reads version {}", .path.display(), char::from(MAGIC[7]))]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: char,
    },
    /// It needs more memory than may be used.
    #[error("{}: {limit}", .path.display())]
    Limit {
        /// The file.
        path: PathBuf,
        /// How much that is.
        limit: LimitError,
    },
    /// Not even the capture's header is whole.
    #[error("{}: truncated or corrupt: it ends within its header", .0.display())]
    Headless(PathBuf),
}

/// What a capture is made of.
#[derive(Debug, Serialize, Deserialize)]
enum CaptureRecord {
    Header {
        meta: Meta,
        period_ns: u64,
    },
    Events(Vec<Event>),
    Names(Vec<(Code, Vec<SymFrame>)>),
    Text {
        file: u32,
        segments: Vec<TextSegment>,
    },
    Cgroup {
        id: u64,
        path: String,
    },
    End {
        meta: Meta,
        losses: Losses,
        /// Busy nanoseconds by CPU, for samples of a hardware counter.
        busy: BTreeMap<u32, u64>,
    },
}
