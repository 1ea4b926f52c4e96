//! Native code in a process's memory: what its driver compiled or was given.

use super::learn::KernelCode;
use crate::inspect::{self, ProcessMemory, ReadMemory, Region, images};
use aiprof_symbols::symbolize::device::{Module, isa};
use object::{
    Endianness, elf,
    read::elf::{FileHeader, SectionHeader},
};
use rustc_hash::{FxHashMap, FxHashSet};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Most bytes of a process that are searched at a time.
const BUDGET: u64 = 2 << 30;
/// Largest module.
const MAX_MODULE: u64 = 64 << 20;
/// Most bytes of modules of all processes.
const MAX_ALL: usize = 256 << 20;
/// Largest kernel whose instructions are decoded.
const MAX_DECODED: usize = 4 << 20;
/// Most kernels of one search that are known by their code.
const MAX_KERNELS: usize = 1 << 16;

/// What a search found.
#[derive(Debug, Default)]
pub(super) struct FoundModules {
    /// Modules that were not found before in this process.
    pub(super) modules: Vec<Vec<u8>>,
    /// Kernels of these by name.
    pub(super) kernels: FxHashMap<String, Arc<KernelCode>>,
}

/// Searches processes for code; knows what was found before.
#[derive(Debug, Default)]
pub(super) struct Searcher {
    told: FxHashSet<(u32, [u8; 32])>,
    used: usize,
}

impl Searcher {
    /// Looks for modules in a process.
    pub(super) fn search(&mut self, pid: u32) -> FoundModules {
        let opened = ProcessMemory::open(pid).and_then(|m| Ok((m, inspect::regions(pid)?)));
        match opened {
            Ok((memory, regions)) => self.search_memory(pid, &memory, &regions),
            Err(error) => {
                tracing::debug!("cannot read the memory of process {pid}: {error}");
                FoundModules::default()
            }
        }
    }

    fn search_memory(
        &mut self,
        pid: u32,
        memory: &impl ReadMemory,
        regions: &[Region],
    ) -> FoundModules {
        let mut found = FoundModules::default();
        let images = images::find(memory, regions, BUDGET).images;
        for image in images.iter().filter(|i| i.kind == images::ImageKind::Zebin) {
            let Some(bytes) = read(memory, image.address) else {
                continue;
            };
            let digest: [u8; 32] = Sha256::digest(&bytes).into();
            if self.told.contains(&(pid, digest)) || self.used + bytes.len() > MAX_ALL {
                continue;
            }
            let Ok(module) = Module::parse(&bytes) else {
                continue;
            };
            self.told.insert((pid, digest));
            self.used += bytes.len();
            for kernel in &module.kernels {
                if found.kernels.len() < MAX_KERNELS && !kernel.code.is_empty() {
                    let code = Arc::new(code(kernel, module.platform));
                    found.kernels.insert(kernel.name.clone(), code);
                }
            }
            found.modules.push(bytes);
        }
        found
    }
}

/// The facts about a kernel's code that are needed here.
fn code(
    kernel: &aiprof_symbols::symbolize::device::DeviceFunction,
    platform: Option<isa::Platform>,
) -> KernelCode {
    let mut starts = Vec::new();
    let size = kernel.code.len();
    if let Some(platform) = platform.filter(|_| size <= MAX_DECODED) {
        let decoded = isa::decode(&kernel.code, platform);
        if decoded.bad == 0 {
            starts = vec![0_u64; size.div_ceil(8 * 64)];
            for instruction in &decoded.instructions {
                let unit = instruction.offset as usize / 8;
                if let Some(bits) = starts.get_mut(unit / 64) {
                    *bits |= 1 << (unit % 64);
                }
            }
        }
    }
    KernelCode {
        size: size as u64,
        payload_entry: kernel.payload_entry.into(),
        starts,
    }
}

