//! A copied heap, as a driver makes it, and what is learnt of it.

use super::{
    learn::{KernelCode, Learned, Sampled, Subject, learn},
    snapshot::{AddressPath, ObjectWord, Snapshot},
};
use crate::inspect::{Region, tests_memory::Copy};
use std::sync::Arc;

const BASE: u64 = 0x10_0000;
/// Where the driver puts code.
const ISA: u64 = 0x8000_1000_0000;
const SIZE: u64 = 0x400;

/// Driver objects: a handle -> immutable data -> allocation with the address.
struct Heap {
    bytes: Vec<u8>,
    /// Allocations have glibc's headers.
    headers: bool,
}

impl Heap {
    fn new(headers: bool) -> Self {
        Self {
            bytes: vec![0; 64],
            headers,
        }
    }

    fn alloc(&mut self, size: usize) -> u64 {
        let size = (size + 8).next_multiple_of(16);
        let at = self.bytes.len();
        self.bytes.resize(at + size, 0);
        // Chunks begin 8 bytes before what is handed out, which is 16-aligned.
        let chunk = BASE + at as u64;
        if self.headers {
            self.put(chunk + 8, size as u64 | 1);
        }
        chunk + 16
    }

    fn put(&mut self, at: u64, value: u64) {
        let at = (at - BASE) as usize;
        if self.bytes.len() < at + 8 {
            self.bytes.resize(at + 8, 0);
        }
        self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn get(&self, at: u64) -> u64 {
        let at = (at - BASE) as usize;
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().unwrap())
    }

    /// A kernel and its immutable data and allocation; `offset` is in the
    /// immutable data.
    fn kernel(&mut self, address: u64, offset: u64) -> Parts {
        let handle = self.alloc(96);
        let data = self.alloc(256);
        let allocation = self.alloc(64);
        self.put(handle + 48, data);
        self.put(data + 72, allocation);
        self.put(data + 80, offset);
        self.put(allocation + 16, address);
        Parts {
            handle,
            data,
            allocation,
        }
    }

    fn memory(&self) -> Copy {
        let mut bytes = self.bytes.clone();
        // The last chunk is followed by another.
        bytes.extend(17_u64.to_le_bytes());
        bytes.extend(17_u64.to_le_bytes());
        bytes.resize(bytes.len() + 8192, 0);
        Copy::new(BASE, bytes)
    }

    fn snapshots(&self, kernels: &[Parts]) -> Vec<Snapshot> {
        let memory = self.memory();
        let regions = memory.regions();
        let read = |kernel: &Parts| Snapshot::read(&memory, &regions, &regions, kernel.handle);
        kernels.iter().map(|kernel| read(kernel).unwrap()).collect()
    }
}

#[derive(Clone, Copy)]
struct Parts {
    handle: u64,
    data: u64,
    allocation: u64,
}

const NAMES: [&str; 4] = ["scale", "add", "copy", "dot"];

fn code(size: u64) -> Option<Arc<KernelCode>> {
    let code = KernelCode {
        size,
        ..KernelCode::default()
    };
    Some(Arc::new(code))
}

fn subjects(snapshots: &[Snapshot]) -> Vec<Subject<'_>> {
    let of = |(snapshot, name): (_, &'static &str)| Subject {
        pid: 7,
        snapshot,
        name: Some(*name),
        code: code(SIZE),
        launched: true,
        life: (1, u64::MAX),
        exact: None,
    };
    snapshots.iter().zip(&NAMES).map(of).collect()
}

/// Samples at offsets of each of these addresses; relative ones.
fn sampled(starts: &[u64], offsets: &[u64]) -> Vec<(Sampled, u64)> {
    let all = starts
        .iter()
        .flat_map(|start| offsets.iter().map(move |offset| start + offset));
    let relative = |address: u64| Sampled {
        relative: true,
        address: address & 0xffff_ffff,
    };
    all.map(|address| (relative(address), 10)).collect()
}

const OFFSETS: [u64; 3] = [0x40, 0x88, 0x3f0];

/// The addresses of all kernels by the path that was learnt.
fn addresses(learned: Option<&Learned>, snapshots: &[Snapshot]) -> Option<Vec<u64>> {
    let path = learned?.path;
    snapshots.iter().map(|snapshot| path.of(snapshot)).collect()
}

/// Kernels with allocations of their own.
fn separate(headers: bool, starts: &[u64]) -> (Heap, Vec<Parts>) {
    let mut heap = Heap::new(headers);
    let kernels = starts.iter().map(|&start| heap.kernel(start, 0)).collect();
    (heap, kernels)
}

