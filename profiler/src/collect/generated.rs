//! Code that programs generate while they run: its rules come from its instructions, as
//! of a file without unwind data, read from the memory of the process.
//!
//! It is read where a stack was cut in it, or its caller guessed, and nowhere else. A
//! program may change it at any time, and nothing tells. So the kernel side takes a step
//! by such a rule only where a call confirms it, what was read is read again when stacks
//! are cut all the same, ever more seldom, and code that turns out to have been replaced
//! by other code has no rules from then on.

use super::reader::{Table, TableDigest};
use crate::{
    process::FileId,
    unwind::{TextSegment, lookup},
    wire::{Sample, StopReason},
};
use aiprof_common::{ADDR_EXACT, ADDR_GUESSED, CFA_NONE, PAGE_SIZE, Rule, is_caller_guessed};
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// Largest piece of memory that is looked at: its directory has a place for each page.
pub const MAX_BYTES: u64 = 256 << 20;
/// How long a page is not read again at first, and at most.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(64);
/// Bytes from one place to the next at which the rules of two readings are compared.
const STEP: usize = 16;

/// A piece of generated code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// The process.
    pub pid: u32,
    /// Where it is, and what the kernel calls its place in a file.
    pub segment: TextSegment,
}

/// What was read of a page.
#[derive(Debug)]
struct Page {
    at: Instant,
    /// How long it is not read again.
    wait: Duration,
    /// Its table; `None`: there is none, or none yet.
    table: Option<TableDigest>,
    /// Its code was replaced.
    is_replaced: bool,
}

/// All generated code that is looked at, by what stands for its file.
#[derive(Debug, Default)]
pub struct Generated {
    codes: FxHashMap<FileId, (Code, FxHashMap<u32, Page>)>,
}

/// What a page that was read again means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// It counts.
    Valid,
    /// Code was replaced: nothing that is known of the page counts.
    Replaced,
}

impl Generated {
    /// Looks at some code from now on.
    pub fn insert(&mut self, id: FileId, code: Code) {
        self.codes.insert(id, (code, FxHashMap::default()));
    }

    /// The code that a file stands for.
    pub fn get(&self, id: FileId) -> Option<&Code> {
        self.codes.get(&id).map(|(code, _)| code)
    }

    /// Whether a page is to be read now, because a stack was cut in it.
    pub fn is_due(&mut self, id: FileId, page: u32, now: Instant) -> bool {
        let Some((_, pages)) = self.codes.get_mut(&id) else {
            return false;
        };
        let Some(known) = pages.get_mut(&page) else {
            let new = Page {
                at: now,
                wait: FIRST_WAIT,
                table: None,
                is_replaced: false,
            };
            pages.insert(page, new);
            return true;
        };
        let is_due = !known.is_replaced && now.duration_since(known.at) >= known.wait;
        if is_due {
            known.at = now;
        }
        is_due
    }

    /// Takes in what was read of a page. `before`: its content so far.
    pub fn came(
        &mut self,
        id: FileId,
        page: u32,
        table: &Table,
        before: impl FnOnce() -> Option<Vec<u8>>,
    ) -> Reading {
        let Some((_, pages)) = self.codes.get_mut(&id) else {
            return Reading::Valid;
        };
        let Some(known) = pages.get_mut(&page) else {
            return Reading::Valid;
        };
        let (content, digest) = match table {
            Table::Built(content, digest) => (content.as_slice(), Some(*digest)),
            Table::NoData => (&[][..], None),
        };
        if digest == known.table {
            known.wait = (2 * known.wait).min(LONGEST_WAIT);
            return Reading::Valid;
        }
        known.wait = FIRST_WAIT;
        known.table = digest;
        known.is_replaced |= before().is_some_and(|before| is_replaced(&before, content));
        match known.is_replaced {
            true => Reading::Replaced,
            false => Reading::Valid,
        }
    }

    /// Forgets what `keep` does not want any more.
    pub fn retain(&mut self, keep: impl Fn(FileId) -> bool) {
        self.codes.retain(|&id, _| keep(id));
    }
}

/// Whether code with rules has other rules now, or none.
fn is_replaced(before: &[u8], now: &[u8]) -> bool {
    (0..PAGE_SIZE as usize).step_by(STEP).any(|at| {
        let at = at as u16;
        let rule = |page| lookup(page, at).unwrap_or_default();
        let (before, now): (Rule, Rule) = (rule(before), rule(now));
        before.kind != CFA_NONE && before != now
    })
}

