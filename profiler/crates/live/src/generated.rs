//! Code that programs generate while they run: its rules come from its instructions, as
//! of a file without unwind data, read from the memory of the process.
//!
//! It is read where a stack was cut in it, or its caller guessed. A program may change it
//! at any time, without notice. So the kernel side takes a step by such a rule only where a
//! call can have led there. What was read is read again when stacks are cut all the same,
//! ever more seldom, and once in a while where none is. Code that turns out to have been
//! replaced by other code has no rules from then on.
//!
//! Programs map such memory bit by bit, and change its protection all the time. What is
//! known is kept by parts of the address space ([`GeneratedRange`]), whatever becomes of the
//! mappings in them.

use super::reader::{TableDigest, UnwindPage};
use aiprof_common::{
    ADDR_EXACT, ADDR_GUESSED, CFA_NONE, JsFunction, PAGE_SIZE, Rule, is_caller_guessed, java_method,
};
use aiprof_model::{
    process::{FileId, FileTable, Mapping},
    wire::{Sample, StopReason},
};
use aiprof_symbols::unwind::lookup;
use aiprof_system::workers::Owner;
use rustc_hash::FxHashMap;
use std::{
    ops::Range,
    time::{Duration, Instant},
};

/// Where pieces begin and end.
const ALIGNMENT: u64 = 4 << 20;
/// Largest piece: its directory has a place for each page.
const MAX_BYTES: u64 = 64 << 20;
/// Most pieces of the programs of one user other than root, and of all.
const MAX_OF_OWNER: usize = 256;
const MAX_PIECES: usize = 4096;
/// How long a page is not read again at first, and at most.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(64);
/// What marks addresses of a sample.
const MARKS: u64 = ADDR_EXACT | ADDR_GUESSED;
/// Bytes from one place to the next at which the rules of two readings are compared.
const STEP: usize = 16;

/// Most pages of one user's programs that are read at once, and how many more are allowed
/// each second. A page costs up to 100 ms, and a user who makes code to have it read must
/// not cost much.
const OF_ROOT: Limits = Limits {
    most: 512,
    in_second: 4,
};
const OF_OWNER: Limits = Limits {
    most: 64,
    in_second: 2,
};
/// Most users of whom this is known.
const MAX_OWNERS: usize = 65_536;

/// The bounds of an [`Allowance`].
#[derive(Clone, Copy, Debug)]
struct Limits {
    most: u32,
    in_second: u32,
}

/// How many pages may be read.
#[derive(Debug)]
struct Allowance {
    limits: Limits,
    left: u32,
    at: Instant,
}

impl Allowance {
    /// All that there can be.
    fn new(owner: Owner, now: Instant) -> Self {
        let limits = match owner == Owner::ROOT {
            true => OF_ROOT,
            false => OF_OWNER,
        };
        Self {
            limits,
            left: limits.most,
            at: now,
        }
    }

    /// Takes one; `false`: there is none.
    fn take(&mut self, now: Instant) -> bool {
        let each = Duration::from_secs(1) / self.limits.in_second;
        let gained = now.duration_since(self.at).div_duration_f64(each) as u32;
        self.at += each * gained;
        self.left = self.left.saturating_add(gained).min(self.limits.most);
        let is_left = self.left > 0;
        self.left = self.left.saturating_sub(1);
        is_left
    }
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

/// A part of the address space of a process in which it generates code.
#[derive(Debug)]
pub struct GeneratedRange {
    /// What stands for its file.
    pub id: FileId,
    /// Where it is; it begins with a page.
    pub range: Range<u64>,
    pages: FxHashMap<u32, Page>,
}

impl GeneratedRange {
    fn holds(&self, map: &Mapping) -> bool {
        self.range.start <= map.start && map.end <= self.range.end
    }
}

/// What is known of a process.
#[derive(Debug)]
struct GeneratingProcess {
    owner: Owner,
    pieces: Vec<GeneratedRange>,
}

/// All generated code that is looked at.
#[derive(Debug, Default)]
pub struct Generated {
    processes: FxHashMap<u32, GeneratingProcess>,
    /// Processes by what stands for the files of their pieces.
    ids: FxHashMap<FileId, u32>,
    of_owner: FxHashMap<Owner, usize>,
    allowances: FxHashMap<Owner, Allowance>,
}

/// What a page that was read means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageReading {
    /// It counts.
    Valid,
    /// Code was replaced: nothing that is known of the page counts.
    Replaced,
}

