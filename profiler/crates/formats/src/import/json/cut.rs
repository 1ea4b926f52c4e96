//! Where values of a JSON text end, without reading them.

use std::ops::Range;
use wide::u8x16;

/// Bytes that are looked at together.
const CHUNK: usize = 64;

/// Finds the ends of values that stand side by side in an array, in text that comes
/// in pieces.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cutter {
    depth: u32,
    quoted: bool,
    escaped: bool,
}

/// What [`Cutter::scan`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Behind the last object or array that is whole, in the text given; 0: none is.
    pub whole: usize,
    /// Where the array around the values is closed.
    pub closed: Option<usize>,
}

impl Cutter {
    /// Goes on through the text from `from`.
    pub(super) fn scan(&mut self, text: &[u8], from: usize) -> Cut {
        let mut cut = Cut {
            whole: 0,
            closed: None,
        };
        let mut at = from;
        let chunks = text.get(from..).unwrap_or_default().as_chunks::<CHUNK>().0;
        for chunk in chunks {
            let marks = Marks::of(chunk);
            // Backslashes are rare.
            match self.escaped || marks.backslashes != 0 {
                true => self.scan_bytes(text, at..at + CHUNK, &mut cut),
                false => self.scan_chunk(marks, at, &mut cut),
            }
            if cut.closed.is_some() {
                return cut;
            }
            at += CHUNK;
        }
        self.scan_bytes(text, at..text.len(), &mut cut);
        cut
    }

    /// Goes on through a chunk that begins at `at` and has no backslashes.
    fn scan_chunk(&mut self, marks: Marks, at: usize, cut: &mut Cut) {
        // From each quote to the next one, by the sum of all bits before, modulo 2.
        let mut strings = marks.quotes;
        for shift in [1, 2, 4, 8, 16, 32] {
            strings ^= strings << shift;
        }
        if self.quoted {
            strings = !strings;
        }
        self.quoted = strings >> (CHUNK - 1) != 0;
        let (opens, closes) = (marks.opens & !strings, marks.closes & !strings);
        if closes.count_ones() < self.depth {
            // Too deep for an end.
            let deeper = self.depth.saturating_add(opens.count_ones());
            self.depth = deeper - closes.count_ones();
            return;
        }
        let mut both = opens | closes;
        while both != 0 {
            let bit = both.trailing_zeros();
            both &= both - 1;
            if opens >> bit & 1 == 1 {
                self.depth = self.depth.saturating_add(1);
            } else if self.depth == 0 {
                cut.closed = Some(at + bit as usize);
                return;
            } else {
                self.depth -= 1;
                if self.depth == 0 {
                    cut.whole = at + bit as usize + 1;
                }
            }
        }
    }

