use super::Layout;
use super::capture::*;

fn header() -> Header {
    Header {
        layout: Layout::Xe2,
        clock: CaptureClock::Recording,
        record_size: 64,
        card: 3,
        gt: 1,
        cycles: 1004,
        base: Some(0x8001_0000_0000),
        name: "xe 0000:03:00.0 GT1 ä".into(),
    }
}

const FRAMES: [(u64, u64, u32, usize); 3] = [(5, 10, 0, 640), (10, 10, 2, 0), (10, 900, 0, 64)];

fn capture() -> Vec<u8> {
    let mut writer = CaptureWriter::new(Vec::new(), &header()).unwrap();
    for (from_ns, to_ns, drops, length) in FRAMES {
        let frame = CaptureFrame {
            from_ns,
            to_ns,
            drops,
        };
        writer.frame(frame, &vec![length as u8; length]).unwrap();
    }
    writer.into_inner()
}

#[derive(Default)]
struct Told {
    header: Option<Header>,
    frames: Vec<(u64, u64, u32, usize)>,
    ends: usize,
}

fn read(reader: &mut CaptureReader, bytes: &[u8], told: &mut Told) -> Result<(), CaptureError> {
    reader.read(bytes, |part| match part {
        Part::Header(header) => told.header = Some(header.clone()),
        Part::Begin(f) => told.frames.push((f.from_ns, f.to_ns, f.drops, 0)),
        Part::Records(records) => told.frames.last_mut().unwrap().3 += records.len(),
        Part::End => told.ends += 1,
    })
}

#[test]
fn what_is_written_is_read() {
    let bytes = capture();
    for pieces in [1, 5, 36, 37, 100, bytes.len()] {
        let (mut reader, mut told) = (CaptureReader::new(), Told::default());
        for piece in bytes.chunks(pieces) {
            read(&mut reader, piece, &mut told).unwrap();
        }
        assert_eq!(told.header, Some(header()), "{pieces}");
        assert_eq!((&*told.frames, told.ends), (&FRAMES[..], 3));
        assert!(!reader.is_within());
    }
    let nameless = Header {
        name: String::new(),
        base: None,
        clock: CaptureClock::Monotonic,
        layout: Layout::Xe3p,
        ..header()
    };
    let bytes = CaptureWriter::new(Vec::new(), &nameless).unwrap();
    let (mut reader, mut told) = (CaptureReader::new(), Told::default());
    read(&mut reader, &bytes.into_inner(), &mut told).unwrap();
    assert_eq!(told.header, Some(nameless));
}

#[test]
fn a_cut_capture_is_told() {
    let bytes = capture();
    let whole = |length: usize| {
        let mut reader = CaptureReader::new();
        reader.read(&bytes[..length], |_| {}).unwrap();
        !reader.is_within()
    };
    let ends: Vec<_> = (0..=bytes.len()).filter(|n| whole(*n)).collect();
    let first = 36 + header().name.len();
    let lengths = [0, first, first + 24 + 640, first + 48 + 640, bytes.len()];
    assert_eq!(ends, lengths);
}

#[test]
fn other_bytes_are_refused() {
    let broken = |at: usize, byte: u8| {
        let mut bytes = capture();
        bytes[at] = byte;
        let mut reader = CaptureReader::new();
        let first = reader.read(&bytes, |_| {});
        // For good.
        assert_eq!(reader.read(&capture(), |_| {}), first);
        first.unwrap_err()
    };
    assert_eq!(broken(0, b'x'), CaptureError::Magic);
    assert_eq!(broken(8, 9), CaptureError::Header("layout"));
    assert_eq!(broken(9, 2), CaptureError::Header("clock"));
    assert_eq!(broken(11, 0xff), CaptureError::Header("record size"));
    assert_eq!(broken(34, 1), CaptureError::Header("name"));
    assert_eq!(broken(36 + header().name.len() + 7, 1), CaptureError::Frame);
    for length in 0..capture().len() {
        testing::fuzz_capture(&capture()[..length]);
    }
}

#[test]
fn long_names_are_cut_between_characters() {
    let long = Header {
        name: "ä".repeat(200) + "x",
        ..header()
    };
    let odd = Header {
        name: format!("x{}", "ä".repeat(200)),
        ..header()
    };
    for (header, length) in [(long, 256), (odd, 255)] {
        let bytes = CaptureWriter::new(Vec::new(), &header)
            .unwrap()
            .into_inner();
        let (mut reader, mut told) = (CaptureReader::new(), Told::default());
        read(&mut reader, &bytes, &mut told).unwrap();
        assert_eq!(told.header.unwrap().name, header.name[..length]);
    }
}
