//! From a kernel handle to the kernel's name, by a path of pointers.
//!
//! A handle is a pointer to the driver's object, and somewhere behind it is the kernel's
//! name. Where depends on the driver's build only, so one kernel whose name is known shows
//! the path for all. Its creation was seen while aiprof watched, or its name is among those
//! that the device images in the process declare.
//!
//! A path is believed only if it gives every handle a name that an image declares. It must
//! also not be one that leads to the same object from everywhere: see [`learn`].

use super::{ReadMemory, Region, object_size};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of an object that are searched.
pub(super) const OBJECT: usize = 2048;
/// Most pointers followed from the handle before the name's object.
const MAX_HOPS: usize = 3;
/// Pointers followed even where a name was found before, if that proves little.
const USUAL_HOPS: usize = 2;
/// Most objects looked at in one search.
const MAX_OBJECTS: usize = 60_000;
/// Most handles a path is tried on.
const MAX_TRIED: usize = 64;

/// The way from a handle to its name: pointers to follow, and where in the last
/// object the name is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamePath {
    /// Offsets of the pointers to follow, from the handle's object on.
    pub hops: Vec<u32>,
    /// Offset of the name in the last object: a `std::string` (libstdc++: pointer
    /// and length).
    pub name: u32,
}

impl NamePath {
    /// The name behind `handle`, if there is one.
    pub fn follow(&self, memory: &impl ReadMemory, handle: u64) -> Option<String> {
        let mut object = handle;
        for &hop in &self.hops {
            object = memory.word(object.checked_add(hop.into())?)?;
        }
        let at = object.checked_add(self.name.into())?;
        let mut field = [0; 16];
        if memory.read(at, &mut field) != 16 {
            return None;
        }
        let (text, len) = words(&field, 0)?;
        read_text(memory, text, len)
    }
}

/// What [`learn`] makes of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// The path, to be used for every process with the same driver build.
    pub path: Option<NamePath>,
    /// The names found, by handle.
    pub names: BTreeMap<u64, String>,
    /// Whether several objects, or one with a known name, prove the path.
    pub is_proven: bool,
}

/// Finds the path in a process, from kernels whose names are `known` and from the
/// `unknown` handles that were launched, whose names are among those that the
/// images `declare`.
///
/// With at least one known name the path must give just that. Without, the shortest path is
/// taken that gives a declared name to every handle and to every other object of their
/// class, but not the same name to all. A path that gives all handles one name leads to
/// something shared. For a single object all paths up to a length must give the same name.
/// Its memory is read beyond its end, and shorter paths may lead to a neighbour's name.
pub fn learn(
    memory: &impl ReadMemory,
    regions: &[Region],
    known: &BTreeMap<u64, String>,
    unknown: &BTreeSet<u64>,
    declared: &BTreeSet<&str>,
) -> Learned {
    let handles = || known.keys().chain(unknown).copied();
    let Some(first) = handles().next() else {
        return Learned::default();
    };
    // A kernel whose creation was watched proves more than a declared name; and
    // a program may have released the images of others.
    let nothing = BTreeSet::new();
    let declared = if known.is_empty() { declared } else { &nothing };
    let wanted: BTreeSet<&str> = match known.get(&first) {
        Some(name) => BTreeSet::from([name.as_str()]),
        None => declared.clone(),
    };
    let mut tried: Vec<u64> = handles().take(MAX_TRIED).collect();
    if known.is_empty() {
        let class = memory.word(first).unwrap_or(0);
        let peers = peers(memory, regions, class, MAX_TRIED);
        tried.extend(peers.into_iter().filter(|peer| !unknown.contains(peer)));
    }
    let fits = |path: &NamePath| {
        tried.iter().all(|handle| {
            let name = path.follow(memory, *handle);
            match (known.get(handle), name) {
                (Some(right), Some(name)) => *right == name,
                (None, Some(name)) => declared.contains(name.as_str()) || declared.is_empty(),
                (_, None) => false,
            }
        })
    };
    let candidates = search(memory, regions, first, &wanted, |found| {
        found.retain(&fits);
        decides(memory, found, &tried)
    });
    let Some(path) = choose(memory, &candidates, &tried, known) else {
        return Learned::default();
    };
    let names = apply(memory, &path, unknown, declared);
    Learned {
        is_proven: !known.is_empty() || names_by(memory, &path, &tried).len() > 1,
        path: Some(path),
        names,
    }
}

