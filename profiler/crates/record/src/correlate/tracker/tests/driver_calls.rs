//! Which ioctls hand which launches to the driver.

use crate::correlate::{
    DriverCalls,
    script::{DRIVER, LOADER, Script, UR},
};

const APPEND: &str = "zeCommandListAppendLaunchKernel";
const COPY: &str = "zeCommandListAppendMemoryCopy";
const EXECUTE: &str = "zeCommandQueueExecuteCommandLists";
const ENQUEUE: &str = "urEnqueueKernelLaunch";
const WAIT: &str = "zeCommandQueueSynchronize";
const IOCTL: &str = "DRM_IOCTL_XE_EXEC";
const IMMEDIATE: u64 = 0x11;
const LIST: u64 = 0x12;
const OTHER_LIST: u64 = 0x13;
const QUEUE: u64 = 0x31;
const EBUSY: u64 = 16_u64.wrapping_neg();

fn script() -> Script {
    let mut script = Script::new();
    script.call("zeCommandListCreateImmediate", &[1, 2], &[IMMEDIATE]);
    script.call("zeCommandListCreate", &[1, 2], &[LIST]);
    script.call("zeCommandListCreate", &[1, 2], &[OTHER_LIST]);
    script.call("zeCommandQueueCreate", &[1, 2], &[QUEUE]);
    script.kernel("a", 0x21);
    script.kernel("b", 0x22);
    script
}

fn ioctl_with(s: &mut Script, result: u64) {
    s.enter(IOCTL, 0, &[]);
    s.leave(IOCTL, 0, result, &[]);
}

fn ioctl(s: &mut Script) {
    ioctl_with(s, 0);
}

/// Executes lists, with one ioctl inside.
fn execute(s: &mut Script, lists: &[u64]) {
    s.enter(EXECUTE, LOADER, &[QUEUE]);
    s.array(EXECUTE, 0, lists);
    ioctl(s);
    s.leave(EXECUTE, LOADER, 0, &[]);
}

/// Driver calls of the launches so far, by their names: is it the own call, which function, which
/// stacks less 1000.
fn said(s: &Script) -> Vec<(String, Option<DriverCalls>)> {
    let launches = s.told.launches.iter();
    let said = launches.map(|l| (l.work.name.to_string(), l.driver.as_deref().cloned()));
    said.collect()
}

fn own(s: &Script, function: &str) -> Option<DriverCalls> {
    below(s, true, function, &[s.stack(IOCTL)])
}

fn below(s: &Script, is_own: bool, function: &str, ioctls: &[u64]) -> Option<DriverCalls> {
    Some(DriverCalls {
        is_own,
        function: function.into(),
        stack: s.stack(function),
        ioctls: ioctls.to_vec(),
    })
}

#[test]
fn an_ioctl_inside_of_the_call_that_launches_is_that_launch_s() {
    let mut s = script();
    s.enter(APPEND, LOADER, &[IMMEDIATE, 0x21]);
    s.enter(APPEND, DRIVER, &[IMMEDIATE, 0x21]);
    ioctl(&mut s);
    s.leave(APPEND, DRIVER, 0, &[]);
    s.leave(APPEND, LOADER, 0, &[]);
    // Without one, and with one behind the call.
    s.launch(IMMEDIATE, 0x22);
    ioctl(&mut s);
    let launches = said(&s);
    assert_eq!(launches[0], ("a".into(), own(&s, APPEND)));
    assert_eq!(launches[1], ("b".into(), None));
    // It stands for itself, as nothing else accounts for it.
    assert_eq!(launches[2], ("[submitted work]".into(), None));
    assert_eq!(launches.len(), 3);
}

