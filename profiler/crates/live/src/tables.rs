//! Which unwind tables are in the pool: a directory for each mapped file, table
//! pages for the text that runs, a mapping list for each address space.
//!
//! Pages are loaded when a sample misses them, small files wholly at once; the
//! least recently used leave when the pool fills up. They are read elsewhere
//! ([`super::reader`]): what is wanted is in `Tables::take_wanted`, and comes back
//! by [`Tables::store`].
//!
//! Equal pages are one block, whichever files they come from: a hundred containers
//! of one image have a hundred files, and their tables once. A digest of the
//! built table decides what is equal, never an id in the file.

use super::{
    binaries::Binaries,
    bpf::{
        plain,
        pool::{Block, Pool},
    },
    generated::{Generated, GeneratedRange},
    java::Javas,
    reader::{Shape, Table, TableDigest},
    v8::V8s,
};
use aiprof_common::{
    DirHeader, MAP_ANON, MAP_FILE, MAP_UPROBES, MAP_VSYSCALL, MAX_MAPPINGS, MapEntry,
    MapListHeader, NO_JAVA, NO_PYTHON, NO_V8, PAGE_SIZE, PYTHON_FRAMES, PageHeader, PoolRef,
    ProcEntry, PythonLayout, REF_ABSENT, REF_NO_DATA,
};
use aiprof_model::process::{FileId, FileTable, Mapping, Region, Space};
use aiprof_model::wire::PythonFound;
use aiprof_symbols::{java::HotSpot, python::Version, unwind::address_of};
use aiprof_system::workers::Owner;
use rustc_hash::{FxHashMap, FxHashSet};
use std::mem::{offset_of, size_of};

/// What is read before a sample misses it, while there is room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadAhead {
    /// Files of up to 8 MiB of text wholly at first sight, and of others what is around a page that
    /// was missed: most programs then never miss. For calls, which come so fast that they cannot
    /// wait for what they miss, and for what changes stacks.
    Files,
    /// The pages beside one that was missed.
    Neighbours,
}

impl ReadAhead {
    /// Most pages of files that are read at first sight.
    fn whole(self) -> u32 {
        match self {
            Self::Files => 128,
            Self::Neighbours => 1,
        }
    }

    /// Pages on either side of a page that was missed.
    fn neighbours(self) -> u32 {
        match self {
            Self::Files => 8,
            Self::Neighbours => 1,
        }
    }
}

/// Part of the pool, in percent, that the mapping lists of one user other than root
/// may fill, and those of all such users.
const LISTS_OF_OWNER: usize = 25;
const LISTS: usize = 50;
/// Bytes of a mapping in a list: its start, and its entry.
const LIST_ENTRY_BYTES: usize = 8 + size_of::<MapEntry>();
/// Pages that are read ahead at once.
const AHEAD_AT_ONCE: usize = 4;
/// Most users on whose accounts a page is read at a time.
const MAX_ASKING: usize = 8;
/// Use of the pool, in percent, from which on the tables of files that no
/// process maps any more are dropped. Below, they wait for the next process.
const FORGET_ABOVE: usize = 60;
/// Part of the pool that eager loading may fill, in percent.
const EAGER_LIMIT: usize = 50;
/// Use of the pool, in percent, at which pages are evicted, and down to which.
const EVICT_ABOVE: usize = 90;
const EVICT_TO: usize = 75;

struct FileTables {
    dir: Block,
    n_pages: u32,
    base_page: u64,
    /// Whether a page may be another one when it is read again.
    changes: bool,
    /// Whether reading a page takes long: then none is read ahead.
    is_slow: bool,
    ahead: ReadAhead,
    pages: FxHashMap<u32, TableDigest>,
    /// Those of which the rest was not read.
    partial: FxHashSet<u32>,
}

/// A page in the pool, and how many files have it.
struct SharedPage {
    block: Block,
    files: u32,
}

/// Why a page was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wish {
    /// A sample missed it.
    Missed,
    /// A sample missed it, and to read it takes tens of milliseconds.
    Slow,
    /// It may be needed soon.
    Ahead,
}

