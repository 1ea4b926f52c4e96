//! Which file each mapping is of, and these files, open.
//!
//! A file is what the kernel says that a mapping maps, opened through the mapping
//! itself: never what has its path, nor what has its build id, for anybody can copy
//! those. A content that several processes have is known once, if the file system
//! shows that it is one file ([`FileStat`]); a file that could be found by its path
//! only serves the process that called it so, and no other. A file that has changed
//! since is another content: what was known of the old one stays.
//!
//! Files are opened by [`Reader`]; nothing here blocks.

use super::{
    bpf::perf,
    procfs::{FileStat, OpenError},
    reader::{Found, OpenFile, Reader},
};
use crate::{
    process::{FileId, FileTable, Region},
    profile::BuildId,
    unwind::TextSegment,
    wire::{FileKey, MapEvent},
    workers::Owner,
};
use rustc_hash::FxHashMap;
use std::{collections::BTreeMap, sync::Arc};

/// Most contents known, in all and of one user other than root. A machine with 500
/// busy containers maps some 20,000 different files.
const MAX_CONTENTS: usize = 65_536;
const MAX_OF_OWNER: usize = 8192;
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

/// The extent of a file's unwind data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Pages of text.
    pub n_pages: u32,
    /// Virtual address of the first.
    pub first_page_vaddr: u64,
}

