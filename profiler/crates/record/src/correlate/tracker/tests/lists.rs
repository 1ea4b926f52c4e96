//! Command lists: work counts when they are executed.

use crate::correlate::script::{DRIVER, LOADER, Script, UR};
use aiprof_model::{probes::CallKind, profile::LossKind};

const APPEND: &str = "zeCommandListAppendLaunchKernel";
const EXECUTE: &str = "zeCommandQueueExecuteCommandLists";
const LIST: u64 = 0x12;
const QUEUE: u64 = 0x31;

fn script() -> Script {
    let mut script = Script::new();
    script.call("zeCommandQueueCreate", &[0xc0, 0xde], &[QUEUE]);
    script.call("zeCommandListCreate", &[0xc0, 0xde], &[LIST]);
    script.kernel("a", 0x21);
    script.kernel("b", 0x22);
    script
}

#[test]
fn a_list_counts_as_often_as_it_is_executed() {
    let mut s = script();
    s.launch(LIST, 0x21);
    s.launch(LIST, 0x22);
    s.call("zeCommandListClose", &[LIST], &[]);
    assert!(s.told.launches.is_empty());
    let appended: Vec<u64> = s.told.calls.iter().rev().take(3).map(|c| c.id).collect();
    for _ in 0..3 {
        s.execute(QUEUE, &[LIST]);
    }
    assert_eq!(s.names(), ["a", "b", "a", "b", "a", "b"]);
    let execute = s.told.calls.last().unwrap();
    let last = s.told.launches.last().unwrap();
    assert_eq!((last.submit, last.by.call), (Some(execute.id), appended[1]));
    assert_eq!(
        (last.submitted_ns, last.on.queue),
        (execute.start_ns, QUEUE)
    );
    assert_eq!((last.on.device, last.on.list), (0xde, LIST));
    assert!(last.by.end_ns.is_some_and(|end| end < last.submitted_ns));
    let ids: Vec<_> = s.told.launches.iter().map(|l| l.id).collect();
    assert_eq!(ids, [1, 2, 3, 4, 5, 6]);
    s.call("zeCommandListReset", &[LIST], &[]);
    s.execute(QUEUE, &[LIST]);
    s.launch(LIST, 0x22);
    s.execute(QUEUE, &[LIST, LIST]);
    assert_eq!(s.names()[6..], ["b", "b"]);
    assert_eq!(s.lost(LossKind::ListsUnknown), 0);
}

#[test]
fn one_call_appends_and_executes_what_earlier_calls_appended() {
    let mut s = script();
    s.enter("urEnqueueKernelLaunch", UR, &[]);
    s.call(APPEND, &[LIST, 0x21], &[]);
    s.leave("urEnqueueKernelLaunch", UR, 0, &[]);
    let first = s.told.calls.last().unwrap().id;
    s.enter("urEnqueueKernelLaunch", UR, &[]);
    s.call(APPEND, &[LIST, 0x22], &[]);
    s.call("zeCommandListClose", &[LIST], &[]);
    s.execute(QUEUE, &[LIST]);
    s.leave("urEnqueueKernelLaunch", UR, 0, &[]);
    assert_eq!(s.names(), ["a", "b"]);
    let [a, b] = s.told.launches.as_slice() else {
        unreachable!()
    };
    let second = s.told.calls.last().unwrap();
    assert_eq!((a.by.call, b.by.call), (first, second.id));
    assert_eq!(
        (&*a.by.api, &*b.by.api),
        ("Unified Runtime", "Unified Runtime")
    );
    assert_eq!(a.submit, b.submit);
    assert!(a.submit.is_some_and(|id| id != second.id));
    assert_eq!(
        b.by.end_ns, second.end_ns,
        "the call was open when the list was executed"
    );
}

#[test]
fn an_execution_through_two_layers_counts_once() {
    for wrapped in [false, true] {
        let mut s = script();
        // The driver's handles differ from the loader's if that wraps them.
        let inner = if wrapped { LIST + 0x1000 } else { LIST };
        if wrapped {
            s.enter("zeCommandListCreate", LOADER, &[1, 2]);
            s.enter("zeCommandListCreate", DRIVER, &[1, 2]);
            s.leave("zeCommandListCreate", DRIVER, 0, &[inner]);
            s.leave("zeCommandListCreate", LOADER, 0, &[LIST]);
        }
        s.enter(APPEND, LOADER, &[LIST, 0x21]);
        s.enter(APPEND, DRIVER, &[inner, 0x22]);
        s.leave(APPEND, DRIVER, 0, &[]);
        s.leave(APPEND, LOADER, 0, &[]);
        for _ in 0..2 {
            s.enter(EXECUTE, LOADER, &[QUEUE]);
            s.array(EXECUTE, 0, &[LIST]);
            s.enter(EXECUTE, DRIVER, &[QUEUE]);
            s.array(EXECUTE, 0, &[inner]);
            s.leave(EXECUTE, DRIVER, 0, &[]);
            s.leave(EXECUTE, LOADER, 0, &[]);
        }
        assert_eq!(s.names(), ["b", "b"], "wrapped: {wrapped}");
    }
}

