//! Device images in a process's memory, and the kernels they declare.
//!
//! A driver and its users keep copies of the code they gave the device. Intel's *zebin* is
//! ELF64 (machine 205), with a section `.text.NAME` for each kernel. SPIR-V has
//! `OpEntryPoint`s of the Kernel model.

use super::{ReadMemory, Region};
use aiprof_symbols::symbolize::device::spirv::SPIRV_MAGIC;
use aiprof_symbols::symbolize::device::zebin::{CODE_PREFIX, EM_INTELGT, NOT_KERNELS};
use memchr::memmem;
use object::{
    Endianness, elf,
    read::elf::{FileHeader, SectionHeader},
};
use std::collections::BTreeSet;

/// Bytes read at a time while searching.
const CHUNK: usize = 1 << 20;
/// Largest image that is looked at.
const MAX_IMAGE: u64 = 64 << 20;
/// Most images of a process.
const MAX_IMAGES: usize = 4096;
/// Most kernels of a process.
const MAX_KERNELS: usize = 65_536;
/// Longest kernel name.
pub(super) const MAX_NAME: usize = 4096;

/// What kind of device code an image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ImageKind {
    /// Intel's ELF of native code.
    Zebin,
    /// SPIR-V.
    SpirV,
}

/// A device image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Its format.
    pub kind: ImageKind,
    /// Where it begins.
    pub address: u64,
    /// Its kernels.
    pub kernels: Vec<String>,
}

/// What a search found.
#[derive(Clone, Debug, Default)]
pub struct FoundImages {
    /// The images, by address.
    pub images: Vec<Image>,
    /// Bytes not looked at because `budget` was used up.
    pub skipped: u64,
}

impl FoundImages {
    /// The names of all kernels, each once.
    pub(crate) fn kernel_names(&self) -> BTreeSet<&str> {
        let names = self.images.iter().flat_map(|i| &i.kernels);
        names.map(String::as_str).collect()
    }
}

/// Looks for device images in `regions`, reading at most `budget` bytes.
pub fn find(memory: &impl ReadMemory, regions: &[Region], budget: u64) -> FoundImages {
    let mut found = FoundImages::default();
    let mut left = budget;
    let mut buffer = vec![0; CHUNK];
    let elf = memmem::Finder::new(b"\x7fELF\x02\x01\x01");
    let spirv = memmem::Finder::new(b"\x03\x02\x23\x07");
    for region in regions {
        let mut at = region.start;
        while at < region.end {
            let want = (region.end - at).min(CHUNK as u64);
            if want > left || found.images.len() >= MAX_IMAGES {
                found.skipped += region.end - at;
                break;
            }
            left -= want;
            let chunk = buffer.get_mut(..want as usize).unwrap_or_default();
            let got = memory.read(at, chunk);
            let chunk = chunk.get(..got).unwrap_or_default();
            for (finder, parse) in [
                (&elf, zebin as fn(&_, u64, u64) -> Option<Image>),
                (&spirv, spir_v),
            ] {
                for offset in finder.find_iter(chunk) {
                    let address = at + offset as u64;
                    if let Some(image) = parse(memory, address, region.end) {
                        found.images.push(image);
                    }
                }
            }
            // An unreadable page ends the chunk: go on behind it. The magic may lie
            // across two chunks.
            let step = if got < chunk.len().max(want as usize) {
                (got as u64 / 4096 + 1) * 4096
            } else if at + want < region.end {
                want - 8
            } else {
                want
            };
            at += step;
        }
    }
    found.images.sort_by_key(|i| i.address);
    found.images.dedup_by_key(|i| i.address);
    found.images.truncate(MAX_IMAGES);
    found
}

