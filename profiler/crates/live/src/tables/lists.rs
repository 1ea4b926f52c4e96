//! The mapping lists in the pool: for each address space, where the unwinder finds the table of
//! an address.

use super::UnwindTables;
use crate::{
    binaries::Binaries,
    bpf::{
        plain,
        pool::{Pool, PoolBlock},
    },
    generated::Generated,
    java::Javas,
    python::Pythons,
    v8::V8s,
};
use aiprof_common::{
    MAP_ANON, MAP_FILE, MAP_UPROBES, MAP_VSYSCALL, MAX_MAPPINGS, MapEntry, MapListHeader, NO_JAVA,
    NO_PYTHON, NO_V8, ProcEntry, REF_NO_DATA,
};
use aiprof_model::{
    process::{FileId, FileTable, Mapping, Region, Space},
    wire::PythonFound,
};
use aiprof_symbols::java::HotSpot;
use aiprof_system::workers::Owner;
use rustc_hash::FxHashMap;
use std::mem::size_of;

/// Part of the pool, in percent, that the mapping lists of one user other than root
/// may fill, and those of all such users.
const LISTS_OF_OWNER: usize = 25;
const LISTS: usize = 50;
/// Bytes of a mapping in a list: its start, and its entry.
const LIST_ENTRY_BYTES: usize = 8 + size_of::<MapEntry>();

/// The list of an address space.
struct MappingList {
    block: PoolBlock,
    /// The layout of the process's interpreter, and what is recorded of it.
    python: Option<(PoolBlock, PythonFound)>,
    /// The layout of the process's HotSpot.
    java: Option<PoolBlock>,
    /// The layout of the process's V8.
    v8: Option<PoolBlock>,
    owner: Owner,
    bytes: usize,
    users: u32,
    files: Vec<FileId>,
}

impl MappingList {
    fn entry(&self, space: &Space, pool: &Pool) -> ProcEntry {
        let reference =
            |block: Option<PoolBlock>, none| block.map_or(none, |block| block.reference);
        let python = self.python.as_ref().map(|(block, _)| *block);
        ProcEntry {
            maps: self.block.reference,
            owner: pool.owner(self.block),
            space: space.id,
            python: reference(python, NO_PYTHON),
            java: reference(self.java, NO_JAVA),
            v8: reference(self.v8, NO_V8),
        }
    }
}

/// What mappings are of.
#[derive(Clone, Copy)]
pub(crate) struct MappedCode<'a> {
    /// Files.
    pub(crate) binaries: &'a Binaries,
    /// Generated code.
    pub(crate) generated: &'a Generated,
    /// The HotSpots of processes.
    pub(crate) javas: &'a Javas,
}

/// The mapping lists in the pool.
#[derive(Default)]
pub(crate) struct MappingLists {
    /// By the version of the address space.
    lists: FxHashMap<u64, MappingList>,
    /// Bytes of the lists of each owner.
    bytes: FxHashMap<Owner, usize>,
    pythons: Pythons,
    v8s: V8s,
}

impl MappingLists {
    /// The mapping list of the address space of a process, made if it is new; counts a
    /// user. Its tables are read on the account of `owner`. `None`: no room for it.
    pub(crate) fn acquire(
        &mut self,
        (pid, space): (u32, &Space),
        owner: Owner,
        files: &FileTable,
        known: &MappedCode<'_>,
        tables: &mut UnwindTables,
    ) -> Option<ProcEntry> {
        if !self.lists.contains_key(&space.version) {
            let list = self.make((pid, space), owner, files, known, tables);
            tables.refused += u64::from(list.is_none());
            self.lists.insert(space.version, list?);
        }
        let list = self.lists.get_mut(&space.version)?;
        list.users += 1;
        Some(list.entry(space, &tables.pool))
    }

