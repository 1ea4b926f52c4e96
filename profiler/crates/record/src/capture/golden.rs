//! The format of captures, frozen: a capture of each version that was ever written is
//! read for ever, and codes keep their meaning.
//!
//! `AIPROF_BLESS=1 cargo test -p aiprof-record golden` writes the file of a new version, and codes
//! that were added behind the others. It changes no file of a version that there is already.

use super::*;
use crate::aggregate::{NoStack, SpecialCode};
use aiprof_common::{PYTHON_MARK, PYTHON_NO_INDEX, PYTHON_PLACED, python_word};
use aiprof_model::probes::{
    CallKind, DataFormat, DataInfo, Probe, ProbeRole, ProbedFile, ResultKind, ValueFormat,
    ValueInfo,
};
use aiprof_model::process::FileTable;
use aiprof_model::profile::{FrameKind, LossKind, StallReason};
use aiprof_model::wire::{
    Call, CallData, CallStack, ClockPair, Counter, DeviceCode, DeviceStream, FileKey, KernelNamed,
    KernelPlaced, MapEvent, OpKind, OpSpan, Ops, OpsNews, OpsPart, Pause, PlacedBy, ProcessEvent,
    ProcessEventKind, ProcessLabels, PythonCode, PythonFound, Sample, StallCount, StallWindow,
    StopReason, Thread, ThreadWait, Trace, TracePoint, WaitReason,
};
use serde::de::DeserializeOwned;
use std::fmt::{Debug, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// All values of an enum without contents, by their codes.
fn all<T: DeserializeOwned>() -> Vec<T> {
    let values = (0..=u8::MAX).map_while(|code| postcard::from_bytes(&[code]).ok());
    values.collect()
}

/// The first values: those that there were when the capture was written.
fn first<T: DeserializeOwned>(count: usize) -> impl Iterator<Item = T> {
    all().into_iter().take(count)
}

fn list<T: DeserializeOwned + Debug>(out: &mut String, name: &str) {
    for (code, value) in all::<T>().into_iter().enumerate() {
        writeln!(out, "{name} {code} {value:?}").unwrap();
    }
}

fn data(name: &str) -> std::path::PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("tests/data/capture").join(name)
}

fn writes() -> bool {
    std::env::var_os("AIPROF_BLESS").is_some()
}

/// What is added comes behind what was there.
#[test]
fn codes_keep_their_meaning() {
    let mut now = String::new();
    list::<LossKind>(&mut now, "LossKind");
    list::<StopReason>(&mut now, "StopReason");
    list::<CallKind>(&mut now, "CallKind");
    list::<ProbeRole>(&mut now, "Role");
    list::<ResultKind>(&mut now, "ResultKind");
    list::<DataFormat>(&mut now, "DataFormat");
    list::<FrameKind>(&mut now, "FrameKind");
    list::<StallReason>(&mut now, "StallReason");
    list::<PlacedBy>(&mut now, "PlacedBy");
    list::<SpecialCode>(&mut now, "SpecialCode");
    list::<NoStack>(&mut now, "NoStack");
    list::<WaitReason>(&mut now, "WaitReason");
    let known = std::fs::read_to_string(data("codes.txt")).unwrap();
    let lines: Vec<&str> = now.lines().collect();
    assert!(known.lines().count() > 100, "{known}");
    for line in known.lines() {
        assert!(
            lines.contains(&line),
            "{line}: its code means something else"
        );
    }
    if writes() {
        std::fs::write(data("codes.txt"), &now).unwrap();
    }
}

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn file(name: &str) -> FileKey {
    FileKey {
        path: format!("/opt/golden/{name}"),
        build_id: None,
        device: 1,
        inode: 9,
        version: 5,
    }
}

fn map(start: u64, name: &str) -> MapEvent {
    MapEvent {
        start,
        len: 0x1000,
        file_offset: 0x2000,
        file: file(name),
    }
}

fn sample(time_ns: u64, stop: StopReason) -> Sample {
    Sample {
        time_ns,
        cpu: 3,
        thread: Thread {
            pid: 70,
            tid: 71,
            comm: "worker".into(),
        },
        cgroup: 44,
        period: 10_101_010,
        space: 2,
        miss_dir: 0,
        miss_page: 0,
        stop,
        flags: 0,
        rip: 0,
        rsp: 0,
        rbp: 0,
        user: vec![0x5123, 0x5456, 0x7777],
        kernel: vec![0xffff_ffff_8100_0000],
        python: vec![],
    }
}

