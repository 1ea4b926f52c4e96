//! What the handles of a process mean: kernels, modules, lists, queues, memory.
//!
//! Handles are used again after what they stood for was destroyed, perhaps by
//! another thread and before the destroying call has returned. So an object keeps
//! when it was made, and the end of a handle only ends what was made before the
//! ending call was entered.

use super::{
    KernelName, TrackedLaunch,
    meaning::HandleKind,
    memory::{Allocations, MemoryKind},
};
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;

/// Device code as the program handed it to its runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleImage {
    /// SHA-256 of the code; `None` if not all of it was seen.
    pub digest: Option<[u8; 32]>,
    /// Bytes of the code.
    pub bytes: u64,
    /// The runtime's number for its format, 0 if it has none.
    pub format: u64,
}

/// A kernel.
#[derive(Clone, Debug)]
pub(super) struct CreatedKernel {
    /// Numbers the kernels of the recording from 1: handles are used again. Two
    /// handles of one kernel of one module have one number: its code is there once.
    pub(super) number: u64,
    /// Since when its code is there: it stays until the module ends. `None`: as long
    /// as the kernel.
    pub(super) code_since_ns: Option<u64>,
    pub(super) name: Name,
    /// Group size, 0 if not set.
    pub(super) local: [u32; 3],
    pub(super) module: Option<Rc<ModuleImage>>,
    /// Where its handle was to be put, the same one was before: its creation may
    /// have failed.
    pub(super) is_doubtful: bool,
}

/// What is known of an object's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Known(Rc<str>),
    /// Its creation was seen, but not its name.
    Missing,
    /// Its creation was not seen.
    Unseen,
    /// Its creation was not seen, but its name was found since.
    Found(Rc<str>),
}

impl Name {
    /// The name as a launch of the kernel `handle` shows it.
    pub(super) fn of_kernel(&self, handle: u64) -> KernelName {
        match self {
            Self::Known(name) | Self::Found(name) => KernelName::Known(name.clone()),
            Self::Missing => KernelName::Unknown,
            Self::Unseen => KernelName::BeforeAttach(handle),
        }
    }
}

/// How a command list's work reaches the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListKind {
    /// At once.
    Immediate,
    /// When it is executed, as often as it is.
    Regular,
    /// Its creation was not seen. Its work was counted at once.
    Undecided,
}

/// A command list.
#[derive(Clone, Debug)]
pub(super) struct CommandList {
    pub(super) kind: ListKind,
    pub(super) device: u64,
    /// Work put on it since it was made or reset; of an immediate list none.
    pub(super) entries: Vec<ListedLaunch>,
    /// Work put on it or, if it is a queue, given to it is recorded.
    pub(super) capturing: bool,
    /// Work that found no room: missing from every execution.
    pub(super) refused: u64,
}

/// Work on a list.
#[derive(Clone, Debug)]
pub(super) struct ListedLaunch {
    pub(super) launch: TrackedLaunch,
    /// The call that put it there, innermost.
    pub(super) maker: u64,
    /// It was counted at once: the next execution is that.
    pub(super) counted: bool,
}

/// An object with what all have.
#[derive(Clone, Debug)]
struct HeldObject<T> {
    is: T,
    since_ns: u64,
    owners: u32,
}

/// Objects of one kind by their handles.
#[derive(Clone, Debug)]
pub(super) struct Objects<T>(FxHashMap<u64, HeldObject<T>>);

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self(FxHashMap::default())
    }
}

