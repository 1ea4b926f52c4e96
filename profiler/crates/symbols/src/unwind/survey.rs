//! Where functions start in a file that has kept no symbols, by all of its code that no
//! record of the unwind data describes, and by its data.
//!
//! A direct call leads to a start. So does an address in the data, or one that code loads; but a
//! label may be there that a computed jump goes to. Those are only likely. With all starts of a
//! file known, what follows a call belongs to the function that calls, whether the call returns or
//! not. It ends at the next start, or where another function jumps to.

use super::TextSegment;
use super::code::loaded_address;
use crate::elf::{
    FileRange, FileSpan, R_X86_64_IRELATIVE, ReadAt, Relocation, each_relocation, read_full,
};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};
use std::ops::Range;

/// Most bytes of text of a file that is surveyed: some 100 ms.
const MAX_TEXT: u64 = 16 << 20;
/// Most bytes from a file's first text to its last.
const MAX_SPAN: u64 = 64 << 20;
/// Most bytes of data that are looked through, and of relocations.
const MAX_DATA: u64 = 16 << 20;
/// Most addresses of each kind.
const MAX_FOUND: usize = 1 << 19;

/// What the code and the data of a file show about its functions. Addresses in order, each in bytes
/// from the first of the text.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Functions start there.
    pub(super) sure: Vec<u32>,
    /// Functions or labels are there.
    pub(super) likely: Vec<u32>,
    /// Other functions jump there: no call before it is followed by it for certain.
    pub(super) borders: Vec<u32>,
}

/// What is looked at.
pub(super) struct SurveySources<'a, R> {
    pub(super) source: &'a R,
    /// The text, by address.
    pub(super) text: &'a [TextSegment],
    /// The parts that are written to, or were when the file was loaded.
    pub(super) data: &'a [FileSpan],
    /// Relocations with addends.
    pub(super) relocations: &'a [FileRange],
}

/// Whether a file's text is small enough.
pub(super) fn is_feasible(text: &[TextSegment]) -> bool {
    let bytes: u64 = text.iter().map(|t| t.size).sum();
    bytes <= MAX_TEXT && span(text).is_some_and(|span| span.end - span.start <= MAX_SPAN)
}

fn span(text: &[TextSegment]) -> Option<Range<u64>> {
    let last = text.last()?;
    let span = text.first()?.vaddr..last.vaddr.checked_add(last.size)?;
    (!span.is_empty()).then_some(span)
}

/// A set of addresses in the text.
struct Addresses {
    first: u64,
    bits: Vec<u64>,
}

impl Addresses {
    fn new(span: &Range<u64>) -> Self {
        let words = (span.end - span.start).div_ceil(64);
        Self {
            first: span.start,
            bits: vec![0; usize::try_from(words).unwrap_or(0)],
        }
    }

    fn place(&self, at: u64) -> Option<(usize, u64)> {
        let offset = at.checked_sub(self.first)?;
        Some((usize::try_from(offset / 64).ok()?, 1 << (offset % 64)))
    }

    fn insert(&mut self, at: u64) {
        let Some((word, bit)) = self.place(at) else {
            return;
        };
        if let Some(word) = self.bits.get_mut(word) {
            *word |= bit;
        }
    }

    fn contains(&self, at: u64) -> bool {
        let place = self.place(at);
        place.is_some_and(|(word, bit)| self.bits.get(word).is_some_and(|w| w & bit != 0))
    }
}

/// What the sweep over the code has found.
struct Sweep {
    first: u64,
    /// Where instructions begin that the unwind data do not describe.
    instructions: Addresses,
    called: Vec<u32>,
    loaded: Vec<u32>,
    jumps: Vec<(u32, u32)>,
}

impl Sweep {
    fn offset(&self, at: u64) -> Option<u32> {
        u32::try_from(at.checked_sub(self.first)?).ok()
    }

    fn take(&mut self, i: &Instruction, is_described: bool) {
        if !is_described {
            self.instructions.insert(i.ip());
        }
        let near = i.op0_kind() == OpKind::NearBranch64;
        match i.flow_control() {
            FlowControl::Call if near && i.near_branch_target() != i.next_ip() => {
                let to = self.offset(i.near_branch_target());
                push(&mut self.called, to);
            }
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch if near => {
                let way = self.offset(i.ip()).zip(self.offset(i.near_branch_target()));
                push(&mut self.jumps, way);
            }
            FlowControl::Next => {
                let to = loaded_address(i).and_then(|at| self.offset(at));
                push(&mut self.loaded, to);
            }
            _ => {}
        }
    }
}