/// Pages of a file that must be read.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// The file.
    pub id: FileId,
    /// On whose account.
    pub owner: Owner,
    /// Why.
    pub wish: Wish,
    /// The numbers of the pages.
    pub pages: Vec<u32>,
}

/// A page that was asked for.
struct Ask {
    wish: Wish,
    /// On whose accounts: what waits behind the files of one must not make others
    /// wait.
    owners: Vec<Owner>,
}

struct List {
    block: Block,
    /// The layout of the process's interpreter, and what is recorded of it.
    python: Option<(Block, PythonFound)>,
    /// The layout of the process's HotSpot.
    java: Option<Block>,
    /// The layout of the process's V8.
    v8: Option<Block>,
    owner: Owner,
    bytes: usize,
    users: u32,
    files: Vec<FileId>,
}

/// What mappings are of.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    /// Files.
    pub binaries: &'a Binaries,
    /// Generated code.
    pub generated: &'a Generated,
    /// The HotSpots of processes.
    pub javas: &'a Javas,
}

/// The tables in the pool.
pub struct Tables {
    pool: Pool,
    ahead: ReadAhead,
    files: FxHashMap<FileId, Option<FileTables>>,
    directories: FxHashMap<PoolRef, FileId>,
    lists: FxHashMap<u64, List>,
    list_bytes: FxHashMap<Owner, usize>,
    pages: FxHashMap<TableDigest, SharedPage>,
    wanted: Vec<(FileId, Owner, Wish, u32)>,
    /// Versions of interpreters that are not known, and were reported.
    unknown: FxHashSet<Version>,
    v8s: V8s,
    asked: FxHashMap<(FileId, u32), Ask>,
    /// Pages evicted.
    pub evicted: u64,
    /// Blocks for which there was no room.
    pub refused: u64,
    /// Mapped files without usable unwind data.
    pub without_data: u64,
}

impl Tables {
    /// Manages a pool.
    pub(crate) fn new(pool: Pool, ahead: ReadAhead) -> Self {
        Self {
            pool,
            ahead,
            files: FxHashMap::default(),
            directories: FxHashMap::default(),
            lists: FxHashMap::default(),
            list_bytes: FxHashMap::default(),
            pages: FxHashMap::default(),
            wanted: Vec::new(),
            unknown: FxHashSet::default(),
            v8s: V8s::default(),
            asked: FxHashMap::default(),
            evicted: 0,
            refused: 0,
            without_data: 0,
        }
    }

    /// The mapping list of the address space of a process, made if it is new; counts a
    /// user. Its tables are read on the account of `owner`. `None`: no room for it.
    pub(crate) fn acquire(
        &mut self,
        (pid, space): (u32, &Space),
        owner: Owner,
        files: &FileTable,
        known: &Known<'_>,
    ) -> Option<ProcEntry> {
        if let Some(list) = self.lists.get_mut(&space.version) {
            list.users += 1;
            let (block, python) = (list.block, list.python.as_ref().map(|(block, _)| *block));
            let (java, v8) = (list.java, list.v8);
            return Some(self.proc_entry(space, block, python, (java, v8)));
        }
        let maps = space.maps.get(..MAX_MAPPINGS).unwrap_or(&space.maps);
        let bytes = size_of::<MapListHeader>() + maps.len() * LIST_ENTRY_BYTES;
        if !self.may_have(owner, bytes) {
            self.refused += 1;
            return None;
        }
        let entries: Vec<MapEntry> = maps
            .iter()
            .map(|m| self.entry(pid, m, owner, files, known))
            .collect();
        let content = list_content(maps, &entries);
        let Some(block) = self.pool.store(&content) else {
            self.refused += 1;
            return None;
        };
        let python = self
            .interpreter(maps, files, known.binaries)
            .and_then(|(layout, found)| Some((self.pool.store(plain::bytes(&layout))?, found)));
        let layout = python.as_ref().map(|(block, _)| *block);
        let java = known.javas.get(pid).map(HotSpot::layout);
        let java = java.and_then(|layout| self.pool.store(plain::bytes(&layout)));
        let v8 = self
            .v8s
            .layout(space, files, known.binaries)
            .and_then(|layout| self.pool.store(plain::bytes(&layout)));
        let pieces = maps.iter().filter_map(|m| known.generated.piece(pid, m));
        let mut used: Vec<FileId> = maps.iter().map(|m| m.file).collect();
        used.extend(pieces.map(|piece| piece.id));
        used.sort_unstable();
        used.dedup();
        *self.list_bytes.entry(owner).or_default() += bytes;
        self.lists.insert(
            space.version,
            List {
                block,
                python,
                java,
                v8,
                owner,
                bytes,
                users: 1,
                files: used,
            },
        );
        Some(self.proc_entry(space, block, layout, (java, v8)))
    }