/// The zebin at `address`, if there is one that ends before `end`.
fn zebin(memory: &dyn ReadMemory, address: u64, end: u64) -> Option<Image> {
    let mut head = [0; size_of::<elf::FileHeader64<Endianness>>()];
    if memory.read(address, &mut head) != head.len() {
        return None;
    }
    let header = elf::FileHeader64::<Endianness>::parse(head.as_slice()).ok()?;
    let endian = header.endian().ok()?;
    if header.e_machine(endian).0 != EM_INTELGT {
        return None;
    }
    // The section table comes last in what the compiler writes, but is not
    // bound to: take what its sections need.
    let table = header.e_shoff(endian);
    let count = u64::from(header.e_shnum(endian));
    let table_end = table.checked_add(count * 64)?;
    if table_end > MAX_IMAGE || table_end > end - address {
        return None;
    }
    let mut bytes = vec![0; table_end as usize];
    if memory.read(address, &mut bytes) != bytes.len() {
        return None;
    }
    let header = elf::FileHeader64::<Endianness>::parse(bytes.as_slice()).ok()?;
    let sections = header.sections(endian, bytes.as_slice()).ok()?;
    let mut kernels = Vec::new();
    for section in sections.iter() {
        let Ok(name) = sections.section_name(endian, section) else {
            continue;
        };
        let Some(name) = name.strip_prefix(CODE_PREFIX) else {
            continue;
        };
        let progbits = section.sh_type(endian) == elf::SHT_PROGBITS;
        if let Some(name) = name_of(name).filter(|_| progbits) {
            kernels.push(name);
        }
        if kernels.len() >= MAX_KERNELS {
            break;
        }
    }
    kernels.retain(|k| !NOT_KERNELS.contains(&k.as_str()));
    (!kernels.is_empty()).then_some(Image {
        kind: ImageKind::Zebin,
        address,
        kernels,
    })
}

/// The SPIR-V module at `address`, if there is one that ends before `end`.
///
/// Entry points come before the first function (SPIR-V specification, 2.4).
fn spir_v(memory: &dyn ReadMemory, address: u64, end: u64) -> Option<Image> {
    const OP_ENTRY_POINT: u32 = 15;
    const OP_FUNCTION: u32 = 54;
    const MODEL_KERNEL: u32 = 6;
    const HEADER_WORDS: usize = 5;
    if !address.is_multiple_of(4) {
        return None;
    }
    let most = (end - address).min(CHUNK as u64) as usize;
    let mut bytes = vec![0; most];
    let got = memory.read(address, &mut bytes);
    let words: Vec<u32> = bytes[..got]
        .chunks_exact(4)
        .filter_map(|c| c.try_into().ok().map(u32::from_le_bytes))
        .collect();
    let &[magic, version, _, bound, schema] = words.get(..HEADER_WORDS)? else {
        return None;
    };
    let known = magic == SPIRV_MAGIC && version & 0xff00_00ff == 0 && version >> 16 == 1;
    if !known || bound == 0 || schema != 0 {
        return None;
    }
    let mut kernels = Vec::new();
    let mut at = HEADER_WORDS;
    while let Some(&first) = words.get(at) {
        let (length, op) = ((first >> 16) as usize, first & 0xffff);
        if length == 0 || op == OP_FUNCTION {
            break;
        }
        let operands = words.get(at + 1..at + length)?;
        if op == OP_ENTRY_POINT && operands.first() == Some(&MODEL_KERNEL) {
            let text: Vec<u8> = operands
                .iter()
                .skip(2)
                .flat_map(|w| w.to_le_bytes())
                .collect();
            let text = text.split(|&b| b == 0).next().unwrap_or_default();
            kernels.extend(name_of(text));
        }
        at += length;
    }
    (!kernels.is_empty()).then_some(Image {
        kind: ImageKind::SpirV,
        address,
        kernels,
    })
}

