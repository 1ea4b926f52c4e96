//! Which file each mapping is of, and these files, open.
//!
//! A file is the one that the kernel shows for a mapping, opened through the mapping
//! itself. Neither its path nor its build id would do to find it, for anybody can copy
//! those. A content that several processes have is stored once, if the file system shows
//! that it is one file ([`FileStat`]). A file that could be found only by its path serves
//! only the process that mapped it under that path. A file that has changed since is
//! another content: what was known of the old one stays.
//!
//! Files are opened by [`Reader`]; nothing here blocks.

mod contents;
mod requests;

pub use contents::Binary;

use super::{
    bpf::perf,
    procfs::{FileStat, OpenError},
    reader::{FoundFile, OpenFile, Reader},
};
use aiprof_model::{
    process::{FileId, FileTable, NARROW_VDSO, ProcessTable, Region, is_jitdump},
    wire::{FileKey, MapEvent},
};
use aiprof_symbols::unwind::address_of;
use aiprof_system::workers::Owner;
use contents::{FileContents, fileless_key};
use requests::FileRequests;
use rustc_hash::{FxHashMap, FxHashSet};
use std::{collections::BTreeMap, sync::Arc};

/// Descriptors that are left to everything else.
const OTHER_DESCRIPTORS: u64 = 128;
/// Fewest and most files kept open.
const OPEN_FILES: std::ops::RangeInclusive<u64> = 16..=16_384;

/// What the kernel shows of a mapped file: device and inode number.
type DeviceInode = (u64, u64);

fn place_of(key: &FileKey) -> DeviceInode {
    (key.device, key.inode)
}

/// All files, each content once.
#[derive(Debug, Default)]
pub(crate) struct Binaries {
    contents: FileContents,
    /// Contents by the handles of their files.
    ids: FxHashMap<FileId, u64>,
    /// Contents by what the kernel shows, where that names one file only.
    by_place: FxHashMap<DeviceInode, u64>,
    by_stat: FxHashMap<FileStat, u64>,
    /// The files that device and inode numbers mean in one process, where they may be
    /// others elsewhere.
    of_process: FxHashMap<u32, BTreeMap<DeviceInode, FileKey>>,
    pub(crate) requests: FileRequests,
    /// Files that could not be opened.
    pub failed: u64,
    /// Mappings of files beyond the limits.
    pub refused: u64,
}

impl Binaries {
    /// None yet; as many are kept open as this process may.
    pub(crate) fn new() -> Self {
        let limit = perf::file_limit().saturating_sub(OTHER_DESCRIPTORS) / 4 * 3;
        Self {
            contents: FileContents::new(
                limit.clamp(*OPEN_FILES.start(), *OPEN_FILES.end()) as usize
            ),
            ..Self::default()
        }
    }

    /// A file that is known.
    pub(crate) fn get(&self, id: FileId) -> Option<&Binary> {
        self.contents.get(*self.ids.get(&id)?)
    }

    /// The open file of a handle, for reading it now; it counts as used.
    pub(crate) fn opened(&mut self, id: FileId) -> Option<Arc<OpenFile>> {
        self.contents.opened(*self.ids.get(&id)?)
    }

    /// Whether the file of a handle was closed, and must be asked for to be read.
    pub(crate) fn is_closed(&self, id: FileId) -> bool {
        self.get(id).is_some_and(|binary| binary.open().is_none())
    }

    /// Asks for the file of a mapping that will be taken in soon, if it is not known.
    pub(crate) fn prefetch(&mut self, pid: u32, map: &MapEvent, reader: &mut Reader) {
        if Region::may_be_file(&map.file)
            && self.known(pid, map).is_none()
            && !self.contents.has_too_many(reader.owner(pid))
        {
            self.requests.ask(pid, map, reader);
        }
    }

    /// Whether it is known which file a mapping is of, or need not be.
    pub(crate) fn is_identified(&self, pid: u32, map: &MapEvent) -> bool {
        !Region::may_be_file(&map.file) || self.known(pid, map).is_some()
    }

    /// Whether the file of a mapping was read and has changed since: a program that deletes
    /// itself, for one.
    pub(crate) fn has_changed(&self, pid: u32, map: &MapEvent) -> bool {
        let number = self.by_place.get(&place_of(&map.file));
        let read = number.and_then(|&number| self.contents.get(number));
        read.is_some_and(|binary| binary.open().is_some()) && !self.is_identified(pid, map)
    }

    /// The key of a mapping's file, if it is known.
    fn known(&self, pid: u32, map: &MapEvent) -> Option<&FileKey> {
        let place = place_of(&map.file);
        let own = self.of_process.get(&pid).and_then(|own| own.get(&place));
        if own.is_some() {
            return own;
        }
        let binary = self.contents.get(*self.by_place.get(&place)?)?;
        // As long as it is open nothing else has its numbers; and if it has changed,
        // it must be read again.
        let now = FileStat::cached(&binary.open()?.place).ok();
        (now == binary.stat).then_some(&binary.key)
    }

