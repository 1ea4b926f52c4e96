use super::*;
use std::io::Cursor;
use std::time::Duration;

/// Writes a jitdump file by the specification.
pub(in crate::symbolize) struct Writer(Vec<u8>);

impl Writer {
    pub(in crate::symbolize) fn new() -> Self {
        Self::with(MAGIC, 1, MACHINE_X86_64, 0)
    }

    pub(in crate::symbolize) fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn with(magic: u32, version: u32, machine: u32, flags: u64) -> Self {
        let mut new = Self(Vec::new());
        new.u32s(&[magic, version, 48, machine, 0, 77]);
        new.u64s(&[5, flags]);
        // A header may be longer than what is known of it.
        new.u64s(&[0xdead]);
        new
    }

    fn u32s(&mut self, numbers: &[u32]) {
        self.0.extend(numbers.iter().flat_map(|n| n.to_ne_bytes()));
    }

    fn u64s(&mut self, numbers: &[u64]) {
        self.0.extend(numbers.iter().flat_map(|n| n.to_ne_bytes()));
    }

    fn record(&mut self, id: u32, time: u64, body: &[u8]) -> &mut Self {
        self.u32s(&[id, PREFIX_BYTES + body.len() as u32]);
        self.u64s(&[time]);
        self.0.extend(body);
        self
    }

    pub(in crate::symbolize) fn load(
        &mut self,
        time: u64,
        name: &str,
        start: u64,
        size: u64,
        index: u64,
    ) -> &mut Self {
        self.load_of(77, time, name, start, size, index)
    }

    fn load_of(
        &mut self,
        pid: u32,
        time: u64,
        name: &str,
        start: u64,
        size: u64,
        index: u64,
    ) -> &mut Self {
        let mut body = Self(Vec::new());
        body.u32s(&[pid, pid]);
        body.u64s(&[start, start, size, index]);
        body.0.extend(name.bytes().chain([0]));
        body.0.extend(vec![0x90; size as usize]);
        self.record(CODE_LOAD, time, &body.0)
    }

    fn moved(&mut self, time: u64, old: u64, new: u64, size: u64, index: u64) -> &mut Self {
        let mut body = Self(Vec::new());
        body.u32s(&[77, 77]);
        body.u64s(&[new, old, new, size, index]);
        self.record(CODE_MOVE, time, &body.0)
    }

    pub(in crate::symbolize) fn lines(
        &mut self,
        start: u64,
        lines: &[(u64, u32, &[u8])],
    ) -> &mut Self {
        let mut body = Self(Vec::new());
        body.u64s(&[start, lines.len() as u64]);
        for &(address, line, file) in lines {
            body.u64s(&[address]);
            body.u32s(&[line, 0]);
            body.0.extend(file.iter().copied().chain([0]));
        }
        self.record(CODE_DEBUG_INFO, 0, &body.0)
    }

    fn read(&self) -> JitDump {
        let mut dump = JitDump::new(JitDumpLimits::default());
        assert_eq!(read(&mut dump, &self.0), Ok(true));
        dump
    }
}

fn read(dump: &mut JitDump, bytes: &[u8]) -> Result<bool, JitDumpError> {
    let deadline = Instant::now() + Duration::from_secs(60);
    dump.read(&mut Cursor::new(bytes), deadline)
}

/// The name and the line at an address at a time.
fn at(dump: &JitDump, address: u64, time: u64) -> Option<(String, Option<(String, u32)>)> {
    let changes = dump.changes(&[address], 1 << 16).remove(0);
    let known = changes.partition_point(|change| change.since <= time);
    let name = dump.name(changes[known.checked_sub(1)?])?;
    let line = dump.line(name, 0);
    let line = line.map(|(file, line)| (file.to_owned(), line));
    Some((name.name.to_owned(), line))
}

fn name(dump: &JitDump, address: u64, time: u64) -> Option<String> {
    at(dump, address, time).map(|(name, _)| name)
}

