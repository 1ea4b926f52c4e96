//! Names of PLT entries: `printf@plt`, as binutils writes them.
//!
//! Entries have no symbols. Each jumps through a slot of the global offset table
//! (`jmp *slot(%rip)`), or pushes the number of its relocation for the dynamic
//! linker; the relocation of that slot names the function. This holds for
//! every layout that linkers write (lazy, bound at start, with branch tracking:
//! `.plt`, `.plt.sec`, `.plt.got`), so the layouts themselves need not be known.
//!
//! Format: System V psABI for x86-64, chapters 4.4 and 5.2. Other machines' PLT
//! entries stay without names.

use super::symtab;
use crate::elf::{
    ElfError, ElfInfo, PltSection, R_X86_64_IRELATIVE, RelaTable, Relocation, read_full,
};
use std::collections::BTreeMap;
use std::fs::File;

/// Most bytes of relocations read for one batch; the largest known files have a
/// quarter of it.
const MAX_RELOCATIONS: u64 = 64 << 20;

/// Bytes of an entry.
const ENTRY: u64 = 16;
/// Bytes of an entry that only jumps.
const SHORT: u64 = 8;

const R_X86_64_GLOB_DAT: u32 = 6;
const R_X86_64_JUMP_SLOT: u32 = 7;

/// How an entry names what it calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PltTarget {
    /// Address of the slot it jumps through.
    Slot(u64),
    /// Number of the relocation that it has the dynamic linker apply.
    Relocation(u64),
}

/// What a relocation leads to.
enum Callee {
    /// Symbol by its number in a symbol table.
    Symbol(u32),
    /// The function that chooses an implementation, by its address.
    Resolver(u64),
}

/// Names addresses that lie in a PLT; the others get `None`, and so do all of a
/// file that has none.
pub(super) fn lookup(
    file: &File,
    info: &ElfInfo,
    vaddrs: &[u64],
) -> Result<Vec<Option<String>>, ElfError> {
    let mut names = vec![None; vaddrs.len()];
    let mut wanted: BTreeMap<PltTarget, Vec<usize>> = BTreeMap::new();
    for (i, &vaddr) in vaddrs.iter().enumerate() {
        let Some(section) = info.plt.iter().find(|s| s.contains(vaddr)) else {
            continue;
        };
        if let Some(target) = target_of(file, section, vaddr)? {
            wanted.entry(target).or_default().push(i);
        }
    }
    if wanted.is_empty() {
        return Ok(names);
    }
    let mut budget = MAX_RELOCATIONS;
    for table in &info.relocations {
        if wanted.is_empty() {
            break;
        }
        for (target, callee) in find(file, table, &wanted, &mut budget)? {
            let name = name_of(file, info, table, callee)?;
            for i in wanted.remove(&target).unwrap_or_default() {
                names[i] = Some(format!("{name}@plt"));
            }
        }
    }
    Ok(names)
}

/// Reads the entry that an address lies in; `None` for what is no entry, like
/// the PLT's head.
fn target_of(file: &File, section: &PltSection, vaddr: u64) -> Result<Option<PltTarget>, ElfError> {
    let at = vaddr - section.vaddr;
    let within = at - at % ENTRY;
    let mut bytes = [0; ENTRY as usize];
    let len = ENTRY.min(section.file.size - within);
    let bytes = bytes
        .get_mut(..usize::try_from(len).unwrap_or(usize::MAX))
        .ok_or(ElfError::Malformed("PLT entry"))?;
    if read_full(file, bytes, section.file.offset.saturating_add(within))? < bytes.len() {
        return Err(ElfError::Malformed(TRUNCATED));
    }
    let start = section.vaddr.wrapping_add(within);
    // Two short entries take the place of one: each is a jump and a nop of two bytes.
    let is_short = section.entry == Some(SHORT) || section.entry.is_none() && is_short(bytes);
    let bytes: &[u8] = bytes;
    Ok(match bytes.split_at_checked(SHORT as usize) {
        Some((_, second)) if is_short && at - within >= SHORT => {
            decode(second, start.wrapping_add(SHORT))
        }
        Some((first, _)) if is_short => decode(first, start),
        _ => decode(bytes, start),
    })
}

/// Whether an entry of 8 bytes stands first: a jump of six, and `xchg %ax,%ax`.
fn is_short(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0xff, 0x25]) && bytes.get(6..8) == Some(&[0x66, 0x90])
}

