//! Labels: where a process ran, and what else is known of it, as keys and values.
//!
//! Container, pod and unit are in the path of the control group
//! ([`CgroupLabels`]); user, rank and the labels of the whole recording are recorded
//! as [`ProcessLabels`](crate::wire::ProcessLabels).

mod cgroup;
mod set;

pub use cgroup::CgroupLabels;
pub use set::LabelSet;

/// Id of the container that a process runs in.
pub const CONTAINER: &str = "container";
/// Id of its Kubernetes pod.
pub const POD: &str = "pod";
/// Its systemd unit.
pub const UNIT: &str = "unit";
/// Its user: the name that this machine has for it, else the number.
pub const USER: &str = "user";
/// The number of its user. Recorded for filters; not shown.
pub const UID: &str = "uid";
/// Its rank in a job of several processes.
pub const RANK: &str = "rank";
/// Its rank among those on this machine.
pub const LOCAL_RANK: &str = "local_rank";

/// Keys that aiprof gives a meaning to: none of them can be given to a recording.
pub const RESERVED: [&str; 19] = [
    CONTAINER,
    POD,
    UNIT,
    USER,
    UID,
    RANK,
    LOCAL_RANK,
    "pid",
    "tid",
    "comm",
    "thread",
    "cgroup",
    "device",
    "method",
    "certain",
    "possible",
    "thread_id",
    "process",
    "id",
];

/// Most labels of a process.
pub const MAX_LABELS: usize = 32;
/// Longest key, in bytes.
pub const MAX_KEY: usize = 63;
/// Longest value, in bytes.
pub const MAX_VALUE: usize = 255;
