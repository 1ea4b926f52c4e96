//! What a kernel's handle leads to in its process's memory, where it may show the kernel's place on
//! its device.
//!
//! For every object within two pointers of the handle, it keeps which words are zero, and the words
//! that may be device addresses or offsets. These are multiples of 64 that are no addresses of the
//! process's own.

use crate::inspect::{ReadMemory, Region, object_size, within};
use rustc_hash::FxHashMap;
use std::{collections::BTreeMap, sync::Arc};

/// Words of an object that are looked at.
const WORDS: usize = 256;
/// Most objects read for one handle.
const MAX_OBJECTS: usize = 1024;
/// Most ways to objects.
const MAX_WAYS: usize = 4096;
/// Kernels begin at multiples of this (cache lines).
const ALIGN: u64 = 64;

/// The way from a handle to an object: the words of up to two pointers to follow,
/// each plus one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PointerWay([u16; 2]);

impl PointerWay {
    /// The way on by the pointer in a word; `None`: it is long enough.
    fn by(self, word: u8) -> Option<Self> {
        let next = u16::from(word) + 1;
        match self.0 {
            [0, _] => Some(Self([next, 0])),
            [first, 0] => Some(Self([first, next])),
            _ => None,
        }
    }

    /// Pointers to follow, as words of the objects.
    fn hops(self) -> impl Iterator<Item = u64> {
        self.0
            .into_iter()
            .filter_map(|hop| hop.checked_sub(1))
            .map(u64::from)
    }

    /// How many pointers there are to follow.
    pub(super) fn len(self) -> usize {
        self.hops().count()
    }

    /// This way and all that lead to objects on it.
    pub(super) fn prefixes(self) -> impl Iterator<Item = Self> {
        let [first, _] = self.0;
        let all = [Self([0, 0]), Self([first, 0]), self];
        all.into_iter().take(self.len() + 1)
    }
}

/// A word of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ObjectWord {
    pub(super) way: PointerWay,
    pub(super) word: u8,
}

impl ObjectWord {
    /// The word, read now.
    fn read(self, memory: &impl ReadMemory, handle: u64) -> Option<u64> {
        let mut object = handle;
        for hop in self.way.hops() {
            object = memory.word(object.checked_add(hop * 8)?)?;
        }
        memory.word(object.checked_add(u64::from(self.word) * 8)?)
    }
}

/// What is kept of an object.
#[derive(Debug, Default)]
struct Object {
    /// Words that could be read, up to the object's end if that is known.
    words: usize,
    /// One bit for each word that is zero.
    zeros: [u64; WORDS / 64],
    /// Words that may be device addresses or offsets.
    values: Vec<(u8, u64)>,
    /// Where it ends is known.
    is_sized: bool,
}

/// An object, and where its words point.
type Read = (Arc<Object>, Vec<(u8, u64)>);

/// What a handle leads to.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    objects: BTreeMap<PointerWay, Arc<Object>>,
}

impl Snapshot {
    /// Reads what `handle` leads to; `None` if the handle leads nowhere. `heap`: where
    /// objects may be; `own`: all that is an address of the process's own.
    pub(super) fn read(
        memory: &impl ReadMemory,
        heap: &[Region],
        own: &[Region],
        handle: u64,
    ) -> Option<Self> {
        let mut known: FxHashMap<u64, Read> = FxHashMap::default();
        let mut objects = BTreeMap::new();
        let mut level = vec![(PointerWay::default(), handle)];
        while !level.is_empty() {
            let mut next = Vec::new();
            for (way, at) in level {
                if objects.len() >= MAX_WAYS {
                    break;
                }
                if !known.contains_key(&at) {
                    if known.len() >= MAX_OBJECTS {
                        continue;
                    }
                    known.insert(at, object(memory, heap, own, at));
                }
                let Some((object, pointers)) = known.get(&at) else {
                    continue;
                };
                objects.insert(way, object.clone());
                let ways = pointers
                    .iter()
                    .filter_map(|&(word, to)| Some((way.by(word)?, to)));
                next.extend(ways);
            }
            level = next;
        }
        let leads = objects
            .get(&PointerWay::default())
            .is_some_and(|o| o.words > 0);
        leads.then_some(Self { objects })
    }

    /// A word that may be an offset or an address, or is zero.
    pub(super) fn get(&self, slot: ObjectWord) -> Option<u64> {
        let object = self.objects.get(&slot.way)?;
        let word = usize::from(slot.word);
        if word >= object.words {
            return None;
        }
        let zeros = object.zeros.get(word / 64)?;
        if zeros >> (word % 64) & 1 == 1 {
            return Some(0);
        }
        let found = object.values.iter().find(|(at, _)| *at == slot.word);
        found.map(|(_, value)| *value)
    }

