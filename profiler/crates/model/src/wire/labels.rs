//! Labels of processes.

use serde::{Deserialize, Serialize};

/// Labels of a process, or of the whole recording; of an equal key the last counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLabels {
    /// CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// Process id in the root pid namespace; 0: all that is recorded.
    pub pid: u32,
    /// Keys and values, see [`labels`](crate::labels).
    pub labels: Vec<(String, String)>,
}