#[test]
fn a_list_of_unknown_kind_counts_at_once_and_not_again_at_its_first_execution() {
    let mut s = Script::new();
    s.kernel("a", 0x21);
    s.launch(0x99, 0x21);
    s.launch(0x99, 0x21);
    assert_eq!(s.names(), ["a"; 2]);
    s.execute(QUEUE, &[0x99]);
    assert_eq!(s.names(), ["a"; 2]);
    s.execute(QUEUE, &[0x99]);
    assert_eq!(s.names(), ["a"; 4]);
    s.call("zeCommandListReset", &[0x99], &[]);
    s.launch(0x99, 0x21);
    assert_eq!(s.names(), ["a"; 4], "its kind is known by now");
    s.execute(QUEUE, &[0x99]);
    assert_eq!(s.names(), ["a"; 5]);
}

#[test]
fn lists_filled_before_attach_are_visible_and_counted() {
    let mut s = Script::new();
    s.execute(QUEUE, &[0x99]);
    s.execute(QUEUE, &[0x99]);
    let launch = &s.told.launches[1];
    assert_eq!((launch.kind, launch.on.list), (CallKind::Submit, 0x99));
    assert_eq!(s.lost(LossKind::ListsUnknown), 2);
    assert_eq!(s.told.launches.len(), 2);
}

#[test]
fn more_lists_than_arrive_are_counted() {
    let mut s = script();
    s.launch(LIST, 0x21);
    s.enter(EXECUTE, LOADER, &[QUEUE]);
    s.data(EXECUTE, 0, &LIST.to_le_bytes(), 80);
    s.leave(EXECUTE, LOADER, 0, &[]);
    assert_eq!(s.names()[0], "a");
    assert_eq!(s.told.launches.len(), 2, "one stands for the rest");
    let losses = s.tracker.take_losses();
    assert_eq!(losses.get(LossKind::ListsUnknown), 9);
    assert_eq!(losses.get(LossKind::CallDataIncomplete), 1);
}

#[test]
fn failed_appends_and_failed_executions_launch_nothing() {
    let mut s = script();
    s.enter(APPEND, LOADER, &[LIST, 0x21]);
    s.leave(APPEND, LOADER, 0x7800_0001, &[]);
    s.launch(LIST, 0x22);
    s.enter(EXECUTE, LOADER, &[QUEUE]);
    s.array(EXECUTE, 0, &[LIST]);
    s.leave(EXECUTE, LOADER, 0x7000_0001, &[]);
    assert!(s.told.launches.is_empty());
    s.execute(QUEUE, &[LIST]);
    assert_eq!(s.names(), ["b"]);
    // An inner append of unknown outcome in an outer call that failed.
    s.enter("urEnqueueKernelLaunch", UR, &[]);
    s.enter(APPEND, LOADER, &[LIST, 0x21]);
    s.vanish();
    s.leave("urEnqueueKernelLaunch", UR, 5, &[]);
    s.execute(QUEUE, &[LIST]);
    assert_eq!(s.names(), ["b", "b"]);
}

#[test]
fn another_thread_executes_before_the_append_is_known_to_be_over() {
    let mut s = script();
    s.enter(APPEND, LOADER, &[LIST, 0x21]);
    s.vanish();
    s.tid = 2;
    s.execute(QUEUE, &[LIST]);
    assert_eq!(s.names(), ["a"]);
}

#[test]
fn a_destroyed_list_takes_its_work_along() {
    let mut s = script();
    s.launch(LIST, 0x21);
    s.call("zeCommandListDestroy", &[LIST], &[]);
    s.call("zeCommandListCreate", &[1, 2], &[LIST]);
    s.launch(LIST, 0x22);
    s.execute(QUEUE, &[LIST]);
    assert_eq!(s.names(), ["b"]);
}

#[test]
fn a_list_of_unknown_kind_that_is_never_executed_is_an_immediate_one() {
    let mut s = Script::new();
    s.kernel("a", 0x21);
    for _ in 0..10_000 {
        s.launch(0x99, 0x21);
    }
    assert_eq!(s.told.launches.len(), 10_000);
    assert_eq!(s.lost(LossKind::LaunchesRefused), 0);
}