    /// Whether there is room in the pool for so much more of a user's lists: processes
    /// with thousands of mappings must leave the others theirs. What has no list is
    /// unwound from copies of its stack.
    fn may_have(&self, owner: Owner, bytes: usize) -> bool {
        if owner == Owner::ROOT {
            return true;
        }
        let (_, all) = self.pool.usage();
        let own = self.list_bytes.get(&owner).copied().unwrap_or(0);
        let of_others = self.list_bytes.iter().filter(|(o, _)| **o != Owner::ROOT);
        let of_users: usize = of_others.map(|(_, bytes)| bytes).sum();
        (own + bytes) * 100 <= all * LISTS_OF_OWNER && (of_users + bytes) * 100 <= all * LISTS
    }

    /// Finds the interpreter that a process has mapped. Gives where it has its data, and
    /// what is recorded of it, but for the process. A version that is not known is
    /// reported once.
    fn interpreter(
        &mut self,
        maps: &[Mapping],
        files: &FileTable,
        binaries: &Binaries,
    ) -> Option<(PythonLayout, PythonFound)> {
        let found = maps.iter().find_map(|map| {
            let binary = binaries.get(map.file)?;
            let python = binary.python.as_ref()?;
            let address = address_of(&binary.text, map.file_offset)?;
            let bias = map.start.wrapping_sub(address);
            let eval = python.eval.start.wrapping_add(bias);
            (map.start..map.end)
                .contains(&eval)
                .then_some((map, python, bias))
        });
        let (map, python, bias) = found?;
        let is_musl = maps.iter().any(|map| {
            let path = files.key(map.file).map_or("", |key| key.path.as_str());
            let name = path.rsplit('/').next().unwrap_or(path);
            name.starts_with("ld-musl-") || name.starts_with("libc.musl-")
        });
        let layout = python.layout(bias, is_musl);
        if layout.is_none() && self.unknown.insert(python.version) {
            tracing::warn!(
                "Python {} is not supported (supported: 3.8 to 3.14); its stacks show C functions",
                python.version
            );
        }
        let layout = layout?;
        let eval = python.eval.start.wrapping_add(bias)..python.eval.end.wrapping_add(bias);
        let found = PythonFound {
            time_ns: 0,
            pid: 0,
            version: python.version.to_string(),
            text: map.start..map.end,
            eval,
            one_each: layout.kind == PYTHON_FRAMES,
        };
        Some((layout, found))
    }

    /// Whether any process has a V8 whose functions are read.
    pub(crate) fn has_v8(&self) -> bool {
        self.lists.values().any(|list| list.v8.is_some())
    }

    /// What is recorded of the interpreter of an address space that has a list; `None`:
    /// it has none that is known.
    pub(crate) fn python(&self, version: u64) -> Option<&PythonFound> {
        let (_, found) = self.lists.get(&version)?.python.as_ref()?;
        Some(found)
    }

    fn proc_entry(
        &self,
        space: &Space,
        block: Block,
        python: Option<Block>,
        (java, v8): (Option<Block>, Option<Block>),
    ) -> ProcEntry {
        ProcEntry {
            maps: block.reference,
            owner: self.pool.owner(block),
            space: space.id,
            python: python.map_or(NO_PYTHON, |python| python.reference),
            java: java.map_or(NO_JAVA, |java| java.reference),
            v8: v8.map_or(NO_V8, |v8| v8.reference),
        }
    }