    /// All words but zeros.
    pub(super) fn values(&self) -> impl Iterator<Item = (ObjectWord, u64)> {
        self.objects.iter().flat_map(|(&way, object)| {
            let values = object.values.iter();
            values.map(move |&(word, value)| (ObjectWord { way, word }, value))
        })
    }

    /// Words of the object that a way leads to which may be zero or values.
    pub(super) fn slots_of(&self, way: PointerWay) -> impl Iterator<Item = ObjectWord> {
        let object = self.objects.get(&way);
        let words = object.map_or(0, |o| o.words.min(WORDS));
        (0..words).filter_map(move |word| {
            let slot = ObjectWord {
                way,
                word: u8::try_from(word).ok()?,
            };
            self.get(slot).map(|_| slot)
        })
    }

    /// Whether it is known where the object ends that a way leads to.
    pub(super) fn is_sized(&self, way: PointerWay) -> bool {
        self.objects.get(&way).is_some_and(|object| object.is_sized)
    }

    /// A value that stands beside the one in a slot.
    pub(super) fn beside(&self, slot: ObjectWord, value: u64) -> bool {
        let near = [slot.word.checked_sub(1), slot.word.checked_add(1)];
        let mut near = near.into_iter().flatten();
        near.any(|word| self.get(ObjectWord { word, ..slot }) == Some(value))
    }
}

/// Reads an object and gives its pointers to others.
fn object(memory: &impl ReadMemory, heap: &[Region], own: &[Region], at: u64) -> Read {
    let mut bytes = vec![0; WORDS * 8];
    let got = memory.read(at, &mut bytes);
    let size = object_size(memory, at);
    let most = size.unwrap_or(u64::MAX).min(got as u64);
    bytes.truncate(usize::try_from(most).unwrap_or(0));
    let mut object = Object {
        words: bytes.len() / 8,
        is_sized: size.is_some(),
        ..Object::default()
    };
    let mut pointers = Vec::new();
    for (at, word) in (0_u8..=u8::MAX).zip(bytes.chunks_exact(8)) {
        let word = word.try_into().map_or(0, u64::from_le_bytes);
        if word == 0 {
            if let Some(zeros) = object.zeros.get_mut(usize::from(at) / 64) {
                *zeros |= 1 << (at % 64);
            }
        } else if within(own, word) {
            if word.is_multiple_of(8) && within(heap, word) {
                pointers.push((at, word));
            }
        } else if word.is_multiple_of(ALIGN) {
            object.values.push((at, plain(word)));
        }
    }
    (Arc::new(object), pointers)
}

/// A device address without the copies of its highest bit.
fn plain(address: u64) -> u64 {
    match address.leading_ones() {
        0..7 => address,
        7..16 => address & (u64::MAX >> 7),
        _ => address & (u64::MAX >> 16),
    }
}

/// Where a kernel's address is: a word, and another that is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct AddressPath {
    pub(super) base: ObjectWord,
    /// The kernel's offset in an allocation that several share.
    pub(super) offset: Option<ObjectWord>,
}

impl AddressPath {
    /// The address that a snapshot holds.
    pub(super) fn of(&self, snapshot: &Snapshot) -> Option<u64> {
        let base = snapshot.get(self.base).filter(|&base| base >= LOWEST)?;
        let offset = match self.offset {
            Some(slot) => snapshot.get(slot).filter(|&offset| offset < MAX_OFFSET)?,
            None => 0,
        };
        base.checked_add(offset)
    }

    /// The address of a kernel, read now; only if it can be one.
    pub(super) fn follow(
        &self,
        memory: &impl ReadMemory,
        own: &[Region],
        handle: u64,
    ) -> Option<u64> {
        let word = |slot: ObjectWord| {
            let word = slot.read(memory, handle)?;
            (word.is_multiple_of(ALIGN) && !within(own, word)).then(|| plain(word))
        };
        let base = word(self.base).filter(|&base| base >= LOWEST)?;
        let offset = match self.offset {
            Some(slot) => word(slot).filter(|&offset| offset < MAX_OFFSET)?,
            None => 0,
        };
        base.checked_add(offset)
    }
}

/// Nothing lies below it.
pub(super) const LOWEST: u64 = 4096;
/// Largest allocation that kernels share.
pub(super) const MAX_OFFSET: u64 = 1 << 28;
