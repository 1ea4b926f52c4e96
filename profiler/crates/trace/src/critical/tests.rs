//! Traces whose critical path is known because of how they are made.

use super::*;
use aiprof_model::probes::CallKind;
use aiprof_model::timeline::Dialect;
use aiprof_testkit::scene::{self, Slice};

/// What an event is called, and when it is, microseconds.
struct Scene {
    timeline: Timeline,
}

impl Scene {
    fn new() -> Self {
        Self {
            timeline: scene::empty(Dialect::Torch),
        }
    }

    fn host(&mut self, rank: u32, name: &str, at: (f64, f64), correlation: u64) {
        self.add(rank, name, "cuda_runtime", at, correlation, "");
    }

    fn work(&mut self, rank: u32, name: &str, at: (f64, f64), correlation: u64, stream: u32) {
        let args = format!("\"stream\":{stream},\"device\":0");
        self.add(rank, name, "kernel", at, correlation, &args);
    }

    fn add(&mut self, rank: u32, name: &str, cat: &str, at: (f64, f64), id: u64, args: &str) {
        let slice = Slice {
            rank,
            tid: 1,
            name,
            cat,
            ts: at.0,
            dur: at.1 - at.0,
            correlation: id,
            args,
            ..Slice::default()
        };
        scene::add(&mut self.timeline, &slice);
    }

    fn path(&self) -> CriticalPath {
        let index = WorkIndex::new(&self.timeline);
        run(&self.timeline, &index, &PathOptions::default())
    }

    fn lengths(&self, changes: &[(&str, f64)]) -> Vec<f64> {
        let changes: Vec<WhatIf> = changes
            .iter()
            .map(|(name, factor)| WhatIf {
                name: (*name).to_owned(),
                factor: *factor,
            })
            .collect();
        let (paths, _) = self.path().what_if(&self.timeline, &changes);
        paths.iter().map(|path| path.length.micros()).collect()
    }

    fn names(&self) -> Vec<&str> {
        let found = self.path();
        let mut names: Vec<&str> = found.groups[0]
            .path
            .steps
            .iter()
            .filter_map(|(number, took)| {
                let edge = found.graph.edges[*number as usize];
                found.bound_by(&edge).filter(|_| *took > Length::ZERO)?;
                let event = found.graph.events[edge.owner as usize].event;
                Some(
                    self.timeline
                        .name(self.timeline.events[event as usize].name),
                )
            })
            .collect();
        names.dedup();
        names
    }
}

/// Two streams from one thread, which waits for both: a 10-60 on one, b 12-40 and c 40-90
/// behind each other on the other.
fn two_streams() -> Scene {
    let mut scene = Scene::new();
    for (at, id) in [((0.0, 1.0), 1), ((1.0, 2.0), 2), ((2.0, 3.0), 3)] {
        scene.host(0, "cudaLaunchKernel", at, id);
    }
    scene.host(0, "cudaDeviceSynchronize", (3.0, 91.0), 4);
    scene.host(0, "cudaMalloc", (91.0, 101.0), 5);
    scene.add(
        0,
        "Context Sync",
        "cuda_sync",
        (4.0, 91.0),
        4,
        "\"stream\":-1",
    );
    scene.work(0, "a", (10.0, 60.0), 1, 1);
    scene.work(0, "b", (12.0, 40.0), 2, 2);
    scene.work(0, "c", (40.0, 90.0), 3, 2);
    scene
}

#[test]
fn the_path_is_through_the_stream_that_ends_last() {
    let scene = two_streams();
    // The launch before, b, c, and what the host does behind the wait. c is in the queue
    // when b begins, so b's delay is not its launch's alone and does not count, as in HTA.
    assert_eq!(scene.lengths(&[]), [89.0]);
    assert_eq!(scene.names(), ["cudaLaunchKernel", "b", "c", "cudaMalloc"]);
}

#[test]
fn another_time_leads_to_another_path() {
    let scene = two_streams();
    // c goes from 50 to 5. Subtraction would give 44; the path through a is 10 of its launch, 50
    // and 10.
    assert_eq!(scene.lengths(&[("c", 0.1)]), [70.0]);
    assert_eq!(scene.lengths(&[("c", 2.0)]), [139.0]);
    assert_eq!(scene.lengths(&[("a", 0.5)]), [89.0]);
    assert_eq!(scene.lengths(&[("a", 0.0), ("c", 0.1)]), [44.0]);
    assert_eq!(scene.lengths(&[("cudaMalloc", 0.0)]), [79.0]);
    assert_eq!(scene.lengths(&[("nothing of it", 0.0)]), [89.0]);
}

