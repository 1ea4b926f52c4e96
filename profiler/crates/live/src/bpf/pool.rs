//! The unwind pool: the memory-mapped array that the unwinder reads, and the
//! allocator of its blocks (layout: `aiprof_common`).

use super::mapping::SharedMapping;
use aiprof_common::{POOL_CHUNK, POOL_UNIT, POOL_UNIT_BITS, PoolRef};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    os::fd::BorrowedFd,
    sync::atomic::{AtomicU32, Ordering, fence},
    time::{Duration, Instant},
};

/// Bytes of the owner tag, with which each block begins.
const TAG: usize = 4;
const UNITS_PER_CHUNK: u32 = 1 << POOL_UNIT_BITS;

/// How long a freed block stays untouched: a program that read its reference just before it
/// was cleared has long finished by then. (The owner tag would show the reuse, too; this
/// wait makes that unnecessary.)
const QUARANTINE: Duration = Duration::from_millis(200);

/// An allocated block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolBlock {
    /// The name the unwinder knows it by.
    pub reference: PoolRef,
    units: u32,
}

impl PoolBlock {
    /// Bytes the block occupies.
    pub fn bytes(&self) -> usize {
        self.units as usize * POOL_UNIT
    }
}

/// The pool, mapped into this process.
pub struct Pool {
    memory: SharedMapping,
    free: FreeList,
    quarantine: VecDeque<(Instant, PoolBlock)>,
    next_owner: u32,
    used_units: u32,
    quarantined_units: u32,
}

impl Pool {
    /// Maps `chunks` chunks of the pool map `fd`.
    pub fn map(fd: BorrowedFd<'_>, chunks: u32) -> io::Result<Self> {
        let len = chunks as usize * POOL_CHUNK;
        Ok(Self {
            memory: SharedMapping::new(fd, 0, len, true)?,
            free: FreeList::new(chunks),
            quarantine: VecDeque::new(),
            next_owner: 1,
            used_units: 0,
            quarantined_units: 0,
        })
    }

    /// Bytes in use and in all. Freed blocks in quarantine do not count as used.
    pub fn usage(&self) -> (usize, usize) {
        let used = self.used_units - self.quarantined_units;
        (used as usize * POOL_UNIT, self.memory.size())
    }

    /// Allocates a block for `content`, whose first 4 bytes become the owner
    /// tag, and writes it. `None`: no room (or content larger than a chunk).
    pub fn store(&mut self, content: &[u8]) -> Option<PoolBlock> {
        let units = u32::try_from(content.len().div_ceil(POOL_UNIT)).ok()?;
        let (_, behind_tag) = content.split_at_checked(TAG)?;
        self.release_quarantine();
        let reference = self.free.take(units)?;
        let block = PoolBlock { reference, units };
        self.used_units += units;
        let owner = self.next_owner;
        // Never 0, which marks a free block.
        self.next_owner = self.next_owner.checked_add(1).unwrap_or(1);
        let to = self.place(reference, TAG, behind_tag.len())?;
        // SAFETY: `place` has checked that all these bytes lie in the mapping. The block
        // was just allocated, so that nothing else writes there.
        unsafe {
            std::ptr::copy_nonoverlapping(behind_tag.as_ptr(), to, behind_tag.len());
        }
        // The content must be visible before the tag that vouches for it.
        fence(Ordering::Release);
        self.word(reference, 0)?.store(owner, Ordering::Release);
        Some(block)
    }

    /// The owner tag of a block.
    pub fn owner(&self, block: PoolBlock) -> u32 {
        self.read_u32(block, 0)
    }

    /// A copy of a block's content, as long as the block.
    pub fn copy(&self, block: PoolBlock) -> Vec<u8> {
        let words = (0..block.bytes()).step_by(4);
        words
            .flat_map(|off| self.read_u32(block, off).to_ne_bytes())
            .collect()
    }

