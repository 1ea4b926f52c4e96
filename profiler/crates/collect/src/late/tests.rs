use super::program::MAX_SEARCHES;
use super::*;
use aiprof_model::probes::{ResultKind, ValueFormat, ValueInfo};
use std::{
    collections::BTreeMap,
    process::{Command, Stdio},
};

fn probe(id: u32, function: &str, kind: CallKind, at_exit: bool) -> Probe {
    Probe {
        id,
        table: "level-zero".into(),
        api: "Level Zero".into(),
        function: function.into(),
        kind,
        role: aiprof_model::probes::built_in_role(function),
        is_ioctl: false,
        values: vec![ValueInfo {
            name: role::KERNEL.into(),
            format: ValueFormat::Hex,
            at_exit,
        }],
        data: Vec::new(),
        result: ResultKind::Level0,
        has_exit: at_exit,
        layout: None,
    }
}

fn call(probe: u32, kernel: u64, flags: u16) -> Call {
    let mut values = [0; aiprof_common::MAX_VALUES];
    values[0] = kernel;
    Call {
        time_ns: 1,
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
        values,
    }
}

fn late() -> LateKernels {
    let mut late = LateKernels::default();
    late.probe(&probe(0, "zeKernelCreate", CallKind::Kernel, true));
    late.probe(&probe(
        1,
        "zeCommandListAppendLaunchKernel",
        CallKind::Launch,
        false,
    ));
    late.probe(&probe(2, "zeKernelDestroy", CallKind::Kernel, false));
    late
}

#[test]
fn only_kernels_not_seen_created_are_looked_for() {
    let mut late = late();
    late.call(&call(0, 0x100, aiprof_common::CALL_EXIT));
    late.call(&call(1, 0x100, 0));
    assert_eq!(late.unnamed(), 0);
    late.call(&call(1, 0x200, 0));
    late.call(&call(1, 0x200, 0));
    assert_eq!(late.unnamed(), 1);
    late.call(&call(2, 0x200, 0));
    assert_eq!(late.unnamed(), 0);
    let mut unread = call(1, 0x300, 0);
    unread.unread = 1;
    late.call(&unread);
    assert_eq!(late.unnamed(), 0);
}

#[test]
fn a_search_waits_for_more_kernels_and_is_not_repeated_for_ever() {
    let now = Instant::now();
    let mut late = late();
    // A handle that leads nowhere, in a process with little memory to search: this one
    // has all that the other tests have mapped.
    let mut program = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    late.call(&Call {
        pid: program.id(),
        ..call(1, 8, 0)
    });
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
    let mut late = late();
    let created = call(0, at(0), aiprof_common::CALL_EXIT);
    late.programs
        .entry(created.pid)
        .or_default()
        .creates(created.tid, "first_kernel".into());
    late.call(&created);
    late.call(&call(1, at(1), 0));
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
fn answer(read_ns: u64, names: &[(u64, &str)]) -> Answer {
    let names = names.iter().map(|(k, n)| (*k, (*n).to_owned())).collect();
    Answer {
        pid: std::process::id(),
        build: 1,
        read_ns,
        found: Found::Names(crate::inspect::path::Learned {
            path: None,
            names,
            is_proven: true,
        }),
    }
}

fn at(time_ns: u64, mut call: Call) -> Call {
    call.time_ns = time_ns;
    call
}

#[test]
fn a_name_read_before_the_handle_was_used_again_is_not_given() {
    let mut late = late();
    late.call(&at(10, call(1, 0x200, 0)));
    late.call(&at(10, call(1, 0x300, 0)));
    late.held
        .push(answer(20, &[(0x200, "old"), (0x300, "other")]));
    // Not all that happened until the reading is known yet.
    assert!(late.maintain(Instant::now(), 15, |_| 1).is_empty());
    late.call(&at(18, call(2, 0x200, 0)));
    late.call(&at(30, call(1, 0x200, 0)));
    let named = late.maintain(Instant::now(), 40, |_| 1);
    assert_eq!(named.len(), 1, "{named:?}");
    assert_eq!((named[0].kernel, named[0].name.as_str()), (0x300, "other"));
    // The handle is another kernel's since: a name read later is its name.
    late.held.push(answer(50, &[(0x200, "new")]));
    let named = late.maintain(Instant::now(), 60, |_| 1);
    assert_eq!(named[0].name, "new");
}

#[test]
fn what_was_foreseen_ends_with_the_kernel() {
    let mut late = late();
    let names = BTreeMap::from([(0x200, "first".to_owned()), (0x300, "second".to_owned())]);
    let class = crate::inspect::predict::Class {
        path: NamePath {
            hops: vec![8],
            name: 0,
        },
        names,
    };
    late.programs.entry(std::process::id()).or_default();
    late.held.push(Answer {
        pid: std::process::id(),
        build: 1,
        read_ns: 20,
        found: Found::Ahead(vec![class]),
    });
    late.maintain(Instant::now(), 20, |_| 1);
    late.call(&at(25, call(2, 0x300, 0)));
    late.call(&at(30, call(1, 0x200, 0)));
    late.call(&at(30, call(1, 0x300, 0)));
    let ready = late.take_ready();
    assert_eq!(ready.len(), 1, "{ready:?}");
    assert_eq!((ready[0].kernel, ready[0].name.as_str()), (0x200, "first"));
    assert_eq!(ready[0].time_ns, 30);
    assert_eq!(late.unnamed(), 1);
}

#[test]
fn a_handle_in_use_is_not_created_where_the_exit_was_not_seen() {
    let mut late = late();
    let flags = aiprof_common::CALL_EXIT | aiprof_common::CALL_LATE;
    late.call(&call(1, 0x200, 0));
    late.call(&call(0, 0x200, flags));
    assert_eq!(late.unnamed(), 1, "still unknown");
    late.call(&call(0, 0x300, flags));
    late.call(&call(1, 0x300, 0));
    assert_eq!(late.unnamed(), 1, "0x300 is known");
}
