//! Where a file's table is, and what its module data add to it.
//!
//! Sections name the table, but external linkers merge sections, and some files have
//! none left. Then it is searched for by its header, in files that Go's linker has
//! marked with a note.

use super::table::{GoReader, GoTable, MAX_HEADER, Version};
use crate::elf::{CodeFile, FileSpan, ReadAt, each_relative, each_word, read_full, u32_at, u64_at};
use std::io;

/// Names of the table's section.
const SECTIONS: [&[u8]; 2] = [b".gopclntab", b".data.rel.ro.gopclntab"];
/// Bytes of a file in which its notes are.
const NOTES: usize = 8192;
/// A note's name and its size, behind its own size and before its type's number:
/// `cmd/link` writes the program's build id so.
const NOTE_TYPE_AND_NAME: [u8; 8] = [4, 0, 0, 0, b'G', b'o', 0, 0];
/// Most places that may be a program's module data.
const MAX_PLACES: usize = 16;
/// Words of module data that are read, and the indices of those that are needed. These are the
/// addresses of the first function, behind the last one, and of the text (`moduledata` of
/// `src/runtime/symtab.go`; the same from 1.16 on).
const WORDS: usize = 48;
const MIN_PC: usize = 20;
const MAX_PC: usize = 21;
const TEXT: usize = 22;
/// Where the address of functions' data may be: of 1.18, of 1.20, and of 1.27.
const DATA_OF_18: [usize; 1] = [38];
const DATA_OF_20: [usize; 2] = [40, 43];

impl GoTable {
    /// The table of a file. `None`: it has none, or one that contradicts itself.
    ///
    /// # Errors
    /// The source's own.
    pub(crate) fn find<R: ReadAt>(source: &R, elf: &CodeFile) -> io::Result<Option<Self>> {
        let named = elf.section_named(source, &SECTIONS)?;
        let found = match named {
            Some(span) => read_header(source, span)?,
            None if has_note(source)? => search(source, elf)?,
            None => None,
        };
        let Some(mut table) = found else {
            return Ok(None);
        };
        table.take_module(source, elf)?;
        let range = GoReader::new(source, &table).range()?;
        let is_text = |at: u64| {
            let mut text = elf.text.iter();
            text.any(|t| at >= t.vaddr && at - t.vaddr <= t.size)
        };
        let sound = range.is_some_and(|range| is_text(range.start) && is_text(range.end));
        Ok(sound.then_some(table))
    }

    /// Takes over from the module data where the text and the functions' data are.
    fn take_module<R: ReadAt>(&mut self, source: &R, elf: &CodeFile) -> io::Result<()> {
        if self.version < Version::V18 {
            return Ok(());
        }
        let at = self.functions + u64::from(self.n) * 8;
        let mut last = [0; 4];
        if let Some(place) = self.place(at) {
            read_full(source, &mut last, place)?;
        }
        let length = u64::from(u32::from_le_bytes(last));
        for words in modules(source, elf, self.span.vaddr)? {
            let word = |i: usize| words.get(i).copied().unwrap_or(0);
            let text = word(TEXT);
            let fits = word(MAX_PC).checked_sub(text) == Some(length) && word(MIN_PC) >= text;
            if fits && (self.text == 0 || self.text == text) {
                self.text = text;
                let places = match self.version {
                    Version::V20 => &DATA_OF_20[..],
                    _ => &DATA_OF_18,
                };
                let data = places.iter().map(|&i| word(i));
                let data = data.filter_map(|at| elf.loaded_from(at));
                self.trees = data.into_iter().find(|&span| self.has_trees(source, span));
                break;
            }
        }
        Ok(())
    }

    fn place(&self, at: u64) -> Option<u64> {
        (at < self.span.size).then(|| self.span.offset.saturating_add(at))
    }

    /// Whether functions' trees of inlined calls make sense if they are there.
    fn has_trees<R: ReadAt>(&self, source: &R, span: FileSpan) -> bool {
        let table = Self {
            trees: Some(span),
            ..self.clone()
        };
        GoReader::new(source, &table).trees_are_sound() == Ok(true)
    }
}

/// The table in a span, if a header begins it.
fn read_header<R: ReadAt>(source: &R, span: FileSpan) -> io::Result<Option<GoTable>> {
    let mut header = [0; MAX_HEADER];
    let n = read_full(source, &mut header, span.offset)?;
    Ok(GoTable::parse(header.get(..n).unwrap_or_default(), span))
}

/// Whether Go's linker has left its note.
fn has_note<R: ReadAt>(source: &R) -> io::Result<bool> {
    let mut start = vec![0; NOTES];
    let n = read_full(source, &mut start, 0)?;
    let mut places =
        memchr::memmem::find_iter(start.get(..n).unwrap_or_default(), &NOTE_TYPE_AND_NAME);
    // The size of the name comes 12 bytes before the name.
    Ok(places.any(|at| {
        at.checked_sub(8)
            .is_some_and(|at| u32_at(&start, at) == Some(4))
    }))
}

/// Searches what is loaded and not executed for a header.
fn search<R: ReadAt>(source: &R, elf: &CodeFile) -> io::Result<Option<GoTable>> {
    let begins_table = |word: u64| {
        let magic = word as u32;
        word >> 32 == 0x0801_0000 && matches!(magic & 0xffff_fff0, 0xffff_fff0)
    };
    for load in plain_loads(elf) {
        let mut places = Vec::new();
        each_word(source, load, |at, word| {
            if begins_table(word) && places.len() < MAX_PLACES {
                places.push(at);
            }
        })?;
        for at in places {
            let Some(span) = load.starting_at(at) else {
                continue;
            };
            let found = read_header(source, span)?;
            if found.is_some() {
                return Ok(found);
            }
        }
    }
    Ok(None)
}

/// What is loaded and not executed.
fn plain_loads(elf: &CodeFile) -> impl Iterator<Item = FileSpan> {
    let is_text = |load: &&FileSpan| elf.text.iter().any(|text| text.vaddr == load.vaddr);
    elf.loads.iter().filter(move |load| !is_text(load)).copied()
}

/// The words of all that may be module data: they begin with the table's address.
fn modules<R: ReadAt>(source: &R, elf: &CodeFile, table: u64) -> io::Result<Vec<Vec<u64>>> {
    let mut places = Vec::new();
    let mut add = |at: u64| {
        if places.len() < MAX_PLACES {
            places.push(at);
        }
    };
    for &load in &elf.data {
        each_word(source, load, |at, word| {
            if word == table {
                add(at);
            }
        })?;
    }
    // In a file that may be loaded anywhere, the relocations hold the addresses.
    let tables = elf.tables().relocations;
    each_relative(source, &tables, |at, value| {
        if value == table {
            add(at);
        }
    })?;
    let mut modules: Vec<Vec<u64>> = Vec::new();
    for &at in &places {
        let mut bytes = vec![0; 8 * WORDS];
        if let Some(span) = elf.loaded_from(at) {
            read_full(source, &mut bytes, span.offset)?;
        }
        let words = (0..WORDS).map(|i| u64_at(&bytes, 8 * i).unwrap_or(0));
        modules.push(words.collect());
    }
    each_relative(source, &tables, |at, value| {
        for (first, words) in places.iter().zip(&mut modules) {
            let index = at.checked_sub(*first).filter(|o| o % 8 == 0);
            let index = index.and_then(|o| usize::try_from(o / 8).ok());
            if let Some(word) = index.and_then(|i| words.get_mut(i)) {
                *word = value;
            }
        }
    })?;
    Ok(modules)
}
