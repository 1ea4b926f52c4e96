//! gimli's reading of a file, row by row, translated to rules.

use super::*;
use aiprof_common::{
    CFA_DEREF_RBP, CFA_DEREF_RSP, CFA_END, CFA_PLT, CFA_RBP, CFA_REG, CFA_RETURN, CFA_RSP,
    CFA_SIGNAL, CFA_UNSUPPORTED, RBP_AT_RBP, RBP_UNDEFINED,
};
use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EndianSlice, FrameDescriptionEntry, LittleEndian,
    Operation, RegisterRule, UnwindContext, UnwindExpression, UnwindSection, UnwindTableRow,
    X86_64,
};
use object::{Object, ObjectSection};
use std::collections::BTreeMap;

type Slice<'a> = EndianSlice<'a, LittleEndian>;
type Fde<'a> = FrameDescriptionEntry<Slice<'a>, usize>;

/// How often each kind of rule was seen, to prove that a comparison met it.
pub(super) type Kinds = BTreeMap<u8, u64>;

/// Compares all pages of the file with gimli's rows: at the first, a middle and
/// the last byte of every row and of every gap.
pub(super) fn compare(data: &[u8]) -> Kinds {
    let object = object::File::parse(data).unwrap();
    let section = object.section_by_name(".eh_frame").unwrap();
    let eh_frame = EhFrame::new(section.data().unwrap(), LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(section.address());
    let mut fdes = parse_fdes(&eh_frame, &bases);
    fdes.retain(|fde| fde.len() > 0);
    fdes.sort_by_key(Fde::initial_address);

    let file = UnwindFile::open(data).unwrap();
    let mut pages = Pages::new(&file);
    let mut context = UnwindContext::new();
    let mut covered = file.first_page_vaddr();
    for (i, fde) in fdes.iter().enumerate() {
        pages.check(covered, fde.initial_address(), rule(CFA_NONE, 0));
        let limit = fdes.get(i + 1).map_or(u64::MAX, Fde::initial_address);
        let mut rows = fde.rows(&eh_frame, &bases, &mut context).unwrap();
        while let Some(row) = rows.next_row().unwrap() {
            let expected = translate(row, fde.is_signal_trampoline(), &eh_frame);
            pages.check(row.start_address(), row.end_address().min(limit), expected);
        }
        covered = fde.end_address().min(limit);
    }
    pages.check(covered, pages.end(), rule(CFA_NONE, 0));
    assert_eq!(file.malformed(), 0, "gimli reads all of it");
    pages.kinds
}

/// All FDEs, terminators in the middle skipped.
fn parse_fdes<'a>(eh_frame: &EhFrame<Slice<'a>>, bases: &BaseAddresses) -> Vec<Fde<'a>> {
    let mut fdes = Vec::new();
    let mut entries = eh_frame.entries(bases);
    while let Some(entry) = entries.next().unwrap() {
        if let CieOrFde::Fde(partial) = entry {
            fdes.push(partial.parse(EhFrame::cie_from_offset).unwrap());
        }
    }
    fdes
}

/// The file's pages, built once each, in order.
struct Pages<'a, R> {
    file: &'a UnwindFile<R>,
    current: Option<u32>,
    page: Vec<u8>,
    kinds: Kinds,
}

impl<'a, R: ReadAt> Pages<'a, R> {
    fn new(file: &'a UnwindFile<R>) -> Self {
        Self {
            file,
            current: None,
            page: Vec::new(),
            kinds: Kinds::new(),
        }
    }

    /// First address after the last page.
    fn end(&self) -> u64 {
        self.file.first_page_vaddr() + u64::from(self.file.n_pages()) * PAGE_SIZE
    }

    /// Asserts the rule from `start` to `end`, in every page between.
    fn check(&mut self, start: u64, end: u64, expected: Rule) {
        let (mut at, end) = (start, end.min(self.end()));
        while at < end {
            let stop = end.min((at / PAGE_SIZE + 1) * PAGE_SIZE);
            for pc in [at, at + (stop - at) / 2, stop - 1] {
                let found = self.rule(pc);
                let without_rbp = Rule {
                    rbp: RBP_UNDEFINED,
                    ..expected
                };
                // Where the file has no rule its instructions may give one; behind a call a
                // register of the caller is on the stack.
                let more = expected.kind == CFA_NONE
                    || expected.kind >= CFA_REG && found.kind == CFA_DEREF_RSP
                    // A return address in a register.
                    || expected.kind == CFA_UNSUPPORTED && found.kind >= CFA_RETURN
                    // What a function saved that resumes an exception.
                    || expected.kind == CFA_RBP && found == without_rbp;
                assert!(
                    more || found == expected,
                    "at {pc:#x}, row {start:#x}..{end:#x}: {found:?}, not {expected:?}"
                );
            }
            *self.kinds.entry(expected.kind).or_default() += 1;
            at = stop;
        }
    }

    fn rule(&mut self, vaddr: u64) -> Rule {
        let offset = vaddr - self.file.first_page_vaddr();
        let index = (offset / PAGE_SIZE) as u32;
        if self.current != Some(index) {
            self.file.page(index, &mut self.page).unwrap();
            self.current = Some(index);
        }
        match self.page.is_empty() {
            true => rule(CFA_NONE, 0),
            false => lookup(&self.page, (offset % PAGE_SIZE) as u16).unwrap(),
        }
    }
}

