//! The little that must be known of an ELF file before its symbols are read.
//!
//! Headers are read with `pread` into bounded buffers, so a hostile or truncated
//! file costs an error. Formats: System V ABI, gabi chapters 4 and 5; notes:
//! `NT_GNU_BUILD_ID` (3) of owner `GNU`; debug link: GDB manual, "Debugging
//! Information in Separate Files".

use aiprof_model::profile::BuildId;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

/// Most sections read; linkers produce tens, `-r` output thousands.
const MAX_SECTIONS: usize = 65_536;
/// Most bytes of the section name table, of a note section and of a debug link.
const MAX_NAMES: u64 = 4 << 20;
const MAX_NOTE: u64 = 64 << 10;
const MAX_LINK: u64 = 4096;
/// Most bytes of the dynamic section, and of a list of folders.
const MAX_DYNAMIC: u64 = 64 << 10;
const MAX_RUN_PATH: u64 = 4096;
/// Most sections of PLT entries; linkers make up to three.
const MAX_PLTS: usize = 16;

const SHT_SYMTAB: u32 = 2;
const SHT_RELA: u32 = 4;
const SHT_RELR: u32 = 19;
const SHT_DYNAMIC: u32 = 6;
const SHT_NOTE: u32 = 7;
const SHT_NOBITS: u32 = 8;
const SHT_DYNSYM: u32 = 11;
const SHF_EXECINSTR: u64 = 4;
const SHF_COMPRESSED: u64 = 0x800;
const ELFCOMPRESS_ZLIB: u32 = 1;
const ELFCOMPRESS_ZSTD: u32 = 2;
const PT_NOTE: u32 = 4;
const NT_GNU_BUILD_ID: u32 = 3;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;
const EM_X86_64: u16 = 62;

/// Why a file is no usable ELF file.
#[derive(Debug, thiserror::Error)]
pub enum ElfError {
    /// The system's word.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// Other first bytes.
    #[error("not an ELF file")]
    NotElf,
    /// Big endian on a little-endian machine, or the other way around.
    #[error("byte order differs from this machine's")]
    ForeignEndian,
    /// What of it contradicts itself.
    #[error("{0}")]
    Malformed(&'static str),
}

/// The content of `.gnu_debuglink`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DebugLink {
    /// File name of the debug file, without directory.
    pub name: OsString,
    /// CRC-32 of its contents.
    pub crc: u32,
}

/// The content of `.gnu_debugaltlink`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AltLink {
    /// Path of the file, absolute or relative to the directory of the file with this link.
    pub path: PathBuf,
    /// Its build id.
    pub build_id: BuildId,
}

/// Debug sections that are read; others, like location lists, are not. Those of split
/// DWARF end in `.dwo` or `_index`; of a package the parser wants to know where its units'
/// parts of all of them are.
pub(super) const DEBUG_SECTIONS: [&str; 23] = [
    ".debug_abbrev",
    ".debug_addr",
    ".debug_aranges",
    ".debug_info",
    ".debug_line",
    ".debug_line_str",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_str",
    ".debug_str_offsets",
    ".gdb_index",
    ".debug_abbrev.dwo",
    ".debug_cu_index",
    ".debug_info.dwo",
    ".debug_line.dwo",
    ".debug_loc.dwo",
    ".debug_loclists.dwo",
    ".debug_macinfo.dwo",
    ".debug_macro.dwo",
    ".debug_rnglists.dwo",
    ".debug_str.dwo",
    ".debug_str_offsets.dwo",
    ".debug_tu_index",
];

/// How a section is compressed; `header` is the length of what precedes the
/// data, `size` the bytes that it claims to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    None,
    Zlib { header: usize, size: u64 },
    Zstd { header: usize, size: u64 },
    Unknown,
}

impl Packing {
    /// Bytes of a section that has `stored` in the file, inflated.
    pub(super) fn size(self, stored: u64) -> u64 {
        match self {
            Self::None | Self::Unknown => stored,
            Self::Zlib { size, .. } | Self::Zstd { size, .. } => size,
        }
    }
}

/// A debug section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DebugSection {
    pub name: &'static str,
    pub offset: u64,
    /// Bytes in the file.
    pub size: u64,
    pub packing: Packing,
}

