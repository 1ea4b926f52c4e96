use super::*;
use crate::aggregate::LaunchOptions;
use aiprof_model::process::FileTable;
use aiprof_model::profile::{FrameKind, Profile};
use aiprof_model::wire::{
    FileKey, MapEvent, ProcessEvent, ProcessEventKind, Sample, StopReason, Thread,
};
use std::io::Write;
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn program() -> FileKey {
    FileKey {
        path: "/bin/p".into(),
        build_id: None,
        device: 1,
        inode: 9,
        version: 0,
    }
}

fn events() -> Vec<Event> {
    let process = |kind| {
        Event::Process(ProcessEvent {
            time_ns: 1,
            pid: 4,
            tid: 4,
            kind,
        })
    };
    let file = program();
    let map = MapEvent {
        start: 0x1000,
        len: 0x1000,
        file_offset: 0,
        file,
    };
    let mut all = vec![
        process(ProcessEventKind::Exec { comm: "p".into() }),
        process(ProcessEventKind::Map(map)),
    ];
    all.extend((0..600).map(|i| {
        Event::Sample(Sample {
            time_ns: 10 + i,
            cpu: 0,
            thread: Thread {
                pid: 4,
                tid: 4,
                comm: "p".into(),
            },
            cgroup: 3,
            period: 1,
            space: 0,
            miss_dir: 0,
            miss_page: 0,
            stop: StopReason::End,
            flags: 0,
            rip: 0,
            rsp: 0,
            rbp: 0,
            user: vec![0x1000 + i % 3],
            kernel: vec![],
            python: vec![],
        })
    }));
    all
}

fn capture() -> Vec<u8> {
    let sink = Sink::default();
    let meta = Meta {
        host: "h".into(),
        ..Meta::default()
    };
    let mut writer = CaptureWriter::new(Box::new(sink.clone()), &meta, 5).unwrap();
    events().iter().for_each(|e| writer.event(e).unwrap());
    let frame = |name: &str| SymFrame {
        name: name.into(),
        kind: FrameKind::Native,
        source: None,
    };
    // The recording has other numbers, for things that no event names.
    let mut files = FileTable::default();
    files.handle();
    let file = files.intern(&program()).0;
    let code = |file| Code::File { file, offset: 0 };
    let names = vec![
        (code(file), vec![frame("zero")]),
        (code(file + 1), vec![frame("nobody's")]),
    ];
    let end = Meta {
        duration_ns: 77,
        ..meta
    };
    let cgroups = [(3, "/c".to_owned())];
    writer
        .finish(
            &ResolvedNames {
                names: &names,
                texts: &[],
                files: &files,
                cgroups: &cgroups,
            },
            &end,
            &Losses::default(),
            &BTreeMap::new(),
        )
        .unwrap();
    Arc::into_inner(sink.0).unwrap().into_inner().unwrap()
}

fn replay_bytes(bytes: &[u8]) -> Result<Profile, ImportError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.aiprof");
    std::fs::write(&path, bytes).unwrap();
    replay(&path, &ReplayOptions::default())
}

#[test]
fn what_was_written_is_what_is_read() {
    let profile = replay_bytes(&capture()).unwrap();
    assert_eq!(
        (profile.total_count(), profile.total_time_ns()),
        (600, 3000)
    );
    assert_eq!(
        (profile.meta.host.as_str(), profile.meta.duration_ns),
        ("h", 77)
    );
    assert!(profile.strings.iter().any(|s| s == "zero"));
    assert!(profile.strings.iter().all(|s| s != "nobody's"));
    assert_eq!(
        profile.samples[0].cgroup.map(|c| profile.str(c)),
        Some("/c")
    );
}

#[test]
fn calls_are_replayed_as_launches_or_left_out() {
    use aiprof_testkit::script::Script;
    let mut script = Script::new();
    script.call("zeCommandListCreateImmediate", &[1, 2], &[0x11]);
    script.kernel("gemm", 0x21);
    for _ in 0..700 {
        script.launch(0x11, 0x21);
    }
    let sink = Sink::default();
    let meta = Meta::default();
    let mut writer = CaptureWriter::new(Box::new(sink.clone()), &meta, 5).unwrap();
    script.events.iter().for_each(|e| writer.event(e).unwrap());
    let (losses, busy) = (Losses::default(), BTreeMap::new());
    let known = ResolvedNames {
        names: &[],
        texts: &[],
        files: &FileTable::default(),
        cgroups: &[],
    };
    writer.finish(&known, &meta, &losses, &busy).unwrap();
    let bytes = Arc::into_inner(sink.0).unwrap().into_inner().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.aiprof");
    std::fs::write(&path, bytes).unwrap();
    let replayed = |launches: bool| {
        let options = ReplayOptions {
            launches: launches.then_some(LaunchOptions { timed: false }),
            ..ReplayOptions::default()
        };
        replay(&path, &options).unwrap()
    };
    assert_eq!(replayed(true).total_count(), 700);
    assert!(replayed(true).strings.iter().any(|s| s == "gemm"));
    assert_eq!(replayed(false).total_count(), 0);
}

#[test]
fn every_prefix_gives_an_error_or_what_is_whole() {
    let full = capture();
    let mut usable = 0;
    for len in 0..full.len() {
        match replay_bytes(&full[..len]) {
            Ok(profile) => {
                usable += 1;
                assert!(profile.total_count() <= 600);
            }
            Err(ImportError::NotACapture(_)) => assert!(len < 8, "{len}"),
            Err(ImportError::Headless(_)) => {}
            Err(other) => panic!("{len}: {other}"),
        }
    }
    assert!(usable > 0, "no prefix was usable");
}

#[test]
fn other_files_and_versions_are_named() {
    assert!(matches!(
        replay_bytes(b"\x7fELF...."),
        Err(ImportError::NotACapture(_))
    ));
    let mut other = capture();
    other[7] = b'9';
    assert!(matches!(
        replay_bytes(&other),
        Err(ImportError::Version { found: '9', .. })
    ));
}