/// What the code of an entry at the address `start` refers to.
fn decode(bytes: &[u8], start: u64) -> Option<PltTarget> {
    // endbr64, and the prefix bnd, may stand before the instruction.
    let mut rest = bytes
        .strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa])
        .unwrap_or(bytes);
    rest = rest.strip_prefix(&[0xf2]).unwrap_or(rest);
    let number = |rest: &[u8]| Some(i32::from_le_bytes(*rest.first_chunk()?));
    if let Some(operand) = rest.strip_prefix(&[0xff, 0x25]) {
        let next = start.wrapping_add((bytes.len() - operand.len() + 4) as u64);
        return Some(PltTarget::Slot(
            next.wrapping_add_signed(number(operand)?.into()),
        ));
    }
    let operand = rest.strip_prefix(&[0x68])?;
    u64::try_from(number(operand)?)
        .ok()
        .map(PltTarget::Relocation)
}

/// The relocations of a table that are wanted.
fn find(
    file: &File,
    table: &RelaTable,
    wanted: &BTreeMap<PltTarget, Vec<usize>>,
    budget: &mut u64,
) -> Result<Vec<(PltTarget, Callee)>, ElfError> {
    let mut found = Vec::new();
    let mut entries = table.entries(file, *budget);
    *budget -= table.file.size.min(*budget);
    let mut next = 0;
    while found.len() < wanted.len()
        && let Some(relocations) = entries.more()?
    {
        for (number, bytes) in (next..).zip(relocations) {
            next = number + 1;
            let Some(relocation) = Relocation::parse(bytes) else {
                continue;
            };
            let Some(callee) = callee_of(&relocation) else {
                continue;
            };
            let slot = PltTarget::Slot(relocation.place);
            let number = table.plt.then_some(PltTarget::Relocation(number));
            let mut targets = [Some(slot), number].into_iter().flatten();
            if let Some(target) = targets.find(|target| wanted.contains_key(target)) {
                found.push((target, callee));
            }
        }
    }
    entries.check(TRUNCATED)?;
    Ok(found)
}

/// What a relocation leads to.
fn callee_of(relocation: &Relocation) -> Option<Callee> {
    match relocation.kind {
        R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT => Some(Callee::Symbol(relocation.symbol)),
        R_X86_64_IRELATIVE => Some(Callee::Resolver(relocation.addend)),
        _ => None,
    }
}

/// The callee's name; one without a symbol is called as binutils calls it.
fn name_of(
    file: &File,
    info: &ElfInfo,
    relocations: &RelaTable,
    callee: Callee,
) -> Result<String, ElfError> {
    match callee {
        Callee::Symbol(index) => {
            let mut tables = info.tables.iter();
            let table = tables.find(|table| table.section == relocations.link);
            let table = table.ok_or(ElfError::Malformed("relocations without symbols"))?;
            symtab::name_of(file, table, index)
        }
        Callee::Resolver(vaddr) => {
            let name = symtab::lookup(file, info, &[vaddr])?.pop().flatten();
            Ok(name.unwrap_or_else(|| format!("*ABS*+{vaddr:#x}")))
        }
    }
}

const TRUNCATED: &str = "PLT truncated";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_entries_are_known_by_their_nop() {
        let short = [0xff, 0x25, 0xe2, 0x2f, 0, 0, 0x66, 0x90];
        assert!(is_short(&short) && is_short(&[short, short].concat()));
        // jmp *slot(%rip); push $1; jmp head
        let lazy = [0xff, 0x25, 0xe2, 0x2f, 0, 0, 0x68, 1, 0, 0, 0, 0xe9];
        assert!(!is_short(&lazy) && !is_short(&short[..7]) && !is_short(&[0xf3; 16]));
    }

    #[test]
    fn entries_of_all_layouts() {
        let slot = |bytes: &[u8]| match decode(bytes, 0x1000) {
            Some(PltTarget::Slot(slot)) => Some(slot),
            _ => None,
        };
        // jmp *0x2fe2(%rip)
        let jump = [0xff, 0x25, 0xe2, 0x2f, 0, 0];
        assert_eq!(slot(&jump), Some(0x1006 + 0x2fe2));
        // endbr64; bnd jmp *0x2fe2(%rip)
        let tracked = [&[0xf3, 0x0f, 0x1e, 0xfa, 0xf2], &jump[..]].concat();
        assert_eq!(slot(&tracked), Some(0x100b + 0x2fe2));
        // endbr64; push $3; bnd jmp
        let pushed = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x68, 3, 0, 0, 0, 0xf2, 0xe9, 0, 0, 0, 0, 0x90,
        ];
        assert_eq!(decode(&pushed, 0x1000), Some(PltTarget::Relocation(3)));
        // The head of a lazy PLT: push GOT+8(%rip)
        assert_eq!(decode(&[0xff, 0x35, 0xe2, 0x2f, 0, 0], 0x1000), None);
        for len in 0..jump.len() {
            assert_eq!(decode(&jump[..len], 0), None);
        }
    }
}
