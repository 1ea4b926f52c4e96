//! Where libraries with functions to probe may be before anyone has loaded them, and which running
//! programs have them. Both are looked for once, when a recording starts. The kernel's mapping
//! events report those that appear later.

use crate::{inspect::guard, procfs};
use aiprof_model::{process::Region, wire::MapEvent};
use aiprof_symbols::elf;
use aiprof_system::files::{caller, kernel};
use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Most bytes of the linker's cache that are read.
const MAX_CACHE: u64 = 16 << 20;
/// Most entries of a folder that are looked at.
const MAX_ENTRIES: usize = 65_536;
/// Most folders of a search path.
const MAX_FOLDERS: usize = 256;
/// Most libraries found in any one way.
const MAX_FOUND: usize = 1024;
/// Most bytes of a process's environment that are read.
const MAX_ENVIRONMENT: usize = 256 << 10;
/// Most processes whose mappings are read.
const MAX_PROCESSES: usize = 65_536;

/// The command whose libraries are looked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbedCommand<'a> {
    /// Program and arguments.
    pub argv: &'a [OsString],
    /// A variable of its environment.
    pub variable: fn(&str) -> Option<OsString>,
}

/// A variable of this process's environment, which its commands inherit.
pub(crate) fn own_variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// The libraries that the dynamic linker's cache lists. Its paths are
/// NUL-terminated strings (glibc, sysdeps/generic/dl-cache.h); what else is in the
/// file is no absolute path.
pub(crate) fn in_linker_cache(cache: &Path, is_wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut bytes = Vec::new();
    let read = caller::open_regular(cache).and_then(|f| f.take(MAX_CACHE).read_to_end(&mut bytes));
    if let Err(error) = read {
        tracing::debug!("{}: {error}", cache.display());
    }
    let paths: BTreeSet<&str> = bytes
        .split(|&b| b == 0)
        .filter(|path| path.starts_with(b"/"))
        .filter_map(|path| std::str::from_utf8(path).ok())
        .filter(|path| is_wanted(path))
        .take(MAX_FOUND)
        .collect();
    paths.into_iter().map(PathBuf::from).collect()
}

/// The libraries in a folder.
pub(super) fn in_folder(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = caller::read_dir(folder, MAX_ENTRIES) else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = entries
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| path.to_str().is_some_and(&is_wanted))
        .take(MAX_FOUND)
        .collect();
    found.sort_unstable();
    found
}

