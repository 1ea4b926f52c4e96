//! Names of JIT code from perf maps (`/tmp/perf-PID.map`).
//!
//! Format: a line `START SIZE NAME` for each piece of code, both numbers in
//! hexadecimal (Linux `tools/perf/Documentation/jit-interface.txt`). The file
//! grows while the program runs and is written by whoever likes to.

#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

use std::io::{self, BufRead, Read as _};

/// Bounds for one perf map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PerfMapLimits {
    /// Most pieces of code kept that later code did not replace. Default 262,144.
    pub pieces: usize,
    /// Most bytes of their names. Default 16 MiB.
    pub name_bytes: usize,
    /// Longest line read, in bytes; longer ones are refused. Default 4,096.
    pub line_bytes: usize,
}

impl Default for PerfMapLimits {
    fn default() -> Self {
        Self {
            pieces: 262_144,
            name_bytes: 16 << 20,
            line_bytes: 4096,
        }
    }
}

/// What became of the lines of a perf map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PerfMapStats {
    /// Lines that became pieces of code.
    pub accepted: u64,
    /// Lines refused: not of the format, empty code, or longer than the limit.
    pub malformed: u64,
    /// Pieces of code dropped because the map was full, the oldest first.
    pub dropped: u64,
    /// Bytes of the lines that were read.
    pub bytes: u64,
    /// Whether the last line had no end yet: it is still being written, and is
    /// left for the next reading.
    pub partial: bool,
    /// Whether reading stopped early at an I/O error.
    pub read_error: bool,
}

impl PerfMapStats {
    /// Both, where `later` was read behind this.
    pub(crate) fn followed_by(self, later: Self) -> Self {
        Self {
            accepted: self.accepted + later.accepted,
            malformed: self.malformed + later.malformed,
            dropped: self.dropped + later.dropped,
            bytes: self.bytes + later.bytes,
            ..later
        }
    }
}

/// The names of one process's JIT code.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerfMap {
    /// Disjoint and sorted, but for those that were read since the last [`PerfMap::settle`].
    ranges: Vec<MapRange>,
    names: String,
    /// How many ranges were read so far.
    read: u64,
}

#[derive(Clone, Copy, Debug)]
struct MapRange {
    start: u64,
    end: u64,
    name_at: u32,
    name_len: u32,
    /// The larger, the later it was read.
    age: u64,
}

impl PerfMap {
    /// Reads a perf map, or what was added to it, to its end. Where entries overlap the later one
    /// wins, for JIT compilers reuse memory: only what still has an address takes room. Where even
    /// that is too much, the latest stay.
    pub(crate) fn read(&mut self, mut reader: impl BufRead, limits: PerfMapLimits) -> PerfMapStats {
        let mut stats = PerfMapStats::default();
        let mut line = Vec::new();
        loop {
            match read_line(&mut reader, limits.line_bytes, &mut line) {
                Ok(MapLine::Whole) => {
                    stats.bytes += line.len() as u64 + 1;
                    self.add_line(&line, limits, &mut stats);
                }
                Ok(MapLine::TooLong(bytes)) => {
                    stats.bytes += bytes;
                    stats.malformed += 1;
                }
                Ok(MapLine::Partial) => {
                    stats.partial = true;
                    break;
                }
                Ok(MapLine::End) => break,
                Err(_) => {
                    stats.read_error = true;
                    break;
                }
            }
        }
        self.settle(limits, &mut stats);
        self.names.shrink_to_fit();
        self.ranges.shrink_to_fit();
        stats
    }

    /// The name of the code at an address.
    pub(crate) fn lookup(&self, addr: u64) -> Option<&str> {
        let after = self.ranges.partition_point(|r| r.start <= addr);
        let range = self.ranges.get(after.checked_sub(1)?)?;
        (addr < range.end).then_some(range.name(&self.names)?)
    }

