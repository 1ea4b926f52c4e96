//! Values by address: how a function's tables are written.

use super::table::{GoFunction, GoReader};
use crate::elf::ReadAt;
use std::io;
use std::ops::Range;

/// Bytes of a table that are read first, and most that are read.
const FIRST: usize = 256;
const MOST: usize = 1 << 20;
/// Most changes of a value in one function.
const MAX_STEPS: usize = 1 << 16;

/// Values, by the addresses that they are valid for, in order.
pub(crate) type GoValues = Vec<(Range<u64>, i32)>;

/// A cursor over a table of values. The table holds pairs of numbers: the change of the value
/// (zigzag) and the bytes of code that it is valid for. It ends at a change of 0 that is not the
/// first (`step` of `src/runtime/symtab.go`).
struct Steps<'a> {
    bytes: &'a [u8],
    first: bool,
}

/// What comes next in a table.
enum TableStep {
    /// The change of the value, and the number of bytes for which it then is valid.
    Change(i32, u32),
    /// The table ends.
    End,
    /// The bytes end.
    Short,
    /// Not a table.
    Malformed,
}

impl Steps<'_> {
    fn number(&mut self) -> Result<u32, TableStep> {
        let mut value = 0u32;
        for (i, &byte) in self.bytes.iter().take(5).enumerate() {
            value |= u32::from(byte & 0x7f) << (7 * i);
            if byte & 0x80 == 0 {
                self.bytes = self.bytes.get(i + 1..).unwrap_or_default();
                return Ok(value);
            }
        }
        Err(match self.bytes.len() < 5 {
            true => TableStep::Short,
            false => TableStep::Malformed,
        })
    }

    fn next(&mut self) -> TableStep {
        let change = match self.number() {
            Ok(0) if !self.first => return TableStep::End,
            Ok(change) => change,
            Err(step) => return step,
        };
        self.first = false;
        let change = (change >> 1).cast_signed() ^ -((change & 1).cast_signed());
        match self.number() {
            Ok(bytes) => TableStep::Change(change, bytes),
            Err(step) => step,
        }
    }
}

/// The values of a table whose bytes begin with these, by address, up to one after the
/// address `until`. `Err`: more bytes are needed (true), or it is none.
fn decode(bytes: &[u8], code: Range<u64>, until: u64) -> Result<GoValues, bool> {
    let mut steps = Steps { bytes, first: true };
    let mut values = Vec::new();
    let (mut at, mut value) = (code.start, -1i32);
    while values.len() < MAX_STEPS {
        if at > until {
            return Ok(values);
        }
        match steps.next() {
            TableStep::End => return Ok(values),
            TableStep::Short => return Err(true),
            TableStep::Malformed => return Err(false),
            TableStep::Change(change, bytes) => {
                value = value.wrapping_add(change);
                let end = at.saturating_add(bytes.into()).min(code.end);
                if end > at {
                    values.push((at..end, value));
                }
                at = end;
            }
        }
    }
    Err(false)
}

impl<R: ReadAt> GoReader<'_, R> {
    /// All values of one of a function's tables, by address, in order. `None`: it has no
    /// such table, or one that contradicts the format.
    pub(crate) fn values(
        &mut self,
        function: &GoFunction,
        table: u32,
    ) -> io::Result<Option<GoValues>> {
        self.values_until(function, table, u64::MAX)
    }

    fn values_until(
        &mut self,
        function: &GoFunction,
        table: u32,
        until: u64,
    ) -> io::Result<Option<GoValues>> {
        let at = self.table().values.saturating_add(table.into());
        let Some(place) = self.place(at).filter(|_| table != 0) else {
            return Ok(None);
        };
        let source = self.source();
        let mut length = FIRST;
        loop {
            let bytes = self.numbers.get(source, place, length)?;
            let is_all = bytes.len() < length || length >= MOST;
            match decode(bytes, function.start..function.end, until) {
                Ok(values) => {
                    let steps = values.len() as u64;
                    return Ok(self.charge(steps).then_some(values));
                }
                Err(more) if !more || is_all => return Ok(None),
                Err(_) => length = (length * 8).min(MOST),
            }
        }
    }

    /// The value of one of a function's tables at an address.
    pub(crate) fn value_at(
        &mut self,
        function: &GoFunction,
        table: u32,
        address: u64,
    ) -> io::Result<Option<i32>> {
        let values = self.values_until(function, table, address)?;
        let values = values.unwrap_or_default();
        let found = values
            .iter()
            .rev()
            .find(|(range, _)| range.contains(&address));
        Ok(found.map(|(_, value)| *value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_function_with_a_frame() {
        // -1 + 1 = 0 for 4 bytes, 24 for 10 bytes, 0 for 1 byte.
        let table = [2, 4, 48, 10, 47, 1, 0];
        let values = decode(&table, 100..120, u64::MAX).unwrap();
        assert_eq!(values, [(100..104, 0), (104..114, 24), (114..115, 0)]);
        // The first change may be 0.
        let all = |bytes: &[u8], code| decode(bytes, code, u64::MAX);
        assert_eq!(all(&[0, 3, 0], 0..9), Ok(vec![(0..3, -1)]));
        // Cut off; a number that does not end; beyond the function.
        assert_eq!(all(&table[..5], 100..120), Err(true));
        assert_eq!(all(&[0xff; 6], 0..9), Err(false));
        assert_eq!(all(&[2, 100, 0], 0..9), Ok(vec![(0..9, 0)]));
        // No more than is asked for.
        assert_eq!(decode(&table, 100..120, 103), Ok(vec![(100..104, 0)]));
    }
}
