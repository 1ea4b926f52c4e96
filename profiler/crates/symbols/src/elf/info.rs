//! The little that must be known of an ELF file before its symbols are read.
//!
//! Notes: `NT_GNU_BUILD_ID` (3) of owner `GNU`; debug link: GDB manual, "Debugging
//! Information in Separate Files".

use super::header::{self, ElfHeader, ElfSection, ElfSections, SHT_SYMTAB};
use super::read::{ElfError, FileRange, read_all};
use super::tables::{RelaTable, SHN_LORESERVE, SHT_DYNSYM, SHT_RELA, SymbolTable};
use aiprof_model::profile::BuildId;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// Most sections read; linkers produce tens, `-r` output thousands.
const MAX_SECTIONS: u64 = 65_536;
/// Most bytes of a note section and of a debug link.
const MAX_NOTE: u64 = 64 << 10;
const MAX_LINK: u64 = 4096;
/// Most bytes of the dynamic section, and of a list of folders.
const MAX_DYNAMIC: u64 = 64 << 10;
const MAX_RUN_PATH: u64 = 4096;
/// Most sections of PLT entries; linkers make up to three.
const MAX_PLTS: usize = 16;

const SHT_RELR: u32 = 19;
const SHT_DYNAMIC: u32 = 6;
const SHT_NOTE: u32 = 7;
const SHF_EXECINSTR: u64 = 4;
const SHF_COMPRESSED: u64 = 0x800;
const ELFCOMPRESS_ZLIB: u32 = 1;
const ELFCOMPRESS_ZSTD: u32 = 2;
const PT_NOTE: u32 = 4;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;

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
pub(crate) const DEBUG_SECTIONS: [&str; 23] = [
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
    pub(crate) fn size(self, stored: u64) -> u64 {
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

/// A section of jumps to functions of other files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PltSection {
    /// Address of the first.
    pub vaddr: u64,
    /// Where it lies in the file.
    pub file: FileRange,
    /// Bytes of one entry, 8 or 16, where the file has them: linkers leave them out in programs
    /// that are linked statically.
    pub entry: Option<u64>,
}

impl PltSection {
    /// Whether an address lies in it.
    pub fn contains(&self, vaddr: u64) -> bool {
        vaddr
            .checked_sub(self.vaddr)
            .is_some_and(|at| at < self.file.size)
    }
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
    /// The relocations whose values lie in their places (`SHT_RELR`).
    pub packed_relocations: Option<FileRange>,
    /// The dynamic section and its strings.
    dynamic: Option<(FileRange, FileRange)>,
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
    /// `SHN_LORESERVE` on are special, and allowed: code may have a fixed address.
    pub(crate) fn code_end(&self, section: u16) -> Option<u64> {
        match self.code.get(usize::from(section)) {
            Some(&end) => Some(end).filter(|&end| end > 0),
            None => (section >= SHN_LORESERVE).then_some(u64::MAX),
        }
    }

    /// Bytes of all symbol tables, as the headers claim.
    pub(crate) fn table_bytes(&self) -> u64 {
        let sizes = self.tables.iter().map(|t| t.symbols.size);
        sizes.fold(0, u64::saturating_add)
    }
}

/// Reads the summary of a file.
///
/// # Errors
/// It cannot be read, or is no ELF file of this machine.
pub fn inspect(file: &File) -> Result<ElfInfo, ElfError> {
    let header = ElfHeader::read(file)?;
    let header = header.filter(|header| header.is_whole && (1..=2).contains(&header.class));
    let header = header.ok_or(ElfError::NotElf)?;
    let native = if cfg!(target_endian = "little") { 1 } else { 2 };
    if header.order != native {
        return Err(ElfError::ForeignEndian);
    }
    let sections = header.sections(file, MAX_SECTIONS)?;
    let names = sections.names(file)?;
    let code = |section: &ElfSection| match section.flags & SHF_EXECINSTR {
        0 => 0,
        _ => section.addr.saturating_add(section.file.size),
    };
    let info = ElfInfo {
        wide: header.is_wide(),
        code: sections.list.iter().map(code).collect(),
        ..ElfInfo::default()
    };
    let mut summary = Summary {
        file,
        header,
        sections: &sections,
        info,
    };
    for (index, section) in (0..).zip(&sections.list) {
        summary.add(index, section, names.of(section))?;
    }
    if summary.info.build_id.is_none() {
        summary.info.build_id = summary.build_id_of_segments()?;
    }
    let mut info = summary.info;
    info.relocations.sort_by_key(|table| !table.plt);
    Ok(info)
}

/// The folders, colon-separated, in which a file looks for its libraries (`DT_RUNPATH`, else
/// `DT_RPATH`); `None` if it names none.
pub fn run_path(file: &File, info: &ElfInfo) -> Option<String> {
    let (entries, strings) = info.dynamic?;
    let entries = read_all(file, entries, MAX_DYNAMIC).ok()?;
    let value = |tag| header::dynamic_value(&entries, tag).filter(|&at| at < strings.size);
    let at = value(DT_RUNPATH).or_else(|| value(DT_RPATH))?;
    let text = FileRange {
        offset: strings.offset.checked_add(at)?,
        size: (strings.size - at).min(MAX_RUN_PATH),
    };
    let text = read_all(file, text, MAX_RUN_PATH).ok()?;
    let text = text.split(|&b| b == 0).next().unwrap_or_default();
    Some(String::from_utf8_lossy(text).into_owned())
}

/// A summary that is being made.
struct Summary<'a> {
    file: &'a File,
    header: ElfHeader,
    sections: &'a ElfSections,
    info: ElfInfo,
}

