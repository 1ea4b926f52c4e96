use super::*;
use crate::import::json;
use aiprof_model::timeline::Job;

/// A trace of these events: processes and threads get the names.
fn trace(names: &[(i64, Option<i64>, &str)], events: &[&str]) -> Timeline {
    let mut all: Vec<String> = names
        .iter()
        .map(|(pid, tid, name)| {
            let (kind, tid) = match tid {
                Some(tid) => ("thread_name", format!(r#","tid":{tid}"#)),
                None => ("process_name", String::new()),
            };
            format!(r#"{{"ph":"M","name":"{kind}","pid":{pid}{tid},"args":{{"name":"{name}"}}}}"#)
        })
        .collect();
    all.extend(events.iter().map(|event| (*event).to_owned()));
    let text = format!("[{}]", all.join(","));
    let mut timeline = Timeline::default();
    json::read(text.as_bytes(), "d/app.1000.3.json", &mut timeline).unwrap();
    timeline
}

fn slice(pid: i64, tid: i64, ts: i64, name: &str, more: &str) -> String {
    format!(r#"{{"ph":"X","pid":{pid},"tid":{tid},"ts":{ts},"dur":5,"name":"{name}"{more}}}"#)
}

fn job(timeline: &Timeline) -> &Job {
    &timeline.jobs[0]
}

/// Names of kernels and copies, with their numbers.
fn work(timeline: &Timeline) -> Vec<(&str, char, u64)> {
    let kinds = Kinds::new(timeline);
    let slices = timeline.events.iter().filter(|event| event.is_slice());
    let one = |event: &Event| {
        let letter = match kinds.is_kernel(timeline, event) {
            true => 'k',
            false if kinds.is_copy(timeline, event) => 'c',
            false => return None,
        };
        Some((timeline.name(event.name), letter, event.correlation))
    };
    slices.filter_map(one).collect()
}

fn correlation(timeline: &Timeline, name: &str) -> u64 {
    let mut events = timeline.events.iter();
    let found = events.find(|event| event.is_slice() && timeline.name(event.name) == name);
    found.map_or(0, |event| event.correlation)
}

fn read(names: &[(i64, Option<i64>, &str)], slices: &[String]) -> Timeline {
    let slices: Vec<&str> = slices.iter().map(String::as_str).collect();
    trace(names, &slices)
}

#[test]
fn what_has_no_evidence_is_a_plain_trace() {
    for events in [
        vec![slice(7, 8, 10, "f", r#","cat":"FEE""#)],
        vec![slice(7, 8, 10, "Callback", r#","cat":"gpu,startup""#)],
        vec![slice(7, 8, 10, "RunLoop", r#","cat":"runtime""#)],
        vec![slice(7, 8, 10, "Total Frontend", r#","args":{"avg ms":3}"#)],
    ] {
        let timeline = read(&[(7, None, "node")], &events);
        assert_eq!(job(&timeline).dialect, Dialect::Plain, "{events:?}");
        assert!(work(&timeline).is_empty());
    }
}

#[test]
fn flex_has_fields_of_its_own() {
    let stamps = r#","args":{"TS1":"1","TS2":"2","TS3":"3","TS4":"4","TS5":"5"}"#;
    for event in [
        slice(0, 1, 10, "add", stamps),
        slice(0, 1, 10, "add Cmpt Exec", ""),
        slice(0, 1, 10, "AIU Roundtrip", ""),
        slice(0, 1, 10, "x", r#","args":{"CollGroup":"AllReduce_1"}"#),
    ] {
        let timeline = read(&[], &[event]);
        assert_eq!(job(&timeline).dialect, Dialect::Flex);
    }
}

#[test]
fn streams_of_xla_on_gpus_are_devices_and_derived_rows_are_not() {
    let names = [
        (1, None, "/device:GPU:0"),
        (1, Some(13), "Stream #13(Compute)"),
        (1, Some(14), "Stream #14(MemcpyH2D)"),
        (1, Some(20), "XLA Ops"),
        (1, Some(21), "XLA Modules"),
        (701, None, "/host:CPU"),
    ];
    let number = |number| format!(r#","args":{{"correlation_id":"{number}"}}"#);
    let timeline = read(
        &names,
        &[
            slice(701, 5, 0, "cuLaunchKernel", &number(7)),
            slice(701, 5, 8, "PjitFunction(f)", ""),
            slice(1, 13, 10, "fusion_1", &number(7)),
            slice(1, 14, 10, "MemcpyH2D", &number(8)),
            slice(1, 20, 10, "fusion_1", ""),
            slice(1, 21, 10, "jit_f", ""),
        ],
    );
    assert_eq!(
        (job(&timeline).dialect, job(&timeline).writer),
        (Dialect::Torch, "xla")
    );
    assert_eq!(
        work(&timeline),
        [("fusion_1", 'k', 7), ("MemcpyH2D", 'c', 8)]
    );
    let call = timeline.events.iter().find(|event| event.correlation == 7);
    assert_eq!(timeline.name(call.unwrap().cat), "cuda_driver");
}

#[test]
fn operations_of_xla_on_tpus_are_kernels() {
    let names = [
        (3, None, "/device:TPU:0"),
        (3, Some(1), "Steps"),
        (3, Some(2), "XLA Modules"),
        (3, Some(3), "XLA Ops"),
    ];
    let timeline = read(
        &names,
        &[
            slice(3, 1, 0, "0", ""),
            slice(3, 2, 0, "jit_step", ""),
            slice(3, 3, 0, "fusion.2", ""),
            // A loop and what it does.
            slice(3, 3, 10, "while", ""),
            slice(3, 3, 10, "dot.3", "").replace("\"dur\":5", "\"dur\":2"),
            slice(3, 3, 13, "dot.3", "").replace("\"dur\":5", "\"dur\":2"),
        ],
    );
    let expected = [("fusion.2", 'k', 0), ("dot.3", 'k', 0), ("dot.3", 'k', 0)];
    assert_eq!(work(&timeline), expected);
}

#[test]
fn timelines_of_tensorflow_have_streams_as_processes() {
    let job = "/job:localhost/replica:0/task:0";
    let all = format!("{job}/device:GPU:0/stream:all Compute");
    let one = format!("{job}/device:GPU:0/stream:14 Compute");
    let host = format!("{job}/device:GPU:0 Compute");
    let cpu = format!("{job}/device:CPU:0 Compute");
    let op = r#","cat":"Op","args":{"op":"MatMul"}"#;
    let names = [(0, None, &*cpu), (1, None, &*host), (2, None, &*all)];
    let slices = [
        slice(0, 0, 0, "Const", op),
        slice(1, 0, 5, "launch", op),
        slice(2, 0, 10, "MatMul", op),
        slice(3, 0, 10, "MatMul of one", op),
    ];
    assert_eq!(work(&read(&names, &slices)), [("MatMul", 'k', 0)]);
    let copies = format!("{job}/device:GPU:0/memcpy Compute");
    let with_copies = [names[0], names[2], (4, None, &*copies)];
    let moved = slice(4, 0, 20, "MEMCPYHtoD", op);
    let found = read(&with_copies, &[slices[0].clone(), slices[2].clone(), moved]);
    assert_eq!(work(&found), [("MatMul", 'k', 0), ("MEMCPYHtoD", 'c', 0)]);
    let names = [names[0], names[1], names[2], (3, None, &*one)];
    assert_eq!(work(&read(&names, &slices)), [("MatMul of one", 'k', 0)]);
    // Nothing but what the device's executor did.
    let names = [names[0], names[1]];
    assert_eq!(work(&read(&names, &slices)), [("launch", 'k', 0)]);
}

#[test]
fn calls_and_kernels_of_rocprof_are_linked_by_arrows() {
    for (cpu, end) in [("0 CPU HIP API", "t"), ("3 CPU HSA API", "f")] {
        let names = [(2, None, cpu), (1, None, "1 COPY"), (6, None, "2 GPU0")];
        let arrow = |ph: &str, pid: i64, tid: i64, ts: i64| {
            format!(
                r#"{{"ph":"{ph}","cat":"DataFlow","id":0,"pid":{pid},"tid":{tid},"ts":{ts},"name":"dep"}}"#
            )
        };
        let timeline = read(
            &names,
            &[
                // Numbers are texts in slices.
                slice(2, 9, 0, "hipLaunchKernel", "").replace("\"pid\":2", "\"pid\":\"2\""),
                slice(6, 0, 20, "vec_add", ""),
                slice(1, 0, 30, "hipMemcpy", ""),
                arrow("s", 2, 9, 2),
                arrow(end, 6, 0, 20),
            ],
        );
        assert_eq!(
            work(&timeline),
            [("vec_add", 'k', 1), ("hipMemcpy", 'c', 0)]
        );
        assert_eq!(correlation(&timeline, "hipLaunchKernel"), 1);
    }
}

/// Newer versions put no number before the names, so that the names alone are no evidence.
#[test]
fn names_of_rocprof_without_numbers_need_its_times() {
    let names = [
        (2, None, "CPU HIP API"),
        (1, None, "COPY"),
        (6, None, "GPU0"),
    ];
    let times = r#","args":{"BeginNs":"20000","EndNs":"25000","dev-id":"0"}"#;
    let slices = |args: &str| {
        [
            slice(2, 9, 0, "hipLaunchKernel", args).replace("\"pid\":2", "\"pid\":\"2\""),
            slice(6, 0, 20, "vec_add", args).replace("\"pid\":6", "\"pid\":\"6\""),
            slice(1, 0, 30, "hipMemcpy", args),
        ]
    };
    let timeline = read(&names, &slices(times));
    assert_eq!(job(&timeline).writer, "rocprof");
    let expected = [("vec_add", 'k', 0), ("hipMemcpy", 'c', 0)];
    assert_eq!(work(&timeline), expected);
    let timeline = read(&names, &slices(""));
    assert_eq!(job(&timeline).dialect, Dialect::Plain);
    assert!(work(&timeline).is_empty());
}

#[test]
fn streams_of_nsys2json_are_a_device() {
    let event = |pid: &str, tid: &str, cat: &str| {
        format!(
            r#"{{"ph":"X","cat":"{cat}","name":"gemm","ts":5,"dur":9,"pid":"{pid}","tid":"{tid}","args":{{}}}}"#
        )
    };
    let kernel = event("Device 0", "Stream 7", "cuda");
    let range = event("Device 0", "NVTX Thread 12", "nvtx");
    let timeline = read(&[], &[kernel.clone(), range]);
    assert_eq!(job(&timeline).writer, "nsys2json");
    assert_eq!(work(&timeline), [("gemm", 'k', 0)]);
    // The same names alone are no evidence.
    let timeline = read(&[], &[kernel.replace("cuda", "blink")]);
    assert_eq!(job(&timeline).dialect, Dialect::Plain);
}

#[test]
fn waits_of_mtia_are_no_work() {
    let cat = r#","cat":"mtia_ccp_events""#;
    let names = ["fc", "event_wait", "event_record"];
    let slices = names.map(|name| slice(0, 1, 10, name, cat));
    assert_eq!(work(&read(&[], &slices)), [("fc", 'k', 0)]);
}

#[test]
fn hardware_of_ascend_is_a_device_but_its_waits_are_none() {
    let names = [(4, None, "Ascend Hardware"), (5, None, "CANN")];
    let args = |kind: &str, number: u64| {
        format!(r#","args":{{"Task Type":"{kind}","connection_id":{number}}}"#)
    };
    let timeline = read(
        &names,
        &[
            slice(
                5,
                1,
                0,
                "AscendCL@aclnnMatmul",
                r#","args":{"connection_id":0}"#,
            ),
            slice(4, 3, 10, "MatMulV2", &args("AI_CORE", 0)),
            slice(4, 3, 20, "EVENT_WAIT", &args("EVENT_WAIT", 1)),
            slice(4, 3, 30, "MEMCPY_ASYNC", &args("SDMA", 2)),
        ],
    );
    let expected = [("MatMulV2", 'k', 1), ("MEMCPY_ASYNC", 'c', 3)];
    assert_eq!(work(&timeline), expected);
    assert_eq!(correlation(&timeline, "AscendCL@aclnnMatmul"), 1);
}

#[test]
fn commands_of_unitrace_are_kernels_by_their_names() {
    let op = r#","cat":"gpu_op","args":{"id":"1"}"#;
    let commands = [
        slice(9, 1, 0, "zeCommandListAppendBarrier", op),
        slice(9, 1, 10, "gemm[SIMD32 {4; 1; 1} {256; 1; 1}]", op),
        slice(9, 1, 20, "zeCommandListAppendMemoryCopy(M2D)[64]", op),
    ];
    for (name, rank) in [
        ("RANK 5 DEVICE<h>[Intel(R) GPU] 0:1:0:0 #0", 5),
        ("DEVICE<h>[Intel(R) GPU] 0:1:0:0 #0", 3),
    ] {
        let timeline = read(&[(9, None, name)], &commands);
        let found: Vec<char> = work(&timeline).iter().map(|one| one.1).collect();
        assert_eq!(found, ['k', 'c']);
        assert_eq!(
            (job(&timeline).writer, job(&timeline).rank),
            ("unitrace", Some(rank))
        );
    }
}

#[test]
fn arrows_of_unitrace_link_calls_and_commands() {
    for number in [7, 70] {
        let arrow = |ph: &str, pid: i64, ts: i64| {
            format!(
                r#"{{"ph":"{ph}","cat":"Flow_H2D_{number}_0","id":{number},"pid":{pid},"tid":1,"ts":{ts},"name":"dep"}}"#
            )
        };
        let timeline = read(
            &[(9, None, "DEVICE<h>[GPU]#0"), (8, None, "HOST<h>")],
            &[
                slice(
                    8,
                    1,
                    0,
                    "zeCommandListAppendLaunchKernel",
                    r#","cat":"cpu_op""#,
                ),
                arrow("s", 8, 0),
                slice(
                    9,
                    1,
                    20,
                    "gemm[SIMD32 {4; 1; 1}]",
                    r#","cat":"gpu_op","args":{"id":"7"}"#,
                ),
                arrow("t", 9, 20),
            ],
        );
        // No other arrow has their number.
        let linked = number + 1;
        assert_eq!(work(&timeline), [("gemm[SIMD32 {4; 1; 1}]", 'k', linked)]);
        let call = correlation(&timeline, "zeCommandListAppendLaunchKernel");
        assert_eq!(call, linked);
    }
}

#[test]
fn categories_of_other_devices_are_known() {
    let timeline = read(
        &[],
        &[
            slice(0, 1, 0, "matmul", r#","cat":"mtia_ccp_events""#),
            slice(0, 1, 10, "add(float*)", r#","cat":"kernel_dispatch""#),
            slice(0, 1, 15, "copy", r#","cat":"rocm_memory_copy""#),
            slice(
                0,
                1,
                20,
                "MEMORY_COPY_HOST_TO_DEVICE",
                r#","cat":"memory_copy","args":{"corr_id":4}"#,
            ),
        ],
    );
    let expected = [
        ("matmul", 'k', 0),
        ("add(float*)", 'k', 0),
        ("copy", 'c', 0),
        ("MEMORY_COPY_HOST_TO_DEVICE", 'c', 4),
    ];
    assert_eq!(work(&timeline), expected);
}

/// An arrow from a call is surer than one from the operator around it, and both than numbers.
#[test]
fn arrows_of_ascend_lead_from_calls_to_work() {
    let names = [
        (4, None, "Ascend Hardware"),
        (5, None, "CANN"),
        (6, None, "Python"),
    ];
    let number = |number: u64| format!(r#","args":{{"connection_id":{number}}}"#);
    let arrow = |cat: &str, ph: &str, pid: i64, ts: i64| {
        format!(
            r#"{{"ph":"{ph}","cat":"{cat}","name":"{cat}1","id":"1","pid":{pid},"tid":1,"ts":{ts}}}"#
        )
    };
    let timeline = read(
        &names,
        &[
            slice(6, 1, 0, "aten::mm", r#","cat":"cpu_op""#),
            slice(5, 1, 2, "AscendCL@aclnnMm", &number(9)),
            slice(4, 1, 10, "MatMulV2", &number(8)),
            arrow("async_npu", "s", 6, 1),
            arrow("async_npu", "f", 4, 10),
            arrow("HostToDevice", "s", 5, 3),
            arrow("HostToDevice", "f", 4, 10),
        ],
    );
    assert_eq!(work(&timeline), [("MatMulV2", 'k', 1)]);
    assert_eq!(correlation(&timeline, "AscendCL@aclnnMm"), 1);
    assert_eq!(correlation(&timeline, "aten::mm"), 0);
}

/// Arrows that slices name: one kernel each, a graph of two, a device's clock that is ahead of the
/// host's, and a number that is used again.
#[test]
fn arrows_that_slices_name_show_launches() {
    let call = |ts: i64, name: &str, id: &str| {
        let more = format!(r#","cat":"cuda_runtime","bind_id":{id},"flow_out":true"#);
        slice(7, 7, ts, name, &more)
    };
    let kernel = |ts: i64, name: &str, id: &str| {
        let more = format!(r#","cat":"kernel","bind_id":{id},"flow_in":true"#);
        slice(0, 3, ts, name, &more)
    };
    let timeline = read(
        &[],
        &[
            call(100, "one", r#""0x1""#),
            kernel(120, "k one", r#""0x1""#),
            call(200, "graph", "2"),
            kernel(220, "k first", "2"),
            kernel(230, "k second", "2"),
            kernel(290, "k ahead", "3"),
            call(300, "ahead", "3"),
            call(400, "again", r#""0x1""#),
            kernel(420, "k again", r#""0x1""#),
            kernel(500, "k alone", "9"),
        ],
    );
    let number = |name| correlation(&timeline, name);
    for (call, kernels) in [
        ("one", &["k one"][..]),
        ("graph", &["k first", "k second"]),
        ("ahead", &["k ahead"]),
        ("again", &["k again"]),
    ] {
        assert_ne!(number(call), 0, "{call}");
        for kernel in kernels {
            assert_eq!(number(kernel), number(call), "{kernel}");
        }
    }
    assert_eq!(number("k alone"), 0);
    let calls = ["one", "graph", "ahead", "again"].map(number);
    let calls: FxHashSet<u64> = calls.into_iter().collect();
    assert_eq!(calls.len(), 4);
}

/// Numbers of kernels that no call has. An arrow is surer; where a call has the number, it counts.
#[test]
fn arrows_show_the_launches_of_numbers_that_no_call_has() {
    let arrow = |ph: &str, pid: u32, ts: u32, id: u32| {
        let (cat, tid) = ("ac2g", pid);
        format!(
            r#"{{"ph":"{ph}","id":{id},"pid":{pid},"tid":{tid},"ts":{ts},"name":"a","cat":"{cat}"}}"#
        )
    };
    let more = |cat: &str, number: &str| format!(r#","cat":"{cat}","args":{{"cbid":1{number}}}"#);
    let (runtime, none) = ("cuda_runtime", more("cuda_runtime", ""));
    let number = |number: u32| format!(r#","correlation":{number}"#);
    let timeline = read(
        &[],
        &[
            slice(7, 7, 100, "call", &none),
            slice(9, 9, 120, "k", &more("kernel", &number(50))),
            arrow("s", 7, 101, 60),
            arrow("f", 9, 120, 60),
            // The arrow leads from another call than the number.
            slice(7, 7, 200, "numbered", &more(runtime, &number(51))),
            slice(7, 7, 210, "other", &none),
            slice(9, 9, 220, "k numbered", &more("kernel", &number(51))),
            arrow("s", 7, 211, 61),
            arrow("f", 9, 220, 61),
        ],
    );
    let number = |name| correlation(&timeline, name);
    // 61 is the largest number.
    assert_eq!((number("call"), number("k")), (62, 62));
    let numbers = ["numbered", "k numbered", "other"].map(number);
    assert_eq!(numbers, [51, 51, 0]);
}
