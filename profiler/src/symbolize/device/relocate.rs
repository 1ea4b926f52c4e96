//! Relocations of debug sections.
//!
//! IGC's symbols for them are named `.text.KERNEL` but point at the debug section
//! and have the value 0: taken literally, all kernels lie on each other. So the
//! name counts. IGC 2.40 leaves the name out of some of them; several kernels and
//! debug sections then share a symbol without one. Addresses relative to it are
//! put at [`NAMELESS`], for the reader of the debug information to find out whose
//! they are.

use super::limits::{Budget, Exhausted};
use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{Rela, SectionHeader, Sym};
use rustc_hash::FxHashMap;
use std::borrow::Cow;

pub(super) type Header = elf::FileHeader64<LE>;
type Symbols<'d> = object::read::elf::SymbolTable<'d, Header, &'d [u8]>;
type Section = elf::SectionHeader64<LE>;

/// Relocation types (zebin specification, "Gen Relocation Type").
const R_ZE_NONE: u32 = 0;
const R_ZE_SYM_ADDR: u32 = 1;
const R_ZE_SYM_ADDR_32: u32 = 2;
const R_ZE_SYM_ADDR_32_HI: u32 = 3;

/// Where code is taken to lie whose kernel the relocation does not name: beyond
/// what devices address.
pub(super) const NAMELESS: u64 = 0x4000_0000_0000_0000;

/// Where pieces of code are believed to lie.
pub(super) struct Bases<'d> {
    /// By the name of the section.
    pub(super) by_name: FxHashMap<&'d [u8], u64>,
    /// By the index of the section.
    pub(super) by_index: FxHashMap<usize, u64>,
}

/// The bytes of one debug section with its relocations applied, and how many
/// could not be.
pub(super) fn relocated<'d>(
    file: &'d [u8],
    index: usize,
    section: &Section,
    tables: &[&Section],
    symbols: &Symbols<'d>,
    bases: &Bases<'d>,
    budget: &mut Budget,
) -> Result<(Cow<'d, [u8]>, u32), Exhausted> {
    let mut bytes = Cow::Borrowed(section.data(LE, file).unwrap_or_default());
    let mut failed = 0u32;
    for table in tables {
        let of_this = usize::try_from(table.sh_info(LE)) == Ok(index);
        if !of_this {
            continue;
        }
        let Ok(Some((list, _))) = table.rela(LE, file) else {
            failed = failed.saturating_add(1);
            continue;
        };
        budget.spend(list.len() as u64)?;
        // Owned only where something changes.
        if bytes.is_empty() || list.is_empty() {
            continue;
        }
        budget.spend(bytes.len() as u64 / 8)?;
        let target = bytes.to_mut();
        for rela in list {
            if apply(target, rela, symbols, bases).is_none() {
                failed = failed.saturating_add(1);
            }
        }
    }
    Ok((bytes, failed))
}

fn apply(
    target: &mut [u8],
    rela: &elf::Rela64<LE>,
    symbols: &Symbols<'_>,
    bases: &Bases<'_>,
) -> Option<()> {
    let kind = rela.r_type(LE, false).0;
    if kind == R_ZE_NONE {
        return Some(());
    }
    let symbol = symbols
        .symbol(object::SymbolIndex(rela.r_sym(LE, false) as usize))
        .ok()?;
    let name = symbol.name(LE, symbols.strings()).unwrap_or_default();
    let section = usize::from(symbol.st_shndx(LE).0);
    let base = match (bases.by_name.get(name), bases.by_index.get(&section)) {
        (Some(base), _) => *base,
        (_, Some(code)) => code.wrapping_add(symbol.st_value(LE)),
        // Offsets into debug sections have 32 bits.
        _ if name.is_empty() && kind == R_ZE_SYM_ADDR => NAMELESS,
        _ => symbol.st_value(LE),
    };
    let value = base.wrapping_add_signed(rela.r_addend(LE));
    let at = usize::try_from(rela.r_offset(LE)).ok()?;
    let bytes = value.to_le_bytes();
    let part: &[u8] = match kind {
        R_ZE_SYM_ADDR => &bytes,
        R_ZE_SYM_ADDR_32 => bytes.get(..4)?,
        R_ZE_SYM_ADDR_32_HI => bytes.get(4..)?,
        _ => return None,
    };
    target
        .get_mut(at..at.checked_add(part.len())?)?
        .copy_from_slice(part);
    Some(())
}
