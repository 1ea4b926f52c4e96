//! Logs of PyTorch's compiler: what a program printed with
//! `TORCH_LOGS=graph_breaks,recompiles`, also compressed.

use super::open;
use aiprof_system::files::caller;
use aiprof_system::memory::Metered;
use aiprof_trace::torch::log::TorchLog;
use std::io::{self, BufReader};
use std::path::Path;

/// Longest log that is read, bytes, decompressed.
const MAX_LOG: u64 = 1 << 30;

/// Reads a log.
///
/// # Errors
/// It cannot be read.
pub fn load(path: &Path) -> io::Result<TorchLog> {
    let log = caller::open(path).and_then(open::decompressed)?;
    TorchLog::read(&mut BufReader::new(Metered::log(log, MAX_LOG)))
}
