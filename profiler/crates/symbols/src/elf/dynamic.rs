//! Finds one exported symbol by the hash table that the dynamic loader uses. This takes a few small
//! reads, so it can be done for every mapped file ("ELF: GNU hash section" of the GNU linker;
//! System V ABI, chapter 5).

use super::code::TextSegment;
use super::header::{self, ElfHeader};
use super::read::{FileRange, ReadAt, read_all, u32_at, u64_at};
use super::tables::ElfSymbol;

const MAX_PROGRAM_HEADERS: u16 = 256;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
/// Most bytes of the dynamic section.
const MAX_DYNAMIC: u64 = 16 << 10;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
/// Bytes of a symbol.
const SYMBOL: u64 = 24;
/// Most symbols of one bucket that are looked at.
const MAX_CHAIN: u64 = 256;

/// A symbol that the file defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DynamicSymbol {
    /// Its virtual address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
}

/// The symbols that a file exports.
pub(crate) struct Dynamic<'a, R> {
    file: &'a R,
    /// The loaded parts.
    loads: Vec<TextSegment>,
    symbols: u64,
    strings: u64,
    table: HashTable,
}

/// The hash table of a file.
enum HashTable {
    Gnu {
        address: u64,
        buckets: u32,
        first: u32,
        bloom_words: u32,
        bloom_shift: u32,
    },
    /// That of System V, in files that have no other.
    Plain { address: u64, buckets: u32 },
}

/// The hash of a name (DJB's).
fn hash_of(name: &[u8]) -> u32 {
    let step = |hash: u32, &byte: &u8| hash.wrapping_mul(33).wrapping_add(byte.into());
    name.iter().fold(5381, step)
}

/// The hash of a name in a System V hash table.
fn plain_hash_of(name: &[u8]) -> u32 {
    name.iter().fold(0, |hash: u32, &byte| {
        let hash = (hash << 4).wrapping_add(byte.into());
        let high = hash & 0xf000_0000;
        (hash ^ high >> 24) & !high
    })
}

impl<'a, R: ReadAt> Dynamic<'a, R> {
    /// Finds the tables of a file; `None`: it has none.
    pub(crate) fn read(file: &'a R) -> Option<Self> {
        let header = ElfHeader::read(file).ok()??;
        if !header.is_x86_64() || header.segment_count > MAX_PROGRAM_HEADERS {
            return None;
        }
        let segments = header.segments(file).ok()?;
        let of_kind = |kind| segments.iter().filter(move |s| s.kind == kind);
        let loads = of_kind(PT_LOAD).map(|load| TextSegment {
            file_offset: load.file.offset,
            vaddr: load.vaddr,
            size: load.file.size,
        });
        let FileRange { offset, size } = of_kind(PT_DYNAMIC).next_back()?.file;
        let size = size.min(MAX_DYNAMIC);
        let entries = read_all(file, FileRange { offset, size }, MAX_DYNAMIC).ok()?;
        let value = |tag| header::dynamic_value(&entries, tag);
        let (gnu, plain) = (value(DT_GNU_HASH), value(DT_HASH));
        let mut found = Self {
            file,
            loads: loads.collect(),
            symbols: value(DT_SYMTAB)?,
            strings: value(DT_STRTAB)?,
            table: HashTable::Plain {
                address: gnu.or(plain)?,
                buckets: 0,
            },
        };
        found.table = match (gnu, plain) {
            (Some(address), _) => {
                let head = found.bytes(address, 16)?;
                HashTable::Gnu {
                    address,
                    buckets: u32_at(&head, 0).filter(|&n| n > 0)?,
                    first: u32_at(&head, 4)?,
                    bloom_words: u32_at(&head, 8).filter(|&n| n > 0)?,
                    bloom_shift: u32_at(&head, 12)?,
                }
            }
            (None, address) => HashTable::Plain {
                address: address?,
                buckets: u32_at(&found.bytes(address?, 8)?, 0).filter(|&n| n > 0)?,
            },
        };
        Some(found)
    }