    /// A list that has no users yet.
    fn make(
        &mut self,
        (pid, space): (u32, &Space),
        owner: Owner,
        files: &FileTable,
        known: &MappedCode<'_>,
        tables: &mut UnwindTables,
    ) -> Option<MappingList> {
        let maps = space.maps.get(..MAX_MAPPINGS).unwrap_or(&space.maps);
        let bytes = size_of::<MapListHeader>() + maps.len() * LIST_ENTRY_BYTES;
        if !self.may_have(&tables.pool, owner, bytes) {
            return None;
        }
        let entry = |map| entry(pid, map, owner, files, known, tables);
        let entries: Vec<MapEntry> = maps.iter().map(entry).collect();
        let pool = &mut tables.pool;
        let block = pool.store(&list_content(maps, &entries))?;
        let python = self.pythons.layout(maps, files, known.binaries);
        let python =
            python.and_then(|(layout, found)| Some((pool.store(plain::bytes(&layout))?, found)));
        let java = known.javas.get(pid).map(HotSpot::layout);
        let java = java.and_then(|layout| pool.store(plain::bytes(&layout)));
        let v8 = self.v8s.layout(space, files, known.binaries);
        let v8 = v8.and_then(|layout| pool.store(plain::bytes(&layout)));
        let pieces = maps.iter().filter_map(|m| known.generated.piece(pid, m));
        let mut files: Vec<FileId> = maps.iter().map(|m| m.file).collect();
        files.extend(pieces.map(|piece| piece.id));
        files.sort_unstable();
        files.dedup();
        *self.bytes.entry(owner).or_default() += bytes;
        Some(MappingList {
            block,
            python,
            java,
            v8,
            owner,
            bytes,
            users: 0,
            files,
        })
    }

    /// Whether there is room in the pool for so much more of a user's lists: processes
    /// with thousands of mappings must leave the others theirs. What has no list is
    /// unwound from copies of its stack.
    fn may_have(&self, pool: &Pool, owner: Owner, bytes: usize) -> bool {
        if owner == Owner::ROOT {
            return true;
        }
        let (_, all) = pool.usage();
        let own = self.bytes.get(&owner).copied().unwrap_or(0);
        let of_others = self.bytes.iter().filter(|(o, _)| **o != Owner::ROOT);
        let of_users: usize = of_others.map(|(_, bytes)| bytes).sum();
        (own + bytes) * 100 <= all * LISTS_OF_OWNER && (of_users + bytes) * 100 <= all * LISTS
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

    /// Drops one use of an address space's list; the last frees it.
    pub(crate) fn release(&mut self, version: u64, pool: &mut Pool) {
        let Some(list) = self.lists.get_mut(&version) else {
            return;
        };
        list.users -= 1;
        if list.users == 0
            && let Some(list) = self.lists.remove(&version)
        {
            let python = list.python.map(|(block, _)| block);
            let blocks = [Some(list.block), python, list.java, list.v8];
            blocks
                .into_iter()
                .flatten()
                .for_each(|block| pool.release(block));
            if let Some(bytes) = self.bytes.get_mut(&list.owner) {
                *bytes = bytes.saturating_sub(list.bytes);
                if *bytes == 0 {
                    self.bytes.remove(&list.owner);
                }
            }
        }
    }

    /// Whether an address space has its list, and no page of its files is being read.
    pub(crate) fn is_whole(&self, version: u64, tables: &UnwindTables) -> bool {
        let list = self.lists.get(&version);
        list.is_some_and(|list| !tables.requests.is_any_of(&list.files))
    }

    /// The files that lists name, in order.
    pub(super) fn files(&self) -> Vec<FileId> {
        let lists = self.lists.values();
        let mut used: Vec<FileId> = lists.flat_map(|l| l.files.iter().copied()).collect();
        used.sort_unstable();
        used.dedup();
        used
    }
}

/// The entry of a mapping.
fn entry(
    pid: u32,
    map: &Mapping,
    owner: Owner,
    files: &FileTable,
    known: &MappedCode<'_>,
    tables: &mut UnwindTables,
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
        MAP_FILE => tables.file(map, owner, known.binaries),
        MAP_ANON => known
            .generated
            .piece(pid, map)
            .and_then(|p| tables.piece(p)),
        _ => None,
    };
    if let Some((dir, bias)) = found {
        entry.dir = dir.reference;
        entry.dir_owner = tables.pool.owner(dir);
        entry.bias = bias;
    }
    entry
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
