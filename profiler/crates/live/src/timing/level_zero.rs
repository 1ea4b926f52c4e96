//! Level Zero: the loader takes the helper for each driver of this machine.
//!
//! The loader asks the dynamic linker for its drivers by their names. A folder before all
//! others (`LD_LIBRARY_PATH`) has links of these names to copies of the helper. Where a
//! program cannot use that folder (another user, another mount namespace), the linker looks
//! on, and finds the driver itself: so no program loses its devices. A list of drivers with
//! both in it (`ZE_ENABLE_ALT_DRIVERS`) would not do: the loader calls by other ways as soon
//! as the list has two entries (level-zero, `intercept_enabled`).
//!
//! Each copy has the path of its driver written into it, twice. One is the library that the copy
//! needs, which the dynamic linker loads with it. The other is a text that the helper reads.

use crate::runtime::{in_linker_cache, own_variable};
use aiprof_system::files::caller;
use memchr::memmem;
use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// What names other drivers than those that the loader looks for by itself.
pub(super) const DRIVERS: &str = "ZE_ENABLE_ALT_DRIVERS";
/// Folders in which the dynamic linker looks first.
pub(super) const LIBRARIES: &str = "LD_LIBRARY_PATH";
/// What the names of the copies begin with.
const PREFIX: &str = "libaiprof-timing-ze-";
/// The helper, with room for a driver's name.
const HELPER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libaiprof-timing-ze.so"));
/// What is in that room, a NUL behind it.
const ROOM: &[u8] = include_bytes!("../../../inject/src/ze/driver_name.txt");
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

/// The folder of links.
#[derive(Debug, Default)]
pub(super) struct DriverLinks {
    /// Drivers that the helper stands before.
    pub(super) timed: Vec<TimedDriver>,
    /// The caller's list, with the names of these drivers alone; `None`: there is no list.
    pub(super) list: Option<OsString>,
    /// Folders of drivers that the caller's list has by their paths.
    folders: Vec<PathBuf>,
    /// Entries of that list that the helper cannot stand before.
    pub(super) left_out: Vec<OsString>,
}

/// A driver that the helper stands before.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TimedDriver {
    /// What the loader asks for.
    pub(super) name: OsString,
    /// The driver's file.
    driver: PathBuf,
}

impl TimedDriver {
    /// The name of its copy of the helper; the tables of probes know it by that
    /// (probes/timing.toml).
    pub(super) fn file(&self) -> String {
        format!(
            "{PREFIX}{:016x}.so",
            hash(self.driver.as_os_str().as_bytes())
        )
    }

    /// The content of the copy; `None`: the helper has no place for the path.
    pub(super) fn bytes(&self) -> Option<Vec<u8>> {
        written(HELPER, self.driver.as_os_str().as_bytes())
    }
}

impl DriverLinks {
    /// Those of this machine and the caller. `place`: the directory of the helpers.
    pub(super) fn find(place: &Path) -> Self {
        let search = LibrarySearch::new(own_variable(LIBRARIES));
        let list = own_variable(DRIVERS);
        match is_listable(place) {
            true => Self::of(list.as_deref(), &search),
            false => Self::default(),
        }
    }

    fn of(list: Option<&OsStr>, search: &LibrarySearch) -> Self {
        let mut links = Self::default();
        let Some(list) = list else {
            let named = KNOWN
                .iter()
                .filter_map(|name| search.timed(OsStr::new(name)));
            links.timed.extend(named);
            return links;
        };
        let entries = list.as_bytes().split(|byte| *byte == b',');
        let entries: Vec<&OsStr> = entries.map(OsStr::from_bytes).collect();
        let names = entries
            .iter()
            .map(|entry| links.name_of(entry, &entries, search));
        let names: Vec<&OsStr> = names.collect();
        links.list = Some(names.join(OsStr::new(",")));
        links
    }

