//! What the fuzz target `eh_frame` calls.

use super::*;

/// Pages that [`fuzz_one`] builds: bounded time for each input.
const FUZZ_PAGES: u32 = 16;

/// Opens `data` as a file and builds and reads its first pages: for fuzzing.
/// Whatever the bytes are, it must return, soon.
pub fn fuzz_one(data: &[u8]) {
    let Ok(file) = UnwindFile::open(data) else {
        return;
    };
    let mut out = Vec::new();
    for index in 0..file.n_pages().min(FUZZ_PAGES) {
        if let Ok(PageContent::Partial) = file.quick_page(index, &mut out) {
            assert!(super::super::lookup(&out, 0).is_some(), "a table answers");
        }
        if let Ok(PageContent::Table) = file.page(index, &mut out) {
            for pc in [0, 1, 0x7fff, u16::MAX] {
                assert!(
                    super::super::lookup(&out, pc).is_some(),
                    "a table answers for every byte"
                );
            }
        }
    }
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("eh_frame", fuzz_one);
