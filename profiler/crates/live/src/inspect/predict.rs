//! Names of kernels that were not used yet, from the driver's objects.
//!
//! A program may launch for the first time in years and end in the same millisecond:
//! nothing is left to look at then. But its objects are there before. Every object of the
//! driver begins with a pointer into the driver's own data: its table of virtual functions,
//! or of its API's. All objects of one class have the same pointer. So a class may be that
//! of kernels if one path of pointers leads from all its objects to names that a device
//! image declares. If several classes have such a path, the first kernel that is launched
//! shows the right one.

use super::{
    ReadMemory, Region,
    path::{self, NamePath},
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes read at a time.
const CHUNK: usize = 1 << 20;
/// Most classes looked at.
const MAX_CLASSES: usize = 4096;
/// Most objects of a class.
const MAX_OBJECTS: usize = 16_384;
/// Most objects of all classes.
const MAX_ALL: usize = 1 << 18;
/// Most places of names.
const MAX_NAMES: usize = 1 << 16;
/// Objects of a class that its path is tried on.
const TRIED: usize = 64;
/// Most objects read for one class.
const MAX_READ: usize = 512;

/// A class of objects with names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectClass {
    /// The way from its objects to their names.
    pub path: NamePath,
    /// The names by object.
    pub names: BTreeMap<u64, String>,
}

/// What one pass over the memory finds.
#[derive(Default)]
struct MemoryScan {
    /// Objects by what they begin with.
    classes: FxHashMap<u64, Vec<u64>>,
    objects: usize,
    /// Where strings with declared names are.
    names: BTreeSet<u64>,
}

/// Finds the classes of named objects in `regions`, reading at most `budget` bytes.
/// `own`: where the driver's data are; `declared`: the names that images declare.
pub fn classes(
    memory: &impl ReadMemory,
    regions: &[Region],
    own: &[Region],
    declared: &BTreeSet<&str>,
    budget: u64,
) -> Vec<ObjectClass> {
    if own.is_empty() || declared.is_empty() {
        return Vec::new();
    }
    let scan = scan(memory, regions, own, declared, budget);
    let found = scan.classes.values().filter_map(|objects| {
        let (&first, _) = objects.split_first()?;
        let handles: Vec<u64> = objects.iter().copied().take(TRIED).collect();
        let candidates = ways(memory, regions, first, &scan.names, |found| {
            found.retain(|path| {
                handles.iter().all(|handle| {
                    let name = path.follow(memory, *handle);
                    name.is_some_and(|name| declared.contains(name.as_str()))
                })
            });
            path::decides(memory, found, &handles)
        });
        let path = path::agreed(memory, &candidates, &handles)?;
        let handles = objects.iter().copied().collect();
        let names = path::apply(memory, &path, &handles, declared);
        Some(ObjectClass { path, names })
    });
    found.collect()
}

fn scan(
    memory: &impl ReadMemory,
    regions: &[Region],
    own: &[Region],
    declared: &BTreeSet<&str>,
    budget: u64,
) -> MemoryScan {
    let lengths: FxHashSet<u64> = declared.iter().map(|n| n.len() as u64).collect();
    let mut found = MemoryScan::default();
    let (low, high) = own.iter().fold((u64::MAX, 0), |(low, high), r| {
        (low.min(r.start), high.max(r.end))
    });
    let mut left = budget;
    let mut buffer = vec![0; CHUNK];
    for region in regions {
        let mut at = region.start;
        while at < region.end && left > 0 {
            let want = (region.end - at).min(CHUNK as u64).min(left);
            left -= want;
            let got = memory.read(at, buffer.get_mut(..want as usize).unwrap_or_default());
            let chunk = buffer.get(..got).unwrap_or_default();
            let mut words = chunk.chunks_exact(8).map(word).peekable();
            let mut here = at;
            while let Some(first) = words.next() {
                // Allocated memory is aligned so (malloc, operator new); much of what
                // only looks like an object is not.
                let aligned = here.is_multiple_of(16);
                if aligned && (low..high).contains(&first) && path::within(own, first) {
                    found.object(first, here);
                } else if let Some(&length) = words.peek()
                    && lengths.contains(&length)
                    && found.names.len() < MAX_NAMES
                    && path::read_text(memory, first, length)
                        .is_some_and(|text| declared.contains(text.as_str()))
                {
                    found.names.insert(here);
                }
                here += 8;
            }
            at += want;
        }
    }
    found
}

impl MemoryScan {
    fn object(&mut self, class: u64, at: u64) {
        if self.objects >= MAX_ALL {
            return;
        }
        if self.classes.len() >= MAX_CLASSES && !self.classes.contains_key(&class) {
            return;
        }
        let objects = self.classes.entry(class).or_default();
        if objects.len() < MAX_OBJECTS {
            objects.push(at);
            self.objects += 1;
        }
    }
}

