//! Parts of DWARF: what matters of an entry, texts, and sizes that are looked at
//! before anything is read.

use aiprof_model::demangle::is_mangled;
use gimli::{AttributeValue, EndianSlice, LittleEndian, Reader as _};

pub(super) type Slice<'d> = EndianSlice<'d, LittleEndian>;
pub(super) type Dwarf<'d> = gimli::Dwarf<Slice<'d>>;
pub(super) type Unit<'d> = gimli::Unit<Slice<'d>>;
pub(super) type Attr<'d> = AttributeValue<Slice<'d>>;

/// Largest table of abbreviations of a unit, in bytes.
pub(super) const MAX_ABBREVIATIONS: usize = 1 << 20;
/// Longest name or path read, in bytes.
const MAX_NAME: usize = 16 << 10;

/// What of an entry matters here.
#[derive(Default)]
pub(super) struct DwarfEntry<'d> {
    pub(super) low: Option<Attr<'d>>,
    pub(super) high: Option<Attr<'d>>,
    pub(super) ranges: Option<Attr<'d>>,
    /// File, line and column of the call.
    pub(super) call: (u64, u32, u32),
}

/// Names of a function, cut to [`MAX_NAME`].
#[derive(Default)]
pub(super) struct FunctionNames {
    pub(super) plain: String,
    pub(super) linkage: String,
}

impl FunctionNames {
    pub(super) fn take(
        &mut self,
        name: gimli::DwAt,
        dwarf: &Dwarf<'_>,
        unit: &Unit<'_>,
        value: Attr<'_>,
    ) {
        let name = match name {
            gimli::DW_AT_name => &mut self.plain,
            gimli::DW_AT_linkage_name | gimli::DW_AT_MIPS_linkage_name => &mut self.linkage,
            _ => return,
        };
        if name.is_empty() {
            *name = text(dwarf, unit, value);
        }
    }

    pub(super) fn best(&self) -> &str {
        match is_mangled(&self.linkage) || self.plain.is_empty() {
            true => &self.linkage,
            false => &self.plain,
        }
    }
}

impl<'d> DwarfEntry<'d> {
    pub(super) fn read(
        entries: &mut gimli::EntriesRaw<'_, Slice<'d>>,
        abbreviation: &gimli::Abbreviation,
    ) -> gimli::Result<Self> {
        let mut entry = Self::default();
        for spec in abbreviation.attributes() {
            let attribute = entries.read_attribute(*spec)?;
            let value = attribute.value();
            match attribute.name() {
                gimli::DW_AT_low_pc => entry.low = Some(value),
                gimli::DW_AT_high_pc => entry.high = Some(value),
                gimli::DW_AT_ranges => entry.ranges = Some(value),
                gimli::DW_AT_call_file => entry.call.0 = file_index(value),
                gimli::DW_AT_call_line => entry.call.1 = small(value),
                gimli::DW_AT_call_column => entry.call.2 = small(value),
                _ => {}
            }
        }
        Ok(entry)
    }
}

pub(super) fn small(value: Attr<'_>) -> u32 {
    let value = value.udata_value().and_then(|n| u32::try_from(n).ok());
    value.unwrap_or(0)
}

pub(super) fn file_index(value: Attr<'_>) -> u64 {
    match value {
        AttributeValue::FileIndex(index) => index,
        other => other.udata_value().unwrap_or(0),
    }
}

/// A string attribute; empty where it cannot be read.
fn text(dwarf: &Dwarf<'_>, unit: &Unit<'_>, value: Attr<'_>) -> String {
    let Ok(slice) = dwarf.attr_string(unit, value) else {
        return String::new();
    };
    readable(slice.slice())
}

/// Text, cut to [`MAX_NAME`].
fn readable(bytes: &[u8]) -> String {
    let bytes = bytes.get(..MAX_NAME).unwrap_or(bytes);
    String::from_utf8_lossy(bytes).into_owned()
}

/// Path of a file of a unit's line table, joined to its directory.
pub(super) fn file_path(dwarf: &Dwarf<'_>, unit: &Unit<'_>, index: u64) -> Option<String> {
    let header = unit.line_program.as_ref()?.header();
    let file = header.file(index)?;
    let mut path = text(dwarf, unit, file.path_name());
    if path.is_empty() || path.starts_with('/') {
        return Some(path);
    }
    let mut join = |dir: String| {
        if !dir.is_empty() && !path.starts_with('/') {
            path = format!("{}/{path}", dir.trim_end_matches('/'));
        }
    };
    if let Some(dir) = file.directory(header) {
        join(text(dwarf, unit, dir));
    }
    if let Some(dir) = unit.comp_dir {
        join(readable(dir.slice()));
    }
    Some(path)
}

/// Bytes of a table of abbreviations; `None` if it does not end within
/// [`MAX_ABBREVIATIONS`].
pub(super) fn table_size(table: &[u8]) -> Option<usize> {
    let table = table.get(..MAX_ABBREVIATIONS).unwrap_or(table);
    let mut rest = gimli::EndianSlice::new(table, LittleEndian);
    let left = |rest: &Slice<'_>| table.len() - rest.len();
    loop {
        if rest.read_uleb128().ok()? == 0 {
            return Some(left(&rest));
        }
        // Tag, and whether there are children.
        rest.read_uleb128().ok()?;
        rest.read_u8().ok()?;
        loop {
            let (name, form) = (rest.read_uleb128().ok()?, rest.read_uleb128().ok()?);
            if form == u64::from(gimli::DW_FORM_implicit_const.0) {
                rest.read_sleb128().ok()?;
            }
            if (name, form) == (0, 0) {
                break;
            }
        }
    }
}

/// The length that a line table's header claims.
pub(super) fn line_header_size(table: &[u8]) -> Option<u64> {
    let mut rest = EndianSlice::new(table, LittleEndian);
    let (_, format) = rest.read_initial_length().ok()?;
    if rest.read_u16().ok()? >= 5 {
        rest.read_u16().ok()?;
    }
    let size = rest.read_length(format).ok()?;
    Some(size as u64)
}