    /// Drops one use of an address space's list; the last frees it.
    pub fn release(&mut self, version: u64) {
        let Some(list) = self.lists.get_mut(&version) else {
            return;
        };
        list.users -= 1;
        if list.users == 0
            && let Some(list) = self.lists.remove(&version)
        {
            self.pool.release(list.block);
            if let Some((python, _)) = list.python {
                self.pool.release(python);
            }
            if let Some(java) = list.java {
                self.pool.release(java);
            }
            if let Some(v8) = list.v8 {
                self.pool.release(v8);
            }
            if let Some(bytes) = self.list_bytes.get_mut(&list.owner) {
                *bytes = bytes.saturating_sub(list.bytes);
                if *bytes == 0 {
                    self.list_bytes.remove(&list.owner);
                }
            }
        }
    }

    fn entry(
        &mut self,
        pid: u32,
        map: &Mapping,
        owner: Owner,
        files: &FileTable,
        known: &Known<'_>,
    ) -> MapEntry {
        let region = files.key(map.file).map_or(Region::Anonymous, Region::of);
        let kind = match region {
            Region::File | Region::Vdso => MAP_FILE,
            Region::Anonymous => MAP_ANON,
            Region::Uprobes => MAP_UPROBES,
            Region::Vsyscall => MAP_VSYSCALL,
        };
        let mut entry = MapEntry {
            end: map.end,
            bias: map.start,
            dir: REF_NO_DATA,
            dir_owner: 0,
            kind,
            pad: 0,
        };
        let found = match kind {
            MAP_FILE => self.file(map, owner, known.binaries),
            MAP_ANON => known.generated.piece(pid, map).and_then(|p| self.piece(p)),
            _ => None,
        };
        if let Some((dir, bias)) = found {
            entry.dir = dir.reference;
            entry.dir_owner = self.pool.owner(dir);
            entry.bias = bias;
        }
        entry
    }

    /// The directory of a piece of generated code and its bias.
    fn piece(&mut self, piece: &GeneratedRange) -> Option<(Block, u64)> {
        if !self.files.contains_key(&piece.id) {
            let shape = Shape {
                n_pages: u32::try_from((piece.range.end - piece.range.start) / PAGE_SIZE).ok()?,
                first_page_vaddr: piece.range.start,
                described: false,
                changes_stacks: false,
            };
            let tables = self.directory(piece.id, shape)?;
            let changes = true;
            let tables = FileTables { changes, ..tables };
            self.files.insert(piece.id, Some(tables));
        }
        let tables = self.files.get(&piece.id)?.as_ref()?;
        Some((tables.dir, tables.base_page))
    }

    /// The directory of a mapping's file and the mapping's bias.
    fn file(&mut self, map: &Mapping, owner: Owner, binaries: &Binaries) -> Option<(Block, u64)> {
        self.know(map.file, owner, binaries)?;
        let tables = self.files.get(&map.file)?.as_ref()?;
        let text = &binaries.get(map.file)?.text;
        let address = address_of(text, map.file_offset)?;
        let bias = map
            .start
            .wrapping_sub(address.wrapping_sub(tables.base_page));
        Some((tables.dir, bias))
    }

    /// Has a file have tables. `None`: there is no room, or the file is not open; not
    /// remembered, so that the next who needs it tries again.
    fn know(&mut self, id: FileId, owner: Owner, binaries: &Binaries) -> Option<()> {
        if !self.files.contains_key(&id) {
            let tables = self.new_file(id, binaries)?;
            self.files.insert(id, tables);
            self.load_eagerly(id, owner);
        }
        Some(())
    }

    /// The tables of a new file; `Some(None)`: it has no unwind data.
    fn new_file(&mut self, id: FileId, binaries: &Binaries) -> Option<Option<FileTables>> {
        let Some(shape) = binaries.get(id)?.unwind else {
            self.without_data += 1;
            return Some(None);
        };
        self.directory(id, shape).map(Some)
    }