/// Where a symbol table and its strings lie in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolTable {
    /// Where it begins.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// Where its strings begin.
    pub strings_offset: u64,
    /// Bytes of them.
    pub strings_size: u64,
    /// `.dynsym`: only what is exported or imported.
    pub dynamic: bool,
    /// Index of its section.
    pub section: u32,
}

/// A section of jumps to functions of other files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PltSection {
    /// Address of the first.
    pub vaddr: u64,
    /// Where it begins in the file.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes of one entry: 8 or 16.
    pub entry: u64,
}

impl PltSection {
    /// Whether an address lies in it.
    pub fn contains(&self, vaddr: u64) -> bool {
        vaddr
            .checked_sub(self.vaddr)
            .is_some_and(|at| at < self.size)
    }
}

/// A table of relocations with addends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelaTable {
    /// Where it begins.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// Index of the section with the symbols it refers to.
    pub link: u32,
    /// Whether it is the PLT's, whose entries go by its numbers.
    pub plt: bool,
}

/// Where the dynamic section and its strings lie in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dynamic {
    offset: u64,
    size: u64,
    strings_offset: u64,
    strings_size: u64,
}

/// Summary of an ELF file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElfInfo {
    /// `.note.gnu.build-id`.
    pub build_id: Option<BuildId>,
    /// Whether `.symtab` is present with contents.
    pub has_symtab: bool,
    /// Whether addresses are 64 bits wide.
    pub wide: bool,
    /// `.symtab` and `.dynsym`.
    pub tables: Vec<SymbolTable>,
    /// By section index: the end of its addresses if it holds code, else 0.
    code: Vec<u64>,
    /// The sections with PLT entries, of files for x86-64.
    pub plt: Vec<PltSection>,
    /// The relocations that name them, the PLT's own first.
    pub relocations: Vec<RelaTable>,
    /// Offset and bytes of the relocations whose values lie in their places
    /// (`SHT_RELR`).
    pub packed_relocations: Option<(u64, u64)>,
    /// The dynamic section and its strings.
    dynamic: Option<Dynamic>,
    /// Whether `.debug_info` is present with contents.
    pub has_dwarf: bool,
    /// The debug sections that are read.
    pub(crate) debug: Vec<DebugSection>,
    /// What the compressed ones of them claim to hold, in bytes.
    pub packed_bytes: u64,
    pub(crate) debug_link: Option<DebugLink>,
    /// The file that `dwz` moved common parts of the DWARF to.
    pub(crate) alt_link: Option<AltLink>,
    /// Offset and bytes of `.gnu_debugdata`: another ELF file with the symbols, as xz.
    pub(crate) mini: Option<(u64, u64)>,
    /// Whether there are split units.
    pub(crate) has_split: bool,
}

impl ElfInfo {
    /// Where the section of a symbol ends, if it holds code. Indices from
    /// `SHN_LORESERVE` on are special, and allowed.
    pub(crate) fn code_end(&self, section: u16) -> Option<u64> {
        match self.code.get(usize::from(section)) {
            Some(&end) => Some(end).filter(|&end| end > 0),
            None => (section >= 0xff00).then_some(u64::MAX),
        }
    }

    /// Bytes of all symbol tables, as the headers claim.
    pub(super) fn table_bytes(&self) -> u64 {
        let sizes = self.tables.iter().map(|t| t.size);
        sizes.fold(0, u64::saturating_add)
    }
}

/// Reads the summary of a file.
///
/// # Errors
/// It cannot be read, or is no ELF file of this machine.
pub fn inspect(file: &File) -> Result<ElfInfo, ElfError> {
    let reader = ElfReader::new(file)?;
    let sections = reader.sections()?;
    let mut info = ElfInfo {
        wide: reader.wide,
        code: sections
            .list
            .iter()
            .map(|s| match s.flags & SHF_EXECINSTR {
                0 => 0,
                _ => s.addr.saturating_add(s.size),
            })
            .collect(),
        ..ElfInfo::default()
    };
    for (index, section) in (0..).zip(&sections.list) {
        reader.take_section(index, section, &sections, &mut info)?;
    }
    info.relocations.sort_by_key(|table| !table.plt);
    if info.build_id.is_none() {
        info.build_id = reader.build_id_from_segments()?;
    }
    Ok(info)
}

