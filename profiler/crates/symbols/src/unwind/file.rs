//! One file: its text, identity and pages.

#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

use super::gaps::Functions;
use super::go::GoUnwind;
use super::index::Index;
use super::page::PageBuilder;
use super::record::RecordReader;
use super::{PageContent, PageDepth, ReadAt, TextSegment, UnwindError};
use crate::elf::CodeFile;
use aiprof_common::{DirHeader, PAGE_SIZE, POOL_CHUNK, PoolRef};
use aiprof_model::profile::BuildId;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most pages of text: the directory must fit one chunk of the pool. 4 GiB.
const MAX_PAGES: u64 = ((POOL_CHUNK - size_of::<DirHeader>()) / size_of::<PoolRef>()) as u64;

/// The unwind data of one ELF file (or vdso image), by page of text.
#[derive(Debug)]
pub struct UnwindFile<R> {
    source: R,
    text: Vec<TextSegment>,
    loaded: Vec<TextSegment>,
    build_id: Option<BuildId>,
    index: Index,
    functions: Functions,
    go: Option<GoUnwind>,
    is_narrow: bool,
    first_page: u64,
    n_pages: u32,
    malformed: AtomicU64,
}

impl<R: ReadAt> UnwindFile<R> {
    /// The file.
    pub fn source(&self) -> &R {
        &self.source
    }

    /// Reads the headers.
    ///
    /// # Errors
    /// No ELF file for x86, cut off or malformed headers, more than 4 GiB from
    /// the first to the last byte of text, or the source's own errors. A file
    /// without text or unwind data is no error.
    pub fn open(source: R) -> Result<Self, UnwindError> {
        let elf = CodeFile::read(&source)?;
        let first_page = elf.text.first().map_or(0, |t| t.vaddr & !(PAGE_SIZE - 1));
        let ends = elf.text.iter().map(|t| t.vaddr.saturating_add(t.size));
        let n_pages = n_pages(&(first_page..ends.max().unwrap_or(first_page)))?;
        let (index, bad_hdr) = Index::find(&source, &elf, first_page)?;
        // What reads instructions and Go's tables knows those of 64 bits.
        let (functions, go) = match elf.is_narrow {
            true => (Functions::generated(&[]), None),
            false => (
                Functions::find(&source, &elf),
                GoUnwind::find(&source, &elf)?,
            ),
        };
        Ok(Self {
            source,
            loaded: elf.loads.into_iter().map(Into::into).collect(),
            text: elf.text,
            build_id: elf.build_id,
            index,
            functions,
            go,
            is_narrow: elf.is_narrow,
            first_page,
            n_pages,
            malformed: AtomicU64::new(bad_hdr.into()),
        })
    }

    /// Code that was generated at run time, by address, which lies in some pages: its
    /// instructions give the rules.
    ///
    /// # Errors
    /// More than 4 GiB from the first page to the last.
    pub fn generated(
        source: R,
        text: Vec<TextSegment>,
        pages: Range<u64>,
    ) -> Result<Self, UnwindError> {
        Ok(Self {
            source,
            functions: Functions::generated(&text),
            text,
            loaded: Vec::new(),
            build_id: None,
            index: Index::Absent,
            go: None,
            is_narrow: false,
            first_page: pages.start & !(PAGE_SIZE - 1),
            n_pages: n_pages(&pages)?,
            malformed: AtomicU64::new(0),
        })
    }

    /// Whether it is of a program of 32 bits.
    pub fn is_narrow(&self) -> bool {
        self.is_narrow
    }

    /// The executable parts of the file, by address.
    pub fn text(&self) -> &[TextSegment] {
        &self.text
    }

    /// The parts of the file that are loaded, data too.
    pub fn loaded(&self) -> &[TextSegment] {
        &self.loaded
    }

    /// The build id note, if the file has one.
    pub fn build_id(&self) -> Option<BuildId> {
        self.build_id
    }

    /// Whether the file has unwind data at all; if not, its instructions give the
    /// rules.
    pub fn has_unwind_data(&self) -> bool {
        !matches!(self.index, Index::Absent) || self.go.is_some()
    }

    /// Whether its functions may go on on another stack, as Go's do.
    pub fn changes_stacks(&self) -> bool {
        self.go.is_some()
    }

    /// How many records of unwind data were found malformed, or beyond a limit, so far.
    /// [`Self::open`] counts the header, [`Self::page`] the others; a page that is read again
    /// counts again. Code that they describe is [`aiprof_common::CFA_UNSUPPORTED`] or has no table
    /// at all.
    pub fn malformed(&self) -> u64 {
        self.malformed.load(Ordering::Relaxed) + self.index.malformed()
    }

    /// Virtual address of the first page: that of the first byte of text,
    /// rounded down to [`PAGE_SIZE`].
    pub fn first_page_vaddr(&self) -> u64 {
        self.first_page
    }