/// A sample with Python frames, and what they are.
fn python() -> Vec<Event> {
    let (time_ns, pid) = (3300, 70);
    let found = PythonFound {
        time_ns,
        pid,
        version: "3.12".into(),
        text: 0x5000..0x6000,
        eval: 0x5400..0x5500,
        one_each: false,
    };
    let code = PythonCode {
        time_ns,
        pid,
        id: 9,
        first_line: 3,
        instruction: 2,
        module: "golden".into(),
        function: "run".into(),
        file: "/opt/golden/golden.py".into(),
        lines: vec![0x80, 0],
        is_cut: false,
    };
    let words = vec![
        python_word(9, 0),
        PYTHON_MARK | PYTHON_PLACED | 1,
        python_word(9, PYTHON_NO_INDEX),
    ];
    vec![
        Event::PythonFound(found),
        Event::PythonCode(code),
        Event::Sample(Sample {
            python: words,
            ..sample(3301, StopReason::End)
        }),
    ]
}

fn processes() -> Vec<Event> {
    let kinds = [
        ProcessEventKind::Fork { parent: 1 },
        ProcessEventKind::Exec {
            comm: "golden".into(),
        },
        ProcessEventKind::Comm {
            comm: "renamed".into(),
        },
        ProcessEventKind::Map(map(0x5000, "program")),
        ProcessEventKind::Snapshot {
            comm: "golden".into(),
            maps: vec![map(0x5000, "program"), map(0x7000, "libgolden.so")],
        },
        ProcessEventKind::Throttled,
        ProcessEventKind::Lost { count: 6 },
    ];
    let events = kinds.into_iter().zip(1000..);
    let event = |(kind, time_ns)| {
        Event::Process(ProcessEvent {
            time_ns,
            pid: 70,
            tid: 70,
            kind,
        })
    };
    events.map(event).collect()
}

fn probe() -> Probe {
    let value = |name: &str, format| ValueInfo {
        name: name.into(),
        format,
        at_exit: name == "out",
    };
    Probe {
        id: 5,
        table: "golden".into(),
        api: "Golden".into(),
        function: "goldenLaunch".into(),
        kind: CallKind::Launch,
        role: Some(ProbeRole::Release),
        is_ioctl: false,
        values: vec![
            value("kernel", ValueFormat::Hex),
            value("count", ValueFormat::Signed(4)),
            value("scale", ValueFormat::Float(8)),
            value("out", ValueFormat::Decimal),
        ],
        data: vec![DataInfo {
            name: "name".into(),
            format: DataFormat::Text,
        }],
        result: ResultKind::ZeroOk,
        has_exit: true,
        layout: None,
    }
}

fn calls() -> Vec<Event> {
    let mut values = [0; aiprof_common::MAX_VALUES];
    values[..4].copy_from_slice(&[0x9000, 7, 2.5_f64.to_bits(), 8]);
    let call = |time_ns, flags| {
        Event::Call(Call {
            time_ns,
            cpu: 1,
            pid: 70,
            tid: 71,
            probe: 5,
            library: 2,
            stack: 12,
            sp: 0x7fff_0000,
            around_ns: if flags == 0 { 0 } else { 2100 },
            result: 0,
            unread: 1 << 9,
            flags,
            values,
        })
    };
    vec![
        Event::Probe(probe()),
        Event::ProbedFile(ProbedFile {
            id: 2,
            path: "/opt/golden/libgolden.so".into(),
            table: "golden".into(),
            layer: 1,
        }),
        Event::CallStack(CallStack {
            id: 12,
            sample: sample(2000, StopReason::End),
        }),
        call(2100, 0),
        Event::CallData(CallData {
            time_ns: 2100,
            pid: 70,
            tid: 71,
            probe: 5,
            tag: 0,
            unread: false,
            offset: 0,
            total: 4,
            bytes: b"gemm".to_vec(),
        }),
        call(2900, aiprof_common::CALL_EXIT),
        Event::KernelNamed(KernelNamed {
            time_ns: 2950,
            pid: 70,
            kernel: 0x9000,
            name: "gemm".into(),
        }),
    ]
}

