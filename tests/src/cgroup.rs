//! Control groups of version 2, which stand for containers and services.

use std::path::{Path, PathBuf};

/// A control group of version 2, removed when dropped: its processes must have
/// ended by then.
#[derive(Debug)]
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes one of this name below the root.
    ///
    /// # Errors
    /// Why it cannot be made.
    pub fn new(name: &str) -> Result<Self, String> {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
        let root = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let place = fields.next()?;
            (fields.next() == Some("cgroup2")).then_some(place)
        });
        let root = root.ok_or("no control groups of version 2 are mounted")?;
        let dir = Path::new(root).join(name);
        match std::fs::create_dir(&dir) {
            Ok(()) => Ok(Self(dir)),
            Err(error) => Err(format!("{}: {error}", dir.display())),
        }
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Moves a process into it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn add(&self, pid: u32) -> anyhow::Result<()> {
        Ok(std::fs::write(
            self.0.join("cgroup.procs"),
            pid.to_string(),
        )?)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Not before the kernel has let go of the last process.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
