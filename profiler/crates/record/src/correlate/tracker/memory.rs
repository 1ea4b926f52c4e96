//! Which addresses are device memory: so that a copy can be named.

use std::collections::BTreeMap;

/// What an address is, as copies are named after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryKind {
    /// Allocated by the runtime on the host.
    Host,
    /// On the device.
    Device,
    /// Moved by the runtime between both.
    Shared,
    /// Memory of no allocation that was seen: the program's own.
    Unknown,
}

impl MemoryKind {
    /// All of them, in the order of their numbers.
    pub(super) const ALL: [Self; 4] = [Self::Host, Self::Device, Self::Shared, Self::Unknown];

    /// The letter that stands for it in `Memcpy (H2D)`.
    pub(super) fn letter(self) -> char {
        match self {
            Self::Host => 'H',
            Self::Device => 'D',
            Self::Shared => 'S',
            Self::Unknown => 'M',
        }
    }
}

/// The allocations of a process.
#[derive(Clone, Debug, Default)]
pub(super) struct Allocations {
    /// By first address: the last address and the kind of memory.
    ranges: BTreeMap<u64, Allocation>,
}

#[derive(Clone, Copy, Debug)]
struct Allocation {
    last: u64,
    memory: MemoryKind,
    since_ns: u64,
    /// Allocations that begin here: a runtime's, and the first part it handed out.
    owners: u32,
}

/// How many ranges before an address are looked at: allocations lie inside one
/// another where a runtime hands out parts of a larger one.
const NEIGHBOURS: usize = 8;

impl Allocations {
    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// The innermost allocation that holds an address, and where it begins.
    fn find(&self, address: u64) -> Option<(u64, &Allocation)> {
        self.ranges
            .range(..=address)
            .rev()
            .take(NEIGHBOURS)
            .map(|(&start, range)| (start, range))
            .find(|(_, range)| range.last >= address)
    }

    /// What an address is.
    pub(super) fn memory(&self, address: u64) -> MemoryKind {
        self.find(address)
            .map_or(MemoryKind::Unknown, |(_, r)| r.memory)
    }

    /// Whether an allocation is a part of a known one, and nothing else.
    pub(super) fn covers(&self, start: u64, bytes: u64, memory: MemoryKind) -> bool {
        let last = start.saturating_add(bytes.max(1) - 1);
        self.find(start).is_some_and(|(begin, range)| {
            begin < start && range.last >= last && range.memory == memory
        })
    }

    pub(super) fn insert(&mut self, start: u64, bytes: u64, memory: MemoryKind, since_ns: u64) {
        let last = start.saturating_add(bytes.max(1) - 1);
        if let Some(range) = self.ranges.get_mut(&start)
            && range.memory == memory
            && range.last >= last
        {
            range.owners = range.owners.saturating_add(1);
            return;
        }
        let range = Allocation {
            last,
            memory,
            since_ns,
            owners: 1,
        };
        self.ranges.insert(start, range);
    }

    /// Forgets an allocation that was made before `before_ns`.
    pub(super) fn remove(&mut self, start: u64, before_ns: u64) {
        let Some(range) = self.ranges.get_mut(&start) else {
            return;
        };
        if range.since_ns <= before_ns {
            range.owners -= 1;
            if range.owners == 0 {
                self.ranges.remove(&start);
            }
        }
    }
}
