//! Control groups: their paths by id, and ids by path.

use super::bpf::perf;
use std::{fs, io, os::unix::fs::MetadataExt, path::Path};

/// Where cgroup v2 is mounted.
const ROOT: &str = "/sys/fs/cgroup";

/// The path of a control group below the cgroup v2 mount, `/` for the root.
pub fn path_of(id: u64) -> Option<String> {
    if id == 0 {
        return None;
    }
    perf::cgroup_path(Path::new(ROOT), id)
}

/// The id of a control group: the inode number of its directory.
///
/// # Errors
/// It does not exist or is no directory.
pub fn id_of(path: &Path) -> io::Result<u64> {
    let meta = fs::metadata(path)?;
    if !meta.is_dir() {
        return Err(io::Error::other("not a control group (no directory)"));
    }
    Ok(meta.ino())
}
