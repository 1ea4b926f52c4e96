//! Puts the helper for `--device-timing` where COMMAND's runtimes find it: CUDA's driver by
//! `CUDA_INJECTION64_PATH`, OpenCL's loader as a layer (`OPENCL_LAYERS`), Level Zero's as its
//! drivers (`LD_LIBRARY_PATH`, see `level_zero`). For `--ranges`, where NVTX and ITT find it.
//!
//! The helper (crate aiprof-inject) is part of this program. It is written anew each time, to a
//! directory that only its user can write to. Its name is taken over at once, so that a program
//! never loads half of it. Whether COMMAND can load it is tried before COMMAND starts (`launch`).
//! The file stays there: a program that COMMAND leaves behind may start its runtime later.

mod level_zero;

use crate::launch::Helpers;
use aiprof_system::files::caller;
use aiprof_system::files::directory::Directory;
use aiprof_system::files::place::{self, PlaceError};
use level_zero::DriverLinks;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The helper.
const HELPER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libaiprof-timing.so"));
/// Its name; the tables of probes know it by that (probes/timing.toml).
const NAME: &str = "libaiprof-timing.so";
/// What the CUDA driver loads when it starts.
const CUDA: &str = "CUDA_INJECTION64_PATH";
/// Libraries that a loader of OpenCL puts between the program and the drivers.
const OPENCL: &str = "OPENCL_LAYERS";
/// What NVTX's headers in a program load with its first range.
const NVTX: &str = "NVTX_INJECTION64_PATH";
/// What ITT's static part in a program loads with its first task.
const ITT: &str = "INTEL_LIBITTNOTIFY64";
/// Where the helper looks for CUPTI if the program does not have it.
const CUPTI: &str = "AIPROF_CUPTI";
/// Names of CUPTI, newest first.
const CUPTI_NAMES: [&str; 3] = ["libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8"];
/// Directories of a CUDA toolkit that have it.
const CUPTI_PLACES: [&str; 3] = ["targets/x86_64-linux/lib", "extras/CUPTI/lib64", "lib64"];
/// Most entries of a directory that are looked at.
const MAX_ENTRIES: usize = 4096;

/// Why the helper could not be put in its place.
#[derive(Debug, thiserror::Error)]
pub enum TimingError {
    /// There is no place.
    #[error("no directory for the device timing helper: set HOME")]
    NoHome,
    /// A directory is not to be had.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// Others can write to it.
    #[error("{0}: other users can write to it, so programs must not load the helper from it")]
    Shared(PathBuf),
    /// It cannot be written.
    #[error("cannot write the device timing helper to {path}")]
    Write {
        /// The directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Puts the helpers in their place. Gives them, as a program needs them whose devices shall
/// be timed from inside.
///
/// # Errors
/// The helpers cannot be put where the program finds them.
pub fn helpers() -> Result<Helpers, TimingError> {
    let place = HelperPlace::open()?;
    let helper = place.put(NAME, HELPER)?;
    let variable = helper.clone().into_os_string();
    let layers = layers(env::var_os(OPENCL), variable.clone());
    let mut helpers = Helpers {
        files: vec![helper],
        added: vec![(CUDA.into(), variable)],
        replaced: vec![(OPENCL.into(), layers)],
    };
    place.put_drivers(&mut helpers)?;
    let found = env::join_paths(cupti());
    if let Some(paths) = found.ok().filter(|paths| !paths.is_empty()) {
        helpers.added.push((CUPTI.into(), paths));
    }
    Ok(helpers)
}

/// Puts the helper in its place. Gives it, as a program needs it whose ranges shall be
/// recorded; variables of the caller's win.
///
/// # Errors
/// The helper cannot be put where the program finds it.
pub fn range_helpers() -> Result<Helpers, TimingError> {
    let helper = HelperPlace::open()?.put(NAME, HELPER)?;
    let variable = helper.clone().into_os_string();
    Ok(Helpers {
        files: vec![helper],
        added: vec![(NVTX.into(), variable.clone()), (ITT.into(), variable)],
        replaced: Vec::new(),
    })
}

/// Where [`range_helpers`] puts the helper.
pub fn range_files() -> Vec<PathBuf> {
    let path = directory().map(|(_, path)| path.join(NAME));
    path.into_iter().collect()
}

/// Variables of the caller's that have the helper left out of ranges: each, and what it
/// takes them from.
pub fn in_the_way_of_ranges() -> Vec<(&'static str, &'static str)> {
    let all = [(NVTX, "NVTX"), (ITT, "ITT")];
    let is_set = |(name, _): &(&str, &str)| env::var_os(name).is_some();
    all.into_iter().filter(is_set).collect()
}

/// Where [`helpers`] puts them.
pub fn files() -> Vec<PathBuf> {
    let Ok((_, path)) = directory() else {
        return Vec::new();
    };
    let drivers = DriverLinks::find(&path).timed.into_iter();
    let copies = drivers.map(|driver| path.join(driver.file()));
    copies.chain([path.join(NAME)]).collect()
}

/// Drivers of the caller's list for Level Zero that have the helper left out.
pub fn drivers_left_out() -> Vec<OsString> {
    let path = directory().map(|(_, path)| path);
    path.map_or_else(|_| Vec::new(), |path| DriverLinks::find(&path).left_out)
}

/// The directory of the caller's caches, and that of the helpers in it.
fn directory() -> Result<(PathBuf, PathBuf), TimingError> {
    let parent = match rustix::process::geteuid().is_root() {
        true => PathBuf::from("/var/cache"),
        false => cache().ok_or(TimingError::NoHome)?,
    };
    let path = parent.join("aiprof");
    Ok((parent, path))
}

/// The layers of a program that may have its own: the helper is the last, which is called
/// first, and sees the calls as the program makes them.
fn layers(own: Option<OsString>, helper: OsString) -> OsString {
    // An empty one is none to the loader.
    match own.filter(|own| !own.is_empty()) {
        Some(mut own) => {
            own.push(":");
            own.push(helper);
            own
        }
        None => helper,
    }
}

/// Variables of the caller's that have the helper left out.
pub fn in_the_way() -> Option<&'static str> {
    env::var_os(CUDA).is_some().then_some(CUDA)
}

/// The directory of the helpers.
struct HelperPlace {
    directory: Directory,
    path: PathBuf,
}

impl HelperPlace {
    fn open() -> Result<Self, TimingError> {
        let (parent, path) = directory()?;
        if !rustix::process::geteuid().is_root() {
            place::make_directory(&parent, |_| Ok(()))?;
        }
        Self::open_own(path)
    }

