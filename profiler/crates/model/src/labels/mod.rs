//! Labels: where a process ran, and what else is known of it, as keys and values.
//!
//! Container, pod and unit are in the path of the control group
//! ([`CgroupLabels`]); user, rank and the labels of the whole recording are recorded
//! as [`ProcessLabels`](crate::wire::ProcessLabels).

mod cgroup;
mod set;

pub use cgroup::CgroupLabels;
pub use set::LabelSet;

use std::borrow::Cow;
use std::collections::BTreeMap;

/// The labels that are shown of a process: what the path of its control group names, then
/// its own, then those of the recording; in the order of the keys.
pub fn shown(
    cgroup: Option<&str>,
    of_process: &[(String, String)],
    of_recording: &[(String, String)],
) -> Vec<(String, String)> {
    let found = CgroupLabels::of(cgroup.unwrap_or_default());
    let pod = found.pod.map(pod_name);
    let of_path = [
        (CONTAINER, found.container),
        (POD, pod.as_deref()),
        (UNIT, found.unit),
    ];
    let recorded = of_recording.iter().chain(of_process);
    let recorded = recorded.map(|(key, value)| (key.as_str(), value.as_str()));
    let of_path = of_path
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)));
    // The last of a key counts.
    let all: BTreeMap<&str, &str> = recorded.chain(of_path).collect();
    all.into_iter()
        .filter(|(key, _)| *key != UID)
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// The id of a pod as Kubernetes writes it: systemd's slices have `_` for `-`.
pub(crate) fn pod_name(id: &str) -> Cow<'_, str> {
    match id.contains('_') {
        true => id.replace('_', "-").into(),
        false => id.into(),
    }
}

/// Id of the container that a process runs in.
pub const CONTAINER: &str = "container";
/// Id of its Kubernetes pod.
pub const POD: &str = "pod";
/// Name of its Kubernetes pod.
pub const POD_NAME: &str = "pod_name";
/// Its Kubernetes namespace.
pub const NAMESPACE: &str = "namespace";
/// Name of its container in its Kubernetes pod.
pub const CONTAINER_NAME: &str = "container_name";
/// What its samples are filed under: given by `--label`, or made of the others.
pub const SERVICE: &str = "service";
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

/// The accelerator that it uses, or that a sample is of.
pub const DEVICE: &str = "device";
/// Value of [`DEVICE`] where there are several.
pub const SEVERAL: &str = "several";

/// Keys that aiprof gives a meaning to: none of them can be given to a recording.
pub const RESERVED: [&str; 22] = [
    CONTAINER,
    POD,
    POD_NAME,
    NAMESPACE,
    CONTAINER_NAME,
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
    DEVICE,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_counts_before_the_process_and_that_before_the_recording() {
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let own = [
            label(RANK, "3"),
            label(UID, "0"),
            label(UNIT, "old.service"),
        ];
        let all = [label("job", "llm"), label(RANK, "9")];
        let path = "/kubepods.slice/kubepods-pod1_2.slice/a.scope";
        let shown = |path| shown(path, &own, &all);
        let expected = [
            label("job", "llm"),
            label(RANK, "3"),
            label(UNIT, "old.service"),
        ];
        assert_eq!(shown(None), expected);
        let with_path = shown(Some(path));
        assert!(with_path.contains(&label(UNIT, "a.scope")), "{with_path:?}");
        assert!(!with_path.iter().any(|(key, _)| key == UID));
    }
}
