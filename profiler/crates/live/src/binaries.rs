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

use super::{
    bpf::perf,
    procfs::{FileStat, OpenError},
    reader::{Facts, Found, OpenFile, Reader, Shape},
};
use aiprof_model::{
    process::{FileId, FileTable, ProcessTable, Region, is_jitdump},
    profile::BuildId,
    wire::{FileKey, MapEvent},
};
use aiprof_symbols::{
    java::JavaLibrary,
    python::Interpreter,
    unwind::TextSegment,
    v8::{V8Error, V8Library},
};
use aiprof_system::{files::others, workers::Owner};
use rustc_hash::{FxHashMap, FxHashSet};
use rustix::fs::StatxFlags;
use std::{collections::BTreeMap, sync::Arc};

/// Most contents known, in all and of one user other than root. A machine with 500
/// busy containers maps some 20,000 different files.
const MAX_CONTENTS: usize = 65_536;
const MAX_OF_OWNER: usize = 8192;
/// Most bytes of deleted files that are held for their names.
const MAX_DELETED_BYTES: u64 = 64 << 20;
/// Most mappings remembered whose files did not come in time.
const MAX_LATE: usize = 4096;
/// Descriptors that are left to everything else.
const OTHER_DESCRIPTORS: u64 = 128;
/// Fewest and most files kept open.
const OPEN_FILES: std::ops::RangeInclusive<u64> = 16..=16_384;

/// What is known of a mapped file as long as something may ask for it.
#[derive(Debug)]
pub struct Binary {
    /// Its executable segments.
    pub text: Vec<TextSegment>,
    /// Its unwind data, if it has any.
    pub unwind: Option<Shape>,
    /// The Python interpreter in it.
    pub python: Option<Interpreter>,
    /// The HotSpot in it.
    pub java: Option<Box<JavaLibrary>>,
    /// The V8 in it, or why it cannot be read.
    pub v8: Option<Box<Result<V8Library, V8Error>>>,
    /// On whose account it is read: who mapped it first.
    pub owner: Owner,
    /// As mappings of it are recorded.
    key: FileKey,
    /// Which file it is; the vdso has none.
    stat: Option<FileStat>,
    /// The file, unless it was closed because too many were open.
    open: Option<Arc<OpenFile>>,
    /// When it was last asked for, in looks.
    used: u64,
}

impl Binary {
    fn new(file: OpenFile, key: FileKey, stat: Option<FileStat>, owner: Owner) -> Self {
        let Facts {
            text,
            unwind,
            python,
            java,
            v8,
            ..
        } = (*file.facts).clone();
        Self {
            text,
            unwind,
            python,
            java,
            v8,
            owner,
            key,
            stat,
            open: Some(Arc::new(file)),
            used: 0,
        }
    }

    /// The file, if it is open.
    pub fn open(&self) -> Option<&Arc<OpenFile>> {
        self.open.as_ref()
    }

    /// Its build id, as read from the file.
    pub fn build_id(&self) -> Option<BuildId> {
        self.key.build_id
    }
}

/// What mappings of more files than a user may have are of.
fn too_many_files() -> FileKey {
    FileKey {
        path: "[too many files]".to_owned(),
        build_id: None,
        device: 0,
        inode: 0,
        version: 0,
    }
}

/// What the kernel shows of a mapped file: device and inode number.
type DeviceInode = (u64, u64);

fn place_of(key: &FileKey) -> DeviceInode {
    (key.device, key.inode)
}

/// All files, each content once. A content has a number, which is the version in the
/// keys of its mappings.
#[derive(Debug, Default)]
pub struct Binaries {
    contents: FxHashMap<u64, Binary>,
    last: u64,
    /// Contents by the handles of their files.
    ids: FxHashMap<FileId, u64>,
    /// Contents by what the kernel shows, where that names one file only.
    by_place: FxHashMap<DeviceInode, u64>,
    by_stat: FxHashMap<FileStat, u64>,
    /// The files that device and inode numbers mean in one process, where they may be
    /// others elsewhere.
    of_process: FxHashMap<u32, BTreeMap<DeviceInode, FileKey>>,
    /// Mappings whose files were asked for: the number that was given meanwhile, if
    /// the mapping could not wait.
    asked: FxHashMap<(u32, DeviceInode), Option<u64>>,
    /// Those whose files did not come in time.
    late: FxHashSet<(u32, DeviceInode)>,
    of_owner: FxHashMap<Owner, usize>,
    open: usize,
    most_open: usize,
    looks: u64,
    /// Files that could not be opened.
    pub failed: u64,
    /// Mappings of files beyond the limits.
    pub refused: u64,
}

