//! The table's header, its list of functions, and their records.

use crate::elf::{FileSpan, ReadAt, ReadWindow, u32_at, u64_at};
use std::io;
use std::ops::Range;

/// Most functions of a table: `cmd/link` of huge programs makes some 500,000.
const MAX_FUNCTIONS: u64 = 1 << 22;
/// Longest name that is read.
const MAX_NAME: usize = 4096;
/// Bytes of the list and of records that are read at once.
const CHUNK: usize = 4096;
/// Bytes of a name that are read at once.
const NAME_CHUNK: usize = 256;
/// Changes of values that a reader decodes at most, and what each address adds: real
/// functions have some 20 of each kind.
const BUDGET: u64 = 1 << 22;
const PER_ADDRESS: u64 = 1 << 20;
/// Most bytes of a header.
pub(super) const MAX_HEADER: usize = 72;

/// Which kind of table. The names are of the first Go version that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Version {
    V2,
    V16,
    V18,
    V20,
}

/// `_func.flag`: the function is the outermost of its stack.
const TOP_FRAME: u8 = 1;
/// `_func.flag`: the function sets the stack pointer in a way that its table does not describe.
const WRITES_SP: u8 = 2;

/// Where the parts of a file's table are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GoTable {
    pub(super) version: Version,
    /// The table in the file.
    pub(super) span: FileSpan,
    /// Functions.
    pub(super) n: u32,
    /// Added to the entries of functions, for their address.
    pub(super) text: u64,
    /// Parts, in bytes from the table's first one.
    pub(super) names: u64,
    pub(super) units: u64,
    pub(super) files: u64,
    pub(super) values: u64,
    pub(super) functions: u64,
    /// Where in the file the trees of inlined calls are.
    pub(super) trees: Option<FileSpan>,
}

/// A function's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GoFunction {
    /// Its code.
    pub(crate) start: u64,
    /// First byte after it, padding included.
    pub(crate) end: u64,
    /// Where its name is.
    name: u32,
    /// Where the tables of values are: of the stack pointer, of files, of lines, of
    /// calls that were inlined. 0: there is none.
    pub(crate) pcsp: u32,
    pub(super) pcfile: u32,
    pub(super) pcline: u32,
    pub(super) pcinline: u32,
    /// First number of its compilation unit's files.
    pub(super) unit: u32,
    /// Where its tree of inlined calls is.
    pub(super) tree: Option<u32>,
    flag: u8,
}

impl GoFunction {
    /// Whether nothing has called it.
    pub(crate) fn is_top(&self) -> bool {
        self.flag & TOP_FRAME != 0
    }

    /// Whether it moves the stack pointer in a way that its table does not describe.
    pub(crate) fn writes_sp(&self) -> bool {
        self.flag & WRITES_SP != 0
    }
}

impl GoTable {
    /// Reads a header, whose bytes begin a table that lies in `span`. `None`: it is no
    /// header, or contradicts itself. The text's address is that of the header, if any.
    pub(super) fn parse(header: &[u8], span: FileSpan) -> Option<Self> {
        let version = match u32_at(header, 0)? {
            0xffff_fffb => Version::V2,
            0xffff_fffa => Version::V16,
            0xffff_fff0 => Version::V18,
            0xffff_fff1 => Version::V20,
            _ => return None,
        };
        // Two zeros, the least size of an instruction, the size of a pointer.
        if header.get(4..8)? != [0, 0, 1, 8] {
            return None;
        }
        let word = |i: usize| u64_at(header, 8 + 8 * i);
        let n = word(0)?;
        let [text, names, units, files, values, functions] = match version {
            Version::V2 => [0, 0, 0, 0, 0, 16],
            Version::V16 => [0, word(2)?, word(3)?, word(4)?, word(5)?, word(6)?],
            Version::V18 | Version::V20 => {
                [word(2)?, word(3)?, word(4)?, word(5)?, word(6)?, word(7)?]
            }
        };
        let offsets = [names, units, files, values, functions];
        let sound =
            offsets.is_sorted() && functions < span.size && (1..=MAX_FUNCTIONS).contains(&n);
        let table = Self {
            version,
            span,
            n: u32::try_from(n).ok()?,
            text,
            names,
            units,
            files,
            values,
            functions,
            trees: None,
        };
        let list = (n + 1) * table.entry_bytes();
        (sound && list <= span.size - functions).then_some(table)
    }