fn starts(count: u64) -> Vec<u64> {
    (0..count).map(|i| ISA + 0x4_0000 + i * 0x1_0000).collect()
}

#[test]
fn samples_teach_the_address() {
    for headers in [false, true] {
        let starts = starts(3);
        let (heap, kernels) = separate(headers, &starts);
        let snapshots = heap.snapshots(&kernels);
        let learned = learn(&subjects(&snapshots), &sampled(&starts, &OFFSETS));
        assert_eq!(addresses(learned.as_ref(), &snapshots), Some(starts));
        let path = learned.unwrap();
        assert!(path.is_proven);
        // A kernel made later is read by it.
        let mut heap = heap;
        let late = heap.kernel(ISA + 0x99_0000, 0);
        let memory = heap.memory();
        let found = path.path.follow(&memory, &memory.regions(), late.handle);
        assert_eq!(found, Some(ISA + 0x99_0000), "headers: {headers}");
    }
}

#[test]
fn one_launched_kernel_of_several_suffices() {
    let starts = starts(3);
    let (heap, kernels) = separate(true, &starts);
    let snapshots = heap.snapshots(&kernels);
    let mut subjects = subjects(&snapshots);
    subjects[0].launched = false;
    subjects[2].launched = false;
    let learned = learn(&subjects, &sampled(&starts[1..2], &OFFSETS));
    assert_eq!(addresses(learned.as_ref(), &snapshots), Some(starts));
}

#[test]
fn absolute_addresses_are_compared_whole() {
    let starts = starts(2);
    let (heap, kernels) = separate(true, &starts);
    let snapshots = heap.snapshots(&kernels);
    let absolute = |high: u64| -> Vec<(Sampled, u64)> {
        let samples = sampled(&starts, &OFFSETS).into_iter();
        let whole = |(sample, count): (Sampled, u64)| {
            let address = high | sample.address;
            (
                Sampled {
                    relative: false,
                    address,
                },
                count,
            )
        };
        samples.map(whole).collect()
    };
    let learned = learn(&subjects(&snapshots), &absolute(ISA & !0xffff_ffff));
    assert_eq!(
        addresses(learned.as_ref(), &snapshots),
        Some(starts.clone())
    );
    assert_eq!(
        learn(&subjects(&snapshots), &absolute(0x7000_0000_0000)),
        None
    );
}

#[test]
fn what_explains_too_little_is_not_believed() {
    let starts = starts(2);
    let (heap, kernels) = separate(true, &starts);
    let snapshots = heap.snapshots(&kernels);
    let mut samples = sampled(&starts, &OFFSETS);
    // Somebody else's: 20 % of all.
    samples.push((
        Sampled {
            relative: true,
            address: 0x7777_0000,
        },
        15,
    ));
    assert_eq!(learn(&subjects(&snapshots), &samples), None);
    // A single address might be chance.
    assert_eq!(
        learn(&subjects(&snapshots), &sampled(&starts[..1], &[0x40])),
        None
    );
    // Nothing was launched.
    let mut idle = subjects(&snapshots);
    idle.iter_mut().for_each(|s| s.launched = false);
    assert_eq!(learn(&idle, &sampled(&starts, &OFFSETS)), None);
    assert_eq!(learn(&[], &samples), None);
}

/// Kernels of one module in a shared allocation.
fn pooled(count: u64) -> (Heap, Vec<Parts>, Vec<u64>) {
    let mut heap = Heap::new(true);
    let pool = ISA + 0x20_0000;
    let offsets: Vec<u64> = (0..count).map(|i| i * 0x600).collect();
    let kernels = offsets
        .iter()
        .map(|&offset| heap.kernel(pool, offset))
        .collect();
    (
        heap,
        kernels,
        offsets.iter().map(|offset| pool + offset).collect(),
    )
}

#[test]
fn an_offset_in_a_shared_allocation_is_added() {
    let (heap, kernels, starts) = pooled(3);
    let snapshots = heap.snapshots(&kernels);
    let learned = learn(&subjects(&snapshots), &sampled(&starts, &OFFSETS));
    assert_eq!(
        addresses(learned.as_ref(), &snapshots),
        Some(starts.clone())
    );
    assert!(learned.unwrap().path.offset.is_some());
    // Only the first is sampled, at the pool's begin: that the others lie elsewhere decides.
    let learned = learn(&subjects(&snapshots), &sampled(&starts[..1], &OFFSETS));
    assert_eq!(addresses(learned.as_ref(), &snapshots), Some(starts));
}