/// The shortest ways from an object to one of the strings, with at most two
/// pointers to follow: which strings an object would hold is known without
/// reading it. Ends with the length that `decides`, which may drop some.
fn ways(
    memory: &impl ReadMemory,
    regions: &[Region],
    object: u64,
    names: &BTreeSet<u64>,
    decides: impl Fn(&mut Vec<NamePath>) -> bool,
) -> Vec<NamePath> {
    let holds = |at: u64, hops: &[u32]| -> Vec<NamePath> {
        let end = at.saturating_add(path::OBJECT as u64 - 8);
        let inside = names.range(at..end);
        let aligned = inside.filter(|place| (*place - at).is_multiple_of(8));
        aligned
            .map(|place| NamePath {
                hops: hops.to_vec(),
                name: (place - at) as u32,
            })
            .collect()
    };
    let mut level = vec![(object, Vec::new())];
    let mut read = 0;
    let mut found = Vec::new();
    for hops in 0..=2 {
        found.extend(level.iter().flat_map(|(at, way)| holds(*at, way)));
        if decides(&mut found) || hops == 2 {
            break;
        }
        let mut seen = FxHashSet::default();
        let mut next = Vec::new();
        for (at, way) in &level {
            read += 1;
            if read > MAX_READ {
                break;
            }
            let mut bytes = vec![0; path::OBJECT];
            let got = memory.read(*at, &mut bytes);
            let bytes = bytes.get(..got).unwrap_or_default();
            for (slot, pointer) in (0_u32..).step_by(8).zip(bytes.chunks_exact(8).map(word)) {
                let plausible = pointer % 8 == 0 && path::within(regions, pointer);
                if plausible && seen.insert(pointer) {
                    next.push((pointer, [way.as_slice(), &[slot]].concat()));
                }
            }
        }
        level = next;
    }
    found
}

fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::super::tests_memory::Copy;
    use super::*;

    const BASE: u64 = 0x10_0000;
    /// Where the driver's tables of functions are.
    const OWN: Region = Region {
        start: 0x90_0000,
        end: 0x91_0000,
    };

    struct Heap(Vec<u8>);

    impl Heap {
        fn alloc(&mut self, size: usize) -> u64 {
            let at = self.0.len();
            self.0.resize(at + size, 0);
            BASE + at as u64
        }

        fn put(&mut self, at: u64, value: u64) {
            let at = (at - BASE) as usize;
            self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }

        fn string(&mut self, at: u64, text: &str) {
            let data = self.alloc((text.len() + 1).next_multiple_of(16));
            let raw = (data - BASE) as usize;
            self.0[raw..raw + text.len()].copy_from_slice(text.as_bytes());
            self.put(at, data);
            self.put(at + 8, text.len() as u64);
        }

        /// An object of a class, which holds a pointer to one with the name.
        fn object(&mut self, class: u64, name: &str) -> u64 {
            let object = self.alloc(256);
            // Beyond what is read of the object.
            self.alloc(3008);
            let inner = self.alloc(3008);
            self.put(object, OWN.start + class);
            self.put(object + 24, inner);
            self.string(inner + 40, name);
            self.alloc(3008);
            object
        }
    }

    fn found(heap: Heap, declared: &[&str]) -> Vec<ObjectClass> {
        let memory = Copy::new(BASE, heap.0);
        let declared = declared.iter().copied().collect();
        classes(&memory, &memory.regions(), &[OWN], &declared, 1 << 30)
    }

    #[test]
    fn kernels_are_foreseen_by_their_class() {
        let mut heap = Heap(Vec::new());
        let names = ["scale", "add", "a_rather_long_name_of_a_kernel"];
        let handles = names.map(|name| heap.object(64, name));
        // Another class, whose objects have other names.
        heap.object(128, "queue");
        heap.object(128, "list");
        let found = found(heap, &names);
        let [class] = found.as_slice() else {
            panic!("{found:?}");
        };
        let expected = NamePath {
            hops: vec![24],
            name: 40,
        };
        assert_eq!(class.path, expected);
        for (handle, name) in handles.iter().zip(names) {
            assert_eq!(class.names[handle], name);
        }
    }

    #[test]
    fn a_class_with_one_undeclared_name_is_none() {
        let mut heap = Heap(Vec::new());
        heap.object(64, "scale");
        heap.object(64, "add");
        heap.object(64, "other");
        assert_eq!(found(heap, &["scale", "add"]), []);
    }

    #[test]
    fn a_class_whose_objects_all_have_one_name_is_none() {
        let mut heap = Heap(Vec::new());
        heap.object(64, "scale");
        heap.object(64, "scale");
        assert_eq!(found(heap, &["scale", "add"]), []);
    }

    #[test]
    fn nothing_is_foreseen_without_names_or_driver() {
        let memory = Copy::new(BASE, vec![0xff; 4096]);
        let regions = memory.regions();
        let declared = BTreeSet::from(["x"]);
        assert!(classes(&memory, &regions, &[], &declared, 1 << 20).is_empty());
        assert!(classes(&memory, &regions, &[OWN], &BTreeSet::new(), 1 << 20).is_empty());
        assert!(classes(&memory, &regions, &[OWN], &declared, 1 << 20).is_empty());
    }
}
