//! Which unwind tables are in the pool: a directory for each mapped file, table
//! pages for the text that runs, a mapping list for each address space.
//!
//! Pages are loaded when a sample misses them, small files wholly at once; the
//! least recently used leave when the pool fills up. They are read elsewhere
//! ([`super::reader`]): what is wanted is in `PageRequests`, and comes back
//! by `UnwindTables::store`.
//!
//! Equal pages are one block, whichever files they come from: a hundred containers
//! of one image have a hundred files, and their tables once. A digest of the
//! built table decides what is equal, never an id in the file.

mod lists;
mod pages;
mod requests;

pub(crate) use lists::{MappedCode, MappingLists};
pub(crate) use requests::{WantedPages, Wish};

use super::{
    binaries::Binaries,
    bpf::pool::{Pool, PoolBlock},
    generated::GeneratedRange,
    reader::{Shape, TableDigest, UnwindPage},
};
use aiprof_common::{DirHeader, PAGE_SIZE, PageHeader, PoolRef, REF_ABSENT, REF_NO_DATA};
use aiprof_model::process::{FileId, Mapping};
use aiprof_symbols::unwind::address_of;
use aiprof_system::workers::Owner;
use pages::SharedPages;
use requests::PageRequests;
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

/// Use of the pool, in percent, from which on the tables of files that no
/// process maps any more are dropped. Below, they wait for the next process.
const FORGET_ABOVE: usize = 60;
/// Part of the pool that eager loading may fill, in percent.
const EAGER_LIMIT: usize = 50;
/// Use of the pool, in percent, at which pages are evicted, and down to which.
const EVICT_ABOVE: usize = 90;
const EVICT_TO: usize = 75;

struct FileTables {
    dir: PoolBlock,
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

/// The tables in the pool.
pub(crate) struct UnwindTables {
    pub(crate) pool: Pool,
    ahead: ReadAhead,
    /// `None`: files without unwind data.
    files: FxHashMap<FileId, Option<FileTables>>,
    directories: FxHashMap<PoolRef, FileId>,
    pub(crate) pages: SharedPages,
    pub(crate) requests: PageRequests,
    /// Pages evicted.
    pub evicted: u64,
    /// Blocks for which there was no room.
    pub refused: u64,
    /// Mapped files without usable unwind data.
    pub without_data: u64,
}

impl UnwindTables {
    /// Manages a pool.
    pub(crate) fn new(pool: Pool, ahead: ReadAhead) -> Self {
        Self {
            pool,
            ahead,
            files: FxHashMap::default(),
            directories: FxHashMap::default(),
            pages: SharedPages::default(),
            requests: PageRequests::default(),
            evicted: 0,
            refused: 0,
            without_data: 0,
        }
    }

    /// The directory of a piece of generated code and its bias.
    fn piece(&mut self, piece: &GeneratedRange) -> Option<(PoolBlock, u64)> {
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
    fn file(
        &mut self,
        map: &Mapping,
        owner: Owner,
        binaries: &Binaries,
    ) -> Option<(PoolBlock, u64)> {
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
            return self.requests.ask(id, page, Wish::Slow, owner);
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
    pub(crate) fn want(&mut self, id: FileId, page: u32, owner: Owner, binaries: &Binaries) {
        self.know(id, owner, binaries);
        if let Some(Some(tables)) = self.files.get(&id) {
            self.miss(tables.dir.reference, page, owner);
        }
    }

    fn load(&mut self, id: FileId, page: u32, wish: Wish, owner: Owner) {
        let Some(Some(tables)) = self.files.get(&id) else {
            return;
        };
        if page >= tables.n_pages || tables.pages.contains_key(&page) {
            return;
        }
        self.requests.ask(id, page, wish, owner);
    }

    /// Loads a page that was read.
    pub(crate) fn store(&mut self, id: FileId, page: u32, table: &UnwindPage) {
        let wish = self.requests.answered(id, page);
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
        let UnwindPage::Built(content, digest, is_partial) = table else {
            tables.pages.remove(&page);
            tables.partial.remove(&page);
            self.pool.write_u32(tables.dir, slot, REF_NO_DATA);
            if let Some(old) = old {
                self.pages.release(old, &mut self.pool);
            }
            return;
        };
        if old == Some(*digest) {
            return;
        }
        let block = match self.pages.share(digest) {
            Some(block) => block,
            None if is_filled && !matches!(wish, Some(Wish::Missed | Wish::Slow)) => return,
            None => {
                let Some(block) = self.pool.store(content) else {
                    self.refused += 1;
                    return;
                };
                self.pages.insert(*digest, block);
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
            self.pages.release(old, &mut self.pool);
        }
    }

    /// The content of a page that is in the pool.
    pub(crate) fn resident(&self, id: FileId, page: u32) -> Option<Vec<u8>> {
        let digest = self.files.get(&id)?.as_ref()?.pages.get(&page)?;
        Some(self.pool.copy(self.pages.block(digest)?))
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
                let Some(block) = self.pages.block(digest) else {
                    continue;
                };
                let at = offset_of!(PageHeader, last_used);
                pages.push((self.pool.read_u32(block, at), id, page));
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
        self.pages.release(digest, &mut self.pool)
    }

    /// Drops the tables of files that no mapping list names any more, if the
    /// pool is short of room or `all` are to go.
    pub(crate) fn forget_unused(&mut self, lists: &MappingLists, all: bool) {
        let (in_use, size) = self.pool.usage();
        if all || in_use * 100 >= size * FORGET_ABOVE {
            self.forget_surplus(lists, 0);
        }
    }

    /// Drops the tables of files that no mapping list names any more, beyond `most` of them: those
    /// that were met first.
    pub(crate) fn forget_surplus(&mut self, lists: &MappingLists, most: usize) {
        let used = lists.files();
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
                    self.pages.release(digest, &mut self.pool);
                }
                self.pool.release(tables.dir);
            }
        }
    }

    /// Whether a file's tables are in use.
    pub(crate) fn uses(&self, id: FileId) -> bool {
        self.files.contains_key(&id)
    }
}

/// Where a directory has the reference of a page.
fn slot(page: u32) -> usize {
    size_of::<DirHeader>() + page as usize * size_of::<PoolRef>()
}

const _: () = assert!(PAGE_SIZE == 1 << aiprof_common::PAGE_SHIFT);