/// Without rows of waits the call is held to wait for what ended before it returned.
#[test]
fn waits_are_estimated_without_records() {
    let mut scene = two_streams();
    scene
        .timeline
        .events
        .retain(|event| scene.timeline.names.get(event.cat) != "cuda_sync");
    assert_eq!(scene.lengths(&[("c", 0.1)]), [70.0]);
    assert_eq!(scene.path().estimated, 1);
}

/// An event that stream 1 records behind a holds c of stream 2 back.
#[test]
fn a_stream_that_waits_for_another_s_event() {
    let mut scene = Scene::new();
    for (name, at, id) in [
        ("cudaLaunchKernel", (0.0, 1.0), 1),
        ("cudaEventRecord", (1.0, 2.0), 2),
        ("cudaStreamWaitEvent", (2.0, 3.0), 3),
        ("cudaLaunchKernel", (3.0, 4.0), 4),
    ] {
        scene.host(0, name, at, id);
    }
    let args = "\"stream\":2,\"device\":0,\"wait_on_stream\":1,\
                \"wait_on_cuda_event_record_corr_id\":2";
    scene.add(0, "Stream Wait Event", "cuda_sync", (2.5, 2.6), 3, args);
    scene.work(0, "a", (5.0, 55.0), 1, 1);
    scene.work(0, "c", (57.0, 77.0), 4, 2);
    // The wait takes no time of its own, as in HTA: 5 of the launch, 50, 20.
    assert_eq!(scene.lengths(&[]), [75.0]);
    assert_eq!(scene.lengths(&[("a", 0.1)]), [30.0]);
}

/// Rank r computes until 10 (r + 1), then all reduce for 5 from when the last is there.
fn ranks(count: u32) -> Scene {
    let mut scene = Scene::new();
    let last = 10.0 * f64::from(count);
    for rank in 0..count {
        let ends = 10.0 * f64::from(rank + 1);
        scene.host(rank, "cudaLaunchKernel", (-2.0, -1.5), 1);
        scene.host(rank, "cudaLaunchKernel", (-1.5, -1.0), 2);
        let name = format!("gemm{rank}");
        scene.work(rank, &name, (0.0, ends), 1, 1);
        scene.work(rank, "ncclKernel_AllReduce", (ends, last + 5.0), 2, 1);
    }
    scene
}

#[test]
fn a_collective_waits_for_the_rank_that_is_last() {
    for count in [2, 3, 4] {
        let scene = ranks(count);
        let found = scene.path();
        assert_eq!((found.joined, found.apart), (1, 0));
        assert_eq!(found.groups.len(), 1, "{count}");
        let longest = 10.0 * f64::from(count);
        // The last rank's kernel, the collective.
        assert_eq!(scene.lengths(&[]), [longest + 5.0]);
        // Without the last rank's kernel the one before decides.
        let slowest = format!("gemm{}", count - 1);
        assert_eq!(scene.lengths(&[(&slowest, 0.0)]), [longest - 10.0 + 5.0]);
        assert_eq!(scene.lengths(&[("nccl", 0.2)]), [longest + 1.0]);
        let bounds = found.bounds(&found.groups[0].path);
        let ranks: Vec<u32> = bounds.iter().map(|(rank, _)| *rank).collect();
        assert!(ranks.contains(&(count - 1)), "{bounds:?}");
    }
}

/// Two ranks reduce, a third does not: it has its own path.
#[test]
fn ranks_that_nothing_joins_have_their_own_path() {
    let mut scene = ranks(2);
    scene.host(7, "cudaLaunchKernel", (0.0, 1.0), 1);
    scene.work(7, "alone", (5.0, 8.0), 1, 1);
    assert_eq!(scene.lengths(&[]), [25.0, 8.0]);
}

