//! Code that a program has copied: anonymous memory that has the text of a file at the addresses
//! where the file would be. Programs do that to have their text in huge pages.
//!
//! The file is one that is mapped around that memory. Its segments give the place of its text, and
//! the bytes must be equal: a compiler's code may lie there as well.

use super::file::SharedFile;
use crate::procfs::{self, MappedFile};
use aiprof_model::{process::Region, wire::MapEvent};
use aiprof_symbols::unwind::{ReadAt, TextSegment, UnwindFile};
use rustc_hash::FxHashMap;
use std::{ops::Range, sync::Arc};

/// Granularity of mappings.
const PAGE: u64 = 4096;
/// Most pages of a piece that are compared, and how many of them one may differ of: programs
/// patch their own code.
const COMPARED: u64 = 64;
const ONE_MAY_DIFFER_OF: usize = 16;
/// Most files of a process that are opened, and mappings that are looked at.
const MAX_FILES: usize = 16;
const MAX_MAPPINGS: usize = 256;

/// What is copied among the executable mappings of a process: mappings of the files whose text it
/// is. `memory` is that of the process, with offsets that are addresses.
pub(super) fn find(pid: u32, tid: u32, maps: &[MapEvent], memory: &impl ReadAt) -> Vec<MapEvent> {
    let mut anonymous = maps.iter().filter(|map| is_anonymous(map)).peekable();
    if anonymous.peek().is_none() {
        return Vec::new();
    }
    let mut around = procfs::other_maps(pid, tid).unwrap_or_default();
    around.extend(maps.iter().cloned());
    around.retain(|map| Region::of(&map.file) == Region::File);
    around.sort_unstable_by_key(|map| map.start);
    let mut files = Files {
        pid,
        known: FxHashMap::default(),
    };
    let mut found = Vec::new();
    for map in anonymous.take(MAX_MAPPINGS) {
        let after = around.partition_point(|file| file.start < map.start);
        let (below, above) = around.split_at(after);
        // The next two of each side: what is next may be another file's.
        let near = below.iter().rev().take(2).chain(above.iter().take(2));
        let mut pieces = near.filter_map(|file| {
            let known = files.open(file)?;
            Some(known.copied_to(map, file, memory)).filter(|pieces| !pieces.is_empty())
        });
        found.extend(pieces.next().unwrap_or_default());
    }
    found
}

fn is_anonymous(map: &MapEvent) -> bool {
    Region::of(&map.file) == Region::Anonymous
}

/// Files of a process.
struct Files {
    pid: u32,
    /// By device and inode number; `None`: it cannot be read.
    known: FxHashMap<(u64, u64), Option<Original>>,
}

/// A file whose text may have been copied.
struct Original {
    file: SharedFile,
    text: Vec<TextSegment>,
    loaded: Vec<TextSegment>,
}

impl Files {
    fn open(&mut self, map: &MapEvent) -> Option<&Original> {
        let place = (map.file.device, map.file.inode);
        if self.known.len() >= MAX_FILES && !self.known.contains_key(&place) {
            return None;
        }
        let pid = self.pid;
        let open = || {
            let MappedFile { file, .. } = procfs::open_exact(pid, map).ok()?;
            let file = SharedFile(Arc::new(file));
            let elf = UnwindFile::open(file.clone()).ok()?;
            Some(Original {
                text: elf.text().to_vec(),
                loaded: elf.loaded().to_vec(),
                file,
            })
        };
        self.known.entry(place).or_insert_with(open).as_ref()
    }
}

impl Original {
    /// The parts of a mapping that have this file's text, if `near` is a mapping of the file.
    fn copied_to(&self, map: &MapEvent, near: &MapEvent, memory: &impl ReadAt) -> Vec<MapEvent> {
        let biases = self.loaded.iter().filter_map(|part| bias(part, near));
        let end = map.start.saturating_add(map.len);
        for bias in biases {
            let pieces = self.text.iter().filter_map(|text| {
                let pages = pages_of(text)?;
                let from = map.start.max(pages.start.wrapping_add(bias));
                let to = end.min(pages.end.wrapping_add(bias));
                let vaddrs = from.wrapping_sub(bias)..to.wrapping_sub(bias);
                let is_copy = from < to && is_copy(&self.file, text, &vaddrs, (memory, bias));
                is_copy.then(|| MapEvent {
                    start: from,
                    len: to - from,
                    file_offset: text
                        .file_offset
                        .wrapping_add(vaddrs.start)
                        .wrapping_sub(text.vaddr),
                    file: near.file.clone(),
                })
            });
            let pieces: Vec<MapEvent> = pieces.collect();
            if !pieces.is_empty() {
                return pieces;
            }
        }
        Vec::new()
    }
}

/// What is added to a file's addresses, if a mapping is of this part of it.
fn bias(part: &TextSegment, map: &MapEvent) -> Option<u64> {
    let start = part.file_offset - part.file_offset % PAGE;
    let end = part.file_offset.checked_add(part.size)?;
    let address = map
        .file_offset
        .wrapping_sub(part.file_offset)
        .wrapping_add(part.vaddr);
    (start..end)
        .contains(&map.file_offset)
        .then(|| map.start.wrapping_sub(address))
}