    /// One of the entries of the caller's list, as the new list has it.
    fn name_of<'a>(
        &mut self,
        entry: &'a OsStr,
        all: &[&OsStr],
        search: &LibrarySearch,
    ) -> &'a OsStr {
        let path = Path::new(entry);
        let (Some(name), Some(folder)) = (path.file_name(), path.parent()) else {
            return entry;
        };
        if name == entry {
            // What the linker does not find, the loader does not get.
            let is_new = self.timed.iter().all(|timed| timed.name != name);
            self.timed.extend(search.timed(name).filter(|_| is_new));
            return entry;
        }
        let has_name = |other: &&&OsStr| Path::new(other).file_name() == Some(name);
        let is_found_by_name = path.is_absolute()
            && is_listable(folder)
            && has_room(entry.as_bytes())
            && all.iter().filter(has_name).count() == 1
            && !search.has_before(folder, name);
        if !is_found_by_name {
            self.left_out.push(entry.to_owned());
            return entry;
        }
        self.timed.push(TimedDriver {
            name: name.to_owned(),
            driver: path.to_owned(),
        });
        self.folders.push(folder.to_owned());
        name
    }

    /// The folder of the links; others have other links.
    pub(super) fn folder(&self) -> String {
        let pairs = self
            .timed
            .iter()
            .flat_map(|timed| [timed.name.as_os_str(), timed.driver.as_os_str()]);
        let text = pairs.collect::<Vec<_>>().join(OsStr::new("\0"));
        format!("level-zero-{:016x}", hash(text.as_bytes()))
    }

    /// Where the linker looks: for the links, then where the caller wants it, then for what
    /// the caller's list has by its path.
    pub(super) fn libraries(&self, folder: &Path) -> OsString {
        let own = own_variable(LIBRARIES).filter(|own| !own.is_empty());
        let before = [folder.as_os_str().to_owned()].into_iter().chain(own);
        let after = self
            .folders
            .iter()
            .map(|folder| folder.as_os_str().to_owned());
        before
            .chain(after)
            .collect::<Vec<_>>()
            .join(OsStr::new(":"))
    }
}

/// Whether a folder can be in the linker's list: there these bytes mean something else.
fn is_listable(folder: &Path) -> bool {
    let bytes = folder.as_os_str().as_bytes();
    !bytes
        .iter()
        .any(|byte| matches!(byte, b':' | b';' | b'$' | 0))
}

/// Whether a driver's name can be written into the helper, and the linker takes it as it is.
fn has_room(driver: &[u8]) -> bool {
    let is_plain = !driver.contains(&0) && !driver.contains(&b'$');
    !driver.is_empty() && driver.len() < ROOM.len() && is_plain
}

/// Where the dynamic linker looks for a library, in its order.
struct LibrarySearch {
    own: Vec<PathBuf>,
}

impl LibrarySearch {
    fn new(variable: Option<OsString>) -> Self {
        let variable = variable.unwrap_or_default();
        let folders = variable
            .as_bytes()
            .split(|byte| matches!(byte, b':' | b';'));
        let folders = folders.map(|folder| PathBuf::from(OsStr::from_bytes(folder)));
        Self {
            own: folders.filter(|folder| folder.is_absolute()).collect(),
        }
    }

    /// A driver of this name, if there is one that the helper can stand before.
    fn timed(&self, name: &OsStr) -> Option<TimedDriver> {
        let wanted = |path: &str| Path::new(path).file_name() == Some(name);
        let cached = in_linker_cache(Path::new("/etc/ld.so.cache"), wanted);
        let own = self.own.iter().map(|folder| folder.join(name));
        let usual = FOLDERS.iter().map(|folder| Path::new(folder).join(name));
        let mut all = own.chain(cached).chain(usual);
        let driver = all.find(|path| is_driver(path))?;
        has_room(driver.as_os_str().as_bytes()).then(|| TimedDriver {
            name: name.to_owned(),
            driver,
        })
    }

    /// Whether the caller's folders have another file of this name than this folder.
    fn has_before(&self, folder: &Path, name: &OsStr) -> bool {
        let mut others = self.own.iter().filter(|other| *other != folder);
        others.any(|other| is_driver(&other.join(name)))
    }
}

/// Whether the linker of a program like this one takes a file, which is not the helper: a
/// program below another aiprof finds that one's links, too.
fn is_driver(path: &Path) -> bool {
    let is_helper = |path: PathBuf| {
        let name = path.file_name().map(OsStr::as_bytes);
        name.is_some_and(|name| name.starts_with(PREFIX.as_bytes()))
    };
    let mut header = [0; HEADER];
    let read = caller::open_regular(path).and_then(|mut file| file.read_exact(&mut header));
    read.is_ok() && is_native(&header) && !caller::canonicalize(path).is_ok_and(is_helper)
}

