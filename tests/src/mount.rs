//! A small file system of a test's own.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workload::checked;

/// A mounted tmpfs, unmounted when dropped.
#[derive(Debug)]
pub struct Tmpfs {
    path: PathBuf,
}

impl Tmpfs {
    /// Mounts one of this many KiB on an existing directory.
    ///
    /// # Errors
    /// When mount(8) fails.
    pub fn mount(path: &Path, kib: u32) -> anyhow::Result<Self> {
        let size = format!("size={kib}k");
        checked(
            Command::new("mount")
                .args(["-t", "tmpfs", "-o", &size, "none"])
                .arg(path),
        )?;
        Ok(Self {
            path: path.to_owned(),
        })
    }

    /// Fills it to its last byte with the file `filler`.
    ///
    /// # Errors
    /// When writing fails for another reason than the lack of space.
    pub fn fill(&self) -> anyhow::Result<()> {
        use std::io::{ErrorKind, Write as _};
        let mut file = std::fs::File::create(self.path.join("filler"))?;
        let mut block = vec![b'x'; 4096];
        while !block.is_empty() {
            match file.write(&block) {
                Ok(n) if n > 0 => {}
                Err(error) if error.kind() != ErrorKind::StorageFull => return Err(error.into()),
                _ => block.truncate(block.len() / 2),
            }
        }
        Ok(())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // Lazily, so that a file still open somewhere does not keep it.
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}