impl<T> Objects<T> {
    fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, handle: u64) -> Option<&T> {
        self.0.get(&handle).map(|held| &held.is)
    }

    /// Since when it is known, 0 if it is older.
    pub(super) fn since_ns(&self, handle: u64) -> Option<u64> {
        self.0.get(&handle).map(|held| held.since_ns)
    }

    /// All objects with their handles, and since when they are known.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T, u64)> {
        let all = self.0.iter();
        all.map(|(&handle, held)| (handle, &held.is, held.since_ns))
    }

    pub(super) fn get_mut(&mut self, handle: u64) -> Option<&mut T> {
        self.0.get_mut(&handle).map(|held| &mut held.is)
    }

    /// Forgets what was made after a time.
    fn forget_since(&mut self, time_ns: u64) {
        self.0.retain(|_, held| held.since_ns <= time_ns);
    }

    /// Changes each object.
    pub(super) fn each(&mut self, change: impl FnMut(&mut T)) {
        self.0
            .values_mut()
            .map(|held| &mut held.is)
            .for_each(change);
    }

    pub(super) fn insert(&mut self, handle: u64, is: T, since_ns: u64) -> Option<T> {
        let held = HeldObject {
            is,
            since_ns,
            owners: 1,
        };
        self.0.insert(handle, held).map(|old| old.is)
    }

    /// Whether it has several owners: the next end of it does not end it.
    pub(super) fn is_shared(&self, handle: u64) -> bool {
        self.0.get(&handle).is_some_and(|held| held.owners > 1)
    }

    fn retain(&mut self, handle: u64) {
        if let Some(held) = self.0.get_mut(&handle) {
            held.owners = held.owners.saturating_add(1);
        }
    }

    /// Takes an owner away; returns the object if it was the last one.
    fn release(&mut self, handle: u64, entered_ns: u64) -> Option<T> {
        let Entry::Occupied(mut entry) = self.0.entry(handle) else {
            return None;
        };
        let held = entry.get_mut();
        if held.since_ns > entered_ns {
            return None;
        }
        held.owners = held.owners.saturating_sub(1);
        (held.owners == 0).then(|| entry.remove().is)
    }
}

/// How many handles and recorded launches there may be, over all processes.
#[derive(Debug, Default)]
pub(super) struct Room {
    pub(super) objects: usize,
    pub(super) recorded: usize,
    pub(super) per_list: usize,
    /// The last number that a kernel got.
    pub(super) last_kernel: u64,
}

impl Room {
    /// A number for a new kernel.
    pub(super) fn kernel_number(&mut self) -> u64 {
        self.last_kernel += 1;
        self.last_kernel
    }
}

/// All that is known of a process's handles.
#[derive(Clone, Debug, Default)]
pub(super) struct Handles {
    pub(super) kernels: Objects<CreatedKernel>,
    modules: Objects<Rc<ModuleImage>>,
    /// Numbers of the kernels of modules, and since when they are known, by the
    /// module's handle.
    code: FxHashMap<u64, Vec<(Rc<str>, u64, u64)>>,
    pub(super) lists: Objects<CommandList>,
    /// The devices of queues and streams.
    pub(super) queues: Objects<u64>,
    pub(super) allocations: Allocations,
}

/// Most kernels of a module whose handles are known to have the same code.
const MODULE_KERNELS: usize = 1 << 14;

/// Work on a list of unknown kind: beyond this the list is taken for an immediate
/// one, for programs execute their lists.
const UNDECIDED: usize = 4096;

impl Handles {
    fn objects(&self) -> usize {
        let lists = self.lists.len() + self.queues.len();
        self.kernels.len() + self.modules.len() + lists + self.allocations.len()
    }

    fn recorded(&self) -> usize {
        self.lists.0.values().map(|l| l.is.entries.len()).sum()
    }

    /// Gives back all room that this process has taken.
    pub(super) fn vacate(&self, room: &mut Room) {
        room.objects += self.objects();
        room.recorded += self.recorded();
    }

    /// Forgets what was made after a time, but for memory.
    pub(super) fn forget_since(&mut self, time_ns: u64) {
        self.kernels.forget_since(time_ns);
        self.modules.forget_since(time_ns);
        self.lists.forget_since(time_ns);
        self.queues.forget_since(time_ns);
    }

    /// Takes room for all of it; false if there is not as much.
    pub(super) fn occupy(&self, room: &mut Room) -> bool {
        let (objects, recorded) = (self.objects(), self.recorded());
        let fits = room.objects >= objects && room.recorded >= recorded;
        if fits {
            room.objects -= objects;
            room.recorded -= recorded;
        }
        fits
    }

    /// Runs `change`, which adds or removes objects, if there is room.
    pub(super) fn within<T>(
        &mut self,
        room: &mut Room,
        change: impl FnOnce(&mut Self) -> T,
    ) -> Option<T> {
        (room.objects > 0).then(|| self.within_always(room, change))
    }

