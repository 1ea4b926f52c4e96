//! Line tables of code objects: CPython's `Objects/lnotab_notes.txt` (3.8, 3.9 and
//! 3.10, each by its own version of the file) and `Objects/locations.md` (3.11 and
//! newer).

use aiprof_common::{PYTHON_AT_BYTES, PYTHON_AT_UNITS};

/// What a line table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineTable {
    /// `co_lnotab` of 3.8 and 3.9.
    Increments,
    /// `co_linetable` of 3.10.
    Ranges,
    /// `co_linetable` of 3.11 and newer.
    Locations,
}

impl LineTable {
    /// The table that goes with how instructions are numbered (`PYTHON_AT_*`).
    pub(super) fn of(instruction: u8) -> Self {
        match instruction {
            PYTHON_AT_BYTES => Self::Increments,
            PYTHON_AT_UNITS => Self::Ranges,
            _ => Self::Locations,
        }
    }
}

/// Longest table that is read, in stretches.
const MAX_STRETCHES: usize = 1 << 17;

/// The stretches of instructions with one line: the first unit of 2 bytes of each, and its
/// line; 0: not known, for the table is cut off there.
pub(super) fn stretches(
    kind: LineTable,
    table: &[u8],
    first_line: u32,
    is_cut: bool,
) -> Vec<(u32, u32)> {
    let mut stretches = Stretches {
        line: first_line.into(),
        list: Vec::new(),
    };
    match kind {
        LineTable::Increments => increments(table, &mut stretches),
        LineTable::Ranges => ranges(table, &mut stretches),
        LineTable::Locations => locations(table, &mut stretches),
    }
    if is_cut && let Some(&(from, _)) = stretches.list.last() {
        stretches.list.push((from.saturating_add(1), 0));
    }
    stretches.list.shrink_to_fit();
    stretches.list
}

/// Stretches so far, and the line that the next has.
struct Stretches {
    line: i64,
    list: Vec<(u32, u32)>,
}

impl Stretches {
    fn grow(&mut self, lines: i64) {
        self.line = self.line.saturating_add(lines);
    }

    /// From this byte on it is the current line.
    fn begin(&mut self, byte: u64) {
        let (Ok(unit), Ok(line)) = (u32::try_from(byte / 2), u32::try_from(self.line)) else {
            return;
        };
        let is_full = self.list.len() >= MAX_STRETCHES;
        match self.list.last_mut() {
            Some((_, last)) if *last == line => {}
            Some((from, last)) if *from == unit => *last = line,
            _ if is_full => {}
            _ => self.list.push((unit, line)),
        }
    }
}

/// Pairs of how much an address and a line grow (`PyCode_Addr2Line` of 3.9).
fn increments(table: &[u8], stretches: &mut Stretches) {
    let mut at = 0;
    stretches.begin(at);
    for pair in table.chunks_exact(2) {
        at += u64::from(pair[0]);
        stretches.grow(i64::from(pair[1] as i8));
        stretches.begin(at);
    }
}

/// Pairs of a range's length and how much the line grows; -128: it has no line, and the
/// next grows from the one before.
fn ranges(table: &[u8], stretches: &mut Stretches) {
    let mut at = 0;
    for pair in table.chunks_exact(2) {
        if pair[1] as i8 != i8::MIN {
            stretches.grow(i64::from(pair[1] as i8));
        }
        if pair[0] > 0 {
            stretches.begin(at);
        }
        at += u64::from(pair[0]);
    }
}

/// Entries of some units of code: a byte with kind and length, and what the kind has.
fn locations(table: &[u8], stretches: &mut Stretches) {
    let mut at = 0;
    let mut rest = table.iter().copied().peekable();
    while let Some(head) = rest.next() {
        let (kind, units) = (head >> 3 & 15, u64::from(head & 7) + 1);
        let lines = match kind {
            13 | 14 => signed(&mut rest),
            10..=12 => i64::from(kind - 10),
            // Kind 15 has no line that is known: it keeps the line.
            _ => 0,
        };
        stretches.grow(lines);
        stretches.begin(at);
        at += units * 2;
        // What follows of an entry has the highest bit clear.
        while rest.next_if(|byte| byte & 0x80 == 0).is_some() {}
    }
}

/// A number in groups of 6 bits, the lowest first, whose lowest bit is its sign.
fn signed(bytes: &mut impl Iterator<Item = u8>) -> i64 {
    let (mut value, mut shift) = (0i64, 0);
    for byte in bytes {
        if shift < 60 {
            value |= i64::from(byte & 63) << shift;
        }
        shift += 6;
        if byte & 64 == 0 {
            break;
        }
    }
    if value & 1 != 0 {
        -(value >> 1)
    } else {
        value >> 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line_at(stretches: &[(u32, u32)], unit: u32) -> u32 {
        let after = stretches.partition_point(|&(from, _)| from <= unit);
        stretches[after - 1].1
    }

    /// The lines that real interpreters give (see `python_lines.py`).
    #[test]
    fn lines_are_those_of_python() {
        let text = include_str!("../../tests/data/python_lines.txt");
        let (mut codes, mut units) = (0, 0);
        for code in text.lines() {
            let mut fields = code.split(' ');
            let mut number = || fields.next().unwrap().parse::<u32>().unwrap();
            let (kind, first_line, count) = (number(), number(), number());
            let hex = fields.next().unwrap();
            let digits: Vec<u32> = hex.chars().filter_map(|c| c.to_digit(16)).collect();
            let table: Vec<u8> = digits.chunks(2).map(|b| (b[0] << 4 | b[1]) as u8).collect();
            let kind = [
                LineTable::Increments,
                LineTable::Ranges,
                LineTable::Locations,
            ][kind as usize];
            let found = stretches(kind, &table, first_line, false);
            let starts: Vec<(u32, Option<u32>)> = fields
                .map(|start| {
                    let (at, line) = start.split_once(':').unwrap();
                    (at.parse().unwrap(), line.parse().ok())
                })
                .collect();
            for unit in 0..count {
                let after = starts.partition_point(|&(from, _)| from <= unit);
                let Some((_, Some(line))) = after.checked_sub(1).map(|at| starts[at]) else {
                    continue;
                };
                assert_eq!(line_at(&found, unit), line, "unit {unit} of {code}");
                units += 1;
            }
            codes += 1;
        }
        assert!(
            codes > 50 && units > 5000,
            "{codes} code objects, {units} units"
        );
    }

    #[test]
    fn any_bytes_are_a_table() {
        let mut state = 1u64;
        for length in 0..300 {
            let table: Vec<u8> = (0..length)
                .map(|_| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    (state >> 33) as u8
                })
                .collect();
            for kind in [
                LineTable::Increments,
                LineTable::Ranges,
                LineTable::Locations,
            ] {
                let found = stretches(kind, &table, u32::MAX, length % 2 == 0);
                assert!(found.is_sorted_by(|a, b| a.0 < b.0), "{found:?}");
            }
        }
    }
}
