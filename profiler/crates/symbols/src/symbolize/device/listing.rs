//! Listings that Intel's compiler writes beside its modules (`*.asm`).
//!
//! One instruction a line; `// File:` and `// Line N:` before those of a line,
//! `// B001:` before those of a basic block. Offsets are not listed; they follow from
//! the lengths: an instruction marked `Compacted` takes 8 bytes, others 16.

use super::isa::Platform;
use super::platform;
use std::sync::Arc;

/// Most instructions of a listing.
const MAX_INSTRUCTIONS: usize = 1 << 20;

/// The instructions of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Name of the kernel, as in its module.
    pub kernel: String,
    /// What devices it is for, where that is known.
    pub platform: Option<Platform>,
    /// In the order of their offsets.
    pub instructions: Vec<Listed>,
}

/// An instruction of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// From the kernel's first instruction, in bytes.
    pub offset: u32,
    /// 8 or 16 bytes.
    pub size: u32,
    /// The instruction as listed, without the comment behind it.
    pub text: String,
    /// Source file, as compiled; `None` before the first `// File:`.
    pub file: Option<Arc<str>>,
    /// Source line, from 1; 0 if not listed.
    pub line: u32,
    /// Number of its basic block.
    pub block: u32,
}

impl Listing {
    /// Reads a listing; `None` if it names no kernel.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut listing = Self::default();
        let mut at = ListingState::default();
        for line in bytes.split(|b| *b == b'\n') {
            let line = String::from_utf8_lossy(line);
            let line = line.trim_end();
            if let Some(comment) = line.strip_prefix("//") {
                at.comment(comment, &mut listing);
            } else if is_instruction(line) && listing.instructions.len() < MAX_INSTRUCTIONS {
                let text = line.split(" //").next().unwrap_or(line).trim();
                let size = if text.contains("{Compacted") { 8 } else { 16 };
                listing.instructions.push(Listed {
                    offset: at.offset,
                    size,
                    text: text.to_owned(),
                    file: at.file.clone(),
                    line: at.line,
                    block: at.block,
                });
                at.offset = at.offset.saturating_add(size);
            }
        }
        (!listing.kernel.is_empty()).then_some(listing)
    }

    /// Bytes of all instructions.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.instructions
            .last()
            .map_or(0, |i| i.offset.saturating_add(i.size))
    }

    /// The instruction at an offset.
    #[must_use]
    pub fn at(&self, offset: u32) -> Option<&Listed> {
        let at = self
            .instructions
            .binary_search_by_key(&offset, |i| i.offset);
        self.instructions.get(at.ok()?)
    }
}

/// What holds for the next instruction.
#[derive(Default)]
struct ListingState {
    offset: u32,
    file: Option<Arc<str>>,
    line: u32,
    block: u32,
}

impl ListingState {
    /// Takes over the content of a comment: `text` is what follows `//`.
    fn comment(&mut self, text: &str, listing: &mut Listing) {
        if let Some(name) = text.strip_prefix(".kernel ") {
            if listing.kernel.is_empty() {
                listing.kernel = unquoted(name).to_owned();
            }
        } else if let Some(name) = text.strip_prefix(".platform ") {
            listing.platform = platform::of_listing(name.trim());
        } else if let Some(path) = text.strip_prefix(" File: ") {
            self.file = Some(path.trim().into());
            // The line belongs to the file before. IGC prints no new line where the instruction has
            // none.
            self.line = 0;
        } else if let Some(rest) = text.strip_prefix(" Line ") {
            let number = rest.split(':').next().unwrap_or_default();
            self.line = number.trim().parse().unwrap_or(0);
        } else if let Some(rest) = text.strip_prefix(" B") {
            let number = rest.split(':').next().unwrap_or_default();
            self.block = number.parse().unwrap_or(self.block);
        }
    }
}

fn unquoted(name: &str) -> &str {
    let name = name.trim();
    let inner = name.strip_prefix('"').and_then(|n| n.strip_suffix('"'));
    inner.unwrap_or(name)
}

/// Instructions are indented or begin with what they are predicated by; labels are
/// neither.
fn is_instruction(line: &str) -> bool {
    let text = line.trim_start();
    let label = text
        .split(" //")
        .next()
        .unwrap_or(text)
        .trim_end()
        .ends_with(':');
    !text.is_empty() && !label && (text.len() < line.len() || line.starts_with('('))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "//.kernel \"k\"\n//.platform XE2\n//.declare x (1)\n\n\
        // B000: Preds:{},  Succs:{B001}\nprolog:\n\
        (W)     mov (16|M0)   r127.0<1>:ud  0x0:ud    // $4\n\n\
        // File: /a b/c.cl\n\n// Line 47:  return sum; // Line 3\n\
        \x20       shl (16|M0)  r14.0<1>:q  2:w   {Compacted,I@1}   // $18\n\
        // B012: [CALL],  Preds:{B000},  Succs:{}\n\
        _0_005:\n(W&f0.1) jmpi  _0_004   // {Compacted}\n";

    #[test]
    fn offsets_lines_and_blocks() {
        let listing = Listing::parse(TEXT.as_bytes()).unwrap();
        assert_eq!(listing.kernel, "k");
        assert_eq!(listing.platform, Some(Platform::Xe2));
        let file = Some(Arc::from("/a b/c.cl"));
        let shape: Vec<_> = listing.instructions.iter().collect();
        let told = |i: usize| {
            (
                shape[i].offset,
                shape[i].size,
                shape[i].line,
                shape[i].block,
            )
        };
        assert_eq!(shape.len(), 3);
        assert_eq!(told(0), (0, 16, 0, 0));
        assert_eq!(told(1), (16, 8, 47, 0));
        assert_eq!(told(2), (24, 16, 47, 12));
        assert_eq!((&shape[0].file, &shape[1].file), (&None, &file));
        assert_eq!(shape[2].text, "(W&f0.1) jmpi  _0_004");
        assert_eq!(listing.size(), 40);
        assert_eq!(listing.at(24), Some(shape[2]));
        assert_eq!(listing.at(20), None);
    }

    #[test]
    fn no_kernel_no_listing() {
        assert_eq!(Listing::parse(b""), None);
        assert_eq!(Listing::parse(b"//.kernel \n mov\n"), None);
        assert_eq!(
            Listing::parse(b"\xff\xff\0\n// Line 99999999999:\n mov"),
            None
        );
    }
}
