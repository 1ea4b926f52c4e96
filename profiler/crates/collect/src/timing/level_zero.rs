//! Level Zero: the loader takes the helper for each driver of this machine.
//!
//! `ZE_ENABLE_ALT_DRIVERS` names the drivers that Level Zero's loader loads. Each gets a
//! copy of the helper with the driver's name written into it, twice: as the library that
//! the copy needs, which the dynamic linker loads with it, and as a text that the helper
//! reads. A driver that cannot be loaded leaves its copy unloaded, too, so the loader sees
//! what it would see without aiprof.

use crate::runtime::{in_linker_cache, own_variable};
use aiprof_system::files::caller;
use memchr::memmem;
use std::collections::BTreeSet;
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

/// What names the drivers.
pub(super) const DRIVERS: &str = "ZE_ENABLE_ALT_DRIVERS";
/// The helper, with room for a driver's name.
const HELPER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libaiprof-timing-ze.so"));
/// What is in that room, a NUL behind it.
const ROOM: &[u8] = include_bytes!("../../../timing/src/ze/driver_name.txt");
/// Drivers that the loader looks for by itself (level-zero,
/// source/loader/linux/driver_discovery_lin.cpp).
const KNOWN: [&str; 4] = [
    "libze_intel_gpu.so.1",
    "libze_intel_gpu_legacy1.so.1",
    "libze_intel_vpu.so.1",
    "libze_intel_npu.so.1",
];
/// Where libraries are without a cache's word.
const FOLDERS: [&str; 9] = [
    "/lib",
    "/usr/lib",
    "/usr/local/lib",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
];

/// A copy of the helper.
#[derive(Debug)]
pub(super) struct HelperCopy {
    /// Its file's name; the tables of probes know it by that (probes/timing.toml).
    pub(super) file: String,
    /// The driver behind it.
    pub(super) driver: OsString,
}

impl HelperCopy {
    /// Its content; `None`: the helper has no place for the name.
    pub(super) fn bytes(&self) -> Option<Vec<u8>> {
        written(HELPER, self.driver.as_bytes())
    }
}

/// One entry of the loader's list.
#[derive(Debug)]
pub(super) enum DriverEntry {
    /// The helper stands before the driver.
    Helper(HelperCopy),
    /// As the caller has it.
    AsIs(OsString),
}

/// The loader's list; empty: there is no driver.
pub(super) fn entries() -> Vec<DriverEntry> {
    drivers().into_iter().map(entry).collect()
}

fn entry(driver: OsString) -> DriverEntry {
    match has_room(driver.as_bytes()) {
        true => DriverEntry::Helper(HelperCopy {
            file: format!("libaiprof-timing-ze-{:016x}.so", hash(driver.as_bytes())),
            driver,
        }),
        false => DriverEntry::AsIs(driver),
    }
}

/// Whether a driver's name can be written into the helper.
fn has_room(driver: &[u8]) -> bool {
    !driver.is_empty() && driver.len() < ROOM.len() && !driver.contains(&0)
}

/// The caller's drivers, else those that the loader finds.
fn drivers() -> Vec<OsString> {
    if let Some(list) = own_variable(DRIVERS) {
        let names = list.as_bytes().split(|byte| *byte == b',');
        return names
            .map(|name| OsString::from_vec(name.to_vec()))
            .collect();
    }
    let wanted = |path: &str| KNOWN.iter().any(|name| path.ends_with(&format!("/{name}")));
    let found = in_linker_cache(Path::new("/etc/ld.so.cache"), wanted);
    let mut names: BTreeSet<OsString> = found
        .iter()
        .filter_map(|path| path.file_name().map(OsStr::to_owned))
        .collect();
    let paths = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let own = env::split_paths(&paths).filter(|folder| folder.is_absolute());
    let folders: Vec<PathBuf> = own.chain(FOLDERS.map(PathBuf::from)).collect();
    for name in KNOWN {
        if folders
            .iter()
            .any(|folder| caller::is_file(folder.join(name)))
        {
            names.insert(name.into());
        }
    }
    let in_order = KNOWN.into_iter().map(OsString::from);
    in_order.filter(|name| names.contains(name)).collect()
}

/// The helper with a driver's name in it; `None`: it has no room for that.
fn written(helper: &[u8], driver: &[u8]) -> Option<Vec<u8>> {
    let mark = ROOM.strip_suffix(b"\0").filter(|_| has_room(driver))?;
    let mut bytes = helper.to_vec();
    let mut written = 0;
    let mut from = 0;
    while let Some(at) = memmem::find(bytes.get(from..)?, mark) {
        let room = bytes.get_mut(from + at..)?.get_mut(..mark.len())?;
        room.fill(0);
        room.get_mut(..driver.len())?.copy_from_slice(driver);
        written += 1;
        from += at + mark.len();
    }
    (written == 2).then_some(bytes)
}

/// FNV-1a, of 64 bits.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_s_name_is_written_into_both_places() {
        let name = b"/opt/x/libze_intel_gpu.so.1";
        let bytes = written(HELPER, name).unwrap();
        assert_eq!(bytes.len(), HELPER.len());
        let mut from = 0;
        let mut found = 0;
        while let Some(at) = memmem::find(&bytes[from..], name) {
            assert_eq!(bytes[from + at + name.len()], 0);
            found += 1;
            from += at + 1;
        }
        assert_eq!(found, 2);
        assert_eq!(
            memmem::find(&bytes, b"aiprof: name of the Level Zero driver"),
            None
        );
    }

    #[test]
    fn what_is_no_name_stays_as_it_is() {
        for name in [&b""[..], b"a\0b", &[b'x'; 1024]] {
            assert!(written(HELPER, name).is_none());
        }
        let name = OsString::from_vec(vec![b'x'; 2000]);
        assert!(matches!(entry(name.clone()), DriverEntry::AsIs(same) if same == name));
    }
}