    /// A directory that its user alone can write to, made where it is not there, without what
    /// killed processes left there.
    fn open_own(path: PathBuf) -> Result<Self, TimingError> {
        // Other users read it (--as-user), whatever the umask is.
        let directory = place::make_directory(&path, |made| made.set_mode(0o755))?;
        let directory = directory.ok_or_else(|| TimingError::Shared(path.clone()))?;
        let place = Self { directory, path };
        let stat = place
            .directory
            .stat()
            .map_err(|error| place.failed(error))?;
        let own = rustix::process::geteuid().as_raw();
        if stat.st_uid != own || stat.st_mode & 0o022 != 0 {
            return Err(TimingError::Shared(place.path));
        }
        place.directory.prune_temporaries(|uid| uid == own);
        Ok(place)
    }

    /// Puts helpers before the drivers of Level Zero.
    fn put_drivers(&self, helpers: &mut Helpers) -> Result<(), TimingError> {
        let links = DriverLinks::find(&self.path);
        if links.timed.is_empty() {
            return Ok(());
        }
        let folder = Self::open_own(self.path.join(links.folder()))?;
        for driver in &links.timed {
            let Some(bytes) = driver.bytes() else {
                continue;
            };
            let file = driver.file();
            self.put(&file, &bytes)?;
            let target = Path::new("..").join(file);
            let put = folder.directory.put_link(&driver.name, target.as_os_str());
            put.map_err(|error| folder.failed(error))?;
            helpers.files.push(folder.path.join(&driver.name));
        }
        let libraries = links.libraries(&folder.path);
        let list = links.list.map(|list| (level_zero::DRIVERS.into(), list));
        helpers
            .replaced
            .push((level_zero::LIBRARIES.into(), libraries));
        helpers.replaced.extend(list);
        Ok(())
    }

    fn failed(&self, source: io::Error) -> TimingError {
        TimingError::Write {
            path: self.path.clone(),
            source,
        }
    }

    /// Writes a helper. Gives its path.
    fn put(&self, name: &str, helper: &[u8]) -> Result<PathBuf, TimingError> {
        self.write(name, helper)
            .map_err(|error| self.failed(error))?;
        Ok(self.path.join(name))
    }

    fn write(&self, name: &str, helper: &[u8]) -> io::Result<()> {
        let (mut file, temporary) = self.directory.create_temporary(0o644)?;
        // Programs of other users (--as-user) read it, whatever the umask is.
        file.set_permissions(Permissions::from_mode(0o644))?;
        file.write_all(helper)?;
        temporary.rename(OsStr::new(name))
    }
}

fn cache() -> Option<PathBuf> {
    let given = |name| env::var_os(name).map(PathBuf::from);
    let own = given("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    own.or_else(|| {
        Some(
            given("HOME")
                .filter(|path| path.is_absolute())?
                .join(".cache"),
        )
    })
}

/// CUPTI of the toolkits of this machine.
fn cupti() -> Vec<PathBuf> {
    let mut toolkits: Vec<PathBuf> = env::var_os("CUDA_HOME")
        .map(PathBuf::from)
        .into_iter()
        .collect();
    let places = caller::read_dir(Path::new("/usr/local"), MAX_ENTRIES).unwrap_or_default();
    let mut found: Vec<PathBuf> = places
        .into_iter()
        .filter(|(_, name)| name.as_encoded_bytes().starts_with(b"cuda"))
        .map(|(path, _)| path)
        .collect();
    found.sort();
    toolkits.extend(found.into_iter().rev());
    let files = CUPTI_NAMES.iter().flat_map(|name| {
        let in_toolkit =
            move |toolkit: &PathBuf| CUPTI_PLACES.map(|at| toolkit.join(at).join(name));
        toolkits.iter().flat_map(in_toolkit)
    });
    let mut known = Vec::new();
    for file in files.filter(|file| caller::is_file(file)) {
        let real = caller::canonicalize(&file).unwrap_or(file);
        if !known.contains(&real) {
            known.push(real);
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_run_left_goes_with_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("aiprof");
        HelperPlace::open_own(path.clone()).unwrap();
        std::fs::write(path.join(".aiprof-abcde1"), "half of it").unwrap();
        let place = HelperPlace::open_own(path.clone()).unwrap();
        assert!(!path.join(".aiprof-abcde1").exists());
        place.put("helper.so", b"helper").unwrap();
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 1);
    }
}
