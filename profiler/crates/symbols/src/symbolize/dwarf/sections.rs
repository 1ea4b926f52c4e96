//! The debug sections of a file, of which only those pages are read that are needed.
//!
//! They are not mapped: their owner may change or cut off the file at any time. That would change
//! what the parser has checked, or end this program with a signal. A page is read once and then
//! stays as it is. In a compressed section, what precedes a page is inflated too.

use super::limit::{DwarfError, SectionsError};
use crate::elf::{DebugSection, ElfInfo, Packing};
use std::cell::{Cell, OnceCell, RefCell};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Instant;

/// Most bytes that are read of the sections of one file between two releases.
const MAX_BYTES: u64 = 384 << 20;
/// Most bytes of the sections of one file, inflated: 16 bytes of memory for each page.
pub(in crate::symbolize) const MAX_SIZE: u64 = 4 << 30;
/// Bytes of a page.
const PAGE: usize = 16 << 10;
/// Bytes of compressed data read at once.
const CHUNK: usize = 64 << 10;

/// A file's debug sections by name.
pub(super) struct Sections {
    list: Vec<PagedSection>,
    /// What sections are that the file does not have.
    empty: PagedSection,
    access: Access,
}

/// What the sections of a file share.
pub(super) struct Access {
    file: Arc<File>,
    /// Bytes that may be read yet.
    left: Cell<u64>,
    /// When reading ends.
    deadline: Cell<Instant>,
    /// Why reading failed, until it is asked for.
    failure: RefCell<Option<DwarfError>>,
}

/// One section.
pub(super) struct PagedSection {
    name: &'static str,
    offset: u64,
    /// Bytes in the file.
    stored: u64,
    packing: Packing,
    /// Bytes, inflated.
    size: usize,
    pages: Vec<OnceCell<Box<[u8]>>>,
    inflater: RefCell<Option<Inflater>>,
}

/// Inflates a section from its begin to its end.
struct Inflater {
    stream: Box<dyn Read + Send>,
    /// The page that comes next.
    next: usize,
}

impl std::fmt::Debug for Sections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.list.iter().map(|s| s.name))
            .finish()
    }
}

impl Sections {
    /// The sections of a file, nothing of them read yet. The caller has checked
    /// [`ElfInfo::packed_bytes`]; no section inflates beyond what it claims.
    pub(super) fn open(file: Arc<File>, info: &ElfInfo) -> Result<Self, DwarfError> {
        let length = file.metadata().map_err(SectionsError::Read)?.len();
        let sizes = info
            .debug
            .iter()
            .map(|section| section.packing.size(section.size));
        if sizes.fold(0, u64::saturating_add) > MAX_SIZE {
            return Err(SectionsError::TooLarge.into());
        }
        let list = info.debug.iter().map(|s| PagedSection::new(s, length));
        Ok(Self {
            list: list.collect::<Result<_, _>>()?,
            empty: PagedSection::empty(),
            access: Access {
                file,
                left: Cell::new(MAX_BYTES),
                deadline: Cell::new(Instant::now()),
                failure: RefCell::new(None),
            },
        })
    }

    /// Allows reading until then.
    pub(super) fn allow(&self, deadline: Instant) {
        self.access.deadline.set(deadline);
    }

    /// A section; an empty one if the file does not have it.
    pub(super) fn get(&self, name: &str) -> &PagedSection {
        let found = self.list.iter().find(|section| section.name == name);
        found.unwrap_or(&self.empty)
    }

    /// What reads the sections' bytes.
    pub(super) fn access(&self) -> &Access {
        &self.access
    }

    /// Why reading failed since this was asked last.
    pub(super) fn take_failure(&self) -> Option<DwarfError> {
        self.access.failure.take()
    }

    /// Bytes of heap held.
    pub(super) fn memory(&self) -> u64 {
        self.list.iter().map(PagedSection::memory).sum()
    }

    /// Drops all pages.
    pub(super) fn release(&mut self) {
        for section in &mut self.list {
            section.pages.iter_mut().for_each(|page| {
                page.take();
            });
            section.inflater.take();
        }
        self.access.left.set(MAX_BYTES);
    }
}

impl PagedSection {
    fn new(section: &DebugSection, length: u64) -> Result<Self, SectionsError> {
        let end = section.offset.checked_add(section.size);
        if end.is_none_or(|end| end > length) {
            return Err(SectionsError::Truncated);
        }
        if section.packing == Packing::Unknown {
            return Err(SectionsError::UnknownPacking);
        }
        let size = usize::try_from(section.packing.size(section.size))
            .map_err(|_| SectionsError::TooLarge)?;
        let mut pages = Vec::new();
        pages
            .try_reserve_exact(size.div_ceil(PAGE))
            .map_err(|_| SectionsError::TooLarge)?;
        pages.resize_with(size.div_ceil(PAGE), OnceCell::new);
        Ok(Self {
            name: section.name,
            offset: section.offset,
            stored: section.size,
            packing: section.packing,
            size,
            pages,
            inflater: RefCell::new(None),
        })
    }

    fn empty() -> Self {
        Self {
            name: "",
            offset: 0,
            stored: 0,
            packing: Packing::None,
            size: 0,
            pages: Vec::new(),
            inflater: RefCell::new(None),
        }
    }