/// Clocks that differ by more than the collective takes cannot be joined.
#[test]
fn collectives_that_are_apart_join_nothing() {
    let mut scene = ranks(2);
    for event in &mut scene.timeline.events {
        if scene.timeline.tracks.rank(event) == 1 {
            event.shift(1e6);
        }
    }
    let found = scene.path();
    assert_eq!((found.joined, found.apart, found.groups.len()), (0, 1, 2));
}

/// The receiver waits for the sender. Where the message was kept for it, neither waits.
#[test]
fn a_receiver_waits_for_the_sender_of_its_message() {
    for (receives, joined, longest) in [((1.0, 15.0), 1, 15.0), ((14.0, 15.0), 0, 15.0)] {
        let mut scene = Scene::new();
        let message = |what: &str, peer: u32| {
            format!("\"stream\":1,\"device\":0,\"Collective name\":\"{what}\",{peer}")
        };
        scene.host(0, "cudaLaunchKernel", (-2.0, -1.5), 1);
        scene.host(0, "cudaLaunchKernel", (-1.5, -1.0), 2);
        scene.host(1, "cudaLaunchKernel", (-2.0, -1.0), 1);
        scene.work(0, "gemm", (0.0, 10.0), 1, 1);
        let name = "ncclDevKernel_SendRecv";
        let send = message("send", 0).replace(",0", ",\"Dst Rank\":1");
        let receive = message("recv", 0).replace(",0", ",\"Src Rank\":0");
        scene.add(0, name, "kernel", (10.0, 13.0), 2, &send);
        scene.add(1, name, "kernel", receives, 1, &receive);
        let found = scene.path();
        assert_eq!((found.messages, found.joined, found.apart), (joined, 0, 0));
        assert_eq!(found.groups.len(), 2 - joined);
        if joined == 1 {
            assert_eq!(scene.lengths(&[]), [longest]);
            // The receiver is there 3 us behind its launch, and takes 5 us from then on.
            assert_eq!(scene.lengths(&[("gemm", 0.0)]), [3.0 + 5.0]);
        }
    }
}

/// A call that ends before what it has begun: the time belongs to what began last, and none of it
/// is less than nothing.
#[test]
fn calls_that_overlap_in_part_have_their_own_time_once() {
    let mut scene = Scene::new();
    for (name, at) in [
        ("a", (0.0, 60.0)),
        ("b", (40.0, 100.0)),
        ("c", (50.0, 55.0)),
    ] {
        scene.add(0, name, "cpu_op", at, 0, "");
    }
    let found = scene.path();
    let path = &found.groups[0].path;
    let mut by_name: BTreeMap<&str, f64> = BTreeMap::new();
    for part in found.parts(path) {
        assert!(part.took >= Length::ZERO, "{part:?}");
        let event = scene.timeline.events[part.event as usize];
        *by_name.entry(scene.timeline.name(event.name)).or_default() += part.took.micros();
    }
    let expected = [("a", 40.0), ("b", 55.0), ("c", 5.0)];
    assert_eq!(by_name.into_iter().collect::<Vec<_>>(), expected);
    assert_eq!(path.length.micros(), 100.0);
}

/// One launch of a graph: its kernels follow each other.
#[test]
fn the_kernels_of_a_graph_follow_each_other() {
    let mut scene = Scene::new();
    scene.host(0, "cudaGraphLaunch", (0.0, 4.0), 1);
    for at in 0..5 {
        let start = 10.0 + 20.0 * f64::from(at);
        scene.work(0, "k", (start, start + 15.0), 1, 1);
    }
    assert_eq!(scene.lengths(&[]), [105.0]);
    assert_eq!(scene.lengths(&[("k", 0.0)]), [30.0]);
}

/// One operator at each end, and a function of Python or another span round both or between them.
#[test]
fn code_between_operators_is_on_the_path() {
    for (cat, name, at, code) in [
        ("python_function", "train.py(1): step", (0.0, 100.0), 80.0),
        (
            "user_annotation",
            "enumerate(DataLoader)#It",
            (20.0, 80.0),
            60.0,
        ),
        ("user_annotation", "ProfilerStep#1", (0.0, 100.0), 0.0),
    ] {
        let mut scene = Scene::new();
        scene.add(0, "aten::mm", "cpu_op", (0.0, 10.0), 0, "");
        scene.add(0, name, cat, at, 0, "");
        scene.add(0, "aten::add", "cpu_op", (90.0, 100.0), 0, "");
        assert_eq!(scene.lengths(&[]), [20.0 + code], "{name}");
        let found = scene.path();
        assert_eq!(found.groups[0].wall.micros(), 100.0);
        let bounds = found.bounds(&found.groups[0].path);
        let of = |bound: BoundBy| bounds[0].1[bound as usize].micros();
        assert_eq!((of(BoundBy::Cpu), of(BoundBy::Code)), (20.0, code));
    }
}

