//! The whole service, with objects in this process.

use super::*;
use crate::bpf::perf;
use aiprof_model::{
    probes::{DataFormat, DataInfo, ResultKind, ValueFormat, ValueInfo},
    profile::StallReason,
    wire::{KernelPlaced, PlacedBy, StallCount},
};

const CREATE: u32 = 0;
const LAUNCH: u32 = 1;
const DESTROY: u32 = 2;
const TELL: u32 = 3;
/// Where the driver puts code: not where anything of this process is.
const ISA: u64 = 0x8000_4000_0000;

fn probe(id: u32, function: &str, kind: CallKind, values: &[(&str, bool)]) -> Probe {
    let value = |&(name, at_exit): &(&str, bool)| ValueInfo {
        name: name.into(),
        format: ValueFormat::Hex,
        at_exit,
    };
    Probe {
        id,
        table: "level-zero".into(),
        api: "Level Zero".into(),
        function: function.into(),
        kind,
        role: aiprof_model::probes::built_in_role(function),
        is_ioctl: false,
        values: values.iter().map(value).collect(),
        data: vec![DataInfo {
            name: role::NAME.into(),
            format: DataFormat::Text,
        }],
        result: ResultKind::Level0,
        has_exit: true,
        layout: None,
    }
}

fn places() -> KernelPlaces {
    let mut places = KernelPlaces::default();
    let kernel = (role::KERNEL, false);
    for probe in [
        probe(
            CREATE,
            "zeKernelCreate",
            CallKind::Kernel,
            &[(role::KERNEL, true)],
        ),
        probe(
            LAUNCH,
            "zeCommandListAppendLaunchKernel",
            CallKind::Launch,
            &[kernel],
        ),
        probe(DESTROY, "zeKernelDestroy", CallKind::Kernel, &[kernel]),
        probe(
            TELL,
            "zexKernelGetBaseAddress",
            CallKind::Kernel,
            &[kernel, (role::BASE, true)],
        ),
    ] {
        places.probe(&probe);
    }
    places.stream(&DeviceStream {
        id: 3,
        name: String::new(),
        device: 0,
        card: 0,
        gt: 0,
        relative: true,
        cycles_per_sample: 0,
        replayed: None,
    });
    places
}

fn call(places: &mut KernelPlaces, probe: u32, values: [u64; 2], is_exit: bool) {
    let flags = if is_exit { aiprof_common::CALL_EXIT } else { 0 };
    flagged(places, probe, values, flags);
}

/// An exit that was not seen.
const LATE: u16 = aiprof_common::CALL_EXIT | aiprof_common::CALL_LATE;

fn flagged(places: &mut KernelPlaces, probe: u32, values: [u64; 2], flags: u16) {
    let mut all = [0; aiprof_common::MAX_VALUES];
    all[..2].copy_from_slice(&values);
    let call = Call {
        time_ns: perf::monotonic_ns(),
        cpu: 0,
        pid: std::process::id(),
        tid: 1,
        probe,
        library: 1,
        stack: 0,
        sp: 0x1000,
        around_ns: 0,
        result: 0,
        unread: 0,
        flags,
        values: all,
    };
    places.call(&call, || 42);
}

/// A kernel as a driver has it: a handle -> data -> allocation with the address.
/// They fill what malloc gives: nothing is left over of what was there before.
type Kernel = (Box<[u64; 13]>, Box<[u64; 25]>, Box<[u64; 7]>);

struct Driver {
    objects: Vec<Kernel>,
}

impl Driver {
    fn new(addresses: &[u64]) -> Self {
        let at = |object: *const u64| object as u64;
        let kernel = |&address: &u64| {
            let allocation = Box::new([1, 2, address, 3, 5, 7, 9]);
            let mut data = Box::new([1; 25]);
            data[9] = at(allocation.as_ptr());
            let mut handle = Box::new([1; 13]);
            handle[6] = at(data.as_ptr());
            (handle, data, allocation)
        };
        Self {
            objects: addresses.iter().map(kernel).collect(),
        }
    }

    fn handle(&self, at: usize) -> u64 {
        self.objects[at].0.as_ptr() as u64
    }

    fn create(&self, places: &mut KernelPlaces, at: usize) {
        self.created(places, at, aiprof_common::CALL_EXIT);
    }

    fn created(&self, places: &mut KernelPlaces, at: usize, flags: u16) {
        let name = format!("kernel of a test {at}");
        places.data(&CallData {
            time_ns: 1,
            pid: std::process::id(),
            tid: 1,
            probe: CREATE,
            tag: 0,
            unread: false,
            offset: 0,
            total: 0,
            bytes: name.into_bytes(),
        });
        flagged(places, CREATE, [self.handle(at), 0], flags);
    }
}

fn sample(places: &mut KernelPlaces, addresses: &[u64]) {
    let mut counts = [0; StallReason::ALL.len()];
    counts[0] = 50;
    let count = |address: &u64| StallCount {
        address: address & 0xffff_ffff,
        counts,
    };
    let window = StallWindow {
        stream: 3,
        counts: addresses.iter().map(count).collect(),
        ..StallWindow::default()
    };
    places.window(&window);
}

