//! Allocations and releases, as traces write them.

use super::MemoryOf;
use crate::work::is_recording;
use aiprof_model::timeline::{Event, Id, Ph, Sym, Time, Timeline};
use rustc_hash::FxHashMap;

/// An allocation or a release.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryChange {
    /// Its event.
    pub(super) event: u32,
    /// When.
    pub(super) at: Time,
    /// Where the memory is.
    pub(super) address: Option<u64>,
    /// Its size; 0 of a release whose size only its allocation has.
    pub(super) bytes: u64,
    /// It is a release.
    pub(super) is_release: bool,
    /// It is an allocation that failed.
    pub(super) is_failure: bool,
    /// Bytes allocated after it, by the allocator's own count.
    pub(super) total: Option<u64>,
    /// Bytes that the allocator holds, in use or not.
    pub(super) reserved: Option<u64>,
}

/// All of a device and process, by time.
pub(super) struct MemoryChanges {
    pub(super) of: MemoryOf,
    pub(super) all: Vec<MemoryChange>,
}

/// All of a timeline.
#[derive(Default)]
pub(super) struct GatheredMemory {
    pub(super) all: Vec<MemoryChanges>,
    /// Events without a readable size or device.
    pub(super) unreadable: u64,
}

/// What makes changes one device's: file, rank, process, device.
type MemoryPlace<'t> = (u32, u32, Id, MemoryArea<'t>);

/// A device, or kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum MemoryArea<'t> {
    /// `c10::DeviceType` and number.
    Torch(i64, i64),
    /// A runtime's memory: its name, and whose memory it is.
    Runtime(&'t str, &'static str),
    /// An AIU, by number.
    Aiu(i64),
}

/// How an event writes its change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MemorySource {
    Torch,
    OutOfMemory,
    Call { is_release: bool },
    Record { is_release: bool },
}

impl GatheredMemory {
    /// Those of a timeline.
    pub(super) fn new(timeline: &Timeline) -> Self {
        let names: FxHashMap<Sym, MemorySource> = timeline
            .names
            .iter()
            .filter_map(|(sym, text)| Some((sym, source_of_name(text)?)))
            .collect();
        let categories: FxHashMap<Sym, MemorySource> = timeline
            .names
            .iter()
            .filter_map(|(sym, text)| Some((sym, source_of_category(text)?)))
            .collect();
        let mut gathered = Self::default();
        if names.is_empty() && categories.is_empty() {
            return gathered;
        }
        let mut places: FxHashMap<MemoryPlace<'_>, usize> = FxHashMap::default();
        let mut sides = AddressSides::default();
        for (index, event) in (0u32..).zip(&timeline.events) {
            let named = names
                .get(&event.name)
                .filter(|source| fits(**source, event));
            let is_call = || event.is_slice() && is_recording(timeline, event);
            let source = named.or_else(|| categories.get(&event.cat).filter(|_| is_call()));
            let Some(source) = source.filter(|_| !event.dropped && !event.start.is_edge()) else {
                continue;
            };
            match read(timeline, index, event, *source) {
                FoundMemory::Change(place, change) => {
                    let place = side_by_address(&mut sides, place, &change);
                    gathered.add(&mut places, place, change);
                }
                FoundMemory::Unreadable => gathered.unreadable += 1,
                FoundMemory::Nothing => {}
            }
        }
        for one in &mut gathered.all {
            one.all.sort_by_key(|change| change.at);
        }
        gathered
    }

    fn add<'t>(
        &mut self,
        places: &mut FxHashMap<MemoryPlace<'t>, usize>,
        place: MemoryPlace<'t>,
        change: MemoryChange,
    ) {
        let all = &mut self.all;
        let at = *places.entry(place).or_insert_with(|| {
            let (job, rank, process, area) = place;
            all.push(MemoryChanges {
                of: MemoryOf {
                    job,
                    rank,
                    process,
                    device: area.name(),
                },
                all: Vec::new(),
            });
            all.len() - 1
        });
        if let Some(one) = all.get_mut(at) {
            one.all.push(change);
        }
    }
}

fn source_of_name(name: &str) -> Option<MemorySource> {
    Some(match name {
        "[memory]" => MemorySource::Torch,
        "[OutOfMemory]" => MemorySource::OutOfMemory,
        "Memory (Allocation)" => MemorySource::Record { is_release: false },
        "Memory (Release)" => MemorySource::Record { is_release: true },
        _ => return None,
    })
}

/// Categories of calls in aiprof's recordings.
fn source_of_category(cat: &str) -> Option<MemorySource> {
    Some(match cat {
        "alloc" => MemorySource::Call { is_release: false },
        "free" => MemorySource::Call { is_release: true },
        _ => return None,
    })
}

fn fits(source: MemorySource, event: &Event) -> bool {
    match source {
        MemorySource::Torch | MemorySource::OutOfMemory => event.ph == Ph::Instant,
        MemorySource::Call { .. } | MemorySource::Record { .. } => event.is_slice(),
    }
}

enum FoundMemory<'t> {
    Change(MemoryPlace<'t>, MemoryChange),
    /// It is a change, but its size or device cannot be read.
    Unreadable,
    /// It is none: a call that failed, or without a size or an address.
    Nothing,
}