/// Bytes of an ELF file up to its machine.
const HEADER: usize = 20;
/// ELF, of 64 bits.
const CLASS: &[u8] = b"\x7fELF\x02";
/// `EM_X86_64`, `EM_AARCH64`.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") {
    183
} else {
    62
};

fn is_native(header: &[u8; HEADER]) -> bool {
    header.starts_with(CLASS) && header.ends_with(&MACHINE.to_le_bytes())
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
    fn what_is_no_name_is_not_written() {
        for name in [&b""[..], b"a\0b", &[b'x'; 1024]] {
            assert!(written(HELPER, name).is_none());
        }
    }

    /// Folders with drivers of these names, which hold nothing but a header.
    fn folders(all: &[(&str, &[&str])]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut header = [0; HEADER];
        header[..CLASS.len()].copy_from_slice(CLASS);
        header[HEADER - 2..].copy_from_slice(&MACHINE.to_le_bytes());
        for (folder, names) in all {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
            for name in *names {
                std::fs::write(dir.path().join(folder).join(name), header).unwrap();
            }
        }
        dir
    }

    fn timed(name: &str, driver: PathBuf) -> TimedDriver {
        TimedDriver {
            name: name.into(),
            driver,
        }
    }

    #[test]
    fn drivers_are_found_as_the_linker_finds_them() {
        let dir = folders(&[("a", &[]), ("b", &["libx.so.1"]), ("c", &["libx.so.1"])]);
        let at = |path: &str| dir.path().join(path);
        // No library, a helper, then the driver.
        std::fs::write(at("a/libx.so.1"), "text").unwrap();
        let helper = at("libaiprof-timing-ze-0.so");
        std::fs::rename(at("b/libx.so.1"), &helper).unwrap();
        std::os::unix::fs::symlink(&helper, at("b/libx.so.1")).unwrap();
        let variable = [at("a"), at("b"), "relative".into(), at("c")];
        let search = LibrarySearch::new(std::env::join_paths(variable).ok());
        let links = DriverLinks::of(Some(OsStr::new("libx.so.1,libnone.so.1,")), &search);
        assert_eq!(links.timed, [timed("libx.so.1", at("c/libx.so.1"))]);
        assert_eq!(
            links.list.as_deref(),
            Some(OsStr::new("libx.so.1,libnone.so.1,"))
        );
        assert!(links.folders.is_empty() && links.left_out.is_empty());
    }

    #[test]
    fn drivers_with_paths_are_found_by_their_names() {
        let names: [&str; 3] = ["libx.so.1", "liby.so.1", "libz.so.1"];
        let dir = folders(&[("own", &["liby.so.1"]), ("a", &names), ("b", &names)]);
        let at = |path: &str| dir.path().join(path).into_os_string();
        let search = LibrarySearch::new(Some(at("own")));
        // Alone of its name; before another one, twice; and where the program is.
        let [first, left @ ..] = [
            at("a/libx.so.1"),
            at("b/liby.so.1"),
            at("a/libz.so.1"),
            at("b/libz.so.1"),
            "./libw.so.1".into(),
        ];
        let list = |first: &OsStr| {
            [&[first.to_owned()][..], &left]
                .concat()
                .join(OsStr::new(","))
        };
        let links = DriverLinks::of(Some(&list(&first)), &search);
        assert_eq!(links.timed, [timed("libx.so.1", first.into())]);
        assert_eq!(links.folders, [PathBuf::from(at("a"))]);
        assert_eq!(links.left_out, left);
        assert_eq!(links.list, Some(list(OsStr::new("libx.so.1"))));
        let elsewhere = DriverLinks::of(None, &LibrarySearch::new(None));
        assert_ne!(links.folder(), elsewhere.folder());
    }

    #[test]
    fn folders_that_mean_something_else_in_a_list_are_not_in_it() {
        for folder in ["/a:b", "/a;b", "/$ORIGIN"] {
            assert!(!is_listable(Path::new(folder)), "{folder}");
        }
        assert!(is_listable(Path::new("/var/cache/aiprof")));
    }
}