#[test]
fn what_failed_or_hands_nothing_over_is_not_shown() {
    let mut s = script();
    s.enter(APPEND, LOADER, &[IMMEDIATE, 0x21]);
    ioctl_with(&mut s, EBUSY);
    s.leave(APPEND, LOADER, 0, &[]);
    assert_eq!(said(&s), [("a".into(), None)]);
    // Tried again.
    s.enter(APPEND, LOADER, &[IMMEDIATE, 0x21]);
    ioctl_with(&mut s, EBUSY);
    s.elsewhere = 50;
    ioctl(&mut s);
    let retry = s.stack(IOCTL);
    s.elsewhere = 0;
    s.leave(APPEND, LOADER, 0, &[]);
    assert_eq!(said(&s)[1].1, below(&s, true, APPEND, &[retry]));
    // An ioctl whose end was lost.
    s.enter(APPEND, LOADER, &[IMMEDIATE, 0x22]);
    s.enter(IOCTL, 0, &[]);
    s.leave(APPEND, LOADER, 0, &[]);
    assert_eq!(said(&s)[2], ("b".into(), None));
}

#[test]
fn an_ioctl_of_an_execution_is_all_its_launches_and_no_other_s() {
    let mut s = script();
    s.launch(LIST, 0x21);
    s.launch(LIST, 0x22);
    s.launch(OTHER_LIST, 0x22);
    // Not handed over: it is put on a list only, and the driver does other work.
    s.enter(APPEND, LOADER, &[OTHER_LIST, 0x21]);
    ioctl(&mut s);
    s.leave(APPEND, LOADER, 0, &[]);
    assert!(s.told.launches.is_empty());
    execute(&mut s, &[LIST]);
    let first = below(&s, false, EXECUTE, &[s.stack(IOCTL)]);
    s.elsewhere = 50;
    execute(&mut s, &[LIST]);
    let second = below(&s, false, EXECUTE, &[s.stack(IOCTL)]);
    assert_ne!(first, second);
    // Without an ioctl: the driver writes to the device's queue itself.
    s.execute(QUEUE, &[LIST]);
    let expected = [("a", &first), ("b", &first), ("a", &second), ("b", &second)];
    let rest = [("a", &None), ("b", &None)];
    let expected = expected.into_iter().chain(rest);
    let expected: Vec<_> = expected.map(|(n, d)| (n.to_owned(), d.clone())).collect();
    assert_eq!(said(&s), expected);
    s.finish();
    assert_eq!(said(&s).len(), 6, "the other list is never executed");
}

#[test]
fn another_thread_executes() {
    let mut s = script();
    s.launch(LIST, 0x21);
    s.tid = 2;
    s.elsewhere = 50;
    execute(&mut s, &[LIST]);
    let launch = &s.told.launches[0];
    assert_eq!((launch.by.tid, launch.by.stack), (1, s.stack(APPEND) - 50));
    assert_eq!(
        launch.driver.as_deref().cloned(),
        below(&s, false, EXECUTE, &[s.stack(IOCTL)])
    );
    // What a thread of the driver's own hands over cannot be attributed with certainty.
    s.execute(QUEUE, &[LIST]);
    s.tid = 3;
    ioctl(&mut s);
    assert_eq!(said(&s)[1], ("a".into(), None));
    // Between two calls, of two threads.
    s.tid = 1;
    s.enter(APPEND, LOADER, &[IMMEDIATE, 0x22]);
    s.tid = 3;
    ioctl(&mut s);
    s.tid = 1;
    s.leave(APPEND, LOADER, 0, &[]);
    let last = said(&s).pop();
    assert_eq!(last, Some(("b".into(), None)));
}

#[test]
fn layers_around_and_waits_inside_are_one_call() {
    let mut s = script();
    s.enter(ENQUEUE, UR, &[0x77, 0x78]);
    s.enter(APPEND, LOADER, &[IMMEDIATE, 0x21]);
    s.leave(APPEND, LOADER, 0, &[]);
    // The runtime hands it over while it waits.
    s.enter(WAIT, LOADER, &[QUEUE]);
    ioctl(&mut s);
    s.leave(WAIT, LOADER, 0, &[]);
    s.leave(ENQUEUE, UR, 0, &[]);
    assert_eq!(said(&s), [("a".into(), own(&s, ENQUEUE))]);
    // A driver that executes by another function of the same meaning.
    s.launch(LIST, 0x22);
    s.enter(EXECUTE, LOADER, &[QUEUE]);
    s.array(EXECUTE, 0, &[LIST]);
    s.enter(EXECUTE, DRIVER, &[QUEUE]);
    s.array(EXECUTE, 0, &[LIST]);
    ioctl(&mut s);
    s.leave(EXECUTE, DRIVER, 0, &[]);
    s.leave(EXECUTE, LOADER, 0, &[]);
    let expected = below(&s, false, EXECUTE, &[s.stack(IOCTL)]);
    assert_eq!(said(&s)[1], ("b".into(), expected));
}

