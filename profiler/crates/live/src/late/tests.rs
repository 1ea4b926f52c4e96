use super::program::MAX_SEARCHES;
use super::*;
use aiprof_model::wire::{Call, Event};
use aiprof_testkit::script::{LOADER, Script};
use std::{
    collections::BTreeMap,
    process::{Command, Stdio},
};

const CREATE: &str = "zeKernelCreate";
const LAUNCH: &str = "zeCommandListAppendLaunchKernel";

/// Late kernels behind a tracker, and the calls of a process.
struct Watch {
    script: Script,
    late: LateKernels,
}

impl Watch {
    fn new() -> Self {
        Self::of(std::process::id())
    }

    fn of(pid: u32) -> Self {
        let mut script = Script::new();
        script.pid = pid;
        Self {
            script,
            late: LateKernels::default(),
        }
    }

    /// Hands on what the tracker reported.
    fn pass(&mut self) {
        for event in self.script.told.kernels.drain(..) {
            self.late.kernel(&event);
        }
    }

    fn create(&mut self, kernel: u64) {
        self.script.kernel("a kernel", kernel);
        self.pass();
    }

    /// A creation of which the end is not seen.
    fn create_unseen(&mut self, kernel: u64) {
        self.script.enter(CREATE, LOADER, &[0xd0]);
        self.script.leave_unseen(CREATE, LOADER, &[kernel]);
        self.pass();
    }

    fn launch(&mut self, kernel: u64) {
        self.script.launch(0x11, kernel);
        self.pass();
    }

    fn launch_at(&mut self, time_ns: u64, kernel: u64) {
        self.script.now = time_ns - 10;
        self.launch(kernel);
    }

    fn destroy_at(&mut self, time_ns: u64, kernel: u64) {
        self.script.now = time_ns - 10;
        self.destroy(kernel);
    }

    fn destroy(&mut self, kernel: u64) {
        // Its end is not seen: the entry must do.
        self.script.enter("zeKernelDestroy", LOADER, &[kernel]);
        self.script.vanish();
        self.pass();
    }
}

#[test]
fn only_kernels_not_seen_created_are_looked_for() {
    let mut w = Watch::new();
    w.create(0x100);
    w.launch(0x100);
    assert_eq!(w.late.unnamed(), 0);
    w.launch(0x200);
    w.launch(0x200);
    assert_eq!(w.late.unnamed(), 1);
    w.destroy(0x200);
    assert_eq!(w.late.unnamed(), 0);
    w.launch(0x300);
    assert_eq!(w.late.unnamed(), 1);
    w.destroy(0x300);
    // The same once more, without the handle.
    let launched = |event: &&Event| matches!(event, Event::Call(call) if !call.is_exit() && call.probe == w.script.probe(LAUNCH).id);
    let last = w.script.events.iter().rfind(launched).cloned();
    let Some(Event::Call(call)) = last else {
        panic!("no launch");
    };
    w.script.now += 10;
    w.script.apply(&Event::Call(Call {
        time_ns: w.script.now,
        unread: u16::MAX,
        ..call
    }));
    w.pass();
    assert_eq!(w.late.unnamed(), 0);
}

#[test]
fn a_search_waits_for_more_kernels_and_is_not_repeated_for_ever() {
    let now = Instant::now();
    // A handle that leads nowhere, in a process with little memory to search: this one
    // has all that the other tests have mapped.
    let mut program = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let mut w = Watch::of(program.id());
    w.launch(8);
    let mut late = w.late;
    assert!(late.maintain(now, 0, |_| 1).is_empty());
    assert_eq!(late.programs.values().next().unwrap().searches, 0);
    let mut later = now;
    for _ in 0..30 {
        later += Duration::from_secs(3600);
        late.maintain(later, 0, |_| 1);
        late.settle(|_| 1, Duration::from_secs(20));
    }
    program.kill().unwrap();
    program.wait().unwrap();
    let program = late.programs.values().next().unwrap();
    assert_eq!(program.searches, MAX_SEARCHES);
    assert_eq!(program.unnamed(), 1);
}

