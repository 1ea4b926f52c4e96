//! Accelerator runtimes: libraries that the dynamic linker knows, and those that
//! running processes have mapped.

use super::read_text;
use aiprof_model::process::without_mark;
use aiprof_system::files::kernel;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Most libraries that are listed.
const MAX_LIBRARIES: usize = 256;
/// Most processes that are looked at.
const MAX_PROCESSES: usize = 65_536;
/// Most bytes of one /proc/PID/maps that are read.
const MAX_MAPS: u64 = 16 << 20;
/// Most bytes of the linker's cache that are read.
const MAX_CACHE: u64 = 16 << 20;

/// A runtime library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Runtime {
    /// A name for people.
    pub name: &'static str,
    /// Path of the library, as the linker or the process sees it.
    pub library: String,
    /// Whether the dynamic linker's cache lists it.
    pub installed: bool,
    /// Running processes that have mapped it.
    pub processes: Vec<u32>,
}

/// Libraries by the start of their names, up to `.so`.
const KNOWN: [(&str, &str); 15] = [
    ("libze_loader", "Level Zero loader"),
    ("libze_intel_gpu", "Level Zero driver for Intel GPUs"),
    ("libze_intel_npu", "Level Zero driver for Intel NPUs"),
    ("libaiupti", "IBM AIU activity records"),
    ("libflex", "IBM AIU runtime (flex)"),
    ("libsenlib", "IBM AIU device library (senlib)"),
    ("libsenlib-dd2", "IBM AIU device library (senlib)"),
    ("libcuda", "CUDA driver"),
    ("libcudart", "CUDA runtime"),
    ("libamdhip64", "HIP runtime"),
    ("libhsa-runtime64", "HSA runtime"),
    ("libOpenCL", "OpenCL loader"),
    ("libtpu", "Google TPU runtime"),
    ("libnrt", "AWS Neuron runtime"),
    ("libascendcl", "Ascend runtime"),
];

/// The runtime that a path is a library of.
fn runtime_of(path: &str) -> Option<&'static str> {
    let file = path.rsplit('/').next()?;
    let (stem, version) = file.split_once(".so")?;
    if !(version.is_empty() || version.starts_with('.')) {
        return None;
    }
    KNOWN
        .iter()
        .find(|(library, _)| *library == stem)
        .map(|&(_, name)| name)
}

/// All runtimes found, by path.
pub(super) fn find() -> Vec<Runtime> {
    let cache = read_text("/etc/ld.so.cache", MAX_CACHE).unwrap_or_default();
    collect(installed(&cache), in_use(Path::new("/proc")))
}

fn collect(installed: BTreeSet<String>, in_use: BTreeMap<String, BTreeSet<u32>>) -> Vec<Runtime> {
    let mut libraries: BTreeMap<String, (bool, BTreeSet<u32>)> = BTreeMap::new();
    for library in installed {
        libraries.entry(library).or_default().0 = true;
    }
    for (library, processes) in in_use {
        libraries.entry(library).or_default().1 = processes;
    }
    libraries
        .into_iter()
        .filter_map(|(library, (installed, processes))| {
            Some(Runtime {
                name: runtime_of(&library)?,
                library,
                installed,
                processes: processes.into_iter().collect(),
            })
        })
        .take(MAX_LIBRARIES)
        .collect()
}

/// The runtimes in the linker's cache. Its paths are NUL-terminated strings (glibc,
/// sysdeps/generic/dl-cache.h); what else is in the file matches no name.
fn installed(cache: &str) -> BTreeSet<String> {
    cache
        .split('\0')
        .filter(|path| path.starts_with('/') && runtime_of(path).is_some())
        .map(str::to_owned)
        .collect()
}

/// The runtimes that processes have mapped, and which processes.
fn in_use(proc: &Path) -> BTreeMap<String, BTreeSet<u32>> {
    let mut found: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    let entries = kernel::read_dir(proc).unwrap_or_default();
    for (path, name) in entries.into_iter().take(MAX_PROCESSES) {
        let Some(pid) = name.to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        let Some(maps) = read_text(path.join("maps"), MAX_MAPS) else {
            continue; // ended, or another user's
        };
        for path in maps.lines().filter_map(mapped_file) {
            if runtime_of(path).is_some() {
                found.entry(path.to_owned()).or_default().insert(pid);
            }
        }
    }
    found
}

/// The file of a line of /proc/PID/maps (proc_pid_maps(5)).
fn mapped_file(line: &str) -> Option<&str> {
    line.get(line.find('/')?..).map(without_mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_known_by_name_with_any_version() {
        for (path, name) in [
            (
                "/usr/lib/x86_64-linux-gnu/libze_loader.so.1",
                Some("Level Zero loader"),
            ),
            (
                "/opt/ibm/spyre/runtime/lib/libflex.so",
                Some("IBM AIU runtime (flex)"),
            ),
            ("/usr/lib/libcuda.so.550.54", Some("CUDA driver")),
            ("/usr/lib/libcudart.so.12", Some("CUDA runtime")),
            ("/usr/lib/libflexiblas.so.3", None),
            ("/usr/lib/libze_loader.something", None),
            ("/usr/lib/libcuda.sock", None),
            ("", None),
        ] {
            assert_eq!(runtime_of(path), name, "{path}");
        }
    }

    #[test]
    fn paths_are_found_among_the_bytes_of_the_cache() {
        let cache = "glibc-ld.so.cache1.1\u{1}\0\0libze_loader.so.1\0/lib/libze_loader.so.1\0\
                     /lib/libc.so.6\0";
        let found: Vec<_> = installed(cache).into_iter().collect();
        assert_eq!(found, ["/lib/libze_loader.so.1"]);
    }

    #[test]
    fn installed_and_mapped_libraries_are_one_list() {
        let proc = tempfile::tempdir().unwrap();
        let maps = "7f00-7f01 r-xp 00000000 08:01 42    /lib/libze_loader.so.1\n\
                    7f01-7f02 rw-p 00000000 00:00 0\n\
                    7f02-7f03 r-xp 00000000 08:01 43    /a b/libcuda.so.1 (deleted)\n\
                    7ffd-7ffe r-xp 00000000 00:00 0     [vdso]\n";
        for (name, text) in [("12", maps), ("7", maps), ("self", maps), ("99", "")] {
            std::fs::create_dir(proc.path().join(name)).unwrap();
            std::fs::write(proc.path().join(name).join("maps"), text).unwrap();
        }
        let cache = ["/lib/libze_loader.so.1", "/lib/libOpenCL.so.1"];
        let found = collect(cache.map(str::to_owned).into(), in_use(proc.path()));
        let runtime = |name, library: &str, installed, processes: &[u32]| Runtime {
            name,
            library: library.into(),
            installed,
            processes: processes.into(),
        };
        assert_eq!(
            found,
            [
                runtime("CUDA driver", "/a b/libcuda.so.1", false, &[7, 12]),
                runtime("OpenCL loader", "/lib/libOpenCL.so.1", true, &[]),
                runtime(
                    "Level Zero loader",
                    "/lib/libze_loader.so.1",
                    true,
                    &[7, 12]
                ),
            ]
        );
    }
}