    fn add_line(&mut self, line: &[u8], limits: PerfMapLimits, stats: &mut PerfMapStats) {
        let text = String::from_utf8_lossy(line);
        let Some((start, end, name)) = parse_line(&text) else {
            stats.malformed += 1;
            return;
        };
        // Twice as much as stays: so it is rarely sorted.
        if self.ranges.len() >= 2 * limits.pieces
            || self.names.len() + name.len() > 2 * limits.name_bytes
        {
            self.settle(limits, stats);
        }
        let name_at = u32::try_from(self.names.len());
        let name_len = u32::try_from(name.len());
        let has_room = name.len() <= limits.name_bytes;
        let (Ok(name_at), Ok(name_len), true) = (name_at, name_len, has_room) else {
            stats.dropped += 1;
            return;
        };
        self.names.push_str(name);
        self.ranges.push(MapRange {
            start,
            end,
            name_at,
            name_len,
            age: self.read,
        });
        self.read += 1;
        stats.accepted += 1;
    }

    /// Sorts what was read, and drops what was replaced, and the oldest of what is too much.
    fn settle(&mut self, limits: PerfMapLimits, stats: &mut PerfMapStats) {
        let mut ranges = std::mem::take(&mut self.ranges);
        if !ranges.is_sorted_by_key(|range| range.age) {
            ranges.sort_by_key(|range| range.age);
        }
        self.ranges = resolve_overlaps(ranges);
        let oldest = self.oldest_to_keep(limits);
        let before = self.ranges.len();
        self.ranges.retain(|range| range.age >= oldest);
        stats.dropped += (before - self.ranges.len()) as u64;
        self.drop_names();
    }

    /// The age from which on everything fits.
    fn oldest_to_keep(&self, limits: PerfMapLimits) -> u64 {
        let of = |range: &MapRange| (range.age, range.name_len as usize);
        let mut ages: Vec<(u64, usize)> = self.ranges.iter().map(of).collect();
        ages.sort_unstable_by(|a, b| b.cmp(a));
        let (mut bytes, mut last) = (0, None);
        for (pieces, (age, name_len)) in ages.into_iter().enumerate() {
            if last != Some(age) {
                bytes += name_len;
                last = Some(age);
            }
            if pieces >= limits.pieces || bytes > limits.name_bytes {
                return age + 1;
            }
        }
        0
    }

    /// Drops the names that no range has.
    fn drop_names(&mut self) {
        let old = std::mem::take(&mut self.names);
        let mut by_name: Vec<&mut MapRange> = self.ranges.iter_mut().collect();
        by_name.sort_unstable_by_key(|range| range.name_at);
        let mut last = None;
        for range in by_name {
            if let Some((old_at, at)) = last
                && old_at == range.name_at
            {
                range.name_at = at;
                continue;
            }
            let name = range.name(&old).unwrap_or_default();
            // No more than there were.
            let at = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
            self.names.push_str(name);
            last = Some((range.name_at, at));
            range.name_at = at;
        }
    }
}

impl MapRange {
    /// Its name among those of its map.
    fn name<'a>(&self, names: &'a str) -> Option<&'a str> {
        let at = self.name_at as usize;
        names.get(at..at + self.name_len as usize)
    }
}

/// `START SIZE NAME`: the name goes on to the end of the line, spaces included.
fn parse_line(line: &str) -> Option<(u64, u64, &str)> {
    let (start, rest) = line.trim_start().split_once(' ')?;
    let (size, name) = rest.trim_start().split_once(' ')?;
    let start = parse_hex(start)?;
    let end = start.checked_add(parse_hex(size)?)?;
    let name = name.trim();
    (end > start && !name.is_empty()).then_some((start, end, name))
}