/// The executable of a command, found as execvp(3) does.
pub(super) fn executable(command: &ProbedCommand<'_>) -> Option<PathBuf> {
    let program = command.argv.first()?;
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    let path = (command.variable)("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path)
        .take(MAX_FOLDERS)
        .map(|folder| folder.join(program))
        .find(|candidate| {
            use std::os::unix::fs::PermissionsExt;
            let meta = caller::metadata(candidate);
            meta.is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
        })
}

/// The folders that the linker looks in for this command before its cache:
/// `LD_LIBRARY_PATH`, and the executable's own run path.
pub(super) fn folders(command: &ProbedCommand<'_>) -> Vec<PathBuf> {
    let variable = (command.variable)("LD_LIBRARY_PATH").unwrap_or_default();
    let listed = variable
        .as_bytes()
        .split(|b| matches!(b, b':' | b';'))
        .filter(|folder| !folder.is_empty())
        .map(|folder| PathBuf::from(OsStr::from_bytes(folder)));
    let mut folders: Vec<PathBuf> = listed.collect();
    folders.extend(executable(command).map_or_else(Vec::new, |e| run_path(&e)));
    folders.truncate(MAX_FOLDERS);
    folders
}

/// The folders that an executable names for its libraries; `$ORIGIN` is its own.
fn run_path(executable: &Path) -> Vec<PathBuf> {
    let path = caller::open_regular(executable).ok().and_then(|file| {
        let info = elf::inspect(&file).ok()?;
        elf::run_path(&file, &info)
    });
    let real = caller::canonicalize(executable).unwrap_or_else(|_| executable.to_owned());
    let origin = real.parent().unwrap_or(Path::new("/"));
    path.unwrap_or_default()
        .split(':')
        .filter(|folder| !folder.is_empty())
        .map(|folder| {
            let origin = origin.to_string_lossy();
            let folder = folder.replace("${ORIGIN}", &origin);
            PathBuf::from(folder.replace("$ORIGIN", &origin))
        })
        .collect()
}

/// The library that loads Level Zero's drivers.
const LEVEL_ZERO_LOADER: &str = "libze_loader.so";

/// The variable that names further drivers for Level Zero's loader.
pub(super) const ALTERNATIVE_DRIVERS: &str = "ZE_ENABLE_ALT_DRIVERS";

/// The drivers that such a variable lists: paths, or names to be looked for.
pub(super) fn alternative_drivers(list: &OsStr) -> Vec<PathBuf> {
    list.as_bytes()
        .split(|&b| b == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|driver| !driver.is_empty())
        .map(|driver| PathBuf::from(OsStr::from_bytes(driver)))
        .take(MAX_FOLDERS)
        .collect()
}

/// Files that are loaded into a command before all others.
pub(super) fn preloaded(command: &ProbedCommand<'_>) -> Vec<PathBuf> {
    let list = (command.variable)("LD_PRELOAD").unwrap_or_default();
    list.as_bytes()
        .split(|b| matches!(b, b':' | b' '))
        .filter(|file| file.contains(&b'/'))
        .map(|file| PathBuf::from(OsStr::from_bytes(file)))
        .take(MAX_FOLDERS)
        .collect()
}

/// The processes that run.
pub(super) fn processes() -> Vec<u32> {
    let own = std::process::id();
    let all = procfs::processes().into_iter().map(|stat| stat.pid);
    all.filter(|pid| *pid != own).take(MAX_PROCESSES).collect()
}

/// Gives the executable mappings of files of every running process. May wait for
/// any of them: for subcommands that people wait for, not for recordings.
pub(super) fn in_processes(mut visit: impl FnMut(u32, &[MapEvent])) {
    for pid in processes() {
        let Ok(mut maps) = procfs::executable_maps(pid, pid) else {
            continue; // ended, or another user's
        };
        maps.retain(|map| Region::of(&map.file) == Region::File);
        if !maps.is_empty() {
            visit(pid, &maps);
        }
    }
}

/// Whether a path is that of Level Zero's loader.
pub(super) fn is_loader(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.starts_with(LEVEL_ZERO_LOADER)
}

/// A variable of the environment that a process was started with.
pub(crate) fn variable_of(pid: u32, name: &str) -> Option<OsString> {
    let bytes = guard::shown(pid, &format!("/proc/{pid}/environ"), MAX_ENVIRONMENT)?;
    bytes.split(|&b| b == 0).find_map(|entry| {
        let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(OsStr::from_bytes(value).to_owned())
    })
}

/// Opens a library by its path.
///
/// # Errors
/// It is not there, or no regular file.
pub(super) fn open(path: &Path) -> io::Result<File> {
    kernel::open_regular(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn paths_are_found_among_the_bytes_of_the_cache() {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("ld.so.cache");
        let bytes = b"glibc-ld.so.cache1.1\x01\0\0libze_loader.so.1\0/b/libze_loader.so.1\0\
                      /lib/libc.so.6\0/b/libze_loader.so.1\0/\xff/libze_loader.so\0";
        fs::write(&cache, bytes).unwrap();
        let found = in_linker_cache(&cache, |path| path.contains("libze_loader"));
        assert_eq!(found, [Path::new("/b/libze_loader.so.1")]);
        assert!(in_linker_cache(&dir.path().join("none"), |_| true).is_empty());
    }

    #[test]
    fn the_real_cache_has_the_c_library() {
        let cache = Path::new("/etc/ld.so.cache");
        if !cache.exists() {
            println!(
                "skipped: the_real_cache_has_the_c_library: no {}",
                cache.display()
            );
            return;
        }
        let found = in_linker_cache(cache, |path| path.ends_with("/libc.so.6"));
        assert!(found.iter().any(|path| path.exists()), "{found:?}");
    }

    #[test]
    fn what_the_environment_of_a_command_names() {
        let variable = |name: &str| -> Option<OsString> {
            match name {
                "LD_LIBRARY_PATH" => Some("/a::/b;rel".into()),
                "LD_PRELOAD" => Some("/x/one.so libtwo.so:/y/three.so".into()),
                "ZE_ENABLE_ALT_DRIVERS" => Some("/d/ze.so, libother.so,".into()),
                "PATH" => Some("/nowhere:/bin".into()),
                _ => None,
            }
        };
        let argv = ["sh".into(), "-c".into()];
        let command = ProbedCommand {
            argv: &argv,
            variable,
        };
        let paths = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(executable(&command), Some("/bin/sh".into()));
        assert_eq!(folders(&command), paths(&["/a", "/b", "rel"]));
        assert_eq!(preloaded(&command), paths(&["/x/one.so", "/y/three.so"]));
        let drivers = paths(&["/d/ze.so", "libother.so"]);
        let list = variable(ALTERNATIVE_DRIVERS).unwrap();
        assert_eq!(alternative_drivers(&list), drivers);
        let none = ProbedCommand {
            argv: &[],
            variable,
        };
        assert_eq!(executable(&none), None);
    }

    #[test]
    fn an_executable_says_where_its_libraries_are() {
        let dir = tempfile::tempdir().unwrap();
        let (source, program) = (dir.path().join("a.c"), dir.path().join("a"));
        fs::write(&source, "int main(void) { return 0; }").unwrap();
        for flag in ["--enable-new-dtags", "--disable-new-dtags"] {
            let built = std::process::Command::new("cc")
                .args([&format!("-Wl,{flag},-rpath,$ORIGIN/../lib:/opt/x"), "-o"])
                .args([&program, &source])
                .status();
            let Ok(built) = built else {
                println!("skipped: an_executable_says_where_its_libraries_are: no C compiler");
                return;
            };
            assert!(built.success());
            let own = fs::canonicalize(dir.path()).unwrap();
            let expected = [own.join("../lib"), PathBuf::from("/opt/x")];
            assert_eq!(run_path(&program), expected);
        }
        assert!(run_path(&source).is_empty());
    }

    #[test]
    fn running_programs_and_their_environment_are_seen() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .env("AIPROF_TEST_VARIABLE", "a=b")
            .spawn()
            .unwrap();
        let mut found = None;
        // Right after the fork it is still this program.
        for _ in 0..200 {
            in_processes(|pid, maps| {
                let sleep = |m: &MapEvent| m.file.path.contains("sleep");
                if pid == child.id() {
                    found = maps.iter().find(|m| sleep(m)).cloned();
                }
            });
            if found.is_some() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let value = variable_of(child.id(), "AIPROF_TEST_VARIABLE");
        let opened = procfs::open_exact(child.id(), &found.unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(value, Some("a=b".into()));
        assert!(opened.is_ok());
    }
}
