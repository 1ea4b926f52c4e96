//! Split DWARF: units whose entries are in files of their own (`.dwo`) or in a package of
//! these (`.dwp`), of which the program has only a skeleton and the lines.
//!
//! DWARF 5, section 7.3; before that GNU's extension (`DW_AT_GNU_dwo_name`).

use super::bytes::PagedBytes;
use super::limit::{DwarfError, WorkLimit};
use super::sections::Sections;
use super::text::text;
use super::unit::{Dwarf, Question, load};
use super::units::Root;
use crate::elf::ElfInfo;
use gimli::{DwarfPackage, SectionId};
use std::cell::{Cell, OnceCell, RefCell};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Most units with a file that was not found which are remembered.
const MAX_MISSING: usize = 4096;
/// Most bytes that the compressed sections of such a file may inflate to.
const MAX_PACKED: u64 = 64 << 20;

/// What is known of the split units of a file.
#[derive(Debug, Default)]
pub(super) struct Split {
    /// The package, once it was looked for.
    package: OnceCell<Option<Sections>>,
    /// Units whose file was not found.
    absent: RefCell<Vec<u64>>,
    missing: Cell<u64>,
}

/// A file with a unit's entries.
pub(super) enum SplitObject<'a> {
    Package(&'a Sections),
    Own(Box<Sections>),
}

/// A split unit.
pub(super) struct SplitUnit<'a> {
    pub dwarf: Dwarf<'a>,
    pub root: Root<'a>,
    /// Its offset.
    pub offset: usize,
    /// Offsets of the units around it, ascending.
    pub units: Vec<usize>,
}

impl Split {
    /// Bytes of heap held.
    pub(super) fn memory(&self) -> u64 {
        let package = self.package.get().and_then(Option::as_ref);
        package.map_or(0, Sections::memory)
    }

    /// Drops what can be read again.
    pub(super) fn release(&mut self) {
        if let Some(Some(package)) = self.package.get_mut() {
            package.release();
        }
    }

    /// Units whose file was not found, since the start.
    pub(super) fn missing(&self) -> u64 {
        self.missing.get()
    }

    /// The file with the entries of a unit, where they are in another and it is found.
    pub(super) fn find(
        &self,
        dwarf: &Dwarf<'_>,
        root: &Root<'_>,
        question: &Question<'_>,
    ) -> Option<SplitObject<'_>> {
        let (Some(name), Some(id)) = (&root.object, root.unit.dwo_id) else {
            return None;
        };
        let package = self
            .package
            .get_or_init(|| open(question.finder.package()?))
            .as_ref();
        if let Some(package) = package {
            package.allow(question.deadline);
            return Some(SplitObject::Package(package));
        }
        if self.absent.borrow().contains(&id.0) {
            return None;
        }
        let name = text(dwarf, &root.unit, *name);
        let directory = root
            .directory
            .map(|directory| text(dwarf, &root.unit, directory));
        let path = Path::new(directory.as_deref().unwrap_or("/")).join(name);
        let found = question.finder.object(&path).and_then(open);
        let Some(object) = found else {
            self.missing.set(self.missing.get() + 1);
            let mut absent = self.absent.borrow_mut();
            if absent.len() < MAX_MISSING {
                absent.push(id.0);
            }
            return None;
        };
        object.allow(question.deadline);
        Some(SplitObject::Own(Box::new(object)))
    }
}

fn open((file, info): (File, ElfInfo)) -> Option<Sections> {
    if info.packed_bytes > MAX_PACKED {
        return None;
    }
    Sections::open(Arc::new(file), &info).ok()
}

impl<'a> SplitObject<'a> {
    fn sections(&self) -> &Sections {
        match self {
            Self::Package(sections) => sections,
            Self::Own(sections) => sections,
        }
    }

    /// The unit that a skeleton stands for; `None` if the file has another.
    pub(super) fn unit<'s>(
        &'s self,
        parent: &Dwarf<'s>,
        skeleton: &Root<'s>,
        clock: &WorkLimit,
    ) -> Result<Option<SplitUnit<'s>>, DwarfError> {
        let sections = self.sections();
        let Some(id) = skeleton.unit.dwo_id else {
            return Ok(None);
        };
        let dwarf = match self {
            Self::Package(_) => {
                let section = |id: SectionId| {
                    let bytes = PagedBytes::of(sections, id.dwo_name().unwrap_or_default());
                    Ok::<_, gimli::Error>(bytes)
                };
                let empty = PagedBytes::of(sections, "");
                let found = DwarfPackage::load(section, empty)
                    .and_then(|package| package.find_cu(id, parent));
                let Some(dwarf) =
                    found.map_err(|e| sections.take_failure().map_or(e.into(), |f| f))?
                else {
                    return Ok(None);
                };
                dwarf
            }
            Self::Own(_) => {
                let mut dwarf = load(sections, SectionId::dwo_name);
                dwarf.make_dwo(parent);
                dwarf
            }
        };
        let found = find_unit(dwarf, skeleton, clock);
        found.map_err(|error| sections.take_failure().unwrap_or(error))
    }
}

/// The unit of a split file with the id of the skeleton.
fn find_unit<'a>(
    dwarf: Dwarf<'a>,
    skeleton: &Root<'a>,
    clock: &WorkLimit,
) -> Result<Option<SplitUnit<'a>>, DwarfError> {
    let mut units = Vec::new();
    let mut found = None;
    let mut headers = dwarf.units();
    while let Some(header) = headers.next()? {
        clock.check()?;
        let Some(gimli::DebugInfoOffset(offset)) = header.debug_info_offset() else {
            continue;
        };
        units.push(offset);
        if found.is_some() {
            continue;
        }
        let mut root = Root::read(&dwarf, header)?;
        if root.unit.dwo_id == skeleton.unit.dwo_id {
            root.unit.copy_relocated_attributes(&skeleton.unit);
            found = Some((offset, root));
        }
    }
    Ok(found.map(|(offset, root)| SplitUnit {
        dwarf,
        root,
        offset,
        units,
    }))
}
