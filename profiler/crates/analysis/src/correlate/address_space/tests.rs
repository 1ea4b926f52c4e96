//! Address spaces against a model that keeps every address by itself.

use super::*;
use crate::correlate::{CallSink, FinishedCall, Launch, Tracker};
use aiprof_common::{CALL_EXIT, MAX_VALUES};
use aiprof_model::{
    probes::{Probe, driver_table::DriverTables},
    wire::{Call, CallData, Event, ProcessEvent, ProcessEventKind},
};
use std::collections::HashMap;

/// Addresses of the model.
const SIZE: usize = 200;

/// What each address is bound to: the object and where in it.
type Model = Vec<Option<(u64, u64)>>;

fn model() -> Model {
    vec![None; SIZE]
}

fn object(start: u64, last: u64, handle: u64, offset: u64) -> Bound {
    Bound {
        start,
        last,
        backing: Backing::Object { handle, offset },
    }
}

fn set(model: &mut Model, start: u64, last: u64, to: Option<(u64, u64)>) {
    for at in start..=last {
        model[at as usize] = to.map(|(handle, offset)| (handle, offset + (at - start)));
    }
}

/// Every address means the same, ranges are in order and do not overlap.
fn check(space: Option<&AddressSpace>, model: &Model) {
    let empty = AddressSpace::default();
    let space = space.unwrap_or(&empty);
    for (at, expected) in model.iter().enumerate() {
        let found = space.find(at as u64).map(|bound| {
            assert!((bound.start..=bound.last).contains(&(at as u64)));
            match bound.backing.at(at as u64 - bound.start) {
                Backing::Object { handle, offset } => (handle, offset),
                other => panic!("{other:?}"),
            }
        });
        assert_eq!(found, *expected, "at {at}");
    }
    let mut next = 0;
    for bound in space.iter() {
        assert!(
            bound.start >= next && bound.last >= bound.start,
            "{bound:?}"
        );
        next = bound.last + 1;
    }
}

/// Numbers without a pattern.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit.max(1)
    }

    fn range(&mut self) -> (u64, u64) {
        let start = self.below(SIZE as u64);
        (start, start + self.below((SIZE as u64 - start).min(60)))
    }
}

#[test]
fn random_binds_and_unbinds_are_as_in_the_model() {
    for seed in 0..50 {
        let (mut random, mut model) = (Random(seed), model());
        let mut space = AddressSpace::default();
        for step in 0..200 {
            let (start, last) = random.range();
            let handle = 1 + random.below(5);
            match random.below(20) {
                0 => {
                    space.unbind_object(handle);
                    for at in &mut model {
                        at.take_if(|(known, _)| *known == handle);
                    }
                }
                1..8 => {
                    assert_eq!(space.unbind(start, last, true), 0);
                    set(&mut model, start, last, None);
                }
                _ => {
                    let offset = 1000 * step;
                    assert_eq!(space.bind(object(start, last, handle, offset), true), 0);
                    set(&mut model, start, last, Some((handle, offset)));
                }
            }
            check(Some(&space), &model);
        }
    }
}

#[test]
fn the_ends_of_the_space() {
    let mut space = AddressSpace::default();
    space.bind(object(0, u64::MAX, 1, 0), true);
    space.bind(object(u64::MAX, u64::MAX, 2, 0), true);
    space.unbind(0, 0, true);
    let ranges: Vec<_> = space.iter().map(|b| (b.start, b.last)).collect();
    assert_eq!(ranges, [(1, u64::MAX - 1), (u64::MAX, u64::MAX)]);
    assert_eq!(space.find(u64::MAX), Some(object(u64::MAX, u64::MAX, 2, 0)));
    assert_eq!(space.find(0), None);
    // Nothing is bound from a last address before the first.
    space.bind(object(5, 4, 9, 0), true);
    assert_eq!(space.len(), 2);
    // Where a range may not be cut in two, its upper part is dropped.
    assert_eq!(space.unbind(10, 20, false), 1);
    assert_eq!(space.find(21), None);
    assert_eq!(space.find(9).map(|b| b.last), Some(9));
}

/// Feeds ioctls of real tables to a tracker.
struct Feed {
    tracker: Tracker,
    probes: HashMap<String, Probe>,
    time: u64,
}

struct Nobody;

impl CallSink for Nobody {
    fn call(&mut self, _: &FinishedCall) {}

    fn launch(&mut self, _: &Launch) {}
}

/// Stands for the number of elements, which has no name of its own.
const COUNT: &str = "#count";
const PID: u32 = 7;
const DEVICE: u32 = 0xe200_0080;