/// Places told until the end.
fn settle(places: &mut KernelPlaces) -> Vec<KernelPlaced> {
    let events = places.settle(Duration::from_secs(60));
    let placed = events.into_iter().filter_map(|event| match event {
        Event::KernelPlaced(placed) => Some(placed),
        _ => None,
    });
    placed.collect()
}

fn addresses(placed: &[KernelPlaced]) -> Vec<u64> {
    let mut all: Vec<u64> = placed.iter().map(|placed| placed.address).collect();
    all.sort_unstable();
    all
}

/// Reading happens some time after an event.
fn let_it_read() {
    std::thread::sleep(Duration::from_millis(300));
}

const STARTS: [u64; 3] = [ISA + 0x1000, ISA + 0x9000, ISA + 0x2_0000];

#[test]
fn kernels_are_placed_by_what_was_sampled() {
    let driver = Driver::new(&STARTS);
    let mut places = places();
    for at in 0..3 {
        driver.create(&mut places, at);
        call(&mut places, LAUNCH, [driver.handle(at), 0], false);
    }
    sample(&mut places, &STARTS.map(|start| start + 0x40));
    sample(&mut places, &STARTS.map(|start| start + 0x800));
    let_it_read();
    let placed = settle(&mut places);
    assert_eq!(addresses(&placed), STARTS);
    let handles = driver.objects.iter().map(|o| o.0.as_ptr() as u64);
    for (handle, start) in handles.zip(STARTS) {
        let at = placed.iter().find(|p| p.kernel == handle).unwrap();
        assert_eq!((at.address, at.by), (start, PlacedBy::Object));
    }
    // A kernel made later needs no samples.
    let late = Driver::new(&[ISA + 0x7_0000]);
    late.create(&mut places, 0);
    assert_eq!(addresses(&settle(&mut places)), [ISA + 0x7_0000]);
}

/// What was read where a handle was to be put is none as long as nobody uses it, and an
/// address that was read late is not told.
#[test]
fn what_was_not_seen_to_succeed_is_confirmed_by_a_later_call() {
    let driver = Driver::new(&STARTS);
    // No kernel: a call failed, and this lies there now.
    let other = Box::new([7_u64; 13]);
    let mut places = places();
    for at in 0..3 {
        driver.created(&mut places, at, LATE);
        assert!(places.kernels.is_empty());
    }
    flagged(&mut places, CREATE, [other.as_ptr() as u64, 0], LATE);
    flagged(&mut places, TELL, [driver.handle(0), STARTS[1]], LATE);
    for at in 0..3 {
        call(&mut places, LAUNCH, [driver.handle(at), 0], false);
    }
    assert_eq!(places.kernels.len(), 3);
    assert_eq!(places.assumed.len(), 1);
    sample(&mut places, &STARTS.map(|start| start + 0x40));
    sample(&mut places, &STARTS.map(|start| start + 0x800));
    let_it_read();
    let placed = settle(&mut places);
    assert_eq!(addresses(&placed), STARTS);
    for (at, start) in STARTS.into_iter().enumerate() {
        let found = placed.iter().find(|p| p.kernel == driver.handle(at));
        assert_eq!(found.map(|p| p.address), Some(start));
    }
}

#[test]
fn what_the_runtime_tells_places_the_others() {
    let driver = Driver::new(&STARTS);
    let mut places = places();
    (0..3).for_each(|at| driver.create(&mut places, at));
    call(&mut places, TELL, [driver.handle(1), STARTS[1]], true);
    let_it_read();
    // That one is placed by who sees the call.
    assert_eq!(addresses(&settle(&mut places)), [STARTS[0], STARTS[2]]);
}

#[test]
fn what_was_read_of_a_handles_next_kernel_is_not_believed() {
    let driver = Driver::new(&STARTS);
    let mut places = places();
    for at in 0..3 {
        driver.create(&mut places, at);
        call(&mut places, LAUNCH, [driver.handle(at), 0], false);
    }
    let_it_read();
    // It was there when it was read, then not any more.
    call(&mut places, DESTROY, [driver.handle(0), 0], false);
    sample(&mut places, &STARTS.map(|start| start + 0x40));
    sample(&mut places, &STARTS.map(|start| start + 0x800));
    assert_eq!(addresses(&settle(&mut places)), STARTS);
    // This one was destroyed before it can have been read.
    let late = Driver::new(&[ISA + 0x7_0000]);
    let begun = perf::monotonic_ns();
    late.create(&mut places, 0);
    let_it_read();
    places.send(Message::Gone {
        pid: std::process::id(),
        handle: late.handle(0),
        time_ns: begun + 1,
    });
    assert_eq!(settle(&mut places), []);
}

#[test]
fn nothing_is_started_without_kernels() {
    let mut places = places();
    sample(&mut places, &STARTS);
    assert!(places.maintain(1).is_empty());
    assert!(places.settle(Duration::ZERO).is_empty());
    assert!(places.threads.is_none());
    // Failed, or no handle.
    call(&mut places, CREATE, [0, 0], true);
    call(&mut places, DESTROY, [1, 0], false);
    assert!(places.threads.is_none());
}