    /// An empty directory.
    fn directory(&mut self, id: FileId, shape: Shape) -> Option<FileTables> {
        let Shape {
            n_pages,
            first_page_vaddr,
            described,
            changes_stacks,
        } = shape;
        let mut content = vec![0u8; size_of::<DirHeader>()];
        let at = offset_of!(DirHeader, n_pages);
        content[at..at + 4].copy_from_slice(&n_pages.to_ne_bytes());
        content.resize(content.len() + n_pages as usize * size_of::<PoolRef>(), 0);
        let Some(dir) = self.pool.store(&content) else {
            self.refused += 1;
            return None;
        };
        self.directories.insert(dir.reference, id);
        Some(FileTables {
            dir,
            n_pages,
            base_page: first_page_vaddr,
            changes: false,
            is_slow: !described,
            ahead: match changes_stacks {
                true => ReadAhead::Files,
                false => self.ahead,
            },
            pages: FxHashMap::default(),
            partial: FxHashSet::default(),
        })
    }

    fn load_eagerly(&mut self, id: FileId, owner: Owner) {
        let Some(Some(tables)) = self.files.get(&id) else {
            return;
        };
        if tables.is_slow || tables.n_pages > tables.ahead.whole() || self.is_filled() {
            return;
        }
        for page in 0..tables.n_pages {
            self.load(id, page, Wish::Ahead, owner);
        }
    }

    /// Whether nothing more is loaded ahead.
    fn is_filled(&self) -> bool {
        let (used, all) = self.pool.usage();
        used * 100 > all * EAGER_LIMIT
    }

    /// Answers a miss that a sample of somebody's process reported: wants the page and
    /// its neighbours, which likely run soon.
    pub(crate) fn miss(&mut self, dir: PoolRef, page: u32, owner: Owner) {
        let Some(&id) = self.directories.get(&dir) else {
            return;
        };
        let Some(Some(tables)) = self.files.get(&id) else {
            return;
        };
        if tables.is_slow {
            return self.load(id, page, Wish::Slow, owner);
        }
        if tables.partial.contains(&page) {
            return self.ask(id, page, Wish::Slow, owner);
        }
        let neighbours = tables.ahead.neighbours();
        self.load(id, page, Wish::Missed, owner);
        if self.is_filled() {
            return;
        }
        for distance in 1..=neighbours {
            self.load(id, page.wrapping_add(distance), Wish::Ahead, owner);
            self.load(id, page.wrapping_sub(distance), Wish::Ahead, owner);
        }
    }

    /// Makes a page of a file resident, as after a miss, though no process that has it
    /// mapped may be published yet.
    pub fn want(&mut self, id: FileId, page: u32, owner: Owner, binaries: &Binaries) {
        self.know(id, owner, binaries);
        if let Some(Some(tables)) = self.files.get(&id) {
            self.miss(tables.dir.reference, page, owner);
        }
    }

    /// Has a page of generated code read, also if it was before.
    pub(crate) fn read_again(&mut self, id: FileId, page: u32, owner: Owner) {
        self.ask(id, page, Wish::Slow, owner);
    }

    fn load(&mut self, id: FileId, page: u32, wish: Wish, owner: Owner) {
        let Some(Some(tables)) = self.files.get(&id) else {
            return;
        };
        if page >= tables.n_pages || tables.pages.contains_key(&page) {
            return;
        }
        self.ask(id, page, wish, owner);
    }

    fn ask(&mut self, id: FileId, page: u32, wish: Wish, owner: Owner) {
        let owners = Vec::new();
        let ask = self.asked.entry((id, page)).or_insert(Ask { wish, owners });
        let is_urgent = wish == Wish::Missed && ask.wish == Wish::Ahead;
        if is_urgent {
            ask.wish = wish;
        }
        let is_new = ask.owners.len() < MAX_ASKING && !ask.owners.contains(&owner);
        if is_new {
            ask.owners.push(owner);
        }
        // What waits behind all others is asked for once more.
        if is_new || is_urgent && ask.owners.contains(&owner) {
            self.wanted.push((id, owner, wish, page));
        }
    }