impl Binaries {
    /// None yet; as many are kept open as this process may.
    pub fn new() -> Self {
        let limit = perf::file_limit().saturating_sub(OTHER_DESCRIPTORS) / 4 * 3;
        Self {
            most_open: limit.clamp(*OPEN_FILES.start(), *OPEN_FILES.end()) as usize,
            ..Self::default()
        }
    }

    /// A file that is known.
    pub fn get(&self, id: FileId) -> Option<&Binary> {
        self.contents.get(self.ids.get(&id)?)
    }

    /// The open file of a handle, for reading it now; it counts as used.
    pub fn opened(&mut self, id: FileId) -> Option<Arc<OpenFile>> {
        self.looks += 1;
        let binary = self.contents.get_mut(self.ids.get(&id)?)?;
        binary.used = self.looks;
        binary.open.clone()
    }

    /// Whether the file of a handle was closed, and must be asked for to be read.
    pub(crate) fn is_closed(&self, id: FileId) -> bool {
        self.get(id).is_some_and(|binary| binary.open.is_none())
    }

    /// Asks for the file of a mapping that will be taken in soon, if it is not known.
    pub(crate) fn prefetch(&mut self, pid: u32, map: &MapEvent, reader: &mut Reader) {
        if Region::of(&map.file) == Region::File
            && self.known(pid, map).is_none()
            && !self.has_too_many(reader.owner(pid))
        {
            self.ask(pid, map, reader);
        }
    }

    fn ask(&mut self, pid: u32, map: &MapEvent, reader: &mut Reader) -> bool {
        let asked = (pid, place_of(&map.file));
        if self.asked.contains_key(&asked) {
            return true;
        }
        let taken = reader.ask_file(pid, map.clone());
        if taken {
            self.asked.insert(asked, None);
        }
        taken
    }

    /// Asks for a file that was closed, by a mapping of it.
    pub fn reopen(&mut self, pid: u32, map: &MapEvent, reader: &mut Reader) {
        self.ask(pid, map, reader);
    }

    /// Whether it is known which file a mapping is of, or need not be.
    pub(crate) fn is_identified(&self, pid: u32, map: &MapEvent) -> bool {
        Region::of(&map.file) != Region::File || self.known(pid, map).is_some()
    }

    /// Whether the file of a mapping was read and has changed since: a program that deletes
    /// itself, for one.
    pub(crate) fn has_changed(&self, pid: u32, map: &MapEvent) -> bool {
        let number = self.by_place.get(&place_of(&map.file));
        let read = number.and_then(|number| self.contents.get(number));
        read.is_some_and(|binary| binary.open.is_some()) && !self.is_identified(pid, map)
    }

    /// Whether there may be an answer yet to which file a mapping is of.
    pub fn is_asked(&self, pid: u32, map: &MapEvent) -> bool {
        let asked = self.asked.get(&(pid, place_of(&map.file)));
        asked.is_some_and(Option::is_none)
    }

    /// Whether the file of a mapping is still being read, also if the mapping did not wait.
    pub(crate) fn is_being_read(&self, pid: u32, file: &FileKey) -> bool {
        self.asked.contains_key(&(pid, place_of(file)))
    }

