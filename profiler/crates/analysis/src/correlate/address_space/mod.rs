//! What is bound where in the devices' address spaces, by the ioctls that bind it;
//! pure.
//!
//! * [`AddressSpace`]: ranges of one address space; `ranges.rs`.
//! * [`AddressSpaces`]: those of all processes, fed with finished ioctls; what an
//!   ioctl changes is read by `change.rs` from the names that its table gives values
//!   and operations, so a driver of a table of one's own is followed too.
//!
//! Only what succeeded changes anything. An ioctl whose end was not seen changes
//! nothing, and counts as a call without an end.
//!
//! # What is not seen
//!
//! * Which file an ioctl was for: the address spaces of all files that a process has
//!   open of one device are taken together. Drivers number them by file, so creating
//!   one whose number is known begins it anew.
//! * That a file was closed: what was bound through it stays until its process ends,
//!   runs another program (although files may be kept then), or makes an address
//!   space of the same number.
//! * What a child inherits: a process begins with nothing. Binding through a file that
//!   it has from its parent counts as the child's.
//! * What was bound before the recording began.

mod change;
mod ranges;
#[cfg(test)]
mod tests;

pub use ranges::{AddressSpace, Backing, Bound};

use super::FinishedCall;
use aiprof_model::{
    probes::ioctl::Action,
    profile::{LossKind, Losses},
};
use change::{Change, Fields};
use std::collections::BTreeMap;

/// Most ranges, address spaces and objects in all; about 100 bytes each.
const ROOM: usize = 1 << 18;

/// Names an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceId {
    /// Process.
    pub pid: u32,
    /// Number of the device, as in [`FinishedCall::library`].
    pub device: u32,
    /// The driver's number of it; `None` where a file has just one.
    pub vm: Option<u64>,
}

/// An object that lies at the same address in every address space (KFD's).
#[derive(Clone, Copy, Debug)]
struct Placed {
    start: u64,
    last: u64,
}

/// The address spaces of all processes.
#[derive(Debug)]
pub struct AddressSpaces {
    spaces: BTreeMap<SpaceId, AddressSpace>,
    /// By process, device and handle.
    placed: BTreeMap<(u32, u32, u64), Placed>,
    /// Ranges, spaces and objects.
    used: usize,
    room: usize,
}

impl Default for AddressSpaces {
    fn default() -> Self {
        Self::with_room(ROOM)
    }
}

impl AddressSpaces {
    pub(super) fn with_room(room: usize) -> Self {
        Self {
            spaces: BTreeMap::new(),
            placed: BTreeMap::new(),
            used: 0,
            room,
        }
    }

    /// What an address of an address space is bound to.
    pub fn find(&self, id: SpaceId, address: u64) -> Option<Bound> {
        self.spaces.get(&id)?.find(address)
    }

    /// The address spaces of a process, and what is bound in them.
    pub fn of(&self, pid: u32) -> impl Iterator<Item = (SpaceId, &AddressSpace)> {
        let ends = [(0, None), (u32::MAX, Some(u64::MAX))];
        let [first, last] = ends.map(|(device, vm)| SpaceId { pid, device, vm });
        self.spaces
            .range(first..=last)
            .map(|(id, space)| (*id, space))
    }

    /// Takes a finished ioctl in.
    pub(super) fn take(&mut self, call: &FinishedCall, losses: &mut Losses) {
        let Some(fields) = Fields::of(call) else {
            return;
        };
        if call.succeeded() != Some(true) || fields.has_failed() {
            return;
        }
        let id = SpaceId {
            pid: call.pid,
            device: call.library,
            vm: fields.value("vm"),
        };
        match fields.action() {
            Action::VmCreate => self.create(id, losses),
            Action::VmDestroy => self.destroy(id),
            Action::Alloc => self.alloc(id, &fields, losses),
            Action::Free => self.free(id, &fields),
            Action::Bind | Action::Unbind => {
                let (changes, missing) = fields.changes();
                losses.add(LossKind::BindingsRefused, missing);
                for (vm, change) in changes {
                    let id = SpaceId {
                        vm: vm.or(id.vm),
                        ..id
                    };
                    self.change(id, &change, losses);
                }
            }
            _ => {}
        }
    }