#[test]
fn code_has_its_name_from_its_time_on() {
    let mut writer = Writer::new();
    writer.load(100, "first", 0x1000, 0x20, 1);
    writer.load(200, "second", 0x1010, 0x20, 2);
    let dump = writer.read();
    let name = |address, time| name(&dump, address, time);
    assert_eq!(name(0x1000, 99), None);
    assert_eq!(name(0x1000, 100).as_deref(), Some("first"));
    assert_eq!(name(0x1010, 199).as_deref(), Some("first"));
    assert_eq!(name(0x1010, 200).as_deref(), Some("second"));
    assert_eq!(name(0x100f, 300).as_deref(), Some("first"));
    assert_eq!(name(0x102f, 200).as_deref(), Some("second"));
    assert_eq!(name(0x1030, 200), None);
    assert_eq!(name(0xfff, 200), None);
    assert_eq!((dump.stats.loaded, dump.stats.malformed), (2, 0));
}

#[test]
fn code_moves() {
    let mut writer = Writer::new();
    writer.load(100, "walker", 0x1000, 0x20, 7);
    writer.moved(200, 0x1000, 0x1010, 0x20, 7);
    writer.load(250, "settler", 0x1000, 0x10, 8);
    writer.moved(300, 0x1010, 0x2000, 0x20, 7);
    let dump = writer.read();
    let name = |address, time| name(&dump, address, time);
    assert_eq!(name(0x1000, 199).as_deref(), Some("walker"));
    assert_eq!(name(0x1000, 200), None);
    assert_eq!(name(0x1010, 200).as_deref(), Some("walker"));
    assert_eq!(name(0x102f, 299).as_deref(), Some("walker"));
    assert_eq!(name(0x1000, 250).as_deref(), Some("settler"));
    assert_eq!(name(0x1000, 400).as_deref(), Some("settler"));
    assert_eq!(name(0x1010, 300), None);
    assert_eq!(name(0x2000, 299), None);
    assert_eq!(name(0x201f, 300).as_deref(), Some("walker"));
    assert_eq!(dump.stats.moved, 2);
}

/// Programs that compile in several threads write records a little out of order.
#[test]
fn times_count_and_not_the_order_of_records() {
    let mut writer = Writer::new();
    writer.load(200, "later", 0x1000, 0x20, 2);
    writer.load(100, "earlier", 0x1000, 0x20, 1);
    let dump = writer.read();
    assert_eq!(name(&dump, 0x1000, 150).as_deref(), Some("earlier"));
    assert_eq!(name(&dump, 0x1000, 250).as_deref(), Some("later"));
}

#[test]
fn lines_of_the_address() {
    let mut writer = Writer::new();
    let lines: &[(u64, u32, &[u8])] = &[
        (0x1000, 3, b"a.src"),
        (0x1008, 4, b"\xff"),
        (0x1010, 9, b"inlined.src"),
        (0x1018, 5, b"a.src"),
    ];
    writer.lines(0x1000, lines).load(100, "f", 0x1000, 0x20, 1);
    // These lines are for other code than what follows: they belong to nothing.
    writer.lines(0x5000, lines).load(100, "g", 0x3000, 0x20, 2);
    writer.moved(200, 0x1000, 0x2000, 0x20, 1);
    let dump = writer.read();
    let line = |address, time| at(&dump, address, time).unwrap().1;
    let of = |file: &str, line| Some((file.to_owned(), line));
    assert_eq!(line(0x1000, 100), of("a.src", 3));
    assert_eq!(line(0x100f, 100), of("a.src", 4));
    assert_eq!(line(0x1010, 100), of("inlined.src", 9));
    assert_eq!(line(0x101f, 100), of("a.src", 5));
    assert_eq!(line(0x2010, 200), of("inlined.src", 9));
    assert_eq!(line(0x3000, 200), None);
}

/// As node 20 writes them of functions whose file's name has moved.
#[test]
fn lines_of_files_without_a_name() {
    let mut writer = Writer::new();
    let lines: &[(u64, u32, &[u8])] = &[
        (0x1000, 3, b"\x03\x17\x02"),
        (0x1008, 4, b"\xff"),
        (0x1010, 5, b"a.src"),
    ];
    writer.lines(0x1000, lines).load(100, "f", 0x1000, 0x20, 1);
    let dump = writer.read();
    let line = |address| at(&dump, address, 100).unwrap().1;
    assert_eq!(line(0x1010), Some(("a.src".to_owned(), 5)));
    assert_eq!(dump.stats.bad_lines, 1);
    assert_eq!(dump.stats.malformed, 0);
}

