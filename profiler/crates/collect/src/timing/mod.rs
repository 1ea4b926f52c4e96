//! Puts the helper for `--device-timing` where COMMAND's runtimes find it: CUDA's driver by
//! `CUDA_INJECTION64_PATH`, OpenCL's loader as a layer (`OPENCL_LAYERS`), Level Zero's as its
//! drivers (`level_zero`). For `--ranges`, where NVTX and ITT find it.
//!
//! The helper (crate aiprof-timing) is part of this program. It is written anew each time, to
//! a directory that only its user can write to, under a name that is taken over at once, so
//! that a program never loads half of it. It stays there: a program that COMMAND leaves
//! behind may start its runtime later.

mod level_zero;

use aiprof_system::files::caller;
use aiprof_system::files::directory::Directory;
use aiprof_system::files::place::{self, PlaceError};
use level_zero::DriverEntry;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
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
    #[error("the helper for device times has no place: HOME is not set")]
    NoHome,
    /// A directory is not to be had.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// Others can write to it.
    #[error("{0}: others can write there, so no program shall load anything from it")]
    Shared(PathBuf),
    /// It cannot be written.
    #[error("cannot write the helper for device times to {path}")]
    Write {
        /// The directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// The environment of a program whose devices shall be timed from inside.
#[derive(Debug, Default)]
pub struct Environment {
    /// Variables beside the caller's, which win.
    pub added: Vec<(OsString, OsString)>,
    /// Variables in the place of the caller's: what those say is in them.
    pub replaced: Vec<(OsString, OsString)>,
}

/// Puts the helpers in their place. Gives the environment of a program whose devices shall
/// be timed from inside.
///
/// # Errors
/// The helper cannot be put where the program finds it.
pub fn environment() -> Result<Environment, TimingError> {
    let place = HelperPlace::open()?;
    let helper = place.put(NAME, HELPER)?.into_os_string();
    let layers = layers(env::var_os(OPENCL), helper.clone());
    let mut environment = Environment {
        added: vec![(CUDA.into(), helper)],
        replaced: vec![(OPENCL.into(), layers)],
    };
    if let Some(drivers) = drivers(&place)? {
        let variable = (level_zero::DRIVERS.into(), drivers);
        environment.replaced.push(variable);
    }
    let found = env::join_paths(cupti());
    if let Some(paths) = found.ok().filter(|paths| !paths.is_empty()) {
        environment.added.push((CUPTI.into(), paths));
    }
    Ok(environment)
}

/// Puts the helper in its place. Gives the variables of a program whose ranges shall be
/// recorded; the caller's win.
///
/// # Errors
/// The helper cannot be put where the program finds it.
pub fn range_variables() -> Result<Vec<(OsString, OsString)>, TimingError> {
    let helper = HelperPlace::open()?.put(NAME, HELPER)?.into_os_string();
    Ok(vec![(NVTX.into(), helper.clone()), (ITT.into(), helper)])
}

/// Where [`range_variables`] puts the helper.
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

/// Where [`environment`] puts the helpers.
pub fn files() -> Vec<PathBuf> {
    let Ok((_, path)) = directory() else {
        return Vec::new();
    };
    let copies = level_zero::entries()
        .into_iter()
        .filter_map(|entry| match entry {
            DriverEntry::Helper(copy) => Some(path.join(copy.file)),
            DriverEntry::AsIs(_) => None,
        });
    copies.chain([path.join(NAME)]).collect()
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

/// Level Zero's drivers, with the helper before each; `None`: there are none.
fn drivers(place: &HelperPlace) -> Result<Option<OsString>, TimingError> {
    let mut list = OsString::new();
    for (at, entry) in level_zero::entries().into_iter().enumerate() {
        if at > 0 {
            list.push(",");
        }
        match entry {
            DriverEntry::Helper(copy) => match copy.bytes() {
                Some(bytes) => list.push(place.put(&copy.file, &bytes)?),
                None => list.push(copy.driver),
            },
            DriverEntry::AsIs(name) => list.push(name),
        }
    }
    Ok((!list.is_empty()).then_some(list))
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
        Self::at(path)
    }

    /// The one of this path, without what killed processes left there.
    fn at(path: PathBuf) -> Result<Self, TimingError> {
        let directory = place::make_directory(&path, |_| Ok(()))?;
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
        // Programs of other users (--as-user) read it, and nobody executes it.
        let (mut file, temporary) = self.directory.create_temporary(0o644)?;
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
        HelperPlace::at(path.clone()).unwrap();
        std::fs::write(path.join(".aiprof-abcde1"), "half of it").unwrap();
        let place = HelperPlace::at(path.clone()).unwrap();
        assert!(!path.join(".aiprof-abcde1").exists());
        place.put("helper.so", b"helper").unwrap();
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 1);
    }
}