fn devices() -> Vec<Event> {
    let mut counts = [0; StallReason::ALL.len()];
    for (count, n) in counts.iter_mut().zip(1..) {
        *count = n;
    }
    let place = |by| KernelPlaced {
        time_ns: 3300,
        pid: 70,
        kernel: 0x9000,
        address: 0x8_0000,
        size: 256,
        instruction_base: Some(0x10_0000),
        by,
    };
    let mut events = vec![
        Event::TracePoint(TracePoint {
            id: 1,
            category: "dma_fence".into(),
            name: "dma_fence_init".into(),
            values: vec!["context".into(), "seqno".into()],
            texts: vec!["driver".into(), "timeline".into()],
        }),
        Event::Trace(Trace {
            time_ns: 3000,
            cpu: 0,
            pid: 70,
            tid: 71,
            point: 1,
            values: [4; aiprof_common::TRACE_VALUES],
            texts: ["xe".into(), "rcs0".into()],
        }),
        Event::Clock(ClockPair {
            time_ns: 3100,
            unix_ns: 1_767_225_600_000_000_000,
        }),
        Event::Counter(Counter {
            time_ns: 3150,
            source: "AIU 0000:3a:00.0".into(),
            name: "power".into(),
            unit: "W".into(),
            milli: -1500,
        }),
        Event::DeviceStream(DeviceStream {
            id: 0,
            name: "golden".into(),
            device: 0xe20b,
            card: 1,
            gt: 0,
            relative: true,
            cycles_per_sample: 251,
            replayed: Some("golden.devcap".into()),
        }),
        Event::Stalls(StallWindow {
            stream: 0,
            from_ns: 3000,
            to_ns: 3200,
            busy_ns: Some(150),
            records: 9,
            drops: 1,
            refused: 2,
            counts: vec![StallCount {
                address: 0x8_0010,
                counts,
            }],
        }),
        Event::DeviceCode(DeviceCode {
            time_ns: 3250,
            pid: 70,
            bytes: vec![1, 2, 3],
        }),
    ];
    let placed = first::<PlacedBy>(4).map(place);
    events.extend(placed.map(Event::KernelPlaced));
    events
}

/// One of each kind of event.
fn events() -> Vec<Event> {
    let mut events = processes();
    let stops = first::<StopReason>(14).zip(1500..);
    events.extend(stops.map(|(stop, time)| Event::Sample(sample(time, stop))));
    events.extend(python());
    events.extend(calls());
    events.extend(devices());
    events.push(Event::Process(ProcessEvent {
        time_ns: 4000,
        pid: 70,
        tid: 70,
        kind: ProcessEventKind::Exit,
    }));
    events.extend([0, 70].map(|pid| {
        Event::Labels(ProcessLabels {
            time_ns: 4100,
            pid,
            labels: vec![("rank".into(), "3".into())],
        })
    }));
    events.extend(first::<WaitReason>(8).zip(4200..).map(|(reason, time_ns)| {
        Event::Wait(ThreadWait {
            time_ns,
            pid: 70,
            tid: 71,
            begin_ns: 4100,
            end_ns: 4190,
            blocked_ns: 60,
            queued_ns: 30,
            stack: 5,
            waker: Some((70, 70)),
            syscall: Some(202),
            arguments: [1, 2],
            flags: 0,
            reason,
        })
    }));
    events.extend(ops());
    let pause = |(begins, time_ns)| Event::Pause(Pause { time_ns, begins });
    events.extend([(true, 4400), (false, 4500)].map(pause));
    events
}

/// A window of operators, and two that did not come.
fn ops() -> Vec<Event> {
    let span = |kind, name, shapes| OpSpan {
        tid: 71,
        kind,
        name,
        shapes,
        begin_ns: 3290,
        length_ns: 20,
        sequence: shapes.map(u64::from),
        forward_thread: None,
    };
    let part = OpsPart {
        texts: vec!["aten::mm".into(), "[[2,2],[2,2]]".into(), "step".into()],
        spans: vec![
            span(OpKind::Annotation, 2, None),
            span(OpKind::Operator, 0, Some(1)),
        ],
        refused: 3,
        is_last: true,
    };
    let news = [
        OpsNews::Asked,
        OpsNews::Recorded(part),
        OpsNews::Unanswered,
        OpsNews::Unreadable,
    ];
    let events = news.into_iter().zip(4300..);
    let event = |(news, time_ns)| {
        let pid = 70;
        Event::Ops(Ops { time_ns, pid, news })
    };
    events.map(event).collect()
}