    /// The key of a mapping's file, if it is known.
    fn known(&self, pid: u32, map: &MapEvent) -> Option<&FileKey> {
        let place = place_of(&map.file);
        let own = self.of_process.get(&pid).and_then(|own| own.get(&place));
        if own.is_some() {
            return own;
        }
        let binary = self.contents.get(self.by_place.get(&place)?)?;
        // As long as it is open nothing else has its numbers; and if it has changed,
        // it must be read again.
        let now = FileStat::cached(&binary.open.as_ref()?.place).ok();
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
            Region::Vdso => {
                map.file.version = 0;
                return self.vdso(files.intern(&map.file));
            }
            Region::Anonymous | Region::Uprobes | Region::Vsyscall => {
                map.file.version = 0;
                return;
            }
        }
        let place = place_of(&map.file);
        if let Some(key) = self.known(pid, map) {
            map.file = key.clone();
        } else {
            let owner = owner();
            if self.has_too_many(owner) {
                self.refused += 1;
                map.file = too_many_files();
                return;
            }
            *self.of_owner.entry(owner).or_default() += 1;
            let number = self.number();
            map.file.version = number;
            map.file.build_id = None;
            self.call(pid, place, map.file.clone());
            match self.asked.get_mut(&(pid, place)) {
                Some(asked) => *asked = Some(number),
                // It has changed since it was read, or was refused.
                None => self.note_late(pid, place),
            }
        }
        let id = files.intern(&map.file);
        self.ids.insert(id, map.file.version);
    }

    /// Whether a user has all the files that one may have.
    fn has_too_many(&self, owner: Owner) -> bool {
        if owner == Owner::ROOT {
            return false;
        }
        let own = self.of_owner.get(&owner).copied().unwrap_or(0);
        // The rest is root's.
        own >= MAX_OF_OWNER || self.contents.len() >= MAX_CONTENTS / 4 * 3
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
        let key = FileKey {
            path: "[vdso]".to_owned(),
            build_id: None,
            device: 0,
            inode: 0,
            version: 0,
        };
        self.ids.insert(id, 0);
        let binary = Binary::new(file, key, None, Owner::ROOT);
        self.contents.insert(0, binary);
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Remembers what a process means by a device and inode number.
    fn call(&mut self, pid: u32, place: DeviceInode, key: FileKey) {
        self.of_process.entry(pid).or_default().insert(place, key);
    }

    /// Takes in what was found behind a mapping of a process. Gives the handle of the
    /// file if it was recorded before it was known.
    pub fn found(
        &mut self,
        pid: u32,
        map: &MapEvent,
        found: Found,
        reader: &mut Reader,
    ) -> Vec<FileId> {
        let place = place_of(&map.file);
        let given = self.asked.remove(&(pid, place)).flatten();
        let key = match found {
            Found::Opened {
                file,
                stat,
                through_mapping: true,
            } => match self.is_same(stat, reader.owner(pid)) {
                Some(number) if given.is_none() => {
                    self.reopened(number, file);
                    self.shared(number, map, stat)
                }
                _ => self.add(given, (pid, map), (file, stat), reader),
            },
            Found::Opened { file, stat, .. } => {
                let number = given.unwrap_or_else(|| self.number());
                self.insert(number, (pid, map), file, Some(stat), reader)
            }
            Found::Failed(error) => {
                self.fail(&map.file.path, &error);
                let owner = reader.owner(pid);
                if self.has_too_many(owner) {
                    return Vec::new();
                }
                *self.of_owner.entry(owner).or_default() += 1;
                // Not asked again for each of its mappings.
                let number = self.number();
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
                if !self.contents.contains_key(&number) {
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
        let known = self.contents.get(&number)?;
        (known.open.is_some() || known.owner == owner).then_some(number)
    }

    /// A content that is known: gives its key to a mapping of it.
    fn shared(&mut self, number: u64, map: &MapEvent, stat: FileStat) -> Option<FileKey> {
        let place = place_of(&map.file);
        if place == (stat.device, stat.inode) {
            self.by_place.insert(place, number);
        }
        let binary = self.contents.get(&number)?;
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
        let number = given.unwrap_or_else(|| self.number());
        let key = self.insert(number, (pid, map), file, Some(stat), reader)?;
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
        file: OpenFile,
        stat: Option<FileStat>,
        reader: &mut Reader,
    ) -> Option<FileKey> {
        let owner = reader.owner(pid);
        if self.contents.len() >= MAX_CONTENTS || self.has_too_many(owner) {
            self.refused += 1;
            return None;
        }
        *self.of_owner.entry(owner).or_default() += 1;
        let key = FileKey {
            build_id: file.facts.build_id,
            version: number,
            ..map.file.clone()
        };
        self.looks += 1;
        let file = OpenFile { number, ..file };
        let binary = Binary {
            used: self.looks,
            ..Binary::new(file, key.clone(), stat, owner)
        };
        self.contents.insert(number, binary);
        self.open += 1;
        self.close_some();
        Some(key)
    }

    fn reopened(&mut self, number: u64, file: OpenFile) {
        self.looks += 1;
        let Some(binary) = self.contents.get_mut(&number) else {
            return;
        };
        binary.used = self.looks;
        if binary.open.is_none() {
            binary.open = Some(Arc::new(OpenFile { number, ..file }));
            self.open += 1;
            self.close_some();
        }
    }

    /// Closes files when too many are open: of whoever has most of them open, those
    /// that were not asked for longest.
    fn close_some(&mut self) {
        if self.open <= self.most_open {
            return;
        }
        let mut by_owner: BTreeMap<Owner, Vec<(u64, u64)>> = BTreeMap::new();
        for (&number, binary) in &self.contents {
            if binary.open.is_some() && binary.stat.is_some() {
                let own = by_owner.entry(binary.owner).or_default();
                own.push((binary.used, number));
            }
        }
        // An eighth at a time: this looks at them all.
        let mut surplus = self.open - (self.most_open - self.most_open / 8);
        while surplus > 0 {
            let Some(most) = by_owner.values_mut().max_by_key(|own| own.len()) else {
                return;
            };
            most.sort_unstable();
            let n = most.len().div_ceil(2).min(surplus);
            for (_, number) in most.drain(..n) {
                self.close(number);
            }
            surplus -= n;
            by_owner.retain(|_, own| !own.is_empty());
        }
    }

    fn close(&mut self, number: u64) {
        if let Some(binary) = self.contents.get_mut(&number)
            && binary.open.take().is_some()
        {
            self.open = self.open.saturating_sub(1);
        }
    }

    /// Closes deleted files that no process has mapped any more, if they take more space
    /// than they may: as long as they are open, their space is not free. Those not asked
    /// for longest come first.
    pub(crate) fn release_deleted(&mut self, processes: &ProcessTable) {
        let mapped: FxHashSet<u64> = processes
            .iter()
            .filter(|(_, process)| process.exited_ns.is_none())
            .flat_map(|(_, process)| &process.space.maps)
            .filter_map(|map| self.ids.get(&map.file).copied())
            .collect();
        let mut held: Vec<(u64, u64, u64)> = Vec::new();
        for (&number, binary) in &self.contents {
            let (Some(open), false) = (&binary.open, mapped.contains(&number)) else {
                continue;
            };
            let wanted = StatxFlags::NLINK | StatxFlags::BLOCKS;
            if let Ok(found) = others::cached(&open.place, wanted)
                && found.stx_nlink == 0
            {
                held.push((binary.used, number, found.stx_blocks * 512));
            }
        }
        held.sort_unstable();
        let mut bytes: u64 = held.iter().map(|(_, _, bytes)| bytes).sum();
        for (_, number, own) in held {
            if bytes <= MAX_DELETED_BYTES {
                break;
            }
            self.close(number);
            bytes -= own;
        }
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
    pub fn late(&mut self, pid: u32, place: (u64, u64)) {
        let asked = (pid, place);
        self.note_late(pid, place);
        // What has a number already may come all the same.
        if self.asked.get(&asked) == Some(&None) {
            self.asked.remove(&asked);
            self.failed += 1;
        }
    }

    /// The mappings whose files did not come in time, once: see
    /// [`Binaries::ask_again`].
    pub(crate) fn take_late(&mut self) -> FxHashSet<(u32, (u64, u64))> {
        std::mem::take(&mut self.late)
    }

    /// Asks once more for the file of a mapping that was recorded without it.
    pub(crate) fn ask_again(&mut self, pid: u32, map: &MapEvent, reader: &mut Reader) {
        let place = place_of(&map.file);
        if self.contents.contains_key(&map.file.version) {
            return;
        }
        if reader.ask_file(pid, map.clone()) {
            self.asked.insert((pid, place), Some(map.file.version));
        } else {
            self.note_late(pid, place);
        }
    }

    fn note_late(&mut self, pid: u32, place: DeviceInode) {
        if self.late.len() < MAX_LATE {
            self.late.insert((pid, place));
        }
    }

    /// A process has ended or runs another program.
    pub(crate) fn forget_process(&mut self, pid: u32) {
        self.of_process.remove(&pid);
        self.late.retain(|(late, _)| *late != pid);
    }

    /// Forgets what processes called files that `lives` does not know.
    pub(crate) fn keep_processes(&mut self, lives: impl Fn(u32) -> bool) {
        self.of_process.retain(|&pid, _| lives(pid));
    }

    /// Forgets the files that `keep` does not want any more.
    pub fn retain(&mut self, keep: impl Fn(FileId) -> bool) {
        self.ids.retain(|&id, _| keep(id));
        let wanted: std::collections::BTreeSet<u64> = self.ids.values().copied().collect();
        let gone: Vec<u64> = self
            .contents
            .keys()
            .copied()
            .filter(|number| !wanted.contains(number))
            .collect();
        for number in gone {
            self.close(number);
            self.contents.remove(&number);
        }
        self.of_owner.clear();
        for binary in self.contents.values() {
            *self.of_owner.entry(binary.owner).or_default() += 1;
        }
        let contents = &self.contents;
        self.by_place.retain(|_, n| contents.contains_key(n));
        self.by_stat.retain(|_, n| contents.contains_key(n));
    }

    /// Begins afresh: handles have other meanings from here on.
    pub fn clear(&mut self) {
        self.retain(|_| false);
        self.of_process.clear();
        self.asked.clear();
    }
}

#[cfg(test)]
mod tests;
