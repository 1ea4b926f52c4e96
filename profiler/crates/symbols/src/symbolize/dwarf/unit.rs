//! What the parser gives of a file's sections, and what is asked of it.

use super::bytes::PagedBytes;
use super::sections::Sections;
use crate::symbolize::debug_file::Finder;
use gimli::AttributeValue;
use std::time::Instant;

pub(super) type Dwarf<'a> = gimli::Dwarf<PagedBytes<'a>>;
// With the offset's type spelled out, lifetimes can be shortened.
pub(super) type Unit<'a> = gimli::Unit<PagedBytes<'a>, usize>;
pub(super) type Attr<'a> = AttributeValue<PagedBytes<'a>, usize>;

/// What is asked of a file's DWARF.
pub(in crate::symbolize) struct Question<'a> {
    /// ELF virtual addresses.
    pub vaddrs: &'a [u64],
    /// Whether source lines are wanted.
    pub lines: bool,
    /// When reading ends.
    pub deadline: Instant,
    /// Finds the files that it refers to.
    pub finder: &'a Finder<'a>,
}

/// The DWARF of some sections, whose names `name` returns.
pub(super) fn load(
    sections: &Sections,
    name: fn(gimli::SectionId) -> Option<&'static str>,
) -> Dwarf<'_> {
    let load = |id: gimli::SectionId| {
        let bytes = PagedBytes::of(sections, name(id).unwrap_or_default());
        Ok::<_, std::convert::Infallible>(bytes)
    };
    match gimli::Dwarf::load(load) {
        Ok(dwarf) => dwarf,
    }
}