/// Where the walk of a sample lacked a rule: the address of the last frame of a stack
/// that was cut for want of one, or of an interrupted function whose caller is a guess.
pub fn lacking(sample: &Sample) -> Option<u64> {
    const MARKS: u64 = ADDR_EXACT | ADDR_GUESSED;
    let first = *sample.user.first()?;
    if is_caller_guessed(first) {
        return Some(first & !MARKS);
    }
    let last = *sample.user.last()?;
    let is_exact = sample.user.len() == 1 || last & ADDR_EXACT != 0;
    let address = (last & !MARKS).wrapping_sub(u64::from(!is_exact));
    (sample.stop == StopReason::FramePointer).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unwind::UnwindFile;
    use sha2::{Digest as _, Sha256};

    const ID: FileId = FileId(7);
    const SEGMENT: TextSegment = TextSegment {
        file_offset: 0,
        vaddr: PAGE_SIZE,
        size: 4096,
    };

    /// The table of a page with this code at its start.
    fn table(code: &[u8]) -> Table {
        let mut memory = code.to_vec();
        memory.resize(4096, 0);
        let mut page = Vec::new();
        let file = UnwindFile::generated(memory, SEGMENT).unwrap();
        file.page(0, &mut page).unwrap();
        let digest = Sha256::digest(&page).into();
        Table::Built(page, digest)
    }

    /// sub, nops, add, ret, at 16 bytes each.
    fn function(room: u8) -> Vec<u8> {
        let mut code = vec![0x48, 0x83, 0xec, room];
        code.resize(32, 0x90);
        code.extend([0x48, 0x83, 0xc4, room, 0xc3]);
        code.resize(48, 0);
        code
    }

    struct Kit {
        generated: Generated,
        before: Option<Vec<u8>>,
    }

    impl Kit {
        fn new() -> Self {
            let mut generated = Generated::default();
            generated.insert(
                ID,
                Code {
                    pid: 1,
                    segment: SEGMENT,
                },
            );
            Self {
                generated,
                before: None,
            }
        }

        fn came(&mut self, table: &Table) -> Reading {
            let before = self.before.take();
            let reading = self.generated.came(ID, 0, table, || before);
            if let Table::Built(content, _) = table {
                self.before = Some(content.clone());
            }
            reading
        }
    }

    #[test]
    fn what_stays_is_read_ever_more_seldom() {
        let mut kit = Kit::new();
        let start = Instant::now();
        let mut readings = 0;
        for second in 0..300 {
            if kit
                .generated
                .is_due(ID, 0, start + Duration::from_secs(second))
            {
                assert_eq!(kit.came(&table(&function(8))), Reading::Valid);
                readings += 1;
            }
        }
        // At 0, 1, 3, 7, 15, 31, 63, 127, 191, 255.
        assert_eq!(readings, 10);
    }

    #[test]
    fn what_is_added_counts_and_what_is_replaced_does_not() {
        let mut kit = Kit::new();
        let start = Instant::now();
        let one = function(8);
        let two = [one.clone(), function(24)].concat();
        let other = [function(40), function(24)].concat();
        let at = |second| start + Duration::from_secs(second);
        assert!(kit.generated.is_due(ID, 0, at(0)));
        assert_eq!(kit.came(&table(&one)), Reading::Valid);
        assert!(kit.generated.is_due(ID, 0, at(1)));
        assert_eq!(kit.came(&table(&two)), Reading::Valid);
        assert!(kit.generated.is_due(ID, 0, at(2)));
        assert_eq!(kit.came(&table(&other)), Reading::Replaced);
        assert!(!kit.generated.is_due(ID, 0, at(1000)));
        // What was under way comes too late.
        assert_eq!(kit.came(&table(&two)), Reading::Replaced);
    }

    #[test]
    fn code_that_is_gone_was_replaced() {
        let mut kit = Kit::new();
        assert!(kit.generated.is_due(ID, 0, Instant::now()));
        assert_eq!(kit.came(&table(&function(8))), Reading::Valid);
        assert_eq!(kit.came(&Table::NoData), Reading::Replaced);
    }
}