impl Feed {
    fn new(table: &str) -> Self {
        let tables = DriverTables::built_in();
        let table = tables.get(table).unwrap().clone();
        let (mut tracker, mut probes) = (Tracker::default(), HashMap::new());
        for (id, (from, ioctl)) in (0..).zip(tables.commands(&table)) {
            let mut probe = from.compile(&ioctl).probe;
            probe.id = id;
            tracker.apply(&Event::Probe(probe.clone()), &mut Nobody);
            probes.insert(ioctl.name.clone(), probe);
        }
        Self {
            tracker,
            probes,
            time: 0,
        }
    }

    fn event(&mut self, event: &Event) {
        self.tracker.apply(event, &mut Nobody);
    }

    /// An ioctl that returns `result`; those values that are not given were not read,
    /// and of one that failed, none that is read at the exit.
    fn ioctl(&mut self, name: &str, values: &[(&str, u64)], data: Option<Vec<u8>>, result: i64) {
        let probe = self.probes[name].clone();
        let given = |at_exit_too: bool| {
            let (mut all, mut unread) = ([0; MAX_VALUES], (1 << MAX_VALUES) - 1);
            for (name, value) in values {
                let slot = match *name {
                    COUNT => usize::from(probe.layout.as_ref().unwrap().arrays[0].count),
                    name => probe.slot(name).unwrap_or_else(|| panic!("no {name}")),
                };
                if at_exit_too || !probe.values[slot].at_exit {
                    all[slot] = *value;
                    unread &= !(1 << slot);
                }
            }
            (all, unread)
        };
        self.time += 10;
        let (values, unread) = given(false);
        let entry = Call {
            time_ns: self.time,
            cpu: 0,
            pid: PID,
            tid: PID,
            probe: probe.id,
            library: DEVICE,
            stack: 0,
            sp: 0,
            around_ns: 0,
            result: 0,
            unread,
            flags: 0,
            values,
        };
        self.event(&Event::Call(entry.clone()));
        if let Some(bytes) = data {
            self.event(&Event::CallData(CallData {
                time_ns: self.time,
                pid: PID,
                tid: PID,
                probe: probe.id,
                tag: 0,
                unread: false,
                offset: 0,
                total: bytes.len() as u64,
                bytes,
            }));
        }
        let (values, unread) = given(result >= 0);
        self.event(&Event::Call(Call {
            time_ns: self.time + 5,
            around_ns: entry.time_ns,
            result: result as u64,
            flags: CALL_EXIT,
            values,
            unread,
            ..entry
        }));
    }

    /// The address space, once all that was fed has been taken in.
    fn space(&mut self, vm: Option<u64>) -> Option<AddressSpace> {
        self.process(PID + 1, ProcessEventKind::Exit);
        let wanted = SpaceId {
            pid: PID,
            device: DEVICE,
            vm,
        };
        let mut spaces = self.tracker.address_spaces().of(PID);
        spaces.find(|(id, _)| *id == wanted).map(|(_, s)| s.clone())
    }

    fn process(&mut self, pid: u32, kind: ProcessEventKind) {
        let time_ns = self.time + 6;
        let tid = pid;
        self.event(&Event::Process(ProcessEvent {
            time_ns,
            pid,
            tid,
            kind,
        }));
    }
}

const EFAULT: i64 = -14;

/// An element of xe's array of bindings (include/uapi/drm/xe_drm.h).
fn xe_element(op: u32, handle: u32, offset: u64, address: u64, range: u64) -> Vec<u8> {
    let mut bytes = vec![0; 80];
    bytes[8..12].copy_from_slice(&handle.to_le_bytes());
    bytes[16..24].copy_from_slice(&offset.to_le_bytes());
    bytes[24..32].copy_from_slice(&range.to_le_bytes());
    bytes[32..40].copy_from_slice(&address.to_le_bytes());
    bytes[40..44].copy_from_slice(&op.to_le_bytes());
    bytes
}