    /// Gives the mapping the key of its file, which is that of all mappings of the
    /// same content. What is not known by now gets a key of its own.
    /// Beyond what its owner may have of files, all is one; most processes map only what is
    /// known, so that the owner is looked up where it counts.
    pub(crate) fn identify(
        &mut self,
        pid: u32,
        owner: impl FnOnce() -> Owner,
        map: &mut MapEvent,
        files: &mut FileTable,
    ) {
        match Region::of(&map.file) {
            Region::File => {}
            Region::Vdso if map.start >> 32 == 0 => {
                map.file.version = 0;
                NARROW_VDSO.clone_into(&mut map.file.path);
                return;
            }
            Region::Vdso => {
                map.file.version = 0;
                return self.vdso(files.intern(&map.file));
            }
            Region::Anonymous | Region::Uprobes | Region::Vsyscall => {
                map.file.version = 0;
                let known = self.known(pid, map);
                let Some(key) = known.filter(|key| Region::of(key) == Region::File) else {
                    return;
                };
                map.file = key.clone();
            }
        }
        let place = place_of(&map.file);
        if let Some(key) = self.known(pid, map) {
            map.file = key.clone();
        } else {
            let owner = owner();
            if self.contents.has_too_many(owner) {
                self.refused += 1;
                map.file = fileless_key("[too many files]");
                return;
            }
            self.contents.count(owner);
            let number = self.contents.number();
            map.file.version = number;
            map.file.build_id = None;
            self.call(pid, place, map.file.clone());
            self.requests.give(pid, place, number);
        }
        let id = files.intern(&map.file);
        self.ids.insert(id, map.file.version);
    }

    fn vdso(&mut self, id: FileId) {
        if self.ids.contains_key(&id) {
            return;
        }
        let image = perf::vdso_image();
        let Ok(file) = image.and_then(|image| perf::memory_file(c"vdso", &image)) else {
            return;
        };
        let Ok(file) = OpenFile::own(file, "[vdso]") else {
            return;
        };
        self.ids.insert(id, 0);
        self.contents.insert_vdso(file);
    }

    /// Remembers what a process means by a device and inode number.
    fn call(&mut self, pid: u32, place: DeviceInode, key: FileKey) {
        self.of_process.entry(pid).or_default().insert(place, key);
    }

    /// Takes in what was found behind a mapping of a process. Gives the handle of the
    /// file if it was recorded before it was known.
    pub(crate) fn found(
        &mut self,
        pid: u32,
        map: &MapEvent,
        found: FoundFile,
        reader: &mut Reader,
    ) -> Vec<FileId> {
        let place = place_of(&map.file);
        let given = self.requests.answered(pid, place);
        let key = match found {
            found if is_generated(map, &found) => {
                let owner = reader.owner(pid);
                if self.contents.has_too_many(owner) {
                    return Vec::new();
                }
                self.contents.count(owner);
                Some(map.file.clone())
            }
            FoundFile::Opened {
                file,
                stat,
                through_mapping: true,
            } => match self.is_same(stat, reader.owner(pid)) {
                Some(number) if given.is_none() => {
                    self.contents.reopened(number, file);
                    self.shared(number, map, stat)
                }
                _ => self.add(given, (pid, map), (file, stat), reader),
            },
            FoundFile::Opened { file, stat, .. } => {
                let number = given.unwrap_or_else(|| self.contents.number());
                self.insert(number, (pid, map), (file, stat), reader)
            }
            FoundFile::Failed(error) => {
                self.fail(&map.file.path, &error);
                let owner = reader.owner(pid);
                if self.contents.has_too_many(owner) {
                    return Vec::new();
                }
                self.contents.count(owner);
                // Not asked again for each of its mappings.
                let number = self.contents.number();
                Some(FileKey {
                    version: number,
                    build_id: None,
                    ..map.file.clone()
                })
            }
        };
        let is_shared = self.by_place.get(&place) == key.as_ref().map(|k| &k.version);
        match (given, key) {
            (Some(number), _) => {
                if self.contents.get(number).is_none() {
                    return Vec::new();
                }
                let ids = self.ids.iter().filter(|(_, n)| **n == number);
                ids.map(|(&id, _)| id).collect()
            }
            (None, Some(key)) if !is_shared => {
                self.call(pid, place, key);
                Vec::new()
            }
            (None, _) => Vec::new(),
        }
    }