    /// Bytes of an entry of the list of functions.
    fn entry_bytes(&self) -> u64 {
        match self.version {
            Version::V2 | Version::V16 => 16,
            Version::V18 | Version::V20 => 8,
        }
    }

    /// Number of functions.
    pub(crate) fn len(&self) -> u32 {
        self.n
    }
}

/// Reads functions of a table.
pub(crate) struct GoReader<'a, R> {
    source: &'a R,
    table: &'a GoTable,
    list: ReadWindow,
    records: ReadWindow,
    names: ReadWindow,
    pub(super) numbers: ReadWindow,
    /// What may still be decoded.
    budget: u64,
}

impl<'a, R: ReadAt> GoReader<'a, R> {
    /// A reader of a file's table.
    pub(crate) fn new(source: &'a R, table: &'a GoTable) -> Self {
        Self {
            source,
            table,
            list: ReadWindow::new(CHUNK),
            records: ReadWindow::new(CHUNK),
            names: ReadWindow::new(CHUNK),
            numbers: ReadWindow::new(CHUNK),
            budget: BUDGET,
        }
    }

    /// Takes `cost` from what may be decoded; false, and nothing left, if it is too much.
    pub(crate) fn charge(&mut self, cost: u64) -> bool {
        let left = self.budget.checked_sub(cost);
        self.budget = left.unwrap_or(0);
        left.is_some()
    }

    /// Another address is asked for.
    pub(super) fn refill(&mut self) {
        self.budget = self.budget.max(PER_ADDRESS);
    }