/// Why a page is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// A rule was lacking there.
    Lacking,
    /// It may have changed.
    Check,
}

impl Generated {
    /// Whether anything is known of a process.
    pub(crate) fn knows(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }

    /// The piece of a process that a mapping lies in.
    pub fn piece(&self, pid: u32, map: &Mapping) -> Option<&GeneratedRange> {
        let pieces = &self.processes.get(&pid)?.pieces;
        pieces.iter().find(|piece| piece.holds(map))
    }

    /// The process and the addresses of a piece.
    pub fn place(&self, id: FileId) -> Option<(u32, Range<u64>)> {
        let pid = *self.ids.get(&id)?;
        let pieces = &self.processes.get(&pid)?.pieces;
        let piece = pieces.iter().find(|piece| piece.id == id)?;
        Some((pid, piece.range.clone()))
    }

    /// Adds a range around a mapping; it replaces ranges that it overlaps. `false` if the
    /// table is full.
    pub fn add(&mut self, pid: u32, owner: Owner, map: &Mapping, files: &mut FileTable) -> bool {
        let Some(mut range) = around(map) else {
            return false;
        };
        let pieces = self.processes.get(&pid).map(|process| &process.pieces);
        for piece in pieces.into_iter().flatten() {
            let both = range.start.min(piece.range.start)..range.end.max(piece.range.end);
            if overlap(&range, &piece.range) && both.end - both.start <= MAX_BYTES {
                range = both;
            }
        }
        let own = self.of_owner.get(&owner).copied().unwrap_or(0);
        let is_full = owner != Owner::ROOT && own >= MAX_OF_OWNER;
        if is_full || self.ids.len() >= MAX_PIECES {
            return false;
        }
        let id = files.handle();
        let new = GeneratedRange {
            id,
            range: range.clone(),
            pages: FxHashMap::default(),
        };
        let process = self.processes.entry(pid).or_insert(GeneratingProcess {
            owner,
            pieces: Vec::new(),
        });
        let owner = process.owner;
        let old = process
            .pieces
            .extract_if(.., |piece| overlap(&range, &piece.range));
        let old: Vec<GeneratedRange> = old.collect();
        process.pieces.push(new);
        self.ids.insert(id, pid);
        *self.of_owner.entry(owner).or_default() += 1;
        old.iter().for_each(|piece| self.gone(owner, piece.id));
        true
    }