#[test]
fn a_graph_counts_when_it_is_executed_and_not_while_it_is_recorded() {
    const BEGIN: &str = "zeCommandListBeginGraphCaptureExp";
    const END: &str = "zeCommandListEndGraphCaptureExp";
    const INSTANTIATE: &str = "zeCommandListInstantiateGraphExp";
    const GRAPH: &str = "zeCommandListAppendGraphExp";
    let mut s = script();
    s.call("zeCommandListCreateImmediate", &[1, 2], &[0x11]);
    s.launch(0x11, 0x21);
    s.call(BEGIN, &[0x11], &[]);
    s.launch(0x11, 0x21);
    s.launch(0x11, 0x22);
    s.call(END, &[0x11], &[0x71]);
    assert_eq!(s.names(), ["a"]);
    s.launch(0x11, 0x22);
    s.call(INSTANTIATE, &[0x71], &[0x72]);
    s.call("zeGraphDestroyExp", &[0x71], &[]);
    s.call(GRAPH, &[0x11, 0x72], &[]);
    s.call(GRAPH, &[0x11, 0x72], &[]);
    assert_eq!(s.names(), ["a", "b", "a", "b", "a", "b"]);
    assert!(s.told.launches[2].submit.is_some());
    // Recorded before anybody looked.
    s.call(GRAPH, &[0x11, 0x79], &[]);
    assert_eq!(s.told.launches.last().unwrap().kind, CallKind::Submit);
    assert_eq!(s.lost(LossKind::ListsUnknown), 1);
}

#[test]
fn a_graph_of_a_stream_launches_what_the_stream_recorded() {
    let mut s = script();
    let cuda = |s: &mut Script, kernel| {
        s.enter("cuLaunchKernel", LOADER, &[kernel, 0x5]);
        s.leave("cuLaunchKernel", LOADER, 0, &[]);
    };
    s.call("cuStreamBeginCapture", &[0x5], &[]);
    cuda(&mut s, 0x21);
    cuda(&mut s, 0x22);
    s.call("cuStreamEndCapture", &[0x5], &[0x71]);
    s.call("cuGraphInstantiate", &[0x71], &[0x72]);
    for _ in 0..2 {
        s.enter("cudaGraphLaunch", UR, &[0x5, 0x72]);
        s.enter("cuGraphLaunch", LOADER, &[0x5, 0x72]);
        s.leave("cuGraphLaunch", LOADER, 0, &[]);
        s.leave("cudaGraphLaunch", UR, 0, &[]);
    }
    assert_eq!(s.names(), ["a", "b", "a", "b"]);
    assert!(
        s.told
            .launches
            .iter()
            .all(|l| &*l.by.function == "cuLaunchKernel")
    );
    let submits: Vec<_> = s.told.launches.iter().map(|l| l.submit).collect();
    assert_eq!((submits[0], submits[2]), (submits[1], submits[3]));
    assert_ne!(submits[0], submits[2]);
    cuda(&mut s, 0x21);
    assert_eq!(s.names().len(), 5, "the stream works at once again");
    // Nothing is known of this graph: its launch counts as one launch.
    s.enter("cudaGraphLaunch", UR, &[0x5, 0x99]);
    s.enter("cuGraphLaunch", LOADER, &[0x5, 0x99]);
    s.leave("cuGraphLaunch", LOADER, 0, &[]);
    s.leave("cudaGraphLaunch", UR, 0, &[]);
    assert_eq!(s.names()[5..], ["[kernel without a name]"]);
}

/// As in CUDA: the runtime's handles are the driver's.
#[test]
fn a_graph_of_two_layers_with_the_same_handles_keeps_its_work() {
    let mut s = script();
    let both = |s: &mut Script, name: &str, values: &[u64], out: &[u64]| {
        s.enter(&format!("cuda{name}"), UR, values);
        s.enter(&format!("cu{name}"), LOADER, values);
        s.leave(&format!("cu{name}"), LOADER, 0, out);
        s.leave(&format!("cuda{name}"), UR, 0, out);
    };
    for round in 0..2 {
        both(&mut s, "StreamBeginCapture", &[0x5], &[]);
        for kernel in [0x21, 0x22] {
            s.enter("cuLaunchKernel", LOADER, &[kernel, 0x5]);
            s.leave("cuLaunchKernel", LOADER, 0, &[]);
        }
        // The second time another graph of the same stream.
        let graph = 0x71 + 2 * round;
        both(&mut s, "StreamEndCapture", &[0x5], &[graph]);
        both(&mut s, "GraphInstantiate", &[graph], &[graph + 1]);
        for _ in 0..3 {
            both(&mut s, "GraphLaunch", &[0x5, graph + 1], &[]);
        }
    }
    assert_eq!(s.names(), ["a", "b"].repeat(6));
    assert_eq!(s.lost(LossKind::ListsUnknown), 0);
}

#[test]
fn a_copy_of_a_list_has_the_same_work() {
    let mut s = script();
    s.launch(LIST, 0x21);
    s.call("zeCommandListClose", &[LIST], &[]);
    s.call("zeCommandListCreateCloneExp", &[LIST], &[0x13]);
    s.call("zeCommandListReset", &[LIST], &[]);
    s.execute(QUEUE, &[LIST]);
    s.execute(QUEUE, &[0x13]);
    assert_eq!(s.names(), ["a"]);
}
