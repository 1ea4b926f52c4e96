//! Control groups: their paths by id, and ids by path.

use super::{bpf::perf, procfs};
use aiprof_model::labels::CgroupLabels;
use aiprof_system::files::{caller, kernel};
use std::{io, os::unix::fs::MetadataExt, path::Path};

/// Where cgroup v2 is mounted: where version 1 has the usual place, systemd puts
/// version 2 below it.
const ROOTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// The root of the cgroup v2 hierarchy.
pub fn root() -> &'static Path {
    let mounted = ROOTS.into_iter().map(Path::new).find(|root| is_group(root));
    mounted.unwrap_or(Path::new(ROOTS[0]))
}

/// Whether a directory is a control group of version 2: only it has this file.
pub fn is_group(directory: &Path) -> bool {
    caller::exists(directory.join("cgroup.controllers"))
}

/// The path of a control group below the cgroup v2 mount, `/` for the root.
pub fn path_of(id: u64) -> Option<String> {
    if id == 0 {
        return None;
    }
    perf::cgroup_path(root(), id)
}

/// The path of the control group that a process is in (cgroups(7), `0::/path`).
pub(crate) fn path_of_process(pid: u32) -> Option<String> {
    let text = kernel::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(path.to_owned())
}

/// The paths of all control groups that a process is in, of both versions. Those of
/// version 1 differ by controller.
pub(crate) fn paths_of_process(pid: u32) -> Vec<String> {
    let text = kernel::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let mut paths: Vec<String> = text
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .map(str::to_owned)
        .collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// Whether this machine has control groups of version 1 too: containers may be in those
/// alone.
pub(crate) fn has_version_1() -> bool {
    let text = kernel::read_to_string("/proc/self/cgroup").unwrap_or_default();
    text.lines().any(|line| !line.starts_with("0::"))
}

/// The containers that processes are in now, each once.
pub fn containers() -> Vec<String> {
    let mut found: Vec<String> = procfs::processes()
        .iter()
        .flat_map(|process| paths_of_process(process.pid))
        .filter_map(|path| CgroupLabels::of(&path).container.map(str::to_owned))
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The id of a control group: the inode number of its directory.
///
/// # Errors
/// It does not exist or is no directory.
pub(crate) fn id_of(path: &Path) -> io::Result<u64> {
    let meta = caller::metadata(path)?;
    if !meta.is_dir() {
        return Err(io::Error::other("not a directory"));
    }
    Ok(meta.ino())
}