#[test]
fn nothing_is_read_behind_the_end() {
    let mut writer = Writer::new();
    writer.load(100, "f", 0x1000, 0x20, 1);
    writer.record(CODE_CLOSE, 150, &[]);
    writer.load(200, "g", 0x2000, 0x20, 2);
    let dump = writer.read();
    assert_eq!(name(&dump, 0x2000, 300), None);
    assert_eq!(name(&dump, 0x1000, 300).as_deref(), Some("f"));
}

#[test]
fn unwinding_data_and_what_is_new_is_skipped() {
    let mut writer = Writer::new();
    writer.record(4, 1, &[1; 333]).record(99, 1, &[2; 5]);
    writer.load(100, "f", 0x1000, 0x20, 1);
    let dump = writer.read();
    assert_eq!(name(&dump, 0x1000, 300).as_deref(), Some("f"));
    assert_eq!(dump.stats.malformed, 0);
}

#[test]
fn a_growing_file_is_read_on() {
    let mut writer = Writer::new();
    writer.lines(0x1000, &[(0x1000, 3, b"a.src")]);
    writer.load(100, "f", 0x1000, 0x20, 1);
    writer.load(200, "g", 0x1000, 0x20, 2);
    let mut dump = JitDump::new(JitDumpLimits::default());
    for end in 0..=writer.0.len() {
        assert_eq!(read(&mut dump, &writer.0[..end]), Ok(true), "{end}");
    }
    assert_eq!(dump.stats.loaded, 2);
    assert_eq!(
        at(&dump, 0x1000, 100),
        Some(("f".into(), Some(("a.src".into(), 3))))
    );
    assert_eq!(name(&dump, 0x1000, 200).as_deref(), Some("g"));
}

#[test]
fn a_deadline_ends_reading_which_goes_on_later() {
    let mut writer = Writer::new();
    for i in 0..1000 {
        writer.load(i, "f", 0x1000 + 16 * i, 16, i);
    }
    let mut dump = JitDump::new(JitDumpLimits::default());
    let past = Instant::now();
    let mut rounds = 0;
    while !dump.read(&mut Cursor::new(&writer.0), past).unwrap() {
        rounds += 1;
    }
    assert!(rounds > 3, "{rounds}");
    assert_eq!(dump.stats.loaded, 1000);
}

#[test]
fn files_that_are_declined() {
    let machine = MACHINE_X86_64;
    let error = |writer: &Writer| {
        let mut dump = JitDump::new(JitDumpLimits::default());
        let first = read(&mut dump, &writer.0).unwrap_err();
        assert_eq!(read(&mut dump, &writer.0), Err(first), "it stays so");
        first
    };
    let with = |magic, version, flags| error(&Writer::with(magic, version, machine, flags));
    assert_eq!(with(7, 1, 0), JitDumpError::NoDump);
    assert_eq!(with(MAGIC.swap_bytes(), 1, 0), JitDumpError::OtherMachine);
    assert_eq!(with(MAGIC, 2, 0), JitDumpError::Version(2));
    assert_eq!(with(MAGIC, 1, 1), JitDumpError::ArchTimestamp);
    assert!(with(MAGIC, 1, 1).to_string().contains("counter"));
    #[cfg(target_arch = "x86_64")]
    assert_eq!(
        error(&Writer::with(MAGIC, 1, 183, 0)),
        JitDumpError::OtherMachine
    );
    let mut damaged = Writer::new();
    damaged.load(100, "f", 0x1000, 0x20, 1);
    let at = damaged.0.len() as u64;
    damaged.u32s(&[CODE_LOAD, 15]);
    damaged.u64s(&[1]);
    assert_eq!(error(&damaged), JitDumpError::Damaged(at));
}