/// As SYCL does: one call puts work on a list and executes it, and what earlier calls put
/// there.
#[test]
fn a_list_that_is_executed_inside_of_the_call_that_launches() {
    let mut s = script();
    s.enter(ENQUEUE, UR, &[]);
    s.call(APPEND, &[LIST, 0x21], &[]);
    s.leave(ENQUEUE, UR, 0, &[]);
    s.enter(ENQUEUE, UR, &[]);
    s.call(APPEND, &[LIST, 0x22], &[]);
    execute(&mut s, &[LIST]);
    s.leave(ENQUEUE, UR, 0, &[]);
    let earlier = below(&s, false, EXECUTE, &[s.stack(IOCTL)]);
    let expected = [("a".into(), earlier), ("b".into(), own(&s, ENQUEUE))];
    assert_eq!(said(&s), expected);
}

/// A launch that copies its arguments first: two pieces of work, each with its own ioctl.
#[test]
fn work_inside_of_other_work_has_its_own_ioctls() {
    let mut s = script();
    s.enter(APPEND, LOADER, &[IMMEDIATE, 0x21]);
    s.enter(COPY, DRIVER, &[IMMEDIATE, 1, 2, 64]);
    s.elsewhere = 50;
    ioctl(&mut s);
    let of_copy = s.stack(IOCTL);
    s.elsewhere = 0;
    s.leave(COPY, DRIVER, 0, &[]);
    s.leave(APPEND, LOADER, 0, &[]);
    let launches = said(&s);
    assert_eq!(launches.len(), 2, "{launches:?}");
    for (name, driver) in launches {
        let expected = (name != "a").then_some(of_copy);
        assert_eq!(
            driver.map(|d| d.ioctls),
            expected.map(|id| vec![id]),
            "{name}"
        );
    }
    s.enter(APPEND, LOADER, &[IMMEDIATE, 0x21]);
    s.call(COPY, &[IMMEDIATE, 1, 2, 64], &[]);
    ioctl(&mut s);
    s.leave(APPEND, LOADER, 0, &[]);
    let launch = said(&s).into_iter().rfind(|(name, _)| name == "a");
    assert_eq!(launch.unwrap().1, own(&s, APPEND));
}

#[test]
fn several_ioctls_are_all_told_but_not_without_end() {
    let mut s = script();
    s.enter(APPEND, LOADER, &[IMMEDIATE, 0x21]);
    for place in [0, 50, 0, 50] {
        s.elsewhere = place;
        ioctl(&mut s);
    }
    s.elsewhere = 0;
    s.leave(APPEND, LOADER, 0, &[]);
    let [one, other] = [s.stack(IOCTL), s.stack(IOCTL) + 50];
    assert_eq!(said(&s)[0].1, below(&s, true, APPEND, &[one, other]));
    s.enter(APPEND, LOADER, &[IMMEDIATE, 0x21]);
    for place in 0..100 {
        s.elsewhere = place;
        ioctl(&mut s);
    }
    s.elsewhere = 0;
    s.leave(APPEND, LOADER, 0, &[]);
    let ioctls = said(&s)[1].1.clone().unwrap().ioctls;
    assert_eq!(ioctls.len(), 9);
    assert_eq!(ioctls.last(), Some(&0), "more than are followed");
}

/// Calls that fail launch nothing; what they handed over is not the next one's.
#[test]
fn ioctls_of_a_call_that_failed_are_forgotten() {
    let mut s = script();
    s.enter(ENQUEUE, UR, &[]);
    s.enter(APPEND, LOADER, &[IMMEDIATE, 0x21]);
    ioctl(&mut s);
    s.leave(APPEND, LOADER, 0x7800_0001, &[]);
    s.call(APPEND, &[IMMEDIATE, 0x22], &[]);
    s.leave(ENQUEUE, UR, 0, &[]);
    assert_eq!(said(&s), [("b".into(), None)]);
}