/// The folders, colon-separated, in which a file looks for its libraries (`DT_RUNPATH`, else
/// `DT_RPATH`); `None` if it names none.
pub fn run_path(file: &File, info: &ElfInfo) -> Option<String> {
    let dynamic = info.dynamic?;
    let reader = ElfReader::new(file).ok()?;
    let entries = reader
        .read(dynamic.offset, dynamic.size, MAX_DYNAMIC)
        .ok()?;
    let string_of = |wanted: u64| {
        let mut entries = entries.chunks_exact(16);
        entries.find_map(|entry| {
            let at = reader.word(entry, 8);
            (reader.word(entry, 0) == wanted && at < dynamic.strings_size).then_some(at)
        })
    };
    let at = string_of(DT_RUNPATH).or_else(|| string_of(DT_RPATH))?;
    let size = (dynamic.strings_size - at).min(MAX_RUN_PATH);
    let from = dynamic.strings_offset.checked_add(at)?;
    let text = reader.read(from, size, MAX_RUN_PATH).ok()?;
    let text = text.split(|&b| b == 0).next().unwrap_or_default();
    Some(String::from_utf8_lossy(text).into_owned())
}

/// One section header, widened to 64 bits.
struct SectionHeader {
    name: u32,
    kind: u32,
    flags: u64,
    addr: u64,
    offset: u64,
    size: u64,
    link: u32,
    entry: u64,
}

/// The section headers and their names.
struct Sections {
    list: Vec<SectionHeader>,
    names: Vec<u8>,
}

impl Sections {
    fn name(&self, section: &SectionHeader) -> &[u8] {
        let tail = self.names.get(section.name as usize..).unwrap_or_default();
        tail.split(|&b| b == 0).next().unwrap_or_default()
    }
}

/// Bounded reads of one file.
struct ElfReader<'a> {
    file: &'a File,
    wide: bool,
    header: [u8; 64],
}

impl<'a> ElfReader<'a> {
    fn new(file: &'a File) -> Result<Self, ElfError> {
        let mut header = [0; 64];
        // A 32-bit header is 52 bytes, but no such file ends there.
        file.read_exact_at(&mut header, 0).map_err(eof_is_not_elf)?;
        if !header.starts_with(b"\x7fELF") || !(1..=2).contains(&header[4]) {
            return Err(ElfError::NotElf);
        }
        let native = if cfg!(target_endian = "little") { 1 } else { 2 };
        if header[5] != native {
            return Err(ElfError::ForeignEndian);
        }
        Ok(Self {
            file,
            wide: header[4] == 2,
            header,
        })
    }

