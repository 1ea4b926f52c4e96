//! Kept sections give the same answers, and what is not to be trusted is not used.

use super::super::sections::Sections;
use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// A program whose compressed sections inflate to more than [`MIN_BYTES`]; `None` where
/// the tests do not run as root.
fn program(dir: &Path) -> Option<File> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: kept debug sections: only root keeps any");
        return None;
    }
    let source = "#include <regex>\n#include <map>\n#include <iostream>\n\
        int main(int n, char **v) { std::map<std::string, int> m; std::regex r(v[0]);\n\
        std::cout << std::regex_match(v[0], r) << m[v[0]]; }";
    fs::write(dir.join("a.cpp"), source).unwrap();
    let flags = ["-g", "-gz", "-o", "prog", "a.cpp"];
    let compiler = Command::new("c++").args(flags).current_dir(dir).status();
    assert!(compiler.unwrap().success());
    Some(File::open(dir.join("prog")).unwrap())
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn all_bytes(file: File, info: &ElfInfo) -> Vec<(&'static str, Vec<u8>)> {
    let sections = Sections::open(std::sync::Arc::new(file), info).unwrap();
    sections.allow(later());
    let read = |name: &&'static str| {
        let section = sections.get(name);
        let mut bytes = Vec::new();
        while bytes.len() < section.size() {
            let tail = section.tail(bytes.len(), sections.access()).unwrap();
            bytes.extend_from_slice(tail);
        }
        (*name, bytes)
    };
    DEBUG_SECTIONS.iter().map(read).collect()
}

#[test]
fn kept_sections_are_the_same() {
    let dir = TempDir::new().unwrap();
    let Some(file) = program(dir.path()) else {
        return;
    };
    let info = crate::elf::inspect(&file).unwrap();
    let expected = all_bytes(file.try_clone().unwrap(), &info);
    let path = dir.path().join("kept");
    let mut times = Vec::new();
    for _ in 0..2 {
        let mut kept = Inflated::at(path.clone());
        let (copy, other) = kept.get(&file, &info, later()).unwrap();
        assert_eq!(other.packed_bytes, 0);
        times.push(copy.metadata().unwrap().ctime());
        assert_eq!(all_bytes(copy, &other), expected);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
    }
    let entry = fs::read_dir(&path).unwrap().next().unwrap().unwrap();
    let mode = entry.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn what_others_may_change_is_not_used() {
    let dir = TempDir::new().unwrap();
    let Some(file) = program(dir.path()) else {
        return;
    };
    let info = crate::elf::inspect(&file).unwrap();
    let get = |path: &Path| Inflated::at(path.to_owned()).get(&file, &info, later());
    // A directory of another user, or that others may write to.
    let path = dir.path().join("kept");
    fs::create_dir(&path).unwrap();
    std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
    assert!(get(&path).is_none());
    std::os::unix::fs::chown(&path, Some(0), None).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(get(&path).is_none());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    assert!(get(&path).is_some());
    // A kept file of another user, or that others may write to, is made anew.
    let kept = path.join(name_of(&file).unwrap());
    let whole = fs::read(&kept).unwrap();
    fs::write(&kept, "of another user").unwrap();
    std::os::unix::fs::chown(&kept, Some(12345), None).unwrap();
    assert!(get(&path).is_some());
    assert_eq!(fs::read(&kept).unwrap(), whole);
    fs::set_permissions(&kept, fs::Permissions::from_mode(0o622)).unwrap();
    assert!(get(&path).is_some());
    assert_eq!(fs::metadata(&kept).unwrap().mode() & 0o777, 0o600);
    // The debug file itself is another user's.
    std::os::unix::fs::chown(dir.path().join("prog"), Some(12345), None).unwrap();
    assert!(get(&path).is_none());
}

#[test]
fn damaged_and_cut_files_are_not_used() {
    let dir = TempDir::new().unwrap();
    let Some(file) = program(dir.path()) else {
        return;
    };
    let info = crate::elf::inspect(&file).unwrap();
    let path = dir.path().join("kept");
    let mut inflated = Inflated::at(path.clone());
    assert!(inflated.get(&file, &info, later()).is_some());
    let kept = path.join(name_of(&file).unwrap());
    let whole = fs::read(&kept).unwrap();
    for size in [0, 10, HEADER - 1, HEADER, whole.len() / 2] {
        fs::write(&kept, &whole[..size]).unwrap();
        // Made anew: a file is used only if it holds all that its header lists.
        let (copy, other) = inflated.get(&file, &info, later()).unwrap();
        assert!(!other.debug.is_empty());
        assert_eq!(copy.metadata().unwrap().len(), whole.len() as u64, "{size}");
    }
    assert_eq!(fs::read(&kept).unwrap(), whole);
}

#[test]
fn the_directory_is_bounded() {
    let dir = TempDir::new().unwrap();
    let Some(file) = program(dir.path()) else {
        return;
    };
    let info = crate::elf::inspect(&file).unwrap();
    let path = dir.path().join("kept");
    fs::create_dir(&path).unwrap();
    let day = Duration::from_secs(86400);
    for i in 0..MAX_FILES as u32 + 50 {
        let old = File::create(path.join(format!("old-{i}"))).unwrap();
        let time = SystemTime::UNIX_EPOCH + day * (i + 1);
        old.set_times(FileTimes::new().set_modified(time)).unwrap();
    }
    assert!(
        Inflated::at(path.clone())
            .get(&file, &info, later())
            .is_some()
    );
    assert_eq!(fs::read_dir(&path).unwrap().count(), MAX_FILES);
    // The oldest went.
    assert!(!path.join("old-50").exists() && path.join("old-51").exists());
    let large = File::create(path.join("large")).unwrap();
    large.set_len(MAX_KEPT).unwrap();
    let time = SystemTime::UNIX_EPOCH + day;
    large
        .set_times(FileTimes::new().set_modified(time))
        .unwrap();
    fs::remove_file(path.join(name_of(&file).unwrap())).unwrap();
    assert!(
        Inflated::at(path.clone())
            .get(&file, &info, later())
            .is_some()
    );
    assert!(!path.join("large").exists());
}

/// Time that is over leaves nothing behind.
#[test]
fn an_unfinished_file_is_not_kept() {
    let dir = TempDir::new().unwrap();
    let Some(file) = program(dir.path()) else {
        return;
    };
    let info = crate::elf::inspect(&file).unwrap();
    let path = dir.path().join("kept");
    let mut inflated = Inflated::at(path.clone());
    assert!(inflated.get(&file, &info, Instant::now()).is_none());
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
}