/// An object with the name inside, as a driver's would be.
#[repr(C)]
struct Object {
    other: u64,
    name: *const u8,
    len: u64,
}

#[test]
fn what_one_kernel_teaches_names_the_other() {
    let texts = [c"first_kernel", c"second_kernel"];
    let objects: Vec<Box<Object>> = texts
        .iter()
        .map(|text| {
            Box::new(Object {
                other: 7,
                name: text.as_ptr().cast(),
                len: text.to_bytes().len() as u64,
            })
        })
        .collect();
    let at = |i: usize| std::ptr::from_ref::<Object>(&objects[i]) as u64;
    let mut w = Watch::new();
    w.script.kernel("first_kernel", at(0));
    w.launch(at(1));
    let mut late = w.late;
    let found = late.settle(|_| 1, Duration::from_secs(20));
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].kernel, found[0].name.as_str()),
        (at(1), "second_kernel")
    );
    assert_eq!(late.unnamed(), 0);
    assert_eq!(objects[1].other, 7);
}

/// The answer of a search that was read at a time.
fn answer(read_ns: u64, names: &[(u64, &str)]) -> SearchAnswer {
    let names = names.iter().map(|(k, n)| (*k, (*n).to_owned())).collect();
    SearchAnswer {
        pid: std::process::id(),
        build: 1,
        read_ns,
        found: LateAnswer::Names(crate::inspect::path::Learned {
            path: None,
            names,
            is_proven: true,
        }),
    }
}

#[test]
fn a_name_read_before_the_handle_was_used_again_is_not_given() {
    let mut w = Watch::new();
    w.launch_at(100, 0x200);
    w.launch_at(120, 0x300);
    w.late
        .held
        .push(answer(200, &[(0x200, "old"), (0x300, "other")]));
    // Not all that happened until the reading is known yet.
    assert!(w.late.maintain(Instant::now(), 150, |_| 1).is_empty());
    w.destroy_at(180, 0x200);
    w.launch_at(300, 0x200);
    let named = w.late.maintain(Instant::now(), 400, |_| 1);
    assert_eq!(named.len(), 1, "{named:?}");
    assert_eq!((named[0].kernel, named[0].name.as_str()), (0x300, "other"));
    // The handle is another kernel's since: a name read later is its name.
    w.late.held.push(answer(500, &[(0x200, "new")]));
    let named = w.late.maintain(Instant::now(), 600, |_| 1);
    assert_eq!(named[0].name, "new");
}

#[test]
fn what_was_foreseen_ends_with_the_kernel() {
    let mut w = Watch::new();
    let names = BTreeMap::from([(0x200, "first".to_owned()), (0x300, "second".to_owned())]);
    let class = crate::inspect::predict::ObjectClass {
        path: NamePath {
            hops: vec![8],
            name: 0,
        },
        names,
    };
    w.late.programs.entry(std::process::id()).or_default();
    w.late.held.push(SearchAnswer {
        pid: std::process::id(),
        build: 1,
        read_ns: 20,
        found: LateAnswer::Ahead(vec![class]),
    });
    w.late.maintain(Instant::now(), 20, |_| 1);
    w.destroy_at(25, 0x300);
    w.launch_at(30, 0x200);
    w.launch_at(50, 0x300);
    let ready = w.late.take_ready();
    assert_eq!(ready.len(), 1, "{ready:?}");
    assert_eq!((ready[0].kernel, ready[0].name.as_str()), (0x200, "first"));
    assert_eq!(ready[0].time_ns, 30);
    assert_eq!(w.late.unnamed(), 1);
}

#[test]
fn a_handle_in_use_is_not_created_where_the_exit_was_not_seen() {
    let mut w = Watch::new();
    w.launch(0x200);
    w.create_unseen(0x200);
    assert_eq!(w.late.unnamed(), 1, "still unknown");
    w.create_unseen(0x300);
    w.launch(0x300);
    assert_eq!(w.late.unnamed(), 1, "0x300 is known");
}
