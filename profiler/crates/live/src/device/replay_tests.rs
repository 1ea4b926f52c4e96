use super::*;
use crate::bpf::perf::monotonic_ns;
use aiprof_model::{
    eu_stall::{
        Layout,
        capture::{CaptureClock, CaptureFrame, CaptureWriter, Header},
    },
    profile::{LossKind, StallReason},
    wire::{DeviceStream, StallWindow},
};
use rustix::fs::{FileType, Mode};
use std::{
    fs::File,
    io::Write as _,
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
};

/// A record of xe2: an address below 4 GiB, and counts of scoreboard stalls.
fn record(address: u64, sbid: u64) -> [u8; 64] {
    let mut record = [0; 64];
    let bits = u128::from(address >> 3) | u128::from(sbid) << 77;
    record[..16].copy_from_slice(&bits.to_le_bytes());
    record
}

fn records(count: u64) -> Vec<u8> {
    (0..count).flat_map(|i| record(i % 10 * 16, 2)).collect()
}

fn start(spec: &str) -> DeviceSamplers {
    let replay = vec![spec.parse().unwrap()];
    DeviceSamplers::start(&DeviceOptions {
        replay,
        xe: false,
        ..DeviceOptions::default()
    })
    .unwrap()
}

fn fifo(folder: &Path) -> PathBuf {
    let path = folder.join("fifo");
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, mode, 0).unwrap();
    path
}

/// Streams and windows.
#[derive(Default)]
struct Told {
    streams: Vec<DeviceStream>,
    windows: Vec<StallWindow>,
}

impl Told {
    fn take(&mut self, samplers: &DeviceSamplers) {
        for event in samplers.events() {
            match event {
                Event::DeviceStream(stream) => self.streams.push(stream),
                Event::Stalls(window) => {
                    // The description of a stream comes first.
                    assert!(self.streams.iter().any(|s| s.id == window.stream));
                    self.windows.push(window);
                }
                _ => panic!("{event:?}"),
            }
        }
    }

    fn records(&self) -> u64 {
        self.windows.iter().map(|w| w.records).sum()
    }

    fn sbid(&self) -> u64 {
        let counts = self.windows.iter().flat_map(|w| &w.counts);
        counts
            .map(|c| u64::from(c.counts[StallReason::Sbid as usize]))
            .sum()
    }

    /// Waits until this number of records has come, 5 s at most.
    fn wait(&mut self, samplers: &DeviceSamplers, records: u64) {
        let end = Instant::now() + Duration::from_secs(5);
        while self.records() < records && Instant::now() < end {
            self.take(samplers);
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(self.records(), records);
    }
}

fn stopped(mut samplers: DeviceSamplers) -> (Told, DeviceSamplers) {
    samplers.stop();
    let mut told = Told::default();
    told.take(&samplers);
    (told, samplers)
}

#[test]
fn a_file_is_one_window_over_the_recording() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stalls");
    // The last record was not written to its end.
    std::fs::write(&path, [&*records(1000), &[1; 30]].concat()).unwrap();
    let before = monotonic_ns();
    let samplers = start(&format!(
        "xe2:{},gt=2,card=1,cycles=251,name=mine",
        path.display()
    ));
    std::thread::sleep(Duration::from_millis(30));
    let late = monotonic_ns();
    let (told, samplers) = stopped(samplers);
    let expected = DeviceStream {
        id: 0,
        name: "mine".into(),
        device: 0,
        card: 1,
        gt: 2,
        relative: true,
        cycles_per_sample: 251,
        replayed: Some(path.display().to_string()),
    };
    assert_eq!(told.streams, [expected]);
    let [window] = &*told.windows else {
        panic!("{:?}", told.windows);
    };
    assert!(window.from_ns >= before && window.from_ns < late);
    assert!(window.to_ns >= late && window.to_ns <= monotonic_ns());
    assert_eq!((window.records, window.counts.len()), (1000, 10));
    assert_eq!(told.sbid(), 2000);
    assert_eq!(samplers.losses().get(LossKind::DeviceUndecodable), 1);
    assert_eq!(samplers.problems(), Vec::<String>::new());
}

#[test]
fn a_base_makes_addresses_absolute() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stalls");
    std::fs::write(&path, record(0x40, 1)).unwrap();
    let samplers = start(&format!("xe2:{},base=0x800100000000", path.display()));
    let (told, _) = stopped(samplers);
    assert!(!told.streams[0].relative);
    assert_eq!(told.windows[0].counts[0].address, 0x8001_0000_0040);
}

