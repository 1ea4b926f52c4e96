//! What is loaded of a file with code for x86-64, or for its programs of 32 bits.

use super::header::{self, ElfHeader, ElfSection, ElfSections, ElfSegment, SHT_SYMTAB};
use super::read::{ElfError, FileRange, ReadAt, read_full};
use super::tables::{Entries, RELA, Relocation, SHT_DYNSYM, SHT_RELA};
use aiprof_model::profile::BuildId;
use std::io;

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const SHF_ALLOC: u64 = 2;
const SHF_EXECINSTR: u64 = 4;

/// Bytes of a segment's header, and of one of a program of 32 bits.
const SEGMENT: u16 = 56;
const NARROW_SEGMENT: u16 = 32;
/// Most segments; real files have about a dozen.
const MAX_SEGMENTS: u16 = 1024;
/// Most sections of a file whose sections are looked at.
const MAX_SECTIONS: u64 = 16 * 1024;
/// Most bytes of notes read in search of the build id.
const MAX_NOTE_BYTES: u64 = 64 * 1024;
/// Granularity of mappings.
const MAPPING_ALIGN: u64 = 4096;

/// A part of a file that is loaded, mostly an executable one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TextSegment {
    /// First byte in the file.
    pub file_offset: u64,
    /// Virtual address of that byte, as in the file.
    pub vaddr: u64,
    /// Bytes in the file.
    pub size: u64,
}

impl TextSegment {
    /// Whether an address lies in it.
    pub fn contains(&self, vaddr: u64) -> bool {
        vaddr
            .checked_sub(self.vaddr)
            .is_some_and(|at| at < self.size)
    }
}

/// Where in the file an address of its parts is; `None`: in none of them.
pub fn offset_of(parts: &[TextSegment], vaddr: u64) -> Option<u64> {
    parts.iter().find_map(|part| {
        let at = part.contains(vaddr).then(|| vaddr - part.vaddr)?;
        part.file_offset.checked_add(at)
    })
}

/// At most `most` bytes of the part that holds an address, from there on; fewer at its end and at
/// that of the file, none if no part holds it.
///
/// # Errors
/// The source's own.
pub fn bytes_from<R: ReadAt>(
    source: &R,
    parts: &[TextSegment],
    vaddr: u64,
    most: u64,
) -> io::Result<Vec<u8>> {
    let Some(part) = parts.iter().find(|part| part.contains(vaddr)) else {
        return Ok(Vec::new());
    };
    let skip = vaddr - part.vaddr;
    let size = usize::try_from(most.min(part.size - skip)).unwrap_or(0);
    let mut bytes = vec![0; size];
    let n = read_full(source, &mut bytes, part.file_offset.saturating_add(skip))?;
    bytes.truncate(n);
    Ok(bytes)
}

/// Virtual address of a byte of text by its offset in the file. Mappings begin
/// and end on multiples of 4096, so the bytes that are mapped along with a
/// segment's ends have an address too, unless they belong to another segment.
pub fn address_of(text: &[TextSegment], file_offset: u64) -> Option<u64> {
    let find = |align: u64| {
        text.iter().find_map(|t| {
            let start = t.file_offset & !(align - 1);
            let end = t
                .file_offset
                .saturating_add(t.size)
                .checked_next_multiple_of(align)?;
            let inside = (start..end).contains(&file_offset);
            let bias = t.vaddr.wrapping_sub(t.file_offset);
            inside.then(|| file_offset.wrapping_add(bias))
        })
    };
    find(1).or_else(|| find(MAPPING_ALIGN))
}

/// A range of bytes of the file and the virtual address it is loaded at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileSpan {
    /// First byte in the file.
    pub(crate) offset: u64,
    /// Virtual address of that byte.
    pub(crate) vaddr: u64,
    /// Bytes in the file.
    pub(crate) size: u64,
}

impl FileSpan {
    /// Nothing.
    pub(crate) const EMPTY: Self = Self {
        offset: 0,
        vaddr: 0,
        size: 0,
    };