    /// Bytes, inflated.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    fn memory(&self) -> u64 {
        let pages = self.pages.iter().filter_map(OnceCell::get);
        let held: u64 = pages.map(|page| page.len() as u64).sum();
        held + (self.pages.capacity() * size_of::<OnceCell<Box<[u8]>>>()) as u64
    }

    /// The bytes from `at` to the end of its page; none at the end of the section. `None`: they
    /// cannot be read, and `access` has the reason.
    pub(super) fn tail<'a>(&'a self, at: usize, access: &Access) -> Option<&'a [u8]> {
        let Some(page) = self.pages.get(at / PAGE) else {
            return Some(&[]);
        };
        let bytes = match page.get() {
            Some(bytes) => bytes,
            None => {
                if let Err(error) = self.load(at / PAGE, access) {
                    access.failure.borrow_mut().get_or_insert(error);
                    return None;
                }
                page.get()?
            }
        };
        Some(bytes.get(at % PAGE..).unwrap_or_default())
    }

    /// Copies bytes without keeping their page, where they are not compressed.
    pub(super) fn peek(&self, at: usize, bytes: &mut [u8], access: &Access) -> Option<()> {
        let end = at
            .checked_add(bytes.len())
            .filter(|end| *end <= self.size)?;
        let page = self.pages.get(at / PAGE)?;
        if page.get().is_some() && end <= (at / PAGE + 1) * PAGE || self.packing != Packing::None {
            let mut at = at;
            let mut rest = bytes;
            while !rest.is_empty() {
                let tail = self.tail(at, access)?;
                let len = tail.len().min(rest.len());
                let (now, later) = rest.split_at_mut_checked(len).filter(|_| len > 0)?;
                now.copy_from_slice(tail.get(..len)?);
                at += len;
                rest = later;
            }
            return Some(());
        }
        let from = self.offset + at as u64;
        let read = access.check().and_then(|()| access.read_at(from, bytes));
        if let Err(error) = read {
            access.failure.borrow_mut().get_or_insert(error);
            return None;
        }
        Some(())
    }

    fn page_size(&self, index: usize) -> usize {
        self.size.saturating_sub(index * PAGE).min(PAGE)
    }

    fn load(&self, index: usize, access: &Access) -> Result<(), DwarfError> {
        if self.packing != Packing::None {
            return self.inflate(index, access);
        }
        let mut bytes = access.page(self.page_size(index))?;
        access.read_at(self.offset + (index * PAGE) as u64, &mut bytes)?;
        self.put(index, bytes);
        Ok(())
    }

    fn put(&self, index: usize, bytes: Vec<u8>) {
        if let Some(page) = self.pages.get(index) {
            // It is empty, or the page would not be read.
            page.get_or_init(|| bytes.into_boxed_slice());
        }
    }

    /// Inflates up to a page.
    fn inflate(&self, index: usize, access: &Access) -> Result<(), DwarfError> {
        let mut inflater = self.inflater.borrow_mut();
        if inflater.is_none() {
            *inflater = Some(Inflater {
                stream: self.stream(access)?,
                next: 0,
            });
        }
        while let Some(inflater) = inflater.as_mut().filter(|i| i.next <= index) {
            let mut bytes = access.page(self.page_size(inflater.next))?;
            let inflated = inflater.stream.read_exact(&mut bytes);
            inflated.map_err(SectionsError::Inflate)?;
            self.put(inflater.next, bytes);
            inflater.next += 1;
        }
        Ok(())
    }

    /// What inflates the section from its begin on.
    fn stream(&self, access: &Access) -> Result<Box<dyn Read + Send>, SectionsError> {
        let header = match self.packing {
            Packing::Zlib { header, .. } | Packing::Zstd { header, .. } => header as u64,
            Packing::None | Packing::Unknown => return Err(SectionsError::UnknownPacking),
        };
        let packed = FilePart {
            file: Arc::clone(&access.file),
            at: self.offset.saturating_add(header),
            end: self.offset.saturating_add(self.stored),
        };
        let packed = BufReader::with_capacity(CHUNK, packed);
        Ok(match self.packing {
            Packing::Zstd { .. } => {
                let stream = zstd::stream::read::Decoder::with_buffer(packed);
                Box::new(stream.map_err(SectionsError::Inflate)?)
            }
            _ => Box::new(flate2::bufread::ZlibDecoder::new(packed)),
        })
    }
}

impl Access {
    fn check(&self) -> Result<(), DwarfError> {
        if Instant::now() >= self.deadline.get() {
            return Err(DwarfError::Deadline);
        }
        Ok(())
    }

    /// An empty page, if there is time and room for one.
    fn page(&self, size: usize) -> Result<Vec<u8>, DwarfError> {
        self.check()?;
        let left = self.left.get().checked_sub(size as u64);
        self.left.set(left.ok_or(SectionsError::TooLarge)?);
        Ok(vec![0; size])
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DwarfError> {
        let read = self.file.read_exact_at(bytes, offset);
        read.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => SectionsError::Truncated.into(),
            _ => SectionsError::Read(error).into(),
        })
    }
}

/// A part of a file as a stream.
struct FilePart {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Read for FilePart {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let wanted = left.min(bytes.len());
        let got = self
            .file
            .read_at(bytes.get_mut(..wanted).unwrap_or_default(), self.at)?;
        self.at += got as u64;
        Ok(got)
    }
}
