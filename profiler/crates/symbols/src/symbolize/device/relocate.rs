//! Relocations of debug sections.
//!
//! IGC's symbols for them are named `.text.KERNEL` but point at the debug section
//! and have the value 0: taken literally, all kernels lie on each other. So the
//! name counts. IGC 2.40 leaves the name out of some of them; several kernels and
//! debug sections then share a symbol without one. Addresses relative to it are
//! put at [`NAMELESS`], for the reader of the debug information to find out whose
//! they are.

use super::limits::{Exhausted, StepBudget};
use super::names::Strings;
use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{Rela, SectionHeader, Sym};
use rustc_hash::FxHashMap;
use std::borrow::Cow;

pub(super) type Header = elf::FileHeader64<LE>;
pub(super) type Symbols<'d> = object::read::elf::SymbolTable<'d, Header, &'d [u8]>;
pub(super) type Section = elf::SectionHeader64<LE>;

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

/// The relocations of a file.
pub(super) struct Relocations<'d> {
    /// The file.
    pub(super) bytes: &'d [u8],
    /// Sections of relocations with addends.
    pub(super) tables: Vec<&'d Section>,
    pub(super) symbols: &'d Symbols<'d>,
    /// Names of the symbols.
    pub(super) names: Strings<'d>,
    pub(super) bases: Bases<'d>,
}

impl<'d> Relocations<'d> {
    /// The bytes of one debug section with its relocations applied, and how many
    /// could not be.
    pub(super) fn section(
        &self,
        index: usize,
        section: &Section,
        budget: &mut StepBudget,
    ) -> Result<(Cow<'d, [u8]>, u32), Exhausted> {
        let mut bytes = Cow::Borrowed(section.data(LE, self.bytes).unwrap_or_default());
        let mut failed = 0u32;
        budget.spend(self.tables.len() as u64)?;
        let of_this = |t: &&&Section| usize::try_from(t.sh_info(LE)) == Ok(index);
        for table in self.tables.iter().filter(of_this) {
            let Ok(Some((list, _))) = table.rela(LE, self.bytes) else {
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
                let symbol = object::SymbolIndex(rela.r_sym(LE, false) as usize);
                let symbol = self.symbols.symbol(symbol).ok();
                let name = symbol.map(|s| self.names.get(s.st_name(LE)));
                let name = name.unwrap_or_default();
                budget.spend(name.len() as u64 / 64)?;
                let done = symbol.and_then(|s| apply(target, rela, s, name, &self.bases));
                if done.is_none() {
                    failed = failed.saturating_add(1);
                }
            }
        }
        Ok((bytes, failed))
    }
}

fn apply(
    target: &mut [u8],
    rela: &elf::Rela64<LE>,
    symbol: &elf::Sym64<LE>,
    name: &[u8],
    bases: &Bases<'_>,
) -> Option<()> {
    let kind = rela.r_type(LE, false).0;
    if kind == R_ZE_NONE {
        return Some(());
    }
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