#[test]
fn the_begin_of_a_pool_is_no_kernels_address() {
    // All lead to the pool, and nothing shows where in it they are.
    let (mut heap, kernels, starts) = pooled(3);
    for kernel in &kernels {
        heap.put(kernel.data + 80, 0);
    }
    let snapshots = heap.snapshots(&kernels);
    assert_eq!(
        learn(&subjects(&snapshots), &sampled(&starts, &OFFSETS)),
        None
    );
    // The same of kernels whose sizes are not known.
    let mut unknown = subjects(&snapshots);
    unknown.iter_mut().for_each(|s| s.code = None);
    assert_eq!(learn(&unknown, &sampled(&starts, &OFFSETS)), None);
}

#[test]
fn the_pool_loses_against_the_offsets_though_no_size_is_known() {
    let (heap, kernels, starts) = pooled(3);
    let snapshots = heap.snapshots(&kernels);
    let mut unknown = subjects(&snapshots);
    for subject in &mut unknown {
        subject.code = None;
        subject.name = None;
    }
    let learned = learn(&unknown, &sampled(&starts, &OFFSETS));
    assert_eq!(addresses(learned.as_ref(), &snapshots), Some(starts));
}

/// Kernels whose entry points stand beside their addresses.
fn with_entries(payload: u64) -> (Heap, Vec<Parts>, Vec<u64>) {
    let starts = starts(3);
    let (mut heap, kernels) = separate(true, &starts);
    for kernel in &kernels {
        let address = heap.get(kernel.allocation + 16);
        heap.put(kernel.allocation + 8, address + payload);
    }
    (heap, kernels, starts)
}

#[test]
fn an_entry_point_is_no_begin() {
    const PAYLOAD: u64 = 0x80;
    let (heap, kernels, starts) = with_entries(PAYLOAD);
    let snapshots = heap.snapshots(&kernels);
    // No sample lies before the entry.
    let samples = sampled(&starts, &[0x100, 0x188, 0x3f0]);
    // Both explain everything, and nothing shows which is right.
    assert_eq!(learn(&subjects(&snapshots), &samples), None);
    // The compiler does.
    let code = KernelCode {
        size: SIZE,
        payload_entry: PAYLOAD,
        starts: Vec::new(),
    };
    let code = Some(Arc::new(code));
    let mut told = subjects(&snapshots);
    told.iter_mut().for_each(|s| s.code.clone_from(&code));
    let learned = learn(&told, &samples);
    assert_eq!(
        addresses(learned.as_ref(), &snapshots),
        Some(starts.clone())
    );
    // Or a sample before it.
    let samples = sampled(&starts, &[0x10, 0x100]);
    let learned = learn(&subjects(&snapshots), &samples);
    assert_eq!(addresses(learned.as_ref(), &snapshots), Some(starts));
}

#[test]
fn instructions_tell_a_shifted_address() {
    let (heap, kernels, starts) = with_entries(0x40);
    let snapshots = heap.snapshots(&kernels);
    // Two compacted instructions of 8 bytes, all others have 16.
    let mut begins = vec![0_u64; (SIZE as usize).div_ceil(512)];
    let mut at = 0;
    while at < SIZE {
        begins[at as usize / 512] |= 1 << (at / 8 % 64);
        at += if at == 0 || at == 0x88 { 8 } else { 16 };
    }
    let code = KernelCode {
        size: SIZE,
        payload_entry: 0,
        starts: begins,
    };
    let code = Some(Arc::new(code));
    let mut told = subjects(&snapshots);
    told.iter_mut().for_each(|s| s.code.clone_from(&code));
    // Up to 0x88 instructions begin at odd multiples of 8, behind at even ones.
    let learned = learn(&told, &sampled(&starts, &[0x58, 0xa0, 0x3f0]));
    assert_eq!(addresses(learned.as_ref(), &snapshots), Some(starts));
}

#[test]
fn a_size_beside_the_address_decides() {
    let (mut heap, kernels, starts) = with_entries(0x80);
    for kernel in &kernels {
        heap.put(kernel.allocation + 24, SIZE);
    }
    let snapshots = heap.snapshots(&kernels);
    let learned = learn(&subjects(&snapshots), &sampled(&starts, &[0x100, 0x188]));
    assert_eq!(addresses(learned.as_ref(), &snapshots), Some(starts));
}