/// The whole ELF file at an address: all that its headers speak of.
fn read(memory: &impl ReadMemory, address: u64) -> Option<Vec<u8>> {
    let mut head = [0; size_of::<elf::FileHeader64<Endianness>>()];
    if memory.read(address, &mut head) != head.len() {
        return None;
    }
    let header = elf::FileHeader64::<Endianness>::parse(head.as_slice()).ok()?;
    let endian = header.endian().ok()?;
    let table = header.e_shoff(endian);
    let entries = u64::from(header.e_shnum(endian)) * 64;
    let table_end = table
        .checked_add(entries)
        .filter(|&end| end <= MAX_MODULE)?;
    let bytes = read_bytes(memory, address, table_end)?;
    let header = elf::FileHeader64::<Endianness>::parse(bytes.as_slice()).ok()?;
    let sections = header.sections(endian, bytes.as_slice()).ok()?;
    let mut end = table_end;
    for section in sections.iter() {
        if section.sh_type(endian) != elf::SHT_NOBITS {
            let offset = section.sh_offset(endian);
            end = end.max(offset.checked_add(section.sh_size(endian))?);
        }
    }
    if end > MAX_MODULE {
        return None;
    }
    if end == table_end {
        return Some(bytes);
    }
    read_bytes(memory, address, end)
}

fn read_bytes(memory: &impl ReadMemory, address: u64, size: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(size).ok()?];
    (memory.read(address, &mut bytes) == bytes.len()).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::tests_memory::Copy;

    /// A zebin with one kernel; its section table comes last, as compilers have it.
    fn zebin(name: &str, code: &[u8]) -> Vec<u8> {
        let names = format!("\0.text.{name}\0.shstrtab\0").into_bytes();
        let mut content = code.to_vec();
        content.extend(&names);
        content.resize(content.len().next_multiple_of(8), 0);
        let (table, content_at) = (64 + content.len() as u64, 64);
        let mut sections = vec![0; 64];
        let strings = names.len() - ".shstrtab\0".len();
        for (name, kind, offset, size) in [
            (1, 1_u32, content_at, code.len()),
            (strings, 3, content_at + code.len() as u64, names.len()),
        ] {
            sections.extend((name as u32).to_le_bytes());
            sections.extend(kind.to_le_bytes());
            sections.extend([0; 16]);
            sections.extend(offset.to_le_bytes());
            sections.extend((size as u64).to_le_bytes());
            sections.extend([0; 24]);
        }
        let mut out = b"\x7fELF\x02\x01\x01".to_vec();
        out.resize(16, 0);
        out.extend(1_u16.to_le_bytes());
        out.extend(205_u16.to_le_bytes());
        out.extend(1_u32.to_le_bytes());
        out.extend([0; 16]);
        out.extend(table.to_le_bytes());
        out.extend([0; 4]);
        for half in [64_u16, 0, 0, 64, 3, 2] {
            out.extend(half.to_le_bytes());
        }
        out.extend(content);
        out.extend(sections);
        out
    }

    fn memory(files: &[&[u8]]) -> Copy {
        let mut bytes = vec![0xaa; 64];
        for file in files {
            bytes.extend(*file);
            bytes.resize(bytes.len().next_multiple_of(16) + 48, 0xaa);
        }
        bytes.resize(bytes.len().next_multiple_of(4096), 0);
        Copy::new(0x10_0000, bytes)
    }

    #[test]
    fn whole_modules_are_found_once() {
        let code: Vec<u8> = (0..200_u8).collect();
        let file = zebin("scale", &code);
        let other = zebin("add", &code[..64]);
        let memory = memory(&[&file, &other, &file]);
        let mut searcher = Searcher::default();
        let found = searcher.search_memory(7, &memory, &memory.regions());
        assert_eq!(found.modules, [file, other]);
        assert_eq!(found.kernels["scale"].size, 200);
        assert_eq!(found.kernels["add"].size, 64);
        let again = searcher.search_memory(7, &memory, &memory.regions());
        assert!(again.modules.is_empty());
        let elsewhere = searcher.search_memory(8, &memory, &memory.regions());
        assert_eq!(elsewhere.modules.len(), 2);
    }

    #[test]
    fn damaged_modules_are_left_out() {
        let file = zebin("scale", &[1; 64]);
        for at in 0..file.len() {
            for value in [0, 0x7f, 0xff] {
                let mut damaged = file.clone();
                damaged[at] = value;
                let memory = memory(&[&damaged]);
                let mut searcher = Searcher::default();
                let found = searcher.search_memory(7, &memory, &memory.regions());
                assert!(found.modules.len() <= 1);
            }
        }
    }
}
