//! What an ioctl changes, by the names that its driver table gives.
//!
//! | name | meaning |
//! |---|---|
//! | `vm` | number of the address space; missing: the file has one |
//! | `address`, `bytes` | the range |
//! | `object`, `offset` | what is bound; of `map-userptr` the offset is the program's address |
//! | `pointer` | the program's memory that is bound |
//! | `device` | in an array beside an object without a range: the address spaces |
//! | `op` | `map`, `map-userptr`, `replace`, `unmap`, `clear`, `unmap-all` (of an object); others change nothing |
//! | `flags` | `null`, `prt`: nothing is behind it; `all`: everything is unbound; `vaddr`: only the program's address changes |
//! | `status` | not 0: the driver refused although the call succeeded |

use super::{Backing, Bound};
use crate::correlate::FinishedCall;
use aiprof_model::probes::ioctl::{Action, ArrayLayout, IoctlLayout};

/// What happens to an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Bind(Bound),
    /// First and last address.
    Unbind(u64, u64),
    UnbindObject(u64),
    UnbindAll,
    /// An object that lies where its allocation said.
    BindPlaced(u64),
    UnbindPlaced(u64),
}

/// A change, and the address space if it is named with it.
type Placed = (Option<u64>, Change);

/// The values of an ioctl.
#[derive(Clone, Copy)]
pub(super) struct Fields<'c> {
    call: &'c FinishedCall,
    layout: &'c IoctlLayout,
}

/// Where the fields of one binding are.
#[derive(Clone, Copy)]
enum Source<'c> {
    /// Among the values.
    Values,
    /// In an element of an array.
    Element(&'c ArrayLayout, &'c [u64]),
}

impl<'c> Fields<'c> {
    /// Of an ioctl; `None`: it is none.
    pub(super) fn of(call: &'c FinishedCall) -> Option<Self> {
        let layout = call.probe.layout.as_deref()?;
        Some(Self { call, layout })
    }

    pub(super) fn action(&self) -> Action {
        self.layout.action
    }

    /// A value by its name, if it was read.
    pub(super) fn value(&self, name: &str) -> Option<u64> {
        self.call.value(self.call.probe.slot(name)?)
    }

    /// Whether the driver says so in what it wrote back.
    pub(super) fn has_failed(&self) -> bool {
        self.value("status").is_some_and(|status| status != 0)
    }

    /// The range that the values name.
    pub(super) fn range(&self) -> Option<(u64, u64)> {
        range(self.value("address")?, self.value("bytes")?)
    }

    /// What is bound and unbound, in order, and how many more it was that could not be
    /// read.
    pub(super) fn changes(&self) -> (Vec<Placed>, u64) {
        let has = |array: &&ArrayLayout, name| array.field(name).is_some();
        let arrays = &self.layout.arrays;
        if let Some(array) = arrays.iter().find(|array| has(array, "address")) {
            let found = self.call.elements(array);
            let elements = found.elements.iter();
            let changes = elements.filter_map(|e| self.change(Source::Element(array, e)));
            return (changes.map(|c| (None, c)).collect(), found.missing);
        }
        if let Some(change) = self.change(Source::Values) {
            return (vec![(None, change)], 0);
        }
        match arrays.iter().find(|array| has(array, "device")) {
            Some(array) => self.on_devices(array),
            None => (Vec::new(), 0),
        }
    }

    /// An object that is bound or unbound on several devices at once.
    fn on_devices(&self, array: &ArrayLayout) -> (Vec<Placed>, u64) {
        let change = match (self.value("object"), self.layout.action) {
            (Some(object), Action::Bind) => Change::BindPlaced(object),
            (Some(object), _) => Change::UnbindPlaced(object),
            (None, _) => return (Vec::new(), 0),
        };
        let found = self.call.elements(array);
        // The driver may have stopped midway.
        let done = self.value("done").unwrap_or(u64::MAX);
        let done = usize::try_from(done).unwrap_or(usize::MAX);
        let devices = found.elements.iter().take(done).filter_map(|element| {
            let device = array.field("device")?;
            element.get(device).copied()
        });
        let changes = devices.map(|device| (Some(device), change)).collect();
        (changes, found.missing)
    }

    fn get(&self, source: Source<'_>, name: &str) -> Option<u64> {
        match source {
            Source::Values => self.value(name),
            Source::Element(array, element) => element.get(array.field(name)?).copied(),
        }
    }

    fn has_flag(&self, source: Source<'_>, name: &str) -> bool {
        let names = self.layout.names_of("flags").filter(|names| names.bits);
        let bits = names.and_then(|names| {
            let mut named = names.names.iter();
            named
                .find(|(known, _)| known == name)
                .map(|(_, bits)| *bits)
        });
        let flags = self.get(source, "flags").unwrap_or(0);
        bits.is_some_and(|bits| bits != 0 && flags & bits == bits)
    }

    fn change(&self, source: Source<'_>) -> Option<Change> {
        let get = |name| self.get(source, name);
        let operation = match get("op") {
            Some(op) => self.layout.names_of("op")?.name(op)?,
            None if self.layout.action == Action::Bind => "map",
            None => "unmap",
        };
        if self.has_flag(source, "vaddr") {
            return None;
        }
        let range = || range(get("address")?, get("bytes")?);
        match operation {
            "map" | "map-userptr" | "replace" => {
                let (start, last) = range()?;
                let backing = self.backing(source, operation);
                Some(Change::Bind(Bound {
                    start,
                    last,
                    backing,
                }))
            }
            "unmap-all" => get("object").map(Change::UnbindObject),
            "unmap" if self.has_flag(source, "all") => Some(Change::UnbindAll),
            "unmap" | "clear" => range().map(|(start, last)| Change::Unbind(start, last)),
            _ => None,
        }
    }

    fn backing(&self, source: Source<'_>, operation: &str) -> Backing {
        let get = |name| self.get(source, name);
        let offset = get("offset").unwrap_or(0);
        if self.has_flag(source, "null") || self.has_flag(source, "prt") {
            return Backing::Nothing;
        }
        match (operation, get("pointer"), get("object")) {
            ("map-userptr", ..) => Backing::Program { address: offset },
            (_, Some(address), None) => Backing::Program { address },
            (_, _, Some(handle)) => Backing::Object { handle, offset },
            (_, None, None) => Backing::Object { handle: 0, offset },
        }
    }
}

/// First and last address; `None` of nothing. What would reach beyond the end of the
/// space ends with it.
fn range(start: u64, bytes: u64) -> Option<(u64, u64)> {
    Some((start, start.saturating_add(bytes.checked_sub(1)?)))
}