    /// The pages that must be read. What is read ahead comes in small parts: no one who needs
    /// something now should wait for them.
    pub(crate) fn take_wanted(&mut self) -> Vec<Wanted> {
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.sort_unstable();
        let mut all = Vec::new();
        for same in wanted.chunk_by(|a, b| (a.0, a.1, a.2) == (b.0, b.1, b.2)) {
            let Some(&(id, owner, wish, _)) = same.first() else {
                continue;
            };
            let part = match wish {
                Wish::Missed | Wish::Slow => 1,
                Wish::Ahead => AHEAD_AT_ONCE,
            };
            all.extend(same.chunks(part).map(|part| Wanted {
                id,
                owner,
                wish,
                pages: part.iter().map(|wanted| wanted.3).collect(),
            }));
        }
        all
    }

    /// Whether pages are being read on somebody's account.
    pub(crate) fn is_read_for(&self, owner: Owner) -> bool {
        self.asked.values().any(|ask| ask.owners.contains(&owner))
    }

    /// Whether an address space has its list, and no page of its files is being read.
    pub(crate) fn is_whole(&self, version: u64) -> bool {
        let is_of = |list: &List| {
            let mut asked = self.asked.keys();
            asked.any(|(id, _)| list.files.binary_search(id).is_ok())
        };
        self.lists.get(&version).is_some_and(|list| !is_of(list))
    }

    /// Pages that could not be read on somebody's account: the next sample that
    /// misses them asks again.
    pub fn unread(&mut self, id: FileId, owner: Owner, pages: &[u32]) {
        for &page in pages {
            if let Some(ask) = self.asked.get_mut(&(id, page)) {
                ask.owners.retain(|other| *other != owner);
                if ask.owners.is_empty() {
                    self.asked.remove(&(id, page));
                }
            }
        }
    }

    /// Loads a page that was read.
    pub fn store(&mut self, id: FileId, page: u32, table: &Table) {
        let wish = self.asked.remove(&(id, page)).map(|ask| ask.wish);
        let is_filled = self.is_filled();
        let Some(Some(tables)) = self.files.get_mut(&id) else {
            return;
        };
        if page >= tables.n_pages {
            return;
        }
        let slot = slot(page);
        let old = tables.pages.get(&page).copied();
        if old.is_some() && !tables.changes && !tables.partial.contains(&page) {
            return;
        }
        let Table::Built(content, digest, is_partial) = table else {
            tables.pages.remove(&page);
            tables.partial.remove(&page);
            self.pool.write_u32(tables.dir, slot, REF_NO_DATA);
            if let Some(old) = old {
                self.release_page(old);
            }
            return;
        };
        if old == Some(*digest) {
            return;
        }
        let block = match self.pages.get_mut(digest) {
            Some(shared) => {
                shared.files += 1;
                shared.block
            }
            None if is_filled && !matches!(wish, Some(Wish::Missed | Wish::Slow)) => return,
            None => {
                let Some(block) = self.pool.store(content) else {
                    self.refused += 1;
                    return;
                };
                let files = 1;
                self.pages.insert(*digest, SharedPage { block, files });
                block
            }
        };
        self.pool.write_u32(tables.dir, slot, block.reference);
        tables.pages.insert(page, *digest);
        match is_partial {
            true => tables.partial.insert(page),
            false => tables.partial.remove(&page),
        };
        if let Some(old) = old {
            self.release_page(old);
        }
    }

    /// The content of a page that is in the pool.
    pub fn resident(&self, id: FileId, page: u32) -> Option<Vec<u8>> {
        let digest = self.files.get(&id)?.as_ref()?.pages.get(&page)?;
        Some(self.pool.copy(self.pages.get(digest)?.block))
    }

    /// Makes room when the pool is nearly full: drops the pages that the
    /// unwinder has not used for longest.
    pub(crate) fn maintain(&mut self) {
        let (used, all) = self.pool.usage();
        if used * 100 <= all * EVICT_ABOVE {
            return;
        }
        let mut pages: Vec<(u32, FileId, u32)> = Vec::new();
        for (&id, tables) in &self.files {
            let Some(tables) = tables else { continue };
            for (&page, digest) in &tables.pages {
                let Some(shared) = self.pages.get(digest) else {
                    continue;
                };
                let at = offset_of!(PageHeader, last_used);
                pages.push((self.pool.read_u32(shared.block, at), id, page));
            }
        }
        pages.sort_unstable();
        let mut excess = (used * 100 - all * EVICT_TO) / 100;
        for (_, id, page) in pages {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(self.drop_page(id, page));
            self.evicted += 1;
        }
    }