/// A kernel name, if it is one: text without control characters.
fn name_of(bytes: &[u8]) -> Option<String> {
    let fits = (1..=MAX_NAME).contains(&bytes.len());
    let text = std::str::from_utf8(bytes).ok().filter(|_| fits)?;
    (!text.chars().any(char::is_control)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::tests_memory::Copy;
    use super::*;

    /// A zebin by hand: header, names, section table (ELF-64 specification).
    fn zebin_bytes(machine: u16, names: &[&str]) -> Vec<u8> {
        let mut strings = vec![0u8];
        let mut at = Vec::new();
        for name in names.iter().chain(&[".shstrtab"]) {
            at.push(strings.len() as u32);
            strings.extend(name.as_bytes());
            strings.push(0);
        }
        strings.resize(strings.len().next_multiple_of(8), 0);
        let table = 64 + strings.len() as u64;
        let count = at.len() as u16 + 1;
        let mut out = b"\x7fELF\x02\x01\x01".to_vec();
        out.resize(16, 0);
        out.extend(1u16.to_le_bytes());
        out.extend(machine.to_le_bytes());
        out.extend(1u32.to_le_bytes());
        out.extend([0; 16]);
        out.extend(table.to_le_bytes());
        out.extend([0; 4]);
        for half in [64u16, 0, 0, 64, count, count - 1] {
            out.extend(half.to_le_bytes());
        }
        out.extend(&strings);
        out.extend([0; 64]);
        for (i, name) in at.iter().enumerate() {
            let strtab = i + 1 == at.len();
            let (kind, offset, size) = if strtab {
                (3u32, 64u64, strings.len() as u64)
            } else {
                (1, 64, 0)
            };
            out.extend(name.to_le_bytes());
            out.extend(kind.to_le_bytes());
            out.extend([0; 16]);
            out.extend(offset.to_le_bytes());
            out.extend(size.to_le_bytes());
            out.extend([0; 24]);
        }
        out
    }

    fn spirv_bytes(names: &[&str]) -> Vec<u8> {
        let mut words = vec![SPIRV_MAGIC, 0x0001_0200, 0, 9, 0, 2 << 16 | 17, 6];
        for name in names {
            let mut text = name.as_bytes().to_vec();
            text.resize((text.len() + 1).next_multiple_of(4), 0);
            words.push(((3 + text.len() / 4) as u32) << 16 | 15);
            words.extend([6, 5]);
            for word in text.chunks_exact(4) {
                words.push(u32::from_le_bytes(word.try_into().unwrap()));
            }
        }
        words.push(5 << 16 | 54);
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    fn search(content: &[u8], at: usize) -> FoundImages {
        let mut bytes = vec![0xaa; at];
        bytes.extend(content);
        bytes.resize((bytes.len() + 100).next_multiple_of(4096), 0);
        let memory = Copy::new(0x10_0000, bytes);
        find(&memory, &memory.regions(), u64::MAX)
    }

    #[test]
    fn finds_images_wherever_they_lie() {
        let zebin = zebin_bytes(205, &[".text.scale", ".text.add<int>", ".spv"]);
        let spirv = spirv_bytes(&["one", "another"]);
        for at in [0, 16, 4088, CHUNK - 4, CHUNK, 2 * CHUNK - 8 - 4] {
            let found = search(&zebin, at);
            assert_eq!(found.images.len(), 1, "{at}");
            assert_eq!(found.images[0].kernels, ["scale", "add<int>"]);
            assert_eq!(found.images[0].address, 0x10_0000 + at as u64);
            let found = search(&spirv, at);
            assert_eq!(found.kernel_names().len(), 2, "{at}");
        }
    }

    #[test]
    fn nothing_but_images_is_found() {
        assert!(
            search(&zebin_bytes(62, &[".text.scale"]), 64)
                .images
                .is_empty()
        );
        assert!(search(&zebin_bytes(205, &[".data"]), 64).images.is_empty());
        assert!(
            search(&zebin_bytes(205, &[".text.a\nb"]), 64)
                .images
                .is_empty()
        );
        assert!(search(&spirv_bytes(&[]), 64).images.is_empty());
        let mut cut = zebin_bytes(205, &[".text.scale"]);
        cut.truncate(cut.len() - 64);
        assert!(search(&cut, 64).images.iter().all(|i| i.kernels.is_empty()));
        for len in 0..64 {
            search(&zebin_bytes(205, &[".text.scale"])[..len], 0);
            search(&spirv_bytes(&["scale"])[..len.min(40)], 0);
        }
    }

    #[test]
    fn what_the_budget_leaves_out_is_told() {
        let memory = Copy::new(0x10_0000, vec![0; 3 * CHUNK]);
        let found = find(&memory, &memory.regions(), CHUNK as u64);
        assert!(found.skipped >= 2 * CHUNK as u64 - 8, "{}", found.skipped);
    }
}