fn parse_hex(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    // from_str_radix accepts a sign.
    if digits.starts_with('+') {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

enum MapLine {
    Whole,
    Partial,
    /// With its bytes.
    TooLong(u64),
    End,
}

/// Reads one line without its end into `line`, at most `limit` bytes; the rest
/// of a longer line is skipped.
fn read_line(reader: &mut impl BufRead, limit: usize, line: &mut Vec<u8>) -> io::Result<MapLine> {
    line.clear();
    reader.take(limit as u64 + 1).read_until(b'\n', line)?;
    if line.pop_if(|b| *b == b'\n').is_some() {
        return Ok(MapLine::Whole);
    }
    if line.len() <= limit {
        return Ok(if line.is_empty() {
            MapLine::End
        } else {
            MapLine::Partial
        });
    }
    let rest = reader.skip_until(b'\n')?;
    Ok(MapLine::TooLong((line.len() + rest) as u64))
}

/// Cuts ranges, given from the earliest to the latest, so that they are disjoint
/// and each address belongs to the latest that covered it. Sorted by start.
///
/// A sweep over all starts and ends keeps the set of open ranges; the latest of
/// them owns the stretch up to the next event.
fn resolve_overlaps(ranges: Vec<MapRange>) -> Vec<MapRange> {
    let mut by_start: Vec<usize> = (0..ranges.len()).collect();
    by_start.sort_by_key(|&i| ranges[i].start);
    let disjoint = by_start
        .windows(2)
        .all(|w| ranges[w[0]].end <= ranges[w[1]].start);
    if disjoint {
        return by_start.into_iter().map(|i| ranges[i]).collect();
    }
    let mut out: Vec<MapRange> = Vec::with_capacity(ranges.len());
    // The open ranges, the latest on top; closed ones are dropped when they surface.
    let mut open = std::collections::BinaryHeap::new();
    let mut starts = by_start.into_iter().peekable();
    let mut at = 0;
    loop {
        while open.peek().is_some_and(|&i: &usize| ranges[i].end <= at) {
            open.pop();
        }
        let next_start = starts.peek().map(|&i| ranges[i].start);
        if let Some(&owner) = open.peek() {
            let end = ranges[owner].end.min(next_start.unwrap_or(u64::MAX));
            push_range(&mut out, at, end, ranges[owner]);
            at = end;
        } else if let Some(start) = next_start {
            at = at.max(start);
        } else {
            return out;
        }
        while let Some(i) = starts.next_if(|&i| ranges[i].start <= at) {
            open.push(i);
        }
    }
}

/// Appends a stretch, joined to the one before where it continues it.
fn push_range(out: &mut Vec<MapRange>, start: u64, end: u64, of: MapRange) {
    if start >= end {
        return;
    }
    match out.last_mut() {
        Some(last) if last.end == start && last.name_at == of.name_at => last.end = end,
        _ => out.push(MapRange { start, end, ..of }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> (PerfMap, PerfMapStats) {
        read_within(text, PerfMapLimits::default())
    }

    fn read_within(text: impl BufRead, limits: PerfMapLimits) -> (PerfMap, PerfMapStats) {
        let mut map = PerfMap::default();
        let stats = map.read(text, limits);
        (map, stats)
    }

    #[test]
    fn names_with_spaces_and_prefixes() {
        let (map, stats) = read(b"1000 10 LazyCompile:*fib /a b.js:1\n0x2000 0x20 stub\n");
        assert_eq!(map.lookup(0x1000), Some("LazyCompile:*fib /a b.js:1"));
        assert_eq!(map.lookup(0x100f), Some("LazyCompile:*fib /a b.js:1"));
        assert_eq!(map.lookup(0x1010), None);
        assert_eq!(map.lookup(0xfff), None);
        assert_eq!(map.lookup(0x201f), Some("stub"));
        assert_eq!(stats.accepted, 2);
    }

    #[test]
    fn later_entries_win() {
        let (map, _) = read(b"1000 100 old\n1040 10 new\n1044 2 newest\n10f0 20 tail\n");
        let at = |addr| map.lookup(addr);
        assert_eq!(at(0x103f), Some("old"));
        assert_eq!(at(0x1040), Some("new"));
        assert_eq!(at(0x1044), Some("newest"));
        assert_eq!(at(0x1046), Some("new"));
        assert_eq!(at(0x1050), Some("old"));
        assert_eq!(at(0x10f0), Some("tail"));
        assert_eq!(at(0x110f), Some("tail"));
        assert_eq!(at(0x1110), None);
        let (map, _) = read(b"1000 10 a\n1000 10 b\n");
        assert_eq!(map.lookup(0x1008), Some("b"));
    }

    /// Against the definition: the last line that covers an address names it.
    #[test]
    fn overlaps_agree_with_the_definition() {
        let mut state = 1_u64;
        let mut random = |n: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % n
        };
        for _ in 0..200 {
            let entries: Vec<(u64, u64)> = (0..random(12))
                .map(|_| (random(64), 1 + random(32)))
                .collect();
            let text: String = entries
                .iter()
                .enumerate()
                .map(|(i, (start, size))| format!("{start:x} {size:x} f{i}\n"))
                .collect();
            let (map, _) = read(text.as_bytes());
            for addr in 0..100 {
                let covers = |&(_, &(start, size)): &(usize, &(u64, u64))| {
                    (start..start + size).contains(&addr)
                };
                let expected = entries.iter().enumerate().rfind(covers);
                let expected = expected.map(|(i, _)| format!("f{i}"));
                assert_eq!(map.lookup(addr), expected.as_deref(), "{addr} in {text}");
            }
        }
    }

    #[test]
    fn hostile_lines_are_counted() {
        let text = b"\n1000\n1000 10\n1000 10 \nzz 10 a\n1000 0 a\nffffffffffffffff 2 a\n\
            +1 +1 a\n-1 1 a\n1 fffffffffffffffff a\n2000 10 ok\xff\n";
        let (map, stats) = read(text);
        assert_eq!((stats.accepted, stats.malformed), (1, 10));
        assert_eq!(map.lookup(0x2000), Some("ok\u{fffd}"));
    }

    #[test]
    fn partial_last_line_waits() {
        let (map, stats) = read(b"1000 10 whole\n2000 10 par");
        assert!(stats.partial);
        assert_eq!((stats.accepted, stats.malformed), (1, 0));
        assert_eq!(map.lookup(0x2000), None);
    }

    #[test]
    fn of_too_much_the_latest_stays() {
        let limits = PerfMapLimits {
            pieces: 2,
            name_bytes: 5,
            line_bytes: 20,
        };
        let long = format!("1000 10 {}\n", "x".repeat(5000));
        let text = format!("{long}1000 1 abc\n2000 1 def\n3000 1 x\n4000 1 y\n");
        let (map, stats) = read_within(text.as_bytes(), limits);
        assert_eq!((stats.accepted, stats.malformed, stats.dropped), (4, 1, 2));
        assert_eq!(stats.bytes, text.len() as u64);
        let at = |addr| map.lookup(addr);
        assert_eq!(
            [at(0x1000), at(0x2000), at(0x3000), at(0x4000)],
            [None, None, Some("x"), Some("y")]
        );
        // Names: five bytes, and the latest has four.
        let (map, stats) = read_within(&b"1000 1 abc\n2000 1 defg\n"[..], limits);
        assert_eq!(
            (map.lookup(0x1000), map.lookup(0x2000)),
            (None, Some("defg"))
        );
        assert_eq!(stats.dropped, 1);
    }

    /// A program that compiles all day: its map has many times the lines that are kept, but
    /// most of them are of code that was replaced.
    #[test]
    fn what_was_replaced_takes_no_room() {
        let limits = PerfMapLimits {
            pieces: 100,
            name_bytes: 1000,
            line_bytes: 100,
        };
        let line = |i: u64| format!("{:x} 10 f{i}\n", 0x1000 + i % 100 * 16);
        let lines = 100_000;
        let text: String = (0..lines).map(line).collect();
        let (whole, stats) = read_within(text.as_bytes(), limits);
        assert_eq!((stats.accepted, stats.dropped), (lines, 0));
        // As the file grows.
        let mut grown = PerfMap::default();
        let mut stats = PerfMapStats::default();
        for from in (0..lines).step_by(977) {
            let more: String = (from..lines.min(from + 977)).map(line).collect();
            stats = stats.followed_by(grown.read(more.as_bytes(), limits));
        }
        assert_eq!((stats.accepted, stats.bytes), (lines, text.len() as u64));
        for piece in 0..100 {
            let name = format!("f{}", lines - 100 + piece);
            for map in [&whole, &grown] {
                assert_eq!(map.lookup(0x1000 + piece * 16 + 5), Some(name.as_str()));
            }
        }
    }

    #[test]
    fn read_errors_end_the_map() {
        struct Broken;
        impl io::Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("gone"))
            }
        }
        let good: &[u8] = b"1000 10 a\n";
        let reader = io::BufReader::new(io::Read::chain(good, Broken));
        let (map, stats) = read_within(reader, PerfMapLimits::default());
        assert!(stats.read_error);
        assert_eq!(map.lookup(0x1000), Some("a"));
    }

    #[test]
    fn arbitrary_bytes_keep_the_invariants() {
        let mut state = 7_u64;
        let alphabet = b"0123456789abcdefx \n\n \xff-+";
        for _ in 0..2000 {
            let data: Vec<u8> = (0..300)
                .map(|_| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(11);
                    alphabet[(state >> 33) as usize % alphabet.len()]
                })
                .collect();
            testing::fuzz_perf_map(&data);
        }
    }
}
