use super::*;
use aiprof_model::probes::CallKind;
use aiprof_model::wire::{ProcessEvent, ProcessEventKind};
use aiprof_record::recording::Recording;
use aiprof_testkit::script::{LOADER, Script, UR};
use std::cell::RefCell;
use std::rc::Rc;

const APPEND: &str = "zeCommandListAppendLaunchKernel";

/// Text that can be read while it is written.
#[derive(Clone, Default)]
struct Shared(Rc<RefCell<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is printed of a script.
fn trace(script: &Script, options: TraceOptions) -> String {
    let mut recording = Recording::default();
    let exec = ProcessEvent {
        time_ns: 1,
        pid: 1,
        tid: 1,
        kind: ProcessEventKind::Exec {
            comm: "train".into(),
        },
    };
    recording.processes.apply(&exec);
    let out = Shared::default();
    let mut tracer = Tracer::new(options, Box::new(out.clone()));
    for event in &script.events {
        recording.apply(event, &mut [&mut tracer]).unwrap();
    }
    recording.finish(1 << 40, &mut [&mut tracer]);
    let printed = tracer.finish().unwrap();
    assert!(recording.tracker().counts().calls >= printed);
    String::from_utf8(out.0.take()).unwrap()
}

/// A little of everything.
fn script() -> Script {
    let mut s = Script::new();
    s.call("zeCommandListCreateImmediate", &[1, 2], &[0x11]);
    s.kernel("gemm\n\"x\"", 0x21);
    s.enter("urEnqueueKernelLaunch", UR, &[0x77, 0x78]);
    s.call(
        "zeCommandListAppendMemoryCopy",
        &[0x11, 0x1000, 0x2000, 64],
        &[],
    );
    s.call(APPEND, &[0x11, 0x21, 0, 8, 4, 1], &[]);
    s.leave("urEnqueueKernelLaunch", UR, 0, &[]);
    s.enter("zeKernelDestroy", LOADER, &[0x99]);
    s.leave("zeKernelDestroy", LOADER, 0x7800_0005, &[]);
    s.tid = 2;
    s.enter("zeCommandQueueExecuteCommandLists", LOADER, &[0x31]);
    s.array("zeCommandQueueExecuteCommandLists", 0, &[0x11, 0x12]);
    s.leave("zeCommandQueueExecuteCommandLists", LOADER, 0, &[]);
    s.enter("zeCommandQueueSynchronize", LOADER, &[0x31]);
    s.vanish();
    s.tid = 3;
    let sp = s.sp;
    s.enter("DRM_IOCTL_XE_EXEC", 0, &[3, 0xba7c]);
    s.sp = sp;
    s.leave("DRM_IOCTL_XE_EXEC", 0, (-12_i64).cast_unsigned(), &[]);
    s
}

#[test]
fn calls_are_lines_with_arguments_results_and_times() {
    let text = trace(&script(), TraceOptions::default());
    let expected = "    \
    0.000000 train[1] zeCommandListCreateImmediate(context=0x1, device=0x2, list=[0x11]) = ZE_RESULT_SUCCESS <10 ns>
    0.000000 train[1] zeKernelCreate(module=0xd0, kernel=[0x21], name=\"gemm\\n\\\"x\\\"\") = ZE_RESULT_SUCCESS <10 ns>
    0.000000 train[1] urEnqueueKernelLaunch(queue=0x77, kernel=0x78) = 0 <50 ns> # gemm \"x\"
    0.000000 train[1] zeKernelDestroy(kernel=0x99) = ZE_RESULT_ERROR_INVALID_NULL_HANDLE (0x78000005) <10 ns>
    0.000000 train[1/2] zeCommandQueueExecuteCommandLists(queue=0x31, lists=[0x11, 0x12]) = ZE_RESULT_SUCCESS <10 ns>
    0.000000 train[1/3] DRM_IOCTL_XE_EXEC(queue=0x3, batch=0xba7c) = -12 (Cannot allocate memory) <10 ns> # [submitted work]
    0.000000 train[1/2] zeCommandQueueSynchronize(queue=0x31) = ? <end not seen>
";
    assert_eq!(text, expected);
}

#[test]
fn nested_calls_are_indented_where_they_are_wanted() {
    let options = TraceOptions {
        nested: true,
        no_args: true,
        ..TraceOptions::default()
    };
    let text = trace(&script(), options);
    let functions: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_once("] ")?.1.split_once('('))
        .map(|(function, _)| function)
        .collect();
    assert_eq!(
        functions,
        [
            "zeCommandListCreateImmediate",
            "zeKernelCreate",
            "  zeCommandListAppendMemoryCopy",
            "  zeCommandListAppendLaunchKernel",
            "urEnqueueKernelLaunch",
            "zeKernelDestroy",
            "zeCommandQueueExecuteCommandLists",
            "DRM_IOCTL_XE_EXEC",
            "zeCommandQueueSynchronize",
        ]
    );
    assert!(text.contains("zeKernelDestroy() = "));
}

fn functions(filter: CallFilter) -> Vec<String> {
    let options = TraceOptions {
        filter,
        ..TraceOptions::default()
    };
    let text = trace(&script(), options);
    let names = text.lines().filter_map(|line| {
        let (_, call) = line.split_once("] ")?;
        Some(call.split_once('(')?.0.to_owned())
    });
    names.collect()
}

#[test]
fn filters_choose_calls_and_a_chosen_one_is_seen_inside_of_others() {
    let list = |names: &[&str]| names.iter().map(|&n| n.to_owned()).collect::<Vec<_>>();
    let apis = CallFilter {
        apis: list(&["unified*"]),
        ..CallFilter::default()
    };
    assert_eq!(functions(apis), ["urEnqueueKernelLaunch"]);
    let by_function = CallFilter {
        functions: list(&["*Append*"]),
        ..CallFilter::default()
    };
    let inside = ["zeCommandListAppendMemoryCopy", APPEND];
    assert_eq!(functions(by_function), inside);
    let kinds = CallFilter {
        kinds: vec![CallKind::Submit, CallKind::Copy],
        ..CallFilter::default()
    };
    let expected = [
        "zeCommandListAppendMemoryCopy",
        "zeCommandQueueExecuteCommandLists",
        "DRM_IOCTL_XE_EXEC",
    ];
    assert_eq!(functions(kinds), expected);
    let failed = CallFilter {
        failed: true,
        ..CallFilter::default()
    };
    assert_eq!(functions(failed), ["zeKernelDestroy", "DRM_IOCTL_XE_EXEC"]);
    let long = CallFilter {
        min_duration_ns: 50,
        ..CallFilter::default()
    };
    assert_eq!(functions(long), ["urEnqueueKernelLaunch"]);
}

#[test]
fn times_are_of_the_recording_or_of_the_day() {
    let at = |origin_ns, unix_ns| {
        let options = TraceOptions {
            origin_ns,
            unix_ns,
            no_args: true,
            ..TraceOptions::default()
        };
        let text = trace(&script(), options);
        let words = text.split_whitespace();
        words.clone().next().unwrap().to_owned()
    };
    assert_eq!(at(0, None), "0.000000");
    // The first call is at 110 ns.
    assert_eq!(at(1_000_110, None), "-0.001000");
    let unix = |text: &str, seconds: u64| {
        let micros = seconds * 1_000_000_000 + 123_456_000;
        assert_eq!(at(110, Some(micros)), format!("{text}.123456Z"));
    };
    unix("1970-01-01T00:00:00", 0);
    unix("2000-02-29T23:59:59", 951_868_799);
    unix("2026-11-21T14:39:00", 1_795_271_940);
    unix("2100-03-01T00:00:00", 4_107_542_400);
}

#[test]
fn json_lines_have_everything() {
    let options = TraceOptions {
        json: true,
        nested: true,
        ..TraceOptions::default()
    };
    let text = trace(&script(), options);
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 9);
    let launch = &lines[3];
    let outer = &lines[4];
    assert_eq!(launch["function"], APPEND);
    assert_eq!(launch["part"], true);
    assert_eq!(launch["parent"], outer["id"]);
    assert_eq!(launch["args"]["kernel"], "0x21");
    assert_eq!(outer["work"], "gemm\n\"x\"");
    assert_eq!(
        (&outer["api"], &outer["kind"]),
        (&"Unified Runtime".into(), &"launch".into())
    );
    assert_eq!(
        (&outer["duration_ns"], &outer["failed"]),
        (&50.into(), &false.into())
    );
    assert_eq!(lines[1]["args"]["name"], "gemm\n\"x\"");
    assert_eq!(lines[5]["result"], 0x7800_0005);
    assert_eq!(
        lines[5]["result_text"],
        "ZE_RESULT_ERROR_INVALID_NULL_HANDLE (0x78000005)"
    );
    assert_eq!(
        lines[6]["args"]["lists"],
        serde_json::json!(["0x11", "0x12"])
    );
    assert_eq!(lines[7]["result"], -12);
    assert_eq!(lines[8].get("result"), None);
}