/// The names that `path` gives the handles, where an image declares them; any if none
/// declares anything.
pub fn apply(
    memory: &impl ReadMemory,
    path: &NamePath,
    handles: &BTreeSet<u64>,
    declared: &BTreeSet<&str>,
) -> BTreeMap<u64, String> {
    let believed = |name: &String| declared.is_empty() || declared.contains(name.as_str());
    let name = |&handle: &u64| Some((handle, path.follow(memory, handle).filter(believed)?));
    handles.iter().filter_map(name).collect()
}

/// The path to believe of objects that are all of one kind: it gives each a
/// declared name, and not all the same one.
pub(super) fn agreed(
    memory: &impl ReadMemory,
    candidates: &[NamePath],
    handles: &[u64],
) -> Option<NamePath> {
    choose(memory, candidates, handles, &BTreeMap::new())
}

/// Whether the search can end without longer paths: one gives several objects different names.
pub(super) fn decides(memory: &impl ReadMemory, found: &[NamePath], handles: &[u64]) -> bool {
    handles.len() > 1
        && found
            .iter()
            .any(|path| names_by(memory, path, handles).len() > 1)
}

fn names_by(memory: &impl ReadMemory, path: &NamePath, handles: &[u64]) -> BTreeSet<String> {
    let names = handles.iter().filter_map(|h| path.follow(memory, *h));
    names.collect()
}

/// Objects that begin with the same word as others, which must be no pointer into
/// `regions`: the driver's own.
fn peers(memory: &impl ReadMemory, regions: &[Region], class: u64, most: usize) -> Vec<u64> {
    let mut found = Vec::new();
    if class == 0 || within(regions, class) {
        return found;
    }
    let mut buffer = vec![0; 1 << 18];
    let finder = memchr::memmem::Finder::new(&class.to_le_bytes()).into_owned();
    for region in regions {
        let mut at = region.start;
        while at < region.end && found.len() < most {
            let want = (region.end - at).min(buffer.len() as u64);
            let chunk = buffer.get_mut(..want as usize).unwrap_or_default();
            let got = memory.read(at, chunk);
            let hits = finder.find_iter(chunk.get(..got).unwrap_or_default());
            // As memory is allocated.
            let places = hits.map(|offset| at + offset as u64);
            found.extend(places.filter(|place| place.is_multiple_of(16)));
            at += want;
        }
    }
    found.truncate(most);
    found
}

/// The path to believe among those that fit all handles.
fn choose(
    memory: &impl ReadMemory,
    candidates: &[NamePath],
    handles: &[u64],
    known: &BTreeMap<u64, String>,
) -> Option<NamePath> {
    let alone = handles.len() == 1 && known.is_empty();
    let different =
        |path: &&NamePath| handles.len() == 1 || names_by(memory, path, handles).len() > 1;
    let fewest = candidates
        .iter()
        .filter(different)
        .map(|p| p.hops.len())
        .min()?;
    let mut shortest = candidates
        .iter()
        .filter(|p| alone || p.hops.len() == fewest)
        .filter(different);
    let chosen = shortest.next()?;
    // Paths of the same length must give every handle the same name, or nothing is sure.
    let all = |path: &NamePath| -> Vec<Option<String>> {
        handles.iter().map(|h| path.follow(memory, *h)).collect()
    };
    let said = all(chosen);
    let sure = known.len() > 1 || shortest.all(|other| all(other) == said);
    sure.then(|| chosen.clone())
}