    /// Goes on byte by byte.
    fn scan_bytes(&mut self, text: &[u8], range: Range<usize>, cut: &mut Cut) {
        let text = text.get(..range.end).unwrap_or_default();
        let mut at = range.start;
        while let Some(&byte) = text.get(at) {
            if self.quoted {
                at += self.skip_string(text.get(at..).unwrap_or_default());
                continue;
            }
            match byte {
                b'"' => self.quoted = true,
                b'{' | b'[' => self.depth = self.depth.saturating_add(1),
                b'}' | b']' => {
                    if self.depth == 0 {
                        cut.closed = Some(at);
                        return;
                    }
                    self.depth -= 1;
                    if self.depth == 0 {
                        cut.whole = at + 1;
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Inside a string: how many bytes to go on.
    fn skip_string(&mut self, text: &[u8]) -> usize {
        if self.escaped {
            self.escaped = false;
            return 1;
        }
        let Some(len) = text.iter().position(|b| *b == b'"' || *b == b'\\') else {
            return text.len();
        };
        if text.get(len) == Some(&b'\\') {
            self.escaped = true;
        } else {
            self.quoted = false;
        }
        len + 1
    }
}

/// Where in a chunk what is that matters to a [`Cutter`]: a bit for each byte.
#[derive(Clone, Copy)]
struct Marks {
    quotes: u64,
    backslashes: u64,
    opens: u64,
    closes: u64,
}

impl Marks {
    fn of(chunk: &[u8; CHUNK]) -> Self {
        let mut marks = Self {
            quotes: 0,
            backslashes: 0,
            opens: 0,
            closes: 0,
        };
        for (part, shift) in chunk.as_chunks::<16>().0.iter().zip([0, 16, 32, 48]) {
            let bytes = u8x16::new(*part);
            // This bit alone distinguishes brackets from braces.
            let either = bytes | u8x16::splat(0x20);
            let are = |bytes: u8x16, byte| {
                u64::from(bytes.simd_eq(u8x16::splat(byte)).to_bitmask()) << shift
            };
            marks.quotes |= are(bytes, b'"');
            marks.backslashes |= are(bytes, b'\\');
            marks.opens |= are(either, b'{');
            marks.closes |= are(either, b'}');
        }
        marks
    }
}

/// Length of the JSON value at the begin of a text; `None`: it does not end there.
pub(super) fn value_len(text: &[u8]) -> Option<usize> {
    match text.first()? {
        b'{' | b'[' => {
            // The first value that is whole ends where depth comes back to 0.
            let mut cutter = Cutter::default();
            let mut at = 0;
            loop {
                // Closing brackets are looked at one by one: behind the first whole
                // value nothing is scanned.
                let close = text
                    .get(at..)?
                    .iter()
                    .position(|b| matches!(b, b'}' | b']'))?;
                let cut = cutter.scan(text.get(..at + close + 1)?, at);
                at += close + 1;
                if cut.whole > 0 {
                    return Some(cut.whole);
                }
            }
        }
        b'"' => {
            let mut cutter = Cutter {
                quoted: true,
                ..Cutter::default()
            };
            let mut at = 1;
            while cutter.quoted {
                let rest = text.get(at..).filter(|rest| !rest.is_empty())?;
                at += cutter.skip_string(rest);
            }
            Some(at)
        }
        _ => text
            .iter()
            .position(|b| matches!(b, b',' | b'}' | b']' | b':') || b.is_ascii_whitespace()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_found_whatever_the_pieces() {
        let text = br#" {"a":"}\"]","b":[1,{}]} , [2] ,{"c":"\\"}  ] tail"#;
        let close = text.len() - " tail".len() - 1;
        let ends: Vec<usize> = vec![24, 30, 42];
        for step in 1..text.len() {
            let (mut cutter, mut wholes, mut from) = (Cutter::default(), Vec::new(), 0);
            let closed = loop {
                let to = (from + step).min(text.len());
                let cut = cutter.scan(&text[..to], from);
                wholes.extend((cut.whole > 0).then_some(cut.whole));
                if cut.closed.is_some() || to == text.len() {
                    break cut.closed;
                }
                from = to;
            };
            assert_eq!(closed, Some(close), "{step}");
            assert_eq!(wholes.last(), ends.last(), "{step}");
            if step == 1 {
                assert_eq!(wholes, ends);
            }
        }
    }

    /// Chunks give the same result as single bytes.
    #[test]
    fn chunks_end_values_where_bytes_do() {
        // As random as it must be: a linear congruential generator (Knuth).
        let mut state = 1_u64;
        let mut next = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        for round in 0..20_000 {
            let kinds = b"{[}]\"\\ ax\xdd";
            let most = kinds.len() as u64 - u64::from(round % 2 == 0) * 4;
            let text: Vec<u8> = (0..next(400))
                .filter_map(|_| kinds.get(next(most) as usize).copied())
                .collect();
            let start = Cutter {
                depth: next(40) as u32,
                quoted: next(2) == 1,
                escaped: false,
            };
            let (mut chunks, mut bytes) = (start, start);
            let mut one_by_one = Cut {
                whole: 0,
                closed: None,
            };
            bytes.scan_bytes(&text, 0..text.len(), &mut one_by_one);
            assert_eq!(chunks.scan(&text, 0), one_by_one, "{text:?}");
            if one_by_one.closed.is_none() {
                let state = |cutter: Cutter| (cutter.depth, cutter.quoted, cutter.escaped);
                assert_eq!(state(chunks), state(bytes), "{text:?}");
            }
        }
    }

    #[test]
    fn values_are_measured() {
        for (text, len) in [
            (&br#"{"a":[1,"}"]},3"#[..], Some(13)),
            (br#""x\"y" "#, Some(6)),
            (b"12.5,", Some(4)),
            (b"null}", Some(4)),
            (b"12", None),
            (b"{\"a\":", None),
            (b"\"abc", None),
            (b"", None),
        ] {
            assert_eq!(value_len(text), len, "{}", String::from_utf8_lossy(text));
        }
    }
}
