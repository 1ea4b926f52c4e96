//! Every table and every finding of traces that are made to take their longest: four times as many
//! events take less than eight times as long.
//!
//! Each trace has many of one thing that a view might look at for each event: spans around a span,
//! threads with one number, streams of a wait.

use crate::{ALL, Options, Request, TableEntry};
use aiprof_formats::import::json;
use aiprof_model::timeline::Timeline;
use aiprof_trace::analyze::pipeline::Outcome;
use aiprof_trace::analyze::report::Report;
use aiprof_trace::findings::{self, Wanted};
use aiprof_trace::work::SharedWork;
use std::time::Duration;

/// Events of the smaller trace of two, about.
const EVENTS: usize = 3_000;
/// How much larger the other is.
const TIMES: usize = 4;
/// How much longer it may take.
const MOST: u32 = 8;
/// What takes no longer is not compared: it would measure the machine.
const FLOOR: Duration = Duration::from_millis(5);

/// A slice: category, name, thread, begin and end in microseconds, arguments.
fn slice(cat: &str, name: &str, tid: usize, (from, to): (usize, usize), args: &str) -> String {
    format!(
        r#"{{"ph":"X","cat":"{cat}","name":"{name}","pid":10,"tid":{tid},"ts":{from},"dur":{},"args":{{{args}}}}}"#,
        to - from
    )
}

