//! Names, files and lines of an address, with the calls that were inlined there.

#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

use super::table::{GoFunction, GoReader, Version};
use crate::elf::{ReadAt, read_full, u32_at};
use crate::frame::SourceFunction;
use std::io;

/// Most calls that are inlined into each other.
const MAX_DEPTH: usize = 32;
/// Functions that are looked at, and trees, to see whether trees make sense.
const MAX_PROBED: u32 = 4096;
const ENOUGH_TREES: u32 = 8;

/// An entry of a tree of inlined calls.
struct InlinedCall {
    name: u32,
    /// Where in the function that it was inlined into, in bytes from its start.
    parent: u32,
}

impl<R: ReadAt> GoReader<'_, R> {
    /// The functions at an address, outermost first: the one whose code it is, and
    /// those inlined there. Empty: no function is there.
    ///
    /// # Errors
    /// The source's own.
    pub(crate) fn frames(&mut self, address: u64, lines: bool) -> io::Result<Vec<SourceFunction>> {
        self.refill();
        let Some(function) = self.function_at(address)? else {
            return Ok(Vec::new());
        };
        let mut frames = Vec::new();
        let mut at = address;
        while frames.len() < MAX_DEPTH {
            let Some(call) = self.inlined(&function, at)? else {
                break;
            };
            let name = self.text(self.table().names.saturating_add(call.name.into()))?;
            let source = self.source_at(&function, at, lines)?;
            frames.push(SourceFunction { name, source });
            at = function.start.saturating_add(call.parent.into());
        }
        let name = self.name(&function)?;
        if name.is_empty() {
            return Ok(Vec::new());
        }
        let source = self.source_at(&function, at, lines)?;
        frames.push(SourceFunction { name, source });
        frames.reverse();
        Ok(frames)
    }

    /// The innermost call that was inlined at an address.
    fn inlined(&mut self, function: &GoFunction, at: u64) -> io::Result<Option<InlinedCall>> {
        let (Some(tree), Some(trees)) = (function.tree, self.table().trees) else {
            return Ok(None);
        };
        let index = self.value_at(function, function.pcinline, at)?;
        let Some(index) = index.and_then(|index| u64::try_from(index).ok()) else {
            return Ok(None);
        };
        // `inlinedCall` of `src/runtime/symtab.go`, later `symtabinl.go`.
        let (size, name, parent) = match self.table().version {
            Version::V20 => (16, 4, 8),
            _ => (20, 12, 16),
        };
        let offset = u64::from(tree).saturating_add(index.saturating_mul(size));
        if offset.saturating_add(size) > trees.size {
            return Ok(None);
        }
        let mut bytes = [0; 20];
        read_full(
            self.source(),
            &mut bytes,
            trees.offset.saturating_add(offset),
        )?;
        let call = u32_at(&bytes, name).zip(u32_at(&bytes, parent));
        let call = call.map(|(name, parent)| InlinedCall { name, parent });
        let length = function.end - function.start;
        Ok(call.filter(|call| u64::from(call.parent) < length))
    }

    /// File and line of an address.
    fn source_at(
        &mut self,
        function: &GoFunction,
        at: u64,
        lines: bool,
    ) -> io::Result<Option<(String, u32)>> {
        if !lines || self.table().version < Version::V16 {
            return Ok(None);
        }
        let line = self.value_at(function, function.pcline, at)?;
        let file = self.value_at(function, function.pcfile, at)?;
        let (Some(line), Some(file)) = (
            line.and_then(|line| u32::try_from(line).ok()),
            file.and_then(|file| u64::try_from(file).ok()),
        ) else {
            return Ok(None);
        };
        let number = u64::from(function.unit).saturating_add(file);
        let at = self.table().units.saturating_add(number.saturating_mul(4));
        let Some(place) = self.place(at) else {
            return Ok(None);
        };
        let source = self.source();
        let offset = u32_at(self.numbers.get(source, place, 4)?, 0);
        let Some(offset) = offset.filter(|&offset| offset != u32::MAX) else {
            return Ok(None);
        };
        let name = self.text(self.table().files.saturating_add(offset.into()))?;
        Ok((!name.is_empty()).then_some((name, line)))
    }

    /// Whether the trees of the first functions that have one lead to names, and into
    /// the functions.
    pub(super) fn trees_are_sound(&mut self) -> Result<bool, ()> {
        let mut trees = 0;
        for index in 0..self.table().len().min(MAX_PROBED) {
            let function = self.function(index).map_err(drop)?;
            let Some(function) = function.filter(|f| f.tree.is_some() && f.pcinline != 0) else {
                continue;
            };
            let values = self.values(&function, function.pcinline).map_err(drop)?;
            let inlined = values.unwrap_or_default().into_iter();
            let Some((range, _)) = inlined.into_iter().find(|(_, value)| *value >= 0) else {
                continue;
            };
            let call = self.inlined(&function, range.start).map_err(drop)?;
            let Some(call) = call else { return Ok(false) };
            let name = self.text(self.table().names.saturating_add(call.name.into()));
            let name = name.map_err(drop)?;
            // Behind a name the next one begins.
            let before = call.name.checked_sub(1).map(u64::from);
            let before = before.map(|at| self.text(self.table().names.saturating_add(at)));
            let is_start = before.is_none_or(|before| before.is_ok_and(|b| b.is_empty()));
            if name.is_empty() || !is_start {
                return Ok(false);
            }
            trees += 1;
            if trees >= ENOUGH_TREES {
                break;
            }
        }
        Ok(trees > 0)
    }
}