    /// A process is gone, or runs another program.
    pub(super) fn forget(&mut self, pid: u32) {
        let gone: Vec<SpaceId> = self.of(pid).map(|(id, _)| id).collect();
        for id in gone {
            self.destroy(id);
        }
        let before = self.placed.len();
        self.placed.retain(|(owner, ..), _| *owner != pid);
        self.used -= before - self.placed.len();
    }

    fn create(&mut self, id: SpaceId, losses: &mut Losses) {
        if id.vm.is_none() {
            return;
        }
        self.destroy(id);
        self.space(id, losses);
    }

    fn destroy(&mut self, id: SpaceId) {
        if let Some(space) = self.spaces.remove(&id) {
            self.used -= space.len() + 1;
        }
    }

    /// An address space, new if it is not known: it may be older than the recording.
    fn space(&mut self, id: SpaceId, losses: &mut Losses) -> Option<&mut AddressSpace> {
        if !self.spaces.contains_key(&id) {
            if self.used >= self.room {
                losses.add(LossKind::BindingsRefused, 1);
                return None;
            }
            self.used += 1;
        }
        Some(self.spaces.entry(id).or_default())
    }

    /// Remembers where an object lies that is bound without saying so again.
    fn alloc(&mut self, id: SpaceId, fields: &Fields<'_>, losses: &mut Losses) {
        let Some((object, (start, last))) = fields.value("object").zip(fields.range()) else {
            return;
        };
        let key = (id.pid, id.device, object);
        if !self.placed.contains_key(&key) {
            if self.used >= self.room {
                return losses.add(LossKind::BindingsRefused, 1);
            }
            self.used += 1;
        }
        self.placed.insert(key, Placed { start, last });
    }

    /// An object is released: where it lies is forgotten. A file that has just one
    /// address space takes it out of that; elsewhere it stays while it is bound.
    fn free(&mut self, id: SpaceId, fields: &Fields<'_>) {
        let Some(object) = fields.value("object") else {
            return;
        };
        let placed = self.placed.remove(&(id.pid, id.device, object));
        self.used -= usize::from(placed.is_some());
        let [first, last] = [None, Some(u64::MAX)].map(|vm| SpaceId { vm, ..id });
        for (space_id, space) in self.spaces.range_mut(first..=last) {
            if placed.is_some() || space_id.vm.is_none() {
                let before = space.len();
                space.unbind_object(object);
                self.used -= before - space.len();
            }
        }
    }

    fn change(&mut self, id: SpaceId, change: &Change, losses: &mut Losses) {
        let change = match *change {
            Change::BindPlaced(object) | Change::UnbindPlaced(object) => {
                let Some(placed) = self.placed.get(&(id.pid, id.device, object)) else {
                    // Allocated before the recording began, or by an import.
                    return losses.add(LossKind::BindingsRefused, 1);
                };
                let Placed { start, last } = *placed;
                match change {
                    Change::BindPlaced(handle) => Change::Bind(Bound {
                        start,
                        last,
                        backing: Backing::Object {
                            handle: *handle,
                            offset: 0,
                        },
                    }),
                    _ => Change::Unbind(start, last),
                }
            }
            other => other,
        };
        let spare = self.room.saturating_sub(self.used);
        let Some(space) = self.space(id, losses) else {
            return;
        };
        let before = space.len();
        // Cutting a range in two needs room for one more, binding for another.
        let dropped = match change {
            Change::Bind(bound) if spare > 2 => space.bind(bound, true),
            Change::Bind(bound) => 1 + space.unbind(bound.start, bound.last, false),
            Change::Unbind(start, last) => space.unbind(start, last, spare > 1),
            Change::UnbindObject(object) => {
                space.unbind_object(object);
                0
            }
            Change::UnbindAll => {
                space.clear();
                0
            }
            Change::BindPlaced(_) | Change::UnbindPlaced(_) => 0,
        };
        let after = space.len();
        self.used = (self.used + after).saturating_sub(before);
        losses.add(LossKind::BindingsRefused, dropped);
    }
}

#[cfg(test)]
impl AddressSpaces {
    /// Whether nothing is held, and nothing is counted as held.
    pub(super) fn is_idle(&self) -> bool {
        self.spaces.is_empty() && self.placed.is_empty() && self.used == 0
    }
}
