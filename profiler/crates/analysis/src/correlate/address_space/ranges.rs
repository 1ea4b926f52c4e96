//! The ranges of one address space.

use std::collections::BTreeMap;

/// What lies behind addresses of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A buffer object.
    Object {
        /// Its handle when it was bound, 0 if that is not told; the number may mean
        /// another one since.
        handle: u64,
        /// Where in it the range begins, bytes.
        offset: u64,
    },
    /// The program's own memory.
    Program {
        /// Where the range begins in it.
        address: u64,
    },
    /// Nothing: reads give zero, writes are dropped.
    Nothing,
}

impl Backing {
    /// What is behind the address `bytes` further on.
    #[must_use]
    pub fn at(self, bytes: u64) -> Self {
        match self {
            Self::Object { handle, offset } => Self::Object {
                handle,
                offset: offset.wrapping_add(bytes),
            },
            Self::Program { address } => Self::Program {
                address: address.wrapping_add(bytes),
            },
            Self::Nothing => Self::Nothing,
        }
    }
}

/// A range that is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// First address.
    pub start: u64,
    /// Last address: a range may reach to the end of the space.
    pub last: u64,
    /// What it is bound to.
    pub backing: Backing,
}

impl Bound {
    /// The part of it between two addresses, both of which lie in it.
    fn part(self, start: u64, last: u64) -> Self {
        Self {
            start,
            last,
            backing: self.backing.at(start - self.start),
        }
    }
}

/// One address space: ranges that do not overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressSpace {
    /// By first address: the last one and what is behind.
    ranges: BTreeMap<u64, (u64, Backing)>,
}

impl AddressSpace {
    /// How many ranges there are.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether nothing is bound.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges, in the order of addresses. Ranges that were bound one by one stay
    /// so, also where they touch.
    pub fn iter(&self) -> impl Iterator<Item = Bound> {
        self.ranges.iter().map(|(&start, &(last, backing))| Bound {
            start,
            last,
            backing,
        })
    }

    /// The range that holds an address.
    pub fn find(&self, address: u64) -> Option<Bound> {
        let (&start, &(last, backing)) = self.ranges.range(..=address).next_back()?;
        (address <= last).then_some(Bound {
            start,
            last,
            backing,
        })
    }

    /// Binds a range in place of all that was bound there; gives how many ranges were
    /// dropped, as [`unbind`](Self::unbind).
    pub(super) fn bind(&mut self, bound: Bound, may_split: bool) -> u64 {
        let dropped = self.unbind(bound.start, bound.last, may_split);
        if bound.start <= bound.last {
            self.ranges.insert(bound.start, (bound.last, bound.backing));
        }
        dropped
    }

    /// Unbinds addresses, both ends included. What reaches beyond them stays. Where a
    /// range would become two and must not (`may_split`), the upper one is dropped;
    /// gives how many were.
    pub(super) fn unbind(&mut self, start: u64, last: u64, may_split: bool) -> u64 {
        if last < start {
            return 0;
        }
        let mut dropped = 0;
        let mut edges: [Option<Bound>; 2] = [None, None];
        if let Some(below) = self.find(start).filter(|below| below.start < start) {
            edges[0] = Some(below.part(below.start, start - 1));
        }
        if let Some(above) = self.find(last).filter(|above| above.last > last) {
            let of_one = edges[0].is_some() && above.start < start;
            match of_one && !may_split {
                true => dropped = 1,
                false => edges[1] = Some(above.part(last + 1, above.last)),
            }
        }
        let from = edges[0].map_or(start, |edge| edge.start);
        self.ranges
            .extract_if(from..=last, |_, _| true)
            .for_each(drop);
        for edge in edges.into_iter().flatten() {
            self.ranges.insert(edge.start, (edge.last, edge.backing));
        }
        dropped
    }

    /// Unbinds all of an object.
    pub(super) fn unbind_object(&mut self, object: u64) {
        self.ranges.retain(|_, (_, backing)| {
            !matches!(backing, Backing::Object { handle, .. } if *handle == object)
        });
    }

    /// Unbinds everything.
    pub(super) fn clear(&mut self) {
        self.ranges.clear();
    }
}