/// All paths from `handle` to one of the wanted names, shortest first. The search
/// ends with the first length that `decides`, which may drop paths.
fn search(
    memory: &impl ReadMemory,
    regions: &[Region],
    handle: u64,
    wanted: &BTreeSet<&str>,
    decides: impl Fn(&mut Vec<NamePath>) -> bool,
) -> Vec<NamePath> {
    let lengths: FxHashSet<u64> = wanted.iter().map(|n| n.len() as u64).collect();
    let mut level: FxHashMap<u64, Vec<u32>> = FxHashMap::from_iter([(handle, Vec::new())]);
    let mut seen: FxHashSet<u64> = FxHashSet::from_iter([handle]);
    let mut looked_at = 0;
    let mut found = Vec::new();
    for hops in 0..=MAX_HOPS {
        let mut next: FxHashMap<u64, Vec<u32>> = FxHashMap::default();
        let mut objects: Vec<_> = level.into_iter().collect();
        objects.sort_unstable();
        for (object, path) in objects {
            looked_at += 1;
            if looked_at > MAX_OBJECTS {
                break;
            }
            let mut bytes = vec![0; OBJECT];
            let got = memory.read(object, &mut bytes);
            // What lies behind it is a neighbour's.
            let size = object_size(memory, object).unwrap_or(u64::MAX);
            let got = got.min(usize::try_from(size).unwrap_or(usize::MAX));
            for at in (0..got.saturating_sub(15)).step_by(8) {
                let Some((pointer, length)) = words(&bytes, at) else {
                    break;
                };
                if lengths.contains(&length)
                    && read_text(memory, pointer, length)
                        .is_some_and(|t| wanted.contains(t.as_str()))
                {
                    found.push(NamePath {
                        hops: path.clone(),
                        name: at as u32,
                    });
                }
                let plausible = pointer % 8 == 0 && within(regions, pointer);
                if hops < MAX_HOPS && plausible && seen.insert(pointer) {
                    let mut longer = path.clone();
                    longer.push(at as u32);
                    next.insert(pointer, longer);
                }
            }
        }
        // Two pointers are what it takes as a rule.
        if decides(&mut found) || hops >= USUAL_HOPS && !found.is_empty() {
            return found;
        }
        level = next;
    }
    Vec::new()
}

/// The two words at `at`.
fn words(bytes: &[u8], at: usize) -> Option<(u64, u64)> {
    let word = |at: usize| {
        let raw = bytes.get(at..at + 8)?;
        raw.try_into().ok().map(u64::from_le_bytes)
    };
    Some((word(at)?, word(at + 8)?))
}

/// The text of a `std::string`, if it can be a kernel's name.
pub(super) fn read_text(memory: &impl ReadMemory, address: u64, len: u64) -> Option<String> {
    let len = usize::try_from(len).ok()?;
    if len == 0 || len > super::images::MAX_NAME {
        return None;
    }
    // With the NUL that ends it.
    let mut bytes = vec![0; len + 1];
    if memory.read(address, &mut bytes) != bytes.len() || bytes.pop() != Some(0) {
        return None;
    }
    let text = String::from_utf8(bytes).ok()?;
    (!text.chars().any(char::is_control)).then_some(text)
}

/// Whether the address lies in one of the regions, which are sorted.
pub fn within(regions: &[Region], address: u64) -> bool {
    let at = regions.partition_point(|r| r.end <= address);
    regions.get(at).is_some_and(|r| r.start <= address)
}

#[cfg(test)]
mod tests {
    use super::super::tests_memory::Copy;
    use super::*;

    const BASE: u64 = 0x10_0000;

    /// Driver objects: a handle -> immutable data -> descriptor with the name,
    /// and next to it the module, whose list of kernels leads to all names.
    struct Heap {
        bytes: Vec<u8>,
    }

    impl Heap {
        fn new() -> Self {
            Self { bytes: vec![0; 64] }
        }

        fn alloc(&mut self, size: usize) -> u64 {
            let at = self.bytes.len();
            self.bytes.resize(at + size, 0);
            BASE + at as u64
        }

        fn put(&mut self, at: u64, value: u64) {
            let at = (at - BASE) as usize;
            self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }

        fn string(&mut self, at: u64, text: &str) {
            let data = if text.len() < 16 {
                at + 16
            } else {
                self.alloc((text.len() + 1).next_multiple_of(16))
            };
            let raw = (data - BASE) as usize;
            self.bytes[raw..raw + text.len()].copy_from_slice(text.as_bytes());
            self.put(at, data);
            self.put(at + 8, text.len() as u64);
        }