fn push<T>(list: &mut Vec<T>, one: Option<T>) {
    if list.len() < MAX_FOUND {
        list.extend(one);
    }
}

/// Surveys a file whose unwind data describe the code in `covered`, in order. `named`:
/// functions that its symbols name, as bytes from the text's first one.
pub(super) fn survey<R: ReadAt>(
    sources: &SurveySources<'_, R>,
    covered: &[Range<u64>],
    named: &[u32],
) -> std::io::Result<Survey> {
    let Some(span) = span(sources.text) else {
        return Ok(Survey::default());
    };
    let mut sweep = Sweep {
        first: span.start,
        instructions: Addresses::new(&span),
        called: Vec::new(),
        loaded: Vec::new(),
        jumps: Vec::new(),
    };
    for segment in sources.text {
        let mut bytes = vec![0; usize::try_from(segment.size).unwrap_or(0)];
        let n = read_full(sources.source, &mut bytes, segment.file_offset)?;
        bytes.truncate(n);
        let mut at = segment.vaddr;
        let end = segment.vaddr.saturating_add(bytes.len() as u64);
        let first = covered.partition_point(|code| code.end <= at);
        let described = covered.get(first..).unwrap_or_default();
        let last = std::iter::once(end..end);
        for code in described.iter().cloned().chain(last) {
            let gap = at..code.start.clamp(at, end);
            at = at.max(code.end.min(end));
            sweep_part(&mut sweep, &bytes, segment.vaddr, gap.clone(), false);
            sweep_part(&mut sweep, &bytes, segment.vaddr, gap.end..at, true);
            if at >= end {
                break;
            }
        }
    }
    let is_code = |at: &u32| {
        let at = span.start.saturating_add((*at).into());
        sweep.instructions.contains(at)
    };
    let mut sure = std::mem::take(&mut sweep.called);
    sure.retain(is_code);
    sort(&mut sure);
    let mut likely = std::mem::take(&mut sweep.loaded);
    let is_known = |at: &u32| named.binary_search(at).is_ok() || sure.binary_search(at).is_ok();
    pointers(sources, |at| {
        push(&mut likely, sweep.offset(at));
    })?;
    likely.retain(|at| is_code(at) && !is_known(at));
    sort(&mut likely);
    let mut starts = [&sure[..], &likely, named].concat();
    sort(&mut starts);
    let of = |at: u32| starts.partition_point(|&start| start <= at);
    let is_start = |at: u32| starts.binary_search(&at).is_ok();
    let foreign = sweep
        .jumps
        .iter()
        .filter(|(from, to)| is_code(to) && of(*from) != of(*to) && !is_start(*to));
    let mut borders: Vec<u32> = foreign.map(|&(_, to)| to).collect();
    sort(&mut borders);
    Ok(Survey {
        sure,
        likely,
        borders,
    })
}

fn sort(list: &mut Vec<u32>) {
    list.sort_unstable();
    list.dedup();
    list.shrink_to_fit();
}

/// Takes in the instructions of a part of a segment's bytes.
fn sweep_part(sweep: &mut Sweep, bytes: &[u8], vaddr: u64, part: Range<u64>, is_described: bool) {
    let index = |at: u64| usize::try_from(at.saturating_sub(vaddr)).unwrap_or(usize::MAX);
    let Some(bytes) = bytes.get(index(part.start)..index(part.end)) else {
        return;
    };
    let mut decoder = Decoder::with_ip(64, bytes, part.start, DecoderOptions::NONE);
    let mut i = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut i);
        if !i.is_invalid() {
            sweep.take(&i, is_described);
        }
    }
}