#[test]
fn what_contradicts_itself_is_counted() {
    let mut writer = Writer::new();
    writer.load(1, "", 0x1000, 0x20, 1);
    writer.load(1, "empty", 0x1000, 0, 2);
    writer.load(1, "wraps", u64::MAX - 3, 8, 3);
    writer.load_of(78, 1, "a fork's", 0x1000, 0x20, 4);
    writer.record(CODE_LOAD, 1, &[0; 12]);
    writer.record(CODE_MOVE, 1, &[0; 12]);
    writer.moved(1, 0x1000, 0x2000, 0x20, 99);
    writer.lines(0x1000, &[(0x1000, 3, b"a.src")]);
    // More lines than there are.
    let mut body = Writer(Vec::new());
    body.u64s(&[0x1000, u64::MAX, 0x1000, 3]);
    writer.record(CODE_DEBUG_INFO, 1, &body.0);
    // A code size that the record does not hold.
    let mut body = Writer(Vec::new());
    body.u32s(&[77, 77]);
    body.u64s(&[0x1000, 0x1000, 0x1000, 5]);
    body.0.extend(b"long\0");
    writer.record(CODE_LOAD, 1, &body.0);
    let dump = writer.read();
    assert_eq!(dump.stats.loaded, 0);
    assert_eq!(dump.stats.foreign, 1);
    assert_eq!(dump.stats.malformed, 7);
    assert_eq!(dump.stats.bad_lines, 1);
}

#[test]
fn limits_hold() {
    let limits = JitDumpLimits {
        codes: 3,
        name_bytes: 10,
        lines: 1,
    };
    let mut writer = Writer::new();
    writer.lines(0x1000, &[(0x1000, 3, b"a"), (0x1008, 4, b"a")]);
    writer.load(1, "f", 0x1000, 0x20, 1);
    writer.load(1, "too long for it", 0x2000, 0x20, 2);
    writer.moved(2, 0x1000, 0x3000, 0x20, 1);
    writer.load(1, "h", 0x4000, 0x20, 3);
    let mut dump = JitDump::new(limits);
    assert_eq!(read(&mut dump, &writer.0), Ok(true));
    assert_eq!((dump.stats.loaded, dump.stats.moved), (1, 1));
    assert_eq!(dump.stats.over_limit, 3);
}

#[test]
fn names_of_any_length_and_bytes() {
    let mut writer = Writer::new();
    let long = "x".repeat(3 * MAX_NAME);
    writer.load(1, &long, 0x1000, 0x20, 1);
    writer.load(1, "f\u{1b}é", 0x2000, 0x20, 2);
    let dump = writer.read();
    assert_eq!(name(&dump, 0x1000, 1).map(|n| n.len()), Some(MAX_NAME));
    assert_eq!(name(&dump, 0x2000, 1).as_deref(), Some("f\u{1b}é"));
}

/// Whatever a program writes, finding what was at a place is quick.
#[test]
fn many_codes_at_one_place() {
    let mut writer = Writer::new();
    for i in 0..2000 {
        writer.load(i, "f", 0x1000, 16, i);
    }
    let dump = writer.read();
    let addresses: Vec<u64> = (0..1000).map(|i| 0x1000 + i % 16).collect();
    assert!(dump.changes(&addresses, 1 << 16).iter().all(Vec::is_empty));
    assert_eq!(dump.changes(&[0x1000], 100)[0].len(), 100);
    assert_eq!(name(&dump, 0x1000, 1999).as_deref(), Some("f"));
}

#[test]
fn arbitrary_bytes_keep_the_invariants() {
    let mut state = 7_u64;
    let mut random = move |n: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(11);
        (state >> 33) % n
    };
    for _ in 0..2000 {
        let mut writer = Writer::new();
        for i in 0..random(12) {
            let start = 0x1000 + 8 * random(8);
            let size = 1 + random(40);
            match random(4) {
                0 => writer.load(random(50), "f", start, size, i),
                1 => writer.moved(random(50), start, 0x1000 + 8 * random(8), size, random(6)),
                2 => writer.lines(start, &[(start + random(9), 1, b"a"), (start, 2, b"\xff")]),
                _ => writer.record(random(6) as u32, random(50), &vec![7; random(90) as usize]),
            };
        }
        for _ in 0..random(4) {
            let at = random(writer.0.len() as u64) as usize;
            writer.0[at] = random(256) as u8;
        }
        testing::fuzz_jit_dump(&writer.0);
    }
}
