//! The headers of a file: its kind, its segments, its sections and its notes.

use super::read::{ElfError, FileRange, ReadAt, read_all, read_full};
use aiprof_model::profile::BuildId;
use std::io;

/// Most bytes of the names of sections.
const MAX_NAMES: u64 = 4 << 20;
/// Most segments that a header can state.
const MAX_SEGMENTS: u64 = 1 << 16;

pub(crate) const SHT_SYMTAB: u32 = 2;
const EM_386: u16 = 3;
const EM_X86_64: u16 = 62;
const NT_GNU_BUILD_ID: u32 = 3;

/// The first header of a file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ElfHeader {
    /// Whether the file does not end within it.
    pub(super) is_whole: bool,
    /// 1: addresses have 32 bits, 2: 64 bits.
    pub(super) class: u8,
    /// 1: little endian, 2: big endian.
    pub(super) order: u8,
    pub(super) machine: u16,
    /// Where the program begins.
    pub(super) entry: u64,
    segments: u64,
    /// Bytes of a segment's header.
    pub(super) segment_size: u16,
    pub(super) segment_count: u16,
    sections: u64,
    section_count: u16,
    names: u16,
}

/// A segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct ElfSegment {
    pub(super) kind: u32,
    pub(super) flags: u32,
    pub(super) vaddr: u64,
    pub(super) align: u64,
    pub(super) file: FileRange,
}

/// A section.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElfSection {
    name: u32,
    pub(super) kind: u32,
    pub(super) flags: u64,
    pub(super) addr: u64,
    pub(super) file: FileRange,
    /// Index of another section, such as the strings of a table of symbols.
    pub(super) link: u32,
    /// Bytes of an entry.
    pub(super) entry: u64,
}

/// The sections of a file, in the file's order.
#[derive(Clone, Debug, Default)]
pub(crate) struct ElfSections {
    pub(super) list: Vec<ElfSection>,
    names: Option<FileRange>,
}

impl ElfHeader {
    /// Reads the header; `None`: the file does not begin as an ELF file does. Fields that the
    /// file does not have are 0.
    pub(crate) fn read<R: ReadAt>(source: &R) -> io::Result<Option<Self>> {
        let mut bytes = [0; 64];
        let n = read_full(source, &mut bytes, 0)?;
        let [0x7f, b'E', b'L', b'F', class, order, ..] = bytes else {
            return Ok(None);
        };
        let fields = HeaderFields {
            bytes: &bytes,
            wide: class == 2,
        };
        // Where the sizes and counts are.
        let counts = if fields.wide { 54 } else { 42 };
        Ok(Some(Self {
            // A 32-bit header has 52 bytes, but no such file ends there.
            is_whole: n == bytes.len(),
            class,
            order,
            machine: fields.u16(18),
            entry: fields.word(24, 24),
            segments: fields.word(28, 32),
            segment_size: fields.u16(counts),
            segment_count: fields.u16(counts + 2),
            sections: fields.word(32, 40),
            section_count: fields.u16(counts + 6),
            names: fields.u16(counts + 8),
        }))
    }

    /// Whether addresses have 64 bits.
    pub(super) fn is_wide(&self) -> bool {
        self.class == 2
    }

    /// Whether the file is for x86-64.
    pub(crate) fn is_x86_64(&self) -> bool {
        self.is_whole && self.is_wide() && self.order == 1 && self.machine == EM_X86_64
    }

    /// Whether the file is for the programs of 32 bits that x86-64 runs as well.
    pub(crate) fn is_i386(&self) -> bool {
        self.is_whole && self.class == 1 && self.order == 1 && self.machine == EM_386
    }

    /// Reads the headers of the segments.
    pub(super) fn segments<R: ReadAt>(&self, source: &R) -> Result<Vec<ElfSegment>, ElfError> {
        let size = if self.is_wide() { 56 } else { 32 };
        if self.segments == 0 {
            return Ok(Vec::new());
        }
        let table = FileRange {
            offset: self.segments,
            size: size * u64::from(self.segment_count),
        };
        let table = read_all(source, table, size * MAX_SEGMENTS)?;
        let headers = table.chunks_exact(size as usize);
        Ok(headers.map(|bytes| self.segment(bytes)).collect())
    }

    fn segment(&self, bytes: &[u8]) -> ElfSegment {
        let fields = self.fields(bytes);
        ElfSegment {
            kind: fields.u32(0),
            flags: fields.u32(if fields.wide { 4 } else { 24 }),
            vaddr: fields.word(8, 16),
            align: fields.word(28, 48),
            file: FileRange {
                offset: fields.word(4, 8),
                size: fields.word(16, 32),
            },
        }
    }

