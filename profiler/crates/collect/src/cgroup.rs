//! Control groups: their paths by id, and ids by path.

use super::bpf::perf;
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

/// The id of a control group: the inode number of its directory.
///
/// # Errors
/// It does not exist or is no directory.
pub(crate) fn id_of(path: &Path) -> io::Result<u64> {
    let meta = caller::metadata(path)?;
    if !meta.is_dir() {
        return Err(io::Error::other("not a control group (no directory)"));
    }
    Ok(meta.ino())
}
