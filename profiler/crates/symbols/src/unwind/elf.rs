//! The few parts of an ELF file that lead to its unwind data. These are the program headers, the
//! build id note and, where those do not suffice, the section headers (System V ABI, chapters 4 and
//! 5).

use super::bytes::Bytes;
use super::source::{ReadAt, read_full};
use super::{TextSegment, UnwindError};
use aiprof_model::profile::BuildId;

const HEADER_SIZE: usize = 64;
const PROGRAM_HEADER_SIZE: usize = 56;
const SECTION_HEADER_SIZE: usize = 64;
const EM_X86_64: u16 = 62;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const SHF_ALLOC: u64 = 2;
const SHF_EXECINSTR: u64 = 4;
const SHT_SYMTAB: u32 = 2;
const SHT_RELA: u32 = 4;
const SHT_NOBITS: u32 = 8;
const SHT_DYNSYM: u32 = 11;
const NT_GNU_BUILD_ID: u32 = 3;

/// Most program headers read; real files have about a dozen.
const MAX_PROGRAM_HEADERS: u16 = 1024;
/// Most section headers read in search of `.eh_frame`.
const MAX_SECTIONS: u16 = 16 * 1024;
/// Most bytes of the names of sections.
const MAX_NAME_BYTES: u64 = 64 * 1024;
/// Most bytes of notes read in search of the build id.
const MAX_NOTE_BYTES: u64 = 64 * 1024;

/// A range of bytes of the file and the virtual address it is loaded at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// First byte in the file.
    pub(crate) offset: u64,
    /// Virtual address of that byte.
    pub(crate) vaddr: u64,
    /// Bytes in the file.
    pub(crate) size: u64,
}

impl Span {
    /// Nothing.
    pub(super) const EMPTY: Self = Self {
        offset: 0,
        vaddr: 0,
        size: 0,
    };

    /// A range whose ends fit 64 bits.
    fn new(offset: u64, vaddr: u64, size: u64) -> Option<Self> {
        offset.checked_add(size)?;
        vaddr.checked_add(size)?;
        Some(Self {
            offset,
            vaddr,
            size,
        })
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

/// The content of the program headers.
#[derive(Debug, Default)]
pub(crate) struct Elf {
    /// Loaded segments, in the file's order.
    pub(crate) loads: Vec<Span>,
    /// Loaded segments that may be written to, and not executed.
    pub(crate) data: Vec<Span>,
    /// Executable loaded segments, by address.
    pub(crate) text: Vec<TextSegment>,
    /// `.eh_frame_hdr`.
    pub(super) eh_frame_hdr: Option<Span>,
    /// The build id note.
    pub(super) build_id: Option<BuildId>,
    pub(super) sections: Sections,
    /// Where the program begins.
    pub(super) entry: u64,
}

/// Where the section headers are; they are read only when needed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sections {
    offset: u64,
    entry_size: u16,
    count: u16,
    names: u16,
}

/// Tables that list functions.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// Symbols.
    pub(super) symbols: Vec<Span>,
    /// Whether those are among them that linking does not need.
    pub(super) has_all: bool,
    /// Relocations with addends.
    pub(super) relocations: Vec<Span>,
    /// Sections of code.
    pub(super) code: Vec<Span>,
}

/// Reads exactly `buf.len()` bytes.
fn read_exact<R: ReadAt>(
    source: &R,
    buf: &mut [u8],
    offset: u64,
    what: &'static str,
) -> Result<(), UnwindError> {
    if read_full(source, buf, offset)? < buf.len() {
        return Err(UnwindError::Truncated(what));
    }
    Ok(())
}

impl Elf {
    /// Reads the ELF header and the program headers.
    pub(crate) fn read<R: ReadAt>(source: &R) -> Result<Self, UnwindError> {
        let mut header = [0; HEADER_SIZE];
        let n = read_full(source, &mut header, 0)?;
        if n < 4 || !header.starts_with(b"\x7fELF") {
            return Err(UnwindError::NotElf);
        }
        if n < HEADER_SIZE {
            return Err(UnwindError::Truncated("ELF header"));
        }
        let (program_offset, program_count, sections, entry) = parse_header(&header)?;
        let mut table = vec![0; usize::from(program_count) * PROGRAM_HEADER_SIZE];
        read_exact(source, &mut table, program_offset, "program headers")?;
        let mut elf = Self {
            sections,
            entry,
            ..Self::default()
        };
        let mut note_bytes = MAX_NOTE_BYTES;
        for header in table.chunks_exact(PROGRAM_HEADER_SIZE) {
            elf.add_segment(source, header, &mut note_bytes)?;
        }
        elf.text.sort_by_key(|text| text.vaddr);
        Ok(elf)
    }

