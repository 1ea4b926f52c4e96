//! Bytes of a debug section as the parser reads them: page by page, as they are
//! needed.

use super::sections::{Access, PagedSection, Sections};
use gimli::{Error, NativeEndian, ReaderOffsetId, Result};
use std::borrow::Cow;

/// A part of a section.
#[derive(Clone, Copy)]
pub(super) struct PagedBytes<'a> {
    section: &'a PagedSection,
    access: &'a Access,
    at: usize,
    end: usize,
    /// Those from `at` on that are at hand, none beyond `end`.
    tail: &'a [u8],
}

impl std::fmt::Debug for PagedBytes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}..{:#x}", self.at, self.end)
    }
}

impl<'a> PagedBytes<'a> {
    /// A whole section by its name.
    pub(super) fn of(sections: &'a Sections, name: &str) -> Self {
        let section = sections.get(name);
        Self {
            section,
            access: sections.access(),
            at: 0,
            end: section.size(),
            tail: &[],
        }
    }

    fn eof<T>(&self) -> Result<T> {
        Err(Error::UnexpectedEof(ReaderOffsetId(self.at as u64)))
    }

    /// Bytes at hand, at least one.
    #[cold]
    fn load(&self) -> Result<&'a [u8]> {
        if self.at >= self.end {
            return self.eof();
        }
        let tail = self.section.tail(self.at, self.access).ok_or(Error::Io)?;
        let tail = tail.get(..self.end - self.at).unwrap_or(tail);
        match tail {
            [] => self.eof(),
            tail => Ok(tail),
        }
    }

    fn at_hand(&self) -> Result<&'a [u8]> {
        match self.tail {
            [] => self.load(),
            tail => Ok(tail),
        }
    }

    /// Goes on within `end`.
    fn advance(&mut self, len: usize) {
        self.at += len;
        self.tail = self.tail.get(len..).unwrap_or_default();
    }

    /// At most `most` of the bytes before the next NUL, or before the end.
    pub(super) fn text(&self, most: usize) -> Result<Cow<'a, [u8]>> {
        let mut rest = *self;
        let mut text = Cow::Borrowed(&[][..]);
        while rest.at < rest.end && text.len() < most {
            let tail = rest.at_hand()?;
            let tail = tail.get(..most - text.len()).unwrap_or(tail);
            let end = memchr::memchr(0, tail);
            let part = end.and_then(|end| tail.get(..end)).unwrap_or(tail);
            match text.is_empty() {
                true => text = Cow::Borrowed(part),
                false => text.to_mut().extend_from_slice(part),
            }
            if end.is_some() {
                break;
            }
            rest.tail = &[];
            rest.at += part.len();
        }
        Ok(text)
    }

    fn whole(&self) -> Result<Cow<'a, [u8]>> {
        let len = self.end - self.at;
        let tail = match len {
            0 => &[][..],
            _ => self.at_hand()?,
        };
        if tail.len() >= len {
            return Ok(Cow::Borrowed(tail.get(..len).unwrap_or_default()));
        }
        // Memory is taken as the bytes come.
        let mut all = Vec::new();
        let mut rest = *self;
        while rest.at < rest.end {
            let tail = rest.at_hand()?;
            all.extend_from_slice(tail);
            rest.tail = &[];
            rest.at += tail.len();
        }
        Ok(Cow::Owned(all))
    }
}

impl gimli::Reader for PagedBytes<'_> {
    type Endian = NativeEndian;
    type Offset = usize;

    fn endian(&self) -> NativeEndian {
        NativeEndian
    }

    fn len(&self) -> usize {
        self.end - self.at
    }

    fn empty(&mut self) {
        self.end = self.at;
        self.tail = &[];
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        if len > self.end - self.at {
            return self.eof();
        }
        self.end = self.at + len;
        self.tail = self.tail.get(..len).unwrap_or(self.tail);
        Ok(())
    }

    fn offset_from(&self, base: &Self) -> usize {
        self.at.saturating_sub(base.at)
    }

    fn offset_id(&self) -> ReaderOffsetId {
        ReaderOffsetId(self.at as u64)
    }

    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        let at = usize::try_from(id.0).ok()?;
        (self.at..=self.end).contains(&at).then(|| at - self.at)
    }

    fn find(&self, byte: u8) -> Result<usize> {
        let mut rest = *self;
        while rest.at < rest.end {
            let tail = rest.at_hand()?;
            if let Some(found) = memchr::memchr(byte, tail) {
                return Ok(rest.at + found - self.at);
            }
            rest.tail = &[];
            rest.at += tail.len();
        }
        self.eof()
    }

    fn skip(&mut self, len: usize) -> Result<()> {
        if len > self.end - self.at {
            return self.eof();
        }
        self.advance(len);
        Ok(())
    }

    fn split(&mut self, len: usize) -> Result<Self> {
        let mut first = *self;
        first.truncate(len)?;
        self.advance(len);
        Ok(first)
    }

    fn to_slice(&self) -> Result<Cow<'_, [u8]>> {
        self.whole()
    }

    fn to_string(&self) -> Result<Cow<'_, str>> {
        match self.whole()? {
            Cow::Borrowed(bytes) => std::str::from_utf8(bytes)
                .map(Cow::Borrowed)
                .map_err(|_| Error::BadUtf8),
            Cow::Owned(bytes) => String::from_utf8(bytes)
                .map(Cow::Owned)
                .map_err(|_| Error::BadUtf8),
        }
    }

    fn to_string_lossy(&self) -> Result<Cow<'_, str>> {
        Ok(match self.whole()? {
            Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
            Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        })
    }

    #[inline]
    fn read_slice(&mut self, buf: &mut [u8]) -> Result<()> {
        if let Some((now, later)) = self.tail.split_at_checked(buf.len()) {
            buf.copy_from_slice(now);
            self.at += now.len();
            self.tail = later;
            return Ok(());
        }
        if buf.len() > self.end - self.at {
            return self.eof();
        }
        let mut rest = buf;
        while !rest.is_empty() {
            let tail = self.at_hand()?;
            let len = tail.len().min(rest.len());
            let (now, later) = rest.split_at_mut(len);
            let (read, unread) = tail.split_at(len);
            now.copy_from_slice(read);
            rest = later;
            self.at += len;
            self.tail = unread;
        }
        Ok(())
    }

    #[inline]
    fn read_u8(&mut self) -> Result<u8> {
        if self.tail.is_empty() {
            self.tail = self.load()?;
        }
        let [byte, rest @ ..] = self.tail else {
            return self.eof();
        };
        self.at += 1;
        self.tail = rest;
        Ok(*byte)
    }
}