    /// A range whose ends fit 64 bits.
    fn new(file: FileRange, vaddr: u64) -> Option<Self> {
        let FileRange { offset, size } = file;
        offset.checked_add(size)?;
        vaddr.checked_add(size)?;
        Some(Self {
            offset,
            vaddr,
            size,
        })
    }

    /// Its bytes in the file.
    pub(crate) fn file(&self) -> FileRange {
        FileRange {
            offset: self.offset,
            size: self.size,
        }
    }

    /// The part of the span from `vaddr` on, if it holds that address.
    pub(crate) fn starting_at(&self, vaddr: u64) -> Option<Self> {
        let skip = vaddr.checked_sub(self.vaddr).filter(|&s| s < self.size)?;
        Some(Self {
            offset: self.offset + skip,
            vaddr,
            size: self.size - skip,
        })
    }
}

impl From<FileSpan> for TextSegment {
    fn from(span: FileSpan) -> Self {
        Self {
            file_offset: span.offset,
            vaddr: span.vaddr,
            size: span.size,
        }
    }
}

/// A file with code for x86-64, or for its programs of 32 bits.
#[derive(Debug, Default)]
pub(crate) struct CodeFile {
    /// Loaded segments, in the file's order.
    pub(crate) loads: Vec<FileSpan>,
    /// Loaded segments that may be written to, and not executed.
    pub(crate) data: Vec<FileSpan>,
    /// Executable loaded segments, by address.
    pub(crate) text: Vec<TextSegment>,
    /// `.eh_frame_hdr`.
    pub(crate) eh_frame_hdr: Option<FileSpan>,
    /// The build id note.
    pub(crate) build_id: Option<BuildId>,
    /// Where the program begins.
    pub(crate) entry: u64,
    /// Whether addresses have 32 bits.
    pub(crate) is_narrow: bool,
    sections: ElfSections,
}

/// Tables that list functions.
#[derive(Debug, Default)]
pub(crate) struct CodeTables {
    /// Symbols.
    pub(crate) symbols: Vec<FileRange>,
    /// Whether those are among them that linking does not need.
    pub(crate) has_all: bool,
    /// Relocations with addends.
    pub(crate) relocations: Vec<FileRange>,
    /// Sections of code.
    pub(crate) code: Vec<FileSpan>,
}

impl CodeFile {
    /// Reads the headers. Sections count as absent if their headers are cut off.
    ///
    /// # Errors
    /// No ELF file for x86, cut-off or malformed segments, or the source's own errors.
    pub(crate) fn read<R: ReadAt>(source: &R) -> Result<Self, ElfError> {
        let header = ElfHeader::read(source)?.ok_or(ElfError::NotElf)?;
        if !header.is_whole {
            return Err(ElfError::Truncated("ELF header"));
        }
        let is_narrow = header.is_i386();
        if !header.is_x86_64() && !is_narrow {
            return Err(ElfError::ForeignMachine(header.machine));
        }
        let segment_size = if is_narrow { NARROW_SEGMENT } else { SEGMENT };
        if header.segment_count > 0 && header.segment_size != segment_size {
            return Err(ElfError::Malformed("program header size"));
        }
        if header.segment_count > MAX_SEGMENTS {
            return Err(ElfError::TooLarge("number of program headers"));
        }
        let segments = header.segments(source);
        let mut file = Self {
            sections: absent_if_malformed(header.sections(source, MAX_SECTIONS))?,
            entry: header.entry,
            is_narrow,
            ..Self::default()
        };
        let mut note_bytes = MAX_NOTE_BYTES;
        for segment in segments.map_err(|error| match error {
            ElfError::Io(error) => ElfError::Io(error),
            _ => ElfError::Truncated("program headers"),
        })? {
            file.add_segment(source, &segment, &mut note_bytes)?;
        }
        file.text.sort_by_key(|text| text.vaddr);
        Ok(file)
    }