impl Summary<'_> {
    fn read(&self, section: &ElfSection, most: u64) -> Result<Vec<u8>, ElfError> {
        read_all(self.file, section.file, most)
    }

    /// Adds what a section contributes.
    fn add(&mut self, index: u32, section: &ElfSection, name: &[u8]) -> Result<(), ElfError> {
        let info = &mut self.info;
        if !section.is_in_file() || section.file.size == 0 {
            return Ok(());
        }
        match section.kind {
            SHT_SYMTAB | SHT_DYNSYM => {
                info.has_symtab |= section.kind == SHT_SYMTAB;
                let table = SymbolTable::of(self.sections, index, section, info.wide);
                info.tables.extend(table);
            }
            SHT_DYNAMIC if info.wide => {
                let strings = self.sections.list.get(section.link as usize);
                info.dynamic = strings.map(|strings| (section.file, strings.file));
            }
            SHT_NOTE if info.build_id.is_none() && section.file.size <= MAX_NOTE => {
                let notes = self.read(section, MAX_NOTE)?;
                self.info.build_id = header::build_id(&notes, 4);
            }
            _ if name == b".gnu_debuglink" => {
                self.info.debug_link = parse_debug_link(&self.read(section, MAX_LINK)?);
            }
            _ if name == b".gnu_debugaltlink" => {
                self.info.alt_link = parse_alt_link(&self.read(section, MAX_LINK)?);
            }
            _ if name == b".gnu_debugdata" => {
                info.mini = Some((section.file.offset, section.file.size));
            }
            _ if name.starts_with(b".plt") || name == b".iplt" || name.starts_with(b".rela.") => {
                self.add_plt(section, name);
            }
            SHT_RELR if info.wide => info.packed_relocations = Some(section.file),
            _ if name.starts_with(b".debug_") || name == b".gdb_index" => {
                self.add_debug(section, name)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Notes a section of PLT entries, or the relocations for them.
    fn add_plt(&mut self, section: &ElfSection, name: &[u8]) {
        let info = &mut self.info;
        if !self.header.is_x86_64() {
            return;
        }
        match name {
            b".rela.plt" | b".rela.iplt" | b".rela.dyn" if section.kind == SHT_RELA => {
                info.relocations.push(RelaTable {
                    file: section.file,
                    link: section.link,
                    plt: name != b".rela.dyn",
                });
            }
            b".plt" | b".iplt" | b".plt.sec" | b".plt.got" if info.plt.len() < MAX_PLTS => {
                info.plt.push(PltSection {
                    vaddr: section.addr,
                    file: section.file,
                    entry: Some(section.entry).filter(|entry| matches!(entry, 8 | 16)),
                });
            }
            _ => {}
        }
    }

    fn add_debug(&mut self, section: &ElfSection, name: &[u8]) -> Result<(), ElfError> {
        let known = DEBUG_SECTIONS.iter().find(|n| n.as_bytes() == name);
        let Some(&name) = known else {
            return Ok(());
        };
        let mut packing = Packing::None;
        if section.flags & SHF_COMPRESSED != 0 {
            // Elf64_Chdr { type, reserved, size, align }, Elf32_Chdr { type, size, align }.
            let header = if self.info.wide { 24 } else { 12 };
            let start = FileRange {
                size: header as u64,
                ..section.file
            };
            let bytes = read_all(self.file, start, MAX_LINK)?;
            let fields = self.header.fields(&bytes);
            let size = fields.word(4, 8);
            packing = match fields.u32(0) {
                ELFCOMPRESS_ZLIB => Packing::Zlib { header, size },
                ELFCOMPRESS_ZSTD => Packing::Zstd { header, size },
                _ => Packing::Unknown,
            };
            self.info.packed_bytes = self.info.packed_bytes.saturating_add(size);
        }
        self.info.has_dwarf |= name == ".debug_info";
        self.info.has_split |= name == ".debug_info.dwo";
        self.info.debug.push(DebugSection {
            name,
            offset: section.file.offset,
            size: section.file.size,
            packing,
        });
        Ok(())
    }

    /// The build id as the kernel finds it: in a `PT_NOTE` segment.
    fn build_id_of_segments(&self) -> Result<Option<BuildId>, ElfError> {
        for segment in self.header.segments(self.file)? {
            if segment.kind == PT_NOTE && segment.file.size <= MAX_NOTE {
                let notes = read_all(self.file, segment.file, MAX_NOTE)?;
                if let Some(id) = header::build_id(&notes, 4) {
                    return Ok(Some(id));
                }
            }
        }
        Ok(None)
    }
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