#[test]
fn a_fifo_is_read_live() {
    let folder = tempfile::tempdir().unwrap();
    let path = fifo(folder.path());
    let start_ns = monotonic_ns();
    let samplers = start(&format!("xe2:{}", path.display()));
    let mut told = Told::default();
    // Writers come and go.
    for round in 1..4_u64 {
        let mut writer = File::options().write(true).open(&path).unwrap();
        let before = monotonic_ns();
        writer.write_all(&records(100)).unwrap();
        let after = monotonic_ns();
        told.wait(&samplers, round * 100);
        let last = told.windows.last().unwrap();
        assert!(last.from_ns >= start_ns && last.to_ns <= monotonic_ns());
        assert!(last.from_ns <= before && last.to_ns >= after.min(last.to_ns));
        // Not the whole past.
        assert!(last.to_ns - last.from_ns < 2_000_000_000);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(told.sbid(), 600);
    let mut writer = File::options().write(true).open(&path).unwrap();
    writer.write_all(&records(7)).unwrap();
    // What was written before the end belongs to it.
    let mut samplers = samplers;
    samplers.stop();
    told.take(&samplers);
    assert_eq!(told.records(), 307);
    assert!(told.windows.is_sorted_by_key(|w| w.to_ns));
    assert_eq!(samplers.losses(), Losses::default());
}

#[test]
fn a_writer_that_dies_within_a_record_spoils_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = fifo(folder.path());
    let samplers = start(&format!("xe2:{}", path.display()));
    let mut told = Told::default();
    let mut writer = File::options().write(true).open(&path).unwrap();
    writer.write_all(&records(3)).unwrap();
    writer.write_all(&record(0x50, 9)[..20]).unwrap();
    drop(writer);
    told.wait(&samplers, 3);
    let end = Instant::now() + Duration::from_secs(5);
    while samplers.losses() == Losses::default() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(samplers.losses().get(LossKind::DeviceUndecodable), 1);
    let mut writer = File::options().write(true).open(&path).unwrap();
    writer.write_all(&records(5)).unwrap();
    told.wait(&samplers, 8);
    assert_eq!(told.sbid(), 16);
}

#[test]
fn a_socket_is_read_live() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let samplers = start(&format!("xe2:{}", path.display()));
    let mut told = Told::default();
    for round in 1..3 {
        let (mut writer, _) = listener.accept().unwrap();
        // In pieces that are no records.
        for piece in records(50).chunks(100) {
            writer.write_all(piece).unwrap();
        }
        told.wait(&samplers, round * 50);
    }
    assert_eq!(told.sbid(), 200);
    drop(listener);
    // No process listens there any more.
    let end = Instant::now() + Duration::from_secs(5);
    while samplers.problems().is_empty() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    let problems = samplers.problems();
    assert!(problems[0].contains("socket"), "{problems:?}");
}

#[test]
fn windows_that_nobody_takes_grow() {
    let folder = tempfile::tempdir().unwrap();
    let path = fifo(folder.path());
    let samplers = start(&format!("xe2:{}", path.display()));
    let mut writer = File::options().write(true).open(&path).unwrap();
    let rounds = MAX_WAITING as u64 + 50;
    for _ in 0..rounds {
        writer.write_all(&records(10)).unwrap();
        std::thread::sleep(Duration::from_millis(8));
    }
    let (told, samplers) = stopped(samplers);
    assert_eq!((told.records(), told.sbid()), (rounds * 10, rounds * 20));
    assert!(
        told.windows.len() <= MAX_WAITING + 3,
        "{}",
        told.windows.len()
    );
    // Those that had no room are one, without a gap in time.
    let last = told.windows.last().unwrap();
    assert!(last.records > 100, "{}", last.records);
    let before = &told.windows[told.windows.len() - 2];
    assert!(last.from_ns <= before.to_ns);
    assert_eq!(samplers.losses(), Losses::default());
}

fn capture(clock: CaptureClock, frames: &[(u64, u64, u32, Vec<u8>)]) -> Vec<u8> {
    let header = Header {
        layout: Layout::Xe2,
        clock,
        record_size: 64,
        card: 4,
        gt: 1,
        cycles: 502,
        base: None,
        name: "xe 0000:03:00.0 GT1".into(),
    };
    let mut writer = CaptureWriter::new(Vec::new(), &header).unwrap();
    for (from_ns, to_ns, drops, bytes) in frames {
        let frame = CaptureFrame {
            from_ns: *from_ns,
            to_ns: *to_ns,
            drops: *drops,
        };
        writer.frame(frame, bytes).unwrap();
    }
    writer.into_inner()
}