    pub(super) fn source(&self) -> &'a R {
        self.source
    }

    pub(super) fn table(&self) -> &'a GoTable {
        self.table
    }

    /// Where a byte of the table is in the file, if the table has it.
    pub(super) fn place(&self, at: u64) -> Option<u64> {
        let span = self.table.span;
        (at < span.size).then(|| span.offset.saturating_add(at))
    }

    /// The address of an entry of the list and where its record is, in bytes from the
    /// list's start. The entry behind the last function has no record.
    fn entry(&mut self, index: u32) -> io::Result<Option<(u64, u64)>> {
        let table = self.table;
        let size = table.entry_bytes();
        let last = index >= table.n;
        let at = table.functions + u64::from(index) * size;
        let Some(place) = self.place(at) else {
            return Ok(None);
        };
        let length = if last { size / 2 } else { size } as usize;
        let bytes = self.list.get(self.source, place, length)?;
        let parse = || {
            let (entry, record) = match size {
                16 => (u64_at(bytes, 0)?, u64_at(bytes, 8)),
                _ => (u32_at(bytes, 0)?.into(), u32_at(bytes, 4).map(u64::from)),
            };
            let record = if last { 0 } else { record? };
            Some((table.text.checked_add(entry)?, record))
        };
        Ok(parse())
    }

    /// The addresses from the first function to behind the last one.
    pub(crate) fn range(&mut self) -> io::Result<Option<Range<u64>>> {
        let first = self.entry(0)?;
        let last = self.entry(self.table.n)?;
        let range = first.zip(last).map(|((first, _), (last, _))| first..last);
        Ok(range.filter(|range| !range.is_empty()))
    }

    /// The number of the function that holds an address, or that is the last one
    /// before it.
    pub(crate) fn index_of(&mut self, address: u64) -> io::Result<Option<u32>> {
        let (mut low, mut high) = (0, self.table.n);
        while low < high {
            let middle = low + (high - low) / 2;
            let Some((entry, _)) = self.entry(middle)? else {
                return Ok(None);
            };
            match entry <= address {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        Ok(low.checked_sub(1))
    }

    /// The function at an address.
    pub(crate) fn function_at(&mut self, address: u64) -> io::Result<Option<GoFunction>> {
        let Some(index) = self.index_of(address)? else {
            return Ok(None);
        };
        let function = self.function(index)?;
        Ok(function.filter(|f| (f.start..f.end).contains(&address)))
    }

    /// The function of a number. `None`: its record contradicts the format.
    pub(crate) fn function(&mut self, index: u32) -> io::Result<Option<GoFunction>> {
        if index >= self.table.n {
            return Ok(None);
        }
        let (Some((start, record)), Some((end, _))) = (self.entry(index)?, self.entry(index + 1)?)
        else {
            return Ok(None);
        };
        if start >= end {
            return Ok(None);
        }
        let version = self.table.version;
        // In the oldest tables, records are counted from the table's start.
        let base = match version {
            Version::V2 => 0,
            _ => self.table.functions,
        };
        let at = base.checked_add(record).and_then(|at| self.place(at));
        let Some(place) = at else { return Ok(None) };
        // The fixed part; the numbers of tables; as many as are needed here.
        let bytes = self.records.get(self.source, place, 96)?;
        Ok(parse_record(version, bytes, start..end))
    }

    /// A function's name; empty if it has none.
    pub(crate) fn name(&mut self, function: &GoFunction) -> io::Result<String> {
        self.text(self.table.names.saturating_add(function.name.into()))
    }

    /// The string at a byte of the table.
    pub(super) fn text(&mut self, at: u64) -> io::Result<String> {
        let Some(place) = self.place(at) else {
            return Ok(String::new());
        };
        let mut length = NAME_CHUNK;
        loop {
            let bytes = self.names.get(self.source, place, length)?;
            let end = bytes.iter().position(|&b| b == 0);
            if end.is_some() || bytes.len() < length || length >= MAX_NAME {
                let text = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
                return Ok(String::from_utf8_lossy(text).into_owned());
            }
            length = MAX_NAME;
        }
    }
}

/// A function's record: `_func` of `src/runtime/runtime2.go`.
fn parse_record(version: Version, bytes: &[u8], code: Range<u64>) -> Option<GoFunction> {
    let entry = match version {
        Version::V2 | Version::V16 => 8,
        Version::V18 | Version::V20 => 4,
    };
    // From the name on: name, args, deferreturn, pcsp, pcfile, pcln, npcdata.
    let word = |i: usize| u32_at(bytes, entry + 4 * i);
    let tables = word(6)?;
    let (unit, fixed) = match version {
        Version::V2 => (0, 7),
        Version::V16 | Version::V18 => (word(7)?, 8),
        // A function's first line follows.
        Version::V20 => (word(7)?, 9),
    };
    let [_kind, flag, _, data] = word(fixed)?.to_le_bytes();
    // Before 1.17 the flag is padding: not always zero in the oldest.
    let flag = if version >= Version::V16 { flag } else { 0 };
    let first = fixed + 1;
    let pcinline = match tables {
        PCDATA_INLINE..=64 => word(first + PCDATA_INLINE as usize).unwrap_or(0),
        _ => 0,
    };
    let inlines = version >= Version::V18 && u32::from(data) > FUNCDATA_TREE && tables <= 64;
    let tree = inlines.then(|| word(first + tables as usize + FUNCDATA_TREE as usize));
    Some(GoFunction {
        start: code.start,
        end: code.end,
        name: word(0)?,
        pcsp: word(3)?,
        pcfile: word(4)?,
        pcline: word(5)?,
        pcinline: if tables > PCDATA_INLINE { pcinline } else { 0 },
        unit,
        tree: tree.flatten().filter(|&tree| tree != u32::MAX),
        flag,
    })
}

/// `PCDATA_InlTreeIndex` and `FUNCDATA_InlTree` of `src/internal/abi/symtab.go`.
const PCDATA_INLINE: u32 = 2;
const FUNCDATA_TREE: u32 = 3;
