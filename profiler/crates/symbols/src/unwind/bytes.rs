//! A cursor over bytes of unknown quality: every read is checked.

/// Little-endian cursor; a read past the end is `None` and moves nothing past
/// the end.
#[derive(Clone, Copy)]
pub(super) struct Bytes<'a> {
    data: &'a [u8],
    pos: usize,
}

impl<'a> Bytes<'a> {
    /// A cursor at the first byte.
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self { data, pos: 0 }
    }

    /// Bytes read so far.
    pub(super) fn pos(&self) -> usize {
        self.pos
    }

    /// Whether all bytes are read.
    pub(super) fn is_empty(&self) -> bool {
        self.pos >= self.data.len()
    }

    /// The bytes not read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.data.get(self.pos..).unwrap_or_default()
    }

    /// The next `n` bytes.
    pub(super) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let end = self.pos.checked_add(n)?;
        let bytes = self.data.get(self.pos..end)?;
        self.pos = end;
        Some(bytes)
    }

    /// The next `n` bytes, `n` as the file states it.
    pub(super) fn take_u64(&mut self, n: u64) -> Option<&'a [u8]> {
        self.take(usize::try_from(n).ok()?)
    }

    /// The next `N` bytes as an array.
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    /// One byte.
    pub(super) fn u8(&mut self) -> Option<u8> {
        let byte = *self.data.get(self.pos)?;
        self.pos += 1;
        Some(byte)
    }

    /// Two bytes.
    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// Four bytes.
    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// An unsigned LEB128 number; `None` if it does not fit 64 bits.
    pub(super) fn uleb(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// A signed LEB128 number; `None` if it does not fit 64 bits.
    pub(super) fn sleb(&mut self) -> Option<i64> {
        let mut value = 0i64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = i64::from(byte & 0x7f);
            if shift == 63 && bits != 0 && bits != 0x7f {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                let extend = byte & 0x40 != 0 && shift + 7 < 64;
                return Some(if extend {
                    value | (-1 << (shift + 7))
                } else {
                    value
                });
            }
        }
        None
    }

    /// A string up to its NUL, which is read but not part of the result.
    pub(super) fn c_str(&mut self) -> Option<&'a [u8]> {
        let len = self.rest().iter().position(|&b| b == 0)?;
        let text = self.take(len)?;
        self.pos += 1;
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::Bytes;

    #[test]
    fn leb128_examples_of_the_dwarf_standard() {
        // DWARF 5, figures 22 and 23 (section 7.6).
        for (bytes, value) in [
            (&[2u8][..], 2),
            (&[127], 127),
            (&[0x80, 1], 128),
            (&[0x81, 1], 129),
            (&[57 + 0x80, 100], 12857),
        ] {
            assert_eq!(Bytes::new(bytes).uleb(), Some(value));
        }
        for (bytes, value) in [
            (&[2u8][..], 2),
            (&[0x7e], -2),
            (&[0xff, 0], 127),
            (&[0x81, 0x7f], -127),
            (&[0x80, 1], 128),
            (&[0x80, 0x7f], -128),
            (&[0x81, 1], 129),
            (&[0xff, 0x7e], -129),
        ] {
            assert_eq!(Bytes::new(bytes).sleb(), Some(value));
        }
    }

    #[test]
    fn numbers_that_do_not_fit_or_end_are_none() {
        assert_eq!(Bytes::new(&[0x80; 3]).uleb(), None);
        assert_eq!(Bytes::new(&[0xff; 11]).uleb(), None);
        assert_eq!(Bytes::new(&[0xff; 11]).sleb(), None);
        let max = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(Bytes::new(&max).uleb(), Some(u64::MAX));
        assert_eq!(Bytes::new(&[1, 2, 3]).u32(), None);
        assert_eq!(Bytes::new(b"abc").c_str(), None);
        assert_eq!(Bytes::new(&[1]).take_u64(u64::MAX), None);
    }
}
