//! Tests of `binaries.rs`.

use super::{contents::MAX_DELETED_BYTES, *};
use crate::{procfs, reader::ReaderAnswer};
use aiprof_model::wire::{ProcessEvent, ProcessEventKind};
use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// A program that waits, called so, with this build id.
fn compile(dir: &Path, name: &str, result: u32, build_id: &str) {
    let source = dir.join("a.c");
    let text = format!(
        "#include <unistd.h>\nint main(void) {{ char c; return read(0, &c, 1) + {result}; }}"
    );
    fs::write(&source, text).unwrap();
    let status = Command::new("cc")
        .arg(format!("-Wl,--build-id=0x{build_id}"))
        .arg("-o")
        .arg(dir.join(name))
        .arg(&source)
        .status()
        .unwrap();
    assert!(status.success());
}

/// Copies a program by another process: were it open for writing here, a child that
/// another test is just starting could hold it, and it could not be executed.
fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(status.success());
}

struct Running(Child);

impl Running {
    fn start(program: &Path) -> Self {
        let child = Command::new(program).stdin(Stdio::piped()).spawn();
        Self(child.unwrap())
    }

    /// The mapping of its text.
    fn mapping(&self, name: &str) -> MapEvent {
        let pid = self.0.id();
        for _ in 0..1000 {
            let maps = procfs::executable_maps(pid, pid).unwrap_or_default();
            if let Some(map) = maps.into_iter().find(|m| m.file.path.contains(name)) {
                return map;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("{name} does not run");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Kit {
    binaries: Binaries,
    reader: Reader,
    files: FileTable,
}

impl Kit {
    fn new(most_open: usize) -> Self {
        Self {
            binaries: Binaries {
                contents: FileContents::new(most_open),
                ..Binaries::default()
            },
            reader: Reader::new().unwrap(),
            files: FileTable::default(),
        }
    }

    /// How many contents are known.
    fn contents(&self) -> usize {
        let is_known = |&number: &u64| self.binaries.contents.get(number).is_some();
        (0..100).filter(is_known).count()
    }

    fn read(&mut self) {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let is_reading = self.reader.wait_until(end);
            for answer in self.reader.answers() {
                if let ReaderAnswer::File { pid, map, found } = answer {
                    self.binaries.found(pid, &map, found, &mut self.reader);
                }
            }
            if !is_reading {
                return;
            }
        }
    }

    /// The file of the text of a process, as a recording finds it.
    fn file(&mut self, process: &Running, name: &str) -> FileId {
        let mut map = process.mapping(name);
        let pid = process.0.id();
        self.binaries.prefetch(pid, &map, &mut self.reader);
        self.read();
        self.binaries
            .identify(pid, || Owner::ROOT, &mut map, &mut self.files);
        self.files.intern(&map.file)
    }

    fn build_id(&self, id: FileId) -> String {
        let binary = self.binaries.get(id).expect("the file is known");
        binary.build_id().unwrap().to_string()
    }
}

const ONE: &str = "1111111111111111111111111111111111111111";
const TWO: &str = "2222222222222222222222222222222222222222";

/// `tool` in a directory, running, and nothing known yet.
fn started() -> (tempfile::TempDir, Kit, Running) {
    let dir = tempfile::tempdir().unwrap();
    compile(dir.path(), "tool", 1, ONE);
    let process = Running::start(&dir.path().join("tool"));
    (dir, Kit::new(16), process)
}

/// Opening through mappings needs CAP_CHECKPOINT_RESTORE.
fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: {test}: needs root");
    }
    root
}

#[test]
fn one_file_is_known_once_and_a_false_twin_is_another() {
    if !is_root("one_file_is_known_once_and_a_false_twin_is_another") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    compile(dir.path(), "true", 1, ONE);
    compile(dir.path(), "twin", 2, ONE);
    let mut kit = Kit::new(16);
    let twin = Running::start(&dir.path().join("twin"));
    let twin = kit.file(&twin, "twin");
    let first = Running::start(&dir.path().join("true"));
    let second = Running::start(&dir.path().join("true"));
    let (first, second) = (kit.file(&first, "true"), kit.file(&second, "true"));
    assert_eq!(first, second);
    assert_ne!(first, twin);
    assert_eq!(kit.build_id(first), kit.build_id(twin));
    assert_eq!(kit.contents(), 2);
}

#[test]
fn the_mapped_file_is_found_when_another_has_its_name() {
    if !is_root("the_mapped_file_is_found_when_another_has_its_name") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    compile(dir.path(), "old", 1, ONE);
    compile(dir.path(), "new", 2, TWO);
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    let mut kit = Kit::new(16);
    let before = Running::start(&old);
    before.mapping("old");
    fs::rename(&new, &old).unwrap();
    let after = Running::start(&old);
    let (before, after) = (kit.file(&before, "old"), kit.file(&after, "old"));
    assert_eq!(kit.build_id(before), ONE);
    assert_eq!(kit.build_id(after), TWO);
}

#[test]
fn what_has_changed_is_read_again_and_nothing_is_forgotten() {
    if !is_root("what_has_changed_is_read_again_and_nothing_is_forgotten") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    compile(dir.path(), "tool", 1, ONE);
    let path = dir.path().join("tool");
    let mut kit = Kit::new(16);
    let process = Running::start(&path);
    let before = kit.file(&process, "tool");
    drop(process);
    compile(dir.path(), "other", 2, TWO);
    // In place: the same inode.
    copy(&dir.path().join("other"), &path);
    let process = Running::start(&path);
    let after = kit.file(&process, "tool");
    assert_ne!(before, after);
    assert_eq!(kit.build_id(before), ONE);
    assert_eq!(kit.build_id(after), TWO);
}

#[test]
fn a_program_that_deletes_itself_is_read_again() {
    if !is_root("a_program_that_deletes_itself_is_read_again") {
        return;
    }
    let (dir, mut kit, process) = started();
    let (map, pid) = (process.mapping("tool"), process.0.id());
    assert!(!kit.binaries.has_changed(pid, &map));
    kit.binaries.prefetch(pid, &map, &mut kit.reader);
    kit.read();
    assert!(!kit.binaries.has_changed(pid, &map));
    fs::remove_file(dir.path().join("tool")).unwrap();
    assert!(kit.binaries.has_changed(pid, &map));
    let id = kit.file(&process, "tool");
    assert!(!kit.binaries.has_changed(pid, &map));
    assert_eq!(kit.build_id(id), ONE);
}

#[test]
fn a_file_found_by_its_path_serves_its_process_alone() {
    let dir = tempfile::tempdir().unwrap();
    compile(dir.path(), "tool", 1, ONE);
    let mut kit = Kit::new(16);
    let processes = [(), ()].map(|()| Running::start(&dir.path().join("tool")));
    let ids = processes.each_ref().map(|process| {
        let mut map = process.mapping("tool");
        // No mapping begins there, and none is of a file with this device number.
        map.start += 1 << 40;
        map.file.device += 1;
        let pid = process.0.id();
        kit.binaries.prefetch(pid, &map, &mut kit.reader);
        kit.read();
        kit.binaries
            .identify(pid, || Owner::ROOT, &mut map, &mut kit.files);
        let again = map.file.clone();
        kit.binaries
            .identify(pid, || Owner::ROOT, &mut map, &mut kit.files);
        assert_eq!(map.file, again);
        kit.files.intern(&map.file)
    });
    assert_ne!(ids[0], ids[1]);
    assert!(ids.iter().all(|&id| kit.build_id(id) == ONE));
}

#[test]
fn what_is_known_too_late_keeps_the_handle_it_was_given() {
    if !is_root("what_is_known_too_late_keeps_the_handle_it_was_given") {
        return;
    }
    let (_dir, mut kit, process) = started();
    let (mut map, pid) = (process.mapping("tool"), process.0.id());
    let asked = map.clone();
    kit.binaries.prefetch(pid, &map, &mut kit.reader);
    kit.binaries
        .identify(pid, || Owner::ROOT, &mut map, &mut kit.files);
    let id = kit.files.intern(&map.file);
    assert!(kit.binaries.get(id).is_none());
    let mut bound = Vec::new();
    while bound.is_empty() {
        kit.reader
            .wait_until(Instant::now() + Duration::from_secs(10));
        for answer in kit.reader.answers() {
            if let ReaderAnswer::File { found, .. } = answer {
                bound = kit.binaries.found(pid, &asked, found, &mut kit.reader);
            }
        }
    }
    assert_eq!(bound, [id]);
    assert_eq!(kit.binaries.get(id).unwrap().text.len(), 1);
}

#[test]
fn what_did_not_come_in_time_is_asked_for_once_more() {
    if !is_root("what_did_not_come_in_time_is_asked_for_once_more") {
        return;
    }
    let (_dir, mut kit, process) = started();
    let (mut map, pid) = (process.mapping("tool"), process.0.id());
    let place = place_of(&map.file);
    kit.binaries.late(pid, place);
    kit.binaries
        .identify(pid, || Owner::ROOT, &mut map, &mut kit.files);
    let id = kit.files.intern(&map.file);
    assert!(kit.binaries.get(id).is_none());
    assert!(kit.binaries.requests.take_late().contains(&(pid, place)));
    assert!(kit.binaries.requests.take_late().is_empty());
    kit.binaries.ask_again(pid, &map, &mut kit.reader);
    kit.read();
    assert_eq!(kit.build_id(id), ONE);
}

#[test]
fn deleted_files_that_nobody_has_mapped_are_not_held_beyond_a_limit() {
    if !is_root("deleted_files_that_nobody_has_mapped_are_not_held_beyond_a_limit") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    compile(dir.path(), "tool", 1, ONE);
    let tool = dir.path().join("tool");
    let mut content = fs::read(&tool).unwrap();
    content.resize((MAX_DELETED_BYTES / 3 * 2) as usize, 1);
    fs::write(&tool, content).unwrap();
    let mut kit = Kit::new(16);
    let mut processes = ProcessTable::default();
    let mut ids = Vec::new();
    let running = ["one", "two", "three"].map(|name| {
        let path = dir.path().join(name);
        copy(&tool, &path);
        let process = Running::start(&path);
        ids.push(kit.file(&process, name));
        let mut map = process.mapping(name);
        kit.binaries.identify(
            process.0.id(),
            || Owner::ROOT,
            &mut map,
            &mut processes.files,
        );
        fs::remove_file(&path).unwrap();
        // For the recording, the first stays mapped.
        if name == "one" {
            processes.apply(&ProcessEvent {
                time_ns: 1,
                pid: process.0.id(),
                tid: process.0.id(),
                kind: ProcessEventKind::Snapshot {
                    comm: name.to_owned(),
                    maps: vec![map],
                },
            });
        }
        process
    });
    drop(running);
    kit.binaries.release_deleted(&processes);
    let closed = ids.iter().map(|&id| kit.binaries.is_closed(id));
    assert_eq!(closed.collect::<Vec<_>>(), [false, true, false]);
}

#[test]
fn old_files_are_closed_for_new_ones_and_can_be_opened_again() {
    if !is_root("old_files_are_closed_for_new_ones_and_can_be_opened_again") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    compile(dir.path(), "p0", 1, ONE);
    for n in 1..6 {
        copy(&dir.path().join("p0"), &dir.path().join(format!("p{n}")));
    }
    let mut kit = Kit::new(3);
    let name = |n: u32| format!("p{n}");
    let running: Vec<_> = (0..6)
        .map(|n| Running::start(&dir.path().join(name(n))))
        .collect();
    let ids: Vec<_> = (0..)
        .zip(&running)
        .map(|(n, p)| kit.file(p, &name(n)))
        .collect();
    assert!(
        ids.iter()
            .filter(|id| !kit.binaries.is_closed(**id))
            .count()
            <= 3
    );
    assert!(kit.binaries.is_closed(ids[0]) && !kit.binaries.is_closed(ids[5]));
    assert!(ids.iter().all(|&id| kit.binaries.get(id).is_some()));
    let (pid, map) = (running[0].0.id(), running[0].mapping("p0"));
    kit.binaries.requests.ask(pid, &map, &mut kit.reader);
    kit.read();
    assert!(kit.binaries.opened(ids[0]).is_some());
    assert_eq!(kit.file(&running[0], "p0"), ids[0]);
    assert_eq!(kit.contents(), 6);
}