    /// Takes in one program header.
    fn add_segment<R: ReadAt>(
        &mut self,
        source: &R,
        header: &[u8],
        note_bytes: &mut u64,
    ) -> Result<(), UnwindError> {
        let bad = UnwindError::Malformed("program header");
        let Some((kind, flags, span, align)) = parse_segment(header) else {
            return Err(bad);
        };
        match kind {
            PT_LOAD => {
                self.loads.push(span);
                if flags & (PF_X | PF_W) == PF_W {
                    self.data.push(span);
                }
                if flags & PF_X != 0 && span.size > 0 {
                    let Span {
                        offset: file_offset,
                        vaddr,
                        size,
                    } = span;
                    self.text.push(TextSegment {
                        file_offset,
                        vaddr,
                        size,
                    });
                }
            }
            PT_GNU_EH_FRAME => self.eh_frame_hdr = Some(span),
            PT_NOTE if self.build_id.is_none() && span.size <= *note_bytes => {
                *note_bytes -= span.size;
                let mut notes = vec![0; usize::try_from(span.size).unwrap_or(0)];
                // A note that is cut off costs the build id, not the tables.
                let n = read_full(source, &mut notes, span.offset)?;
                notes.truncate(n);
                self.build_id = find_build_id(&notes, if align == 8 { 8 } else { 4 });
            }
            _ => {}
        }
        Ok(())
    }

    /// The loaded bytes from `vaddr` to the end of their segment.
    pub(crate) fn loaded_from(&self, vaddr: u64) -> Option<Span> {
        self.loads.iter().find_map(|load| load.starting_at(vaddr))
    }

    /// The section headers. Tables need none: cut-off ones count as absent.
    fn section_table<R: ReadAt>(sections: Sections, source: &R) -> std::io::Result<Vec<u8>> {
        let s = sections;
        if s.count == 0 || usize::from(s.entry_size) != SECTION_HEADER_SIZE {
            return Ok(Vec::new());
        }
        let mut table = vec![0; usize::from(s.count.min(MAX_SECTIONS)) * SECTION_HEADER_SIZE];
        let n = read_full(source, &mut table, s.offset)?;
        table.truncate(n);
        Ok(table)
    }

    /// The tables that list functions.
    pub(super) fn tables<R: ReadAt>(sections: Sections, source: &R) -> Result<Tables, UnwindError> {
        let table = Self::section_table(sections, source)?;
        let sections = table.chunks_exact(SECTION_HEADER_SIZE);
        let mut tables = Tables::default();
        for section in sections.filter_map(parse_section) {
            tables.has_all |= section.kind == SHT_SYMTAB;
            if section.flags & (SHF_ALLOC | SHF_EXECINSTR) == SHF_ALLOC | SHF_EXECINSTR {
                tables.code.push(section.span);
            }
            match section.kind {
                SHT_SYMTAB | SHT_DYNSYM => tables.symbols.push(section.span),
                SHT_RELA => tables.relocations.push(section.span),
                _ => {}
            }
        }
        Ok(tables)
    }

    /// The section `.eh_frame`, if there are section headers that name it.
    pub(super) fn eh_frame_section<R: ReadAt>(
        &self,
        source: &R,
    ) -> Result<Option<Span>, UnwindError> {
        Ok(self.section_named(source, &[b".eh_frame"])?)
    }

    /// The first loaded section with one of some names.
    ///
    /// # Errors
    /// The source's own.
    pub(crate) fn section_named<R: ReadAt>(
        &self,
        source: &R,
        wanted: &[&[u8]],
    ) -> std::io::Result<Option<Span>> {
        let table = Self::section_table(self.sections, source)?;
        let sections = || table.chunks_exact(SECTION_HEADER_SIZE);
        let names = sections()
            .nth(usize::from(self.sections.names))
            .and_then(parse_section);
        let Some(names) = names.map(|names| names.span) else {
            return Ok(None);
        };
        let size = usize::try_from(names.size.min(MAX_NAME_BYTES)).unwrap_or(0);
        let mut bytes = vec![0; size];
        let n = read_full(source, &mut bytes, names.offset)?;
        bytes.truncate(n);
        let is_wanted = |section: &SectionFields| {
            let rest = usize::try_from(section.name).ok();
            let rest = rest.and_then(|at| bytes.get(at..)).unwrap_or_default();
            let name = rest.split(|&b| b == 0).next().unwrap_or_default();
            section.kind != SHT_NOBITS && section.span.vaddr != 0 && wanted.contains(&name)
        };
        let mut found = sections().filter_map(parse_section);
        Ok(found.find(is_wanted).map(|section| section.span))
    }