/// The operations of an expression.
fn operations<'a>(
    expression: &UnwindExpression<usize>,
    section: &EhFrame<Slice<'a>>,
) -> Vec<Operation<Slice<'a>>> {
    let mut operations = Vec::new();
    let encoding = gimli::Encoding {
        format: gimli::Format::Dwarf32,
        version: 4,
        address_size: 8,
    };
    let mut iter = expression.get(section).unwrap().operations(encoding);
    while let Some(operation) = iter.next().unwrap() {
        operations.push(operation);
    }
    operations
}

/// Register number and offset, if that is all the operation is.
fn register_offset(operation: &Operation<Slice<'_>>) -> Option<(u16, i64)> {
    match operation {
        Operation::RegisterOffset {
            register, offset, ..
        } => Some((register.0, *offset)),
        _ => None,
    }
}

/// The threshold of a PLT's expression.
fn plt_threshold(operations: &[Operation<Slice<'_>>]) -> Option<u64> {
    use Operation::{And, Ge, Plus, Shl, UnsignedConstant};
    let [
        sp,
        ip,
        UnsignedConstant { value: 15 },
        And,
        n,
        Ge,
        shift,
        Shl,
        Plus,
    ] = operations
    else {
        return None;
    };
    let UnsignedConstant { value: threshold } = n else {
        return None;
    };
    let UnsignedConstant { value: 3 } = shift else {
        return None;
    };
    let places = (register_offset(sp)?, register_offset(ip)?);
    (places == ((7, 8), (16, 0))).then_some(*threshold)
}

/// Kind and offset for the CFA.
fn translate_cfa(cfa: &CfaRule<usize>, section: &EhFrame<Slice<'_>>) -> Option<(u8, i64)> {
    match cfa {
        CfaRule::RegisterAndOffset { register, offset } => match register.0 {
            7 => Some((CFA_RSP, *offset)),
            6 => Some((CFA_RBP, *offset)),
            n @ 0..16 => Some((CFA_REG + n as u8, *offset)),
            _ => None,
        },
        CfaRule::Expression(expression) => {
            let operations = operations(expression, section);
            match &operations[..] {
                [base, Operation::Deref { size: 8, .. }, rest @ ..] => {
                    let added = match rest {
                        [] => 0,
                        [Operation::PlusConstant { value }] => *value as i64,
                        _ => return None,
                    };
                    let (kind, offset) = match register_offset(base)? {
                        (7, offset) => (CFA_DEREF_RSP, offset),
                        (6, offset) => (CFA_DEREF_RBP, offset),
                        _ => return None,
                    };
                    // Its lower 24 bits, and what is added in words above them.
                    Some((
                        kind,
                        i64::from((offset & 0xff_ffff | (added / 8) << 24) as i32),
                    ))
                }
                _ => Some((CFA_PLT, plt_threshold(&operations)? as i64)),
            }
        }
    }
}

/// Location of a saved register, relative to register `base`.
fn at_register(
    base: u16,
    rule: Option<RegisterRule<usize>>,
    section: &EhFrame<Slice<'_>>,
) -> Option<i64> {
    let Some(RegisterRule::Expression(expression)) = rule else {
        return None;
    };
    match &operations(&expression, section)[..] {
        [only] => register_offset(only)
            .filter(|&(r, _)| r == base)
            .map(|(_, offset)| offset),
        _ => None,
    }
}

/// A row as the unwinder's rule.
fn translate(row: &UnwindTableRow<usize>, signal: bool, section: &EhFrame<Slice<'_>>) -> Rule {
    let unsupported = rule(CFA_UNSUPPORTED, 0);
    let return_address = row.register(X86_64::RA);
    if return_address == Some(RegisterRule::Undefined) {
        return rule(CFA_END, 0);
    }
    let Some((kind, cfa_off)) = translate_cfa(row.cfa(), section) else {
        return unsupported;
    };
    if signal {
        let registers = [X86_64::RBP, X86_64::RSP, X86_64::RA];
        let at =
            registers.map(|r| at_register(7, row.register(r), section).map(|o| o - cfa_off + 160));
        let confirmed = kind == CFA_DEREF_RSP && at == [Some(120), Some(160), Some(168)];
        return if confirmed {
            rule(CFA_SIGNAL, cfa_off as i32 - 160)
        } else {
            unsupported
        };
    }
    if return_address != Some(RegisterRule::Offset(-8)) || row.register(X86_64::RSP).is_some() {
        return unsupported;
    }
    let (rbp, rbp_off) = match row.register(X86_64::RBP) {
        None | Some(RegisterRule::SameValue) => (RBP_SAME, 0),
        Some(RegisterRule::Offset(offset)) => (RBP_AT_CFA, offset as i16),
        saved => match at_register(6, saved, section) {
            Some(offset) => (RBP_AT_RBP, offset as i16),
            None => (RBP_UNDEFINED, 0),
        },
    };
    Rule {
        cfa_off: cfa_off as i32,
        rbp_off,
        kind,
        rbp,
    }
}