/// A capture of this version.
fn capture() -> Vec<u8> {
    let sink = Sink::default();
    let meta = Meta {
        title: "golden".into(),
        host: "host".into(),
        kernel: "6.1.0".into(),
        command: "golden 1".into(),
        scope: "process 70 (golden)".into(),
        start_unix_ns: 1_767_225_600_000_000_000,
        duration_ns: 3_000,
        cpus: 4,
        frequency_hz: 99,
        period_ns: 10_101_010,
    };
    let mut writer = CaptureWriter::new(Box::new(sink.clone()), &meta, 10_101_010).unwrap();
    events().iter().for_each(|e| writer.event(e).unwrap());
    let mut files = FileTable::default();
    let program = files.intern(&file("program")).0;
    let frames = |name: &str| {
        let kinds = first::<FrameKind>(8);
        let frame = |kind| SymFrame {
            name: format!("{name} {kind:?}"),
            kind,
            source: Some(("golden.c".into(), 7)),
        };
        kinds.map(frame).collect::<Vec<_>>()
    };
    let mut names = vec![
        (
            Code::File {
                file: program,
                offset: 0x2123,
            },
            frames("file"),
        ),
        (
            Code::Kernel {
                address: 0xffff_ffff_8100_0000,
            },
            frames("kernel"),
        ),
        (
            Code::Jit {
                pid: 70,
                address: 0x7777,
            },
            frames("jit"),
        ),
    ];
    let special = first::<SpecialCode>(5).map(Code::Special);
    names.extend(special.map(|code| (code, Vec::new())));
    let segment = TextSegment {
        file_offset: 0x2000,
        vaddr: 0x40_2000,
        size: 0x1000,
    };
    let mut losses = Losses::default();
    for (kind, n) in first::<LossKind>(20).zip(1..) {
        losses.add(kind, n);
    }
    let known = ResolvedNames {
        names: &names,
        texts: &[(program, vec![segment])],
        files: &files,
        cgroups: &[(44, "/golden".to_owned())],
    };
    let busy = BTreeMap::from([(0, 5), (3, 9)]);
    writer.finish(&known, &meta, &losses, &busy).unwrap();
    Arc::into_inner(sink.0).unwrap().into_inner().unwrap()
}

/// What is behind the magic, decompressed.
fn stream(capture: &[u8]) -> Vec<u8> {
    zstd::decode_all(&capture[MAGIC.len()..]).unwrap()
}

/// The file of this version is what would be written now, but for its compression: a
/// change of the format needs a new version.
#[test]
fn a_capture_of_this_version_is_written_as_ever() {
    let version = char::from(MAGIC[7]);
    let name = format!("v{version}.aiprof");
    let now = capture();
    if writes() && !data(&name).exists() {
        std::fs::write(data(&name), &now).unwrap();
    }
    let golden = std::fs::read(data(&name)).unwrap();
    assert_eq!(golden[..8], MAGIC[..]);
    assert!(
        stream(&golden) == stream(&now),
        "the format has changed, and not its version"
    );
}

/// All versions that this aiprof claims to read.
#[test]
fn captures_of_all_versions_are_read() {
    let mut seen = 0;
    for entry in std::fs::read_dir(data("")).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_none_or(|extension| extension != "aiprof")
        {
            continue;
        }
        seen += 1;
        let options = ReplayOptions {
            source_lines: true,
            ..ReplayOptions::default()
        };
        let mut read = Vec::new();
        let scanned = scan(&path, options, &mut |scan| {
            if let CaptureItem::Event(event) = scan {
                read.push(event);
            }
            std::ops::ControlFlow::Continue(())
        });
        let scanned = scanned.unwrap();
        assert_eq!(read, events(), "{}", path.display());
        assert_eq!(scanned.meta.command, "golden 1");
        assert_eq!(scanned.losses.get(LossKind::RingDrops), 1);
        let profile = replay(&path, &options).unwrap();
        let kernel = profile.strings.iter().any(|s| s == "kernel Kernel");
        assert!(kernel && profile.strings.iter().any(|s| s == "/golden"));
    }
    assert!(seen > 0);
}