#[test]
fn a_neighbours_memory_is_not_the_path() {
    // The allocation lies behind the immutable data, at the same distance for the
    // kernels at hand, but not for one that is made later.
    let starts = starts(3);
    let (mut heap, kernels) = separate(true, &starts);
    let snapshots = heap.snapshots(&kernels);
    let learned = learn(&subjects(&snapshots), &sampled(&starts, &OFFSETS)).unwrap();
    let handle = heap.alloc(96);
    let data = heap.alloc(256);
    heap.alloc(640);
    let allocation = heap.alloc(64);
    heap.put(handle + 48, data);
    heap.put(data + 72, allocation);
    heap.put(allocation + 16, ISA + 0x50_0000);
    let memory = heap.memory();
    let found = learned.path.follow(&memory, &memory.regions(), handle);
    assert_eq!(found, Some(ISA + 0x50_0000));
}

#[test]
fn what_the_runtime_told_teaches_at_once() {
    let starts = starts(3);
    let (heap, kernels) = separate(true, &starts);
    let snapshots = heap.snapshots(&kernels);
    let mut told = subjects(&snapshots);
    told[1].exact = Some(starts[1]);
    let learned = learn(&told, &[]);
    assert_eq!(
        addresses(learned.as_ref(), &snapshots),
        Some(starts.clone())
    );
    told[1].exact = Some(starts[1] + 64);
    assert_eq!(learn(&told, &[]), None);
}

#[test]
fn addresses_used_again_are_no_contradiction() {
    // Two kernels at one place, one after the other, and one elsewhere.
    let starts = vec![ISA + 0x4_0000, ISA + 0x4_0000, ISA + 0x5_0000];
    let (heap, kernels) = separate(true, &starts);
    let snapshots = heap.snapshots(&kernels);
    let mut both = subjects(&snapshots);
    assert_eq!(learn(&both, &sampled(&starts, &OFFSETS)), None);
    both[0].life = (1, 10);
    both[1].life = (11, u64::MAX);
    let learned = learn(&both, &sampled(&starts[1..], &OFFSETS));
    assert_eq!(addresses(learned.as_ref(), &snapshots), Some(starts));
}

#[test]
fn two_processes_may_use_the_same_addresses() {
    let starts = vec![ISA + 0x4_0000, ISA + 0x5_0000, ISA + 0x4_0000];
    let (heap, kernels) = separate(true, &starts);
    let snapshots = heap.snapshots(&kernels);
    let mut all = subjects(&snapshots);
    all[2].pid = 8;
    let learned = learn(&all, &sampled(&starts[..2], &OFFSETS));
    assert_eq!(addresses(learned.as_ref(), &snapshots), Some(starts));
}

#[test]
fn chance_is_not_believed() {
    // Words that only look like addresses, in a process with much code.
    let (mut heap, kernels) = separate(true, &starts(4));
    let mut seed = 1_u64;
    for kernel in &kernels {
        for word in 2..30 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            heap.put(
                kernel.data + 8 * word + 8,
                0x9000_0000_0000 | seed >> 20 & 0xffff_ffc0,
            );
        }
        heap.put(kernel.data + 72, kernel.allocation);
        heap.put(kernel.allocation + 16, 0);
    }
    let snapshots = heap.snapshots(&kernels);
    let mut big = subjects(&snapshots);
    big.iter_mut().for_each(|s| s.code = code(64 << 20));
    let samples = sampled(&[0x1234_0000], &OFFSETS);
    assert_eq!(learn(&big, &samples), None);
}

#[test]
fn own_addresses_and_garbage_end() {
    let mut heap = Heap::new(false);
    let a = heap.alloc(2048);
    for slot in (0..2048).step_by(8) {
        heap.put(a + slot, a + (slot * 7919) % 2048);
    }
    let memory = heap.memory();
    let regions = memory.regions();
    let read = |handle: u64| Snapshot::read(&memory, &regions, &regions, handle);
    let snapshot = read(a).unwrap();
    // All are addresses of the process's own.
    assert_eq!(snapshot.values().count(), 0);
    assert!(read(0).is_none());
    assert!(read(u64::MAX - 3).is_none());
    let slot = ObjectWord {
        way: super::snapshot::PointerWay::default(),
        word: 255,
    };
    let path = AddressPath {
        base: slot,
        offset: Some(slot),
    };
    assert_eq!(path.of(&snapshot), None);
    let none: [Region; 0] = [];
    assert_eq!(path.follow(&memory, &none, u64::MAX - 8), None);
}