fn read<'t>(
    timeline: &'t Timeline,
    index: u32,
    event: &Event,
    source: MemorySource,
) -> FoundMemory<'t> {
    let text = |key: &str| timeline.arg(event, key);
    let signed = |key: &str| text(key).and_then(signed);
    let unsigned = |key: &str| text(key).and_then(unsigned);
    let track = timeline.track(event);
    let bytes = signed("bytes").or_else(|| signed("Bytes"));
    let size = bytes.map(i64::unsigned_abs).filter(|size| *size <= MOST);
    let address = |key| unsigned(key).filter(|address| *address != 0);
    let (area, change) = match source {
        MemorySource::Torch | MemorySource::OutOfMemory => {
            let (Some(size), Some(kind)) = (size, signed("Device Type")) else {
                return FoundMemory::Unreadable;
            };
            let total = unsigned("Total Allocated").filter(|total| *total <= MOST);
            let reserved = unsigned("Total Reserved");
            let change = MemoryChange {
                event: index,
                at: event.start,
                address: address("Addr"),
                bytes: size,
                is_release: bytes.is_some_and(i64::is_negative),
                is_failure: source == MemorySource::OutOfMemory,
                total,
                // Allocators that keep nothing write 0.
                reserved: reserved.filter(|all| *all <= MOST && *all > 0 && Some(*all) >= total),
            };
            (
                MemoryArea::Torch(kind, signed("Device Id").unwrap_or(-1)),
                change,
            )
        }
        MemorySource::Call { is_release } | MemorySource::Record { is_release } => {
            let address = address("address");
            let has_size = size.is_some_and(|size| size > 0);
            let is_known = address.is_some() && (is_release || has_size);
            if !is_known || text("failed") == Some("true") {
                return FoundMemory::Nothing;
            }
            let change = MemoryChange {
                event: index,
                // Memory is there when the call returns, and gone when it is called.
                at: if is_release { event.start } else { event.end() },
                address,
                bytes: size.unwrap_or(0),
                is_release,
                is_failure: false,
                total: None,
                reserved: None,
            };
            (area_of(timeline, event, source), change)
        }
    };
    FoundMemory::Change((track.job, track.rank, track.pid, area), change)
}

/// More bytes than any device has: a number beyond is none.
const MOST: u64 = 1 << 60;

/// The memory that a call or record is of.
fn area_of<'t>(timeline: &'t Timeline, event: &Event, source: MemorySource) -> MemoryArea<'t> {
    let text = |key: &str| timeline.arg(event, key);
    match source {
        MemorySource::Call { .. } => {
            let api = text("api").unwrap_or_default().trim_matches('"');
            MemoryArea::Runtime(api, side_of(timeline.name(event.name)))
        }
        _ => MemoryArea::Aiu(text("device").and_then(signed).unwrap_or(-1)),
    }
}

/// Whose memory is at an address of a process in a file, of a runtime.
type AddressSides<'t> = FxHashMap<(u32, Id, &'t str, u64), &'static str>;

/// The place of a change. Functions that free may take memory of any side: the side is that of
/// the allocation.
fn side_by_address<'t>(
    sides: &mut AddressSides<'t>,
    place: MemoryPlace<'t>,
    change: &MemoryChange,
) -> MemoryPlace<'t> {
    let (job, rank, process, MemoryArea::Runtime(api, side)) = place else {
        return place;
    };
    let key = (job, process, api, change.address.unwrap_or_default());
    let side = match change.is_release {
        true => sides.remove(&key).unwrap_or(side),
        false => {
            sides.insert(key, side);
            side
        }
    };
    (job, rank, process, MemoryArea::Runtime(api, side))
}

/// Whose memory a function of a runtime allocates or frees, by its name.
fn side_of(function: &str) -> &'static str {
    let has = |parts: &[&str]| parts.iter().any(|part| function.contains(part));
    if has(&["Host"]) {
        "host"
    } else if has(&["Managed", "Shared"]) {
        "shared"
    } else {
        "device"
    }
}

/// A number, which may stand between quotes.
fn signed(text: &str) -> Option<i64> {
    text.trim_matches('"').parse().ok()
}

/// A number that is not negative, also in hexadecimal digits, which may stand between quotes.
fn unsigned(text: &str) -> Option<u64> {
    let text = text.trim_matches('"');
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl MemoryArea<'_> {
    fn name(self) -> String {
        let numbered = |name: &str, number: i64| match number {
            0.. => format!("{name} {number}"),
            _ => name.to_owned(),
        };
        match self {
            Self::Torch(0, _) => "CPU".to_owned(),
            Self::Torch(kind, number) => {
                let known = usize::try_from(kind).ok().and_then(|kind| TYPES.get(kind));
                match known {
                    Some(name) => numbered(name, number),
                    None => numbered(&format!("device type {kind}, device"), number),
                }
            }
            Self::Runtime(api, side) => format!("{api} {side}"),
            Self::Aiu(number) => numbered("AIU", number),
        }
    }
}

/// `c10::DeviceType`, by number.
const TYPES: [&str; 21] = [
    "CPU",
    "CUDA",
    "MKLDNN",
    "OpenGL",
    "OpenCL",
    "IDEEP",
    "HIP",
    "FPGA",
    "MAIA",
    "XLA",
    "Vulkan",
    "Metal",
    "XPU",
    "MPS",
    "Meta",
    "HPU",
    "VE",
    "Lazy",
    "IPU",
    "MTIA",
    "PrivateUse1",
];