/// A call that launches, and its kernel on a stream of device 0.
fn launch(number: usize, tid: usize, stream: usize, at: [usize; 4]) -> [String; 2] {
    let [called, returned, from, to] = at;
    let args = format!(r#""correlation":{number},"External id":{number}"#);
    let call = ("cuda_runtime", "cudaLaunchKernel");
    let of_device = format!(r#"{args},"device":0,"stream":{stream}"#);
    let kernel = slice("kernel", "gemm", stream, (from, to), &of_device);
    [
        slice(call.0, call.1, tid, (called, returned), &args),
        kernel.replace(r#""pid":10"#, r#""pid":0"#),
    ]
}

/// Slices in each other on one thread; the number is that of the depth.
fn deep(cat: &str, count: usize, one: impl Fn(usize) -> (String, String)) -> Vec<String> {
    let slices = (0..count).map(|at| {
        let (name, args) = one(at);
        slice(cat, &name, 1, (at, 20 * count - at), &args)
    });
    slices.collect()
}

/// Deep slices of a category and name, and slices of another one behind each other in the innermost.
fn deep_with(count: usize, (cat, name): (&str, &str), inner: (&str, &str)) -> Vec<String> {
    let half = count / 2;
    let mut all = deep(cat, half, |_| (name.to_owned(), String::new()));
    all.extend((0..half).map(|at| {
        let from = half + 4 * at;
        let args = format!(r#""External id":{}"#, at + 1);
        slice(inner.0, inner.1, 1, (from, from + 2), &args)
    }));
    all
}

/// Deep slices, and launches in the innermost.
fn deep_launches(count: usize, cat: &str, name: &str) -> Vec<String> {
    let third = count / 3;
    let mut all = deep(cat, third, |at| (format!("{name}{at}"), String::new()));
    for at in 0..third {
        let from = third + 4 * at;
        all.extend(launch(at + 1, 1, 7, [from, from + 1, from + 2, from + 4]));
    }
    all
}

/// Forward and backward operators of one number; which thread each is on, and which of torch's
/// threads the backward ones belong to.
fn pairs(count: usize, threads: impl Fn(usize) -> (usize, usize, usize)) -> Vec<String> {
    let half = count / 2;
    let mut all = Vec::new();
    for at in 0..half {
        let (forward, backward, torch) = threads(at);
        let args = |torch: usize| format!(r#""Sequence number":7,"Fwd thread id":{torch}"#);
        let times = |from| (from, from + 1);
        let back = times(2 * (half + at));
        all.push(slice(
            "cpu_op",
            "aten::mm",
            forward,
            times(2 * at),
            &args(0),
        ));
        all.push(slice("cpu_op", "MmBackward0", backward, back, &args(torch)));
    }
    all
}

fn launches(count: usize, one: impl Fn(usize) -> (usize, usize, [usize; 4])) -> Vec<String> {
    let all = (0..count / 2).flat_map(|at| {
        let (tid, stream, times) = one(at);
        launch(at + 1, tid, stream, times)
    });
    all.collect()
}

/// A launch, a wait for all of the device, again and again: each on a stream of its own.
fn waits(count: usize) -> Vec<String> {
    let mut all = launches(count, |at| {
        (1, at, [10 * at, 10 * at + 1, 10 * at + 2, 10 * at + 6])
    });
    all.extend((0..count / 4).map(|at| {
        let times = (20 * at + 4, 20 * at + 8);
        slice("cuda_runtime", "cudaDeviceSynchronize", 1, times, "")
    }));
    all
}

/// Streams that each idle from the first to the last of all collectives.
fn idle_streams(count: usize) -> Vec<String> {
    let third = count / 3;
    let end = 20 * third;
    let kernel = |name: &str, stream: usize, times| {
        let args = format!(r#""device":0,"stream":{stream}"#);
        let kernel = slice("kernel", name, stream, times, &args);
        kernel.replace(r#""pid":10"#, r#""pid":0"#)
    };
    let kernels = (0..third).flat_map(|at| {
        let from = 10 + 10 * at;
        let collective = "ncclDevKernel_AllReduce_Sum_f32_RING_LL";
        [
            kernel("gemm", at + 10, (0, 1)),
            kernel(collective, 1, (from, from + 5)),
            kernel("gemm", at + 10, (end, end + 1)),
        ]
    });
    kernels.collect()
}

/// Notes of one thread, in each of which many other threads begin something.
fn notes_beside_threads(count: usize) -> Vec<String> {
    let half = count / 2;
    let mut all = deep("user_annotation", half, |at| {
        (format!("note {at}"), String::new())
    });
    all.extend(launches(count, |at| {
        let from = half + at;
        (100 + at, 7, [from, from + 1, from + 2, from + 3])
    }));
    all.extend(launch(count, 1, 7, [half, half + 1, half + 2, half + 3]));
    all
}

/// Modules, each of which runs again in a backward operator of another thread.
fn modules_again(count: usize) -> Vec<String> {
    let part = count / 4;
    let mut all = deep("python_function", part, |at| {
        (format!("nn.Module: Block_{at}"), String::new())
    });
    for at in 0..part {
        let forward = (part + 2 * at, part + 2 * at + 1);
        let back = (30 * count + 10 * at, 30 * count + 10 * at + 9);
        let args = |torch: u32| format!(r#""Sequence number":{at},"Fwd thread id":{torch}"#);
        let module = format!("nn.Module: Block_{at}");
        all.push(slice("cpu_op", "aten::mm", 1, forward, &args(0)));
        all.push(slice("cpu_op", "MmBackward0", 2, back, &args(1)));
        let times = (back.0 + 1, back.1 - 1);
        all.push(slice("python_function", &module, 2, times, ""));
    }
    all
}

/// Modules that operators name, in an operator that names more than fit.
fn named_modules(count: usize) -> Vec<String> {
    let named = |text: &str| format!(r#""Module Hierarchy":"{text}""#);
    let long = vec!["a"; count].join(".");
    let mut all = vec![slice(
        "cpu_op",
        "aten::a",
        1,
        (0, 10 * count),
        &named(&long),
    )];
    all.extend((0..count).map(|at| {
        let times = (10 * at + 1, 10 * at + 9);
        slice("cpu_op", "aten::b", 1, times, &named("b"))
    }));
    all
}

/// Steps of the compiler in each other, of one compilation and of many.
fn compilations(count: usize) -> Vec<String> {
    let half = count / 2;
    let mut all = deep("cpu_op", half, |at| {
        (format!("Torch-Compiled Region: {at}/0"), String::new())
    });
    all.extend((0..half).map(|at| {
        let from = half + 4 * at;
        let step = "compile (dynamo_timed)";
        slice("user_annotation", step, 1, (from, from + 2), "")
    }));
    all
}

/// Launches of generated kernels in many compiled graphs.
fn generated(count: usize) -> Vec<String> {
    let args = r#""kernel_file":"\"/tmp/a.py\"","kernel_hash":"\"a\"""#;
    let half = count / 2;
    let mut all = deep("cpu_op", half, |at| (format!("f{at}"), String::new()));
    all.extend((0..half).map(|at| {
        let from = half + 4 * at;
        slice("cpu_op", "triton_poi_fused_0", 1, (from, from + 2), args)
    }));
    all
}

/// What an arrow of Kineto's begins and ends at.
fn arrows(count: usize) -> Vec<String> {
    let third = count / 3;
    let mut all = launch(1, 1, 7, [0, 1, 2 * third, 3 * third]).to_vec();
    for at in 0..third {
        let arrow = |ph: &str, pid: u32, tid: u32, ts: usize| {
            format!(
                r#"{{"ph":"{ph}","bp":"e","cat":"ac2g","name":"ac2g","id":{at},"pid":{pid},"tid":{tid},"ts":{ts}}}"#
            )
        };
        all.push(arrow("s", 10, 1, 0));
        all.push(arrow("f", 0, 7, 2 * third));
    }
    all
}

/// Allocations, of which all are there at the end, in deep operators.
fn allocations(count: usize) -> Vec<String> {
    let half = count / 2;
    let mut all = deep("cpu_op", half, |at| (format!("aten::a{at}"), String::new()));
    all.extend((0..half).map(|at| {
        let number = at + 1;
        format!(
            r#"{{"ph":"i","s":"t","cat":"cpu_instant_event","name":"[memory]","pid":10,"tid":1,"ts":{},"args":{{"Addr":{number},"Bytes":8,"Device Type":1,"Device Id":0,"Total Allocated":{}}}}}"#,
            half + at,
            8 * number
        )
    }));
    all
}

/// A shape of a trace: its events, about as many as asked for.
type Shape = (&'static str, fn(usize) -> Vec<String>);

const SHAPES: [Shape; 27] = [
    ("deep operators that launch", |n| {
        deep_launches(n, "cpu_op", "aten::a")
    }),
    ("deep notes that launch", |n| {
        deep_launches(n, "user_annotation", "a")
    }),
    ("deep functions that launch", |n| {
        deep_launches(n, "python_function", "a.py(1): f")
    }),
    ("deep calls that launch", |n| {
        deep_launches(n, "cuda_runtime", "cudaGraphLaunch")
    }),
    ("deep steps of training", |n| {
        deep_launches(n, "user_annotation", "ProfilerStep#")
    }),
    ("operators of one name", |n| {
        deep("cpu_op", n, |_| ("aten::a".to_owned(), String::new()))
    }),
    ("overheads in each other", |n| {
        deep("overhead", n, |_| ("a".to_owned(), String::new()))
    }),
    ("operators in functions without names", |n| {
        deep_with(n, ("python_function", ""), ("cpu_op", "aten::a"))
    }),
    ("operators in functions of torch", |n| {
        let backward = "torch/autograd/__init__.py(2): backward";
        deep_with(n, ("python_function", backward), ("cpu_op", "aten::a"))
    }),
    ("overheads in notes", |n| {
        deep_with(n, ("user_annotation", "a"), ("overhead", "b"))
    }),
    ("a number of many threads", |n| {
        pairs(n, |at| (at + 1, n + at, at + 1))
    }),
    ("a number of many threads and of one", |n| {
        pairs(n, |at| (at + 1, n, 1))
    }),
    ("a number of two threads", |n| pairs(n, |_| (1, 2, 1))),
    ("a thread for each launch", |n| {
        launches(n, |at| (at + 1, 7, [at, at + 5, at + 6, at + 9]))
    }),
    ("a stream for each launch", |n| {
        launches(n, |at| (1, at, [at, at + 1, at + 6, at + 9]))
    }),
    ("kernels that all overlap", |n| {
        launches(n, |at| (1, at, [at, at + 1, n + at, 3 * n]))
    }),
    ("kernels that begin together", |n| {
        launches(n, |at| (1, 7, [at, at + 1, n, n + at]))
    }),
    ("slices of one time", |n| {
        launches(n, |_| (1, 7, [0, 1, 1, 9]))
    }),
    ("streams and waits", waits),
    ("streams that idle beside collectives", idle_streams),
    ("notes beside threads", notes_beside_threads),
    ("modules that run again", modules_again),
    ("modules that operators name", named_modules),
    ("compilations", compilations),
    ("generated kernels", generated),
    ("arrows to one kernel", arrows),
    ("allocations", allocations),
];

fn timeline(events: &[String]) -> Timeline {
    let text = format!(
        r#"{{"schemaVersion":1,"traceEvents":[{}]}}"#,
        events.join(",")
    );
    let mut timeline = Timeline::default();
    json::read(text.as_bytes(), "x.json", &mut timeline).unwrap();
    timeline
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// The least of the times that some runs take.
fn took(runs: usize, mut run: impl FnMut()) -> Duration {
    let times = (0..runs).map(|_| {
        let before = cpu_time();
        run();
        cpu_time() - before
    });
    times.min().unwrap()
}

/// A trace with what its tables share.
struct Hostile {
    timeline: Timeline,
    outcome: Outcome,
    shared: SharedWork,
    report: Report,
}

impl Hostile {
    fn new(events: &[String]) -> Self {
        let (timeline, outcome) = (timeline(events), Outcome::default());
        let shared = SharedWork::default();
        let report = report(&timeline, false, &shared);
        shared.work_index(&timeline);
        Self {
            timeline,
            outcome,
            shared,
            report,
        }
    }
}

fn report(timeline: &Timeline, waste: bool, shared: &SharedWork) -> Report {
    let wanted = Wanted {
        plots: waste,
        waste,
    };
    findings::report(timeline, &Outcome::default(), Vec::new(), wanted, shared)
}

/// A view of a trace.
type View = (&'static str, Box<dyn Fn(&Hostile)>);

/// A table; with calls apart by what keeps them apart, if that is wanted.
fn table(entry: &'static TableEntry, is_apart: bool) -> View {
    let options = Options {
        by_shape: is_apart,
        group_by_stack: if is_apart { 5 } else { 0 },
        ..Options::default()
    };
    let make = move |of: &Hostile| {
        let request = Request {
            timeline: &of.timeline,
            outcome: &of.outcome,
            report: &of.report,
            options: &options,
            shared: &of.shared,
        };
        drop((entry.make)(&request));
    };
    (entry.name, Box::new(make))
}

fn views() -> Vec<View> {
    let findings = |of: &Hostile| drop(report(&of.timeline, true, &SharedWork::default()));
    let mut views: Vec<View> = vec![("findings", Box::new(findings))];
    views.extend(ALL.iter().map(|entry| table(entry, false)));
    views.push(table(&crate::key_averages::ENTRY, true));
    views
}

#[test]
fn no_view_takes_the_square_of_a_trace() {
    let views = views();
    let mut slow = Vec::new();
    for (shape, events) in SHAPES {
        let small = Hostile::new(&events(EVENTS));
        let large = Hostile::new(&events(TIMES * EVENTS));
        let counts = [&small, &large].map(|of| of.timeline.events.len());
        assert!(counts[1] > counts[0] * (TIMES - 1), "{shape}");
        for (view, make) in &views {
            if took(1, || make(&large)) <= FLOOR * MOST {
                continue;
            }
            let large = took(3, || make(&large));
            let small = took(3, || make(&small)).max(FLOOR);
            if large > small * MOST {
                slow.push(format!("{view} of {shape}: {small:?}, {large:?}"));
            }
        }
    }
    assert!(slow.is_empty(), "{slow:#?}");
}