    /// Pages from the first to the last byte of text; 0 without text.
    pub fn n_pages(&self) -> u32 {
        self.n_pages
    }

    /// Virtual address of a byte of text. Mappings begin and end on multiples
    /// of 4096, so the bytes that are mapped along with a segment's ends have
    /// an address too, unless they belong to another segment.
    #[cfg(test)]
    pub(super) fn vaddr_of(&self, file_offset: u64) -> Option<u64> {
        super::address_of(&self.text, file_offset)
    }

    /// The code around an address that one record of the unwind data describes:
    /// mostly a function, also of a stripped file. `None` where there is none.
    ///
    /// # Errors
    /// The source's own.
    pub fn code_around(&self, vaddr: u64) -> Result<Option<Range<u64>>, UnwindError> {
        let Some(frames) = self.index.frames() else {
            return Ok(None);
        };
        let mut cursor = self.index.cursor(&self.source)?;
        let before = cursor.count_up_to(&self.source, vaddr)?;
        let Some(last) = before.checked_sub(1) else {
            return Ok(None);
        };
        let entry = cursor.entry(&self.source, last)?;
        let mut reader = RecordReader::new(frames);
        let Some(record) = reader.header(&self.source, entry.fde)? else {
            return Ok(None);
        };
        let range = reader.fde_range(&self.source, &record)?;
        Ok(range.filter(|code| code.contains(&vaddr)))
    }

    /// Writes the table of page `index` to `out`, whose old content is dropped:
    /// the block of the pool as [`aiprof_common::PageHeader`] describes it, with
    /// `owner` and `last_used` 0. Empty for [`PageContent::NoData`].
    ///
    /// # Errors
    /// An index out of range, a file that was cut off since it was opened, the
    /// source's own errors. Malformed entries are no error but become
    /// [`aiprof_common::CFA_UNSUPPORTED`], and count in [`Self::malformed`].
    pub fn page(&self, index: u32, out: &mut Vec<u8>) -> Result<PageContent, UnwindError> {
        self.page_to(index, PageDepth::Whole, out)
    }

    /// As [`Self::page`], but without what takes long: [`PageContent::Partial`].
    ///
    /// # Errors
    /// As there.
    pub fn quick_page(&self, index: u32, out: &mut Vec<u8>) -> Result<PageContent, UnwindError> {
        self.page_to(index, PageDepth::Quick, out)
    }

    fn page_to(
        &self,
        index: u32,
        depth: PageDepth,
        out: &mut Vec<u8>,
    ) -> Result<PageContent, UnwindError> {
        out.clear();
        let vaddr = self.page_vaddr(index)?;
        let mut builder = self.builder()?;
        let content = builder.build(vaddr, depth, out)?;
        self.malformed
            .fetch_add(builder.malformed(), Ordering::Relaxed);
        Ok(content)
    }

    fn builder(&self) -> Result<PageBuilder<'_, R>, UnwindError> {
        PageBuilder::new(&self.source, &self.index, &self.functions, self.go.as_ref())
    }

    /// Virtual address of page `index`.
    fn page_vaddr(&self, index: u32) -> Result<u64, UnwindError> {
        Some(index)
            .filter(|&i| i < self.n_pages)
            .and_then(|i| self.first_page.checked_add(u64::from(i) * PAGE_SIZE))
            .ok_or(UnwindError::NoSuchPage(index))
    }
}

/// Pages in a range of addresses from the start of one on.
fn n_pages(range: &Range<u64>) -> Result<u32, UnwindError> {
    let bytes = range.end.saturating_sub(range.start);
    u32::try_from(bytes.div_ceil(PAGE_SIZE))
        .ok()
        .filter(|&n| u64::from(n) <= MAX_PAGES)
        .ok_or(UnwindError::TooLarge("range of text"))
}

/// What the tables of a whole file amount to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BuildStats {
    /// Pages with a table.
    pub pages: u32,
    /// Rows in them: neighbours with equal rules are one, rows that only bridge
    /// distances are not counted.
    pub rows: u64,
    /// Bytes of all tables.
    pub bytes: u64,
}

/// Builds every page of a file and drops it: for measurements.
///
/// # Errors
/// As [`UnwindFile::page`].
pub fn build_all<R: ReadAt>(file: &UnwindFile<R>) -> Result<BuildStats, UnwindError> {
    let mut stats = BuildStats::default();
    let mut builder = file.builder()?;
    let mut out = Vec::new();
    for index in 0..file.n_pages {
        let vaddr = file.page_vaddr(index)?;
        if builder.build(vaddr, PageDepth::Whole, &mut out)? == PageContent::Table {
            stats.pages += 1;
            stats.rows += builder.rows() as u64;
            stats.bytes += out.len() as u64;
        }
    }
    Ok(stats)
}