/// Random VM_BINDs, single and in arrays, some of which fail, through the built-in
/// table and the tracker.
#[test]
fn random_xe_binds_are_as_in_the_model() {
    for seed in 100..120 {
        let (mut random, mut feed) = (Random(seed), Feed::new("xe"));
        let mut models: HashMap<u64, Model> = HashMap::new();
        for step in 0..150 {
            let vm = 1 + random.below(3);
            let failed = random.below(4) == 0;
            let result = if failed { EFAULT } else { 0 };
            match random.below(20) {
                0 => {
                    feed.ioctl("DRM_IOCTL_XE_VM_DESTROY", &[("vm", vm)], None, result);
                    if !failed {
                        models.remove(&vm);
                    }
                }
                1 => {
                    feed.ioctl("DRM_IOCTL_XE_VM_CREATE", &[("vm", vm)], None, result);
                    if !failed {
                        models.insert(vm, model());
                    }
                }
                _ => {
                    let count = 1 + random.below(4);
                    let mut after = models.entry(vm).or_insert_with(model).clone();
                    let mut elements = Vec::new();
                    for _ in 0..count {
                        let (start, last) = random.range();
                        let (handle, offset) = (1 + random.below(5), 1000 * step);
                        // Map, unmap, unmap all of an object, prefetch.
                        let op = [0, 0, 1, 3, 4][random.below(5) as usize];
                        match op {
                            0 => set(&mut after, start, last, Some((handle, offset))),
                            1 => set(&mut after, start, last, None),
                            3 => after.iter_mut().for_each(|at| {
                                at.take_if(|(known, _)| *known == handle);
                            }),
                            _ => {}
                        }
                        elements.push((op, handle, offset, start, last - start + 1));
                    }
                    xe_bind(&mut feed, vm, &elements, result);
                    if !failed {
                        models.insert(vm, after);
                    }
                }
            }
            for vm in 1..=3 {
                let known = models.entry(vm).or_insert_with(model).clone();
                check(feed.space(Some(vm)).as_ref(), &known);
            }
        }
        assert_eq!(feed.tracker.take_losses(), Losses::default());
        feed.process(PID, ProcessEventKind::Exit);
        assert_eq!(feed.tracker.address_spaces().of(PID).count(), 0);
        assert!(feed.tracker.is_idle());
    }
}

type Element = (u32, u64, u64, u64, u64);

fn xe_bind(feed: &mut Feed, vm: u64, elements: &[Element], result: i64) {
    let name = "DRM_IOCTL_XE_VM_BIND";
    let mut values = vec![("vm", vm), (COUNT, elements.len() as u64)];
    if let [(op, handle, offset, start, bytes)] = elements {
        values.extend([
            ("op", u64::from(*op)),
            ("object", *handle),
            ("offset", *offset),
            ("address", *start),
            ("bytes", *bytes),
            ("flags", 0),
        ]);
        return feed.ioctl(name, &values, None, result);
    }
    let data = elements
        .iter()
        .flat_map(|(op, handle, offset, start, bytes)| {
            xe_element(*op, *handle as u32, *offset, *start, *bytes)
        });
    feed.ioctl(name, &values, Some(data.collect()), result);
}

fn ranges(space: Option<AddressSpace>) -> Vec<Bound> {
    space.iter().flat_map(AddressSpace::iter).collect()
}

#[test]
fn amdgpu_has_one_space_and_frees_what_is_closed() {
    let mut feed = Feed::new("amdgpu");
    let va = |feed: &mut Feed, op, handle, address, bytes| {
        let values = [
            ("op", op),
            ("object", handle),
            ("address", address),
            ("offset", 0),
            ("bytes", bytes),
            ("flags", 0),
        ];
        feed.ioctl("DRM_IOCTL_AMDGPU_GEM_VA", &values, None, 0);
    };
    va(&mut feed, 1, 4, 0x1000, 0x4000);
    va(&mut feed, 4, 5, 0x2000, 0x1000);
    va(&mut feed, 3, 0, 0x4000, 0x1000);
    assert_eq!(
        ranges(feed.space(None)),
        [
            object(0x1000, 0x1fff, 4, 0),
            object(0x2000, 0x2fff, 5, 0),
            object(0x3000, 0x3fff, 4, 0x2000),
        ]
    );
    feed.ioctl("DRM_IOCTL_GEM_CLOSE", &[("object", 4)], None, 0);
    va(&mut feed, 2, 5, 0x2000, 0x1000);
    assert_eq!(ranges(feed.space(None)), []);
}