    fn add_segment<R: ReadAt>(
        &mut self,
        source: &R,
        segment: &ElfSegment,
        note_bytes: &mut u64,
    ) -> Result<(), ElfError> {
        let Some(span) = FileSpan::new(segment.file, segment.vaddr) else {
            return Err(ElfError::Malformed("program header"));
        };
        match segment.kind {
            PT_LOAD => {
                self.loads.push(span);
                if segment.flags & (PF_X | PF_W) == PF_W {
                    self.data.push(span);
                }
                if segment.flags & PF_X != 0 && span.size > 0 {
                    self.text.push(span.into());
                }
            }
            PT_GNU_EH_FRAME => self.eh_frame_hdr = Some(span),
            PT_NOTE if self.build_id.is_none() && span.size <= *note_bytes => {
                *note_bytes -= span.size;
                let mut notes = vec![0; usize::try_from(span.size).unwrap_or(0)];
                // A note that is cut off costs the build id, not the tables.
                let n = read_full(source, &mut notes, span.offset)?;
                notes.truncate(n);
                let align = if segment.align == 8 { 8 } else { 4 };
                self.build_id = header::build_id(&notes, align);
            }
            _ => {}
        }
        Ok(())
    }

    /// The loaded bytes from `vaddr` to the end of their segment.
    pub(crate) fn loaded_from(&self, vaddr: u64) -> Option<FileSpan> {
        self.loads.iter().find_map(|load| load.starting_at(vaddr))
    }

    /// The sections whose ends fit 64 bits.
    fn sections(&self) -> impl Iterator<Item = (&ElfSection, FileSpan)> {
        let span = |section: &ElfSection| FileSpan::new(section.file, section.addr);
        let sections = self.sections.list.iter();
        sections.filter_map(move |section| Some((section, span(section)?)))
    }

    /// The tables that list functions.
    pub(crate) fn tables(&self) -> CodeTables {
        let mut tables = CodeTables::default();
        for (section, span) in self.sections() {
            tables.has_all |= section.kind == SHT_SYMTAB;
            if section.flags & (SHF_ALLOC | SHF_EXECINSTR) == SHF_ALLOC | SHF_EXECINSTR {
                tables.code.push(span);
            }
            match section.kind {
                SHT_SYMTAB | SHT_DYNSYM => tables.symbols.push(span.file()),
                SHT_RELA => tables.relocations.push(span.file()),
                _ => {}
            }
        }
        tables
    }

    /// The first loaded section with one of some names.
    ///
    /// # Errors
    /// The source's own.
    pub(crate) fn section_named<R: ReadAt>(
        &self,
        source: &R,
        wanted: &[&[u8]],
    ) -> io::Result<Option<FileSpan>> {
        let names = absent_if_malformed(self.sections.names(source).map(Some))?;
        let found = names.and_then(|names| {
            let is_wanted = |section: &ElfSection| {
                let is_loaded = section.is_in_file() && section.addr != 0;
                is_loaded && wanted.contains(&names.of(section))
            };
            self.sections().find(|(section, _)| is_wanted(section))
        });
        Ok(found.map(|(_, span)| span))
    }
}

/// What was read, nothing if it is malformed.
fn absent_if_malformed<T: Default>(read: Result<T, ElfError>) -> io::Result<T> {
    match read {
        Ok(read) => Ok(read),
        Err(ElfError::Io(error)) => Err(error),
        Err(_) => Ok(T::default()),
    }
}

/// Calls a function with each relocation of some tables, of which at most `most` bytes are read.
///
/// # Errors
/// The source's own.
pub(crate) fn each_relocation<R: ReadAt>(
    source: &R,
    tables: &[FileRange],
    most: u64,
    mut found: impl FnMut(&Relocation),
) -> io::Result<()> {
    let mut left = most;
    for table in tables {
        let size = table.size.min(left);
        left -= size;
        let mut entries = Entries::new(source, FileRange { size, ..*table }, RELA);
        while let Some(entries) = entries.more()? {
            for relocation in entries.filter_map(Relocation::parse) {
                found(&relocation);
            }
        }
    }
    Ok(())
}