    /// Reads the `u32` at byte `off` of a block; 0 where the pool has no such word.
    pub fn read_u32(&self, block: PoolBlock, off: usize) -> u32 {
        self.word(block.reference, off)
            .map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Publishes the `u32` at byte `off` of a block; where the pool has no such word,
    /// nothing happens.
    pub(crate) fn write_u32(&self, block: PoolBlock, off: usize, value: u32) {
        if let Some(word) = self.word(block.reference, off) {
            word.store(value, Ordering::Release);
        }
    }

    /// Frees a block to which no reference is published any more.
    pub fn release(&mut self, block: PoolBlock) {
        self.write_u32(block, 0, 0);
        self.quarantined_units += block.units;
        self.quarantine.push_back((Instant::now(), block));
    }

    fn release_quarantine(&mut self) {
        while let Some((since, block)) = self.quarantine.front().copied() {
            if since.elapsed() < QUARANTINE {
                break;
            }
            self.quarantine.pop_front();
            self.used_units -= block.units;
            self.quarantined_units -= block.units;
            self.free.give(block.reference, block.units);
        }
    }

    /// Where `len` bytes from byte `off` of a block on begin; `None` if they are not
    /// all in the mapping.
    fn place(&self, reference: PoolRef, off: usize, len: usize) -> Option<*mut u8> {
        let at = usize::try_from(reference).ok()?.checked_mul(POOL_UNIT)?;
        let at = at.checked_add(off)?;
        if at.checked_add(len)? > self.memory.size() {
            return None;
        }
        // SAFETY: at most the length of the mapping, by the check above.
        Some(unsafe { self.memory.base().add(at) })
    }

    /// The word at byte `off` of a block; `None` if the pool has none there.
    fn word(&self, reference: PoolRef, off: usize) -> Option<&AtomicU32> {
        let at = self.place(reference, off, size_of::<u32>())?;
        if !at.cast::<u32>().is_aligned() {
            return None;
        }
        // SAFETY: in bounds by `place`, aligned by the check above, and mapped as
        // long as `self` is; the memory is shared with the kernel, which only
        // touches whole words.
        Some(unsafe { AtomicU32::from_ptr(at.cast()) })
    }
}

/// Free ranges in units; best fit, neighbours coalesced within a chunk.
struct FreeList {
    by_start: BTreeMap<u32, u32>,
    by_size: BTreeSet<(u32, u32)>,
}

impl FreeList {
    fn new(chunks: u32) -> Self {
        let mut list = Self {
            by_start: BTreeMap::new(),
            by_size: BTreeSet::new(),
        };
        for chunk in 0..chunks {
            let start = chunk * UNITS_PER_CHUNK;
            // References 0 and 1 have special meanings.
            let skip = if chunk == 0 {
                aiprof_common::REF_FIRST
            } else {
                0
            };
            list.insert(start + skip, UNITS_PER_CHUNK - skip);
        }
        list
    }

    fn insert(&mut self, start: u32, units: u32) {
        self.by_start.insert(start, units);
        self.by_size.insert((units, start));
    }

    fn remove(&mut self, start: u32, units: u32) {
        self.by_start.remove(&start);
        self.by_size.remove(&(units, start));
    }

    fn take(&mut self, units: u32) -> Option<u32> {
        let units = units.max(1);
        let (size, start) = *self.by_size.range((units, 0)..).next()?;
        self.remove(start, size);
        if size > units {
            self.insert(start + units, size - units);
        }
        Some(start)
    }

    fn give(&mut self, start: u32, units: u32) {
        let (mut start, mut units) = (start, units);
        let chunk = |at: u32| at / UNITS_PER_CHUNK;
        if let Some((&before, &size)) = self.by_start.range(..start).next_back()
            && before + size == start
            && chunk(before) == chunk(start)
        {
            self.remove(before, size);
            start = before;
            units += size;
        }
        let after = start + units;
        if let Some(&size) = self.by_start.get(&after)
            && chunk(after) == chunk(start)
        {
            self.remove(after, size);
            units += size;
        }
        self.insert(start, units);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;

    #[test]
    fn no_reference_leads_out_of_the_pool() {
        let file = super::super::perf::memory_file(c"pool", &[]).unwrap();
        file.set_len(POOL_CHUNK as u64).unwrap();
        let mut pool = Pool::map(file.as_fd(), 1).unwrap();
        let block = pool.store(&[7; 64]).unwrap();
        assert_eq!(pool.read_u32(block, 4), 0x0707_0707);
        assert!(pool.store(&[1; 3]).is_none() && pool.store(&vec![1; POOL_CHUNK + 1]).is_none());
        let beyond = PoolBlock {
            reference: PoolRef::MAX,
            units: 1,
        };
        pool.write_u32(beyond, 0, 1);
        pool.write_u32(block, usize::MAX - 3, 1);
        assert_eq!((pool.read_u32(beyond, 0), pool.read_u32(block, 1)), (0, 0));
        let last = POOL_CHUNK - block.reference as usize * POOL_UNIT - 4;
        pool.write_u32(block, last, 5);
        pool.write_u32(block, last + 4, 6);
        assert_eq!(
            (pool.read_u32(block, last), pool.read_u32(block, last + 4)),
            (5, 0)
        );
    }

    #[test]
    fn blocks_never_overlap_nor_straddle_and_all_come_back() {
        let mut list = FreeList::new(3);
        let total: u32 = list.by_start.values().sum();
        let mut seed = 7u64;
        let mut held: Vec<(u32, u32)> = Vec::new();
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let size = (seed >> 33) as u32 % 90 + 1;
            if seed >> 60 < 9
                && let Some(start) = list.take(size)
            {
                assert_eq!(
                    start / UNITS_PER_CHUNK,
                    (start + size - 1) / UNITS_PER_CHUNK
                );
                assert!(
                    held.iter()
                        .all(|&(s, n)| start + size <= s || s + n <= start)
                );
                held.push((start, size));
            } else if !held.is_empty() {
                let (start, size) = held.swap_remove(seed as usize % held.len());
                list.give(start, size);
            }
        }
        for (start, size) in held {
            list.give(start, size);
        }
        assert_eq!(list.by_start.values().sum::<u32>(), total);
        assert_eq!(list.by_start.len(), 3, "one free range per chunk again");
        assert_eq!(list.take(UNITS_PER_CHUNK + 1), None);
    }
}