impl Binary {
    fn new(file: Arc<OpenFile>, key: FileKey, stat: Option<FileStat>, owner: Owner) -> Self {
        let unwind = file.unwind.as_ref();
        Self {
            text: unwind.map_or_else(Vec::new, |u| u.text().to_vec()),
            unwind: unwind.filter(|u| u.has_unwind_data()).map(|u| Shape {
                n_pages: u.n_pages(),
                first_page_vaddr: u.first_page_vaddr(),
            }),
            owner,
            key,
            stat,
            open: Some(file),
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

/// What the kernel shows of a mapped file: device and inode number.
type Place = (u64, u64);

fn place_of(key: &FileKey) -> Place {
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
    by_place: FxHashMap<Place, u64>,
    by_stat: FxHashMap<FileStat, u64>,
    /// What a process calls so, where that says nothing of other processes.
    of_process: FxHashMap<u32, BTreeMap<Place, FileKey>>,
    /// Mappings whose files were asked for: the number that was given meanwhile, if
    /// the mapping could not wait.
    asked: FxHashMap<(u32, Place), Option<u64>>,
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
    pub fn is_closed(&self, id: FileId) -> bool {
        self.get(id).is_some_and(|binary| binary.open.is_none())
    }

    /// Asks for the file of a mapping that will be taken in soon, if it is not known.
    pub fn foresee(&mut self, pid: u32, map: &MapEvent, reader: &mut Reader) {
        if Region::of(&map.file) == Region::File && self.known(pid, map).is_none() {
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
    pub fn is_identified(&self, pid: u32, map: &MapEvent) -> bool {
        Region::of(&map.file) != Region::File || self.known(pid, map).is_some()
    }

    /// Whether there may be an answer yet to which file a mapping is of.
    pub fn is_asked(&self, pid: u32, map: &MapEvent) -> bool {
        let asked = self.asked.get(&(pid, place_of(&map.file)));
        asked.is_some_and(Option::is_none)
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
        let now = FileStat::cached(&binary.open.as_ref()?.file.0).ok();
        (now == binary.stat).then_some(&binary.key)
    }

    /// Gives the mapping the key of its file, which is that of all mappings of the
    /// same content. What is not known by now gets a key of its own.
    pub fn identify(&mut self, pid: u32, map: &mut MapEvent, files: &mut FileTable) {
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
            let number = self.number();
            map.file.version = number;
            map.file.build_id = None;
            self.call(pid, place, map.file.clone());
            if let Some(asked) = self.asked.get_mut(&(pid, place)) {
                *asked = Some(number);
            }
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
        let file = Arc::new(OpenFile::new(file, "[vdso]"));
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
    fn call(&mut self, pid: u32, place: Place, key: FileKey) {
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
            Found::Held(stat) => match self.by_stat.get(&stat) {
                Some(&number) => self.shared(number, map, stat),
                // Closed meanwhile. The next mapping asks again.
                None => return Vec::new(),
            },
            Found::Opened {
                file,
                stat,
                through_mapping: true,
            } => match self.by_stat.get(&stat) {
                Some(&number) if given.is_none() => {
                    self.reopened(number, file, reader);
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
        (file, stat): (Arc<OpenFile>, FileStat),
        reader: &mut Reader,
    ) -> Option<FileKey> {
        let number = given.unwrap_or_else(|| self.number());
        let key = self.insert(number, (pid, map), file, Some(stat), reader)?;
        // What was recorded before it was known keeps its number to itself.
        if given.is_none() {
            self.by_stat.insert(stat, number);
            reader.holds(stat, true);
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
        file: Arc<OpenFile>,
        stat: Option<FileStat>,
        reader: &mut Reader,
    ) -> Option<FileKey> {
        let owner = reader.owner(pid);
        let own = self.of_owner.entry(owner).or_default();
        if self.contents.len() >= MAX_CONTENTS || owner != Owner::ROOT && *own >= MAX_OF_OWNER {
            self.refused += 1;
            return None;
        }
        *own += 1;
        let key = FileKey {
            build_id: file.unwind.as_ref().and_then(|u| u.build_id()),
            version: number,
            ..map.file.clone()
        };
        self.looks += 1;
        let binary = Binary {
            used: self.looks,
            ..Binary::new(file, key.clone(), stat, owner)
        };
        self.contents.insert(number, binary);
        self.open += 1;
        self.close_some(reader);
        Some(key)
    }

    fn reopened(&mut self, number: u64, file: Arc<OpenFile>, reader: &mut Reader) {
        self.looks += 1;
        let Some(binary) = self.contents.get_mut(&number) else {
            return;
        };
        binary.used = self.looks;
        if binary.open.is_none() {
            binary.open = Some(file);
            self.open += 1;
            if let Some(stat) = binary.stat {
                reader.holds(stat, true);
            }
            self.close_some(reader);
        }
    }

    /// Closes files when too many are open: of whoever has most of them open, those
    /// that were not asked for longest.
    fn close_some(&mut self, reader: &mut Reader) {
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
        let mut surplus = self.open - self.most_open / 8 * 7;
        while surplus > 0 {
            let Some(most) = by_owner.values_mut().max_by_key(|own| own.len()) else {
                return;
            };
            most.sort_unstable();
            let n = most.len().div_ceil(2).min(surplus);
            for (_, number) in most.drain(..n) {
                self.close(number, reader);
            }
            surplus -= n;
            by_owner.retain(|_, own| !own.is_empty());
        }
    }

    fn close(&mut self, number: u64, reader: &mut Reader) {
        if let Some(binary) = self.contents.get_mut(&number)
            && binary.open.take().is_some()
        {
            self.open = self.open.saturating_sub(1);
            if let Some(stat) = binary.stat {
                reader.holds(stat, false);
            }
        }
    }

    fn fail(&mut self, path: &str, error: &OpenError) {
        self.failed += 1;
        match error {
            OpenError::Replaced => tracing::warn!("{path}: {error}: not used"),
            OpenError::Io(_) => tracing::debug!("{path}: cannot be opened: {error}"),
        }
    }

    /// The file of a mapping does not come in time, if at all.
    pub fn late(&mut self, pid: u32, place: (u64, u64)) {
        // What has a number already may come all the same.
        if self.asked.get(&(pid, place)) == Some(&None) {
            self.asked.remove(&(pid, place));
            self.failed += 1;
        }
    }

    /// A process has ended or runs another program.
    pub fn forget_process(&mut self, pid: u32) {
        self.of_process.remove(&pid);
    }

    /// Forgets what processes called files that `lives` does not know.
    pub fn keep_processes(&mut self, lives: impl Fn(u32) -> bool) {
        self.of_process.retain(|&pid, _| lives(pid));
    }

    /// Forgets the files that `keep` does not want any more.
    pub fn retain(&mut self, keep: impl Fn(FileId) -> bool, reader: &mut Reader) {
        self.ids.retain(|&id, _| keep(id));
        let wanted: std::collections::BTreeSet<u64> = self.ids.values().copied().collect();
        let gone: Vec<u64> = self
            .contents
            .keys()
            .copied()
            .filter(|number| !wanted.contains(number))
            .collect();
        for number in gone {
            self.close(number, reader);
            if let Some(binary) = self.contents.remove(&number)
                && let Some(own) = self.of_owner.get_mut(&binary.owner)
            {
                *own = own.saturating_sub(1);
            }
        }
        let contents = &self.contents;
        self.by_place.retain(|_, n| contents.contains_key(n));
        self.by_stat.retain(|_, n| contents.contains_key(n));
    }

    /// Begins afresh: handles have other meanings from here on.
    pub fn clear(&mut self, reader: &mut Reader) {
        self.retain(|_| false, reader);
        self.of_process.clear();
        self.asked.clear();
    }
}
