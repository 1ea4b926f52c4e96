//! Tests of the whole path from an ELF file to its table pages.
//!
//! Expected rules are written down by hand or come from gimli's reading of the
//! same file, translated here independently of the code under test.

mod build;
mod compiled;
mod encoding;
mod hand;
mod headers;
mod hostile;
mod real;
mod reference;

use super::{PageContent, ReadAt, UnwindFile, lookup};
use aiprof_common::{CFA_NONE, PAGE_SIZE, RBP_AT_CFA, RBP_SAME, Rule};

/// A rule that leaves rbp alone.
fn rule(kind: u8, cfa_off: i32) -> Rule {
    Rule {
        cfa_off,
        rbp_off: 0,
        kind,
        rbp: RBP_SAME,
    }
}

/// A rule with rbp saved at CFA + `rbp_off`.
fn rule_rbp(kind: u8, cfa_off: i32, rbp_off: i16) -> Rule {
    Rule {
        cfa_off,
        rbp_off,
        kind,
        rbp: RBP_AT_CFA,
    }
}

/// The rule for an address of a file; `CFA_NONE` where a page has no data.
fn rule_at<R: ReadAt>(file: &UnwindFile<R>, vaddr: u64) -> Rule {
    let offset = vaddr - file.first_page_vaddr();
    let mut page = Vec::new();
    let index = u32::try_from(offset / PAGE_SIZE).unwrap();
    match file.page(index, &mut page).unwrap() {
        PageContent::NoData => rule(CFA_NONE, 0),
        PageContent::Table | PageContent::Partial => {
            lookup(&page, (offset % PAGE_SIZE) as u16).unwrap()
        }
    }
}