/// The host is in Python nearly all the time, and kernels end long before it waits.
#[test]
fn faster_kernels_do_not_help_a_busy_host() {
    let mut scene = Scene::new();
    scene.add(0, "loop", "python_function", (0.0, 1000.0), 0, "");
    scene.host(0, "cudaLaunchKernel", (1.0, 2.0), 1);
    scene.work(0, "gemm", (10.0, 500.0), 1, 1);
    scene.host(0, "cudaDeviceSynchronize", (900.0, 901.0), 2);
    // But for the wait, which takes no time of its own.
    assert_eq!(scene.lengths(&[("gemm", 0.5)]), [999.0]);
    assert_eq!(scene.lengths(&[]), [999.0]);
}

/// The backward pass runs on a thread of its own while Python waits for it.
#[test]
fn the_backward_pass_is_that_of_its_thread() {
    let mut scene = Scene::new();
    scene.add(0, "train", "python_function", (0.0, 100.0), 0, "");
    scene.host(0, "cudaLaunchKernel", (1.0, 2.0), 1);
    let frame = "<built-in method run_backward of torch._C._EngineBase object>";
    scene.add(0, frame, "python_function", (10.0, 90.0), 0, "");
    let home = scene.timeline.events[0].track;
    for (name, at) in [
        ("MulBackward0", (15.0, 45.0)),
        ("MmBackward0", (45.0, 85.0)),
    ] {
        scene.add(0, name, "cpu_op", at, 0, "");
        if let Some(event) = scene.timeline.events.last_mut() {
            let thread = aiprof_model::timeline::Id::Number(2);
            scene.timeline.tracks.set_tid(event, thread);
            assert_ne!(event.track, home);
        }
    }
    scene.work(0, "gemm", (3.0, 9.0), 1, 1);
    assert_eq!(scene.lengths(&[]), [100.0]);
    assert_eq!(scene.lengths(&[("MmBackward0", 0.5)]), [80.0]);
    assert_eq!(scene.lengths(&[("gemm", 0.5)]), [100.0]);
}

/// Spans that overlap in part were moved to a row of their own: they are one thread's.
#[test]
fn rows_that_were_moved_are_one_thread() {
    let mut scene = Scene::new();
    for at in 0..6 {
        let from = 10.0 * f64::from(at);
        scene.add(0, "aten::mm", "cpu_op", (from, from + 11.0), 0, "");
    }
    let home = scene.timeline.events[0].track;
    for event in scene.timeline.events.iter_mut().skip(1).step_by(2) {
        scene
            .timeline
            .tracks
            .set_tid(event, aiprof_model::timeline::Id::Number(9));
        scene.timeline.moved.insert(event.track, home);
    }
    let found = scene.path();
    assert_eq!(found.groups[0].wall.micros(), 61.0);
    assert!(found.groups[0].path.length <= found.groups[0].wall);
}

/// A copy of pageable memory has no row of its wait, also where other waits have.
#[test]
fn blocking_copies_wait_beside_rows_of_waits() {
    for name in ["cudaMemcpyAsync", "hipMemcpyWithStream"] {
        let mut scene = Scene::new();
        scene.host(0, "cudaLaunchKernel", (0.0, 1.0), 1);
        scene.work(0, "gemm", (5.0, 50.0), 1, 1);
        scene.host(0, "cudaDeviceSynchronize", (1.0, 1.5), 3);
        let args = "\"stream\":-1";
        scene.add(0, "Context Sync", "cuda_sync", (1.0, 1.5), 3, args);
        scene.host(0, name, (2.0, 61.0), 2);
        scene.add(
            0,
            "Memcpy DtoH (Device -> Pageable)",
            "gpu_memcpy",
            (50.0, 60.0),
            2,
            "\"stream\":1,\"device\":0",
        );
        scene.host(0, "cudaMalloc", (61.0, 70.0), 4);
        // 45 and 10 of the device, 9 of what follows the wait.
        assert_eq!(scene.lengths(&[]), [64.0], "{name}");
    }
}