    /// Reads `size` bytes at `offset`, at most `limit`.
    fn read(&self, offset: u64, size: u64, limit: u64) -> Result<Vec<u8>, ElfError> {
        if size > limit {
            return Err(ElfError::Malformed("header table too large"));
        }
        let size = usize::try_from(size).map_err(|_| ElfError::Malformed("size"))?;
        let mut bytes = vec![0; size];
        self.file
            .read_exact_at(&mut bytes, offset)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput => {
                    ElfError::Malformed("truncated")
                }
                _ => ElfError::Io(error),
            })?;
        Ok(bytes)
    }

    fn sections(&self) -> Result<Sections, ElfError> {
        let (at, count_at) = if self.wide { (40, 60) } else { (32, 48) };
        let offset = self.word(&self.header, at);
        let mut count = usize::from(u16_at(&self.header, count_at));
        let mut names_index = usize::from(u16_at(&self.header, count_at + 2));
        let entry = if self.wide { 64 } else { 40 };
        if offset == 0 {
            return Ok(Sections {
                list: Vec::new(),
                names: Vec::new(),
            });
        }
        if count == 0 || names_index == 0xffff {
            // More than 65,279 sections: the counts are in the first header.
            let first = self.read(offset, entry, entry)?;
            let (size, link) = if self.wide { (32, 40) } else { (20, 24) };
            if count == 0 {
                count = usize::try_from(self.word(&first, size)).unwrap_or(usize::MAX);
            }
            if names_index == 0xffff {
                names_index = u32_at(&first, link) as usize;
            }
        }
        if count > MAX_SECTIONS {
            return Err(ElfError::Malformed("too many sections"));
        }
        let table = self.read(offset, entry * count as u64, entry * MAX_SECTIONS as u64)?;
        let list: Vec<SectionHeader> = table
            .chunks_exact(entry as usize)
            .map(|bytes| self.section(bytes))
            .collect();
        let names = match list.get(names_index) {
            Some(s) if s.kind != SHT_NOBITS => self.read(s.offset, s.size, MAX_NAMES)?,
            _ => Vec::new(),
        };
        Ok(Sections { list, names })
    }

    fn section(&self, bytes: &[u8]) -> SectionHeader {
        let [flags, addr, offset, size, link, entry] = if self.wide {
            [8, 16, 24, 32, 40, 56]
        } else {
            [8, 12, 16, 20, 24, 36]
        };
        SectionHeader {
            name: u32_at(bytes, 0),
            kind: u32_at(bytes, 4),
            flags: self.word(bytes, flags),
            addr: self.word(bytes, addr),
            offset: self.word(bytes, offset),
            size: self.word(bytes, size),
            link: u32_at(bytes, link),
            entry: self.word(bytes, entry),
        }
    }

    /// Notes a section of PLT entries, or the relocations for them.
    fn take_plt(&self, section: &SectionHeader, name: &[u8], info: &mut ElfInfo) {
        let is_x86_64 = self.wide && u16_at(&self.header, 18) == EM_X86_64;
        if !is_x86_64 {
            return;
        }
        match name {
            b".rela.plt" | b".rela.iplt" | b".rela.dyn" if section.kind == SHT_RELA => {
                info.relocations.push(RelaTable {
                    offset: section.offset,
                    size: section.size,
                    link: section.link,
                    plt: name != b".rela.dyn",
                });
            }
            b".plt" | b".iplt" | b".plt.sec" | b".plt.got" if info.plt.len() < MAX_PLTS => {
                info.plt.push(PltSection {
                    vaddr: section.addr,
                    offset: section.offset,
                    size: section.size,
                    entry: if section.entry == 8 { 8 } else { 16 },
                });
            }
            _ => {}
        }
    }

    fn take_section(
        &self,
        index: u32,
        section: &SectionHeader,
        sections: &Sections,
        info: &mut ElfInfo,
    ) -> Result<(), ElfError> {
        let name = sections.name(section);
        if section.kind == SHT_NOBITS || section.size == 0 {
            return Ok(());
        }
        match section.kind {
            SHT_SYMTAB | SHT_DYNSYM => {
                info.has_symtab |= section.kind == SHT_SYMTAB;
                if let Some(strings) = sections.list.get(section.link as usize) {
                    info.tables.push(SymbolTable {
                        offset: section.offset,
                        size: section.size,
                        strings_offset: strings.offset,
                        strings_size: strings.size,
                        dynamic: section.kind == SHT_DYNSYM,
                        section: index,
                    });
                }
            }
            SHT_DYNAMIC if self.wide => {
                let strings = sections.list.get(section.link as usize);
                info.dynamic = strings.map(|strings| Dynamic {
                    offset: section.offset,
                    size: section.size,
                    strings_offset: strings.offset,
                    strings_size: strings.size,
                });
            }
            SHT_NOTE if info.build_id.is_none() && section.size <= MAX_NOTE => {
                let notes = self.read(section.offset, section.size, MAX_NOTE)?;
                info.build_id = find_build_id(&notes);
            }
            _ if name == b".gnu_debuglink" => {
                let data = self.read(section.offset, section.size, MAX_LINK)?;
                info.debug_link = parse_debug_link(&data);
            }
            _ if name == b".gnu_debugaltlink" => {
                let data = self.read(section.offset, section.size, MAX_LINK)?;
                info.alt_link = parse_alt_link(&data);
            }
            _ if name == b".gnu_debugdata" => info.mini = Some((section.offset, section.size)),
            _ if name.starts_with(b".plt") || name == b".iplt" || name.starts_with(b".rela.") => {
                self.take_plt(section, name, info);
            }
            SHT_RELR if self.wide => info.packed_relocations = Some((section.offset, section.size)),
            _ if name.starts_with(b".debug_") || name == b".gdb_index" => {
                self.take_debug(section, name, info)?
            }
            _ => {}
        }
        Ok(())
    }

    fn take_debug(
        &self,
        section: &SectionHeader,
        name: &[u8],
        info: &mut ElfInfo,
    ) -> Result<(), ElfError> {
        let known = DEBUG_SECTIONS.iter().find(|n| n.as_bytes() == name);
        let Some(&name) = known else {
            return Ok(());
        };
        let mut packing = Packing::None;
        if section.flags & SHF_COMPRESSED != 0 {
            // Elf64_Chdr { type, reserved, size, align }, Elf32_Chdr { type, size, align }.
            let (header, at) = if self.wide { (24, 8) } else { (12, 4) };
            let bytes = self.read(section.offset, header as u64, MAX_LINK)?;
            let size = self.word(&bytes, at);
            packing = match u32_at(&bytes, 0) {
                ELFCOMPRESS_ZLIB => Packing::Zlib { header, size },
                ELFCOMPRESS_ZSTD => Packing::Zstd { header, size },
                _ => Packing::Unknown,
            };
            info.packed_bytes = info.packed_bytes.saturating_add(size);
        }
        info.has_dwarf |= name == ".debug_info";
        info.has_split |= name == ".debug_info.dwo";
        info.debug.push(DebugSection {
            name,
            offset: section.offset,
            size: section.size,
            packing,
        });
        Ok(())
    }

    /// The build id as the kernel finds it: in a `PT_NOTE` segment.
    fn build_id_from_segments(&self) -> Result<Option<BuildId>, ElfError> {
        let (at, count_at) = if self.wide { (32, 56) } else { (28, 44) };
        let offset = self.word(&self.header, at);
        let count = u64::from(u16_at(&self.header, count_at));
        let entry: u64 = if self.wide { 56 } else { 32 };
        if offset == 0 || count == 0 {
            return Ok(None);
        }
        let table = self.read(offset, entry * count, entry << 16)?;
        for bytes in table.chunks_exact(entry as usize) {
            let (offset, size) = if self.wide { (8, 32) } else { (4, 16) };
            let size = self.word(bytes, size);
            if u32_at(bytes, 0) != PT_NOTE || size > MAX_NOTE {
                continue;
            }
            let notes = self.read(self.word(bytes, offset), size, MAX_NOTE)?;
            if let Some(id) = find_build_id(&notes) {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// An address-sized field.
    fn word(&self, bytes: &[u8], at: usize) -> u64 {
        if self.wide {
            let field = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
            u64::from_ne_bytes(field.unwrap_or_default())
        } else {
            u64::from(u32_at(bytes, at))
        }
    }
}

fn eof_is_not_elf(error: io::Error) -> ElfError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => ElfError::NotElf,
        _ => ElfError::Io(error),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let field = bytes.get(at..at + 2).and_then(|b| b.try_into().ok());
    u16::from_ne_bytes(field.unwrap_or_default())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    u32::from_ne_bytes(field.unwrap_or_default())
}

/// Walks notes (name size, descriptor size, type, name, descriptor; each padded
/// to 4 bytes) for the build id.
fn find_build_id(mut notes: &[u8]) -> Option<BuildId> {
    while notes.len() >= 12 {
        let name_len = u32_at(notes, 0) as usize;
        let desc_len = u32_at(notes, 4) as usize;
        let kind = u32_at(notes, 8);
        let desc_at = name_len.checked_next_multiple_of(4)?.checked_add(12)?;
        let end = desc_at.checked_add(desc_len)?;
        if kind == NT_GNU_BUILD_ID && notes.get(12..12 + name_len.min(4)) == Some(b"GNU\0") {
            return BuildId::new(notes.get(desc_at..end)?);
        }
        notes = notes.get(end.checked_next_multiple_of(4)?..)?;
    }
    None
}

/// A NUL-terminated name, padded to 4 bytes, and a CRC in the file's byte order.
fn parse_debug_link(data: &[u8]) -> Option<DebugLink> {
    let len = data.iter().position(|&b| b == 0)?;
    let name = OsStr::from_bytes(data.get(..len)?);
    let crc_at = (len + 1).next_multiple_of(4);
    let crc = data.get(crc_at..crc_at + 4)?.try_into().ok()?;
    // A name with a directory in it would lead out of the searched ones.
    let plain = !name.is_empty() && !name.as_bytes().contains(&b'/') && name != "..";
    plain.then(|| DebugLink {
        name: name.to_owned(),
        crc: u32::from_ne_bytes(crc),
    })
}

/// A NUL-terminated path, and the rest is a build id.
fn parse_alt_link(data: &[u8]) -> Option<AltLink> {
    let len = data.iter().position(|&b| b == 0).filter(|&len| len > 0)?;
    Some(AltLink {
        path: OsStr::from_bytes(data.get(..len)?).into(),
        build_id: BuildId::new(data.get(len + 1..)?)?,
    })
}