        fn kernel(&mut self, module: u64, name: &str) -> u64 {
            let handle = self.alloc(2048);
            let data = self.alloc(2048);
            let descriptor = self.alloc(2048);
            self.put(handle + 48, data);
            self.put(handle + 8, module);
            self.put(data + 72, descriptor);
            self.string(descriptor + 400, name);
            handle
        }

        fn memory(self) -> Copy {
            let mut bytes = self.bytes;
            bytes.resize(bytes.len() + 4096, 0);
            Copy::new(BASE, bytes)
        }
    }

    fn heap(names: &[&str]) -> (Copy, Vec<u64>) {
        let mut heap = Heap::new();
        let module = heap.alloc(2048);
        let handles: Vec<u64> = names.iter().map(|n| heap.kernel(module, n)).collect();
        heap.put(module + 16, handles[0]);
        (heap.memory(), handles)
    }

    fn expected() -> NamePath {
        NamePath {
            hops: vec![48, 72],
            name: 400,
        }
    }

    fn learn_all(
        memory: &Copy,
        known: &[(u64, &str)],
        unknown: &[u64],
        declared: &[&str],
    ) -> Learned {
        let known = known.iter().map(|(h, n)| (*h, (*n).to_owned())).collect();
        let unknown = unknown.iter().copied().collect();
        let declared = declared.iter().copied().collect();
        learn(memory, &memory.regions(), &known, &unknown, &declared)
    }

    #[test]
    fn names_old_kernels_from_declared_names() {
        let names = ["scale", "a_kernel_with_a_rather_long_name", "add"];
        let (memory, handles) = heap(&names);
        let learned = learn_all(&memory, &[], &handles, &names);
        assert_eq!(learned.path, Some(expected()));
        for (handle, name) in handles.iter().zip(names) {
            assert_eq!(learned.names[handle], name);
        }
    }

    #[test]
    fn one_watched_kernel_names_the_others() {
        let (memory, handles) = heap(&["scale", "add"]);
        let learned = learn_all(&memory, &[(handles[1], "add")], &handles[..1], &[]);
        assert_eq!(learned.names[&handles[0]], "scale");
    }

    #[test]
    fn a_single_kernel_is_named() {
        let (memory, handles) = heap(&["scale"]);
        let learned = learn_all(&memory, &[], &handles, &["scale", "builtin"]);
        assert_eq!(learned.names[&handles[0]], "scale");
    }

    #[test]
    fn a_shared_name_is_not_believed() {
        // Both handles lead to one name only through the module they share.
        let mut heap = Heap::new();
        let module = heap.alloc(2048);
        heap.string(module + 64, "scale");
        let handles: Vec<u64> = (0..2)
            .map(|_| {
                let handle = heap.alloc(2048);
                heap.put(handle + 8, module);
                handle
            })
            .collect();
        let learned = learn_all(&heap.memory(), &[], &handles, &["scale", "add"]);
        assert_eq!(learned, Learned::default());
    }

    #[test]
    fn a_handle_with_another_layout_ends_belief() {
        let (memory, mut handles) = heap(&["scale", "add"]);
        handles.push(BASE + 8);
        let learned = learn_all(&memory, &[], &handles, &["scale", "add"]);
        assert_eq!(learned, Learned::default());
    }

    #[test]
    fn names_that_no_image_declares_are_not_shown() {
        let (memory, handles) = heap(&["scale", "add"]);
        let learned = learn_all(&memory, &[], &handles, &["scale"]);
        assert!(!learned.names.values().any(|n| n == "add"));
    }

    #[test]
    fn loops_and_garbage_end() {
        let mut heap = Heap::new();
        let a = heap.alloc(2048);
        for slot in (0..2048).step_by(8) {
            heap.put(a + slot, a + (slot * 7919) % 2048);
        }
        let learned = learn_all(&heap.memory(), &[], &[a, 0, u64::MAX], &["x"]);
        assert_eq!(learned, Learned::default());
    }
}