#[test]
fn a_capture_has_its_own_times() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("capture");
    let cut = [&*records(2), &[0; 10]].concat();
    let frames = [
        (100, 200, 0, records(20)),
        (200, 300, 3, Vec::new()),
        (300, 450, 0, cut),
    ];
    std::fs::write(&path, capture(CaptureClock::Monotonic, &frames)).unwrap();
    let (told, samplers) = stopped(start(&format!("capture:{},gt=7", path.display())));
    let stream = &told.streams[0];
    assert_eq!(
        (&*stream.name, stream.card, stream.gt),
        ("xe 0000:03:00.0 GT1", 4, 7)
    );
    assert_eq!((stream.cycles_per_sample, stream.relative), (502, true));
    assert_eq!(stream.replayed, Some(path.display().to_string()));
    let windows: Vec<_> = told
        .windows
        .iter()
        .map(|w| (w.from_ns, w.to_ns, w.records, w.drops))
        .collect();
    assert_eq!(
        windows,
        [(100, 200, 20, 0), (200, 300, 0, 3), (300, 450, 2, 0)]
    );
    let losses = samplers.losses();
    assert_eq!(losses.get(LossKind::DeviceDrops), 3);
    assert_eq!(losses.get(LossKind::DeviceUndecodable), 1);
    // Times from the begin of the recording.
    std::fs::write(&path, capture(CaptureClock::Recording, &frames[..1])).unwrap();
    let before = monotonic_ns();
    let (told, _) = stopped(start(&format!("capture:{}", path.display())));
    let window = &told.windows[0];
    assert!(window.from_ns >= before + 100 && window.to_ns <= monotonic_ns() + 200);
    assert_eq!(window.to_ns - window.from_ns, 100);
}

#[test]
fn more_frames_than_wait_are_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("capture");
    let frames: Vec<_> = (0..2000).map(|i| (i, i + 1, 0, records(3))).collect();
    std::fs::write(&path, capture(CaptureClock::Monotonic, &frames)).unwrap();
    let (told, _) = stopped(start(&format!("capture:{}", path.display())));
    assert_eq!((told.windows.len(), told.records()), (2000, 6000));
}

#[test]
fn captures_are_read_live_and_when_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = fifo(folder.path());
    let samplers = start(&format!("capture:{}", path.display()));
    let mut told = Told::default();
    let bytes = capture(
        CaptureClock::Monotonic,
        &[(1, 2, 0, records(4)), (2, 3, 0, records(4))],
    );
    // The writer dies in the second frame, after two records and a bit.
    let mut writer = File::options().write(true).open(&path).unwrap();
    writer.write_all(&bytes[..bytes.len() - 64 - 50]).unwrap();
    drop(writer);
    told.wait(&samplers, 6);
    let mut writer = File::options().write(true).open(&path).unwrap();
    writer.write_all(&bytes).unwrap();
    told.wait(&samplers, 14);
    assert_eq!(told.streams.len(), 1);
    assert!(samplers.losses().get(LossKind::DeviceUndecodable) >= 1);
    // A frame that ends before it begins.
    writer
        .write_all(&[&[0xff; 8][..], &[0; 92]].concat())
        .unwrap();
    let end = Instant::now() + Duration::from_secs(5);
    while samplers.problems().is_empty() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(samplers.problems()[0].contains("block of device samples"));
}

#[test]
fn the_wrong_layout_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stalls");
    std::fs::write(&path, [0xff; 640]).unwrap();
    let (told, samplers) = stopped(start(&format!("xe2:{}", path.display())));
    assert_eq!(told.records(), 10);
    assert!(samplers.problems()[0].contains("another layout"));
}

#[test]
fn what_cannot_be_opened_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().join("none"), folder.path().into()] {
        let replay = vec![format!("pvc:{}", path.display()).parse().unwrap()];
        let options = DeviceOptions {
            replay,
            xe: false,
            ..DeviceOptions::default()
        };
        let error = DeviceSamplers::start(&options).unwrap_err();
        assert!(error.to_string().contains(&*path.to_string_lossy()));
    }
}

#[test]
fn specs_are_parsed() {
    let spec: ReplaySpec = "xe3p:/tmp/a:b,gt=1,card=2,base=0xffff8000,cycles=251,name=x=y"
        .parse()
        .unwrap();
    assert_eq!(spec.format, ReplayFormat::Raw(Layout::Xe3p));
    assert_eq!(spec.path, Path::new("/tmp/a:b"));
    assert_eq!(
        (spec.gt, spec.card, spec.cycles),
        (Some(1), Some(2), Some(251))
    );
    assert_eq!(
        (spec.base, spec.name.as_deref()),
        (Some(0xffff_8000), Some("x=y"))
    );
    let spec: ReplaySpec = "capture:x".parse().unwrap();
    assert_eq!((spec.format, spec.gt), (ReplayFormat::Capture, None));
    for (text, part) in [
        ("/tmp/x", "LAYOUT:PATH"),
        ("xe9:/tmp/x", "xe9"),
        ("xe2:", "path"),
        ("xe2:,gt=1", "path"),
        ("xe2:/x,gt=-1", "'-1'"),
        ("xe2:/x,base=12", "hexadecimal"),
        ("xe2:/x,base=0x1ffffffffffffffff", "hexadecimal"),
        ("xe2:/x,gt", "KEY=VALUE"),
        ("xe2:/x,colour=red", "colour"),
    ] {
        let error = text.parse::<ReplaySpec>().unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    }
}