    /// Drops a page of a file; gives the bytes that are free now.
    fn drop_page(&mut self, id: FileId, page: u32) -> usize {
        let Some(Some(tables)) = self.files.get_mut(&id) else {
            return 0;
        };
        let Some(digest) = tables.pages.remove(&page) else {
            return 0;
        };
        tables.partial.remove(&page);
        self.pool.write_u32(tables.dir, slot(page), REF_ABSENT);
        self.release_page(digest)
    }

    /// One file less has a page; gives the bytes that are free now.
    fn release_page(&mut self, digest: TableDigest) -> usize {
        let Some(shared) = self.pages.get_mut(&digest) else {
            return 0;
        };
        shared.files -= 1;
        if shared.files > 0 {
            return 0;
        }
        let block = shared.block;
        self.pages.remove(&digest);
        self.pool.release(block);
        block.bytes()
    }

    /// Drops the tables of files that no mapping list names any more, if the
    /// pool is short of room or `all` are to go.
    pub(crate) fn forget_unused(&mut self, all: bool) {
        let (in_use, size) = self.pool.usage();
        if all || in_use * 100 >= size * FORGET_ABOVE {
            self.forget_surplus(0);
        }
    }

    /// Drops the tables of files that no mapping list names any more, beyond `most` of them: those
    /// that were met first.
    pub(crate) fn forget_surplus(&mut self, most: usize) {
        let mut used: Vec<FileId> = self
            .lists
            .values()
            .flat_map(|l| l.files.iter().copied())
            .collect();
        used.sort_unstable();
        used.dedup();
        let mut unused: Vec<FileId> = self
            .files
            .keys()
            .copied()
            .filter(|id| used.binary_search(id).is_err())
            .collect();
        unused.sort_unstable();
        unused.truncate(unused.len().saturating_sub(most));
        for id in unused {
            if let Some(Some(tables)) = self.files.remove(&id) {
                self.directories.remove(&tables.dir.reference);
                for digest in tables.pages.into_values() {
                    self.release_page(digest);
                }
                self.pool.release(tables.dir);
            }
        }
    }

    /// Whether a file's tables are in use.
    pub(crate) fn uses(&self, id: FileId) -> bool {
        self.files.contains_key(&id)
    }

    /// Pages in the pool, each once; how many more there would be were they not shared
    /// between files; their bytes.
    pub fn extent(&self) -> (usize, usize, usize) {
        let uses: usize = self.pages.values().map(|page| page.files as usize).sum();
        let bytes = self.pages.values().map(|page| page.block.bytes()).sum();
        (self.pages.len(), uses - self.pages.len(), bytes)
    }

    /// Bytes of the pool in use, and in all.
    pub fn usage(&self) -> (usize, usize) {
        self.pool.usage()
    }
}

/// Where a directory has the reference of a page.
fn slot(page: u32) -> usize {
    size_of::<DirHeader>() + page as usize * size_of::<PoolRef>()
}

/// A mapping list as the unwinder reads it: header, starts, entries.
fn list_content(maps: &[Mapping], entries: &[MapEntry]) -> Vec<u8> {
    let mut out = Vec::with_capacity(size_of::<MapListHeader>() + maps.len() * LIST_ENTRY_BYTES);
    out.extend([0u8; 4]);
    out.extend((maps.len() as u32).to_ne_bytes());
    maps.iter().for_each(|m| out.extend(m.start.to_ne_bytes()));
    for entry in entries {
        out.extend(entry.end.to_ne_bytes());
        out.extend(entry.bias.to_ne_bytes());
        out.extend(entry.dir.to_ne_bytes());
        out.extend(entry.dir_owner.to_ne_bytes());
        out.extend(entry.kind.to_ne_bytes());
        out.extend(entry.pad.to_ne_bytes());
    }
    out
}

const _: () = assert!(PAGE_SIZE == 1 << aiprof_common::PAGE_SHIFT);
