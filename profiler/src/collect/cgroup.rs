//! Control groups: their paths by id, and ids by path.

use super::bpf::perf;
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// Where cgroup v2 is mounted: `/sys/fs/cgroup`, or below it where version 1 is
/// mounted there too.
fn root() -> Option<&'static Path> {
    static ROOT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || find_mount(&fs::read_to_string("/proc/self/mounts").ok()?);
    ROOT.get_or_init(find).as_deref()
}

/// `DEVICE DIRECTORY TYPE OPTIONS ...`, a line a mount (proc_pid_mounts(5)).
fn find_mount(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let directory = fields.next()?;
        (fields.next()? == "cgroup2").then(|| PathBuf::from(directory))
    })
}

/// The path of a control group below the cgroup v2 mount, `/` for the root.
pub fn path_of(id: u64) -> Option<String> {
    if id == 0 {
        return None;
    }
    perf::cgroup_path(root()?, id)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_mount_of_version_2() {
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
            cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
            cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(find_mount(hybrid), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(find_mount("proc /proc proc rw 0 0\n\nbroken\n"), None);
    }
}