    /// Where relocations with addends are.
    ///
    /// # Errors
    /// The source's own.
    pub(crate) fn relocation_tables<R: ReadAt>(&self, source: &R) -> std::io::Result<Vec<Span>> {
        let table = Self::section_table(self.sections, source)?;
        let sections = table.chunks_exact(SECTION_HEADER_SIZE);
        let sections = sections.filter_map(parse_section);
        let relocations = sections.filter(|section| section.kind == SHT_RELA);
        Ok(relocations.map(|section| section.span).collect())
    }
}

/// Checks the identity of the file; gives offset and count of the program
/// headers, the section headers and the address of the first instruction.
fn parse_header(header: &[u8; HEADER_SIZE]) -> Result<(u64, u16, Sections, u64), UnwindError> {
    let short = UnwindError::Truncated("ELF header");
    let mut bytes = Bytes::new(header);
    let mut parse = || {
        let ident = bytes.take(16)?;
        let _kind = bytes.u16()?;
        let machine = bytes.u16()?;
        bytes.take(4)?; // e_version
        let entry = bytes.u64()?;
        let program_offset = bytes.u64()?;
        let offset = bytes.u64()?;
        bytes.take(6)?; // e_flags, e_ehsize
        let (program_size, program_count) = (bytes.u16()?, bytes.u16()?);
        let (entry_size, count, names) = (bytes.u16()?, bytes.u16()?, bytes.u16()?);
        let sections = Sections {
            offset,
            entry_size,
            count,
            names,
        };
        Some((
            ident,
            machine,
            program_offset,
            program_size,
            program_count,
            sections,
            entry,
        ))
    };
    let (ident, machine, offset, size, count, sections, entry) = parse().ok_or(short)?;
    let (class, data) = (ident.get(4), ident.get(5));
    if class != Some(&2) || data != Some(&1) || machine != EM_X86_64 {
        return Err(UnwindError::UnsupportedMachine(machine));
    }
    if count > 0 && usize::from(size) != PROGRAM_HEADER_SIZE {
        return Err(UnwindError::Malformed("program header size"));
    }
    if count > MAX_PROGRAM_HEADERS {
        return Err(UnwindError::TooLarge("number of program headers"));
    }
    Ok((offset, count, sections, entry))
}

/// Type, flags, range and alignment of one program header.
fn parse_segment(header: &[u8]) -> Option<(u32, u32, Span, u64)> {
    let mut bytes = Bytes::new(header);
    let (kind, flags) = (bytes.u32()?, bytes.u32()?);
    let (offset, vaddr, _paddr) = (bytes.u64()?, bytes.u64()?, bytes.u64()?);
    let (file_size, _memory_size, align) = (bytes.u64()?, bytes.u64()?, bytes.u64()?);
    Some((kind, flags, Span::new(offset, vaddr, file_size)?, align))
}

/// The fields of a section header that matter here.
struct SectionFields {
    name: u32,
    kind: u32,
    flags: u64,
    span: Span,
}

/// One section header.
fn parse_section(header: &[u8]) -> Option<SectionFields> {
    let mut bytes = Bytes::new(header);
    let (name, kind, flags) = (bytes.u32()?, bytes.u32()?, bytes.u64()?);
    let (vaddr, offset, size) = (bytes.u64()?, bytes.u64()?, bytes.u64()?);
    Some(SectionFields {
        name,
        kind,
        flags,
        span: Span::new(offset, vaddr, size)?,
    })
}

/// The description of the `NT_GNU_BUILD_ID` note among `notes`.
fn find_build_id(notes: &[u8], align: usize) -> Option<BuildId> {
    let mut bytes = Bytes::new(notes);
    loop {
        let (name_size, size, kind) = (bytes.u32()?, bytes.u32()?, bytes.u32()?);
        let name = bytes.take_u64(u64::from(name_size))?;
        bytes.take(bytes.pos().next_multiple_of(align) - bytes.pos())?;
        let description = bytes.take_u64(u64::from(size))?;
        if kind == NT_GNU_BUILD_ID && name == b"GNU\0" {
            return BuildId::new(description);
        }
        bytes.take(bytes.pos().next_multiple_of(align) - bytes.pos())?;
    }
}