/// The addresses of the pages that a segment has.
fn pages_of(text: &TextSegment) -> Option<Range<u64>> {
    let end = text.vaddr.checked_add(text.size)?;
    Some(text.vaddr - text.vaddr % PAGE..end.checked_next_multiple_of(PAGE)?)
}

/// Whether memory has the bytes of a file's text: at these of its addresses, of which a part is
/// compared, evenly spread. What is the same everywhere shows nothing.
fn is_copy(
    file: &impl ReadAt,
    text: &TextSegment,
    vaddrs: &Range<u64>,
    (memory, bias): (&impl ReadAt, u64),
) -> bool {
    let from = vaddrs.start.max(text.vaddr);
    let to = vaddrs.end.min(text.vaddr.saturating_add(text.size));
    let n_pages = to.saturating_sub(from).div_ceil(PAGE);
    let compared = n_pages.min(COMPARED);
    let (mut equal, mut telling) = (0, 0);
    for number in 0..compared {
        let at = from + number * n_pages / compared * PAGE;
        let size = usize::try_from(PAGE.min(to.saturating_sub(at))).unwrap_or(0);
        let read = |source: &dyn Fn(&mut [u8]) -> Option<usize>| {
            let mut bytes = vec![0; size];
            source(&mut bytes).filter(|&n| n == size).map(|_| bytes)
        };
        let offset = text.file_offset + (at - text.vaddr);
        let original = read(&|bytes| file.read_at(bytes, offset).ok());
        let copy = read(&|bytes| memory.read_at(bytes, at.wrapping_add(bias)).ok());
        let (Some(original), Some(copy)) = (original, copy) else {
            continue;
        };
        if original == copy {
            equal += 1;
            telling += usize::from(original.iter().any(|byte| Some(byte) != original.first()));
        }
    }
    let compared = usize::try_from(compared).unwrap_or(usize::MAX);
    telling > 0 && equal + compared / ONE_MAY_DIFFER_OF >= compared
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::wire::FileKey;

    const VADDR: u64 = 0x40_1000;
    const BIAS: u64 = 0x7000_0000;

    /// Text of some pages at offset 0x1000, and memory that has it behind the bias.
    fn text(pages: u64) -> (Vec<u8>, TextSegment) {
        let mut file = vec![0; 0x1000];
        file.extend((0..pages * PAGE).map(|at| (at * at % 251) as u8));
        let segment = TextSegment {
            file_offset: 0x1000,
            vaddr: VADDR,
            size: pages * PAGE,
        };
        (file, segment)
    }

    /// Memory whose first byte is at an address.
    struct At(u64, Vec<u8>);

    impl ReadAt for At {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
            let from = offset
                .checked_sub(self.0)
                .map_or(usize::MAX, |from| from as usize);
            let rest = self.1.get(from..).unwrap_or_default();
            let n = rest.len().min(buf.len());
            buf[..n].copy_from_slice(&rest[..n]);
            Ok(n)
        }
    }

    #[test]
    fn only_equal_bytes_are_a_copy() {
        for pages in [1, 3, 64, 1000] {
            let (file, segment) = text(pages);
            let vaddrs = VADDR..VADDR + pages * PAGE;
            let mut memory = At(VADDR + BIAS, file[0x1000..].to_vec());
            let is_copy =
                |file: &Vec<u8>, memory: &At| is_copy(file, &segment, &vaddrs, (memory, BIAS));
            assert!(is_copy(&file, &memory), "{pages}");
            // A compiler's code, and memory that is not filled yet.
            let other = At(VADDR + BIAS, vec![0x90; file.len()]);
            assert!(!is_copy(&file, &other), "{pages}");
            assert!(!is_copy(&file, &At(0, Vec::new())), "{pages}");
            // An eighth is another's.
            let from = memory.1.len() - memory.1.len() / 8;
            memory.1[from..].fill(0xcc);
            assert!(!is_copy(&file, &memory), "{pages}");
            // Equal zeros prove nothing.
            let empty = vec![0; file.len()];
            assert!(
                !is_copy(&empty, &At(VADDR + BIAS, empty.clone())),
                "{pages}"
            );
        }
    }

    #[test]
    fn a_mapping_around_gives_the_place() {
        let (file, segment) = text(4);
        let map = |start, len, file_offset| MapEvent {
            start,
            len,
            file_offset,
            file: FileKey {
                path: "/x".to_owned(),
                build_id: None,
                device: 1,
                inode: 2,
                version: 0,
            },
        };
        // The headers below, and data above whose first page is that of the text's end, too.
        let headers = TextSegment {
            file_offset: 0,
            vaddr: 0x40_0000,
            size: 0x200,
        };
        let data = TextSegment {
            file_offset: 0x4f00,
            vaddr: 0x40_6f00,
            size: 0x100,
        };
        assert_eq!(bias(&headers, &map(0x40_0000 + BIAS, PAGE, 0)), Some(BIAS));
        assert_eq!(
            bias(&data, &map(0x40_6000 + BIAS, PAGE, 0x4000)),
            Some(BIAS)
        );
        assert_eq!(bias(&headers, &map(0, PAGE, 0x4000)), None);
        assert_eq!(bias(&segment, &map(VADDR + BIAS, PAGE, 0x1000)), Some(BIAS));
        assert_eq!(pages_of(&segment), Some(VADDR..VADDR + 4 * PAGE));
        assert_eq!(file.len(), 0x5000);
    }
}
