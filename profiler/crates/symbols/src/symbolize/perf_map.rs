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
    /// Most entries kept. Default 131,072.
    pub entries: usize,
    /// Most bytes of names kept. Default 8 MiB.
    pub name_bytes: usize,
    /// Longest line read, in bytes; longer ones are refused. Default 4,096.
    pub line_bytes: usize,
}

impl Default for PerfMapLimits {
    fn default() -> Self {
        Self {
            entries: 131_072,
            name_bytes: 8 << 20,
            line_bytes: 4096,
        }
    }
}

/// What became of the lines of a perf map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PerfMapStats {
    /// Lines that became entries.
    pub accepted: u64,
    /// Lines refused: not of the format, empty code, or longer than the limit.
    pub malformed: u64,
    /// Well-formed lines refused because the map was full.
    pub over_limit: u64,
    /// Whether the last line had no end yet: it is still being written, and is
    /// left for the next reading.
    pub partial: bool,
    /// Whether reading stopped early at an I/O error.
    pub read_error: bool,
}

/// The names of one process's JIT code.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerfMap {
    /// Disjoint and sorted.
    ranges: Vec<MapRange>,
    names: String,
}

#[derive(Clone, Copy, Debug)]
struct MapRange {
    start: u64,
    end: u64,
    name_at: u32,
    name_len: u32,
}

impl PerfMap {
    /// Reads a perf map to its end. Where entries overlap the later one wins,
    /// for JIT compilers reuse memory.
    pub(crate) fn read(mut reader: impl BufRead, limits: PerfMapLimits) -> (Self, PerfMapStats) {
        let mut map = Self::default();
        let mut stats = PerfMapStats::default();
        let mut line = Vec::new();
        loop {
            match read_line(&mut reader, limits.line_bytes, &mut line) {
                Ok(MapLine::Whole) => map.add_line(&line, limits, &mut stats),
                Ok(MapLine::TooLong) => stats.malformed += 1,
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
        map.names.shrink_to_fit();
        map.ranges = resolve_overlaps(std::mem::take(&mut map.ranges));
        (map, stats)
    }

    /// The name of the code at an address.
    pub(crate) fn lookup(&self, addr: u64) -> Option<&str> {
        let after = self.ranges.partition_point(|r| r.start <= addr);
        let range = self.ranges.get(after.checked_sub(1)?)?;
        let at = range.name_at as usize;
        (addr < range.end).then_some(self.names.get(at..at + range.name_len as usize)?)
    }

    fn add_line(&mut self, line: &[u8], limits: PerfMapLimits, stats: &mut PerfMapStats) {
        let text = String::from_utf8_lossy(line);
        let Some((start, end, name)) = parse_line(&text) else {
            stats.malformed += 1;
            return;
        };
        let name_at = u32::try_from(self.names.len());
        let name_len = u32::try_from(name.len());
        let room = self.ranges.len() < limits.entries
            && self.names.len() + name.len() <= limits.name_bytes;
        let (Ok(name_at), Ok(name_len), true) = (name_at, name_len, room) else {
            stats.over_limit += 1;
            return;
        };
        self.names.push_str(name);
        self.ranges.push(MapRange {
            start,
            end,
            name_at,
            name_len,
        });
        stats.accepted += 1;
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
    TooLong,
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
    reader.skip_until(b'\n')?;
    Ok(MapLine::TooLong)
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
        PerfMap::read(text, PerfMapLimits::default())
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
    fn limits_hold() {
        let limits = PerfMapLimits {
            entries: 2,
            name_bytes: 5,
            line_bytes: 20,
        };
        let long = format!("1000 10 {}\n", "x".repeat(5000));
        let text = format!("{long}1000 1 abc\n2000 1 def\n3000 1 x\n4000 1 y\n");
        let (map, stats) = PerfMap::read(text.as_bytes(), limits);
        assert_eq!(
            (stats.accepted, stats.malformed, stats.over_limit),
            (2, 1, 2)
        );
        assert_eq!(map.lookup(0x3000), Some("x"));
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
        let (map, stats) = PerfMap::read(reader, PerfMapLimits::default());
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