    /// A piece is no longer looked at.
    fn gone(&mut self, owner: Owner, id: FileId) {
        self.ids.remove(&id);
        if let Some(own) = self.of_owner.get_mut(&owner) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                self.of_owner.remove(&owner);
            }
        }
    }

    /// Forgets a process: it has ended, or runs another program.
    pub fn forget(&mut self, pid: u32) {
        if let Some(process) = self.processes.remove(&pid) {
            for piece in &process.pieces {
                self.gone(process.owner, piece.id);
            }
        }
    }

    /// Forgets the processes that `lives` does not know.
    pub(crate) fn keep_processes(&mut self, lives: impl Fn(u32) -> bool) {
        let gone: Vec<u32> = self.processes.keys().copied().collect();
        for pid in gone.into_iter().filter(|&pid| !lives(pid)) {
            self.forget(pid);
        }
    }

    /// Some memory was mapped, or its protection changed: what is generated there may be
    /// new.
    pub fn mapped(&mut self, pid: u32, range: &Range<u64>) {
        let Some(process) = self.processes.get_mut(&pid) else {
            return;
        };
        for piece in &mut process.pieces {
            let start = piece.range.start;
            for (&page, known) in &mut piece.pages {
                let from = start.saturating_add(u64::from(page) * PAGE_SIZE);
                if overlap(range, &(from..from.saturating_add(PAGE_SIZE))) {
                    known.wait = FIRST_WAIT;
                }
            }
        }
    }

    /// The page of a piece that an address lies in, if it must be read now.
    pub fn due(
        &mut self,
        pid: u32,
        map: &Mapping,
        address: u64,
        want: Want,
        now: Instant,
    ) -> Option<(FileId, u32)> {
        let process = self.processes.get_mut(&pid)?;
        let mut pieces = process.pieces.iter_mut();
        let piece = pieces.find(|piece| piece.holds(map))?;
        let page = address.checked_sub(piece.range.start)? / PAGE_SIZE;
        let page = u32::try_from(page).ok()?;
        let known = piece.pages.get(&page);
        let may_change = match (known, want) {
            (Some(known), _) if known.is_replaced => false,
            (Some(known), Want::Lacking) => now.duration_since(known.at) >= known.wait,
            (Some(known), Want::Check) => now.duration_since(known.at) >= LONGEST_WAIT,
            (None, Want::Lacking) => true,
            (None, Want::Check) => false,
        };
        if !may_change {
            return None;
        }
        if self.allowances.len() >= MAX_OWNERS {
            self.allowances.clear();
        }
        let owner = process.owner;
        let allowance = self.allowances.entry(owner);
        let allowance = allowance.or_insert_with(|| Allowance::new(owner, now));
        if !allowance.take(now) {
            return None;
        }
        let known = piece.pages.entry(page).or_insert(Page {
            at: now,
            wait: FIRST_WAIT,
            table: None,
            is_replaced: false,
        });
        known.at = now;
        Some((piece.id, page))
    }

    /// Takes in what was read of a page. `before`: its content so far.
    pub fn came(
        &mut self,
        id: FileId,
        page: u32,
        table: &UnwindPage,
        before: impl FnOnce() -> Option<Vec<u8>>,
    ) -> PageReading {
        let process = self
            .ids
            .get(&id)
            .and_then(|pid| self.processes.get_mut(pid));
        let piece = process.and_then(|p| p.pieces.iter_mut().find(|piece| piece.id == id));
        let Some(known) = piece.and_then(|piece| piece.pages.get_mut(&page)) else {
            return PageReading::Valid;
        };
        let (content, digest) = match table {
            UnwindPage::Built(content, digest, _) => (content.as_slice(), Some(*digest)),
            UnwindPage::NoData => (&[][..], None),
        };
        if digest == known.table {
            known.wait = (2 * known.wait).min(LONGEST_WAIT);
        } else {
            known.wait = FIRST_WAIT;
            known.table = digest;
            known.is_replaced |= before().is_some_and(|before| is_replaced(&before, content));
        }
        match known.is_replaced {
            true => PageReading::Replaced,
            false => PageReading::Valid,
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.processes.clear();
        self.ids.clear();
        self.of_owner.clear();
    }
}