#[test]
fn the_events_on_the_path_are_marked() {
    let mut scene = two_streams();
    assert_eq!(mark(&mut scene.timeline, &PathOptions::default()), 4);
    let marked: Vec<_> = scene
        .timeline
        .events
        .iter()
        .filter_map(|event| {
            let took = scene.timeline.arg(event, "critical_path_us")?;
            Some((scene.timeline.name(event.name), took))
        })
        .collect();
    let expected = [
        ("cudaLaunchKernel", "1"),
        ("cudaMalloc", "10"),
        ("b", "28"),
        ("c", "50"),
    ];
    assert_eq!(marked, expected);
}

/// What aiprof recorded itself: calls have the numbers of their launches, the kernels the
/// number as correlation; another process has the same numbers.
#[test]
fn recordings_link_calls_by_process_and_number() {
    let mut scene = Scene::new();
    scene.timeline.jobs[0].is_recording = true;
    for pid in [0, 1] {
        let at = 100.0 * f64::from(pid);
        let args = "\"launch\":\"4-5\"";
        let kind = CallKind::NAMED[0].0;
        scene.add(
            pid,
            "zeCommandListAppendLaunchKernel",
            kind,
            (at, at + 2.0),
            0,
            args,
        );
        scene.work(pid, "a", (at + 10.0, at + 20.0), 4, 1);
        scene.work(pid, "b", (at + 20.0, at + 50.0), 5, 1);
    }
    for event in &mut scene.timeline.events {
        scene.timeline.tracks.set_rank(event, 0);
    }
    let index = WorkIndex::new(&scene.timeline);
    let [rank] = &index.ranks[..] else { panic!() };
    let linked: Vec<_> = rank
        .work
        .iter()
        .map(|work| (work.event, work.call))
        .collect();
    assert_eq!(linked, [(1, 0), (2, 0), (4, 3), (5, 3)]);
    // The launch of the first, then both: each process alone.
    assert_eq!(scene.lengths(&[]), [50.0]);
}

/// No part of a path is negative, and together they are its length.
fn parts_add_up(scene: &Scene) -> f64 {
    let found = scene.path();
    let path = &found.groups[0].path;
    let parts: Vec<f64> = found.parts(path).map(|part| part.took.micros()).collect();
    assert!(parts.iter().all(|took| *took >= 0.0), "{parts:?}");
    let sum: f64 = parts.iter().sum();
    assert!((sum - path.length.micros()).abs() < 1e-6, "{parts:?}");
    assert!(path.length <= found.groups[0].wall);
    sum
}

#[test]
fn kernels_that_begin_before_the_one_before_them_is_over_count_once() {
    let mut scene = Scene::new();
    for kernel in 0..4 {
        let at = f64::from(kernel) * 40.0;
        scene.host(
            0,
            "cudaLaunchKernel",
            (at / 40.0, at / 40.0 + 0.5),
            kernel as u64 + 1,
        );
        scene.work(0, "gemm", (10.0 + at, 60.0 + at), kernel as u64 + 1, 7);
    }
    scene.host(0, "cudaDeviceSynchronize", (5.0, 180.0), 9);
    // From the first one's begin: others stand in the queue behind it, as in HTA.
    assert!((parts_add_up(&scene) - 170.0).abs() < 1e-6);
}

#[test]
fn calls_that_end_after_the_code_around_them_give_no_negative_parts() {
    let mut scene = Scene::new();
    scene.add(
        0,
        "train.py(1): step",
        "python_function",
        (0.0, 100.0),
        0,
        "",
    );
    scene.add(
        0,
        "train.py(2): loss",
        "python_function",
        (10.0, 60.0),
        0,
        "",
    );
    // Ends 30 us after its caller.
    scene.add(
        0,
        "<built-in method item>",
        "python_function",
        (50.0, 90.0),
        0,
        "",
    );
    scene.host(0, "cudaLaunchKernel", (20.0, 25.0), 1);
    scene.work(0, "gemm", (30.0, 40.0), 1, 7);
    assert!((parts_add_up(&scene) - 100.0).abs() < 1e-6);
}