    /// The number of a kernel that is made, and since when its module's code of that
    /// name is there.
    pub(super) fn kernel_number(
        &mut self,
        module: Option<u64>,
        name: Option<&Rc<str>>,
        now: u64,
        room: &mut Room,
    ) -> (u64, Option<u64>) {
        let known = module.filter(|&module| self.modules.get(module).is_some());
        let Some((module, name)) = known.zip(name) else {
            return (room.kernel_number(), None);
        };
        let kernels = self.code.entry(module).or_default();
        if let Some((_, number, since_ns)) = kernels.iter().find(|known| known.0 == *name) {
            return (*number, Some(*since_ns));
        }
        let number = room.kernel_number();
        let fits = kernels.len() < MODULE_KERNELS;
        if fits {
            kernels.push((name.clone(), number, now));
        }
        (number, fits.then_some(now))
    }

    /// The numbers of all kernels of modules.
    pub(super) fn numbers_of_modules(&self) -> impl Iterator<Item = u64> {
        self.code.values().flatten().map(|(_, number, _)| *number)
    }

    /// A kernel by its handle, made known if it was not.
    pub(super) fn kernel(&mut self, handle: u64, room: &mut Room) -> Option<&mut CreatedKernel> {
        if self.kernels.get(handle).is_none() {
            let unseen = CreatedKernel {
                number: room.kernel_number(),
                code_since_ns: None,
                name: Name::Unseen,
                local: [0; 3],
                module: None,
                is_doubtful: false,
            };
            // Made at an unknown time: any later end ends it.
            self.within(room, |all| all.kernels.insert(handle, unseen, 0))?;
        }
        self.kernels.get_mut(handle)
    }

    pub(super) fn new_module(
        &mut self,
        handle: u64,
        image: Rc<ModuleImage>,
        now: u64,
        room: &mut Room,
    ) -> bool {
        // Made by an inner layer inside of the same call, or another one since.
        let is_new = self.modules.get(handle).is_none_or(|old| *old != image);
        if is_new {
            self.code.remove(&handle);
        }
        self.within(room, |all| all.modules.insert(handle, image, now))
            .is_some()
    }

    pub(super) fn module(&self, handle: u64) -> Option<Rc<ModuleImage>> {
        self.modules.get(handle).cloned()
    }

    pub(super) fn new_list(
        &mut self,
        handle: u64,
        kind: ListKind,
        device: u64,
        now: u64,
        room: &mut Room,
    ) -> bool {
        let list = CommandList {
            kind,
            device,
            entries: Vec::new(),
            capturing: false,
            refused: 0,
        };
        let old = self.within(room, |all| all.lists.insert(handle, list, now));
        let fits = old.is_some();
        room.recorded += old.flatten().map_or(0, |list| list.entries.len());
        fits
    }

    /// A list by its handle, made known if it was not.
    pub(super) fn list(&mut self, handle: u64, room: &mut Room) -> Option<&mut CommandList> {
        if self.lists.get(handle).is_none() {
            self.new_list(handle, ListKind::Undecided, 0, 0, room)
                .then_some(())?;
        }
        self.lists.get_mut(handle)
    }

    /// Puts work on a list; false if there was no room.
    pub(super) fn record(&mut self, handle: u64, entry: ListedLaunch, room: &mut Room) -> bool {
        let Some(list) = self.lists.get_mut(handle) else {
            return false;
        };
        if entry.counted && list.entries.len() >= UNDECIDED {
            list.kind = ListKind::Immediate;
            room.recorded += list.entries.len();
            list.entries = Vec::new();
            return true;
        }
        if room.recorded == 0 || list.entries.len() >= room.per_list {
            list.refused += 1;
            return false;
        }
        room.recorded -= 1;
        list.entries.push(entry);
        true
    }

    /// Takes all work off a list, to put it elsewhere.
    pub(super) fn take_entries(&mut self, handle: u64) -> (Vec<ListedLaunch>, u64) {
        match self.lists.get_mut(handle) {
            Some(list) => {
                list.capturing = false;
                let refused = std::mem::take(&mut list.refused);
                (std::mem::take(&mut list.entries), refused)
            }
            None => (Vec::new(), 0),
        }
    }