#[test]
fn the_table_adds_up_calls_by_function() {
    let mut s = script();
    s.tid = 1;
    s.enter("zeKernelDestroy", LOADER, &[0x99]);
    s.now += 1_000_000;
    s.leave("zeKernelDestroy", LOADER, 0, &[]);
    let options = TraceOptions {
        summary_only: true,
        ..TraceOptions::default()
    };
    let text = trace(&s, options.clone());
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(
        lines[1].join(" "),
        "100.0% 1.00 ms 500 us 10 ns 1.00 ms 2 1 zeKernelDestroy"
    );
    assert_eq!(lines.last().unwrap().join(" "), "100.0% 1.00 ms 8 2 in all");
    let unseen = text
        .lines()
        .find(|line| line.ends_with("Synchronize"))
        .unwrap();
    assert!(unseen.contains("0 s"), "{unseen}");
    let json = trace(
        &s,
        TraceOptions {
            json: true,
            ..options
        },
    );
    let first: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!(first["summary"], "zeKernelDestroy");
    assert_eq!(
        (&first["calls"], &first["max_ns"]),
        (&2.into(), &1_000_010.into())
    );
}

#[test]
fn level_zeros_results_are_the_headers() {
    let path = "/usr/include/level_zero/ze_api.h";
    let Ok(header) = std::fs::read_to_string(path) else {
        println!("skipped: level_zeros_results_are_the_headers: no {path}");
        return;
    };
    let mut found = 0;
    for line in header.lines().map(str::trim) {
        let Some((name, rest)) = line.split_once(" = ") else {
            continue;
        };
        if !name.starts_with("ZE_RESULT_") || name.ends_with("FORCE_UINT32") {
            continue;
        }
        let number = rest.split(',').next().unwrap().trim();
        let code = match number.strip_prefix("0x") {
            Some(hex) => u32::from_str_radix(hex, 16).unwrap(),
            None => number.parse().unwrap(),
        };
        assert_eq!(results::level_zero(code), Some(name));
        found += 1;
    }
    assert!(found > 30, "{found} results in the header");
}

#[test]
fn a_reader_that_goes_ends_the_trace_with_its_error() {
    struct Gone;
    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut tracer = Tracer::new(TraceOptions::default(), Box::new(Gone));
    let mut recording = Recording::default();
    for event in &script().events {
        recording.apply(event, &mut [&mut tracer]).unwrap();
    }
    assert!(tracer.has_failed());
    let error = tracer.finish().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}