    /// The content of a file that was found through a mapping, if it is known. As long
    /// as that is held nothing else has its numbers. After it was closed another file
    /// system may have them: then it is the same only for who had it.
    fn is_same(&self, stat: FileStat, owner: Owner) -> Option<u64> {
        let number = *self.by_stat.get(&stat)?;
        let known = self.contents.get(number)?;
        (known.open().is_some() || known.owner == owner).then_some(number)
    }

    /// A content that is known: gives its key to a mapping of it.
    fn shared(&mut self, number: u64, map: &MapEvent, stat: FileStat) -> Option<FileKey> {
        let place = place_of(&map.file);
        if place == (stat.device, stat.inode) {
            self.by_place.insert(place, number);
        }
        let binary = self.contents.get(number)?;
        Some(binary.key.clone())
    }

    /// A content that was found through a mapping for the first time.
    fn add(
        &mut self,
        given: Option<u64>,
        (pid, map): (u32, &MapEvent),
        (file, stat): (OpenFile, FileStat),
        reader: &mut Reader,
    ) -> Option<FileKey> {
        let number = given.unwrap_or_else(|| self.contents.number());
        let key = self.insert(number, (pid, map), (file, stat), reader)?;
        // What was recorded before it was known keeps its number to itself.
        if given.is_none() {
            self.by_stat.insert(stat, number);
            let place = place_of(&map.file);
            if place == (stat.device, stat.inode) {
                self.by_place.insert(place, number);
            }
        }
        Some(key)
    }

    /// Remembers a content; `None`: there are too many.
    fn insert(
        &mut self,
        number: u64,
        (pid, map): (u32, &MapEvent),
        file: (OpenFile, FileStat),
        reader: &mut Reader,
    ) -> Option<FileKey> {
        let key = self.contents.insert(number, map, file, reader.owner(pid));
        self.refused += u64::from(key.is_none());
        key
    }

    /// Closes deleted files that no process has mapped any more, if they take too much space.
    pub(crate) fn release_deleted(&mut self, processes: &ProcessTable) {
        let mapped: FxHashSet<u64> = processes
            .iter()
            .filter(|(_, process)| process.exited_ns.is_none())
            .flat_map(|(_, process)| &process.space.maps)
            .filter_map(|map| self.ids.get(&map.file).copied())
            .collect();
        self.contents.close_deleted(&mapped);
    }

    fn fail(&mut self, path: &str, error: &OpenError) {
        // Mapped only to show where it is.
        self.failed += u64::from(!is_jitdump(path));
        match error {
            OpenError::Replaced => tracing::warn!(
                "{path}: functions in this file have no names, and stacks through it may be cut: \
                 {error}"
            ),
            OpenError::Io(_) => tracing::debug!("cannot open {path}: {error}"),
        }
    }

    /// The file of a mapping does not come in time, if at all.
    pub(crate) fn late(&mut self, pid: u32, place: DeviceInode) {
        self.failed += u64::from(self.requests.late(pid, place));
    }

    /// Asks once more for the file of a mapping that was recorded without it.
    pub(crate) fn ask_again(&mut self, pid: u32, map: &MapEvent, reader: &mut Reader) {
        if self.contents.get(map.file.version).is_none() {
            self.requests.ask_again(pid, map, reader);
        }
    }

    /// A process has ended or runs another program.
    pub(crate) fn forget_process(&mut self, pid: u32) {
        self.of_process.remove(&pid);
        self.requests.forget_process(pid);
    }

    /// Forgets what processes called files that `lives` does not know.
    pub(crate) fn keep_processes(&mut self, lives: impl Fn(u32) -> bool) {
        self.of_process.retain(|&pid, _| lives(pid));
    }

    /// Forgets the files that `keep` does not want any more.
    pub(crate) fn retain(&mut self, keep: impl Fn(FileId) -> bool) {
        self.ids.retain(|&id, _| keep(id));
        self.contents.retain(&self.ids.values().copied().collect());
        let is_known = |number: &mut u64| self.contents.get(*number).is_some();
        self.by_place.retain(|_, number| is_known(number));
        self.by_stat.retain(|_, number| is_known(number));
    }

    /// Begins afresh: handles have other meanings from here on.
    pub(crate) fn clear(&mut self) {
        self.retain(|_| false);
        self.of_process.clear();
        self.requests.clear();
    }
}

/// Whether a memory file has generated code where it is mapped, and is no program or library.
fn is_generated(map: &MapEvent, found: &FoundFile) -> bool {
    let is_text = match found {
        FoundFile::Opened { file, .. } => address_of(&file.facts.text, map.file_offset).is_some(),
        FoundFile::Failed(_) => false,
    };
    Region::of(&map.file) == Region::Anonymous && !is_text
}

#[cfg(test)]
mod tests;