/// The addresses of a piece for a mapping; `None`: it is too large.
fn around(map: &Mapping) -> Option<Range<u64>> {
    let start = map.start & !(ALIGNMENT - 1);
    let end = map.end.checked_next_multiple_of(ALIGNMENT)?;
    (start < end && end - start <= MAX_BYTES).then_some(start..end)
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
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

/// Addresses at which the walk of a sample lacked a rule. One is the last frame of a stack
/// that was cut for want of a rule, the other an interrupted function whose caller is a
/// guess.
pub(crate) fn lacking(sample: &Sample) -> impl Iterator<Item = u64> {
    let is_guessed = sample.user.first().is_some_and(|&at| is_caller_guessed(at));
    let guessed = leaf(sample).filter(|_| is_guessed);
    let is_cut = sample.stop == StopReason::FramePointer;
    let last = sample.user.last().filter(|_| is_cut);
    let last = last.filter(|&&last| is_code(last));
    let last = last.map(|&last| {
        let is_exact = sample.user.len() == 1 || last & ADDR_EXACT != 0;
        (last & !MARKS).wrapping_sub(u64::from(!is_exact))
    });
    guessed.into_iter().chain(last)
}

/// Where a sample was taken.
pub fn leaf(sample: &Sample) -> Option<u64> {
    let first = *sample.user.first()?;
    is_code(first).then_some(first & !MARKS)
}

/// Whether an address of a sample is one of code, and no method or function.
fn is_code(address: u64) -> bool {
    java_method(address).is_none() && JsFunction::of(address).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_symbols::unwind::{TextSegment, UnwindFile};
    use sha2::{Digest as _, Sha256};

    const PID: u32 = 7;
    const OTHER: Owner = Owner {
        uid: 1000,
        container: 0,
    };

    fn map(start: u64, end: u64) -> Mapping {
        Mapping {
            start,
            end,
            file_offset: 0,
            file: FileId(0),
        }
    }

    /// The mapping that most tests have.
    const MAP: Mapping = Mapping {
        start: 8 << 20,
        end: (8 << 20) + 4096,
        file_offset: 0,
        file: FileId(0),
    };

    /// The table of a page with this code at its start.
    fn table(code: &[u8]) -> UnwindPage {
        let mut memory = code.to_vec();
        memory.resize(4096, 0);
        let text = TextSegment {
            file_offset: 0,
            vaddr: MAP.start,
            size: 4096,
        };
        let mut page = Vec::new();
        let pages = MAP.start..MAP.end;
        let file = UnwindFile::generated(memory, vec![text], pages).unwrap();
        file.page(0, &mut page).unwrap();
        let digest = Sha256::digest(&page).into();
        UnwindPage::Built(page, digest, false)
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
        files: FileTable,
        before: Option<Vec<u8>>,
        start: Instant,
    }

    impl Kit {
        fn new(owner: Owner) -> Self {
            let mut kit = Self {
                generated: Generated::default(),
                files: FileTable::default(),
                before: None,
                start: Instant::now(),
            };
            assert!(kit.add(owner, &MAP));
            kit
        }

        fn add(&mut self, owner: Owner, map: &Mapping) -> bool {
            self.generated.add(PID, owner, map, &mut self.files)
        }

        fn id(&self, map: &Mapping) -> Option<FileId> {
            self.generated.piece(PID, map).map(|piece| piece.id)
        }

        fn is_due(&mut self, second: u64, want: Want) -> bool {
            let now = self.start + Duration::from_secs(second);
            self.generated
                .due(PID, &MAP, MAP.start, want, now)
                .is_some()
        }

        fn came(&mut self, table: &UnwindPage) -> PageReading {
            let before = self.before.take();
            let id = self.id(&MAP).unwrap();
            let reading = self.generated.came(id, 0, table, || before);
            if let UnwindPage::Built(content, ..) = table {
                self.before = Some(content.clone());
            }
            reading
        }
    }

    #[test]
    fn what_stays_is_read_ever_more_seldom() {
        let mut kit = Kit::new(OTHER);
        let mut readings = 0;
        for second in 0..300 {
            if kit.is_due(second, Want::Lacking) {
                assert_eq!(kit.came(&table(&function(8))), PageReading::Valid);
                readings += 1;
            }
        }
        // At 0, 1, 3, 7, 15, 31, 63, 127, 191, 255.
        assert_eq!(readings, 10);
        kit.generated.mapped(PID, &(MAP.start..MAP.end));
        assert!(kit.is_due(300, Want::Lacking));
    }

    #[test]
    fn what_lacks_nothing_is_looked_at_once_in_a_while() {
        let mut kit = Kit::new(OTHER);
        assert!(!kit.is_due(0, Want::Check));
        assert!(kit.is_due(0, Want::Lacking));
        kit.came(&table(&function(8)));
        let seconds: Vec<u64> = (1..200).filter(|&s| kit.is_due(s, Want::Check)).collect();
        assert_eq!(seconds, [64, 128, 192]);
    }

    #[test]
    fn what_is_added_counts_and_what_is_replaced_does_not() {
        let mut kit = Kit::new(OTHER);
        let one = function(8);
        let two = [one.clone(), function(24)].concat();
        let other = [function(40), function(24)].concat();
        assert!(kit.is_due(0, Want::Lacking));
        assert_eq!(kit.came(&table(&one)), PageReading::Valid);
        assert!(kit.is_due(1, Want::Lacking));
        assert_eq!(kit.came(&table(&two)), PageReading::Valid);
        assert!(kit.is_due(2, Want::Lacking));
        assert_eq!(kit.came(&table(&other)), PageReading::Replaced);
        assert!(!kit.is_due(1000, Want::Lacking));
        // What was under way comes too late.
        assert_eq!(kit.came(&table(&two)), PageReading::Replaced);
    }

    #[test]
    fn code_that_is_gone_was_replaced() {
        let mut kit = Kit::new(OTHER);
        assert!(kit.is_due(0, Want::Lacking));
        assert_eq!(kit.came(&table(&function(8))), PageReading::Valid);
        assert_eq!(kit.came(&UnwindPage::NoData), PageReading::Replaced);
    }

    #[test]
    fn what_is_known_outlives_the_mappings() {
        let mut kit = Kit::new(OTHER);
        let id = kit.id(&MAP);
        // Larger, smaller, elsewhere in the same piece.
        for (start, end) in [(0, 8192), (0, 1024), (1 << 20, 3 << 20)] {
            assert_eq!(kit.id(&map(MAP.start + start, MAP.start + end)), id);
        }
        let grown = map(MAP.start + 4096, MAP.start + (5 << 20));
        assert_eq!(kit.id(&grown), None);
        assert!(kit.add(OTHER, &grown));
        assert!(kit.id(&MAP).is_some() && kit.id(&MAP) != id);
        assert_eq!(kit.id(&MAP), kit.id(&grown));
        assert_eq!(kit.generated.place(id.unwrap()), None);
        assert_eq!(kit.generated.of_owner[&OTHER], 1);
        kit.generated.forget(PID);
        assert_eq!(kit.id(&MAP), None);
        assert!(kit.generated.ids.is_empty() && kit.generated.of_owner.is_empty());
    }

    #[test]
    fn pieces_are_bounded_in_size_and_number() {
        let mut kit = Kit::new(OTHER);
        assert!(!kit.add(OTHER, &map(0, MAX_BYTES + 1)));
        assert!(!kit.add(OTHER, &map(u64::MAX - 4096, u64::MAX)));
        let at = |n: u64| map(n << 30, (n << 30) + 4096);
        let made = (1..1000).filter(|&n| kit.add(OTHER, &at(n))).count();
        assert_eq!(made, MAX_OF_OWNER - 1);
    }

    #[test]
    fn who_makes_code_without_end_has_little_of_it_read() {
        let read = |owner, seconds: &[u64]| -> Vec<usize> {
            let large = map(MAP.start, MAP.start + MAX_BYTES / 2);
            let mut kit = Kit::new(owner);
            assert!(kit.add(owner, &large));
            let mut page = 0;
            let mut all = |second: &u64| {
                let now = kit.start + Duration::from_secs(*second);
                let first = page;
                let mut due = |page: u64| {
                    let address = large.start + page % 512 * PAGE_SIZE;
                    kit.generated.due(PID, &large, address, Want::Lacking, now)
                };
                while page < first + 500 && due(page).is_some() {
                    page += 1;
                }
                (page - first) as usize
            };
            seconds.iter().map(&mut all).collect()
        };
        assert_eq!(read(OTHER, &[0, 10, 1000]), [64, 20, 64]);
        assert_eq!(read(Owner::ROOT, &[0, 1]), [500, 16]);
    }
}