/// The words of the data, and the addends of its relocations.
fn pointers<R: ReadAt>(
    sources: &SurveySources<'_, R>,
    mut found: impl FnMut(u64),
) -> std::io::Result<()> {
    let mut left = MAX_DATA;
    for data in sources.data {
        // Words are aligned in memory.
        let skip = data.vaddr.next_multiple_of(8) - data.vaddr;
        let size = data.size.saturating_sub(skip).min(left);
        left -= size;
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        let n = read_full(sources.source, &mut bytes, data.offset.saturating_add(skip))?;
        let words = bytes.get(..n).unwrap_or_default().as_chunks::<8>().0;
        words
            .iter()
            .for_each(|word| found(u64::from_le_bytes(*word)));
    }
    each_relocation(
        sources.source,
        sources.relocations,
        MAX_DATA,
        |relocation| {
            if matches!(relocation.kind, Relocation::RELATIVE | R_X86_64_IRELATIVE) {
                found(relocation.addend);
            }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: u64 = 0x40_1000;
    /// Data, and behind it relocations, in the file behind the code.
    const DATA: u64 = 0x100;
    const RELOCATIONS: u64 = 0x120;

    fn put(image: &mut [u8], at: u64, bytes: &[u8]) {
        let at = at as usize;
        image[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn image() -> Vec<u8> {
        let mut image = vec![0xcc; DATA as usize];
        image.resize(0x200, 0);
        // call 0x10; lea 0x40(%rip), %rdi; ret
        put(&mut image, 0, &[0xe8, 0x0b, 0, 0, 0]);
        put(&mut image, 5, &[0x48, 0x8d, 0x3d, 0x34, 0, 0, 0, 0xc3]);
        put(&mut image, 0x10, &[0xc3]);
        // push %rbx; pop %rbx; ret
        for at in [0x20, 0x30, 0x40] {
            put(&mut image, at, &[0x53, 0x5b, 0xc3]);
        }
        // jmp 0x21
        put(&mut image, 0x50, &[0xeb, 0xcf]);
        // call 0x06, amid an instruction
        put(&mut image, 0x60, &[0xe8, 0xa1, 0xff, 0xff, 0xff, 0xc3]);
        // Described: call 0x50. Not described: call 0x70.
        put(&mut image, 0x70, &[0xe8, 0xdb, 0xff, 0xff, 0xff, 0xc3]);
        put(&mut image, 0x80, &[0xe8, 0xeb, 0xff, 0xff, 0xff, 0xc3]);
        put(&mut image, DATA + 4, &(FIRST + 0x20).to_le_bytes());
        for (i, word) in [FIRST, Relocation::RELATIVE.into(), FIRST + 0x30]
            .iter()
            .enumerate()
        {
            put(&mut image, RELOCATIONS + 8 * i as u64, &word.to_le_bytes());
        }
        image
    }

    fn surveyed(image: &[u8], covered: &[Range<u64>], named: &[u32]) -> Survey {
        let text = [TextSegment {
            file_offset: 0,
            vaddr: FIRST,
            size: DATA,
        }];
        let span = |offset, vaddr, size| FileSpan {
            offset,
            vaddr,
            size,
        };
        let sources = SurveySources {
            source: &image,
            text: &text,
            data: &[span(DATA, 0x60_0004, 28)],
            relocations: &[FileRange {
                offset: RELOCATIONS,
                size: 24,
            }],
        };
        assert!(is_feasible(&text));
        survey(&sources, covered, named).unwrap()
    }

    #[test]
    fn calls_are_sure_and_addresses_likely() {
        let image = image();
        let described = std::slice::from_ref(&(FIRST + 0x70..FIRST + 0x76));
        let found = surveyed(&image, described, &[]);
        assert_eq!(found.sure, [0x10, 0x50]);
        assert_eq!(found.likely, [0x20, 0x30, 0x40]);
        assert_eq!(found.borders, [0x21]);
        // What symbols name is neither.
        let found = surveyed(&image, described, &[0x20, 0x30]);
        assert_eq!(found.likely, [0x40]);
    }

    #[test]
    fn any_bytes_are_surveyed() {
        let mut image = image();
        for i in 0..4096u32 {
            let at = (i.wrapping_mul(2_654_435_761) >> 8) as usize % image.len();
            image[at] = (i >> 3) as u8;
            let covered = FIRST + u64::from(i % 300)..FIRST + u64::from(i % 700);
            let found = surveyed(&image, std::slice::from_ref(&covered), &[]);
            assert!(found.sure.len() + found.likely.len() < 256);
        }
        for cut in 0..image.len() {
            surveyed(&image[..cut], &[], &[]);
        }
    }

    #[test]
    fn large_text_is_not() {
        let text = |vaddr, size| TextSegment {
            file_offset: 0,
            vaddr,
            size,
        };
        assert!(is_feasible(&[text(0, MAX_TEXT)]));
        assert!(!is_feasible(&[text(0, MAX_TEXT + 1)]));
        assert!(!is_feasible(&[text(0, 1), text(MAX_SPAN, 1)]));
        assert!(!is_feasible(&[]));
        assert!(!is_feasible(&[text(u64::MAX, 2)]));
    }
}