    /// The bytes at a virtual address; `None` if the file does not have them all.
    pub(crate) fn bytes(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        let parts = &self.loads;
        let part = parts.iter().find(|part| part.contains(address))?;
        let skip = address - part.vaddr;
        let range = FileRange {
            offset: part.file_offset.checked_add(skip)?,
            size: len as u64,
        };
        read_all(self.file, range, part.size - skip).ok()
    }

    /// A symbol that the file defines.
    pub(crate) fn find(&self, name: &[u8]) -> Option<DynamicSymbol> {
        match self.table {
            HashTable::Gnu {
                address,
                buckets,
                first,
                bloom_words,
                bloom_shift,
            } => {
                let hash = hash_of(name);
                let bloom = address.checked_add(16)?;
                let word = u64::from(hash / 64 % bloom_words);
                let filter = u64_at(&self.bytes(bloom.checked_add(word * 8)?, 8)?, 0)?;
                let second = hash.checked_shr(bloom_shift).unwrap_or(0);
                let wanted = 1u64 << (hash % 64) | 1u64 << (second % 64);
                if filter & wanted != wanted {
                    return None;
                }
                let table = bloom.checked_add(u64::from(bloom_words) * 8)?;
                self.find_in_bucket(name, hash, (table, buckets, first))
            }
            HashTable::Plain { address, buckets } => self.find_plain(name, address, buckets),
        }
    }

    /// Follows a bucket of a GNU hash table: its address, how many there are, and the first
    /// symbol that is in it.
    fn find_in_bucket(
        &self,
        name: &[u8],
        hash: u32,
        (table, buckets, first): (u64, u32, u32),
    ) -> Option<DynamicSymbol> {
        let bucket = u64::from(hash % buckets) * 4;
        let begin = u32_at(&self.bytes(table.checked_add(bucket)?, 4)?, 0)?;
        let chains = table.checked_add(u64::from(buckets) * 4)?;
        let skip = u64::from(begin.checked_sub(first)?);
        for index in 0..MAX_CHAIN {
            let at = chains.checked_add((skip + index) * 4)?;
            let known = u32_at(&self.bytes(at, 4)?, 0)?;
            if known | 1 == hash | 1
                && let Some(symbol) = self.named(u64::from(begin) + index, name)
            {
                return Some(symbol);
            }
            if known & 1 != 0 {
                break;
            }
        }
        None
    }

    /// Follows a bucket of a System V hash table: the numbers of symbols, each with the next.
    fn find_plain(&self, name: &[u8], address: u64, buckets: u32) -> Option<DynamicSymbol> {
        let table = address.checked_add(8)?;
        let chains = table.checked_add(u64::from(buckets) * 4)?;
        let bucket = u64::from(plain_hash_of(name) % buckets) * 4;
        let mut index = u32_at(&self.bytes(table.checked_add(bucket)?, 4)?, 0)?;
        for _ in 0..MAX_CHAIN {
            if index == 0 {
                break;
            }
            if let Some(symbol) = self.named(index.into(), name) {
                return Some(symbol);
            }
            let next = chains.checked_add(u64::from(index) * 4)?;
            index = u32_at(&self.bytes(next, 4)?, 0)?;
        }
        None
    }

    /// The symbol of an index, if it has this name and is defined.
    fn named(&self, index: u64, name: &[u8]) -> Option<DynamicSymbol> {
        let at = self.symbols.checked_add(index.checked_mul(SYMBOL)?)?;
        let symbol = ElfSymbol::parse(&self.bytes(at, SYMBOL as usize)?)?;
        let text = self.strings.checked_add(symbol.name.into())?;
        let text = self.bytes(text, name.len() + 1)?;
        let is_it = text.strip_suffix(b"\0") == Some(name);
        (is_it && symbol.is_defined()).then_some(DynamicSymbol {
            address: symbol.value,
            size: symbol.size,
        })
    }
}
