//! An initramfs: a cpio archive in the "newc" format that the kernel unpacks
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::proc::capture;

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// The files of an initramfs, by absolute path.
#[derive(Clone)]
pub(crate) struct Initramfs {
    files: BTreeMap<String, (u32, Vec<u8>)>,
}

impl Initramfs {
    pub(crate) fn new() -> Self {
        Self {
            files: BTreeMap::new(),
        }
    }

    /// Adds a file with permissions `mode`.
    pub(crate) fn file(&mut self, path: &str, mode: u32, data: Vec<u8>) {
        self.files.insert(path.to_string(), (mode, data));
    }

    /// Adds the program `from` as `path`, with the shared libraries it needs
    /// where its loader looks for them.
    pub(crate) fn program(&mut self, path: &str, from: &Path) -> Result<()> {
        self.file(path, 0o755, read(from)?);
        for library in libraries(from) {
            self.file(&library.to_string_lossy(), 0o755, read(&library)?);
        }
        Ok(())
    }

    /// The archive. Folders come before what they hold, which the kernel needs.
    pub(crate) fn into_cpio(self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut folders = BTreeSet::from(["dev".to_string()]);
        for path in self.files.keys() {
            let parents = Path::new(path.trim_start_matches('/')).ancestors().skip(1);
            folders.extend(
                parents
                    .map(|p| p.to_string_lossy().into_owned())
                    .filter(|p| !p.is_empty()),
            );
        }
        for folder in &folders {
            entry(&mut out, folder, DIRECTORY | 0o755, (0, 0), &[]);
        }
        // init's standard streams, before anything is mounted on /dev.
        entry(
            &mut out,
            "dev/console",
            CHARACTER_DEVICE | 0o600,
            (5, 1),
            &[],
        );
        for (path, (mode, data)) in &self.files {
            entry(
                &mut out,
                path.trim_start_matches('/'),
                REGULAR | mode,
                (0, 0),
                data,
            );
        }
        entry(&mut out, "TRAILER!!!", 0, (0, 0), &[]);
        out
    }
}

/// One entry: a header of 13 eight-digit numbers, the name, the data, each
/// padded to four bytes.
fn entry(out: &mut Vec<u8>, name: &str, mode: u32, device: (u32, u32), data: &[u8]) {
    let (inode, links) = (out.len(), 1);
    let numbers = [
        inode as u32,
        mode,
        0,
        0,
        links,
        0,
        data.len() as u32,
        0,
        0,
        device.0,
        device.1,
        name.len() as u32 + 1,
        0,
    ];
    out.extend_from_slice(b"070701");
    for number in numbers {
        out.extend_from_slice(format!("{number:08X}").as_bytes());
    }
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    out.resize(out.len().next_multiple_of(4), 0);
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The shared libraries of a program and its loader; none when it is static
/// (ldd fails then).
fn libraries(program: &Path) -> Vec<PathBuf> {
    let text = capture(Command::new("ldd").arg(program)).unwrap_or_default();
    text.lines()
        .filter_map(library)
        .map(PathBuf::from)
        .collect()
}

/// The path in a line of ldd's: `libc.so.6 => /lib/libc.so.6 (0x7f..)`, or
/// `/lib64/ld-linux-x86-64.so.2 (0x7f..)`. The vdso has none.
fn library(line: &str) -> Option<&str> {
    line.split_whitespace().find(|word| word.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_ldd() {
        assert_eq!(
            library("\tlibc.so.6 => /lib/libc.so.6 (0x7f)"),
            Some("/lib/libc.so.6")
        );
        assert_eq!(library("\t/lib64/ld.so.2 (0x7f)"), Some("/lib64/ld.so.2"));
        assert_eq!(library("\tlinux-vdso.so.1 (0x7f)"), None);
        assert_eq!(library("\tnot a dynamic executable"), None);
    }

    /// If neither Python nor cpio is there, the format itself is still checked: a header at each
    /// multiple of four bytes, names and sizes at their places.
    #[test]
    fn writes_newc() {
        let mut initramfs = Initramfs::new();
        initramfs.file("/bin/tool", 0o755, b"12345".to_vec());
        let out = initramfs.into_cpio();
        assert_eq!(out.len() % 4, 0);
        let mut names = Vec::new();
        let mut at = 0;
        while at < out.len() {
            assert_eq!(&out[at..at + 6], b"070701");
            let number = |i: usize| {
                let text = std::str::from_utf8(&out[at + 6 + 8 * i..at + 14 + 8 * i]).unwrap();
                usize::from_str_radix(text, 16).unwrap()
            };
            let (mode, size, name_size) = (number(1), number(6), number(11));
            let name = &out[at + 110..at + 110 + name_size - 1];
            names.push((String::from_utf8(name.to_vec()).unwrap(), mode, size));
            at = (at + 110 + name_size).next_multiple_of(4);
            at = (at + size).next_multiple_of(4);
        }
        let expected = [
            ("bin", 0o040_755, 0),
            ("dev", 0o040_755, 0),
            ("dev/console", 0o020_600, 0),
            ("bin/tool", 0o100_755, 5),
            ("TRAILER!!!", 0, 0),
        ];
        assert_eq!(
            names,
            expected.map(|(name, mode, size)| (name.to_string(), mode, size))
        );
    }
}
