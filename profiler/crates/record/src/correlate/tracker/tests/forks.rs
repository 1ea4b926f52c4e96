//! Forked processes: what they have of their parents.

use crate::correlate::script::Script;
use aiprof_model::wire::ProcessEventKind;

const LIST: u64 = 0x31;
const QUEUE: u64 = 0x51;

fn process(s: &mut Script, pid: u32) {
    (s.pid, s.tid) = (pid, pid);
}

fn fork(s: &mut Script, parent: u32, child: u32) {
    process(s, child);
    s.process(child, ProcessEventKind::Fork { parent });
}

#[test]
fn a_child_has_the_kernels_and_lists_of_its_parent() {
    let mut s = Script::new();
    s.kernel("one", 0x21);
    s.call("zeCommandListCreate", &[0xc0, 0xd0], &[LIST]);
    s.launch(LIST, 0x21);
    fork(&mut s, 1, 2);
    // What the parent makes later is not the child's.
    process(&mut s, 1);
    s.kernel("late", 0x22);
    fork(&mut s, 2, 3);
    process(&mut s, 3);
    s.execute(QUEUE, &[LIST]);
    process(&mut s, 2);
    s.launch(0x99, 0x21);
    s.launch(0x99, 0x22);
    let found = s.told.launches.iter();
    let found: Vec<_> = found.map(|l| (l.by.pid, l.work.name.to_string())).collect();
    let expected = [
        (3, "one".to_owned()),
        (2, "one".to_owned()),
        (2, "[kernel created before attach 0x22]".to_owned()),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_child_inherits_from_a_parent_that_is_gone_and_gives_its_room_back() {
    let mut s = Script::new();
    s.kernel("one", 0x21);
    for child in 2..5 {
        fork(&mut s, 1, child);
    }
    // One runs another program, one does nothing.
    process(&mut s, 3);
    let comm = "other".to_owned();
    s.process(3, ProcessEventKind::Exec { comm });
    process(&mut s, 1);
    s.process(1, ProcessEventKind::Exit);
    for child in [2, 3] {
        process(&mut s, child);
        s.launch(0x99, 0x21);
    }
    assert_eq!(s.names(), ["one", "[kernel created before attach 0x21]"]);
    for child in 2..5 {
        process(&mut s, child);
        s.process(child, ProcessEventKind::Exit);
    }
    s.finish();
    assert!(s.tracker.is_idle());
}
