//! The contents of files, each once, and which of their files are open.

use crate::{
    procfs::FileStat,
    reader::{Facts, OpenFile, Shape},
};
use aiprof_model::{
    process::name_in_memory,
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
/// Most bytes of copies in memory that are held of one user's files: of files that only their user
/// may read, and of memory files.
const MAX_COPIED: u64 = 512 << 20;
/// Most bytes of deleted files that are held for their names.
pub(super) const MAX_DELETED_BYTES: u64 = 64 << 20;

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
    pub(super) key: FileKey,
    /// Which file it is; the vdso has none.
    pub(super) stat: Option<FileStat>,
    /// The file, unless it was closed because too many were open.
    open: Option<Arc<OpenFile>>,
    /// When it was last asked for, in looks.
    used: u64,
    /// Bytes of memory that it has: those of a copy.
    copied: u64,
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
            copied: 0,
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

/// The key of what is no file.
pub(super) fn fileless_key(path: &str) -> FileKey {
    FileKey {
        path: path.to_owned(),
        build_id: None,
        device: 0,
        inode: 0,
        version: 0,
    }
}

/// Bytes of a file that takes memory as long as it is open here: a copy, which has no name and is
/// on another device than what is mapped.
fn copied_bytes(file: &OpenFile, stat: FileStat, map: &MapEvent) -> u64 {
    let found = others::cached(&file.place, StatxFlags::NLINK);
    let has_no_name = found.is_ok_and(|found| found.stx_nlink == 0);
    match has_no_name && stat.device != map.file.device {
        true => stat.size,
        false => 0,
    }
}

/// All contents by their numbers, which are the versions in the keys of their mappings.
#[derive(Debug, Default)]
pub(super) struct FileContents {
    by_number: FxHashMap<u64, Binary>,
    last: u64,
    of_owner: FxHashMap<Owner, usize>,
    open: usize,
    most_open: usize,
    looks: u64,
}

impl FileContents {
    /// None yet; at most `most_open` files are kept open.
    pub(super) fn new(most_open: usize) -> Self {
        Self {
            most_open,
            ..Self::default()
        }
    }

    /// A number for a new content.
    pub(super) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The content of a number.
    pub(super) fn get(&self, number: u64) -> Option<&Binary> {
        self.by_number.get(&number)
    }

    /// The open file of a content, for reading it now; it counts as used.
    pub(super) fn opened(&mut self, number: u64) -> Option<Arc<OpenFile>> {
        self.looks += 1;
        let binary = self.by_number.get_mut(&number)?;
        binary.used = self.looks;
        binary.open.clone()
    }

    /// Whether a user has all the files that one may have.
    pub(super) fn has_too_many(&self, owner: Owner) -> bool {
        if owner == Owner::ROOT {
            return false;
        }
        let own = self.of_owner.get(&owner).copied().unwrap_or(0);
        // The rest is root's.
        own >= MAX_OF_OWNER || self.by_number.len() >= MAX_CONTENTS / 4 * 3
    }

    /// A user has one file more.
    pub(super) fn count(&mut self, owner: Owner) {
        *self.of_owner.entry(owner).or_default() += 1;
    }

    /// Remembers a content, whose file was found behind `map`; `None`: there are too many.
    pub(super) fn insert(
        &mut self,
        number: u64,
        map: &MapEvent,
        (file, stat): (OpenFile, FileStat),
        owner: Owner,
    ) -> Option<FileKey> {
        let copied = copied_bytes(&file, stat, map);
        if self.by_number.len() >= MAX_CONTENTS
            || self.has_too_many(owner)
            || copied > 0 && self.copied_of(owner).saturating_add(copied) > MAX_COPIED
        {
            return None;
        }
        self.count(owner);
        let path = &map.file.path;
        let key = FileKey {
            path: name_in_memory(path).unwrap_or_else(|| path.clone()),
            build_id: file.facts.build_id,
            version: number,
            ..map.file
        };
        self.looks += 1;
        let file = OpenFile { number, ..file };
        let binary = Binary {
            used: self.looks,
            copied,
            ..Binary::new(file, key.clone(), Some(stat), owner)
        };
        self.by_number.insert(number, binary);
        self.open += 1;
        self.close_some();
        Some(key)
    }

    /// Bytes of the copies that are open of one user's files.
    fn copied_of(&self, owner: Owner) -> u64 {
        let own = self
            .by_number
            .values()
            .filter(|binary| binary.owner == owner);
        let open = own.filter(|binary| binary.open.is_some());
        open.map(|binary| binary.copied).sum()
    }

    /// Remembers the vdso, which has number 0.
    pub(super) fn insert_vdso(&mut self, file: OpenFile) {
        let binary = Binary::new(file, fileless_key("[vdso]"), None, Owner::ROOT);
        self.by_number.insert(0, binary);
    }

    /// A content was found again: its file is open again.
    pub(super) fn reopened(&mut self, number: u64, file: OpenFile) {
        self.looks += 1;
        let Some(binary) = self.by_number.get_mut(&number) else {
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
        for (&number, binary) in &self.by_number {
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
        if let Some(binary) = self.by_number.get_mut(&number)
            && binary.open.take().is_some()
        {
            self.open = self.open.saturating_sub(1);
        }
    }

    /// Closes deleted files that are not `mapped` any more, if they take more space
    /// than they may: as long as they are open, their space is not free. Those not asked
    /// for longest come first.
    pub(super) fn close_deleted(&mut self, mapped: &FxHashSet<u64>) {
        let mut held: Vec<(u64, u64, u64)> = Vec::new();
        for (&number, binary) in &self.by_number {
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

    /// Forgets the contents that are not `wanted` any more.
    pub(super) fn retain(&mut self, wanted: &FxHashSet<u64>) {
        self.by_number.retain(|number, binary| {
            let keep = wanted.contains(number);
            let gone = usize::from(!keep && binary.open.is_some());
            self.open = self.open.saturating_sub(gone);
            keep
        });
        self.of_owner.clear();
        for binary in self.by_number.values() {
            *self.of_owner.entry(binary.owner).or_default() += 1;
        }
    }
}