    /// Reads the headers of the sections, of which there may be `most`; none if the file has
    /// none.
    pub(crate) fn sections<R: ReadAt>(
        &self,
        source: &R,
        most: u64,
    ) -> Result<ElfSections, ElfError> {
        let size = if self.is_wide() { 64 } else { 40 };
        let headers = |count: u64| {
            let table = FileRange {
                offset: self.sections,
                size: size * count,
            };
            let table = read_all(source, table, size * most)?;
            let headers = table.chunks_exact(size as usize);
            Ok::<Vec<_>, ElfError>(headers.map(|bytes| self.section(bytes)).collect())
        };
        if self.sections == 0 {
            return Ok(ElfSections::default());
        }
        let (mut count, mut names) = (u64::from(self.section_count), u32::from(self.names));
        if count == 0 || self.names == 0xffff {
            // More than 65,279 sections: the counts are in the first header.
            for first in headers(1)? {
                count = if count == 0 { first.file.size } else { count };
                names = if names == 0xffff { first.link } else { names };
            }
        }
        if count > most {
            return Err(ElfError::Malformed("too many sections"));
        }
        let list = headers(count)?;
        let names = list.get(names as usize).filter(|names| names.is_in_file());
        Ok(ElfSections {
            names: names.map(|names| names.file),
            list,
        })
    }

    fn section(&self, bytes: &[u8]) -> ElfSection {
        let fields = self.fields(bytes);
        ElfSection {
            name: fields.u32(0),
            kind: fields.u32(4),
            flags: fields.word(8, 8),
            addr: fields.word(12, 16),
            file: FileRange {
                offset: fields.word(16, 24),
                size: fields.word(20, 32),
            },
            link: fields.u32(if fields.wide { 40 } else { 24 }),
            entry: fields.word(36, 56),
        }
    }

    pub(super) fn fields<'a>(&self, bytes: &'a [u8]) -> HeaderFields<'a> {
        HeaderFields {
            bytes,
            wide: self.is_wide(),
        }
    }
}

impl ElfSection {
    /// Whether its bytes are in the file (no `SHT_NOBITS`).
    pub(super) fn is_in_file(&self) -> bool {
        self.kind != 8
    }
}

impl ElfSections {
    /// Reads the names of all.
    pub(super) fn names<R: ReadAt>(&self, source: &R) -> Result<SectionNames, ElfError> {
        let names = self.names.map(|names| read_all(source, names, MAX_NAMES));
        Ok(SectionNames(names.transpose()?.unwrap_or_default()))
    }
}

/// The names of sections.
pub(super) struct SectionNames(Vec<u8>);

impl SectionNames {
    /// That of one.
    pub(super) fn of(&self, section: &ElfSection) -> &[u8] {
        let tail = self.0.get(section.name as usize..).unwrap_or_default();
        tail.split(|&b| b == 0).next().unwrap_or_default()
    }
}

/// Fields of a header by their offsets; 0 beyond its end.
pub(super) struct HeaderFields<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) wide: bool,
}

impl HeaderFields<'_> {
    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        let field = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        field.copied().unwrap_or([0; N])
    }

    pub(super) fn u16(&self, at: usize) -> u16 {
        u16::from_ne_bytes(self.get(at))
    }

    pub(super) fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.get(at))
    }

    /// A field of the size of an address: its offsets in files of 32 and of 64 bits.
    pub(super) fn word(&self, narrow: usize, wide: usize) -> u64 {
        match self.wide {
            true => u64::from_ne_bytes(self.get(wide)),
            false => self.u32(narrow).into(),
        }
    }
}

/// The build id among notes. Each has the sizes of its name and its description, its type, its
/// name and its description; the last two are padded to `align` bytes.
pub(super) fn build_id(mut notes: &[u8], align: usize) -> Option<BuildId> {
    while notes.len() >= 12 {
        let fields = HeaderFields {
            bytes: notes,
            wide: false,
        };
        let (name, description) = (fields.u32(0) as usize, fields.u32(4) as usize);
        let name = 12..name.checked_add(12)?;
        let from = name.end.checked_next_multiple_of(align)?;
        let end = from.checked_add(description)?;
        if fields.u32(8) == NT_GNU_BUILD_ID && notes.get(name) == Some(b"GNU\0") {
            return BuildId::new(notes.get(from..end)?);
        }
        notes = notes.get(end.checked_next_multiple_of(align)?..)?;
    }
    None
}

/// The value of a tag in the dynamic section of a file with addresses of 64 bits.
pub(super) fn dynamic_value(entries: &[u8], tag: u64) -> Option<u64> {
    let mut entries = entries.as_chunks::<8>().0.as_chunks::<2>().0.iter();
    let entry = entries.find(|entry| u64::from_ne_bytes(entry[0]) == tag)?;
    Some(u64::from_ne_bytes(entry[1]))
}