#[test]
fn vfio_binds_the_program_s_memory() {
    let mut feed = Feed::new("vfio");
    let map = |feed: &mut Feed, pointer, address, bytes, result| {
        let values = [
            ("flags", 3),
            ("pointer", pointer),
            ("address", address),
            ("bytes", bytes),
        ];
        feed.ioctl("VFIO_IOMMU_MAP_DMA", &values, None, result);
    };
    let unmap = |feed: &mut Feed, flags, address, bytes| {
        let values = [("flags", flags), ("address", address), ("bytes", bytes)];
        feed.ioctl("VFIO_IOMMU_UNMAP_DMA", &values, None, 0);
    };
    map(&mut feed, 0x7000, 0x1000, 0x1000, 0);
    map(&mut feed, 0x9000, 0x3000, 0x1000, 0);
    // It exists: nothing changes.
    map(&mut feed, 0xf000, 0x1000, 0x1000, -17);
    // Only the program's address would change.
    unmap(&mut feed, 4, 0x1000, 0x1000);
    let bound = |start, last, address| Bound {
        start,
        last,
        backing: Backing::Program { address },
    };
    let both = [bound(0x1000, 0x1fff, 0x7000), bound(0x3000, 0x3fff, 0x9000)];
    assert_eq!(ranges(feed.space(None)), both);
    unmap(&mut feed, 0, 0x1000, 0x1000);
    assert_eq!(ranges(feed.space(None)), both[1..]);
    unmap(&mut feed, 2, 0, 0);
    assert_eq!(ranges(feed.space(None)), []);
}

#[test]
fn kfd_binds_allocations_on_devices() {
    let mut feed = Feed::new("kfd");
    let handle = 0x1234_0000_0001;
    let values = [
        ("address", 0x10_0000),
        ("bytes", 0x2000),
        ("object", handle),
    ];
    feed.ioctl("AMDKFD_IOC_ALLOC_MEMORY_OF_GPU", &values, None, 0);
    let devices =
        |numbers: &[u32]| -> Vec<u8> { numbers.iter().flat_map(|n| n.to_le_bytes()).collect() };
    let values = [("object", handle), ("count", 2), ("done", 2)];
    let both = Some(devices(&[51, 52]));
    feed.ioctl("AMDKFD_IOC_MAP_MEMORY_TO_GPU", &values, both, 0);
    let bound = [object(0x10_0000, 0x10_1fff, handle, 0)];
    assert_eq!(ranges(feed.space(Some(51))), bound);
    assert_eq!(ranges(feed.space(Some(52))), bound);
    let values = [("object", handle), ("count", 1), ("done", 1)];
    let one = Some(devices(&[51]));
    feed.ioctl("AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU", &values, one, 0);
    assert_eq!(ranges(feed.space(Some(51))), []);
    assert_eq!(ranges(feed.space(Some(52))), bound);
    feed.ioctl(
        "AMDKFD_IOC_FREE_MEMORY_OF_GPU",
        &[("object", handle)],
        None,
        0,
    );
    assert_eq!(ranges(feed.space(Some(52))), []);
    // What was never allocated is a loss.
    let values = [("object", 9), ("count", 1), ("done", 1)];
    feed.ioctl(
        "AMDKFD_IOC_MAP_MEMORY_TO_GPU",
        &values,
        Some(devices(&[51])),
        0,
    );
    feed.space(None);
    let losses = feed.tracker.take_losses();
    assert_eq!(losses.get(LossKind::BindingsRefused), 1);
}

#[test]
fn exec_and_a_new_process_begin_with_nothing() {
    for kind in [
        ProcessEventKind::Exec { comm: "x".into() },
        ProcessEventKind::Fork { parent: 1 },
    ] {
        let mut feed = Feed::new("xe");
        xe_bind(&mut feed, 1, &[(0, 1, 0, 0, 10)], 0);
        assert_eq!(ranges(feed.space(Some(1))).len(), 1);
        feed.process(PID, kind);
        assert_eq!(feed.space(Some(1)), None);
    }
}

#[test]
fn room_is_bounded_and_what_is_refused_is_counted() {
    let mut spaces = AddressSpaces::with_room(20);
    let mut losses = Losses::default();
    let id = |vm| SpaceId {
        pid: 1,
        device: 2,
        vm: Some(vm),
    };
    for vm in 0..30 {
        for at in 0..30 {
            let bound = object(10 * at, 10 * at + 9, 1, 0);
            spaces.change(id(vm), &Change::Bind(bound), &mut losses);
            spaces.change(
                id(vm),
                &Change::Unbind(10 * at + 3, 10 * at + 4),
                &mut losses,
            );
            let held: usize = spaces.of(1).map(|(_, space)| 1 + space.len()).sum();
            assert_eq!(held, spaces.used);
            assert!(held <= 20, "{held}");
        }
    }
    assert!(losses.get(LossKind::BindingsRefused) > 100);
    spaces.forget(1);
    assert!(spaces.is_idle());
}