    /// A list's work, for another one.
    pub(super) fn copy_entries(&self, handle: u64, room: &mut Room) -> (Vec<ListedLaunch>, u64) {
        let Some(list) = self.lists.get(handle) else {
            return (Vec::new(), 0);
        };
        let entries: Vec<_> = list.entries.iter().take(room.recorded).cloned().collect();
        room.recorded -= entries.len();
        let refused = list.entries.len() - entries.len();
        (entries, list.refused + refused as u64)
    }

    /// Makes a list, or a graph, of work that is already accounted for.
    pub(super) fn new_filled(
        &mut self,
        handle: u64,
        (entries, refused): (Vec<ListedLaunch>, u64),
        now: u64,
        room: &mut Room,
    ) -> bool {
        let fits = self.new_list(handle, ListKind::Regular, 0, now, room);
        match self.lists.get_mut(handle).filter(|_| fits) {
            Some(list) => {
                list.entries = entries;
                list.refused = refused;
            }
            None => room.recorded += entries.len(),
        }
        fits
    }

    /// Takes back what the call `maker` put on a list last.
    pub(super) fn unrecord(&mut self, handle: u64, maker: u64, room: &mut Room) {
        let Some(list) = self.lists.get_mut(handle) else {
            return;
        };
        let last = list.entries.iter().rposition(|e| e.maker == maker);
        if let Some(at) = last {
            list.entries.remove(at);
            room.recorded += 1;
        }
    }

    /// Empties a list.
    pub(super) fn reset_list(&mut self, handle: u64, room: &mut Room) {
        if let Some(list) = self.lists.get_mut(handle) {
            room.recorded += list.entries.len();
            list.entries.clear();
            list.refused = 0;
        }
    }

    pub(super) fn retain(&mut self, object: HandleKind, handle: u64) {
        match object {
            HandleKind::Kernel => self.kernels.retain(handle),
            HandleKind::Module => self.modules.retain(handle),
            HandleKind::List | HandleKind::Graph => self.lists.retain(handle),
            HandleKind::Queue => self.queues.retain(handle),
        }
    }

    /// Takes an owner of an object away, in a call that was entered then. Gives the
    /// numbers of the kernels whose code ended with it.
    pub(super) fn release(
        &mut self,
        object: HandleKind,
        handle: u64,
        entered_ns: u64,
        room: &mut Room,
    ) -> Vec<u64> {
        let mut recorded = 0;
        let mut ended = Vec::new();
        self.within_always(room, |all| match object {
            HandleKind::Kernel => {
                let kernel = all.kernels.release(handle, entered_ns);
                let own = kernel.filter(|kernel| kernel.code_since_ns.is_none());
                ended.extend(own.map(|kernel| kernel.number));
            }
            HandleKind::Module => {
                if all.modules.release(handle, entered_ns).is_some() {
                    let code = all.code.remove(&handle).unwrap_or_default();
                    ended.extend(code.into_iter().map(|(_, number, _)| number));
                }
            }
            HandleKind::Queue => {
                all.queues.release(handle, entered_ns);
            }
            HandleKind::List | HandleKind::Graph => {
                let list = all.lists.release(handle, entered_ns);
                recorded = list.map_or(0, |list| list.entries.len());
            }
        });
        room.recorded += recorded;
        ended
    }

    fn within_always<T>(&mut self, room: &mut Room, change: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.objects();
        let changed = change(self);
        room.objects = (room.objects + before).saturating_sub(self.objects());
        changed
    }

    pub(super) fn alloc(
        &mut self,
        address: u64,
        bytes: u64,
        memory: MemoryKind,
        now: u64,
        room: &mut Room,
    ) -> bool {
        if self.allocations.covers(address, bytes, memory) {
            return true;
        }
        self.within(room, |all| {
            all.allocations.insert(address, bytes, memory, now);
        })
        .is_some()
    }

    pub(super) fn free(&mut self, address: u64, entered_ns: u64, room: &mut Room) {
        self.within_always(room, |all| all.allocations.remove(address, entered_ns));
    }
}
