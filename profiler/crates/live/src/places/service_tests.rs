//! The whole service, with objects in this process.

use super::*;
use crate::bpf::perf;
use aiprof_model::{
    probes::{CallKind, role},
    profile::StallReason,
    wire::{KernelPlaced, PlacedBy, StallCount},
};
use aiprof_record::correlate::TrackerLimits;
use aiprof_testkit::script::{self, LOADER, Script};

const CREATE: &str = "zeKernelCreate";
const LAUNCH: &str = "zeCommandListAppendLaunchKernel";
const DESTROY: &str = "zeKernelDestroy";
const LOCATE: &str = "zexKernelGetBaseAddress";
/// Where the driver puts code: not where anything of this process is.
const ISA: u64 = 0x8000_4000_0000;

/// Kernel places behind a tracker, and the calls of this process.
struct Watch {
    script: Script,
    places: KernelPlaces,
}

fn places() -> Watch {
    let mut probes = script::probes();
    let id = u32::try_from(probes.len()).unwrap();
    let values = [role::KERNEL, ">base"];
    probes.push(script::probe(
        id,
        "Level Zero",
        LOCATE,
        CallKind::Kernel,
        &values,
    ));
    let mut script = Script::with(TrackerLimits::default(), probes);
    script.pid = std::process::id();
    let mut places = KernelPlaces::default();
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
    Watch { script, places }
}

impl Watch {
    /// Hands on what the tracker reported.
    fn pass(&mut self) {
        for event in self.script.told.kernels.drain(..) {
            self.places.kernel(&event, || 42);
        }
    }

    /// A call now, with the values of its entry and of its exit.
    fn call(&mut self, function: &str, values: &[u64], out: &[u64]) {
        self.script.now = perf::monotonic_ns();
        self.script.call(function, values, out);
        self.pass();
    }

    /// The same, where the exit is not seen: the values are what was found later.
    fn unseen(&mut self, function: &str, values: &[u64], out: &[u64]) {
        self.script.now = perf::monotonic_ns();
        self.script.enter(function, LOADER, values);
        self.script.leave_unseen(function, LOADER, out);
        self.pass();
    }

    /// A kernel of this name is created.
    fn create(&mut self, name: &str, handle: u64, is_seen: bool) {
        self.script.now = perf::monotonic_ns();
        self.script.enter(CREATE, LOADER, &[0xd0]);
        self.script.data(CREATE, 0, name.as_bytes(), 0);
        if is_seen {
            self.script.leave(CREATE, LOADER, 0, &[handle]);
        } else {
            self.script.leave_unseen(CREATE, LOADER, &[handle]);
        }
        self.pass();
    }

    fn launch(&mut self, kernel: u64) {
        self.call(LAUNCH, &[0x11, kernel], &[]);
    }
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

    fn create(&self, w: &mut Watch, at: usize) {
        w.create(&format!("kernel of a test {at}"), self.handle(at), true);
    }

    fn create_unseen(&self, w: &mut Watch, at: usize) {
        w.create(&format!("kernel of a test {at}"), self.handle(at), false);
    }
}

fn sample(w: &mut Watch, addresses: &[u64]) {
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
    w.places.window(&window);
}

/// Places reported until the end.
fn settle(w: &mut Watch) -> Vec<KernelPlaced> {
    let events = w.places.settle(Duration::from_secs(60));
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
    let mut w = places();
    for at in 0..3 {
        driver.create(&mut w, at);
        w.launch(driver.handle(at));
    }
    sample(&mut w, &STARTS.map(|start| start + 0x40));
    sample(&mut w, &STARTS.map(|start| start + 0x800));
    let_it_read();
    let placed = settle(&mut w);
    assert_eq!(addresses(&placed), STARTS);
    let handles = driver.objects.iter().map(|o| o.0.as_ptr() as u64);
    for (handle, start) in handles.zip(STARTS) {
        let at = placed.iter().find(|p| p.kernel == handle).unwrap();
        assert_eq!((at.address, at.by), (start, PlacedBy::Object));
    }
    // A kernel made later needs no samples.
    let late = Driver::new(&[ISA + 0x7_0000]);
    late.create(&mut w, 0);
    assert_eq!(addresses(&settle(&mut w)), [ISA + 0x7_0000]);
}

/// A handle whose creation was not seen to succeed is no kernel until a call uses it. An address
/// that was read late is not used.
#[test]
fn what_was_not_seen_to_succeed_is_confirmed_by_a_later_call() {
    let driver = Driver::new(&STARTS);
    // No kernel: a call failed, and this lies there now.
    let other = Box::new([7_u64; 13]);
    let mut w = places();
    for at in 0..3 {
        driver.create_unseen(&mut w, at);
        assert!(w.places.kernels.is_empty());
    }
    w.create("no kernel", other.as_ptr() as u64, false);
    w.unseen(LOCATE, &[driver.handle(0)], &[STARTS[1]]);
    for at in 0..3 {
        w.launch(driver.handle(at));
    }
    assert_eq!(w.places.kernels.len(), 3);
    assert_eq!(w.places.assumed.len(), 1);
    sample(&mut w, &STARTS.map(|start| start + 0x40));
    sample(&mut w, &STARTS.map(|start| start + 0x800));
    let_it_read();
    let placed = settle(&mut w);
    assert_eq!(addresses(&placed), STARTS);
    for (at, start) in STARTS.into_iter().enumerate() {
        let found = placed.iter().find(|p| p.kernel == driver.handle(at));
        assert_eq!(found.map(|p| p.address), Some(start));
    }
}

#[test]
fn what_the_runtime_tells_places_the_others() {
    let driver = Driver::new(&STARTS);
    let mut w = places();
    (0..3).for_each(|at| driver.create(&mut w, at));
    w.call(LOCATE, &[driver.handle(1)], &[STARTS[1]]);
    let_it_read();
    // That one is placed by who sees the call.
    assert_eq!(addresses(&settle(&mut w)), [STARTS[0], STARTS[2]]);
}

#[test]
fn what_was_read_of_a_handles_next_kernel_is_not_believed() {
    let driver = Driver::new(&STARTS);
    let mut w = places();
    for at in 0..3 {
        driver.create(&mut w, at);
        w.launch(driver.handle(at));
    }
    let_it_read();
    // It was there when it was read, then not any more.
    w.call(DESTROY, &[driver.handle(0)], &[]);
    sample(&mut w, &STARTS.map(|start| start + 0x40));
    sample(&mut w, &STARTS.map(|start| start + 0x800));
    assert_eq!(addresses(&settle(&mut w)), STARTS);
    // This one was destroyed before it can have been read.
    let late = Driver::new(&[ISA + 0x7_0000]);
    let begun = perf::monotonic_ns();
    late.create(&mut w, 0);
    let_it_read();
    w.places.send(PlaceMessage::Gone {
        pid: std::process::id(),
        handle: late.handle(0),
        time_ns: begun + 1,
    });
    assert_eq!(settle(&mut w), []);
}

#[test]
fn nothing_is_started_without_kernels() {
    let mut w = places();
    sample(&mut w, &STARTS);
    assert!(w.places.maintain(1).is_empty());
    assert!(w.places.settle(Duration::ZERO).is_empty());
    assert!(w.places.threads.is_none());
    // Failed, or no handle.
    w.call(CREATE, &[0xd0], &[0]);
    w.call(DESTROY, &[1], &[]);
    assert!(w.places.threads.is_none());
}
